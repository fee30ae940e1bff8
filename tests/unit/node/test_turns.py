"""Connections of one data thread take turns, and leave while they wait for theirs."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pytest

from mooncake_storage_node.data_connection import Disconnect, Wait
from mooncake_storage_node.data_server import DataLimits, _Worker
from mooncake_storage_node.node_view import NodeView
from mooncake_storage_node.writes import IncomingWrites

if TYPE_CHECKING:
    from collections.abc import Iterator


class Busy:
    """A connection that always has more to do, until it disconnects."""

    def __init__(self, worker: Any) -> None:  # noqa: ANN401 - a private class
        self.runs = 0
        self.ends = False
        self._socket, self._other = socket.socketpair()
        worker._connections[self.fileno()] = self
        worker._marks[self.fileno()] = (0.0, 0)

    def fileno(self) -> int:
        return self._socket.fileno()

    def run(self) -> Wait:
        self.runs += 1
        if self.ends:
            raise Disconnect("closed")
        return Wait.TURN

    def close(self) -> None:
        self._socket.close()
        self._other.close()


@pytest.fixture
def worker() -> Iterator[Any]:
    made = _Worker([], NodeView("0" * 32, {}, IncomingWrites()), DataLimits(), 0)
    yield made
    made._close_all()
    made.close()


def test_who_disconnects_in_his_turn_leaves_no_other_turn_behind(worker: Any) -> None:  # noqa: ANN401
    """An event may have given him one while he waited for the next one: a node died of that."""
    one, two = Busy(worker), Busy(worker)
    for connection in (one, one, two):
        worker._run(connection)
    one.ends = True
    for _ in range(3):
        worker._take_turns()
    assert (one.runs, two.runs) == (3, 4)
    assert worker.connection_count == 1
    assert worker.counters.cut_off == {"closed": 1}


def test_who_is_closed_before_his_turn_does_not_get_it(worker: Any) -> None:  # noqa: ANN401
    one, two = Busy(worker), Busy(worker)
    worker._run(one)
    worker._run(two)
    worker._close(two, "stalled")
    worker._take_turns()
    assert (one.runs, two.runs) == (2, 1)
