"""The SSD tier of whole clusters: what memory evicts comes back from disk, whatever happens."""

from __future__ import annotations

import asyncio
import shutil
import time
from typing import TYPE_CHECKING

import pytest

from mooncake_client import AsyncClient, Client, StoreError
from mooncake_store.errors import ObjectTooLarge
from mooncake_store.testing import payload, seeded, wait_until
from mooncake_store.types import Presence
from tests.faults import scale
from tests.faults.support import KIB, MIB, QUICK, Timed, fill, names, tcp, turned_away

if TYPE_CHECKING:
    from collections.abc import Callable

    from mooncake_store.testing import ProcessCluster
    from mooncake_store.testing.cluster import NodeProcess

    StartCluster = Callable[..., ProcessCluster]

BLOCK = 256 * KIB


def read_all(client: Client, keys: list[str], size: int = BLOCK) -> list[str]:
    """Read keys in batches; return those that are missed. Never other bytes than were put."""
    missed = []
    for at in range(0, len(keys), 32):
        part = keys[at : at + 32]
        for key, value in zip(part, client.get_many(part, deadline_s=20.0), strict=True):
            if value is None:
                missed.append(key)
            else:
                assert value == payload(key, 1, size), key
    return missed


def test_fr_052_values_of_every_size_come_back_from_disk_alone_and_in_batches(
    start_cluster: StartCluster,
) -> None:
    chunk = 256 * KIB
    sizes = [0, 1, 4095, 4096, 4097, chunk - 1, chunk, chunk + 1, 64 * MIB + 1]
    wanted = {f"size-{size}": payload(f"size-{size}", 1, size) for size in sizes}
    cluster = start_cluster(nodes=1, node_options={"dram": "96MiB"}, ssd="8GiB")
    with Client(cluster.address, deadline_s=30.0) as client:
        for key, value in wanted.items():
            client.put(key, value, durable=True)
        for key, value in wanted.items():
            assert client.get_from_disk(key) == value, key
        wait_until(lambda: pushed_out(client, list(wanted)), 60.0, what="they are on disk only")
        assert client.get_many(list(wanted)) == list(wanted.values())


@pytest.mark.skipif(not scale.FULL, reason="moves gigabytes: make reports")
@pytest.mark.parametrize("transport", ["tcp", "auto"])
def test_fr_052_an_object_of_2_gib_and_1_is_exact_in_memory_and_too_large_for_small_regions(
    start_cluster: StartCluster, transport: str
) -> None:
    size = (2 << 30) + 1
    cluster = start_cluster(nodes=1, node_options={"dram": "2304MiB"}, ssd="1GiB")
    value = seeded(52).randbytes(MIB) * 2048 + b"1"
    target = bytearray(size)
    with Client(cluster.address, transport=transport, deadline_s=300.0) as client:
        with pytest.raises(ObjectTooLarge, match=r"a region of this store \(\d+ bytes\)"):
            client.put("huge", value, durable=True)
        assert client.get_into("huge", target) == size
        assert target == value
        client.put("other", memoryview(value)[: 1 << 30])
        assert client.get_into("other", target) == 1 << 30
        assert client.exists("huge") is False, "evicted: no disk could take it"
        assert target[: 1 << 30] == memoryview(value)[: 1 << 30]


def pushed_out(client: Client, keys: list[str]) -> bool:
    """Put more than memory holds; return whether none of ``keys`` is in memory then."""
    fill(client, names(f"more-{time.monotonic_ns()}", 96), MIB)
    return all(probe.presence is Presence.SSD for probe in client.probe_many(keys))


def test_fr_052_what_no_file_of_a_disk_takes_is_refused_with_the_limit(
    start_cluster: StartCluster,
) -> None:
    cluster = start_cluster(nodes=1, node_options={"dram": "32MiB"}, ssd="64MiB")
    with Client(cluster.address, deadline_s=20.0) as client:
        with pytest.raises(ObjectTooLarge, match=r"a region of this store \(\d+ bytes\)"):
            client.put("large", payload("large", 1, 8 * MIB), durable=True)
        assert client.get("large") == payload("large", 1, 8 * MIB), "memory has it"
        client.put("small", b"small", durable=True)
        assert client.get_from_disk("small") == b"small"


def test_fr_010_what_memory_evicts_is_read_back_from_disk_by_another_client(
    start_cluster: StartCluster,
) -> None:
    """FR-007, FR-010, FR-012: four times the memory; another client finds every byte of it."""
    cluster = start_cluster(nodes=2, node_options={"dram": "32MiB"}, ssd="256MiB")
    with Client(cluster.address) as writer:
        keys = fill(writer, names("k", 1024), BLOCK, deadline_s=20.0)
    assert len(keys) == 1024
    with Client(cluster.address) as reader:
        missed = set(read_all(reader, keys))
        assert len(missed) <= turned_away(cluster)
    assert len(missed) < len(keys) // 2
    keys = [key for key in keys if key not in missed]
    with tcp(cluster) as reader:
        assert read_all(reader, keys[:200]) == []

    async def read_async() -> list[object]:
        async with AsyncClient(cluster.address) as reader:
            found: list[object] = list(await reader.get_many(keys[200:300], deadline_s=20.0))
            found.append(await reader.get_from_disk(keys[0], deadline_s=20.0))
            return found

    values = asyncio.run(read_async())
    assert values[:-1] == [payload(key, 1, BLOCK) for key in keys[200:300]]
    assert values[-1] == payload(keys[0], 1, BLOCK)
    wait_until(lambda: store_reads(cluster) > 0, 20, what="reads of disks are counted")


def store_reads(cluster: ProcessCluster) -> float:
    return sum(
        value
        for name, value in cluster.metrics().items()
        if name.startswith("mooncake_master_store_reads_total")
    )


def test_fr_027_a_drain_takes_what_is_only_on_disk_along(start_cluster: StartCluster) -> None:
    """Nothing that only the drained node has is left behind, in memory or on its disk."""
    cluster = start_cluster(nodes=2, node_options={"dram": "64MiB"}, ssd="256MiB")
    first, second = (node.name for node in cluster.nodes)
    with Client(cluster.address) as client:
        keys = fill(client, names("k", 400), 128 * KIB, preferred=[first], deadline_s=20.0)
        assert len(keys) == 400
        client.drain(first, 60.0)

        def is_over() -> bool:
            return client.describe_drain(first).state != "draining"

        wait_until(is_over, 90, what="the drain ends")
        status = client.describe_drain(first)
        assert status.state == "drained", status
        cluster.nodes[0].kill()
        assert read_all(client, keys, 128 * KIB) == []
        places = {r.node for info in client.stat_many(keys) if info for r in info.replicas}
        assert second in places


def test_fr_011_a_killed_node_comes_back_with_its_disk(start_cluster: StartCluster) -> None:
    cluster = start_cluster(
        nodes=1, node_options={"dram": "32MiB"}, ssd="256MiB", master_options=QUICK
    )
    with Client(cluster.address) as writer:
        keys = fill(writer, names("k", 512), BLOCK, deadline_s=20.0)
        assert len(keys) == 512
        node = cluster.nodes[0]
        node.kill()
        node.start()
        cluster.wait_ready()
        missed = read_all(writer, keys)
        assert len(missed) <= turned_away(cluster)
        assert len(missed) < len(keys) // 2


def test_fr_011_a_new_master_finds_what_is_on_disk(start_cluster: StartCluster) -> None:
    cluster = start_cluster(nodes=1, node_options={"dram": "32MiB"}, ssd="256MiB")
    with Client(cluster.address) as writer:
        keys = fill(writer, names("k", 512), BLOCK, deadline_s=20.0)
        removed = keys[::10]
        writer.remove_many(removed)
        refused = turned_away(cluster)
        cluster.master.kill()
        cluster.master.start()
        cluster.wait_ready()
    with Client(cluster.address) as reader:
        missed = read_all(reader, [key for key in keys if key not in set(removed)])
        assert len(missed) <= refused + turned_away(cluster)
        assert len(missed) < len(keys) // 2
        assert reader.get_many(removed, deadline_s=20.0) == [None] * len(removed)


def test_fr_053_a_disk_that_goes_away_costs_the_tier_only(
    start_cluster: StartCluster,
) -> None:
    cluster = start_cluster(nodes=1, node_options={"dram": "64MiB"}, ssd="256MiB")
    ssd = cluster.nodes[0].ssd
    assert ssd is not None
    with Client(cluster.address) as client:
        cold = fill(client, names("cold", 400), BLOCK, deadline_s=20.0)
        ssd.rename(ssd.with_name("away"))
        hot = names("hot", 20)
        results = [
            Timed(lambda key=key: client.put(key, payload(key, 1, BLOCK), deadline_s=10.0))
            for key in hot
        ]
        assert not [timed.result for timed in results if timed.failed]
        assert read_all(client, hot) == []
        ssd.with_name("away").rename(ssd)

        def is_back() -> bool:
            return len(read_all(client, cold[:50])) < 50

        wait_until(is_back, 60, what="what is on disk is read again")


def test_fr_009_a_full_disk_tier_evicts_and_says_so(start_cluster: StartCluster) -> None:
    """More than memory and disk hold together: the newest are there, the cap holds."""
    cluster = start_cluster(nodes=1, node_options={"dram": "32MiB"}, ssd="64MiB")
    ssd = cluster.nodes[0].ssd
    assert ssd is not None
    with Client(cluster.address) as client:
        keys = fill(client, names("k", 600), BLOCK, deadline_s=20.0)
        missed = read_all(client, keys)
        assert set(missed).isdisjoint(keys[-80:])
        assert 0 < len(missed) < 500
    used = sum(file.stat().st_blocks * 512 for file in ssd.rglob("*") if file.is_file())
    assert used <= 64 * MIB


def reboot(cluster: ProcessCluster, node: NodeProcess) -> None:
    """Kill a node and take its memory away, as a host does that starts again."""
    node.kill()
    for folder in cluster.memory.glob(f"mooncake-store-*/{node.name}"):
        shutil.rmtree(folder)
    node.start()
    cluster.wait_ready()


def test_what_is_on_disk_survives_the_host(start_cluster: StartCluster) -> None:
    """FR-011: a host that reboots comes back with new memory, a new identity and the same disk."""
    cluster = start_cluster(
        nodes=1, node_options={"dram": "32MiB"}, ssd="256MiB", master_options=QUICK
    )
    with Client(cluster.address) as client:
        for key in names("durable", 40):
            client.put(key, payload(key, 1, BLOCK), durable=True, deadline_s=20.0)
        removed = names("removed", 10)
        for key in removed:
            client.put(key, payload(key, 1, BLOCK), durable=True, deadline_s=20.0)
        client.remove_many(removed)
        reboot(cluster, cluster.nodes[0])

        def all_back() -> bool:
            return read_all(client, names("durable", 40)) == []

        wait_until(all_back, 30, what="what was durable is read again")
        assert client.get_many(removed, deadline_s=10.0) == [None] * len(removed)


def test_master_and_host_start_again_together_and_the_disk_is_still_there(
    start_cluster: StartCluster,
) -> None:
    """A power cut: nothing but the disk survives, and what was removed stays removed."""
    cluster = start_cluster(
        nodes=1, node_options={"dram": "32MiB"}, ssd="256MiB", master_options=QUICK
    )
    keys, removed = names("durable", 20), names("removed", 5)
    with Client(cluster.address) as client:
        for key in (*keys, *removed):
            client.put(key, payload(key, 1, BLOCK), durable=True, deadline_s=20.0)
        client.remove_many(removed)
    cluster.master.kill()
    cluster.nodes[0].kill()
    for folder in cluster.memory.glob("mooncake-store-*/*"):
        shutil.rmtree(folder)
    cluster.master.start()
    cluster.nodes[0].start()
    cluster.wait_ready()
    with Client(cluster.address) as client:
        wait_until(lambda: read_all(client, keys) == [], 30, what="it is read again")
        assert client.get_many(removed, deadline_s=10.0) == [None] * len(removed)
        assert client.put("new", b"x", deadline_s=10.0).created


def test_fr_057_kills_and_replacements_never_show_an_older_value(
    start_cluster: StartCluster,
) -> None:
    """FR-055, FR-057: hot keys are replaced and removed, and the node is killed again and again."""
    cluster = start_cluster(
        nodes=1, node_options={"dram": "32MiB"}, ssd="64MiB", master_options=QUICK
    )
    generator = seeded("disks")
    size = 64 * KIB
    known: dict[str, int] = {}
    """{key: the version of the last acknowledged put; 0: removed}"""
    unsure: set[str] = set()
    with Client(cluster.address) as client:
        for round_number in range(5):
            for step in range(150):
                key = f"hot-{generator.randrange(40)}"
                number = round_number * 1000 + step + 1
                unsure.add(key)
                try:
                    if generator.random() < 0.15:
                        client.remove(key, deadline_s=10.0)
                        known[key] = 0
                    else:
                        client.put(key, payload(key, number, size), replace=True, deadline_s=10.0)
                        known[key] = number
                except StoreError:
                    continue
                unsure.discard(key)
                filler = f"filler-{number}"
                client.put_many([(filler, payload(filler, 1, BLOCK))], deadline_s=10.0)
            cluster.nodes[0].kill()
            cluster.nodes[0].start()
            cluster.wait_ready()
            for key, number in known.items():
                if key in unsure:
                    continue
                value = client.get(key, deadline_s=10.0)
                if value is not None:
                    assert number, f"{key} was removed and is back"
                    assert value == payload(key, number, size), f"{key} is not version {number}"
