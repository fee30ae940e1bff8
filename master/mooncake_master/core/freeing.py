"""Extents on their way back to the allocator, and the replies that wait for it.

An extent is reused only after its node confirmed that nothing of it can be read or written any
more (docs/adr/0001, 0002). While the node is away, what it has to erase waits for its return, and
is noted where it outlives this master (docs/adr/0034).
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from mooncake_master.core import accounting
from mooncake_master.core.instructions import Fail, Instruct, Reply
from mooncake_master.core.nodes import Disk
from mooncake_master.core.parking import answer_by
from mooncake_master.core.records import DiskExtent, Freeing, wire_offset
from mooncake_store.errors import DeadlineExceeded
from mooncake_store.limits import GRANULE_BYTES
from mooncake_store.wire.control import FreeExtents, FreeItem, SetEpochs

if TYPE_CHECKING:
    from mooncake_master.core.barriers import Barrier
    from mooncake_master.core.context import Context
    from mooncake_master.core.nodes import Node, Segment
    from mooncake_master.core.notes import Notes
    from mooncake_master.core.records import Extent, Generation, Window
    from mooncake_store.wire.control import Message

RETRY_S = 0.02
"""First pause after a node said "not yet", or failed; doubled each time."""
RETRY_S_MAX = 2.0
DOUBLINGS_MAX = 7
NAMES_SHOWN = 5
"""Nodes that one message names."""


class Freer:
    """Tells nodes what to erase and takes back what they have erased.

    Attributes:
        room_returned: Something became free since this was last set to False.
    """

    def __init__(self, context: Context, notes: Notes) -> None:
        self._context = context
        self._notes = notes
        self._by_name: dict[tuple[int, str], dict[Freeing, None]] = {}
        self._dirty: dict[Node | Disk, None] = {}
        self._later: list[tuple[float, int, Freeing]] = []
        self._later_count = 0
        self._barriers: dict[Barrier, None] = {}
        self._epochs: dict[int, tuple[Node, Barrier]] = {}
        self.room_returned = False

    def ended(self) -> None:
        """A version is gone for good, also for a master that comes after this one."""
        self._notes.ended()

    def free(
        self,
        extent: Extent,
        version: int,
        barrier: Barrier | None,
        home: Generation | None,
        key: str,
    ) -> None:
        """Have an extent of an object erased that a reader or a writer may know of.

        It must not be in an order of eviction any more. Where a copy lies there the copy's number
        takes the place of ``version``.
        """
        segment = extent.segment
        if segment.copies:
            version = segment.copies.pop(extent.offset, version)
        if isinstance(extent, DiskExtent) and extent.vanished:
            return
        freeing = Freeing(extent, version, barrier)
        if self._context.claimed:
            freeing.window = self._context.claimed.pop(extent, None)
        extent.owner = freeing
        extent.twin = None
        segment.freeing += extent.granules
        if segment.lost:
            return  # as good as erased
        if isinstance(segment, Disk):
            segment.erasing[freeing] = None
        box = segment.box
        if barrier is not None:
            _wait_for(barrier, freeing)
        self._name(freeing, home, key)
        box.outbox.append(freeing)
        if box.peer:
            self._dirty[box] = None
        else:
            self._notes.write((freeing,))

    def _name(self, freeing: Freeing, home: Generation | None, key: str) -> None:
        """Make it known whose extent is being erased."""
        if home is None or home.cleared:
            freeing.needless = True
        else:
            name = freeing.name = (home.space.slot, key)
            others = self._by_name.get(name)
            if others is None:
                self._by_name[name] = {freeing: None}
            else:
                others[freeing] = None

    def follow(self, home: Generation, key: str, barrier: Barrier) -> None:
        """Have a reply wait for what is being erased of a key already."""
        if not self._by_name:
            return
        for freeing in self._by_name.get((home.space.slot, key), ()):
            if freeing.barrier is not barrier:
                if freeing.barrier is not None:
                    barrier.lease_s = max(barrier.lease_s, freeing.barrier.lease_s)
                freeing.followers = [*(freeing.followers or ()), barrier]
                _wait_for(barrier, freeing)

    def flush(self) -> None:
        """Send what has gathered, one message a node or few."""
        if not self._dirty:
            return
        context = self._context
        size = context.config.free_batch
        for box in self._dirty:
            while box.peer and box.outbox:
                batch = [box.outbox.popleft() for _ in range(min(size, len(box.outbox)))]
                token = context.next_token()
                box.unanswered[token] = batch
                items = [_item(freeing) for freeing in batch]
                context.out.append(Instruct(box.peer, token, FreeExtents(context.term, items)))
        self._dirty.clear()

    def answered(self, node: Node, token: int, freed: bytes | None) -> bool:
        """Take a node's answer, None for a failure; return whether the token was one of ours."""
        batch = None
        for box in node.boxes:
            batch = batch or box.unanswered.pop(token, None)
        if batch is None:
            return self._epochs_answered(token, done=freed is not None)
        if freed is None or len(freed) != len(batch):
            freed = bytes(len(batch))
        self._context.counters[accounting.FREED] += freed.count(1)
        for freeing, done in zip(batch, freed, strict=True):
            if freeing.extent.segment.lost:
                continue
            if done == 1:
                self._settle(freeing)
            else:
                self._put_off(freeing)
        return True

    @property
    def is_erasing(self) -> bool:
        """Whether some node has not confirmed yet what it has to erase of an object."""
        return bool(self._by_name)

    def retry(self) -> None:
        """Ask again where the time has come."""
        now_s = self._context.now_s
        while self._later and self._later[0][0] <= now_s:
            freeing = heappop(self._later)[2]
            if not freeing.extent.segment.lost:
                box = freeing.extent.segment.box
                box.outbox.append(freeing)
                self._dirty[box] = None

    def disconnected(self, node: Node) -> None:
        """Keep what a node did not answer for its return."""
        for box in node.boxes:
            for batch in box.unanswered.values():
                box.outbox.extend(batch)
            box.unanswered.clear()
            self._notes.write(box.outbox)
        self._notes.write(
            freeing for _, _, freeing in self._later if freeing.extent.segment.node is node
        )
        for token in [t for t, (owner, _) in self._epochs.items() if owner is node]:
            del self._epochs[token]

    def connected(self, node: Node) -> None:
        """A node is there again: tell it what it missed."""
        for box in node.boxes:
            self._dirty[box] = None

    def gone(self, freeing: Freeing) -> None:
        """The memory of an extent is gone, which is as good as erased."""
        extent = freeing.extent
        extent.segment.freeing -= extent.granules
        self._over(freeing)

    def forget_segment(self, segment: Segment) -> None:
        """Drop what was to be sent about a segment whose memory is gone."""
        box = segment.box
        kept = [freeing for freeing in box.outbox if freeing.extent.segment is not segment]
        box.outbox.clear()
        box.outbox.extend(kept)

    def cancel(self, window: Window) -> None:
        """Give a window up: what is empty in it is free, the rest becomes so when confirmed."""
        space = window.segment.space
        if window.ready is not None:
            space.release(window.ready)
            window.ready = None
            self.room_returned = True
            return
        claimed = self._context.claimed
        extent = window.first
        while extent is not space.edge and extent.offset < window.end:
            following = extent.after
            owner = extent.owner
            if owner is window:
                space.release(extent)
            elif isinstance(owner, Freeing):
                owner.window = None
            elif claimed.get(extent) is window:
                del claimed[extent]
            extent = following
        self.room_returned = True

    # --- replies that wait ----------------------------------------------------------------------

    def announce_epochs(self, epochs: dict[int, int], barrier: Barrier | None) -> None:
        """Tell all connected nodes the epochs; a barrier waits for them.

        Of nodes that are away whoever has a lease may still read, until it ends.
        """
        context = self._context
        for node in context.cluster.nodes.values():
            if node.peer:
                token = context.next_token()
                if barrier is not None:
                    barrier.waiting += 1
                    barrier.asked = True
                    self._epochs[token] = (node, barrier)
                context.out.append(Instruct(node.peer, token, SetEpochs(context.term, epochs)))
            elif barrier is not None and barrier.lease_s > context.now_s:
                barrier.waiting += 1

    def seal(self, barrier: Barrier, message: Message, *, patience_s: float | None = None) -> None:
        """Reply as soon as nobody can read the old value; its confirmations are all asked for.

        Args:
            barrier: What the reply waits for.
            message: The reply.
            patience_s: Longest wait for connected nodes where nothing old is to be unreadable;
                None: the configured one.
        """
        if barrier.waiting or barrier.unwitnessed or barrier.unwritten or self._doubts(barrier):
            now_s = self._context.now_s
            if patience_s is None:
                patience_s = self._context.config.acknowledge_grace_s
            grace_s = patience_s if barrier.asked else 0.0
            barrier.ready_s = max(barrier.lease_s, now_s + grace_s)
            if barrier.ready_s > now_s or barrier.unwritten or not self._is_noted(barrier):
                barrier.deadline_s = answer_by(barrier.deadline_s, now_s)
                barrier.message = message
                self._barriers[barrier] = None
                return
        self._context.out.append(Reply(barrier.peer, barrier.request_id, message))

    def expire_barriers(self) -> None:
        """Answer what need not or cannot wait any longer."""
        now_s = self._context.now_s
        for barrier in [b for b in self._barriers if b.ready_s <= now_s or b.deadline_s <= now_s]:
            if barrier.ready_s <= now_s and not barrier.unwritten and self._is_noted(barrier):
                del self._barriers[barrier]
                assert barrier.message is not None
                self._context.out.append(Reply(barrier.peer, barrier.request_id, barrier.message))
            elif barrier.deadline_s <= now_s:
                del self._barriers[barrier]
                error = DeadlineExceeded(self._excuse(barrier))
                self._context.out.append(Fail(barrier.peer, barrier.request_id, error))

    def _is_noted(self, barrier: Barrier) -> bool:
        """Return whether what is missing survives this master; have it noted where it does not."""
        notes = self._notes
        missing = [freeing for freeing in barrier.missing if not notes.is_kept(freeing)]
        if missing:
            notes.write(missing)
        return (
            not barrier.unwitnessed
            and all(map(notes.is_kept, missing))
            and not self._doubts(barrier)
        )

    def _doubts(self, barrier: Barrier) -> bool:
        """Return whether the next master could take something for readable that is removed."""
        return barrier.removes and not self._notes.doubts_are_kept

    def _excuse(self, barrier: Barrier) -> str:
        """Say whose confirmation is missing."""
        if barrier.unwritten:
            return f"{barrier.unwritten} objects are stored, but on no disk yet"
        names = {freeing.extent.segment.node.name for freeing in barrier.missing}
        if barrier.unwitnessed:
            names |= {node.name for node in self._context.cluster.nodes.values()}
        if not names and not barrier.strangers:
            return (
                "the change stands, but no node is there that could remember it should this master"
                " end, and there is no --data-dir"
            )
        shown = ", ".join(sorted(names)[:NAMES_SHOWN])
        if len(names) > NAMES_SHOWN:
            shown += ", ..."
        count = barrier.waiting - barrier.strangers
        text = f"{count} confirmations of nodes are missing ({shown}); the change stands"
        if barrier.strangers:
            text = (
                "readers may still use what an earlier master told them of nodes that are not back;"
                f" {text}"
            )
        if barrier.ready_s <= self._context.now_s:
            text += (
                ", but nothing could remember it for them should this master end before they are"
                " back: no other node is there, and no --data-dir"
            )
        return text

    def forget_peer(self, peer: int) -> None:
        """Drop the replies to a connection that is gone."""
        for barrier in [b for b in self._barriers if b.peer == peer]:
            del self._barriers[barrier]

    # --- helpers --------------------------------------------------------------------------------

    def _over(self, freeing: Freeing) -> None:
        """Let those go on who wait for an extent."""
        freeing.over = True
        segment = freeing.extent.segment
        if isinstance(segment, Disk):
            segment.erasing.pop(freeing, None)
        name = freeing.name
        if name is not None:
            others = self._by_name[name]
            del others[freeing]
            if not others:
                del self._by_name[name]
        for barrier in (freeing.barrier, *(freeing.followers or ())):
            if barrier is not None:
                barrier.missing.pop(freeing, None)
                self._confirm(barrier)

    def _confirm(self, barrier: Barrier) -> None:
        barrier.waiting -= 1
        self._release(barrier)

    def written(self, barrier: Barrier) -> None:
        """One of the objects that a reply waits for is on a disk, or will never be."""
        barrier.unwritten -= 1
        self._release(barrier)

    def _release(self, barrier: Barrier) -> None:
        """Reply if nothing is waited for any more; before it is sealed nobody replies here."""
        if (
            not barrier.waiting
            and not barrier.unwitnessed
            and not barrier.unwritten
            and not self._doubts(barrier)
            and self._barriers.pop(barrier, self) is None
        ):
            assert barrier.message is not None
            self._context.out.append(Reply(barrier.peer, barrier.request_id, barrier.message))

    def _epochs_answered(self, token: int, *, done: bool) -> bool:
        waiting = self._epochs.pop(token, None)
        if waiting is not None and done:
            waiting[1].unwitnessed = False
            self._confirm(waiting[1])
        return waiting is not None

    def _settle(self, freeing: Freeing) -> None:
        """Give an erased extent to whom it is for."""
        extent = freeing.extent
        segment = extent.segment
        segment.freeing -= extent.granules
        self._notes.settled(freeing)
        self._over(freeing)
        if isinstance(segment, Disk):
            return
        if freeing.window is None:
            segment.space.release(extent)
        else:
            _absorb(freeing.window, extent)
        self.room_returned = True

    def _put_off(self, freeing: Freeing) -> None:
        self._context.counters[accounting.NOT_YET] += 1
        pause_s = min(RETRY_S * 2 ** min(freeing.tries, DOUBLINGS_MAX), RETRY_S_MAX)
        freeing.tries += 1
        self._later_count += 1
        heappush(self._later, (self._context.now_s + pause_s, self._later_count, freeing))


def _wait_for(barrier: Barrier, freeing: Freeing) -> None:
    barrier.waiting += 1
    barrier.asked |= bool(freeing.extent.segment.box.peer)
    barrier.missing[freeing] = None


def _item(freeing: Freeing) -> FreeItem:
    extent = freeing.extent
    return FreeItem(
        extent.segment.incarnation,
        wire_offset(extent),
        extent.granules * GRANULE_BYTES,
        freeing.version,
    )


def _absorb(window: Window, extent: Extent) -> None:
    """Make an erased extent a part of its window; the last one makes the window ready."""
    space = window.segment.space
    extent.owner = window
    before, after = extent.before, extent.after
    if after.owner is window:
        space.join(extent, after)
    if before.owner is window:
        space.join(before, extent)
    window.missing -= 1
    if not window.missing:
        first = window.first
        assert first.offset + first.granules == window.end
        space.trim(first, window.granules)
        window.ready = first
