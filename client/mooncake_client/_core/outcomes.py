"""What follows from the outcome of a transfer: try elsewhere, report, count, give up."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

from mooncake_client._core.cluster import Reach
from mooncake_client._core.effects import Read
from mooncake_client._core.session import ask, report_transfers
from mooncake_store.errors import (
    ChecksumMismatch,
    Closed,
    DeadlineExceeded,
    InvalidArgument,
    Overloaded,
    PeerError,
    ReplicasUnavailable,
    StaleExtent,
    StaleTerm,
    StoreError,
)
from mooncake_store.limits import MIB
from mooncake_store.types import Tier
from mooncake_store.wire.control import ReportReplica

if TYPE_CHECKING:
    from mooncake_client._core.effects import Operation
    from mooncake_client._core.planner import Choice
    from mooncake_client._core.session import Session
    from mooncake_client._core.wants import Want
    from mooncake_store.transport import ReadTask
    from mooncake_store.wire.control import Replica

TRIES_OF_A_PLACE: Final = 2
"""Tries of one copy that gives no answer: the first may meet a connection closed long ago."""

TRIES_OF_A_DISK: Final = 16
"""Tries of a copy whose disk refuses, where there is no other one. With the pauses between them it
is a second: reads that wait at a disk are over by then, trouble is not, and the caller can compute
what he does not get."""

PATIENCE_S: Final = 0.5
"""Wait for a silent node before another one is tried, plus the time at ``SLOW_BYTES_PER_S``."""

SLOW_BYTES_PER_S: Final = 50 * MIB
"""A link as slow as this is not given up for its slowness."""


SILENCE_S: Final = 0.2
"""Waiting in vain for less than this says nothing about a node."""


class Path(Protocol):
    """What a driver says of the data path that it took."""

    name: ClassVar[str]


def patience_s(size: int) -> float:
    """Return how long to wait for ``size`` bytes where somebody else could be asked instead."""
    return PATIENCE_S + size / SLOW_BYTES_PER_S


def is_about_node(error: StoreError) -> bool:
    """Return whether an error says something about the node, not about the extent."""
    if isinstance(error, (StaleExtent, StaleTerm, ChecksumMismatch)):
        return False
    return isinstance(error, (PeerError, Closed))  # a path that was replaced is closed


def settle(session: Session, want: Want, replica: Replica, error: StoreError) -> Operation[None]:
    """Draw the consequences of a failed task for its want."""
    session.counters.transfer_failures[error.code] += 1
    if isinstance(error, StaleExtent):
        yield from stale(session, want, replica)
    elif isinstance(error, ChecksumMismatch):
        yield from damaged(session, want, replica, error)
    elif is_about_node(error):
        unanswered(want, replica)
    elif not isinstance(error, Overloaded):
        fail(session, want, error)
    else:
        want.trouble.hindrance = str(error)
        if replica.tier != Tier.DRAM:
            # A disk in trouble may be so for hours; memory that is busy is not in a moment.
            busy_disk(want, replica)


def look_again(session: Session, choice: Choice, task: ReadTask) -> Operation[StoreError | None]:
    """Find out whether it is the copy that is damaged where a read differed from its checksum.

    A copy that is reported is given up for everybody. What differed may have been one bit on the
    wire, or the caller's memory: another thread writes into it, or its pieces overlap. So the copy
    is read once more into memory of our own, and where that is well, once more for the caller.

    Returns:
        What the task ends with; None where it has delivered now.
    """
    session.counters.transfer_failures[ChecksumMismatch.code] += 1
    own = [memoryview(bytearray(task.length))] if task.length else []
    look = replace(task, targets=own, error=None)
    yield Read(((choice.node, [look]),))
    if look.error is not None:
        return look.error
    again = replace(task, error=None)
    yield Read(((choice.node, [again]),))
    if isinstance(again.error, ChecksumMismatch):
        return InvalidArgument(
            "the buffer changes while it is filled: its pieces overlap, or somebody else writes"
            " into it"
        )
    return again.error


def busy_disk(want: Want, replica: Replica) -> None:
    """A disk takes no reads now: another copy is read, or the disk is asked for a while."""
    trouble = want.trouble
    place = replica.incarnation, replica.offset
    trouble.busy[place] = tries = trouble.busy.get(place, 0) + 1
    if tries >= TRIES_OF_A_DISK or choice_is_left(want, replica):
        trouble.refused.add(place)


def choice_is_left(want: Want, replica: Replica) -> bool:
    """Return whether another copy than this one could be tried."""
    assert want.entry is not None
    return any(
        other is not replica and (other.incarnation, other.offset) not in want.refused
        for other in want.entry.replicas
    )


def stale(session: Session, want: Want, replica: Replica) -> Operation[None]:
    """The extent holds something else: ask again; if the master insists, tell it."""
    session.counters.stale_locations += 1
    session.locations.forget(want.key)
    if want.is_located:
        place = replica.incarnation, replica.offset
        if place in want.trouble.stale:
            want.trouble.refused.add(place)
            yield from _report(session, want, replica, StaleExtent.code)
        want.trouble.stale.add(place)
    want.relocate()


def damaged(session: Session, want: Want, replica: Replica, error: StoreError) -> Operation[None]:
    """A copy is not what its writer wrote: have it dropped, and read another one."""
    session.counters.checksum_failures += 1
    session.locations.forget(want.key)
    want.trouble.damage = error
    want.trouble.refused.add((replica.incarnation, replica.offset))
    yield from _report(session, want, replica, error.code)
    want.relocate()


def unanswered(want: Want, replica: Replica) -> None:
    """A copy gave no answer: it is tried once more, then no longer."""
    trouble = want.trouble
    place = replica.incarnation, replica.offset
    trouble.failures[place] = failures = trouble.failures.get(place, 0) + 1
    if failures >= TRIES_OF_A_PLACE:
        trouble.refused.add(place)


def without_replica(session: Session, want: Want) -> None:
    """No copy of a want's location can be tried: ask for a newer one, or give up."""
    session.locations.forget(want.key)
    if not want.is_located or want.entry is None:
        want.relocate()
        return
    known = ", ".join(
        node.name
        for replica in want.entry.replicas
        if (node := session.cluster.node_of(replica.incarnation)) is not None
    )
    message = f"no copy of {want.key!r} could be read (nodes: {known or 'none known'})"
    if want.trouble.busy:
        message += "; a disk refuses: see the nodes' states"
    fail(session, want, ReplicasUnavailable(message, key=want.key))


def node_failed(
    session: Session, choice: Choice, error: StoreError, began_s: float
) -> Operation[None]:
    """Count a failure of a node's data path, here and at the master.

    A caller who had no time to wait learnt nothing about the node.
    """
    node = choice.node
    if isinstance(error, DeadlineExceeded) and session.clock() - began_s < SILENCE_S:
        return
    if choice.reach is Reach.SHARED:
        session.cluster.detach(node)
    session.breakers.failed(node.node_id, session.clock())
    yield from report_transfers(session, node, error.code)


def fail(session: Session, want: Want, error: StoreError) -> None:
    """End a want with an error."""
    session.counters.errors[error.code] += 1
    want.end(error)


def _report(session: Session, want: Want, replica: Replica, reason: str) -> Operation[None]:
    """Have the master drop a bad copy; waiting, so that it is not named again."""
    assert want.entry is not None
    message = ReportReplica(
        session.slot,
        session.epoch,
        want.key,
        want.entry.identity.version,
        replica.incarnation,
        replica.offset,
        reason,
    )
    with suppress(StoreError):  # the read goes on; the next reader reports it as well
        yield from ask(session, message)
