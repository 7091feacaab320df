"""`outlast doctor` on PostgreSQL: a healthy store, and each thing that can be wrong with one; and no password anywhere."""

from __future__ import annotations

import asyncio
import contextlib
import json
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner, Result

import outlast
from outlast.app import (
    SystemClock,
    examine_store,
    migrate_store,
    open_store,
    store_place,
    typed_url,
    without_password,
)
from outlast.cli.main import app
from outlast.errors import StoreUnavailableError
from outlast.store.finding import Finding
from outlast.store.postgres import checkup
from outlast.store.postgres.session import Session
from outlast.store.postgres.setting import read_setting
from pgbouncer import PgBouncer
from postgres_server import PostgresServer


@outlast.workflow
async def greet(name: str) -> str:
    """Greet."""
    return f"hello {name}"


def doctor(url: str, *words: str) -> Result:
    """Ask the doctor."""
    return CliRunner(env={"OUTLAST_DATABASE_URL": url}).invoke(app, ["doctor", *words])


def findings(url: str) -> dict[str, Finding]:
    """Return what is found, by what was looked at."""
    return {one.check: one for one in examine_store(url)}


def change(url: str, *statements: str) -> None:
    """Change something as the owner."""
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def test_healthy(postgres_url: str) -> None:
    """Everything is looked at, in text and as JSON."""
    migrate_store(postgres_url)
    result = doctor(postgres_url, "--json")
    assert result.exit_code == 0, result.stdout
    document = json.loads(result.stdout)
    assert document["healthy"] is True
    assert document["database"] == read_setting(postgres_url).place
    verdicts = {one["check"]: one["verdict"] for one in document["findings"]}
    assert verdicts == dict.fromkeys(
        (
            *("database", "boot_clock", "server", "durability", "connections", "hints", "schema"),
            *("clock", "hot_updates", "dead_rows", "blocked", "in_doubt", "requests", "workers"),
            *("queues", "timeline"),
        ),
        "ok",
    )
    text = doctor(postgres_url).stdout
    assert "ok   server       PostgreSQL" in text
    assert "fsync = on, full_page_writes = on, synchronous_commit = on" in text


def test_statistics_of_partitioned_tables(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Autovacuum makes none of a table as a whole, so somebody has to."""
    monkeypatch.setattr(checkup, "_MANY_ROWS", 9)
    migrate_store(postgres_url, partitions=2)
    fill = "INSERT INTO outlast.watch SELECT 'default', 'run-' || number, 'default', 'w', 1, 'r:1' FROM generate_series(1, 9) AS number"
    change(postgres_url, fill)
    assert findings(postgres_url)["statistics"].verdict == "ok"
    # As autovacuum does: part by part.
    change(postgres_url, "ANALYZE outlast.watch_0", "ANALYZE outlast.watch_1")
    found = findings(postgres_url)["statistics"]
    assert (found.verdict, found.text.partition(" as a whole")[0]) == (
        "warn",
        "the server knows nothing of watch",
    )
    change(postgres_url, found.hint.partition("week: ")[2])
    assert findings(postgres_url)["statistics"].verdict == "ok"


def test_nothing_there(postgres_url: str) -> None:
    """The server is looked at, the store fails, and nothing is made."""
    result = doctor(postgres_url, "--json")
    assert result.exit_code == 1
    found = {one["check"]: one for one in json.loads(result.stdout)["findings"]}
    assert found["database"]["verdict"] == "fail"
    assert "there is no store at" in found["database"]["text"]
    assert found["server"]["verdict"] == "ok"
    assert "schema" not in found


def test_what_counts_say(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that nobody moves, effects and requests in doubt, steps that wait, rows that are dead, pages that are full."""

    async def start() -> None:
        async with outlast.connect(postgres_url, create=True) as client:
            await client.start(greet("Ada"), id="a")
            await client.start(greet("Bob"), id="b")

    asyncio.run(start())
    for name in ("_DEAD_ROWS", "_FEW_UPDATES"):
        monkeypatch.setattr(checkup, name, 0)
    monkeypatch.setattr(checkup, "_HOT_SHARE", 1.1)
    change(
        postgres_url,
        "UPDATE outlast.run SET status = 'blocked', due = NULL WHERE run_id = 'b'",
        "INSERT INTO outlast.operation VALUES ('default', 'b', 'r:1', 'effect', 'pay', 0, NULL, '', '', 0, 0, 0, NULL, NULL, NULL, 1)",
        "INSERT INTO outlast.request VALUES ('default', 'x', 'f', 't', 'running', 0, 1, 1, NULL, '', '', NULL, '', '')",
        "INSERT INTO outlast.task VALUES ('default', 'b', 'r:2', 1, 1, 'gpu', 'render', NULL, 0, 0, 0, 0, 0, 0, '', '')",
        "DELETE FROM outlast.entry",
        "SELECT pg_stat_force_next_flush()",
    )
    found = findings(postgres_url)
    told = {check: one.text for check, one in found.items() if one.verdict == "warn"}
    assert told["blocked"] == "open runs: 2, of them blocked: 1"
    assert told["in_doubt"] == "effects in doubt: 1"
    assert told["requests"] == "requests in doubt: 1"
    assert told["workers"] == "live workers: none; nobody moves the open runs of greet"
    assert told["queues"].startswith("1 step waits for a worker of queue 'gpu' since 1970-01-01")
    assert told["dead_rows"].startswith("most dead rows: ")
    assert "updates of runs touched no index" in told["hot_updates"]
    assert all(one.hint for one in found.values() if one.verdict != "ok")


@pytest.mark.parametrize(
    ("phase", "verdict", "hint"), [("pre", "warn", "deploy"), ("post", "fail", "upgrade")]
)
def test_newer_schema(phase: str, verdict: str, hint: str, postgres_url: str) -> None:
    """One that is prepared for a newer version, and one that it has finished."""
    migrate_store(postgres_url, partitions=2)
    change(
        postgres_url,
        f"INSERT INTO outlast.migration (number, phase, subject, checksum) VALUES (999, '{phase}', 'x', 'y')",
    )
    found = findings(postgres_url)["schema"]
    assert (found.verdict, found.hint.split()[0]) == (verdict, hint)
    assert "tables of runs have 2 partitions" in found.text


def test_clocks_that_differ(postgres_url: str) -> None:
    """By how much is told."""
    migrate_store(postgres_url)

    class Behind(SystemClock):
        def now(self) -> Any:
            return super().now() - timedelta(seconds=90)

    found = {one.check: one for one in checkup.examine(read_setting(postgres_url), Behind())}
    assert found["clock"].verdict == "warn"
    assert "by 90." in found["clock"].text or "by 89." in found["clock"].text


def test_connections_in_use(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly all of them are warned of."""
    monkeypatch.setattr(checkup, "_FULL_SHARE", 0.0)
    found = findings(postgres_url)["connections"]
    assert found.verdict == "warn"
    assert "up to seven" in found.hint


def test_hints_that_do_not_arrive(
    postgres_url: str, pgbouncer: PgBouncer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through a pooler, or as nobody listens."""
    migrate_store(postgres_url)
    assert "looks alone" in findings(f"{postgres_url}&listen=off")["hints"].text
    database = str(psycopg.conninfo.conninfo_to_dict(postgres_url)["dbname"])
    through = pgbouncer.url(database, pooler="transaction", listen=pgbouncer.url(database))
    found = findings(through)
    assert found["hints"].verdict == "warn"
    assert "a pooler stands on its way" in found["hints"].text
    assert found["schema"].verdict == "ok"


def test_durability(
    postgres_url: str, pgbouncer: PgBouncer, role_url: Callable[[str], str]
) -> None:
    """What is off for a session is switched on for those of Outlast; behind a pooler it cannot be, and is refused."""
    url = role_url("lazy")
    role = str(psycopg.conninfo.conninfo_to_dict(url)["user"])
    migrate_store(postgres_url)
    change(
        postgres_url, f"ALTER ROLE {role} SET synchronous_commit = off", f"GRANT postgres TO {role}"
    )
    session = Session(read_setting(url))
    assert session.rows("SHOW synchronous_commit") == [("on",)]
    session.close()
    found = findings(url)["durability"]
    assert found.verdict == "warn"
    assert "synchronous_commit = off" in found.text
    risky = Session(read_setting(f"{url}&durability=risk"))
    assert risky.rows("SHOW synchronous_commit") == [("off",)]
    risky.close()


def test_a_server_that_loses_commits() -> None:
    """`fsync = off` fails, and is a warning where nothing of it matters."""
    with PostgresServer.opened({"fsync": "off"}) as server:
        assert findings(server.url())["durability"].verdict == "fail"
        with pytest.raises(StoreUnavailableError, match="fsync = off"):
            asyncio.run(_opened(server.url()))
        risky = server.url(durability="risk")
        asyncio.run(_opened(risky))
        assert findings(risky)["durability"].verdict == "warn"


async def _opened(url: str) -> None:
    await (await open_store(url)).close()


SECRET = "sw0rd-f1sh"


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://ann:{SECRET}@127.0.0.1:9/x",
        f"postgresql://ann@127.0.0.1:9/x?password={SECRET}",
        f"postgresql://127.0.0.1:9/x?user=ann&password=a%40{SECRET}",
        f"postgresql://127.0.0.1:9/x?user=ann&password=a@{SECRET}",
        f"postgresql://ann:{SECRET}/x@127.0.0.1:9/x",
        f"postgresql://ann:{SECRET}?x@127.0.0.1:9/x",
        f"postgresql://ann:{SECRET}@127.0.0.1:9,127.0.0.1:7/x?listen=postgresql%3A%2F%2Fann%3A{SECRET}%40127.0.0.1%3A9%2Fx",
        f"postgresql://ann:{SECRET}@127.0.0.1:9/x?pooler={SECRET[:0]}no",
        f"postgresql://ann:{SECRET}@[127.0.0.1:9/x",
        f"postgresql://ann:{SECRET}@127.0.0.1:9/x?no_such_option={SECRET}",
        f"mysql://ann:{SECRET}@127.0.0.1:9/x",
        f"mysql://127.0.0.1:9/x?password=a@{SECRET}",
    ],
)
def test_no_password_is_told(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """Neither by the doctor, nor by an error of any command or its causes, nor in the log."""
    caplog.set_level("DEBUG")
    said = [doctor(url, "--json"), doctor(url)]
    said.append(CliRunner(env={"OUTLAST_DATABASE_URL": url}).invoke(app, ["migrate"]))
    said.append(CliRunner(env={"OUTLAST_DATABASE_URL": url}).invoke(app, ["runs", "list"]))
    for one in said:
        assert one.exit_code == 1
        assert SECRET not in one.output
        assert one.exc_info is None or SECRET not in "".join(
            traceback.format_exception(*one.exc_info)
        )
    with pytest.raises(StoreUnavailableError) as caught:
        asyncio.run(_opened(url))
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert SECRET not in caplog.text
    assert SECRET not in without_password(url)
    with contextlib.suppress(StoreUnavailableError):
        read_setting(url)
        assert SECRET not in typed_url(url)


def test_a_command_that_is_shown_can_be_typed_again() -> None:
    """The URL stands in it as it was given, but for passwords."""
    kept = "postgresql://ann@db1,db2:5433/agents?schema=own&host=/tmp/x"
    assert typed_url(kept) == kept
    given = "postgresql://ann:b@db/agents?password=c&pooler=transaction&listen=postgresql%3A%2F%2Fann%3Ad%40db%2Fagents"
    assert (
        typed_url(given)
        == "postgresql://ann@db/agents?pooler=transaction&listen=postgresql%3A//ann%40db/agents"
    )
    assert read_setting(typed_url(given)).pooled
    assert typed_url("sqlite:///agent.db") == "sqlite:///agent.db"


def test_an_option_that_nobody_understands_is_named() -> None:
    """A slip is found without a search."""
    with pytest.raises(StoreUnavailableError, match="'scheme'"):
        read_setting("postgresql://ann@db/agents?scheme=own")


def test_the_place_is_told() -> None:
    """Host, port, database and schema."""
    url = "postgresql://ann:b@db.example:5433/agents?schema=own"
    assert store_place(url) == "postgresql://db.example:5433/agents (schema own)"
    assert repr(read_setting(url)) == f"PostgresSetting({store_place(url)!r})"
    assert without_password(url) == "postgresql://db.example:5433/agents"
