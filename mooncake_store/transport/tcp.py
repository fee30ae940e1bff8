"""The blocking TCP data path: a bounded pool of connections to one node.

Sockets are in blocking mode with the kernel's own time-outs, so that a receive is one system call
that sleeps in the kernel, not a poll and then a receive. After any trouble a connection is closed,
never reused: nothing that comes later can reach a caller's buffers.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import math
import os
import socket
import struct
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, Final, TypeVar, cast

from mooncake_store.data_path import DataPath, ReadTask, WriteTask
from mooncake_store.errors import (
    ChecksumMismatch,
    Closed,
    Overloaded,
    StoreError,
    Unreachable,
)
from mooncake_store.transport.effects import Receive, greeting_effects
from mooncake_store.transport.exchange import (
    SCRATCH_BYTES,
    probe_of,
    read_exchange,
    settle_doubts,
    write_exchange,
)
from mooncake_store.transport.places import Opening, Places
from mooncake_store.transport.resolve import resolve
from mooncake_store.transport.spinning import SMALL_BYTES_MAX, SPIN_S, Spinner, step_aside
from mooncake_store.transport.tasks import advance, check_read, check_write, checked
from mooncake_store.wire.address import format_address

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mooncake_store.deadline import Deadline
    from mooncake_store.transport.effects import Effects, Exchange, StreamExchange

T = TypeVar("T", ReadTask, WriteTask)

CONNECTIONS_MAX: Final = 8
"""Connections to one node by default: two saturate a loopback or a 25 Gb/s link; the rest is for
callers that wait behind slow ones. 32 clients then keep 256 sockets at a node."""

PARTS_MAX: Final = 1000
"""Buffers in one system call; Linux takes 1024 (IOV_MAX)."""

TRUSTED_S: Final = 0.1
"""Idle time after which a kept connection is tested before use (2 us). It is only a matter of
speed: a request on a dead connection fails without an answer and is sent again on a new one."""

NAP_S: Final = 0.05
"""Longest sleep in one system call. Smaller: needless wake-ups; larger: the time-out has to be set
anew for more of the calls."""

# Plain numbers: joining members of an enumeration takes longer than the system call's entry.
_OWN_SHORTAGES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""What stands for a lack of this process or host, not for anything about the peer."""

_SEND: Final = int(socket.MSG_NOSIGNAL)
_SEND_NOW: Final = int(socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
_NOW: Final = int(socket.MSG_DONTWAIT)
_WHOLE: Final = int(socket.MSG_WAITALL)
_TIMEVAL: Final = struct.Struct("@ll")


class TcpConnection:
    """One connection: performs the effects of exchanges, one exchange at a time."""

    __slots__ = (
        "__weakref__", "_asked_bytes", "_received_timeout_s", "_sent_timeout_s", "_socket",
        "_spinner", "_used_s", "ids", "scratch",
    )  # fmt: skip

    def __init__(self, sock: socket.socket, spinner: Spinner) -> None:
        self._socket = sock
        self._spinner = spinner
        self._received_timeout_s = 0.0
        self._sent_timeout_s = 0.0
        self._used_s = 0.0
        self._asked_bytes = 0
        self.ids = itertools.cycle(range(1, 1 << 32))
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))

    def hold(self, exchange: Exchange, node: str, deadline: Deadline) -> None:
        """Hold a conversation; raises as ``perform``."""
        stream = cast("StreamExchange", exchange)  # The path's own: it makes no other.
        self.perform(stream.effects(self.ids, self.scratch, node), deadline)

    def perform(self, effects: Effects, deadline: Deadline) -> None:
        """Do what is asked for until its end.

        Raises:
            DeadlineExceeded: It did not end in time.
            Unreachable: The connection broke.
            ProtocolError: The peer sent something else.
        """
        moved: int | None = None
        try:
            while True:
                effect = effects.send(moved)  # type: ignore[arg-type]  # None starts a generator
                if isinstance(effect, Receive):
                    moved = self._receive(effect.buffers, effect.at_least, deadline)
                else:
                    self._send(effect.buffers, deadline)
                    moved = 0
        except StopIteration:
            return

    def is_usable(self) -> bool:
        """Return whether a kept connection is open and nothing unasked has come.

        One that was used just now is not asked: if it died, it is replaced later.
        """
        now = time.monotonic()
        fresh = now - self._used_s < TRUSTED_S
        self._used_s = now
        if fresh:
            return True
        try:
            self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def abort(self) -> None:
        """End the exchange under way in another thread, which then closes the connection."""
        with contextlib.suppress(OSError):  # The other side closed it already.
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close; only for whom the connection belongs to at the moment."""
        self._socket.close()

    def _send(self, buffers: list[memoryview], deadline: Deadline) -> None:
        flags = _SEND_NOW  # A small request never has to wait.
        self._asked_bytes = sum(map(len, buffers))
        while True:
            sent = 0
            try:
                sent = self._socket.sendmsg(buffers[:PARTS_MAX], (), flags)
            except BlockingIOError:
                pass
            except OSError as error:
                raise Unreachable(f"the connection broke while sending: {error}") from error
            buffers = advance(buffers, sent)
            if not buffers:
                return
            flags = _SEND
            self._sent_timeout_s = self._limit(socket.SO_SNDTIMEO, self._sent_timeout_s, deadline)

    def _receive(self, buffers: list[memoryview], at_least: int, deadline: Deadline) -> int:
        wanted = sum(map(len, buffers))
        flags = _WHOLE if wanted == at_least else 0
        got = 0
        if self._asked_bytes and wanted + self._asked_bytes <= SMALL_BYTES_MAX:
            self._asked_bytes = 0  # Only the first bytes of an answer come that soon.
            if self._spinner.wanted():
                got = self._spin(buffers)
        while got < at_least:
            timeout_s = self._received_timeout_s
            self._received_timeout_s = self._limit(socket.SO_RCVTIMEO, timeout_s, deadline)
            got += self._receive_once(advance(buffers, got) if got else buffers, flags)
        return got

    def _spin(self, buffers: list[memoryview]) -> int:
        """Try without sleeping for a while; return the bytes that came, 0 for none."""
        end = time.perf_counter() + SPIN_S
        got = self._receive_once(buffers, _NOW)
        while not got and time.perf_counter() < end:
            step_aside()
            got = self._receive_once(buffers, _NOW)
        self._spinner.learn(paid=got > 0)
        return got

    def _receive_once(self, buffers: list[memoryview], flags: int) -> int:
        try:
            if len(buffers) == 1:
                got = self._socket.recv_into(buffers[0], 0, flags)
            else:
                got = self._socket.recvmsg_into(buffers[:PARTS_MAX], 0, flags)[0]
        except BlockingIOError:
            return 0
        except OSError as error:
            raise Unreachable(f"the connection broke while receiving: {error}") from error
        if not got:
            raise Unreachable("the peer closed the connection")
        return got

    def _limit(self, option: int, current_s: float, deadline: Deadline) -> float:
        """Bound the next call by the kernel's time-out; return what that is now.

        Far from the deadline it stays ``NAP_S``, so that no system call is needed to set it.
        """
        left_s = min(NAP_S, deadline.check("moving bytes"))
        if left_s != current_s:
            microseconds = max(1, math.ceil(left_s * 1e6))
            raw = _TIMEVAL.pack(*divmod(microseconds, 1_000_000))
            self._socket.setsockopt(socket.SOL_SOCKET, option, raw)
        return left_s


def connect(
    address: tuple[str, int], node_id: str, node: str, deadline: Deadline, spinner: Spinner
) -> TcpConnection:
    """Open a connection to a node that proves who it is.

    Raises:
        Unreachable, DeadlineExceeded: Nobody answers.
        WrongPeer: Another process does.
        ProtocolMismatch, ProtocolError: It speaks something else.
    """
    connection = TcpConnection(open_socket(address, node, deadline), spinner)
    try:
        connection.perform(greeting_effects(node_id, node), deadline)
    except BaseException:
        connection.close()
        raise
    return connection


def open_socket(address: tuple[str, int], node: str, deadline: Deadline) -> socket.socket:
    """Connect to the first address of a name that answers.

    Raises:
        Unreachable, DeadlineExceeded: None does.
        Overloaded: This process can open none, which says nothing about the node.
    """
    problem: OSError | None = None
    for family, sockaddr in resolve(*address, deadline):
        sock: socket.socket | None = None
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
            sock.settimeout(deadline.check(f"connecting to node {node}", node=node))
            sock.connect(sockaddr)
            sock.settimeout(None)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except BaseException as error:
            if sock is not None:
                sock.close()
            if not isinstance(error, OSError):
                raise
            problem = error
        else:
            return sock
    deadline.check(f"connecting to node {node}", node=node)
    raise not_connected(address, node, problem)


def not_connected(
    address: tuple[str, int], node: str, problem: OSError | None
) -> Unreachable | Overloaded:
    """Return the error of a node that no address leads to, or of us who cannot try."""
    error: Unreachable | Overloaded
    if problem is not None and problem.errno in _OWN_SHORTAGES:
        error = Overloaded(
            f"this process cannot open a connection to node {node}: {problem.strerror};"
            " is its limit of descriptors too low?",
            node=node,
        )
    else:
        where = format_address(*address)
        error = Unreachable(f"cannot connect to node {node} at {where}: {problem}", node=node)
    error.__cause__ = problem
    return error


_paths: weakref.WeakSet[TcpDataPath] = weakref.WeakSet()


def _forget_all() -> None:
    for path in list(_paths):
        path.forget_connections()


os.register_at_fork(after_in_child=_forget_all)


class TcpDataPath(DataPath):
    """A pool of at most ``connections_max`` connections to one node; callers over that wait."""

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
        """Do nothing yet: the first call connects.

        Args:
            host: Name or address; resolved again for each new connection.
            port: Data port.
            node_id: Identity that the node must prove; empty takes any.
            node: Its name, for messages.
            connections_max: Most connections kept or in use at one time, at least 1.
        """
        self._address = (host, port)
        self._node_id = node_id
        self._node = node
        self._spinner = Spinner()
        self._places = Places()
        self._idle: deque[TcpConnection] = deque()
        self._connections_max = connections_max
        self._closed = False
        _paths.add(self)

    def read(self, tasks: Sequence[ReadTask], deadline: Deadline) -> None:
        """As ``DataPath.read``."""
        good = checked(check_read, tasks)
        self._run(good, deadline, self._reads)
        doubtful = [task for task in good if isinstance(task.error, ChecksumMismatch)]
        if doubtful:
            probes = [probe_of(task) for task in doubtful]
            self._run(probes, deadline, self._reads)
            settle_doubts(doubtful, probes)

    def write(self, tasks: Sequence[WriteTask], deadline: Deadline) -> None:
        """As ``DataPath.write``."""
        self._run(checked(check_write, tasks), deadline, self._writes)

    def close(self) -> None:
        """Close all connections; calls under way end with ``Closed`` or ``Unreachable``."""
        with self._places.lock:
            self._closed = True
            for connection in self._idle:
                connection.close()
                self._places.leave(connection)
            self._idle.clear()
            for busy in self._places.holders():
                if isinstance(busy, TcpConnection):
                    busy.abort()
            self._places.call_all()

    def forget_connections(self) -> None:
        """In a forked child: leave the connections to the parent and begin with none."""
        for holder in self._places.holders():
            if isinstance(holder, TcpConnection):
                holder.close()
        self._places = Places()
        self._idle = deque()

    def _run(
        self,
        tasks: Sequence[T],
        deadline: Deadline,
        make: Callable[[Sequence[T], Deadline], Exchange],
    ) -> None:
        """Perform checked tasks; what keeps them from being performed becomes their error."""
        done = 0
        try:
            while done < len(tasks):
                connection, fresh = self._acquire(deadline)
                exchange = make(tasks[done:] if done else tasks, deadline)
                try:
                    connection.hold(exchange, self._node, deadline)
                except BaseException as error:
                    self._release(connection, usable=False)
                    done += exchange.done
                    # A connection kept since earlier may have died unnoticed: try a new one.
                    if fresh or exchange.answered or not isinstance(error, Unreachable):
                        raise
                else:
                    self._release(connection, usable=True)
                    return
        except StoreError as error:
            for task in tasks[done:]:
                task.error = error

    def _acquire(self, deadline: Deadline) -> tuple[TcpConnection, bool]:
        """Return a connection that is ours now, and whether it is new."""
        places = self._places
        while True:
            with places.lock:
                if self._closed:
                    raise Closed(f"the data path to node {self._node} was closed")
                while self._idle:
                    connection = self._idle.pop()
                    if connection.is_usable():
                        return connection, False
                    connection.close()
                    places.leave(connection)
                opening = Opening()
                if places.take(opening, self._connections_max):
                    break
                doing = f"waiting for one of {self._connections_max} connections"
                left_s = deadline.check(doing, node=self._node)
                ticket = places.queue()
            places.wait(ticket, left_s)
        return self._connect(opening, deadline), True

    def _open(self, deadline: Deadline) -> TcpConnection:
        """Return a new connection whose peer is the wanted node."""
        return connect(self._address, self._node_id, self._node, deadline, self._spinner)

    def _connect(self, opening: Opening, deadline: Deadline) -> TcpConnection:
        places = self._places
        try:
            connection = self._open(deadline)
        except BaseException:
            with places.lock:
                places.leave(opening)
            raise
        with places.lock:
            places.pass_on(opening, connection)
            closed = self._closed
        if closed:
            self._release(connection, usable=False)
            raise Closed(f"the data path to node {self._node} was closed")
        return connection

    def _release(self, connection: TcpConnection, *, usable: bool) -> None:
        places = self._places
        try:
            if not usable:
                connection.close()  # before another one may take its place
        finally:
            with places.lock:
                keep = usable and not self._closed
                if keep:
                    self._idle.append(connection)
                    if places.waiting:
                        places.call()
                else:
                    places.leave(connection)
        if usable and not keep:
            connection.close()
