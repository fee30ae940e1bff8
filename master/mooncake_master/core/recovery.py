"""How a new master learns what the nodes hold: their directories, page by page.

Until a segment is listed to its end nothing is allocated in it. Entries come in ascending order of
their offsets, so they are entered into the allocator as they come. Doubtful ones are dropped, never
guessed: overlaps, versions that were removed in this reign, epochs that were left behind, sets of
which a part is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from mooncake_master.core import accounting
from mooncake_master.core.adoption import Adoption
from mooncake_master.core.copying import LOCATIONS_MAX
from mooncake_master.core.instructions import Instruct
from mooncake_master.core.listing import Listing, Member, is_numbered, number_of
from mooncake_master.core.memory import MAY_RETURN
from mooncake_master.core.nodes import Disk
from mooncake_master.core.places import PINS, SETS, WHOLE, anywhere, household
from mooncake_master.core.records import (
    EDGE,
    FOREVER,
    NEVER,
    DiskExtent,
    Gone,
    Stored,
    set_group,
)
from mooncake_master.core.returns import Returns, being_freed
from mooncake_store.extent import extent_bytes, name_bytes
from mooncake_store.limits import GRANULE_BYTES, NAMESPACES_MAX, OBJECT_BYTES_MAX
from mooncake_store.types import Pin, Tier, Version, term_of
from mooncake_store.wire.control import DirectoryPage, FreeExtents, FreeItem, ListDirectory

if TYPE_CHECKING:
    from mooncake_master.core.barriers import Barrier
    from mooncake_master.core.catalog import Catalog
    from mooncake_master.core.context import Context
    from mooncake_master.core.freeing import Freer
    from mooncake_master.core.nodes import Node, Segment
    from mooncake_master.core.notes import Notes
    from mooncake_master.core.parking import Parking
    from mooncake_master.core.records import Extent, Generation
    from mooncake_store.errors import StoreError
    from mooncake_store.wire.control import DirectoryEntry, Message, NoteItem

RETRY_S = 0.2
"""Pause before a page is asked for again that a node could not give."""
SET_PATIENCE_S = 60.0
"""Time after the recovery in which a set may still become whole: its other nodes may come late."""


class Recovery:
    """Rebuilds the index."""

    def __init__(
        self, context: Context, catalog: Catalog, freer: Freer, parking: Parking, notes: Notes
    ) -> None:
        self._context = context
        self._notes = notes
        self._catalog = catalog
        self._freer = freer
        self._parking = parking
        self._adoption = Adoption(context, catalog, notes)
        self._returns = Returns(notes)
        self._listings: dict[Segment, Listing] = {}
        self._tokens: dict[int, Listing] = {}
        self._sets: dict[int, list[Member]] = {}
        self._set_ids: dict[tuple[int, str], list[int]] = {}
        """{(slot, key): sets in which an extent of that key is kept back}"""
        self._whole: set[int] = set()
        self._chained: list[Stored] = []
        self._grace_until_s: float | None = None
        self._sets_until_s = FOREVER
        self._fresh = True
        self._untidy = True
        notes.late = self._take_late
        catalog.tombs.overflow = self._give_up_absent
        catalog.give_up_kept = self._give_up_kept
        notes.unread = self._unread
        context.recovering = context.config.recovery_grace_s > 0

    def expect(self) -> None:
        """Wait for nodes that were there before, even where an empty one comes first."""
        self._fresh = False

    def begin(self) -> None:
        """Wait for nobody: it is known that there was no master before."""
        self._grace_until_s = NEVER

    def _give_up_absent(self) -> None:
        """Have everybody come back empty of whom it is not known what he holds."""
        for node_id, records in self._context.unseen.items():
            self._notes.forgotten(node_id, records)
        for segment in self._listings:
            self._notes.forgotten(segment.node.register.node_id, [segment])

    # --- nodes ----------------------------------------------------------------------------------

    def joined(
        self, new: list[Segment], disks: list[Disk], again: list[Disk], *, landed: int, term: int
    ) -> None:
        """A node registered: list its new segments, or open them where they are empty.

        Its stores are listed whenever they are named: they may have lost extents meanwhile.
        """
        context = self._context
        for disk in disks:
            self._listings[disk] = Listing(disk, failed=not disk.is_named)
        for disk in again:
            if disk.listed:
                self._listings[disk] = Listing(disk, set(disk.held))
        for segment in new:
            if landed:
                self._listings[segment] = Listing(segment)
            else:
                segment.space.open()
                segment.listed = True
        if self._grace_until_s is None:
            self._grace_until_s = context.now_s + context.config.recovery_grace_s
        if term and new:
            self._fresh = False
            self._grace_until_s = context.now_s + context.config.recovery_grace_s
        context.fresh = self._fresh
        self.go_on()
        self.check()

    def disconnected(self, node: Node) -> None:
        """Listings of a node go on when it returns."""
        for token, listing in list(self._tokens.items()):
            if listing.segment.node is node:
                del self._tokens[token]
                listing.token = 0
        self.check()

    def lost(self, segment: Segment) -> None:
        """A segment's memory is gone."""
        self._returns.lost(segment)
        listing = self._listings.pop(segment, None)
        if listing is not None:
            self._tokens.pop(listing.token, None)

    def tick(self) -> None:
        """Ask again where a page failed, end the grace, give up sets that stay incomplete."""
        now_s = self._context.now_s
        if self._grace_until_s is None:
            self._grace_until_s = now_s + self._context.config.recovery_grace_s
        self.go_on()
        self.check()
        self._returns.tick()
        tombs = self._catalog.tombs
        if tombs and not (self._context.unseen or self._listings or self._freer.is_erasing):
            tombs.clear()
        everybody = not (self._context.unseen or self._listings or self._context.recovering)
        if self._untidy and everybody:
            self._untidy = False
            self._catalog.sets.tidy()
            self._catalog.later_pins.tidy()
        self._catalog.later_pins.tick(self._catalog)
        for stored in self._chained[-self._context.config.evict_slice :]:
            if stored.shelf is not None:
                self._catalog.find_parent(stored)
        del self._chained[-self._context.config.evict_slice :]
        if self._sets_until_s <= now_s:
            self._sets_until_s = FOREVER
            self._drop_sets()

    def check(self) -> None:
        """Work out whether the index is complete, as far as can be known."""
        context = self._context
        before = context.recovering
        grace_s = self._grace_until_s
        context.unlisted = bool(self._listings)
        context.unread = any(listing.unseen is None for listing in self._listings.values())
        context.recovering = (grace_s is None and before) or (
            grace_s is not None and context.now_s < grace_s
        ) or any(
            listing.segment.node.peer and listing.unseen is None and not listing.failed
            for listing in self._listings.values()
        )  # fmt: skip
        if before and not context.recovering:
            self._parking.look_again()
            if self._sets:
                self._sets_until_s = context.now_s + SET_PATIENCE_S

    def go_on(self) -> None:
        """Ask for the next pages, once all notes are known that may say what not to adopt."""
        now_s, grace_s = self._context.now_s, self._grace_until_s
        if not self._notes.complete and (grace_s is None or now_s < grace_s):
            return
        for listing in self._listings.values():
            if not listing.token and listing.segment.box.peer and listing.retry_s <= now_s:
                self._ask(listing)

    # --- pages ----------------------------------------------------------------------------------

    def _ask(self, listing: Listing) -> None:
        context = self._context
        segment = listing.segment
        token = context.next_token()
        self._tokens[token] = listing
        listing.token = token
        page = ListDirectory(
            context.term, segment.incarnation, listing.cursor, context.config.directory_page
        )
        context.out.append(Instruct(segment.node.peer, token, page))

    def answered(self, token: int, answer: Message | StoreError) -> bool:
        """Take a node's answer; return whether the token was one of ours."""
        listing = self._tokens.pop(token, None)
        if listing is None:
            return False
        listing.token = 0
        segment = listing.segment
        if not isinstance(answer, DirectoryPage) or not (
            answer.cursor == -1 or answer.cursor > listing.cursor
        ):
            listing.retry_s = self._context.now_s + RETRY_S
            listing.failed = segment.tier != Tier.DRAM
            self.check()
            return True
        listing.failed = False
        if answer.writing:
            listing.writing = sorted(answer.writing, key=lambda item: item.offset)
        self._enter_page(listing, answer.entries)
        if answer.cursor >= 0:
            listing.cursor = answer.cursor
            self._ask(listing)
            return True
        del self._listings[segment]
        if isinstance(segment, Disk):
            self._drop_unlisted(segment, listing)
        else:
            self._keep_out(listing, segment.space.granules * GRANULE_BYTES)
            segment.space.open()
        segment.listed = True
        self._notes.listed(segment.incarnation, lambda: _places(segment))
        self._returns.read(segment)
        self._context.cluster.changed()
        self._freer.room_returned = True
        self.check()
        self._parking.look_again()
        return True

    def _enter_page(self, listing: Listing, entries: list[DirectoryEntry]) -> None:
        segment = listing.segment
        if isinstance(segment, Disk):
            for entry in entries:
                self._enter_disk(segment, listing, entry)
            return
        at = 0
        while at < len(entries):
            if not listing.writing:
                at = self._adoption.take(segment, entries, at)
                if at == len(entries):
                    return
            entry = entries[at]
            self._keep_out(listing, entry.offset)
            self._enter(segment, entry)
            at += 1

    def _keep_out(self, listing: Listing, offset: int) -> None:
        """Keep what lies before ``offset`` and is still written from the allocator (ADR 2).

        It returns when the node confirms that the writer is over. A write that has landed
        meanwhile is an entry, and its place is taken.
        """
        writing = listing.writing
        while writing and writing[0].offset < offset:
            item = writing.pop(0)
            extent = listing.segment.space.claim(
                item.offset // GRANULE_BYTES, -(-item.bytes // GRANULE_BYTES), None
            ) if item.bytes else None  # fmt: skip
            if extent is not None:
                self._freer.free(extent, item.version, None, None, "")

    def _enter(self, segment: Segment, entry: DirectoryEntry) -> None:
        """Take one entry into the allocator and the index."""
        if not is_numbered(entry):
            self._context.counters[accounting.STALE_ENTRIES] += 1
            return
        names = name_bytes(entry.namespace, entry.key, entry.group, entry.parent)
        sane = 0 <= entry.length <= OBJECT_BYTES_MAX and entry.offset % GRANULE_BYTES == 0
        extent = segment.space.claim(
            entry.offset // GRANULE_BYTES, extent_bytes(entry.length, names) // GRANULE_BYTES, None
        ) if sane else None  # fmt: skip
        if extent is None:
            self._overlap(segment, entry)
            return
        if entry.attempt:
            segment.copies[extent.offset] = entry.attempt
        self._settle(extent, entry)

    def _enter_disk(self, disk: Disk, listing: Listing, entry: DirectoryEntry) -> None:
        """Take one entry of a store into the index, if it is not there already."""
        if not is_numbered(entry):
            self._context.counters[accounting.STALE_ENTRIES] += 1
            return
        known = disk.held.get(entry.offset)
        if known is not None:
            owner = known.owner
            if isinstance(owner, Stored) and owner.version == entry.version:
                if listing.unseen is not None:
                    listing.unseen.discard(entry.offset)
                return
            self._vanish(disk, known)
        if not 0 <= entry.offset < LOCATIONS_MAX or not 0 <= entry.length <= OBJECT_BYTES_MAX:
            self._context.counters[accounting.STALE_ENTRIES] += 1
            return
        names = name_bytes(entry.namespace, entry.key, entry.group, entry.parent)
        granules = extent_bytes(entry.length, names) // GRANULE_BYTES
        extent = DiskExtent(disk, entry.offset, granules, None)
        if any(freeing.version == entry.version for freeing in disk.erasing):
            return  # It was listed before it was told to erase it.
        self._settle(extent, entry)

    def _drop_unlisted(self, disk: Disk, listing: Listing) -> None:
        """Drop what a store was known to hold before and has not listed."""
        for location in listing.unseen or ():
            extent = disk.held.get(location)
            if extent is not None:
                self._context.counters[accounting.dropped("not_listed")] += 1
                self._vanish(disk, extent)

    def _vanish(self, disk: Disk, extent: DiskExtent) -> None:
        """Drop an extent that its store does not hold any more."""
        extent.vanished = True
        if isinstance(extent.owner, Stored):
            self._catalog.drop(extent.owner, extent, Gone.LOST)
        disk.let_go(extent)

    def _settle(self, extent: Extent, entry: DirectoryEntry) -> None:
        """Give an entry that was found in its place to its object, or have it erased."""
        context, segment = self._context, extent.segment
        if term_of(number_of(entry)) >= context.term:
            context.raise_term(term_of(number_of(entry)))
            self._freer.announce_epochs(self._epochs(), None)
        home = self._home(entry)
        if home is None:
            self._drop(extent, entry, home)
            return
        is_gone = self._is_gone(segment, entry, home)
        is_early = entry.set_count > 1 and not self._may_show(entry.set_id)
        if is_early and not (is_gone and self._is_noted(segment, entry)):
            self._gather(extent, entry, home, given_up=is_gone)
        if is_gone:
            self._drop(extent, entry, home)
        elif not is_early:
            self._show(extent, entry, home)

    def _may_show(self, set_id: int) -> bool:
        """Return whether a set is known to have been committed."""
        return set_id in self._whole or self._catalog.sets.is_broken(set_id)

    def _is_gone(self, segment: Segment, entry: DirectoryEntry, home: Generation) -> bool:
        """Return whether an entry was removed in this reign, or noted in an earlier one."""
        gone = self._catalog.gone
        gone_up_to = gone.gone_up_to(entry.slot, entry.key)
        stored = home.objects.get(entry.key)
        if (gone_up_to == entry.version and gone.reason(entry.slot, entry.key) in MAY_RETURN) or (
            stored is not None and stored.version == entry.version
        ):
            gone_up_to = Version(0)
        if self._catalog.tombs.covers(entry.slot, entry.key, entry.version):
            return True
        return gone_up_to >= entry.version or self._is_noted(segment, entry)

    def _is_noted(self, segment: Segment, entry: DirectoryEntry) -> bool:
        """Return whether a note speaks of this extent, or of all that its node held."""
        offset = anywhere(entry.version) if segment.tier else entry.offset
        return self._notes.doubts(
            segment.node.register.node_id, number_of(entry)
        ) or self._notes.covers(segment.incarnation, offset, number_of(entry))

    def _unread(self) -> dict[int, str]:
        """Return {incarnation: node id} of the directories that are not known to their end."""
        return {
            listing.segment.incarnation: listing.segment.node.register.node_id
            for listing in self._listings.values()
            if listing.unseen is None
        }

    def _take_late(self, item: NoteItem) -> None:
        """Drop what was adopted before its note was heard of."""
        if item.incarnation == PINS:
            self._catalog.later_pins.late(item)
            self._untidy = True
            return
        if item.incarnation == SETS:
            self._untidy = True
            if item.offset in self._sets:
                self._show_set(item.offset, 0)
            return
        if item.incarnation != household(item.node_id):
            self._take_late_at(item)
            return
        cluster = self._context.cluster
        for whole in (*cluster.segments.values(), *cluster.disks.values()):
            if whole.node.register.node_id == item.node_id:
                self._take_late_at(replace(item, incarnation=whole.incarnation))

    def _take_late_at(self, item: NoteItem) -> None:
        disk = self._context.cluster.disks.get(item.incarnation)
        if disk is not None:
            for known in list(disk.held.values()):
                owner = known.owner
                place = item.offset == WHOLE or (
                    isinstance(owner, Stored) and item.offset == anywhere(owner.version)
                )
                if place and isinstance(owner, Stored) and owner.version <= item.version:
                    self._catalog.drop(owner, known, Gone.LOST)
            self._returns.more(disk)
            return
        segment = self._context.cluster.segments.get(item.incarnation)
        if segment is None:
            return
        extent = segment.space.edge.after
        while extent is not segment.space.edge:
            following = extent.after
            place = item.offset in (WHOLE, extent.offset * GRANULE_BYTES)
            stored = extent.owner
            if (
                place
                and isinstance(stored, Stored)
                and segment.number(extent, stored.version) <= item.version
            ):
                self._catalog.drop(stored, extent, Gone.LOST)
            extent = following
        self._returns.more(segment)

    def _home(self, entry: DirectoryEntry) -> Generation | None:
        """Return the generation of an entry; None where it is of none that is readable."""
        catalog = self._catalog
        space = catalog.slots.get(entry.slot)
        if space is None:
            usable = 0 <= entry.slot < NAMESPACES_MAX and entry.namespace not in catalog.spaces
            if not usable or not entry.namespace or entry.epoch < 1:
                return None
            epoch = max(entry.epoch, catalog.epochs.get(entry.slot, 0))
            space = catalog.adopt(entry.namespace, entry.slot, epoch)
        elif space.name != entry.namespace:
            return None
        if entry.epoch > space.current.epoch:
            catalog.clear(space, entry.epoch)
            self._freer.announce_epochs({entry.slot: entry.epoch}, None)
        return space.current if entry.epoch == space.current.epoch else None

    def _show(self, extent: Extent, entry: DirectoryEntry, home: Generation) -> None:
        """Make an entry readable, unless a newer version is there."""
        catalog, context = self._catalog, self._context
        stored = home.objects.get(entry.key)
        if stored is not None and stored.version >= entry.version:
            if stored.version > entry.version:
                self._drop(extent, entry, home)
            elif isinstance(extent, DiskExtent):
                catalog.attach_disk(stored, extent)
            else:
                if stored.pin_s:
                    extent.segment.count_pinned(home, extent.granules)
                catalog.attach(stored, [extent])
            return
        extents = [] if isinstance(extent, DiskExtent) else [extent]
        if stored is None:
            stored = Stored(home, entry.key, entry.version, entry.length)
            catalog.insert(stored, extents)
        else:
            catalog.replace(stored, entry.version, entry.length, extents, None)
        if isinstance(extent, DiskExtent):
            catalog.attach_disk(stored, extent)
        context.counters[accounting.RECOVERED] += 1
        self._dress(stored, entry)

    def _dress(self, stored: Stored, entry: DirectoryEntry) -> None:
        """Give a recovered object its lease, pin and hints."""
        catalog, context, home = self._catalog, self._context, stored.home
        stored.wanted = entry.replicas
        stored.lease_s = end_s = context.now_s + context.config.lease_ttl_s
        home.lease_s = max(home.lease_s, end_s)
        pin_s = catalog.later_pins.end_of(entry.version)
        if pin_s is None and entry.pin:
            soft_s = entry.pin_ends_s - context.wall_offset_s
            pin_s = soft_s if entry.pin == Pin.SOFT else FOREVER
        if pin_s is not None and pin_s > context.now_s:
            catalog.pin(stored, pin_s)
        set_id = entry.set_id if entry.set_count > 1 else 0
        name = entry.group or (set_group(set_id) if set_id else "")
        if name or entry.parent:
            group = catalog.join_group(home, name) if name else None
            catalog.link(stored, group, entry.parent, set_id)
            if group is not None:
                catalog.leave_group(home, group)
            if entry.parent:
                self._chained.append(stored)

    def _gather(
        self, extent: Extent, entry: DirectoryEntry, home: Generation, *, given_up: bool = False
    ) -> None:
        """Keep a member of a set back until all are there.

        One that was removed or replaced before it was listed is there, too: its set was whole.
        """
        members = self._sets.setdefault(entry.set_id, [])
        members.append(Member(extent, entry, home, self._context.now_s, given_up=given_up))
        self._set_ids.setdefault((entry.slot, entry.key), []).append(entry.set_id)
        extent.owner = EDGE  # neither free nor anybody's yet
        if isinstance(extent, DiskExtent) and isinstance(extent.segment, Disk) and not given_up:
            extent.segment.hold(extent)
        if len({member.entry.key for member in members}) == entry.set_count:
            self._show_set(entry.set_id, entry.set_count)

    def _show_set(self, set_id: int, count: int) -> None:
        """Make what was kept back of a set readable: it is known to have been committed."""
        self._whole.add(set_id)
        left: dict[Stored, None] = {}
        for member in self._take_set(set_id):
            there = member.extent
            # It may have been removed since it was listed, and notes may have come late.
            if (
                member.home.cleared
                or there.segment.lost
                or self._is_gone(there.segment, member.entry, member.home)
            ):
                self._drop(there, member.entry, member.home)
            else:
                self._show(there, member.entry, member.home)
                stored = member.home.objects[member.entry.key]
                if stored.version == member.entry.version:
                    left[stored] = None
        if len(left) < count:
            self._catalog.sets.missing(set_id, left)

    def _take_set(self, set_id: int) -> list[Member]:
        """End keeping a set back; return those of its members that are there still."""
        members = self._sets.pop(set_id)
        for member in members:
            name = member.entry.slot, member.entry.key
            self._set_ids[name].remove(set_id)
            if not self._set_ids[name]:
                del self._set_ids[name]
        kept = [member for member in members if not member.is_over]
        for member in kept:
            if isinstance(member.extent.segment, Disk):
                member.extent.segment.let_go(member.extent)
        return kept

    def _give_up_kept(self, home: Generation, key: str, barrier: Barrier) -> None:
        """Have what is kept back of a key erased, since it is removed or replaced.

        Its set is as whole without it as it would be with it.
        """
        for set_id in self._set_ids.get((home.space.slot, key), ()):
            for member in self._sets[set_id]:
                if member.entry.key == key and member.home is home and not member.is_over:
                    member.given_up = True
                    if isinstance(member.extent.segment, Disk):
                        member.extent.segment.let_go(member.extent)
                    end_s = member.listed_s + self._context.config.lease_ttl_s
                    barrier.lease_s = max(barrier.lease_s, end_s)
                    self._freer.free(member.extent, member.entry.version, barrier, home, key)

    def _drop_sets(self) -> None:
        for set_id in list(self._sets):
            for member in self._take_set(set_id):
                self._drop(member.extent, member.entry, member.home)
        self._whole.clear()

    def _drop(self, extent: Extent, entry: DirectoryEntry, home: Generation | None) -> None:
        self._context.counters[accounting.STALE_ENTRIES] += 1
        self._freer.free(extent, entry.version, None, home, entry.key)

    def _overlap(self, segment: Segment, entry: DirectoryEntry) -> None:
        """Drop an entry that cannot be, and the one that it overlaps: one of them is wrong."""
        context = self._context
        context.counters[accounting.OVERLAPS] += 1
        last = segment.space.edge.before.before
        if isinstance(last.owner, Stored):
            self._catalog.drop(last.owner, last, Gone.LOST)
        if 0 <= entry.offset < segment.granules * GRANULE_BYTES and segment.node.peer:
            item = FreeItem(segment.incarnation, entry.offset, GRANULE_BYTES, number_of(entry))
            token = context.next_token()
            message = FreeExtents(context.term, [item])
            context.out.append(Instruct(segment.node.peer, token, message))

    def _epochs(self) -> dict[int, int]:
        return {slot: space.current.epoch for slot, space in self._catalog.slots.items()}


def _places(segment: Segment) -> set[int]:
    """Return the offsets of what a segment's node was told to erase, as notes have them."""
    freeings = being_freed(segment)
    if segment.tier:
        return {anywhere(freeing.version) for freeing in freeings}
    return {freeing.extent.offset * GRANULE_BYTES for freeing in freeings}
