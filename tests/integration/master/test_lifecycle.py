"""Starting, what is printed, where it listens, stopping, and configurations that cannot work."""

from __future__ import annotations

import json
import logging
import re
import resource
import signal
import socket
import subprocess
import time
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

import httpx
import pytest

from mooncake_store import command
from mooncake_store.errors import Overloaded, StoreError
from mooncake_store.testing import MasterProcess, WireClient, free_port, wait_until
from mooncake_store.wire import control
from tests.integration.master.conftest import COMMAND, START_S_MAX
from tests.integration.master.fake_node import FakeNode, put

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.processes

BAD_CONFIG_S_MAX = 5.0
WILDCARD = "0.0.0.0"  # noqa: S104 - on free ports, for a moment


class Run:
    """A master whose standard streams we read."""

    def __init__(self, *words: str, limit_files: int = 0) -> None:
        self.process = subprocess.Popen(  # noqa: S603 - own interpreter, words of the test
            [*COMMAND, "master", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=(lambda: limit(limit_files)) if limit_files else None,  # noqa: PLW1509 - no threads
        )

    def ready_line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("master ready: "), (line, self.process.stderr)
        return line

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str, str]:
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err


def limit(files: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))


@pytest.fixture
def run() -> Iterator[Callable[..., Run]]:
    running: list[Run] = []

    def start(*words: str, limit_files: int = 0) -> Run:
        running.append(Run(*words, limit_files=limit_files))
        return running[-1]

    yield start
    for each in running:
        if each.process.poll() is None:
            each.process.kill()
        each.process.communicate()


def field(line: str, name: str) -> str:
    found = re.search(rf"\b{name}=(\S+)", line)
    assert found, line
    return found[1]


FREE = ("--port", "0", "--admin-port", "0")


def test_one_line_says_where_everything_is(run: Callable[..., Run]) -> None:
    started = run("--bind", "127.0.0.1,::1", "--cluster-id", "blue", *FREE)
    line = started.ready_line()
    first, second = field(line, "rpc").split(",")
    port = int(first.removeprefix("127.0.0.1:"))
    assert second == f"[::1]:{port}"
    assert field(line, "advertise") == first
    assert field(line, "cluster") == "blue"
    for host in ("127.0.0.1", "::1", "localhost"):
        with WireClient(host, port) as wire:
            assert wire.welcome.cluster_id == "blue"
    assert httpx.get(field(line, "admin") + "/health/live").status_code == 200
    code, out, err = started.end()
    assert (code, out, err) == (0, "", err)
    assert "Traceback" not in err


@pytest.mark.parametrize("bind", ["::1", "::"])
def test_it_listens_on_every_form_of_address(run: Callable[..., Run], bind: str) -> None:
    started = run("--bind", bind, "--admin-bind", bind, *FREE)
    line = started.ready_line()
    port = int(field(line, "rpc").rsplit(":", 1)[1])
    admin_port = int(field(line, "admin").rsplit(":", 1)[1])
    host = "::1" if "::1" in bind else "127.0.0.1"
    WireClient(host, port).close()
    if bind == "::":
        WireClient("::1", port).close()
    shown = f"[{host}]" if ":" in host else host
    assert httpx.get(f"http://{shown}:{admin_port}/health/live").status_code == 200
    if bind in {WILDCARD, "::", "*"}:
        assert field(line, "advertise").split(":")[0] == socket.gethostname()
    assert started.end()[0] == 0


def test_an_address_that_others_cannot_use_is_warned_of(run: Callable[..., Run]) -> None:
    started = run("--bind", WILDCARD, "--advertise", "localhost:5", *FREE)
    started.ready_line()
    code, _, err = started.end()
    assert code == 0
    assert "warning" in err
    assert "--advertise" in err


def test_an_advertised_name_is_shown_as_given(run: Callable[..., Run]) -> None:
    line = run("--bind", WILDCARD, "--advertise", "cache.example:7777", *FREE).ready_line()
    assert field(line, "advertise") == "cache.example:7777"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_success(run: Callable[..., Run], number: int) -> None:
    started = run(*FREE)
    started.ready_line()
    code, _, err = started.end(number)
    assert code == 0
    assert "Traceback" not in err


def test_it_ends_in_time_whatever_its_peers_do(run: Callable[..., Run]) -> None:
    started = run("--stop-timeout", "2s", *FREE)
    line = started.ready_line()
    port = int(field(line, "rpc").split(",")[0].rsplit(":", 1)[1])
    admin = httpx.URL(field(line, "admin"))
    idle = [WireClient("127.0.0.1", port) for _ in range(20)]
    silent = [socket.create_connection((admin.host, admin.port or 0)) for _ in range(5)]
    space = idle[0].ask(control.OpenNamespace("default"))
    waiting = control.PutStart(space.slot, space.epoch, [control.PutItem("k", 1)])
    idle[0].send(waiting, deadline_s=3600.0)
    code, _, _ = started.end()
    assert code == 0
    for client in idle:
        client.close()
    for connection in silent:
        connection.close()


def test_requests_under_way_are_answered_before_it_ends(
    start_master: Callable[..., MasterProcess],
) -> None:
    master = start_master(recovery_grace="0s")
    with FakeNode(master.port), WireClient("127.0.0.1", master.port) as wire:
        space = wire.ask(control.OpenNamespace("default"))
        grant = wire.ask(control.PutStart(space.slot, space.epoch, [control.PutItem("k", 1)]))
        # Another writer's put of the same key waits for this one.
        with WireClient("127.0.0.1", master.port) as other:
            put_start = control.PutStart(space.slot, space.epoch, [control.PutItem("k", 1)])
            number = other.send(put_start, deadline_s=20.0)
            wire.ask(control.ListNamespaces())
            master.signal(signal.SIGTERM)
            version = grant.items[0].version
            wire.ask(control.PutCommit([control.CommitItem(version, 1)]))
            assert other.reply(number).items[0] == control.PutExists(version)
    assert master.wait(30.0) == 0


def test_two_masters_on_one_machine_share_nothing(run: Callable[..., Run]) -> None:
    lines = [run(*FREE).ready_line() for _ in range(2)]
    assert len({field(line, "cluster") for line in lines}) == 2
    assert len({field(line, "rpc") for line in lines}) == 2


def test_json_logs_are_json(run: Callable[..., Run]) -> None:
    started = run("--bind", WILDCARD, "--advertise", "127.0.0.1", "--log-format", "json", *FREE)
    started.ready_line()
    _, _, err = started.end()
    records = [json.loads(line) for line in err.splitlines()]
    assert {"time", "level", "logger", "message"} <= set(records[0])
    assert records[0]["level"] == "warning"


def test_few_open_files_give_a_clean_refusal(run: Callable[..., Run]) -> None:
    started = run(*FREE, limit_files=256)
    port = int(field(started.ready_line(), "rpc").split(",")[0].rsplit(":", 1)[1])
    connections: list[WireClient] = []
    with pytest.raises(Overloaded, match="connections"):
        connections.extend(WireClient("127.0.0.1", port) for _ in range(300))
    assert len(connections) >= 150
    for each in connections:
        each.close()
    wait_until(lambda: connects(port), 30.0, ignoring=(StoreError,))
    code, _, err = started.end()
    assert code == 0
    assert "256 files" in err


def test_the_connection_limit_is_kept(start_master: Callable[..., MasterProcess]) -> None:
    master = start_master(connections_max=16)
    kept = [WireClient("127.0.0.1", master.port) for _ in range(16)]
    with pytest.raises(Overloaded, match="--connections-max"):
        WireClient("127.0.0.1", master.port)
    kept.pop().close()
    wait_until(lambda: connects(master.port), 30.0, ignoring=(StoreError,))
    for each in kept:
        each.close()


def connects(port: int) -> bool:
    WireClient("127.0.0.1", port).close()
    return True


def test_many_connections_that_came_and_went_leave_nothing(
    start_master: Callable[..., MasterProcess],
) -> None:
    """Cycles that outlive a young collection are never freed: connections must have none."""
    master = start_master()

    def churn(count: int) -> None:
        for _ in range(count):
            with WireClient("127.0.0.1", master.port) as wire:
                wire.ask(control.ListNamespaces())

    churn(500)
    before = master.memory_bytes()
    files = master.open_files()
    churn(3000)
    wait_until(lambda: master.open_files() <= files + 2, 30.0)
    assert master.memory_bytes() - before < 2 << 20


def test_sixty_four_clients_that_start_together_are_all_served(
    start_master: Callable[..., MasterProcess],
) -> None:
    master = start_master()
    sockets = []
    for _ in range(64):
        each = socket.socket()
        each.settimeout(0.0)
        each.connect_ex(("127.0.0.1", master.port))
        sockets.append(each)
    for each in sockets:
        each.close()
    clients = [WireClient("127.0.0.1", master.port) for _ in range(64)]
    for client in clients:
        client.close()


def test_an_object_survives_a_paused_master(start_master: Callable[..., MasterProcess]) -> None:
    master = start_master(recovery_grace="0s", suspect_after="1s", dead_after="2s")
    with FakeNode(master.port), WireClient("127.0.0.1", master.port) as wire:
        space = wire.ask(control.OpenNamespace("default"))
        put(wire, space, "k")
        master.pause()
        time.sleep(3.0)  # longer than a node may be silent
        master.resume()
        assert wire.ask(control.Exists(space.slot, space.epoch, ["k"])).found == b"\1"


# --- configurations that cannot work --------------------------------------------------------------


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


BAD_OPTIONS = [
    (["--port", "99999"], "port"),
    (["--port", "http"], "port"),
    (["--port", "-1"], "port"),
    (["--lease-ttl", "5"], "lease_ttl"),
    (["--lease-ttl", "5 parsecs"], "lease_ttl"),
    (["--lease-ttl", "-1s"], "lease_ttl"),
    (["--lease-ttl", "0s"], "lease_ttl"),
    (["--write-buffer-max", "64"], "write_buffer_max"),
    (["--write-buffer-max", "1KiB"], "write_buffer_max"),
    (["--high-watermark", "1.5"], "high_watermark"),
    (["--high-watermark", "nan"], "high_watermark"),
    (["--low-watermark", "0.99"], "low_watermark"),
    (["--heartbeat", "5s"], "heartbeat"),
    (["--policy", "random"], "policy"),
    (["--log-level", "loud"], "log_level"),
    (["--log-format", "xml"], "log_format"),
    (["--bind", ""], "bind"),
    (["--bind", "a:b:c"], "bind"),
    (["--bind", "[::1"], "bind"),
    (["--bind", "127.0.0.1:70000"], "bind"),
    (["--bind", "no-such-host.invalid"], "--bind"),
    (["--bind", "192.0.2.1"], "--bind"),
    (["--advertise", "a b"], "advertise"),
    (["--cluster-id", "x" * 65], "cluster_id"),
    (["--port", "7000", "--admin-port", "7000"], "admin_port"),
    (["--config", "/nonexistent/file.yaml"], "--config"),
    (["--no-such-option", "1"], "--no-such-option"),
]


@pytest.mark.parametrize(("words", "named"), BAD_OPTIONS, ids=lambda value: str(value)[:40])
def test_a_bad_configuration_ends_it_with_one_line(
    capsys: pytest.CaptureFixture[str], words: list[str], named: str
) -> None:
    check_refusal(capsys, [*FREE, *words], named)


@pytest.mark.parametrize("option", ["bind", "admin-bind"])
def test_a_taken_port_is_named(capsys: pytest.CaptureFixture[str], taken: int, option: str) -> None:
    check_refusal(capsys, [*FREE, f"--{option}", f"127.0.0.1:{taken}"], f"127.0.0.1:{taken}")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("master: {lease: 5s}", "lease"),
        ("master: {lease_ttl: 5}", "lease_ttl"),
        ("master: [1, 2]", "master"),
        ("masters: {}", "masters"),
        ("master: {lease_ttl: 5s, lease_ttl: 6s}", "lease_ttl"),
        ("{", "YAML"),
    ],
)
def test_a_bad_file_ends_it_with_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, named: str
) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    check_refusal(capsys, [*FREE, "--config", str(file)], named)


@pytest.mark.parametrize("variable", ["MOONCAKE_STORE_MASTER_LEASE_TTL=5", "MOONCAKE_STORE_NAME=x"])
def test_a_bad_variable_ends_it_with_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    name, value = variable.split("=")
    monkeypatch.setenv(name, value)
    check_refusal(capsys, [*FREE], name)


def check_refusal(capsys: pytest.CaptureFixture[str], words: list[str], named: str) -> None:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    try:
        code = command.run(["master", *words], entry_points(group=command.COMMAND_GROUP))
    finally:
        root.handlers[:], root.level = before
    out, err = capsys.readouterr()
    check_complaint(code, out, err, named)


def check_complaint(code: int, out: str, err: str, named: str) -> None:
    assert code == 2, err
    assert out == ""
    assert named in err, err
    assert len(err.splitlines()) == 1, err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "named"),
    [(["--lease-ttl", "5"], "lease_ttl"), (["--bind", "192.0.2.1"], "--bind 192.0.2.1")],
)
def test_a_refusal_takes_a_process_little_time(words: list[str], named: str) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(  # noqa: S603 - own interpreter, words of the test
        [*COMMAND, "master", *FREE, *words],
        capture_output=True,
        text=True,
        timeout=START_S_MAX,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    took_s = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    assert took_s < BAD_CONFIG_S_MAX  # of processor time, whatever else this machine does
    check_complaint(done.returncode, done.stdout, done.stderr, named.split(maxsplit=1)[0])


def test_a_port_can_be_used_again_at_once(run: Callable[..., Run]) -> None:
    port = free_port()
    for _ in range(2):
        started = run("--bind", f"127.0.0.1:{port}", "--admin-port", "0")
        started.ready_line()
        with WireClient("127.0.0.1", port):
            assert started.end()[0] == 0
