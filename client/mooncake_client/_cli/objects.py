"""``put``, ``get``, ``rm``, ``stat`` and ``ls``: objects, one by one and by prefix."""

from __future__ import annotations

import base64
import dataclasses
import io
import itertools
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Final

import typer

from mooncake_client._cli.options import (
    ClientSettings,
    JsonOption,
    KeyArgument,
    YesOption,
    duration_option,
    spreads_options,
)
from mooncake_client._cli.output import (
    about_seconds,
    columns,
    fail,
    printable,
    progress,
    write_json,
    write_json_list,
)
from mooncake_client._cli.target import connect
from mooncake_store.errors import InvalidArgument, ObjectNotFound, ObjectTooLarge
from mooncake_store.limits import MIB, OBJECT_BYTES_MAX, SCAN_PAGE_MAX
from mooncake_store.settings import takes_settings
from mooncake_store.types import Tier

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from mooncake_client import Client, ObjectInfo

STDIO: Final = "-"
READ_BYTES: Final = MIB
"""Bytes of a value that are read at a time: a system call costs nothing beside that many."""

LIST_LIMIT: Final = 100
"""Objects that ``ls`` shows unless told otherwise: two screens full."""


@dataclass(frozen=True, slots=True)
class PutOptions:
    """How an object is put."""

    text: Annotated[
        str | None, typer.Option("--value", metavar="TEXT", help="The value itself, as UTF-8.")
    ] = None
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace what is there; else the first writer wins.")
    ] = False
    expected_version: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="N", help="Put only if this version is there; 0: only if none is."
        ),
    ] = None
    replicas: Annotated[
        int, typer.Option(min=1, metavar="N", help="Copies, on different nodes.")
    ] = 1
    hard_pin: Annotated[
        bool, typer.Option("--pin", help="Never evict it; only rm takes it away.")
    ] = False
    pin_s: Annotated[
        float | None, duration_option("--pin-for", "Do not evict it for that long.")
    ] = None
    durable: Annotated[
        bool, typer.Option("--durable", help="Return when it is on a disk of some node.")
    ] = False


@takes_settings(ClientSettings)
@spreads_options
def put(
    settings: ClientSettings,
    key: KeyArgument,
    source: Annotated[
        str, typer.Argument(metavar="FILE", help="File with the value; - is stdin.")
    ] = STDIO,
    *,
    options: PutOptions,
    as_json: JsonOption = False,
) -> None:
    """Put one object: a file, standard input or --value."""
    if options.hard_pin and options.pin_s is not None:
        raise InvalidArgument("--pin and --pin-for exclude each other")
    pin = "hard" if options.hard_pin else options.pin_s
    with _opened(source, options.text) as file, connect(settings) as client:
        value = _read(file, client)
        result = client.put(
            key,
            value,
            replicas=options.replicas,
            replace=options.replace,
            expected_version=options.expected_version,
            pin=pin,
            durable=options.durable,
        )
    if as_json:
        write_json({"key": key, "bytes": len(value), **dataclasses.asdict(result)})
    elif result.created:
        copies = "1 copy" if result.replicas == 1 else f"{result.replicas} copies"
        if result.replicas < options.replicas:
            copies += f" ({options.replicas} were asked for; the others follow when there is room)"
        typer.echo(f"created version {result.version}, {len(value)} bytes, {copies}")
    else:
        typer.echo(f"exists as version {result.version}, left as it is (--replace overwrites)")


def _opened(source: str, text: str | None) -> AbstractContextManager[IO[bytes]]:
    """Return what is to be put."""
    if text is not None:
        if source != STDIO:
            raise InvalidArgument("--value and a file exclude each other")
        return io.BytesIO(text.encode())
    return nullcontext(sys.stdin.buffer) if source == STDIO else Path(source).open("rb")


def _read(file: IO[bytes], client: Client) -> bytearray:
    """Read a value to its end, which a pipe or a device may not have.

    Raises:
        ObjectTooLarge: It is larger than any segment; no more than that was read.
    """
    pools = (
        segment.bytes
        for node in client.describe_cluster().nodes
        for segment in node.record.segments
        if segment.tier == Tier.DRAM
    )
    most = min(max(pools, default=OBJECT_BYTES_MAX), OBJECT_BYTES_MAX)
    value = bytearray()
    while piece := file.read(READ_BYTES):
        value += piece
        if len(value) > most:
            raise ObjectTooLarge(f"the value has more than {most} bytes, the largest segment")
    return value


@takes_settings(ClientSettings)
def get(
    settings: ClientSettings,
    key: KeyArgument,
    *,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="Write the value there.")
    ] = STDIO,
    part: Annotated[
        str | None,
        typer.Option(
            "--range",
            metavar="START:END",
            help="Only these bytes, END not included; 4096: is all from there on.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Get one object, to standard output or into a file.

    Exits with 3, and prints nothing on standard output, if there is no such object; an empty
    object prints nothing and exits with 0.
    """
    with connect(settings) as client:
        start, length = _parse_range(part)
        value = client.get(key, start=start, length=length)
        if value is None:
            raise _not_found(client, key)
    if output != STDIO:
        Path(output).write_bytes(value)
    elif not as_json:
        _write_out(value)
    if as_json:
        content = {"value_base64": base64.b64encode(value).decode()} if output == STDIO else {}
        write_json({"key": key, "bytes": len(value), **content})


def _parse_range(text: str | None) -> tuple[int, int | None]:
    """Return (first byte, how many; None for all that follow)."""
    if text is None:
        return 0, None
    start, colon, end = text.partition(":")
    numbers = [start or "0", *([end] if end else [])]
    if not colon or not all(number.isascii() and number.isdigit() for number in numbers):
        raise InvalidArgument(f"--range {text!r}: write it like 0:4096 or 4096:")
    first, last = int(start or 0), int(end) if end else None
    if last is not None and last < first:
        raise InvalidArgument(f"--range {text!r}: ends before it starts")
    return first, None if last is None else last - first


def _write_out(value: bytes) -> None:
    """Write bytes to stdout as they are, but no binary ones to a terminal."""
    if sys.stdout.isatty() and not _is_text(value):
        raise InvalidArgument("the value is binary: write it to a file with -o, or into a pipe")
    sys.stdout.buffer.write(value)
    sys.stdout.buffer.flush()


def _is_text(value: bytes) -> bool:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return False
    return all(char.isprintable() or char in "\n\t" for char in text)


def _not_found(client: Client, key: str) -> ObjectNotFound:
    """Return the error that says why there is no such object, or was none when it was asked for."""
    why = client.why(key)
    if not why.readable:
        return ObjectNotFound(f"no object {key!r}: {why.detail}", key=key)
    missed = client.last_miss(key)
    reason = "" if missed is None else f" ({missed.name.lower()})"
    return ObjectNotFound(f"no object {key!r} a moment ago{reason}; by now {why.detail}", key=key)


@takes_settings(ClientSettings)
def stat(
    settings: ClientSettings,
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="Keys of the objects.")],
    *,
    as_json: JsonOption = False,
) -> None:
    """Show where copies are, size, state, lease and pin."""
    with connect(settings) as client:
        found = client.stat_many(keys)
        missing = [key for key, info in zip(keys, found, strict=True) if info is None]
        if len(missing) == len(keys):
            raise _not_found(client, missing[0])
        if as_json:
            objects = [info and dataclasses.asdict(info) for info in found]
            write_json(objects[0] if len(keys) == 1 else objects)
        else:
            typer.echo("\n\n".join(description(info) for info in found if info))
        if missing:
            fail(_not_found(client, missing[0]))


def description(info: ObjectInfo) -> str:
    """Return what is said about one object, line by line."""
    pin = info.pin
    if info.pin == "soft":
        pin += f", {about_seconds(info.pin_left_s)} left"
    lease = f"{about_seconds(info.lease_left_s)} left" if info.lease_left_s > 0 else "none"
    lines = [
        ("key", printable(info.key)),
        ("bytes", f"{info.bytes}"),
        ("version", f"{info.version}"),
        ("pin", pin),
        ("lease", lease),
        ("group", printable(info.group)),
        ("parent", printable(info.parent)),
        ("copies", f"{_copies(info)} of {info.wanted_replicas} wanted"),
    ]
    lines += [
        ("", f"{printable(replica.node)}  {replica.tier}  {replica.state}")
        for replica in info.replicas
    ]
    return "\n".join(f"{name:<9}{value}".rstrip() for name, value in lines if value)


def _copies(info: ObjectInfo) -> int:
    """Return how many copies count: one a node, which goes with both its memory and its disks."""
    return len({replica.node for replica in info.replicas})


@takes_settings(ClientSettings)
def ls(
    settings: ClientSettings,
    prefix: Annotated[str, typer.Argument(metavar="PREFIX", help="Keys that begin so.")] = "",
    *,
    limit: Annotated[
        int, typer.Option(min=1, metavar="N", help="Show at most N objects.")
    ] = LIST_LIMIT,
    everything: Annotated[bool, typer.Option("--all", help="Show all, page after page.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List objects by prefix; says on stderr if there are more."""
    with connect(settings) as client:
        objects = client.scan(prefix)
        shown = objects if everything else itertools.islice(objects, limit)
        if as_json:
            write_json_list(dataclasses.asdict(info) for info in shown)
        else:
            _print_pages(shown)
        if next(objects, None) is not None:
            typer.echo(f"more than {limit}: --all shows every one, --limit more", err=True)


def _print_pages(objects: Iterator[ObjectInfo]) -> None:
    """Print a page at a time, so that a million objects begin to show at once."""
    head: tuple[str, ...] = ("KEY", "BYTES", "COPIES", "TIERS", "PIN")
    while page := list(itertools.islice(objects, SCAN_PAGE_MAX)):
        rows = [
            (
                info.key,
                info.bytes,
                _copies(info),
                ",".join(sorted({replica.tier for replica in info.replicas})) or "-",
                info.pin,
            )
            for info in page
        ]
        typer.echo(columns(head, rows))
        head = ("",) * len(head)


@takes_settings(ClientSettings)
def rm(
    settings: ClientSettings,
    keys: Annotated[
        list[str] | None, typer.Argument(metavar="KEY...", help="Keys of the objects.")
    ] = None,
    *,
    prefix: Annotated[
        str | None, typer.Option(help="Remove every object whose key begins so.")
    ] = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Remove objects.

    When it returns, no reader anywhere gets them any more. Exits with 3 if a key that was named is
    not there.
    """
    with connect(settings) as client:
        if (prefix is None) == (not keys):
            raise InvalidArgument("name keys or a --prefix, and not both")
        if prefix is None:
            _remove_keys(client, keys or [], as_json=as_json)
        else:
            _confirm(prefix, yes=yes)
            _remove_prefix(client, prefix, as_json=as_json)


def _remove_keys(client: Client, keys: list[str], *, as_json: bool) -> None:
    removed = client.remove_many(keys)
    if as_json:
        write_json({"removed": sum(removed), "absent": len(removed) - sum(removed)})
    else:
        typer.echo(f"removed {sum(removed)}")
    missing = [key for key, was_there in zip(keys, removed, strict=True) if not was_there]
    if missing:
        fail(ObjectNotFound(f"no object {missing[0]!r}", key=missing[0]))


def _confirm(prefix: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidArgument("--prefix removes many objects: confirm it with --yes")
    what = f"every object that begins with '{printable(prefix)}'" if prefix else "EVERY object"
    typer.confirm(f"remove {what}?", abort=True, err=True)


def _remove_prefix(client: Client, prefix: str, *, as_json: bool) -> None:
    removed = 0
    with progress() as bars:
        task = bars.add_task("removing", total=None)
        objects = client.scan(prefix)
        while page := [info.key for info in itertools.islice(objects, SCAN_PAGE_MAX)]:
            removed += sum(client.remove_many(page))
            bars.update(task, completed=removed)
    if as_json:
        write_json({"removed": removed, "absent": 0})
    else:
        typer.echo(f"removed {removed}")
