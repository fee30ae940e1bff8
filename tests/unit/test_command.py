"""``mooncake_store.command``: what is loaded, what failures look like, what the exit code is."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import typer

from mooncake_store import errors
from mooncake_store.command import run

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class Entry:
    name: str
    contribution: object
    loads: int = 0

    def load(self) -> object:
        self.loads += 1
        if isinstance(self.contribution, ImportError):
            raise self.contribution
        return self.contribution


def several(*functions: Callable[..., object]) -> typer.Typer:
    app = typer.Typer()
    for function in functions:
        app.command()(function)
    return app


def put() -> None:
    """Put."""
    typer.echo("put")


def get_all() -> None:
    """Get all."""
    typer.echo("get-all")


def entries() -> list[Entry]:
    return [
        Entry("client", several(put, get_all)),
        Entry("master", several(lambda: typer.echo("master runs"))),
        Entry("node", lambda: typer.echo("node runs")),
        Entry("broken", ModuleNotFoundError("No module named 'broken'")),
    ]


def failing(error: BaseException) -> list[Entry]:
    def fail() -> None:
        raise error

    return [Entry("fail", fail)]


@pytest.mark.parametrize(
    ("word", "printed"),
    [("put", "put"), ("get-all", "get-all"), ("master", "master runs"), ("node", "node runs")],
)
def test_apps_and_functions_become_commands(
    word: str, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([word], entries()) == 0
    assert capsys.readouterr().out == f"{printed}\n"


def test_a_command_loads_its_own_contribution_only() -> None:
    for word, loaded in (("master", "master"), ("node", "node")):
        all_entries = entries()
        run([word], all_entries)
        assert [entry.name for entry in all_entries if entry.loads] == [loaded]


def test_a_contribution_that_cannot_be_imported_costs_its_own_command_only(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["put"], entries()) == 0
    assert run(["--help"], entries()) == 0
    capsys.readouterr()
    for word in ("broken", "unknown"):
        assert run([word, "--any", "thing"], entries()) == 2
        assert capsys.readouterr().err == (
            f"mooncake-store: no command {word!r}, and parts of this installation fail:"
            " broken: No module named 'broken'\n"
        )


def test_without_words_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([], entries()) == 0
    out = capsys.readouterr().out
    assert all(word in out for word in ("put", "get-all", "master", "node", "--version"))
    assert "broken" not in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nonsense"], "No such command 'nonsense'."),
        (["put", "--nonsense"], "No such option: --nonsense"),
        (["put", "surplus"], "Got unexpected extra argument(s) (surplus)"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words, entries()[:3]) == 2
    assert capsys.readouterr() == ("", f"mooncake-store: {said}\n")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (errors.StoreError("went\nwrong"), 1, "went wrong"),
        (errors.ObjectNotFound("no object 'k'", key="k"), 3, "no object 'k'"),
        (errors.Unreachable("no answer from h:1"), 4, "no answer from h:1"),
        (errors.DeadlineExceeded("5s passed"), 4, "5s passed"),
        (FileNotFoundError(2, "No such file", "x.bin"), 1, "x.bin: No such file"),
        (OSError(28, "No space left on device"), 1, "No space left on device"),
        (KeyError("slot"), 1, "internal error, KeyError: 'slot' (--debug shows where)"),
    ],
)
def test_a_failure_is_one_line_and_its_own_exit_code(
    error: Exception, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["fail"], failing(error)) == code
    assert capsys.readouterr() == ("", f"mooncake-store: {said}\n")


def options() -> list[Entry]:
    def put(*, key: str, number: int = 0, json: bool = False) -> None:
        del json
        if number:
            raise ZeroDivisionError(key)
        raise errors.NoSpace("nothing to evict")

    return [Entry("put", put)]


@pytest.mark.parametrize(
    ("words", "code", "exit_code"),
    [
        (["put", "k", "--json"], "no_space", 1),
        (["put", "--json", "k", "--number", "one"], "invalid_argument", 2),
        (["put", "--json", "--nonsense"], "invalid_argument", 2),
        (["put", "--json"], "invalid_argument", 2),
        (["nonsense", "--json"], "invalid_argument", 2),
        (["put", "k", "--number", "1", "--json"], "internal_error", 1),
    ],
)
def test_where_json_was_asked_every_failure_is_an_object_too(
    words: list[str], code: str, exit_code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words, options()) == exit_code
    out, err = capsys.readouterr()
    (problem,) = json.loads(out).values()
    assert problem["code"] == code
    assert err == f"mooncake-store: {problem['message']}\n"


def test_the_object_of_a_failure_of_the_system_and_of_settings(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(error: Exception) -> list[Entry]:
        def command(*, json: bool = False) -> None:
            del json
            raise error

        return [Entry("command", command)]

    run(["command", "--json"], fail(FileNotFoundError(2, "No such file", "x.bin")))
    problem = {"code": "failed", "message": "x.bin: No such file"}
    assert json.loads(capsys.readouterr().out) == {"error": problem}
    run(["command", "--json"], fail(errors.ConfigError("a: 1\nb: 2")))
    problem = {"code": "config_error", "message": "a: 1\nb: 2"}
    assert json.loads(capsys.readouterr().out) == {"error": problem}


def test_several_wrong_settings_are_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fail"], failing(errors.ConfigError("a: 1\nb: 2"))) == 2
    assert capsys.readouterr().err == "mooncake-store: a: 1\nmooncake-store: b: 2\n"


@pytest.mark.parametrize("words", [["--debug", "fail"], ["fail", "--debug"]])
def test_debug_adds_the_trace(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words, failing(errors.StoreError("wrong"))) == 1
    err = capsys.readouterr().err
    assert "Traceback (most recent call last)" in err
    assert err.endswith("mooncake-store: wrong\n")


def test_the_debug_variable_adds_the_trace_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MOONCAKE_STORE_DEBUG", "1")
    run(["fail"], failing(errors.StoreError("wrong")))
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("error", [KeyboardInterrupt(), typer.Abort()])
def test_an_interrupt_ends_quietly_with_130(
    error: BaseException, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["fail"], failing(error)) == 130
    assert capsys.readouterr() == ("", "")


def test_a_command_chooses_its_own_exit_code() -> None:
    assert run(["fail"], failing(typer.Exit(3))) == 3
    assert run(["count"], [Entry("count", lambda: 7)]) == 7
    assert run(["flag"], [Entry("flag", lambda: True)]) == 0


def test_the_installed_command_knows_its_version() -> None:
    words = [sys.executable, "-m", "mooncake_store", "--version"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)  # noqa: S603 - own interpreter
    assert done.stdout.startswith("mooncake-store 0.")
