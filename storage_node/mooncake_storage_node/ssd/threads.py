"""Threads of a store: one that ends by mistake takes the store down, not the node.

Those that write stand behind the ones that serve memory, if the kernel lets them (docs/adr/0071).
"""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

COURTESY: Final = 10
"""Steps of niceness: with a CPU that is wanted by both, ten times the time goes to who serves."""
_NICE_MAX: Final = 19

_log = logging.getLogger(__name__)


def make_thread(
    name: str,
    target: Callable[[], None],
    on_crash: Callable[[str], None],
    *,
    courteous: bool = False,
) -> threading.Thread:
    """Return a thread that is not started yet.

    Args:
        name: Shown in stack dumps.
        target: What it runs.
        on_crash: Told in a sentence when ``target`` raises, which is a mistake of ours.
        courteous: Nobody waits for it who waits for memory; see ``stand_behind``.
    """

    def run() -> None:
        if courteous:
            stand_behind(threading.get_native_id())
        try:
            target()
        except Exception as error:  # noqa: BLE001 - the supervisor of this store: reported, reopened
            _log.critical("the thread %r of a store has failed", name, exc_info=error)
            on_crash(f"a mistake in thread {name!r}: {error!r}")

    return threading.Thread(target=run, name=name, daemon=True)


def stand_behind(thread: int) -> None:
    """Let a thread give way to all others that want its CPU, and never take theirs as it wakes.

    A kernel that refuses leaves it as it is.

    Args:
        thread: Number by which the kernel knows it; 0: the caller's.
    """
    try:
        niceness = os.getpriority(os.PRIO_PROCESS, thread) + COURTESY
        os.setpriority(os.PRIO_PROCESS, thread, min(niceness, _NICE_MAX))
        os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))
    except OSError as error:
        _log.info("what writes to disks is scheduled like everything else: %s", error)
