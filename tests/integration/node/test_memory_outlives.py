"""A node process ends; its memory, its contents and its identity do not."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from mooncake_store.errors import StaleExtent, StaleTerm
from mooncake_store.testing import wait_until
from mooncake_store.wire import control

from .support import MIB, get, make_thing, put, shm_of, tcp_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .fake_master import FakeMaster
    from .support import NodeUnderTest

pytestmark = pytest.mark.processes


def test_a_killed_node_comes_back_with_contents_and_identity(
    master: FakeMaster, start_process: Callable[..., NodeUnderTest]
) -> None:
    master.epochs = {0: 1, 9: 4}
    node = start_process()
    before = master.wait_registered()
    assert before.landed == 0
    (segment,) = before.segments
    assert segment.bytes == 32 * MIB
    things = [make_thing(segment.incarnation, n * MIB, 5000 + n, key=f"k{n}") for n in range(20)]
    with tcp_of(before) as tcp, shm_of(before) as shm:
        put(tcp, *things[:10])
        put(shm, *things[10:])
        assert master.free(things[3].item, things[13].item) == b"\x01\x01"
        node.kill()
        assert not shm.is_connected()
        assert get(shm, things[0]) == things[0].content  # The memory does not need the process.
    node.start()
    after = master.wait_registered(2)
    assert (after.node_id, after.segments) == (before.node_id, before.segments)
    assert after.landed == 18
    assert after.term == 1
    assert after.epochs == {0: 1, 9: 4}
    assert "kept, 18 objects" in node.ready_line()
    with tcp_of(after) as tcp, shm_of(after) as shm:
        for number, thing in enumerate(things):
            if number in {3, 13}:
                with pytest.raises(StaleExtent):
                    get(tcp, thing)
                with pytest.raises(StaleTerm):
                    put(tcp, thing)
            else:
                assert get(tcp, thing) == thing.content
                assert get(shm, thing) == thing.content


def test_another_size_is_new_memory_under_a_new_incarnation(
    master: FakeMaster, start_process: Callable[..., NodeUnderTest]
) -> None:
    first = start_process()
    before = master.wait_registered()
    first.kill()
    second = start_process(dram="16MiB")
    after = master.wait_registered(2)
    assert after.segments[0].bytes == 16 * MIB
    assert after.segments[0].incarnation != before.segments[0].incarnation
    assert after.landed == 0
    assert "new" in second.ready_line()


def test_a_damaged_segment_file_is_replaced(
    master: FakeMaster, start_process: Callable[..., NodeUnderTest], root: Path
) -> None:
    node = start_process()
    before = master.wait_registered()
    node.kill()
    (file,) = root.glob("*/*/segment")
    with file.open("r+b") as raw:
        raw.write(b"garbage!")
    node.start()
    after = master.wait_registered(2)
    assert after.segments[0].incarnation != before.segments[0].incarnation


def test_two_processes_never_own_one_folder(
    master: FakeMaster, start_process: Callable[..., NodeUnderTest]
) -> None:
    first = start_process("same")
    master.wait_registered()
    second = start_process("same")
    wait_until(lambda: not second.is_running, 20)
    assert second.exit_code == 2
    assert "another process runs node 'same'" in second.output
    assert "Traceback" not in second.output
    assert first.is_running


def test_nodes_without_any_option_share_a_host(
    master: FakeMaster, start_process: Callable[..., NodeUnderTest]
) -> None:
    nodes = [start_process("", dram="2MiB") for _ in range(5)]
    master.wait_registered(5, deadline_s=60)
    names = {register.name for register in master.registers}
    assert {name.rsplit("-", 1)[1] for name in names} == {"0", "1", "2", "3", "4"}
    assert len({register.port for register in master.registers}) == 5
    assert len({register.node_id for register in master.registers}) == 5
    nodes[2].kill()
    nodes[2].start()
    again = master.wait_registered(6)
    assert again.name in names


@pytest.mark.parametrize(("on_stop", "kept"), [("release", False), ("keep", True)])
def test_a_clean_stop_does_with_the_memory_what_was_asked(
    master: FakeMaster, start_process: Callable[..., NodeUnderTest], root: Path,
    on_stop: str, kept: bool,  # noqa: FBT001 - pytest passes it by name
) -> None:  # fmt: skip
    node = start_process(on_stop=on_stop)
    register = master.wait_registered()
    thing = make_thing(register.segments[0].incarnation, 0, 1000)
    with tcp_of(register) as tcp:
        put(tcp, thing)
    assert node.terminate() == 0
    assert bool(list(root.glob("*/*/segment"))) is kept
    node.start()
    assert master.wait_registered(2).landed == int(kept)


_FAILING_STARTS = [
    pytest.param({"bind": "203.0.113.7"}, 2, id="no-such-address"),
    pytest.param({"ssd": "{root}/a-file:32MiB"}, 2, id="a-store-that-can-never-be"),
    pytest.param({"master": "127.0.0.1:1", "register_timeout": "500ms"}, 4, id="no-master"),
]


@pytest.mark.parametrize(("options", "code"), _FAILING_STARTS)
def test_a_start_that_fails_leaves_nothing_behind(
    start_process: Callable[..., NodeUnderTest], root: Path, options: dict[str, str], code: int
) -> None:
    (root / "a-file").touch()
    node = start_process(**{name: value.format(root=root) for name, value in options.items()})
    wait_until(lambda: not node.is_running, 30)
    assert node.exit_code == code
    assert not list(root.glob("*/*"))


@pytest.mark.parametrize(("options", "code"), _FAILING_STARTS)
def test_a_start_that_fails_keeps_what_was_there_before(
    master: FakeMaster, start_process: Callable[..., NodeUnderTest], root: Path,
    options: dict[str, str], code: int,
) -> None:  # fmt: skip
    (root / "a-file").touch()
    node = start_process()
    register = master.wait_registered()
    with tcp_of(register) as tcp:
        put(tcp, make_thing(register.segments[0].incarnation, 0, 1000))
    node.kill()
    failing = start_process(**{name: value.format(root=root) for name, value in options.items()})
    wait_until(lambda: not failing.is_running, 30)
    assert failing.exit_code == code
    node.start()
    after = master.wait_registered(2)
    assert (after.node_id, after.segments) == (register.node_id, register.segments)
    assert after.landed == 1


def test_the_memory_is_given_back_even_with_a_frozen_reader(
    master: FakeMaster, start_process: Callable[..., NodeUnderTest], root: Path
) -> None:
    node = start_process()
    register = master.wait_registered()
    with shm_of(register) as shm:
        thing = make_thing(register.segments[0].incarnation, 0, 1000)
        put(shm, thing)
        node.signal(signal.SIGTERM)
        wait_until(lambda: not node.is_running, 30)
        assert get(shm, thing) == thing.content
    assert not list(root.glob("*/*"))


def test_orders_of_an_older_reign_are_refused_and_newer_ones_fence_its_writers(
    master: FakeMaster, start_process: Callable[..., NodeUnderTest]
) -> None:
    master.term = 3
    start_process()
    register = master.wait_registered()
    assert master.free() == b""  # It has taken in whom it obeys: orders are read after that.
    incarnation = register.segments[0].incarnation
    old = make_thing(incarnation, 0, 1000, term=2)
    good = make_thing(incarnation, MIB, 1000, term=3)
    with tcp_of(register) as tcp, shm_of(register) as shm:
        for path in (tcp, shm):
            with pytest.raises(StaleTerm):
                put(path, old)
        put(tcp, good)
        with pytest.raises(StaleTerm):
            master.free(good.item, term=2)
        assert get(tcp, good) == good.content
    # The refusal ended that master's connection: the node looks for the one that reigns.
    assert master.wait_registered(2).term == 3
    master.order(control.SetEpochs(4, {}), control.Done)
    late = make_thing(incarnation, 2 * MIB, 1000, term=3)
    with shm_of(register) as shm, pytest.raises(StaleTerm):
        put(shm, late)
