"""Objects move from full nodes to emptier ones, slowly, and only where that is asked for."""

from __future__ import annotations

from mooncake_store.limits import KIB, MIB
from mooncake_store.wire.control import Drain, SetPin
from tests.unit.master.rig import Free, Rig

BLOCK = 63 * KIB


def rig_of(*sizes: int, **settings: Free) -> Rig:
    return Rig(
        *sizes, **{"ramp_s": 0.0, "lease_ttl_s": 0.5, "rebalance_rate": 100 * MIB, **settings}
    )


def fill(rig: Rig, count: int, on: str = "n0", **fields: Free) -> list[str]:
    keys = [f"{on}-{number}" for number in range(count)]
    for key in keys:
        rig.put(key, length=BLOCK, preferred=(on,), **fields)
    return keys


def share(rig: Rig, name: str) -> float:
    node = rig.master._context.cluster.find(name)
    assert node is not None
    return 1 - node.free_granules / node.capacity


def holders(rig: Rig, key: str) -> set[str]:
    return {extent.segment.node.name for extent in rig.find(key).extents()}


def moved(rig: Rig) -> int:
    return rig.counter("mooncake_master_rebalanced_objects_total")


def test_a_new_node_fills_up_and_nothing_is_lost() -> None:
    rig = rig_of(4 * MIB)
    keys = fill(rig, 50)
    rig.add_node(4 * MIB)
    rig.sleep(10.0)
    assert abs(share(rig, "n0") - share(rig, "n1")) < 0.06
    assert rig.exists(*keys) == [True] * 50
    assert all(len(holders(rig, key)) == 1 for key in keys)
    assert rig.counter("mooncake_master_rebalanced_bytes_total") == moved(rig) * BLOCK
    before = moved(rig)
    rig.sleep(10.0)
    assert moved(rig) == before
    rig.check()


def test_it_is_off_unless_asked_for() -> None:
    rig = rig_of(4 * MIB, rebalance_rate=0.0)
    fill(rig, 50)
    rig.add_node(4 * MIB)
    rig.sleep(5.0)
    assert share(rig, "n1") == 0


def test_the_rate_is_kept() -> None:
    rig = rig_of(16 * MIB, rebalance_rate=float(MIB))
    fill(rig, 200)
    rig.add_node(16 * MIB)
    rig.sleep(4.0)
    assert 3 * MIB < moved(rig) * BLOCK < 5.5 * MIB


def test_small_differences_are_left_alone() -> None:
    rig = rig_of(4 * MIB, 4 * MIB)
    fill(rig, 20, on="n0")
    fill(rig, 15, on="n1")
    rig.sleep(5.0)
    assert moved(rig) == 0


def test_what_is_read_stays_readable_where_it_was_read() -> None:
    rig = rig_of(4 * MIB)
    keys = fill(rig, 50)
    rig.add_node(4 * MIB)
    rig.sleep(0.04)
    read = [key for key in keys if rig.locate(key)]
    places = {key: holders(rig, key) for key in read}
    rig.tick(0.1)
    assert all(places[key] <= holders(rig, key) for key in read)
    rig.sleep(10.0)
    assert all(len(holders(rig, key)) == 1 for key in keys)
    rig.check()


def test_pins_go_along_and_copies_stay_apart() -> None:
    rig = rig_of(4 * MIB, 4 * MIB)
    keys = fill(rig, 40, replicas=2)
    rig.ask(SetPin(rig.slot, rig.epoch, keys[:20], 2))
    rig.add_node(4 * MIB)
    rig.sleep(10.0)
    assert moved(rig) > 10
    assert all(len(holders(rig, key)) == 2 for key in keys)
    rig.check()


def test_nothing_moves_to_or_from_a_drained_node() -> None:
    rig = rig_of(4 * MIB)
    fill(rig, 50)
    rig.add_node(4 * MIB)
    rig.ask(Drain("n1", 60.0))
    rig.sleep(3.0)
    assert moved(rig) == 0
    assert share(rig, "n1") == 0


def test_failed_copies_leave_everything_where_it_was() -> None:
    rig = rig_of(4 * MIB)
    keys = fill(rig, 50)
    rig.add_node(4 * MIB).refusals = ["overloaded"] * 100_000
    rig.sleep(3.0)
    assert moved(rig) == 0
    assert rig.exists(*keys) == [True] * 50
    rig.check()
