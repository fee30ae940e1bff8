"""Repair: replicas that were lost are made again, in the background, within the rate of copies.

An object is short of replicas when fewer nodes hold it than its writer asked for, less those that
eviction took on purpose. Nodes that are silent for a moment count as holders; dead, drained and
draining ones do not. Losses of single replicas are noted as they happen; what a node takes with it
is found by going through all objects, whenever the list of nodes has changed.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from mooncake_master.core.copying import Start
from mooncake_master.core.rounds import Round
from mooncake_store.types import NodeState

if TYPE_CHECKING:
    from collections.abc import Callable

    from mooncake_master.core.catalog import Catalog
    from mooncake_master.core.context import Context
    from mooncake_master.core.copying import Copier
    from mooncake_master.core.placement import Placement
    from mooncake_master.core.records import Extent, Stored

REPAIR: Final = "repair"
LOOKS_MAX: Final = 2_000
"""Objects looked at in one turn, 1 ms: a million takes 10 s."""
ROUND_S: Final = 60.0
"""Between two rounds when nothing has changed: whatever was overlooked is found in the end."""
TRIES_MAX: Final = 64
"""Copies begun in one turn; the rate of copies is bounded elsewhere."""
RETRY_S: Final = 1.0
"""Until an object is tried again for which there was no room, or whose copy failed."""
EXACT_MAX: Final = 10_000
"""Objects that are looked at again whenever their number is asked for: 10 ms."""
_HOLDING: Final = (NodeState.LIVE, NodeState.SUSPECT)


class Repair:
    """Keeps objects at the number of replicas that their writers asked for.

    Attributes:
        met: Called with each object of several replicas that a round meets and that lacks none.
    """

    def __init__(
        self, context: Context, catalog: Catalog, copier: Copier, placement: Placement
    ) -> None:
        self._context = context
        self._catalog = catalog
        self._copier = copier
        self._placement = placement
        self._short: dict[Stored, None] = {}
        self._queue: deque[Stored] = deque()
        self._later: deque[tuple[float, Stored]] = deque()
        self._round: Round | None = None
        self._seen_number = -1
        self._look_s = 0.0
        self.met: Callable[[Stored], None] = lambda _stored: None
        catalog.shortened = self.note

    @property
    def under_replicated(self) -> int:
        """Objects that are known to have fewer replicas than they should.

        Of very many some may be whole again since they were looked at last.
        """
        short = self._short
        return sum(map(is_short, short)) if len(short) <= EXACT_MAX else len(short)

    def note(self, stored: Stored) -> None:
        """Have an object looked at that may have lost a replica, or got fewer than asked."""
        if stored.wanted > 1 and stored not in self._short:
            self._short[stored] = None
            self._queue.append(stored)

    def tick(self) -> None:
        """Find and rebuild, a slice of each."""
        if self._context.recovering:
            return
        self._look()
        later, now_s = self._later, self._context.now_s
        while later and later[0][0] <= now_s:
            self._queue.append(later.popleft()[1])
        for _ in range(min(TRIES_MAX, len(self._queue))):
            if not self._try(self._queue.popleft()):
                break

    def _look(self) -> None:
        """Go on with the round, or begin one if there is a reason to."""
        number, now_s = self._context.cluster.number, self._context.now_s
        if self._round is None:
            if number == self._seen_number and now_s < self._look_s:
                return
            self._seen_number = number
            self._round = Round(self._catalog)
        for _ in range(LOOKS_MAX):
            stored = self._round.next()
            if stored is None:
                self._round = None
                self._look_s = now_s + ROUND_S
                return
            if is_short(stored):
                self.note(stored)
                continue
            if stored.wanted > 1:
                self._short.pop(stored, None)
            if stored.extent is not None and stored.extent.twin is not None:
                self.met(stored)

    def _try(self, stored: Stored) -> bool:
        """Begin to rebuild a replica; return False where no other object need be tried now."""
        if not is_short(stored):
            self._short.pop(stored, None)
            return True
        if stored in self._context.copying:
            self._try_later(stored)
            return True
        source = best_source(stored)
        target = None if source is None else self._placement.spare(stored)
        if source is None or target is None:
            self._try_later(stored)
            return source is None
        start = self._copier.copy(stored, source, target, purpose=REPAIR, done=self._done(stored))
        if start is Start.BUSY:
            self._queue.append(stored)
            return False
        if start is not Start.BEGUN:
            self._try_later(stored)
        return True

    def _done(self, stored: Stored) -> Callable[[str], None]:
        def done(code: str) -> None:
            if code:
                self._try_later(stored)
            else:
                self._queue.append(stored)  # it may lack another one

        return done

    def _try_later(self, stored: Stored) -> None:
        self._later.append((self._context.now_s + RETRY_S, stored))


def is_short(stored: Stored) -> bool:
    """Return whether fewer nodes hold an object than should."""
    if stored.wanted < 2 or stored.shelf is None or stored.home.cleared:  # noqa: PLR2004 - one
        return False
    holders = {
        extent.segment.node
        for extent in stored.extents()
        if not extent.segment.lost and extent.segment.node.state in _HOLDING
    }
    return len(holders) < stored.wanted


def best_source(stored: Stored) -> Extent | None:
    """Return the replica to copy from: in memory, of a node that nothing is wrong with, if any."""
    readable = [extent for extent in stored.extents() if extent.segment.readable]
    return min(
        readable,
        key=lambda e: (e.segment.node.state is NodeState.SUSPECT, e.segment.tier),
        default=None,
    )
