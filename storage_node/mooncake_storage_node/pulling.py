"""Getting an extent from where it lies to an ``Arrival``: over the data protocol, or from here."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from mooncake_store.errors import (
    ChecksumMismatch,
    InvalidArgument,
    ProtocolError,
    StaleExtent,
    StoreError,
)
from mooncake_store.extent import HEADER_BYTES
from mooncake_store.limits import MIB
from mooncake_store.transport.effects import Receive, Send
from mooncake_store.transport.one_chunk import Reply
from mooncake_store.wire import data
from mooncake_store.wire.data import Operation

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from concurrent.futures import Future

    from mooncake_storage_node.arrival import Arrival
    from mooncake_storage_node.ssd import Staged, Store
    from mooncake_store.deadline import Deadline
    from mooncake_store.segment import Segment
    from mooncake_store.transport.effects import Effects
    from mooncake_store.wire.control import CopyItem

PIECE_BYTES: Final = 1 * MIB
"""Bytes that are received and then moved and hashed at a time. Smaller: more system calls. Larger:
they have left the cache before they are hashed, and a cut-off waits longer."""

PIECES_AHEAD: Final = 4
"""Pieces of an extent that are read from a disk at a time. Fewer: the disk idles meanwhile."""


class Pull:
    """Reads one extent from a node, as it is, padding apart. Sans-I/O.

    Attributes:
        done: 1 once the exchange is over, well or with ``error``; the connection is usable then.
        answered: Whether any byte of a reply has come.
        error: Why the extent cannot be had from there.
    """

    def __init__(self, arrival: Arrival, deadline: Deadline) -> None:
        self.done = 0
        self.answered = False
        self.error: StoreError | None = None
        self._arrival = arrival
        self._deadline = deadline

    def effects(self, ids: Iterator[int], scratch: memoryview, node: str) -> Effects:
        """Run the exchange.

        Args:
            ids: Numbers for requests.
            scratch: Memory that bytes are received into; the larger, the fewer calls.
            node: Name of the source, for messages.

        Raises:
            StaleTerm: The copy was cut off on its way.
            ProtocolError: The peer's bytes are no reply to what was asked.
        """
        try:
            yield from self._ask(next(ids), 0, HEADER_BYTES, node)
            head = memoryview(bytearray(HEADER_BYTES))
            yield Receive([head], HEADER_BYTES)
            left = self._arrival.take_header(head) - HEADER_BYTES
            yield from self._ask(next(ids), HEADER_BYTES, left, node)
            while left:
                piece = scratch[: min(left, len(scratch))]
                yield Receive([piece], len(piece))
                self._arrival.take(piece)
                left -= len(piece)
            try:
                self._arrival.verify()
            except ChecksumMismatch:
                # Damaged, or given to another object while it was read: its header tells.
                yield from self._ask(next(ids), 0, HEADER_BYTES, node)
                yield Receive([head], HEADER_BYTES)
                raise
        except (StaleExtent, ChecksumMismatch, _Refused) as error:
            self.error = error.error if isinstance(error, _Refused) else error
        self.done = 1

    def _ask(self, request_id: int, start: int, size: int, node: str) -> Effects:
        item = self._arrival.item
        entry = (
            item.source_incarnation, item.source_offset, item.source_attempt or item.version,
            start, size,
        )  # fmt: skip
        left_ms = self._deadline.left_ms()
        frame = data.encode_request(Operation.READ, request_id, [entry], deadline_ms=left_ms)
        yield Send([memoryview(frame)])
        reply = Reply(Operation.READ, request_id, 1)
        yield Receive([reply.head], reply.size)
        self.answered = True
        reply.check()
        status = reply.statuses[0]
        if reply.payload_bytes != (0 if status else size):
            raise ProtocolError("the reply announces other bytes than were asked for")
        if status:
            raise _Refused(data.error_of(status, node=node))


class _Refused(Exception):
    """The source's answer is an error: nothing of the request is left on the connection."""

    def __init__(self, error: StoreError) -> None:
        super().__init__(str(error))
        self.error = error


def copy_here(
    arrival: Arrival, segment: Segment, deadline: Deadline
) -> Generator[None, None, None]:
    """Take an extent from a segment of this node, a piece at each step.

    Raises:
        StaleExtent: It is not, or no longer, there.
        ChecksumMismatch: It is damaged.
        StaleTerm: The copy was cut off.
        InvalidArgument: There is no such place.
        DeadlineExceeded: It took too long.
    """
    item = arrival.item
    check_source(item, segment)
    source = segment.extents[item.source_offset : item.source_offset + item.bytes]
    try:
        whole = arrival.take_header(memoryview(bytes(source[:HEADER_BYTES])))
        for at in range(HEADER_BYTES, whole, PIECE_BYTES):
            deadline.check("copying an extent")
            arrival.take(source[at : min(whole, at + PIECE_BYTES)])
            yield
        arrival.verify()
    except ChecksumMismatch:
        check_source(item, segment)
        raise


def check_source(item: CopyItem, segment: Segment) -> None:
    """Make sure that what is to be copied is in a segment.

    Raises:
        StaleExtent: It is not, or no longer.
        InvalidArgument: There is no such place.
    """
    if not segment.fits(item.source_offset, item.bytes):
        raise InvalidArgument(f"no extent of {item.bytes} bytes at {item.source_offset}")
    if not segment.holds(item.source_offset, item.source_attempt or item.version):
        raise StaleExtent(f"version {item.version} is not at {item.source_offset} any more")


def load_here(arrival: Arrival, store: Store, deadline: Deadline) -> None:
    """Take an extent from a store of this node; while a piece is hashed the next ones are read.

    Raises:
        StaleExtent: It is not, or no longer, there.
        ChecksumMismatch: It is damaged.
        StaleTerm: The copy was cut off.
        Overloaded: The disk is in trouble, or too much is asked of it.
        DeadlineExceeded: It took too long.
    """
    item = arrival.item
    place = (item.source_offset, item.version)
    with store.read(*place, 0, HEADER_BYTES, deadline).result() as head:
        whole = arrival.take_header(head)
    ahead: deque[Future[Staged]] = deque()
    at = HEADER_BYTES
    try:
        while ahead or at < whole:
            while at < whole and len(ahead) < PIECES_AHEAD:
                size = min(PIECE_BYTES, whole - at)
                ahead.append(store.read(*place, at, size, deadline))
                at += size
            with ahead.popleft().result() as piece:
                arrival.take(piece)
    finally:
        for future in ahead:
            future.add_done_callback(_give_back)
    try:
        arrival.verify()
    except ChecksumMismatch as error:
        store.give_up(*place, error.code)
        raise


def _give_back(future: Future[Staged]) -> None:
    if not future.cancelled() and future.exception() is None:
        future.result().release()
