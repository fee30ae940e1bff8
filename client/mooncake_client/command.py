"""The client's part of the ``mooncake-store`` command."""

from __future__ import annotations

import typer

from mooncake_client._cli.bench import bench
from mooncake_client._cli.cluster import nodes, stats
from mooncake_client._cli.doctor import doctor
from mooncake_client._cli.draining import drain, undrain
from mooncake_client._cli.objects import get, ls, put, rm, stat
from mooncake_client._cli.replay import replay
from mooncake_client._cli.up import up

app = typer.Typer()

for function in (up, put, get, stat, ls, rm, nodes, drain, undrain, stats, doctor, replay, bench):
    app.command(function.__name__)(function)
