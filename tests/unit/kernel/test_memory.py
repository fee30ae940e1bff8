"""Shared files: addresses, locks that end with their process, pages on demand."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from mooncake_store import memory
from mooncake_store.errors import ConfigError, NotSupported

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    memory.close_file(memory.create_file(tmp_path / "file", 1 << 20))
    return tmp_path / "file"


def test_bytes_move_between_addresses() -> None:
    source, target = bytes(range(200)), bytearray(200)
    view = memoryview(target)
    memory.move(memory.address_of(view[10:]), memory.address_of(memoryview(source)[5:]), 50)
    assert target == bytes(10) + source[5:55] + bytes(140)


def test_mappings_of_one_file_share_their_bytes(file: Path) -> None:
    descriptor = memory.open_file(file)
    one, other = memory.map_file(descriptor, 1 << 20), memory.map_file(descriptor, 4096)
    memory.close_file(descriptor)
    memory.close_file(descriptor)  # Harmless.
    one[17] = 99
    assert other[17] == 99


def test_a_file_is_created_once_for_its_owner_alone(file: Path) -> None:
    assert file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigError, match="exists"):
        memory.create_file(file, 10)
    with pytest.raises(ConfigError, match="cannot open"):
        memory.open_file(file.parent / "nothing")
    with pytest.raises(ConfigError, match="cannot create"):
        memory.create_file(file.parent / "no" / "folder", 10)


def test_more_than_the_file_has_is_not_mapped(file: Path) -> None:
    descriptor = memory.open_file(file)
    with pytest.raises(ConfigError, match="shorter"):
        memory.map_file(descriptor, (1 << 20) + 1)
    memory.close_file(descriptor)


def test_a_lock_belongs_to_one_open_file_and_ends_with_it(file: Path) -> None:
    one, other = memory.open_file(file), memory.open_file(file)
    assert memory.lock_range(one, 100, 32)
    assert memory.lock_range(one, 100, 32)
    assert not memory.lock_range(other, 100, 32)
    assert not memory.lock_range(other, 131, 1)
    assert memory.lock_range(other, 132, 32)
    copy = os.dup(one)
    memory.close_file(one)
    assert not memory.lock_range(other, 100, 32)
    memory.close_file(copy)
    assert memory.lock_range(other, 100, 32)
    memory.unlock_range(other, 100, 32)
    memory.close_file(other)


def test_a_lock_ends_with_its_process(file: Path) -> None:
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        memory.lock_range(memory.open_file(file), 0, 32)
        os.write(writable, b"x")
        signal.pause()
    os.read(readable, 1)
    mine = memory.open_file(file)
    assert not memory.lock_range(mine, 0, 32)
    os.kill(child, 9)
    os.waitpid(child, 0)
    assert memory.lock_range(mine, 0, 32)
    for descriptor in (mine, readable, writable):
        os.close(descriptor)


def test_pages_can_be_had_ahead(file: Path) -> None:
    descriptor = memory.open_file(file)
    mapping = memory.map_file(descriptor, 1 << 20)
    memory.close_file(descriptor)
    address = memory.address_of(mapping)
    for write in (True, False):
        assert memory.populate(address + 100, 100_000, write=write) in {True, False}
    assert not any(mapping[:200_000])


def test_what_the_machine_has_not_is_said(file: Path) -> None:
    descriptor = memory.open_file(file)
    mapping = memory.map_file(descriptor, 1 << 20)
    memory.close_file(descriptor)
    with pytest.raises(NotSupported, match="NUMA node 900"):
        memory.bind_to_numa(mapping, 900)
    assert memory.advise_huge(mapping) in {True, False}


def test_fences_and_barriers_can_be_called() -> None:
    memory.fence()
    assert memory.join_barriers() in {True, False}
    assert memory.barrier() in {True, False}
