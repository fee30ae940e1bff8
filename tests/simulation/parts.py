"""A process on the virtual clock: it lives, is paused, dies, and lives again."""

from __future__ import annotations

from typing import TYPE_CHECKING, ParamSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from mooncake_store.testing import SeededNetwork, Timer, VirtualClock

Arguments = ParamSpec("Arguments")


class Part:
    """Base of master, nodes and clients.

    Whatever reaches a part from outside - messages, timers - goes through a function that
    ``mine`` made: it does nothing once that life is over, and waits while the part is paused, as
    a stopped process finds its sockets and timers full when it goes on.

    Attributes:
        name: Its address on the network.
        is_alive: Between ``begin_life`` and ``end_life``.
        is_paused: Stopped, as by SIGSTOP.
        lives: How often it was started.
        pauses: How often it was paused.
    """

    def __init__(self, network: SeededNetwork, name: str) -> None:
        self.network = network
        self.name = name
        self.is_alive = False
        self.is_paused = False
        self.lives = 0
        self.pauses = 0
        self._held: list[Callable[[], None]] = []

    @property
    def clock(self) -> VirtualClock:
        """The clock of the network."""
        return self.network.clock

    def begin_life(self) -> None:
        """Be alive."""
        assert not self.is_alive
        self.is_alive = True
        self.lives += 1

    def end_life(self) -> None:
        """Be dead, as after SIGKILL: every connection breaks."""
        self.is_alive = False
        self.is_paused = False
        self._held.clear()
        self.network.cut_all(self.name)

    def pause(self) -> None:
        """Do nothing any more, keep everything open."""
        self.is_paused = self.is_alive
        self.pauses += self.is_alive

    def resume(self) -> None:
        """Go on with what has come meanwhile."""
        self.is_paused = False
        held, self._held = self._held, []
        for action in held:
            if self.is_paused:  # paused again by one of them
                self._held.append(action)
            else:
                action()

    def mine(self, action: Callable[Arguments, None]) -> Callable[Arguments, None]:
        """Bind an action to this life."""
        life = self.lives

        def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
            if not self.is_alive or life != self.lives:
                return
            if self.is_paused:
                self._held.append(lambda: run(*args, **kwargs))
            else:
                action(*args, **kwargs)

        return run

    def later(self, delay_s: float, action: Callable[[], None]) -> Timer:
        """Do something after a while, in this life."""
        return self.clock.call_later(delay_s, self.mine(action))
