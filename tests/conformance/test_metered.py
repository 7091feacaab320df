"""A store that is metered is a store."""

from contextlib import asynccontextmanager

import pytest

from outlast.meter.store import metered
from outlast.meter.tally import Tally
from outlast.store.memory import MemoryStore
from outlast.testing.conformance import Bench, ManualClock, StoreConformance


class TestMeteredStore(StoreConformance):
    """Every promise, counted."""

    @pytest.fixture
    def open_store(self):
        """Wrap a memory store."""

        @asynccontextmanager
        async def opened():
            clock = ManualClock()
            store = metered(MemoryStore(clock), Tally(), clock.monotonic)
            yield Bench(store, clock)
            await store.close()

        return opened
