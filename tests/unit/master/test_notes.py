"""What absent nodes still have to erase outlives the master (ADR 34)."""

from __future__ import annotations

import pytest

from mooncake_master.core import notes
from mooncake_master.core.places import WHOLE
from mooncake_store.errors import DeadlineExceeded, StaleEpoch
from mooncake_store.limits import KIB, MIB
from mooncake_store.types import MissReason
from mooncake_store.wire.control import (
    Clear,
    Committed,
    KeepNotes,
    ListDirectory,
    ListNotes,
    Locate,
    Location,
    PutGrant,
    Remove,
)
from tests.unit.master.rig import SPACE, FakeNode, Rig, small_length


def holder_of(rig: Rig, key: str) -> FakeNode:
    (found,) = rig.locate(key)
    assert isinstance(found, Location)
    return rig.node_of(found.replicas[0].incarnation)


def pair() -> tuple[Rig, FakeNode, FakeNode]:
    """Return a rig of two nodes, the one that holds ``k``, and the other one."""
    rig = Rig(MIB, MIB, lease_ttl_s=0.5)
    rig.put("k")
    holder = holder_of(rig, "k")
    (other,) = [node for node in rig.nodes.values() if node is not holder]
    return rig, holder, other


def remove_while_away(rig: Rig, node: FakeNode, *keys: str) -> None:
    rig.cut(node)
    assert rig.remove(*keys or ("k",)) == [True] * len(keys or ("k",))


def test_a_removed_key_stays_gone_over_a_restart_with_a_data_directory() -> None:
    rig = Rig(MIB, lease_ttl_s=0.5, keeps=True)
    rig.put("k")
    node = rig.nodes["n0"]
    remove_while_away(rig, node)
    assert rig.kept is not None
    assert rig.kept["notes"]
    rig.restart()
    rig.register(node)
    rig.open(SPACE)
    assert rig.exists("k") == [False]
    assert rig.check().used_bytes == 0
    assert not node.entries
    assert not rig.kept["notes"], "what was erased is not noted any more"


def test_a_replaced_key_keeps_its_new_value_over_a_restart() -> None:
    rig, holder, other = pair()
    rig.cut(holder)
    (result,) = rig.put("k", replace=True)
    assert isinstance(result, Committed)
    assert other.notes
    rig.restart(recovery_grace_s=2.0)
    rig.register(holder)
    rig.register(other)
    rig.open(SPACE)
    (found,) = rig.locate("k")
    assert isinstance(found, Location)
    assert found.version == result.version
    assert rig.remove("k") == [True]
    assert not holder.entries
    assert not other.entries


@pytest.mark.parametrize("holder_first", [True, False])
def test_another_node_hands_notes_to_the_next_master_in_any_order(*, holder_first: bool) -> None:
    rig, holder, other = pair()
    remove_while_away(rig, holder)
    assert [item.node_id for item in other.notes.values()] == [holder.node_id]
    rig.restart(recovery_grace_s=2.0)
    order = [holder, other] if holder_first else [other, holder]
    for node in order:
        rig.begin_registration(node)
        number = rig.send(Locate(0, 1, ["k"]))
        assert not isinstance(rig.replies.get(number), StaleEpoch)
    rig.sleep(2.5)
    rig.open(SPACE)
    assert rig.exists("k") == [False]
    assert not holder.entries
    assert not other.notes, "what was erased is not noted any more"


def test_a_directory_is_not_adopted_before_its_fellows_have_said_what_they_noted() -> None:
    rig, holder, other = pair()
    remove_while_away(rig, holder)
    rig.restart(recovery_grace_s=2.0)
    rig.automatic = False
    rig.begin_registration(holder)
    assert not any(isinstance(message, ListDirectory) for _, message in holder.inbox)
    rig.begin_registration(other)
    asked = [message for _, message in other.inbox]
    assert any(isinstance(message, ListNotes) for message in asked)
    assert not any(isinstance(message, ListDirectory) for _, message in holder.inbox)
    rig.settle()
    assert not holder.entries


def test_a_fellow_that_does_not_come_back_is_waited_for_no_longer_than_the_grace() -> None:
    rig, holder, _other = pair()
    rig.restart(recovery_grace_s=2.0)
    rig.register(holder)
    before_s = rig.now_s
    (found,) = rig.ask(Locate(0, 1, ["k"])).items
    assert isinstance(found, Location)
    assert rig.now_s - before_s < 2.2


def test_notes_that_come_late_take_back_what_was_adopted() -> None:
    rig, holder, other = pair()
    remove_while_away(rig, holder)
    rig.restart()  # no grace: nobody is waited for
    rig.register(holder)
    rig.open(SPACE)
    rig.register(other)
    rig.tick(0.1)
    assert rig.exists("k") == [False]
    assert not holder.entries


def test_without_anybody_to_note_it_a_removal_is_not_acknowledged_but_stands() -> None:
    rig = Rig(MIB, lease_ttl_s=0.5)
    rig.put("k")
    node = rig.nodes["n0"]
    rig.cut(node)
    with pytest.raises(DeadlineExceeded, match=r"n0.*the change stands.*--data-dir"):
        rig.remove("k", deadline_s=2.0)
    assert rig.exists("k") == [False]
    with pytest.raises(DeadlineExceeded, match="n0"):  # a second one does not hide the first
        rig.remove("k", deadline_s=2.0)
    rig.register(node)
    assert rig.remove("k") == [False]
    assert not node.entries


def test_without_anybody_to_witness_it_a_clear_is_not_acknowledged() -> None:
    rig = Rig(MIB, lease_ttl_s=0.5)
    rig.put("k")
    rig.cut(rig.nodes["n0"])
    with pytest.raises(DeadlineExceeded, match="n0"):
        rig.ask(Clear(SPACE), deadline_s=2.0)


def test_a_clear_that_another_node_knows_of_is_acknowledged_and_outlives_the_master() -> None:
    rig, holder, other = pair()
    rig.cut(holder)
    rig.ask(Clear(SPACE))
    rig.restart(recovery_grace_s=2.0)
    rig.register(holder)
    rig.register(other)
    assert rig.open(SPACE).epoch == 2
    assert rig.exists("k") == [False]
    assert not holder.entries


def test_a_node_that_is_connected_and_silent_is_noted_before_the_answer() -> None:
    rig, _holder, other = pair()
    rig.automatic = False
    number = rig.send(Remove(rig.slot, rig.epoch, ["k"]))
    for _ in range(100):
        rig.tick(0.02)
        while other.inbox and number not in rig.replies:
            if isinstance(other.inbox[0][1], KeepNotes):
                assert number not in rig.replies
            rig.deliver(other)
    assert number in rig.replies
    assert other.notes


def test_what_was_given_up_on_an_absent_node_is_noted_and_a_later_removal_waits_for_it() -> None:
    rig = Rig(MIB, MIB, lease_ttl_s=0.5, put_ttl_s=1.0)
    started = rig.start("k")
    (grant,) = started.items
    assert isinstance(grant, PutGrant)
    rig.land(started, ("k",), KIB)
    holder = rig.node_of(grant.replicas[0].incarnation)
    rig.cut(holder)
    (other,) = [node for node in rig.nodes.values() if node is not holder]
    rig.automatic = False
    rig.sleep(4.0)
    number = rig.send(Remove(rig.slot, rig.epoch, ["k"]))
    rig.tick(0.02)
    assert number not in rig.replies
    rig.automatic = True
    assert rig.wait(number).removed == b"\0"
    assert other.notes
    rig.restart(recovery_grace_s=2.0)
    rig.register(other)
    rig.register(holder)
    rig.open(SPACE)
    assert rig.exists("k") == [False]


def test_a_keeper_that_loses_an_answer_is_asked_again() -> None:
    rig, holder, other = pair()
    rig.cut(holder)
    rig.automatic = False
    number = rig.send(Remove(rig.slot, rig.epoch, ["k"]))
    while other.inbox:
        rig.deliver(other, lose=True)
    rig.tick(0.1)
    assert number not in rig.replies
    rig.automatic = True
    assert rig.wait(number).removed == b"\1"


def test_a_new_keeper_gets_what_the_old_one_had() -> None:
    rig, holder, other = pair()
    remove_while_away(rig, holder)
    third = rig.add_node(MIB)
    rig.tick(0.1)
    assert third.notes.keys() == other.notes.keys()


def test_with_too_many_notes_the_absent_node_comes_back_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notes, "NOTES_MAX", 10)
    rig = Rig(MIB, MIB, lease_ttl_s=0.5)
    keys = [f"k{number}" for number in range(60)]
    rig.put(*keys, length=small_length())
    node = rig.nodes["n0"]
    mine = [entry.key for entry in node.entries.values()]
    rig.cut(node)
    rig.remove(*mine[:20])
    rig.tick(0.1)
    (note,) = rig.nodes["n1"].notes.values()
    assert note.offset == WHOLE
    rig.sleep(1.0)
    assert rig.counter('mooncake_master_replicas_lost_total{node="n0"}') == len(mine) - 20
    rig.restart(recovery_grace_s=2.0)
    rig.register(node)
    rig.register(rig.nodes["n1"])
    rig.open(SPACE)
    assert not any(rig.exists(*mine))
    assert not node.entries
    (result,) = rig.put("new")
    assert isinstance(result, Committed)
    assert rig.locate("never") == [MissReason.ABSENT]


def test_notes_about_memory_that_is_gone_are_dropped() -> None:
    rig, holder, other = pair()
    remove_while_away(rig, holder)
    rig.wipe(holder)
    rig.register(holder)
    rig.tick(0.1)
    assert not other.notes


def unread(*, keeps: bool) -> tuple[Rig, FakeNode, FakeNode]:
    """Return a rig whose second master has read the first of the two holders of ``k`` only."""
    rig = Rig(MIB, MIB, lease_ttl_s=0.5, recovery_grace_s=1.0, keeps=keeps)
    rig.sleep(2)
    rig.put("k", replicas=2)
    rig.put("more", replicas=2)
    there, away = rig.nodes.values()
    rig.restart()
    rig.register(there)
    rig.sleep(2)
    rig.open(SPACE)
    return rig, there, away


@pytest.mark.parametrize("keeps", [False, True])
def test_a_key_that_a_node_holds_unseen_stays_gone_over_the_next_restart(*, keeps: bool) -> None:
    rig, there, away = unread(keeps=keeps)
    assert rig.remove("k") == [True]
    rig.restart()
    for node in (there, away):
        rig.register(node)
    rig.sleep(3)
    rig.open(SPACE)
    assert rig.exists("k", "more") == [False, True]


@pytest.mark.parametrize("keeps", [False, True])
def test_a_node_that_is_read_in_time_keeps_what_it_holds(*, keeps: bool) -> None:
    rig, there, away = unread(keeps=keeps)
    assert rig.remove("k") == [True]
    rig.register(away)
    rig.sleep(1)
    assert rig.exists("k", "more") == [False, True]
    rig.restart()
    rig.register(away)
    rig.sleep(3)
    rig.open(SPACE)
    assert rig.exists("k", "more") == [False, True], "only the other node could say it is gone"
    rig.register(there)
    rig.sleep(1)
    assert rig.exists("k") == [False]


def test_where_nothing_ended_a_node_that_missed_a_reign_keeps_what_it_holds() -> None:
    rig, _there, away = unread(keeps=False)
    rig.put("new")
    rig.restart()
    rig.register(away)
    rig.sleep(3)
    rig.open(SPACE)
    assert rig.exists("k", "more") == [True, True]


def test_a_disk_that_cannot_be_read_costs_its_node_nothing_else() -> None:
    rig = Rig(MIB, MIB, lease_ttl_s=0.5, recovery_grace_s=1.0)
    rig.sleep(2)
    broken, other = rig.nodes.values()
    rig.give_disk(broken)
    rig.put("k", replicas=2)
    rig.put("more", preferred=(broken.name,))
    for nodes in ((broken, other), (broken, other)):
        broken.disk_fails = True
        rig.restart()
        for node in nodes:
            rig.register(node)
        rig.sleep(3)
        rig.open(SPACE)
        assert rig.exists("more") == [True], "what was read from its memory is nothing to doubt"
        rig.remove("k")
    assert rig.exists("k", "more") == [False, True]


@pytest.mark.parametrize("fails", [False, True])
def test_a_node_that_comes_late_with_a_broken_disk_keeps_its_memory(*, fails: bool) -> None:
    rig, there, away = unread(keeps=False)
    assert rig.remove("k") == [True]
    away.disks = {77: 64 * MIB}
    away.disk_fails = fails
    rig.register(away)
    rig.sleep(2)
    assert {item.incarnation for item in there.notes.values()} == ({77} if fails else set())
    rig.restart()
    rig.register(there)
    rig.register(away)
    rig.sleep(3)
    rig.open(SPACE)
    assert rig.exists("k", "more") == [False, True]
    assert "more" in {entry.key for entry in away.entries.values()}
