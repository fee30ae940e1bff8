"""``mooncake-store doctor``: is everything well, and if not, what is not."""

from __future__ import annotations

import dataclasses
from importlib.metadata import version as installed_version
from typing import TYPE_CHECKING

import typer

from mooncake_client._cli.findings import (
    Verdict,
    is_this_host,
    look_at_cluster,
    look_at_host,
)
from mooncake_client._cli.options import ClientSettings, JsonOption
from mooncake_client._cli.output import printable, write_json
from mooncake_client._cli.probing import probe_nodes
from mooncake_client._cli.rdma_findings import look_at_rdma
from mooncake_client._cli.target import connect
from mooncake_store.command import DISTRIBUTION
from mooncake_store.settings import takes_settings
from mooncake_store.wire.address import parse_address

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mooncake_client._cli.findings import Finding

_COLOURS = {Verdict.OK: "green", Verdict.NOTE: "yellow", Verdict.BAD: "red"}


@takes_settings(ClientSettings)
def doctor(settings: ClientSettings, *, as_json: JsonOption = False) -> None:
    """Say whether all is well with a cluster, and what is not.

    Puts an object on every node and reads it by every path there is. Says where each byte came
    from and what is misconfigured; exits with 0 only if nothing is.
    """
    found = []
    for finding in _examine(settings):
        found.append(finding)
        if not as_json:
            _show(finding)
    problems = sum(finding.verdict is Verdict.BAD for finding in found)
    if as_json:
        write_json({"ok": not problems, "findings": [dataclasses.asdict(f) for f in found]})
    else:
        typer.echo(
            "all is well" if not problems else f"{problems} of {len(found)} findings are bad"
        )
    if problems:
        raise typer.Exit(1)


def _examine(settings: ClientSettings) -> Iterator[Finding]:
    with connect(settings) as client:
        status = client.describe_cluster()
    software = f"{DISTRIBUTION} {installed_version(DISTRIBUTION)}"
    host = parse_address(settings.master.split(",")[0], 0).host
    yield from look_at_cluster(status, software, host)
    here = [node.capacity_bytes for node in status.nodes if is_this_host(node.record.host)]
    yield from look_at_host(sum(here))
    if settings.transport in {"auto", "rdma"}:
        yield from look_at_rdma(status)
    yield from probe_nodes(settings, status)


def _show(finding: Finding) -> None:
    mark = typer.style(f"{finding.verdict:<5}", fg=_COLOURS[finding.verdict])
    typer.echo(f"{mark} {printable(finding.subject):<10} {printable(finding.text)}")
