"""Every call, on both clients, over every path: the same answers."""

from __future__ import annotations

import contextlib

# ruff: noqa: ANN401 - either client, whatever it returns
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from mooncake_client import (
    BufferTooSmall,
    Closed,
    InvalidArgument,
    ManifestMismatch,
    Memory,
    MissReason,
    ObjectTooLarge,
    Presence,
    PutItem,
    PutResult,
    ReplicasImpossible,
    StaleEpoch,
    UnknownNode,
    VersionConflict,
)
from mooncake_store.limits import CHUNK_BYTES
from mooncake_store.testing import payload
from tests.integration.client.drivers import NETWORK_DRIVERS

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = [0, 1, 63, 4095, 4096, 4097, 65536, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 << 20]


def value_of(size: int, seed: int = 0) -> bytes:
    """Bytes that are the same for the same arguments only."""
    return np.random.default_rng(size * 7 + seed).bytes(size)


@pytest.mark.parametrize("size", SIZES)
def test_every_size_comes_back_as_it_was_put(client: Any, size: int) -> None:
    value = value_of(size)
    result = client.put("k", value)
    assert (result.created, result.replicas) == (True, 1)
    assert 0.0 <= result.pressure <= 1.0
    for _ in range(3):  # asked for, then leased
        assert client.get("k") == value
    target = bytearray(b"\xa5" * (size + 3))
    assert client.get_into("k", target) == size
    assert target == value + b"\xa5" * 3
    with client.view("k") as data:
        assert data.readonly
        assert bytes(data) == value
    assert client.get("k", verify=False) == value


def test_missing_is_none_or_false_and_empty_is_a_value(client: Any) -> None:
    assert client.get("absent") is None
    assert client.get_into("absent", bytearray(1)) is None
    with client.view("absent") as data:
        assert data is None
    assert client.exists("absent") is False
    assert client.remove("absent") is False
    assert client.stat("absent") is None
    assert client.pin("absent") is False
    assert client.get_many(["absent"]) == [None]
    assert client.get_into_many(["absent"], [bytearray(1)]) == [None]
    client.put("empty", b"")
    assert client.get("empty") == b""
    assert client.get_into("empty", bytearray(1)) == 0
    assert client.exists("empty") is True
    assert client.get_many(["empty", "absent"]) == [b"", None]


def test_the_first_writer_wins_unless_it_is_replaced(client: Any) -> None:
    first = client.put("k", b"first")
    again = client.put("k", b"second")
    assert (again.created, again.version, again.replicas) == (False, first.version, 0)
    assert client.get("k") == b"first"
    third = client.put("k", b"third!", replace=True)
    assert third.created
    assert third.version > first.version
    assert client.get("k") == b"third!"


def test_a_version_that_is_expected_has_to_be_there(client: Any) -> None:
    first = client.put("k", b"1", expected_version=0)
    with pytest.raises(VersionConflict):
        client.put("k", b"2", expected_version=0)
    second = client.put("k", b"2", expected_version=first.version)
    assert second.created
    with pytest.raises(VersionConflict):
        client.put("k", b"3", expected_version=first.version)
    assert client.get("k") == b"2"


def test_ranges(client: Any) -> None:
    value = value_of(3 * CHUNK_BYTES + 5)
    client.put("k", value)
    for start, length in [(0, 10), (5, None), (CHUNK_BYTES - 1, 2), (CHUNK_BYTES, CHUNK_BYTES),
                          (len(value) - 1, 100), (len(value), None), (7, 0)]:  # fmt: skip
        wanted = value[start:] if length is None else value[start : start + length]
        assert client.get("k", start=start, length=length) == wanted
        target = bytearray(len(wanted))
        assert client.get_into("k", target, start=start, length=length) == len(wanted)
        assert target == wanted
    with pytest.raises(InvalidArgument):
        client.get("k", start=len(value) + 1)
    for wrong in ({"start": -1}, {"length": -1}, {"start": "0"}, {"length": 1.5}):
        with pytest.raises(InvalidArgument):
            client.get("k", **wrong)


def test_pieces_that_overlap_are_refused_and_cost_nobody_the_object(client: Any) -> None:
    value = value_of(2048)
    client.put("k", value, pin="hard")
    whole = memoryview(bytearray(2048))
    with pytest.raises(InvalidArgument, match="overlap"):
        client.get_into("k", [whole[:1024], whole[512:1536]])
    assert client.get("k") == value
    assert not client.statistics().checksum_failures


def test_a_buffer_that_is_too_small_or_read_only_is_left_alone(client: Any) -> None:
    client.put("k", b"0123456789")
    target = bytearray(b"\xa5" * 9)
    for _ in range(2):
        with pytest.raises(BufferTooSmall):
            client.get_into("k", target)
    assert target == b"\xa5" * 9
    for wrong in (b"constant", 7, None, "text", np.zeros((4, 4), np.uint8)[:, :2]):
        with pytest.raises(InvalidArgument):
            client.get_into("k", wrong)
    (outcome,) = client.get_into_many(["k"], [target])
    assert isinstance(outcome, BufferTooSmall)


def test_memory_by_address_numpy_and_several_pieces(client: Any) -> None:
    pages = np.arange(4096, dtype=np.float32).reshape(4, 1024)
    client.put("pages", [pages[0], Memory(pages[2].ctypes.data, 4096), b"tail"])
    back = np.zeros((2, 1024), np.float32)
    tail = bytearray(4)
    where = [Memory(back[1].ctypes.data, 4096), back[0], tail]
    assert client.get_into("pages", where) == 8196
    assert (back[1] == pages[0]).all()
    assert (back[0] == pages[2]).all()
    assert tail == b"tail"
    client.put("half", pages.astype(np.float16))
    assert client.get("half") == pages.astype(np.float16).tobytes()
    with pytest.raises(InvalidArgument):
        client.put("wrong", pages.T)
    assert client.get("wrong") is None


def test_arguments_that_are_wrong_are_refused(client: Any) -> None:
    for key in ("", None, 7, b"bytes", "x" * 4097, "\ud800"):
        for call in (client.get, client.exists, client.remove, client.stat, client.why):
            with pytest.raises(InvalidArgument):
                call(key)
        with pytest.raises(InvalidArgument):
            client.put(key, b"")
        with pytest.raises(InvalidArgument):
            client.get_many(["good", key])
    for options in ({"replicas": 0}, {"replicas": 9}, {"pin": "soft"}, {"pin": -1}, {"pin": 0},
                    {"group": 7}, {"parent": "x" * 1025}, {"expected_version": -1},
                    {"preferred": "node"}, {"deadline_s": -1}):  # fmt: skip
        with pytest.raises(InvalidArgument):
            client.put("k", b"", **options)
    with pytest.raises(InvalidArgument):
        client.get_into_many(["a", "b"], [bytearray(1)])
    with pytest.raises(InvalidArgument):
        client.get_many("abc")
    with pytest.raises(InvalidArgument):
        client.reserve("k", -1).__enter__()
    assert list(client.scan()) == []


def test_impossible_puts_fail_at_once_and_say_why(client: Any) -> None:
    with pytest.raises(ReplicasImpossible):
        client.put("k", b"x", replicas=8)
    with pytest.raises(ObjectTooLarge), client.reserve("k", 200 << 20):
        pass
    assert client.exists("k") is False


def test_batches_answer_in_order_one_for_each_item(client: Any) -> None:
    items = [PutItem(f"k{at}", value_of(at * 1000), group="g") for at in range(20)]
    results = client.put_many(items)
    assert all(isinstance(result, PutResult) and result.created for result in results)
    keys = [f"k{at}" for at in reversed(range(25))]
    values = client.get_many(keys)
    assert values[:5] == [None] * 5
    assert values[5:] == [value_of(at * 1000) for at in reversed(range(20))]
    buffers = [bytearray(20_000) for _ in keys]
    counts = client.get_into_many(keys, buffers)
    assert counts == [None] * 5 + [at * 1000 for at in reversed(range(20))]
    assert all(
        buffer[:count] == value_of(count)
        for buffer, count in zip(buffers, counts, strict=True)
        if count is not None
    )
    assert client.exists_many(keys) == [False] * 5 + [True] * 20
    assert [bool(info) for info in client.stat_many(keys)] == [False] * 5 + [True] * 20
    found = client.probe_many(keys)
    assert [probe.bytes for probe in found[5:]] == counts[5:]
    assert client.remove_many(["k3", "absent", "k4"]) == [True, False, True]
    for empty in (client.get_many, client.exists_many, client.remove_many, client.probe_many):
        assert empty([]) == []
    assert client.put_many([]) == []


def test_ranges_of_a_batch(client: Any) -> None:
    value = value_of(300_000)
    client.put_many({"a": value, "b": value})
    buffers = [bytearray(10), bytearray(100_000)]
    ranges = [(5, 10), (250_000, None)]
    assert client.get_into_many(["a", "b"], buffers, ranges=ranges) == [10, 50_000]
    assert buffers[0] == value[5:15]
    assert buffers[1][:50_000] == value[250_000:]


def test_a_key_twice_in_a_batch_is_put_twice(client: Any) -> None:
    first, second = client.put_many([("k", b"1"), ("k", b"2")])
    assert (first.created, second.created) == (True, False)
    assert client.get("k") == b"1"
    client.put_many([("k", b"3"), ("k", b"4")], replace=True)
    assert client.get("k") == b"4"


def test_objects_put_together(client: Any) -> None:
    results = client.put_together({"a": b"1", "b": b"2" * 5000, "c": b""})
    assert all(result.created for result in results)
    assert client.get_many(["a", "b", "c"]) == [b"1", b"2" * 5000, b""]


def test_a_reservation_is_filled_and_committed(client: Any) -> None:
    value = value_of(100_000)
    with client.reserve("k", len(value)) as room:
        assert len(room.buffer) == len(value)
        assert client.exists("k") is False
        room.buffer[:] = value
    assert room.result.created
    assert client.get("k") == value
    with client.reserve("k", 5) as room:
        assert room.buffer is None
    assert room.result.created is False
    with client.reserve("empty", 0) as room:
        pass
    assert client.get("empty") == b""


def test_a_reservation_left_by_an_exception_leaves_nothing(client: Any) -> None:
    def fail() -> None:
        with client.reserve("k", 5) as room:
            room.buffer[:] = b"value"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert client.get("k") is None
    assert client.put("k", b"other").created


def test_a_prefix_is_matched(client: Any) -> None:
    chain = [f"block{at}" for at in range(10)]
    client.put_many([(key, b"x" * 100) for key in chain[:7]])
    assert client.match_prefix(chain, hold_s=1.0).count == 7
    assert client.match_prefix(chain[8:]).count == 0
    assert client.match_prefix([]).count == 0


def test_a_probe_says_what_a_get_would_find(client: Any) -> None:
    client.put("k", b"x" * 1000)
    found = client.probe("k", hold_s=0.5)
    assert (found.presence, found.bytes, found.readable) == (Presence.DRAM, 1000, True)
    assert found.estimate_s > 0
    assert client.probe("absent").presence is Presence.ABSENT
    with client.reserve("under way", 10):
        assert client.probe("under way").presence is Presence.WRITING


def test_objects_are_described_and_listed(client: Any) -> None:
    client.put("a/1", b"x" * 10, pin="hard", group="g", parent="a/0")
    client.put("a/2", b"y", pin=60.0)
    client.put("b/1", b"")
    info = client.stat("a/1")
    assert (info.key, info.bytes, info.pin, info.group, info.parent) == (
        "a/1",
        10,
        "hard",
        "g",
        "a/0",
    )
    assert (len(info.replicas), info.replicas[0].tier, info.wanted_replicas) == (1, "dram", 1)
    assert [found.key for found in client.scan("a/")] == ["a/1", "a/2"]
    assert [found.bytes for found in client.scan()] == [10, 1, 0]
    soft = client.stat("a/2")
    assert soft.pin == "soft"
    assert 0 < soft.pin_left_s <= 60
    assert client.unpin("a/1")
    assert client.stat("a/1").pin == "none"
    assert client.pin("b/1", 30.0)
    assert client.stat("b/1").pin == "soft"


def test_removed_means_gone_and_why_says_so(client: Any) -> None:
    client.put("k", b"value")
    assert client.get("k") == b"value"
    assert client.why("k").readable
    assert client.remove("k") is True
    assert client.get("k") is None
    why = client.why("k")
    assert (why.readable, why.reason) == (False, MissReason.REMOVED)
    assert why.detail
    assert client.statistics().misses == {"removed": 1}


def test_a_miss_is_remembered_with_the_reason_it_had_then(client: Any) -> None:
    assert client.last_miss("k") is None
    assert client.get("k") is None
    client.put("k", b"value")
    assert client.why("k").readable
    assert client.last_miss("k") is MissReason.ABSENT
    client.remove("k")
    assert client.get_many(["k", "other"]) == [None, None]
    assert (client.last_miss("k"), client.last_miss("other")) == (
        MissReason.REMOVED,
        MissReason.ABSENT,
    )


def test_clearing_takes_everything_and_goes_on(client: Any) -> None:
    client.put_many([(f"k{at}", b"x") for at in range(10)])
    assert client.get("k3") == b"x"
    client.clear()
    assert client.get("k3") is None
    assert list(client.scan()) == []
    assert client.why("k3").reason is MissReason.CLEARED or client.get("k3") is None
    assert client.put("k3", b"new").created
    assert client.get("k3") == b"new"


def test_statistics_count_what_happened(client: Any, driver: str) -> None:
    path = {"local": "memory"}.get(driver.split("-")[1], driver.split("-")[1])
    client.put("k", b"x" * 100)
    client.put("k", b"x" * 100)
    client.get("k")
    client.get("k")
    client.get("absent")
    counted = client.statistics()
    assert (counted.puts_created, counted.puts_existing) == (1, 1)
    assert (counted.hits, counted.leased_reads, counted.misses) == (2, 1, {"absent": 1})
    assert counted.bytes_written == {path: 100}
    assert counted.bytes_read == {path: 200}
    assert (counted.checksum_failures, counted.errors) == (0, {})


def test_a_batch_read_is_one_round_trip(client: Any) -> None:
    keys = [f"k{at}" for at in range(200)]
    client.put_many([(key, b"x" * 1000) for key in keys])
    client.forget_locations()
    before = client.statistics().master_round_trips
    client.get_many(keys)
    assert client.statistics().master_round_trips == before + 1
    client.get_many(keys)
    assert client.statistics().master_round_trips == before + 1
    client.exists_many(keys)
    assert client.statistics().master_round_trips == before + 2


def test_a_closed_client_says_so(client: Any, driver: str) -> None:
    client.put("k", b"x")
    client.close()
    if driver.startswith("sync"):
        client.close()
        for call in (client.get, client.exists, client.stat):
            with pytest.raises(Closed):
                call("k")
        with pytest.raises(Closed):
            client.put("k", b"x")
        with pytest.raises(Closed), client.view("k"):
            pass


def test_payloads_of_the_kit_survive(client: Any) -> None:
    for version in range(3):
        value = payload("k", version, 70_000)
        client.put("k", value, replace=True)
        assert client.get("k") == value


class TestSeveralClients:
    """What one client does and another one sees; not for clusters inside of one of them."""

    @pytest.fixture(params=NETWORK_DRIVERS)
    def driver(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    def test_a_removed_key_is_gone_for_who_holds_its_location(
        self, connect: Callable[..., Any]
    ) -> None:
        one, other = connect(), connect()
        one.put("k", b"value")
        assert other.get("k") == b"value"
        one.remove("k")
        assert other.get("k") is None
        one.put("k", b"again")
        assert other.get("k") == b"again"
        one.put("k", b"third", replace=True)
        assert other.get("k") == b"third"

    def test_a_cleared_namespace_is_stale_until_reopened(self, connect: Callable[..., Any]) -> None:
        one, other = connect(), connect()
        one.put("k", b"value")
        assert other.get("k") == b"value"
        one.clear()
        with pytest.raises(StaleEpoch):
            other.exists("k")
        with pytest.raises(StaleEpoch):
            other.put("k", b"of old weights")
        with pytest.raises(StaleEpoch):
            other.get("k")
        other.reopen()
        assert other.get("k") is None
        assert other.put("k", b"new").created
        assert one.get("k") == b"new"

    def test_a_read_leased_before_a_clear_finds_nothing(self, connect: Callable[..., Any]) -> None:
        one, other = connect(), connect()
        one.put("k", b"value")
        assert other.get("k") == b"value"
        one.clear()
        with contextlib.suppress(StaleEpoch):
            assert other.get("k") is None

    def test_another_manifest_is_refused(self, connect: Callable[..., Any]) -> None:
        one = connect(manifest={"dtype": "fp8", "model": "m"})
        one.put("k", b"value")
        for manifest in ({"dtype": "bf16", "model": "m"}, {"dtype": "fp8"}):
            other = connect(manifest=manifest)
            with pytest.raises(ManifestMismatch):
                other.get("k")
        assert connect(manifest={"model": "m", "dtype": "fp8"}).get("k") == b"value"
        assert connect().get("k") == b"value"

    def test_namespaces_do_not_meet(self, connect: Callable[..., Any]) -> None:
        # Field report 014: two tenants, one key, bytes and sizes of their own.
        one, other = connect(namespace="tenant-one"), connect(namespace="tenant-two")
        one.put("k", b"one" * 1000, replace=True)
        other.put("k", b"two", replace=True)
        assert one.get("k") == b"one" * 1000
        assert other.get("k") == b"two"
        assert [found.bytes for found in other.scan()] == [3]
        other.clear()
        assert one.get("k") == b"one" * 1000
        assert other.get("k") is None
        one.clear()

    def test_a_get_waits_for_a_put_under_way(self, connect: Callable[..., Any]) -> None:
        one, other = connect(), connect()
        with one.reserve("k", 5) as room:
            assert other.get("k") is None
            assert other.get("k", wait_s=0.05) is None
            room.buffer[:] = b"value"
        assert other.get("k", wait_s=5.0) == b"value"


def test_a_drain_of_what_is_no_node_for_what_is_no_time_is_refused(client: Any) -> None:
    for node, timeout_s in ((5, 1.0), (None, 1.0), ("x", "1"), ("x", -1.0), ("x", float("nan"))):
        with pytest.raises(InvalidArgument):
            client.drain(node, timeout_s)
    for ask in (client.describe_drain, client.undrain):
        with pytest.raises(InvalidArgument):
            ask(5)
        with pytest.raises(UnknownNode):
            ask("nobody")
