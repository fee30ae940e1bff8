"""What clients say of the transfers of nodes, and whom it is believed of (docs/adr/0045).

A node whose data path is dead may beat on, so clients' reports make it suspect. A client whose own
network or software is broken reports good nodes, so where several clients are at work one of them
alone is not enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mooncake_master.core import accounting

if TYPE_CHECKING:
    from mooncake_master.core.context import Context
    from mooncake_master.core.nodes import Node

ACTIVE_S: Final = 10.0
"""Time since a client's last look-up or put for which it counts as one that would notice, too:
longer than usual leases, within which a client that reads asks for nothing."""


class Complaint:
    """What one client says of one node.

    Attributes:
        failures: In a row, as far as it said.
        until_s: It counts until then.
    """

    __slots__ = ("failures", "until_s")

    def __init__(self) -> None:
        self.failures = 0
        self.until_s = 0.0


class Complaints:
    """Judges nodes by what clients report."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def report(self, node: Node, peer: int, failures: int, successes: int) -> bool:
        """Take a client's report; return whether the node is to be suspect now."""
        context = self._context
        said = node.complaints
        if successes and not failures:
            said.pop(peer, None)
        else:
            complaint = said.setdefault(peer, Complaint())
            complaint.failures = failures + (0 if successes else complaint.failures)
            complaint.until_s = context.now_s + context.config.suspicion_s
        for other in [other for other, one in said.items() if one.until_s < context.now_s]:
            del said[other]
        return self._is_believed(node)

    def _is_believed(self, node: Node) -> bool:
        """Return whether failures in a row are too many, one client of several counted for half.

        So it takes a second client, which does not have to have met as many.
        """
        failures_max = self._context.config.transfer_failures_max
        said = node.complaints
        node.failures = sum(one.failures for one in said.values())
        if node.failures < failures_max:
            return False
        if len(said) == 1 and not self._has_others(next(iter(said))):
            return True
        half = (failures_max + 1) // 2
        if sum(min(one.failures, half) for one in said.values()) >= failures_max:
            return True
        self._context.counters[accounting.UNCONFIRMED] += 1
        return False

    def _has_others(self, peer: int) -> bool:
        """Return whether other clients are at work, which would complain as well."""
        since_s = self._context.now_s - ACTIVE_S
        callers = self._context.callers
        return any(seen_s >= since_s for other, seen_s in callers.items() if other != peer)
