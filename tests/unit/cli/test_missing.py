"""What is said of a key that was not there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import pytest

from mooncake_client import Client, WhyResult
from mooncake_client._cli.objects import _not_found
from mooncake_store.types import MissReason


@dataclass
class Answering:
    """A client that missed a key, and what the master says of it afterwards."""

    missed: MissReason | None
    now: WhyResult

    def last_miss(self, key: str) -> MissReason | None:
        assert key == "k"
        return self.missed

    def why(self, key: str) -> WhyResult:
        assert key == "k"
        return self.now


AWAY = WhyResult(readable=False, reason=MissReason.NODE_DOWN, detail="n0 is away")
THERE = WhyResult(readable=True, reason=None, detail="version 7 is readable on n0")


@pytest.mark.parametrize(
    ("missed", "now", "said"),
    [
        (MissReason.NODE_DOWN, AWAY, "no object 'k': n0 is away"),
        (
            MissReason.NODE_DOWN,
            THERE,
            "no object 'k' a moment ago (node_down); by now version 7 is readable on n0",
        ),
        (None, THERE, "no object 'k' a moment ago; by now version 7 is readable on n0"),
    ],
)
def test_what_is_there_by_now_was_missed_for_the_reason_it_had_then(
    missed: MissReason | None, now: WhyResult, said: str
) -> None:
    assert str(_not_found(cast("Client", Answering(missed, now)), "k")) == said
