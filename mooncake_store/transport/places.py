"""A bounded number of places for connections, safe from interruptions at any point.

``threading.Condition`` is not: where Ctrl-C arrives while its lock is being taken or let go, the
lock stays taken, and every other thread waits for it without end. ``with`` on a plain lock is.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import deque
from typing import Final

LOOK_S: Final = 0.01
"""Time after which who waits looks again by itself: a thread that is interrupted takes a sign that
was meant for others with it. Smaller: waiting costs more of the processor."""


class Opening:
    """Holds the place of a connection that is being opened."""

    __slots__ = ("__weakref__",)


class Ticket:
    """One thread that waits."""

    __slots__ = ("_gate",)

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._gate.acquire()

    def wait(self, most_s: float) -> None:
        """Wait for a sign, for at most this long."""
        self._gate.acquire(timeout=most_s)

    def call(self) -> None:
        """Give the sign."""
        self._gate.release()


class Places:
    """Who has a place, and who waits for one.

    What has a place is known by weak references only: a connection that an interrupted call lost
    on its way gives its place back as it is collected.

    Attributes:
        lock: Held by the caller of each method here but ``wait``.
        waiting: Those who wait, the longest first.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._taken: weakref.WeakSet[object] = weakref.WeakSet()
        self.waiting: deque[Ticket] = deque()

    def take(self, thing: object, places_max: int) -> bool:
        """Give a thing a place; False: all are taken."""
        if len(self._taken) >= places_max:
            return False
        self._taken.add(thing)
        return True

    def pass_on(self, opening: Opening, thing: object) -> None:
        """Give the place of an opening to what was opened."""
        self._taken.discard(opening)
        self._taken.add(thing)

    def leave(self, thing: object) -> None:
        """Take a thing's place back, if it has one, and give a sign."""
        self._taken.discard(thing)
        self.call()

    def holders(self) -> list[object]:
        """Return all that have a place."""
        return list(self._taken)

    def call(self) -> None:
        """Give one waiting thread a sign."""
        if self.waiting:
            self.waiting.popleft().call()

    def call_all(self) -> None:
        """Give every waiting thread a sign."""
        while self.waiting:
            self.call()

    def queue(self) -> Ticket:
        """Begin to wait; ``wait`` follows."""
        ticket = Ticket()
        self.waiting.append(ticket)
        return ticket

    def wait(self, ticket: Ticket, left_s: float) -> None:
        """Wait until a look is worth it; without the lock."""
        try:
            ticket.wait(min(left_s, LOOK_S))
        finally:
            with self.lock, contextlib.suppress(ValueError):
                self.waiting.remove(ticket)
