"""Reports of nodes that they hold something no longer: evicted by a store, or found bad."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mooncake_master.core import accounting
from mooncake_master.core.instructions import Reply
from mooncake_master.core.judging import check_batch
from mooncake_master.core.records import Gone, Stored, wire_offset
from mooncake_store import errors
from mooncake_store.errors import ChecksumMismatch
from mooncake_store.wire.control import Done

if TYPE_CHECKING:
    from mooncake_master.core.barriers import Request
    from mooncake_master.core.catalog import Catalog
    from mooncake_master.core.context import Context
    from mooncake_master.core.evictor import Evictor
    from mooncake_master.core.nodes import Disk, Segment
    from mooncake_master.core.records import Extent
    from mooncake_store.wire.control import DroppedItem, ReportDropped

EVICTED: Final = "evicted"
REASONS: Final = {
    EVICTED, "cut_short", "header_damaged", "io_error", "name_damaged", "record_damaged",
}  # fmt: skip
"""Reasons that are no error codes; others are counted as unknown, so that a node cannot fill the
list of counters."""


class Drops:
    """Takes reports in."""

    def __init__(self, context: Context, catalog: Catalog, evictor: Evictor) -> None:
        self._context = context
        self._catalog = catalog
        self._evictor = evictor

    def report(self, request: Request, message: ReportDropped) -> None:
        """Handle a `ReportDropped`; what is not known here is dropped already."""
        check_batch(len(message.items))
        cluster = self._context.cluster
        for item in message.items:
            disk = cluster.disks.get(item.incarnation)
            segment = cluster.segments.get(item.incarnation)
            if disk is not None:
                self._dropped_by_disk(disk, item)
            elif segment is not None:
                self._dropped_by_memory(segment, item)
        self._context.out.append(Reply(request.peer, request.request_id, Done()))

    def _dropped_by_disk(self, disk: Disk, item: DroppedItem) -> None:
        extent = disk.held.get(item.offset)
        if extent is None or not isinstance(extent.owner, Stored):
            self._overtaken(disk, item)
        elif extent.owner.version == item.version:
            extent.vanished = True
            self._drop(extent.owner, extent, item.reason)

    def _overtaken(self, disk: Disk, item: DroppedItem) -> None:
        """Remember that a copy is gone whose arrival was not heard of yet."""
        for copy in disk.copying:
            copy.vanished |= copy.version == item.version

    def _dropped_by_memory(self, segment: Segment, item: DroppedItem) -> None:
        """Drop what a scrub found bad: rare, so that a walk does no harm."""
        for extent in segment.space.extents():
            if wire_offset(extent) >= item.offset:
                stored = extent.owner
                if (
                    wire_offset(extent) == item.offset
                    and isinstance(stored, Stored)
                    and item.version in {stored.version, segment.number(extent, stored.version)}
                ):
                    self._drop(stored, extent, item.reason)
                return

    def _drop(self, stored: Stored, extent: Extent, reason: str) -> None:
        """Drop one replica; one that was evicted takes along what goes together with it."""
        known = reason in errors.BY_CODE or reason in REASONS
        self._context.counters[accounting.dropped(reason if known else "unknown")] += 1
        if reason != EVICTED:
            corrupt = reason == ChecksumMismatch.code
            self._catalog.drop(stored, extent, Gone.CORRUPT if corrupt else Gone.LOST)
        elif (
            stored.extent is extent and extent.twin is None and not self._evictor.protected(stored)
        ):
            self._evictor.evict_whole(stored)
        else:
            self._catalog.drop(stored, extent, Gone.EVICTED)
