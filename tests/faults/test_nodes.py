"""Nodes die, freeze, fall silent, come back, join; each costs its own copies only."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mooncake_client import Client, StoreError
from mooncake_store.testing import (
    BlackHole,
    CloseAfter,
    Direction,
    Stall,
    WireClient,
    payload,
    wait_until,
)
from mooncake_store.types import NodeState
from mooncake_store.wire import control
from tests.faults.scale import Latencies, scaled, show
from tests.faults.support import (
    KIB,
    MIB,
    QUICK,
    Timed,
    capacity_bytes,
    fill,
    names,
    tcp,
    together,
    used_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from mooncake_store.testing import NodeProcess, ProcessCluster

    StartCluster = Callable[..., ProcessCluster]


def kill(node: NodeProcess) -> None:
    node.kill()


def stop(node: NodeProcess) -> None:
    node.pause()


def silence(node: NodeProcess) -> None:
    """Keep its heartbeats, swallow its data."""
    assert node.data is not None
    node.data.set(BlackHole())


@pytest.mark.parametrize("harm", [kill, stop, silence], ids=["killed", "stopped", "data silent"])
def test_fr_003_reads_go_on_and_writes_avoid_a_sick_node(
    start_cluster: StartCluster, harm: Callable[[NodeProcess], None]
) -> None:
    """2 copies on 3 nodes; 20 puts of 2 copies.

    What the report asks of the p99 is shown at full scale, not asserted (docs/adr/0062).
    """
    cluster = start_cluster(
        nodes=3, node_options={"dram": "16MiB"}, master_options=QUICK, proxied=True
    )
    with tcp(cluster) as client:
        keys = fill(client, names("key", 60), 16 * KIB, replicas=2)
        sick = cluster.nodes[0]

        def read_all(what: str) -> None:
            with Latencies("003", f"{harm.__name__}, read {what}") as latencies:
                for key in keys * scaled(1, 5):
                    with latencies.call():
                        value = client.get(key, deadline_s=scaled(10.0, 3.0))
                    assert value == payload(key, 1, 16 * KIB)
                    client.forget_locations()

        read_all("before")
        harm(sick)
        read_all("at first (p99 <= 3 s)")

        def is_noticed() -> bool:
            client.forget_locations()
            client.get_many(keys, deadline_s=3.0)
            return state_of(cluster, "node-1") != NodeState.LIVE

        wait_until(is_noticed, 30)
        read_all("afterwards (p99 <= 3 x before)")
        for key in names("new", 20):
            client.put(key, payload(key, 1, 16 * KIB), replicas=2, deadline_s=scaled(15.0, 5.0))
            info = client.stat(key)
            assert info is not None
            assert "node-1" not in {replica.node for replica in info.replicas}
        heal(cluster, sick)
        wait_until(lambda: state_of(cluster, "node-1") == NodeState.LIVE, 60)
        assert client.get_many(keys, deadline_s=10.0) == [payload(key, 1, 16 * KIB) for key in keys]


def heal(cluster: ProcessCluster, node: NodeProcess) -> None:
    node.resume()
    if not node.is_running:
        node.start()
    assert node.data is not None
    node.data.heal()
    node.data.drop_connections()
    del cluster


def state_of(cluster: ProcessCluster, name: str) -> NodeState | None:
    status = cluster.node_status(name)
    return None if status is None else NodeState(status.record.state)


def test_a_killed_node_comes_back_with_its_contents(start_cluster: StartCluster) -> None:
    cluster = start_cluster(nodes=1, node_options={"dram": "16MiB"}, master_options=QUICK)
    node = cluster.nodes[0]
    with tcp(cluster) as client:
        keys = fill(client, names("key", 200), 16 * KIB)
        for _ in range(2):
            node.kill()
            node.start()
            cluster.wait_ready()
            wait_until(
                lambda: (
                    client.get_many(keys, deadline_s=3.0)
                    == [payload(key, 1, 16 * KIB) for key in keys]
                ),
                30,
                ignoring=(StoreError,),
            )
            client.forget_locations()


def test_a_node_with_new_memory_comes_back_empty_and_usable(start_cluster: StartCluster) -> None:
    cluster = start_cluster(nodes=1, node_options={"dram": "16MiB"}, master_options=QUICK)
    node = cluster.nodes[0]
    with tcp(cluster) as client:
        keys = fill(client, names("key", 50), 16 * KIB)
        node.kill()
        for path in cluster.memory.rglob("*"):
            if path.is_file():
                path.unlink()
        node.start()
        cluster.wait_ready()
        wait_until(lambda: not any(client.exists_many(keys)), 30)
        assert client.get_many(keys, deadline_s=20.0) == [None] * 50
        assert client.put(keys[0], payload(keys[0], 2, 16 * KIB)).created
        assert client.get(keys[0]) == payload(keys[0], 2, 16 * KIB)


def test_two_processes_never_own_one_memory(start_cluster: StartCluster) -> None:
    cluster = start_cluster(nodes=1, node_options={"dram": "8MiB"})
    second = cluster.add_node({"name": "node-1"})
    assert second.wait(30) not in {0, None}
    assert "another process" in second.log()
    cluster.nodes.remove(second)
    cluster.wait_ready()


def test_fr_018_a_node_that_was_stopped_is_adopted_again(start_cluster: StartCluster) -> None:
    """Stopped until it is dead, then resumed; keys removed meanwhile do not come back."""
    cluster = start_cluster(nodes=2, node_options={"dram": "16MiB"}, master_options=QUICK)
    node = cluster.nodes[0]
    with tcp(cluster) as client:
        keys = fill(client, names("key", 40), 16 * KIB, preferred=["node-1"])
        node.pause()
        wait_until(lambda: state_of(cluster, "node-1") == NodeState.DEAD, 30)
        removed = keys[:5]
        gone = client.remove_many(removed, deadline_s=10.0)
        assert len(gone) == 5
        node.resume()
        wait_until(lambda: state_of(cluster, "node-1") == NodeState.LIVE, 30)
        assert client.get_many(removed, deadline_s=20.0) == [None] * 5
        assert client.get_many(keys[5:], deadline_s=20.0) == [
            payload(key, 1, 16 * KIB) for key in keys[5:]
        ]


def test_a_node_cut_off_from_the_master_is_adopted_again(start_cluster: StartCluster) -> None:
    cluster = start_cluster(
        nodes=2, node_options={"dram": "16MiB"}, master_options=QUICK, proxied=True
    )
    node = cluster.nodes[0]
    assert node.to_master is not None
    with tcp(cluster) as client:
        keys = fill(client, names("key", 40), 16 * KIB, preferred=["node-1"])
        for fault in (Stall(), BlackHole()):
            node.to_master.set(fault)
            wait_until(lambda: state_of(cluster, "node-1") == NodeState.DEAD, 30)
            node.to_master.heal()
            node.to_master.drop_connections()
            wait_until(lambda: state_of(cluster, "node-1") == NodeState.LIVE, 30)
            wait_until(
                lambda: (
                    client.get_many(keys, deadline_s=3.0)
                    == [payload(key, 1, 16 * KIB) for key in keys]
                ),
                30,
                ignoring=(StoreError,),
            )
            client.forget_locations()


def test_fr_029_a_new_node_does_not_get_all_the_writes(start_cluster: StartCluster) -> None:
    """Batches of 32 once a fourth node has joined three that are nearly full."""
    size, share = scaled((32, 0.85), (128, 0.9))
    cluster = start_cluster(nodes=3, node_options={"dram": f"{size}MiB"})
    with tcp(cluster) as client:
        old = names("old", int(share * 3 * size * MIB / (65 * KIB)))
        before = Latencies("029", "batch of 32 puts before")
        after = Latencies("029", "batch of 32 puts beside a new node (p99 <= 3 x before)")
        with before:
            for at in range(0, len(old), 32):
                with before.call():
                    fill(client, old[at : at + 32], 64 * KIB)
        assert used_bytes(cluster) > 0.8 * capacity_bytes(cluster)
        cluster.add_node()
        cluster.wait_ready()
        on_newcomer = 0
        total = 0
        with after:
            for batch in range(scaled(32, 150)):
                keys = names(f"new-{batch}", 32)
                with after.call():
                    fill(client, keys, 64 * KIB)
                infos = [info for info in client.stat_many(keys) if info is not None]
                homes = [info.replicas[0].node for info in infos]
                assert len(set(homes)) > 1, f"batch {batch} went wholly to {homes[0]}"
                on_newcomer += homes.count("node-4")
                total += len(homes)
        show("029", "share of the new node (<= 60 %)", f"{100 * on_newcomer / total:.0f} %")
        assert on_newcomer > 0
        assert on_newcomer <= 0.6 * total


def test_fr_060_64_nodes_that_register_at_once_are_all_ready(start_cluster: StartCluster) -> None:
    """64 registrations of 1 MiB each, spoken by hand from 64 threads of one process."""
    # Those that register by hand have no heart that beats; they are live for a while.
    patient = {"suspect-after": "100s", "dead-after": "200s"}
    cluster = start_cluster(nodes=1, node_options={"dram": "8MiB"}, master_options=patient)

    def attach(number: int) -> WireClient:
        wire = WireClient("127.0.0.1", cluster.master.port, role="node", deadline_s=15.0)
        segment = control.SegmentRecord(1_000_000 + number, MIB)
        registered = wire.ask(
            control.Register(
                f"many-{number}", f"{number:032x}", "127.0.0.1", 1, "", {}, (segment,), 0, 0
            )
        )
        assert isinstance(registered, control.Registered)
        return wire

    links = together([lambda number=number: attach(number) for number in range(64)])
    try:
        failures = [link for link in links if isinstance(link, Exception)]
        assert failures == []
        live = [node for node in cluster.status().nodes if node.record.state == NodeState.LIVE]
        assert len(live) == 65
        with tcp(cluster) as client:
            client.put("k", b"value", preferred=["node-1"])
            assert client.get("k") == b"value"
    finally:
        for link in links:
            if isinstance(link, WireClient):
                link.close()


def test_fr_060_16_clients_that_attach_at_once_are_all_served(start_cluster: StartCluster) -> None:
    """64 clients in 16 threads each open, put and get within 15 s."""
    cluster = start_cluster(nodes=2, node_options={"dram": "16MiB"})

    def use(number: int) -> None:
        for turn in range(4):
            with Client(cluster.address) as client:
                key = f"client-{number}-{turn}"
                client.put(key, payload(key, 1, KIB), deadline_s=15.0)
                assert client.get(key, deadline_s=15.0) == payload(key, 1, KIB)

    assert together([lambda number=number: use(number) for number in range(16)]) == [None] * 16


ATTACHING = """
import sys
from mooncake_client import Client
client = Client(sys.argv[1], deadline_s=60.0)
print("ready", flush=True)
sys.stdin.readline()
key = f"of-{sys.argv[2]}"
value = key.encode() * (1 << 17)
assert client.put(key, value).created
assert client.get(key) == value
print("served", flush=True)
"""


def test_fr_060_processes_that_attach_at_once_are_all_served(start_cluster: StartCluster) -> None:
    """Each is a process of its own, and puts and gets about 1 MiB."""
    count = scaled(8, 64)
    cluster = start_cluster(nodes=2, node_options={"dram": "128MiB"})
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", ATTACHING, cluster.address, str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(count)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        began_s = time.monotonic()
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "served\n"
        show("060", f"{count} processes (<= 15 s)", f"{time.monotonic() - began_s:.1f} s")
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_fr_021_nodes_and_clients_may_start_before_the_master(start_cluster: StartCluster) -> None:
    """The master comes when a first call has failed for want of one."""
    cluster = start_cluster(nodes=2, node_options={"dram": "8MiB"})
    cluster.master.kill()
    for node in cluster.nodes:
        node.kill()
        node.start()
    with tcp(cluster) as client:
        early_s = scaled(1.0, 20.0)
        assert Timed(lambda: client.put("early", b"value", deadline_s=early_s)).failed
        late: list[Any] = []
        waiting = threading.Thread(
            target=lambda: late.append(Timed(lambda: client.put("k", b"v", deadline_s=30.0)))
        )
        waiting.start()
        cluster.master.start()
        cluster.wait_ready()
        waiting.join(35)
        assert late
        assert not late[0].failed, late[0].result
        assert client.get("k") == b"v"


def test_fr_025_clients_that_crash_a_hundred_times_leave_nothing(
    start_cluster: StartCluster,
) -> None:
    """100 connections that end without a word; memory and descriptors of the master stay."""
    cluster = start_cluster(nodes=1, node_options={"dram": "8MiB"})

    def crash(count: int) -> None:
        for _ in range(count):
            with cluster.wire() as wire:
                space = wire.ask(control.OpenNamespace("default"))
                wire.ask(control.PutStart(space.slot, space.epoch, [control.PutItem("k", KIB)]))

    crash(20)
    files, memory = cluster.master.open_files(), cluster.master.memory_bytes()
    crash(80)
    wait_until(lambda: cluster.master.open_files() <= files + 2, 30)
    assert cluster.master.memory_bytes() < memory + 8 * MIB
    wait_until(lambda: used_bytes(cluster) == 0, 30)


def test_fr_026_copies_are_on_different_nodes_and_outlive_one(start_cluster: StartCluster) -> None:
    cluster = start_cluster(nodes=3, node_options={"dram": "16MiB"}, master_options=QUICK)
    with tcp(cluster) as client:
        keys = names("key", scaled(60, 200))
        results = [client.put(key, payload(key, 1, 16 * KIB), replicas=2) for key in keys]
        # All, unless a node stood still for so long that it was left alone for a moment.
        assert sum(result.replicas == 2 for result in results) > len(keys) // 2

        def has_two_copies() -> bool:
            found = [info for info in client.stat_many(keys) if info is not None]
            return [len({r.node for r in info.replicas}) for info in found] == [2] * len(keys)

        wait_until(has_two_copies, 30)
        cluster.nodes[1].kill()
        assert client.get_many(keys, deadline_s=10.0) == [payload(key, 1, 16 * KIB) for key in keys]

        def has_copies_again() -> bool:
            left = {"node-1", "node-3"}
            found = [info for info in client.stat_many(keys) if info is not None]
            return [{r.node for r in info.replicas} & left for info in found] == [left] * len(keys)

        wait_until(has_copies_again, 30)
        assert cluster.metrics()["mooncake_master_under_replicated_count"] == 0
        cluster.nodes[0].kill()  # One is left for two copies: that is reported.
        wait_until(
            lambda: cluster.metrics()["mooncake_master_under_replicated_count"] == len(keys), 30
        )


def test_fr_026_copies_are_not_on_one_host(start_cluster: StartCluster) -> None:
    patient = {"suspect-after": "100s", "dead-after": "200s"}  # Else copies may be made up for.
    cluster = start_cluster(nodes=0, master_options=patient)
    for host in ("a", "a", "b"):
        cluster.add_node({"dram": "16MiB", "labels": f"host={host}"})
    cluster.wait_ready()
    with tcp(cluster, deadline_s=60.0) as client:
        keys = fill(client, names("key", scaled(60, 200)), 16 * KIB, replicas=2)
        for info in client.stat_many(keys):
            assert info is not None
            nodes = {replica.node for replica in info.replicas}
            assert len(nodes) == 2
            assert "node-3" in nodes


def test_fr_026_a_copy_that_could_not_be_written_is_reported(start_cluster: StartCluster) -> None:
    cluster = start_cluster(
        nodes=2, node_options={"dram": "16MiB"}, master_options=QUICK, proxied=True
    )
    data = cluster.nodes[0].data
    assert data is not None
    with tcp(cluster) as client:
        data.set(CloseAfter(1000), Direction.UP)
        result = client.put("k", payload("k", 1, 64 * KIB), replicas=2, deadline_s=10.0)
        assert result.replicas == 1
        data.heal()
        data.drop_connections()
        assert client.get("k") == payload("k", 1, 64 * KIB)


def test_fr_044_sockets_to_a_restarted_node_are_bounded_and_replaced(
    start_cluster: StartCluster,
) -> None:
    """Threads read from the nodes; one is restarted; the client keeps a bounded pool."""
    count = scaled(2, 3)
    cluster = start_cluster(nodes=count, node_options={"dram": "16MiB"}, master_options=QUICK)
    with tcp(cluster, connections_max=8) as client:
        keys = fill(client, names("key", 64), 64 * KIB, replicas=2)
        until_s = [0.0]

        def read() -> None:
            while True:
                for key in keys:
                    assert client.get(key, deadline_s=5.0) == payload(key, 1, 64 * KIB)
                if time.monotonic() >= until_s[0]:
                    return

        before = [node.open_files() for node in cluster.nodes]
        until_s[0] = time.monotonic() + scaled(0.0, 300.0)
        assert together([read] * scaled(16, 32), join_s=scaled(120.0, 400.0)) == [None] * scaled(
            16, 32
        )
        for node, files in zip(cluster.nodes, before, strict=True):
            wait_until(lambda node=node, files=files: node.open_files() <= files + 8, 30)
        waiting = time_wait(cluster)
        show("044", "sockets in TIME_WAIT (< 500)", str(waiting))
        assert waiting < 500
        cluster.nodes[0].kill()
        cluster.nodes[0].start()
        cluster.wait_ready()
        client.forget_locations()
        until_s[0] = 0.0
        assert together([read] * 16) == [None] * 16
        wait_until(lambda: cluster.nodes[0].open_files() < 100, 30)


def time_wait(cluster: ProcessCluster) -> int:
    """Return how many connections to the nodes of a cluster are in TIME_WAIT."""
    ports = {f":{node.port:04X}" for node in cluster.nodes}
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[3] == "06" and bool({row[1][8:], row[2][8:]} & ports) for row in rows)


# --- FR-061 -------------------------------------------------------------------------------------


def test_fr_061_opening_and_closing_200_times_leaks_nothing(start_cluster: StartCluster) -> None:
    cluster = start_cluster(nodes=1, node_options={"dram": "8MiB"})

    def use(count: int) -> tuple[int, int]:
        for _ in range(count):
            with Client(cluster.address) as client:
                client.put("k", b"value")
                assert client.get("k") == b"value"
        return open_files(), threading.active_count()

    files, threads = use(20)
    use(180)
    wait_until(lambda: open_files() <= files + 2, 30)
    wait_until(lambda: threading.active_count() <= threads, 30)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


EXITS = {
    "without close": "client.put('k', b'v')",
    "with a client in a forked child": "client.put('k', b'v'); import os; pid = os.fork(); "
    "client.get('k') if not pid else os.waitpid(pid, 0)",
}


@pytest.mark.parametrize("way", list(EXITS))
def test_fr_061_a_process_that_ends_without_closing_ends_quietly(
    start_cluster: StartCluster, way: str
) -> None:
    cluster = start_cluster(nodes=1, node_options={"dram": "8MiB"})
    code = (
        "import sys; from mooncake_client import Client; "
        f"client = Client(sys.argv[1]); {EXITS[way]}"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code, cluster.address],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0
    assert done.stderr == ""


def test_fr_061_an_interrupted_put_ends_at_once(start_cluster: StartCluster) -> None:
    cluster = start_cluster(nodes=1, node_options={"dram": "8MiB"}, proxied=True)
    data = cluster.nodes[0].data
    assert data is not None
    data.set(Stall(), Direction.UP)
    code = (
        "import sys; from mooncake_client import Client\n"
        "client = Client(sys.argv[1], transport='tcp', deadline_s=60.0)\n"
        "print('ready', flush=True)\n"
        "client.put('k', bytes(4 << 20))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, cluster.address],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    wait_until(lambda: data.accepted() > 0, 60)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT, errors
    assert "KeyboardInterrupt" in errors


def test_fr_061_a_node_that_is_stopped_cleanly_leaves_the_master_at_once(
    start_cluster: StartCluster,
) -> None:
    cluster = start_cluster(
        nodes=2,
        node_options={"dram": "8MiB"},
        master_options={"suspect-after": "100s", "dead-after": "200s"},  # longer than a test has
    )
    assert cluster.nodes[1].terminate() == 0
    wait_until(lambda: state_of(cluster, "node-2") != NodeState.LIVE, 30.0)
    assert cluster.master.terminate() == 0
