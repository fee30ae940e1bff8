"""kill -9 at random points of writing, evicting, removing and opening: nothing lies afterwards."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mooncake_storage_node.ssd import State
from mooncake_store.errors import StaleExtent
from mooncake_store.testing import seeded, wait_until
from mooncake_store.testing.waiting import ConditionNotMet
from tests.faults.scale import scaled, show
from tests.faults.ssd import crashing
from tests.faults.ssd.crashing import CAPACITY, extent_of, slot_of
from tests.faults.ssd.handling import WAIT_S, check_counts, opened, outcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mooncake_storage_node.ssd import Dropped, Store

ROUNDS = int(os.environ.get("MOONCAKE_SSD_CRASH_ROUNDS", scaled("100", "500")))
BUDGET_S = float(os.environ.get("MOONCAKE_SSD_CRASH_S", scaled("15", "900")))
"""Of each kind of file system. More: MOONCAKE_SSD_CRASH_ROUNDS=1000 MOONCAKE_SSD_CRASH_S=1000."""

SHM = Path("/dev/shm")  # noqa: S108 - a file system in memory


@dataclass
class Story:
    """What a row of killed processes said."""

    begun: dict[int, int] = field(default_factory=dict)
    """{version: epoch it was written under}"""
    acknowledged: set[int] = field(default_factory=set)
    dropped: set[int] = field(default_factory=set)
    removing: set[int] = field(default_factory=set)
    removed: set[int] = field(default_factory=set)
    clearing: int = 1
    cleared: int = 1

    def hear(self, text: str) -> None:
        for line in text.splitlines():
            word, *numbers = line.split()
            values = [int(number) for number in numbers]
            match word:
                case "S":
                    self.begun[values[0]] = values[1]
                case "s":
                    self.acknowledged.add(values[0])
                case "D":
                    self.dropped.add(values[0])
                case "R":
                    self.removing.add(values[0])
                case "r":
                    self.removed.add(values[0])
                case "E":
                    self.clearing = values[1]
                case "e":
                    self.cleared = values[1]

    def note_dropped(self, dropped: Sequence[Dropped]) -> None:
        """Keeping room goes on when a store is opened."""
        self.dropped |= {one.version for one in dropped}

    def must_be_gone(self, version: int) -> bool:
        cleared = slot_of(version) == 2 and self.begun[version] < self.cleared
        return version in self.removed or cleared

    def must_be_there(self, version: int) -> bool:
        may_be_cleared = slot_of(version) == 2 and self.begun[version] < self.clearing
        may_be_gone = version in self.dropped | self.removing or may_be_cleared
        return version in self.acknowledged and not may_be_gone


def run_and_kill(folder: Path, story: Story, seed: int) -> None:
    """Let a process use the store and kill it: while it opens, or some time afterwards."""
    generator = seeded(seed)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.faults.ssd.crashing"])
    journal = folder.with_name(f"journal-{seed}")
    journal.touch()
    first = max(story.begun, default=0) + 1
    epochs = {1: 1, 2: story.clearing}
    child = context.Process(
        target=crashing.work, args=(str(folder), str(journal), seed, first, epochs)
    )
    child.start()
    if generator.random() < 0.8:
        wait_until(lambda: "O" in journal.read_text(), WAIT_S, what="the store is open")
    time.sleep(generator.choice([0.0, 0.02, 0.05, 0.1, 0.2, 0.4]))
    child.kill()
    child.join()
    story.hear(journal.read_text())
    journal.unlink()


def check_everything(store: Store, story: Story) -> int:
    """Compare a store that was opened after a kill with what was said; return what is readable."""
    assert store.state()[0] is State.READY
    good = 0
    for version, epoch in story.begun.items():
        found = outcome(store, version, extent_of(version, epoch))
        good += found == "ok"
        if story.must_be_gone(version):
            assert found == StaleExtent.code, f"{version} came back"
        elif story.must_be_there(version):
            assert found == "ok", f"{version} was acknowledged and is gone: {found}"
        else:
            assert found in {"ok", StaleExtent.code}
    found_now = store.statistics()
    assert not found_now.lost
    check_counts(found_now)
    return good


def check_files(folder: Path, store: Store) -> None:
    """What lies in the directory is what the store accounts for (FR-055).

    Keeping room goes on after a store was opened: a file may be there that is not counted yet.
    """
    seen: list[object] = []

    def agrees() -> bool:
        found = store.statistics()
        files = [path for path in folder.rglob("*") if path.is_file()]
        taken = sum(path.stat().st_blocks * 512 for path in files)
        assert found.disk_bytes <= CAPACITY
        names = {path.name for path in files}
        regions = {name for name in names if name.endswith(".region")}
        seen[:] = [taken, sorted(names), found]
        return (
            0.99 * found.disk_bytes - 128 * 1024 <= taken <= found.disk_bytes
            and names - regions == {"data.mdb", "format", "lock", "probe", "witness"}
            and len(regions) == found.regions
        )

    try:
        wait_until(agrees, WAIT_S)
    except ConditionNotMet:
        raise AssertionError(f"the directory has something else: {seen}") from None


@pytest.fixture(params=["memory", "disk"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A directory on a file system that is fast, and on one that is real."""
    place = tmp_path
    if request.param == "memory":
        if not SHM.is_dir():
            pytest.skip("this machine has no file system in memory at /dev/shm")
        place = Path(tempfile.mkdtemp(dir=SHM))
    (place / "store").mkdir()
    yield place / "store"
    shutil.rmtree(place)


def test_fr_011_and_fr_055_nothing_lies_after_kills_at_random_points(folder: Path) -> None:
    story = Story()
    until_s = time.monotonic() + BUDGET_S
    rounds = readable = 0
    while rounds < min(ROUNDS, 10) or (rounds < ROUNDS and time.monotonic() < until_s):
        run_and_kill(folder, story, rounds)
        with opened(folder, CAPACITY, on_dropped=story.note_dropped) as store:
            readable += check_everything(store, story)
            check_files(folder, store)
        forget_old(story)
        rounds += 1
    said = f"{len(story.acknowledged)} acknowledged, {readable} reads"
    show("055", f"kills of a store in {folder} (some hundred)", f"{rounds}, {said}")
    assert readable > 0
    assert story.removed
    assert story.cleared > 1


def forget_old(story: Story) -> None:
    """Check the latest 500 versions in each round; older ones are evicted for the most part."""
    for version in sorted(story.begun)[:-500]:
        del story.begun[version]
