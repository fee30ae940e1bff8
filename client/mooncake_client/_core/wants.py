"""One object, or a range of it, on its way to a caller."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_client._views import cut, new_bytes, window
from mooncake_store.data_path import ReadTask
from mooncake_store.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Collection

    from mooncake_client._core.locations import Entry
    from mooncake_client._core.planner import Place
    from mooncake_store.errors import StoreError
    from mooncake_store.wire.control import Replica


class Trouble:
    """What went wrong with a want so far.

    Attributes:
        refused: Copies that are not to be tried again.
        failures: {copy: tries that failed for want of an answer}.
        busy: {copy on a disk: tries that the disk refused}.
        stale: Copies that were found to hold something else although the master named them.
        damage: The damaged copy that was met on the way, if any.
        hindrance: Who was too busy last, in a sentence; empty: nobody was.
    """

    __slots__ = ("busy", "damage", "failures", "hindrance", "refused", "stale")

    def __init__(self) -> None:
        self.refused: set[Place] = set()
        self.failures: dict[Place, int] = {}
        self.busy: dict[Place, int] = {}
        self.stale: set[Place] = set()
        self.damage: StoreError | None = None
        self.hindrance = ""

    def of_another_version(self) -> None:
        """Forget what was about copies of a version that is not wanted any more."""
        self.refused.clear()
        self.failures.clear()
        self.busy.clear()
        self.stale.clear()


class Want:
    """What an operation reads for one key.

    Attributes:
        key: Its name.
        start: First byte wanted.
        outcome: Bytes delivered; None for a miss; or why it failed. Meaningless until ``is_over``.
        fresh: The bytes object that was filled, where the caller brought no buffer.
        entry: The location in use.
        is_located: Whether ``entry`` came from the master during this operation.
        count: Bytes wanted of the version in ``entry``.
        done: How many of them were read.
    """

    __slots__ = (
        "_buffer",
        "_length",
        "_targets",
        "_trouble",
        "_verify",
        "_version",
        "count",
        "done",
        "entry",
        "fresh",
        "is_located",
        "is_over",
        "key",
        "outcome",
        "start",
    )

    def __init__(
        self,
        key: str,
        buffer: list[memoryview] | None = None,
        start: int = 0,
        length: int | None = None,
        *,
        verify: bool = True,
    ) -> None:
        """Take what is wanted and where it goes; without a buffer, ``fresh`` takes it."""
        self.key = key
        self.start = start
        self.fresh: bytes | None = None
        self.outcome: int | StoreError | None = None
        self.is_over = self.is_located = False
        self.entry: Entry | None = None
        self.count = self.done = self._version = 0
        self._buffer = self._targets = buffer
        self._length = length
        self._verify = verify
        self._trouble: Trouble | None = None

    @property
    def trouble(self) -> Trouble:
        """What went wrong so far; asking for it is what makes the record."""
        if self._trouble is None:
            self._trouble = Trouble()
        return self._trouble

    @property
    def refused(self) -> Collection[Place]:
        """Copies that are not to be tried again."""
        return () if self._trouble is None else self._trouble.refused

    @property
    def damage(self) -> StoreError | None:
        """The damaged copy that was met on the way, if any."""
        return None if self._trouble is None else self._trouble.damage

    def end(self, outcome: int | StoreError | None) -> None:
        """Note how it ended."""
        self.outcome = outcome
        self.is_over = True

    def settle(self) -> int | StoreError | None:
        """Return the outcome and let go of it, and of the buffer.

        A raised error's traceback holds whoever held the want. Were the error held by the want in
        turn, the caller's buffer would stay exported until the garbage collector comes by.
        """
        outcome, self.outcome = self.outcome, None
        self._buffer = self._targets = self._trouble = None
        return outcome

    def place(self, entry: Entry, *, is_located: bool) -> None:
        """Take a location, and settle which bytes are wanted of it and where they go.

        Raises:
            InvalidArgument: The range begins behind the object's end.
            BufferTooSmall: The buffer does not take it.
        """
        identity = entry.identity
        if self._version != identity.version:
            self._version = identity.version
            self.done = 0  # what was read of another version is void
            if self._trouble is not None:
                self._trouble.of_another_version()
        self.entry = entry
        self.is_located = is_located
        count = identity.length - self.start
        if count < 0:
            raise InvalidArgument(
                f"byte {self.start} is behind the {identity.length} bytes of {self.key!r}",
                key=self.key,
            )
        if self._length is not None and self._length < count:
            count = self._length
        if self._buffer is not None:
            self._targets = cut(self._buffer, count, key=self.key)
        elif self.fresh is None or self.count != count:
            self.fresh, view = new_bytes(count)
            self._targets = [view]
        self.count = count

    def relocate(self) -> None:
        """Have the master asked again where it is."""
        self.entry = None

    def task(self, replica: Replica, size: int) -> ReadTask:
        """Return a task for the next ``size`` bytes from ``replica``."""
        assert self.entry is not None
        assert self._targets is not None
        return ReadTask(
            replica.incarnation,
            replica.offset,
            self.entry.identity,
            self.start + self.done,
            size,
            self._targets if size == self.count else window(self._targets, self.done, size),
            self._verify,
            replica.attempt,
        )
