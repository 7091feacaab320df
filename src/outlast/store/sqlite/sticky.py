# ruff: noqa: S608 - only constants of this package are joined to statements; every value is bound
"""Decisions that stick, in SQLite: found by effect and run, or by effect and workflow."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import cast, get_args

from outlast.errors import StoreCorruptError
from outlast.journal.asking import Reach
from outlast.store.change import Applied, Refused, RevokeSticky, RunKey, Verdict
from outlast.store.condition import Versions, broken_guard
from outlast.store.moment import from_micros, micros_or_none, time_or_none, to_micros
from outlast.store.sqlite.damage import decoded, key_at, readable
from outlast.store.sqlite.database import Database, Row
from outlast.store.sqlite.row import INCARNATION
from outlast.store.sqlite.scope import Writing
from outlast.store.sticky import StickyPut, StickyRow
from outlast.store.sticky_condition import StickyFilter, StickyRun

_COLUMNS = (
    "tenant, sticky_id, run_id, incarnation, workflow, approval_id, role, approved, decided_by, behalf, made_at, "
    "effect, reach, version, agent, server, turn, action_sha256, args, predicates, uses_given, span, reason, "
    "expires_at, uses, used, revoked_at, revoked_by, revoked_why"
)
_PUT = f"REPLACE INTO sticky ({_COLUMNS}) VALUES ({'?, ' * 28}?)"
_FIND = f"SELECT {_COLUMNS} FROM sticky WHERE tenant = ? AND sticky_id = ?"
_RUN = f"SELECT {INCARNATION}, workflow FROM run WHERE tenant = ? AND run_id = ?"
_OF_EFFECT = f"""
SELECT {_COLUMNS} FROM sticky INDEXED BY sticky_of_run
WHERE tenant = ?1 AND effect = ?2 AND run_id = ?3 AND revoked_at IS NULL AND reach <> 'workflow'
    AND uses IS NOT 0 AND ifnull(expires_at > ?5, 1) AND incarnation = ?6
UNION ALL
SELECT {_COLUMNS} FROM sticky INDEXED BY sticky_of_workflow
WHERE tenant = ?1 AND effect = ?2 AND workflow = ?4 AND revoked_at IS NULL AND reach = 'workflow'
    AND uses IS NOT 0 AND ifnull(expires_at > ?5, 1)
"""
_REVOKED = "SELECT revoked_at IS NOT NULL FROM sticky WHERE tenant = ? AND sticky_id = ?"
_REVOKE = "UPDATE sticky SET revoked_at = ?, revoked_by = ?, revoked_why = ? WHERE tenant = ? AND sticky_id = ?"
_KEY = ("tenant", "sticky_id")
_LOST = (_KEY, "the decision %s that sticks is left out")
_FORBIDS = (_KEY, "the decision %s that sticks may say no, so nothing begins that it may be about")
_ALL = 1 << 40
_REACHES = frozenset(get_args(Reach))


def find(writing: Writing, tenant: str, sticky_id: str) -> StickyRow | None:
    """Return a decision by its id."""
    row = writing.database.row(_FIND, (tenant, sticky_id))
    return None if row is None else _row_of(row)


def put(writing: Writing, row: StickyRow) -> None:
    """Write a decision as it stands now."""
    writing.database.run(_PUT, _values(row))


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
    return sum(1 for row in database.rows(f"SELECT {_COLUMNS} FROM sticky") if _row_of(row))


def _of_effect(
    database: Database, key: StickyRun, wanted: StickyFilter, now: datetime
) -> list[StickyRow]:
    """Return the decisions about an effect that reach a run and still stick; where one cannot be read, nobody can say what it says.

    Raises:
        StoreCorruptError: One cannot be read.
    """
    run = key[0]
    values = (run.tenant, wanted.effect, run.run_id, key[2], to_micros(now), key[1])
    rows = list(decoded(database, _OF_EFFECT, values, _row_of, _FORBIDS))
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
    sql = f"SELECT {_COLUMNS} FROM sticky{index} WHERE {' AND '.join(terms)} ORDER BY made_at, sticky_id LIMIT ?"
    limit = _ALL if wanted.limit is None else max(wanted.limit, 0)
    return readable(database, sql, tuple(values), _row_of, _LOST, limit)


def _run(database: Database, run: RunKey) -> StickyRun | None:
    row = database.row(_RUN, (run.tenant, run.run_id))
    return None if row is None else (run, row[0], row[1])


def _row_of(row: Row) -> StickyRow:
    """Return the decision in the columns.

    Raises:
        StoreCorruptError: It reaches as far as nobody knows.
    """
    if row[12] not in _REACHES:
        raise StoreCorruptError(
            f"decision {row[1]} sticks for {row[12][:40]!r}, which this version does not know",
            run=row[2],
            hint="the store was written by a newer version, or changed by hand: `outlast doctor`",
        )
    put = StickyPut(
        sticky_id=row[1],
        effect=row[11],
        reach=cast("Reach", row[12]),
        version=row[13],
        agent=row[14],
        server=row[15],
        turn=row[16],
        action_sha256=row[17],
        where=row[18],
        when=row[19],
        uses=row[20],
        expires_in=None if row[21] is None else timedelta(microseconds=row[21]),
        reason=row[22],
    )
    return StickyRow(
        tenant=row[0],
        sticky_id=row[1],
        run_id=row[2],
        incarnation=row[3],
        workflow=row[4],
        approval_id=row[5],
        role=row[6],
        approved=bool(row[7]),
        by=row[8],
        behalf=row[9],
        made_at=from_micros(row[10]),
        put=put,
        expires_at=time_or_none(row[23]),
        uses=row[24],
        used=row[25],
        revoked_at=time_or_none(row[26]),
        revoked_by=row[27],
        revoked_why=row[28],
    )


def _values(row: StickyRow) -> Row:
    put = row.put
    return (
        row.tenant,
        row.sticky_id,
        row.run_id,
        row.incarnation,
        row.workflow,
        row.approval_id,
        row.role,
        int(row.approved),
        row.by,
        row.behalf,
        to_micros(row.made_at),
        put.effect,
        put.reach,
        put.version,
        put.agent,
        put.server,
        put.turn,
        put.action_sha256,
        put.where,
        put.when,
        put.uses,
        None if put.expires_in is None else put.expires_in // timedelta(microseconds=1),
        put.reason,
        micros_or_none(row.expires_at),
        row.uses,
        row.used,
        micros_or_none(row.revoked_at),
        row.revoked_by,
        row.revoked_why,
    )
