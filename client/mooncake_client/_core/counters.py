"""What a client counts."""

from __future__ import annotations

from collections import defaultdict

from mooncake_client._results import Statistics
from mooncake_store.types import MissReason


class Counters:
    """Counters that only grow; ``snapshot`` copies them.

    Threads share one. An increment of a slot or of a dictionary entry with a plain key holds the
    interpreter lock from its load to its store in CPython, so none is lost.
    """

    __slots__ = (
        "bytes_read",
        "bytes_written",
        "checksum_failures",
        "errors",
        "hits",
        "leased_reads",
        "master_connections",
        "master_round_trips",
        "misses",
        "puts_created",
        "puts_existing",
        "retries",
        "stale_locations",
        "transfer_failures",
    )

    def __init__(self) -> None:
        self.master_round_trips = 0
        self.master_connections = 0
        self.leased_reads = 0
        self.hits = 0
        self.misses: defaultdict[int, int] = defaultdict(int)
        self.bytes_read: defaultdict[str, int] = defaultdict(int)
        self.bytes_written: defaultdict[str, int] = defaultdict(int)
        self.puts_created = 0
        self.puts_existing = 0
        self.retries = 0
        self.stale_locations = 0
        self.checksum_failures = 0
        self.transfer_failures: defaultdict[str, int] = defaultdict(int)
        self.errors: defaultdict[str, int] = defaultdict(int)

    def snapshot(self) -> Statistics:
        """Return the counters as they are now."""
        return Statistics(
            master_round_trips=self.master_round_trips,
            master_connections=self.master_connections,
            leased_reads=self.leased_reads,
            hits=self.hits,
            misses={reason_name(reason): count for reason, count in self.misses.copy().items()},
            bytes_read=dict(self.bytes_read),
            bytes_written=dict(self.bytes_written),
            puts_created=self.puts_created,
            puts_existing=self.puts_existing,
            retries=self.retries,
            stale_locations=self.stale_locations,
            checksum_failures=self.checksum_failures,
            transfer_failures=dict(self.transfer_failures),
            errors=dict(self.errors),
        )


def reason_name(reason: int) -> str:
    """Return the word for a ``MissReason``; a newer master may have reasons we do not know."""
    try:
        return MissReason(reason).name.lower()
    except ValueError:
        return f"reason_{reason}"
