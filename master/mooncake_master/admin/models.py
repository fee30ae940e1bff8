"""What the admin API answers, typed: the OpenAPI page is made of these."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, Field

from mooncake_store.types import MissReason, NodeState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mooncake_store.wire import control


class Problem(BaseModel):
    """Body of every answer that is no success."""

    code: str = Field(description="Stable name of the cause, as in every other interface.")
    message: str = Field(description="One sentence for people; names the object and the numbers.")


class Live(BaseModel):
    """The process runs and answers."""

    status: str = "live"


class Readiness(BaseModel):
    """Whether clients are served."""

    ready: bool
    reason: str = Field(description="Why not; empty when ready.")


class Segment(BaseModel):
    """One region of a node's memory, or a store on its disk."""

    incarnation: str = Field(description="Id of its contents, 16 hexadecimal digits.")
    node: str
    tier: str = Field(description="dram or ssd.")
    used_bytes: int = Field(description="In extents, those being written or freed included.")
    capacity_bytes: int
    state: str = Field(description="Of its node.")


class Segments(BaseModel):
    """All segments."""

    segments: list[Segment]


class Store(BaseModel):
    """One SSD store of a node, as it said last."""

    path: str
    state: str = Field(description="ready, degraded or failed.")
    reason: str = Field(description="Why it is not ready.")
    used_bytes: int
    capacity_bytes: int
    entries: int
    figures: dict[str, float] = Field(description="What it has counted since it was opened.")

    @classmethod
    def of(cls, status: control.StoreStatus) -> Store:
        """Translate what the node says."""
        return cls(
            path=status.path,
            state=status.state,
            reason=status.reason,
            used_bytes=status.used_bytes,
            capacity_bytes=status.capacity_bytes,
            entries=status.entries,
            figures=status.counters,
        )


class Node(BaseModel):
    """One storage node."""

    name: str
    node_id: str
    state: str = Field(description="live, suspect, draining, drained or dead.")
    address: str = Field(description="Of its data port.")
    used_bytes: int
    capacity_bytes: int
    objects: int
    heartbeat_age_s: float
    ssd_used_bytes: int
    ssd_capacity_bytes: int
    stores: list[Store]
    segments: list[str] = Field(description="Their incarnations.")
    labels: dict[str, str]
    note: str

    @classmethod
    def of(cls, status: control.NodeStatus) -> Node:
        """Translate what the core says."""
        record = status.record
        host = f"[{record.host}]" if ":" in record.host else record.host
        return cls(
            name=record.name,
            node_id=record.node_id,
            state=NodeState(record.state).name.lower(),
            address=f"{host}:{record.port}",
            used_bytes=status.used_bytes,
            capacity_bytes=status.capacity_bytes,
            objects=status.objects,
            heartbeat_age_s=status.heartbeat_age_s,
            ssd_used_bytes=status.ssd_used_bytes,
            ssd_capacity_bytes=status.ssd_capacity_bytes,
            stores=[Store.of(store) for store in status.stores],
            segments=[incarnation_text(segment.incarnation) for segment in record.segments],
            labels=record.labels,
            note=status.note,
        )


class NotCopied(BaseModel):
    """An object that only a drained node holds."""

    namespace: str
    key: str
    bytes: int
    reason: str = Field(description="Code of the error that the last try ended with.")


class Drain(BaseModel):
    """How far the drain of a node is."""

    node: str
    state: str = Field(
        description="draining; drained: nothing is left; incomplete: out of time and something"
        " is left; none: the node takes new objects."
    )
    left_s: float = Field(description="Until copying ends.")
    moved: int = Field(description="Objects that were copied from it.")
    moved_bytes: int
    left: int = Field(description="Objects that only it holds, as far as was counted.")
    left_bytes: int
    counted: bool = Field(description="Whether all objects were looked at since it began.")
    stuck: bool = Field(description="Whether nothing of what is left could be copied lately.")
    reasons: dict[str, int] = Field(description="Objects not copied, by the error's code.")
    examples: list[NotCopied] = Field(description="Some of them.")
    note: str

    @classmethod
    def of(cls, status: control.DrainStatus) -> Drain:
        """Translate what the core says."""
        return cls(
            node=status.node,
            state=status.state,
            left_s=status.left_s,
            moved=status.moved,
            moved_bytes=status.moved_bytes,
            left=status.left,
            left_bytes=status.left_bytes,
            counted=status.counted,
            stuck=status.stuck,
            reasons=status.reasons,
            examples=[
                NotCopied(
                    namespace=item.namespace, key=item.key, bytes=item.bytes, reason=item.reason
                )
                for item in status.examples
            ],
            note=status.note,
        )


class PinLimit(BaseModel):
    """How much may be pinned in a namespace, or in the whole pool."""

    namespace: str = Field(description="Empty: the whole pool.")
    pinned_share_max: float = Field(description="Share of the pool.")
    pinned_bytes: int
    pinned_bytes_max: int
    is_set: bool = Field(description="false: it is the one that the master was started with.")


class PinLimits(BaseModel):
    """All limits of pins."""

    limits: list[PinLimit]

    @classmethod
    def of(cls, limits: Iterable[control.PinLimit]) -> PinLimits:
        """Translate what the core says."""
        return cls(
            limits=[
                PinLimit(
                    namespace=each.namespace,
                    pinned_share_max=each.pinned_share_max,
                    pinned_bytes=each.pinned_bytes,
                    pinned_bytes_max=each.pinned_bytes_max,
                    is_set=each.is_set,
                )
                for each in limits
            ]
        )


class Nodes(BaseModel):
    """All nodes."""

    nodes: list[Node]


class Cluster(BaseModel):
    """The cluster as a whole."""

    role: str = Field(description="leader, or standby: then nodes and counters are not known here.")
    leader: str = Field(description="RPC address of the leader where that is another master.")

    cluster_id: str
    term: int
    software: str
    uptime_s: float
    ready: bool
    nodes: dict[str, int] = Field(description="Number of nodes in each state.")
    used_bytes: int
    capacity_bytes: int
    under_replicated: int = Field(
        description="Objects with fewer replicas than asked; they are rebuilt in the background."
    )
    counters: dict[str, int] = Field(description="Counters and gauges under their metric names.")


class Replica(BaseModel):
    """One copy of an object."""

    node: str
    tier: str
    state: str
    incarnation: str
    offset: int


class StoredObject(BaseModel):
    """One object."""

    key: str
    version: int
    length: int = Field(description="Bytes of the value.")
    replicas: list[Replica]
    wanted_replicas: int
    pin: str
    pin_left_s: float
    lease_left_s: float
    group: str
    parent: str

    @classmethod
    def of(cls, record: control.ObjectRecord) -> StoredObject:
        """Translate what the core says."""
        return cls(
            key=record.key,
            version=record.version,
            length=record.length,
            replicas=[
                Replica(
                    node=replica.node,
                    tier=replica.tier,
                    state=replica.state,
                    incarnation=incarnation_text(replica.incarnation),
                    offset=replica.offset,
                )
                for replica in record.replicas
            ],
            wanted_replicas=record.wanted_replicas,
            pin=record.pin,
            pin_left_s=record.pin_left_s,
            lease_left_s=record.lease_left_s,
            group=record.group,
            parent=record.parent,
        )


class ObjectPage(BaseModel):
    """One page of objects, in the order of their making."""

    objects: list[StoredObject]
    cursor: str = Field(description="Pass it to get the next page; empty: this was the last one.")


class Explanation(BaseModel):
    """Why a key is not readable, or what it is if it is."""

    readable: bool
    reason: str = Field(description="Name of the miss's reason; empty when readable.")
    detail: str

    @classmethod
    def of(cls, reply: control.WhyReply) -> Explanation:
        """Translate what the core says."""
        readable = reply.reason < 0
        reason = "" if readable else MissReason(reply.reason).name.lower()
        return cls(readable=readable, reason=reason, detail=reply.detail)


class Removal(BaseModel):
    """The object is gone."""

    removed: str = Field(description="Its key.")


class Namespace(BaseModel):
    """One namespace."""

    name: str
    epoch: int = Field(description="Generation of its contents; clearing raises it.")
    manifest: dict[str, str]
    objects: int
    bytes: int

    @classmethod
    def of(cls, record: control.NamespaceRecord) -> Namespace:
        """Translate what the core says."""
        return cls(
            name=record.name,
            epoch=record.epoch,
            manifest=record.manifest,
            objects=record.objects,
            bytes=record.bytes,
        )


class Namespaces(BaseModel):
    """All namespaces."""

    namespaces: list[Namespace]


class ConfiguredOption(BaseModel):
    """One option of the running master."""

    name: str
    value: str | None = Field(description="As it would be written.")
    default: str
    flag: str
    variable: str
    about: str


class Configuration(BaseModel):
    """The configuration that this process runs with."""

    options: list[ConfiguredOption]
    rpc_addresses: list[str] = Field(description="Where it listens, ports known.")
    admin_addresses: list[str]
    advertise: str


def incarnation_text(incarnation: int) -> str:
    """Return an incarnation as people see it: JSON's numbers end at 2**53, this one does not."""
    return f"{incarnation:016x}"
