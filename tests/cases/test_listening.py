"""Section C, on PostgreSQL: the connection that listens is lost, and nobody waits for what was told meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from outlast.app import SystemClock
from outlast.store.change import PutControl
from outlast.store.postgres.setting import read_setting
from outlast.store.postgres.store import PostgresStore, open_postgres

PATIENCE_SECONDS = 60


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[PostgresStore]:
    """Open a store as a process of its own would."""
    store = await open_postgres(read_setting(url), clock=SystemClock())
    try:
        yield store
    finally:
        await store.close()


async def until(question: Callable[[], Any]) -> None:
    """Wait for what another thread does."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not question():
            await asyncio.sleep(0.01)


async def commit(store: PostgresStore, version: int) -> None:
    """Write something."""
    await store.commit([PutControl("t", "row", version, b"{}")])


class Server:
    """What the server says of connections that listen."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def listeners(self) -> list[int]:
        """Return its processes of theirs."""
        rows = self._connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
            " AND (query LIKE 'LISTEN %' OR query LIKE 'NOTIFY %') ORDER BY pid"
        )
        return [pid for (pid,) in rows]

    def terminate(self, pid: int) -> None:
        """End one."""
        self._connection.execute("SELECT pg_terminate_backend(%s)", (pid,))


def test_case_037_whoever_listens_anew_looks(postgres_url: str) -> None:
    """A commit of which nobody is told, while the connection is lost: everybody looks as soon as there is another."""

    async def main(server: Server) -> None:
        async with opened(postgres_url) as one, opened(f"{postgres_url}&listen=off") as silent:
            hint = asyncio.Event()
            one.subscribe(hint.set)
            await until(lambda: len(server.listeners()) == 1)
            await commit(silent, 0)
            hint.clear()
            server.terminate(*server.listeners())
            async with asyncio.timeout(PATIENCE_SECONDS):
                await hint.wait()
            assert await one.control("t", "row") == (1, b"{}")

    with psycopg.connect(postgres_url, autocommit=True) as connection:
        asyncio.run(main(Server(connection)))


def test_case_038_a_dead_connection_is_not_used_again(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Ended three times in a row: a new one each time, with a line in the log, and the next commit of another process is heard."""

    async def main(server: Server) -> None:
        async with opened(postgres_url) as one:
            hint = asyncio.Event()
            one.subscribe(hint.set)
            await until(lambda: len(server.listeners()) == 1)
            for version in range(3):
                (before,) = server.listeners()
                server.terminate(before)
                await until(lambda before=before: server.listeners() not in ([], [before]))
                async with opened(postgres_url) as two:
                    await until(lambda: len(server.listeners()) == 2)
                    hint.clear()
                    await commit(two, version)
                    async with asyncio.timeout(PATIENCE_SECONDS):
                        await hint.wait()
                await until(lambda: len(server.listeners()) == 1)

    with psycopg.connect(postgres_url, autocommit=True) as connection:
        asyncio.run(main(Server(connection)))
    assert caplog.text.count("the connection that listens was lost, making another") == 3
