"""Keeps Ctrl-C out of a stretch of code that must not be left half-way.

CPython raises ``KeyboardInterrupt`` in the main thread, between any two steps of it. Code that
keeps state for all threads of the process cannot be left there: a lock stays taken, a list is half
changed. Inside a shield Ctrl-C is noted, and let in where it does no harm.
"""

from __future__ import annotations

import importlib
import signal
import threading
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType

SIGINT: Final = int(signal.SIGINT)

_signal: Final[Any] = importlib.import_module("_signal")
"""What ``signal`` wraps. That looks for a name of every handler, which costs ten times as much as
the rest of a shield, and there is one around each request."""


class Shield:
    """One stretch of code; does nothing where Ctrl-C raises nothing.

    Other threads are never interrupted, and handlers that are not Python's own raise nothing.
    """

    __slots__ = ("_arrived", "_frame", "_handler")

    def __init__(self) -> None:
        self._handler: Callable[[int, FrameType | None], Any] | None = None
        self._arrived = False
        self._frame: FrameType | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            handler = _signal.getsignal(SIGINT)
            if callable(handler):
                self._handler = handler
                _signal.signal(SIGINT, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._handler is not None:
            _signal.signal(SIGINT, self._handler)
            self.let_in()

    def let_in(self) -> None:
        """Do what Ctrl-C asked for since the last time, which may raise."""
        if self._arrived:
            self._arrived, frame, self._frame = False, self._frame, None
            assert self._handler is not None
            self._handler(SIGINT, frame)

    def _note(self, _number: int, frame: FrameType | None) -> None:
        self._arrived, self._frame = True, frame
