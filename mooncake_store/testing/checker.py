"""Judges a history: which values each read may have returned, for a store that may forget.

For each key the calls must be explainable as if each had happened at one moment between its
beginning and its end (linearizability), with two exceptions that make it a cache: a miss is right
at any time for which there is an excuse, and a write of unknown outcome may take effect late or
never.

How it is decided. Versions are unique, so each read names the write it saw: a write and its reads
form a cluster, a removal is a cluster of its own. A cluster's *zone* runs from the first end to
the last beginning among its calls: within it the value must have been there. A history is right
exactly if no two zones overlap, and no cluster that must have happened as a whole within a foreign
zone exists (P. B. Gibbons and E. Korach, "Testing Shared Memories", SIAM J. Comput. 26(4), 1997,
section 5.2). Calls that touch at the same instant count as concurrent.
"""

from __future__ import annotations

import bisect
import enum
import itertools
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from mooncake_store.testing.history import NEVER, Call, History, Kind, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Rule(enum.Enum):
    """What a history can break."""

    WRONG_BYTES = "wrong_bytes"
    """A read returned bytes that nobody ever put under its key."""
    FROM_THE_FUTURE = "from_the_future"
    """A read returned a value before anybody began to write it."""
    REFUSED_VISIBLE = "refused_visible"
    """A read returned a value whose write was refused."""
    REVIVED = "revived"
    """A value was seen after its removal, replacement or clearing had returned."""
    LOST = "lost"
    """An acknowledged value was missed, and nothing excuses it."""
    HOLD_BROKEN = "hold_broken"
    """A value was missed within the time for which the store had promised to keep it."""
    LATE = "late"
    """A call ended after its deadline."""
    VERSION_WENT_BACK = "version_went_back"
    """The store named an older version after a newer one."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule.

    Attributes:
        rule: Which one.
        key: Whose calls broke it.
        text: What happened, in a sentence.
        calls: The calls that show it.
    """

    rule: Rule
    key: str
    text: str
    calls: tuple[Call, ...] = ()

    def __str__(self) -> str:
        lines = "".join(f"\n    {call}" for call in self.calls)
        return f"{self.rule.value}: {self.key!r}: {self.text}{lines}"


@dataclass(slots=True)
class _Cluster:
    """A write and the reads that returned it, or a removal."""

    write: Call
    swap_s: float = 0.0
    reads: list[Call] = field(default_factory=list)

    @property
    def first_end_s(self) -> float:
        """From then on what was there before must not be seen any more."""
        return min(
            self.write.effect_by_s,
            min((read.effect_by_s for read in self.reads), default=NEVER) + self.swap_s,
        )

    @property
    def last_beginning_s(self) -> float:
        """It had not been replaced before this."""
        return max(call.invoked_s for call in (self.write, *self.reads))

    @property
    def is_zone(self) -> bool:
        """Whether there is a span of time in which the value must have been there."""
        return self.first_end_s < self.last_beginning_s

    def witness(self) -> tuple[Call, ...]:
        """Return the calls that make the zone."""
        calls = (self.write, *self.reads)
        first = min(calls, key=lambda call: call.effect_by_s)
        last = max(calls, key=lambda call: call.invoked_s)
        return tuple(sorted({call.number: call for call in (self.write, first, last)}.values(),
                            key=lambda call: call.number))  # fmt: skip


EXCUSES: Final = frozenset(
    {"evicted", "lost", "node_down", "corrupt", "recovering", "expired", "writing"}
)
"""Reasons of a miss, in the store's words, for which an acknowledged value may be missed. Not among
them: ``absent``, ``removed`` and ``cleared``, which need a removal in the history."""

HOLD_EXCUSES: Final = EXCUSES - {"evicted", "expired", "writing"}
"""Reasons for which a value may be missed that the store had promised to keep for a while."""


class Checker:
    """Finds what is wrong with a history.

    Args:
        history: What happened.
        excused: Says of a miss (a read that found nothing) whether the store may have forgotten
            the value. By default the reason that was recorded with the miss decides: ``EXCUSES``.
        hold_excused: The same for a value that the store had promised to keep; ``HOLD_EXCUSES``.
        lateness_s: How much later than its deadline a call may end before it is late.
        swap_s: How long some readers may still see the old value when others have seen the new one
            already and the call that replaces it has not returned. 0: never; a store that lets
            readers keep locations for the time of a lease needs that time.
    """

    def __init__(
        self,
        history: History,
        *,
        excused: Callable[[Call], bool] | None = None,
        hold_excused: Callable[[Call], bool] | None = None,
        lateness_s: float = 0.0,
        swap_s: float = 0.0,
    ) -> None:
        self._swap_s = swap_s
        self._excused = excused or (lambda call: call.note in EXCUSES)
        self._hold_excused = hold_excused or (lambda call: call.note in HOLD_EXCUSES)
        self._lateness_s = lateness_s
        self._calls: dict[tuple[str, str], list[Call]] = defaultdict(list)
        clears: dict[str, list[Call]] = defaultdict(list)
        for call in list(history.calls):
            if call.kind is Kind.CLEAR:
                clears[call.namespace].append(call)
            else:
                self._calls[call.namespace, call.key].append(call)
        self._clears = clears

    def check(self) -> list[Violation]:
        """Return everything that is wrong, nothing if all is well."""
        found: list[Violation] = []
        for (namespace, key), calls in self._calls.items():
            found += _KeyCheck(
                key,
                [*calls, *self._clears.get(namespace, ())],
                self._excused,
                self._hold_excused,
                self._swap_s,
            ).violations()
            found += self._late(key, calls)
        for namespace, calls in self._clears.items():
            found += self._late(namespace, calls)
        return found

    def _late(self, key: str, calls: list[Call]) -> Iterator[Violation]:
        for call in calls:
            over_s = call.returned_s - call.invoked_s - call.deadline_s
            if call.returned_s != NEVER and over_s > self._lateness_s:
                yield Violation(Rule.LATE, key, f"{over_s:.3f} s after its deadline", (call,))


def settled_write(
    history: History, namespace: str, key: str, *, before: Call | None = None
) -> Call | None:
    """Return the acknowledged write after which nobody touched a key; None if it is not certain.

    After the end of a run the key must have exactly this value, unless the store may have
    forgotten it. With ``before``, a read: the same for the time of that read.
    """
    touching = [
        call
        for call in history.calls
        if call.namespace == namespace
        and call.outcome is not Outcome.REFUSED
        and (before is None or call.invoked_s <= before.returned_s)
        and (call.kind is Kind.CLEAR or (call.key == key and call.kind in _CHANGES))
    ]
    last = max(touching, key=lambda call: call.invoked_s, default=None)
    if last is None or last.kind is not Kind.WRITE or last.outcome is not Outcome.DONE:
        return None
    if any(call is not last and call.effect_by_s >= last.invoked_s for call in touching):
        return None
    if before is not None and last.returned_s >= before.invoked_s:
        return None
    return last


_CHANGES: Final = frozenset({Kind.WRITE, Kind.REMOVE})


class _KeyCheck:
    """The calls about one key."""

    def __init__(
        self,
        key: str,
        calls: list[Call],
        excused: Callable[[Call], bool],
        hold_excused: Callable[[Call], bool],
        swap_s: float,
    ) -> None:
        self._key = key
        self._swap_s = swap_s
        self._excused = excused
        self._hold_excused = hold_excused
        self._writes = {
            call.version: call
            for call in calls
            if call.kind is Kind.WRITE and call.version is not None
        }
        done = [call for call in calls if call.outcome is Outcome.DONE]
        self._reads = [call for call in done if call.kind is Kind.READ]
        self._seen = [call for call in calls if call.found and call.kind is not Kind.READ]
        self._held = [call for call in done if call.kind is Kind.PRESENCE and call.found]
        removals = [call for call in calls if call.kind in {Kind.REMOVE, Kind.CLEAR}]
        self._removals = [call for call in removals if call.outcome is Outcome.DONE]
        self._removals_maybe = [call for call in removals if call.outcome is not Outcome.REFUSED]
        self._versioned = [call for call in done if call.store_version is not None]
        self._clusters: dict[int, _Cluster] = {}

    def violations(self) -> Iterator[Violation]:
        yield from self._identify()
        yield from self._zones()
        yield from self._presence()
        yield from self._misses()
        yield from self._store_versions()

    def _violation(self, rule: Rule, text: str, *calls: Call) -> Violation:
        return Violation(rule, self._key, text, calls)

    def _identify(self) -> Iterator[Violation]:
        """Find the write of every read; make the clusters."""
        for version, write in self._writes.items():
            if write.outcome is Outcome.DONE:
                self._clusters[version] = _Cluster(write, self._swap_s)
        for read in self._reads:
            if read.wrong:
                yield self._violation(Rule.WRONG_BYTES, read.wrong, read)
            if read.version is None:
                continue
            write = self._writes[read.version]
            if write.outcome is Outcome.REFUSED:
                yield self._violation(
                    Rule.REFUSED_VISIBLE, "read although its write was refused", write, read
                )
            elif read.returned_s < write.invoked_s:
                yield self._violation(
                    Rule.FROM_THE_FUTURE, "read before it was written", write, read
                )
            else:
                cluster = self._clusters.setdefault(read.version, _Cluster(write, self._swap_s))
                cluster.reads.append(read)

    def _zones(self) -> Iterator[Violation]:
        clusters = [*self._clusters.values(), *map(_Cluster, self._removals)]
        zones = sorted(
            (cluster for cluster in clusters if cluster.is_zone),
            key=lambda cluster: cluster.first_end_s,
        )
        for older, newer in itertools.pairwise(zones):
            if newer.first_end_s < older.last_beginning_s:
                yield self._violation(
                    Rule.REVIVED,
                    "two values were there at the same time, so an old one came back",
                    *older.witness(),
                    *newer.witness(),
                )
        begins = [zone.first_end_s for zone in zones]
        for cluster in clusters:
            if cluster.is_zone:
                continue
            at = bisect.bisect_left(begins, cluster.last_beginning_s) - 1
            if at >= 0 and cluster.first_end_s < zones[at].last_beginning_s:
                yield self._violation(
                    Rule.REVIVED,
                    "a value was seen after what replaced or removed it had returned",
                    *zones[at].witness(),
                    cluster.write,
                )

    def _presence(self) -> Iterator[Violation]:
        """A value was said to be there: was there one that nothing had removed for certain?"""
        for seen in self._seen:
            if not any(self._may_be_there(write, seen) for write in self._writes.values()):
                yield self._violation(
                    Rule.REVIVED, "said to be there although all was removed", seen,
                    *self._removals[-1:],
                )  # fmt: skip

    def _may_be_there(self, write: Call, seen: Call) -> bool:
        if write is seen or write.outcome is Outcome.REFUSED or write.invoked_s > seen.returned_s:
            return False
        cluster = self._clusters.get(write.version if write.version is not None else -1)
        effect_by_s = cluster.first_end_s if cluster else NEVER
        return not any(
            effect_by_s < removal.invoked_s and removal.returned_s < seen.invoked_s
            for removal in self._removals
        )

    def _misses(self) -> Iterator[Violation]:
        for read in self._reads:
            if read.found:
                continue
            write = self._must_be_there(read)
            if write is None:
                continue
            hold = self._hold_over(read, write)
            if hold is not None:
                yield self._violation(
                    Rule.HOLD_BROKEN, "missed while it was held", write, hold, read
                )
            elif not self._excused(read):
                yield self._violation(Rule.LOST, "missed, and nothing excuses it", write, read)

    def _must_be_there(self, read: Call) -> Call | None:
        """Return a write whose value (or a newer one) only forgetting can have taken away."""
        for cluster in self._clusters.values():
            if cluster.first_end_s >= read.invoked_s:
                continue
            write = cluster.write
            if not any(
                removal.invoked_s <= read.returned_s and removal.effect_by_s >= write.invoked_s
                for removal in self._removals_maybe
            ):
                return write
        return None

    def _hold_over(self, read: Call, write: Call) -> Call | None:
        """Return the hold under which the whole read lay, if nobody wrote the key meanwhile."""
        for hold in self._held:
            covers = hold.returned_s < read.invoked_s and read.returned_s < hold.held_until_s
            if covers and write.returned_s < hold.invoked_s:
                busy = any(
                    other.invoked_s <= read.returned_s and other.effect_by_s >= hold.invoked_s
                    for other in self._writes.values()
                    if other is not write and other.outcome is not Outcome.REFUSED
                )
                if not busy and not self._hold_excused(read):
                    return hold
        return None

    def _store_versions(self) -> Iterator[Violation]:
        """The store's own numbers of one key must not go back in real time."""
        by_end = sorted(self._versioned, key=self._known_by_s)
        newest: list[Call] = []
        """By end time: the call with the highest number so far."""
        for call in by_end:
            top = newest[-1] if newest else call
            newest.append(call if _number(call) >= _number(top) else top)
        ends = [self._known_by_s(call) for call in by_end]
        for call in self._versioned:
            at = bisect.bisect_left(ends, call.invoked_s) - 1
            if at >= 0 and _number(newest[at]) > _number(call):
                yield self._violation(
                    Rule.VERSION_WENT_BACK,
                    f"version {_number(call)} after version {_number(newest[at])}",
                    newest[at],
                    call,
                )

    def _known_by_s(self, call: Call) -> float:
        return call.returned_s + (self._swap_s if call.kind is Kind.READ else 0.0)


def _number(call: Call) -> int:
    assert call.store_version is not None
    return call.store_version
