"""Reading extents: bounded threads, bounded memory, and an end by the deadline.

A read goes through a staging buffer, so that a disk which answers after its caller has left writes
into memory of ours. The room of an entry is pinned while it is read; that its header is right is
checked at the first read, and whenever the header is among the bytes.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from mooncake_storage_node.ssd.buffers import PIECE_BYTES, Staging
from mooncake_storage_node.ssd.ledger import READ_TROUBLE, WAIT_S
from mooncake_storage_node.ssd.requests import Span, Staged, Transfer, fail, settle, spread
from mooncake_storage_node.ssd.statistics import smooth
from mooncake_storage_node.ssd.threads import make_thread
from mooncake_storage_node.ssd.verifying import ExtentVerifier
from mooncake_store.errors import (
    ChecksumMismatch,
    DeadlineExceeded,
    InvalidArgument,
    Overloaded,
    StaleExtent,
    StoreError,
)
from mooncake_store.extent import HEADER_BYTES, unpack_header

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mooncake_storage_node.ssd.core.table import Entry
    from mooncake_storage_node.ssd.disk import Disk
    from mooncake_storage_node.ssd.ledger import Ledger
    from mooncake_storage_node.ssd.options import Options
    from mooncake_store.deadline import Deadline

CUT_SHORT: Final = "cut_short"
"""Reason: the file ends before the extent does."""

IO_ERROR: Final = "io_error"
"""Reason: the disk cannot read this place, though it reads others."""


class _Part(NamedTuple):
    """A piece of a transfer."""

    span: Span
    targets: Sequence[memoryview]
    verify: bool
    turn: int


class _Job(NamedTuple):
    """What one of the threads is to do."""

    run: Callable[[], None]
    drop: Callable[[], None]
    """Called instead where it is not done any more."""


Read = Future[Staged] | Transfer


class ReadPool:
    """Threads that read."""

    def __init__(
        self,
        ledger: Ledger,
        disk: Disk,
        options: Options,
        staging: Staging,
        lose: Callable[[int, int, str], None],
    ) -> None:
        """Prepare; ``start`` begins.

        Args:
            ledger: Shared state.
            disk: What is read.
            options: Bounds.
            staging: Memory; it outlives the pool.
            lose: Called with location, version and reason of an entry that proved bad.
        """
        self._ledger = ledger
        self._disk = disk
        self._staging = staging
        self._lose = lose
        self._waiting_max = options.reads_waiting_max
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._ended = False
        self._deadlines: dict[Read, Deadline] = {}
        """{read that is not over: when it has to be}; guarded by ``_watching``."""
        self._watching = threading.Lock()
        self._busy: dict[int, float] = {}
        self._turns = itertools.count()
        self._threads = [
            make_thread(f"ssd read {number}", self._run, ledger.stop)
            for number in range(options.readers)
        ]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    # --- asking ---------------------------------------------------------------------------------

    def stage(self, span: Span, deadline: Deadline, *, counts: bool) -> Future[Staged]:
        """Read at most ``PIECE_BYTES`` into a buffer of the store.

        Args:
            span: What to read.
            deadline: When the future has ended.
            counts: If it is the beginning of an extent, that becomes hotter.

        Raises:
            Overloaded: Too many reads wait.
            InvalidArgument: The range is longer than that.
        """
        if span.length > PIECE_BYTES:
            raise InvalidArgument(f"one read takes {PIECE_BYTES} bytes, not {span.length}")
        future: Future[Staged] = Future()
        counts = counts and span.start < HEADER_BYTES
        turn = next(self._turns)
        job = partial(self._stage, span, future, deadline, turn, counts=counts)
        self._begin(future, deadline, [job])
        return future

    def fill(
        self,
        span: Span,
        targets: Sequence[memoryview],
        deadline: Deadline,
        *,
        verify: bool,
    ) -> Transfer:
        """Read a range of any length into the caller's buffers.

        Args:
            span: What to read.
            targets: Together as long as the range.
            deadline: When the transfer has ended.
            verify: Verify the whole extent afterwards; there is one target, which takes it all.

        Raises:
            Overloaded: Too many reads wait.
        """
        transfer = Transfer(deadline)
        starts = range(0, max(1, span.length), PIECE_BYTES)
        transfer.expect(len(starts))
        jobs = []
        for at in starts:
            length = min(PIECE_BYTES, span.length - at)
            piece = Span(span.location, span.version, span.start + at, length)
            part = _Part(piece, targets, verify, next(self._turns))
            jobs.append(partial(self._fill, part, at, transfer))
        self._begin(transfer, deadline, jobs)
        return transfer

    def call(self, work: Callable[[], None], drop: Callable[[], None]) -> None:
        """Have something done by one of the threads, or ``drop`` called, where they end before.

        Raises:
            Overloaded: Too much waits.
        """
        self._submit([_Job(work, drop)])

    def _begin(self, read: Read, deadline: Deadline, jobs: Sequence[Callable[[], None]]) -> None:
        """Let a read wait for the threads, and end it in any case.

        It is noted first: who ends all reads ends those that are noted, and forgets all jobs.
        """
        with self._watching:
            self._deadlines[read] = deadline

        def forget(_: object) -> None:
            with self._watching:
                self._deadlines.pop(read, None)

        try:
            self._submit([_Job(job, _nothing) for job in jobs])
        except Overloaded:
            forget(read)
            raise
        read.add_done_callback(forget)

    def _submit(self, jobs: Sequence[_Job]) -> None:
        with self._changed:
            if self._ended:
                self._refuse("closing", "the store is being closed")
            if len(self._jobs) >= self._waiting_max:
                self._refuse("queue_full", f"{len(self._jobs)} reads of the disk wait already")
            self._jobs.extend(jobs)
            self._changed.notify(len(jobs))

    def _refuse(self, reason: str, sentence: str) -> None:
        self._ledger.counters.reads_refused[reason] += 1
        raise Overloaded(sentence)

    # --- ending ---------------------------------------------------------------------------------

    def expire(self) -> None:
        """End every read whose deadline has passed; called every now and then."""
        with self._watching:
            over = [(f, d) for f, d in self._deadlines.items() if not d.left_s()]
        for future, deadline in over:
            error = DeadlineExceeded(f"the disk did not answer within {deadline.total_s:g} s")
            self._end(future, error, "deadline")

    def busy_since_s(self) -> float:
        """Return when the oldest operation on the disk under way began; 0: there is none."""
        return min(self._busy.copy().values(), default=0.0)

    def end(self, reason: str, timeout_s: float) -> bool:
        """End all reads and threads; return whether they have ended in time."""
        with self._changed:
            self._ended = True
            dropped = list(self._jobs)
            self._jobs.clear()
            self._changed.notify_all()
        for job in dropped:
            job.drop()
        with self._watching:
            reads = list(self._deadlines)
        for future in reads:
            self._end(future, Overloaded(reason), "closing")
        until_s = time.monotonic() + timeout_s
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, until_s - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _end(self, future: Read, error: StoreError, reason: str) -> None:
        if not isinstance(error, StaleExtent):
            with self._ledger.lock:
                self._ledger.counters.reads_refused[reason] += 1
        if isinstance(future, Transfer):
            future.give_up(error)
        else:
            fail(future, error)

    # --- reading --------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._jobs and not self._ended:
                    self._changed.wait(WAIT_S)
                if not self._jobs:
                    return
                job = self._jobs.popleft()
            job.run()

    def _stage(
        self, span: Span, future: Future[Staged], deadline: Deadline, turn: int, *, counts: bool
    ) -> None:
        if future.done():
            return
        try:
            staged = self._read(span, deadline, turn, counts=counts)
        except StoreError as error:
            self._end(future, error, error.code)
            return
        if not settle(future, staged):
            staged.release()

    def _fill(self, part: _Part, at: int, transfer: Transfer) -> None:
        if transfer.done():
            return
        try:
            staged = self._read(part.span, transfer.deadline, part.turn, counts=not at)
            with staged as view:
                last = transfer.deliver(lambda: spread(part.targets, at, view))
            if last and part.verify:
                self._verify_whole(part)
        except StoreError as error:
            self._end(transfer, error, error.code)
            return
        if last:
            settle(transfer, None)

    def _verify_whole(self, part: _Part) -> None:
        """Verify an extent that was read whole."""
        target = part.targets[0]
        try:
            verifier = ExtentVerifier(unpack_header(target))
            verifier.update(target)
            verifier.finish()
        except StoreError as error:
            self._lose(part.span.location, part.span.version, ChecksumMismatch.code)
            raise ChecksumMismatch(f"the extent on disk is damaged: {error}") from error

    def _read(self, span: Span, deadline: Deadline, turn: int, *, counts: bool) -> Staged:
        """Read a range of an entry.

        Raises:
            StaleExtent, ChecksumMismatch, Overloaded, InvalidArgument: As it is.
        """
        trouble = self._ledger.troubles.get(READ_TROUBLE)
        if trouble:
            raise Overloaded(trouble)
        entry, checked = self._ledger.pin(span.location, span.version)
        served = False
        try:
            if not 0 <= span.start <= span.start + span.length <= entry.size:
                raise InvalidArgument(
                    f"the range {span.start}+{span.length} lies outside of {entry.size} bytes"
                )
            if not checked and not _has_header(span):
                head = Span(span.location, span.version, 0, HEADER_BYTES)
                self._fetch(head, entry, deadline, turn).release()
            staged = self._fetch(span, entry, deadline, turn)
            served = True
        finally:
            current = self._ledger.unpin(span.location, entry, served=served, counts=counts)
        if not current:
            staged.release()
            raise StaleExtent(f"version {span.version} was removed while it was read")
        return staged

    def _fetch(self, span: Span, entry: Entry, deadline: Deadline, turn: int) -> Staged:
        """Read part of a pinned entry from the disk."""
        align = self._disk.align
        start = (entry.place + span.start) // align * align
        stop = -(-(entry.place + span.start + span.length) // align) * align
        buffer = self._staging.take(stop - start, deadline, turn)
        if buffer is None:
            raise Overloaded("no memory to read into became free before the deadline")
        skip = entry.place + span.start - start
        staged = Staged(buffer[skip : skip + span.length], lambda: self._staging.give(buffer))
        try:
            self._load(buffer[: stop - start], start, span, entry)
            if _has_header(span):
                self._verify_header(staged.view, span, entry)
        except StoreError:
            staged.release()
            raise
        return staged

    def _load(self, buffer: memoryview, start: int, span: Span, entry: Entry) -> None:
        began_s = time.monotonic()
        own = threading.get_ident()
        self._busy[own] = began_s
        try:
            got = self._disk.read(buffer, start, self._ledger.geometry.region_bytes)
        except OSError as error:
            raise self._blame(span, error) from error
        finally:
            self._busy.pop(own, None)
        if start + got < entry.place + span.start + span.length:
            self._lose(span.location, span.version, CUT_SHORT)
            raise ChecksumMismatch("the file ends before the extent does")
        counters = self._ledger.counters
        with self._ledger.lock:
            counters.read_bytes += span.length
            counters.read_us = smooth(counters.read_us, (time.monotonic() - began_s) * 1e6)

    def _blame(self, span: Span, error: OSError) -> StoreError:
        """Find out whether it is this place or the disk that cannot be read."""
        trouble = self._disk.probe.check()
        if trouble:
            self._ledger.set_trouble(READ_TROUBLE, trouble)
            return Overloaded(trouble)
        self._lose(span.location, span.version, IO_ERROR)
        return ChecksumMismatch(f"the disk cannot read this extent: {error.strerror or error}")

    def _verify_header(self, view: memoryview, span: Span, entry: Entry) -> None:
        """Check that an extent's header is the one that the index speaks of."""
        try:
            header = unpack_header(view)
            if (header.version, header.slot, header.epoch, header.name_bytes) != (
                entry.version, entry.slot, entry.epoch, entry.name_bytes,
            ):  # fmt: skip
                raise StaleExtent("another extent lies there")
        except StoreError as error:
            self._lose(span.location, span.version, error.code)
            raise ChecksumMismatch(f"the extent on disk is not what it was: {error}") from error


def _nothing() -> None:
    """Do nothing: a read is ended by itself."""


def _has_header(span: Span) -> bool:
    return not span.start and span.length >= HEADER_BYTES
