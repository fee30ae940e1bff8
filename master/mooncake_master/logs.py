"""Log lines of the master: state changes only, at most some of a kind, for people or collectors."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

BURST: Final = 5
"""Lines of one kind (one template of one logger) in a window: the first tell what happened."""

WINDOW_S: Final = 60.0
"""The window: an outage of a minute gives a handful of lines, not one a second (field report
064)."""

KINDS_MAX: Final = 1_000
"""Kinds remembered; templates are literals of the source, far fewer."""


def configure(level: str, form: str) -> None:
    """Send this process's log to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    handler.addFilter(RateLimit(time.monotonic))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("asyncio", "uvicorn", "uvicorn.access"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, root.level))


class RateLimit(logging.Filter):
    """Passes the first lines of each kind in a window, and says how many it left out."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}
        """{(logger, template): (start of the window, lines in it)}"""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line is written."""
        kind = (record.name, str(record.msg))
        now_s = self._clock()
        started_s, lines = self._seen.get(kind, (now_s, 0))
        if now_s - started_s >= WINDOW_S:
            if lines > BURST:
                record.msg = f"{record.msg} ({lines - BURST} more like this were left out before)"
            started_s, lines = now_s, 0
        if kind not in self._seen and len(self._seen) >= KINDS_MAX:
            self._seen.clear()
        self._seen[kind] = (started_s, lines + 1)
        return lines < BURST


class TextLines(logging.Formatter):
    """``2026-01-31T12:00:00.123Z warning  message``, one line whatever a peer called itself."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; a trace, which only bugs have, follows it."""
        message = "".join(c if c.isprintable() else repr(c)[1:-1] for c in record.getMessage())
        line = f"{_time_of(record)} {record.levelname.lower():8} {message}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        fields = {
            "time": _time_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def _time_of(record: logging.LogRecord) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{whole}.{int(record.msecs):03d}Z"
