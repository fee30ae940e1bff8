"""A storage node without memory, for tests of the master alone: it registers and agrees."""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
from typing import TYPE_CHECKING, Final, Self

from mooncake_store.limits import MIB
from mooncake_store.testing import WireClient
from mooncake_store.types import Tier
from mooncake_store.wire import control, frames

if TYPE_CHECKING:
    from types import TracebackType

HEARTBEAT_S: Final = 0.1


class FakeNode:
    """Registers one segment and, where that has bytes, a disk, sends heartbeats, and confirms
    whatever it is told.

    Attributes:
        instructed: Every request of the master, in order.
        silent: While set, requests of the master are taken and not answered.
    """

    def __init__(
        self, port: int, *, name: str = "fake", segment_bytes: int = 64 * MIB, disk_bytes: int = 0
    ) -> None:
        self.instructed: list[control.Message] = []
        self.silent = threading.Event()
        self._stop = threading.Event()
        self._wire = WireClient("127.0.0.1", port, name=name, role="node")
        self._beats = WireClient("127.0.0.1", port, name=name, role="node")
        self.node_id = secrets.token_hex(16)
        self.incarnation = secrets.randbits(62)
        records = [control.SegmentRecord(self.incarnation, segment_bytes)]
        if disk_bytes:
            records.append(control.SegmentRecord(secrets.randbits(62), disk_bytes, Tier.SSD))
        self.registered: control.Registered = self._wire.ask(
            control.Register(name, self.node_id, "127.0.0.1", 1, "", {}, tuple(records))
        )
        self._threads = [
            threading.Thread(target=target, daemon=True) for target in (self._obey, self._beat)
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Go away."""
        self._stop.set()
        for wire in (self._wire, self._beats):
            with contextlib.suppress(OSError):
                wire.socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads from it
        for thread in self._threads:
            thread.join(5.0)
        self._wire.close()
        self._beats.close()

    def _obey(self) -> None:
        while not self._stop.is_set():
            try:
                frame = self._wire.frame(deadline_s=3600.0)
            except Exception:  # noqa: BLE001 - the connection ended, by whichever side
                return
            message = control.REQUEST_DECODERS[frame.kind].decode(frame.body)
            self.instructed.append(message)
            if self.silent.is_set():
                continue
            self._wire.send_bytes(
                frames.encode_frame(
                    frame.kind, _answer(message), request_id=frame.request_id, flags=frames.REPLY
                )
            )

    def _beat(self) -> None:
        index, term = self.registered.index, self.registered.term
        while not self._stop.wait(HEARTBEAT_S):
            try:
                self._beats.ask(control.Heartbeat(index, self.node_id, term, 0, 0, 0))
            except Exception:  # noqa: BLE001 - as above
                return


def _answer(message: control.Message) -> control.Message:
    match message:
        case control.FreeExtents():
            return control.Freed(b"\1" * len(message.items))
        case control.ListDirectory():
            return control.DirectoryPage([], -1)
        case _:
            return control.Done()


def put(wire: WireClient, space: control.NamespaceRecord, key: str, length: int = 1000) -> int:
    """Put an object that has no bytes; return its version."""
    started: control.PutStarted = wire.ask(
        control.PutStart(space.slot, space.epoch, [control.PutItem(key, length)])
    )
    grant = started.items[0]
    assert isinstance(grant, control.PutGrant), grant
    written = (1 << len(grant.replicas)) - 1
    wire.ask(control.PutCommit([control.CommitItem(grant.version, written)]))
    return grant.version
