"""The file of a data directory: kept at once, all or nothing, refused where it is damaged."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from mooncake_master.core import Forget, Remember
from mooncake_master.core.remembered import KnownNamespace, Note, Reign, note_key
from mooncake_master.standing import file as standing_file
from mooncake_master.standing import open_keeping
from mooncake_store.errors import ConfigError, Overloaded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from mooncake_master.standing import Keeping

SPACES = 200


def namespace(number: int, epoch: int = 1) -> Remember:
    name = f"space-{number}"
    entry = KnownNamespace(number, name, epoch, {"layout": "x" * 900})
    return Remember("namespaces", name, entry)


@pytest.fixture
def keeping(tmp_path: Path) -> Iterator[Keeping]:
    opened = open_keeping(tmp_path)
    yield opened
    opened.close()


def test_what_was_kept_is_there_again(tmp_path: Path) -> None:
    first = open_keeping(tmp_path)
    assert first.remembered.reign is None
    note = Note("node", 7, 512, 1024, 99)
    first.keep([Remember("reign", "", Reign("cluster", 3)), namespace(1), namespace(2)])
    first.keep([Remember("notes", note_key(7, 512, 99), note), namespace(1, 5)])
    first.keep([Forget("namespaces", "space-2"), Forget("namespaces", "never there")])
    first.close()
    again = open_keeping(tmp_path)
    assert again.remembered.reign == Reign("cluster", 3)
    assert again.remembered.namespaces == {"space-1": namespace(1, 5).entry}
    assert again.remembered.notes == {note_key(7, 512, 99): note}
    again.close()


def test_a_killed_process_has_kept_what_keep_returned_for(tmp_path: Path) -> None:
    program = textwrap.dedent(
        f"""
        import os, pathlib, signal
        from mooncake_master.core import Remember
        from mooncake_master.core.remembered import Reign
        from mooncake_master.standing import open_keeping
        keeping = open_keeping(pathlib.Path({str(tmp_path)!r}))
        for term in range(1, 500):
            keeping.keep([Remember("reign", "", Reign("c", term)),
                          Remember("reign", "twin", Reign("c", term))])
            os.write(1, b"%d\\n" % term)
            if term == 400:
                os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)  # noqa: S603 - our own
    assert ended.returncode == -signal.SIGKILL
    again = open_keeping(tmp_path)
    assert again.remembered.reign == Reign("c", int(ended.stdout.split()[-1]))
    again.close()


def test_one_directory_has_one_user(tmp_path: Path, keeping: Keeping) -> None:
    del keeping
    with pytest.raises(ConfigError, match=f"another master that is running .process {os.getpid()}"):
        open_keeping(tmp_path)


def cut(raw: bytearray) -> bytearray:
    return raw[: len(raw) // 2]


def flip_a_value(raw: bytearray) -> bytearray:
    raw[raw.rindex(b"x" * 800) + 400] ^= 1
    return raw


def flip_the_roots(raw: bytearray) -> bytearray:
    for at in range(40, 4096, 8):
        raw[at] ^= 0x55
        raw[4096 + at] ^= 0x55
    return raw


def rename_the_format(raw: bytearray) -> bytearray:
    return raw.replace(standing_file.FORMAT, standing_file.FORMAT[:-1] + b"9")


def replace_it(raw: bytearray) -> bytearray:
    return bytearray(b"no database" * (len(raw) // 11))


@pytest.mark.parametrize(
    "damage",
    [cut, flip_a_value, flip_the_roots, rename_the_format, replace_it],
    ids=lambda damage: damage.__name__,
)
def test_a_damaged_file_is_refused_as_a_whole(
    tmp_path: Path, damage: Callable[[bytearray], bytearray]
) -> None:
    first = open_keeping(tmp_path)
    first.keep([namespace(number) for number in range(SPACES)])
    first.close()
    path = tmp_path / standing_file.FILE
    raw = damage(bytearray(path.read_bytes()))
    path.write_bytes(raw)
    with pytest.raises(ConfigError, match=standing_file.FILE):
        open_keeping(tmp_path)
    assert path.read_bytes() == raw
    path.unlink()
    fresh = open_keeping(tmp_path)
    assert fresh.remembered.namespaces == {}
    fresh.close()


def test_what_the_disk_refuses_is_owed(
    keeping: Keeping, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise standing_file.FileFailed("no room")

    with monkeypatch.context() as patch:
        patch.setattr(standing_file.StandingFile, "write", refuse)
        with pytest.raises(Overloaded, match="may not survive a restart: no room"):
            keeping.keep([namespace(1)])
        assert keeping.problem == "no room"
        keeping.retry()
        assert keeping.problem
    keeping.retry()
    assert not keeping.problem
    keeping.close()
    again = open_keeping(tmp_path)
    assert list(again.remembered.namespaces) == ["space-1"]
    again.close()


def test_a_place_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be used"):
        open_keeping(tmp_path / "file" / "data")
