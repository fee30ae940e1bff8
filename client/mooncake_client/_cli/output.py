"""What commands print: aligned columns for people, JSON for programs, progress on stderr.

Keys and names come from other users, so what is printed for people never carries control
characters to their terminal; JSON and ``get`` carry everything exactly.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, NoReturn

import msgspec
import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from mooncake_store.command import PROGRAM

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mooncake_store.errors import StoreError

_SCALES: Final = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def write_json(value: object) -> None:
    """Print one JSON document on one line."""
    typer.echo(msgspec.json.encode(value).decode())


def write_json_list(items: Iterable[object]) -> None:
    """Print a JSON list, an item a line, without ever holding it whole."""
    separator = "["
    for item in items:
        typer.echo(f"{separator}{msgspec.json.encode(item).decode()}", nl=False)
        separator = ",\n"
    typer.echo("[]" if separator == "[" else "]")


def fail(error: StoreError) -> NoReturn:
    """End a command that has printed its result, although a part of it failed."""
    typer.echo(f"{PROGRAM}: {error}", err=True)
    raise typer.Exit(error.exit_code)


def printable(text: str) -> str:
    """Return ``text`` with everything escaped that would not print as itself."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def columns(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return lines whose columns are aligned: numbers to the right, texts to the left."""
    table = [list(row) for row in rows]
    texts = [[printable(str(cell)) for cell in row] for row in table]
    widths = [max(map(len, column)) for column in zip(head, *texts, strict=True)]
    right = [
        bool(table) and all(isinstance(cell, int | float) for cell in column)
        for column in zip(*table, strict=True)
    ] or [False] * len(head)
    lines = []
    for cells in ([*head], *texts):
        padded = [
            cell.rjust(width) if numeric else cell.ljust(width)
            for cell, width, numeric in zip(cells, widths, right, strict=True)
        ]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def show_table(title: str, lines: Iterable[tuple[str, str]]) -> None:
    """Print names and values side by side, in a frame where a person reads them."""
    if not sys.stdout.isatty():
        typer.echo("\n".join(f"{name:<30}{value}".rstrip() for name, value in lines))
        return
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column()
    for name, value in lines:
        table.add_row(Text(name), Text(value))
    Console().print(table)


def about_bytes(count: float) -> str:
    """Return roughly how many bytes that is, in three or four digits."""
    for unit, size in _SCALES:
        if abs(count) >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"


def about_seconds(seconds: float) -> str:
    """Return roughly how long that is."""
    if seconds >= 120:  # noqa: PLR2004 - two minutes: from there on, minutes read better
        return f"{seconds / 60:.1f} min"
    return f"{seconds:.1f} s"


def share(part: float, whole: float) -> str:
    """Return ``part`` of ``whole`` in percent, ``-`` of nothing."""
    return f"{100 * part / whole:.1f} %" if whole else "-"


def is_terminal() -> bool:
    """Return whether a person watches stderr."""
    return sys.stderr.isatty()


def progress(*extra: str) -> Progress:
    """Return a progress display on stderr, silent where that is no terminal.

    Args:
        extra: Names of task fields to show behind the bar.
    """
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        *(TextColumn(f"{{task.fields[{name}]}}", markup=False) for name in extra),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not is_terminal(),
        transient=True,
    )
