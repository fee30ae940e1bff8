"""Jitter stops threads of the project's code, of every process that inherits it, and only there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "jitter"

PROGRAM = """
import threading, time
stops = []
time.sleep = stops.append
code = "".join(f"def place{n}(): pass\\n" for n in range(1_000))
names = {}
exec(compile(code, "%s.py", "exec"), names)
def run():
    for name, place in names.items():
        if name.startswith("place"):
            place()
thread = threading.Thread(target=run)
thread.start()
thread.join()
print(len(stops))
"""


def stops(file: str, *, jitter: bool = True) -> int:
    """Return how often a thread was stopped at 1,000 calls and returns of a file's functions."""
    environment = {name: text for name, text in os.environ.items() if name != "JITTER"}
    environment["PYTHONPATH"] = str(FOLDER)
    if jitter:
        environment["JITTER"] = "yes"
    command = [sys.executable, "-c", PROGRAM % file]
    return int(subprocess.check_output(command, env=environment, timeout=60))  # noqa: S603


def test_the_project_is_stopped_seldom() -> None:
    assert 0 < stops("mooncake_store/x") < 200


def test_nothing_else_is() -> None:
    assert stops("json/x") == 0


def test_nothing_is_unless_it_is_asked_for() -> None:
    assert stops("mooncake_store/x", jitter=False) == 0
