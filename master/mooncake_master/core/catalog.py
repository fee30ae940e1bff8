"""The index: namespaces and the objects in them."""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from mooncake_master.core import accounting
from mooncake_master.core.later_pins import LaterPins
from mooncake_master.core.memory import GoneMemory
from mooncake_master.core.nodes import Disk
from mooncake_master.core.old_leases import OldLeases
from mooncake_master.core.records import (
    FOREVER,
    NEVER,
    Generation,
    Gone,
    Group,
    Hints,
    Namespace,
    Shelf,
    Stored,
)
from mooncake_master.core.remembered import KnownNamespace
from mooncake_master.core.sets import Sets
from mooncake_master.core.tombs import Tombs
from mooncake_store.errors import InvalidArgument, Overloaded, StaleEpoch
from mooncake_store.fingerprint import fingerprint
from mooncake_store.limits import NAMESPACES_MAX
from mooncake_store.types import MissReason

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mooncake_master.core.barriers import Barrier
    from mooncake_master.core.context import Context
    from mooncake_master.core.freeing import Freer
    from mooncake_master.core.notes import Notes
    from mooncake_master.core.records import DiskExtent, Extent
    from mooncake_store.wire.control import Message

GROUP_MEMBERS_MAX = 4_096
"""Objects of one group: they are evicted in one step, of about 10 ms at this size."""

_MISS_OF = {
    Gone.REMOVED: MissReason.REMOVED,
    Gone.EVICTED: MissReason.EVICTED,
    Gone.CLEARED: MissReason.CLEARED,
    Gone.LOST: MissReason.LOST,
    Gone.CORRUPT: MissReason.CORRUPT,
}


class Catalog:
    """All namespaces and objects.

    Attributes:
        spaces: {name: namespace}.
        slots: {slot: namespace}.
        epochs: {slot: newest epoch that any node's table knows}, for slots without a namespace too.
        gone: Why keys are not there any more.
        tombs: Keys that must not come back with those who are away.
        old_leases: What readers may know from a master before this one.
        graveyard: Cleared generations whose extents are not all freed yet.
        count: Objects in the index, cleared ones not counted.
        end_copies: Called with an object whose version goes while copies of it are made, and the
            reply that has to wait for their end.
        shortened: Called with an object that has lost a replica and has others.
        give_up_kept: Called with a key that is removed or replaced, and the reply that has to wait:
            a recovery may keep a version of it back.
    """

    def __init__(self, context: Context, freer: Freer, notes: Notes) -> None:
        self._context = context
        self._freer = freer
        self._counters = context.counters
        self.end_copies: Callable[[Stored, Barrier | None], None] = _nothing_to_end
        self.shortened: Callable[[Stored], None] = lambda _stored: None
        self.give_up_kept: Callable[[Generation, str, Barrier], None] = lambda *_: None
        self._pin_ends: list[tuple[float, int, Stored]] = []
        self._pin_count = 0
        self.spaces: dict[str, Namespace] = {}
        self.slots: dict[int, Namespace] = {}
        self.epochs: dict[int, int] = {}
        self.gone = GoneMemory(context.config.gone_keys_max)
        self.tombs = Tombs(context)
        self.old_leases = OldLeases(context, notes)
        self.sets = Sets(context, notes)
        self.later_pins = LaterPins(context, notes)
        self.graveyard: deque[Generation] = deque()
        self.count = 0

    # --- namespaces -----------------------------------------------------------------------------

    def generation(self, slot: int, epoch: int) -> Generation:
        """Return what a client means by (slot, epoch).

        Raises:
            StaleEpoch: The namespace was cleared since, or is not known (after a restart).
        """
        space = self.slots.get(slot)
        if space is None:
            raise StaleEpoch(f"no namespace has slot {slot} now; open it again")
        current = space.current
        if current.epoch != epoch:
            raise StaleEpoch(
                f"namespace {space.name!r} is at epoch {current.epoch}, not {epoch}: it was cleared"
            )
        return current

    def may_come(self, message: Message) -> bool:
        """Return whether the generation that a request names may still be found on a node."""
        slot: int = getattr(message, "slot", -1)
        epoch: int = getattr(message, "epoch", 0)
        space = self.slots.get(slot)
        return space is None or space.current.epoch < epoch

    def create(self, name: str) -> Namespace:
        """Create a namespace in the slot that its name asks for, or the next one that none has.

        So it meets the slot again that its objects name, even where a master that knows of nothing
        is asked for it before their nodes are back.

        Raises:
            Overloaded: All slots are taken.
        """
        slots = self.slots
        wanted = home_slot(name)
        tries = ((wanted + step) % NAMESPACES_MAX for step in range(NAMESPACES_MAX))
        slot = next((n for n in tries if n not in slots), None)
        if slot is None:
            raise Overloaded(
                f"there are {NAMESPACES_MAX} namespaces already, the most there can be"
            )
        return self.adopt(name, slot, self.epochs.get(slot, 0) + 1)

    def adopt(self, name: str, slot: int, epoch: int) -> Namespace:
        """Enter a namespace under the slot and epoch that it has."""
        space = Namespace(slot, name, epoch)
        self.spaces[name] = self.slots[slot] = space
        self.epochs[slot] = epoch
        self.keep(space)
        return space

    def keep(self, space: Namespace) -> None:
        """Have what a namespace is kept over a restart."""
        known = KnownNamespace(space.slot, space.name, space.current.epoch, space.manifest)
        self._context.remember("namespaces", space.name, known)

    def clear(self, space: Namespace, epoch: int) -> Generation:
        """Make everything in a namespace unreadable in one step; return the old generation."""
        old = space.current
        old.cleared = True
        space.current = Generation(space, epoch)
        self.epochs[space.slot] = epoch
        self.keep(space)
        count = len(old.objects)
        self.count -= count
        self._counters[accounting.GONE[Gone.CLEARED]] += count
        self.graveyard.append(old)
        return old

    def bury(self, budget: int) -> None:
        """Free the extents of at most ``budget`` objects of cleared generations."""
        while self.graveyard and budget:
            objects = self.graveyard[0].objects
            while objects and budget:
                budget -= 1
                self.forget(objects.popitem()[1], Gone.CLEARED)
            if not objects:
                self.graveyard.popleft()

    def why_gone(self, home: Generation, key: str) -> MissReason:
        """Return why a key of a namespace is not in the index, as far as is remembered."""
        slot = home.space.slot
        for old in self.graveyard:  # what lies there is not noted yet
            stored = old.objects.get(key) if old.space is home.space else None
            if stored is not None and stored.version > self.gone.gone_up_to(slot, key):
                return MissReason.CLEARED
        return self.gone.reason(slot, key)

    # --- objects --------------------------------------------------------------------------------

    def insert(self, stored: Stored, extents: Sequence[Extent]) -> None:
        """Make a new object readable; its key is not in the index."""
        home = stored.home
        home.objects[stored.key] = stored
        home.bytes += stored.length
        self.count += 1
        self.attach(stored, extents)
        number = home.shelf_count - 1
        shelf = home.shelves.get(number)
        if shelf is None or shelf.full:
            shelf = Shelf(home.shelf_count)
            home.shelves[shelf.number] = shelf
            home.shelf_count += 1
        stored.shelf = shelf
        stored.place = shelf.add(stored)

    def attach_disk(self, stored: Stored, extent: DiskExtent) -> None:
        """Give an object a replica on a disk, behind those in memory."""
        disk = extent.segment
        assert isinstance(disk, Disk)
        extent.owner = stored
        extent.twin = None
        disk.hold(extent)
        if stored.pin_s:
            disk.count_pinned(stored.home, extent.granules)
        last = stored.extent
        if last is None:
            stored.extent = extent
            return
        while last.twin is not None:
            last = last.twin
        last.twin = extent

    def attach(self, stored: Stored, extents: Sequence[Extent]) -> None:
        """Give an object replicas in memory; they enter the orders of eviction."""
        following = stored.extent
        for extent in reversed(extents):
            extent.owner = stored
            extent.twin = following
            following = extent
            node = extent.segment.node
            node.policy.added(extent)
            node.objects += 1
        stored.extent = following

    def replace(
        self, stored: Stored, version: int, length: int, extents: Sequence[Extent],
        barrier: Barrier | None,
    ) -> None:  # fmt: skip
        """Give an object a new version; the extents of the old one are freed."""
        old, old_version = stored.extent, stored.version
        self.later_pins.ended(old_version)
        if stored.hints is not None:
            self.sets.ended(stored, stored.hints)
        if stored.pin_s:
            self.pin(stored, NEVER)
        stored.extent = None
        stored.home.bytes += length - stored.length
        stored.version = version
        stored.length = length
        stored.lease_s = NEVER
        self._counters[accounting.GONE[Gone.REPLACED]] += 1
        self.attach(stored, extents)
        self._free_all(stored, old, old_version, barrier)

    def forget(self, stored: Stored, reason: Gone, barrier: Barrier | None = None) -> None:
        """Take an object out of the index and free its extents."""
        home = stored.home
        self.later_pins.ended(stored.version)
        if stored.pin_s:
            self.pin(stored, NEVER)
        if stored.hints is not None:
            self.sets.ended(stored, stored.hints)
            self.unlink(stored)
        home.objects.pop(stored.key, None)
        shelf = stored.shelf
        assert shelf is not None
        shelf.take(stored.place)
        if not shelf.live:
            del home.shelves[shelf.number]
        stored.shelf = None
        home.bytes -= stored.length
        if not home.cleared:
            self.count -= 1
            self._counters[accounting.GONE[reason]] += 1
            self.gone.note(home.space.slot, stored.key, _MISS_OF[reason], stored.version)
            if reason is Gone.REMOVED:
                self.tombs.note(home.space.slot, stored.key, stored.version)
            self._freer.ended()
        elif self.gone.gone_up_to(home.space.slot, stored.key) < stored.version:
            # Not where a newer version has come and gone since: this is done some time later.
            self.gone.note(home.space.slot, stored.key, MissReason.CLEARED, stored.version)
        extent = stored.extent
        stored.extent = None
        self._free_all(stored, extent, stored.version, barrier)

    def drop(self, stored: Stored, extent: Extent, reason: Gone) -> None:
        """Free one replica; an object without replicas leaves the index."""
        if stored.extent is extent and extent.twin is None:
            self.forget(stored, reason)
            return
        if stored.pin_s:
            extent.segment.count_pinned(stored.home, -extent.granules)
        self.detach(stored, extent)
        self._freer.free(extent, stored.version, None, stored.home, stored.key)
        if stored.wanted > 1:
            self.shortened(stored)

    def detach(self, stored: Stored, extent: Extent) -> None:
        """Take one replica from an object that has others."""
        if stored.extent is extent:
            stored.extent = extent.twin
        else:
            other = stored.extent
            while other is not None and other.twin is not extent:
                other = other.twin
            assert other is not None
            other.twin = extent.twin
        extent.twin = None
        _unlist(extent)

    # --- pins -----------------------------------------------------------------------------------

    def pin(self, stored: Stored, end_s: float) -> None:
        """Set the end of an object's pin: ``NEVER`` takes it away, ``FOREVER`` is hard."""
        if bool(stored.pin_s) is not bool(end_s):
            sign = 1 if end_s else -1
            for extent in stored.extents():
                extent.segment.count_pinned(stored.home, sign * extent.granules)
        stored.pin_s = end_s
        if end_s and end_s != FOREVER:
            self._pin_count += 1
            heappush(self._pin_ends, (end_s, self._pin_count, stored))

    def end_pins(self) -> None:
        """Take soft pins away whose time is over."""
        ends = self._pin_ends
        now_s = self._context.now_s
        while ends and ends[0][0] <= now_s:
            end_s, _, stored = heappop(ends)
            if stored.pin_s == end_s:
                self.pin(stored, NEVER)
        if len(ends) > 1_000 + 2 * self.count:
            self._pin_ends = [entry for entry in ends if entry[2].pin_s == entry[0]]
            heapify(self._pin_ends)

    # --- groups and chains ----------------------------------------------------------------------

    def join_group(self, home: Generation, name: str) -> Group | None:
        """Return a group that a new attempt will join; None where it is full: hints are hints."""
        group = home.groups.get(name)
        if group is None:
            group = home.groups[name] = Group(name)
        elif len(group.members) + group.writing >= GROUP_MEMBERS_MAX:
            return None
        group.writing += 1
        return group

    def leave_group(self, home: Generation, group: Group) -> None:
        """End what ``join_group`` began."""
        group.writing -= 1
        if not group.writing and not group.members:
            home.groups.pop(group.name, None)

    def link(self, stored: Stored, group: Group | None, parent_key: str, set_id: int = 0) -> None:
        """Record an object's hints, the ones of a version before it are forgotten."""
        hints = stored.hints
        if hints is None:
            hints = stored.hints = Hints()
        if hints.group is not None and hints.group is not group:
            self._quit(stored, hints)
        hints.group = group
        if group is not None:
            group.members[stored] = None
        hints.set_id = set_id
        if set_id:
            self.sets.joined(stored, set_id, group)
        self._orphan(stored, hints)
        hints.parent_key = parent_key
        self.find_parent(stored)

    def find_parent(self, stored: Stored) -> None:
        """Link an object with the one it follows, if that is there and no descendant of it."""
        hints = stored.hints
        if hints is None or not hints.parent_key or hints.parent is not None:
            return
        parent = stored.home.objects.get(hints.parent_key)
        if parent is None or _descends(parent, stored):
            return
        hints.parent_key = parent.key
        above = parent.hints
        if above is None:
            above = parent.hints = Hints()
        hints.parent = parent
        hints.sibling = above.child
        hints.sibling_before = None
        if above.child is not None and above.child.hints is not None:
            above.child.hints.sibling_before = stored
        above.child = stored

    def unlink(self, stored: Stored) -> None:
        """Take an object out of its group and chain."""
        hints = stored.hints
        assert hints is not None
        if hints.group is not None:
            self._quit(stored, hints)
        self._orphan(stored, hints)
        child = hints.child
        while child is not None:
            below = child.hints
            assert below is not None
            below.parent = None
            child, below.sibling, below.sibling_before = below.sibling, None, None
        stored.hints = None

    def _quit(self, stored: Stored, hints: Hints) -> None:
        group = hints.group
        assert group is not None
        group.members.pop(stored, None)
        hints.group = None
        if not group.writing and not group.members:
            stored.home.groups.pop(group.name, None)

    def _orphan(self, stored: Stored, hints: Hints) -> None:
        """Take an object out of its parent's children."""
        parent = hints.parent
        if parent is None:
            return
        before, after = hints.sibling_before, hints.sibling
        if before is None:
            assert parent.hints is not None
            assert parent.hints.child is stored
            parent.hints.child = after
        elif before.hints is not None:
            before.hints.sibling = after
        if after is not None and after.hints is not None:
            after.hints.sibling_before = before
        hints.parent = hints.sibling = hints.sibling_before = None

    def _free_all(
        self, stored: Stored, extent: Extent | None, version: int, barrier: Barrier | None
    ) -> None:
        """Free a version's replicas, those that are being made included."""
        if stored in self._context.copying:
            self.end_copies(stored, barrier)
        free = self._freer.free
        while extent is not None:
            following = extent.twin
            _unlist(extent)
            free(extent, version, barrier, stored.home, stored.key)
            extent = following


def _unlist(extent: Extent) -> None:
    """Take an extent out of what its node is known to hold."""
    segment = extent.segment
    if segment.tier:
        assert isinstance(segment, Disk)
        segment.let_go(extent)
        return
    node = segment.node
    node.policy.dropped(extent)
    node.objects -= 1


def _nothing_to_end(stored: Stored, barrier: Barrier | None) -> None:
    """Stand in for the copier where there is none."""


def home_slot(name: str) -> int:
    """Return the slot that a namespace has unless others have taken it."""
    return int.from_bytes(fingerprint(name, "")[:8], "little") % NAMESPACES_MAX


def check_slot(slot: int) -> int:
    """Return a slot that a node names, if it can be one.

    Raises:
        InvalidArgument: It cannot.
    """
    if not 0 <= slot < NAMESPACES_MAX:
        raise InvalidArgument(f"a namespace slot lies in 0 to {NAMESPACES_MAX - 1}, not at {slot}")
    return slot


def _descends(stored: Stored, ancestor: Stored) -> bool:
    """Return whether ``stored`` is ``ancestor`` or follows it; long chains count as doing so."""
    steps = 100_000
    other: Stored | None = stored
    while other is not None and other is not ancestor and steps:
        other = other.hints.parent if other.hints is not None else None
        steps -= 1
    return other is not None
