"""Storage nodes and their segments, as the master sees them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from mooncake_master.core.allocator import Space
from mooncake_master.core.eviction import POLICIES
from mooncake_store.limits import GRANULE_BYTES, MIB
from mooncake_store.types import NodeState
from mooncake_store.wire.control import Membership, NodeRecord, NodeStatus, SegmentRecord

if TYPE_CHECKING:
    from mooncake_master.core.complaints import Complaint
    from mooncake_master.core.config import CoreConfig
    from mooncake_master.core.draining import Drain
    from mooncake_master.core.records import Copy, DiskExtent, Extent, Freeing, Generation
    from mooncake_store.wire.control import Heartbeat, Register, StoreStatus

LIVE = NodeState.LIVE
READY: Final = "ready"
"""State of a store that has no trouble."""
DISK_GRANULES_FIRST: Final = 16 * MIB // GRANULE_BYTES
"""Bytes under way to a disk of which nothing is known yet: one of 10 MB/s has them in 1.6 s."""


class Segment:
    """One segment of a node.

    Attributes:
        node: Whose it is.
        incarnation: Of its memory contents.
        granules: Its size.
        tier: Where its bytes lie.
        unit: What the wire multiplies an offset with: bytes of a granule, 1 for a location.
        box: Who is told what is to be erased in it: messages about a disk go by themselves, so
            that nobody else waits for it.
        space: Its allocator.
        readable: Its node is there; replicas in it may be handed out.
        allocating: New extents may be taken from it.
        listed: Its directory is known to the end.
        lost: Its memory is gone.
        freeing: Granules that wait for the node's confirmation.
        pinned: Granules of pinned objects.
        copies: {granule: number of the write} of replicas that were not written by their version's
            own put: a repair, a promotion, a drain made them.
        cursor: While the entries of a lost segment are dropped: the next extent.
    """

    __slots__ = (
        "allocating", "box", "copies", "cursor", "freeing", "granules", "incarnation", "listed",
        "lost", "node", "pinned", "readable", "space", "tier", "unit",
    )  # fmt: skip

    def __init__(self, node: Node, record: SegmentRecord) -> None:
        self.node = node
        self.incarnation = record.incarnation
        self.granules = record.bytes // GRANULE_BYTES
        self.tier = int(record.tier)
        self.unit = GRANULE_BYTES
        self.box: Node | Disk = node
        self.space = Space(self, self.granules)
        self.readable = False
        self.allocating = False
        self.listed = False
        self.lost = False
        self.freeing = 0
        self.pinned = 0
        self.copies: dict[int, int] = {}
        self.cursor: Extent | None = None

    def count_pinned(self, home: Generation, granules: int) -> None:
        """Count granules of a pinned object, or uncount them where negative."""
        self.pinned += granules
        if not self.tier:
            home.pinned += granules

    def touched(self, extent: Extent) -> None:
        """Note that an extent was read, or that somebody has a use for it."""
        self.node.policy.touched(extent)

    def number(self, extent: Extent, version: int) -> int:
        """Return the number of the write that put a version there, as the node's table has it."""
        return self.copies.get(extent.offset, version) if self.copies else version


class Disk(Segment):
    """A store on a node's SSD. It places extents by itself, and gives old ones up by itself.

    Attributes:
        held: {location: extent} of everything that it is known to hold.
        used: Granules of that.
        outbox: Extents that it has to be told to erase.
        unanswered: {token: extents it was told to erase}.
        erasing: All extents that it has to erase; the values mean nothing.
        absent_s: Since when its node does not name it, as its directory cannot be opened; None
            while it does.
        status: What its node said of it last.
        copying: Copies that it was asked to take, or is about to be.
        copying_granules: Their size.
        allowed: Granules that it may be asked to take at a time; follows its speed.
        failures: Demotions that failed since the last one that did not.
        shunned_until_s: Nothing is demoted to it before.
    """

    __slots__ = (
        "absent_s", "allowed", "copying", "copying_granules", "erasing", "failures", "held",
        "outbox", "shunned_until_s", "status", "unanswered", "used",
    )  # fmt: skip

    def __init__(self, node: Node, record: SegmentRecord) -> None:
        super().__init__(node, record)
        self.unit = 1
        self.box = self
        self.space = Space(self, 0)
        self.held: dict[int, DiskExtent] = {}
        self.used = 0
        self.outbox: deque[Freeing] = deque()
        self.unanswered: dict[int, list[Freeing]] = {}
        self.erasing: dict[Freeing, None] = {}
        self.absent_s: float | None = None
        self.status: StoreStatus | None = None
        self.copying: dict[Copy, None] = {}
        self.copying_granules = 0
        self.failures = 0
        self.allowed = DISK_GRANULES_FIRST
        self.shunned_until_s = 0.0

    @property
    def peer(self) -> int:
        """Where it is reached; 0 while it is not."""
        return self.node.peer if self.absent_s is None else 0

    @property
    def is_named(self) -> bool:
        """Whether its node says that it is there, well or not."""
        return self.absent_s is None

    @property
    def is_ready(self) -> bool:
        """Whether it says that it takes extents."""
        return self.readable and (self.status is None or self.status.state == READY)

    def touched(self, extent: Extent) -> None:
        """Change nothing: the store sees for itself what is read."""

    def hold(self, extent: DiskExtent) -> None:
        """Enter an extent."""
        self.held[extent.offset] = extent
        self.used += extent.granules

    def let_go(self, extent: Extent) -> None:
        """Take an extent out."""
        if self.held.get(extent.offset) is extent:
            del self.held[extent.offset]
            self.used -= extent.granules


class Node:
    """One storage node.

    Attributes:
        index: Its number in this reign.
        register: What it said when it joined last.
        segments: Its segments of memory.
        disks: Its stores.
        peer: Its registration connection; 0 while there is none.
        state: What we believe of it.
        heard_s: When it was heard of last.
        joined_s: When it joined; its share of new objects grows from then on.
        policy: Order of eviction of its objects.
        outbox: Extents it has to be told to erase.
        unanswered: {token: extents it was told to erase}.
        failures: Failed transfers that clients report, since the last that succeeded to each.
        complaints: {client: what it reports}.
        suspect_until_s: Clients' reports keep it suspect until then.
        is_reported: Suspect for nothing but those reports: to the master it answers as ever.
        evicting: It went over the high watermark and is not below the low one yet.
        drain: It is being taken out of use; None for most.
        credit: Of the weighted round robin that places objects.
        objects: Readable extents it holds.
        copying: Copies to its memory that it was asked for, or is about to be.
        copying_granules: Their size.
        copies_from_s: When background copies may move bytes of it again.
        demoting: Granules that are free as soon as a disk has them, apart from those in windows.
        capacity: Granules of its segments.
        heartbeat: Its last one.
    """

    __slots__ = (
        "capacity", "complaints", "copies_from_s", "copying", "copying_granules", "credit",
        "demoting", "disks", "drain", "evicting", "failures", "heard_s", "heartbeat", "index",
        "is_reported", "joined_s", "objects", "outbox", "peer", "policy", "register",
        "segments", "state", "suspect_until_s", "unanswered",
    )  # fmt: skip

    def __init__(self, index: int, register: Register, config: CoreConfig) -> None:
        self.index = index
        self.register = register
        self.segments: list[Segment] = []
        self.disks: list[Disk] = []
        self.peer = 0
        self.state = LIVE
        self.heard_s = 0.0
        self.joined_s = 0.0
        self.outbox: deque[Freeing] = deque()
        self.unanswered: dict[int, list[Freeing]] = {}
        self.failures = 0
        self.complaints: dict[int, Complaint] = {}
        self.suspect_until_s = 0.0
        self.is_reported = False
        self.evicting = False
        self.drain: Drain | None = None
        self.credit = 0.0
        self.objects = 0
        self.copying: dict[Copy, None] = {}
        self.copying_granules = 0
        self.copies_from_s = 0.0
        self.demoting = 0
        self.capacity = 0
        self.heartbeat: Heartbeat | None = None
        self.policy = POLICIES[config.policy](Segment(self, SegmentRecord(0, GRANULE_BYTES)))

    @property
    def boxes(self) -> tuple[Node | Disk, ...]:
        """All that are told separately what to erase."""
        return (self, *self.disks)

    @property
    def name(self) -> str:
        """Its name."""
        return self.register.name

    @property
    def host(self) -> str:
        """What two replicas of an object must not share: the host label, else the node."""
        return self.register.labels.get("host") or f"\0{self.index}"

    @property
    def away(self) -> bool:
        """Whether its replicas cannot be read now."""
        return not self.peer or self.state is NodeState.DEAD

    @property
    def free_granules(self) -> int:
        """Free now."""
        return sum(segment.space.free_granules for segment in self.segments)

    @property
    def freeing(self) -> int:
        """On the way to be free."""
        return sum(segment.freeing for segment in self.segments)

    def record(self) -> NodeRecord:
        """Return what clients need to know."""
        said = self.register
        return NodeRecord(
            self.index, said.name, said.node_id, said.host, said.port, said.local_path,
            int(self.state), tuple(SegmentRecord(s.incarnation, s.granules * GRANULE_BYTES, s.tier)
                                   for s in (*self.segments, *self.disks)), said.labels,
        )  # fmt: skip

    def status(self, now_s: float) -> NodeStatus:
        """Return what people want to know."""
        capacity = self.capacity
        named = [disk for disk in self.disks if disk.is_named]
        stores = () if self.heartbeat is None else self.heartbeat.stores
        note = ""
        if not self.peer:
            note = "not connected"
        elif any(not segment.listed for segment in self.segments):
            note = "its directory is being listed"
        elif self.suspect_until_s > now_s:
            note = f"{self.failures} transfers failed in a row"
        elif self.drain is not None:
            note = self.drain.note
        else:
            missing = [_missing(disk) for disk in self.disks if not disk.is_named]
            note = "; ".join((*missing, *(_trouble(s) for s in stores if s.state != READY)))
        return NodeStatus(
            record=self.record(),
            used_bytes=(capacity - self.free_granules) * GRANULE_BYTES,
            capacity_bytes=capacity * GRANULE_BYTES,
            objects=self.objects,
            heartbeat_age_s=max(0.0, now_s - self.heard_s),
            ssd_used_bytes=sum(map(_used_bytes, named)),
            ssd_capacity_bytes=sum(disk.granules for disk in named) * GRANULE_BYTES,
            note=note,
            segments_used_bytes=(
                *((s.granules - s.space.free_granules) * GRANULE_BYTES for s in self.segments),
                *map(_used_bytes, self.disks),
            ),
            stores=stores,
        )


def _trouble(said: StoreStatus) -> str:
    return f"{said.path}: {said.state}, {said.reason}"


def _missing(disk: Disk) -> str:
    """Say that a store may come back."""
    place = "" if disk.status is None else f" at {disk.status.path}"
    return f"the store that it had{place} is not there"


def _used_bytes(disk: Disk) -> int:
    said = disk.status
    return disk.used * GRANULE_BYTES if said is None else said.used_bytes


class Cluster:
    """All nodes.

    Attributes:
        nodes: {node id: node}.
        by_index: {index: node}.
        by_peer: {registration connection: node}.
        segments: {incarnation: segment} of segments whose memory is there, as far as we know.
        disks: {incarnation: store}.
        targets: Nodes that may get new objects.
        all_readable: Every replica in the index can be read now.
        granules_max: Size of the largest segment.
        number: Of the membership; grows with every change.
        sweeping: Lost segments whose entries are not all dropped yet.
    """

    def __init__(self, config: CoreConfig) -> None:
        self._config = config
        self._membership: Membership | None = None
        self._next_index = 0
        self.nodes: dict[str, Node] = {}
        self.by_index: dict[int, Node] = {}
        self.by_peer: dict[int, Node] = {}
        self.segments: dict[int, Segment] = {}
        self.disks: dict[int, Disk] = {}
        self.targets: list[Node] = []
        self.all_readable = True
        self.granules_max = 0
        self.number = 0
        self.sweeping = 0

    def add(self, register: Register) -> Node:
        """Enter a new node."""
        node = Node(self._next_index, register, self._config)
        self._next_index += 1
        self.nodes[register.node_id] = node
        self.by_index[node.index] = node
        return node

    def forget(self, node: Node) -> None:
        """Take a node out whose segments are gone."""
        self.nodes.pop(node.register.node_id, None)
        self.by_index.pop(node.index, None)

    def find(self, name: str) -> Node | None:
        """Return the node of that name."""
        return next((node for node in self.nodes.values() if node.name == name), None)

    def changed(self) -> None:
        """Work out again what depends on the states of nodes and segments."""
        self.number += 1
        self._membership = None
        self.all_readable = not self.sweeping
        self.targets = []
        any_live = any(node.state is LIVE for node in self.nodes.values())
        for node in self.nodes.values():
            # Who reports all nodes may have lost its own network: the others go on writing.
            is_target = node.state is LIVE or (node.is_reported and not any_live)
            is_target &= node.drain is None
            away = node.away
            node.capacity = sum(segment.granules for segment in node.segments)
            for segment in node.segments:
                segment.readable = not away and not segment.lost
                segment.allocating = segment.readable and is_target and segment.listed
                self.all_readable &= segment.readable
            for disk in node.disks:
                disk.readable = not away and not disk.lost and disk.absent_s is None
                self.all_readable &= disk.readable
            if any(segment.allocating for segment in node.segments):
                self.targets.append(node)
        self.granules_max = max((s.granules for s in self.segments.values()), default=0)

    def news(self, number: int) -> Membership | None:
        """Return the membership for somebody who knows ``number``, None where nothing changed."""
        if number == self.number:
            return None
        if self._membership is None:
            records = tuple(node.record() for node in self.nodes.values())
            self._membership = Membership(self.number, records)
        return self._membership

    def pool_granules(self) -> int:
        """Return the capacity of the nodes that are there."""
        return sum(s.granules for s in self.segments.values() if s.readable)

    def pinned_granules(self) -> int:
        """Return what pinned objects take of it."""
        return sum(s.pinned for s in self.segments.values() if s.readable)
