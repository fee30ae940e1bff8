"""Exported numbers equal a walk of the index, after everything that changes them (FR-030)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import httpx
import pytest

from mooncake_store.extent import extent_bytes, name_bytes
from mooncake_store.testing import MasterProcess, WireClient, parse_metrics, wait_until, walk
from mooncake_store.testing.waiting import ConditionNotMet
from mooncake_store.wire import control
from tests.integration.master.fake_node import FakeNode, put

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.processes


@pytest.fixture
def node(master: MasterProcess) -> Iterator[FakeNode]:
    with FakeNode(master.port) as running:
        yield running


def metrics(master: MasterProcess) -> dict[str, float]:
    answer = httpx.get(f"http://127.0.0.1:{master.admin_port}/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return parse_metrics(answer.text)


def gauge_sum(numbers: dict[str, float], name: str) -> float:
    return sum(value for series, value in numbers.items() if series.split("{")[0] == name)


def check_against_walk(master: MasterProcess, wire: WireClient) -> None:
    """Compare what is exported with what is listed, when the master has come to rest.

    Before, nodes confirm what was freed, and it evicts between the two looks.
    """
    differences: list[str] = []

    def equal() -> bool:
        numbers = metrics(master)
        objects = list(walk(wire))
        replicas = sum(len(record.replicas) for _, record in objects)
        lengths = sum(record.length for _, record in objects)
        used = sum(
            extent_bytes(record.length, name_bytes(name, record.key)) * len(record.replicas)
            for name, record in objects
        )
        walked = {
            "mooncake_master_namespace_objects_count": len(objects),
            "mooncake_master_namespace_object_bytes": lengths,
            "mooncake_master_objects_count": len(objects),
            "mooncake_master_object_bytes": lengths,
            "mooncake_master_node_replicas_count": replicas,
            "mooncake_master_node_used_bytes": used,
        }
        assert all(value >= 0 for value in numbers.values())
        differences[:] = [
            f"{name} is {gauge_sum(numbers, name):g}, the walk found {count}"
            for name, count in walked.items()
            if gauge_sum(numbers, name) != count
        ]
        return not differences

    try:
        wait_until(equal, 30.0)
    except ConditionNotMet:
        raise AssertionError("; ".join(differences)) from None


def test_numbers_equal_a_walk_after_every_kind_of_change(
    master: MasterProcess, wire: WireClient, node: FakeNode
) -> None:
    del node
    before = metrics(master)
    first = wire.ask(control.OpenNamespace("first"))
    second = wire.ask(control.OpenNamespace("second"))
    check_against_walk(master, wire)
    for number in range(20):
        put(wire, first, f"k{number}", 1000 * number)
        put(wire, second, f"k{number}", 10)
    check_against_walk(master, wire)
    replace = control.PutStart(first.slot, first.epoch, [control.PutItem("k1", 77)], replace=True)
    grant = wire.ask(replace).items[0]
    wire.ask(control.PutCommit([control.CommitItem(grant.version, 1)]))
    check_against_walk(master, wire)
    wire.ask(control.Remove(first.slot, first.epoch, ["k2", "k3", "absent"]))
    check_against_walk(master, wire)
    aborted = wire.ask(control.PutStart(first.slot, first.epoch, [control.PutItem("new", 5)]))
    wire.ask(control.PutAbort([aborted.items[0].version]))
    check_against_walk(master, wire)
    wire.ask(control.Clear("second"))
    check_against_walk(master, wire)
    after = metrics(master)
    fallen = [n for n in before if n.split("{")[0].endswith("_total") and after[n] < before[n]]
    assert fallen == []


def test_eviction_shows_in_the_numbers(
    master: MasterProcess, wire: WireClient, node: FakeNode
) -> None:
    del node
    space = wire.ask(control.OpenNamespace("evicted"))
    for number in range(100):
        put(wire, space, f"k{number}", 1 << 20)
    check_against_walk(master, wire)
    numbers = metrics(master)
    assert numbers['mooncake_master_objects_gone_total{reason="evicted"}'] > 0


def test_a_node_that_goes_shows_in_the_numbers(master: MasterProcess) -> None:
    with FakeNode(master.port, name="short-lived"):
        assert metrics(master)['mooncake_master_connections{role="node"}'] >= 2
    wait_until(lambda: metrics(master)['mooncake_master_connections{role="node"}'] == 0, 30.0)


def test_every_connection_and_request_is_counted_once(master: MasterProcess) -> None:
    clients = 'mooncake_master_connections{role="client"}'
    wait_until(lambda: metrics(master)[clients] == 0, 30.0, what="the others' ends are noticed")
    before = metrics(master)
    with WireClient("127.0.0.1", master.port) as wire:
        for _ in range(7):
            wire.ask(control.ListNamespaces())
        during = metrics(master)
    assert during[clients] == 1
    wait_until(lambda: metrics(master)[clients] == 0, 30.0)
    name = 'mooncake_master_request_duration_seconds_count{request="ListNamespaces"}'
    assert during[name] == before.get(name, 0) + 7


def test_nothing_moves_when_nothing_happens(start_master: Callable[..., MasterProcess]) -> None:
    # Its own: what happened to another one before might still have consequences.
    master = start_master(recovery_grace="0s")

    def counters() -> dict[str, float]:
        numbers = metrics(master)
        numbers.pop("mooncake_master_pauses_total")  # a machine that stands still is something
        return {n: v for n, v in numbers.items() if n.split("{")[0].endswith("_total")}

    before = counters()
    time.sleep(1.0)  # the condition is that nothing happens for a while
    assert counters() == before


def test_misses_are_counted_by_reason_and_logged_nowhere(
    master: MasterProcess, wire: WireClient, node: FakeNode
) -> None:
    del node
    space = wire.ask(control.OpenNamespace("misses"))
    logged = len(master.log())
    before = metrics(master)
    for number in range(50):
        wire.ask(control.Locate(space.slot, space.epoch, [f"absent{number}"]))
    after = metrics(master)
    name = 'mooncake_master_misses_total{reason="absent"}'
    assert after[name] == before[name] + 50
    said = master.log()[logged:].splitlines()  # of nodes that come and go, and of a slow machine
    assert [line for line in said if "absent" in line or "miss" in line] == []
    assert len(said) < 25
