from __future__ import annotations

import pytest

from mooncake_storage_node.ssd.core import layout
from mooncake_storage_node.ssd.options import Admission, Options
from mooncake_store.errors import ConfigError
from mooncake_store.limits import GIB, MIB


@pytest.mark.parametrize("capacity", [32 * MIB, 100 * MIB, 1 * GIB, 100 * GIB, 10_000 * GIB])
def test_a_cut_capacity_never_exceeds_itself(capacity: int) -> None:
    index, region, count = layout.plan(capacity)
    assert index + region * count + layout.OVERHEAD_BYTES <= capacity
    assert layout.REGION_COUNT_MIN <= count <= layout.REGION_COUNT_MAX
    assert not region % layout.BLOCK_BYTES
    assert region * (count + 1) + index + layout.OVERHEAD_BYTES > capacity - 2 * region


def test_regions_that_are_there_keep_their_size_when_the_capacity_changes() -> None:
    first = layout.plan(1 * GIB)
    second = layout.plan(3 * GIB, region_bytes=first.region_bytes)
    assert second.region_bytes == first.region_bytes
    assert second.region_count > 2 * first.region_count


@pytest.mark.parametrize("capacity", [0, -1, 1, 32 * MIB - 1, 1 << 60])
def test_a_capacity_that_makes_no_sense_is_refused_with_what_is_possible(capacity: int) -> None:
    with pytest.raises(ConfigError, match="between"):
        layout.plan(capacity)


def test_an_index_that_leaves_no_room_is_refused() -> None:
    with pytest.raises(ConfigError, match="leaves"):
        layout.plan(100 * MIB, index_bytes=95 * MIB)


def test_a_range_over_two_regions_is_two_pieces() -> None:
    assert list(layout.pieces(90, 20, 100)) == [(0, 90, 10), (1, 0, 10)]
    assert list(layout.pieces(100, 100, 100)) == [(1, 0, 100)]
    assert list(layout.pieces(5, 0, 100)) == []


def test_options_name_every_value_that_is_out_of_range() -> None:
    with pytest.raises(ConfigError) as caught:
        Options(carry_share=0.9, readers=0, admission=Admission.ALL).validate()
    assert "carry_share" in str(caught.value)
    assert "readers" in str(caught.value)
    Options().validate()
