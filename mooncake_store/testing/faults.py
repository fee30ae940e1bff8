"""What a ``FaultProxy`` can do to the bytes of one direction."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Direction(enum.Enum):
    """Which bytes a fault concerns."""

    UP = "up"
    """From whoever connected to the server behind the proxy."""
    DOWN = "down"
    """From the server back."""
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class Pass:
    """Everything passes."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Connections are reset, new ones as well as those that are open."""


@dataclass(frozen=True, slots=True)
class Stall:
    """Nothing is taken from the sender: connections stay open, its buffers fill up."""


@dataclass(frozen=True, slots=True)
class BlackHole:
    """Everything is taken from the sender and nothing arrives; connections stay open."""


@dataclass(frozen=True, slots=True)
class Throttle:
    """Bytes pass at a bounded rate, on each connection by itself."""

    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class DropAfter:
    """So many bytes of each connection pass from now on, the rest is swallowed."""

    bytes: int


@dataclass(frozen=True, slots=True)
class CloseAfter:
    """So many bytes of each connection pass from now on, then it is reset, mid-message."""

    bytes: int


@dataclass(frozen=True, slots=True)
class Flip:
    """One bit of the byte that is so many bytes from now is inverted, once per connection."""

    bytes: int


Fault = Pass | Cut | Stall | BlackHole | Throttle | DropAfter | CloseAfter | Flip
