"""Stores that begin anew in the place of one that is gone: there is one of them, and no ghost."""

from __future__ import annotations

import contextlib
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from mooncake_client import Client
from mooncake_store.errors import StoreError
from mooncake_store.limits import KIB, MIB
from mooncake_store.testing import payload, wait_until
from mooncake_store.types import MissReason, Presence
from tests.faults.support import QUICK, fill, names

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mooncake_store.testing import ProcessCluster

    StartCluster = Callable[..., ProcessCluster]

BLOCK = 256 * KIB
SSD_BYTES = 256 * MIB


def on_disk_only(client: Client, prefix: str) -> list[str]:
    """Put more than memory holds; return keys of which the only copy is on a disk."""
    keys = names(prefix, 240)
    assert fill(client, keys, BLOCK, deadline_s=20.0) == keys
    return [
        key
        for key, probe in zip(keys, client.probe_many(keys), strict=True)
        if probe.presence is Presence.SSD
    ]


def index_of(directory: Path) -> Path:
    return directory / "mooncake-ssd" / "index" / "data.mdb"


def spoil(file: Path) -> None:
    """Write garbage over the beginning of a file that is in use."""
    with file.open("r+b") as opened:
        opened.write(b"\xa5" * MIB)
        opened.flush()
        os.fsync(opened.fileno())


def stores_listed(cluster: ProcessCluster) -> list[int]:
    """Return the incarnations of the disks that the master lists."""
    return [
        segment.incarnation
        for node in cluster.status().nodes
        for segment in node.record.segments
        if segment.tier
    ]


def remake(cluster: ProcessCluster, client: Client) -> int:
    """Damage the index of the only store under its live node; return the incarnation it had."""
    (old,) = stores_listed(cluster)
    ssd = cluster.nodes[0].ssd
    assert ssd is not None
    spoil(index_of(ssd))

    def is_another() -> bool:
        with contextlib.suppress(StoreError):  # What is wrong is noticed when it is written.
            client.put("nudge", os.urandom(32), durable=True, replace=True, deadline_s=2.0)
        return not {old} >= set(stores_listed(cluster))

    wait_until(is_another, 60, what="the store is made anew")
    return old


def check_one_store(cluster: ProcessCluster, old: int) -> None:
    """Check that lists, REST and metrics have one store, and no ghost of the old one."""
    (new,) = stores_listed(cluster)
    assert new != old

    def is_shown() -> bool:
        (node,) = cluster.status().nodes
        return [store.incarnation for store in node.stores] == [new]

    wait_until(is_shown, 20, what="a heartbeat says how the new store fares")
    (node,) = cluster.status().nodes
    assert node.ssd_capacity_bytes == SSD_BYTES
    assert node.note == ""
    (shown,) = cluster.admin("/api/v1/nodes")["nodes"]
    assert len(shown["stores"]) == 1
    assert shown["ssd_capacity_bytes"] == SSD_BYTES
    page = str(cluster.admin("/metrics"))
    samples = [line.rsplit(" ", 1)[0] for line in page.splitlines() if line[:1] != "#"]
    assert len(samples) == len(set(samples)), "one number, one line"
    assert cluster.metrics()['mooncake_master_tier_capacity_bytes{tier="ssd"}'] == SSD_BYTES


def test_a_store_whose_index_is_damaged_under_a_live_node_leaves_no_ghost(
    start_cluster: StartCluster,
) -> None:
    """FR-055: also after the node, and then the master, have started again."""
    cluster = start_cluster(
        nodes=1, node_options={"dram": "32MiB"}, ssd="256MiB", master_options=QUICK
    )
    with Client(cluster.address) as client:
        keys = on_disk_only(client, "k")
        old = remake(cluster, client)
        check_one_store(cluster, old)
        gone = [key for key in keys if not client.why(key).readable]
        assert len(gone) > 100
        assert {client.why(key).reason for key in gone} == {MissReason.LOST}
        client.remove_many(gone)
        cluster.nodes[0].kill()
        cluster.nodes[0].start()
        cluster.wait_ready()
        check_one_store(cluster, old)
        cluster.master.kill()
        cluster.master.start()
        cluster.wait_ready()
        check_one_store(cluster, old)
        put = names("new", 20)
        for key in put:
            client.put(key, payload(key, 1, BLOCK), durable=True, deadline_s=20.0)
        assert client.get_from_disk(put[0]) == payload(put[0], 1, BLOCK)


@pytest.mark.parametrize("data_dir", [True, False])
def test_fr_055_a_backup_of_a_store_that_is_gone_revives_no_removed_key(
    start_cluster: StartCluster,
    data_dir: bool,  # noqa: FBT001 - pytest passes it
) -> None:
    """With a new memory of the node, which forgets everything, where the master does not."""
    options = QUICK if data_dir else {**QUICK, "data-dir": None}
    cluster = start_cluster(
        nodes=1, node_options={"dram": "32MiB"}, ssd="256MiB", master_options=options
    )
    node = cluster.nodes[0]
    assert node.ssd is not None
    backup = node.ssd.with_name("backup")
    with Client(cluster.address) as client:
        keys = on_disk_only(client, "k")
        node.kill()
        shutil.copytree(node.ssd, backup)
        node.start()
        cluster.wait_ready()
        old = remake(cluster, client)
        client.remove_many(keys, deadline_s=10.0)
        node.kill()
        cluster.master.kill()
        shutil.rmtree(node.ssd)
        backup.rename(node.ssd)
        if data_dir:
            for folder in cluster.memory.glob("mooncake-store-*/*"):
                shutil.rmtree(folder)
        cluster.master.start()
        node.start()
        cluster.wait_ready()
        wait_until(lambda: (old in stores_listed(cluster)) == data_dir, 30, what="a store")
        assert client.get_many(keys, deadline_s=20.0) == [None] * len(keys)
        client.put("new", b"x", durable=True, deadline_s=20.0)
        assert client.get_many(keys, deadline_s=20.0) == [None] * len(keys)


@pytest.mark.parametrize("data_dir", [True, False])
@pytest.mark.parametrize("what", ["node", "disk"])
def test_fr_055_what_was_forgotten_revives_no_removed_key(
    start_cluster: StartCluster,
    data_dir: bool,  # noqa: FBT001 - pytest passes it
    what: str,
) -> None:
    """A node, or its disk alone, is away for longer than ``--forget-after``; keys are removed, the
    master starts again, and then it is back. It is empty, and takes new keys.
    """
    options = {**QUICK, "forget-after": "3s"} | ({} if data_dir else {"data-dir": None})
    cluster = start_cluster(
        nodes=2, node_options={"dram": "16MiB"}, ssd="256MiB", master_options=options
    )
    node = cluster.nodes[0]
    assert node.ssd is not None
    shelf = node.ssd.with_name("shelf")
    with Client(cluster.address) as client:
        keys = on_disk_only(client, "k")
        status = cluster.node_status(node.name)
        assert status is not None
        old = {segment.incarnation for segment in status.record.segments if segment.tier}
        assert len(old) == 1
        node.kill()
        if what == "disk":
            node.ssd.rename(shelf)
            node.ssd.mkdir()
            node.start()
            cluster.wait_ready()
        wait_until(lambda: not old & set(stores_listed(cluster)), 30, what="it is forgotten")
        # While the node that is back is listed, nobody says yet that they are lost.
        wait_until(
            lambda: MissReason.LOST in {client.why(key).reason for key in keys},
            30,
            what="what only it held is lost",
        )
        client.remove_many(keys, deadline_s=10.0)
        cluster.master.kill()
        cluster.master.start()
        cluster.wait_ready()
        if what == "disk":
            node.kill()
            shutil.rmtree(node.ssd)
            shelf.rename(node.ssd)
        node.start()
        wait_until(lambda: old <= set(stores_listed(cluster)), 30, what="it is back")
        cluster.wait_ready()
        assert client.get_many(keys, deadline_s=20.0) == [None] * len(keys)
        put = names("new", 20)
        for key in put:
            client.put(key, payload(key, 1, BLOCK), durable=True, deadline_s=20.0)
        assert client.get_many(keys, deadline_s=20.0) == [None] * len(keys)
        found = client.get_many(put, deadline_s=20.0)
        assert found == [payload(key, 1, BLOCK) for key in put]
