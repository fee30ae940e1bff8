"""Several threads that do one job together and end together."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Job = Callable[[threading.Event], None]


def run_together(jobs: Sequence[Job]) -> None:
    """Run each job in a thread of its own until all have returned; a single one runs right here.

    A job gets an event and returns soon after it is set, which happens when another job failed or
    the caller was interrupted. The first failure is raised here, after all jobs have ended.
    """
    stop = threading.Event()
    if len(jobs) == 1:
        jobs[0](stop)
        return

    def guarded(job: Job) -> None:
        try:
            job(stop)
        except BaseException:
            stop.set()
            raise

    with ThreadPoolExecutor(len(jobs), thread_name_prefix="crew") as pool:
        try:
            for future in [pool.submit(guarded, job) for job in jobs]:
                future.result()
        finally:
            stop.set()
