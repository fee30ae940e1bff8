"""A master inside the caller's process, for ``Client("local://...")``: no sockets, no threads.

The core is the same; calls replace frames. Time passes only while somebody calls, so a request that
has to wait (for room, for another thread's put) lets the core's time pass itself until it is
answered. The one node is a segment of the process's own memory, and what the core asks of it is
done at once.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Final

from mooncake_master.core import CoreConfig, Master
from mooncake_master.shield import Shield
from mooncake_master.switchboard import Switchboard
from mooncake_store import limits
from mooncake_store.errors import Closed, DeadlineExceeded, InternalError, StoreError
from mooncake_store.wire.control import (
    DirectoryPage,
    Done,
    Freed,
    FreeExtents,
    Heartbeat,
    ListDirectory,
    Message,
    PutAbort,
    PutGrant,
    PutStarted,
    Register,
    Registered,
    SegmentRecord,
    SetEpochs,
    Welcome,
)

if TYPE_CHECKING:
    from mooncake_store.segment import Segment

SOFTWARE: Final = "mooncake-store, embedded"

TICK_S: Final = 0.02
"""Time between two looks at whether a waiting request can be answered."""

GRACE_S: Final = 1.0
"""How much later than its deadline the core may answer before we say that it did not."""

CONFIG: Final = CoreConfig(put_ttl_s=limits.DEADLINE_S_MAX, ramp_s=0.0, recovery_grace_s=0.0)
"""Writers are threads of this process, which do not vanish: their room is taken back when they
say so, never by the clock, because a thread that was stopped for a while goes on writing. There is
one node, so nothing to ramp up, and nothing that could come back after a restart."""


class EmbeddedMaster:
    """A master and one node in this process; every method may be called from any thread."""

    def __init__(self, segment: Segment, *, config: CoreConfig = CONFIG) -> None:
        """Serve one segment of anonymous memory, which stays the caller's.

        Args:
            segment: Freshly formatted; it must stay mapped until ``close``.
            config: Settings of the core.
        """
        core = Master(
            config,
            term=1,
            cluster_id=secrets.token_hex(8),
            wall_offset_s=time.time() - time.monotonic(),
            seed=secrets.randbits(64),
            software=SOFTWARE,
        )
        self._switchboard = Switchboard(core, time.monotonic)
        self._changed = threading.Condition()
        self._requests = count(1)
        self._closed = False
        self._node = _SegmentNode(self._switchboard, segment)
        self._callers = _Callers(self._changed)
        self._caller = self._switchboard.attach(self._callers)
        self._tick_due_s = 0.0
        self._heartbeat_s = 0.0
        self._heartbeat_due_s = 0.0
        with self._changed:
            self._register(segment)

    @property
    def welcome(self) -> Welcome:
        """What a master says of itself when a client connects."""
        core = self._switchboard.core
        return Welcome(
            protocol=limits.PROTOCOL_VERSION,
            software=SOFTWARE,
            term=core.term,
            cluster_id=core.cluster_id,
            lease_ttl_s=core.config.lease_ttl_s,
            put_ttl_s=core.config.put_ttl_s,
        )

    def request(
        self, message: Message, deadline_s: float, granted: list[int] | None = None
    ) -> Message:
        """Perform one request and return its reply.

        Args:
            message: A request of ``wire.control`` that a client may send.
            deadline_s: Seconds from now by which the answer is wanted.
            granted: Takes the attempts that the answer grants, so that ``give_up`` can name them
                even where Ctrl-C loses the answer itself.

        Raises:
            StoreError: What the core answered; ``DeadlineExceeded`` where it could not in time.
            Closed: ``close`` was called.
        """
        until_s = time.monotonic() + deadline_s
        request_id = next(self._requests)
        with Shield() as shield, self._changed:
            self._step()
            now_s = time.monotonic()
            self._switchboard.request(self._caller, request_id, message, until_s, now_s)
            self._node.work()
            answers = self._callers.answers
            try:
                while request_id not in answers:
                    shield.let_in()
                    self._wait(until_s)
            except BaseException:
                self._callers.leave(request_id)
                raise
            answer = answers.pop(request_id)
            if granted is not None:
                granted += _versions(answer)
        if isinstance(answer, StoreError):
            raise answer
        return answer

    def give_up(self, granted: list[int]) -> None:
        """Give attempts back that nobody goes on with, as time passes; what is over stays so."""
        self._callers.owed += granted

    def tick(self) -> None:
        """Let the core's time pass: expiries, eviction ahead of need. Never waits."""
        with Shield(), self._changed:
            self._step()

    def close(self) -> None:
        """Let go of the segment; requests under way fail."""
        with Shield(), self._changed:
            self._closed = True
            self._node.segment = None
            self._changed.notify_all()

    # --- time -----------------------------------------------------------------------------------

    def _step(self) -> None:
        if self._closed:
            raise Closed("the embedded cluster was closed")
        now_s = time.monotonic()
        if now_s >= self._heartbeat_due_s:
            self._heartbeat_due_s = now_s + self._heartbeat_s
            self._node.heartbeat()
        if now_s >= self._tick_due_s:
            self._tick_due_s = now_s + TICK_S
            self._switchboard.tick()
            self._node.work()
        if self._callers.owed:
            versions, self._callers.owed = self._callers.owed, []
            abort_id = next(self._requests)
            self._callers.leave(abort_id)
            self._switchboard.request(
                self._caller, abort_id, PutAbort(versions), now_s + TICK_S, now_s
            )
            self._node.work()

    def _wait(self, until_s: float) -> None:
        """Let others work for a moment, then let time pass."""
        left_s = until_s + GRACE_S - time.monotonic()
        if left_s <= 0:
            raise DeadlineExceeded("the core gave no answer in time")
        self._changed.wait(min(TICK_S, left_s))
        self._step()

    def _register(self, segment: Segment) -> None:
        registered = self._node.register(segment)
        self._heartbeat_s = registered.heartbeat_s / 2
        self._step()


def _versions(answer: Message | StoreError) -> list[int]:
    """Return the attempts that an answer grants."""
    if not isinstance(answer, PutStarted):
        return []
    return [item.version for item in answer.items if isinstance(item, PutGrant)]


class _Callers:
    """The peer that all calling threads are together.

    Attributes:
        answers: {request: answer} of what no thread has picked up yet.
        owed: Attempts that were granted to nobody, to be given back.
    """

    def __init__(self, changed: threading.Condition) -> None:
        self.answers: dict[int, Message | StoreError] = {}
        self.owed: list[int] = []
        self._left: set[int] = set()
        self._changed = changed

    def leave(self, request_id: int) -> None:
        """Note that nobody waits for an answer any more."""
        self._left.add(request_id)
        if request_id in self.answers:
            self._drop(request_id, self.answers.pop(request_id))

    def _drop(self, request_id: int, answer: Message | StoreError) -> None:
        self._left.discard(request_id)
        self.owed += _versions(answer)

    def reply(self, request_id: int, message: Message) -> None:
        """Take an answer."""
        if request_id in self._left:
            self._drop(request_id, message)
            return
        self.answers[request_id] = message
        self._changed.notify_all()

    def fail(self, request_id: int, error: StoreError) -> None:
        """Take an error."""
        if request_id in self._left:
            self._drop(request_id, error)
            return
        self.answers[request_id] = error
        self._changed.notify_all()

    def instruct(self, token: int, message: Message) -> None:
        """Refuse: callers are no nodes."""
        raise AssertionError(f"the caller is no node: {message!r} ({token})")

    def close(self, reason: str) -> None:
        """Ignore: threads come and go without a word."""


class _SegmentNode:
    """The node of an embedded cluster: a peer that does at once what it is asked.

    What the core asks is queued, because the core is still busy with the event that it came from;
    ``work`` does it and tells the core, which may ask for more.
    """

    def __init__(self, switchboard: Switchboard, segment: Segment) -> None:
        self.segment: Segment | None = segment
        self._switchboard = switchboard
        self._number = switchboard.attach(self)
        self._node_id = secrets.token_hex(16)
        self._asked: deque[tuple[int, Message]] = deque()
        self._answers: list[Message | StoreError] = []
        self._registered: Registered | None = None

    def register(self, segment: Segment) -> Registered:
        """Join the cluster with a segment."""
        record = SegmentRecord(segment.incarnation, segment.bytes)
        answer = self._call(Register("local", self._node_id, "", 0, "", {}, (record,), landed=0))
        assert isinstance(answer, Registered)
        self._registered = answer
        self.work()
        return answer

    def heartbeat(self) -> None:
        """Say that it is alive; it cannot be anything else."""
        assert self._registered is not None
        index, term = self._registered.index, self._registered.term
        self._call(Heartbeat(index, self._node_id, term, 0, 0, 0))

    def work(self) -> None:
        """Do what was asked, and what is asked because of it."""
        while self._asked:
            token, message = self._asked.popleft()
            self._switchboard.node_replied(self._number, token, self._perform(message))

    def reply(self, request_id: int, message: Message) -> None:
        """Take the answer to what ``_call`` asked."""
        del request_id
        self._answers.append(message)

    def fail(self, request_id: int, error: StoreError) -> None:
        """Take the error that it ended with."""
        del request_id
        self._answers.append(error)

    def instruct(self, token: int, message: Message) -> None:
        """Take a request of the core."""
        self._asked.append((token, message))

    def close(self, reason: str) -> None:
        """Nothing to close."""

    def _call(self, message: Message) -> Message:
        now_s = self._switchboard.clock()
        self._answers.clear()
        self._switchboard.request(
            self._number, 0, message, now_s + limits.DEADLINE_S_DEFAULT, now_s
        )
        if not self._answers:
            raise InternalError(f"the core left {type(message).__name__} unanswered")
        answer = self._answers.pop()
        if isinstance(answer, StoreError):
            raise answer
        return answer

    def _perform(self, message: Message) -> Message | StoreError:
        segment = self.segment
        if segment is None:
            return Closed("the embedded cluster was closed")
        match message:
            case FreeExtents():
                for item in message.items:
                    segment.free(item.offset, item.version)
                return Freed(b"\1" * len(message.items))
            case SetEpochs():
                segment.term = max(segment.term, message.term)
                for slot, epoch in message.epochs.items():
                    segment.epochs[slot] = epoch
                return Done()
            case ListDirectory():
                return DirectoryPage([], -1)  # The memory is as new as the core.
            case _:
                return InternalError(f"a segment cannot do {type(message).__name__}")
