"""Notes about absent nodes outlive the process that keeps them (ADR 34)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from mooncake_storage_node import notebook
from mooncake_storage_node.notebook import Notebook
from mooncake_storage_node.obedience import Obedience
from mooncake_storage_node.writes import IncomingWrites
from mooncake_store.errors import Overloaded
from mooncake_store.wire.control import Done, DropNotes, KeepNotes, ListNotes, NoteItem

if TYPE_CHECKING:
    from pathlib import Path

    from mooncake_store.errors import StoreError
    from mooncake_store.wire.control import Message


def note(offset: int, version: int = 7) -> NoteItem:
    return NoteItem("away", 3, offset, 512, version)


def all_of(book: Notebook) -> list[NoteItem]:
    items: list[NoteItem] = []
    cursor = 0
    while cursor >= 0:
        page = book.page(ListNotes(1, cursor, 2))
        items += page.items
        cursor = page.cursor
    return items


def test_notes_and_fellows_outlive_the_process(tmp_path: Path) -> None:
    book = Notebook(tmp_path / "notes")
    book.keep(KeepNotes(1, [note(0), note(512), note(1024)], ("a", "b")))
    book.drop(DropNotes(1, [note(512)]))
    again = Notebook(tmp_path / "notes")
    assert all_of(again) == [note(0), note(1024)]
    assert again.fellows == ("a", "b")
    assert len(again) == 2


def test_a_note_gives_way_to_a_newer_one_only(tmp_path: Path) -> None:
    book = Notebook(tmp_path / "notes")
    book.keep(KeepNotes(1, [note(0, 9)]))
    book.keep(KeepNotes(1, [note(0, 8)]))
    book.drop(DropNotes(1, [note(0, 8)]))
    assert all_of(book) == [note(0, 9)]
    assert book.fellows == ()


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_a_tail_that_was_cut_off_costs_only_itself(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "notes"
    Notebook(path).keep(KeepNotes(1, [note(0)]))
    whole = path.read_bytes()
    book = Notebook(path)
    book.keep(KeepNotes(1, [note(512)]))
    book.close()
    path.write_bytes(path.read_bytes()[: len(whole) + cut])
    again = Notebook(path)
    assert note(0) in all_of(again)
    again.keep(KeepNotes(1, [note(1024)]))
    assert note(1024) in all_of(Notebook(path))


def test_damage_costs_what_follows_and_never_the_node(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    Notebook(path).keep(KeepNotes(1, [note(0)]))
    path.write_bytes(path.read_bytes() + b"\x03\0\0\0\xc1\xc1\xc1" + b"rest")
    book = Notebook(path)
    assert all_of(book) == [note(0)]
    book.keep(KeepNotes(1, [note(512)]))
    assert all_of(Notebook(path)) == [note(0), note(512)]


def test_the_file_stays_as_small_as_what_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notebook, "LOG_BYTES_MIN", 1000)
    path = tmp_path / "notes"
    book = Notebook(path)
    for number in range(200):
        book.keep(KeepNotes(1, [note(512 * number)], ("a",)))
        book.drop(DropNotes(1, [note(512 * (number - 1))]))
    assert path.stat().st_size < 3000
    assert all_of(Notebook(path)) == [note(512 * 199)]
    assert Notebook(path).fellows == ("a",)


def test_a_full_notebook_and_a_full_disk_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notebook, "KEPT_MAX", 2)
    book = Notebook(tmp_path / "notes")
    book.keep(KeepNotes(1, [note(0), note(512)]))
    with pytest.raises(Overloaded, match="at most 2"):
        book.keep(KeepNotes(1, [note(1024)]))
    monkeypatch.setattr(os, "pwrite", lambda *_: 0)
    with pytest.raises(Overloaded, match="no room"):
        book.drop(DropNotes(1, [note(0)]))


def test_without_a_file_notes_are_kept_in_memory(tmp_path: Path) -> None:
    book = Notebook(tmp_path / "missing" / "notes")
    book.keep(KeepNotes(1, [note(0)]))
    assert all_of(book) == [note(0)]


def test_a_node_keeps_notes_in_its_file_from_the_first_one_on(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    obedience = Obedience({}, IncomingWrites(), lambda *_: True, Notebook(path))
    answers: list[Message | StoreError] = []
    obedience.perform(KeepNotes(0, [note(0)]), 1.0, answers.append)
    assert answers == [Done()]
    assert all_of(Notebook(path)) == [note(0)]
