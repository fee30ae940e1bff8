"""The journal of one client process: a line before each call and one after it.

The first line is in the file before the call begins, so a call whose process was killed is there
without its end. Times are of the machine's monotonic clock, the same in every process.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from mooncake_store.testing import NEVER, Call, History, Kind, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


class Journal:
    """Writes the lines."""

    def __init__(self, path: Path, client: str) -> None:
        self._file = path.open("a", buffering=1)
        self._client = client
        self._number = 0

    def begin(
        self, kind: Kind, key: str, *, namespace: str, deadline_s: float, version: int | None = None
    ) -> int:
        """Write that a call begins; return its number."""
        self._number += 1
        self._write(
            {
                "begin": self._number,
                "client": self._client,
                "kind": kind.value,
                "namespace": namespace,
                "key": key,
                "deadline_s": deadline_s,
                "version": version,
            }
        )
        return self._number

    def end(self, number: int, outcome: Outcome, **facts: object) -> None:
        """Write how it ended; ``facts`` are attributes of ``Call``, ``at`` when, if not now."""
        self._write({"end": number, "outcome": outcome.value, **facts})

    def close(self) -> None:
        """End the journal."""
        self._file.close()

    def _write(self, entry: dict[str, object]) -> None:
        self._file.write(json.dumps({"at": time.monotonic(), **entry}) + "\n")


def read_journals(paths: Iterable[Path]) -> History:
    """Return the history that journals tell."""
    calls: list[Call] = []
    for path in paths:
        calls += _calls(path.read_text().splitlines())
    calls.sort(key=lambda call: call.invoked_s)
    history = History()
    for number, call in enumerate(calls, 1):
        call.number = number
        history.calls.append(call)
    return history


def _calls(lines: list[str]) -> list[Call]:
    calls: dict[int, Call] = {}
    for line in lines:
        try:
            entry: dict[str, Any] = json.loads(line)
        except ValueError:
            continue  # the last line of a process that was killed while it wrote
        at_s = entry.pop("at")
        if "begin" in entry:
            number = entry.pop("begin")
            entry["kind"] = Kind(entry["kind"])
            calls[number] = Call(number=number, invoked_s=at_s, **entry)
            continue
        call = calls[entry.pop("end")]
        call.returned_s = at_s
        call.outcome = Outcome(entry.pop("outcome"))
        for name, value in entry.items():
            setattr(call, name, value)
    return list(calls.values())


def excuse_pauses(history: History, pauses: dict[str, list[tuple[float, float]]]) -> None:
    """A caller that was stopped during a call cannot have ended it in time."""
    for call in history.calls:
        for begin_s, end_s in pauses.get(call.client, ()):
            if call.invoked_s < end_s and begin_s < call.returned_s:
                call.deadline_s = NEVER
