"""Roles of PostgreSQL: whoever works on a store has what that needs, whoever reads may read, and neither may do anything else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psycopg
import pytest
from typer.testing import CliRunner, Result

import outlast
from outlast.app import open_store
from outlast.cli.main import app
from outlast.errors import StoreUnavailableError
from outlast.store.postgres.role import RIGHTS


@outlast.effect(idempotent=True)
async def ship(place: str) -> str:
    """Ship."""
    return f"to {place}"


@outlast.workflow
async def send(place: str) -> str:
    """Send."""
    return await ship(place)


def typing(url: str, *words: str) -> Result:
    """Type a command."""
    return CliRunner(env={"OUTLAST_DATABASE_URL": url}).invoke(app, list(words))


def user_of(url: str) -> str:
    """Return whom a URL logs in."""
    return str(psycopg.conninfo.conninfo_to_dict(url)["user"])


def sending(url: str, place: str) -> str:
    """Run the workflow with a worker."""

    async def main() -> str:
        async with outlast.open(url, workflows=[send]) as opened:
            return await opened.run(send(place), id=place)

    return asyncio.run(main())


def refused(url: str, statement: str) -> None:
    """Check that a role may not do that."""
    with psycopg.connect(url, autocommit=True) as connection:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(statement.encode())


def test_a_worker_has_what_it_needs_and_no_more(
    postgres_url: str, role_url: Callable[[str], str]
) -> None:
    """It runs a workflow from end to end; it makes, drops and empties nothing, and changes no history."""
    url = role_url("work")
    granted = typing(postgres_url, "migrate", "--grant", user_of(url))
    assert granted.exit_code == 0, granted.stderr
    assert f"granted work to {user_of(url)}" in granted.stdout
    assert sending(url, "Oslo") == "to Oslo"
    with psycopg.connect(postgres_url) as connection:
        tables = [
            name
            for (name,) in connection.execute(
                "SELECT tablename FROM pg_tables WHERE schemaname = 'outlast'"
            )
        ]
    assert set(tables) == set(RIGHTS)
    for table in tables:
        refused(url, f"TRUNCATE outlast.{table}")
        refused(url, f"DROP TABLE outlast.{table}")
        refused(url, f"ALTER TABLE outlast.{table} ADD COLUMN x int")
    refused(url, "CREATE TABLE outlast.mine (x int)")
    refused(
        url, "CREATE FUNCTION outlast.micros() RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'"
    )
    refused(url, "DROP FUNCTION outlast.micros()")
    for statement in (
        "UPDATE outlast.entry SET body = ''",
        "DELETE FROM outlast.entry",
        "DELETE FROM outlast.approval",
        "DELETE FROM outlast.control",
        "UPDATE outlast.migration SET checksum = ''",
        "INSERT INTO outlast.migration VALUES (9, 'pre', '', '')",
    ):
        refused(url, statement)


def test_a_reader_lists_and_writes_nothing(
    postgres_url: str, role_url: Callable[[str], str]
) -> None:
    """Lists work; what would write says what to do."""
    assert sending(postgres_url, "Oslo") == "to Oslo"
    url = role_url("read")
    assert typing(postgres_url, "migrate", "--grant-read", user_of(url)).exit_code == 0
    listed = typing(url, "runs", "list")
    assert listed.exit_code == 0, listed.stderr
    assert "Oslo" in listed.stdout
    assert typing(url, "runs", "show", "Oslo").exit_code == 0
    told = typing(url, "runs", "pause", "Oslo")
    assert told.exit_code == 1
    assert "this user may not use" in told.stderr
    assert "`outlast migrate --grant ROLE`" in told.stderr
    for table in RIGHTS:
        refused(url, f"DELETE FROM outlast.{table}")


def test_a_reader_looks_before_any_worker_and_after_a_failover(
    postgres_url: str, role_url: Callable[[str], str]
) -> None:
    """Whether something is forgotten is judged by those who could move a run: a reader opens what nobody has opened, and changes nothing."""
    url = role_url("first")
    assert typing(postgres_url, "migrate", "--grant-read", user_of(url)).exit_code == 0
    seen = "SELECT history, timeline FROM outlast.store"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        for history in ("", "another/00000001"):
            connection.execute("UPDATE outlast.store SET history = %s", (history,))
            before = connection.execute(seen).fetchall()

            async def look() -> None:
                await (await open_store(url, create=False)).close()

            asyncio.run(look())
            assert connection.execute(seen).fetchall() == before


def test_rights_are_what_was_granted_last(
    postgres_url: str, role_url: Callable[[str], str]
) -> None:
    """A worker that is made a reader can write no more."""
    url = role_url("either")
    typing(postgres_url, "migrate", "--grant", user_of(url))
    assert sending(url, "Oslo") == "to Oslo"
    typing(postgres_url, "migrate", "--grant-read", user_of(url))
    with pytest.raises(StoreUnavailableError, match="may not use"):
        sending(url, "Rome")


def test_printed_grants_are_those_that_are_given(
    postgres_url: str, role_url: Callable[[str], str]
) -> None:
    """Printing changes nothing, asks no server, and an administrator can run what is printed."""
    url = role_url("printed")
    typing(postgres_url, "migrate")
    printed = typing(postgres_url, "migrate", "--grant", user_of(url), "--print-grants").stdout
    elsewhere = "postgresql://nobody@127.0.0.1:9/x?schema=outlast"
    assert typing(elsewhere, "migrate", "--grant", user_of(url), "--print-grants").stdout == printed
    with pytest.raises(StoreUnavailableError, match="may not use"):
        sending(url, "Rome")
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(printed.encode())
    assert sending(url, "Rome") == "to Rome"


def test_only_the_owner_grants(postgres_url: str, role_url: Callable[[str], str]) -> None:
    """The server would do nothing, and only warn of it."""
    worker, other = role_url("works"), role_url("other")
    typing(postgres_url, "migrate")
    typing(postgres_url, "migrate", "--grant", user_of(worker))
    told = typing(worker, "migrate", "--grant-read", user_of(other))
    assert told.exit_code == 1
    assert "nothing was granted" in told.stderr


@pytest.mark.parametrize(
    ("role", "why"), [("nobody_at_all", "there is no role"), ("postgres", "owns the store")]
)
def test_roles_that_cannot_be_meant(postgres_url: str, role: str, why: str) -> None:
    """A role that is not there, and the one that has every right."""
    told = typing(postgres_url, "migrate", "--grant", role)
    assert told.exit_code == 1
    assert why in told.stderr


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("REVOKE INSERT ON outlast.run FROM {role}", "may not use"),
        ("ALTER TABLE outlast.run RENAME COLUMN touched TO gone", "has not the tables"),
        ("ALTER TABLE outlast.run RENAME TO gone", "has not the tables"),
        ("ALTER FUNCTION outlast.micros() RENAME TO gone", "has not the tables"),
    ],
)
def test_no_run_is_to_blame_for_rights_and_tables(
    statement: str, told: str, postgres_url: str, role_url: Callable[[str], str]
) -> None:
    """What an administrator takes away under a living process stops its commits; no change is refused as damaged."""
    url = role_url("late")
    typing(postgres_url, "migrate", "--grant", user_of(url))

    async def main() -> None:
        async with outlast.open(url, workflows=[send]) as opened:
            await opened.run(send("Oslo"), id="Oslo")
        async with outlast.connect(url) as client:
            with psycopg.connect(postgres_url, autocommit=True) as connection:
                connection.execute(statement.format(role=user_of(url)).encode())
            with pytest.raises(StoreUnavailableError, match=told):
                await client.start(send("Rome"), id="Rome")

    asyncio.run(main())
