"""What the reference pages say of REST and metrics is what a running master has (FR-063)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.tidy.tree import REPOSITORY

if TYPE_CHECKING:
    from mooncake_store.testing import MasterProcess

pytestmark = pytest.mark.processes

PAGES = REPOSITORY / "docs" / "reference"


def fetch(master: MasterProcess, path: str) -> httpx.Response:
    answer = httpx.get(f"http://127.0.0.1:{master.admin_port}{path}")
    assert answer.status_code == 200
    return answer


def test_every_operation_is_documented_and_no_other(master: MasterProcess) -> None:
    page = (PAGES / "rest-api.md").read_text()
    documented = set(re.findall(r"^### `([A-Z]+ /\S+)`$", page, re.MULTILINE))
    paths = fetch(master, "/openapi.json").json()["paths"]
    served = {f"{method.upper()} {path}" for path, ways in paths.items() for method in ways}
    assert documented == served


def test_every_field_and_parameter_is_documented(master: MasterProcess) -> None:
    page = (PAGES / "rest-api.md").read_text()
    description = fetch(master, "/openapi.json").json()
    names = {
        parameter["name"]
        for ways in description["paths"].values()
        for operation in ways.values()
        for parameter in operation.get("parameters", [])
    }
    for name, schema in description["components"]["schemas"].items():
        if "ValidationError" not in name:
            names |= set(schema["properties"])
    missing = [name for name in names if not re.search(rf"[`\"]{name}[`\":]", page)]
    assert missing == []


def test_every_metric_is_documented_and_no_other(master: MasterProcess) -> None:
    page = (PAGES / "metrics.md").read_text()
    documented = set(re.findall(r"^\| `(mooncake_master_\w+)` \|", page, re.MULTILINE))
    text = fetch(master, "/metrics").text
    served = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
    appear_when_they_happen = {
        "mooncake_master_replicas_dropped_total",
        "mooncake_master_replicas_lost_total",
        "mooncake_master_refusals_total",
        "mooncake_master_copies_total",
        "mooncake_master_copied_bytes_total",
        "mooncake_master_node_capacity_bytes",
        "mooncake_master_node_used_bytes",
        "mooncake_master_node_replicas_count",
        "mooncake_master_node_scrubbed_bytes",
    }
    of_disks = {name for name in documented if name.startswith("mooncake_master_store_")}
    assert served <= documented
    assert documented - served <= appear_when_they_happen | of_disks


def test_every_metric_says_what_it_is(master: MasterProcess) -> None:
    text = fetch(master, "/metrics").text
    for name, about in re.findall(r"^# HELP (\S+) (.*)", text, re.MULTILINE):
        assert about.endswith("."), name
        assert len(about) > 10, name
