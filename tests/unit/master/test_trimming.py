"""Replicas beyond what was asked for are given up, those that were asked for never."""

from __future__ import annotations

from mooncake_master.core.repair import ROUND_S
from mooncake_master.core.trimming import SETTLE_S, TRIMS_MAX
from mooncake_store.limits import KIB, MIB
from mooncake_store.wire.control import Drain, Undrain
from tests.unit.master.rig import Free, Rig
from tests.unit.master.test_repair import holders

TRIMMED = "mooncake_master_trimmed_replicas_total"
SETTLED_S = SETTLE_S + ROUND_S + 5.0


def rig_of(count: int, lease_ttl_s: float = 0.1, **settings: Free) -> Rig:
    return Rig(
        *[1 * MIB] * count, dead_after_s=3.0, ramp_s=0.0, lease_ttl_s=lease_ttl_s, **settings
    )


def lose_and_return(rig: Rig, name: str) -> None:
    """A node is away until its replicas are made again elsewhere, and comes back with them."""
    rig.cut(rig.nodes[name])
    rig.sleep(6.0)
    rig.register(rig.nodes[name])


def test_fr_026_what_was_rebuilt_is_given_up_when_the_dead_node_is_back() -> None:
    rig = rig_of(3)
    keys = [f"k{number}" for number in range(50)]
    rig.put(*keys, replicas=2)
    lose_and_return(rig, "n0")
    spare = sum(len(holders(rig, key)) - 2 for key in keys)
    assert spare > 10
    rig.sleep(SETTLE_S / 2)
    assert rig.counter(TRIMMED) == 0, "it may go again"
    rig.sleep(SETTLED_S)
    assert all(len(holders(rig, key)) == 2 for key in keys)
    assert rig.counter(TRIMMED) == spare
    assert rig.counter("mooncake_master_trimmed_bytes_total") == spare * KIB
    rig.check()
    rig.sleep(2 * ROUND_S)
    assert rig.counter(TRIMMED) == spare
    assert all(len(holders(rig, key)) == 2 for key in keys)
    assert rig.gauge("mooncake_master_under_replicated_count") == 0


def test_the_fullest_node_gives_up_its_replica() -> None:
    rig = rig_of(3)
    rig.put("a", replicas=2, preferred=("n0", "n1"))
    lose_and_return(rig, "n0")
    rig.put(*(f"k{n}" for n in range(20)), length=16 * KIB, preferred=("n1",))
    assert holders(rig, "a") == {"n0", "n1", "n2"}
    rig.sleep(SETTLED_S)
    assert holders(rig, "a") == {"n0", "n2"}
    rig.check()


def test_replicas_stay_in_as_many_zones_as_they_were() -> None:
    rig = Rig(1 * MIB, dead_after_s=3.0, ramp_s=0.0, lease_ttl_s=0.1)
    rig.cut(rig.nodes.pop("n0"))
    for name, zone in (("a1", "a"), ("b1", "b"), ("b2", "b")):
        rig.add_node(1 * MIB, name=name, zone=zone)
    rig.put("a", replicas=2, preferred=("a1", "b1"))
    lose_and_return(rig, "b1")
    rig.put(*(f"k{n}" for n in range(20)), length=16 * KIB, preferred=("a1",))  # It is fullest.
    assert holders(rig, "a") == {"a1", "b1", "b2"}
    rig.sleep(SETTLED_S)
    found = holders(rig, "a")
    assert len(found) == 2
    assert "a1" in found


def test_a_suspect_or_drained_node_is_none_to_count_on() -> None:
    rig = rig_of(3)
    rig.put("a", replicas=2, preferred=("n0", "n1"))
    lose_and_return(rig, "n0")
    rig.ask(Drain("n1", 600.0))
    rig.sleep(SETTLED_S)
    assert holders(rig, "a") == {"n0", "n1", "n2"}
    assert rig.counter(TRIMMED) == 0


def test_what_a_drain_that_was_taken_back_has_copied_is_given_up() -> None:
    rig = rig_of(2)
    rig.put("a", preferred=("n0",))
    rig.ask(Drain("n0", 600.0))
    rig.sleep(5.0)
    assert holders(rig, "a") == {"n0", "n1"}
    rig.ask(Undrain("n0"))
    rig.sleep(SETTLED_S)
    assert len(holders(rig, "a")) == 1
    assert rig.counter(TRIMMED) == 1
    rig.check()


def test_what_is_read_is_left_alone_until_its_lease_is_over() -> None:
    rig = rig_of(3, lease_ttl_s=2 * SETTLED_S)
    rig.put("a", replicas=2, preferred=("n0", "n1"))
    lose_and_return(rig, "n0")
    rig.locate("a")
    rig.sleep(SETTLED_S)
    assert rig.counter(TRIMMED) == 0
    rig.sleep(SETTLED_S + ROUND_S + 1.0)
    assert rig.counter(TRIMMED) == 1


def test_the_rate_is_bounded() -> None:
    rig = rig_of(3, copy_rate=1e9)
    keys = [f"k{number}" for number in range(4 * TRIMS_MAX)]
    rig.put(*keys, replicas=2, length=256)
    lose_and_return(rig, "n0")
    rig.sleep(6.0)
    before, most = 0, 0
    until_s = rig.now_s + SETTLED_S
    while rig.now_s < until_s:
        rig.sleep(0.1)
        most = max(most, rig.counter(TRIMMED) - before)
        before = rig.counter(TRIMMED)
    assert before > TRIMS_MAX
    assert most <= TRIMS_MAX
    rig.check()
