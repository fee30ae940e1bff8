"""What may be written: endurance of flash is spent on purpose. Pure; time is an argument."""

from __future__ import annotations

from array import array
from typing import Final, NamedTuple

DAY_S: Final = 86_400.0

BURST_SHARE: Final = 0.25
"""Share of a day's budget that may be spent at once. The rest accrues evenly, so that any 24 hours
stay within the budget and an evening is not without a tier because the morning was busy."""

OFFERS_REMEMBERED: Final = 1 << 18
"""Offers that ``OfferMemory`` tells apart: 2 MiB. A cache of N entries should remember some N."""


class OfferMemory:
    """Remembers which objects were offered lately: one cell per hash, newest wins.

    A forgotten offer only costs an object one more round; two objects never count as one, but for
    one chance in 2**46.
    """

    __slots__ = ("_cells",)

    def __init__(self, cells: int = OFFERS_REMEMBERED) -> None:
        """Begin with an empty memory; ``cells`` is a power of two."""
        self._cells = array("Q", bytes(8 * cells))

    def seen_before(self, fingerprint: bytes) -> bool:
        """Return whether this object was offered before, and remember that it was."""
        value = int.from_bytes(fingerprint[:8], "little") | 1
        cell = int.from_bytes(fingerprint[8:], "little") & (len(self._cells) - 1)
        seen = self._cells[cell] == value
        self._cells[cell] = value
        return seen


class WearState(NamedTuple):
    """What is kept over restarts."""

    day: int
    """Days since 1970, UTC."""
    today_bytes: int
    """Bytes written to the disk on that day."""
    user_bytes: int
    """Bytes of extents stored for users, ever."""
    total_bytes: int
    """Bytes written to the disk, ever."""
    tokens: float
    """Bytes of the budget left to spend now."""
    at_s: float
    """Wall-clock time of ``tokens``."""


class Wear:
    """Counts what is written, and says whether more may be.

    Wall-clock time is used, since it must mean the same after a restart; a clock that jumps back
    adds nothing, one that jumps ahead adds a burst at most.
    """

    __slots__ = ("_at_s", "_budget", "_day", "_tokens", "today_bytes", "total_bytes", "user_bytes")

    def __init__(self, budget_bytes_per_day: int, now_s: float, state: WearState | None) -> None:
        """Begin, or go on from a state that was kept; budget 0: none."""
        self._budget = budget_bytes_per_day
        self._day = state.day if state else int(now_s // DAY_S)
        self.today_bytes = state.today_bytes if state else 0
        self.user_bytes = state.user_bytes if state else 0
        self.total_bytes = state.total_bytes if state else 0
        burst = self._budget * BURST_SHARE
        self._tokens = min(burst, state.tokens) if state and self._budget else burst
        self._at_s = state.at_s if state else now_s

    def allows(self, size: int, now_s: float) -> bool:
        """Return whether ``size`` more bytes may be written now."""
        if not self._budget:
            return True
        self._accrue(now_s)
        return self._tokens >= size

    def spend(self, *, user_bytes: int, total_bytes: int, now_s: float) -> None:
        """Count bytes that were written."""
        self._accrue(now_s)
        self._tokens -= total_bytes
        self.today_bytes += total_bytes
        self.user_bytes += user_bytes
        self.total_bytes += total_bytes

    def amplification(self) -> float:
        """Return the bytes written for each byte of users, ever; 1.0 before the first."""
        return self.total_bytes / self.user_bytes if self.user_bytes else 1.0

    def state(self) -> WearState:
        """Return what has to be kept."""
        return WearState(self._day, self.today_bytes, self.user_bytes, self.total_bytes,
                         self._tokens, self._at_s)  # fmt: skip

    def _accrue(self, now_s: float) -> None:
        day = int(now_s // DAY_S)
        if day > self._day:
            self._day = day
            self.today_bytes = 0
        rate = self._budget * (1 - BURST_SHARE) / DAY_S
        earned = max(0.0, now_s - self._at_s) * rate
        self._tokens = min(self._budget * BURST_SHARE, self._tokens + earned)
        self._at_s = now_s
