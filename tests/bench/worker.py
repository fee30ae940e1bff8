"""One measurement in a process of its own: ``python -m tests.bench.worker SYSTEM PART``.

The last line on stdout is a JSON object: {metric: value}, or {"failure": why}. Servers log into
the directory that ``--logs`` names.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.bench.parts import PARTS
from tests.bench.scale import FULL, QUICK, Scale
from tests.bench.systems import SYSTEMS


def measure(system: str, part: str, scale: Scale, log_directory: Path) -> dict[str, float]:
    """Start the system's servers, run the part against them, stop them."""
    adapter = SYSTEMS[system].make(log_directory)
    try:
        adapter.start(scale.segment_bytes)
        adapter.connect()
        values = PARTS[part](adapter, scale)
        adapter.close()
    finally:
        adapter.stop()
    return values


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("system", choices=SYSTEMS)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--logs", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.logs.mkdir(parents=True, exist_ok=True)
    scale = QUICK if arguments.quick else FULL
    try:
        values = measure(arguments.system, arguments.part, scale, arguments.logs)
    except Exception as error:
        _answer({"failure": f"{type(error).__name__}: {error}"})
        raise
    _answer(values)


def _answer(content: Mapping[str, object]) -> None:
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
