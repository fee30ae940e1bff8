"""One extent of a write while it comes in: where its next bytes go, and its publication."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_storage_node.writes import Incoming
from mooncake_store import extent
from mooncake_store.errors import Overloaded, StaleExtent, StoreError
from mooncake_store.extent import HEADER_BYTES
from mooncake_store.transport.tasks import advance
from mooncake_store.types import term_of
from mooncake_store.wire.data import Status

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping

    from mooncake_store.segment import Segment
    from mooncake_store.wire.data import Entry


class Reception:
    """Receives one extent of a request, or throws its bytes away where they are not wanted.

    The header is kept apart until everything else is in place; what is not published leaves no
    trace but bytes in room that belonged to the attempt.

    Attributes:
        status: What the writer is told.
        missing: Bytes of the request that are still to come.
        left: Where they go, in order, or the first of them.
        write: Its entry in the register of incoming writes; None where nothing is written.
    """

    __slots__ = ("_header", "_segment", "left", "missing", "status", "write")

    def __init__(
        self,
        entry: Entry,
        segments: Mapping[int, Segment],
        guard: threading.Lock,
        revoke: Callable[[], None] | None = None,
    ) -> None:
        """Look at what is to be written; ``guard`` and ``revoke`` are those of ``Incoming``."""
        self.status = Status.OK
        self.missing = entry.bytes
        self.left: list[memoryview] = []
        self.write: Incoming | None = None
        segment = segments.get(entry.incarnation)
        if segment is None:
            self.status = Status.UNKNOWN_SEGMENT
        elif entry.start or not segment.fits(entry.offset, entry.bytes):
            self.status = Status.OUT_OF_RANGE
        elif not segment.holds(entry.offset, entry.version):
            # Otherwise it has landed: the answer to the first try was lost.
            place = (entry.incarnation, entry.offset)
            self.write = Incoming(place, entry.bytes, entry.version, guard, revoke)
            self._segment = segment
            self._header = memoryview(bytearray(HEADER_BYTES))
            end = entry.offset + entry.bytes
            self.left = [self._header, segment.extents[entry.offset + HEADER_BYTES : end]]

    def admit(self) -> None:
        """Look at the fence, once the write is in the register, and for memory."""
        write = self.write
        if write is None:
            return
        segment = self._segment
        if (
            not segment.may_write(write.offset, write.bytes, write.version)
            or term_of(write.version) < segment.term
        ):
            self.status = Status.FENCED
            return
        try:
            segment.secure(write.offset, write.bytes)
        except Overloaded:
            self.status = Status.BUSY

    def aim(self, scratch: memoryview) -> bool:
        """Under the guard, before bytes move: decide where they go now.

        Returns:
            Whether ``left`` takes all that is missing; of what is refused it may take less.
        """
        write = self.write
        if write is not None and write.cut:
            self.status = Status.FENCED
        if write is not None and not self.status:
            return True
        self.left = [scratch[: self.missing]]
        return self.missing <= len(scratch)

    def take_header(self, header: memoryview) -> None:
        """Take the header alone: all the rest was put in place by the writer's device."""
        self._header[:] = header

    def received(self, count: int) -> None:
        """Note that so many of the missing bytes have come."""
        self.missing -= count
        self.left = advance(self.left, count)

    def finish(self) -> None:
        """Publish what is complete."""
        write = self.write
        if write is None or self.status:
            return
        try:
            header = extent.unpack_header(self._header)
        except StoreError:
            self.status = Status.DAMAGED
            return
        size = extent.read_bytes(header.length) + header.name_bytes
        if header.version != write.version or size != write.bytes:
            self.status = Status.DAMAGED
            return
        with write.guard:
            try:
                if not write.cut:
                    self._segment.publish(write.offset, self._header, write.version)
                    return
            except StaleExtent:  # Freed while it was received: the writer is told below.
                pass
        self.status = Status.FENCED
