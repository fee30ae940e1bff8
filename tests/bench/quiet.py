"""Is somebody else using the machine? A measurement should know."""

import resource
import time
from dataclasses import dataclass
from pathlib import Path

from tests.bench.processes import TICK_S

_CALM_CORES = 0.15
"""Others' use below which the machine counts as quiet; a desktop's idle noise is half of it."""

_CALM_LOOKS = 3
_LOOK_S = 0.4


@dataclass(frozen=True, slots=True)
class Disturbance:
    """What others took of the CPUs during a measurement.

    Attributes:
        other_cores: Used by other programs, in cores.
        steal_cores: Taken by the hypervisor, in cores.
    """

    other_cores: float
    steal_cores: float

    @property
    def cores(self) -> float:
        """All that the measurement did not get."""
        return self.other_cores + self.steal_cores


class Watch:
    """Counts what others use from the moment it is made."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._busy_s, self._steal_s = _machine_seconds()
        self._mine_s = _own_seconds()

    def read(self) -> Disturbance:
        """Others' use since the start; children count as ours once they have been waited for."""
        wall_s = max(1e-3, time.monotonic() - self._started)
        busy_s, steal_s = _machine_seconds()
        other_s = (busy_s - self._busy_s) - (_own_seconds() - self._mine_s)
        return Disturbance(
            other_cores=round(max(0.0, other_s / wall_s), 3),
            steal_cores=round((steal_s - self._steal_s) / wall_s, 3),
        )


def wait_quiet(limit_s: float) -> None:
    """Return once others have been calm for a second, or when the time is over."""
    end, calm = time.monotonic() + limit_s, 0
    while calm < _CALM_LOOKS and time.monotonic() < end:
        watch = Watch()
        time.sleep(_LOOK_S)
        calm = calm + 1 if watch.read().cores < _CALM_CORES else 0


def _machine_seconds() -> tuple[float, float]:
    """(busy, stolen) CPU seconds of the whole machine since boot."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    user, nice, system, _, _, irq, softirq, steal = (int(field) * TICK_S for field in fields)
    return user + nice + system + irq + softirq, steal


def _own_seconds() -> float:
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
