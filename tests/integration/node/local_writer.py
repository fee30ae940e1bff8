"""A process that writes one extent through shared memory, when it is told. Run as a module.

It says ``begun`` on stdout after the first slice, and waits for a line on stdin before it writes
the others; then it says the result.
"""

from __future__ import annotations

import json
import os
import sys

from mooncake_store.deadline import Deadline
from mooncake_store.transport import ShmDataPath

from .support import make_thing


def main() -> None:
    """Write as ``sys.argv[1]`` says."""
    order = json.loads(sys.argv[1])
    thing = make_thing(order["incarnation"], order["offset"], order["size"], term=order["term"])
    path = ShmDataPath.connect(
        order["local_path"], node_id=order["node_id"], node="n", deadline=Deadline(30)
    )
    task = thing.write_task()
    steps = path.writing([task], Deadline(60))
    for number, _ in enumerate(steps):
        if number == 0:
            _say(f"begun {os.getpid()} {thing.identity.version}")
            sys.stdin.readline()
    _say("landed" if task.error is None else type(task.error).__name__)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
