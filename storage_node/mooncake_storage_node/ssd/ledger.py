"""The truth in memory about one opened store, shared by its threads.

One lock guards everything; it is held for microseconds, never during I/O. An entry is readable
from the moment its record is durable (``Committer``) until it is hidden; a hidden entry's location
and room are used again only after its deletion is durable.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from mooncake_storage_node.ssd.core import records
from mooncake_storage_node.ssd.core.layout import INDEX_FILL, OVERHEAD_BYTES
from mooncake_storage_node.ssd.core.regions import Region, Regions, RegionState
from mooncake_storage_node.ssd.core.table import Entry, Table
from mooncake_store.errors import NoSpace, Overloaded, StaleExtent
from mooncake_store.limits import NAMESPACES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mooncake_storage_node.ssd.core.admission import Wear
    from mooncake_storage_node.ssd.core.layout import Geometry
    from mooncake_storage_node.ssd.core.regions import Run
    from mooncake_storage_node.ssd.requests import Dropped, Removal, Write
    from mooncake_storage_node.ssd.statistics import Counters

WAIT_S: Final = 0.25
"""Longest wait for a condition before the state is looked at again."""

SPARE_REGIONS: Final = 1
"""Free regions beside the open one, so that writers do not wait for an eviction. Each one more
would be 1/16 to 1/64 of the cache that holds nothing."""


WRITE_TROUBLE: Final = "write"
"""The disk refuses to be written, whatever the file."""

READ_TROUBLE: Final = "read"
"""The disk refuses to be read, whatever the file."""


class Stopped(Exception):
    """The opened store is being closed; the message says why."""


class Ledger:
    """See the module.

    Attributes:
        lock: Guards every attribute.
        changed: Regions became free, or none will; with ``lock``.
        table: Entries.
        regions: Where they lie.
        epochs: {namespace slot: readable epoch}.
        pending: {version: its write} of all writes that were accepted and are not over.
        pending_bytes: Their bytes.
        dying: {location: version} of hidden entries whose deletion is not durable yet.
        wear: What was written.
        counters: What happened.
        index_bytes: Bytes of records in the index.
        promised: {place of a run: bytes of the records that its extents may need}.
        sweep_wanted: Entries whose epoch is over may be in the table.
        blocked: Why no region will become free; empty while one may.
        stopped: Why the store is being closed; empty while it is not.
        troubles: {kind: sentence}: what is wrong and does not keep the store from being open.
    """

    def __init__(
        self,
        geometry: Geometry,
        counters: Counters,
        wear: Wear,
        on_dropped: Callable[[Sequence[Dropped]], None],
    ) -> None:
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.geometry = geometry
        self.table = Table()
        self.regions = Regions(geometry.region_bytes)
        self.epochs = [0] * NAMESPACES_MAX
        self.pending: dict[int, Write] = {}
        self.pending_bytes = 0
        self.dying: dict[int, int] = {}
        self.wear = wear
        self.counters = counters
        self.index_bytes = 0
        self.promised: dict[int, int] = {}
        self.sweep_wanted = True
        self.blocked = ""
        self.stopped = ""
        self.troubles: dict[str, str] = {}
        self.on_dropped = on_dropped

    # --- state ----------------------------------------------------------------------------------

    def stop(self, reason: str) -> None:
        """Let every thread end; the first reason is kept."""
        with self.lock:
            self.stopped = self.stopped or reason
            self.changed.notify_all()

    def check_running(self) -> None:
        """Raise if the store is being closed; with the lock held.

        Raises:
            Stopped: It is.
        """
        if self.stopped:
            raise Stopped(self.stopped)

    def set_trouble(self, kind: str, sentence: str) -> None:
        """Note what is wrong, or with an empty sentence that it is not any more."""
        with self.lock:
            if sentence:
                self.troubles[kind] = sentence
            else:
                self.troubles.pop(kind, None)

    def shown(self) -> dict[str, object]:
        """Return the fields of ``Statistics`` that are known here; with the lock held."""
        return self.counters.shown() | {
            "disk_bytes": self.disk_bytes(),
            "used_bytes": self.table.bytes,
            "entries": self.table.count,
            "memory_bytes": self.table.memory_bytes,
            "index_bytes": self.index_bytes,
            "regions": len(self.regions),
            "regions_free": self.regions.count(RegionState.FREE),
            "regions_broken": self.regions.count(RegionState.BROKEN),
            "written_today_bytes": self.wear.today_bytes,
            "write_amplification": self.wear.amplification(),
        }

    # --- room -----------------------------------------------------------------------------------

    @property
    def index_bytes_max(self) -> int:
        """Bytes that records may take in the index."""
        return int(self.geometry.index_bytes * INDEX_FILL)

    def disk_bytes(self) -> int:
        """Return the disk that the store's files take; with the lock held."""
        regions = len(self.regions) * self.geometry.region_bytes
        return regions + self.geometry.index_bytes + OVERHEAD_BYTES

    def needs_room(self) -> bool:
        """Return whether a region should be made free; with the lock held."""
        free = self.regions.count(RegionState.FREE)
        return free < SPARE_REGIONS or self.index_bytes > self.index_bytes_max

    def allocate(self, sizes: Sequence[int], names: Sequence[int]) -> Run:
        """Wait for room for the first of some extents, and as many as fit behind it.

        Room means both a place and a record: a batch of small extents takes few regions and many
        records, and what waits for its commit is not in the index yet.

        Args:
            sizes: Bytes of the extents.
            names: Bytes of their name blocks.

        Raises:
            NoSpace: There is none and there will be none.
            Overloaded: The disk cannot be written.
            Stopped: The store is being closed.
        """
        with self.lock:
            while True:
                self.check_running()
                if WRITE_TROUBLE in self.troubles:
                    raise Overloaded(self.troubles[WRITE_TROUBLE])
                run = self._allocate(sizes, names)
                if run is not None:
                    self.changed.notify_all()  # The keeper prepares the next region.
                    return run
                if self.blocked:
                    raise NoSpace(self.blocked)
                self.changed.notify_all()
                self.changed.wait(WAIT_S)

    def _allocate(self, sizes: Sequence[int], names: Sequence[int]) -> Run | None:
        promised = sum(self.promised.values())
        left = self.index_bytes_max - self.index_bytes - promised
        if left < 0:
            return None
        count = 0
        for size in names:
            left -= records.index_bytes(size)
            if left < 0 and (count or promised):
                break
            count += 1
        run = self.regions.allocate(sizes[:count]) if count else None
        if run is not None:
            self.promised[run.place] = sum(map(records.index_bytes, names[: run.extents]))
        return run

    def ended(self, run: Run) -> None:
        """Note that a run is over: what it has for records is in the index; lock held."""
        self.promised.pop(run.place, None)
        self.regions.ended(run)

    def end_run(self, run: Run) -> None:
        """Say that a run will not be written any more."""
        with self.lock:
            self.ended(run)
            self.changed.notify_all()

    def break_region(self, number: int, sentence: str) -> None:
        """Write no more into a region."""
        with self.lock:
            self.regions.break_(number)
            self.troubles[region_trouble(number)] = sentence
            self.changed.notify_all()

    def free_drained(self) -> None:
        """Make regions free whose entries are gone and whose readers have left; lock held."""
        for region in self.regions.all():
            if region.state is RegionState.EVICTING and self.regions.free(region):
                self.changed.notify_all()

    # --- entries --------------------------------------------------------------------------------

    def pin(self, location: int, version: int) -> tuple[Entry, bool]:
        """Find an entry and keep its room until ``unpin``.

        Returns:
            The entry, and whether its header was checked since the store was opened.

        Raises:
            StaleExtent: It is not, or no longer, here, or its epoch is over.
            Overloaded: The store is being closed.
        """
        with self.lock:
            if self.stopped:
                raise Overloaded(self.stopped)
            entry = self.table.get(location, version)
            if entry is None or self.epochs[entry.slot] > entry.epoch:
                self.counters.read_misses += 1
                raise StaleExtent(f"version {version} is not on this disk (any more)")
            self.regions.pin(entry.place, entry.size)
            return entry, self.table.is_checked(location)

    def unpin(self, location: int, entry: Entry, *, served: bool, counts: bool) -> bool:
        """End a read; return whether the entry can still be read.

        Args:
            location: Where the entry was found.
            entry: As ``pin`` gave it.
            served: Whether its bytes were read, and its header was right.
            counts: Whether that makes the entry hotter: one part of a read does.
        """
        with self.lock:
            self.regions.unpin(entry.place, entry.size)
            if not self.regions[entry.place // self.geometry.region_bytes].readers:
                self.changed.notify_all()
            current = self.table.get(location, entry.version)
            if current is None or self.epochs[entry.slot] > entry.epoch:
                return False
            if served:
                self.table.set_checked(location)
            if served and counts:
                self.table.touch(location)
                self.counters.reads += 1
            return True

    def add(self, location: int, entry: Entry) -> None:
        """Take up an entry whose record is durable; with the lock held."""
        self.table.put(location, entry)
        self.regions.attach(location, entry.place, entry.size)
        if self.is_cleared(entry.slot, entry.epoch):  # While its record was on the way.
            self.sweep_wanted = True

    def reserve(self, name_bytes: int) -> int:
        """Reserve a location for a new entry, -1 where there is none; with the lock held."""
        location = self.table.reserve()
        if location >= 0:
            self.index_bytes += records.index_bytes(name_bytes)
        return location

    def unreserve(self, location: int, name_bytes: int) -> None:
        """Give a location back that was not filled; with the lock held."""
        self.table.give_back(location)
        self.index_bytes -= records.index_bytes(name_bytes)

    def hide(self, location: int, version: int) -> Entry | None:
        """Make an entry unreadable at once; with the lock held.

        Its deletion has to be committed: until then it is in ``dying``.

        Returns:
            The entry; None: it was not there.
        """
        entry = self.table.get(location, version)
        if entry is not None:
            self.table.hide(location)
            self.dying[location] = version
        return entry

    def forget(self, location: int, entry: Entry) -> None:
        """Use location and room of a hidden entry again: its deletion is durable; lock held."""
        self.regions.detach(location, entry.place, entry.size)
        self.unreserve(location, entry.name_bytes)
        del self.dying[location]

    def move(self, location: int, version: int, place: int) -> bool:
        """Say that an entry lies elsewhere now; return whether it is still there; lock held."""
        entry = self.table.get(location, version)
        if entry is None:
            return False
        self.regions.detach(location, entry.place, entry.size)
        self.table.move(location, place)
        self.regions.attach(location, place, entry.size)
        return True

    def entries_of(self, region: Region) -> list[tuple[int, Entry]]:
        """Return location and entry of all that begins or ends in a region; lock held."""
        found: dict[int, Entry] = {}
        for location in [*region.locations, region.straddler]:
            entry = self.table.at(location) if location >= 0 else None
            if entry is not None and self._touches(region, entry):
                found[location] = entry
        return list(found.items())

    def _touches(self, region: Region, entry: Entry) -> bool:
        size = self.geometry.region_bytes
        first, last = entry.place // size, (entry.place + entry.size - 1) // size
        return first <= region.number <= last

    # --- writes and epochs ----------------------------------------------------------------------

    def accept(self, write: Write) -> None:
        """Take a write on; with the lock held."""
        self.pending[write.version] = write
        self.pending_bytes += write.size

    def end_write(self, write: Write) -> None:
        """Say that a write is over, if it was not yet; with the lock held."""
        if self.pending.get(write.version) is write:
            del self.pending[write.version]
            self.pending_bytes -= write.size

    def fence(self, version: int, removal: Removal) -> bool:
        """Keep a write under way from becoming readable; with the lock held.

        Returns:
            Whether there is one; ``removal`` is then told when it is over.
        """
        write = self.pending.get(version)
        if write is None:
            return False
        write.is_fenced = True
        write.removals.append(removal)
        removal.left += 1
        return True

    def is_cleared(self, slot: int, epoch: int) -> bool:
        """Return whether a namespace's epoch is over; with the lock held."""
        return self.epochs[slot] > epoch

    def raise_epochs(self, epochs: Mapping[int, int]) -> bool:
        """Make everything older unreadable at once; return whether anything changed; lock held."""
        changed = False
        for slot, epoch in epochs.items():
            if 0 <= slot < NAMESPACES_MAX and epoch > self.epochs[slot]:
                self.epochs[slot] = epoch
                self.sweep_wanted = changed = True
        return changed

    def live_epochs(self) -> dict[int, int]:
        """Return {slot: epoch} of all namespaces that have one; with the lock held."""
        return {slot: epoch for slot, epoch in enumerate(self.epochs) if epoch}


def region_trouble(number: int) -> str:
    """Return the kind of trouble that a broken region is."""
    return f"region {number}"
