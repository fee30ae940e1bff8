"""Ticks, and notes how long it could not although it was not for want of a processor.

Run as a script by ``tests.stopwatch``, of which it imports nothing: it has to be quick to start.
Its argument is the number of a file in memory, where it writes two numbers after each tick: when
that was, by the monotonic clock that all processes share, and how long everything has stood still
in all. It ends with its input.
"""

from __future__ import annotations

import mmap
import select
import struct
import sys
import time

TICK_S = 0.02
"""Shorter: it costs the processors more. Longer: short halts are missed."""

PAGE = struct.Struct("dd")


def waited_s() -> float:
    """Return how long this thread was ready to run and did not; 0 where the kernel does not say."""
    try:
        with open("/proc/thread-self/schedstat") as stat:  # noqa: PTH123 - a pseudo-file
            return int(stat.read().split()[1]) / 1e9
    except OSError:
        return 0.0


def tick(shared: int) -> None:
    """Tick until the input ends."""
    page = mmap.mmap(shared, mmap.PAGESIZE)
    halted_s = 0.0
    began_s, waiting_s = time.monotonic(), waited_s()
    while not select.select([0], [], [], TICK_S)[0]:
        now_s, waiting_now_s = time.monotonic(), waited_s()
        late_s = now_s - began_s - TICK_S - (waiting_now_s - waiting_s)
        if late_s > TICK_S:
            halted_s += late_s
        began_s, waiting_s = now_s, waiting_now_s
        PAGE.pack_into(page, 0, now_s, halted_s)


if __name__ == "__main__":
    tick(int(sys.argv[1]))
