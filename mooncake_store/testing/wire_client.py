"""A plain speaker of the control protocol, for tests: one socket, one request at a time.

It shows what is really on the wire, tries nothing twice, and can say what no client of ours would:
raw bytes, frames of unknown kinds, messages in an order of the test's choosing.
"""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Any, Self

from mooncake_store import limits
from mooncake_store.errors import ProtocolError, Unreachable
from mooncake_store.wire import control, frames

if TYPE_CHECKING:
    from types import TracebackType

    from mooncake_store.wire.control import Message, Welcome
    from mooncake_store.wire.frames import Frame


class WireClient:
    """One control connection.

        with WireClient(host, port) as wire:
            namespace = wire.ask(control.OpenNamespace("default"))

    Attributes:
        welcome: What the master said of itself.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        name: str = "wire-client",
        role: str = "client",
        deadline_s: float = 5.0,
        greet: bool = True,
    ) -> None:
        """Connect, and introduce ourselves unless ``greet`` is False.

        Raises:
            Unreachable: Nobody listens there, or nothing answers in time.
        """
        self._deadline_s = deadline_s
        self._decoder = frames.FrameDecoder(limits.FRAME_BYTES_MAX)
        self._request_id = 0
        try:
            self.socket = socket.create_connection((host, port), timeout=deadline_s)
        except OSError as error:
            raise Unreachable(f"{host}:{port}: {error}") from error
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if greet:
            try:
                self.welcome: Welcome = self.ask(
                    control.Hello(limits.PROTOCOL_VERSION, role, name, "testing")
                )
            except BaseException:
                self.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def ask(self, message: Message, *, deadline_s: float | None = None) -> Any:  # noqa: ANN401 - the reply's type follows from the request's, see ``control.REPLY_DECODERS``
        """Send a request and return its reply.

        Raises:
            StoreError: What the master answered, or ``Unreachable`` where nothing came in time.
        """
        return self.reply(self.send(message, deadline_s=deadline_s), deadline_s=deadline_s)

    def send(self, message: Message, *, deadline_s: float | None = None) -> int:
        """Send a request without waiting; return its id."""
        self._request_id += 1
        self.send_bytes(
            frames.encode_frame(
                control.KINDS[type(message)],
                message,
                request_id=self._request_id,
                deadline_ms=int(1000 * (deadline_s or self._deadline_s)),
            )
        )
        return self._request_id

    def send_bytes(self, data: bytes | bytearray) -> None:
        """Send anything.

        Raises:
            Unreachable: The connection is over.
        """
        try:
            self.socket.sendall(data)
        except OSError as error:
            raise Unreachable(f"the connection is over: {error}") from error

    def reply(self, request_id: int, *, deadline_s: float | None = None) -> Any:  # noqa: ANN401 - as ``ask``
        """Wait for the reply to a request that ``send`` has sent; others are dropped.

        Raises:
            StoreError: As ``ask``.
        """
        while True:
            frame = self.frame(deadline_s=deadline_s)
            if frame.request_id == request_id:
                if frame.flags & frames.ERROR:
                    raise frames.decode_error(frame.body)
                return control.REPLY_DECODERS[frame.kind].decode(frame.body)

    def frame(self, *, deadline_s: float | None = None) -> Frame:
        """Wait for the next frame.

        Raises:
            Unreachable: The connection is over, or nothing came in time.
        """
        end_s = time.monotonic() + (deadline_s or self._deadline_s)
        while True:
            for frame in self._decoder:
                return frame
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                raise Unreachable("no answer in time")
            self.socket.settimeout(left_s)
            try:
                count = self.socket.recv_into(self._decoder.buffer())
            except OSError as error:
                raise Unreachable(f"no answer: {error}") from error
            if not count:
                raise Unreachable("the peer has closed the connection")
            self._decoder.received(count)

    def closes_within(self, deadline_s: float) -> bool:
        """Return whether the peer ends the connection by then; what it still sends is dropped."""
        try:
            while True:
                self.frame(deadline_s=deadline_s)
        except ProtocolError:
            return False
        except Unreachable as error:
            return "in time" not in str(error) and "timed out" not in str(error)

    def close(self) -> None:
        """End the connection."""
        self.socket.close()
