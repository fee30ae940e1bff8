"""Hostile bytes on both ports: nothing is executed, nobody else notices, memory stays (FR-050)."""

from __future__ import annotations

import itertools
import os
import pickle
import socket
import struct
from typing import TYPE_CHECKING

import pytest

from mooncake_store.limits import MIB
from mooncake_store.testing import MasterProcess, WireClient, seeded, wait_until
from mooncake_store.wire import control, frames

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.processes

GROWTH_MAX = 10 * MIB
HELLO = bytes(frames.encode_frame(1, control.Hello(1, "client", "h", "x"), request_id=1))


class Bomb:
    """Runs a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (self.command,)


def header(size: int, kind: int = 14, request_id: int = 2) -> bytes:
    return frames.HEADER.pack(size, kind, 0, request_id, 1000)


def nested(depth: int) -> bytes:
    body = b"\x94\x00\x01\x90" + b"\x91" * depth + b"\x90"
    return header(len(body)) + body


def hostile_streams(seed: int) -> dict[str, bytes]:
    generator = seeded(seed)
    noise = generator.randbytes(40_000)
    return {
        "nothing": b"",
        "noise": noise,
        "a pickle": pickle.dumps(Bomb("touch /tmp/executed-by-mooncake-store")),
        "a pickle in a frame": HELLO + header(60) + pickle.dumps(Bomb("true"))[:60].ljust(60),
        "a frame of 4 GiB": header((1 << 32) - 1),
        "a frame of 4 GiB after the handshake": HELLO + header((1 << 32) - 1) + noise,
        "the largest frame, never finished": HELLO + header(8 * MIB) + noise,
        "a frame that is cut": HELLO + header(100) + b"\x93\x00",
        "millions of empty keys": HELLO
        + header(8 * MIB)
        + b"\x93\x00\x01\xdd"
        + struct.pack(">I", 8 * MIB - 8)
        + b"\xa0" * (8 * MIB - 8),
        "an array that lies": HELLO + header(8) + b"\x93\x00\x01\xdd\xff\xff\xff\xff",
        "a text that lies": HELLO + header(9) + b"\x93\x00\x01\x91\xdb\xff\xff\xff\xff",
        "deep nesting": HELLO + nested(60_000),
        "a reply that nobody asked for": HELLO + frames.HEADER.pack(1, 14, 3, 9, 0) + b"\x90",
        "a flood of strange kinds": HELLO
        + b"".join(frames.HEADER.pack(0, kind, 0, kind, 0) for kind in range(60, 4000)),
        "an HTTP request": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "TLS": bytes.fromhex("16030100c8010000c40303") + noise[:200],
    }


def throw(port: int, data: bytes) -> None:
    """Send what the other side takes of it, and look at what it says."""
    with socket.create_connection(("127.0.0.1", port), timeout=5.0) as connection:
        connection.settimeout(0.3)
        try:
            connection.sendall(data)
            while connection.recv(65536):
                pass
        except OSError:
            return  # it was cut off, or nothing more came


def is_cut_off(connection: socket.socket, data: bytes) -> bool:
    """Send some more, and say whether the other side has had enough."""
    try:
        connection.sendall(data)
        return not connection.recv(100)
    except TimeoutError:
        return False  # it waits for the rest
    except OSError:
        return True


@pytest.fixture
def witness(master: MasterProcess) -> Iterator[WireClient]:
    """A well-behaved client that is connected all the time and must be served at the end."""
    with WireClient("127.0.0.1", master.port) as wire:
        yield wire
        assert isinstance(wire.ask(control.ListNamespaces()), control.NamespaceList)


@pytest.mark.usefixtures("witness")
@pytest.mark.parametrize("port", ["port", "admin_port"])
def test_hostile_streams_cost_nothing(master: MasterProcess, port: str) -> None:
    streams = hostile_streams(1)
    for data in streams.values():  # once, so that code paths are warm
        throw(getattr(master, port), data)
    before = master.memory_bytes()
    for data in hostile_streams(2).values():
        throw(getattr(master, port), data)
    assert master.memory_bytes() - before < GROWTH_MAX
    assert master.is_running
    assert not os.path.exists("/tmp/executed-by-mooncake-store")  # noqa: PTH110, S108 - the bomb's


@pytest.mark.usefixtures("witness")
def test_random_frames_cost_nothing(master: MasterProcess) -> None:
    generator = seeded(7)
    before = master.memory_bytes()
    for _ in range(200):
        body = generator.randbytes(generator.randrange(0, 300))
        kind = generator.choice([*control.REQUESTS, generator.randrange(65_536)])
        throw_quickly(master.port, HELLO + header(len(body), kind) + body)
    assert master.memory_bytes() - before < GROWTH_MAX


def throw_quickly(port: int, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=5.0) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)


@pytest.mark.usefixtures("witness")
def test_a_thousand_idle_connections_cost_little(master: MasterProcess) -> None:
    before = master.memory_bytes()
    idle = []
    try:
        for _ in range(1000):
            connection = socket.create_connection(("127.0.0.1", master.port), timeout=5.0)
            connection.sendall(HELLO)
            idle.append(connection)
        for connection in idle:
            assert connection.recv(1)
        assert master.memory_bytes() - before < GROWTH_MAX
    finally:
        for connection in idle:
            connection.close()


@pytest.mark.usefixtures("witness")
def test_a_thousand_silent_strangers_are_dropped(master: MasterProcess) -> None:
    before = master.memory_bytes()
    open_before = master.open_files()
    strangers = [
        socket.create_connection(("127.0.0.1", master.port), timeout=5.0) for _ in range(1000)
    ]
    try:
        assert master.memory_bytes() - before < GROWTH_MAX
        wait_until(lambda: master.open_files() <= open_before + 10, 30.0)
    finally:
        for connection in strangers:
            connection.close()


@pytest.mark.usefixtures("witness")
def test_a_stranger_who_drips_is_dropped(master: MasterProcess) -> None:
    with socket.create_connection(("127.0.0.1", master.port), timeout=5.0) as connection:
        connection.settimeout(0.1)
        drops = itertools.cycle(HELLO[at : at + 1] for at in range(8))
        wait_until(lambda: is_cut_off(connection, next(drops)), 30.0)


@pytest.mark.usefixtures("witness")
def test_a_client_that_does_not_read_its_replies_is_slowed_and_costs_little(
    master: MasterProcess,
) -> None:
    keys = [f"absent-{number}-" + "k" * 2000 for number in range(1000)]
    with WireClient("127.0.0.1", master.port) as greedy:
        space = greedy.ask(control.OpenNamespace("greedy"))
        ask = frames.encode_frame(
            14, control.Exists(space.slot, space.epoch, keys[:4]), request_id=7, deadline_ms=1000
        )
        before = master.memory_bytes()
        greedy.socket.settimeout(2.0)
        sent = 0
        try:
            for _ in range(20_000):
                greedy.socket.sendall(ask)
                sent += len(ask)
        except OSError:
            pass  # it takes no more from us
        assert master.memory_bytes() - before < GROWTH_MAX


def test_a_head_that_drips_on_the_admin_port_is_cut_off(master: MasterProcess) -> None:
    with socket.create_connection(("127.0.0.1", master.admin_port), timeout=5.0) as connection:
        connection.sendall(b"GET /health/live HTTP/1.1\r\n")
        connection.settimeout(0.5)
        wait_until(lambda: is_cut_off(connection, b"X: y\r\n"), 60.0)


def test_connections_to_the_admin_port_are_limited(master: MasterProcess) -> None:
    before = master.memory_bytes()
    connections = [
        socket.create_connection(("127.0.0.1", master.admin_port), timeout=5.0) for _ in range(600)
    ]
    try:
        wait_until(lambda: sum(_is_over(each) for each in connections) >= 300, 30.0)
        assert master.memory_bytes() - before < GROWTH_MAX
    finally:
        for connection in connections:
            connection.close()


def _is_over(connection: socket.socket) -> bool:
    connection.settimeout(0.0)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
