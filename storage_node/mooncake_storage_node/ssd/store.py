"""The face of the SSD tier: one store in one directory, whatever its disk does.

A store always answers. While its disk is in trouble it is *degraded*: it refuses what it cannot do
with a typed error, keeps looking, and goes on by itself when the trouble is over. Only settings
that can never work are refused when it is opened.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from mooncake_storage_node.ssd.buffers import Staging
from mooncake_storage_node.ssd.core import layout
from mooncake_storage_node.ssd.files import FileSystem, OsFiles
from mooncake_storage_node.ssd.index import IndexDamaged, IndexFailed
from mooncake_storage_node.ssd.opening import DiskTrouble, Memory, Plan, open_directory
from mooncake_storage_node.ssd.options import Options
from mooncake_storage_node.ssd.requests import Span, Staged, Transfer, Written, fail, settle
from mooncake_storage_node.ssd.statistics import Counters, State, Statistics
from mooncake_storage_node.ssd.volume import JOIN_S, Volume
from mooncake_store.errors import (
    Closed,
    ConfigError,
    InvalidArgument,
    Overloaded,
    StaleExtent,
    StoreError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence

    from mooncake_storage_node.ssd.requests import Dropped
    from mooncake_store.deadline import Deadline
    from mooncake_store.wire.control import DirectoryPage

WATCH_S: Final = 0.05
"""Time between two looks at deadlines: a read ends at most this much after its own."""

_log = logging.getLogger(__name__)


def _ignore(_: object) -> None:
    """Do nothing: nobody asked to be told."""


class Store:
    """One store. Safe for use by several threads; no method waits for the disk but ``close``.

    Futures end on threads of the store: callbacks must be short. Futures of writes, removals and
    epochs end when the disk has done it; those of reads by their deadline.

    Attributes:
        directory: Where it is.
        capacity_bytes: What it may take there, everything included.
    """

    def __init__(self, wanted: Plan, on_change: Callable[[Store], None]) -> None:
        """Use ``open``."""
        self._plan = wanted
        self._on_change = on_change
        self.directory = wanted.directory
        self.capacity_bytes = wanted.capacity_bytes
        self._staging = Staging(wanted.options.staging_bytes)
        self._memory = Memory(Counters())
        self._lock = threading.Lock()
        self._volume: Volume | None = None
        self._leaving: Volume | None = None
        self._reason = "the directory was not opened yet"
        self._closing = threading.Event()
        self._incarnation = 0
        self._replaced: tuple[int, ...] = ()
        self._openings = 0
        self._told = (State.CLOSED, "", 0)
        """Of what state others were told last, and of which opening: one that comes soon after the
        end of the one before may leave the state as it was."""
        self._threads = [
            threading.Thread(target=self._watch, name="ssd watch", daemon=True),
            threading.Thread(target=self._supervise, name="ssd supervise", daemon=True),
        ]

    @classmethod
    def open(  # noqa: PLR0913 - options, given by name
        cls,
        directory: Path | str,
        capacity_bytes: int,
        options: Options | None = None,
        *,
        files: FileSystem | None = None,
        on_dropped: Callable[[Sequence[Dropped]], None] = _ignore,
        on_change: Callable[[Store], None] = _ignore,
        gone: Container[int] = (),
    ) -> Self:
        """Open the store in a directory, and lay it out if it is new.

        A directory that is missing, or a disk in trouble, is no error: the store is degraded then.

        Args:
            directory: Exists; the store makes a folder of its own in it.
            capacity_bytes: What it may take of the disk, index included.
            options: Everything else.
            files: Where files are; tests put something in between.
            on_dropped: Told which entries the store gives up by itself. Called on threads of the
                store; it must be short and not raise.
            on_change: Told that ``statistics().state`` or ``incarnation`` may have changed; same
                rules. With a new incarnation, everything that was known of the store is void; with
                the same one, what it holds should be listed again.
            gone: Incarnations that are gone for good, wherever they were; it may change. A
                directory that comes back with one of them has what was removed since, and begins
                empty.

        Raises:
            ConfigError: The settings make no sense, another process uses the directory, or a newer
                version wrote it.
        """
        chosen = options or Options()
        chosen.validate()
        layout.plan(capacity_bytes, chosen.index_bytes)
        system = files or OsFiles()
        wanted = Plan(Path(directory), capacity_bytes, chosen, system, on_dropped, gone)
        store = cls(wanted, on_change)
        store._open()
        for thread in store._threads:
            thread.start()
        return store

    # --- state ----------------------------------------------------------------------------------

    @property
    def incarnation(self) -> int:
        """Identity of the contents; survives restarts. 0: not known, the directory is not open."""
        return self._incarnation

    @property
    def is_open(self) -> bool:
        """Whether its directory is open."""
        return self._volume is not None

    @property
    def replaced(self) -> tuple[int, ...]:
        """Incarnations of stores that are gone for good: this one was made of their directory.

        It survives restarts; newest last, `REPLACED_MAX` at most.
        """
        return self._replaced

    def epochs(self) -> dict[int, int]:
        """Return {namespace slot: readable epoch} as far as it knows of any."""
        volume = self._volume
        if volume is None:
            return dict(self._memory.epochs)
        with volume.ledger.lock:
            return volume.ledger.live_epochs()

    def newest_version(self) -> int:
        """Return the highest version that it holds; 0 where it holds, or knows of, none."""
        volume = self._volume
        if volume is None:
            return 0
        with volume.ledger.lock:
            return volume.ledger.table.newest

    def state(self) -> tuple[State, str]:
        """Return how the store is, and why."""
        if self._closing.is_set():
            return State.CLOSED, "the store was closed"
        volume = self._volume
        if volume is None:
            return State.DEGRADED, self._reason
        with volume.ledger.lock:
            troubles = [volume.ledger.stopped, *volume.ledger.troubles.values()]
        reason = "; ".join(filter(None, troubles))
        return (State.DEGRADED, reason) if reason else (State.READY, "")

    def _get(self) -> Volume:
        volume = self._volume
        if volume is None or volume.ledger.stopped:
            raise self._refusal()
        return volume

    def _refusal(self) -> StoreError:
        if self._closing.is_set():
            return Closed(f"the store in {self.directory} was closed")
        volume = self._volume
        reason = volume.ledger.stopped if volume is not None else self._reason
        return Overloaded(f"the store in {self.directory} is degraded: {reason}")

    # --- writing --------------------------------------------------------------------------------

    def write(self, source: memoryview, version: int, *, wanted: bool = False) -> Future[Written]:
        """Store an extent, whole as it lies in memory.

        It is readable, and survives a loss of power, when the future ends. Its bytes are verified
        as they are copied, so a source that changes meanwhile does no harm: the write fails.

        Args:
            source: The extent from its header on (1-D, format "B"); kept until the future ends.
            version: What must be in its header.
            wanted: Store it whatever admission and budget say: its put was durable.

        Returns:
            Where it is, unless policy refused it; see ``Written``. Cancelling it is harmless and
            does not stop the write.

        Raises:
            StaleExtent: Another version is there, or its epoch is over.
            ChecksumMismatch: Its header is damaged.
            ObjectTooLarge: It is larger than a region.
            Overloaded: Too much waits already, or the store is degraded. Counted.
            InvalidArgument: It is no extent.

        Errors of the future:
            ChecksumMismatch, StaleExtent: As above, or it was removed meanwhile.
            NoSpace: No room could be made.
            Overloaded: The disk refused it.
        """
        try:
            volume = self._get()
        except Overloaded:
            with self._lock:
                self._memory.counters.refused["degraded"] += 1
            raise
        return volume.write(source, version, wanted=wanted)

    def remove(self, items: Sequence[tuple[int, int]]) -> Future[None]:
        """Forget entries: unreadable at once, and for good when the future ends.

        A write of such a version that is under way ends unreadable, too. What is not there is
        removed already.

        Args:
            items: (location, version) of each; location -1: wherever that version is.

        Raises:
            Overloaded: The store is degraded; ask again. What was asked is remembered meanwhile
                and done when the directory is opened again.

        Errors of the future:
            Overloaded: The same.
        """
        with self._lock:
            if self._volume is not None:  # Even one that fails: it keeps what it was told.
                return self._volume.remove(items)
            self._memory.removed.update(version for _, version in items)
            raise self._refusal()

    def set_epochs(self, epochs: Mapping[int, int]) -> Future[None]:
        """Make everything of older epochs unreadable: at once, and for good when the future ends.

        Args:
            epochs: {namespace slot: readable epoch}; one that is lower than known is ignored.

        Raises:
            Overloaded: The store is degraded; ask again. The epochs are remembered meanwhile.

        Errors of the future:
            Overloaded: The same.
        """
        with self._lock:
            if self._volume is not None:
                return self._volume.set_epochs(epochs)
            self._memory.raise_epochs(epochs)
            raise self._refusal()

    # --- reading --------------------------------------------------------------------------------

    def find(self, version: int) -> int:
        """Return the location of a version, or -1."""
        volume = self._volume
        if volume is None:
            return -1
        with volume.ledger.lock:
            return volume.ledger.table.find(version)

    def give_up(self, location: int, version: int, reason: str) -> None:
        """Forget an entry that a reader found damaged, count it under ``reason`` and report it."""
        volume = self._volume
        if volume is not None:
            volume.lose(location, version, reason)

    def size_of(self, location: int, version: int) -> int:
        """Return the bytes of an extent, from its header to its end in whole granules.

        Raises:
            StaleExtent: It is not, or no longer, here.
            Overloaded: The store is degraded.
        """
        ledger = self._get().ledger
        with ledger.lock:
            entry = ledger.table.get(location, version)
            if entry is None or ledger.is_cleared(entry.slot, entry.epoch):
                raise StaleExtent(f"version {version} is not on this disk (any more)")
            return entry.size

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
        """Read a range of an extent into memory of the store, to be sent from there.

        Give the memory back soon: there is a bounded amount of it, and reads wait for it.

        Args:
            location: Where the store said it is.
            version: What must be there.
            start: First byte, from the extent's start (its header) on.
            length: Bytes, at most ``buffers.PIECE_BYTES``.
            deadline: When the future has ended.
            counts: Somebody wants the extent, so it is kept for longer.

        Raises:
            Overloaded: Too many reads wait, or the store is degraded. Counted.
            InvalidArgument: The range is longer than that.

        Errors of the future:
            StaleExtent: It is not, or no longer, here.
            ChecksumMismatch: What is on the disk is not what was written; the entry is dropped.
            InvalidArgument: The range lies outside of the extent.
            Overloaded: The disk refuses.
            DeadlineExceeded: It did not answer in time.
        """
        span = Span(location, version, start, length)
        return self._get().reads.stage(span, deadline, counts=counts)

    def read_into(self, span: Span, targets: Sequence[memoryview], deadline: Deadline) -> Transfer:
        """Read a range of an extent into the caller's buffers; the payload is not verified.

        Once the transfer has ended, or was cancelled, nothing more is written into them.

        Args:
            span: What to read, of any length.
            targets: Writable buffers (1-D, format "B") that take the range in order.
            deadline: When the transfer has ended.

        Raises:
            Overloaded: As ``read``.
            InvalidArgument: The targets are not as long as the range.

        Errors of the future:
            As ``read``.
        """
        if sum(map(len, targets)) != span.length:
            raise InvalidArgument(f"the targets are not those of a range of {span.length} bytes")
        return self._get().reads.fill(span, targets, deadline, verify=False)

    def load(
        self,
        location: int,
        version: int,
        target: memoryview,
        deadline: Deadline,
    ) -> Transfer:
        """Read a whole extent and verify it, to publish it elsewhere.

        Args:
            location: Where the store said it is.
            version: What must be there.
            target: Takes the extent; ``size_of`` bytes.
            deadline: When the transfer has ended.

        Raises:
            Overloaded, StaleExtent: As ``read``.
            InvalidArgument: The target is not as long as the extent.

        Errors of the future:
            As ``read``.
        """
        size = self.size_of(location, version)
        if len(target) != size:
            raise InvalidArgument(f"the extent has {size} bytes, its target {len(target)}")
        span = Span(location, version, 0, size)
        return self._get().reads.fill(span, [target], deadline, verify=True)

    def list_page(self, cursor: int, limit: int) -> Future[DirectoryPage]:
        """Return what the store holds, a page at a time; an entry's offset is its location.

        Raises:
            Overloaded: The store is degraded, or busy.

        Errors of the future:
            Overloaded: The index cannot be read.
        """
        volume = self._get()
        future: Future[DirectoryPage] = Future()

        def work() -> None:
            try:
                settle(future, volume.list_page(cursor, limit))
            except (IndexFailed, IndexDamaged) as error:
                volume.ledger.stop(str(error))
                fail(future, Overloaded(f"the store in {self.directory} is degraded: {error}"))

        volume.reads.call(work, lambda: fail(future, self._refusal()))
        return future

    # --- statistics -----------------------------------------------------------------------------

    def statistics(self) -> Statistics:
        """Return the store as it is now, all of one moment."""
        state, reason = self.state()
        volume = self._volume
        shown: dict[str, object] = {
            "path": str(self.directory),
            "state": state,
            "reason": reason,
            "incarnation": self._incarnation,
            "capacity_bytes": self.capacity_bytes,
            "write_budget_bytes": self._plan.options.write_budget_bytes_per_day,
        }
        if volume is None:
            shown |= self._memory.counters.shown()
        else:
            with volume.ledger.lock:
                shown |= volume.ledger.shown()
            shown["waiting_bytes"] = volume.waiting_bytes
        return Statistics(**shown)  # type: ignore[arg-type]  # the parts are typed where they are made

    # --- opening and closing --------------------------------------------------------------------

    def close(self, timeout_s: float = 10.0) -> None:
        """Write what waits, as far as there is time, and close everything. Idempotent."""
        self._closing.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(JOIN_S)
        with self._lock:
            volume, self._volume = self._volume, None
        if volume is not None:
            volume.close("the store is being closed", timeout_s)
        self._on_change(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> None:
        """Try to open the directory.

        Raises:
            ConfigError: It can never be opened.
        """
        try:
            opened = open_directory(self._plan, self._memory)
        except DiskTrouble as error:
            self._reason = str(error)
            return
        volume = Volume(opened, self._plan.options, self._staging)
        volume.start()
        with self._lock:
            late_epochs = dict(self._memory.epochs)
            late_removed = [(-1, version) for version in self._memory.removed]
            self._memory.removed.clear()
            self._replaced = volume.form.replaced
            self._incarnation = volume.form.identity.incarnation
            # What was asked while the directory was being opened, before anybody reads there.
            volume.set_epochs(late_epochs)
            volume.remove(late_removed)
            if not self._closing.is_set():
                self._volume = volume
                self._openings += 1
        if self._volume is not volume:
            volume.close("the store is being closed", 0.0)

    def _watch(self) -> None:
        """Keep deadlines, and tell what has changed."""
        while not self._closing.wait(WATCH_S):
            volume, openings = self._volume, self._openings
            if volume is not None:
                volume.watch()
            state, reason = self.state()
            if (state, reason) != self._told[:2]:
                _log.log(
                    logging.INFO if state is State.READY else logging.WARNING,
                    "the store in %s is %s: %s", self.directory, state.value, reason or "fine",
                )  # fmt: skip
            if (state, reason, openings) != self._told:
                self._told = (state, reason, openings)
                self._on_change(self)

    def _supervise(self) -> None:
        """Look after the disk, close what has failed and open it again."""
        while not self._closing.wait(self._plan.options.probe_s):
            volume = self._volume
            if volume is not None:
                volume.probe()
                if volume.ledger.stopped:
                    self._let_go(volume)
            elif self._leaving is None or self._leaving.is_over():
                self._leaving = None
                self._reopen()

    def _let_go(self, volume: Volume) -> None:
        self._reason = volume.ledger.stopped
        with self._lock:
            self._volume = None
        over = volume.close(self._reason, 0.0)
        with self._lock:
            volume.remember(self._memory)
        self._leaving = None if over else volume

    def _reopen(self) -> None:
        try:
            self._open()
        except ConfigError as error:
            self._reason = str(error)
