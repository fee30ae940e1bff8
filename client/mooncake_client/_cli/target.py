"""The cluster that a command works on: connecting, describing it, and its use as a block store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mooncake_client._async import AsyncClient
from mooncake_client._results import PutResult
from mooncake_client._sync import Client
from mooncake_store.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_client._cli.options import ClientSettings

_NAME: Final = "mooncake-store command"
_EVICTIONS: Final = "mooncake_master_evicted_replicas_total"


def connect(settings: ClientSettings, *, transport: str | None = None) -> Client:
    """Return a client as the settings say; nothing is opened yet."""
    return Client(
        settings.master,
        namespace=settings.namespace,
        transport=transport or settings.transport,
        deadline_s=settings.deadline_s,
        name=_NAME,
    )


def connect_async(settings: ClientSettings) -> AsyncClient:
    """Return an asyncio client as the settings say; nothing is opened yet."""
    return AsyncClient(
        settings.master,
        namespace=settings.namespace,
        transport=settings.transport,
        deadline_s=settings.deadline_s,
        name=_NAME,
    )


class ClientBlocks:
    """A client as the store of blocks that a replay and a load want."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def match(self, keys: list[str], hold_s: float) -> int:
        """As ``replaying.BlockStore.match``."""
        return self._client.match_prefix(keys, hold_s=hold_s).count

    def fetch(self, keys: list[str], buffers: list[bytearray]) -> list[bool]:
        """As ``replaying.BlockStore.fetch``.

        Raises:
            StoreError: A block is there and could not be read: that is no miss.
        """
        found = []
        for outcome in self._client.get_into_many(keys, buffers):
            if isinstance(outcome, StoreError):
                raise outcome
            found.append(outcome is not None)
        return found

    def put(self, keys: list[str], blocks: list[bytes]) -> list[StoreError | None]:
        """As ``replaying.BlockStore.put``."""
        return self._put(keys, blocks, replace=False)

    def replace(self, keys: list[str], values: list[bytes]) -> list[StoreError | None]:
        """As ``loading.LoadStore.replace``."""
        return self._put(keys, values, replace=True)

    def exists(self, keys: list[str]) -> list[bool]:
        """As ``loading.LoadStore.exists``."""
        return self._client.exists_many(keys)

    def _put(
        self, keys: list[str], values: list[bytes], *, replace: bool
    ) -> list[StoreError | None]:
        items = list(zip(keys, values, strict=True))
        outcomes = self._client.put_many(items, replace=replace)
        return [None if isinstance(outcome, PutResult) else outcome for outcome in outcomes]


@dataclass(frozen=True, slots=True)
class Usage:
    """What clients moved and the cluster evicted, from the start of both.

    Attributes:
        bytes_read: {path: payload bytes fetched}.
        bytes_written: {path: payload bytes written, every copy counted}.
        evictions: Copies evicted by the master, for whomever.
        pool_bytes: What all nodes pool.
    """

    bytes_read: dict[str, int]
    bytes_written: dict[str, int]
    evictions: int
    pool_bytes: int

    @classmethod
    def of(cls, clients: Sequence[Client]) -> Usage:
        """Ask the clients and their cluster."""
        counted = [client.statistics() for client in clients]
        status = clients[0].describe_cluster()
        return cls(
            bytes_read=_sum([statistics.bytes_read for statistics in counted]),
            bytes_written=_sum([statistics.bytes_written for statistics in counted]),
            evictions=status.counters.get(_EVICTIONS, 0),
            pool_bytes=sum(node.capacity_bytes for node in status.nodes),
        )

    def since(self, before: Usage) -> Usage:
        """Return what happened between two moments."""
        return Usage(
            bytes_read=_difference(self.bytes_read, before.bytes_read),
            bytes_written=_difference(self.bytes_written, before.bytes_written),
            evictions=self.evictions - before.evictions,
            pool_bytes=self.pool_bytes,
        )

    @property
    def bytes_by_path(self) -> dict[str, int]:
        """Bytes fetched and written together."""
        return _sum([self.bytes_read, self.bytes_written])


def _sum(counts: Sequence[dict[str, int]]) -> dict[str, int]:
    names = sorted({name for count in counts for name in count})
    return {name: sum(count.get(name, 0) for count in counts) for name in names}


def _difference(after: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    return {name: count - before.get(name, 0) for name, count in after.items()}
