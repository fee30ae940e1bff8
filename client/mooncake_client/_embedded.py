"""A whole cluster inside the process: a master's core and one segment of its memory."""

from __future__ import annotations

import contextlib
import mmap
import secrets
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Protocol, TypeVar

from mooncake_client._backend import Backend, Run
from mooncake_store.errors import Closed, NotSupported, StoreError
from mooncake_store.segment import Segment, mapped_bytes
from mooncake_store.transport.in_process import MemoryDataPath

if TYPE_CHECKING:
    from mooncake_client._core import effects
    from mooncake_client._core.effects import Operation
    from mooncake_client._core.session import Session
    from mooncake_client._line import CallDeadline
    from mooncake_store.transport import DataPath
    from mooncake_store.wire.control import Message, NodeRecord, Welcome

R = TypeVar("R")

GROUP = "mooncake_store.embedded"
"""Entry-point group in which the master's package offers its in-process form (ADR 0003)."""

MAP_NORESERVE = 0x4000
"""Of Linux' ``mmap``: do not count the pool against the system's memory before it is used."""

TELL_S = 1.0
"""Deadline of what is told without waiting; the core answers such messages at once."""


class Master(Protocol):
    """What is used of ``mooncake_master.embedded.EmbeddedMaster``."""

    @property
    def welcome(self) -> Welcome:
        """What it says of itself."""
        ...

    def request(
        self, message: Message, deadline_s: float, granted: list[int] | None = None
    ) -> Message:
        """Perform one request; note the attempts that it grants."""
        ...

    def give_up(self, granted: list[int]) -> None:
        """Give attempts back."""
        ...

    def close(self) -> None:
        """Let go of the segment."""
        ...


class EmbeddedCluster:
    """The cluster behind one ``local://`` client.

    Its memory is private and anonymous: pages are taken from the system as they are first used,
    and are gone with the client.
    """

    def __init__(self, dram_bytes: int) -> None:
        """Make an empty cluster.

        Raises:
            NotSupported: The master's package is not installed, or the memory is refused.
        """
        make = next((entry.load() for entry in entry_points(group=GROUP)), None)
        if make is None:
            raise NotSupported("local:// needs the package mooncake_master, which is not installed")
        size = mapped_bytes(dram_bytes)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        try:
            self._mapping = mmap.mmap(-1, size, flags=flags)
        except (OSError, ValueError, OverflowError) as error:
            raise NotSupported(f"no {size} bytes of memory for local://: {error}") from error
        self._segment = Segment.format(
            memoryview(self._mapping), dram_bytes, secrets.randbits(63) | 1
        )
        self.master: Master = make(self._segment)
        self.path = MemoryDataPath({self._segment.incarnation: self._segment})

    @property
    def segment(self) -> Segment:
        """The memory, for tests."""
        return self._segment

    def close(self) -> None:
        """Give the memory back, as soon as no view of it is left. Idempotent."""
        self.master.close()
        self.path.close()


class EmbeddedBackend(Backend):
    """Performs effects by calling the master's core."""

    def __init__(self, session: Session, cluster: EmbeddedCluster) -> None:
        super().__init__(session)
        self.cluster = cluster
        self._reason = ""

    def run(self, operation: Operation[R], deadline: CallDeadline) -> R:
        """As ``Backend.run``."""
        if self._reason:
            raise Closed(self._reason)
        return _EmbeddedRun(self, deadline).drive(operation)

    def close(self) -> None:
        """As ``Backend.close``."""
        if not self._reason:
            self._reason = "the client was closed"
            self.cluster.close()

    def after_fork(self) -> None:
        """As ``Backend.after_fork``: the child has no part in its parent's cluster."""
        self._reason = "a local:// cluster belongs to the process that made it, not to its children"


class _EmbeddedRun(Run):
    """One operation under way."""

    __slots__ = ("_backend", "_granted")

    def __init__(self, backend: EmbeddedBackend, deadline: CallDeadline) -> None:
        self.deadline = deadline
        self._backend = backend
        self._granted: list[int] = []

    def drive(self, operation: Operation[R]) -> R:
        """As ``Run.drive``; Ctrl-C may have come between a grant and the operation."""
        try:
            return super().drive(operation)
        except StoreError:
            raise
        except BaseException:
            self._backend.cluster.master.give_up(self._granted)
            raise

    def path_to(self, node: NodeRecord) -> DataPath:
        """As ``Run.path_to``."""
        del node
        return self._backend.cluster.path

    def ask(self, effect: effects.Ask) -> Message:
        """As ``Run.ask``."""
        if effect.meanwhile is not None:
            effect.meanwhile()
        return self._request(effect.message)

    def ask_many(self, effect: effects.AskMany) -> list[Message]:
        """As ``Run.ask_many``."""
        return [self._request(message) for message in effect.messages]

    def tell(self, effect: effects.Tell) -> None:
        """As ``Run.tell``."""
        with contextlib.suppress(StoreError):  # A courtesy: nobody waits for its answer.
            self._backend.cluster.master.request(effect.message, TELL_S)

    def attach(self, effect: effects.Attach) -> bool:
        """As ``Run.attach``: everything is near already."""
        del effect
        return False

    def _request(self, message: Message) -> Message:
        left_s = self.deadline.check("asking the embedded master")
        self._backend.session.counters.master_round_trips += 1
        return self._backend.cluster.master.request(message, left_s, self._granted)
