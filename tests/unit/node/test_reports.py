"""Drops that no master takes are kept within a bound, and what is over it is counted."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, cast

from mooncake_storage_node import reports
from mooncake_storage_node.reports import DropReports
from mooncake_store.wire.control import DroppedItem

if TYPE_CHECKING:
    import pytest


class NoMaster:
    """A membership of nobody."""

    current = None


def test_reports_that_nobody_takes_are_forgotten_from_the_oldest_on_and_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reports, "WAITING_MAX", 5)
    waiting = DropReports(cast("Any", NoMaster()))
    with caplog.at_level(logging.WARNING):
        for number in range(4):
            waiting.add([DroppedItem(1, 2 * number + n, 7, "lost") for n in range(2)])
    assert len(waiting) == 5
    assert waiting.forgotten == 3
    assert [record.message for record in caplog.records] == [
        "no master takes reports of drops: the oldest are forgotten"
    ]
