"""What users see printed: words for reasons, and lengths of time that people would write."""

from __future__ import annotations

import json

import pytest

from mooncake_store.deadline import Deadline
from mooncake_store.errors import DeadlineExceeded
from mooncake_store.types import MissReason, Presence


def test_reasons_and_answers_of_probes_are_printed_as_words_and_sent_as_numbers() -> None:
    assert str(MissReason.NODE_DOWN) == f"{MissReason.NODE_DOWN}" == "node_down"
    assert f"{Presence.DRAM:>6}" == "  dram"
    assert json.dumps([MissReason.NODE_DOWN, Presence.DRAM]) == "[6, 1]"
    assert MissReason(6) is MissReason.NODE_DOWN


@pytest.mark.parametrize(
    ("total_s", "words"),
    [(4.99992, "5 s"), (0.25, "0.25 s"), (0.001, "0.001 s"), (86400.0, "86400 s")],
)
def test_a_deadline_is_named_as_its_caller_would(total_s: float, words: str) -> None:
    deadline = Deadline(total_s)
    deadline.at_s -= total_s
    with pytest.raises(DeadlineExceeded, match=f"the deadline of {words} passed while waiting"):
        deadline.check("waiting")
