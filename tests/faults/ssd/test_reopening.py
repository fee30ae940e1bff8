"""A store that is opened again while others use it: what they see between two of its steps."""

from __future__ import annotations

import shutil
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from mooncake_storage_node.ssd import State
from mooncake_storage_node.ssd.ledger import Ledger
from mooncake_storage_node.ssd.reading import ReadPool
from mooncake_storage_node.ssd.volume import Volume
from mooncake_store.deadline import Deadline
from mooncake_store.errors import Overloaded, StoreError
from mooncake_store.limits import KIB
from mooncake_store.testing import wait_until
from tests.faults.ssd.faulty import FaultyFiles
from tests.faults.ssd.handling import WAIT_S, await_state, fill, opened

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from concurrent.futures import Future
    from pathlib import Path

    from mooncake_storage_node.ssd import Store


def test_another_store_is_news_although_nobody_looked_while_it_was_opened(tmp_path: Path) -> None:
    """Who looks for news may get no processor for so long that the state is as it was."""
    place = tmp_path / "mount"
    place.mkdir()
    looks, goes_on = threading.Event(), threading.Event()
    news: list[int] = []

    def take(store: Store) -> None:
        looks.set()
        goes_on.wait(WAIT_S)
        news.append(store.incarnation)

    with opened(place, on_change=take) as store:
        try:
            assert looks.wait(WAIT_S)
            before = store.incarnation
            shutil.rmtree(place)
            place.mkdir()
            wait_until(lambda: store.incarnation != before, WAIT_S, what="it is another")
            await_state(store, State.READY)
        finally:
            goes_on.set()
        wait_until(lambda: len(news) > 1, WAIT_S, what="its opening is news")
        assert news[1] == store.incarnation


def test_what_was_cleared_while_its_store_was_opened_is_never_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clearing was confirmed: the store had refused to be read until then."""
    place, away = tmp_path / "mount", tmp_path / "away"
    place.mkdir()
    start, set_epochs = Volume.start, Volume.set_epochs
    seen: list[str] = []
    with opened(place) as store:
        fill(store, [1], 64 * KIB, slot=1, epoch=1)
        location = store.find(1)

        def start_late(volume: Volume) -> None:
            start(volume)
            with pytest.raises(Overloaded):
                store.set_epochs({1: 2})

        def read_before(volume: Volume, epochs: Mapping[int, int]) -> Future[None]:
            try:
                store.size_of(location, 1)
            except StoreError as error:
                seen.append(error.code)
            else:
                seen.append("it is readable")
            return set_epochs(volume, epochs)

        monkeypatch.setattr(Volume, "start", start_late)
        monkeypatch.setattr(Volume, "set_epochs", read_before)
        place.rename(away)
        await_state(store, State.DEGRADED)
        away.rename(place)
        await_state(store, State.READY)
        assert seen == [Overloaded.code]
        with pytest.raises(StoreError, match="not on this disk"):
            store.size_of(location, 1)


def test_epochs_that_are_raised_while_its_store_is_opened_do_not_end_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever opens it takes up those that the store remembers, and more come in the middle."""
    place, away = tmp_path / "mount", tmp_path / "away"
    place.mkdir()
    raise_epochs = Ledger.raise_epochs
    raised: list[int] = []
    with opened(place) as store:

        def raise_slowly(ledger: Ledger, epochs: Mapping[int, int]) -> bool:
            for slot in epochs:
                if slot == 7 and not raised:
                    raised.append(slot)
                    with suppress(Overloaded):
                        store.set_epochs({8: 4})
            return raise_epochs(ledger, epochs)

        place.rename(away)
        await_state(store, State.DEGRADED)
        wait_until(lambda: not store.is_open, WAIT_S, what="it is closed")
        with pytest.raises(Overloaded):
            store.set_epochs({7: 3})
        monkeypatch.setattr(Ledger, "raise_epochs", raise_slowly)
        away.rename(place)
        await_state(store, State.READY)
        assert raised
        assert store.epochs() == {7: 3, 8: 4}


@pytest.fixture
def files() -> Iterator[FaultyFiles]:
    files = FaultyFiles()
    yield files
    files.faults.mend()


def test_a_read_that_is_asked_for_while_its_store_is_closed_ends(
    tmp_path: Path, files: FaultyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else would end it: who watches its deadline looks at what is open by then."""
    submit = ReadPool._submit
    with opened(tmp_path, files=files, readers=1) as store:
        fill(store, [1], 64 * KIB)
        location = store.find(1)
        files.faults.hold("read")
        busy = store.read(location, 1, 0, KIB, Deadline(WAIT_S))
        assert store._volume is not None
        pool = store._volume.reads
        wait_until(lambda: pool.busy_since_s() > 0, WAIT_S, what="the only reader is busy")

        def submit_and_end(pool: ReadPool, jobs: Any) -> None:
            submit(pool, jobs)
            pool.end("the directory is gone", 0.0)

        monkeypatch.setattr(ReadPool, "_submit", submit_and_end)
        late = store.read(location, 1, 0, KIB, Deadline(3600))
        with pytest.raises(Overloaded, match="the directory is gone"):
            late.result(WAIT_S)
        with pytest.raises(Overloaded):
            busy.result(WAIT_S)


def test_a_page_that_is_asked_for_while_its_store_is_closed_ends(
    tmp_path: Path, files: FaultyFiles
) -> None:
    with opened(tmp_path, files=files, readers=1) as store:
        fill(store, [1], 64 * KIB)
        files.faults.hold("read")
        busy = store.read(store.find(1), 1, 0, KIB, Deadline(WAIT_S))
        assert store._volume is not None
        pool = store._volume.reads
        wait_until(lambda: pool.busy_since_s() > 0, WAIT_S, what="the only reader is busy")
        page = store.list_page(0, 10)
        pool.end("the directory is gone", 0.0)
        with pytest.raises(Overloaded):
            page.result(WAIT_S)
        with pytest.raises(Overloaded):
            busy.result(WAIT_S)
