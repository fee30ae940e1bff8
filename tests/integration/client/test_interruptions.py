"""Ctrl-C at any point of a call: the same client goes on, in this thread and in others."""

from __future__ import annotations

import inspect
import signal
import sys
import threading
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from mooncake_client import Client
from mooncake_store.testing import payload

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from mooncake_store.testing import ProcessCluster

SIZE = 5000


class Interruption:
    """Raises ``KeyboardInterrupt`` at one of the points where CPython runs handlers of signals.

    Those are the beginnings of functions and the returns of built-in ones, which a profiler sees.
    Ends of generators and of weak references are left out: nobody gets what is raised there.
    With ``signals`` a signal comes at that point, and its handler decides.
    """

    def __init__(self, point: int, *, signals: bool = False) -> None:
        self._left = point
        self._signals = signals
        self.came = False

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        is_begin = event == "call" and not code.co_flags & inspect.CO_GENERATOR
        if code.co_name == "_remove" or not (is_begin or event == "c_return"):
            return
        self._left -= 1
        if self._left < 0:
            sys.setprofile(None)
            self.came = True
            if not self._signals:
                raise KeyboardInterrupt
            signal.raise_signal(signal.SIGINT)


def interrupt(call: Callable[[], Any], point: int, *, signals: bool = False) -> bool:
    """Call with an interruption at a point; return whether the call has that many."""
    interruption = Interruption(point, signals=signals)
    try:
        sys.setprofile(interruption)
        call()
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)
    return interruption.came


def in_another_thread(call: Callable[[], Any]) -> Any:  # noqa: ANN401 - the call's own
    """Return what a call returns there; it must end."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(call()), daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "the client hangs"
    return results[0]


def lost_places(client: Client) -> list[object]:
    """Return what holds a place among the connections and is not there to be used."""
    backend: Any = client._backend
    pools = [backend.lines, *backend._network.values()]
    return [
        holder for pool in pools for holder in pool._places.holders() if holder not in pool._idle
    ]


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # the collector closes what is lost
@pytest.mark.parametrize("transport", ["tcp", "auto"])
@pytest.mark.parametrize("verb", ["get", "put"])
def test_a_client_survives_interruptions_at_every_point(
    cluster: ProcessCluster, verb: str, transport: str
) -> None:
    value = payload("key", 1, SIZE)
    with Client(
        cluster.address, namespace=f"test-{uuid.uuid4().hex[:12]}", transport=transport
    ) as client:

        def call() -> object:
            if verb == "put":
                return client.put("key", value, replace=True)
            client.forget_locations()
            return client.get("key")

        client.put("key", value)
        point = 0
        while interrupt(call, point):
            assert in_another_thread(lambda: client.get("key")) == value, point
            assert lost_places(client) == [], point
            point += 1
        assert point > 50
        assert client.get("key") == value


@pytest.mark.parametrize("verb", ["get", "put"])
def test_an_embedded_cluster_survives_interruptions_at_every_point(verb: str) -> None:
    assert threading.current_thread() is threading.main_thread()  # only there Ctrl-C raises
    value = payload("key", 1, SIZE)
    with Client("local://?dram=4MiB", deadline_s=15) as client:

        def call() -> object:
            if verb == "put":
                return client.put("key", value, replace=True)
            client.forget_locations()
            return client.get("key")

        client.put("key", value)
        handler = signal.getsignal(signal.SIGINT)
        point = 0
        while interrupt(call, point, signals=True):
            assert in_another_thread(lambda: client.get("key")) == value, point
            assert client.put("key", value, replace=True).created, point
            assert signal.getsignal(signal.SIGINT) is handler, point
            point += 1
        assert point > 50
        assert client.get("key") == value
