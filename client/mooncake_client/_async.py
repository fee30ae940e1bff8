"""The client for asyncio: the same calls as coroutines, over the same core."""

from __future__ import annotations

import asyncio
import os
import time
import weakref
from typing import TYPE_CHECKING, Self, TypeVar

from mooncake_client import _arguments as arguments
from mooncake_client import _calls as calls
from mooncake_client._address import Local, parse_cluster
from mooncake_client._arguments import Hints
from mooncake_client._async_backend import AsyncEmbeddedBackend, AsyncNetworkBackend
from mooncake_client._async_opened import AsyncReservation, AsyncViewContext
from mooncake_client._core import asking, session
from mooncake_client._core.cluster import Cluster
from mooncake_client._core.locations import ENTRIES_MAX
from mooncake_client._embedded import EmbeddedCluster
from mooncake_client._line import CallDeadline
from mooncake_client._memory import registrable
from mooncake_client._rdma import Fabric, RegisteredMemory
from mooncake_store import limits
from mooncake_store.errors import Closed, InvalidArgument
from mooncake_store.fingerprint import check_key, check_namespace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
    from types import TracebackType

    from mooncake_client._arguments import Items, PinArgument
    from mooncake_client._async_backend import AsyncBackend
    from mooncake_client._core.effects import Operation
    from mooncake_client._memory import Buffer, Value
    from mooncake_client._results import (
        ObjectInfo,
        PrefixMatch,
        ProbeResult,
        PutResult,
        Statistics,
        WhyResult,
    )
    from mooncake_store.errors import StoreError
    from mooncake_store.types import MissReason
    from mooncake_store.wire.control import ClusterStatus, DrainStatus, NamespaceRecord

R = TypeVar("R")

_clock = time.monotonic


class AsyncClient:
    """A client of one namespace of a cluster, for any number of coroutines of one event loop.

    Nothing is opened before the first call. A cancelled call leaves the caller's buffers alone from
    then on; a cancelled put is given up. A forked child is refused: its event loop is gone.
    """

    def __init__(  # noqa: PLR0913 - options are keyword-only
        self,
        address: str,
        *,
        namespace: str = "default",
        manifest: Mapping[str, str] | None = None,
        transport: str = "auto",
        deadline_s: float = limits.DEADLINE_S_DEFAULT,
        location_cache: bool = True,
        rdma_queue_pairs: int = 0,
        name: str = "",
    ) -> None:
        """Say where the cluster is and what is wanted of it.

        Args:
            address: ``host:port`` of the master, several with commas between them, or
                ``local://?dram=1GiB`` for a cluster inside this process.
            namespace: Who shares with whom.
            manifest: What the bytes of the namespace mean (model, revision, dtype ...). One that
                differs from what the namespace was opened with first is refused.
            transport: ``auto``, or only ``tcp``, ``rdma`` or ``shm`` (nodes of this host).
            deadline_s: For calls that name none.
            location_cache: Keep leased locations, so that another read needs no master.
            rdma_queue_pairs: Over how many a large transfer from or to registered memory is spread;
                0: one for each near device.
            name: For the master's logs; the process id by default.

        Raises:
            ConfigError: The address or the transport is none.
            InvalidArgument: Another argument is wrong.
        """
        where = parse_cluster(address)
        kind = arguments.check_transport(transport)
        self._deadline_s = arguments.check_seconds(deadline_s, "deadline_s")
        pairs = arguments.check_queue_pairs(rdma_queue_pairs)
        name = arguments.check_client_name(name)
        self._session = session.Session(
            _clock,
            check_namespace(namespace),
            arguments.check_manifest(manifest),
            cluster=Cluster(
                shared=kind in {"auto", "shm"},
                network=kind != "shm",
                embedded=isinstance(where, Local),
            ),
            locations_max=ENTRIES_MAX if location_cache else 0,
        )
        self._counters = self._session.counters
        self._is_closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._backend: AsyncBackend
        if isinstance(where, Local):
            self._backend = AsyncEmbeddedBackend(self._session, EmbeddedCluster(where.dram_bytes))
        else:
            name = name or f"python asyncio client {os.getpid()}"
            self._backend = AsyncNetworkBackend(self._session, where, name, Fabric(kind, pairs))
        _clients.add(self)

    # --- one object -----------------------------------------------------------------------------

    async def put(  # noqa: PLR0913 - options are keyword-only
        self,
        key: str,
        value: Value,
        *,
        replace: bool = False,
        replicas: int = 1,
        pin: PinArgument = None,
        group: str = "",
        parent: str = "",
        expected_version: int | None = None,
        preferred: Sequence[str] = (),
        durable: bool = False,
        deadline_s: float | None = None,
    ) -> PutResult:
        """Store an object. See docs/reference/python-api.md for every argument."""
        options = arguments.put_options(
            replace=replace,
            replicas=replicas,
            pin=pin,
            preferred=preferred,
            durable=durable,
            expected_version=expected_version,
        )
        hints = Hints(group, parent, expected_version)
        return await self._run(calls.put(self._session, key, value, options, hints), deadline_s)

    async def get(
        self,
        key: str,
        *,
        start: int = 0,
        length: int | None = None,
        verify: bool = True,
        wait_s: float = 0.0,
        deadline_s: float | None = None,
    ) -> bytes | None:
        """Return an object's bytes, or None if there is none."""
        operation = calls.get(self._session, key, start, length, verify=verify, wait_s=wait_s)
        return await self._run(operation, deadline_s)

    async def get_into(  # noqa: PLR0913 - options are keyword-only
        self,
        key: str,
        buffer: Buffer,
        *,
        start: int = 0,
        length: int | None = None,
        verify: bool = True,
        wait_s: float = 0.0,
        deadline_s: float | None = None,
    ) -> int | None:
        """Read an object into the caller's memory; return its bytes, or None if there is none."""
        operation = calls.get_into(
            self._session, key, buffer, start, length, verify=verify, wait_s=wait_s
        )
        return await self._run(operation, deadline_s)

    def view(
        self, key: str, *, verify: bool = True, deadline_s: float | None = None
    ) -> AsyncViewContext:
        """Look at an object where it lies: ``async with client.view(key) as data``."""
        return AsyncViewContext(self, check_key(key), verify=verify, deadline_s=deadline_s)

    def reserve(  # noqa: PLR0913 - options are keyword-only
        self,
        key: str,
        length: int,
        *,
        replace: bool = False,
        replicas: int = 1,
        pin: PinArgument = None,
        group: str = "",
        parent: str = "",
        expected_version: int | None = None,
        preferred: Sequence[str] = (),
        durable: bool = False,
        deadline_s: float | None = None,
    ) -> AsyncReservation:
        """Fill an object in place: ``async with client.reserve(key, length) as room``."""
        options = arguments.put_options(
            replace=replace,
            replicas=replicas,
            pin=pin,
            preferred=preferred,
            durable=durable,
            expected_version=expected_version,
        )
        hints = Hints(group, parent, expected_version)
        operation = calls.reserve(self._session, key, length, options, hints)
        return AsyncReservation(self, operation, deadline_s)

    async def get_from_disk(self, key: str, *, deadline_s: float | None = None) -> bytes | None:
        """Return an object's bytes from a copy on a disk; None if there is no such copy."""
        return await self._run(calls.get_from_disk(self._session, key), deadline_s)

    async def exists(self, key: str, *, deadline_s: float | None = None) -> bool:
        """Return whether an object can be read now; leaves no trace."""
        return await self._run(calls.exists(self._session, key), deadline_s)

    async def probe(
        self,
        key: str,
        *,
        hold_s: float = 0.0,
        probe_id: str = "",
        deadline_s: float | None = None,
    ) -> ProbeResult:
        """Return what a get would find; with ``hold_s``, keep it from eviction for that time."""
        found = await self.probe_many(
            [key], hold_s=hold_s, probe_id=probe_id, deadline_s=deadline_s
        )
        return found[0]

    async def remove(self, key: str, *, deadline_s: float | None = None) -> bool:
        """Remove an object; no reader gets it any more. Return whether it was there."""
        return (await self.remove_many([key], deadline_s=deadline_s))[0]

    async def stat(self, key: str, *, deadline_s: float | None = None) -> ObjectInfo | None:
        """Describe an object; None if there is none."""
        return (await self.stat_many([key], deadline_s=deadline_s))[0]

    async def pin(
        self, key: str, pin: PinArgument = "hard", *, deadline_s: float | None = None
    ) -> bool:
        """Protect an object from eviction; return whether it is there."""
        return await self._run(calls.set_pin(self._session, key, pin), deadline_s)

    async def unpin(self, key: str, *, deadline_s: float | None = None) -> bool:
        """End the protection of an object; return whether it is there."""
        return await self._run(calls.set_pin(self._session, key, None), deadline_s)

    async def why(self, key: str, *, deadline_s: float | None = None) -> WhyResult:
        """Return why an object cannot be read now."""
        return await self._run(calls.why(self._session, key), deadline_s)

    def last_miss(self, key: str) -> MissReason | None:
        """Return why this client missed an object last, as the master said then; asks nobody."""
        return self._session.misses.reason(key)

    # --- many objects ---------------------------------------------------------------------------

    async def put_many(  # noqa: PLR0913 - options are keyword-only
        self,
        items: Items,
        *,
        replace: bool = False,
        replicas: int = 1,
        pin: PinArgument = None,
        preferred: Sequence[str] = (),
        durable: bool = False,
        deadline_s: float | None = None,
    ) -> list[PutResult | StoreError]:
        """Store many objects; one result or error each, in the order of ``items``."""
        options = arguments.put_options(
            replace=replace, replicas=replicas, pin=pin, preferred=preferred, durable=durable
        )
        return await self._run(calls.put_many(self._session, items, options), deadline_s)

    async def put_together(  # noqa: PLR0913 - options are keyword-only
        self,
        items: Items,
        *,
        replace: bool = False,
        replicas: int = 1,
        pin: PinArgument = None,
        preferred: Sequence[str] = (),
        durable: bool = False,
        deadline_s: float | None = None,
    ) -> list[PutResult]:
        """Store objects that become readable all at once, or not at all."""
        options = arguments.put_options(
            replace=replace,
            replicas=replicas,
            pin=pin,
            preferred=preferred,
            durable=durable,
            together=True,
        )
        return await self._run(calls.put_together(self._session, items, options), deadline_s)

    async def get_many(
        self,
        keys: Iterable[str],
        *,
        verify: bool = True,
        wait_s: float = 0.0,
        deadline_s: float | None = None,
    ) -> list[bytes | StoreError | None]:
        """Return the bytes of many objects: bytes, None or an error each, in order."""
        operation = calls.get_many(self._session, keys, verify=verify, wait_s=wait_s)
        return await self._run(operation, deadline_s)

    async def get_into_many(
        self,
        keys: Iterable[str],
        buffers: Sequence[Buffer],
        *,
        ranges: Sequence[tuple[int, int | None]] | None = None,
        verify: bool = True,
        wait_s: float = 0.0,
        deadline_s: float | None = None,
    ) -> list[int | StoreError | None]:
        """Read many objects into the caller's memory: bytes read, None or an error each."""
        operation = calls.get_into_many(
            self._session, keys, buffers, ranges, verify=verify, wait_s=wait_s
        )
        return await self._run(operation, deadline_s)

    async def exists_many(
        self, keys: Iterable[str], *, deadline_s: float | None = None
    ) -> list[bool]:
        """Return which objects can be read now; leaves no trace."""
        return await self._run(calls.exists_many(self._session, keys), deadline_s)

    async def probe_many(
        self,
        keys: Iterable[str],
        *,
        hold_s: float = 0.0,
        probe_id: str = "",
        deadline_s: float | None = None,
    ) -> list[ProbeResult]:
        """Return what a get of each key would find."""
        operation = calls.probe_many(self._session, keys, hold_s, probe_id)
        return await self._run(operation, deadline_s)

    async def remove_many(
        self, keys: Iterable[str], *, deadline_s: float | None = None
    ) -> list[bool]:
        """Remove objects; return which were there."""
        return await self._run(calls.remove_many(self._session, keys), deadline_s)

    async def stat_many(
        self, keys: Iterable[str], *, deadline_s: float | None = None
    ) -> list[ObjectInfo | None]:
        """Describe objects; None for those that are not there."""
        return await self._run(calls.stat_many(self._session, keys), deadline_s)

    async def match_prefix(
        self,
        keys: Iterable[str],
        *,
        hold_s: float = 0.0,
        probe_id: str = "",
        deadline_s: float | None = None,
    ) -> PrefixMatch:
        """Return how many leading keys of a chain can be read; they are held for ``hold_s``."""
        operation = calls.match_prefix(self._session, keys, hold_s, probe_id)
        return await self._run(operation, deadline_s)

    async def scan(
        self, prefix: str = "", *, deadline_s: float | None = None
    ) -> AsyncIterator[ObjectInfo]:
        """Iterate over the objects whose keys begin with ``prefix``; the deadline is a page's."""
        cursor = ""
        while True:
            operation = calls.scan_page(self._session, prefix, cursor)
            found, cursor = await self._run(operation, deadline_s)
            for info in found:
                yield info
            if not cursor:
                return

    # --- the namespace and the client -----------------------------------------------------------

    async def clear(self, *, deadline_s: float | None = None) -> None:
        """Make everything in the namespace unreadable, at once and for good."""
        await self._run(session.clear_namespace(self._session), deadline_s)

    async def reopen(self, *, deadline_s: float | None = None) -> None:
        """Go on with what the namespace holds now, after somebody else has cleared it."""
        await self._run(session.reopen_namespace(self._session), deadline_s)

    async def describe_cluster(self, *, deadline_s: float | None = None) -> ClusterStatus:
        """Return the master's account of the nodes and of itself."""
        return await self._run(asking.describe_cluster(self._session), deadline_s)

    async def drain(
        self, node: str, timeout_s: float, *, deadline_s: float | None = None
    ) -> DrainStatus:
        """Begin to take a node out of use; answers at once, `describe_drain` says how far it is.

        The node gets no new objects from now on, and what it alone holds is copied to others.
        A drain that is under way, or over, begins anew.

        Args:
            node: Its name.
            timeout_s: Time after which no more is copied; the node gets nothing new after that
                either, until `undrain`.
            deadline_s: Of this call.

        Raises:
            UnknownNode: There is no node of that name.
        """
        arguments.check_node(node)
        limit_s = arguments.check_seconds(timeout_s, "timeout_s")
        return await self._run(asking.drain(self._session, node, limit_s), deadline_s)

    async def describe_drain(self, node: str, *, deadline_s: float | None = None) -> DrainStatus:
        """Return how far the drain of a node is.

        Raises:
            UnknownNode: There is no node of that name.
        """
        arguments.check_node(node)
        return await self._run(asking.describe_drain(self._session, node), deadline_s)

    async def undrain(self, node: str, *, deadline_s: float | None = None) -> DrainStatus:
        """End the drain of a node, or take back one that is over: it gets new objects again.

        Raises:
            UnknownNode: There is no node of that name.
        """
        arguments.check_node(node)
        return await self._run(asking.undrain(self._session, node), deadline_s)

    async def namespaces(self, *, deadline_s: float | None = None) -> list[NamespaceRecord]:
        """Return all namespaces of the cluster."""
        return list(await self._run(asking.list_namespaces(self._session), deadline_s))

    def forget_locations(self) -> None:
        """Have the next read of every key ask the master; only measurements need it."""
        self._session.locations.clear()

    def register(self, buffer: Value) -> RegisteredMemory:
        """Have RDMA read into and write from a buffer without a copy; close what is returned.

        Memory of a GPU has to be registered before it can be read into. See docs/guides/rdma.md.
        """
        return self._backend.register(registrable(buffer))

    def statistics(self) -> Statistics:
        """Return the client's counters."""
        return self._counters.snapshot()

    async def aclose(self) -> None:
        """Release connections and mappings. Idempotent; calls under way end with an error."""
        self._is_closed = True
        self._session.locations.clear()
        await self._backend.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open"
        return f"<mooncake_client.AsyncClient namespace={self._session.name!r} {state}>"

    # --- inside ---------------------------------------------------------------------------------

    async def _run(self, operation: Operation[R], deadline_s: float | None) -> R:
        if self._is_closed:
            raise Closed("the client was closed")
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None:
                raise InvalidArgument("an AsyncClient is used by the event loop that used it first")
            self._loop = loop
        return await self._backend.run(operation, self._deadline(deadline_s))

    def _deadline(self, deadline_s: float | None) -> CallDeadline:
        if deadline_s is None:
            return CallDeadline(self._deadline_s, is_explicit=False)
        return CallDeadline(deadline_s, is_explicit=True)

    def _after_fork(self) -> None:
        self._session.locations.clear()
        self._backend.after_fork()


_clients: weakref.WeakSet[AsyncClient] = weakref.WeakSet()


def _after_fork() -> None:
    for client in list(_clients):
        client._after_fork()  # noqa: SLF001 - same module


os.register_at_fork(after_in_child=_after_fork)
