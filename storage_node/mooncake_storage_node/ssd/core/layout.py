"""How a capacity is cut into an index and regions. Pure.

Regions are the unit of eviction: files of equal size that are filled one after another. Addresses
are global: region number times the size of a region, plus the offset in it. An extent that begins
near the end of a region may go on at the beginning of the next file, where that one is filled next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from mooncake_store.errors import ConfigError
from mooncake_store.limits import GRANULE_BYTES, KIB, MIB, SEGMENT_BYTES_MAX, STORE_BYTES_MIN
from mooncake_store.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK_BYTES: Final = 4 * KIB
"""Unit in which the disk is written: the sector of every disk that is sold, and a page of memory.
What was acknowledged never shares a block with what is written later, so a torn write of a block
harms nothing older."""

REGION_COUNT_MIN: Final = 16
"""With fewer, evicting one region forgets too much at a time."""

REGION_COUNT_MAX: Final = 64
"""With more, each is an open file for no gain: 1/64 of a cache is little to forget at once."""

REGION_BYTES_WANTED: Final = 64 * MIB
"""Small stores have fewer regions rather than smaller ones: a region bounds the size of objects."""

INDEX_SHARE: Final = 64
"""The capacity's share of the index: about 250 bytes of 32 KiB, doubled, see ``INDEX_FILL``."""

INDEX_BYTES_MIN: Final = 4 * MIB

INDEX_FILL: Final = 0.5
"""Records may take this share of the index: pages of a B+ tree are two thirds full after many
changes, and LMDB writes changed pages elsewhere before it frees the old ones. Measured after
random churn: 1.5 bytes for each byte of records."""

OVERHEAD_BYTES: Final = 64 * KIB
"""Small files and folders: format, lock, probe, witness."""


class Geometry(NamedTuple):
    """How a capacity is cut."""

    index_bytes: int
    region_bytes: int
    region_count: int


def check_capacity(capacity_bytes: int) -> None:
    """Check that a capacity makes sense.

    Raises:
        ConfigError: It is too small or too large; the message says what is possible.
    """
    if not STORE_BYTES_MIN <= capacity_bytes <= SEGMENT_BYTES_MAX:
        raise ConfigError(
            f"a store takes between {format_bytes(STORE_BYTES_MIN)} and"
            f" {format_bytes(SEGMENT_BYTES_MAX)} of a disk, not {format_bytes(capacity_bytes)}"
        )


def plan(capacity_bytes: int, index_bytes: int = 0, region_bytes: int = 0) -> Geometry:
    """Cut a capacity.

    Args:
        capacity_bytes: Everything that the store may take on disk.
        index_bytes: Room of the index; 0: chosen here.
        region_bytes: Size of the regions that are there already; 0: chosen here.

    Raises:
        ConfigError: The capacity makes no sense, or leaves too little beside the index.
    """
    check_capacity(capacity_bytes)
    index = index_bytes or max(INDEX_BYTES_MIN, capacity_bytes // INDEX_SHARE)
    index = _round_up(max(index, INDEX_BYTES_MIN))
    data = capacity_bytes - index - OVERHEAD_BYTES
    if data < STORE_BYTES_MIN // 2:
        raise ConfigError(
            f"an index of {index} bytes leaves {max(0, data)} of {capacity_bytes} for objects"
        )
    if region_bytes:
        return Geometry(index, region_bytes, data // region_bytes)
    count = min(REGION_COUNT_MAX, max(REGION_COUNT_MIN, data // REGION_BYTES_WANTED))
    return Geometry(index, data // count // BLOCK_BYTES * BLOCK_BYTES, count)


def run_bytes(size: int) -> int:
    """Return the bytes that a run of extents takes on disk: whole blocks."""
    return _round_up(size)


def pieces(place: int, size: int, region_bytes: int) -> Iterator[tuple[int, int, int]]:
    """Yield (region, offset in it, bytes) for a range of addresses: one or two."""
    while size > 0:
        number, offset = divmod(place, region_bytes)
        take = min(size, region_bytes - offset)
        yield number, offset, take
        place += take
        size -= take


def fits_granules(size: int) -> bool:
    """Return whether ``size`` can be that of an extent."""
    return size > 0 and not size % GRANULE_BYTES


def _round_up(size: int) -> int:
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES
