"""Compare this store with other stores and with the machine's own limits.

Prints a table and writes build/bench.json. Nothing is asserted about time: the exit status says
only whether everything that is not a rival could be measured.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.bench import report
from tests.bench.catalogue import ROWS
from tests.bench.rivals import RivalEnvironment
from tests.bench.rounds import ROOT, Record, Runner, Step, plan
from tests.bench.rows import Row, RowSpec, evaluate
from tests.bench.systems import SYSTEMS

_ROUNDS = 5
_ATTEMPTS = 2
_FILE_COLUMNS = 150
"""Width of the table where there is no terminal: each row fits on one line."""


def main() -> int:
    """Run what the command line asks for."""
    arguments = _parse()
    specs: list[RowSpec] = arguments.rows
    if arguments.list:
        sys.stdout.writelines(f"{spec.name:42} {spec.title}\n" for spec in specs)
        return 0
    console = Console()
    if not console.is_terminal:
        console = Console(width=_FILE_COLUMNS)
    rounds = arguments.rounds or (1 if arguments.quick else _ROUNDS)
    steps = plan(specs, rounds, quick=arguments.quick)
    directory: Path = arguments.output
    directory.mkdir(parents=True, exist_ok=True)
    rivals = RivalEnvironment(directory / "bench-venv", directory / "bench-install.log")
    record = Record()
    missing = _prepare(rivals, steps, console, install=arguments.install)
    for step in steps:
        if reason := missing.get(SYSTEMS[step.system].rival):
            record.reasons[step.part, step.system] = reason
    attempts = 1 if arguments.quick else arguments.attempts
    runner = Runner(
        directory / "bench-logs", rivals.python, quick=arguments.quick, attempts=attempts
    )
    versions = rivals.versions()

    def save() -> list[Row]:
        rows = [evaluate(spec, record.samples, record.reasons) for spec in specs]
        report.write(directory, rows, record, versions)
        return rows

    _run([s for s in steps if not missing.get(SYSTEMS[s.system].rival)], runner, record, save)
    kind = "smoke run: no figure means anything" if arguments.quick else f"{rounds} rounds"
    console.print(report.table(save(), f"Side by side, {kind}"))
    console.print(f"rows: {directory / 'bench.json'}; samples: {directory / 'bench-samples.json'}")
    return int(any(not SYSTEMS[system].rival for _, system in record.reasons))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smoke run, one to two minutes")
    parser.add_argument(
        "--rows",
        type=_chosen,
        default=list(ROWS),
        metavar="NAME,...",
        help="only these rows; * and ? match as in file names",
    )
    parser.add_argument("--list", action="store_true", help="print the rows' names and end")
    parser.add_argument(
        "--rounds", type=int, metavar="N", help=f"default {_ROUNDS}, or 1 with --quick"
    )
    parser.add_argument(
        "--attempts",
        type=int,
        default=_ATTEMPTS,
        metavar="N",
        help="tries of a measurement that other programs disturbed (default %(default)s)",
    )
    parser.add_argument(
        "--no-install", dest="install", action="store_false", help="use the rivals that are there"
    )
    parser.add_argument("--output", type=Path, default=ROOT / "build", metavar="DIRECTORY")
    return parser.parse_args()


def _chosen(text: str) -> list[RowSpec]:
    patterns = text.split(",")
    for pattern in patterns:
        if not any(fnmatch(spec.name, pattern) for spec in ROWS):
            raise argparse.ArgumentTypeError(f"no row is named {pattern!r}; see --list")
    return [spec for spec in ROWS if any(fnmatch(spec.name, pattern) for pattern in patterns)]


def _prepare(
    rivals: RivalEnvironment, steps: Sequence[Step], console: Console, *, install: bool
) -> dict[str, str]:
    """{rival: why it cannot run, or ""} of the rivals that the steps need."""
    reasons = {}
    for name in sorted({SYSTEMS[step.system].rival for step in steps} - {""}):
        with console.status(f"preparing {name}"):
            reasons[name] = rivals.prepare(name, install=install)
        if reasons[name]:
            console.print(f"[yellow]{name} is left out:[/] {escape(reasons[name])}")
    return reasons


def _run(steps: Sequence[Step], runner: Runner, record: Record, save: Callable[[], object]) -> None:
    """Make every step, and save after each round what there is."""
    columns = (TextColumn("{task.description:44}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn()) as progress:
        task = progress.add_task("", total=len(steps))
        done_rounds = 0
        for step in steps:
            if step.round_index != done_rounds:
                done_rounds = step.round_index
                save()
            words = f"round {step.round_index + 1}: {step.part}, {step.system}"
            progress.update(task, description=words)
            record.add(step, runner.run(step, lambda text: progress.console.print(escape(text))))
            progress.advance(task)


if __name__ == "__main__":
    sys.exit(main())
