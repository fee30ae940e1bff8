"""What a TCP path makes of peers that stall, lie, or are somebody else."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING

import pytest

from mooncake_store.deadline import Deadline
from mooncake_store.errors import (
    ChecksumMismatch,
    DeadlineExceeded,
    PeerError,
    ProtocolError,
    ProtocolMismatch,
    StaleExtent,
    Unreachable,
    WrongPeer,
)
from mooncake_store.testing import free_port, wait_until
from mooncake_store.transport import AsyncTcpDataPath, TcpDataPath
from mooncake_store.transport.tcp import TcpConnection
from mooncake_store.wire import data

from .tasks import PLENTY_S, Reading, make, writing_of
from .test_paths import Blocking

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mooncake_store.transport import DataPath

NODE_ID = "ab" * 16
SIZE = 200_000


class Rogue:
    """A server whose behaviour after the greeting is a function of (socket, request).

    Attributes:
        connections: How many it has taken.
        asked: There was a request.
        served: How many connections have ended.
    """

    def __init__(self, behave: Callable[[socket.socket, data.Header], None]) -> None:
        self.node_id = NODE_ID
        self.protocol = 1
        self.connections = 0
        self.asked = threading.Event()
        self.served = 0
        self._behave = behave
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._stopping = False
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopping = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # Wakes the thread in accept.
        self._listener.close()

    def _accept(self) -> None:
        while not self._stopping:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError, EOFError, ProtocolError):
            self._converse(sock)
        self.served += 1

    def _converse(self, sock: socket.socket) -> None:
        header = self._receive_header(sock)
        _exactly(sock, header.payload_bytes)
        greeting = data.Greeting(self.protocol, self.node_id, 1)
        sock.sendall(data.encode_greeting(greeting, header.request_id, reply=True))
        while True:
            header = self._receive_header(sock)
            _exactly(sock, data.ENTRY_BYTES * header.count)
            self.asked.set()
            self._behave(sock, header)

    @staticmethod
    def _receive_header(sock: socket.socket) -> data.Header:
        return data.decode_header(_exactly(sock, data.HEADER_BYTES), reply=False)


def _exactly(sock: socket.socket, size: int) -> bytes:
    got = b""
    while len(got) < size:
        piece = sock.recv(size - len(got))
        if not piece:
            raise EOFError
        got += piece
    return got


@pytest.fixture(scope="module")
def loop_runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(params=["blocking", "asyncio"])
def connect(
    request: pytest.FixtureRequest, loop_runner: asyncio.Runner
) -> Iterator[Callable[[Rogue], DataPath]]:
    with contextlib.ExitStack() as stack:

        def connect(rogue: Rogue) -> DataPath:
            stack.callback(rogue.close)
            where = ("127.0.0.1", rogue.port)
            path: DataPath
            if request.param == "blocking":
                path = TcpDataPath(*where, node_id=NODE_ID, node="rogue")
            else:
                path = Blocking(
                    loop_runner, AsyncTcpDataPath(*where, node_id=NODE_ID, node="rogue")
                )
            return stack.enter_context(path)

        yield connect


PLANTED = make(SIZE)
REPLY_BYTES = 64 + SIZE
UNTOUCHED = b"\xa5" * SIZE


def good_reply(header: data.Header) -> bytes:
    statuses = [0] * header.count
    return bytes(data.encode_reply(data.Operation.READ, header.request_id, statuses, REPLY_BYTES))


def answer_well(sock: socket.socket, header: data.Header) -> None:
    sock.sendall(good_reply(header) + PLANTED.extent[:REPLY_BYTES])


class Stalling:
    """Ways to keep a reader or a writer waiting, until the test has seen it give up."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def send_nothing(self, sock: socket.socket, header: data.Header) -> None:
        del sock, header
        self.over.wait(PLENTY_S)

    def drip(self, sock: socket.socket, header: data.Header) -> None:
        for byte in good_reply(header) + PLANTED.extent:
            sock.sendall(bytes([byte]))
            time.sleep(0.02)

    def stall_in_the_body(self, sock: socket.socket, header: data.Header) -> None:
        sock.sendall(good_reply(header) + PLANTED.extent[: SIZE // 2])
        self.over.wait(PLENTY_S)
        sock.sendall(b"\x11" * SIZE)


@pytest.fixture
def stalling() -> Iterator[Stalling]:
    stalling = Stalling()
    yield stalling
    stalling.over.set()


@pytest.mark.parametrize("way", ["send_nothing", "drip", "stall_in_the_body"])
def test_a_stalling_peer_costs_no_more_than_the_deadline(
    connect: Callable[[Rogue], DataPath], stalling: Stalling, way: str
) -> None:
    """It goes on to stall until the call has ended: nothing but the deadline can end it."""
    rogue = Rogue(getattr(stalling, way))
    path = connect(rogue)
    reading = Reading(PLANTED, 0)
    began = time.monotonic()
    path.read([reading.task], Deadline(0.4))
    assert not stalling.over.is_set()
    assert time.monotonic() - began > 0.3
    assert isinstance(reading.task.error, DeadlineExceeded)
    seen = [bytes(buffer) for buffer in reading.buffers]
    stalling.over.set()
    wait_until(lambda: rogue.served == rogue.connections, PLENTY_S)
    # Late bytes must never reach the caller's memory.
    assert [bytes(buffer) for buffer in reading.buffers] == seen


def test_a_writer_whose_peer_takes_nothing_ends_by_its_deadline(
    connect: Callable[[Rogue], DataPath], stalling: Stalling
) -> None:
    path = connect(Rogue(stalling.send_nothing))
    planted = make(32 << 20)
    task = writing_of(planted, 0)
    path.write([task], Deadline(0.4))
    assert isinstance(task.error, DeadlineExceeded)


def test_a_peer_that_closes_in_the_body_is_unreachable(
    connect: Callable[[Rogue], DataPath],
) -> None:
    def behave(sock: socket.socket, header: data.Header) -> None:
        sock.sendall(good_reply(header) + PLANTED.extent[:1000])
        sock.shutdown(socket.SHUT_RDWR)

    path = connect(Rogue(behave))
    reading = Reading(PLANTED, 0)
    path.read([reading.task], Deadline(PLENTY_S))
    assert isinstance(reading.task.error, Unreachable)


def test_a_kept_connection_that_died_is_replaced_without_an_error(
    connect: Callable[[Rogue], DataPath],
) -> None:
    def behave(sock: socket.socket, header: data.Header) -> None:
        sock.sendall(good_reply(header) + PLANTED.extent[:REPLY_BYTES])
        sock.shutdown(socket.SHUT_RDWR)

    rogue = Rogue(behave)
    path = connect(rogue)
    for number in range(1, 4):
        reading = Reading(PLANTED, 0)
        path.read([reading.task], Deadline(PLENTY_S))
        reading.check()
        assert rogue.connections == number


def test_nobody_there_is_unreachable(connect: Callable[[Rogue], DataPath]) -> None:
    rogue = Rogue(answer_well)
    rogue.close()
    rogue.port = free_port()  # Not its own, which is anybody's now.
    path = connect(rogue)
    reading = Reading(PLANTED, 0)
    path.read([reading.task], Deadline(PLENTY_S))
    assert isinstance(reading.task.error, Unreachable)
    assert "rogue" in str(reading.task.error)


def test_another_process_on_the_port_is_the_wrong_peer(
    connect: Callable[[Rogue], DataPath],
) -> None:
    rogue = Rogue(answer_well)
    rogue.node_id = "cd" * 16
    path = connect(rogue)
    reading = Reading(PLANTED, 0)
    path.read([reading.task], Deadline(PLENTY_S))
    assert isinstance(reading.task.error, WrongPeer)
    assert reading.got == UNTOUCHED


def test_another_protocol_version_is_told_which_side_to_upgrade(
    connect: Callable[[Rogue], DataPath],
) -> None:
    rogue = Rogue(answer_well)
    rogue.protocol = 2
    path = connect(rogue)
    reading = Reading(PLANTED, 0)
    path.read([reading.task], Deadline(PLENTY_S))
    assert isinstance(reading.task.error, ProtocolMismatch)
    assert "upgrade this side" in str(reading.task.error)


def _reply(header: data.Header, **changes: int) -> bytes:
    fields = {
        "magic": data.MAGIC,
        "operation": data.Operation.READ,
        "flags": data.REPLY,
        "count": header.count,
        "request_id": header.request_id,
        "deadline_ms": 0,
        "payload_bytes": REPLY_BYTES,
    }
    head = data.HEADER.pack(*(fields | changes).values())
    return head + struct.pack("<I", 0) * header.count + PLANTED.extent[:REPLY_BYTES]


@pytest.mark.parametrize(
    "changes",
    [
        {"magic": 0x1234},
        {"operation": 3},
        {"flags": 0},
        {"count": 2},
        {"count": 4000},
        {"request_id": 77},
        {"payload_bytes": REPLY_BYTES + 1},
        {"payload_bytes": 1 << 60},
        {"payload_bytes": 0},
    ],
)
def test_a_reply_to_something_else_ends_the_connection(
    connect: Callable[[Rogue], DataPath], changes: dict[str, int]
) -> None:
    rogue = Rogue(lambda sock, header: sock.sendall(_reply(header, **changes)))
    path = connect(rogue)
    for number in (1, 2):
        reading = Reading(PLANTED, 0)
        path.read([reading.task], Deadline(PLENTY_S))
        assert isinstance(reading.task.error, ProtocolError)
        assert rogue.connections == number


@pytest.mark.parametrize("status", [1, 2, 3, 5, 6, 7, 99, 1 << 31])
def test_a_refusal_is_its_error_and_keeps_the_connection(
    connect: Callable[[Rogue], DataPath], status: int
) -> None:
    def behave(sock: socket.socket, header: data.Header) -> None:
        statuses = [status] * header.count
        sock.sendall(data.encode_reply(data.Operation.READ, header.request_id, statuses))

    rogue = Rogue(behave)
    path = connect(rogue)
    for _ in range(2):
        reading = Reading(PLANTED, 0)
        path.read([reading.task], Deadline(PLENTY_S))
        assert type(reading.task.error) is type(data.error_of(status, node="rogue"))
    assert rogue.connections == 1


def test_an_extent_that_is_reused_while_it_is_sent_is_stale_not_damaged(
    connect: Callable[[Rogue], DataPath],
) -> None:
    other = make(SIZE, key="another key")
    damage = bytearray(PLANTED.extent[:REPLY_BYTES])
    damage[64 + SIZE // 2] ^= 1

    for later, error in ((other.header, StaleExtent), (PLANTED.header, ChecksumMismatch)):

        def behave(sock: socket.socket, header: data.Header, later: bytes = later) -> None:
            if header.count == 1:
                sock.sendall(good_reply(header) + damage)
            else:
                answer = data.encode_reply(data.Operation.READ, header.request_id, [0, 0], 128)
                sock.sendall(bytes(answer) + 2 * later)

        path = connect(Rogue(behave))
        reading = Reading(PLANTED, 0)
        path.read([reading.task], Deadline(PLENTY_S))
        assert type(reading.task.error) is error


def test_closing_a_path_ends_calls_under_way(
    connect: Callable[[Rogue], DataPath], stalling: Stalling
) -> None:
    rogue = Rogue(stalling.send_nothing)
    path = connect(rogue)
    if isinstance(path, Blocking):
        pytest.skip("one event loop runs one call after the other here")
    reading = Reading(PLANTED, 0)
    thread = threading.Thread(target=path.read, args=([reading.task], Deadline(PLENTY_S)))
    thread.start()
    assert rogue.asked.wait(PLENTY_S)
    path.close()
    thread.join(PLENTY_S)
    assert not thread.is_alive()
    assert isinstance(reading.task.error, PeerError)
    assert not isinstance(reading.task.error, DeadlineExceeded)


def test_more_callers_than_connections_wait_for_their_turn() -> None:
    def behave(sock: socket.socket, header: data.Header) -> None:
        time.sleep(0.05)
        sock.sendall(good_reply(header) + PLANTED.extent[:REPLY_BYTES])

    rogue = Rogue(behave)
    path = TcpDataPath("127.0.0.1", rogue.port, node_id=NODE_ID, node="rogue", connections_max=3)
    readings = [Reading(PLANTED, 0) for _ in range(12)]
    threads = [
        threading.Thread(target=path.read, args=([reading.task], Deadline(PLENTY_S)))
        for reading in readings
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for reading in readings:
        reading.check()
    assert rogue.connections <= 3
    path.close()
    rogue.close()


def test_a_connection_that_failed_is_closed_before_another_takes_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bound holds at each moment, however long it takes to close one."""

    def behave(sock: socket.socket, header: data.Header) -> None:
        if rogue.connections == 1:
            asked.set()
            assert waited.wait(PLENTY_S)
            raise EOFError  # it closes, and the first read fails
        opened_meanwhile.set()
        sock.sendall(good_reply(header) + PLANTED.extent[:REPLY_BYTES])

    def close_slowly(connection: TcpConnection) -> None:
        opened_meanwhile.wait(0.5)
        closed.append(opened_meanwhile.is_set())
        close(connection)

    asked, waited, opened_meanwhile = threading.Event(), threading.Event(), threading.Event()
    closed: list[bool] = []
    close = TcpConnection.close
    rogue = Rogue(behave)
    path = TcpDataPath("127.0.0.1", rogue.port, node_id=NODE_ID, node="rogue", connections_max=1)
    first, second = Reading(PLANTED, 0), Reading(PLANTED, 0)
    threads = [
        threading.Thread(target=path.read, args=([reading.task], Deadline(PLENTY_S)))
        for reading in (first, second)
    ]
    threads[0].start()
    assert asked.wait(PLENTY_S)
    monkeypatch.setattr(TcpConnection, "close", close_slowly)
    threads[1].start()
    wait_until(lambda: len(path._places.waiting) == 1, PLENTY_S)
    waited.set()
    for thread in threads:
        thread.join(PLENTY_S)
    assert closed
    assert not any(closed)
    assert isinstance(first.task.error, Unreachable)
    second.check()
    monkeypatch.undo()
    path.close()
    rogue.close()


def test_a_connection_that_cannot_be_closed_keeps_its_place_from_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def behave(sock: socket.socket, header: data.Header) -> None:
        if rogue.connections == 1:
            raise EOFError  # it closes, and the first read fails
        sock.sendall(good_reply(header) + PLANTED.extent[:REPLY_BYTES])

    def fail_to_close(connection: TcpConnection) -> None:
        monkeypatch.undo()
        connection.close()
        raise ZeroDivisionError

    rogue = Rogue(behave)
    path = TcpDataPath("127.0.0.1", rogue.port, node_id=NODE_ID, node="rogue", connections_max=1)
    monkeypatch.setattr(TcpConnection, "close", fail_to_close)
    with pytest.raises(ZeroDivisionError):
        path.read([Reading(PLANTED, 0).task], Deadline(PLENTY_S))
    reading = Reading(PLANTED, 0)
    path.read([reading.task], Deadline(PLENTY_S))
    reading.check()
    path.close()
    rogue.close()


async def test_a_cancelled_read_leaves_the_targets_alone(stalling: Stalling) -> None:
    rogue = Rogue(stalling.stall_in_the_body)
    path = AsyncTcpDataPath("127.0.0.1", rogue.port, node_id=NODE_ID, node="rogue")
    reading = Reading(PLANTED, 0)
    task = asyncio.ensure_future(path.read([reading.task], Deadline(PLENTY_S)))
    await asyncio.to_thread(wait_until, lambda: reading.got != UNTOUCHED, PLENTY_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    seen = bytes(reading.buffers[0])
    stalling.over.set()
    await asyncio.to_thread(wait_until, lambda: rogue.served == 1, PLENTY_S)
    assert bytes(reading.buffers[0]) == seen
    await path.aclose()
    rogue.close()


async def test_one_long_read_does_not_stop_the_event_loop() -> None:
    planted = make(32 << 20)

    def behave(sock: socket.socket, header: data.Header) -> None:
        size = 64 + len(planted.payload) + len(planted.table)
        reply = data.encode_reply(data.Operation.READ, header.request_id, [0], size)
        sock.sendall(bytes(reply) + planted.extent[:size])

    rogue = Rogue(behave)
    path = AsyncTcpDataPath("127.0.0.1", rogue.port, node_id=NODE_ID, node="rogue")
    reading = Reading(planted, 0)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counter = asyncio.ensure_future(count())
    await path.read([reading.task], Deadline(PLENTY_S))
    counter.cancel()
    reading.check()
    assert turns > 16
    await path.aclose()
    rogue.close()
