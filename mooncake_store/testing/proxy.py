"""A TCP proxy that hurts: put it between two parts and switch faults while they talk."""

from __future__ import annotations

import contextlib
import queue
import selectors
import socket
import threading
import time
from typing import TYPE_CHECKING, Final, Self

from mooncake_store.testing.faults import (
    BlackHole,
    CloseAfter,
    Cut,
    Direction,
    DropAfter,
    Fault,
    Flip,
    Pass,
    Stall,
    Throttle,
)
from mooncake_store.testing.sockets import begin_connection, reset

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

_PENDING_BYTES_MAX: Final = 256 * 1024
"""Bytes held of one direction: less than the sockets' own buffers, so back-pressure is felt."""

_THROTTLE_STEP_S: Final = 0.02
"""A throttled direction moves what its rate allows in this time at once."""

_COMMAND_S_MAX: Final = 10.0
"""A command takes effect at once; after this time the proxy's thread is surely dead."""


class FaultProxy:
    """Passes connections on to a server, and faults in between, switched at run time.

        with FaultProxy("127.0.0.1", server_port) as proxy:
            client = connect(proxy.host, proxy.port)
            proxy.set(Stall(), Direction.DOWN)

    A fault holds for the connections that are open and for those to come, until another one is
    set. When ``set`` returns, it is in force. One thread serves all connections.

    Attributes:
        host: Where the proxy listens.
        port: Where the proxy listens.
    """

    def __init__(
        self, target_host: str, target_port: int, *, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        self._target = (target_host, target_port)
        self._listener = socket.create_server((host, port), backlog=512)
        self._listener.settimeout(0)
        self.host, self.port = self._listener.getsockname()[:2]
        self._faults: dict[Direction, Fault] = {Direction.UP: Pass(), Direction.DOWN: Pass()}
        self._links: list[_Link] = []
        self._passed = {Direction.UP: 0, Direction.DOWN: 0}
        self._swallowed = {Direction.UP: 0, Direction.DOWN: 0}
        self._accepted = 0
        self._commands: queue.SimpleQueue[tuple[Callable[[], None], threading.Event]] = (
            queue.SimpleQueue()
        )
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_out.settimeout(0)
        self._closing = False
        self._selector = selectors.DefaultSelector()
        self._thread = threading.Thread(
            target=self._run, name=f"fault-proxy-{self.port}", daemon=True
        )
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"{self.host}:{self.port}"

    def set(self, fault: Fault, direction: Direction = Direction.BOTH) -> None:
        """Put a fault in force, instead of the one before."""

        def apply() -> None:
            for one in _each(direction):
                self._faults[one] = fault
                for link in self._links:
                    link.lanes[one].set(fault)

        self._do(apply)

    def heal(self) -> None:
        """Let everything pass again; what a black hole swallowed is gone."""
        self.set(Pass())

    def drop_connections(self) -> None:
        """Reset the connections that are open; new ones are treated as before."""

        def apply() -> None:
            for link in self._links:
                link.end()

        self._do(apply)

    def retarget(self, host: str, port: int) -> None:
        """Pass connections to come on to another server."""

        def apply() -> None:
            self._target = (host, port)

        self._do(apply)

    def connections(self) -> int:
        """Return how many connections are open."""
        return sum(not link.is_over for link in list(self._links))

    def accepted(self) -> int:
        """Return how many connections there have been."""
        return self._accepted

    def passed_bytes(self, direction: Direction = Direction.BOTH) -> int:
        """Return how many bytes have passed."""
        return sum(self._passed[one] for one in _each(direction))

    def swallowed_bytes(self, direction: Direction = Direction.BOTH) -> int:
        """Return how many bytes were taken and thrown away."""
        return sum(self._swallowed[one] for one in _each(direction))

    def close(self) -> None:
        """Reset every connection and stop listening; harmless when done before."""
        if self._thread.is_alive():
            self._closing = True
            self._wake_in.send(b"x")
            self._thread.join(_COMMAND_S_MAX)
        for one in (self._wake_in, self._wake_out):
            one.close()

    def _do(self, action: Callable[[], None]) -> None:
        done = threading.Event()
        self._commands.put((action, done))
        self._wake_in.send(b"x")
        if not done.wait(_COMMAND_S_MAX):
            raise RuntimeError(f"the proxy on port {self.port} does not answer")

    def _run(self) -> None:
        try:
            self._selector.register(self._listener, selectors.EVENT_READ)
            self._selector.register(self._wake_out, selectors.EVENT_READ)
            while not self._closing:
                self._step()
        finally:
            for link in self._links:
                link.forget(self._selector)
            self._listener.close()
            self._selector.close()

    def _step(self) -> None:
        now_s = time.monotonic()
        wait_s = min((link.watch(self._selector, now_s) for link in self._links), default=None)
        ready = [key.fileobj for key, _ in self._selector.select(wait_s)]
        if self._listener in ready:
            self._accept()
        if self._wake_out in ready:
            self._obey()
        for link in self._links:
            link.move(self._passed, self._swallowed)
        for link in [link for link in self._links if link.is_over]:
            link.forget(self._selector)
            self._links.remove(link)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            near, _ = self._listener.accept()
            self._accepted += 1
            if Cut() in self._faults.values():
                reset(near)
                return
            try:
                far = begin_connection(self._target)
            except OSError:
                reset(near)
            else:
                self._links.append(_Link(near, far, self._faults))

    def _obey(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake_out.recv(4096)
        while not self._commands.empty():
            action, done = self._commands.get()
            action()
            done.set()


def _each(direction: Direction) -> tuple[Direction, ...]:
    return (Direction.UP, Direction.DOWN) if direction is Direction.BOTH else (direction,)


class _Link:
    """One connection through the proxy: two sockets, a lane each way."""

    def __init__(
        self, near: socket.socket, far: socket.socket, faults: dict[Direction, Fault]
    ) -> None:
        for one in (near, far):
            one.settimeout(0)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.lanes = {
            Direction.UP: _Lane(near, far, faults[Direction.UP]),
            Direction.DOWN: _Lane(far, near, faults[Direction.DOWN]),
        }
        self.is_over = False
        self._sockets = (near, far)
        self._watched: dict[socket.socket, int] = {}

    def watch(self, selector: selectors.BaseSelector, now_s: float) -> float:
        """Register what the lanes wait for; return how long to wait for it at most."""
        wanted = dict.fromkeys(self._sockets, 0)
        wait_s = 3600.0
        for lane in self.lanes.values():
            wait_s = min(wait_s, lane.want(wanted, now_s))
        for one, events in wanted.items():
            before = self._watched.get(one, 0)
            if events == before:
                continue
            if not events:
                selector.unregister(one)
            elif before:
                selector.modify(one, events)
            else:
                selector.register(one, events)
            self._watched[one] = events
        return wait_s

    def move(self, passed: dict[Direction, int], swallowed: dict[Direction, int]) -> None:
        """Move what can be moved now, and count it."""
        now_s = time.monotonic()
        try:
            for direction, lane in self.lanes.items():
                passed[direction] += lane.move(now_s)
                swallowed[direction] += lane.take_swallowed()
        except OSError:
            self.end()
        if all(lane.is_over for lane in self.lanes.values()):
            self.end()

    def end(self) -> None:
        """End the connection on both sides, after this round."""
        self.is_over = True

    def forget(self, selector: selectors.BaseSelector) -> None:
        """Close the sockets."""
        for one in self._sockets:
            if self._watched.get(one):
                selector.unregister(one)
            reset(one)


class _Lane:
    """One direction of a connection."""

    def __init__(self, source: socket.socket, sink: socket.socket, fault: Fault) -> None:
        self._source = source
        self._sink = sink
        self._pending = bytearray()
        self._swallowed = 0
        self._ended = False
        self.is_over = False
        self.set(fault)

    def set(self, fault: Fault) -> None:
        """Put a fault in force; it counts bytes from here on."""
        self._fault = fault
        self._passed = 0
        self._next_s = 0.0

    def want(self, wanted: dict[socket.socket, int], now_s: float) -> float:
        """Add the events this lane waits for; return in how many seconds it acts without one."""
        reads = not isinstance(self._fault, Stall) and not self._ended
        if reads and len(self._pending) < _PENDING_BYTES_MAX:
            wanted[self._source] |= selectors.EVENT_READ
        if self._pending and not isinstance(self._fault, Stall):
            if self._next_s > now_s:
                return self._next_s - now_s
            wanted[self._sink] |= selectors.EVENT_WRITE
        return 3600.0

    def move(self, now_s: float) -> int:
        """Receive and send what can be moved without waiting; return the bytes sent.

        Raises:
            OSError: The connection is over, or has to be now.
        """
        if isinstance(self._fault, Cut):
            raise ConnectionResetError
        if isinstance(self._fault, Stall):
            return 0
        self._receive()
        sent = self._send(now_s)
        if isinstance(self._fault, CloseAfter) and self._passed >= self._fault.bytes:
            raise ConnectionResetError
        if self._ended and not self._pending and not self.is_over:
            self.is_over = True
            with contextlib.suppress(OSError):
                self._sink.shutdown(socket.SHUT_WR)
        return sent

    def take_swallowed(self) -> int:
        """Return how many bytes were thrown away since the last time."""
        count, self._swallowed = self._swallowed, 0
        return count

    def _receive(self) -> None:
        room = _PENDING_BYTES_MAX - len(self._pending)
        if room <= 0 or self._ended:
            return
        with contextlib.suppress(BlockingIOError):
            data = self._source.recv(room)
            self._pending += data
            self._ended = not data

    def _send(self, now_s: float) -> int:
        allowed = self._allowed(now_s)
        sent = 0
        if allowed > 0:
            self._damage(allowed)
            with contextlib.suppress(BlockingIOError, InterruptedError):
                sent = self._sink.send(memoryview(self._pending)[:allowed])
            del self._pending[:sent]
            self._passed += sent
        if isinstance(self._fault, Throttle) and sent:
            self._next_s = max(now_s, self._next_s) + sent / self._fault.bytes_per_s
        return sent

    def _allowed(self, now_s: float) -> int:
        """Return how many pending bytes may be sent now; throw those away that never may."""
        have = len(self._pending)
        match self._fault:
            case Throttle(bytes_per_s=rate):
                step = max(1, int(rate * _THROTTLE_STEP_S))
                return min(have, step) if self._next_s <= now_s else 0
            case BlackHole():
                return self._swallow(have, 0)
            case DropAfter(bytes=limit):
                return self._swallow(have, min(have, max(0, limit - self._passed)))
            case CloseAfter(bytes=limit):
                return min(have, max(0, limit - self._passed))
            case _:
                return have

    def _swallow(self, have: int, kept: int) -> int:
        self._swallowed += have - kept
        del self._pending[kept:]
        return kept

    def _damage(self, allowed: int) -> None:
        """Invert a bit, if the byte that is to be damaged is among those sent now."""
        if isinstance(self._fault, Flip):
            at = self._fault.bytes - self._passed
            if 0 <= at < allowed:
                self._pending[at] ^= 1
