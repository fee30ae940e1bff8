"""Reading objects: find where they are, read the cheapest copy, try another one if need be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mooncake_client._core import batches
from mooncake_client._core.cluster import Reach
from mooncake_client._core.effects import Ask, NewReign, Read, Tell, Wait
from mooncake_client._core.locations import Entry
from mooncake_client._core.outcomes import (
    fail,
    is_about_node,
    look_again,
    node_failed,
    patience_s,
    settle,
    without_replica,
)
from mooncake_client._core.planner import Choice, Planner
from mooncake_client._core.session import TRY_AGAIN, ask, ask_many, attach, opened
from mooncake_store.errors import (
    CallerError,
    ChecksumMismatch,
    DeadlineExceeded,
    Overloaded,
    StaleEpoch,
    StoreError,
    without_frames,
)
from mooncake_store.extent import Identity
from mooncake_store.fingerprint import fingerprint
from mooncake_store.limits import CHUNK_BYTES, MIB
from mooncake_store.wire.control import Locate, Renew

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_client._core.effects import Operation
    from mooncake_client._core.outcomes import Path
    from mooncake_client._core.session import Session
    from mooncake_client._core.wants import Want
    from mooncake_store.transport import ReadTask
    from mooncake_store.wire.control import Located, Replica

SLICE_BYTES: Final = 64 * MIB
"""Bytes read before the leases are looked at for the first time: 20 ms at loopback speed, 6 s at
10 MB/s. Later slices follow the measured speed."""

SLICE_BYTES_MIN: Final = 4 * MIB
"""A smaller slice would cost more in round trips than it saves in surprises."""

LEASE_PART: Final = 0.25
"""Part of the lease that one slice may take, so that a renewal comes in time."""

BUSY_S_MIN: Final = 0.002
"""First pause where the nodes say that they are busy; it doubles up to ``BUSY_S_MAX``."""

BUSY_S_MAX: Final = 0.1


class _Group:
    """What one round reads from one node.

    Attributes:
        choice: The node, and how it is reached.
        has_others: Each of its tasks could be read from another node as well.
    """

    __slots__ = ("choice", "has_others", "owners", "tasks")

    def __init__(self, choice: Choice) -> None:
        self.choice = choice
        self.has_others = True
        self.tasks: list[ReadTask] = []
        self.owners: list[tuple[Want, Replica]] = []

    def add(self, want: Want, replica: Replica, size: int) -> None:
        """Read the next ``size`` bytes of a want from here."""
        self.tasks.append(want.task(replica, size))
        self.owners.append((want, replica))


def read(session: Session, wants: list[Want], wait_ms: int = 0) -> Operation[None]:
    """Read all wants; each ends with its own outcome, and one that fails fails alone.

    Costs one round trip to the master for what is not leased, and none for what is.
    """
    if session.slot < 0 or session.is_stale:
        yield from opened(session)
    is_busy: bool | None = None
    if len(wants) == 1:
        is_busy = yield from _read_simply(session, wants[0], wait_ms)
    pause_s = 0.0
    pending = [want for want in wants if not want.is_over]
    while pending:
        if is_busy is None:
            is_busy = yield from _read_round(session, pending, wait_ms)
            pending = [want for want in pending if not want.is_over]
        if pending:
            pause_s = min(max(BUSY_S_MIN, 2 * pause_s), BUSY_S_MAX) if is_busy else 0.0
            pending = yield from _pause(session, pending, pause_s)
        is_busy = None


def _read_round(session: Session, wants: list[Want], wait_ms: int) -> Operation[bool]:
    yield from locate(session, wants, wait_ms)
    if session.cluster.has_untried:
        yield from attach(session)
    return (yield from _transfer(session, [want for want in wants if not want.is_over]))


def _pause(session: Session, wants: list[Want], pause_s: float) -> Operation[list[Want]]:
    """Let ``pause_s`` pass before another round; return what is still to be read in it."""
    session.counters.retries += len(wants)
    if (yield Wait(pause_s)):
        return wants
    for want in wants:
        message = f"the deadline passed while reading {want.key!r}"
        if want.trouble.hindrance:
            message = f"{message}: {want.trouble.hindrance}"
        fail(session, want, DeadlineExceeded(message, key=want.key))
    return []


def _read_simply(session: Session, want: Want, wait_ms: int) -> Operation[bool | None]:
    """Read one object in the usual course of things; leave what is unusual to ``read``.

    A shorter way through the same decisions: a read of 4 KiB is a count of function calls.

    Returns:
        Whether the node was too busy; None where it was not asked.
    """
    now_s = session.clock()
    entry = session.locations.get(want.key, now_s)
    if entry is not None:
        session.counters.leased_reads += 1
        _place(session, want, entry, is_located=False)
    else:
        try:
            reply = yield Ask(
                Locate(session.slot, session.epoch, [want.key], wait_ms, session.cluster.number)
            )
        except (NewReign, StaleEpoch, *TRY_AGAIN):
            return None
        _note(session, (want,), reply, now_s)
        entry = want.entry
    if want.is_over or entry is None or len(entry.replicas) != 1 or want.count > SLICE_BYTES:
        return None
    cluster, replica = session.cluster, entry.replicas[0]
    node = cluster.node_of(replica.incarnation)
    if node is None or cluster.has_untried or not session.breakers.is_closed(node.node_id):
        return None
    reach = cluster.reach_of(node, replica.incarnation)
    if reach is Reach.NONE:
        return None
    group = _Group(Choice(replica, node, reach, has_others=False))
    group.add(want, replica, want.count)
    began_s = session.clock()
    (path,) = yield Read(((node, group.tasks),))
    return (yield from _judge(session, path, group, [], began_s))


def locate(session: Session, wants: list[Want], wait_ms: int = 0) -> Operation[None]:
    """Give every want a location, from the cache or from the master, or end it as a miss."""
    now_s = session.clock()
    unknown: list[Want] = []
    for want in wants:
        if want.entry is None:
            entry = session.locations.get(want.key, now_s)
            if entry is None:
                unknown.append(want)
            else:
                session.counters.leased_reads += 1
                _place(session, want, entry, is_located=False)
    if not unknown:
        return
    parts = batches.cut(unknown, _key_bytes)
    messages = [
        Locate(
            session.slot,
            session.epoch,
            [want.key for want in part],
            wait_ms,
            session.cluster.number,
        )
        for part in parts
    ]
    replies = yield from _ask_parts(session, messages)
    for part, reply in zip(parts, replies, strict=True):
        if isinstance(reply, StoreError):
            for want in part:
                fail(session, want, reply)
        else:
            _note(session, part, reply, now_s)


def _ask_parts(session: Session, messages: list[Locate]) -> Operation[list[Located | StoreError]]:
    if len(messages) == 1:
        return [(yield from ask(session, messages[0]))]
    return (yield from ask_many(session, messages))


def _note(session: Session, wants: Sequence[Want], reply: Located, sent_s: float) -> None:
    """Take over what the master said about where things are."""
    session.update_membership(reply.membership)
    session.lease_s = reply.lease_s
    ends_s = sent_s + reply.lease_s
    name, slot, epoch = session.name, session.slot, session.epoch
    misses, put = session.counters.misses, session.locations.put
    for want, item in zip(wants, reply.items, strict=True):
        if isinstance(item, int):
            misses[item] += 1
            session.misses.note(want.key, item)
            want.end(want.damage)
            continue
        key = want.key
        identity = Identity(fingerprint(name, key), item.version, slot, epoch, item.length)
        entry = Entry(identity, item.replicas, ends_s)
        put(key, entry)
        _place(session, want, entry, is_located=True)


def _place(session: Session, want: Want, entry: Entry, *, is_located: bool) -> None:
    try:
        want.place(entry, is_located=is_located)
    except CallerError as error:
        fail(session, want, error)


def _transfer(session: Session, wants: list[Want]) -> Operation[bool]:
    """Read each want from one replica, in slices; return whether nodes were too busy."""
    queue = wants
    slice_bytes = SLICE_BYTES
    now_s = session.clock()
    is_busy = False
    while queue:
        groups, queue, size = _plan(session, now_s, queue, slice_bytes)
        if not groups:
            break
        has_others = all(group.has_others for group in groups)
        paths = yield Read(
            [(group.choice.node, group.tasks) for group in groups],
            patience_s(size) if has_others else None,
        )
        for path, group in zip(paths, groups, strict=True):
            is_busy |= yield from _judge(session, path, group, queue, now_s)
        if queue:
            began_s, now_s = now_s, session.clock()
            slice_bytes = yield from _renew(session, queue, size, now_s - began_s)
    return is_busy


def _plan(
    session: Session, now_s: float, wants: list[Want], size_max: int
) -> tuple[list[_Group], list[Want], int]:
    """Choose a replica for each want until ``size_max`` bytes are planned.

    Returns:
        What to read from each node, the wants that are left, the bytes planned.
    """
    planner = Planner(session.cluster, session.breakers, now_s)
    groups: dict[tuple[int, int], _Group] = {}
    """{(node, tier): group}: a disk has another way, and another speed."""
    routes: dict[int, _Group] = {}
    """{incarnation: group} where a want with one copy went before: so do those that follow."""
    left = size_max
    for at, want in enumerate(wants):
        if left <= 0:
            return list(groups.values()), wants[at:], size_max - left
        assert want.entry is not None
        size = want.count - want.done
        if size > left:
            size = _aligned(want, left)
        left -= size
        replicas = want.entry.replicas
        group = routes.get(replicas[0].incarnation) if len(replicas) == 1 else None
        if group is not None and not want.refused:
            group.add(want, replicas[0], size)
            continue
        choice = planner.choose(replicas, size, want.refused)
        if choice is None:
            without_replica(session, want)
            continue
        group = groups.setdefault((choice.node.index, choice.replica.tier), _Group(choice))
        group.add(want, choice.replica, size)
        group.has_others = group.has_others and choice.has_others
        if len(replicas) == 1:
            routes[choice.replica.incarnation] = group
    return list(groups.values()), [], size_max - left


def _aligned(want: Want, size_max: int) -> int:
    """Return how much of a large want to read now: to a chunk's end, so none is hashed twice."""
    at = want.start + want.done
    size = (at + size_max) // CHUNK_BYTES * CHUNK_BYTES - at
    return size if size > 0 else min(CHUNK_BYTES, want.count - want.done)


def _judge(
    session: Session, path: Path, group: _Group, rest: list[Want], began_s: float
) -> Operation[bool]:
    """Take over the outcome of one node's tasks; return whether it was too busy for some."""
    delivered = hits = 0
    trouble: StoreError | None = None
    is_busy = False
    for task, (want, replica) in zip(group.tasks, group.owners, strict=True):
        error = task.error
        if isinstance(error, ChecksumMismatch):
            error = yield from look_again(session, group.choice, task)
        if error is not None:
            yield from settle(session, want, replica, without_frames(error))
            is_busy |= isinstance(error, Overloaded)
            trouble = error if is_about_node(error) else trouble
            continue
        delivered += task.length
        want.done += task.length
        if want.done < want.count:
            rest.append(want)
            continue
        hits += 1
        if want.entry is not None:
            want.entry.found(path, replica)
        want.end(want.count)
    session.counters.hits += hits
    session.counters.bytes_read[path.name] += delivered
    if delivered:
        session.breakers.succeeded(group.choice.node.node_id)
    if trouble is not None:
        yield from node_failed(session, group.choice, trouble, began_s)
    return is_busy


def _renew(session: Session, wants: list[Want], size: int, took_s: float) -> Operation[int]:
    """Between slices: keep the leases of what is left; return the bytes of the next slice."""
    now_s = session.clock()
    lease_s = session.lease_s
    due = [
        (want.key, want.entry.identity.version)
        for want in wants
        if want.entry is not None and want.entry.ends_s - now_s < lease_s * (1 - LEASE_PART)
    ]
    for part in batches.cut(due, lambda pair: batches.key_bytes(pair[0])):
        keys, versions = zip(*part, strict=True)
        yield Tell(Renew(session.slot, session.epoch, list(keys), list(versions)))
    if took_s <= 0:
        return SLICE_BYTES
    return max(SLICE_BYTES_MIN, int(size / took_s * lease_s * LEASE_PART))


def _key_bytes(want: Want) -> int:
    return batches.key_bytes(want.key)
