"""One connection of the RPC port: frames in, frames out, and everything a peer may not do.

    stranger --Hello--> known (client or node) --> closed

A request is handled in the loop turn that received it and its reply written in the same one; no
task, no thread. What costs memory or time is bounded: frames by size before they are buffered,
requests under way by number, bytes that a peer does not read by size and time, big frames by
``Turns``.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import msgspec

from mooncake_master.vigil import SMALL_BODY_BYTES
from mooncake_store import limits
from mooncake_store.errors import (
    DeadlineExceeded,
    InvalidArgument,
    NotSupported,
    Overloaded,
    ProtocolError,
    ProtocolMismatch,
    StoreError,
    Unreachable,
)
from mooncake_store.wire.control import (
    KINDS,
    REPLY_DECODERS,
    REQUEST_DECODERS,
    CopyExtents,
    Hello,
    Message,
    Welcome,
)
from mooncake_store.wire.frames import (
    ERROR,
    REPLY,
    Frame,
    FrameDecoder,
    decode_error,
    encode_error,
    encode_frame,
)

if TYPE_CHECKING:
    from mooncake_master.server import Shared

logger = logging.getLogger(__name__)

BIG_FRAME_BYTES: Final = 16 * limits.KIB
"""Body from which a frame waits for a turn: some 250 keys, about 0.2 ms. Smaller: turns cost more
than they spare. Larger: ten clients with frames just below it delay the others by more."""

FRAMES_AT_ONCE: Final = 64
"""Small frames of one connection that are handled before others have their turn."""

SMALL_BODY_BYTES_MAX: Final = 64 * limits.KIB
"""Body of a request that names no batch of keys; more could only be built to cost memory."""

PENDING_MAX: Final = 4096
"""Requests of one connection that wait for their answer: a pipeline of 50,000 keys is 13 frames.
More are refused (``Overloaded``), one by one."""

WRITE_PAUSE_BYTES: Final = 1 * limits.MIB
"""Unsent bytes at which we stop taking requests from a peer until it reads its replies."""

_FIRST_REQUEST: Final = 10
_KINDS_END: Final = {"client": 50, "node": 60}
KINDS_OF_ROLE: Final = {
    role: {kind: dec for kind, dec in REQUEST_DECODERS.items() if _FIRST_REQUEST <= kind < end}
    for role, end in _KINDS_END.items()
}
"""{role: {kind: decoder of the requests that it may send}}"""

BATCH_KINDS: Final = frozenset(
    kind
    for kind, decoder in REQUEST_DECODERS.items()
    if {"keys", "items", "versions"} & set(decoder.type.__struct_fields__)
)
"""Requests whose body may be as large as a frame; the number of their items is bounded by type."""

_HELLO: Final = KINDS[Hello]
_UNKNOWN: Final = (0, 0.0, False)
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_any_decoder: Final = msgspec.msgpack.Decoder(list[msgspec.Raw])


class _Asked(NamedTuple):
    """A request that was sent to the node behind a connection."""

    token: int
    kind: int
    until_s: float
    limit_s: float


class Connection(asyncio.BufferedProtocol):
    """One peer of the RPC port.

    Attributes:
        number: What the core calls it; 0 before the handshake.
        role: ``client`` or ``node``; empty before the handshake.
        name: What the peer calls itself, for logs.
        closed_s: When we ended it; 0: it is open.
        opened_s: When it connected.
        partial_since_s: Since when a frame has been incomplete; 0: none is.
        stalled_since_s: Since when it has not read its replies; 0: it does.
    """

    __slots__ = (
        "_asked", "_decoder", "_decoders", "_held", "_next_id", "_pending", "_shared",
        "_transport", "_waiting", "closed_s", "name", "number", "opened_s", "partial_since_s",
        "role", "stalled_since_s",
    )  # fmt: skip

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._decoder = FrameDecoder(limits.FRAME_BYTES_STRANGER_MAX, shared=shared.buffer)
        self._decoders: dict[int, msgspec.msgpack.Decoder[Message]] = {}
        self._transport: asyncio.Transport | None = None
        self._held: Frame | None = None
        self._waiting = False
        self._pending: dict[int, tuple[int, float, bool]] = {}
        """{request id: (kind, received at, whether a client's next request may follow the answer at
        once)} of what the core has not answered yet."""
        self._asked: dict[int, _Asked] = {}
        self._next_id = 0
        self.number = 0
        self.role = ""
        self.name = ""
        self.closed_s = 0.0
        self.opened_s = shared.clock()
        self.partial_since_s = 0.0
        self.stalled_since_s = 0.0

    # --- what asyncio calls ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin as a stranger, or end at once where there are far too many."""
        # uvloop's transports have every method of asyncio's without being their subclass.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_PAUSE_BYTES)
        if not self._shared.admit(self):
            self.abort("connection limit")

    def get_buffer(self, sizehint: int) -> memoryview:
        """Give the memory to receive into."""
        del sizehint
        return self._decoder.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Handle what came."""
        self._shared.meters.received_bytes += nbytes
        self._decoder.received(nbytes)
        if not self.closed_s:
            self._drain()

    def eof_received(self) -> bool:
        """End with the peer's stream: half-open connections are of no use here."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget everything; the core hears of it."""
        del exc
        self.closed_s = self.closed_s or self._shared.clock()
        self._held = None
        self._transport = None
        self._pending.clear()
        asked, self._asked = self._asked, {}
        for request in asked.values():
            self._answered(request, Unreachable(f"node {self.name} went away", node=self.name))
        self._shared.forget(self)

    def pause_writing(self) -> None:
        """Take no more requests until the peer has read what we sent."""
        self.stalled_since_s = self._shared.clock()
        if self._transport is not None and not self._waiting:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on."""
        self.stalled_since_s = 0.0
        if not self.closed_s and not self._waiting:
            self._wait_for_turn()

    # --- what the switchboard calls -------------------------------------------------------------

    def reply(self, request_id: int, message: Message) -> None:
        """Send the answer to a request."""
        kind, received_s, is_small = self._pending.pop(request_id, _UNKNOWN)
        if not kind:
            return
        try:
            frame = encode_frame(kind, message, request_id=request_id, flags=REPLY)
        except ProtocolError as error:
            self._refuse(kind, request_id, error)
        else:
            self._write(frame)
        self._shared.meters.durations[kind].observe(self._shared.clock() - received_s)
        if is_small:
            self._shared.vigil.answered()

    def fail(self, request_id: int, error: StoreError) -> None:
        """Send the error that a request ended with."""
        kind, received_s, _ = self._pending.pop(request_id, _UNKNOWN)
        if kind:
            self._refuse(kind, request_id, error)
            self._shared.meters.durations[kind].observe(self._shared.clock() - received_s)

    def dismiss(self, error: StoreError, reason: str) -> None:
        """Answer everything that waits with one error, and end the connection."""
        pending, self._pending = self._pending, {}
        for request_id, (kind, _, _) in pending.items():
            self._refuse(kind, request_id, error)
        self.close(reason)

    def instruct(self, token: int, message: Message) -> None:
        """Ask the node; its answer, or the lack of one, goes to the core."""
        kind = KINDS[type(message)]
        timeout_s = self._shared.instruct_timeout_s
        if isinstance(message, CopyExtents):
            timeout_s += message.extra_s
        self._next_id = self._next_id % 0xFFFF_FFFF + 1
        asked = _Asked(token, kind, self._shared.clock() + timeout_s, timeout_s)
        self._shared.meters.instructed[kind] += 1
        frame = encode_frame(
            kind, message, request_id=self._next_id, deadline_ms=int(timeout_s * 1000)
        )
        self._asked[self._next_id] = asked
        self._write(frame)

    def close(self, reason: str) -> None:
        """End the connection after what was written so far; counted under ``reason``."""
        if not self.closed_s:
            self.closed_s = self._shared.clock()
            self._held = None
            self._shared.meters.connections_cut[reason] += 1
            logger.debug("connection of %s %r ended: %s", self.role, self.name, reason)
            if self._transport is not None:
                self._transport.close()

    # --- what the server calls ------------------------------------------------------------------

    def abort(self, reason: str) -> None:
        """End the connection now, whatever is unsent."""
        self.close(reason)
        if self._transport is not None:
            self._transport.abort()

    def expire(self, now_s: float) -> None:
        """Give up what the node did not answer in time."""
        late = [number for number, asked in self._asked.items() if asked.until_s <= now_s]
        for number in late:
            asked = self._asked.pop(number)
            error = DeadlineExceeded(f"no answer in {asked.limit_s:g} s", node=self.name)
            self._answered(asked, error)

    @property
    def asks(self) -> bool:
        """Whether the node behind this connection owes answers."""
        return bool(self._asked)

    @property
    def owes(self) -> int:
        """How many requests of the peer are not answered yet."""
        return len(self._pending)

    @property
    def held_bytes(self) -> int:
        """Memory that incomplete frames and unread replies of this peer take."""
        unsent = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return self._decoder.pending + unsent

    def turn(self) -> bool:
        """Handle the frame that waited, and what follows it; return whether another one waits."""
        self._waiting = False
        frame, self._held = self._held, None
        if self.closed_s or self._transport is None:
            return False
        if frame is not None:
            self._handle(frame)
        self._drain(queue=False)
        if self._waiting:
            return True
        if not self.closed_s and not self.stalled_since_s:
            self._transport.resume_reading()
        return False

    # --- frames ---------------------------------------------------------------------------------

    def _drain(self, *, queue: bool = True) -> None:
        """Handle the complete frames, up to one that has to wait for a turn."""
        handled = 0
        try:
            for frame in self._decoder:
                if (
                    len(frame.body) >= BIG_FRAME_BYTES
                    or handled >= FRAMES_AT_ONCE
                    or self.stalled_since_s
                ):
                    self._held = frame
                    break
                self._handle(frame)
                handled += 1
                if self.closed_s:
                    return
        except ProtocolError as error:
            self._refuse(0, 0, error)
            self.close("frame limit")
            return
        self._after_frames(handled > 0, queue=queue)

    def _after_frames(self, progress: bool, *, queue: bool) -> None:  # noqa: FBT001 - private
        """Note what is left: a frame that waits, part of one, or nothing."""
        decoder = self._decoder
        if decoder.pending:
            decoder.settle()
            if progress or self._held is not None or not self.partial_since_s:
                self.partial_since_s = self._shared.clock()
        else:
            self.partial_since_s = 0.0
        if self._held is not None and not self.stalled_since_s:
            if queue:
                self._wait_for_turn()
            else:
                self._waiting = True

    def _wait_for_turn(self) -> None:
        self._waiting = True
        if self._transport is not None:
            self._transport.pause_reading()
        self._shared.turns.wait(self)

    def _handle(self, frame: Frame) -> None:
        """Hand one frame to whom it concerns."""
        kind, flags, request_id, deadline_ms, body = frame
        if flags:
            self._take_answer(frame)
            return
        decoder = self._decoders.get(kind)
        if decoder is None:
            self._handle_other(frame)
            return
        if len(body) > SMALL_BODY_BYTES_MAX and kind not in BATCH_KINDS:
            problem = f"a request of kind {kind} takes at most {SMALL_BODY_BYTES_MAX} bytes"
            self._refuse(kind, request_id, ProtocolError(problem))
            self.close("malformed request")
            return
        try:
            message = decoder.decode(body)
        except _UNREADABLE as error:
            name = decoder.type.__name__
            self._refuse(kind, request_id, ProtocolError(f"no valid {name}: {error}"))
            self.close("malformed request")
            return
        pending = self._pending
        if len(pending) >= PENDING_MAX or request_id in pending:
            self._refuse(kind, request_id, _not_pending(request_id in pending))
            return
        shared = self._shared
        now_s = shared.clock()
        is_small = len(body) <= SMALL_BODY_BYTES and self.role == "client"
        if is_small:
            shared.vigil.asked()
        pending[request_id] = (kind, now_s, is_small)
        deadline_s = deadline_ms / 1000 if deadline_ms else limits.DEADLINE_S_DEFAULT
        shared.switchboard.request(self.number, request_id, message, now_s + deadline_s, now_s)

    def _handle_other(self, frame: Frame) -> None:
        """Answer what is no request that this peer may send."""
        kind, _, request_id, _, body = frame
        if not self.role:
            self._introduce(kind, request_id, body)
        elif kind in REQUEST_DECODERS:
            name = REQUEST_DECODERS[kind].type.__name__
            problem = f"a {self.role} cannot send {name} on this connection"
            self._refuse(kind, request_id, NotSupported(problem))
        else:
            problem = (
                f"this master ({self._shared.software}) does not know requests of kind {kind};"
                " it may be older than its peer: upgrade the master"
            )
            self._refuse(kind, request_id, NotSupported(problem))

    def _introduce(self, kind: int, request_id: int, body: bytes) -> None:
        """Take the handshake, which comes first and once."""
        try:
            hello = _read_hello(kind, body)
            self._check_protocol(hello)
            self._shared.check_room()
            if hello.role not in KINDS_OF_ROLE:
                raise InvalidArgument(f"no peer has the role {hello.role[:32]!r}")
        except StoreError as error:
            self._refuse(kind, request_id, error)
            self.close("handshake refused")
            return
        self.role = hello.role
        self.name = hello.name[:256]
        self._decoders = KINDS_OF_ROLE[hello.role]
        self._decoder.body_bytes_max = limits.FRAME_BYTES_MAX
        self.number = self._shared.known(self)
        welcome: Welcome = self._shared.welcome()
        self._write(encode_frame(kind, welcome, request_id=request_id, flags=REPLY))

    def _check_protocol(self, hello: Hello) -> None:
        ours = limits.PROTOCOL_VERSION
        if hello.protocol != ours:
            side = "master" if hello.protocol > ours else hello.role[:32] or "peer"
            raise ProtocolMismatch(
                f"the {hello.role[:32] or 'peer'} speaks protocol {hello.protocol}, this master"
                f" ({self._shared.software}) speaks {ours}: upgrade the {side}"
            )

    def _take_answer(self, frame: Frame) -> None:
        """Hand a node's answer to the core; one that comes too late is nobody's."""
        if self.role != "node" or not frame.flags & REPLY:
            self.close("malformed request")
            return
        asked = self._asked.pop(frame.request_id, None)
        if asked is None:
            return
        answer: Message | StoreError
        try:
            answer = (
                decode_error(frame.body)
                if frame.flags & ERROR
                else REPLY_DECODERS[asked.kind].decode(frame.body)
            )
        except (*_UNREADABLE, ProtocolError) as error:
            answer = ProtocolError(f"node {self.name} gave no valid answer: {error}")
            self.close("malformed answer")
        self._answered(asked, answer)

    def _answered(self, asked: _Asked, answer: Message | StoreError) -> None:
        if isinstance(answer, StoreError):
            self._shared.meters.instruct_failures[asked.kind] += 1
        self._shared.switchboard.node_replied(self.number, asked.token, answer)

    # --- bytes out ------------------------------------------------------------------------------

    def _refuse(self, kind: int, request_id: int, error: StoreError) -> None:
        known = kind if kind in REQUEST_DECODERS else 0
        self._shared.meters.errors[known, error.code] += 1
        self._write(encode_error(error, kind, request_id))

    def _write(self, frame: bytearray) -> None:
        transport = self._transport
        if self.closed_s or transport is None:
            return
        transport.write(frame)
        self._shared.meters.sent_bytes += len(frame)
        if (
            self.stalled_since_s
            and transport.get_write_buffer_size() > self._shared.write_buffer_bytes_max
        ):
            self.abort("slow reader")


def _not_pending(repeated: bool) -> StoreError:  # noqa: FBT001 - the one thing it is about
    if repeated:
        return ProtocolError("a request of that number is under way on this connection")
    return Overloaded(f"a connection has at most {PENDING_MAX} requests under way")


def _read_hello(kind: int, body: bytes) -> Hello:
    """Read a handshake leniently: one of another protocol version may look different."""
    if kind != _HELLO:
        raise ProtocolError("a connection begins with Hello")
    try:
        return msgspec.msgpack.decode(body, type=Hello)
    except _UNREADABLE as error:
        try:
            protocol = msgspec.msgpack.decode(_any_decoder.decode(body)[0], type=int)
        except (*_UNREADABLE, IndexError):
            raise ProtocolError(f"no valid Hello: {error}") from error
        if protocol == limits.PROTOCOL_VERSION:
            raise ProtocolError(f"no valid Hello: {error}") from error
        return Hello(protocol, "", "", "")
