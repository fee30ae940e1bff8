"""Where values of settings come from, and one report of everything that is wrong with them.

Kubernetes puts variables of its own into every container of a namespace that has a service called
``mooncake-store...`` (``MOONCAKE_STORE_MASTER_PORT=tcp://10.0.0.1:50051``). They look like ours and
are not, so they are told apart by their form and left alone; any other unknown variable is refused,
because it is a setting that somebody believes to have set.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from pydantic import ValidationError

from mooncake_store.errors import ConfigError
from mooncake_store.settings.document import DocumentError, read_document
from mooncake_store.settings.fields import ENVIRONMENT_PREFIX, ROLES, Conflict, RoleSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pydantic_core import ErrorDetails

    from mooncake_store.settings.fields import Option

CONFIG_VARIABLE: Final = ENVIRONMENT_PREFIX + "CONFIG"
MASTER_VARIABLE: Final = ENVIRONMENT_PREFIX + "MASTER"
"""Where the master is, for each role with an option ``master``; its own variable is stronger."""

GENERAL_VARIABLES: Final = frozenset(
    {CONFIG_VARIABLE, MASTER_VARIABLE, ENVIRONMENT_PREFIX + "DEBUG"}
)
"""Variables that belong to no role."""

SERVICE_LINK_NAME: Final = re.compile(
    r"_SERVICE_HOST$|_SERVICE_PORT(_[A-Z0-9_]+)?$|_PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?$"
)
SERVICE_LINK_VALUE: Final = re.compile(r"(tcp|udp|sctp)://")
"""Kubernetes, "Discovering services": the variables that a container gets for each service."""

SHOWN_CHARS_MAX: Final = 100
"""Characters of a wrong value that its line repeats; more would bury the reason."""

S = TypeVar("S", bound=RoleSettings)


@dataclass(frozen=True, slots=True)
class Origin:
    """One value as it was written, and where.

    Attributes:
        text: The value before it was understood.
        place: ``--lease-ttl``, the name of a variable, or ``cluster.yaml line 4``.
    """

    text: str
    place: str

    def __str__(self) -> str:
        shown = (
            self.text if len(self.text) <= SHOWN_CHARS_MAX else f"{self.text[:SHOWN_CHARS_MAX]}..."
        )
        return f"{shown!r} ({self.place})"


def load(
    kind: type[S],
    *,
    flags: Mapping[str, str],
    config: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> S:
    """Read the settings of one role from all sources.

    Args:
        kind: The role's class.
        flags: {field name: text} of what stood on the command line.
        config: The file; without it, the one that ``MOONCAKE_STORE_CONFIG`` names, if any.
        environment: Variables; those of this process unless a test says otherwise.

    Raises:
        ConfigError: One line for each problem of any source, naming option, value and place.
    """
    origins, problems = gather(kind, flags=flags, config=config, environment=environment)
    settings: S | None = None
    try:
        settings = kind.model_validate({name: origin.text for name, origin in origins.items()})
    except ValidationError as error:
        details = error.errors(include_url=False)
        problems += [line for detail in details for line in _lines(kind, detail, origins)]
    if settings is None or problems:
        raise ConfigError("\n".join(problems))
    return settings


def gather(
    kind: type[RoleSettings],
    *,
    flags: Mapping[str, str],
    config: Path | None,
    environment: Mapping[str, str] | None,
) -> tuple[dict[str, Origin], list[str]]:
    """Return {field: the strongest of its values} and a line for each name that is no option."""
    variables = os.environ if environment is None else environment
    options = kind.options()
    problems: list[str] = []
    origins: dict[str, Origin] = {}
    if config is None and variables.get(CONFIG_VARIABLE):
        config = Path(variables[CONFIG_VARIABLE])
    if config is not None:
        origins |= _from_file(kind, options, config, problems)
    origins |= _from_environment(kind, options, variables, problems)
    by_field = {option.field: option for option in options}
    origins |= {field: Origin(text, by_field[field].flag) for field, text in flags.items()}
    return origins, problems


def show(settings: RoleSettings, origins: Mapping[str, Origin]) -> str:
    """Return the settings as a configuration file that says where each value came from."""
    written = settings.written()
    lines = [f"{settings.role}:"]
    for option in settings.options():
        origin = origins.get(option.field)
        place = "default" if origin is None else f"from {origin.place}"
        lines.append(f"  {option.name}: {_quoted(written[option.name])}  # {place}")
    return "\n".join(lines) + "\n"


def _from_file(
    kind: type[RoleSettings], options: Iterable[Option], path: Path, problems: list[str]
) -> dict[str, Origin]:
    try:
        sections = read_document(path)
    except DocumentError as error:
        problems.append(str(error))
        return {}
    by_name = {option.name: option.field for option in options}
    problems.extend(
        f"{path.name} line {line}: {name!r} is no section{_hint(name, ROLES)}"
        for name, (line, _) in sections.items()
        if name not in {*ROLES, kind.role}
    )
    origins = {}
    for name, entry in sections.get(kind.role, (0, {}))[1].items():
        place = f"{path.name} line {entry.line}"
        if name not in by_name:
            written = Origin(entry.text or "", place)
            problems.append(f"{kind.role}.{name}: {written} is no option{_hint(name, by_name)}")
        elif entry.text is not None:
            origins[by_name[name]] = Origin(entry.text, place)
    return origins


def _from_environment(
    kind: type[RoleSettings],
    options: Iterable[Option],
    variables: Mapping[str, str],
    problems: list[str],
) -> dict[str, Origin]:
    by_variable = {option.variable: option.field for option in options}
    others = tuple(f"{ENVIRONMENT_PREFIX}{role}_".upper() for role in ROLES if role != kind.role)
    origins: dict[str, Origin] = {}
    if variables.get(MASTER_VARIABLE):
        given = Origin(variables[MASTER_VARIABLE], MASTER_VARIABLE)
        origins |= {option.field: given for option in options if option.name == "master"}
    for name, text in sorted(variables.items()):
        if not name.startswith(ENVIRONMENT_PREFIX) or _is_service_link(name, text):
            continue
        if name in by_variable:
            if text:
                origins[by_variable[name]] = Origin(text, name)
        elif name not in GENERAL_VARIABLES and not name.startswith(others):
            written = Origin(text, "environment")
            problems.append(f"{name}: {written} is no option{_hint(name, by_variable)}")
    return origins


def _is_service_link(name: str, text: str) -> bool:
    if SERVICE_LINK_NAME.search(name):
        return True
    return name.endswith("_PORT") and SERVICE_LINK_VALUE.match(text) is not None


def _hint(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _lines(
    kind: type[RoleSettings], detail: ErrorDetails, origins: Mapping[str, Origin]
) -> list[str]:
    """Turn one finding of pydantic into lines for a person."""
    context = detail.get("ctx", {})
    if detail["type"] == "conflicts":
        return [_conflict_line(kind, conflict, origins) for conflict in context["conflicts"]]
    options = {option.field: option for option in kind.options()}
    option = options[str(detail["loc"][0])]
    origin = origins[option.field]
    return [f"{option.name}: {origin} {_complaint(option, detail)}"]


def _complaint(option: Option, detail: ErrorDetails) -> str:
    """Return what is wrong with a value, continuing "<option>: <value> (<place>) "."""
    kind = detail["type"]
    if kind in {"greater_than_equal", "less_than_equal"}:
        return f"is out of range: {option.bounds}"
    if kind == "literal_error":
        return f"is not {option.bounds}"
    if kind == "value_error":
        return str(detail.get("ctx", {}).get("error", detail["msg"]))
    wanted = {"int": "a whole number", "float": "a number", "bool": "true or false"}
    kind = "float" if kind == "finite_number" else kind
    known = next((text for start, text in wanted.items() if kind.startswith(start)), None)
    return f"is not {known}" if known else f"cannot be used: {detail['msg']}"


def _conflict_line(
    kind: type[RoleSettings], conflict: Conflict, origins: Mapping[str, Origin]
) -> str:
    options = {option.field: option for option in kind.options()}
    values = []
    for field in conflict.fields:
        option = options[field]
        origin = origins.get(field, Origin(option.default, "default"))
        values.append(f"{option.name}: {origin}")
    return f"{', '.join(values)}: {conflict.problem}"


def _quoted(text: str | None) -> str:
    """Return a YAML scalar that reads back as this text, or as nothing."""
    if text is None:
        return "null"
    plain = re.fullmatch(r"[A-Za-z0-9/][A-Za-z0-9_./:+-]*[A-Za-z0-9_/]|[A-Za-z0-9]", text)
    return text if plain and text.lower() != "null" else json.dumps(text)
