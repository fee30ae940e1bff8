"""What several fault tests need."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any, Final

from mooncake_client import Client
from mooncake_store.errors import StoreError
from mooncake_store.testing import payload
from tests.stopwatch import Stopwatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mooncake_store.testing import ProcessCluster

KIB: Final = 1 << 10
MIB: Final = 1 << 20

GRACE_S: Final = 0.5
"""How much later than its deadline a call may end, as field report 033 allows."""

QUICK: Final = {"suspect-after": "1s", "dead-after": "2.5s", "recovery-grace": "1s"}
"""The master's options in tests about nodes that fail: "node time-out 2-3 s"."""


def tcp(cluster: ProcessCluster, **options: Any) -> Client:
    """Return a client that reaches nodes over TCP only: through their proxies, if they have any."""
    return Client(cluster.address, transport="tcp", **options)


def fill(client: Client, keys: Iterable[str], size: int, **options: Any) -> list[str]:
    """Put version 1 of every key, in batches; return the keys that were acknowledged.

    A busy machine has its time: callers take for granted that what there is room for is put.
    """
    options.setdefault("deadline_s", 30.0)
    listed = list(keys)
    acknowledged: list[str] = []
    step = max(1, min(256, 2 * MIB // max(1, size)))
    for at in range(0, len(listed), step):
        part = listed[at : at + step]
        results = client.put_many([(key, payload(key, 1, size)) for key in part], **options)
        acknowledged += [
            key
            for key, result in zip(part, results, strict=True)
            if not isinstance(result, StoreError)
        ]
    return acknowledged


def names(prefix: str, count: int) -> list[str]:
    """Return ``count`` keys."""
    return [f"{prefix}-{number:06d}" for number in range(count)]


def used_bytes(cluster: ProcessCluster) -> int:
    """Return the bytes in use on all nodes, as the master has them."""
    return sum(node.used_bytes for node in cluster.status().nodes)


def capacity_bytes(cluster: ProcessCluster) -> int:
    """Return the bytes that all nodes pool."""
    return sum(node.capacity_bytes for node in cluster.status().nodes)


def counter(cluster: ProcessCluster, name: str) -> int:
    """Return a counter of the master, 0 where it has none of that name."""
    return cluster.status().counters.get(name, 0)


def evicted(cluster: ProcessCluster) -> int:
    """Return how many objects were evicted."""
    return counter(cluster, 'mooncake_master_objects_gone_total{reason="evicted"}')


def turned_away(cluster: ProcessCluster) -> int:
    """Return how many objects left memory without being on a disk, because none took them in time.

    That is none as a rule; a disk that others write to as well may have been too busy.
    """
    series = re.compile(r'mooncake_master_copies_total\{outcome="(\w+)",purpose="demotion"\}')
    return sum(
        count
        for name, count in cluster.status().counters.items()
        if (found := series.fullmatch(name)) and found[1] not in {"done", "present"}
    )


class Timed:
    """How a call ended, and when.

    Attributes:
        result: What it returned, or the ``StoreError`` it raised.
        took_s: How long it took, as a ``Stopwatch`` has it.
    """

    def __init__(self, call: Callable[[], Any]) -> None:
        watch = Stopwatch()
        try:
            self.result: Any = call()
        except StoreError as error:
            self.result = error
        self.took_s = watch.spent_s()

    @property
    def failed(self) -> bool:
        """Whether it raised."""
        return isinstance(self.result, StoreError)


class Background:
    """A loop in a thread, until the block ends; what it raised is raised there.

    with Background(lambda: client.put(...)) as writer:
        ...
    assert writer.rounds > 10
    """

    def __init__(self, work: Callable[[], object], *, pause_s: float = 0.0) -> None:
        self.rounds = 0
        self._work = work
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Background:  # noqa: PYI034 - never a subclass
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "the background work does not end"
        if self._error is not None and error is None:
            raise self._error

    @property
    def has_failed(self) -> bool:
        """Whether it has raised."""
        return self._error is not None

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._work()
                self.rounds += 1
                if self._pause_s:
                    self._stop.wait(self._pause_s)
        except BaseException as error:  # noqa: BLE001 - raised again where the block ends
            self._error = error


def together(works: Iterable[Callable[[], Any]], join_s: float = 120.0) -> list[Any]:
    """Run all at once in threads; return results, or the exceptions in their place."""
    listed = list(works)
    results: list[Any] = [None] * len(listed)
    barrier = threading.Barrier(len(listed))

    def run(at: int, work: Callable[[], Any]) -> None:
        barrier.wait(60)
        try:
            results[at] = work()
        except Exception as error:  # noqa: BLE001 - handed to the test
            results[at] = error

    threads = [
        threading.Thread(target=run, args=(at, work), daemon=True) for at, work in enumerate(listed)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(join_s)
        assert not thread.is_alive(), "a call does not end"
    return results
