"""A standby that stands still: what was told as written is on it, also what is told only because it was written before."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from outlast.app import SystemClock
from outlast.store.change import Applied, RunKey, Unknown
from outlast.store.postgres.setting import read_setting
from outlast.store.postgres.store import open_postgres
from outlast.testing.conformance import Bench, ManualClock
from outlast.testing.conformance.bench import following
from pgbouncer import PgBouncer
from postgres_server import PostgresServer

RUN = RunKey("default", "run")
WAITING = "SELECT {how}(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


@contextlib.contextmanager
def standing_still(server: PostgresServer) -> Iterator[None]:
    """Stop all processes of a server by SIGSTOP."""
    processes = server.processes()
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()


async def soon(happened: Callable[[], object]) -> None:
    """Wait for something that a server does."""
    async with asyncio.timeout(30):
        while not happened():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("how", ["pg_cancel_backend", "pg_terminate_backend"])
@pytest.mark.parametrize("pooled", [False, True], ids=["straight", "through a pooler"])
def test_what_is_recognised_is_on_the_standby(how: str, pooled: bool) -> None:
    """A commit's wait is ended while the standby stands still; the same again is told as written once the standby has it."""

    async def main() -> None:
        with contextlib.ExitStack() as stack:
            primary = stack.enter_context(PostgresServer.opened())
            standby = stack.enter_context(primary.standby())
            url = primary.url()
            if pooled:
                pooler = stack.enter_context(PgBouncer.opened(primary))
                url = pooler.url("postgres", pooler="transaction")
            store = await open_postgres(read_setting(url), clock=SystemClock())
            bench = Bench(store, ManualClock())
            worker = await bench.worker(lease=timedelta(minutes=5))
            await bench.start("run", worker=worker)
            change = following(await bench.head(RUN))
            with standing_still(standby):
                commit = asyncio.create_task(bench.one(change))
                await soon(lambda: primary.query(WAITING.format(how=how)) or commit.done())
                assert isinstance(await commit, Unknown)
                again = asyncio.create_task(bench.one(change))
                await soon(lambda: primary.query(WAITING.format(how="abs")) or again.done())
                assert not again.done()
            assert isinstance(await again, Applied)
            primary.kill()
            standby.promote()
            (entry,) = change.entries
            assert standby.query(f"SELECT name FROM outlast.entry WHERE seq = {entry.seq}")
            await store.close()

    asyncio.run(main())
