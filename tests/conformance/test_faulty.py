"""A faulty store without faults is a store."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from outlast.store.memory import MemoryStore
from outlast.testing import FaultyStore
from outlast.testing.conformance import Bench, ManualClock, StoreConformance


class TestFaultyStore(StoreConformance):
    @pytest.fixture
    def open_store(self):
        """Wrap a memory store."""

        @asynccontextmanager
        async def opened() -> AsyncIterator[Bench]:
            clock = ManualClock()
            store = FaultyStore(MemoryStore(clock), random.Random(1))
            yield Bench(store, clock)
            await store.close()

        return opened
