"""``replay --dry-run``: published hit rates, an obvious LRU, and mistakes."""

from __future__ import annotations

import json
from collections import OrderedDict
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING

import pytest

from mooncake_client._cli import simulating
from mooncake_client._cli.simulating import find_simulator
from mooncake_store.command import run
from mooncake_store.errors import ConfigError, NotSupported
from mooncake_store.traces import open_trace

if TYPE_CHECKING:
    from collections.abc import Sequence

CLIENT = [EntryPoint("client", "mooncake_client.command:app", "mooncake_store.commands")]

PUBLISHED = {5_859: 0.3094, 0: 0.6396}
"""{capacity: share of the looked-up blocks of the synthetic trace that hit}, as computed by others;
``tests/unit/master/test_capacity.py`` compares all published figures."""


def test_hit_rates_are_the_published_ones(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["replay", "synthetic", "--dry-run", "--json", "--policy", "lru"]
    for capacity in PUBLISHED:
        words += ["--capacity-blocks", str(capacity)]
    assert run(words, CLIENT) == 0
    results = json.loads(capsys.readouterr().out)
    assert [result["capacity_blocks"] for result in results] == list(PUBLISHED)
    for result, rate in zip(results, PUBLISHED.values(), strict=True):
        assert (result["requests"], result["blocks"]) == (3_993, 121_877)
        assert round(result["block_hit_rate"], 4) == rate


def obvious_lru(chains: Sequence[Sequence[int]], capacity: int) -> tuple[int, int, int]:
    """Return (block hits, prefix hits, evictions) of the plainest LRU there is."""
    pool: OrderedDict[int, None] = OrderedDict()
    block_hits = prefix_hits = evictions = 0
    for chain in chains:
        for block in chain:
            if block not in pool:
                break
            prefix_hits += 1
        for block in chain:
            if block in pool:
                block_hits += 1
                pool.move_to_end(block)
                continue
            if len(pool) == capacity:
                pool.popitem(last=False)
                evictions += 1
            pool[block] = None
    return block_hits, prefix_hits, evictions


@pytest.mark.parametrize("capacity", [1, 19, 300, 2_000])
def test_the_simulation_is_an_lru(capacity: int) -> None:
    chains = [request.hash_ids for request in open_trace("synthetic")][:600]
    hits = find_simulator()(chains, capacity, "lru")
    counted = (hits.block_hits, hits.prefix_hits, hits.evictions)
    assert counted == obvious_lru(chains, capacity)


def test_the_command_prints_one_object_for_one_pool(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["replay", "conversation", "--dry-run", "--requests", "100", "--json"]
    assert run([*words, "--capacity-blocks", "500"], CLIENT) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["requests"], result["capacity_blocks"], result["policy"]) == (100, 500, "lru")
    assert 0 < result["prefix_hit_rate"] <= result["block_hit_rate"] < 1
    assert result["evictions"] > 0
    assert result["wrong_bytes"] == 0
    assert result["bytes_by_path"] == {}
    assert result["get_p50_ms"] is None


def test_the_command_prints_a_table_for_several_pools(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["replay", "synthetic", "--dry-run", "--requests", "500", "--block-bytes", "2MiB"]
    assert run([*words, "--capacity-blocks", "1000", "--capacity-blocks", "0"], CLIENT) == 0
    head, first, second = capsys.readouterr().out.splitlines()
    assert "MEMORY AT 2.0 MiB" in head
    assert first.split()[:2] == ["1,000", "512,000"]
    assert second.startswith("no limit")


def test_a_trace_that_is_none_and_options_that_clash_are_usage_errors(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for words, said in (
        (["replay", "nowhere", "--dry-run"], "'nowhere' is no file and none of"),
        (["replay", "synthetic", "--capacity-blocks", "5"], "needs --dry-run"),
        (["replay", "synthetic", "--dry-run", "--all", "--requests", "5"], "exclude each other"),
        (["replay", "synthetic", "--dry-run", "--policy", "best"], "best"),
        (["replay", "synthetic", "--dry-run", "--capacity-blocks", "-1"], "capacity-blocks"),
        (["replay", "synthetic", "--block-bytes", "4096"], "has no unit"),
    ):
        assert run(words, CLIENT) == 2, words
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ConfigError, match="best"):
        find_simulator()([[1]], 1, "best")


def test_without_a_master_installed_there_is_no_simulation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(simulating, "entry_points", lambda **_: ())
    with pytest.raises(NotSupported, match="master"):
        find_simulator()
