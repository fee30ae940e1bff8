"""The table is a dictionary, and regions never give one place to two extents."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mooncake_storage_node.ssd.core.regions import Region, Regions, RegionState
from mooncake_storage_node.ssd.core.table import Entry, Table

VERSIONS = st.integers(1, 40).map(lambda n: n << 40 | n)
REGION_BYTES = 32 * 1024
SIZES = st.integers(1, REGION_BYTES // 512).map(lambda n: n * 512)


class TableModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.table = Table()
        self.model: dict[int, tuple[int, Entry]] = {}
        self.hidden: list[int] = []

    @rule(version=VERSIONS, granules=st.integers(1, 100))
    def put(self, version: int, granules: int) -> None:
        if version in self.model:
            return
        location = self.table.reserve()
        entry = Entry(version, version % 1000 * 512, granules * 512, 1, 1, 50)
        self.table.put(location, entry)
        self.model[version] = (location, entry)

    @rule(version=VERSIONS)
    def hide(self, version: int) -> None:
        found = self.model.pop(version, None)
        assert self.table.find(version) == (found[0] if found else -1)
        if found:
            self.table.hide(found[0])
            self.hidden.append(found[0])

    @precondition(lambda self: self.hidden)
    @rule()
    def give_back(self) -> None:
        self.table.give_back(self.hidden.pop())

    @rule(version=VERSIONS, place=st.integers(0, 1 << 40))
    def move(self, version: int, place: int) -> None:
        if version in self.model:
            location, entry = self.model[version]
            self.table.move(location, place)
            self.model[version] = (location, entry._replace(place=place))

    @invariant()
    def the_table_is_the_model(self) -> None:
        assert self.table.count == len(self.model)
        assert self.table.bytes == sum(entry.size for _, entry in self.model.values())
        locations = {location for location, _ in self.model.values()}
        assert len(locations) == len(self.model)
        assert not locations & set(self.hidden)
        for version, (location, entry) in self.model.items():
            assert self.table.find(version) == location
            assert self.table.get(location, version) == entry


class RegionsModel(RuleBasedStateMachine):
    """Every live extent has bytes of its own, whatever is evicted, broken and mended."""

    def __init__(self) -> None:
        super().__init__()
        self.regions = Regions(REGION_BYTES)
        for number in range(5):
            self.regions.add(number)
        self.live: dict[int, tuple[int, int]] = {}
        self.next = 0

    @rule(sizes=st.lists(SIZES, min_size=1, max_size=4))
    def write(self, sizes: list[int]) -> None:
        run = self.regions.allocate(sizes)
        if run is None:
            assert self.regions.count(RegionState.FREE) == 0
            return
        place = run.place
        for size in sizes[: run.extents]:
            self.regions.attach(self.next, place, size)
            self.live[self.next] = (place, size)
            self.next += 1
            place += size
        assert place <= run.place + run.size
        self.regions.ended(run)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        location = data.draw(st.sampled_from(sorted(self.live)))
        self.regions.detach(location, *self.live.pop(location))

    @rule()
    def evict(self) -> None:
        region = self.regions.victim()
        if region is None:
            return
        for location in [*region.locations, region.straddler]:
            found = self.live.get(location)
            if found and self._touches(region, *found):
                self.regions.detach(location, *self.live.pop(location))
        assert self.regions.free(region)

    @rule(number=st.integers(0, 4))
    def break_region(self, number: int) -> None:
        if self.regions[number].state is not RegionState.FREE:
            self.regions.break_(number)

    @rule(number=st.integers(0, 4))
    def mend(self, number: int) -> None:
        self.regions.mend(number)

    @invariant()
    def no_two_extents_share_a_byte(self) -> None:
        spans = sorted(self.live.values())
        for (place, size), (following, _) in pairwise(spans):
            assert place + size <= following

    @invariant()
    def regions_know_what_lies_in_them(self) -> None:
        for region in self.regions.all():
            inside = [s for p, s in self.live.values() if p // REGION_BYTES == region.number]
            assert region.live_count == len(inside)
            assert region.live_bytes == sum(inside)
            if region.state is RegionState.FREE:
                assert region.is_unused
        opened = [r for r in self.regions.all() if r.state is RegionState.OPEN]
        assert len(opened) <= 1

    @staticmethod
    def _touches(region: Region, place: int, size: int) -> bool:
        first, last = place // REGION_BYTES, (place + size - 1) // REGION_BYTES
        return first <= region.number <= last


TestTable = TableModel.TestCase
TestRegions = RegionsModel.TestCase
