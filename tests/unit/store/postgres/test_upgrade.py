"""Migrating a store in PostgreSQL: by whom, in which order, beside whom, and by many at once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest
from typer.testing import CliRunner, Result

import outlast
from outlast.app import migrate_store, open_store
from outlast.cli.main import app
from outlast.errors import StoreUnavailableError, StoreVersionError
from outlast.store.migrate import Migration, read_migrations
from outlast.store.postgres import schema
from postgres_server import PostgresServer, until

KNOWN = read_migrations("outlast.store.postgres")
PRE = Migration(
    len(KNOWN) + 1,
    "pre",
    "fresh",
    "ALTER TABLE run ADD COLUMN fresh bigint; CREATE TABLE fresh (x bigint) {hot}",
    "a",
)
POST = Migration(len(KNOWN) + 2, "post", "tidy", "DROP TABLE fresh", "b")


@outlast.workflow
async def greet(name: str) -> str:
    """Greet."""
    return f"hello {name}"


def typing(url: str, *words: str) -> Result:
    """Type a command."""
    return CliRunner(env={"OUTLAST_DATABASE_URL": url}).invoke(app, list(words))


def greeting(url: str, name: str) -> str:
    """Run a workflow with client and worker on the store."""

    async def main() -> str:
        async with outlast.open(url, workflows=[greet], idle=timedelta(seconds=1)) as opened:
            return await opened.run(greet(name), id=name)

    return asyncio.run(main())


def opened(url: str) -> str:
    """Open and close a store, and return its line of history."""

    async def main() -> str:
        store = await open_store(url)
        try:
            return await store.timeline()
        finally:
            await store.close()

    return asyncio.run(main())


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Let the library be the next version, which brings a migration of each phase, or be itself again."""

    def be(is_newer: bool) -> None:
        found = (*KNOWN, PRE, POST) if is_newer else KNOWN
        monkeypatch.setattr(schema, "read_migrations", lambda _: found)

    return be


def test_old_and_new_on_one_store(postgres_url: str, newer: Callable[[bool], None]) -> None:
    """A rolling deploy: what is prepared keeps old processes at work, which also open it anew; what is finished does not."""
    assert greeting(postgres_url, "a") == "hello a"
    newer(True)
    assert [one.title for one in migrate_store(postgres_url, phases=["pre"])] == [PRE.title]
    assert greeting(postgres_url, "b") == "hello b"
    newer(False)
    assert greeting(postgres_url, "c") == "hello c"
    newer(True)
    assert typing(postgres_url, "migrate", "--check").stdout == f"missing {POST.title}\n"
    assert migrate_store(postgres_url, phases=["post"]) == [POST]
    assert greeting(postgres_url, "d") == "hello d"
    newer(False)
    with pytest.raises(StoreVersionError, match="newer version"):
        greeting(postgres_url, "e")


def test_command(postgres_url: str) -> None:
    """Nothing is there, it is made, it is there."""
    check = typing(postgres_url, "migrate", "--check")
    assert (check.exit_code, check.stdout) == (1, f"missing {KNOWN[0].title}\n")
    with psycopg.connect(postgres_url) as connection:
        assert not connection.execute(
            "SELECT 1 FROM pg_namespace WHERE nspname = 'outlast'"
        ).fetchall()
    made = typing(postgres_url, "migrate", "--partitions", "3")
    assert (made.exit_code, made.stdout) == (0, f"applied {KNOWN[0].title}\n")
    assert typing(postgres_url, "migrate", "--check").exit_code == 0
    assert typing(postgres_url, "migrate", "--partitions", "3").exit_code == 0
    other = typing(postgres_url, "migrate", "--partitions", "4")
    assert other.exit_code == 1
    assert "stands already, with 3 partitions" in other.stderr


def test_a_later_migration_knows_of_partitions(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table of runs that comes later is divided as the first ones are, and takes rows within its own migration."""
    migrate_store(postgres_url, partitions=2)
    table = Migration(
        PRE.number,
        "pre",
        "more",
        """
        CREATE TABLE more (tenant text, run_id text, PRIMARY KEY (tenant, run_id)) {hot};
        CREATE TABLE plain (name text);
        INSERT INTO more SELECT 'default', 'run-' || number FROM generate_series(1, 9) AS number;
        CREATE INDEX more_runs ON more (run_id);
        """,
        "c",
    )
    monkeypatch.setattr(schema, "read_migrations", lambda _: (*KNOWN, table))
    migrate_store(postgres_url)
    with psycopg.connect(postgres_url) as connection:
        found = connection.execute(
            "SELECT relname, relkind, reloptions IS NOT NULL FROM pg_class WHERE relname ~ '^(more|plain)(_[0-9])?$' ORDER BY 1"
        ).fetchall()
        parts = connection.execute("SELECT DISTINCT tableoid FROM outlast.more").fetchall()
    whole = ("more", "p", False)
    assert found == [whole, ("more_0", "r", True), ("more_1", "r", True), ("plain", "r", False)]
    assert len(parts) == 2


def test_who_may_not_make_tables(
    postgres_url: str, role_url: Callable[[str], str], newer: Callable[[bool], None]
) -> None:
    """Such a user opens what is complete, and is told who is to do what where it is not."""
    url = role_url("plain")
    with pytest.raises(
        StoreUnavailableError, match=f"lacks migrations: {KNOWN[0].title}"
    ) as caught:
        opened(url)
    assert "this user may not apply them" in caught.value.message
    assert "`outlast migrate` as the user who owns" in caught.value.hint
    line = opened(postgres_url)
    role = psycopg.conninfo.conninfo_to_dict(url)["user"]
    granted = typing(postgres_url, "migrate", "--grant", str(role))
    assert granted.exit_code == 0, granted.stderr
    assert opened(url) == line
    newer(True)
    with pytest.raises(StoreUnavailableError, match=f"lacks migrations: {PRE.title}, and this"):
        opened(url)
    with pytest.raises(StoreUnavailableError, match=f"lacks migrations: {PRE.title}"):
        opened(f"{postgres_url}&migrate=check")
    assert typing(postgres_url, "migrate", "--check", "--phase", "pre").exit_code == 1


OPEN = """
import asyncio, sys
from outlast.app import open_store

async def main():
    store = await open_store(sys.argv[1])
    print(await store.timeline(), flush=True)
    await store.close()

print("ready", flush=True)
sys.stdin.readline()
asyncio.run(main())
"""


def test_many_open_an_empty_database_at_once(postgres_url: str) -> None:
    """One migrates, the others wait, whatever the time for which they wait for other locks: one line of history, no error."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", OPEN, postgres_url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(6)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        said = []
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        said = [process.communicate(timeout=100)[0] for process in processes]
        assert [process.returncode for process in processes] == [0] * len(processes)
        assert len(set(said)) == 1
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_whoever_migrates_is_waited_for(
    postgres_url: str, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer than for any row: the lock is held by another session, and the second one is no error."""
    from outlast.store.postgres.look import migration_lock

    short = schema.OF_A_SESSION.replace("lock_timeout = '10s'", "lock_timeout = '1ms'")
    assert short != schema.OF_A_SESSION
    monkeypatch.setattr("outlast.store.postgres.session.OF_A_SESSION", short)
    with psycopg.connect(postgres_url) as holder:
        number = migration_lock("outlast")
        holder.execute("SELECT pg_advisory_xact_lock(%s)", (number,))

        async def main() -> str:
            opening = asyncio.create_task(asyncio.to_thread(opened, postgres_url))
            waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            while postgres_server.query(waits) != [(1,)]:
                assert not opening.done()
                await asyncio.sleep(0)
            await asyncio.to_thread(holder.rollback)
            return await opening

        assert asyncio.run(main())


def test_a_migration_at_work_is_waited_for(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """However often the wait has an end: whoever has the lock does something, and who waits says for whom."""
    from outlast.store.postgres.look import migration_lock

    monkeypatch.setattr(schema, "LOCK_WAIT", "20ms")
    lock = "SELECT pg_advisory_xact_lock(%s)"
    with psycopg.connect(postgres_url) as other, psycopg.connect(postgres_url) as holder:
        other.execute(lock, (7,))
        holder.execute(lock, (migration_lock("outlast"),))
        at_work = threading.Thread(target=holder.execute, args=(lock, (7,)))
        at_work.start()
        opening = threading.Thread(target=opened, args=(postgres_url,))
        opening.start()
        until(lambda: len(caplog.records) > 3, "it has waited some times")
        assert opening.is_alive()
        assert f"waits for process {holder.info.backend_pid} of the server" in caplog.text
        other.rollback()
        at_work.join()
        holder.rollback()
        opening.join()
    assert opened(postgres_url)
