"""The fault proxy does to the bytes what it was told, for real sockets."""

from __future__ import annotations

import contextlib
import errno
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from mooncake_store.testing import (
    BlackHole,
    CloseAfter,
    Cut,
    Direction,
    DropAfter,
    FaultProxy,
    Flip,
    Stall,
    Throttle,
    free_port,
    seeded,
    wait_until,
)
from mooncake_store.testing import proxy as proxies

if TYPE_CHECKING:
    from collections.abc import Iterator


class Echo:
    """A server that sends back what it gets."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.ended = 0
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(65536):
                    connection.sendall(data)
            except OSError:
                pass
        self.ended += 1

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # Wakes the thread in accept.
        self._listener.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[FaultProxy]:
    with FaultProxy("127.0.0.1", echo.port) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: FaultProxy) -> Iterator[socket.socket]:
    with socket.create_connection((proxy.host, proxy.port), timeout=10) as client:
        ask(client, b"hello")
        yield client


def ask(client: socket.socket, data: bytes) -> None:
    client.sendall(data)
    assert receive(client, len(data)) == data


def receive(client: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = client.recv(count - len(parts))
        if not part:
            break
        parts += part
    return bytes(parts)


def nothing_comes(client: socket.socket) -> bool:
    client.settimeout(0.1)
    try:
        return client.recv(1) == b"never equal"
    except TimeoutError:
        return True
    finally:
        client.settimeout(10)


def test_bytes_pass_unchanged(client: socket.socket, proxy: FaultProxy) -> None:
    data = seeded(1).randbytes(2_000_000)
    sender = threading.Thread(target=client.sendall, args=(data,))
    sender.start()
    assert receive(client, len(data)) == data
    sender.join()
    wait_until(lambda: proxy.passed_bytes() == 2 * (len(data) + 5), 30)


def test_an_end_passes_on(client: socket.socket, proxy: FaultProxy, echo: Echo) -> None:
    client.sendall(b"last")
    client.shutdown(socket.SHUT_WR)
    assert receive(client, 100) == b"last"
    wait_until(lambda: echo.ended == 1, 30)
    wait_until(lambda: proxy.connections() == 0, 30)


def test_a_cut_resets_connections_and_refuses_new_ones(
    client: socket.socket, proxy: FaultProxy
) -> None:
    proxy.set(Cut())
    with pytest.raises(ConnectionError):
        client.recv(1)
    assert_resets(proxy)
    proxy.heal()
    with socket.create_connection((proxy.host, proxy.port), timeout=10) as third:
        ask(third, b"again")


def assert_resets(proxy: FaultProxy) -> None:
    with (
        contextlib.suppress(ConnectionError),
        socket.create_connection((proxy.host, proxy.port), timeout=10) as connection,
    ):
        assert connection.recv(1) == b""


def test_a_stalled_direction_takes_nothing_and_loses_nothing(
    client: socket.socket, proxy: FaultProxy
) -> None:
    proxy.set(Stall(), Direction.DOWN)
    client.sendall(b"patience")
    assert nothing_comes(client)
    proxy.heal()
    assert receive(client, 8) == b"patience"


def test_a_stalled_sender_feels_it(client: socket.socket, proxy: FaultProxy) -> None:
    proxy.set(Stall(), Direction.UP)
    client.settimeout(0.2)
    with pytest.raises(TimeoutError):
        client.sendall(bytes(64 << 20))


def test_a_black_hole_takes_everything_and_gives_nothing(
    client: socket.socket, proxy: FaultProxy
) -> None:
    proxy.set(BlackHole(), Direction.UP)
    client.sendall(bytes(8 << 20))
    wait_until(lambda: proxy.swallowed_bytes(Direction.UP) == 8 << 20, 30)
    proxy.heal()
    ask(client, b"after")


def test_a_throttle_bounds_the_rate(client: socket.socket, proxy: FaultProxy) -> None:
    proxy.set(Throttle(bytes_per_s=100_000), Direction.UP)
    begin_s = time.monotonic()
    ask(client, bytes(30_000))
    assert time.monotonic() - begin_s > 0.2
    proxy.heal()
    ask(client, bytes(30_000))


def test_a_very_slow_direction_still_moves(client: socket.socket, proxy: FaultProxy) -> None:
    proxy.set(Throttle(bytes_per_s=20), Direction.DOWN)
    ask(client, b"drip")


def test_drop_after_swallows_the_rest(client: socket.socket, proxy: FaultProxy) -> None:
    proxy.set(DropAfter(3), Direction.UP)
    client.sendall(b"abcdef")
    assert receive(client, 3) == b"abc"
    assert nothing_comes(client)


def test_close_after_ends_in_the_middle(client: socket.socket, proxy: FaultProxy) -> None:
    proxy.set(CloseAfter(3), Direction.UP)
    client.sendall(b"abcdef")
    got = bytearray()
    with contextlib.suppress(ConnectionError):
        while part := client.recv(10):
            got += part
    assert b"abc".startswith(bytes(got))
    wait_until(lambda: proxy.connections() == 0, 30)


def test_a_flipped_bit_is_one_bit(client: socket.socket, proxy: FaultProxy) -> None:
    proxy.set(Flip(2), Direction.UP)
    client.sendall(b"\0" * 8)
    assert receive(client, 8) == b"\0\0\1\0\0\0\0\0"
    ask(client, b"\0" * 8)


def test_open_connections_can_be_dropped(client: socket.socket, proxy: FaultProxy) -> None:
    proxy.drop_connections()
    with pytest.raises(ConnectionError):
        client.recv(1)
    with socket.create_connection((proxy.host, proxy.port), timeout=10) as second:
        ask(second, b"fine")


def test_new_connections_can_go_elsewhere(client: socket.socket, proxy: FaultProxy) -> None:
    other = Echo()
    proxy.retarget("127.0.0.1", other.port)
    ask(client, b"old")
    with socket.create_connection((proxy.host, proxy.port), timeout=10) as second:
        ask(second, b"new")
    wait_until(lambda: other.ended == 1, 30)
    other.close()


def test_nobody_behind_the_proxy_is_a_reset() -> None:
    with FaultProxy("127.0.0.1", free_port()) as proxy:
        assert_resets(proxy)


def test_a_connection_that_cannot_go_on_is_reset_and_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that is lost is closed by the collector, which warns in the middle of another test."""
    lost: list[object] = []

    def refuse(target: tuple[str, int]) -> socket.socket:
        raise OSError(errno.EADDRNOTAVAIL, "connect", target)

    monkeypatch.setattr(proxies, "begin_connection", refuse)
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    with FaultProxy("127.0.0.1", free_port()) as proxy:
        assert_resets(proxy)
    assert not lost


def test_closing_twice_is_harmless(proxy: FaultProxy) -> None:
    proxy.close()
    proxy.close()


def test_a_port_is_given_once() -> None:
    ports = [free_port() for _ in range(20)]
    assert len(set(ports)) == 20
