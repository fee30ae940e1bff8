"""What a change of leadership means for the rest of the master: another core, other connections."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from mooncake_master.core.reigns import first_numbers

if TYPE_CHECKING:
    from collections.abc import Callable

    from mooncake_master.core import Master, Remembered
    from mooncake_master.leadership.observer import Observer
    from mooncake_master.leadership.office import Office
    from mooncake_master.server import Shared
    from mooncake_master.standing import SharedKeeping


class Stage:
    """Puts a core on the switchboard and takes it off. An `Actor` of the campaign.

    Connections do not outlive a change: whoever is at the other end greeted another master, as it
    were, and finds out by connecting again.
    """

    def __init__(
        self,
        shared: Shared,
        office: Office,
        make_core: Callable[[int, str, Remembered], Master],
        look_back: Callable[[], None],
        keeping: SharedKeeping,
        observer: Observer,
    ) -> None:
        """Prepare.

        Args:
            shared: The connections, and the switchboard.
            office: Says what those are told who waited for an answer.
            make_core: Makes a core for (term, cluster id, what earlier ones knew); it has an empty
                index.
            look_back: Notes what the core knows before it is given up.
            keeping: What all masters share.
            observer: What this one has seen of the others.
        """
        self._keeping = keeping
        self._observer = observer
        self._look_back = look_back
        self._shared = shared
        self._office = office
        self._make_core = make_core
        self._term_known = 0

    async def prepare(self, candidate: str) -> None:
        """See `Actor`."""
        await self._keeping.begin(candidate, self._observer.seen)

    def lead(self, term: int, cluster_id: str) -> None:
        """See `Actor`."""
        self._shared.switchboard.core = self._make_core(term, cluster_id, self._keeping.remembered)
        self._end_connections("this master leads now")

    def follow(self, cluster_id: str) -> None:
        """See `Actor`."""
        self._term_known = max(self._term_known, self.term())
        self._look_back()
        self._keeping.end()
        self._end_connections("this master does not lead any more")
        self._shared.switchboard.core = self._make_core(0, cluster_id, self._observer.seen)

    def term(self) -> int:
        """See `Actor`."""
        return self._shared.switchboard.core.term

    def next_term(self, used: int) -> int:
        """See `Actor`."""
        return first_numbers(time.time(), max(used, self._term_known, self.term()))[0]

    def _end_connections(self, reason: str) -> None:
        error = self._office.refusal()
        for connection in list(self._shared.connections):
            if connection.role:
                connection.dismiss(error, reason)
