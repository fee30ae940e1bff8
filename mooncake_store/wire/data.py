"""The data protocol over TCP: fixed binary headers, then payload. Sans-I/O.

A request is a header, ``count`` entries, then for a write the bytes of all its extents; its reply
is a header, ``count`` statuses, then for a read the bytes of all entries whose status is ``OK``,
in order. Payload goes straight from and into its final memory (``sendmsg``, ``recv_into``).

    header, 24 bytes                         entry, 40 bytes
    0   u16  magic                           0   u64  incarnation of the segment
    2   u8   operation                       8   u64  offset of the extent in it
    3   u8   flags: ``REPLY``                16  u64  version expected (read) or attempt (write)
    4   u32  count of entries or statuses    24  u64  first byte wanted, from the extent's start
    8   u32  request id                      32  u64  bytes
    12  u32  milliseconds left
    16  u64  payload bytes that follow       status: u32, a ``Status``

The first request of a connection is ``HELLO`` with a ``Greeting`` as payload; the node answers with
its own, so that a client never takes bytes from another process on a known port.
"""

from __future__ import annotations

import enum
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from mooncake_store import limits
from mooncake_store.errors import (
    ChecksumMismatch,
    DeadlineExceeded,
    InvalidArgument,
    NotSupported,
    Overloaded,
    ProtocolError,
    StaleExtent,
    StaleTerm,
    StoreError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

MAGIC: Final = 0x4B4D
REPLY: Final = 1
HEADER: Final = struct.Struct("<HBBIIIQ")
HEADER_BYTES: Final = HEADER.size
ENTRY: Final = struct.Struct("<QQQQQ")
ENTRY_BYTES: Final = ENTRY.size
STATUS: Final = struct.Struct("<I")
STATUS_BYTES: Final = STATUS.size
ONE_REQUEST: Final = struct.Struct("<HBBIIIQQQQQQ")
"""Header and entry of a request with one entry, in one step: most requests are small reads."""
ONE_REQUEST_BYTES: Final = ONE_REQUEST.size
ONE_REPLY: Final = struct.Struct("<HBBIIIQI")
ONE_REPLY_BYTES: Final = ONE_REPLY.size
GREETING: Final = struct.Struct("<I32sI")
GREETING_BYTES: Final = GREETING.size


class Operation(enum.IntEnum):
    """What a data request asks."""

    HELLO = 1
    READ = 2
    WRITE = 3
    RDMA_OPEN = 4
    """Connect a queue pair of ours (``wire.rdma``)."""
    RDMA_BEGIN = 5
    """Declare extents that will be written one-sidedly."""
    RDMA_END = 6
    """Publish those that were; the payload is their headers."""


class Status(enum.IntEnum):
    """Result of one entry."""

    OK = 0
    STALE = 1
    """The extent does not hold that version (any more), or its epoch was raised."""
    UNKNOWN_SEGMENT = 2
    """This process has no segment of that incarnation."""
    OUT_OF_RANGE = 3
    FENCED = 4
    """The attempt was freed or belongs to an older term; its bytes were thrown away."""
    DAMAGED = 5
    """The extent's header does not verify."""
    BUSY = 6
    """A bounded resource of the node is used up; try another replica."""
    DEADLINE = 7
    LANDED = 8
    """Answer to ``RDMA_BEGIN``: that attempt is in place already, there is nothing to write."""
    NO_RDMA = 9
    """This node has no device for it, or cannot reach the endpoint."""


class Header(NamedTuple):
    """One received header."""

    operation: int
    reply: bool
    count: int  # type: ignore[assignment]  # entries; nobody counts fields of a header
    request_id: int
    deadline_ms: int
    payload_bytes: int


class Entry(NamedTuple):
    """One extent, or a part of one, that a request names."""

    incarnation: int
    offset: int
    version: int
    start: int
    bytes: int


class Greeting(NamedTuple):
    """Who speaks: a client states the node it wants, a node states itself."""

    protocol: int
    node_id: str
    term: int


def encode_request(
    operation: Operation,
    request_id: int,
    entries: Sequence[tuple[int, int, int, int, int]],
    *,
    deadline_ms: int,
    payload_bytes: int = 0,
) -> bytearray:
    """Return header and entries of a request; a write's payload follows it."""
    frame = bytearray(HEADER_BYTES + ENTRY_BYTES * len(entries))
    HEADER.pack_into(
        frame, 0, MAGIC, operation, 0, len(entries), request_id, deadline_ms, payload_bytes
    )
    flat = [number for entry in entries for number in entry]
    struct.pack_into(f"<{len(flat)}Q", frame, HEADER_BYTES, *flat)
    return frame


def encode_reply(
    operation: int, request_id: int, statuses: Sequence[int], payload_bytes: int = 0
) -> bytearray:
    """Return header and statuses of a reply; a read's payload follows it."""
    frame = bytearray(HEADER_BYTES + STATUS_BYTES * len(statuses))
    HEADER.pack_into(frame, 0, MAGIC, operation, REPLY, len(statuses), request_id, 0, payload_bytes)
    struct.pack_into(f"<{len(statuses)}I", frame, HEADER_BYTES, *statuses)
    return frame


def encode_greeting(greeting: Greeting, request_id: int, *, reply: bool) -> bytes:
    """Return a whole ``HELLO`` request or reply."""
    head = HEADER.pack(
        MAGIC, Operation.HELLO, REPLY if reply else 0, 0, request_id, 0, GREETING_BYTES
    )
    return head + GREETING.pack(greeting.protocol, greeting.node_id.encode(), greeting.term)


def decode_greeting(payload: bytes | bytearray | memoryview) -> Greeting:
    """Read a greeting.

    Raises:
        ProtocolError: It is none.
    """
    try:
        protocol, node_id, term = GREETING.unpack(payload)
        return Greeting(protocol, node_id.rstrip(b"\0").decode("ascii"), term)
    except (struct.error, UnicodeDecodeError) as error:
        raise ProtocolError(f"no greeting of the data protocol: {error}") from error


def decode_header(source: bytes | bytearray | memoryview, *, reply: bool) -> Header:
    """Read and check a header of the wanted direction.

    Raises:
        ProtocolError: It is none, or names more entries than ``limits.DATA_ENTRIES_MAX``.
    """
    magic, operation, flags, count, request_id, deadline_ms, payload = HEADER.unpack_from(source)
    if magic != MAGIC or bool(flags & REPLY) is not reply:
        raise ProtocolError("the stream holds no header of the data protocol")
    if count > limits.DATA_ENTRIES_MAX:
        raise ProtocolError(f"{count} entries are over the limit {limits.DATA_ENTRIES_MAX}")
    return Header(operation, reply, count, request_id, deadline_ms, payload)


def decode_entries(source: bytes | bytearray | memoryview, count: int) -> list[Entry]:
    """Read ``count`` entries; the buffer holds exactly those."""
    return [
        Entry(*fields) for fields in ENTRY.iter_unpack(memoryview(source)[: ENTRY_BYTES * count])
    ]


def decode_statuses(source: bytes | bytearray | memoryview, count: int) -> tuple[int, ...]:
    """Read ``count`` statuses."""
    return struct.unpack_from(f"<{count}I", source)


_ERRORS: Final[dict[int, tuple[type[StoreError], str]]] = {
    Status.STALE: (StaleExtent, "the extent no longer holds that version"),
    Status.UNKNOWN_SEGMENT: (StaleExtent, "the node has no segment of that incarnation"),
    Status.OUT_OF_RANGE: (InvalidArgument, "the range lies outside of the extent's segment"),
    Status.FENCED: (StaleTerm, "the attempt is over; its bytes were refused"),
    Status.DAMAGED: (ChecksumMismatch, "the extent's header is damaged"),
    Status.BUSY: (Overloaded, "the node has no room for this transfer now"),
    Status.DEADLINE: (DeadlineExceeded, "the node gave the transfer up at its deadline"),
    Status.LANDED: (StaleTerm, "that attempt is in place already"),
    Status.NO_RDMA: (NotSupported, "the node has no RDMA device that reaches this side"),
}


def error_of(status: int, *, node: str) -> StoreError:
    """Return the exception for a status that is not ``OK``."""
    kind, sentence = _ERRORS.get(status, (ProtocolError, f"unknown status {status}"))
    return kind(f"{sentence} (node {node})", node=node)
