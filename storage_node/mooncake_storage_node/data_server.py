"""The data port: a few threads, each with its own epoll over non-blocking connections."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import threading
import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from mooncake_storage_node.data_connection import DataConnection, Disconnect, Wait
from mooncake_storage_node.node_view import DataCounters, NodeView
from mooncake_store.limits import KIB
from mooncake_store.transport.spinning import SPIN_S, Spinner, step_aside

if TYPE_CHECKING:
    from collections.abc import Iterable

SCRATCH_BYTES: Final = 256 * KIB
"""Where a thread receives unwanted bytes."""

SWEEP_S: Final = 0.5
"""How often stalled peers are looked for: they are cut off at most this much late."""

STALL_BYTES_MIN: Final = 64 * KIB
"""Bytes that a peer in the middle of a request must move in each ``stall_s``: about what a modem
did. A peer below keeps buffers of ours for nothing (field report 065)."""

GRACE_STEP_S: Final = 0.02
"""How often a stopping server looks whether requests are still under way."""

GREETING_S: Final = 5.0
"""Time in which a new connection must have introduced itself."""

_EVENTS: Final = select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET
_ALWAYS: Final = select.EPOLLHUP | select.EPOLLERR | select.EPOLLRDHUP


@dataclass(frozen=True, slots=True)
class DataLimits:
    """Bounds of the data port.

    Attributes:
        threads: Data threads.
        connections_max: Connections of all threads; over it the longest idle one is closed.
        stall_s: Time in which a peer must make progress.
    """

    threads: int = 2
    connections_max: int = 4096
    stall_s: float = 5.0


class _Worker(threading.Thread):
    """One data thread and its connections."""

    def __init__(
        self, listeners: Iterable[socket.socket], node: NodeView, limits: DataLimits, index: int
    ) -> None:
        super().__init__(name=f"data-{index}", daemon=True)
        self.counters = DataCounters()
        self._node = node
        self._limits = limits
        self._connections_max = max(1, limits.connections_max // limits.threads)
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._listeners = {listener.fileno(): listener for listener in listeners}
        self._connections: dict[int, DataConnection] = {}
        self._marks: dict[int, tuple[float, int]] = {}
        """{descriptor: (when it last made enough progress, bytes moved by then)}"""
        self._ready: dict[DataConnection, None] = {}
        """Those with more to do; news of a socket may find its connection here already."""
        self._woken: deque[DataConnection] = deque()
        """Connections for which a disk has news; other threads add to it."""
        self._waking = threading.Lock()
        self._closed = False
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._spinner = Spinner()
        self._answers_seen = 0
        self._stopping = False
        self._accepting = False
        self._accept()

    @property
    def connection_count(self) -> int:
        """Connections open now."""
        return len(self._connections)

    @property
    def is_busy(self) -> bool:
        """Whether a request is under way."""
        connections = list(self._connections.values())
        return any(c.greeted and not c.is_between_requests for c in connections)

    def stop(self) -> None:
        """Ask the thread to end; it closes its connections."""
        self._stopping = True
        os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Close what is left, once the thread has ended or was never started."""
        self._epoll.close()
        with self._waking:
            self._closed = True
            os.close(self._wake)

    def run(self) -> None:
        """Serve until stopped."""
        sweep_s = time.monotonic() + SWEEP_S
        while not self._stopping:
            for descriptor, events in self._poll():
                self._handle(descriptor, events)
            self._take_turns()
            now = time.monotonic()
            if now >= sweep_s:
                self._sweep(now)
                sweep_s = now + SWEEP_S
        self._close_all()

    def _take_turns(self) -> None:
        """Let each connection go on that has more to do than one turn."""
        for connection in list(self._ready):
            if connection in self._ready:  # else one before it had it closed
                del self._ready[connection]
                self._run(connection)

    def _poll(self) -> list[tuple[int, int]]:
        """Wait for news of the sockets; right after an answer, for a moment without sleeping."""
        seen, self._answers_seen = self._answers_seen, self.counters.answers
        if not self._ready and seen != self._answers_seen and self._spinner.wanted():
            end = time.perf_counter() + SPIN_S
            while time.perf_counter() < end:
                news = self._epoll.poll(0)
                if news:
                    self._spinner.learn(paid=True)
                    return news
                step_aside()
            self._spinner.learn(paid=False)
        return self._epoll.poll(0 if self._ready else SWEEP_S)

    def _handle(self, descriptor: int, events: int) -> None:
        if descriptor == self._wake:
            self._run_woken()
            return
        listener = self._listeners.get(descriptor)
        if listener is not None:
            self._welcome(listener)
            return
        connection = self._connections.get(descriptor)
        if connection is not None and (connection.notice(events) or events & _ALWAYS):
            self._run(connection)

    def _wake_for(self, connection: DataConnection) -> None:
        """Run a connection soon; called by any thread."""
        self._woken.append(connection)
        with self._waking:
            if not self._closed:
                os.eventfd_write(self._wake, 1)

    def _run_woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        for _ in range(len(self._woken)):
            connection = self._woken.popleft()
            if (
                self._connections.get(connection.fileno()) is connection
                and connection.waits is Wait.DISK
            ):
                self._run(connection)

    def _run(self, connection: DataConnection) -> None:
        try:
            if connection.run() == Wait.TURN:
                self._ready[connection] = None
        except Disconnect as reason:
            self._close(connection, str(reason))

    # --- connections come and go ----------------------------------------------------------------

    def _accept(self) -> None:
        """Begin to accept connections."""
        if not self._accepting:
            self._accepting = True
            for descriptor in self._listeners:
                self._epoll.register(descriptor, select.EPOLLIN | select.EPOLLEXCLUSIVE)

    def _pause_accepting(self) -> None:
        """Stop accepting until the next sweep: there are no descriptors left."""
        self._accepting = False
        for descriptor in self._listeners:
            self._epoll.unregister(descriptor)

    def _welcome(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}:
                self._close_longest_idle("no_descriptors")
                self._pause_accepting()
            return
        if len(self._connections) >= self._connections_max:
            self._close_longest_idle("too_many_connections")
        sock.settimeout(0)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = DataConnection(sock, self._node, self.counters, self._scratch)
        connection.wake = partial(self._wake_for, connection)
        descriptor = sock.fileno()
        self._connections[descriptor] = connection
        self._marks[descriptor] = (time.monotonic(), 0)
        self._epoll.register(descriptor, _EVENTS)

    def _close_longest_idle(self, reason: str) -> None:
        """Make room: strangers first, then whoever has been idle for longest."""
        idle = [c for c in self._connections.values() if not c.greeted or c.is_between_requests]
        if idle:
            oldest = min(idle, key=lambda c: (c.greeted, self._marks[c.fileno()][0]))
            self._close(oldest, reason)

    def _close(self, connection: DataConnection, reason: str) -> None:
        descriptor = connection.fileno()
        if self._connections.pop(descriptor, None) is None:
            return
        del self._marks[descriptor]
        connection.close()
        self._ready.pop(connection, None)
        counts = self.counters.cut_off
        counts[reason] = counts.get(reason, 0) + 1

    def _close_all(self) -> None:
        for connection in list(self._connections.values()):
            self._close(connection, "stopping")

    def _sweep(self, now: float) -> None:
        """Cut off who stalls in the middle of a request, or never introduces itself."""
        self._accept()
        for connection in list(self._connections.values()):
            reason = self._why_cut_off(connection, now)
            if reason:
                self._close(connection, reason)

    def _why_cut_off(self, connection: DataConnection, now: float) -> str:
        """Return why a connection must end now; empty: it may go on."""
        descriptor = connection.fileno()
        since, moved = self._marks[descriptor]
        if not connection.greeted:
            return "no_greeting" if now - since > GREETING_S else ""
        if now > connection.deadline_s:
            return "deadline"
        if connection.waits is Wait.DISK:  # Which is not the peer's fault.
            self._marks[descriptor] = (now, connection.moved)
            return ""
        enough = 1 if connection.is_between_requests else STALL_BYTES_MIN
        if connection.moved - moved >= enough:
            self._marks[descriptor] = (now, connection.moved)
        elif now - since > self._limits.stall_s and not connection.is_between_requests:
            return "stalled"
        return ""


class DataServer:
    """The data port of one node."""

    def __init__(self, node: NodeView, listeners: list[socket.socket], limits: DataLimits) -> None:
        """Take over listening sockets; ``start`` serves.

        Args:
            node: What is served.
            listeners: Non-blocking, listening.
            limits: Bounds.
        """
        self._listeners = listeners
        self._workers = [
            _Worker(self._listeners, node, limits, index) for index in range(limits.threads)
        ]

    def start(self) -> None:
        """Begin to serve."""
        for worker in self._workers:
            worker.start()

    def stop(self, grace_s: float = 0.0) -> None:
        """Close everything; returns when all threads have ended. Idempotent.

        Args:
            grace_s: Time for requests under way to end first.
        """
        workers, self._workers = self._workers, []
        until = time.monotonic() + grace_s
        while time.monotonic() < until and any(worker.is_busy for worker in workers):
            time.sleep(GRACE_STEP_S)
        for worker in workers:
            worker.stop()
        for worker in workers:
            if worker.is_alive():
                worker.join()
            worker.close()
        for listener in self._listeners:
            listener.close()

    @property
    def connection_count(self) -> int:
        """Connections open now."""
        return sum(worker.connection_count for worker in self._workers)

    def counters(self) -> list[DataCounters]:
        """Return the counters of all threads; they go on counting."""
        return [worker.counters for worker in self._workers]
