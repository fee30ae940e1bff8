"""What a data path is: tasks in, bytes moved and checked, each task ended with its own result.

A data path leads to one node. It moves bytes and verifies them; it decides nothing: which replica
to read, when to try again and what to report are the caller's. Every implementation passes the
suite in ``tests/contract/transport``.

Buffers are contiguous 1-D memoryviews of format "B". They are the path's from the call until it
returns and are never touched afterwards, whatever the peer does later. After an error the contents
of a task's targets are undefined.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from mooncake_store.errors import NotSupported

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from mooncake_store.deadline import Deadline
    from mooncake_store.errors import StoreError
    from mooncake_store.extent import Identity, Sealed


@dataclass(slots=True, eq=False)
class ReadTask:
    """One extent, or a range of its payload, to be read.

    Attributes:
        incarnation: Segment that holds the extent.
        offset: Where the extent begins in it.
        identity: What must be found there; anything else ends with ``StaleExtent``.
        start: First payload byte wanted, 0 <= start <= identity.length.
        length: Bytes wanted from there on; start + length <= identity.length.
        targets: Writable buffers that take the range in order; together ``length`` bytes.
        verify: Check the payload against its checksum. False: only the header is checked, before
            and after the bytes were taken, so that a reused extent is noticed but damage is not.
        attempt: Number of the write that put the extent there, where that is not the version's own
            (a copy made later, ``control.Replica.attempt``); 0: the version itself.
        error: Why the task failed; None once it succeeded (and before it ran).
        verified: Whether the bytes delivered were checked against their checksum.
    """

    incarnation: int
    offset: int
    identity: Identity
    start: int
    length: int
    targets: Sequence[memoryview]
    verify: bool = True
    attempt: int = 0
    error: StoreError | None = None
    verified: bool = False


@dataclass(slots=True, eq=False)
class WriteTask:
    """One extent to be written whole and published.

    Attributes:
        incarnation: Segment that the grant names.
        offset: Where the extent begins in it.
        identity: What is written; its version is the attempt.
        sealed: Header and tail that ``extent.seal`` made for the payload.
        parts: The payload in order; together ``identity.length`` bytes.
        error: Why the task failed; None once the extent is published (and before it ran).
    """

    incarnation: int
    offset: int
    identity: Identity
    sealed: Sealed
    parts: Sequence[memoryview]
    error: StoreError | None = None


class View(ABC):
    """The payload of an extent where it lies, without a copy; valid while its lease is.

    Attributes:
        payload: Read-only memory of the whole payload.
    """

    __slots__ = ("payload",)

    payload: memoryview

    @abstractmethod
    def check(self) -> None:
        """Make sure that the extent was not reused since the view began.

        Raises:
            StaleExtent: It was: what was read through the view may be another object's bytes.
        """

    @abstractmethod
    def verify(self) -> None:
        """Hash the payload where it lies.

        Raises:
            ChecksumMismatch: It differs from its checksum.
        """

    @abstractmethod
    def release(self) -> None:
        """Give the memory up. Idempotent; never raises."""


class Reservation(ABC):
    """The place of an extent that the caller fills itself: a put without a copy.

    Attributes:
        payload: Writable memory of the whole payload. Keep no view of it after the end.
    """

    __slots__ = ("payload",)

    payload: memoryview

    @abstractmethod
    def publish(self, sealed: Sealed) -> None:
        """Make the extent readable with what is in ``payload`` now. Ends the reservation.

        Raises:
            StaleTerm: The attempt is over; nothing became readable.
        """

    @abstractmethod
    def abandon(self) -> None:
        """End the reservation without publishing. Idempotent; never raises."""


class DataPath(ABC):
    """A blocking way to the memory of one node. Safe for use by several threads.

    Attributes:
        name: ``tcp``, ``shm``, ``memory``: the word used in statistics.
        has_views: Whether ``view`` and ``reserve`` work.
    """

    name: ClassVar[str]
    has_views: ClassVar[bool] = False

    @abstractmethod
    def read(self, tasks: Sequence[ReadTask], deadline: Deadline) -> None:
        """Perform every task; each ends with ``error`` set, or None and its targets filled.

        One failed task does not fail another; trouble with the peer fails all that were not over.
        Returns by the deadline. Never raises a ``StoreError``.

        Errors of a task:
            StaleExtent: The extent is not, or no longer, that identity's, or its epoch is over.
            ChecksumMismatch: Header, table or payload are damaged.
            InvalidArgument: The range or the targets do not fit.
            Unreachable, WrongPeer, ProtocolError, ProtocolMismatch, Overloaded, DeadlineExceeded:
                About the peer.
        """

    @abstractmethod
    def write(self, tasks: Sequence[WriteTask], deadline: Deadline) -> None:
        """Perform every task; each ends with ``error`` set, or None and its extent published.

        A task that ended with an error may or may not have landed: the caller aborts or reports
        its attempt. Returns by the deadline. Never raises a ``StoreError``.

        Errors of a task:
            StaleTerm: The attempt is over (freed, or of an older reign); nothing was published.
            StaleExtent: The node has no such segment.
            InvalidArgument: The extent does not fit its segment, or the parts their identity.
            Unreachable, WrongPeer, ProtocolError, ProtocolMismatch, Overloaded, DeadlineExceeded:
                About the peer.
        """

    def take(
        self, incarnation: int, offset: int, identity: Identity, *, attempt: int = 0
    ) -> bytes | None:
        """Return a small payload at once, verified, where this is a matter of microseconds.

        None where it is not, or where anything at all is not as it should be: ``read`` says what.
        ``attempt`` as in ``ReadTask``.
        """
        del incarnation, offset, identity, attempt
        return None

    def view(self, incarnation: int, offset: int, identity: Identity, *, attempt: int = 0) -> View:
        """Look at a payload where it lies; ``attempt`` as in ``ReadTask``.

        Raises:
            NotSupported: This path has no access to the node's memory.
            StaleExtent: The extent is not, or no longer, that identity's.
            ChecksumMismatch: Its header is damaged.
        """
        del incarnation, offset, identity, attempt
        raise NotSupported(f"the {self.name} path has no views")

    def reserve(self, incarnation: int, offset: int, identity: Identity) -> Reservation:
        """Begin a write that the caller fills in place.

        Raises:
            NotSupported: This path has no access to the node's memory.
            StaleTerm: The attempt is over.
            Overloaded: Too many writers have a reservation on this host.
        """
        del incarnation, offset, identity
        raise NotSupported(f"the {self.name} path has no reservations")

    def reaches(self, targets: Sequence[memoryview]) -> bool:
        """Return whether reads that are not verified may go straight to targets on a GPU.

        Only such a path is given views of a GPU's memory, and it must not touch their bytes.
        """
        del targets
        return False

    @abstractmethod
    def close(self) -> None:
        """Release connections and mappings. Idempotent; calls under way end with an error."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class AsyncDataPath(ABC):
    """The same for asyncio: one event loop, no threads; cancellation ends like an error.

    Attributes:
        name: As ``DataPath.name``.
        has_views: Whether ``view`` and ``reserve`` work; they never wait, so they are plain calls.
    """

    name: ClassVar[str]
    has_views: ClassVar[bool] = False

    @abstractmethod
    async def read(self, tasks: Sequence[ReadTask], deadline: Deadline) -> None:
        """As ``DataPath.read``. A cancelled read leaves the targets alone from then on."""

    @abstractmethod
    async def write(self, tasks: Sequence[WriteTask], deadline: Deadline) -> None:
        """As ``DataPath.write``. After a cancelled write it is unknown which tasks landed."""

    def view(self, incarnation: int, offset: int, identity: Identity, *, attempt: int = 0) -> View:
        """As ``DataPath.view``."""
        del incarnation, offset, identity, attempt
        raise NotSupported(f"the {self.name} path has no views")

    def reserve(self, incarnation: int, offset: int, identity: Identity) -> Reservation:
        """As ``DataPath.reserve``."""
        del incarnation, offset, identity
        raise NotSupported(f"the {self.name} path has no reservations")

    def reaches(self, targets: Sequence[memoryview]) -> bool:
        """As ``DataPath.reaches``."""
        del targets
        return False

    @abstractmethod
    async def aclose(self) -> None:
        """As ``DataPath.close``."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()
