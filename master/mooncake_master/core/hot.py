"""Objects that many read at once get more replicas for a while.

What one object's readers ask for may be more than one node can serve, while others are idle. The
master sees each reader once a lease, whatever it reads meanwhile, which is just what counts: how
many readers there are. It samples one key of each request, so that this costs a request half a
microsecond.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mooncake_master.core.records import Gone
from mooncake_store.types import NodeState

if TYPE_CHECKING:
    from mooncake_master.core.catalog import Catalog
    from mooncake_master.core.context import Context
    from mooncake_master.core.copying import Copier
    from mooncake_master.core.placement import Placement
    from mooncake_master.core.records import Extent, Generation, Stored

PURPOSE: Final = "hot"
WINDOW_S: Final = 5.0
"""Time for which reads are counted together. Shorter: chance makes objects hot. Longer: a rush is
over before it is noticed."""
READS_MIN: Final = 128
"""Reads of one object in a window below which it is never hot: an idle cluster has no rush."""
MET_MIN: Final = 4
"""Times that an object has to be the sampled key for that. One key of one large batch stands for
hundreds of reads, and nothing is hot about it."""
SAMPLES_MAX: Final = 4_096
"""Objects counted in one window; a hot one is among the first with near certainty."""
HOT_MAX: Final = 256
"""Objects that have more replicas than asked at one time."""
COOL_S: Final = 60.0
"""Time for which they keep them after they were hot last."""


class HotKeys:
    """Finds objects that are read beyond a node's share, and has them copied."""

    def __init__(
        self, context: Context, catalog: Catalog, copier: Copier, placement: Placement
    ) -> None:
        self._context = context
        self._catalog = catalog
        self._copier = copier
        self._placement = placement
        self._turn = 0
        self._total = 0
        self._counts: dict[Stored, int] = {}
        """{object: estimated reads in this window}"""
        self._met: dict[Stored, int] = {}
        """{object: times that it was sampled in this window}"""
        self._window_ends_s = 0.0
        self._hot: dict[Stored, float] = {}
        """{object with more replicas than asked, or about to have: until when}"""

    def __len__(self) -> int:
        return len(self._hot)

    def __contains__(self, stored: Stored) -> bool:
        return stored in self._hot

    def read(self, home: Generation, keys: list[str]) -> None:
        """Note that keys were located: one of them, chosen in turn, stands for all."""
        if self._context.config.hot_replicas_max < 2 or not keys:  # noqa: PLR2004 - one is no more
            return
        self._turn += 1
        count = len(keys)
        self._total += count
        stored = home.objects.get(keys[self._turn % count])
        if stored is not None and (stored in self._counts or len(self._counts) < SAMPLES_MAX):
            self._counts[stored] = self._counts.get(stored, 0) + count
            self._met[stored] = self._met.get(stored, 0) + 1

    def tick(self) -> None:
        """At the end of a window, find what is hot; let go of what is not any more."""
        now_s = self._context.now_s
        if now_s < self._window_ends_s:
            return
        self._window_ends_s = now_s + WINDOW_S
        if self._total:
            self._judge()
            self._counts, self._met, self._total = {}, {}, 0
        for stored in [each for each, until_s in self._hot.items() if until_s <= now_s]:
            if self._cool(stored):
                del self._hot[stored]

    def _judge(self) -> None:
        """Give one more replica to each object whose replicas serve more than a node's share."""
        context = self._context
        share = self._total / max(1, len(context.cluster.targets))
        for stored, count in self._counts.items():
            if count < READS_MIN or self._met[stored] < MET_MIN:
                continue
            if stored.shelf is None or stored.home.cleared:
                continue
            replicas = len(_serving(stored))
            if not replicas:
                continue
            load = count / replicas
            if load > share / 2 and stored in self._hot:
                self._hot[stored] = context.now_s + COOL_S
            if load > share and replicas < context.config.hot_replicas_max:
                self._add(stored)

    def _add(self, stored: Stored) -> None:
        """Have one more replica made, where there is room for it without evicting anything."""
        if len(self._hot) >= HOT_MAX and stored not in self._hot:
            return
        target = self._placement.spare(stored)
        if target is not None and stored not in self._context.copying:
            source = _serving(stored)[0]
            self._copier.copy(stored, source, target, purpose=PURPOSE, done=_over)
            self._hot[stored] = self._context.now_s + COOL_S

    def _cool(self, stored: Stored) -> bool:
        """Take replicas back that were not asked for; return False while somebody reads them."""
        if stored.shelf is None or stored.home.cleared:
            return True
        if stored.lease_s > self._context.now_s or stored in self._context.copying:
            return False
        serving = _serving(stored)
        surplus = len({extent.segment.node for extent in serving}) - max(1, stored.wanted)
        made = [extent for extent in serving if extent.offset in extent.segment.copies]
        for extent in sorted(made, key=_fullness, reverse=True)[: max(0, surplus)]:
            self._catalog.drop(stored, extent, Gone.EVICTED)
        return True


def _serving(stored: Stored) -> list[Extent]:
    """Return the replicas in memory that readers are sent to."""
    return [
        extent
        for extent in stored.extents()
        if extent.segment.readable
        and not extent.segment.tier
        and extent.segment.node.state is NodeState.LIVE
    ]


def _fullness(extent: Extent) -> float:
    node = extent.segment.node
    return 1 - node.free_granules / node.capacity


def _over(code: str) -> None:
    """Do nothing: copies are counted, and the next window shows whether one is missing still."""
