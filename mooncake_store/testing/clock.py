"""A clock that moves only when it is told to, and runs what was due on the way."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Timer:
    """One action that a ``VirtualClock`` will run.

    Attributes:
        at_s: When it is due, on the clock it was made by.
        action: What will be run; None when it was run or cancelled.
    """

    __slots__ = ("action", "at_s")

    def __init__(self, at_s: float, action: Callable[[], None]) -> None:
        self.at_s = at_s
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        """Do not run the action; harmless when it ran already."""
        self.action = None


class VirtualClock:
    """Virtual time in seconds, for code that takes the time as an argument or as a callable.

    Actions run in the order of their times, those of one time in the order in which they were
    asked for, so that a run with the same actions is the same run. An instance can stand in for
    ``time.monotonic``: calling it returns the time.

    Not safe for use by several threads.
    """

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s
        self._timers: list[tuple[float, int, Timer]] = []
        self._count = 0

    @property
    def now_s(self) -> float:
        """The time."""
        return self._now_s

    def __call__(self) -> float:
        """Return the time."""
        return self._now_s

    def call_at(self, at_s: float, action: Callable[[], None]) -> Timer:
        """Run ``action`` at ``at_s``; a time that has passed means as soon as the clock moves."""
        self._count += 1
        timer = Timer(max(at_s, self._now_s), action)
        heapq.heappush(self._timers, (timer.at_s, self._count, timer))
        return timer

    def call_later(self, delay_s: float, action: Callable[[], None]) -> Timer:
        """Run ``action`` after ``delay_s`` seconds."""
        return self.call_at(self._now_s + delay_s, action)

    def run_next(self, until_s: float = float("inf")) -> bool:
        """Move to the next action and run it, if one is due by ``until_s``.

        Returns:
            Whether there was one; if not, the clock did not move.
        """
        timers = self._timers
        while timers and timers[0][0] <= until_s:
            at_s, _, timer = heapq.heappop(timers)
            action, timer.action = timer.action, None
            if action is not None:
                self._now_s = at_s
                action()
                return True
        return False

    def run_until(self, until_s: float) -> None:
        """Run everything that is due by ``until_s``, then stand there."""
        while self.run_next(until_s):
            pass
        self._now_s = max(self._now_s, until_s)

    def advance(self, by_s: float) -> None:
        """Move on by ``by_s`` seconds, running what is due on the way."""
        self.run_until(self._now_s + by_s)

    def run_until_true(self, condition: Callable[[], bool], until_s: float) -> bool:
        """Run actions until ``condition`` holds or none is left that is due by ``until_s``."""
        while not condition():
            if not self.run_next(until_s):
                return condition()
        return True
