"""How much work each measurement does: sizes, counts and time budgets, decided nowhere else."""

from dataclasses import dataclass

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

BULK_BYTES = (1 * MIB, 16 * MIB)
"""Value sizes of the bulk part; the wanted figures are stated for these two."""

LARGE_BYTES = 16 * MIB
SMALL_BYTES = 4 * KIB
BATCH_KEYS = 128
BATCH_VALUE_BYTES = 64 * KIB
EXISTS_BATCHES = (100, 1000)
EXISTS_VALUE_BYTES = 64
MEMORY_KEY_CHARACTERS = 64
MEMORY_VALUE_BYTES = 64
MEMORY_BATCH_KEYS = 500


@dataclass(frozen=True, slots=True)
class Scale:
    """One set of budgets.

    Attributes:
        call_s: Time budget of one (operation, size) of one round, in seconds.
        calls_min: Calls made whatever the budget says, so that a median exists.
        calls_max: Calls after which the budget no longer matters.
        kept_bytes: Objects held for the read phases of one size. More than the last-level
            cache (32 MiB on the rig), or reads would come from the CPU's cache.
        kept_max: Objects held at most, for small sizes.
        warm_bytes: Store memory touched before anything is timed: the first write of a page
            costs a fault that halves the rate.
        segment_bytes: Memory that every store gets.
        exists_s: Time budget of one exists loop; CPU time is counted in ticks of 10 ms, so a
            tenth of this is a tick's weight in percent.
        exists_keys: Objects that exist in that loop.
        cpu_bytes: Bytes moved while CPU time is counted.
        memory_keys: Keys put while the master's memory is watched.
        memory_rounds_max: Rounds of that part. Resident memory repeats to the page, and one
            round takes minutes.
    """

    call_s: float
    calls_min: int
    calls_max: int
    kept_bytes: int
    kept_max: int
    warm_bytes: int
    segment_bytes: int
    exists_s: float
    exists_keys: int
    cpu_bytes: int
    memory_keys: int
    memory_rounds_max: int


FULL = Scale(
    call_s=0.5,
    calls_min=8,
    calls_max=4000,
    kept_bytes=256 * MIB,
    kept_max=64,
    warm_bytes=768 * MIB,
    segment_bytes=2 * GIB,
    exists_s=2.0,
    exists_keys=3000,
    cpu_bytes=2 * GIB,
    memory_keys=1_000_000,
    memory_rounds_max=1,
)

QUICK = Scale(
    call_s=0.05,
    calls_min=4,
    calls_max=100,
    kept_bytes=64 * MIB,
    kept_max=16,
    warm_bytes=64 * MIB,
    segment_bytes=1 * GIB,
    exists_s=0.2,
    exists_keys=1000,
    cpu_bytes=256 * MIB,
    memory_keys=20_000,
    memory_rounds_max=1,
)
"""A smoke run of the harness in a minute or two: every row appears, no figure means anything."""
