"""Waiting ends with the condition or with a message."""

from __future__ import annotations

import pytest

from mooncake_store.testing import ConditionNotMet, wait_until


def test_it_returns_what_the_condition_found() -> None:
    answers = iter([None, 0, "found"])
    assert wait_until(lambda: next(answers), 5.0) == "found"


def test_it_says_what_was_not_met() -> None:
    with pytest.raises(ConditionNotMet, match=r"pigs fly \(last: False\)"):
        wait_until(lambda: False, 0.01, what="pigs fly")


def test_expected_exceptions_mean_not_yet() -> None:
    with pytest.raises(ConditionNotMet, match="ValueError"):
        wait_until(lambda: int("no number"), 0.01, ignoring=(ValueError,))
    with pytest.raises(ValueError, match="no number"):
        wait_until(lambda: int("no number"), 0.01)
