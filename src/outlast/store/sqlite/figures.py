# ruff: noqa: S608 - only constants of this module are joined to statements; every value is bound
"""The figures of a store in SQLite, read at one moment. Each statement walks an index in which closed runs do not stand."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec

from outlast.store.change import Status
from outlast.store.figures import NOTHING, OPEN, Backlog, Figures
from outlast.store.moment import Instant, to_micros
from outlast.store.protocol import RELAY_AFTER, LiveWorker
from outlast.store.sqlite import read
from outlast.store.sqlite.database import Database, Row
from outlast.store.sqlite.lock import LockFolder

_TENANTS = """
WITH RECURSIVE tenant (name) AS (
    SELECT CASE ?1 WHEN '' THEN (SELECT min(tenant) FROM {table}) ELSE ?1 END
    UNION ALL
    SELECT (SELECT min({table}.tenant) FROM {table} WHERE {table}.tenant > tenant.name) FROM tenant
    WHERE ?1 = '' AND name IS NOT NULL
)
"""
"""The tenants that are looked at, each found by one step in an index, however many rows it has."""
_OF_RUNS = _TENANTS.format(table="run")
_RUNS = f"""
{_OF_RUNS}
SELECT status.value, sum((
    SELECT count(*) FROM run INDEXED BY run_status WHERE run.tenant = tenant.name AND run.status = status.value
)) FROM tenant CROSS JOIN json_each(?2) AS status WHERE name IS NOT NULL GROUP BY status.value
"""
_BLOCKED = f"""
{_OF_RUNS}
SELECT CAST(run.reason AS BLOB), count(*) FROM tenant
CROSS JOIN run INDEXED BY run_status ON run.tenant = tenant.name AND run.status = '{Status.BLOCKED}'
WHERE name IS NOT NULL GROUP BY run.reason
"""
_UNCLAIMED = """
WITH RECURSIVE place (workflow) AS (
    SELECT min(workflow) FROM run INDEXED BY run_due WHERE due IS NOT NULL
    UNION ALL
    SELECT (
        SELECT min(run.workflow) FROM run INDEXED BY run_due WHERE due IS NOT NULL AND run.workflow > place.workflow
    ) FROM place WHERE workflow IS NOT NULL
)
SELECT CAST(place.workflow AS BLOB), count(*), min(run.due) FROM place
CROSS JOIN run INDEXED BY run_due ON run.workflow = place.workflow AND run.unfit = '' AND run.due <= ?2
WHERE ?1 IN ('', run.tenant) GROUP BY place.workflow
"""
"""Of runs that are due later, as most are, none is read."""
_ORPHANED = "SELECT count(*) FROM run INDEXED BY run_owner WHERE owner = ?2 AND ?1 IN ('', tenant)"
_LAPSED = "SELECT count(*) FROM run INDEXED BY run_lapsed WHERE lapses > 0 AND open = 1 AND ?1 IN ('', tenant)"
_UNREAD = "SELECT count(*) FROM run INDEXED BY run_owner WHERE owner IS NOT NULL AND mail = 1 AND ?1 IN ('', tenant)"
_DOUBTS = "SELECT count(*) FROM operation INDEXED BY operation_doubt WHERE in_doubt = 1 AND ?1 IN ('', tenant)"
_REQUESTS = f"""
{_TENANTS.format(table="request")}
SELECT count(*) FROM tenant
CROSS JOIN request INDEXED BY request_state ON request.tenant = tenant.name AND request.state = 'running' AND held_until <= ?2
"""
_APPROVALS = """
SELECT count(*), min(requested_at) FROM approval INDEXED BY approval_pending
WHERE state = 'pending' AND expires_at > ?2 AND ?1 IN ('', tenant)
"""
_NOTICES = """
SELECT count(*), min(due_at) FROM notice INDEXED BY notice_due
WHERE state = 'open' AND due_at <= ?2 AND ?1 IN ('', tenant)
"""
_OUTBOX = "SELECT count(*), min(at) FROM outbox INDEXED BY outbox_age WHERE at <= ?2 AND ?1 IN ('', tenant)"
_TASKS = """
SELECT CAST(queue AS BLOB), count(*), min(due) FROM task INDEXED BY task_due
WHERE worker IS NULL AND held = 0 AND due <= ?2 AND ?1 IN ('', tenant) GROUP BY queue
"""


def figures(
    database: Database, locks: LockFolder, tenant: str, moment: tuple[datetime, Instant]
) -> Figures:
    """Return the figures of one tenant, or of all."""
    now, instant = moment
    micros = to_micros(now)
    with database.moment():
        workers = read.workers(database, locks, instant)
        lapsed = [one for one in workers if not one.live]
        at = (tenant, micros)
        return Figures(
            at=now,
            runs=_runs(database, tenant),
            blocked={_text(reason): count for reason, count in database.rows(_BLOCKED, (tenant,))},
            unclaimed=_backlogs(database.rows(_UNCLAIMED, at), now),
            orphaned=sum(_orphans(database, tenant, lapsed)),
            lapsed=database.value(_LAPSED, (tenant,)),
            unread=database.value(_UNREAD, (tenant,)),
            in_doubt=database.value(_DOUBTS, (tenant,)),
            requests_in_doubt=database.value(_REQUESTS, at),
            approvals=_backlog(database.row(_APPROVALS, at), now),
            notices=_backlog(database.row(_NOTICES, at), now),
            outbox=_backlog(database.row(_OUTBOX, (tenant, to_micros(now - RELAY_AFTER))), now),
            tasks=_backlogs(database.rows(_TASKS, at), now),
            workers_live=len(workers) - len(lapsed),
            workers_lapsed=len(lapsed),
        )


def _runs(database: Database, tenant: str) -> dict[str, int]:
    found = dict(database.rows(_RUNS, (tenant, msgspec.json.encode(OPEN).decode())))
    return {status.value: found.get(status.value, 0) for status in OPEN}


def _orphans(database: Database, tenant: str, lapsed: Iterable[LiveWorker]) -> Iterable[int]:
    return (database.value(_ORPHANED, (tenant, one.row.worker)) for one in lapsed)


def _backlogs(rows: Iterable[Row], now: datetime) -> dict[str, Backlog]:
    return {_text(name): _backlog(row, now) for name, *row in rows}


def _backlog(row: Iterable[Any] | None, now: datetime) -> Backlog:
    count, oldest = row or (0, None)
    if oldest is None:
        return NOTHING
    # No `datetime` in between: a damaged time is far away, and no error.
    return Backlog(count, max(0, to_micros(now) - oldest) / 1_000_000)


def _text(name: bytes) -> str:
    """Return a name from a row; what is damaged in it is shown as such."""
    return name.decode(errors="replace")
