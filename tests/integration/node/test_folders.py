"""Folders of nodes that come and go at the same moment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mooncake_storage_node.dram import NodeFolder, check_room
from mooncake_store.limits import MIB

if TYPE_CHECKING:
    import pytest


def test_who_takes_a_folder_that_is_being_given_up_keeps_what_is_in_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = NodeFolder(root, "n")
    (first.path / "segment").touch()
    iterdir, unlink = Path.iterdir, Path.unlink
    taken: list[NodeFolder] = []

    def unlink_and_take(path: Path, missing_ok: bool = False) -> None:  # noqa: FBT001, FBT002 - pathlib's own
        unlink(path, missing_ok)
        if path.name == "lock" and not taken:
            taken.append(NodeFolder(root, "n"))

    # In the order in which that harms most: a file system lists them as it likes.
    monkeypatch.setattr(Path, "iterdir", lambda path: iter(sorted(iterdir(path))))
    monkeypatch.setattr(Path, "unlink", unlink_and_take)
    first.remove()
    monkeypatch.undo()
    (second,) = taken
    assert (second.path / "node_id").read_text() == second.node_id != first.node_id
    second.remove()
    assert not second.path.exists()


def test_the_room_for_a_pool_is_counted_while_another_node_gives_its_own_back(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = NodeFolder(root, "n")
    monkeypatch.setattr(Path, "glob", lambda path, _: iter([path / "gone" / "segment"]))
    check_room(folder.path, MIB)
    folder.remove()
