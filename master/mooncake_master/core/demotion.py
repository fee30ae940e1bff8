"""Demotion: what memory gives up goes to a disk of the same node first.

An object whose turn has come stays readable in memory until its node's store has it, and is evicted
then. Where it is on that disk already nothing is written. A store that does not take it (its own
policy, its budget, trouble, no answer in time) costs the replica, as without a disk, and that is
counted under the store's reason (docs/adr/0037).

A put that waits for room waits for the demotions of its window: a burst is taken at the speed of
the disk. What a disk is asked for at a time follows its speed, so that every answer comes soon; one
that fails several times in a row is left alone for a moment, and nobody waits for it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from mooncake_master.core import accounting
from mooncake_master.core.copying import Start
from mooncake_master.core.nodes import DISK_GRANULES_FIRST, Disk
from mooncake_master.core.records import Stored
from mooncake_store.errors import Unreachable
from mooncake_store.limits import GRANULE_BYTES, MIB
from mooncake_store.types import NodeState

if TYPE_CHECKING:
    from mooncake_master.core.context import Context
    from mooncake_master.core.copying import Copier
    from mooncake_master.core.evictor import Evictor
    from mooncake_master.core.nodes import Node
    from mooncake_master.core.records import Extent

DEMOTION: Final = "demotion"
QUICK_S: Final = 0.3
"""An answer within this time lets the disk be asked for more at a time."""
SLOW_S: Final = 1.0
"""An answer later than that lets it be asked for less."""
GRANULES_MIN: Final = 1 * MIB // GRANULE_BYTES
GRANULES_MAX: Final = 256 * MIB // GRANULE_BYTES
"""Bytes under way to the fastest disks; a quarter of what a store lets wait before it refuses."""
COUNT_MAX: Final = 4_096
"""Extents under way to a disk: a tenth of what a store lets wait."""
FAILURES_MAX: Final = 4
"""Failures in a row after which a disk is left alone."""
SHUN_S: Final = 1.0
"""For so long."""
_POLICY: Final = {"not_admitted", "over_budget", "stale_extent"}
"""Answers that say nothing about how the disk fares."""


class Demoter:
    """Moves objects to disks before they are evicted."""

    def __init__(self, context: Context, copier: Copier, evictor: Evictor) -> None:
        self._context = context
        self._copier = copier
        self._evictor = evictor
        self._queues: dict[Disk, deque[Extent]] = {}
        self._awaited: dict[Extent, Stored] = {}
        evictor.demoter = self

    # --- beginning ------------------------------------------------------------------------------

    def has_room(self, node: Node) -> bool:
        """Return whether eviction in the background may go on: no disk of a node is too busy."""
        if not node.disks or not self._context.config.demote:
            return True
        ready = [disk for disk in node.disks if self._is_usable(disk)]
        return not ready or any(disk.copying_granules < _allowed(disk) for disk in ready)

    def has_disk(self, node: Node) -> bool:
        """Return whether a disk of a node takes something now."""
        return self._context.config.demote and any(map(self._is_usable, node.disks))

    def demote(self, extent: Extent, *, ahead: bool) -> bool:
        """Have the object of an extent written to a disk of its node, and evicted then.

        Args:
            extent: In memory; its object is not protected.
            ahead: Nobody waits for its room yet, and ``has_room`` was asked.

        Returns:
            False where it has to be evicted as it is: it is on that disk, or no disk takes it.
        """
        node, stored = extent.segment.node, extent.owner
        assert isinstance(stored, Stored)
        if not node.disks or stored.home.cleared or not self._context.config.demote:
            return False
        if _is_on_disk(stored, node):
            self._count("present")
            return False
        disk = self._choose(node)
        if disk is None:
            self._count("degraded")
            return False
        if not ahead and disk.copying_granules >= _allowed(disk):
            self._queues.setdefault(disk, deque()).append(extent)
            return True
        return self._begin(extent, disk, ahead=ahead)

    def _choose(self, node: Node) -> Disk | None:
        """Return the emptiest store of a node that takes something."""
        usable = [disk for disk in node.disks if self._is_usable(disk)]
        return min(usable, key=lambda disk: disk.used / max(1, disk.granules), default=None)

    def _is_usable(self, disk: Disk) -> bool:
        return disk.is_ready and disk.shunned_until_s <= self._context.now_s

    def _begin(self, extent: Extent, disk: Disk, *, ahead: bool) -> bool:
        context, node, stored = self._context, extent.segment.node, extent.owner
        assert isinstance(stored, Stored)
        granules, begun_s = extent.granules, context.now_s

        def done(code: str) -> None:
            node.demoting -= granules if ahead else 0
            self._learn(disk, granules, context.now_s - begun_s, code)
            if code == Unreachable.code or (code and node.state is NodeState.SUSPECT):
                self._await(extent, stored)  # It is the node that is away, not its disk.
            else:
                self._finish(extent, stored)
            self._go_on(disk)
            if node.evicting:
                self._evictor.press(node)

        patience_s = context.config.store_patience_s
        start = self._copier.store(
            stored, extent, disk, purpose=DEMOTION, patience_s=patience_s, done=done
        )
        if start is Start.BUSY:
            self._await(extent, stored)  # What became of a copy before has to be erased first.
            return True
        if start is not Start.BEGUN:
            self._count(start.value)
            return False
        node.demoting += granules if ahead else 0
        return True

    # --- ending ---------------------------------------------------------------------------------

    def tick(self) -> None:
        """Go on where a lease has ended, a node is back, or a disk takes nothing any more."""
        for extent, stored in list(self._awaited.items()):
            node = extent.segment.node
            if extent.owner is not stored or extent not in self._context.claimed:
                del self._awaited[extent]
            elif not (_is_unsettled(stored, node) or self._evictor.protected(stored)):
                del self._awaited[extent]
                if _is_on_disk(stored, node) or not self.demote(extent, ahead=False):
                    self._finish(extent, stored)
        for disk in list(self._queues):
            self._go_on(disk)

    def _finish(self, extent: Extent, stored: Stored) -> None:
        """Evict an object whose demotion is over, unless it was read or pinned meanwhile.

        What an absent node holds stays: it comes back with it, and has no room to give before.
        """
        if extent.owner is not stored:
            return
        if extent.segment.node.away or self._evictor.protected(stored):
            self._await(extent, stored)
        else:
            self._evictor.evict(extent)

    def _await(self, extent: Extent, stored: Stored) -> None:
        """Look at an extent again later, if a put waits for its room."""
        if extent.owner is stored and extent in self._context.claimed:
            self._awaited[extent] = stored

    def _go_on(self, disk: Disk) -> None:
        """Begin what waits for its turn at a disk."""
        queue = self._queues.get(disk)
        while queue and (disk.copying_granules < _allowed(disk) or not self._is_usable(disk)):
            extent = queue.popleft()
            stored = extent.owner
            if extent not in self._context.claimed or not isinstance(stored, Stored):
                continue  # the put is over, or the object is
            if self._evictor.protected(stored):
                self._awaited[extent] = stored
            elif not self.demote(extent, ahead=False):
                self._finish(extent, stored)
        if not queue:
            self._queues.pop(disk, None)

    def _learn(self, disk: Disk, granules: int, took_s: float, code: str) -> None:
        """Adapt what a disk is asked for to how it fares."""
        if code in _POLICY:
            return
        if code:
            disk.allowed = max(GRANULES_MIN, disk.allowed // 2)
            disk.failures += 1
            if disk.failures >= FAILURES_MAX:
                disk.failures = 0
                disk.allowed = min(disk.allowed, DISK_GRANULES_FIRST)
                disk.shunned_until_s = self._context.now_s + SHUN_S
            return
        disk.failures = 0
        if took_s < QUICK_S:
            disk.allowed = min(GRANULES_MAX, disk.allowed + granules)
        elif took_s > SLOW_S:
            disk.allowed = max(GRANULES_MIN, disk.allowed - granules)

    def _count(self, outcome: str) -> None:
        self._context.counters[accounting.copies(DEMOTION, outcome)] += 1


def _is_unsettled(stored: Stored, node: Node) -> bool:
    """Return whether a node is silent, or has yet to erase what became of a copy before."""
    return (
        node.away
        or node.state is NodeState.SUSPECT
        or any(f.version == stored.version for disk in node.disks for f in disk.erasing)
    )


def _is_on_disk(stored: Stored, node: Node) -> bool:
    return any(
        extent.segment.tier and extent.segment.node is node and extent.segment.readable
        for extent in stored.extents()
    )


def _allowed(disk: Disk) -> int:
    """Return what a disk may be asked for at a time; nothing where it has many extents to take."""
    return disk.allowed if len(disk.copying) < COUNT_MAX else 0
