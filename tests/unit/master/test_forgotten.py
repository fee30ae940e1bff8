"""Stores and memory that were away for too long, or that nobody knows any more, revive nothing.

FR-055: removed keys come back.
"""

from __future__ import annotations

import pytest

from mooncake_master.core import notes, tombs
from mooncake_master.core.places import MISSING, RETURNS, WHOLE
from mooncake_store.errors import DeadlineExceeded
from mooncake_store.limits import KIB
from mooncake_store.types import MissReason, Tier
from mooncake_store.wire.control import FreeExtents, ListDirectory
from tests.unit.master.disks import disk_of, fill, tiers
from tests.unit.master.rig import SPACE, FakeNode, Free, Rig
from tests.unit.master.test_replaced_stores import again, copy_of, disks_listed, noted, restart

FORGET_S = 20.0
both = pytest.mark.parametrize("keeps", [False, True])
"""Without and with a data directory."""


def cluster(*, keeps: bool) -> Rig:
    """A node that keeps notes, and one with a store that has "a", with "c" in memory."""
    rig = Rig(
        1 * KIB, lease_ttl_s=0.0, high_watermark=1.0, low_watermark=1.0, keeps=keeps,
        forget_after_s=FORGET_S,
    )  # fmt: skip
    rig.give_disk(rig.add_node(14 * KIB, name="disk"))
    fill(rig, "a", "b", "c")
    assert copy_of(disk_of(rig))
    return rig


def take_out(rig: Rig, node: FakeNode) -> tuple[dict[int, int], Free]:
    """A node starts again without its store; return what another one needs to have it."""
    disks, held = dict(node.disks), copy_of(node)
    node.disks = {}
    node.entries = {place: entry for place, entry in node.entries.items() if place not in held}
    again(rig, node)
    return disks, held


def put_in(rig: Rig, node: FakeNode, store: tuple[dict[int, int], Free]) -> None:
    node.disks = store[0]
    node.entries |= store[1]
    again(rig, node)
    rig.open(SPACE)


def whole_notes(rig: Rig) -> set[int]:
    """Return the segments that anything remembers a note about as a whole."""
    kept = {item.incarnation for n in rig.nodes.values() for item in n.notes.values()}
    return kept | (noted(rig) if rig.kept is not None else set())


@both
@pytest.mark.parametrize("what", ["forgotten", "restarted", "both"])
def test_fr_055_a_store_that_moves_slowly_revives_no_removed_key(
    keeps: bool,  # noqa: FBT001 - pytest passes it
    what: str,
) -> None:
    rig = cluster(keeps=keeps)
    node = disk_of(rig)
    store = take_out(rig, node)
    if what != "restarted":
        rig.sleep(FORGET_S + 5.0)
    if what != "forgotten":
        restart(rig)
        again(rig, node)
        rig.open(SPACE)
    rig.remove("a")
    restart(rig)
    again(rig, node)
    other = rig.add_node(14 * KIB, name="other")
    put_in(rig, other, store)
    assert rig.exists("a") == [False]
    assert not other.on_disk().keys() & {"a"}, "it was told to erase it"
    rig.sleep(0.5)
    assert not whole_notes(rig) & set(store[0]), "its note has done its work"
    rig.check()


@both
def test_fr_055_a_node_that_was_forgotten_revives_no_removed_key(
    keeps: bool,  # noqa: FBT001 - pytest passes it
) -> None:
    """Neither from its store nor from its memory; what is put on it afterwards stays."""
    rig = cluster(keeps=keeps)
    node = disk_of(rig)
    rig.cut(node)
    rig.sleep(FORGET_S + 5.0)
    assert [each.record.name for each in rig.status().nodes] == ["n0"]
    rig.remove("a", "c")
    restart(rig)
    again(rig, node)
    rig.open(SPACE)
    assert rig.exists("a", "b", "c") == [False] * 3
    assert not node.entries
    rig.sleep(0.5)
    assert not whole_notes(rig)
    fill(rig, "d", "e", "f")
    restart(rig)
    again(rig, node)
    rig.open(SPACE)
    assert rig.exists("d", "e", "f") == [True] * 3
    rig.check()


def test_a_node_that_is_forgotten_before_it_was_heard_of_revives_nothing() -> None:
    rig = cluster(keeps=True)
    node = disk_of(rig)
    rig.cut(node)
    restart(rig)
    rig.open(SPACE)
    rig.sleep(FORGET_S + 5.0)
    rig.remove("a", "c")
    restart(rig)
    again(rig, node)
    rig.open(SPACE)
    assert rig.exists("a", "c") == [False, False]


@both
def test_the_note_stays_until_all_is_erased(
    keeps: bool,  # noqa: FBT001 - pytest passes it
) -> None:
    """The master ends after it has read the store, and before it was obeyed."""
    rig = cluster(keeps=keeps)
    node = disk_of(rig)
    rig.cut(node)
    rig.sleep(FORGET_S + 5.0)
    rig.remove("a", "c")
    rig.automatic = False
    rig.begin_registration(node)
    while any(isinstance(message, ListDirectory) for _, message in node.inbox):
        rig.deliver_page(node)
        rig.tick(0.01)
    assert any(isinstance(message, FreeExtents) for _, message in node.inbox)
    rig.automatic = True
    restart(rig)
    again(rig, node)
    rig.open(SPACE)
    assert rig.exists("a", "c") == [False, False]


@both
def test_a_store_that_is_back_before_anything_was_removed_keeps_what_it_has(
    keeps: bool,  # noqa: FBT001 - pytest passes it
) -> None:
    rig = cluster(keeps=keeps)
    node = disk_of(rig)
    store = take_out(rig, node)
    restart(rig)
    again(rig, node)
    other = rig.add_node(14 * KIB, name="other")
    put_in(rig, other, store)
    assert tiers(rig, "a") == [Tier.SSD]
    rig.sleep(0.5)
    assert not whole_notes(rig)
    rig.check()


def test_only_the_removed_key_is_lost_where_there_is_a_data_directory() -> None:
    rig = cluster(keeps=True)
    node = disk_of(rig)
    store = take_out(rig, node)
    restart(rig)
    again(rig, node)
    rig.open(SPACE)
    assert not rig.master.recovering, "nobody waits for a store that is not there"
    assert rig.locate("a", "never") == [MissReason.NODE_DOWN] * 2
    assert disks_listed(rig) == list(store[0])
    rig.remove("a")
    restart(rig)
    again(rig, node)
    put_in(rig, node, store)
    assert rig.exists("a", "b") == [False, True]
    assert rig.locate("never") == [MissReason.ABSENT]
    rig.check()


def test_too_many_removals_while_a_store_is_missing_are_remembered_as_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That stays true though the node where it was registers without it."""
    monkeypatch.setattr(tombs, "TOMBS_MAX", 1)
    rig = cluster(keeps=True)
    node = disk_of(rig)
    store = take_out(rig, node)
    restart(rig)
    again(rig, node)
    rig.open(SPACE)
    rig.remove("x")
    rig.remove("a")
    again(rig, node)
    restart(rig)
    again(rig, node)
    put_in(rig, rig.add_node(14 * KIB, name="other"), store)
    assert rig.exists("a") == [False]


def test_a_store_that_is_missing_is_noted_by_its_own_node_if_there_is_no_other() -> None:
    rig = cluster(keeps=False)
    rig.cut(rig.nodes.pop("n0"))
    node = disk_of(rig)
    (store, _) = take_out(rig, node)
    (note,) = [note for note in node.notes.values() if note.incarnation in store]
    assert (note.node_id, note.offset, note.bytes, note.version) == ("", WHOLE, RETURNS, MISSING)


def test_a_bounded_number_is_remembered_and_stores_before_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notes, "REPLACED_MAX", 2)
    rig = cluster(keeps=True)
    node = disk_of(rig)
    rig.cut(node)
    rig.cut(rig.add_node(1 * KIB, name="m1"))
    rig.sleep(FORGET_S + 5.0)
    assert len(noted(rig)) == 2
    assert set(node.disks) < noted(rig)
    rig.cut(rig.add_node(1 * KIB, name="m2"))
    rig.sleep(FORGET_S + 5.0)
    assert len(noted(rig)) == 2
    assert set(node.disks) < noted(rig)


def test_memory_that_is_lost_while_it_is_in_doubt_is_doubted_no_more() -> None:
    """Its node registers with another memory: the master ended with a KeyError."""
    rig = cluster(keeps=False)
    node = disk_of(rig)
    restart(rig)
    rig.open(SPACE)
    rig.automatic = False
    rig.begin_registration(node)
    rig.tick(0.01)
    rig.cut(node)
    number = rig.send_remove("c")
    rig.automatic = True
    rig.settle()
    rig.tick(0.1)
    assert number in rig.replies
    assert set(node.segments) <= set(rig.master._notes._doubts)
    rig.wipe(node)
    again(rig, node)
    assert not rig.master._notes._doubts


@both
@pytest.mark.parametrize("is_back_before", [False, True])
def test_a_node_that_was_away_over_two_restarts_revives_nothing(
    keeps: bool,  # noqa: FBT001 - pytest passes it
    is_back_before: bool,  # noqa: FBT001
) -> None:
    """The master of the time at which something was removed never saw it."""
    rig = cluster(keeps=keeps)
    node = disk_of(rig)
    rig.cut(node)
    rig.sleep(5.0)
    restart(rig)
    rig.sleep(5.0)
    rig.open(SPACE)
    rig.remove("a", "c")
    if is_back_before:
        again(rig, node)
    restart(rig)
    again(rig, node)
    rig.open(SPACE)
    assert rig.exists("a", "c") == [False, False]


def test_a_removal_that_no_node_could_note_says_so() -> None:
    rig = cluster(keeps=False)
    for node in list(rig.nodes.values()):
        rig.cut(node)
    rig.sleep(FORGET_S + 5.0)
    with pytest.raises(DeadlineExceeded, match=r"no node is there .* and there is no --data-dir"):
        rig.remove("a")
