"""Processes under test are started, stopped, watched, and never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from mooncake_store.testing import Process, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TALKS = "import time\nwhile True: print('tick', flush=True); time.sleep(0.01)"
THREADS = """
import threading
def spin():
    while True: pass
for _ in range(8): threading.Thread(target=spin, daemon=True).start()
spin()
"""
IGNORES_TERM = (
    "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "print('ready', flush=True)\ntime.sleep(600)"
)


@pytest.fixture
def talker(tmp_path: Path) -> Iterator[Process]:
    process = Process("talker", [sys.executable, "-S", "-c", TALKS], tmp_path / "talker.log")
    process.start()
    wait_until(lambda: "tick" in process.log(), 30)
    yield process
    process.kill()


def ticks(process: Process) -> int:
    return process.log().count("tick")


def test_a_killed_process_is_gone_when_kill_returns(talker: Process) -> None:
    talker.kill()
    assert not talker.is_running
    assert talker.exit_code == -signal.SIGKILL


def test_a_process_can_live_again(talker: Process) -> None:
    talker.kill()
    before = ticks(talker)
    talker.start()
    wait_until(lambda: ticks(talker) > before, 30)
    assert talker.lives == 2
    with pytest.raises(RuntimeError, match="running already"):
        talker.start()


def test_a_paused_process_does_nothing_until_it_is_resumed(talker: Process) -> None:
    talker.pause()
    assert state_of(talker.pid) == "T"
    before = ticks(talker)
    assert talker.is_running
    talker.resume()
    wait_until(lambda: ticks(talker) > before, 30)


def test_no_thread_of_a_paused_process_goes_on(tmp_path: Path) -> None:
    threads = Process("threads", [sys.executable, "-S", "-c", THREADS], tmp_path / "log")
    threads.start()
    wait_until(lambda: threads.threads() == 9, 30)
    for _ in range(3):
        threads.pause()
        tasks = os.listdir(f"/proc/{threads.pid}/task")  # noqa: PTH208 - a pseudo-folder
        assert {state_of(int(task)) for task in tasks} == {"T"}
        threads.resume()
    threads.kill()
    threads.pause()  # harmless when it has ended


def state_of(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123 - a pseudo-file
        return stat.read().rpartition(")")[2].split()[0]


def test_an_end_by_sigterm_has_an_exit_code(talker: Process) -> None:
    assert talker.terminate() == -signal.SIGTERM


def test_a_process_that_ignores_sigterm_is_killed_and_named(tmp_path: Path) -> None:
    deaf = Process("deaf", [sys.executable, "-S", "-c", IGNORES_TERM], tmp_path / "log")
    deaf.start()
    wait_until(lambda: "ready" in deaf.log().splitlines(), 30)
    with pytest.raises(AssertionError, match="deaf did not end"):
        deaf.terminate(deadline_s=0.2)
    assert not deaf.is_running


def test_the_log_tail_says_how_it_ended(talker: Process) -> None:
    talker.kill()
    assert "talker (ended with -9)" in talker.log_tail()
    assert "tick" in talker.log_tail()


def test_its_resources_can_be_watched(talker: Process) -> None:
    assert talker.memory_bytes() > 0
    assert talker.open_files() >= 3
    assert talker.threads() >= 1


ORPHAN_MAKER = """
import pathlib, sys, time
from mooncake_store.testing import Process
process = Process("orphan", [sys.executable, "-S", "-c", "import time; time.sleep(600)"],
                  pathlib.Path(sys.argv[1]))
process.start()
print(process.pid, flush=True)
time.sleep(600)
"""


def test_nothing_outlives_a_killed_test_process(tmp_path: Path) -> None:
    maker = subprocess.Popen(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", ORPHAN_MAKER, str(tmp_path / "log")], stdout=subprocess.PIPE
    )
    assert maker.stdout is not None
    with maker.stdout as output:
        orphan = int(output.readline())
    os.kill(orphan, 0)
    maker.kill()
    maker.wait(30)
    wait_until(lambda: not is_alive(orphan), 30)


LEAVER = """
import os, pathlib, signal, sys
from mooncake_store.testing import Process
from mooncake_store.testing.process import reaper
log = pathlib.Path(sys.argv[1])
process = Process("ended", [sys.executable, "-S", "-c", ""], log)
process.start()
process.wait(30)
reaper().write(str(log.parent))
forked = os.fork()  # It has the pipe to the reaper as well.
if not forked:
    os.closerange(1, 3)
    signal.pause()
print(forked)
"""


def test_a_test_process_that_ends_cleans_up_without_a_word(tmp_path: Path) -> None:
    folder = tmp_path / "left"
    folder.mkdir()
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-W", "error", "-c", LEAVER, str(folder / "log")],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    os.kill(int(done.stdout), signal.SIGKILL)
    assert done.stderr == ""
    assert not folder.exists()


def is_alive(pid: int) -> bool:
    try:
        return state_of(pid) != "Z"
    except (FileNotFoundError, ProcessLookupError):  # The latter where it goes as it is read.
        return False
