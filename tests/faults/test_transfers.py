"""Transfers end in time, whatever the other side does, and touch nothing afterwards."""

from __future__ import annotations

import contextlib
import mmap
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from mooncake_client import Client, ObjectTooLarge, StoreError
from mooncake_store.testing import (
    BlackHole,
    CloseAfter,
    Direction,
    DropAfter,
    Fault,
    Flip,
    Pass,
    Stall,
    Throttle,
    payload,
    wait_until,
)
from tests.faults.scale import Latencies, echo, scaled, show
from tests.faults.support import (
    GRACE_S,
    KIB,
    MIB,
    Timed,
    evicted,
    fill,
    names,
    tcp,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from mooncake_store.testing import ProcessCluster

    StartCluster = Callable[..., ProcessCluster]

DRIP = Throttle(bytes_per_s=1)

READS: dict[str, Callable[[Client, bytearray, float], Any]] = {
    "get": lambda client, _, deadline_s: client.get("large", deadline_s=deadline_s),
    "get_into": lambda client, buffer, deadline_s: client.get_into(
        "large", buffer, deadline_s=deadline_s
    ),
    "get_many": lambda client, _, deadline_s: client.get_many(["large"], deadline_s=deadline_s),
    "range": lambda client, buffer, deadline_s: client.get_into(
        "large", buffer, start=300_000, length=600_000, deadline_s=deadline_s
    ),
}


@pytest.mark.parametrize(
    "fault",
    [DRIP, Stall(), BlackHole(), CloseAfter(500_000), DropAfter(500_000), Flip(400_000)],
    ids=["1 byte per second", "nothing", "black hole", "close mid-body", "cut mid-body", "flip"],
)
def test_fr_033_every_read_ends_by_its_deadline_and_never_touches_the_buffer_again(
    start_cluster: StartCluster, fault: Fault
) -> None:
    """The buffer is watched for a while after each call."""
    cluster = start_cluster(nodes=1, node_options={"dram": "16MiB"}, proxied=True)
    data = cluster.nodes[0].data
    assert data is not None
    deadline_s = scaled(0.5, 1.0)
    with tcp(cluster) as client:
        client.put("large", payload("large", 1, MIB))
        for name, read in READS.items():
            data.set(fault, Direction.DOWN)
            buffer = bytearray(b"\xa5" * MIB)
            timed = Timed(lambda read=read, buffer=buffer: read(client, buffer, deadline_s))
            assert timed.took_s <= deadline_s + GRACE_S, name
            after = bytes(buffer)
            data.set(Pass())
            until_s = time.monotonic() + scaled(0.25, 5.0)
            while time.monotonic() < until_s:
                assert bytes(buffer) == after, f"{name} wrote after its end"
                time.sleep(0.05)
            assert_right_or_failed(name, timed, buffer)
            client.forget_locations()
        outcomes: set[bytes | None] = {payload("large", 1, MIB)}
        if isinstance(fault, Flip):
            outcomes.add(None)  # the copy that looked damaged was dropped
        wait_until(lambda: client.get("large") in outcomes, 30, ignoring=(StoreError,))


def assert_right_or_failed(name: str, timed: Timed, buffer: bytearray) -> None:
    whole = payload("large", 1, MIB)
    match timed.result:
        case StoreError() | None | [StoreError()] | [None]:
            return
        case bytes(data):
            assert data == whole
        case [data]:
            assert data == whole
        case int(size):
            start = 300_000 if name == "range" else 0
            assert bytes(buffer[:size]) == whole[start : start + size]
        case other:
            raise AssertionError(f"{name} returned {other!r}")


@pytest.mark.parametrize(
    "fault",
    [Stall(), BlackHole(), CloseAfter(300_000), DRIP],
    ids=["nothing", "black hole", "close mid-body", "1 byte per second"],
)
def test_fr_033_every_write_ends_by_its_deadline_and_leaves_nothing_half(
    start_cluster: StartCluster, fault: Fault
) -> None:
    cluster = start_cluster(
        nodes=1, node_options={"dram": "16MiB"}, master_options={"put-ttl": "2s"}, proxied=True
    )
    data = cluster.nodes[0].data
    assert data is not None
    with tcp(cluster) as client:
        data.set(fault, Direction.UP)
        timed = Timed(lambda: client.put("large", payload("large", 1, MIB), deadline_s=1.0))
        assert timed.failed
        assert timed.took_s <= 1.0 + GRACE_S
        data.set(Pass())
        assert client.get("large", deadline_s=20.0) in {None, payload("large", 1, MIB)}
        # The node may be left alone for a moment: a put waits for that, and does not fail.
        client.put("large", payload("large", 2, MIB), replace=True, deadline_s=30.0)
        assert client.get("large") == payload("large", 2, MIB)


def test_fr_033_calls_to_a_master_that_accepts_and_says_nothing_end_in_time() -> None:
    with contextlib.ExitStack() as opened:
        silent = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        client = opened.enter_context(Client(f"127.0.0.1:{silent.getsockname()[1]}"))
        for call in (
            lambda: client.get("k", deadline_s=0.5),
            lambda: client.put("k", b"v", deadline_s=0.5),
            lambda: client.exists("k", deadline_s=0.5),
            lambda: client.remove("k", deadline_s=0.5),
            lambda: client.clear(deadline_s=0.5),
        ):
            timed = Timed(call)
            assert timed.failed
            assert timed.took_s <= 0.5 + GRACE_S


# --- FR-019 -------------------------------------------------------------------------------------


SLOW_KEYS = [f"slow-{number}" for number in range(scaled(8, 32))]


@pytest.mark.parametrize(
    "overwriting", [False, True], ids=["quiet", "while the pool is overwritten"]
)
def test_fr_019_a_read_slower_than_its_lease_gives_right_bytes_or_an_error(
    start_cluster: StartCluster, *, overwriting: bool
) -> None:
    """The batch takes about 3 s; the lease is 0.5 s; the pool has room for four of them."""
    cluster = start_cluster(
        nodes=1,
        node_options={"dram": scaled("32MiB", "128MiB")},
        master_options={"lease-ttl": "0.5s"},
        proxied=True,
    )
    data = cluster.nodes[0].data
    assert data is not None
    with tcp(cluster) as reader, tcp(cluster) as writer:
        fill(writer, SLOW_KEYS, MIB)
        wanted = [payload(key, 1, MIB) for key in SLOW_KEYS]
        data.set(Throttle(bytes_per_s=scaled(2_700_000, 10_800_000)), Direction.DOWN)
        stop = threading.Event()

        def overwrite() -> None:
            number = 0
            while not stop.is_set():
                writer.put(f"flood-{number}", bytes(MIB), deadline_s=10.0)
                number += 1

        flood = threading.Thread(target=overwrite, daemon=True)
        if overwriting:
            flood.start()
        try:
            got = reader.get_many(SLOW_KEYS, deadline_s=20.0)
            single = Timed(lambda: reader.get(SLOW_KEYS[0], deadline_s=20.0))
            part = Timed(lambda: reader.get(SLOW_KEYS[1], start=1000, length=500_000,
                                            deadline_s=20.0))  # fmt: skip
        finally:
            stop.set()
        if not overwriting:
            assert got == wanted
            assert single.result == wanted[0]
            assert part.result == wanted[1][1000:501_000]
            return
        flood.join(30)
        for result, right in zip(
            [*got, single.result, part.result],
            [*wanted, wanted[0], wanted[1][1000:501_000]],
            strict=True,
        ):
            assert result is None or isinstance(result, StoreError) or result == right
        assert evicted(cluster) > 0


def test_fr_019_a_view_whose_extent_was_reused_says_so(start_cluster: StartCluster) -> None:
    cluster = start_cluster(
        nodes=1, node_options={"dram": "8MiB"}, master_options={"lease-ttl": "0.3s"}
    )
    with Client(cluster.address) as client, Client(cluster.address) as writer:
        client.put("viewed", payload("viewed", 1, MIB))
        failure: StoreError | None = None
        try:
            with client.view("viewed") as view:
                assert view is not None
                assert bytes(view) == payload("viewed", 1, MIB)
                wait_until(
                    lambda: (
                        not writer.exists("viewed")
                        or writer.put(f"flood-{time.monotonic_ns()}", bytes(MIB)) is None
                    ),
                    30,
                )
                fill(writer, names("more", 16), MIB)
        except StoreError as error:
            failure = error
        assert failure is not None
        assert failure.code == "stale_extent"


# --- FR-052 -------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["tcp", "auto"])
def test_fr_052_values_of_every_size_are_exact_or_refused_when_put(
    start_cluster: StartCluster, transport: str
) -> None:
    cluster = start_cluster(nodes=1, node_options={"dram": "160MiB"})
    chunk = 256 * KIB
    sizes = [0, 1, 4095, 4096, 4097, chunk - 1, chunk, chunk + 1, MIB + 1, 64 * MIB + 1]
    with Client(cluster.address, transport=transport) as client:
        for size in sizes:
            client.put(f"size-{size}", payload(f"size-{size}", 1, size))
        for size in sizes:
            assert client.get(f"size-{size}") == payload(f"size-{size}", 1, size), size
        keys = [f"size-{size}" for size in sizes]
        assert client.get_many(keys) == [
            payload(key, 1, size) for key, size in zip(keys, sizes, strict=True)
        ]
        with pytest.raises(ObjectTooLarge, match=r"\d"):
            client.put("huge", bytes(161 * MIB))
        assert cluster.nodes[0].is_running
        assert cluster.master.is_running


def test_fr_052_an_object_of_2_gib_and_1_is_refused_before_a_byte_is_sent(
    start_cluster: StartCluster,
) -> None:
    """The memory is a sparse mapping that is never touched."""
    cluster = start_cluster(nodes=1, node_options={"dram": "8MiB"})
    sparse = mmap.mmap(-1, (2 << 30) + 1)
    with Client(cluster.address) as client:
        with pytest.raises(ObjectTooLarge):
            client.put("huge", memoryview(sparse), deadline_s=60.0)
        client.put("fine", b"fine")
        assert client.get("fine") == b"fine"


# --- FR-065 -------------------------------------------------------------------------------------


STREAM = """
import select, sys
from mooncake_client import Client
from mooncake_store.testing import payload
address, key = sys.argv[1:]
value = payload(key, 1, 16 << 20)
buffer = bytearray(len(value))
with Client(address, transport="tcp", deadline_s=20.0) as client:
    print("ready", flush=True)
    rounds = 0
    while not rounds or not select.select([sys.stdin], [], [], 0)[0]:
        assert client.get_into(key, buffer) == len(value)
        rounds += 1
    assert buffer == value
print(rounds)
"""


def test_fr_065_large_streams_and_slow_readers_neither_stop_small_reads_nor_evict(
    start_cluster: StartCluster,
) -> None:
    """4 streams of 16 MiB values, each a process, and 2 slow readers."""
    cluster = start_cluster(nodes=1, node_options={"dram": "160MiB"})
    node = cluster.nodes[0]
    with tcp(cluster) as client, contextlib.ExitStack() as stack:
        large = fill(client, names("large", 4), 16 * MIB)
        small = fill(client, names("small", 100), 4 * KIB)
        memory_before = node.memory_bytes()
        for _ in range(2):
            stack.enter_context(slow_reader(node.port, client, large[0]))
        streams = [
            subprocess.Popen(
                [sys.executable, "-c", STREAM, cluster.address, key],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for key in large
        ]
        for stream in streams:
            stack.callback(stream.communicate)
            stack.callback(stream.kill)
            assert stream.stdout is not None
            assert stream.stdout.readline() == "ready\n"
        latencies = Latencies("065", "small get (p99 <= 20 ms)")
        echoes = Latencies("065", "the same while, an echo of two processes")
        with latencies, echoes, echo() as ask_echo:
            for _ in range(scaled(10, 30)):
                for key in small:
                    with latencies.call():
                        value = client.get(key, deadline_s=scaled(10.0, 1.0))
                    assert value == payload(key, 1, 4 * KIB)
                    with echoes.call():
                        ask_echo()
                client.forget_locations()
        rounds = [int(stream.communicate("enough\n", timeout=60)[0]) for stream in streams]
        assert min(rounds) >= 1
        assert evicted(cluster) == 0
        growth = node.memory_bytes() - memory_before
        show("065", "memory above the pool", f"{growth / MIB:.1f} MiB")
        assert growth < 32 * MIB


def slow_reader(port: int, client: Client, key: str) -> socket.socket:
    """Ask a node for a large extent and read nothing of it."""
    from tests.faults.raw import open_data, read_request  # noqa: PLC0415 - only here

    connection = open_data(port)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.sendall(read_request(client, key, deadline_s=60.0))
    return connection


# --- FR-058 -------------------------------------------------------------------------------------


def test_fr_058_failing_parts_of_batches_leak_nothing_in_the_client(
    start_cluster: StartCluster,
) -> None:
    """Batches with 30 % absent keys, and a connection cut at every 20th."""
    cluster = start_cluster(nodes=1, node_options={"dram": "32MiB"}, proxied=True)
    data = cluster.nodes[0].data
    assert data is not None
    with tcp(cluster) as client:
        there = fill(client, names("there", 14), 32 * KIB)
        keys = there + names("absent", 6)

        def batches(count: int) -> None:
            for number in range(count):
                if number % 20 == 19:
                    data.drop_connections()
                for key, value in zip(keys, client.get_many(keys), strict=True):
                    assert (
                        isinstance(value, StoreError)
                        or (value is None and key.startswith("absent"))
                        or value == payload(key, 1, 32 * KIB)
                    )
                client.forget_locations()

        batches(200)
        before = resident_bytes()
        batches(scaled(500, 20_000))
        growth = resident_bytes() - before
        show("058", "growth of the client (2 %)", f"{100 * growth / before:.2f} %")
        assert growth < scaled(16 * MIB, before // 50)


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:  # noqa: PTH123 - a pseudo-file
        return int(statm.read().split()[1]) * 4096
