"""Questions to the master that move no bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mooncake_client._core import batches
from mooncake_client._core.counters import reason_name
from mooncake_client._core.session import TRY_ELSEWHERE, ask, ask_many, opened
from mooncake_client._results import (
    ObjectInfo,
    PrefixMatch,
    ProbeResult,
    ReplicaInfo,
    WhyResult,
)
from mooncake_store.errors import InvalidArgument, StoreError
from mooncake_store.limits import BATCH_BYTES_MAX, BATCH_KEYS_MAX, SCAN_PAGE_MAX
from mooncake_store.types import MissReason, Pin, Presence
from mooncake_store.wire import control

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mooncake_client._core.effects import Operation
    from mooncake_client._core.session import Session
    from mooncake_store.wire.control import Message

READABLE: Final = -1
"""``WhyReply.reason`` of a key that can be read."""


def exists(session: Session, keys: list[str]) -> Operation[list[bool]]:
    """Return which keys are readable now; leaves no trace at the master."""

    def message(part: Sequence[str]) -> Message:
        return control.Exists(session.slot, session.epoch, list(part))

    found: list[bool] = []
    for reply in (yield from _ask_about(session, keys, message)):
        found += map(bool, reply.found)
    return found


def probe(
    session: Session, keys: list[str], hold_s: float, probe_id: str
) -> Operation[list[ProbeResult]]:
    """Return what a get of each key would find; with ``hold_s``, keep what is found."""

    def message(part: Sequence[str]) -> Message:
        return control.Probe(session.slot, session.epoch, list(part), hold_s, probe_id)

    results: list[ProbeResult] = []
    for reply in (yield from _ask_about(session, keys, message)):
        results += [
            ProbeResult(Presence(item.presence), item.length, item.estimate_us / 1e6)
            for item in reply.items
        ]
    return results


def match_prefix(
    session: Session, keys: list[str], hold_s: float, probe_id: str
) -> Operation[PrefixMatch]:
    """Return how many leading keys are readable, and hold those."""
    if session.slot < 0 or session.is_stale:
        yield from opened(session)
    if len(keys) > BATCH_KEYS_MAX or sum(map(batches.key_bytes, keys)) > BATCH_BYTES_MAX:
        raise InvalidArgument(
            f"a chain has at most {BATCH_KEYS_MAX} keys of {BATCH_BYTES_MAX} bytes together, so"
            f" that one answer covers it; this one has {len(keys)}"
        )
    message = control.MatchPrefix(session.slot, session.epoch, keys, hold_s, probe_id)
    reply: control.PrefixMatched = yield from ask(session, message)
    return PrefixMatch(reply.count, reply.hold_s)


def remove(session: Session, keys: list[str]) -> Operation[list[bool]]:
    """Remove keys; True for those that were there."""
    for key in keys:
        session.locations.forget(key)

    def message(part: Sequence[str]) -> Message:
        return control.Remove(session.slot, session.epoch, list(part))

    removed: list[bool] = []
    for reply in (yield from _ask_about(session, keys, message)):
        removed += map(bool, reply.removed)
    for key in keys:
        session.locations.forget(key)  # another thread may have found it meanwhile
    return removed


def stat(session: Session, keys: list[str]) -> Operation[list[ObjectInfo | None]]:
    """Describe objects; None for those that cannot be read."""

    def message(part: Sequence[str]) -> Message:
        return control.Stat(session.slot, session.epoch, list(part))

    results: list[ObjectInfo | None] = []
    for reply in (yield from _ask_about(session, keys, message)):
        results += [None if isinstance(item, int) else describe(item) for item in reply.items]
    return results


def scan_page(
    session: Session, prefix: str, cursor: str, limit: int = SCAN_PAGE_MAX
) -> Operation[tuple[list[ObjectInfo], str]]:
    """Return one page of objects and where to go on; an empty cursor ends the scan.

    Raises:
        StaleTerm: The pages before came from another master, or from this one before it restarted.
    """
    if session.slot < 0 or session.is_stale:
        yield from opened(session)
    message = control.Scan(session.slot, session.epoch, prefix, cursor, limit)
    reply: control.Scanned = yield from ask(session, message, again=TRY_ELSEWHERE)
    return [describe(item) for item in reply.items], reply.cursor


def set_pin(session: Session, key: str, pin: Pin, pin_s: float) -> Operation[bool]:
    """Pin or unpin an object; return whether it was there."""
    if session.slot < 0 or session.is_stale:
        yield from opened(session)
    message = control.SetPin(session.slot, session.epoch, [key], pin, pin_s)
    reply: control.PinReply = yield from ask(session, message)
    return bool(reply.found[0])


def why(session: Session, key: str) -> Operation[WhyResult]:
    """Return why a key cannot be read."""
    if session.slot < 0 or session.is_stale:
        yield from opened(session)
    reply: control.WhyReply = yield from ask(session, control.Why(session.slot, session.epoch, key))
    if reply.reason == READABLE:
        return WhyResult(readable=True, reason=None, detail=reply.detail)
    try:
        reason = MissReason(reply.reason)
    except ValueError:  # a newer master knows more reasons than we do
        detail = f"{reply.detail} ({reason_name(reply.reason)})"
        return WhyResult(readable=False, reason=MissReason.ABSENT, detail=detail)
    return WhyResult(readable=False, reason=reason, detail=reply.detail)


def describe_cluster(session: Session) -> Operation[control.ClusterStatus]:
    """Return the state of everything, as the master has it."""
    reply: control.ClusterStatus = yield from ask(session, control.DescribeCluster())
    return reply


def drain(session: Session, node: str, timeout_s: float) -> Operation[control.DrainStatus]:
    """Begin to empty a node."""
    reply: control.DrainStatus = yield from ask(session, control.Drain(node, timeout_s))
    return reply


def undrain(session: Session, node: str) -> Operation[control.DrainStatus]:
    """Have a node take new objects again."""
    reply: control.DrainStatus = yield from ask(session, control.Undrain(node))
    return reply


def describe_drain(session: Session, node: str) -> Operation[control.DrainStatus]:
    """Return how far the drain of a node is."""
    reply: control.DrainStatus = yield from ask(session, control.DescribeDrain(node))
    return reply


def list_namespaces(session: Session) -> Operation[tuple[control.NamespaceRecord, ...]]:
    """Return all namespaces."""
    reply: control.NamespaceList = yield from ask(session, control.ListNamespaces())
    return reply.namespaces


def describe(record: control.ObjectRecord) -> ObjectInfo:
    """Turn the wire's record into the public one."""
    return ObjectInfo(
        key=record.key,
        version=record.version,
        bytes=record.length,
        replicas=tuple(
            ReplicaInfo(replica.node, replica.tier, replica.state) for replica in record.replicas
        ),
        wanted_replicas=record.wanted_replicas,
        pin=record.pin,
        pin_left_s=record.pin_left_s,
        lease_left_s=record.lease_left_s,
        group=record.group,
        parent=record.parent,
    )


def _ask_about(
    session: Session, keys: list[str], message: Callable[[Sequence[str]], Message]
) -> Operation[list[Any]]:
    """Ask about keys in as few frames as hold them; one that fails fails the call."""
    if session.slot < 0 or session.is_stale:
        yield from opened(session)
    if len(keys) == 1:
        return [(yield from ask(session, message(keys)))]
    messages = [message(part) for part in batches.cut_keys(keys)]
    replies = yield from _ask_parts(session, messages)
    for reply in replies:
        if isinstance(reply, StoreError):
            raise reply
    return replies


def _ask_parts(session: Session, messages: list[Message]) -> Operation[list[Any | StoreError]]:
    if len(messages) == 1:
        return [(yield from ask(session, messages[0]))]
    return (yield from ask_many(session, messages)) if messages else []
