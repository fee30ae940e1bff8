"""Which nodes are worth trying: a circuit breaker for each, so that a sick node costs little.

After ``FAILURES_MAX`` failures in a row a node is left alone for a while that doubles with each
further failure; then one caller may try it, and its result decides (the pattern is M. Nygard's,
"Release It!", chapter 5).
"""

from __future__ import annotations

from typing import Final

FAILURES_MAX: Final = 2
"""One failure may be a pooled connection that a restarted node had closed; two are the node."""

PAUSE_S_MIN: Final = 0.25
"""First pause: longer than a reconnection, shorter than anybody waits."""

PAUSE_S_MAX: Final = 2.0
"""Longest pause: a node that is back is in use again well within five seconds."""


class _Record:
    __slots__ = ("failures", "failures_unreported", "opens_s", "pause_s", "successes_unreported")

    def __init__(self) -> None:
        self.failures = 0
        self.opens_s = 0.0
        self.pause_s = 0.0
        self.failures_unreported = 0
        self.successes_unreported = 0


class Breakers:
    """The state of every node that failed recently; a node without a record is healthy.

    Threads may share one: each step is a few dictionary operations, and a lost count only moves a
    pause a little.
    """

    __slots__ = ("_records",)

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}

    def allows(self, node_id: str, now_s: float) -> bool:
        """Return whether the node may be tried now; after a pause, one caller is told so."""
        if not self.would_allow(node_id, now_s):
            return False
        self.tries(node_id, now_s)
        return True

    def would_allow(self, node_id: str, now_s: float) -> bool:
        """Return whether the node may be tried now, for who may try another one in the end."""
        record = self._records.get(node_id)
        return record is None or record.failures < FAILURES_MAX or now_s >= record.opens_s

    def tries(self, node_id: str, now_s: float) -> None:
        """Note that a node is tried: after a pause, others wait for the end of the next one."""
        record = self._records.get(node_id)
        if record is not None and record.failures >= FAILURES_MAX:
            record.opens_s = now_s + record.pause_s

    def opens_s(self, node_id: str) -> float:
        """Return from when on a node may be tried that may not be now."""
        record = self._records.get(node_id)
        return 0.0 if record is None else record.opens_s

    def is_closed(self, node_id: str) -> bool:
        """Return whether nothing was wrong with the node lately."""
        return node_id not in self._records

    def failed(self, node_id: str, now_s: float) -> None:
        """Count a failure of the node's data path."""
        record = self._records.setdefault(node_id, _Record())
        record.failures += 1
        record.failures_unreported += 1
        if record.failures >= FAILURES_MAX:
            record.pause_s = min(max(PAUSE_S_MIN, 2 * record.pause_s), PAUSE_S_MAX)
            record.opens_s = now_s + record.pause_s

    def succeeded(self, node_id: str) -> None:
        """Count a success, which closes the breaker."""
        record = self._records.get(node_id)
        if record is None:
            return
        if not record.failures_unreported:
            self._records.pop(node_id, None)
            return
        record.failures = 0
        record.pause_s = 0.0
        record.successes_unreported += 1

    def forgive(self, node_id: str) -> None:
        """Let the node be tried at once: it has come back since."""
        record = self._records.get(node_id)
        if record is not None:
            record.failures = 0
            record.pause_s = record.opens_s = 0.0

    def take_report(self, node_id: str) -> tuple[int, int] | None:
        """Return (failures, successes) since the last report, or None where nothing failed."""
        record = self._records.get(node_id)
        if record is None or not record.failures_unreported:
            return None
        report = record.failures_unreported, record.successes_unreported
        record.failures_unreported = record.successes_unreported = 0
        return report

    def keep(self, node_ids: set[str]) -> None:
        """Forget nodes that are not among these."""
        for node_id in [known for known in self._records if known not in node_ids]:
            self._records.pop(node_id, None)
