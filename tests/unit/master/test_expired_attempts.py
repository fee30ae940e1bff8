"""What an attempt that ran out leaves of a key that an absent node holds: what it was."""

from __future__ import annotations

import pytest

from mooncake_store.limits import MIB
from mooncake_store.types import MissReason
from mooncake_store.wire.control import Location, Why
from tests.unit.master.rig import SPACE, Rig

WRITER = 7


def restart(rig: Rig, *names: str) -> None:
    """Begin with a new master; only these nodes come back."""
    for node in rig.nodes.values():
        node.peer = 0
    rig.numbers = (rig.numbers[0] + 1, 0)
    rig.restart()
    for name in names:
        rig.register(rig.nodes[name])
    rig.open(SPACE)


def give_up_a_write(rig: Rig, key: str) -> None:
    """Begin to write a key and break the writer's connection."""
    rig.start(key, peer=WRITER)
    rig.perform(rig.master.peer_lost(WRITER, rig.now_s))
    rig.settle()
    assert rig.ask(Why(rig.slot, rig.epoch, key)).reason == MissReason.EXPIRED


@pytest.mark.parametrize("keeps", [True, False])
def test_an_attempt_that_ran_out_takes_nothing_from_who_comes_late(*, keeps: bool) -> None:
    rig = Rig(1 * MIB, 1 * MIB, keeps=keeps)
    rig.put("a", preferred=("n1",))
    rig.put("other", preferred=("n0",))
    restart(rig, "n0")
    give_up_a_write(rig, "a")
    rig.register(rig.nodes["n1"])
    rig.sleep(0.5)
    assert isinstance(rig.locate("a")[0], Location), "it was acknowledged, and never removed"
    rig.check()


@pytest.mark.parametrize("keeps", [True, False])
def test_an_attempt_that_ran_out_brings_nothing_back_that_was_removed(*, keeps: bool) -> None:
    rig = Rig(1 * MIB, 1 * MIB, keeps=keeps, lease_ttl_s=0.5)
    rig.put("a", preferred=("n1",))
    rig.put("other", preferred=("n0",))
    restart(rig, "n0")
    rig.remove("a")
    give_up_a_write(rig, "a")
    rig.register(rig.nodes["n1"])
    rig.sleep(0.5)
    assert rig.exists("a") == [False]
    assert not rig.nodes["n1"].entries, "it was erased"
    rig.check()
