"""The data protocol by hand, to do to nodes what no client of ours would."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from mooncake_store import extent, limits
from mooncake_store.extent import Identity, Names
from mooncake_store.fingerprint import fingerprint
from mooncake_store.wire import control, data
from mooncake_store.wire.data import Operation

if TYPE_CHECKING:
    from mooncake_client import Client
    from mooncake_store.testing import WireClient

HOST = "127.0.0.1"


def open_data(port: int, *, deadline_s: float = 5.0) -> socket.socket:
    """Return a data connection after the greeting; it takes any node."""
    connection = socket.create_connection((HOST, port), timeout=deadline_s)
    hello = data.Greeting(limits.PROTOCOL_VERSION, "", 0)
    connection.sendall(data.encode_greeting(hello, 1, reply=False))
    answer = receive(connection, data.HEADER_BYTES + data.GREETING_BYTES)
    data.decode_header(answer, reply=True)
    return connection


def receive(connection: socket.socket, count: int) -> bytes:
    """Return exactly ``count`` bytes.

    Raises:
        ConnectionError: The peer ended the connection before.
    """
    got = bytearray()
    while len(got) < count:
        part = connection.recv(count - len(got))
        if not part:
            raise ConnectionError(f"closed after {len(got)} of {count} bytes")
        got += part
    return bytes(got)


def read_request(client: Client, key: str, *, deadline_s: float) -> bytearray:
    """Return a request for a whole extent that ``client`` has a location of."""
    assert client.get(key, length=1) is not None
    entry = client._session.locations.entries[key]
    place = entry.replicas[0]
    size = extent.read_bytes(entry.identity.length)
    entries = [(place.incarnation, place.offset, entry.identity.version, 0, size)]
    return data.encode_request(Operation.READ, 1, entries, deadline_ms=int(deadline_s * 1000))


class RawPut:
    """A put done step by step: start, write (in pieces), commit or not.

    Attributes:
        version: The attempt.
    """

    def __init__(
        self,
        wire: WireClient,
        key: str,
        value: bytes,
        *,
        namespace: str = "default",
        replace: bool = False,
        deadline_s: float = 5.0,
    ) -> None:
        """Get room."""
        self._wire = wire
        space = wire.ask(control.OpenNamespace(namespace))
        reply = wire.ask(
            control.PutStart(
                space.slot, space.epoch, [control.PutItem(key, len(value))], replace=replace
            ),
            deadline_s=deadline_s,
        )
        (grant,) = reply.items
        assert isinstance(grant, control.PutGrant), grant
        self.version = grant.version
        (self._place,) = grant.replicas
        identity = Identity(
            fingerprint(namespace, key), grant.version, space.slot, space.epoch, len(value)
        )
        sealed = extent.seal(
            identity, extent.hash_payload([memoryview(value)]), Names(namespace, key)
        )
        self._extent = sealed.header + value + sealed.tail
        record = next(
            node
            for node in wire.ask(control.DescribeCluster()).nodes
            if any(s.incarnation == self._place.incarnation for s in node.record.segments)
        ).record
        self._port = record.port
        self._connection: socket.socket | None = None

    def write(self, share: float = 1.0) -> int | None:
        """Send this share of the extent; return the node's status once all of it is sent."""
        self._connection = open_data(self._port)
        size = len(self._extent)
        entries = [(self._place.incarnation, self._place.offset, self.version, 0, size)]
        request = data.encode_request(
            Operation.WRITE, 2, entries, deadline_ms=60_000, payload_bytes=size
        )
        self._connection.sendall(request + self._extent[: int(share * size)])
        return self._status() if share == 1.0 else None

    def write_rest(self, share: float) -> int | None:
        """Send what ``write(share)`` has left; return the status, None if we were cut off."""
        assert self._connection is not None
        try:
            self._connection.sendall(self._extent[int(share * len(self._extent)) :])
            return self._status()
        except ConnectionError:
            self.close()
            return None

    def _status(self) -> int:
        assert self._connection is not None
        receive(self._connection, data.HEADER_BYTES)
        status = data.decode_statuses(receive(self._connection, data.STATUS_BYTES), 1)[0]
        self.close()
        return status

    def commit(self) -> control.Committed | control.Refusal:
        """Ask that it becomes the version."""
        reply = self._wire.ask(control.PutCommit([control.CommitItem(self.version, 1)]))
        (item,) = reply.items
        assert isinstance(item, (control.Committed, control.Refusal))
        return item

    def abort(self) -> None:
        """Give it up."""
        self._wire.ask(control.PutAbort([self.version]))

    def close(self) -> None:
        """Close the data connection, wherever it was."""
        if self._connection is not None:
            self._connection.close()
