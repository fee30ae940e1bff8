"""The numbers of the field reports: reduced ones for every day, their own where they are asked for.

``make reports`` (or ``FIELD_REPORTS=full`` in the environment) takes the numbers of the reports'
checks, which needs an hour instead of minutes, and prints what was measured on the way. What
was measured is shown and not asserted: how long something takes is this machine's business, and
that of whatever else it does.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

FULL: Final = os.environ.get("FIELD_REPORTS", "") == "full"
TIMEOUT_S: Final = 1200
"""Time that a test has at full scale; pytest's own setting holds at the reduced one."""

measured: Final[list[str]] = []
"""Lines for the end of the run."""


def scaled(quick: T, full: T) -> T:
    """Return the number of every day, or that of the report."""
    return full if FULL else quick


def show(report: str, what: str, value: str) -> None:
    """Have a figure printed when the tests are over."""
    measured.append(f"FR-{report}  {what}: {value}")


ECHO = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
peer, _ = listener.accept()
while data := peer.recv(64):
    peer.sendall(data)
"""


@contextmanager
def echo() -> Iterator[Callable[[], object]]:
    """A call that asks another process for an echo: the least that two processes here need."""
    process = subprocess.Popen([sys.executable, "-c", ECHO], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

            def call() -> object:
                connection.sendall(b"echo")
                return connection.recv(64)

            yield call
    finally:
        process.kill()
        process.communicate()


class Latencies:
    """How long calls of one kind took.

    with Latencies("065", "small get") as latencies:
        with latencies.call():
            client.get("k")
    """

    def __init__(self, report: str, what: str) -> None:
        self._report = report
        self._what = what
        self._took_s: list[float] = []

    def __enter__(self) -> Latencies:  # noqa: PYI034 - never a subclass
        return self

    def __exit__(self, *_: object) -> None:
        took = sorted(self._took_s)
        if took:
            p50, p99 = (took[int(share * (len(took) - 1))] * 1e3 for share in (0.5, 0.99))
            show(
                self._report,
                self._what,
                f"p50 {p50:.1f} ms, p99 {p99:.1f} ms, longest {took[-1] * 1e3:.1f} ms"
                f" of {len(took)} calls",
            )

    @contextmanager
    def call(self) -> Iterator[None]:
        """Time one call."""
        began_s = time.perf_counter()
        yield
        self._took_s.append(time.perf_counter() - began_s)
