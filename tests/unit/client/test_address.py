"""Addresses of clusters, and which master is tried next."""

from __future__ import annotations

import pytest

from mooncake_client._address import DRAM_BYTES_DEFAULT, Local, parse_cluster
from mooncake_client._line import CallDeadline
from mooncake_client._masters import LOST_PATIENCE_S, TRY_S_MAX, Masters
from mooncake_store.errors import (
    ConfigError,
    DeadlineExceeded,
    NotLeader,
    ProtocolMismatch,
    Unreachable,
)
from mooncake_store.wire.address import Address


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("host", [("host", 50051)]),
        ("host:1", [("host", 1)]),
        ("a:1,b:2, c", [("a", 1), ("b", 2), ("c", 50051)]),
        ("127.0.0.1:50051", [("127.0.0.1", 50051)]),
        ("[::1]:7", [("::1", 7)]),
        ("[::1]", [("::1", 50051)]),
        ("::1", [("::1", 50051)]),
        ("[fe80::1%eth0]:7,host", [("fe80::1%eth0", 7), ("host", 50051)]),
    ],
)
def test_addresses_of_masters(text: str, expected: list[tuple[str, int]]) -> None:
    assert parse_cluster(text) == tuple(Address(*pair) for pair in expected)


@pytest.mark.parametrize(
    "text",
    ["", ",", "host:", "host:x", "host:70000", "host:0", "a b", "http://host", "[::1", "a,,b",
     ",".join(["h"] * 17), 7, None, b"host"],
)  # fmt: skip
def test_what_is_no_address_is_refused(text: object) -> None:
    with pytest.raises(ConfigError, match="address"):
        parse_cluster(text)


def test_embedded_clusters() -> None:
    assert parse_cluster("local://?") == Local(DRAM_BYTES_DEFAULT)
    assert parse_cluster("local://") == Local(DRAM_BYTES_DEFAULT)
    assert parse_cluster("local://?dram=64MiB") == Local(64 << 20)
    assert parse_cluster("local://?dram=1000B") == Local(512)


@pytest.mark.parametrize(
    "text",
    ["local://host", "local://?dram=64", "local://?dram=", "local://?dram=1MB&dram=2MB",
     "local://?size=1GiB", "local://?dram", "local://?dram=0B", "local://?dram=1PiB",
     "local://?dram=100000TiB", "local:///path"],
)  # fmt: skip
def test_options_that_are_unknown_or_ill_formed_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_cluster(text)


A, B, C = Address("a", 1), Address("b", 1), Address("c", 1)


def tried(masters: Masters) -> list[Address]:
    deadline = CallDeadline(5.0, is_explicit=True)
    return [master for master, _ in masters.attempt(deadline)]


def test_the_master_that_led_last_is_tried_first() -> None:
    masters = Masters([A, B])
    masters.found(B)
    assert tried(masters) == [B, A]


def test_a_redirect_is_followed_once() -> None:
    masters = Masters([A, B])
    masters.redirect("c:1")
    assert tried(masters) == [C, A, B]
    assert tried(masters) == [A, B]
    masters.redirect("b:1")
    assert tried(masters) == [B, A]


def test_a_master_that_neither_leads_nor_knows_who_does_is_tried_last() -> None:
    masters = Masters([A, B])
    masters.redirect("not an address")
    assert tried(masters) == [B, A]
    masters.redirect(None)
    assert tried(masters) == [A, B]


def test_one_that_was_silent_is_tried_last_even_where_a_standby_names_it() -> None:
    masters = Masters([A, B, C])
    masters.silent(A)
    assert tried(masters) == [B, C, A]
    masters.redirect("a:1")
    assert tried(masters) == [B, C, A]
    masters.found(A)
    assert tried(masters) == [A, B, C]
    attempt = masters.attempt(CallDeadline(9.0, is_explicit=True))
    for master, _ in attempt:
        attempt.failed(master, DeadlineExceeded("too late"))
        break
    assert tried(masters) == [B, C, A]


def test_each_master_gets_a_fair_share_of_the_time() -> None:
    attempt = Masters([A, B]).attempt(CallDeadline(0.8, is_explicit=True))
    shares = [round(deadline.total_s, 1) for _, deadline in attempt]
    assert shares == [0.4, 0.8]


def test_one_of_several_masters_is_not_waited_for_as_long_as_the_only_one() -> None:
    deadline = CallDeadline(60.0, is_explicit=True)
    shares = [share.total_s for _, share in Masters([A, B]).attempt(deadline)]
    assert shares == [TRY_S_MAX, TRY_S_MAX]
    (_, share) = next(iter(Masters([A]).attempt(deadline)))
    assert share.total_s == pytest.approx(60.0, abs=0.1)


@pytest.mark.parametrize(("is_explicit", "most_s"), [(True, 60.0), (False, LOST_PATIENCE_S)])
def test_a_lost_master_is_waited_for_only_by_who_says_how_long(
    *, is_explicit: bool, most_s: float
) -> None:
    masters = Masters([A])
    masters.is_lost = True
    (_, deadline) = next(iter(masters.attempt(CallDeadline(60.0, is_explicit=is_explicit))))
    assert deadline.total_s == pytest.approx(most_s, abs=0.1)
    masters.found(A)
    assert not masters.is_lost


def test_the_error_names_every_master_and_its_problem() -> None:
    masters = Masters([A, B])
    attempt = masters.attempt(CallDeadline(5.0, is_explicit=True))
    attempt.failed(A, Unreachable("refused"))
    attempt.failed(B, NotLeader("no", node="c:1"))
    assert str(attempt.error()) == "no master answers (a:1: refused; b:1 does not lead)"
    assert tried(masters) == [C, A, B]
    with pytest.raises(ProtocolMismatch):
        attempt.failed(A, ProtocolMismatch("version 9"))
