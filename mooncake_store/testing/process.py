"""One process of the store under test: start, kill, pause, resume, stop, and what it logged."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mooncake_store.testing.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_LOG_LINES_SHOWN: Final = 60
_KILL_S_MAX: Final = 30.0
"""A killed process is gone at once; one in an uninterruptible system call is not."""
_STOP_S_MAX: Final = 30.0
"""The same for one that is to stop."""


class Process:
    """A child process in a process group of its own, whose output goes to a file.

    Attributes:
        name: What it is called in messages.
        command: What is run.
        log_path: Its stdout and stderr, of all its lives.
        lives: How often it was started.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log_path: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.command = list(command)
        self.log_path = log_path
        self.lives = 0
        self._environment = {**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})}
        self._popen: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of the current life.

        Raises:
            RuntimeError: It was never started.
        """
        if self._popen is None:
            raise RuntimeError(f"{self.name} was never started")
        return self._popen.pid

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended; a paused one is running."""
        return self._popen is not None and self._popen.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Exit code of the last life, negative for a signal; None while it runs."""
        return None if self._popen is None else self._popen.poll()

    def start(self) -> None:
        """Start it.

        Raises:
            RuntimeError: It is running.
        """
        if self.is_running:
            raise RuntimeError(f"{self.name} is running already")
        self.lives += 1
        with self.log_path.open("ab") as log:
            log.write(f"--- {self.name}, life {self.lives}: {self.command}\n".encode())
            log.flush()
            self._popen = subprocess.Popen(  # noqa: S603 - the command is ours
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )
        reaper().write(f"+{self._popen.pid}")

    def signal(self, number: int) -> None:
        """Send a signal to its process group; harmless when it has ended."""
        if self.is_running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def kill(self) -> None:
        """End it with SIGKILL and wait until it is gone; harmless when it is."""
        self.signal(signal.SIGKILL)
        self.wait(_KILL_S_MAX)

    def pause(self) -> None:
        """Stop it with SIGSTOP, and wait until it stands: its sockets stay open, nothing answers.

        A signal stops nothing by itself: until the thread that takes it was given a processor, the
        others go on serving, on a busy machine for longer than a request takes.

        Raises:
            ConditionNotMet: A thread of it did not stop.
        """
        self.signal(signal.SIGSTOP)
        wait_until(self._stands, _STOP_S_MAX, what=f"{self.name} stands still")

    def _stands(self) -> bool:
        """Whether all of its threads are stopped, or it has ended."""
        if not self.is_running:
            return True
        options = os.WSTOPPED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.pid, options) is not None

    def resume(self) -> None:
        """Let a paused one go on."""
        self.signal(signal.SIGCONT)

    def terminate(self, deadline_s: float = 30.0) -> int:
        """Ask it to end with SIGTERM, and wait; kill it if it does not.

        Returns:
            Its exit code.

        Raises:
            AssertionError: It had to be killed.
        """
        self.signal(signal.SIGTERM)
        self.resume()
        code = self.wait(deadline_s)
        if code is None:
            self.kill()
            raise AssertionError(f"{self.name} did not end within {deadline_s:g} s of SIGTERM")
        return code

    def wait(self, deadline_s: float) -> int | None:
        """Wait for its end; return its exit code, or None where it still runs."""
        if self._popen is None:
            return None
        try:
            code = self._popen.wait(deadline_s)
        except subprocess.TimeoutExpired:
            return None
        reaper().write(f"-{self._popen.pid}")
        return code

    def log(self) -> str:
        """Return everything that it has written so far."""
        if not self.log_path.exists():
            return ""
        return self.log_path.read_text(errors="replace")

    def log_tail(self) -> str:
        """Return the end of its log under a title, for the message of a failed test."""
        lines = self.log().splitlines()[-_LOG_LINES_SHOWN:]
        state = "running" if self.is_running else f"ended with {self.exit_code}"
        return "\n".join([f"=== {self.name} ({state}), end of {self.log_path}", *lines])

    def memory_bytes(self) -> int:
        """Return its resident memory without what it shares with other processes."""
        fields = Path(f"/proc/{self.pid}/statm").read_text().split()
        return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")

    def open_files(self) -> int:
        """Return how many descriptors it has open."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))  # noqa: PTH208 - names only, no paths

    def threads(self) -> int:
        """Return how many threads it has."""
        return len(os.listdir(f"/proc/{self.pid}/task"))  # noqa: PTH208 - names only, no paths


class Reaper:
    """The pipe to the ``reaper`` script of this process; it ends with us, whichever way we go."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._popen = subprocess.Popen(  # noqa: S603 - the command is ours
            [sys.executable, "-S", "-E", str(Path(__file__).with_name("reaper.py"))],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self._owner = os.getpid()
        atexit.register(self.close)

    def close(self) -> None:
        """Let it clean up, and wait until it has; nothing in a child that was forked."""
        if os.getpid() == self._owner:
            self.write(".")  # A child that was forked may keep the pipe open.
            with self._lock:
                self._popen.communicate()

    def write(self, line: str) -> None:
        """Tell it a line; nothing where it has ended."""
        pipe = self._popen.stdin
        assert pipe is not None
        with self._lock, contextlib.suppress(OSError):
            if not pipe.closed:
                pipe.write(f"{line}\n".encode())
                pipe.flush()


_reapers: dict[int, Reaper] = {}
"""{process id: its reaper}; a forked child does not use its parent's."""


def reaper() -> Reaper:
    """Return this process's reaper; it is started at the first use and ends with us."""
    own = _reapers.get(os.getpid())
    if own is None:
        own = _reapers[os.getpid()] = Reaper()
    return own
