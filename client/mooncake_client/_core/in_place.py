"""Reading and writing objects where they lie, without a copy, on nodes of this host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_client._core import outcomes, reading, writing
from mooncake_client._core.cluster import Reach
from mooncake_client._core.effects import Reserve, View, Wait
from mooncake_client._core.planner import Planner
from mooncake_client._core.session import attach, opened
from mooncake_store.errors import (
    AttemptExpired,
    ChecksumMismatch,
    StaleExtent,
    StaleTerm,
    StoreError,
)

if TYPE_CHECKING:
    from mooncake_client._core.effects import Operation
    from mooncake_client._core.offers import Offer, PutOptions
    from mooncake_client._core.planner import Choice
    from mooncake_client._core.session import Session
    from mooncake_client._core.wants import Want
    from mooncake_client._results import PutResult
    from mooncake_store import transport


def view(session: Session, want: Want, *, verify: bool) -> Operation[transport.View | None]:
    """Look at an object in place, or read a private copy where no copy of it is near.

    Returns:
        The view; or None, and ``want`` has ended with a copy, a miss or an error.
    """
    if session.slot < 0 or session.is_stale:
        yield from opened(session)
    while True:
        yield from reading.locate(session, [want])
        if want.is_over:
            return None
        assert want.entry is not None
        planner = Planner(session.cluster, session.breakers, session.clock())
        choice = planner.choose(want.entry.replicas, 0, want.refused)
        if choice is None or choice.reach is not Reach.SHARED:
            yield from reading.read(session, [want])
            return None
        seen = yield from _look(session, want, choice, verify=verify)
        if seen is not None:
            return seen
        if not (yield Wait(0.0)):
            yield from reading.read(session, [want])
            return None


def leave(session: Session, key: str, view: transport.View, *, failed: bool) -> None:
    """End a view; make sure that the memory held the object all the time, unless all is in vain.

    Raises:
        StaleExtent: It was reused meanwhile.
    """
    try:
        if not failed:
            view.check()
    except StoreError:
        session.counters.stale_locations += 1
        session.locations.forget(key)
        raise
    finally:
        view.release()


def _look(
    session: Session, want: Want, choice: Choice, *, verify: bool
) -> Operation[transport.View | None]:
    """Try one near copy; what is wrong with it is dealt with, and None returned."""
    entry, replica = want.entry, choice.replica
    assert entry is not None
    seen: transport.View | None = None
    try:
        path, seen = yield View(choice.node, replica, entry.identity)
        entry.found(path, replica)
        if verify and not entry.verified:
            seen.verify()
            entry.verified = True
    except StoreError as error:
        if seen is not None:
            seen.release()
        yield from _not_seen(session, want, choice, error)
        return None
    session.counters.hits += 1
    session.counters.bytes_read[path.name] += entry.identity.length
    return seen


def _not_seen(session: Session, want: Want, choice: Choice, error: StoreError) -> Operation[None]:
    session.counters.retries += 1
    session.counters.transfer_failures[error.code] += 1
    if isinstance(error, StaleExtent):
        yield from outcomes.stale(session, want, choice.replica)
    elif isinstance(error, ChecksumMismatch):
        yield from outcomes.damaged(session, want, choice.replica, error)
    else:
        outcomes.unanswered(want, choice.replica)
        session.cluster.detach(choice.node)
        yield from attach(session)


class Reserved:
    """Room for an object that the caller fills.

    Attributes:
        offer: The object; it has ended where nothing is to be filled.
        buffer: Writable memory of the payload; None where a version was there already.
        place: The reservation behind ``buffer``; None where it is private memory.
        bit: Which of the granted replicas ``place`` is.
    """

    __slots__ = ("bit", "buffer", "offer", "options", "path_name", "place")

    def __init__(self, offer: Offer, options: PutOptions) -> None:
        self.offer = offer
        self.options = options
        self.buffer: memoryview | None = None
        self.place: transport.Reservation | None = None
        self.bit = -1
        self.path_name = ""


def reserve(session: Session, offer: Offer, options: PutOptions) -> Operation[Reserved]:
    """Get room for an object, in place if a granted replica is near."""
    if session.slot < 0 or session.is_stale:
        yield from opened(session)
    reserved = Reserved(offer, options)
    try:
        yield from writing.start(session, [offer], options)
        if offer.is_over:
            result_of(offer)
            return reserved
        yield from _place(session, reserved)
        if reserved.place is not None:
            reserved.buffer = reserved.place.payload
        else:
            reserved.buffer = memoryview(bytearray(offer.length))
    except GeneratorExit:  # dropped by its driver, which performs nothing more
        raise
    except BaseException:
        yield from writing.abort([offer])
        raise
    return reserved


def _place(session: Session, reserved: Reserved) -> Operation[None]:
    offer = reserved.offer
    assert offer.grant is not None
    identity = offer.identity(session.name, session.slot, session.epoch)
    for bit, replica in enumerate(offer.grant.replicas):
        node = session.cluster.node_of(replica.incarnation)
        if node is None or session.cluster.reach(node) is not Reach.SHARED:
            continue
        try:
            path, reserved.place = yield Reserve(node, replica, identity)
        except StaleTerm:
            raise AttemptExpired(f"the put of {offer.key!r} was given up", key=offer.key) from None
        except StoreError:  # too many writers here, or no shared memory any more: a copy will do
            continue
        reserved.bit = bit
        reserved.path_name = path.name
        return


def commit(session: Session, reserved: Reserved) -> Operation[PutResult]:
    """Make what is in the buffer the object.

    A reservation in private memory is put like any other value, so a node that fails costs another
    attempt only. One in place is lost with its node.
    """
    offer, place = reserved.offer, reserved.place
    assert reserved.buffer is not None
    offer.parts = [reserved.buffer] if offer.length else []
    try:
        offer.prepare(session.name, reserved.options)
        if place is None:
            yield from writing.finish(session, [offer], reserved.options)
        else:
            yield from _publish(session, reserved, place)
    except GeneratorExit:  # dropped by its driver, which performs nothing more
        raise
    except BaseException:
        yield from writing.abort([offer])
        raise
    finally:
        if place is not None:
            place.abandon()
    return result_of(offer)


def _publish(session: Session, reserved: Reserved, place: transport.Reservation) -> Operation[None]:
    """Write the other replicas from the one that was filled, then make that one readable."""
    offer, options = reserved.offer, reserved.options
    assert offer.grant is not None
    if len(offer.grant.replicas) > 1:
        yield from writing.write(session, [offer], options, but=reserved.bit)
    _, sealed = offer.seal(session.name, session.slot, session.epoch, options)
    try:
        place.publish(sealed)
    except StaleTerm:
        raise AttemptExpired(f"the put of {offer.key!r} took too long", key=offer.key) from None
    offer.written |= 1 << reserved.bit
    session.counters.bytes_written[reserved.path_name] += offer.length
    yield from writing.commit(session, [offer], options)


def result_of(offer: Offer) -> PutResult:
    """Return the result of an offer that has one.

    Raises:
        StoreError: It failed.
    """
    if isinstance(offer.outcome, StoreError):
        raise offer.outcome
    if offer.outcome is None:
        raise AttemptExpired(f"the put of {offer.key!r} could not be finished", key=offer.key)
    return offer.outcome


def give_up(reserved: Reserved) -> Operation[None]:
    """Give the room back; nothing of it is ever readable."""
    if reserved.place is not None:
        reserved.place.abandon()
    yield from writing.abort([reserved.offer])
