"""Replay of a request trace with real bytes: what an engine does, and a check of every byte.

For each request an engine asks how much of its prefix chain is there, fetches the blocks that
are, and puts the others. So does a worker here, one round trip for each of the three, with blocks
whose bytes follow from their keys.
"""

from __future__ import annotations

import functools
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from mooncake_client._cli.blocks import block_bytes, wrong_bytes
from mooncake_client._cli.crew import run_together
from mooncake_client._cli.figures import Durations
from mooncake_store.errors import CapacityError, PutUnderWay, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mooncake_store.traces import Request

HOLD_S: Final = 5.0
"""How long a matched prefix stays protected until it is fetched. The fetch follows at once, so
this only has to outlast a stall of the client; longer holds keep room from other requests."""


class BlockStore(Protocol):
    """What a replay needs of a store; ``_cli.target`` gives it for a ``Client``."""

    def match(self, keys: list[str], hold_s: float) -> int:
        """Return how many leading keys are readable, and hold those."""
        ...

    def fetch(self, keys: list[str], buffers: list[bytearray]) -> list[bool]:
        """Read each block into its buffer and say which of them were there, whole."""
        ...

    def put(self, keys: list[str], blocks: list[bytes]) -> list[StoreError | None]:
        """Store blocks and say of each what kept it out."""
        ...


@dataclass(slots=True)
class Tally:
    """What a replay saw."""

    requests: int = 0
    blocks: int = 0
    """Blocks looked up: all ids of all requests."""
    block_hits: int = 0
    """Blocks that were there, wherever in their chain."""
    prefix_hits: int = 0
    """Blocks of the leading runs that were there."""
    wrong_bytes: int = 0
    lost_under_hold: int = 0
    """Blocks that the prefix match promised and the fetch did not find."""
    bytes_fetched: int = 0
    bytes_put: int = 0
    refusals: dict[str, int] = field(default_factory=dict)
    """{error code: puts that were refused with it}"""
    gets: Durations = field(default_factory=Durations)
    """One for each request that found something: the fetch of all its blocks."""
    puts: Durations = field(default_factory=Durations)
    """One for each request that missed something: the put of all its missing blocks."""

    def merge(self, other: Tally) -> None:
        """Add what another worker saw."""
        for name in (
            "requests", "blocks", "block_hits", "prefix_hits", "wrong_bytes",
            "lost_under_hold", "bytes_fetched", "bytes_put",
        ):  # fmt: skip
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for code, count in other.refusals.items():
            self.refusals[code] = self.refusals.get(code, 0) + count
        self.gets.merge(other.gets)
        self.puts.merge(other.puts)


class Worker:
    """Replays requests, one after the other, through one store.

    Not safe for use by several threads; each has its own.
    """

    def __init__(self, store: BlockStore, prefix: str, size: int) -> None:
        """Make a worker whose blocks are named ``prefix`` and the id, ``size`` bytes each."""
        self.tally = Tally()
        self._store = store
        self._prefix = prefix
        self._size = size
        self._buffers: list[bytearray] = []

    def replay(self, request: Request) -> None:
        """Match, fetch and put the blocks of one request."""
        keys = [f"{self._prefix}{number}" for number in request.hash_ids]
        self.tally.requests += 1
        self.tally.blocks += len(keys)
        if keys:
            matched = self._store.match(keys, HOLD_S)
            self.tally.prefix_hits += matched
            self._put(self._fetch(keys, matched))

    def _fetch(self, keys: list[str], matched: int) -> list[str]:
        """Read and check what is there; return the keys that are not."""
        while len(self._buffers) < len(keys):
            self._buffers.append(bytearray(self._size))
        started_s = time.perf_counter()
        found = self._store.fetch(keys, self._buffers[: len(keys)])
        took_s = time.perf_counter() - started_s
        hits = sum(found)
        self.tally.block_hits += hits
        self.tally.bytes_fetched += hits * self._size
        self.tally.lost_under_hold += matched - sum(found[:matched])
        if hits:
            self.tally.gets.add(took_s)
        for key, buffer, there in zip(keys, self._buffers, found, strict=False):
            if there:
                self.tally.wrong_bytes += wrong_bytes(buffer, key)
        return [key for key, there in zip(keys, found, strict=True) if not there]

    def _put(self, keys: list[str]) -> None:
        if not keys:
            return
        blocks = [block_bytes(key, self._size) for key in keys]
        started_s = time.perf_counter()
        problems = self._store.put(keys, blocks)
        self.tally.puts.add(time.perf_counter() - started_s)
        for problem in problems:
            if problem is None:
                self.tally.bytes_put += self._size
            elif isinstance(problem, CapacityError | PutUnderWay):
                self.tally.refusals[problem.code] = self.tally.refusals.get(problem.code, 0) + 1
            else:
                raise problem


def run_workers(
    workers: Sequence[Worker], requests: Iterable[Request], done: Callable[[], None]
) -> None:
    """Replay the requests in their order, each by the worker that is free first.

    ``done`` is called after each request, by any thread. The first failure of a worker ends all.
    """
    lock = threading.Lock()
    waiting = iter(requests)

    def take() -> Request | None:
        with lock:
            return next(waiting, None)

    def work(worker: Worker, stop: threading.Event) -> None:
        while not stop.is_set() and (request := take()) is not None:
            worker.replay(request)
            done()

    run_together([functools.partial(work, worker) for worker in workers])
