"""Extent allocator of one segment: two-level segregated fit, in granules.

Source: Masmano et al., "TLSF: a new dynamic memory allocator for real-time systems", ECRTS 2004.
Free extents hang in lists by size class; one Python integer has a bit for each list that is not
empty, so the smallest class that surely fits is found by one shift and one ``bit_length``.
Neighbours are joined when they become free. Differences to the paper: the list of the wanted
size's own class is looked through a little before a larger class is cut, since cached objects come
in equal sizes; and small objects are cut from the low end of a free extent, large ones from its
high end, so that the two kinds do not end up between each other.

Nothing is recorded about an extent that is in use, except its links to its neighbours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mooncake_master.core.records import EDGE, Extent
from mooncake_store.limits import GRANULE_BYTES, KIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mooncake_master.core.nodes import Segment
    from mooncake_master.core.records import Owner

STEPS_LOG2: Final = 5
"""Size classes per power of two, as a logarithm: an extent is at most 1/32 larger than its class
says. More classes find no better fits; fewer overlook extents that would do."""
STEPS: Final = 1 << STEPS_LOG2
LARGE_GRANULES: Final = 512 * KIB // GRANULE_BYTES
"""Objects from here on are cut from the high end. KV blocks are mostly above, metadata below."""
LOOKS: Final = 8
"""Extents of the wanted size's own class that are looked at before a larger class is cut."""
LOOKS_MAX: Final = 10_000
"""Extents of it that are looked at before anything is evicted: 0.5 ms."""


def size_class(granules: int) -> int:
    """Return the class whose extents have at least its lower bound and less than the next's."""
    if granules < STEPS:
        return granules
    power = granules.bit_length() - 1 - STEPS_LOG2
    return ((power + 1) << STEPS_LOG2) + ((granules >> power) & (STEPS - 1))


class Space:
    """The extents of one segment.

    Invariant: extents tile the segment without gap or overlap; two neighbours are never both free.

    Attributes:
        granules: Size of the segment.
        free_granules: Sum of the free extents.
        edge: Stands before the first and behind the last extent.
    """

    __slots__ = ("_bitmap", "_claimed", "_heads", "edge", "free_granules", "granules", "segment")

    def __init__(self, segment: Segment, granules: int) -> None:
        self.segment = segment
        self.granules = granules
        self.free_granules = 0
        self._claimed = 0
        self._bitmap = 0
        self._heads: dict[int, Extent] = {}
        edge = Extent(segment, granules, EDGE)
        whole = Extent(segment, 0, EDGE)
        edge.before = edge.after = whole
        whole.before = whole.after = edge
        self.edge = edge

    def open(self) -> None:
        """Make what lies behind the last claimed extent free: the segment is known to its end."""
        if self._claimed < self.granules:
            self.release(self.edge.before)

    def claim(self, offset: int, granules: int, owner: Owner) -> Extent | None:
        """Enter an extent that is in use, before the segment is opened and in ascending order.

        Returns:
            The extent, or None where it overlaps the last one or the segment's end.
        """
        tail = self.edge.before
        end = offset + granules
        if tail.owner is not EDGE or offset < tail.offset or end >= self.granules + 1:
            return None
        if offset > tail.offset:
            gap, tail = tail, self._split(tail, offset)
            tail.owner = EDGE
            self.release(gap)
        if end < self.granules:
            self._split(tail, end).owner = EDGE
        tail.owner = owner
        self._claimed = end
        return tail

    def allocate(self, granules: int, owner: Owner) -> Extent | None:
        """Return an extent of exactly this size, or None where no free one is large enough."""
        wanted = size_class(granules)
        block = self._look(wanted, granules, LOOKS)
        if block is None:
            larger = self._bitmap >> (wanted + 1)
            if not larger:
                return None
            wanted += (larger & -larger).bit_length()
            block = self._heads[wanted]
        return self.cut(block, granules, owner)

    def cut(self, block: Extent, granules: int, owner: Owner) -> Extent:
        """Take an extent out of a free one that is large enough; what is left stays free."""
        size = block.after.offset - block.offset
        self._unlist(block, size)
        self.free_granules -= granules
        rest = size - granules
        if not rest:
            block.owner = owner
            return block
        if granules >= LARGE_GRANULES:
            taken = self._split(block, block.offset + rest)
            self._list(block, rest)
        else:
            taken = block
            self._list(self._split(block, block.offset + granules), rest)
        taken.owner = owner
        return taken

    def release(self, extent: Extent) -> None:
        """Make an extent free and join it with free neighbours."""
        size = extent.after.offset - extent.offset
        self.free_granules += size
        before, after = extent.before, extent.after
        if after.owner is None:
            self._unlist(after, after.after.offset - after.offset)
            self.join(extent, after)
        if before.owner is None:
            self._unlist(before, extent.offset - before.offset)
            self.join(before, extent)
            extent = before
        self._list(extent, extent.after.offset - extent.offset)

    def reserve(self, extent: Extent, owner: Owner) -> None:
        """Take a whole free extent."""
        size = extent.after.offset - extent.offset
        self._unlist(extent, size)
        self.free_granules -= size
        extent.owner = owner

    def join(self, left: Extent, right: Extent) -> None:
        """Make one extent of two neighbours; ``left`` remains. Neither is in a list."""
        left.after = right.after
        left.after.before = left

    def trim(self, extent: Extent, granules: int) -> None:
        """Shorten an extent in use to its first granules; the rest becomes free."""
        if extent.after.offset - extent.offset > granules:
            self.release(self._split(extent, extent.offset + granules))

    def largest(self, granules: int) -> Extent | None:
        """Return a free extent of this size if there is any, else one of the largest class."""
        block = self._look(size_class(granules), granules, LOOKS_MAX)
        if block is None and self._bitmap:
            block = self._heads[self._bitmap.bit_length() - 1]
        return block

    def extents(self) -> Iterator[Extent]:
        """Yield all extents in ascending order."""
        extent = self.edge.after
        while extent is not self.edge:
            yield extent
            extent = extent.after

    def check(self) -> None:
        """Check that the lists hold exactly the free extents, each in its class; for tests.

        Raises:
            AssertionError: They do not.
        """
        listed: set[int] = set()
        for number, head in self._heads.items():
            assert self._bitmap >> number & 1
            extent, before = head, head
            while True:
                assert extent.older is before
                assert extent.owner is None
                assert size_class(extent.granules) == number
                listed.add(id(extent))
                if extent.newer is extent:
                    break
                before, extent = extent, extent.newer
        assert self._bitmap.bit_count() == len(self._heads)
        assert listed == {id(extent) for extent in self.extents() if extent.owner is None}

    def _look(self, wanted: int, granules: int, looks: int) -> Extent | None:
        """Return an extent of the wanted size's own class that is large enough."""
        block = self._heads.get(wanted)
        while block is not None and looks:
            if block.after.offset - block.offset >= granules:
                return block
            block = block.newer if block.newer is not block else None
            looks -= 1
        return None

    def _split(self, extent: Extent, offset: int) -> Extent:
        """Cut an extent in two at ``offset`` and return the right part; neither is in a list."""
        right = Extent(extent.segment, offset, None)
        right.before = extent
        right.after = extent.after
        right.after.before = right
        extent.after = right
        return right

    def _list(self, extent: Extent, size: int) -> None:
        """Put a free extent at the head of its list; the last one's ``newer`` is itself."""
        extent.owner = None
        number = size_class(size)
        head = self._heads.get(number)
        extent.older = extent
        if head is None:
            self._bitmap |= 1 << number
            extent.newer = extent
        else:
            extent.newer = head
            head.older = extent
        self._heads[number] = extent

    def _unlist(self, extent: Extent, size: int) -> None:
        """Take a free extent out of its list."""
        older, newer = extent.older, extent.newer
        if older is not extent:
            older.newer = newer if newer is not extent else older
            if newer is not extent:
                newer.older = older
            return
        number = size_class(size)
        if newer is extent:
            del self._heads[number]
            self._bitmap &= ~(1 << number)
        else:
            newer.older = newer
            self._heads[number] = newer
