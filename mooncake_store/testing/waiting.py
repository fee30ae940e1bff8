"""Waiting for a condition, never for a length of time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_Found = TypeVar("_Found")

_PAUSE_S_FIRST: Final = 0.002
_PAUSE_S_MOST: Final = 0.1


class ConditionNotMet(AssertionError):
    """A condition did not come true before its deadline."""


def wait_until(
    condition: Callable[[], _Found],
    deadline_s: float,
    *,
    what: str = "",
    ignoring: tuple[type[Exception], ...] = (),
) -> _Found:
    """Call ``condition`` until it returns something true, and return that.

    It is called at once, then at growing intervals of at most 0.1 s, and once more when the
    deadline has passed, so that a slow machine gets its chance.

    Args:
        condition: What to wait for; it should take a bounded time itself.
        deadline_s: How long to wait at most, in seconds from now.
        what: What is waited for, for the message; the condition's name by default.
        ignoring: Exceptions of ``condition`` that mean "not yet"; all others pass through.

    Raises:
        ConditionNotMet: The deadline passed; the message shows the last value or exception.
    """
    end_s = time.monotonic() + deadline_s
    pause_s = _PAUSE_S_FIRST
    while True:
        late = time.monotonic() >= end_s
        last: object
        try:
            found = condition()
        except ignoring as error:
            last = error
        else:
            if found:
                return found
            last = found
        if late:
            name = what or getattr(condition, "__qualname__", repr(condition))
            raise ConditionNotMet(f"not within {deadline_s:g} s: {name} (last: {last!r})")
        time.sleep(min(pause_s, max(0.0, end_s - time.monotonic())))
        pause_s = min(2 * pause_s, _PAUSE_S_MOST)
