"""The replay of a trace against stores that behave, and against ones that do not."""

from __future__ import annotations

import threading

import pytest

from mooncake_client._cli.replaying import Worker, run_workers
from mooncake_store.errors import NoSpace, StoreError, Unreachable
from mooncake_store.traces import Request

SIZE = 3_000


class DictStore:
    """A store of blocks that is a dict; ``room`` is how many it takes."""

    def __init__(self, room: int = 1_000_000) -> None:
        self.blocks: dict[str, bytes] = {}
        self.room = room
        self.lock = threading.Lock()

    def match(self, keys: list[str], hold_s: float) -> int:
        assert hold_s > 0
        count = 0
        while count < len(keys) and keys[count] in self.blocks:
            count += 1
        return count

    def fetch(self, keys: list[str], buffers: list[bytearray]) -> list[bool]:
        for key, buffer in zip(keys, buffers, strict=True):
            if key in self.blocks:
                buffer[:] = self.blocks[key]
        return [key in self.blocks for key in keys]

    def put(self, keys: list[str], blocks: list[bytes]) -> list[StoreError | None]:
        problems: list[StoreError | None] = []
        with self.lock:
            for key, block in zip(keys, blocks, strict=True):
                full = len(self.blocks) >= self.room
                problems.append(NoSpace("full", key=key) if full else None)
                if not full:
                    self.blocks.setdefault(key, block)
        return problems


def request(*ids: int) -> Request:
    return Request(timestamp_ms=0, input_tokens=0, output_tokens=0, hash_ids=ids)


def run(store: DictStore, *requests: Request, workers: int = 1) -> Worker:
    crew = [Worker(store, "t/", SIZE) for _ in range(workers)]
    run_workers(crew, requests, lambda: None)
    for other in crew[1:]:
        crew[0].tally.merge(other.tally)
    return crew[0]


def test_hits_are_counted_for_blocks_and_for_leading_runs() -> None:
    store = DictStore()
    tally = run(store, request(1, 2, 3), request(1, 2, 4), request(9, 2), request()).tally
    assert (tally.requests, tally.blocks) == (4, 8)
    assert tally.block_hits == 3  # 1 and 2, then 2 behind a missing head
    assert tally.prefix_hits == 2
    assert tally.bytes_fetched == 3 * SIZE
    assert tally.bytes_put == 5 * SIZE
    assert (tally.wrong_bytes, tally.lost_under_hold) == (0, 0)
    assert (len(tally.gets), len(tally.puts)) == (2, 3)


def test_one_flipped_byte_is_one_wrong_byte() -> None:
    store = DictStore()
    run(store, request(1, 2))
    damaged = bytearray(store.blocks["t/2"])
    damaged[1_500] ^= 1
    store.blocks["t/2"] = bytes(damaged)
    assert run(store, request(1, 2)).tally.wrong_bytes == 1


@pytest.mark.parametrize("shift", [1, 64, 512, 1_024])
def test_shifted_and_swapped_blocks_are_wrong(shift: int) -> None:
    store = DictStore()
    run(store, request(1, 2))
    one, two = store.blocks["t/1"], store.blocks["t/2"]
    store.blocks |= {"t/1": one[shift:] + one[:shift], "t/2": one}
    assert one != two
    assert run(store, request(1)).tally.wrong_bytes > SIZE / 2
    assert run(store, request(2)).tally.wrong_bytes > SIZE / 2


def test_a_block_that_was_promised_and_is_gone_is_counted() -> None:
    class Forgetful(DictStore):
        def fetch(self, keys: list[str], buffers: list[bytearray]) -> list[bool]:
            self.blocks.pop("t/1", None)
            return super().fetch(keys, buffers)

    store = Forgetful()
    store.blocks["t/1"] = b"x" * SIZE
    tally = run(store, request(1)).tally
    assert (tally.prefix_hits, tally.block_hits, tally.lost_under_hold) == (1, 0, 1)


def test_a_full_store_is_counted_and_does_not_end_the_replay() -> None:
    tally = run(DictStore(room=2), request(1, 2, 3), request(1, 2, 3)).tally
    assert tally.refusals == {"no_space": 2}
    assert tally.bytes_put == 2 * SIZE


def test_any_other_failure_ends_the_replay() -> None:
    class Broken(DictStore):
        def put(self, keys: list[str], blocks: list[bytes]) -> list[StoreError | None]:
            del blocks
            return [Unreachable("no master")] * len(keys)

    with pytest.raises(Unreachable):
        run(Broken(), *(request(n) for n in range(50)), workers=3)


def test_several_workers_share_the_requests() -> None:
    requests = [request(n, n + 1, n + 2) for n in range(0, 300, 3)]
    store = DictStore()
    tally = run(store, *requests, workers=4).tally
    assert (tally.requests, tally.blocks, len(store.blocks)) == (100, 300, 300)
    assert run(store, *requests, workers=4).tally.block_hits == 300
