"""What the admin API knows and asks: one internal peer of the core, the settings, the meters."""

from __future__ import annotations

import asyncio
import logging
from itertools import count
from typing import TYPE_CHECKING, Final, TypeVar

from mooncake_master.core import labelled
from mooncake_store.errors import (
    DeadlineExceeded,
    InternalError,
    InvalidArgument,
    ObjectNotFound,
    Overloaded,
    StoreError,
)
from mooncake_store.fingerprint import check_key, check_namespace
from mooncake_store.wire.control import (
    Clear,
    ClusterStatus,
    DescribeCluster,
    DescribeDrain,
    Drain,
    DrainStatus,
    ListNamespaces,
    ListPinLimits,
    Message,
    NamespaceList,
    NamespaceRecord,
    NodeStatus,
    ObjectRecord,
    PinLimit,
    PinLimits,
    Remove,
    Removed,
    Scan,
    Scanned,
    SetPinLimit,
    Stat,
    StatReply,
    Undrain,
    Why,
    WhyReply,
)

if TYPE_CHECKING:
    from mooncake_master.switchboard import Switchboard

logger = logging.getLogger(__name__)

DEADLINE_S: Final = 5.0
"""Time that the core has for an operator's request; removals wait for nodes within it."""

GRACE_S: Final = 1.0
"""How much later an answer may come before we stop waiting for one."""

REQUESTS_MAX: Final = 64
"""Operators' requests under way at one time: they share the loop with everyone else."""

LOOK_S: Final = 0.1
"""Pause between two looks for a namespace that the recovery may still bring."""

_LIVE_NODES: Final = labelled("mooncake_master_nodes_count", state="live")

M = TypeVar("M", bound=Message)


class AdminService:
    """Asks the core for operators; every method ends within its deadline.

    A peer of the switchboard: the core sees it as one more client.
    """

    def __init__(self, switchboard: Switchboard) -> None:
        self.switchboard = switchboard
        self._number = switchboard.attach(self)
        self._ids = count(1)
        self._waiting: dict[int, asyncio.Future[Message]] = {}

    # --- as a peer of the switchboard -----------------------------------------------------------

    def reply(self, request_id: int, message: Message) -> None:
        """Take an answer."""
        future = self._waiting.pop(request_id, None)
        if future is not None and not future.done():
            future.set_result(message)

    def fail(self, request_id: int, error: StoreError) -> None:
        """Take an error."""
        future = self._waiting.pop(request_id, None)
        if future is not None and not future.done():
            future.set_exception(error)

    def instruct(self, token: int, message: Message) -> None:
        """Refuse: there is no node behind this peer."""
        raise AssertionError(f"the admin API is no node: {message!r} ({token})")

    def close(self, reason: str) -> None:
        """Ignore: this peer lasts as long as the process."""

    # --- requests -------------------------------------------------------------------------------

    async def cluster(self) -> ClusterStatus:
        """Return the state of everything, as far as this master knows it, leading or not."""
        return self._ask_nowait(DescribeCluster(), ClusterStatus)

    async def nodes(self) -> tuple[NodeStatus, ...]:
        """Return all storage nodes.

        Raises:
            NotLeader: This master stands by: none that it may still know says anything.
        """
        return tuple((await self._ask(DescribeCluster(), ClusterStatus)).nodes)

    async def drain(self, node: str, timeout_s: float) -> DrainStatus:
        """Begin to take a node out of use."""
        status = await self._ask(Drain(node, timeout_s), DrainStatus)
        logger.info("an operator drains node %r, for %g s at most", node, timeout_s)
        return status

    async def undrain(self, node: str) -> DrainStatus:
        """Have a node take new objects again."""
        status = await self._ask(Undrain(node), DrainStatus)
        logger.info("an operator ended the drain of node %r", node)
        return status

    async def describe_drain(self, node: str) -> DrainStatus:
        """Return how far the drain of a node is."""
        return await self._ask(DescribeDrain(node), DrainStatus)

    async def pin_limits(self) -> tuple[PinLimit, ...]:
        """Return what may be pinned."""
        return (await self._ask(ListPinLimits(), PinLimits)).limits

    async def set_pin_limit(
        self, namespace: str, pinned_share_max: float | None
    ) -> tuple[PinLimit, ...]:
        """Bound what may be pinned; None takes a limit back."""
        reply = await self._ask(SetPinLimit(namespace, pinned_share_max), PinLimits)
        logger.info("an operator set the pin limit of %r to %s", namespace, pinned_share_max)
        return reply.limits

    async def namespaces(self) -> tuple[NamespaceRecord, ...]:
        """Return all namespaces."""
        return (await self._ask(ListNamespaces(), NamespaceList)).namespaces

    async def namespace(self, name: str) -> NamespaceRecord:
        """Return one namespace.

        Raises:
            ObjectNotFound: There is none of that name; nothing was created.
            DeadlineExceeded: That is not known before the nodes' directories are listed.
        """
        check_namespace(name)
        until_s = self.switchboard.clock() + DEADLINE_S
        while True:
            is_complete = not self.switchboard.core.recovering
            for record in await self.namespaces():
                if record.name == name:
                    return record
            if is_complete:
                raise ObjectNotFound(f"no namespace {name!r}")
            if self.switchboard.clock() >= until_s:
                raise DeadlineExceeded(
                    f"whether there is a namespace {name!r} is not known before the nodes'"
                    " directories are listed"
                )
            await asyncio.sleep(LOOK_S)

    async def clear(self, name: str) -> NamespaceRecord:
        """Make everything in a namespace unreadable, at once and for good."""
        check_namespace(name)
        cleared = await self._ask(Clear(name), NamespaceRecord)
        logger.info("an operator cleared namespace %r, epoch %d", name, cleared.epoch)
        return cleared

    async def stat(self, namespace: str, key: str) -> ObjectRecord:
        """Describe one object.

        Raises:
            ObjectNotFound: It is not readable; the message says why.
        """
        check_key(key)
        found = await self.namespace(namespace)
        reply = await self._ask(Stat(found.slot, found.epoch, [key]), StatReply)
        item = reply.items[0]
        if isinstance(item, ObjectRecord):
            return item
        why = await self._ask(Why(found.slot, found.epoch, key), WhyReply)
        raise ObjectNotFound(f"{key!r} is not readable: {why.detail}", key=key)

    async def why(self, namespace: str, key: str) -> WhyReply:
        """Explain why a key is not readable, or what it is if it is."""
        check_key(key)
        found = await self.namespace(namespace)
        return await self._ask(Why(found.slot, found.epoch, key), WhyReply)

    async def objects(self, namespace: str, prefix: str, cursor: str, limit: int) -> Scanned:
        """Return one page of the objects whose keys begin with ``prefix``."""
        found = await self.namespace(namespace)
        request = Scan(found.slot, found.epoch, prefix, cursor, limit)
        return await self._ask(request, Scanned)

    async def remove(self, namespace: str, key: str) -> None:
        """Remove one object.

        Raises:
            ObjectNotFound: There was none.
        """
        check_key(key)
        found = await self.namespace(namespace)
        reply = await self._ask(Remove(found.slot, found.epoch, [key]), Removed)
        if not reply.removed[0]:
            raise ObjectNotFound(f"no object {key!r} in namespace {namespace!r}", key=key)

    def not_ready_because(self) -> str:
        """Return why clients are not served; empty when they are."""
        office = self.switchboard.office
        if office is not None and not office.holds():
            return office.reason()
        core = self.switchboard.core
        if core.recovering:
            return "recovering: the nodes' directories are being listed"
        if not core.statistics().gauges[_LIVE_NODES]:
            return "no storage node is there"
        return ""

    def leadership(self) -> tuple[str, str]:
        """Return this master's role, and the address of the leader where that is another one."""
        office = self.switchboard.office
        if office is None or office.holds():
            return "leader", ""
        return "standby", office.leader

    def look(self) -> tuple[ClusterStatus, tuple[NamespaceRecord, ...]]:
        """Return the state of the cluster and its namespaces at one moment, without waiting."""
        status = self._ask_nowait(DescribeCluster(), ClusterStatus)
        return status, self._ask_nowait(ListNamespaces(), NamespaceList).namespaces

    def _ask_nowait(self, message: Message, reply_type: type[M]) -> M:
        """Return the reply to a request that the core always answers at once, leading or not."""
        request_id, future = self._expect()
        self.switchboard.look(self._number, request_id, message, self.switchboard.clock())
        if not future.done():
            raise InternalError(f"the core did not answer {type(message).__name__} at once")
        reply = future.result()
        assert isinstance(reply, reply_type)
        return reply

    async def _ask(self, message: Message, reply_type: type[M]) -> M:
        if len(self._waiting) >= REQUESTS_MAX:
            raise Overloaded(f"{REQUESTS_MAX} requests of operators are under way")
        future = self._send(message)
        try:
            async with asyncio.timeout(DEADLINE_S + GRACE_S):
                reply = await future
        except TimeoutError:
            raise DeadlineExceeded(f"no answer from the core in {DEADLINE_S:g} s") from None
        finally:
            self._waiting = {
                number: waiting
                for number, waiting in self._waiting.items()
                if waiting is not future
            }
        assert isinstance(reply, reply_type)
        return reply

    def _expect(self) -> tuple[int, asyncio.Future[Message]]:
        """Return a new request's id, and where its answer will be."""
        request_id = next(self._ids)
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = future
        return request_id, future

    def _send(self, message: Message) -> asyncio.Future[Message]:
        request_id, future = self._expect()
        now_s = self.switchboard.clock()
        self.switchboard.request(self._number, request_id, message, now_s + DEADLINE_S, now_s)
        return future


def checked_limit(limit: int, most: int) -> int:
    """Return a page size, if it is one.

    Raises:
        InvalidArgument: It is not between 1 and ``most``.
    """
    if not 1 <= limit <= most:
        raise InvalidArgument(f"limit is {limit}; a page has 1 to {most} objects")
    return limit
