"""The field reports about disks at their own numbers, by whole clusters (others: ``ssd/``)."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from mooncake_client import Client, StoreError
from mooncake_store.errors import ReplicasImpossible
from mooncake_store.testing import Direction, Pass, Throttle, payload, wait_until
from mooncake_store.types import Presence
from tests.faults.scale import Latencies, scaled
from tests.faults.support import (
    KIB,
    MIB,
    QUICK,
    Background,
    Timed,
    evicted,
    fill,
    names,
    tcp,
    together,
    turned_away,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from mooncake_store.testing import ProcessCluster

    StartCluster = Callable[..., ProcessCluster]

BLOCK = 256 * KIB


def leave_memory(client: Client, keys: list[str], size: int) -> None:
    """Put others of the same size until no key of a list is in memory any more."""
    rounds = [0]

    def put_others() -> bool:
        rounds[0] += 1
        fill(client, names(f"others-{rounds[0]}", 16 * MIB // size), size, deadline_s=20.0)
        return all(probe.presence is Presence.SSD for probe in client.probe_many(keys))

    wait_until(put_others, 60.0, what="they are on disk only")


def reads_of_disks(cluster: ProcessCluster, node: str) -> float:
    return sum(
        value
        for name, value in cluster.metrics().items()
        if name.startswith("mooncake_master_store_reads_total") and f'node="{node}"' in name
    )


def test_fr_010_what_eight_writers_were_told_is_read_back_or_counted(
    start_cluster: StartCluster,
) -> None:
    """Ten times the memory; each tenth key is offered twice more. The disk has room for all."""
    size, dram = scaled((BLOCK, 16), (MIB, 64))
    each = 10 * dram * MIB // size // 8
    cluster = start_cluster(nodes=1, node_options={"dram": f"{dram}MiB"}, ssd="1GiB")

    def write(number: int) -> list[str]:
        keys = names(f"writer-{number}", each)
        with Client(cluster.address, deadline_s=30.0) as client:
            for at, key in enumerate(keys):
                assert client.put(key, payload(key, 1, size)).created
                for _ in range(2 if at % 10 == 0 else 0):
                    client.put(key, payload(key, 1, size))
        return keys

    written = together([lambda number=number: write(number) for number in range(8)], join_s=600.0)
    assert not [part for part in written if isinstance(part, Exception)]
    keys = [key for part in written for key in part]
    missed, evicted_before = 0, evicted(cluster)
    with tcp(cluster, deadline_s=30.0) as reader:
        for at in range(0, len(keys), 16):
            part = keys[at : at + 16]
            for key, value in zip(part, reader.get_many(part), strict=True):
                assert value in {None, payload(key, 1, size)}, key
                missed += value is None
    assert evicted_before <= missed <= evicted(cluster)  # More may go while others are read.
    assert missed <= turned_away(cluster)
    assert missed < len(keys) // 2


def test_fr_011_a_node_that_is_killed_while_it_writes_has_all_that_was_acknowledged(
    start_cluster: StartCluster,
) -> None:
    cluster = start_cluster(
        nodes=1, node_options={"dram": "32MiB"}, ssd="256MiB", master_options=QUICK
    )
    node = cluster.nodes[0]
    kept = names("kept", 300)
    begun: list[str] = []
    acknowledged: list[str] = []
    with Client(cluster.address, deadline_s=60.0) as client, Client(cluster.address) as writer:
        for result in client.put_many(
            [(key, payload(key, 1, 16 * KIB)) for key in kept], durable=True
        ):
            assert not isinstance(result, StoreError)

        def write() -> None:
            key = f"last-{len(begun)}"
            begun.append(key)
            try:
                writer.put(key, payload(key, 1, BLOCK), durable=True, deadline_s=2.0)
            except StoreError:
                return  # It may be there or not; the reads below take both.
            acknowledged.append(key)

        with Background(write) as writing:
            wait_until(lambda: writing.rounds > 5, 60.0)
            node.kill()
            so_far = len(acknowledged)
            node.start()
            cluster.wait_ready()
            wait_until(lambda: len(acknowledged) > so_far + 3, 60.0)
        for key in kept:
            assert client.get_from_disk(key) == payload(key, 1, 16 * KIB), key
        for key in begun:
            value = client.get_from_disk(key)
            if key in acknowledged:
                assert value == payload(key, 1, BLOCK), key
            else:
                assert value in {None, payload(key, 1, BLOCK)}, key
        written = len(kept) * 16 * KIB + len(acknowledged) * BLOCK

        def usage_counts_them() -> bool:
            """Its heartbeat says so, which comes now and then."""
            status = cluster.node_status(node.name)
            return status is not None and status.ssd_used_bytes >= written

        wait_until(usage_counts_them, 20.0)


def test_fr_012_what_lies_on_one_nodes_disk_is_read_there_from_anywhere(
    start_cluster: StartCluster,
) -> None:
    cluster = start_cluster(
        nodes=2,
        node_options={"dram": "16MiB"},
        ssd="256MiB",
        master_options={"promote-reads": 0},
    )
    with Client(cluster.address, deadline_s=20.0) as writer, tcp(cluster) as reader:
        keys = names("k", 32)
        for key in keys:
            writer.put(key, payload(key, 1, BLOCK), preferred=["node-1"], durable=True)
        leave_memory(writer, keys, BLOCK)
        for info in writer.stat_many(keys):
            assert info is not None
            assert [(replica.node, replica.tier) for replica in info.replicas] == [
                ("node-1", "ssd")
            ]
        assert reader.get_many(keys, deadline_s=20.0) == [payload(key, 1, BLOCK) for key in keys]
        wait_until(
            lambda: reads_of_disks(cluster, "node-1") >= len(keys), 20.0, what="they are counted"
        )
        assert reads_of_disks(cluster, "node-2") == 0


@pytest.mark.parametrize("overwriting", [False, True], ids=["quiet", "while the disk is rewritten"])
def test_fr_019_a_read_from_disk_slower_than_its_lease_gives_right_bytes_or_an_error(
    start_cluster: StartCluster, *, overwriting: bool
) -> None:
    """About 3 s for the batch, with a lease of 0.5 s; memory and disk hold 80 MiB."""
    count, rate = scaled((8, 2_700_000), (32, 10_800_000))
    cluster = start_cluster(
        nodes=1,
        node_options={"dram": "16MiB"},
        ssd="64MiB" if overwriting else "256MiB",
        master_options={"lease-ttl": "0.5s", "promote-reads": 0},
        proxied=True,
    )
    data = cluster.nodes[0].data
    assert data is not None
    keys = names("slow", count)
    wanted = [payload(key, 1, MIB) for key in keys]
    with tcp(cluster) as reader, Client(cluster.address, deadline_s=20.0) as writer:
        for key, value in zip(keys, wanted, strict=True):
            writer.put(key, value, durable=True)
        if not overwriting:
            leave_memory(writer, keys, MIB)
        data.set(Throttle(bytes_per_s=rate), Direction.DOWN)
        stop = threading.Event()

        def overwrite() -> None:
            number = 0
            while not stop.is_set():
                flood = f"flood-{number}"
                writer.put(flood, payload(flood, 1, MIB), durable=True)
                number += 1

        flooding = threading.Thread(target=overwrite, daemon=True)
        if overwriting:
            flooding.start()
        try:
            got: list[object] = list(reader.get_many(keys, deadline_s=30.0))
            reader.forget_locations()
            got += [
                Timed(lambda: reader.get_from_disk(keys[0], deadline_s=30.0)).result,
                Timed(
                    lambda: reader.get(keys[1], start=1000, length=500_000, deadline_s=30.0)
                ).result,
            ]
        finally:
            stop.set()
            data.set(Pass())
        right = [*wanted, wanted[0], wanted[1][1000:501_000]]
        if not overwriting:
            assert got == right
            return
        flooding.join(60)
        assert not flooding.is_alive()
        for result, value in zip(got, right, strict=True):
            assert result is None or isinstance(result, StoreError) or result == value


def test_fr_026_memory_and_disk_of_one_node_are_one_copy(start_cluster: StartCluster) -> None:
    cluster = start_cluster(
        nodes=2, node_options={"dram": "32MiB"}, ssd="64MiB", master_options=QUICK
    )
    with Client(cluster.address, deadline_s=20.0) as client:
        keys = names("k", 20)
        for key in keys:
            result = client.put(key, payload(key, 1, 16 * KIB), replicas=2, durable=True)
            assert result.replicas == 2
        for info in client.stat_many(keys):
            assert info is not None
            assert {replica.node for replica in info.replicas} == {"node-1", "node-2"}
            assert len(info.replicas) > 2
        with pytest.raises(ReplicasImpossible):
            client.put("three", b"value", replicas=3)
        cluster.nodes[1].kill()
        wait_until(
            lambda: cluster.metrics()["mooncake_master_under_replicated_count"] == len(keys), 30.0
        )
        assert client.get_many(keys) == [payload(key, 1, 16 * KIB) for key in keys]


@contextmanager
def small_disk(place: Path) -> Iterator[None]:
    """A file system of 64 MiB at a path."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a file system needs root")
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(place)]
    try:
        subprocess.run(words, check=True, capture_output=True, timeout=60)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"nothing can be mounted here: {error}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=False, timeout=60)  # noqa: S607 - fixed words


def fill_disk(place: Path) -> Path:
    """Have somebody else's file take all that is left of a file system."""
    foreign = place / "foreign"
    with foreign.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(place).free)
    return foreign


def test_fr_053_a_disk_that_others_fill_costs_its_tier_only(
    start_cluster: StartCluster, tmp_path: Path
) -> None:
    """Puts and gets go on as without a disk, and it is used again when it is repaired."""
    place = tmp_path / "small"
    with small_disk(place):
        cluster = start_cluster(nodes=0, master_options=QUICK)
        node = cluster.add_node({"dram": "32MiB", "ssd": f"{place}:48MiB"})
        cluster.wait_ready()

        def says(state: str, reason: str = "") -> bool:
            status = cluster.node_status(node.name)
            stores = status.stores if status is not None else ()
            return any(one.state == state and reason in one.reason for one in stores)

        with Client(cluster.address, deadline_s=20.0) as client:

            def serve(what: str, count: int = 400) -> None:
                """Put more than memory and disk hold together; read what was put last."""
                keys = names(what, count)
                with Latencies("053", f"put, disk {what} (p99 <= 2 x before)") as puts:
                    for key in keys:
                        with puts.call():
                            client.put(key, payload(key, 1, BLOCK))
                with Latencies("053", f"get, disk {what} (p99 <= 2 x before)") as gets:
                    for key in keys[-10:]:
                        with gets.call():
                            assert client.get(key) == payload(key, 1, BLOCK)

            client.put("first", b"value", durable=True)
            serve("well", 40)  # All in memory: the disk still has room that others can take.
            foreign = fill_disk(place)
            serve("full")
            wait_until(lambda: says("degraded", "no room"), 30.0, what="it says that it is full")
            foreign.unlink()
            wait_until(lambda: says("ready"), 30.0, what="it is used again")
            serve("repaired")
            client.put("last", b"value", durable=True)
            assert client.get_from_disk("last") == b"value"
