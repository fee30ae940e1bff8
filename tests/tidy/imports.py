"""Rules about who imports whom."""

from __future__ import annotations

import sys
import tomllib
from typing import TYPE_CHECKING

from tests.tidy.tree import FOLDER_OF

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.tidy.tree import Import, Module, Tree

KERNEL = "mooncake_store"

IMPURE = frozenset(
    {
        "asyncio",
        "concurrent",
        "mmap",
        "multiprocessing",
        "os",
        "random",
        "secrets",
        "select",
        "selectors",
        "socket",
        "subprocess",
        "threading",
        "time",
        "uvloop",
    }
)
"""Modules with a clock, I/O, threads or randomness of their own: not for a core."""

DISTRIBUTION_OF = {"yaml": "pyyaml", "pydantic_core": "pydantic"}
"""{import name: distribution} where they differ, or where one always brings the other."""


def directions(tree: Tree) -> list[str]:
    """A role imports itself and the kernel; the kernel imports only itself."""
    found = []
    for module in tree.modules.values():
        own = module.name.split(".")[0]
        for entry in module.imports:
            other = entry.module.split(".")[0]
            if other in FOLDER_OF and other not in {own, KERNEL}:
                found.append(f"{module.relative}:{entry.line}: {own} imports {other}")
            if other == "tests":
                found.append(f"{module.relative}:{entry.line}: {own} imports the tests")
    return found


def purity(tree: Tree) -> list[str]:
    """What a core imports, itself or through others, has no clock, I/O or randomness."""
    found = []
    for module in tree.modules.values():
        if not {"core", "_core"} & set(module.name.split(".")):
            continue
        for reached, way in _reached(tree, module).items():
            found += [
                f"{module.relative}: {entry.module} is impure, by {' -> '.join(way)}"
                for entry in reached.imports
                if not entry.typing_only and entry.module.split(".")[0] in IMPURE
            ]
    return found


def every_module_is_used(tree: Tree) -> list[str]:
    """A module is imported by another one, named by an entry point, or run as a program."""
    users = [*tree.modules.values()]
    used = set(_entry_points(tree))
    for user in users:
        used |= {name for name in _targets(tree, user, typing=True) if name != user.name}
    for test in tree.tests.values():
        used |= {name for name in _targets(tree, test, typing=True) if _is_kit(name)}
    return [
        f"{module.relative}: nobody imports it"
        for name, module in tree.modules.items()
        if name not in used | FOLDER_OF.keys()
        and not module.is_package
        and "__main__" not in module.text
        and not name.endswith("__main__")
    ]


def dependencies(tree: Tree) -> list[str]:
    """What is imported is declared, what is declared is imported."""
    declared = {
        text.split(">")[0].split(";")[0].strip().lower()
        for text in tomllib.loads(tree.pyproject)["project"]["dependencies"]
    }
    imported: dict[str, str] = {}
    for module in tree.modules.values():
        for entry in module.imports:
            top = entry.module.split(".")[0]
            if top not in sys.stdlib_module_names and top not in FOLDER_OF:
                imported.setdefault(
                    DISTRIBUTION_OF.get(top, top).replace("_", "-"), module.relative
                )
    optional = _optional(tree)
    return [
        *(
            f"{imported[n]}: {n} is no dependency"
            for n in sorted(set(imported) - declared - optional)
        ),
        *(f"pyproject.toml: nobody imports {n}" for n in sorted(declared - set(imported))),
    ]


def _optional(tree: Tree) -> set[str]:
    extras = tomllib.loads(tree.pyproject)["project"].get("optional-dependencies", {})
    return {
        text.split(">")[0].strip().lower()
        for name, texts in extras.items()
        for text in texts
        if name != "dev" or text.startswith(("pytest", "hypothesis", "numpy"))
    }


def _reached(tree: Tree, start: Module) -> dict[Module, list[str]]:
    """Return {module: names on the way to it} of all that importing ``start`` runs."""
    ways = {start: [start.name]}
    waiting = [start]
    while waiting:
        module = waiting.pop()
        for name in _targets(tree, module, typing=False):
            reached = tree.modules[name]
            if reached not in ways and not start.name.startswith(f"{name}."):
                ways[reached] = [*ways[module], name]
                waiting.append(reached)
    return ways


def _targets(tree: Tree, module: Module, *, typing: bool) -> Iterator[str]:
    """Yield the modules of the packages that ``module`` imports, packages on the way included."""
    for entry in module.imports:
        if entry.typing_only and not typing:
            continue
        yield from (name for name in _prefixes(entry) if name in tree.modules)


def _prefixes(entry: Import) -> Iterator[str]:
    parts = [*entry.module.split("."), *([entry.name] if entry.name else [])]
    for length in range(1, len(parts) + 1):
        yield ".".join(parts[:length])


def _entry_points(tree: Tree) -> Iterator[str]:
    project = tomllib.loads(tree.pyproject)["project"]
    groups = [project.get("scripts", {}), *project.get("entry-points", {}).values()]
    for group in groups:
        yield from (target.split(":")[0] for target in group.values())


def _is_kit(name: str) -> bool:
    return name.startswith("mooncake_store.testing")
