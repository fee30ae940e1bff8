"""The extent allocator against a plain list of what is taken."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mooncake_master.core.allocator import STEPS, Space, size_class
from mooncake_master.core.config import CoreConfig
from mooncake_master.core.nodes import Node, Segment
from mooncake_master.core.records import EDGE, Extent
from mooncake_store.limits import GRANULE_BYTES
from mooncake_store.wire.control import Register, SegmentRecord

GRANULES = 4_000


def open_space(granules: int = GRANULES) -> Space:
    register = Register("n", "0" * 32, "h", 1, "", {}, ())
    segment = Segment(Node(0, register, CoreConfig()), SegmentRecord(1, granules * GRANULE_BYTES))
    segment.space.open()
    return segment.space


class AllocatorModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.space = open_space()
        self.taken: list[Extent] = []

    @rule(granules=st.one_of(st.integers(1, 40), st.integers(1, GRANULES)))
    def allocate(self, granules: int) -> None:
        extent = self.space.allocate(granules, EDGE)
        if extent is None:
            largest = max((size for _, size in self.holes()), default=0)
            # A hole of the wanted class may be overlooked; a larger class never is.
            assert size_class(largest) <= size_class(granules)
            return
        assert extent.granules == granules
        for other in self.taken:
            apart = extent.offset >= other.after.offset or other.offset >= extent.after.offset
            assert apart, "two live extents overlap"
        self.taken.append(extent)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.taken:
            self.space.release(self.taken.pop(data.draw(st.integers(0, len(self.taken) - 1))))

    @rule(data=st.data(), keep=st.integers(1, 30))
    def trim(self, data: st.DataObject, keep: int) -> None:
        if self.taken:
            extent = data.draw(st.sampled_from(self.taken))
            keep = min(keep, extent.granules)
            self.space.trim(extent, keep)
            assert extent.granules == keep

    @rule()
    def release_all(self) -> None:
        while self.taken:
            self.space.release(self.taken.pop())
        whole = self.space.allocate(GRANULES, EDGE)
        assert whole is not None, "all was released, and yet it is not one piece again"
        self.space.release(whole)

    def holes(self) -> list[tuple[int, int]]:
        return [(e.offset, e.granules) for e in self.space.extents() if e.owner is None]

    @invariant()
    def it_tiles_the_segment(self) -> None:
        at = 0
        free_before = False
        for extent in self.space.extents():
            assert extent.offset == at
            assert not (extent.owner is None and free_before)
            free_before = extent.owner is None
            at += extent.granules
        assert at == GRANULES
        assert self.space.free_granules == GRANULES - sum(e.granules for e in self.taken)
        self.space.check()


TestAllocator = AllocatorModel.TestCase
TestAllocator.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


def test_classes_ascend_and_are_at_most_a_32nd_wide() -> None:
    previous = -1
    for granules in [
        *range(1, 5_000),
        *((1 << power) + d for power in range(13, 38) for d in (-1, 0, 1)),
    ]:
        number = size_class(granules)
        assert number >= previous
        previous = number
    for granules in (40, 1_000, 123_456, 1 << 30):
        first = next(g for g in range(granules, 0, -1) if size_class(g - 1) != size_class(granules))
        assert size_class(first + first // STEPS) > size_class(first)


def test_claims_in_ascending_order_leave_gaps_free() -> None:
    register = Register("n", "0" * 32, "h", 1, "", {}, ())
    segment = Segment(Node(0, register, CoreConfig()), SegmentRecord(1, 100 * GRANULE_BYTES))
    space = segment.space
    assert space.claim(10, 5, EDGE) is not None
    assert space.claim(12, 5, EDGE) is None, "it overlaps the one before"
    assert space.claim(15, 5, EDGE) is not None
    assert space.claim(90, 11, EDGE) is None, "it ends behind the segment"
    assert space.claim(90, 10, EDGE) is not None
    assert space.free_granules == 10 + 70
    space.check()
    space.open()
    assert space.free_granules == 10 + 70, "the last claim ends where the segment ends"
    space.check()


def test_a_segment_that_is_not_listed_to_its_end_gives_nothing_from_there() -> None:
    register = Register("n", "0" * 32, "h", 1, "", {}, ())
    segment = Segment(Node(0, register, CoreConfig()), SegmentRecord(1, 100 * GRANULE_BYTES))
    space = segment.space
    space.claim(10, 5, EDGE)
    assert space.allocate(11, EDGE) is None
    space.open()
    assert space.allocate(85, EDGE) is not None


def test_small_objects_come_from_the_low_end_and_large_ones_from_the_high_end() -> None:
    space = open_space(100_000)
    small = [space.allocate(8, EDGE) for _ in range(10)]
    large = [space.allocate(2_000, EDGE) for _ in range(10)]
    assert max(e.offset for e in small if e) < min(e.offset for e in large if e)
