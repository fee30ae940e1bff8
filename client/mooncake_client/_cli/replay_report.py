"""The result of a replay or a simulation: a table for people, one object for programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from mooncake_client._cli.output import (
    about_bytes,
    about_seconds,
    columns,
    show_table,
    write_json,
)
from mooncake_store.traces import TOKENS_PER_BLOCK

if TYPE_CHECKING:
    from mooncake_client._cli.figures import Durations
    from mooncake_client._cli.replaying import Tally
    from mooncake_client._cli.simulating import SimulatedHits
    from mooncake_client._cli.target import Usage


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished replay.

    Attributes:
        tally: What the workers saw.
        usage: What clients and cluster counted meanwhile.
        block_size: Bytes of a block.
        seconds: How long it took.
    """

    tally: Tally
    usage: Usage
    block_size: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Simulation:
    """One simulated pool; a capacity of 0 is no limit."""

    capacity_blocks: int
    policy: str
    hits: SimulatedHits


def report(outcome: Outcome, *, as_json: bool) -> None:
    """Print the result of a replay."""
    if as_json:
        write_json(_as_object(outcome))
    else:
        show_table("replay", _lines(outcome))


def _as_object(outcome: Outcome) -> dict[str, object]:
    tally, usage = outcome.tally, outcome.usage
    return {
        "requests": tally.requests,
        "blocks": tally.blocks,
        "block_hit_rate": _rate(tally.block_hits, tally.blocks),
        "prefix_hit_rate": _rate(tally.prefix_hits, tally.blocks),
        "wrong_bytes": tally.wrong_bytes,
        "bytes_by_path": usage.bytes_by_path,
        "get_p50_ms": tally.gets.percentile_ms(50),
        "get_p99_ms": tally.gets.percentile_ms(99),
        "put_p50_ms": tally.puts.percentile_ms(50),
        "put_p99_ms": tally.puts.percentile_ms(99),
        "evictions": usage.evictions,
        "block_bytes": outcome.block_size,
        "pool_bytes": usage.pool_bytes,
        "seconds": round(outcome.seconds, 3),
        "lost_under_hold": tally.lost_under_hold,
        "put_refusals": tally.refusals,
    }


def _lines(outcome: Outcome) -> list[tuple[str, str]]:
    tally, usage = outcome.tally, outcome.usage
    lines = [
        ("requests", f"{tally.requests:,} in {about_seconds(outcome.seconds)}"),
        ("requests a second", f"{tally.requests / max(outcome.seconds, 1e-9):.0f}"),
        ("blocks looked up", f"{tally.blocks:,} of {about_bytes(outcome.block_size)}"),
        ("hit rate, blocks", _percent(tally.block_hits, tally.blocks)),
        ("hit rate, leading prefix", _percent(tally.prefix_hits, tally.blocks)),
    ]
    lines += [
        (f"bytes over {path}", about_bytes(count)) for path, count in usage.bytes_by_path.items()
    ]
    lines += [
        ("get, all blocks of a request", _latency(tally.gets)),
        ("put, all blocks of a request", _latency(tally.puts)),
        ("evictions", f"{usage.evictions:,} (pool of {about_bytes(usage.pool_bytes)})"),
    ]
    lines += [(f"puts refused, {code}", f"{count:,}") for code, count in tally.refusals.items()]
    if tally.lost_under_hold:
        lines.append(("blocks lost while held", f"{tally.lost_under_hold:,}"))
    lines.append(("wrong bytes", f"{tally.wrong_bytes:,}"))
    return lines


def report_simulations(results: list[Simulation], *, block_size: int, as_json: bool) -> None:
    """Print what was simulated: one object for one pool, a list for several."""
    if as_json:
        objects = [_simulation_object(result) for result in results]
        write_json(objects[0] if len(objects) == 1 else objects)
        return
    memory = f"MEMORY AT {about_bytes(block_size)}"
    head = ("BLOCKS", "TOKENS", memory, "HIT RATE", "PREFIX", "EVICTIONS")
    typer.echo(columns(head, [_simulation_row(result, block_size) for result in results]))


def _simulation_object(result: Simulation) -> dict[str, object]:
    hits = result.hits
    return {
        "requests": hits.requests,
        "blocks": hits.blocks,
        "block_hit_rate": _rate(hits.block_hits, hits.blocks),
        "prefix_hit_rate": _rate(hits.prefix_hits, hits.blocks),
        "wrong_bytes": 0,
        "bytes_by_path": {},
        "get_p50_ms": None,
        "get_p99_ms": None,
        "put_p50_ms": None,
        "put_p99_ms": None,
        "evictions": hits.evictions,
        "capacity_blocks": result.capacity_blocks,
        "policy": result.policy,
    }


def _simulation_row(result: Simulation, block_size: int) -> tuple[str, ...]:
    hits, capacity = result.hits, result.capacity_blocks
    return (
        f"{capacity:,}" if capacity else "no limit",
        f"{capacity * TOKENS_PER_BLOCK:,}" if capacity else "-",
        about_bytes(capacity * block_size) if capacity else "-",
        _percent(hits.block_hits, hits.blocks),
        _percent(hits.prefix_hits, hits.blocks),
        f"{hits.evictions:,}",
    )


def _rate(hits: int, blocks: int) -> float:
    return round(hits / blocks, 6) if blocks else 0.0


def _percent(hits: int, blocks: int) -> str:
    return f"{100 * hits / blocks:.2f} %" if blocks else "-"


def _latency(durations: Durations) -> str:
    middle, high = durations.percentile_ms(50), durations.percentile_ms(99)
    return "-" if middle is None else f"p50 {middle:.2f} ms, p99 {high:.2f} ms"
