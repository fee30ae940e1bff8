"""nodes, stats, doctor and bench against processes."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest

from mooncake_client._cli.local_cluster import ClusterPlan, LocalCluster
from mooncake_store.limits import MIB
from mooncake_store.testing import wait_until

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Commands

pytestmark = pytest.mark.processes


def test_nodes_are_listed_with_what_they_use(cli: Commands) -> None:
    assert cli("put", "weight", "--value", "x" * 100_000, "--replicas", "2").code == 0
    nodes = cli("nodes", "--json").json
    assert [node["name"] for node in nodes] == ["node-1", "node-2"]
    for node in nodes:
        assert node["state"] == "live"
        assert node["dram"]["capacity_bytes"] == 64 * MIB
        assert node["dram"]["used_bytes"] >= 100_000
        assert node["objects"] >= 1
    lines = cli("nodes").text.splitlines()
    assert lines[0].split()[:4] == ["NAME", "STATE", "ADDRESS", "DRAM"]
    assert lines[1].startswith("node-1  live   127.0.0.1:")


def test_stats_show_counters_by_name(cli: Commands) -> None:
    before = cli("stats", "objects_acknowledged", "--json").json
    assert cli("put", "counted", "--value", "x").code == 0
    after = cli("stats", "objects", "acknowledged", "--json").json
    (name,) = after["counters"]
    assert after["counters"][name] == before["counters"][name] + 1
    assert after["term"] >= 1
    assert name in cli("stats").text


def test_doctor_finds_nothing_wrong_and_leaves_nothing_behind(cli: Commands) -> None:
    found = cli("doctor", "--json")
    bad = [finding for finding in found.json["findings"] if finding["verdict"] == "bad"]
    assert bad == []
    assert (found.code, found.json["ok"]) == (0, True)
    texts = [finding["text"] for finding in found.json["findings"]]
    for said in (
        "get, get_into, batch, range, view: right",
        "get, get_into, batch, range: right",
        "asyncio get, batch: right",
        "over shm",
        "over tcp",
        "remove: gone for every reader",
    ):
        assert sum(said in text for text in texts) >= 2, said
    assert cli("ls", "doctor/", "--json").json == []
    shown = cli("doctor")
    assert shown.code == 0
    assert shown.text.endswith("all is well\n")


@pytest.mark.slow
def test_doctor_sees_a_node_that_stopped_answering(cli: Commands) -> None:
    plan = ClusterPlan(nodes=2, dram_bytes=16 * MIB)
    with LocalCluster(plan, lambda _name, _line: None) as cluster:
        cluster.start(threading.Event())
        words = ["doctor", "--master", cluster.master, "--deadline", "2s", "--json"]
        wait_until(lambda: cli(*words).code == 0, 60)
        os.kill(cluster.pids()["node-2"], signal.SIGSTOP)

        def is_noticed() -> bool:
            result = cli(*words)
            bad = {f["subject"] for f in result.json["findings"] if f["verdict"] == "bad"}
            return result.code == 1 and bad == {"node-2"}

        wait_until(is_noticed, 60)
        os.kill(cluster.pids()["node-2"], signal.SIGCONT)
        wait_until(lambda: cli(*words).code == 0, 60)


def test_bench_reports_each_operation_and_removes_its_objects(cli: Commands) -> None:
    words = ["bench", "--time", "500ms", "--mix", "get=2,put=1,exists=1", "--concurrency", "2"]
    words += ["--size", "4KiB", "--size", "300KiB", "--keys", "20", "--batch", "3", "--json"]

    def loaded() -> dict[str, Any]:
        result = cli(*words)
        assert result.code == 0, result.err
        rows = {row["operation"]: row for row in result.json["operations"]}
        assert set(rows) == {"get", "put", "exists"}
        return rows if all(row["calls_per_s"] > 0 for row in rows.values()) else {}

    # Not each time: half a second may be over before a busy machine has done one of each.
    operations = wait_until(loaded, 60)
    for row in operations.values():
        assert row["keys_per_s"] == pytest.approx(3 * row["calls_per_s"], rel=0.01, abs=0.2)
        assert 0 < row["p50_ms"] <= row["p99_ms"]
        assert (row["misses"], row["refusals"]) == (0, 0)
    assert operations["get"]["gb_per_s"] > 0
    assert cli("ls", "bench/", "--json").json == []
    assert "OPERATION" in cli("bench", "--time", "100ms", "--keys", "2").text
