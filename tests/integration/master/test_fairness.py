"""One client asks for tens of thousands of keys at a time; the others hardly notice (FR-039).

How long a lookup takes is a matter of the machine, too. What is the master's alone is how many of
other clients' frames it handles before it answers one.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import pytest

from mooncake_store.limits import BATCH_KEYS_MAX, FRAME_BYTES_MAX
from mooncake_store.testing import MasterProcess, WireClient, wait_until
from mooncake_store.wire import control, frames
from tests.integration.master.fake_node import FakeNode, put

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.processes, pytest.mark.slow]

PROBED_KEYS: Final = 50_000
FRAMES: Final = PROBED_KEYS // BATCH_KEYS_MAX + 1


@pytest.fixture
def space(master: MasterProcess) -> Iterator[control.NamespaceRecord]:
    with FakeNode(master.port), WireClient("127.0.0.1", master.port) as wire:
        opened: control.NamespaceRecord = wire.ask(control.OpenNamespace("fair"))
        put(wire, opened, "k")
        yield opened


class BulkClient:
    """A client that sends a whole pipeline of full frames at once.

    Attributes:
        left: Frames that have not been answered yet, as far as was looked.
    """

    def __init__(self, master: MasterProcess, space: control.NamespaceRecord) -> None:
        keys = [f"absent-{number:056d}" for number in range(BATCH_KEYS_MAX)]
        probe = control.Exists(space.slot, space.epoch, keys)
        kind = control.KINDS[control.Exists]
        self._pipeline = b"".join(
            frames.encode_frame(kind, probe, request_id=number + 2, deadline_ms=60_000)
            for number in range(FRAMES)
        )
        self.wire = WireClient("127.0.0.1", master.port, deadline_s=60.0)
        self.left = 0
        self._decoder = frames.FrameDecoder(FRAME_BYTES_MAX)

    def begin(self) -> None:
        self.left = FRAMES
        self.wire.socket.settimeout(60.0)
        self.wire.send_bytes(self._pipeline)

    def look(self) -> None:
        """Take the answers that are there, without waiting for any."""
        self.wire.socket.settimeout(0.0)
        with contextlib.suppress(BlockingIOError):
            while self.left:
                count = self.wire.socket.recv_into(self._decoder.buffer())
                assert count, "the master has closed the connection"
                self._decoder.received(count)
                for frame in self._decoder:
                    answer = control.REPLY_DECODERS[frame.kind].decode(frame.body)
                    assert isinstance(answer, control.ExistsReply)
                    self.left -= 1


@pytest.mark.parametrize("clients", [1, 3])
def test_lookups_are_answered_amid_probes_of_fifty_thousand_keys(
    master: MasterProcess, space: control.NamespaceRecord, clients: int
) -> None:
    bulk = [BulkClient(master, space) for _ in range(clients)]
    with WireClient("127.0.0.1", master.port, deadline_s=60.0) as wire:

        def answered_meanwhile() -> int:
            for client in bulk:
                client.begin()
            count = 0
            while any(client.left for client in bulk):
                assert wire.ask(control.Exists(space.slot, space.epoch, ["k"])).found == b"\1"
                for client in bulk:
                    client.look()
                count += any(client.left for client in bulk)
            return count

        # Not each time: a test that had to wait for a processor comes when the others are done.
        wait_until(lambda: answered_meanwhile() >= FRAMES // 2, 60)
    for client in bulk:
        client.wire.close()
