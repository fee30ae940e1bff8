"""Places for connections: bounded, given back, and never kept by what is gone."""

from __future__ import annotations

import threading

from mooncake_store.testing import wait_until
from mooncake_store.transport.places import Opening, Places


def test_places_are_bounded_and_pass_from_an_opening_to_what_was_opened() -> None:
    places = Places()
    opening, second, third = Opening(), Opening(), Opening()
    with places.lock:
        assert places.take(opening, 2)
        assert places.take(second, 2)
        assert not places.take(third, 2)
        places.pass_on(opening, third)
        assert set(map(id, places.holders())) == {id(second), id(third)}
        places.leave(second)
        assert places.take(opening, 2)


def test_what_an_interrupted_call_lost_gives_its_place_back() -> None:
    places = Places()
    lost = Opening()
    with places.lock:
        assert places.take(lost, 1)
        del lost
        assert places.take(Opening(), 1)


def test_who_leaves_wakes_who_waits() -> None:
    places = Places()
    with places.lock:
        places.queue()
        places.leave(Opening())
        assert not places.waiting
        ticket = places.queue()
        places.call_all()
    places.wait(ticket, 1000.0)
    assert not places.waiting


def test_who_waits_looks_again_without_a_sign() -> None:
    places = Places()

    def wait() -> None:
        with places.lock:
            ticket = places.queue()
        places.wait(ticket, 1000.0)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    wait_until(lambda: not thread.is_alive(), 20, what="it looks again")
    assert not places.waiting
