"""The vigil: awake for a moment after a small request, asleep where that does not pay."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from mooncake_master.vigil import CROWDED_S, SMALL_BODY_BYTES, Vigil
from mooncake_store.transport.spinning import SPIN_CREDIT_MAX, SPIN_PROBE_EVERY
from mooncake_store.wire import control
from tests.unit.master_shell.harness import Harness

if TYPE_CHECKING:
    from collections.abc import Callable

AWAKE_S = 100e-6
LOOK_S = 2e-6


class Loop:
    """A loop that counts how often it goes round without sleeping, and what that takes."""

    def __init__(self) -> None:
        self.now_s = 5.0
        self._soon: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._soon.append(callback)

    def rounds(self, most: int = 10_000, *, look_s: float = LOOK_S) -> int:
        """Go round until the loop would sleep; return how often."""
        count = 0
        while self._soon and count < most:
            count += 1
            self.now_s += look_s
            soon, self._soon = self._soon, []
            for callback in soon:
                callback()
        return count


@pytest.fixture(autouse=True)
def two_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def vigil(loop: Loop) -> Vigil:
    return Vigil(loop.call_soon, AWAKE_S, lambda: loop.now_s)


def request_and_answer(vigil: Vigil) -> None:
    vigil.asked()
    vigil.answered()


def test_the_loop_does_not_sleep_for_a_while_after_an_answer_and_then_it_does(
    loop: Loop, vigil: Vigil
) -> None:
    assert not loop.rounds()
    request_and_answer(vigil)
    assert vigil.is_awake
    assert loop.rounds() == pytest.approx(AWAKE_S / LOOK_S, abs=2)
    assert not vigil.is_awake


def test_each_answer_begins_the_while_anew(loop: Loop, vigil: Vigil) -> None:
    request_and_answer(vigil)
    loop.rounds(40)
    request_and_answer(vigil)
    assert loop.rounds() == pytest.approx(AWAKE_S / LOOK_S, abs=2)


def test_where_nothing_follows_it_sleeps_at_once_but_for_a_trial_now_and_then(
    loop: Loop, vigil: Vigil
) -> None:
    for _ in range(SPIN_CREDIT_MAX):
        request_and_answer(vigil)
        assert loop.rounds() > 1
    awake = 0
    for _ in range(2 * SPIN_PROBE_EVERY):
        request_and_answer(vigil)
        awake += loop.rounds() > 0
    assert awake == 2


def test_where_requests_follow_again_it_stays_awake_again(loop: Loop, vigil: Vigil) -> None:
    for _ in range(SPIN_CREDIT_MAX):
        request_and_answer(vigil)
        loop.rounds()
    for _ in range(SPIN_PROBE_EVERY):
        request_and_answer(vigil)
        loop.rounds(3)
    request_and_answer(vigil)
    assert vigil.is_awake


def test_it_sleeps_where_others_use_its_cpu(loop: Loop, vigil: Vigil) -> None:
    request_and_answer(vigil)
    loop.rounds(10)
    assert loop.rounds(look_s=2 * CROWDED_S) == 1
    for _ in range(SPIN_PROBE_EVERY - 1):
        request_and_answer(vigil)
        assert not vigil.is_awake
    request_and_answer(vigil)
    assert vigil.is_awake


def test_it_never_stays_awake_where_that_is_turned_off(loop: Loop) -> None:
    vigil = Vigil(loop.call_soon, 0.0, lambda: loop.now_s)
    request_and_answer(vigil)
    assert not loop.rounds()


def test_it_never_stays_awake_on_one_cpu(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {3})
    vigil = Vigil(loop.call_soon, AWAKE_S, lambda: loop.now_s)
    for _ in range(2 * SPIN_PROBE_EVERY):
        request_and_answer(vigil)
        assert not loop.rounds()


@pytest.mark.parametrize(
    ("role", "keys", "wanted"), [("client", 1, True), ("client", 100, False), ("node", 1, False)]
)
async def test_only_small_requests_of_clients_keep_the_master_awake(
    role: str, keys: int, *, wanted: bool
) -> None:
    harness = Harness()
    harness.greet(role)
    request = control.Exists(0, 1, ["k" * (SMALL_BODY_BYTES // 50)] * keys)
    heartbeat = control.Heartbeat(0, "id", 1, 0, 0, 0)
    harness.ask(request if role == "client" else heartbeat, 7)
    assert harness.connection.owes == 1
    assert not harness.shared.vigil.is_awake
    answer = control.HeartbeatReply(1, known=True)
    harness.connection.reply(7, control.ExistsReply(bytes(keys)) if role == "client" else answer)
    assert harness.shared.vigil.is_awake is wanted
