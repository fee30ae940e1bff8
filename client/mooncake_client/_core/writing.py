"""Writing objects: ask for room, write every replica, commit; start again where nodes fail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mooncake_client._core.cluster import Reach
from mooncake_client._core.effects import Tell, Wait, Write
from mooncake_client._core.offers import Offer, PutOptions  # noqa: TC001 - named by callers
from mooncake_client._core.outcomes import is_about_node, node_failed, patience_s
from mooncake_client._core.planner import Choice
from mooncake_client._core.session import TRY_AGAIN, ask, attach, opened
from mooncake_client._results import PutResult
from mooncake_store import errors
from mooncake_store.data_path import WriteTask
from mooncake_store.errors import (
    AttemptExpired,
    DeadlineExceeded,
    InvalidArgument,
    NotSupported,
    Overloaded,
    StoreError,
    Unreachable,
    without_frames,
)
from mooncake_store.limits import BATCH_BYTES_MAX, BATCH_KEYS_MAX, MIB
from mooncake_store.types import Tier
from mooncake_store.wire import control

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mooncake_client._core.effects import Operation
    from mooncake_client._core.outcomes import Path
    from mooncake_client._core.session import Session
    from mooncake_store.wire.control import Message, PutGrant, Replica

WAVE_BYTES: Final = 256 * MIB
"""Payload of one grant, write and commit: a fraction of a second, so that no attempt of a long
batch expires while the others are written."""

NEVER: Final = float("inf")

TRIES_MAX: Final = 3
"""Attempts for one object: the second meets other nodes, the third a master that has noticed."""


class _Group:
    """What is written to one node."""

    __slots__ = ("choice", "owners", "tasks")

    def __init__(self, choice: Choice) -> None:
        self.choice = choice
        self.tasks: list[WriteTask] = []
        self.owners: list[tuple[Offer, int]] = []
        """(offer, number of its replica) of each task."""


def put(session: Session, offers: list[Offer], options: PutOptions) -> Operation[None]:
    """Write all offers; each ends with its own outcome, and one that fails fails alone.

    Costs two round trips to the master for each wave of a batch. An offer whose key is in the
    batch twice is written after the one before it.
    """
    for wave in waves(offers) if len(offers) > 1 else (offers,):
        try:
            if session.slot < 0 or session.is_stale:
                yield from opened(session)
            yield from _put_wave(session, wave, options)
        except StoreError as error:
            for offer in wave:
                if not offer.is_over:
                    _fail(session, offer, error)


def put_together(session: Session, offers: list[Offer], options: PutOptions) -> Operation[None]:
    """Write offers that become readable by one commit; all end well, or all with an error.

    Raises:
        InvalidArgument: They are too many for one grant, or a key is there twice.
    """
    if len(list(waves(offers))) > 1:
        raise InvalidArgument(
            f"objects that become visible together are at most {BATCH_KEYS_MAX} of"
            f" {WAVE_BYTES} bytes in all, each key once"
        )
    yield from put(session, offers, options)


def waves(offers: list[Offer]) -> Iterator[list[Offer]]:
    """Cut a batch into waves of distinct keys that one frame and one grant can hold."""
    wave: list[Offer] = []
    keys: set[str] = set()
    payload = frame = 0
    for offer in offers:
        if wave and (
            offer.key in keys
            or len(wave) >= BATCH_KEYS_MAX
            or frame + offer.frame_bytes > BATCH_BYTES_MAX
            or payload + offer.length > WAVE_BYTES
        ):
            yield wave
            wave, keys, payload, frame = [], set(), 0, 0
        wave.append(offer)
        keys.add(offer.key)
        payload += offer.length
        frame += offer.frame_bytes
    if wave:
        yield wave


def _put_wave(session: Session, wave: list[Offer], options: PutOptions) -> Operation[None]:
    pending = wave
    while pending:
        try:
            yield from start(session, pending, options)
            yield from finish(session, pending, options)
        except GeneratorExit:  # dropped by its driver, which performs nothing more
            raise
        except BaseException:
            yield from abort(pending)
            raise
        pending = [offer for offer in pending if not offer.is_over]
        if pending:
            session.counters.retries += len(pending)
            yield from _wait_for_nodes(session, pending)


def _wait_for_nodes(session: Session, pending: list[Offer]) -> Operation[None]:
    """Wait until a node may be tried that just failed, where the next attempt may meet no other.

    Raises:
        Unreachable: The deadline ends before.
        DeadlineExceeded: It has passed.
    """
    pause_s = max(0.0, min(offer.opens_s for offer in pending) - session.clock())
    if (yield Wait(pause_s)):
        return
    key = pending[0].key
    if pause_s:
        raise Unreachable(
            f"no node takes {key!r}: those that could have failed just now, and are tried again in"
            f" {pause_s:.2f} s, after the deadline",
            key=key,
        )
    raise DeadlineExceeded(f"the deadline passed while writing {key!r}")


def finish(session: Session, offers: list[Offer], options: PutOptions) -> Operation[None]:
    """Write and commit what was granted; those still not over are to be started again."""
    granted = [offer for offer in offers if offer.grant is not None]
    if granted:
        yield from write(session, granted, options)
        yield from commit(session, granted, options)


def start(session: Session, offers: list[Offer], options: PutOptions) -> Operation[None]:
    """Get room for every offer, hashing them while the master looks for it."""

    def prepare() -> None:
        for offer in offers:
            offer.prepare(session.name, options)

    message = control.PutStart(
        session.slot,
        session.epoch,
        [
            control.PutItem(
                offer.key, offer.length, offer.group, offer.parent, offer.expected_version
            )
            for offer in offers
        ],
        options.replicas,
        options.replace,
        options.together,
        options.pin,
        options.pin_s,
        session.cluster.near,
        options.preferred,
        session.cluster.number,
        options.durable,
    )
    for offer in offers:
        offer.begin()
    reply: control.PutStarted = yield from ask(session, message, prepare)
    try:
        _take_grants(session, offers, reply)
    except BaseException:  # Ctrl-C: who gives up the offers is to know what was granted
        for offer, item in zip(offers, reply.items, strict=True):
            offer.grant = item if isinstance(item, control.PutGrant) else None
        raise
    if session.cluster.has_untried:
        yield from attach(session)


def _take_grants(session: Session, offers: list[Offer], reply: control.PutStarted) -> None:
    session.update_membership(reply.membership)
    for offer, item in zip(offers, reply.items, strict=True):
        if isinstance(item, control.PutGrant):
            offer.grant = item
        else:
            _not_granted(session, offer, item, reply.pressure)


def _not_granted(
    session: Session, offer: Offer, item: control.PutExists | control.Refusal, pressure: float
) -> None:
    if isinstance(item, control.PutExists):
        session.counters.puts_existing += 1
        offer.end(PutResult(created=False, version=item.version, replicas=0, pressure=pressure))
    else:
        _fail(session, offer, errors.from_code(item.code, item.message, key=offer.key))


def write(
    session: Session, offers: list[Offer], options: PutOptions, but: int = -1
) -> Operation[None]:
    """Write every replica of the granted offers; ``offer.written`` says which landed.

    ``but`` is the number of a replica that the caller writes in another way.
    """
    groups = _plan(session, offers, options, but)
    if not groups:
        return
    patience = None
    if offers[0].tries < TRIES_MAX and session.cluster.has_several:
        patience = patience_s(sum(offer.length for offer in offers))
    began_s = session.clock()
    paths = yield Write([(group.choice.node, group.tasks) for group in groups], patience)
    for path, group in zip(paths, groups, strict=True):
        yield from _judge(session, path, group, began_s)


def _plan(session: Session, offers: list[Offer], options: PutOptions, but: int) -> list[_Group]:
    """Make the tasks of all granted replicas that can be reached, node by node."""
    groups: dict[int, _Group] = {}
    routes: dict[int, _Group | None] = {}
    """{incarnation: group} of the segments met so far; None: out of reach."""
    slot, epoch, name = session.slot, session.epoch, session.name
    for offer in offers:
        grant = offer.grant
        assert grant is not None
        planned = but >= 0
        opens_s = NEVER
        identity, sealed = offer.seal(name, slot, epoch, options)
        parts = offer.parts or ()
        for bit, replica in enumerate(grant.replicas):
            incarnation = replica.incarnation
            group = routes.get(incarnation)
            if group is None:
                if incarnation not in routes:
                    group = routes[incarnation] = _route(session, replica, groups)
                if group is None:
                    opens_s = min(opens_s, _opens_s(session, replica))
                    continue
            planned = True
            if bit != but:
                group.tasks.append(WriteTask(incarnation, replica.offset, identity, sealed, parts))
                group.owners.append((offer, bit))
        if not planned and opens_s < NEVER:
            offer.opens_s = opens_s
    return [group for group in groups.values() if group.tasks]


def _route(session: Session, replica: Replica, groups: dict[int, _Group]) -> _Group | None:
    """Return the group of a segment's node, or None where it is not to be tried."""
    cluster = session.cluster
    node = cluster.node_of(replica.incarnation)
    if node is None:
        return None
    group = groups.get(node.index)
    if group is None:
        reach = cluster.reach(node)
        if reach is Reach.NONE or not session.breakers.allows(node.node_id, session.clock()):
            return None
        group = groups[node.index] = _Group(Choice(replica, node, reach, has_others=False))
    return group


def _opens_s(session: Session, replica: Replica) -> float:
    """Return when the node of a replica may be tried again; ``NEVER``: it is left for good."""
    node = session.cluster.node_of(replica.incarnation)
    if node is None or session.cluster.reach(node) is Reach.NONE:
        return NEVER
    return session.breakers.opens_s(node.node_id) or NEVER


def _judge(session: Session, path: Path, group: _Group, began_s: float) -> Operation[None]:
    """Take over the outcome of the writes to one node."""
    trouble: StoreError | None = None
    written = 0
    for task, (offer, bit) in zip(group.tasks, group.owners, strict=True):
        error = task.error
        if error is None:
            offer.written |= 1 << bit
            written += offer.length
            continue
        session.counters.transfer_failures[error.code] += 1
        without_frames(error)
        trouble = error if is_about_node(error) else trouble
    session.counters.bytes_written[path.name] += written
    if trouble is not None:
        yield from node_failed(session, group.choice, trouble, began_s)
    elif written:
        session.breakers.succeeded(group.choice.node.node_id)


def commit(session: Session, offers: list[Offer], options: PutOptions) -> Operation[None]:
    """Make what was written readable, and give up what was not."""
    landed = [offer for offer in offers if offer.written]
    if len(landed) < len(offers):
        lost = [offer for offer in offers if not offer.written]
        if options.together:
            landed, lost = [], offers  # all or none
        yield from abort(lost)
        _settle_lost(session, lost, together=options.together)
    if not landed:
        return
    grants = [_grant(offer) for offer in landed]
    message = control.PutCommit(
        [
            control.CommitItem(grant.version, offer.written)
            for grant, offer in zip(grants, landed, strict=True)
        ]
    )
    retries = session.counters.retries
    reply: control.PutCommitted = yield from _ask_whether_committed(session, landed, message)
    asked_once = session.counters.retries == retries
    expired: list[Offer] = []
    for offer, item in zip(landed, reply.items, strict=True):
        if isinstance(item, control.Committed):
            _created(session, offer, item.replicas, reply.pressure)
        elif item.code == AttemptExpired.code:
            expired.append(offer)
        else:
            offer.grant = None
            _fail(session, offer, errors.from_code(item.code, item.message, key=offer.key))
    if expired:
        yield from _settle_expired(
            session, expired, reply.pressure, asked_once=asked_once, durable=options.durable
        )


def _ask_whether_committed(
    session: Session, offers: list[Offer], message: Message
) -> Operation[Any]:
    """Ask the master to commit, or whether it did.

    Raises:
        DeadlineExceeded: It may have done it, and went away; its own error would say that nothing
            of the put is readable.
    """
    try:
        return (yield from ask(session, message))
    except TRY_AGAIN as error:
        key = offers[0].key
        text = f"whether {key!r} was committed was not heard by the deadline: {error}"
        raise DeadlineExceeded(text, key=key if len(offers) == 1 else None) from None


def _settle_lost(session: Session, offers: list[Offer], *, together: bool) -> None:
    """No copy of these could be written: they are started again, or failed.

    Where all nodes of a grant were left alone nothing was tried. The next attempt may meet others;
    where it does not, it is no attempt, and waits until one of them may be tried.
    """
    if together:
        pauses = [offer.opens_s for offer in offers if offer.opens_s]
        for offer in offers if pauses else ():
            offer.opens_s = min(pauses)
    for offer in offers:
        if offer.opens_s and session.cluster.has_several and offer.tries < TRIES_MAX:
            offer.opens_s = 0.0
        elif offer.opens_s:
            offer.tries -= 1
        elif offer.tries >= TRIES_MAX:
            message = f"no node took {offer.key!r} in {offer.tries} attempts"
            kind = NotSupported if session.cluster.is_shared_only else Unreachable
            _fail(session, offer, kind(message, key=offer.key))


def _settle_expired(
    session: Session, offers: list[Offer], pressure: float, *, asked_once: bool, durable: bool
) -> Operation[None]:
    """The master does not know these attempts any more: perhaps it committed them before.

    That happens where the connection broke between a commit and its answer. If the version that is
    there now is ours, it did. If another one or none is, ours may have been there and been replaced
    or removed since: writing it again would bring an old value back, so only an attempt that was
    surely never committed is started again.
    """
    message = control.Locate(session.slot, session.epoch, [offer.key for offer in offers])
    reply: control.Located = yield from _ask_whether_committed(session, offers, message)
    for offer, item in zip(offers, reply.items, strict=True):
        if isinstance(item, control.Location) and item.version == _grant(offer).version:
            if durable and all(replica.tier == Tier.DRAM for replica in item.replicas):
                text = f"{offer.key!r} is stored; whether a disk took it was not heard"
                _fail(session, offer, Overloaded(text, key=offer.key))
                offer.grant = None
            else:
                _created(session, offer, len(item.replicas), pressure)
            continue
        offer.grant = None
        if offer.tries >= TRIES_MAX or not asked_once:
            _fail(session, offer, AttemptExpired(f"the put of {offer.key!r} took too long"))


def _created(session: Session, offer: Offer, replicas: int, pressure: float) -> None:
    session.counters.puts_created += 1
    session.locations.forget(offer.key)
    offer.end(
        PutResult(created=True, version=_grant(offer).version, replicas=replicas, pressure=pressure)
    )
    offer.grant = None


def abort(offers: list[Offer]) -> Operation[None]:
    """Give attempts up, without waiting for the master to hear of it."""
    versions = [offer.grant.version for offer in offers if offer.grant is not None]
    for offer in offers:
        offer.grant = None
    if versions:
        yield Tell(control.PutAbort(versions))


def _grant(offer: Offer) -> PutGrant:
    assert offer.grant is not None
    return offer.grant


def _fail(session: Session, offer: Offer, error: StoreError) -> None:
    session.counters.errors[error.code] += 1
    offer.end(error)
