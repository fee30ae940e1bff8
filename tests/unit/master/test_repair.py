"""Lost replicas are made again, on other nodes and in other failure domains."""

from __future__ import annotations

from mooncake_master.core.repair import RETRY_S
from mooncake_store.limits import KIB, MIB
from mooncake_store.wire.control import Location, ReportReplica
from tests.unit.master.rig import Free, Rig

SHORT = "mooncake_master_under_replicated_count"


def holders(rig: Rig, key: str) -> set[str]:
    """Return the nodes that an object can be read from."""
    (found,) = rig.locate(key)
    if not isinstance(found, Location):
        return set()
    return {rig.node_of(replica.incarnation).name for replica in found.replicas}


def repaired(rig: Rig) -> int:
    return rig.counter('mooncake_master_copies_total{outcome="done",purpose="repair"}')


def rig_of(count: int, **settings: Free) -> Rig:
    return Rig(*[1 * MIB] * count, dead_after_s=3.0, ramp_s=0.0, **settings)


def test_fr_026_copies_are_rebuilt_when_their_node_is_dead() -> None:
    rig = rig_of(3)
    keys = [f"k{number}" for number in range(50)]
    rig.put(*keys, replicas=2)
    rig.cut(rig.nodes["n0"])
    rig.sleep(1.0)
    assert repaired(rig) == 0, "it may come back"
    rig.sleep(4.0)
    assert all(holders(rig, key) == {"n1", "n2"} for key in keys)
    assert rig.gauge(SHORT) == 0
    rig.check()


def test_fr_026_what_cannot_be_rebuilt_is_shown_as_under_replicated() -> None:
    rig = rig_of(2)
    rig.put("a", "b", replicas=2)
    rig.put("c")
    rig.cut(rig.nodes["n0"])
    rig.sleep(5.0)
    assert rig.gauge(SHORT) == 2
    rig.add_node(1 * MIB, name="new")
    rig.sleep(RETRY_S + 0.5)
    assert rig.gauge(SHORT) == 0
    assert holders(rig, "a") == holders(rig, "b") == {"n1", "new"}
    rig.check()


def test_a_node_that_is_forgotten_is_replaced() -> None:
    rig = rig_of(3, forget_after_s=10.0)
    rig.put("a", replicas=2)
    gone = min(holders(rig, "a"))
    rig.cut(rig.nodes[gone])
    rig.sleep(15.0)
    assert len(holders(rig, "a")) == 2
    rig.check()


def test_memory_that_is_gone_is_rebuilt_at_once() -> None:
    rig = rig_of(2)
    rig.put("a", replicas=2)
    rig.cut(rig.nodes["n0"])
    rig.wipe(rig.nodes["n0"])
    rig.register(rig.nodes["n0"])
    rig.sleep(1.0)
    assert holders(rig, "a") == {"n0", "n1"}
    rig.check()


def test_a_bad_replica_is_replaced() -> None:
    rig = rig_of(3)
    rig.put("a", replicas=2)
    (found,) = rig.locate("a")
    assert isinstance(found, Location)
    bad = found.replicas[0]
    rig.ask(ReportReplica(rig.slot, rig.epoch, "a", found.version, bad.incarnation, bad.offset,
                          "checksum_mismatch"))  # fmt: skip
    rig.sleep(0.5)
    assert len(holders(rig, "a")) == 2
    assert repaired(rig) == 1
    rig.check()


def test_a_put_that_got_fewer_copies_gets_the_others_later() -> None:
    rig = rig_of(3)
    started = rig.start("a", replicas=2)
    rig.land(started, ("a",), KIB)
    rig.commit(started, written=1)
    assert rig.gauge(SHORT) == 1
    rig.sleep(0.5)
    assert len(holders(rig, "a")) == 2
    assert rig.gauge(SHORT) == 0
    rig.check()


def test_rebuilt_copies_keep_to_failure_domains() -> None:
    rig = Rig(1 * MIB, dead_after_s=3.0, ramp_s=0.0)
    rig.cut(rig.nodes.pop("n0"))
    for name, zone in (("a1", "a"), ("a2", "a"), ("b1", "b"), ("b2", "b")):
        rig.add_node(1 * MIB, name=name, zone=zone)
    keys = [f"k{number}" for number in range(20)]
    rig.put(*keys, replicas=2)
    rig.cut(rig.nodes["a1"])
    rig.sleep(6.0)
    for key in keys:
        assert {rig.nodes[name].labels["zone"] for name in holders(rig, key)} == {"a", "b"}
    rig.check()


def test_a_replica_that_was_evicted_is_not_rebuilt() -> None:
    rig = Rig(64 * KIB, 1 * MIB, lease_ttl_s=0.0, high_watermark=0.5, low_watermark=0.3)
    rig.put("a", length=8 * KIB, replicas=2)
    for number in range(4):
        rig.put(f"k{number}", length=8 * KIB, preferred=("n0",))
    rig.sleep(3.0)
    assert holders(rig, "a") == {"n1"}
    assert repaired(rig) == 0
    assert rig.gauge(SHORT) == 0
    rig.check()


def test_memory_and_disk_of_one_node_are_one_replica() -> None:
    rig = rig_of(2)
    for node in rig.nodes.values():
        rig.give_disk(node)
    started = rig.start("a", replicas=2, durable=True)
    rig.land(started, ("a",), KIB)
    rig.commit(started)
    assert len(rig.locate("a")[0].replicas) == 3  # type: ignore[union-attr]
    rig.add_node(1 * MIB, name="new")
    rig.cut(rig.nodes["n0"])
    rig.sleep(6.0)
    assert holders(rig, "a") == {"n1", "new"}
    rig.check()


def test_an_object_on_disk_alone_is_rebuilt_in_memory_of_another_node() -> None:
    rig = Rig(14 * KIB, 1 * MIB, lease_ttl_s=0.0, high_watermark=1.0, dead_after_s=3.0, ramp_s=0.0)
    rig.give_disk(rig.nodes["n0"])
    rig.put("a", length=6 * KIB, replicas=2)
    for number in range(8):
        rig.put(f"k{number}", length=6 * KIB, preferred=("n0",))
        if "a" in rig.nodes["n0"].on_disk():
            break
    rig.put(*"xyz", length=6 * KIB, preferred=("n0",))
    rig.add_node(1 * MIB, name="new")
    rig.cut(rig.nodes["n1"])
    rig.sleep(6.0)
    assert holders(rig, "a") == {"n0", "new"}
    rig.check()


def test_repair_waits_for_the_end_of_a_recovery() -> None:
    rig = rig_of(2)
    rig.put("a", replicas=2)
    rig.restart(recovery_grace_s=2.0)
    rig.register(rig.nodes["n0"])
    rig.sleep(1.0)
    rig.register(rig.nodes["n1"])
    rig.open("ns4904")
    rig.sleep(3.0)
    assert repaired(rig) == 0
    assert holders(rig, "a") == {"n0", "n1"}
    rig.check()


def test_the_rate_of_repairs_is_bounded() -> None:
    rig = rig_of(3, copy_rate=64.0 * KIB)
    keys = [f"k{number}" for number in range(16)]
    rig.put(*keys, length=16 * KIB, replicas=2)
    rig.cut(rig.nodes["n0"])
    rig.sleep(4.0)
    done = repaired(rig)
    rig.sleep(1.0)
    assert repaired(rig) - done <= 2 * 64 / 16 + 2
    rig.sleep(6.0)
    assert all(len(holders(rig, key)) == 2 for key in keys)
