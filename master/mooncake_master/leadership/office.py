"""May this master serve now? Answered before it handles anything and before it answers anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mooncake_store.errors import NotLeader

if TYPE_CHECKING:
    from collections.abc import Callable

SURE_SHARE: Final = 0.9
"""Share of a lease for which its holder serves. The rest is for clocks that run at different
speeds (a part in a thousand would be a broken one) and for replies that are being written."""


class Office:
    """The right to serve, which ends by itself.

    It is counted from before the request that asked for the lease was sent, on our own clock, so
    it ends before the lease can end at the coordinator, whatever happens to us or the network.

    Attributes:
        leader: Address of the master that serves; empty where none is known.
        problem: Why none is known; empty while all is well.
        ended: How often this master lost the office.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """Begin as a standby.

        Args:
            clock: Seconds; goes on while the process or its host is stopped.
        """
        self.clock = clock
        self.leader = ""
        self.problem = "nobody was asked yet"
        self.ended = 0
        self._until_s = float("-inf")

    def holds(self) -> bool:
        """Return whether this master may serve at this moment."""
        return self.clock() < self._until_s

    @property
    def left_s(self) -> float:
        """Time for which it may serve if nothing more is heard of the coordinator."""
        return max(0.0, self._until_s - self.clock())

    def extend(self, asked_s: float, ttl_s: float) -> None:
        """Serve for the sure part of a lease that was asked for at ``asked_s``."""
        self._until_s = max(self._until_s, asked_s + ttl_s * SURE_SHARE)

    def leave(self) -> None:
        """Serve no longer."""
        self._until_s = float("-inf")
        self.leader = ""
        self.ended += 1

    def refusal(self) -> NotLeader:
        """Return what callers are told while this master does not serve."""
        if self.leader:
            return NotLeader(f"this master stands by; {self.leader} leads", node=self.leader)
        because = f" ({self.problem})" if self.problem else ""
        return NotLeader(f"this master stands by, and no leader is known{because}")

    def reason(self) -> str:
        """Return why this master does not serve, for operators; empty when it does."""
        if self.holds():
            return ""
        if self.leader:
            return f"standby of {self.leader}"
        return f"standby; no leader is known: {self.problem or 'an election is under way'}"
