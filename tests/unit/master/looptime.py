"""Time of an event loop that passes only where the loop would sleep, and then at once.

What a test says of seconds holds however slow the machine is, and costs none.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from mooncake_store.testing import VirtualClock

if TYPE_CHECKING:
    import selectors

    import pytest


def stop_time(monkeypatch: pytest.MonkeyPatch) -> VirtualClock:
    """Give the running loop such a time, until the end of the test."""
    loop = asyncio.get_running_loop()
    clock = VirtualClock(loop.time())
    selector: selectors.BaseSelector = loop._selector  # type: ignore[attr-defined]
    select = selector.select

    def leap(timeout_s: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout_s is None:
            return select()
        clock.advance(timeout_s)
        return select(0)

    monkeypatch.setattr(loop, "time", clock)
    monkeypatch.setattr(selector, "select", leap)
    return clock
