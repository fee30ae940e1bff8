"""What commands print."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from mooncake_client import ObjectInfo, ReplicaInfo
from mooncake_client._cli.objects import description
from mooncake_client._cli.output import (
    about_bytes,
    columns,
    printable,
    share,
    show_table,
    write_json,
    write_json_list,
)

if TYPE_CHECKING:
    import pytest


def test_columns_align_texts_left_and_numbers_right() -> None:
    lines = columns(("KEY", "BYTES"), [("a", 5), ("longer", 12_345)]).split("\n")
    assert lines == ["KEY     BYTES", "a           5", "longer  12345"]


def test_columns_without_rows_are_their_head() -> None:
    assert columns(("KEY", "BYTES"), []) == "KEY  BYTES"


def test_control_characters_of_a_key_never_reach_the_terminal() -> None:
    hostile = "a\x1b[2Jb\r\nc\u202ed"
    assert printable(hostile) == "a\\x1b[2Jb\\r\\nc\\u202ed"
    assert "\x1b" not in columns(("KEY",), [(hostile,)])
    assert printable("schlüssel/0") == "schlüssel/0"


def test_a_json_list_is_a_list_however_long(capsys: pytest.CaptureFixture[str]) -> None:
    for items in ([], [1], [{"a": 1}, {"b": "\x1b"}]):
        write_json_list(items)
        assert json.loads(capsys.readouterr().out) == items


def test_json_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    write_json({"a": [1, None, 0.5]})
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == {"a": [1, None, 0.5]}


def test_a_table_that_nobody_watches_is_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    show_table("t", [("requests", "5"), ("", "")])
    assert capsys.readouterr().out == f"{'requests':<30}5\n\n"


def test_rough_sizes_and_shares() -> None:
    assert [about_bytes(n) for n in (0, 1023, 1536, 3 << 30)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "3.0 GiB",
    ]
    assert share(1, 8) == "12.5 %"
    assert share(1, 0) == "-"


def test_a_copy_in_memory_and_one_on_the_disk_of_the_same_node_count_as_one() -> None:
    replicas = tuple(
        ReplicaInfo(node, tier, "readable") for node, tier in (("a", "dram"), ("a", "ssd"))
    )
    info = ObjectInfo("k", 7, 100, replicas, 2, "none", 0.0, 0.0, "", "")
    assert "copies   1 of 2 wanted\n" in description(info)
