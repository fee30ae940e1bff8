"""``python -m tests.simulation``: run schedules and print one JSON object at the end."""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import sys
import time
import traceback

from tests.simulation.faults import Profile
from tests.simulation.schedule import Report, Schedule


def run_seed(seed: int, profile: Profile | None = None) -> Report:
    """Run one schedule; a crash of the simulation itself is a violation too."""
    try:
        return Schedule(seed, profile).run()
    except Exception as error:  # noqa: BLE001 - the seed must be printed whatever happened
        text = f"seed {seed}: {error!r}\n{traceback.format_exc()}"
        return Report(schedules=1, violations=1, failures=[text])


def main() -> int:
    """Parse the command line, run, print."""
    parser = argparse.ArgumentParser(prog="tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many schedules")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--profile", choices=[profile.value for profile in Profile])
    options = parser.parse_args()
    profile = Profile(options.profile) if options.profile else None
    total = Report()
    begin_s = time.monotonic()
    seeds = range(options.first, options.first + options.seeds)
    with multiprocessing.Pool(options.workers) as pool:
        run = functools.partial(run_seed, profile=profile)
        for report in pool.imap_unordered(run, seeds, chunksize=8):
            total.add(report)
            for failure in report.failures:
                seed = failure.split()[1].rstrip(":")
                sys.stderr.write(f"{failure}\n  replay: make simulate FIRST={seed} SEEDS=1\n")
    sys.stderr.write(f"{time.monotonic() - begin_s:.1f} s\n")
    sys.stdout.write(json.dumps(total.record()) + "\n")
    return 1 if total.violations else 0


if __name__ == "__main__":
    sys.exit(main())
