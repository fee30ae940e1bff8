"""Byte sizes and durations as people write them: ``4GiB``, ``512KiB``, ``250ms``, ``2m``.

A number without a unit is refused: nobody can tell whether ``60`` meant seconds, milliseconds or
a typing error (zero is the same in every unit and needs none). Binary and decimal sizes are
different things: ``GiB`` is 2**30 and ``GB`` is 10**9, and the ``G`` that some programs read as
one and some as the other is refused. Kubernetes' ``Gi`` is unambiguous and accepted.

``parse_bytes(format_bytes(n)) == n`` and ``parse_duration(format_duration(s)) == s`` always hold,
so what a running process prints can be fed to the next one.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

BYTE_UNITS: Final = {
    "TiB": 1 << 40,
    "GiB": 1 << 30,
    "MiB": 1 << 20,
    "KiB": 1 << 10,
    "TB": 10**12,
    "GB": 10**9,
    "MB": 10**6,
    "kB": 10**3,
    "B": 1,
}
"""Suffixes of sizes and their factors."""

BYTE_UNITS_READ: Final = (
    BYTE_UNITS | {"KB": 10**3} | {f"{p}i": BYTE_UNITS[f"{p}iB"] for p in "KMGT"}
)
"""The same with the spellings that are understood but not written."""

DURATION_UNITS: Final = {
    "h": Decimal(3600),
    "m": Decimal(60),
    "s": Decimal(1),
    "ms": Decimal("1e-3"),
    "us": Decimal("1e-6"),
}
"""Suffixes of durations and their lengths in seconds, longest first."""

_QUANTITY: Final = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,20})?) ?([A-Za-z]{0,8})", re.ASCII)


def parse_bytes(text: str) -> int:
    """Return the bytes that ``text`` names.

    Args:
        text: A number, whole or decimal, and a suffix of ``BYTE_UNITS_READ``; or ``0``.

    Raises:
        ValueError: No number, no unit, an unknown one, or not a whole number of bytes. The message
            is one line that continues "<option> = <text>: ".
    """
    number, unit = _split(text, "a size such as 4GiB")
    if unit not in BYTE_UNITS_READ:
        if number == 0 and not unit:
            return 0
        raise ValueError(_unit_problem(unit, "4GiB", BYTE_UNITS))
    size = number * BYTE_UNITS_READ[unit]
    if size != int(size):
        raise ValueError("is not a whole number of bytes")
    return int(size)


def parse_duration(text: str) -> float:
    """Return the seconds that ``text`` names.

    Args:
        text: A number, whole or decimal, and a suffix of ``DURATION_UNITS``; or ``0``.

    Raises:
        ValueError: No number, no unit, or an unknown one.
    """
    number, unit = _split(text, "a duration such as 250ms")
    if unit not in DURATION_UNITS:
        if number == 0 and not unit:
            return 0.0
        raise ValueError(_unit_problem(unit, "5s", DURATION_UNITS))
    return float(number * DURATION_UNITS[unit])


def format_bytes(size: int) -> str:
    """Return an exact way to write ``size`` (>= 0) in the largest unit that leaves it whole."""
    if size == 0:
        return "0B"
    unit = max((u for u, f in BYTE_UNITS.items() if size % f == 0), key=BYTE_UNITS.__getitem__)
    return f"{size // BYTE_UNITS[unit]}{unit}"


def format_duration(seconds: float) -> str:
    """Return an exact way to write ``seconds`` (>= 0) in the largest unit that leaves it whole."""
    exact = Decimal(repr(float(seconds)))
    if exact == 0:
        return "0s"
    for unit, length in DURATION_UNITS.items():
        if exact % length == 0:
            return f"{int(exact / length)}{unit}"
    return f"{exact / DURATION_UNITS['us']:f}us"


def _split(text: str, wanted: str) -> tuple[Decimal, str]:
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"is not {wanted}")
    return Decimal(match[1]), match[2]


def _unit_problem(unit: str, example: str, units: dict[str, int] | dict[str, Decimal]) -> str:
    known = ", ".join(units)
    if not unit:
        return f"has no unit: write it like {example} (units: {known})"
    return f"has an unknown unit {unit!r}: write it like {example} (units: {known})"
