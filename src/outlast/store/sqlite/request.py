# ruff: noqa: S608 - only constants of this module are joined to statements; every value is bound
"""The records of requests in SQLite: each read and written by its key, purged in the order in which they expire."""

from __future__ import annotations

from datetime import datetime

from outlast.store.change import Applied, Verdict
from outlast.store.moment import to_micros
from outlast.store.request import (
    PURGED_IN_PASSING,
    BeginRequest,
    PurgeRequests,
    RequestChange,
    RequestRow,
    RequestState,
)
from outlast.store.request_condition import listed, settle
from outlast.store.row_people import REQUEST, request_of, request_values
from outlast.store.sqlite.damage import naming, readable
from outlast.store.sqlite.database import Database
from outlast.store.sqlite.scope import Writing

_FIND = f"SELECT {REQUEST}, answer FROM request WHERE tenant = ? AND request_id = ?"
_PUT = f"""
INSERT INTO request ({REQUEST}, answer) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, request_id) DO UPDATE SET
    fingerprint = excluded.fingerprint, token = excluded.token, state = excluded.state, started_at = excluded.started_at,
    held_until = excluded.held_until, keep = excluded.keep, expires_at = excluded.expires_at,
    resolved_by = excluded.resolved_by, reason = excluded.reason, resolved_at = excluded.resolved_at,
    note = excluded.note, answer = excluded.answer
"""
_DROP = "DELETE FROM request WHERE tenant = ? AND request_id = ?"
_PURGE = """
DELETE FROM request WHERE tenant = ?1 AND request_id IN (
    SELECT request_id FROM request INDEXED BY request_expiry
    WHERE tenant = ?1 AND expires_at IS NOT NULL AND expires_at <= ?2 ORDER BY expires_at, request_id LIMIT ?3
)
"""
_LOOKS = {
    RequestState.RUNNING: (("running", "held_until > ?"),),
    RequestState.IN_DOUBT: (("running", "held_until <= ?"),),
    RequestState.DONE: (("done", "expires_at > ?"),),
    RequestState.FREED: (("freed", "expires_at > ?"),),
    RequestState.EXPIRED: (("done", "expires_at <= ?"), ("freed", "expires_at <= ?")),
}
"""For each state that is told: which stored ones it comes from, and what the time says then."""
_LOST = (("request_id",), "request %s is left out of lists")


def write(writing: Writing, change: RequestChange) -> Verdict:
    """Write a change of a request; on any verdict but `Applied` the caller undoes what was written."""
    if isinstance(change, PurgeRequests):
        return Applied(writing.now, removed=_purge(writing, change.tenant, change.limit))
    place = (change.tenant, change.request_id)
    found = writing.database.row(_FIND, place)
    row = None if found is None else request_of(found)
    verdict, after = settle(row, change, writing.now)
    if after is None and row is not None:
        writing.database.run(_DROP, place)
    elif after is not None and after is not row:
        writing.database.run(_PUT, request_values(after))
    if isinstance(change, BeginRequest) and isinstance(verdict, Applied):
        _purge(writing, change.tenant, PURGED_IN_PASSING)
    return verdict


def _purge(writing: Writing, tenant: str, limit: int) -> int:
    return writing.database.changed(_PURGE, (tenant, writing.micros, max(limit, 0)))


def find(database: Database, tenant: str, request_id: str, now: datetime) -> RequestRow | None:
    """Return one record, with the state that it has now."""
    with naming("the record of a request"):
        row = database.row(_FIND, (tenant, request_id))
        return None if row is None else listed(request_of(row), now)


def page(
    database: Database,
    tenant: str,
    states: frozenset[RequestState],
    now: datetime,
    limit: int,
    before: tuple[datetime, str] | None,
) -> list[RequestRow]:
    """Return a page of records, newest first, without their answers."""
    behind = () if before is None else (to_micros(before[0]), before[1])
    after = "AND (started_at, request_id) < (?, ?)" if behind else ""
    found: list[RequestRow] = []
    with database.moment():
        # A look for each stored state, each in the order of an index.
        for stored, condition in (look for state in sorted(states) for look in _LOOKS[state]):
            sql = f"""
            SELECT {REQUEST}, x'' FROM request INDEXED BY request_state
            WHERE tenant = ? AND state = ? AND {condition} {after}
            ORDER BY started_at DESC, request_id DESC LIMIT ?"""
            values = (tenant, stored, to_micros(now), *behind)
            found += readable(database, sql, values, request_of, _LOST, max(limit, 0))
    found.sort(key=lambda row: (row.started_at, row.request_id), reverse=True)
    return [listed(row, now) for row in found[: max(limit, 0)]]
