"""Damaged bytes are never served, and every process reads its own neighbour's bytes right."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mooncake_client import ChecksumMismatch, Client, ReplicasUnavailable, StoreError
from mooncake_store.extent import HEADER_BYTES
from mooncake_store.limits import CHUNK_BYTES
from mooncake_store.segment import extents_at
from mooncake_store.testing import FaultProxy, payload, wait_until
from mooncake_store.wire import control
from tests.faults.support import KIB, MIB, QUICK, Timed, counter, fill, names, tcp

if TYPE_CHECKING:
    from collections.abc import Callable

    from mooncake_store.testing import ProcessCluster

    StartCluster = Callable[..., ProcessCluster]


def flip(cluster: ProcessCluster, key: str, at: int, *, node: str | None = None) -> None:
    """Invert a bit of a stored extent, ``at`` bytes behind its beginning, in the node's memory."""
    with cluster.wire() as wire:
        space = wire.ask(control.OpenNamespace("default"))
        (record,) = wire.ask(control.Stat(space.slot, space.epoch, [key])).items
        replica = next(found for found in record.replicas if node is None or found.node == node)
    (segment,) = (
        path
        for path in Path(cluster.memory).rglob("segment*")
        if path.parent.name == replica.node and path.is_file()
    )
    with segment.open("r+b") as file:
        _, _, _, extents_bytes = struct.unpack("<QQQQ", file.read(32))
        place = extents_at(extents_bytes) + replica.offset + at
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))


DAMAGES = {
    "first byte of the payload": HEADER_BYTES,
    "in the second chunk": HEADER_BYTES + CHUNK_BYTES + 1000,
    "in the header": 16,
}


@pytest.mark.parametrize("transport", ["tcp", "auto"])
@pytest.mark.parametrize("where", list(DAMAGES))
def test_fr_038_a_flipped_byte_is_never_served(
    start_cluster: StartCluster, where: str, transport: str
) -> None:
    cluster = start_cluster(nodes=1, node_options={"dram": "16MiB"})
    size = 600 * KIB
    keys = names("key", 4)
    with Client(cluster.address, transport=transport) as client:
        fill(client, keys, size)
        for key in keys:
            flip(cluster, key, DAMAGES[where])
        reads = {
            keys[0]: lambda: client.get(keys[0]),
            keys[1]: lambda: client.get_many([keys[1]])[0],
            keys[2]: lambda: client.get(keys[2], start=0, length=size - 1),
            keys[3]: lambda: client.get_into(keys[3], bytearray(size)),
        }
        for read in reads.values():
            result = Timed(read).result
            assert result is None or isinstance(
                result, (ChecksumMismatch, ReplicasUnavailable)
            ), result  # fmt: skip
        wait_until(lambda: not any(client.exists_many(keys)), 30)
        dropped = 'mooncake_master_replicas_dropped_total{reason="checksum_mismatch"}'
        wait_until(lambda: counter(cluster, dropped) == len(keys), 30)
        assert client.put(keys[0], payload(keys[0], 2, size)).created
        assert client.get(keys[0]) == payload(keys[0], 2, size)


def test_fr_038_the_other_copy_is_read_instead_of_a_damaged_one(
    start_cluster: StartCluster,
) -> None:
    cluster = start_cluster(nodes=2, node_options={"dram": "16MiB"})
    with tcp(cluster) as client:
        keys = fill(client, names("key", 20), 100 * KIB, replicas=2)
        for key in keys:
            flip(cluster, key, HEADER_BYTES + 5000, node="node-1")
        for _ in range(3):
            assert client.get_many(keys) == [payload(key, 1, 100 * KIB) for key in keys]
            client.forget_locations()


def test_fr_038_damage_is_found_after_a_restart_of_the_master(
    start_cluster: StartCluster,
) -> None:
    cluster = start_cluster(nodes=1, node_options={"dram": "16MiB"}, master_options=QUICK)
    with tcp(cluster) as client:
        fill(client, ["damaged", "sound"], MIB)
        flip(cluster, "damaged", HEADER_BYTES + 700_000)
        cluster.master.kill()
        cluster.master.start()
        cluster.wait_ready()
        with tcp(cluster) as reader:
            assert reader.get("sound", deadline_s=10.0) == payload("sound", 1, MIB)
            try:
                assert reader.get("damaged", deadline_s=10.0) is None
            except StoreError as error:
                assert error.code in {"checksum_mismatch", "replicas_unavailable"}


NEIGHBOUR = """
import json, sys
from mooncake_client import Client
from mooncake_store.testing import payload
address, me, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
size = 20_000
client = Client(address, deadline_s=20.0)
for number in range(100):
    key = f"{me}/{number}"
    client.put(key, payload(key, 1, size), preferred=[f"node-{me % 2 + 1}"])
print("done", flush=True)
sys.stdin.readline()
wrong = sum(
    client.get(f"{other}/{number}") != payload(f"{other}/{number}", 1, size)
    for other in range(count) for number in range(100)
)
print(json.dumps({"wrong": wrong, "paths": client.statistics().bytes_read}), flush=True)
"""


def test_fr_045_processes_of_one_address_exchange_objects_with_the_local_shortcut(
    start_cluster: StartCluster,
) -> None:
    cluster = start_cluster(nodes=2, node_options={"dram": "32MiB"})
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", NEIGHBOUR, cluster.address, str(number), "4"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "done\n"
        answers = [json.loads(process.communicate("go\n", timeout=120)[0]) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [answer["wrong"] for answer in answers] == [0] * 4
    assert all(answer["paths"].get("shm", 0) > 0 for answer in answers)


ELSEWHERE = """
import subprocess, sys
subprocess.run(["mount", "--make-rprivate", "/"], check=True)
subprocess.run(["mount", "-t", "tmpfs", "none", sys.argv[2]], check=True)  # another container's
from mooncake_client import Client
from mooncake_store.testing import payload
with Client(sys.argv[1], deadline_s=20.0) as client:
    for number in range(100):
        assert client.get(f"theirs/{number}") == payload(f"theirs/{number}", 1, 20_000)
        client.put(f"ours/{number}", payload(f"ours/{number}", 1, 20_000))
    print(*client.statistics().bytes_read, *client.statistics().bytes_written)
"""


def test_fr_045_a_container_with_the_same_address_uses_no_shortcut(
    start_cluster: StartCluster,
) -> None:
    unshare = [shutil.which("unshare") or "", "--mount"]
    if not unshare[0] or subprocess.run([*unshare, "true"], check=False).returncode:
        pytest.skip("a mount namespace of its own needs unshare, and root")
    cluster = start_cluster(nodes=1, node_options={"dram": "16MiB"})
    with Client(cluster.address) as client:
        fill(client, [f"theirs/{number}" for number in range(100)], 20_000)
        done = subprocess.run(
            [*unshare, sys.executable, "-c", ELSEWHERE, cluster.address, str(cluster.memory)],
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == ["tcp", "tcp"]
        for number in range(100):
            assert client.get(f"ours/{number}") == payload(f"ours/{number}", 1, 20_000)


def test_fr_023_another_process_on_a_nodes_port_is_not_believed(
    start_cluster: StartCluster,
) -> None:
    """Behind node-1's advertised port stands node-2."""
    cluster = start_cluster(nodes=2, node_options={"dram": "8MiB"}, proxied=True)
    with tcp(cluster, deadline_s=3.0) as client:
        fill(client, ["k"], 100 * KIB, preferred=["node-1"])
        first = cluster.nodes[0].data
        assert isinstance(first, FaultProxy)
        first.retarget("127.0.0.1", cluster.nodes[1].port)
        first.drop_connections()
        client.forget_locations()
        try:
            assert client.get("k") is None
        except StoreError as error:
            assert error.code in {"replicas_unavailable", "wrong_peer", "deadline_exceeded"}
        first.retarget("127.0.0.1", cluster.nodes[0].port)
        first.drop_connections()
        wait_until(
            lambda: client.get("k") == payload("k", 1, 100 * KIB), 30, ignoring=(StoreError,)
        )


def test_fr_038_damage_that_nobody_reads_is_found_dropped_and_repaired(
    start_cluster: StartCluster,
) -> None:
    cluster = start_cluster(nodes=2, node_options={"dram": "16MiB", "scrub-rate": "64MiB"})
    dropped = 'mooncake_master_replicas_dropped_total{reason="checksum_mismatch"}'
    with tcp(cluster) as client:
        keys = fill(client, names("key", 20), 100 * KIB, replicas=2)
        alone = fill(client, names("alone", 3), 100 * KIB, preferred=("node-1",))
        for key in (*keys[:5], *alone):
            flip(cluster, key, HEADER_BYTES + 5000, node="node-1")
        wait_until(lambda: counter(cluster, dropped) == 8, 60)
        assert client.exists_many(alone) == [False] * 3
        assert client.get_many(keys) == [payload(key, 1, 100 * KIB) for key in keys]

        def copies(key: str) -> int:
            found = client.stat(key)
            return 0 if found is None else len(found.replicas)

        wait_until(lambda: all(copies(key) == 2 for key in keys), 60, what="all are repaired")
        assert client.get_many(keys) == [payload(key, 1, 100 * KIB) for key in keys]
        assert client.statistics().checksum_failures == 0
        assert counter(cluster, dropped) == 8
