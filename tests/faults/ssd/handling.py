"""What tests do with stores: open them, fill them, read everything back, wait for a state."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mooncake_storage_node.ssd import Options, State, Store
from mooncake_store.deadline import Deadline
from mooncake_store.errors import StoreError
from mooncake_store.limits import KIB, MIB
from mooncake_store.testing import wait_until
from tests.faults.ssd.extents import make_extent
from tests.faults.ssd.faulty import FaultyFiles

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from mooncake_storage_node.ssd import Statistics

WAIT_S = 30.0
QUICK: dict[str, Any] = {
    "probe_s": 0.05,
    "stall_s": 20.0,
    "batch_bytes": 512 * KIB,
    "staging_bytes": 16 * MIB,
}


@contextmanager
def opened(folder: Path, capacity: int = 64 * MIB, **options: Any) -> Iterator[Store]:
    """Open a store that looks at its disk often, and close it in the end.

    Its index is in this process, which starts faster, unless ``files`` is given.
    """
    own = [name for name in ("files", "on_dropped", "on_change", "gone") if name in options]
    arguments: dict[str, Any] = {name: options.pop(name) for name in own}
    arguments.setdefault("files", FaultyFiles())
    store = Store.open(folder, capacity, Options(**(QUICK | options)), **arguments)
    try:
        yield store
    finally:
        store.close()


def fill(
    store: Store, versions: Iterable[int], size: int, *, epoch: int = 1, slot: int = 1
) -> dict[int, bytes]:
    """Store objects, all at once; return {version: extent} of those that are on the disk."""
    made = {v: make_extent(f"key-{v}", v, size, epoch=epoch, slot=slot) for v in versions}
    futures = {v: store.write(memoryview(data), v) for v, data in made.items()}
    return {v: made[v] for v, future in futures.items() if future.result(WAIT_S).location >= 0}


def read_whole(store: Store, version: int, size: int) -> bytes:
    """Return a verified extent; the errors of ``Store.load``."""
    target = bytearray(size)
    location = store.find(version)
    store.load(location, version, memoryview(target), Deadline(WAIT_S)).result(WAIT_S)
    return bytes(target)


def outcome(store: Store, version: int, expected: bytes) -> str:
    """Read an extent: ``ok``, or the code of the error. Never returns for wrong bytes."""
    try:
        found = read_whole(store, version, len(expected))
    except StoreError as error:
        return error.code
    assert found == expected, f"version {version}: wrong bytes were delivered"
    return "ok"


def outcomes(store: Store, data: dict[int, bytes]) -> dict[int, str]:
    """Return {version: outcome}."""
    return {version: outcome(store, version, expected) for version, expected in data.items()}


def await_state(store: Store, state: State, contains: str = "") -> str:
    """Wait until the store is in a state for a reason; return the reason."""
    seen = store.state()

    def is_so() -> bool:
        nonlocal seen
        seen = store.state()
        return seen[0] is state and contains in seen[1]

    wait_until(is_so, WAIT_S, what=f"the store becomes {state.value}")
    return seen[1]


def check_counts(found: Statistics) -> None:
    """Everything that was stored is there or has gone under a name."""
    left = found.evicted + found.removed + found.cleared + sum(found.lost.values())
    assert found.stored + found.entries_found == found.entries + left, found
