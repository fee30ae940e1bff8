"""Log lines: one line each, a bounded number of a kind."""

from __future__ import annotations

import json
import logging

from mooncake_master.logs import BURST, KINDS_MAX, WINDOW_S, JsonLines, RateLimit, TextLines


def record(template: str, *values: object, name: str = "test") -> logging.LogRecord:
    return logging.LogRecord(name, logging.WARNING, "file", 1, template, values, None)


def test_the_first_lines_of_a_kind_pass_and_the_rest_is_counted() -> None:
    now_s = 0.0
    limit = RateLimit(lambda: now_s)
    passed = [limit.filter(record("node %s is gone", number)) for number in range(60)]
    assert passed == [True] * BURST + [False] * (60 - BURST)
    assert limit.filter(record("node %s is back", 1))
    now_s = WINDOW_S
    first = record("node %s is gone", 60)
    assert limit.filter(first)
    assert (
        first.getMessage() == f"node 60 is gone ({60 - BURST} more like this were left out before)"
    )


def test_a_quiet_kind_says_nothing_of_itself() -> None:
    now_s = 0.0
    limit = RateLimit(lambda: now_s)
    assert limit.filter(record("once"))
    now_s = WINDOW_S + 1
    again = record("once")
    assert limit.filter(again)
    assert again.getMessage() == "once"


def test_kinds_are_bounded() -> None:
    limit = RateLimit(lambda: 0.0)
    for number in range(3 * KINDS_MAX):
        assert limit.filter(record(f"kind {number}"))
    assert len(limit._seen) <= KINDS_MAX


def test_a_peer_cannot_forge_lines_with_its_name() -> None:
    line = TextLines().format(
        record("node %s joined", "evil\n2026-01-01 info     all is well\x1b[2J")
    )
    assert len(line.splitlines()) == 1
    assert "\x1b" not in line
    assert r"evil\n2026" in line


def test_json_lines_are_objects_with_their_trace() -> None:
    failed = record("a\nb")
    failed.levelname = "ERROR"
    failed.exc_info = (ValueError, ValueError("cause"), None)
    line = JsonLines().format(failed)
    assert len(line.splitlines()) == 1
    fields = json.loads(line)
    assert (fields["level"], fields["message"]) == ("error", "a\nb")
    assert "ValueError: cause" in fields["exception"]
