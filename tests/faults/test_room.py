"""Room is made: eviction, waiting puts, fragmentation, pins, groups."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

import pytest

from mooncake_client import Client, NoSpace, PinLimitReached, ReplicasImpossible, StoreError
from mooncake_store.testing import payload, seeded, wait_until
from tests.faults.scale import scaled
from tests.faults.support import (
    KIB,
    MIB,
    Background,
    Timed,
    capacity_bytes,
    evicted,
    fill,
    names,
    together,
    used_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from mooncake_store.testing import ProcessCluster

    StartCluster = Callable[..., ProcessCluster]

BLOCK = 64 * KIB


def test_fr_006_probes_of_every_key_do_not_keep_eviction_from_making_room(
    start_cluster: StartCluster,
) -> None:
    """The pool has 32 MiB; the writer puts twice that much while everything is probed."""
    cluster = start_cluster(
        nodes=1,
        node_options={"dram": "32MiB"},
        master_options={"lease-ttl": "2s", "high-watermark": 0.9, "low-watermark": 0.8},
    )
    with Client(cluster.address) as client, Client(cluster.address) as prober:
        held = fill(client, names("held", 8), BLOCK)

        def read_held() -> None:
            got = prober.get_many(held)
            assert got == [payload(key, 1, BLOCK) for key in held]
            prober.forget_locations()

        with Background(read_held, pause_s=0.1):
            keys = fill(client, names("old", 470), BLOCK)
            with (
                Background(lambda: prober.exists_many(keys), pause_s=0.1),
                Background(lambda: prober.probe_many(keys), pause_s=0.1),
            ):
                results = [
                    Timed(lambda key=key: client.put(key, payload(key, 1, BLOCK), deadline_s=3.0))
                    for key in names("new", 1000)
                ]
        failed = [timed.result for timed in results if timed.failed]
        assert len(failed) <= len(results) // 100, failed[:3]
        wait_until(lambda: used_bytes(cluster) < 0.92 * capacity_bytes(cluster), 30)


def test_fr_007_no_put_fails_for_lack_of_room_while_something_can_be_evicted(
    start_cluster: StartCluster,
) -> None:
    """4 clients write 4 times a pool of 64 MiB as fast as they can."""
    cluster = start_cluster(nodes=2, node_options={"dram": "32MiB"})
    size = 256 * KIB

    def write(number: int) -> list[object]:
        with Client(cluster.address) as client:
            return [
                Timed(lambda key=key: client.put(key, payload(key, 1, size), deadline_s=5.0)).result
                for key in names(f"client-{number}", 256)
            ]

    results = together([lambda number=number: write(number) for number in range(4)])
    failures = [one for part in results for one in part if isinstance(one, Exception)]
    assert failures == []
    assert evicted(cluster) > 0


def test_fr_007_more_copies_than_nodes_fail_fast_and_evict_nothing(
    start_cluster: StartCluster,
) -> None:
    cluster = start_cluster(nodes=1, node_options={"dram": "8MiB"})
    with Client(cluster.address) as client:
        keys = fill(client, names("key", 100), 16 * KIB)
        with pytest.raises(ReplicasImpossible):  # at once: a test has no hour
            client.put("two", bytes(BLOCK), replicas=2, deadline_s=3600.0)
        assert evicted(cluster) == 0
        assert all(client.exists_many(keys))


def test_fr_024_small_objects_between_large_ones_strand_no_room(
    start_cluster: StartCluster,
) -> None:
    cluster = start_cluster(nodes=1, node_options={"dram": "64MiB"})
    with Client(cluster.address) as client:
        small = fill(client, names("small", 12_000), 4 * KIB)
        client.remove_many(small[::2])
        for key in names("large", 2):
            assert client.put(key, payload(key, 1, 8 * MIB), deadline_s=5.0).created
        for key in names("large", 2):
            assert client.get(key) == payload(key, 1, 8 * MIB)


def test_fr_024_after_everything_was_removed_one_object_of_nine_tenths_fits(
    start_cluster: StartCluster,
) -> None:
    cluster = start_cluster(nodes=1, node_options={"dram": "64MiB"})
    generator = seeded("sizes")
    with Client(cluster.address) as client:
        for key in names("mixed", 800):
            client.put(key, bytes(generator.randrange(1, 200 * KIB)))
        client.clear()
        assert client.put("one", bytes(int(0.9 * 64 * MIB)), deadline_s=10.0).created


def test_fr_024_a_bimodal_mix_at_70_percent_live_never_fails(start_cluster: StartCluster) -> None:
    """91 % of the puts are below 16 KiB."""
    pool, large = scaled((96, (2 * MIB, 4 * MIB)), (256, (8 * MIB, 16 * MIB)))
    cluster = start_cluster(nodes=1, node_options={"dram": f"{pool}MiB"})
    generator = seeded("bimodal")
    live: list[tuple[str, int]] = []
    with Client(cluster.address) as client:
        for key in names("key", scaled(2_000, 20_000)):
            small = generator.random() < 0.91
            size = generator.randrange(16 * KIB) if small else generator.randrange(*large)
            while live and sum(each for _, each in live) + size > 0.7 * pool * MIB:
                client.remove(live.pop(generator.randrange(len(live)))[0])
            client.put(key, bytes(size), deadline_s=5.0)
            live.append((key, size))


def test_fr_041_a_hard_pin_survives_five_times_the_pool(start_cluster: StartCluster) -> None:
    cluster = start_cluster(
        nodes=1, node_options={"dram": "16MiB"}, master_options={"lease-ttl": "0.5s"}
    )
    with Client(cluster.address) as client:
        client.put("pinned", payload("pinned", 1, BLOCK), pin="hard")
        fill(client, names("flood", 160), 8 * BLOCK)
        assert client.get("pinned") == payload("pinned", 1, BLOCK)
        assert client.unpin("pinned")
        rounds = itertools.count()

        def is_evicted() -> bool:
            fill(client, names(f"round-{next(rounds)}", 8), 8 * BLOCK)
            return not client.exists("pinned")

        wait_until(is_evicted, 30)


def test_fr_041_a_soft_pin_ends_when_promised_however_often_it_is_read(
    start_cluster: StartCluster,
) -> None:
    cluster = start_cluster(nodes=1, node_options={"dram": "16MiB"})
    with Client(cluster.address) as client:
        client.put("soft", payload("soft", 1, BLOCK), pin=2.0)
        pinned_s = time.monotonic()
        lefts: list[float] = []
        while not lefts or time.monotonic() - pinned_s < 1.5:
            assert client.get("soft") is not None
            client.forget_locations()
            info = client.stat("soft")
            assert info is not None
            lefts.append(info.pin_left_s)
        assert lefts == sorted(lefts, reverse=True)
        assert lefts[0] <= 2.0

        def is_over() -> bool:
            found = client.stat("soft")
            return found is None or found.pin_left_s == 0

        wait_until(is_over, pinned_s + 2.2 - time.monotonic())


def test_fr_041_pinning_beyond_the_limit_is_refused_with_a_reason(
    start_cluster: StartCluster,
) -> None:
    cluster = start_cluster(
        nodes=1, node_options={"dram": "8MiB"}, master_options={"pinned-share-max": 0.5}
    )
    with Client(cluster.address) as client:
        with pytest.raises(PinLimitReached, match="pin"):
            for key in names("pinned", 100):
                client.put(key, bytes(256 * KIB), pin="hard")
        pinned = [info.key for info in client.scan("pinned") if info.pin == "hard"]
        assert 10 <= len(pinned) <= 16
        assert client.unpin(pinned[0])
        client.put("again", bytes(128 * KIB), pin="hard")


def test_fr_041_a_pool_full_of_pins_makes_puts_fail_fast(start_cluster: StartCluster) -> None:
    cluster = start_cluster(
        nodes=1, node_options={"dram": "8MiB"}, master_options={"pinned-share-max": 1.0}
    )
    with Client(cluster.address) as client:
        refused: StoreError | None = None
        for key in names("pinned", 200):
            timed = Timed(lambda key=key: client.put(key, bytes(256 * KIB), pin="hard"))
            if timed.failed:
                refused = timed.result
                break
        assert isinstance(refused, (NoSpace, PinLimitReached))
        with pytest.raises(NoSpace):  # at once, as above
            client.put("plain", bytes(512 * KIB), deadline_s=3600.0)


def test_fr_042_a_group_is_evicted_whole(start_cluster: StartCluster) -> None:
    """500 groups of 4 parts of 16 KiB in a pool that holds half of them."""
    cluster = start_cluster(nodes=1, node_options={"dram": "16MiB"})
    with Client(cluster.address) as client:
        for number in range(500):
            for part in range(4):
                key = f"group-{number}/{part}"
                client.put(key, payload(key, 1, 16 * KIB), group=f"group-{number}")
        every = [f"group-{number}/{part}" for number in range(500) for part in range(4)]
        presence: list[bool] = []

        def is_at_rest() -> bool:
            """Eviction goes on to its watermark when the last put is over."""
            before, presence[:] = list(presence), client.exists_many(every)
            return presence == before

        wait_until(is_at_rest, 30)
        counts = [sum(presence[4 * number : 4 * number + 4]) for number in range(500)]
        assert counts.count(4) > 100
        assert counts.count(0) > 100
        assert sum(count not in {0, 4} for count in counts) <= 1
        # The oldest of those that are whole may be the next to go, if that was no rest but a pause.
        whole = [number for number, count in enumerate(counts) if count == 4]
        for number in (whole[len(whole) // 2], 499):
            keys = [f"group-{number}/{part}" for part in range(4)]
            assert client.get_many(keys) == [payload(key, 1, 16 * KIB) for key in keys]


def test_fr_042_objects_put_together_become_visible_together(start_cluster: StartCluster) -> None:
    cluster = start_cluster(nodes=2, node_options={"dram": "32MiB"})
    with Client(cluster.address) as writer, Client(cluster.address) as reader:
        done = 0

        def look() -> None:
            number = done
            keys = [f"set-{number}/{part}" for part in range(4)]
            assert sum(reader.exists_many(keys)) in {0, 4}

        with Background(look) as looking:
            for number in range(300):
                done = number
                writer.put_together([(f"set-{number}/{part}", bytes(2 * KIB)) for part in range(4)])
        assert looking.rounds > 20
