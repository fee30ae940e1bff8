"""Python's cyclic garbage collector, tamed: no pause that grows with the number of objects.

A full collection looks at every container in the process: seconds, with millions of objects in the
index, during which nobody is answered. The index has no cycles, so reference counting frees all of
it. What is alive after the start is frozen (never looked at again), young containers are collected
as ever, and the full collection is taken out of the schedule. The cost: a cycle that lives long
and dies later stays. Connections, the only such objects that come and go in numbers, break theirs
when they end; a test opens and closes thousands and compares memory.
"""

from __future__ import annotations

import gc
from typing import Final

YOUNG: Final = 20_000
"""New containers between two young collections: one takes below a millisecond."""

MIDDLE: Final = 5
"""Young collections between two of the middle generation: at most ``YOUNG * MIDDLE`` survivors,
some milliseconds."""

NEVER: Final = 1 << 30
"""Middle collections between two full ones."""


def tame() -> None:
    """Call this once, when everything that lasts as long as the process exists."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, NEVER)
