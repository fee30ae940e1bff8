"""A new master learns from the nodes (reports 004 005 041 042, and what must not come back)."""

from __future__ import annotations

import pytest

from mooncake_master.core.catalog import home_slot
from mooncake_store.errors import DeadlineExceeded, StaleEpoch
from mooncake_store.limits import KIB, MIB
from mooncake_store.types import TERM_MAX, MissReason, Pin, make_version, term_of
from mooncake_store.wire.control import (
    Clear,
    Committed,
    DirectoryEntry,
    Exists,
    FreeItem,
    Locate,
    Location,
    OpenNamespace,
    PutGrant,
    Refusal,
    Remove,
    Stat,
    Why,
)
from tests.unit.master.rig import SPACE, FakeNode, Rig, takes
from tests.unit.master.test_eviction import fill


def return_all(rig: Rig) -> None:
    for node in rig.nodes.values():
        rig.register(node)


def plant(node: FakeNode, offset: int, key: str, *, version: int, **fields: int | str) -> None:
    """Put an entry into a node's directory behind the master's back."""
    (incarnation,) = node.segments
    values: dict[str, int | str] = {"length": KIB, "slot": 0, "epoch": 1, "namespace": SPACE}
    entry = DirectoryEntry(offset=offset, version=version, key=key, **(values | fields))  # type: ignore[arg-type]  # fields of several types
    node.entries[incarnation, offset] = entry


def test_report_004_a_new_master_knows_everything_again() -> None:
    rig = Rig(MIB, MIB, MIB)
    keys = [f"k{number}" for number in range(300)]
    rig.put(*keys, replicas=2)
    found = rig.locate(*keys)
    used = rig.check().used_bytes
    rig.restart(directory_page=7)
    return_all(rig)
    rig.open(SPACE)
    assert rig.master.term == 2
    again = rig.locate(*keys)
    for before, after in zip(found, again, strict=True):
        assert isinstance(before, Location)
        assert isinstance(after, Location)
        assert (before.version, before.length) == (after.version, after.length)
        assert set(before.replicas) == set(after.replicas)
    walk = rig.check()
    assert (walk.objects, walk.used_bytes) == (300, used)
    assert rig.counter("mooncake_master_objects_recovered_total") == 300


def test_room_that_a_stopped_writer_of_an_older_reign_still_writes_has_no_new_owner() -> None:
    rig = Rig(MIB)
    node = rig.nodes["n0"]
    (incarnation,) = node.segments
    rig.restart()
    plant(node, 64 * KIB, "landed", version=make_version(1, 1))
    for offset, count in ((0, 3), (64 * KIB, 1), (128 * KIB, 2)):
        node.writing.append(FreeItem(incarnation, offset, 4 * KIB, make_version(1, count)))
        node.busy.add((incarnation, offset))
    return_all(rig)
    rig.open(SPACE)
    keys = [f"k{number}" for number in range(100)]
    rig.put(*keys, length=2 * KIB)
    kept_out = [range(at, at + 4 * KIB) for at in (0, 128 * KIB)]
    for location in rig.locate(*keys, "landed"):
        assert isinstance(location, Location)
        assert not any(location.replicas[0].offset in room for room in kept_out)
    assert rig.check().freeing == 2
    node.busy.clear()
    rig.sleep(5.0)
    assert rig.check().freeing == 0


def test_a_read_that_waits_is_answered_when_its_key_is_known_not_when_all_are() -> None:
    rig = Rig(MIB, MIB)
    rig.put("there", "elsewhere", replicas=2)
    rig.restart(recovery_grace_s=2.0)
    rig.slot, rig.epoch = 0, 1
    known = rig.send(Locate(rig.slot, rig.epoch, ["there"]))
    never = rig.send(Locate(rig.slot, rig.epoch, ["never there"]))
    return_all(rig)
    rig.settle()
    assert isinstance(rig.replies[known].items[0], Location)
    assert rig.master.recovering
    assert never not in rig.replies
    rig.sleep(3.0)
    assert rig.replies[never].items == [MissReason.ABSENT]


def test_report_005_nothing_is_allocated_on_a_node_before_its_directory_is_known() -> None:
    rig = Rig(MIB)
    keys = fill(rig, 20, length=KIB)
    rig.restart(directory_page=5)
    rig.automatic = False
    node = rig.nodes["n0"]
    rig.register(node)
    number = rig.send(Locate(0, 1, ["k0"]))
    rig.deliver_page(node)
    rig.slot, rig.epoch = 0, 1
    waiting = rig.begin("new")
    assert waiting not in rig.replies
    assert rig.check().objects == 5
    rig.settle()
    rig.tick()
    (grant,) = rig.replies[waiting].items
    taken = {replica.offset for replica in grant.replicas}
    rig.automatic = True
    for item in rig.locate(*keys):
        assert isinstance(item, Location)
        assert not taken & {replica.offset for replica in item.replicas}
    assert number in rig.replies
    rig.check()


def half_listed() -> tuple[Rig, list[str]]:
    """Return a master that restarted and knows 5 of 20 objects, and all their keys."""
    rig = Rig(MIB)
    keys = fill(rig, 20, length=KIB)
    rig.restart(directory_page=5)
    rig.automatic = False
    node = rig.nodes["n0"]
    rig.register(node)
    rig.deliver_page(node)
    return rig, keys


def test_a_key_is_served_as_soon_as_it_is_known() -> None:
    rig, keys = half_listed()
    node = rig.nodes["n0"]
    known = [entry.key for _, entry in sorted(node.entries.items())][:5]
    reply = rig.replies[rig.send(Locate(0, 1, known))]
    assert all(isinstance(item, Location) for item in reply.items)
    number = rig.send(Exists(0, 1, keys))
    assert number not in rig.replies, "a miss waits until the recovery is over"
    rig.settle()
    assert rig.replies[number].found == b"\1" * 20


def test_a_namespace_that_is_not_known_yet_is_waited_for() -> None:
    rig = Rig(MIB)
    keys = fill(rig, 20, length=KIB)
    rig.restart()
    rig.automatic = False
    node = rig.nodes["n0"]
    rig.register(node)
    number = rig.send(Locate(0, 1, keys))
    never = rig.send(Locate(7, 1, keys))
    assert not {number, never} & rig.replies.keys()
    rig.settle()
    assert all(isinstance(item, Location) for item in rig.replies[number].items)
    assert isinstance(rig.replies[never], StaleEpoch)


def test_a_miss_during_recovery_says_so_at_its_deadline() -> None:
    rig = Rig(MIB)
    fill(rig, 20, length=KIB)
    rig.restart(directory_page=5)
    rig.automatic = False
    node = rig.nodes["n0"]
    rig.register(node)
    rig.deliver_page(node)
    before = rig.now_s
    assert rig.locate("absent") == [MissReason.RECOVERING]
    assert rig.now_s - before <= 5.0
    assert rig.exists("absent") == [False]
    assert rig.ask(Why(0, 1, "absent")).reason == MissReason.RECOVERING
    for message in (Remove(0, 1, ["absent"]), Clear(SPACE), OpenNamespace("unknown")):
        with pytest.raises(DeadlineExceeded, match="directories"):
            rig.ask(message)


def test_a_removal_during_recovery_waits_so_that_nothing_comes_back() -> None:
    rig = Rig(MIB)
    keys = fill(rig, 20, length=KIB)
    rig.restart(directory_page=5, lease_ttl_s=1.0)
    rig.automatic = False
    node = rig.nodes["n0"]
    rig.register(node)
    rig.deliver_page(node)
    number = rig.send(Remove(0, 1, keys))
    rig.sleep(1.5)
    assert number not in rig.replies
    rig.settle()
    assert rig.replies[number].removed == b"\1" * 20
    rig.automatic = True
    assert rig.exists(*keys) == [False] * 20
    assert rig.check().used_bytes == 0


def test_misses_wait_for_nodes_that_are_late_after_a_restart() -> None:
    rig = Rig(MIB, MIB)
    keys = fill(rig, 20, length=KIB)
    rig.restart(recovery_grace_s=2.0)
    rig.register(rig.nodes["n0"])
    number = rig.send(Locate(0, 1, keys))
    assert number not in rig.replies
    rig.tick(1.0)
    rig.register(rig.nodes["n1"])
    rig.sleep(2.5)
    assert all(isinstance(item, Location) for item in rig.replies[number].items)


def test_puts_of_a_cluster_that_seems_new_wait_for_nobody_and_misses_for_the_grace() -> None:
    rig = Rig(MIB, recovery_grace_s=2.0)
    before_s = rig.now_s
    (result,) = rig.put("k")
    assert isinstance(result, Committed)
    assert all(isinstance(item, Location) for item in rig.locate("k"))
    assert rig.now_s == before_s
    assert rig.locate("absent") == [MissReason.ABSENT]
    assert rig.now_s - before_s < 2.1


def test_a_cluster_with_an_empty_data_directory_is_new_and_waits_for_nobody() -> None:
    rig = Rig(MIB, recovery_grace_s=5.0, keeps=True)
    before_s = rig.now_s
    assert rig.locate("absent") == [MissReason.ABSENT]
    assert rig.now_s == before_s


def test_an_empty_node_that_comes_first_does_not_end_the_recovery() -> None:
    rig = Rig(MIB, MIB)
    keys = fill(rig, 20, length=KIB)
    held = {entry.key for entry in rig.nodes["n1"].entries.values()}
    rig.restart(recovery_grace_s=2.0)
    rig.wipe(rig.nodes["n0"])
    rig.register(rig.nodes["n0"])
    rig.open(SPACE)
    number = rig.send(Locate(rig.slot, rig.epoch, keys))
    rig.tick(0.5)
    assert number not in rig.replies
    rig.register(rig.nodes["n1"])
    rig.sleep(2.5)
    found = zip(keys, rig.replies[number].items, strict=True)
    assert {key for key, item in found if isinstance(item, Location)} == held


def test_a_namespace_meets_its_own_slot_again_whoever_is_opened_first() -> None:
    rig = Rig(MIB)
    rig.open("one")
    rig.open("two")
    rig.put("k")
    slot = rig.slot
    rig.restart()
    empty = rig.add_node(MIB, name="empty")
    assert empty.peer
    for name in ("two", SPACE, "one"):
        rig.open(name)
    assert rig.slot == slot
    rig.register(rig.nodes["n0"])
    assert all(isinstance(item, Location) for item in rig.locate("k"))


def test_the_grace_of_a_master_that_no_node_joins_ends() -> None:
    rig = Rig(MIB)
    rig.restart(recovery_grace_s=1.0)
    rig.tick()
    number = rig.send(OpenNamespace("x"))
    assert number not in rig.replies
    rig.sleep(1.2)
    assert number in rig.replies


def test_the_term_grows_above_what_any_node_has_obeyed_and_all_are_told() -> None:
    rig = Rig(MIB, MIB)
    first, second = rig.nodes.values()
    fill(rig, 10)
    first.term = 41
    rig.restart()
    rig.register(second)
    rig.register(first)
    assert rig.master.term == 42
    assert (first.term, second.term) == (42, 42)
    rig.open(SPACE)
    (grant,) = rig.start("new").items
    assert term_of(grant.version) == 42
    rig.cut(first)
    rig.register(first)
    assert rig.master.term == 42, "the same node in the same reign"


def test_a_version_of_a_later_term_raises_ours() -> None:
    rig = Rig(MIB)
    node = rig.nodes["n0"]
    plant(node, 0, "k", version=make_version(9, 1))
    rig.restart()
    rig.register(node)
    assert rig.master.term == 10
    assert node.term == 10


@pytest.mark.parametrize("version", [0, -1, make_version(TERM_MAX, 1), 1 << 63, (1 << 64) - 1])
def test_numbers_that_no_master_gives_are_dropped_and_raise_no_term(version: int) -> None:
    rig = Rig(MIB)
    plant(rig.nodes["n0"], 0, "k", version=make_version(1, 5))
    plant(rig.nodes["n0"], 8 * KIB, "bad", version=version)
    plant(rig.nodes["n0"], 16 * KIB, "worse", version=make_version(1, 6), attempt=version or -1)
    rig.restart()
    return_all(rig)
    rig.open(SPACE)
    assert rig.master.term == 2
    assert rig.exists("k", "bad", "worse") == [True, False, False]
    assert rig.counter("mooncake_master_recovery_dropped_total") == 2
    rig.put("next")
    assert rig.exists("next") == [True]


def test_of_two_versions_the_higher_one_wins_and_the_other_is_erased() -> None:
    rig = Rig(MIB, MIB)
    first, second = rig.nodes.values()
    plant(first, 0, "k", version=make_version(1, 5))
    plant(second, 512, "k", version=make_version(1, 6), length=2 * KIB)
    plant(first, 64 * KIB, "m", version=make_version(1, 9))
    plant(second, 64 * KIB, "m", version=make_version(1, 8))
    rig.restart()
    return_all(rig)
    rig.open(SPACE)
    newer, other = rig.locate("k", "m")
    assert isinstance(newer, Location)
    assert isinstance(other, Location)
    assert newer.version == make_version(1, 6)
    assert newer.length == 2 * KIB
    assert other.version == make_version(1, 9)
    assert (len(first.entries), len(second.entries)) == (1, 1)
    walk = rig.check()
    assert walk.used_bytes == takes("k", 2 * KIB) + takes("m", KIB)


def test_older_epochs_are_erased_and_epochs_never_go_back() -> None:
    """Report 067, over a restart."""
    rig = Rig(MIB)
    node = rig.nodes["n0"]
    fill(rig, 10, length=KIB)
    rig.automatic = False
    rig.send(Clear(SPACE))
    token, message = node.inbox.pop(0)
    rig.perform(rig.master.node_replied(node.peer, token, node.answer(message), rig.now_s))
    assert node.entries, "they are not erased yet"
    rig.automatic = True
    rig.restart()
    rig.register(node)
    assert rig.open(SPACE).epoch == 2
    assert rig.exists("k0", "k9") == [False, False]
    assert not node.entries
    assert rig.check().used_bytes == 0


def test_a_newer_epoch_among_the_entries_clears_what_is_older() -> None:
    rig = Rig(MIB, MIB)
    first, second = rig.nodes.values()
    plant(first, 0, "old", version=make_version(1, 1), epoch=3)
    plant(second, 0, "new", version=make_version(1, 2), epoch=4)
    rig.restart()
    return_all(rig)
    record = rig.open(SPACE)
    assert record.epoch == 4
    assert rig.exists("old", "new") == [False, True]
    rig.sleep(0.2)
    assert not first.entries
    assert first.epochs[record.slot] == 4
    rig.check()


def test_slots_stay_as_the_extents_say_and_new_names_get_others() -> None:
    rig = Rig(MIB)
    node = rig.nodes["n0"]
    mine = home_slot("mine")
    plant(node, 0, "k", version=make_version(1, 1), slot=mine, namespace="first")
    rig.restart()
    rig.register(node)
    assert rig.open("first").slot == mine
    assert rig.open("mine").slot == mine + 1


def test_a_slot_that_the_tables_know_is_not_reused_at_the_same_epoch() -> None:
    rig = Rig(MIB)
    rig.ask(Clear(SPACE))
    rig.restart()
    return_all(rig)
    assert rig.open("ns7186").slot == 0
    assert rig.open("ns7186").epoch == 3, "the table says 2"


def test_entries_whose_namespace_contradicts_are_dropped() -> None:
    rig = Rig(MIB)
    node = rig.nodes["n0"]
    plant(node, 0, "a", version=make_version(1, 1), slot=0, namespace="one")
    plant(node, 64 * KIB, "b", version=make_version(1, 2), slot=0, namespace="two")
    plant(node, 128 * KIB, "c", version=make_version(1, 3), slot=1, namespace="one")
    plant(node, 192 * KIB, "d", version=make_version(1, 4), slot=9_999, namespace="three")
    rig.restart()
    rig.register(node)
    assert rig.counter("mooncake_master_recovery_dropped_total") == 3
    assert len(node.entries) == 1
    rig.check()


def test_overlapping_entries_are_both_dropped() -> None:
    """Report 005: doubtful overlaps are dropped, not guessed."""
    rig = Rig(MIB)
    node = rig.nodes["n0"]
    plant(node, 0, "a", version=make_version(1, 1), length=8 * KIB)
    plant(node, 4 * KIB, "b", version=make_version(1, 2))
    plant(node, MIB - 512, "c", version=make_version(1, 3), length=8 * KIB)
    plant(node, 64 * KIB, "d", version=make_version(1, 4))
    plant(node, 65 * KIB + 100, "e", version=make_version(1, 4))
    rig.restart()
    rig.register(node)
    rig.open(SPACE)
    assert rig.exists("a", "b", "c", "d", "e") == [False] * 5
    assert rig.counter("mooncake_master_recovery_overlaps_total") == 3
    assert rig.check().used_bytes == 0


def test_a_set_comes_back_whole_or_not_at_all() -> None:
    rig = Rig(MIB, MIB)
    rig.put("a", "b", "c", together=True)
    rig.put("d", "e", together=True)
    lost = next(node for node in rig.nodes.values()
                for entry in node.entries.values() if entry.key == "e")  # fmt: skip
    place = next(place for place, entry in lost.entries.items() if entry.key == "e")
    del lost.entries[place]
    rig.restart()
    return_all(rig)
    rig.open(SPACE)
    assert rig.exists("a", "b", "c", "d", "e") == [True, True, True, False, False]
    rig.sleep(61.0)
    assert rig.exists("d") == [False]
    assert sum(len(node.entries) for node in rig.nodes.values()) == 3
    rig.check()


def test_a_set_waits_for_a_node_that_comes_late() -> None:
    rig = Rig(MIB, MIB)
    keys = [f"k{number}" for number in range(8)]
    rig.put(*keys, together=True)
    first, second = rig.nodes.values()
    rig.restart()
    rig.register(first)
    rig.open(SPACE)
    assert rig.exists(*keys) == [False] * 8
    rig.sleep(10.0)
    rig.register(second)
    assert rig.exists(*keys) == [True] * 8
    rig.check()


def keep_a_set_back() -> tuple[Rig, list[str], str]:
    """Return a new master that waits for the other node of a set; its keys, one that it knows."""
    rig = Rig(MIB, MIB)
    keys = [f"k{number}" for number in range(8)]
    rig.put(*keys, together=True)
    first = rig.nodes["n0"]
    known = next(entry.key for entry in first.entries.values())
    rig.restart()
    rig.register(first)
    rig.open(SPACE)
    rig.sleep(10.0)
    return rig, keys, known


@pytest.mark.parametrize("put_first", [False, True])
def test_a_member_of_a_set_that_is_kept_back_is_removed_for_good(put_first: bool) -> None:  # noqa: FBT001 - pytest passes it
    rig, keys, known = keep_a_set_back()
    if put_first:
        rig.put(known, length=300)
    rig.ask(Remove(rig.slot, rig.epoch, [known]))
    assert known not in {entry.key for entry in rig.nodes["n0"].entries.values()}
    rig.register(rig.nodes["n1"])
    rig.sleep(1.0)
    assert rig.exists(*keys) == [key != known for key in keys]
    rig.sleep(100.0)
    assert rig.exists(*keys) == [key != known for key in keys]
    rig.check()
    rig.restart()
    return_all(rig)
    rig.open(SPACE)
    rig.sleep(10.0)
    assert rig.exists(known) == [False]


def test_a_member_of_a_set_that_is_kept_back_does_not_follow_what_replaced_it() -> None:
    rig, keys, known = keep_a_set_back()
    rig.put(known, length=300)
    rig.sleep(1.0)
    (there,) = [e for node in rig.nodes.values() for e in node.entries.values() if e.key == known]
    assert there.length == 300
    rig.register(rig.nodes["n1"])
    rig.sleep(1.0)
    assert rig.exists(*keys) == [True] * 8
    (found,) = rig.locate(known)
    assert isinstance(found, Location)
    assert found.length == 300
    rig.check()


def test_an_attempt_that_landed_and_was_never_committed_counts_as_committed() -> None:
    rig = Rig(MIB)
    started = rig.start("k")
    rig.land(started, ("k",), KIB)
    rig.restart()
    return_all(rig)
    rig.open(SPACE)
    assert rig.exists("k") == [True]
    (result,) = rig.commit(started).items
    assert isinstance(result, Refusal)
    assert rig.exists("k") == [True]


def test_report_041_pins_and_hints_survive_a_restart() -> None:
    rig = Rig(MIB)
    node = rig.nodes["n0"]
    wall_s = rig.now_s + 1_000_000.0
    plant(node, 0, "hard", version=make_version(1, 1), pin=int(Pin.HARD))
    soft = {"pin": int(Pin.SOFT), "pin_ends_s": wall_s + 60.0}
    plant(node, 8 * KIB, "soft", version=make_version(1, 2), **soft)  # type: ignore[arg-type]  # a float among them
    over = {"pin": int(Pin.SOFT), "pin_ends_s": wall_s - 1.0}
    plant(node, 16 * KIB, "over", version=make_version(1, 3), **over)  # type: ignore[arg-type]  # a float among them
    plant(node, 24 * KIB, "tail", version=make_version(1, 5), parent="head", group="g")
    plant(node, 32 * KIB, "head", version=make_version(1, 4), group="g")
    rig.restart()
    rig.register(node)
    rig.open(SPACE)
    rig.tick()
    records = rig.ask(Stat(rig.slot, rig.epoch, ["hard", "soft", "over", "tail"])).items
    assert [record.pin for record in records] == ["hard", "soft", "none", "none"]
    assert records[1].pin_left_s == pytest.approx(60.0, abs=0.1)
    assert (records[3].group, records[3].parent) == ("g", "head")
    assert records[0].lease_left_s > 0, "a recovered key may have readers"
    rig.check()


def test_a_listing_goes_on_when_a_page_fails_or_the_node_comes_back() -> None:
    rig = Rig(MIB)
    keys = fill(rig, 20, length=KIB)
    node = rig.nodes["n0"]
    rig.restart(directory_page=5)
    rig.automatic = False
    rig.register(node)
    rig.deliver_page(node)
    rig.deliver(node, lose=True)
    assert not node.inbox
    rig.sleep(0.3)
    rig.deliver_page(node)
    rig.cut(node)
    assert not rig.master.recovering
    rig.register(node)
    rig.settle()
    rig.automatic = True
    rig.open(SPACE)
    assert rig.exists(*keys) == [True] * 20
    rig.check()


def test_what_was_removed_in_this_reign_is_not_brought_back_by_a_late_node() -> None:
    rig = Rig(MIB, MIB)
    keys = fill(rig, 20, length=KIB)
    first, second = rig.nodes.values()
    rig.restart(lease_ttl_s=1.0)
    rig.register(first)
    rig.open(SPACE)
    rig.remove(*keys)
    (result,) = rig.put(keys[0])
    assert isinstance(result, Committed)
    rig.register(second)
    assert rig.exists(*keys) == [True] + [False] * 19
    rig.check()


def test_a_late_node_with_new_memory_joins_at_once() -> None:
    rig = Rig(MIB)
    rig.restart()
    node = rig.nodes["n0"]
    rig.wipe(node)
    rig.register(node)
    rig.open(SPACE)
    assert isinstance(rig.start("k").items[0], PutGrant)
