"""Turns: one piece of work a turn of the loop, round and round."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from mooncake_master.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable


class Loop:
    """Runs what was scheduled, one turn at a time."""

    def __init__(self) -> None:
        self.soon: deque[Callable[[], None]] = deque()

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def turn(self) -> None:
        for _ in range(len(self.soon)):
            self.soon.popleft()()


class Worker:
    """Has some pieces of work."""

    def __init__(self, name: str, pieces: int, done: list[str]) -> None:
        self.name = name
        self.pieces = pieces
        self.done = done

    def turn(self) -> bool:
        self.done.append(self.name)
        self.pieces -= 1
        return self.pieces > 0


def test_every_turn_of_the_loop_does_one_piece_and_nobody_is_served_twice_in_a_row() -> None:
    loop = Loop()
    turns = Turns(loop.call_soon)
    done: list[str] = []
    for name, pieces in (("a", 3), ("b", 1), ("c", 2)):
        turns.wait(Worker(name, pieces, done))
    lengths = []
    while loop.soon:
        loop.turn()
        lengths.append(len(done))
    assert done == ["a", "b", "c", "a", "c", "a"]
    assert lengths == [1, 2, 3, 4, 5, 6]
    assert len(turns) == 0


def test_who_comes_later_waits_behind_those_who_wait() -> None:
    loop = Loop()
    turns = Turns(loop.call_soon)
    done: list[str] = []
    turns.wait(Worker("a", 2, done))
    loop.turn()
    turns.wait(Worker("b", 1, done))
    while loop.soon:
        loop.turn()
    assert done == ["a", "a", "b"]


def test_the_queue_starts_again_after_it_was_empty() -> None:
    loop = Loop()
    turns = Turns(loop.call_soon)
    done: list[str] = []
    for _ in range(2):
        turns.wait(Worker("a", 1, done))
        while loop.soon:
            loop.turn()
    assert done == ["a", "a"]
