"""How a role declares its settings: one frozen class, one line of facts for each option.

    class MasterSettings(RoleSettings, role="master"):
        lease_ttl_s: Duration = setting(
            5.0,
            least=0.1,
            most=3600.0,
            about="How long a read protects its extents. Smaller: ...; larger: ...",
        )

The unit at the end of a field's name is not part of the option's name, since its value carries
one: the field ``lease_ttl_s`` is ``--lease-ttl 5s``, ``MOONCAKE_STORE_MASTER_LEASE_TTL`` and
``master: {lease_ttl: 5s}``. In code the field is a plain number in the unit that its name ends
with, and an instance that is made in code (``MasterSettings(lease_ttl_s=5.0)``) reads no source.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Final,
    Literal,
    TypeVar,
    Union,
    Unpack,
    cast,
    get_args,
    get_origin,
)

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from mooncake_store.units import format_bytes, format_duration, parse_bytes, parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic.fields import FieldInfo

ROLES: Final = ("master", "node", "client")
"""The roles that a configuration file may have a section for."""

ENVIRONMENT_PREFIX: Final = "MOONCAKE_STORE_"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Notation:
    """How the values of a type are written: the two directions and what ``--help`` calls them."""

    metavar: str
    parse: Callable[[str], object]
    format: Callable[[Any], str]


def _split_list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


_SIZE: Final = Notation("SIZE", parse_bytes, format_bytes)
_DURATION: Final = Notation("DURATION", parse_duration, format_duration)
_LIST: Final = Notation("LIST", _split_list, ",".join)
_TEXT: Final = Notation("TEXT", str, str)
_BOOL: Final = Notation("BOOL", str, lambda value: str(value).lower())


def _reader(notation: Notation) -> BeforeValidator:
    """Parse what was written by a person, leave alone what was made in code."""
    return BeforeValidator(lambda value: notation.parse(value) if isinstance(value, str) else value)


ByteSize = Annotated[int, _SIZE, _reader(_SIZE)]
"""A size in bytes, written with its unit (``4GiB``)."""

Duration = Annotated[float, _DURATION, _reader(_DURATION)]
"""A duration in seconds, written with its unit (``250ms``)."""

TextList = Annotated[tuple[str, ...], _LIST, _reader(_LIST)]
"""Several texts, written with commas between them or, in a file, as a list."""


@dataclass(frozen=True, slots=True)
class _Facts:
    """What ``setting`` was told of a field."""

    about: str
    unit: str
    least: float | None
    most: float | None


def setting(
    default: T,
    *,
    about: str,
    unit: str = "",
    least: float | None = None,
    most: float | None = None,
) -> T:
    """Declare one field of a settings class.

    Args:
        default: Value when no source has one, in the unit of the field's name.
        about: What it does and what a smaller or larger value costs, for ``--help`` and the docs.
        unit: What a plain number counts (``threads``); sizes and durations carry their own.
        least: Smallest value accepted; numbers must have both bounds.
        most: Largest value accepted.
    """
    facts = _Facts(about=" ".join(about.split()), unit=unit, least=least, most=most)
    field: Any = Field(default=default, ge=least, le=most, description=facts.about)
    field.metadata.append(facts)
    return cast("T", field)


@dataclass(frozen=True, slots=True)
class Conflict:
    """A relation between fields that does not hold.

    Attributes:
        fields: Names of the fields that take part.
        problem: What is wrong, continuing "<field> = <value>, <field> = <value>: ".
    """

    fields: tuple[str, ...]
    problem: str


@dataclass(frozen=True, slots=True)
class Option:
    """One setting as the outside sees it.

    Attributes:
        field: Name in the class (``lease_ttl_s``).
        name: Name in a file (``lease_ttl``).
        flag: Name on the command line (``--lease-ttl``).
        variable: Name in the environment.
        metavar: What kind of value it takes (``DURATION``).
        default: The default as it would be written; empty where there is none.
        bounds: The range or the choices; empty where anything goes.
        about: What it does and costs.
    """

    field: str
    name: str
    flag: str
    variable: str
    metavar: str
    default: str
    bounds: str
    about: str


class RoleSettings(BaseModel):
    """Base of the settings of one role; ``class XSettings(RoleSettings, role="x")``."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    role: ClassVar[str] = ""

    def __init_subclass__(cls, *, role: str, **kwargs: Unpack[ConfigDict]) -> None:
        """Take the name of the role."""
        super().__init_subclass__(**kwargs)
        cls.role = role

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: object) -> None:
        """Check that every field was declared in full, when the class is made."""
        super().__pydantic_init_subclass__(**kwargs)
        for name, field in cls.model_fields.items():
            _check_declaration(f"{cls.__name__}.{name}", field)

    @model_validator(mode="after")
    def _relations_hold(self) -> RoleSettings:
        conflicts = self.conflicts()
        if conflicts:
            raise PydanticCustomError(
                "conflicts",
                "{text}",
                {"conflicts": conflicts, "text": "; ".join(c.problem for c in conflicts)},
            )
        return self

    def conflicts(self) -> list[Conflict]:
        """Return the relations between fields that do not hold; roles override it."""
        return []

    @classmethod
    def options(cls) -> list[Option]:
        """Return the settings as the outside sees them, in the order of their declaration."""
        return [_option(cls.role, name, field) for name, field in cls.model_fields.items()]

    def written(self) -> dict[str, str | None]:
        """Return {name in a file: value as it would be written, None where not set}."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return {
            option_name(name): None if values[name] is None else _write(field, values[name])
            for name, field in type(self).model_fields.items()
        }


def option_name(field: str) -> str:
    """Return the outside name of a field: its own without the unit (``inflight_bytes_max``)."""
    words = field.split("_")
    for place in (-1, -2):
        if len(words) > -place and words[place] in {"s", "bytes"}:
            if place == -1 or words[-1] in {"max", "min"}:
                del words[place]
            break
    return "_".join(words)


def _option(role: str, name: str, field: FieldInfo) -> Option:
    outside = option_name(name)
    return Option(
        field=name,
        name=outside,
        flag="--" + outside.replace("_", "-"),
        variable=f"{ENVIRONMENT_PREFIX}{role}_{outside}".upper(),
        metavar=_metavar(field),
        default="" if field.default in (None, ()) else _write(field, field.default),
        bounds=_bounds(field),
        about=_facts(field).about,
    )


def _check_declaration(where: str, field: FieldInfo) -> None:
    facts = _facts(field, where)
    if not facts.about:
        raise TypeError(f"{where} does not say what it is for")
    if _is_number(field):
        if facts.least is None or facts.most is None:
            raise TypeError(f"{where} has no bounds")
        if field.default is not None and not facts.least <= field.default <= facts.most:
            raise TypeError(f"{where} has a default out of its bounds")
        if _notation(field) is _TEXT and not facts.unit:
            raise TypeError(f"{where} does not say what it counts")


def _facts(field: FieldInfo, where: str = "a field") -> _Facts:
    for fact in field.metadata:
        if isinstance(fact, _Facts):
            return fact
    raise TypeError(f"{where} was not declared with setting()")


def _notation(field: FieldInfo) -> Notation:
    nested = (fact for kind in _alternatives(field) for fact in getattr(kind, "__metadata__", ()))
    for fact in (*field.metadata, *nested):
        if isinstance(fact, Notation):
            return fact
    return _BOOL if bool in _types(field) else _TEXT


def _alternatives(field: FieldInfo) -> tuple[object, ...]:
    """Return what a field's value may be, apart from ``None``, as it was annotated."""
    kind: object = field.annotation
    alternatives = get_args(kind) if get_origin(kind) in {Union, UnionType} else (kind,)
    return tuple(kind for kind in alternatives if kind is not type(None))


def _types(field: FieldInfo) -> tuple[object, ...]:
    """Return the same without what ``Annotated`` adds to them."""
    return tuple(
        getattr(kind, "__origin__", kind) if get_origin(kind) is Annotated else kind
        for kind in _alternatives(field)
    )


def _is_number(field: FieldInfo) -> bool:
    return any(kind in {int, float} for kind in _types(field))


def _choices(field: FieldInfo) -> tuple[object, ...]:
    return tuple(
        choice for kind in _types(field) if get_origin(kind) is Literal for choice in get_args(kind)
    )


def _metavar(field: FieldInfo) -> str:
    if _choices(field):
        return "CHOICE"
    notation = _notation(field)
    if notation is not _TEXT:
        return notation.metavar
    plain = {int: "INTEGER", float: "NUMBER", Path: "PATH"}
    return next((name for kind, name in plain.items() if kind in _types(field)), notation.metavar)


def _bounds(field: FieldInfo) -> str:
    if choices := _choices(field):
        return f"one of {', '.join(map(str, choices))}"
    facts = _facts(field)
    if facts.least is None or facts.most is None:
        return ""
    unit = f" {facts.unit}" if facts.unit else ""
    return f"{_write(field, facts.least)} to {_write(field, facts.most)}{unit}"


def _write(field: FieldInfo, value: object) -> str:
    return _notation(field).format(value)
