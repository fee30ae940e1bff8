"""Where new objects go when the writer has nodes on its own host."""

from __future__ import annotations

import pytest

from mooncake_store.limits import KIB, MIB
from tests.unit.master.rig import Rig

BLOCK = 15 * KIB
"""With header and names, just under 16 KiB: 60 of them are 0.9 of a mebibyte."""


def put(rig: Rig, count: int, near: tuple[str, ...], *, replicas: int = 1) -> dict[str, int]:
    """Put objects from a host that has these nodes; return {node: copies it got}."""
    copies = dict.fromkeys(rig.nodes, 0)
    first = rig.counter("mooncake_master_objects_acknowledged_total")
    indices = tuple(rig.nodes[name].index for name in near)
    for number in range(first, first + count):
        started = rig.start(f"k{number}", length=BLOCK, near=indices, replicas=replicas)
        for replica in started.items[0].replicas:
            copies[rig.node_of(replica.incarnation).name] += 1
        rig.commit(started)
        rig.tick()
    return copies


def test_several_nodes_of_the_writers_host_share_its_objects() -> None:
    rig = Rig(MIB, 3 * MIB, 4 * MIB)
    copies = put(rig, 120, near=("n0", "n1"))
    assert copies["n2"] == 0
    assert 2.0 < copies["n1"] / copies["n0"] < 4.0


@pytest.mark.parametrize("near", [("n0",), ("n0", "n1")])
def test_the_writers_own_nodes_do_not_evict_while_others_have_room(near: tuple[str, ...]) -> None:
    rig = Rig(MIB, MIB, 2 * MIB, lease_ttl_s=0.0)
    put(rig, 4 * 60, near=near)
    assert rig.counter("mooncake_master_evicted_replicas_total") == 0


def test_where_all_is_full_the_writers_own_node_evicts_first() -> None:
    rig = Rig(MIB, MIB, lease_ttl_s=0.0)
    put(rig, 2 * 64, near=())
    copies = put(rig, 100, near=("n0",))
    assert copies["n0"] > 60


def test_copies_go_to_the_writers_host_first_and_never_twice_to_a_node() -> None:
    rig = Rig(MIB, MIB, MIB)
    copies = put(rig, 30, near=("n1",), replicas=2)
    assert copies["n1"] == 30
    assert copies["n0"] + copies["n2"] == 30


def places(rig: Rig, key: str, replicas: int, label: str) -> list[str]:
    """Put an object and return where its copies are, by a label of their nodes."""
    rig.put(key, length=BLOCK, replicas=replicas)
    names = [extent.segment.node.name for extent in rig.find(key).extents()]
    assert len(names) == len(set(names)) == replicas
    return sorted(rig.nodes[name].labels.get(label, name) for name in names)


def rig_of(*nodes: dict[str, str], size: int = 2 * MIB) -> Rig:
    rig = Rig(size, ramp_s=0.0, lease_ttl_s=0.0)
    rig.cut(rig.nodes.pop("n0"))
    for number, labels in enumerate(nodes):
        rig.add_node(size, name=f"m{number}", **labels)
    return rig


def test_fr_026_copies_are_never_on_one_host() -> None:
    rig = rig_of({"host": "a"}, {"host": "a"}, {"host": "b"})
    for number in range(60):
        assert places(rig, f"k{number}", 2, "host") == ["a", "b"]


def test_fr_026_copies_go_to_different_zones_while_there_are_enough() -> None:
    rig = rig_of({"zone": "x"}, {"zone": "x"}, {"zone": "x"}, {"zone": "y"})
    for number in range(60):
        assert places(rig, f"k{number}", 2, "zone") == ["x", "y"]
    assert places(rig, "more", 3, "zone") == ["x", "x", "y"]


def test_fr_026_racks_count_where_there_is_one_zone_only() -> None:
    rig = rig_of(*({"zone": "x", "rack": rack} for rack in ("r", "r", "r", "s", "t")))
    for number in range(40):
        assert len(set(places(rig, f"k{number}", 2, "rack"))) == 2
        assert places(rig, f"l{number}", 3, "rack") == ["r", "s", "t"]


def test_racks_of_one_name_in_two_zones_are_two() -> None:
    rig = rig_of(*({"zone": zone, "rack": "1"} for zone in ("x", "y", "z")))
    assert places(rig, "k", 3, "zone") == ["x", "y", "z"]


def test_fr_026_a_small_zone_among_many_nodes_is_found() -> None:
    rig = rig_of(*[{"zone": "x"}] * 40, {"zone": "y"}, {"zone": "z"})
    for number in range(20):
        assert places(rig, f"k{number}", 3, "zone") == ["x", "y", "z"]


def test_fr_026_a_full_zone_makes_room_before_its_copies_go_elsewhere() -> None:
    rig = rig_of({"zone": "x"}, {"zone": "x"}, {"zone": "y"})
    rig.put(*(f"fill{n}" for n in range(118)), length=BLOCK, preferred=("m2",))
    for number in range(30):
        assert places(rig, f"k{number}", 2, "zone") == ["x", "y"]
    rig.check()
