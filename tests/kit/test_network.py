"""The clock runs in order; the network's links behave as told, and the same for each seed."""

from __future__ import annotations

import pytest

from mooncake_store.testing import Conditions, SeededNetwork, VirtualClock


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


def test_actions_run_in_the_order_of_their_times(clock: VirtualClock) -> None:
    ran: list[str] = []
    clock.call_later(2.0, lambda: ran.append("second"))
    clock.call_later(1.0, lambda: ran.append("first"))
    clock.call_later(2.0, lambda: ran.append("third"))
    clock.run_until(1.5)
    assert ran == ["first"]
    assert clock() == 1.5
    clock.advance(1.0)
    assert ran == ["first", "second", "third"]


def test_a_cancelled_action_does_not_run(clock: VirtualClock) -> None:
    ran: list[str] = []
    clock.call_later(1.0, lambda: ran.append("ran")).cancel()
    clock.run_until(5.0)
    assert not ran


def test_a_run_ends_when_its_condition_holds(clock: VirtualClock) -> None:
    ran: list[int] = []
    for at in range(5):
        clock.call_at(float(at), lambda at=at: ran.append(at))  # type: ignore[misc]
    assert clock.run_until_true(lambda: len(ran) == 3, until_s=10.0)
    assert clock.now_s == 2.0
    assert not clock.run_until_true(lambda: len(ran) == 9, until_s=10.0)


def deliveries(seed: int, conditions: Conditions, count: int = 200) -> list[tuple[int, float]]:
    clock = VirtualClock()
    network = SeededNetwork(clock, seed, conditions)
    arrived: list[tuple[int, float]] = []
    for number in range(count):
        network.send("a", "b", lambda number=number: arrived.append((number, clock.now_s)))  # type: ignore[misc]
        clock.advance(0.001)
    clock.advance(10.0)
    return arrived


HARSH = Conditions(loss=0.2, duplicate=0.2, reorder=0.3)


def test_one_seed_is_one_run() -> None:
    assert deliveries(1, HARSH) == deliveries(1, HARSH)
    assert deliveries(1, HARSH) != deliveries(2, HARSH)


def test_messages_are_lost_doubled_and_reordered() -> None:
    numbers = [number for number, _ in deliveries(1, HARSH)]
    assert len(set(numbers)) < 200
    assert len(numbers) > len(set(numbers))
    assert numbers != sorted(numbers)


def test_a_good_link_delivers_everything_once() -> None:
    numbers = [number for number, _ in deliveries(1, Conditions(latency_s=(0.001, 0.001)))]
    assert numbers == list(range(200))


def test_traffic_of_one_link_does_not_change_another(clock: VirtualClock) -> None:
    quiet = SeededNetwork(clock, 1)
    busy = SeededNetwork(clock, 1)
    for _ in range(10):
        busy.latency_s("x", "y")
    assert quiet.latency_s("a", "b") == busy.latency_s("a", "b")


class Talk:
    """A stream whose ends write down what they hear."""

    def __init__(self, clock: VirtualClock, seed: int = 1) -> None:
        self.network = SeededNetwork(clock, seed, Conditions(latency_s=(0.001, 0.1)))
        self.stream = self.network.connect("a", "b")
        self.heard: list[object] = []
        self.lost: list[str] = []
        self.stream.far.on_message = self.heard.append
        self.stream.far.on_lost = lambda: self.lost.append("b")
        self.stream.near.on_lost = lambda: self.lost.append("a")

    def say(self, *messages: object) -> None:
        for message in messages:
            self.stream.near.send(message)


def test_a_stream_keeps_the_order(clock: VirtualClock) -> None:
    talk = Talk(clock)
    talk.say(*range(100))
    clock.advance(1.0)
    assert talk.heard == list(range(100))


def test_a_partition_holds_back_what_is_on_a_stream(clock: VirtualClock) -> None:
    talk = Talk(clock)
    talk.network.partition(["a"], ["b"])
    talk.say(1, 2)
    clock.advance(5.0)
    assert not talk.heard
    talk.network.heal()
    clock.advance(1.0)
    assert talk.heard == [1, 2]
    assert not talk.lost


def test_a_closed_stream_delivers_what_was_said_before(clock: VirtualClock) -> None:
    talk = Talk(clock)
    talk.say(1, 2)
    talk.stream.near.close()
    talk.say(3)
    clock.advance(1.0)
    assert talk.heard == [1, 2]
    assert talk.lost == ["b"]


def test_a_cut_stream_tells_both_ends_and_loses_a_tail_at_most() -> None:
    outcomes = set()
    for seed in range(20):
        clock = VirtualClock()
        talk = Talk(clock, seed)
        talk.say(1, 2, 3)
        clock.advance(0.05)
        talk.network.cut("a", "b")
        clock.advance(1.0)
        assert sorted(talk.lost) == ["a", "b"]
        assert talk.heard == [1, 2, 3][: len(talk.heard)]
        outcomes.add(len(talk.heard))
    assert len(outcomes) > 1


def test_what_was_sent_before_a_close_behind_a_partition_arrives_after_it(
    clock: VirtualClock,
) -> None:
    talk = Talk(clock)
    talk.network.partition(["a"], ["b"])
    talk.say(1, 2)
    talk.stream.near.close()
    clock.advance(5.0)
    assert not talk.heard
    talk.network.heal()
    clock.advance(1.0)
    assert talk.heard == [1, 2]
    assert talk.lost == ["b"]


def test_an_end_closed_behind_a_partition_is_noticed_by_keep_alive(clock: VirtualClock) -> None:
    talk = Talk(clock)
    talk.network.partition(["a"], ["b"])
    talk.stream.near.close()
    clock.advance(5.0)
    assert talk.lost == []
    clock.advance(10.0)
    assert talk.lost == ["b"]


def test_single_messages_are_lost_in_a_partition(clock: VirtualClock) -> None:
    network = SeededNetwork(clock, 1)
    arrived: list[int] = []
    network.block("a", "b")
    network.send("a", "b", lambda: arrived.append(1))
    network.send("b", "a", lambda: arrived.append(2))
    clock.advance(1.0)
    assert arrived == [2]
