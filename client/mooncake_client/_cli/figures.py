"""Durations collected one by one, and the percentiles of them."""

from __future__ import annotations

import math
from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class Durations:
    """Seconds that calls took, all of them: no percentile is an estimate.

    Eight bytes a call; a minute of the fastest calls there are (some 100,000/s) is 50 MB.
    """

    __slots__ = ("_seconds",)

    def __init__(self, seconds: Iterable[float] = ()) -> None:
        self._seconds = array("d", seconds)

    def add(self, seconds: float) -> None:
        """Note one call."""
        self._seconds.append(seconds)

    def merge(self, other: Durations) -> None:
        """Note all calls of another collection."""
        self._seconds.extend(other._seconds)

    def __len__(self) -> int:
        return len(self._seconds)

    def percentile_ms(self, percent: float) -> float | None:
        """Return the least noted duration that ``percent`` of all do not exceed, in milliseconds.

        This is the nearest-rank definition: the result is a duration that occurred. None if none
        did.
        """
        if not self._seconds:
            return None
        ordered = sorted(self._seconds)
        rank = max(1, math.ceil(percent / 100 * len(ordered)))
        return round(1000 * ordered[rank - 1], 4)
