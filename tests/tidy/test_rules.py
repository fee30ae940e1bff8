"""Each rule finds what it is there for: a planted violation in a small tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.tidy import documents, imports, shape
from tests.tidy.test_repository import RULES
from tests.tidy.tree import Tree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ERRORS = """
class StoreError(Exception):
    code = "store_error"
class NoSpace(StoreError):
    code = "no_space"
"""

CLEAN = {
    "pyproject.toml": """
[project]
dependencies = ["msgspec>=1"]
[project.scripts]
store = "mooncake_store.command:main"
""",
    "mooncake_store/__init__.py": '"""Kernel."""\n',
    "mooncake_store/errors.py": ERRORS,
    "mooncake_store/clock.py": "import time\n",
    "mooncake_store/words.py": "import msgspec\n",
    "mooncake_store/command.py": (
        "from mooncake_store import clock, words\nfrom mooncake_store.errors import NoSpace\n"
    ),
    "master/mooncake_master/__init__.py": (
        '"""Master."""\nfrom mooncake_master.core import plan\n__all__ = ["plan"]\n'
    ),
    "master/mooncake_master/core/__init__.py": (
        '"""Core."""\nfrom mooncake_master.core.plan import A, b, Cd\n__all__ = ["A", "Cd", "b"]\n'
    ),
    "master/mooncake_master/core/plan.py": "from mooncake_store import words\n",
    "client/mooncake_client/__init__.py": '"""Client."""\n',
    "tests/unit/test_errors.py": "NoSpace\n",
    "README.md": "# Title\n\n[here](docs/a.md#part-one) [out](https://example.com)\n",
    "docs/a.md": "# A\n\n## Part one\n\n```\n# no title\n[x](nowhere)\n```\n",
}


# Put together here, since the rule reads this file too.
HOME, OTHER_INDEX, REGISTRY = "root", "--index-" + "url", "pythonhosted." + "org"


def plant(root: Path, files: dict[str, str]) -> Tree:
    for name, text in (CLEAN | files).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Tree(root)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_clean_tree_breaks_no_rule(rule: Callable[[Tree], list[str]], tmp_path: Path) -> None:
    assert rule(plant(tmp_path, {})) == []


CASES: list[tuple[Callable[[Tree], list[str]], dict[str, str], str]] = [
    (
        imports.directions,
        {"master/mooncake_master/bad.py": "from mooncake_client import x\n"},
        "bad.py:1: mooncake_master imports mooncake_client",
    ),
    (
        imports.directions,
        {"mooncake_store/bad.py": "def f():\n    import mooncake_storage_node.tiers\n"},
        "bad.py:2: mooncake_store imports mooncake_storage_node",
    ),
    (
        imports.directions,
        {"mooncake_store/bad.py": "from tests import x\n"},
        "mooncake_store imports the tests",
    ),
    (
        imports.purity,
        {"master/mooncake_master/core/plan.py": "import time\n"},
        "core/plan.py: time is impure",
    ),
    (
        imports.purity,
        {"client/mooncake_client/_core/plan.py": "from os import path\n"},
        "_core/plan.py: os is impure",
    ),
    (
        imports.purity,
        {"master/mooncake_master/core/plan.py": "from mooncake_store.clock import x\n"},
        "time is impure, by mooncake_master.core.plan -> mooncake_store.clock",
    ),
    (
        imports.purity,
        {"master/mooncake_master/core/plan.py": "from ...mooncake_store import clock\n"}
        | {"master/mooncake_master/core/two.py": "from .three import x\n"}
        | {"master/mooncake_master/core/three.py": "import random\n"},
        "two.py: random is impure, by mooncake_master.core.two -> mooncake_master.core.three",
    ),
    (
        imports.every_module_is_used,
        {"mooncake_store/alone.py": "import mooncake_store.alone\n"},
        "mooncake_store/alone.py: nobody imports it",
    ),
    (
        imports.every_module_is_used,
        {
            "mooncake_store/alone.py": "",
            "tests/unit/test_alone.py": "import mooncake_store.alone\n",
        },
        "mooncake_store/alone.py: nobody imports it",
    ),
    (
        imports.dependencies,
        {"mooncake_store/words.py": "import msgspec, prometheus_client\n"},
        "words.py: prometheus-client is no dependency",
    ),
    (
        imports.dependencies,
        {"mooncake_store/words.py": "import json\n"},
        "pyproject.toml: nobody imports msgspec",
    ),
    (shape.lengths, {"mooncake_store/words.py": "x = 1\n" * 601}, "words.py: 601 lines"),
    (
        shape.lengths,
        {"tests/unit/test_errors.py": "NoSpace\ndef f():\n" + "    x = 1\n" * 60},
        "test_errors.py:2: f has 61 lines",
    ),
    (
        shape.package_surface,
        {"mooncake_store/__init__.py": "from mooncake_store.words import a, b\n__all__ = ['a']\n"},
        "__all__ and the public names differ in b",
    ),
    (
        shape.package_surface,
        {"mooncake_store/__init__.py": "from mooncake_store.words import a\n"},
        "__all__ and the public names differ in a",
    ),
    (
        shape.package_surface,
        {"mooncake_store/__init__.py": "from x import a, B\n__all__ = ['a', 'B']\n"},
        "__all__ is not sorted",
    ),
    (
        shape.package_surface,
        {"mooncake_store/__init__.py": "for _ in (): ...\n"},
        "mooncake_store/__init__.py:1: logic in an __init__",
    ),
    (shape.role_folders, {"client/__init__.py": ""}, "client/ is no package"),
    (shape.client_privacy, {"client/mooncake_client/shown.py": ""}, "shown.py: a module"),
    (
        shape.suppressions,
        {"mooncake_store/words.py": "import msgspec  # noqa: F401\n"},
        "words.py:1: a suppression",
    ),
    (
        shape.suppressions,
        {"mooncake_store/words.py": "import msgspec  # type: ignore # foreign library\n"},
        "words.py:1: a suppression",
    ),
    (shape.todos, {"mooncake_store/words.py": "# TODO: more\n"}, "words.py:1: work left"),
    (
        shape.errors,
        {"mooncake_store/errors.py": ERRORS + "class Bad(StoreError):\n    pass\n"},
        "errors.py:6: Bad has no code",
    ),
    (
        shape.errors,
        {"mooncake_store/errors.py": ERRORS + "class Bad(StoreError):\n    code = 'no_space'\n"},
        "errors.py:6: Bad has NoSpace's code",
    ),
    (
        shape.errors,
        {"mooncake_store/errors.py": ERRORS + "class Bad(StoreError):\n    code = 'bad'\n"},
        "errors.py:6: nobody raises Bad",
    ),
    (shape.errors, {"tests/unit/test_errors.py": ""}, "errors.py:4: no test mentions NoSpace"),
    (documents.one_title, {"docs/a.md": "# A\n\n# B\n"}, "docs/a.md: 2 titles"),
    (documents.one_title, {"docs/a.md": "text\n"}, "docs/a.md: 0 titles"),
    (documents.one_title, {"docs/a.md": "## B\n\n# A\n"}, "title is not the first heading"),
    (documents.links, {"docs/a.md": "# A\n[x](b.md)\n"}, "docs/a.md: nothing at b.md"),
    (documents.links, {"docs/a.md": "# A\n[x](#b)\n"}, "docs/a.md: no heading for #b"),
    (documents.links, {"README.md": "# A\n[x](docs/a.md#b)\n"}, "no heading for docs/a.md#b"),
    (
        documents.nothing_of_this_machine,
        {"docs/a.md": f"# A\nsee /{HOME}/x\n"},
        f"docs/a.md:2: says /{HOME}/x",
    ),
    (
        documents.nothing_of_this_machine,
        {"Makefile": f"x:\n\tpip install {OTHER_INDEX}=x\n"},
        f"Makefile:2: says {OTHER_INDEX}",
    ),
    (
        documents.nothing_of_this_machine,
        {"docs/a.md": f"# A\nhttps://files.{REGISTRY}/x\n"},
        f"docs/a.md:2: says {REGISTRY}",
    ),
]


@pytest.mark.parametrize(
    ("rule", "files", "said"), CASES, ids=[f"{rule.__name__}-{said}" for rule, _, said in CASES]
)
def test_a_planted_violation_is_found(
    rule: Callable[[Tree], list[str]], files: dict[str, str], said: str, tmp_path: Path
) -> None:
    assert said in "\n".join(rule(plant(tmp_path, files)))


def test_every_rule_has_a_planted_violation() -> None:
    assert {rule for rule, _, _ in CASES} == set(RULES)


@pytest.mark.parametrize(
    ("rule", "files"),
    [
        (
            imports.purity,
            {
                "master/mooncake_master/core/plan.py": (
                    "from typing import TYPE_CHECKING\n"
                    "from mooncake_store import words\n"
                    "if TYPE_CHECKING:\n    from random import Random\n"
                )
            },
        ),
        (
            imports.every_module_is_used,
            {"mooncake_store/tool.py": 'if __name__ == "__main__": ...'},
        ),
        (
            shape.lengths,
            {"mooncake_store/words.py": 'def f():\n    """' + "x\n" * 70 + '"""\n    return 1\n'},
        ),
        (
            shape.suppressions,
            {"mooncake_store/words.py": "import msgspec  # noqa: F401 - side effect\n"},
        ),
        (shape.suppressions, {"mooncake_store/words.py": "x = '# noqa: F401'\n"}),
        (documents.one_title, {"changes/2.fix.md": "A line.\n"}),
        (shape.todos, {"mooncake_store/words.py": "# TODO(#12): more\n"}),
        (documents.nothing_of_this_machine, {"docs/a.md": "# A\n/dev/shm, docs/work/x, ~/root/\n"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_is_allowed_is_not_found(
    rule: Callable[[Tree], list[str]], files: dict[str, str], tmp_path: Path
) -> None:
    assert rule(plant(tmp_path, files)) == []
