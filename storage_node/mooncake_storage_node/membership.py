"""Belonging to a cluster: registering, obeying, heartbeats; each on a connection of its own.

Any start order works: a node tries for as long as it takes, or as long as it was told to. The
heartbeat has a thread and a connection of its own, so that no slow work ever delays it.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from mooncake_storage_node.master_link import MasterLink, Masters
from mooncake_store.deadline import Deadline
from mooncake_store.errors import (
    DeadlineExceeded,
    NotLeader,
    ProtocolError,
    StaleTerm,
    StoreError,
    Unreachable,
)
from mooncake_store.wire.address import is_loopback, parse_address
from mooncake_store.wire.control import (
    REQUEST_DECODERS,
    Heartbeat,
    HeartbeatReply,
    Register,
    Registered,
    StoreStatus,
)
from mooncake_store.wire.frames import REPLY

if TYPE_CHECKING:
    from collections.abc import Callable

    from mooncake_storage_node.obedience import Obedience
    from mooncake_store.wire.address import Address
    from mooncake_store.wire.control import Message
    from mooncake_store.wire.frames import Frame

logger = logging.getLogger(__name__)

ANEW_S: Final = 0.2
"""Longest time until the master is told that what this node has is another. Smaller: an idle node
wakes up more often."""

CONNECT_S: Final = 5.0
"""Time for one try to reach a master."""

CONNECT_S_OF_MANY: Final = 1.0
"""The same while there are others to try. Smaller: a leader with a full processor is passed over.
Larger: one that swallows packets costs more of the time in which another takes over."""

STANDBY_PAUSE_S: Final = 0.4
"""Longest pause between tries while a standby answers: an election is seconds away."""

PROBLEMS_MAX: Final = 32
"""Different problems that are said once; then all of them are news again."""

STANDBY_S: Final = 10.0
"""Time for which a standby's answer says that."""

BACKOFF_S: Final = (0.1, 2.0)
"""First and longest pause between tries: a restarted master has its nodes back within 2 s, and
a thousand nodes ask it 500 times a second at most."""

HEARTBEAT_S_FIRST: Final = 0.2
"""Pause of the heartbeat thread while there is no membership."""

MASTER_PORT: Final = 50051


Member = tuple[Register, Registered, "Address"]
"""What this node said, what a master answered, and where that one is."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a heartbeat says of the node's work."""

    used_bytes: int
    readers: int
    writers: int
    stores: tuple[StoreStatus, ...] = ()
    scrubbed_bytes: int = 0


class Membership:
    """Keeps a node a member of its cluster until it is stopped.

    Attributes:
        registrations: How often a master accepted the node.
    """

    def __init__(
        self,
        masters: Masters,
        obedience: Obedience,
        register: Callable[[MasterLink], Register],
        load: Callable[[], Load],
        is_news: Callable[[Register], bool],
    ) -> None:
        """Prepare; ``start`` begins.

        Args:
            masters: Where they may be.
            obedience: Performs their orders.
            register: Makes the message that introduces this node over a link.
            load: Says what a heartbeat reports.
            is_news: Whether what this node has is another than such a message says.
        """
        self.registrations = 0
        self._masters = masters
        self._obedience = obedience
        self._register = register
        self._load = load
        self._is_news = is_news
        self._stopping = threading.Event()
        self._joined = threading.Condition()
        self._member: Member | None = None
        self._standby_s = float("-inf")
        self._said: set[str] = set()
        self._link: MasterLink | None = None
        self._former: MasterLink | None = None
        """The connection before, until the next one has taken its place: nothing counts as away."""
        self._changed = threading.Event()
        self._pulse: MasterLink | None = None
        self._control_thread = threading.Thread(target=self._keep, name="control", daemon=True)
        self._pulse_thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self.last_problem: StoreError | None = None

    def start(self) -> None:
        """Begin to look for a master."""
        self._control_thread.start()
        self._pulse_thread.start()

    def wait_joined(self, timeout_s: float) -> bool:
        """Wait until a master has accepted this node; return whether one has."""
        with self._joined:
            return self._joined.wait_for(lambda: self.registrations > 0, timeout_s)

    def ask(self, message: Message, timeout_s: float) -> Message:
        """Ask the master that this node belongs to, on a connection of its own.

        Raises:
            StoreError: What it answered, or why it did not.
        """
        member = self._member
        if member is None:
            raise Unreachable("this node belongs to no master now")
        deadline = Deadline(timeout_s)
        link = MasterLink(member[2], "question", deadline)
        try:
            return link.ask(message, deadline)
        finally:
            link.close()

    @property
    def current(self) -> tuple[Registered, Address] | None:
        """What the master said when it accepted this node, and where it is; None: no member."""
        member = self._member
        return (member[1], member[2]) if member is not None else None

    def stop(self) -> None:
        """Leave: the connections close, so the master knows at once."""
        self._stopping.set()
        for link in (self._link, self._pulse):
            if link is not None:
                link.abort()
        for thread in (self._control_thread, self._pulse_thread):
            if thread.is_alive():
                thread.join(CONNECT_S)

    # --- the control connection -----------------------------------------------------------------

    def _keep(self) -> None:
        pause_s = BACKOFF_S[0]
        while not self._stopping.is_set():
            before = self.registrations
            try:
                self._serve()
            except StoreError as error:
                self._note(error)
            else:
                continue
            if self.registrations > before:
                pause_s = BACKOFF_S[0]
            if time.monotonic() - self._standby_s < STANDBY_S:
                pause_s = min(pause_s, STANDBY_PAUSE_S)
            # Spread: a thousand nodes of one master that went away do not return as one.
            self._stopping.wait(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
            pause_s = min(2 * pause_s, BACKOFF_S[1])
        self._leave()

    def _note(self, error: StoreError) -> None:
        """Remember why a try failed, and say it where it is news."""
        if len(self._said) > PROBLEMS_MAX:
            self._said.clear()
        if not self._stopping.is_set() and str(error) not in self._said:
            self._said.add(str(error))
            logger.warning("no master (%s): %s", self._masters, error)
        self.last_problem = error
        if isinstance(error, DeadlineExceeded):
            self._masters.silent(self._masters.next())
        self._masters.failed()
        if isinstance(error, NotLeader):
            self._standby_s = time.monotonic()
            if error.node:
                with contextlib.suppress(ValueError):  # No address: the others are tried in turn.
                    self._masters.leads(parse_address(error.node, MASTER_PORT))

    def _patience(self) -> Deadline:
        return Deadline(CONNECT_S_OF_MANY if self._masters.are_many else CONNECT_S)

    def _serve(self) -> None:
        """Register at one master and obey it until the connection ends, or is to be another.

        Raises:
            StoreError: Why it ended.
        """
        goes_on = False
        try:
            address = self._masters.next()
            self._link = link = MasterLink(address, "control", self._patience())
            register = self._register(link)
            answer = link.ask(register, Deadline(CONNECT_S))
            if not isinstance(answer, Registered):
                raise ProtocolError("a master answers Register with something else")
            self._obedience.adopt(answer.term)
            self._obedience.set_epochs(answer.epochs)
            self._announce(register, answer, link, address)
            self._leave()
            while not (self._stopping.is_set() or self._is_outdated(register)):
                frame = link.receive(ANEW_S)
                if frame is not None and not frame.flags & REPLY:
                    self._obey(link, frame)
            goes_on = not self._stopping.is_set()
        finally:
            self._leave()
            self._former, self._link = self._link, None
            if not goes_on:
                self._member = None
                self._leave()

    def _is_outdated(self, register: Register) -> bool:
        """Return whether this node has another than it was registered with.

        Looked at by the thread that registers: whoever changes something may be told of it while
        that is being registered, or long after.
        """
        if not self._changed.is_set():
            return False
        self._changed.clear()
        return self._is_news(register)

    def _leave(self) -> None:
        """Close the connection before, if there is one."""
        former, self._former = self._former, None
        if former is not None:
            former.close()

    def _announce(
        self, register: Register, answer: Registered, link: MasterLink, address: Address
    ) -> None:
        logger.info(
            "registered at the master %s (term %d) as node %d", address, answer.term, answer.index
        )
        if is_loopback(register.host) and not is_loopback(link.peer_host):
            logger.warning(
                "this node advertises %s, which clients on other hosts take for themselves, to a"
                " master on %s; name a reachable address with --advertise",
                register.host, link.peer_host,
            )  # fmt: skip
        self._masters.leads(address)
        self.last_problem = None
        self._said.clear()
        with self._joined:
            self._member = (register, answer, address)
            self.registrations += 1
            self._joined.notify_all()

    def _obey(self, link: MasterLink, frame: Frame) -> None:
        """Perform an order; one that takes time is answered later, by another thread."""
        control = threading.get_ident()

        def answer(reply: Message | StoreError) -> None:
            try:
                link.reply(frame, reply, Deadline(CONNECT_S))
                if isinstance(reply, StaleTerm):
                    raise reply
            except StoreError:
                if threading.get_ident() == control:
                    raise
                link.abort()  # The control thread notices. Half a frame may have gone out.

        decoder = REQUEST_DECODERS.get(frame.kind)
        if decoder is None:
            answer(ProtocolError(f"this node does not know requests of kind {frame.kind}"))
            return
        try:
            order = decoder.decode(frame.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            answer(ProtocolError(f"an order cannot be read: {error}"))
            return
        self._obedience.perform(order, frame.deadline_ms / 1000, answer)

    # --- heartbeats -----------------------------------------------------------------------------

    def _beat(self) -> None:
        while not self._stopping.is_set():
            member = self._member
            if member is None:
                with self._joined:
                    self._joined.wait_for(self._may_beat, HEARTBEAT_S_FIRST)
                continue
            _, registered, address = member
            try:
                self._beat_for(member)
            except StoreError as error:
                logger.debug("a heartbeat failed: %s", error)
                if self._masters.are_many and self._member is member:
                    # It may be gone without a word: see whether another one leads by now.
                    if isinstance(error, DeadlineExceeded):
                        self._masters.silent(address)
                    self._give_up(member)
                self._stopping.wait(registered.heartbeat_s)

    def _may_beat(self) -> bool:
        return self._member is not None or self._stopping.is_set()

    def _beat_for(self, member: Member) -> None:
        """Send heartbeats for one membership until it ends.

        Raises:
            StoreError: The connection failed.
        """
        register, registered, address = member
        period_s = registered.heartbeat_s
        pulse = MasterLink(address, "heartbeat", self._patience())
        self._pulse = pulse
        try:
            while not self._stopping.is_set():
                if self._member is not member:
                    return
                load = self._load()
                beat = Heartbeat(
                    registered.index,
                    register.node_id,
                    self._obedience.term,
                    load.used_bytes,
                    load.readers,
                    load.writers,
                    load.stores,
                    load.scrubbed_bytes,
                )
                answer = pulse.ask(beat, Deadline(max(1.0, 3 * period_s)))
                if isinstance(answer, HeartbeatReply) and not answer.known:
                    self._give_up(member)
                    return
                self._stopping.wait(period_s)
        finally:
            self._pulse = None
            pulse.close()

    def look(self) -> None:
        """What this node has may be another: if so tell the master, over a new connection.

        What it was told before holds until then.
        """
        self._changed.set()

    def _give_up(self, member: Member) -> None:
        """The master does not know what we are: end the control connection, to start it anew.

        Unless that was said of a membership which is over, and the next one has begun.
        """
        with self._joined:
            if self._member is not member:
                return
            self._member = None
            link = self._link
        if link is not None:
            link.abort()
