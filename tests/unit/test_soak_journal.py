"""What the journals of the soak say."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from mooncake_store.testing import Kind, Outcome
from tests.faults.soak.journal import Journal, read_journals
from tests.faults.soak.worker import Worker

if TYPE_CHECKING:
    from pathlib import Path


class SlowReason(Worker):
    """A worker whose questions for a reason take until long after the read."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def _why(self, namespace: str, key: str) -> str:
        return f"absent in {namespace}, says nobody of {key}"


def test_a_read_ends_when_it_ended_and_not_when_its_reason_is_known(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path, "client")
    number = journal.begin(Kind.READ, "key", namespace="default", deadline_s=3.0)
    ended_s = time.monotonic() - 100.0
    SlowReason(journal)._end_read(number, "default", "key", None, ended_s)
    journal.close()
    (call,) = read_journals([path]).calls
    assert call.returned_s == ended_s
    assert call.outcome is Outcome.DONE
