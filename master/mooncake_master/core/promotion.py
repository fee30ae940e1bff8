"""Promotion: what is read from disk again and again is copied back to memory.

By frequency: the n-th read within a while asks for it, so that a scan over cold objects moves
nothing. The copy is made in the background within the rate of copies, in free memory; where there
is none, the node is told to make some.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from mooncake_master.core.copying import Start

if TYPE_CHECKING:
    from mooncake_master.core.context import Context
    from mooncake_master.core.copying import Copier
    from mooncake_master.core.placement import Placement
    from mooncake_master.core.records import Extent, Stored

PROMOTION: Final = "promotion"
READS_MAX: Final = 65_536
"""Objects whose reads are remembered, about 200 bytes each; the longest unread is forgotten."""
WISHES_MAX: Final = 4_096
"""Objects that wait for their promotion; more are left to their next read."""
WISH_S: Final = 5.0
"""Time after which one that found no room waits for its next read instead."""


class Promoter:
    """Counts reads from disk and has objects copied to memory."""

    def __init__(self, context: Context, copier: Copier, placement: Placement) -> None:
        self._context = context
        self._copier = copier
        self._placement = placement
        self._reads: OrderedDict[Stored, tuple[int, float]] = OrderedDict()
        """{object: (reads, time of the first of them)}"""
        self._wishes: dict[Stored, float] = {}
        """{object: until when it is tried}"""

    def read(self, stored: Stored) -> None:
        """Note that an object which is on disks alone was located."""
        config, now_s = self._context.config, self._context.now_s
        if not config.promote_reads or stored in self._wishes:
            return
        count, first_s = self._reads.pop(stored, (0, now_s))
        if now_s - first_s > config.promote_window_s:
            count, first_s = 0, now_s
        if count + 1 < config.promote_reads:
            self._reads[stored] = (count + 1, first_s)
            if len(self._reads) > READS_MAX:
                self._reads.popitem(last=False)
        elif len(self._wishes) < WISHES_MAX:
            self._wishes[stored] = now_s + WISH_S
            self._try(stored)

    def tick(self) -> None:
        """Try again what could not be copied yet."""
        for stored in list(self._wishes):
            self._try(stored)

    def _try(self, stored: Stored) -> None:
        if not self._is_due(stored) or self._begin(stored):
            self._wishes.pop(stored, None)

    def _is_due(self, stored: Stored) -> bool:
        """Return whether an object is still one to promote."""
        if stored.shelf is None or stored.home.cleared or stored in self._context.copying:
            return False
        if any(extent.segment.readable and not extent.segment.tier for extent in stored.extents()):
            return False
        return self._context.now_s < self._wishes[stored]

    def _begin(self, stored: Stored) -> bool:
        """Have a copy made; return False to be asked again."""
        placement = self._placement
        sources = [extent for extent in stored.extents() if extent.segment.readable]
        for extent in sources:
            node = extent.segment.node
            if node.capacity and placement.has_room(node, extent.granules):
                return self._copy(stored, extent)
        for extent in sources:
            extent.segment.node.evicting = True
        return not sources

    def _copy(self, stored: Stored, source: Extent) -> bool:
        start = self._copier.copy(
            stored, source, source.segment.node, purpose=PROMOTION, done=_over
        )
        return start in (Start.BEGUN, Start.AWAY)


def _over(code: str) -> None:
    """Do nothing: it is counted, and the next reads ask again."""
