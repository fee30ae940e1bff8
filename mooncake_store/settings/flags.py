"""From a settings class to the options of a command, so that no option is declared twice."""

from __future__ import annotations

import functools
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar, get_type_hints

import typer

from mooncake_store.settings.fields import Option, RoleSettings
from mooncake_store.settings.sources import CONFIG_VARIABLE, gather, load, show

if TYPE_CHECKING:
    from collections.abc import Callable

S = TypeVar("S", bound=RoleSettings)

_ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help=f"YAML file of settings. [env: {CONFIG_VARIABLE}]"
    ),
]
_PrintOption = Annotated[
    bool,
    typer.Option("--print-config", help="Print the settings and where each comes from, and exit."),
]

_NONE: Final[tuple[object, ...]] = (None, [], ())
"""What stands for an option that was not given."""


def takes_settings(
    kind: type[S],
) -> Callable[[Callable[..., object]], Callable[..., None]]:
    """Give a command the settings of a role as its first argument, and all their options.

    ::

        @app.command("master")
        @takes_settings(MasterSettings)
        def master(settings: MasterSettings) -> None:
            \"\"\"Run the master.\"\"\"

    Further parameters of the function stay options of their own; their annotations must be
    importable at run time. A problem with any setting is a ``ConfigError`` before the function is
    called.
    """

    def decorate(function: Callable[..., object]) -> Callable[..., None]:
        parameters = _parameters(kind, function)
        fields = {option.field for option in kind.options()}

        @functools.wraps(function)
        def command(**given: object) -> None:
            config = given.pop("config_file", None)
            assert config is None or isinstance(config, Path)
            only_print = given.pop("print_config", False)
            flags = {name: _text(text) for name in fields if (text := given.pop(name)) not in _NONE}
            rest = {name: value for name, value in given.items() if name not in fields}
            settings = load(kind, flags=flags, config=config)
            if only_print:
                origins, _ = gather(kind, flags=flags, config=config, environment=None)
                typer.echo(show(settings, origins), nl=False)
            else:
                function(settings, **rest)

        del command.__wrapped__
        command.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] # read by inspect
        return command

    return decorate


def _parameters(
    kind: type[RoleSettings], function: Callable[..., object]
) -> list[inspect.Parameter]:
    """Return the parameters of the command: every setting, the common ones, its own."""
    hints = get_type_hints(function, include_extras=True)
    own = list(inspect.signature(function).parameters.values())[1:]
    taken = {option.field: _annotation(option) for option in kind.options()}
    return [
        *(_keyword(name, annotation, None) for name, annotation in taken.items()),
        *(_keyword(p.name, hints[p.name], p.default) for p in own),
        _keyword("config_file", _ConfigOption, None),
        _keyword("print_config", _PrintOption, default=False),
    ]


def _keyword(name: str, annotation: object, default: object) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default
    )


def _annotation(option: Option) -> object:
    default = f"default: {option.default}" if option.default else ""
    facts = "; ".join(filter(None, (default, option.bounds)))
    about = option.about + (f" [{facts}]" if facts else "")
    if option.metavar == "BOOL":
        flags = f"{option.flag}/--no-{option.flag[2:]}"
        return Annotated[bool | None, typer.Option(flags, help=about, show_default=False)]
    if option.metavar == "LIST":
        return Annotated[
            list[str] | None,
            typer.Option(option.flag, metavar="LIST", help=about, show_default=False),
        ]
    return Annotated[
        str | None,
        typer.Option(option.flag, metavar=option.metavar, help=about, show_default=False),
    ]


def _text(value: object) -> str:
    if isinstance(value, list):  # An option that may be given several times.
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
