"""``drain`` and ``undrain``: take a node out of use without losing what only it holds."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from mooncake_client._cli.options import ClientSettings, JsonOption, duration_option
from mooncake_client._cli.output import (
    about_bytes,
    about_seconds,
    columns,
    fail,
    printable,
    write_json,
)
from mooncake_client._cli.target import connect
from mooncake_store.errors import DrainIncomplete, PeerError
from mooncake_store.settings import takes_settings

if TYPE_CHECKING:
    from mooncake_client import Client
    from mooncake_store.wire.control import DrainStatus

TIMEOUT_S: Final = 600.0
"""Time for a drain unless told otherwise: 128 GiB at a quarter of a GiB a second."""
POLL_S: Final = 0.2
PATIENCE_S: Final = 15.0
"""Time for which a master may be away, being restarted, while its drain is waited for."""

NodeArgument = Annotated[str, typer.Argument(metavar="NODE", help="Name of the node.")]


@takes_settings(ClientSettings)
def drain(
    settings: ClientSettings,
    node: NodeArgument,
    timeout_s: Annotated[
        float,
        duration_option(
            "--timeout",
            "Time after which no more is copied. Shorter: more may be left; longer: a node whose"
            " objects fit nowhere is waited for in vain.",
            TIMEOUT_S,
        ),
    ] = TIMEOUT_S,
    *,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait for the end, or only begin.")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Take a node out of use: copy what it alone holds to others.

    It gets no new objects from then on. Exits with 0 when nothing is left that only it holds, with
    1 when the time is over and something is; says what and why. Ctrl-C ends the waiting, not the
    drain: undrain ends that.
    """
    with connect(settings) as client:
        status = client.drain(node, timeout_s)
        if wait:
            status = _wait(client, status)
    _show(status, as_json=as_json)
    if status.state == "incomplete":
        fail(DrainIncomplete(f"node {node!r} is not drained: {_left(status)}", node=node))


@takes_settings(ClientSettings)
def undrain(settings: ClientSettings, node: NodeArgument, *, as_json: JsonOption = False) -> None:
    """Take a drain back: the node gets new objects again."""
    with connect(settings) as client:
        status = client.undrain(node)
    _show(status, as_json=as_json)


def _wait(client: Client, status: DrainStatus) -> DrainStatus:
    """Wait until a drain is over; a master that restarts meanwhile goes on with it."""
    heard_s = time.monotonic()
    while status.state == "draining":
        time.sleep(POLL_S)
        try:
            status = client.describe_drain(status.node)
            heard_s = time.monotonic()
        except PeerError:
            if time.monotonic() - heard_s > PATIENCE_S:
                raise
    return status


def _show(status: DrainStatus, *, as_json: bool) -> None:
    if as_json:
        write_json(
            {
                "node": status.node,
                "state": status.state,
                "left_s": round(status.left_s, 3),
                "moved": {"objects": status.moved, "bytes": status.moved_bytes},
                "left": {"objects": status.left, "bytes": status.left_bytes},
                "counted": status.counted,
                "reasons": status.reasons,
                "examples": [
                    {
                        "namespace": item.namespace,
                        "key": item.key,
                        "bytes": item.bytes,
                        "reason": item.reason,
                    }
                    for item in status.examples
                ],
                "note": status.note,
            }
        )
        return
    if status.state == "none":
        typer.echo(f"{status.node} takes new objects")
        return
    typer.echo(
        f"{status.node} is {status.state}: moved {status.moved} objects of"
        f" {about_bytes(status.moved_bytes)}, {_left(status)}"
    )
    if status.state == "draining":
        typer.echo(f"{about_seconds(status.left_s)} are left for it; undrain ends it")
    if status.examples:
        rows = [
            (printable(item.namespace), printable(item.key), item.bytes, item.reason)
            for item in status.examples
        ]
        typer.echo(columns(("NAMESPACE", "KEY", "BYTES", "NOT COPIED"), rows))


def _left(status: DrainStatus) -> str:
    """Say what only that node holds."""
    if status.counted and not status.left:
        return "nothing is left"
    least = "" if status.counted else "at least "
    text = f"{least}{status.left} objects of {about_bytes(status.left_bytes)} are left"
    if status.reasons:
        text += f" ({', '.join(f'{count} {code}' for code, count in status.reasons.items())})"
    return text
