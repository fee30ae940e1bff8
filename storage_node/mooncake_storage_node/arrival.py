"""A copy of an extent while it comes in: every byte is verified where it landed, then published."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from mooncake_storage_node.core.fencing import overlaps
from mooncake_storage_node.writes import Incoming
from mooncake_store import extent
from mooncake_store.errors import (
    ChecksumMismatch,
    InvalidArgument,
    StaleExtent,
    StaleTerm,
)
from mooncake_store.extent import HEADER_BYTES, ChunkHasher, Header
from mooncake_store.limits import KIB, NAMESPACES_MAX
from mooncake_store.memory import address_of, move
from mooncake_store.segment import FREED
from mooncake_store.types import term_of

if TYPE_CHECKING:
    from mooncake_storage_node.writes import IncomingWrites
    from mooncake_store.segment import Segment
    from mooncake_store.wire.control import CopyItem

MOVE_BYTES_MIN: Final = 64 * KIB
"""Copies from this size on let other threads run; below, that costs more than the copy."""


class Arrival:
    """Takes the bytes of one extent in order, and verifies what it has taken.

    What is hashed is the memory that the copy leaves behind, not what came: so a source that
    changes, a line that lies and a copy that fails are all noticed by the same check.

    Attributes:
        item: What was ordered.
        write: What an order to free cuts off.
        whole: Bytes of the extent without its padding; 0 until the header was seen.
        is_verified: Whether everything has come and is what was written once.
    """

    def __init__(self, item: CopyItem, room: memoryview) -> None:
        """Take bytes into ``room``, whose first ``HEADER_BYTES`` stay untouched until the end.

        Args:
            item: What was ordered.
            room: ``item.bytes`` of writable memory (1-D, format "B").
        """
        self.item = item
        self.whole = 0
        self.is_verified = False
        place = (item.incarnation, item.offset)
        self.write = Incoming(place, item.bytes, item.attempt, threading.Lock())
        self._room = room
        self._header: Header | None = None
        self._raw_header = b""
        self._hasher = ChunkHasher()
        self._at = HEADER_BYTES

    def take_header(self, raw: memoryview) -> int:
        """Look at the header, which comes first; return the bytes of the extent without padding.

        Raises:
            StaleExtent: It is not the version that was ordered.
            ChecksumMismatch: It is damaged, or says more than the extent's room.
        """
        header = extent.unpack_header(raw)
        if header.version != self.item.version:
            raise StaleExtent(f"the source holds version {header.version}, not {self.item.version}")
        whole = extent.read_bytes(header.length) + header.name_bytes
        if whole > self.item.bytes or header.slot >= NAMESPACES_MAX:
            raise ChecksumMismatch("the extent says more bytes than it was given")
        self._header = header
        self._raw_header = bytes(raw[:HEADER_BYTES])
        self.whole = whole
        return whole

    def take(self, piece: memoryview) -> None:
        """Take the next bytes behind the header; none over ``whole``.

        Raises:
            StaleTerm: The copy was cut off: its room may have a new owner.
        """
        assert self._header is not None
        end = self._at + len(piece)
        assert end <= self.whole
        target = self._room[self._at : end]
        with self.write.guard:
            self.check()
            _move(target, piece)
        left = HEADER_BYTES + self._header.length - self._at
        if left > 0:
            self._hasher.update(target[:left])
        self._at = end

    def check(self) -> None:
        """Make sure that the copy goes on; call with the guard of ``write`` held.

        Raises:
            StaleTerm: It was cut off.
        """
        if self.write.cut:
            raise StaleTerm(f"attempt {self.item.attempt} is over")

    def verify(self) -> None:
        """Verify everything that was taken.

        Raises:
            ChecksumMismatch: Payload, chunk table or name block are not what was written once.
        """
        header = self._header
        assert header is not None
        if self._at != self.whole:
            raise ChecksumMismatch("the extent ends too early")
        digests = self._hasher.finish()
        extent.verify_digests(digests, header)
        tail = HEADER_BYTES + header.length
        names_at = tail + extent.table_bytes(header.length)
        if bytes(self._room[tail:names_at]) != extent.pack_table(digests):
            raise ChecksumMismatch("the chunk table differs from its payload")
        names = extent.unpack_names(self._room[names_at : self.whole])
        extent.verify_names(header, names)
        self.is_verified = True

    def complete(self) -> None:
        """Put the header in its place as well: the memory holds the whole extent then."""
        assert self.is_verified
        self._room[:HEADER_BYTES] = self._raw_header


class Landing(Arrival):
    """A copy on its way into a segment of this node.

    Until ``publish`` nothing of it is readable; an order to free its attempt, or a newer reign,
    ends it before that, in time or with the very last step.
    """

    def __init__(self, item: CopyItem, segment: Segment, incoming: IncomingWrites) -> None:
        """Prepare; ``begin`` announces it.

        Raises:
            InvalidArgument: The numbers do not fit the segment.
        """
        if (
            not HEADER_BYTES <= item.bytes <= segment.bytes
            or not segment.fits(item.offset, item.bytes)
            or not item.version <= item.attempt < FREED
        ):
            raise InvalidArgument(
                f"no copy of {item.bytes} bytes to {item.offset}, version {item.version}, attempt"
                f" {item.attempt}"
            )
        if item.source_incarnation == item.incarnation and overlaps(
            item.offset, item.bytes, item.source_offset, item.bytes
        ):
            raise InvalidArgument(f"the extent at {item.source_offset} overlaps its own copy")
        super().__init__(item, segment.extents[item.offset : item.offset + item.bytes])
        self._segment = segment
        self._incoming = incoming

    def begin(self) -> bool:
        """Announce the copy; False where it has landed already: an answer was lost.

        Raises:
            StaleTerm: The attempt is over.
            Overloaded: There is no memory for it.
        """
        item = self.item
        if self._segment.holds(item.offset, item.attempt):
            return False
        self._segment.secure(item.offset, item.bytes)
        self._incoming.add([self.write])
        # A free that came before this set the fence, one that comes later finds the entry.
        if (
            not self._segment.may_write(item.offset, item.bytes, item.attempt)
            or term_of(item.attempt) < self._segment.term
        ):
            self.end()
            raise StaleTerm(f"attempt {item.attempt} is over")
        return True

    def publish(self) -> None:
        """Make what has landed, and was verified, readable.

        Raises:
            StaleExtent: Its namespace was cleared meanwhile.
            StaleTerm: The attempt is over.
        """
        header = self._header
        assert header is not None
        assert self.is_verified
        if self._segment.epochs[header.slot] > header.epoch:
            raise StaleExtent(f"epoch {header.epoch} of the extent's namespace is over")
        with self.write.guard:
            self.check()
            try:
                self._segment.publish(self.item.offset, self._raw_header, self.item.attempt)
            except StaleExtent as error:
                raise StaleTerm(str(error)) from error

    def end(self) -> None:
        """Forget the copy, published or not. Idempotent."""
        self._incoming.remove([self.write])


def _move(target: memoryview, source: memoryview) -> None:
    if len(source) >= MOVE_BYTES_MIN:
        move(address_of(target), address_of(source), len(source))
    else:
        target[:] = source
