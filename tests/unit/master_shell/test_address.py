"""Addresses as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_store.wire.address import (
    Address,
    format_address,
    is_loopback,
    is_wildcard,
    parse_address,
)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("host", "host", 7),
        ("host:1", "host", 1),
        (" 10.0.0.1:0 ", "10.0.0.1", 0),
        ("::1", "::1", 7),
        ("[::1]", "::1", 7),
        ("[::1]:65535", "::1", 65535),
        ("fe80::1%eth0", "fe80::1%eth0", 7),
        ("2001:db8::5", "2001:db8::5", 7),
        ("*", "*", 7),
    ],
)
def test_every_form_is_understood(text: str, host: str, port: int) -> None:
    assert parse_address(text, 7) == Address(host, port)


@pytest.mark.parametrize(
    "text",
    ["", ":", ":5", "host:", "host:x", "host:65536", "host:-1", "host:٣", "a b", "[::1", "[host]:1",
     "[::1]5", "::1]:5", "a:b:c", "1:2:3", "host/path", "a,b", "[]"],
)  # fmt: skip
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^(is|has) "):
        parse_address(text, 7)


@given(
    host=st.one_of(
        st.ip_addresses(v=4).map(str),
        st.ip_addresses(v=6).map(str),
        st.from_regex(r"[a-z][a-z0-9-]{0,9}(\.[a-z0-9-]{1,9}){0,2}", fullmatch=True),
    ),
    port=st.integers(0, 65535),
)
def test_what_is_written_reads_back(host: str, port: int) -> None:
    assert parse_address(format_address(host, port), 1) == Address(host, port)
    assert str(Address(host, port)) == format_address(host, port)


def test_addresses_that_others_cannot_use_are_known() -> None:
    assert all(map(is_wildcard, ["0.0.0.0", "::", "*", "0:0:0:0:0:0:0:0"]))  # noqa: S104 - a text
    assert not any(map(is_wildcard, ["127.0.0.1", "::1", "host"]))
    assert all(map(is_loopback, ["127.0.0.1", "127.9.9.9", "::1", "localhost", "LocalHost"]))
    assert not any(map(is_loopback, ["10.0.0.1", "host", "::", "fe80::1%lo"]))
