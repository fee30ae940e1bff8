"""What every data path promises of views and reservations: that they work, or that it has none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mooncake_store.errors import (
    ChecksumMismatch,
    NotSupported,
    StaleExtent,
    StaleTerm,
    StoreError,
)

from .planting import FREED
from .tasks import INCARNATION, identity_of, make, writing_of

if TYPE_CHECKING:
    from mooncake_store.transport import DataPath

    from .planting import Ground


class InPlaceContract:
    """Part of ``suite.DataPathContract``."""

    def test_a_view_shows_the_payload_and_notices_its_end(
        self, ground: Ground, path: DataPath
    ) -> None:
        planted = make(300_000)
        offset = ground.plant(planted)
        if not path.has_views:
            with pytest.raises(NotSupported):
                path.view(INCARNATION, offset, identity_of(planted))
            return
        view = path.view(INCARNATION, offset, identity_of(planted))
        assert view.payload == planted.payload
        assert view.payload.readonly
        view.verify()
        view.check()
        ground.set_entry(offset, planted.version | FREED)
        with pytest.raises(StaleExtent):
            view.check()
        view.release()
        view.release()

    def test_a_view_finds_damage_and_refuses_what_is_stale(
        self, ground: Ground, path: DataPath
    ) -> None:
        if not path.has_views:
            pytest.skip("this path has no views")
        planted = make(1000)
        offset = ground.plant(planted)
        ground.flip(offset + 100)
        view = path.view(INCARNATION, offset, identity_of(planted))
        with pytest.raises(ChecksumMismatch):
            view.verify()
        ground.set_entry(offset, 0)
        with pytest.raises(StaleExtent):
            view.verify()
        with pytest.raises(StaleExtent):
            path.view(INCARNATION, offset, identity_of(planted))
        view.release()

    def test_a_reservation_is_filled_in_place_and_published(
        self, ground: Ground, path: DataPath
    ) -> None:
        planted = make(300_000)
        offset = ground.room(len(planted.extent))
        ground.set_entry(offset, 0)
        if not path.has_views:
            with pytest.raises(NotSupported):
                path.reserve(INCARNATION, offset, identity_of(planted))
            return
        loan = path.reserve(INCARNATION, offset, identity_of(planted))
        loan.payload[:] = planted.payload
        assert ground.entry(offset) == 0
        loan.publish(writing_of(planted, offset).sealed)
        assert ground.read(offset, len(planted.extent)) == planted.extent
        assert ground.entry(offset) == planted.version
        with pytest.raises(StoreError):
            loan.publish(writing_of(planted, offset).sealed)
        assert not ground.intents()

    def test_a_reservation_of_an_attempt_that_ends_publishes_nothing(
        self, ground: Ground, path: DataPath
    ) -> None:
        if not path.has_views:
            pytest.skip("this path has no reservations")
        planted = make(1000)
        offset = ground.room(4096)
        ground.set_entry(offset, 0)
        loan = path.reserve(INCARNATION, offset, identity_of(planted))
        ground.set_entry(offset, planted.version | FREED)
        with pytest.raises(StaleTerm):
            loan.publish(writing_of(planted, offset).sealed)
        with pytest.raises(StaleTerm):
            path.reserve(INCARNATION, offset, identity_of(planted))
        assert ground.entry(offset) == planted.version | FREED
        assert not ground.intents()
