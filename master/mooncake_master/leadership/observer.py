"""A standby's look at the leader: what it will want to know if it is to lead next.

Nodes hold the objects and the epochs, but not what a namespace is stated to hold, nor which other
nodes there are. The leader is asked for both once a second; what was new in the last second of its
reign is not known to the next one, and is stated again by whoever cares.
"""

from __future__ import annotations

import asyncio
import logging
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mooncake_master.core import Remembered
from mooncake_master.core.remembered import KnownNamespace, KnownNode
from mooncake_store import limits
from mooncake_store.errors import ProtocolError, StoreError, Unreachable
from mooncake_store.wire.address import parse_address
from mooncake_store.wire.control import (
    KINDS,
    REPLY_DECODERS,
    DescribeCluster,
    Hello,
    ListNamespaces,
    Message,
)
from mooncake_store.wire.frames import ERROR, FrameDecoder, decode_error, encode_frame

if TYPE_CHECKING:
    from collections.abc import Callable

    from mooncake_master.leadership.office import Office
    from mooncake_store.wire.control import NamespaceRecord, NodeStatus

logger = logging.getLogger(__name__)

LOOK_S: Final = 1.0
"""Pause between two looks; each costs the leader less than a millisecond."""

ANSWER_S: Final = 1.0
"""Time for the leader to answer one question."""

PORT: Final = 50051


class Observer:
    """Keeps a copy of what the leader knows, while there is another one.

    Attributes:
        seen: The copy; empty until there was a leader to ask.
    """

    def __init__(self, office: Office, clock_s: Callable[[], float]) -> None:
        """Prepare; ``run`` begins.

        Args:
            office: Says who leads.
            clock_s: Seconds since 1970.
        """
        self.seen = Remembered(lasting=False)
        self._office = office
        self._clock_s = clock_s

    async def run(self) -> None:
        """Look every now and then, until cancelled."""
        while True:
            leader = self._office.leader
            if leader:
                try:
                    await self._observe(leader)
                except StoreError as error:
                    logger.debug("the leader %s was not observed: %s", leader, error)
            await asyncio.sleep(LOOK_S)

    async def _observe(self, leader: str) -> None:
        """Ask one leader again and again, over one connection, while it leads."""
        link = await _Link.open(leader)
        try:
            while self._office.leader == leader:
                spaces = await link.ask(ListNamespaces())
                status = await link.ask(DescribeCluster())
                self.note(status.nodes, spaces.namespaces)
                await asyncio.sleep(LOOK_S)
        finally:
            link.close()

    def note(self, nodes: tuple[NodeStatus, ...], namespaces: tuple[NamespaceRecord, ...]) -> None:
        """Keep a copy of what a leader said, another one or this master itself."""
        now_s = self._clock_s()
        spaces = {
            space.name: KnownNamespace(space.slot, space.name, space.epoch, space.manifest or None)
            for space in namespaces
        }
        known = {node.record.node_id: _known(node, now_s) for node in nodes}
        self.seen = Remembered({"namespaces": spaces, "nodes": known}, lasting=False)


def _known(node: NodeStatus, now_s: float) -> KnownNode:
    said = node.record
    return KnownNode(
        said.name, said.node_id, said.host, said.port, said.local_path, said.labels,
        said.segments, now_s - node.heartbeat_age_s,
    )  # fmt: skip


class _Link:
    """A connection to the leader, for one question at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = FrameDecoder(limits.FRAME_BYTES_MAX)
        self._number = 0

    @classmethod
    async def open(cls, leader: str) -> _Link:
        """Connect and shake hands.

        Raises:
            StoreError: That was not possible.
        """
        try:
            address = parse_address(leader, PORT)
            async with asyncio.timeout(ANSWER_S):
                link = cls(*await asyncio.open_connection(address.host, address.port))
        except (OSError, ValueError) as error:
            raise Unreachable(f"no connection to {leader}: {error}") from error
        try:
            software = f"mooncake-store {version('mooncake-store')}"
            await link.ask(Hello(limits.PROTOCOL_VERSION, "client", "standby", software))
        except BaseException:
            link.close()
            raise
        return link

    async def ask(self, message: Message) -> Any:  # noqa: ANN401 - the type that belongs to the request
        """Send a request and return its reply.

        Raises:
            StoreError: The leader's answer, or why there is none.
        """
        self._number += 1
        kind = KINDS[type(message)]
        frame = encode_frame(
            kind, message, request_id=self._number, deadline_ms=int(ANSWER_S * 1000)
        )
        if self._writer.is_closing():  # uvloop takes a write to such a one for a bug
            raise Unreachable("the leader closed the connection")
        try:
            async with asyncio.timeout(ANSWER_S):
                self._writer.write(frame)
                return await self._reply(kind)
        except OSError as error:
            raise Unreachable(f"the connection broke: {error}") from error

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()

    async def _reply(self, kind: int) -> Message:
        while True:
            for frame in self._decoder:
                if frame.flags & ERROR:
                    raise decode_error(frame.body)
                try:
                    return REPLY_DECODERS[kind].decode(frame.body)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    raise ProtocolError(f"an answer cannot be read: {error}") from error
            room = self._decoder.buffer()
            data = await self._reader.read(len(room))
            if not data:
                raise Unreachable("the leader closed the connection")
            room[: len(data)] = data
            self._decoder.received(len(data))
