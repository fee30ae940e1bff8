"""The process that holds a store's index: ``python -m ...ssd.index_server DESCRIPTOR``.

It serves one parent over the socket of that number and ends when the parent does. It inherits the
store's lock, so that a successor of a killed parent does not open the index before the last commit
is over.
"""

from __future__ import annotations

import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mooncake_storage_node.ssd.index import Commit, IndexDamaged, IndexFailed, LmdbIndex
from mooncake_storage_node.ssd.index_process import DAMAGED, FAILED, OK, OPEN_S, receive, send
from mooncake_storage_node.ssd.threads import stand_behind
from mooncake_store.deadline import Deadline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mooncake_storage_node.ssd.core.rows import RowBlock


class IndexServer:
    """Answers one parent."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._index: LmdbIndex | None = None
        self._blocks: Iterator[RowBlock] = iter(())
        self._operations: dict[str, Callable[..., Any]] = {
            "open": self._open,
            "load": self._load,
            "more": self._more,
            "summary": lambda: self._opened().summary(),
            "commit": self._commit,
            "page": lambda location, limit: self._opened().page(location, limit),
        }

    def serve(self) -> None:
        """Answer requests until the parent is gone."""
        while (request := receive(self._socket, None)) is not None:
            operation, *arguments = request
            try:
                reply = [OK, self._operations[operation](*arguments)]
            except IndexFailed as error:
                reply = [FAILED, str(error)]
            except IndexDamaged as error:
                reply = [DAMAGED, str(error)]
            try:
                send(self._socket, reply, Deadline(OPEN_S))
            except OSError:
                break
        if self._index is not None:
            self._index.close()

    def _open(self, folder: str, map_bytes: int) -> None:
        self._index = LmdbIndex(Path(folder), map_bytes)

    def _opened(self) -> LmdbIndex:
        if self._index is None:
            raise IndexFailed("the index is not open")
        return self._index

    def _commit(self, puts: list[tuple[bytes, bytes]], deletes: list[bytes]) -> Commit:
        before = _bytes_written()
        number, _ = self._opened().commit(puts, deletes)
        return Commit(number, _bytes_written() - before)

    def _load(self) -> RowBlock | None:
        self._blocks = self._opened().load()
        return self._more()

    def _more(self) -> RowBlock | None:
        block = next(self._blocks, None)
        if block is None:
            stand_behind(0)  # Until here the store's opening waits for this process.
        return block


def _bytes_written() -> int:
    """Return what this process has sent to disks so far; 0 where the kernel does not count."""
    try:
        lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    fields = dict(line.split(": ", 1) for line in lines)
    return int(fields.get("write_bytes", 0))


def main() -> None:
    """Serve the socket whose number is the first argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent decides when this ends.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as sock:
        IndexServer(sock).serve()


if __name__ == "__main__":
    main()
