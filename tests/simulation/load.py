"""What the clients of a schedule do: a random mix of every operation, recorded in the history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mooncake_client._core import asking, reading, session, writing
from mooncake_client._core.offers import Offer, PutOptions
from mooncake_client._core.wants import Want
from mooncake_client._results import PutResult
from mooncake_store.errors import (
    ObjectTooLarge,
    ReplicasImpossible,
    StoreError,
    VersionConflict,
)
from mooncake_store.testing import NEVER, Outcome, Record, payload, seeded
from mooncake_store.types import MissReason
from tests.simulation.client import Failed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mooncake_client._core.effects import Operation
    from mooncake_client._results import PrefixMatch, ProbeResult
    from tests.simulation.client import SimClient
    from tests.simulation.world import World

REFUSALS = (ObjectTooLarge, ReplicasImpossible, VersionConflict)
"""Errors that say for certain that nothing was and will be written."""

DEADLINE_S = 1.5
DURABLE_SHARE = 0.3
"""Of the puts of single objects, where there are disks."""
HOLD_S_MAX = 1.0
"""Longest hold that is asked for."""
_CALLS_AT_ONCE = 8
"""An operation is recorded as at most this many calls, one for each of its keys."""


class Load:
    """One client's random calls, one after the other until ``stop``.

    Attributes:
        is_idle: No call is under way.
    """

    def __init__(self, world: World, client: SimClient, seed: int, keys: list[str]) -> None:
        self._world = world
        self._client = client
        self._keys = keys
        self._random = seeded(seed, "load", client.name)
        self._stopped = False
        self.is_idle = True
        self._actions: list[tuple[int, Callable[[], None]]] = [
            (20, lambda: self._put(replace=False)),
            (20, lambda: self._put(replace=True)),
            (6, self._put_many),
            (25, self._get),
            (10, self._get_many),
            (6, self._get_range),
            (8, self._remove),
            (1, self._clear),
            (4, self._exists),
            (5, self._probe),
            (4, self._match),
        ]

    def begin(self) -> None:
        """Make the first call of this life of the client."""
        self.is_idle = True
        self._next()

    def stop(self) -> None:
        """Make no more calls."""
        self._stopped = True

    def _next(self) -> None:
        self.is_idle = True
        if not self._stopped:
            self._client.later(self._random.uniform(0.0, 0.04), self._act)

    def _act(self) -> None:
        if self._stopped:
            return
        self.is_idle = False
        weights = [weight for weight, _ in self._actions]
        ((_, action),) = self._random.choices(self._actions, weights)
        action()

    def _run(self, operation: Operation[Any], ended: Callable[[Any], None]) -> None:
        pauses = self._client.pauses
        mine = [
            call
            for call in self._world.history.calls[-_CALLS_AT_ONCE:]
            if call.client == self._client.name and call.returned_s == NEVER
        ]

        def over(result: object) -> None:
            if self._client.pauses != pauses:
                for call in mine:
                    call.deadline_s = NEVER  # a stopped caller cannot be in time
            ended(result)
            if self._client.session.is_stale:
                reopened = session.reopen_namespace(self._client.session)
                self._client.run(reopened, DEADLINE_S, lambda _result: self._next())
            else:
                self._next()

        self._client.run(operation, DEADLINE_S, over)

    def _key(self) -> str:
        return self._random.choice(self._keys)

    def _some_keys(self) -> list[str]:
        return self._random.sample(self._keys, self._random.randint(2, min(5, len(self._keys))))

    # --- writing --------------------------------------------------------------------------------

    def _offer(self, key: str) -> tuple[Offer, Record]:
        version = self._world.next_version()
        size = self._random.choice((16, 100, 511, 700, 2000, 5000, 9000))
        record = self._world.history.write(
            self._client.name, key, version, size=size, deadline_s=DEADLINE_S
        )
        return Offer(key, [memoryview(payload(key, version, size))]), record

    def _put(self, *, replace: bool) -> None:
        offer, record = self._offer(self._key())
        replicas = self._random.choice((1, 1, 2))
        durable = bool(self._world.plan.disk_bytes) and self._random.random() < DURABLE_SHARE
        options = PutOptions(replicas, replace, durable=durable)
        self._start_put([offer], [record], options)

    def _put_many(self) -> None:
        pairs = [self._offer(key) for key in self._some_keys()]
        together = self._random.random() < 0.5
        options = PutOptions(1, self._random.random() < 0.5, together)
        self._start_put([offer for offer, _ in pairs], [record for _, record in pairs], options)

    def _start_put(self, offers: list[Offer], records: list[Record], options: PutOptions) -> None:
        retries = self._client.session.counters.retries

        def ended(result: Failed | None) -> None:
            at_once = self._client.session.counters.retries == retries
            for offer, record in zip(offers, records, strict=True):
                outcome = result.error if isinstance(result, Failed) else offer.outcome
                conclude_put(record, outcome, at_once=at_once and offer.tries <= 1)
                if options.durable and record.call.outcome is Outcome.DONE:
                    self._world.durable.add(record.call.number)

        self._run(writing.put(self._client.session, offers, options), ended)

    def _remove(self) -> None:
        keys = [self._key()] if self._random.random() < 0.6 else self._some_keys()
        history = self._world.history
        records = [history.remove(self._client.name, key, deadline_s=DEADLINE_S) for key in keys]

        def ended(result: Failed | list[bool | StoreError]) -> None:
            outcomes: Sequence[bool | StoreError] = (
                [result.error] * len(keys) if isinstance(result, Failed) else result
            )
            for record, outcome in zip(records, outcomes, strict=True):
                if isinstance(outcome, StoreError):
                    record.unknown(outcome.code)
                else:
                    record.done()

        self._run(asking.remove(self._client.session, keys), ended)

    def _clear(self) -> None:
        record = self._world.history.clear(self._client.name, deadline_s=DEADLINE_S)

        def ended(result: Failed | None) -> None:
            if isinstance(result, Failed):
                record.unknown(result.error.code)
            else:
                record.done()

        self._run(session.clear_namespace(self._client.session), ended)

    # --- reading --------------------------------------------------------------------------------

    def _get(self) -> None:
        self._read([Want(self._key())], self._random.choice((0, 0, 0, 200)))

    def _get_many(self) -> None:
        self._read([Want(key) for key in self._some_keys()])

    def _get_range(self) -> None:
        start, length = self._random.choice(((0, 50), (10, 100), (64, 20)))
        self._read([Want(self._key(), None, start, length)])

    def _read(self, wants: list[Want], wait_ms: int = 0) -> None:
        history = self._world.history
        records = [
            history.read(self._client.name, want.key, deadline_s=DEADLINE_S) for want in wants
        ]

        def ended(result: Failed | None) -> None:
            for want, record in zip(wants, records, strict=True):
                outcome = result.error if isinstance(result, Failed) else want.outcome
                conclude_read(record, want, outcome, self._client)

        self._run(reading.read(self._client.session, wants, wait_ms), ended)

    # --- asking ---------------------------------------------------------------------------------

    def _presence(self, key: str) -> Record:
        return self._world.history.presence(self._client.name, key, deadline_s=DEADLINE_S)

    def _exists(self) -> None:
        keys = self._some_keys()
        records = [self._presence(key) for key in keys]

        def ended(result: Failed | list[bool]) -> None:
            found = [False] * len(keys) if isinstance(result, Failed) else result
            for record, is_there in zip(records, found, strict=True):
                record.done(found=is_there)

        self._run(asking.exists(self._client.session, keys), ended)

    def _probe(self) -> None:
        keys = self._some_keys()
        records = [self._presence(key) for key in keys]
        hold_s = self._random.choice((0.0, 0.3, HOLD_S_MAX))
        begun_s = self._world.clock.now_s

        def ended(result: list[ProbeResult] | Failed) -> None:
            for index, record in enumerate(records):
                found = not isinstance(result, Failed) and result[index].readable
                if found and hold_s:
                    record.held(begun_s + hold_s)
                record.done(found=found)

        self._run(asking.probe(self._client.session, keys, hold_s, ""), ended)

    def _match(self) -> None:
        keys = self._some_keys()
        records = [self._presence(key) for key in keys]
        begun_s = self._world.clock.now_s

        def ended(result: PrefixMatch | Failed) -> None:
            count = 0 if isinstance(result, Failed) else result.count
            for index, record in enumerate(records):
                if index < count and not isinstance(result, Failed):
                    record.held(begun_s + result.hold_s)
                record.done(found=index < count)

        self._run(asking.match_prefix(self._client.session, keys, 0.5, ""), ended)


def conclude_put(record: Record, outcome: object, *, at_once: bool) -> None:
    """Write down how a put ended.

    Where it was not done ``at_once`` an earlier try may have had an effect: a value that is said
    to be there already may be its own.
    """
    if isinstance(outcome, StoreError) or outcome is None:
        if at_once and isinstance(outcome, REFUSALS):
            record.refused(outcome.code)
        else:
            record.unknown(getattr(outcome, "code", "no outcome"))
        return
    assert isinstance(outcome, PutResult)
    if outcome.created:
        record.done(store_version=outcome.version)
    elif at_once:
        record.already_there()
    else:
        record.unknown("already there")


def conclude_read(record: Record, want: Want, outcome: object, client: SimClient) -> None:
    """Write down how a read of one key ended."""
    if outcome is None:
        record.missed(MissReason(client.miss_reasons[want.key]).name.lower())
    elif isinstance(outcome, StoreError):
        record.unknown(outcome.code)
    else:
        assert want.fresh is not None
        assert want.entry is not None
        record.returned(
            want.fresh,
            start=want.start,
            size=want.entry.identity.length,
            store_version=want.entry.identity.version,
        )
