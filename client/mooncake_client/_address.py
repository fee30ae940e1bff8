"""Where the cluster is: ``host:port[,host:port...]``, or ``local://?dram=1GiB`` in this process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

from mooncake_store import units
from mooncake_store.errors import ConfigError
from mooncake_store.limits import GIB, GRANULE_BYTES, SEGMENT_BYTES_MAX
from mooncake_store.wire import address

if TYPE_CHECKING:
    from mooncake_store.wire.address import Address

PORT_DEFAULT: Final = 50051
"""RPC port of a master that was not told another one."""

MASTERS_MAX: Final = 16
"""Addresses of one client: more are a mistake, not a cluster."""

LOCAL_SCHEME: Final = "local://"

DRAM_BYTES_DEFAULT: Final = GIB
"""Pool of an embedded cluster that names none; the system gives its pages as they are used."""


@dataclass(frozen=True, slots=True)
class Local:
    """An embedded cluster."""

    dram_bytes: int


def parse_cluster(text: object) -> tuple[Address, ...] | Local:
    """Read the address that a client is given.

    Raises:
        ConfigError: It is none; the message names the part that is wrong.
    """
    if not isinstance(text, str):
        raise ConfigError(f"an address is a str such as 'host:50051', not {type(text).__name__}")
    if text.startswith(LOCAL_SCHEME):
        return _parse_local(text)
    if "://" in text:
        raise ConfigError(f"address {text!r}: unknown scheme (host:port, or local://?dram=1GiB)")
    masters = tuple(parse_master(part) for part in text.split(","))
    if len(masters) > MASTERS_MAX:
        raise ConfigError(f"an address names at most {MASTERS_MAX} masters, not {len(masters)}")
    return masters


def parse_master(text: str) -> Address:
    """Read the address of one master.

    Raises:
        ConfigError: It is none.
    """
    try:
        found = address.parse_address(text, PORT_DEFAULT)
    except ValueError as error:
        raise ConfigError(f"address {text!r} {error}") from error
    if not found.port:
        raise ConfigError(f"address {text!r} has port 0, where nobody can be reached")
    return found


def _parse_local(text: str) -> Local:
    rest = text.removeprefix(LOCAL_SCHEME)
    if rest and not rest.startswith("?"):
        raise ConfigError(f"address {text!r}: local:// takes no host, only options (?dram=1GiB)")
    try:
        options = parse_qsl(rest[1:], keep_blank_values=True, strict_parsing=True) if rest else []
    except ValueError as error:
        raise ConfigError(f"address {text!r}: {error}") from error
    if len(dict(options)) < len(options):
        raise ConfigError(f"address {text!r}: an option is given twice")
    dram_bytes = DRAM_BYTES_DEFAULT
    for name, value in options:
        if name != "dram":
            raise ConfigError(f"address {text!r}: unknown option {name!r} (known: dram)")
        dram_bytes = _parse_dram(value)
    return Local(dram_bytes)


def _parse_dram(value: str) -> int:
    try:
        size = units.parse_bytes(value)
    except ValueError as error:
        raise ConfigError(f"local://?dram={value} {error}") from error
    if not GRANULE_BYTES <= size <= SEGMENT_BYTES_MAX:
        bounds = f"from {GRANULE_BYTES} to {SEGMENT_BYTES_MAX} bytes"
        raise ConfigError(f"local://?dram={value} is not {bounds}")
    return size // GRANULE_BYTES * GRANULE_BYTES
