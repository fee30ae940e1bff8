from __future__ import annotations

import pytest

from mooncake_storage_node.ssd.core.regions import Regions, RegionState

SIZE = 64 * 1024
BLOCK = 4096


def make(count: int) -> Regions:
    regions = Regions(SIZE)
    for number in range(count):
        regions.add(number)
    return regions


def put(regions: Regions, location: int, size: int) -> int:
    run = regions.allocate([size])
    assert run is not None
    regions.attach(location, run.place, size)
    regions.ended(run)
    return run.place


def test_runs_begin_at_blocks_and_follow_each_other() -> None:
    regions = make(2)
    assert put(regions, 0, 512) == 0
    assert put(regions, 1, 5000 // 512 * 512) == BLOCK
    assert put(regions, 2, 512) == 3 * BLOCK


def test_a_run_takes_as_many_extents_as_fit() -> None:
    run = make(1).allocate([30_720, 30_720, 30_720])
    assert run is not None
    assert run.extents == 2
    assert run.size == 61_440


def test_an_extent_that_does_not_fit_goes_on_in_the_next_file() -> None:
    regions = make(3)
    put(regions, 0, 40_960)
    place = put(regions, 1, 40_960)
    assert place == 40_960
    assert regions[1].straddler == 1
    assert regions[1].fill == 2 * 40_960 - SIZE + -(2 * 40_960 - SIZE) % BLOCK
    assert regions[0].state is RegionState.SEALED
    assert regions[1].state is RegionState.OPEN


def test_without_a_free_neighbour_an_extent_begins_in_another_region() -> None:
    regions = Regions(SIZE)
    regions.add(0)
    regions.add(5)
    put(regions, 0, 40_960)
    assert put(regions, 1, 40_960) == 5 * SIZE


def test_no_region_is_free() -> None:
    regions = make(1)
    put(regions, 0, SIZE)
    assert regions.allocate([512]) is None
    assert not regions.fits(SIZE + 1)
    assert not regions.fits(0)
    assert regions.fits(SIZE)


def test_the_end_of_a_region_is_kept_while_its_neighbour_may_become_free() -> None:
    regions = make(1)
    put(regions, 0, 40_960)
    assert regions.allocate([40_960]) is None
    assert regions.is_starved
    regions.add(1)
    assert put(regions, 1, 40_960) == 40_960
    assert not regions.is_starved


def test_the_oldest_region_is_given_up_first() -> None:
    regions = make(4)
    for location in range(3):
        put(regions, location, SIZE)
    victims = [regions.victim() for _ in range(4)]
    assert [v.number if v else None for v in victims] == [0, 1, None, None]


def test_an_empty_region_is_given_up_before_an_older_full_one() -> None:
    regions = make(4)
    places = [put(regions, location, SIZE) for location in range(4)]
    regions.allocate([512])
    regions.detach(2, places[2], SIZE)
    victim = regions.victim()
    assert victim is not None
    assert victim.number == 2
    assert regions.free(victim)


def test_a_region_is_free_only_when_its_readers_have_left() -> None:
    regions = make(3)
    place = put(regions, 0, SIZE)
    put(regions, 1, SIZE)
    put(regions, 2, 512)
    regions.pin(place, SIZE)
    victim = regions.victim()
    assert victim is not None
    regions.detach(0, place, SIZE)
    assert not regions.free(victim)
    regions.unpin(place, SIZE)
    assert regions.free(victim)
    assert victim.state is RegionState.FREE


def test_a_region_that_is_written_is_no_victim() -> None:
    regions = make(2)
    run = regions.allocate([SIZE])
    assert run is not None
    put(regions, 1, 512)
    assert regions.victim() is None
    regions.ended(run)
    assert regions.victim() is regions[0]


def test_a_broken_region_is_skipped_until_it_is_mended() -> None:
    regions = make(3)
    put(regions, 0, 512)
    regions.break_(0)
    assert put(regions, 1, 512) == SIZE
    regions.break_(1)
    assert put(regions, 2, SIZE) == 2 * SIZE
    assert regions.allocate([512]) is None
    assert regions.victim() is None or regions[2].state is RegionState.EVICTING
    regions.mend(0)
    assert regions[0].state is RegionState.SEALED
    regions.detach(1, SIZE, 512)
    regions.mend(1)
    assert regions[1].state is RegionState.FREE


def test_restored_regions_go_on_where_they_were() -> None:
    regions = make(3)
    for location, place in ((0, SIZE), (1, 2 * SIZE)):
        regions.attach(location, place, 512)
        regions.restore_fill(place, 512)
    regions.restore({1: 8, 2: 7})
    assert put(regions, 2, 512) == SIZE + BLOCK
    assert regions[2].state is RegionState.SEALED
    assert regions[0].state is RegionState.FREE
    assert put(regions, 3, SIZE) == 0
    assert regions[0].sequence == 9


def test_the_open_region_can_be_sealed_early() -> None:
    regions = make(2)
    assert not regions.seal_open()
    put(regions, 0, 512)
    assert regions.seal_open()
    assert regions.victim() is regions[0]


@pytest.mark.parametrize("hole", [0, 1, 2])
def test_numbers_of_regions_that_are_gone_are_used_again(hole: int) -> None:
    regions = make(3)
    regions.remove(hole)
    assert regions.unused_number() == hole
    assert hole not in regions
