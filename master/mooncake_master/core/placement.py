"""Where the replicas of new objects go.

Preferred nodes first, then those of the writer's own host, then all others, in each group in
proportion to their free space: a smooth weighted round robin (as in nginx: each turn every node
gets its weight as credit, the richest is taken and pays the sum of the weights), so that the items
of a batch are spread and nothing depends on chance. A new node's weight grows with time and its
share is bounded meanwhile (field report 029). Nobody evicts for a put while another node has room:
a writer's own node that is at its high watermark comes after others that are not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mooncake_store.errors import ObjectTooLarge, ReplicasImpossible
from mooncake_store.limits import GRANULE_BYTES
from mooncake_store.types import NodeState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mooncake_master.core.context import Context
    from mooncake_master.core.evictor import Evictor
    from mooncake_master.core.freeing import Freer
    from mooncake_master.core.nodes import Node
    from mooncake_master.core.records import Attempt, Extent, Owner, Stored, Window
    from mooncake_store.wire.control import PutStart

DEAD: Final = NodeState.DEAD
ZONE, RACK, HOST = LEVELS = (0, 1, 2)
"""What may be lost as a whole, the largest first; racks of one name in two zones are two."""
CANDIDATES_MAX = 8
"""Nodes that one request chooses from; of more, some are drawn at random."""
FULL_WEIGHT = 0.05
"""Weight, as a share of its capacity, of a node that is full: it evicts for what it gets."""
NEWCOMER_SHARE = 0.5
"""Largest share of new objects that a node gets while its ramp lasts."""
_NONE: Final[list[Window]] = []
"""Windows of an attempt that needs none; nobody changes it."""
NEWCOMER_START = 0.1
"""Share of its weight that a node has when it joins."""


class Choice:
    """The nodes that one request chooses from.

    Attributes:
        wished: Those the writer named, in its order.
        near: Those of its own host.
        others: All others, or some of many.
    """

    __slots__ = ("near", "others", "wished")

    def __init__(self, wished: list[Node], near: list[Node], others: list[Node]) -> None:
        self.wished = wished
        self.near = near
        self.others = others


class Placement:
    """Chooses nodes and takes extents from them."""

    def __init__(self, context: Context, evictor: Evictor, freer: Freer) -> None:
        self._context = context
        self._evictor = evictor
        self._freer = freer

    def check(self, granules: int, replicas: int) -> None:
        """Refuse what can never be, before anything is evicted for it.

        Nodes that are away for now count: a put during a fault is stored with fewer copies, and
        says so, instead of being refused.

        Raises:
            ObjectTooLarge: No segment is that large.
            ReplicasImpossible: There are not that many nodes, or hosts where they are labelled.
        """
        cluster = self._context.cluster
        if not cluster.segments:
            return  # nobody has registered yet: wait
        if granules > cluster.granules_max:
            raise ObjectTooLarge(
                f"the object takes {granules * GRANULE_BYTES} bytes, the largest segment has"
                f" {cluster.granules_max * GRANULE_BYTES}"
            )
        if replicas > 1:
            hosts = len({node.host for node in cluster.nodes.values()})
            if hosts < replicas:
                raise ReplicasImpossible(
                    f"{replicas} replicas need as many nodes on different hosts, there are {hosts}"
                )

    def choice(self, message: PutStart) -> Choice:
        """Return the nodes that a request chooses from."""
        targets = self._context.cluster.targets
        near_by = message.near
        names = message.preferred
        if len(targets) == 1 or (not near_by and not names and len(targets) <= CANDIDATES_MAX):
            return Choice([], [], targets)  # Where there is one node, it is everybody's choice.
        wished = [node for node in targets if node.name in names]
        wished.sort(key=lambda node: names.index(node.name))
        near = [node for node in targets if node.index in near_by and node not in wished]
        others = [node for node in targets if node not in wished and node not in near]
        if len(others) > CANDIDATES_MAX:
            others = self._draw(others, message.replicas)
        return Choice(wished, near, others)

    def _draw(self, nodes: list[Node], replicas: int) -> list[Node]:
        """Draw some of many nodes; for several replicas from as many zones, racks and hosts."""
        random = self._context.random.random
        nodes = list(nodes)
        for at in range(CANDIDATES_MAX if replicas == 1 else len(nodes)):
            other = at + int(random() * (len(nodes) - at))
            nodes[at], nodes[other] = nodes[other], nodes[at]
        return nodes[:CANDIDATES_MAX] if replicas == 1 else _mixed(nodes, replicas)

    def spare(
        self, stored: Stored, *, without: Node | None = None, tight: bool = False
    ) -> Node | None:
        """Return the node that should take one more replica of an object.

        It takes it without beginning to evict; it is apart from the nodes that have one, by zone
        and rack if there is such a node.

        Args:
            stored: The object.
            without: Its replica does not count, as it is to be given up.
            tight: Where none takes it so, one is good enough that begins to evict then.
        """
        holders = {extent.segment.node for extent in stored.extents()}
        used = [node for node in holders if node is not without and node.state is not DEAD]
        extent = stored.extent
        assert extent is not None
        others = [node for node in self._context.cluster.targets if node not in holders]
        granules = extent.granules
        fits = [node for node in others if self.has_room(node, granules)]
        if tight and not fits:
            fits = [node for node in others if _free(node) >= granules]
        for level in LEVELS:
            apart = [node for node in fits if _apart(node, used, level)]
            if apart:
                return max(apart, key=lambda node: _free(node) / node.capacity)
        return None

    def place(self, choice: Choice, attempt: Attempt, *, evict: bool) -> list[Window] | None:
        """Take room for an attempt.

        Where some nodes are away for now the room may be for fewer replicas than asked.

        Args:
            choice: Nodes to choose from.
            attempt: Gets the extents that are free.
            evict: Empty windows where none are.

        Returns:
            Windows that are being emptied for it, or None where there is no room now.
        """
        others = choice.others
        if attempt.order.wanted == 1:
            if len(others) == 1 and not choice.wished and not choice.near:
                extent = allocate(others[0], attempt.granules, attempt)
                if extent is not None:
                    attempt.extents.append(extent)
                    return _NONE
                window = self._evictor.open_window(others[0], attempt.granules) if evict else None
                return None if window is None else [window]
            return self._place_one(choice, attempt, evict=evict)
        order = list(self._order(choice, attempt.granules))
        wanted = min(attempt.order.wanted, len({_place_of(node, HOST) for node in order}))
        windows: list[Window] = []
        for level in LEVELS:
            # As far apart as there are zones, then racks, even where somebody has to evict for it.
            most = min(wanted, len({_place_of(node, level) for node in order}))
            _spread(order, attempt, most, level, windows)
            if evict:
                self._spread_windows(order, attempt, most, level, windows)
            elif len(attempt.extents) < most:
                break
        if not wanted or len(attempt.extents) + len(windows) < wanted:
            returned = self._freer.room_returned
            self.give_back(attempt, windows)
            # It was there before, so nobody who found no room has more of it now.
            self._freer.room_returned = returned
            return None
        return windows

    def give_back(self, attempt: Attempt, windows: list[Window]) -> None:
        """Free room that nobody was told of."""
        for extent in attempt.extents:
            extent.segment.space.release(extent)
        attempt.extents = []
        for window in windows:
            self._freer.cancel(window)

    def swap(self, attempt: Attempt, window: Window) -> bool:
        """Give an attempt free room of the same node instead of a window, if there is any.

        What the window would have emptied stays, unless that is on its way already.
        """
        extent = allocate(window.segment.node, attempt.granules, attempt)
        if extent is None:
            return False
        attempt.extents.append(extent)
        self._freer.cancel(window)
        return True

    def relieve(self, attempts: Iterable[Attempt]) -> None:
        """Have the disks of nodes that gave room away write what makes room for the next ones."""
        if self._context.cluster.disks:
            for node in {extent.segment.node for each in attempts for extent in each.extents}:
                self._evictor.press(node)

    def _place_one(self, choice: Choice, attempt: Attempt, *, evict: bool) -> list[Window] | None:
        """Take room for one replica: as wished, then whose turn it is, then where most is free."""
        for group in self._groups(choice, attempt.granules):
            turns = group if group is choice.wished else self._turns(group)
            for node in turns:
                extent = allocate(node, attempt.granules, attempt)
                if extent is not None:
                    attempt.extents.append(extent)
                    return _NONE
        if evict:
            rest = *self._turns(choice.near), *self._turns(choice.others)
            for node in (*choice.wished, *rest):
                window = self._evictor.open_window(node, attempt.granules)
                if window is not None:
                    return [window]
        return None

    def _order(self, choice: Choice, granules: int) -> Iterator[Node]:
        """Yield each node once, in the order in which they are asked."""
        seen: list[Node] = []
        for group in self._groups(choice, granules):
            left = [node for node in group if node not in seen]
            while left:
                node = self._pick(left) if group is not choice.wished else left[0]
                left.remove(node)
                seen.append(node)
                yield node

    def _groups(self, choice: Choice, granules: int) -> Iterator[list[Node]]:
        """Yield groups of nodes, better ones first; what was left out of one comes later."""
        yield choice.wished
        if choice.near:
            yield [node for node in choice.near if self.has_room(node, granules)]
            yield [node for node in choice.others if self.has_room(node, granules)]
            yield choice.near
        yield choice.others

    def has_room(self, node: Node, granules: int) -> bool:
        """Return whether the node takes that much without beginning to evict."""
        left = _free(node) - granules
        return left >= (1 - self._context.config.high_watermark) * node.capacity

    def _turns(self, nodes: list[Node]) -> Iterator[Node]:
        """Yield the node whose turn it is, then all by their free space."""
        if len(nodes) < 2:  # noqa: PLR2004 - one, or none
            yield from nodes
            return
        yield self._pick(nodes)
        yield from sorted(nodes, key=_free, reverse=True)

    def _spread_windows(
        self, order: list[Node], attempt: Attempt, most: int, level: int, windows: list[Window]
    ) -> None:
        """Have extents emptied on nodes that are apart from those in use."""
        used = _in_use(attempt, windows)
        for node in order:
            if len(used) >= most:
                break
            if _apart(node, used, level):
                window = self._evictor.open_window(node, attempt.granules)
                if window is not None:
                    windows.append(window)
                    used.append(node)

    def _pick(self, nodes: list[Node]) -> Node:
        """Return the node whose turn it is."""
        if len(nodes) == 1:
            return nodes[0]
        weights = self._weights(nodes)
        total = 0.0
        best = nodes[0]
        for node, weight in zip(nodes, weights, strict=True):
            node.credit += weight
            total += weight
            if node.credit > best.credit:
                best = node
        best.credit -= total
        return best

    def _weights(self, nodes: list[Node]) -> list[float]:
        weights = [max(_free(node), FULL_WEIGHT * node.capacity) for node in nodes]
        now_s = self._context.now_s
        ramp_s = self._context.config.ramp_s
        new = [now_s - node.joined_s < ramp_s for node in nodes]
        if not any(new) or all(new):
            return weights
        for at, node in enumerate(nodes):
            if new[at]:
                weights[at] *= _ramp(now_s - node.joined_s, ramp_s)
        young = sum(weight for weight, is_new in zip(weights, new, strict=True) if is_new)
        old = sum(weights) - young
        bound = min(1.0, old * NEWCOMER_SHARE / (1 - NEWCOMER_SHARE) / young)
        return [w * bound if is_new else w for w, is_new in zip(weights, new, strict=True)]


def _ramp(age_s: float, ramp_s: float) -> float:
    return NEWCOMER_START + (1 - NEWCOMER_START) * age_s / ramp_s


def _free(node: Node) -> int:
    free = 0
    for segment in node.segments:
        free += segment.space.free_granules
    return free


def allocate(node: Node, granules: int, owner: Owner) -> Extent | None:
    """Return a free extent of a node, None where it has none of that size."""
    for segment in node.segments:
        space = segment.space
        if segment.allocating and space.free_granules >= granules:
            extent = space.allocate(granules, owner)
            if extent is not None:
                return extent
    return None


def _in_use(attempt: Attempt, windows: list[Window]) -> list[Node]:
    """Return the nodes that will have a replica of what an attempt writes."""
    extents = [extent.segment.node for extent in attempt.extents]
    return extents + [window.segment.node for window in windows]


def _mixed(nodes: list[Node], replicas: int) -> list[Node]:
    """Return the first nodes of a list, and of each level one from as many places as are needed."""
    chosen: dict[Node, None] = {}
    for level in LEVELS:
        seen = {_place_of(node, level) for node in chosen}
        for node in nodes:
            if len(seen) >= replicas:
                break
            place = _place_of(node, level)
            if place not in seen:
                seen.add(place)
                chosen[node] = None
    for node in nodes:
        if len(chosen) >= CANDIDATES_MAX:
            break
        chosen[node] = None
    return list(chosen)


def _spread(
    order: list[Node], attempt: Attempt, most: int, level: int, windows: list[Window]
) -> None:
    """Take free extents on nodes that are apart from those in use, until ``most`` are."""
    used = _in_use(attempt, windows)
    for node in order:
        if len(used) >= most:
            return
        if _apart(node, used, level):
            extent = allocate(node, attempt.granules, attempt)
            if extent is not None:
                attempt.extents.append(extent)
                used.append(node)


def spread_of(nodes: list[Node]) -> tuple[int, ...]:
    """Return on how many zones, racks and hosts some nodes are."""
    return tuple(len({_place_of(node, level) for node in nodes}) for level in LEVELS)


def _apart(node: Node, used: list[Node], level: int) -> bool:
    """Return whether a copy on ``node`` survives the loss of what the others share with it."""
    return not any(
        _place_of(node, each) == _place_of(other, each) for other in used for each in LEVELS[level:]
    )


def _place_of(node: Node, level: int) -> tuple[str, ...]:
    """Return the zone, rack or host of a node; one without that label is apart from all others."""
    labels = node.register.labels
    zone = labels.get("zone", "")
    if level == HOST:
        return (node.host,)
    name = zone if level == ZONE else labels.get("rack", "")
    return (zone, name) if name else (f"\0{node.index}",)
