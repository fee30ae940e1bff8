"""Durable puts and the SSD tier, as a caller sees them: real processes, files and memory."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from mooncake_client import Client
from mooncake_store import errors
from mooncake_store.testing import ProcessCluster, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VALUE = bytes(range(256)) * 4096
"""1 MiB."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ProcessCluster]:
    ssd = tmp_path / "ssd"
    ssd.mkdir()
    options = {"dram": "32MiB", "ssd": f"{ssd}:256MiB"}
    with ProcessCluster(nodes=1, node_options=options) as cluster:
        yield cluster


def lose_memory(cluster: ProcessCluster) -> None:
    """Kill the node, and take its shared memory away, as a reboot does."""
    node = cluster.nodes[0]
    node.kill()
    for path in cluster.memory.iterdir():
        shutil.rmtree(path)
    node.start()
    cluster.wait_ready()


def test_a_durable_put_outlives_the_memory_of_its_node(cluster: ProcessCluster) -> None:
    with Client(cluster.address) as client:
        assert client.put("kept", VALUE, durable=True, deadline_s=20.0).created
        assert client.put("not kept", VALUE).created
        info = client.stat("kept")
        assert info is not None
        assert {replica.tier for replica in info.replicas} == {"dram", "ssd"}
        lose_memory(cluster)
        wait_until(lambda: client.get("kept") == VALUE, deadline_s=60.0)
        assert client.get("not kept") is None


def test_a_durable_put_of_many_and_of_what_is_there(cluster: ProcessCluster) -> None:
    with Client(cluster.address) as client:
        client.put("a", VALUE)
        results = client.put_many({"a": VALUE, "b": VALUE}, durable=True, deadline_s=20.0)
        assert [getattr(result, "created", None) for result in results] == [False, True]
        for key in ("a", "b"):
            info = client.stat(key)
            assert info is not None
            assert "ssd" in {replica.tier for replica in info.replicas}


def test_a_durable_put_without_a_disk_keeps_the_object_and_says_so() -> None:
    options = {"dram": "32MiB"}
    with (
        ProcessCluster(nodes=1, node_options=options) as cluster,
        Client(cluster.address) as client,
    ):
        with pytest.raises(errors.NotSupported, match="no node has a disk"):
            client.put("a", VALUE, durable=True)
        assert client.get("a") == VALUE


def test_fr_010_more_than_memory_holds_is_read_back(cluster: ProcessCluster) -> None:
    with Client(cluster.address) as client:
        for number in range(96):
            assert client.put(f"k{number}", VALUE + bytes([number]), deadline_s=20.0).created
        with Client(cluster.address, transport="tcp") as other:
            wrong = [n for n in range(96) if other.get(f"k{n}") != VALUE + bytes([n])]
        assert not wrong
        assert client.remove("k0")
        lose_memory(cluster)
        counters = client.describe_cluster().counters
        assert counters["mooncake_master_objects_acknowledged_total"] == 96
        assert client.get("k0") is None
