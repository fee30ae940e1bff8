"""The files of a source tree, as the rules look at them."""

from __future__ import annotations

import ast
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

FOLDER_OF = {
    "mooncake_store": "mooncake_store",
    "mooncake_master": "master/mooncake_master",
    "mooncake_storage_node": "storage_node/mooncake_storage_node",
    "mooncake_client": "client/mooncake_client",
}
"""{package: its folder}."""

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Import:
    """One imported name.

    Attributes:
        module: What stands after ``import`` or ``from``, made absolute.
        name: What stands after ``from ... import``; empty without it.
        typing_only: True under ``if TYPE_CHECKING``, where nothing is imported at run time.
        line: Where.
    """

    module: str
    name: str
    typing_only: bool
    line: int


class Module:
    """One Python file of a package or of the tests."""

    def __init__(self, path: Path, relative: str, name: str) -> None:
        self.path = path
        self.relative = relative
        self.name = name
        self.is_package = path.name == "__init__.py"
        self.text = path.read_text(encoding="utf-8")

    @cached_property
    def syntax(self) -> ast.Module:
        return ast.parse(self.text, self.relative)

    @cached_property
    def imports(self) -> list[Import]:
        typing_only = {
            id(node)
            for block in ast.walk(self.syntax)
            if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
            for statement in block.body
            for node in ast.walk(statement)
        }
        found = []
        for node in ast.walk(self.syntax):
            lazily = id(node) in typing_only
            if isinstance(node, ast.Import):
                found += [Import(alias.name, "", lazily, node.lineno) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                module = self._absolute(node)
                found += [Import(module, alias.name, lazily, node.lineno) for alias in node.names]
        return found

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.name.split(".") if self.is_package else self.name.split(".")[:-1]
        parts = parts[: len(parts) - node.level + 1]
        return ".".join([*parts, *([node.module] if node.module else [])])


class Tree:
    """A checkout, or a small planted tree in a test of the rules."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @cached_property
    def files(self) -> list[str]:
        """Paths of everything that is or could be committed, relative to the root."""
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
        if (self.root / ".git").exists():
            listed = subprocess.run(command, cwd=self.root, capture_output=True, check=True)  # noqa: S603 - fixed words
            names = [name for name in listed.stdout.decode().split("\0") if name]
        else:
            names = [str(path.relative_to(self.root)) for path in self.root.rglob("*")]
        return sorted({name for name in names if (self.root / name).is_file()})

    @cached_property
    def modules(self) -> dict[str, Module]:
        """{dotted name: module} of the four packages."""
        found = {}
        for package, folder in FOLDER_OF.items():
            for relative in self.files:
                if relative.startswith(f"{folder}/") and relative.endswith(".py"):
                    inside = relative.removeprefix(f"{folder}/").removesuffix(".py")
                    parts = [package, *inside.split("/")]
                    name = ".".join(part for part in parts if part != "__init__")
                    found[name] = Module(self.root / relative, relative, name)
        return found

    @cached_property
    def tests(self) -> dict[str, Module]:
        """{dotted name: module} of the tests."""
        names = {
            relative: relative.removesuffix(".py").replace("/", ".")
            for relative in self.files
            if relative.startswith("tests/") and relative.endswith(".py")
        }
        return {name: Module(self.root / path, path, name) for path, name in names.items()}

    def texts(self, *suffixes: str) -> dict[str, str]:
        """Return {relative path: content} of the text files with one of these suffixes, or all."""
        found = {}
        for relative in self.files:
            if suffixes and not relative.endswith(suffixes):
                continue
            try:
                found[relative] = (self.root / relative).read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue
        return found

    @cached_property
    def pyproject(self) -> str:
        return (self.root / "pyproject.toml").read_text(encoding="utf-8")
