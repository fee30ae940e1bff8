"""The reference pages, ``--help`` and the running configuration say the same (FR-063)."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from mooncake_store import reference
from mooncake_store.command import COMMAND_GROUP
from mooncake_store.settings import ROLES
from tests.tidy.tree import REPOSITORY

PAGES = REPOSITORY / "docs" / "reference"
COMMAND_OF = {"master": "master", "node": "node", "client": "put"}
"""A command for each role that takes all its settings."""


def documented(role: str) -> dict[str, tuple[str, str]]:
    """Return {option: (default, accepted)} as the page says it, the page read as text."""
    page = (PAGES / "configuration.md").read_text()
    section = page.split(f"\n## {role.capitalize()}\n")[1].split("\n## ")[0]
    rows = re.findall(
        r"^\| `--([a-z-]+) [A-Z]+` \| (?:`([^`]*)`)? \| ([^|]*) \|", section, re.MULTILINE
    )
    return {name: (default, accepted.strip()) for name, default, accepted in rows}


def printed(*words: str) -> str:
    """Run the command as a user does, with nothing of ours in the environment."""
    done = subprocess.run(  # noqa: S603 - own interpreter, fixed words
        [sys.executable, "-m", "mooncake_store", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={"PATH": "", "COLUMNS": "80"},
    )
    return done.stdout


def test_every_contribution_can_be_imported() -> None:
    for entry in entry_points(group=COMMAND_GROUP):
        entry.load()


@pytest.mark.parametrize("name", ["configuration.md", "commands.md", "errors.md"])
def test_a_reference_page_is_what_the_code_would_write(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", reference.HELP_COLUMNS)
    written = (PAGES / name).read_text() if (PAGES / name).exists() else ""
    assert written == reference.pages()[name], "out of date: make docs"


@pytest.mark.parametrize("role", ROLES)
def test_help_names_every_documented_option_with_its_default(role: str) -> None:
    text = printed(COMMAND_OF[role], "--help")
    for option, (default, accepted) in documented(role).items():
        entry = re.search(rf"^  --{option}(?= ).*?(?=^  --|\Z)", text, re.MULTILINE | re.DOTALL)
        assert entry, option
        said = " ".join(entry[0].split())
        assert not default or f"default: {default}" in said, option
        assert accepted in said, option


@pytest.mark.parametrize("role", ROLES)
def test_the_running_configuration_has_the_documented_defaults(role: str) -> None:
    command = COMMAND_OF[role]
    words = [command, "--print-config", *(["key", "value"] if role == "client" else [])]
    lines = re.findall(
        r'^  ([a-z_]+): (null|"[^"]*"|[^#"]+?)  # default$', printed(*words), re.MULTILINE
    )
    running = {name.replace("_", "-"): value.strip('"') for name, value in lines}
    shown = {name: default for name, (default, _) in documented(role).items()}
    assert {name: "" if value == "null" else value for name, value in running.items()} == shown
