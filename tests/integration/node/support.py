"""Objects for the tests of a running node, and ways to put and look at them."""

from __future__ import annotations

import re
import socket
import sys
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from mooncake_store import extent, fingerprint
from mooncake_store.deadline import Deadline
from mooncake_store.testing import Process, wait_until
from mooncake_store.testing.payload import payload
from mooncake_store.transport import DataPath, ReadTask, ShmDataPath, TcpDataPath, WriteTask
from mooncake_store.wire import control
from mooncake_store.wire.data import GREETING_BYTES, Greeting, encode_greeting
from mooncake_store.wire.data import HEADER_BYTES as DATA_HEADER_BYTES

if TYPE_CHECKING:
    from mooncake_store.wire.control import Register

MIB = 1 << 20
_counts = count(1)


@dataclass
class Thing:
    """One object at its place."""

    incarnation: int
    offset: int
    identity: extent.Identity
    sealed: extent.Sealed
    content: bytes

    @property
    def bytes(self) -> int:
        raw = extent.HEADER_BYTES + len(self.content) + len(self.sealed.tail)
        return -(-raw // 512) * 512

    @property
    def item(self) -> control.FreeItem:
        return control.FreeItem(self.incarnation, self.offset, self.bytes, self.identity.version)

    def write_task(self) -> WriteTask:
        return WriteTask(
            self.incarnation, self.offset, self.identity, self.sealed, [memoryview(self.content)]
        )

    def read_task(self) -> ReadTask:
        target = memoryview(bytearray(len(self.content)))
        return ReadTask(self.incarnation, self.offset, self.identity, 0, len(target), [target])


def make_thing(
    incarnation: int, offset: int, size: int, *, key: str = "k", term: int = 1, epoch: int = 1
) -> Thing:
    version = term << 40 | next(_counts)
    content = payload(key, version, size)
    identity = extent.Identity(fingerprint.fingerprint("n", key), version, 0, epoch, size)
    digests = extent.hash_payload([memoryview(content)])
    sealed = extent.seal(identity, digests, extent.Names("n", key))
    return Thing(incarnation, offset, identity, sealed, content)


def put(path: DataPath, *things: Thing) -> None:
    tasks = [thing.write_task() for thing in things]
    path.write(tasks, Deadline(30))
    for task in tasks:
        if task.error is not None:
            raise task.error


def get(path: DataPath, thing: Thing) -> bytes:
    task = thing.read_task()
    path.read([task], Deadline(30))
    if task.error is not None:
        raise task.error
    return bytes(task.targets[0])


def tcp_of(register: Register) -> TcpDataPath:
    return TcpDataPath(register.host, register.port, node_id=register.node_id, node=register.name)


def shm_of(register: Register) -> ShmDataPath:
    return ShmDataPath.connect(
        register.local_path, node_id=register.node_id, node=register.name, deadline=Deadline(30)
    )


def greeted_socket(register: Register) -> socket.socket:
    """Return a raw data connection past its greeting."""
    sock = socket.create_connection((register.host, register.port), timeout=30)
    sock.sendall(encode_greeting(Greeting(1, register.node_id, 0), 1, reply=False))
    assert len(receive(sock, DATA_HEADER_BYTES + GREETING_BYTES)) > 0
    return sock


def receive(sock: socket.socket, size: int) -> bytes:
    got = b""
    while len(got) < size:
        piece = sock.recv(size - len(got))
        if not piece:
            raise EOFError(f"closed after {len(got)} of {size} bytes")
        got += piece
    return got


class NodeUnderTest(Process):
    """``mooncake-store node`` as a process."""

    def __init__(self, directory: Path, name: str, **options: object) -> None:
        words = {"name": name, "dram": "32MiB", **options}
        flags = [
            part
            for key, value in words.items()
            if value != ""
            for part in (f"--{key.replace('_', '-')}", str(value))
        ]
        command = [sys.executable, "-m", "mooncake_store", "node", *flags]
        super().__init__(name, command, directory / f"{name}-{next(_counts)}.log")

    @property
    def output(self) -> str:
        return self.log_path.read_text()

    def ready_line(self, deadline_s: float = 20.0) -> str:
        """Wait for the line that says what the node gives."""

        def found() -> str:
            assert self.is_running, self.output
            last = self.output.rsplit("--- ", 1)[-1]
            match = re.search(r"^node ready: .*$", last, re.MULTILINE)
            return match[0] if match else ""

        return wait_until(found, deadline_s, what="the node is ready")


def memory_of(pid: int) -> int:
    """Return the private memory of a process in bytes: anonymous pages only."""
    status = Path(f"/proc/{pid}/status").read_text()
    match = re.search(r"RssAnon:\s+(\d+) kB", status)
    assert match
    return int(match[1]) * 1024
