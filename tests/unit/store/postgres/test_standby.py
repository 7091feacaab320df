"""A standby that follows: what it holds can be read there, and nothing of it can be changed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

import outlast
from outlast.app import examine_store
from outlast.errors import StoreUnavailableError
from postgres_server import PostgresServer, until


@outlast.workflow
async def echo(word: str) -> str:
    """Say the same."""
    return word


@outlast.workflow
async def other(word: str) -> str:
    """Say it elsewhere."""
    return word


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[PostgresServer, PostgresServer]]:
    """A primary, and its standby."""
    with PostgresServer.opened() as primary, primary.standby() as follower:
        yield primary, follower


@pytest.fixture
def standby(servers: tuple[PostgresServer, PostgresServer]) -> PostgresServer:
    """The standby of a server in whose store a run has ended."""
    primary, follower = servers

    async def fill() -> None:
        async with outlast.open(primary.url(), workflows=[echo]) as app:
            assert await app.run(echo("said"), id="r") == "said"

    asyncio.run(fill())
    is_there = "SELECT count(*) FROM outlast.run WHERE status = 'completed'"
    replayed = "SELECT pg_last_wal_replay_lsn() >= %s"
    reached = str(primary.query("SELECT pg_current_wal_lsn()")[0][0])
    until(
        lambda: follower.query(replayed.replace("%s", f"'{reached}'")) == [(True,)],
        "the standby has it all",
    )
    assert follower.query(is_there) == [(1,)]
    return follower


def test_it_is_read(standby: PostgresServer) -> None:
    """By a client, as the primary is."""

    async def scenario() -> None:
        async with outlast.connect(standby.url()) as client:
            assert [one.run_id for one in await client.runs.list()] == ["r"]
            assert await client.handle("r", workflow=echo).result() == "said"

    asyncio.run(scenario())


def test_it_takes_no_change(standby: PostgresServer) -> None:
    """The error says that nothing was written, and where to write."""

    async def scenario() -> None:
        async with outlast.connect(standby.url()) as client:
            await client.start(other("more"), id="s")

    with pytest.raises(StoreUnavailableError) as caught:
        asyncio.run(scenario())
    assert "not known" not in caught.value.message
    assert "name the primary" in (caught.value.hint or "")


def test_nobody_listens_there(standby: PostgresServer, caplog: pytest.LogCaptureFixture) -> None:
    """It is no lost connection, which would be made again and again."""

    async def scenario() -> None:
        async with outlast.connect(standby.url()):
            is_found = lambda: "tells nobody" in caplog.text  # noqa: E731
            await asyncio.to_thread(until, is_found, "it is found to be a standby")

    with caplog.at_level(logging.INFO, logger="outlast"):
        asyncio.run(scenario())
    assert "making another" not in caplog.text


def test_doctor_says_so(standby: PostgresServer) -> None:
    """And finds nothing wrong with it."""
    found = {one.check: one for one in examine_store(standby.url())}
    assert "a standby" in found["server"].text
    assert {found[check].verdict for check in ("server", "hints", "timeline")} == {"ok"}
