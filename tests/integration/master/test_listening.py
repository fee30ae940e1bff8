"""Listening sockets on every form of address, and the address that others are told."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

import pytest

from mooncake_master.listening import advertised, advertising_problem, bound_addresses, listen
from mooncake_store.errors import ConfigError
from mooncake_store.testing import free_port
from mooncake_store.wire.address import Address, parse_address

if TYPE_CHECKING:
    from collections.abc import Iterator

WILDCARD = "0.0.0.0"  # noqa: S104 - on free ports, for a moment


@contextlib.contextmanager
def listening(*texts: str, port: int = 0) -> Iterator[list[socket.socket]]:
    sockets = listen([parse_address(text, port) for text in texts], "--bind")
    try:
        yield sockets
    finally:
        for sock in sockets:
            sock.close()


def answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=5.0).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    ("texts", "reached"),
    [
        (["127.0.0.1"], ["127.0.0.1"]),
        (["::1"], ["::1"]),
        (["[::1]:0"], ["::1"]),
        (["localhost"], ["localhost"]),
        ([WILDCARD], ["127.0.0.1"]),
        (["*"], ["127.0.0.1"]),
        (["::"], ["127.0.0.1", "::1"]),
        ([WILDCARD, "::"], ["127.0.0.1", "::1"]),
        (["127.0.0.1", "::1", "localhost"], ["127.0.0.1", "::1"]),
    ],
)
def test_one_port_is_found_for_all_addresses(texts: list[str], reached: list[str]) -> None:
    with listening(*texts) as sockets:
        ports = {address.port for address in bound_addresses(sockets)}
        assert len(ports) == 1
        assert ports != {0}
        assert all(answers(host, *ports) for host in reached)


def test_addresses_have_ports_of_their_own() -> None:
    first, second = free_port(), free_port()
    with listening(f"127.0.0.1:{first}", f"127.0.0.1:{second}") as sockets:
        assert [a.port for a in bound_addresses(sockets)] == [first, second]


def test_connections_inherit_their_options() -> None:
    with listening("127.0.0.1") as (server,):
        server.settimeout(5.0)
        with socket.create_connection(server.getsockname()), server.accept()[0] as connection:
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize("text", ["192.0.2.7", "no-such-host.invalid"])
def test_what_cannot_be_bound_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match=rf"--bind: {text}:0 (is no address|cannot be resolved)"):
        listen([Address(text, 0)], "--bind")


def test_a_taken_port_is_named_and_nothing_stays_open() -> None:
    port = free_port()
    with (
        listening(f"127.0.0.1:{port}"),
        pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"),
    ):
        listen([Address("::1", port), Address("127.0.0.1", port)], "--bind")
    with listening(f"[::1]:{port}"):
        pass


@pytest.mark.parametrize(
    ("given", "bound", "told"),
    [
        ("", [Address("127.0.0.1", 5)], Address("127.0.0.1", 5)),
        ("", [Address("127.0.0.1", 5), Address("10.0.0.1", 6)], Address("10.0.0.1", 6)),
        ("", [Address("::", 5)], Address(socket.gethostname(), 5)),
        ("name", [Address("::", 5)], Address("name", 5)),
        ("name:7", [Address("::", 5)], Address("name", 7)),
        ("fd00::1", [Address("::", 5)], Address("fd00::1", 5)),
    ],
)
def test_others_are_told_the_best_address(given: str, bound: list[Address], told: Address) -> None:
    assert advertised(given, bound) == told


@pytest.mark.parametrize(
    ("told", "bound", "is_problem"),
    [
        ("127.0.0.1", "127.0.0.1", False),
        ("127.0.0.1", WILDCARD, True),
        ("localhost", "10.0.0.1", True),
        (WILDCARD, WILDCARD, True),
        ("::", "::", True),
        ("name", WILDCARD, False),
        ("10.0.0.1", "10.0.0.1", False),
    ],
)
def test_an_address_that_others_cannot_use_is_a_problem(
    told: str,
    bound: str,
    is_problem: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    assert bool(advertising_problem(Address(told, 1), [Address(bound, 1)])) is is_problem
