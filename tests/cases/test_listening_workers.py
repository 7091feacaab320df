"""Cases of sections B and C that concern the connection by which PostgreSQL tells of news: it is lost, and nothing else is."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from cases_bench import LocalApp, until

import outlast
from outlast.journal.entry import from_row
from outlast.store.change import RunKey
from outlast.store.postgres.store import READERS
from postgres_server import PostgresServer

NO_LOOK = timedelta(hours=1)
"""Nobody looks without being told."""

go = outlast.Signal("go", str)
bodies: Counter[str] = Counter()
held: list[asyncio.Event] = []


@pytest.fixture(autouse=True)
def clean() -> None:
    bodies.clear()
    held.clear()


@outlast.step
async def hold() -> str:
    bodies["hold"] += 1
    await held[0].wait()
    return "held"


@outlast.workflow
async def hold_once() -> str:
    return await hold()


@outlast.workflow
async def wait_for_word() -> str:
    return await outlast.receive(go)


CODE = [hold, hold_once, wait_for_word]


class Server:
    """What a test does at the server, to the database that its apps use."""

    def __init__(
        self, connection: psycopg.Connection[Any], beside: psycopg.Connection[Any]
    ) -> None:
        self._connection = connection
        self._beside = beside

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """Return the rows of a statement."""
        cursor = self._connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []

    def listeners(self, application: str) -> list[int]:
        """Return the sessions that listen for an application."""
        rows = self.query(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query ~ '^(LISTEN|NOTIFY)'"
            f" AND application_name = '{application}'"
        )
        return [pid for (pid,) in rows]

    def end(self, pids: list[int]) -> None:
        """End sessions."""
        for pid in pids:
            self.query(f"SELECT pg_terminate_backend({pid})")

    def let_in(self, *, anybody: bool) -> None:
        """Take new connections, or none."""
        # Nobody closes the database that he is in.
        name = self._connection.info.dbname
        self._beside.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS {anybody}".encode())


@pytest.fixture
def server(postgres_url: str, postgres_server: PostgresServer) -> Iterator[Server]:
    """The server of `postgres_url`."""
    with (
        psycopg.connect(postgres_url, autocommit=True) as connection,
        postgres_server.connect() as beside,
    ):
        yield Server(connection, beside)


def named(url: str, application: str) -> str:
    """Return a URL whose sessions bear a name."""
    return f"{url}&application_name={application}"


async def waits(app: LocalApp, run_id: str) -> None:
    """Wait until a run that receives a word is in the worker's memory, and does."""
    while True:
        rows = await app.store.journal(RunKey("default", run_id))
        if any(type(from_row(one.row)).__name__ == "Taken" for one in rows):
            return
        await asyncio.sleep(0.01)


async def replaced(server: Server, former: list[int]) -> list[int]:
    """Return who listens for the worker once another session does."""
    found: list[list[int]] = []

    def look() -> bool:
        found[:] = [server.listeners("worker")]
        return bool(found[0]) and found[0] != former

    await until(look, "another session listens")
    return found[0]


# 17


def test_a_listening_session_that_is_lost_again_and_again_moves_no_run(
    postgres_url: str, server: Server
) -> None:
    """It is ended for two lease periods, while claims renew and another worker would take the run: nobody does."""
    renewed = "SELECT min(renewed), min(lease) FROM outlast.worker"

    async def main() -> tuple[str, int]:
        held.append(asyncio.Event())
        lease, url = timedelta(seconds=1), named(postgres_url, "worker")
        async with LocalApp(url, CODE, lease=lease) as one, LocalApp(url, CODE, lease=lease):
            handle = await one.start(hold_once(), id="r")
            await until(lambda: bodies["hold"], "the step begins")
            ((began, length),) = server.query(renewed)
            while server.query(renewed)[0][0] < began + 2 * length:
                server.end(server.listeners("worker"))
                await asyncio.sleep(0.02)
            held[0].set()
            result = await handle.result()
            head = await one.store.head(RunKey("default", "r"))
            assert head is not None
            return result, head.epoch

    assert asyncio.run(main()) == ("held", 1)
    assert bodies == {"hold": 1}


# 37


def test_what_is_sent_while_nobody_listens_is_received_when_somebody_does(
    postgres_url: str, server: Server
) -> None:
    """The worker's session is lost and cannot be made anew; a message is sent, and its notification is heard by nobody. Then it arrives."""

    async def main() -> str:
        async with (
            LocalApp(named(postgres_url, "worker"), CODE, poll=NO_LOOK) as app,
            outlast.connect(named(postgres_url, "client")) as client,
        ):
            handle = await app.start(wait_for_word(), id="r")
            await waits(app, "r")
            await until(lambda: server.listeners("worker"), "somebody listens")
            # Every connection that is used below is there by now.
            for _ in range(READERS):
                await client.handle("r").status()
            server.let_in(anybody=False)
            try:
                server.end(server.listeners("worker"))
                await until(lambda: not server.listeners("worker"), "nobody listens")
                await client.handle("r").send(go, "word")
            finally:
                server.let_in(anybody=True)
            async with asyncio.timeout(40):
                return await handle.result()

    assert asyncio.run(main()) == "word"


# 38


def test_each_listening_session_that_is_lost_has_another_after_it(
    postgres_url: str, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Ended three times in a row: each time another session listens, a line of the log says so, and wake-ups arrive."""

    async def main() -> str:
        async with (
            LocalApp(named(postgres_url, "worker"), CODE, poll=NO_LOOK) as app,
            outlast.connect(named(postgres_url, "client")) as client,
        ):
            handle = await app.start(wait_for_word(), id="r")
            await waits(app, "r")
            pids = await replaced(server, [])
            for _ in range(3):
                server.end(pids)
                pids = await replaced(server, pids)
            await client.handle("r").send(go, "word")
            async with asyncio.timeout(40):
                return await handle.result()

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(main()) == "word"
    assert caplog.text.count("the connection that listens was lost") == 3
