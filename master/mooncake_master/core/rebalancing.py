"""Moving objects from full nodes to emptier ones, at a bounded rate: new nodes fill up at once.

Without it they fill by new objects alone, which takes as long as the others took. An object moves
as a copy, after which the old replica is given up, never while somebody holds a lease on it.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Final

from mooncake_master.core import accounting
from mooncake_master.core.copying import AHEAD_S, Start
from mooncake_master.core.records import Gone, Stored
from mooncake_store.limits import GRANULE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mooncake_master.core.catalog import Catalog
    from mooncake_master.core.context import Context
    from mooncake_master.core.copying import Copier
    from mooncake_master.core.nodes import Node
    from mooncake_master.core.placement import Placement
    from mooncake_master.core.records import Extent

PURPOSE: Final = "rebalance"
START_GAP: Final = 0.10
"""Difference between the shares in use of two nodes at which objects begin to move. Smaller:
ordinary fluctuation moves them back and forth."""
END_GAP: Final = 0.04
"""Difference at which it ends."""
MOVES_MAX: Final = 32
"""Copies under way."""
LOOKS_MAX: Final = 256
"""Objects looked at in one turn."""
LATE_MAX: Final = 1_024
"""Replicas that wait for the end of a lease; more stay where they are, until they are evicted."""


class Rebalancer:
    """Evens out how full nodes are."""

    def __init__(
        self, context: Context, catalog: Catalog, copier: Copier, placement: Placement
    ) -> None:
        self._context = context
        self._catalog = catalog
        self._copier = copier
        self._placement = placement
        self._is_moving = False
        self._moves = 0
        self._leaving: dict[Node, int] = {}
        """{node: granules of it that will be free when what is under way has moved}"""
        self._late: deque[tuple[Stored, Extent]] = deque()
        self._from_s = 0.0
        """When the rate allows more."""

    def tick(self) -> None:
        """Move some objects, if the nodes differ enough."""
        context = self._context
        if not context.config.rebalance_rate or context.recovering:
            return
        for _ in range(len(self._late)):
            self._give_up(*self._late.popleft())
        nodes = [node for node in context.cluster.targets if node.capacity]
        if len(nodes) < 2:  # noqa: PLR2004 - one has nobody to share with
            return
        shares = sorted((self._share(node), node.index) for node in nodes)
        gap = shares[-1][0] - shares[0][0]
        self._is_moving = gap > (END_GAP if self._is_moving else START_GAP)
        if self._is_moving:
            self._move_from(context.cluster.by_index[shares[-1][1]])

    def _share(self, node: Node) -> float:
        """Return how full a node is, what is about to leave it not counted."""
        used = node.capacity - node.free_granules - node.freeing - self._leaving.get(node, 0)
        return used / node.capacity

    def _move_from(self, node: Node) -> None:
        for extent in islice(_oldest(node), LOOKS_MAX):
            stored = extent.owner
            if self._moves >= MOVES_MAX or self._from_s > self._context.now_s + AHEAD_S:
                return
            if isinstance(stored, Stored) and self._may_move(stored):
                target = self._placement.spare(stored, without=node)
                if target is None:
                    continue
                if self._share(node) - self._share(target) <= END_GAP:
                    return
                if self._begin(stored, extent, target) is Start.BUSY:
                    return

    def _may_move(self, stored: Stored) -> bool:
        context = self._context
        is_idle = stored.lease_s <= context.now_s and stored not in context.copying
        return is_idle and not stored.home.cleared

    def _begin(self, stored: Stored, source: Extent, target: Node) -> Start:
        node, granules = source.segment.node, source.granules
        done = self._done(stored, source, node, granules)
        start = self._copier.copy(stored, source, target, purpose=PURPOSE, done=done)
        if start is Start.BEGUN:
            context = self._context
            seconds = granules * GRANULE_BYTES / context.config.rebalance_rate
            self._from_s = max(self._from_s, context.now_s) + seconds
            self._moves += 1
            self._leaving[node] = self._leaving.get(node, 0) + granules
        return start

    def _done(
        self, stored: Stored, source: Extent, node: Node, granules: int
    ) -> Callable[[str], None]:
        def done(code: str) -> None:
            self._moves -= 1
            self._leaving[node] -= granules
            if not self._leaving[node]:
                del self._leaving[node]
            if not code:
                self._give_up(stored, source)

        return done

    def _give_up(self, stored: Stored, source: Extent) -> None:
        """Free the replica that was moved, as soon as nobody reads it."""
        if source.owner is not stored or not _is_elsewhere(stored, source):
            return
        if stored.lease_s > self._context.now_s:
            if len(self._late) < LATE_MAX:
                self._late.append((stored, source))
            return
        counters = self._context.counters
        counters[accounting.REBALANCED_OBJECTS] += 1
        counters[accounting.REBALANCED_BYTES] += stored.length
        self._catalog.drop(stored, source, Gone.EVICTED)


def _oldest(node: Node) -> Iterator[Extent]:
    """Yield what was not used for longest first: it is missed least while it moves."""
    edge = node.policy.edge
    extent = edge.newer
    while extent is not edge:
        following = extent.newer
        yield extent
        extent = following


def _is_elsewhere(stored: Stored, source: Extent) -> bool:
    """Return whether an object has another replica on a node that stays."""
    return any(
        extent is not source and extent.segment.readable and extent.segment.node.drain is None
        for extent in stored.extents()
    )
