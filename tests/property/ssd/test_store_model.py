"""A store equals an obvious model: a dictionary that may forget, but only aloud.

Everything that was stored is read back exactly or was reported as dropped, removed or cleared;
what was removed or cleared never comes back, reopenings included.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mooncake_storage_node.ssd import PRESENT, Options, Span, Store
from mooncake_store import extent
from mooncake_store.deadline import Deadline
from mooncake_store.errors import StaleExtent
from mooncake_store.limits import KIB, MIB
from mooncake_store.testing import wait_until
from tests.faults.ssd.extents import make_extent
from tests.faults.ssd.faulty import FaultyFiles

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from mooncake_storage_node.ssd import Dropped

SHM = Path("/dev/shm")  # noqa: S108 - a file system in memory: thousands of syncs cost nothing
CAPACITY = 32 * MIB
OPTIONS = Options(batch_bytes=256 * KIB, staging_bytes=8 * MIB, readers=3, carry_share=0.5)
WAIT_S = 60.0

pytestmark = pytest.mark.slow


class StoreModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir=SHM if SHM.is_dir() else None))
        self.model: dict[int, tuple[int, bytes]] = {}
        """{version: location and extent} of what should be readable unless it was dropped."""
        self.gone: set[int] = set()
        self.dropped: set[int] = set()
        self.epochs = {1: 1, 2: 1}
        self.next = 1
        self.store: Store | None = None

    @initialize(direct=st.booleans())
    def begin(self, direct: bool) -> None:  # noqa: FBT001 - hypothesis passes what it drew
        self.files = FaultyFiles(direct=direct)
        self.open()

    def open(self) -> Store:
        self.store = Store.open(
            self.folder, CAPACITY, OPTIONS, files=self.files, on_dropped=self.on_dropped
        )
        return self.store

    def on_dropped(self, dropped: Sequence[Dropped]) -> None:
        self.dropped |= {one.version for one in dropped}

    def await_dropped(self, versions: AbstractSet[int]) -> None:
        """Make sure that these were reported: a thread of the store may be about to do it."""
        wait_until(lambda: versions <= self.dropped, WAIT_S, what=f"{versions} were dropped")

    @property
    def live(self) -> Store:
        assert self.store is not None
        return self.store

    def put(self, size: int, slot: int) -> int:
        version = self.next
        self.next += 1
        data = make_extent(f"key-{version}", version, size, slot=slot, epoch=self.epochs[slot])
        written = self.live.write(memoryview(data), version).result(WAIT_S)
        self.model[version] = (written.location, data)
        return version

    @rule(
        size=st.sampled_from([0, 1, 447, 448, 4095, 4096, 4097, 256 * KIB + 1, 700 * KIB]),
        slot=st.integers(1, 2),
    )
    def write(self, size: int, slot: int) -> None:
        self.put(size, slot)

    @rule(count=st.integers(10, 50))
    def burst(self, count: int) -> None:
        futures = {}
        for _ in range(count):
            version = self.next
            self.next += 1
            data = make_extent(f"key-{version}", version, 500 * KIB, epoch=self.epochs[1])
            futures[version] = (self.live.write(memoryview(data), version), data)
        for version, (future, data) in futures.items():
            self.model[version] = (future.result(WAIT_S).location, data)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def write_again(self, data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(sorted(self.model)))
        location, source = self.model[version]
        written = self.live.write(memoryview(source), version).result(WAIT_S)
        if written.outcome == PRESENT:
            assert written.location == location
        else:
            self.await_dropped({version})
            self.dropped.discard(version)
            self.model[version] = (written.location, source)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), by_location=st.booleans(), count=st.integers(1, 4))
    def remove(self, data: st.DataObject, by_location: bool, count: int) -> None:  # noqa: FBT001 - hypothesis passes what it drew
        versions = data.draw(
            st.lists(st.sampled_from(sorted(self.model)), min_size=1, max_size=count, unique=True)
        )
        items = [(self.model[v][0] if by_location else -1, v) for v in versions]
        self.live.remove(items).result(WAIT_S)
        for version in versions:
            del self.model[version]
            self.gone.add(version)

    @rule(slot=st.integers(1, 2))
    def clear(self, slot: int) -> None:
        self.epochs[slot] += 1
        self.live.set_epochs({slot: self.epochs[slot]}).result(WAIT_S)
        for version, (_, source) in list(self.model.items()):
            if extent.unpack_header(source).slot == slot:
                del self.model[version]
                self.gone.add(version)

    @rule(slot=st.integers(1, 2))
    def write_late(self, slot: int) -> None:
        """A write of an epoch that is over is refused, restarts or not."""
        version = self.next
        self.next += 1
        epoch = self.epochs[slot] - 1
        data = make_extent(f"key-{version}", version, 10, slot=slot, epoch=epoch)
        if epoch:
            with pytest.raises(StaleExtent):
                self.live.write(memoryview(data), version)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def read_range(self, data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(sorted(self.model)))
        location, source = self.model[version]
        start = data.draw(st.integers(0, len(source)))
        length = data.draw(st.integers(0, len(source) - start))
        target = memoryview(bytearray(length))
        cut = length // 3
        transfer = self.live.read_into(
            Span(location, version, start, length), [target[:cut], target[cut:]], Deadline(WAIT_S)
        )
        try:
            transfer.result(WAIT_S)
        except StaleExtent:
            self.await_dropped({version})
        else:
            assert target == source[start : start + length]

    @rule(kill=st.booleans())
    def reopen(self, kill: bool) -> None:  # noqa: FBT001 - hypothesis passes what it drew
        if kill:  # As far as a process can do that to itself: nothing is said to the index.
            self.live._volume.ledger.stop("killed")  # type: ignore[union-attr]  # it is open
        self.live.close()
        self.open()

    @rule()
    def everything_is_listed_and_exact(self) -> None:
        listed: dict[int, int] = {}
        cursor = 0
        while cursor >= 0:
            page = self.live.list_page(cursor, 7).result(WAIT_S)
            for entry in page.entries:
                assert entry.key == f"key-{entry.version}"
                listed[entry.version] = entry.offset
            cursor = page.cursor
        assert not listed.keys() & self.gone
        assert listed.keys() <= self.model.keys()
        self.await_dropped(self.model.keys() - listed.keys())
        for version, location in listed.items():
            expected, source = self.model[version]
            assert location == expected
            target = memoryview(bytearray(len(source)))
            try:
                self.live.load(location, version, target, Deadline(WAIT_S)).result(WAIT_S)
            except StaleExtent:
                self.await_dropped({version})
            else:
                assert target == source

    @invariant()
    def what_is_gone_stays_gone(self) -> None:
        if self.store is not None:
            assert all(self.store.find(version) < 0 for version in list(self.gone)[-20:] if
                       version not in self.cleared_late())  # fmt: skip

    def cleared_late(self) -> set[int]:
        """Versions of a cleared namespace are unreadable at once and forgotten soon after."""
        return {v for v in self.gone if self.store is not None and self.store.find(v) >= 0 and
                self.unreadable(v)}  # fmt: skip

    def unreadable(self, version: int) -> bool:
        try:
            self.live.size_of(self.live.find(version), version)
        except StaleExtent:
            return True
        return False

    @invariant()
    def nothing_is_counted_twice_or_not_at_all(self) -> None:
        if self.store is None:
            return
        found = self.store.statistics()
        assert found.disk_bytes <= CAPACITY
        left = found.evicted + found.removed + found.cleared + sum(found.lost.values())
        assert found.stored + found.entries_found == found.entries + left
        assert not found.lost

    def teardown(self) -> None:
        if self.store is not None:
            self.store.close()
        shutil.rmtree(self.folder, ignore_errors=True)


StoreModel.TestCase.settings = settings(
    max_examples=25,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


TestStore = StoreModel.TestCase
