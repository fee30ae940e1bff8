"""An index in a process of its own (``index_server``), so that its disk cannot end the node's.

A frame is a length (u32) and a msgpack array. Requests are ``[operation, ...]``; replies ``[0,
result]``, ``[1, sentence]`` for ``IndexFailed`` and ``[2, sentence]`` for ``IndexDamaged``.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import struct
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mooncake_storage_node.ssd.core.rows import RowBlock
from mooncake_storage_node.ssd.index import Commit, Index, IndexDamaged, IndexFailed, Summary
from mooncake_store.deadline import Deadline
from mooncake_store.limits import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

FRAME_BYTES_MAX: Final = 256 * MIB
"""A page of 4096 records with keys of 4 KiB takes 32 MiB; anything longer is no frame of ours."""

SERVER: Final = "mooncake_storage_node.ssd.index_server"

CLOSE_S: Final = 3.0
"""Time to end: there is nothing left to do but to leave."""

OPEN_S: Final = 120.0
"""Time to start, and for each part of a load: reading 4 GiB of index from a slow disk."""

_LENGTH: Final = struct.Struct("<I")
OK, FAILED, DAMAGED = range(3)
_DEADLY: Final = frozenset({signal.SIGBUS, signal.SIGSEGV, signal.SIGABRT})
"""What damaged pages of LMDB do to a process (an assertion of LMDB aborts it)."""


class IndexProcess(Index):
    """The parent's side."""

    def __init__(self, folder: Path, map_bytes: int, *, lock: int, timeout_s: float) -> None:
        """Start the process and open the index.

        Args:
            folder: Where the index is or will be.
            map_bytes: Most bytes it may ever have.
            lock: Descriptor whose lock the process shares.
            timeout_s: Longest time for a commit or a page.

        Raises:
            IndexFailed, IndexDamaged: It cannot be opened.
        """
        self._timeout_s = timeout_s
        self._summary = Summary({}, 0, 0)
        self._turn = threading.Lock()
        self._socket, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            self._process = subprocess.Popen(  # noqa: S603 - own interpreter, own module
                [sys.executable, "-P", "-m", SERVER, str(number)],
                cwd=folder,
                pass_fds=(number, lock),
                stdin=subprocess.DEVNULL,
            )
        try:
            self._ask(["open", ".", map_bytes], OPEN_S)
        except (IndexFailed, IndexDamaged):
            self.close()
            raise

    def load(self) -> Iterator[RowBlock]:
        """See ``Index``; the process prepares a block while the last one is taken up."""
        self._post(["load"], OPEN_S)
        while (block := self._reply(OPEN_S)) is not None:
            self._post(["more"], OPEN_S)
            yield RowBlock(*block)
        self._summary = Summary(*self._ask(["summary"], self._timeout_s))

    def summary(self) -> Summary:
        """See ``Index``."""
        return self._summary

    def commit(self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes]) -> Commit:
        """See ``Index``."""
        return Commit(*self._ask(["commit", puts, deletes], self._timeout_s))

    def page(self, location: int, limit: int) -> list[tuple[bytes, bytes]]:
        """See ``Index``."""
        return [(key, value) for key, value in self._ask(["page", location, limit], OPEN_S)]

    def close(self) -> None:
        """See ``Index``."""
        self._socket.close()
        try:
            self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # It hangs in the disk.
                self._process.wait(1.0)

    @property
    def pid(self) -> int:
        """Process id, for tests that end it."""
        return self._process.pid

    def _ask(self, request: list[Any], timeout_s: float) -> Any:  # noqa: ANN401 - a decoded reply
        with self._turn:
            self._post(request, timeout_s)
            return self._reply(timeout_s)

    def _post(self, request: list[Any], timeout_s: float) -> None:
        try:
            send(self._socket, request, Deadline(timeout_s))
        except OSError as error:
            raise self._unreachable(error, timeout_s) from error

    def _reply(self, timeout_s: float) -> Any:  # noqa: ANN401 - a decoded reply
        try:
            reply = receive(self._socket, Deadline(timeout_s))
        except OSError as error:
            raise self._unreachable(error, timeout_s) from error
        if reply is None:
            raise self._end()
        code, result = reply
        if code == FAILED:
            raise IndexFailed(result)
        if code == DAMAGED:
            raise IndexDamaged(result)
        return result

    def _unreachable(self, error: OSError, timeout_s: float) -> IndexFailed:
        if not isinstance(error, TimeoutError):
            return IndexFailed(f"the index process cannot be reached: {error}")
        self._process.kill()
        return IndexFailed(f"the index did not answer within {timeout_s:g} s")

    def _end(self) -> Exception:
        """Return what it means that the process is gone."""
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return IndexFailed("the index process hung up")
        if -code in _DEADLY:
            name = signal.Signals(-code).name
            return IndexDamaged(f"the index ended its process by {name}")
        return IndexFailed(f"the index process ended with code {code}")


def send(sock: socket.socket, message: list[Any], deadline: Deadline) -> None:
    """Send a message; ``TimeoutError`` at the deadline."""
    body = msgspec.msgpack.encode(message)
    sock.settimeout(max(0.001, deadline.left_s()))
    sock.sendall(_LENGTH.pack(len(body)) + body)


def receive(sock: socket.socket, deadline: Deadline | None) -> list[Any] | None:
    """Return the next message; None: the peer is gone. No deadline: wait for ever."""
    head = _exactly(sock, _LENGTH.size, deadline)
    if head is None:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > FRAME_BYTES_MAX:
        raise OSError(f"a frame of {length} bytes is none of ours")
    body = _exactly(sock, length, deadline)
    return None if body is None else msgspec.msgpack.decode(body, type=list[Any])


def _exactly(sock: socket.socket, size: int, deadline: Deadline | None) -> bytearray | None:
    buffer = bytearray(size)
    view = memoryview(buffer)
    while view:
        sock.settimeout(max(0.001, deadline.left_s()) if deadline else None)
        try:
            got = sock.recv_into(view)
        except ConnectionError:
            return None
        if not got:
            return None
        view = view[got:]
    return buffer
