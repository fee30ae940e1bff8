"""Competing for the office, holding it, giving it up.

    stand by --the seat is free, and we took it--> lead --the lease is in doubt--> stand by

While it leads, a master renews its lease five times in a lease's length, and counts a renewal only
when a read that a majority confirmed came after it: a member of etcd that was cut off may renew
leases that the others let end.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import TYPE_CHECKING, Final, Protocol

from mooncake_master.leadership.coordinator import Lease, Reign, Seat
from mooncake_store.errors import StoreError

if TYPE_CHECKING:
    from mooncake_master.leadership.coordinator import Coordinator
    from mooncake_master.leadership.office import Office

logger = logging.getLogger(__name__)

RENEWALS: Final = 5
"""Renewals in the length of a lease. Fewer: one lost request costs the office. More: load."""

LOOK_S: Final = 0.2
"""Pause between a standby's looks at the seat: each is one read of a few hundred bytes."""

DOUBT: Final = "the lease is not sure any more"
NOT_OURS: Final = "the seat at etcd is not ours any more"

FAREWELL_S: Final = 1.0
"""Time for giving the lease back; without that the others wait for its end."""


class Actor(Protocol):
    """The rest of the master, as the campaign directs it. Only ``prepare`` waits."""

    async def prepare(self, candidate: str) -> None:
        """Learn what earlier leaders have kept; the seat is ours.

        Raises:
            StoreError: That is not possible now; somebody else may try.
        """
        ...

    def lead(self, term: int, cluster_id: str) -> None:
        """Serve from now on, as the master of this term."""
        ...

    def follow(self, cluster_id: str) -> None:
        """Serve no longer: answer what is under way with the office's refusal."""
        ...

    def term(self) -> int:
        """Return the term that is used; nodes may have made it higher than the one won."""
        ...

    def next_term(self, used: int) -> int:
        """Return a term above ``used`` and above every other one that this master knows of."""
        ...


class Campaign:
    """One master's part in the competition."""

    def __init__(
        self,
        coordinator: Coordinator,
        office: Office,
        actor: Actor,
        *,
        address: str,
        cluster_id: str,
        lease_s: float,
    ) -> None:
        """Prepare; ``run`` begins.

        Args:
            coordinator: Where the masters meet.
            office: Says to the rest of this process whether it may serve.
            actor: The rest of this process.
            address: Where nodes and clients reach this master.
            cluster_id: Name of the pool, if this master is the first.
            lease_s: Length of the lease; what others wait for when this master is gone.
        """
        self._coordinator = coordinator
        self._office = office
        self._actor = actor
        self._address = address
        self._cluster_id = cluster_id
        self._lease_s = lease_s
        self._candidate = secrets.token_hex(8)
        self._lease: Lease | None = None
        self._used = 0
        """Highest term seen: etcd may lose its data and count anew."""

    async def run(self) -> None:
        """Compete until cancelled."""
        while True:
            try:
                await self._stand_by()
            except StoreError as error:
                self._note(f"etcd does not answer: {error}")
            await asyncio.sleep(LOOK_S)

    async def resign(self) -> None:
        """Leave the office and let the next one have it at once; ``run`` must be over."""
        self._office.leave()
        await self._give_back()
        await self._coordinator.aclose()

    # --- standing by ----------------------------------------------------------------------------

    async def _stand_by(self) -> None:
        """Look at the seat once; take it where it is free, and lead while that lasts."""
        reign = await self._coordinator.read()
        self._used = max(self._used, reign.term)
        seat = reign.seat
        self._note("" if seat is not None else "an election is under way")
        self._show(reign)
        if seat is None:
            await self._compete(reign)

    def _note(self, problem: str) -> None:
        office = self._office
        if problem != office.problem and problem:
            logger.info("standing by: %s", problem)
        office.problem = problem
        if problem:
            office.leader = ""

    def _show(self, reign: Reign) -> None:
        seat = reign.seat
        leader = seat.address if seat is not None and seat.serving else ""
        if seat is not None and seat.candidate == self._candidate:
            leader = ""  # Our own, of before; its lease is not renewed any more.
        if leader and leader != self._office.leader:
            logger.info("standing by: %s leads", leader)
        self._office.leader = leader

    async def _compete(self, reign: Reign) -> None:
        """Try to take the seat, and lead if that succeeds."""
        asked_s = self._office.clock()
        lease = self._lease = await self._coordinator.grant(self._lease_s)
        cluster_id = reign.cluster_id or self._cluster_id
        seat = Seat(self._address, self._candidate, self._actor.next_term(self._used))
        try:
            if await self._coordinator.take(lease, seat, reign, cluster_id):
                await self._actor.prepare(self._candidate)
                self._office.extend(asked_s, lease.ttl_s)  # Not earlier: nothing is known before.
                if self._office.holds():
                    await self._lead(lease, seat, cluster_id)
        finally:
            await self._give_back()

    async def _give_back(self) -> None:
        """End our lease, so that nobody has to wait for its end; not held up by anything."""
        lease, self._lease = self._lease, None
        if lease is None:
            return
        try:
            async with asyncio.timeout(FAREWELL_S):
                await self._coordinator.revoke(lease)
        except (StoreError, TimeoutError) as error:
            logger.info("the lease was not given back, it ends by itself: %s", error)

    # --- leading --------------------------------------------------------------------------------

    async def _lead(self, lease: Lease, seat: Seat, cluster_id: str) -> None:
        """Serve until the lease is in doubt."""
        logger.info("leading: term %d of cluster %s", seat.term, cluster_id)
        self._office.leader = ""
        self._office.problem = DOUBT  # What is said from the moment at which the office ends.
        self._actor.lead(seat.term, cluster_id)
        reason = await self._hold(lease, seat)
        logger.warning("not leading any more: %s", reason)
        self._office.leave()
        self._office.problem = reason
        self._actor.follow(cluster_id)

    async def _hold(self, lease: Lease, seat: Seat) -> str:
        """Renew the lease again and again; return why that came to an end."""
        problem = "it was not renewed in time"
        said = 0
        while self._office.holds():
            left_s = self._office.left_s
            try:
                async with asyncio.timeout(left_s):
                    if said != self._actor.term():
                        said = await self._announce(lease, seat)
                    lost = await self._renew(lease) if said else NOT_OURS
                    if lost:
                        return lost
                    await asyncio.sleep(self._lease_s / RENEWALS)
            except TimeoutError:  # The lease may be over: the loop's condition says so.
                continue
            except StoreError as error:
                if str(error) != problem:
                    logger.warning("%s; this master leads for %.1f s more", error, left_s)
                problem = str(error)
                await asyncio.sleep(min(left_s, LOOK_S))
        return f"{DOUBT}: {problem}"

    async def _announce(self, lease: Lease, seat: Seat) -> int:
        """Let others send their callers here, which answers by now; return the term told, or 0."""
        term = self._actor.term()
        told = Seat(seat.address, seat.candidate, term, serving=True)
        return term if await self._coordinator.update(lease, told) else 0

    async def _renew(self, lease: Lease) -> str:
        """Renew the lease and see that the seat is ours; return why not."""
        asked_s = self._office.clock()
        ttl_s = await self._coordinator.renew(lease)
        if not ttl_s:
            return "the lease has ended at etcd"
        reign = await self._coordinator.read()
        if reign.seat is None or reign.seat.candidate != self._candidate:
            return NOT_OURS
        if not self._office.holds():
            return "this process was stopped for longer than its lease"
        self._office.extend(asked_s, ttl_s)
        return ""
