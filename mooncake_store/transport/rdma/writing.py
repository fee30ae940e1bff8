"""Writes over RDMA: declared to the node, stored one-sidedly, published by the node. Sans-I/O."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from mooncake_store.data_path import WriteTask
from mooncake_store.errors import StaleExtent
from mooncake_store.extent import HEADER_BYTES
from mooncake_store.limits import CHUNK_BYTES, DATA_ENTRIES_MAX
from mooncake_store.segment import INCARNATION_AT
from mooncake_store.transport.effects import Receive, Send
from mooncake_store.transport.one_chunk import Reply
from mooncake_store.transport.rdma.flow import Await, Places, Post, staged_bytes
from mooncake_store.transport.rdma.reading import REQUESTS_PER_STEP
from mooncake_store.transport.rdma.spreading import Spread
from mooncake_store.wire import data
from mooncake_store.wire.data import Operation, Status

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mooncake_store.deadline import Deadline
    from mooncake_store.transport.rdma.flow import Flow, Moves, Place
    from mooncake_store.transport.rdma.link import Link
    from mooncake_store.transport.rdma.verbs import Piece
    from mooncake_store.wire.rdma import Region

_Begun = Generator[Send | Receive | Post | Await, int, list[WriteTask]]


class RdmaWrites:
    """Writes a row of checked tasks over one link.

    Attributes:
        tasks: The tasks.
        done: How many, from the first, have their result.
        answered: Whether any byte of a reply has come.
        copied: Payload bytes that went through the slab.
    """

    def __init__(self, tasks: Sequence[WriteTask], deadline: Deadline) -> None:
        self.done = 0
        self.answered = False
        self.copied = 0
        self.tasks = tasks
        self._deadline = deadline

    def moves(self, link: Link, ids: Iterator[int], node: str) -> Moves:
        """Yield what is to be moved; every task has its result at the end.

        Raises:
            ProtocolError: The peer's bytes are no reply to what was asked.
        """
        for at in range(0, len(self.tasks), DATA_ENTRIES_MAX):
            batch = self.tasks[at : at + DATA_ENTRIES_MAX]
            known = [task for task in batch if _is_known(task, link)]
            begun = (yield from self._begin(known, ids, node)) if known else []
            if begun:
                yield from self._store(link, begun)
                yield from self._end(begun, ids, node)
            self.done += len(batch)

    def _begin(self, batch: Sequence[WriteTask], ids: Iterator[int], node: str) -> _Begun:
        """Declare extents; return those that are to be written."""
        request_id = next(ids)
        frame = self._frame(Operation.RDMA_BEGIN, request_id, batch, 0)
        reply = Reply(Operation.RDMA_BEGIN, request_id, len(batch))
        yield Send([memoryview(frame)])
        yield Receive([reply.head], reply.size)
        self.answered = True
        reply.check()
        begun = []
        for task, status in zip(batch, reply.statuses, strict=True):
            task.error = None
            if status == Status.OK:
                begun.append(task)
            elif status != Status.LANDED:
                task.error = data.error_of(status, node=node)
        return begun

    def _store(self, link: Link, tasks: Sequence[WriteTask]) -> Moves:
        spread = Spread(link, tasks)
        for task in tasks:
            yield from _extent(spread, link.regions[task.incarnation], task)
        for flow in spread.flows:
            if not flow.fits(HEADER_BYTES, REQUESTS_PER_STEP):
                yield from flow.turn()
            # A read pushes the writes before it through the node's bus: then they are in its
            # memory. It does so for those of its own queue pair only.
            for incarnation in {task.incarnation for task in tasks}:
                region = flow.link.regions.get(incarnation)
                if region is not None:
                    flow.word(region.control + INCARNATION_AT, 8, region.control_key)
        yield from spread.finish()
        self.copied += spread.main.copied

    def _end(self, tasks: Sequence[WriteTask], ids: Iterator[int], node: str) -> Moves:
        """Have what was stored published."""
        request_id = next(ids)
        size = HEADER_BYTES * len(tasks)
        frame = self._frame(Operation.RDMA_END, request_id, tasks, size)
        reply = Reply(Operation.RDMA_END, request_id, len(tasks))
        headers = b"".join(task.sealed.header for task in tasks)
        yield Send([memoryview(frame), memoryview(headers)])
        yield Receive([reply.head], reply.size)
        reply.check()
        for task, status in zip(tasks, reply.statuses, strict=True):
            task.error = data.error_of(status, node=node) if status else None

    def _frame(
        self, operation: Operation, request_id: int, tasks: Sequence[WriteTask], size: int
    ) -> bytearray:
        entries = [
            (
                task.incarnation,
                task.offset,
                task.identity.version,
                0,
                HEADER_BYTES + task.identity.length + len(task.sealed.tail),
            )
            for task in tasks
        ]
        left_ms = self._deadline.left_ms()
        return data.encode_request(
            operation, request_id, entries, deadline_ms=left_ms, payload_bytes=size
        )


def _is_known(task: WriteTask, link: Link) -> bool:
    if task.incarnation in link.regions:
        return True
    task.error = StaleExtent("the node has no segment of that incarnation")
    return False


def _extent(spread: Spread, region: Region, task: WriteTask) -> Moves:
    """Store payload and tail; the header is the node's to write."""
    at = region.extents + task.offset + HEADER_BYTES
    yield from _run(spread, task.incarnation, at, task.parts)
    tail = [memoryview(task.sealed.tail)]
    payload_copied = spread.main.copied
    yield from _run(spread, task.incarnation, at + task.identity.length, tail)
    spread.main.copied = payload_copied


def _run(spread: Spread, incarnation: int, at: int, buffers: Sequence[memoryview]) -> Moves:
    """Store buffers one behind the other, from a remote address on."""
    places = Places(buffers, spread.main.link)
    left = sum(map(len, buffers))
    while left:
        size = min(left, CHUNK_BYTES)
        flow, sources = spread.pick(incarnation, places.take(size))
        if not flow.fits(staged_bytes(sources), REQUESTS_PER_STEP):
            yield from flow.turn()
        key = flow.link.regions[incarnation].extents_key
        flow.write(at, key, [_local(flow, source) for source in sources])
        at += size
        left -= size


def _local(flow: Flow, source: Place) -> Piece:
    """Return where a part's bytes lie; what is not registered is copied into the slab first."""
    size = len(source.view)
    if source.key >= 0:
        return source.address, size, source.key
    staged, piece = flow.scratch(size)
    staged[:] = source.view
    flow.copied += size
    return piece
