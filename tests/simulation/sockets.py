"""Byte sockets over the seeded network, as far as the data path uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from mooncake_store.testing import End

_BUFFER_BYTES = (700, 4000)
"""Bytes that are under way in one direction, at least and at most: so few that a transfer takes
several steps, and other things happen in between."""

_CREDIT_BYTES = 300
"""Bytes taken after which the sender is told that there is room again: below the least of above."""


class VirtualSocket:
    """A non-blocking stream socket.

    ``sendmsg`` takes as many bytes as there is room for, at the moment of the call: what has not
    been taken may have changed by the next one.

    Attributes:
        on_ready: Called when a call that would have blocked may go on.
    """

    def __init__(self, end: End, random: random.Random, on_ready: Callable[[], None]) -> None:
        self._end = end
        self._received = bytearray()
        self._room = random.randint(*_BUFFER_BYTES)
        self._credit = 0
        self._is_over = False
        self._is_closed = False
        self.on_ready = on_ready
        end.on_message = self._arrived
        end.on_lost = self._lost

    def recv_into(self, buffer: memoryview, nbytes: int = 0) -> int:
        """Receive what is there."""
        return self.recvmsg_into([buffer[: nbytes or len(buffer)]])[0]

    def recvmsg_into(self, buffers: Sequence[memoryview]) -> tuple[int, list[object], int, None]:
        """Receive what is there into several buffers."""
        self._check()
        if not self._received:
            if self._is_over:
                return 0, [], 0, None
            raise BlockingIOError
        total = 0
        for buffer in buffers:
            size = min(len(buffer), len(self._received) - total)
            buffer[:size] = self._received[total : total + size]
            total += size
        del self._received[:total]
        self._credit += total
        if self._credit >= _CREDIT_BYTES:
            self._end.send(self._credit)
            self._credit = 0
        return total, [], 0, None

    def send(self, data: bytes | bytearray | memoryview, flags: int = 0) -> int:  # noqa: ARG002
        """Send what there is room for."""
        return self.sendmsg([memoryview(data)])

    def sendmsg(
        self,
        buffers: Sequence[memoryview | bytes | bytearray],
        ancdata: object = (),
        flags: int = 0,
    ) -> int:
        """Send what there is room for."""
        del ancdata, flags
        self._check()
        if self._is_over:
            raise BrokenPipeError
        if not self._room:
            raise BlockingIOError
        taken = bytearray()
        for buffer in buffers:
            taken += memoryview(buffer)[: self._room - len(taken)]
            if len(taken) == self._room:
                break
        self._room -= len(taken)
        self._end.send(bytes(taken))
        return len(taken)

    def close(self) -> None:
        """End the connection."""
        self._is_closed = True
        self._end.close()

    def fileno(self) -> int:
        """Return what a selector would take; there is none."""
        return -1

    def _check(self) -> None:
        if self._is_closed:
            raise OSError(9, "Bad file descriptor")

    def _arrived(self, message: bytes | int) -> None:
        if isinstance(message, int):
            self._room += message
        else:
            self._received += message
        self.on_ready()

    def _lost(self) -> None:
        self._is_over = True
        self.on_ready()
