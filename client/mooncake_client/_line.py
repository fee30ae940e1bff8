"""One blocking connection to a master, and the deadline of a call."""

from __future__ import annotations

import socket
import struct
from importlib.metadata import version
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mooncake_client._masters import SILENT_S
from mooncake_store import limits
from mooncake_store.deadline import Deadline
from mooncake_store.errors import ProtocolError, ProtocolMismatch, StoreError, Unreachable
from mooncake_store.transport.spinning import SPIN_S, step_aside
from mooncake_store.wire import control, frames
from mooncake_store.wire.control import KINDS
from mooncake_store.wire.frames import ERROR, REPLY, FrameDecoder, encode_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mooncake_store.transport.spinning import Spinner
    from mooncake_store.wire.control import Message
    from mooncake_store.wire.frames import Frame

OWED_S_MAX: Final = 1.0
"""Silence of a master that owes an answer, after which a call that runs out of time has the
connection closed. Less: short deadlines would cut others' puts off. More: a dead master is noticed
later."""

TELL_DEADLINE_MS: Final = 5000
"""Deadline that goes with what nobody waits for."""

ANSWER_MS: Final = 50
"""What the master's own words may need to arrive."""

SOFTWARE: Final = version("mooncake-store")

# Plain numbers: joining members of an enumeration takes longer than the system call's entry.
_AT_ONCE: Final = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
_NOW: Final = int(socket.MSG_DONTWAIT)
_TIMEVAL: Final = struct.Struct("@ll")


class CallDeadline(Deadline):
    """The deadline of a call.

    Attributes:
        is_explicit: The caller named it; else it is the client's default.
    """

    __slots__ = ("is_explicit",)

    def __init__(self, total_s: float, *, is_explicit: bool) -> None:
        """Start now; a default was checked when the client was made."""
        if is_explicit:
            super().__init__(total_s)
        else:
            self.total_s = total_s
            self.at_s = monotonic() + total_s
        self.is_explicit = is_explicit


def answer_ms(left_s: float) -> int:
    """Return the milliseconds that the master gets of the time left: a little less than all.

    So its own words (no room, another writer) arrive before we give up on it.
    """
    return int(left_s * 1000 - ANSWER_MS) if left_s > 1.0 else max(1, int(left_s * 950))


class Line:
    """One connection to a master, used by one thread at a time.

    After an interruption between a request and its reply it must be closed. A caller who ran out of
    time leaves it usable: a reply that comes later is passed over. Puts live by the connection they
    were started on, so it is not closed lightly.

    Attributes:
        reign: (cluster, term) of the master at the other end.
        is_clean: No request is unanswered that somebody waits for.
        verify: Raises ``Unreachable`` where the master is not there any more; None: do not doubt.
    """

    __slots__ = (
        "__weakref__", "_decoder", "_ids", "_is_sent", "_owed_since_s", "_socket", "_spinner",
        "_timeouts_s", "is_clean", "reign", "verify",
    )  # fmt: skip

    def __init__(self, sock: socket.socket, spinner: Spinner) -> None:
        self._socket = sock
        self._spinner = spinner
        self._decoder = FrameDecoder()
        self._ids = 0
        self._timeouts_s = {socket.SO_RCVTIMEO: 0.0, socket.SO_SNDTIMEO: 0.0}
        self._is_sent = True
        """The last request went out whole."""
        self._owed_since_s = 0.0
        """Since when the master owes an answer and has given none; 0: it does not."""
        self.is_clean = True
        self.reign = ("", 0)
        self.verify: Callable[[Line, Deadline], None] | None = None

    def greet(self, name: str, deadline: Deadline) -> control.Welcome:
        """Introduce ourselves.

        Raises:
            ProtocolMismatch: The master speaks another version.
            StoreError: What else it, or the network, answered.
        """
        hello = control.Hello(limits.PROTOCOL_VERSION, "client", name, SOFTWARE)
        welcome: control.Welcome = self.ask(hello, deadline)
        check_welcome(welcome)
        self._decoder.body_bytes_max = limits.FRAME_BYTES_MAX
        self.reign = (welcome.cluster_id, welcome.term)
        return welcome

    def ask(
        self, message: Message, deadline: Deadline, meanwhile: Callable[[], object] | None = None
    ) -> Any:  # noqa: ANN401 - the type that belongs to the request
        """Send a request and return its reply.

        Raises:
            StoreError: The master's answer, where that is an error; the line stays usable.
            Unreachable, DeadlineExceeded, ProtocolError: About the line, which is then not clean.
        """
        wanted = self._send(message, deadline)
        if meanwhile is not None:
            meanwhile()
        frame = self._next_frame(deadline)
        while frame.request_id != wanted:
            self._pass_over(frame)
            frame = self._next_frame(deadline)
        reply = decode_reply(frame, message)
        failed = isinstance(reply, StoreError)
        self.is_clean = True  # No call follows: an interruption would lose what was answered.
        if failed:
            raise reply
        return reply

    def ask_many(self, messages: Sequence[Message], deadline: Deadline) -> list[Any]:
        """Send requests back to back; return a reply or an error for each.

        Raises:
            Unreachable, DeadlineExceeded, ProtocolError: About the line, which is then not clean.
        """
        places = {self._send(message, deadline): at for at, message in enumerate(messages)}
        replies: list[Any] = [None] * len(messages)
        while places:
            frame = self._next_frame(deadline)
            at = places.pop(frame.request_id, None)
            if at is None:
                self._pass_over(frame)
            else:
                replies[at] = decode_reply(frame, messages[at])
        self.is_clean = True
        return replies

    def tell(self, message: Message) -> None:
        """Send a request whose reply nobody waits for, if the socket takes it at once."""
        self._ids = request_id = (self._ids + 1) & 0xFFFFFFFF
        frame = encode_frame(
            KINDS[type(message)], message, request_id=request_id, deadline_ms=TELL_DEADLINE_MS
        )
        try:
            sent = self._socket.send(frame, _AT_ONCE)
        except BlockingIOError:
            return
        except OSError:
            sent = 0
        if sent < len(frame):
            self.is_clean = False

    def outlives_deadline(self) -> bool:
        """After a call ran out of time: return whether the line can be used again.

        Not where a request is stuck half-way, or the master has owed answers for long.
        """
        since_s = self._owed_since_s
        if not self._is_sent or (since_s and monotonic() - since_s > OWED_S_MAX):
            return False
        self.is_clean = True
        return True

    def is_dead(self) -> bool:
        """Return whether the other side has closed the connection."""
        try:
            return not self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _pass_over(self, frame: Frame) -> None:
        """Take an answer whose caller ran out of time: what it was granted is given up."""
        abort = unheard(frame)
        if abort is not None:
            self.tell(abort)

    def _send(self, message: Message, deadline: Deadline) -> int:
        now_s = monotonic()
        left_s = deadline.at_s - now_s
        if left_s <= 0:
            deadline.check("asking the master")
        self._ids = request_id = (self._ids + 1) & 0xFFFFFFFF
        frame = encode_frame(
            KINDS[type(message)], message, request_id=request_id, deadline_ms=answer_ms(left_s)
        )
        self.is_clean = self._is_sent = False
        if not self._owed_since_s:
            self._owed_since_s = now_s
        try:
            sent = self._socket.send(frame, _AT_ONCE)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise Unreachable(f"the connection to the master broke: {error}") from error
        if sent < len(frame):
            self._send_rest(memoryview(frame)[sent:], deadline)
        self._is_sent = True
        return request_id

    def _send_rest(self, rest: memoryview, deadline: Deadline) -> None:
        while rest:
            self._limit(socket.SO_SNDTIMEO, deadline)
            try:
                rest = rest[self._socket.send(rest, socket.MSG_NOSIGNAL) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise Unreachable(f"the connection to the master broke: {error}") from error

    def _next_frame(self, deadline: Deadline) -> Frame:
        decoder = self._decoder
        while True:
            for frame in decoder:
                if not frame.flags & REPLY:
                    raise ProtocolError("the master sent a request to a client")
                return frame
            decoder.received(self._receive(decoder.buffer(), deadline))
            self._owed_since_s = 0.0

    def _receive(self, buffer: memoryview, deadline: Deadline) -> int:
        if self._spinner.wanted():
            end_s = monotonic() + SPIN_S
            got = self._receive_once(buffer, _NOW)
            while not got and monotonic() < end_s:
                step_aside()
                got = self._receive_once(buffer, _NOW)
            self._spinner.learn(paid=got > 0)
            if got:
                return got
        patience_s = SILENT_S if self.verify is not None else None
        while True:
            self._limit(socket.SO_RCVTIMEO, deadline, patience_s)
            got = self._receive_once(buffer, 0)
            if got:
                return got
            if self.verify is not None and patience_s is not None:
                self.verify(self, deadline)
                patience_s *= 2

    def _receive_once(self, buffer: memoryview, flags: int) -> int:
        try:
            got = self._socket.recv_into(buffer, 0, flags)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise Unreachable(f"the connection to the master broke: {error}") from error
        if not got:
            raise Unreachable("the master closed the connection")
        return got

    def _limit(self, option: int, deadline: Deadline, most_s: float | None = None) -> None:
        """Set the kernel's time-out for the next call, unless the last one is tight enough."""
        left = deadline.check("waiting for the master")
        if most_s is not None:
            left = min(left, most_s)
        if left <= self._timeouts_s[option] <= left + 1e-3:
            return
        seconds, part = divmod(max(left, 1e-4), 1.0)
        value = _TIMEVAL.pack(int(seconds), int(part * 1e6) + 1)
        self._socket.setsockopt(socket.SOL_SOCKET, option, value)
        self._timeouts_s[option] = left


def check_welcome(welcome: control.Welcome) -> None:
    """Make sure that we speak the master's protocol.

    Raises:
        ProtocolMismatch: We do not; the message names both versions.
    """
    if welcome.protocol != limits.PROTOCOL_VERSION:
        raise ProtocolMismatch(
            f"the master speaks protocol {welcome.protocol} (version {welcome.software}), this"
            f" client {limits.PROTOCOL_VERSION} ({SOFTWARE})"
        )


def decode_reply(frame: Frame, message: Message) -> Any:  # noqa: ANN401 - see Line.ask
    """Return what a frame answers to ``message``: a reply, or an error in its place.

    Raises:
        ProtocolError: It answers something else, or is no message.
    """
    kind, flags, _, _, body = frame
    if kind != KINDS[type(message)]:
        raise ProtocolError(f"the master answered a {type(message).__name__} with kind {kind}")
    if flags & ERROR:
        return frames.decode_error(body)
    try:
        return control.REPLY_DECODERS[kind].decode(body)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"a reply of the master cannot be read: {error}") from error


def unheard(frame: Frame) -> control.PutAbort | None:
    """Return what to tell the master after an answer that nobody waits for any more.

    An attempt that it has granted would keep others from its key, and its room, for the put TTL.

    Raises:
        ProtocolError: The answer cannot be read.
    """
    kind, flags, _, _, body = frame
    if kind != KINDS[control.PutStart] or flags & ERROR:
        return None
    try:
        return given_up(control.REPLY_DECODERS[kind].decode(body))
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"a reply of the master cannot be read: {error}") from error


def given_up(reply: object) -> control.PutAbort | None:
    """Return what gives up all that a reply grants; None where that is nothing."""
    items = reply.items if isinstance(reply, control.PutStarted) else ()
    versions = [item.version for item in items if isinstance(item, control.PutGrant)]
    return control.PutAbort(versions) if versions else None
