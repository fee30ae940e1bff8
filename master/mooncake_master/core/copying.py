"""Copies of extents: a node is asked to copy a replica to itself, and it becomes a further one.

Whoever wants a copy (a demotion, a promotion, a repair, a drain) calls ``Copier.copy`` and is told
how it ended. A copy is a write like any other: it has a number of its own (``Copy.attempt``), room
that nobody else gets, and a fence when it is given up (docs/adr/0036). While one runs its object is
not evicted; a removal or replacement ends it, and waits until the node has confirmed that.
"""

from __future__ import annotations

import enum
from collections import deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from mooncake_master.core import accounting
from mooncake_master.core.instructions import Instruct
from mooncake_master.core.nodes import Disk
from mooncake_master.core.placement import allocate
from mooncake_master.core.records import Copy, DiskExtent, Gone, Stored, wire_offset
from mooncake_store.errors import (
    DeadlineExceeded,
    ProtocolError,
    StaleExtent,
    StoreError,
    Unreachable,
)
from mooncake_store.limits import COPY_BYTES_PER_S_MIN, GRANULE_BYTES, MIB
from mooncake_store.types import term_of
from mooncake_store.wire.control import Copied, CopyExtents, CopyItem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mooncake_master.core.barriers import Barrier
    from mooncake_master.core.catalog import Catalog
    from mooncake_master.core.context import Context
    from mooncake_master.core.freeing import Freer
    from mooncake_master.core.nodes import Node
    from mooncake_master.core.records import Extent
    from mooncake_store.wire.control import CopyResult, Message

COPIES_MAX: Final = 64
"""Copies that one node is asked for at a time. Fewer leave it idle between two answers."""
GRANULES_MAX: Final = 64 * MIB // GRANULE_BYTES
"""Bytes that it is asked for at a time, unless a single copy is larger: what the slowest network
in use, 10 Gbit/s, moves in 50 ms."""
ITEMS_MAX: Final = 16
"""Copies in one message; it is answered when the last of them is done."""
LARGE_GRANULES: Final = COPY_BYTES_PER_S_MIN // GRANULE_BYTES
"""Copies from this size on, which may take a second longer than small ones, have messages of their
own."""
ANYWHERE: Final = -1
"""Offset of a copy for which its store finds the place, and of "wherever this version is"."""
LOCATIONS_MAX: Final = 1 << 32
"""Locations of a store lie below (docs/adr/0023)."""
PRESENT: Final = "present"
"""Code of a store that had the version already."""
COPY_S: Final = 10.0
"""Time after which a copy that was not answered is given up: the object stays protected meanwhile.
Nodes give up earlier by themselves, so this is for those that do not answer at all."""


AHEAD_S: Final = 0.1
"""How far copies may be ahead of the rate. Less than a few ticks of the master, and small objects
are copied one a tick, whatever the rate is; more, and clients meet bursts."""


SENTENCE_MAX: Final = 256
"""Characters of what a node says about a copy that are passed on."""


class Start(enum.Enum):
    """What became of the wish for a copy."""

    BEGUN = "begun"
    BUSY = "busy"
    """One of the two nodes moves as much as it may; later it can be had."""
    NO_ROOM = "no_room"
    """The target has no free extent of that size."""
    AWAY = "away"
    """One of the two nodes is not there, or what the target holds is not known yet."""


class Copier:
    """Has nodes copy extents, at most so much at a time.

    Attributes:
        said: While somebody is told of the end of a copy: what its node said about it.
    """

    def __init__(self, context: Context, catalog: Catalog, freer: Freer) -> None:
        self._context = context
        self._catalog = catalog
        self._freer = freer
        self._unsent: dict[Node | Disk, list[Copy]] = {}
        self._asked: dict[int, list[Copy]] = {}
        self._ends: list[tuple[float, int, Copy]] = []
        self._ended: deque[tuple[Copy, str]] = deque()
        self.said = ""
        catalog.end_copies = self.cancel

    @property
    def has_ended(self) -> bool:
        """Whether somebody has to be told that a copy is over."""
        return bool(self._ended)

    # --- beginning ------------------------------------------------------------------------------

    def copy(
        self, stored: Stored, source: Extent, target: Node, *, purpose: str,
        done: Callable[[str], None],
    ) -> Start:  # fmt: skip
        """Begin to make one more replica of an object in free memory of a node.

        Args:
            stored: The object; it is not evicted until the copy is over.
            source: Replica to copy.
            target: Node that takes it. Nothing is evicted for it.
            purpose: One word, the label under which it is counted.
            done: Told once, with "" where the replica is there and else with an error code, in a
                later step: everything may have changed by then, the object may be gone.

        Returns:
            Whether it was begun; ``done`` is called only then.
        """
        context = self._context
        origin = source.segment.node
        if not (source.segment.readable and origin.peer and target.peer):
            return Start.AWAY
        if not self._may_move(target, source.granules) or self._is_ahead(origin):
            return Start.BUSY
        copy = Copy(stored, source, source.segment, context.next_version(), purpose, done)
        extent = allocate(target, copy.granules, copy)
        if extent is None:
            return Start.NO_ROOM
        copy.extent, copy.segment = extent, extent.segment
        self._pace(target, origin, copy.granules)
        self._begin(copy, COPY_S)
        return Start.BEGUN

    def store(  # noqa: PLR0913 - options, given by name
        self, stored: Stored, source: Extent, disk: Disk, *, purpose: str, patience_s: float,
        done: Callable[[str], None], wanted: bool = False,
    ) -> Start:  # fmt: skip
        """Begin to make one more replica of an object on a disk, at the pace of who asks for it.

        Args:
            stored: As for ``copy``.
            source: Replica to copy.
            disk: Store that takes it.
            purpose: As for ``copy``.
            patience_s: Time after which a small one is given up; large ones have more.
            done: As for ``copy``.
            wanted: The store takes it whatever its own policy says.
        """
        if not (source.segment.readable and source.segment.node.peer and disk.peer):
            return Start.AWAY
        if not disk.listed and term_of(stored.version) < self._context.term:
            return Start.AWAY  # It may be there already: to give a copy up would erase that one.
        if any(freeing.version == stored.version for freeing in disk.erasing):
            return Start.BUSY  # An erasure that comes late would meet the new copy.
        attempt = self._context.next_version()
        copy = Copy(stored, source, disk, attempt, purpose, done)
        copy.wanted = wanted
        self._begin(copy, patience_s)
        return Start.BEGUN

    def _may_move(self, node: Node, granules: int) -> bool:
        """Return whether a node may take one more copy now."""
        if self._is_ahead(node) or len(node.copying) >= COPIES_MAX:
            return False
        return not node.copying or node.copying_granules + granules <= GRANULES_MAX

    def _is_ahead(self, node: Node) -> bool:
        """Return whether a node has moved as much as it may for now."""
        return node.copies_from_s > self._context.now_s + AHEAD_S

    def _pace(self, target: Node, origin: Node, granules: int) -> None:
        """Charge both nodes for what they will move: neither gives more than the rate to copies."""
        context = self._context
        seconds = granules * GRANULE_BYTES / context.config.copy_rate
        for node in {target, origin}:
            node.copies_from_s = max(node.copies_from_s, context.now_s) + seconds

    def _begin(self, copy: Copy, patience_s: float) -> None:
        context, box = self._context, copy.segment.box
        extra_s = copy.granules * GRANULE_BYTES / COPY_BYTES_PER_S_MIN
        copy.until_s = context.now_s + patience_s + extra_s
        box.copying[copy] = None
        box.copying_granules += copy.granules
        context.copying.setdefault(copy.stored, []).append(copy)
        heappush(self._ends, (copy.until_s, copy.attempt, copy))
        self._unsent.setdefault(box, []).append(copy)

    def flush(self) -> None:
        """Send what has gathered."""
        if not self._unsent:
            return
        context = self._context
        for box, copies in self._unsent.items():
            ready = []
            for copy in copies:
                if copy.over:
                    continue
                if not box.peer or copy.source.owner is not copy.stored:
                    self._fail(copy, StaleExtent.code)
                    continue
                copy.sent = True
                ready.append(copy)
            for batch in _batches(ready):
                token = context.next_token()
                self._asked[token] = batch
                message = CopyExtents(context.term, [_item(copy) for copy in batch])
                context.out.append(Instruct(box.peer, token, message))
        self._unsent.clear()

    # --- ending ---------------------------------------------------------------------------------

    def answered(self, token: int, answer: Message | StoreError) -> bool:
        """Take a node's answer; return whether the token was one of ours."""
        batch = self._asked.pop(token, None)
        if batch is None:
            return False
        if isinstance(answer, Copied) and len(answer.items) == len(batch):
            for copy, result in zip(batch, answer.items, strict=True):
                if not copy.over:
                    copy.said = result.message[:SENTENCE_MAX]
                    self._take(copy, result)
                elif isinstance(copy.segment, Disk) and result.offset >= 0:
                    self._undo(copy)
            return True
        code = answer.code if isinstance(answer, StoreError) else ProtocolError.code
        for copy in batch:
            if not copy.over:
                self._fail(copy, code)
        return True

    def disconnected(self, node: Node) -> None:
        """What a node that is away was asked for is over; what landed is erased at its return."""
        for box in node.boxes:
            for copy in list(box.copying):
                self._fail(copy, Unreachable.code)
        for token in [t for t, batch in self._asked.items() if batch[0].node is node]:
            del self._asked[token]

    def expire(self) -> None:
        """Give up what was not answered."""
        ends, now_s = self._ends, self._context.now_s
        while ends and (ends[0][2].over or ends[0][0] <= now_s):
            copy = heappop(ends)[2]
            if not copy.over:
                self._fail(copy, DeadlineExceeded.code)

    def cancel(self, stored: Stored, barrier: Barrier | None) -> None:
        """End the copies of a version that goes; a reply waits until none can land any more."""
        for copy in list(self._context.copying.get(stored, ())):
            self._fail(copy, StaleExtent.code, barrier)

    def settle(self) -> None:
        """Tell who wanted the copies that are over."""
        while self._ended:
            copy, code = self._ended.popleft()
            self.said = copy.said
            copy.done(code)

    def _take(self, copy: Copy, result: CopyResult) -> None:
        """Make a copy that landed a replica, if its object is still there."""
        segment, stored, extent = copy.segment, copy.stored, copy.extent
        assert stored.version == copy.version  # else it had been cancelled
        if isinstance(segment, Disk):
            self._take_stored(copy, segment, result)
            return
        if result.code or segment.lost or stored.home.cleared:
            self._fail(copy, result.code or StaleExtent.code)
            return
        assert extent is not None
        segment.copies[extent.offset] = copy.attempt
        if stored.pin_s:
            segment.count_pinned(stored.home, extent.granules)
        self._catalog.attach(stored, [extent])
        self._context.counters[accounting.copied_bytes(copy.purpose)] += (
            copy.granules * GRANULE_BYTES
        )
        self._end(copy, "")

    def _take_stored(self, copy: Copy, disk: Disk, result: CopyResult) -> None:
        """Make what a store has taken a replica."""
        location, stored = result.offset, copy.stored
        if not 0 <= location < LOCATIONS_MAX:
            self._end(copy, result.code or ProtocolError.code)
            return
        if disk.lost or copy.vanished or stored.home.cleared:
            self._fail(copy, StaleExtent.code)
            return
        known = disk.held.get(location)
        if known is not None and known.owner is not stored:  # That has left the row before.
            known.vanished = True
            assert isinstance(known.owner, Stored)
            self._catalog.drop(known.owner, known, Gone.EVICTED)
        if known is None or known.owner is not stored:
            extent = DiskExtent(disk, location, copy.granules, stored)
            self._catalog.attach_disk(stored, extent)
            if result.code != PRESENT:
                counters = self._context.counters
                counters[accounting.copied_bytes(copy.purpose)] += copy.granules * GRANULE_BYTES
        self._end(copy, "")

    def _undo(self, copy: Copy) -> None:
        """Have a store forget what it took after its copy was given up."""
        stored = copy.stored
        if not self._is_wanted_there(copy):
            extent = DiskExtent(copy.segment, ANYWHERE, copy.granules, None)
            self._freer.free(extent, copy.version, None, stored.home, stored.key)

    def _is_wanted_there(self, copy: Copy) -> bool:
        """Return whether a store has, or is about to get, a version by another copy than this one.

        Stores know versions, not copies: to free this one there would be to free that.
        """
        stored, disk = copy.stored, copy.segment
        return stored.version == copy.version and (
            any(extent.segment is disk for extent in stored.extents())
            or any(
                other.segment is disk and other is not copy
                for other in self._context.copying.get(stored, ())
            )
        )

    def _fail(self, copy: Copy, code: str, barrier: Barrier | None = None) -> None:
        """End a copy without a replica; its room returns when nothing can land there any more."""
        extent, stored = copy.extent, copy.stored
        if extent is None:
            if copy.sent and not self._is_wanted_there(copy):
                extent = DiskExtent(copy.segment, ANYWHERE, copy.granules, None)
                self._freer.free(extent, copy.version, barrier, stored.home, stored.key)
        elif copy.sent:
            self._freer.free(extent, copy.attempt, barrier, stored.home, stored.key)
        else:
            copy.segment.space.release(extent)
            self._freer.room_returned = True
        self._end(copy, code)

    def _end(self, copy: Copy, code: str) -> None:
        context, box = self._context, copy.segment.box
        copy.over = True
        del box.copying[copy]
        box.copying_granules -= copy.granules
        others = context.copying[copy.stored]
        others.remove(copy)
        if not others:
            del context.copying[copy.stored]
        context.counters[accounting.copies(copy.purpose, code or "done")] += 1
        self._ended.append((copy, code))


def _batches(copies: list[Copy]) -> Iterator[list[Copy]]:
    """Yield the copies of each message: small ones are not answered as late as large ones."""
    small = [copy for copy in copies if copy.granules < LARGE_GRANULES]
    for at in range(0, len(small), ITEMS_MAX):
        yield small[at : at + ITEMS_MAX]
    for copy in copies:
        if copy.granules >= LARGE_GRANULES:
            yield [copy]


def _item(copy: Copy) -> CopyItem:
    source, extent = copy.source, copy.extent
    origin = source.segment.node
    said = origin.register
    is_here = origin is copy.node
    return CopyItem(
        source_node="" if is_here else said.node_id,
        source_host="" if is_here else said.host,
        source_port=0 if is_here else said.port,
        source_incarnation=source.segment.incarnation,
        source_offset=wire_offset(source),
        source_attempt=source.segment.number(source, copy.version),
        version=copy.version,
        bytes=copy.granules * GRANULE_BYTES,
        incarnation=copy.segment.incarnation,
        offset=ANYWHERE if extent is None else wire_offset(extent),
        attempt=copy.attempt,
        wanted=copy.wanted,
    )
