"""The client's side of the data protocol, fed by hand: whatever the pieces, the bytes are right."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_store import extent, fingerprint
from mooncake_store.deadline import Deadline
from mooncake_store.errors import StaleExtent
from mooncake_store.limits import CHUNK_BYTES, DATA_ENTRIES_MAX
from mooncake_store.testing.seeds import seeded
from mooncake_store.transport import ReadTask, WriteTask
from mooncake_store.transport.effects import Receive, Send
from mooncake_store.transport.exchange import (
    SCRATCH_BYTES,
    WriteExchange,
    read_exchange,
    write_exchange,
)
from mooncake_store.transport.one_chunk import GROUP_BYTES
from mooncake_store.transport.tasks import Scatter, advance
from mooncake_store.wire import data

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from random import Random


class FakeNode:
    """Answers requests from extents in a dict, and gives the answers out in pieces."""

    def __init__(self, random: Random) -> None:
        self.extents: dict[tuple[int, int], bytes] = {}
        self.requests: list[data.Header] = []
        self.largest = 0
        self._random = random
        self._stream = bytearray()

    def run(self, effects: Generator[Send | Receive, int, None]) -> None:
        """Perform an exchange."""
        effect = next(effects)
        while True:
            if isinstance(effect, Send):
                self._take(b"".join(effect.buffers))
                moved = 0
            else:
                moved = self._give(effect)
            try:
                effect = effects.send(moved)
            except StopIteration:
                assert not self._stream
                return

    def _give(self, effect: Receive) -> int:
        room = sum(map(len, effect.buffers))
        self.largest = max(self.largest, room)
        assert effect.at_least <= min(room, len(self._stream))
        size = self._random.randint(effect.at_least, min(room, len(self._stream)))
        piece = memoryview(bytes(self._stream[:size]))
        del self._stream[:size]
        for buffer in effect.buffers:
            take = piece[: len(buffer)]
            buffer[: len(take)] = take
            piece = piece[len(take) :]
        return size

    def _take(self, request: bytes) -> None:
        header = data.decode_header(request, reply=False)
        self.requests.append(header)
        entries = data.decode_entries(request[data.HEADER_BYTES :], header.count)
        statuses = []
        payload = b""
        at = data.HEADER_BYTES + data.ENTRY_BYTES * header.count
        for entry in entries:
            if header.operation == data.Operation.WRITE:
                self.extents[entry.offset, entry.version] = request[at : at + entry.bytes]
                at += entry.bytes
                statuses.append(0)
                continue
            raw = self.extents.get((entry.offset, entry.version))
            statuses.append(data.Status.STALE if raw is None else 0)
            if raw is not None:
                piece = raw[entry.start : entry.start + entry.bytes]
                assert len(piece) == entry.bytes
                payload += piece
        self._stream += data.encode_reply(
            header.operation, header.request_id, statuses, len(payload)
        )
        self._stream += payload


_versions = count(1)


def make(size: int, offset: int) -> tuple[WriteTask, bytes]:
    content = seeded(size, offset).randbytes(size)
    identity = extent.Identity(
        fingerprint.fingerprint("n", str(offset)), next(_versions), 0, 1, size
    )
    parts = [memoryview(content)]
    sealed = extent.seal(identity, extent.hash_payload(parts), extent.Names("n", str(offset)))
    return WriteTask(1, offset, identity, sealed, parts), content


@st.composite
def wishes(draw: st.DrawFn) -> list[tuple[int, int, int, bool, bool]]:
    """(size, start, length, verify, is there) of some reads."""
    found = []
    for _ in range(draw(st.integers(1, 12))):
        size = draw(
            st.sampled_from([0, 1, 100, 70_000, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES + 9])
        )
        start = draw(st.integers(0, size))
        length = draw(st.sampled_from([size - start, 0, (size - start) // 2]))
        found.append((size, start, length, draw(st.booleans()), draw(st.integers(0, 5)) > 0))
    return found


@given(wishes(), st.randoms(use_true_random=False))
def test_any_mixture_of_reads_in_any_pieces_gives_every_task_its_own_bytes(
    wanted: list[tuple[int, int, int, bool, bool]], random: Random
) -> None:
    node = FakeNode(random)
    tasks, contents = [], []
    for number, (size, start, length, verify, there) in enumerate(wanted):
        written, content = make(size, 512 * number)
        if there:
            raw = written.sealed.header + content + written.sealed.tail
            node.extents[written.offset, written.identity.version] = raw
        cut = random.randint(0, length)
        target = memoryview(bytearray(length))
        tasks.append(
            ReadTask(
                1, written.offset, written.identity, start, length,
                [target[:cut], target[cut:]], verify,
            )
        )  # fmt: skip
        contents.append(content[start : start + length])
    exchange = read_exchange(tasks, Deadline(5))
    scratch = memoryview(bytearray(SCRATCH_BYTES))
    node.run(exchange.effects(count(1), scratch, "n"))
    assert exchange.done == len(tasks)
    for task, content, (*_, there) in zip(tasks, contents, wanted, strict=True):
        if there:
            assert task.error is None
            assert b"".join(task.targets) == content
            assert task.verified == task.verify
        else:
            assert isinstance(task.error, StaleExtent)
    assert node.largest <= GROUP_BYTES + 16_384


def test_long_batches_are_cut_and_pipelined() -> None:
    node = FakeNode(seeded("pipeline"))
    tasks = []
    for number in range(2 * DATA_ENTRIES_MAX + 5):
        written, content = make(10, 512 * number)
        node.extents[written.offset, written.identity.version] = (
            written.sealed.header + content + written.sealed.tail
        )
        target = memoryview(bytearray(10))
        tasks.append(ReadTask(1, written.offset, written.identity, 0, 10, [target]))
    exchange = read_exchange(tasks, Deadline(5))
    node.run(exchange.effects(count(1), memoryview(bytearray(SCRATCH_BYTES)), "n"))
    assert all(task.verified for task in tasks)
    assert [header.count for header in node.requests] == [DATA_ENTRIES_MAX, DATA_ENTRIES_MAX, 5]


def test_writes_are_whole_extents_in_order() -> None:
    node = FakeNode(seeded("writes"))
    made = [make(size, 512 * number) for number, size in enumerate([0, 1, 5000, 300_000] * 300)]
    tasks = [task for task, _ in made]
    exchange = WriteExchange(tasks, Deadline(5))
    node.run(exchange.effects(count(1), memoryview(b""), "n"))
    assert len(node.requests) == 2
    for task, content in made:
        raw = node.extents[task.offset, task.identity.version]
        assert raw == task.sealed.header + content + task.sealed.tail
        assert task.error is None


@pytest.mark.parametrize("size", [0, 100, 300_000])
def test_one_write_is_one_request(size: int) -> None:
    node = FakeNode(seeded("one write"))
    task, content = make(size, 512)
    exchange = write_exchange([task], Deadline(5))
    node.run(exchange.effects(count(1), memoryview(bytearray(SCRATCH_BYTES)), "n"))
    assert len(node.requests) == exchange.done == 1
    assert task.error is None
    raw = node.extents[task.offset, task.identity.version]
    assert raw == task.sealed.header + content + task.sealed.tail


@pytest.mark.parametrize("size", [100, CHUNK_BYTES + 1])
def test_a_whole_verified_read_is_one_entry(size: int) -> None:
    written, content = make(size, 0)
    node = FakeNode(seeded(size))
    node.extents[0, written.identity.version] = (
        written.sealed.header + content + written.sealed.tail
    )
    target = memoryview(bytearray(size))
    exchange = read_exchange([ReadTask(1, 0, written.identity, 0, size, [target])], Deadline(5))
    node.run(exchange.effects(count(1), memoryview(bytearray(SCRATCH_BYTES)), "n"))
    assert [header.count for header in node.requests] == [1]
    assert target == content


# --- slicing ------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 10), max_size=10), st.lists(st.integers(0, 7), max_size=20))
def test_pieces_of_a_scatter_join_to_its_buffers(sizes: list[int], takes: list[int]) -> None:
    whole = bytes(range(sum(sizes)))
    buffers = list(_cut(memoryview(whole), sizes))
    scatter = Scatter(buffers)
    at = 0
    for take in takes:
        size = min(take, len(whole) - at)
        assert b"".join(scatter.take(size)) == whole[at : at + size]
        at += size


@given(st.lists(st.integers(0, 10), max_size=10), st.integers(0, 60))
def test_what_is_left_after_some_bytes_is_the_rest(sizes: list[int], done: int) -> None:
    whole = bytes(range(sum(sizes)))
    done = min(done, len(whole))
    assert b"".join(advance(list(_cut(memoryview(whole), sizes)), done)) == whole[done:]


def _cut(whole: memoryview, sizes: list[int]) -> Iterator[memoryview]:
    at = 0
    for size in sizes:
        yield whole[at : at + size]
        at += size
