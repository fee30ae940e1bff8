"""The calls of both clients as operations: arguments are checked, results unpacked."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from mooncake_client import _arguments as arguments
from mooncake_client._core import asking, in_place, reading, writing
from mooncake_client._core.batches import check_keys
from mooncake_client._core.session import opened
from mooncake_client._core.wants import Want
from mooncake_client._memory import target_views
from mooncake_store.errors import InternalError, StoreError
from mooncake_store.fingerprint import check_key
from mooncake_store.types import Pin, Tier

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mooncake_client._arguments import Hints, Items, PinArgument
    from mooncake_client._core.effects import Operation
    from mooncake_client._core.in_place import Reserved
    from mooncake_client._core.offers import Offer, PutOptions
    from mooncake_client._core.session import Session
    from mooncake_client._memory import Buffer, Value
    from mooncake_client._results import ObjectInfo, PrefixMatch, ProbeResult, PutResult, WhyResult
    from mooncake_store.transport import View

R = TypeVar("R")


def put(
    session: Session, key: str, value: Value, options: PutOptions, hints: Hints
) -> Operation[PutResult]:
    """Store one object."""
    offer = arguments.offer(key, value, hints)
    yield from writing.put(session, [offer], options)
    return raised(_ended(offer))


def put_many(
    session: Session, items: Items, options: PutOptions
) -> Operation[list[PutResult | StoreError]]:
    """Store objects, each by itself."""
    offers = arguments.offers(items)
    yield from writing.put(session, offers, options)
    return [_ended(offer) for offer in offers]


def put_together(session: Session, items: Items, options: PutOptions) -> Operation[list[PutResult]]:
    """Store objects, all or none."""
    offers = arguments.offers(items)
    yield from writing.put_together(session, offers, options)
    return [raised(_ended(offer)) for offer in offers]


def get(
    session: Session,
    key: str,
    start: int,
    length: int | None,
    *,
    verify: bool,
    wait_s: float,
) -> Operation[bytes | None]:
    """Read one object into memory of the store's choice."""
    want = arguments.want(key, None, start, length, verify=verify)
    yield from reading.read(session, [want], arguments.milliseconds(wait_s))
    return raised(_bytes_of(want))


def get_from_disk(session: Session, key: str) -> Operation[bytes | None]:
    """Read one object from a copy on a disk, never from one in memory."""
    want = arguments.want(key, None, 0, None, verify=True)
    if session.slot < 0 or session.is_stale:
        yield from opened(session)
    session.locations.forget(key)  # It may be from before the disk had it.
    yield from reading.locate(session, [want])
    if not want.is_over and want.entry is not None:
        disks = [replica for replica in want.entry.replicas if replica.tier != Tier.DRAM]
        if not disks:
            return None
        for replica in want.entry.replicas:
            if replica.tier == Tier.DRAM:
                want.trouble.refused.add((replica.incarnation, replica.offset))
        yield from reading.read(session, [want])
    return raised(_bytes_of(want))


def get_into(  # noqa: PLR0913 - as the call itself
    session: Session,
    key: str,
    buffer: Buffer,
    start: int,
    length: int | None,
    *,
    verify: bool,
    wait_s: float,
) -> Operation[int | None]:
    """Read one object into the caller's memory."""
    want = arguments.want(key, target_views(buffer), start, length, verify=verify)
    yield from reading.read(session, [want], arguments.milliseconds(wait_s))
    return raised(want.settle())


def get_many(
    session: Session, keys: Iterable[str], *, verify: bool, wait_s: float
) -> Operation[list[bytes | StoreError | None]]:
    """Read objects into memory of the store's choice."""
    wants = arguments.wants(keys, verify=verify)
    yield from reading.read(session, wants, arguments.milliseconds(wait_s))
    return [_bytes_of(want) for want in wants]


def get_into_many(
    session: Session,
    keys: Iterable[str],
    buffers: Sequence[Buffer],
    ranges: Sequence[tuple[int, int | None]] | None,
    *,
    verify: bool,
    wait_s: float,
) -> Operation[list[int | StoreError | None]]:
    """Read objects into the caller's memory."""
    wants = arguments.wants(keys, buffers, ranges, verify=verify)
    yield from reading.read(session, wants, arguments.milliseconds(wait_s))
    return [want.settle() for want in wants]


def view(
    session: Session, key: str, *, verify: bool
) -> Operation[tuple[View | None, memoryview | None]]:
    """Look at an object; return the view if there is one, and the memory to be looked at."""
    want = Want(key, verify=verify)
    seen = yield from in_place.view(session, want, verify=verify)
    if seen is not None:
        return seen, seen.payload
    value = raised(_bytes_of(want))
    return None, None if value is None else memoryview(value)


def reserve(
    session: Session, key: str, length: int, options: PutOptions, hints: Hints
) -> Operation[Reserved]:
    """Get room for an object that the caller fills."""
    offer = arguments.empty_offer(key, length, hints)
    return (yield from in_place.reserve(session, offer, options))


def scan_page(
    session: Session, prefix: str, cursor: str
) -> Operation[tuple[list[ObjectInfo], str]]:
    """List some objects; an empty cursor ends the scan."""
    return (yield from asking.scan_page(session, arguments.check_prefix(prefix), cursor))


def exists(session: Session, key: str) -> Operation[bool]:
    """Ask whether one object can be read."""
    return (yield from asking.exists(session, [check_key(key)]))[0]


def exists_many(session: Session, keys: Iterable[str]) -> Operation[list[bool]]:
    """Ask which objects can be read."""
    return (yield from asking.exists(session, check_keys(keys)))


def probe_many(
    session: Session, keys: Iterable[str], hold_s: float, probe_id: str
) -> Operation[list[ProbeResult]]:
    """Ask what gets would find."""
    checked, hold_s = check_keys(keys), arguments.check_seconds(hold_s, "hold_s")
    probe_id = arguments.check_hint(probe_id, "probe_id")
    return (yield from asking.probe(session, checked, hold_s, probe_id))


def match_prefix(
    session: Session, keys: Iterable[str], hold_s: float, probe_id: str
) -> Operation[PrefixMatch]:
    """Ask how many leading keys can be read."""
    checked, hold_s = check_keys(keys), arguments.check_seconds(hold_s, "hold_s")
    probe_id = arguments.check_hint(probe_id, "probe_id")
    return (yield from asking.match_prefix(session, checked, hold_s, probe_id))


def remove_many(session: Session, keys: Iterable[str]) -> Operation[list[bool]]:
    """Remove objects."""
    return (yield from asking.remove(session, check_keys(keys)))


def stat_many(session: Session, keys: Iterable[str]) -> Operation[list[ObjectInfo | None]]:
    """Describe objects."""
    return (yield from asking.stat(session, check_keys(keys)))


def set_pin(session: Session, key: str, pin: PinArgument) -> Operation[bool]:
    """Pin an object, or unpin it."""
    kind, pin_s = (Pin.NONE, 0.0) if pin is None else arguments.parse_pin(pin)
    return (yield from asking.set_pin(session, check_key(key), kind, pin_s))


def why(session: Session, key: str) -> Operation[WhyResult]:
    """Ask why an object cannot be read."""
    return (yield from asking.why(session, check_key(key)))


def raised(outcome: R | StoreError) -> R:
    """Return an outcome, or raise the error in its place."""
    if isinstance(outcome, StoreError):
        try:
            raise outcome
        finally:
            del outcome  # its traceback holds this frame
    return outcome


def _ended(offer: Offer) -> PutResult | StoreError:
    outcome = offer.settle()
    if outcome is None:
        return InternalError(f"the put of {offer.key!r} has no outcome", key=offer.key)
    return outcome


def _bytes_of(want: Want) -> bytes | StoreError | None:
    outcome = want.settle()
    return want.fresh if isinstance(outcome, int) else outcome
