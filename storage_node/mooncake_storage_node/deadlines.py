"""Things to be done at a time, by one thread: what futures without time-outs of their own need."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future


class Deadlines:
    """Calls functions at their time. They must be short, and not raise."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="deadlines", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; what is not due yet is never done."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def at(self, at_s: float, action: Callable[[], None]) -> None:
        """Do something at a time of the monotonic clock."""
        with self._changed:
            heapq.heappush(self._due, (at_s, next(self._numbers), action))
            if self._due[0][2] is action:
                self._changed.notify()

    def gather(
        self, futures: Sequence[Future[None]], limit_s: float, over: Callable[[], None]
    ) -> None:
        """Call ``over`` once, when all futures have ended or the time is up; maybe at once."""
        lock = threading.Lock()
        left = len(futures)
        is_over = False

        def end() -> None:
            nonlocal is_over
            with lock:
                was, is_over = is_over, True
            if not was:
                over()

        def ended(_: object) -> None:
            nonlocal left
            with lock:
                left -= 1
                more = left > 0
            if not more:
                end()

        if not futures:
            over()
            return
        self.at(time.monotonic() + limit_s, end)
        for future in futures:
            future.add_done_callback(ended)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._stopping:
                    wait_s = self._due[0][0] - time.monotonic() if self._due else None
                    if wait_s is not None and wait_s <= 0:
                        break
                    self._changed.wait(wait_s)
                if self._stopping:
                    return
                action = heapq.heappop(self._due)[2]
            action()


def succeeded(future: Future[None]) -> bool:
    """Return whether a future has ended, and well."""
    return future.done() and not future.cancelled() and future.exception() is None
