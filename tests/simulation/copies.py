"""What ``copier.Copier`` does, in virtual time: the same arrivals over virtual sockets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_storage_node.arrival import Arrival, Landing
from mooncake_storage_node.copier import Order
from mooncake_storage_node.pulling import Pull, check_source, copy_here
from mooncake_store.deadline import Deadline
from mooncake_store.errors import (
    ChecksumMismatch,
    DeadlineExceeded,
    InvalidArgument,
    Overloaded,
    StaleTerm,
    StoreError,
    Unreachable,
)
from mooncake_store.extent import HEADER_BYTES
from mooncake_store.types import NodeState, term_of
from mooncake_store.wire.control import CopyResult, NodeRecord
from tests.simulation.data_path import Conversation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future

    from mooncake_storage_node.ssd import Staged, Store
    from mooncake_storage_node.store_orders import StoreCopy, StoreOrders
    from mooncake_storage_node.writes import IncomingWrites
    from mooncake_store.segment import Segment
    from mooncake_store.wire.control import CopyExtents, CopyItem, Message
    from tests.simulation.node import SimNode

    Over = Callable[[StoreError | None], None]
    Settle = Callable[[CopyResult | StoreError], None]

COPY_S = 1.0
"""Time for one copy."""
DISK_S = 0.5
"""Time that a disk has to take one."""

_SCRATCH_BYTES = 512
"""So few that a copy is moved in several steps, between which it can be cut off."""


class Copies:
    """The copies of one life of a node.

    Attributes:
        copied: Extents that were copied.
        failed: {code: copies that failed with it}.
    """

    def __init__(
        self,
        node: SimNode,
        segments: Mapping[int, Segment],
        incoming: IncomingWrites,
        orders: StoreOrders | None,
    ) -> None:
        self.copied = 0
        self.failed: dict[str, int] = {}
        self._node = node
        self._segments = segments
        self._incoming = incoming
        self._orders = orders

    def order(
        self, message: CopyExtents, limit_s: float, answer: Callable[[Message | StoreError], None]
    ) -> None:
        """Begin to copy; as ``Copier.order``."""
        order = Order(len(message.items), Deadline(5.0), answer)
        orders = self._orders
        for index, item in enumerate(message.items):
            store = orders.stores.find(item.incarnation) if orders is not None else None
            copy = orders.announce(store, item) if orders is not None and store else None
            over = _settling(self, order, index, copy)
            try:
                if copy is not None:
                    self._to_store(copy, over)
                else:
                    self._to_memory(item, min(COPY_S, limit_s or COPY_S), over)
            except StoreError as error:
                over(error)

    def end(self, copy: StoreCopy | None, result: CopyResult | StoreError) -> None:
        """Count how a copy ended."""
        if copy is not None and self._orders is not None:
            self._orders.forget(copy)
        code = result.code
        if code:
            self.failed[code] = self.failed.get(code, 0) + 1
        else:
            self.copied += 1

    # --- to memory ------------------------------------------------------------------------------

    def _to_memory(self, item: CopyItem, limit_s: float, settle: Settle) -> None:
        """Copy an extent to a segment.

        Raises:
            StoreError: It cannot be begun.
        """
        segment = self._segments.get(item.incarnation)
        if segment is None:
            raise self._no_segment(item.incarnation)
        landing = Landing(item, segment, self._incoming)
        if not landing.begin():
            settle(CopyResult(item.offset))
            return

        def over(error: StoreError | None) -> None:
            result: CopyResult | StoreError = CopyResult(item.offset)
            try:
                if error is not None:
                    raise error
                landing.publish()
            except StoreError as problem:
                result = problem
            finally:
                landing.end()
            settle(result)

        self._fetch(landing, limit_s, over)

    def _fetch(self, arrival: Arrival, limit_s: float, over: Over) -> None:
        """Bring an extent in, verified, from wherever it is."""
        item, node = arrival.item, self._node
        if item.source_node not in {"", node.node_id}:
            _Pulling(node, arrival, over).begin(limit_s)
            return
        segment = self._segments.get(item.source_incarnation)
        if segment is not None:
            node.later(0.0, lambda: over(_copy_here(arrival, segment)))
            return
        orders = self._orders
        store = orders.stores.find(item.source_incarnation) if orders is not None else None
        if store is None:
            node.later(0.0, lambda: over(self._no_segment(item.source_incarnation)))
        else:
            _Loading(arrival, store, over).begin()

    def _no_segment(self, incarnation: int) -> StoreError:
        if self._orders is not None and self._orders.stores.owns(incarnation):
            return Overloaded("the store is not open")
        return InvalidArgument(f"this node has no segment {incarnation:x}")

    # --- to the disk ----------------------------------------------------------------------------

    def _to_store(self, copy: StoreCopy, settle: Settle) -> None:
        """Have an extent written to the disk.

        Raises:
            StoreError: It cannot be begun.
        """
        item, orders = copy.item, self._orders
        assert orders is not None
        if term_of(item.attempt) < max(segment.term for segment in self._segments.values()):
            raise StaleTerm(f"attempt {item.attempt} is of an older reign")
        segment = self._segments.get(item.source_incarnation)
        if segment is not None and item.source_node in {"", self._node.node_id}:
            check_source(item, segment)
            source = segment.extents[item.source_offset : item.source_offset + item.bytes]
            self._write(copy, source, settle)
            return
        if item.bytes < HEADER_BYTES:
            raise InvalidArgument(f"no extent has {item.bytes} bytes")
        buffer = memoryview(bytearray(item.bytes))
        arrival = Arrival(item, buffer)

        def over(error: StoreError | None) -> None:
            try:
                if error is not None:
                    raise error
                arrival.complete()
                self._write(copy, buffer, settle)
            except StoreError as problem:
                settle(problem)

        self._fetch(arrival, DISK_S, over)

    def _write(self, copy: StoreCopy, source: memoryview, settle: Settle) -> None:
        assert self._orders is not None
        self._orders.write(copy, source, Deadline(5.0), settle)
        self._node.later(DISK_S, copy.expire)


def _settling(copies: Copies, order: Order, index: int, copy: StoreCopy | None) -> Settle:
    """Return what ends one item of an order."""

    def over(result: CopyResult | StoreError) -> None:
        copies.end(copy, result)
        order.settle(index, result)

    return over


def _copy_here(arrival: Arrival, segment: Segment) -> StoreError | None:
    try:
        for _ in copy_here(arrival, segment, Deadline(5.0)):
            pass
    except StoreError as error:
        return error
    return None


class _Loading:
    """One extent on its way from the disk, as ``pulling.load_here`` brings it in."""

    def __init__(self, arrival: Arrival, store: Store, over: Over) -> None:
        self._arrival = arrival
        self._store = store
        self._over = over

    def begin(self) -> None:
        """Read the header, then the rest."""
        self._read(0, HEADER_BYTES, self._take_header)

    def _read(self, start: int, size: int, taken: Callable[[memoryview], None]) -> None:
        item = self._arrival.item

        def ended(read: Future[Staged]) -> None:
            try:
                with read.result() as view:
                    taken(view)
            except StoreError as error:
                self._over(error)

        try:
            future = self._store.read(item.source_offset, item.version, start, size, Deadline(5.0))
        except StoreError as error:
            self._over(error)
            return
        future.add_done_callback(ended)

    def _take_header(self, head: memoryview) -> None:
        whole = self._arrival.take_header(head)
        self._read(HEADER_BYTES, whole - HEADER_BYTES, self._take_rest)

    def _take_rest(self, rest: memoryview) -> None:
        arrival = self._arrival
        arrival.take(rest)
        try:
            arrival.verify()
        except ChecksumMismatch as error:
            self._store.give_up(arrival.item.source_offset, arrival.item.version, error.code)
            raise
        self._over(None)


class _Pulling:
    """One extent on its way from another node."""

    def __init__(self, node: SimNode, arrival: Arrival, over: Over) -> None:
        self._node = node
        self._item = arrival.item
        self._over: Over | None = over
        self._pull = Pull(arrival, Deadline(5.0))

    def begin(self, limit_s: float) -> None:
        """Connect and read, for so long at most."""
        item = self._item
        source = self._node.world.nodes.get(item.source_host)
        if source is None:
            self._node.later(0.0, lambda: self._end(Unreachable("there is no such node")))
            return
        record = NodeRecord(
            0, source.name, item.source_node, source.name, 1, "", NodeState.LIVE, (), {}
        )
        conversation = Conversation(self._node, record)
        self._node.later(limit_s, lambda: self._expire(conversation))
        pull = self._pull

        def ended(error: StoreError | None) -> None:
            conversation.close()
            self._end(error or pull.error)

        conversation.perform(
            lambda ids, scratch, name: pull.effects(ids, scratch[:_SCRATCH_BYTES], name), ended
        )

    def _expire(self, conversation: Conversation) -> None:
        if self._over is not None:
            conversation.close()
            self._end(DeadlineExceeded("the source did not answer in time"))

    def _end(self, error: StoreError | None) -> None:
        over, self._over = self._over, None
        if over is not None:
            over(error)
