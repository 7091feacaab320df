# ruff: noqa: S608 - only constants of this package are joined to statements; every value is bound
"""Notices in SQLite: written and dropped by the key of their request, taken in the order in which they are due."""

from __future__ import annotations

from datetime import datetime

from outlast.store.change import (
    Applied,
    ApprovalRow,
    DueNotice,
    Refused,
    RunKey,
    Verdict,
)
from outlast.store.moment import time_or_none
from outlast.store.notice import EndNotice, NoticeChange, NoticeRow, TakeNotices
from outlast.store.notice_condition import ended, is_over, notices_of, taken
from outlast.store.row_people import (
    APPROVAL,
    NOTICE,
    approval_of,
    notice_of,
    notice_place,
    notice_values,
)
from outlast.store.sqlite.damage import UNREADABLE, naming, readable, say
from outlast.store.sqlite.database import Database
from outlast.store.sqlite.scope import Writing

_OF_REQUEST = "tenant = ? AND run_id = ? AND generation = ? AND approval_id = ?"
_PUT = f"REPLACE INTO notice ({NOTICE}) VALUES ({'?, ' * 10}?)"
_FIND = f"SELECT {NOTICE} FROM notice WHERE {_OF_REQUEST} AND notice = ?"
_DROP = f"DELETE FROM notice WHERE {_OF_REQUEST} AND notice = ?"
_CLOSE = f"DELETE FROM notice WHERE {_OF_REQUEST}"
_END = "DELETE FROM notice WHERE tenant = ? AND run_id = ?"
_OF_RUN = f"""
SELECT {NOTICE} FROM notice WHERE tenant = ? AND run_id = ? ORDER BY generation, approval_id, notice
"""
_ORDER = "due_at, tenant, run_id, generation, approval_id, notice"
_DUE = f"""
SELECT {NOTICE} FROM notice INDEXED BY notice_due
WHERE state = 'open' AND due_at <= ? ORDER BY {_ORDER} LIMIT ?
"""
_DUE_OF_TENANT = f"""
SELECT {NOTICE} FROM notice INDEXED BY notice_of_tenant_due
WHERE state = 'open' AND tenant = ? AND due_at <= ? ORDER BY {_ORDER} LIMIT ?
"""
_NEXT = "SELECT min(due_at) FROM notice INDEXED BY notice_due WHERE state = 'open'"
_NEXT_OF_TENANT = """
SELECT min(due_at) FROM notice INDEXED BY notice_of_tenant_due WHERE state = 'open' AND tenant = ?
"""
_ASKED = f"SELECT {APPROVAL} FROM approval WHERE {_OF_REQUEST} AND state = 'pending'"
_WORKFLOW = "SELECT workflow FROM run WHERE tenant = ? AND run_id = ?"
_LOST = (("tenant", "run_id"), "nobody is told of a request of run %s")


def write(writing: Writing, change: NoticeChange) -> Verdict:
    """Write a change of notices; on any verdict but `Applied` the caller undoes what was written."""
    match change:
        case TakeNotices():
            return _take(writing, change)
        case EndNotice():
            return _finish(writing, change)


def add(writing: Writing, row: ApprovalRow, generation: int) -> None:
    """Write the notices of a request that was just made."""
    for one in notices_of(row, generation):
        writing.database.run(_PUT, notice_values(one))


def close(writing: Writing, run: RunKey, generation: int, approval_id: str) -> None:
    """Drop those of a request that does not wait any more."""
    writing.database.run(_CLOSE, (run.tenant, run.run_id, generation, approval_id))


def end(writing: Writing, run: tuple[str, str]) -> None:
    """Drop those of a run that ends, or begins a new generation."""
    writing.database.run(_END, run)


def of_run(database: Database, run: RunKey) -> list[NoticeRow]:
    """Return those of one run, by request and time."""
    with naming("the notices of the run", run.run_id):
        rows = [notice_of(row) for row in database.rows(_OF_RUN, (run.tenant, run.run_id))]
    return sorted(rows, key=lambda row: (row.generation, row.approval_id, row.due_at))


def next_due(database: Database, tenant: str) -> datetime | None:
    """Return when the next one is due."""
    sql, values = (_NEXT_OF_TENANT, (tenant,)) if tenant else (_NEXT, ())
    with naming("the time of a notice"):
        return time_or_none(database.value(sql, values))


def _take(writing: Writing, change: TakeNotices) -> Applied:
    sql, tenant = (_DUE_OF_TENANT, (change.tenant,)) if change.tenant else (_DUE, ())
    values = (*tenant, writing.micros)
    due = readable(writing.database, sql, values, notice_of, _LOST, max(change.limit, 0))
    found: list[DueNotice] = []
    for row in due:
        held = None
        if not is_over(row, writing.now):
            held = _due(writing, taken(row, change.hold, writing.now))
        if held is None:
            writing.database.run(_DROP, notice_place(row))
        else:
            writing.database.run(_PUT, notice_values(held.notice))
            found.append(held)
    return Applied(writing.now, notices=tuple(found))


def _due(writing: Writing, row: NoticeRow) -> DueNotice | None:
    """Return a notice with its request, while that waits; none for one that cannot be read: nobody could be shown it."""
    try:
        asked = writing.database.row(_ASKED, notice_place(row)[:4])
        workflow = writing.database.value(_WORKFLOW, (row.tenant, row.run_id))
        return None if asked is None else DueNotice(row, approval_of(asked), workflow or "")
    except UNREADABLE as error:
        say(str(RunKey(row.tenant, row.run_id)), _LOST[1], error)
        return None


def _finish(writing: Writing, change: EndNotice) -> Verdict:
    found = writing.database.row(_FIND, notice_place(change))
    after = ended(None if found is None else notice_of(found), change, writing.now)
    if isinstance(after, Refused):
        return after
    writing.database.run(_PUT, notice_values(after))
    return Applied(writing.now)
