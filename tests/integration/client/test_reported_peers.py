"""Field reports about peers, processes and resources: the client's part of them, provoked."""

from __future__ import annotations

# ruff: noqa: ANN401 - either client, whatever it returns
import asyncio
import contextlib
import gc
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from mooncake_client import (
    AsyncClient,
    Client,
    DeadlineExceeded,
    PutResult,
    ReplicasUnavailable,
    StoreError,
    Unreachable,
)
from mooncake_store.testing import (
    CloseAfter,
    Direction,
    Pass,
    Process,
    Stall,
    Throttle,
    free_port,
    payload,
    wait_until,
)
from mooncake_store.types import NodeState
from tests.integration.client.programs import (
    finished,
    has_ipv6,
    open_files,
    open_sockets,
    resident_bytes,
    run_python,
)
from tests.stopwatch import Stopwatch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mooncake_store.testing import ProcessCluster

    Start = Callable[..., ProcessCluster]

pytestmark = pytest.mark.processes

PATTERN = 0xA5


def wait_for_puts(client: Client, key: str, deadline_s: float) -> None:
    """Wait until the cluster takes ``key``."""
    wait_until(
        lambda: client.put(key, b"value", replace=True).created,
        deadline_s,
        what="puts work",
        ignoring=(StoreError,),
    )


@pytest.mark.slow
@pytest.mark.parametrize("who", ["master", "node"])
def test_fr018_a_frozen_peer_is_noticed_and_used_again_when_it_thaws(
    start: Start, who: str
) -> None:
    cluster = start(1)
    with Client(cluster.address, transport="tcp", deadline_s=1.0) as client:
        client.put("k", b"value", deadline_s=20.0)
        peer = cluster.master if who == "master" else cluster.nodes[0]
        peer.pause()
        try:
            client.forget_locations()
            for _ in range(3):
                watch = Stopwatch()
                with pytest.raises((Unreachable, DeadlineExceeded, ReplicasUnavailable)):
                    client.get("k")
                assert watch.spent_s() < 1.5
        finally:
            peer.resume()
        wait_until(
            lambda: client.get("k") == b"value", 30.0, what="it works again", ignoring=(StoreError,)
        )


def test_fr023_another_process_on_a_known_port_is_no_node(start: Start) -> None:
    cluster = start(1)
    other = start(1)
    with Client(cluster.address, transport="tcp", deadline_s=2.0) as client:
        client.put("k", b"value", deadline_s=20.0)
        assert client.get("k", deadline_s=20.0) == b"value"
        node = cluster.nodes[0]
        port = node.port
        node.kill()
        # A healthy node of another cluster takes the port.
        taker = other.add_node({"bind": f"127.0.0.1:{port}"})
        other.wait_ready()
        assert taker.is_running
        for _ in range(3):
            with contextlib.suppress(ReplicasUnavailable, DeadlineExceeded):
                assert client.get("k") is None  # the master knows that the node is gone
        assert client.statistics().transfer_failures.keys() <= {
            "wrong_peer", "unreachable", "deadline_exceeded"
        }  # fmt: skip


def test_fr028_a_local_hit_opens_no_socket(cluster: ProcessCluster) -> None:
    with Client(cluster.master.address, namespace="fr028") as client:
        client.put("k", bytes(100_000))
        client.get("k")
        before = open_files()
        asked = client.statistics().master_round_trips
        for _ in range(50):
            assert client.get("k") == bytes(100_000)
        counted = client.statistics()
        assert open_files() <= before
        assert counted.master_round_trips == asked
        assert set(counted.bytes_read) == {"shm"}


@pytest.mark.parametrize("fault", [Stall(), Throttle(1.0), CloseAfter(1000)], ids=repr)
def test_fr033_a_transfer_that_never_ends_ends_by_the_deadline(start: Start, fault: Any) -> None:
    cluster = start(1, proxied=True)
    node = cluster.nodes[0]
    assert node.data is not None
    with Client(cluster.address, transport="tcp", deadline_s=1.0) as client:
        value = payload("k", 0, 2 << 20)
        client.put("k", value, deadline_s=10.0)
        assert client.get("k", deadline_s=10.0) == value
        node.data.set(fault, Direction.DOWN)
        buffer = bytearray([PATTERN]) * len(value)
        was_put = False
        for call in (
            lambda: client.get_into("k", buffer),
            lambda: client.put("other", value),
            lambda: client.get_into_many(["k"], [buffer]),
        ):
            watch = Stopwatch()
            try:
                outcome = call()
            except StoreError:
                pass
            else:
                if isinstance(outcome, PutResult):  # its answers are shorter than what passes
                    assert isinstance(fault, CloseAfter)
                    was_put = True
                else:
                    assert isinstance(outcome, list)
                    assert isinstance(outcome[0], StoreError)
            assert watch.spent_s() < 1.5
        seen = bytes(buffer)
        node.data.set(Pass(), Direction.BOTH)
        if was_put:
            wait_until(lambda: client.get("other") == value, 30.0, ignoring=(StoreError,))
        time.sleep(1.0)
        assert bytes(buffer) == seen  # nothing lands after the call


@pytest.mark.parametrize("kind", ["Client", "AsyncClient"])
def test_memory_of_a_call_that_failed_is_the_callers_again(start: Start, kind: str) -> None:
    """At once: not when the collector of circles comes by."""
    cluster = start(1, proxied=True)
    node = cluster.nodes[0]
    assert node.data is not None
    value = payload("k", 0, 2 << 20)
    with Client(cluster.address, transport="tcp") as client:
        client.put("k", value)
    node.data.set(Stall(), Direction.DOWN)
    buffer, offered = bytearray(len(value)), bytearray(value)

    def call() -> None:
        with Client(cluster.address, transport="tcp", deadline_s=0.5) as client:
            with pytest.raises(StoreError):
                client.get_into("k", buffer)
            assert isinstance(client.get_into_many(["k"], [buffer])[0], StoreError)
            with contextlib.suppress(StoreError):
                client.put("other", offered)

    async def call_async() -> None:
        async with AsyncClient(cluster.address, transport="tcp", deadline_s=0.5) as client:
            with pytest.raises(StoreError):
                await client.get_into("k", buffer)
            assert isinstance((await client.get_into_many(["k"], [buffer]))[0], StoreError)
            with contextlib.suppress(StoreError):
                await client.put("other", offered)

    gc.collect()
    gc.disable()
    try:
        if kind == "Client":
            call()
        else:
            asyncio.run(call_async())
        buffer.clear()  # BufferError while somebody has it.
        offered.clear()
    finally:
        gc.enable()


def test_fr033_a_master_that_says_nothing_is_left_by_the_deadline(start: Start) -> None:
    cluster = start(1, proxied=True)
    assert cluster.client_proxy is not None
    with Client(cluster.address, deadline_s=0.8) as client:
        client.put("k", b"value", deadline_s=10.0)
        cluster.client_proxy.set(Stall(), Direction.DOWN)
        client.forget_locations()
        calls: list[Callable[[], object]] = [
            lambda: client.get("k"),
            lambda: client.exists("k"),
            lambda: client.put("new", b"value"),
            lambda: client.remove("k"),
            lambda: list(client.scan()),
        ]
        for call in calls:
            watch = Stopwatch()
            with pytest.raises((DeadlineExceeded, Unreachable)):
                call()
            assert watch.spent_s() < 1.3
        cluster.client_proxy.set(Pass(), Direction.BOTH)
        wait_until(
            lambda: client.exists("new") in {True, False}, 30.0, what="an answer",
            ignoring=(StoreError,),
        )  # fmt: skip


@pytest.mark.slow
def test_fr034_clients_follow_restarts_by_themselves(start: Start) -> None:
    cluster = start(1)
    with Client(cluster.address, transport="tcp", deadline_s=1.0) as client:
        client.put("k0", b"value", deadline_s=10.0)
        files, threads = open_files(), threading.active_count()
        for turn in range(3):
            for process in (cluster.master, cluster.nodes[0]):
                process.kill()
                process.start()
                cluster.wait_ready()
                wait_for_puts(client, f"k{turn}", 60.0)
                assert client.get(f"k{turn}", deadline_s=20.0) == b"value"
        wait_until(lambda: open_files() <= files + 2, 30)
        wait_until(lambda: threading.active_count() <= threads, 30)


@pytest.mark.slow
def test_fr044_connections_are_bounded_and_those_to_a_dead_peer_go(start: Start) -> None:
    cluster = start(1)
    with Client(cluster.address, transport="tcp", connections_max=6, deadline_s=20.0) as client:
        client.put_many([(f"k{at}", bytes(20_000)) for at in range(64)])
        before = open_sockets()
        most = 0
        problems: list[BaseException] = []

        def load(first: int) -> None:
            nonlocal most
            try:
                for at in range(40):
                    if at % 3 == 0:
                        client.forget_locations()
                    assert client.get(f"k{(first + at) % 64}") == bytes(20_000)
                    most = max(most, open_sockets())
            except BaseException as error:  # noqa: BLE001 - shown by the assertion below
                problems.append(error)

        threads = [threading.Thread(target=load, args=(number,)) for number in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(100)
        assert not problems
        assert most - before <= 6 + 8
        cluster.nodes[0].kill()
        cluster.nodes[0].start()
        cluster.wait_ready()
        assert client.put("after", b"x").created
        assert client.get("after") == b"x"


def test_fr044_running_out_of_descriptors_is_an_error_not_a_hang(cluster: ProcessCluster) -> None:
    program = """
        import os, resource, sys, time
        from mooncake_client import Client, StoreError
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        client = Client(sys.argv[1], namespace="fr044", deadline_s=4.0)  # tries until then
        taken = []
        while True:
            try:
                taken.append(os.open("/dev/null", os.O_RDONLY))
            except OSError:
                break
        try:
            client.put("k", b"value")
            print("no error")
        except StoreError as error:
            print(error.code)
        for descriptor in taken:
            os.close(descriptor)
        assert client.put("k", b"value", replace=True, deadline_s=20.0).created
        assert client.get("k", deadline_s=20.0) == b"value"
    """
    assert finished(run_python(program, cluster.master.address)).strip() == "unreachable"


def test_who_has_no_descriptor_left_says_nothing_about_the_nodes(start: Start) -> None:
    cluster = start(2)
    program = """
        import resource, sys
        from mooncake_client import Client, StoreError
        with Client(sys.argv[1], transport="tcp", deadline_s=4.0) as client:  # tries until then
            client.exists("warm", deadline_s=20.0)
            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))
            try:
                client.get("k")
            except StoreError as error:
                print(error)
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            value = client.get("k", deadline_s=20.0)
            print(value, sorted(client.statistics().transfer_failures))
    """
    with Client(cluster.address, transport="tcp") as other:
        other.put("k", b"value", replicas=2)
        failure, rest = finished(run_python(program, cluster.address)).splitlines()
        assert "while reading 'k': this process cannot open a connection to node" in failure
        assert rest == "b'value' ['overloaded']"
        assert {node.record.state for node in other.describe_cluster().nodes} == {NodeState.LIVE}


def test_fr061_opening_and_closing_leaves_nothing_behind(cluster: ProcessCluster) -> None:
    def once() -> None:
        with Client(cluster.master.address, namespace="fr061") as client:
            client.put("k", bytes(5000), replace=True)
            assert client.get("k") == bytes(5000)
            with client.view("k") as data:
                assert data is not None

    for _ in range(20):
        once()
    files, threads, resident = open_files(), threading.active_count(), resident_bytes()
    for _ in range(200):
        once()
    wait_until(lambda: open_files() <= files, 30)
    wait_until(lambda: threading.active_count() <= threads, 30)
    assert resident_bytes() < resident * 1.05


@pytest.mark.parametrize("address", ["cluster", "local://?dram=16MiB"])
@pytest.mark.parametrize("kind", ["Client", "AsyncClient"])
def test_fr061_leaving_without_closing_is_clean(
    cluster: ProcessCluster, address: str, kind: str
) -> None:
    program = """
        import asyncio, sys
        from mooncake_client import AsyncClient, Client
        if sys.argv[2] == "Client":
            client = Client(sys.argv[1], namespace="fr061", deadline_s=30)
            client.put("k", b"value", replace=True)
            assert client.get("k") == b"value"
            view = client.view("k").__enter__()
        else:
            client = AsyncClient(sys.argv[1], namespace="fr061", deadline_s=30)
            async def main():
                await client.put("k", b"value", replace=True)
                assert await client.get("k") == b"value"
            asyncio.run(main())
        print("done")
    """
    where = cluster.master.address if address == "cluster" else address
    assert finished(run_python(program, where, kind)) == "done\n"


def test_fr061_an_interrupt_during_a_put_is_only_that(start: Start) -> None:
    cluster = start(1, proxied=True)
    assert cluster.nodes[0].data is not None
    program = """
        import sys
        from mooncake_client import Client
        client = Client(sys.argv[1], transport="tcp", deadline_s=60)
        client.exists("warm")
        print("ready", flush=True)
        try:
            client.put("k", bytes(20 << 20))
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        assert client.exists("k") is False
        client.close()
    """
    data = cluster.nodes[0].data
    data.set(Throttle(1e5), Direction.UP)
    process = run_python(program, cluster.address)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    wait_until(lambda: data.passed_bytes(Direction.UP) > 1000, 60, what="the put is under way")
    process.send_signal(2)
    assert finished(process, 60.0) == "interrupted\n"
    with Client(cluster.address) as client:
        cluster.nodes[0].data.set(Pass(), Direction.BOTH)
        assert client.put("k", b"value", deadline_s=30.0).created  # the key is free again


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_fr061_a_forked_child_gets_connections_of_its_own(
    cluster: ProcessCluster, transport: str
) -> None:
    program = """
        import os, sys
        from mooncake_client import Client, Closed
        client = Client(sys.argv[1], namespace="fork-" + sys.argv[2], transport=sys.argv[2])
        local = Client("local://?dram=16MiB")
        local.put("k", b"value")
        client.put("k", bytes(100_000), replace=True)
        assert client.get("k") == bytes(100_000)
        children = []
        for number in range(3):
            child = os.fork()
            if not child:
                assert client.get("k") == bytes(100_000)
                assert client.put(f"of{number}", b"child").created
                with client.view("k") as data:
                    assert data[:5] == bytes(5)
                try:
                    local.get("k")
                except Closed:
                    os._exit(0)
                os._exit(1)
            children.append(child)
        for turn in range(20):
            assert client.get("k") == bytes(100_000)
            assert client.exists("k")
        assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
        assert client.get_many(["of0", "of1", "of2"]) == [b"child"] * 3
        assert local.get("k") == b"value"
    """
    finished(run_python(program, cluster.master.address, transport))


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")
def test_fr062_ipv6_from_the_address_to_the_bytes(memory_root: str, tmp_path: Path) -> None:
    port = free_port("::1")
    command = (sys.executable, "-m", "mooncake_store")
    address = f"[::1]:{port}"
    master = Process(
        "master", [*command, "master", "--bind", address, "--admin-bind", "[::1]:0"],
        tmp_path / "master.log",
    )  # fmt: skip
    node = Process(
        "node",
        [*command, "node", "--name", "six", "--master", address, "--bind", "[::1]:0", "--dram",
         "16MiB", "--memory-root", memory_root],
        tmp_path / "node.log",
    )  # fmt: skip
    master.start()
    node.start()
    try:
        for text in (address, f"localhost:1,{address}"):
            with Client(text, transport="tcp", deadline_s=30.0) as client:
                wait_for_puts(client, "k", 30.0)
                client.forget_locations()
                assert client.get("k") == b"value"
    finally:
        node.kill()
        master.kill()
