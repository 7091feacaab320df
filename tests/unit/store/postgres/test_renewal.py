"""A lease is renewed beside everything else: on a connection of its own, which gives up in time to try again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from outlast.app import SystemClock
from outlast.errors import StoreUnavailableError
from outlast.store.change import WorkerId
from outlast.store.postgres.setting import read_setting
from outlast.store.postgres.store import PostgresStore, open_postgres
from outlast.testing.conformance import Bench, ManualClock
from outlast.testing.conformance.bench import WORKFLOW
from pgbouncer import PgBouncer
from postgres_server import PostgresServer

BLOCKED = (
    "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
)
WATCHED = """
CREATE TABLE limits (name text);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO public.limits VALUES (current_setting('statement_timeout')); RETURN NEW; END $$;
CREATE TRIGGER noted BEFORE UPDATE ON outlast.store FOR EACH ROW EXECUTE FUNCTION note()
"""
"""Keeps by which limit the store's row is written."""
LIMITS = ("lock_timeout", "statement_timeout")


def on(url: str, act: Callable[[PostgresStore, WorkerId], Awaitable[None]]) -> None:
    """Do something with a store that has a worker."""

    async def main() -> None:
        store = await open_postgres(read_setting(url), clock=SystemClock())
        try:
            await act(store, await Bench(store, ManualClock()).worker())
        finally:
            await store.close()

    asyncio.run(main())


def test_a_claim_that_waits_delays_no_renewal(postgres_url: str) -> None:
    """Somebody holds the table of runs: the claim waits for it, and the lease is renewed meanwhile."""

    async def act(store: PostgresStore, worker: WorkerId) -> None:
        with (
            psycopg.connect(postgres_url) as other,
            psycopg.connect(postgres_url, autocommit=True) as looking,
        ):
            other.execute("LOCK TABLE outlast.run IN ACCESS EXCLUSIVE MODE")
            claim = asyncio.create_task(store.claim(worker, frozenset({WORKFLOW}), 10))
            async with asyncio.timeout(30):
                while not looking.execute(BLOCKED).fetchall():
                    await asyncio.sleep(0.01)
            assert await asyncio.to_thread(store.renew, worker)
            assert not claim.done()
            other.rollback()
            await claim

    on(postgres_url, act)


@pytest.mark.parametrize("pooled", [False, True], ids=["straight", "through a pooler"])
def test_a_lock_holds_no_renewal_for_long(
    pooled: bool, postgres_server: PostgresServer, postgres_url: str
) -> None:
    """Somebody holds the worker's row: the renewal gives up before that ends, and the next one goes well."""

    async def act(store: PostgresStore, worker: WorkerId) -> None:
        with psycopg.connect(postgres_url) as other:
            other.execute("SELECT 1 FROM outlast.worker FOR UPDATE")
            with pytest.raises(StoreUnavailableError, match="LockNotAvailable"):
                await asyncio.to_thread(store.renew, worker)
        assert await asyncio.to_thread(store.renew, worker)
        session = store._renewer
        with session.pipeline():
            session.begin()
            found = [session.send(f"SHOW {name}") for name in LIMITS]
            session.send("COMMIT")
            assert [one.rows()[0][0] for one in found] == ["2s", "3s"]

    if not pooled:
        on(postgres_url, act)
        return
    with PgBouncer.opened(postgres_server) as pooler:
        database = str(conninfo_to_dict(postgres_url)["dbname"])
        on(pooler.url(database, pooler="transaction"), act)


def test_it_connects_to_the_next_host_in_time() -> None:
    """Unless the URL says how long to wait."""
    setting = read_setting("postgresql://a,b,c/agents")
    assert conninfo_to_dict(setting.conninfo)["connect_timeout"] == "10"
    found = conninfo_to_dict(setting.renewing)
    assert (found["connect_timeout"], found["target_session_attrs"]) == ("3", "read-write")
    said = read_setting("postgresql://a,b,c/agents?connect_timeout=7").renewing
    assert conninfo_to_dict(said)["connect_timeout"] == "7"


def test_a_connection_that_cannot_be_made_is_not_tried_for_twice(
    postgres_server: PostgresServer, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was lost is made anew at once, by the same renewal."""

    async def act(store: PostgresStore, worker: WorkerId) -> None:
        database = str(conninfo_to_dict(postgres_url)["dbname"])
        assert await asyncio.to_thread(store.renew, worker)
        postgres_server.terminate_backends(database)
        assert await asyncio.to_thread(store.renew, worker)
        store._renewer.close()
        tried: list[str] = []

        def refuse(conninfo: str, **_: object) -> None:
            tried.append(conninfo)
            raise psycopg.OperationalError("no answer")

        with monkeypatch.context() as patched:
            patched.setattr(psycopg, "connect", refuse)
            with pytest.raises(StoreUnavailableError, match="no answer"):
                await asyncio.to_thread(store.renew, worker)
        assert tried.count(store._setting.renewing) == 1

    on(postgres_url, act)


def test_a_renewal_that_holds_the_store_takes_its_time(postgres_url: str) -> None:
    """It comes first upon a cluster that was put back: to hold a million runs takes longer than a renewal may."""

    async def act(store: PostgresStore, worker: WorkerId) -> None:
        assert await asyncio.to_thread(store.renew, worker)
        with psycopg.connect(postgres_url, autocommit=True) as other:
            other.execute("UPDATE outlast.store SET history = 'another/00000001'")
            other.execute(WATCHED)
            store._renewer.close()
            assert not await asyncio.to_thread(store.renew, worker)
            assert other.execute("SELECT name FROM limits").fetchall() == [("0",)]

    on(postgres_url, act)
