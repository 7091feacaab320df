"""A standby that was promoted, a cluster that was put back: what the store makes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from outlast.app import SystemClock
from outlast.errors import StoreUnavailableError
from outlast.store.change import Applied, Change, Fenced, RunKey, Verdict, WorkerId
from outlast.store.postgres.setting import read_setting
from outlast.store.postgres.store import PostgresStore, open_postgres
from outlast.store.restoration import EVERYBODY, RESTORATION, Releases
from outlast.testing.conformance import Bench, ManualClock
from outlast.testing.conformance.bench import WORKFLOW, following
from pgbouncer import PgBouncer
from postgres_server import PostgresServer, failover_url, until

RUN = RunKey("default", "run")
OTHER = RunKey("default", "other")
CAUGHT_UP = "SELECT bool_and(replay_lsn = pg_current_wal_lsn()) FROM pg_stat_replication"


@pytest.fixture
def primary(tmp_path: Path) -> Iterator[PostgresServer]:
    """A server of its own."""
    with PostgresServer.opened() as server:
        yield server


async def opened(url: str) -> PostgresStore:
    """Open a store."""
    return await open_postgres(read_setting(url), clock=SystemClock())


async def restored(store: PostgresStore) -> str:
    """Return why the store is held back; empty when it is not."""
    found = Releases.of(await store.control(EVERYBODY, RESTORATION))
    return found.restored.why if found.restored is not None and found.held else ""


async def until_written(store: PostgresStore, change: Change) -> Verdict:
    """Send a change until the store says what became of it."""
    for _ in range(1000):
        try:
            (verdict,) = await store.commit([change])
        except StoreUnavailableError:
            await asyncio.sleep(0.02)
            continue
        if isinstance(verdict, Applied | Fenced) or type(verdict).__name__ in {
            "Conflict",
            "Refused",
        }:
            return verdict
    raise AssertionError("the store is away for good")


def test_a_synchronous_standby_goes_on(primary: PostgresServer) -> None:
    """The primary dies; what was told as written is there, and nothing is held."""

    async def main() -> None:
        with primary.standby() as standby:
            store = await opened(failover_url(primary, standby))
            bench = Bench(store, ManualClock())
            worker = await bench.worker(lease=timedelta(minutes=5))
            await bench.start("run", worker=worker)
            head = await bench.head(RUN)
            await bench.apply(following(head))
            timeline = await store.timeline()
            head = await bench.head(RUN)
            primary.kill()
            standby.promote()
            assert isinstance(await until_written(store, following(head)), Applied)
            assert await restored(store) == ""
            assert await store.timeline() == timeline
            other = await opened(standby.url())
            assert await restored(other) == ""
            await other.close()
            await store.close()

    asyncio.run(main())


def test_a_standby_that_lost_commits_is_held(primary: PostgresServer) -> None:
    """What this process was told of is gone: a new line of history, and workers move nothing."""

    async def main() -> None:
        with primary.standby(synchronous=False) as standby:
            store = await opened(failover_url(primary, standby))
            bench = Bench(store, ManualClock())
            worker = await bench.worker(lease=timedelta(minutes=5))
            await bench.start("run", worker=worker)
            until(lambda: primary.query(CAUGHT_UP) == [(True,)], "the standby has everything")
            standby.stop("immediate")
            head = await bench.head(RUN)
            await bench.apply(following(head))
            head, timeline = await bench.head(RUN), await store.timeline()
            primary.kill()
            standby.start()
            standby.promote()
            verdict = await until_written(store, following(head))
            assert not isinstance(verdict, Applied), verdict
            assert "gone" in await restored(store)
            assert await store.timeline() != timeline
            await store.close()

    asyncio.run(main())


def test_what_was_told_is_looked_for(primary: PostgresServer) -> None:
    """A standby that was synchronous when this process looked, and not any more when it wrote."""

    async def main() -> None:
        with primary.standby() as standby:
            store = await opened(failover_url(primary, standby))
            bench = Bench(store, ManualClock())
            worker = await bench.worker(lease=timedelta(minutes=5))
            await bench.start("run", worker=worker)
            until(lambda: primary.query(CAUGHT_UP) == [(True,)], "the standby has everything")
            primary.configure(synchronous_standby_names="")
            standby.stop("immediate")
            head = await bench.head(RUN)
            await bench.apply(following(head))
            head = await bench.head(RUN)
            primary.kill()
            standby.start()
            standby.promote()
            verdict = await until_written(store, following(head))
            assert not isinstance(verdict, Applied), verdict
            assert "gone" in await restored(store)
            await store.close()

    asyncio.run(main())


def test_one_that_was_told_nothing_does_not_decide_for_others(primary: PostgresServer) -> None:
    """It finds nothing missing, and comes first; whoever was told what is gone holds the store all the same."""

    async def main() -> None:
        with primary.standby() as standby:
            url = failover_url(primary, standby)
            told, other = await opened(url), await opened(url)
            bench = Bench(told, ManualClock())
            worker = await bench.worker(lease=timedelta(minutes=5))
            await bench.start("run", worker=worker)
            until(lambda: primary.query(CAUGHT_UP) == [(True,)], "the standby has everything")
            primary.configure(synchronous_standby_names="")
            standby.stop("immediate")
            await bench.apply(following(await bench.head(RUN)))
            primary.kill()
            standby.start()
            standby.promote()
            assert await until_read(other) == ""
            assert "gone" in await until_read(told)
            assert "gone" in await restored(other)
            await told.close()
            await other.close()

    asyncio.run(main())


async def until_read(store: PostgresStore) -> str:
    """Return why the store is held back, once it can be read."""
    for _ in range(1000):
        try:
            return await restored(store)
        except StoreUnavailableError:
            await asyncio.sleep(0.02)
    raise AssertionError("the store is away for good")


@pytest.mark.parametrize("vouched", [False, True])
def test_who_was_not_there_cannot_know(primary: PostgresServer, vouched: bool) -> None:
    """A process that begins after the failover holds the store, unless whoever operates vouches for the standby."""

    async def main() -> None:
        with primary.standby() as standby:
            store = await opened(primary.url())
            await Bench(store, ManualClock()).start("run")
            await store.close()
            primary.kill()
            standby.promote()
            options = {"failover": "synchronous"} if vouched else {}
            after = await opened(standby.url(**options))
            assert bool(await restored(after)) is not vouched
            await after.close()

    asyncio.run(main())


WORKFLOWS = frozenset({WORKFLOW})


async def by_a_commit(bench: Bench, worker: WorkerId) -> None:
    """A run that has lost nothing goes on: its commit is not told as written before the history was looked at."""
    verdict = await until_written(bench.store, following(await bench.head(OTHER)))
    assert isinstance(verdict, Fenced), verdict


async def by_a_renewal(bench: Bench, worker: WorkerId) -> None:
    """A worker that only renews its lease is told that it is over."""
    assert await asyncio.to_thread(bench.store.renew, worker) is False


async def by_a_claim(bench: Bench, worker: WorkerId) -> None:
    """A worker that takes a run that is due gets none."""
    claim = await bench.store.claim(worker, WORKFLOWS, 10)
    assert claim.runs == ()


@pytest.mark.parametrize(
    "notice", [by_a_commit, by_a_renewal, by_a_claim], ids=lambda one: one.__name__
)
def test_a_pooler_that_changes_servers(
    primary: PostgresServer, notice: Callable[[Bench, WorkerId], Awaitable[None]]
) -> None:
    """It keeps the connections of a process that goes on running: the first that is written looks whether it is the same history."""

    async def main() -> None:
        with primary.standby(synchronous=False) as standby, PgBouncer.opened(primary) as pooler:
            store = await opened(pooler.url("postgres", pooler="transaction"))
            bench = Bench(store, ManualClock())
            worker = await bench.worker(lease=timedelta(minutes=5))
            for name in ("run", "other"):
                await bench.start(name, worker=worker)
                await bench.apply(following(await bench.head(RunKey("default", name))))
            await bench.start("due")
            await store.claim(worker, WORKFLOWS, 0)
            until(lambda: primary.query(CAUGHT_UP) == [(True,)], "the standby has everything")
            standby.stop("immediate")
            await bench.apply(following(await bench.head(RUN)))
            timeline = await store.timeline()
            assert await asyncio.to_thread(store.renew, worker)
            sessions = store._writer, store._keeper, store._renewer
            connections = [one.connection for one in sessions]
            primary.kill()
            standby.start()
            standby.promote()
            pooler.lead_to(standby)
            assert not any(one.closed for one in connections)
            await notice(bench, worker)
            assert "gone" in await restored(store)
            assert await store.timeline() != timeline
            await store.close()

    asyncio.run(main())


def test_a_pooler_that_goes_on_with_everything(primary: PostgresServer) -> None:
    """A synchronous standby behind it: the process adopts it, and works on without a word."""

    async def main() -> None:
        with primary.standby() as standby, PgBouncer.opened(primary) as pooler:
            store = await opened(pooler.url("postgres", pooler="transaction"))
            bench = Bench(store, ManualClock())
            worker = await bench.worker(lease=timedelta(minutes=5))
            await bench.start("run", worker=worker)
            await bench.apply(following(await bench.head(RUN)))
            change = following(await bench.head(RUN))
            assert await asyncio.to_thread(store.renew, worker)
            before = primary.query("SELECT history FROM outlast.store")
            primary.kill()
            standby.promote()
            pooler.lead_to(standby)
            assert await asyncio.to_thread(store.renew, worker)
            assert standby.query("SELECT history FROM outlast.store") != before
            assert isinstance(await until_written(store, change), Applied)
            assert await restored(store) == ""
            await store.close()

    asyncio.run(main())
