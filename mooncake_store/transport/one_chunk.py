"""The plainest reads, which most are: whole payloads of one chunk each, verified. Sans-I/O.

The same as ``exchange.ReadExchange`` in fewer steps; see there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import xxhash

from mooncake_store import extent
from mooncake_store.errors import ChecksumMismatch, ProtocolError, StoreError
from mooncake_store.extent import HEADER_BYTES
from mooncake_store.limits import CHUNK_BYTES, KIB
from mooncake_store.transport.effects import Receive, Send
from mooncake_store.transport.tasks import advance
from mooncake_store.wire import data
from mooncake_store.wire.data import Operation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mooncake_store.data_path import ReadTask
    from mooncake_store.deadline import Deadline
    from mooncake_store.transport.effects import Effects

GROUP_BYTES: Final = 256 * KIB
"""Bytes received by one system call. Smaller: more calls (2 us each). Larger: the first bytes have
left the cache before they are hashed."""

SLACK_BYTES: Final = 4 * KIB
"""What a group may be over: the headers and the table of the chunks in it."""

_hash = xxhash.xxh3_64_intdigest


def is_one_chunk(task: ReadTask) -> bool:
    """Return whether a task is the plainest read: all of a payload of one chunk, verified."""
    return task.verify and task.length == task.identity.length <= CHUNK_BYTES


def _settle_one_chunk(task: ReadTask, raw: memoryview, at: int) -> None:
    """Set the result of such a task; its header was received into ``raw`` at ``at``."""
    targets = task.targets
    try:
        header = extent.expect_header(raw, at, task.identity)
    except StoreError as error:
        task.error = error
        return
    digest = _hash(targets[0]) if len(targets) == 1 else hash_pieces(targets)
    if digest == header.checksum:
        task.verified = True
    else:
        task.error = ChecksumMismatch("the payload differs from its checksum")


def hash_pieces(pieces: Sequence[memoryview]) -> int:
    """Return the digest of a chunk that lies in several buffers."""
    hasher = xxhash.xxh3_64()
    for piece in pieces:
        hasher.update(piece)
    return hasher.intdigest()


class OneChunkRead:
    """Reads one task of one chunk: what ``ReadExchange`` does, in fewer steps.

    Attributes:
        done: 1 once the task has its result.
        answered: Whether any byte of a reply has come.
    """

    __slots__ = ("_deadline", "_task", "answered", "done")

    def __init__(self, task: ReadTask, deadline: Deadline) -> None:
        self.done = 0
        self.answered = False
        self._task = task
        self._deadline = deadline

    def effects(self, ids: Iterator[int], scratch: memoryview, node: str) -> Effects:
        """As ``ReadExchange.effects``.

        Raises:
            ProtocolError: The peer's bytes are no reply to what was asked.
        """
        task = self._task
        request_id = next(ids)
        size = HEADER_BYTES + task.length
        request = data.ONE_REQUEST.pack(
            data.MAGIC, Operation.READ, 0, 1, request_id, self._deadline.left_ms(), 0,
            task.incarnation, task.offset, task.attempt or task.identity.version, 0, size,
        )  # fmt: skip
        yield Send([memoryview(request)])
        head = scratch[: data.ONE_REPLY_BYTES + HEADER_BYTES]
        buffers = [head, *task.targets]
        got = yield Receive(buffers, data.ONE_REPLY_BYTES)
        self.answered = True
        *_, payload_bytes, status = fields = data.ONE_REPLY.unpack_from(head)
        if fields[:5] != (data.MAGIC, Operation.READ, data.REPLY, 1, request_id):
            raise ProtocolError("the peer answers something that was not asked")
        got -= data.ONE_REPLY_BYTES
        if payload_bytes != (0 if status else size) or got > payload_bytes:
            raise ProtocolError("the reply announces other bytes than were asked for")
        if status:
            task.error = data.error_of(status, node=node)
        else:
            if got < size:
                yield Receive(advance(buffers, data.ONE_REPLY_BYTES + got), size - got)
            _settle_one_chunk(task, head, data.ONE_REPLY_BYTES)
        self.done = 1


class OneChunkReads:
    """Reads a row of tasks of one chunk with one request, again in fewer steps.

    Attributes:
        done: How many tasks, from the first, have their result.
        answered: Whether any byte of a reply has come.
    """

    __slots__ = ("_deadline", "_tasks", "answered", "done")

    def __init__(self, tasks: Sequence[ReadTask], deadline: Deadline) -> None:
        self.done = 0
        self.answered = False
        self._tasks = tasks
        self._deadline = deadline

    def effects(self, ids: Iterator[int], scratch: memoryview, node: str) -> Effects:
        """As ``ReadExchange.effects``; ``scratch`` is not needed.

        Raises:
            ProtocolError: The peer's bytes are no reply to what was asked.
        """
        del scratch
        tasks = self._tasks
        request_id = next(ids)
        entries = [
            (task.incarnation, task.offset, task.attempt or task.identity.version, 0,
             HEADER_BYTES + task.length)
            for task in tasks
        ]  # fmt: skip
        left_ms = self._deadline.left_ms()
        frame = data.encode_request(Operation.READ, request_id, entries, deadline_ms=left_ms)
        yield Send([memoryview(frame)])
        reply = Reply(Operation.READ, request_id, len(tasks))
        yield Receive([reply.head], reply.size)
        self.answered = True
        reply.check()
        there = tasks
        if any(reply.statuses):
            there = _take_refusals(tasks, reply.statuses, node)
        if reply.payload_bytes != sum([HEADER_BYTES + task.length for task in there]):
            raise ProtocolError("the reply announces other bytes than were asked for")
        yield from self._receive(there)
        self.done = len(tasks)

    def _receive(self, tasks: Sequence[ReadTask]) -> Effects:
        headers = memoryview(bytearray(HEADER_BYTES * len(tasks)))
        buffers: list[memoryview] = []
        size = first = 0
        for index, task in enumerate(tasks):
            own = HEADER_BYTES + task.length
            if size + own > GROUP_BYTES + SLACK_BYTES:
                yield Receive(buffers, size)
                _settle_one_chunks(tasks, headers, first, index)
                buffers, size, first = [], 0, index
            buffers.append(headers[HEADER_BYTES * index : HEADER_BYTES * (index + 1)])
            buffers += task.targets
            size += own
        if size:
            yield Receive(buffers, size)
            _settle_one_chunks(tasks, headers, first, len(tasks))


def _settle_one_chunks(
    tasks: Sequence[ReadTask], headers: memoryview, first: int, end: int
) -> None:
    for index in range(first, end):
        _settle_one_chunk(tasks[index], headers, HEADER_BYTES * index)


def _take_refusals(tasks: Sequence[ReadTask], statuses: Sequence[int], node: str) -> list[ReadTask]:
    """Set the errors of refused tasks with one entry each; return those whose bytes come."""
    there = []
    for task, status in zip(tasks, statuses, strict=True):
        if status:
            task.error = data.error_of(status, node=node)
        else:
            there.append(task)
    return there


class Reply:
    """Header and statuses of a reply, received into ``head``."""

    __slots__ = ("_expected", "head", "payload_bytes", "size", "statuses")

    def __init__(self, operation: int, request_id: int, count: int) -> None:
        self._expected = (operation, request_id, count)
        self.size = data.HEADER_BYTES + data.STATUS_BYTES * count
        self.head = memoryview(bytearray(self.size))
        self.payload_bytes = 0
        self.statuses: tuple[int, ...] = ()

    def check(self) -> None:
        """Read what was received.

        Raises:
            ProtocolError: It answers something else.
        """
        header = data.decode_header(self.head, reply=True)
        if (header.operation, header.request_id, header.count) != self._expected:
            raise ProtocolError("the peer answers something that was not asked")
        self.payload_bytes = header.payload_bytes
        self.statuses = data.decode_statuses(self.head[data.HEADER_BYTES :], header.count)
