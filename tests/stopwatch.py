"""How long calls take, whatever else the machine does.

That a call ends by its deadline is a promise, so tests look at the time; a machine whose processors
are busy with other tests makes every call late, and one that stands still for a second makes it a
second late. What a thread has waited for a processor is known to the kernel, and that everything
stood still is noticed by a metronome, a process that does nothing but look at the clock. Neither is
counted here.
"""

from __future__ import annotations

import atexit
import mmap
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from mooncake_store.testing import wait_until
from tests import metronome
from tests.metronome import waited_s

SHORT_S: Final = 0.25
"""Times below are not asked for halts: no test expects so little of a call."""

ANSWER_S_MAX: Final = 30.0
"""Time in which a metronome gets a processor, on a machine on which anything works."""


class Stopwatch:
    """Time since it was made, without what nobody could help.

    Made and asked by the same thread.
    """

    def __init__(self) -> None:
        self._halted_s = _metronome.halted_s()
        self._waited_s = waited_s()
        self._began_s = time.monotonic()

    def spent_s(self) -> float:
        """Return how long that is, in seconds."""
        now_s = time.monotonic()
        spent_s = now_s - self._began_s - (waited_s() - self._waited_s)
        if spent_s <= SHORT_S:
            return spent_s
        return spent_s - (_metronome.halted_s(now_s) - self._halted_s)


class Metronome:
    """The process that notices when all processes stand still; it ends with this one."""

    def __init__(self) -> None:
        shared = os.memfd_create("metronome")
        os.truncate(shared, mmap.PAGESIZE)
        self._page = mmap.mmap(shared, mmap.PAGESIZE)
        self._process = subprocess.Popen(  # noqa: S603 - a script of ours
            [sys.executable, "-S", "-E", str(Path(metronome.__file__)), str(shared)],
            stdin=subprocess.PIPE,
            pass_fds=[shared],
        )
        os.close(shared)
        self._owner = os.getpid()
        atexit.register(self._close)

    def _close(self) -> None:
        """End it without a warning; a child that was forked does not."""
        if os.getpid() == self._owner:
            self._process.kill()
            self._process.communicate()

    def halted_s(self, at_s: float = 0.0) -> float:
        """Return for how long everything has stood still by a time that has come.

        Raises:
            ConditionNotMet: The metronome does not tick.
        """

        def has_ticked() -> bool:
            return bool(metronome.PAGE.unpack_from(self._page)[0] > at_s)

        wait_until(has_ticked, ANSWER_S_MAX, what="the metronome ticks")
        halted_s: float = metronome.PAGE.unpack_from(self._page)[1]
        return halted_s


_metronome: Final = Metronome()  # Here, so that no test that counts descriptors sees it come.
