"""What nodes and the master tell each other."""

from __future__ import annotations

from typing import Annotated

import msgspec

from mooncake_store.limits import (
    COPY_BYTES_PER_S_MIN,
    FELLOWS_MAX,
    REPLACED_MAX,
    SEGMENTS_PER_NODE_MAX,
)
from mooncake_store.wire.control.records import (
    Batch,
    Message,
    SegmentRecord,
)


class Register(Message, frozen=True):
    """A node joins, or comes back; the connection then carries the master's instructions."""

    name: str
    node_id: str
    host: str
    port: int
    local_path: str
    labels: dict[str, str]
    segments: Annotated[tuple[SegmentRecord, ...], msgspec.Meta(max_length=SEGMENTS_PER_NODE_MAX)]
    term: int = 0
    """Newest term the node obeyed; the master's becomes higher."""
    landed: int = 0
    """Objects that the version tables hold already: the master lists them before it allocates."""
    epochs: dict[int, int] = {}  # noqa: RUF012 - msgspec copies it
    """{slot: epoch} of the segments' tables, where not 0: a master never goes back behind them."""
    fellows: tuple[str, ...] = ()
    """``node_id`` of all nodes that were connected when a master said so last (ADR 34)."""
    notes: int = 0
    """Notes about absent nodes that it keeps: the master lists them before it adopts anything."""
    replaced: Annotated[
        tuple[int, ...], msgspec.Meta(max_length=SEGMENTS_PER_NODE_MAX * REPLACED_MAX)
    ] = ()
    """Incarnations of stores that are gone for good: it removed their files, and began those of its
    segments in their place (ADR 82)."""


class Registered(Message, frozen=True):
    """Reply."""

    index: int
    term: int
    heartbeat_s: float
    epochs: dict[int, int]
    """{slot: epoch} of every namespace."""


class StoreStatus(Message, frozen=True):
    """How a node's SSD store fares."""

    incarnation: int
    path: str
    state: str
    """``ready``, ``degraded`` or ``failed``."""
    reason: str
    """One sentence where it is not ready."""
    capacity_bytes: int
    used_bytes: int
    entries: int
    counters: dict[str, float] = {}  # noqa: RUF012 - msgspec copies it
    """{metric name: value}, for listings and metrics."""


class Heartbeat(Message, frozen=True):
    """Sent on a connection of its own, by a thread of its own."""

    index: int
    node_id: str
    term: int
    used_bytes: int
    readers: int
    writers: int
    stores: Annotated[tuple[StoreStatus, ...], msgspec.Meta(max_length=SEGMENTS_PER_NODE_MAX)] = ()
    scrubbed_bytes: int = 0
    """Verified in the background since it started."""


class HeartbeatReply(Message, frozen=True):
    """``known``: False asks the node to register again."""

    term: int
    known: bool


class SetEpochs(Message, frozen=True):
    """Objects of older epochs are unreadable on this node when it replies."""

    term: int
    epochs: dict[int, int]


class FreeItem(Message, frozen=True):
    """An extent whose version may not be read or written any more, landed or not."""

    incarnation: int
    offset: int
    bytes: int
    version: int


class FreeExtents(Message, frozen=True):
    """Erase extents: after a remove, a replace, an eviction, an abort, an expiry."""

    term: int
    items: list[FreeItem]


class Freed(Message, frozen=True):
    """One byte an item: 1 free for reuse; 0 a local writer may still be writing, ask again."""

    freed: bytes


class ListDirectory(Message, frozen=True):
    """One page of the objects that a segment holds."""

    term: int
    incarnation: int
    cursor: int = 0
    """Offset to go on from."""
    limit: int = 4096


class DirectoryEntry(Message, frozen=True):
    """One landed object, read from its extent."""

    offset: int
    version: int
    length: int
    slot: int
    epoch: int
    namespace: str
    key: str
    group: str = ""
    parent: str = ""
    pin: int = 0
    pin_ends_s: float = 0.0
    replicas: int = 1
    set_id: int = 0
    set_count: int = 0
    attempt: int = 0
    """Number of the write that put it there, where that is not the version's own (`Replica`)."""


class DirectoryPage(Message, frozen=True):
    """Reply; ``cursor`` -1: that was the last page."""

    entries: list[DirectoryEntry]
    cursor: int
    writing: list[FreeItem] = []  # noqa: RUF012 - msgspec copies it
    """First page only: where local processes still write attempts of older terms, which no one can
    stop (ADR 2). The master keeps these ranges out of its allocator until ``FreeExtents`` of each
    is answered with 1."""


class CopyItem(Message, frozen=True):
    """One extent to be copied as it is: a demotion, a promotion, a repair, a drain."""

    source_node: str
    """``node_id`` of the node to pull from over the data protocol; empty: this node itself."""
    source_host: str
    source_port: int
    source_incarnation: int
    source_offset: int
    source_attempt: int
    version: int
    bytes: int
    """Of the whole extent."""
    incarnation: int
    """Segment or store of this node that takes the copy."""
    offset: int
    """Where in it; -1: the store decides."""
    attempt: int
    """Number of this write; the fence compares it, readers compare the header's version."""
    wanted: bool = False
    """A store takes it whatever its admission and its budget say: its put asked for a disk."""


class CopyExtents(Message, frozen=True):
    """Copy extents to this node; each is verified before it is published."""

    term: int
    items: Batch[CopyItem]

    @property
    def extra_s(self) -> float:
        """Seconds that its largest extent may take beyond those of a small one."""
        return max((item.bytes for item in self.items), default=0) / COPY_BYTES_PER_S_MIN


class CopyResult(Message, frozen=True):
    """One copy: where it lies now, or an error code and its sentence."""

    offset: int
    code: str = ""
    message: str = ""


class Copied(Message, frozen=True):
    """Reply."""

    items: list[CopyResult]


class DroppedItem(Message, frozen=True):
    """A replica that the node does not hold any more."""

    incarnation: int
    offset: int
    version: int
    reason: str
    """``evicted``, or an error code such as ``checksum_mismatch``."""


class ReportDropped(Message, frozen=True):
    """A node's store evicted extents, or its scrub found them bad."""

    index: int
    items: Batch[DroppedItem]


class NoteItem(Message, frozen=True):
    """A fact about an absent node: what it holds at a place, up to a version, is to be erased.

    It stays true for ever, because versions only grow: whoever hears of it late does no harm.
    """

    node_id: str
    """Of the absent node."""
    incarnation: int
    offset: int
    """-1: the whole segment, which had too much to be noted."""
    bytes: int
    version: int


class KeepNotes(Message, frozen=True):
    """Keep notes for the next master; they are in the node's file when it replies."""

    term: int
    items: Batch[NoteItem]
    fellows: Annotated[tuple[str, ...], msgspec.Meta(max_length=FELLOWS_MAX)] | None = None
    """Connected nodes from now on; None where that did not change, ``""`` for too many to name."""


class DropNotes(Message, frozen=True):
    """Keep notes no longer: the node that they are about has erased what it had to."""

    term: int
    items: Batch[NoteItem]


class ListNotes(Message, frozen=True):
    """One page of the notes that a node keeps."""

    term: int
    cursor: int = 0
    """How many come before it."""
    limit: int = 1024


class NotePage(Message, frozen=True):
    """Reply; ``cursor`` -1: that was the last page."""

    items: Batch[NoteItem]
    cursor: int
