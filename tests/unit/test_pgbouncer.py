"""PgBouncer before the shared server: sessions are lent for a transaction, and where it is missing nobody is misled."""

from __future__ import annotations

import os

import psycopg
import pytest

import pgbouncer as module
from pgbouncer import PgBouncer
from postgres_server import PostgresServer


def test_sessions_are_lent_for_one_transaction(
    pgbouncer: PgBouncer, postgres_server: PostgresServer
) -> None:
    """What a client sets for its session may be met by another; a transaction keeps its session."""
    url = pgbouncer.url("postgres")
    with (
        psycopg.connect(url, autocommit=True) as first,
        psycopg.connect(url, autocommit=True) as second,
    ):
        ask = "SELECT pg_backend_pid()"
        (lent,) = first.execute(ask).fetchall()
        assert second.execute(ask).fetchall() == [lent]
        with first.transaction():
            (held,) = first.execute(ask).fetchall()
            (other,) = second.execute(ask).fetchall()
            assert first.execute(ask).fetchall() == [held] != [other]


def test_its_death_breaks_what_goes_through_it(
    pgbouncer: PgBouncer, postgres_server: PostgresServer
) -> None:
    """Killed and started again it serves on the same address, and the server has not noticed."""
    url = pgbouncer.url("postgres")
    with psycopg.connect(url, autocommit=True) as broken:
        broken.execute("SELECT 1")
        pgbouncer.kill()
        with pytest.raises(psycopg.OperationalError):
            broken.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)
    pgbouncer.start()
    with psycopg.connect(url) as again:
        assert again.execute("SELECT 1").fetchone() == (1,)
    assert postgres_server.query("SELECT 1") == [(1,)]


def test_settings_and_users_are_handed_on(postgres_server: PostgresServer) -> None:
    """A pool has the mode that was asked for, and strangers are refused; nothing of it stays."""
    with PgBouncer.opened(postgres_server, {"pool_mode": "session"}) as pooler:
        process = pooler._process
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(pooler.url("postgres", user="stranger"))
        with (
            psycopg.connect(pooler.url("postgres"), autocommit=True) as first,
            psycopg.connect(pooler.url("postgres"), autocommit=True) as second,
        ):
            ask = "SELECT pg_backend_pid()"
            assert first.execute(ask).fetchall() != second.execute(ask).fetchall()
    assert process is not None
    assert process.poll() is not None
    assert not pooler.folder.exists()


@pytest.mark.parametrize("ci", [True, False])
def test_without_it_ci_fails(ci: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is missing a test is left out, and fails in CI."""
    monkeypatch.setattr(module, "program", lambda: None)
    monkeypatch.setitem(os.environ, "CI", "true" if ci else "")
    outcome = pytest.fail.Exception if ci else pytest.skip.Exception
    with pytest.raises(outcome, match="apt-get install pgbouncer"):
        module.wanted()
