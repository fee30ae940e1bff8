"""The machine's own limits behind the adapter: a copy in memory, a raw Python socket.

They keep as many objects as the stores do and read them in the same order, so the CPU's caches
help them no more than the stores. Run as a module, this is the far end of the socket.
"""

import argparse
import socket
import struct
import sys
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path

from tests.bench.adapter import Adapter, Region, new_region
from tests.bench.processes import free_port

_REQUEST = struct.Struct("<IIQ")
"""Call, slot, bytes."""


class _Call(IntEnum):
    PUT = 1
    GET = 2


class _Slots:
    """Which slot of memory holds which key; slots of removed keys are used again."""

    def __init__(self) -> None:
        self._used: dict[str, int] = {}
        self._free: list[int] = []

    def __getitem__(self, key: str) -> int:
        return self._used[key]

    def __contains__(self, key: str) -> bool:
        return key in self._used

    def acquire(self, key: str) -> int:
        """The key's slot, a new one if it has none."""
        if key not in self._used:
            self._used[key] = self._free.pop() if self._free else len(self._used)
        return self._used[key]

    def release(self, keys: Sequence[str]) -> None:
        """Give the slots of these keys back."""
        self._free.extend(self._used.pop(key) for key in keys)


class MemcpyAdapter(Adapter):
    """One thread that copies within one process."""

    def start(self, segment_bytes: int) -> None:
        self._segment_bytes = segment_bytes

    def connect(self) -> None:
        self._slots = _Slots()
        self._memory: dict[tuple[int, int], Region] = {}
        """{(slot, bytes): its memory}"""

    def close(self) -> None:
        self._memory.clear()

    def put(self, key: str, source: Region) -> None:
        place = (self._slots.acquire(key), source.size)
        if place not in self._memory:
            self._memory[place] = new_region(source.size)
        self._memory[place].view[:] = source.view

    def get(self, key: str) -> memoryview:
        raise NotImplementedError

    def get_into(self, key: str, target: Region) -> None:
        target.view[:] = self._memory[self._slots[key], target.size].view

    def exists(self, key: str) -> bool:
        return key in self._slots

    def remove(self, keys: Sequence[str]) -> None:
        self._slots.release(keys)


class RawSocketAdapter(Adapter):
    """One TCP connection: a request of 16 bytes, then the payload by sendall and recv_into.

    ``wait_all`` receives with MSG_WAITALL. Which of the two is faster depends on the size and
    the kernel, so both are measured and the faster one is the reference.
    """

    def __init__(self, log_directory: Path, *, wait_all: bool = False) -> None:
        super().__init__(log_directory)
        self._flags = socket.MSG_WAITALL if wait_all else 0

    def start(self, segment_bytes: int) -> None:
        del segment_bytes  # The far end makes room as it goes.
        self.port = free_port()
        module = [sys.executable, "-m", "tests.bench.machine"]
        self.servers.spawn("server", [*module, str(self.port), str(self._flags)])
        self.servers.wait_listening("server", self.port)

    def connect(self) -> None:
        self._slots = _Slots()
        self._socket = socket.create_connection(("127.0.0.1", self.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        self._socket.close()

    def put(self, key: str, source: Region) -> None:
        self._socket.sendall(_REQUEST.pack(_Call.PUT, self._slots.acquire(key), source.size))
        self._socket.sendall(source.view)
        _receive(self._socket, memoryview(bytearray(1)), self._flags)

    def get(self, key: str) -> memoryview:
        raise NotImplementedError

    def get_into(self, key: str, target: Region) -> None:
        self._socket.sendall(_REQUEST.pack(_Call.GET, self._slots[key], target.size))
        _receive(self._socket, target.view, self._flags)

    def exists(self, key: str) -> bool:
        return key in self._slots

    def remove(self, keys: Sequence[str]) -> None:
        self._slots.release(keys)


def _receive(connection: socket.socket, target: memoryview, flags: int) -> None:
    received = 0
    while received < target.nbytes:
        count = connection.recv_into(target[received:], 0, flags)
        if not count:
            raise ConnectionError("the other end has closed")
        received += count


def _serve(connection: socket.socket, flags: int) -> None:
    """Answer one client until it closes."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    memory: dict[tuple[int, int], Region] = {}
    request = memoryview(bytearray(_REQUEST.size))
    while True:
        try:
            _receive(connection, request, flags)
        except ConnectionError:
            return
        call, slot, size = _REQUEST.unpack(request)
        place = (slot, size)
        if place not in memory:
            memory[place] = new_region(size)
        if call == _Call.PUT:
            _receive(connection, memory[place].view, flags)
            connection.sendall(b"\1")
        else:
            connection.sendall(memory[place].view)


def main() -> None:
    """Serve one client after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("flags", type=int)
    arguments = parser.parse_args()
    with socket.create_server(("127.0.0.1", arguments.port)) as listener:
        while True:
            connection, _ = listener.accept()
            with connection:
                _serve(connection, arguments.flags)


if __name__ == "__main__":
    main()
