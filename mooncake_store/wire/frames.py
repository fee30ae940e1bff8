"""Control frames: a 16-byte header, then one msgpack message. Sans-I/O.

    0   u32  body bytes
    4   u16  kind: which message the body is (``control.KINDS``)
    6   u16  flags: ``REPLY``, ``ERROR``
    8   u32  request id, chosen by the side that asks, repeated in the reply
    12  u32  milliseconds of the deadline that are left (requests; 0 in replies)

The decoder owns one buffer that the socket receives into (``recv_into``, ``BufferedProtocol``),
so bytes are copied once, into the decoded message.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from mooncake_store import errors, limits
from mooncake_store.errors import ProtocolError, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

HEADER: Final = struct.Struct("<IHHII")
HEADER_BYTES: Final = HEADER.size
REPLY: Final = 1
ERROR: Final = 2
DEADLINE_MS_MAX: Final = (1 << 32) - 1
_BUFFER_BYTES: Final = 64 * limits.KIB
"""Bytes received at a time: most frames fit, and an idle connection costs no more."""
_SMALL_BYTES: Final = 4 * limits.KIB
"""Least memory for the rest of a frame that did not arrive whole."""

_encoder = msgspec.msgpack.Encoder()
_encode_into = _encoder.encode_into
_pack_into = HEADER.pack_into


class Frame(NamedTuple):
    """One received frame."""

    kind: int
    flags: int
    request_id: int
    deadline_ms: int
    body: bytes


class ErrorReply(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Body of a reply with ``ERROR``."""

    code: str
    message: str
    key: str | None = None
    node: str | None = None

    def to_error(self) -> StoreError:
        """Rebuild the exception."""
        return errors.from_code(self.code, self.message, key=self.key, node=self.node)


def encode_frame(
    kind: int,
    message: msgspec.Struct,
    *,
    request_id: int,
    flags: int = 0,
    deadline_ms: int = 0,
) -> bytearray:
    """Return one frame, header and body in one buffer that the caller owns.

    Raises:
        ProtocolError: The body is over ``limits.FRAME_BYTES_MAX``, so the sender must cut it, or
            holds a number of more than 64 bits.
    """
    frame = bytearray(HEADER_BYTES)
    try:
        _encode_into(message, frame, HEADER_BYTES)
    except OverflowError as error:
        raise ProtocolError(f"a {type(message).__name__} cannot be encoded: {error}") from error
    size = len(frame) - HEADER_BYTES
    if size > limits.FRAME_BYTES_MAX:
        raise ProtocolError(
            f"a {type(message).__name__} of {size} bytes is over the frame limit of"
            f" {limits.FRAME_BYTES_MAX}"
        )
    _pack_into(frame, 0, size, kind, flags, request_id, min(deadline_ms, DEADLINE_MS_MAX))
    return frame


def encode_error(error: StoreError, kind: int, request_id: int) -> bytearray:
    """Return the reply frame that carries an exception to the peer."""
    body = ErrorReply(error.code, str(error), error.key, error.node)
    return encode_frame(kind, body, request_id=request_id, flags=REPLY | ERROR)


_error_decoder = msgspec.msgpack.Decoder(ErrorReply)


def decode_error(body: bytes) -> StoreError:
    """Return the exception that an error reply carries."""
    try:
        return _error_decoder.decode(body).to_error()
    except msgspec.DecodeError as error:
        raise ProtocolError(f"an error reply cannot be read: {error}") from error


class FrameDecoder:
    """Cuts a byte stream into frames.

    ``buffer()`` gives the memory to receive into, ``received(n)`` says how much came, then
    iterating yields the complete frames. Memory grows only to the frame that is under way, which
    ``body_bytes_max`` bounds, and shrinks again after it.

    A server gives all decoders of its thread one ``shared`` buffer: what arrives whole costs no
    memory of its own, so an idle connection holds none. Such a server calls ``settle`` after it
    iterated and before another decoder's ``buffer``; what is left of a frame then moves to memory
    that grows with the bytes received, not with the size that a peer announces.

    Attributes:
        body_bytes_max: Largest body accepted now; small until the peer has introduced itself.
    """

    __slots__ = ("_end", "_shared", "_start", "_view", "_wanted", "body_bytes_max")

    def __init__(
        self,
        body_bytes_max: int = limits.FRAME_BYTES_STRANGER_MAX,
        *,
        shared: memoryview | None = None,
    ) -> None:
        self.body_bytes_max = body_bytes_max
        self._shared = shared
        self._view = memoryview(bytearray(_BUFFER_BYTES)) if shared is None else shared
        self._start = 0
        self._end = 0
        self._wanted = 0

    def buffer(self) -> memoryview:
        """Return non-empty memory for the next bytes of the stream; it stays ours."""
        if self._start == self._end:
            self._start = self._end = 0
            if self._shared is not None:
                self._view = self._shared
                return self._view
            if len(self._view) > _BUFFER_BYTES:
                self._move(_BUFFER_BYTES)
        elif len(self._view) - self._end < HEADER_BYTES:
            self._move(len(self._view) if self._shared is None else self._grown_bytes())
        return self._view[self._end :]

    def received(self, count: int) -> None:
        """Say that ``count`` bytes were received into ``buffer()``."""
        self._end += count

    @property
    def pending(self) -> int:
        """Bytes received that no frame was cut from yet."""
        return self._end - self._start

    def settle(self) -> None:
        """Leave the shared buffer to others: move what is pending into memory of our own."""
        if self._view is self._shared and self._start != self._end:
            self._move(self._grown_bytes())

    def __iter__(self) -> Iterator[Frame]:
        """Yield the complete frames received so far.

        Raises:
            ProtocolError: The peer announces a body over ``body_bytes_max``.
        """
        return self

    def __next__(self) -> Frame:
        have = self._end - self._start
        if have < HEADER_BYTES:
            self._wanted = HEADER_BYTES
            raise StopIteration
        size, kind, flags, request_id, deadline_ms = HEADER.unpack_from(self._view, self._start)
        if size > self.body_bytes_max:
            raise ProtocolError(f"a frame of {size} bytes is over the limit {self.body_bytes_max}")
        whole = HEADER_BYTES + size
        if have < whole:
            self._wanted = whole
            if self._shared is None and self._start + whole > len(self._view):
                self._move(max(whole, _BUFFER_BYTES))
            raise StopIteration
        at = self._start + HEADER_BYTES
        self._start += whole
        return Frame(kind, flags, request_id, deadline_ms, bytes(self._view[at : at + size]))

    def _grown_bytes(self) -> int:
        """Return how much to hold for a frame under way: up to twice what came, or all of it."""
        have = self._end - self._start
        return max(_SMALL_BYTES, have + HEADER_BYTES, min(self._wanted, 2 * have))

    def _move(self, size: int) -> None:
        """Move the unread bytes to the front of a buffer of ``size`` bytes of our own."""
        kept = bytes(self._view[self._start : self._end])
        if size != len(self._view) or self._view is self._shared:
            self._view = memoryview(bytearray(size))
        self._view[: len(kept)] = kept
        self._start, self._end = 0, len(kept)
