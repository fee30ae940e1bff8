"""The master is killed, paused and replaced; nothing acknowledged is lost, nothing comes back."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mooncake_client import Client, StaleTerm, StoreError
from mooncake_store.limits import SCAN_PAGE_MAX
from mooncake_store.testing import FaultProxy, payload, wait_until
from mooncake_store.types import NodeState
from tests.faults.scale import scaled
from tests.faults.support import (
    GRACE_S,
    KIB,
    QUICK,
    Background,
    Timed,
    counter,
    fill,
    names,
    tcp,
    used_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from mooncake_store.testing import ProcessCluster

    StartCluster = Callable[..., ProcessCluster]


def restart(cluster: ProcessCluster) -> None:
    cluster.master.kill()
    cluster.master.start()


def test_fr_004_a_killed_master_forgets_nothing(start_cluster: StartCluster) -> None:
    cluster = start_cluster(nodes=3, node_options={"dram": "16MiB"}, master_options=QUICK)
    with tcp(cluster) as client:
        keys = fill(client, names("key", 500), 16 * KIB)
        assert len(keys) == 500
        used = used_bytes(cluster)
        restart(cluster)
        got = client.get_many(keys, deadline_s=60.0)
        assert got == [payload(key, 1, 16 * KIB) for key in keys]
        cluster.wait_ready()
        assert used_bytes(cluster) == used


def test_what_is_listed_and_described_after_a_restart_is_all_of_it(
    start_cluster: StartCluster,
) -> None:
    patience = {**QUICK, "recovery-grace": "10s"}
    cluster = start_cluster(nodes=2, node_options={"dram": "16MiB"}, master_options=patience)
    with Client(cluster.address, namespace="listed", deadline_s=60.0) as client:
        keys = fill(client, names("key", 1500), 100)
        late = fill(client, names("late", 100), 100, preferred=("node-2",))
        listing = client.scan()
        assert len({next(listing).key for _ in range(SCAN_PAGE_MAX)}) == SCAN_PAGE_MAX
        cluster.nodes[1].pause()
        restart(cluster)
        recovering = "mooncake_master_recovering"
        wait_until(lambda: counter(cluster, recovering), 30, ignoring=(StoreError,))
        cluster.nodes[1].resume()
        assert None not in client.stat_many(late, deadline_s=60.0)
        assert {each.key for each in client.scan(deadline_s=60.0)} == {*keys, *late}
        with pytest.raises(StaleTerm, match="begin it again"):
            next(listing)


def test_fr_005_old_locations_never_show_another_keys_bytes_after_a_restart(
    start_cluster: StartCluster,
) -> None:
    cluster = start_cluster(
        nodes=1,
        node_options={"dram": "16MiB"},
        master_options={**QUICK, "lease-ttl": "30s"},
    )
    with tcp(cluster) as reader, tcp(cluster) as writer:
        keys = fill(writer, names("old", 100), 32 * KIB)
        assert reader.get_many(keys) == [payload(key, 1, 32 * KIB) for key in keys]
        restart(cluster)
        wait_until(lambda: writer.exists(keys[0], deadline_s=5.0), 30, ignoring=(StoreError,))
        fill(writer, names("new", 3 * 16 * 32), 32 * KIB, deadline_s=40.0)
        for key, value in zip(keys, reader.get_many(keys, deadline_s=10.0), strict=True):
            assert value is None or isinstance(value, StoreError) or value == payload(
                key, 1, 32 * KIB
            )  # fmt: skip


@pytest.mark.parametrize("joining", [False, True], ids=["alone", "while a fourth node joins"])
def test_fr_008_a_paused_master_takes_no_node_for_dead(
    start_cluster: StartCluster, *, joining: bool
) -> None:
    """The master is stopped for longer than the node time-out: until a caller has waited."""
    options = {**QUICK, "dead-after": scaled("2.5s", "3s")}
    stopped_s = scaled(4.0, 10.0)
    cluster = start_cluster(nodes=3, node_options={"dram": "8MiB"}, master_options=options)
    with tcp(cluster) as client:
        keys = fill(client, names("key", 300), 16 * KIB)
        cluster.master.pause()
        if joining:
            cluster.add_node()
        timed = Timed(lambda: client.get("absent", deadline_s=stopped_s))
        assert timed.failed
        assert timed.took_s <= stopped_s + GRACE_S
        cluster.master.resume()

        def all_live() -> bool:
            live = [node for node in cluster.status().nodes
                    if node.record.state == NodeState.LIVE]  # fmt: skip
            return len(live) >= 3

        wait_until(all_live, 30.0, ignoring=(StoreError,))
        assert client.get_many(keys, deadline_s=10.0) == [payload(key, 1, 16 * KIB) for key in keys]
        cluster.wait_ready()


def test_fr_034_clients_and_nodes_find_a_restarted_master_by_themselves(
    start_cluster: StartCluster,
) -> None:
    """Sockets and threads of the nodes do not grow."""
    cluster = start_cluster(nodes=2, node_options={"dram": "16MiB"}, master_options=QUICK)
    with tcp(cluster) as client:
        keys = fill(client, names("key", 50), 16 * KIB)
        before = [(node.open_files(), node.threads()) for node in cluster.nodes]
        for _ in range(scaled(3, 5)):
            restart(cluster)
            wait_until(
                lambda: (
                    client.get_many(keys, deadline_s=2.0)
                    == [payload(key, 1, 16 * KIB) for key in keys]
                ),
                30.0,
                ignoring=(StoreError,),
            )
            client.forget_locations()
            cluster.wait_ready()
        for node, (files, threads) in zip(cluster.nodes, before, strict=True):
            wait_until(lambda node=node, most=files + 4: node.open_files() <= most, 30)
            wait_until(lambda node=node, most=threads + 2: node.threads() <= most, 30)


def test_fr_034_clients_follow_nodes_that_restart_under_load(start_cluster: StartCluster) -> None:
    """Each node several times at its address, then one at another; two copies, so no read fails."""
    cluster = start_cluster(nodes=2, node_options={"dram": "16MiB"}, master_options=QUICK)
    with tcp(cluster) as client:
        keys = fill(client, names("key", 50), 16 * KIB, replicas=2)
        values = [payload(key, 1, 16 * KIB) for key in keys]
        at = [0]

        def read() -> None:
            at[0] += 1
            key = keys[at[0] % len(keys)]
            if at[0] % 7 == 0:
                client.forget_locations()
            assert client.get(key, deadline_s=5.0) == payload(key, 1, 16 * KIB)

        read()
        files, threads = own_files(), threading.active_count()
        with Background(read, pause_s=0.005) as reading:

            def read_on() -> None:
                rounds = reading.rounds
                wait_until(lambda: reading.rounds > rounds + 20 or reading.has_failed, 60)

            for node in cluster.nodes:
                for _ in range(scaled(2, 5)):
                    node.kill()
                    read_on()
                    node.start()
                    cluster.wait_ready()
                    read_on()
            node.kill()
            read_on()
            node.move()
            node.start()
            cluster.wait_ready()
            read_on()
        cluster.nodes[0].kill()
        client.forget_locations()
        wait_until(lambda: client.get_many(keys) == values, 30.0, ignoring=(StoreError,))
        wait_until(lambda: own_files() <= files + 4, 30)
        wait_until(lambda: threading.active_count() <= threads + 1, 30)


def test_fr_034_a_master_whose_name_means_another_address_is_found(
    start_cluster: StartCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = start_cluster(nodes=1, node_options={"dram": "16MiB"}, master_options=QUICK)
    meant = ["127.0.0.1"]
    resolve = socket.getaddrinfo

    def look_up(host: Any, *args: Any, **options: Any) -> Any:
        return resolve(meant[0] if host == "pool.test" else host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    before = FaultProxy("127.0.0.1", cluster.master.port)
    with Client(f"pool.test:{before.port}", transport="tcp", location_cache=False) as client:
        client.put("k", b"value")
        cluster.master.kill()
        before.close()  # Nobody listens there any more; another host has taken over the name.
        meant[0] = "127.0.0.2"
        after = FaultProxy("127.0.0.1", cluster.master.port, host="127.0.0.2", port=before.port)
        try:
            cluster.master.start()
            wait_until(
                lambda: client.get("k", deadline_s=2.0) == b"value", 60, ignoring=(StoreError,)
            )
        finally:
            after.close()
    cluster.wait_ready()


def own_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_fr_035_what_16_writers_were_told_is_kept_when_the_master_is_killed(
    start_cluster: StartCluster,
) -> None:
    cluster = start_cluster(nodes=3, node_options={"dram": "64MiB"}, master_options=QUICK)
    acknowledged: list[str] = []
    stop = threading.Event()

    def write(number: int) -> None:
        with tcp(cluster, deadline_s=3.0) as client:
            at = 0
            while not stop.is_set():
                key = f"writer-{number}/{at}"
                at += 1
                try:
                    if client.put(key, payload(key, 1, 8 * KIB)).created:
                        acknowledged.append(key)
                except StoreError:
                    continue

    threads = [threading.Thread(target=write, args=(number,), daemon=True) for number in range(16)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(acknowledged) > 300, 60)
    restart(cluster)
    kept_before = len(acknowledged)
    wait_until(lambda: len(acknowledged) > kept_before + 100, 60)
    stop.set()
    for thread in threads:
        thread.join(30)
    with tcp(cluster) as reader:
        keys = list(acknowledged)
        wrong = [
            key
            for key, value in zip(keys, reader.get_many(keys, deadline_s=20.0), strict=True)
            if value != payload(key, 1, 8 * KIB)
        ]
        assert wrong == []
    cluster.wait_ready()


def test_removed_replaced_and_cleared_keys_stay_gone_over_restarts_of_everything(
    start_cluster: StartCluster,
) -> None:
    cluster = start_cluster(nodes=2, node_options={"dram": "16MiB"}, master_options=QUICK)
    with tcp(cluster) as client, tcp(cluster, namespace="cleared") as other:
        removed = fill(client, names("removed", 50), 4 * KIB, replicas=2)
        replaced = fill(client, names("replaced", 50), 4 * KIB, replicas=2)
        cleared = fill(other, names("cleared", 50), 4 * KIB, replicas=2)
        client.remove_many(removed)
        for key in replaced:
            client.put(key, payload(key, 2, 4 * KIB), replace=True)
        other.clear()
        for processes in ([cluster.master], cluster.nodes, [cluster.master, *cluster.nodes]):
            for process in processes:
                process.kill()
            for process in processes:
                process.start()
            cluster.wait_ready()
            with tcp(cluster) as fresh, tcp(cluster, namespace="cleared") as fresh_other:
                assert fresh.get_many(removed, deadline_s=15.0) == [None] * 50
                assert fresh.get_many(replaced, deadline_s=15.0) == [
                    payload(key, 2, 4 * KIB) for key in replaced
                ]
                assert fresh_other.get_many(cleared, deadline_s=15.0) == [None] * 50


@pytest.mark.parametrize("data_dir", [True, False], ids=["data directory", "nodes"])
def test_what_is_left_of_a_set_outlives_the_master(
    start_cluster: StartCluster, tmp_path: Path, *, data_dir: bool
) -> None:
    """Members of sets are removed and replaced one by one; the master is killed at once."""
    options = {**QUICK, "data-dir": tmp_path / "data" if data_dir else None}
    cluster = start_cluster(nodes=2, node_options={"dram": "16MiB"}, master_options=options)
    sets = [[f"set-{number}/{part}" for part in range(4)] for number in range(20)]
    with tcp(cluster) as client:
        for keys in sets:
            client.put_together([(key, payload(key, 1, 4 * KIB)) for key in keys])
        client.remove_many([keys[0] for keys in sets])
        for keys in sets:
            client.put(keys[1], payload(keys[1], 2, 4 * KIB), replace=True)
        for _ in range(2):
            restart(cluster)
            cluster.wait_ready()
            with tcp(cluster) as fresh:
                for keys in sets:
                    assert fresh.get_many(keys, deadline_s=15.0) == [
                        None,
                        payload(keys[1], 2, 4 * KIB),
                        payload(keys[2], 1, 4 * KIB),
                        payload(keys[3], 1, 4 * KIB),
                    ]


def test_what_was_removed_while_its_node_was_away_does_not_come_back_with_it(
    start_cluster: StartCluster,
) -> None:
    """The node is stopped, the keys are removed, the master is killed, the node goes on."""
    cluster = start_cluster(nodes=2, node_options={"dram": "16MiB"}, master_options=QUICK)
    with tcp(cluster) as client:
        keys = fill(client, names("key", 6), 4 * KIB, preferred=["node-1"])
        cluster.nodes[0].pause()
        removed = []
        for key in keys:
            if not Timed(lambda key=key: client.remove(key, deadline_s=4.0)).failed:
                removed.append(key)
        restart(cluster)
        cluster.nodes[0].resume()
        cluster.wait_ready()
        with tcp(cluster) as fresh:
            assert fresh.get_many(removed, deadline_s=15.0) == [None] * len(removed)
        assert removed


def test_fr_018_a_stopped_master_ends_calls_in_time_and_serves_when_it_goes_on(
    start_cluster: StartCluster,
) -> None:
    cluster = start_cluster(nodes=2, node_options={"dram": "16MiB"}, master_options=QUICK)
    with tcp(cluster) as client:
        keys = fill(client, names("key", 20), 4 * KIB)
        cluster.master.pause()
        calls = (
            lambda: client.put("new", b"value", deadline_s=1.0),
            lambda: client.exists("key", deadline_s=1.0),
            lambda: client.remove("absent", deadline_s=1.0),
        )
        for call in calls * scaled(1, 5):  # It is stopped for 3 s, or for 15 s.
            timed = Timed(call)
            assert timed.failed
            assert timed.took_s <= 1.0 + GRACE_S
        cluster.master.resume()
        wait_until(
            lambda: (
                client.get_many(keys, deadline_s=2.0) == [payload(key, 1, 4 * KIB) for key in keys]
            ),
            30.0,
            ignoring=(StoreError,),
        )
        cluster.wait_ready()


@pytest.mark.parametrize("count", [0, 1, 1000])
def test_fr_036_a_restart_says_what_came_back_after_all_leases_have_ended(
    start_cluster: StartCluster, count: int
) -> None:
    """There is no snapshot to restore: the nodes' directories are it."""
    options = {**QUICK, "lease-ttl": "300ms"}
    cluster = start_cluster(nodes=2, node_options={"dram": "16MiB"}, master_options=options)
    with tcp(cluster) as client:
        keys = fill(client, names("key", count), 4 * KIB)
        assert len(keys) == count
        assert client.get_many(keys) == [payload(key, 1, 4 * KIB) for key in keys]
        cluster.master.kill()
        with Background(lambda: None, pause_s=0.3) as clock:
            wait_until(lambda: clock.rounds > 2, 30.0)  # Twice the length of a lease.
        lines = len(cluster.master.log().splitlines())
        cluster.master.start()
        cluster.wait_ready()
        assert client.get_many(keys, deadline_s=10.0) == [payload(k, 1, 4 * KIB) for k in keys]

        def said() -> str:
            return "\n".join(cluster.master.log().splitlines()[lines:])

        wait_until(lambda: "ready: clients are served" in said(), 30.0)
        assert ("objects restored" in said()) is bool(count)
        assert not count or f"{count} objects restored" in said()
        assert "stale" not in said()


BUSY = """
import logging, sys, threading, time
from mooncake_client import Client, StaleTerm, StoreError
from mooncake_store.limits import SCAN_PAGE_MAX
logging.basicConfig(level=logging.INFO)
logging.getLogger("asyncio").setLevel(logging.WARNING)
stop = threading.Event()
def work(number):
    with Client(sys.argv[1], deadline_s=0.3) as client:
        while not stop.is_set():
            try:
                client.get(f"absent-{number}")
            except StoreError:
                pass
threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
for thread in threads:
    thread.start()
print("working", flush=True)
sys.stdin.readline()
stop.set()
for thread in threads:
    thread.join()
"""
"""Eight clients that miss and fail, in a process that logs at the usual level."""


def test_fr_064_an_outage_fills_no_log(start_cluster: StartCluster) -> None:
    cluster = start_cluster(nodes=1, node_options={"dram": "8MiB"}, master_options=QUICK)
    busy = subprocess.Popen(
        [sys.executable, "-c", BUSY, cluster.address],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert busy.stdout is not None
        assert busy.stdout.readline() == "working\n"
        lines = len(cluster.nodes[0].log().splitlines())
        cluster.master.kill()
        away = scaled(10, 60)
        with Background(lambda: None, pause_s=1.0) as seconds:
            wait_until(lambda: seconds.rounds >= away, 60.0 + away)
        cluster.master.start()
        cluster.wait_ready()
        _, client_log = busy.communicate("stop\n", timeout=60)
    finally:
        busy.kill()
        busy.wait()

    def node_log() -> list[str]:
        return cluster.nodes[0].log().splitlines()[lines:]

    # The master knows it as live before it hears of that itself.
    wait_until(lambda: any("registered" in line for line in node_log()), 30.0)
    assert any("no master" in line for line in node_log())
    assert len(node_log()) <= 20
    assert len(client_log.splitlines()) <= 20, client_log
