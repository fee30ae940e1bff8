"""Promotion from disk to memory, and puts that wait for a disk."""

from __future__ import annotations

import pytest

from mooncake_store.errors import BY_CODE, DeadlineExceeded
from mooncake_store.limits import KIB, MIB
from mooncake_store.types import Tier
from mooncake_store.wire.control import CopyExtents, PutStarted, Refusal, StoreStatus
from tests.unit.master.disks import OBJECT, copies, disk_of, fill, small, tiers
from tests.unit.master.rig import Rig

# --- promotion ---------------------------------------------------------------------------------


def test_the_second_read_within_a_while_brings_an_object_back() -> None:
    rig = small()
    fill(rig, "a", "b", "c")
    rig.remove("b")
    assert tiers(rig, "a") == [Tier.SSD]
    rig.tick(0.1)
    assert tiers(rig, "a") == [Tier.SSD]
    rig.tick(0.1)
    assert tiers(rig, "a") == [Tier.DRAM, Tier.SSD]
    assert copies(rig, "promotion", "done") == 1
    rig.check()


def test_reads_that_are_far_apart_and_scans_promote_nothing() -> None:
    rig = small(promote_window_s=5.0)
    fill(rig, *"abcdef")
    rig.remove("e")
    rig.locate(*"abcd")
    rig.sleep(6.0)
    rig.locate(*"abcd")
    rig.tick(0.1)
    assert tiers(rig, "f") == [Tier.DRAM]
    assert copies(rig, "promotion", "done") == 0


def test_promotion_can_be_turned_off() -> None:
    rig = small(promote_reads=0)
    fill(rig, "a", "b", "c")
    rig.remove("b")
    for _ in range(5):
        rig.locate("a")
        rig.tick(0.1)
    assert tiers(rig, "a") == [Tier.SSD]


def test_a_promotion_makes_room_where_memory_is_full() -> None:
    rig = Rig(1 * KIB, lease_ttl_s=0.0, high_watermark=0.9, low_watermark=0.5)
    rig.give_disk(rig.add_node(32 * KIB, name="disk"))
    fill(rig, *"abcd")
    rig.sleep(0.2)
    fill(rig, "e")
    cold = next(key for key in "abcde" if tiers(rig, key) == [Tier.SSD])
    for _ in range(10):
        rig.locate(cold)
        rig.tick(0.1)
    assert tiers(rig, cold) == [Tier.DRAM, Tier.SSD]
    rig.check()


# --- durable puts ------------------------------------------------------------------------------


def start_durable(rig: Rig, key: str) -> PutStarted:
    started: PutStarted = rig.start(key, length=OBJECT, durable=True, preferred=("disk",))
    rig.land(started, (key,), OBJECT)
    return started


def test_a_durable_put_is_answered_when_it_is_on_a_disk() -> None:
    rig = small()
    started = start_durable(rig, "a")
    committed = rig.commit(started)
    assert committed.items[0].version
    assert "a" in disk_of(rig).on_disk()
    assert tiers(rig, "a") == [Tier.DRAM, Tier.SSD]
    rig.check()


def test_a_durable_put_uses_the_disk_of_another_node() -> None:
    rig = small()
    rig.add_node(1 * MIB, name="plain")
    started = rig.start("a", length=OBJECT, durable=True, preferred=("plain",))
    rig.land(started, ("a",), OBJECT)
    rig.commit(started)
    assert "a" in disk_of(rig).on_disk()
    rig.check()


def test_a_durable_put_that_no_disk_takes_says_so_and_keeps_the_object() -> None:
    rig = small()
    disk_of(rig).refusals = ["no_space"]
    committed = rig.commit(start_durable(rig, "a"))
    assert isinstance(committed.items[0], Refusal)
    assert committed.items[0].code == "no_space"
    assert rig.exists("a") == [True]
    assert disk_of(rig).on_disk() == {}
    rig.check()


def test_a_durable_put_without_any_disk_says_so() -> None:
    rig = Rig(1 * MIB)
    started = rig.start("a", length=OBJECT, durable=True)
    rig.land(started, ("a",), OBJECT)
    committed = rig.commit(started)
    assert committed.items[0].code == "not_supported"
    assert rig.exists("a") == [True]


@pytest.mark.parametrize("trouble", ["degraded", "away"])
def test_a_durable_put_that_meets_only_disks_in_trouble_may_be_tried_again(trouble: str) -> None:
    rig = small()
    node = disk_of(rig)
    rig.add_node(32 * KIB, name="plain")
    if trouble == "away":
        rig.cut(node)
        rig.sleep(60.0)
    else:
        (incarnation,) = node.disks
        said = "no such device"
        node.stores = (StoreStatus(incarnation, "/ssd", trouble, said, 64 * MIB, 0, 0),)
        rig.beat()
    started = rig.start("a", length=OBJECT, durable=True, preferred=("plain",))
    rig.land(started, ("a",), OBJECT)
    (refusal,) = rig.commit(started).items
    assert (refusal.code, trouble in refusal.message) == ("overloaded", True)
    assert BY_CODE[refusal.code].retryable
    assert rig.exists("a") == [True]


def test_a_durable_put_ends_by_its_deadline_when_the_disk_is_silent() -> None:
    rig = small()
    started = start_durable(rig, "a")
    rig.automatic = False
    with pytest.raises(DeadlineExceeded, match="on no disk yet"):
        rig.commit_within(started, 1.0)
    assert rig.exists("a") == [True]


def test_a_durable_put_of_what_is_there_already_waits_for_the_disk_too() -> None:
    rig = small()
    fill(rig, "a")
    assert not disk_of(rig).on_disk()
    started = rig.start("a", length=OBJECT, durable=True)
    assert started.items[0].version
    assert "a" in disk_of(rig).on_disk()
    disk_of(rig).refusals = ["no_space"]
    fill(rig, "b")
    assert isinstance(rig.start("b", length=OBJECT, durable=True).items[0], Refusal)
    assert rig.exists("b") == [True]
    rig.check()


def test_a_copy_that_is_given_up_leaves_alone_what_another_has_brought_to_the_disk() -> None:
    """Two writers want one object on disk at a time; the answer of the second copy is lost."""
    rig = small()
    fill(rig, "a")
    node = disk_of(rig)
    rig.automatic = False
    first = rig.begin("a", length=OBJECT, durable=True)
    second = rig.begin("a", length=OBJECT, durable=True)
    assert len(node.inbox) == 2
    rig.deliver(node)
    assert not isinstance(rig.replies.pop(first).items[0], Refusal)
    rig.deliver(node, lose=True)
    rig.automatic = True
    rig.settle()
    assert not isinstance(rig.wait(second).items[0], Refusal)
    assert set(node.on_disk()) == {"a"}
    rig.check()


# --- nodes that go while their memory is demoted -----------------------------------------------


@pytest.mark.parametrize("is_answered", [False, True])
def test_what_was_on_its_way_to_disk_when_its_node_died_is_still_in_its_memory(
    *, is_answered: bool
) -> None:
    rig = Rig(1 * KIB, lease_ttl_s=0.0, high_watermark=0.5, low_watermark=0.3)
    node = rig.add_node(64 * KIB, name="disk")
    rig.give_disk(node)
    rig.automatic = False
    for key in "abcdefgh":
        number = rig.begin(key, length=OBJECT)
        started = rig.replies.pop(number)
        rig.land(started, (key,), OBJECT)
        rig.commit(started)
    rig.tick(0.1)
    assert any(isinstance(message, CopyExtents) for _, message in node.inbox)
    while is_answered and node.inbox:
        rig.deliver(node, lose=True)
    rig.cut(node)
    rig.tick(0.1)
    assert copies(rig, "demotion", "unreachable") >= 1
    rig.automatic = True
    rig.register(node)
    rig.sleep(1.0)
    assert rig.exists(*"abcdefgh") == [True] * 8
    rig.check()


def test_a_put_that_waits_for_the_memory_of_a_node_goes_on_when_it_is_back() -> None:
    rig = small()
    fill(rig, "a", "b")
    node = disk_of(rig)
    rig.automatic = False
    number = rig.begin("c", length=OBJECT, deadline_s=5.0)
    rig.cut(node)
    rig.tick(0.1)
    assert number not in rig.replies
    rig.automatic = True
    rig.register(node)
    rig.sleep(1.0)
    assert rig.replies.pop(number).items[0].replicas
    assert rig.exists("a", "b") == [True, True]
    rig.check()
