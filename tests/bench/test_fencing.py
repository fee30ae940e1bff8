"""The measurement of directory and fences measures them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.bench.fencing import SIZES, steps_us


def test_the_steps_of_a_put_take_a_time_of_their_own() -> None:
    taken = steps_us()
    assert set(taken) == {"shm", "tcp"}
    assert all(each > 0 for each in taken.values()), taken


@pytest.mark.slow
@pytest.mark.processes
def test_puts_with_and_without_the_steps_take_turns() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.bench.fencing", "--rounds", "1"],
        capture_output=True, check=True, timeout=120,
    )  # fmt: skip
    found = json.loads(run.stdout)
    assert set(found) == {f"{path} {size}" for path in ("shm", "tcp") for size in SIZES}
    assert all(row["with_us"] > 0 and row["ratio"] > 0 for row in found.values())
