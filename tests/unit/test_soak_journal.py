"""What the journals of the soak say."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, cast

from mooncake_store.testing import Kind, Outcome
from mooncake_store.types import MissReason
from tests.faults.soak.journal import Journal, read_journals
from tests.faults.soak.worker import Worker

if TYPE_CHECKING:
    from pathlib import Path

    from mooncake_client import Client


class Missing:
    """A client that missed what is there by now, and would say so if it were asked."""

    def last_miss(self, key: str) -> MissReason:
        assert key == "key"
        return MissReason.NODE_DOWN


class Reader(Worker):
    """A worker that was told what it read."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._clients = {"default": cast("Client", Missing())}


def test_a_miss_is_written_down_with_the_reason_and_the_time_it_had(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path, "client")
    number = journal.begin(Kind.READ, "key", namespace="default", deadline_s=3.0)
    ended_s = time.monotonic() - 100.0
    Reader(journal)._end_read(number, "default", "key", None, ended_s)
    journal.close()
    (call,) = read_journals([path]).calls
    assert call.returned_s == ended_s
    assert call.outcome is Outcome.DONE
    assert call.note == "node_down"
