"""What all data connections of a node share: what is served, and what is counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_store.wire.data import Status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mooncake_storage_node.rdma_ports import RdmaPorts
    from mooncake_storage_node.store_orders import StoreOrders
    from mooncake_storage_node.writes import IncomingWrites
    from mooncake_store.segment import Segment


class DataCounters:
    """What a data thread counts; only that thread writes, so there is no lock.

    Attributes:
        answers: Requests answered.
        reads: Entries of reads, and ``writes`` of writes, refused ones included.
        bytes_in: Payload received, and ``bytes_out`` sent.
        rdma_writes: Extents published that a client's device wrote, and ``rdma_bytes_in`` theirs.
        refusals: {status: entries refused with it}.
        cut_off: {reason: connections closed for it}.
    """

    __slots__ = (
        "answers", "bytes_in", "bytes_out", "cut_off", "rdma_bytes_in", "rdma_writes", "reads",
        "refusals", "writes",
    )  # fmt: skip

    def __init__(self) -> None:
        self.answers = 0
        self.reads = 0
        self.writes = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.rdma_writes = 0
        self.rdma_bytes_in = 0
        self.refusals = [0] * len(Status)
        self.cut_off: dict[str, int] = {}


class NodeView:
    """What the data path knows of the node it belongs to.

    Attributes:
        node_id: Proved to every client.
        segments: {incarnation: segment} served.
        incoming: Register of writes under way.
        rdma: Its devices; None where it has none.
        disks: Its stores; None where it has none.
    """

    __slots__ = ("disks", "incoming", "node_id", "rdma", "segments")

    def __init__(
        self,
        node_id: str,
        segments: Mapping[int, Segment],
        incoming: IncomingWrites,
        rdma: RdmaPorts | None = None,
        disks: StoreOrders | None = None,
    ) -> None:
        self.node_id = node_id
        self.segments = segments
        self.incoming = incoming
        self.rdma = rdma
        self.disks = disks

    def term(self) -> int:
        """Return the newest term that any segment obeys."""
        return max((segment.term for segment in self.segments.values()), default=0)
