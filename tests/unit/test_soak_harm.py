"""Whom the soak harms."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from mooncake_store.testing import Process, ProcessCluster
from tests.faults.soak.__main__ import Soak

if TYPE_CHECKING:
    from pathlib import Path


class Standing(Process):
    """A process in its third life that does as it is told."""

    is_running = True

    def __init__(self, directory: Path) -> None:
        super().__init__("node-1", [], directory / "log")
        self.lives = 3

    def pause(self) -> None:
        pass

    def resume(self) -> None:
        pass


def test_who_is_stopped_is_not_harmed_until_it_goes_on(tmp_path: Path) -> None:
    victim = Standing(tmp_path)
    cluster = SimpleNamespace(directory=tmp_path, master=victim, nodes=[victim])
    soak = Soak(cast("ProcessCluster", cluster), 0, 1, kills_each=0, harm_s=(1.0, 1.0))
    assert soak._is_well(victim)
    soak._pause(victim)
    assert not soak._is_well(victim)
    ((_, resume),) = soak._due
    resume()
    assert soak._is_well(victim)
