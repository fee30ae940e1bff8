"""Reads of the index: where objects are, whether they are, and why not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_master.core import accounting
from mooncake_master.core.instructions import Reply
from mooncake_master.core.judging import check_batch
from mooncake_master.core.leases import LeaseEstimate
from mooncake_master.core.memory import ProbeMemory
from mooncake_master.core.parking import answer_by
from mooncake_store.errors import InvalidArgument
from mooncake_store.limits import GRANULE_BYTES
from mooncake_store.types import MissReason, NodeState, Presence, Tier
from mooncake_store.wire.control import (
    ExistsReply,
    Located,
    Location,
    PrefixMatched,
    Probed,
    ProbeItem,
    Renewed,
    Replica,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from mooncake_master.core.barriers import Request
    from mooncake_master.core.catalog import Catalog
    from mooncake_master.core.context import Context
    from mooncake_master.core.parking import Parking
    from mooncake_master.core.records import Attempt, Extent, Generation, Stored
    from mooncake_store.wire.control import Exists, Locate, MatchPrefix, Message, Probe, Renew

PROBE_ID_CHARACTERS_MAX = 256
"""Longest probe id; they are remembered."""


class Reads:
    """Answers everything that readers ask.

    Attributes:
        leases: What was leased lately.
        located: Called with the keys of each request that asks where they are.
        read_from_disk: Called with an object that was located on disks alone.
    """

    def __init__(self, context: Context, catalog: Catalog, parking: Parking) -> None:
        self._context = context
        self._catalog = catalog
        self._parking = parking
        self._counters = context.counters
        self._probes = ProbeMemory(context.config.probes_max)
        self._turn = 0
        self.leases = LeaseEstimate(context)
        self.located: Callable[[Generation, list[str]], None] = lambda _home, _keys: None
        self.read_from_disk: Callable[[Stored], None] = lambda _stored: None

    # --- locate ---------------------------------------------------------------------------------

    def locate(self, request: Request, message: Locate) -> None:
        """Handle a `Locate`."""
        context = self._context
        context.callers[request.peer] = context.now_s
        check_batch(len(message.keys))
        home = self._catalog.generation(message.slot, message.epoch)
        if not request.final and self._locate_waits(request, message, home):
            return
        self.located(home, message.keys)
        lease_s = context.config.lease_ttl_s
        end_s = context.now_s + lease_s
        items = self._locations(home, message.keys, end_s)
        home.lease_s = max(home.lease_s, end_s)
        reply = Located(lease_s, items, context.cluster.news(message.membership))
        context.out.append(Reply(request.peer, request.request_id, reply))

    def _locations(self, home: Generation, keys: list[str], end_s: float) -> list[Location | int]:
        """Locate, lease and touch."""
        now_s = self._context.now_s
        find = home.objects.get
        items: list[Location | int] = []
        leased = found = 0
        for key in keys:
            stored = find(key)
            if stored is None:
                items.append(self._miss(home, key))
                continue
            extent = stored.extent
            assert extent is not None
            segment = extent.segment
            if extent.twin is None and segment.readable and not segment.tier:
                attempt = segment.copies.get(extent.offset, 0) if segment.copies else 0
                offset = extent.offset * GRANULE_BYTES
                replicas: tuple[Replica, ...] = (
                    Replica(segment.incarnation, offset, segment.tier, attempt),
                )
                segment.node.policy.touched(extent)
            else:
                replicas = self._replicas(stored)
                if not replicas:
                    self._counters[accounting.MISSES[MissReason.NODE_DOWN]] += 1
                    items.append(int(MissReason.NODE_DOWN))
                    continue
            if stored.lease_s < end_s:
                if stored.lease_s <= now_s and not segment.tier:
                    leased += extent.after.offset - extent.offset
                stored.lease_s = end_s
            found += 1
            items.append(Location(stored.version, stored.length, replicas))
        self._counters[accounting.LOCATED] += found
        if leased:
            self.leases.add(leased, end_s)
        return items

    def _replicas(self, stored: Stored) -> tuple[Replica, ...]:
        """Return readable replicas: in memory, on disks, on nodes that may go; each in turn."""
        extents = [extent for extent in stored.extents() if extent.segment.readable]
        for extent in extents:
            extent.segment.touched(extent)
        if extents and all(extent.segment.tier for extent in extents):
            self._counters[accounting.ON_DISK] += 1
            self.read_from_disk(stored)
        if len(extents) > 1:
            self._turn += 1
            turn = self._turn % len(extents)
            extents = extents[turn:] + extents[:turn]
            extents.sort(key=_distance)
        return tuple(
            Replica(
                e.segment.incarnation, e.offset * e.segment.unit, e.segment.tier,
                e.segment.copies.get(e.offset, 0),
            )
            for e in extents
        )  # fmt: skip

    def _locate_waits(self, request: Request, message: Locate, home: Generation) -> bool:
        """Park the request for puts that are under way, or for the index to be complete."""
        if self.waits_for_recovery(request, home, message.keys):
            return True
        writing = home.writing
        if not writing or message.wait_ms <= 0:
            return False
        attempts: dict[int, Attempt] = {}
        for key in message.keys:
            attempt = writing.get(key)
            if attempt is not None:
                stored = home.objects.get(key)
                if stored is None or not stored.readable:
                    attempts[attempt.version] = attempt
        if not attempts:
            return False
        now_s = self._context.now_s
        until_s = min(now_s + message.wait_ms / 1000, answer_by(request.deadline_s, now_s))
        self._parking.wait_for_writes(request, attempts.values(), until_s)
        return True

    def waits_for_recovery(self, request: Request, home: Generation, keys: list[str]) -> bool:
        """Park the request if a key is missing that recovery may still bring."""
        if not self._context.recovering or request.final:
            return False
        objects = home.objects
        if all(key in objects for key in keys):
            return False
        self._parking.wait_for_recovery(request)
        return True

    def _miss(self, home: Generation, key: str) -> int:
        reason = self.reason(home, key)
        self._counters[accounting.MISSES[reason]] += 1
        return int(reason)

    def reason(self, home: Generation, key: str) -> MissReason:
        """Return why a key that is not in the index is not."""
        if key in home.writing:
            return MissReason.WRITING
        if self._context.recovering:
            return MissReason.RECOVERING
        reason = self._catalog.why_gone(home, key)
        if reason is MissReason.ABSENT and (self._context.unseen or self._context.unread):
            return MissReason.NODE_DOWN
        return reason

    # --- presence -------------------------------------------------------------------------------

    def exists(self, request: Request, message: Exists) -> None:
        """Handle an `Exists`: no trace, and nothing per key but a look-up."""
        context = self._context
        keys = message.keys
        home = self._catalog.generation(message.slot, message.epoch)
        if context.recovering and self.waits_for_recovery(request, home, keys):
            return
        objects = home.objects
        if context.cluster.all_readable:
            found = bytes(map(objects.__contains__, keys))
        else:
            found = bytes(
                [1 if (item := objects.get(key)) is not None and item.readable else 0
                 for key in keys]
            )  # fmt: skip
        self._counters[accounting.EXISTING] += len(keys)
        context.out.append(Reply(request.peer, request.request_id, ExistsReply(found)))

    def probe(self, request: Request, message: Probe) -> None:
        """Handle a `Probe`."""
        check_batch(len(message.keys))
        home = self._catalog.generation(message.slot, message.epoch)
        if self.waits_for_recovery(request, home, message.keys):
            return

        def answer(hold_s: float, end_s: float) -> Probed:
            items = []
            for key in message.keys:
                stored = home.objects.get(key)
                if stored is None or not stored.readable:
                    writing = key in home.writing
                    presence = Presence.WRITING if writing else Presence.ABSENT
                    items.append(ProbeItem(int(presence), 0, 0))
                else:
                    items.append(self._probed(stored))
                    if hold_s:
                        self._hold(home, stored, end_s)
            return Probed(items, hold_s)

        self._once(request, message, answer)

    def match_prefix(self, request: Request, message: MatchPrefix) -> None:
        """Handle a `MatchPrefix`."""
        check_batch(len(message.keys))
        home = self._catalog.generation(message.slot, message.epoch)
        if self.waits_for_recovery(request, home, message.keys):
            return

        def answer(hold_s: float, end_s: float) -> PrefixMatched:
            count = 0
            for key in message.keys:
                stored = home.objects.get(key)
                if stored is None or not stored.readable:
                    break
                count += 1
                if hold_s:
                    self._hold(home, stored, end_s)
            return PrefixMatched(count, hold_s)

        self._once(request, message, answer)

    def _once(
        self, request: Request, message: Probe | MatchPrefix,
        answer: Callable[[float, float], Probed | PrefixMatched],
    ) -> None:  # fmt: skip
        """Answer a probe, or repeat what another request with its id was answered."""
        context = self._context
        now_s = context.now_s
        if message.hold_s < 0 or message.hold_s != message.hold_s:
            raise InvalidArgument(f"a hold lasts {message.hold_s} s")
        if len(message.probe_id) > PROBE_ID_CHARACTERS_MAX:
            raise InvalidArgument(f"a probe id has at most {PROBE_ID_CHARACTERS_MAX} characters")
        self._counters[accounting.EXISTING] += len(message.keys)
        hold_s = min(message.hold_s, context.config.hold_s_max)
        mark = (type(message), message.slot, message.epoch, message.probe_id)
        known = self._probes.find(mark, now_s) if message.probe_id else None
        reply: Message
        if known is None:
            reply = answer(hold_s, now_s + hold_s)
            if message.probe_id:
                keep_s = max(hold_s, context.config.probe_memory_s)
                self._probes.keep(mark, reply, until_s=now_s + keep_s, held_s=now_s + hold_s)
        else:
            held_s, first = known
            left_s = max(0.0, held_s - now_s)
            if isinstance(first, Probed):
                reply = Probed(first.items, left_s)
            else:
                assert isinstance(first, PrefixMatched)
                reply = PrefixMatched(first.count, left_s)
        context.out.append(Reply(request.peer, request.request_id, reply))

    def _hold(self, home: Generation, stored: Stored, end_s: float) -> None:
        """Protect an object; unlike a read this is no sign of use."""
        if stored.lease_s < end_s:
            stored.lease_s = end_s
            home.lease_s = max(home.lease_s, end_s)

    def _probed(self, stored: Stored) -> ProbeItem:
        config = self._context.config
        tiers = [extent.segment.tier for extent in stored.extents() if extent.segment.readable]
        if Tier.DRAM in tiers:
            transfer_us = stored.length * 1_000_000 / config.dram_bytes_per_s
            return ProbeItem(
                int(Presence.DRAM), stored.length, config.dram_latency_us + int(transfer_us)
            )
        transfer_us = stored.length * 1_000_000 / config.ssd_bytes_per_s
        return ProbeItem(int(Presence.SSD), stored.length, config.ssd_latency_us + int(transfer_us))

    # --- leases ---------------------------------------------------------------------------------

    def renew(self, request: Request, message: Renew) -> None:
        """Handle a `Renew`."""
        context = self._context
        check_batch(len(message.keys))
        if len(message.keys) != len(message.versions):
            raise InvalidArgument(
                f"{len(message.keys)} keys with {len(message.versions)} versions to renew"
            )
        home = self._catalog.generation(message.slot, message.epoch)
        lease_s = context.config.lease_ttl_s
        end_s = context.now_s + lease_s
        renewed = bytearray()
        for key, version in zip(message.keys, message.versions, strict=True):
            stored = home.objects.get(key)
            there = stored is not None and stored.version == version
            if there:
                assert stored is not None
                self._hold(home, stored, end_s)
            renewed.append(there)
        reply = Renewed(bytes(renewed), lease_s)
        context.out.append(Reply(request.peer, request.request_id, reply))


def _distance(extent: Extent) -> tuple[bool, int]:
    """Order replicas: those on nodes that are suspect or about to go last, disks behind memory."""
    segment = extent.segment
    return segment.node.state is not NodeState.LIVE, segment.tier
