"""Notes about absent nodes, which this node keeps for the next master (docs/adr/0034).

They lie in memory and in a file beside the segment, so they outlive the process just as the
segment does. The file is a log of the messages as they came; a tail that was cut off by the end of
the process was never confirmed, and is cut off here, too.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Final

import msgspec

from mooncake_store.errors import Overloaded
from mooncake_store.limits import NOTES_MAX
from mooncake_store.wire.control import DropNotes, KeepNotes, NotePage

if TYPE_CHECKING:
    from pathlib import Path

    from mooncake_store.wire.control import ListNotes, NoteItem

logger = logging.getLogger(__name__)

KEPT_MAX: Final = 2 * NOTES_MAX
"""Notes of this node: what a master keeps, and as many again that older ones have left behind."""

LOG_BYTES_MIN: Final = 1 << 20
"""Size up to which the file is not worth to be written anew."""

PAGE_MAX: Final = 4096

NOTE_BYTES: Final = 256
"""More than a note takes in the file."""

_LENGTH: Final = 4

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[bool, KeepNotes])


class Notebook:
    """What this node keeps for others.

    Attributes:
        fellows: Nodes that were connected when a master said so last.
    """

    def __init__(self, path: Path | None = None) -> None:
        """Go on with what an earlier process has kept in the file at ``path``; None: no file."""
        self.fellows: tuple[str, ...] = ()
        self._notes: dict[tuple[int, int], NoteItem] = {}
        self._path = path
        self._file = -1
        self._file_bytes = 0
        if path is not None:
            self._read(path)

    def __len__(self) -> int:
        return len(self._notes)

    def keep(self, message: KeepNotes) -> None:
        """Keep notes; they are in the file when this returns.

        Raises:
            Overloaded: There are too many, or the file cannot be written.
        """
        if len(self._notes) + len(message.items) > KEPT_MAX:
            raise Overloaded(f"this node keeps at most {KEPT_MAX} notes about others")
        self._apply(message, keeps=True)
        self._write(message, keeps=True)

    def drop(self, message: DropNotes) -> None:
        """Keep notes no longer.

        Raises:
            Overloaded: The file cannot be written.
        """
        gone = KeepNotes(message.term, message.items)
        self._apply(gone, keeps=False)
        self._write(gone, keeps=False)

    def page(self, message: ListNotes) -> NotePage:
        """Return a page of what is kept."""
        begin = max(0, message.cursor)
        end = begin + max(1, min(message.limit, PAGE_MAX))
        items = list(self._notes.values())
        return NotePage(items[begin:end], end if end < len(items) else -1)

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _apply(self, message: KeepNotes, *, keeps: bool) -> None:
        for item in message.items:
            place = (item.incarnation, item.offset)
            there = self._notes.get(place)
            if keeps and (there is None or there.version < item.version):
                self._notes[place] = item
            elif not keeps and there is not None and there.version <= item.version:
                del self._notes[place]
        if message.fellows is not None:
            self.fellows = message.fellows

    # --- the file -------------------------------------------------------------------------------

    def _read(self, path: Path) -> None:
        whole = 0
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            data = path.read_bytes()
            while (end := _record_end(data, whole)) is not None:
                keeps, message = _decoder.decode(data[whole + _LENGTH : end])
                self._apply(message, keeps=keeps)
                whole = end
        except OSError as error:
            logger.warning("notes about other nodes are kept in memory only: %s", error)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            logger.warning("%s is damaged after %d bytes: %s", path, whole, error)
        if self._file >= 0:
            os.ftruncate(self._file, whole)
        self._file_bytes = whole

    def _write(self, message: KeepNotes, *, keeps: bool) -> None:
        if self._file < 0 or self._path is None:
            return
        try:
            if self._file_bytes > LOG_BYTES_MIN + NOTE_BYTES * len(self._notes):
                self._rewrite(self._path)
            else:
                self._append(self._file, _record(message, keeps=keeps))
        except OSError as error:
            raise Overloaded(f"notes cannot be written: {error.strerror or error}") from error

    def _rewrite(self, path: Path) -> None:
        """Begin a new file with what is left."""
        draft = path.with_suffix(".new")
        new = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        old, self._file, self._file_bytes = self._file, new, 0
        os.close(old)
        items = list(self._notes.values())
        for at in range(0, len(items) or 1, PAGE_MAX):
            part = KeepNotes(0, items[at : at + PAGE_MAX], self.fellows)
            self._append(new, _record(part, keeps=True))
        draft.replace(path)

    def _append(self, file: int, record: bytes) -> None:
        """Write a record whole, or leave the file as it was."""
        if os.pwrite(file, record, self._file_bytes) != len(record):
            os.ftruncate(file, self._file_bytes)
            raise OSError("no room for them")
        self._file_bytes += len(record)


def _record(message: KeepNotes, *, keeps: bool) -> bytes:
    body = _encoder.encode((keeps, message))
    return len(body).to_bytes(_LENGTH, "little") + body


def _record_end(data: bytes, at: int) -> int | None:
    """Return where a record ends; None where it is not whole."""
    begin = at + _LENGTH
    if begin > len(data):
        return None
    end = begin + int.from_bytes(data[at:begin], "little")
    return end if begin < end <= len(data) else None
