"""A slice of a real trace, with real bytes, through processes."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mooncake_client._cli import replaying
from mooncake_client._cli.blocks import block_bytes
from mooncake_store.testing import wait_until

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Commands

pytestmark = pytest.mark.processes

PROMISED = [
    "requests", "blocks", "block_hit_rate", "prefix_hit_rate", "wrong_bytes", "bytes_by_path",
    "get_p50_ms", "get_p99_ms", "put_p50_ms", "put_p99_ms", "evictions",
]  # fmt: skip
"""What ``--json`` prints first, in this order; scripts rely on it."""


def test_a_slice_of_a_real_trace_is_served_byte_for_byte(cli: Commands) -> None:
    words = ["replay", "conversation", "--requests", "60", "--block-bytes", "4KiB", "--json"]
    result = cli(*words)
    assert result.code == 0, result.err
    seen = result.json
    assert list(seen)[: len(PROMISED)] == PROMISED
    expected = cli("replay", "conversation", "--requests", "60", "--dry-run", "--json").json
    for name in ("requests", "blocks", "block_hit_rate", "prefix_hit_rate"):
        assert seen[name] == expected[name], name
    assert seen["requests"] == 60
    assert seen["block_hit_rate"] > 0.03
    assert (seen["wrong_bytes"], seen["evictions"], seen["lost_under_hold"]) == (0, 0, 0)
    assert seen["bytes_by_path"] == {"shm": 4096 * seen["blocks"]}
    assert 0 < seen["get_p50_ms"] <= seen["get_p99_ms"]
    assert 0 < seen["put_p50_ms"] <= seen["put_p99_ms"]
    assert cli("ls", "replay/", "--json").json == []


def test_a_pool_that_is_too_small_evicts_and_lies_never(cli: Commands) -> None:
    words = ["replay", "synthetic", "--requests", "40", "--block-bytes", "256KiB", "--json"]
    seen = cli(*words, "--concurrency", "3", "--transport", "tcp").json
    assert seen["evictions"] > 0
    assert seen["wrong_bytes"] == 0
    assert list(seen["bytes_by_path"]) == ["tcp"]
    assert seen["pool_bytes"] == 128 << 20


def test_a_wrong_byte_is_counted_and_fails_the_run(
    cli: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(key: str, size: int) -> bytes:
        return b"\0" + block_bytes(key, size)[1:]

    monkeypatch.setattr(replaying, "block_bytes", damaged)
    result = cli("replay", "conversation", "--requests", "3", "--block-bytes", "4KiB", "--json")
    assert result.code == 1
    assert result.json["wrong_bytes"] > 0


def test_kept_blocks_stay_and_the_table_names_every_figure(cli: Commands) -> None:
    words = ["replay", "synthetic", "--requests", "2", "--block-bytes", "4KiB", "--keep"]
    shown = cli(*words)
    assert shown.code == 0
    for said in (
        "requests", "blocks looked up", "hit rate, blocks", "hit rate, leading prefix",
        "bytes over shm", "get, all blocks of a request", "evictions", "wrong bytes",
    ):  # fmt: skip
        assert said in shown.text
    assert cli("ls", "replay/synthetic/", "--json").json != []
    assert cli("rm", "--prefix", "replay/synthetic/", "--yes").code == 0


def test_a_trace_of_ones_own_is_replayed_from_a_file(cli: Commands, tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    line = '{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}\n'
    path.write_text(line * 3)
    seen = cli("replay", str(path), "--json").json
    assert (seen["requests"], seen["blocks"]) == (3, 6)
    assert seen["block_hit_rate"] == pytest.approx(4 / 6, abs=1e-5)
    path.write_text(line + "no json\n")
    broken = cli("replay", str(path))
    assert broken.code == 2
    assert "line 2" in broken.err


def test_local_starts_a_cluster_for_the_run_and_leaves_nothing(
    cli: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []

    def make(**options: Any) -> str:  # noqa: ANN401 - passed on
        made.append(Path(mkdtemp(**options)))
        return str(made[-1])

    mkdtemp = tempfile.mkdtemp
    monkeypatch.setattr(tempfile, "mkdtemp", make)
    words = ["replay", "conversation", "--local", "--requests", "5", "--dram", "16MiB", "--json"]
    result = cli(*words)
    assert result.code == 0, result.err
    assert result.json["pool_bytes"] == 32 << 20
    assert [folder.name[:18] for folder in made] == ["mooncake-store-up-"]
    assert not made[0].exists()


@pytest.mark.slow
def test_an_interrupted_replay_ends_at_once_and_takes_its_cluster_along() -> None:
    words = ["replay", "conversation", "--local", "--all", "--dram", "16MiB"]
    with subprocess.Popen(  # noqa: S603 - own interpreter, fixed words
        [sys.executable, "-m", "mooncake_store", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            wait_until(lambda: len(children.read_text().split()) == 3, 60)
            pids = children.read_text().split()
            process.send_signal(signal.SIGINT)
            _, error = process.communicate(timeout=60)
        finally:
            process.kill()  # Else leaving the block waits for an end that does not come.
    assert process.returncode == 130
    assert "Traceback" not in error
    # One that was being started at that very moment is ended by the kernel, after its parent.
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 20)
