"""One connection of the RPC port without sockets, for unit tests and fuzz targets."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from mooncake_master.connection import Connection
from mooncake_master.meters import Meters
from mooncake_master.server import Server, ServerLimits, Shared
from mooncake_master.switchboard import Switchboard
from mooncake_store import limits
from mooncake_store.wire import control, frames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mooncake_store.errors import StoreError


class Transport:
    """What a connection writes to.

    Attributes:
        replies: Everything that was written.
        unread_bytes: What it says that its peer has not read.
    """

    def __init__(self) -> None:
        self.replies = bytearray()
        self.unread_bytes = 0
        self.is_closed = False
        self.is_aborted = False
        self.is_paused = False

    def write(self, data: bytes | bytearray) -> None:
        self.replies += data

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = self.is_aborted = True

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def was_aborted(self) -> bool:
        return self.is_aborted

    def get_write_buffer_size(self) -> int:
        return self.unread_bytes

    def set_write_buffer_limits(self, high: int) -> None:
        assert high > 0


class FakeCore:
    """A core that answers what its ``answer`` says, and remembers what it was told."""

    def __init__(self) -> None:
        self.seen: list[control.Message] = []
        self.answers: list[tuple[int, control.Message | StoreError]] = []
        self.lost: list[int] = []
        self.ticks = 0
        self.answer: Callable[[int, int, control.Message], list[object]] = lambda *_: []

    def handle(
        self, peer: int, request_id: int, message: control.Message, *_: float
    ) -> list[object]:
        self.seen.append(message)
        return self.answer(peer, request_id, message)

    def node_replied(
        self, peer: int, token: int, answer: control.Message | StoreError, now_s: float
    ) -> list[object]:
        del peer, now_s
        self.answers.append((token, answer))
        return []

    def peer_lost(self, peer: int, now_s: float) -> list[object]:
        del now_s
        self.lost.append(peer)
        return []

    def tick(self, now_s: float) -> list[object]:
        del now_s
        self.ticks += 1
        return []


class Harness:
    """A server without sockets, on a clock that stands until a test moves it.

    Made inside a running event loop, where turns are taken.
    """

    def __init__(self, bounds: ServerLimits | None = None) -> None:
        self.now_s = 1000.0
        self.core = FakeCore()
        self.switchboard = Switchboard(self.core, lambda: self.now_s)  # type: ignore[arg-type] # a fake
        welcome = control.Welcome(1, "x", 1, "c", 1.0, 1.0)
        self.shared = Shared(
            self.switchboard, Meters(), lambda: welcome, bounds or ServerLimits(), "tested"
        )
        self.server = Server(self.shared)
        self.connection, self.transport = self.connect()

    def connect(self) -> tuple[Connection, Transport]:
        """Return a new stranger and its transport."""
        connection, transport = Connection(self.shared), Transport()
        connection.connection_made(transport)  # type: ignore[arg-type] # a fake
        return connection, transport

    def greet(self, role: str = "client") -> None:
        """Take the handshake, and forget its answer."""
        self.receive(
            frames.encode_frame(1, control.Hello(1, role, "harness", "x"), request_id=2**32 - 1)
        )
        assert self.connection.role == role
        self.transport.replies.clear()

    def receive(self, data: bytes | bytearray) -> None:
        """Let bytes arrive that fit the buffer."""
        buffer = self.connection.get_buffer(-1)
        buffer[: len(data)] = data
        self.connection.buffer_updated(len(data))

    def ask(self, message: control.Message, request_id: int) -> None:
        """Let a request arrive."""
        kind = control.KINDS[type(message)]
        self.receive(frames.encode_frame(kind, message, request_id=request_id, deadline_ms=1000))

    async def feed(self, data: bytes, pieces: Iterator[int]) -> None:
        """Let bytes arrive in pieces, as long as somebody takes them."""
        at = 0
        while at < len(data) and not self.transport.is_closed:
            while self.transport.is_paused:  # noqa: ASYNC110 - a few turns of the loop
                await asyncio.sleep(0)
            buffer = self.connection.get_buffer(-1)
            assert len(buffer) > 0
            size = min(next(pieces), len(buffer), len(data) - at)
            buffer[:size] = data[at : at + size]
            self.connection.buffer_updated(size)
            at += size
            assert self.connection.held_bytes <= limits.FRAME_BYTES_MAX + frames.HEADER_BYTES

    def takes_requests(self) -> bool:
        """Return whether the connection reads from its peer."""
        return not self.transport.is_paused

    def frames(self) -> list[frames.Frame]:
        """Return what was written so far, as frames, and forget it."""
        decoder = frames.FrameDecoder(limits.FRAME_BYTES_MAX)
        found = []
        rest = memoryview(bytes(self.transport.replies))
        self.transport.replies.clear()
        while rest:
            buffer = decoder.buffer()
            size = min(len(buffer), len(rest))
            buffer[:size] = rest[:size]
            decoder.received(size)
            found += list(decoder)
            rest = rest[size:]
        assert decoder.pending == 0
        return found

    def errors(self) -> list[StoreError]:
        """Return the errors among what was written so far, and forget it all."""
        return [
            frames.decode_error(frame.body) for frame in self.frames() if frame.flags & frames.ERROR
        ]


async def turns(count: int = 50) -> None:
    """Let the loop turn."""
    for _ in range(count):
        await asyncio.sleep(0)
