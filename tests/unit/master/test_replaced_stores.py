"""Stores of which their node says that they are gone for good, and such as may come back (ADR 82).

FR-055: index and disk drift apart.
"""

from __future__ import annotations

import pytest

from mooncake_master.core import notes
from mooncake_master.core.places import WHOLE
from mooncake_master.core.remembered import Note
from mooncake_store.limits import KIB, MIB
from mooncake_store.types import MissReason, Pin, Tier
from mooncake_store.wire.control import (
    Copied,
    CopyExtents,
    DescribeDrain,
    DirectoryEntry,
    Drain,
    SetPin,
    StoreStatus,
)
from tests.unit.master.disks import disk_of, fill, small, tiers
from tests.unit.master.rig import SPACE, FakeNode, Free, Rig

LOST = 'mooncake_master_replicas_lost_total{node="disk"}'


def shown(rig: Rig, name: str = "disk") -> Free:
    return next(node for node in rig.status().nodes if node.record.name == name)


def disks_listed(rig: Rig, name: str = "disk") -> list[int]:
    return [s.incarnation for s in shown(rig, name).record.segments if s.tier]


def again(rig: Rig, node: FakeNode) -> None:
    """Have a node register over a new connection, as it does when a store is another one."""
    rig.register(node)
    rig.sleep(0.2)


def copy_of(node: FakeNode) -> dict[tuple[int, int], DirectoryEntry]:
    """Return a backup of what is on a node's disks."""
    return {place: entry for place, entry in node.entries.items() if place[0] in node.disks}


def test_a_store_that_is_gone_for_good_is_given_up_at_once() -> None:
    rig = small()
    fill(rig, "a", "b", "c", "d")
    node = disk_of(rig)
    assert tiers(rig, "a") == tiers(rig, "b") == [Tier.SSD]
    rig.remake_disk(node)
    again(rig, node)
    assert rig.locate("a", "b") == [MissReason.LOST] * 2, "and not: the node is down"
    assert rig.exists("c", "d") == [True] * 2, "what is in memory is not touched"
    assert disks_listed(rig) == list(node.disks)
    assert shown(rig).ssd_capacity_bytes == 64 * MIB
    assert rig.gauge('mooncake_master_tier_capacity_bytes{tier="ssd"}') == 64 * MIB
    assert rig.gauge('mooncake_master_tier_replicas_count{tier="ssd"}') == 0
    assert shown(rig).note == ""
    assert rig.counter(LOST) == 2
    rig.check()
    fill(rig, "e")
    assert tiers(rig, "c") == [Tier.SSD], "the new store is used"


def test_a_store_that_is_only_not_there_may_come_back_and_is_not_counted_meanwhile() -> None:
    rig = small()
    fill(rig, "a", "b", "c")
    node = disk_of(rig)
    (old,) = node.disks
    node.stores = (StoreStatus(old, "/ssd", "ready", "", 64 * MIB, 0, 0),)
    rig.beat()
    backup = node.disks
    node.disks, node.stores = {}, ()
    rig.give_disk(node)
    rig.beat()
    assert rig.locate("a") == [MissReason.NODE_DOWN]
    assert shown(rig).ssd_capacity_bytes == 64 * MIB
    assert shown(rig).stores == ()
    assert shown(rig).note == "the store that it had at /ssd is not there"
    assert rig.gauge('mooncake_master_tier_capacity_bytes{tier="ssd"}') == 64 * MIB
    node.disks = backup
    again(rig, node)
    assert tiers(rig, "a") == [Tier.SSD]
    rig.check()


def test_replicas_elsewhere_stay_and_are_made_again() -> None:
    rig = Rig(1 * MIB, 1 * MIB, lease_ttl_s=0.0)
    node = rig.add_node(1 * MIB, name="disk")
    rig.give_disk(node)
    rig.put("k", length=KIB, replicas=3)
    ended: list[str] = []
    stored = rig.find("k")
    core = rig.master
    core._context.now_s, core._context.out = rig.now_s, []
    disk = core._context.cluster.disks[next(iter(node.disks))]
    core._copier.store(
        stored, stored.extent, disk, purpose="test", wanted=True, patience_s=1.0, done=ended.append
    )  # fmt: skip
    rig.perform(core._finish())
    rig.settle()
    assert ended == [""]
    assert tiers(rig, "k").count(Tier.SSD) == 1
    rig.remake_disk(node)
    again(rig, node)
    assert sorted(tiers(rig, "k")) == [Tier.DRAM] * 3
    rig.check()


def test_pins_of_what_was_there_are_counted_no_more() -> None:
    rig = small(pinned_share_max=1.0)
    fill(rig, "a", "b", "c")
    rig.ask(SetPin(rig.slot, rig.epoch, ["a", "c"], int(Pin.HARD), 0.0))
    node = disk_of(rig)
    rig.remake_disk(node)
    again(rig, node)
    assert rig.exists("a", "c") == [False, True]
    rig.check()


def test_a_copy_that_names_the_old_store_ends() -> None:
    rig = small()
    fill(rig, "a", "b")
    rig.automatic = False
    number = rig.begin("c", length=6 * KIB, deadline_s=5.0)
    rig.tick()
    node = disk_of(rig)
    assert any(isinstance(message, CopyExtents) for _, message in node.inbox)
    rig.automatic = True
    rig.remake_disk(node)
    again(rig, node)
    rig.sleep(1.0)
    assert rig.replies.pop(number).items[0].replicas
    assert set(copy_of(node)) == {(next(iter(node.disks)), 0)}
    rig.check()


def test_an_answer_of_the_old_store_that_comes_late_does_no_harm() -> None:
    """Over the same connection, as no node of ours does it."""
    rig = small()
    fill(rig, "a", "b")
    rig.automatic = False
    rig.begin("c", length=6 * KIB, deadline_s=5.0)
    rig.tick()
    node = disk_of(rig)
    token, message = next((t, m) for t, m in node.inbox if isinstance(m, CopyExtents))
    answer = node.answer(message)
    assert isinstance(answer, Copied)
    rig.remake_disk(node)
    peer = node.peer
    rig.register(node)
    rig.perform(rig.master.node_replied(peer, token, answer, rig.now_s))
    rig.perform(rig.master.node_replied(node.peer, token, answer, rig.now_s))
    rig.automatic = True
    rig.sleep(1.0)
    rig.check()


def test_a_drain_ends_after_the_store_is_made_anew() -> None:
    rig = small(lease_ttl_s=0.2)
    rig.add_node(1 * MIB, name="other")
    fill(rig, "a", "b", "c", preferred=["disk"])
    node = disk_of(rig)
    rig.remake_disk(node)
    again(rig, node)
    rig.ask(Drain("disk", 30.0))
    rig.sleep(3.0)
    assert rig.ask(DescribeDrain("disk")).state == "drained"


# --- who may say so ------------------------------------------------------------------------------


@pytest.mark.parametrize("away", [False, True])
def test_a_node_cannot_give_up_a_store_of_another_one(
    away: bool,  # noqa: FBT001 - pytest passes it
) -> None:
    rig = small()
    fill(rig, "a", "b", "c")
    owner, liar = disk_of(rig), rig.nodes["n0"]
    if away:
        rig.cut(owner)
    liar.replaced = tuple(owner.disks)
    again(rig, liar)
    rig.restart()
    again(rig, liar)
    again(rig, owner)
    rig.open(SPACE)
    assert tiers(rig, "a") == [Tier.SSD]
    rig.check()


def test_a_store_that_is_named_is_not_given_up() -> None:
    rig = small()
    fill(rig, "a", "b", "c")
    node = disk_of(rig)
    node.replaced = (*node.disks, *node.segments, 0, -5)
    again(rig, node)
    assert tiers(rig, "a") == [Tier.SSD]
    rig.check()


def test_memory_is_not_given_up_like_that() -> None:
    rig = small()
    fill(rig, "a")
    node = disk_of(rig)
    node.replaced = tuple(node.segments)
    again(rig, node)
    assert tiers(rig, "a") == [Tier.DRAM]


# --- what comes back -----------------------------------------------------------------------------


def restored(rig: Rig, node: FakeNode, disks: dict[int, int], backup: Free) -> None:
    """Put a backup of a store in the place of the one that a node has."""
    now = set(node.disks)
    node.entries = {place: e for place, e in node.entries.items() if place[0] not in now} | backup
    node.disks, node.replaced = disks, ()
    again(rig, node)


@pytest.mark.parametrize(
    ("keeps", "when"),
    [
        (False, "alive"),
        (False, "restarted"),
        (True, "alive"),
        (True, "restarted"),
        (True, "before"),
    ],
)
def test_fr_055_an_old_store_that_comes_back_revives_nothing(
    keeps: bool,  # noqa: FBT001 - pytest passes it
    when: str,
) -> None:
    """With and without a data directory, over a restart of the master after the store was made
    anew, and with one before, where only the data directory knows whose the old store was. (With
    none of both no master ever heard of it, and the node itself refuses the copy.)
    """
    rig = Rig(1 * KIB, lease_ttl_s=0.0, high_watermark=1.0, low_watermark=1.0, keeps=keeps)
    rig.give_disk(rig.add_node(14 * KIB, name="disk"))
    fill(rig, "a", "b", "c")
    node = disk_of(rig)
    disks, backup = dict(node.disks), copy_of(node)
    assert backup
    rig.remake_disk(node)
    if when == "before":
        restart(rig)
    again(rig, node)
    assert rig.remove("a") == [False], "it is gone, and nobody need be waited for"
    if when != "alive":
        restart(rig)
        again(rig, node)
    for number in range(rig.master.config.gone_keys_max if when == "alive" else 0):
        rig.master._catalog.gone.note(0, f"other{number}", MissReason.REMOVED, 1)
    restored(rig, node, disks, backup)
    rig.open(SPACE)
    assert rig.exists("a") == [False]
    assert not copy_of(node), "it was told to erase all of it"
    rig.check()


def restart(rig: Rig) -> None:
    term, count = rig.numbers
    rig.numbers = (term + 1, count)
    rig.restart()
    for node in rig.nodes.values():
        if not node.disks:
            rig.register(node)


def test_a_removal_waits_until_it_is_noted_that_a_store_is_gone() -> None:
    """Without a data directory the note lies on nodes, this one included."""
    rig = small()
    fill(rig, "a", "b", "c")
    node = disk_of(rig)
    rig.remake_disk(node)
    rig.automatic = False
    rig.begin_registration(node)
    number = rig.send_remove("a")
    assert number not in rig.replies
    rig.automatic = True
    rig.settle()
    rig.tick(0.02)
    assert rig.replies.pop(number).removed in {b"\0", b"\1"}
    assert [note.offset for note in node.notes.values()] == [WHOLE]


def test_the_statement_is_repeated_and_noted_once() -> None:
    rig = small()
    fill(rig, "a", "b", "c")
    node = disk_of(rig)
    rig.remake_disk(node)
    for _ in range(3):
        again(rig, node)
    assert len(node.notes) == 1
    assert len(rig.nodes["n0"].notes) == 1


def noted(rig: Rig) -> set[int]:
    """Return the segments that notes in the data directory are about."""
    assert rig.kept is not None
    return {
        note.incarnation for note in rig.kept.get("notes", {}).values() if isinstance(note, Note)
    }


def test_a_bounded_number_of_stores_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes, "REPLACED_MAX", 3)
    rig = small(keeps=True)
    node = disk_of(rig)
    gone = []
    for _ in range(6):
        gone.append(rig.remake_disk(node))
        rig.put(f"k{len(gone)}")  # The next note has a higher number.
        again(rig, node)
    assert noted(rig) == set(gone[-3:])
    restart(rig)
    again(rig, node)
    assert noted(rig) == set(gone[-3:])


def test_too_many_notes_never_cost_those_about_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes, "NOTES_MAX", 2)
    rig = small()
    node = disk_of(rig)
    for _ in range(4):
        rig.remake_disk(node)
        again(rig, node)
    rig.put("k", preferred=["n0"], length=100)
    other = rig.nodes["n0"]
    rig.cut(other)
    rig.remove("k")
    rig.tick(0.1)
    assert len([n for n in node.notes.values() if not n.node_id]) == 4
