"""A stopwatch counts what a call takes, and not that the machine stood still."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from mooncake_store.testing import wait_until
from tests.stopwatch import Stopwatch

CALLING = """
import sys, time
from tests.stopwatch import Stopwatch
watch = Stopwatch()
print("begun", flush=True)
sys.stdin.readline()
print(watch.spent_s(), flush=True)
"""

HALT_S = 1.5


def stands(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_that_everything_stood_still_is_not_counted() -> None:
    """A process and its metronome are stopped together, in the middle of a call."""
    with subprocess.Popen(  # noqa: S603 - own interpreter
        [sys.executable, "-c", CALLING],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        start_new_session=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        os.killpg(process.pid, signal.SIGSTOP)
        wait_until(lambda: stands(process.pid), 10)
        until_s = time.monotonic() + HALT_S
        wait_until(lambda: time.monotonic() > until_s, 10 * HALT_S)
        os.killpg(process.pid, signal.SIGCONT)
        process.stdin.write("\n")
        process.stdin.flush()
        spent_s = float(process.stdout.readline())
    assert spent_s < HALT_S


def test_what_a_call_waits_for_is_counted() -> None:
    watch = Stopwatch()
    wait_until(lambda: watch.spent_s() > 0.5, 30)
