"""A master for which etcd is away, again and again, keeps no connection to it."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING

import pytest

from mooncake_master.leadership import parse_location
from mooncake_master.leadership.etcd import EtcdCoordinator
from mooncake_store.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def uncollected() -> Iterator[None]:
    """No circle is found: a master looks for old ones never (``collection.py``)."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
async def test_connections_to_a_silent_etcd_are_closed() -> None:
    ends: list[asyncio.Event] = []

    async def be_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        end = asyncio.Event()
        ends.append(end)
        try:
            while await reader.read(65_536):
                pass
        finally:
            end.set()
            writer.close()

    server = await asyncio.start_server(be_silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    coordinator = EtcdCoordinator(parse_location(f"etcd://127.0.0.1:{port}"), 0.9)
    for _ in range(3):
        with pytest.raises(StoreError):
            await coordinator.read()
    assert ends
    async with asyncio.timeout(30):
        for end in ends:
            await end.wait()
    await coordinator.aclose()
    server.close()
