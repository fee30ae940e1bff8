"""The table that a person reads and the files that a script reads."""

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from tests.bench.rounds import Record
from tests.bench.rows import Row

_VERDICTS = {True: "[green]yes[/]", False: "[red]no[/]", None: "[yellow]-[/]"}


def table(rows: Sequence[Row], title: str) -> Table:
    """One line for each promise; below it, what was skipped and why."""
    result = Table(title=title, caption="spread: least and greatest ratio of the rounds")
    result.add_column("what", overflow="fold")
    result.add_column("against", overflow="fold")
    for name in ("ours", "reference", "unit", "ratio", "wanted", "spread"):
        result.add_column(name, justify="left" if name == "unit" else "right", no_wrap=True)
    result.add_column("met", no_wrap=True)
    for row in rows:
        result.add_row(*_cells(row))
    return result


def _cells(row: Row) -> list[str]:
    title, against = row.title, row.against
    if row.reference_system not in {"", row.against}:
        against += f" [dim]{row.reference_system}[/]"
    if row.skipped:
        title += f"\n[yellow]  skipped {escape(row.skipped)}[/]"
    spread = row.spread.get("ratio")
    return [
        title,
        against,
        _number(row.ours),
        _number(row.reference),
        row.unit,
        _number(row.ratio),
        _number(row.wanted),
        f"{_number(spread[0])} - {_number(spread[1])}" if spread else "-",
        _VERDICTS[row.met],
    ]


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def markdown(rows: Sequence[Row]) -> str:
    """The table as docs/performance.md shows it."""
    words = {True: "yes", False: "**no**", None: "-"}
    lines = [
        "| row | ours | reference | unit | ratio [rounds] | wanted | met |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        ours, reference, ratio, wanted = map(
            _number, (row.ours, row.reference, row.ratio, row.wanted)
        )
        if row.reference_system not in {"", row.against}:
            reference = f"{reference} ({row.reference_system})"
        if spread := row.spread.get("ratio"):
            ratio = f"{ratio} [{_number(spread[0])}-{_number(spread[1])}]"
        cells = (f"`{row.name}`", ours, reference, row.unit, ratio, wanted, words[row.met])
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def write(directory: Path, rows: Sequence[Row], record: Record, versions: Sequence[str]) -> None:
    """Write the rows (``bench.json``, ``bench.md``) and what they were made from.

    Readers of the files never see half of one.
    """
    samples = {
        "rig": rig(),
        "rivals": list(versions),
        "samples": record.samples,
        "disturbances": {name: asdict(found) for name, found in record.disturbances.items()},
    }
    _replace(directory / "bench.json", _json([row.as_json() for row in rows]))
    _replace(directory / "bench-samples.json", _json(samples))
    _replace(directory / "bench.md", markdown(rows))


def _json(content: object) -> str:
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def _replace(path: Path, text: str) -> None:
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text)
    partial.replace(path)


def rig() -> dict[str, str | int]:
    """The machine, as far as it decides the figures."""
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": os.cpu_count() or 0,
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }
