"""The ``mooncake-store`` command: assembled from what the roles contribute, one error boundary.

A role contributes through the entry-point group ``mooncake_store.commands``: a ``typer.Typer``
with several commands puts all of them on the top level, one with a single command (or a plain
function) becomes a command named like the entry. Only the contributions needed for the command
that was typed are imported, and one that cannot be imported costs its own commands only.

Exit codes: 0 ok, 1 failed, 2 usage or configuration, 3 not found, 4 unreachable or deadline
passed, 130 interrupted. A failure prints one line on stderr; ``--debug`` (or
``MOONCAKE_STORE_DEBUG=1``) adds the trace. With ``--json`` it is an object on stdout, too,
whichever part of the command it comes from, a mistake in the words included.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from importlib.metadata import entry_points
from importlib.metadata import version as installed_version
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol

import typer

from mooncake_store.errors import ConfigError, InternalError, InvalidArgument, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from typer.models import CommandInfo

PROGRAM: Final = "mooncake-store"
DISTRIBUTION: Final = "mooncake-store"
COMMAND_GROUP: Final = "mooncake_store.commands"
DEBUG_VARIABLE: Final = "MOONCAKE_STORE_DEBUG"

FAILED: Final = "failed"
"""Code of a failure that is none of the store: of a file, of the system."""

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_INTERRUPTED: Final = 130


class Contribution(Protocol):
    """What ``importlib.metadata.EntryPoint`` is to this module."""

    @property
    def name(self) -> str:
        """Name of the command, or of the group that an app contributes."""

    def load(self) -> Any:  # noqa: ANN401 - as EntryPoint has it; ``_add`` narrows it
        """Import it and return the app or function."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit the process with its code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(run(words, entry_points(group=COMMAND_GROUP)))


def run(words: list[str], contributions: Iterable[Contribution]) -> int:
    """Run one command line and return its exit code; every failure ends here as one line."""
    options = words[: words.index("--")] if "--" in words else words
    debug = "--debug" in options or os.environ.get(DEBUG_VARIABLE, "") not in {"", "0"}
    words = [word for word in options if word != "--debug"] + words[len(options) :]
    try:
        result = assemble(words, contributions)(
            args=words or ["--help"], prog_name=PROGRAM, standalone_mode=False
        )
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the boundary: whatever happened becomes one line
        if debug:
            traceback.print_exc()
        lines = _complaints(error)
        for line in lines:
            typer.echo(f"{PROGRAM}: {line}", err=True)
        if "--json" in options:
            problem = {"code": _code(error), "message": "\n".join(lines)}
            typer.echo(json.dumps({"error": problem}, ensure_ascii=False, separators=(",", ":")))
        return int(getattr(error, "exit_code", EXIT_FAILED))
    return result if isinstance(result, int) and not isinstance(result, bool) else EXIT_OK


def assemble(words: list[str], contributions: Iterable[Contribution]) -> typer.Typer:
    """Return the application with the commands that these words can need."""
    app = typer.Typer(
        name=PROGRAM,
        help="A KV-cache store for LLM inference: master, storage nodes, clients.",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_root)
    wanted = next((word for word in words if not word.startswith("-")), None)
    missing: dict[str, ImportError] = {}
    for entry in sorted(contributions, key=lambda entry: (entry.name != wanted, entry.name)):
        try:
            contributed = entry.load()
        except ImportError as error:
            missing[entry.name] = error
            continue
        if wanted in _add(app, entry.name, contributed):
            return app
    if wanted is not None and missing:
        _add_unavailable(app, wanted, missing)
    return app


def _root(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the trace of a failure.")] = False,
) -> None:
    """Declare the options of every command; ``run`` and ``_print_version`` act on them."""
    del version, debug


def _print_version(value: bool) -> None:  # noqa: FBT001 - typer's signature of a callback
    if value:
        typer.echo(f"{PROGRAM} {installed_version(DISTRIBUTION)}")
        raise typer.Exit


def _add(app: typer.Typer, name: str, contributed: typer.Typer | Callable[..., object]) -> set[str]:
    """Put a contribution into the application and return the names of its commands."""
    if not isinstance(contributed, typer.Typer):
        app.command(name)(contributed)
        return {name}
    commands, groups = contributed.registered_commands, contributed.registered_groups
    if len(commands) == 1 and not groups:
        commands[0].name = name
    app.add_typer(contributed)
    return {_command_name(info) for info in commands} | {str(info.name) for info in groups}


def _command_name(info: CommandInfo) -> str:
    return info.name or getattr(info.callback, "__name__", "").replace("_", "-")


def _add_unavailable(app: typer.Typer, name: str, missing: dict[str, ImportError]) -> None:
    """Let a command that is not there say what could not be imported and might have had it."""
    causes = "; ".join(f"{entry}: {error}" for entry, error in missing.items())

    def unavailable() -> None:
        raise ConfigError(f"no command {name!r}, and parts of this installation fail: {causes}")

    settings = {"ignore_unknown_options": True, "allow_extra_args": True}
    app.command(name, hidden=True, context_settings=settings)(unavailable)


def _complaints(error: Exception) -> list[str]:
    """Return what a user has to know of a failure: one line, or one for each wrong setting."""
    if isinstance(error, ConfigError):
        return str(error).splitlines()
    if isinstance(error, StoreError):
        text = str(error)
    elif isinstance(error, typer.TyperException):
        text = error.format_message()
    elif isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    else:
        text = f"internal error, {type(error).__name__}: {error} (--debug shows where)"
    return [" ".join(text.split())]


def _code(error: Exception) -> str:
    """Return the stable code of a failure; those of the system have one between them."""
    if isinstance(error, StoreError):
        return error.code
    if isinstance(error, typer.TyperException):
        return InvalidArgument.code if error.exit_code == InvalidArgument.exit_code else FAILED
    return FAILED if isinstance(error, OSError) else InternalError.code
