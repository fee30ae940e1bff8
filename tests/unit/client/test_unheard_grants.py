"""A grant that comes after its caller has given up is given back at once."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from time import monotonic
from typing import TYPE_CHECKING

import pytest

from mooncake_client import _line
from mooncake_client._async_connections import AsyncLine
from mooncake_client._line import CallDeadline, Line
from mooncake_store import limits
from mooncake_store.errors import DeadlineExceeded
from mooncake_store.transport.spinning import Spinner
from mooncake_store.wire import control
from mooncake_store.wire.frames import REPLY, FrameDecoder, encode_frame

if TYPE_CHECKING:
    from mooncake_store.wire.control import Message
    from mooncake_store.wire.frames import Frame

START = control.PutStart(0, 0, [control.PutItem("a", 1), control.PutItem("b", 1)])
STARTED = control.PutStarted([control.PutGrant(77, ()), control.PutExists(5)], 0.0)
ABORT = control.PutAbort([77])


def reply_to(request: Frame, reply: Message) -> bytes:
    return bytes(encode_frame(request.kind, reply, request_id=request.request_id, flags=REPLY))


def requests(data: bytes) -> list[Frame]:
    decoder = FrameDecoder()
    decoder.body_bytes_max = limits.FRAME_BYTES_MAX
    decoder.buffer()[: len(data)] = data
    decoder.received(len(data))
    return list(decoder)


def is_abort(frame: Frame) -> bool:
    is_one = frame.kind == control.KINDS[control.PutAbort]
    return is_one and control.REQUEST_DECODERS[frame.kind].decode(frame.body) == ABORT


def test_a_blocking_line_gives_back_what_was_granted_too_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_line, "OWED_S_MAX", 100.0)
    ours, theirs = socket.socketpair()
    deadline = CallDeadline(100, is_explicit=True)

    def run_out_of_time() -> None:
        deadline.at_s = monotonic()

    def answer() -> None:
        (second,) = requests(theirs.recv(1 << 16))
        theirs.sendall(reply_to(second, STARTED))

    with contextlib.closing(theirs):
        line = Line(ours, Spinner())
        with pytest.raises(DeadlineExceeded):
            line.ask(START, deadline, run_out_of_time)
        assert line.outlives_deadline()
        (first,) = requests(theirs.recv(1 << 16))
        theirs.sendall(reply_to(first, STARTED))
        assert line.ask(START, CallDeadline(100, is_explicit=True), answer) == STARTED
        (told,) = requests(theirs.recv(1 << 16))
        assert is_abort(told)
        line.close()


class Wire(asyncio.Transport):
    """Takes what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.was_written = asyncio.Event()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)
        self.was_written.set()

    def abort(self) -> None:
        """Nothing."""


def receive(line: AsyncLine, data: bytes) -> None:
    line.get_buffer(-1)[: len(data)] = data
    line.buffer_updated(len(data))


@pytest.mark.parametrize("is_answered", [False, True], ids=["before", "with the answer"])
async def test_a_cancelled_put_gives_back_what_it_is_granted(*, is_answered: bool) -> None:
    wire, line = Wire(), AsyncLine()
    line.connection_made(wire)
    asking = asyncio.create_task(line.ask(START, CallDeadline(100, is_explicit=True)))
    await asyncio.wait_for(wire.was_written.wait(), 20)
    (request,) = requests(wire.written)
    wire.written = b""
    if is_answered:
        receive(line, reply_to(request, STARTED))
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    if not is_answered:
        receive(line, reply_to(request, STARTED))
    (told,) = requests(wire.written)
    assert is_abort(told)
    line.close()
