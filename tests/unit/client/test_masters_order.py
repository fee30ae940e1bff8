"""The order of masters is changed by several threads, and each of them always sees all."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from mooncake_client._address import parse_master
from mooncake_client._masters import Masters
from mooncake_store.deadline import Deadline

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

ADDRESSES = [parse_master(f"127.0.0.1:{port}") for port in (5001, 5002, 5003)]


def seen_meanwhile(masters: Masters, change: Callable[[], None]) -> list[int]:
    """Change the order; return how many masters others see after each of its steps."""
    seen: list[int] = []

    def look(_frame: FrameType, event: str, _argument: object) -> None:
        if event in {"c_call", "c_return"}:
            seen.append(len(list(masters.attempt(Deadline(10)))))

    sys.setprofile(look)
    try:
        change()
    finally:
        sys.setprofile(None)
    return seen


def test_a_master_that_is_found_is_never_missing_to_others() -> None:
    masters = Masters(ADDRESSES)
    seen = seen_meanwhile(masters, lambda: masters.found(ADDRESSES[2]))
    assert set(seen) == {3}
    assert [master for master, _ in masters.attempt(Deadline(10))] == [
        ADDRESSES[2], ADDRESSES[0], ADDRESSES[1],
    ]  # fmt: skip


def test_the_only_master_is_never_missing_to_others() -> None:
    masters = Masters(ADDRESSES[:1])
    assert set(seen_meanwhile(masters, lambda: masters.found(ADDRESSES[0]))) == {1}
    assert set(seen_meanwhile(masters, lambda: masters.redirect(None))) <= {1}


def test_who_does_not_lead_is_asked_last_and_never_missing() -> None:
    masters = Masters(ADDRESSES)
    assert set(seen_meanwhile(masters, lambda: masters.redirect(None))) <= {3}
    assert [master for master, _ in masters.attempt(Deadline(10))] == [
        ADDRESSES[1], ADDRESSES[2], ADDRESSES[0],
    ]  # fmt: skip
