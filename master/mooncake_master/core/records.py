"""What the index is made of. Small slotted objects: there is one `Stored` and one `Extent` a key.

    Namespace -> Generation -> Stored -> Extent -> Segment -> Node
                     |                     ^
                     +-> Attempt, Copy ----+

An extent's owner says what it is: ``None`` free, an `Attempt` being written, a `Copy` being made by
its node, a `Stored` readable, a `Freeing` on its way back to the allocator, a `Window` set aside
for a waiting put.

Memory of one object with one replica and a key of 64 characters, 64-bit CPython 3.11: key 128,
`Stored` 128, `Extent` 96, its numbers 128, dict and shelf 50; about 530 bytes.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

from mooncake_store.extent import name_bytes
from mooncake_store.types import Tier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mooncake_master.core.barriers import Barrier, Parked
    from mooncake_master.core.nodes import Node, Segment
    from mooncake_store.wire.control import PutItem

FOREVER: Final = float("inf")
"""End of a hard pin."""
NEVER: Final = 0.0
"""End of a lease or pin that was never taken; one shared object."""
SHELF_KEYS: Final = 256
"""Objects on a shelf: indices up to 256 are small integers that CPython never allocates."""
SHELF_KEYS_FEW: Final = 8
"""Objects at which a shelf that was full is kept as a dict, so that few survivors cost little."""


class Gone(enum.Enum):
    """How an acknowledged version ended; each is counted under one of these."""

    REPLACED = "replaced"
    REMOVED = "removed"
    EVICTED = "evicted"
    CLEARED = "cleared"
    LOST = "lost"
    CORRUPT = "corrupt"


class Extent:
    """A range of a segment, free or not; neighbours are linked, so joining them takes no search.

    Attributes:
        segment: Where it lies.
        offset: First granule.
        owner: What it is used for; see the module's docstring.
        before: Neighbour that ends where this begins, or the segment's edge.
        after: Neighbour that begins where this ends, or the segment's edge.
        older: Previous extent in the order of eviction, or in its list of free ones.
        newer: Next extent in that order.
        twin: Next replica of the same version, or None.
    """

    __slots__ = ("after", "before", "newer", "offset", "older", "owner", "segment", "twin")

    after: Extent
    before: Extent
    older: Extent
    newer: Extent

    def __init__(self, segment: Segment, offset: int, owner: Owner) -> None:
        self.segment = segment
        self.offset = offset
        self.owner = owner
        self.twin: Extent | None = None

    @property
    def granules(self) -> int:
        """Its size."""
        return self.after.offset - self.offset


class DiskExtent(Extent):
    """A replica in a store on a node's disk; its offset is the location that the store gave it.

    Attributes:
        granules: Its size.
        vanished: The store has said that it is not there any more: nobody need be told to erase it.
    """

    __slots__ = ("granules", "vanished")

    granules: int

    def __init__(self, segment: Segment, location: int, granules: int, owner: Owner) -> None:
        super().__init__(segment, location, owner)
        self.granules = granules
        self.vanished = False


class Stored:
    """One object: the version that is readable, and where its replicas are.

    Attributes:
        home: Generation it belongs to.
        key: Its key.
        version: Version that is readable.
        length: Bytes of payload.
        extent: First replica; the others follow by ``twin``, those on disks last.
        lease_s: End of the last lease or hold on this version.
        pin_s: End of its pin; ``NEVER`` for none, ``FOREVER`` for a hard one.
        wanted: Replicas asked for, those that were evicted since not counted.
        hints: Group and parent; None for most objects.
        shelf: Shelf that lists it.
        place: Its index there.
    """

    __slots__ = (
        "extent", "hints", "home", "key", "lease_s", "length", "pin_s", "place", "shelf", "version",
        "wanted",
    )  # fmt: skip

    def __init__(self, home: Generation, key: str, version: int, length: int) -> None:
        self.home = home
        self.key = key
        self.version = version
        self.length = length
        self.extent: Extent | None = None
        self.lease_s = NEVER
        self.pin_s = NEVER
        self.wanted = 1
        self.hints: Hints | None = None
        self.shelf: Shelf | None = None
        self.place = 0

    def extents(self) -> Iterator[Extent]:
        """Yield its replicas."""
        extent = self.extent
        while extent is not None:
            following = extent.twin
            yield extent
            extent = following

    @property
    def readable(self) -> bool:
        """Whether a replica can be read now."""
        extent = self.extent
        while extent is not None:
            if extent.segment.readable:
                return True
            extent = extent.twin
        return False


class Group:
    """Objects that are evicted together.

    Attributes:
        name: As the writer gave it.
        members: Objects of the group; the values mean nothing.
        writing: Attempts under way that will join it: until then nobody of it is evicted.
        kept_s: Until then it is known that nobody of it may go; saves looking at all members.
    """

    __slots__ = ("kept_s", "members", "name", "writing")

    def __init__(self, name: str) -> None:
        self.name = name
        self.members: dict[Stored, None] = {}
        self.writing = 0
        self.kept_s = NEVER


class Hints:
    """What an object has to do with others. Children form a list through ``sibling``.

    Attributes:
        group: Its group.
        set_id: Of the set that it became visible with and that nobody has left yet; 0 for none.
        parent_key: Key of the object it follows in a chain, as the writer gave it; "" for none.
        parent: That object, while it is there.
        child: First of the objects that follow this one.
        sibling: Next object with the same parent.
        sibling_before: Previous one.
    """

    __slots__ = ("child", "group", "parent", "parent_key", "set_id", "sibling", "sibling_before")

    def __init__(self, group: Group | None = None, parent_key: str = "") -> None:
        self.group = group
        self.set_id = 0
        self.parent_key = parent_key
        self.parent: Stored | None = None
        self.child: Stored | None = None
        self.sibling: Stored | None = None
        self.sibling_before: Stored | None = None


class Order:
    """What the attempts of one `PutStart` have in common.

    Attributes:
        peer: Connection that asked.
        pin_s: End of the pin that the objects will have.
        wanted: Replicas asked for.
        set_id: Attempts with one id become readable by one commit; 0 for none.
        set_count: How many those are.
        durable: The commit is answered when its objects are on a disk.
        replaces: Its objects take the place of others, known or not.
    """

    __slots__ = ("durable", "peer", "pin_s", "replaces", "set_count", "set_id", "wanted")

    def __init__(self, peer: int, pin_s: float, wanted: int) -> None:
        self.peer = peer
        self.pin_s = pin_s
        self.wanted = wanted
        self.set_id = 0
        self.set_count = 0
        self.durable = False
        self.replaces = False


class Attempt:
    """One try to write a version.

    Attributes:
        home: Generation it writes to.
        item: What is to be written.
        order: Request that it belongs to.
        version: Its number.
        granules: What a replica takes.
        extents: Room granted, one extent a replica.
        expires_s: When it ends by itself.
        group: Group its object will join.
        waiters: Requests that wait for its end.
    """

    __slots__ = (
        "expires_s", "extents", "granules", "group", "home", "item", "order", "version", "waiters",
    )  # fmt: skip

    def __init__(
        self, home: Generation, item: PutItem, order: Order, version: int, granules: int
    ) -> None:
        self.home = home
        self.item = item
        self.order = order
        self.version = version
        self.granules = granules
        self.extents: list[Extent] = []
        self.expires_s = FOREVER
        self.group: Group | None = None
        self.waiters: list[Parked] | None = None


class Copy:
    """One extent that a node copies to itself.

    Attributes:
        stored: Object that it is of.
        version: Version that is copied.
        source: Replica that it is made from.
        segment: Segment or store that takes it.
        extent: Room for it; None where the store finds it.
        attempt: Number of the write.
        granules: Its size.
        purpose: What it is for: a label of the counters.
        done: Called once, with "" where the copy is a replica now, else with an error code.
        until_s: When it is given up.
        wanted: Its store takes it whatever its own policy says.
        vanished: Its store has said that the version is gone before it said that it is there.
        sent: Its node was asked for it.
        over: It has ended, whichever way.
        said: What its node said about that, in a sentence; empty where it said nothing.
    """

    __slots__ = (
        "attempt", "done", "extent", "granules", "over", "purpose", "said", "segment", "sent",
        "source", "stored", "until_s", "vanished", "version", "wanted",
    )  # fmt: skip

    def __init__(
        self, stored: Stored, source: Extent, segment: Segment, attempt: int, purpose: str,
        done: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.stored = stored
        self.version = stored.version
        self.source = source
        self.segment = segment
        self.extent: Extent | None = None
        self.attempt = attempt
        self.granules = source.granules
        self.purpose = purpose
        self.done = done
        self.until_s = FOREVER
        self.wanted = False
        self.vanished = False
        self.sent = False
        self.over = False
        self.said = ""

    @property
    def node(self) -> Node:
        """The node that makes it."""
        return self.segment.node


class Freeing:
    """An extent that its node was, or will be, told to erase.

    Attributes:
        extent: The extent; it returns to the allocator when the node has confirmed.
        version: Version that may not be written or read there any more.
        barrier: Reply that waits for the confirmation.
        window: Window that the extent becomes a part of.
        tries: How often the node answered "not yet".
        followers: Replies that wait for it, too.
        needless: It cannot be read anyway; nobody has to be told should its node be away.
        name: (namespace slot, key) of what lay there, while it may have to be noted.
        over: It is erased, or as good as that.
    """

    __slots__ = (
        "barrier", "extent", "followers", "name", "needless", "over", "tries", "version", "window",
    )  # fmt: skip

    def __init__(self, extent: Extent, version: int, barrier: Barrier | None) -> None:
        self.extent = extent
        self.version = version
        self.barrier = barrier
        self.window: Window | None = None
        self.tries = 0
        self.followers: list[Barrier] | None = None
        self.needless = False
        self.over = False
        self.name: tuple[int, str] | None = None


class Window:
    """A contiguous range that is being emptied for one put.

    Attributes:
        segment: Where it lies.
        first: Its leftmost extent.
        end: Granule behind it.
        granules: Size that the put needs; the rest becomes free.
        missing: Extents in it that their node has not confirmed yet.
        ready: Extent of the put once nothing is missing.
    """

    __slots__ = ("end", "first", "granules", "missing", "ready", "segment")

    def __init__(self, segment: Segment, first: Extent, end: int, granules: int) -> None:
        self.segment = segment
        self.first = first
        self.end = end
        self.granules = granules
        self.missing = 0
        self.ready: Extent | None = None


class Edge:
    """Owner of a segment's edges: never free, never evicted."""

    __slots__ = ()


EDGE: Final = Edge()
Owner = Attempt | Copy | Stored | Freeing | Window | Edge | None


class Shelf:
    """Up to ``SHELF_KEYS`` objects in the order of their making, for ``Scan``.

    Attributes:
        number: Shelves are numbered in the order of their making.
        items: Objects, or None where one is gone.
        live: How many are there.
    """

    __slots__ = ("_few", "items", "live", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.items: list[Stored | None] = []
        self.live = 0
        self._few: dict[int, Stored] | None = None

    @property
    def full(self) -> bool:
        """Whether no more objects fit."""
        return self._few is not None or len(self.items) == SHELF_KEYS

    def add(self, stored: Stored) -> int:
        """Put an object behind the others and return its place."""
        self.items.append(stored)
        self.live += 1
        return len(self.items) - 1

    def take(self, place: int) -> None:
        """Take an object out; the others keep their places."""
        self.live -= 1
        if self._few is not None:
            del self._few[place]
            return
        self.items[place] = None
        if self.live == SHELF_KEYS_FEW and len(self.items) == SHELF_KEYS:
            self._few = {at: item for at, item in enumerate(self.items) if item is not None}
            self.items = []

    def from_place(self, place: int) -> list[tuple[int, Stored]]:
        """Return the objects from a place on, each with its place."""
        if self._few is not None:
            return [(at, item) for at, item in self._few.items() if at >= place]
        return [
            (at, item) for at, item in enumerate(self.items) if at >= place and item is not None
        ]


class Generation:
    """Contents of a namespace between two clears.

    Attributes:
        space: The namespace.
        epoch: Its number.
        objects: {key: object} of everything known, readable or away.
        writing: {key: attempt under way}.
        groups: {name: group}.
        shelves: {number: shelf}, in ascending order.
        bytes: Payload bytes of all objects.
        pinned: Granules of memory of pinned objects.
        lease_s: End of the last lease or hold granted on any of them.
        cleared: The namespace has a newer one.
    """

    __slots__ = (
        "bytes", "cleared", "epoch", "groups", "lease_s", "objects", "pinned", "shelf_count",
        "shelves", "space", "writing",
    )  # fmt: skip

    def __init__(self, space: Namespace, epoch: int) -> None:
        self.space = space
        self.epoch = epoch
        self.objects: dict[str, Stored] = {}
        self.writing: dict[str, Attempt] = {}
        self.groups: dict[str, Group] = {}
        self.shelves: dict[int, Shelf] = {}
        self.shelf_count = 0
        self.bytes = 0
        self.pinned = 0
        self.lease_s = NEVER
        self.cleared = False


class Namespace:
    """Who shares with whom.

    Attributes:
        slot: Index in the nodes' epoch tables.
        name: Its name.
        manifest: What its bytes mean; None until somebody states it.
        current: Its contents.
        name_bytes: Of the name block of an object with an empty key.
    """

    __slots__ = ("current", "manifest", "name", "name_bytes", "slot")

    def __init__(self, slot: int, name: str, epoch: int) -> None:
        self.slot = slot
        self.name = name
        self.name_bytes = name_bytes(name, "")
        self.manifest: dict[str, str] | None = None
        self.current = Generation(self, epoch)


def wire_offset(extent: Extent) -> int:
    """Return where an extent lies, as the wire has it: in bytes, or a store's location."""
    return extent.offset * extent.segment.unit


def set_group(set_id: int) -> str:
    """Return the group that members of a set share where their writer named none.

    A set of which a part is gone could not be told from one that was never committed, so what
    became visible together is evicted together. No group that a writer names begins like this.
    """
    return f"\0{set_id}"


TIER_NAMES: Final = {Tier.DRAM: "dram", Tier.SSD: "ssd"}
