"""Whose turn it is on the CPUs: what writes to the disk stands behind what serves."""

from __future__ import annotations

import errno
import os
import threading
from typing import TYPE_CHECKING

from mooncake_storage_node.ssd import OsFiles, threads
from mooncake_store.limits import KIB
from mooncake_store.testing import wait_until
from tests.faults.ssd.handling import WAIT_S, fill, opened, outcomes

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

WRITERS = ("ssd write 0", "ssd write 1", "ssd commit", "ssd keeper")


def niceness(thread: int) -> int:
    return os.getpriority(os.PRIO_PROCESS, thread)


def ids(*names: str) -> list[int]:
    found = {each.name: each.native_id for each in threading.enumerate()}
    return [found[name] or 0 for name in names]


def stands_behind(thread: int) -> bool:
    expected = min(19, niceness(0) + threads.COURTESY)
    return niceness(thread) == expected and os.sched_getscheduler(thread) == os.SCHED_BATCH


def test_what_writes_stands_behind_and_what_reads_does_not(tmp_path: Path) -> None:
    with opened(tmp_path, files=OsFiles()) as store:
        volume = store._volume
        assert volume is not None
        children = [volume._index.pid]  # type: ignore[attr-defined]  # that of a process
        for thread in (*ids(*WRITERS), *children):
            wait_until(lambda thread=thread: stands_behind(thread), WAIT_S, what="it steps back")
        for thread in ids("ssd read 0", "ssd watch", "MainThread"):
            assert niceness(thread) == niceness(0)
            assert os.sched_getscheduler(thread) == os.SCHED_OTHER


def test_a_kernel_that_refuses_costs_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "not in this container")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    with opened(tmp_path) as store:
        made = fill(store, range(1, 4), 64 * KIB)
        assert outcomes(store, made) == dict.fromkeys(made, "ok")
