"""Keeping room: creating regions while the capacity allows, then evicting the oldest.

An evicted region's entries are hidden and their deletion committed before its room is used again.
Those that were read since they were written are carried over: read, verified and written again,
hottest first, up to a share of the region, which bounds what users' writes cost the disk.
"""

from __future__ import annotations

import errno
import time
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Final

from mooncake_storage_node.ssd.buffers import copy, map_aligned
from mooncake_storage_node.ssd.committer import Deleted, Moved, MovedItem
from mooncake_storage_node.ssd.core.layout import BLOCK_BYTES, run_bytes
from mooncake_storage_node.ssd.core.records import EntryRecord
from mooncake_storage_node.ssd.core.regions import RegionState
from mooncake_storage_node.ssd.disk import RegionRefused
from mooncake_storage_node.ssd.ledger import WAIT_S, WRITE_TROUBLE, region_trouble
from mooncake_storage_node.ssd.requests import Dropped, Removal
from mooncake_storage_node.ssd.threads import make_thread
from mooncake_storage_node.ssd.verifying import ExtentVerifier
from mooncake_store.errors import StoreError
from mooncake_store.extent import unpack_header

if TYPE_CHECKING:
    from mooncake_storage_node.ssd.committer import Committer
    from mooncake_storage_node.ssd.core.regions import Region, Run
    from mooncake_storage_node.ssd.core.table import Entry
    from mooncake_storage_node.ssd.disk import Disk
    from mooncake_storage_node.ssd.ledger import Ledger
    from mooncake_storage_node.ssd.options import Options
    from mooncake_store.extent import Header

SPACE_TROUBLE: Final = "space"
"""The file system has no room for what the capacity still allows."""

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

LOCKED_ROWS: Final = 1_024
"""Entries that are hidden with the lock held: 1 to 2 ms, for which reads wait."""

SWEEP_ROWS: Final = 8_192
"""Rows of the table that are looked at with the lock held: about 1 ms."""

RETRY_PROBES: Final = 30
"""Probes between two attempts to write a region that refused."""

DRAIN_S: Final = 2.0
"""Time that readers have to leave an evicted region before another one is given up as well."""

EVICTED: Final = "evicted"

Found = tuple[int, "Entry"]
"""An entry and its location."""


class Keeper:
    """One thread that keeps room."""

    def __init__(self, ledger: Ledger, committer: Committer, disk: Disk, options: Options) -> None:
        self._ledger = ledger
        self._committer = committer
        self._disk = disk
        self._options = options
        self._carry_bytes = int(options.carry_share * ledger.geometry.region_bytes)
        self._buffer = map_aligned(run_bytes(options.batch_bytes))
        self._scratch = map_aligned(len(self._buffer) + 2 * BLOCK_BYTES)
        self._zeros = map_aligned(BLOCK_BYTES)
        self._grow_at_s = 0.0
        self._mend_at_s = 0.0
        self._thread = make_thread("ssd keeper", self._run, ledger.stop, courteous=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end after the ledger was stopped; return whether it came in time."""
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def mend_soon(self) -> None:
        """Try regions that refused to be written."""
        with self._ledger.lock:
            self._mend_at_s = 0.0
            self._ledger.changed.notify_all()

    def _run(self) -> None:
        ledger = self._ledger
        while not ledger.stopped:
            self._make_room()
            if SPACE_TROUBLE in ledger.troubles:
                self._grow()  # Nobody writes to a store in trouble: only this finds its end.
            self._sweep()
            self._mend()
            with ledger.lock:
                if not ledger.sweep_wanted:
                    ledger.changed.wait(WAIT_S)
                ledger.free_drained()

    # --- room -----------------------------------------------------------------------------------

    def _make_room(self) -> None:
        """Make regions free until there are enough, or nothing can be done."""
        ledger = self._ledger
        while not ledger.stopped:
            with ledger.lock:
                ledger.free_drained()
                if not ledger.needs_room():
                    ledger.blocked = ""
                    return
            if self._grow():
                continue
            if WRITE_TROUBLE in ledger.troubles:
                return  # What was evicted now could not be replaced.
            if self._evict():
                continue
            with ledger.lock:
                ledger.blocked = self._why_blocked()
                ledger.changed.notify_all()
            return

    def _why_blocked(self) -> str:
        """Return why no region can become free, or an empty sentence; with the lock held."""
        ledger = self._ledger
        is_full = ledger.index_bytes > ledger.index_bytes_max
        if (is_full or ledger.regions.is_starved) and ledger.regions.seal_open():
            return ""
        hopeful = {RegionState.FREE, RegionState.EVICTING, RegionState.SEALED}
        for region in ledger.regions.all():
            if region.state in hopeful or region.writers:
                return ""
        space = ledger.troubles.get(SPACE_TROUBLE)
        return space or "no region of the store can be written or given up"

    def _grow(self) -> bool:
        """Create one more region if the capacity allows it; return whether it was done."""
        ledger = self._ledger
        with ledger.lock:
            over = ledger.index_bytes > ledger.index_bytes_max
            full = len(ledger.regions) >= ledger.geometry.region_count
            number = ledger.regions.unused_number()
        if over or full or time.monotonic() < self._grow_at_s:
            return False
        size = ledger.geometry.region_bytes
        try:
            self._disk.create_region(number, size)
        except OSError as error:
            self._grow_at_s = time.monotonic() + self._options.probe_s
            self._blame(error)
            return False
        with ledger.lock:
            ledger.troubles.pop(SPACE_TROUBLE, None)
            ledger.regions.add(number)
            ledger.changed.notify_all()
        return True

    def _blame(self, error: OSError) -> None:
        """Find out whether a region could not be created for want of room, or at all."""
        trouble = "" if error.errno in _NO_ROOM else self._disk.probe.check()
        if trouble:
            self._ledger.set_trouble(WRITE_TROUBLE, trouble)
            return
        size = self._ledger.geometry.region_bytes
        reason = error.strerror or str(error)
        self._ledger.set_trouble(SPACE_TROUBLE, f"no room for a region of {size} bytes: {reason}")

    def _mend(self) -> None:
        """Try regions that refused to be written every now and then; see ``Regions.mend``."""
        ledger = self._ledger
        now_s = time.monotonic()
        if now_s < self._mend_at_s:
            return
        self._mend_at_s = now_s + RETRY_PROBES * self._options.probe_s
        with ledger.lock:
            broken = [r for r in ledger.regions.all() if r.state is RegionState.BROKEN]
        for region in broken:
            if region.is_unused and not self._takes_a_block(region.number):
                continue
            with ledger.lock:
                ledger.regions.mend(region.number)
                ledger.changed.notify_all()

    def _takes_a_block(self, number: int) -> bool:
        try:
            self._disk.files[number].write(self._zeros, 0)
        except OSError:
            return False
        with self._ledger.lock:
            self._ledger.troubles.pop(region_trouble(number), None)
        return True

    # --- evicting -------------------------------------------------------------------------------

    def _evict(self) -> bool:
        """Give one region up; return whether there was one."""
        ledger = self._ledger
        with ledger.lock:
            region = ledger.regions.victim()
            if region is None:
                return False
            found = ledger.entries_of(region)
        self._carry(found)
        with ledger.lock:
            left = ledger.entries_of(region)
        steps = range(0, len(left), LOCKED_ROWS)
        removals = [self._forget(left[start : start + LOCKED_ROWS]) for start in steps]
        if not all(map(self._await, removals)):
            return False
        self._drain(region)
        return True

    def _drain(self, region: Region) -> None:
        """Wait a little for readers that are still in an evicted region."""
        ledger = self._ledger
        until_s = time.monotonic() + DRAIN_S
        with ledger.lock:
            while not ledger.stopped:
                ledger.free_drained()
                left_s = until_s - time.monotonic()
                if region.is_unused or left_s <= 0:
                    return
                ledger.changed.wait(min(left_s, WAIT_S))

    def _forget(self, found: list[Found]) -> Removal:
        """Hide entries, report them and have them deleted."""
        ledger = self._ledger
        removal = Removal()
        hidden: list[Found] = []
        with ledger.lock:
            for location, entry in found:
                if ledger.hide(location, entry.version) is not None:
                    hidden.append((location, entry))
            ledger.counters.evicted += len(hidden)
        ledger.on_dropped([Dropped(at, entry.version, EVICTED) for at, entry in hidden])
        self._committer.submit(Deleted(hidden, removal))
        return removal

    def _await(self, removal: Removal) -> bool:
        try:
            removal.future.result()
        except (StoreError, CancelledError):
            return False
        return True

    # --- carrying over --------------------------------------------------------------------------

    def _carry(self, found: list[Found]) -> None:
        """Write the hottest entries of a region again elsewhere, within the bounds."""
        waiting = self._hottest(found)
        while waiting:
            count = self._batch(waiting)
            with self._ledger.lock:
                if self._ledger.stopped:
                    return
                run = self._ledger.regions.allocate([entry.size for _, entry in waiting[:count]])
                self._ledger.changed.notify_all()
            if run is None:
                return
            if not self._carry_into(run, waiting[: run.extents]):
                return
            waiting = waiting[run.extents :]

    def _hottest(self, found: list[Found]) -> list[Found]:
        ledger = self._ledger
        with ledger.lock:
            hits = {location: ledger.table.hits(location) for location, _ in found}
            allowed = ledger.wear.allows(self._carry_bytes, time.time())
        if not allowed:
            return []
        hot = sorted((f for f in found if hits[f[0]]), key=lambda f: -hits[f[0]])
        chosen: list[Found] = []
        room = self._carry_bytes
        for location, entry in hot:
            if run_bytes(entry.size) <= room:
                room -= run_bytes(entry.size)
                chosen.append((location, entry))
        return chosen

    def _batch(self, waiting: list[Found]) -> int:
        """Return how many of the first entries the buffer takes together; one in any case."""
        total = waiting[0][1].size
        count = 1
        for _, entry in waiting[1:]:
            total += entry.size
            if run_bytes(total) > len(self._buffer):
                break
            count += 1
        return count

    def _carry_into(self, run: Run, batch: list[Found]) -> bool:
        """Read, verify and write some entries; return whether to go on."""
        try:
            if run.size > len(self._buffer):
                items = self._copy_in_parts(batch[0], run.place)
            else:
                items = self._copy(batch, run)
        except RegionRefused:
            self._ledger.end_run(run)
            return False
        with self._ledger.lock:
            self._ledger.wear.spend(user_bytes=0, total_bytes=run.size, now_s=time.time())
            self._ledger.counters.written_bytes += run.size
        removal = Removal()
        self._committer.submit(Moved(run, items, removal))
        return self._await(removal)

    def _copy(self, batch: list[Found], run: Run) -> list[MovedItem]:
        """Move extents through memory; those that prove bad are left out, to be evicted."""
        items: list[MovedItem] = []
        at = 0
        for location, entry in batch:
            reader = _ExtentReader(self._disk, entry, self._ledger.geometry.region_bytes)
            if reader.read(self._buffer[at : at + entry.size], self._scratch) and reader.finish():
                items.append((location, entry.place, reader.record(run.place + at)))
                at += entry.size
        self._buffer[at : run.size] = bytes(run.size - at)
        self._disk.write(self._buffer[: run.size], run.place, self._ledger.geometry.region_bytes)
        return items

    def _copy_in_parts(self, found: Found, place: int) -> list[MovedItem]:
        """Move an extent that is larger than the buffer; none if it proves bad."""
        location, entry = found
        region_bytes = self._ledger.geometry.region_bytes
        reader = _ExtentReader(self._disk, entry, region_bytes)
        done = 0
        while done < entry.size:
            part = min(len(self._buffer), entry.size - done)
            padded = run_bytes(part)
            if not reader.read(self._buffer[:part], self._scratch):
                return []
            self._buffer[part:padded] = bytes(padded - part)
            self._disk.write(self._buffer[:padded], place + done, region_bytes)
            done += part
        return [(location, entry.place, reader.record(place))] if reader.finish() else []

    # --- cleared namespaces ---------------------------------------------------------------------

    def _sweep(self) -> None:
        """Forget the entries whose epoch is over; they are unreadable already."""
        ledger = self._ledger
        with ledger.lock:
            start = 0 if ledger.sweep_wanted else len(ledger.table)
            ledger.sweep_wanted = False
        while start < len(ledger.table) and not ledger.stopped:
            hidden: list[Found] = []
            with ledger.lock:
                dead = list(ledger.table.dead(ledger.epochs, start, start + SWEEP_ROWS))
                for location, version in dead:
                    entry = ledger.hide(location, version)
                    if entry is not None:
                        hidden.append((location, entry))
                ledger.counters.cleared += len(hidden)
            if hidden:
                self._committer.submit(Deleted(hidden, Removal()))
            start += SWEEP_ROWS


class _ExtentReader:
    """Reads one extent in parts and verifies it."""

    def __init__(self, disk: Disk, entry: Entry, region_bytes: int) -> None:
        self._disk = disk
        self._entry = entry
        self._region_bytes = region_bytes
        self._at = 0
        self._header: Header | None = None
        self._verifier: ExtentVerifier | None = None
        self._names = b""

    def read(self, target: memoryview, scratch: memoryview) -> bool:
        """Read the next bytes through ``scratch``; return False where they cannot be right."""
        align = self._disk.align
        place = self._entry.place + self._at
        skip = place % align
        size = -(-(skip + len(target)) // align) * align
        try:
            got = self._disk.read(scratch[:size], place - skip, self._region_bytes)
        except OSError:
            return False
        if got < skip + len(target):
            return False
        copy(target, scratch[skip : skip + len(target)])
        self._at += len(target)
        if self._verifier is None and not self._begin(target):
            return False
        assert self._verifier is not None
        self._verifier.update(target)
        return True

    def finish(self) -> bool:
        """Return whether the whole extent is right."""
        assert self._verifier is not None
        try:
            self._names = self._verifier.finish()
        except StoreError:
            return False
        return True

    def record(self, place: int) -> EntryRecord:
        """Return what the index is to say of it at its new place."""
        header = self._header
        assert header is not None
        entry = self._entry._replace(place=place)
        return EntryRecord(entry, header.length, header.checksum, header.fingerprint, self._names)

    def _begin(self, target: memoryview) -> bool:
        try:
            self._header = unpack_header(target)
        except StoreError:
            return False
        self._verifier = ExtentVerifier(self._header)
        entry = self._entry
        return (self._header.version, self._header.name_bytes) == (entry.version, entry.name_bytes)
