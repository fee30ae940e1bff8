"""A seeded generator of random numbers that is the same everywhere, without a library."""

from __future__ import annotations

from typing import Final

_MASK: Final = (1 << 64) - 1


class Dice:
    """SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014)."""

    __slots__ = ("_state",)

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def random(self) -> float:
        """Return a number in [0, 1)."""
        self._state = state = (self._state + 0x9E37_79B9_7F4A_7C15) & _MASK
        state = ((state ^ state >> 30) * 0xBF58_476D_1CE4_E5B9) & _MASK
        state = ((state ^ state >> 27) * 0x94D0_49BB_1331_11EB) & _MASK
        return ((state ^ state >> 31) >> 11) * 2.0**-53
