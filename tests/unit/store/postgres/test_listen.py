"""Hints between processes: they arrive without any look, whatever becomes of the connection that listens, and cost commits nothing."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import resource
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from msgspec import structs

import outlast
from outlast.app import SystemClock
from outlast.errors import StoreUnavailableError
from outlast.store.change import PutControl
from outlast.store.postgres import listen
from outlast.store.postgres.listen import Hints, Line
from outlast.store.postgres.setting import read_setting
from outlast.store.postgres.store import PostgresStore, open_postgres
from pgbouncer import PgBouncer

PATIENCE_SECONDS = 60


@outlast.workflow
async def greet(name: str) -> str:
    """Greet."""
    return f"hello {name}"


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[PostgresStore]:
    """Open a store as a process of its own would."""
    store = await open_postgres(read_setting(url), clock=SystemClock())
    try:
        yield store
    finally:
        await store.close()


async def commit(store: PostgresStore, version: int = 0) -> None:
    """Write something."""
    await store.commit([PutControl("t", "row", version, b"{}")])


async def until(question: Callable[[], Any]) -> None:
    """Wait for what another thread does."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not question():
            await asyncio.sleep(0.01)


async def heard(event: asyncio.Event) -> None:
    """Wait for a hint."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        await event.wait()
    event.clear()


@pytest.fixture
def listeners(postgres_url: str) -> Iterator[Callable[[], list[int]]]:
    """Give the server's processes of connections that listen."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:

        def find() -> list[int]:
            rows = connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
                " AND (query LIKE 'LISTEN %' OR query LIKE 'NOTIFY %') ORDER BY pid"
            )
            return [pid for (pid,) in rows]

        yield find


@contextmanager
def foreign(url: str) -> Iterator[Callable[[], list[tuple[int, str]]]]:
    """Listen as somebody else; give what was notified so far, by whom and with what."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute('LISTEN "outlast_outlast"')
        found: list[tuple[int, str]] = []

        def told() -> list[tuple[int, str]]:
            # A round trip: what was sent before it has arrived.
            connection.execute("SELECT 1")
            found.extend((one.pid, one.payload) for one in connection.notifies(timeout=0))
            return found

        yield told


def test_a_worker_hears_of_work_without_a_look(postgres_url: str) -> None:
    """Its own looks are an hour apart: what starts elsewhere arrives all the same."""

    async def main() -> str:
        app = outlast.open(postgres_url, workflows=[greet])
        app._options = dataclasses.replace(app._options, poll=timedelta(hours=1))
        async with app, outlast.connect(postgres_url) as client, asyncio.timeout(PATIENCE_SECONDS):
            return await client.run(greet("Ada"), id="a")

    assert asyncio.run(main()) == "hello Ada"


def test_a_listener_that_does_not_answer_is_replaced(
    postgres_url: str, listeners: Callable[[], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process at the server stands still, and the connection is as good as any: silence alone tells."""
    monkeypatch.setattr(listen, "_SILENT_SECONDS", 0.01)
    monkeypatch.setattr(listen, "_ANSWER_SECONDS", 0.5)

    async def main() -> None:
        async with opened(postgres_url) as store:
            await until(lambda: len(listeners()) == 1)
            (stopped,) = listeners()
            os.kill(stopped, signal.SIGSTOP)
            try:
                hint = asyncio.Event()
                store.subscribe(hint.set)
                await heard(hint)
                await until(lambda: len([pid for pid in listeners() if pid != stopped]) == 1)
            finally:
                os.kill(stopped, signal.SIGCONT)

    asyncio.run(main())


def test_a_beat_is_no_news(postgres_url: str) -> None:
    """What is told to find out whether it is heard wakes nobody; what comes after it does."""
    asyncio.run(_once(postgres_url))
    with (
        closing(Line(read_setting(postgres_url))) as one,
        closing(Line(read_setting(postgres_url))) as two,
    ):
        one.open()
        two.open()
        one.tell("beat")
        while not one.was_heard:
            assert not one.hear()
        at = two._heard_at
        while two._heard_at == at:
            assert not two.hear()
        one.tell()
        while not two.hear():
            pass


async def _once(url: str) -> None:
    async with opened(url):
        pass


def test_a_storm_of_commits_is_told_once(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are, so many notifications as time passes: here is none between the first and the last."""
    monkeypatch.setattr(listen, "_BETWEEN_SECONDS", 3600.0)

    async def main() -> None:
        async with opened(postgres_url) as store:
            with foreign(postgres_url) as told:
                for version in range(100):
                    await commit(store, version)
                assert len(told()) <= 1

    asyncio.run(main())


def test_the_last_commit_of_a_storm_is_told(postgres_url: str) -> None:
    """One that comes while another is told of is told of after it."""

    async def main() -> None:
        async with opened(postgres_url) as store, opened(postgres_url) as other:
            hint = asyncio.Event()
            other.subscribe(hint.set)
            seen = -1
            for version in range(30):
                await commit(store, version)
            while seen < 30:
                await heard(hint)
                row = await other.control("t", "row")
                assert row is not None
                seen = row[0]

    asyncio.run(main())


def test_nothing_is_sent_by_a_commit(postgres_url: str, listeners: Callable[[], list[int]]) -> None:
    """Without the thread that listens nobody is told of anything; work goes on by looks."""

    async def main() -> str:
        url = f"{postgres_url}&listen=off"
        with foreign(postgres_url) as told:
            async with outlast.open(url, workflows=[greet]) as app:
                result = await app.run(greet("Ada"), id="a")
                assert len(listeners()) == 1  # this test
                names = {thread.name for thread in threading.enumerate()}
                assert "outlast-postgres-listen" not in names
            assert told() == []
        return result

    assert asyncio.run(main()) == "hello Ada"


def test_closing_ends_the_thread(postgres_url: str, listeners: Callable[[], list[int]]) -> None:
    """And its connection."""
    before = set(threading.enumerate())

    async def main() -> None:
        async with opened(postgres_url):
            await until(listeners)

    asyncio.run(main())
    left = {one.name for one in set(threading.enumerate()) - before}
    assert "outlast-postgres-listen" not in left


def test_closing_does_not_wait_for_a_server_that_is_gone(
    monkeypatch: pytest.MonkeyPatch, postgres_url: str
) -> None:
    """While the thread makes a connection that does not come, closing leaves it behind."""
    monkeypatch.setattr(listen, "_LEAVE_SECONDS", 0.01)
    connecting, let = threading.Event(), threading.Event()

    def connect(*_: object, **__: object) -> None:
        connecting.set()
        let.wait(PATIENCE_SECONDS)
        raise psycopg.OperationalError("gone")

    monkeypatch.setattr(listen.psycopg, "connect", connect)
    hints = Hints(read_setting(postgres_url))
    hints.start()
    assert connecting.wait(PATIENCE_SECONDS)
    hints.close()
    assert hints._thread.is_alive()
    let.set()
    hints._thread.join(PATIENCE_SECONDS)
    assert not hints._thread.is_alive()


def test_many_descriptors(postgres_url: str) -> None:
    """A process with thousands of open files hears like any other."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 2048), hard), hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]

    async def main() -> None:
        async with opened(postgres_url) as one, opened(postgres_url) as two:
            hint = asyncio.Event()
            one.subscribe(hint.set)
            for version in range(2):
                hint.clear()
                await commit(two, version)
                await heard(hint)

    try:
        asyncio.run(main())
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_forked_child_is_refused(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections do not survive a fork."""

    async def main() -> None:
        async with opened(postgres_url) as store:
            here = os.getpid()
            with monkeypatch.context() as child:
                child.setattr(os, "getpid", lambda: here + 1)
                with pytest.raises(StoreUnavailableError, match="forked"):
                    store.subscribe(lambda: None)
                with pytest.raises(StoreUnavailableError, match="forked"):
                    await commit(store)

    asyncio.run(main())


def test_a_pooler_on_the_way_is_noticed(
    pgbouncer: PgBouncer, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Through one that lends sessions for a transaction nothing is heard: that is told, with what to do."""
    database = str(psycopg.conninfo.conninfo_to_dict(postgres_url)["dbname"])
    setting = structs.replace(read_setting(postgres_url), listen=pgbouncer.url(database))

    async def main() -> None:
        store = await open_postgres(setting, clock=SystemClock())
        try:
            await until(lambda: "listen= has to lead past it" in caplog.text)
        finally:
            await store.close()

    asyncio.run(main())
