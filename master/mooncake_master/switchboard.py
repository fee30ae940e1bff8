"""Between the core and everyone who talks to it: requests in, instructions out, in one turn.

Peers are connections of the RPC port, the admin API, or callers of an embedded master; to the core
each is a number. Whatever the core wants done because of an event is done before the event's
handler returns, in its order.
"""

from __future__ import annotations

import logging
from itertools import count
from typing import TYPE_CHECKING, Protocol

from mooncake_master.core import Fail, Forget, Instruct, Remember, Reply
from mooncake_store.errors import InternalError, StoreError

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Callable, Sequence

    from mooncake_master.core import Instruction, Master
    from mooncake_master.leadership import Office
    from mooncake_store.wire.control import Message

logger = logging.getLogger(__name__)


class Peer(Protocol):
    """Somebody whom the core answers; ``Switchboard.attach`` gives it a number."""

    def reply(self, request_id: int, message: Message) -> None:
        """Take the answer to a request."""
        ...

    def fail(self, request_id: int, error: StoreError) -> None:
        """Take the error that a request ended with."""
        ...

    def instruct(self, token: int, message: Message) -> None:
        """Ask the node behind this peer; the answer goes to ``Switchboard.node_replied``."""
        ...

    def close(self, reason: str) -> None:
        """End the connection."""
        ...


class Keeper(Protocol):
    """Where the core's memories go."""

    def keep(self, instructions: Sequence[Remember | Forget]) -> Future[None] | None:
        """Carry them out, so that they survive the end of this process.

        Returns:
            None when that is done; else what ends when it is done, or ends with a ``StoreError``.

        Raises:
            StoreError: That cannot be promised now.
        """
        ...


class Switchboard:
    """The core, its peers, and the clock.

    Attributes:
        core: The master itself; another one after a change of leadership.
        clock: Seconds of the monotonic clock.
        office: Says whether this master may serve; None where it is the only one.
        faults: Events that the core failed to handle: bugs.
    """

    def __init__(
        self,
        core: Master,
        clock: Callable[[], float],
        *,
        office: Office | None = None,
        keeper: Keeper | None = None,
    ) -> None:
        self.core = core
        self.clock = clock
        self.office = office
        self._keeper = keeper
        self.faults = 0
        self._peers: dict[int, Peer] = {}
        self._numbers = count(1)

    def attach(self, peer: Peer) -> int:
        """Return the number under which the core will know ``peer``."""
        number = next(self._numbers)
        self._peers[number] = peer
        return number

    def detach(self, number: int) -> None:
        """Forget a peer and tell the core; nothing is sent to it afterwards."""
        if self._peers.pop(number, None) is not None:
            self._run("the loss of a peer", self.core.peer_lost, number, self.clock())

    def request(
        self, number: int, request_id: int, message: Message, deadline_s: float, now_s: float
    ) -> None:
        """Hand one request to the core and do what it answers; the reply may come later."""
        name = type(message).__name__
        error = self._run(name, self.core.handle, number, request_id, message, deadline_s, now_s)
        if error is not None:
            self._peers[number].fail(request_id, error)

    def look(self, number: int, request_id: int, message: Message, now_s: float) -> None:
        """Ask the core something that it answers at once, even while this master stands by."""
        name = type(message).__name__
        event = (number, request_id, message, now_s, now_s)
        error = self._run(name, self.core.handle, *event, anyway=True)
        if error is not None:
            self._peers[number].fail(request_id, error)

    def node_replied(self, number: int, token: int, answer: Message | StoreError) -> None:
        """Hand the answer of a node, or the error it ended with, to the core."""
        self._run("a node's answer", self.core.node_replied, number, token, answer, self.clock())

    def tick(self) -> None:
        """Let time pass."""
        self._run("the tick", self.core.tick, self.clock())

    def _run(
        self,
        what: str,
        handler: Callable[..., Sequence[Instruction]],
        *event: object,
        anyway: bool = False,
    ) -> StoreError | None:
        """Give the core one event and do what it wants; return the error it raised instead.

        Only while this master may serve, unless ``anyway``. Looked at again before anything is
        done, because a process can be stopped for any time between two of its steps.

        The supervisor of this process: a bug costs the event that met it, is logged and counted.
        """
        office = None if anyway else self.office
        if office is not None and not office.holds():
            return office.refusal()
        try:
            instructions = handler(*event)
        except StoreError as error:
            return error
        except Exception as error:
            self.faults += 1
            logger.exception("a bug in the master: %s failed", what)
            return InternalError(f"in the master: {error!r}")
        if office is not None and not office.holds():
            return office.refusal()
        self._perform(instructions)
        return None

    def _perform(self, instructions: Sequence[Instruction]) -> None:
        peers = self._peers
        for instruction in instructions if self._keeper is None else self._kept(instructions):
            if isinstance(instruction, (Remember, Forget)):
                continue
            peer = peers.get(instruction.peer)
            if peer is None:
                continue
            if isinstance(instruction, Reply):
                peer.reply(instruction.request_id, instruction.message)
            elif isinstance(instruction, Fail):
                peer.fail(instruction.request_id, instruction.error)
            elif isinstance(instruction, Instruct):
                peer.instruct(instruction.token, instruction.message)
            else:
                peer.close("the core ended it")

    def _kept(self, instructions: Sequence[Instruction]) -> Sequence[Instruction]:
        """Have all memories kept in one step, and return what is left to do now."""
        memories = [each for each in instructions if isinstance(each, (Remember, Forget))]
        if not memories or self._keeper is None:
            return instructions
        try:
            later = self._keeper.keep(memories)
        except StoreError as error:
            return [
                Fail(each.peer, each.request_id, error) if isinstance(each, Reply) else each
                for each in instructions
            ]
        if later is None:
            return instructions
        replies = [each for each in instructions if isinstance(each, Reply)]
        later.add_done_callback(lambda kept: self._answer(replies, kept.exception()))
        return [each for each in instructions if not isinstance(each, Reply)]

    def _answer(self, replies: Sequence[Reply], error: BaseException | None) -> None:
        """Give replies that waited for memories to be kept."""
        if self.office is not None and not self.office.holds():
            error = self.office.refusal()
        for reply in replies:
            peer = self._peers.get(reply.peer)
            if peer is not None and isinstance(error, StoreError):
                peer.fail(reply.request_id, error)
            elif peer is not None:
                peer.reply(reply.request_id, reply.message)
