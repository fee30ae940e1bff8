"""What all masters of a pool have to know, in etcd: one key for each record, written by the leader.

    /<name>/standing                   the number of the last write, and the layout
    /<name>/standing/<table>/<key>     one record, as JSON

A write happens only while the seat is the writer's and nothing was written since its last write. So
neither a former leader nor a write that was given up and arrives late can undo anything.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mooncake_master.core.remembered import TABLES
from mooncake_master.leadership.coordinator import Seat
from mooncake_master.leadership.members import EtcdMembers, decode, encode
from mooncake_master.standing.shared import Archive
from mooncake_store.errors import NotLeader, ProtocolError

if TYPE_CHECKING:
    from mooncake_master.core.remembered import Entry
    from mooncake_master.leadership.location import Location
    from mooncake_master.standing.shared import Batch

logger = logging.getLogger(__name__)

FORMAT: Final = 1
"""Of the keys; another number is another layout."""

READ_MAX: Final = 64
"""Records read in one step: a mebibyte, where all are namespaces with the largest manifest."""

TRIES_MAX: Final = 4
"""Of one write, where the seat has changed its words meanwhile (it does so once in a reign)."""


class _Mark(msgspec.Struct, frozen=True):
    """What was written last, so that two writes cannot change places."""

    format: int
    write: str
    """Random name of the write; empty before the first."""


class EtcdArchive(Archive):
    """See `Archive`. For one event loop; for one caller at a time."""

    def __init__(self, location: Location, lease_s: float) -> None:
        """Prepare; connections are made when they are used.

        Args:
            location: Where etcd is.
            lease_s: Length of the leader's lease.
        """
        self._leader = f"/{location.name}/leader".encode()
        self._root = f"/{location.name}/standing".encode()
        self._members = EtcdMembers(location, lease_s)
        self._seat = b""
        """The seat as it was seen last."""
        self._mark = b""
        """The last write that is known; empty where there was none."""

    async def read(self) -> dict[str, dict[str, Entry]] | None:
        """See `Archive`."""

        async def ask(client: Any) -> Any:  # noqa: ANN401 - aetcd is not typed
            return await client.transaction(
                compare=[], success=[client.transactions.get(self._root)], failure=[]
            )

        _, (found,) = await self._members.ask(ask)
        mark = decode(found, _Mark)
        self._mark = found[0][0] if found else b""
        if mark is None:
            return None
        if mark.format != FORMAT:
            raise ProtocolError(
                f"etcd holds standing state of layout {mark.format} under {self._root.decode()};"
                f" this version knows {FORMAT}: run the version that wrote it, or delete it"
            )
        return await self._records()

    async def write(self, candidate: str, batch: Batch) -> None:
        """See `Archive`."""
        mark = encode(_Mark(FORMAT, batch.name))
        for _ in range(TRIES_MAX):
            done, (leader, last) = await self._try(batch, mark)
            if done:
                self._mark = mark
                return
            seat = decode(leader, Seat)
            if seat is None or seat.candidate != candidate:
                raise NotLeader("the seat at etcd is not this master's any more")
            self._seat = leader[0][0]
            found = last[0][0] if last else b""
            if found == mark:  # An earlier try, whose answer was lost.
                self._mark = mark
                return
            if found != self._mark:
                raise ProtocolError(
                    f"somebody else has written to {self._root.decode()} in etcd; the next"
                    " leader goes on with what is there"
                )
        raise ProtocolError("the seat at etcd changes all the time")

    async def aclose(self) -> None:
        """See `Archive`."""
        await self._members.aclose()

    async def _try(self, batch: Batch, mark: bytes) -> tuple[bool, Any]:
        """Write if nothing has changed; return whether, else the seat and the last write."""

        async def ask(client: Any) -> Any:  # noqa: ANN401 - aetcd is not typed
            keys = client.transactions
            unchanged = (
                keys.value(self._root) == self._mark
                if self._mark
                else keys.version(self._root) == 0
            )
            changes = [
                keys.delete(self._key(table, name))
                if entry is None
                else keys.put(self._key(table, name), encode(entry))
                for table, name, entry in batch.changes
            ]
            return await client.transaction(
                compare=[keys.value(self._leader) == self._seat, unchanged],
                success=[keys.put(self._root, mark), *changes],
                failure=[keys.get(self._leader), keys.get(self._root)],
            )

        done, answers = await self._members.ask(ask)
        return done, ((), ()) if done else answers

    async def _records(self) -> dict[str, dict[str, Entry]]:
        prefix = self._root + b"/"
        listed = await self._members.ask(lambda client: client.get_prefix(prefix, keys_only=True))
        names = [found.key for found in listed]
        tables: dict[str, dict[str, Entry]] = {}
        for first in range(0, len(names), READ_MAX):
            some = names[first : first + READ_MAX]

            for name, found in zip(some, await self._get(some), strict=True):
                self._enter(tables, name, found)
        return tables

    async def _get(self, names: list[bytes]) -> list[list[tuple[bytes, Any]]]:
        async def ask(client: Any) -> Any:  # noqa: ANN401 - aetcd is not typed
            gets = [client.transactions.get(name) for name in names]
            return await client.transaction(compare=[], success=gets, failure=[])

        _, answers = await self._members.ask(ask)
        found: list[list[tuple[bytes, Any]]] = answers
        return found

    def _enter(
        self, tables: dict[str, dict[str, Entry]], name: bytes, found: list[tuple[bytes, Any]]
    ) -> None:
        """Take in one record. One that makes no sense must not leave the pool without a leader."""
        table, _, key = name[len(self._root) + 1 :].decode(errors="replace").partition("/")
        kind = TABLES.get(table)
        if kind is None:
            logger.warning("etcd: %r is left out: this version knows no table %r", name, table)
            return
        try:
            entry = decode(found, kind)
        except ProtocolError as error:
            logger.warning("etcd: %r is left out, what it says is forgotten: %s", name, error)
            return
        if entry is not None:
            tables.setdefault(table, {})[key] = entry

    def _key(self, table: str, name: str) -> bytes:
        return self._root + f"/{table}/{name}".encode()
