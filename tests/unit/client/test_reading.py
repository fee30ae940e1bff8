"""Reading: which copy, what is tried again, what is reported."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mooncake_client._core import reading
from mooncake_client._core.breaker import FAILURES_MAX, PAUSE_S_MAX, PAUSE_S_MIN
from mooncake_client._core.wants import Want
from mooncake_store import errors
from mooncake_store.limits import CHUNK_BYTES
from mooncake_store.types import MissReason, Tier
from mooncake_store.wire import control
from tests.unit.client.world import LEASE_S, World

if TYPE_CHECKING:
    from collections.abc import Callable

    from mooncake_store.transport import ReadTask

UNREACHABLE = errors.Unreachable("gone")


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut transfers after so few bytes that a test need not move many."""
    monkeypatch.setattr(reading, "SLICE_BYTES", 4 * CHUNK_BYTES)
    monkeypatch.setattr(reading, "SLICE_BYTES_MIN", CHUNK_BYTES)


def get(world: World, *keys: str, deadline_s: float = 60.0, **how: object) -> list[object]:
    """Read keys as ``get_many`` does."""
    wants = [Want(key, **how) for key in keys]  # type: ignore[arg-type]
    world.run(reading.read(world.session, wants), deadline_s)
    return [want.fresh if isinstance(want.outcome, int) else want.outcome for want in wants]


def failing(
    error: errors.StoreError, times: int = 10**9
) -> Callable[[object], errors.StoreError | None]:
    """A node's fault that ends its tasks with ``error`` for a while."""
    left = times

    def fault(_: object) -> errors.StoreError | None:
        nonlocal left
        left -= 1
        return error if left >= 0 else None

    return fault


def test_a_batch_costs_one_question_and_keeps_its_order() -> None:
    world = World()
    for at in range(5):
        world.place(f"k{at}", bytes([at]) * 10)

    assert get(world, "k3", "nothing", "k0") == [b"\3" * 10, None, b"\0" * 10]
    assert [m.keys for m in world.asked_for(control.Locate)][1:] == [["k3", "nothing", "k0"]]
    assert world.session.counters.misses == {MissReason.ABSENT: 1}


def test_a_leased_location_needs_no_master() -> None:
    world = World()
    world.place("k", b"value")
    get(world, "k")
    asked = len(world.asked)

    assert get(world, "k") == [b"value"]
    assert len(world.asked) == asked
    assert world.session.counters.leased_reads == 1


def test_the_lease_counts_from_before_the_request_was_sent() -> None:
    world = World()
    world.place("k", b"value")
    get(world, "k")
    sent_s = world.session.locations.entries["k"].ends_s - LEASE_S

    world.now_s = sent_s + LEASE_S - 1e-6
    get(world, "k")
    assert len(world.asked_for(control.Locate)) == 2
    world.now_s = sent_s + LEASE_S
    get(world, "k")
    assert len(world.asked_for(control.Locate)) == 3


def test_an_empty_object_is_a_hit() -> None:
    world = World()
    world.place("k", b"")
    assert get(world, "k") == [b""]
    assert world.session.counters.hits == 1


def test_a_stale_leased_location_is_forgotten_and_asked_for_again() -> None:
    world = World()
    world.place("k", b"old")
    get(world, "k")
    world.place("k", b"newer")
    world.nodes[0].stored.pop(4096)

    assert get(world, "k") == [b"newer"]
    assert world.session.counters.stale_locations == 1
    assert not world.asked_for(control.ReportReplica)


def test_a_removed_object_is_a_miss_even_where_its_location_is_leased() -> None:
    world = World()
    world.place("k", b"old")
    get(world, "k")
    del world.objects["k"]
    world.reasons["k"] = MissReason.REMOVED
    world.nodes[0].stored.clear()

    assert get(world, "k") == [None]
    assert world.session.counters.misses == {MissReason.REMOVED: 1}


def test_a_location_the_master_insists_on_is_reported_and_another_copy_is_read() -> None:
    world = World(nodes=2)
    world.place("k", b"value", on=(0, 1))
    world.nodes[0].stored.clear()  # its memory was lost, and the master does not know yet

    assert get(world, "k") == [b"value"]
    (report,) = world.asked_for(control.ReportReplica)
    assert (report.incarnation, report.reason) == (1000, "stale_extent")


def test_the_only_copy_being_stale_ends_as_the_master_says_after_the_report() -> None:
    world = World()
    world.place("k", b"value")
    world.nodes[0].stored.clear()

    assert get(world, "k") == [None]
    assert len(world.asked_for(control.ReportReplica)) == 1


def test_a_damaged_copy_is_reported_and_another_one_is_read() -> None:
    world = World(nodes=2)
    world.place("k", b"value", on=(0, 1))
    world.nodes[0].error = failing(errors.ChecksumMismatch("flipped"))

    assert get(world, "k") == [b"value"]
    (report,) = world.asked_for(control.ReportReplica)
    assert (report.key, report.reason) == ("k", "checksum_mismatch")
    assert world.session.counters.checksum_failures == 1
    assert world.session.breakers.take_report(world.nodes[0].record.node_id) is None


def test_the_only_copy_being_damaged_is_an_error_once_and_a_miss_afterwards() -> None:
    world = World()
    world.place("k", b"value")
    world.nodes[0].error = failing(errors.ChecksumMismatch("flipped"))

    (outcome,) = get(world, "k")
    assert isinstance(outcome, errors.ChecksumMismatch)
    assert get(world, "k") == [None]
    assert world.session.counters.misses[MissReason.CORRUPT] == 2


def test_a_bit_that_flipped_on_the_wire_costs_another_read_and_no_copy() -> None:
    world = World()
    world.place("k", b"value")
    world.nodes[0].error = failing(errors.ChecksumMismatch("flipped"), times=1)

    assert get(world, "k") == [b"value"]
    assert not world.asked_for(control.ReportReplica)
    assert world.session.counters.transfer_failures == {"checksum_mismatch": 1}
    assert world.session.counters.checksum_failures == 0


@pytest.mark.parametrize("is_local", [False, True])
def test_memory_of_the_caller_that_changes_costs_no_copy(is_local: bool) -> None:  # noqa: FBT001 - pytest passes it by name
    world = World(nodes=2)
    for node in world.nodes.values():
        node.is_local = is_local
    world.place("k", b"value", on=(0, 1))
    buffer = bytearray(5)

    def differs(task: ReadTask) -> errors.StoreError | None:
        is_callers = any(target.obj is buffer for target in task.targets)
        return errors.ChecksumMismatch("changed") if is_callers else None

    for node in world.nodes.values():
        node.error = differs
    want = Want("k", [memoryview(buffer)])
    world.run(reading.read(world.session, [want]))
    assert isinstance(want.outcome, errors.InvalidArgument)
    assert not world.asked_for(control.ReportReplica)
    assert world.session.counters.checksum_failures == 0
    assert get(world, "k") == [b"value"]


def test_an_unreachable_node_is_tried_twice_reported_and_another_copy_is_read() -> None:
    world = World(nodes=2)
    world.place("k", b"value", on=(0, 1))
    world.nodes[0].error = failing(UNREACHABLE)
    world.session.cluster.update(world.members(-1))  # type: ignore[arg-type]
    world.nodes[1].next_offset = 0

    assert get(world, "k") == [b"value"]
    assert [index for index, _ in world.reads] in ([0, 1], [0, 0, 1])
    assert {m.node for m in world.asked_for(control.ReportTransfers)} == {0}


def test_a_node_that_was_not_tried_is_read_when_the_one_that_was_fails_again() -> None:
    world = World(nodes=2)
    world.place("k", b"value", on=(0, 1))
    get(world, "another")  # the nodes are known
    for node in world.nodes.values():
        for _ in range(FAILURES_MAX):
            world.session.breakers.failed(node.record.node_id, world.now_s)
    world.now_s += PAUSE_S_MAX
    world.nodes[0].error = failing(UNREACHABLE)

    assert get(world, "k", deadline_s=PAUSE_S_MIN / 2) == [b"value"]
    assert [index for index, _ in world.reads] == [0, 1]


def test_a_broken_pooled_connection_costs_another_try_of_the_same_copy_only() -> None:
    world = World()
    world.place("k", b"value")
    world.nodes[0].error = failing(UNREACHABLE, times=1)

    assert get(world, "k") == [b"value"]


def test_no_reachable_copy_is_an_error_not_a_miss() -> None:
    world = World(nodes=2)
    world.place("k", b"value", on=(0, 1))
    for node in world.nodes.values():
        node.error = failing(UNREACHABLE)

    (outcome,) = get(world, "k")
    assert isinstance(outcome, errors.ReplicasUnavailable)
    assert "node0, node1" in str(outcome)
    assert outcome.key == "k"
    assert world.session.counters.errors == {"replicas_unavailable": 1}


def test_a_silent_node_is_given_up_early_where_another_copy_exists() -> None:
    world = World(nodes=2)
    world.place("k", b"value", on=(0, 1))
    world.nodes[0].takes_s = 1000.0
    began_s = world.now_s

    assert get(world, "k", deadline_s=5.0) == [b"value"]
    assert world.now_s - began_s < 2.0


def test_a_silent_node_with_the_only_copy_takes_the_deadline_and_no_more() -> None:
    world = World()
    world.place("k", b"value")
    world.nodes[0].takes_s = 1000.0

    (outcome,) = get(world, "k", deadline_s=5.0)
    assert isinstance(outcome, errors.DeadlineExceeded)
    assert world.now_s <= world.until_s


def test_a_node_that_failed_twice_is_left_alone_until_its_pause_is_over() -> None:
    world = World()
    world.place("k", b"value")
    world.nodes[0].error = failing(UNREACHABLE)
    get(world, "k")
    tries = len(world.reads)

    (outcome,) = get(world, "k")
    assert isinstance(outcome, errors.ReplicasUnavailable)
    assert len(world.reads) == tries
    world.nodes[0].error = None
    world.now_s += 5.0
    assert get(world, "k") == [b"value"]


def test_a_caller_without_time_does_not_bring_a_node_into_discredit() -> None:
    world = World()
    world.place("k", b"value")
    get(world, "other")
    world.nodes[0].takes_s = 0.05
    for _ in range(5):
        (outcome,) = get(world, "k", deadline_s=0.01)
        assert isinstance(outcome, errors.DeadlineExceeded)
    assert not world.asked_for(control.ReportTransfers)
    assert get(world, "k") == [b"value"]


def test_a_busy_node_is_asked_again_after_growing_pauses() -> None:
    world = World()
    world.place("k", b"value")
    world.nodes[0].error = failing(errors.Overloaded("full"), times=5)

    assert get(world, "k") == [b"value"]
    pauses = [pause for pause in world.waited_s if pause]
    assert pauses == sorted(pauses)
    assert len(pauses) == 5
    assert not world.asked_for(control.ReportTransfers)


def on_disk(world: World, *keys: str) -> None:
    """Let all copies of some objects lie on disks."""
    for key in keys:
        found = world.objects[key]
        copies = [control.Replica(c.incarnation, c.offset, int(Tier.SSD)) for c in found.replicas]
        world.objects[key] = control.Location(found.version, found.length, tuple(copies))


def test_fr_053_the_only_copy_on_a_disk_in_trouble_is_an_error_long_before_the_deadline() -> None:
    world = World()
    world.place("k", b"value")
    world.place("other", b"value")
    on_disk(world, "k")
    world.nodes[0].error = failing(errors.Overloaded("the disk is degraded"))
    began_s = world.now_s

    (outcome,) = get(world, "k", deadline_s=60.0)
    assert isinstance(outcome, errors.ReplicasUnavailable)
    assert "a disk refuses" in str(outcome)
    assert world.now_s - began_s < 2.0
    assert not world.asked_for(control.ReportTransfers), "the node itself is well"
    world.nodes[0].error = None
    assert get(world, "k", "other") == [b"value"] * 2


def test_a_disk_that_is_busy_for_a_moment_is_waited_for() -> None:
    world = World()
    world.place("k", b"value")
    on_disk(world, "k")
    world.nodes[0].error = failing(errors.Overloaded("1024 reads wait already"), times=8)
    assert get(world, "k") == [b"value"]


def test_one_failing_item_fails_alone() -> None:
    world = World(nodes=2)
    world.place("good", b"good", on=(0,))
    world.place("bad", b"bad", on=(1,))
    world.nodes[1].error = failing(UNREACHABLE)

    good, bad = get(world, "good", "bad")
    assert good == b"good"
    assert isinstance(bad, errors.ReplicasUnavailable)


def test_a_buffer_that_is_too_small_is_told_before_a_byte_moves() -> None:
    world = World()
    world.place("k", b"0123456789")
    target = bytearray(b"\xa5" * 9)

    (outcome,) = get(world, "k", buffer=[memoryview(target)])
    assert isinstance(outcome, errors.BufferTooSmall)
    assert not world.reads
    assert target == b"\xa5" * 9


def test_one_object_is_scattered_over_several_buffers() -> None:
    world = World()
    world.place("k", b"0123456789")
    parts = [bytearray(3), bytearray(4), bytearray(5)]

    want = Want("k", [memoryview(part) for part in parts])
    world.run(reading.read(world.session, [want]))
    assert want.outcome == 10
    assert parts == [b"012", b"3456", b"789\0\0"]


@pytest.mark.parametrize(
    ("start", "length", "expected"),
    [(0, 4, b"0123"), (4, None, b"456789"), (8, 100, b"89"), (10, None, b""), (0, 0, b"")],
)
def test_ranges_end_with_the_object(start: int, length: int | None, expected: bytes) -> None:
    world = World()
    world.place("k", b"0123456789")
    assert get(world, "k", start=start, length=length) == [expected]


def test_a_range_behind_the_end_is_refused() -> None:
    world = World()
    world.place("k", b"0123456789")
    (outcome,) = get(world, "k", start=11)
    assert isinstance(outcome, errors.InvalidArgument)


def test_equal_copies_of_a_batch_are_read_from_all_nodes() -> None:
    world = World(nodes=2)
    keys = [f"k{at}" for at in range(10)]
    for key in keys:
        world.place(key, b"x" * 1000, on=(0, 1))

    get(world, *keys)
    assert sorted(len(tasks) for _, tasks in world.reads) == [5, 5]


def test_a_copy_on_this_host_is_preferred() -> None:
    world = World(nodes=2)
    world.nodes[1].is_local = True
    world.place("k", b"value", on=(0, 1))

    get(world, "k")
    assert [index for index, _ in world.reads] == [1]
    assert world.session.counters.bytes_read == {"shm": 5}


def test_shared_memory_that_fails_is_asked_for_again_and_the_network_used_meanwhile() -> None:
    world = World(local=True)
    world.place("k", b"value")
    get(world, "k")
    world.nodes[0].is_local = False
    world.nodes[0].error = failing(UNREACHABLE, times=1)

    assert get(world, "k") == [b"value"]
    assert world.session.counters.bytes_read == {"shm": 5, "tcp": 5}


def test_a_client_confined_to_shared_memory_does_not_use_the_network() -> None:
    world = World(network=False)
    world.place("k", b"value")
    (outcome,) = get(world, "k")
    assert isinstance(outcome, errors.ReplicasUnavailable)
    assert not world.reads


@pytest.mark.usefixtures("small_slices")
def test_leases_are_renewed_between_slices_of_a_long_transfer() -> None:
    world = World()
    keys = [f"k{at}" for at in range(8)]
    for key in keys:
        world.place(key, bytes(CHUNK_BYTES))
    world.nodes[0].takes_s = 3.0  # far too slow for what was planned at once

    outcomes = get(world, *keys)
    assert all(outcome == bytes(CHUNK_BYTES) for outcome in outcomes)
    assert world.asked_for(control.Renew)
    first = sum(task.length for task in world.reads[0][1])
    later = sum(task.length for task in world.reads[-2][1])
    assert later < first


@pytest.mark.usefixtures("small_slices")
def test_slices_of_one_object_end_at_chunks_and_join_again() -> None:
    world = World()
    value = bytes(range(256)) * (3 * CHUNK_BYTES // 256) * 3
    world.place("k", value)
    assert get(world, "k", start=5) == [value[5:]]
    tasks = [task for _, row in world.reads for task in row]
    assert len(tasks) > 1
    assert all((task.start + task.length) % CHUNK_BYTES == 0 for task in tasks[:-1])


@pytest.mark.usefixtures("small_slices")
def test_a_version_that_changes_between_slices_is_read_from_its_beginning() -> None:
    world = World()
    world.place("k", b"a" * (8 * CHUNK_BYTES))

    def replaced_after_the_first_slice(_: object) -> errors.StoreError | None:
        if len(world.reads) == 2:
            world.place("k", b"b" * (8 * CHUNK_BYTES))
            world.nodes[0].stored.pop(4096, None)
        return None

    world.nodes[0].error = replaced_after_the_first_slice
    assert get(world, "k") == [b"b" * (8 * CHUNK_BYTES)]


def test_a_master_that_goes_away_is_asked_again_with_growing_pauses() -> None:
    world = World()
    world.place("k", b"value")
    world.trouble.extend([None, None, *[errors.Unreachable("restarting")] * 4])

    assert get(world, "k") == [b"value"]
    assert [pause for pause in world.waited_s if pause] == [0.005, 0.01]


def test_a_master_that_stays_away_is_an_error_by_the_deadline() -> None:
    world = World()
    world.trouble.extend([errors.Unreachable("no master")] * 1000)
    with pytest.raises(errors.Unreachable, match="no master"):
        get(world, "k", deadline_s=2.0)
    assert world.now_s <= world.until_s


def test_a_lost_master_is_not_waited_for() -> None:
    world = World()
    world.is_lost = True
    world.trouble.append(errors.Unreachable("no master"))
    with pytest.raises(errors.Unreachable):
        get(world, "k")
    assert not world.waited_s


def test_a_new_reign_has_the_namespace_opened_before_anything_is_asked() -> None:
    world = World()
    world.place("k", b"value")
    get(world, "k")
    world.reign = ("cluster", 2)
    world.session.locations.clear()
    world.asked.clear()

    assert get(world, "k") == [b"value"]
    assert type(world.asked[0]) is control.OpenNamespace


def test_another_cluster_at_the_same_address_is_taken_as_it_is() -> None:
    world = World()
    world.place("k", b"old")
    get(world, "k")
    world.reign, world.slot, world.epoch, world.membership = ("another", 1), 7, 4, 1
    world.nodes[0].stored.clear()
    world.place("k", b"new")
    world.session.locations.clear()

    assert get(world, "k") == [b"new"]
    assert (world.session.slot, world.session.epoch) == (7, 4)


def test_a_namespace_cleared_by_another_client_is_refused_until_it_is_reopened() -> None:
    world = World()
    world.place("k", b"value")
    get(world, "k", "other")
    world.epoch += 1

    for _ in range(2):
        with pytest.raises(errors.StaleEpoch):
            get(world, "other")
    with pytest.raises(errors.StaleEpoch):
        get(world, "k")  # what was leased is void as well


def test_keys_beyond_one_frame_are_asked_in_one_round_trip() -> None:
    world = World()
    keys = [f"k{at}" for at in range(5000)]
    world.place("k4999", b"last")
    outcomes = get(world, *keys)
    assert outcomes[-1] == b"last"
    assert outcomes[:-1] == [None] * 4999
    assert [len(m.keys) for m in world.asked_for(control.Locate)] == [0, 4096, 904]
