"""In which order the objects of a node are evicted. One policy instance a node.

A policy only orders; whether an object may go (leases, pins, groups, chains) is decided by
`mooncake_master.core.evictor`. To add one: subclass, enter it in ``POLICIES``, name it in the
documentation of ``CoreConfig.policy``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

from mooncake_master.core.records import EDGE, Extent

if TYPE_CHECKING:
    from mooncake_master.core.nodes import Segment


class EvictionPolicy(ABC):
    """Order of the readable extents of one node, linked through ``older`` and ``newer``.

    Attributes:
        edge: Its ``newer`` is the first to go, its ``older`` the last.
    """

    __slots__ = ("edge",)

    def __init__(self, segment: Segment) -> None:
        self.edge = Extent(segment, 0, EDGE)
        self.edge.older = self.edge.newer = self.edge

    def added(self, extent: Extent) -> None:
        """Take in an extent that became readable."""
        edge = self.edge
        last = edge.older
        last.newer = edge.older = extent
        extent.older = last
        extent.newer = edge

    def dropped(self, extent: Extent) -> None:
        """Forget an extent."""
        older, newer = extent.older, extent.newer
        older.newer = newer
        newer.older = older

    def spared(self, extent: Extent) -> None:
        """Put aside an extent whose turn came while it was protected."""
        self.dropped(extent)
        self.added(extent)

    @abstractmethod
    def touched(self, extent: Extent) -> None:
        """Note that an extent was read."""


class LeastRecentlyUsed(EvictionPolicy):
    """Whatever was not read for the longest time goes first."""

    __slots__ = ()

    def touched(self, extent: Extent) -> None:
        """Make it the last to go."""
        newer = extent.newer
        edge = self.edge
        if newer is edge:
            return
        older = extent.older
        older.newer = newer
        newer.older = older
        last = edge.older
        last.newer = edge.older = extent
        extent.older = last
        extent.newer = edge


class FirstInFirstOut(EvictionPolicy):
    """The oldest goes first, however often it is read: scans cannot push out what is newer."""

    __slots__ = ()

    def touched(self, extent: Extent) -> None:
        """Change nothing."""


POLICIES: Final[dict[str, type[EvictionPolicy]]] = {
    "fifo": FirstInFirstOut,
    "lru": LeastRecentlyUsed,
}
"""{name: policy}"""
