"""The connection is lost while a commit is under way: it is written or not, the verdict says that nobody knows, and the same again counts once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator

import psycopg
import pytest

from outlast.app import SystemClock
from outlast.errors import StoreUnavailableError
from outlast.store.change import Applied, Change, Conflict, PutControl, RunKey, StartRun, Unknown
from outlast.store.postgres.setting import read_setting
from outlast.store.postgres.store import open_postgres
from outlast.testing.conformance import Bench
from outlast.testing.conformance.bench import following, sending, starting
from postgres_server import PostgresServer
from postgres_shared import memory_folder

WAITING = "wait_event = 'SyncRep'"
IN_A_LOCK = "wait_event_type = 'Lock'"
RUN = RunKey("default", "run")


async def owned(bench: Bench) -> Change:
    """Return a change of a run that this process knows."""
    return following(await bench.owned())


async def owned_unknown(bench: Bench) -> Change:
    """Return a change of a run of which this process knows nothing any more."""
    change = await owned(bench)
    bench.store._committing._recall._runs.clear()  # type: ignore[attr-defined]
    return change


async def message(bench: Bench) -> Change:
    """Return a message to a run."""
    return sending(await bench.start())


async def start(bench: Bench) -> Change:
    """Return the start of a run."""
    return starting()


KINDS: list[Callable[[Bench], Awaitable[Change]]] = [owned, owned_unknown, message, start]
of_each_kind = pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server whose settings may be changed."""
    with PostgresServer.opened(parent=memory_folder()) as opened:
        yield opened


@pytest.fixture
def database(server: PostgresServer) -> Iterator[str]:
    """An empty database on it."""
    server.query("CREATE DATABASE lost")
    yield "lost"
    server.query("DROP DATABASE lost WITH (FORCE)")


async def soon(happened: Callable[[], object]) -> None:
    """Wait for something that the server does."""
    async with asyncio.timeout(30):
        while not happened():
            await asyncio.sleep(0.01)


def on(server: PostgresServer, database: str, act: Callable[[Bench], Awaitable[None]]) -> None:
    """Do something with a store."""

    async def main() -> None:
        clock = SystemClock()
        store = await open_postgres(read_setting(server.url(database)), clock=clock)
        try:
            await act(Bench(store, clock))  # type: ignore[arg-type]
        finally:
            await store.close()

    asyncio.run(main())


def ended(
    server: PostgresServer, database: str, which: str, how: str = "pg_terminate_backend"
) -> bool:
    """End the sessions in a database that are so, or what they wait for; whether there were any."""
    found = server.query(
        f"SELECT {how}(pid) FROM pg_stat_activity WHERE datname = '{database}' AND {which}"
    )
    return bool(found)


async def wait_for_standby(server: PostgresServer) -> None:
    """Have commits wait for a standby that there is not, from now on."""
    server.configure(synchronous_standby_names="nobody")
    waiting = f"application_name = 'probe' AND {WAITING}"
    while True:
        with server.connect(application_name="probe") as probe:
            say = "SELECT pg_logical_emit_message(true, 'probe', '')"
            write = asyncio.create_task(asyncio.to_thread(probe.execute, say))
            while not write.done():
                if ended(server, "postgres", waiting):
                    with contextlib.suppress(psycopg.OperationalError):
                        await write
                    return
                await asyncio.sleep(0)


async def check_once(bench: Bench) -> None:
    """What was sent twice is stored once."""
    image = await bench.store.load(RUN)
    assert image is not None
    assert [one.row.seq for one in image.rows] == list(range(len(image.rows)))
    assert len(image.rows) + len(image.messages) <= 2


@of_each_kind
def test_commit_that_is_cut_off_after_it_was_written(
    server: PostgresServer, database: str, make: Callable[[Bench], Awaitable[Change]]
) -> None:
    """A commit waits for a standby, and its session is ended there: it is written; sent again it is recognised."""

    async def act(bench: Bench) -> None:
        change = await make(bench)
        await wait_for_standby(server)
        try:
            commit = asyncio.create_task(bench.one(change))
            await soon(lambda: ended(server, database, WAITING) or commit.done())
            assert isinstance(await commit, Unknown)
        finally:
            server.configure(synchronous_standby_names="")
        before = await bench.store.load(RUN)
        verdict = await bench.one(change)
        if isinstance(change, StartRun):
            # A client sees by the fingerprint that it is the same.
            assert isinstance(verdict, Conflict)
            assert verdict.head is not None
            assert verdict.head.fingerprint == change.fingerprint
        else:
            assert isinstance(verdict, Applied), verdict
        after = await bench.store.load(RUN)
        assert before is not None
        assert after is not None
        assert (after.rows, after.messages) == (before.rows, before.messages)
        await check_once(bench)

    on(server, database, act)


@pytest.mark.parametrize("make", [owned, owned_unknown, message], ids=lambda make: make.__name__)
def test_commit_that_is_cut_off_before_it_was_written(
    server: PostgresServer, database: str, make: Callable[[Bench], Awaitable[Change]]
) -> None:
    """A commit waits for a row, and its session is ended there: it is not written; sent again it is, once."""

    async def act(bench: Bench) -> None:
        change = await make(bench)
        with server.connect(database, autocommit=False) as other:
            other.execute("SELECT 1 FROM outlast.run FOR UPDATE")
            commit = asyncio.create_task(bench.one(change))
            await soon(lambda: ended(server, database, IN_A_LOCK))
        verdict = await commit
        while isinstance(verdict, Unknown):
            verdict = await bench.one(change)
        assert isinstance(verdict, Applied), verdict
        await check_once(bench)

    on(server, database, act)


async def control(bench: Bench) -> Change:
    """Return a change of a control row."""
    return PutControl("default", "switch", 0, b"{}")


@pytest.mark.parametrize("how", ["pg_terminate_backend", "pg_cancel_backend"])
@pytest.mark.parametrize("make", [*KINDS, control], ids=lambda make: make.__name__)
def test_commit_that_waits_for_its_standby_no_more(
    server: PostgresServer,
    database: str,
    make: Callable[[Bench], Awaitable[Change]],
    how: str,
) -> None:
    """Nobody knows whether the standby has it; who sends it again is told once it has, though it was written before."""

    async def act(bench: Bench) -> None:
        change = await make(bench)
        await wait_for_standby(server)
        try:
            for _ in range(2):
                commit = asyncio.create_task(bench.one(change))
                await soon(lambda: ended(server, database, WAITING, how) or commit.done())
                assert isinstance(await commit, Unknown)
            commit = asyncio.create_task(bench.one(change))
            await soon(lambda: ended(server, database, WAITING, "abs") or commit.done())
            assert not commit.done()
        finally:
            server.configure(synchronous_standby_names="")
        kind = Conflict if isinstance(change, StartRun | PutControl) else Applied
        assert isinstance(await commit, kind)

    on(server, database, act)


def test_renewal_that_waits_for_its_standby_no_more(server: PostgresServer, database: str) -> None:
    """It is tried again; a lease that a standby may not know of is none."""

    async def act(bench: Bench) -> None:
        worker = await bench.worker()
        await wait_for_standby(server)
        try:
            renewal = asyncio.create_task(asyncio.to_thread(bench.store.renew, worker))

            def is_told() -> bool:
                ended(server, database, WAITING, "pg_cancel_backend")
                return renewal.done()

            await soon(is_told)
            with pytest.raises(StoreUnavailableError, match="has not waited for its standby"):
                await renewal
        finally:
            server.configure(synchronous_standby_names="")

    on(server, database, act)


@of_each_kind
def test_commit_that_cannot_be_sent(
    server: PostgresServer, database: str, make: Callable[[Bench], Awaitable[Change]]
) -> None:
    """Where no connection can be made at all, it is told that nothing was written, and not that nobody knows."""

    async def act(bench: Bench) -> None:
        change = await make(bench)
        writer = bench.store._writer  # type: ignore[attr-defined]
        writer.close()
        server.query(f"ALTER DATABASE {database} ALLOW_CONNECTIONS false")
        try:
            with pytest.raises(StoreUnavailableError):
                await bench.one(change)
        finally:
            server.query(f"ALTER DATABASE {database} ALLOW_CONNECTIONS true")
        await bench.apply(change)
        await check_once(bench)

    on(server, database, act)
