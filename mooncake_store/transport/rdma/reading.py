"""Reads over RDMA: which remote bytes go where, and how what came is judged. Sans-I/O.

The version table and the epochs are read like the payload, so that a reader sees what the node
would have told it. Where the payload is hashed, the order does not matter: the checksum says that
the bytes are this version's, the entry that it was not freed when the call was under way. Where it
is not, header, entry and epoch are fetched once more after all payload has arrived: memory is only
reused after its entry was fenced.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import TYPE_CHECKING, Final

import xxhash

from mooncake_store import device_memory, extent
from mooncake_store.errors import ChecksumMismatch, InvalidArgument, StaleExtent, StoreError
from mooncake_store.extent import HEADER_BYTES
from mooncake_store.limits import CHUNK_BYTES, GRANULE_BYTES
from mooncake_store.memory import address_of
from mooncake_store.segment import EPOCHS_AT, TABLE_AT
from mooncake_store.transport.exchange import SCRATCH_BYTES, read_exchange
from mooncake_store.transport.one_chunk import is_one_chunk
from mooncake_store.transport.rdma.flow import Flow, Places, staged_bytes
from mooncake_store.transport.rdma.spreading import Spread
from mooncake_store.transport.rdma.verbs import SCATTER_MAX
from mooncake_store.transport.read_plan import ReadPlan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mooncake_store.data_path import ReadTask
    from mooncake_store.deadline import Deadline
    from mooncake_store.transport.rdma.flow import Moves, Place
    from mooncake_store.transport.rdma.link import Link
    from mooncake_store.transport.rdma.verbs import Piece
    from mooncake_store.wire.rdma import Region

_word = struct.Struct("<Q").unpack_from
_half = struct.Struct("<I").unpack_from
_hash = xxhash.xxh3_64_intdigest
_WORD_BYTES: Final = 8
_STATE_BYTES: Final = _WORD_BYTES + HEADER_BYTES

REQUESTS_PER_STEP: Final = SCATTER_MAX + 8
"""Upper bound of the requests that one chunk with its header and table takes."""


def refusal(region: Region, task: ReadTask) -> StoreError | None:
    """Return why a task cannot be read from a region; None: it can be tried."""
    whole = extent.read_bytes(task.identity.length)
    if task.offset < 0 or task.offset % GRANULE_BYTES or task.offset + whole > region.bytes:
        return InvalidArgument(
            f"no extent of {whole} bytes begins at {task.offset} of a segment of {region.bytes}"
        )
    return None


class _Read:
    """One task under way."""

    __slots__ = ("_entry", "_epoch", "plan", "region", "table")

    def __init__(self, task: ReadTask, region: Region) -> None:
        self.plan = ReadPlan(task)
        self.region = region
        self.table: memoryview | None = None
        self._entry = self._epoch = memoryview(b"")

    def fetch_header(self, flow: Flow) -> None:
        """Ask for the header."""
        header, piece = flow.scratch(HEADER_BYTES)
        region = self.region
        flow.read(region.extents + self.plan.task.offset, region.extents_key, [piece])
        flow.then(partial(self.plan.received_header, header))

    def fetch_state(self, flow: Flow) -> None:
        """Ask for the entry of the version table and the epoch."""
        region, task = self.region, self.plan.task
        key = region.control_key
        at = region.control + TABLE_AT + 8 * (task.offset // GRANULE_BYTES)
        self._entry = flow.word(at, 8, key)
        self._epoch = flow.word(region.control + EPOCHS_AT + 4 * task.identity.slot, 4, key)

    def stale(self) -> StaleExtent | None:
        """Return why what was fetched may not be given out, judged by entry and epoch."""
        task = self.plan.task
        identity = task.identity
        if _word(self._entry)[0] != (task.attempt or identity.version):
            return StaleExtent(f"version {identity.version} is not at {task.offset} any more")
        if _half(self._epoch)[0] > identity.epoch:
            return StaleExtent(f"epoch {identity.epoch} of the extent's namespace is over")
        return None

    def keep_state(self) -> None:
        """Copy what was fetched to judge by, as the slab is used again before the judgement."""
        self._entry, self._epoch = memoryview(bytes(self._entry)), memoryview(bytes(self._epoch))
        if self.table is not None:
            self.table = memoryview(bytes(self.table))

    def finish(self) -> None:
        """Set the result of a verified task."""
        plan = self.plan
        plan.task.error = self.stale() or self._overrun()
        if plan.task.error is None:
            plan.finish(self.table)

    def finish_unverified(self) -> None:
        """Set the result of a task whose header was fetched after its payload."""
        self.plan.task.error = self.stale() or self.plan.error or self._overrun()

    def _overrun(self) -> ChecksumMismatch | None:
        header = self.plan.header
        if header is None:
            return None
        whole = extent.read_bytes(header.length) + header.name_bytes
        if self.plan.task.offset + whole <= self.region.bytes:
            return None
        return ChecksumMismatch("the extent says more bytes than its segment holds")


class RdmaReads:
    """Reads a row of checked tasks over one link.

    Attributes:
        tasks: The tasks.
        done: How many of them, from the first, have their result.
        answered: Never set: what was read once can be read again.
        copied: Payload bytes that went through the slab.
    """

    def __init__(self, tasks: Sequence[ReadTask], deadline: Deadline) -> None:
        self._deadline = deadline
        self.done = 0
        self.answered = False
        self.copied = 0
        self.tasks = tasks

    def moves(self, link: Link, ids: Iterator[int], node: str) -> Moves:
        """Yield what is to be moved; every task has its result at the end."""
        spread = Spread(link, self.tasks)
        waiting: list[_Read] = []
        elsewhere: list[ReadTask] = []
        for task in self.tasks:
            region = link.regions.get(task.incarnation)
            if region is None:
                elsewhere.append(task)
                continue
            task.error = refusal(region, task)
            if task.error is None:
                yield from _ask(spread, region, task, waiting)
        yield from spread.finish()
        yield from _settle(spread.main, waiting)
        if elsewhere:
            # On the node's disk, or nowhere: the node answers over the connection itself.
            scratch = memoryview(bytearray(SCRATCH_BYTES))
            with device_memory.staged(elsewhere):
                yield from read_exchange(elsewhere, self._deadline).effects(ids, scratch, node)
        self.copied = spread.main.copied
        self.done = len(self.tasks)


def _ask(spread: Spread, region: Region, task: ReadTask, waiting: list[_Read]) -> Moves:
    """Ask for all of a task; one that can only be judged when all has ended is noted."""
    flow = spread.main
    if len(task.targets) == 1 and is_one_chunk(task):
        if not flow.fits(task.length + 2 * HEADER_BYTES, REQUESTS_PER_STEP):
            yield from flow.turn()
        _one_chunk(flow, region, task)
        return
    read = _Read(task, region)
    if task.verify:
        yield from _verified(spread, read)
    else:
        yield from _payload(spread, read)
    if spread.is_wide or not task.verify:
        waiting.append(read)


def _settle(flow: Flow, reads: list[_Read]) -> Moves:
    """Judge reads whose payload has all arrived; of those not hashed fetch header and state now."""
    for read in reads:
        if read.plan.task.verify:
            read.finish()
            continue
        if not flow.fits(2 * HEADER_BYTES, REQUESTS_PER_STEP):
            yield from flow.turn()
        read.fetch_header(flow)
        read.fetch_state(flow)
        flow.then(read.finish_unverified)
    yield from flow.finish()


def _one_chunk(flow: Flow, region: Region, task: ReadTask) -> None:
    """Ask for the most usual read in the fewest steps: a whole payload of one chunk, one target."""
    target, size = task.targets[0], task.length
    address = address_of(target)
    key = flow.link.rail.key_of(address, size)
    scratch, (at, _, slab_key) = flow.scratch(_STATE_BYTES if key >= 0 else _STATE_BYTES + size)
    staged = None
    if key < 0:
        staged = scratch[_STATE_BYTES:]
        pieces = [(at + _WORD_BYTES, HEADER_BYTES + size, slab_key)]
        flow.copied += size
    else:
        pieces = [(at + _WORD_BYTES, HEADER_BYTES, slab_key), (address, size, key)]
    flow.read(region.extents + task.offset, region.extents_key, pieces)
    entry_at = region.control + TABLE_AT + 8 * (task.offset // GRANULE_BYTES)
    flow.read(entry_at, region.control_key, [(at, _WORD_BYTES, slab_key)])
    epoch_at = region.control + EPOCHS_AT + 4 * task.identity.slot
    epoch = flow.word(epoch_at, 4, region.control_key)
    flow.then(partial(_settle_one_chunk, task, region, scratch, epoch, staged))


def _settle_one_chunk(
    task: ReadTask,
    region: Region,
    scratch: memoryview,
    epoch: memoryview,
    staged: memoryview | None,
) -> None:
    """Judge what came: the entry, the header behind it, the payload."""
    identity = task.identity
    try:
        if _word(scratch)[0] != (task.attempt or identity.version):
            raise StaleExtent(f"version {identity.version} is not at {task.offset} any more")
        if _half(epoch)[0] > identity.epoch:
            raise StaleExtent(f"epoch {identity.epoch} of the extent's namespace is over")
        header = extent.expect_header(scratch, _WORD_BYTES, identity)
        if task.offset + extent.read_bytes(header.length) + header.name_bytes > region.bytes:
            raise ChecksumMismatch("the extent says more bytes than its segment holds")
        target = task.targets[0]
        if staged is not None:
            target[:] = staged
        extent.verify_digests([_hash(target)], header)
        task.verified = True
    except StoreError as error:
        task.error = error


def _verified(spread: Spread, read: _Read) -> Moves:
    plan, flow = read.plan, spread.main
    task = plan.task
    plan.expect_chunks()
    if not flow.fits(HEADER_BYTES, REQUESTS_PER_STEP):
        yield from flow.turn()
    read.fetch_header(flow)
    places = Places(task.targets, flow.link)
    end = task.start + task.length
    for index, chunk in enumerate(plan.chunks):
        low = chunk * CHUNK_BYTES
        high = min(low + CHUNK_BYTES, task.identity.length)
        wanted_low, wanted_high = max(low, task.start), min(high, end)
        targets = places.take(wanted_high - wanted_low)
        edges = wanted_low - low + high - wanted_high
        moved_by = flow
        if not edges:
            moved_by, targets = spread.pick(task.incarnation, targets)
        if not moved_by.fits(staged_bytes(targets) + edges, REQUESTS_PER_STEP):
            yield from moved_by.turn()
        _chunk(moved_by, read, index, (low, wanted_low, wanted_high, high), targets)
    table = plan.table_bytes()
    if not flow.fits(table + HEADER_BYTES, REQUESTS_PER_STEP):
        yield from flow.turn()
    if table:
        _table(flow, read, table)
    read.fetch_state(flow)
    flow.then(read.keep_state if spread.is_wide else read.finish)


def _chunk(
    flow: Flow, read: _Read, index: int, bounds: tuple[int, int, int, int], targets: list[Place]
) -> None:
    """Ask for one whole chunk, of which the targets take the middle."""
    low, wanted_low, wanted_high, high = bounds
    pieces: list[Piece] = []
    hashed: list[memoryview] = []
    copies: list[tuple[memoryview, memoryview]] = []
    if low < wanted_low:
        view, piece = flow.scratch(wanted_low - low)
        hashed.append(view)
        pieces.append(piece)
    for target in targets:
        hashed.append(target.view)
        pieces.append(_local(flow, target, copies))
    if wanted_high < high:
        view, piece = flow.scratch(high - wanted_high)
        hashed.append(view)
        pieces.append(piece)
    plan = read.plan
    region = flow.link.regions[plan.task.incarnation]
    flow.read(region.extents + plan.task.offset + HEADER_BYTES + low, region.extents_key, pieces)
    if copies:
        flow.then(partial(_copy, copies))
    flow.then(partial(plan.received_chunk_at, index, hashed))


def _payload(spread: Spread, read: _Read) -> Moves:
    """Ask for a range that is not hashed."""
    task = read.plan.task
    places = Places(task.targets, spread.main.link)
    at = read.region.extents + task.offset + HEADER_BYTES + task.start
    left = task.length
    while left:
        size = min(left, CHUNK_BYTES)
        flow, targets = spread.pick(task.incarnation, places.take(size))
        if not flow.fits(staged_bytes(targets), REQUESTS_PER_STEP):
            yield from flow.turn()
        copies: list[tuple[memoryview, memoryview]] = []
        pieces = [_local(flow, target, copies) for target in targets]
        flow.read(at, flow.link.regions[task.incarnation].extents_key, pieces)
        if copies:
            flow.then(partial(_copy, copies))
        at += size
        left -= size


def _table(flow: Flow, read: _Read, size: int) -> None:
    region, task = read.region, read.plan.task
    read.table, piece = flow.scratch(size)
    at = region.extents + task.offset + HEADER_BYTES + task.identity.length
    flow.read(at, region.extents_key, [piece])


def _local(flow: Flow, target: Place, copies: list[tuple[memoryview, memoryview]]) -> Piece:
    """Return where a target's bytes arrive; if it is not registered, the slab first."""
    size = len(target.view)
    if target.key >= 0:
        return target.address, size, target.key
    staged, piece = flow.scratch(size)
    copies.append((target.view, staged))
    flow.copied += size
    return piece


def _copy(copies: list[tuple[memoryview, memoryview]]) -> None:
    for target, staged in copies:
        target[:] = staged
