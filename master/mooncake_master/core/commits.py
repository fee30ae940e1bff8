"""Granted attempts, and how they end: commit, abort, expiry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mooncake_master.core import accounting
from mooncake_master.core.barriers import Barrier
from mooncake_master.core.instructions import Reply
from mooncake_master.core.records import Stored
from mooncake_store.errors import (
    AttemptExpired,
    InvalidArgument,
    ReplicasUnavailable,
    StaleEpoch,
    StoreError,
    VersionConflict,
)
from mooncake_store.wire.control import Committed, Done, PutCommitted, Refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from mooncake_master.core.barriers import Request
    from mooncake_master.core.catalog import Catalog
    from mooncake_master.core.context import Context
    from mooncake_master.core.freeing import Freer
    from mooncake_master.core.parking import Parking
    from mooncake_master.core.records import Attempt, Extent
    from mooncake_store.wire.control import PutAbort, PutCommit

    EnsureDurable = Callable[[Stored, Barrier, Callable[[Refusal], None]], None]

_NONE: Final[frozenset[int]] = frozenset()


class Commits:
    """The attempts that writers know of.

    Attributes:
        granules: Room that they hold.
        ensure_durable: Lets a reply wait until an object is on a disk: called with it, what holds
            the reply back, and what to tell why no disk takes it.
    """

    def __init__(
        self, context: Context, catalog: Catalog, freer: Freer, parking: Parking,
        pressure: Callable[[], float],
    ) -> None:  # fmt: skip
        self._context = context
        self._catalog = catalog
        self._freer = freer
        self._parking = parking
        self._pressure = pressure
        self.ensure_durable: EnsureDurable = _never_asked
        self._attempts: dict[int, Attempt] = {}
        self._by_peer: dict[int, dict[int, None]] = {}
        self._not_before_s = 0.0
        self._in_sets = 0
        self.granules = 0

    def __len__(self) -> int:
        return len(self._attempts)

    def attempts(self) -> list[Attempt]:
        """Return all of them."""
        return list(self._attempts.values())

    def grant(self, attempt: Attempt) -> None:
        """Enter an attempt that has its room; the writer has until its expiry to commit it."""
        context = self._context
        attempt.expires_s = context.now_s + context.config.put_ttl_s
        for extent in attempt.extents:
            self.granules += extent.after.offset - extent.offset
        self._attempts[attempt.version] = attempt
        order = attempt.order
        self._in_sets += order.set_count > 0
        mine = self._by_peer.get(order.peer)
        if mine is None:
            mine = self._by_peer[order.peer] = {}
        mine[attempt.version] = None
        context.attempts += 1
        context.counters[accounting.GRANTED] += 1

    def commit(self, request: Request, message: PutCommit) -> None:
        """Handle a `PutCommit`; the reply waits until replaced versions are unreadable."""
        context = self._context
        barrier = Barrier(request.peer, request.request_id, request.deadline_s)
        refused = self._refused_sets(message) if self._in_sets else _NONE
        results: list[Committed | Refusal] = []
        for item in message.items:
            attempt = self._attempts.get(item.version)
            try:
                if attempt is None:
                    raise AttemptExpired(f"attempt {item.version} is over or never was")
                if attempt.order.set_id in refused:
                    raise AttemptExpired(f"the set of {attempt.item.key!r} was not committed whole")
                chosen = self._chosen(attempt, item.written)
            except StoreError as error:
                if attempt is not None:
                    self._end(attempt, attempt.extents)
                context.counters[accounting.refused(error.code)] += 1
                results.append(Refusal(error.code, str(error)))
            else:
                stored = self._finish(attempt, chosen, barrier)
                results.append(Committed(attempt.version, len(chosen)))
                if attempt.order.durable:
                    self.ensure_durable(stored, barrier, _refuse_in(results))
        self._freer.seal(barrier, PutCommitted(results, self._pressure()))

    def abort(self, request: Request, message: PutAbort) -> None:
        """Handle a `PutAbort`; unknown attempts are over already, which is what is wanted."""
        for version in message.versions:
            attempt = self._attempts.get(version)
            if attempt is not None:
                self._context.counters[accounting.ABORTED] += 1
                self._end(attempt, attempt.extents)
        self._context.out.append(Reply(request.peer, request.request_id, Done()))

    def expire(self) -> None:
        """End attempts whose time is over."""
        now_s = self._context.now_s
        if now_s < self._not_before_s:
            return
        while self._attempts:
            attempt = next(iter(self._attempts.values()))
            if attempt.expires_s > now_s:
                break
            self._expire(attempt)

    def paused(self, until_s: float) -> None:
        """Give writers time: we did not listen to their commits for a while."""
        self._not_before_s = until_s

    def forget_peer(self, peer: int) -> None:
        """End the attempts of a connection that is gone."""
        for version in list(self._by_peer.get(peer, ())):
            self._expire(self._attempts[version])

    def _expire(self, attempt: Attempt) -> None:
        self._context.counters[accounting.EXPIRED] += 1
        self._end(attempt, attempt.extents)
        home = attempt.home
        key = attempt.item.key
        if key not in home.objects and not home.cleared:
            self._catalog.gone.note_expired(home.space.slot, key)

    def _refused_sets(self, message: PutCommit) -> set[int]:
        """Return the sets of which not every attempt can be committed by this request."""
        known = [
            (attempt, item.written)
            for item in message.items
            if (attempt := self._attempts.get(item.version)) is not None and attempt.order.set_id
        ]
        counts: dict[int, int] = {}
        for attempt, written in {a.version: (a, w) for a, w in known}.values():
            try:
                self._chosen(attempt, written)
            except StoreError:  # Its item is answered with it; here it only is missing.
                continue
            set_id = attempt.order.set_id
            counts[set_id] = counts.get(set_id, 0) + 1
        orders = {attempt.order for attempt, _ in known}
        return {order.set_id for order in orders if counts.get(order.set_id) != order.set_count}

    def _chosen(self, attempt: Attempt, written: int) -> list[Extent]:
        """Return the extents that the writer has written and that can be read.

        Raises:
            InvalidArgument: It has written none.
            ReplicasUnavailable: The nodes of those it has written went away.
            StaleEpoch: The namespace was cleared since the attempt began.
            VersionConflict: The version that it expected is not there any more.
        """
        home, item = attempt.home, attempt.item
        key = item.key
        if home.cleared:
            raise StaleEpoch(f"namespace {home.space.name!r} was cleared meanwhile", key=key)
        if item.expected_version >= 0:
            stored = home.objects.get(key)
            there = stored.version if stored is not None else 0
            if there != item.expected_version:
                raise VersionConflict(
                    f"{key!r} is at version {there}, not {item.expected_version}", key=key
                )
        extents = attempt.extents
        if written == 1 and len(extents) == 1 and extents[0].segment.readable:
            return extents
        chosen = [
            extent for at, extent in enumerate(extents)
            if written >> at & 1 and extent.segment.readable
        ]  # fmt: skip
        if chosen:
            return chosen
        if not written:
            raise InvalidArgument(f"no replica of {key!r} was written: it is given up", key=key)
        raise ReplicasUnavailable(f"the nodes that {key!r} was written to went away", key=key)

    def _finish(self, attempt: Attempt, chosen: list[Extent], barrier: Barrier) -> Stored:
        """Make an attempt the object's version, and return the object."""
        context, catalog = self._context, self._catalog
        others: list[Extent] | tuple[()] = ()
        if len(chosen) != len(attempt.extents):
            others = [extent for extent in attempt.extents if extent not in chosen]
        item, order = attempt.item, attempt.order
        stored = self._enter(attempt, chosen, barrier)
        catalog.give_up_kept(attempt.home, item.key, barrier)
        # A removal or replacement before this one may not be confirmed yet: as long as its old
        # value can be read somewhere, this one is not acknowledged either.
        self._freer.follow(attempt.home, item.key, barrier)
        context.counters[accounting.ACKNOWLEDGED] += 1
        if len(chosen) < order.wanted:
            context.counters[accounting.FEWER] += 1
        stored.wanted = order.wanted
        if len(chosen) < order.wanted:
            catalog.shortened(stored)
        if order.pin_s > context.now_s:
            catalog.pin(stored, order.pin_s)
        if attempt.group is not None or order.set_id or item.parent or stored.hints is not None:
            catalog.link(stored, attempt.group, item.parent, order.set_id)
        self._end(attempt, others)
        return stored

    def _enter(self, attempt: Attempt, chosen: list[Extent], barrier: Barrier) -> Stored:
        """Make an attempt what its key stands for in the index."""
        catalog, home, item = self._catalog, attempt.home, attempt.item
        slot, key, replaces = home.space.slot, item.key, attempt.order.replaces
        stored = home.objects.get(key)
        # A plain put of a key of which nothing was known or removed promises nothing about others.
        if not catalog.old_leases.over and (
            replaces or stored is not None or catalog.gone.gone_up_to(slot, key)
        ):
            catalog.old_leases.keep_waiting(barrier)
        if stored is None:
            if replaces:  # perhaps what somebody holds who is away
                catalog.tombs.note(slot, key, attempt.version - 1)
            stored = Stored(home, key, attempt.version, item.length)
            catalog.insert(stored, chosen)
        else:
            barrier.lease_s = max(barrier.lease_s, stored.lease_s)
            catalog.tombs.note(slot, key, stored.version)
            catalog.replace(stored, attempt.version, item.length, chosen, barrier)
        catalog.tombs.spare(slot, key, attempt.version)
        return stored

    def _end(self, attempt: Attempt, freed: list[Extent] | tuple[()]) -> None:
        """Take an attempt out; free those of its extents that do not become an object's."""
        version, home, order = attempt.version, attempt.home, attempt.order
        del self._attempts[version]
        self._in_sets -= order.set_count > 0
        mine = self._by_peer[order.peer]
        del mine[version]
        if not mine:
            del self._by_peer[order.peer]
        self._context.attempts -= 1
        for extent in attempt.extents:
            self.granules -= extent.after.offset - extent.offset
        for extent in freed:
            self._freer.free(extent, version, None, home, attempt.item.key)
        key = attempt.item.key
        if home.writing.get(key) is attempt:
            del home.writing[key]
        if attempt.group is not None:
            self._catalog.leave_group(home, attempt.group)
        if attempt.waiters is not None:
            self._parking.attempt_over(attempt)


def _never_asked(stored: Stored, barrier: Barrier, refuse: Callable[[Refusal], None]) -> None:
    """Stand in where nothing is written to disks."""


def _refuse_in(results: list[Committed | Refusal]) -> Callable[[Refusal], None]:
    """Return what puts a refusal in the place of the last result."""
    at = len(results) - 1

    def refuse(refusal: Refusal) -> None:
        results[at] = refusal

    return refuse
