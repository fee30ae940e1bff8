"""Copies that nodes make of replicas: begun, linked, given up, recovered."""

from __future__ import annotations

import pytest

from mooncake_master.core.copying import COPIES_MAX, COPY_S, ITEMS_MAX, Start
from mooncake_store.limits import KIB, MIB
from mooncake_store.wire.control import (
    CopyExtents,
    FreeExtents,
    Location,
    Message,
    ReportReplica,
)
from tests.unit.master.rig import FakeNode, Free, Rig

DONE = 'mooncake_master_copies_total{outcome="done",purpose="test"}'


@pytest.fixture
def rig() -> Rig:
    return Rig(1 * MIB, 1 * MIB)


def location(rig: Rig, key: str) -> Location:
    (found,) = rig.locate(key)
    assert isinstance(found, Location)
    return found


def put_on_first(rig: Rig, key: str = "a") -> None:
    rig.put(key, preferred=("n0",))


def asked(node: FakeNode, kind: type[Message]) -> list[Free]:
    return [message for _, message in node.inbox if isinstance(message, kind)]


def test_a_copy_becomes_a_further_replica_under_a_number_of_its_own(rig: Rig) -> None:
    put_on_first(rig)
    ended: list[str] = []
    assert rig.copy("a", "n1", ended) is Start.BEGUN
    assert ended == [""]
    found = location(rig, "a")
    assert len(found.replicas) == 2
    attempts = {replica.attempt for replica in found.replicas}
    assert min(attempts) == 0
    assert max(attempts) > found.version
    assert rig.master.statistics().counters[DONE] == 1
    rig.check()


def test_a_removal_frees_a_copy_under_its_own_number(rig: Rig) -> None:
    put_on_first(rig)
    rig.copy("a", "n1", [])
    assert rig.remove("a") == [True]
    assert not rig.nodes["n0"].entries
    assert not rig.nodes["n1"].entries
    rig.check()


def test_a_copy_alone_keeps_the_object_when_the_first_replica_is_found_bad(rig: Rig) -> None:
    put_on_first(rig)
    rig.copy("a", "n1", [])
    found = location(rig, "a")
    first = next(replica for replica in found.replicas if not replica.attempt)
    rig.ask(ReportReplica(rig.slot, rig.epoch, "a", found.version, first.incarnation, first.offset,
                          "checksum_mismatch"))  # fmt: skip
    (left,) = location(rig, "a").replicas
    assert left.attempt > found.version
    rig.check()


def test_a_removal_waits_until_a_copy_under_way_cannot_land_any_more(rig: Rig) -> None:
    put_on_first(rig)
    rig.automatic = False
    ended: list[str] = []
    rig.copy("a", "n1", ended)
    number = rig.send_remove("a")
    assert ended == ["stale_extent"]
    rig.deliver(rig.nodes["n0"])
    assert number not in rig.replies, "the copy may still land"
    copy, free = rig.nodes["n1"].inbox
    assert isinstance(copy[1], CopyExtents)
    assert isinstance(free[1], FreeExtents)
    assert free[1].items[0].version == copy[1].items[0].attempt
    rig.deliver(rig.nodes["n1"], which=1)
    assert rig.replies.pop(number).removed == b"\1"
    rig.deliver(rig.nodes["n1"])  # the copy comes too late: it meets the fence
    assert not rig.nodes["n1"].entries
    rig.check()


def test_a_copy_that_landed_for_a_version_replaced_meanwhile_is_freed(rig: Rig) -> None:
    put_on_first(rig)
    rig.automatic = False
    ended: list[str] = []
    rig.copy("a", "n1", ended)
    rig.automatic = True
    node = rig.nodes["n1"]
    token, message = node.inbox.pop()
    late = node.answer(message)  # landed, and the answer is on its way
    rig.put("a", replace=True, preferred=("n0",))
    rig.perform(rig.master.node_replied(node.peer, token, late, rig.now_s))
    assert ended == ["stale_extent"]
    assert not node.entries
    assert len(location(rig, "a").replicas) == 1
    rig.check()


@pytest.mark.parametrize("how", ["refused", "lost", "silent", "cut"])
def test_a_copy_that_fails_leaves_nothing(rig: Rig, how: str) -> None:
    put_on_first(rig)
    node = rig.nodes["n1"]
    free = rig.master.statistics().gauges["mooncake_master_used_bytes"]
    rig.automatic = False
    ended: list[str] = []
    rig.copy("a", "n1", ended)
    if how == "refused":
        node.refusals.append("checksum_mismatch")
        rig.deliver(node)
    elif how == "lost":
        rig.deliver(node, lose=True)
    elif how == "silent":
        rig.sleep(COPY_S + 0.2)
    else:
        rig.cut(node)
        rig.begin_registration(node)
    rig.tick()
    assert len(ended) == 1
    assert ended[0]
    rig.automatic = True
    rig.settle()
    assert not node.entries
    assert rig.master.statistics().gauges["mooncake_master_used_bytes"] == free
    assert len(location(rig, "a").replicas) == 1
    rig.check()


def test_the_source_is_not_evicted_while_it_is_copied() -> None:
    rig = Rig(8 * KIB, 8 * KIB, lease_ttl_s=0.0, high_watermark=1.0)
    rig.put("a", length=6 * KIB, preferred=("n0",))
    rig.automatic = False
    rig.copy("a", "n1", [])
    number = rig.begin("b", length=6 * KIB, preferred=("n0",), deadline_s=1.0)
    rig.deliver(rig.nodes["n1"])
    rig.automatic = True
    rig.tick()
    assert rig.replies.pop(number).items[0].replicas
    assert rig.exists("a") == [True], "the copy is left"
    rig.check()


def test_the_rate_of_copies_is_bounded_for_both_nodes(rig: Rig) -> None:
    rig = Rig(4 * MIB, 4 * MIB, 4 * MIB, copy_rate=1.0 * MIB)
    rig.put("a", length=MIB, preferred=("n0",))
    rig.put("b", length=KIB, preferred=("n0",))
    rig.put("c", length=KIB, preferred=("n2",))
    assert rig.copy("a", "n1", []) is Start.BEGUN
    assert rig.copy("b", "n2", []) is Start.BUSY, "its source moves enough"
    assert rig.copy("c", "n1", []) is Start.BUSY, "its target does"
    rig.sleep(1.1)
    assert rig.copy("b", "n2", []) is Start.BEGUN


def test_a_node_is_asked_for_a_bounded_number_of_copies(rig: Rig) -> None:
    rig = Rig(8 * MIB, 8 * MIB, copy_rate=1e15)
    keys = [f"k{number}" for number in range(COPIES_MAX + 1)]
    rig.put(*keys, preferred=("n0",))
    rig.automatic = False
    starts = []
    for key in keys:
        rig.now_s += 1e-6
        starts.append(rig.copy(key, "n1", []))
    assert starts == [Start.BEGUN] * COPIES_MAX + [Start.BUSY]
    assert all(len(message.items) <= ITEMS_MAX for message in asked(rig.nodes["n1"], CopyExtents))
    rig.check()


def test_no_room_and_an_absent_node_are_told_apart() -> None:
    rig = Rig(64 * KIB, 4 * KIB, 64 * KIB)
    rig.put("a", length=8 * KIB, preferred=("n0",))
    assert rig.copy("a", "n1", []) is Start.NO_ROOM
    rig.cut(rig.nodes["n2"])
    assert rig.copy("a", "n2", []) is Start.AWAY


def test_copies_come_back_after_a_restart_of_the_master(rig: Rig) -> None:
    put_on_first(rig)
    rig.copy("a", "n1", [])
    before = location(rig, "a")
    rig.restart(lease_ttl_s=1.0)
    for node in rig.nodes.values():
        rig.register(node)
    rig.open("ns4904")
    after = location(rig, "a")
    assert after.version == before.version
    assert set(after.replicas) == set(before.replicas)
    rig.remove("a")
    assert not rig.nodes["n1"].entries
    rig.check()


def test_a_copy_on_a_node_that_was_away_during_the_removal_is_not_revived() -> None:
    rig = Rig(1 * MIB, 1 * MIB, 1 * MIB)
    put_on_first(rig)
    rig.copy("a", "n1", [])
    rig.cut(rig.nodes["n1"])
    rig.sleep(6.0)
    assert rig.remove("a") == [True]
    rig.restart()
    for name in ("n0", "n2", "n1"):
        rig.register(rig.nodes[name])
    rig.open("ns4904")
    assert rig.exists("a") == [False]
    assert not rig.nodes["n1"].entries
