"""Verifying in the background what this node holds, so that damage is found before a reader does.

Memory and disks are gone through round after round, at a bounded rate. What is bad is reported: the
master drops the replica, has it erased like any other, and has another one copied. Until then it
does no harm, since every reader verifies what it reads (field report 038).
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Final, Protocol

from mooncake_storage_node.core.directory import landed
from mooncake_storage_node.ssd.verifying import ExtentVerifier, read_names
from mooncake_store import extent
from mooncake_store.deadline import Deadline
from mooncake_store.errors import ChecksumMismatch, StaleExtent, StoreError
from mooncake_store.extent import HEADER_BYTES
from mooncake_store.limits import KIB, MIB
from mooncake_store.wire.control import DroppedItem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    from mooncake_storage_node.ssd.requests import Staged
    from mooncake_store.segment import Segment
    from mooncake_store.wire.control import DirectoryPage

logger = logging.getLogger(__name__)

COST_BYTES_MIN: Final = 64 * KIB
"""What the smallest extent counts for: beside its bytes each costs about 20 us of the interpreter,
and a node full of small ones is to pay as little for this as one of large ones."""

NAP_S: Final = 0.02
"""Pauses shorter than this are saved up: the bytes verified in one go are the rate times this, at
the default a third of a mebibyte, 50 us."""

ROUND_S_MIN: Final = 10.0
"""Least time between the beginnings of two rounds: a node with little in it need not be busy."""

PAGE_ENTRIES: Final = 256
"""Entries of a disk's directory that are fetched at one time."""

DISK_S: Final = 10.0
"""Time for one answer of a disk; one that takes longer is left alone until the next round."""

PIECE_BYTES: Final = 1 * MIB
"""Bytes of a disk that are read at one time: memory that this takes, whatever extents are there.
Larger, and reads of users wait for longer ones; smaller, and the disk is read more slowly."""


class Disk(Protocol):
    """What is used of an SSD store; it says by itself what it drops."""

    def list_page(self, cursor: int, limit: int) -> Future[DirectoryPage]:
        """Return a page of its entries."""
        ...

    def size_of(self, location: int, version: int) -> int:
        """Return the bytes of an extent."""
        ...

    def read(
        self,
        location: int,
        version: int,
        start: int,
        length: int,
        deadline: Deadline,
        *,
        counts: bool = True,
    ) -> Future[Staged]:
        """Read a part of an extent; ``counts``: somebody wants it."""
        ...

    def give_up(self, location: int, version: int, reason: str) -> None:
        """Drop an extent that is damaged."""
        ...


class Scrubber:
    """One thread that verifies everything, slowly.

    Attributes:
        rounds: How often everything was gone through.
        extents: Extents verified, and ``bytes`` of them.
        bad: Extents that were found damaged.
    """

    def __init__(
        self,
        segments: Sequence[Segment],
        rate: int,
        report: Callable[[list[DroppedItem]], None],
        disks: Callable[[], Sequence[Disk]] = tuple,
        *,
        round_s: float = ROUND_S_MIN,
    ) -> None:
        """Prepare; ``start`` begins.

        Args:
            segments: Memory of this node.
            rate: Bytes to verify in a second, at most.
            report: Told what is bad in memory; short, on this thread.
            disks: Returns the stores that are open.
            round_s: Least time of a round.
        """
        self.rounds = self.extents = self.bytes = self.bad = 0
        self._segments = segments
        self._rate = rate
        self._report = report
        self._disks = disks
        self._round_s = round_s
        self._owed_s = 0.0
        self._bad: set[tuple[int, int, int]] = set()
        self._bad_before = self._bad
        """Extents of memory that this round, and the one before, found damaged."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scrub", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End soon, wherever it is. Idempotent."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(DISK_S)

    def _run(self) -> None:
        while not self._stopping.is_set():
            began_s = time.monotonic()
            self.round()
            self._stopping.wait(max(0.0, began_s + self._round_s - time.monotonic()))

    def round(self) -> None:
        """Go through everything once."""
        self._bad_before, self._bad = self._bad, set()
        for segment in self._segments:
            for offset, attempt in landed(segment):
                if self._stopping.is_set():
                    return
                self._look(segment, offset, attempt)
        for disk in self._disks():
            try:
                self._scrub_disk(disk)
            except (StoreError, TimeoutError) as error:
                logger.debug("a disk is not verified now: %s", error)
        self.rounds += 1

    # --- memory ---------------------------------------------------------------------------------

    def _look(self, segment: Segment, offset: int, attempt: int) -> None:
        """Verify one extent; report it where it is damaged and still there."""
        size = 0
        try:
            for step in pieces(segment, offset, attempt):
                size += step
                if not self._pay(step) or not segment.holds(offset, attempt):
                    return
        except StaleExtent:
            return  # it was freed, and its place may have a new owner
        except ChecksumMismatch as error:
            if not is_bad(segment, offset, attempt):
                return
            self._found(segment, offset, attempt, error)
        self._count(size)

    def _found(self, segment: Segment, offset: int, attempt: int, error: StoreError) -> None:
        """Report a damaged extent, in each round until it is erased; count it once."""
        place = (segment.incarnation, offset, attempt)
        self._bad.add(place)
        if place not in self._bad_before:
            self.bad += 1
            logger.warning(
                "the extent at %#x of segment %016x is damaged: %s",
                offset, segment.incarnation, error,
            )  # fmt: skip
        self._report([DroppedItem(*place, error.code)])

    # --- disks ----------------------------------------------------------------------------------

    def _scrub_disk(self, disk: Disk) -> None:
        """Read everything that a store holds.

        Raises:
            StoreError, TimeoutError: It does not answer as it should.
        """
        cursor = 0
        while cursor >= 0 and not self._stopping.is_set():
            page = disk.list_page(cursor, PAGE_ENTRIES).result(DISK_S)
            for entry in page.entries:
                if not self._load(disk, entry.offset, entry.version):
                    return
            cursor = page.cursor

    def _load(self, disk: Disk, location: int, version: int) -> bool:
        """Read one extent of a store; return whether to go on.

        Raises:
            StoreError, TimeoutError: It does not answer as it should.
        """
        size = 0
        try:
            for step in pieces_on(disk, location, version):
                size += step
                if not self._pay(step):
                    return False
        except StaleExtent:
            return True  # evicted or removed meanwhile
        except ChecksumMismatch as error:
            self.bad += 1
            logger.warning("the extent at %d of a disk is damaged: %s", location, error)
            return True
        self._count(size)
        return True

    # --- the rate -------------------------------------------------------------------------------

    def _count(self, size: int) -> None:
        self.extents += 1
        self.bytes += size
        self._pay(max(0, COST_BYTES_MIN - size))

    def _pay(self, size: int) -> bool:
        """Wait as long as so many bytes take at the rate; return False where it is to stop."""
        self._owed_s += size / self._rate
        if self._owed_s < NAP_S:
            return not self._stopping.is_set()
        began_s = time.monotonic()
        stopped = self._stopping.wait(self._owed_s)
        self._owed_s = max(-NAP_S, self._owed_s - (time.monotonic() - began_s))
        return not stopped


def pieces_on(disk: Disk, location: int, version: int) -> Iterator[int]:
    """As ``pieces``, for an extent of a store, which drops it where it is damaged.

    Raises:
        StaleExtent, ChecksumMismatch: As ``pieces``.
        StoreError, TimeoutError: The disk does not answer as it should.
    """
    whole = disk.size_of(location, version)
    verifier: ExtentVerifier | None = None
    for at in range(0, whole, PIECE_BYTES):
        step = min(PIECE_BYTES, whole - at)
        # Not a read that counts: everything would be hot, and carried over, after one round.
        read = disk.read(location, version, at, step, Deadline(DISK_S), counts=False)
        with read.result(2 * DISK_S) as piece:
            if verifier is None:
                verifier = ExtentVerifier(extent.unpack_header(piece))
            verifier.update(piece)
        yield step
    try:
        if verifier is not None:
            verifier.finish()
    except ChecksumMismatch as error:
        disk.give_up(location, version, error.code)
        raise


def pieces(segment: Segment, offset: int, attempt: int) -> Iterator[int]:
    """Verify an extent, piece by piece: at each step yield how many bytes it took.

    Raises:
        StaleExtent: It is not there any more.
        ChecksumMismatch: It is damaged, if it is still there.
    """
    memory = segment.extents
    raw = bytes(memory[offset : offset + HEADER_BYTES])
    if not segment.holds(offset, attempt):
        raise StaleExtent(f"attempt {attempt} is not at {offset:#x} any more")
    try:
        header = extent.unpack_header(raw)
    except StaleExtent as error:
        raise ChecksumMismatch("there is no header where an extent begins") from error
    if header.version > attempt:
        raise ChecksumMismatch(f"version {header.version} is newer than its attempt {attempt}")
    whole = extent.read_bytes(header.length) + header.name_bytes
    if offset + whole > segment.bytes:
        raise ChecksumMismatch("the extent says more bytes than there are")
    verifier = ExtentVerifier(header)
    at = 0
    while at < whole:
        step = min(verifier.step(at), whole - at)
        verifier.update(memory[offset + at : offset + at + step])
        at += step
        yield step
    read_names(header, verifier.finish())


def is_bad(segment: Segment, offset: int, attempt: int) -> bool:
    """Look again, without pauses: return whether an extent is damaged while it is there.

    A writer may have got its room in the middle of the first look.
    """
    try:
        for _ in pieces(segment, offset, attempt):
            pass
    except ChecksumMismatch:
        return segment.holds(offset, attempt)
    except StaleExtent:
        return False
    return False
