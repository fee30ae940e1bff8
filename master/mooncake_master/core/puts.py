"""Writes: room for attempts, their commit, abort and expiry.

A `PutStart` passes three stages, and holds nothing before it has reached the last:

1. It waits for other writers of its keys, all at once (first writer wins; a replace waits).
2. Each item is judged: refused, there already, or to be written.
3. Room is taken. A batch that finds none free has windows emptied; one for which not even windows
   can be had stands in a queue, and only the first of the queue holds a part of its room. So two
   batches never wait for each other, and large ones are not overtaken for ever.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from mooncake_master.core import accounting
from mooncake_master.core.barriers import Barrier
from mooncake_master.core.commits import Commits
from mooncake_master.core.instructions import Fail, Reply
from mooncake_master.core.parking import answer_by
from mooncake_master.core.records import FOREVER, NEVER, Attempt, Order, Stored, set_group
from mooncake_store.errors import NoSpace, StaleEpoch
from mooncake_store.limits import GRANULE_BYTES, SEGMENT_BYTES_MAX
from mooncake_store.types import Pin
from mooncake_store.wire.control import PutExists, PutGrant, PutStarted, Refusal, Replica

if TYPE_CHECKING:
    from mooncake_master.core.barriers import Request
    from mooncake_master.core.catalog import Catalog
    from mooncake_master.core.context import Context
    from mooncake_master.core.freeing import Freer
    from mooncake_master.core.judging import Judge, Verdicts
    from mooncake_master.core.nodes import Node, Segment
    from mooncake_master.core.parking import Parking
    from mooncake_master.core.placement import Choice, Placement
    from mooncake_master.core.records import Generation, Window
    from mooncake_store.wire.control import PutStart

BATCH_WAIT_SHARE = 0.5
"""Share of its time that a batch waits for other writers of a few of its keys."""
PRESSURE_S = 0.01
"""Time for which an estimate of the pressure is used again."""
LOOK_S = 0.25
"""Time between two examinations whether a batch that finds no room can ever find it."""
NAMES_SHOWN = 5
"""Nodes that one message names."""
WALK_MAX = 20_000
"""Extents that are looked at to find out whether pins leave no room at all: 1 ms."""


class Batch:
    """A `PutStart` in its last stage.

    Attributes:
        request: The request.
        message: Its message.
        home: Generation it writes to.
        results: Answer to each item, None where it still needs room.
        attempts: {index: attempt} of the items that need room, or have it.
        windows: {index: windows} of attempts that have, or will have, all their room.
        choice: Nodes it chooses from.
        until_s: When it is answered with what it has.
        look_s: When it is next examined whether it waits in vain.
        hopeless_granules: Size for which it does.
        kept: Objects that the answer says are there, with the leases they had: until then none of
            them may go to make room for the others.
    """

    __slots__ = (
        "attempts", "choice", "home", "hopeless_granules", "kept", "look_s", "message",
        "request", "results", "until_s", "windows",
    )  # fmt: skip

    def __init__(self, request: Request, message: PutStart, home: Generation) -> None:
        self.request = request
        self.message = message
        self.home = home
        self.results: list[PutGrant | PutExists | Refusal | None] = []
        self.attempts: dict[int, Attempt] = {}
        self.windows: dict[int, list[Window]] = {}
        self.choice: Choice | None = None
        self.until_s = 0.0
        self.look_s = 0.0
        self.hopeless_granules = SEGMENT_BYTES_MAX
        self.kept: list[tuple[Stored, float]] = []


class Puts:
    """All writes that are not over.

    Attributes:
        commits: The attempts that were granted.
    """

    def __init__(
        self, context: Context, catalog: Catalog, freer: Freer, placement: Placement,
        judge: Judge, parking: Parking,
    ) -> None:  # fmt: skip
        self._context = context
        self._catalog = catalog
        self._freer = freer
        self._placement = placement
        self._parking = parking
        self._judge = judge
        self._queue: deque[Batch] = deque()
        self._emptying: dict[Batch, None] = {}
        self._pressure = 0.0
        self._pressure_until_s = 0.0
        self.commits = Commits(context, catalog, freer, parking, self.pressure)

    def __len__(self) -> int:
        return len(self._queue) + len(self._emptying)

    # --- starting -------------------------------------------------------------------------------

    def start(self, request: Request, message: PutStart) -> None:
        """Handle a `PutStart`."""
        self._context.callers[request.peer] = self._context.now_s
        home = self._catalog.generation(message.slot, message.epoch)
        self._judge.check(message)
        if not request.final and self._waits(request, message, home):
            return
        batch = Batch(request, message, home)
        verdicts = self._judge.judge(message, home)
        if message.together:
            verdicts = _whole_set(verdicts)
        self._begin(batch, verdicts)
        self._take_room(batch)

    def _waits(self, request: Request, message: PutStart, home: Generation) -> bool:
        """Park the request if somebody else writes one of its keys."""
        writing = home.writing
        items = message.items
        if writing:
            attempts = {
                id(a): a for a in (writing.get(item.key) for item in items) if a is not None
            }
            if attempts:
                until_s = answer_by(request.deadline_s, self._context.now_s)
                if len(items) > 1:
                    now_s = self._context.now_s
                    until_s = now_s + BATCH_WAIT_SHARE * max(0.0, until_s - now_s)
                self._parking.wait_for_writes(request, attempts.values(), until_s)
                return True
        if self._context.recovering and any(item.expected_version >= 0 for item in items):
            self._parking.wait_for_recovery(request)
            return True
        return False

    def _begin(self, batch: Batch, verdicts: Verdicts) -> None:
        """Make an attempt for each item that is to be written."""
        context, message, home = self._context, batch.message, batch.home
        pin_s = NEVER
        if message.pin:
            pin_s = FOREVER if message.pin == Pin.HARD else context.now_s + message.pin_s
        order = Order(batch.request.peer, pin_s, message.replicas)
        order.durable = message.durable
        order.replaces = message.replace
        results = batch.results
        for item, verdict in zip(message.items, verdicts, strict=True):
            if not isinstance(verdict, int):
                results.append(verdict)
                continue
            attempt = Attempt(home, item, order, context.next_version(), verdict)
            if message.together and not order.set_id:
                order.set_id = attempt.version
            group = item.group or (set_group(order.set_id) if message.together else "")
            if group:
                attempt.group = self._catalog.join_group(home, group)
            home.writing[item.key] = attempt
            batch.attempts[len(results)] = attempt
            results.append(None)
        if len(batch.attempts) > 1 and message.together:
            order.set_count = len(batch.attempts)
        else:
            order.set_id = 0

    # --- room -----------------------------------------------------------------------------------

    def _take_room(self, batch: Batch) -> None:
        """Give a new batch room, or let it wait."""
        batch.choice = self._placement.choice(batch.message)
        batch.until_s = answer_by(batch.request.deadline_s, self._context.now_s)
        if len(batch.attempts) < len(batch.results):
            _keep_existing(batch)
        if self._reserve(batch, evict=not self._queue):
            self._grant_or_wait(batch)
            return
        if batch.until_s <= self._context.now_s:
            self._give_up(batch)
            return
        if self._queue:
            self._give_back(batch)
        self._queue.append(batch)

    def _reserve(self, batch: Batch, *, evict: bool) -> bool:
        """Take room for the attempts that have none; return whether all have."""
        assert batch.choice is not None
        place = self._placement.place
        windows = batch.windows
        for index, attempt in list(batch.attempts.items()):
            if index in windows:
                continue
            if attempt.granules >= batch.hopeless_granules:
                self._refuse(batch, index)
                continue
            opened = place(batch.choice, attempt, evict=evict)
            if opened is not None:
                windows[index] = opened
            elif self._hopeless(batch, attempt.granules):
                self._refuse(batch, index)
            else:
                return False
        return True

    def _grant_or_wait(self, batch: Batch) -> None:
        if any(batch.windows.values()):
            self._emptying[batch] = None
            self._freer.room_returned = True
        else:
            self._grant(batch)

    def pump(self) -> None:
        """Go on with waiting batches: something became free, ended, or time has passed."""
        if self._emptying:
            self._pump_emptying()
        queue = self._queue
        while queue:
            batch = queue[0]
            if batch.home.cleared:
                queue.popleft()
                self._fail(batch)
                continue
            batch.choice = self._placement.choice(batch.message)
            if not self._reserve(batch, evict=True):
                if batch.until_s > self._context.now_s:
                    break
                queue.popleft()
                self._give_up(batch)
                continue
            queue.popleft()
            self._grant_or_wait(batch)

    def _pump_emptying(self) -> None:
        now_s = self._context.now_s
        for batch in list(self._emptying):
            if batch.home.cleared:
                del self._emptying[batch]
                self._fail(batch)
            elif self._lost_windows(batch):
                del self._emptying[batch]
                self._queue.appendleft(batch)
            elif not self._waits_for_windows(batch) or self._finds_room(batch):
                del self._emptying[batch]
                self._grant(batch)
            elif batch.until_s <= now_s:
                del self._emptying[batch]
                self._give_up(batch)

    def _waits_for_windows(self, batch: Batch) -> bool:
        """Take over what is ready; return whether something is not."""
        waiting = [index for index in batch.windows if not _settled(batch, index)]
        return bool(waiting)

    def _finds_room(self, batch: Batch) -> bool:
        """Use what became free elsewhere meanwhile; return whether nothing is missing any more.

        Else a put would wait for its own windows at the end of a disk's queue, while the room that
        the disk makes before lies idle, and so would the disk afterwards.
        """
        for index, windows in batch.windows.items():
            while windows:
                if not self._placement.swap(batch.attempts[index], windows[-1]):
                    return False
                windows.pop()
        return True

    def _lost_windows(self, batch: Batch) -> bool:
        """Give back room whose node went away while it was emptied; return whether there is any."""
        lost = [
            index
            for index, windows in batch.windows.items()
            if any(not window.segment.allocating for window in windows)
        ]
        for index in lost:
            self._placement.give_back(batch.attempts[index], batch.windows.pop(index))
        return bool(lost)

    def expire(self) -> None:
        """Answer batches behind the first of the queue whose time is over."""
        now_s = self._context.now_s
        for batch in [b for b in self._queue if b.until_s <= now_s]:
            self._queue.remove(batch)
            self._give_up(batch)

    def writes_to(self, node: Node) -> bool:
        """Return whether an attempt has room on a node, or waits for some that is emptied there."""
        waiting = (*self._queue, *self._emptying)
        if any(w.segment.node is node for b in waiting for ws in b.windows.values() for w in ws):
            return True
        attempts = [attempt for batch in waiting for attempt in batch.attempts.values()]
        return any(
            extent.segment.node is node
            for attempt in (*attempts, *self.commits.attempts())
            for extent in attempt.extents
        )

    def forget_peer(self, peer: int) -> None:
        """End what a connection that is gone was writing, or waited to write."""
        for batch in [b for b in (*self._queue, *self._emptying) if b.request.peer == peer]:
            if batch in self._emptying:
                del self._emptying[batch]
            else:
                self._queue.remove(batch)
            self._drop(batch)
        self.commits.forget_peer(peer)

    # --- answers --------------------------------------------------------------------------------

    def _grant(self, batch: Batch) -> None:
        """Answer a batch; its attempts' time begins now."""
        _let_go(batch)
        context = self._context
        message = batch.message
        wall_s = context.now_s + message.pin_s + context.wall_offset_s
        pin_ends_s = wall_s if message.pin == Pin.SOFT else 0.0
        results = batch.results
        self._placement.relieve(batch.attempts.values())
        for index, attempt in batch.attempts.items():
            self.commits.grant(attempt)
            order = attempt.order
            results[index] = PutGrant(
                attempt.version, _replicas(attempt), order.set_id, order.set_count, pin_ends_s
            )
        done = [result for result in results if result is not None]
        assert len(done) == len(results)
        news = context.cluster.news(message.membership)
        reply = PutStarted(done, self.pressure(), news)
        request = batch.request
        if not message.durable:
            context.out.append(Reply(request.peer, request.request_id, reply))
            return
        barrier = Barrier(request.peer, request.request_id, request.deadline_s)
        for at, result in enumerate(done):
            stored = batch.home.objects.get(message.items[at].key)
            if isinstance(result, PutExists) and stored is not None:
                self.commits.ensure_durable(stored, barrier, partial(done.__setitem__, at))
        self._freer.seal(barrier, reply)

    def _give_up(self, batch: Batch) -> None:
        """Answer a batch with the room it has; the rest is refused."""
        for index in list(batch.attempts):
            if index not in batch.windows or not _settled(batch, index):
                self._refuse(batch, index)
        refusal = next((r for r in batch.results if isinstance(r, Refusal)), None)
        if batch.message.together and refusal is not None:
            for index in list(batch.attempts):
                self._refuse(batch, index, refusal)
        self._grant(batch)

    def _refuse(self, batch: Batch, index: int, refusal: Refusal | None = None) -> None:
        """Refuse one item, for lack of room or because another one of its set was."""
        attempt = batch.attempts.pop(index)
        self._placement.give_back(attempt, batch.windows.pop(index, []))
        self._end(attempt)
        if refusal is None:
            error = self._no_space(attempt.granules)
            refusal = Refusal(error.code, str(error))
        self._context.counters[accounting.refused(refusal.code)] += 1
        batch.results[index] = refusal

    def _no_space(self, granules: int) -> NoSpace:
        cluster = self._context.cluster
        wanted = granules * GRANULE_BYTES
        if not cluster.targets:
            why = "no storage node is there to take them"
            drained = [node.name for node in cluster.nodes.values() if node.drain is not None]
            if drained:
                why += f" ({', '.join(drained[:NAMES_SHOWN])} drained)"
            return NoSpace(f"no room for {wanted} bytes: {why}")
        return NoSpace(
            f"no room for {wanted} bytes: of {cluster.pool_granules() * GRANULE_BYTES} in the pool"
            f" {cluster.pinned_granules() * GRANULE_BYTES} are pinned, the rest is leased or being"
            " written"
        )

    def _fail(self, batch: Batch) -> None:
        self._drop(batch)
        error = StaleEpoch(f"namespace {batch.home.space.name!r} was cleared meanwhile")
        self._context.counters[accounting.refused(error.code)] += 1
        self._context.out.append(Fail(batch.request.peer, batch.request.request_id, error))

    def _drop(self, batch: Batch) -> None:
        """End the attempts of a batch that nobody was told of."""
        _let_go(batch)
        self._give_back(batch)
        for attempt in batch.attempts.values():
            self._end(attempt)

    def _give_back(self, batch: Batch) -> None:
        for index, attempt in batch.attempts.items():
            self._placement.give_back(attempt, batch.windows.pop(index, []))

    def _end(self, attempt: Attempt) -> None:
        home = attempt.home
        home.writing.pop(attempt.item.key, None)
        if attempt.group is not None:
            self._catalog.leave_group(home, attempt.group)
        self._parking.attempt_over(attempt)

    # --- measures -------------------------------------------------------------------------------

    def pressure(self) -> float:
        """Return the share of the pool that could not be evicted at once, as an estimate."""
        if self._queue:
            return 1.0
        now_s = self._context.now_s
        if now_s >= self._pressure_until_s:
            self._pressure_until_s = now_s + PRESSURE_S
            self._pressure = self._estimate()
        return self._pressure

    def _estimate(self) -> float:
        pool = busy = 0
        for node in self._context.cluster.targets:
            pool += node.capacity
            busy += node.demoting
            for segment in node.segments:
                busy += segment.freeing + segment.pinned
        if not pool:
            return 1.0
        busy += self.commits.granules + self._context.leased_granules
        # What waits for a disk is as little at hand as what waits for its node.
        busy += sum(extent.granules for extent in self._context.claimed)
        return min(1.0, busy / pool)

    def _hopeless(self, batch: Batch, granules: int) -> bool:
        """Return whether pins and the batch's own room leave no range of that size anywhere."""
        targets = self._context.cluster.targets
        own = set(map(id, batch.attempts.values()))
        if not targets or self._catalog.graveyard or batch.look_s > self._context.now_s:
            return False
        if not batch.windows and not _pinned(targets):
            return False
        if any(
            segment.allocating and _could_hold(segment, granules, own, batch.until_s)
            for node in targets
            for segment in node.segments
        ):
            batch.look_s = self._context.now_s + LOOK_S
            return False
        batch.hopeless_granules = granules
        return True


def _pinned(targets: list[Node]) -> bool:
    return any(segment.pinned for node in targets for segment in node.segments)


def _could_hold(segment: Segment, granules: int, own: set[int], until_s: float) -> bool:
    """Return whether a range of that size may become free by itself before ``until_s``."""
    run = 0
    steps = WALK_MAX
    for extent in segment.space.extents():
        owner = extent.owner
        if (isinstance(owner, Stored) and owner.pin_s > until_s) or id(owner) in own:
            run = 0
        else:
            run += extent.after.offset - extent.offset
            if run >= granules:
                return True
        steps -= 1
        if not steps:
            return True
    return False


def _settled(batch: Batch, index: int) -> bool:
    """Take over the windows of an attempt that are ready; return whether all are."""
    windows = batch.windows[index]
    if not windows:
        return True
    attempt = batch.attempts[index]
    waiting = []
    for window in windows:
        if window.ready is None:
            waiting.append(window)
        else:
            window.ready.owner = attempt
            attempt.extents.append(window.ready)
    batch.windows[index] = waiting
    return not waiting


def _keep_existing(batch: Batch) -> None:
    """Keep objects that the answer says are there from being evicted for the others."""
    for item, result in zip(batch.message.items, batch.results, strict=True):
        if isinstance(result, PutExists):
            stored = batch.home.objects.get(item.key)
            if stored is not None and stored.lease_s < batch.until_s:
                batch.kept.append((stored, stored.lease_s))
                stored.lease_s = batch.until_s


def _let_go(batch: Batch) -> None:
    """End what ``_keep_existing`` began, where no reader has come in between."""
    for stored, lease_s in batch.kept:
        if stored.lease_s == batch.until_s:
            stored.lease_s = lease_s
    batch.kept.clear()


def _replicas(attempt: Attempt) -> tuple[Replica, ...]:
    return tuple(
        [
            Replica(e.segment.incarnation, e.offset * GRANULE_BYTES, e.segment.tier)
            for e in attempt.extents
        ]
    )


def _whole_set(verdicts: Verdicts) -> Verdicts:
    """Refuse all of a set of which one is refused: it is visible whole or not at all."""
    reason = next((verdict for verdict in verdicts if isinstance(verdict, Refusal)), None)
    if reason is None:
        return verdicts
    other = Refusal(reason.code, f"another of the set: {reason.message}")
    return [other if isinstance(verdict, int) else verdict for verdict in verdicts]
