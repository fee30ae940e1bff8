"""Writes the reference pages from what they describe: settings, commands, errors.

``python -m mooncake_store.reference docs/reference`` (``make docs``). A test compares the pages
with what this module would write, so that they cannot say what the code does not do.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import typer

from mooncake_store.command import COMMAND_GROUP, assemble, run
from mooncake_store.errors import StoreError
from mooncake_store.settings import ROLES, RoleSettings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

T = TypeVar("T")

HELP_COLUMNS: Final = "80"
"""Width of the help texts in the pages, whatever terminal they are made in."""

NOTE: Final = "<!-- Written by `make docs` from the code; change it there. -->"

CONFIGURATION_INTRODUCTION: Final = """\
A setting can be given in four places; the first that has it wins:

1. the flag, `--lease-ttl 5s`;
2. the environment, `MOONCAKE_STORE_<ROLE>_<OPTION>`: `MOONCAKE_STORE_MASTER_LEASE_TTL=5s`;
3. one YAML file, named by `--config FILE` or `MOONCAKE_STORE_CONFIG`, with a section for each role:
   `master: {lease_ttl: 5s}`;
4. the default.

Sizes and durations carry their unit (`4GiB`, `4GB`, `250ms`, `2m`); one without a unit is refused,
except `0`. A name that is no option is refused too, in the file and in the environment, and all
problems are reported at once, one line each. Variables that Kubernetes adds for a service called
`mooncake-store...` are told apart by their form and left alone.

`MOONCAKE_STORE_MASTER` says where the master is to every role that has an option `--master`.
`--print-config` prints the settings in force, each with the place it comes from, in the form of a
configuration file."""

COMMANDS_INTRODUCTION: Final = """\
Exit codes: 0 ok, 1 failed, 2 usage or configuration, 3 not found, 4 unreachable or deadline passed,
130 interrupted. A failure prints one line on stderr; `--debug` adds the trace."""

ERRORS_INTRODUCTION: Final = """\
Everything the store raises on purpose derives from `mooncake_store.errors.StoreError`. The code is
the same in Python (`error.code`), on the wire, in metrics, in `--json` and in REST. *Again*: the
same call may succeed later or on another replica. *Exit*: what a command exits with."""


def pages() -> dict[str, str]:
    """Return {file name: content} of all reference pages."""
    app = assemble([], entry_points(group=COMMAND_GROUP))
    return {
        "configuration.md": _page("Configuration", _configuration()),
        "commands.md": _page("Commands", _commands(app)),
        "errors.md": _page("Errors", _errors()),
    }


def _page(title: str, parts: Iterator[str]) -> str:
    return "\n\n".join([f"# {title}", NOTE, *parts]) + "\n"


def _configuration() -> Iterator[str]:
    yield CONFIGURATION_INTRODUCTION
    kinds = {kind.role: kind for kind in _ours(RoleSettings)}
    for role in (role for role in ROLES if role in kinds):
        yield f"## {role.capitalize()}"
        yield _table(
            ("Option", "Default", "Accepted", "What it does and costs"),
            [
                (
                    _code(f"{option.flag} {option.metavar}"),
                    _code(option.default),
                    option.bounds,
                    option.about,
                )
                for option in kinds[role].options()
            ],
        )


def _commands(app: typer.Typer) -> Iterator[str]:
    yield COMMANDS_INTRODUCTION
    yield _help([])
    for words in sorted(_paths(typer.main.get_command(app), [])):
        yield f"## {' '.join(words)}"
        yield _help(words)


def _paths(command: object, words: list[str]) -> Iterator[list[str]]:
    """Yield the words of every command below this one that is not hidden."""
    for name, inner in getattr(command, "commands", {}).items():
        if not inner.hidden:
            yield [*words, name]
            yield from _paths(inner, [*words, name])


def _help(words: list[str]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        run([*words, "--help"], entry_points(group=COMMAND_GROUP))
    return f"```text\n{out.getvalue().strip()}\n```"


def _errors() -> Iterator[str]:
    yield ERRORS_INTRODUCTION
    yield _table(
        ("Error", "Code", "Meaning", "Again", "Exit"),
        [
            (
                "&emsp;" * depth + _code(kind.__name__),
                _code(kind.code),
                (kind.__doc__ or "").split("\n\n")[0].replace("``", "`"),
                "yes" if kind.retryable else "no",
                str(kind.exit_code),
            )
            for depth, kind in _tree(StoreError, 0)
        ],
    )


def _tree(kind: type[StoreError], depth: int) -> Iterator[tuple[int, type[StoreError]]]:
    yield depth, kind
    for inner in _ours(kind):
        yield from _tree(inner, depth + 1)


def _ours(kind: type[T]) -> list[type[T]]:
    """Return the direct subclasses that this distribution defines."""
    return [inner for inner in kind.__subclasses__() if inner.__module__.startswith("mooncake_")]


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines
    )


def write(folder: Path) -> None:
    """Write all pages into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    os.environ["COLUMNS"] = HELP_COLUMNS
    write(Path(sys.argv[1]))
