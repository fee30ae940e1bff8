"""Options as dataclasses, and values with units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from mooncake_client._cli.options import duration_option, size_option, spreads_options
from mooncake_client._cli.up import up


@dataclass(frozen=True, slots=True)
class Pool:
    nodes: Annotated[int, typer.Option(min=1)] = 2
    dram: Annotated[int, size_option("--dram", "Memory.")] = 4096


@dataclass(frozen=True, slots=True)
class Wait:
    wait_s: Annotated[float, duration_option("--wait", "How long.")] = 1.5


def make_app(seen: list[object]) -> typer.Typer:
    app = typer.Typer(pretty_exceptions_enable=False)

    @app.command()
    @spreads_options
    def command(
        name: Annotated[str, typer.Argument()],
        *,
        pool: Pool,
        wait: Wait,
        yes: Annotated[bool, typer.Option("--yes")] = False,
    ) -> None:
        seen.extend([name, pool, wait, yes])

    return app


def test_fields_become_options_and_come_back_as_objects() -> None:
    seen: list[object] = []
    words = ["x", "--dram", "2MiB", "--wait", "250ms", "--yes"]
    result = CliRunner().invoke(make_app(seen), words)
    assert result.exit_code == 0, result.output
    assert seen == ["x", Pool(nodes=2, dram=2 << 20), Wait(wait_s=0.25), True]


def test_defaults_hold_where_nothing_is_said() -> None:
    seen: list[object] = []
    assert CliRunner().invoke(make_app(seen), ["x"]).exit_code == 0
    assert seen == ["x", Pool(), Wait(), False]


def test_a_size_out_of_its_range_is_a_usage_error_that_names_the_limit() -> None:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(up)
    for text, limit in (("1MiB", "32MiB"), ("65TiB", "64TiB")):
        result = CliRunner().invoke(app, ["--ssd", text])
        assert result.exit_code == 2
        assert "--ssd" in result.output
        assert limit in result.output


def test_a_value_without_its_unit_is_a_usage_error_that_names_the_option() -> None:
    for words in (["--dram", "64"], ["--wait", "5"], ["--dram", "4 parsecs"], ["--wait", "-1s"]):
        result = CliRunner().invoke(make_app([]), ["x", *words])
        assert result.exit_code == 2
        assert words[0] in result.output
        assert words[1] in result.output
