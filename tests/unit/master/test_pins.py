"""How much may be pinned: of the pool, and by each namespace, as operators say."""

from __future__ import annotations

import pytest

from mooncake_store.errors import InvalidArgument, PinLimitReached
from mooncake_store.extent import extent_bytes, name_bytes
from mooncake_store.limits import KIB, MIB
from mooncake_store.types import Pin
from mooncake_store.wire.control import (
    Committed,
    ListPinLimits,
    PinLimit,
    Refusal,
    SetPin,
    SetPinLimit,
)
from tests.unit.master.rig import SPACE, Free, Rig

LENGTH = 99 * KIB
EXTENT = extent_bytes(LENGTH, name_bytes(SPACE, "k0"))


def limit(rig: Rig, share: float | None, namespace: str = "") -> dict[str, PinLimit]:
    reply = rig.ask(SetPinLimit(namespace, share))
    return {each.namespace: each for each in reply.limits}


def limits(rig: Rig) -> dict[str, PinLimit]:
    return {each.namespace: each for each in rig.ask(ListPinLimits()).limits}


def pin(rig: Rig, *keys: str) -> Free:
    return rig.ask(SetPin(rig.slot, rig.epoch, list(keys), Pin.HARD))


def test_the_pool_has_the_configured_limit_until_another_is_set() -> None:
    rig = Rig(MIB, pinned_share_max=0.25)
    assert limits(rig) == {"": PinLimit("", 0.25, 0, MIB // 4, is_set=False)}
    rig.put(*(f"k{n}" for n in range(6)), length=LENGTH)
    pin(rig, "k0", "k1")
    with pytest.raises(PinLimitReached, match="more would be over the 262144 that may be"):
        pin(rig, "k2")
    found = limit(rig, 0.5)[""]
    assert (found.pinned_share_max, found.is_set) == (0.5, True)
    assert found.pinned_bytes == 2 * EXTENT
    pin(rig, "k2", "k3")
    assert limit(rig, None)[""] == PinLimit("", 0.25, 4 * EXTENT, MIB // 4, is_set=False)
    with pytest.raises(PinLimitReached):
        pin(rig, "k4")
    rig.check()


def test_a_namespace_may_have_a_limit_of_its_own() -> None:
    rig = Rig(MIB, pinned_share_max=1.0)
    limit(rig, 0.25, SPACE)
    rig.put(*(f"k{n}" for n in range(4)), length=LENGTH)
    pin(rig, "k0", "k1")
    with pytest.raises(PinLimitReached, match=f"in namespace '{SPACE}' already"):
        pin(rig, "k2")
    (result,) = rig.put("new", length=LENGTH, pin=Pin.HARD)
    assert isinstance(result, Refusal)
    assert result.code == PinLimitReached.code
    other = rig.open("other")
    own = rig.slot, rig.epoch
    rig.slot, rig.epoch = other.slot, other.epoch
    (result,) = rig.put("free", length=LENGTH, pin=Pin.HARD)
    assert isinstance(result, Committed)
    rig.slot, rig.epoch = own
    assert limits(rig)[SPACE].pinned_bytes == 2 * EXTENT
    rig.ask(SetPin(rig.slot, rig.epoch, ["k0"], Pin.NONE))
    rig.remove("k1")
    assert limits(rig)[SPACE].pinned_bytes == 0
    assert limit(rig, None, SPACE).keys() == {""}
    pin(rig, "k0", "k2", "k3")
    rig.check()


def test_limits_outlive_the_master() -> None:
    rig = Rig(MIB, keeps=True)
    limit(rig, 0.3)
    limit(rig, 0.1, SPACE)
    limit(rig, 0.2, "gone")
    limit(rig, None, "gone")
    rig.restart()
    for node in rig.nodes.values():
        rig.register(node)
    found = limits(rig)
    assert {name: each.pinned_share_max for name, each in found.items()} == {"": 0.3, SPACE: 0.1}


def test_limits_that_make_no_sense_are_refused() -> None:
    rig = Rig(MIB)
    for share in (-0.1, 1.1, float("nan")):
        with pytest.raises(InvalidArgument):
            limit(rig, share)
    with pytest.raises(InvalidArgument):
        limit(rig, 0.5, "\0")
    assert limits(rig).keys() == {""}
