"""``mooncake_store.traces``: the bundled traces, and the reader against files that lie."""

from __future__ import annotations

import gzip
from hashlib import sha256
from pathlib import Path

import pytest

from mooncake_store import traces
from mooncake_store.errors import ConfigError
from mooncake_store.traces import TOKENS_PER_BLOCK, Request, open_trace

GOOD = b'{"timestamp": 1, "input_length": 600, "output_length": 2, "hash_ids": [7, 8]}\n'


@pytest.mark.parametrize(("name", "requests"), [("conversation", 12_031), ("synthetic", 3_993)])
def test_a_bundled_trace_is_complete(name: str, requests: int) -> None:
    read = list(open_trace(name))
    assert len(read) == requests
    assert all(
        len(request.hash_ids) == -(-request.input_tokens // TOKENS_PER_BLOCK) for request in read
    )


@pytest.mark.parametrize("name", traces.BUNDLED)
def test_a_bundled_trace_is_the_file_that_its_readme_names(name: str) -> None:
    folder = Path(traces.__file__).parent
    unpacked = gzip.decompress((folder / f"{name}_trace.jsonl.gz").read_bytes())
    assert sha256(unpacked).hexdigest() in (folder / "README.md").read_text()


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_is_read_plain_or_packed_whatever_its_name(tmp_path: Path, *, packed: bool) -> None:
    path = tmp_path / "trace"
    path.write_bytes(gzip.compress(GOOD + b"\n" + GOOD) if packed else GOOD + b"\n" + GOOD)
    assert list(open_trace(path)) == [Request(1, 600, 2, (7, 8))] * 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", "line 2: .*truncated"),
        (b'{"timestamp": 1}', "line 2: .*missing required field"),
        (GOOD.replace(b"600", b"-1"), r"line 2: .*>= 0.*input_length"),
        (GOOD.replace(b"7", b'"7"'), r"line 2: .*int.*hash_ids"),
        (GOOD.replace(b"7", b"9" * 30), r"line 2: "),
        (b"\xff\xfe", "line 2: .*malformed"),
        (GOOD.replace(b'"', b'\xff"', 1), "line 2: "),
        (b"[" * 100_000, "line 2: "),
        (b" " * (traces.requests.LINE_BYTES_MAX + 2), "line 2: longer than 1048576 bytes"),
    ],
)
def test_a_line_that_is_no_request_is_named(tmp_path: Path, line: bytes, said: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(GOOD + line + b"\n" + GOOD)
    requests = open_trace(path)
    assert next(requests).hash_ids == (7, 8)
    with pytest.raises(ConfigError, match=f"trace .*bad.jsonl {said}"):
        next(requests)


@pytest.mark.parametrize("cut", [12, 30])
def test_a_packed_file_that_was_cut_off_is_named(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "cut.gz"
    path.write_bytes(gzip.compress(GOOD)[:cut])
    with pytest.raises(ConfigError, match=r"cut.gz line 1: cannot be read"):
        list(open_trace(path))


def test_a_packed_file_that_was_damaged_is_named(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(GOOD))
    data[20] ^= 0xFF
    path = tmp_path / "damaged.gz"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=r"damaged.gz line \d"):
        list(open_trace(path))


def test_a_trace_that_is_not_there_is_named_at_once() -> None:
    with pytest.raises(ConfigError, match="'nowhere' is no file and none of conversation, synth"):
        open_trace("nowhere")
