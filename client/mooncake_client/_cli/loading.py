"""A load for a cluster: workers that mix gets, puts and existence checks over a set of keys."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from mooncake_client._cli.blocks import block_bytes
from mooncake_client._cli.figures import Durations
from mooncake_store.errors import CapacityError, InvalidArgument, PutUnderWay, StoreError

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

OPERATIONS: Final = ("get", "put", "exists")
"""What a mix may consist of."""


class LoadStore(Protocol):
    """What a load needs of a store; ``_cli.target`` gives it for a ``Client``."""

    def fetch(self, keys: list[str], buffers: list[bytearray]) -> list[bool]:
        """Read each object into its buffer and say which were there."""
        ...

    def replace(self, keys: list[str], values: list[bytes]) -> list[StoreError | None]:
        """Store new versions and say of each what kept it out."""
        ...

    def exists(self, keys: list[str]) -> list[bool]:
        """Say which of the keys are readable."""
        ...


@dataclass(frozen=True, slots=True)
class Load:
    """What every worker does.

    Attributes:
        mix: {operation: weight}.
        sizes: Bytes of an object; key number n has size number n modulo their count.
        keys: Names of the working set.
        batch: Keys of one call.
        seconds: How long to go on.
    """

    mix: dict[str, float]
    sizes: tuple[int, ...]
    keys: tuple[str, ...]
    batch: int
    seconds: float


@dataclass(slots=True)
class OperationTally:
    """What happened to one kind of operation."""

    calls: Durations = field(default_factory=Durations)
    keys: int = 0
    bytes: int = 0
    misses: int = 0
    refusals: int = 0
    """Puts that a full or busy store turned down."""

    def merge(self, other: OperationTally) -> None:
        """Add what another worker saw."""
        self.calls.merge(other.calls)
        self.keys += other.keys
        self.bytes += other.bytes
        self.misses += other.misses
        self.refusals += other.refusals


class LoadWorker:
    """One caller: no think time, one call after the other.

    Not safe for use by several threads; each has its own.
    """

    def __init__(self, store: LoadStore, load: Load, seed: int) -> None:
        self.tallies = {operation: OperationTally() for operation in load.mix}
        self._store = store
        self._load = load
        self._random = random.Random(seed)  # noqa: S311 - a load has no secrets
        self._buffers = [bytearray(max(load.sizes)) for _ in range(load.batch)]
        self._values = {size: block_bytes(f"bench/{size}", size) for size in load.sizes}

    def run(self, stop: threading.Event) -> None:
        """Load the store until the time is over or ``stop`` is set."""
        operations, weights = zip(*self._load.mix.items(), strict=True)
        until_s = time.monotonic() + self._load.seconds
        while time.monotonic() < until_s and not stop.is_set():
            (operation,) = self._random.choices(operations, weights)
            self._call(operation)

    def _call(self, operation: str) -> None:
        load, tally = self._load, self.tallies[operation]
        numbers = [self._random.randrange(len(load.keys)) for _ in range(load.batch)]
        keys = [load.keys[number] for number in numbers]
        sizes = [load.sizes[number % len(load.sizes)] for number in numbers]
        tally.keys += len(keys)
        if operation == "put":
            self._put(tally, keys, [self._values[size] for size in sizes])
            return
        started_s = time.perf_counter()
        if operation == "get":
            found = self._store.fetch(keys, self._buffers)
        else:
            found = self._store.exists(keys)
        tally.calls.add(time.perf_counter() - started_s)
        tally.misses += len(keys) - sum(found)
        if operation == "get":
            tally.bytes += sum(size for size, there in zip(sizes, found, strict=True) if there)

    def _put(self, tally: OperationTally, keys: list[str], values: list[bytes]) -> None:
        started_s = time.perf_counter()
        problems = self._store.replace(keys, values)
        tally.calls.add(time.perf_counter() - started_s)
        for value, problem in zip(values, problems, strict=True):
            if problem is None:
                tally.bytes += len(value)
            elif isinstance(problem, CapacityError | PutUnderWay):
                tally.refusals += 1
            else:
                raise problem


def parse_mix(text: str) -> dict[str, float]:
    """Return the weights that ``get=9,put=1`` names.

    Raises:
        InvalidArgument: An unknown operation, no weight, or nothing at all.
    """
    mix: dict[str, float] = {}
    for part in text.split(","):
        name, _, weight = part.strip().partition("=")
        if name not in OPERATIONS or name in mix or not weight.isdecimal():
            raise InvalidArgument(f"--mix {text!r}: write it like get=9,put=1,exists=2")
        mix[name] = float(weight)
    if not sum(mix.values()):
        raise InvalidArgument(f"--mix {text!r}: no operation has any weight")
    return {name: weight for name, weight in mix.items() if weight}


def merged(workers: Sequence[LoadWorker]) -> dict[str, OperationTally]:
    """Return what all workers saw together."""
    total = {operation: OperationTally() for operation in workers[0].tallies}
    for worker in workers:
        for operation, tally in worker.tallies.items():
            total[operation].merge(tally)
    return total
