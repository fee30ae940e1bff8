"""One queue pair that leads to a node, with its slab and the node's memory. No waiting here."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Final

from mooncake_store.errors import ConfigError, ProtocolError, StoreError, Unreachable
from mooncake_store.segment import INCARNATION_AT
from mooncake_store.transport.effects import Receive, Send
from mooncake_store.transport.one_chunk import Reply
from mooncake_store.transport.rdma.context import Slab
from mooncake_store.transport.rdma.flow import Await, Flow, Post
from mooncake_store.wire.data import Operation
from mooncake_store.wire.rdma import (
    ENDPOINT_BYTES,
    OFFER_BYTES_MAX,
    REASON_BYTES_MAX,
    decode_offer,
    encode_open,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mooncake_store.deadline import Deadline
    from mooncake_store.transport.rdma.context import Rail
    from mooncake_store.transport.rdma.flow import Moves
    from mooncake_store.transport.rdma.verbs import DeviceLimits, QueuePair, WorkRequest
    from mooncake_store.wire.rdma import Endpoint, Region

logger = logging.getLogger(__name__)

REQUESTS_MAX: Final = 1024
"""Requests of one queue pair that are not over: a batch of 128 gets takes 257, in one turn."""

STALL_S: Final = 2.0
"""Time without a completion after which the fabric counts as gone. A device repeats a lost packet
for about half a second before it says so. Smaller: a busy fabric loses transfers; larger: less of
the deadline is left for TCP."""

_abandoned: list[object] = []
"""What a forked child leaves to its parent: destroying it would destroy the parent's."""


_Refusal = Generator[Send | Receive | Post | Await, int, "FabricLost"]


class FabricLost(Unreachable):
    """RDMA does not work to this node now; other ways may."""


LANE_BYTES: Final = 4096
"""Registered memory of a lane: for words that prove it and words that follow its writes."""


class Link:
    """A connected queue pair, and others of the same connection.

    Attributes:
        rail: Its device.
        lanes: The others, over which registered memory of large transfers is spread.
        wanted: Devices of lanes that nobody has tried to open yet.
        slab: Memory for what callers did not register.
        regions: {incarnation: the node's memory}.
        peer: The node's end, once it has told it.
        posted: Number of the last request given to the device.
        completed: Number of the last one that is over.
        requests_max: Requests that may be under way.
    """

    def __init__(self, rail: Rail, node: str, number: int, *, is_lane: bool = False) -> None:
        """Take a slab and make a queue pair; ``opening`` connects it.

        Args:
            rail: What to use.
            node: Name of the peer, for messages.
            number: Of the connection: which of the node's devices to ask for.
            is_lane: It has no slab but ``LANE_BYTES``.

        Raises:
            Overloaded, ConfigError, Unreachable: There is none to be had.
        """
        self.rail = rail
        self.limits: DeviceLimits = rail.device.limits
        self.requests_max = min(REQUESTS_MAX, self.limits.requests_max)
        self.regions: dict[int, Region] = {}
        self.peer: Endpoint | None = None
        self.posted = self.completed = 0
        self.lanes: list[Link] = []
        self.wanted: list[Rail] = []
        self._number = number
        self._is_lane = is_lane
        self._node = node
        self._process = os.getpid()
        self.slab: Slab = Slab(rail.device, LANE_BYTES) if is_lane else rail.take_slab()
        try:
            self.pair: QueuePair = rail.device.create_queue_pair(self.requests_max, number % 256)
        except BaseException:
            self._give_slab()
            raise
        self._is_open = True
        self._progress_s = 0.0

    def opening(self, ids: Iterator[int], deadline: Deadline) -> Moves:
        """Exchange endpoints with the node, connect, and prove that its memory is reached.

        Raises:
            FabricLost: The node has no RDMA, or does not reach this side.
            ProtocolError: It answers with something else.
        """
        request_id = next(ids)
        hello = encode_open(self.pair.endpoint, request_id, deadline.left_ms())
        reply = Reply(Operation.RDMA_OPEN, request_id, 1)
        yield Send([memoryview(hello)])
        yield Receive([reply.head], reply.size)
        reply.check()
        if reply.statuses[0]:
            raise (yield from self._refused(reply))
        if not ENDPOINT_BYTES <= reply.payload_bytes <= OFFER_BYTES_MAX:
            raise ProtocolError(f"an RDMA offer of {reply.payload_bytes} bytes is none")
        offer = memoryview(bytearray(reply.payload_bytes))
        yield Receive([offer], len(offer))
        self.peer, regions = decode_offer(offer)
        try:
            self.pair.connect(self.peer)
        except StoreError as error:
            raise self.lost(str(error)) from error
        yield from self._prove(regions)

    def new_lane(self) -> Link | None:
        """Return a lane that is to be opened, of those wanted; None: there is none to be had."""
        while self.wanted:
            rail = self.wanted.pop(0)
            number = self._number + len(self.lanes) + 1
            try:
                return Link(rail, self._node, number, is_lane=True)
            except (ConfigError, Unreachable) as error:
                self.without_lane(error)
        return None

    def without_lane(self, error: StoreError) -> None:
        """Say that a transfer is spread less far."""
        logger.info("a large transfer goes over fewer queue pairs: %s", error)

    def _give_slab(self) -> None:
        if self._is_lane:
            self.slab.close()
        else:
            self.rail.give_slab(self.slab)

    def _refused(self, reply: Reply) -> _Refusal:
        """Receive the node's reason and return it as an error."""
        if reply.payload_bytes > REASON_BYTES_MAX:
            raise ProtocolError(f"a refusal of {reply.payload_bytes} bytes is none")
        reason = memoryview(bytearray(reply.payload_bytes))
        if reason:
            yield Receive([reason], len(reason))
        text = bytes(reason).decode(errors="replace")
        return self.lost(f"the node refuses: {text or f'status {reply.statuses[0]}'}")

    def _prove(self, regions: Sequence[Region]) -> Moves:
        """Read every segment's incarnation back; those that say another one are not used."""
        flow = Flow(self)
        proofs = [
            flow.word(region.control + INCARNATION_AT, 8, region.control_key) for region in regions
        ]
        yield from flow.finish()
        for proof, region in zip(proofs, regions, strict=True):
            if int.from_bytes(proof, "little") == region.incarnation:
                self.regions[region.incarnation] = region

    def post(self, requests: Sequence[WorkRequest]) -> None:
        """Give requests to the device.

        Raises:
            FabricLost: It takes none.
        """
        try:
            self.pair.post(requests)
        except StoreError as error:
            raise self.lost(str(error)) from error
        if self.posted == self.completed:
            self._progress_s = time.monotonic()
        self.posted = requests[-1].number

    def reap(self) -> bool:
        """Take what the device tells; return whether there was anything.

        Raises:
            FabricLost: A request failed.
        """
        try:
            told = self.pair.poll()
        except StoreError as error:
            raise self.lost(str(error)) from error
        for completion in told:
            if completion.problem:
                raise self.lost(completion.problem)
            self.completed = completion.number
        if told:
            self._progress_s = time.monotonic()
        return bool(told)

    def check_progress(self) -> None:
        """Notice a fabric that says nothing.

        Raises:
            FabricLost: Nothing was completed for too long.
        """
        if time.monotonic() - self._progress_s > STALL_S:
            raise self.lost(f"nothing arrived for {STALL_S:g} s")

    def lost(self, problem: str) -> FabricLost:
        """Return the error of a fabric that does not work."""
        name = self.rail.device.name
        return FabricLost(f"RDMA over {name} to node {self._node}: {problem}", node=self._node)

    def close(self) -> None:
        """End the queue pair: nothing of ours or the node's is touched through it afterwards."""
        if not self._is_open:
            return
        self._is_open = False
        for lane in self.lanes:
            lane.close()
        if os.getpid() != self._process:
            _abandoned.append((self.pair, self.slab))
            return
        self.pair.close()
        self._give_slab()
