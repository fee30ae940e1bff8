"""Members of an etcd cluster, asked one after the other."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from mooncake_store.errors import (
    DeadlineExceeded,
    ProtocolError,
    StoreError,
    Unreachable,
    without_frames,
)

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # It would write to stderr by itself.

import aetcd  # type: ignore[import-untyped] # it has no annotations that are exported
from aetcd import exceptions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mooncake_master.leadership.location import Location
    from mooncake_store.wire.address import Address

T = TypeVar("T")

ASKED_S_MAX: Final = 1.0
"""Time for one member to answer. Smaller: a member that writes to a slow disk counts as gone.
Larger: finding one that answers takes longer than a lease."""

ANSWER_BYTES_MAX: Final = 4 << 20

_CHANNEL: Final = {
    "grpc.enable_http_proxy": 0,
    "grpc.use_local_subchannel_pool": 1,
    "grpc.initial_reconnect_backoff_ms": 100,
    "grpc.min_reconnect_backoff_ms": 100,
    "grpc.max_reconnect_backoff_ms": 500,
    "grpc.max_receive_message_length": ANSWER_BYTES_MAX,
}


class EtcdMembers:
    """Connections to the members of one etcd; one that did not answer is asked last from then on.

    For one event loop; for one caller at a time.
    """

    def __init__(self, location: Location, lease_s: float) -> None:
        """Prepare; connections are made when they are used.

        Args:
            location: Where etcd is.
            lease_s: Length of the leader's lease; a third of it is the most that one member is
                waited for.
        """
        self._endpoints = list(location.endpoints)
        self._clients: dict[Address, Any] = {}
        self._asked_s = min(ASKED_S_MAX, lease_s / 3)

    async def ask(self, question: Callable[[Any], Awaitable[T]]) -> T:
        """Ask one member after the other until one answers.

        Raises:
            Unreachable, DeadlineExceeded: None did; it may have been carried out all the same.
        """
        problem: StoreError | None = None
        for endpoint in list(self._endpoints):
            try:
                return await self._ask_one(endpoint, question)
            except (Unreachable, DeadlineExceeded) as error:
                problem = without_frames(error)
                self._endpoints.remove(endpoint)
                self._endpoints.append(endpoint)
        assert problem is not None
        try:
            raise problem
        finally:
            del problem  # It holds this frame now.

    async def aclose(self) -> None:
        """Close the connections. Idempotent."""
        for endpoint in list(self._clients):
            await self._drop(endpoint)

    async def _ask_one(self, endpoint: Address, question: Callable[[Any], Awaitable[T]]) -> T:
        client = self._clients.get(endpoint)
        if client is None:
            client = self._clients[endpoint] = aetcd.Client(
                endpoint.host, endpoint.port, timeout=self._asked_s, options=_CHANNEL
            )
        try:
            async with asyncio.timeout(2 * self._asked_s):
                return await question(client)
        except (exceptions.ConnectionTimeoutError, TimeoutError) as error:
            await self._drop(endpoint)
            text = f"etcd at {endpoint} does not answer in {self._asked_s:.1f} s"
            raise DeadlineExceeded(text, node=str(endpoint)) from error
        except exceptions.ClientError as error:
            await self._drop(endpoint)
            words = str(error).rpartition(": ")[2]  # of a chain of layers, each with its own
            raise Unreachable(f"etcd at {endpoint}: {words}", node=str(endpoint)) from error

    async def _drop(self, endpoint: Address) -> None:
        """Close a connection: one that fell silent may stay so after the network is well again."""
        client = self._clients.pop(endpoint, None)
        if client is not None:
            with contextlib.suppress(exceptions.ClientError, TimeoutError):
                await client.close()


def encode(value: msgspec.Struct) -> bytes:
    """Return what is kept under a key: JSON, so that operators can read it with etcdctl."""
    return msgspec.json.encode(value)


def decode(found: list[tuple[bytes, Any]], kind: type[T]) -> T | None:
    """Read the value of a key that may not be there.

    Raises:
        ProtocolError: There is something else under it.
    """
    if not found:
        return None
    try:
        return msgspec.json.decode(found[0][0], type=kind)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"etcd holds no {kind.__name__} of ours: {error}") from error
