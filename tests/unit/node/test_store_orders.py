"""Orders about what lies in stores name a version, and touch nothing else."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, cast

from mooncake_storage_node.store_orders import StoreOrders
from mooncake_store.wire.control import FreeItem

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

INCARNATION = 7


class FakeStores:
    """One store with version 5 in row 3; it notes what it is told to remove."""

    def __init__(self) -> None:
        self.rows = {3: 5}
        self.dropped: list[object] = []
        self.on_dropped = self.dropped.extend

    def find(self, incarnation: int) -> FakeStores | None:
        return self if incarnation == INCARNATION else None

    def owns(self, incarnation: int) -> bool:
        return incarnation == INCARNATION

    def remove(self, items: Sequence[tuple[int, int]]) -> Future[None]:
        for location, version in items:
            if self.rows.get(location) == version:
                del self.rows[location]
        future: Future[None] = Future()
        future.set_result(None)
        return future


class AtOnce:
    """Deadlines of work that is done already."""

    def gather(self, futures: list[Future[None]], limit_s: float, end: Callable[[], None]) -> None:
        assert limit_s > 0
        assert all(future.done() for future in futures)
        end()


def free(stores: FakeStores, location: int, version: int) -> list[bool]:
    answers: list[bool] = []
    orders = StoreOrders(cast("Any", stores), cast("Any", AtOnce()))
    orders.free([FreeItem(INCARNATION, location, 512, version)], 1.0, answers.extend)
    return answers


def test_a_repeated_order_spares_an_older_version_that_got_the_row_since() -> None:
    """What is demoted late is older than what was removed from there before."""
    stores = FakeStores()
    assert free(stores, 3, 9) == [True]
    assert stores.rows == {3: 5}
    assert not stores.dropped


def test_what_is_named_is_removed() -> None:
    stores = FakeStores()
    assert free(stores, 3, 5) == [True]
    assert not stores.rows
