"""What can be chosen about a store on a disk, and what a wrong choice is told."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from mooncake_store.errors import ConfigError
from mooncake_store.limits import GIB, KIB, MIB


class Admission(enum.Enum):
    """Which extents are worth the disk's endurance."""

    ALL = "all"
    SECOND_HIT = "second-hit"
    """Those that were offered before, as far as a bounded memory of offers knows."""


@dataclass(frozen=True, slots=True)
class Options:
    """Choices of one store.

    Attributes:
        index_bytes: Room of the index on disk, part of the capacity. Smaller: fewer entries (about
            500 bytes each). 0: 1/64 of the capacity, which is enough for objects of 32 KiB.
        admission: Which extents are taken.
        write_budget_bytes_per_day: Bytes that may be written to the disk in 24 hours, its own
            upkeep included; a flash disk's data sheet says how many it endures. 0: no budget.
        carry_share: Share of an evicted region that may be kept because it was read, by writing it
            again: at most 1 / (1 - share) bytes are written for each byte of users.
        staging_bytes: Memory that reads pass through. Smaller: fewer reads at a time.
        batch_bytes: Memory of each writer, and the size of a write. Below 1 MiB disks are slower.
        queue_bytes_max: Bytes that wait to be written; what comes then is refused.
        queue_count_max: The same, counted in extents.
        writers: Writes at a time.
        readers: Reads of the disk at a time; one of a long range takes several.
        reads_waiting_max: Reads that wait for a reader; what comes then is refused.
        probe_s: Time between two looks at a disk that is in trouble, or might be.
        stall_s: An operation that takes longer than this means trouble.
    """

    index_bytes: int = 0
    admission: Admission = Admission.ALL
    write_budget_bytes_per_day: int = 0
    carry_share: float = 0.25
    staging_bytes: int = 64 * MIB
    batch_bytes: int = 4 * MIB
    queue_bytes_max: int = 1 * GIB
    queue_count_max: int = 65_536
    writers: int = 2
    readers: int = 16
    reads_waiting_max: int = 1_024
    probe_s: float = 1.0
    stall_s: float = 10.0

    def validate(self) -> None:
        """Check all ranges.

        Raises:
            ConfigError: The message names every value that is out of its range.
        """
        bounds: dict[str, tuple[float, float]] = {
            "index_bytes": (0, 1 << 42),
            "write_budget_bytes_per_day": (0, 1 << 60),
            "carry_share": (0.0, 0.75),
            "staging_bytes": (8 * MIB, 16 * GIB),
            "batch_bytes": (64 * KIB, 256 * MIB),
            "queue_bytes_max": (1, 1 << 46),
            "queue_count_max": (1, 1 << 24),
            "writers": (1, 16),
            "readers": (1, 64),
            "reads_waiting_max": (1, 1 << 20),
            "probe_s": (0.01, 3600.0),
            "stall_s": (0.05, 3600.0),
        }
        problems = [
            f"{name} lies between {low:g} and {high:g}, not at {getattr(self, name)!r}"
            for name, (low, high) in bounds.items()
            if not low <= getattr(self, name) <= high
        ]
        if problems:
            raise ConfigError("; ".join(problems))
