"""The TCP data path for asyncio: the same exchanges on non-blocking sockets, no thread, no copy.

A receive is tried at once and waits for the loop only when nothing is there, so payload goes from
the kernel straight into the caller's buffers. After an error, a time-out or a cancellation the
connection is closed at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections import deque
from typing import TYPE_CHECKING, Final, TypeVar, cast

from mooncake_store.data_path import AsyncDataPath, ReadTask, WriteTask
from mooncake_store.errors import (
    ChecksumMismatch,
    Closed,
    DeadlineExceeded,
    StoreError,
    Unreachable,
)
from mooncake_store.limits import MIB
from mooncake_store.transport.effects import Receive, greeting_effects
from mooncake_store.transport.exchange import (
    SCRATCH_BYTES,
    probe_of,
    read_exchange,
    settle_doubts,
    write_exchange,
)
from mooncake_store.transport.tasks import advance, check_read, check_write, checked
from mooncake_store.transport.tcp import CONNECTIONS_MAX, PARTS_MAX, not_connected

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mooncake_store.deadline import Deadline
    from mooncake_store.transport.effects import Effects, Exchange, StreamExchange

TURN_BYTES: Final = 1 * MIB
"""Bytes moved before other tasks of the loop have their turn: 0.2 to 0.4 ms."""

T = TypeVar("T", ReadTask, WriteTask)


class AsyncTcpConnection:
    """One connection: performs the effects of exchanges, one exchange at a time."""

    __slots__ = ("_loop", "_moved", "_socket", "ids", "scratch")

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._loop = asyncio.get_running_loop()
        self._moved = 0
        self.ids = itertools.cycle(range(1, 1 << 32))
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))

    async def hold(self, exchange: Exchange, node: str) -> None:
        """Hold a conversation; raises as ``perform``."""
        stream = cast("StreamExchange", exchange)  # The path's own: it makes no other.
        await self.perform(stream.effects(self.ids, self.scratch, node))

    async def perform(self, effects: Effects) -> None:
        """Do what is asked for until its end; the caller bounds the time.

        Raises:
            Unreachable: The connection broke.
            ProtocolError: The peer sent something else.
        """
        moved: int | None = None
        try:
            while True:
                effect = effects.send(moved)  # type: ignore[arg-type]  # None starts a generator
                if isinstance(effect, Receive):
                    moved = await self._receive(effect.buffers, effect.at_least)
                else:
                    await self._send(effect.buffers)
                    moved = 0
        except StopIteration:
            return
        except OSError as error:
            raise Unreachable(f"the connection broke: {error}") from error

    def is_idle(self) -> bool:
        """Return whether the connection is open and nothing unasked has come."""
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def abort(self) -> None:
        """End the exchange under way, whose task then closes the connection."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close; only for whom the connection belongs to at the moment."""
        self._socket.close()

    async def _receive(self, buffers: list[memoryview], at_least: int) -> int:
        got = 0
        while got < at_least:
            try:
                if len(buffers) == 1:
                    count = self._socket.recv_into(buffers[0])
                else:
                    count = self._socket.recvmsg_into(buffers[:PARTS_MAX])[0]
            except BlockingIOError:
                await self._ready(self._loop.add_reader, self._loop.remove_reader)
                continue
            if not count:
                raise Unreachable("the peer closed the connection")
            got += count
            if got < at_least:
                buffers = advance(buffers, count)
            await self._let_others(count)
        return got

    async def _send(self, buffers: list[memoryview]) -> None:
        while buffers:
            try:
                count = self._socket.sendmsg(buffers[:PARTS_MAX], (), socket.MSG_NOSIGNAL)
            except BlockingIOError:
                await self._ready(self._loop.add_writer, self._loop.remove_writer)
                continue
            buffers = advance(buffers, count)
            await self._let_others(count)

    async def _ready(
        self, add: Callable[..., object], remove: Callable[[socket.socket], object]
    ) -> None:
        """Wait until the loop says that the socket can go on."""
        self._moved = 0
        ready = self._loop.create_future()
        add(self._socket, _set, ready)
        try:
            await ready
        finally:
            remove(self._socket)

    async def _let_others(self, count: int) -> None:
        self._moved += count
        if self._moved >= TURN_BYTES:
            self._moved = 0
            await asyncio.sleep(0)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class AsyncTcpDataPath(AsyncDataPath):
    """A pool of at most ``connections_max`` connections to one node; tasks over that wait.

    Belongs to the event loop that uses it first.
    """

    name = "tcp"
    _reads: Callable[[Sequence[ReadTask], Deadline], Exchange] = staticmethod(read_exchange)
    _writes: Callable[[Sequence[WriteTask], Deadline], Exchange] = staticmethod(write_exchange)

    def __init__(
        self,
        host: str,
        port: int,
        *,
        node_id: str,
        node: str,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        """As ``TcpDataPath``: the first call connects."""
        self._address = (host, port)
        self._node_id = node_id
        self._node = node
        self._idle: deque[AsyncTcpConnection] = deque()
        self._busy: set[AsyncTcpConnection] = set()
        self._room = asyncio.Semaphore(connections_max)
        self._closed = False

    async def read(self, tasks: Sequence[ReadTask], deadline: Deadline) -> None:
        """As ``DataPath.read``."""
        good = checked(check_read, tasks)
        await self._run(good, deadline, self._reads)
        doubtful = [task for task in good if isinstance(task.error, ChecksumMismatch)]
        if doubtful:
            probes = [probe_of(task) for task in doubtful]
            await self._run(probes, deadline, self._reads)
            settle_doubts(doubtful, probes)

    async def write(self, tasks: Sequence[WriteTask], deadline: Deadline) -> None:
        """As ``DataPath.write``."""
        await self._run(checked(check_write, tasks), deadline, self._writes)

    async def aclose(self) -> None:
        """As ``DataPath.close``."""
        self._closed = True
        for connection in self._idle:
            connection.close()
        for connection in self._busy:
            connection.abort()
        self._idle.clear()

    async def _run(
        self,
        tasks: Sequence[T],
        deadline: Deadline,
        make: Callable[[Sequence[T], Deadline], Exchange],
    ) -> None:
        """Perform checked tasks; what keeps them from being performed becomes their error."""
        progress = [0]
        try:
            async with asyncio.timeout(deadline.check("moving bytes", node=self._node)):
                await self._room.acquire()
                try:
                    await self._try(tasks, make, progress, deadline)
                finally:
                    self._room.release()
        except StoreError as error:
            problem = error
        except TimeoutError:
            problem = DeadlineExceeded(
                f"the deadline of {deadline} passed while moving bytes",
                node=self._node,
            )
        else:
            return
        for task in tasks[progress[0] :]:
            task.error = problem

    async def _try(
        self,
        tasks: Sequence[T],
        make: Callable[[Sequence[T], Deadline], Exchange],
        progress: list[int],
        deadline: Deadline,
    ) -> None:
        while progress[0] < len(tasks):
            connection = self._kept()
            fresh = connection is None
            if connection is None:
                connection = await self._connect(deadline)
            exchange = make(tasks[progress[0] :], deadline)
            self._busy.add(connection)
            try:
                await connection.hold(exchange, self._node)
            except BaseException as error:
                connection.close()
                # A connection kept since earlier may have died unnoticed: try a new one.
                if fresh or exchange.answered or not isinstance(error, Unreachable):
                    raise
            else:
                self._keep(connection)
                return
            finally:
                self._busy.discard(connection)
                progress[0] += exchange.done

    def _kept(self) -> AsyncTcpConnection | None:
        if self._closed:
            raise Closed(f"the data path to node {self._node} was closed")
        while self._idle:
            connection = self._idle.pop()
            if connection.is_idle():
                return connection
            connection.close()
        return None

    def _keep(self, connection: AsyncTcpConnection) -> None:
        if self._closed:
            connection.close()
        else:
            self._idle.append(connection)

    async def _connect(self, deadline: Deadline) -> AsyncTcpConnection:
        connection = AsyncTcpConnection(await self._open(deadline))
        try:
            await connection.perform(greeting_effects(self._node_id, self._node))
        except BaseException:
            connection.close()
            raise
        return connection

    async def _open(self, deadline: Deadline) -> socket.socket:
        loop = asyncio.get_running_loop()
        problem: OSError | None = None
        try:
            rows = await loop.getaddrinfo(*self._address, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:  # the latter: no name at all
            raise Unreachable(f"{self._address[0]} does not resolve: {error}") from error
        for family, _, _, _, sockaddr in rows:
            sock: socket.socket | None = None
            try:
                sock = socket.socket(family, socket.SOCK_STREAM)
                sock.settimeout(0)
                await loop.sock_connect(sock, sockaddr)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except BaseException as error:
                if sock is not None:
                    sock.close()
                if not isinstance(error, OSError):
                    raise
                problem = error
            else:
                return sock
        deadline.check(f"connecting to node {self._node}", node=self._node)
        raise not_connected(self._address, self._node, problem)
