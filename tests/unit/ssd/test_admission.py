from __future__ import annotations

from mooncake_storage_node.ssd.core.admission import DAY_S, OfferMemory, Wear
from mooncake_store.fingerprint import fingerprint

NOON_S = 20_000 * DAY_S + DAY_S / 2


def test_an_object_is_known_the_second_time() -> None:
    memory = OfferMemory(1 << 10)
    marks = [fingerprint("ns", f"key-{n}") for n in range(50)]
    assert not any(memory.seen_before(mark) for mark in marks)
    assert sum(memory.seen_before(mark) for mark in marks) >= 45


def test_a_full_memory_forgets_the_oldest() -> None:
    memory = OfferMemory(2)
    marks = [fingerprint("ns", f"key-{n}") for n in range(100)]
    for mark in marks:
        memory.seen_before(mark)
    assert sum(memory.seen_before(mark) for mark in marks) <= 2


def test_without_a_budget_everything_is_allowed() -> None:
    wear = Wear(0, NOON_S, None)
    wear.spend(user_bytes=1 << 50, total_bytes=1 << 50, now_s=NOON_S)
    assert wear.allows(1 << 50, NOON_S)


def test_no_24_hours_exceed_the_budget() -> None:
    budget = 1_000_000
    wear = Wear(budget, NOON_S, None)
    spent: list[tuple[float, int]] = []
    for step in range(3 * 24 * 60):
        now_s = NOON_S + step * 60
        while wear.allows(1000, now_s):
            wear.spend(user_bytes=1000, total_bytes=1000, now_s=now_s)
            spent.append((now_s, 1000))
    for start_s in (NOON_S, NOON_S + 3600, NOON_S + DAY_S):
        window = sum(size for at, size in spent if start_s <= at < start_s + DAY_S)
        assert window <= budget
    assert sum(size for _, size in spent) > 2.2 * budget


def test_what_was_written_today_begins_again_at_midnight() -> None:
    wear = Wear(0, NOON_S, None)
    wear.spend(user_bytes=10, total_bytes=20, now_s=NOON_S)
    assert wear.today_bytes == 20
    wear.spend(user_bytes=1, total_bytes=2, now_s=NOON_S + DAY_S)
    assert wear.today_bytes == 2
    assert wear.total_bytes == 22
    assert wear.amplification() == 2.0


def test_a_restart_keeps_what_was_spent_and_a_clock_that_jumps_back_gives_nothing() -> None:
    wear = Wear(1000, NOON_S, None)
    wear.spend(user_bytes=250, total_bytes=250, now_s=NOON_S)
    again = Wear(1000, NOON_S, wear.state())
    assert not again.allows(1, NOON_S)
    assert not again.allows(1, NOON_S - DAY_S)
    assert again.today_bytes == 250
    assert Wear(0, NOON_S, None).amplification() == 1.0
