"""Taking a node out of use: it gets nothing new, what it alone holds is copied (docs/adr/0040).

A drain goes through all objects in rounds. It is over when a whole round has found nothing that the
node alone holds, and no writer is about to put something there; not before.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from mooncake_master.core import accounting
from mooncake_master.core.copying import Start
from mooncake_master.core.instructions import Reply
from mooncake_master.core.records import NEVER
from mooncake_master.core.remembered import DrainJob
from mooncake_master.core.rounds import Round
from mooncake_store.errors import InvalidArgument, NoSpace, UnknownNode, Unreachable
from mooncake_store.types import NodeState
from mooncake_store.units import format_bytes
from mooncake_store.wire import control

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mooncake_master.core.barriers import Request
    from mooncake_master.core.catalog import Catalog
    from mooncake_master.core.context import Context
    from mooncake_master.core.copying import Copier
    from mooncake_master.core.nodes import Node
    from mooncake_master.core.placement import Placement
    from mooncake_master.core.records import Extent, Stored

COPIES_MAX: Final = 32
"""Copies of one drain under way. Fewer: small objects leave a node idle between answers. More:
their sources stay protected for longer while other work waits for the same nodes."""
LOOKS_MAX: Final = 2_000
"""Objects looked at in one turn: 1 ms."""
PAUSE_S: Final = 0.5
"""Between two rounds of which the first left something."""
RECHECK_S: Final = 10.0
"""Between two rounds on a drained node: another node may have lost what was copied to it."""
FRUITLESS_MAX: Final = 3
"""Rounds that copy nothing of what is left until a drain is called stuck: evictions that make room
take about one."""
EXAMPLES_MAX: Final = 20
"""Objects that a status names."""
TIMEOUT_S_MAX: Final = 86_400.0

DRAINING: Final = "draining"
DRAINED: Final = "drained"
INCOMPLETE: Final = "incomplete"


class Drain:
    """The drain of one node.

    Attributes:
        node_id: Whose.
        name: Its name.
        state: ``draining``, ``drained`` or ``incomplete``.
        leaving: Begun by the node, which is about to stop: over when it comes back.
        until_s: When copying ends.
        moved: Objects that were copied.
        moved_bytes: Their payload.
        left: Objects that the node alone holds, as far as was counted.
        left_bytes: Their payload.
        counted: A whole round was made since the last change.
        stuck: The last rounds found something and copied nothing of it.
        reasons: {error code: objects that were not copied because of it in the last round}.
        examples: Some of those objects.
        waits_for: Why it does not go on; empty where it does.
    """

    __slots__ = (
        "counted", "examples", "found", "found_bytes", "fruitless", "is_written", "leaving", "left",
        "left_bytes", "look_s", "moved", "moved_bytes", "moved_now", "name", "next", "node_id",
        "reasons", "round", "serial", "state", "stuck", "under_way", "until_s", "waits_for",
    )  # fmt: skip

    def __init__(
        self, node_id: str, name: str, until_s: float, state: str = DRAINING, *,
        leaving: bool = False,
    ) -> None:  # fmt: skip
        self.node_id = node_id
        self.name = name
        self.until_s = until_s
        self.state = state
        self.leaving = leaving
        self.moved = self.moved_bytes = 0
        self.left = self.left_bytes = 0
        self.counted = self.stuck = False
        self.reasons: Counter[str] = Counter()
        self.examples: list[control.DrainLeft] = []
        self.waits_for = ""
        self.round: Round | None = None
        self.serial = 0
        """Number of the round, so that a copy that ends late is not counted in another one."""
        self.next: Stored | None = None
        """Object to go on with, where the nodes were busy."""
        self.look_s = NEVER
        self.under_way = 0
        self.found = self.found_bytes = 0
        """What the node alone holds of the objects that this round has met, copied ones not."""
        self.fruitless = 0
        """Rounds since the last one that copied something."""
        self.moved_now = 0
        """Objects that this round has copied."""
        self.is_written = False
        """Some writer had room on the node when this round began: the round may miss its object."""

    @property
    def node_state(self) -> NodeState:
        """What the node is while nothing is wrong with it."""
        return NodeState.DRAINED if self.state == DRAINED else NodeState.DRAINING

    @property
    def note(self) -> str:
        """One sentence for listings."""
        if self.state == DRAINED:
            return f"{self.moved} objects moved, nothing is left"
        left = f"{self.left} objects of {format_bytes(self.left_bytes)} left"
        if not self.counted:
            left = f"at least {left}"
        if self.state == INCOMPLETE:
            return f"the drain ran out of time: {left}{_because(self.reasons)}"
        return self.waits_for or f"{self.moved} objects moved, {left}{_because(self.reasons)}"


class Draining:
    """All drains."""

    def __init__(
        self, context: Context, catalog: Catalog, copier: Copier, placement: Placement,
        is_written: Callable[[Node], bool],
    ) -> None:  # fmt: skip
        """Begin without any.

        Args:
            context: What all parts share.
            catalog: The index.
            copier: Has nodes copy.
            placement: Says where to.
            is_written: Whether some writer has room on a node, or waits for it.
        """
        self._context = context
        self._catalog = catalog
        self._copier = copier
        self._placement = placement
        self._is_written = is_written

    # --- requests -------------------------------------------------------------------------------

    def drain(self, request: Request, message: control.Drain) -> None:
        """Handle a `Drain`: begin, or begin anew."""
        context = self._context
        if not 0 < message.timeout_s <= TIMEOUT_S_MAX:
            raise InvalidArgument(
                f"a drain takes between 0 and {TIMEOUT_S_MAX:g} s, not {message.timeout_s} s"
            )
        node = self._find(message.node)
        until_s = context.now_s + message.timeout_s
        job = Drain(node.register.node_id, node.name, until_s, leaving=message.leaving)
        context.drains[job.node_id] = job
        self._keep(job)
        self._mark(node, job)
        self._reply(request, node.name, job)

    def undrain(self, request: Request, message: control.Undrain) -> None:
        """Handle an `Undrain`; a node that is not drained is what is wanted."""
        node = self._find(message.node)
        if self._context.drains.pop(node.register.node_id, None) is not None:
            self._context.forget("drains", node.register.node_id)
        self._mark(node, None)
        self._reply(request, node.name, None)

    def describe(self, request: Request, message: control.DescribeDrain) -> None:
        """Handle a `DescribeDrain`."""
        node = self._find(message.node)
        self._reply(request, node.name, self._context.drains.get(node.register.node_id))

    def _find(self, name: str) -> Node:
        cluster = self._context.cluster
        node = cluster.find(name) or cluster.nodes.get(name)
        if node is None:
            raise UnknownNode(f"no node is named {name!r}", node=name)
        return node

    def _reply(self, request: Request, name: str, job: Drain | None) -> None:
        status = control.DrainStatus(name, "none")
        if job is not None:
            left_s = job.until_s - self._context.now_s if job.state == DRAINING else 0.0
            status = control.DrainStatus(
                name, job.state, max(0.0, left_s), job.moved, job.moved_bytes, job.left,
                job.left_bytes, job.counted, job.stuck, dict(job.reasons), tuple(job.examples),
                job.note,
            )  # fmt: skip
        self._context.out.append(Reply(request.peer, request.request_id, status))

    # --- over restarts --------------------------------------------------------------------------

    def recall(self, kept: Iterable[DrainJob]) -> None:
        """Go on with what an earlier master began; nodes that come find their drain waiting."""
        offset_s = self._context.wall_offset_s
        for job in kept:
            drain = Drain(job.node_id, job.name, job.until_s - offset_s, job.state)
            self._context.drains[job.node_id] = drain
            node = self._context.cluster.nodes.get(job.node_id)
            if node is not None:
                node.drain = drain

    def _keep(self, job: Drain) -> None:
        if job.leaving:
            return  # it asks the next master, too, or is gone
        until_s = job.until_s + self._context.wall_offset_s
        kept = DrainJob(job.node_id, job.name, until_s, job.state)
        self._context.remember("drains", job.node_id, kept)

    # --- time -----------------------------------------------------------------------------------

    def tick(self) -> None:
        """Go on with every drain, a slice of each."""
        context = self._context
        for job in list(context.drains.values()):
            node = context.cluster.nodes.get(job.node_id)
            if node is None:
                del context.drains[job.node_id]
                context.forget("drains", job.node_id)
            elif job.state == DRAINING and context.now_s >= job.until_s:
                self._end(job, node, INCOMPLETE)
            elif job.state != INCOMPLETE:
                self._go_on(job, node)

    def _go_on(self, job: Drain, node: Node) -> None:
        job.waits_for = self._obstacle(node)
        if job.waits_for:
            job.round = None  # what is found out now may not be true when it goes on
            return
        if job.round is None:
            if self._context.now_s < job.look_s:
                return
            _begin_round(job, Round(self._catalog))
            job.is_written = self._is_written(node)
        assert job.round is not None
        if self._look(job, job.round, node) and not job.under_way:
            self._end_round(job, node)

    def _look(self, job: Drain, round_: Round, node: Node) -> bool:
        """Look at a slice of all objects; return whether all were met in this round."""
        for _ in range(LOOKS_MAX):
            if job.under_way >= COPIES_MAX:
                break
            stored, job.next = job.next or round_.next(), None
            if stored is None:
                return True
            extent = alone_on(stored, node)
            if extent is not None and not self._move(job, stored, extent):
                job.next = stored
                break
        return False

    def _obstacle(self, node: Node) -> str:
        """Return why nothing can be found out or copied now; empty where it can."""
        if node.away:
            return "waits for the node, which is away"
        if self._context.recovering or not all(
            segment.listed for segment in (*node.segments, *node.disks)
        ):
            return "waits until the nodes' directories are listed"
        return ""

    def _move(self, job: Drain, stored: Stored, extent: Extent) -> bool:
        """Have an object copied that the node alone holds; return False to be asked again later."""
        node = extent.segment.node
        self._open_again(job, node)
        target = self._placement.spare(stored, without=node, tight=True)
        code = ""
        if target is None:
            code = NoSpace.code
            self._make_room(node)
        else:
            start = self._copier.copy(
                stored, extent, target, purpose="drain", done=self._done(job, stored)
            )
            if start is Start.BUSY:
                return False
            if start is not Start.BEGUN:
                code = NoSpace.code if start is Start.NO_ROOM else Unreachable.code
        self._count(job, stored)
        if code:
            _blame(job, code, stored)
        else:
            job.under_way += 1
        return True

    def _make_room(self, node: Node) -> None:
        """Have another node evict down to its low watermark: what is copied may be in better use.

        That ends by itself, where everything is leased or pinned, too.
        """
        others = [other for other in self._context.cluster.targets if other is not node]
        if others:
            max(others, key=lambda other: other.free_granules / other.capacity).evicting = True

    def _count(self, job: Drain, stored: Stored) -> None:
        job.found += 1
        job.found_bytes += stored.length
        if not job.counted:
            job.left, job.left_bytes = job.found, job.found_bytes

    def _done(self, job: Drain, stored: Stored) -> Callable[[str], None]:
        """Return what is to be told of a copy of this round."""
        serial, length = job.serial, stored.length

        def done(code: str) -> None:
            if job.serial != serial:
                return
            job.under_way -= 1
            if code:
                _blame(job, code, stored)
            else:
                self._moved(job, length)

        return done

    def _moved(self, job: Drain, length: int) -> None:
        job.moved += 1
        job.moved_now += 1
        job.moved_bytes += length
        job.found -= 1
        job.found_bytes -= length
        job.left = max(0, job.left - 1)
        job.left_bytes = max(0, job.left_bytes - length)
        counters = self._context.counters
        counters[accounting.DRAINED_OBJECTS] += 1
        counters[accounting.DRAINED_BYTES] += length

    def _end_round(self, job: Drain, node: Node) -> None:
        """Every object was looked at: find out whether that was all."""
        job.round = None
        job.left, job.left_bytes, job.counted = job.found, job.found_bytes, True
        job.fruitless = job.fruitless + 1 if job.left and not job.moved_now else 0
        patience = FRUITLESS_MAX if self._context.cluster.targets else 1
        job.stuck = job.fruitless >= patience
        now_s = self._context.now_s
        if job.left or job.moved_now or job.is_written:
            # What was copied is looked at once more: it may be gone from where it was copied to.
            job.look_s = now_s + (PAUSE_S if job.left else 0.0)
            return
        job.look_s = now_s + RECHECK_S
        if job.state != DRAINED:
            self._end(job, node, DRAINED)

    def _open_again(self, job: Drain, node: Node) -> None:
        """Take "drained" back: what had been copied is gone from where it was copied to."""
        if job.state == DRAINED:
            job.state = DRAINING
            job.until_s = max(job.until_s, self._context.now_s + RECHECK_S)
            self._keep(job)
            self._mark(node, job)

    def _end(self, job: Drain, node: Node, state: str) -> None:
        """Change the state of a drain."""
        job.state = state
        job.serial += 1
        job.round, job.next, job.under_way = None, None, 0
        self._keep(job)
        self._mark(node, job)

    def _mark(self, node: Node, job: Drain | None) -> None:
        """Let a node be drained, or not any more."""
        node.drain = job
        if node.state in (NodeState.LIVE, NodeState.DRAINING, NodeState.DRAINED):
            node.state = NodeState.LIVE if job is None else job.node_state
        self._context.cluster.changed()


def alone_on(stored: Stored, node: Node) -> Extent | None:
    """Return a replica of an object that would be lost with a node, None where others stay.

    A copy on a node that is itself drained, silent or suspect is none to count on.
    """
    here: Extent | None = None
    for extent in stored.extents():
        other = extent.segment.node
        if other is node:
            here = here or extent
        elif extent.segment.readable and other.state is NodeState.LIVE:
            return None
    return here


def _begin_round(job: Drain, round_: Round) -> None:
    job.round, job.next = round_, None
    job.serial += 1
    job.under_way = 0
    job.found = job.found_bytes = job.moved_now = 0
    job.reasons = Counter()
    job.examples = []


def _blame(job: Drain, code: str, stored: Stored) -> None:
    """Note why an object was not copied."""
    job.reasons[code] += 1
    if len(job.examples) < EXAMPLES_MAX:
        left = control.DrainLeft(stored.home.space.name, stored.key, stored.length, code)
        job.examples.append(left)


def _because(reasons: Counter[str]) -> str:
    if not reasons:
        return ""
    return " (" + ", ".join(f"{count} {code}" for code, count in reasons.most_common(3)) + ")"
