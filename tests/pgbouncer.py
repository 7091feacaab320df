"""PgBouncer before a PostgreSQL server, as many installations have it: sessions are lent for one transaction.

    with PgBouncer.opened(server) as pooler:
        psycopg.connect(pooler.url("postgres"))

It listens on a Unix socket, in a folder that only the tests' account may enter, and asks for no password.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence

import psycopg
import pytest

from postgres_server import PATIENCE_SECONDS, PostgresServer, free_port, socket_url, until
from room import Room, as_account

_OFF_THE_PATH = os.pathsep.join(("/usr/sbin", "/usr/local/sbin", "/opt/homebrew/bin"))
"""Where systems put it that do not have these folders on everybody's path."""


def program() -> str | None:
    """Return where PgBouncer is, or None."""
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path=_OFF_THE_PATH)


def wanted() -> str:
    """Return where PgBouncer is; without it the test is left out, and fails where CI is set: there nothing is left out unseen."""
    found = program()
    if found is not None:
        return found
    why = "PgBouncer is not installed: `apt-get install pgbouncer`"
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)


class PgBouncer:
    """A pooler in a folder of its own.

    Attributes:
        folder: Holds its settings, its socket and its log.
        port: Part of the socket's name.
    """

    def __init__(self, server: PostgresServer, settings: Mapping[str, str]) -> None:
        self._program = wanted()
        self._server = server
        self._settings = settings
        self._users: Sequence[str] = ()
        self.port = free_port()
        self.room = Room.made()
        self.folder = self.room.folder
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    @contextlib.contextmanager
    def opened(
        cls,
        server: PostgresServer,
        settings: Mapping[str, object] | None = None,
        *,
        users: Sequence[str] = ("postgres",),
    ) -> Iterator[PgBouncer]:
        """Give a pooler that runs, and let nothing of it stay.

        Args:
            settings: Of its section `[pgbouncer]`, over those given here.
            users: Who may connect.
        """
        texts = {name: str(value) for name, value in (settings or {}).items()}
        pooler = cls(server, texts)
        pooler._users = users
        try:
            pooler._write()
            pooler.start()
            yield pooler
        finally:
            pooler.close()

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        command = [self._program, str(self.folder / "pgbouncer.ini")]
        nothing = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
        process = subprocess.Popen(
            command, **nothing, stderr=subprocess.DEVNULL, **as_account(self.folder)
        )
        until(lambda: self._answers(process), "the pooler is ready")
        self._process = process

    def kill(self) -> None:
        """End it by SIGKILL: every session through it breaks."""
        assert self._process is not None, "it does not run"
        self._process.kill()
        self._process.wait(PATIENCE_SECONDS)
        self._process = None
        # The next one would take the socket for that of a pooler that runs.
        (self.folder / f".s.PGSQL.{self.port}").unlink(missing_ok=True)
        (self.folder / "pid").unlink(missing_ok=True)

    def lead_to(self, server: PostgresServer) -> None:
        """Have it lead to another server from now on, as after a failover: its clients' connections stay."""
        assert self._process is not None, "it does not run"
        self._server = server
        self._write()
        self._process.send_signal(signal.SIGHUP)

        def leads_there() -> bool:
            try:
                with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
                    return connection.execute("SHOW port").fetchall() == [(str(server.port),)]
            except psycopg.OperationalError:
                return False

        until(leads_there, "the pooler leads to the other server")

    def close(self) -> None:
        """End it if it runs, and remove its folder."""
        self.room.close()
        if self._process is not None:
            self._process.wait(PATIENCE_SECONDS)

    def url(self, database: str, user: str = "postgres", **options: str) -> str:
        """Return how to connect through it."""
        return socket_url(self.folder, self.port, database, user, options)

    def _answers(self, process: subprocess.Popen[bytes]) -> bool:
        if process.poll() is not None:
            error = RuntimeError(f"{self._program} ended with {process.returncode}")
            error.add_note((self.folder / "log").read_text())
            raise error
        try:
            psycopg.connect(self.url("postgres")).close()
        except psycopg.OperationalError:
            return False
        return True

    def _write(self) -> None:
        (self.folder / "users").write_text("".join(f'"{user}" ""\n' for user in self._users))
        settings = {
            "auth_file": self.folder / "users",
            "auth_type": "trust",
            "listen_port": self.port,
            "logfile": self.folder / "log",
            "max_client_conn": 500,
            "pidfile": self.folder / "pid",
            "pool_mode": "transaction",
            "unix_socket_dir": self.folder,
            **self._settings,
        }
        lines = [
            "[databases]",
            f"* = host={self._server.folder} port={self._server.port}",
            "[pgbouncer]",
            *(f"{name} = {value}" for name, value in settings.items()),
        ]
        (self.folder / "pgbouncer.ini").write_text("\n".join(lines) + "\n")
