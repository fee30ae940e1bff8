"""How much may be pinned: of the whole pool, and by each namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_master.core.instructions import Reply
from mooncake_master.core.remembered import Limits
from mooncake_store.errors import InvalidArgument, PinLimitReached
from mooncake_store.fingerprint import check_namespace
from mooncake_store.limits import GRANULE_BYTES, NAMESPACES_MAX
from mooncake_store.wire.control import PinLimit, PinLimits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mooncake_master.core.barriers import Request
    from mooncake_master.core.catalog import Catalog
    from mooncake_master.core.context import Context
    from mooncake_master.core.records import Generation
    from mooncake_store.wire.control import ListPinLimits, SetPinLimit

POOL = ""
"""Stands for the whole pool where namespaces have names."""


class Pins:
    """Checks pins against what operators allow; their words outlive the master."""

    def __init__(self, context: Context, catalog: Catalog) -> None:
        self._context = context
        self._catalog = catalog
        self._shares: dict[str, float] = {}

    def recall(self, kept: Mapping[str, Limits]) -> None:
        """Begin with what an earlier master was told."""
        self._shares = {name: limits.pinned_share_max for name, limits in kept.items()}

    def check(self, home: Generation, granules: int) -> None:
        """Check whether so much more may be pinned in a namespace.

        Raises:
            PinLimitReached: It may not; the message says which limit is reached.
        """
        for name, pinned, bound in (
            (POOL, self._context.cluster.pinned_granules(), self._bound(POOL)),
            (home.space.name, home.pinned, self._bound(home.space.name)),
        ):
            if pinned + granules > bound:
                where = f"in namespace {name!r} " if name else ""
                raise PinLimitReached(
                    f"{pinned * GRANULE_BYTES} bytes are pinned {where}already;"
                    f" {granules * GRANULE_BYTES} more would be over the"
                    f" {bound * GRANULE_BYTES} that may be"
                )

    def _bound(self, name: str) -> int:
        """Return the granules that may be pinned in a namespace, or in the whole pool."""
        share = self._shares.get(name)
        if share is None:
            share = 1.0 if name else self._context.config.pinned_share_max
        return int(self._context.cluster.pool_granules() * share)

    # --- requests -------------------------------------------------------------------------------

    def set(self, request: Request, message: SetPinLimit) -> None:
        """Handle a `SetPinLimit`; what is pinned already stays pinned."""
        name, share = message.namespace, message.pinned_share_max
        if name != POOL:
            check_namespace(name)
        if share is None:
            self._shares.pop(name, None)
            self._context.forget("limits", name)
        elif not 0 <= share <= 1:
            raise InvalidArgument(f"a share lies between 0 and 1, not at {share}")
        elif name not in self._shares and len(self._shares) > NAMESPACES_MAX:
            raise InvalidArgument(f"there are {NAMESPACES_MAX} limits already")
        else:
            self._shares[name] = share
            self._context.remember("limits", name, Limits(share))
        self._reply(request)

    def list(self, request: Request, message: ListPinLimits) -> None:
        """Handle a `ListPinLimits`."""
        del message
        self._reply(request)

    def _reply(self, request: Request) -> None:
        names = sorted({POOL, *self._shares})
        reply = PinLimits(tuple(self._describe(name) for name in names))
        self._context.out.append(Reply(request.peer, request.request_id, reply))

    def _describe(self, name: str) -> PinLimit:
        space = self._catalog.spaces.get(name)
        if name == POOL:
            pinned = self._context.cluster.pinned_granules()
        else:
            pinned = 0 if space is None else space.current.pinned
        share = self._shares.get(name, self._context.config.pinned_share_max)
        return PinLimit(
            name, share, pinned * GRANULE_BYTES, self._bound(name) * GRANULE_BYTES,
            name in self._shares,
        )  # fmt: skip
