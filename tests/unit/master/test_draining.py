"""Draining: what only one node holds is copied, and "drained" is true when it is said."""

from __future__ import annotations

import pytest

from mooncake_master.core.draining import RECHECK_S
from mooncake_store.errors import InvalidArgument, UnknownNode
from mooncake_store.limits import KIB, MIB
from mooncake_store.types import NodeState
from mooncake_store.wire.control import (
    Committed,
    DescribeCluster,
    DescribeDrain,
    Drain,
    DrainStatus,
    PutGrant,
    Refusal,
    Remove,
    ReportReplica,
    SetPin,
    Undrain,
)
from tests.unit.master.rig import Free, Rig, small_length

BIG = 200 * KIB


def rig_of(*sizes: int, **settings: Free) -> Rig:
    return Rig(*sizes, **{"ramp_s": 0.0, **settings})


def drain(rig: Rig, node: str = "n0", timeout_s: float = 60.0) -> DrainStatus:
    found = rig.ask(Drain(node, timeout_s))
    assert isinstance(found, DrainStatus)
    return found


def status(rig: Rig, node: str = "n0") -> DrainStatus:
    found = rig.ask(DescribeDrain(node))
    assert isinstance(found, DrainStatus)
    return found


def state_of(rig: Rig, name: str) -> NodeState:
    nodes = rig.ask(DescribeCluster()).nodes
    return next(NodeState(n.record.state) for n in nodes if n.record.name == name)


def holders(rig: Rig, key: str) -> set[str]:
    return {extent.segment.node.name for extent in rig.find(key).extents()}


def fill(rig: Rig, count: int, *, length: int = KIB, on: str = "n0", **fields: Free) -> list[str]:
    keys = [f"k{number}" for number in range(count)]
    rig.put(*keys, length=length, preferred=(on,), **fields)
    assert all(on in holders(rig, key) for key in keys)
    return keys


def test_what_only_a_drained_node_holds_is_copied_and_stays_readable() -> None:
    rig = rig_of(4 * MIB, 4 * MIB)
    keys = fill(rig, 200)
    assert drain(rig).state == "draining"
    assert state_of(rig, "n0") is NodeState.DRAINING
    rig.sleep(5.0)
    found = status(rig)
    assert (found.state, found.moved, found.left, found.counted) == ("drained", 200, 0, True)
    assert found.moved_bytes == 200 * KIB
    assert state_of(rig, "n0") is NodeState.DRAINED
    rig.cut(rig.nodes["n0"])
    assert rig.exists(*keys) == [True] * 200
    rig.check()


def test_a_drained_node_gets_nothing_new_until_it_is_undrained() -> None:
    rig = rig_of(4 * MIB, 4 * MIB)
    drain(rig)
    rig.put(*(f"a{n}" for n in range(20)), preferred=("n0",))
    assert all(holders(rig, f"a{n}") == {"n1"} for n in range(20))
    assert rig.ask(Undrain("n0")).state == "none"
    assert state_of(rig, "n0") is NodeState.LIVE
    rig.put("b", preferred=("n0",))
    assert holders(rig, "b") == {"n0"}


def test_what_others_hold_too_is_not_copied() -> None:
    rig = rig_of(4 * MIB, 4 * MIB, 4 * MIB)
    rig.put("k", replicas=2, preferred=("n0", "n1"))
    drain(rig)
    rig.sleep(2.0)
    assert status(rig).moved == 0
    assert status(rig).state == "drained"
    assert holders(rig, "k") == {"n0", "n1", "n2"}, "one that does not go makes two again"


def test_a_copy_on_another_drained_node_is_none_to_count_on() -> None:
    rig = rig_of(4 * MIB, 4 * MIB, 4 * MIB)
    rig.put("k", replicas=2, preferred=("n0", "n1"))
    drain(rig, "n0")
    drain(rig, "n1")
    rig.sleep(3.0)
    assert (status(rig, "n0").state, status(rig, "n1").state) == ("drained", "drained")
    assert "n2" in holders(rig, "k")


def test_pinned_leased_and_grouped_objects_are_moved_with_what_protects_them() -> None:
    rig = rig_of(4 * MIB, 4 * MIB, lease_ttl_s=30.0)
    rig.put("pinned", preferred=("n0",))
    rig.ask(SetPin(rig.slot, rig.epoch, ["pinned"], 2))
    rig.put("g1", "g2", preferred=("n0",), item={"group": "g"})
    rig.locate("g1")
    drain(rig)
    rig.sleep(2.0)
    assert status(rig).state == "drained"
    assert all("n1" in holders(rig, key) for key in ("pinned", "g1", "g2"))
    rig.check()


def test_fr_027_where_room_is_short_the_drain_says_so_and_is_not_done() -> None:
    rig = rig_of(2 * MIB, MIB, lease_ttl_s=100.0)
    keys = fill(rig, 8, length=BIG)
    rig.locate(*keys)
    others = [f"o{n}" for n in range(3)]
    rig.put(*others, length=BIG, preferred=("n1",))
    rig.locate(*others)
    drain(rig, timeout_s=10.0)
    rig.sleep(5.0)
    found = status(rig)
    assert (found.state, found.stuck) == ("draining", True)
    assert found.moved + found.left == 8
    assert found.reasons == {"no_space": found.left}
    assert found.left > 5
    assert {item.reason for item in found.examples} == {"no_space"}
    assert {item.key for item in found.examples} <= set(keys)
    rig.sleep(6.0)
    assert status(rig).state == "incomplete"
    assert state_of(rig, "n0") is NodeState.DRAINING
    assert f"{found.left} no_space" in status(rig).note
    rig.put("new", preferred=("n0",))
    assert holders(rig, "new") == {"n1"}
    rig.check()


def test_other_nodes_evict_what_is_old_for_what_is_moved() -> None:
    rig = rig_of(MIB, MIB, lease_ttl_s=0.1)
    rig.put(*(f"old{n}" for n in range(14)), length=64 * KIB, preferred=("n1",))
    rig.sleep(1.0)
    keys = fill(rig, 10, length=64 * KIB)
    drain(rig)
    rig.sleep(10.0)
    assert status(rig).state == "drained"
    assert all(rig.find(key) is None or "n1" in holders(rig, key) for key in keys)
    assert sum(rig.find(key) is not None for key in keys) == 10
    assert sum(rig.find(f"old{n}") is not None for n in range(14)) < 14
    rig.check()


def test_without_another_node_a_drain_is_stuck_and_says_what_is_left() -> None:
    rig = rig_of(4 * MIB)
    fill(rig, 5)
    drain(rig)
    rig.sleep(1.0)
    found = status(rig)
    assert (found.state, found.stuck, found.left) == ("draining", True, 5)


def test_an_empty_node_is_drained_at_once() -> None:
    rig = rig_of(4 * MIB)
    drain(rig)
    rig.tick(0.02)
    assert status(rig).state == "drained"


def test_a_writer_that_has_room_there_is_waited_for() -> None:
    rig = rig_of(4 * MIB, 4 * MIB)
    started = rig.start("k", preferred=("n0",))
    assert isinstance(started.items[0], PutGrant)
    drain(rig)
    rig.sleep(2.0)
    assert status(rig).state == "draining"
    rig.land(started, ("k",), KIB)
    assert isinstance(rig.commit(started).items[0], Committed)
    rig.sleep(3.0)
    assert status(rig).state == "drained"
    assert holders(rig, "k") == {"n0", "n1"}


def test_failed_copies_are_tried_again() -> None:
    rig = rig_of(4 * MIB, 4 * MIB)
    fill(rig, 10)
    rig.nodes["n1"].refusals = ["checksum_mismatch"] * 25
    drain(rig)
    rig.sleep(0.4)
    found = status(rig)
    assert found.reasons == {"checksum_mismatch": 10}
    assert found.left == 10
    rig.sleep(5.0)
    assert (status(rig).state, status(rig).moved) == ("drained", 10)


def test_objects_that_go_meanwhile_are_nobodys_loss() -> None:
    rig = rig_of(4 * MIB, 4 * MIB)
    keys = fill(rig, 100)
    rig.automatic = False
    drain(rig)
    rig.tick(0.02)
    number = rig.send(Remove(rig.slot, rig.epoch, keys[:50]))
    rig.automatic = True
    rig.settle()
    assert rig.wait(number)
    rig.sleep(5.0)
    assert status(rig).state == "drained"
    assert rig.exists(*keys) == [False] * 50 + [True] * 50
    rig.check()


def test_drained_is_taken_back_where_the_other_copy_is_lost() -> None:
    rig = rig_of(4 * MIB, 4 * MIB)
    fill(rig, 1)
    drain(rig)
    rig.sleep(2.0)
    assert status(rig).state == "drained"
    copy = next(e for e in rig.find("k0").extents() if e.segment.node.name == "n1")
    rig.ask(ReportReplica(
        rig.slot, rig.epoch, "k0", rig.find("k0").version, copy.segment.incarnation,
        copy.offset * 512, "checksum_mismatch",
    ))  # fmt: skip
    assert holders(rig, "k0") == {"n0"}
    rig.nodes["n1"].refusals = ["unreachable"] * 100
    rig.sleep(RECHECK_S)
    assert status(rig).state == "draining"
    rig.nodes["n1"].refusals.clear()
    rig.sleep(3.0)
    assert status(rig).state == "drained"
    assert holders(rig, "k0") == {"n0", "n1"}


def test_an_eviction_does_not_count_on_a_copy_that_is_about_to_go() -> None:
    rig = rig_of(MIB, MIB, lease_ttl_s=0.1)
    rig.put("k", length=64 * KIB, replicas=2)
    drain(rig)
    rig.sleep(1.0)
    rig.put(*(f"n{n}" for n in range(40)), length=64 * KIB)
    rig.sleep(1.0)
    assert rig.find("k") is None
    rig.check()


def test_a_node_that_is_away_is_waited_for_and_never_called_drained() -> None:
    rig = rig_of(4 * MIB, 4 * MIB)
    fill(rig, 10)
    rig.cut(rig.nodes["n0"])
    drain(rig)
    rig.sleep(3.0)
    assert status(rig).state == "draining"
    assert "away" in status(rig).note
    rig.sleep(10.0)
    assert state_of(rig, "n0") is NodeState.DEAD
    rig.register(rig.nodes["n0"])
    rig.sleep(3.0)
    assert (status(rig).state, status(rig).moved) == ("drained", 10)


def test_a_drain_goes_on_after_a_restart_of_the_master() -> None:
    rig = rig_of(4 * MIB, 4 * MIB, keeps=True)
    keys = fill(rig, 50)
    rig.automatic = False
    drain(rig)
    rig.automatic = True
    rig.numbers = (2, 0)
    rig.restart()
    for node in rig.nodes.values():
        rig.register(node)
    rig.open("ns4904")
    rig.sleep(5.0)
    assert status(rig).state == "drained"
    assert all("n1" in holders(rig, key) for key in keys)
    rig.restart()
    for node in rig.nodes.values():
        rig.register(node)
    assert state_of(rig, "n0") is NodeState.DRAINED
    rig.ask(Undrain("n0"))
    rig.restart()
    for node in rig.nodes.values():
        rig.register(node)
    assert state_of(rig, "n0") is NodeState.LIVE


def test_a_node_that_drained_itself_takes_part_again_when_it_comes_back() -> None:
    rig = rig_of(4 * MIB, 4 * MIB, keeps=True)
    fill(rig, 5)
    node = rig.nodes["n0"]
    rig.ask(Drain(node.node_id, 20.0, leaving=True), peer=node.peer)
    rig.sleep(2.0)
    assert status(rig).state == "drained"
    assert not (rig.kept or {}).get("drains")
    rig.cut(node)
    rig.register(node)
    assert state_of(rig, "n0") is NodeState.LIVE
    assert status(rig).state == "none"


def test_a_node_that_never_comes_back_takes_its_drain_with_it() -> None:
    rig = rig_of(4 * MIB, 4 * MIB, keeps=True, forget_after_s=20.0)
    drain(rig)
    rig.cut(rig.nodes["n0"])
    rig.sleep(21.0)
    with pytest.raises(UnknownNode):
        status(rig)
    assert not (rig.kept or {})["drains"]


def test_copies_keep_to_failure_domains() -> None:
    rig = rig_of(4 * MIB)
    rig.nodes.clear()
    rig = Rig(4 * MIB, ramp_s=0.0)
    for name, rack in (("a", "r1"), ("b", "r1"), ("c", "r2"), ("d", "r3")):
        rig.add_node(4 * MIB, name=name, rack=rack)
    rig.put("k", replicas=2, preferred=("a", "c"))
    assert holders(rig, "k") == {"a", "c"}
    drain(rig, "a")
    drain(rig, "c")
    rig.sleep(3.0)
    assert len(holders(rig, "k") - {"a", "c"}) >= 1


def test_a_drain_that_makes_no_sense_is_refused() -> None:
    rig = rig_of(4 * MIB)
    for timeout_s in (0.0, -1.0, float("nan"), 1e9):
        with pytest.raises(InvalidArgument):
            drain(rig, timeout_s=timeout_s)
    for message in (Drain("x", 1.0), DescribeDrain("x"), Undrain("x")):
        with pytest.raises(UnknownNode, match="'x'"):
            rig.ask(message)


def test_a_put_into_a_pool_that_is_being_drained_says_why_it_fails() -> None:
    rig = rig_of(4 * MIB)
    drain(rig)
    (result,) = rig.start("k", length=small_length(), deadline_s=1.0).items
    assert isinstance(result, Refusal)
    assert result.code == "no_space"
    assert "drained" in result.message


def test_fr_027_what_lies_on_the_disk_of_a_node_is_moved_too() -> None:
    rig = rig_of(MIB, lease_ttl_s=0.0, high_watermark=0.9, low_watermark=0.8)
    rig.give_disk(rig.add_node(20 * KIB, name="disk"))
    keys = [f"k{number}" for number in range(12)]
    for key in keys:
        rig.put(key, length=6 * KIB, preferred=("disk",))
        rig.sleep(0.2)
    tiers = [{extent.segment.tier for extent in rig.find(key).extents()} for key in keys]
    assert tiers.count({1}) >= 8
    drain(rig, "disk")
    rig.sleep(3.0)
    found = status(rig, "disk")
    assert (found.state, found.moved) == ("drained", 12)
    rig.cut(rig.nodes["disk"])
    assert rig.exists(*keys) == [True] * 12
    rig.check()


def test_fr_027_what_fits_no_memory_goes_to_disks_by_way_of_it() -> None:
    rig = rig_of(40 * KIB, lease_ttl_s=0.0, high_watermark=0.8, low_watermark=0.5)
    rig.give_disk(rig.nodes["n0"])
    rig.give_disk(rig.add_node(20 * KIB, name="disk"))
    keys = [f"k{number}" for number in range(20)]
    for key in keys:
        rig.put(key, length=6 * KIB, preferred=("disk",))
        rig.sleep(0.2)
    drain(rig, "disk")
    rig.sleep(20.0)
    assert status(rig, "disk").state == "drained"
    rig.cut(rig.nodes["disk"])
    assert rig.exists(*keys) == [True] * 20
    rig.check()
