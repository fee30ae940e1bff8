"""Regions of a store: which one is filled, what lies in them, which one is given up next. Pure.

A region is free, then open (extents are appended to it), then sealed, then evicted, which frees it
again. The order in which regions were opened is their *sequence*; eviction takes the oldest, so
what was just written goes last. One of the oldest few that holds less than half as much goes
before.

Source of the scheme: log-structured stores (Rosenblum and Ousterhout, SOSP 1991), with first-in
first-out order and reinsertion of what was read, as caches on flash do it.
"""

from __future__ import annotations

import enum
from array import array
from typing import TYPE_CHECKING, Final, NamedTuple

from mooncake_storage_node.ssd.core.layout import pieces, run_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

CHOICE_SHARE: Final = 8
"""A victim is chosen among the oldest eighth: more would give up young data for a tidy disk."""


class RegionState(enum.Enum):
    """What happens in a region."""

    FREE = "free"
    OPEN = "open"
    SEALED = "sealed"
    EVICTING = "evicting"
    """Its entries are being given up, or readers are still in it."""
    BROKEN = "broken"
    """It cannot be written. What lies in it is readable as far as it can be read."""


class Region:
    """One region.

    Attributes:
        number: Names its file, and its first address.
        state: See above.
        sequence: Grows with each region that is opened; 0: never since it was free.
        fill: Offset at which the next run begins.
        live_bytes: Bytes of the entries that begin here.
        live_count: Their number.
        readers: Reads under way in it.
        writers: Runs that were allocated in it and have not ended.
        locations: Locations of all entries that began here since it was opened; some are gone.
        straddler: Location of the entry of the region before that ends here; -1: none.
    """

    __slots__ = ("fill", "live_bytes", "live_count", "locations", "number", "readers", "sequence",
                 "state", "straddler", "writers")  # fmt: skip

    def __init__(self, number: int) -> None:
        self.number = number
        self.state = RegionState.FREE
        self.sequence = 0
        self.fill = 0
        self.live_bytes = 0
        self.live_count = 0
        self.readers = 0
        self.writers = 0
        self.locations = array("I")
        self.straddler = -1

    @property
    def is_unused(self) -> bool:
        """Whether nobody writes, reads or remembers anything here."""
        idle = not self.readers and not self.writers
        return idle and not self.live_count and self.straddler < 0


class RegionContents:
    """Entries of one region that are gathered while an index is loaded.

    Attributes:
        locations: Their locations.
        size: Their bytes.
        fill: Where the last one ends.
    """

    __slots__ = ("fill", "locations", "size")

    def __init__(self) -> None:
        self.locations = array("I")
        self.size = 0
        self.fill = 0


class Run(NamedTuple):
    """Room for consecutive extents."""

    place: int
    size: int
    """Bytes, in whole blocks."""
    extents: int
    """How many it is for."""


class Regions:
    """All regions of one store; not safe for threads."""

    def __init__(self, region_bytes: int) -> None:
        self.region_bytes = region_bytes
        self._regions: dict[int, Region] = {}
        self._open: Region | None = None
        self._sequence = 0
        self.is_starved = False
        """Whether something waits for a region, and the open one has no room for it."""

    def __len__(self) -> int:
        return len(self._regions)

    def __contains__(self, number: int) -> bool:
        return number in self._regions

    def __getitem__(self, number: int) -> Region:
        return self._regions[number]

    def all(self) -> list[Region]:
        """Return all regions in the order of their numbers."""
        return [self._regions[number] for number in sorted(self._regions)]

    def count(self, state: RegionState) -> int:
        """Return how many regions are in a state."""
        return sum(region.state is state for region in self._regions.values())

    def add(self, number: int) -> None:
        """Add a region whose file is ready."""
        assert number not in self._regions
        self._regions[number] = Region(number)

    def remove(self, number: int) -> None:
        """Forget a region that is free or broken and unused."""
        assert self._regions[number].is_unused
        del self._regions[number]

    def discard(self, number: int) -> None:
        """Forget an unused region, whatever its state."""
        if self._regions[number].state is RegionState.OPEN:
            self.break_(number)
        self.remove(number)

    def unused_number(self) -> int:
        """Return the lowest number that no region has."""
        return next(n for n in range(len(self._regions) + 1) if n not in self._regions)

    # --- writing --------------------------------------------------------------------------------

    def fits(self, size: int) -> bool:
        """Return whether an extent of ``size`` bytes can be stored at all."""
        return 0 < run_bytes(size) <= self.region_bytes

    def allocate(self, sizes: Sequence[int]) -> Run | None:
        """Find room for the first of some extents, and as many more as fit behind it.

        Args:
            sizes: Bytes of the extents, in whole granules, at most a region each.

        Returns:
            The room; ``ended`` must be called for it. None: no region is free.
        """
        while True:
            region = self._open or self._open_next(-1)
            if region is None:
                break
            count, size = _prefix(sizes, self.region_bytes - region.fill)
            if count:
                return self._take(region, size, count)
            run = self._straddle(region, sizes[0])
            if run is not None:
                return run
            # Its end stays empty, unless the next file may still become free.
            if not self.count(RegionState.FREE):
                break
            self._seal(region)
            self._open_next(region.number)
        self.is_starved = True
        return None

    def ended(self, run: Run) -> None:
        """Say that nothing is written into a run any more."""
        for region in self._touched(run.place, run.size):
            region.writers -= 1

    def _take(self, region: Region, size: int, count: int) -> Run:
        run = Run(region.number * self.region_bytes + region.fill, run_bytes(size), count)
        region.fill += run.size
        region.writers += 1
        return run

    def _straddle(self, region: Region, size: int) -> Run | None:
        """Put an extent into the end of a region and the beginning of the next, if that is free."""
        rest = self.region_bytes - region.fill
        following = self._regions.get(region.number + 1)
        if not rest or following is None or following.state is not RegionState.FREE:
            return None
        self._seal(region)
        place = region.number * self.region_bytes + region.fill
        region.fill = self.region_bytes
        region.writers += 1
        self._begin(following)
        following.fill = run_bytes(size - rest)
        following.writers += 1
        return Run(place, rest + following.fill, 1)

    def _open_next(self, after: int) -> Region | None:
        """Open a free region, that behind ``after`` if it is free."""
        free = [region for region in self._regions.values() if region.state is RegionState.FREE]
        if not free:
            return None
        region = min(free, key=lambda r: (r.number != after + 1, r.number))
        self._begin(region)
        return region

    def _begin(self, region: Region) -> None:
        self._sequence += 1
        region.state = RegionState.OPEN
        region.sequence = self._sequence
        region.fill = 0
        self._open = region
        self.is_starved = False

    def _seal(self, region: Region) -> None:
        region.state = RegionState.SEALED
        self._open = None

    def seal_open(self) -> bool:
        """Write no more into the region that is open, so that it can be a victim; if it has any."""
        if self._open is None or not self._open.live_count:
            return False
        self._seal(self._open)
        return True

    # --- entries --------------------------------------------------------------------------------

    def attach(self, location: int, place: int, size: int) -> None:
        """Say that an entry begins at a place."""
        region, *following = self._touched(place, size)
        region.locations.append(location)
        region.live_bytes += size
        region.live_count += 1
        for other in following:
            other.straddler = location

    def detach(self, location: int, place: int, size: int) -> None:
        """Say that an entry is gone from a place, durably."""
        region, *following = self._touched(place, size)
        region.live_bytes -= size
        region.live_count -= 1
        for other in following:
            if other.straddler == location:
                other.straddler = -1

    def pin(self, place: int, size: int) -> None:
        """Keep what lies at a place until ``unpin``, whatever happens to its entry."""
        for region in self._touched(place, size):
            region.readers += 1

    def unpin(self, place: int, size: int) -> None:
        """End one ``pin``."""
        for region in self._touched(place, size):
            region.readers -= 1

    # --- giving up ------------------------------------------------------------------------------

    def victim(self) -> Region | None:
        """Choose a region to evict and begin with it; None: there is none."""
        sealed = sorted(
            (r for r in self._regions.values() if r.state is RegionState.SEALED and not r.writers),
            key=lambda region: region.sequence,
        )
        if not sealed:
            return None
        old = sealed[: -(-len(sealed) // CHOICE_SHARE)]
        empty = [region for region in sealed if region.is_unused]
        region = min(empty or old, key=lambda r: (r.live_bytes, r.sequence))
        if 2 * region.live_bytes > sealed[0].live_bytes:
            region = sealed[0]
        region.state = RegionState.EVICTING
        return region

    def free(self, region: Region) -> bool:
        """Make a region writable again if it is unused by now; return whether it is."""
        if not region.is_unused:
            return False
        region.state = RegionState.FREE
        region.sequence = 0
        region.fill = 0
        del region.locations[:]
        return True

    def break_(self, number: int) -> None:
        """Write no more into a region."""
        region = self._regions[number]
        if region is self._open:
            self._open = None
        region.state = RegionState.BROKEN

    def mend(self, number: int) -> None:
        """Try a broken region again."""
        region = self._regions[number]
        if region.state is RegionState.BROKEN and not self.free(region):
            region.state = RegionState.SEALED

    # --- loading --------------------------------------------------------------------------------

    def restore(self, sequences: dict[int, int]) -> None:
        """Take up sequences after all entries were attached; the newest region stays open.

        Args:
            sequences: {number: sequence}. A region that has entries but no sequence counts as old.
        """
        used = [r for r in self._regions.values() if r.live_count or r.straddler >= 0]
        for region in used:
            region.sequence = sequences.get(region.number, 1)
            region.state = RegionState.SEALED
        self._sequence = max([1, *sequences.values()])
        newest = max(used, key=lambda r: r.sequence, default=None)
        if newest is not None and newest.fill < self.region_bytes:
            newest.state = RegionState.OPEN
            self._open = newest

    def restore_contents(self, number: int, contents: RegionContents) -> None:
        """Attach entries that lie in one region."""
        region = self._regions[number]
        region.locations.extend(contents.locations)
        region.live_count += len(contents.locations)
        region.live_bytes += contents.size
        region.fill = max(region.fill, run_bytes(contents.fill))

    def restore_fill(self, place: int, size: int) -> None:
        """Say that a restored entry takes this room."""
        for number, offset, part in pieces(place, size, self.region_bytes):
            region = self._regions[number]
            region.fill = max(region.fill, run_bytes(offset + part))

    def sequences(self, places: Iterable[tuple[int, int]]) -> dict[int, int]:
        """Return {number: sequence} of the regions that these (place, size) touch."""
        return {
            region.number: region.sequence
            for place, size in places
            for region in self._touched(place, size)
        }

    def _touched(self, place: int, size: int) -> list[Region]:
        return [self._regions[number] for number, _, _ in pieces(place, size, self.region_bytes)]


def _prefix(sizes: Sequence[int], room: int) -> tuple[int, int]:
    """Return how many of the first sizes fit a room, and their sum."""
    count = total = 0
    for size in sizes:
        if run_bytes(total + size) > room:
            break
        count += 1
        total += size
    return count, total
