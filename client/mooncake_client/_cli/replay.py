"""``mooncake-store replay``: a real request trace, served by a cluster or by the pure core."""

from __future__ import annotations

import contextlib
import itertools
import secrets
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from mooncake_client._cli.local_cluster import ClusterPlan, LocalCluster, fitting_dram
from mooncake_client._cli.options import (
    ClientSettings,
    JsonOption,
    size_option,
    spreads_options,
)
from mooncake_client._cli.output import progress
from mooncake_client._cli.replay_report import Outcome, Simulation, report, report_simulations
from mooncake_client._cli.replaying import Tally, Worker, run_workers
from mooncake_client._cli.simulating import find_simulator
from mooncake_client._cli.target import ClientBlocks, Usage, connect
from mooncake_store.errors import InvalidArgument
from mooncake_store.limits import KIB, MIB
from mooncake_store.settings import takes_settings
from mooncake_store.traces import open_trace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mooncake_client import Client
    from mooncake_store.traces import Request

REQUESTS_DEFAULT: Final = 3_000
"""Requests of a run that names no number: under a minute on two slow cores."""

BLOCK_BYTES_DEFAULT: Final = 16 * KIB
"""A small stand-in for a KV block: the default run puts less than a gigabyte of them."""

DRAM_DEFAULT: Final = 512 * MIB
"""Memory of each node of a cluster of its own: two hold all blocks of the default run."""

CONCURRENCY_MAX: Final = 64
"""Each worker is a thread with buffers of its own; beyond this they only wait for each other."""

_REMOVE_KEYS: Final = 1_000
"""Keys removed by one call when tidying up: some milliseconds of the master's time."""

TraceArgument = Annotated[
    str,
    typer.Argument(metavar="TRACE", help="conversation, synthetic, or a .jsonl file, also .gz."),
]


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """What is replayed, and where."""

    requests: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help=f"Replay the first N requests [default: {REQUESTS_DEFAULT}]."
        ),
    ] = None
    whole: Annotated[bool, typer.Option("--all", help="Replay the whole trace.")] = False
    block_size: Annotated[
        int, size_option("--block-bytes", "Bytes of one block of the trace.", BLOCK_BYTES_DEFAULT)
    ] = BLOCK_BYTES_DEFAULT
    concurrency: Annotated[
        int,
        typer.Option(
            min=1, max=CONCURRENCY_MAX, metavar="N", help="Requests under way at one time."
        ),
    ] = 1
    local: Annotated[
        bool, typer.Option("--local", help="Start a cluster for this run and stop it afterwards.")
    ] = False
    nodes: Annotated[
        int, typer.Option(min=1, max=64, metavar="N", help="With --local: storage nodes.")
    ] = 2
    dram: Annotated[
        int | None,
        size_option(
            "--dram",
            "With --local: memory of each node, less where there is less.",
            DRAM_DEFAULT,
        ),
    ] = None
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the blocks in the store when done.")
    ] = False

    def limit(self, *, otherwise: int | None) -> int | None:
        """Return how many requests to take; None is all there are.

        Raises:
            InvalidArgument: Both a number and all were asked for.
        """
        if self.whole and self.requests is not None:
            raise InvalidArgument("--all and --requests exclude each other")
        return None if self.whole else self.requests or otherwise


@dataclass(frozen=True, slots=True)
class DryRunOptions:
    """What is simulated."""

    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Only compute hit rates: no cluster, no bytes; the whole trace by default.",
        ),
    ] = False
    capacity_blocks: Annotated[
        list[int] | None,
        typer.Option(
            min=0,
            metavar="N",
            help="With --dry-run: blocks the pool holds, 0 for no limit; several give a table.",
        ),
    ] = None
    policy: Annotated[
        str, typer.Option(metavar="NAME", help="With --dry-run: eviction policy.")
    ] = "lru"


@takes_settings(ClientSettings)
@spreads_options
def replay(
    settings: ClientSettings,
    trace: TraceArgument,
    *,
    options: ReplayOptions,
    simulated: DryRunOptions,
    as_json: JsonOption = False,
) -> None:
    """Replay a request trace and check every byte.

    For each request, the blocks that are there are fetched and the others are put. Exits with 1 if
    any fetched byte was wrong.
    """
    if simulated.dry_run:
        results = _simulate(trace, options.limit(otherwise=None), simulated)
        report_simulations(results, block_size=options.block_size, as_json=as_json)
        return
    if simulated.capacity_blocks:
        raise InvalidArgument("--capacity-blocks needs --dry-run")
    requests = list(itertools.islice(open_trace(trace), options.limit(otherwise=REQUESTS_DEFAULT)))
    outcome = _replay(settings, trace, requests, options)
    report(outcome, as_json=as_json)
    if outcome.tally.wrong_bytes:
        raise typer.Exit(1)


def _simulate(trace: str, limit: int | None, options: DryRunOptions) -> list[Simulation]:
    """Play the trace into one pool of each capacity that was asked for."""
    simulate = find_simulator()
    requests = list(itertools.islice(open_trace(trace), limit))
    results = []
    with progress() as bars:
        for capacity in options.capacity_blocks or [0]:
            name = f"{capacity:,} blocks" if capacity else "no limit"
            watched = bars.track(requests, description=name)
            hits = simulate(
                (request.hash_ids for request in watched),
                capacity or None,
                options.policy,
            )
            results.append(Simulation(capacity, options.policy, hits))
    return results


def _replay(
    settings: ClientSettings, trace: str, requests: list[Request], options: ReplayOptions
) -> Outcome:
    """Replay with real bytes, on a cluster of our own if asked for."""
    label = Path(trace).name.split(".", 1)[0]
    # A run of its own: it starts cold whatever earlier runs have left.
    prefix = f"replay/{label}/{secrets.token_hex(4)}/"
    with contextlib.ExitStack() as stack:
        if options.local:
            cluster = stack.enter_context(_local_cluster(options))
            settings = settings.model_copy(update={"master": cluster.master})
        clients = [stack.enter_context(connect(settings)) for _ in range(options.concurrency)]
        if not options.local and not options.keep:
            stack.callback(_tidy_up, clients[0], prefix, requests)
        before = Usage.of(clients)
        started_s = time.perf_counter()
        tally = _run(clients, prefix, requests, options.block_size)
        took_s = time.perf_counter() - started_s
        return Outcome(
            tally=tally,
            usage=Usage.of(clients).since(before),
            block_size=options.block_size,
            seconds=took_s,
        )


@contextlib.contextmanager
def _local_cluster(options: ReplayOptions) -> Iterator[LocalCluster]:
    """Start a cluster that is silent unless it fails."""
    dram = options.dram or fitting_dram(DRAM_DEFAULT, options.nodes)
    plan = ClusterPlan(options.nodes, dram)
    with LocalCluster(plan, lambda _name, _line: None) as cluster:
        with progress() as bars:
            bars.add_task("starting a cluster", total=None)
            cluster.start(threading.Event())
        yield cluster


def _run(clients: list[Client], prefix: str, requests: list[Request], size: int) -> Tally:
    """Run one worker a client, with a progress bar, and return what all of them saw."""
    workers = [Worker(ClientBlocks(client), prefix, size) for client in clients]
    lock = threading.Lock()
    with progress("rate", "hits") as bars:
        task = bars.add_task("replaying", total=len(requests), rate="", hits="")

        def done() -> None:
            with lock:
                bars.advance(task)
                row = bars.tasks[0]
                blocks = sum(worker.tally.blocks for worker in workers)
                hits = sum(worker.tally.block_hits for worker in workers)
                bars.update(
                    task,
                    rate=f"{row.speed or 0:.0f} requests/s",
                    hits=f"{100 * hits / max(1, blocks):.1f} % of blocks hit",
                )

        run_workers(workers, requests, done)
    tally = Tally()
    for worker in workers:
        tally.merge(worker.tally)
    return tally


def _tidy_up(client: Client, prefix: str, requests: list[Request]) -> None:
    """Remove what this run has put."""
    keys = [f"{prefix}{number}" for number in sorted({i for r in requests for i in r.hash_ids})]
    with progress() as bars:
        for start in bars.track(range(0, len(keys), _REMOVE_KEYS), description="tidying up"):
            client.remove_many(keys[start : start + _REMOVE_KEYS])
