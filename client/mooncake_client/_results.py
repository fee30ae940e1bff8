"""What calls return: frozen records, the same from every client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mooncake_store.types import MissReason, Presence

if TYPE_CHECKING:
    from mooncake_client._memory import Value


@dataclass(frozen=True, slots=True)
class PutItem:
    """One object of ``put_many`` or ``put_together``, where a plain (key, value) does not do.

    Attributes:
        key: Its name.
        value: Its bytes.
        group: Hint: objects that are useful only together.
        parent: Hint: key of the object before it in a prefix chain.
        expected_version: As in ``put``.
    """

    key: str
    value: Value
    group: str = ""
    parent: str = ""
    expected_version: int | None = None


@dataclass(frozen=True, slots=True)
class PutResult:
    """A put that succeeded.

    Attributes:
        created: True: these bytes are the object now. False: a version was there already and was
            kept (first writer wins).
        version: Number of the version that is there.
        replicas: Copies that were written; 0 where nothing was. Fewer than asked is possible.
        pressure: Share of the pool that could not be evicted at once, 0 to 1: slow down, or skip
            what is cheap to compute again.
    """

    created: bool
    version: int
    replicas: int
    pressure: float


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What a get would find.

    Attributes:
        presence: ``dram``, ``ssd``, ``writing`` or ``absent``.
        bytes: Length of the object; 0 where it is absent or not known yet.
        estimate_s: The master's estimate of the time to fetch it, in seconds.
    """

    presence: Presence
    bytes: int
    estimate_s: float

    @property
    def readable(self) -> bool:
        """Whether a get would return bytes now."""
        return self.presence in {Presence.DRAM, Presence.SSD}


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """Leading keys of a chain that are readable.

    Attributes:
        count: How many.
        hold_s: How long they are protected from eviction, from when the request was sent.
    """

    count: int
    hold_s: float


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """One copy of an object.

    Attributes:
        node: Name of the node that holds it.
        tier: ``dram`` or ``ssd``.
        state: What the master believes of the node.
    """

    node: str
    tier: str
    state: str


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """Description of an object, for people and tools; it says nothing about tomorrow.

    Attributes:
        key: Its name.
        version: Number of the version that is readable.
        bytes: Length of its payload.
        replicas: Its copies.
        wanted_replicas: How many were asked for.
        pin: ``none``, ``soft`` or ``hard``.
        pin_left_s: Seconds a soft pin still lasts.
        lease_left_s: Seconds its longest lease or hold still lasts.
        group: Hint of its writer.
        parent: Hint of its writer.
    """

    key: str
    version: int
    bytes: int
    replicas: tuple[ReplicaInfo, ...]
    wanted_replicas: int
    pin: str
    pin_left_s: float
    lease_left_s: float
    group: str
    parent: str


@dataclass(frozen=True, slots=True)
class WhyResult:
    """Why a key cannot be read.

    Attributes:
        readable: It can be.
        reason: Why not; None where it is readable.
        detail: A sentence for people.
    """

    readable: bool
    reason: MissReason | None
    detail: str


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counters of one client since it was made; they only grow.

    Attributes:
        master_round_trips: Times a call waited for the master.
        master_connections: Connections to masters that were opened.
        leased_reads: Reads that began from a location still leased, without the master.
        hits: Reads that returned bytes.
        misses: {why: reads that found nothing}.
        bytes_read: {path: payload bytes delivered}.
        bytes_written: {path: payload bytes written, every replica counted}.
        puts_created: Puts whose bytes became the object.
        puts_existing: Puts that found a version there.
        retries: Times an operation tried another replica, location or master.
        stale_locations: Extents found to hold another version than expected; never delivered.
        checksum_failures: Copies found damaged; never delivered.
        transfer_failures: {why: reads or writes of one extent that failed}.
        errors: {code: operations, or items of a batch, that failed}.
    """

    master_round_trips: int
    master_connections: int
    leased_reads: int
    hits: int
    misses: dict[str, int]
    bytes_read: dict[str, int]
    bytes_written: dict[str, int]
    puts_created: int
    puts_existing: int
    retries: int
    stale_locations: int
    checksum_failures: int
    transfer_failures: dict[str, int]
    errors: dict[str, int]
