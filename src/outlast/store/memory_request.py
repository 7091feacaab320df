"""The requests of the memory store: a table, and the looks at it."""

from __future__ import annotations

from datetime import datetime

from msgspec.structs import replace

from outlast.store.change import Applied, Verdict
from outlast.store.request import (
    PURGED_IN_PASSING,
    BeginRequest,
    PurgeRequests,
    RequestChange,
    RequestRow,
    RequestState,
)
from outlast.store.request_condition import listed, settle


class RequestTable:
    """The record of every request, by tenant and id."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], RequestRow] = {}

    def write(self, change: RequestChange, now: datetime) -> Verdict:
        """Write a change, unless it does not hold."""
        if isinstance(change, PurgeRequests):
            return Applied(now, removed=self._purge(change.tenant, now, change.limit))
        place = (change.tenant, change.request_id)
        verdict, after = settle(self._rows.get(place), change, now)
        if after is None:
            self._rows.pop(place, None)
        else:
            self._rows[place] = after
        if isinstance(change, BeginRequest) and isinstance(verdict, Applied):
            self._purge(change.tenant, now, PURGED_IN_PASSING)
        return verdict

    def find(self, tenant: str, request_id: str, now: datetime) -> RequestRow | None:
        """Return one record, with the state that it has now."""
        row = self._rows.get((tenant, request_id))
        return None if row is None else listed(row, now)

    def doubts(self, tenant: str, now: datetime) -> int:
        """Return how many are in doubt now, of one tenant or of all."""
        rows = (row for row in self._rows.values() if tenant in ("", row.tenant))
        return sum(listed(row, now).state is RequestState.IN_DOUBT for row in rows)

    def list(
        self,
        tenant: str,
        now: datetime,
        *,
        states: frozenset[RequestState],
        limit: int,
        before: tuple[datetime, str] | None,
    ) -> list[RequestRow]:
        """Return a page of records, newest first, without their answers."""
        rows = (listed(row, now) for row in self._rows.values() if row.tenant == tenant)
        found = [
            replace(row, answer=b"")
            for row in rows
            if row.state in states and (before is None or _order(row) < before)
        ]
        return sorted(found, key=_order, reverse=True)[: max(limit, 0)]

    def _purge(self, tenant: str, now: datetime, limit: int) -> int:
        expired = sorted(
            (row.expires_at, row.request_id)
            for row in self._rows.values()
            if row.tenant == tenant and row.expires_at is not None and row.expires_at <= now
        )
        gone = expired[: max(limit, 0)]
        for _, request_id in gone:
            del self._rows[tenant, request_id]
        return len(gone)


def _order(row: RequestRow) -> tuple[datetime, str]:
    return row.started_at, row.request_id
