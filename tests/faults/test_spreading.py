"""Load is shared: with nodes that come later, and between replicas of what everybody reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_store.testing import payload, wait_until
from tests.faults.support import KIB, Background, counter, fill, names, tcp

if TYPE_CHECKING:
    from collections.abc import Callable

    from mooncake_client import Client
    from mooncake_store.testing import ProcessCluster

    StartCluster = Callable[..., ProcessCluster]

SIZE = 100 * KIB


def copies(client: Client, key: str) -> int:
    found = client.stat(key)
    return 0 if found is None else len(found.replicas)


def share(cluster: ProcessCluster, name: str) -> float:
    status = cluster.node_status(name)
    return 0.0 if status is None else status.used_bytes / status.capacity_bytes


def test_a_node_that_comes_later_gets_its_share_of_what_is_there(
    start_cluster: StartCluster,
) -> None:
    cluster = start_cluster(
        nodes=1,
        node_options={"dram": "32MiB"},
        master_options={"rebalance-rate": "64MiB", "lease-ttl": "500ms"},
    )
    with tcp(cluster) as client:
        keys = fill(client, names("k", 200), SIZE)
        cluster.add_node()
        at = 0

        def read() -> None:
            nonlocal at
            at += 1
            key = keys[at % len(keys)]
            assert client.get(key) == payload(key, 1, SIZE)

        with Background(read, pause_s=0.002):
            wait_until(
                lambda: abs(share(cluster, "node-1") - share(cluster, "node-2")) < 0.1, 60.0,
                what="the new node is as full as the old one",
            )  # fmt: skip
        client.forget_locations()
        assert client.get_many(keys) == [payload(key, 1, SIZE) for key in keys]
        assert counter(cluster, "mooncake_master_rebalanced_objects_total") > 50


def test_what_everybody_reads_gets_replicas_and_no_reader_notices(
    start_cluster: StartCluster,
) -> None:
    cluster = start_cluster(nodes=3, node_options={"dram": "16MiB"})
    with tcp(cluster) as client:
        client.put("hot", payload("hot", 1, SIZE))
        assert copies(client, "hot") == 1

        def read() -> None:  # as many readers, each of whom asks the master once
            client.forget_locations()
            assert client.get("hot") == payload("hot", 1, SIZE)

        with Background(read, pause_s=0.005):
            wait_until(lambda: copies(client, "hot") == 3, 60.0, what="everyone has it")
        assert counter(cluster, "mooncake_master_hot_objects_count") == 1
        assert set(client.statistics().errors) == set()
