# ruff: noqa: S608 - only constants of this module are joined to statements; every value is bound
"""The figures of a store, read at one moment. Each statement walks an index in which runs that have ended do not stand."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from outlast.store.bound import keeps
from outlast.store.change import Status
from outlast.store.figures import NOTHING, OPEN, Backlog, Figures
from outlast.store.moment import from_micros
from outlast.store.postgres.clock import StoreClock
from outlast.store.postgres.session import Session
from outlast.store.protocol import RELAY_AFTER
from outlast.store.row import Row

_NOBODY = "\x7f"
_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_NOW = "SELECT $s.micros()"
_TENANTS = """
WITH RECURSIVE tenant (name) AS (
    SELECT CASE %b::text WHEN '' THEN (SELECT min(tenant) FROM $s.{table}) ELSE %b::text END
    UNION ALL
    SELECT (SELECT min(one.tenant) FROM $s.{table} AS one WHERE one.tenant > tenant.name) FROM tenant
    WHERE %b::text = '' AND name IS NOT NULL
)
"""
"""The tenants that are looked at, each found by one step in an index, however many rows it has."""
_OF_RUNS = _TENANTS.format(table="run")
_OPEN = ", ".join(f"'{status}'" for status in OPEN)
"""Written out: the server sees that no other runs than those of a partial index are asked for."""
_RUNS = f"""
{_OF_RUNS}
SELECT run.status, count(*) FROM tenant JOIN $s.run AS run ON run.tenant = tenant.name AND run.status IN ({_OPEN})
WHERE name IS NOT NULL AND run.generation > 0 GROUP BY run.status
"""
_BLOCKED = f"""
{_OF_RUNS}
SELECT run.reason, count(*) FROM tenant JOIN $s.run AS run ON run.tenant = tenant.name AND run.status = '{Status.BLOCKED}'
WHERE name IS NOT NULL GROUP BY run.reason
"""
_UNCLAIMED = """
WITH RECURSIVE place (workflow) AS (
    SELECT min(workflow) FROM $s.run WHERE due IS NOT NULL
    UNION ALL
    SELECT (SELECT min(run.workflow) FROM $s.run AS run WHERE run.due IS NOT NULL AND run.workflow > place.workflow)
    FROM place WHERE workflow IS NOT NULL
)
SELECT place.workflow, count(*), min(run.due) FROM place
JOIN $s.run AS run ON run.workflow = place.workflow AND run.unfit = '' AND run.due <= %b
WHERE %b IN ('', run.tenant) GROUP BY place.workflow
"""
"""Of runs that are due later, as most are, none is read."""
_ORPHANED = "SELECT count(*) FROM $s.run WHERE owner = ANY(%b::text[]) AND %b IN ('', tenant)"
_LAPSED = (
    f"SELECT count(*) FROM $s.run WHERE lapses > 0 AND status IN ({_OPEN}) AND %b IN ('', tenant)"
)
_UNREAD = "SELECT count(*) FROM $s.run WHERE owner IS NOT NULL AND mail = 1 AND %b IN ('', tenant)"
_DOUBTS = "SELECT count(*) FROM $s.operation WHERE in_doubt = 1 AND %b IN ('', tenant)"
_REQUESTS = f"""
{_TENANTS.format(table="request")}
SELECT count(*) FROM tenant
JOIN $s.request AS request ON request.tenant = tenant.name AND request.state = 'running' AND request.held_until <= %b
"""
_APPROVALS = """
SELECT count(*), min(requested_at) FROM $s.approval WHERE state = 'pending' AND expires_at > %b AND %b IN ('', tenant)
"""
_NOTICES = "SELECT count(*), min(due_at) FROM $s.notice WHERE state = 'open' AND due_at <= %b AND %b IN ('', tenant)"
_OUTBOX = "SELECT count(*), min(at) FROM $s.outbox WHERE at <= %b AND %b IN ('', tenant)"
_TASKS = """
SELECT queue, count(*), min(due) FROM $s.task WHERE worker IS NULL AND held = 0 AND due <= %b AND %b IN ('', tenant) GROUP BY queue
"""
_WORKERS = "SELECT worker, lease, renewed FROM $s.worker"


def figures(session: Session, clock: StoreClock, tenant: str) -> Figures:
    """Return the figures of one tenant, or of all."""
    # Nobody is named so: no column can hold it.
    tenant = tenant if keeps(tenant) else _NOBODY
    asked = clock.asking()
    with session.pipeline():
        session.send(_READ)
        micros: int = session.send(_NOW).rows()[0][0]
        clock.saw(micros, asked)
        workers = session.send(_WORKERS).rows()
        lapsed = [
            worker
            for worker, lease, renewed in workers
            if not clock.live(renewed, timedelta(microseconds=lease), micros)
        ]
        of_tenants, at = (tenant,) * 3, (micros, tenant)
        runs = session.send(_RUNS, of_tenants)
        blocked = session.send(_BLOCKED, of_tenants)
        unclaimed = session.send(_UNCLAIMED, at)
        orphaned = session.send(_ORPHANED, (lapsed, tenant))
        numbers = [session.send(sql, (tenant,)) for sql in (_LAPSED, _UNREAD, _DOUBTS)]
        requests = session.send(_REQUESTS, (*of_tenants, micros))
        approvals, notices = session.send(_APPROVALS, at), session.send(_NOTICES, at)
        old = micros - RELAY_AFTER // timedelta(microseconds=1)
        outbox, tasks = session.send(_OUTBOX, (old, tenant)), session.send(_TASKS, at)
        session.send("COMMIT")
        counts = {name: int(count) for name, count in runs.rows()}
        lapses, unread, doubts = (one.rows()[0][0] for one in numbers)
        return Figures(
            at=from_micros(micros),
            runs={status.value: counts.get(status.value, 0) for status in OPEN},
            blocked=dict(blocked.rows()),
            unclaimed=_backlogs(unclaimed.rows(), micros),
            orphaned=orphaned.rows()[0][0],
            lapsed=lapses,
            unread=unread,
            in_doubt=doubts,
            requests_in_doubt=requests.rows()[0][0],
            approvals=_backlog(approvals.rows()[0], micros),
            notices=_backlog(notices.rows()[0], micros),
            outbox=_backlog(outbox.rows()[0], micros),
            tasks=_backlogs(tasks.rows(), micros),
            workers_live=len(workers) - len(lapsed),
            workers_lapsed=len(lapsed),
        )


def _backlogs(rows: Iterable[Row], micros: int) -> dict[str, Backlog]:
    return {name: _backlog(row, micros) for name, *row in rows}


def _backlog(row: Iterable[Any], micros: int) -> Backlog:
    count, oldest = row
    return NOTHING if oldest is None else Backlog(count, max(0, micros - oldest) / 1_000_000)
