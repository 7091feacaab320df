"""The memory store passes the suite."""

from contextlib import asynccontextmanager

import pytest

from outlast.store.memory import MemoryStore
from outlast.testing.conformance import Bench, ManualClock, StoreConformance


class TestMemory(StoreConformance):
    """Every promise, kept in memory."""

    @pytest.fixture
    def open_store(self):
        """Open a store on a clock that stands."""

        @asynccontextmanager
        async def opened():
            clock = ManualClock()
            store = MemoryStore(clock)
            yield Bench(store, clock)
            await store.close()

        return opened
