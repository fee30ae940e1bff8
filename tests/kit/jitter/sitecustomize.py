"""Threads that stop at odd places: what a test takes for an order of events must be one.

With ``JITTER`` set (``make jitter``) every Python process of a test run, the tests themselves
included, sleeps at some calls and returns of the project's functions, the likelier the more rarely
a place is run. A test that fails so found a fault, or takes a habit for a promise.

The interpreter imports this by itself (``sitecustomize``) where the folder is on ``PYTHONPATH``,
so that processes that tests start have it too. What it does cannot be repeated: a test that failed
once is run again until it does, or read with the question what its assertion relies on.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import CodeType, FrameType

SHARE: Final = 0.02
"""Of the first visits of a place; of the n-th visit 4/n², if that is less."""

SLEEPS_S: Final = (0.002, 0.01, 0.03, 0.1)


def install() -> None:
    """Let this thread, and all threads that start from now on, stop at times."""
    dice = random.Random()  # noqa: S311 - no secret; workers of one run are not to stop alike
    visits: dict[tuple[CodeType, str], int] = {}

    def visit(frame: FrameType, event: str, _argument: object) -> None:
        if event not in {"call", "return"}:
            return
        code = frame.f_code
        count = visits.get((code, event), 0) + 1
        visits[code, event] = count
        if dice.random() >= min(SHARE, 4 / count**2):
            return
        if "mooncake_" in code.co_filename and code.co_name != "<module>":
            time.sleep(dice.choice(SLEEPS_S))

    threading.setprofile(visit)
    sys.setprofile(visit)


if os.environ.get("JITTER"):
    install()
