"""What every message is made of, the handshake, and the records that messages share."""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec

from mooncake_store.limits import BATCH_KEYS_MAX

T = TypeVar("T")

Batch = Annotated[list[T], msgspec.Meta(max_length=BATCH_KEYS_MAX)]
"""Items of a request. The bound is checked before the first item is decoded: eight mebibytes of
empty strings would be eight million objects."""


class Message(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Base of all messages."""


class Hello(Message, frozen=True):
    """First frame of a connection, from the side that opened it."""

    protocol: int
    role: str
    """``client`` or ``node``."""
    name: str
    """For logs and listings."""
    software: str


class Welcome(Message, frozen=True):
    """Answer to ``Hello``: the peer accepts, or replies ``ProtocolMismatch``."""

    protocol: int
    software: str
    term: int
    cluster_id: str
    lease_ttl_s: float
    put_ttl_s: float
    """Time a writer has between start and commit."""


class Done(Message, frozen=True):
    """Reply without content."""


class Replica(Message, frozen=True):
    """Where one copy lies."""

    incarnation: int
    """Of the segment; clients find node and segment by it (``NodeRecord.segments``)."""
    offset: int
    tier: int = 0
    attempt: int = 0
    """Number of the write that put it there, where that is not the version's own: a copy made
    later by a repair, a drain or a promotion. 0: the version itself."""


class Location(Message, frozen=True):
    """A readable version and all its live replicas, best first."""

    version: int
    length: int
    replicas: tuple[Replica, ...]


class SegmentRecord(Message, frozen=True):
    """One segment of a node: a pool of DRAM, or a store on its SSD."""

    incarnation: int
    bytes: int
    tier: int = 0
    """``types.Tier``. The master allocates in DRAM; an SSD store places extents by itself and
    says where (``Copied``)."""


class NodeRecord(Message, frozen=True):
    """What a client needs to reach a node."""

    index: int
    name: str
    node_id: str
    """Stable identity, 32 hex digits; the data port proves it in its handshake."""
    host: str
    port: int
    """Of the data port; 0: none."""
    local_path: str
    """Unix socket that hands out segment descriptors; empty: none. Worth trying from any host:
    only the descriptor exchange proves that it is the same one."""
    state: int
    """``types.NodeState``."""
    segments: tuple[SegmentRecord, ...]
    labels: dict[str, str]


class Membership(Message, frozen=True):
    """The known nodes. ``number`` grows with every change; clients send the one they have."""

    number: int
    nodes: tuple[NodeRecord, ...]


class NamespaceRecord(Message, frozen=True):
    """One namespace."""

    slot: int
    name: str
    epoch: int
    manifest: dict[str, str]
    objects: int = 0
    bytes: int = 0


class ReplicaRecord(Message, frozen=True):
    """One copy, for people."""

    node: str
    tier: str
    state: str
    incarnation: int
    offset: int


class ObjectRecord(Message, frozen=True):
    """One object, for people: ``stat`` and ``scan``."""

    key: str
    version: int
    length: int
    replicas: tuple[ReplicaRecord, ...]
    pin: str = "none"
    pin_left_s: float = 0.0
    lease_left_s: float = 0.0
    group: str = ""
    parent: str = ""
    wanted_replicas: int = 1


class Refusal(Message, frozen=True, tag=1):
    """An item of a batch that failed: an error code and its sentence."""

    code: str
    message: str
