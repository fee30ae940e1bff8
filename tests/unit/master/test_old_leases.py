"""What readers were told by a master before this one, of nodes that are not back."""

from __future__ import annotations

import pytest

from mooncake_store.errors import DeadlineExceeded
from mooncake_store.limits import MIB
from mooncake_store.wire.control import Clear, Located, PutCommitted, Remove, Removed
from tests.unit.master.rig import SPACE, Free, Rig

LEASE_S = 5.0
"""The default."""
DEADLINE_S = 30.0


def restart(rig: Rig, *names: str) -> None:
    """Kill the master; a new one is there at once, to which only these nodes come back."""
    for node in rig.nodes.values():
        node.peer = 0
    rig.numbers = (rig.numbers[0] + 1, 0)
    rig.restart()
    rig.tick()
    for name in names:
        rig.register(rig.nodes[name])
    rig.open(SPACE)


def rig_of_two(**settings: Free) -> tuple[Rig, float]:
    """Return a cluster whose master was killed after a lookup, and when that lease ends.

    One of the nodes does not come back, and has what the reader was told.
    """
    settings.setdefault("keeps", True)
    rig = Rig(1 * MIB, 1 * MIB, **settings)
    rig.put("a", preferred=("n1",))
    rig.put("b", replicas=2)
    rig.put("c", preferred=("n0",))
    rig.locate("a", "b")
    end_s = rig.now_s + LEASE_S
    restart(rig, "n0")
    return rig, end_s


def answered_s(rig: Rig, number: int) -> float:
    """Let time pass until a request is answered; return when that was."""
    until_s = rig.now_s + DEADLINE_S + 1.0
    while number not in rig.replies and rig.now_s < until_s:
        rig.tick(0.02)
        rig.beat()
    return rig.now_s


def remove(rig: Rig, *keys: str, deadline_s: float = DEADLINE_S) -> int:
    return rig.send(Remove(rig.slot, rig.epoch, list(keys)), deadline_s=deadline_s)


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("key", ["a", "b"])
def test_a_removal_waits_for_what_an_earlier_master_told_of_a_missing_node(
    key: str, *, keeps: bool
) -> None:
    rig, end_s = rig_of_two(keeps=keeps)
    number = remove(rig, key)
    assert answered_s(rig, number) >= end_s
    assert isinstance(rig.replies[number], Removed)


def test_so_it_is_with_the_defaults_after_the_grace() -> None:
    rig, end_s = rig_of_two(recovery_grace_s=2.0)
    number = remove(rig, "a", deadline_s=LEASE_S + 1.0)
    assert answered_s(rig, number) >= end_s
    assert isinstance(rig.replies[number], Removed)


@pytest.mark.parametrize("key", ["a", "b"])
def test_a_replace_waits_as_well(key: str) -> None:
    rig, end_s = rig_of_two()
    started = rig.start(key, replace=True)
    rig.land(started, (key,), 1024)
    reply = rig.commit_within(started, DEADLINE_S)
    assert isinstance(reply, PutCommitted)
    assert rig.now_s >= end_s


def test_a_clear_waits_as_well() -> None:
    rig = Rig(1 * MIB, 1 * MIB, keeps=True)
    rig.put("a", preferred=("n1",))
    rig.locate("a")
    end_s = rig.now_s + LEASE_S
    restart(rig, "n0")
    number = rig.send(Clear(SPACE), deadline_s=DEADLINE_S)
    assert answered_s(rig, number) >= end_s
    assert not isinstance(rig.replies[number], Exception)


def test_a_put_after_a_removal_waits_for_what_that_waits_for() -> None:
    rig, end_s = rig_of_two()
    remove(rig, "a")
    started = rig.start("a")
    rig.land(started, ("a",), 1024)
    rig.commit_within(started, DEADLINE_S)
    assert rig.now_s >= end_s


def test_a_put_and_a_read_do_not_wait() -> None:
    rig, end_s = rig_of_two()
    rig.put("new")
    reply = rig.replies[rig.send_locate("new", "c")]
    assert isinstance(reply, Located)
    assert rig.now_s < end_s - 1.0


def test_the_deadline_ends_the_wait_and_the_change_stands() -> None:
    rig, _ = rig_of_two()
    number = remove(rig, "b", deadline_s=1.0)
    answered_s(rig, number)
    error = rig.replies[number]
    assert isinstance(error, DeadlineExceeded)
    assert "an earlier master" in str(error)
    assert "the change stands" in str(error)
    assert rig.exists("b") == [False]


def test_nothing_waits_where_everybody_is_back() -> None:
    rig, end_s = rig_of_two()
    rig.register(rig.nodes["n1"])
    rig.remove("a", "b", "c")
    assert rig.now_s < end_s - 1.0


def test_nothing_waits_where_there_was_no_master_before() -> None:
    rig = Rig(1 * MIB, keeps=True)
    begun_s = rig.now_s
    rig.put("a")
    rig.remove("a", "b")
    assert rig.now_s < begun_s + 1.0


def test_nothing_waits_once_the_longest_lease_is_over() -> None:
    rig, end_s = rig_of_two()
    rig.sleep(LEASE_S + 0.1)
    begun_s = rig.now_s
    assert begun_s >= end_s
    rig.remove("a")
    assert rig.now_s < begun_s + 1.0
