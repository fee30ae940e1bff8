"""The small parts of the core: breaker, location cache, cluster, planner, batches."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mooncake_client._core import batches
from mooncake_client._core.breaker import FAILURES_MAX, PAUSE_S_MAX, PAUSE_S_MIN, Breakers
from mooncake_client._core.cluster import Cluster, Reach
from mooncake_client._core.locations import Entry, LocationCache
from mooncake_client._core.planner import Planner
from mooncake_store import limits
from mooncake_store.errors import InvalidArgument
from mooncake_store.extent import Identity
from mooncake_store.wire.control import Membership, Replica
from tests.unit.client.world import Node

IDENTITY = Identity(b"f" * 16, 1, 0, 1, 10)


def members(*nodes: Node, number: int = 1) -> Membership:
    return Membership(number, tuple(node.record for node in nodes))


# --- breaker ------------------------------------------------------------------------------------


def test_a_breaker_opens_after_failures_in_a_row_only() -> None:
    breakers = Breakers()
    for _ in range(5):
        breakers.failed("n", 0.0)
        breakers.succeeded("n")
    assert breakers.allows("n", 0.0)
    for _ in range(FAILURES_MAX):
        breakers.failed("n", 0.0)
    assert not breakers.allows("n", 0.0)


def test_after_the_pause_one_caller_may_try() -> None:
    breakers = Breakers()
    for _ in range(FAILURES_MAX):
        breakers.failed("n", 0.0)
    assert not breakers.allows("n", PAUSE_S_MIN - 1e-6)
    assert breakers.allows("n", PAUSE_S_MIN)
    assert not breakers.allows("n", PAUSE_S_MIN)
    breakers.succeeded("n")
    assert breakers.allows("n", PAUSE_S_MIN)


def test_pauses_double_up_to_a_bound() -> None:
    breakers = Breakers()
    now_s = 0.0
    for _ in range(20):
        breakers.failed("n", now_s)
    assert not breakers.allows("n", now_s + PAUSE_S_MAX - 1e-6)
    assert breakers.allows("n", now_s + PAUSE_S_MAX)


def test_reports_carry_what_happened_since_the_last_one() -> None:
    breakers = Breakers()
    breakers.succeeded("n")
    assert breakers.take_report("n") is None
    breakers.failed("n", 0.0)
    breakers.succeeded("n")
    breakers.succeeded("n")
    breakers.failed("n", 0.0)
    assert breakers.take_report("n") == (2, 2)
    assert breakers.take_report("n") is None


def test_nodes_that_are_gone_are_forgotten() -> None:
    breakers = Breakers()
    for _ in range(FAILURES_MAX):
        breakers.failed("n", 0.0)
    breakers.keep({"other"})
    assert breakers.allows("n", 0.0)


# --- location cache -----------------------------------------------------------------------------


def test_expired_entries_are_dropped_when_met() -> None:
    cache = LocationCache(10)
    cache.put("k", Entry(IDENTITY, (), 5.0))
    assert cache.get("k", 4.9) is not None
    assert cache.get("k", 5.0) is None
    assert not cache.entries


FORGET, PUT, GET = range(3)


@given(
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from([FORGET, PUT, GET]))),
    st.integers(0, 4),
)
@example([("a", PUT), ("b", PUT), ("c", PUT), ("b", FORGET), ("c", FORGET)], 1)
def test_the_cache_keeps_the_newest_half_and_is_bounded(
    steps: list[tuple[str, int]], half: int
) -> None:
    """Of the keys last put or found, ``half`` in number; one that was forgotten keeps its place."""
    cache = LocationCache(2 * half)
    touched: list[str] = []
    held: dict[str, Entry] = {}
    for key, action in steps:
        if action == FORGET:
            cache.forget(key)
            held.pop(key, None)
        elif action == PUT:
            held[key] = Entry(IDENTITY, (), 5.0)
            cache.put(key, held[key])
            touched = [other for other in touched if other != key] + [key]
        elif (found := cache.get(key, 0.0)) is not None:
            assert found is held[key]
            touched = [other for other in touched if other != key] + [key]
        assert len(cache) <= 2 * half
    newest = touched[-half:] if half else []
    assert all(cache.get(key, 0.0) is held.get(key) for key in reversed(newest))


def test_another_copy_has_to_be_verified_anew() -> None:
    entry = Entry(IDENTITY, (), 5.0)
    first, second = Replica(1, 0), Replica(2, 0)
    entry.found("path", first)
    entry.verified = True
    entry.found("path", first)
    assert entry.verified
    entry.found("path", second)
    assert not entry.verified


# --- cluster ------------------------------------------------------------------------------------


def test_nearness_has_to_be_proved() -> None:
    cluster = Cluster()
    node = Node(0, is_local=True)
    cluster.update(members(node))
    assert cluster.reach(node.record) is Reach.NETWORK
    assert cluster.untried() == [node.record]
    cluster.attached(node.record, found=True)
    assert cluster.reach(node.record) is Reach.SHARED
    assert (cluster.near, cluster.has_untried) == ((0,), False)
    cluster.detach(node.record)
    assert cluster.reach(node.record) is Reach.NETWORK
    assert cluster.has_untried


def test_a_proof_outlives_updates_but_not_new_memory() -> None:
    cluster = Cluster()
    node = Node(0, is_local=True)
    cluster.update(members(node))
    cluster.attached(node.record, found=True)
    cluster.update(members(node, Node(1), number=2))
    assert cluster.near == (0,)
    record = node.record
    restarted = type(record)(
        record.index, record.name, record.node_id, record.host, record.port, record.local_path,
        record.state, (type(record.segments[0])(77, 1 << 30),), {},
    )  # fmt: skip
    cluster.update(Membership(3, (restarted,)))
    assert cluster.untried() == [restarted]
    assert cluster.reach(restarted) is Reach.NETWORK


def test_a_client_confined_to_the_network_asks_nobody_for_memory() -> None:
    cluster = Cluster(shared=False)
    cluster.update(members(Node(0, is_local=True)))
    assert not cluster.has_untried


# --- planner ------------------------------------------------------------------------------------


def planner(*nodes: Node, near: tuple[int, ...] = (), breakers: Breakers | None = None) -> Planner:
    cluster = Cluster()
    cluster.update(members(*nodes))
    for node in nodes:
        if node.index in near:
            cluster.attached(node.record, found=True)
    return Planner(cluster, breakers or Breakers(), 0.0)


def test_memory_far_away_beats_a_disk_nearby() -> None:
    choice = planner(Node(0, is_local=True), Node(1), near=(0,)).choose(
        (Replica(1000, 0, 1), Replica(1001, 0, 0)), 10
    )
    assert choice is not None
    assert choice.node.index == 1
    assert choice.has_others


def test_an_unknown_segment_and_a_refused_place_are_no_choice() -> None:
    plan = planner(Node(0))
    assert plan.choose((Replica(99, 0),), 10) is None
    assert plan.choose((Replica(1000, 512),), 10, {(1000, 512)}) is None


def test_a_half_open_breaker_is_asked_once_a_round() -> None:
    breakers = Breakers()
    for _ in range(FAILURES_MAX):
        breakers.failed(Node(0).record.node_id, -10.0)
    plan = planner(Node(0), breakers=breakers)
    assert plan.choose((Replica(1000, 0),), 10) is not None
    assert plan.choose((Replica(1000, 512),), 10) is not None


# --- batches ------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 50)), st.integers(1, 60))
def test_a_cut_batch_keeps_everything_in_order_within_the_bound(
    sizes: list[int], most: int
) -> None:
    parts = batches.cut(sizes, lambda size: size, most)
    assert [size for part in parts for size in part] == sizes
    assert all(part for part in parts)
    assert all(sum(part) <= most or len(part) == 1 for part in parts)


def test_keys_are_checked_with_their_place() -> None:
    assert batches.check_keys(iter(["a", "ключ", "c" * limits.KEY_BYTES_MAX]))
    assert batches.check_keys([]) == []
    for bad in ("", 7, "x" * (limits.KEY_BYTES_MAX + 1), "\ud800", b"bytes"):
        with pytest.raises(InvalidArgument, match="key 1 of the batch"):
            batches.check_keys(["good", bad])  # type: ignore[list-item]
    with pytest.raises(InvalidArgument):
        batches.check_keys("abc")


@given(st.text(max_size=50))
def test_the_bound_of_a_key_is_one(key: str) -> None:
    assert batches.key_bytes(key) >= len(key.encode(errors="surrogatepass")) + 3
