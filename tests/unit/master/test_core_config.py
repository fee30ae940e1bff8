"""Settings of the core are checked all at once; its generator of random numbers is ours."""

from __future__ import annotations

import pytest

from mooncake_master.core import CoreConfig, Master
from mooncake_master.core.config import POLICY_NAMES
from mooncake_master.core.dice import Dice
from mooncake_master.core.eviction import POLICIES
from mooncake_store.errors import ConfigError


def test_the_defaults_are_valid() -> None:
    CoreConfig().validate()


def test_all_problems_are_reported_at_once() -> None:
    config = CoreConfig(low_watermark=0.99, lease_ttl_s=-1, policy="best", put_ttl_s=0,
                        pinned_share_max=2, dead_after_s=1.0)  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        Master(config)
    for name in ("low_watermark", "lease_ttl_s", "policy", "put_ttl_s", "pinned_share_max",
                 "dead_after_s"):  # fmt: skip
        assert name in str(caught.value)


def test_the_documented_policies_are_those_there_are() -> None:
    assert sorted(POLICIES) == sorted(POLICY_NAMES)


def test_dice_are_the_same_everywhere_and_even() -> None:
    dice = Dice(1_234_567)
    # The first outputs of the reference implementation, cut to 53 bits.
    assert [int(dice.random() * 2**53) for _ in range(3)] == [
        number >> 11 for number in (6457827717110365317, 3203168211198807973, 9817491932198370423)
    ]
    numbers = [dice.random() for _ in range(10_000)]
    assert 0.48 < sum(numbers) / len(numbers) < 0.52
