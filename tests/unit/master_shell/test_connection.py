"""What a connection does with requests, answers, and peers that hold it up."""

from __future__ import annotations

import pytest

from mooncake_master import connection as limits_of
from mooncake_master import server as server_limits
from mooncake_master.core import Close, Fail, Instruct, Reply
from mooncake_master.server import ServerLimits
from mooncake_store.errors import (
    DeadlineExceeded,
    InternalError,
    NotSupported,
    Overloaded,
    ProtocolError,
    Unreachable,
)
from mooncake_store.limits import MIB
from mooncake_store.wire import control, frames
from tests.unit.master_shell.harness import Harness, turns

BIG = control.Exists(0, 1, ["k" * 64] * 1000)
SMALL = control.ListNamespaces()


def reply_at_once(peer: int, request_id: int, message: control.Message) -> list[object]:
    if isinstance(message, control.Exists):
        return [Reply(peer, request_id, control.ExistsReply(bytes(len(message.keys))))]
    return [Reply(peer, request_id, control.NamespaceList(()))]


# --- requests and replies -------------------------------------------------------------------------


async def test_a_reply_is_written_in_the_turn_that_received_the_request() -> None:
    harness = Harness()
    harness.greet()
    harness.core.answer = reply_at_once
    harness.ask(SMALL, 7)
    (frame,) = harness.frames()
    assert (frame.kind, frame.flags, frame.request_id) == (11, frames.REPLY, 7)
    assert harness.connection.owes == 0


async def test_a_reply_may_come_later_and_out_of_order() -> None:
    harness = Harness()
    harness.greet()
    harness.ask(SMALL, 1)
    harness.ask(BIG, 2)
    await turns()
    assert harness.connection.owes == 2
    number = harness.connection.number
    harness.switchboard._perform([Reply(number, 2, control.ExistsReply(b"\1"))])
    harness.switchboard._perform([Fail(number, 1, Overloaded("no"))])
    first, second = harness.frames()
    assert (first.kind, first.request_id, first.flags) == (14, 2, frames.REPLY)
    assert (second.kind, second.request_id) == (11, 1)
    assert isinstance(frames.decode_error(second.body), Overloaded)
    assert harness.shared.meters.errors[11, "overloaded"] == 1


async def test_an_answer_to_nobody_is_dropped() -> None:
    harness = Harness()
    harness.greet()
    number = harness.connection.number
    harness.switchboard._perform([Reply(number, 5, control.Done()), Reply(99, 5, control.Done())])
    harness.switchboard._perform([Fail(number, 6, Overloaded("no"))])
    assert harness.frames() == []


async def test_a_bug_in_the_core_costs_the_request_that_met_it() -> None:
    harness = Harness()
    harness.greet()

    def fail(*_: object) -> list[object]:
        raise RuntimeError("a bug")

    harness.core.answer = fail
    harness.ask(SMALL, 1)
    (error,) = harness.errors()
    assert isinstance(error, InternalError)
    assert "a bug" in str(error)
    assert harness.switchboard.faults == 1
    harness.core.answer = reply_at_once
    harness.ask(SMALL, 2)
    assert len(harness.frames()) == 1


async def test_a_reply_over_the_frame_limit_becomes_an_error() -> None:
    harness = Harness()
    harness.greet()
    huge = control.ExistsReply(bytes(9 * MIB))
    harness.core.answer = lambda peer, request_id, _: [Reply(peer, request_id, huge)]
    harness.ask(SMALL, 1)
    (error,) = harness.errors()
    assert isinstance(error, ProtocolError)


async def test_requests_under_way_are_bounded() -> None:
    harness = Harness()
    harness.greet()
    for number in range(limits_of.PENDING_MAX):
        harness.ask(SMALL, number)
        await turns(1)
    assert harness.frames() == []
    harness.ask(SMALL, 2**31)
    await turns()
    (error,) = harness.errors()
    assert isinstance(error, Overloaded)
    assert not harness.transport.is_closed


async def test_a_body_too_large_for_its_kind_is_refused_before_it_is_read() -> None:
    harness = Harness()
    harness.greet()
    size = limits_of.SMALL_BODY_BYTES_MAX + 1
    harness.receive(frames.HEADER.pack(size, 10, 0, 3, 0) + bytes(size))
    await turns()
    (error,) = harness.errors()
    assert "takes at most" in str(error)
    assert harness.transport.is_closed
    assert not harness.core.seen


# --- fairness -------------------------------------------------------------------------------------


async def test_big_frames_are_handled_one_a_turn_and_others_in_between() -> None:
    harness = Harness()
    harness.greet()
    harness.core.answer = reply_at_once
    big = frames.encode_frame(14, BIG, request_id=1)
    two = big + frames.encode_frame(14, BIG, request_id=2)
    harness.receive(two)
    assert not harness.takes_requests()
    assert harness.core.seen == []
    await turns(1)
    assert len(harness.core.seen) == 1
    other, transport = harness.connect()
    hello = frames.encode_frame(1, control.Hello(1, "client", "other", "x"), request_id=1)
    other.get_buffer(-1)[: len(hello)] = hello
    other.buffer_updated(len(hello))
    assert transport.replies
    await turns(2)
    assert len(harness.core.seen) == 2
    assert harness.takes_requests()
    assert [frame.request_id for frame in harness.frames()] == [1, 2]


async def test_a_flood_of_small_frames_gives_others_their_turn() -> None:
    harness = Harness()
    harness.greet()
    harness.core.answer = reply_at_once
    many = 3 * limits_of.FRAMES_AT_ONCE
    flood = b"".join(frames.encode_frame(11, SMALL, request_id=i) for i in range(many))
    harness.receive(flood)
    assert len(harness.core.seen) == limits_of.FRAMES_AT_ONCE
    await turns(1)
    assert len(harness.core.seen) < many
    await turns()
    assert [frame.request_id for frame in harness.frames()] == list(range(many))
    assert harness.takes_requests()


async def test_the_shared_buffer_is_left_to_others_while_a_frame_waits() -> None:
    harness = Harness()
    harness.greet()
    harness.core.answer = reply_at_once
    harness.receive(frames.encode_frame(14, BIG, request_id=1) + bytes(5))
    harness.shared.buffer[:] = bytes(len(harness.shared.buffer))  # somebody else's bytes
    await turns()
    assert harness.core.seen == [BIG]
    assert harness.connection.held_bytes == 5


# --- peers that hold us up ------------------------------------------------------------------------


async def test_a_peer_that_does_not_read_is_given_no_more_replies() -> None:
    harness = Harness()
    harness.greet()
    harness.core.answer = reply_at_once
    harness.connection.pause_writing()
    assert not harness.takes_requests()
    harness.receive(frames.encode_frame(11, SMALL, request_id=1))
    await turns()
    assert harness.core.seen == []
    harness.connection.resume_writing()
    await turns()
    assert harness.core.seen == [SMALL]
    assert harness.takes_requests()


async def test_a_peer_that_leaves_too_much_unread_is_cut_off() -> None:
    harness = Harness(ServerLimits(write_buffer_bytes_max=1 * MIB))
    harness.greet()
    harness.ask(SMALL, 1)
    harness.ask(SMALL, 2)
    harness.connection.pause_writing()
    harness.transport.unread_bytes = 1 * MIB
    number = harness.connection.number
    harness.switchboard._perform([Reply(number, 1, control.NamespaceList(()))])
    assert not harness.transport.was_aborted()
    harness.transport.unread_bytes += 1
    harness.switchboard._perform([Reply(number, 2, control.NamespaceList(()))])
    assert harness.transport.was_aborted()
    assert harness.shared.meters.connections_cut["slow reader"] == 1


async def test_overdue_connections_are_ended_and_counted() -> None:
    harness = Harness()
    stranger = harness.connect()[1]
    harness.greet()
    slow, slow_transport = harness.connection, harness.transport
    harness.receive(frames.HEADER.pack(100, 14, 0, 1, 0))
    harness.connection, harness.transport = harness.connect()
    harness.greet()
    stalled_transport = harness.transport
    harness.connection.pause_writing()
    harness.connection, harness.transport = harness.connect()
    harness.greet()
    harness.connection.close("a test")
    closing_transport = harness.transport
    idle_transport = stalled_transport
    harness.connection, harness.transport = harness.connect()
    harness.greet()
    idle_transport = harness.transport
    harness.now_s += harness.shared.handshake_timeout_s + 0.1
    harness.server._sweep(harness.now_s)
    assert stranger.was_aborted()
    assert closing_transport.was_aborted()
    assert not slow_transport.was_aborted()
    harness.now_s = slow.partial_since_s + server_limits.FRAME_S_MAX + 0.1
    harness.server._sweep(harness.now_s)
    assert slow_transport.was_aborted()
    assert stalled_transport.was_aborted()
    assert not idle_transport.is_closed
    cut = harness.shared.meters.connections_cut
    assert cut["no handshake"] == cut["slow frame"] == cut["slow reader"] == 1


async def test_a_busy_pipeline_is_not_taken_for_a_slow_frame() -> None:
    harness = Harness()
    harness.greet()
    harness.core.answer = reply_at_once
    frame = frames.encode_frame(11, SMALL, request_id=1)
    harness.receive(frame[:5])
    for _ in range(10):
        harness.now_s += server_limits.FRAME_S_MAX / 2
        harness.receive(frame[5:] + frame[:5])  # always in the middle of one
        harness.server._sweep(harness.now_s)
    assert not harness.transport.is_closed


async def test_those_who_hold_most_memory_are_cut_off_first() -> None:
    harness = Harness()
    held = []
    for size in (1, 2, 3):
        harness.connection, harness.transport = harness.connect()
        harness.greet()
        harness.connection.pause_writing()
        harness.transport.unread_bytes = size * server_limits.HELD_BYTES_MAX // 4
        held.append(harness.transport)
    harness.server._sweep(harness.now_s)
    assert [transport.was_aborted() for transport in held] == [False, False, True]


async def test_a_partial_frame_grows_with_what_came() -> None:
    harness = Harness()
    harness.greet()
    harness.receive(frames.HEADER.pack(8 * MIB, 14, 0, 1, 0) + bytes(100))
    assert harness.connection.held_bytes == 116
    assert len(harness.connection.get_buffer(-1)) < 64_000


# --- nodes ----------------------------------------------------------------------------------------


def instructed() -> tuple[Harness, frames.Frame]:
    harness = Harness(ServerLimits(instruct_timeout_s=2.0))
    harness.greet("node")
    number = harness.connection.number
    harness.switchboard._perform([Instruct(number, 42, control.SetEpochs(1, {3: 4}))])
    (frame,) = harness.frames()
    return harness, frame


async def test_a_node_is_asked_and_its_answer_reaches_the_core() -> None:
    harness, frame = instructed()
    assert (frame.kind, frame.flags, frame.deadline_ms) == (60, 0, 2000)
    assert control.REQUEST_DECODERS[60].decode(frame.body) == control.SetEpochs(1, {3: 4})
    assert harness.connection.asks
    answer = frames.encode_frame(
        60, control.Done(), request_id=frame.request_id, flags=frames.REPLY
    )
    harness.receive(answer + answer)  # the second one is nobody's
    assert harness.core.answers == [(42, control.Done())]
    assert not harness.connection.asks


async def test_a_node_has_time_for_a_copy_by_its_size() -> None:
    harness = Harness(ServerLimits(instruct_timeout_s=2.0))
    harness.greet("node")
    item = control.CopyItem("", "", 0, 1, 0, 1, 1, 64 * MIB, 2, 0, 3)
    order = control.CopyExtents(1, [item])
    harness.switchboard._perform([Instruct(harness.connection.number, 42, order)])
    (frame,) = harness.frames()
    assert frame.deadline_ms == 10_000
    harness.connection.expire(harness.now_s + 9.0)
    assert not harness.core.answers
    harness.connection.expire(harness.now_s + 10.0)
    ((_, answer),) = harness.core.answers
    assert "no answer in 10 s" in str(answer)


async def test_a_node_s_error_reaches_the_core() -> None:
    harness, frame = instructed()
    harness.receive(frames.encode_error(Overloaded("busy"), 60, frame.request_id))
    ((token, answer),) = harness.core.answers
    assert token == 42
    assert isinstance(answer, Overloaded)
    assert harness.shared.meters.instruct_failures[60] == 1


async def test_a_node_that_does_not_answer_in_time_has_failed() -> None:
    harness, frame = instructed()
    harness.now_s += 1.9
    harness.connection.expire(harness.now_s)
    assert harness.core.answers == []
    harness.now_s += 0.2
    harness.connection.expire(harness.now_s)
    ((token, answer),) = harness.core.answers
    assert token == 42
    assert isinstance(answer, DeadlineExceeded)
    answer_frame = frames.encode_frame(
        60, control.Done(), request_id=frame.request_id, flags=frames.REPLY
    )
    harness.receive(answer_frame)  # too late
    assert len(harness.core.answers) == 1


async def test_a_node_that_goes_has_failed_what_it_was_asked() -> None:
    harness, _ = instructed()
    number = harness.connection.number
    harness.connection.connection_lost(None)
    ((token, answer),) = harness.core.answers
    assert token == 42
    assert isinstance(answer, Unreachable)
    assert harness.core.lost == [number]
    assert not harness.shared.connections


async def test_an_answer_that_cannot_be_read_fails_and_ends_the_connection() -> None:
    harness, frame = instructed()
    harness.receive(frames.HEADER.pack(1, 60, frames.REPLY, frame.request_id, 0) + b"\xc1")
    ((_, answer),) = harness.core.answers
    assert isinstance(answer, ProtocolError)
    assert harness.transport.is_closed


@pytest.mark.parametrize("flags", [frames.REPLY, frames.ERROR, frames.REPLY | frames.ERROR, 128])
async def test_a_client_has_nothing_to_answer(flags: int) -> None:
    harness = Harness()
    harness.greet()
    harness.receive(frames.HEADER.pack(1, 60, flags, 1, 0) + b"\x90")
    assert harness.transport.is_closed
    assert harness.core.answers == []


async def test_the_core_can_end_a_connection() -> None:
    harness = Harness()
    harness.greet("node")
    harness.switchboard._perform([Close(harness.connection.number)])
    assert harness.transport.is_closed
    harness.receive(frames.encode_frame(11, SMALL, request_id=1))
    assert harness.core.seen == []


async def test_a_stranger_is_nobody_to_the_core() -> None:
    harness = Harness()
    harness.ask(SMALL, 1)
    assert harness.transport.is_closed
    assert not harness.core.seen
    harness.connection.connection_lost(None)
    assert harness.core.lost == []


async def test_an_unknown_kind_is_not_a_label_of_its_own() -> None:
    harness = Harness()
    harness.greet()
    for kind in (200, 300, 400):
        harness.receive(frames.HEADER.pack(0, kind, 0, kind, 0))
    assert all(isinstance(error, NotSupported) for error in harness.errors())
    assert harness.shared.meters.errors == {(0, "not_supported"): 3}
