"""The node's directory: what lies in a segment, read from the segment itself. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mooncake_store import extent
from mooncake_store.errors import ChecksumMismatch, StaleExtent, StoreError
from mooncake_store.extent import HEADER_BYTES
from mooncake_store.fingerprint import fingerprint
from mooncake_store.limits import GRANULE_BYTES
from mooncake_store.segment import FREED
from mooncake_store.wire.control import DirectoryEntry, DirectoryPage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mooncake_store.segment import Segment

_BLOCK_ENTRIES: Final = 4096
"""Table entries looked at together: 32 KiB that are compared with zeros in about a microsecond."""
_BLOCK_ZEROS: Final = bytes(8 * _BLOCK_ENTRIES)


def landed(segment: Segment, offset: int = 0) -> Iterator[tuple[int, int]]:
    """Yield (offset, version) of every extent that is readable, from ``offset`` on, in order."""
    table = segment.table
    raw = table.cast("B")
    index = offset // GRANULE_BYTES
    count = len(table)
    while index < count:
        stop = min(index + _BLOCK_ENTRIES, count)
        block = bytes(raw[8 * index : 8 * stop])
        if block != _BLOCK_ZEROS[: len(block)]:
            yield from _landed_in(memoryview(block).cast("Q"), index)
        index = stop


def _landed_in(block: memoryview, first: int) -> Iterator[tuple[int, int]]:
    for index, entry in enumerate(block.tolist(), first):
        if entry and not entry & FREED:
            yield index * GRANULE_BYTES, entry


def read_entry(segment: Segment, offset: int, attempt: int) -> DirectoryEntry:
    """Return the directory record of a landed extent, from its header and name block.

    Args:
        segment: Where it lies.
        offset: Where it begins.
        attempt: What the table says: the number of the write that put it there. A copy's is higher
            than the version that it is a copy of.

    Raises:
        StaleExtent, ChecksumMismatch: What lies there is not that write's, or damaged.
    """
    extents = segment.extents
    header = extent.unpack_header(bytes(extents[offset : offset + HEADER_BYTES]))
    version = header.version
    if version > attempt:
        raise StaleExtent(f"the extent holds version {version}, written later than {attempt}")
    start = offset + extent.read_bytes(header.length)
    texts, rest = extent.open_names(extents[start : start + header.name_bytes])
    namespace, key, group, parent = texts
    if fingerprint(namespace, key) != header.fingerprint:
        raise ChecksumMismatch("the name block belongs to another object", key=key)
    pin, replicas, set_count, pin_ends_s, set_id = rest
    return DirectoryEntry(
        offset, version, header.length, header.slot, header.epoch, namespace, key, group, parent,
        pin, pin_ends_s, replicas, set_id, set_count, attempt if attempt != version else 0,
    )  # fmt: skip


def list_page(
    segment: Segment, cursor: int, limit: int
) -> tuple[DirectoryPage, list[tuple[int, int]]]:
    """Return one page of the directory, and (offset, version) of what is damaged.

    The table is walked as it is: what lands behind the cursor meanwhile is not listed, which is
    right, as whoever lists has fenced all older writers off before.

    Args:
        segment: What to list.
        cursor: Offset to begin at, as the last page gave it.
        limit: Most entries of the page, at least 1.
    """
    entries: list[DirectoryEntry] = []
    damaged: list[tuple[int, int]] = []
    for offset, version in landed(segment, max(0, cursor)):
        if len(entries) >= limit:
            return DirectoryPage(entries, offset), damaged
        try:
            entries.append(read_entry(segment, offset, version))
        except StoreError:
            damaged.append((offset, version))
    return DirectoryPage(entries, -1), damaged
