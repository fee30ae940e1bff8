"""Ports for servers that start later: nobody else is given them meanwhile."""

from __future__ import annotations

import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from mooncake_store.testing import sockets
from mooncake_store.testing.sockets import PortBook

if TYPE_CHECKING:
    from pathlib import Path

HOST = "127.0.0.1"

TAKING = """
import sys
from pathlib import Path
from mooncake_store.testing import sockets
sockets._PORTS = tuple(map(int, sys.argv[2:]))
book = sockets.PortBook(Path(sys.argv[1]))
print(book.free_port("127.0.0.1"), book.free_port("127.0.0.1"), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> tuple[int, ...]:
    """Three ports, which are all that there are to give."""
    ports = tuple(sockets.free_port(HOST) for _ in range(3))
    monkeypatch.setattr(sockets, "_PORTS", ports)
    return ports


def test_a_port_that_one_process_was_given_is_given_to_no_other(
    tmp_path: Path, three: tuple[int, ...]
) -> None:
    """Though nobody listens there yet; when the process has ended, it may be given again."""
    path = tmp_path / "book"
    book = PortBook(path)
    with subprocess.Popen(  # noqa: S603 - own interpreter
        [sys.executable, "-c", TAKING, str(path), *map(str, three)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        theirs = set(map(int, other.stdout.readline().split()))
        assert len(theirs) == 2
        assert {book.free_port(HOST)} == set(three) - theirs
        with pytest.raises(OSError, match="no free port"):
            book.free_port(HOST)
        other.kill()
    assert {book.free_port(HOST), book.free_port(HOST)} == theirs


def test_a_port_where_somebody_listens_is_given_to_nobody(
    tmp_path: Path, three: tuple[int, ...]
) -> None:
    book = PortBook(tmp_path / "book")
    with socket.create_server((HOST, three[0])):
        assert {book.free_port(HOST), book.free_port(HOST)} == set(three[1:])
        with pytest.raises(OSError, match="no free port"):
            book.free_port(HOST)
