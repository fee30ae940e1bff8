"""Writes: one attempt a key, whole or not at all, room that returns (reports 015 016 037 069)."""

from __future__ import annotations

import pytest

from mooncake_store.errors import DeadlineExceeded, InvalidArgument, StaleEpoch
from mooncake_store.limits import KIB, MIB
from mooncake_store.types import MissReason, Pin
from mooncake_store.wire.control import (
    CommitItem,
    Committed,
    Location,
    PutAbort,
    PutCommit,
    PutExists,
    PutGrant,
    PutItem,
    PutStart,
    Refusal,
    Remove,
)
from tests.unit.master.rig import CLIENT, SPACE, Free, Rig, takes

OTHER = 2


def test_a_committed_object_is_readable_and_an_uncommitted_one_is_not() -> None:
    rig = Rig()
    started = rig.start("a")
    assert rig.locate("a") == [MissReason.WRITING]
    rig.commit(started)
    (found,) = rig.locate("a")
    assert isinstance(found, Location)
    assert found.version == started.items[0].version
    assert found.replicas == started.items[0].replicas
    assert found.length == KIB
    rig.check()


def test_an_empty_object_is_an_object() -> None:
    """Report 048."""
    rig = Rig()
    rig.put("empty", length=0)
    (found,) = rig.locate("empty")
    assert isinstance(found, Location)
    assert found.length == 0
    assert rig.locate("absent") == [MissReason.ABSENT]


def test_report_016_the_first_writer_wins_and_the_others_learn_it() -> None:
    rig = Rig()
    first = rig.start("k", peer=1)
    waiting = [rig.begin("k", peer=peer) for peer in range(2, 18)]
    assert not rig.replies
    rig.commit(first, peer=1)
    for number in waiting:
        (item,) = rig.wait(number).items
        assert item == PutExists(first.items[0].version)
    assert rig.check().objects == 1


def test_report_016_when_the_first_writer_fails_the_next_one_gets_its_turn() -> None:
    rig = Rig()
    first = rig.start("k", peer=1)
    second, third = rig.begin("k", peer=2), rig.begin("k", peer=3)
    rig.ask(PutAbort([first.items[0].version]))
    (granted,) = rig.wait(second).items
    assert isinstance(granted, PutGrant)
    assert third not in rig.replies
    rig.ask(PutCommit([CommitItem(granted.version, 1)]), peer=2)
    assert rig.wait(third).items == [PutExists(granted.version)]
    rig.check()


def test_a_second_writer_waits_no_longer_than_its_deadline() -> None:
    rig = Rig()
    rig.start("k", peer=1)
    before = rig.now_s
    (item,) = rig.start("k", peer=2, deadline_s=1.0).items
    assert isinstance(item, Refusal)
    assert item.code == "put_under_way"
    assert rig.now_s - before <= 1.0


def test_one_stuck_key_does_not_spoil_a_batch() -> None:
    rig = Rig()
    rig.start("stuck", peer=1)
    before = rig.now_s
    items = rig.start("a", "stuck", "b", peer=2, deadline_s=4.0).items
    assert [type(item) for item in items] == [PutGrant, Refusal, PutGrant]
    assert rig.now_s - before < 2.5, "the writer has time left for the others"


def test_report_015_room_of_a_writer_that_dies_returns_and_its_key_can_be_put() -> None:
    rig = Rig(put_ttl_s=2.0)
    before = rig.check().used_bytes
    for number in range(50):
        rig.start(f"k{number}", length=100 * KIB, peer=77)
    rig.perform(rig.master.peer_lost(77, rig.now_s))
    rig.settle()
    assert rig.check().used_bytes == before
    assert rig.locate("k0") == [MissReason.EXPIRED]
    assert isinstance(rig.put("k0")[0], Committed)


def test_report_015_an_attempt_that_is_never_finished_expires() -> None:
    rig = Rig(put_ttl_s=2.0)
    rig.start("k")
    rig.sleep(1.9)
    assert rig.locate("k") == [MissReason.WRITING]
    rig.sleep(0.3)
    assert rig.locate("k") == [MissReason.EXPIRED]
    assert rig.check().used_bytes == 0
    assert rig.counter("mooncake_master_attempts_expired_total") == 1


def test_report_015_room_returns_only_when_the_node_has_confirmed() -> None:
    rig = Rig(put_ttl_s=1.0, automatic=False)
    rig.settle()
    rig.sleep(2.1)  # the grace after a start is over
    node = rig.nodes["n0"]
    number = rig.begin("k")
    (grant,) = rig.replies[number].items
    place = (grant.replicas[0].incarnation, grant.replicas[0].offset)
    node.busy.add(place)
    rig.automatic = True
    rig.sleep(1.5)
    assert rig.check().used_bytes == takes("k", KIB)
    node.busy.clear()
    rig.sleep(2.1)
    assert rig.check().used_bytes == 0
    assert rig.counter("mooncake_master_extents_not_yet_freed_total") >= 1


def test_report_037_messages_of_an_old_attempt_do_nothing_to_the_new_one() -> None:
    rig = Rig(put_ttl_s=1.0)
    first = rig.start("k")
    rig.sleep(1.5)
    second = rig.start("k")
    (late,) = rig.commit(first).items
    assert isinstance(late, Refusal)
    assert late.code == "attempt_expired"
    rig.ask(PutAbort([first.items[0].version]))
    assert rig.locate("k") == [MissReason.WRITING]
    (done,) = rig.commit(second).items
    assert done == Committed(second.items[0].version, 1)
    (found,) = rig.locate("k")
    assert isinstance(found, Location)
    assert found.version == second.items[0].version


def test_a_commit_twice_is_refused_the_second_time_and_harms_nothing() -> None:
    rig = Rig()
    started = rig.start("k")
    rig.commit(started)
    (again,) = rig.commit(started).items
    assert isinstance(again, Refusal)
    assert again.code == "attempt_expired"
    assert rig.exists("k") == [True]


def test_a_commit_without_a_written_replica_is_refused_and_freed() -> None:
    rig = Rig()
    (item,) = rig.commit(rig.start("k"), written=0).items
    assert isinstance(item, Refusal)
    assert item.code == "invalid_argument"
    assert rig.check().used_bytes == 0
    assert isinstance(rig.put("k")[0], Committed)


def test_report_026_fewer_copies_than_asked_are_reported() -> None:
    rig = Rig(MIB, MIB)
    started = rig.start("k", replicas=2)
    assert len(started.items[0].replicas) == 2
    (item,) = rig.commit(started, written=0b10).items
    assert item == Committed(started.items[0].version, 1)
    (found,) = rig.locate("k")
    assert isinstance(found, Location)
    assert found.replicas == started.items[0].replicas[1:]
    assert rig.check().used_bytes == takes("k", KIB)
    assert rig.counter("mooncake_master_puts_undercopied_total") == 1


def test_report_069_a_replace_writes_elsewhere_and_swaps_at_commit() -> None:
    rig = Rig()
    (old,) = rig.put("k")
    started = rig.start("k", replace=True)
    (found,) = rig.locate("k")
    assert isinstance(found, Location)
    assert found.version == old.version
    assert found.replicas != started.items[0].replicas
    rig.commit(started)
    (found,) = rig.locate("k")
    assert isinstance(found, Location)
    assert found.version == started.items[0].version
    assert rig.check().used_bytes == takes("k", KIB)


def test_a_put_is_not_acknowledged_while_the_value_removed_before_it_can_be_read() -> None:
    rig = Rig()
    rig.put("k")
    rig.locate("k")  # somebody may read it at its node for the time of a lease
    rig.automatic = False
    removal = rig.send_remove("k")
    started = rig.start("k")
    rig.land(started, ("k",), KIB)
    commit = rig.send(PutCommit([CommitItem(started.items[0].version, 1)]))
    assert commit not in rig.replies
    rig.settle()
    assert removal in rig.replies
    assert rig.replies[commit].items == [Committed(started.items[0].version, 1)]


def test_report_069_a_replace_that_fails_leaves_the_old_value() -> None:
    rig = Rig(put_ttl_s=1.0)
    (old,) = rig.put("k")
    for ending in ("abort", "expire", "die"):
        started = rig.start("k", replace=True, peer=9)
        if ending == "abort":
            rig.ask(PutAbort([started.items[0].version]))
        elif ending == "expire":
            rig.sleep(1.5)
        else:
            rig.perform(rig.master.peer_lost(9, rig.now_s))
        (found,) = rig.locate("k")
        assert isinstance(found, Location)
        assert found.version == old.version
    rig.settle()
    assert rig.check().objects == 1


def test_a_replace_waits_for_another_writer() -> None:
    rig = Rig()
    first = rig.start("k", peer=1)
    second = rig.begin("k", peer=2, replace=True)
    assert second not in rig.replies
    rig.commit(first, peer=1)
    (grant,) = rig.wait(second).items
    assert isinstance(grant, PutGrant)


@pytest.mark.parametrize("expected", [0, 12_345])
def test_expected_version_that_is_not_there_is_refused_at_start(expected: int) -> None:
    rig = Rig()
    rig.put("k")
    (item,) = rig.start("k", item={"expected_version": expected}, replace=True).items
    assert isinstance(item, Refusal)
    assert item.code == "version_conflict"


def test_expected_version_is_looked_at_again_at_commit() -> None:
    rig = Rig()
    (old,) = rig.put("k")
    started = rig.start("k", item={"expected_version": old.version}, replace=True)
    rig.remove("k")
    (item,) = rig.commit(started).items
    assert isinstance(item, Refusal)
    assert item.code == "version_conflict"
    assert rig.check().used_bytes == 0


def test_expected_version_that_is_there_is_replaced() -> None:
    rig = Rig()
    (old,) = rig.put("k")
    (new,) = rig.put("k", item={"expected_version": old.version})
    assert isinstance(new, Committed)
    assert new.version > old.version
    (absent,) = rig.put("k2", item={"expected_version": 0})
    assert isinstance(absent, Committed)


def test_a_set_becomes_visible_whole() -> None:
    """Report 042."""
    rig = Rig()
    started = rig.start("a", "b", "c", together=True)
    assert {grant.set_id for grant in started.items} == {started.items[0].version}
    assert {grant.set_count for grant in started.items} == {3}
    part = PutCommit([CommitItem(grant.version, 1) for grant in started.items[:2]])
    assert all(isinstance(item, Refusal) for item in rig.ask(part).items)
    assert rig.exists("a", "b", "c") == [False] * 3
    rig.ask(PutAbort([started.items[2].version]))
    assert rig.check().used_bytes == 0
    rig.put("a", "b", "c", together=True)
    assert rig.exists("a", "b", "c") == [True] * 3


def test_a_set_of_which_one_was_not_written_is_refused_whole() -> None:
    rig = Rig()
    started = rig.start("a", "b", together=True)
    first, second = started.items
    message = PutCommit([CommitItem(first.version, 1), CommitItem(second.version, 0)])
    assert all(isinstance(item, Refusal) for item in rig.ask(message).items)
    assert rig.exists("a", "b") == [False, False]
    assert rig.check().used_bytes == 0


def test_a_set_of_which_one_cannot_be_is_refused_whole() -> None:
    rig = Rig(MIB)
    items = [PutItem("a", KIB), PutItem("b", 2 * MIB)]
    reply = rig.ask(PutStart(rig.slot, rig.epoch, items, together=True))
    assert all(isinstance(item, Refusal) for item in reply.items)
    assert rig.check().used_bytes == 0
    assert rig.locate("a") == [MissReason.ABSENT]


def test_a_key_twice_in_one_batch_is_refused_once() -> None:
    rig = Rig()
    first, second = rig.start("k", "k").items
    assert isinstance(first, PutGrant)
    assert isinstance(second, Refusal)
    assert second.code == "invalid_argument"


def test_an_object_larger_than_any_segment_is_refused_at_once_and_evicts_nothing() -> None:
    rig = Rig(MIB, MIB)
    rig.put(*(f"k{n}" for n in range(100)), length=15 * KIB)
    before = rig.check().objects
    (item,) = rig.start("big", length=MIB).items
    assert isinstance(item, Refusal)
    assert item.code == "object_too_large"
    assert rig.check().objects == before


def test_report_007_more_replicas_than_nodes_are_refused_at_once_and_evict_nothing() -> None:
    rig = Rig(MIB)
    rig.put(*(f"k{n}" for n in range(60)), length=15 * KIB)
    before = rig.check().objects
    now_s = rig.now_s
    (item,) = rig.start("k", replicas=2).items
    assert isinstance(item, Refusal)
    assert item.code == "replicas_impossible"
    assert "there are 1" in item.message
    assert (rig.now_s, rig.check().objects) == (now_s, before)


def test_a_put_before_any_node_has_joined_waits_for_one() -> None:
    rig = Rig()
    rig.restart()
    rig.nodes.clear()
    rig.open(SPACE)
    number = rig.begin("k")
    assert number not in rig.replies
    rig.add_node(MIB)
    rig.tick(0.02)
    assert isinstance(rig.wait(number).items[0], PutGrant)


def test_a_put_without_any_node_says_so_at_its_deadline() -> None:
    rig = Rig()
    rig.restart()
    rig.nodes.clear()
    rig.open(SPACE)
    (item,) = rig.start("k", deadline_s=1.0).items
    assert item.code == "no_space"
    assert "no storage node" in item.message


def test_a_request_of_an_older_epoch_is_refused() -> None:
    rig = Rig()
    rig.epoch += 1
    with pytest.raises(StaleEpoch):
        rig.start("k")
    rig.slot = 17
    with pytest.raises(StaleEpoch, match="no namespace has slot 17"):
        rig.start("k")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"replicas": 0}, "replicas"),
        ({"replicas": 9}, "replicas"),
        ({"pin": 7}, "pin"),
        ({"pin": int(Pin.SOFT)}, "soft pin"),
        ({"pin": int(Pin.SOFT), "pin_s": float("nan")}, "soft pin"),
        ({"pin": int(Pin.SOFT), "pin_s": float("inf")}, "soft pin"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(fields: dict[str, Free], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        Rig().start("k", **fields)


@pytest.mark.parametrize(
    ("key", "length", "item", "code"),
    [
        ("", 1, {}, "invalid_argument"),
        ("k" * 5_000, 1, {}, "invalid_argument"),
        ("k", -1, {}, "invalid_argument"),
        ("k", 1 << 40, {}, "object_too_large"),
        ("k", 1, {"group": "g" * 2_000}, "invalid_argument"),
        ("k", 1, {"parent": "g" * 2_000}, "invalid_argument"),
    ],
)
def test_an_item_that_makes_no_sense_is_refused(
    key: str, length: int, item: dict[str, str], code: str
) -> None:
    (refusal,) = Rig().start(key, length=length, item=item).items
    assert isinstance(refusal, Refusal)
    assert refusal.code == code


def test_a_batch_that_is_too_long_is_refused() -> None:
    rig = Rig()
    with pytest.raises(InvalidArgument, match="at most 4096"):
        rig.ask(Remove(rig.slot, rig.epoch, ["k"] * 5_000))


def test_a_grant_names_the_extents_of_different_nodes() -> None:
    rig = Rig(MIB, MIB, MIB)
    for number in range(30):
        (grant,) = rig.start(f"k{number}", replicas=2).items
        nodes = {rig.node_of(replica.incarnation).name for replica in grant.replicas}
        assert len(nodes) == 2


def test_the_wall_clock_end_of_a_soft_pin_is_in_the_grant() -> None:
    rig = Rig()
    (grant,) = rig.start("k", pin=int(Pin.SOFT), pin_s=60.0).items
    assert grant.pin_ends_s == rig.now_s + 60.0 + 1_000_000.0


def test_pressure_grows_with_what_cannot_be_evicted() -> None:
    rig = Rig(16 * MIB, lease_ttl_s=5.0)
    assert rig.start("a").pressure < 0.01
    keys = [f"k{number}" for number in range(8)]
    rig.put(*keys, length=MIB)
    rig.locate(*keys)
    rig.sleep(0.1)
    assert 0.4 < rig.start("b").pressure < 0.6
    rig.sleep(6)
    assert rig.start("c").pressure < 0.1


def test_requests_of_a_peer_that_is_gone_are_forgotten() -> None:
    rig = Rig(MIB)
    rig.start("k", peer=1)
    waiting = rig.begin("k", peer=OTHER)
    rig.perform(rig.master.peer_lost(OTHER, rig.now_s))
    rig.ask(PutAbort([1 << 40 | 1]))
    rig.sleep(6.0)
    assert waiting not in rig.replies
    assert rig.check().attempts <= 1


def test_removing_while_a_put_is_under_way_removes_what_was_there() -> None:
    """Report 016, with removals racing."""
    rig = Rig()
    rig.put("k")
    started = rig.start("k", replace=True)
    assert rig.remove("k") == [True]
    assert rig.locate("k") == [MissReason.WRITING]
    rig.commit(started)
    assert rig.exists("k") == [True]
    rig.check()


def test_a_replace_is_answered_when_the_old_version_is_unreadable() -> None:
    rig = Rig(automatic=False)
    rig.settle()
    number = rig.begin("k")
    first = rig.replies.pop(number)
    rig.send(PutCommit([CommitItem(first.items[0].version, 1)]))
    number = rig.begin("k", replace=True)
    second = rig.replies.pop(number)
    number = rig.send(PutCommit([CommitItem(second.items[0].version, 1)]))
    assert number not in rig.replies, "its node has not confirmed yet"
    rig.settle()
    assert number in rig.replies


def test_a_replace_is_answered_when_the_last_lease_has_ended() -> None:
    rig = Rig(automatic=False, keeps=True, lease_ttl_s=2.0, acknowledge_grace_s=0.5)
    rig.settle()
    first = rig.replies.pop(rig.begin("k"))
    rig.send(PutCommit([CommitItem(first.items[0].version, 1)]))
    rig.locate("k")
    second = rig.replies.pop(rig.begin("k", replace=True))
    number = rig.send(PutCommit([CommitItem(second.items[0].version, 1)]))
    rig.sleep(1.9, beat=False)
    assert number not in rig.replies, "a reader may still use the old location"
    rig.sleep(0.2, beat=False)
    assert number in rig.replies


def test_a_replace_ends_by_its_deadline() -> None:
    rig = Rig(automatic=False, lease_ttl_s=60.0)
    rig.settle()
    first = rig.replies.pop(rig.begin("k"))
    rig.send(PutCommit([CommitItem(first.items[0].version, 1)]))
    rig.locate("k")
    second = rig.replies.pop(rig.begin("k", replace=True))
    message = PutCommit([CommitItem(second.items[0].version, 1)])
    with pytest.raises(DeadlineExceeded, match="confirmations"):
        rig.ask(message, peer=CLIENT, deadline_s=1.0)
