"""Making things durable, many at a time: data first, then the index, then memory.

While one commit is on its way to the disk, what is to come gathers for the next. A write is
readable, and a removal acknowledged, after the transaction that holds it.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from mooncake_storage_node.ssd.core import records
from mooncake_storage_node.ssd.core.layout import pieces
from mooncake_storage_node.ssd.core.records import EntryRecord
from mooncake_storage_node.ssd.core.table import Entry
from mooncake_storage_node.ssd.index import IndexDamaged, IndexFailed
from mooncake_storage_node.ssd.ledger import WAIT_S
from mooncake_storage_node.ssd.requests import Removal, Write, Written, fail
from mooncake_storage_node.ssd.statistics import smooth
from mooncake_storage_node.ssd.threads import make_thread
from mooncake_store.errors import Overloaded, StaleExtent, TooManyObjects

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future

    from mooncake_storage_node.ssd.core.regions import Run
    from mooncake_storage_node.ssd.files import File
    from mooncake_storage_node.ssd.index import Index
    from mooncake_storage_node.ssd.ledger import Ledger

CHANGES_MAX: Final = 4_096
"""Records in one transaction: about 10 ms of the index's process."""


MovedItem = tuple[int, int, EntryRecord]
"""Location, the place that the extent was read from, its record with the new place."""


@dataclass(slots=True)
class Landed:
    """Extents that were written into a run, not yet durable."""

    run: Run
    writes: list[Write]
    added: list[tuple[int, Entry, Write]] = field(default_factory=list)
    """Those that a commit has given a location."""


@dataclass(slots=True)
class Moved:
    """Entries that were written again elsewhere."""

    run: Run
    items: list[MovedItem]
    removal: Removal
    """Ends when they are durable."""


@dataclass(slots=True)
class Deleted:
    """Hidden entries whose records are to be deleted."""

    entries: list[tuple[int, Entry]]
    removal: Removal


@dataclass(slots=True)
class Noted:
    """Records of other kinds."""

    puts: list[tuple[bytes, bytes]]
    removal: Removal


Change = Landed | Moved | Deleted | Noted


@dataclass(slots=True)
class _Transaction:
    """What one commit changes."""

    puts: list[tuple[bytes, bytes]] = field(default_factory=list)
    deletes: list[bytes] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)


class Committer:
    """One thread that commits.

    Attributes:
        busy_since_s: When the operation under way began; 0: there is none.
    """

    def __init__(
        self,
        ledger: Ledger,
        index: Index,
        files: Mapping[int, File],
        on_commit: Callable[[int], None],
    ) -> None:
        """Prepare; ``start`` begins.

        Args:
            ledger: Shared state.
            index: Used by this thread alone for commits.
            files: {region: its file}; grows.
            on_commit: Told the number of each transaction.
        """
        self._ledger = ledger
        self._index = index
        self._files = files
        self._on_commit = on_commit
        self._sequences: dict[int, int] = {}
        self._changes: list[Change] = []
        self._current: list[Change] = []
        self._late: list[tuple[Write, Entry]] = []
        self._wake = threading.Condition()
        self._ended = False
        self._failed = False
        self.busy_since_s = 0.0
        self._thread = make_thread("ssd commit", self._run, ledger.stop, courteous=True)

    def start(self, sequences: Mapping[int, int]) -> None:
        """Begin; ``sequences`` are those of regions that are recorded already."""
        self._sequences = dict(sequences)
        self._thread.start()

    def submit(self, change: Change) -> None:
        """Have something committed; in the order of calls. Never waits."""
        with self._wake:
            if not self._ended:
                self._changes.append(change)
                self._wake.notify()
                return
        self._abandon([change])

    def end(self, timeout_s: float) -> bool:
        """Commit what is there and end; return whether the thread has ended in time."""
        with self._wake:
            self._ended = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        with self._wake:  # Left over where the thread ended by mistake.
            changes, self._changes, self._current = self._current + self._changes, [], []
        self._abandon(changes)
        return True

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._changes and not self._ended:
                    self._wake.wait(WAIT_S)
                if not self._changes:
                    return
                changes = self._next_changes()
            if self._failed:
                self._abandon(changes)
                continue
            self._current = changes
            self.busy_since_s = time.monotonic()
            self._commit(changes)
            self.busy_since_s = 0.0
            self._current = []

    def _next_changes(self) -> list[Change]:
        count = taken = 0
        for change in self._changes:
            count += _count(change)
            taken += 1
            if count >= CHANGES_MAX:
                break
        changes, self._changes = self._changes[:taken], self._changes[taken:]
        return changes

    # --- one commit -----------------------------------------------------------------------------

    def _commit(self, changes: list[Change]) -> None:
        changes = self._sync(changes)
        try:
            self._write(self._build(changes))
        except (IndexFailed, IndexDamaged) as error:
            self._failed = True
            self._ledger.stop(str(error))
            self._abandon(changes)
            return
        for change in changes:
            with self._ledger.lock:
                self._apply(change)
            self._settle(change)

    def _sync(self, changes: list[Change]) -> list[Change]:
        """Make data durable; leave out what lies in a region that refused it."""
        broken: dict[int, str] = {}
        touched = {number for change in changes for number in self._numbers(change)}
        for number in sorted(touched):
            try:
                self._files[number].sync()
            except OSError as error:
                broken[number] = f"region file {number} cannot be synced: {error.strerror}"
                self._ledger.break_region(number, broken[number])
        if not broken:
            return changes
        kept: list[Change] = []
        for change in changes:
            bad = [number for number in self._numbers(change) if number in broken]
            if bad:
                self._give_up(change, Overloaded(broken[bad[0]]))
            else:
                kept.append(change)
        return kept

    def _numbers(self, change: Change) -> list[int]:
        if isinstance(change, Deleted | Noted):
            return []
        size = self._ledger.geometry.region_bytes
        return [number for number, _, _ in pieces(change.run.place, change.run.size, size)]

    def _build(self, changes: list[Change]) -> _Transaction:
        """Collect what changes in the index; the lock is held for one change at a time."""
        transaction = _Transaction()
        for change in changes:
            match change:
                case Landed():
                    self._build_landed(change, transaction)
                case Moved():
                    self._build_moved(change, transaction)
                case Deleted():
                    transaction.deletes += [records.entry_key(at) for at, _ in change.entries]
                case Noted():
                    transaction.puts += change.puts
        with self._ledger.lock:
            self._note_regions(transaction)
            wear = self._ledger.wear.state()
        if transaction.puts or transaction.deletes:
            transaction.puts.append(records.pack_wear(wear))
        return transaction

    def _build_landed(self, change: Landed, transaction: _Transaction) -> None:
        ledger = self._ledger
        with ledger.lock:
            for write in change.writes:
                slot, epoch = write.header.slot, write.header.epoch
                if write.is_fenced or ledger.is_cleared(slot, epoch):
                    continue
                names = len(write.names)
                location = ledger.reserve(names)
                if location >= 0:
                    entry = Entry(write.version, write.place, write.size, slot, epoch, names)
                    change.added.append((location, entry, write))
        for location, entry, write in change.added:
            header = write.header
            record = EntryRecord(
                entry, header.length, header.checksum, header.fingerprint, write.names
            )
            transaction.puts.append(records.pack_entry(location, record))
            transaction.places.append((entry.place, entry.size))

    def _build_moved(self, change: Moved, transaction: _Transaction) -> None:
        table = self._ledger.table
        kept = []
        with self._ledger.lock:
            for item in change.items:
                location, old_place, record = item
                found = table.get(location, record.entry.version)
                if found is not None and found.place == old_place:
                    kept.append(item)
        change.items = kept
        for location, _, record in kept:
            transaction.puts.append(records.pack_entry(location, record))
            transaction.places.append((record.entry.place, record.entry.size))

    def _note_regions(self, transaction: _Transaction) -> None:
        """Record the sequences of regions that were opened since."""
        for number, sequence in self._ledger.regions.sequences(transaction.places).items():
            if self._sequences.get(number) != sequence:
                self._sequences[number] = sequence
                transaction.puts.append(records.pack_region(number, sequence))

    def _write(self, transaction: _Transaction) -> None:
        if not transaction.puts and not transaction.deletes:
            return
        began_s = time.monotonic()
        commit = self._index.commit(transaction.puts, transaction.deletes)
        self._on_commit(commit.number)
        ledger = self._ledger
        with ledger.lock:
            ledger.wear.spend(user_bytes=0, total_bytes=commit.written_bytes, now_s=time.time())
            ledger.counters.written_bytes += commit.written_bytes
            took_us = (time.monotonic() - began_s) * 1e6
            ledger.counters.commit_us = smooth(ledger.counters.commit_us, took_us)

    def _apply(self, change: Change) -> None:
        """Make memory say what the index says; with the lock held."""
        ledger = self._ledger
        match change:
            case Landed():
                self._apply_landed(change)
            case Moved():
                self._apply_moved(change)
            case Deleted():
                for location, entry in change.entries:
                    ledger.forget(location, entry)
        if not isinstance(change, Landed):
            change.removal.step()
        ledger.changed.notify_all()

    def _apply_landed(self, change: Landed) -> None:
        ledger = self._ledger
        ledger.ended(change.run)
        now_s = time.time()
        for location, entry, write in change.added:
            ledger.add(location, entry)
            write.location = location
            ledger.counters.stored += 1
            ledger.counters.stored_bytes += entry.size
            ledger.wear.spend(user_bytes=entry.size, total_bytes=0, now_s=now_s)
        for write in change.writes:
            ledger.end_write(write)
            if write.is_fenced and write.location >= 0:
                # Removed while its record was on the way: nobody ever sees it.
                hidden = ledger.hide(write.location, write.version)
                assert hidden is not None
                ledger.counters.removed += 1
                self._late.append((write, hidden))
                continue
            for removal in write.removals:
                removal.step()

    def _apply_moved(self, change: Moved) -> None:
        ledger = self._ledger
        ledger.ended(change.run)
        for location, _, record in change.items:
            # One that was hidden meanwhile has its deletion coming.
            if ledger.move(location, record.entry.version, record.entry.place):
                ledger.counters.carried += 1
                ledger.counters.carried_bytes += record.entry.size

    def _settle(self, change: Change) -> None:
        if isinstance(change, Landed):
            for write in change.writes:
                self._settle_write(write)
        else:
            change.removal.settle_if_over()
        late, self._late = self._late, []
        for write, entry in late:
            self._delete_then(write, entry)

    def _settle_write(self, write: Write) -> None:
        for removal in write.removals:
            removal.settle_if_over()
        header = write.header
        with self._ledger.lock:
            stale = write.is_fenced or self._ledger.is_cleared(header.slot, header.epoch)
            if write.location < 0:
                reason = "removed" if stale else "too_many_objects"
                self._ledger.counters.refused[reason] += 1
        if stale:
            write.fail(StaleExtent(f"version {write.version} was removed while it was written"))
        elif write.location < 0:
            write.fail(TooManyObjects("the store has no number left for another entry"))
        else:
            write.settle(Written(write.location))

    def _delete_then(self, write: Write, entry: Entry) -> None:
        """Delete an entry; the removals that wait for its write end with that."""
        deleted = Deleted([(write.location, entry)], Removal())

        def over(ended: Future[None]) -> None:
            error = ended.exception()
            with self._ledger.lock:
                for removal in write.removals:
                    removal.step()
            for removal in write.removals:
                if error is not None:
                    fail(removal.future, Overloaded(str(error)))
                removal.settle_if_over()

        deleted.removal.future.add_done_callback(over)
        self.submit(deleted)

    # --- giving up ------------------------------------------------------------------------------

    def _abandon(self, changes: list[Change]) -> None:
        """End everything that cannot be committed any more."""
        reason = self._ledger.stopped or "the store is being closed"
        for change in changes:
            self._give_up(change, Overloaded(reason))

    def _give_up(self, change: Change, error: Overloaded) -> None:
        if isinstance(change, Landed | Moved):
            self._ledger.end_run(change.run)
        if isinstance(change, Landed):
            self.refuse(change.writes, error)
        else:
            fail(change.removal.future, error)

    def refuse(self, writes: list[Write], error: Exception, reason: str = "failed") -> None:
        """End writes that will not be committed; their removals have nothing to wait for."""
        ledger = self._ledger
        with ledger.lock:
            for write in writes:
                ledger.end_write(write)
                ledger.counters.refused[reason] += 1
                for removal in write.removals:
                    removal.step()
        for write in writes:
            for removal in write.removals:
                removal.settle_if_over()
            write.fail(error)


def _count(change: Change) -> int:
    match change:
        case Landed():
            return len(change.writes)
        case Moved():
            return len(change.items)
        case Deleted():
            return len(change.entries)
        case Noted():
            return len(change.puts)
