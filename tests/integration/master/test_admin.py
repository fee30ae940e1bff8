"""The admin API over HTTP against a running master."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest

from mooncake_master.admin.application import create_application, status_of
from mooncake_store import errors
from mooncake_store.errors import InternalError, StoreError, UnknownNode
from mooncake_store.testing import MasterProcess, WireClient, wait_until
from mooncake_store.wire import control
from tests.integration.master.fake_node import FakeNode, put

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.processes

STRANGE_KEYS = [
    "plain",
    "model/layer/0/../1//x",
    "/begins-with-a-slash",
    "..",
    "a b+c&d=e#f?g%20h",
    "line\nbreak\ttab",
    "schlüssel-鍵-🔑",
    "\x00nul",
    '"quoted" <b>html</b>',
    "k" * 4096,
]


@pytest.fixture(scope="module")
def node(master: MasterProcess) -> Iterator[FakeNode]:
    with FakeNode(master.port) as running:
        yield running


@pytest.fixture
def http(master: MasterProcess, node: FakeNode) -> Iterator[httpx.Client]:
    del node
    base = f"http://127.0.0.1:{master.admin_port}"
    with httpx.Client(base_url=base, timeout=10.0) as client:
        yield client


def fetch(http: httpx.Client, path: str, status: int = 200, **params: str | int) -> Any:  # noqa: ANN401 - whatever JSON there is
    answer = http.get(path, params=params)
    assert answer.status_code == status, answer.text
    return answer.json()


def test_liveness_and_readiness_differ(start_master: Callable[..., MasterProcess]) -> None:
    alone = start_master()
    base = f"http://127.0.0.1:{alone.admin_port}"
    assert httpx.get(f"{base}/health/live").json() == {"status": "live"}
    answer = httpx.get(f"{base}/health/ready")
    assert answer.status_code == 503
    assert not answer.json()["ready"]
    assert answer.json()["reason"]
    with FakeNode(alone.port):
        wait_until(lambda: httpx.get(f"{base}/health/ready").status_code == 200, 20.0)
        assert httpx.get(f"{base}/health/ready").json() == {"ready": True, "reason": ""}
    wait_until(lambda: httpx.get(f"{base}/health/ready").status_code == 503, 20.0)
    assert httpx.get(f"{base}/health/live").status_code == 200


def test_the_cluster_and_its_nodes_are_described(http: httpx.Client, node: FakeNode) -> None:
    cluster = fetch(http, "/api/v1/cluster")
    assert cluster["ready"]
    assert cluster["nodes"] == {"live": 1}
    assert cluster["capacity_bytes"] == 64 << 20
    assert cluster["counters"]
    (listed,) = fetch(http, "/api/v1/nodes")["nodes"]
    assert (listed["name"], listed["node_id"], listed["state"]) == ("fake", node.node_id, "live")
    assert listed["capacity_bytes"] == 64 << 20
    alone = fetch(http, "/api/v1/node", name="fake")
    assert (alone["node_id"], alone["segments"]) == (listed["node_id"], listed["segments"])
    missing = fetch(http, "/api/v1/node", 404, name="nobody")
    assert missing["code"] == UnknownNode.code
    (segment,) = fetch(http, "/api/v1/segments")["segments"]
    assert segment["node"] == "fake"
    assert int(segment["incarnation"], 16) == node.incarnation
    assert listed["segments"] == [segment["incarnation"]]
    assert (segment["capacity_bytes"], segment["state"]) == (64 << 20, "live")


def test_disks_are_listed_beside_memory(start_master: Callable[..., MasterProcess]) -> None:
    alone = start_master()
    base = f"http://127.0.0.1:{alone.admin_port}"
    with FakeNode(alone.port, disk_bytes=256 << 20), httpx.Client(base_url=base) as http:
        found = fetch(http, "/api/v1/segments")["segments"]
        (listed,) = fetch(http, "/api/v1/nodes")["nodes"]
    assert [(each["tier"], each["capacity_bytes"]) for each in found] == [
        ("dram", 64 << 20),
        ("ssd", 256 << 20),
    ]
    assert [each["used_bytes"] for each in found] == [0, 0]
    assert listed["segments"] == [each["incarnation"] for each in found]


def test_a_parameter_given_twice_is_refused_and_nothing_is_removed(
    http: httpx.Client, wire: WireClient
) -> None:
    space = wire.ask(control.OpenNamespace("twice"))
    put(wire, space, "a", 10)
    put(wire, space, "b", 10)
    answer = http.delete("/api/v1/object?namespace=twice&key=a&key=b")
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument")
    assert "key is given more than once" in answer.json()["message"]
    listed = fetch(http, "/api/v1/objects", namespace="twice")["objects"]
    assert [each["key"] for each in listed] == ["a", "b"]


async def test_a_mistake_of_ours_is_answered_in_the_shape_of_all_answers() -> None:
    class Broken:
        async def nodes(self) -> None:
            raise ZeroDivisionError

    application = create_application(Broken(), None, None, "1")  # type: ignore[arg-type]
    transport = httpx.ASGITransport(application, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://master") as http:
        answer = await http.get("/api/v1/nodes")
    assert answer.status_code == 500
    assert answer.json()["code"] == InternalError.code
    assert "ZeroDivisionError" in answer.json()["message"]


@pytest.mark.parametrize("key", STRANGE_KEYS, ids=range(len(STRANGE_KEYS)))
def test_any_key_can_be_described_explained_and_removed(
    http: httpx.Client, wire: WireClient, key: str
) -> None:
    space = wire.ask(control.OpenNamespace("strange/name with spaces"))
    version = put(wire, space, key, 12_345)
    found = fetch(http, "/api/v1/object", key=key, namespace=space.name)
    assert (found["key"], found["version"], found["length"]) == (key, version, 12_345)
    (replica,) = found["replicas"]
    assert (replica["node"], replica["tier"]) == ("fake", "dram")
    assert fetch(http, "/api/v1/object/why", key=key, namespace=space.name)["readable"]
    answer = http.delete("/api/v1/object", params={"key": key, "namespace": space.name})
    assert (answer.status_code, answer.json()) == (200, {"removed": key})
    gone = fetch(http, "/api/v1/object", 404, key=key, namespace=space.name)
    assert gone["code"] == "object_not_found"
    why = fetch(http, "/api/v1/object/why", key=key, namespace=space.name)
    assert (why["readable"], why["reason"]) == (False, "removed")
    again = http.delete("/api/v1/object", params={"key": key, "namespace": space.name})
    assert again.status_code == 404


def test_objects_are_listed_by_prefix_page_by_page(http: httpx.Client, wire: WireClient) -> None:
    space = wire.ask(control.OpenNamespace("pages"))
    names = [f"a/{number:03}" for number in range(25)]
    for name in [*names, "b/other"]:
        put(wire, space, name)
    listed: list[str] = []
    cursor = ""
    for _ in range(100):
        page = fetch(
            http, "/api/v1/objects", namespace="pages", prefix="a/", cursor=cursor, limit=10
        )
        assert len(page["objects"]) <= 10
        listed += [each["key"] for each in page["objects"]]
        cursor = page["cursor"]
        if not cursor:
            break
    assert listed == names


def test_listing_and_describing_protect_nothing(http: httpx.Client, wire: WireClient) -> None:
    space = wire.ask(control.OpenNamespace("traceless"))
    put(wire, space, "k")
    fetch(http, "/api/v1/objects", namespace="traceless")
    fetch(http, "/api/v1/object", namespace="traceless", key="k")
    assert fetch(http, "/api/v1/object", namespace="traceless", key="k")["lease_left_s"] == 0


def test_a_namespace_is_cleared_in_one_step(http: httpx.Client, wire: WireClient) -> None:
    space = wire.ask(control.OpenNamespace("to clear", {"model": "m"}))
    for number in range(10):
        put(wire, space, f"k{number}")
    listed = {each["name"]: each for each in fetch(http, "/api/v1/namespaces")["namespaces"]}
    assert listed["to clear"] == {
        "name": "to clear",
        "epoch": space.epoch,
        "manifest": {"model": "m"},
        "objects": 10,
        "bytes": 10_000,
    }
    answer = http.delete("/api/v1/namespaces/objects", params={"namespace": "to clear"})
    assert answer.status_code == 200
    assert answer.json()["epoch"] == space.epoch + 1
    assert answer.json()["objects"] == 0
    assert fetch(http, "/api/v1/objects", namespace="to clear")["objects"] == []


def test_nothing_is_cleared_without_a_name(http: httpx.Client) -> None:
    for params in ({}, {"namespace": ""}, {"namespaces": "default"}):
        answer = http.delete("/api/v1/namespaces/objects", params=params)
        assert answer.status_code == 400
        assert answer.json()["code"] == "invalid_argument"


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/api/v1/object", 400, "invalid_argument"),
        ("/api/v1/object?key=", 400, "invalid_argument"),
        ("/api/v1/object?key=x&namespace=", 400, "invalid_argument"),
        ("/api/v1/object?key=" + "k" * 4097, 400, "invalid_argument"),
        ("/api/v1/object?key=%FF%FE", 400, "invalid_argument"),
        ("/api/v1/object?key=x&namespace=never-opened", 404, "object_not_found"),
        ("/api/v1/object?key=x&namespace=" + "n" * 300, 400, "invalid_argument"),
        ("/api/v1/objects?limit=0", 400, "invalid_argument"),
        ("/api/v1/objects?limit=1001", 400, "invalid_argument"),
        ("/api/v1/objects?limit=many", 400, "invalid_argument"),
        ("/api/v1/objects?namespace=never-opened", 404, "object_not_found"),
        ("/api/v1/objects?namspace=x", 400, "invalid_argument"),
        ("/api/v1/nodes?verbose=1", 400, "invalid_argument"),
        ("/api/v1/nothing", 404, "not_found"),
        ("/api/v1/object?key=" + "%20" * 21_700, 400, None),
    ],
)
def test_callers_errors_are_answered_as_such(
    http: httpx.Client, path: str, status: int, code: str | None
) -> None:
    answer = http.get(path)
    assert answer.status_code == status, answer.text
    if code is not None:
        assert answer.json()["code"] == code
        assert answer.json()["message"]


def test_a_cursor_that_was_never_given_is_a_callers_error(
    http: httpx.Client, wire: WireClient
) -> None:
    wire.ask(control.OpenNamespace("cursors"))
    for cursor in ("x", "-1", "9" * 40, "🔑", "1.2", "1.2.3.4"):
        answer = http.get("/api/v1/objects", params={"namespace": "cursors", "cursor": cursor})
        assert answer.status_code == 400, answer.text
        assert answer.json()["code"] == "invalid_argument"
    old = http.get("/api/v1/objects", params={"namespace": "cursors", "cursor": "1.0.0"})
    assert (old.status_code, old.json()["code"]) == (409, "stale_term")


def test_a_namespace_that_may_still_come_back_is_not_said_to_be_missing(
    start_master: Callable[..., MasterProcess],
) -> None:
    waiting = start_master(recovery_grace="10m", data_dir=None)
    base = f"http://127.0.0.1:{waiting.admin_port}"
    with httpx.Client(base_url=base, timeout=30.0, params={"namespace": "later"}) as http:
        for method, path in (("GET", "objects"), ("DELETE", "namespaces/objects")):
            answer = http.request(method, f"/api/v1/{path}")
            assert answer.status_code == 504, answer.text
            assert answer.json()["code"] == "deadline_exceeded"


def test_a_wrong_method_is_answered_as_such(http: httpx.Client) -> None:
    for method, path in (("POST", "/api/v1/namespaces/objects"), ("PUT", "/api/v1/object")):
        answer = http.request(method, path, params={"namespace": "default", "key": "k"})
        assert answer.status_code == 405
        assert answer.json()["code"] == "method_not_allowed"


def test_a_removal_on_a_silent_node_ends_within_its_deadline(
    http: httpx.Client, wire: WireClient, node: FakeNode
) -> None:
    space = wire.ask(control.OpenNamespace("silence"))
    put(wire, space, "k")
    node.silent.set()
    try:
        answer = http.delete("/api/v1/object", params={"key": "k", "namespace": "silence"})
    finally:
        node.silent.clear()
    assert answer.status_code in {200, 504}, answer.text
    assert fetch(http, "/api/v1/object", 404, key="k", namespace="silence")


def test_the_running_configuration_is_dumped(http: httpx.Client, master: MasterProcess) -> None:
    dump = fetch(http, "/api/v1/config")
    options = {each["name"]: each for each in dump["options"]}
    assert options["lease_ttl"]["value"] == "200ms"
    assert options["lease_ttl"]["default"] == "5s"
    assert options["lease_ttl"]["flag"] == "--lease-ttl"
    assert dump["rpc_addresses"] == [f"127.0.0.1:{master.port}"]
    assert dump["admin_addresses"] == [f"127.0.0.1:{master.admin_port}"]


def test_the_documentation_names_every_operation(http: httpx.Client) -> None:
    description = fetch(http, "/openapi.json")
    text = http.get("/docs").text
    assert "<script" not in text
    for path, methods in description["paths"].items():
        assert path in text
        for method, operation in methods.items():
            assert operation["description"], (method, path)
            assert {"200", "400"} <= set(operation["responses"]), (method, path)
    problem = description["components"]["schemas"]["Problem"]
    assert set(problem["required"]) == {"code", "message"}
    assert http.get("/").status_code == 200


def test_every_error_has_a_status() -> None:
    for kind in errors.BY_CODE.values():
        assert 400 <= status_of(kind("message")) <= 504
    assert status_of(StoreError("x")) == 502


def test_operators_requests_are_seen_by_nobody_else(http: httpx.Client, wire: WireClient) -> None:
    """A slow scan of many pages leaves others alone: they share the loop, page by page."""
    space = wire.ask(control.OpenNamespace("many"))
    for number in range(300):
        put(wire, space, f"k{number}")
    for _ in range(20):
        fetch(http, "/api/v1/objects", namespace="many", limit=300)
        wire.ask(control.Exists(space.slot, space.epoch, ["k1"]))


def test_limits_of_pins_are_set_listed_and_taken_back(http: httpx.Client) -> None:
    (pool,) = fetch(http, "/api/v1/limits")["limits"]
    assert (pool["namespace"], pool["pinned_share_max"], pool["is_set"]) == ("", 0.5, False)
    answer = http.put("/api/v1/limits", params={"namespace": "a/b", "pinned_share_max": 0.25})
    assert answer.status_code == 200
    _, own = answer.json()["limits"]
    assert own == {
        "namespace": "a/b", "pinned_share_max": 0.25, "pinned_bytes": 0,
        "pinned_bytes_max": 16 << 20, "is_set": True,
    }  # fmt: skip
    assert http.put("/api/v1/limits", params={"pinned_share_max": 2}).status_code == 400
    assert http.put("/api/v1/limits").status_code == 400
    assert http.delete("/api/v1/limits", params={"namespace": "a/b"}).json() == {"limits": [pool]}


def test_what_a_request_says_where_nobody_reads_is_refused(http: httpx.Client) -> None:
    path = "/api/v1/nodes/nobody/drain"
    for answer in (
        http.post(path, json={"timeout_s": 5}),
        http.post(path, content=iter([b"timeout_s=5"])),
        http.post(path, params={"timeout": "5s"}),
        http.delete("/api/v1/object", params={"key": "k", "namspace": "x"}),
    ):
        assert answer.status_code == 400, answer.text
        assert answer.json()["code"] == "invalid_argument"
    assert http.get("/metrics", params={"any": "thing"}).status_code == 200


def test_a_page_of_another_site_cannot_drain_a_node(http: httpx.Client) -> None:
    path = "/api/v1/nodes/nobody/drain"
    for origin in ("http://elsewhere.example", "null"):
        answer = http.post(path, headers={"Origin": origin})
        assert answer.status_code == 400
        assert "another site" in answer.json()["message"]
    assert http.post(path, headers={"Origin": str(http.base_url).rstrip("/")}).status_code == 404
    assert http.post(path).status_code == 404
    assert http.get("/api/v1/nodes", headers={"Origin": "null"}).status_code == 200
