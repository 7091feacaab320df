"""PgBouncer in transaction mode on the way: workers and clients work, nothing of theirs stays in a session, and nobody forgets to say so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psycopg
import pytest

import outlast
from outlast.app import open_store
from outlast.errors import StoreUnavailableError
from outlast.store.postgres.failure import failure_of
from outlast.store.postgres.session import Session
from outlast.store.postgres.setting import read_setting
from pgbouncer import PgBouncer


@outlast.workflow
async def greet(name: str) -> str:
    """Greet."""
    return f"hello {name}"


@pytest.fixture
def through(pgbouncer: PgBouncer, postgres_url: str) -> Callable[..., str]:
    """Give the URL of the database through the pooler."""
    database = str(psycopg.conninfo.conninfo_to_dict(postgres_url)["dbname"])
    return lambda **options: pgbouncer.url(database, **options)


async def opening(url: str) -> None:
    """Open a store and close it."""
    await (await open_store(url)).close()


@pytest.mark.parametrize("listening", [False, True], ids=["looks alone", "listening past it"])
def test_workers_work_through_it(
    listening: bool, through: Callable[..., str], postgres_url: str
) -> None:
    """A new store is made, and runs started elsewhere are moved and waited for."""
    url = through(pooler="transaction", **({"listen": postgres_url} if listening else {}))
    assert (read_setting(url).listen is not None) == listening

    async def main() -> list[str]:
        async with outlast.open(url, workflows=[greet]), outlast.connect(url) as client:
            names = [f"r{number}" for number in range(20)]
            return await asyncio.gather(*(client.run(greet(one), id=one) for one in names))

    assert asyncio.run(main()) == [f"hello r{number}" for number in range(20)]


def test_one_that_nobody_told_of_is_refused(through: Callable[..., str], postgres_url: str) -> None:
    """Before anything is written, and with both ways to say which kind it is; straight to the server nothing has to be said."""
    with pytest.raises(StoreUnavailableError, match="stands a pooler") as caught:
        asyncio.run(opening(through()))
    assert "?pooler=transaction" in caught.value.hint
    assert "?pooler=session" in caught.value.hint
    with psycopg.connect(postgres_url) as connection:
        assert not connection.execute("SELECT 1 FROM pg_tables WHERE tablename = 'run'").fetchall()
    asyncio.run(opening(postgres_url))


def test_one_that_keeps_sessions_is_used_as_the_server(
    through: Callable[..., str], pgbouncer: PgBouncer
) -> None:
    """`pooler=session` says so: statements are prepared, and hints are heard."""
    setting = read_setting(through(pooler="session"))
    assert (setting.pooled, setting.proxied, setting.listen) == (False, True, "")
    with pytest.raises(StoreUnavailableError, match="pooler=statement in the store's URL means"):
        read_setting(through(pooler="statement"))


def test_limits_are_set_for_a_transaction(through: Callable[..., str], postgres_url: str) -> None:
    """A process that stands still holds rows for no longer than without a pooler; whoever gets the session next has its own limits."""
    names = ("lock_timeout", "idle_in_transaction_session_timeout")
    pooled, plain = (
        Session(read_setting(url)) for url in (through(pooler="transaction"), postgres_url)
    )
    for session in (pooled, plain):
        with session.pipeline():
            session.begin()
            found = [session.send(f"SHOW {name}") for name in names]
            session.send("COMMIT")
            assert [one.rows()[0][0] for one in found] == ["10s", "10s"]
    assert [pooled.rows(f"SHOW {name}")[0][0] for name in names] == ["0", "0"]
    pooled.close()
    plain.close()


@pytest.mark.parametrize(
    "kind", [psycopg.errors.InvalidSqlStatementName, psycopg.errors.DuplicatePreparedStatement]
)
def test_statements_of_others_are_explained(kind: type[psycopg.Error]) -> None:
    """What a server says where a pooler was put between afterwards."""
    told = failure_of(kind('prepared statement "_pg3_0" already exists'), "here")
    assert "?pooler=transaction" in told.hint
