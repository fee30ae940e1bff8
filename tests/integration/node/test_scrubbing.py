"""A running node finds damage by itself and reports it; serving goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_store.testing import wait_until
from mooncake_store.wire.control import DroppedItem

from .support import MIB, get, make_thing, put, tcp_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from mooncake_storage_node.app import StorageNode

    from .fake_master import FakeMaster

    Start = Callable[..., StorageNode]


def test_fr_038_damage_in_memory_is_reported_to_the_master(
    start_node: Start, master: FakeMaster
) -> None:
    node = start_node(scrub_rate=1 << 30)
    register = master.wait_registered()
    incarnation = register.segments[0].incarnation
    sound = make_thing(incarnation, 0, 2 * MIB, key="sound")
    bad = make_thing(incarnation, 4 * MIB, MIB, key="bad")
    with tcp_of(register) as path:
        for thing in (sound, bad):
            put(path, thing)
        node.pool.segment.extents[bad.offset + MIB // 2] ^= 1
        wait_until(lambda: master.dropped, 60.0, what="the damage is reported")
        version = bad.identity.version
        wanted = DroppedItem(incarnation, bad.offset, version, "checksum_mismatch")
        assert set(master.dropped) == {wanted}
        assert get(path, sound) == sound.content
    wait_until(lambda: any(beat.scrubbed_bytes >= 2 * MIB for beat in master.heartbeats), 20.0)


def test_a_node_may_be_told_not_to_scrub(start_node: Start, master: FakeMaster) -> None:
    node = start_node(scrub_rate=0)
    register = master.wait_registered()
    with tcp_of(register) as path:
        put(path, make_thing(register.segments[0].incarnation, 0, MIB))
    assert node.scrubber.rounds == 0
    node.stop()
    assert node.scrubber.extents == 0
