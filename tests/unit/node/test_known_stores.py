"""What a node remembers of its disks: taken as it is, missed where there is none, never guessed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mooncake_storage_node.ssd import Options
from mooncake_storage_node.stores import KNOWN_FILE, StorePlan, Stores
from mooncake_store.errors import ConfigError
from mooncake_store.limits import MIB

if TYPE_CHECKING:
    from pathlib import Path


def remembered(folder: Path) -> set[int]:
    stores = Stores([StorePlan(folder / "disk", 64 * MIB)], Options(), folder)
    return {record.incarnation for record in stores.records()}


def test_what_was_noted_is_registered_before_the_disk_is_open(tmp_path: Path) -> None:
    (tmp_path / KNOWN_FILE).write_text(f'{{"{tmp_path / "disk"}": 77}}')
    assert remembered(tmp_path) == {77}


@pytest.mark.parametrize("text", [None, "", "no json", "[1]"])
def test_without_a_note_there_is_nothing(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / KNOWN_FILE).write_text(text)
    assert remembered(tmp_path) == set()


def test_a_note_that_cannot_be_read_ends_the_start_and_says_so(tmp_path: Path) -> None:
    """Without it a disk that is only away would count as lost, with all that it holds."""
    (tmp_path / KNOWN_FILE).mkdir()
    with pytest.raises(ConfigError, match="cannot be read"):
        remembered(tmp_path)
