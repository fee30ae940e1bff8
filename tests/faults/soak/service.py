"""When the cluster served: without that nobody knows whether a soak tested calls or only refusals.

A call that finds no master ends as `Unreachable`, and harms nothing. A soak that kills the master
again before it has served is a test of its start, however many calls it counts.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

LOOK_S = 0.1
"""Pause between two looks."""


class Service:
    """The stretches of time in which the master answered and had a live node."""

    def __init__(self) -> None:
        self._spans: list[tuple[float, float]] = []
        self._is_open = False

    def looked(self, begun_s: float, ended_s: float, *, serves: bool) -> None:
        """Take one look: when it began and ended, and whether the cluster served."""
        if not serves:
            self._is_open = False
        elif self._is_open:
            self._spans[-1] = (self._spans[-1][0], ended_s)
        else:
            self._spans.append((begun_s, ended_s))
            self._is_open = True

    @property
    def current_s(self) -> float:
        """Length of the stretch that still lasts; 0 where the last look found no service."""
        if not self._is_open:
            return 0.0
        begin_s, end_s = self._spans[-1]
        return end_s - begin_s

    def broken(self) -> None:
        """The service is about to be harmed: what follows is another stretch."""
        self._is_open = False

    def share(self, begin_s: float, end_s: float) -> float:
        """Return the share of a time in which the cluster served."""
        served_s = sum(
            max(0.0, min(end_s, last) - max(begin_s, first)) for first, last in list(self._spans)
        )
        return served_s / (end_s - begin_s) if end_s > begin_s else 0.0


class Watch:
    """Looks from a thread of its own, while it is entered.

    Attributes:
        service: What it saw.
    """

    def __init__(self, serves: Callable[[], bool]) -> None:
        """Prepare; ``serves`` takes a bounded time, and its errors end the watch loudly."""
        self.service = Service()
        self._serves = serves
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._over.set()
        self._thread.join()
        if self._failure is not None and error is None:
            raise self._failure

    def _run(self) -> None:
        try:
            while not self._over.wait(LOOK_S):
                begun_s = time.monotonic()
                serves = self._serves()
                self.service.looked(begun_s, time.monotonic(), serves=serves)
        except BaseException as failure:  # noqa: BLE001 - raised again where the watch is left
            self._failure = failure
