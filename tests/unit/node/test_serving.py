"""What a node's process sets for all of its threads."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

import pytest

from mooncake_storage_node import app
from mooncake_storage_node.settings import NodeSettings
from mooncake_store.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def interval() -> Iterator[float]:
    before = sys.getswitchinterval()
    yield before
    sys.setswitchinterval(before)


def test_threads_of_a_node_give_the_interpreter_away_sooner_than_python_has_them(
    interval: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def refuse(_: NodeSettings) -> app.StorageNode:
        seen.append(sys.getswitchinterval())
        raise ConfigError("no node today")

    monkeypatch.setattr(app, "StorageNode", refuse)
    monkeypatch.setattr(app, "_end_on_failing_threads", list)
    monkeypatch.setattr(signal, "pthread_sigmask", lambda *_: set())
    with pytest.raises(ConfigError):
        app.serve(NodeSettings(), lambda _: None)
    assert seen == [pytest.approx(app.SWITCH_S)]
    assert seen[0] < interval
