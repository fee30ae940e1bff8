"""What describes and lists objects says all or nothing after a restart of the master."""

from __future__ import annotations

import pytest

from mooncake_store.errors import DeadlineExceeded, StaleTerm
from mooncake_store.limits import KIB, MIB
from mooncake_store.types import MissReason
from mooncake_store.wire.control import Scan, Scanned, Stat
from tests.unit.master.rig import Rig
from tests.unit.master.test_eviction import fill
from tests.unit.master.test_recovery import half_listed, return_all


def test_what_describes_and_lists_objects_waits_until_all_are_known() -> None:
    rig, keys = half_listed()
    described = rig.send(Stat(0, 1, keys))
    listed = rig.send(Scan(0, 1))
    assert not {described, listed} & rig.replies.keys()
    rig.settle()
    assert [record.key for record in rig.replies[described].items] == keys
    assert sorted(record.key for record in rig.replies[listed].items) == sorted(keys)


def test_a_part_of_all_objects_is_never_passed_off_as_all() -> None:
    rig, keys = half_listed()
    assert MissReason.RECOVERING in rig.ask(Stat(0, 1, keys)).items
    with pytest.raises(DeadlineExceeded, match="listed"):
        rig.ask(Scan(0, 1))


def test_a_listing_does_not_go_on_after_a_restart_which_would_list_twice_or_not_at_all() -> None:
    rig = Rig(MIB, MIB)
    fill(rig, 20, length=KIB)
    page = rig.ask(Scan(0, 1, limit=5))
    rig.restart()
    return_all(rig)
    with pytest.raises(StaleTerm, match="begin it again"):
        rig.ask(Scan(0, 1, cursor=page.cursor))
    again = rig.ask(Scan(0, 1))
    assert isinstance(again, Scanned)
    assert len(again.items) == 20
