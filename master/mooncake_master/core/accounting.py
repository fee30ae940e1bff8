"""Counters of the master's decisions, under their metric names.

For every reign, at any moment:

    acknowledged + recovered =
        in the index + replaced + removed + evicted + cleared + lost + corrupt

where *acknowledged* counts versions that a commit made readable and *recovered* those that a
node's directory brought back. What is in the index is readable, or on nodes that are away.
"""

from __future__ import annotations

from typing import Final

from mooncake_master.core.records import Gone
from mooncake_store.types import MissReason

ACKNOWLEDGED: Final = "mooncake_master_objects_acknowledged_total"
RECOVERED: Final = "mooncake_master_objects_recovered_total"
LOCATED: Final = "mooncake_master_keys_located_total"
ON_DISK: Final = "mooncake_master_keys_located_on_disk_total"
EXISTING: Final = "mooncake_master_keys_probed_total"
GRANTED: Final = "mooncake_master_attempts_granted_total"
EXPIRED: Final = "mooncake_master_attempts_expired_total"
ABORTED: Final = "mooncake_master_attempts_aborted_total"
ALREADY: Final = "mooncake_master_puts_existing_total"
FEWER: Final = "mooncake_master_puts_undercopied_total"
EVICTED_BYTES: Final = "mooncake_master_evicted_bytes_total"
EVICTED_REPLICAS: Final = "mooncake_master_evicted_replicas_total"
FREED: Final = "mooncake_master_extents_freed_total"
NOT_YET: Final = "mooncake_master_extents_not_yet_freed_total"
WINDOWS: Final = "mooncake_master_windows_emptied_total"
OVERLAPS: Final = "mooncake_master_recovery_overlaps_total"
STALE_ENTRIES: Final = "mooncake_master_recovery_dropped_total"
SETS_UNNOTED: Final = "mooncake_master_sets_unnoted_total"
PINS_UNNOTED: Final = "mooncake_master_pins_unnoted_total"
PAUSES: Final = "mooncake_master_pauses_total"
TRANSFERS_FAILED: Final = "mooncake_master_transfer_failures_total"
DRAINED_OBJECTS: Final = "mooncake_master_drained_objects_total"
DRAINED_BYTES: Final = "mooncake_master_drained_bytes_total"
REBALANCED_OBJECTS: Final = "mooncake_master_rebalanced_objects_total"
REBALANCED_BYTES: Final = "mooncake_master_rebalanced_bytes_total"
TRIMMED_REPLICAS: Final = "mooncake_master_trimmed_replicas_total"
TRIMMED_BYTES: Final = "mooncake_master_trimmed_bytes_total"
UNCONFIRMED: Final = "mooncake_master_complaints_unconfirmed_total"
TRANSFERS: Final = "mooncake_master_transfers_total"


def labelled(name: str, **labels: str) -> str:
    """Return the name of one series in the Prometheus text form."""
    inner = ",".join(
        f'{label}="{value}"'
        for label, value in (
            (label, text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n"))
            for label, text in sorted(labels.items())
        )
    )
    return f"{name}{{{inner}}}"


GONE: Final = {
    reason: labelled("mooncake_master_objects_gone_total", reason=reason.value) for reason in Gone
}
PURPOSES: Final = ("repair", "demotion", "promotion", "durable", "drain", "rebalance", "hot")
"""What nodes make copies for."""
MISSES: Final = [
    labelled("mooncake_master_misses_total", reason=reason.name.lower()) for reason in MissReason
]


def refused(code: str) -> str:
    """Return the counter of refusals with an error code."""
    return labelled("mooncake_master_refusals_total", code=code)


def dropped(reason: str) -> str:
    """Return the counter of replicas that readers found bad."""
    return labelled("mooncake_master_replicas_dropped_total", reason=reason)


def copies(purpose: str, outcome: str) -> str:
    """Return the counter of copies that ended so: ``done``, or the code of an error."""
    return labelled("mooncake_master_copies_total", purpose=purpose, outcome=outcome)


def copied_bytes(purpose: str) -> str:
    """Return the counter of bytes that copies have moved."""
    return labelled("mooncake_master_copied_bytes_total", purpose=purpose)


def lost_by(node: str) -> str:
    """Return the counter of replicas that a node lost."""
    return labelled("mooncake_master_replicas_lost_total", node=node)


class Counters(dict[str, int]):
    """{metric name: count}; every series that can be known beforehand begins at 0."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys((
            ACKNOWLEDGED, RECOVERED, LOCATED, ON_DISK, EXISTING, GRANTED, EXPIRED, ABORTED, ALREADY,
            FEWER, EVICTED_BYTES, EVICTED_REPLICAS, FREED, NOT_YET, WINDOWS, OVERLAPS,
            STALE_ENTRIES, SETS_UNNOTED, PINS_UNNOTED, PAUSES, DRAINED_OBJECTS, DRAINED_BYTES,
            REBALANCED_OBJECTS, REBALANCED_BYTES, TRIMMED_REPLICAS, TRIMMED_BYTES, TRANSFERS,
            TRANSFERS_FAILED, UNCONFIRMED, *GONE.values(), *MISSES,
            *(copies(purpose, "done") for purpose in PURPOSES), *map(copied_bytes, PURPOSES),
        ), 0))  # fmt: skip

    def __missing__(self, name: str) -> int:
        return 0
