"""What the operations of one client share, and how they talk to the master."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from mooncake_client._core.breaker import Breakers
from mooncake_client._core.cluster import Cluster
from mooncake_client._core.counters import Counters
from mooncake_client._core.effects import Ask, AskMany, Attach, NewReign, Retry, Tell
from mooncake_client._core.locations import ENTRIES_MAX, LocationCache
from mooncake_client._core.misses import Misses
from mooncake_store.errors import NotLeader, Overloaded, StaleEpoch, StaleTerm, Unreachable
from mooncake_store.extent import Identity
from mooncake_store.fingerprint import fingerprint
from mooncake_store.types import NodeState
from mooncake_store.wire import control

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mooncake_client._core.effects import Operation
    from mooncake_store.errors import StoreError
    from mooncake_store.wire.control import Membership, Message, NamespaceRecord, NodeRecord

BACKOFF_S_MIN: Final = 0.005
"""Pause before the master is asked for the third time; the second time is at once."""

BACKOFF_S_MAX: Final = 0.25
"""Longest pause: recovery is noticed within it."""

TRY_AGAIN: Final = (Unreachable, NotLeader, StaleTerm, Overloaded)
"""Trouble with a master that another try, perhaps at another address, may not have."""


TRY_ELSEWHERE: Final = tuple(kind for kind in TRY_AGAIN if kind is not StaleTerm)
"""The same for a request that only makes sense to the reign that it was made for."""


class Session:
    """State of one client.

    Attributes:
        clock: Seconds on a monotonic clock.
        name: The namespace.
        manifest: What it is stated to hold, or None.
        slot: Of the namespace at the master; -1 until it was opened.
        epoch: Generation that this client reads and writes. It stays until the client reopens
            the namespace or clears it itself.
        lease_s: Length of the leases that the master gave last.
        misses: Why the last misses were misses.
        is_stale: The namespace was cleared by somebody else.
        reign: (cluster, term) of the master that ``slot`` and the membership come from.
        reign_seen: The same of the master on the line; the driver sets it.
    """

    __slots__ = (
        "breakers",
        "clock",
        "cluster",
        "counters",
        "epoch",
        "is_stale",
        "lease_s",
        "locations",
        "manifest",
        "misses",
        "name",
        "reign",
        "reign_seen",
        "slot",
    )

    def __init__(
        self,
        clock: Callable[[], float],
        name: str,
        manifest: dict[str, str] | None = None,
        *,
        cluster: Cluster | None = None,
        locations_max: int = ENTRIES_MAX,
    ) -> None:
        self.clock = clock
        self.name = name
        self.manifest = manifest
        self.slot = -1
        self.epoch = 0
        self.is_stale = False
        self.lease_s = 0.0
        self.reign: tuple[str, int] | None = None
        self.reign_seen: tuple[str, int] | None = None
        self.cluster = cluster or Cluster()
        self.locations = LocationCache(locations_max)
        self.misses = Misses()
        self.breakers = Breakers()
        self.counters = Counters()

    def identity(self, key: str, version: int, length: int) -> Identity:
        """Return what an extent of this version of ``key`` says of itself."""
        return Identity(fingerprint(self.name, key), version, self.slot, self.epoch, length)

    def adopt(self, record: NamespaceRecord) -> None:
        """Read and write this generation from now on; older locations are void."""
        self.slot = record.slot
        self.epoch = record.epoch
        self.is_stale = False
        self.locations.clear()

    def mark_stale(self) -> None:
        """The namespace was cleared: nothing known of its contents holds any more."""
        self.is_stale = True
        self.locations.clear()

    def update_membership(self, membership: Membership | None) -> None:
        """Take over the membership that a reply carries, if it does."""
        if membership is not None:
            before = {node.node_id: node for node in self.cluster.nodes}
            self.cluster.update(membership)
            self.breakers.keep({node.node_id for node in membership.nodes})
            for node in membership.nodes:
                if node.state == NodeState.LIVE and _is_back(before.get(node.node_id), node):
                    self.breakers.forgive(node.node_id)


def _is_back(before: NodeRecord | None, now: NodeRecord) -> bool:
    """Return whether a live node was away, as far as the master says, or is somewhere else now."""
    if before is None:
        return False
    return before.state != NodeState.LIVE or (before.host, before.port) != (now.host, now.port)


def open_namespace(session: Session, *, anew: bool = False) -> Operation[None]:
    """Open the namespace, or make sure that it still is the one that was opened before.

    With ``anew`` it is whatever it is now. Calls of other threads and tasks are under way all the
    while: until the answer is there, they go on with the slot and the epoch that they began with.
    """
    while True:
        yield from _open_namespace(session, anew=anew)
        if session.is_stale:
            return
        try:
            yield from _meet_nodes(session)
        except NewReign:
            continue  # the master was replaced once more between the two questions
        return


def _open_namespace(session: Session, *, anew: bool) -> Operation[None]:
    record: NamespaceRecord = yield from _persistently(
        session, control.OpenNamespace(session.name, session.manifest)
    )
    known, session.reign = session.reign, session.reign_seen
    if known is not None and session.reign is not None:
        session.cluster.number = -1
        if known[0] != session.reign[0]:  # another cluster: nothing that was known holds there
            session.cluster.forget()
            anew = True
    if anew or session.slot < 0:
        session.adopt(record)
    elif session.epoch != record.epoch:
        session.mark_stale()
    elif session.slot != record.slot:
        session.adopt(record)


def _meet_nodes(session: Session) -> Operation[None]:
    """Learn the nodes, and which of them are on this host, before the first byte moves."""
    message = control.Locate(session.slot, session.epoch, [], 0, -1)
    reply: control.Located = yield from _persistently(session, message)
    session.lease_s = reply.lease_s
    session.update_membership(reply.membership)
    yield from attach(session)


def reopen_namespace(session: Session) -> Operation[None]:
    """Open the namespace as it is now, whatever was cleared meanwhile."""
    yield from open_namespace(session, anew=True)


def clear_namespace(session: Session) -> Operation[None]:
    """Raise the namespace's epoch, and go on with the new one."""
    yield from opened(session)
    record: NamespaceRecord = yield from ask(session, control.Clear(session.name))
    session.adopt(record)


def opened(session: Session) -> Operation[None]:
    """Make sure that the namespace is open, and that its contents are still what they were.

    Raises:
        StaleEpoch: Somebody else cleared it.
    """
    if session.slot < 0:
        yield from open_namespace(session)
    if session.is_stale:
        raise StaleEpoch(
            f"namespace {session.name!r} was cleared since this client opened it (epoch"
            f" {session.epoch}); reopen() goes on with what it holds now"
        )


def ask(
    session: Session,
    message: Message,
    meanwhile: Callable[[], object] | None = None,
    *,
    again: tuple[type[StoreError], ...] = TRY_AGAIN,
) -> Operation[Any]:
    """Ask the master something about the namespace, again where no answer came.

    The reply has the type that belongs to the request (``control.REPLY_DECODERS``). Errors of other
    types than ``again`` are the caller's.
    """
    failures = 0
    while True:
        try:
            return (yield Ask(message, meanwhile))
        except NewReign:
            message = yield from _renamed(session, message)
        except StaleEpoch:
            session.mark_stale()
            raise
        except again as error:
            failures += 1
            yield from _pause(session, failures, error)


def ask_many(session: Session, messages: Sequence[Message]) -> Operation[list[Any | StoreError]]:
    """Ask several things in one round trip; replies in order, an error in place of a failed one.

    Raises:
        StaleEpoch: The namespace was cleared; nothing of the answers is worth anything.
    """
    failures = 0
    asked = list(messages)
    replies: list[Any | StoreError] = []
    while True:
        try:
            replies = yield AskMany(asked)
            break
        except NewReign:
            for at, message in enumerate(asked):
                asked[at] = yield from _renamed(session, message)
        except TRY_AGAIN as error:
            failures += 1
            yield from _pause(session, failures, error)
    for reply in replies:
        if isinstance(reply, StaleEpoch):
            session.mark_stale()
            raise reply
    return replies


def _pause(session: Session, failures: int, error: StoreError) -> Operation[None]:
    """Wait before the master is asked again; raise ``error`` where there is no time for it."""
    session.counters.retries += 1
    # The first may have met a connection that was closed long ago: no reason to wait.
    pause_s = min(BACKOFF_S_MIN * 2 ** (failures - 2), BACKOFF_S_MAX) if failures > 1 else 0.0
    if not (yield Retry(pause_s)):
        raise error from None


def attach(session: Session) -> Operation[None]:
    """Find out which of the new nodes are on this host."""
    for node in session.cluster.untried():
        found = yield Attach(node)
        session.cluster.attached(node, found=found)


def report_transfers(session: Session, node: NodeRecord, reason: str) -> Operation[None]:
    """Tell the master what was seen of a node's data path since the last report."""
    report = session.breakers.take_report(node.node_id)
    if report is not None:
        failures, successes = report
        yield Tell(control.ReportTransfers(node.index, failures, successes, reason))


def _persistently(session: Session, message: Message) -> Operation[Any]:
    failures = 0
    while True:
        try:
            return (yield Ask(message))
        except TRY_AGAIN as error:
            failures += 1
            yield from _pause(session, failures, error)


def _renamed(session: Session, message: Message) -> Operation[Message]:
    """Say ``message`` in the words of a new master, which may number things differently."""
    if session.reign != session.reign_seen:
        yield from open_namespace(session)
    yield from opened(session)
    changes: dict[str, int] = {}
    if hasattr(message, "slot"):
        changes |= {"slot": session.slot, "epoch": session.epoch}
    if hasattr(message, "membership"):
        changes["membership"] = session.cluster.number
    return msgspec.structs.replace(message, **changes) if changes else message
