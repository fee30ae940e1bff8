"""Keeps what the core wants remembered where all masters of a pool find it (docs/adr/0042).

Used by the leader alone. What operators decide is answered when it is kept; the rest (which nodes
and namespaces there are) is kept a moment later, and nobody waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from mooncake_master.core import Remember, Remembered
from mooncake_store.errors import NotLeader, Overloaded, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mooncake_master.core import Forget
    from mooncake_master.core.remembered import Entry

logger = logging.getLogger(__name__)

SHARED: Final = frozenset({"drains", "limits", "namespaces", "nodes"})
"""Tables that are shared: few records that seldom change. What is removed while a node is away
(``notes``, ``removed``) is kept by nodes instead (docs/adr/0034)."""

PROMISED: Final = frozenset({"drains", "limits"})
"""Tables whose changes an operator is answered for: not before they are kept."""

PROMISE_S: Final = 3.0
"""Time in which a change has to be kept until its caller is told that it may be forgotten. Longer:
callers give up by themselves (5 s), and do not learn that the change stands."""

BATCH_MAX: Final = 64
"""Changes written in one step; etcd takes 128, and 1.5 MiB, which 64 of the largest stay below."""

RETRY_S: Final = 0.5

LOST: Final = "this master does not lead any more"

FAREWELL_S: Final = 1.0
"""Time at the end for what is not written yet."""


class Batch(msgspec.Struct, frozen=True):
    """Changes that are made together or not at all, once, however often they are tried."""

    name: str
    changes: tuple[tuple[str, str, Entry | None], ...]
    """(table, key, what to keep there, or None); each key once."""


class Archive(Protocol):
    """Where records lie. Methods end in bounded time, one is called at a time.

    All raise ``Unreachable`` or ``DeadlineExceeded`` where there is no answer, ``ProtocolError``
    where it makes no sense.
    """

    async def read(self) -> Mapping[str, Mapping[str, Entry]] | None:
        """Return {table: {key: entry}}; None where nothing was ever written."""
        ...

    async def write(self, candidate: str, batch: Batch) -> None:
        """Make changes, if the seat is the candidate's.

        Raises:
            NotLeader: It is somebody else's; nothing was changed.
        """
        ...

    async def aclose(self) -> None:
        """Close the connections. Idempotent."""
        ...


class _Promise:
    """Changes that somebody waits for."""

    __slots__ = ("future", "keys", "timer")

    def __init__(self, keys: set[tuple[str, str]], late: Callable[[_Promise], None]) -> None:
        loop = asyncio.get_running_loop()
        self.keys = keys
        self.future: asyncio.Future[None] = loop.create_future()
        self.timer = loop.call_later(PROMISE_S, late, self)


class SharedKeeping:
    """The records of a pool, as the master in office sees and changes them.

    Attributes:
        remembered: What was kept when this reign began.
        problem: Why changes cannot be written; empty while they can.
    """

    def __init__(self, archive: Archive) -> None:
        """Prepare; ``begin`` starts a reign, ``run`` writes what is to be kept."""
        self.remembered = Remembered(lasting=False)
        self.problem = ""
        self._archive = archive
        self._candidate = ""
        """Whose reign this is; empty while others lead."""
        self._owed: dict[tuple[str, str], Entry | None] = {}
        self._batch: Batch | None = None
        """What is being written; not changed until it is known to be there."""
        self._promises: list[_Promise] = []
        self._work = asyncio.Event()
        self._turn = asyncio.Lock()
        """Of whoever uses the archive. A write of a reign that is over may still be under way, and
        be carried out where the seat is ours again: then that reign reads after it."""

    async def begin(self, candidate: str, otherwise: Remembered) -> None:
        """Begin a reign with what is kept. The seat has to be ours already: nobody else writes.

        Args:
            candidate: Name under which we have the seat.
            otherwise: What to begin with, and to write, where nothing was ever kept: etcd has lost
                its data, or an earlier version led.

        Raises:
            StoreError: It cannot be read.
        """
        self.end()
        async with self._turn:
            kept = await self._archive.read()
        if kept is None:
            self._owed = {("nodes", key): node for key, node in otherwise.nodes.items()} | {
                ("namespaces", key): space for key, space in otherwise.namespaces.items()
            }
            kept = {"nodes": otherwise.nodes, "namespaces": otherwise.namespaces}
        self.remembered = Remembered(kept, lasting=False, kept=SHARED)
        self._candidate = candidate
        self._work.set()

    def end(self) -> None:
        """End the reign: the next leader knows what is kept, and decides from then on."""
        self._candidate = ""
        self._owed = {}
        self._batch = None
        for promise in list(self._promises):
            self._end(promise, NotLeader(LOST))

    def keep(self, instructions: Sequence[Remember | Forget]) -> asyncio.Future[None] | None:
        """Have instructions carried out.

        Returns:
            What ends when they are kept, or failed; None where nobody has to wait for it.

        Raises:
            NotLeader: They will not be kept: the seat is lost.
        """
        if not self._candidate:
            raise NotLeader(LOST)
        for each in instructions:
            self._owed.pop((each.table, each.key), None)
            self._owed[each.table, each.key] = each.entry if isinstance(each, Remember) else None
        self._work.set()
        keys = {(each.table, each.key) for each in instructions if each.table in PROMISED}
        if not keys:
            return None
        promise = _Promise(keys, self._late)
        self._promises.append(promise)
        return promise.future

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._work.wait()
            try:
                async with self._turn:
                    await self._write()
            except NotLeader as error:
                logger.info("nothing more is kept: %s", error)
                self.end()
            except StoreError as error:
                self._note(str(error))
                await asyncio.sleep(RETRY_S)

    async def aclose(self) -> None:
        """Write what is left, within a bound, and close the connections; ``run`` must be over."""
        try:
            async with asyncio.timeout(FAREWELL_S):
                while self._work.is_set():
                    await self._write()
        except (StoreError, TimeoutError) as error:
            logger.warning("%d changes were not kept: %s", len(self._owed), error)
        self.end()
        await self._archive.aclose()

    async def _write(self) -> None:
        """Write some of what is owed, or find that nothing is."""
        if not self._owed or not self._candidate:
            self._work.clear()
            return
        batch = self._batch
        if batch is None:
            some = tuple((*key, entry) for key, entry in list(self._owed.items())[:BATCH_MAX])
            batch = self._batch = Batch(secrets.token_hex(8), some)
        await self._archive.write(self._candidate, batch)
        if self._batch is not batch:
            return  # Another reign has begun meanwhile.
        self._batch = None
        for table, key, entry in batch.changes:
            if self._owed.get((table, key), batch) is entry:
                del self._owed[table, key]
        for promise in list(self._promises):
            if not promise.keys & self._owed.keys():
                self._end(promise, None)
        self._note("")

    def _late(self, promise: _Promise) -> None:
        problem = self.problem or "etcd has not answered yet"
        error = Overloaded(
            f"the change stands, but it may be forgotten when another master takes over: {problem}"
        )
        self._end(promise, error)

    def _end(self, promise: _Promise, error: StoreError | None) -> None:
        """End the wait for a promise, with or without an error."""
        self._promises.remove(promise)
        promise.timer.cancel()
        if error is None:
            promise.future.set_result(None)
        else:
            promise.future.set_exception(error)

    def _note(self, problem: str) -> None:
        if problem != self.problem:
            if problem:
                logger.error("standing state cannot be kept: %s", problem)
            else:
                logger.info("standing state is kept again")
        self.problem = problem
