"""The master's core against a plain dict, with nodes that answer late, lose answers and go away.

What readers were told is compared with the bytes that the pretended nodes really hold, so that a
location which the master believes in and the node does not is found at once.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from mooncake_master.core.draining import alone_on
from mooncake_master.core.freeing import Freer
from mooncake_master.core.records import wire_offset
from mooncake_store.limits import KIB
from mooncake_store.types import MissReason
from mooncake_store.wire.control import (
    Clear,
    CommitItem,
    Committed,
    Done,
    Drain,
    FreeExtents,
    Locate,
    Located,
    Location,
    MatchPrefix,
    Probe,
    PutAbort,
    PutCommit,
    PutExists,
    PutGrant,
    PutStarted,
    Remove,
    ReportDropped,
    SetPin,
    Undrain,
)
from tests.unit.master.rig import SPACE, Free, Rig

KEYS = [f"k{number}" for number in range(8)]
NODE_BYTES = 40 * KIB
keys = st.sampled_from(KEYS)
key_lists = st.lists(keys, min_size=1, max_size=4, unique=True)
lengths = st.sampled_from([0, 100, 5 * KIB, 11 * KIB, 20 * KIB])
peers = st.integers(1, 3)


class Order(NamedTuple):
    """What a writer asks for."""

    keys: list[str]
    length: int
    replicas: int
    replace: bool
    together: bool
    hinted: bool


orders = st.builds(
    Order, key_lists, lengths, st.sampled_from([1, 1, 2]), st.booleans(), st.booleans(),
    st.booleans(),
)  # fmt: skip


class Write:
    """A put as the model sees it."""

    def __init__(self, started: PutStarted, keys: list[str], length: int, peer: int) -> None:
        self.items = [
            (key, item)
            for key, item in zip(keys, started.items, strict=True)
            if isinstance(item, PutGrant)
        ]
        self.length = length
        self.peer = peer


class MasterModel(RuleBasedStateMachine):
    writes = Bundle("writes")

    def __init__(self) -> None:
        super().__init__()
        self.rig: Rig
        self.values: dict[str, int] = {}
        """{key: version} of what was acknowledged and not taken back."""
        self.pending: dict[int, tuple[str, Free]] = {}
        """{request: (what, details)} that were not answered yet."""
        self.doubtful: set[str] = set()
        """Keys with a change under way: what a reader gets is either value."""
        self.leases: dict[tuple[str, int], tuple[float, Location]] = {}
        self.counters: dict[str, int] = {}
        self.in_sets: set[int] = set()
        self.ever: set[int] = set()
        """Versions that were readable once."""

    @initialize(
        nodes=st.integers(1, 3), grouped=st.booleans(), disks=st.booleans(), moves=st.booleans()
    )
    def begin(self, nodes: int, *, grouped: bool, disks: bool, moves: bool) -> None:
        self.rig = Rig(
            *[NODE_BYTES] * nodes, lease_ttl_s=1.0, put_ttl_s=3.0, acknowledge_grace_s=0.5,
            evict_slice=3, free_batch=2, pinned_share_max=0.4, rebalance_rate=1e9 * moves,
        )  # fmt: skip
        if disks:
            for node in self.rig.nodes.values():
                self.rig.give_disk(node)
        self.hints: dict[str, str] = {"group": "g"} if grouped else {"parent": KEYS[0]}
        self.rig.automatic = False

    # --- clients --------------------------------------------------------------------------------

    @rule(target=writes, order=orders, peer=peers)
    def start(self, order: Order, peer: int) -> Free:
        self.send_start(order, peer)
        return multiple(*self.collect())

    @rule(order=orders, peer=peers)
    def put(self, order: Order, peer: int) -> None:
        """A put whose writer is quick, and whose node answers at once."""
        self.send_start(order, peer)
        self.rig.settle()
        for write in self.collect():
            self.commit(write, part=3, land=True)
        self.rig.settle()
        self.collect()

    @rule(order=orders, peer=peers)
    def put_again(self, order: Order, peer: int) -> None:
        """The same: most of what happens is that."""
        self.put(order, peer)

    def send_start(self, order: Order, peer: int) -> None:
        number = self.rig.begin(
            *order.keys, length=order.length, peer=peer, deadline_s=2.0, replace=order.replace,
            replicas=order.replicas, together=order.together,
            item=self.hints if order.hinted else None,
        )  # fmt: skip
        self.pending[number] = ("start", (order.keys, order.length, peer))

    @rule(write=consumes(writes), land=st.booleans(), part=st.integers(1, 3))
    def commit(self, write: Write, part: int, *, land: bool) -> None:
        for key, grant in write.items:
            for at, replica in enumerate(grant.replicas):
                if land and part >> at & 1:
                    self.rig.write(replica, grant, key, write.length)
        message = PutCommit(
            [CommitItem(grant.version, part if land else 0) for _, grant in write.items]
        )
        number = self.rig.send(message, peer=write.peer, deadline_s=2.0)
        self.pending[number] = ("commit", write)
        self.doubtful.update(key for key, _ in write.items)
        self.collect()

    @rule(write=consumes(writes))
    def abort(self, write: Write) -> None:
        message = PutAbort([grant.version for _, grant in write.items])
        number = self.rig.send(message, peer=write.peer)
        assert isinstance(self.rig.replies.pop(number), Done)

    @rule(keys=key_lists)
    def remove(self, keys: list[str]) -> None:
        number = self.rig.send(Remove(self.rig.slot, self.rig.epoch, keys), deadline_s=2.0)
        for key in keys:
            self.values.pop(key, None)
        self.pending[number] = ("remove", keys)
        self.collect()

    @rule(keys=key_lists, wait_ms=st.sampled_from([0, 500]))
    def locate(self, keys: list[str], wait_ms: int) -> None:
        message = Locate(self.rig.slot, self.rig.epoch, keys, wait_ms)
        number = self.rig.send(message, peer=9, deadline_s=1.0)
        self.pending[number] = ("locate", keys)
        self.collect()

    @rule(keys=key_lists, hold_s=st.sampled_from([0.0, 0.7]), prefix=st.booleans())
    def probe(self, keys: list[str], hold_s: float, *, prefix: bool) -> None:
        kind = MatchPrefix if prefix else Probe
        reply = self.rig.replies.pop(
            self.rig.send(kind(self.rig.slot, self.rig.epoch, keys, hold_s), peer=9)
        )
        found = reply.count if prefix else sum(item.presence == 1 for item in reply.items)
        there = self.rig.replies.pop(
            self.rig.send(Locate(self.rig.slot, self.rig.epoch, []), peer=9)
        )
        assert isinstance(there, Located)
        assert 0 <= found <= len(keys)

    @rule(keys=key_lists, pin=st.integers(0, 2))
    def pin(self, keys: list[str], pin: int) -> None:
        message = SetPin(self.rig.slot, self.rig.epoch, keys, pin, 1.5 if pin == 1 else 0.0)
        self.rig.replies.pop(self.rig.send(message))

    @rule(key=keys, data=st.data())
    def copy(self, key: str, data: st.DataObject) -> None:
        """One more replica, as repairs, drains and promotions make them."""
        stored = self.rig.find(key)
        if stored is None or not stored.readable:
            return
        there = {extent.segment.node.name for extent in stored.extents()}
        others = [name for name, node in self.rig.nodes.items() if node.peer and name not in there]
        if others:
            ended: list[str] = []
            self.rig.copy(key, data.draw(st.sampled_from(others)), ended)

    # --- nodes ----------------------------------------------------------------------------------

    @rule(data=st.data(), lose=st.booleans())
    def node_answers(self, data: st.DataObject, *, lose: bool) -> None:
        node = data.draw(st.sampled_from([*self.rig.nodes.values()]))
        if node.inbox:
            which = data.draw(st.integers(0, len(node.inbox) - 1))
            self.rig.deliver(node, lose=lose, which=which)
            self.collect()

    @rule()
    def all_nodes_answer(self) -> None:
        self.rig.settle()
        self.collect()

    @rule(data=st.data())
    def local_writer_stalls(self, data: st.DataObject) -> None:
        node = data.draw(st.sampled_from([*self.rig.nodes.values()]))
        items = [
            (item.incarnation, item.offset)
            for _, message in node.inbox
            if isinstance(message, FreeExtents)
            for item in message.items
        ]
        node.busy = set(items[:1])

    @rule()
    def local_writers_go_on(self) -> None:
        for node in self.rig.nodes.values():
            node.busy.clear()

    @rule(data=st.data())
    def disk_gives_an_entry_up(self, data: st.DataObject) -> None:
        """Its store evicts as it likes, leases or not: a reader finds that out by the header."""
        node = data.draw(st.sampled_from([*self.rig.nodes.values()]))
        there = sorted(node.on_disk())
        if there and node.peer:
            key = data.draw(st.sampled_from(there))
            item = node.forget(key)
            self.leases = {place: lease for place, lease in self.leases.items() if place[0] != key}
            self.rig.send(ReportDropped(node.index, [item]), peer=8)

    @rule(data=st.data())
    def disk_fails_or_recovers(self, data: st.DataObject) -> None:
        node = data.draw(st.sampled_from([*self.rig.nodes.values()]))
        node.disk_fails = not node.disk_fails

    @rule(data=st.data())
    def node_is_cut_off_or_returns(self, data: st.DataObject) -> None:
        node = data.draw(st.sampled_from([*self.rig.nodes.values()]))
        if node.peer:
            self.rig.cut(node)
        else:
            self.rig.begin_registration(node)
        self.collect()

    @rule(data=st.data(), what=st.sampled_from(["writer dies", "clear", "memory", "master"]))
    def something_rare_happens(self, data: st.DataObject, what: str) -> None:
        if what == "clear":
            self.clear()
        elif what == "writer dies":
            self.writer_dies(data.draw(peers))
        elif what == "master":
            self.master_restarts()
        else:
            self.node_loses_its_memory(data)

    def writer_dies(self, peer: int) -> None:
        self.rig.perform(self.rig.master.peer_lost(peer, self.rig.now_s))
        for number, (what, details) in list(self.pending.items()):
            if (what == "start" and details[2] == peer) or (
                what == "commit" and details.peer == peer
            ):
                del self.pending[number]
                if what == "commit":
                    self.rig.replies.pop(number, None)
                    self.settle_doubt([key for key, _ in details.items])

    def clear(self) -> None:
        number = self.rig.send(Clear(SPACE), peer=4, deadline_s=2.0)
        self.rig.epoch += 1
        self.values.clear()
        self.doubtful.clear()
        self.leases.clear()
        self.pending[number] = ("clear", None)
        self.collect()

    def master_restarts(self) -> None:
        """A new master that knows nothing, when every node has done what it was asked."""
        rig = self.rig
        for node in rig.nodes.values():
            node.busy.clear()
            node.disk_fails = False
            if not node.peer:
                rig.begin_registration(node)
        rig.settle()
        rig.sleep(1.0)
        self.collect()
        self.what_is_acknowledged_is_there_or_its_end_was_counted()
        self.pending.clear()
        self.leases.clear()
        self.counters = {}
        rig.restart()
        rig.automatic = True
        for node in rig.nodes.values():
            rig.begin_registration(node)
        rig.open(SPACE)
        rig.automatic = False
        self.compare_with_what_was_recovered()

    def compare_with_what_was_recovered(self) -> None:
        objects = self.rig.master._catalog.slots[self.rig.slot].current.objects
        for key, version in self.values.items():
            # A set of which a part was removed comes back not at all.
            assert key in objects or version in self.in_sets, "an acknowledged put was lost"
            assert key not in objects or objects[key].version >= version, "an older one is back"
        for key, stored in objects.items():
            for extent in stored.extents():
                place = (extent.segment.incarnation, wire_offset(extent))
                assert self.rig.node_of(place[0]).entries[place].key == key
        self.values = {key: stored.version for key, stored in objects.items()}
        self.ever.update(self.values.values())
        self.doubtful.clear()

    def node_loses_its_memory(self, data: st.DataObject) -> None:
        node = data.draw(st.sampled_from([*self.rig.nodes.values()]))
        if node.peer:
            self.rig.cut(node)
        self.rig.wipe(node)
        self.rig.begin_registration(node)
        self.collect()

    @rule(data=st.data(), timeout_s=st.sampled_from([0.5, 30.0]), ends=st.booleans())
    def node_is_drained(self, data: st.DataObject, timeout_s: float, *, ends: bool) -> None:
        name = data.draw(st.sampled_from([*self.rig.nodes]))
        if self.rig.master._context.cluster.find(name) is not None:
            self.rig.send(Undrain(name) if ends else Drain(name, timeout_s))

    def drained(self) -> set[str]:
        drains = self.rig.master._context.drains.values()
        return {drain.node_id for drain in drains if drain.state == "drained"}

    def drained_is_true(self, since: set[str]) -> None:
        """A node that has just been called drained holds nothing that no other node has."""
        master = self.rig.master
        for node_id in self.drained() - since:
            node = master._context.cluster.nodes[node_id]
            assert not master._puts.writes_to(node)
            for stored in master._catalog.slots[self.rig.slot].current.objects.values():
                assert alone_on(stored, node) is None, "a drained node holds something alone"

    @rule(step_s=st.sampled_from([0.02, 0.3, 0.9]))
    def time_passes(self, step_s: float) -> None:
        drained = self.drained()
        self.rig.tick(step_s)
        self.drained_is_true(drained)
        self.rig.beat()
        self.collect()

    # --- what is compared -----------------------------------------------------------------------

    def collect(self) -> list[Write]:
        """Look at the replies that have come."""
        found: list[Write] = []
        for number, (what, details) in list(self.pending.items()):
            if number not in self.rig.replies:
                continue
            reply = self.rig.replies.pop(number)
            del self.pending[number]
            if what == "start":
                found += self.started(reply, *details)
            elif what == "commit":
                self.committed(reply, details)
            elif what == "locate" and isinstance(reply, Located):
                self.located(reply, details)
        return found

    def started(self, reply: Free, keys: list[str], length: int, peer: int) -> list[Write]:
        if isinstance(reply, Exception):
            return []
        for key, item in zip(keys, reply.items, strict=True):
            if isinstance(item, PutExists):
                # It may have been removed since the put began, and before the others had room.
                assert key in self.doubtful or item.version in self.ever
        write = Write(reply, keys, length, peer)
        self.in_sets.update(grant.version for _, grant in write.items if grant.set_id)
        return [write] if write.items else []

    def committed(self, reply: Free, write: Write) -> None:
        if isinstance(reply, Exception):
            self.settle_doubt([key for key, _ in write.items])
            return
        for (_, grant), item in zip(write.items, reply.items, strict=True):
            if isinstance(item, Committed):
                assert item.version == grant.version
                assert 1 <= item.replicas <= len(grant.replicas)
        self.settle_doubt([key for key, _ in write.items])

    def settle_doubt(self, keys: list[str]) -> None:
        """A change is over, one way or the other: take over what the master holds."""
        home = self.rig.master._catalog.slots[self.rig.slot].current
        for key in keys:
            stored = home.objects.get(key)
            self.doubtful.discard(key)
            if stored is None:
                self.values.pop(key, None)
            else:
                assert stored.version >= self.values.get(key, 0), "an older version came back"
                self.values[key] = stored.version
                self.ever.add(stored.version)

    def located(self, reply: Located, keys: list[str]) -> None:
        for key, item in zip(keys, reply.items, strict=True):
            if not isinstance(item, Location):
                assert item != MissReason.RECOVERING
                continue
            if key not in self.doubtful:
                assert self.values.get(key) == item.version, "a value that is not the last one"
            for replica in item.replicas:
                node = self.rig.node_of(replica.incarnation)
                entry = node.entries.get((replica.incarnation, replica.offset))
                assert entry is not None, "nothing lies there"
                assert (entry.key, entry.version) == (key, item.version), "another object's bytes"
            until_s = self.rig.now_s + reply.lease_s
            self.leases[key, item.version] = (until_s, item)

    @invariant()
    def the_walk_equals_the_numbers(self) -> None:
        if hasattr(self, "rig"):
            self.rig.check()

    @invariant()
    def counters_never_fall(self) -> None:
        if hasattr(self, "rig"):
            counters = self.rig.master.statistics().counters
            assert all(counters.get(name, 0) >= value for name, value in self.counters.items())
            self.counters = counters

    @invariant()
    def what_is_acknowledged_is_there_or_its_end_was_counted(self) -> None:
        if not hasattr(self, "rig"):
            return
        home = self.rig.master._catalog.slots[self.rig.slot].current
        for key, version in list(self.values.items()):
            stored = home.objects.get(key)
            if stored is None:
                reason = self.rig.master._catalog.gone.reason(self.rig.slot, key)
                assert reason in (MissReason.EVICTED, MissReason.LOST), (key, reason)
                assert reason is MissReason.LOST or not self.is_leased(key, version), "evicted"
                del self.values[key]
            elif key not in self.doubtful:
                assert stored.version == version

    def is_leased(self, key: str, version: int) -> bool:
        until_s, _ = self.leases.get((key, version), (0.0, None))
        return until_s > self.rig.now_s

    @invariant()
    def leased_bytes_stay_where_they_are(self) -> None:
        if not hasattr(self, "rig"):
            return
        for (key, version), (until_s, location) in list(self.leases.items()):
            if until_s <= self.rig.now_s or self.values.get(key) != version:
                del self.leases[key, version]
                continue
            if key in self.doubtful:
                continue  # it is being replaced
            for replica in location.replicas:
                place = (replica.incarnation, replica.offset)
                for node in self.rig.nodes.values():
                    entry = node.entries.get(place)
                    assert entry is None or entry.version == version

    def teardown(self) -> None:
        """When all is answered and all writers are gone, only what is readable takes room."""
        if not hasattr(self, "rig"):
            return
        rig = self.rig
        for peer in (1, 2, 3):
            rig.perform(rig.master.peer_lost(peer, rig.now_s))
        for node in rig.nodes.values():
            node.busy.clear()
            node.disk_fails = False
            if not node.peer:
                rig.begin_registration(node)
        rig.automatic = True
        rig.settle()
        rig.sleep(8.0 if not rig.master._recovery._sets else 62.0)
        walk = rig.check()
        assert walk.attempts == 0
        assert walk.freeing == 0
        objects = rig.master._catalog.slots[rig.slot].current.objects
        extents = [extent for stored in objects.values() for extent in stored.extents()]
        used = sum(extent.granules for extent in extents if not extent.segment.tier)
        assert walk.used_bytes == used * 512
        for key in KEYS:
            rig.remove(key)
        assert rig.check().used_bytes == 0
        assert not any(node.entries for node in rig.nodes.values()), "bytes that nobody knows of"


TestMasterModel = MasterModel.TestCase
TestMasterModel.settings = settings(
    max_examples=120, stateful_step_count=60, deadline=None, report_multiple_bugs=False
)


def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model must notice an extent that is reused before its node has confirmed."""

    free = Freer.free

    def free_at_once(self: Freer, extent: Free, *more: Free) -> None:
        if extent.segment.tier:  # a store gives nothing to the allocator
            free(self, extent, *more)
            return
        extent.twin = None
        extent.segment.space.release(extent)
        self.room_returned = True

    monkeypatch.setattr(Freer, "free", free_at_once)

    class Planted(MasterModel):
        pass

    case = Planted.TestCase
    case.settings = settings(
        TestMasterModel.settings, max_examples=100, database=None, phases=[Phase.generate]
    )
    with pytest.raises(AssertionError):
        case("runTest").runTest()
