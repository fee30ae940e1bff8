"""``mooncake_store.units``: sizes and durations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_store.units import format_bytes, format_duration, parse_bytes, parse_duration


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4GiB", 4 << 30),
        ("4Gi", 4 << 30),
        ("4GB", 4 * 10**9),
        ("512KiB", 512 << 10),
        ("64 MiB", 64 << 20),
        ("1.5GiB", 3 << 29),
        ("0.5kB", 500),
        ("7B", 7),
        ("0", 0),
        (" 1TiB ", 1 << 40),
    ],
)
def test_a_size_with_a_unit_is_read_exactly(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1024", "has no unit: write it like 4GiB"),
        ("4G", "unknown unit 'G'"),
        ("4gb", "unknown unit 'gb'"),
        ("0.3B", "is not a whole number of bytes"),
        ("", "is not a size such as 4GiB"),
        ("-4GiB", "is not a size such as 4GiB"),
        ("1e9B", "is not a size such as 4GiB"),
        ("GiB", "is not a size such as 4GiB"),
        ("\u0664GiB", "is not a size such as 4GiB"),
        ("9" * 200 + "B", "is not a size such as 4GiB"),
        ("4GiB\n5GiB", "is not a size such as 4GiB"),
    ],
)
def test_a_size_that_can_be_misread_is_refused_with_its_reason(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5s", 5.0), ("250ms", 0.25), ("2m", 120.0), ("1h", 3600.0), ("50us", 5e-5), ("0", 0.0)],
)
def test_a_duration_with_a_unit_is_read_exactly(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("60", "has no unit: write it like 5s"),
        ("5 sec", "unknown unit 'sec'"),
        ("5S", "unknown unit 'S'"),
        ("-1s", "is not a duration such as 250ms"),
        ("inf", "is not a duration such as 250ms"),
        ("1m30s", "is not a duration such as 250ms"),
    ],
)
def test_a_duration_that_can_be_misread_is_refused_with_its_reason(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_duration(text)


def test_what_is_written_is_what_a_person_would_write() -> None:
    assert [format_bytes(n) for n in (0, 1, 1024, 4 << 30, 4 * 10**9, 1 << 50, 1025)] == [
        "0B",
        "1B",
        "1KiB",
        "4GiB",
        "4GB",
        "1024TiB",
        "1025B",
    ]
    assert [format_duration(s) for s in (0, 0.25, 5, 90, 120, 3600, 0.0000005)] == [
        "0s",
        "250ms",
        "5s",
        "90s",
        "2m",
        "1h",
        "0.5us",
    ]


@given(st.integers(0, 1 << 62))
def test_a_size_survives_being_written_and_read(size: int) -> None:
    assert parse_bytes(format_bytes(size)) == size


@given(st.floats(0, 1e9).filter(lambda seconds: seconds == 0 or seconds > 1e-9))
def test_a_duration_survives_being_written_and_read(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == seconds
