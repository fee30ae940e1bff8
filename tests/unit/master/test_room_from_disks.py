"""Room that disks make: begun before it is needed, and given to whoever waits for any."""

from __future__ import annotations

from mooncake_store.limits import KIB
from mooncake_store.wire.control import CopyExtents, FreeExtents
from tests.unit.master.disks import OBJECT, copies, disk_of, fill, small
from tests.unit.master.rig import Rig


def deliver_all(rig: Rig, kind: type[CopyExtents | FreeExtents]) -> None:
    """Have the node answer the messages of one kind that it has now."""
    node = disk_of(rig)
    for which in reversed([at for at, (_, m) in enumerate(node.inbox) if isinstance(m, kind)]):
        rig.deliver(node, which=which)


def test_a_put_takes_the_first_room_there_is_and_not_its_own_window_at_the_end_of_the_queue() -> (
    None
):
    rig = small()
    fill(rig, "a", "b")
    rig.automatic = False
    number = rig.begin("c", length=OBJECT, deadline_s=5.0)  # has "a" written, the disk is slow
    rig.send_remove("b")
    deliver_all(rig, FreeExtents)
    assert rig.replies.pop(number).items[0].replicas, "the room of b is free"
    assert rig.exists("a") == [True]
    rig.automatic = True
    rig.settle()
    rig.tick()
    assert rig.exists("a") == [True], "it is on the disk by now"
    rig.check()


def test_what_a_window_had_not_begun_to_write_stays_in_memory_when_its_put_has_room() -> None:
    rig = small()
    fill(rig, "a", "b")
    (disk,) = rig.master._context.cluster.disks.values()
    rig.automatic = False
    disk.allowed = 0  # it is busy with others
    number = rig.begin("c", length=OBJECT, deadline_s=5.0)
    rig.send_remove("b")
    deliver_all(rig, FreeExtents)
    assert rig.replies.pop(number).items[0].replicas
    disk.allowed = 1 << 20
    rig.automatic = True
    rig.settle()
    rig.tick()
    assert copies(rig, "demotion", "done") == 0
    assert rig.exists("a") == [True]
    rig.check()


def test_demotion_ahead_of_need_begins_with_the_put_and_not_with_the_next_tick() -> None:
    rig = Rig(1 * KIB, lease_ttl_s=0.0, high_watermark=0.5, low_watermark=0.3)
    rig.give_disk(rig.add_node(64 * KIB, name="disk"))
    fill(rig, *"abcde")
    assert copies(rig, "demotion", "done") > 0, "no time has passed"
    rig.check()


def test_a_disk_is_asked_for_more_with_its_answer_and_not_with_the_next_tick() -> None:
    rig = Rig(1 * KIB, lease_ttl_s=0.0, high_watermark=0.5, low_watermark=0.1)
    rig.give_disk(rig.add_node(64 * KIB, name="disk"))
    (disk,) = rig.master._context.cluster.disks.values()
    disk.allowed = 1  # one object at a time
    fill(rig, *"abcde")
    rig.settle()
    used = rig.gauge('mooncake_master_node_used_bytes{node="disk"}')
    assert used <= 0.1 * 64 * KIB + OBJECT, "no time has passed"
    rig.check()
