"""Whether to wait without sleeping: while it pays, and never on one CPU."""

from __future__ import annotations

import os

import pytest

from mooncake_store.transport.spinning import SPIN_CREDIT_MAX, SPIN_PROBE_EVERY, Spinner


def test_it_stops_where_it_does_not_pay_and_tries_again_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    spinner = Spinner()
    for _ in range(SPIN_CREDIT_MAX):
        assert spinner.wanted()
        spinner.learn(paid=False)
    tries = [spinner.wanted() for _ in range(3 * SPIN_PROBE_EVERY)]
    assert tries.count(True) == 3
    spinner.learn(paid=True)
    assert spinner.wanted()


@pytest.mark.parametrize("cpus", [{0}, {5}])
def test_on_one_cpu_it_never_begins(cpus: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: cpus)
    spinner = Spinner()
    spinner.learn(paid=True)
    assert not any(spinner.wanted() for _ in range(2 * SPIN_PROBE_EVERY))
