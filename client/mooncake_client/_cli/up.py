"""``mooncake-store up``: a cluster in the foreground, for trying things out and for tests."""

from __future__ import annotations

import signal
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from mooncake_client._cli.children import ProcessFailed
from mooncake_client._cli.local_cluster import ClusterPlan, LocalCluster, fitting_dram
from mooncake_client._cli.options import JsonOption, size_option, spreads_options
from mooncake_client._cli.output import about_bytes, columns, printable, write_json
from mooncake_store.limits import MIB, SEGMENT_BYTES_MAX, STORE_BYTES_MIN
from mooncake_store.wire.address import format_address

if TYPE_CHECKING:
    from mooncake_store.wire.control import NodeStatus

DRAM_DEFAULT: Final = 256 * MIB
"""Memory of each node: enough to try things out, and half a gigabyte for two is there anywhere."""

_POLL_S: Final = 0.1
"""How often the processes are looked at: a dead one is reported within it."""


@dataclass(frozen=True, slots=True)
class UpOptions:
    """What to start."""

    nodes: Annotated[int, typer.Option(min=1, max=64, metavar="N", help="Storage nodes.")] = 2
    dram: Annotated[
        int | None,
        size_option("--dram", "Memory of each node, less where there is less.", DRAM_DEFAULT),
    ] = None
    ssd: Annotated[
        int | None,
        size_option(
            "--ssd",
            "Disk of each node, in a temporary folder that is deleted. [none]",
            least=STORE_BYTES_MIN,
            most=SEGMENT_BYTES_MAX,
        ),
    ] = None
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65_535, metavar="PORT", help="Port of the master; 0 takes a free one."
        ),
    ] = 50051
    admin_port: Annotated[
        int,
        typer.Option(
            min=0, max=65_535, metavar="PORT", help="Port of its admin API; 0 takes a free one."
        ),
    ] = 9003
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Do not show what the processes write.")
    ] = False


@spreads_options
def up(*, options: UpOptions, as_json: JsonOption = False) -> None:
    """Run a whole cluster on this machine, in the foreground.

    It runs until Ctrl-C or SIGTERM. Everything lives in memory, and with --ssd in a temporary
    folder, and is gone when it ends. If a process dies, the others are stopped, too, and it exits
    with 1.
    """
    dram = options.dram or fitting_dram(DRAM_DEFAULT, options.nodes)
    plan = ClusterPlan(options.nodes, dram, options.port, options.admin_port, options.ssd or 0)
    show = _discard if options.quiet else _show
    with LocalCluster(plan, show) as cluster:
        stop = _stop_on_signals()
        nodes = cluster.start(stop)
        if not stop.is_set():
            _announce(cluster, nodes, as_json=as_json)
        while not stop.wait(_POLL_S):
            cluster.check()
        if killed := cluster.stop():
            raise ProcessFailed(f"{', '.join(killed)} did not stop in time and had to be killed")


def _stop_on_signals() -> threading.Event:
    """Return an event that SIGINT and SIGTERM set; a second signal kills what is left."""
    stop = threading.Event()

    def handle(_number: int, _frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)
    return stop


def _show(name: str, line: str) -> None:
    typer.echo(f"{name:<8} | {printable(line)}", err=True)


def _discard(name: str, line: str) -> None:
    del name, line


def _announce(cluster: LocalCluster, nodes: list[NodeStatus], *, as_json: bool) -> None:
    if as_json:
        write_json(
            {
                "master": cluster.master,
                "admin": cluster.admin,
                "nodes": [
                    {
                        "name": node.record.name,
                        "address": format_address(node.record.host, node.record.port),
                        "dram_bytes": node.capacity_bytes,
                        "ssd_bytes": node.ssd_capacity_bytes,
                    }
                    for node in nodes
                ],
                "pids": cluster.pids(),
            }
        )
        return
    rows = [("master", cluster.master, "", ""), ("admin", cluster.admin, "", "")]
    rows += [
        (
            node.record.name,
            format_address(node.record.host, node.record.port),
            about_bytes(node.capacity_bytes),
            about_bytes(node.ssd_capacity_bytes) if node.ssd_capacity_bytes else "-",
        )
        for node in nodes
    ]
    total = about_bytes(sum(node.capacity_bytes for node in nodes))
    typer.echo(columns(("PROCESS", "ADDRESS", "DRAM", "SSD"), rows))
    typer.echo(f"\nThe pool has {total}. Try: mooncake-store put hello --value world")
    if not cluster.master.endswith(":50051"):
        typer.echo(f"export MOONCAKE_STORE_MASTER={cluster.master}")
    typer.echo("Ctrl-C ends it.")
