"""A master's core with pretended nodes: the unit and property tests' cluster."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec.structs import replace

from mooncake_master.core import (
    Close,
    CoreConfig,
    Fail,
    Forget,
    Instruct,
    Instruction,
    Master,
    Remember,
    Remembered,
    Reply,
)
from mooncake_master.core.remembered import Reign
from mooncake_store.errors import Overloaded, StoreError
from mooncake_store.extent import extent_bytes, name_bytes
from mooncake_store.limits import KIB, MIB
from mooncake_store.types import term_of
from mooncake_store.wire.control import (
    CommitItem,
    Copied,
    CopyExtents,
    CopyItem,
    CopyResult,
    DescribeCluster,
    DirectoryEntry,
    DirectoryPage,
    Done,
    DropNotes,
    DroppedItem,
    Exists,
    Freed,
    FreeExtents,
    FreeItem,
    Heartbeat,
    KeepNotes,
    ListDirectory,
    ListNotes,
    Locate,
    Located,
    Location,
    Message,
    NoteItem,
    NotePage,
    OpenNamespace,
    PutCommit,
    PutGrant,
    PutItem,
    PutStart,
    PutStarted,
    Register,
    Remove,
    Replica,
    SegmentRecord,
    SetEpochs,
    StoreStatus,
)

if TYPE_CHECKING:
    from mooncake_master.core.copying import Start
    from mooncake_master.core.remembered import Entry

Free: TypeAlias = Any
"""Replies of many types whose fields the tests look at, and settings of many types."""

SPACE = "ns4904"
"""A name whose home slot is 0, so that tests can write the slot down."""
CLIENT = 1


def small_length(granules: int = 1) -> int:
    """Return a payload that takes this many granules with a short key."""
    return granules * 512 - 300


class FakeNode:
    """One node: a version table per segment, and what it was asked but did not answer yet."""

    def __init__(self, name: str, segments: dict[int, int], labels: dict[str, str]) -> None:
        self.name = name
        self.node_id = name.encode().hex().zfill(32)
        self.labels = labels
        self.segments = segments
        self.disks: dict[int, int] = {}
        """{incarnation of a store: its bytes}"""
        self.disk_fails = False
        """Orders to the stores end with an error."""
        self.closed_disks: set[int] = set()
        """Stores that the node does not name when it registers."""
        self.replaced: tuple[int, ...] = ()
        """Stores that it says are gone for good."""
        self.stores: tuple[StoreStatus, ...] = ()
        """What its heartbeats say of them."""
        self.others: dict[str, FakeNode] = {}
        """All nodes by name: copies are made from them."""
        self.refusals: list[str] = []
        """Codes that the next copies fail with."""
        self.peer = 0
        self.term = 0
        self.index = -1
        self.epochs: dict[int, int] = {}
        self.entries: dict[tuple[int, int], DirectoryEntry] = {}
        self.fences: dict[tuple[int, int], int] = {}
        self.inbox: list[tuple[int, Message]] = []
        self.notes: dict[tuple[int, int], NoteItem] = {}
        self.fellows: tuple[str, ...] = ()
        self.busy: set[tuple[int, int]] = set()
        """Extents that a local writer is still writing: freeing them answers 0."""
        self.writing: list[FreeItem] = []
        """What local processes still write for an older reign."""

    def write(self, incarnation: int, entry: DirectoryEntry) -> bool:
        """Land an object's bytes; False where its attempt was freed, or its reign is over."""
        place = (incarnation, entry.offset)
        there = self.entries.get(place)
        newest = max(self.fences.get(place, 0), number_of(there) if there else 0)
        number = number_of(entry)
        is_late = term_of(number) < self.term and not any(
            (item.incarnation, item.offset, item.version) == (*place, number)
            for item in self.writing
        )
        if newest >= number or is_late:
            return False
        self.entries[place] = entry
        return True

    def answer(self, message: Message) -> Message:
        if self.disk_fails and self._is_for_disk(message):
            raise Overloaded("the store is degraded: the test wants it so")
        if isinstance(message, FreeExtents):
            return Freed(bytes(self._free(item) for item in message.items))
        if isinstance(message, SetEpochs):
            self.epochs.update(message.epochs)
            self.term = max(self.term, message.term)
            return Done()
        if isinstance(message, (KeepNotes, DropNotes)):
            self._note(message)
            return Done()
        if isinstance(message, ListNotes):
            return NotePage([*self.notes.values()], -1)
        if isinstance(message, CopyExtents):
            return Copied([self._copy(item) for item in message.items])
        return self._list(message)

    def _note(self, message: KeepNotes | DropNotes) -> None:
        if isinstance(message, KeepNotes):
            self.notes |= {(item.incarnation, item.offset): item for item in message.items}
            self.fellows = self.fellows if message.fellows is None else message.fellows
            return
        for item in message.items:
            self.notes.pop((item.incarnation, item.offset), None)

    def _list(self, message: Message) -> DirectoryPage:
        assert isinstance(message, ListDirectory)
        found = sorted(
            (offset, entry)
            for (incarnation, offset), entry in self.entries.items()
            if incarnation == message.incarnation and offset >= message.cursor
        )
        page = [entry for _, entry in found[: message.limit]]
        more = len(found) > message.limit
        writing = [] if message.cursor else self.writing
        return DirectoryPage(page, found[message.limit][0] if more else -1, writing)

    def _is_for_disk(self, message: Message) -> bool:
        if isinstance(message, ListDirectory):
            return message.incarnation in self.disks
        items = message.items if isinstance(message, (FreeExtents, CopyExtents)) else []
        return any(item.incarnation in self.disks for item in items)

    def on_disk(self) -> dict[str, DirectoryEntry]:
        """Return {key: entry} of what lies on the node's disks."""
        return {e.key: e for (incarnation, _), e in self.entries.items()
                if incarnation in self.disks}  # fmt: skip

    def _free(self, item: FreeItem) -> int:
        place = (item.incarnation, item.offset)
        if item.incarnation in self.disks:
            for (incarnation, location), entry in list(self.entries.items()):
                if incarnation == item.incarnation and entry.version == item.version:
                    assert item.offset in (-1, location)
                    del self.entries[incarnation, location]
            return 1
        if place in self.busy:
            return 0
        there = self.entries.get(place)
        assert there is None or number_of(there) <= item.version, "a newer version was freed"
        self.entries.pop(place, None)
        self.fences[place] = max(self.fences.get(place, 0), item.version)
        return 1

    def _copy(self, item: CopyItem) -> CopyResult:
        if self.refusals:
            return CopyResult(-1, self.refusals.pop(0), "as the test wants it")
        place = (item.source_incarnation, item.source_offset)
        if item.source_node:
            source = next((n for n in self.others.values() if n.node_id == item.source_node), None)
        else:
            source = self
        entry = source.entries.get(place) if source is not None else None
        if entry is None or number_of(entry) != item.source_attempt:
            return CopyResult(-1, "stale_extent", "the source holds something else")
        assert entry.version == item.version
        if item.incarnation in self.disks:
            return self._store(item, entry)
        copied = replace(entry, offset=item.offset, attempt=item.attempt)
        if not self.write(item.incarnation, copied):
            return CopyResult(-1, "stale_extent", "fenced")
        return CopyResult(item.offset)

    def _store(self, item: CopyItem, entry: DirectoryEntry) -> CopyResult:
        assert item.offset == -1
        taken = {
            location for incarnation, location in self.entries if incarnation == item.incarnation
        }
        for location in taken:
            if self.entries[item.incarnation, location].version == item.version:
                return CopyResult(location)
        location = next(number for number in count() if number not in taken)
        self.entries[item.incarnation, location] = replace(entry, offset=location, attempt=0)
        return CopyResult(location)

    def forget(self, key: str, reason: str = "evicted") -> DroppedItem:
        """Have a store give an entry up by itself; return its report."""
        for (incarnation, location), entry in self.entries.items():
            if entry.key == key and incarnation in self.disks:
                del self.entries[incarnation, location]
                return DroppedItem(incarnation, location, entry.version, reason)
        raise AssertionError(f"{key} is on no disk of {self.name}")


def number_of(entry: DirectoryEntry) -> int:
    return entry.attempt or entry.version


class Rig:
    """Master, nodes, a clock that stands still until it is moved."""

    def __init__(
        self,
        *nodes: int,
        config: CoreConfig | None = None,
        automatic: bool = True,
        keeps: bool = False,
        **settings: Free,
    ) -> None:
        settings.setdefault("recovery_grace_s", 0.0)
        self.settings = settings
        self.numbers = (1, 0)
        """Term and first count of the next master."""
        self.kept: dict[str, dict[str, Entry]] | None = {} if keeps else None
        """What a data directory holds; None where the master has none."""
        self.master = self.new_master(config or CoreConfig(**settings))
        self.now_s = 100.0
        self.automatic = automatic
        self.nodes: dict[str, FakeNode] = {}
        self.replies: dict[int, Free] = {}
        self.closed: list[int] = []
        self._requests = count(1)
        self._peers = count(1_000)
        self._incarnations = count(1)
        for size in nodes or (16 * MIB,):
            self.add_node(size)
        self.slot = self.epoch = -1
        self.open(SPACE)

    # --- nodes ----------------------------------------------------------------------------------

    def add_node(self, *sizes: int, name: str = "", **labels: str) -> FakeNode:
        name = name or f"n{len(self.nodes)}"
        segments = {next(self._incarnations): size for size in sizes}
        node = self.nodes[name] = FakeNode(name, segments, labels)
        node.others = self.nodes
        self.register(node)
        return node

    def give_disk(self, node: FakeNode, size: int = 64 * MIB) -> None:
        """A node comes back with a store."""
        node.disks = {next(self._incarnations): size}
        self.cut(node)
        self.register(node)

    def remake_disk(self, node: FakeNode) -> int:
        """A node makes a new store in the place of a damaged one; return the old incarnation."""
        ((old, size),) = node.disks.items()
        node.disks = {next(self._incarnations): size}
        node.entries = {place: e for place, e in node.entries.items() if place[0] != old}
        node.replaced = (*node.replaced, old)
        return old

    def register(self, node: FakeNode) -> Free:
        return self.registered(node, self.wait(self.begin_registration(node)))

    def begin_registration(self, node: FakeNode) -> int:
        node.peer = next(self._peers)
        node.inbox.clear()
        records = tuple(SegmentRecord(i, size) for i, size in node.segments.items()) + tuple(
            SegmentRecord(i, size, 1)
            for i, size in node.disks.items()
            if i not in node.closed_disks
        )
        landed = sum(place[0] in node.segments for place in node.entries)
        message = Register(
            name=node.name, node_id=node.node_id, host="h", port=1, local_path="",
            labels=node.labels, segments=records, term=node.term, landed=landed,
            epochs=dict(node.epochs), fellows=node.fellows, notes=len(node.notes),
            replaced=node.replaced,
        )  # fmt: skip
        number = self.send(message, peer=node.peer)
        self.registered(node, self.replies[number])
        return number

    def registered(self, node: FakeNode, reply: Free) -> Free:
        node.term = max(node.term, reply.term)
        node.index = reply.index
        for slot, epoch in reply.epochs.items():
            node.epochs[slot] = max(epoch, node.epochs.get(slot, 0))
        return reply

    def cut(self, node: FakeNode) -> None:
        """The node's registration connection breaks."""
        peer, node.peer = node.peer, 0
        node.inbox.clear()
        self.perform(self.master.peer_lost(peer, self.now_s))

    def wipe(self, node: FakeNode) -> None:
        """The node loses its memory."""
        node.segments = {next(self._incarnations): size for size in node.segments.values()}
        node.entries = {p: e for p, e in node.entries.items() if p[0] in node.disks}
        node.fences.clear()
        node.epochs.clear()
        node.notes.clear()
        node.fellows = ()
        node.term = 0

    def heartbeat(self, node: FakeNode) -> Free:
        message = Heartbeat(node.index, node.node_id, node.term, 0, 0, 0)
        return self.ask(message, peer=5)

    def restart(self, **settings: Free) -> None:
        """Begin with a new master that knows nothing; nodes register by themselves later."""
        config = CoreConfig(**(self.settings | settings))
        self.master = self.new_master(config)
        for node in self.nodes.values():
            node.peer = 0
            node.inbox.clear()

    def new_master(self, config: CoreConfig) -> Master:
        """Return a master that has what the data directory holds."""
        tables = None if self.kept is None else {t: dict(rows) for t, rows in self.kept.items()}
        remembered = None if tables is None else Remembered(tables)
        term, count = self.numbers
        if self.kept is not None:  # as the shell does it
            self.kept["reign"] = {"": Reign("", term)}
        return Master(
            config, term=term, count=count, wall_offset_s=1_000_000.0, remembered=remembered
        )

    def deliver(self, node: FakeNode, *, lose: bool = False, which: int = 0) -> None:
        """Have a node answer one of the things it was asked; ``lose`` loses it with an error."""
        from mooncake_store.errors import Unreachable  # noqa: PLC0415

        token, message = node.inbox.pop(which)
        answer: Free = Unreachable("lost")
        if not lose:
            try:
                answer = node.answer(message)
            except StoreError as error:
                answer = error
        self.perform(self.master.node_replied(node.peer, token, answer, self.now_s))

    def deliver_page(self, node: FakeNode) -> None:
        """Have a node answer up to the next page of its directory."""
        while not isinstance(node.inbox[0][1], ListDirectory):
            self.deliver(node)
        self.deliver(node)

    def settle(self) -> None:
        """Have all nodes answer everything."""
        while any(node.inbox for node in self.nodes.values()):
            for node in self.nodes.values():
                while node.inbox:
                    self.deliver(node)

    # --- events ---------------------------------------------------------------------------------

    def send(self, message: Message, *, peer: int = CLIENT, deadline_s: float = 5.0) -> int:
        """Send a request and return its id; its reply appears in ``replies``."""
        number = next(self._requests)
        self.perform(self.master.handle(peer, number, message, self.now_s + deadline_s, self.now_s))
        if self.automatic:
            self.settle()
        return number

    def ask(self, message: Message, *, peer: int = CLIENT, deadline_s: float = 5.0) -> Free:
        """Send a request and return its reply, or raise its error; time passes until then."""
        number = self.send(message, peer=peer, deadline_s=deadline_s)
        return self.wait(number, deadline_s)

    def wait(self, number: int, at_most_s: float = 5.0) -> Free:
        until_s = self.now_s + at_most_s + 0.1
        while number not in self.replies and self.now_s < until_s:
            self.tick(0.02)
            self.beat()
        assert number in self.replies, "no reply within the deadline"
        reply = self.replies.pop(number)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def tick(self, step_s: float = 0.0) -> None:
        self.now_s += step_s
        self.perform(self.master.tick(self.now_s))
        if self.automatic:
            self.settle()

    def sleep(self, seconds: float, *, beat: bool = True) -> None:
        """Let time pass in usual ticks, with heartbeats of the nodes that are connected."""
        until_s = self.now_s + seconds
        while self.now_s < until_s - 1e-9:
            self.tick(min(0.1, until_s - self.now_s))
            if beat:
                self.beat()

    def beat(self) -> None:
        """All nodes that are connected send their heartbeats."""
        for node in self.nodes.values():
            if node.peer and node.index >= 0:
                message = Heartbeat(node.index, node.node_id, node.term, 0, 0, 0, node.stores)
                self.perform(self.master.handle(5, 0, message, self.now_s + 1, self.now_s))
        self.replies.pop(0, None)

    def perform(self, instructions: list[Instruction]) -> None:
        peers = {node.peer: node for node in self.nodes.values() if node.peer}
        for instruction in instructions:
            if isinstance(instruction, Reply):
                self.replies[instruction.request_id] = instruction.message
            elif isinstance(instruction, Fail):
                self.replies[instruction.request_id] = instruction.error
            elif isinstance(instruction, Close):
                self.closed.append(instruction.peer)
            elif isinstance(instruction, Remember):
                assert self.kept is not None
                self.kept.setdefault(instruction.table, {})[instruction.key] = instruction.entry
            elif isinstance(instruction, Forget):
                assert self.kept is not None
                self.kept[instruction.table].pop(instruction.key, None)
            else:
                assert isinstance(instruction, Instruct)
                if instruction.peer in peers:
                    peers[instruction.peer].inbox.append((instruction.token, instruction.message))

    # --- copies ---------------------------------------------------------------------------------

    def find(self, key: str) -> Free:
        """Return the master's own record of an object, or None."""
        return self.master._catalog.slots[self.slot].current.objects.get(key)

    def copy(self, key: str, target: str, ended: list[str], purpose: str = "test") -> Start:
        """Have a node make a copy of an object's first replica."""
        master = self.master
        stored = self.find(key)
        master._context.now_s, master._context.out = self.now_s, []
        node = master._context.cluster.find(target)
        assert node is not None
        start = master._copier.copy(stored, stored.extent, node, purpose=purpose, done=ended.append)
        self.perform(master._finish())
        if self.automatic:
            self.settle()
        return start

    # --- what clients do ------------------------------------------------------------------------

    def open(self, name: str, manifest: dict[str, str] | None = None) -> Free:
        record = self.ask(OpenNamespace(name, manifest))
        if name == SPACE:
            self.slot, self.epoch = record.slot, record.epoch
        return record

    def start(
        self, *keys: str, length: int = KIB, peer: int = CLIENT, deadline_s: float = 5.0,
        item: dict[str, Free] | None = None, **fields: Free,
    ) -> Free:  # fmt: skip
        return self.wait(
            self.begin(*keys, length=length, peer=peer, deadline_s=deadline_s, item=item, **fields),
            deadline_s,
        )

    def begin(
        self, *keys: str, length: int = KIB, peer: int = CLIENT, deadline_s: float = 5.0,
        item: dict[str, Free] | None = None, **fields: Free,
    ) -> int:  # fmt: skip
        items = [PutItem(key, length, **(item or {})) for key in keys]
        message = PutStart(self.slot, self.epoch, items, **fields)
        return self.send(message, peer=peer, deadline_s=deadline_s)

    def land(self, started: PutStarted, keys: tuple[str, ...], length: int) -> None:
        """Write the bytes of every grant."""
        for key, grant in zip(keys, started.items, strict=True):
            if isinstance(grant, PutGrant):
                for replica in grant.replicas:
                    self.write(replica, grant, key, length)

    def write(self, replica: Replica, grant: PutGrant, key: str, length: int) -> bool:
        """Write the bytes of one replica; False where its node or its attempt is over."""
        entry = DirectoryEntry(
            replica.offset, grant.version, length, self.slot, self.epoch, SPACE, key,
            set_id=grant.set_id, set_count=grant.set_count, replicas=len(grant.replicas),
        )  # fmt: skip
        for node in self.nodes.values():
            if replica.incarnation in node.segments:
                return node.write(replica.incarnation, entry)
        return False

    def commit(self, started: PutStarted, *, written: int = 0xFF, peer: int = CLIENT) -> Free:
        grants = [item for item in started.items if isinstance(item, PutGrant)]
        return self.ask(PutCommit([CommitItem(g.version, written) for g in grants]), peer=peer)

    def commit_within(self, started: PutStarted, deadline_s: float) -> Free:
        """Commit and wait, for so long at most."""
        grants = [item for item in started.items if isinstance(item, PutGrant)]
        message = PutCommit([CommitItem(grant.version, 0xFF) for grant in grants])
        return self.ask(message, deadline_s=deadline_s)

    def put(self, *keys: str, length: int = KIB, peer: int = CLIENT, **fields: Free) -> list[Free]:
        """Put objects and return what became of each."""
        started = self.start(*keys, length=length, peer=peer, **fields)
        self.land(started, keys, length)
        grants = [item for item in started.items if isinstance(item, PutGrant)]
        results = iter(self.commit(started, peer=peer).items if grants else ())
        return [next(results) if isinstance(item, PutGrant) else item for item in started.items]

    def locate(self, *keys: str, **fields: Free) -> list[Location | int]:
        reply: Located = self.ask(Locate(self.slot, self.epoch, list(keys), **fields))
        return reply.items

    def exists(self, *keys: str) -> list[bool]:
        reply = self.ask(Exists(self.slot, self.epoch, list(keys)))
        return [bool(found) for found in reply.found]

    def remove(self, *keys: str, **fields: Free) -> list[bool]:
        reply = self.ask(Remove(self.slot, self.epoch, list(keys)), **fields)
        return [bool(done) for done in reply.removed]

    def send_locate(self, *keys: str) -> int:
        return self.send(Locate(self.slot, self.epoch, list(keys)))

    def status(self) -> Free:
        return self.ask(DescribeCluster())

    def send_remove(self, *keys: str) -> int:
        return self.send(Remove(self.slot, self.epoch, list(keys)))

    def node_of(self, incarnation: int) -> FakeNode:
        return next(
            node for node in self.nodes.values() if incarnation in {**node.segments, **node.disks}
        )

    # --- measures -------------------------------------------------------------------------------

    def counter(self, name: str) -> int:
        return self.master.statistics().counters.get(name, 0)

    def gauge(self, name: str) -> int:
        return self.master.statistics().gauges[name]

    def check(self) -> Free:
        """Walk the whole index and compare it with the gauges."""
        walk = self.master.walk()
        assert walk.objects == self.gauge("mooncake_master_objects_count")
        assert walk.used_bytes == self.gauge("mooncake_master_used_bytes")
        assert walk.pinned_bytes == self.gauge("mooncake_master_pinned_bytes")
        assert walk.attempts == self.gauge("mooncake_master_attempts_count")
        return walk


def takes(key: str, length: int) -> int:
    """Return the bytes that an object takes in a segment."""
    return extent_bytes(length, name_bytes(SPACE, key))
