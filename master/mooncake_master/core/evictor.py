"""Which objects go when room is needed, and how a contiguous range is emptied for a put."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from mooncake_master.core import accounting
from mooncake_master.core.records import Freeing, Gone, Stored, Window
from mooncake_store.limits import GRANULE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mooncake_master.core.catalog import Catalog
    from mooncake_master.core.context import Context
    from mooncake_master.core.demotion import Demoter
    from mooncake_master.core.nodes import Node
    from mooncake_master.core.records import Extent, Group

SEEDS = 16
"""Old objects around which a window is tried; more find cheaper windows, each costs a walk."""
CHEAPER = 7 / 8
"""What a window may cost of one around an older object to be taken instead. Else small objects that
nobody reads would stay for ever below large ones, of which each is a window that fits exactly."""
LOOKS = 256
"""Extents at the old end that are looked at for seeds; protected ones are put aside."""
STEPS_MAX = 40_000
"""Extents that one search for a window may walk over: 2 ms; 16 MiB of 4 KiB objects are 3,600."""
KEPT_S = 0.05
"""Time for which a group that cannot go is not looked at again."""
DEPTH_MAX = 4_096
"""Links of a chain that are followed from a head to its tail."""


class Evictor:
    """Decides what goes; ``Catalog`` and ``Freer`` do it.

    Attributes:
        demoter: Writes objects to disks before they go; None where that is not to be.
    """

    def __init__(self, context: Context, catalog: Catalog) -> None:
        self._context = context
        self._catalog = catalog
        self.demoter: Demoter | None = None

    # --- watermarks -----------------------------------------------------------------------------

    def keep_watermarks(self) -> None:
        """Bring nodes that went over the high watermark below the low one, a slice at a time."""
        if self._context.config.high_watermark < 1:
            for node in self._context.cluster.targets:
                self._keep(node)

    def press(self, node: Node) -> None:
        """Go on with a node whose disk need not wait for the next tick: room was taken or made."""
        demoter = self.demoter
        if demoter is not None and demoter.has_disk(node):
            config = self._context.config
            if config.high_watermark < 1 and node in self._context.cluster.targets:
                self._keep(node)

    def _keep(self, node: Node) -> None:
        config, capacity = self._context.config, node.capacity
        used = capacity - node.free_granules - node.freeing - node.demoting
        if node.evicting or used > capacity * config.high_watermark:
            node.evicting = self._shrink(node, used - int(capacity * config.low_watermark))

    def _shrink(self, node: Node, excess: int) -> bool:
        """Evict, or begin to demote, up to a slice; return whether more has to go."""
        budget = self._context.config.evict_slice
        demoter = self.demoter
        while excess > 0 and budget > 0:
            if demoter is not None and not demoter.has_room(node):
                return True
            before = node.freeing + node.demoting
            extent = next(self._oldest(node), None)
            if extent is None:
                return True
            if demoter is None or not demoter.demote(extent, ahead=True):
                self.evict(extent)
            excess -= node.freeing + node.demoting - before
            budget -= 1
        return excess > 0

    def evict_one(self) -> bool:
        """Evict one object, all tiers, from the node that holds most; return whether one could."""
        targets = sorted(self._context.cluster.targets, key=lambda node: -node.objects)
        for node in targets:
            extent = next(self._oldest(node), None)
            if extent is not None:
                assert isinstance(extent.owner, Stored)
                self.evict_whole(extent.owner)
                return True
        for disk in self._context.cluster.disks.values():
            for held in islice(disk.held.values(), LOOKS):
                if isinstance(held.owner, Stored) and not self.protected(held.owner):
                    self.evict_whole(held.owner)
                    return True
        return False

    # --- windows --------------------------------------------------------------------------------

    def open_window(self, node: Node, granules: int) -> Window | None:
        """Begin to empty the cheapest range of this size that may be emptied; None: there is none.

        The range around each of the oldest objects is grown over what is free or may go; of a few
        such ranges the oldest is taken, unless another has clearly fewer bytes to evict. Where
        objects are of one size this is the policy's order exactly: the first seed is large enough
        by itself.
        """
        hole = _overlooked(node, granules)
        if hole is not None:
            return self._empty(hole, hole, granules)
        exact = self._exact(node, granules)
        if exact is not None:
            return self._empty_exactly(exact, granules)
        best: tuple[int, Extent, Extent] | None = None
        steps = STEPS_MAX
        for seed in self._seeds(node, granules):
            if seed.segment.granules < granules or not seed.segment.allocating:
                continue
            found = self._grow(seed, granules, steps)
            steps -= found[3]
            if found[1] is not None and (best is None or found[0] < best[0] * CHEAPER):
                best = (found[0], found[1], found[2])
            if steps <= 0 or (best is not None and best[0] <= granules):
                break
        return None if best is None else self._empty(best[1], best[2], granules)

    def _exact(self, node: Node, granules: int) -> Extent | None:
        """Return the oldest extent if it is what is wanted: nothing is cheaper, or fairer."""
        extent = node.policy.edge.newer
        stored = extent.owner
        if not isinstance(stored, Stored) or stored.hints is not None or self.protected(stored):
            return None
        if extent in self._context.claimed:
            return None
        fits = extent.after.offset - extent.offset == granules and extent.segment.allocating
        return extent if fits else None

    def _seeds(self, node: Node, granules: int) -> Iterator[Extent]:
        """Yield old objects, then the largest free extent of each segment."""
        yield from islice(self._oldest(node), SEEDS)
        for segment in node.segments:
            largest = segment.space.largest(granules)
            if largest is not None:
                yield largest

    def _oldest(self, node: Node) -> Iterator[Extent]:
        """Yield evictable extents in the policy's order, chains from their tails."""
        policy, claimed = node.policy, self._context.claimed
        extent = policy.edge.newer
        for _ in range(LOOKS):
            if extent is policy.edge:
                return
            following = extent.newer
            stored = extent.owner
            assert isinstance(stored, Stored)
            if extent in claimed:
                pass  # a put waits for it, and for the disk
            elif self.protected(stored):
                policy.spared(extent)
            else:
                yield self._tail(stored, extent)
            extent = following

    def _grow(
        self, seed: Extent, granules: int, steps: int
    ) -> tuple[int, Extent | None, Extent, int]:
        """Grow a range around a seed.

        Returns:
            What evicting it costs in granules, its first extent (None: it cannot be grown to that
            size), its last one, and the steps that it took.
        """
        first = last = seed
        size = seed.after.offset - seed.offset
        cost = 0 if seed.owner is None else size
        taken = 1
        while size < granules:
            left, right = first.before, last.after
            if right.owner is None or (left.owner is not None and self._may_go(right)):
                last = chosen = right
            elif left.owner is None or self._may_go(left):
                first = chosen = left
            else:
                return cost, None, last, taken
            grown = chosen.after.offset - chosen.offset
            size += grown
            if chosen.owner is not None:
                cost += grown
            taken += 1
            if taken > steps:
                return cost, None, last, taken
        return cost, first, last, taken

    def _may_go(self, extent: Extent) -> bool:
        owner = extent.owner
        if isinstance(owner, Stored):
            return not self.protected(owner) and extent not in self._context.claimed
        return isinstance(owner, Freeing) and owner.window is None

    def _empty_exactly(self, extent: Extent, granules: int) -> Window:
        """Do what ``_empty`` does for the usual case, one object of the wanted size."""
        window = Window(extent.segment, extent, extent.after.offset, granules)
        self._context.counters[accounting.WINDOWS] += 1
        self._claim(extent, window)
        return window

    def _claim(self, extent: Extent, window: Window) -> None:
        """Make an extent a part of a window: when it is erased, after a disk has it."""
        window.missing += 1
        if isinstance(extent.owner, Stored):
            self._context.claimed[extent] = window
            if self.demoter is None or not self.demoter.demote(extent, ahead=False):
                self.evict(extent)
            return
        freeing = extent.owner
        assert isinstance(freeing, Freeing)
        assert freeing.window is None
        freeing.window = window

    def _empty(self, first: Extent, last: Extent, granules: int) -> Window:
        """Set a range aside: what is free in it at once, the rest when its node has erased it."""
        segment = first.segment
        space = segment.space
        window = Window(segment, first, last.after.offset, granules)
        self._context.counters[accounting.WINDOWS] += 1
        extent = first
        while extent is not space.edge and extent.offset < window.end:
            owner = extent.owner
            if owner is None:
                space.reserve(extent, window)
                if extent is not first and extent.before.owner is window:
                    space.join(extent.before, extent)
                    extent = extent.before
            else:
                self._claim(extent, window)
            extent = extent.after
        if not window.missing:  # the allocator had overlooked it
            space.trim(window.first, granules)
            window.ready = window.first
        return window

    # --- single objects -------------------------------------------------------------------------

    def protected(self, stored: Stored) -> bool:
        """Return whether an object may not be evicted now."""
        if stored.home.cleared:
            return False
        now_s = self._context.now_s
        if stored.lease_s > now_s or stored.pin_s > now_s or stored in self._context.copying:
            return True
        hints = stored.hints
        return hints is not None and hints.group is not None and _kept(hints.group, now_s)

    def evict(self, extent: Extent) -> None:
        """Evict the object of an extent, with its group and what follows it in its chain.

        A replica alone goes where the object stays readable through another one.
        """
        stored = extent.owner
        assert isinstance(stored, Stored)
        counters = self._context.counters
        hints = stored.hints
        if hints is None and stored.extent is extent and extent.twin is None:
            if not stored.home.cleared:
                counters[accounting.EVICTED_REPLICAS] += 1
                size = extent.after.offset - extent.offset
                counters[accounting.EVICTED_BYTES] += size * GRANULE_BYTES
            self._catalog.forget(stored, Gone.EVICTED)
            return
        if _elsewhere(stored, extent, on_disk=hints is not None):
            counters[accounting.EVICTED_REPLICAS] += 1
            counters[accounting.EVICTED_BYTES] += extent.granules * GRANULE_BYTES
            self._catalog.drop(stored, extent, Gone.EVICTED)
            _want_fewer(stored)
            return
        self.evict_whole(stored)

    def evict_whole(self, stored: Stored) -> None:
        """Evict all replicas of an object, with its group and what follows it in its chain."""
        counters = self._context.counters
        for victim in [stored] if stored.hints is None else self._together(stored):
            for replica in () if victim.home.cleared else victim.extents():
                counters[accounting.EVICTED_REPLICAS] += 1
                counters[accounting.EVICTED_BYTES] += replica.granules * GRANULE_BYTES
            self._catalog.forget(victim, Gone.EVICTED)

    def _together(self, stored: Stored) -> list[Stored]:
        """Return an object, its group, and the unprotected objects that follow any of them."""
        found: dict[Stored, None] = {stored: None}
        waiting = [stored]
        while waiting and len(found) < DEPTH_MAX:
            hints = waiting.pop().hints
            if hints is None:
                continue
            near = list(hints.group.members) if hints.group is not None else []
            child = hints.child
            while child is not None:
                if not self.protected(child):
                    near.append(child)
                child = child.hints.sibling if child.hints is not None else None
            for other in near:
                if other not in found:
                    found[other] = None
                    waiting.append(other)
        return list(found)

    def _tail(self, stored: Stored, extent: Extent) -> Extent:
        """Return the replica on this node of the last object in a chain that begins here."""
        node = extent.segment.node
        best = extent
        for _ in range(DEPTH_MAX):
            hints = stored.hints
            if hints is None or hints.child is None:
                break
            stored = hints.child
            here = next((e for e in stored.extents() if e.segment.node is node), None)
            if here is not None and not self.protected(stored):
                best = here
        return best


def _overlooked(node: Node, granules: int) -> Extent | None:
    """Return a free extent that is large enough and that the allocator did not look at."""
    for segment in node.segments:
        space = segment.space
        if not segment.allocating or space.free_granules < granules:
            continue
        extent = space.largest(granules)
        if extent is not None and extent.after.offset - extent.offset >= granules:
            return extent
    return None


def _kept(group: Group, now_s: float) -> bool:
    """Return whether somebody of a group is protected, or is still being written."""
    if group.writing or group.kept_s > now_s:
        return True
    if any(member.lease_s > now_s or member.pin_s > now_s for member in group.members):
        group.kept_s = now_s + KEPT_S
        return True
    return False


def _elsewhere(stored: Stored, extent: Extent, *, on_disk: bool) -> bool:
    """Return whether another replica of an object can be read, on a disk if that is asked.

    And will be: drained nodes go. A disk that is away comes back with what it holds: memory that
    gives something up is no reason to have it erased there.
    """
    return any(
        other is not extent
        and (other.segment.readable or other.segment.tier)
        and (other.segment.node.drain is None or other.segment.node is extent.segment.node)
        and (other.segment.tier or not on_disk)
        for other in stored.extents()
    )


def _want_fewer(stored: Stored) -> None:
    """Do not have a replica rebuilt that was evicted: what is evicted was given up on purpose."""
    if stored.wanted > 1:
        left = len({extent.segment.node for extent in stored.extents()})
        stored.wanted = max(1, min(stored.wanted, left))
