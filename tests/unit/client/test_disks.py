"""How a client reaches what lies on disk: over the data port, after memory, elsewhere if busy."""

from __future__ import annotations

from mooncake_client._core.breaker import Breakers
from mooncake_client._core.cluster import Cluster, Reach
from mooncake_client._core.planner import Planner
from mooncake_store.types import NodeState, Tier
from mooncake_store.wire.control import Membership, NodeRecord, Replica, SegmentRecord

MEMORY, STORE = 10, 11


def node(index: int) -> NodeRecord:
    segments = (
        SegmentRecord(MEMORY + 10 * index, 1 << 20),
        SegmentRecord(STORE + 10 * index, 1 << 30, int(Tier.SSD)),
    )
    return NodeRecord(
        index, f"n{index}", f"{index:032x}", "h", 1, "/s", int(NodeState.LIVE), segments, {}
    )


def cluster_of(*nodes: NodeRecord, network: bool = True) -> Cluster:
    cluster = Cluster(network=network)
    cluster.update(Membership(1, nodes))
    return cluster


def test_a_disk_is_reached_over_the_network_where_memory_is_shared() -> None:
    one = node(0)
    cluster = cluster_of(one)
    cluster.attached(one, found=True)
    assert cluster.reach_of(one, MEMORY) is Reach.SHARED
    assert cluster.reach_of(one, STORE) is Reach.NETWORK
    assert cluster.disks == {STORE}


def test_who_uses_shared_memory_only_reads_the_disks_of_this_host() -> None:
    near, far = node(0), node(1)
    cluster = cluster_of(near, far, network=False)
    cluster.attached(near, found=True)
    assert cluster.reach_of(near, STORE) is Reach.NETWORK
    assert cluster.reach_of(far, STORE + 10) is Reach.NONE


def test_a_new_store_does_not_void_what_was_proved_of_the_memory() -> None:
    one = node(0)
    cluster = cluster_of(one)
    cluster.attached(one, found=True)
    more = (*one.segments, SegmentRecord(99, 1 << 30, int(Tier.SSD)))
    cluster.update(Membership(2, (NodeRecord(0, "n0", one.node_id, "h", 1, "/s", 0, more, {}),)))
    assert cluster.near == (0,)
    assert not cluster.has_untried


def test_memory_of_another_node_comes_before_a_near_disk() -> None:
    near, far = node(0), node(1)
    cluster = cluster_of(near, far)
    cluster.attached(near, found=True)
    planner = Planner(cluster, Breakers(), 0.0)
    disk = Replica(STORE, 5, int(Tier.SSD))
    memory = Replica(MEMORY + 10, 512)
    choice = planner.choose((disk, memory), 100)
    assert choice is not None
    assert choice.replica is memory
    assert choice.has_others
    alone = planner.choose((disk,), 100)
    assert alone is not None
    assert alone.reach is Reach.NETWORK
