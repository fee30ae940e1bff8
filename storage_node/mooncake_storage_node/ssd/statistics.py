"""What a store counts and shows."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass


class State(enum.Enum):
    """Whether a store does its work."""

    READY = "ready"
    DEGRADED = "degraded"
    """Something is wrong with the disk; what still works, works. It mends itself."""
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Statistics:
    """A store at one moment.

    Since the store was opened: stored = entries now - entries found when it was opened + evicted +
    removed + cleared + all that was lost.

    Attributes:
        path: Directory.
        state: See ``State``.
        reason: What is wrong, in a sentence; empty while ready.
        incarnation: Identity of the contents; 0 while they are not open.
        capacity_bytes: What the store may take on disk.
        disk_bytes: What its files take: index, regions, small ones.
        used_bytes: Bytes of the extents that are readable.
        entries: Their number.
        entries_found: How many there were when the store was opened.
        memory_bytes: Memory of the table of entries.
        index_bytes: Bytes of records in the index.
        regions: Files of extents, of all kinds.
        regions_free: Those that can be written next.
        regions_broken: Those that refuse to be written.
        waiting_bytes: Bytes of the extents that wait to be written.
        reads: Reads of extents that were served.
        read_bytes: Bytes that they delivered.
        read_misses: Reads of extents that are not, or no longer, here.
        reads_refused: {reason: reads that were refused}.
        stored: Extents written for users.
        stored_bytes: Their bytes.
        present: Writes of extents that were here already.
        evicted: Entries given up to make room.
        carried: Entries written again because they were read.
        carried_bytes: Their bytes.
        removed: Entries removed on request.
        cleared: Entries whose namespace was cleared.
        lost: {reason: entries given up because they were bad or their room was lost}.
        refused: {reason: writes that were not done}.
        written_bytes: Bytes written to the disk for all purposes.
        written_today_bytes: The same since midnight UTC, restarts included.
        write_budget_bytes: Budget of a day; 0: none.
        write_amplification: Bytes written for each byte of users, ever.
        read_us: Mean time of late reads of the disk, in microseconds.
        commit_us: Mean time of late commits.
    """

    path: str
    state: State
    reason: str
    incarnation: int
    capacity_bytes: int
    write_budget_bytes: int
    entries_found: int
    reads: int
    read_bytes: int
    read_misses: int
    reads_refused: dict[str, int]
    stored: int
    stored_bytes: int
    present: int
    evicted: int
    carried: int
    carried_bytes: int
    removed: int
    cleared: int
    lost: dict[str, int]
    refused: dict[str, int]
    written_bytes: int
    read_us: float
    commit_us: float
    disk_bytes: int = 0
    used_bytes: int = 0
    entries: int = 0
    memory_bytes: int = 0
    index_bytes: int = 0
    regions: int = 0
    regions_free: int = 0
    regions_broken: int = 0
    waiting_bytes: int = 0
    written_today_bytes: int = 0
    write_amplification: float = 1.0


class Counters:
    """Counts over the life of a store, over reopenings; changed with the ledger's lock held."""

    __slots__ = ("carried", "carried_bytes", "cleared", "commit_us", "entries_found", "evicted",
                 "lost", "present", "read_bytes", "read_misses", "read_us", "reads",
                 "reads_refused", "refused", "removed", "stored", "stored_bytes",
                 "written_bytes")  # fmt: skip

    def __init__(self) -> None:
        self.reads = 0
        self.read_bytes = 0
        self.read_misses = 0
        self.reads_refused: Counter[str] = Counter()
        self.stored = 0
        self.stored_bytes = 0
        self.present = 0
        self.evicted = 0
        self.carried = 0
        self.carried_bytes = 0
        self.removed = 0
        self.cleared = 0
        self.lost: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.written_bytes = 0
        self.entries_found = 0
        self.read_us = 0.0
        self.commit_us = 0.0

    def shown(self) -> dict[str, object]:
        """Return the fields of ``Statistics`` that are counts; a copy."""
        return {
            name: dict(value) if isinstance(value := getattr(self, name), Counter) else value
            for name in self.__slots__
        }


def smooth(mean: float, value: float) -> float:
    """Return an exponential mean that has taken up one more value."""
    return value if not mean else mean + (value - mean) / 16
