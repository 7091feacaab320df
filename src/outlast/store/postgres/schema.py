"""The tables of a store: brought up to date, checked, and refused where commits are not durable."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Generator, Mapping, Sequence

from psycopg import errors

from outlast.errors import StoreUnavailableError
from outlast.store.migrate import (
    AT_OPENING,
    AppliedMigration,
    Migration,
    migrate,
    missing,
    plan,
    read_migrations,
)
from outlast.store.postgres.failure import SAY_POOLER
from outlast.store.postgres.look import migration_lock
from outlast.store.postgres.migrating import LOCK_WAIT, waiting
from outlast.store.postgres.session import OF_A_SESSION, Session
from outlast.store.postgres.setting import PostgresSetting

logger = logging.getLogger("outlast.store")

OLDEST_SERVER = 140000
PACKAGE = "outlast.store.postgres"
_HOT = "fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500"
"""Rows that are written again and again: pages keep room for the next version of a row, so that no index is touched (a `HOT` update), and
are cleaned after a fiftieth has changed, not a fifth: what is dead lies before what is next in a queue."""
_OF_RUNS = re.compile(
    r"CREATE TABLE (?P<table>\w+) (?P<columns>\((?:(?!CREATE TABLE).)*?\)) \{(?P<kind>hot|of_run)\}",
    re.DOTALL,
)
"""A table of runs, in whichever migration: it can be partitioned by hash of tenant and run id."""
_BY_RUN = "PARTITION BY HASH (tenant, run_id)"
_MIGRATIONS = """
CREATE TABLE IF NOT EXISTS migration (
    number bigint PRIMARY KEY, phase text NOT NULL, subject text NOT NULL, checksum text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
)
"""


def bring_up_to_date(
    session: Session,
    setting: PostgresSetting,
    *,
    phases: Sequence[str] = AT_OPENING,
    partitions: int = 0,
) -> list[Migration]:
    """Apply what migrations are missing, and return them; with `check_only` fail when one is.

    Where nothing is missing nothing is written, and a user who may not create tables opens the store like any other.

    Args:
        phases: `pre` is applied before new code is deployed, `post` after the last old process has ended.
        partitions: Of each table of runs, where the store is new; 0 for plain tables.

    Raises:
        StoreUnavailableError: Something is missing, and may not be applied; or the store is there, with other partitions.
        StoreVersionError: A newer version wrote it.
    """
    target = _Schema(session, setting.schema, partitions)
    migrations = read_migrations(PACKAGE)
    if partitions and target.applied():
        _check_partitions(session, setting.place, partitions)
    try:
        return waiting(
            session,
            setting,
            lambda: migrate(
                target, migrations, setting.place, check_only=setting.check_only, phases=phases
            ),
        )
    except errors.InsufficientPrivilege as error:
        lacking = plan(migrations, target.applied(), setting.place, phases)
        if not lacking:
            raise
        raise missing(setting.place, lacking, ", and this user may not apply them") from error


def lacking(session: Session, setting: PostgresSetting, phases: Sequence[str]) -> list[Migration]:
    """Return what migrations are missing, without a change."""
    return plan(read_migrations(PACKAGE), applied_to(session), setting.place, phases)


def partition_count(session: Session) -> int:
    """Return into how many parts each table of runs is divided; 0 for plain tables, and where there are none."""
    found = session.rows(
        "SELECT count(*) FROM pg_inherits JOIN pg_class ON pg_class.oid = inhparent JOIN pg_namespace AS n ON n.oid = relnamespace"
        " WHERE nspname = %b AND relname = 'run'",
        (session.statements.schema,),
    )
    return int(found[0][0])


def _check_partitions(session: Session, place: str, wanted: int) -> None:
    found = partition_count(session)
    if found != wanted:
        raise StoreUnavailableError(
            f"{place} stands already, with {found or 'no'} partitions: only a new store can have {wanted}",
            hint="leave out --partitions, or name another schema in the URL",
        )


def check_server(session: Session, setting: PostgresSetting) -> None:
    """Refuse a server that is too old, or on which a commit may be lost after it was told as done.

    Raises:
        StoreUnavailableError: It is one of these.
    """
    version = session.connection.info.server_version
    if version < OLDEST_SERVER:
        raise StoreUnavailableError(
            f"{setting.place} is PostgreSQL {version // 10000}; Outlast needs 14 or newer",
            hint="upgrade the server",
        )
    _check_pooler(session, setting)
    found: dict[str, str] = dict(
        session.rows(
            # What a session of this user begins with: this one may have set it otherwise.
            "SELECT name, reset_val FROM pg_settings WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit')"
        )
    )
    off = sorted(name for name in ("fsync", "full_page_writes") if found.get(name) == "off")
    if off and not setting.risk:
        raise StoreUnavailableError(
            f"{setting.place} runs with {' and '.join(f'{name} = off' for name in off)}: a crash of its machine can destroy it, and effects would be made twice",
            hint="switch it on, or, where nothing of it matters, say so: ?durability=risk",
        )
    if found.get("synchronous_commit") != "off":
        return
    if setting.pooled and not setting.risk:
        raise StoreUnavailableError(
            f"{setting.place} runs with synchronous_commit = off: commits of the last moments are lost in a crash, and effects made twice",
            hint="ALTER ROLE … SET synchronous_commit = on for the user of Outlast; or say that it does not matter: ?durability=risk",
        )
    if not setting.risk:
        logger.warning(
            "%s: synchronous_commit is off; Outlast switches it on for its own sessions",
            setting.place,
        )


def _check_pooler(session: Session, setting: PostgresSetting) -> None:
    """Refuse a pooler of which nobody has said how it lends sessions: what is set in one, or prepared, would be somebody else's."""
    (told,) = session.rows("SELECT pg_backend_pid()")
    if told[0] == session.connection.info.backend_pid or setting.pooled or setting.proxied:
        return
    raise StoreUnavailableError(
        f"between this process and {setting.place} stands a pooler, and the URL does not say of which kind",
        hint=f"one that lends sessions for a transaction: {SAY_POOLER}. One that keeps a session for each connection: ?pooler=session",
    )


def applied_to(session: Session) -> dict[int, AppliedMigration]:
    """Return what migrations a schema has, by number."""
    schema = session.statements.schema
    known = session.rows(
        "SELECT 1 FROM pg_tables WHERE schemaname = %b AND tablename = 'migration'", (schema,)
    )
    if not known:
        return {}
    rows = session.rows("SELECT number, phase, subject, checksum FROM $s.migration")
    return {number: AppliedMigration(*rest) for number, *rest in rows}


class _Schema:
    """The schema as the migration runner sees it."""

    def __init__(self, session: Session, schema: str, partitions: int) -> None:
        self._session = session
        self._schema = schema
        self._partitions = partitions

    @contextlib.contextmanager
    def exclusively(self) -> Generator[None, None, None]:
        session, connection = self._session, self._session.connection
        with session.guarded(), connection.transaction():
            # Whoever comes second waits for the end of the first, as long as that one is at work.
            connection.execute(
                f"SET LOCAL lock_timeout = '{LOCK_WAIT}'; SET LOCAL statement_timeout = 0;"
                " SET LOCAL idle_in_transaction_session_timeout = '10s'".encode()
            )
            session.send(
                "SELECT pg_advisory_xact_lock(%b::bigint)",
                (migration_lock(self._schema),),
            )
            if not session.send(
                "SELECT 1 FROM pg_namespace WHERE nspname = %b", (self._schema,)
            ).rows():
                connection.execute(f'CREATE SCHEMA "{self._schema}"'.encode())
            # A table that somebody holds is not waited for for ever: everybody else would queue behind.
            connection.execute(
                f'SET LOCAL search_path TO "{self._schema}"; {OF_A_SESSION.replace("SET ", "SET LOCAL ")}'
                f"SET LOCAL lock_timeout = '{LOCK_WAIT}'".encode()
            )
            self._partitions = self._partitions or partition_count(session)
            yield

    def applied(self) -> Mapping[int, AppliedMigration]:
        return applied_to(self._session)

    def apply(self, migration: Migration) -> None:
        connection = self._session.connection
        connection.execute(_MIGRATIONS.encode())
        connection.execute(filled_in(migration.sql, self._partitions).encode())
        connection.execute(
            b"INSERT INTO migration (number, phase, subject, checksum) VALUES (%s, %s, %s, %s)",
            (migration.number, migration.phase, migration.subject, migration.checksum),
        )


def filled_in(sql: str, partitions: int) -> str:
    """Return a migration with its tables of runs as they are made.

    Args:
        partitions: Of each, which are made with it; 0 for plain tables.
    """

    def made(found: re.Match[str]) -> str:
        table = found["table"]
        how = f" WITH ({_HOT})" if found["kind"] == "hot" else ""
        whole = f"CREATE TABLE {table} {found['columns']}"
        if not partitions:
            return whole + how
        parts = (
            f"CREATE TABLE {table}_{number} PARTITION OF {table}"
            f" FOR VALUES WITH (MODULUS {partitions}, REMAINDER {number}){how}"
            for number in range(partitions)
        )
        return ";\n".join([f"{whole} {_BY_RUN}", *parts])

    return _OF_RUNS.sub(made, sql)
