"""How much of the pool was leased lately: an estimate, for the pressure that writers are told.

Exact leases are one number in each object; summing them up would be a walk. Here each call adds
the size of what was not leased before it, and takes it away again when its lease ends, so that
objects which are read all the time count once, with short gaps.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mooncake_master.core.context import Context


class LeaseEstimate:
    """Sum of recent leases, in ``Context.leased_granules``."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._ends: deque[tuple[float, int]] = deque()

    def add(self, granules: int, end_s: float) -> None:
        """Count what a call has leased; holds that end later are counted until their turn."""
        ends = self._ends
        self._context.leased_granules += granules
        if ends and ends[-1][0] == end_s:
            ends[-1] = (end_s, ends[-1][1] + granules)
        else:
            ends.append((end_s, granules))

    def expire(self) -> None:
        """Take away what has ended."""
        ends = self._ends
        now_s = self._context.now_s
        while ends and ends[0][0] <= now_s:
            self._context.leased_granules -= ends.popleft()[1]
