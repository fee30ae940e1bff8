"""No number of a reign or an attempt is ever given twice (ADR 35)."""

from __future__ import annotations

from mooncake_master.core.reigns import FIRST_S, TERM_S, first_numbers
from mooncake_store.limits import MIB
from mooncake_store.types import TERM_MAX, term_of
from mooncake_store.wire.control import CommitItem, PutCommit, PutGrant, Refusal
from tests.unit.master.rig import SPACE, Rig

NOW_S = FIRST_S + 1_000 * TERM_S + 3.0


def test_a_reign_begins_above_every_earlier_one() -> None:
    before = (0, 0)
    for later_ms in (0, 1, 2, 50, 119_999, 120_000, 10_000_000):
        numbers = first_numbers(NOW_S + later_ms / 1000 + 0.0001)
        assert numbers > before
        before = numbers
    assert first_numbers(NOW_S)[0] == 1_000
    assert first_numbers(NOW_S, 5_000)[0] == 5_001, "a clock that was set back changes nothing"
    assert first_numbers(0.0) == (1, 0)
    assert first_numbers(1e12)[0] == TERM_MAX


def test_two_masters_that_met_only_empty_nodes_never_grant_the_same_version() -> None:
    """A client may repeat a commit to the next master: nobody else's attempt has its number."""
    rig = Rig(MIB)
    rig.numbers = first_numbers(NOW_S)
    rig.restart()
    rig.wipe(rig.nodes["n0"])
    rig.register(rig.nodes["n0"])
    rig.open(SPACE)
    (first,) = rig.start("k").items
    rig.numbers = first_numbers(NOW_S + 0.5)
    rig.restart()
    rig.wipe(rig.nodes["n0"])
    rig.register(rig.nodes["n0"])
    rig.open(SPACE)
    (second,) = rig.start("k").items
    assert isinstance(first, PutGrant)
    assert isinstance(second, PutGrant)
    assert term_of(first.version) == term_of(second.version) == 1_000
    assert second.version > first.version
    (result,) = rig.ask(PutCommit([CommitItem(first.version, 1)])).items
    assert isinstance(result, Refusal)
    assert result.code == "attempt_expired"
