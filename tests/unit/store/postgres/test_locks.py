"""Locks: all processes take them in one order, and a commit never takes more than a server has room for."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import psycopg
import pytest

from outlast.app import SystemClock
from outlast.store.change import Applied, Guard, WorkerId, WorkerRow
from outlast.store.postgres.claim import Leasing
from outlast.store.postgres.clock import StoreClock
from outlast.store.postgres.look import LOCK_CLASSES, lock_number, migration_lock
from outlast.store.postgres.session import Session
from outlast.store.postgres.setting import read_setting
from outlast.store.postgres.store import open_postgres
from outlast.testing.conformance import Bench
from outlast.testing.conformance.permit import intending, permitting
from outlast.testing.conformance.task import offered, take_one
from postgres_server import PostgresServer, until

GUARDS = 9000
DAY = timedelta(days=1)
WAITS = "SELECT 1 FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"


def test_rows_share_a_bounded_number_of_locks() -> None:
    """Each schema has numbers of its own, and whoever changes its tables another one."""
    names = [f"row-{number}" for number in range(50 * LOCK_CLASSES)]
    found = [{lock_number(schema, "default", name) for name in names} for schema in ("a", "b")]
    assert [len(one) for one in found] == [LOCK_CLASSES, LOCK_CLASSES]
    assert not found[0] & found[1]
    assert migration_lock("a") not in found[0] | found[1] | {migration_lock("b")}
    assert all(-(2**63) <= one < 2**63 for one in found[0] | {migration_lock("a")})


def test_thousands_of_guards_in_one_commit() -> None:
    """On a server that has room for some two thousand locks."""

    async def main(url: str) -> None:
        clock = SystemClock()
        store = await open_postgres(read_setting(url), clock=clock)
        bench = Bench(store, clock)  # type: ignore[arg-type]
        head = await bench.owned()
        guards = tuple(Guard("default", f"row-{number}", 0) for number in range(GUARDS))
        # The first time they are read, the second time they are known.
        for _ in range(2):
            permit = permitting(bench, authority=guards, within=DAY)
            assert isinstance(await bench.one(intending(head, permit)), Applied)
            head = await bench.head(head.run)
        await store.close()

    settings = {"max_connections": 20, "max_locks_per_transaction": 64}
    with PostgresServer.opened(settings) as server:
        asyncio.run(main(server.url()))


async def _with_task(url: str, worker: WorkerId) -> None:
    """Let `w1` own a run, and a worker have a task of it."""
    clock = SystemClock()
    store = await open_postgres(read_setting(url), clock=clock)
    bench = Bench(store, clock)  # type: ignore[arg-type]
    await offered(bench)
    if worker != "w1":
        await store.register(WorkerRow(worker, "host", 8, "b", (), DAY, ("gpu",)))
    await take_one(bench, worker)
    await store.close()


@pytest.mark.parametrize("worker", ["w1", "w2"])
def test_who_gives_back_waits_for_runs_before_tasks(postgres_url: str, worker: str) -> None:
    """A commit that has locked a run can go on to its tasks, also while somebody gives back what their worker had: both end."""
    asyncio.run(_with_task(postgres_url, WorkerId(worker)))
    session = Session(read_setting(postgres_url))
    leasing = Leasing(session, StoreClock(SystemClock()))
    giving_back = threading.Thread(target=leasing.retire, args=(WorkerId(worker),))
    with (
        psycopg.connect(postgres_url) as commit,
        psycopg.connect(postgres_url, autocommit=True) as other,
    ):
        commit.execute("SELECT 1 FROM outlast.run FOR UPDATE")
        giving_back.start()
        until(lambda: other.execute(WAITS).fetchall(), "who gives back waits for the run")
        # Without a wait: a deadlock would end one of both, whichever the server chooses.
        assert len(commit.execute("SELECT 1 FROM outlast.task FOR UPDATE NOWAIT").fetchall()) == 1
        commit.rollback()
        giving_back.join()
        assert other.execute("SELECT worker FROM outlast.task").fetchall() == [(None,)]
        owner = None if worker == "w1" else "w1"
        assert other.execute("SELECT owner FROM outlast.run").fetchall() == [(owner,)]
    session.close()


def test_a_new_timeline_locks_runs_in_their_order(postgres_url: str) -> None:
    """A commit that has locked a run that nobody owns can go on to one that a worker owns."""

    async def prepare() -> None:
        clock = SystemClock()
        store = await open_postgres(read_setting(postgres_url), clock=clock)
        bench = Bench(store, clock)  # type: ignore[arg-type]
        await bench.start("a")
        await bench.owned("b")
        await store.close()

    asyncio.run(prepare())
    session = Session(read_setting(postgres_url))
    leasing = Leasing(session, StoreClock(SystemClock()))
    putting_back = threading.Thread(target=leasing.begin_timeline, args=("t", "a test"))
    with (
        psycopg.connect(postgres_url) as commit,
        psycopg.connect(postgres_url, autocommit=True) as other,
    ):
        commit.execute("SELECT 1 FROM outlast.run WHERE run_id = 'a' FOR UPDATE")
        putting_back.start()
        until(lambda: other.execute(WAITS).fetchall(), "the restore waits for the run")
        commit.execute("SELECT 1 FROM outlast.run WHERE run_id = 'b' FOR UPDATE NOWAIT")
        commit.rollback()
        putting_back.join()
        held = "SELECT owner FROM outlast.run WHERE restored_at IS NOT NULL"
        assert other.execute(held).fetchall() == [(None,), (None,)]
    session.close()


def test_a_claim_passes_over_what_another_one_has_locked(postgres_url: str) -> None:
    """It neither waits for it nor takes it, too."""

    async def main() -> None:
        clock = SystemClock()
        store = await open_postgres(read_setting(postgres_url), clock=clock)
        bench = Bench(store, clock)  # type: ignore[arg-type]
        worker = await bench.worker()
        for name in "ab":
            await bench.start(name)
        with psycopg.connect(postgres_url) as other:
            other.execute("SELECT 1 FROM outlast.run WHERE run_id = 'a' FOR UPDATE")
            assert [one.head.run.run_id for one in (await bench.claim(worker)).runs] == ["b"]
        assert [one.head.run.run_id for one in (await bench.claim(worker)).runs] == ["a"]
        await store.close()

    asyncio.run(main())
