"""The public surface: both clients have the same calls, and the reference page has them all."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

import pytest

import mooncake_client
from mooncake_client import (
    AsyncClient,
    Client,
    ObjectInfo,
    PrefixMatch,
    ProbeResult,
    PutItem,
    PutResult,
    ReplicaInfo,
    Statistics,
    WhyResult,
)
from mooncake_store.errors import BY_CODE

PAGE = (Path(__file__).parents[3] / "docs/reference/python-api.md").read_text()
RECORDS = (
    ObjectInfo, PrefixMatch, ProbeResult, PutItem, PutResult, ReplicaInfo, Statistics, WhyResult,
)  # fmt: skip


def calls(kind: type) -> dict[str, inspect.Signature]:
    """Return the public methods of a client."""
    return {
        name: inspect.signature(method)
        for name, method in vars(kind).items()
        if not name.startswith("_") and inspect.isfunction(method)
    }


def arguments(signature: inspect.Signature) -> list[tuple[str, object, object]]:
    return [
        (name, parameter.kind, parameter.default)
        for name, parameter in signature.parameters.items()
        if name != "self"
    ]


def test_both_clients_have_the_same_calls() -> None:
    blocking, asynchronous = calls(Client), calls(AsyncClient)
    assert blocking.keys() - asynchronous.keys() == {"close"}
    assert asynchronous.keys() - blocking.keys() == {"aclose"}
    for name in blocking.keys() & asynchronous.keys():
        assert arguments(blocking[name]) == arguments(asynchronous[name]), name
    made = {name for name, _, _ in arguments(inspect.signature(Client.__init__))}
    assert made - {name for name, _, _ in arguments(inspect.signature(AsyncClient.__init__))} == {
        "connections_max"
    }


@pytest.mark.parametrize("name", [*calls(Client), "aclose"])
def test_the_reference_page_has_every_call_with_every_argument(name: str) -> None:
    mentioned = re.findall(rf"`{name}\(([^`]*)\)`", PAGE)
    assert mentioned, f"{name} is not in python-api.md"
    shown = " ".join(mentioned)
    if "..." in shown:  # "as put"
        return
    signature = calls(Client).get(name) or calls(AsyncClient)[name]
    for argument, kind, default in arguments(signature):
        if argument == "deadline_s" and "deadline_s=None" not in shown:
            pytest.fail(f"{name}: deadline_s is not shown")
        written = argument
        if default is not inspect.Parameter.empty:
            written = f"{argument}={default!r}".replace("'", '"')
        assert written in shown, f"{name}({shown}) lacks {written} ({kind})"


def test_the_reference_page_has_every_argument_of_a_client() -> None:
    for name, _, _ in arguments(inspect.signature(Client.__init__)):
        assert f"`{name}`" in PAGE


@pytest.mark.parametrize("record", RECORDS)
def test_the_reference_page_has_every_field_of_a_record(record: type) -> None:
    for field in dataclasses.fields(record):
        assert re.search(rf"\b{field.name}\b", PAGE), f"{record.__name__}.{field.name}"


def test_every_error_is_exported() -> None:
    assert {kind.__name__ for kind in BY_CODE.values()} <= set(mooncake_client.__all__)
    assert mooncake_client.__all__ == sorted(mooncake_client.__all__)
