"""Views and reservations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mooncake_client._core import in_place, reading
from mooncake_client._core.offers import Offer, PutOptions
from mooncake_client._core.wants import Want
from mooncake_store import errors
from mooncake_store.wire import control
from tests.unit.client.test_reading import failing
from tests.unit.client.world import World

if TYPE_CHECKING:
    from mooncake_client._core.in_place import Reserved


def view(world: World, key: str, *, verify: bool = True) -> tuple[object, Want]:
    want = Want(key)
    return world.run(in_place.view(world.session, want, verify=verify)), want


def reserve(world: World, key: str, length: int, **options: object) -> Reserved:
    offer = Offer(key, None, length)
    return world.run(in_place.reserve(world.session, offer, PutOptions(**options)))  # type: ignore[arg-type, no-any-return]


def get(world: World, key: str) -> object:
    want = Want(key)
    world.run(reading.read(world.session, [want]))
    return want.fresh if isinstance(want.outcome, int) else want.outcome


def test_a_near_object_is_looked_at_in_place() -> None:
    world = World(local=True)
    world.place("k", b"value")
    seen, _ = view(world, "k")
    assert bytes(seen.payload) == b"value"  # type: ignore[attr-defined]
    assert not world.reads


def test_a_far_object_is_copied_and_verified() -> None:
    world = World()
    world.place("k", b"value")
    seen, want = view(world, "k")
    assert seen is None
    assert (want.outcome, want.fresh) == (5, b"value")


def test_a_missing_object_has_no_view() -> None:
    world = World(local=True)
    seen, want = view(world, "k")
    assert seen is None
    assert want.is_over
    assert want.outcome is None


def test_the_payload_is_hashed_at_the_first_view_only() -> None:
    world = World(local=True)
    world.place("k", b"value")
    view(world, "k")
    entry = world.session.locations.entries["k"]
    assert entry.verified
    view(world, "k", verify=False)
    assert len(world.looks) == 2


def test_a_reused_extent_is_looked_for_again() -> None:
    world = World(local=True)
    world.place("k", b"old")
    view(world, "k")
    world.nodes[0].stored.clear()
    world.place("k", b"new")
    seen, _ = view(world, "k")
    assert bytes(seen.payload) == b"new"  # type: ignore[attr-defined]


def test_a_damaged_object_is_reported_and_another_copy_looked_at() -> None:
    world = World(nodes=2, local=True)
    world.place("k", b"value", on=(0, 1))
    world.nodes[0].error = failing(errors.ChecksumMismatch("flipped"))
    seen, _ = view(world, "k")
    assert bytes(seen.payload) == b"value"  # type: ignore[attr-defined]
    assert len(world.asked_for(control.ReportReplica)) == 1


def test_shared_memory_that_is_gone_costs_a_copy() -> None:
    world = World(local=True)
    world.place("k", b"value")
    view(world, "k")
    world.nodes[0].is_local = False
    world.nodes[0].error = failing(errors.Closed("unmapped"), times=1)
    seen, want = view(world, "k")
    assert seen is None
    assert want.fresh == b"value"


def test_room_on_this_host_is_filled_in_place() -> None:
    world = World(local=True)
    reserved = reserve(world, "k", 5)
    assert reserved.place is not None
    assert reserved.buffer is not None
    reserved.buffer[:] = b"value"
    result = world.run(in_place.commit(world.session, reserved))
    assert (result.created, result.replicas) == (True, 1)
    assert world.session.counters.bytes_written == {"shm": 5}
    assert world.looks[0].published is not None


def test_room_elsewhere_is_filled_in_private_memory() -> None:
    world = World()
    reserved = reserve(world, "k", 5)
    assert reserved.place is None
    assert reserved.buffer is not None
    reserved.buffer[:] = b"value"
    world.run(in_place.commit(world.session, reserved))
    assert get(world, "k") == b"value"


def test_other_replicas_are_written_from_the_one_that_was_filled() -> None:
    world = World(nodes=2)
    world.nodes[0].is_local = True
    reserved = reserve(world, "k", 5, replicas=2)
    assert reserved.buffer is not None
    reserved.buffer[:] = b"value"
    result = world.run(in_place.commit(world.session, reserved))
    assert result.replicas == 2
    assert [value for _, value in world.nodes[1].stored.values()] == [b"value"]


def test_a_key_that_is_there_needs_no_filling() -> None:
    world = World(local=True)
    there = world.place("k", b"value")
    reserved = reserve(world, "k", 5)
    assert reserved.buffer is None
    assert in_place.result_of(reserved.offer).version == there.version


def test_a_refused_reservation_raises() -> None:
    world = World()
    with pytest.raises(errors.ReplicasImpossible):
        reserve(world, "k", 5, replicas=2)


def test_an_abandoned_reservation_leaves_nothing() -> None:
    world = World(local=True)
    reserved = reserve(world, "k", 5)
    world.run(in_place.give_up(reserved))
    assert not world.attempts
    assert world.looks[0].is_over
    assert "k" not in world.objects


def test_a_reservation_that_took_too_long_publishes_nothing() -> None:
    world = World(local=True)
    reserved = reserve(world, "k", 5)
    world.looks[0].problem = errors.StaleTerm("freed")
    with pytest.raises(errors.AttemptExpired):
        world.run(in_place.commit(world.session, reserved))
    assert world.looks[0].is_over
    assert "k" not in world.objects


def test_too_many_local_writers_cost_a_copy() -> None:
    world = World(local=True)
    world.nodes[0].error = failing(errors.Overloaded("no slot"), times=1)
    reserved = reserve(world, "k", 5)
    assert reserved.place is None
    assert reserved.buffer is not None
