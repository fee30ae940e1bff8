"""What clients ask the master, and its replies."""

from __future__ import annotations

from typing import Annotated

import msgspec

from mooncake_store.limits import NODES_MAX
from mooncake_store.wire.control.nodes import StoreStatus  # noqa: TC001 - msgspec reads the annotations
from mooncake_store.wire.control.records import (
    Batch,
    Location,
    Membership,
    Message,
    NamespaceRecord,
    NodeRecord,
    ObjectRecord,
    Refusal,
    Replica,
)


class OpenNamespace(Message, frozen=True):
    """Open, or create at first use; a manifest that differs is refused (``ManifestMismatch``)."""

    name: str
    manifest: dict[str, str] | None = None
    """None: do not state one, accept what is there."""


class ListNamespaces(Message, frozen=True):
    """Ask for all namespaces."""


class NamespaceList(Message, frozen=True):
    """Reply."""

    namespaces: tuple[NamespaceRecord, ...]


class Clear(Message, frozen=True):
    """Raise the namespace's epoch: everything older is unreadable when this returns."""

    name: str


class Locate(Message, frozen=True):
    """Where are these keys? Takes a read lease on each that is found."""

    slot: int
    epoch: int
    keys: Batch[str]
    wait_ms: int = 0
    """Wait this long for a put that is under way before answering ``WRITING`` for its key."""
    membership: int = -1


class Located(Message, frozen=True):
    """Reply. The lease runs from when the client *sent* the request, for ``lease_s``."""

    lease_s: float
    items: list[Location | int]
    membership: Membership | None = None


class Exists(Message, frozen=True):
    """Which keys are readable? Leaves no trace: no lease, no recency."""

    slot: int
    epoch: int
    keys: Batch[str]


class ExistsReply(Message, frozen=True):
    """One byte a key, 1 or 0."""

    found: bytes


class Probe(Message, frozen=True):
    """What would a get cost? With ``hold_s`` the found ones are protected for that time."""

    slot: int
    epoch: int
    keys: Batch[str]
    hold_s: float = 0.0
    probe_id: str = ""
    """Requests with one id get one answer (several ranks of one engine)."""


class ProbeItem(Message, frozen=True):
    """``presence`` is a ``types.Presence``."""

    presence: int
    length: int
    estimate_us: int


class Probed(Message, frozen=True):
    """Reply."""

    items: list[ProbeItem]
    hold_s: float


class MatchPrefix(Message, frozen=True):
    """How many leading keys of this chain are readable? They are held for ``hold_s``."""

    slot: int
    epoch: int
    keys: Batch[str]
    hold_s: float = 0.0
    probe_id: str = ""


class PrefixMatched(Message, frozen=True):
    """Reply."""

    count: int
    hold_s: float


class PutItem(Message, frozen=True):
    """One object to be written."""

    key: str
    length: int
    group: str = ""
    parent: str = ""
    expected_version: int = -1
    """-1: any. 0: must be absent. Else: must be this one."""


class PutStart(Message, frozen=True):
    """Ask for room. Waits for eviction, or for another writer of a key, within the deadline."""

    slot: int
    epoch: int
    items: Batch[PutItem]
    replicas: int = 1
    replace: bool = False
    together: bool = False
    """All become visible with one commit, or none."""
    pin: int = 0
    pin_s: float = 0.0
    near: Annotated[tuple[int, ...], msgspec.Meta(max_length=NODES_MAX)] = ()
    """Node indices that the writer reaches through shared memory: preferred."""
    preferred: Annotated[tuple[str, ...], msgspec.Meta(max_length=NODES_MAX)] = ()
    """Node names to prefer over those."""
    membership: int = -1
    durable: bool = False
    """Commits are answered only after each object is on a disk."""


class PutGrant(Message, frozen=True, tag=0):
    """Room for one attempt. The extents belong to the attempt until commit, abort or expiry."""

    version: int
    replicas: tuple[Replica, ...]
    set_id: int = 0
    set_count: int = 0
    pin_ends_s: float = 0.0


class PutExists(Message, frozen=True, tag=2):
    """First writer wins: a readable version is there already. A success for the caller."""

    version: int


class PutStarted(Message, frozen=True):
    """Reply."""

    items: list[PutGrant | PutExists | Refusal]
    pressure: float
    """Share of the pool's bytes that could not be evicted at once, 0 to 1: slow down, or skip."""
    membership: Membership | None = None


class CommitItem(Message, frozen=True):
    """The bytes of an attempt are in place."""

    version: int
    written: int
    """Bit i: replica i of the grant is written; the others are given up."""


class PutCommit(Message, frozen=True):
    """Make attempts readable. An older version is unreadable everywhere when this returns."""

    items: Batch[CommitItem]


class Committed(Message, frozen=True, tag=0):
    """One attempt became the object's version."""

    version: int
    replicas: int
    """How many copies it has; fewer than asked is the writer's to know."""


class PutCommitted(Message, frozen=True):
    """Reply."""

    items: list[Committed | Refusal]
    pressure: float = 0.0


class PutAbort(Message, frozen=True):
    """Give attempts up; their room returns and nothing of them is ever readable."""

    versions: Batch[int]


class Remove(Message, frozen=True):
    """No reader gets the old value when this returns. Absent keys are done already."""

    slot: int
    epoch: int
    keys: Batch[str]


class Removed(Message, frozen=True):
    """One byte a key: 1 removed, 0 was absent."""

    removed: bytes


class Stat(Message, frozen=True):
    """Describe objects; leaves no trace."""

    slot: int
    epoch: int
    keys: Batch[str]


class StatReply(Message, frozen=True):
    """Reply."""

    items: list[ObjectRecord | int]


class Scan(Message, frozen=True):
    """One page of objects whose key begins with ``prefix``, in the order of their keys' making."""

    slot: int
    epoch: int
    prefix: str = ""
    cursor: str = ""
    """Empty: from the start; else as the last reply gave it."""
    limit: int = 100


class Scanned(Message, frozen=True):
    """Reply. Objects that exist during the whole scan are listed exactly once."""

    items: list[ObjectRecord]
    cursor: str
    """Empty: the scan is over."""


class SetPin(Message, frozen=True):
    """Pin or unpin committed objects."""

    slot: int
    epoch: int
    keys: Batch[str]
    pin: int
    pin_s: float = 0.0


class PinReply(Message, frozen=True):
    """``found``: one byte a key."""

    found: bytes


class Renew(Message, frozen=True):
    """Prolong the read leases of a transfer that takes long."""

    slot: int
    epoch: int
    keys: Batch[str]
    versions: Batch[int]


class Renewed(Message, frozen=True):
    """One byte a key: 1 renewed, 0 the version is gone."""

    renewed: bytes
    lease_s: float


class ReportReplica(Message, frozen=True):
    """A reader found a replica bad: it is dropped and counted under ``reason`` (an error code)."""

    slot: int
    epoch: int
    key: str
    version: int
    incarnation: int
    offset: int
    reason: str


class ReportTransfers(Message, frozen=True):
    """What a client saw of a node's data path since its last report."""

    node: int
    failures: int
    successes: int
    reason: str = ""


class Why(Message, frozen=True):
    """Why is this key not readable, or what is it if it is?"""

    slot: int
    epoch: int
    key: str


class WhyReply(Message, frozen=True):
    """Reply."""

    reason: int
    """``types.MissReason``, or -1: it is readable."""
    detail: str


class NodeStatus(Message, frozen=True):
    """One node, for people."""

    record: NodeRecord
    used_bytes: int
    capacity_bytes: int
    objects: int
    heartbeat_age_s: float
    ssd_used_bytes: int = 0
    ssd_capacity_bytes: int = 0
    note: str = ""
    segments_used_bytes: tuple[int, ...] = ()
    """Of each segment in ``record``, in its order."""
    stores: tuple[StoreStatus, ...] = ()
    """What its SSD stores said last."""


class DescribeCluster(Message, frozen=True):
    """Ask for the state of everything."""


class ClusterStatus(Message, frozen=True):
    """Reply."""

    cluster_id: str
    term: int
    software: str
    uptime_s: float
    nodes: tuple[NodeStatus, ...]
    counters: dict[str, int]
    """Counters and gauges of the master under their metric names."""


class Drain(Message, frozen=True):
    """Empty a node: it gets nothing new, and what it alone holds is copied to others.

    Answered at once; how far it is is asked with `DescribeDrain`. A drain that is under way, or
    over, begins anew, with the new bound.
    """

    node: str
    """Its name, or its ``node_id``, which a node says of itself when it is to stop."""
    timeout_s: float
    """Time after which no more is copied; the node gets nothing new after that either."""
    leaving: bool = False
    """The node says it of itself, before it stops: the drain ends when it registers again."""


class DescribeDrain(Message, frozen=True):
    """How far the drain of a node is."""

    node: str


class Undrain(Message, frozen=True):
    """End a drain, or take back one that is over: the node gets new objects again."""

    node: str


class SetPinLimit(Message, frozen=True):
    """Bound what may be pinned; what is pinned already stays so."""

    namespace: str
    """Empty: the whole pool."""
    pinned_share_max: float | None
    """Share of the pool; None: no limit of a namespace, the configured one of the pool."""


class ListPinLimits(Message, frozen=True):
    """The limits that were set, and the pool's."""


class PinLimit(Message, frozen=True):
    """One limit, and how near it is."""

    namespace: str
    pinned_share_max: float
    pinned_bytes: int
    pinned_bytes_max: int
    is_set: bool
    """False: it is the configured one."""


class PinLimits(Message, frozen=True):
    """Reply."""

    limits: tuple[PinLimit, ...]


class DrainLeft(Message, frozen=True):
    """An object that a node alone holds and that could not be copied."""

    namespace: str
    key: str
    bytes: int
    reason: str
    """An error code."""


class DrainStatus(Message, frozen=True):
    """How far the drain of a node is."""

    node: str
    state: str
    """``draining``; ``drained``: nothing is left; ``incomplete``: the time is over and something
    is; ``none``: the node takes new objects."""
    left_s: float = 0.0
    """Until the time is over."""
    moved: int = 0
    """Objects that were copied from it."""
    moved_bytes: int = 0
    left: int = 0
    """Objects that it alone holds, as far as was counted."""
    left_bytes: int = 0
    counted: bool = False
    """Whether all objects were looked at since it began."""
    stuck: bool = False
    """Whether nothing of what is left could be copied when it was tried last."""
    reasons: dict[str, int] = {}  # noqa: RUF012 - msgspec copies it
    """{error code: objects that could not be copied because of it when they were tried last}"""
    examples: tuple[DrainLeft, ...] = ()
    """Some of them."""
    note: str = ""
    """What it waits for."""
