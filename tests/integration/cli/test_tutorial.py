"""Every command of the tutorial runs and prints what the tutorial says, but for its numbers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(400)]

TUTORIAL: Final = Path(__file__).parents[3] / "docs" / "tutorial.md"
ADDRESS: Final = "127.0.0.1:50051"
"""The address in the tutorial; the test's cluster has another one."""
UNITS: Final = {"B", "KiB", "MiB", "GiB"}
LEASE: Final = r"lease\s+(?:none|[\d.]+ m?s left)\n"


class Step(NamedTuple):
    """One thing to do, and what is said to come of it."""

    kind: str
    text: str
    expected: list[str]


def steps() -> Iterator[Step]:
    """Yield what the tutorial tells its reader to type, in order."""
    for kind, body in re.findall(
        r"^```(console|python)\n(.*?)^```$", TUTORIAL.read_text(), re.MULTILINE | re.DOTALL
    ):
        if kind == "python":
            yield Step(kind, body, [])
            continue
        for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
            command, *expected = part.rstrip("\n").split("\n")
            yield Step(kind, command, expected)


def pattern(expected: list[str]) -> re.Pattern[str]:
    """Return what matches the expected lines whatever their numbers and widths are.

    A line of three dots stands for any lines, and a lease may be over or not: that is a matter of
    how fast the reader types.
    """
    lines = []
    for line in expected:
        if line == "...":
            lines.append(r"(?:.*\n)*?")
            continue
        if line.split()[:1] == ["lease"]:
            lines.append(LEASE)
            continue
        words = [_word(word) for word in line.split()]
        lines.append(r"\s*" + r"\s+".join(words) + r"\s*\n")
    return re.compile("".join(lines) + r"\s*")


def _word(word: str) -> str:
    if word.strip(",") in UNITS:
        return f"(?:{'|'.join(sorted(UNITS))})" + "," * word.endswith(",")
    return re.sub(r"\d(?:[\d,]|\\\.(?=\d))*", r"[\\d.,]+", re.escape(word))


def test_every_command_does_what_the_tutorial_says(tmp_path: Path) -> None:
    environment = dict(os.environ, COLUMNS="120", LC_ALL="C.UTF-8")
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    cluster: subprocess.Popen[str] | None = None
    try:
        for step in steps():
            if step.text.startswith("mooncake-store up"):
                cluster = _start(step.text, environment)
                assert cluster.stdout is not None
                environment["MOONCAKE_STORE_MASTER"] = json.loads(cluster.stdout.readline())[
                    "master"
                ]
                continue
            done = _run(step, environment, tmp_path)
            if step.kind == "python":
                assert done.stdout in TUTORIAL.read_text()
            else:
                shown = done.stdout + "\n"
                assert pattern(step.expected).fullmatch(shown), f"$ {step.text}\n{shown}"
    finally:
        if cluster is not None:
            cluster.send_signal(signal.SIGINT)
            assert cluster.wait(30) == 0
            cluster.stdout.close() if cluster.stdout else None


def _start(command: str, environment: dict[str, str]) -> subprocess.Popen[str]:
    """Start the tutorial's cluster on free ports."""
    words = f"{command} --quiet --json --port 0 --admin-port 0".split()
    return subprocess.Popen(  # noqa: S603 - the words of our own tutorial
        words, env=environment, stdout=subprocess.PIPE, text=True
    )


def _run(step: Step, environment: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    if step.kind == "python":
        text = step.text.replace(ADDRESS, environment["MOONCAKE_STORE_MASTER"])
        words = [sys.executable, "-c", text]
    else:
        words = ["bash", "-c", step.text]
    done = subprocess.run(  # noqa: S603 - the words of our own tutorial
        words,
        env=environment,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, f"{step.text}\n{done.stdout}"
    return done


def test_the_tutorial_has_commands_to_run() -> None:
    assert len(list(steps())) > 20


@pytest.mark.parametrize(
    ("expected", "shown", "fits"),
    [
        (["created version 7, 11 bytes"], "created version 109, 5 bytes\n", True),
        (["a  1.5 %"], "a     22 %\n", True),
        (["moved 4 objects of 128.5 KiB, none"], "moved 0 objects of 0 B, none\n", True),
        (["moved 4 objects of 128.5 KiB, none"], "moved 4 objects of 3 h, none\n", False),
        (["first", "...", "last"], "first\nx\ny\nlast\n", True),
        (["first", "last"], "first\nx\nlast\n", False),
        (["all is well"], "3 of 9 findings are bad\n", False),
        ([], "\n", True),
        ([], "surprise\n", False),
        (["lease    none"], "lease    1.7 s left\n", True),
        (["lease    none"], "lease    none\n", True),
        (["lease    none"], "lease    lost\n", False),
    ],
)
def test_outputs_are_compared_but_for_their_numbers(
    expected: list[str], shown: str, *, fits: bool
) -> None:
    assert bool(pattern(expected).fullmatch(shown)) is fits
