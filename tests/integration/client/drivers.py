"""Both clients behind one face, so that one suite proves that they do the same."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any, Self

from mooncake_client import AsyncClient, Client
from mooncake_store.testing.verbs import has_devices

if TYPE_CHECKING:
    from collections.abc import Iterator

NETWORK_DRIVERS = ["sync-tcp", "async-tcp", "sync-shm", "async-shm"]
"""Clients of processes; over RDMA as well where this host has a device."""

if has_devices():
    NETWORK_DRIVERS += ["sync-rdma", "async-rdma"]


class Facade:
    """An ``AsyncClient`` that is called like a ``Client``, on an event loop of its own."""

    def __init__(self, address: str, **options: Any) -> None:  # noqa: ANN401 - passed on
        self._runner = asyncio.Runner()
        self._is_closed = False
        self._client = AsyncClient(address, **options)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - of any call
        call = getattr(self._client, name)

        def run(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            result = call(*args, **kwargs)
            return self._runner.run(_awaited(result)) if inspect.isawaitable(result) else result

        return run

    def scan(self, *args: Any, **kwargs: Any) -> Iterator[Any]:  # noqa: ANN401
        """Iterate as ``Client.scan``."""
        found = self._client.scan(*args, **kwargs)
        while True:
            try:
                yield self._runner.run(_awaited(anext(found)))
            except StopAsyncIteration:
                return

    def view(self, *args: Any, **kwargs: Any) -> Block:  # noqa: ANN401
        """Look as ``Client.view``."""
        return Block(self._runner, self._client.view(*args, **kwargs))

    def reserve(self, *args: Any, **kwargs: Any) -> Block:  # noqa: ANN401
        """Reserve as ``Client.reserve``."""
        return Block(self._runner, self._client.reserve(*args, **kwargs))

    def close(self) -> None:
        """Close as ``Client.close``."""
        if not self._is_closed:
            self._is_closed = True
            self._runner.run(self._client.aclose())
            self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Block:
    """An asynchronous context manager as a plain one."""

    def __init__(self, runner: asyncio.Runner, block: Any) -> None:  # noqa: ANN401
        self._runner = runner
        self._block = block

    def __enter__(self) -> Any:  # noqa: ANN401
        return self._runner.run(self._block.__aenter__())

    def __exit__(self, *error: object) -> None:
        self._runner.run(self._block.__aexit__(*error))


async def _awaited(result: Any) -> Any:  # noqa: ANN401
    return await result


FACES: dict[str, Any] = {"sync": Client, "async": Facade}
