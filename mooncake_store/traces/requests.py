"""Reader of request traces: one JSON object a line, plain or gzipped."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Final, cast

import msgspec

from mooncake_store.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

BUNDLED: Final = ("conversation", "synthetic")
"""Names of the traces that come with the package; ``README.md`` beside them says whence."""

TOKENS_PER_BLOCK: Final = 512
"""Tokens that one id of the bundled traces stands for."""

LINE_BYTES_MAX: Final = 1 << 20
"""The longest line of the bundled traces has 2,699 bytes; a million-token prompt has 2,000 ids,
some 20 KiB. Without a bound, a file that is no trace would be read into memory as one line."""

_GZIP_MAGIC: Final = b"\x1f\x8b"

Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class Request(msgspec.Struct, frozen=True, gc=False):
    """One request of a trace.

    Attributes:
        timestamp_ms: Arrival, counted from the start of the trace.
        input_tokens: Length of the prompt.
        output_tokens: Length of the answer.
        hash_ids: One id for each block of the prompt, in its order. An id names the block together
            with everything before it, so equal ids mean equal prefixes; the last block may be
            partial.
    """

    timestamp_ms: Count = msgspec.field(name="timestamp")
    input_tokens: Count = msgspec.field(name="input_length")
    output_tokens: Count = msgspec.field(name="output_length")
    hash_ids: tuple[Count, ...]


def open_trace(name_or_path: str | Path) -> Iterator[Request]:
    """Return the requests of a trace, read as they are asked for.

    Args:
        name_or_path: One of ``BUNDLED``, or a file, which may be gzipped whatever its name.

    Raises:
        ConfigError: There is no such file (at once), or it cannot be read or a line is no request
            (when that line is reached); the message names the file and the line.
    """
    if name_or_path in BUNDLED:
        path = Path(__file__).with_name(f"{name_or_path}_trace.jsonl.gz")
    else:
        path = Path(name_or_path)
    if not path.is_file():
        names = ", ".join(BUNDLED)
        raise ConfigError(f"trace {str(name_or_path)!r} is no file and none of {names}")
    return _requests(path)


def _requests(path: Path) -> Iterator[Request]:
    decoder = msgspec.json.Decoder(Request)
    number = 0
    try:
        with path.open("rb") as raw, _unpacked(raw) as file:
            while line := file.readline(LINE_BYTES_MAX + 1):
                number += 1
                if len(line) > LINE_BYTES_MAX:
                    raise _bad(path, number, f"longer than {LINE_BYTES_MAX} bytes")
                if not line.isspace():
                    yield decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _bad(path, number, str(error)) from error
    except (OSError, EOFError, zlib.error) as error:
        raise _bad(path, number + 1, f"cannot be read: {error}") from error


def _unpacked(raw: IO[bytes]) -> IO[bytes]:
    packed = raw.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
    raw.seek(0)
    return cast("IO[bytes]", gzip.GzipFile(fileobj=raw)) if packed else raw


def _bad(path: Path, line: int, what: str) -> ConfigError:
    return ConfigError(f"trace {path} line {line}: {what}")
