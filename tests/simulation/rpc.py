"""Control messages over the seeded network: encoded and decoded by the real codec."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from mooncake_store.errors import StoreError, Unreachable, from_code
from mooncake_store.wire.control import KINDS, REPLY_DECODERS, REQUEST_DECODERS, Message

if TYPE_CHECKING:
    from collections.abc import Callable

    from mooncake_store.testing import End

    Answered = Callable[[Message | StoreError], None]

_encode = msgspec.msgpack.Encoder().encode


class Asked(NamedTuple):
    """A request on the way."""

    number: int
    kind: int
    body: bytes
    left_s: float


class Reply(NamedTuple):
    """A reply on the way; ``code`` is an error's."""

    number: int
    body: bytes
    code: str = ""
    text: str = ""


class Line:
    """One end of a control connection: asks, and is asked.

    Attributes:
        on_request: Called as ``on_request(number, message, left_s)`` for what the peer asks.
        on_lost: Called once when the connection is over.
        is_open: Whether it is not.
    """

    def __init__(self, end: End) -> None:
        self.on_request: Callable[[int, Message, float], None]
        self.on_lost: Callable[[], None] = lambda: None
        self.is_open = True
        self._end = end
        self._numbers = 0
        self._waiting: dict[int, tuple[int, Answered]] = {}
        end.on_message = self._arrived
        end.on_lost = self._lost

    def ask(self, message: Message, left_s: float, answered: Answered) -> int:
        """Ask; ``answered`` gets the reply, or the error, or ``Unreachable`` at the line's end."""
        self._numbers += 1
        kind = KINDS[type(message)]
        self._waiting[self._numbers] = (kind, answered)
        self._end.send(Asked(self._numbers, kind, _encode(message), left_s))
        return self._numbers

    def forget(self, number: int) -> None:
        """Do not wait for an answer any more."""
        self._waiting.pop(number, None)

    def answer(self, number: int, message: Message) -> None:
        """Reply to a request."""
        self._end.send(Reply(number, _encode(message)))

    def fail(self, number: int, error: StoreError) -> None:
        """Reply to a request with an error."""
        self._end.send(Reply(number, b"", error.code, str(error)))

    def close(self) -> None:
        """End the connection; nobody here is told."""
        self.is_open = False
        self._waiting.clear()
        self._end.close()

    def _arrived(self, message: Asked | Reply) -> None:
        if isinstance(message, Asked):
            request = REQUEST_DECODERS[message.kind].decode(message.body)
            self.on_request(message.number, request, message.left_s)
            return
        kind, answered = self._waiting.pop(message.number, (0, None))
        if answered is None:
            return
        if message.code:
            answered(from_code(message.code, message.text))
        else:
            answered(REPLY_DECODERS[kind].decode(message.body))

    def _lost(self) -> None:
        self.is_open = False
        waiting, self._waiting = self._waiting, {}
        for _, answered in waiting.values():
            answered(Unreachable("the connection is over"))
        self.on_lost()
