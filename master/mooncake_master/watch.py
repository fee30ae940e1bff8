"""Log lines about the cluster: which node changed its state, whether clients are served."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from mooncake_master.core import accounting
from mooncake_store.types import NodeState

if TYPE_CHECKING:
    from mooncake_master.admin import AdminService

logger = logging.getLogger(__name__)

LOOK_S: Final = 1.0
"""Time between two looks; what changes back within it was not worth a line."""


class Watch:
    """Compares the cluster with what it was at the last look."""

    def __init__(self, service: AdminService) -> None:
        self._service = service
        self._states: dict[str, str] = {}
        self._reason = "it has just started"

    async def run(self) -> None:
        """Look every now and then, until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_S)

    def look(self) -> None:
        """Log what has changed; nothing when nothing has."""
        status, _ = self._service.look()
        states = {
            node.record.name: NodeState(node.record.state).name.lower() for node in status.nodes
        }
        for name, state in states.items():
            if self._states.get(name) != state:
                logger.info("node %s is %s", name, state)
        for name in self._states.keys() - states.keys():
            logger.info("node %s is forgotten", name)
        self._states = states
        reason = self._service.not_ready_because()
        if reason != self._reason:
            self._reason = reason
            restored = _restored(status.counters)
            ready = f"ready: clients are served{restored}"
            logger.info("%s", f"not ready: {reason}" if reason else ready)


def _restored(counters: dict[str, int]) -> str:
    """Say what the nodes' directories brought back, and what of them was not believed."""
    restored = counters.get(accounting.RECOVERED, 0)
    dropped = counters.get(accounting.STALE_ENTRIES, 0)
    overlapping = counters.get(accounting.OVERLAPS, 0)
    if not restored + dropped + overlapping:
        return ""
    text = f", {restored} objects restored from the nodes' directories"
    if dropped + overlapping:
        text += f", not {dropped} entries that are stale and {overlapping} that overlap others"
    return text
