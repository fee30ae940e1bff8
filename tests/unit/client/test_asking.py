"""Questions that move no bytes."""

from __future__ import annotations

import pytest

from mooncake_client._core import asking, session
from mooncake_store import errors
from mooncake_store.types import MissReason, Presence
from mooncake_store.wire import control
from tests.unit.client.world import World


def test_long_batches_are_one_round_trip_in_order() -> None:
    world = World()
    keys = [f"k{at}" for at in range(5000)]
    world.place("k4999", b"x")
    found = world.run(asking.exists(world.session, keys))
    assert found == [False] * 4999 + [True]
    assert len(world.asked_for(control.Exists)) == 2


def test_nothing_is_asked_about_nothing() -> None:
    world = World()
    assert world.run(asking.exists(world.session, [])) == []
    assert not world.asked_for(control.Exists)


def test_removed_keys_are_forgotten_here_as_well() -> None:
    world = World()
    world.place("k", b"x")
    world.session.locations.put("k", object())  # type: ignore[arg-type]
    assert world.run(asking.remove(world.session, ["k", "absent"])) == [True, False]
    assert not world.session.locations.entries


def test_a_part_that_fails_fails_the_question() -> None:
    world = World()

    def second_fails(message: control.Exists) -> object:
        if len(world.asked_for(control.Exists)) > 1:
            raise errors.Overloaded("busy")
        return world.answer_Exists(message)

    world.answers[control.Exists] = second_fails
    with pytest.raises(errors.Overloaded):
        world.run(asking.exists(world.session, [f"k{at}" for at in range(5000)]))


def test_probes_speak_one_vocabulary() -> None:
    world = World()
    world.answers[control.Probe] = lambda _: control.Probed(
        [control.ProbeItem(1, 10, 250), control.ProbeItem(3, 0, 0), control.ProbeItem(0, 0, 0)], 2.0
    )
    dram, writing, absent = world.run(asking.probe(world.session, ["a", "b", "c"], 2.0, "id"))
    assert (dram.presence, dram.bytes, dram.estimate_s) == (Presence.DRAM, 10, 0.00025)
    assert [dram.readable, writing.readable, absent.readable] == [True, False, False]
    (message,) = world.asked_for(control.Probe)
    assert (message.hold_s, message.probe_id) == (2.0, "id")


def test_a_chain_that_one_answer_cannot_cover_is_refused() -> None:
    world = World()
    with pytest.raises(errors.InvalidArgument, match="4096"):
        world.run(asking.match_prefix(world.session, ["k"] * 5000, 0.0, ""))


@pytest.mark.parametrize(
    ("reply", "readable", "reason"),
    [(-1, True, None), (2, False, MissReason.REMOVED), (99, False, MissReason.ABSENT)],
)
def test_why_says_why(reply: int, readable: bool, reason: MissReason | None) -> None:  # noqa: FBT001
    world = World()
    world.answers[control.Why] = lambda _: control.WhyReply(reply, "so")
    found = world.run(asking.why(world.session, "k"))
    assert (found.readable, found.reason) == (readable, reason)


def test_clearing_goes_on_with_the_new_epoch() -> None:
    world = World()
    world.place("k", b"x")
    world.run(session.clear_namespace(world.session))
    assert world.session.epoch == 2
    assert world.run(asking.exists(world.session, ["k"])) == [False]


def test_reopening_goes_on_after_somebody_else_cleared() -> None:
    world = World()
    world.run(asking.exists(world.session, ["k"]))
    world.epoch = 5
    with pytest.raises(errors.StaleEpoch):
        world.run(asking.exists(world.session, ["k"]))
    world.run(session.reopen_namespace(world.session))
    assert world.run(asking.exists(world.session, ["k"])) == [False]
    assert world.session.epoch == 5


def test_a_namespace_with_another_manifest_is_refused() -> None:
    world = World()

    def differs(_: object) -> object:
        raise errors.ManifestMismatch("dtype is bf16, not fp8")

    world.answers[control.OpenNamespace] = differs
    with pytest.raises(errors.ManifestMismatch):
        world.run(asking.exists(world.session, ["k"]))
    assert world.session.slot == -1
