"""Child processes: started, watched, stopped, and never left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mooncake_client._cli.children import Children
from mooncake_store.testing import wait_until

pytestmark = pytest.mark.processes

MASTER = ["master", "--port", "0", "--admin-port", "0"]


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_what_a_child_writes_is_shown_and_kept() -> None:
    shown: list[tuple[str, str]] = []
    with Children(lambda name, line: shown.append((name, line))) as children:
        child = children.start("version", ["--version"])
        ended = wait_until(child.ended, 30)
    assert ended
    assert ended.startswith("version ended with 0: mooncake-store ")
    assert shown == [("version", child.lines[0])]


def test_a_child_that_cannot_start_says_why() -> None:
    with Children(lambda _name, _line: None) as children:
        children.start("master", ["master", "--port", "-1"])
        dead = wait_until(children.first_dead, 30)
    assert dead
    assert dead.startswith("master ended with 2: mooncake-store: port: '-1' (--port)")


def test_a_line_is_found_while_more_are_written() -> None:
    with Children(lambda _name, _line: None) as children:
        child = children.start("version", ["--version"])
        assert wait_until(child.ended, 30)

        class Line(str):
            __slots__ = ()

            def startswith(self, *words: Any) -> bool:  # noqa: ANN401 - of any str
                child.lines.append("a line that comes at this very moment")
                return super().startswith(*words)

        child.lines.extend([Line("one"), Line("two")])
        assert child.first_line("two") == "two"


def test_leaving_the_block_ends_the_children() -> None:
    with Children(lambda _name, _line: None) as children:
        child = children.start("master", MASTER)
        wait_until(lambda: child.first_line("master ready:"), 30)
        assert child.ended() is None
        pid = child.pid
    assert not is_running(pid)


def test_a_child_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mooncake_client._cli.children.STOP_S_MAX", 0.5)
    with Children(lambda _name, _line: None) as children:
        child = children.start("master", MASTER)
        wait_until(lambda: child.first_line("master ready:"), 30)
        child.signal(signal.SIGSTOP)
        assert children.stop() == ["master"]
    assert not is_running(child.pid)


@pytest.mark.slow
def test_children_do_not_outlive_a_killed_parent() -> None:
    code = (
        "import threading, time\n"
        "from mooncake_client._cli.children import Children\n"
        "said = threading.Event()\n"
        "def show(name, line):\n"
        "    said.wait()\n"  # The first line that is read here is the number.
        "    print(line, flush=True)\n"
        "children = Children(show)\n"
        f"print(children.start('master', {MASTER!r}).pid, flush=True)\n"
        "said.set()\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen(  # noqa: S603 - own interpreter, fixed words
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as parent:
        try:
            assert parent.stdout is not None
            pid = int(parent.stdout.readline())
            assert any(line.startswith("master ready:") for line in parent.stdout)
        finally:
            parent.kill()
        wait_until(lambda: not is_running(pid), 30)
