"""A miss never says that a key was not there where nobody can know that."""

from __future__ import annotations

from mooncake_store.limits import KIB, MIB
from mooncake_store.types import MissReason
from mooncake_store.wire.control import Why
from tests.unit.master.rig import SPACE, Rig
from tests.unit.master.test_eviction import fill


def test_a_miss_says_that_a_node_is_away_which_went_before_it_was_listed_to_its_end() -> None:
    rig = Rig(MIB)
    keys = fill(rig, 20, length=KIB)
    node = rig.nodes["n0"]
    rig.restart(directory_page=5)
    rig.automatic = False
    rig.register(node)
    rig.deliver_page(node)
    rig.cut(node)
    assert not rig.master.recovering
    rig.open(SPACE)
    reasons = {item for item in rig.locate(*keys, "never") if isinstance(item, int)}
    assert reasons == {MissReason.NODE_DOWN}
    assert rig.ask(Why(0, 1, keys[-1])).reason == MissReason.NODE_DOWN
    rig.register(node)
    rig.settle()
    rig.automatic = True
    assert rig.locate("never") == [MissReason.ABSENT]
    assert rig.exists(*keys) == [True] * 20
    rig.check()
