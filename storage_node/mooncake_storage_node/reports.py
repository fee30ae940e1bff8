"""Telling the master what the stores gave up by themselves: in batches, until it has confirmed.

On a connection and a thread of its own, so that neither orders nor heartbeats wait for it. A report
that is given twice does no harm; one that is lost with this process does little: a reader finds
that the extent is gone, and reads another replica.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Final

from mooncake_storage_node.master_link import MasterLink
from mooncake_store.deadline import Deadline
from mooncake_store.errors import StoreError
from mooncake_store.limits import BATCH_KEYS_MAX
from mooncake_store.wire.control import ReportDropped

if TYPE_CHECKING:
    from mooncake_storage_node.membership import Membership
    from mooncake_store.wire.address import Address
    from mooncake_store.wire.control import DroppedItem, Registered

logger = logging.getLogger(__name__)

WAITING_MAX: Final = 1_000_000
"""Drops that are kept for a master that is away, about 200 MB; older ones are forgotten."""

ANSWER_S: Final = 5.0
"""Time for the master to confirm a batch."""

PAUSE_S: Final = 0.2
"""Time between two tries, and the time for which drops gather."""


class DropReports:
    """Reports drops to whichever master this node belongs to.

    Attributes:
        reported: Drops that a master has confirmed.
        forgotten: Drops that were too many to be kept.
    """

    def __init__(self, membership: Membership) -> None:
        """Prepare; ``start`` begins."""
        self.reported = 0
        self.forgotten = 0
        self._membership = membership
        self._waiting: deque[DroppedItem] = deque()
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._link: MasterLink | None = None
        self._linked: tuple[Registered, Address] | None = None
        self._thread = threading.Thread(target=self._run, name="reports", daemon=True)

    def __len__(self) -> int:
        return len(self._waiting)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; what was not reported is not any more. Idempotent."""
        self._stopping.set()
        with self._changed:
            self._changed.notify()
        link = self._link
        if link is not None:
            link.abort()
        if self._thread.is_alive():
            self._thread.join(ANSWER_S)

    def add(self, items: list[DroppedItem]) -> None:
        """Report these soon."""
        with self._changed:
            self._waiting.extend(items)
            over = len(self._waiting) - WAITING_MAX
            for _ in range(over):
                self._waiting.popleft()
            if over > 0:
                if not self.forgotten:
                    logger.warning("no master takes reports of drops: the oldest are forgotten")
                self.forgotten += over
            self._changed.notify()

    def _run(self) -> None:
        while not self._stopping.is_set():
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._stopping.is_set())
            self._stopping.wait(PAUSE_S)
            while self._waiting and not self._stopping.is_set():
                try:
                    if not self._send():
                        break
                except StoreError as error:
                    logger.debug("drops were not reported: %s", error)
                    self._unlink()
                    break
        self._unlink()

    def _send(self) -> bool:
        """Report one batch; return whether there is a master to report to.

        Raises:
            StoreError: It was not confirmed.
        """
        member = self._membership.current
        if member is None:
            self._unlink()
            return False
        if self._link is None or (self._linked is not None and self._linked[0] is not member[0]):
            self._unlink()
            self._link = MasterLink(member[1], "reports", Deadline(ANSWER_S))
            self._linked = member
        with self._changed:
            batch = list(islice(self._waiting, BATCH_KEYS_MAX))
        self._link.ask(ReportDropped(member[0].index, batch), Deadline(ANSWER_S))
        with self._changed:
            for item in batch:
                if self._waiting and self._waiting[0] is item:
                    self._waiting.popleft()
            self.reported += len(batch)
        return True

    def _unlink(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()
