"""A process that uses a store and says what it did, to be killed at any moment.

Every line is one write to a file, so what was said before the kill is there afterwards:

    O                     the store is open
    S version size        a write begins          s version           it was acknowledged
    R version             a removal begins        r version           it was acknowledged
    E slot epoch          a clearing begins       e slot epoch        it was acknowledged
    D version             the store gave it up
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from mooncake_storage_node.ssd import Options, OsFiles, Span, Store
from mooncake_store.deadline import Deadline
from mooncake_store.errors import StoreError
from mooncake_store.limits import KIB, MIB
from mooncake_store.testing import seeded
from tests.faults.ssd.extents import make_extent
from tests.faults.ssd.faulty import FaultyFiles

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from mooncake_storage_node.ssd import Dropped

CAPACITY = 32 * MIB
SIZES = [0, 100, 4096, 60 * KIB, 300 * KIB, 300 * KIB, 900 * KIB]
SLOTS = (1, 2)


def size_of(version: int) -> int:
    """Return the payload's length of a version."""
    return SIZES[version * 7919 % len(SIZES)]


def slot_of(version: int) -> int:
    """Return the namespace slot of a version; the second is cleared now and then."""
    return SLOTS[version % 5 == 0]


def extent_of(version: int, epoch: int) -> bytes:
    """Return what is stored for a version."""
    names_key = f"key-{version}"
    return make_extent(names_key, version, size_of(version), slot=slot_of(version), epoch=epoch)


class Worker:
    """Random operations on a store, several at a time."""

    def __init__(
        self, folder: str, journal: str, seed: int, first: int, epochs: dict[int, int]
    ) -> None:
        self._journal = os.open(journal, os.O_WRONLY | os.O_APPEND)
        self._random: Random = seeded(seed)
        self._next = first
        self._epochs = epochs
        self._known: list[int] = []
        in_process = self._random.random() < 0.7
        self.store = Store.open(
            Path(folder),
            CAPACITY,
            Options(batch_bytes=256 * KIB, staging_bytes=8 * MIB, readers=2, carry_share=0.5),
            files=FaultyFiles() if in_process else OsFiles(),
            on_dropped=self._dropped,
        )

    def say(self, *words: object) -> None:
        """Write a line."""
        os.write(self._journal, (" ".join(map(str, words)) + "\n").encode())

    def _dropped(self, dropped: Sequence[Dropped]) -> None:
        for one in dropped:
            self.say("D", one.version)

    def write(self) -> None:
        """Begin some writes; they end when they end."""
        for _ in range(self._random.choice([1, 1, 4, 20])):
            version = self._next
            self._next += 1
            data = extent_of(version, self._epochs[slot_of(version)])
            self.say("S", version, self._epochs[slot_of(version)])
            self.store.write(memoryview(data), version).add_done_callback(
                lambda future, version=version: (
                    None if future.exception() else self.say("s", version)
                )
            )
            self._known.append(version)

    def remove(self) -> None:
        """Remove some, and wait."""
        if not self._known:
            return
        chosen = [self._random.choice(self._known) for _ in range(3)]
        for version in chosen:
            self.say("R", version)
        self.store.remove([(-1, version) for version in chosen]).result(30)
        for version in chosen:
            self.say("r", version)

    def clear(self) -> None:
        """Raise an epoch, and wait."""
        self._epochs[2] += 1
        self.say("E", 2, self._epochs[2])
        self.store.set_epochs({2: self._epochs[2]}).result(30)
        self.say("e", 2, self._epochs[2])

    def read(self) -> None:
        """Read something, which makes it hot."""
        for version in self._known[-8:]:
            location = self.store.find(version)
            if location >= 0:
                target = memoryview(bytearray(64))
                span = Span(location, version, 0, 64)
                try:
                    self.store.read_into(span, [target], Deadline(10)).result(30)
                except StoreError:
                    continue

    def run(self) -> None:
        """Go on for ever."""
        self.say("O")
        for version in range(max(1, self._next - 60), self._next):
            self._known.append(version)
        while True:
            action = self._random.choice(
                [self.write, self.write, self.write, self.read, self.remove, self.clear]
            )
            try:
                action()
            except StoreError:
                continue


def work(folder: str, journal: str, seed: int, first: int, epochs: dict[int, int]) -> None:
    """Run a worker; the parent kills this process."""
    signal.alarm(60)  # It does not outlive a parent that forgot it.
    Worker(folder, journal, seed, first, epochs).run()
