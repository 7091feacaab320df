"""The PostgreSQL store passes the suite.

On tables that are whole, on tables that are partitioned by run, and as a user with no more rights than it needs, through a pooler that
lends sessions for one transaction.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, timedelta

import psycopg
import pytest

from outlast.store.postgres.schema import bring_up_to_date
from outlast.store.postgres.session import Session
from outlast.store.postgres.setting import read_setting
from outlast.store.postgres.store import open_postgres
from outlast.store.postgres.upgrade import give_rights
from outlast.testing.conformance import Bench, ManualClock, StoreConformance
from pgbouncer import PgBouncer

ROLE = f"conformance_{os.getpid()}"
TABLES = (
    *("run", "entry", "operation", "message", "outbox", "watch", "approval", "notice", "task"),
    *("control", "sticky", "request", "worker"),
)
EMPTY = "; ".join(f"DELETE FROM outlast.{table}" for table in TABLES)


@pytest.fixture(scope="module")
def pooler(postgres_server):
    """A pooler that gives whoever comes the session that was used last, so that statements of one come where those of another were.

    It has more sessions than a store has lanes: once in some thousand transactions it keeps one with a client that has ended its
    transaction, until that client's next (seen of 1.18).
    """
    postgres_server.query(f"CREATE ROLE {ROLE} LOGIN")
    with PgBouncer.opened(
        postgres_server,
        {"default_pool_size": 12, "server_round_robin": 0},
        users=("postgres", ROLE),
    ) as pooler:
        yield pooler
    postgres_server.query(f"DROP ROLE {ROLE}")


class ServerClock(ManualClock):
    """A clock that stands until it is moved, of this process and of the server."""

    def __init__(self, connection: psycopg.Connection) -> None:
        super().__init__()
        self._connection = connection
        connection.execute("CREATE TABLE IF NOT EXISTS clock_of_tests (micros bigint)")
        connection.execute("DELETE FROM clock_of_tests; INSERT INTO clock_of_tests VALUES (0)")
        connection.execute(
            "CREATE OR REPLACE FUNCTION outlast.micros() RETURNS bigint LANGUAGE sql VOLATILE"
            " AS $$ SELECT micros FROM public.clock_of_tests $$"
        )
        self._tell()

    def advance(self, step: timedelta) -> None:
        """Let time pass."""
        super().advance(step)
        self._tell()

    def set_wall(self, time: datetime) -> None:
        """Set the wall clock."""
        super().set_wall(time)
        self._tell()

    def _tell(self) -> None:
        micros = int(round(self.now().timestamp() * 1_000_000))
        self._connection.execute("UPDATE clock_of_tests SET micros = %s", (micros,))


class TestPostgres(StoreConformance):
    """Every promise, kept by a server."""

    partitions = 0

    @pytest.fixture(scope="class")
    @classmethod
    def database_url(cls, postgres_databases):
        """The URL of a database with the tables of a store, which the tests use one after the other."""
        with cls.made(postgres_databases) as url:
            yield url

    @classmethod
    @contextmanager
    def made(cls, databases):
        """Make a database with the tables of a store."""
        with databases.fresh() as url:
            setting = read_setting(url)
            session = Session(setting)
            bring_up_to_date(session, setting, partitions=cls.partitions)
            session.close()
            cls.prepare(url)
            yield url

    @pytest.fixture(scope="class")
    @classmethod
    def worker_url(cls, database_url):
        """The URL that those who work on the store use."""
        return database_url

    @pytest.fixture
    def open_store(self, database_url, worker_url):
        """Open an empty store on a clock that stands."""

        @asynccontextmanager
        async def opened() -> AsyncIterator[Bench]:
            with psycopg.connect(database_url, autocommit=True) as connection:
                connection.execute(EMPTY.encode())
                clock = ServerClock(connection)
                store = await open_postgres(read_setting(worker_url), clock=clock)
                try:
                    yield Bench(store, clock)
                finally:
                    await store.close()

        return opened

    @classmethod
    def prepare(cls, url):
        """Do what is done before anybody works on the store."""


@pytest.mark.slow
class TestPartitioned(TestPostgres):
    """The same where each table of runs is partitioned by a hash of tenant and run id."""

    partitions = 3


@pytest.mark.slow
class TestPooled(TestPostgres):
    """The same as a role that may not own or make anything, through PgBouncer in transaction mode, where each transaction has the session that another has just left."""

    @pytest.fixture(scope="class")
    @classmethod
    def worker_url(cls, pooler, database_url):
        """The way through the pooler."""
        database = psycopg.conninfo.conninfo_to_dict(database_url)["dbname"]
        return pooler.url(database, ROLE, pooler="transaction")

    @pytest.fixture(scope="class")
    @classmethod
    def database_url(cls, pooler, postgres_databases):
        """The same database, once its role is there."""
        with cls.made(postgres_databases) as url:
            yield url

    @classmethod
    def prepare(cls, url):
        """Give the role what it needs."""
        give_rights(read_setting(url), ROLE)
        # The clock of these tests is not the store's.
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE clock_of_tests (micros bigint)")
            connection.execute(f"GRANT SELECT ON clock_of_tests TO {ROLE}".encode())
