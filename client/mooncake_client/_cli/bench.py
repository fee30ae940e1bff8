"""``mooncake-store bench``: a load generator against any cluster."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from mooncake_client._cli.blocks import block_bytes
from mooncake_client._cli.crew import run_together
from mooncake_client._cli.loading import Load, LoadWorker, OperationTally, merged, parse_mix
from mooncake_client._cli.options import (
    ClientSettings,
    JsonOption,
    duration_option,
    size_option,
    spreads_options,
)
from mooncake_client._cli.output import columns, progress, write_json
from mooncake_client._cli.target import ClientBlocks, connect
from mooncake_store.limits import KIB
from mooncake_store.settings import takes_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mooncake_client import Client

SIZE_DEFAULT: Final = 64 * KIB
TIME_S_DEFAULT: Final = 5.0

_CALL_KEYS: Final = 64
"""Keys of one call while filling and emptying the working set."""

_TICK_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """The load."""

    mix: Annotated[
        str, typer.Option(metavar="MIX", help="Operations and their weights: get, put, exists.")
    ] = "get=9,put=1"
    sizes: Annotated[
        list[int] | None, size_option("--size", "Bytes of an object; several mix.", SIZE_DEFAULT)
    ] = None
    seconds: Annotated[float, duration_option("--time", "How long to go on.", TIME_S_DEFAULT)] = (
        TIME_S_DEFAULT
    )
    concurrency: Annotated[
        int,
        typer.Option(
            min=1, max=64, metavar="N", help="Callers, each with a connection and a thread."
        ),
    ] = 1
    keys: Annotated[
        int, typer.Option(min=1, max=1_000_000, metavar="N", help="Objects to work on.")
    ] = 256
    batch: Annotated[int, typer.Option(min=1, max=1_024, metavar="N", help="Keys of one call.")] = 1


@takes_settings(ClientSettings)
@spreads_options
def bench(settings: ClientSettings, *, options: BenchOptions, as_json: JsonOption = False) -> None:
    """Load a cluster; report throughput and latencies.

    The objects it works on are its own, put before and removed afterwards.
    """
    prefix = f"bench/{secrets.token_hex(4)}/"
    load = Load(
        mix=parse_mix(options.mix),
        sizes=tuple(options.sizes or [SIZE_DEFAULT]),
        keys=tuple(f"{prefix}{number}" for number in range(options.keys)),
        batch=options.batch,
        seconds=options.seconds,
    )
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connect(settings)) for _ in range(options.concurrency)]
        with _working_set(clients[0], load):
            workers = [
                LoadWorker(ClientBlocks(client), load, seed) for seed, client in enumerate(clients)
            ]
            took_s = _run(workers, load.seconds)
    _report(merged(workers), took_s, as_json=as_json)


def _run(workers: list[LoadWorker], seconds: float) -> float:
    """Let the workers load, with a progress bar, and return how long they took."""
    started_s = time.monotonic()
    over = threading.Event()
    with progress() as bars:
        task = bars.add_task("loading", total=round(seconds))

        def watch() -> None:
            while not over.wait(_TICK_S):
                bars.update(task, completed=int(time.monotonic() - started_s))

        watcher = threading.Thread(target=watch, name="progress", daemon=True)
        watcher.start()
        try:
            run_together([worker.run for worker in workers])
        finally:
            over.set()
            watcher.join()
    return time.monotonic() - started_s


@contextlib.contextmanager
def _working_set(client: Client, load: Load) -> Iterator[None]:
    """Put every object once, and remove them all in the end."""
    store = ClientBlocks(client)
    batches = [load.keys[at : at + _CALL_KEYS] for at in range(0, len(load.keys), _CALL_KEYS)]
    try:
        with progress() as bars:
            number = 0
            for keys in bars.track(batches, description="filling"):
                sizes = [load.sizes[(number + at) % len(load.sizes)] for at in range(len(keys))]
                values = [block_bytes(f"bench/{size}", size) for size in sizes]
                for problem in store.replace(list(keys), values):
                    if problem is not None:
                        raise problem
                number += len(keys)
        yield
    finally:
        for keys in batches:
            client.remove_many(list(keys))


def _report(tallies: dict[str, OperationTally], seconds: float, *, as_json: bool) -> None:
    rows = [_row(operation, tally, seconds) for operation, tally in tallies.items()]
    if as_json:
        write_json({"seconds": round(seconds, 3), "operations": rows})
        return
    head = ("OPERATION", "CALLS/S", "KEYS/S", "GB/S", "P50 MS", "P99 MS", "MISSES", "REFUSED")
    typer.echo(columns(head, [list(row.values()) for row in rows]))


def _row(operation: str, tally: OperationTally, seconds: float) -> dict[str, object]:
    return {
        "operation": operation,
        "calls_per_s": round(len(tally.calls) / seconds, 1),
        "keys_per_s": round(tally.keys / seconds, 1),
        "gb_per_s": round(tally.bytes / seconds / 1e9, 4),
        "p50_ms": tally.calls.percentile_ms(50),
        "p99_ms": tally.calls.percentile_ms(99),
        "misses": tally.misses,
        "refusals": tally.refusals,
    }
