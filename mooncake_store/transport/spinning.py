"""Whether to wait for a peer's next bytes without sleeping, which pays between two busy peers.

A CPU that sleeps takes about 30 us to wake, once at each end of a round trip; the other side of a
small read needs 20 to 50 us. So a wait of some tens of microseconds that does not sleep halves the
time of small reads in a row. Where nothing comes that soon it only burns a CPU that others could
use: then it stops by itself. While it lasts, it steps aside for whoever else wants the CPU, which
may well be the peer that is waited for (docs/adr/0061).
"""

from __future__ import annotations

import os
from typing import Final

from mooncake_store.limits import KIB

SPIN_S: Final = 100e-6
"""Longest wait of that kind. Measured with 4 KiB over loopback, two busy CPUs: at 60 us a read took
100 us and a write 220 to 260, at 100 us 75 to 81 and 165 to 176, at 150 us the same."""

SMALL_BYTES_MAX: Final = 128 * KIB
"""Bytes of a request and its answer up to which the answer comes soon enough to wait for."""

SPIN_CREDIT_MAX: Final = 16
"""Waits for nothing before it stops; each one that paid earns two more."""

SPIN_PROBE_EVERY: Final = 64
"""Without credit, one wait in so many is tried, to find out whether it would pay again."""


step_aside: Final = os.sched_yield
"""Called between two tries: others who wait for this CPU run first, threads of this process
included; returns at once (0.3 us) where nobody does."""


class Spinner:
    """Decides for one waiting side. Wrong only in speed, so not locked.

    On one CPU nobody can answer while we look: there it never pays.
    """

    __slots__ = ("_credit", "_may", "_skipped")

    def __init__(self) -> None:
        self._may = len(os.sched_getaffinity(0)) > 1
        self._credit = SPIN_CREDIT_MAX
        self._skipped = 0

    def wanted(self) -> bool:
        """Return whether to try now."""
        if not self._may:
            return False
        if self._credit > 0:
            return True
        self._skipped += 1
        return self._skipped % SPIN_PROBE_EVERY == 0

    def learn(self, *, paid: bool) -> None:
        """Say whether something came meanwhile."""
        if paid:
            self._credit = min(SPIN_CREDIT_MAX, self._credit + 2)
        else:
            self._credit = max(0, self._credit - 1)

    def give_up(self) -> None:
        """Stop, but for a trial now and then: others have a better use for the CPU."""
        self._credit = 0
