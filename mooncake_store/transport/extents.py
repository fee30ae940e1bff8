"""Copying extents out of and into mapped memory, hashed while they are in the cache.

What shared memory and the in-process path have in common. A read checks the version table and the
header first, so that bytes of another object are never given out as this one's; where the payload
is not hashed, both are checked again afterwards, as in a sequence lock: memory is only reused
after its table entry was fenced, so an entry that still stands proves that nothing was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import xxhash

from mooncake_store import extent
from mooncake_store.data_path import Reservation, View
from mooncake_store.errors import (
    ChecksumMismatch,
    InvalidArgument,
    StaleExtent,
    StaleTerm,
    StoreError,
)
from mooncake_store.extent import HEADER_BYTES, expect_header
from mooncake_store.limits import CHUNK_BYTES, KIB, MIB, NAMESPACES_MAX
from mooncake_store.memory import address_of, move
from mooncake_store.transport.one_chunk import hash_pieces
from mooncake_store.transport.tasks import Scatter, check_read, check_write, covering_chunks
from mooncake_store.types import term_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from mooncake_store.data_path import ReadTask, WriteTask
    from mooncake_store.extent import Header, Identity, Sealed
    from mooncake_store.segment import Segment

MOVE_BYTES_MIN: Final = 64 * KIB
"""Copies from this size on let other threads run meanwhile. Below, finding the addresses (1 us)
costs more than the copy itself (64 KiB: 2 to 6 us)."""

SLICE_BYTES: Final = 1 * MIB
"""Bytes copied between two chances to do something else: 0.1 to 0.2 ms."""

_hash = xxhash.xxh3_64_intdigest


class ExtentMemory:
    """The extents of one mapped segment, to be read and written in place.

    Whoever calls holds a reference meanwhile, and that keeps the mapping.

    Attributes:
        segment: The segment itself.
    """

    __slots__ = ("_address", "_epochs", "_extents", "_table", "segment")

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self._extents = segment.extents
        self._table = segment.table
        self._epochs = segment.epochs
        self._address = address_of(segment.extents)

    # --- reading --------------------------------------------------------------------------------

    def open(self, offset: int, identity: Identity, attempt: int) -> Header:
        """Return the verified header of an extent that is readable right now.

        Args:
            offset: Where it begins.
            identity: What it must be.
            attempt: Number of the write that must have put it there.

        Raises:
            StaleExtent: It is not that identity's, or its epoch is over.
            ChecksumMismatch: Its header is damaged, or says more than the segment holds.
        """
        if not self.segment.holds(offset, attempt):
            raise StaleExtent(f"version {identity.version} is not at {offset} any more")
        if self._epochs[identity.slot] > identity.epoch:
            raise StaleExtent(f"epoch {identity.epoch} of the extent's namespace is over")
        header = expect_header(bytes(self._extents[offset : offset + HEADER_BYTES]), 0, identity)
        if offset + extent.read_bytes(header.length) + header.name_bytes > len(self._extents):
            raise ChecksumMismatch("the extent says more bytes than its segment holds")
        return header

    def check(self, offset: int, identity: Identity, attempt: int) -> None:
        """Make sure that an extent that was open is still the same.

        Raises:
            StaleExtent: It was freed meanwhile, or its epoch ended.
        """
        if not self.segment.holds(offset, attempt) or self._epochs[identity.slot] > identity.epoch:
            raise StaleExtent(f"version {identity.version} was freed while it was read")

    def reading(self, task: ReadTask) -> Generator[None, None, None]:
        """Perform a read in slices of about ``SLICE_BYTES``; sets the task's results.

        Never raises a ``StoreError``. Iterate to the end, or stop: then the task is not over.
        """
        try:
            check_read(task)
            header = self.open(task.offset, task.identity, task.attempt or task.identity.version)
            if task.verify:
                yield from self._copy_verified(task, header)
                task.verified = True
            else:
                yield from self._copy(task)
                self.check(task.offset, task.identity, task.attempt or task.identity.version)
        except ChecksumMismatch as error:
            task.error = self._damage_or_reuse(task, error)
        except StoreError as error:
            task.error = error

    def read(self, task: ReadTask) -> None:
        """Perform a read at once; sets the task's results and never raises a ``StoreError``."""
        whole = task.length == task.identity.length
        if task.length > MOVE_BYTES_MIN or len(task.targets) != 1 or (task.verify and not whole):
            for _ in self.reading(task):
                pass
            return
        try:
            check_read(task)
            header = self.open(task.offset, task.identity, task.attempt or task.identity.version)
            start = task.offset + HEADER_BYTES + task.start
            target = task.targets[0]
            target[:] = self._extents[start : start + task.length]
            if task.verify:
                extent.verify_digests([_hash(target)], header)
                task.verified = True
            else:
                self.check(task.offset, task.identity, task.attempt or task.identity.version)
        except ChecksumMismatch as error:
            task.error = self._damage_or_reuse(task, error)
        except StoreError as error:
            task.error = error

    def take(self, offset: int, identity: Identity, attempt: int) -> bytes | None:
        """Return a payload of at most ``MOVE_BYTES_MIN``, verified; as ``DataPath.take``."""
        start = offset + HEADER_BYTES
        end = start + identity.length
        if (
            identity.length > MOVE_BYTES_MIN
            or end > len(self._extents)
            or not self.segment.holds(offset, attempt)
            or not 0 <= identity.slot < NAMESPACES_MAX
            or self._epochs[identity.slot] > identity.epoch
        ):
            return None
        checksum = extent.checksum_in(bytes(self._extents[offset:start]), identity)
        payload = bytes(self._extents[start:end])
        return payload if _hash(payload) == checksum else None

    def _damage_or_reuse(self, task: ReadTask, error: ChecksumMismatch) -> StoreError:
        """Tell a damaged extent from one that was reused under the reader's hands."""
        try:
            self.check(task.offset, task.identity, task.attempt or task.identity.version)
        except StaleExtent as stale:
            return stale
        return error

    def _copy(self, task: ReadTask) -> Iterator[None]:
        at = HEADER_BYTES + task.offset + task.start
        copied = 0
        scatter = Scatter(task.targets)
        while copied < task.length:
            size = min(4 * SLICE_BYTES, task.length - copied)
            self._copy_out(at + copied, scatter.take(size))
            copied += size
            yield

    def _copy_out(self, at: int, pieces: Sequence[memoryview]) -> None:
        for piece in pieces:
            size = len(piece)
            if size >= MOVE_BYTES_MIN:
                move(address_of(piece), self._address + at, size)
            else:
                piece[:] = self._extents[at : at + size]
            at += size

    def _copy_verified(self, task: ReadTask, header: Header) -> Iterator[None]:
        """Copy the range chunk by chunk; what is hashed is what the caller gets."""
        payload = task.offset + HEADER_BYTES
        end = task.start + task.length
        chunks = covering_chunks(task)
        copy = self._copier(task)
        digests: list[int] = []
        for chunk in chunks:
            low = chunk * CHUNK_BYTES
            high = min(low + CHUNK_BYTES, header.length)
            wanted_low, wanted_high = max(low, task.start), min(high, end)
            pieces = copy(payload + wanted_low, wanted_high - wanted_low)
            if len(pieces) == 1 and len(pieces[0]) == high - low:
                digests.append(_hash(pieces[0]))
            else:
                before = self._extents[payload + low : payload + wanted_low]
                after = self._extents[payload + wanted_high : payload + high]
                digests.append(hash_pieces([before, *pieces, after]))
            if not (chunk + 1) % (SLICE_BYTES // CHUNK_BYTES):
                yield
        if digests:
            self._verify(header, chunks.start, digests, payload)

    def _copier(self, task: ReadTask) -> Callable[[int, int], list[memoryview]]:
        """Return what copies (from, bytes) into the next part of the targets and returns that."""
        if len(task.targets) > 1 or task.length < MOVE_BYTES_MIN:
            scatter = Scatter(task.targets)

            def copy(start: int, size: int) -> list[memoryview]:
                pieces = scatter.take(size)
                self._copy_out(start, pieces)
                return pieces

            return copy
        target = task.targets[0]
        first = task.offset + HEADER_BYTES + task.start
        shift = address_of(target) - first  # Asked for once: it takes as long as 16 KiB.

        def copy_whole(start: int, size: int) -> list[memoryview]:
            move(shift + start, self._address + start, size)
            return [target[start - first : start - first + size]]

        return copy_whole

    def _verify(self, header: Header, first: int, digests: list[int], payload: int) -> None:
        if len(digests) == extent.chunk_count(header.length):
            extent.verify_digests(digests, header)
            return
        table = payload + header.length
        stored = bytes(self._extents[table : table + extent.table_bytes(header.length)])
        extent.verify_chunks(first, digests, memoryview(stored), header)

    # --- writing --------------------------------------------------------------------------------

    def allow(self, offset: int, size: int, identity: Identity) -> bool:
        """Return whether a write is to be done; False: it has landed already.

        Raises:
            StaleTerm: The attempt was freed or is of an older reign.
            InvalidArgument: It does not fit the segment.
            Overloaded: There is no memory for it.
        """
        if not self.segment.fits(offset, size) or not 0 <= identity.slot < NAMESPACES_MAX:
            raise InvalidArgument(f"an extent of {size} bytes at {offset} does not fit its segment")
        if self.segment.holds(offset, identity.version):
            return False
        if (
            not self.segment.may_write(offset, size, identity.version)
            or term_of(identity.version) < self.segment.term
        ):
            raise StaleTerm(f"attempt {identity.version} is over")
        self.segment.secure(offset, size)
        return True

    def publish(self, offset: int, identity: Identity, sealed: Sealed) -> None:
        """Write the tail, then make the extent readable.

        Raises:
            StaleTerm: The attempt was freed meanwhile.
        """
        tail = offset + HEADER_BYTES + identity.length
        if tail + len(sealed.tail) > len(self._extents):
            raise InvalidArgument(f"the extent at {offset} does not fit its segment")
        self._extents[tail : tail + len(sealed.tail)] = sealed.tail
        try:
            self.segment.publish(offset, sealed.header, identity.version)
        except StaleExtent as error:
            raise StaleTerm(str(error)) from error

    def write(self, task: WriteTask) -> None:
        """Perform a write of at most ``MOVE_BYTES_MIN`` at once, as ``writing``."""
        try:
            size = check_write(task)
            if not self.allow(task.offset, size, task.identity):
                return
            at = task.offset + HEADER_BYTES
            for part in task.parts:
                self._extents[at : at + len(part)] = part
                at += len(part)
            self.publish(task.offset, task.identity, task.sealed)
        except StoreError as error:
            task.error = error

    def writing(self, task: WriteTask) -> Generator[None, None, None]:
        """Perform a write in slices of about ``SLICE_BYTES``; sets the task's result.

        Never raises a ``StoreError``. Iterate to the end, or stop: then nothing is published.
        """
        try:
            size = check_write(task)
            if not self.allow(task.offset, size, task.identity):
                return
            yield from self._copy_in(task)
            self.publish(task.offset, task.identity, task.sealed)
        except StoreError as error:
            task.error = error

    def _copy_in(self, task: WriteTask) -> Iterator[None]:
        at = task.offset + HEADER_BYTES
        scatter = Scatter(task.parts)
        copied = 0
        while copied < task.identity.length:
            size = min(SLICE_BYTES, task.identity.length - copied)
            for piece in scatter.take(size):
                if len(piece) >= MOVE_BYTES_MIN:
                    move(self._address + at, address_of(piece), len(piece))
                else:
                    self._extents[at : at + len(piece)] = piece
                at += len(piece)
            copied += size
            yield

    # --- in place -------------------------------------------------------------------------------

    def view(self, offset: int, identity: Identity, attempt: int) -> ExtentView:
        """Look at a payload in place.

        Raises:
            StaleExtent, ChecksumMismatch: As ``open``.
        """
        return ExtentView(self, offset, identity, attempt, self.open(offset, identity, attempt))

    def reserve(
        self,
        offset: int,
        identity: Identity,
        *,
        ended: Callable[[], None],
        widen: Callable[[int], None],
    ) -> ExtentReservation:
        """Give out a payload to be filled in place.

        Args:
            offset: Where the extent begins.
            identity: What it will hold.
            ended: Called once when the reservation is over.
            widen: Called with the bytes of the whole extent before anything behind the payload is
                written: how long the tail is shows only then.
        """
        start = offset + HEADER_BYTES
        payload = self._extents[start : start + identity.length]
        return ExtentReservation(self, offset, identity, payload, (ended, widen))


class ExtentView(View):
    """A view into mapped memory."""

    __slots__ = (
        "__weakref__", "_attempt", "_header", "_identity", "_memory", "_offset", "payload",
    )  # fmt: skip

    def __init__(
        self,
        memory: ExtentMemory,
        offset: int,
        identity: Identity,
        attempt: int,
        header: Header,
    ) -> None:
        self._memory = memory
        self._offset = offset
        self._identity = identity
        self._attempt = attempt
        self._header = header
        start = offset + HEADER_BYTES
        self.payload = memory.segment.extents[start : start + header.length].toreadonly()

    def check(self) -> None:
        """Make sure that the extent was not reused since the view began."""
        self._memory.check(self._offset, self._identity, self._attempt)

    def verify(self) -> None:
        """Hash the payload where it lies."""
        digests = extent.hash_payload([self.payload])
        try:
            extent.verify_digests(digests, self._header)
        except ChecksumMismatch:
            self.check()
            raise

    def release(self) -> None:
        """Give the memory up; slices that the caller took keep the mapping, not the contents."""
        try:
            self.payload.release()
        except BufferError:  # Somebody still looks at it; the mapping goes when they let go.
            return


class ExtentReservation(Reservation):
    """A payload in mapped memory that the caller fills."""

    __slots__ = ("__weakref__", "_ended", "_identity", "_memory", "_offset", "_widen", "payload")

    def __init__(
        self,
        memory: ExtentMemory,
        offset: int,
        identity: Identity,
        payload: memoryview,
        hooks: tuple[Callable[[], None], Callable[[int], None]],
    ) -> None:
        self._ended: Callable[[], None] | None = hooks[0]  # first of all: __del__ needs it
        self._memory = memory
        self._offset = offset
        self._identity = identity
        self.payload = payload
        self._widen = hooks[1]

    def publish(self, sealed: Sealed) -> None:
        """Make the extent readable with what is in ``payload`` now."""
        if self._ended is None:
            raise StaleTerm("the reservation is over")
        size = HEADER_BYTES + self._identity.length + len(sealed.tail)
        try:
            self._widen(size)
            if not self._memory.allow(self._offset, size, self._identity):
                raise StaleTerm(f"attempt {self._identity.version} has landed already")
            self._memory.publish(self._offset, self._identity, sealed)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """End the reservation."""
        ended = self._ended
        if ended is not None:
            ended()  # idempotent: where Ctrl-C comes first, it is called again
            self._ended = None

    def __del__(self) -> None:
        self.abandon()
