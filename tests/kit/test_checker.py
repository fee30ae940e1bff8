"""The checker accepts what a cache may do and names what it may not."""

from __future__ import annotations

import functools

import pytest

from mooncake_store.testing import (
    Checker,
    History,
    Record,
    Rule,
    VirtualClock,
    payload,
    seeded,
    settled_write,
)


class Story:
    """A history told in time steps."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.history = History(self.clock)

    def tick(self) -> None:
        self.clock.advance(1.0)

    def write(self, version: int, outcome: str = "done") -> None:
        record = self.history.write("writer", "k", version, size=100)
        self.tick()
        getattr(record, outcome)()
        self.tick()

    def remove(self, outcome: str = "done") -> None:
        record = self.history.remove("writer", "k")
        self.tick()
        getattr(record, outcome)()
        self.tick()

    def read(self, version: int | None, note: str = "") -> None:
        self.conclude(self.history.read("reader", "k"), version, note)
        self.tick()

    def conclude(self, record: Record, version: int | None, note: str = "") -> None:
        self.tick()
        if version is None:
            record.missed(note)
        else:
            record.returned(payload("k", version, 100))

    def broken(self, swap_s: float = 0.0) -> list[Rule]:
        return [violation.rule for violation in Checker(self.history, swap_s=swap_s).check()]


@pytest.fixture
def story() -> Story:
    return Story()


def test_a_value_that_was_written_may_be_read(story: Story) -> None:
    story.write(1)
    story.read(1)
    story.write(2)
    story.read(2)
    assert story.broken() == []


def test_a_replaced_value_may_not_be_read(story: Story) -> None:
    story.write(1)
    story.write(2)
    story.read(1)
    assert story.broken() == [Rule.REVIVED]


def test_a_removed_value_may_not_be_read(story: Story) -> None:
    story.write(1)
    story.remove()
    story.read(1)
    assert story.broken() == [Rule.REVIVED]


def test_a_cleared_value_may_not_be_read(story: Story) -> None:
    story.write(1)
    clear = story.history.clear("writer")
    story.tick()
    clear.done()
    story.tick()
    story.read(1)
    assert story.broken() == [Rule.REVIVED]


def test_a_removal_of_unknown_outcome_allows_both(story: Story) -> None:
    story.write(1)
    story.remove("unknown")
    story.read(1)
    story.read(None, "removed")
    assert story.broken() == []


def test_a_removed_value_may_not_be_said_to_exist(story: Story) -> None:
    story.write(1)
    story.remove()
    presence = story.history.presence("reader", "k")
    story.tick()
    presence.done(found=True)
    assert story.broken() == [Rule.REVIVED]


def test_a_put_that_finds_a_removed_value_is_told_a_lie(story: Story) -> None:
    story.write(1)
    story.remove()
    story.write(2, "already_there")
    assert story.broken() == [Rule.REVIVED]


def test_a_read_during_a_replace_may_see_either(story: Story) -> None:
    story.write(1)
    replace = story.history.write("writer", "k", 2, size=100)
    story.read(1)
    story.read(2)
    replace.done()
    assert story.broken() == []


def test_no_reader_goes_back_to_the_old_value_during_a_replace(story: Story) -> None:
    story.write(1)
    replace = story.history.write("writer", "k", 2, size=100)
    story.read(2)
    story.read(1)
    replace.done()
    assert story.broken() == [Rule.REVIVED]


def test_readers_may_differ_during_a_replace_for_as_long_as_is_allowed(story: Story) -> None:
    story.write(1)
    replace = story.history.write("writer", "k", 2, size=100)
    story.read(2)
    story.read(1)
    replace.done()
    assert story.broken(swap_s=3.0) == []
    story.tick()
    story.read(1)
    assert Rule.REVIVED in story.broken(swap_s=3.0)


def test_an_abandoned_write_may_appear_late_or_never(story: Story) -> None:
    story.write(1)
    story.write(2, "unknown")
    story.read(1)
    story.read(2)
    assert story.broken() == []


def test_an_abandoned_write_does_not_give_way_again(story: Story) -> None:
    story.write(1)
    story.write(2, "unknown")
    story.read(2)
    story.read(1)
    assert story.broken() == [Rule.REVIVED]


def test_a_refused_write_is_never_seen(story: Story) -> None:
    story.write(1, "refused")
    story.read(1)
    assert story.broken() == [Rule.REFUSED_VISIBLE]


def test_a_value_is_not_read_before_its_write_begins(story: Story) -> None:
    record = story.history.read("reader", "k")
    early = story.history.write("writer", "k", 1, size=100)
    story.conclude(record, 1)
    early.call.invoked_s = story.clock.now_s + 1
    assert story.broken() == [Rule.FROM_THE_FUTURE]


def test_an_acknowledged_value_is_not_missed_without_an_excuse(story: Story) -> None:
    story.write(1)
    story.read(None, "absent")
    assert story.broken() == [Rule.LOST]


@pytest.mark.parametrize("excuse", ["evicted", "lost", "node_down"])
def test_an_acknowledged_value_may_be_missed_with_an_excuse(story: Story, excuse: str) -> None:
    story.write(1)
    story.read(None, excuse)
    assert story.broken() == []


def test_a_miss_may_come_from_a_removal_under_way(story: Story) -> None:
    story.write(1)
    removal = story.history.remove("writer", "k")
    story.read(None, "removed")
    removal.done()
    assert story.broken() == []


def test_a_held_value_is_not_evicted(story: Story) -> None:
    story.write(1)
    probe = story.history.presence("reader", "k")
    story.tick()
    probe.held(until_s=story.clock.now_s + 10)
    probe.done(found=True)
    story.tick()
    story.read(None, "evicted")
    assert story.broken() == [Rule.HOLD_BROKEN]


def test_a_hold_ends(story: Story) -> None:
    story.write(1)
    probe = story.history.presence("reader", "k")
    story.tick()
    probe.held(until_s=story.clock.now_s + 1)
    probe.done(found=True)
    story.tick()
    story.read(None, "evicted")
    assert story.broken() == []


@pytest.mark.parametrize(
    "data",
    [
        payload("k", 1, 100)[:50] + payload("k", 2, 100)[50:],
        payload("other", 1, 100),
        payload("k", 1, 100)[:99],
        bytes(100),
        b"",
    ],
    ids=["a mix of two versions", "another key's", "cut short", "zeros", "nothing"],
)
def test_bytes_that_are_no_version_are_named(story: Story, data: bytes) -> None:
    story.write(1)
    story.write(2)
    record = story.history.read("reader", "k")
    story.tick()
    record.returned(data)
    assert story.broken() == [Rule.WRONG_BYTES]


def test_a_range_is_judged_like_the_whole(story: Story) -> None:
    story.write(1)
    story.write(2)
    for version in (2, 1):
        record = story.history.read("reader", "k")
        story.tick()
        record.returned(payload("k", version, 100)[30:60], start=30, size=100)
        story.tick()
    assert story.broken() == [Rule.REVIVED]


def test_a_call_over_its_deadline_is_late(story: Story) -> None:
    record = story.history.read("reader", "k", deadline_s=0.5)
    story.conclude(record, None)
    assert story.broken() == [Rule.LATE]


def test_store_versions_do_not_go_back(story: Story) -> None:
    for number in (7, 5):
        record = story.history.write("writer", "k", number, size=100)
        story.tick()
        record.done(store_version=number)
        story.tick()
    assert story.broken() == [Rule.VERSION_WENT_BACK]


def test_a_violation_shows_the_calls_that_make_it(story: Story) -> None:
    story.write(1)
    story.remove()
    story.read(1)
    (violation,) = Checker(story.history).check()
    text = str(violation)
    assert "write k v1" in text
    assert "remove k" in text
    assert "read k v1" in text


def test_the_write_that_must_be_there_in_the_end_is_named_if_it_is_certain(story: Story) -> None:
    story.write(1)
    story.write(2)
    last = settled_write(story.history, "default", "k")
    assert last is not None
    assert last.version == 2
    story.remove("unknown")
    assert settled_write(story.history, "default", "k") is None
    story.write(3)
    assert settled_write(story.history, "default", "k") is None, "the removal may still come"


@pytest.mark.parametrize("seed", range(200))
def test_a_history_made_by_an_atomic_register_is_always_accepted(seed: int) -> None:
    """Calls overlap at random; each takes effect at one random moment between its ends."""
    generator = seeded(seed)
    clock = VirtualClock()
    history = History(clock)
    value: int | None = None

    def begin(number: int) -> None:
        kind = generator.choice(["write", "read", "read", "remove"])
        record = (
            history.write("c", "k", number, size=40)
            if kind == "write"
            else history.read("c", "k")
            if kind == "read"
            else history.remove("c", "k")
        )
        seen: list[int | None] = []

        def effect() -> None:
            nonlocal value
            if kind == "read":
                seen.append(value)
            else:
                value = number if kind == "write" else None

        def end() -> None:
            if kind != "read":
                record.done() if generator.random() < 0.8 else record.unknown()
            elif seen[0] is None:
                record.missed("removed")
            else:
                record.returned(payload("k", seen[0], 40))

        middle_s = generator.uniform(0.0, 2.0)
        clock.call_later(middle_s, effect)
        clock.call_later(middle_s + generator.uniform(0.0, 2.0), end)

    for number in range(40):
        clock.call_at(generator.uniform(0.0, 20.0), functools.partial(begin, number))
    clock.run_until(100.0)
    assert [str(violation) for violation in Checker(history).check()] == []
