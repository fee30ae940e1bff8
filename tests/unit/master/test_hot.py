"""What more readers ask for than one node's share gets more replicas, for a while."""

from __future__ import annotations

from mooncake_master.core.hot import COOL_S, READS_MIN, WINDOW_S
from mooncake_store.limits import KIB, MIB
from mooncake_store.wire.control import Remove
from tests.unit.master.rig import Free, Rig

GAUGE = "mooncake_master_hot_objects_count"


def rig_of(nodes: int, **settings: Free) -> Rig:
    return Rig(*[4 * MIB] * nodes, **{"ramp_s": 0.0, "lease_ttl_s": 1.0, **settings})


def holders(rig: Rig, key: str) -> set[str]:
    return {extent.segment.node.name for extent in rig.find(key).extents()}


def read(rig: Rig, *keys: str, times: int = 2 * READS_MIN) -> None:
    """Have many readers ask within one window, and let the window end."""
    for _ in range(times):
        for key in keys:
            rig.locate(key)
    rig.sleep(WINDOW_S + 0.2)


def test_a_hot_object_gets_replicas_one_by_one_up_to_the_bound() -> None:
    rig = rig_of(8)
    rig.put("hot", length=100 * KIB)
    for wanted in (2, 3, 3):
        read(rig, "hot")
        assert len(holders(rig, "hot")) == wanted
    assert rig.gauge(GAUGE) == 1
    rig.check()


def test_readers_are_spread_over_the_replicas() -> None:
    rig = rig_of(8)
    rig.put("hot", length=100 * KIB)
    read(rig, "hot")
    read(rig, "hot")
    found: list[Free] = [rig.locate("hot")[0] for _ in range(30)]
    first = [location.replicas[0].incarnation for location in found]
    assert sorted(first.count(incarnation) for incarnation in set(first)) == [10, 10, 10]


def test_no_more_than_a_nodes_share_is_not_hot() -> None:
    rig = rig_of(4)
    keys = [f"k{n}" for n in range(4)]
    rig.put(*keys, length=100 * KIB)
    read(rig, *keys, times=READS_MIN)
    assert all(len(holders(rig, key)) == 1 for key in keys)


def test_two_replicas_are_enough_for_two_nodes() -> None:
    rig = rig_of(2)
    rig.put("hot", length=100 * KIB)
    for _ in range(3):
        read(rig, "hot")
    assert len(holders(rig, "hot")) == 2


def test_few_readers_are_no_rush() -> None:
    rig = rig_of(4)
    rig.put("k", length=100 * KIB)
    read(rig, "k", times=READS_MIN - 1)
    assert len(holders(rig, "k")) == 1


def test_it_can_be_turned_off() -> None:
    rig = rig_of(4, hot_replicas_max=1)
    rig.put("hot", length=100 * KIB)
    read(rig, "hot")
    assert len(holders(rig, "hot")) == 1


def test_the_replicas_go_when_the_rush_is_over() -> None:
    rig = rig_of(4)
    rig.put("hot", length=100 * KIB)
    rig.put("two", length=100 * KIB, replicas=2)
    for _ in range(2):
        read(rig, "hot", "two")
    assert len(holders(rig, "hot")) >= 2
    rig.sleep(COOL_S / 2)
    assert len(holders(rig, "hot")) >= 2
    rig.sleep(COOL_S / 2 + 2 * WINDOW_S)
    assert len(holders(rig, "hot")) == 1
    assert len(holders(rig, "two")) == 2
    assert rig.gauge(GAUGE) == 0
    rig.check()


def test_nothing_is_evicted_for_more_replicas() -> None:
    rig = Rig(MIB, MIB, ramp_s=0.0, lease_ttl_s=1.0)
    rig.put("hot", length=100 * KIB, preferred=("n0",))
    rig.put(*(f"k{n}" for n in range(14)), length=64 * KIB, preferred=("n1",))
    rig.put(*(f"l{n}" for n in range(12)), length=64 * KIB, preferred=("n0",))
    read(rig, "hot")
    assert rig.counter("mooncake_master_evicted_replicas_total") == 0


def test_an_object_that_goes_is_forgotten() -> None:
    rig = rig_of(4)
    rig.put("hot", length=100 * KIB)
    read(rig, "hot")
    rig.ask(Remove(rig.slot, rig.epoch, ["hot"]))
    rig.sleep(COOL_S + 2 * WINDOW_S)
    assert rig.gauge(GAUGE) == 0
    rig.check()


def test_batches_count_for_all_of_their_keys() -> None:
    rig = rig_of(4)
    keys = [f"k{n}" for n in range(16)]
    rig.put(*keys, length=10 * KIB)
    for _ in range(READS_MIN):
        rig.locate(*keys)
        rig.locate("k3")
        rig.locate("k3")
        rig.locate("k3")
    rig.sleep(WINDOW_S + 0.2)
    assert all(len(holders(rig, key)) == 1 for key in keys)
    read(rig, "k3")
    assert len(holders(rig, "k3")) == 2


def test_one_large_batch_makes_nothing_hot() -> None:
    rig = Rig(MIB, MIB, MIB, ramp_s=0.0)
    keys = [f"k{number}" for number in range(500)]
    rig.put(*keys, length=300)
    rig.locate(*keys)
    rig.sleep(2 * WINDOW_S)
    assert rig.gauge(GAUGE) == 0
    rig.locate(*keys)
    rig.sleep(2 * WINDOW_S)
    assert rig.gauge(GAUGE) == 0
