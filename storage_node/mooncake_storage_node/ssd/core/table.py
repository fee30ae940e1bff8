"""What lies in the store, in memory: a table of numbers, no object for an entry. Pure.

An entry's *location* is its row here and its key in the index on disk. It stays the same when the
extent moves to another place, and over restarts, so whoever was told it need not be told again.

Memory of an entry: 33 bytes in columns, 4 in its region's list, 8 to 16 in the map of versions.
"""

from __future__ import annotations

from array import array
from itertools import compress, count
from typing import TYPE_CHECKING, Final, NamedTuple

from mooncake_store.limits import GRANULE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mooncake_storage_node.ssd.core.rows import RowBlock

LOCATIONS_MAX: Final = (1 << 32) - 2
"""Rows are numbered in 32 bits; 0 means none in the map of versions."""

HITS_MAX: Final = 127
"""Reads that are counted of one entry: more do not make it hotter."""

_CHECKED: Final = 128
_MIX: Final = 0x9E37_79B9_7F4A_7C15
"""2**64 divided by the golden ratio (Knuth, The Art of Computer Programming 3, section 6.4)."""
_MASK: Final = (1 << 64) - 1


class Entry(NamedTuple):
    """One stored extent."""

    version: int
    place: int
    """Address of its first byte."""
    size: int
    """Bytes, in whole granules."""
    slot: int
    epoch: int
    name_bytes: int


class VersionMap:
    """{version: location} in one array: open addressing, linear probing, no tombstones.

    The versions themselves are the table's column, so an entry takes 4 bytes at a load of at most
    two thirds.
    """

    __slots__ = ("_cells", "_count", "_shift", "_versions")

    def __init__(self, versions: Sequence[int]) -> None:
        """Begin an empty map.

        Args:
            versions: {location: version}; an entry is in it while it is in the map.
        """
        self._versions = versions
        self._count = 0
        self._shift = 64 - 10
        self._cells = array("I", bytes(4 << 10))

    def __len__(self) -> int:
        return self._count

    @property
    def memory_bytes(self) -> int:
        """Bytes of the map."""
        return 4 * len(self._cells)

    def find(self, version: int) -> int:
        """Return the location of a version, or -1."""
        cell = self._cells[self._cell_of(version)]
        return cell - 1

    def add(self, version: int, location: int) -> None:
        """Add a version that is not in the map; its row holds it already."""
        if 3 * self._count >= 2 * len(self._cells):
            self._grow()
        self._cells[self._cell_of(version)] = location + 1
        self._count += 1

    def discard(self, version: int) -> None:
        """Take a version out; its row still holds it."""
        cells, versions = self._cells, self._versions
        mask = len(cells) - 1
        hole = self._cell_of(version)
        if not cells[hole]:
            return
        self._count -= 1
        at = hole
        while True:  # Move back whatever would no longer be found over the hole.
            at = (at + 1) & mask
            if not cells[at]:
                break
            home = (versions[cells[at] - 1] * _MIX & _MASK) >> self._shift
            if (at - home) & mask >= (at - hole) & mask:
                cells[hole] = cells[at]
                hole = at
        cells[hole] = 0

    def build(self) -> list[int]:
        """Fill an empty map from the table; return locations whose version was there before."""
        versions = self._versions
        while 3 * len(versions) >= 2 * len(self._cells):
            self._shift -= 1
            self._cells = array("I", bytes(8 * len(self._cells)))
        cells, shift, mask = self._cells, self._shift, len(self._cells) - 1
        twice = []
        count = 0
        for location, version in enumerate(versions):
            if not version:
                continue
            at = (version * _MIX & _MASK) >> shift
            while cells[at] and versions[cells[at] - 1] != version:
                at = (at + 1) & mask
            if cells[at]:
                twice.append(location)
            else:
                cells[at] = location + 1
                count += 1
        self._count = count
        return twice

    def _cell_of(self, version: int) -> int:
        """Return the cell that holds a version, or the empty one where it belongs."""
        cells, versions = self._cells, self._versions
        mask = len(cells) - 1
        at = (version * _MIX & _MASK) >> self._shift
        while cells[at] and versions[cells[at] - 1] != version:
            at = (at + 1) & mask
        return at

    def _grow(self) -> None:
        old = self._cells
        self._shift -= 1
        self._cells = array("I", bytes(8 * len(old)))
        cells, versions, shift = self._cells, self._versions, self._shift
        mask = len(cells) - 1
        for cell in old:
            if cell:
                at = (versions[cell - 1] * _MIX & _MASK) >> shift
                while cells[at]:
                    at = (at + 1) & mask
                cells[at] = cell


class Table:
    """All entries.

    A location is free, reserved (for an extent that is being recorded, or for one whose deletion
    is), or in use. Only those in use can be read.

    Attributes:
        count: Entries in use.
        bytes: Sum of their sizes.
    """

    __slots__ = ("_by_version", "_epochs", "_free", "_granules", "_marks", "_names", "_places",
                 "_slots", "_versions", "bytes", "count")  # fmt: skip

    def __init__(self) -> None:
        self._versions = array("Q")
        self._places = array("Q")
        self._granules = array("I")
        self._slots = array("H")
        self._names = array("H")
        self._epochs = array("I")
        self._marks = array("B")
        self._free = array("I")
        self._by_version = VersionMap(self._versions)
        self.count = 0
        self.bytes = 0

    def __len__(self) -> int:
        """Return the number of rows, in use or not: locations are below it."""
        return len(self._versions)

    @property
    def memory_bytes(self) -> int:
        """Bytes of all columns and the map."""
        columns = (*self._loaded(), self._marks, self._free)
        return self._by_version.memory_bytes + sum(c.itemsize * len(c) for c in columns)

    @property
    def newest(self) -> int:
        """The highest version of all entries; 0 where there are none. Walks them."""
        return max(self._versions, default=0)

    # --- finding --------------------------------------------------------------------------------

    def find(self, version: int) -> int:
        """Return the location of a version, or -1."""
        return self._by_version.find(version) if version else -1

    def get(self, location: int, version: int) -> Entry | None:
        """Return the entry at a location if it is that version's."""
        if not 0 <= location < len(self._versions) or not version:
            return None
        return self.at(location) if self._versions[location] == version else None

    def at(self, location: int) -> Entry | None:
        """Return the entry at a location that exists, or None where it is not in use."""
        version = self._versions[location]
        if not version:
            return None
        return Entry(
            version,
            self._places[location],
            self._granules[location] * GRANULE_BYTES,
            self._slots[location],
            self._epochs[location],
            self._names[location],
        )

    def dead(self, epochs: Sequence[int], start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield (location, version) of rows ``start`` to ``stop`` whose epoch is over."""
        versions, slots, own = self._versions, self._slots, self._epochs
        for location in range(start, min(stop, len(versions))):
            if versions[location] and epochs[slots[location]] > own[location]:
                yield location, versions[location]

    # --- changing -------------------------------------------------------------------------------

    def reserve(self) -> int:
        """Take a free location; -1: there are no more numbers."""
        if self._free:
            return self._free.pop()
        if len(self._versions) >= LOCATIONS_MAX:
            return -1
        self._extend(len(self._versions) + 1)
        return len(self._versions) - 1

    def give_back(self, location: int) -> None:
        """Free a reserved location."""
        self._free.append(location)

    def put(self, location: int, entry: Entry) -> None:
        """Fill a reserved location."""
        self._places[location] = entry.place
        self._granules[location] = entry.size // GRANULE_BYTES
        self._slots[location] = entry.slot
        self._epochs[location] = entry.epoch
        self._names[location] = entry.name_bytes
        self._marks[location] = 0
        self._versions[location] = entry.version
        self._by_version.add(entry.version, location)
        self.count += 1
        self.bytes += entry.size

    def hide(self, location: int) -> None:
        """Make an entry unreadable; its location stays reserved until ``give_back``."""
        version = self._versions[location]
        assert version
        self._by_version.discard(version)
        self._versions[location] = 0
        self.count -= 1
        self.bytes -= self._granules[location] * GRANULE_BYTES

    def move(self, location: int, place: int) -> None:
        """Say that an entry lies at another place now; it is no longer hot."""
        self._places[location] = place
        self._marks[location] = 0

    # --- marks ----------------------------------------------------------------------------------

    def touch(self, location: int) -> None:
        """Count a read."""
        mark = self._marks[location]
        if mark & HITS_MAX < HITS_MAX:
            self._marks[location] = mark + 1

    def hits(self, location: int) -> int:
        """Return the reads since the entry was written, up to ``HITS_MAX``."""
        return self._marks[location] & HITS_MAX

    def is_checked(self, location: int) -> bool:
        """Return whether the header was seen to be right since the store was opened."""
        return self._marks[location] >= _CHECKED

    def set_checked(self, location: int) -> None:
        """Remember that the header is right."""
        self._marks[location] |= _CHECKED

    # --- loading --------------------------------------------------------------------------------

    def restore(self, block: RowBlock) -> None:
        """Append rows that have their locations; call ``seal`` after the last."""
        gap = block.first - len(self._versions)
        assert gap >= 0
        self._extend(block.first)
        for column, data in zip(self._loaded(), block.columns, strict=True):
            column.frombytes(data)
        self._marks.frombytes(bytes(len(self._versions) - len(self._marks)))

    def seal(self) -> list[int]:
        """Make restored rows entries, and the others free; return those that came twice.

        Of rows with one version the first is kept.
        """
        twice = self._by_version.build()
        for location in twice:
            self._versions[location] = 0
        versions, granules = self._versions, self._granules
        self.count = len(self._by_version)
        self.bytes = GRANULE_BYTES * sum(compress(granules, versions))
        unused = [at for at, version in enumerate(versions) if not version]
        unused.reverse()
        self._free = array("I", unused)
        return twice

    def rows(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield location, version, place and bytes of every entry."""
        found = zip(count(), self._versions, self._places, self._granules, strict=False)
        for location, version, place, granules in found:
            if version:
                yield location, version, place, granules * GRANULE_BYTES

    def names_bytes(self) -> int:
        """Return the sum of all name blocks."""
        return sum(compress(self._names, self._versions))

    def _loaded(self) -> tuple[array[int], ...]:
        return (self._versions, self._places, self._granules, self._slots, self._names,
                self._epochs)  # fmt: skip

    def _extend(self, rows: int) -> None:
        more = rows - len(self._versions)
        for column in (*self._loaded(), self._marks):
            column.frombytes(bytes(more * column.itemsize))
