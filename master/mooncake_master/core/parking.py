"""Requests that wait for a write or for the end of the recovery, and are then handled again."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from mooncake_master.core.barriers import Parked
from mooncake_store.errors import DeadlineExceeded

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mooncake_master.core.barriers import Request
    from mooncake_master.core.context import Context
    from mooncake_master.core.records import Attempt

MARGIN_SHARE: Final = 0.1
"""Share of the time left that is kept for the answer's way back."""
MARGIN_S_MAX: Final = 0.1


def answer_by(deadline_s: float, now_s: float) -> float:
    """Return when a waiting request is answered at the latest, so that the answer is in time."""
    return deadline_s - min(MARGIN_S_MAX, MARGIN_SHARE * max(0.0, deadline_s - now_s))


class Parking:
    """The requests that wait.

    Attributes:
        ready: Requests to be handled again now, each with whether that is for the last time.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._parked: dict[Parked, None] = {}
        self.ready: deque[tuple[Parked, bool]] = deque()

    def __len__(self) -> int:
        return len(self._parked)

    def wait_for_writes(
        self, request: Request, attempts: Iterable[Attempt], until_s: float
    ) -> None:
        """Park a request until these attempts are over, whichever way, or a time has come."""
        parked = Parked(request, until_s)
        for attempt in attempts:
            parked.waiting += 1
            if attempt.waiters is None:
                attempt.waiters = [parked]
            else:
                attempt.waiters.append(parked)
        self._parked[parked] = None

    def wait_for_recovery(self, request: Request) -> None:
        """Park a request until the index is complete, or its deadline is near."""
        parked = Parked(request, answer_by(request.deadline_s, self._context.now_s))
        parked.waiting = -1
        self._parked[parked] = None

    def holds_back(self, request: Request, what: str) -> bool:
        """Park a request that only a complete index can answer; return whether it has to wait.

        Args:
            request: The request.
            what: What it asks for, and that this is not possible yet.

        Raises:
            DeadlineExceeded: It has waited as long as it can.
        """
        if not self._context.recovering:
            return False
        if request.final:
            raise DeadlineExceeded(f"{what} before the nodes' directories are listed")
        self.wait_for_recovery(request)
        return True

    def attempt_over(self, attempt: Attempt) -> None:
        """Wake who waited for an attempt alone, in the order in which they came."""
        waiters = attempt.waiters
        if waiters is None:
            return
        attempt.waiters = None
        for parked in waiters:
            parked.waiting -= 1
            if not parked.waiting and parked in self._parked:
                del self._parked[parked]
                self.ready.append((parked, False))

    def look_again(self) -> None:
        """Wake who waits for the recovery: what was missing may be known by now, or all of it."""
        for parked in [parked for parked in self._parked if parked.waiting < 0]:
            del self._parked[parked]
            self.ready.append((parked, False))

    def expire(self) -> None:
        """Wake who cannot wait any longer."""
        now_s = self._context.now_s
        for parked in [parked for parked in self._parked if parked.until_s <= now_s]:
            del self._parked[parked]
            self.ready.append((parked, True))

    def forget_peer(self, peer: int) -> None:
        """Drop the requests of a connection that is gone."""
        for parked in [parked for parked in self._parked if parked.request.peer == peer]:
            del self._parked[parked]
