"""How long calls take, whatever else the machine does.

That a call ends by its deadline is a promise, so tests look at the time; a machine whose processors
are busy with other tests makes every call late. What a thread has waited for a processor is
known to the kernel, and is not counted here.
"""

from __future__ import annotations

import time


class Stopwatch:
    """Time since it was made, without what the thread that asks waited for a processor.

    Made and asked by the same thread.
    """

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._waited_s = _waited_s()

    def spent_s(self) -> float:
        """Return how long that is, in seconds."""
        return time.monotonic() - self._began_s - (_waited_s() - self._waited_s)


def _waited_s() -> float:
    """Return how long this thread was ready to run and did not; 0 where the kernel does not say."""
    try:
        with open("/proc/thread-self/schedstat") as stat:  # noqa: PTH123 - a pseudo-file
            return int(stat.read().split()[1]) / 1e9
    except OSError:
        return 0.0
