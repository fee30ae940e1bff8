"""The rules of the engineering guide, held against this repository."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.tidy import documents, imports, shape
from tests.tidy.tree import REPOSITORY, Tree

if TYPE_CHECKING:
    from collections.abc import Callable

RULES: list[Callable[[Tree], list[str]]] = [
    imports.directions,
    imports.purity,
    imports.every_module_is_used,
    imports.dependencies,
    shape.lengths,
    shape.package_surface,
    shape.role_folders,
    shape.client_privacy,
    shape.suppressions,
    shape.todos,
    shape.errors,
    documents.one_title,
    documents.links,
    documents.nothing_of_this_machine,
]


@pytest.fixture(scope="module")
def tree() -> Tree:
    return Tree(REPOSITORY)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_repository_keeps_the_rule(rule: Callable[[Tree], list[str]], tree: Tree) -> None:
    found = rule(tree)
    if found:
        pytest.fail("\n".join([f"{rule.__doc__}", *found]), pytrace=False)
