"""Replies that wait: for nodes to confirm, or for a write, a recovery or room to be over."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mooncake_master.core.records import Freeing
    from mooncake_store.wire.control import Message


class Barrier:
    """A reply that is due once nobody can read the old value any more.

    That is when every node has confirmed, or when every lease on the old value has ended, the nodes
    that are connected had their time to answer (docs/adr/0010), and what is missing was noted where
    it outlives this master (docs/adr/0034).

    Attributes:
        peer: Whom to answer.
        request_id: Of the request.
        message: The reply.
        waiting: Confirmations that are missing.
        asked: A node that is connected was asked for one.
        lease_s: End of the last lease on the old value.
        ready_s: When the reply is due without them.
        deadline_s: When the request fails instead.
        missing: Extents that nodes have not confirmed.
        unwritten: Objects that have to be on a disk first.
        removes: The reply says that something is not there any more, and will not be.
        strangers: Leases of the reign before, on nodes that are not back, are waited for.
        unwitnessed: An epoch was raised that no node has confirmed yet.
    """

    __slots__ = (
        "asked", "deadline_s", "lease_s", "message", "missing", "peer", "ready_s", "removes",
        "request_id", "strangers", "unwitnessed", "unwritten", "waiting",
    )  # fmt: skip

    def __init__(self, peer: int, request_id: int, deadline_s: float) -> None:
        self.peer = peer
        self.request_id = request_id
        self.deadline_s = deadline_s
        self.message: Message | None = None
        self.waiting = 0
        self.asked = False
        self.lease_s = 0.0
        self.ready_s = 0.0
        self.missing: dict[Freeing, None] = {}
        self.removes = False
        self.strangers = False
        self.unwitnessed = False
        self.unwritten = 0


class Request:
    """One request while it is handled.

    Attributes:
        peer: Who asked.
        request_id: Of the request.
        message: The request.
        deadline_s: Its deadline.
        final: It has waited as long as it can; what is not there now is answered so.
    """

    __slots__ = ("deadline_s", "final", "message", "peer", "request_id")

    def __init__(self, peer: int, request_id: int, message: Message, deadline_s: float) -> None:
        self.peer = peer
        self.request_id = request_id
        self.message = message
        self.deadline_s = deadline_s
        self.final = False


class Parked:
    """A request that is handled again later.

    Attributes:
        request: The request.
        until_s: When it is handled for the last time, without waiting any more.
        waiting: Writes that it waits for; below zero where it waits for the recovery's end.
    """

    __slots__ = ("request", "until_s", "waiting")

    def __init__(self, request: Request, until_s: float) -> None:
        self.request = request
        self.until_s = until_s
        self.waiting = 0
