"""When a master that starts can be connected to."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from mooncake_master import command

def listen(addresses, option):
    print("loaded" if "mooncake_master.app" in sys.modules else "not loaded yet")
    sys.exit()

command.listen = listen
command.app(sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "not loaded yet"),
        (("--ha", "etcd://127.0.0.1:1"), "loaded"),
    ],
)
def test_one_of_several_masters_listens_when_it_can_answer_and_the_only_one_before(
    words: tuple[str, ...], said: str
) -> None:
    """Who waits for a standby that starts comes late to the leader; for the only one, early."""
    command = [sys.executable, "-c", PROGRAM, "--port", "0", "--admin-port", "0", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603 - own interpreter
    assert done.stdout.strip() == said, done.stderr
