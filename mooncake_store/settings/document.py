"""The configuration file: YAML, read as texts with their lines, nothing guessed.

The file is only composed into nodes, never constructed into objects: every scalar stays the text
that somebody wrote (``1_000`` no number, ``no`` no boolean, ``2026-01-01`` no date), so that one
parser, that of the option, decides what it means, and aliases cannot grow into gigabytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DOCUMENT_BYTES_MAX: Final = 1 << 20
"""A configuration file has some hundred lines; a larger one is the wrong file."""


class DocumentError(Exception):
    """The file as a whole cannot be used; the message names it and the line."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One value of a section.

    Attributes:
        text: As it was written, items of a list joined by commas; None for null or nothing.
        line: Line of the file, from 1.
    """

    text: str | None
    line: int


def read_document(path: Path) -> dict[str, tuple[int, dict[str, Entry]]]:
    """Return {section: (line, {name: entry})} of a file.

    Raises:
        DocumentError: It cannot be read, is too large, is no YAML or no mapping of mappings, or
            names something twice.
    """
    root = _compose(path)
    if root is None:
        return {}
    sections = {}
    for name, line, node in _pairs(path, root, "the file"):
        entries = {
            key: Entry(_text(path, key, value), at)
            for key, at, value in (
                [] if _is_null(node) else _pairs(path, node, f"section {name!r}")
            )
        }
        sections[name] = (line, entries)
    return sections


def _compose(path: Path) -> yaml.Node | None:
    try:
        with path.open("rb") as file:
            data = file.read(DOCUMENT_BYTES_MAX + 1)
    except OSError as error:
        raise DocumentError(f"--config {path}: {error.strerror}") from error
    if len(data) > DOCUMENT_BYTES_MAX:
        raise DocumentError(f"--config {path}: larger than {DOCUMENT_BYTES_MAX} bytes")
    try:
        root: yaml.Node | None = yaml.compose(data, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        what = getattr(error, "problem", None) or type(error).__name__
        raise DocumentError(f"--config {path}{where}: no valid YAML ({what})") from error
    return root


def _pairs(path: Path, node: yaml.Node, what: str) -> Iterator[tuple[str, int, yaml.Node]]:
    """Yield (name, line, value) of a mapping whose names are different texts."""
    if not isinstance(node, yaml.MappingNode):
        line = node.start_mark.line + 1
        raise DocumentError(f"--config {path} line {line}: {what} is no mapping of names to values")
    seen = set()
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise DocumentError(f"--config {path} line {line}: a name in {what} is no text")
        if key.value in seen:
            raise DocumentError(f"--config {path} line {line}: {key.value!r} stands here twice")
        seen.add(key.value)
        yield key.value, line, value


def _text(path: Path, name: str, node: yaml.Node) -> str | None:
    if _is_null(node):
        return None
    if isinstance(node, yaml.ScalarNode):
        return str(node.value)
    items = node.value if isinstance(node, yaml.SequenceNode) else [node]
    if not all(isinstance(item, yaml.ScalarNode) for item in items):
        line = node.start_mark.line + 1
        raise DocumentError(f"--config {path} line {line}: {name!r} is neither a value nor a list")
    return ",".join(str(item.value) for item in items)


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"
