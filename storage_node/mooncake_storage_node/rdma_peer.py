"""The RDMA side of one data connection: its queue pair, and writes declared over it (ADR 50)."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, NamedTuple

from mooncake_storage_node.reception import Reception
from mooncake_store.errors import ProtocolError, StoreError
from mooncake_store.extent import HEADER_BYTES
from mooncake_store.limits import QUEUE_PAIRS_MAX
from mooncake_store.wire import data
from mooncake_store.wire.data import Operation, Status
from mooncake_store.wire.rdma import ENDPOINT_BYTES, decode_endpoint, encode_offer, encode_refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mooncake_storage_node.rdma_ports import RdmaPorts
    from mooncake_storage_node.writes import IncomingWrites
    from mooncake_store.segment import Segment
    from mooncake_store.transport.rdma.verbs import QueuePair
    from mooncake_store.wire.data import Entry

RDMA_OPERATIONS: Final = frozenset({Operation.RDMA_OPEN, Operation.RDMA_BEGIN, Operation.RDMA_END})


class Answer(NamedTuple):
    """A reply, and what there is to count."""

    frame: bytes | bytearray
    statuses: list[int]
    published: int = 0
    published_bytes: int = 0


class RdmaPeer:
    """What a client may do to our memory by itself.

    Attributes:
        is_revoked: It may do nothing any more: an extent that it was writing was freed.
    """

    def __init__(
        self, segments: Mapping[int, Segment], incoming: IncomingWrites, ports: RdmaPorts | None
    ) -> None:
        self.is_revoked = False
        self._segments = segments
        self._incoming = incoming
        self._ports = ports
        self._guard = threading.Lock()
        self._pairs: list[QueuePair] = []
        self._begun: dict[Entry, Reception] = {}

    @staticmethod
    def payload_bytes(header: data.Header) -> int:
        """Return how long the payload of a request must be."""
        if header.operation == Operation.RDMA_OPEN:
            return ENDPOINT_BYTES
        return HEADER_BYTES * header.count if header.operation == Operation.RDMA_END else 0

    def answer(self, header: data.Header, entries: list[Entry], payload: memoryview) -> Answer:
        """Do what a request asks.

        Raises:
            ProtocolError: It cannot be asked, or not now.
        """
        if header.operation == Operation.RDMA_OPEN:
            return self._open(header, payload)
        if not self._pairs:
            raise ProtocolError("extents are declared over a queue pair, and there is none")
        if header.operation == Operation.RDMA_BEGIN:
            return self._begin(header, entries)
        return self._end(header, entries, payload)

    def close(self) -> None:
        """Destroy the queue pairs, then forget the writes: nothing of them arrives any more."""
        with self._guard:
            self._destroy()
        self._incoming.remove([each.write for each in self._begun.values() if each.write])
        self._begun = {}

    def _open(self, header: data.Header, payload: memoryview) -> Answer:
        if header.count or self._begun:
            raise ProtocolError("a queue pair is asked for by itself, between writes")
        peer = decode_endpoint(payload)
        reason = "it has no device"
        if len(self._pairs) >= QUEUE_PAIRS_MAX:
            reason = f"a connection has at most {QUEUE_PAIRS_MAX} queue pairs"
        elif self._ports is not None:
            try:
                port, pair = self._ports.connect(peer)
            except StoreError as error:
                reason = str(error)
            else:
                with self._guard:
                    self._pairs.append(pair)
                    if self.is_revoked:
                        self._destroy()
                offer = encode_offer(header.request_id, pair.endpoint, port.regions)
                return Answer(offer, [])
        return Answer(encode_refusal(header.request_id, reason), [Status.NO_RDMA])

    def _begin(self, header: data.Header, entries: list[Entry]) -> Answer:
        if self._begun or len(set(entries)) != len(entries):
            raise ProtocolError("extents are declared once, and after the end of those before")
        receptions = [
            Reception(entry, self._segments, self._guard, self._revoke) for entry in entries
        ]
        self._incoming.add([each.write for each in receptions if each.write is not None])
        statuses: list[int] = []
        refused = []
        for entry, reception in zip(entries, receptions, strict=True):
            reception.admit()
            status = reception.status
            if status == Status.OK and reception.write is None:
                status = Status.LANDED
            elif status == Status.OK:
                self._begun[entry] = reception
            elif reception.write is not None:
                refused.append(reception.write)
            statuses.append(status)
        self._incoming.remove(refused)
        reply = data.encode_reply(Operation.RDMA_BEGIN, header.request_id, statuses)
        return Answer(reply, [status for status in statuses if status != Status.LANDED])

    def _end(self, header: data.Header, entries: list[Entry], payload: memoryview) -> Answer:
        statuses: list[int] = []
        published = published_bytes = 0
        for number, entry in enumerate(entries):
            reception = self._begun.pop(entry, None)
            if reception is None or reception.write is None:
                raise ProtocolError("an extent is ended that was not declared")
            reception.take_header(payload[HEADER_BYTES * number : HEADER_BYTES * (number + 1)])
            reception.finish()
            self._incoming.remove([reception.write])
            statuses.append(reception.status)
            if reception.status == Status.OK:
                published += 1
                published_bytes += entry.bytes
        reply = data.encode_reply(Operation.RDMA_END, header.request_id, statuses)
        return Answer(reply, statuses, published, published_bytes)

    def _revoke(self) -> None:
        """Take the client's access away, under the guard, in any thread."""
        self.is_revoked = True
        self._destroy()
        if self._ports is not None:
            self._ports.revoked += 1

    def _destroy(self) -> None:
        for pair in self._pairs:
            pair.close()
