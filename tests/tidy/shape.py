"""Rules about the form of modules, packages and errors."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.tidy.tree import Module, Tree

MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 60

ROLE_FOLDERS = ("master", "storage_node", "client")

SUPPRESSION = re.compile(
    r"#\s*(noqa|type: ignore)\b(?P<code>:\s*[A-Z0-9, ]+|\[[a-z-, ]+\])?(?P<why>.*)"
)
LATER = re.compile(r"\b(TODO|FIXME|XXX)\b(?!.*#\d)")
WORD = re.compile(r"[A-Za-z]{3,}")


def lengths(tree: Tree) -> list[str]:
    """A module has 600 lines at most, a function 60 without its docstring."""
    found = []
    for module in (*tree.modules.values(), *tree.tests.values()):
        lines = module.text.count("\n")
        if lines > MODULE_LINES_MAX:
            found.append(f"{module.relative}: {lines} lines, more than {MODULE_LINES_MAX}")
        found += [
            f"{module.relative}:{node.lineno}: {node.name} has {length} lines,"
            f" more than {FUNCTION_LINES_MAX}"
            for node in ast.walk(module.syntax)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and (length := _length(node)) > FUNCTION_LINES_MAX
        ]
    return found


def package_surface(tree: Tree) -> list[str]:
    """A package's ``__init__`` imports its public names and lists exactly them, sorted."""
    found = []
    for module in tree.modules.values():
        if not module.is_package:
            continue
        listed = _listed(module)
        public = {name for name in _bound(module) if not name.startswith("_")}
        if set(listed) != public:
            wrong = ", ".join(sorted(set(listed) ^ public))
            found.append(f"{module.relative}: __all__ and the public names differ in {wrong}")
        if listed != sorted(listed, key=_order):
            found.append(f"{module.relative}: __all__ is not sorted")
        found += [
            f"{module.relative}:{node.lineno}: logic in an __init__"
            for node in module.syntax.body
            if not _is_declaration(node)
        ]
    return found


def role_folders(tree: Tree) -> list[str]:
    """The folders of the roles are no packages, only what lies in them is."""
    return [
        f"{folder}/__init__.py: {folder}/ is no package"
        for folder in ROLE_FOLDERS
        if f"{folder}/__init__.py" in tree.files
    ]


def client_privacy(tree: Tree) -> list[str]:
    """What ``mooncake_client`` does not export is private; its command is an entry point."""
    return [
        f"{module.relative}: a module of mooncake_client starts with an underscore"
        for name, module in tree.modules.items()
        if name.startswith("mooncake_client.") and not name.split(".")[1].startswith("_")
        if name != "mooncake_client.command"
    ]


def suppressions(tree: Tree) -> list[str]:
    """A suppressed finding names its code and, outside of tests, says why."""
    found = []
    for module, line, comment in _comments(tree):
        match = SUPPRESSION.search(comment)
        is_test = module.relative.startswith("tests/")
        if match and not (match["code"] and (is_test or WORD.search(match["why"]))):
            found.append(f"{module.relative}:{line}: a suppression without code or reason")
    return found


def todos(tree: Tree) -> list[str]:
    """Work left for later stands in an issue, and the comment names its number."""
    return [
        f"{module.relative}:{line}: work left without an issue"
        for module, line, comment in _comments(tree)
        if LATER.search(comment)
    ]


def errors(tree: Tree) -> list[str]:
    """Every error has a code of its own, is raised somewhere, and a test mentions it."""
    module = tree.modules["mooncake_store.errors"]
    classes = [node for node in module.syntax.body if isinstance(node, ast.ClassDef)]
    codes: dict[str, str] = {}
    code_text = "\n".join(other.text for other in tree.modules.values() if other is not module)
    test_text = "\n".join(test.text for test in tree.tests.values())
    bases = {ast.unparse(base) for node in classes for base in node.bases}
    found = []
    for node in classes:
        code = _code(node)
        if code is None:
            found.append(f"{module.relative}:{node.lineno}: {node.name} has no code")
        elif codes.setdefault(code, node.name) != node.name:
            found.append(f"{module.relative}:{node.lineno}: {node.name} has {codes[code]}'s code")
        if node.name in bases:
            continue
        mention = re.compile(rf"\b{node.name}\b")
        if not mention.search(code_text):
            found.append(f"{module.relative}:{node.lineno}: nobody raises {node.name}")
        if not mention.search(test_text):
            found.append(f"{module.relative}:{node.lineno}: no test mentions {node.name}")
    return found


def _comments(tree: Tree) -> Iterator[tuple[Module, int, str]]:
    """Yield (module, line, comment) of all comments in code and tests."""
    for module in (*tree.modules.values(), *tree.tests.values()):
        for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
            if token.type == tokenize.COMMENT:
                yield module, token.start[0], token.string


def _length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    if ast.get_docstring(node) is not None:
        text = node.body[0]
        lines -= (text.end_lineno or text.lineno) - text.lineno + 1
    return lines


def _listed(module: Module) -> list[str]:
    for node in module.syntax.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    return []


def _bound(module: Module) -> Iterator[str]:
    """Yield the names that importing the package leaves in it."""
    for node in module.syntax.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            if getattr(node, "module", "") != "__future__":
                yield from (alias.asname or alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (ast.unparse(target) for target in node.targets)


def _is_declaration(node: ast.stmt) -> bool:
    if isinstance(node, ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0]) in {"__all__", "__version__"}
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _order(name: str) -> tuple[int, str]:
    """Sort as ruff does: constants, then classes, then the rest."""
    if name.isupper():
        return 0, name
    return (1 if name.lstrip("_")[:1].isupper() else 2), name


def _code(node: ast.ClassDef) -> str | None:
    for statement in node.body:
        targets = getattr(statement, "targets", [getattr(statement, "target", None)])
        value = getattr(statement, "value", None)
        if [getattr(t, "id", None) for t in targets] == ["code"] and isinstance(
            value, ast.Constant
        ):
            return str(value.value)
    return None
