"""Turns: connections with much to do share the loop fairly with everyone else.

A frame with thousands of keys takes milliseconds. Each turn of the event loop handles one such
frame, whoever sent it; then the loop looks at all sockets again. So a single lookup waits for at
most one big frame, however many clients send big ones (field report 039).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Busy(Protocol):
    """Somebody with work that waits for a turn."""

    def turn(self) -> bool:
        """Do one piece of work and return whether there is more."""
        ...


class Turns:
    """The queue of those who wait; bounded, since each connection stands in it at most once."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._waiting: deque[Busy] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, busy: Busy) -> None:
        """Give ``busy`` a turn later; it must not be waiting already."""
        self._waiting.append(busy)
        if len(self._waiting) == 1:
            self._call_soon(self._next)

    def _next(self) -> None:
        busy = self._waiting[0]
        more = busy.turn()
        self._waiting.popleft()
        if more:
            self._waiting.append(busy)
        if self._waiting:
            self._call_soon(self._next)
