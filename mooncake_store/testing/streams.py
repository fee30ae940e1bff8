"""Ordered connections of a ``SeededNetwork``: what TCP gives, and how it breaks."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from mooncake_store.testing.network import SeededNetwork

KEEP_ALIVE_S: Final = 10.0
"""After this time an end learns that its stream was closed behind a partition."""

_DROPPED_AT_BREAK: Final = 0.5
"""Share of the breaks in which what was on the way is lost."""


class Stream:
    """An ordered connection between two parts.

    Attributes:
        near: End of the part that opened it.
        far: End of the other part.
        number: Grows with every stream of a network.
        is_open: Neither broken nor closed.
    """

    def __init__(self, network: SeededNetwork, near: str, far: str, number: int) -> None:
        self.number = number
        self.near = End(self, network, near, far)
        self.far = End(self, network, far, near)
        self.near.peer, self.far.peer = self.far, self.near
        self.is_open = True
        self._is_closing = False
        self._network = network

    def cut(self) -> None:
        """Break it: each end learns it after a while, and may still get what was on the way."""
        if self.is_open or self._is_closing:
            self.over()
            self._network.statistics["broken"] += 1
            self.near.broken()
            self.far.broken()

    def resume(self) -> None:
        """Send what waited for the end of a partition."""
        self.near.pump()
        self.far.pump()

    def closing(self) -> None:
        """Accept no more messages; what was sent is still on its way."""
        self.is_open = False
        self._is_closing = True

    def over(self) -> None:
        """Be gone from the network."""
        self.is_open = self._is_closing = False
        self._network.forget(self)


class End:
    """One end of a stream.

    Attributes:
        name: Part that holds it.
        peer: The other end.
        on_message: Called with each message that arrives; set it before any can.
        on_lost: Called once when the stream broke or the other end closed it.
        is_deaf: It hears nothing any more: it was closed, or has learnt that the stream is over.
        arrives_s: When the last message that it sent arrives: the next one cannot be earlier.
    """

    def __init__(self, stream: Stream, network: SeededNetwork, name: str, far: str) -> None:
        self.name = name
        self.peer: End
        self.on_message: Callable[[Any], None] = _ignore
        self.on_lost: Callable[[], None] = _nothing
        self.is_deaf = False
        self.arrives_s = 0.0
        self._stream = stream
        self._network = network
        self._far = far
        self._is_closing = False
        self._waiting: deque[object] = deque()
        """Sent and not yet on the way, because the link is blocked."""
        self._dropped_from_s = float("inf")
        """When what was sent stops to arrive: the stream broke."""

    def send(self, message: object) -> None:
        """Send to the other end; silently lost once the stream is over, as in TCP."""
        if self._stream.is_open:
            self._waiting.append(message)
            self.pump()

    def close(self) -> None:
        """End the stream and hear nothing more: the other end gets what was sent, then the end.

        Behind a partition both arrive after it; an end that hears nothing for ``KEEP_ALIVE_S``
        gives up.
        """
        self.is_deaf = True
        if not self._stream.is_open:
            return
        self._stream.closing()
        self._is_closing = True
        self._network.clock.call_later(KEEP_ALIVE_S, self.peer.lose)
        self.pump()

    def pump(self) -> None:
        """Put on the way what waits, if the link lets it."""
        network = self._network
        if network.is_blocked(self.name, self._far):
            return
        while self._waiting:
            message = self._waiting.popleft()
            network.statistics["sent"] += 1
            network.clock.call_at(self._arrival_s(), _Arrival(self, message))
        if self._is_closing:
            self._is_closing = False
            self._stream.over()
            network.clock.call_at(self._arrival_s(), self.peer.lose)

    def _arrival_s(self) -> float:
        """Draw when what is sent now arrives: never before what was sent earlier."""
        network = self._network
        at_s = network.clock.now_s + network.latency_s(self.name, self._far)
        self.arrives_s = max(self.arrives_s, at_s)
        return self.arrives_s

    def broken(self) -> None:
        """Lose what was sent, or not, and learn of the break when the rest has arrived."""
        network = self._network
        self._waiting.clear()
        self._is_closing = False
        if network.chance(self.name, self._far) < _DROPPED_AT_BREAK:
            self._dropped_from_s = network.clock.now_s
        after_s = max(self.peer.arrives_s, network.clock.now_s)
        network.clock.call_at(after_s + network.latency_s(self._far, self.name), self.lose)

    def lose(self) -> None:
        """Learn that the stream is over."""
        if not self.is_deaf:
            self.is_deaf = True
            self.on_lost()

    def arrived(self, message: object) -> None:
        """Hand a message that this end has sent to the other one, if both still can."""
        if not self.peer.is_deaf and self._network.clock.now_s < self._dropped_from_s:
            self.peer.on_message(message)


class _Arrival:
    """A message on its way."""

    __slots__ = ("_message", "_sender")

    def __init__(self, sender: End, message: object) -> None:
        self._sender = sender
        self._message = message

    def __call__(self) -> None:
        """Arrive."""
        self._sender.arrived(self._message)


def _ignore(_message: object) -> None:
    """Hear a message that nobody waits for."""


def _nothing() -> None:
    """Hear that a stream is over when nobody cares."""
