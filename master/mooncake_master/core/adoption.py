"""The plain entries of a directory, which nearly all are, entered in as few steps as it takes.

What ``Recovery`` does for an entry by itself takes twice as long, and a new master serves nobody
who misses before it has entered a million of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_master.core import accounting
from mooncake_master.core.records import Shelf, Stored
from mooncake_store.extent import extent_bytes
from mooncake_store.limits import GRANULE_BYTES, OBJECT_BYTES_MAX
from mooncake_store.types import make_version

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_master.core.catalog import Catalog
    from mooncake_master.core.context import Context
    from mooncake_master.core.nodes import Segment
    from mooncake_master.core.notes import Notes
    from mooncake_master.core.records import Generation
    from mooncake_store.wire.control import DirectoryEntry


class Adoption:
    """Enters plain entries: new to the index, where they were written, single, alone, unpinned."""

    def __init__(self, context: Context, catalog: Catalog, notes: Notes) -> None:
        self._context = context
        self._catalog = catalog
        self._notes = notes

    def take(self, segment: Segment, entries: Sequence[DirectoryEntry], start: int) -> int:
        """Enter entries from ``start`` on; return the index of the first that is not plain."""
        catalog = self._catalog
        first = entries[start]
        space = catalog.slots.get(first.slot)
        if (
            space is None
            or space.name != first.namespace
            or len(catalog.gone)
            or len(catalog.tombs)
            or self._notes.concern(segment.incarnation)
            or self._notes.doubts(segment.node.register.node_id, 0)
        ):
            return start
        return self._enter(segment, entries, start, space.current)

    def _enter(
        self, segment: Segment, entries: Sequence[DirectoryEntry], start: int, home: Generation
    ) -> int:
        context, space = self._context, home.space
        slot, name, epoch, objects = space.slot, space.name, home.epoch, home.objects
        claim, added = segment.space.claim, segment.node.policy.added
        too_new = make_version(context.term, 0)
        end_s = context.now_s + context.config.lease_ttl_s
        names = space.name_bytes
        pinned = self._notes.pins
        shelf = self._shelf(home)
        index = start
        total = 0
        for index in range(start, len(entries)):
            entry = entries[index]
            key, offset, version, length = entry.key, entry.offset, entry.version, entry.length
            if (
                entry.slot != slot
                or entry.epoch != epoch
                or entry.namespace != name
                or entry.attempt
                or entry.set_count > 1
                or entry.pin
                or entry.replicas != 1
                or entry.group
                or entry.parent
                or not 0 < version < too_new
                or version in pinned
                or key in objects
                or not key.isascii()
                or offset % GRANULE_BYTES
                or not 0 <= length <= OBJECT_BYTES_MAX
            ):
                break
            granules = extent_bytes(length, names + len(key)) // GRANULE_BYTES
            stored = Stored(home, key, version, length)
            extent = claim(offset // GRANULE_BYTES, granules, stored)
            if extent is None:
                break
            stored.extent = extent
            stored.lease_s = end_s
            added(extent)
            objects[key] = stored
            if shelf.full:
                shelf = self._shelf(home)
            stored.shelf = shelf
            stored.place = shelf.add(stored)
            total += length
        else:
            index += 1
        self._count(segment, home, index - start, total)
        return index

    def _shelf(self, home: Generation) -> Shelf:
        """Return the shelf that takes the next object."""
        shelf = home.shelves.get(home.shelf_count - 1)
        if shelf is None or shelf.full:
            shelf = Shelf(home.shelf_count)
            home.shelves[shelf.number] = shelf
            home.shelf_count += 1
        return shelf

    def _count(self, segment: Segment, home: Generation, count: int, total: int) -> None:
        context = self._context
        if count:
            home.bytes += total
            home.lease_s = max(home.lease_s, context.now_s + context.config.lease_ttl_s)
            self._catalog.count += count
            segment.node.objects += count
            context.counters[accounting.RECOVERED] += count
