"""Writing: attempts, what is committed, what is given up and started again."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from mooncake_client._core import reading, session, writing
from mooncake_client._core.breaker import FAILURES_MAX, PAUSE_S_MIN
from mooncake_client._core.offers import Offer, PutOptions
from mooncake_client._core.wants import Want
from mooncake_client._results import PutResult
from mooncake_store import errors
from mooncake_store.types import NodeState, Pin
from mooncake_store.wire import control
from tests.unit.client.test_reading import failing
from tests.unit.client.world import World

UNREACHABLE = errors.Unreachable("gone")


def offer(key: str, value: bytes = b"value", **hints: object) -> Offer:
    return Offer(key, [memoryview(value)] if value else [], **hints)  # type: ignore[arg-type]


def put(world: World, *offers: Offer, deadline_s: float = 60.0, **options: object) -> list[object]:
    """Write offers as ``put_many`` does."""
    world.run(
        writing.put(world.session, list(offers), PutOptions(**options)),  # type: ignore[arg-type]
        deadline_s,
    )
    return [one.outcome for one in offers]


def get(world: World, key: str) -> object:
    want = Want(key)
    world.run(reading.read(world.session, [want]))
    return want.fresh if isinstance(want.outcome, int) else want.outcome


def test_a_put_is_started_written_and_committed() -> None:
    world = World()
    (result,) = put(world, offer("k"))
    assert isinstance(result, PutResult)
    assert (result.created, result.replicas, result.pressure) == (True, 1, 0.5)
    assert result.version == world.objects["k"].version
    assert get(world, "k") == b"value"
    assert not world.attempts


@pytest.mark.parametrize("question", [control.PutStart, control.Locate])
def test_a_call_under_way_keeps_its_slot_while_another_thread_reopens(question: type) -> None:
    world = World()
    world.place("there", b"before")
    assert get(world, "there") == b"before"
    world.session.locations.clear()
    reopening = session.reopen_namespace(world.session)

    def meanwhile(message: control.PutStart | control.Locate) -> object:
        world.answers.clear()
        next(reopening)  # it has asked, and has no answer yet
        return getattr(world, f"answer_{question.__name__}")(message)

    world.answers[question] = meanwhile
    (result,) = put(world, offer("k"))
    assert isinstance(result, PutResult)
    assert get(world, "there") == b"before"
    assert get(world, "k") == b"value"
    reopening.close()


def test_the_payload_is_hashed_while_the_master_looks_for_room() -> None:
    world = World()
    one = offer("k", b"x" * 1000)
    seen: list[bool] = []

    def look(message: control.PutStart) -> object:
        seen.append(one.is_prepared)
        return world.answer_PutStart(message)

    world.answers[control.PutStart] = look
    put(world, one)
    assert seen == [True]  # the interpreter does the work before it takes the answer


def test_a_key_that_is_there_already_is_a_success_that_created_nothing() -> None:
    world = World()
    there = world.place("k", b"first")
    assert put(world, offer("k", b"second")) == [
        PutResult(created=False, version=there.version, replicas=0, pressure=0.25)
    ]
    assert get(world, "k") == b"first"
    assert not world.reads[:-1]


def test_a_replace_writes_another_version() -> None:
    world = World()
    world.place("k", b"first")
    (result,) = put(world, offer("k", b"second"), replace=True)
    assert isinstance(result, PutResult)
    assert result.created
    assert get(world, "k") == b"second"


def test_the_writers_own_location_is_forgotten_by_its_put() -> None:
    world = World()
    world.place("k", b"first")
    get(world, "k")
    put(world, offer("k", b"second"), replace=True)
    assert get(world, "k") == b"second"
    assert world.session.counters.stale_locations == 0


def test_all_replicas_are_written_and_counted() -> None:
    world = World(nodes=3)
    (result,) = put(world, offer("k"), replicas=2)
    assert isinstance(result, PutResult)
    assert result.replicas == 2
    assert world.session.counters.bytes_written == {"tcp": 10}


def test_a_replica_that_cannot_be_written_is_given_up_and_the_result_says_so() -> None:
    world = World(nodes=2)
    world.nodes[1].error = failing(UNREACHABLE)
    (result,) = put(world, offer("k"), replicas=2)
    assert isinstance(result, PutResult)
    assert (result.created, result.replicas) == (True, 1)
    assert {m.node for m in world.asked_for(control.ReportTransfers)} == {1}


def test_an_attempt_whose_node_fails_is_aborted_and_started_again_elsewhere() -> None:
    world = World(nodes=2)
    world.nodes[0].error = failing(UNREACHABLE)
    world.nodes[1].error = failing(UNREACHABLE, times=1)
    (result,) = put(world, offer("k"))
    assert isinstance(result, PutResult)
    assert result.created
    aborted = [version for m in world.asked_for(control.PutAbort) for version in m.versions]
    assert len(aborted) == len(world.asked_for(control.PutStart)) - 1 > 0
    assert not world.attempts
    starts = [i for i, m in enumerate(world.asked) if type(m) is control.PutStart]
    reports = [i for i, m in enumerate(world.asked) if type(m) is control.ReportTransfers]
    assert reports[0] < starts[1]  # the master knows before it places the next attempt


def test_no_node_that_takes_it_is_an_error_and_leaves_nothing() -> None:
    world = World(nodes=2)
    for node in world.nodes.values():
        node.error = failing(UNREACHABLE)
    (result,) = put(world, offer("k"))
    assert isinstance(result, errors.Unreachable)
    assert len(world.asked_for(control.PutStart)) == writing.TRIES_MAX
    assert not world.attempts
    assert "k" not in world.objects


def pause(world: World, *nodes: int) -> None:
    """Let nodes have failed so often that they are left alone for a while."""
    for index in nodes:
        for _ in range(FAILURES_MAX):
            world.session.breakers.failed(world.nodes[index].record.node_id, world.now_s)


def opened_world(nodes: int) -> World:
    world = World(nodes=nodes)
    put(world, offer("first"))
    world.asked.clear()
    return world


@pytest.mark.parametrize("together", [False, True])
def test_a_put_waits_for_the_only_node_that_just_failed(*, together: bool) -> None:
    world = opened_world(1)
    pause(world, 0)
    results = put(world, offer("a"), offer("b"), deadline_s=5.0, together=together)
    assert all(isinstance(result, PutResult) for result in results)
    assert sum(world.waited_s) == pytest.approx(PAUSE_S_MIN, abs=0.01)
    assert len(world.asked_for(control.PutStart)) == 2
    assert not world.attempts


def test_a_put_whose_deadline_is_before_a_node_may_be_tried_fails_at_once_and_says_so() -> None:
    world = opened_world(1)
    pause(world, 0)
    began_s = world.now_s
    (result,) = put(world, offer("k"), deadline_s=0.9 * PAUSE_S_MIN)
    assert isinstance(result, errors.Unreachable)
    assert "tried again in" in str(result)
    assert world.now_s - began_s < 0.01
    assert not world.attempts


@pytest.mark.parametrize("state", [NodeState.SUSPECT, NodeState.DEAD])
def test_a_node_that_the_master_says_is_back_is_tried_at_once(state: NodeState) -> None:
    world = opened_world(1)
    (record,) = world.session.cluster.nodes
    world.session.update_membership(control.Membership(7, (replace(record, state=int(state)),)))
    pause(world, 0)
    world.session.update_membership(control.Membership(8, (replace(record, segments=()),)))
    assert world.session.breakers.allows(record.node_id, world.now_s)
    pause(world, 0)
    world.session.update_membership(control.Membership(9, (replace(record, segments=()),)))
    assert not world.session.breakers.allows(record.node_id, world.now_s)
    moved = replace(record, port=record.port + 1)
    world.session.update_membership(control.Membership(10, (moved,)))
    assert world.session.breakers.allows(record.node_id, world.now_s)


def test_a_put_goes_to_another_node_instead_of_waiting() -> None:
    world = opened_world(2)
    pause(world, 0)
    results = [put(world, offer(f"k{n}"), deadline_s=5.0)[0] for n in range(4)]
    assert all(isinstance(result, PutResult) for result in results)
    assert sum(world.waited_s) == 0


def test_waiting_for_a_node_ends_with_attempts_that_fail() -> None:
    world = opened_world(1)
    world.nodes[0].error = failing(UNREACHABLE)
    (result,) = put(world, offer("k"), deadline_s=60.0)
    assert isinstance(result, errors.Unreachable)
    assert 0 < sum(world.waited_s) < 5.0
    assert not world.attempts


def test_a_node_that_is_well_again_takes_what_waited_for_it() -> None:
    world = opened_world(1)
    world.nodes[0].error = failing(UNREACHABLE, times=FAILURES_MAX)
    (result,) = put(world, offer("k"), deadline_s=5.0)
    assert isinstance(result, PutResult)
    assert sum(world.waited_s) == pytest.approx(PAUSE_S_MIN, abs=0.01)


def test_a_silent_node_does_not_take_the_whole_deadline() -> None:
    world = World(nodes=2)
    world.nodes[0].takes_s = 1000.0
    began_s = world.now_s
    results = put(world, offer("a"), deadline_s=20.0) + put(world, offer("b"), deadline_s=20.0)
    assert all(isinstance(result, PutResult) for result in results)
    assert world.now_s - began_s < 2.0


def test_a_deadline_during_the_write_aborts_the_attempt() -> None:
    world = World()
    world.nodes[0].takes_s = 1000.0
    (result,) = put(world, offer("k"), deadline_s=3.0)
    assert isinstance(result, errors.DeadlineExceeded)
    assert len(world.asked_for(control.PutAbort)) == 1
    assert not world.attempts
    assert world.now_s <= world.until_s


def test_an_interrupted_put_is_aborted() -> None:
    world = World()
    world.trouble.extend([None, None, None, KeyboardInterrupt()])
    with pytest.raises(KeyboardInterrupt):
        put(world, offer("k"))
    assert len(world.asked_for(control.PutAbort)) == 1
    assert not world.attempts


def test_a_commit_whose_answer_was_lost_is_recognised_as_done() -> None:
    world = World()

    def committed_but_unanswered(message: control.PutCommit) -> object:
        del world.answers[control.PutCommit]
        world.answer_PutCommit(message)
        raise errors.Unreachable("the connection broke")

    world.answers[control.PutCommit] = committed_but_unanswered
    (result,) = put(world, offer("k"))
    assert isinstance(result, PutResult)
    assert result.created
    assert result.version == world.objects["k"].version
    assert len(world.asked_for(control.PutStart)) == 1


@pytest.mark.parametrize("then", [errors.Unreachable("nobody is there"), errors.NotLeader("no")])
def test_a_put_whose_commit_was_sent_does_not_say_that_the_master_was_not_reached(
    then: errors.StoreError,
) -> None:
    world = World()

    def committed_and_gone(message: control.PutCommit) -> object:
        if "k" not in world.objects:
            world.answer_PutCommit(message)
        raise then

    world.answers[control.PutCommit] = committed_and_gone
    (result,) = put(world, offer("k"), deadline_s=3.0)
    assert "k" in world.objects
    assert isinstance(result, errors.DeadlineExceeded)
    assert str(then) in str(result)


def test_a_value_that_was_committed_and_replaced_before_the_answer_is_not_written_again() -> None:
    world = World()

    def committed_and_replaced(message: control.PutCommit) -> object:
        del world.answers[control.PutCommit]
        world.answer_PutCommit(message)
        world.objects.clear()
        raise errors.Unreachable("the connection broke")

    world.answers[control.PutCommit] = committed_and_replaced
    (result,) = put(world, offer("k"))
    assert isinstance(result, errors.AttemptExpired)
    assert len(world.asked_for(control.PutStart)) == 1


def test_an_attempt_that_expired_is_started_again() -> None:
    world = World()

    def expired(message: control.PutCommit) -> object:
        del world.answers[control.PutCommit]
        world.attempts.clear()
        return world.answer_PutCommit(message)

    world.answers[control.PutCommit] = expired
    (result,) = put(world, offer("k"))
    assert isinstance(result, PutResult)
    assert result.created
    assert len(world.asked_for(control.PutStart)) == 2


def test_a_refused_item_fails_alone() -> None:
    world = World()

    def one_is_too_large(message: control.PutStart) -> object:
        reply = world.answer_PutStart(message)
        world.attempts.pop(reply.items[1].version)
        reply.items[1] = control.Refusal("object_too_large", "larger than any segment")
        return reply

    world.answers[control.PutStart] = one_is_too_large
    good, bad = put(world, offer("good"), offer("bad"))
    assert isinstance(good, PutResult)
    assert isinstance(bad, errors.ObjectTooLarge)
    assert bad.key == "bad"


def test_impossible_requests_are_not_tried_again() -> None:
    world = World()
    (result,) = put(world, offer("k"), replicas=2)
    assert isinstance(result, errors.ReplicasImpossible)
    assert len(world.asked_for(control.PutStart)) == 1


def test_a_key_twice_in_a_batch_is_put_one_after_the_other() -> None:
    world = World()
    first, second = put(world, offer("k", b"one"), offer("k", b"two"))
    assert isinstance(first, PutResult)
    assert isinstance(second, PutResult)
    assert (first.created, second.created) == (True, False)
    assert get(world, "k") == b"one"

    world = World()
    put(world, offer("k", b"one"), offer("k", b"two"), replace=True)
    assert get(world, "k") == b"two"


def test_waves_hold_what_a_frame_and_a_grant_hold() -> None:
    keys = [offer(f"k{at}") for at in range(5000)]
    assert [len(wave) for wave in writing.waves(keys)] == [4096, 904]
    large = [Offer(f"k{at}", None, 100 << 20) for at in range(5)]
    assert [len(wave) for wave in writing.waves(large)] == [2, 2, 1]
    assert list(writing.waves([])) == []


def test_objects_put_together_are_committed_by_one_message() -> None:
    world = World(nodes=2)
    offers = [offer("a"), offer("b"), offer("c")]
    world.run(writing.put_together(world.session, offers, PutOptions(together=True)))
    (commit,) = world.asked_for(control.PutCommit)
    assert len(commit.items) == 3
    assert all(isinstance(one.outcome, PutResult) for one in offers)


def test_of_objects_put_together_all_are_given_up_where_one_cannot_be_written() -> None:
    world = World(nodes=2)
    world.nodes[1].error = failing(UNREACHABLE)
    offers = [offer("a"), offer("b")]
    world.run(writing.put_together(world.session, offers, PutOptions(together=True)))
    assert all(isinstance(one.outcome, errors.Unreachable) for one in offers)
    assert not world.asked_for(control.PutCommit)
    assert not world.attempts
    assert not world.objects


def test_too_many_objects_cannot_be_put_together() -> None:
    world = World()
    offers = [offer("a"), offer("a")]
    with pytest.raises(errors.InvalidArgument):
        world.run(writing.put_together(world.session, offers, PutOptions(together=True)))


def test_nodes_of_this_host_are_named_to_the_master() -> None:
    world = World(nodes=2)
    world.nodes[1].is_local = True
    put(world, offer("k"), pin=Pin.SOFT, pin_s=3.0, preferred=("node0",))
    (start,) = world.asked_for(control.PutStart)
    assert (start.near, start.preferred, start.pin, start.pin_s) == ((1,), ("node0",), 1, 3.0)


def test_a_master_that_restarts_between_grant_and_commit_costs_another_attempt() -> None:
    world = World()
    first = True

    def restarted(_: object) -> None:
        nonlocal first
        if first:
            world.reign = ("cluster", 2)
            world.attempts.clear()
        first = False

    world.nodes[0].error = restarted
    (result,) = put(world, offer("k"))
    assert isinstance(result, PutResult)
    assert result.created
    assert get(world, "k") == b"value"


def test_a_cleared_namespace_fails_every_item_of_a_put() -> None:
    world = World()
    put(world, offer("k"))
    world.epoch += 1
    results = put(world, offer("a"), offer("b"))
    assert all(isinstance(result, errors.StaleEpoch) for result in results)
