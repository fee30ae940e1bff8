"""What every data path promises, whatever it is made of."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from mooncake_store import extent
from mooncake_store.deadline import Deadline
from mooncake_store.errors import (
    ChecksumMismatch,
    Closed,
    DeadlineExceeded,
    InvalidArgument,
    StaleExtent,
    StaleTerm,
    Unreachable,
)
from mooncake_store.transport import ReadTask

from .in_place import InPlaceContract
from .planting import CHUNK, FREED, GRANULE, Ground, Planted
from .taking import TakingContract
from .tasks import (
    EPOCH,
    INCARNATION,
    MIB,
    PLENTY_S,
    POOL_BYTES,
    SLOT,
    TERM,
    Reading,
    identity_of,
    make,
    next_version,
    writing_of,
)

if TYPE_CHECKING:
    from mooncake_store.transport import DataPath

SIZES = (0, 1, 63, 64, 511, 512, 513, 4095, 4096, 4097, CHUNK - 1, CHUNK, CHUNK + 1,
         2 * CHUNK, MIB + 1, 5 * MIB - 3)  # fmt: skip


class DataPathContract(InPlaceContract, TakingContract):
    """Inherit, and give fixtures ``ground`` (the memory) and ``path`` (what is tested)."""

    @pytest.fixture(autouse=True)
    def _reset(self, ground: Ground) -> None:
        ground.set_epoch(SLOT, EPOCH)
        ground.set_term(TERM)

    def read(self, path: DataPath, *readings: Reading, deadline_s: float = PLENTY_S) -> None:
        path.read([reading.task for reading in readings], Deadline(deadline_s))

    # --- whole reads ----------------------------------------------------------------------------

    @pytest.mark.parametrize("verify", [True, False])
    @pytest.mark.parametrize("size", SIZES)
    def test_a_planted_object_is_read_exactly(
        self, ground: Ground, path: DataPath, size: int, *, verify: bool
    ) -> None:
        planted = make(size)
        reading = Reading(planted, ground.plant(planted), verify=verify)
        self.read(path, reading)
        reading.check()

    @pytest.mark.parametrize("verify", [True, False])
    def test_an_object_over_64_mib_is_read_exactly(
        self, ground: Ground, path: DataPath, *, verify: bool
    ) -> None:
        planted = make(64 * MIB + 1)
        reading = Reading(planted, ground.plant(planted), verify=verify)
        self.read(path, reading)
        reading.check()

    @pytest.mark.parametrize("verify", [True, False])
    @pytest.mark.parametrize("size", [1000, CHUNK, 3 * CHUNK + 77])
    def test_scattered_targets_take_the_payload_in_order(
        self, ground: Ground, path: DataPath, size: int, *, verify: bool
    ) -> None:
        planted = make(size)
        offset = ground.plant(planted)
        for parts in ([1], [0, 1, 0, 998], [size // 2], [size // 3] * 2, [7] * 100):
            reading = Reading(planted, offset, parts=parts, verify=verify)
            self.read(path, reading)
            reading.check()

    def test_more_targets_than_one_system_call_takes(self, ground: Ground, path: DataPath) -> None:
        planted = make(300_000)
        reading = Reading(planted, ground.plant(planted), parts=[100] * 2999)
        self.read(path, reading)
        reading.check()

    def test_a_read_can_name_the_write_that_made_a_copy(
        self, ground: Ground, path: DataPath
    ) -> None:
        planted = make(5000)
        attempt = next_version()
        offset = ground.plant(planted, attempt=attempt)
        reading = Reading(planted, offset)
        reading.task.attempt = attempt
        stale = Reading(planted, offset)
        self.read(path, reading, stale)
        reading.check()
        assert isinstance(stale.task.error, StaleExtent)

    # --- ranges ---------------------------------------------------------------------------------

    @pytest.mark.parametrize("verify", [True, False])
    @pytest.mark.parametrize("size", [1, 5000, CHUNK, 4 * CHUNK + 1234])
    def test_every_kind_of_range_is_read_exactly(
        self, ground: Ground, path: DataPath, size: int, *, verify: bool
    ) -> None:
        planted = make(size)
        offset = ground.plant(planted)
        edges = {0, 1, size // 2, size - 1, size, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK}
        points = sorted(edge for edge in edges if 0 <= edge <= size)
        readings = [
            Reading(planted, offset, start, end - start, verify=verify)
            for start in points
            for end in points
            if start <= end
        ]
        self.read(path, *readings)
        for reading in readings:
            reading.check()

    def test_a_range_goes_into_scattered_targets(self, ground: Ground, path: DataPath) -> None:
        planted = make(4 * CHUNK)
        reading = Reading(
            planted, ground.plant(planted), 100, 2 * CHUNK, parts=[CHUNK - 100, 1, CHUNK]
        )
        self.read(path, reading)
        reading.check()

    def test_damage_outside_of_the_chunks_of_a_range_does_not_matter(
        self, ground: Ground, path: DataPath
    ) -> None:
        planted = make(4 * CHUNK)
        offset = ground.plant(planted)
        ground.flip(offset + 64 + 3 * CHUNK + 5)
        good = Reading(planted, offset, 10, CHUNK)
        bad = Reading(planted, offset, 3 * CHUNK - 1, 100)
        self.read(path, good, bad)
        good.check()
        assert isinstance(bad.task.error, ChecksumMismatch)

    # --- what must not be given out -------------------------------------------------------------

    @pytest.mark.parametrize("verify", [True, False])
    @pytest.mark.parametrize(
        "change",
        [
            {"fingerprint": b"another key's pr"},
            {"version": 1},
            {"version": (1 << 62) + 1},
            {"epoch": EPOCH + 1},
            {"slot": SLOT + 1},
        ],
    )
    def test_another_identity_than_the_one_wanted_is_stale(
        self, ground: Ground, path: DataPath, change: dict[str, object], *, verify: bool
    ) -> None:
        planted = make(5000)
        reading = Reading(planted, ground.plant(planted), verify=verify)
        reading.task.identity = reading.task.identity._replace(**change)  # type: ignore[arg-type]  # by name
        self.read(path, reading)
        assert isinstance(reading.task.error, StaleExtent)
        assert not reading.task.verified

    @pytest.mark.parametrize("size", [5000, 2 * CHUNK])
    def test_another_length_than_the_one_wanted_is_refused(
        self, ground: Ground, path: DataPath, size: int
    ) -> None:
        planted = make(size)
        reading = Reading(planted, ground.plant(planted), 0, 100)
        for length in (size - 1, size + 1, 1 << 40):
            reading.task.identity = reading.task.identity._replace(length=length)
            self.read(path, reading)
            assert isinstance(reading.task.error, (ChecksumMismatch, InvalidArgument))

    @pytest.mark.parametrize("verify", [True, False])
    def test_a_raised_epoch_ends_every_older_object(
        self, ground: Ground, path: DataPath, *, verify: bool
    ) -> None:
        planted = make(5000)
        reading = Reading(planted, ground.plant(planted), verify=verify)
        ground.set_epoch(SLOT, EPOCH + 1)
        self.read(path, reading)
        assert isinstance(reading.task.error, StaleExtent)

    @pytest.mark.parametrize("verify", [True, False])
    def test_a_freed_extent_is_stale_though_its_bytes_are_all_there(
        self, ground: Ground, path: DataPath, *, verify: bool
    ) -> None:
        planted = make(5000)
        offset = ground.plant(planted)
        ground.set_entry(offset, planted.version | FREED)
        reading = Reading(planted, offset, verify=verify)
        self.read(path, reading)
        assert isinstance(reading.task.error, StaleExtent)

    def test_a_freed_extent_whose_fence_was_lost_still_has_no_header(
        self, ground: Ground, path: DataPath
    ) -> None:
        planted = make(5000)
        offset = ground.plant(planted)
        ground.write(offset, bytes(64))
        reading = Reading(planted, offset)
        self.read(path, reading)
        assert isinstance(reading.task.error, StaleExtent)

    @pytest.mark.parametrize("size", [1, 4096, CHUNK + 1, 3 * CHUNK])
    def test_one_flipped_bit_anywhere_in_the_payload_is_found(
        self, ground: Ground, path: DataPath, size: int
    ) -> None:
        planted = make(size)
        offset = ground.plant(planted)
        for at in {0, size // 2, size - 1, min(size - 1, CHUNK)}:
            ground.flip(offset + 64 + at)
            whole = Reading(planted, offset)
            byte = Reading(planted, offset, at, 1)
            self.read(path, whole, byte)
            assert isinstance(whole.task.error, ChecksumMismatch)
            assert isinstance(byte.task.error, ChecksumMismatch)
            assert not whole.task.verified
            ground.flip(offset + 64 + at)
        again = Reading(planted, offset)
        self.read(path, again)
        again.check()

    @pytest.mark.parametrize("verify", [True, False])
    def test_one_flipped_bit_anywhere_in_the_header_is_found(
        self, ground: Ground, path: DataPath, *, verify: bool
    ) -> None:
        planted = make(5000)
        offset = ground.plant(planted)
        for at in range(64):
            ground.flip(offset + at)
            reading = Reading(planted, offset, verify=verify)
            self.read(path, reading)
            assert isinstance(reading.task.error, (StaleExtent, ChecksumMismatch, InvalidArgument))
            ground.flip(offset + at)

    def test_a_flipped_bit_in_the_chunk_table_fails_what_needs_the_table(
        self, ground: Ground, path: DataPath
    ) -> None:
        planted = make(3 * CHUNK)
        offset = ground.plant(planted)
        ground.flip(offset + 64 + 3 * CHUNK + 9)
        part = Reading(planted, offset, CHUNK, 10)
        self.read(path, part)
        assert isinstance(part.task.error, ChecksumMismatch)

    def test_a_header_that_promises_more_than_the_segment_has_is_refused(
        self, ground: Ground, path: DataPath
    ) -> None:
        planted = make(1000)
        huge = Planted(planted.key, planted.version, SLOT, EPOCH, b"")
        offset = ground.plant(planted)
        body = struct.pack(
            "<4sHHIIQQQ16s", b"MKV1", 1, SLOT, EPOCH, 40, planted.version, 1 << 33, 5,
            huge.fingerprint,
        )  # fmt: skip
        ground.write(offset, body + struct.pack("<Q", extent._hash(body)))
        task = ReadTask(
            INCARNATION, offset, identity_of(planted)._replace(length=1 << 33), 0, 0, (),
        )  # fmt: skip
        path.read([task], Deadline(PLENTY_S))
        assert isinstance(task.error, (ChecksumMismatch, InvalidArgument))

    def test_an_unknown_incarnation_is_stale(self, ground: Ground, path: DataPath) -> None:
        planted = make(100)
        reading = Reading(planted, ground.plant(planted))
        reading.task.incarnation = 99
        self.read(path, reading)
        assert isinstance(reading.task.error, StaleExtent)

    @pytest.mark.parametrize(
        "offset", [1, 511, POOL_BYTES, POOL_BYTES - 512, POOL_BYTES + 512, 1 << 50]
    )
    def test_an_offset_where_nothing_can_be_is_refused(
        self, ground: Ground, path: DataPath, offset: int
    ) -> None:
        del ground
        reading = Reading(make(100), offset)
        self.read(path, reading)
        assert isinstance(reading.task.error, (StaleExtent, InvalidArgument))

    def test_targets_that_do_not_fit_the_range_are_refused_untouched(
        self, ground: Ground, path: DataPath
    ) -> None:
        planted = make(1000)
        offset = ground.plant(planted)
        for start, length, room in ((0, 1000, 999), (0, 1000, 1001), (1, 1000, 1000), (-1, 5, 5)):
            buffer = bytearray(b"\xa5" * room)
            task = ReadTask(
                INCARNATION, offset, identity_of(planted), start, length, [memoryview(buffer)]
            )
            path.read([task], Deadline(PLENTY_S))
            assert isinstance(task.error, InvalidArgument)
            assert buffer == b"\xa5" * room

    def test_a_read_only_target_is_refused(self, ground: Ground, path: DataPath) -> None:
        planted = make(10)
        task = ReadTask(
            INCARNATION, ground.plant(planted), identity_of(planted), 0, 10, [memoryview(bytes(10))]
        )
        path.read([task], Deadline(PLENTY_S))
        assert isinstance(task.error, InvalidArgument)

    def test_one_bad_task_of_a_batch_costs_its_neighbours_nothing(
        self, ground: Ground, path: DataPath
    ) -> None:
        readings = []
        for number in range(300):
            planted = make(1 + 997 * (number % 90), key=f"key {number}")
            offset = ground.plant(planted)
            readings.append(Reading(planted, offset, verify=bool(number % 3)))
            if number % 7 == 0:
                ground.set_entry(offset, 0)
            elif number % 11 == 0:
                ground.flip(offset + 64)
        self.read(path, *readings)
        for number, reading in enumerate(readings):
            if number % 7 == 0:
                assert isinstance(reading.task.error, StaleExtent)
            elif number % 11 == 0 and reading.task.verify:
                assert isinstance(reading.task.error, ChecksumMismatch)
            elif number % 11:
                reading.check()

    def test_a_batch_larger_than_one_request_takes(self, ground: Ground, path: DataPath) -> None:
        readings = []
        for number in range(2500):
            planted = make(200 + number % 300, key=f"key {number}")
            readings.append(Reading(planted, ground.plant(planted), number % 50, 150))
        self.read(path, *readings)
        for reading in readings:
            reading.check()

    def test_an_empty_batch_is_nothing(self, ground: Ground, path: DataPath) -> None:
        del ground
        path.read([], Deadline(PLENTY_S))
        path.write([], Deadline(PLENTY_S))

    def test_a_task_can_be_used_again(self, ground: Ground, path: DataPath) -> None:
        planted = make(100)
        reading = Reading(planted, 512 * 1000)
        ground.set_entry(512 * 1000, 0)
        self.read(path, reading)
        assert isinstance(reading.task.error, StaleExtent)
        reading.task.offset = ground.plant(planted)
        self.read(path, reading)
        reading.check()

    # --- writes ---------------------------------------------------------------------------------

    @pytest.mark.parametrize("size", SIZES)
    def test_what_is_written_lies_there_byte_for_byte(
        self, ground: Ground, path: DataPath, size: int
    ) -> None:
        planted = make(size)
        offset = ground.room(len(planted.extent))
        ground.set_entry(offset, 0)
        task = writing_of(planted, offset)
        path.write([task], Deadline(PLENTY_S))
        assert task.error is None
        assert ground.read(offset, len(planted.extent)) == planted.extent
        assert ground.entry(offset) == planted.version

    def test_an_object_over_64_mib_is_written_exactly(self, ground: Ground, path: DataPath) -> None:
        planted = make(64 * MIB + 1)
        offset = ground.room(len(planted.extent))
        ground.set_entry(offset, 0)
        task = writing_of(planted, offset, [1, 5 * MIB + 3])
        path.write([task], Deadline(PLENTY_S))
        assert task.error is None
        assert ground.read(offset, len(planted.extent)) == planted.extent

    def test_parts_are_gathered_in_order(self, ground: Ground, path: DataPath) -> None:
        planted = make(700_000)
        offset = ground.room(len(planted.extent))
        ground.set_entry(offset, 0)
        task = writing_of(planted, offset, [0, 1, 1, 5000, 70_000, *range(80_000, 82_000)])
        path.write([task], Deadline(PLENTY_S))
        assert task.error is None
        assert ground.read(offset, len(planted.extent)) == planted.extent

    def test_nothing_beside_the_extent_changes(self, ground: Ground, path: DataPath) -> None:
        planted = make(1000)
        size = len(planted.extent)
        offset = ground.room(size + 2 * GRANULE) + GRANULE
        ground.set_entry(offset, 0)
        ground.write(offset - GRANULE, b"\x5a" * (size + 2 * GRANULE))
        path.write([writing_of(planted, offset)], Deadline(PLENTY_S))
        assert ground.read(offset - GRANULE, GRANULE) == b"\x5a" * GRANULE
        assert ground.read(offset + size, GRANULE) == b"\x5a" * GRANULE
        assert ground.read(offset, size) == planted.extent

    def test_a_newer_version_replaces_what_was_freed_before(
        self, ground: Ground, path: DataPath
    ) -> None:
        older, newer = make(1000), make(2000)
        offset = ground.room(4096)
        ground.set_entry(offset, older.version | FREED)
        task = writing_of(newer, offset)
        path.write([task], Deadline(PLENTY_S))
        assert task.error is None
        assert ground.entry(offset) == newer.version

    @pytest.mark.parametrize("size", [10, 5000, 3 * MIB])
    def test_a_freed_attempt_is_refused_and_leaves_no_trace(
        self, ground: Ground, path: DataPath, size: int
    ) -> None:
        planted = make(size)
        offset = ground.room(len(planted.extent))
        for fence in (planted.version | FREED, planted.version + 1 | FREED, planted.version + 5):
            ground.write(offset, bytes(len(planted.extent)))
            ground.set_entry(offset, fence)
            task = writing_of(planted, offset)
            path.write([task], Deadline(PLENTY_S))
            assert isinstance(task.error, StaleTerm)
            assert ground.entry(offset) == fence
            assert not any(ground.read(offset, len(planted.extent)))

    def test_an_attempt_of_an_older_reign_is_refused(self, ground: Ground, path: DataPath) -> None:
        planted = make(1000)
        offset = ground.room(4096)
        ground.set_entry(offset, 0)
        ground.write(offset, bytes(4096))
        ground.set_term(TERM + 1)
        task = writing_of(planted, offset)
        path.write([task], Deadline(PLENTY_S))
        assert isinstance(task.error, StaleTerm)
        assert not any(ground.read(offset, 4096))
        assert ground.entry(offset) == 0

    def test_writing_again_what_has_landed_is_a_success(
        self, ground: Ground, path: DataPath
    ) -> None:
        planted = make(5000)
        offset = ground.plant(planted)
        task = writing_of(planted, offset)
        path.write([task], Deadline(PLENTY_S))
        assert task.error is None
        assert ground.read(offset, len(planted.extent)) == planted.extent

    def test_a_write_outside_of_the_segment_is_refused(
        self, ground: Ground, path: DataPath
    ) -> None:
        del ground
        for offset in (POOL_BYTES, POOL_BYTES - 512, 1, 1 << 60):
            task = writing_of(make(1000), offset)
            path.write([task], Deadline(PLENTY_S))
            assert isinstance(task.error, InvalidArgument)

    def test_a_write_to_an_unknown_segment_is_refused(self, ground: Ground, path: DataPath) -> None:
        del ground
        task = writing_of(make(1000), 0)
        task.incarnation = 99
        path.write([task], Deadline(PLENTY_S))
        assert isinstance(task.error, StaleExtent)

    def test_parts_of_another_length_are_refused(self, ground: Ground, path: DataPath) -> None:
        planted = make(1000)
        offset = ground.room(4096)
        ground.set_entry(offset, 0)
        task = writing_of(planted, offset)
        task.parts = [memoryview(planted.payload)[:999]]
        path.write([task], Deadline(PLENTY_S))
        assert isinstance(task.error, InvalidArgument)
        assert ground.entry(offset) == 0

    def test_a_refused_write_of_a_batch_costs_its_neighbours_nothing(
        self, ground: Ground, path: DataPath
    ) -> None:
        tasks = []
        for number in range(200):
            planted = make(100 * number, key=f"key {number}")
            offset = ground.room(len(planted.extent))
            ground.set_entry(offset, planted.version | FREED if number % 3 == 0 else 0)
            tasks.append((planted, offset, writing_of(planted, offset)))
        path.write([task for _, _, task in tasks], Deadline(PLENTY_S))
        for number, (planted, offset, task) in enumerate(tasks):
            if number % 3 == 0:
                assert isinstance(task.error, StaleTerm)
            else:
                assert task.error is None
                assert ground.read(offset, len(planted.extent)) == planted.extent

    def test_what_was_written_can_be_read(self, ground: Ground, path: DataPath) -> None:
        planted = make(MIB)
        offset = ground.room(len(planted.extent))
        ground.set_entry(offset, 0)
        path.write([writing_of(planted, offset)], Deadline(PLENTY_S))
        reading = Reading(planted, offset)
        self.read(path, reading)
        reading.check()

    # --- ends -----------------------------------------------------------------------------------

    def test_no_time_left_is_said_without_touching_a_byte(
        self, ground: Ground, path: DataPath
    ) -> None:
        planted = make(1000)
        reading = Reading(planted, ground.plant(planted))
        offset = ground.room(4096)
        ground.set_entry(offset, 0)
        task = writing_of(planted, offset)
        self.read(path, reading, deadline_s=0)
        path.write([task], Deadline(0))
        assert isinstance(reading.task.error, DeadlineExceeded)
        assert isinstance(task.error, DeadlineExceeded)
        assert reading.got == b"\xa5" * 1000
        assert ground.entry(offset) == 0

    def test_a_closed_path_says_so(self, ground: Ground, make_path: DataPath) -> None:
        planted = make(1000)
        reading = Reading(planted, ground.plant(planted))
        self.read(make_path, reading)
        reading.check()
        make_path.close()
        make_path.close()
        self.read(make_path, reading)
        assert isinstance(reading.task.error, (Closed, Unreachable))
