"""The SQLite store passes the suite."""

from contextlib import asynccontextmanager

import pytest

from outlast.store.sqlite.store import open_sqlite
from outlast.testing.conformance import Bench, ManualClock, StoreConformance


class TestSQLite(StoreConformance):
    """Every promise, kept in a file."""

    @pytest.fixture
    def open_store(self, tmp_path):
        """Open a store on a clock that stands."""

        @asynccontextmanager
        async def opened():
            clock = ManualClock()
            store = await open_sqlite(tmp_path / "store.db", clock=clock)
            try:
                yield Bench(store, clock)
            finally:
                await store.abandon()

        return opened
