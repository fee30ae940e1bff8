"""Nodes that come, go silent, come back, or lose what they had."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from mooncake_master.core import accounting
from mooncake_master.core.instructions import Close, Reply
from mooncake_master.core.nodes import Disk, Segment
from mooncake_master.core.records import Freeing, Gone, Stored
from mooncake_master.core.remembered import KnownNode
from mooncake_store.errors import InvalidArgument, WrongPeer
from mooncake_store.limits import (
    GRANULE_BYTES,
    NODES_MAX,
    SEGMENT_BYTES_MAX,
    SEGMENTS_PER_NODE_MAX,
)
from mooncake_store.types import TERM_MAX, NodeState, Tier
from mooncake_store.wire.control import HeartbeatReply, Register, Registered, SegmentRecord

if TYPE_CHECKING:
    from collections.abc import Collection

    from mooncake_master.core.barriers import Request
    from mooncake_master.core.catalog import Catalog
    from mooncake_master.core.context import Context
    from mooncake_master.core.copying import Copier
    from mooncake_master.core.freeing import Freer
    from mooncake_master.core.nodes import Node
    from mooncake_master.core.notes import Notes
    from mooncake_master.core.records import Extent
    from mooncake_master.core.recovery import Recovery
    from mooncake_store.wire.control import Heartbeat

LONG_AGO = float("-inf")
INCARNATIONS_MAX = 1 << 64
"""They have 64 bits on the data port."""
PORTS_MAX = 1 << 16
_TIERS = frozenset(Tier)


class Members:
    """Keeps the list of nodes true."""

    def __init__(
        self, context: Context, catalog: Catalog, freer: Freer, recovery: Recovery, notes: Notes,
        copier: Copier,
    ) -> None:  # fmt: skip
        self._context = context
        self._catalog = catalog
        self._freer = freer
        self._recovery = recovery
        self._notes = notes
        self._copier = copier
        notes.condemn = self._condemn
        self._lost: deque[Segment] = deque()
        self._ticked_s: float | None = None

    # --- registration ---------------------------------------------------------------------------

    def register(self, request: Request, message: Register) -> None:
        """Handle a `Register`: a node joins, or comes back."""
        context = self._context
        cluster = context.cluster
        _check(message)
        node = self._identify(message)
        known = node is not None
        foreign = message.term > context.term or (message.term > 0 and not known)
        term_raised = foreign and context.raise_term(message.term)
        if node is None:
            node = cluster.add(message)
        elif node.peer and node.peer != request.peer:
            self._hang_up(node)
            cluster.by_peer.pop(node.peer, None)
            context.out.append(Close(node.peer))
        node.register = message
        node.peer = request.peer
        cluster.by_peer[request.peer] = node
        node.heard_s = context.now_s
        node.failures, node.suspect_until_s, node.complaints = 0, 0.0, {}
        node.drain = context.drains.get(message.node_id)
        if node.drain is not None and node.drain.leaving:
            del context.drains[message.node_id]
            node.drain = None
        node.state = _healthy(node)
        if not known:
            node.joined_s = LONG_AGO if message.landed else context.now_s
        earlier = self._give_up(node, message)
        self._learn_epochs(message)
        new = self._exchange_segments(node, message)
        disks, again = self._exchange_disks(node, message, earlier)
        self._keep(node)
        epochs = {slot: space.current.epoch for slot, space in self._catalog.slots.items()}
        reply = Registered(node.index, context.term, context.config.heartbeat_s, epochs)
        context.out.append(Reply(request.peer, request.request_id, reply))
        self._notes.joined(node, message)
        self._freer.connected(node)
        if term_raised:
            self._freer.announce_epochs(epochs, None)
        self._recovery.joined(new, disks, again, landed=message.landed, term=message.term)
        cluster.changed()

    def _identify(self, message: Register) -> Node | None:
        """Return the node that registers, None for one that is new.

        Raises:
            WrongPeer: The name or a segment belongs to a node that is connected.
            InvalidArgument: There are as many nodes as there can be.
        """
        cluster = self._context.cluster
        node = cluster.nodes.get(message.node_id)
        named = {record.incarnation for record in message.segments}
        other = cluster.find(message.name)
        if other is not None and other is not node:
            if other.peer:
                raise WrongPeer(
                    f"a node {message.name!r} with another identity is connected", node=message.name
                )
            self._retire(other, named)
        for record in message.segments:
            segment = cluster.segments.get(record.incarnation) or cluster.disks.get(
                record.incarnation
            )
            if segment is None or segment.node is node:
                continue
            if isinstance(segment, Disk) and not segment.peer:  # It was moved to another host.
                segment.node.disks.remove(segment)
                self._lose(segment)
                self._keep(segment.node)
                continue
            if segment.node.peer:
                raise WrongPeer(
                    f"segment {record.incarnation:#x} belongs to node {segment.node.name!r}, which"
                    " is connected", node=message.name,
                )  # fmt: skip
            self._retire(segment.node, named)
        if node is None and len(cluster.nodes) >= NODES_MAX:
            raise InvalidArgument(f"there are {NODES_MAX} nodes already, the most there can be")
        return node

    def _learn_epochs(self, message: Register) -> None:
        """Never go back behind an epoch that a node's tables know."""
        catalog = self._catalog
        for slot, epoch in message.epochs.items():
            space = catalog.slots.get(slot)
            if space is not None and space.current.epoch < epoch:
                catalog.clear(space, epoch)
            catalog.epochs[slot] = max(epoch, catalog.epochs.get(slot, 0))

    def _exchange_segments(self, node: Node, message: Register) -> list[Segment]:
        """Keep segments whose memory is still there, drop the others, return new ones."""
        records = {r.incarnation: r for r in message.segments if r.tier == Tier.DRAM}
        kept: list[Segment] = []
        for segment in node.segments:
            record = records.get(segment.incarnation)
            if record is None or record.bytes // GRANULE_BYTES != segment.granules:
                self._lose(segment)
            else:
                kept.append(segment)
                del records[segment.incarnation]
        new = [Segment(node, record) for record in records.values()]
        node.segments = kept + new
        for segment in new:
            self._context.cluster.segments[segment.incarnation] = segment
        return new

    def _give_up(self, node: Node, message: Register) -> dict[int, SegmentRecord]:
        """Lose the stores in whose place a node has made new ones: they do not come back.

        That is believed of what the node itself has registered, in this reign or in one before, and
        names no more: a directory that came from another node may say anything of what is there.

        Returns:
            What it had in an earlier reign, if it comes for the first time: {incarnation: record}.
        """
        cluster = self._context.cluster
        records = self._context.unseen.pop(message.node_id, ())
        earlier = {r.incarnation: r for r in records if r.incarnation not in cluster.disks}
        gone = set(message.replaced) - {record.incarnation for record in message.segments}
        lost = [disk for disk in node.disks if disk.incarnation in gone]
        for disk in lost:
            node.disks.remove(disk)
            self._lose(disk)
        before = gone.intersection(earlier)
        self._notes.replaced(before | {disk.incarnation for disk in lost})
        return {n: record for n, record in earlier.items() if n not in before}

    def _exchange_disks(
        self, node: Node, message: Register, earlier: dict[int, SegmentRecord]
    ) -> tuple[list[Disk], list[Disk]]:
        """Return the stores that are new, and those that are named again.

        One that is not named is kept: it is on its way to another host, or its directory cannot be
        opened now, which is no loss yet. So is one of an earlier reign, of which is not known what
        it holds.
        """
        now_s = self._context.now_s
        records = {r.incarnation: r for r in message.segments if r.tier != Tier.DRAM}
        again: list[Disk] = []
        for disk in node.disks:
            record = records.pop(disk.incarnation, None)
            if record is not None:
                disk.granules = record.bytes // GRANULE_BYTES
                disk.absent_s = None
                disk.shunned_until_s = 0.0
                again.append(disk)
            elif disk.absent_s is None:
                disk.absent_s = now_s
        new = [Disk(node, record) for record in records.values()]
        named = {record.incarnation for record in message.segments}
        for record in earlier.values():
            if record.tier != Tier.DRAM and record.incarnation not in named:
                disk = Disk(node, record)
                disk.absent_s = now_s
                new.append(disk)
        node.disks += new
        self._notes.missing(d.incarnation for d in node.disks if d.absent_s == now_s)
        for disk in new:
            self._context.cluster.disks[disk.incarnation] = disk
        return new, again

    def heartbeat(self, request: Request, message: Heartbeat) -> None:
        """Handle a `Heartbeat`."""
        context = self._context
        node = context.cluster.nodes.get(message.node_id)
        known = node is not None and bool(node.peer) and message.term == context.term
        if node is not None and node.peer:
            node.heard_s = context.now_s
            node.heartbeat = message
            for status in message.stores:
                disk = context.cluster.disks.get(status.incarnation)
                if disk is not None and disk.node is node:
                    disk.status = status
            if node.state in (NodeState.SUSPECT, NodeState.DEAD):
                self._judge(node)
        reply = HeartbeatReply(context.term, known)
        context.out.append(Reply(request.peer, request.request_id, reply))

    def disconnected(self, peer: int) -> None:
        """A connection is gone; if it was a node's, that node is away until it returns."""
        cluster = self._context.cluster
        node = cluster.by_peer.pop(peer, None)
        if node is None:
            return
        node.peer = 0
        node.state, node.is_reported = NodeState.SUSPECT, False
        self._keep(node)
        self._hang_up(node)
        cluster.changed()

    def _hang_up(self, node: Node) -> None:
        """End what was under way with a node whose connection is gone."""
        self._copier.disconnected(node)
        self._freer.disconnected(node)
        self._recovery.disconnected(node)
        self._notes.disconnected(node)

    # --- over restarts --------------------------------------------------------------------------

    def recall(self, known: KnownNode) -> None:
        """List a node of an earlier reign as away; what it holds it says when it comes back."""
        said = Register(
            known.name, known.node_id, known.host, known.port, known.local_path, known.labels, ()
        )
        self._context.cluster.add(said).state = NodeState.SUSPECT
        self._context.unseen[known.node_id] = known.segments
        self._context.cluster.changed()

    def _keep(self, node: Node) -> None:
        """Have a node kept in the list over a restart."""
        context, said = self._context, node.register
        seen_s = context.now_s + context.wall_offset_s
        missing = tuple(
            SegmentRecord(disk.incarnation, disk.granules * GRANULE_BYTES, disk.tier)
            for disk in node.disks
            if not disk.is_named
        )
        known = KnownNode(
            said.name, said.node_id, said.host, said.port, said.local_path, said.labels,
            said.segments + missing, seen_s,
        )  # fmt: skip
        context.remember("nodes", said.node_id, known)

    # --- time -----------------------------------------------------------------------------------

    def tick(self) -> bool:
        """Look for nodes that went silent, unless it was us who did not listen (report 008).

        Returns:
            Whether so much time passed since the last tick that nobody's silence proves anything.
        """
        context = self._context
        now_s = context.now_s
        nodes = context.cluster.nodes
        last_s = self._ticked_s
        paused = last_s is None or now_s - last_s >= context.config.suspect_after_s / 2
        if paused:
            context.counters[accounting.PAUSES] += last_s is not None
            for node in nodes.values():
                node.heard_s = now_s
        self._ticked_s = now_s
        for node in list(nodes.values()):
            if now_s - node.heard_s > context.config.forget_after_s:
                self._retire(node)
            else:
                self._judge(node)
            for disk in list(node.disks):
                away_s = 0.0 if disk.absent_s is None else now_s - disk.absent_s
                if away_s > context.config.forget_after_s:
                    node.disks.remove(disk)
                    self._lose(disk)
                    self._notes.forgotten("", [disk])
                    self._keep(node)
        if self._lost:
            self._sweep(context.config.evict_slice)
        return paused

    def _judge(self, node: Node) -> None:
        """Set a node's state from what was heard of it."""
        config = self._context.config
        silence_s = self._context.now_s - node.heard_s
        if silence_s > config.dead_after_s:
            state = NodeState.DEAD
        elif (
            not node.peer
            or silence_s > config.suspect_after_s
            or node.suspect_until_s > self._context.now_s
        ):
            state = NodeState.SUSPECT
        else:
            state = _healthy(node)
        is_silent = not node.peer or silence_s > config.suspect_after_s
        is_reported = state is NodeState.SUSPECT and not is_silent
        if state is not node.state or is_reported is not node.is_reported:
            node.state, node.is_reported = state, is_reported
            self._context.cluster.changed()

    # --- loss -----------------------------------------------------------------------------------

    def _retire(self, node: Node, named: Collection[int] = ()) -> None:
        """Give a node up: what it held is lost, and comes back empty, apart from what is named."""
        cluster, node_id = self._context.cluster, node.register.node_id
        for segment in (*node.segments, *node.disks):
            self._lose(segment)
        had: list[Segment | SegmentRecord] = [*node.segments, *node.disks]
        earlier = self._context.unseen.get(node_id, ())
        had += [record for record in earlier if record.incarnation not in cluster.disks]
        self._notes.forgotten(node_id, [each for each in had if each.incarnation not in named])
        node.segments = []
        node.disks = []
        if node.peer:
            self._context.cluster.by_peer.pop(node.peer, None)
            self._context.out.append(Close(node.peer))
            self._hang_up(node)
            node.peer = 0
        self._context.cluster.forget(node)
        self._context.cluster.changed()
        self._context.unseen.pop(node_id, None)
        self._context.forget("nodes", node_id)

    def _condemn(self, node_id: str) -> None:
        """Have an absent node come back empty: too much would have to be noted about it."""
        node = self._context.cluster.nodes.get(node_id)
        segments = [] if node is None else [*node.segments, *node.disks]
        for segment in segments:
            self._lose(segment)
        if node is not None:
            node.segments = []
            node.disks = []
            self._context.cluster.changed()
        self._notes.forgotten(node_id, segments)

    def _lose(self, segment: Segment) -> None:
        """Mark a segment's memory as gone; its entries are dropped in slices."""
        segment.lost = True
        segment.readable = segment.allocating = False
        self._context.cluster.segments.pop(segment.incarnation, None)
        self._context.cluster.disks.pop(segment.incarnation, None)
        self._freer.forget_segment(segment)
        self._recovery.lost(segment)
        segment.cursor = segment.space.edge.after
        self._lost.append(segment)
        self._context.cluster.sweeping += 1

    def _sweep(self, budget: int) -> None:
        """Drop the entries of lost segments, at most ``budget`` extents now."""
        while self._lost and budget:
            segment = self._lost[0]
            if isinstance(segment, Disk):
                budget = self._sweep_disk(segment, budget)
                if not segment.held and not segment.erasing:
                    self._swept()
                continue
            extent = segment.cursor
            edge = segment.space.edge
            while budget and extent is not None and extent is not edge:
                following = extent.after
                self._lose_extent(extent)
                extent = following
                budget -= 1
            segment.cursor = extent
            if extent is edge:
                self._swept()

    def _swept(self) -> None:
        """The first of the lost segments has no entries any more."""
        self._lost.popleft()
        self._context.cluster.sweeping -= 1
        self._context.cluster.changed()

    def _sweep_disk(self, disk: Disk, budget: int) -> int:
        """Drop entries of a lost store; return how many more may be dropped now."""
        while budget and (disk.held or disk.erasing):
            budget -= 1
            if disk.erasing:
                self._freer.gone(next(iter(disk.erasing)))
                continue
            extent = next(iter(disk.held.values()))
            self._lose_extent(extent)
            disk.let_go(extent)
        return budget

    def _lose_extent(self, extent: Extent) -> None:
        owner = extent.owner
        if isinstance(owner, Stored):
            name = extent.segment.node.name
            self._context.counters[accounting.lost_by(name)] += 1
            self._catalog.drop(owner, extent, Gone.LOST)
        elif isinstance(owner, Freeing):
            self._freer.gone(owner)


def _healthy(node: Node) -> NodeState:
    """Return the state of a node that nothing is wrong with."""
    return NodeState.LIVE if node.drain is None else node.drain.node_state


def _check(message: Register) -> None:
    """Check what a node says of itself.

    Raises:
        InvalidArgument: It cannot be.
    """
    if not message.name or not message.node_id:
        raise InvalidArgument("a node registers with a name and an identity")
    if not 1 <= len(message.segments) <= SEGMENTS_PER_NODE_MAX:
        raise InvalidArgument(
            f"a node has 1 to {SEGMENTS_PER_NODE_MAX} segments, not {len(message.segments)}"
        )
    if not 0 <= message.term < TERM_MAX:
        raise InvalidArgument(f"terms are 0 to {TERM_MAX - 1}, not {message.term}")
    if not 0 <= message.port < PORTS_MAX:
        raise InvalidArgument(f"a port is below {PORTS_MAX}, not {message.port}")
    if len({record.incarnation for record in message.segments}) != len(message.segments):
        raise InvalidArgument("two segments of a node have one incarnation")
    for record in message.segments:
        _check_segment(record)


def _check_segment(record: SegmentRecord) -> None:
    """Check what a node says of one segment, as ``_check``."""
    if not 0 < record.incarnation < INCARNATIONS_MAX or record.tier not in _TIERS:
        raise InvalidArgument(
            f"no segment has the incarnation {record.incarnation} and the tier {record.tier}"
        )
    if not 0 < record.bytes <= SEGMENT_BYTES_MAX or record.bytes % GRANULE_BYTES:
        raise InvalidArgument(
            f"a segment has a multiple of {GRANULE_BYTES} bytes up to {SEGMENT_BYTES_MAX}, not"
            f" {record.bytes}"
        )
