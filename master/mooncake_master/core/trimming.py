"""Trimming: replicas in memory beyond what was asked for are given up, at a bounded rate.

They come about when a node that was dead returns after its replicas were made again elsewhere, or
when a drain is taken back. Eviction would find them in the end, but until then they take the room
of other objects, and nobody has asked for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mooncake_master.core import accounting
from mooncake_master.core.placement import spread_of
from mooncake_master.core.records import Gone
from mooncake_store.types import NodeState

if TYPE_CHECKING:
    from collections.abc import Callable

    from mooncake_master.core.catalog import Catalog
    from mooncake_master.core.context import Context
    from mooncake_master.core.nodes import Node
    from mooncake_master.core.records import Extent, Stored

SETTLE_S: Final = 30.0
"""Time since a node joined until its replicas count: one that comes and goes would have its
objects copied and given up again and again."""
TRIMS_MAX: Final = 64
"""Objects trimmed in one turn: 3,200 a second, as many as nodes free without anybody noticing."""
WAITING_MAX: Final = 10_000
"""Objects that wait to be trimmed; the next round finds the others."""


class Trimmer:
    """Gives up what is beyond the number of replicas asked for, never what is below it."""

    def __init__(
        self, context: Context, catalog: Catalog, is_hot: Callable[[Stored], bool]
    ) -> None:
        """Begin with nothing to do.

        Args:
            context: What all parts share.
            catalog: The index.
            is_hot: Whether an object has more replicas on purpose.
        """
        self._context = context
        self._catalog = catalog
        self._is_hot = is_hot
        self._waiting: dict[Stored, None] = {}

    def look(self, stored: Stored) -> None:
        """Note an object that may have a replica too many."""
        if len(self._waiting) < WAITING_MAX and self._surplus(stored):
            self._waiting[stored] = None

    def tick(self) -> None:
        """Trim some objects."""
        for _ in range(min(TRIMS_MAX, len(self._waiting))):
            stored = next(iter(self._waiting))
            del self._waiting[stored]
            self._trim(stored)

    def _trim(self, stored: Stored) -> None:
        """Give up what is too many now, on the fullest of the nodes that are least missed."""
        for _ in range(self._surplus(stored)):
            serving = self._serving(stored)
            node = max(serving, key=lambda each: _rank(each, serving))
            counters = self._context.counters
            counters[accounting.TRIMMED_REPLICAS] += 1
            counters[accounting.TRIMMED_BYTES] += stored.length
            for extent in serving[node]:
                self._catalog.drop(stored, extent, Gone.EVICTED)

    def _surplus(self, stored: Stored) -> int:
        """Return how many nodes hold an object in memory beyond what was asked for.

        Disks do not count: what they hold is no burden, and not as near to readers as was asked.
        A leased object is left alone; the next round comes by again.
        """
        context = self._context
        if stored.shelf is None or stored.home.cleared or stored.lease_s > context.now_s:
            return 0
        if context.recovering or stored in context.copying or self._is_hot(stored):
            return 0
        return max(0, len(self._serving(stored)) - max(1, stored.wanted))

    def _serving(self, stored: Stored) -> dict[Node, list[Extent]]:
        """Return {node: replicas in its memory} of nodes that can be counted on."""
        settled_s = self._context.now_s - SETTLE_S
        found: dict[Node, list[Extent]] = {}
        for extent in stored.extents():
            segment = extent.segment
            node = segment.node
            if (
                segment.readable and not segment.tier and segment.listed
                and node.state is NodeState.LIVE and node.drain is None
                and node.joined_s <= settled_s
            ):  # fmt: skip
                found.setdefault(node, []).append(extent)
        return found


def _rank(node: Node, serving: dict[Node, list[Extent]]) -> tuple[tuple[int, ...], float]:
    """Return how little a node's replica is missed: where the others are, then how full it is."""
    others = [other for other in serving if other is not node]
    return spread_of(others), 1 - node.free_granules / node.capacity
