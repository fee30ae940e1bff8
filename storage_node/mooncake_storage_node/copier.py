"""Performs ``CopyExtents``: a few threads that pull extents to this node, off the control thread.

Orders and heartbeats never wait for a copy. Each copy has a deadline by its size, and a source that
gave no answer is not asked again for a moment, so one dead source costs the others little.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

from mooncake_storage_node.arrival import Arrival, Landing
from mooncake_storage_node.pulling import PIECE_BYTES, Pull, check_source, copy_here, load_here
from mooncake_store.deadline import Deadline
from mooncake_store.errors import (
    Closed,
    DeadlineExceeded,
    InternalError,
    InvalidArgument,
    ObjectTooLarge,
    Overloaded,
    StaleTerm,
    StoreError,
    Unreachable,
)
from mooncake_store.extent import HEADER_BYTES
from mooncake_store.limits import COPY_BYTES_PER_S_MIN, MIB
from mooncake_store.transport.spinning import Spinner
from mooncake_store.transport.tcp import TcpConnection, connect
from mooncake_store.types import term_of
from mooncake_store.wire.control import Copied, CopyResult

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mooncake_storage_node.store_orders import StoreCopy, StoreOrders
    from mooncake_storage_node.writes import IncomingWrites
    from mooncake_store.segment import Segment
    from mooncake_store.wire.control import CopyExtents, CopyItem, Message

    Answer = Callable[[Message | StoreError], None]

logger = logging.getLogger(__name__)

THREADS: Final = 3
"""Copies at a time. One moves 1 to 2 GB/s; more would take the interpreter from the data port."""

WAITING_MAX: Final = 65_536
"""Copies that wait; what comes then is refused as overloaded. About 30 MB."""

CONNECTIONS_MAX: Final = 4
"""Connections that each thread keeps, to the sources it asked last."""

PATIENCE_S: Final = 3.0
"""Time for the smallest copy. Smaller: a busy source is given up. Larger: a dead one holds a thread
for longer."""

SHUN_S: Final = 1.0
"""Time for which a source that did not answer is not asked again."""

ORDER_S: Final = 60.0
"""Time for an order that names no deadline."""

BUFFERS_BYTES_MAX: Final = 256 * MIB
"""Memory that extents of other nodes lie in until this node's disk has taken them."""


NUMBERS_MAX: Final = 1 << 64
"""Incarnations, offsets and numbers of writes have 64 bits on the data port."""


class Source(NamedTuple):
    """A node to pull from."""

    host: str
    port: int
    node_id: str


class _Buffers:
    """A bounded amount of memory; who finds none waits for it."""

    def __init__(self) -> None:
        self._free = threading.Condition()
        self._used = 0

    def take(self, size: int, deadline: Deadline) -> memoryview:
        """Return so much memory; ``give`` must be told of it.

        Raises:
            ObjectTooLarge: There is never so much.
            DeadlineExceeded: None became free in time.
        """
        if size > BUFFERS_BYTES_MAX:
            raise ObjectTooLarge(
                f"extents that go to another node's disk have {BUFFERS_BYTES_MAX} bytes at most,"
                f" not {size}"
            )
        with self._free:
            while self._used + size > BUFFERS_BYTES_MAX:
                self._free.wait(deadline.check("a copy waited for memory"))
            self._used += size
        return memoryview(bytearray(size))

    def give(self, size: int) -> None:
        """Take memory back."""
        with self._free:
            self._used -= size
            self._free.notify_all()


class Job(NamedTuple):
    """One item of an order."""

    order: Order
    position: int
    item: CopyItem
    copy: StoreCopy | None
    """Its announcement, where a store is to take it."""


class Order:
    """One ``CopyExtents`` while its items are worked on.

    Attributes:
        deadline: When it must have been answered.
    """

    def __init__(self, count: int, deadline: Deadline, answer: Answer) -> None:
        self.deadline = deadline
        self._answer = answer
        self._results: list[CopyResult | None] = [None] * count
        self._left = count
        self._lock = threading.Lock()

    def settle(self, index: int, result: CopyResult | StoreError) -> None:
        """Set the result of an item, once; the last one answers the order."""
        if isinstance(result, StoreError):
            result = CopyResult(-1, result.code, str(result))
        with self._lock:
            if self._results[index] is not None:
                return
            self._results[index] = result
            self._left -= 1
            is_over = not self._left
        if is_over:
            self._answer(Copied([each for each in self._results if each is not None]))


class Copier:
    """The copies of one node.

    Attributes:
        copied: Extents that were copied, and ``copied_bytes`` of them.
        failed: {code: copies that failed with it}.
    """

    def __init__(
        self,
        node_id: str,
        segments: Mapping[int, Segment],
        incoming: IncomingWrites,
        orders: StoreOrders | None = None,
    ) -> None:
        """Prepare; ``start`` begins.

        Args:
            node_id: Of this node: a source of that name is here.
            segments: {incarnation: segment} of this node.
            incoming: Register of writes, so that freeing an extent cuts copies off as well.
            orders: Its stores; None where it has none.
        """
        self.copied = 0
        self.copied_bytes = 0
        self.failed: dict[str, int] = {}
        self._node_id = node_id
        self._segments = segments
        self._incoming = incoming
        self._orders = orders
        self._buffers = _Buffers()
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._shunned: dict[Source, tuple[float, StoreError]] = {}
        self._stopping = False
        self._workers = [_Worker(self, index) for index in range(THREADS)]

    def start(self) -> None:
        """Begin to work."""
        for worker in self._workers:
            worker.start()

    def stop(self) -> None:
        """End: what is under way is given up, what waits is refused. Idempotent."""
        self._stopping = True
        for worker in self._workers:
            self._jobs.put(None)
            worker.abort()
        for worker in self._workers:
            if worker.is_alive():
                worker.join()

    def order(self, message: CopyExtents, limit_s: float, answer: Answer) -> None:
        """Begin to copy; ``answer`` is called once, on a thread of ours or on the caller's.

        Args:
            message: What to copy.
            limit_s: Time in which it must be answered; 0: the order names none.
            answer: Gets ``Copied``.
        """
        order = Order(len(message.items), Deadline(limit_s or ORDER_S), answer)
        if not message.items:
            answer(Copied([]))
        room = WAITING_MAX - self._jobs.qsize()
        for index, item in enumerate(message.items):
            if index >= room:
                full = Overloaded(f"{WAITING_MAX} copies wait already")
                self._settle(Job(order, index, item, None), full)
                continue
            # Announced before the next order is read: that may be one to free it.
            store = self._orders.stores.find(item.incarnation) if self._orders else None
            copy = self._orders.announce(store, item) if self._orders and store else None
            self._jobs.put(Job(order, index, item, copy))

    def _settle(self, job: Job, result: CopyResult | StoreError) -> None:
        """End one copy, and count how."""
        code = result.code
        with self._lock:
            if code:
                self.failed[code] = self.failed.get(code, 0) + 1
            else:
                self.copied += 1
                self.copied_bytes += job.item.bytes
        if job.copy is not None and self._orders is not None:
            self._orders.forget(job.copy)
        job.order.settle(job.position, result)

    # --- what the workers use -------------------------------------------------------------------

    def next(self) -> Job | None:
        """Wait for the next copy; None at the end."""
        return self._jobs.get()

    def perform(self, job: Job, worker: _Worker) -> None:
        """Copy one extent; where that fails nothing is readable."""
        try:
            self._check(job)
            if job.copy is not None:
                self._to_store(job, job.copy, worker)
                return
            self._to_memory(job, worker)
        except StoreError as error:
            self._settle(job, error)
        except Exception as error:
            # A thread that ends leaves orders without an answer, and is missed by all later ones.
            logger.exception("a copy of version %d failed", job.item.version)
            self._settle(job, InternalError(f"the copy failed: {error!r}"))
        else:
            self._settle(job, CopyResult(job.item.offset))

    def _check(self, job: Job) -> None:
        """Make sure that a copy can still be begun, and is one.

        Raises:
            Closed, DeadlineExceeded: It is too late.
            InvalidArgument: Its numbers are none of an extent's, and no request could name them.
        """
        if self._stopping:
            raise Closed("this node is stopping")
        job.order.deadline.check("a copy waited for its turn")
        item = job.item
        numbers = (item.source_incarnation, item.source_offset, item.source_attempt, item.version)
        if not all(0 <= number < NUMBERS_MAX for number in (*numbers, item.attempt)):
            raise InvalidArgument(f"no copy has these numbers: {(*numbers, item.attempt)}")

    def _to_memory(self, job: Job, worker: _Worker) -> None:
        """Copy an extent to a segment.

        Raises:
            StoreError: Why it was not copied.
        """
        item = job.item
        segment = self._segments.get(item.incarnation)
        if segment is None:
            raise self._no_segment(item.incarnation)
        landing = Landing(item, segment, self._incoming)
        if not landing.begin():
            return
        try:
            self._fetch(landing, _patience(job), worker)
            landing.publish()
        finally:
            landing.end()

    def _to_store(self, job: Job, copy: StoreCopy, worker: _Worker) -> None:
        """Have an extent written to a disk, from where it lies or through memory.

        Raises:
            StoreError: Why it is not; else the store ends the job.
        """
        item, orders = job.item, self._orders
        assert orders is not None
        if term_of(item.attempt) < max((s.term for s in self._segments.values()), default=0):
            raise StaleTerm(f"attempt {item.attempt} is of an older reign")
        segment = self._segments.get(item.source_incarnation)
        if segment is not None and item.source_node in {"", self._node_id}:
            check_source(item, segment)
            source = segment.extents[item.source_offset : item.source_offset + item.bytes]
            orders.write(copy, source, job.order.deadline, lambda end: self._settle(job, end))
            return
        if item.bytes < HEADER_BYTES:
            raise InvalidArgument(f"no extent has {item.bytes} bytes")
        buffer = self._buffers.take(item.bytes, _patience(job))

        def end(result: CopyResult | StoreError) -> None:
            self._buffers.give(item.bytes)
            self._settle(job, result)

        try:
            arrival = Arrival(item, buffer)
            self._fetch(arrival, _patience(job), worker)
            arrival.complete()
            orders.write(copy, buffer, job.order.deadline, end)
        except BaseException:
            self._buffers.give(item.bytes)
            raise

    def _fetch(self, arrival: Arrival, deadline: Deadline, worker: _Worker) -> None:
        """Bring all bytes of an extent in, verified."""
        item = arrival.item
        if item.source_node not in {"", self._node_id}:
            worker.pull(arrival, deadline)
            return
        segment = self._segments.get(item.source_incarnation)
        if segment is not None:
            for _ in copy_here(arrival, segment, deadline):
                pass
            return
        store = self._orders.stores.find(item.source_incarnation) if self._orders else None
        if store is None:
            raise self._no_segment(item.source_incarnation)
        load_here(arrival, store, deadline)

    def _no_segment(self, incarnation: int) -> StoreError:
        if self._orders is not None and self._orders.stores.owns(incarnation):
            return Overloaded("the store is not open")
        return InvalidArgument(f"this node has no segment {incarnation:x}")

    def check_source(self, source: Source) -> None:
        """Refuse a source that did not answer just now.

        Raises:
            Unreachable, DeadlineExceeded: As the source was then.
        """
        with self._lock:
            until_s, error = self._shunned.get(source, (0.0, None))
        if error is not None and time.monotonic() < until_s:
            raise error

    def shun(self, source: Source, error: StoreError) -> None:
        """Remember that a source did not answer."""
        now = time.monotonic()
        with self._lock:
            self._shunned = {each: known for each, known in self._shunned.items() if known[0] > now}
            self._shunned[source] = (now + SHUN_S, error)


def _patience(job: Job) -> Deadline:
    """Return the time that one copy may take, within that of its order."""
    limit_s = PATIENCE_S + job.item.bytes / COPY_BYTES_PER_S_MIN
    return Deadline(min(limit_s, job.order.deadline.check("a copy waited for its turn")))


class _Worker(threading.Thread):
    """One thread that copies, with its connections."""

    def __init__(self, copier: Copier, index: int) -> None:
        super().__init__(name=f"copy-{index}", daemon=True)
        self._copier = copier
        self._connections: OrderedDict[Source, TcpConnection] = OrderedDict()
        self._scratch = memoryview(bytearray(PIECE_BYTES))
        self._spinner = Spinner()
        self._busy: TcpConnection | None = None

    def run(self) -> None:
        """Copy until stopped."""
        while (job := self._copier.next()) is not None:
            self._copier.perform(job, self)
        for connection in self._connections.values():
            connection.close()

    def abort(self) -> None:
        """Break off what is under way; called by another thread."""
        busy = self._busy
        if busy is not None:
            busy.abort()

    def pull(self, arrival: Arrival, deadline: Deadline) -> None:
        """Read an extent from another node into ``arrival``.

        Raises:
            StoreError: Why it cannot be had.
        """
        item = arrival.item
        source = Source(item.source_host, item.source_port, item.source_node)
        self._copier.check_source(source)
        try:
            while True:
                connection, is_fresh = self._take(source, deadline)
                pull = Pull(arrival, deadline)
                try:
                    self._perform(connection, pull, source, deadline)
                except Unreachable:
                    # One that was kept may have died unnoticed.
                    if is_fresh or pull.answered:
                        raise
                else:
                    break
        except (Unreachable, DeadlineExceeded) as error:
            if isinstance(error, Unreachable) or deadline.total_s >= PATIENCE_S:
                self._copier.shun(source, error)
            raise
        if pull.error is not None:
            raise pull.error

    def _perform(
        self, connection: TcpConnection, pull: Pull, source: Source, deadline: Deadline
    ) -> None:
        self._busy = connection
        try:
            connection.perform(
                pull.effects(connection.ids, self._scratch, source.node_id), deadline
            )
        finally:
            self._busy = None
            if pull.done:
                self._keep(source, connection)
            else:
                connection.close()

    def _take(self, source: Source, deadline: Deadline) -> tuple[TcpConnection, bool]:
        """Return a connection to a source, and whether it is new."""
        kept = self._connections.pop(source, None)
        if kept is not None:
            if kept.is_usable():
                return kept, False
            kept.close()
        address = (source.host, source.port)
        return connect(address, source.node_id, source.node_id, deadline, self._spinner), True

    def _keep(self, source: Source, connection: TcpConnection) -> None:
        self._connections[source] = connection
        while len(self._connections) > CONNECTIONS_MAX:
            _, oldest = self._connections.popitem(last=False)
            oldest.close()
