"""A node that stops waits for its drain, and for nothing that will not happen."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from mooncake_storage_node.leaving import leave
from mooncake_store.errors import DeadlineExceeded, StoreError, Unreachable
from mooncake_store.wire.control import DescribeDrain, Done, Drain, DrainStatus, Message

if TYPE_CHECKING:
    import pytest

NODE = "0" * 32


class Cluster:
    """A master that gives one answer after the other, and a clock."""

    def __init__(self, *answers: Message | StoreError, signal_after: int = 1_000) -> None:
        self.answers = list(answers)
        self.asked: list[Message] = []
        self.now_s = 0.0
        self.signal_after = signal_after

    def ask(self, message: Message, timeout_s: float) -> Message:
        assert timeout_s > 0
        self.asked.append(message)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, StoreError):
            raise answer
        return answer

    def interrupted(self, pause_s: float) -> bool:
        self.now_s += pause_s
        self.signal_after -= 1
        return self.signal_after == 0

    def leave(self, timeout_s: float = 20.0) -> None:
        leave(self, NODE, timeout_s, self.interrupted, clock=lambda: self.now_s)


def draining(**fields: object) -> DrainStatus:
    return DrainStatus("n", "draining", **fields)  # type: ignore[arg-type] # fields of the message


def test_a_node_waits_until_it_is_drained(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    cluster = Cluster(draining(), draining(moved=3), DrainStatus("n", "drained", moved=7))
    cluster.leave()
    assert cluster.asked == [Drain(NODE, 20.0, leaving=True), *[DescribeDrain(NODE)] * 2]
    assert "7 objects were copied" in caplog.text


def test_it_says_what_goes_with_it_when_the_time_is_over(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(draining(moved=2, left=5, left_bytes=1024, counted=True))
    cluster.leave(3.0)
    assert 2.9 < cluster.now_s < 3.2
    assert "5 of 1KiB are left that only this node holds" in caplog.text


def test_it_does_not_wait_for_room_that_nobody_has(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(draining(left=5, stuck=True, reasons={"no_space": 5}))
    cluster.leave()
    assert cluster.now_s == 0
    assert "(5 no_space)" in caplog.text


def test_a_second_signal_ends_the_wait() -> None:
    cluster = Cluster(draining(), signal_after=4)
    cluster.leave()
    assert len(cluster.asked) == 4


def test_another_master_is_asked_for_the_drain_again() -> None:
    cluster = Cluster(draining(), DrainStatus("n", "none"), draining(), DrainStatus("n", "drained"))
    cluster.leave()
    assert [type(message) for message in cluster.asked] == [
        Drain, DescribeDrain, Drain, DescribeDrain,
    ]  # fmt: skip
    again = cluster.asked[2]
    assert isinstance(again, Drain)
    assert again.timeout_s < 20.0


def test_without_a_master_it_stops_at_once(caplog: pytest.LogCaptureFixture) -> None:
    for answer in (Unreachable("gone"), DeadlineExceeded("silent"), Done()):
        cluster = Cluster(answer)
        cluster.leave()
        assert len(cluster.asked) == 1
    assert caplog.text.count("stops without a drain") == 3
