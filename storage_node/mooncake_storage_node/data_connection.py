"""One client's data connection: a state machine over a non-blocking socket.

``run`` does a bounded amount of work and says what it waits for, so that a stream of 16 MiB
extents and a row of 4 KiB reads share one thread fairly. The conversation itself is written as
generators, top to bottom; what they yield is a ``Wait``.
"""

from __future__ import annotations

import enum
import select
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, Final

from mooncake_storage_node.disk_reads import CannotGoOn, DiskReply
from mooncake_storage_node.landing import land
from mooncake_storage_node.rdma_peer import RDMA_OPERATIONS, RdmaPeer
from mooncake_storage_node.reception import Reception
from mooncake_store import extent, limits
from mooncake_store.deadline import Deadline
from mooncake_store.errors import ProtocolError
from mooncake_store.extent import HEADER_BYTES
from mooncake_store.limits import GRANULE_BYTES, KIB, MIB, NAMESPACES_MAX
from mooncake_store.transport.tasks import advance
from mooncake_store.wire import data
from mooncake_store.wire.data import Entry, Operation, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from mooncake_storage_node.node_view import DataCounters, NodeView
    from mooncake_storage_node.store_orders import StoreOrders
    from mooncake_storage_node.writes import Incoming

TURN_BYTES: Final = 1 * MIB
"""Bytes moved before another connection gets its turn: 0.2 to 0.3 ms over loopback. Smaller: more
system calls a byte. Larger: a small read waits longer behind a stream."""

GROUP_BYTES: Final = 256 * KIB
"""Bytes of small extents that are received together, while which none of them can be cut off."""

REQUEST_COST_BYTES: Final = 16 * KIB
"""What a request counts against its turn beside its bytes: about 10 us of interpreting."""

INPUT_BYTES: Final = 8 * KIB
"""Buffer for requests: 200 entries, or a small object, come with one call; an idle connection
costs no more."""

INFINITY: Final = float("inf")

PARTS_MAX: Final = 512
"""Buffers in one system call; Linux takes 1024 (IOV_MAX)."""

DRAIN_BYTES_MAX: Final = 64 * MIB
"""Payload of a refused write that is received and thrown away to keep the connection; more than
that costs more than a new connection, so it is closed instead."""

DISK_SHARE: Final = 0.9
"""Share of a request's time that a disk has; the rest is for saying that it took too long."""

_ONE_READ: Final = (data.MAGIC, Operation.READ, 0, 1, 0)
_ONE_WRITE: Final = (data.MAGIC, Operation.WRITE, 0, 1)

_HEAD: Final = struct.Struct("<IHHIIQQ")
"""The part of an extent's header that a read is checked with: magic, format, slot, epoch, length
of the name block, version, length."""


class Wait(enum.IntEnum):
    """What a connection needs before it can go on."""

    READABLE = 1
    WRITABLE = 4
    TURN = 0
    """Nothing: it has used up its turn."""
    DISK = 1 << 30
    """A read of a disk; no event of a socket has that bit."""


class Disconnect(Exception):
    """The conversation is over; the message says why, for statistics."""


class DataConnection:
    """Serves one connection.

    Attributes:
        waits: What it waits for.
        deadline_s: When the request under way must be over; infinity between requests.
        moved: Bytes moved so far, for stall detection.
        greeted: Whether the peer has introduced itself.
        wake: Called, on any thread, when what ``Wait.DISK`` waits for may have come.
    """

    __slots__ = (
        "_budget", "_counters", "_drained", "_end", "_guard", "_hung_up", "_input", "_node",
        "_rdma", "_scratch", "_socket", "_start", "_steps", "_writes", "deadline_s", "greeted",
        "moved", "waits", "wake",
    )  # fmt: skip

    def __init__(
        self, sock: socket.socket, node: NodeView, counters: DataCounters, scratch: memoryview
    ) -> None:
        """Take over a non-blocking socket; ``scratch`` is where unwanted bytes go."""
        self._socket = sock
        self._node = node
        self._counters = counters
        self._scratch = scratch
        self._input = memoryview(bytearray(INPUT_BYTES))
        self._start = 0
        self._end = 0
        self._budget = 0
        self._drained = False
        self._hung_up = False
        self._guard = threading.Lock()
        self._writes: list[Incoming] = []
        self._rdma: RdmaPeer | None = None
        self._steps = self._converse()
        self.waits = Wait.READABLE
        self.deadline_s = INFINITY
        self.moved = 0
        self.greeted = False
        self.wake: Callable[[], None] = _nobody_waits

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._socket.fileno()

    @property
    def is_between_requests(self) -> bool:
        """Whether nothing of a request has come that was not answered."""
        return self.greeted and self.deadline_s == INFINITY

    def run(self) -> Wait:
        """Go on until something has to be waited for.

        Raises:
            Disconnect: The conversation is over; close it.
        """
        self._budget = TURN_BYTES
        try:
            self.waits = next(self._steps)
        except StopIteration:
            raise Disconnect("closed") from None
        except ProtocolError as error:
            raise Disconnect("protocol") from error
        except OSError as error:
            raise Disconnect("broken") from error
        return self.waits

    def close(self) -> None:
        """Close the socket; writes under way are over, unpublished."""
        self._steps.close()
        if self._rdma is not None:
            self._rdma.close()
        self._forget_writes()
        self._socket.close()

    # --- the conversation -----------------------------------------------------------------------

    def _converse(self) -> Generator[Wait, None, None]:
        yield from self._greet()
        while True:
            self._budget -= REQUEST_COST_BYTES
            if self._budget <= 0:
                yield Wait.TURN
            if self._end - self._start < data.HEADER_BYTES:
                yield from self._need(data.HEADER_BYTES)
            left: list[memoryview] | None = None
            there = self._end - self._start
            if there == data.ONE_REQUEST_BYTES:
                left = self._answer_one_read()
            elif there > data.ONE_REQUEST_BYTES:
                left = self._answer_one_write()
            if left is None:
                yield from self._answer()
            elif left:
                yield from self._send(left)
            self.deadline_s = INFINITY
            self._counters.answers += 1

    def _answer(self) -> Generator[Wait, None, None]:
        """Answer the request whose header is in the input buffer."""
        header = data.decode_header(self._input[self._start : self._end], reply=False)
        self._start += data.HEADER_BYTES
        self.deadline_s = time.monotonic() + max(0.1, header.deadline_ms / 1000)
        entries = yield from self._entries(header.count)
        if header.operation == Operation.READ and not header.payload_bytes:
            yield from self._read(header.request_id, entries)
        elif header.operation == Operation.WRITE:
            yield from self._write(header, entries)
        elif header.operation in RDMA_OPERATIONS:
            yield from self._answer_rdma(header, entries)
        else:
            raise ProtocolError(f"no operation {header.operation} after the greeting")

    def _greet(self) -> Generator[Wait, None, None]:
        yield from self._need(data.HEADER_BYTES + data.GREETING_BYTES)
        header = data.decode_header(self._input, reply=False)
        if header.operation != Operation.HELLO or header.payload_bytes != data.GREETING_BYTES:
            raise ProtocolError("a connection begins with a greeting")
        self._start = data.HEADER_BYTES + data.GREETING_BYTES
        theirs = data.decode_greeting(self._input[data.HEADER_BYTES : self._start])
        node = self._node
        ours = data.Greeting(limits.PROTOCOL_VERSION, node.node_id, node.term())
        answer = data.encode_greeting(ours, header.request_id, reply=True)
        yield from self._send([memoryview(answer)])
        if theirs.protocol != limits.PROTOCOL_VERSION:
            raise Disconnect("protocol_mismatch")
        if theirs.node_id not in {"", node.node_id}:
            raise Disconnect("wrong_peer")
        self.greeted = True

    def _entries(self, count: int) -> Generator[Wait, None, list[Entry]]:
        raw = yield from self._bytes(count * data.ENTRY_BYTES)
        return data.decode_entries(raw, count)

    def _bytes(self, size: int) -> Generator[Wait, None, memoryview]:
        """Return the next bytes, whose number was checked; they hold until the next step."""
        if size <= INPUT_BYTES:
            yield from self._need(size)
            self._start += size
            return self._input[self._start - size : self._start]
        whole = memoryview(bytearray(size))
        have = 0
        while have < size:
            got = self._receive_some([whole[have:]])
            have += got
            if not got:
                yield Wait.READABLE
        return whole

    def _answer_rdma(
        self, header: data.Header, entries: list[Entry]
    ) -> Generator[Wait, None, None]:
        """Answer what belongs to one-sided transfers; see ``rdma_peer``."""
        if self._rdma is None:
            self._rdma = RdmaPeer(self._node.segments, self._node.incoming, self._node.rdma)
        peer = self._rdma
        if header.payload_bytes != peer.payload_bytes(header):
            raise ProtocolError("a request about RDMA is not as long as it must be")
        payload = yield from self._bytes(header.payload_bytes)
        if peer.is_revoked:
            raise Disconnect("revoked")
        counters = self._counters
        answer = peer.answer(header, entries, payload)
        for status in filter(None, answer.statuses):
            counters.refusals[status] += 1
        counters.rdma_writes += answer.published
        counters.rdma_bytes_in += answer.published_bytes
        yield from self._send([memoryview(answer.frame)])
        if peer.is_revoked:
            raise Disconnect("revoked")

    # --- reads ----------------------------------------------------------------------------------

    def _answer_one_read(self) -> list[memoryview] | None:
        """Answer the request in the input buffer if it is the most usual one, a read of one entry.

        Returns:
            What of the answer the socket did not take; None where it is another request.
        """
        magic, operation, flags, count, request_id, deadline_ms, payload_bytes, *entry = (
            data.ONE_REQUEST.unpack_from(self._input, self._start)
        )
        if (magic, operation, flags, count, payload_bytes) != _ONE_READ:
            return None
        incarnation, offset, _, start, size = entry
        if self._node.disks is not None and incarnation not in self._node.segments:
            return None
        self._start = self._end = 0
        self.deadline_s = time.monotonic() + max(0.1, deadline_ms / 1000)
        status = self._check_read(entry)
        counters = self._counters
        counters.reads += 1
        if status:
            counters.refusals[status] += 1
            size = 0
        reply = data.ONE_REPLY.pack(
            data.MAGIC, Operation.READ, data.REPLY, 1, request_id, 0, size, status
        )
        buffers = [memoryview(reply)]
        if size:
            at = offset + start
            buffers.append(self._node.segments[incarnation].extents[at : at + size])
            counters.bytes_out += size
        if size > TURN_BYTES:
            return buffers
        try:
            sent = self._socket.sendmsg(buffers, (), socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return buffers
        self.moved += sent
        self._budget -= sent
        return advance(buffers, sent) if sent < len(reply) + size else []

    def _answer_one_write(self) -> list[memoryview] | None:
        """Answer the request in the input buffer if it is a write of one extent that came whole.

        Returns:
            What of the answer the socket did not take; None where it is another request.
        """
        magic, operation, flags, count, request_id, _, payload_bytes, *entry = (
            data.ONE_REQUEST.unpack_from(self._input, self._start)
        )
        if (magic, operation, flags, count) != _ONE_WRITE:
            return None
        begin = self._start + data.ONE_REQUEST_BYTES
        if begin + payload_bytes != self._end or entry[4] != payload_bytes:
            return None
        status = land(self._node, self._guard, entry, self._input[begin : self._end])
        if status is None:
            return None
        self._start = self._end = 0
        counters = self._counters
        counters.writes += 1
        counters.bytes_in += payload_bytes
        if status:
            counters.refusals[status] += 1
        reply = memoryview(
            data.ONE_REPLY.pack(
                data.MAGIC, Operation.WRITE, data.REPLY, 1, request_id, 0, 0, status
            )
        )
        try:
            sent = self._socket.send(reply, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return [reply]
        self.moved += sent
        return [reply[sent:]] if sent < len(reply) else []

    def _read(self, request_id: int, entries: list[Entry]) -> Generator[Wait, None, None]:
        statuses = [self._check_read(entry) for entry in entries]
        disks = self._node.disks
        if disks is not None and Status.UNKNOWN_SEGMENT in statuses:
            yield from self._read_disks(disks, request_id, entries, statuses)
        else:
            payload = [
                self._node.segments[entry.incarnation].extents[
                    entry.offset + entry.start : entry.offset + entry.start + entry.bytes
                ]
                for entry, status in zip(entries, statuses, strict=True)
                if not status
            ]
            total = sum(map(len, payload))
            reply = data.encode_reply(Operation.READ, request_id, statuses, total)
            yield from self._send([memoryview(reply), *payload])
        counters = self._counters
        counters.reads += len(entries)
        for entry, status in zip(entries, statuses, strict=True):
            counters.refusals[status] += bool(status)
            counters.bytes_out += 0 if status else entry.bytes

    def _read_disks(
        self, disks: StoreOrders, request_id: int, entries: list[Entry], statuses: list[Status]
    ) -> Generator[Wait, None, None]:
        """Answer a request with entries that are not in memory; sets their statuses."""
        limit_s = DISK_SHARE * max(0.0, self.deadline_s - time.monotonic())
        reply = DiskReply(disks, entries, statuses, Deadline(limit_s), self.wake)
        try:
            for step in reply.steps(request_id, self._node.segments):
                if step is None:
                    yield Wait.DISK
                else:
                    yield from self._send(step)
        except CannotGoOn:
            raise Disconnect("disk") from None
        finally:
            reply.close()

    def _check_read(self, entry: Entry | list[int]) -> Status:
        incarnation, offset, version, start, size = entry
        segment = self._node.segments.get(incarnation)
        if segment is None:
            return Status.UNKNOWN_SEGMENT
        if offset % GRANULE_BYTES or offset + HEADER_BYTES > segment.bytes:
            return Status.OUT_OF_RANGE
        magic, _, slot, epoch, names, _, length = _HEAD.unpack_from(segment.extents, offset)
        known = slot < NAMESPACES_MAX
        if (
            segment.table[offset // GRANULE_BYTES] != version
            or magic != extent.MAGIC
            or (known and segment.epochs[slot] > epoch)
        ):
            return Status.STALE
        whole = extent.read_bytes(length) + names
        if not known or offset + whole > segment.bytes:
            return Status.DAMAGED
        return Status.OK if start + size <= whole else Status.OUT_OF_RANGE

    # --- writes ---------------------------------------------------------------------------------

    def _write(self, header: data.Header, entries: list[Entry]) -> Generator[Wait, None, None]:
        sizes = [entry.bytes for entry in entries]
        if sum(sizes) != header.payload_bytes or min(sizes, default=0) < HEADER_BYTES:
            raise ProtocolError("the payload is not as long as its entries say")
        node = self._node
        receptions = [Reception(entry, node.segments, self._guard) for entry in entries]
        self._writes = [each.write for each in receptions if each.write is not None]
        node.incoming.add(self._writes)
        try:
            for reception in receptions:
                reception.admit()
            if sum([each.missing for each in receptions if each.status]) > DRAIN_BYTES_MAX:
                raise Disconnect("refused_too_much")
            size = header.payload_bytes
            if len(entries) == 1 and self._end - self._start >= size:
                self._take_small(receptions[0], size)
            else:
                yield from self._take(receptions)
        finally:
            self._forget_writes()
        statuses = [int(reception.status) for reception in receptions]
        for status in filter(None, statuses):
            self._counters.refusals[status] += 1
        self._counters.writes += len(entries)
        self._counters.bytes_in += header.payload_bytes
        answer = data.encode_reply(Operation.WRITE, header.request_id, statuses)
        yield from self._send([memoryview(answer)])

    def _take(self, receptions: list[Reception]) -> Generator[Wait, None, None]:
        """Receive extents in order, several with one system call where they are small."""
        done = 0
        while done < len(receptions):
            group = _group(receptions, done)
            pieces: list[memoryview] = []
            with self._guard:
                for reception in group:
                    whole = reception.aim(self._scratch)
                    pieces += reception.left
                    if not whole:
                        break
                moved = got = self._receive_some(pieces)
            for reception in group:
                if got < reception.missing:
                    reception.received(got)
                    break
                got -= reception.missing
                reception.finish()
                done += 1
            wait = self._next_wait(moved)
            if wait is not None and done < len(receptions):
                self._drained = False
                yield wait

    def _take_small(self, reception: Reception, size: int) -> None:
        """Receive an extent that came with its request into the input buffer."""
        with self._guard:
            if reception.aim(self._scratch):
                self._take_input(reception.left)
            else:
                self._start += size
        reception.finish()

    def _forget_writes(self) -> None:
        self._node.incoming.remove(self._writes)
        self._writes = []

    # --- bytes ----------------------------------------------------------------------------------

    def _need(self, size: int) -> Generator[Wait, None, None]:
        """Wait until ``size`` bytes, at most ``INPUT_BYTES``, are in the input buffer."""
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start + size > INPUT_BYTES:
            rest = bytes(self._input[self._start : self._end])
            self._input[: len(rest)] = rest
            self._start, self._end = 0, len(rest)
        while self._end - self._start < size:
            if self._drained:
                # The kernel had no more than it gave us last, and says so when it has.
                self._drained = False
                yield Wait.READABLE
            room = self._input[self._end :]
            try:
                got = self._socket.recv_into(room)
            except BlockingIOError:
                yield Wait.READABLE
                continue
            if not got:
                raise Disconnect("closed")
            self._drained = got < len(room) and not self._hung_up
            self._end += got
            self.moved += got

    def notice(self, events: int) -> bool:
        """Take news of the socket; return whether the connection can go on now.

        News come once (``EPOLLET``), so what is not waited for now is remembered.
        """
        if events & Wait.READABLE:
            self._drained = False
        self._hung_up = self._hung_up or bool(events & select.EPOLLRDHUP)
        return bool(events & self.waits)

    def _receive_some(self, buffers: list[memoryview]) -> int:
        """Receive what is there, from the input buffer first; return 0 if nothing is."""
        if self._start < self._end:
            return self._take_input(buffers)
        buffers = _bounded(buffers, TURN_BYTES)
        try:
            got = self._socket.recvmsg_into(buffers)[0]
        except BlockingIOError:
            return 0
        if not got:
            raise Disconnect("closed")
        self.moved += got
        self._drained = got < sum(map(len, buffers)) and not self._hung_up
        return got

    def _take_input(self, buffers: list[memoryview]) -> int:
        """Move bytes that came along with a request to where they belong."""
        taken = 0
        for buffer in buffers:
            piece = self._input[self._start : min(self._end, self._start + len(buffer))]
            buffer[: len(piece)] = piece
            self._start += len(piece)
            taken += len(piece)
        return taken

    def _next_wait(self, moved: int) -> Wait | None:
        """Return what to wait for after ``moved`` bytes were received; None: just go on."""
        if not moved or self._drained:
            return Wait.READABLE
        self._budget -= moved
        if self._budget > 0:
            return None
        return Wait.TURN

    def _send(self, buffers: list[memoryview]) -> Generator[Wait, None, None]:
        while buffers:
            try:
                sent = self._socket.sendmsg(_bounded(buffers, TURN_BYTES), (), socket.MSG_NOSIGNAL)
            except BlockingIOError:
                yield Wait.WRITABLE
                continue
            self.moved += sent
            buffers = advance(buffers, sent)
            self._budget -= sent
            if self._budget <= 0 and buffers:
                yield Wait.TURN


def _nobody_waits() -> None:
    """Do nothing: whoever runs the connection looks by itself."""


def _bounded(buffers: list[memoryview], size: int) -> list[memoryview]:
    """Return the first ``size`` bytes of ``buffers``, or fewer where they are many."""
    for index, buffer in enumerate(buffers):
        if index == PARTS_MAX:
            return buffers[:index]
        if len(buffer) >= size:
            return [*buffers[:index], buffer[:size]]
        size -= len(buffer)
    return buffers


def _group(receptions: list[Reception], start: int) -> list[Reception]:
    """Return the next extents that are worth one system call."""
    size = 0
    for index in range(start, min(len(receptions), start + PARTS_MAX // 2)):
        size += receptions[index].missing
        if size >= GROUP_BYTES:
            return receptions[start : index + 1]
    return receptions[start : start + PARTS_MAX // 2]
