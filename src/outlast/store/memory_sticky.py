"""Decisions that stick, in memory: the same conditions as in a database, on a mapping."""

from __future__ import annotations

from datetime import datetime

from outlast.store.change import Refused, RevokeSticky
from outlast.store.condition import Versions, broken_guard
from outlast.store.sticky import StickyRow
from outlast.store.sticky_condition import StickyFilter, StickyRun, revoked


class StickyTable:
    """The decisions of all tenants."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, StickyRow]] = {}

    def of(self, tenant: str) -> dict[str, StickyRow]:
        """Return a tenant's, by their ids."""
        return self._rows.setdefault(tenant, {})

    def revoke(self, change: RevokeSticky, version: Versions, now: datetime) -> Refused | None:
        """Take one back; return why it cannot be."""
        rows = self.of(change.tenant)
        after = revoked(rows.get(change.sticky_id), change, now)
        if isinstance(after, str):
            return Refused(after, change.sticky_id)
        broken = broken_guard(change.guards, version)
        if broken is not None:
            return Refused("stale", broken.name)
        rows[change.sticky_id] = after
        return None

    def page(
        self, tenant: str, wanted: StickyFilter, run: StickyRun | None, now: datetime
    ) -> list[StickyRow]:
        """Return a page of a tenant's."""
        rows = self._rows.get(tenant, {}).values()
        found = [row for row in rows if wanted.takes(row, run, now)]
        found.sort(key=lambda row: row.key)
        return found[: None if wanted.limit is None else max(wanted.limit, 0)]
