"""A master and nodes made of dictionaries, and an interpreter that drives operations by hand."""

from __future__ import annotations

# ruff: noqa: ANN401, N802 - messages of any kind, and a method for each kind
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mooncake_client._core import effects
from mooncake_client._core.cluster import Cluster, Reach
from mooncake_client._core.session import Session
from mooncake_store.errors import (
    DeadlineExceeded,
    ReplicasImpossible,
    StaleEpoch,
    StaleExtent,
    StoreError,
)
from mooncake_store.extent import Identity, expect_header
from mooncake_store.fingerprint import fingerprint
from mooncake_store.types import MissReason, make_version
from mooncake_store.wire import control

if TYPE_CHECKING:
    from collections.abc import Callable

    from mooncake_client._core.effects import Operation
    from mooncake_store.transport import ReadTask, WriteTask

LEASE_S = 5.0
GIB = 1 << 30


@dataclass
class Path:
    """The data path that the interpreter says it took."""

    name: str


class Look:
    """A view or a reservation."""

    def __init__(self, payload: bytes | bytearray) -> None:
        self.payload = memoryview(payload)
        self.problem: StoreError | None = None
        self.published: object = None
        self.is_over = False

    def check(self) -> None:
        self._raise()

    def verify(self) -> None:
        self._raise()

    def publish(self, sealed: object) -> None:
        self._raise()
        self.published = sealed
        self.is_over = True

    def release(self) -> None:
        self.is_over = True

    abandon = release

    def _raise(self) -> None:
        if self.problem is not None:
            raise self.problem


@dataclass
class Node:
    """One node: what it stores, and what is wrong with it."""

    index: int
    is_local: bool = False
    stored: dict[int, tuple[Identity, bytes]] = field(default_factory=dict)
    error: Callable[[Any], StoreError | None] | None = None
    """Asked for each task; what it returns is the task's error."""
    takes_s: float = 0.0
    """Time that a transfer takes; a longer one than allowed ends with ``DeadlineExceeded``."""
    next_offset: int = 0

    @property
    def incarnation(self) -> int:
        return 1000 + self.index

    @property
    def record(self) -> control.NodeRecord:
        return control.NodeRecord(
            self.index,
            f"node{self.index}",
            f"{self.index:032x}",
            "host",
            7000 + self.index,
            "/run/node" if self.is_local else "",
            0,
            (control.SegmentRecord(self.incarnation, GIB),),
            {},
        )


class World:
    """Everything that an operation touches.

    Attributes:
        session: The client's state.
        asked: Every message that was asked or told, in order.
        trouble: Errors that the next requests end with, first come first served; None for none.
    """

    def __init__(self, nodes: int = 1, *, local: bool = False, **cluster: bool) -> None:
        self.now_s = 100.0
        self.until_s = float("inf")
        self.session = Session(lambda: self.now_s, "space", cluster=Cluster(**cluster))
        self.nodes = {index: Node(index, is_local=local) for index in range(nodes)}
        self.objects: dict[str, control.Location] = {}
        self.reasons: dict[str, MissReason] = {}
        self.attempts: dict[int, tuple[control.PutItem, control.PutGrant]] = {}
        self.epoch = 1
        self.slot = 3
        self.reign = ("cluster", 1)
        self.membership = 1
        self.asked: list[Any] = []
        self.reads: list[tuple[int, list[ReadTask]]] = []
        self.trouble: deque[StoreError | BaseException | None] = deque()
        self.waited_s: list[float] = []
        self.is_lost = False
        self.answers: dict[type, Callable[[Any], Any]] = {}
        self.looks: list[Look] = []
        self._versions = 0

    # --- driving --------------------------------------------------------------------------------

    def run(self, operation: Operation[Any], deadline_s: float = 60.0) -> Any:
        """Drive an operation to its end."""
        self.until_s = self.now_s + deadline_s
        try:
            effect = operation.send(None)
            while True:
                try:
                    result = getattr(self, f"_{effect.verb}")(effect)
                except BaseException as error:  # noqa: BLE001 - the operation passes it on
                    effect = operation.throw(error)
                else:
                    effect = operation.send(result)
        except StopIteration as stop:
            return stop.value

    def asked_for(self, kind: type) -> list[Any]:
        """Return the messages of one kind that were asked or told."""
        return [message for message in self.asked if type(message) is kind]

    def place(self, key: str, value: bytes, *, on: tuple[int, ...] = (0,)) -> control.Location:
        """Make an object readable, with copies on some nodes."""
        version = self.new_version()
        replicas = tuple(self._store(self.nodes[index], key, version, value) for index in on)
        self.objects[key] = control.Location(version, len(value), replicas)
        return self.objects[key]

    def new_version(self) -> int:
        self._versions += 1
        return make_version(self.reign[1], self._versions)

    def _store(self, node: Node, key: str, version: int, value: bytes) -> control.Replica:
        identity = Identity(fingerprint("space", key), version, self.slot, self.epoch, len(value))
        offset = self.reserve_room(node)
        node.stored[offset] = identity, value
        return control.Replica(node.incarnation, offset)

    def reserve_room(self, node: Node) -> int:
        node.next_offset += 4096
        return node.next_offset

    # --- effects --------------------------------------------------------------------------------

    def _ask(self, effect: effects.Ask) -> Any:
        self._speak(effect.message)
        if effect.meanwhile is not None:
            effect.meanwhile()
        return self._answered(effect.message)

    def _ask_many(self, effect: effects.AskMany) -> list[Any]:
        self._speak(effect.messages[0])
        replies: list[Any] = []
        for message in effect.messages:
            try:
                replies.append(self._answered(message))
            except StoreError as error:
                replies.append(error)
        return replies

    def _tell(self, effect: effects.Tell) -> None:
        try:
            self._answered(effect.message)
        except StoreError:
            return

    def _speak(self, message: Any) -> None:
        """Pass time, and throw what is wrong with the master."""
        if self.now_s >= self.until_s:
            raise DeadlineExceeded("too late")
        self.now_s += 0.001
        if self.session.reign != self.reign:
            self.session.reign_seen = self.reign
            if type(message) is not control.OpenNamespace and hasattr(message, "slot"):
                raise effects.NewReign
        if self.trouble and (error := self.trouble.popleft()) is not None:
            raise error

    def _answered(self, message: Any) -> Any:
        self.asked.append(message)
        answer = self.answers.get(type(message)) or getattr(
            self, f"answer_{type(message).__name__}"
        )
        if getattr(message, "epoch", self.epoch) != self.epoch:
            raise StaleEpoch("cleared")
        return answer(message)

    def _read(self, effect: effects.Read) -> list[Path]:
        return self._transfer(effect, self._read_task)

    def _write(self, effect: effects.Write) -> list[Path]:
        return self._transfer(effect, self._write_task)

    def _transfer(self, effect: Any, perform: Callable[[Node, Any], None]) -> list[Path]:
        paths = []
        for record, tasks in effect.groups:
            node = self.nodes[record.index]
            self.reads.append((node.index, list(tasks)))
            allowed_s = self.until_s - self.now_s
            if effect.limit_s is not None:
                allowed_s = min(allowed_s, effect.limit_s)
            self.now_s += min(node.takes_s, max(0.0, allowed_s))
            for task in tasks:
                task.error = node.error(task) if node.error else None
                if node.takes_s > allowed_s:
                    task.error = DeadlineExceeded("the node took too long")
                if task.error is None:
                    perform(node, task)
            shared = self.session.cluster.reach(record) is Reach.SHARED
            paths.append(Path("shm" if shared else "tcp"))
        return paths

    @staticmethod
    def _read_task(node: Node, task: ReadTask) -> None:
        identity, value = node.stored.get(task.offset, (None, b""))
        if identity != task.identity:
            task.error = StaleExtent("something else is there")
            return
        at = task.start
        for target in task.targets:
            target[:] = value[at : at + len(target)]
            at += len(target)
        assert at == task.start + task.length

    @staticmethod
    def _write_task(node: Node, task: WriteTask) -> None:
        header = expect_header(task.sealed.header, 0, task.identity)
        assert header.length == sum(map(len, task.parts))
        node.stored[task.offset] = task.identity, b"".join(task.parts)

    def _attach(self, effect: effects.Attach) -> bool:
        return self.nodes[effect.node.index].is_local

    def _view(self, effect: effects.View) -> tuple[Path, Look]:
        node = self.nodes[effect.node.index]
        problem = node.error(effect) if node.error else None
        if problem is not None:
            raise problem
        identity, value = node.stored.get(effect.replica.offset, (None, b""))
        if identity != effect.identity:
            raise StaleExtent("something else is there")
        self.looks.append(Look(value))
        return Path("shm"), self.looks[-1]

    def _reserve(self, effect: effects.Reserve) -> tuple[Path, Look]:
        node = self.nodes[effect.node.index]
        problem = node.error(effect) if node.error else None
        if problem is not None:
            raise problem
        self.looks.append(Look(bytearray(effect.identity.length)))
        return Path("shm"), self.looks[-1]

    def _wait(self, effect: effects.Wait) -> bool:
        if self.until_s - self.now_s <= effect.seconds:
            return False
        self.waited_s.append(effect.seconds)
        self.now_s += effect.seconds
        return True

    def _retry(self, effect: effects.Retry) -> bool:
        return not self.is_lost and self._wait(effect)

    # --- the master -----------------------------------------------------------------------------

    def members(self, number: int) -> control.Membership | None:
        if number == self.membership:
            return None
        return control.Membership(self.membership, tuple(n.record for n in self.nodes.values()))

    def answer_OpenNamespace(self, message: control.OpenNamespace) -> Any:
        return control.NamespaceRecord(self.slot, message.name, self.epoch, {})

    def answer_Clear(self, message: control.Clear) -> Any:
        self.epoch += 1
        self.objects.clear()
        return control.NamespaceRecord(self.slot, message.name, self.epoch, {})

    def answer_Locate(self, message: control.Locate) -> Any:
        items: list[control.Location | int] = [
            self.objects.get(key, self.reasons.get(key, MissReason.ABSENT)) for key in message.keys
        ]
        return control.Located(LEASE_S, items, self.members(message.membership))

    def answer_PutStart(self, message: control.PutStart) -> Any:
        items: list[Any] = []
        for item in message.items:
            there = self.objects.get(item.key)
            if there is not None and not message.replace:
                items.append(control.PutExists(there.version))
            elif message.replicas > len(self.nodes):
                items.append(control.Refusal(ReplicasImpossible.code, "too few nodes"))
            else:
                items.append(self._grant(item, message))
        return control.PutStarted(items, 0.25, self.members(message.membership))

    def _grant(self, item: control.PutItem, message: control.PutStart) -> control.PutGrant:
        version = self.new_version()
        # Nodes take turns, so that another attempt meets another one.
        order = [(version + step) % len(self.nodes) for step in range(message.replicas)]
        replicas = tuple(
            control.Replica(self.nodes[at].incarnation, self.reserve_room(self.nodes[at]))
            for at in order
        )
        set_count = len(message.items) if message.together else 0
        grant = control.PutGrant(version, replicas, version if set_count else 0, set_count)
        self.attempts[version] = item, grant
        return grant

    def answer_PutCommit(self, message: control.PutCommit) -> Any:
        items: list[Any] = []
        for commit in message.items:
            if commit.version not in self.attempts:
                items.append(control.Refusal("attempt_expired", "not known"))
                continue
            item, grant = self.attempts.pop(commit.version)
            kept = tuple(r for bit, r in enumerate(grant.replicas) if commit.written >> bit & 1)
            self.objects[item.key] = control.Location(commit.version, item.length, kept)
            items.append(control.Committed(commit.version, len(kept)))
        return control.PutCommitted(items, 0.5)

    def answer_PutAbort(self, message: control.PutAbort) -> Any:
        for version in message.versions:
            self.attempts.pop(version, None)
        return control.Done()

    def answer_ReportReplica(self, message: control.ReportReplica) -> Any:
        there = self.objects[message.key]
        place = message.incarnation, message.offset
        kept = tuple(r for r in there.replicas if (r.incarnation, r.offset) != place)
        if kept:
            self.objects[message.key] = control.Location(there.version, there.length, kept)
        else:
            del self.objects[message.key]
            self.reasons[message.key] = MissReason.CORRUPT
        return control.Done()

    def answer_ReportTransfers(self, message: control.ReportTransfers) -> Any:
        del message
        return control.Done()

    def answer_Renew(self, message: control.Renew) -> Any:
        return control.Renewed(b"\1" * len(message.keys), LEASE_S)

    def answer_Exists(self, message: control.Exists) -> Any:
        return control.ExistsReply(bytes(key in self.objects for key in message.keys))

    def answer_Remove(self, message: control.Remove) -> Any:
        found = bytes(self.objects.pop(key, None) is not None for key in message.keys)
        return control.Removed(found)
