"""What clients did and what they saw, with times: the material that a ``Checker`` judges.

    history = History(time.monotonic)
    call = history.write("client-1", "key", version=7)
    try:
        client.put("key", payload("key", 7, 4096))
    except StoreError as error:
        call.unknown(error)        # it may or may not take effect, now or later
    else:
        call.done()

A call that is never concluded (its process was killed) counts as ``unknown``. Several threads may
record at the same time.
"""

from __future__ import annotations

import enum
import itertools
import math
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mooncake_store.testing import payload as payloads

if TYPE_CHECKING:
    from collections.abc import Callable

NEVER: Final = math.inf
"""Return time of a call that did not return."""


class Kind(enum.Enum):
    """What a call asked for."""

    WRITE = "write"
    REMOVE = "remove"
    CLEAR = "clear"
    READ = "read"
    PRESENCE = "presence"
    """Exists, probe, prefix match: whether there is a value, not which."""


class Outcome(enum.Enum):
    """What is known about a call's effect."""

    UNKNOWN = "unknown"
    """It may have an effect, at any time from its beginning on."""
    DONE = "done"
    """It took effect before it returned, or it is a read and this is what it saw."""
    REFUSED = "refused"
    """It has no effect and never will."""


@dataclass(slots=True)
class Call:
    """One call of one client.

    Attributes:
        number: Order of the calls' beginnings.
        client: Who called.
        kind: What was asked.
        namespace: Whose keys.
        key: Which one; empty for ``CLEAR``.
        invoked_s: When the call began.
        deadline_s: How long it was allowed to take; infinite if that does not matter.
        returned_s: When it ended; ``NEVER`` while it has not.
        outcome: What is known of its effect.
        version: The version of a write, or the one that a read returned; None: a miss, or
            (with ``wrong``) bytes that are no version.
        found: Whether a ``READ`` or ``PRESENCE`` saw a value.
        wrong: What the bytes of a read look like that are no version of its key; empty: fine.
        store_version: The number under which the store keeps the version, if it said so.
        note: A miss's reason, or the error's text.
        held_until_s: A ``PRESENCE`` that asked for a hold: how long the store promised it.
    """

    number: int
    client: str
    kind: Kind
    namespace: str
    key: str
    invoked_s: float
    deadline_s: float
    returned_s: float = NEVER
    outcome: Outcome = Outcome.UNKNOWN
    version: int | None = None
    found: bool = False
    wrong: str = ""
    store_version: int | None = None
    note: str = ""
    held_until_s: float = -NEVER

    @property
    def effect_by_s(self) -> float:
        """When it had taken effect for certain; ``NEVER`` if that is not certain at all."""
        return self.returned_s if self.outcome is Outcome.DONE else NEVER

    def __str__(self) -> str:
        what = "" if self.version is None else f" v{self.version}"
        if self.kind is Kind.READ and self.outcome is Outcome.DONE and not self.found:
            what = " miss"
        end = "never" if self.returned_s == NEVER else f"{self.returned_s:.6f}"
        note = f" ({self.note})" if self.note else ""
        return (
            f"#{self.number} {self.client} {self.kind.value} {self.key or self.namespace}{what}"
            f" [{self.invoked_s:.6f}, {end}] {self.outcome.value}{note}"
        )


class Record:
    """A call under way, to be concluded by exactly one of the methods.

    Attributes:
        call: What is recorded so far.
    """

    __slots__ = ("_history", "call")

    def __init__(self, history: History, call: Call) -> None:
        self._history = history
        self.call = call

    def done(self, *, store_version: int | None = None, found: bool = False) -> None:
        """Conclude a write, removal or clearing that took effect, or a presence that was asked."""
        self.call.store_version = store_version
        self.call.found = found
        self._conclude(Outcome.DONE)

    def refused(self, why: object = "") -> None:
        """Conclude a call that the store refused: it has no effect."""
        self._conclude(Outcome.REFUSED, why)

    def already_there(self) -> None:
        """Conclude a write that found a value and left it alone: it saw one, and did nothing."""
        self.call.found = True
        self._conclude(Outcome.REFUSED, "already there")

    def unknown(self, why: object = "") -> None:
        """Conclude a call of which nobody knows whether it took or will take effect."""
        self._conclude(Outcome.UNKNOWN, why)

    def missed(self, reason: object = "") -> None:
        """Conclude a read that found no value; ``reason`` is what the store says of it."""
        self._conclude(Outcome.DONE, reason)

    def returned(
        self,
        data: bytes | bytearray | memoryview,
        *,
        start: int = 0,
        size: int | None = None,
        store_version: int | None = None,
    ) -> None:
        """Conclude a read that returned bytes; which version they are is found out here.

        Args:
            data: What was returned.
            start: First byte of a ranged read.
            size: Size of the whole object of a ranged read; None: ``data`` is all of it.
            store_version: The number that the store gave with the bytes.
        """
        call = self.call
        call.found = True
        call.store_version = store_version
        version = self._history.identify(call, data, start, size)
        if version is None:
            call.wrong = payloads.describe(data, self._history.key_hashes())
        else:
            call.version = version
        self._conclude(Outcome.DONE)

    def held(self, until_s: float) -> None:
        """Say of a presence that the store promised to keep what it found until ``until_s``."""
        self.call.held_until_s = until_s

    def _conclude(self, outcome: Outcome, note: object = "") -> None:
        call = self.call
        assert call.returned_s == NEVER, f"concluded twice: {call}"
        call.returned_s = self._history.now()
        call.outcome = outcome
        call.note = str(note)


class History:
    """All calls of one run.

    Attributes:
        calls: In the order of their beginnings.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.calls: list[Call] = []
        self.now = clock
        self._numbers = itertools.count(1)
        self._versions: dict[tuple[str, str], list[int]] = {}
        """{(namespace, key): versions that anybody began to write, oldest first}"""
        self._sizes: dict[tuple[str, str, int], int] = {}
        self._lock = threading.Lock()

    def write(
        self,
        client: str,
        key: str,
        version: int,
        *,
        size: int = 0,
        namespace: str = "default",
        deadline_s: float = NEVER,
    ) -> Record:
        """Begin a write of ``payload(key, version, size)``; a version is written once only."""
        with self._lock:
            self._versions.setdefault((namespace, key), []).append(version)
            self._sizes[namespace, key, version] = size
        record = self._begin(client, Kind.WRITE, namespace, key, deadline_s)
        record.call.version = version
        return record

    def remove(
        self, client: str, key: str, *, namespace: str = "default", deadline_s: float = NEVER
    ) -> Record:
        """Begin a removal."""
        return self._begin(client, Kind.REMOVE, namespace, key, deadline_s)

    def clear(
        self, client: str, *, namespace: str = "default", deadline_s: float = NEVER
    ) -> Record:
        """Begin the clearing of a whole namespace."""
        return self._begin(client, Kind.CLEAR, namespace, "", deadline_s)

    def read(
        self, client: str, key: str, *, namespace: str = "default", deadline_s: float = NEVER
    ) -> Record:
        """Begin a read of any form."""
        return self._begin(client, Kind.READ, namespace, key, deadline_s)

    def presence(
        self, client: str, key: str, *, namespace: str = "default", deadline_s: float = NEVER
    ) -> Record:
        """Begin a question whether there is a value."""
        return self._begin(client, Kind.PRESENCE, namespace, key, deadline_s)

    def identify(
        self, call: Call, data: bytes | bytearray | memoryview, start: int, size: int | None
    ) -> int | None:
        """Return which version of the call's key these bytes are, newest first, or None."""
        seen = memoryview(data).cast("B")
        whole = (call.namespace, call.key)
        for version in reversed(self._versions.get(whole, ())):
            expected_size = self._sizes[(*whole, version)] if size is None else size
            if size is None and expected_size != len(seen):
                continue
            if seen == payloads.payload_range(call.key, version, expected_size, start, len(seen)):
                return version
        return None

    def key_hashes(self) -> dict[int, str]:
        """Return {hash: key} of all keys written, to name the owner of foreign bytes."""
        return {payloads.key_hash(key): key for _, key in list(self._versions)}

    def sizes(self, namespace: str, key: str) -> dict[int, int]:
        """Return {version: bytes} of one key."""
        versions = self._versions.get((namespace, key), ())
        return {version: self._sizes[namespace, key, version] for version in versions}

    def _begin(
        self, client: str, kind: Kind, namespace: str, key: str, deadline_s: float
    ) -> Record:
        with self._lock:
            call = Call(next(self._numbers), client, kind, namespace, key, self.now(), deadline_s)
            self.calls.append(call)
        return Record(self, call)
