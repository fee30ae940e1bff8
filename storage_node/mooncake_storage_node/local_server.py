"""The local socket: hands the segment's descriptors to processes of the same user."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
import time
from typing import TYPE_CHECKING, Final

from mooncake_store import limits, memory
from mooncake_store.errors import ConfigError, ProtocolError
from mooncake_store.segment import Segment
from mooncake_store.transport.local import encode_handout, peer_user
from mooncake_store.wire import data

if TYPE_CHECKING:
    from pathlib import Path

    from mooncake_storage_node.dram import Pool

PEERS_MAX: Final = 4096
"""Processes that share the memory at one time; each costs one descriptor here."""

GREETING_S: Final = 5.0
"""Time in which a new peer must have said which node it wants."""

NO_ROOM_PAUSE_S: Final = 0.05
"""Pause after an accept that failed for want of descriptors, instead of trying without end."""

HELLO_BYTES: Final = data.HEADER_BYTES + data.GREETING_BYTES

SOCKET_PATH_BYTES_MAX: Final = 107
"""``sun_path`` of Linux."""


class LocalServer(threading.Thread):
    """Serves one node's local socket.

    Attributes:
        served: Peers that got the descriptors.
        refused: Peers that were turned away.
    """

    def __init__(self, path: Path, node_id: str, pool: Pool) -> None:
        """Bind; ``start`` serves.

        Raises:
            ConfigError: The socket cannot be bound.
        """
        super().__init__(name="local", daemon=True)
        self.served = 0
        self.refused = 0
        self._node_id = node_id
        self._pool = pool
        self._path = path
        self._selector = selectors.DefaultSelector()
        self._strangers: dict[socket.socket, float] = {}
        self._peers: set[socket.socket] = set()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._stopping = False
        self._listener = _listen(path)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)

    @property
    def peer_count(self) -> int:
        """Processes that have the memory mapped, as far as we were told."""
        return len(self._peers)

    def run(self) -> None:
        """Serve until stopped."""
        while not self._stopping:
            for key, _ in self._selector.select(1.0 if self._strangers else None):
                if key.fileobj is self._listener:
                    self._welcome()
                elif isinstance(key.fileobj, socket.socket):
                    self._hear(key.fileobj)
            self._drop_silent_strangers()
        for sock in [*self._peers, *self._strangers]:
            sock.close()

    def stop(self) -> None:
        """End the thread; peers see their connection close, their mapping stays. Idempotent."""
        if self._stopping:
            return
        self._stopping = True
        os.eventfd_write(self._wake, 1)
        if self.is_alive():
            self.join()
        self._listener.close()
        self._selector.close()
        os.close(self._wake)
        self._path.unlink(missing_ok=True)

    def _welcome(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:  # No descriptor is left; the peer waits meanwhile.
            time.sleep(NO_ROOM_PAUSE_S)
            return
        if len(self._peers) + len(self._strangers) >= PEERS_MAX or not _is_of_this_user(sock):
            self.refused += 1
            sock.close()
            return
        sock.settimeout(0)
        self._strangers[sock] = time.monotonic() + GREETING_S
        self._selector.register(sock, selectors.EVENT_READ)

    def _hear(self, sock: socket.socket) -> None:
        """Answer a stranger's greeting; anything else that a peer says or does ends it."""
        try:
            message = sock.recv(HELLO_BYTES + 1)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        stranger = sock in self._strangers
        if stranger and self._hand_over(sock, message):
            self.served += 1
            return
        self.refused += stranger
        self._drop(sock)

    def _hand_over(self, sock: socket.socket, message: bytes) -> bool:
        if len(message) != HELLO_BYTES:
            return False
        try:
            header = data.decode_header(message, reply=False)
            theirs = data.decode_greeting(message[data.HEADER_BYTES :])
        except ProtocolError:
            return False
        wanted = (
            header.operation == data.Operation.HELLO
            and theirs.protocol == limits.PROTOCOL_VERSION
            and theirs.node_id in {"", self._node_id}
        )
        if not self._send(sock, give=wanted):
            return False
        del self._strangers[sock]
        self._peers.add(sock)
        return wanted

    def _send(self, sock: socket.socket, *, give: bool) -> bool:
        segment = self._pool.segment
        ours = data.Greeting(limits.PROTOCOL_VERSION, self._node_id, segment.term)
        descriptors: list[int] = []
        try:
            if give:
                descriptors += [memory.open_file(self._pool.path) for _ in range(2)]
            segments = [(segment.incarnation, self._pool.mapped_bytes)] if give else []
            socket.send_fds(sock, [encode_handout(ours, segments)], descriptors)
        except (OSError, ConfigError):
            return False
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return True

    def _drop(self, sock: socket.socket) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(sock)
        self._strangers.pop(sock, None)
        self._peers.discard(sock)
        sock.close()

    def _drop_silent_strangers(self) -> None:
        now = time.monotonic()
        for sock in [sock for sock, until in self._strangers.items() if now > until]:
            self.refused += 1
            self._drop(sock)


def _is_of_this_user(sock: socket.socket) -> bool:
    try:
        return peer_user(sock) == os.geteuid()
    except OSError:
        return False


def _listen(path: Path) -> socket.socket:
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
        raise ConfigError(f"--memory-root: {path} is too long for a unix socket")
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(str(path))
        listener.listen(256)
        listener.settimeout(0)
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {path}: {error.strerror}") from error
    return listener


class WriterWatch:
    """Tells whether the process that declared a local write still lives.

    It has its own open file of the segment, so that it can test the locks that writers hold.
    """

    def __init__(self, pool: Pool) -> None:
        self._segment = pool.segment
        self._descriptor = memory.open_file(pool.path)

    def is_over(self, slot: int) -> bool:
        """Return whether a slot's writer is gone; its intent is then taken back."""
        if not memory.lock_range(self._descriptor, *Segment.intent_range(slot)):
            return False
        self._segment.finish_intent(slot)
        memory.unlock_range(self._descriptor, *Segment.intent_range(slot))
        return True

    def close(self) -> None:
        """Close the file."""
        memory.close_file(self._descriptor)
