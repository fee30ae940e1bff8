"""One client asks for tens of thousands of keys at a time; the others hardly notice (FR-039)."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from mooncake_store.limits import BATCH_KEYS_MAX
from mooncake_store.testing import MasterProcess, WireClient
from mooncake_store.wire import control
from tests.integration.master.fake_node import FakeNode, put

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.processes, pytest.mark.slow]

PROBED_KEYS = 50_000
P99_S_MAX = 0.05
TRIES = 3
"""A machine that is busy with something else is given another chance, not a longer time."""


@pytest.fixture
def space(master: MasterProcess) -> Iterator[control.NamespaceRecord]:
    with FakeNode(master.port), WireClient("127.0.0.1", master.port) as wire:
        opened: control.NamespaceRecord = wire.ask(control.OpenNamespace("fair"))
        put(wire, opened, "k")
        yield opened


class BulkClients:
    """Clients that never stop probing, each with a whole pipeline of full frames."""

    def __init__(self, master: MasterProcess, space: control.NamespaceRecord, count: int) -> None:
        keys = [f"absent-{number:056d}" for number in range(BATCH_KEYS_MAX)]
        self._probe = control.Exists(space.slot, space.epoch, keys)
        self._stop = threading.Event()
        self._wires = [WireClient("127.0.0.1", master.port, deadline_s=60) for _ in range(count)]
        self._threads = [threading.Thread(target=self._run, args=(wire,)) for wire in self._wires]
        self.rounds = 0
        for thread in self._threads:
            thread.start()

    def _run(self, wire: WireClient) -> None:
        while not self._stop.is_set():
            numbers = [wire.send(self._probe) for _ in range(PROBED_KEYS // BATCH_KEYS_MAX + 1)]
            for number in numbers:
                assert len(wire.reply(number).found) == BATCH_KEYS_MAX
            self.rounds += 1

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60.0)
        for wire in self._wires:
            wire.close()


@pytest.mark.parametrize("clients", [1, 3])
def test_a_single_lookup_stays_quick_beside_probes_of_fifty_thousand_keys(
    master: MasterProcess, space: control.NamespaceRecord, clients: int
) -> None:
    percentiles = []
    for _ in range(TRIES):
        bulk = BulkClients(master, space, clients)
        try:
            percentiles.append(lookups_p99_s(master, space))
        finally:
            bulk.close()
        assert bulk.rounds
        if percentiles[-1] <= P99_S_MAX:
            break
    assert min(percentiles) <= P99_S_MAX


def lookups_p99_s(master: MasterProcess, space: control.NamespaceRecord) -> float:
    """Look one key up for a while, and return the 99th percentile of the times."""
    times = []
    with WireClient("127.0.0.1", master.port) as wire:
        end_s = time.monotonic() + 2.0
        while time.monotonic() < end_s:
            begun_s = time.monotonic()
            assert wire.ask(control.Exists(space.slot, space.epoch, ["k"])).found == b"\1"
            times.append(time.monotonic() - begun_s)
    return sorted(times)[len(times) * 99 // 100]
