"""What the shell counts: requests, errors, durations, connections. Read at scrape time only.

Everything is a plain integer that the loop's thread adds to; nothing is registered anywhere, so
two masters in one process (tests, ``local://``) do not see each other's numbers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import Final

from mooncake_store.wire.control import REQUESTS

BUCKETS_S: Final = (
    20e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 100e-3, 500e-3,
    2.0, 10.0,
)  # fmt: skip
"""Upper bounds of duration histograms: a lookup takes tens of microseconds, a batch of 4,096 keys
some milliseconds, a put that waits for eviction up to its deadline."""


class Histogram:
    """Counts of durations by bucket, and their sum.

    Attributes:
        counts: One number for each of ``BUCKETS_S``, and one for what is longer.
        sum_s: Sum of all durations.
    """

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.sum_s = 0.0

    def observe(self, duration_s: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BUCKETS_S, duration_s)] += 1
        self.sum_s += duration_s

    def copy(self) -> Histogram:
        """Return one that stays as it is."""
        other = Histogram()
        other.counts = self.counts.copy()
        other.sum_s = self.sum_s
        return other

    @property
    def count(self) -> int:
        """How many durations were counted."""
        return sum(self.counts)


class Meters:
    """The shell's numbers.

    Attributes:
        durations: {kind: time from receiving a request to writing its reply, waits included}.
        errors: {(kind, code): requests answered with that error}; kind 0: no request we know.
        connections_opened: Connections accepted since the start.
        connections_refused: Connections closed at once, at the limit.
        connections_cut: {reason: connections that we ended}.
        received_bytes: Bytes received on the RPC port.
        sent_bytes: Bytes handed to the system or queued for it.
        instructed: {kind: requests sent to nodes}.
        instruct_failures: {kind: of those, how many ended with an error or without a reply}.
        tick_delays: How much later than planned each tick came: what the loop made others wait.
    """

    __slots__ = (
        "connections_cut", "connections_opened", "connections_refused", "durations", "errors",
        "instruct_failures", "instructed", "received_bytes", "sent_bytes", "tick_delays",
    )  # fmt: skip

    def __init__(self) -> None:
        self.durations = {kind: Histogram() for kind in REQUESTS}
        self.errors: Counter[tuple[int, str]] = Counter()
        self.connections_opened = 0
        self.connections_refused = 0
        self.connections_cut: Counter[str] = Counter()
        self.received_bytes = 0
        self.sent_bytes = 0
        self.instructed: Counter[int] = Counter()
        self.instruct_failures: Counter[int] = Counter()
        self.tick_delays = Histogram()

    def copy(self) -> Meters:
        """Return numbers that stay as they are."""
        other = Meters()
        for name in self.__slots__:
            value = getattr(self, name)
            setattr(other, name, value if isinstance(value, int) else value.copy())
        other.durations = {kind: each.copy() for kind, each in self.durations.items()}
        return other
