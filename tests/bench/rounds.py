"""Runs the measurements: rounds, and in a round every part, and in a part every system in turn.

Each measurement is a fresh set of processes, so no system inherits a warm allocator, and a slow
drift of the machine falls on all systems alike. The order rotates from round to round.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.parts import PARTS
from tests.bench.quiet import Disturbance, Watch, wait_quiet
from tests.bench.rows import RowSpec
from tests.bench.scale import FULL, QUICK
from tests.bench.systems import SYSTEMS

ROOT = Path(__file__).resolve().parents[2]
"""The repository, from which ``tests.bench`` can be imported."""

_QUIET_WAIT_S = 30.0
_CALM_CORES = 0.12
"""A measurement that others disturbed by more than this is tried again."""

_PART_S = 300.0
_MEMORY_S = 2400.0
"""A million puts, at the 400 a second of a badly disturbed machine."""


@dataclass(frozen=True, slots=True)
class Step:
    """One measurement to make."""

    round_index: int
    part: str
    system: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one try of a step gave: values, or the reason why there are none."""

    values: Mapping[str, float]
    reason: str
    disturbance: Disturbance


@dataclass(slots=True)
class Record:
    """Everything measured so far.

    Attributes:
        samples: {system: {metric: {round: value}}}
        reasons: {(part, system): why it gave nothing}
        disturbances: {"round/part/system": what others took of the CPUs}
    """

    samples: dict[str, dict[str, dict[int, float]]] = field(default_factory=dict)
    reasons: dict[tuple[str, str], str] = field(default_factory=dict)
    disturbances: dict[str, Disturbance] = field(default_factory=dict)

    def add(self, step: Step, outcome: Outcome) -> None:
        """Take the outcome of one step."""
        place = f"{step.round_index}/{step.part}/{step.system}"
        self.disturbances[place] = outcome.disturbance
        if outcome.reason:
            self.reasons[step.part, step.system] = outcome.reason
        for metric, value in outcome.values.items():
            by_metric = self.samples.setdefault(step.system, {})
            by_metric.setdefault(metric, {})[step.round_index] = value


def plan(specs: Sequence[RowSpec], rounds: int, *, quick: bool) -> list[Step]:
    """All steps that the rows need, in order, each once."""
    needed = {pair for spec in specs for pair in spec.needs()}
    memory_rounds = (QUICK if quick else FULL).memory_rounds_max
    return [
        Step(index, part, system)
        for index in range(rounds)
        for part in PARTS
        if part != "memory" or index < memory_rounds
        for system in _rotated([name for name in SYSTEMS if (part, name) in needed], index)
    ]


def _rotated(names: list[str], by: int) -> Iterator[str]:
    for index in range(len(names)):
        yield names[(index + by) % len(names)]


class Runner:
    """Makes steps into outcomes, each in a process of its own."""

    def __init__(
        self, log_directory: Path, rival_python: Path, *, quick: bool, attempts: int
    ) -> None:
        self._log_directory = log_directory
        self._rival_python = rival_python
        self._quick = quick
        self._attempts = attempts

    def run(self, step: Step, report: Callable[[str], None]) -> Outcome:
        """The outcome of the least disturbed of a few tries."""
        outcomes: list[Outcome] = []
        for _ in range(self._attempts):
            if not self._quick:
                wait_quiet(_QUIET_WAIT_S)
            outcome = self._measure(step)
            if outcome.reason:
                report(f"{step.part} of {step.system} failed: {outcome.reason}")
                return outcome
            outcomes.append(outcome)
            if outcome.disturbance.cores < _CALM_CORES:
                break
        return min(outcomes, key=lambda outcome: outcome.disturbance.cores)

    def _measure(self, step: Step) -> Outcome:
        system = SYSTEMS[step.system]
        logs = self._log_directory / step.system / step.part
        logs.mkdir(parents=True, exist_ok=True)
        python = str(self._rival_python) if system.rival else sys.executable
        command = [python, "-m", "tests.bench.worker", step.system, step.part, "--logs", str(logs)]
        if self._quick:
            command.append("--quick")
        time_s = _MEMORY_S if step.part == "memory" else _PART_S
        watch = Watch()
        with (logs / "worker.log").open("wb") as log:
            try:
                result = subprocess.run(  # noqa: S603 - the command is ours
                    command,
                    cwd=ROOT,
                    env={**os.environ, **system.environment},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    timeout=time_s,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return Outcome({}, f"not done after {time_s:.0f} s", watch.read())
        disturbance = watch.read()
        try:
            answer = json.loads(result.stdout.splitlines()[-1])
        except (IndexError, ValueError):
            reason = f"it ended with status {result.returncode}, see {logs.name}/worker.log"
            return Outcome({}, reason, disturbance)
        if "failure" in answer:
            return Outcome({}, str(answer["failure"]), disturbance)
        return Outcome(answer, "", disturbance)
