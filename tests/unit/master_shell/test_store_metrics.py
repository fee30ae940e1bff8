"""The numbers of nodes' stores, as metrics."""

from __future__ import annotations

import re
from pathlib import Path

from mooncake_master.store_metrics import COUNTERS, GAUGES, of_stores
from mooncake_storage_node.ssd import State, Statistics
from mooncake_storage_node.stores import counters_of
from mooncake_store.types import NodeState
from mooncake_store.wire.control import ClusterStatus, NodeRecord, NodeStatus, StoreStatus


def statistics() -> Statistics:
    return Statistics(
        path="/d", state=State.READY, reason="", incarnation=5, capacity_bytes=100,
        write_budget_bytes=0, entries_found=0, reads=7, read_bytes=70, read_misses=1,
        reads_refused={"queue_full": 2}, stored=3, stored_bytes=30, present=4, evicted=5,
        carried=6, carried_bytes=60, removed=8, cleared=9, lost={"io_error": 1, "cut_short": 2},
        refused={}, written_bytes=99, read_us=1.0, commit_us=2.0,
    )  # fmt: skip


def status(*stores: StoreStatus) -> ClusterStatus:
    record = NodeRecord(0, "n", "0" * 32, "h", 1, "", int(NodeState.LIVE), (), {})
    node = NodeStatus(record, 0, 0, 0, 0.0, stores=stores)
    return ClusterStatus("c", 1, "s", 1.0, (node,), {})


def test_every_number_of_a_store_that_is_exported_is_one_that_nodes_send() -> None:
    assert set(GAUGES) | set(COUNTERS) <= counters_of(statistics()).keys()


def test_stores_become_metrics_with_their_reasons() -> None:
    store = StoreStatus(5, "/d", "ready", "", 100, 50, 2, counters_of(statistics()))
    families = {family.name: family for family in of_stores("m_", status(store))}
    ready = families["m_store_ready"].samples[0]
    assert (ready.labels, ready.value) == ({"node": "n", "store": "/d"}, 1.0)
    assert families["m_store_reads"].samples[0].value == 7
    lost = {sample.labels["reason"]: sample.value for sample in families["m_store_lost"].samples}
    assert lost == {"io_error": 1, "cut_short": 2}
    refused = families["m_store_reads_refused"].samples
    assert [sample.labels["reason"] for sample in refused] == ["queue_full"]


def test_every_metric_of_a_store_is_documented_and_no_other() -> None:
    store = StoreStatus(5, "/d", "ready", "", 100, 50, 2, counters_of(statistics()))
    served = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in of_stores("mooncake_master_", status(store))
    }
    page = (Path(__file__).parents[3] / "docs" / "reference" / "metrics.md").read_text()
    assert set(re.findall(r"`(mooncake_master_store_\w+)`", page)) == served


def test_a_degraded_store_is_not_ready_and_no_store_is_no_metric() -> None:
    store = StoreStatus(0, "/d", "degraded", "gone", 100, 0, 0)
    families = {family.name: family for family in of_stores("m_", status(store))}
    assert families["m_store_ready"].samples[0].value == 0.0
    assert list(of_stores("m_", status())) == []
