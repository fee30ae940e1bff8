"""``mooncake_store.settings``: what is accepted, what is refused, and what is said about it."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Annotated, Literal

import pytest
import typer
from pydantic import ValidationError

from mooncake_store.command import run
from mooncake_store.errors import ConfigError
from mooncake_store.settings import (
    ByteSize,
    Conflict,
    Duration,
    RoleSettings,
    TextList,
    load,
    setting,
    show,
    takes_settings,
)
from mooncake_store.settings.sources import gather


class Sample(RoleSettings, role="node"):
    dram_bytes: ByteSize = setting(1 << 30, least=1 << 20, most=1 << 40, about="Memory.")
    inflight_bytes_max: ByteSize = setting(1 << 20, least=0, most=1 << 30, about="Queue.")
    ttl_s: Duration = setting(5.0, least=0.1, most=3600.0, about="Lease.")
    rest_s: Duration | None = setting(None, least=0, most=10, about="Pause.")
    workers: int = setting(2, least=1, most=64, unit="threads", about="Workers.")
    ratio: float = setting(0.5, least=0, most=1, unit="share", about="Share.")
    policy: Literal["lru", "fifo"] = setting("lru", about="Order of eviction.")
    verify: bool = setting(True, about="Check sums.")
    name: str | None = setting(None, about="Name.")
    folder: Path | None = setting(None, about="Folder.")
    masters: TextList = setting((), about="Addresses.")

    def conflicts(self) -> list[Conflict]:
        if self.workers < 64 or self.ratio > 0.1:
            return []
        return [Conflict(("workers", "ratio"), "so many workers need a larger share")]


def read(
    flags: dict[str, str] | None = None,
    *,
    environment: dict[str, str] | None = None,
    config: Path | None = None,
) -> Sample:
    return load(Sample, flags=flags or {}, environment=environment or {}, config=config)


def refused(
    flags: dict[str, str] | None = None,
    *,
    environment: dict[str, str] | None = None,
    config: Path | None = None,
) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(flags, environment=environment, config=config)
    return str(caught.value).splitlines()


def test_without_any_source_the_defaults_hold() -> None:
    assert read() == Sample()


def test_flags_beat_environment_beats_file_beats_default(tmp_path: Path) -> None:
    file = tmp_path / "store.yaml"
    file.write_text("node: {ttl: 1s, workers: 3, ratio: 0.25, dram: 2GiB}\n")
    environment = {
        "MOONCAKE_STORE_CONFIG": str(file),
        "MOONCAKE_STORE_NODE_TTL": "2s",
        "MOONCAKE_STORE_NODE_WORKERS": "4",
    }
    settings = read({"ttl_s": "3s"}, environment=environment)
    assert (settings.ttl_s, settings.workers, settings.ratio) == (3.0, 4, 0.25)
    assert settings.dram_bytes == 2 << 30
    assert settings.policy == "lru"


def test_every_kind_of_value_is_read_from_text() -> None:
    settings = read(
        {
            "inflight_bytes_max": "4MiB",
            "rest_s": "250ms",
            "ratio": "0.75",
            "policy": "fifo",
            "verify": "no",
            "name": "a",
            "folder": "data",
            "masters": "one:1, two:2",
        }
    )
    assert settings == Sample(
        inflight_bytes_max=4 << 20,
        rest_s=0.25,
        ratio=0.75,
        policy="fifo",
        verify=False,
        name="a",
        folder=Path("data"),
        masters=("one:1", "two:2"),
    )


@pytest.mark.parametrize(
    ("field", "text", "line"),
    [
        ("ttl_s", "60", "ttl: '60' (--ttl) has no unit: write it like 5s"),
        ("ttl_s", "2h", "ttl: '2h' (--ttl) is out of range: 100ms to 1h"),
        ("rest_s", "11s", "rest: '11s' (--rest) is out of range: 0s to 10s"),
        ("dram_bytes", "4", "dram: '4' (--dram) has no unit: write it like 4GiB"),
        ("dram_bytes", "4G", "dram: '4G' (--dram) has an unknown unit 'G'"),
        ("dram_bytes", "4KiB", "dram: '4KiB' (--dram) is out of range: 1MiB to 1TiB"),
        ("inflight_bytes_max", "x", "inflight_max: 'x' (--inflight-max) is not a size"),
        ("workers", "0", "workers: '0' (--workers) is out of range: 1 to 64 threads"),
        ("workers", "2.5", "workers: '2.5' (--workers) is not a whole number"),
        ("workers", "9" * 5000, "999...' (--workers) is not a whole number"),
        ("ratio", "nan", "ratio: 'nan' (--ratio) is not a number"),
        ("ratio", "inf", "ratio: 'inf' (--ratio) is not a number"),
        ("ratio", "", "ratio: '' (--ratio) is not a number"),
        ("policy", "LRU", "policy: 'LRU' (--policy) is not one of lru, fifo"),
        ("verify", "maybe", "verify: 'maybe' (--verify) is not true or false"),
    ],
)
def test_a_bad_value_is_one_line_with_option_value_and_place(
    field: str, text: str, line: str
) -> None:
    lines = refused({field: text})
    assert len(lines) == 1
    assert line in lines[0]


def test_all_problems_of_all_sources_come_at_once(tmp_path: Path) -> None:
    file = tmp_path / "store.yaml"
    file.write_text("node:\n  ratio: 7\n  tll: 5s\nnod: {}\n")
    lines = refused(
        {"ttl_s": "60"},
        environment={"MOONCAKE_STORE_NODE_WORKERS": "many", "MOONCAKE_STORE_T": "5s"},
        config=file,
    )
    assert lines == [
        "store.yaml line 4: 'nod' is no section; did you mean node?",
        "node.tll: '5s' (store.yaml line 3) is no option; did you mean ttl?",
        "MOONCAKE_STORE_T: '5s' (environment) is no option; did you mean MOONCAKE_STORE_NODE_TTL?",
        "ttl: '60' (--ttl) has no unit: write it like 5s (units: h, m, s, ms, us)",
        "workers: 'many' (MOONCAKE_STORE_NODE_WORKERS) is not a whole number",
        "ratio: '7' (store.yaml line 2) is out of range: 0 to 1 share",
    ]


def test_a_relation_that_does_not_hold_names_both_values_and_their_places() -> None:
    lines = refused({"workers": "64"}, environment={"MOONCAKE_STORE_NODE_RATIO": "0.1"})
    places = "workers: '64' (--workers), ratio: '0.1' (MOONCAKE_STORE_NODE_RATIO)"
    assert lines == [f"{places}: so many workers need a larger share"]


def test_the_address_of_the_master_is_one_variable_for_all_roles() -> None:
    class Member(RoleSettings, role="node"):
        master: str = setting("near:1", about="Address.")

    shared, own = {"MOONCAKE_STORE_MASTER": "far:1"}, {"MOONCAKE_STORE_NODE_MASTER": "own:1"}
    assert load(Member, flags={}, environment=shared).master == "far:1"
    assert load(Member, flags={}, environment=shared | own).master == "own:1"
    assert read(environment=shared) == Sample()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("MOONCAKE_STORE_NODE_PORT", "tcp://10.0.0.1:50051"),
        ("MOONCAKE_STORE_PORT", "tcp://10.0.0.1:50051"),
        ("MOONCAKE_STORE_NODE_PORT_50051_TCP", "tcp://10.0.0.1:50051"),
        ("MOONCAKE_STORE_NODE_PORT_50051_TCP_ADDR", "10.0.0.1"),
        ("MOONCAKE_STORE_SERVICE_HOST", "10.0.0.1"),
        ("MOONCAKE_STORE_NODE_SERVICE_PORT_RPC", "50051"),
        ("MOONCAKE_STORE_MASTER_LEASE_TTL", "another role's business"),
        ("MOONCAKE_STORE_DEBUG", "1"),
        ("MOONCAKE_STORE_NODE_TTL", ""),
        ("HOME", "/"),
    ],
)
def test_a_variable_that_is_no_option_of_ours_is_left_alone(name: str, text: str) -> None:
    assert read(environment={name: text}) == Sample()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("node: {ttl: 5s, ttl: 6s}", "line 1: 'ttl' stands here twice"),
        ("node: {}\nnode: {}", "line 2: 'node' stands here twice"),
        ("- node", "line 1: the file is no mapping"),
        ("node: 5", "line 1: section 'node' is no mapping"),
        ("node: {ttl: {a: b}}", "line 1: 'ttl' is neither a value nor a list"),
        ("node: {masters: [[a]]}", "line 1: 'masters' is neither a value nor a list"),
        ("node: {[a]: b}", "line 1: a name in section 'node' is no text"),
        ("node: [", "line 1: no valid YAML"),
        ("node:\n\tttl: 5s", "line 2: no valid YAML"),
        ("node: {ttl: 5s}\n---\nnode: {}", "no valid YAML"),
        ("\x00", "no valid YAML"),
        ("a: " + "[" * 5000, "no valid YAML"),
        ("#" * (1 << 20) + "\n", "larger than 1048576 bytes"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line_with_its_place(
    tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "store.yaml"
    file.write_text(text)
    lines = refused(config=file)
    assert len(lines) == 1
    assert lines[0].startswith(f"--config {file}")
    assert said in lines[0]


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    file = tmp_path / "absent.yaml"
    assert refused(config=file) == [f"--config {file}: No such file or directory"]
    assert refused(config=tmp_path) == [f"--config {tmp_path}: Is a directory"]


def test_a_file_may_be_empty_or_leave_values_and_sections_out(tmp_path: Path) -> None:
    file = tmp_path / "store.yaml"
    for text in ("", "# nothing\n", "node:\n", "node: {ttl: null, name: }\nmaster: {x: y}\n"):
        file.write_text(text)
        assert read(config=file) == Sample()


def test_a_list_in_a_file_is_what_commas_are_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "store.yaml"
    file.write_text("node: {masters: [one:1, two:2]}\n")
    assert read(config=file) == read({"masters": "one:1,two:2"})


def test_the_dump_says_where_each_value_comes_from_and_reads_back(tmp_path: Path) -> None:
    flags = {"ttl_s": "1s", "name": 'null "x"\n', "masters": "one:1,two:2", "rest_s": "0"}
    origins, _ = gather(Sample, flags=flags, config=None, environment={})
    settings = read(flags)
    file = tmp_path / "dump.yaml"
    file.write_text(show(settings, origins))
    assert "  ttl: 1s  # from --ttl\n" in file.read_text()
    assert "  workers: 2  # default\n" in file.read_text()
    assert read(config=file) == settings


def test_settings_made_in_code_read_no_source_and_never_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MOONCAKE_STORE_NODE_TTL", "1s")
    settings = Sample(workers=3)
    assert settings.ttl_s == 5.0
    with pytest.raises(ValidationError):
        settings.workers = 4
    with pytest.raises(ValidationError):
        Sample(workers=0)
    with pytest.raises(ValidationError, match="so many workers"):
        Sample(workers=64, ratio=0.1)


def test_an_option_that_is_not_fully_declared_stops_the_import() -> None:
    with pytest.raises(TypeError, match=r"Bad.a was not declared with setting"):
        type("Bad", (RoleSettings,), {"__annotations__": {"a": int}, "a": 1}, role="node")
    for field, said in (
        (setting(1, about="A.", unit="x"), "has no bounds"),
        (setting(1, about="A.", least=0, most=2), "what it counts"),
        (setting(3, about="A.", least=0, most=2, unit="x"), "out of its bounds"),
        (setting(1, about="", least=0, most=2, unit="x"), "what it is for"),
    ):
        with pytest.raises(TypeError, match=f"Bad.a .*{said}"):
            type("Bad", (RoleSettings,), {"__annotations__": {"a": int}, "a": field}, role="node")


app = typer.Typer()


@app.command()
@takes_settings(Sample)
def serve(
    settings: Sample,
    target: Annotated[str, typer.Argument(help="What to serve.")] = "all",
    *,
    loud: Annotated[bool, typer.Option("--loud", help="Say more.")] = False,
) -> int:
    """Serve the sample."""
    typer.echo(f"{target} {loud} {settings.ttl_s} {settings.verify}")
    return 0


class Entry:
    name = "node"

    def load(self) -> typer.Typer:
        return app


def command(*words: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run(list(words), [Entry()])
    return code, out.getvalue(), err.getvalue()


def test_a_command_takes_the_settings_as_options_beside_its_own() -> None:
    assert command("node") == (0, "all False 5.0 True\n", "")
    assert command("node", "this", "--ttl", "1m", "--no-verify", "--loud") == (
        0,
        "this True 60.0 False\n",
        "",
    )


def test_a_command_with_a_wrong_setting_says_so_in_one_line_and_exits_2() -> None:
    code, out, err = command("node", "--ttl", "60")
    assert (code, out) == (2, "")
    assert err.startswith("mooncake-store: ttl: '60' (--ttl) has no unit")
    assert err.count("\n") == 1


def test_help_states_default_bounds_and_kind_of_every_option() -> None:
    _, out, _ = command("node", "--help")
    text = " ".join(out.split())
    for option in Sample.options():
        assert option.flag in text
        assert option.about in text
        assert option.bounds in text
        assert not option.default or f"[default: {option.default}" in text


def test_print_config_shows_the_settings_instead_of_running() -> None:
    code, out, _ = command("node", "--ttl", "1s", "--print-config")
    assert code == 0
    assert out.startswith("node:\n  dram: 1GiB  # default\n")
    assert "  ttl: 1s  # from --ttl\n" in out
