from __future__ import annotations

from mooncake_storage_node.ssd.core import records
from mooncake_storage_node.ssd.core.admission import WearState
from mooncake_storage_node.ssd.core.records import EntryRecord, Identity, Seal
from mooncake_storage_node.ssd.core.table import Entry

NAMES = b"n" * 70
RECORD = EntryRecord(Entry(1 << 50, 4096, 1024, 9, 3, len(NAMES)), 900, 77, b"f" * 16, NAMES)


def body_of(pair: tuple[bytes, bytes]) -> bytes | None:
    return records.open_record(*pair)


def test_an_entry_is_read_as_it_was_packed() -> None:
    key, value = records.pack_entry(258, RECORD)
    assert records.unpack_entry(key, value) == (258, RECORD)
    entry = RECORD.entry
    assert records.location_of(key) == 258
    row = (entry.version, entry.place, entry.size // 512, entry.slot, len(NAMES), entry.epoch)
    assert records.row_of(key, value) == (records.check_of(value), row)
    assert key < records.entry_key(259) < records.entry_key(1 << 31)


def test_every_flipped_bit_of_an_entry_is_noticed() -> None:
    key, value = records.pack_entry(258, RECORD)
    for at in range(len(value)):
        bad = bytearray(value)
        bad[at] ^= 1 << at % 8
        assert records.unpack_entry(key, bytes(bad)) is None
        assert records.row_of(key, bytes(bad))[1] is None
    assert records.unpack_entry(records.entry_key(259), value) is None
    for cut in range(len(value)):
        assert records.unpack_entry(key, value[:cut]) is None
        assert records.row_of(key, value[:cut])[1] is None


def test_records_that_are_whole_and_make_no_sense_are_refused() -> None:
    key = records.entry_key(1)
    assert records.unpack_entry(key, records.close_record(key, b"short")) is None
    assert records.row_of(key, records.close_record(key, b"short"))[1] is None
    odd = b"e123"
    assert records.row_of(odd, records.close_record(odd, bytes(100)))[1] is None
    assert records.unpack_seal(records.close_record(records.SEAL_KEY, b"x")) is None
    assert records.unpack_seal(None) is None
    assert records.unpack_identity(b"x") is None
    assert records.unpack_wear(b"x") is None
    assert records.unpack_epochs(b"x") == {}
    assert records.unpack_region(b"r1", b"x") is None


def test_the_other_records_are_read_as_they_were_packed() -> None:
    seal = Seal(3, 2, 1 << 63)
    assert records.unpack_seal(records.pack_seal(seal)) == seal
    identity = Identity(b"s" * 16, 1 << 62)
    assert records.unpack_identity(body_of(records.pack_identity(identity))) == identity
    epochs = {0: 1, 4095: (1 << 32) - 1}
    assert records.unpack_epochs(body_of(records.pack_epochs(epochs))) == epochs
    state = WearState(20_000, 1, 2, 3, -4.5, 5.5)
    assert records.unpack_wear(body_of(records.pack_wear(state))) == state
    key, value = records.pack_region(63, 1 << 40)
    body = records.open_record(key, value)
    assert body is not None
    assert records.unpack_region(key, body) == (63, 1 << 40)
