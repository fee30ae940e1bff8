"""Staying awake for the next small request, which often follows the last one at once.

One client that puts object after object asks, writes, and asks again some tens of microseconds
later. A master that has gone to sleep meanwhile has to be woken, which takes a virtual machine
longer than the request does (docs/adr/0061).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from mooncake_store.transport.spinning import Spinner, step_aside

if TYPE_CHECKING:
    from collections.abc import Callable

SMALL_BODY_BYTES: Final = 512
"""Body of a request after whose answer the next one may come at once: one key, or a few. A batch
takes the caller longer than we would wait."""

CROWDED_S: Final = 250e-6
"""Time between two looks at the sockets from which on others must have used our CPU: then we sleep,
so that the scheduler wakes us before them. Larger than what a node needs for a small write."""


class Vigil:
    """Has the event loop look at its sockets without sleeping, for a moment after an answer.

    Attributes:
        is_awake: Whether it does so now.
    """

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        awake_s: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Take what schedules a callback for the loop's next round; 0 s: always sleep at once."""
        self._call_soon = call_soon
        self._awake_s = awake_s
        self._clock = clock
        self._spinner = Spinner()
        self._until_s = self._looked_s = 0.0
        self.is_awake = False

    def asked(self) -> None:
        """Note that a small request of a client came."""
        if self.is_awake:
            self._spinner.learn(paid=True)

    def answered(self) -> None:
        """Stay awake for a while: a small request of a client was answered."""
        if not self.is_awake:
            if not self._awake_s or not self._spinner.wanted():
                return
            self.is_awake = True
            self._call_soon(self._stay)
        self._looked_s = self._clock()
        self._until_s = self._looked_s + self._awake_s

    def _stay(self) -> None:
        """Have the loop go round once more, or let it sleep."""
        now_s = self._clock()
        looked_s, self._looked_s = self._looked_s, now_s
        if now_s - looked_s >= CROWDED_S:
            self.is_awake = False
            self._spinner.give_up()
        elif now_s >= self._until_s:
            self.is_awake = False
            self._spinner.learn(paid=False)
        else:
            self._call_soon(self._stay)
            step_aside()
