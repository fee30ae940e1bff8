"""The ``mooncake-store master`` command."""

from __future__ import annotations

import contextlib
import importlib

import typer
import uvloop

from mooncake_master import logs
from mooncake_master.listening import listen
from mooncake_master.settings import MasterSettings
from mooncake_store.settings import takes_settings

app = typer.Typer()


@app.command("master")
@takes_settings(MasterSettings)
def master(settings: MasterSettings) -> None:
    """Run a master: the index of a pool, for nodes and clients to find each other's objects.

    It prints one line when it serves, and ends on SIGTERM or Ctrl-C after the requests under way.
    """
    logs.configure(settings.log_level, settings.log_format)
    if settings.ha:
        # Nodes and clients that look for the leader must not wait here for the import below.
        importlib.import_module("mooncake_master.app")
    with contextlib.ExitStack() as opened:
        rpc = [opened.enter_context(s) for s in listen(settings.rpc_addresses(), "--bind")]
        admin = [
            opened.enter_context(s) for s in listen(settings.admin_addresses(), "--admin-bind")
        ]
        # The web framework takes a second to import: not to say that a port is taken. Who comes
        # meanwhile is kept, and served at once.
        from mooncake_master.app import serve  # noqa: PLC0415 - slow, see above

        uvloop.run(serve(settings, rpc, admin, _announce))


def _announce(line: str) -> None:
    typer.echo(line)
