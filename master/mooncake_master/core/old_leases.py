"""Leases that an earlier master gave: what readers may still use of nodes that are not back.

A master that has begun anew knows no lease of the reign before, but how long the longest can last.
What it finds on a node it takes for leased (``Recovery``). On a node that is not back it cannot
have anything erased, so what it removes there stays readable for who was told of it: until then
the answer to a removal waits (docs/adr/0081).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_master.core.records import NEVER

if TYPE_CHECKING:
    from mooncake_master.core.barriers import Barrier
    from mooncake_master.core.context import Context
    from mooncake_master.core.notes import Notes


class OldLeases:
    """Has replies wait for leases of the reign before.

    Attributes:
        over: They have all ended.
        told: It is known which nodes there were; otherwise any may be missing.
    """

    def __init__(self, context: Context, notes: Notes) -> None:
        self.over = False
        self.told = False
        self._context = context
        self._notes = notes
        self._until_s: float | None = None

    def never_were(self) -> None:
        """There was no master before."""
        self.over = True
        self._until_s = NEVER

    def tick(self) -> None:
        """Let time pass; the first event that is seen counts as the beginning of this reign."""
        if not self.over:
            self.over = self._end_s() <= self._context.now_s

    def keep_waiting(self, barrier: Barrier) -> None:
        """Have a reply wait for their end, if what it ends may be readable on a missing node."""
        end_s = self._end_s()
        if barrier.strangers or end_s <= self._context.now_s or not self._is_somebody_missing:
            return
        barrier.strangers = True
        barrier.waiting += 1  # confirmed by nobody, so the end of the leases is waited for
        barrier.lease_s = max(barrier.lease_s, end_s)

    def _end_s(self) -> float:
        if self._until_s is None:
            self._until_s = self._context.now_s + self._context.config.lease_ttl_s
        return self._until_s

    @property
    def _is_somebody_missing(self) -> bool:
        """Whether a node of the reign before is not back, or not read to its end.

        Where nobody has said who was there, somebody may be, unless all who came are new.
        """
        context = self._context
        if context.unseen or context.unlisted:
            return True
        return not self.told and not (context.fresh and self._notes.all_have_come)
