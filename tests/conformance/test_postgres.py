"""The PostgreSQL store passes the suite, on tables that are whole and on tables that are partitioned by run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

import psycopg
import pytest

from outlast.store.postgres.schema import bring_up_to_date
from outlast.store.postgres.session import Session
from outlast.store.postgres.setting import read_setting
from outlast.store.postgres.store import open_postgres
from outlast.testing.conformance import Bench, ManualClock, StoreConformance


class ServerClock(ManualClock):
    """A clock that stands until it is moved, of this process and of the server."""

    def __init__(self, connection: psycopg.Connection) -> None:
        super().__init__()
        self._connection = connection
        connection.execute("CREATE TABLE clock_of_tests (micros bigint)")
        connection.execute("INSERT INTO clock_of_tests VALUES (0)")
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

    @pytest.fixture
    def open_store(self, postgres_url):
        """Open a store on a clock that stands."""

        @asynccontextmanager
        async def opened() -> AsyncIterator[Bench]:
            setting = read_setting(postgres_url)
            session = Session(setting)
            bring_up_to_date(session, setting, partitions=self.partitions)
            session.close()
            with psycopg.connect(postgres_url, autocommit=True) as connection:
                clock = ServerClock(connection)
                store = await open_postgres(setting, clock=clock)
                try:
                    yield Bench(store, clock)
                finally:
                    await store.close()

        return opened


class TestPartitioned(TestPostgres):
    """The same where each table of runs is partitioned by a hash of tenant and run id."""

    partitions = 3
