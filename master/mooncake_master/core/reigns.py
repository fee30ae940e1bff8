"""Where the numbers of a new reign begin, so that none is ever given twice (docs/adr/0035)."""

from __future__ import annotations

from typing import Final

from mooncake_store.types import COUNT_BITS, TERM_MAX

FIRST_S: Final = 1_735_689_600
"""Beginning of 2025, in seconds since 1970: no master is older."""

TERM_S: Final = 120
"""Seconds in which the clock's term stays the same: 22 bits of terms last until 2040."""

COUNTS_PER_MS: Final = 1 << 20
"""Attempts that are set aside for each millisecond in which a reign can begin. A reign that began
a millisecond earlier cannot have granted as many; all of them are an eighth of a term's counts."""


def first_numbers(wall_s: float, last_term: int = 0) -> tuple[int, int]:
    """Return the term of a reign that begins now, and the count before its first attempt.

    Args:
        wall_s: Seconds since 1970.
        last_term: Highest one that is known to have been used; 0 for none.
    """
    since_ms = max(0, int((wall_s - FIRST_S) * 1000))
    term = min(max(1, last_term + 1, since_ms // (TERM_S * 1000)), TERM_MAX)
    count = since_ms % (TERM_S * 1000) * COUNTS_PER_MS
    assert count < 1 << COUNT_BITS - 2
    return term, count
