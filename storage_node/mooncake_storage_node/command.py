"""The ``mooncake-store node`` command."""

from __future__ import annotations

import logging

import typer

from mooncake_storage_node.settings import NodeSettings
from mooncake_store.settings import takes_settings

app = typer.Typer()


@app.command("node")
@takes_settings(NodeSettings)
def node(settings: NodeSettings) -> None:
    """Run a storage node: give memory of this host to the pool and serve it.

    It prints one line when it serves, joins its master as soon as there is one, and ends on
    SIGTERM or Ctrl-C.
    """
    from mooncake_storage_node.app import serve  # noqa: PLC0415 - --help needs none of it

    logging.basicConfig(
        level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    serve(settings, typer.echo)
