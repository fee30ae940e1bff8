from __future__ import annotations

from mooncake_storage_node.ssd.core.rows import BLOCK_ROWS, GAP_ROWS, RowBuilder
from mooncake_storage_node.ssd.core.table import HITS_MAX, Entry, Table


def entry(version: int, place: int = 0, size: int = 512, epoch: int = 1) -> Entry:
    return Entry(version, place, size, 3, epoch, 70)


def filled(*entries: Entry) -> Table:
    table = Table()
    for one in entries:
        table.put(table.reserve(), one)
    return table


def test_an_entry_comes_back_as_it_was_put() -> None:
    table = filled(entry(7, 1024, 2048), entry(1 << 62, 1 << 45, 1 << 34))
    assert table.at(table.find(7)) == entry(7, 1024, 2048)
    assert table.at(table.find(1 << 62)) == entry(1 << 62, 1 << 45, 1 << 34)
    assert table.count == 2
    assert table.bytes == 2048 + (1 << 34)


def test_only_the_version_that_is_there_is_found() -> None:
    table = filled(entry(7))
    assert table.get(0, 7) is not None
    assert table.get(0, 8) is None
    assert table.get(0, 0) is None
    assert table.get(-1, 7) is None
    assert table.get(1, 7) is None
    assert table.find(8) == -1
    assert table.find(0) == -1


def test_a_hidden_entry_is_unreadable_and_its_location_stays_reserved() -> None:
    table = filled(entry(7))
    table.hide(0)
    assert table.get(0, 7) is None
    assert table.find(7) == -1
    assert table.count == table.bytes == 0
    assert table.reserve() == 1
    table.give_back(0)
    assert table.reserve() == 0


def test_hits_are_counted_up_to_a_bound_and_end_when_the_entry_moves() -> None:
    table = filled(entry(7))
    for _ in range(HITS_MAX + 10):
        table.touch(0)
    assert table.hits(0) == HITS_MAX
    table.set_checked(0)
    assert table.hits(0) == HITS_MAX
    assert table.is_checked(0)
    table.move(0, 4096)
    assert table.hits(0) == 0
    assert not table.is_checked(0)
    assert table.at(0) == entry(7, 4096)


def test_entries_of_an_epoch_that_is_over_are_found() -> None:
    table = filled(entry(1, epoch=1), entry(2, epoch=2), entry(3, epoch=3))
    epochs = [0, 0, 0, 3]
    assert list(table.dead(epochs, 0, 100)) == [(0, 1), (1, 2)]
    assert list(table.dead(epochs, 1, 2)) == [(1, 2)]


def restored(rows: dict[int, Entry]) -> Table:
    table, builder = Table(), RowBuilder()
    for location, one in sorted(rows.items()):
        fields = (one.version, one.place, one.size // 512, one.slot, one.name_bytes, one.epoch)
        block = builder.add(location, fields)
        if block is not None:
            table.restore(block)
    table.restore(builder.finish())
    return table


def test_restored_rows_keep_their_locations_and_leave_the_others_free() -> None:
    rows = {2: entry(20), 5: entry(50, 512, 1024), 5 + 2 * GAP_ROWS: entry(1 << 60)}
    rows |= {location: entry(location << 20) for location in range(1000, 1000 + BLOCK_ROWS + 10)}
    table = restored(rows)
    assert table.seal() == []
    assert table.count == len(rows)
    assert table.bytes == sum(one.size for one in rows.values())
    assert table.names_bytes() == 70 * len(rows)
    for location, one in rows.items():
        assert table.at(location) == one
        assert table.find(one.version) == location
    found = {location: (version, place, size) for location, version, place, size in table.rows()}
    assert found == {at: (one.version, one.place, one.size) for at, one in rows.items()}
    taken = [table.reserve() for _ in range(len(table) - len(rows))]
    assert set(taken) == set(range(len(table))) - rows.keys()
    assert taken == sorted(taken)


def test_of_rows_with_one_version_the_first_is_kept() -> None:
    table = restored({1: entry(7), 3: entry(7, 512), 4: entry(8)})
    assert table.seal() == [3]
    assert table.find(7) == 1
    assert table.count == 2
    assert table.at(3) is None


def test_no_rows_are_restored_from_nothing() -> None:
    table = Table()
    table.restore(RowBuilder().finish())
    assert table.seal() == []
    assert table.reserve() == 0


def test_an_entry_takes_less_than_64_bytes_of_memory() -> None:
    table = Table()
    for version in range(1, 50_001):
        table.put(table.reserve(), entry(version << 20))
    assert table.memory_bytes / 50_000 < 64
