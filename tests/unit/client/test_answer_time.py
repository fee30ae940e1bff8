"""The master is given less time than there is, so that its words are heard before the deadline."""

import pytest

from mooncake_client._line import answer_ms


@pytest.mark.parametrize(
    ("left_s", "told_ms"), [(20.0, 19_950), (1.0, 950), (0.1, 95), (0.001, 1), (0.0, 1)]
)
def test_the_master_is_told_of_less_time_than_is_left(left_s: float, told_ms: int) -> None:
    assert answer_ms(left_s) == told_ms
