"""Changes that are no writes: namespaces, removal, pins, reports of bad replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_master.core import accounting
from mooncake_master.core.barriers import Barrier
from mooncake_master.core.complaints import Complaints
from mooncake_master.core.instructions import Reply
from mooncake_master.core.judging import check_batch, check_pin
from mooncake_master.core.records import FOREVER, NEVER, Gone, wire_offset
from mooncake_store import errors
from mooncake_store.errors import (
    InvalidArgument,
    ManifestMismatch,
    ObjectNotFound,
)
from mooncake_store.fingerprint import check_namespace
from mooncake_store.limits import MANIFEST_BYTES_MAX, REPORTED_TRANSFERS_MAX
from mooncake_store.types import NodeState, Pin, make_version
from mooncake_store.wire.control import Done, NamespaceList, NamespaceRecord, PinReply, Removed

if TYPE_CHECKING:
    from mooncake_master.core.barriers import Request
    from mooncake_master.core.catalog import Catalog
    from mooncake_master.core.context import Context
    from mooncake_master.core.freeing import Freer
    from mooncake_master.core.parking import Parking
    from mooncake_master.core.pins import Pins
    from mooncake_master.core.records import Namespace
    from mooncake_store.wire.control import (
        Clear,
        OpenNamespace,
        Remove,
        ReportReplica,
        ReportTransfers,
        SetPin,
    )

REASON_CHARACTERS_MAX = 64


OPENING_S = 0.1
"""Longest wait for nodes to learn of a new namespace: enough for those that answer, and a frozen
one learns it when it wakes, before it serves anything of it."""


class Changes:
    """Carries out what clients ask to be changed."""

    def __init__(
        self, context: Context, catalog: Catalog, freer: Freer, parking: Parking, pins: Pins
    ) -> None:
        self._context = context
        self._complaints = Complaints(context)
        self._catalog = catalog
        self._freer = freer
        self._parking = parking
        self._pins = pins

    # --- namespaces -----------------------------------------------------------------------------

    def open_namespace(self, request: Request, message: OpenNamespace) -> None:
        """Handle an `OpenNamespace`; a new one is answered when the nodes know its epoch."""
        name = check_namespace(message.name)
        manifest = message.manifest
        if manifest is not None:
            _check_manifest(manifest)
        space = self._catalog.spaces.get(name)
        barrier = Barrier(request.peer, request.request_id, request.deadline_s)
        if space is None:
            seems_new = self._context.fresh  # a first put does not wait, only misses do
            if not seems_new and self._waits_for_recovery(request, f"namespace {name!r}"):
                return
            space = self._catalog.create(name)
            self._freer.announce_epochs({space.slot: space.current.epoch}, barrier)
        if manifest is not None:
            if space.manifest is None:
                space.manifest = dict(manifest)
                self._catalog.keep(space)
            elif space.manifest != manifest:
                raise ManifestMismatch(_difference(name, space.manifest, manifest))
        self._freer.seal(barrier, record_of(space), patience_s=OPENING_S)

    def list_namespaces(self, request: Request) -> None:
        """Handle a `ListNamespaces`."""
        spaces = sorted(self._catalog.spaces.values(), key=lambda space: space.name)
        reply = NamespaceList(tuple(record_of(space) for space in spaces))
        self._context.out.append(Reply(request.peer, request.request_id, reply))

    def clear(self, request: Request, message: Clear) -> None:
        """Handle a `Clear`: one step, however many objects there are."""
        name = check_namespace(message.name)
        if self._waits_for_recovery(request, f"namespace {name!r}"):
            return
        context = self._context
        space = self._catalog.spaces.get(name)
        barrier = Barrier(request.peer, request.request_id, request.deadline_s)
        if space is None:
            raise ObjectNotFound(f"there is no namespace {name!r}")
        old = self._catalog.clear(space, space.current.epoch + 1)
        barrier.lease_s = old.lease_s
        self._freer.announce_epochs({space.slot: space.current.epoch}, barrier)
        self._catalog.old_leases.keep_waiting(barrier)
        barrier.unwitnessed = not context.keeps and bool(context.cluster.nodes)
        self._freer.seal(barrier, record_of(space))

    def _waits_for_recovery(self, request: Request, what: str) -> bool:
        """Park a change that must not be made to an index that is not complete.

        Raises:
            DeadlineExceeded: It has waited as long as it can.
        """
        return self._parking.holds_back(request, f"{what} cannot be changed")

    # --- objects --------------------------------------------------------------------------------

    def remove(self, request: Request, message: Remove) -> None:
        """Handle a `Remove`."""
        check_batch(len(message.keys))
        home = self._catalog.generation(message.slot, message.epoch)
        if self._waits_for_recovery(request, "a removal"):
            return
        context = self._context
        barrier = Barrier(request.peer, request.request_id, request.deadline_s)
        removed = bytearray()
        newest = make_version(context.term + 1, 0) - 1
        for key in message.keys:
            stored = home.objects.get(key)
            removed.append(stored is not None)
            if stored is None:
                self._catalog.gone.note_absent(home.space.slot, key, newest)
                self._catalog.tombs.note(home.space.slot, key, newest)
            else:
                barrier.lease_s = max(barrier.lease_s, stored.lease_s)
                self._catalog.forget(stored, Gone.REMOVED, barrier)
            self._catalog.give_up_kept(home, key, barrier)
            self._freer.follow(home, key, barrier)
        barrier.removes = True
        self._catalog.old_leases.keep_waiting(barrier)
        self._freer.ended()
        self._freer.seal(barrier, Removed(bytes(removed)))

    def set_pin(self, request: Request, message: SetPin) -> None:
        """Handle a `SetPin`.

        Raises:
            PinLimitReached: The pinned share would be above its limit; nothing was pinned.
        """
        context = self._context
        check_batch(len(message.keys))
        check_pin(message.pin, message.pin_s)
        home = self._catalog.generation(message.slot, message.epoch)
        if self._waits_for_recovery(request, "a pin"):
            return
        found = [home.objects.get(key) for key in message.keys]
        if message.pin:
            new = {id(s): s for s in found if s is not None and not s.pin_s}
            if new:
                granules = sum(e.granules for stored in new.values() for e in stored.extents())
                self._pins.check(home, granules)
        end_s = NEVER
        if message.pin == Pin.HARD:
            end_s = FOREVER
        elif message.pin == Pin.SOFT:
            end_s = context.now_s + message.pin_s
        there = [stored for stored in found if stored is not None]
        for stored in there:
            self._catalog.pin(stored, end_s)
        self._catalog.later_pins.changed(there, end_s)
        reply = PinReply(bytes(stored is not None for stored in found))
        context.out.append(Reply(request.peer, request.request_id, reply))

    # --- reports --------------------------------------------------------------------------------

    def report_replica(self, request: Request, message: ReportReplica) -> None:
        """Handle a `ReportReplica`: the replica is dropped if it is still what was read."""
        context = self._context
        home = self._catalog.generation(message.slot, message.epoch)
        reason = message.reason if message.reason in errors.BY_CODE else "unknown"
        stored = home.objects.get(message.key)
        if stored is not None and stored.version == message.version:
            for extent in stored.extents():
                same = extent.segment.incarnation == message.incarnation
                if same and wire_offset(extent) == message.offset:
                    context.counters[accounting.dropped(reason)] += 1
                    corrupt = reason == errors.ChecksumMismatch.code
                    self._catalog.drop(stored, extent, Gone.CORRUPT if corrupt else Gone.LOST)
                    break
        context.out.append(Reply(request.peer, request.request_id, Done()))

    def report_transfers(self, request: Request, message: ReportTransfers) -> None:
        """Handle a `ReportTransfers`: failures in a row, if believed, make a node suspect."""
        context = self._context
        node = context.cluster.by_index.get(message.node)
        if min(message.failures, message.successes) < 0:
            raise InvalidArgument("a report of transfers counts below zero")
        if max(message.failures, message.successes) > REPORTED_TRANSFERS_MAX:
            raise InvalidArgument(f"a report counts at most {REPORTED_TRANSFERS_MAX} transfers")
        context.counters[accounting.TRANSFERS] += message.successes + message.failures
        context.counters[accounting.TRANSFERS_FAILED] += message.failures
        if node is not None:
            bad = self._complaints.report(node, request.peer, message.failures, message.successes)
            if not bad:
                # Who said before what is taken back now is not believed any more.
                node.suspect_until_s = 0.0
            elif message.failures:
                node.suspect_until_s = context.now_s + context.config.suspicion_s
                if node.state is NodeState.LIVE:
                    node.state, node.is_reported = NodeState.SUSPECT, True
                    context.cluster.changed()
        context.out.append(Reply(request.peer, request.request_id, Done()))


def record_of(space: Namespace) -> NamespaceRecord:
    """Return a namespace as the wire has it."""
    current = space.current
    return NamespaceRecord(
        space.slot, space.name, current.epoch, space.manifest or {}, len(current.objects),
        current.bytes,
    )  # fmt: skip


def _check_manifest(manifest: dict[str, str]) -> None:
    size = sum(len(name.encode()) + len(text.encode()) for name, text in manifest.items())
    if size > MANIFEST_BYTES_MAX:
        raise InvalidArgument(f"a manifest takes at most {MANIFEST_BYTES_MAX} bytes, not {size}")


def _difference(name: str, there: dict[str, str], stated: dict[str, str]) -> str:
    fields = [
        f"{field}: {there.get(field)!r} there, {stated.get(field)!r} stated"
        for field in sorted(there.keys() | stated.keys())
        if there.get(field) != stated.get(field)
    ]
    return f"namespace {name!r} has another manifest ({'; '.join(fields[:5])})"
