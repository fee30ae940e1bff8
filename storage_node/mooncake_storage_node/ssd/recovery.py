"""Bringing index and files together when a store is opened.

An entry whose room is not there is gone. The headers of the newest region are looked at as well:
it holds what a disk that lied about its cache may have lost. All other headers are looked at when
an entry is first read, and payloads whenever they are.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from mooncake_storage_node.ssd.buffers import map_aligned
from mooncake_storage_node.ssd.core import records
from mooncake_storage_node.ssd.core.layout import BLOCK_BYTES, pieces
from mooncake_storage_node.ssd.core.regions import RegionContents
from mooncake_storage_node.ssd.listing import RECORD_DAMAGED
from mooncake_store.errors import StoreError
from mooncake_store.extent import HEADER_BYTES, unpack_header

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mooncake_storage_node.ssd.core.table import Entry
    from mooncake_storage_node.ssd.disk import Disk
    from mooncake_storage_node.ssd.index import Index
    from mooncake_storage_node.ssd.ledger import Ledger

HEADERS_CHECKED_MAX: Final = 256
"""Headers looked at when a store is opened, the newest: a third of a second on a slow disk."""

ROW_BYTES_MIN: Final = 64
"""Of an index for each row in memory: a damaged record cannot ask for more rows than fit there."""


class Recovery:
    """One pass over an index.

    Attributes:
        lost: {reason: entries that are gone}.
        gone: Their locations, to be deleted from the index.
    """

    def __init__(self, ledger: Ledger, disk: Disk, removed: set[int]) -> None:
        """Prepare.

        Args:
            ledger: Empty, with all regions; it takes up the entries.
            disk: Their files.
            removed: Versions that must not come back.
        """
        self._ledger = ledger
        self._disk = disk
        self._removed = removed
        self._sizes = {number: file.size() for number, file in disk.files.items()}
        self.lost: Counter[str] = Counter()
        self.gone: list[int] = []

    def load(self, index: Index) -> None:
        """Take up all entries.

        Raises:
            IndexDamaged, IndexFailed: As ``Index.load``.
        """
        ledger = self._ledger
        table = ledger.table
        rows_max = 2 * ledger.geometry.index_bytes // ROW_BYTES_MIN
        for block in index.load():
            if block.first >= len(table) and block.first + block.rows <= rows_max:
                table.restore(block)
                continue
            for location, version in enumerate(block.versions(), block.first):
                if version:
                    self._drop(location, RECORD_DAMAGED)
        for location in table.seal():
            self._drop(location, RECORD_DAMAGED)
        self._attach()
        ledger.index_bytes = table.count * records.index_bytes(0) + table.names_bytes()
        self.lost[RECORD_DAMAGED] += index.summary().damaged

    def order(self, metas: Mapping[bytes, bytes]) -> dict[int, int]:
        """Give the regions the order in which they were filled; return it."""
        sequences: dict[int, int] = {}
        for key, body in metas.items():
            found = records.unpack_region(key, body) if key[:1] == records.REGION_PREFIX else None
            if found is not None and found[0] in self._ledger.regions:
                sequences[found[0]] = found[1]
        self._ledger.regions.restore(sequences)
        return sequences

    def check_headers(self) -> None:
        """Look at the headers of the newest region."""
        regions = self._ledger.regions
        newest = max(regions.all(), key=lambda region: region.sequence, default=None)
        if newest is None:
            return
        page = map_aligned(2 * BLOCK_BYTES)
        entries = sorted(self._ledger.entries_of(newest), key=lambda found: found[1].place)
        for location, entry in entries[-HEADERS_CHECKED_MAX:]:
            if not self._has_header(entry, page):
                self.forget(location, entry, "header_damaged")

    def shrink(self, count: int) -> list[int]:
        """Give up regions until there are ``count``, unused and old ones first; return them."""
        regions = self._ledger.regions
        order = sorted(regions.all(), key=lambda region: (region.sequence, -region.number))
        surplus = order[: max(0, len(order) - count)]
        for region in surplus:
            for location, entry in self._ledger.entries_of(region):
                self.forget(location, entry, "capacity")
        for region in surplus:
            regions.discard(region.number)
        return [region.number for region in surplus]

    def forget(self, location: int, entry: Entry, reason: str) -> None:
        """Give an entry up that was taken up."""
        ledger = self._ledger
        if ledger.hide(location, entry.version) is not None:
            ledger.forget(location, entry)
            self._drop(location, reason)

    def _drop(self, location: int, reason: str) -> None:
        self.gone.append(location)
        self.lost[reason] += 1

    def _attach(self) -> None:
        """Bring entries and regions together; a million in about a second."""
        regions, removed, sizes = self._ledger.regions, self._removed, self._sizes
        region_bytes = regions.region_bytes
        found = {number: RegionContents() for number in sizes}
        odd: list[int] = []
        for location, version, place, size in self._ledger.table.rows():
            number = place // region_bytes
            end = place - number * region_bytes + size
            fits = size > 0 and end <= region_bytes and end <= sizes.get(number, 0)
            if fits and version not in removed:
                contents = found[number]
                contents.locations.append(location)
                contents.size += size
                contents.fill = max(contents.fill, end)
            else:
                odd.append(location)
        for number, contents in found.items():
            regions.restore_contents(number, contents)
        for location in odd:
            self._attach_odd(location)

    def _attach_odd(self, location: int) -> None:
        """Take up an entry that lies in two files, or drop it."""
        table, regions = self._ledger.table, self._ledger.regions
        entry = table.at(location)
        assert entry is not None
        if entry.version not in self._removed and self._has_room(entry):
            regions.attach(location, entry.place, entry.size)
            regions.restore_fill(entry.place, entry.size)
            return
        table.hide(location)
        table.give_back(location)
        if entry.version in self._removed:
            self.gone.append(location)
        else:
            self._drop(location, "cut_short")

    def _has_room(self, entry: Entry) -> bool:
        regions = self._ledger.regions
        parts = pieces(entry.place, entry.size, regions.region_bytes)
        return regions.fits(entry.size) and all(
            offset + part <= self._sizes.get(number, 0) for number, offset, part in parts
        )

    def _has_header(self, entry: Entry, page: memoryview) -> bool:
        start = entry.place // BLOCK_BYTES * BLOCK_BYTES
        skip = entry.place - start
        try:
            got = self._disk.read(page[:BLOCK_BYTES], start, self._ledger.geometry.region_bytes)
            header = unpack_header(page, skip)
        except (OSError, StoreError):
            return False
        return got >= skip + HEADER_BYTES and header.version == entry.version
