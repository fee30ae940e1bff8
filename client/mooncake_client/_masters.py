"""Which master to try next: the one that led last, or that another one named, before the others."""

from __future__ import annotations

import contextlib
from time import monotonic
from typing import TYPE_CHECKING, Final

from mooncake_client._address import parse_master
from mooncake_store.deadline import Deadline
from mooncake_store.errors import (
    Closed,
    ConfigError,
    DeadlineExceeded,
    NotLeader,
    ProtocolMismatch,
    Unreachable,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mooncake_store.errors import PeerError
    from mooncake_store.wire.address import Address

LOST_PATIENCE_S: Final = 0.5
"""Wait for a master that was silent before, in calls that name no deadline of their own: an outage
then costs an engine half a second a call at most, and is noticed to be over by the next call."""


TRY_S_MAX: Final = 1.0
"""Time for one of several masters to answer a handshake. Smaller: a leader with a full processor
is passed over. Larger: one that swallows packets costs more of the time of a call."""

SILENT_S: Final = 0.75
"""Silence of one of several masters, while it owes an answer, after which a second connection shows
whether it is there at all; a wait for room or for a recovery is silent, too."""


SHUN_S: Final = 2.0
"""Time for which one of several that was silent is tried after all others, though a standby, which
has to wait for the end of its lease, still names it. Smaller: calls spend their time on it. Larger:
a leader that was busy for a moment is found again later."""


class Masters:
    """The addresses of a client's masters, in the order to try them.

    Attributes:
        is_lost: None of them answered lately.
        are_many: There is another one to turn to when one is silent.
    """

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = list(addresses)
        """Replaced as a whole: other threads, and calls after an interrupted one, miss none."""
        self._hint: Address | None = None
        self._shunned: dict[Address, float] = {}
        """{master that was silent: until when it is tried last}"""
        self.is_lost = False
        self.are_many = len(self._addresses) > 1

    def __str__(self) -> str:
        return ", ".join(map(str, self._addresses))

    def redirect(self, hint: str | None) -> None:
        """Take the address of the leader from one that is not."""
        self._hint = None
        with contextlib.suppress(ConfigError):  # What is no address is as good as none.
            self._hint = parse_master(hint) if hint else None
        if self._hint is None:
            # Who does not lead may never learn who does: it is the last to be asked again.
            first, *others = self._addresses
            self._addresses = [*others, first]

    def found(self, master: Address) -> None:
        """Note which of them leads."""
        self.is_lost = False
        self._shunned.pop(master, None)
        known = self._addresses
        if master in known and master != known[0]:
            self._addresses = [master, *(other for other in known if other != master)]

    def silent(self, master: Address) -> None:
        """Note that one gave no answer, which it may go on doing for as long as it is asked."""
        if self.are_many:
            self._shunned[master] = monotonic() + SHUN_S

    def attempt(self, deadline: Deadline) -> Attempt:
        """Begin to look for the leader."""
        if self.is_lost and not getattr(deadline, "is_explicit", True):
            deadline = Deadline(min(deadline.left_s(), LOST_PATIENCE_S))
        hint, self._hint = self._hint, None
        known = [master for master in self._addresses if master != hint]
        candidates = [hint, *known] if hint is not None else known
        now_s = monotonic()
        for master in [each for each, until_s in list(self._shunned.items()) if until_s <= now_s]:
            self._shunned.pop(master, None)
        candidates.sort(key=self._shunned.__contains__)  # Otherwise their order stays.
        return Attempt(self, candidates, deadline)


class Attempt:
    """One look at every master: iterate, connect to each until one leads."""

    def __init__(self, masters: Masters, candidates: list[Address], deadline: Deadline) -> None:
        self._masters = masters
        self._candidates = candidates
        self._deadline = deadline
        self._problems: list[str] = []
        self._share_s = 0.0

    def __iter__(self) -> Iterator[tuple[Address, Deadline]]:
        """Yield each master with a fair share of the time left."""
        count = len(self._candidates)
        for at, master in enumerate(self._candidates):
            share_s = self._deadline.left_s() / (count - at)
            self._share_s = share_s if count == 1 else min(share_s, TRY_S_MAX)
            yield master, Deadline(self._share_s)

    def failed(self, master: Address, error: PeerError | Closed) -> None:
        """Note why one was of no use; raise what no other master can help with."""
        if isinstance(error, (ProtocolMismatch, Closed)):
            raise error
        if isinstance(error, NotLeader):
            self._problems.append(f"{master} does not lead")
            self._masters.redirect(error.node)
        else:
            self._problems.append(f"{master}: {error}")
            if isinstance(error, DeadlineExceeded) and self._share_s >= SILENT_S / 2:
                self._masters.silent(master)

    def error(self) -> Unreachable:
        """Return what to raise when all have been tried."""
        problems = "; ".join(self._problems)
        return Unreachable(f"no master answers ({problems})", node=str(self._candidates[0]))
