"""Stand-ins for KV blocks: bytes that follow from a block's key, so that any wrong byte shows.

The bytes come from SHAKE-128, which the store uses nowhere, and are compared by the caller: a
store that stored, fetched and verified the wrong thing consistently would still be found out.
"""

from __future__ import annotations

import hashlib
from typing import Final

PERIOD_BYTES: Final = 1021
"""Length after which a block repeats itself. A prime, so that bytes shifted by any power of two
differ; short, since making a block costs time that is not the store's: 4 us here, 45 us if all of
a 16 KiB block came out of the hash."""


def block_bytes(key: str, size: int) -> bytes:
    """Return the ``size`` bytes that the block ``key`` consists of."""
    period = hashlib.shake_128(key.encode()).digest(min(size, PERIOD_BYTES))
    return (period * -(-size // PERIOD_BYTES))[:size]


def wrong_bytes(found: bytes | bytearray, key: str) -> int:
    """Return how many bytes of ``found`` are not those of the block ``key``."""
    expected = block_bytes(key, len(found))
    if found == expected:
        return 0
    return sum(map(int.__ne__, found, expected))
