"""What absent nodes still have to erase, kept where it outlives this master (docs/adr/0034).

A note is a fact: whatever lies at a place of a node, up to a version, is to be erased. It stays
true for ever, so one that is kept too long, or heard of twice, does no harm. Notes go to the data
directory where there is one, else to some of the nodes that are connected; those hand them to the
next master, which drops what they name instead of adopting it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mooncake_master.core.instructions import Instruct
from mooncake_master.core.places import (
    MISSING,
    PINS,
    RETURNS,
    SETS,
    WHOLE,
    household,
    item_of,
)
from mooncake_master.core.remembered import Note, note_key
from mooncake_store.errors import NotSupported
from mooncake_store.limits import FELLOWS_MAX, NOTES_MAX
from mooncake_store.types import NodeState, make_version
from mooncake_store.wire.control import (
    Done,
    DropNotes,
    KeepNotes,
    ListNotes,
    NoteItem,
    NotePage,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from mooncake_master.core.context import Context
    from mooncake_master.core.nodes import Node, Segment
    from mooncake_master.core.records import Freeing
    from mooncake_store.errors import StoreError
    from mooncake_store.wire.control import Message, Register, SegmentRecord

KEEPERS_MAX: Final = 3
"""Nodes that keep each note. One is enough for any single fault; more are in case that one of them
is slow to answer, or does not come back."""

RETRY_S: Final = 0.2
"""Pause before a node that failed to take notes, or to list them, is asked again."""

NOTE_BATCH: Final = 1_024
"""Notes in one message: 80 KiB."""

REPLACED_MAX: Final = 1_024
"""Stores that are remembered to be gone for good, 100 bytes each; more than the disks of a cluster
lose in years. Of one that is older a copy would be believed."""


class _Entry:
    """One note, and whether it is where it survives this master."""

    __slots__ = ("item", "kept")

    def __init__(self, item: NoteItem, *, kept: bool) -> None:
        self.item = item
        self.kept = kept


class Notes:
    """All notes, who keeps them, and who is still to say which it kept.

    Attributes:
        condemn: Called with the ``node_id`` of an absent node that has to come back empty, because
            too much would have to be noted about it.
        late: Called with each note that a node says.
        unread: Returns {incarnation: ``node_id``} of the directories that are not read to the end.
    """

    def __init__(self, context: Context) -> None:
        self.condemn: Callable[[str], None] = lambda _node_id: None
        self.late: Callable[[NoteItem], None] = lambda _item: None
        self._context = context
        self._table: dict[int, dict[int, _Entry]] = {}
        self._count = 0
        self._keepers: dict[Node, float] = {}
        """{node that gets every note: when all of them are to be sent to it}"""
        self._asked: dict[int, tuple[Node, list[NoteItem]]] = {}
        self._dropped: list[NoteItem] = []
        self._listings: dict[Node, tuple[int, int, float]] = {}
        """{node: (token or 0, where the next page begins, when to ask again)}"""
        self._seen: set[str] = set()
        self._awaited: set[str] = set()
        self._told: dict[Node, tuple[str, ...]] = {}
        self._doubts: dict[int, _Entry] = {}
        """{incarnation, or household: what the next master is to know of it, as this one has not
        read it yet}"""
        self._sets: dict[int, _Entry] = {}
        """{set: what says that it was committed, as a part of it is gone}"""
        self._pins: dict[int, _Entry] = {}
        """{version of an object: how it was pinned or unpinned after it was put}"""
        self.unread: Callable[[], dict[int, str]] = dict
        self._replaced: dict[int, _Entry] = {}
        """{incarnation of what is gone for good, or forgotten, or away: what says so}"""
        self._strange: set[int] = set()
        """Incarnations of those that an earlier master has noted, and nothing ended since then."""

    # --- facts ----------------------------------------------------------------------------------

    def concern(self, incarnation: int) -> bool:
        """Return whether any note is about this segment."""
        return incarnation in self._table

    def covers(self, incarnation: int, offset: int, version: int) -> bool:
        """Return whether a note says that this extent is to be erased."""
        page = self._table.get(incarnation)
        if page is None:
            return False
        return any(
            entry is not None and entry.item.version >= version
            for entry in (page.get(offset), page.get(WHOLE))
        )

    def doubts(self, node_id: str, version: int) -> bool:
        """Return whether an earlier master changed what it did not know this node to hold."""
        return self.covers(household(node_id), WHOLE, version)

    def ended(self) -> None:
        """A version ended: who was not read may hold an older one, which is over, too.

        In this reign the keys that ended are remembered. Without a data directory (``Tombs``) the
        next master only knows that what is held there from before this reign is in doubt, unless
        it is read before.
        """
        if self._context.keeps:
            return
        for incarnation, node_id in self.unread().items():
            self._doubt(incarnation, node_id)
        for node_id in self._context.unseen:
            self._doubt(household(node_id), node_id)
        while self._strange:
            incarnation = self._strange.pop()
            if incarnation in self._replaced and incarnation not in self._context.cluster.disks:
                self._doubt(incarnation, "")
        if not self.all_have_come:
            for node_id in self._awaited - self._seen - {""}:
                self._doubt(household(node_id), node_id)

    def _doubt(self, incarnation: int, node_id: str) -> None:
        if incarnation in self._doubts:
            return
        if incarnation in self._context.cluster.disks:
            node_id = ""  # It may come back on another node.
        bound = make_version(self._context.term, 0)
        returns = 0 if incarnation == household(node_id) else RETURNS
        item = NoteItem(node_id, incarnation, WHOLE, returns, bound)
        self._doubts[incarnation] = _Entry(item, kept=False)
        self._tell([item])

    @property
    def doubts_are_kept(self) -> bool:
        """Whether all that the next master has to doubt survives this one."""
        return all(e.kept for held in (self._doubts, self._replaced) for e in held.values())

    def read(self, node_id: str, incarnation: int) -> None:
        """A directory is known to its end, and what was over in it is erased: nothing is in doubt.

        What was doubted of a whole node narrows to those of its directories that are not read.
        """
        self._trust(incarnation)
        whole = self._table.get(incarnation, {}).get(WHOLE)
        if whole is not None and whole.item.bytes == RETURNS:
            self._drop(whole.item)
        if household(node_id) in self._doubts:
            for unread, owner in self.unread().items():
                if owner == node_id:
                    self._doubt(unread, node_id)
            self._trust(household(node_id))

    def _trust(self, incarnation: int) -> None:
        entry = self._doubts.pop(incarnation, None)
        if entry is None or not self._keepers:
            return
        self._dropped.append(entry.item)
        older = self._table.get(incarnation, {}).get(WHOLE)
        if older is not None:  # Who keeps the doubt has it in the place of this one.
            self._flush_dropped()
            older.kept = False
            self._tell([older.item])

    # --- sets -----------------------------------------------------------------------------------

    def knows_set(self, set_id: int) -> bool:
        """Return whether a note says that a set was committed."""
        return set_id in self._sets

    def sets(self) -> list[int]:
        """Return the sets that notes are about."""
        return list(self._sets)

    def note_sets(self, set_ids: Iterable[int]) -> None:
        """Have it noted that sets were committed, as they will not be whole any more."""
        self._note([NoteItem("", SETS, set_id, 0, 1) for set_id in set_ids])

    def drop_set(self, set_id: int) -> None:
        """Nothing is left of a set."""
        self._end(self._sets.pop(set_id, None))

    # --- pins -----------------------------------------------------------------------------------

    @property
    def pins(self) -> Mapping[int, object]:
        """Versions whose pin was changed after they were put."""
        return self._pins

    def pin_of(self, version: int) -> int | None:
        """Return how a version was pinned later, as a note has it; None where nothing is noted."""
        entry = self._pins.get(version)
        return None if entry is None else entry.item.bytes

    def is_news_of_pin(self, item: NoteItem) -> bool:
        """Return whether a note that was just heard is what is known of its version now."""
        entry = self._pins.get(item.offset)
        return entry is not None and entry.item is item

    def note_pins(self, ends: Mapping[int, int]) -> None:
        """Have it noted how versions are pinned now, ``{version: end}``."""
        number = self._context.next_version()
        self._note([NoteItem("", PINS, version, end, number) for version, end in ends.items()])

    def drop_pin(self, version: int) -> None:
        """A version is over."""
        self._end(self._pins.pop(version, None))

    # --- all facts ------------------------------------------------------------------------------

    def _note(self, items: list[NoteItem]) -> None:
        """Have facts kept: in the standing state where there is one, else by nodes."""
        for item in items:
            self._enter(item, kept=self._context.keeps)
        if not self._context.keeps:
            self._tell(items)

    def _tell(self, items: list[NoteItem]) -> None:
        """Have nodes keep facts."""
        self._recruit()
        for node in self._keepers:
            self._send(node, items)

    def _end(self, entry: _Entry | None) -> None:
        """A fact, if there is one, is over wherever it is kept."""
        if entry is not None:
            self._context.forget("notes", _key(entry.item))
            if self._keepers:
                self._dropped.append(entry.item)

    # --- facts about places ---------------------------------------------------------------------

    def is_kept(self, freeing: Freeing) -> bool:
        """Return whether what an absent node has to erase survives this master."""
        if freeing.needless:
            return True
        item = item_of(freeing)
        page = self._table.get(item.incarnation)
        return page is not None and any(
            entry is not None and entry.kept and entry.item.version >= item.version
            for entry in (page.get(item.offset), page.get(WHOLE))
        )

    def write(self, freeings: Iterable[Freeing]) -> None:
        """Have notes kept; ``is_kept`` tells when they are."""
        new = [
            item
            for freeing in freeings
            if not freeing.needless
            and not self.covers((item := item_of(freeing)).incarnation, item.offset, item.version)
        ]
        if not new:
            return
        self._note(new)
        if self._count > NOTES_MAX:
            self._overflow()

    def settled(self, freeing: Freeing) -> None:
        """A node has erased something: nobody need be told any more."""
        if not self._table:
            return
        item = item_of(freeing)
        page = self._table.get(item.incarnation)
        entry = None if page is None else page.get(item.offset)
        if entry is not None and entry.item.version <= item.version:
            self._drop(entry.item)

    def listed(self, incarnation: int, open_offsets: Callable[[], set[int]]) -> None:
        """A segment is known to its end: notes that named nothing in it have done their work."""
        page = self._table.get(incarnation)
        if page is None:
            return
        kept = open_offsets()
        for offset, entry in list(page.items()):
            if offset != WHOLE and offset not in kept:
                self._drop(entry.item)

    def _enter(self, item: NoteItem, *, kept: bool) -> None:
        if item.incarnation == SETS:
            if item.offset not in self._sets:
                self._sets[item.offset] = _Entry(item, kept=kept)
                self._context.remember("notes", _key(item), _note(item))
            return
        if item.incarnation == PINS:
            before = self._pins.get(item.offset)
            if before is None or before.item.version < item.version:
                self._pins[item.offset] = _Entry(item, kept=kept)
                if before is not None:
                    self._context.forget("notes", _key(before.item))
                self._context.remember("notes", _key(item), _note(item))
            return
        page = self._table.setdefault(item.incarnation, {})
        before = page.get(item.offset)
        if before is not None and before.item.version >= item.version:
            before.kept |= kept
            return
        page[item.offset] = _Entry(item, kept=kept)
        self._count += before is None
        if before is not None:
            self._context.forget("notes", _key(before.item))
        self._context.remember("notes", _key(item), _note(item))
        self._count_replaced(item)

    def _drop(self, item: NoteItem) -> None:
        page = self._table[item.incarnation]
        del page[item.offset]
        if item.offset == WHOLE:
            self._replaced.pop(item.incarnation, None)
        self._count -= 1
        if not page:
            del self._table[item.incarnation]
        self._context.forget("notes", _key(item))
        if self._keepers:
            self._dropped.append(item)

    def _overflow(self) -> None:
        """Have the absent node with the most notes come back empty instead: one note a segment."""
        counts: dict[str, int] = {}
        for item in self._items():
            if item.node_id:
                counts[item.node_id] = counts.get(item.node_id, 0) + 1
        worst = max(counts, key=lambda node_id: counts[node_id])
        self.condemn(worst)

    def forgotten(self, node_id: str, segments: Iterable[Segment | SegmentRecord]) -> None:
        """Note that what is forgotten, or would take too many notes, comes back empty, if it does.

        Stores may come back on any node. Memory only comes back with its own.
        """
        newest = self._context.next_version()
        self._note_instead(
            [
                NoteItem(
                    "" if segment.tier else node_id,
                    segment.incarnation,
                    WHOLE,
                    0 if self._is_gone_for_good(segment.incarnation) else RETURNS,
                    newest,
                )
                for segment in segments
            ]
        )

    def missing(self, stores: Iterable[int]) -> None:
        """Have the next master know that there are stores which no node names."""
        if not self._context.keeps:  # Else it knows from the list of nodes.
            items = [NoteItem("", incarnation, WHOLE, RETURNS, MISSING) for incarnation in stores]
            if items:
                self._note(items)

    def _note_instead(self, items: list[NoteItem]) -> None:
        """Have whole segments noted in the place of what is noted about parts of them."""
        for item in items:
            for entry in list(self._table.get(item.incarnation, {}).values()):
                self._drop(entry.item)
        if items:
            self._flush_dropped()  # A store's missing is noted in the same place.
            self._note(items)

    def _is_gone_for_good(self, incarnation: int) -> bool:
        entry = self._replaced.get(incarnation)
        return entry is not None and entry.item.bytes != RETURNS

    def _items(self) -> Iterator[NoteItem]:
        for page in self._table.values():
            for entry in page.values():
                yield entry.item
        for entry in (*self._doubts.values(), *self._sets.values(), *self._pins.values()):
            yield entry.item

    def replaced(self, incarnations: Iterable[int]) -> None:
        """Note that stores are gone for good: who comes back as one is a copy of an older state.

        These notes are about no node, so whoever is there keeps them, and none has done its work.
        """
        items = [
            NoteItem("", incarnation, WHOLE, 0, self._context.next_version())
            for incarnation in incarnations
            if not self._is_gone_for_good(incarnation)
        ]
        self._note_instead(items)

    def _count_replaced(self, item: NoteItem) -> None:
        """Know a note about a store that is gone, or away; the oldest of too many is dropped.

        Memory comes before stores: nodes that come and go leave much of it, which never returns.
        """
        if item.offset != WHOLE or (item.node_id and item.bytes != RETURNS):
            return
        self._replaced[item.incarnation] = self._table[item.incarnation][WHOLE]
        if len(self._replaced) > REPLACED_MAX:
            oldest = min(
                self._replaced.values(), key=lambda e: (not e.item.node_id, e.item.version)
            )
            self._drop(oldest.item)

    # --- nodes ----------------------------------------------------------------------------------

    def recall(self, notes: Iterable[Note]) -> None:
        """Begin with what an earlier master has kept."""
        for note in notes:
            item = NoteItem(note.node_id, note.incarnation, note.offset, note.bytes, note.attempt)
            if item.incarnation == SETS:
                self._sets[item.offset] = _Entry(item, kept=True)
                continue
            if item.incarnation == PINS:
                self._pins[item.offset] = _Entry(item, kept=True)
                continue
            page = self._table.setdefault(item.incarnation, {})
            self._count += item.offset not in page
            page[item.offset] = _Entry(item, kept=True)
            self._count_replaced(item)

    def joined(self, node: Node, message: Register) -> None:
        """A node is there: ask for the notes it kept, drop those about memory that it lost."""
        self._seen.add(message.node_id)
        self._awaited.update(message.fellows)
        there = {record.incarnation for record in message.segments}
        for item in [item for item in self._items() if item.node_id == message.node_id]:
            # A store that is not named may only be closed; what was removed stays removed.
            place = there | {household(item.node_id)}
            if item.incarnation not in place and item.offset >= WHOLE:
                if item.incarnation in self._doubts:
                    self._trust(item.incarnation)
                else:
                    self._drop(item)
        self._told[node] = message.fellows or (message.node_id,)
        self._forget(node)
        if message.notes:
            self._keepers[node] = self._context.now_s
            self._ask(node, 0)
        self._tell_fellows()

    def disconnected(self, node: Node) -> None:
        """A node is away: others keep from now on what it kept."""
        self._told.pop(node, None)
        self._forget(node)
        self._tell_fellows()

    @property
    def complete(self) -> bool:
        """Whether every node that may know of notes has come, and has said which."""
        return not self._listings and (self._context.keeps or self.all_have_come)

    @property
    def all_have_come(self) -> bool:
        """Whether every node that another one has named is back, or was."""
        return self._awaited <= self._seen

    def tick(self) -> None:
        """Have new keepers catch up; ask and send again where that failed."""
        now_s = self._context.now_s
        for node, (token, cursor, retry_s) in list(self._listings.items()):
            if not token and retry_s <= now_s:
                self._ask(node, cursor)
        if (self._table or self._doubts or self._sets or self._pins) and not self._context.keeps:
            self._recruit()
        self._flush_dropped()

    def answered(self, node: Node, token: int, answer: Message | StoreError) -> bool:
        """Take a node's answer; return whether the token was one of ours."""
        listing = self._listings.get(node)
        if listing is not None and token == listing[0]:
            self._take_page(node, listing[1], answer)
            return True
        asked = self._asked.pop(token, None)
        if asked is None:
            return False
        if isinstance(answer, Done):
            for item in asked[1]:
                entry = self._doubts.get(item.incarnation)
                if entry is None or entry.item != item:
                    entry = self._page(item.incarnation).get(item.offset)
                if entry is not None and entry.item.version <= item.version:
                    entry.kept = True
        elif node in self._keepers:
            again_s = float("inf") if isinstance(answer, NotSupported) else RETRY_S
            self._keepers[node] = self._context.now_s + again_s
        return True

    def _page(self, incarnation: int) -> dict[int, _Entry]:
        """Return the notes about a segment, or about what stands in the place of one."""
        if incarnation == SETS:
            return self._sets
        return self._pins if incarnation == PINS else self._table.get(incarnation, {})

    def _forget(self, node: Node) -> None:
        """End what was under way with a node."""
        self._keepers.pop(node, None)
        self._listings.pop(node, None)
        for token in [token for token, (owner, _) in self._asked.items() if owner is node]:
            del self._asked[token]

    def _recruit(self) -> None:
        """Have enough nodes keep all notes, and send those to whom that is new."""
        nodes = self._context.cluster.nodes.values()
        live = [node for node in nodes if node.peer and node.state is not NodeState.DEAD]
        live.sort(key=lambda node: (node.state is not NodeState.LIVE, node.index))
        for node in live[:KEEPERS_MAX]:
            self._keepers.setdefault(node, self._context.now_s)
        for node, due_s in list(self._keepers.items()):
            if due_s <= self._context.now_s:
                self._keepers[node] = float("inf")
                self._send(node, self._items())

    def _send(self, node: Node, items: Iterable[NoteItem]) -> None:
        """Send notes to a keeper; none about itself."""
        context = self._context
        others = [item for item in items if item.node_id != node.register.node_id]
        for at in range(0, len(others), NOTE_BATCH):
            batch = others[at : at + NOTE_BATCH]
            token = context.next_token()
            self._asked[token] = (node, batch)
            context.out.append(Instruct(node.peer, token, KeepNotes(context.term, batch)))

    def _flush_dropped(self) -> None:
        context = self._context
        for at in range(0, len(self._dropped), NOTE_BATCH):
            message = DropNotes(context.term, self._dropped[at : at + NOTE_BATCH])
            for node in self._keepers:
                context.out.append(Instruct(node.peer, context.next_token(), message))
        self._dropped.clear()

    def _tell_fellows(self) -> None:
        """Tell each node who is connected, where that is news to it."""
        context = self._context
        if context.keeps:
            return
        fellows = tuple(sorted(node.register.node_id for node in self._told))
        if len(fellows) > FELLOWS_MAX:
            fellows = ("",)
        for node, told in self._told.items():
            if set(told) != set(fellows) and node.peer:
                self._told[node] = fellows
                message = KeepNotes(context.term, [], fellows)
                context.out.append(Instruct(node.peer, context.next_token(), message))

    # --- pages ----------------------------------------------------------------------------------

    def _ask(self, node: Node, cursor: int) -> None:
        context = self._context
        token = context.next_token()
        self._listings[node] = (token, cursor, 0.0)
        message = ListNotes(context.term, cursor, NOTE_BATCH)
        context.out.append(Instruct(node.peer, token, message))

    def _take_page(self, node: Node, cursor: int, answer: Message | StoreError) -> None:
        if not isinstance(answer, NotePage) or not (answer.cursor == -1 or answer.cursor > cursor):
            self._listings[node] = (0, cursor, self._context.now_s + RETRY_S)
            return
        for item in answer.items:
            self._enter(item, kept=True)
            if item.offset == WHOLE and item.bytes == RETURNS and not item.node_id:
                self._strange.add(item.incarnation)
            self.late(item)
        if answer.cursor >= 0:
            self._ask(node, answer.cursor)
        else:
            del self._listings[node]


def _note(item: NoteItem) -> Note:
    return Note(item.node_id, item.incarnation, item.offset, item.bytes, item.version)


def _key(item: NoteItem) -> str:
    return note_key(item.incarnation, item.offset, item.version)
