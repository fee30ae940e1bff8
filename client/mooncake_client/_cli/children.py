"""Child processes that are started, watched and stopped together."""

from __future__ import annotations

import collections
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from typing import IO, TYPE_CHECKING, Final, Self

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

STOP_S_MAX: Final = 10.0
"""Time that all children together have to end after SIGTERM; then they are killed. Without callers
each takes a fraction of a second, with callers at most its own bound of 5 s."""

LINES_KEPT: Final = 20
"""Last lines of each child that are kept to explain its death."""


class ProcessFailed(typer.TyperException):
    """A child process did not do what it was started for; the message says how it ended."""


class Child:
    """One running child.

    Attributes:
        name: What people call it.
        lines: The last lines it wrote.
    """

    def __init__(self, name: str, words: Sequence[str], show: Callable[[str, str], None]) -> None:
        """Start ``mooncake-store`` with these words; ``show(name, line)`` gets what it writes."""
        self.name = name
        self.lines: collections.deque[str] = collections.deque(maxlen=LINES_KEPT)
        self._show = show
        # A group of its own: Ctrl-C in the terminal reaches the parent alone, which stops the
        # children in the right order.
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and package
            [sys.executable, "-m", "mooncake_client._cli.child", str(os.getpid()), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="backslashreplace",
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self._reader = threading.Thread(
            target=self._read, args=(self._process.stdout,), name=f"log-{name}", daemon=True
        )
        self._reader.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def first_line(self, start: str) -> str | None:
        """Return its first line that begins so, of those that are kept, or None."""
        lines = tuple(self.lines)  # The reader's thread adds to the others meanwhile.
        return next((line for line in lines if line.startswith(start)), None)

    def ended(self) -> str | None:
        """Return how it ended and its last words, or None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        self._reader.join(1.0)
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        last = f": {self.lines[-1]}" if self.lines else ""
        return f"{self.name} {how}{last}"

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def wait(self, until_s: float) -> bool:
        """Wait for its end until that time of the monotonic clock; return whether it came."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, until_s - time.monotonic()))
            self._reader.join(1.0)
            return True
        return False

    def _read(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                text = line.rstrip()
                self.lines.append(text)
                # Reading goes on even if nobody can be shown anything: a full pipe stops the child.
                with contextlib.suppress(OSError):
                    self._show(self.name, text)


class Children:
    """All children of one cluster; leaving the block stops them, the last one started first."""

    def __init__(self, show: Callable[[str, str], None]) -> None:
        self._show = show
        self._children: list[Child] = []

    def start(self, name: str, words: Sequence[str]) -> Child:
        """Start one more."""
        child = Child(name, words, self._show)
        self._children.append(child)
        return child

    def pids(self) -> dict[str, int]:
        """Return {name: process id} of all that were started."""
        return {child.name: child.pid for child in self._children}

    def first_dead(self) -> str | None:
        """Return how the first child that is not running any more ended, or None."""
        return next((end for child in self._children if (end := child.ended())), None)

    def stop(self) -> list[str]:
        """End all: SIGTERM one after the other, SIGKILL for those that do not follow.

        An interruption of the wait kills all that are left.

        Returns:
            Names of the children that had to be killed.
        """
        until_s = time.monotonic() + STOP_S_MAX
        killed = []
        try:
            while self._children:
                child = self._children[-1]
                child.signal(signal.SIGTERM)
                if not child.wait(until_s):
                    killed.append(child.name)
                    child.signal(signal.SIGKILL)
                    child.wait(time.monotonic() + 1.0)
                self._children.pop()
        finally:
            for child in self._children:
                child.signal(signal.SIGKILL)
            self._children.clear()
        return killed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
