"""The master's decisions behind one door: events in, instructions out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_master.core import accounting
from mooncake_master.core.barriers import Request
from mooncake_master.core.catalog import Catalog
from mooncake_master.core.changes import Changes
from mooncake_master.core.config import CoreConfig
from mooncake_master.core.context import Context
from mooncake_master.core.copying import Copier
from mooncake_master.core.demotion import Demoter
from mooncake_master.core.dice import Dice
from mooncake_master.core.draining import Draining
from mooncake_master.core.drops import Drops
from mooncake_master.core.durability import Durability
from mooncake_master.core.evictor import Evictor
from mooncake_master.core.freeing import Freer
from mooncake_master.core.hot import HotKeys
from mooncake_master.core.inspection import Inspection
from mooncake_master.core.instructions import Fail, Reply
from mooncake_master.core.judging import Judge
from mooncake_master.core.measures import Statistics, Walk, gauges, walk
from mooncake_master.core.membership import Members
from mooncake_master.core.notes import Notes
from mooncake_master.core.parking import Parking
from mooncake_master.core.pins import Pins
from mooncake_master.core.placement import Placement
from mooncake_master.core.promotion import Promoter
from mooncake_master.core.puts import Puts
from mooncake_master.core.reads import Reads
from mooncake_master.core.rebalancing import Rebalancer
from mooncake_master.core.recovery import Recovery
from mooncake_master.core.repair import Repair
from mooncake_master.core.trimming import Trimmer
from mooncake_store.errors import NotSupported, StaleEpoch, StoreError
from mooncake_store.wire import control
from mooncake_store.wire.control import ClusterStatus, Freed

if TYPE_CHECKING:
    from collections.abc import Callable

    from mooncake_master.core.instructions import Instruction
    from mooncake_master.core.nodes import Node
    from mooncake_master.core.remembered import Remembered
    from mooncake_store.wire.control import Message

PAUSE_GRACE_S = 2.0
"""Time that writers get to commit after the master itself was paused."""


class Master:
    """The index of one cluster, and every decision about it. Pure: no I/O, no clock, no chance.

    ``handle``, ``node_replied``, ``peer_lost`` and ``tick`` each take one event with its time on
    the monotonic clock and return what has to be done because of it, in order. They are called
    from one thread, one after the other. ``tick`` is due about every 20 ms.
    """

    def __init__(  # noqa: PLR0913 - options, given by name
        self,
        config: CoreConfig | None = None,
        *,
        term: int = 1,
        count: int = 0,
        cluster_id: str = "",
        wall_offset_s: float = 0.0,
        seed: int = 0,
        software: str = "",
        remembered: Remembered | None = None,
    ) -> None:
        """Begin with an empty index.

        Args:
            config: Settings; the defaults where None.
            term: Number of this reign; grows when nodes know a higher one.
            count: Attempts of this term that were, or may have been, granted by others.
            cluster_id: For listings.
            wall_offset_s: What to add to the monotonic clock to get seconds since 1970.
            seed: Of all that is left to chance.
            software: Name and version of this program, for listings.
            remembered: What an earlier master of this cluster kept; None where nothing is kept.
        """
        self.config = config or CoreConfig()
        self.config.validate()
        self.cluster_id = cluster_id
        self._software = software
        self._started_s: float | None = None
        context = Context(
            self.config, Dice(seed), term=term, count=count, wall_offset_s=wall_offset_s
        )
        self._context = context
        self._notes = notes = Notes(context)
        self._freer = freer = Freer(context, notes)
        self._catalog = catalog = Catalog(context, freer, notes)
        self._parking = parking = Parking(context)
        self._copier = copier = Copier(context, catalog, freer)
        self._evictor = evictor = Evictor(context, catalog)
        placement = Placement(context, evictor, freer)
        self._drops = Drops(context, catalog, evictor)
        durability = Durability(context, freer, copier)
        self._pins = pins = Pins(context, catalog)
        judge = Judge(context, catalog, placement, evictor, pins)
        self._puts = Puts(context, catalog, freer, placement, judge, parking)
        self._puts.commits.ensure_durable = durability.ensure
        self._reads = Reads(context, catalog, parking)
        self._changes = Changes(context, catalog, freer, parking, pins)
        self._inspection = Inspection(context, catalog, self._reads, parking)
        self._recovery = Recovery(context, catalog, freer, parking, notes)
        self._members = Members(context, catalog, freer, self._recovery, notes, copier)
        self._make_movers(placement)
        self._handlers = self._make_handlers()
        context.cluster_id = cluster_id
        if remembered is not None:
            if remembered.lasting and remembered.reign is None:
                self._recovery.begin()
                catalog.old_leases.never_were()
            catalog.old_leases.told = remembered.lasting or bool(remembered.nodes)
            self._recall(remembered)
            context.kept = remembered.kept

    def _make_movers(self, placement: Placement) -> None:
        """Make everything that has replicas copied in the background."""
        context, catalog, copier = self._context, self._catalog, self._copier
        self._demoter = Demoter(context, copier, self._evictor)
        self._promoter = Promoter(context, copier, placement)
        self._repair = Repair(context, catalog, copier, placement)
        self._rebalancer = Rebalancer(context, catalog, copier, placement)
        self._hot = HotKeys(context, catalog, copier, placement)
        self._trimmer = Trimmer(context, catalog, self._hot.__contains__)
        self._repair.met = self._trimmer.look
        self._draining = Draining(context, catalog, copier, placement, self._puts.writes_to)
        self._reads.read_from_disk = self._promoter.read
        self._reads.located = self._hot.read

    def _make_handlers(self) -> dict[type[Message], Callable[..., None]]:
        """Return {request: what handles it}."""
        changes, inspection, puts, reads = self._changes, self._inspection, self._puts, self._reads
        return {
            control.OpenNamespace: changes.open_namespace,
            control.ListNamespaces: lambda request, _: changes.list_namespaces(request),
            control.Clear: changes.clear,
            control.Locate: reads.locate,
            control.Exists: reads.exists,
            control.Probe: reads.probe,
            control.MatchPrefix: reads.match_prefix,
            control.PutStart: puts.start,
            control.PutCommit: puts.commits.commit,
            control.PutAbort: puts.commits.abort,
            control.Remove: changes.remove,
            control.Stat: inspection.stat,
            control.Scan: inspection.scan,
            control.SetPin: changes.set_pin,
            control.Renew: reads.renew,
            control.ReportReplica: changes.report_replica,
            control.ReportDropped: self._drops.report,
            control.ReportTransfers: changes.report_transfers,
            control.Why: inspection.why,
            control.SetPinLimit: self._pins.set,
            control.ListPinLimits: self._pins.list,
            control.Drain: self._draining.drain,
            control.DescribeDrain: self._draining.describe,
            control.Undrain: self._draining.undrain,
            control.DescribeCluster: lambda request, _: self._describe(request),
            control.Register: self._members.register,
            control.Heartbeat: self._members.heartbeat,
        }

    def _recall(self, remembered: Remembered) -> None:
        """Begin with what was kept, as far as no node has to say it."""
        for space in remembered.namespaces.values():
            if space.slot not in self._catalog.slots:
                self._catalog.adopt(space.name, space.slot, space.epoch).manifest = space.manifest
        for node in remembered.nodes.values():
            self._members.recall(node)
        self._notes.recall(remembered.notes.values())
        self._catalog.tombs.recall(remembered.removed.values())
        self._pins.recall(remembered.limits)
        self._draining.recall(remembered.drains.values())
        if remembered.nodes:
            self._recovery.expect()

    @property
    def term(self) -> int:
        """Number of this reign."""
        return self._context.term

    @property
    def recovering(self) -> bool:
        """Whether directories are still being listed."""
        return self._context.recovering

    # --- events ---------------------------------------------------------------------------------

    def handle(
        self, peer: int, request_id: int, message: Message, deadline_s: float, now_s: float
    ) -> list[Instruction]:
        """Take one request of a client or node.

        Args:
            peer: Number of its connection.
            request_id: To be repeated in the reply.
            message: The request.
            deadline_s: When it must have been answered, on the clock of ``now_s``.
            now_s: The time.
        """
        context = self._context
        context.now_s = now_s
        context.out = []
        self._dispatch(Request(peer, request_id, message, deadline_s))
        return self._finish()

    def node_replied(
        self, peer: int, token: int, answer: Message | StoreError, now_s: float
    ) -> list[Instruction]:
        """Take a node's answer to an `Instruct`, or the error that it ended with."""
        context = self._context
        context.now_s = now_s
        context.out = []
        node = context.cluster.by_peer.get(peer)
        if node is not None:
            self._take_answer(node, token, answer)
        return self._finish()

    def _take_answer(self, node: Node, token: int, answer: Message | StoreError) -> None:
        if self._recovery.answered(token, answer):
            return
        if self._notes.answered(node, token, answer):
            self._recovery.go_on()
            self._freer.expire_barriers()
            return
        if self._copier.answered(token, answer):
            return
        freed: bytes | None = None
        if isinstance(answer, Freed):
            freed = answer.freed
        elif isinstance(answer, control.Done):
            freed = b""
        self._freer.answered(node, token, freed)

    def peer_lost(self, peer: int, now_s: float) -> list[Instruction]:
        """Take the end of a connection."""
        context = self._context
        context.now_s = now_s
        context.out = []
        self._members.disconnected(peer)
        self._parking.forget_peer(peer)
        self._freer.forget_peer(peer)
        self._puts.forget_peer(peer)
        context.callers.pop(peer, None)
        return self._finish()

    def tick(self, now_s: float) -> list[Instruction]:
        """Let time pass: expire, evict, retry, each in bounded slices."""
        context = self._context
        context.now_s = now_s
        context.out = []
        if self._started_s is None:
            self._started_s = now_s
        if self._members.tick():
            self._puts.commits.paused(now_s + PAUSE_GRACE_S)
        self._puts.commits.expire()
        self._parking.expire()
        self._freer.retry()
        self._notes.tick()
        self._copier.expire()
        self._freer.expire_barriers()
        self._catalog.end_pins()
        self._catalog.old_leases.tick()
        self._catalog.bury(context.config.evict_slice)
        self._reads.leases.expire()
        self._demoter.tick()
        self._promoter.tick()
        self._repair.tick()
        self._trimmer.tick()
        self._evictor.keep_watermarks()
        self._recovery.tick()
        self._draining.tick()
        self._rebalancer.tick()
        self._hot.tick()
        self._puts.expire()
        self._freer.room_returned = len(self._puts) > 0
        return self._finish()

    def _dispatch(self, request: Request) -> None:
        message = request.message
        context = self._context
        try:
            handler = self._handlers.get(type(message))
            if handler is None:
                raise NotSupported(f"the master does not handle {type(message).__name__}")
            handler(request, message)
        except StaleEpoch as error:
            if context.recovering and not request.final and self._catalog.may_come(message):
                self._parking.wait_for_recovery(request)
            else:
                self._fail(request, error)
        except StoreError as error:
            self._fail(request, error)

    def _fail(self, request: Request, error: StoreError) -> None:
        self._context.counters[accounting.refused(error.code)] += 1
        self._context.out.append(Fail(request.peer, request.request_id, error))

    def _finish(self) -> list[Instruction]:
        """Do what the event has made possible, and hand the instructions out."""
        freer, ready, copier = self._freer, self._parking.ready, self._copier
        while freer.room_returned or ready or copier.has_ended:
            copier.settle()
            if freer.room_returned:
                freer.room_returned = False
                self._puts.pump()
            if ready:
                parked, final = ready.popleft()
                parked.request.final = final
                self._dispatch(parked.request)
        copier.flush()
        self._catalog.sets.flush()
        freer.flush()
        return self._context.out

    # --- measures -------------------------------------------------------------------------------

    def statistics(self) -> Statistics:
        """Return counters and gauges under their metric names."""
        found = gauges(self._context, self._catalog, self._puts, self._repair)
        found["mooncake_master_hot_objects_count"] = len(self._hot)
        return Statistics(dict(self._context.counters), found)

    def walk(self) -> Walk:
        """Count everything again, one by one, and check that it is consistent; for tests.

        Raises:
            AssertionError: Two extents overlap, a link is broken, or a number is wrong.
        """
        return walk(self._context, self._catalog, self._puts)

    def _describe(self, request: Request) -> None:
        context = self._context
        now_s = context.now_s
        numbers = self.statistics()
        started_s = now_s if self._started_s is None else self._started_s
        status = ClusterStatus(
            cluster_id=self.cluster_id,
            term=context.term,
            software=self._software,
            uptime_s=now_s - started_s,
            nodes=tuple(node.status(now_s) for node in context.cluster.nodes.values()),
            counters={**numbers.counters, **numbers.gauges},
        )
        context.out.append(Reply(request.peer, request.request_id, status))
