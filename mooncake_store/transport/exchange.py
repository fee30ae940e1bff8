"""Reads and writes over a data connection: what to send, where each received byte goes. Sans-I/O.

Payload is received in *groups* of about ``GROUP_BYTES`` that end at chunk or object boundaries, and
each is hashed before the next is asked for: what was just copied is still in the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final

from mooncake_store import extent, limits
from mooncake_store.data_path import ReadTask
from mooncake_store.errors import (
    ProtocolError,
    StaleExtent,
)
from mooncake_store.extent import HEADER_BYTES
from mooncake_store.limits import CHUNK_BYTES, KIB
from mooncake_store.transport.effects import Effects, Receive, Send
from mooncake_store.transport.one_chunk import (
    GROUP_BYTES,
    SLACK_BYTES,
    OneChunkRead,
    OneChunkReads,
    Reply,
    is_one_chunk,
)
from mooncake_store.transport.one_write import OneWrite
from mooncake_store.transport.read_plan import ReadPlan
from mooncake_store.transport.tasks import advance
from mooncake_store.wire import data
from mooncake_store.wire.data import Operation, Status

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mooncake_store.data_path import WriteTask
    from mooncake_store.deadline import Deadline

SCRATCH_BYTES: Final = GROUP_BYTES + CHUNK_BYTES + 8 * KIB
"""Room for what is received but not the caller's: headers, tables, the rest of edge chunks."""

WINDOW: Final = 2
"""Requests of one exchange that may be unanswered: the node never idles between them, and replies
to writes (4 KiB each) never fill a socket's buffer while we still send."""

Step = Callable[[], None]


# --- reads --------------------------------------------------------------------------------------


class _Read(ReadPlan):
    """One task of a read over a stream: the entries that ask for it."""

    __slots__ = ("entries",)

    def __init__(self, task: ReadTask) -> None:
        super().__init__(task)
        self.entries = self._make_entries()

    def reply_bytes(self) -> int:
        """Return the payload bytes of the reply that are this read's."""
        return sum(entry[4] for entry in self.entries)

    def _make_entries(self) -> list[tuple[int, int, int, int, int]]:
        """Return what to ask: header, payload, table or trailer, joined where they touch."""
        task = self.task
        place = (task.incarnation, task.offset, task.attempt or task.identity.version)
        if task.verify and task.length == task.identity.length:
            return [(*place, 0, extent.read_bytes(task.length))]
        low, high = self.span()
        spans = [(0, HEADER_BYTES)]
        _join(spans, HEADER_BYTES + low, high - low)
        if task.verify:
            _join(spans, HEADER_BYTES + task.identity.length, self.table_bytes())
        else:
            spans.append((0, HEADER_BYTES))
        return [(*place, *span) for span in spans]


def _join(spans: list[tuple[int, int]], start: int, size: int) -> None:
    last_start, last_size = spans[-1]
    if not size:
        return
    if last_start + last_size == start:
        spans[-1] = (last_start, last_size + size)
    else:
        spans.append((start, size))


Unit = tuple[list[memoryview], int, Callable[[], None] | None]
"""Buffers that are received together, their bytes, and what to do once they are full."""


class _Receiver:
    """Turns reads into groups of units that one system call can fill.

    Invariant: ``_live`` bytes of scratch before ``_next``, round the ring, belong to the group
    under way, the last ``_recent`` of them to the unit that was made last.
    """

    __slots__ = ("_live", "_next", "_recent", "_scratch")

    def __init__(self, scratch: memoryview) -> None:
        self._scratch = scratch
        self._next = 0
        self._live = 0
        self._recent = 0

    def groups(self, units: Iterator[Unit]) -> Iterator[tuple[list[memoryview], int, list[Step]]]:
        """Yield (buffers, their bytes, steps to take when they are full).

        A group's scratch memory is used again by the next one: take its steps first.
        """
        buffers: list[memoryview] = []
        steps: list[Step] = []
        size = 0
        for unit, unit_bytes, step in units:
            if size and size + unit_bytes > GROUP_BYTES + SLACK_BYTES:
                yield buffers, size, steps
                buffers, steps, size = [], [], 0
                self._live = self._recent  # This unit is the next group's first.
            self._recent = 0
            buffers += unit
            size += unit_bytes
            if step is not None:
                steps.append(step)
        if buffers or steps:
            yield buffers, size, steps
            self._live = 0

    def take(self, size: int) -> memoryview:
        """Return scratch memory that holds until the group it belongs to is over."""
        start = self._next
        skipped = 0
        if start + size > len(self._scratch):
            start, skipped = 0, len(self._scratch) - start
        if self._live + skipped + size > len(self._scratch):
            return memoryview(bytearray(size))
        self._next = start + size
        self._live += skipped + size
        self._recent += skipped + size
        return self._scratch[start : start + size]

    def read_units(self, read: _Read) -> Iterator[Unit]:
        """Yield what the reply holds for a read whose entries are all there."""
        header = self.take(HEADER_BYTES)
        task = read.task
        yield [header], HEADER_BYTES, partial(read.received_header, header)
        if not task.verify:
            yield from self._plain_units(read)
            return
        table = read.table_bytes()
        yield from self._chunk_units(read)
        stored = self.take(table) if table else None
        yield [] if stored is None else [stored], table, partial(read.finish, stored)

    def drain_units(self, size: int) -> Iterator[Unit]:
        """Yield scratch memory for bytes that nobody wants."""
        while size:
            piece = min(size, GROUP_BYTES)
            yield [self.take(piece)], piece, None
            size -= piece

    def _plain_units(self, read: _Read) -> Iterator[Unit]:
        left = read.task.length
        while left:
            size = min(left, GROUP_BYTES)
            yield read.scatter.take(size), size, None
            left -= size
        trailer = self.take(HEADER_BYTES)
        yield [trailer], HEADER_BYTES, partial(read.received_trailer, trailer)

    def _chunk_units(self, read: _Read) -> Iterator[Unit]:
        task = read.task
        end = task.start + task.length
        for chunk in read.chunks:
            low = chunk * CHUNK_BYTES
            high = min(low + CHUNK_BYTES, task.identity.length)
            pieces: list[memoryview] = []
            if low < task.start:
                pieces.append(self.take(task.start - low))
            pieces += read.scatter.take(min(high, end) - max(low, task.start))
            if high > end:
                pieces.append(self.take(high - end))
            yield pieces, high - low, partial(read.received_chunk, pieces)


class ReadExchange:
    """Reads a row of checked tasks over one connection.

    Attributes:
        done: How many tasks, from the first, have their result.
        answered: Whether any byte of a reply has come.
    """

    def __init__(self, tasks: Sequence[ReadTask], deadline: Deadline) -> None:
        self.done = 0
        self.answered = False
        self._batches = _batches([_Read(task) for task in tasks])
        self._deadline = deadline
        self._receiver = _Receiver(memoryview(b""))

    def effects(self, ids: Iterator[int], scratch: memoryview, node: str) -> Effects:
        """Yield what is to be sent and received; every task has its result at the end.

        Args:
            ids: Numbers for the requests, different ones on one connection.
            scratch: Memory of ``SCRATCH_BYTES`` that is the exchange's until it ends.
            node: Name of the peer, for messages.

        Raises:
            ProtocolError: The peer's bytes are no reply to what was asked.
        """
        self._receiver = _Receiver(scratch)
        asked: list[int] = []
        for index, batch in enumerate(self._batches):
            while len(asked) < min(index + WINDOW, len(self._batches)):
                asked.append(next(ids))
                yield Send([memoryview(self._encode(self._batches[len(asked) - 1], asked[-1]))])
            yield from self._receive(batch, asked[index], node)

    def _encode(self, batch: list[_Read], request_id: int) -> bytearray:
        entries = [entry for read in batch for entry in read.entries]
        left_ms = self._deadline.left_ms()
        return data.encode_request(Operation.READ, request_id, entries, deadline_ms=left_ms)

    def _receive(self, batch: list[_Read], request_id: int, node: str) -> Effects:
        count = sum(len(read.entries) for read in batch)
        reply = Reply(Operation.READ, request_id, count)
        groups = self._receiver.groups(chain.from_iterable(map(self._receiver.read_units, batch)))
        first: tuple[list[memoryview], int, list[Step]] = ([], 0, [])
        if len(self._batches) == len(batch) == 1:
            # Nothing else can come on this connection: take the payload along with the reply.
            first = next(groups)
        got = yield Receive([reply.head, *first[0]], reply.size)
        self.answered = True
        reply.check()
        got -= reply.size
        if any(reply.statuses):
            yield from self._receive_some(batch, reply, got, node)
            return
        if reply.payload_bytes != sum(read.reply_bytes() for read in batch):
            raise ProtocolError("the reply announces other bytes than were asked for")
        if first[1]:
            yield from self._fill(first, got)
        for group in groups:
            yield from self._fill(group, 0)
        self.done += len(batch)

    def _fill(self, group: tuple[list[memoryview], int, list[Step]], got: int) -> Effects:
        buffers, size, steps = group
        if got < size:
            yield Receive(advance(buffers, got) if got else buffers, size - got)
        for step in steps:
            step()

    def _receive_some(self, batch: list[_Read], reply: Reply, got: int, node: str) -> Effects:
        """Receive a reply in which an entry was refused; the task of each such entry fails."""
        units: list[Iterator[Unit]] = []
        at = 0
        expected = 0
        for read in batch:
            statuses = reply.statuses[at : at + len(read.entries)]
            at += len(read.entries)
            there = sum(
                entry[4]
                for entry, status in zip(read.entries, statuses, strict=True)
                if status == Status.OK
            )
            expected += there
            bad = next(filter(None, statuses), None)
            if bad is None:
                units.append(self._receiver.read_units(read))
                continue
            read.task.error = data.error_of(bad, node=node)
            units.append(self._receiver.drain_units(there))
        if reply.payload_bytes != expected or got > expected:
            raise ProtocolError("the reply announces other bytes than were asked for")
        if len(batch) == 1:
            units = [self._receiver.drain_units(expected - got)]
        for group in self._receiver.groups(chain.from_iterable(units)):
            yield from self._fill(group, 0)
        self.done += len(batch)


def read_exchange(tasks: Sequence[ReadTask], deadline: Deadline) -> AnyRead:
    """Return the exchange that reads checked tasks in the fewest steps."""
    if len(tasks) <= limits.DATA_ENTRIES_MAX and all(map(is_one_chunk, tasks)):
        if len(tasks) == 1:
            return OneChunkRead(tasks[0], deadline)
        return OneChunkReads(tasks, deadline)
    return ReadExchange(tasks, deadline)


AnyRead = ReadExchange | OneChunkRead | OneChunkReads


def probe_of(task: ReadTask) -> ReadTask:
    """Return a task that fetches the header only.

    Where a payload failed its checksum, the probe's ``StaleExtent`` tells that the extent was
    reused while it was read; otherwise it is damaged.
    """
    return ReadTask(
        task.incarnation, task.offset, task.identity, 0, 0, (), verify=False, attempt=task.attempt
    )


def settle_doubts(tasks: Sequence[ReadTask], probes: Sequence[ReadTask]) -> None:
    """Replace ``ChecksumMismatch`` by what the probes of these tasks found."""
    for task, probe in zip(tasks, probes, strict=True):
        if isinstance(probe.error, StaleExtent):
            task.error = probe.error


def _batches(reads: list[_Read]) -> list[list[_Read]]:
    """Cut a row of reads where a request would have too many entries."""
    batches: list[list[_Read]] = []
    room = 0
    for read in reads:
        if len(read.entries) > room:
            batches.append([])
            room = limits.DATA_ENTRIES_MAX
        batches[-1].append(read)
        room -= len(read.entries)
    return batches


# --- writes -------------------------------------------------------------------------------------


class WriteExchange:
    """Writes a row of checked tasks over one connection.

    Attributes:
        done: How many tasks, from the first, have their result.
        answered: Whether any byte of a reply has come.
    """

    def __init__(self, tasks: Sequence[WriteTask], deadline: Deadline) -> None:
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
        size = limits.DATA_ENTRIES_MAX
        batches = [self._tasks[at : at + size] for at in range(0, len(self._tasks), size)]
        asked: list[int] = []
        for index, batch in enumerate(batches):
            while len(asked) < min(index + WINDOW, len(batches)):
                asked.append(next(ids))
                yield Send(self._request(batches[len(asked) - 1], asked[-1]))
            reply = Reply(Operation.WRITE, asked[index], len(batch))
            yield Receive([reply.head], reply.size)
            self.answered = True
            reply.check()
            for task, status in zip(batch, reply.statuses, strict=True):
                task.error = data.error_of(status, node=node) if status else None
            self.done += len(batch)

    def _request(self, batch: Sequence[WriteTask], request_id: int) -> list[memoryview]:
        entries = []
        payload: list[memoryview] = []
        total = 0
        for task in batch:
            header, tail = task.sealed
            size = HEADER_BYTES + task.identity.length + len(tail)
            total += size
            entries.append((task.incarnation, task.offset, task.identity.version, 0, size))
            payload += (memoryview(header), *task.parts, memoryview(tail))
        frame = data.encode_request(
            Operation.WRITE,
            request_id,
            entries,
            deadline_ms=self._deadline.left_ms(),
            payload_bytes=total,
        )
        return [memoryview(frame), *payload]


def write_exchange(tasks: Sequence[WriteTask], deadline: Deadline) -> AnyWrite:
    """Return the exchange that writes checked tasks in the fewest steps."""
    if len(tasks) == 1:
        return OneWrite(tasks[0], deadline)
    return WriteExchange(tasks, deadline)


AnyWrite = WriteExchange | OneWrite
