"""Bytes that lie, drip, or never end stop nobody and cost little, on every port there is."""

from __future__ import annotations

import contextlib
import socket
import time
from typing import TYPE_CHECKING

import pytest

from mooncake_client import Client
from mooncake_store.errors import StoreError
from mooncake_store.testing import ProcessCluster, payload, wait_until
from mooncake_store.wire import control
from tests.faults import hostile
from tests.faults.raw import HOST, open_data
from tests.faults.support import KIB, MIB, Background, fill, names, tcp

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mooncake_store.testing import Process

MEMORY_BYTES_MAX = 10 * MIB
"""Growth that field report 050 allows."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[ProcessCluster]:
    with ProcessCluster(
        nodes=1,
        node_options={"dram": "16MiB", "stall-timeout": "2s"},
        master_options={"handshake-timeout": "2s"},
    ) as running:
        with tcp(running) as client:
            fill(client, names("kept", 50), 16 * KIB)
        yield running


@pytest.fixture(autouse=True)
def unharmed(cluster: ProcessCluster) -> Iterator[None]:
    """Whatever a test sends: others are served all the while, and nobody grows or dies."""
    processes: list[Process] = [cluster.master, *cluster.nodes]
    pids = [process.pid for process in processes]
    before = [process.memory_bytes() for process in processes]
    keys = names("kept", 50)
    with tcp(cluster) as client:

        def use() -> None:
            key = keys[int(time.monotonic() * 1000) % 50]
            assert client.get(key, deadline_s=5.0) == payload(key, 1, 16 * KIB)
            client.forget_locations()

        with Background(use, pause_s=0.01) as using:
            yield
            rounds = using.rounds
            wait_until(lambda: using.rounds > rounds + 3 or using.has_failed, 20)
    for process, pid, memory in zip(processes, pids, before, strict=True):
        assert process.is_running
        assert process.pid == pid
        wait_until(
            lambda process=process, memory=memory: (
                process.memory_bytes() - memory < MEMORY_BYTES_MAX
            ),
            10,
            what=f"{process.name} gives its memory back",
        )


def send(port: int, data: bytes) -> None:
    """Send and look at what comes until the peer ends it or is silent for a moment."""
    with (
        contextlib.suppress(OSError),
        socket.create_connection((HOST, port), timeout=2.0) as connection,
    ):
        connection.settimeout(0.2)
        connection.sendall(data)
        while connection.recv(65536):
            pass


def ports(cluster: ProcessCluster) -> dict[str, int]:
    return {
        "control": cluster.master.port,
        "admin": cluster.master.admin_port,
        "data": cluster.nodes[0].port,
    }


@pytest.mark.parametrize("port", ["control", "admin", "data"])
def test_fr_050_no_port_minds_bytes_of_another_world(
    cluster: ProcessCluster, tmp_path: Path, port: str
) -> None:
    marker = tmp_path / "unpickled"
    for _, data in hostile.anywhere(marker):
        send(ports(cluster)[port], data)
    assert not marker.exists()


def test_fr_050_the_control_port_minds_no_hostile_frame_before_a_greeting(
    cluster: ProcessCluster, tmp_path: Path
) -> None:
    marker = tmp_path / "unpickled"
    for _, data in hostile.control_frames(marker):
        send(cluster.master.port, data)
    assert not marker.exists()


def test_fr_050_the_control_port_minds_no_hostile_frame_after_a_greeting(
    cluster: ProcessCluster, tmp_path: Path
) -> None:
    marker = tmp_path / "unpickled"
    for what, data in hostile.control_frames(marker):
        with cluster.wire(deadline_s=2.0) as wire, contextlib.suppress(StoreError):
            wire.send_bytes(data)
            wire.frame(deadline_s=0.3)
        assert cluster.master.is_running, what
    assert not marker.exists()


def test_requests_that_make_no_sense_are_answered_with_a_typed_error_and_the_line_stays(
    cluster: ProcessCluster,
) -> None:
    for what, request in hostile.requests_of_strangers():
        with cluster.wire(deadline_s=3.0) as wire:
            with contextlib.suppress(StoreError):
                wire.ask(request)
            space = wire.ask(control.OpenNamespace("default"))
            assert isinstance(space, control.NamespaceRecord), what


def test_the_data_port_minds_no_hostile_frame(cluster: ProcessCluster) -> None:
    for _, data in hostile.data_frames():
        send(cluster.nodes[0].port, data)


def test_the_data_port_minds_no_hostile_request(cluster: ProcessCluster) -> None:
    incarnation = cluster.status().nodes[0].record.segments[0].incarnation
    for _, data in hostile.data_requests(incarnation):
        connection = open_data(cluster.nodes[0].port)
        with contextlib.suppress(OSError):
            connection.settimeout(0.3)
            connection.sendall(data)
            connection.recv(65536)
        connection.close()


def test_the_admin_port_minds_no_hostile_request(cluster: ProcessCluster) -> None:
    for _, data in hostile.http_requests():
        send(cluster.master.admin_port, data)
    assert cluster.admin("/health/live") is not None


@pytest.mark.parametrize("port", ["control", "data"])
def test_a_peer_that_drips_its_greeting_is_cut_off(cluster: ProcessCluster, port: str) -> None:
    """The handshake has 2 s; a byte comes every 0.1 s for as long as the connection stands."""
    with socket.create_connection((HOST, ports(cluster)[port]), timeout=5.0) as connection:
        until_s = time.monotonic() + 20.0
        with contextlib.suppress(OSError):
            for byte in bytes(1000):
                connection.sendall(bytes([byte]))
                connection.settimeout(0.1)
                with contextlib.suppress(TimeoutError):
                    if not connection.recv(100):
                        break
                assert time.monotonic() < until_s, "never cut off"


@pytest.mark.parametrize("port", ["control", "data", "admin", "local"])
def test_a_thousand_idle_connections_keep_nobody_out(cluster: ProcessCluster, port: str) -> None:
    """Where there is a greeting they introduce themselves; then they say nothing."""

    def connect() -> object:
        if port == "control":
            return cluster.wire()
        if port == "data":
            return open_data(cluster.nodes[0].port)
        if port == "admin":
            return socket.create_connection((HOST, cluster.master.admin_port), timeout=5.0)
        with contextlib.ExitStack() as unless_it_connects:
            peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            unless_it_connects.callback(peer.close)
            peer.settimeout(5.0)
            peer.connect(local_path)
            unless_it_connects.pop_all()
        return peer

    local_path = cluster.status().nodes[0].record.local_path
    idle: list[object] = []
    try:
        for _ in range(1000):
            # More than a queue takes come at once: those who do not get in try again, as do those
            # who were cut off because this process stood still between connecting and greeting.
            idle.append(wait_until(connect, 20, ignoring=(OSError, StoreError)))
        for transport in ("tcp", "shm"):
            with Client(cluster.address, transport=transport) as client:
                client.put("among them", b"value", replace=True, deadline_s=5.0)
                assert client.get("among them", deadline_s=5.0) == b"value"
        wait_until(lambda: cluster.admin("/health/live") is not None, 20, ignoring=(OSError,))
    finally:
        for connection in idle:
            connection.close()  # type: ignore[attr-defined]
