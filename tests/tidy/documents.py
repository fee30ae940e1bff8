"""Rules about documents, and about what no committed file may say."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.tidy.tree import Tree

FENCE = re.compile(r"^(```|~~~).*?^\1\s*?$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
INLINE_CODE = re.compile(r"`[^`\n]*`")
HEADING = re.compile(r"^#{1,6} +(.+?)\s*#*$", re.MULTILINE)

FRAGMENT = re.compile(r"changes/\d+\.[\w.]+\.md")

MACHINE_PATH = re.compile(r"(?<![\w./~-])/(?:" + "work|root|home|Users" + r")/\w")
REGISTRIES = re.compile(
    "|".join(
        name.replace(".", r"\.") + tail
        for name, tail in (
            ("pypi", r"\.org"),
            ("pythonhosted", r"\.org"),
            ("registry.npmjs", r"\.org"),
            ("deb.debian", r"\.org"),
            ("proxy.golang", r"\.org"),
            ("--index", "-url"),
            ("--extra-index", "-url"),
        )
    )
)


def one_title(tree: Tree) -> list[str]:
    """A document has one title, and it is the first heading; a change fragment is no document."""
    found = []
    for relative, text in tree.texts(".md").items():
        if FRAGMENT.fullmatch(relative):
            continue
        headings = re.findall(r"^#{1,6} ", FENCE.sub("", text), re.MULTILINE)
        if headings.count("# ") != 1:
            found.append(f"{relative}: {headings.count('# ')} titles")
        elif headings[0] != "# ":
            found.append(f"{relative}: the title is not the first heading")
    return found


def links(tree: Tree) -> list[str]:
    """A relative link leads to a file of the tree, and to a heading that is there."""
    found = []
    for relative, text in tree.texts(".md").items():
        for target in _targets(text):
            path, _, anchor = target.partition("#")
            place = (
                tree.root / PurePosixPath(relative).parent / path if path else tree.root / relative
            )
            if not place.exists():
                found.append(f"{relative}: nothing at {target}")
            elif anchor and place.suffix == ".md" and anchor not in _anchors(place.read_text()):
                found.append(f"{relative}: no heading for {target}")
    return found


def nothing_of_this_machine(tree: Tree) -> list[str]:
    """No committed file names a path of one machine or the host of a registry."""
    found = []
    for relative, text in tree.texts().items():
        for number, line in enumerate(text.splitlines(), 1):
            for pattern in (MACHINE_PATH, REGISTRIES):
                match = pattern.search(line)
                if match:
                    found.append(f"{relative}:{number}: says {match[0]}")
    return found


def _targets(text: str) -> Iterator[str]:
    plain = INLINE_CODE.sub("", FENCE.sub("", text))
    for target in LINK.findall(plain):
        if not re.match(r"[a-z][a-z0-9+.-]*:", target):
            yield target


def _anchors(text: str) -> set[str]:
    headings = HEADING.findall(FENCE.sub("", text))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
