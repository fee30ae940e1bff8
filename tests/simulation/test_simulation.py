"""Nothing is lost, wrong, revived or late in random schedules of load and faults.

Here some hundreds of them (half a minute on two cores); half of them have disks. ``make simulate
SEEDS=n`` runs as many as wanted, ``make simulate FIRST=seed SEEDS=1`` replays the one that failed.
"""

from __future__ import annotations

import os

import pytest

from tests.simulation.faults import Profile
from tests.simulation.schedule import Report, Schedule

SCHEDULES = int(os.environ.get("SIMULATION_SCHEDULES", "600"))
PARTS = 8
"""So that several workers share the work."""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(PARTS))
def test_no_schedule_breaks_a_promise(part: int) -> None:
    total = Report()
    for seed in range(part, SCHEDULES, PARTS):
        total.add(Schedule(seed).run())
    assert not total.violations, "\n".join(total.failures[:3])
    assert total.acknowledged > 10 * total.schedules
    assert total.kills > total.schedules // 4


@pytest.mark.parametrize("profile", list(Profile))
def test_a_seed_is_the_same_story_each_time(profile: Profile) -> None:
    def story() -> list[str]:
        schedule = Schedule(14, profile)
        schedule.fault_count = 6
        schedule.run()
        return [*map(str, schedule.world.history.calls), *schedule.chaos.log]

    first = story()
    assert len(first) > 50
    assert first == story()
