"""What notes name (docs/adr/0034): a place in memory, a version on a disk, or all of a segment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import xxhash

from mooncake_store.limits import GRANULE_BYTES
from mooncake_store.wire.control import NoteItem

if TYPE_CHECKING:
    from mooncake_master.core.records import Freeing

SETS: Final = xxhash.xxh3_64_intdigest(b"\0sets") >> 1
"""What a note about a set has for an incarnation: no memory has it but by a chance of 2**-63."""

PINS: Final = xxhash.xxh3_64_intdigest(b"\0pins") >> 1
"""The same for a note about the pin of a version, which is its offset; its bytes are the end in
milliseconds since 1970, 0 for "not pinned", 1 for a hard pin."""

WHOLE: Final = -1
"""Offset of a note about a whole segment; what is below is ``anywhere``."""

RETURNS: Final = 1
"""What such a note has for its bytes where the segment may be used again once it is erased: it was
forgotten or not read, and is not gone for good."""

MISSING: Final = 1
"""Version of a note that says only that there is such a store: no write has so low a number."""


def item_of(freeing: Freeing) -> NoteItem:
    """Return the note about what a node has to erase."""
    extent = freeing.extent
    segment = extent.segment
    return NoteItem(
        segment.node.register.node_id,
        segment.incarnation,
        anywhere(freeing.version) if segment.tier else extent.offset * GRANULE_BYTES,
        extent.granules * GRANULE_BYTES,
        freeing.version,
    )


def household(node_id: str) -> int:
    """Return what a note about all that a node holds has for an incarnation."""
    return xxhash.xxh3_64_intdigest(node_id.encode()) >> 1


def anywhere(version: int) -> int:
    """Return what a note about a disk has for an offset: "wherever this version is"."""
    return ~version
