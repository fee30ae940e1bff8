"""The folder of shared memory of a local cluster: deleted when nobody is there, and only then."""

from __future__ import annotations

import fcntl
from typing import IO, TYPE_CHECKING

from mooncake_client._cli import memory_folder

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_folder_that_is_being_made_is_not_taken_for_an_abandoned_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_folder, "MEMORY_ROOT", tmp_path)
    lock = fcntl.flock
    looked: list[int] = []

    def lock_late(file: IO[str], operation: int) -> None:
        if operation == fcntl.LOCK_EX:  # of the cluster that starts: another one comes first
            memory_folder._delete_abandoned()
            looked.append(operation)
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", lock_late)
    with memory_folder.memory_folder() as folder:
        assert looked
        assert folder.is_dir()
        memory_folder._delete_abandoned()
        assert folder.is_dir()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_cluster_left_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_folder, "MEMORY_ROOT", tmp_path)
    left = tmp_path / "mooncake-store-up-left"
    left.mkdir()
    (left / "lock").touch()
    with memory_folder.memory_folder() as folder:
        assert list(tmp_path.iterdir()) == [folder]
