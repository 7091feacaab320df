# ruff: noqa: S608 - only constants of this package are joined to statements; every value is bound
"""Decisions that stick, in SQLite: found by effect and run, or by effect and workflow."""

from __future__ import annotations

from datetime import datetime

from outlast.errors import StoreCorruptError
from outlast.store.change import Applied, Refused, RevokeSticky, RunKey, Verdict
from outlast.store.condition import Versions, broken_guard
from outlast.store.moment import to_micros
from outlast.store.row_people import STICKY, sticky_of, sticky_values
from outlast.store.sqlite.damage import decoded, key_at, readable
from outlast.store.sqlite.database import Database
from outlast.store.sqlite.row import INCARNATION
from outlast.store.sqlite.scope import Writing
from outlast.store.sticky import StickyRow
from outlast.store.sticky_condition import StickyFilter, StickyRun

_PUT = f"REPLACE INTO sticky ({STICKY}) VALUES ({'?, ' * 28}?)"
_FIND = f"SELECT {STICKY} FROM sticky WHERE tenant = ? AND sticky_id = ?"
_RUN = f"SELECT {INCARNATION}, workflow FROM run WHERE tenant = ? AND run_id = ?"
_OF_EFFECT = f"""
SELECT {STICKY} FROM sticky INDEXED BY sticky_of_run
WHERE tenant = ?1 AND effect = ?2 AND run_id = ?3 AND revoked_at IS NULL AND reach <> 'workflow'
    AND uses IS NOT 0 AND ifnull(expires_at > ?5, 1) AND incarnation = ?6
UNION ALL
SELECT {STICKY} FROM sticky INDEXED BY sticky_of_workflow
WHERE tenant = ?1 AND effect = ?2 AND workflow = ?4 AND revoked_at IS NULL AND reach = 'workflow'
    AND uses IS NOT 0 AND ifnull(expires_at > ?5, 1)
"""
_REVOKED = "SELECT revoked_at IS NOT NULL FROM sticky WHERE tenant = ? AND sticky_id = ?"
_REVOKE = "UPDATE sticky SET revoked_at = ?, revoked_by = ?, revoked_why = ? WHERE tenant = ? AND sticky_id = ?"
_KEY = ("tenant", "sticky_id")
_LOST = (_KEY, "the decision %s that sticks is left out")
_FORBIDS = (_KEY, "the decision %s that sticks may say no, so nothing begins that it may be about")
_ALL = 1 << 40


def find(writing: Writing, tenant: str, sticky_id: str) -> StickyRow | None:
    """Return a decision by its id."""
    row = writing.database.row(_FIND, (tenant, sticky_id))
    return None if row is None else sticky_of(row)


def put(writing: Writing, row: StickyRow) -> None:
    """Write a decision as it stands now."""
    writing.database.run(_PUT, sticky_values(row))


def revoke(writing: Writing, change: RevokeSticky, version: Versions) -> Verdict:
    """Take one back; what it says is not read, so that one that cannot be read is taken back, too."""
    key = change.tenant, change.sticky_id
    row = writing.database.row(_REVOKED, key)
    if row is None or row[0]:
        return Refused("unknown" if row is None else "revoked", change.sticky_id)
    broken = broken_guard(change.guards, version)
    if broken is not None:
        return Refused("stale", broken.name)
    writing.database.run(_REVOKE, (to_micros(writing.now), change.by, change.reason, *key))
    return Applied(writing.now)


def count(database: Database) -> int:
    """Return how many there are, of all tenants, after reading each.

    Raises:
        StoreCorruptError: One cannot be read.
    """
    return sum(1 for row in database.rows(f"SELECT {STICKY} FROM sticky") if sticky_of(row))


def _of_effect(
    database: Database, key: StickyRun, wanted: StickyFilter, now: datetime
) -> list[StickyRow]:
    """Return the decisions about an effect that reach a run and still stick; where one cannot be read, nobody can say what it says.

    Raises:
        StoreCorruptError: One cannot be read.
    """
    run = key[0]
    values = (run.tenant, wanted.effect, run.run_id, key[2], to_micros(now), key[1])
    rows = list(decoded(database, _OF_EFFECT, values, sticky_of, _FORBIDS))
    if None in rows:
        name = key_at(database, _OF_EFFECT, values, _KEY, rows.index(None))
        raise StoreCorruptError(
            f"the decision {name} that sticks cannot be read",
            run=run.run_id,
            hint=f"the log says why; an admin takes it back: `outlast approvals revoke {name} --reason TEXT`",
        )
    found = [row for row in rows if row is not None and wanted.takes(row, key, now)]
    return sorted(found, key=lambda row: row.key)[: wanted.limit]


def page(database: Database, tenant: str, wanted: StickyFilter, now: datetime) -> list[StickyRow]:
    """Return a page of a tenant's decisions; one that cannot be read is named, and left out, but where a run asks about an effect."""
    terms, values = ["tenant = ?"], list[str | int]([tenant])
    if wanted.run is not None:
        key = _run(database, wanted.run)
        if key is None:
            return []
        if wanted.effect and not wanted.over:
            return _of_effect(database, key, wanted, now)
        terms.append(
            "CASE reach WHEN 'workflow' THEN workflow = ? ELSE run_id = ? AND incarnation = ? END"
        )
        values += [key[2], wanted.run.run_id, key[1]]
    if wanted.effect:
        terms.append("effect = ?")
        values.append(wanted.effect)
    if wanted.sticky_id:
        terms.append("sticky_id = ?")
        values.append(wanted.sticky_id)
    if not wanted.over:
        terms.append("revoked_at IS NULL AND uses IS NOT 0 AND ifnull(expires_at > ?, 1)")
        values.append(to_micros(now))
    if wanted.after is not None:
        terms.append("(made_at, sticky_id) > (?, ?)")
        values += [to_micros(wanted.after[0]), wanted.after[1]]
    index = "" if wanted.sticky_id else " INDEXED BY sticky_listed"
    sql = f"SELECT {STICKY} FROM sticky{index} WHERE {' AND '.join(terms)} ORDER BY made_at, sticky_id LIMIT ?"
    limit = _ALL if wanted.limit is None else max(wanted.limit, 0)
    return readable(database, sql, tuple(values), sticky_of, _LOST, limit)


def _run(database: Database, run: RunKey) -> StickyRun | None:
    row = database.row(_RUN, (run.tenant, run.run_id))
    return None if row is None else (run, row[0], row[1])
