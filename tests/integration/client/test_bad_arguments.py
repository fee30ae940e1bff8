"""Whatever a caller passes by mistake is named as such, and a failed call lets go of everything."""

from __future__ import annotations

import array
import asyncio
import gc
from typing import TYPE_CHECKING

import pytest

from mooncake_client import AsyncClient, Client, ConfigError, InvalidArgument, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LONE = "\ud800"
"""A str that has no encoding."""


@pytest.fixture
def client() -> Iterator[Client]:
    """Return a client whose namespace has 100 bytes under "k"."""
    with Client("local://?dram=16MiB") as client:
        client.put("k", bytes(100))
        yield client


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.get("k", deadline_s="5"),
        lambda client: client.put("k", b"", deadline_s=1j),
        lambda client: list(client.scan(LONE)),
        lambda client: list(client.scan(b"k")),
        lambda client: client.probe("k", probe_id=LONE),
        lambda client: client.put("k", b"", group=LONE),
        lambda client: client.put("k", b"", parent=LONE),
        lambda client: client.put("k", b"", pin=10**400),
        lambda client: client.pin("k", 10**400),
        lambda client: client.put("k", b"", expected_version="0"),
        lambda client: client.put("k", b"", replicas=True),
        lambda client: client.put("k", b"", preferred=None),
        lambda client: client.put("k", b"", preferred=7),
        lambda client: client.put("k", b"", preferred=[7]),
        lambda client: client.put("k", b"", preferred=[LONE]),
        lambda client: client.put("k", b"", preferred=["n"] * 5000),
        lambda client: client.get_many(None),
        lambda client: client.remove_many(7),
        lambda client: client.put_many(None),
        lambda client: client.put_many(7),
        lambda client: client.get_into_many(["k"], [bytearray(9)], ranges=[7]),
        lambda client: client.get_into_many(["k"], [bytearray(9)], ranges=[(1,)]),
        lambda client: client.get_into_many(["k"], [bytearray(9)], ranges=[(0, 1, 2)]),
    ],
)
def test_a_wrong_argument_of_a_call_is_named(
    client: Client, call: Callable[[Client], object]
) -> None:
    with pytest.raises(InvalidArgument):
        call(client)


@pytest.mark.parametrize(
    "options",
    [
        {"name": 7},
        {"name": LONE},
        {"name": "n" * 5000},
        {"manifest": {"dtype": LONE}},
    ],
)
def test_a_wrong_argument_of_a_client_is_named(options: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument):
        Client("127.0.0.1:1", **options)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument):
        AsyncClient("127.0.0.1:1", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [0, -1, None, 1.5, "1", True])
def test_a_client_without_connections_is_refused(count: object) -> None:
    with pytest.raises(InvalidArgument, match="connections_max"):
        Client("127.0.0.1:1", connections_max=count)  # type: ignore[arg-type]


@pytest.mark.parametrize("host", ["h" * 64, "a..b", LONE])
def test_a_host_that_can_be_no_name_is_no_address(host: str) -> None:
    with pytest.raises(ConfigError, match="no name"):
        Client(f"{host}:1")


@pytest.mark.parametrize(
    "call",
    [
        lambda client, memory: client.get_into("k", memory),
        lambda client, memory: client.get_into("k", memory, start=101),
        lambda client, memory: client.get_into_many(["k"], [memory]),
        lambda client, memory: client.put("k", memory, expected_version=1),
        lambda client, memory: client.put("l", memory, replicas=8),
        lambda client, memory: client.put("l", memory, deadline_s=0),
    ],
)
def test_a_failed_call_lets_go_of_the_callers_memory_at_once(
    client: Client, call: Callable[[Client, bytearray], list[object]]
) -> None:
    memory = bytearray(2)
    gc.disable()
    try:
        with pytest.raises(StoreError):
            raise _failure(lambda: call(client, memory))
        memory += b"not possible while a view of it is alive"
    finally:
        gc.enable()


def _failure(call: Callable[[], list[object]]) -> StoreError:
    """Return what a call raises, or what it returns in its list."""
    try:
        (result,) = call()
    except StoreError as error:
        return error.with_traceback(None)
    assert isinstance(result, StoreError)
    return result.with_traceback(None)


def test_a_failure_that_is_kept_with_an_array_can_be_collected(client: Client) -> None:
    kept: list[object] = []
    try:
        client.get_into("k", array.array("d", [1.0]))
    except StoreError as error:
        kept += [error, kept]
    del kept
    gc.collect()


def test_asynchronous_calls_name_wrong_arguments_as_well() -> None:
    async def ask() -> None:
        async with AsyncClient("local://?dram=16MiB") as client:
            with pytest.raises(InvalidArgument):
                await client.get("k", deadline_s="5")  # type: ignore[arg-type]
            with pytest.raises(InvalidArgument):
                [_ async for _ in client.scan(LONE)]

    asyncio.run(ask())
