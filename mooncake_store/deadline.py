"""The moment by which a call must have ended; every wait takes what is left of it."""

from __future__ import annotations

import time

from mooncake_store import limits
from mooncake_store.errors import DeadlineExceeded, InvalidArgument


class Deadline:
    """A point on the monotonic clock.

    Attributes:
        at_s: ``time.monotonic()`` at which the call must have ended.
        total_s: How long the caller allowed, for messages.
    """

    __slots__ = ("at_s", "total_s")

    def __init__(self, total_s: float) -> None:
        """Start now.

        Raises:
            InvalidArgument: Not a number, negative, or over ``limits.DEADLINE_S_MAX``.
        """
        is_number = isinstance(total_s, (int, float))
        if not is_number or not 0 <= total_s <= limits.DEADLINE_S_MAX:
            raise InvalidArgument(
                f"a deadline lies between 0 and {limits.DEADLINE_S_MAX:g} s, not at {total_s!r}"
            )
        self.total_s = total_s
        self.at_s = time.monotonic() + total_s

    def __str__(self) -> str:
        """Return its length for messages; what was left of another one has many digits."""
        return f"{round(self.total_s, 3):g} s"

    def within(self, limit_s: float) -> Deadline:
        """Return the deadline of a part of the call, which takes ``limit_s`` at most."""
        return Deadline(min(self.left_s(), limit_s))

    def left_s(self) -> float:
        """Return the seconds left, never negative."""
        return max(0.0, self.at_s - time.monotonic())

    def left_ms(self) -> int:
        """Return the milliseconds left, at least 1: what a request carries on the wire."""
        return max(1, int((self.at_s - time.monotonic()) * 1000))

    def check(self, doing: str, *, key: str | None = None, node: str | None = None) -> float:
        """Return the seconds left.

        Raises:
            DeadlineExceeded: None are; the message says what was being done.
        """
        left = self.at_s - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded(
                f"the deadline of {self} passed while {doing}", key=key, node=node
            )
        return left
