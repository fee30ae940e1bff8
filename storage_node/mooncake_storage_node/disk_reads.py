"""The part of a reply that comes from disks: read ahead, bounded; no data thread waits for it.

Statuses go out before the bytes, so a request is answered when its first piece was read, with what
is known by then: a disk in trouble is a status. If a later piece turns out damaged or gone, zeros
are sent in its place, and in that of all that follows of that extent: the reader finds them
damaged, asks again, and is told why. If the disk is only late or in trouble, the connection ends:
readers report what came damaged twice, and the copy on that disk may be well.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final, NamedTuple

from mooncake_storage_node.ssd import PIECE_BYTES
from mooncake_store.errors import (
    ChecksumMismatch,
    InvalidArgument,
    StaleExtent,
    StoreError,
)
from mooncake_store.limits import KIB, MIB
from mooncake_store.wire import data
from mooncake_store.wire.data import Operation, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from mooncake_storage_node.ssd import Staged, Store
    from mooncake_storage_node.store_orders import StoreOrders
    from mooncake_store.deadline import Deadline
    from mooncake_store.segment import Segment
    from mooncake_store.wire.data import Entry

AHEAD_BYTES: Final = 3 * PIECE_BYTES
"""Memory of pieces that one connection has read, or asked a disk for, and not sent. Smaller: a disk
idles while they are sent. Larger: slow readers hold more of the memory that all reads share."""

AHEAD_PIECES: Final = 16
"""The same, counted in reads."""

SMALL_BYTES: Final = 64 * KIB
"""Pieces up to this size take no more memory than they need; others that of the largest."""

ZEROS_BYTES_MAX: Final = 8 * MIB
"""Zeros that are sent for an extent that cannot be read on; more costs more than a connection."""

ZEROS: Final = memoryview(bytes(256 * KIB))


class CannotGoOn(Exception):
    """An extent cannot be read to its end, and zeros would be a lie or too many."""


class Piece(NamedTuple):
    """One read of a disk that was asked for."""

    entry: int
    """Entry of the request that it is part of."""
    size: int
    future: Future[Staged]


class DiskReply:
    """Reads what a request names on disks, a few pieces ahead of what is sent.

    Attributes:
        statuses: Of all entries of the request.
    """

    def __init__(
        self,
        disks: StoreOrders,
        entries: Sequence[Entry],
        statuses: list[Status],
        deadline: Deadline,
        wake: Callable[[], None],
    ) -> None:
        """Look at what is asked; ``fill`` begins to read.

        Args:
            disks: The node's stores.
            entries: Of the request, those of segments included.
            statuses: Of each entry; ``UNKNOWN_SEGMENT`` where it is to be looked for on disks.
            deadline: When a read has ended.
            wake: Called, on any thread, when one has.
        """
        self.statuses = statuses
        self._disks = disks
        self._entries = entries
        self._deadline = deadline
        self._wake = wake
        self._stores: dict[int, Store] = {}
        self._ahead: deque[Piece] = deque()
        self._ahead_bytes = 0
        self._bad: set[tuple[int, int]] = set()
        """(incarnation, location) of extents that cannot be read on."""
        for index, entry in enumerate(entries):
            if statuses[index] is Status.UNKNOWN_SEGMENT:
                statuses[index] = self._look(index, entry)
        self._wanted = self._walk()
        self._next = next(self._wanted, None)

    def _look(self, index: int, entry: Entry) -> Status:
        store = self._disks.stores.find(entry.incarnation)
        if store is None:
            is_closed = self._disks.stores.owns(entry.incarnation)
            return Status.BUSY if is_closed else Status.UNKNOWN_SEGMENT
        try:
            size = store.size_of(entry.offset, self._disks.version_of(entry.version))
        except StoreError as error:
            return status_of(error)
        if entry.start + entry.bytes > size:
            return Status.OUT_OF_RANGE
        self._stores[index] = store
        return Status.OK

    def _walk(self) -> Iterator[tuple[int, int, int]]:
        """Yield (entry, first byte, bytes) of all pieces, in order."""
        for index in self._stores:
            entry = self._entries[index]
            for at in range(entry.start, entry.start + entry.bytes, PIECE_BYTES):
                yield index, at, min(PIECE_BYTES, entry.start + entry.bytes - at)

    # --- reading ahead --------------------------------------------------------------------------

    def fill(self) -> None:
        """Ask disks for the next pieces, as far ahead as is allowed."""
        while self._next is not None:
            index, start, size = self._next
            if self._ahead and (
                self._ahead_bytes + _memory(size) > AHEAD_BYTES or len(self._ahead) >= AHEAD_PIECES
            ):
                return
            self._next = next(self._wanted, None)
            if not self.statuses[index]:
                self._ask(index, start, size)

    def _ask(self, index: int, start: int, size: int) -> None:
        entry = self._entries[index]
        version = self._disks.version_of(entry.version)
        try:
            future = self._stores[index].read(entry.offset, version, start, size, self._deadline)
        except StoreError as error:
            future = _failed(error)
        self._ahead.append(Piece(index, size, future))
        self._ahead_bytes += _memory(size)
        future.add_done_callback(lambda _: self._wake())

    # --- sending --------------------------------------------------------------------------------

    def steps(
        self, request_id: int, segments: Mapping[int, Segment]
    ) -> Iterator[list[memoryview] | None]:
        """Yield what is to be sent, buffer by buffer, or None to wait until ``wake`` is called.

        Buffers may be used again once the next step is taken.

        Raises:
            CannotGoOn: Bytes are missing that zeros cannot stand for: end the connection.
        """
        self.fill()
        while self._ahead and not self._ahead[0].future.done():
            yield None  # Not for all: those who hold some while they wait could wait for ever.
        self._judge()
        sizes = [
            entry.bytes
            for entry, status in zip(self._entries, self.statuses, strict=True)
            if not status
        ]
        head = data.encode_reply(Operation.READ, request_id, self.statuses, sum(sizes))
        yield [memoryview(head)]
        for index, entry in enumerate(self._entries):
            if self.statuses[index]:
                continue
            if index in self._stores:
                yield from self._from_disk(entry.bytes)
            else:
                start = entry.offset + entry.start
                yield [segments[entry.incarnation].extents[start : start + entry.bytes]]

    def _judge(self) -> None:
        """Turn what has failed before the answer into statuses."""
        for piece in self._ahead:
            error = piece.future.exception() if piece.future.done() else None
            if error is not None and not self.statuses[piece.entry]:
                self.statuses[piece.entry] = status_of(error)
        if not self._deadline.left_s():
            self._give_up()
        kept: deque[Piece] = deque()
        for piece in self._ahead:
            if self.statuses[piece.entry]:
                self._ahead_bytes -= _memory(piece.size)
                piece.future.add_done_callback(_give_back)
            else:
                kept.append(piece)
        self._ahead = kept

    def _give_up(self) -> None:
        """Turn what has not been read into busy: nothing of it can come any more."""
        unread = {piece.entry for piece in self._ahead if not piece.future.done()}
        if self._next is not None:
            unread.update(index for index in self._stores if index >= self._next[0])
        for index in unread:
            self.statuses[index] = self.statuses[index] or Status.BUSY

    def _from_disk(self, left: int) -> Iterator[list[memoryview] | None]:
        while left:
            self.fill()
            piece = self._ahead[0]
            while not piece.future.done():
                yield None
            staged = self._take()
            if staged is not None:
                with staged as view:
                    yield [view]
            else:
                if left > ZEROS_BYTES_MAX:
                    raise CannotGoOn
                for at in range(0, piece.size, len(ZEROS)):
                    yield [ZEROS[: min(len(ZEROS), piece.size - at)]]
            left -= piece.size

    def _take(self) -> Staged | None:
        """Return what the next piece has read; None where it is damaged or gone.

        Raises:
            CannotGoOn: The disk is late or in trouble.
        """
        piece = self._ahead.popleft()
        self._ahead_bytes -= _memory(piece.size)
        entry = self._entries[piece.entry]
        place = (entry.incarnation, entry.offset)
        error = piece.future.exception()
        if place not in self._bad and error is None:
            return piece.future.result()
        if error is not None and status_of(error) is Status.BUSY:
            raise CannotGoOn
        self._bad.add(place)
        _give_back(piece.future)
        return None

    def close(self) -> None:
        """Give all memory back, now or as soon as the disk has answered. Idempotent."""
        self._wake = _nothing
        while self._ahead:
            self._ahead.popleft().future.add_done_callback(_give_back)


def _memory(size: int) -> int:
    """Return the memory that a piece takes in the store."""
    return size if size <= SMALL_BYTES else PIECE_BYTES


def status_of(error: BaseException) -> Status:
    """Return what a reader is told of an error.

    A disk that is too slow is busy, as one in trouble is: the node itself is well.
    """
    if isinstance(error, StaleExtent):
        return Status.STALE
    if isinstance(error, ChecksumMismatch):
        return Status.DAMAGED
    if isinstance(error, InvalidArgument):
        return Status.OUT_OF_RANGE
    return Status.BUSY


def _failed(error: StoreError) -> Future[Staged]:
    future: Future[Staged] = Future()
    future.set_exception(error)
    return future


def _give_back(future: Future[Staged]) -> None:
    if not future.cancelled() and future.exception() is None:
        future.result().release()


def _nothing() -> None:
    """Do nothing: nobody waits any more."""
