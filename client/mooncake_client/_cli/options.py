"""Options that commands share, and the two ways in which a command takes several at once."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar, get_type_hints

import typer

from mooncake_store.settings import Duration, RoleSettings, setting
from mooncake_store.units import format_bytes, format_duration, parse_bytes, parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class ClientSettings(RoleSettings, role="client"):
    """How a command reaches the store."""

    master: str = setting(
        "127.0.0.1:50051",
        about="Address of the master, HOST:PORT, several with commas between them; the variable"
        " MOONCAKE_STORE_MASTER says it for clients and nodes.",
    )
    namespace: str = setting("default", about="Namespace of the keys.")
    deadline_s: Duration = setting(
        5.0,
        least=0.001,
        most=86_400.0,
        about="Every call to the store ends by then. Shorter: a busy cluster counts as unreachable;"
        " longer: a dead one is noticed later.",
    )
    transport: Literal["auto", "shm", "rdma", "tcp"] = setting(
        "auto",
        about="Path of the bytes: auto takes the cheapest that works, a named one is used alone.",
    )


JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="Key of the object.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def size_option(
    flag: str, about: str, default: int | None = None, *, least: int = 0, most: int | None = None
) -> object:
    """Return an option whose value is a size with its unit; its parameter is an ``int``.

    Args:
        flag: Its name.
        about: Its help; the default is added.
        default: What the caller takes where nothing is said.
        least: Smaller sizes are usage errors.
        most: Larger ones, too.
    """
    if default is not None:
        about += f" [default: {format_bytes(default)}]"

    def parse_size(text: str) -> int:
        size = parse_bytes(text)
        if size < least:
            raise ValueError(f"is below {format_bytes(least)}, the least that is possible")
        if most is not None and size > most:
            raise ValueError(f"is above {format_bytes(most)}, the most that is possible")
        return size

    parse = _checked(parse_size)
    return typer.Option(flag, metavar="SIZE", parser=parse, help=about, show_default=False)


def duration_option(flag: str, about: str, default: float | None = None) -> object:
    """Return an option whose value is a duration with its unit; its parameter is a ``float``."""
    if default is not None:
        about += f" [default: {format_duration(default)}]"
    parse = _checked(parse_duration)
    return typer.Option(flag, metavar="DURATION", parser=parse, help=about, show_default=False)


def _checked(parse: Callable[[str], T]) -> Callable[[str | T], T]:
    """Turn what a parser complains of into a usage error that names the option."""

    def parsed(text: str | T) -> T:
        if not isinstance(text, str):
            return text  # the default, which is a number already
        try:
            return parse(text)
        except ValueError as error:
            raise typer.BadParameter(f"{text!r} {error}") from error

    return parsed


def spreads_options(function: Callable[..., None]) -> Callable[..., None]:
    """Let a command take its options as frozen dataclasses.

    Each parameter whose annotation is a dataclass is replaced by its fields, which are annotated
    as the parameters of a command are. So a command has few parameters and many options, and
    commands share a set of options by sharing its class.
    """
    hints = get_type_hints(function, include_extras=True)
    groups = {name: kind for name, kind in hints.items() if _is_dataclass(kind)}
    parameters = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in groups:
            parameters += _fields(groups[parameter.name])
        else:
            parameters.append(parameter.replace(annotation=hints[parameter.name]))

    @functools.wraps(function)
    def command(*args: object, **given: object) -> None:
        for name, kind in groups.items():
            fields = [field.name for field in dataclasses.fields(kind)]
            given[name] = kind(**{field: given.pop(field) for field in fields})
        function(*args, **given)

    parameters.sort(key=lambda parameter: parameter.kind)
    del command.__wrapped__
    command.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] # read by inspect
    return command


def _is_dataclass(kind: object) -> bool:
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def _fields(kind: type) -> list[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=hints[field.name],
            default=inspect.Parameter.empty
            if field.default is dataclasses.MISSING
            else field.default,
        )
        for field in dataclasses.fields(kind)
    ]
