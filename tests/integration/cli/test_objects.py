"""put, get, stat, ls and rm on processes: exact bytes, missing never empty, codes for scripts."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from mooncake_store.limits import MIB

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.cli.conftest import Commands

pytestmark = pytest.mark.processes

BINARY = bytes(range(256)) * 5_000


def test_binary_values_come_back_exactly(cli: Commands, tmp_path: Path) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_bytes(BINARY)
    put = cli("put", "binary", str(source), "--replicas", "2")
    assert (put.code, put.err) == (0, "")
    assert put.text.endswith("1280000 bytes, 2 copies\n")
    assert cli("get", "binary").out == BINARY
    assert cli("get", "binary", "-o", str(target)).out == b""
    assert target.read_bytes() == BINARY
    assert cli("get", "binary", "--range", "255:258").out == b"\xff\x00\x01"
    assert cli("get", "binary", "--range", "1279998:").out == b"\xfe\xff"


def test_a_value_comes_from_standard_input(cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, words in enumerate((["piped-0", "-"], ["piped-1"])):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(BINARY)))
        assert cli("put", *words).code == 0
        assert cli("get", f"piped-{number}").out == BINARY


def test_a_value_without_an_end_is_refused_as_soon_as_no_segment_takes_it(
    cli: Commands, tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    outcomes: list[str] = []

    def write() -> None:
        with pipe.open("wb", buffering=0) as file:
            try:
                for _ in range(256):
                    file.write(bytes(MIB))
            except BrokenPipeError:
                outcomes.append("cut off")
            else:
                outcomes.append("all of it was read")

    writer = threading.Thread(target=write)
    writer.start()
    result = cli("put", "endless", str(pipe))
    writer.join()
    assert (result.code, outcomes) == (1, ["cut off"])
    assert "the largest segment" in result.err
    assert cli("get", "endless").code == 3


def test_missing_and_empty_are_told_apart(cli: Commands) -> None:
    assert cli("put", "empty", "--value", "").code == 0
    empty = cli("get", "empty")
    assert (empty.code, empty.out, empty.err) == (0, b"", "")
    missing = cli("get", "missing")
    assert (missing.code, missing.out) == (3, b"")
    assert missing.err.startswith("mooncake-store: no object 'missing': ")
    assert missing.err.count("\n") == 1
    assert cli("get", "empty", "--json").json == {"key": "empty", "bytes": 0, "value_base64": ""}
    assert cli("get", "missing", "--json").json["error"]["code"] == "object_not_found"


def test_the_first_writer_wins_unless_told_otherwise(cli: Commands) -> None:
    first = cli("put", "contested", "--value", "first", "--json").json
    assert (first["created"], first["bytes"], first["replicas"]) == (True, 5, 1)
    second = cli("put", "contested", "--value", "second", "--json").json
    assert (second["created"], second["version"]) == (False, first["version"])
    assert cli("get", "contested").out == b"first"
    assert cli("put", "contested", "--value", "third", "--replace").code == 0
    assert cli("get", "contested").out == b"third"
    version = str(first["version"])
    late = cli("put", "contested", "--value", "late", "--expected-version", version)
    assert late.code == 1
    assert cli("get", "contested").out == b"third"


def test_stat_shows_where_copies_are_and_what_protects_them(cli: Commands) -> None:
    words = ["put", "described", "--value", "x" * 100, "--replicas", "2", "--pin-for", "90s"]
    assert cli(*words).code == 0
    assert cli("get", "described").code == 0
    info = cli("stat", "described", "--json").json
    assert info["bytes"] == 100
    assert {replica["node"] for replica in info["replicas"]} == {"node-1", "node-2"}
    assert {replica["tier"] for replica in info["replicas"]} == {"dram"}
    assert info["pin"] == "soft"
    assert 0 < info["pin_left_s"] <= 90
    assert info["lease_left_s"] > 0
    text = cli("stat", "described").text
    for said in ("bytes    100", "pin      soft, ", "copies   2 of 2 wanted", "node-1  dram"):
        assert said in text


def test_stat_of_several_prints_what_there_is_and_fails_for_the_rest(cli: Commands) -> None:
    assert cli("put", "there", "--value", "x").code == 0
    both = cli("stat", "there", "not-there", "--json")
    assert both.code == 3
    assert [info and info["key"] for info in both.json] == ["there", None]
    assert "'not-there'" in both.err
    neither = cli("stat", "not-there", "--json")
    assert neither.code == 3
    assert neither.json["error"]["code"] == "object_not_found"


def test_ls_shows_pages_and_says_when_there_is_more(cli: Commands) -> None:
    for number in range(12):
        assert cli("put", f"list/{number:02}", "--value", "x").code == 0
    some = cli("ls", "list/", "--limit", "5")
    assert some.text.count("list/") == 5
    assert "more than 5: --all" in some.err
    every = cli("ls", "list/", "--all")
    assert every.text.count("list/") == 12
    assert every.err == ""
    exactly = cli("ls", "list/", "--limit", "12", "--json")
    assert {info["key"] for info in exactly.json} == {f"list/{number:02}" for number in range(12)}
    assert exactly.err == ""
    assert cli("ls", "nothing/", "--json").json == []
    assert cli("ls", "nothing/").code == 0


def test_a_hostile_key_does_not_reach_the_terminal(cli: Commands) -> None:
    key = "hostile/\x1b]0;owned\x07\r\n"
    assert cli("put", key, "--value", "x").code == 0
    for words in (["ls", "hostile/"], ["stat", key]):
        shown = cli(*words)
        assert b"\x1b" not in shown.out
        assert "hostile/\\x1b]0;owned\\x07\\r\\n" in shown.text
    assert cli("ls", "hostile/", "--json").json[0]["key"] == key
    gone = cli("rm", key, "no\x1bkey")
    assert gone.code == 3
    assert "\x1b" not in gone.err


def test_rm_removes_named_keys_and_says_which_were_not_there(cli: Commands) -> None:
    assert cli("put", "gone", "--value", "x").code == 0
    assert cli("rm", "gone").text == "removed 1\n"
    assert cli("get", "gone").code == 3
    again = cli("rm", "gone", "--json")
    assert again.code == 3
    assert again.json == {"removed": 0, "absent": 1}


def test_rm_of_a_prefix_wants_a_confirmation(cli: Commands) -> None:
    for number in range(3):
        assert cli("put", f"sweep/{number}", "--value", "x").code == 0
    assert cli("put", "swept", "--value", "x").code == 0
    refused = cli("rm", "--prefix", "sweep/")
    assert refused.code == 2
    assert "--yes" in refused.err
    assert cli("rm", "--prefix", "sweep/", "--yes", "--json").json == {"removed": 3, "absent": 0}
    assert cli("ls", "sweep/", "--json").json == []
    assert cli("get", "swept").code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["get", ""], "key cannot be empty"),
        (["put", "k", "--value", "x", "file"], "exclude each other"),
        (["put", "k", "--value", "x", "--pin", "--pin-for", "5s"], "exclude each other"),
        (["put", "k", "--value", "x", "--pin-for", "5"], "has no unit"),
        (["put", "k", "--value", "x", "--replicas", "0"], "--replicas"),
        (["put", "k", "--value", "x", "--replicas", "nine"], "--replicas"),
        (["get"], "KEY"),
        (["get", "k", "--range", "5"], "0:4096"),
        (["get", "k", "--range", "9:5"], "ends before it starts"),
        (["get", "k", "--range", "a:b"], "0:4096"),
        (["get", "k", "--deadline", "5"], "has no unit"),
        (["get", "k", "--deadline", "0.1us"], "out of range"),
        (["get", "k", "--transport", "pigeon"], "pigeon"),
        (["get", "k", "--namespace", ""], "namespace"),
        (["get", "k", "--master", "http://x"], "http://x"),
        (["get", "k", "--master", "x:99999"], "x:99999"),
        (["get", "k", "--colour"], "--colour"),
        (["rm"], "name keys or a --prefix"),
        (["rm", "k", "--prefix", "k"], "not both"),
        (["ls", "--limit", "0"], "--limit"),
        (["bench", "--mix", "get"], "--mix"),
        (["bench", "--mix", "get=0"], "--mix"),
        (["bench", "--mix", "fly=1"], "--mix"),
        (["bench", "--size", "4"], "has no unit"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line_and_a_usage_error(
    cli: Commands, words: list[str], said: str
) -> None:
    result = cli(*words)
    assert result.code == 2
    assert result.out == b""
    assert said in result.err
    assert result.err.count("\n") == 1
    assert "internal" not in result.err


def test_what_cannot_be_is_one_line_and_a_failure(cli: Commands, tmp_path: Path) -> None:
    for words in (
        ["put", "k", str(tmp_path / "nowhere")],
        ["put", "k", str(tmp_path)],
        ["put", "many-copies", "--value", "x", "--replicas", "3"],
    ):
        result = cli(*words)
        assert result.code == 1, words
        assert result.err.count("\n") == 1


def test_nobody_listening_is_code_4(cli: Commands) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        master = f"127.0.0.1:{sock.getsockname()[1]}"
        for command in (["get", "k"], ["nodes"], ["doctor"], ["replay", "synthetic"]):
            result = cli(*command, "--master", master, "--deadline", "300ms")
            assert result.code == 4, command
            assert result.err.count("\n") == 1


def test_silence_ends_at_the_deadline_with_code_4(cli: Commands) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        master = f"127.0.0.1:{sock.getsockname()[1]}"
        result = cli("get", "k", "--master", master, "--deadline", "500ms")
    assert result.code == 4
    assert result.err.count("\n") == 1


def test_a_reader_that_has_seen_enough_is_no_failure_to_talk_about(cli: Commands) -> None:
    assert cli("put", "wide", "--value", "x" * 1_000_000).code == 0
    for words in (["get", "wide"], ["stat", "wide", "--json"]):
        reading, writing = os.pipe()
        os.close(reading)
        with os.fdopen(writing, "w") as stream:
            done = subprocess.run(  # noqa: S603 - own interpreter, fixed words
                [sys.executable, "-m", "mooncake_store", *words],
                stdout=stream,
                stderr=subprocess.PIPE,
                timeout=60,
                check=False,
            )
        assert (done.returncode, done.stderr) == (1, b"")
