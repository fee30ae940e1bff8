"""What ``doctor`` tries: an object on every node, read by every way there is, then removed."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from typing import TYPE_CHECKING, Final, NamedTuple

from mooncake_client._cli.blocks import block_bytes
from mooncake_client._cli.findings import bad, is_this_host, note, ok
from mooncake_client._cli.output import about_bytes
from mooncake_client._cli.target import connect, connect_async
from mooncake_store.errors import StoreError
from mooncake_store.limits import CHUNK_BYTES
from mooncake_store.transport.rdma.pyverbs_device import device_names
from mooncake_store.types import NodeState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mooncake_client import Client
    from mooncake_client._cli.findings import Finding
    from mooncake_client._cli.options import ClientSettings
    from mooncake_store.wire.control import ClusterStatus, NodeRecord, NodeStatus

PROBE_BYTES: Final = 2 * CHUNK_BYTES + 1_000
"""Three chunks, the last one cut: single, batched and ranged reads each take another way."""

_START, _LENGTH = CHUNK_BYTES - 10, 20
"""A range across the border of two chunks."""


class _Read(NamedTuple):
    """One way to read the probe.

    Attributes:
        name: What people call it.
        read: Reads it; the bytes, or None for a miss.
        part: Which bytes those are.
    """

    name: str
    read: Callable[[Client, str], bytes | bytearray | StoreError | None]
    part: slice = slice(None)


def _get_into(client: Client, key: str) -> bytearray | None:
    buffer = bytearray(PROBE_BYTES)
    return None if client.get_into(key, buffer) is None else buffer


def _view(client: Client, key: str) -> bytes | None:
    with client.view(key) as payload:
        return None if payload is None else bytes(payload)


_READS: Final = (
    _Read("get", lambda client, key: client.get(key)),
    _Read("get_into", _get_into),
    _Read("batch", lambda client, key: client.get_many([key])[0]),
    _Read(
        "range",
        lambda client, key: client.get(key, start=_START, length=_LENGTH),
        slice(_START, _START + _LENGTH),
    ),
)
_VIEW: Final = _Read("view", _view)


def probe_nodes(settings: ClientSettings, status: ClusterStatus) -> Iterator[Finding]:
    """Put an object on every node that serves, and yield how each way to read it went."""
    for node in sorted(status.nodes, key=lambda node: node.record.name):
        if node.record.state in {NodeState.LIVE, NodeState.SUSPECT}:
            yield from _Probe(settings, node.record).findings()
            if node.stores:
                yield from _probe_disks(settings, node)


def _probe_disks(settings: ClientSettings, node: NodeStatus) -> Iterator[Finding]:
    """Say how the disks of a node fare, put an object on one and read it back from there."""
    name = node.record.name
    for store in node.stores:
        if store.state != "ready":
            yield bad(name, f"the disk {store.path} is {store.state}: {store.reason}")
    if not any(store.state == "ready" for store in node.stores):
        return
    key = f"doctor/{secrets.token_hex(8)}/{name}/disk"
    value = block_bytes(key, PROBE_BYTES)
    with connect(settings) as writer, connect(settings, transport="tcp") as reader:
        try:
            writer.put(key, value, preferred=[name], durable=True)
            info = writer.stat(key)
            disks = [r.node for r in info.replicas if r.tier == "ssd"] if info else []
            if name not in disks:
                where = ", ".join(disks) or "none"
                yield note(name, f"a durable put went to the disk of {where}, not of this node")
            else:
                yield ok(name, f"durable put: {about_bytes(PROBE_BYTES)} are on its disk")
            found = reader.get_from_disk(key)
            if found == value:
                size = about_bytes(len(value))
                yield ok(name, f"read back from disk by another client: right, {size}")
            else:
                what = "a miss" if found is None else "WRONG BYTES"
                yield bad(name, f"read back from disk: {what}")
            writer.remove(key)
            if reader.get_from_disk(key) is not None:
                yield bad(name, "a removed object can still be read from disk")
        except StoreError as error:
            yield bad(name, f"the disk cannot be used: {error}")
            with contextlib.suppress(StoreError):  # The finding above says what is wrong.
                writer.remove(key)


class _Probe:
    """The probe object of one node."""

    def __init__(self, settings: ClientSettings, node: NodeRecord) -> None:
        self._settings = settings
        self._node = node
        self._key = f"doctor/{secrets.token_hex(8)}/{node.name}"
        self._value = block_bytes(self._key, PROBE_BYTES)

    def findings(self) -> Iterator[Finding]:
        """Put, read by every way, remove."""
        with contextlib.ExitStack() as stack:
            client = stack.enter_context(connect(self._settings))
            try:
                client.put(self._key, self._value, preferred=[self._node.name])
                stack.callback(self._remove_quietly, client)
                info = client.stat(self._key)
            except StoreError as error:
                yield bad(self._node.name, f"a put failed: {error}")
                return
            places = [] if info is None else [f"{r.node} ({r.tier})" for r in info.replicas]
            where = ", ".join(places) or "nowhere"
            if info is None or self._node.name not in {r.node for r in info.replicas}:
                yield bad(self._node.name, f"takes no objects now: the probe went to {where}")
                return
            yield ok(self._node.name, f"put: {about_bytes(PROBE_BYTES)} are on {where}")
            paths = self._paths()
            readers = {
                path: stack.enter_context(connect(self._settings, transport=path)) for path in paths
            }
            for path, reader in readers.items():
                yield self._read_over(path, reader)
            yield self._read_async()
            yield self._remove([client, *readers.values()])

    def _paths(self) -> list[str]:
        wanted = self._settings.transport
        if wanted != "auto":
            return [wanted]
        return ["shm", "rdma", "tcp"] if device_names() else ["shm", "tcp"]

    def _read_over(self, path: str, client: Client) -> Finding:
        """Read in every way over one path."""
        reads = (*_READS, _VIEW) if path == "shm" else _READS
        for way in reads:
            try:
                problem = self._problem(way.read(client, self._key), way.part)
            except StoreError as error:
                return self._no_path(path, way.name, error)
            if problem:
                return bad(self._node.name, f"{way.name} over {path}: {problem}")
        names = ", ".join(way.name for way in reads)
        return ok(self._node.name, f"{names}: right, {_origin(client.statistics().bytes_read)}")

    def _no_path(self, path: str, way: str, error: StoreError) -> Finding:
        """Judge a path that did not work at all."""
        if path == "shm" and not is_this_host(self._node.host):
            return note(self._node.name, "is on another host, so not read over shared memory")
        if path == "shm" and not self._node.local_path:
            return note(self._node.name, "offers no shared memory")
        if path == "rdma":
            return note(self._node.name, f"not read over RDMA: {error}")
        hint = "; does it run as another user or in another container?" if path == "shm" else ""
        return bad(self._node.name, f"{way} over {path} failed: {error}{hint}")

    def _read_async(self) -> Finding:
        """Read with the asyncio client, single and batched."""

        async def read() -> tuple[list[object], dict[str, int]]:
            async with connect_async(self._settings) as client:
                found: list[object] = [await client.get(self._key)]
                found += await client.get_many([self._key])
                return found, client.statistics().bytes_read

        try:
            found, moved = asyncio.run(read())
        except StoreError as error:
            return bad(self._node.name, f"the asyncio client failed: {error}")
        problems = [problem for value in found if (problem := self._problem(value, slice(None)))]
        if problems:
            return bad(self._node.name, f"the asyncio client: {problems[0]}")
        return ok(self._node.name, f"asyncio get, batch: right, {_origin(moved)}")

    def _problem(self, found: object, part: slice) -> str:
        """Return what is wrong with what a read returned; empty if nothing is."""
        if found is None:
            return "a miss, though the object is there"
        if isinstance(found, StoreError):
            return str(found)
        return "" if found == self._value[part] else "WRONG BYTES"

    def _remove(self, clients: list[Client]) -> Finding:
        """Remove the probe and make sure that no client gets it any more."""
        try:
            clients[0].remove(self._key)
            left = [client for client in clients if client.get(self._key) is not None]
        except StoreError as error:
            return bad(self._node.name, f"remove failed: {error}")
        if left:
            return bad(self._node.name, "a removed object can still be read")
        return ok(self._node.name, "remove: gone for every reader")

    def _remove_quietly(self, client: Client) -> None:
        # In the end, in case that something went wrong before, which is a finding already.
        with contextlib.suppress(StoreError):
            client.remove(self._key)


def _origin(bytes_read: dict[str, int]) -> str:
    """Say how many bytes came which way."""
    moved = [f"{about_bytes(count)} over {path}" for path, count in sorted(bytes_read.items())]
    return ", ".join(moved) or "no bytes"
