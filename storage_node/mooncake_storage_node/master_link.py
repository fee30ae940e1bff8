"""A blocking control connection to a master: frames out, frames in, nothing decided."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from importlib.metadata import version as installed_version
from typing import TYPE_CHECKING, Final

import msgspec

from mooncake_store import limits
from mooncake_store.errors import ProtocolError, StoreError, Unreachable
from mooncake_store.transport.resolve import resolve
from mooncake_store.wire.control import KINDS, REPLY_DECODERS, Hello, Message, Welcome
from mooncake_store.wire.frames import (
    ERROR,
    REPLY,
    FrameDecoder,
    decode_error,
    encode_error,
    encode_frame,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_store.deadline import Deadline
    from mooncake_store.wire.address import Address
    from mooncake_store.wire.frames import Frame

SOFTWARE: Final = f"mooncake-store {installed_version('mooncake-store')}"

_KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
"""A master whose host vanished without a word is noticed after 25 s; heartbeats notice earlier."""


class MasterLink:
    """One connection to one master; used by one thread, answered on and aborted by any.

    Attributes:
        welcome: What the master said of itself.
        peer_host: Address it was reached under.
        own_host: Address it was reached from.
    """

    def __init__(self, address: Address, name: str, deadline: Deadline) -> None:
        """Connect and shake hands.

        Raises:
            Unreachable, DeadlineExceeded: Nobody answers.
            ProtocolMismatch, ProtocolError, Overloaded: It is no master for us.
        """
        self._decoder = FrameDecoder(limits.FRAME_BYTES_MAX)
        self._request_id = 0
        self._sending = threading.Lock()
        self._socket = _connect(address, deadline)
        try:
            self.peer_host = str(self._socket.getpeername()[0])
            self.own_host = str(self._socket.getsockname()[0])
            self.welcome = self._greet(name, deadline)
        except OSError as error:
            self._socket.close()
            raise Unreachable(f"the connection to {address} broke: {error}") from error
        except BaseException:
            self._socket.close()
            raise

    def _greet(self, name: str, deadline: Deadline) -> Welcome:
        hello = Hello(limits.PROTOCOL_VERSION, "node", name, SOFTWARE)
        answer = self.ask(hello, deadline)
        if not isinstance(answer, Welcome):
            raise ProtocolError(f"{self.peer_host} does not answer like a master")
        return answer

    def ask(self, message: Message, deadline: Deadline) -> Message:
        """Send a request and return its reply; other frames that come meanwhile are dropped.

        Raises:
            StoreError: What the master answered, or why it did not.
        """
        self._request_id += 1
        kind = KINDS[type(message)]
        self._send(
            encode_frame(
                kind, message, request_id=self._request_id, deadline_ms=deadline.left_ms()
            ),
            deadline,
        )
        while True:
            frame = self.receive(deadline.check("waiting for the master"))
            if frame is None or not frame.flags & REPLY or frame.request_id != self._request_id:
                continue
            if frame.flags & ERROR:
                raise decode_error(frame.body)
            try:
                return REPLY_DECODERS[kind].decode(frame.body)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise ProtocolError(f"the master's answer cannot be read: {error}") from error

    def receive(self, timeout_s: float) -> Frame | None:
        """Return the next frame, None where none comes in time.

        Raises:
            Unreachable: The connection ended.
            ProtocolError: These are no frames.
        """
        for frame in self._decoder:
            return frame
        if not self._wait(select.POLLIN, timeout_s):
            return None
        try:
            got = self._socket.recv_into(self._decoder.buffer())
        except BlockingIOError:
            return None
        except OSError as error:
            raise Unreachable(f"the connection to the master broke: {error}") from error
        if not got:
            raise Unreachable("the master closed the connection")
        self._decoder.received(got)
        return next(self._decoder, None)

    def reply(self, frame: Frame, answer: Message | StoreError, deadline: Deadline) -> None:
        """Answer a request of the master.

        Raises:
            Unreachable, DeadlineExceeded: It does not take the answer.
        """
        if isinstance(answer, StoreError):
            raw = encode_error(answer, frame.kind, frame.request_id)
        else:
            raw = encode_frame(frame.kind, answer, request_id=frame.request_id, flags=REPLY)
        self._send(raw, deadline)

    def abort(self) -> None:
        """End whatever the owner waits for; it then closes."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _send(self, raw: bytearray, deadline: Deadline) -> None:
        left = memoryview(raw)
        with self._sending:
            while left:
                try:
                    left = left[self._socket.send(left, socket.MSG_NOSIGNAL) :]
                except BlockingIOError:
                    self._wait(select.POLLOUT, deadline.check("sending to the master"))
                except OSError as error:
                    raise Unreachable(f"the connection to the master broke: {error}") from error

    def _wait(self, events: int, timeout_s: float) -> bool:
        poll = select.poll()
        try:
            poll.register(self._socket, events)
        except ValueError as error:  # Closed by another thread.
            raise Unreachable("the connection to the master was closed") from error
        return bool(poll.poll(max(1, int(timeout_s * 1000))))


def _connect(address: Address, deadline: Deadline) -> socket.socket:
    problem: OSError | None = None
    for family, sockaddr in resolve(*address, deadline):
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.settimeout(deadline.check(f"connecting to the master at {address}"))
            sock.connect(sockaddr)
            sock.settimeout(0)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
        except OSError as error:
            sock.close()
            problem = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    deadline.check(f"connecting to the master at {address}")
    raise Unreachable(f"no master answers at {address}: {problem}") from problem


SHUN_S: Final = 2.0
"""Time for which a master that was silent is passed over while there are others: a standby names it
until its lease ends. Smaller: tries are wasted on it. Larger: a leader that was busy for a moment
has its nodes back later."""


class Masters:
    """The addresses where a master may be, in turn; one that another master named comes first.

    A name is resolved again at every try.
    """

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = list(addresses)
        self._next = 0
        self._hint: Address | None = None
        self._shunned: dict[Address, float] = {}
        """{master that was silent: until when it is passed over}"""

    def __len__(self) -> int:
        return len(self._addresses)

    def __str__(self) -> str:
        return ", ".join(map(str, self._addresses))

    @property
    def are_many(self) -> bool:
        """Whether there is another one to turn to when one is silent."""
        return len(self._addresses) > 1

    def next(self) -> Address:
        """Return the address to try now."""
        return self._hint or self._addresses[self._next % len(self._addresses)]

    def silent(self, address: Address) -> None:
        """Note that one gave no answer, which it may go on doing for as long as it is asked."""
        if self.are_many:
            self._shunned[address] = time.monotonic() + SHUN_S

    def failed(self) -> None:
        """Go on to the next one, if there is one that was not silent just now."""
        if self._hint is None:
            self._next += 1
        self._hint = None
        for _ in self._addresses:
            if not self._is_shunned(self.next()):
                break
            self._next += 1

    def leads(self, address: Address) -> None:
        """Try this address next: a master says that it leads, or that another one does."""
        if self._is_shunned(address):
            return
        if address in self._addresses:
            self._next = self._addresses.index(address)
            self._hint = None
        else:
            self._hint = address

    def _is_shunned(self, address: Address) -> bool:
        return self._shunned.get(address, 0.0) > time.monotonic()
