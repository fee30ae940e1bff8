"""Field reports about wrong, lost and mixed bytes: the client's part of them, provoked."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import textwrap
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from mooncake_client import (
    Client,
    PutResult,
    ReplicasUnavailable,
    StoreError,
    Unreachable,
)
from mooncake_store.testing import (
    Direction,
    Pass,
    Throttle,
    payload,
    wait_until,
)
from tests.integration.client.programs import (
    finished,
    resident_bytes,
    run_python,
)
from tests.stopwatch import Stopwatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from mooncake_store.testing import ProcessCluster

    Start = Callable[..., ProcessCluster]

pytestmark = pytest.mark.processes

PATTERN = 0xA5


class Reader(threading.Thread):
    """Reads known objects over and over, and judges every outcome."""

    def __init__(self, address: str, transport: str, values: dict[str, bytes]) -> None:
        super().__init__()
        self.outcomes = {"bytes": 0, "miss": 0, "error": 0}
        self.problems: list[str] = []
        self.stop = threading.Event()
        self._address = address
        self._transport = transport
        self._values = values

    def run(self) -> None:
        with Client(self._address, transport=self._transport, deadline_s=1.0) as client:
            while not self.stop.is_set():
                for key, value in self._values.items():
                    watch = Stopwatch()
                    self.outcomes[self._read(client, key, value)] += 1
                    if watch.spent_s() > 1.5:
                        self.problems.append(f"{key}: took {watch.spent_s():.2f} s")

    def _read(self, client: Client, key: str, value: bytes) -> str:
        buffer = bytearray([PATTERN]) * len(value)
        try:
            count = client.get_into(key, buffer)
        except StoreError:
            return "error"
        if count is None:
            return "miss"
        if count != len(value) or buffer != value:
            self.problems.append(f"{key}: {count} bytes, not what was put")
        return "bytes"


@pytest.mark.slow
def test_fr001_a_dying_master_and_node_cost_misses_and_errors_never_wrong_bytes(
    start: Start,
) -> None:
    cluster = start(2)
    values = {f"k{at}": payload(f"k{at}", 0, 1000 + 517 * at) for at in range(40)}
    with Client(cluster.address) as writer:
        assert all(isinstance(result, PutResult) for result in writer.put_many(values))
    readers = [Reader(cluster.address, name, values) for name in ("tcp", "shm")]
    for reader in readers:
        reader.start()
    try:
        wait_until(lambda: all(reader.outcomes["bytes"] > 0 for reader in readers), 60)
        cluster.master.kill()
        time.sleep(1.0)
        cluster.nodes[0].kill()
        time.sleep(1.0)
    finally:
        for reader in readers:
            reader.stop.set()
        for reader in readers:
            reader.join(30)
    assert [reader.problems for reader in readers] == [[], []]
    assert all(reader.outcomes["bytes"] > 0 for reader in readers)


def test_fr002_a_lost_object_stops_existing_and_can_be_put_again(start: Start) -> None:
    cluster = start(2)
    with Client(cluster.address, transport="tcp", deadline_s=5.0) as client:
        client.put("k", b"value", preferred=["node-1"])
        (replica,) = client.stat("k").replicas  # type: ignore[union-attr]
        holder = next(node for node in cluster.nodes if node.name == replica.node)
        holder.kill()
        with contextlib.suppress(ReplicasUnavailable):
            assert client.get("k") is None  # the master knows already
        wait_until(lambda: not client.exists("k"), 60.0, what="the object is known to be gone")
        assert client.put("k", b"again").created
        assert client.get("k") == b"again"


@pytest.mark.slow
def test_fr002_what_a_probe_holds_is_there_within_the_promised_time(start: Start) -> None:
    cluster = start(1, node_options={"dram": "16MiB"})
    stop = threading.Event()

    def press() -> None:
        with Client(cluster.address, deadline_s=5.0) as client:
            at = 0
            while not stop.is_set():
                client.put_many([(f"pressure{at}-{i}", bytes(100_000)) for i in range(8)])
                at += 1

    writer = threading.Thread(target=press)
    writer.start()
    try:
        with Client(cluster.address, location_cache=False, deadline_s=10.0) as client:
            held = 0
            for at in range(300):
                key = f"mine{at % 20}"
                if not client.probe(key, hold_s=30.0).readable:
                    client.put(key, b"x" * 10_000)
                    if not client.probe(key, hold_s=30.0).readable:
                        continue  # the pressure was quicker
                held += 1
                assert client.get(key) == b"x" * 10_000
            assert held > 50
    finally:
        stop.set()
        writer.join(30)


def test_fr013_keys_mean_the_same_in_every_process(cluster: ProcessCluster) -> None:
    program = """
        import sys
        from mooncake_client import Client
        with Client(sys.argv[1], namespace="fr013") as client:
            for at in range(50):
                key = f"block/{at}"
                if sys.argv[2] == "put":
                    assert client.put(key, key.encode()).created
                else:
                    assert client.get(key) == key.encode()
    """
    address = cluster.master.address
    finished(run_python(program, address, "put", PYTHONHASHSEED="1"))
    for seed in ("2", "random"):
        finished(run_python(program, address, "get", PYTHONHASHSEED=seed))


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_fr016_sixteen_processes_putting_one_key_agree_on_one_winner(
    cluster: ProcessCluster, transport: str
) -> None:
    program = """
        import sys
        from mooncake_client import Client
        writer = int(sys.argv[2])
        options = {"namespace": sys.argv[4], "transport": sys.argv[3], "deadline_s": 60}
        with Client(sys.argv[1], **options) as client:
            client.exists("warm")
            print("ready", flush=True)
            sys.stdin.readline()
            for size in (1, 4096, 300_000, 2 << 20):
                for round in range(3):
                    key = f"{size}/{round}"
                    result = client.put(key, bytes([writer]) * size)
                    value = client.get(key)
                    assert len(value) == size and len(set(value)) == 1, "mixed or cut"
                    assert result.created == (value[0] == writer) or not result.created
                    print(key, int(result.created), value[0], flush=True)
    """
    space = f"fr016-{transport}"
    writers = [
        subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-c", textwrap.dedent(program), cluster.master.address, str(number),
             transport, space],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for number in range(16)
    ]  # fmt: skip
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    outs = []
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
    for writer in writers:
        out, err = writer.communicate(timeout=100)
        assert writer.returncode == 0, err
        outs.append(out)
    created: dict[str, int] = {}
    values: dict[str, set[str]] = {}
    for out in outs:
        for line in out.splitlines():
            key, did_create, value = line.split()
            created[key] = created.get(key, 0) + int(did_create)
            values.setdefault(key, set()).add(value)
    assert set(created.values()) == {1}
    assert all(len(seen) == 1 for seen in values.values())
    with Client(cluster.master.address, namespace=space) as client:
        client.clear()


@pytest.mark.slow
def test_fr019_a_transfer_longer_than_its_lease_is_right_or_fails(start: Start) -> None:
    cluster = start(
        1,
        proxied=True,
        master_options={"lease-ttl": "500ms"},
        node_options={"dram": "16MiB"},
    )
    values = {f"k{at}": payload(f"k{at}", 0, 1 << 20) for at in range(6)}
    node = cluster.nodes[0]
    assert node.data is not None
    with (
        Client(cluster.address, transport="tcp", deadline_s=30.0) as client,
        Client(cluster.address, transport="tcp", deadline_s=30.0) as other,
    ):
        client.put_many(values)
        node.data.set(Throttle(3e6), Direction.DOWN)
        # Nothing overwrites the pool: a slow read succeeds, leases renewed or not.
        assert client.get_many(values) == list(values.values())
        # Something does: every outcome is the exact bytes, a miss, or an error.
        client.forget_locations()
        stop = threading.Event()
        outcomes: list[Any] = [None] * len(values)

        def overwrite() -> None:
            at = 0
            while not stop.is_set():
                other.put_many([(f"new{at}-{i}", bytes(1 << 20)) for i in range(4)])
                at += 1

        writer = threading.Thread(target=overwrite)
        writer.start()
        try:
            outcomes = client.get_many(values)
            part = client.get("k5", start=500_000, length=100_000)
        except StoreError:
            part = None
        finally:
            stop.set()
            writer.join(60)
            node.data.set(Pass(), Direction.BOTH)
        for key, outcome in zip(values, outcomes, strict=True):
            assert outcome is None or isinstance(outcome, StoreError) or outcome == values[key]
        assert part is None or part == values["k5"][500_000:600_000]


@pytest.mark.slow
def test_fr020_ranks_that_share_a_probe_id_get_one_answer(start: Start) -> None:
    cluster = start(1, node_options={"dram": "16MiB"})
    chain = [f"block{at}" for at in range(300)]
    stop = threading.Event()

    def press() -> None:
        with Client(cluster.address) as client:
            at = 0
            while not stop.is_set():
                client.put_many([(f"pressure{at}-{i}", bytes(50_000)) for i in range(16)])
                at += 1

    with Client(cluster.address) as client:
        client.put_many([(key, key.encode() * 1000) for key in chain])
    writer = threading.Thread(target=press)
    writer.start()
    try:
        for turn in range(5):
            answers: list[int] = []
            wrong: list[str] = []

            def ask(
                turn: int = turn, answers: list[int] = answers, wrong: list[str] = wrong
            ) -> None:
                with Client(cluster.address, deadline_s=10.0) as rank:
                    count = rank.match_prefix(chain, hold_s=30.0, probe_id=f"request{turn}").count
                    answers.append(count)
                    values = rank.get_many(chain[:count])
                    wrong.extend(
                        key
                        for key, value in zip(chain, values, strict=False)
                        if value != key.encode() * 1000
                    )

            ranks = [threading.Thread(target=ask) for _ in range(8)]
            for rank in ranks:
                rank.start()
            for rank in ranks:
                rank.join(60)
            assert len(answers) == 8
            assert len(set(answers)) == 1
            assert not wrong
    finally:
        stop.set()
        writer.join(30)


@pytest.mark.slow
def test_fr042_objects_put_together_are_seen_all_or_none(cluster: ProcessCluster) -> None:
    stop = threading.Event()
    problems: list[str] = []

    def read() -> None:
        with Client(cluster.master.address, namespace="fr042", location_cache=False) as client:
            while not stop.is_set():
                for at in range(30):
                    found = client.exists_many([f"{at}/{part}" for part in range(4)])
                    if len(set(found)) > 1:
                        problems.append(f"group {at}: {found}")

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with Client(cluster.master.address, namespace="fr042") as client:
            for at in range(30):
                client.put_together({f"{at}/{part}": bytes(20_000) for part in range(4)})
    finally:
        stop.set()
        reader.join(30)
    assert not problems


@pytest.mark.slow
def test_fr045_processes_of_one_host_exchange_exact_bytes(cluster: ProcessCluster) -> None:
    program = """
        import sys
        from mooncake_client import Client
        me, count = int(sys.argv[2]), 4
        with Client(sys.argv[1], namespace="fr045", deadline_s=30) as client:
            client.put_many([(f"{me}/{at}", bytes([me]) * (1000 + at)) for at in range(25)])
            for other in range(count):
                for at in range(25):
                    value = client.get(f"{other}/{at}", wait_s=20)
                    while value is None:
                        value = client.get(f"{other}/{at}", wait_s=20)
                    assert value == bytes([other]) * (1000 + at)
            print(*client.statistics().bytes_read)
    """
    processes = [run_python(program, cluster.master.address, str(number)) for number in range(4)]
    assert {finished(process).strip() for process in processes} == {"shm"}


def test_fr047_remove_is_idempotent_and_not_delayed_by_reads(cluster: ProcessCluster) -> None:
    with Client(cluster.master.address, namespace="fr047") as client:
        client.put("k", b"value")
        client.get("k")
        client.exists("k")
        watch = Stopwatch()
        assert client.remove("k") is True
        assert watch.spent_s() < 2.0
        assert client.remove("k") is False
        assert client.get("k") is None
        assert client.put("k", b"again").created
        assert client.remove_many(["k", "never", "k"]) == [True, False, False]


def test_fr052_large_and_odd_sizes_are_exact_on_every_call(cluster: ProcessCluster) -> None:
    for transport in ("tcp", "shm"):
        space = f"fr052-{transport}"
        with Client(
            cluster.master.address, namespace=space, transport=transport, deadline_s=60.0
        ) as client:
            for size in ((32 << 20) + 1, (8 << 20) - 1):
                value = payload("k", size, size)
                client.put("k", value, replace=True)
                assert client.get("k") == value
                assert client.get_many(["k"]) == [value]
                assert client.get("k", start=size - 10) == value[-10:]
            client.clear()


@pytest.mark.slow
def test_fr058_failing_parts_of_batches_leak_nothing() -> None:
    with Client("local://?dram=64MiB") as client:
        keys = [f"k{at}" for at in range(100)]
        client.put_many([(key, bytes(10_000)) for key in keys[:70]])
        turns = 0

        class OneInTwenty:
            def before(self, _: object) -> StoreError | None:
                nonlocal turns
                turns += 1
                return Unreachable("injected") if turns % 20 == 0 else None

            def after(self, _: object) -> StoreError | None:
                return None

        client._backend.cluster.path._faults = OneInTwenty()  # type: ignore[attr-defined]
        buffers = [bytearray(10_000) for _ in keys]
        levels = []
        for turn in range(1200):
            if turn % 2:
                outcomes: list[Any] = client.get_many(keys)
            else:
                outcomes = client.get_into_many(keys, buffers)
            assert all(outcome is None for outcome in outcomes[70:])
            if turn % 200 == 199:
                levels.append(resident_bytes())
        assert levels[-1] <= levels[1] * 1.02
