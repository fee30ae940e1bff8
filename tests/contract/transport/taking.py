"""What every data path promises of ``take``: the whole, verified payload, or nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .planting import CHUNK, FREED, GRANULE
from .tasks import EPOCH, INCARNATION, POOL_BYTES, SLOT, identity_of, make

if TYPE_CHECKING:
    from mooncake_store.transport import DataPath

    from .planting import Ground


class TakingContract:
    """Part of ``suite.DataPathContract``."""

    @pytest.mark.parametrize("size", [0, 1, 4096, CHUNK // 4, CHUNK // 4 + 1, 3 * CHUNK])
    def test_what_is_taken_is_the_whole_payload(
        self, ground: Ground, path: DataPath, size: int
    ) -> None:
        planted = make(size)
        offset = ground.plant(planted)
        taken = path.take(INCARNATION, offset, identity_of(planted))
        assert taken in {None, planted.payload}

    def test_a_copy_is_taken_by_the_write_that_made_it(
        self, ground: Ground, path: DataPath
    ) -> None:
        planted = make(4096)
        attempt = planted.version + 1000
        offset = ground.plant(planted, attempt=attempt)
        assert path.take(INCARNATION, offset, identity_of(planted)) is None
        taken = path.take(INCARNATION, offset, identity_of(planted), attempt=attempt)
        assert taken in {None, planted.payload}

    def test_nothing_damaged_is_taken(self, ground: Ground, path: DataPath) -> None:
        planted = make(4096)
        offset = ground.plant(planted)
        for at in (*range(64), 64, 64 + 2000, 64 + 4095):
            ground.flip(offset + at)
            assert path.take(INCARNATION, offset, identity_of(planted)) is None, at
            ground.flip(offset + at)

    @pytest.mark.parametrize(
        "change",
        [
            {"fingerprint": b"another key's pr"},
            {"version": 1},
            {"epoch": EPOCH + 1},
            {"slot": SLOT + 1},
            {"slot": -1},
            {"slot": 1 << 20},
            {"length": 4095},
            {"length": 4097},
            {"length": 1 << 40},
        ],
    )
    def test_nothing_else_than_what_is_wanted_is_taken(
        self, ground: Ground, path: DataPath, change: dict[str, object]
    ) -> None:
        planted = make(4096)
        offset = ground.plant(planted)
        wanted = identity_of(planted)._replace(**change)  # type: ignore[arg-type]  # by name
        assert path.take(INCARNATION, offset, wanted, attempt=planted.version) is None

    def test_nothing_that_is_over_is_taken(self, ground: Ground, path: DataPath) -> None:
        planted = make(4096)
        offset = ground.plant(planted)
        ground.set_entry(offset, planted.version | FREED)
        assert path.take(INCARNATION, offset, identity_of(planted)) is None
        ground.set_entry(offset, planted.version)
        ground.set_epoch(SLOT, EPOCH + 1)
        assert path.take(INCARNATION, offset, identity_of(planted)) is None

    def test_nothing_is_taken_where_nothing_can_be(self, ground: Ground, path: DataPath) -> None:
        planted = make(4096)
        offset = ground.plant(planted)
        for place in (offset + 1, offset + GRANULE, -GRANULE, POOL_BYTES, POOL_BYTES - GRANULE):
            assert path.take(INCARNATION, place, identity_of(planted)) is None
        assert path.take(INCARNATION + 1, offset, identity_of(planted)) is None
        path.close()
        assert path.take(INCARNATION, offset, identity_of(planted)) is None
