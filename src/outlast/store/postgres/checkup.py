"""What can be found out about a store in PostgreSQL without changing it: for `outlast doctor`.

Each look stands alone: one that fails is a finding of its own and keeps no other from being made.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import timedelta

import psycopg

from outlast.clock import Clock
from outlast.errors import OutlastError
from outlast.store.change import WorkerRow
from outlast.store.checkup import (
    blocked_finding,
    doubt_finding,
    history_finding,
    queue_findings,
    request_finding,
    schema_finding,
    worker_finding,
)
from outlast.store.finding import Finding
from outlast.store.migrate import read_migrations
from outlast.store.moment import from_micros
from outlast.store.postgres.clock import StoreClock
from outlast.store.postgres.failure import failure_of
from outlast.store.postgres.listen import Line, StandbyError
from outlast.store.postgres.read import Reading
from outlast.store.postgres.schema import (
    OLDEST_SERVER,
    PACKAGE,
    applied_to,
    partition_count,
)
from outlast.store.postgres.session import Session
from outlast.store.postgres.setting import PostgresSetting
from outlast.store.restoration import EVERYBODY, RESTORATION, Releases

_CLOCK_SLACK = timedelta(seconds=2)
_FEW_UPDATES = 1000
_HOT_SHARE = 0.5
_DEAD_ROWS = 20_000
_FULL_SHARE = 0.8
_SETTINGS = """
SELECT name, reset_val FROM pg_settings
WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit', 'synchronous_standby_names', 'server_version')
"""
_UPDATES = """
SELECT coalesce(sum(n_tup_upd), 0)::bigint, coalesce(sum(n_tup_hot_upd), 0)::bigint FROM pg_stat_user_tables
WHERE schemaname = %b AND relname ~ '^run(_[0-9]+)?$'
"""
_DEAD = """
SELECT relname::text, n_dead_tup, n_live_tup FROM pg_stat_user_tables WHERE schemaname = %b ORDER BY n_dead_tup DESC, relname LIMIT 1
"""
_CONNECTIONS = """
SELECT count(*), current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint
FROM pg_stat_activity WHERE backend_type = 'client backend'
"""
_MANY_ROWS = 10_000
_UNKNOWN_AS_A_WHOLE = """
SELECT class.relname::text FROM pg_class AS class JOIN pg_namespace AS space ON space.oid = class.relnamespace
WHERE space.nspname = %b AND class.relkind = 'p' AND %b <= (
    SELECT sum(greatest(part.reltuples, 0)) FROM pg_inherits JOIN pg_class AS part ON part.oid = inhrelid WHERE inhparent = class.oid
) AND NOT EXISTS (
    SELECT 1 FROM pg_stats WHERE schemaname = space.nspname AND tablename = class.relname AND inherited
) ORDER BY 1
"""
_OPEN_RUNS = """
SELECT status, count(*) FROM $s.run WHERE generation > 0 AND status IN ('ready', 'running', 'waiting', 'blocked', 'paused') GROUP BY status
"""
_MOVABLE = """
SELECT DISTINCT workflow FROM $s.run WHERE generation > 0 AND status IN ('ready', 'running', 'waiting') ORDER BY workflow
"""
_IN_DOUBT = "SELECT count(*) FROM $s.operation WHERE in_doubt = 1"
_REQUESTS = """
SELECT tenant, count(*) FROM $s.request WHERE state = 'running' AND held_until <= $s.micros() GROUP BY tenant ORDER BY tenant
"""
_WAITING = """
SELECT queue, count(*), min(since) FROM $s.task WHERE worker IS NULL AND held = 0 AND due <= $s.micros() GROUP BY queue ORDER BY queue
"""
_OLDER = """
SELECT count(*) FROM $s.run WHERE restored_at IS NOT NULL AND status IN ('ready', 'running', 'waiting', 'blocked', 'paused')
"""


def examine(setting: PostgresSetting, clock: Clock) -> list[Finding]:
    """Return what is found about a store; nothing where there is none, or no way to it."""
    session = Session(setting)
    with contextlib.closing(session):
        try:
            applied = applied_to(session)
        except psycopg.Error:
            return []
        reading = Reading(session, StoreClock(clock))
        looks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
            ("server", lambda: _server(session)),
            ("durability", lambda: _durability(session, setting)),
            ("connections", lambda: _connections(session)),
            ("hints", lambda: _hints(setting)),
        ]
        if applied:
            looks += [
                ("schema", lambda: _schema(session)),
                ("clock", lambda: _clock(reading, clock)),
                ("hot_updates", lambda: _hot_updates(session)),
                ("dead_rows", lambda: _dead_rows(session)),
                ("statistics", lambda: _statistics(session)),
                ("runs", lambda: _runs(session)),
                ("requests", lambda: _requests(session)),
                ("workers", lambda: _workers(session, reading)),
                ("timeline", lambda: _history(session, reading)),
            ]
        return [one for check, look in looks for one in _told(check, look, setting)]


def _told(
    check: str, look: Callable[[], Iterator[Finding]], setting: PostgresSetting
) -> list[Finding]:
    try:
        return list(look())
    except psycopg.Error as error:
        failure: OutlastError = failure_of(error, setting.place)
    except OutlastError as error:
        failure = error
    return [Finding(check, "fail", failure.message, failure.hint)]


def _server(session: Session) -> Iterator[Finding]:
    number = session.connection.info.server_version
    text = f"PostgreSQL {dict(session.rows(_SETTINGS))['server_version']}"
    if session.rows("SELECT pg_is_in_recovery()")[0][0]:
        text += ", a standby: it can be read, and moves nothing"
    if number < OLDEST_SERVER:
        yield Finding("server", "fail", text, "upgrade the server: Outlast needs 14 or newer")
    else:
        yield Finding("server", "ok", text)


def _durability(session: Session, setting: PostgresSetting) -> Iterator[Finding]:
    found = dict(session.rows(_SETTINGS))
    names = found["synchronous_standby_names"]
    del found["server_version"], found["synchronous_standby_names"]
    text = ", ".join(f"{name} = {value}" for name, value in sorted(found.items()))
    text += f", synchronous standbys: {names or 'none'}"
    if "off" not in found.values():
        yield Finding("durability", "ok", text)
    elif found["fsync"] == found["full_page_writes"] == "on" and not setting.pooled:
        hint = "nothing, where only Outlast matters: it switches synchronous_commit on for its own sessions"
        yield Finding("durability", "warn", text, hint)
    else:
        hint = "switch on what is off: a crash can destroy the store or lose commits, and effects are made twice"
        yield Finding("durability", "warn" if setting.risk else "fail", text, hint)


def _connections(session: Session) -> Iterator[Finding]:
    ((used, allowed),) = session.rows(_CONNECTIONS)
    text = f"{used} of {allowed} connections are in use"
    if used >= allowed * _FULL_SHARE:
        hint = "each process of Outlast holds up to seven: raise max_connections, or put PgBouncer before the server"
        yield Finding("connections", "warn", text, hint)
    else:
        yield Finding("connections", "ok", text)


def _hints(setting: PostgresSetting) -> Iterator[Finding]:
    if setting.listen is None:
        yield Finding("hints", "ok", "nobody listens: what is new is found by looks alone")
        return
    line = Line(setting)
    with contextlib.closing(line):
        try:
            line.open()
            heard, why = line.proves(), "nothing is heard"
        except StandbyError as error:
            yield Finding("hints", "ok", str(error))
            return
        except psycopg.Error as error:
            heard, why = False, str(failure_of(error, setting.place).message)
    if heard:
        yield Finding("hints", "ok", "what one process tells the others hear")
    else:
        hint = "work is found by looks alone, which is slower; listen= in the URL has to lead to the server itself"
        yield Finding("hints", "warn", f"notifications do not arrive: {why}", hint)


def _schema(session: Session) -> Iterator[Finding]:
    found = schema_finding(read_migrations(PACKAGE), applied_to(session))
    count = partition_count(session)
    parts = f"; tables of runs have {count} partitions" if count else ""
    yield Finding(found.check, found.verdict, found.text + parts, found.hint)


def _clock(reading: Reading, clock: Clock) -> Iterator[Finding]:
    before = clock.now()
    there = from_micros(reading.now())
    after = clock.now()
    ahead = max(there - after, before - there, timedelta(0))
    if ahead > _CLOCK_SLACK:
        text = f"the server's clock differs from this machine's by {ahead.total_seconds():.1f} s"
        hint = "check NTP on both; timers, leases and deadlines go by the server's"
        yield Finding("clock", "warn", text, hint)
    else:
        yield Finding("clock", "ok", "the server's clock and this machine's agree")


def _hot_updates(session: Session) -> Iterator[Finding]:
    ((updates, hot),) = session.rows(_UPDATES, (session.statements.schema,))
    share = hot / updates if updates else 1.0
    text = f"{share:.0%} of {updates} updates of runs touched no index"
    if updates >= _FEW_UPDATES and share < _HOT_SHARE:
        hint = "pages are full when rows are written again: a lower fillfactor for `run`, and no long transaction beside"
        yield Finding("hot_updates", "warn", text, hint)
    else:
        yield Finding("hot_updates", "ok", text)


def _dead_rows(session: Session) -> Iterator[Finding]:
    ((table, dead, live),) = session.rows(_DEAD, (session.statements.schema,))
    text = f"most dead rows: {dead} in {table}, beside {live}"
    if dead > max(_DEAD_ROWS, live):
        hint = "autovacuum lags: look in pg_stat_activity for transactions that stand open, then VACUUM the table"
        yield Finding("dead_rows", "warn", text, hint)
    else:
        yield Finding("dead_rows", "ok", text)


def _statistics(session: Session) -> Iterator[Finding]:
    if not partition_count(session):
        return
    schema = session.statements.schema
    tables = [row[0] for row in session.rows(_UNKNOWN_AS_A_WHOLE, (schema, _MANY_ROWS))]
    if tables:
        names = ", ".join(f"{schema}.{table}" for table in tables)
        text = f"the server knows nothing of {', '.join(tables)} as a whole: autovacuum looks at each part alone"
        yield Finding(
            "statistics", "warn", text, f"as the owner, now and once a week: ANALYZE {names}"
        )
    else:
        yield Finding("statistics", "ok", "partitioned tables are known as a whole, or small")


def _runs(session: Session) -> Iterator[Finding]:
    yield blocked_finding(dict(session.rows(_OPEN_RUNS)))
    yield doubt_finding(session.rows(_IN_DOUBT)[0][0])


def _requests(session: Session) -> Iterator[Finding]:
    yield request_finding([(row[0], row[1]) for row in session.rows(_REQUESTS)])


def _workers(session: Session, reading: Reading) -> Iterator[Finding]:
    live: list[WorkerRow] = [one.row for one in reading.workers() if one.live]
    yield worker_finding(live, [str(row[0]) for row in session.rows(_MOVABLE)])
    rows = session.rows(_WAITING)
    yield from queue_findings(live, [(name, count, from_micros(at)) for name, count, at in rows])


def _history(session: Session, reading: Reading) -> Iterator[Finding]:
    row = Releases.of(reading.control(EVERYBODY, RESTORATION))
    doubtful = 0 if row.trusted else session.rows(_OLDER)[0][0]
    yield history_finding(reading.timeline(), row, doubtful)
