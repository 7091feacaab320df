"""A real PostgreSQL server for tests: its own folder, a Unix socket and a port of the loopback, and nothing left at the end.

    with PostgresServer.opened() as server:
        with server.standby() as standby:
            server.kill()
            standby.promote()

The socket is in a folder that only the tests' account may enter, and needs no password; the port needs one. Commits are as durable as
PostgreSQL's defaults make them, unless a test's own settings say otherwise.
"""

from __future__ import annotations

import contextlib
import json
import random
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlencode

import psutil
import psycopg

from postgres_binaries import Binaries
from room import Room, as_account
from room_keeper import left_after

PATIENCE_SECONDS = 60
"""For what takes well under a second on an idle machine."""

_SUPERUSER = "postgres"

_STOPS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}

_DEFAULTS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "200",
    "jit": "off",
    # Inside the folder: what is killed leaves nothing in /dev/shm.
    "dynamic_shared_memory_type": "mmap",
}


def until(question: Callable[[], object], what: str) -> None:
    """Wait for something that a server does by itself.

    Raises:
        AssertionError: It took too long.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not question():
        assert time.monotonic() < deadline, f"in {PATIENCE_SECONDS} s: {what}"
        time.sleep(0.01)


def free_port() -> int:
    """Return a port that nobody listens on: below those that systems give to outgoing connections, so that it stays free over a restart."""
    chance = random.SystemRandom()  # a seed would give the same port to every process of a run
    while True:
        port = chance.randrange(15000, 30000)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


class PostgresServer:
    """A cluster in a folder, whose server is started and ended at will.

    Attributes:
        folder: Holds the data, the socket and the log, and belongs to this server alone.
        port: Part of the socket's name, too.
        password: Of the superuser, for the port.
        settings: What is written into its configuration, over this module's defaults.
    """

    def __init__(self, room: Room, binaries: Binaries, port: int, password: str) -> None:
        self.folder = room.folder
        self.data = room.folder / "data"
        self.log = room.folder / "log"
        self.port = port
        self.password = password
        self.settings: dict[str, str] = {}
        self.binaries = binaries
        self.room = room
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def made(
        cls,
        settings: Mapping[str, object] | None = None,
        *,
        parent: Path | None = None,
        password: str | None = None,
    ) -> PostgresServer:
        """Make a folder for a server, without data: it is not started.

        Args:
            parent: Where the folder is made, if not among the temporary files.
            password: Of the superuser, if not a new one.
        """
        room = Room.made(parent)
        try:
            binaries = Binaries.found().reachable(room.folder)
            server = cls(room, binaries, free_port(), password or secrets.token_hex(16))
        except BaseException:
            room.close()
            raise
        server.settings = {name: str(value) for name, value in (settings or {}).items()}
        return server

    @classmethod
    def begun(
        cls, settings: Mapping[str, object] | None = None, *, parent: Path | None = None
    ) -> PostgresServer:
        """Make an empty cluster, and start it."""
        server = cls.made(settings, parent=parent)
        try:
            server._initialise()
            server.start()
        except BaseException:
            server.close()
            raise
        return server

    @classmethod
    @contextlib.contextmanager
    def opened(
        cls, settings: Mapping[str, object] | None = None, *, parent: Path | None = None
    ) -> Iterator[PostgresServer]:
        """Give a server with an empty cluster, and let nothing of it stay."""
        with cls.begun(settings, parent=parent) as server:
            yield server

    @classmethod
    def joined(cls, folder: Path) -> PostgresServer:
        """Use a server that another process has made, as `tell()` says.

        Raises:
            FileNotFoundError: It is gone.
            BlockingIOError: It is about to go.
        """
        room = Room.entered(folder)
        known = json.loads((folder / "server.json").read_text())
        return cls(room, Binaries(Path(known["binaries"])), known["port"], known["password"])

    def tell(self) -> None:
        """Write down what `joined()` reads."""
        known = {
            "binaries": str(self.binaries.folder),
            "port": self.port,
            "password": self.password,
        }
        (self.folder / "server.json").write_text(json.dumps(known))

    def __enter__(self) -> PostgresServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Start and end.

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        try:
            self._launch()
        except RuntimeError as error:
            # Another program has taken the port between its choice and now.
            if "Address already in use" not in str(error.__notes__):
                raise
            self.port = free_port()
            self._launch()

    def stop(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        """End it, and wait for that.

        Args:
            mode: `smart` waits for clients to leave, `fast` ends their sessions, `immediate` leaves recovery to the next start.
        """
        assert self._process is not None, "it does not run, or another process has started it"
        self._process.send_signal(_STOPS[mode])
        self._process.wait(PATIENCE_SECONDS)
        self._process = None

    def restart(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        """End it and start it again, on the same port."""
        self.stop(mode)
        self.start()

    def kill(self) -> None:
        """End all its processes by SIGKILL, as one blow."""
        assert self._process is not None, "it does not run, or another process has started it"
        processes = self.processes()
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        assert not left_after(processes, PATIENCE_SECONDS)
        # Whoever is not asked about still counts as alive for the next server of this folder.
        self._process.wait(PATIENCE_SECONDS)
        self._process = None

    def close(self) -> None:
        """End it if it runs, and remove its folder."""
        self.room.close()
        if self._process is not None:
            self._process.wait(PATIENCE_SECONDS)

    def leave(self) -> None:
        """Use it no more; it ends when nobody does."""
        self.room.leave()
        if self._process is not None:
            self._process.returncode = 0  # it may live on: that is no oversight to warn of

    # What it is.

    @property
    def pid(self) -> int:
        """Of the process that the others are children of."""
        return int(self._told()[0])

    @property
    def version(self) -> int:
        """The major version."""
        return self.binaries.version

    def processes(self) -> list[psutil.Process]:
        """Return its processes, their parent first and stopped while the others are counted, so that none is born meanwhile."""
        parent = psutil.Process(self.pid)
        parent.suspend()
        try:
            return [parent, *parent.children(recursive=True)]
        finally:
            parent.resume()

    def controldata(self) -> dict[str, str]:
        """Return what `pg_controldata` says, by its own names."""
        lines = self._run("pg_controldata", str(self.data)).splitlines()
        return {name: value.strip() for name, value in (line.split(":", 1) for line in lines)}

    # Connections.

    def url(
        self,
        database: str = _SUPERUSER,
        user: str = _SUPERUSER,
        *,
        password: str | None = None,
        tcp: bool = False,
        **options: str,
    ) -> str:
        """Return how to connect.

        Args:
            password: Needed over the port, for anybody but the superuser.
            tcp: Over the port, not the socket.
            options: Further ones of libpq.
        """
        if not tcp:
            return socket_url(self.folder, self.port, database, user, options)
        return failover_url(self, database=database, user=user, password=password, **options)

    def connect(self, database: str = _SUPERUSER, **options: Any) -> psycopg.Connection[Any]:
        """Return a superuser's connection that commits each statement."""
        return psycopg.connect(self.url(database), **{"autocommit": True, **options})

    def query(self, statement: str, database: str = _SUPERUSER) -> list[tuple[Any, ...]]:
        """Return the rows of one statement."""
        with self.connect(database) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def terminate_backends(
        self, database: str | None = None, connection: psycopg.Connection[Any] | None = None
    ) -> int:
        """End all clients' sessions by `pg_terminate_backend()`, or those in one database; return how many.

        Args:
            connection: By which to do it, if not by a new one.
        """
        statement = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            " AND datname = coalesce(%s, datname)"
        )
        with contextlib.ExitStack() as stack:
            used = connection or stack.enter_context(self.connect())
            return len(used.execute(statement, [database]).fetchall())

    # Settings and replication.

    def configure(self, **settings: object) -> None:
        """Change settings: those that need no restart count as soon as the server's processes have seen them."""
        self.settings.update({name: str(value) for name, value in settings.items()})
        self._write_settings()
        psutil.Process(self.pid).send_signal(signal.SIGHUP)

    def standby(
        self,
        name: str = "standby",
        *,
        synchronous: bool = True,
        settings: Mapping[str, object] | None = None,
    ) -> PostgresServer:
        """Return another server that follows this one from a slot of its own.

        Args:
            name: Its `application_name` and the name of its slot: lower-case letters, digits and `_`.
            synchronous: A commit here then waits for the standby, and this returns once that holds.
        """
        other = PostgresServer.made(settings, password=self.password)
        try:
            source = (
                f"host={self.folder} port={self.port} user={_SUPERUSER} application_name={name}"
            )
            backup = ["-D", str(other.data), "-d", source, "-R", "-X", "stream", "-C", "-S", name]
            other._run("pg_basebackup", *backup, "-c", "fast", "--no-sync")
            other.start()
            if synchronous:
                names = self.settings.get("synchronous_standby_names")
                self.configure(synchronous_standby_names=f"{names}, {name}" if names else name)
            wanted = "sync_state IN ('sync', 'potential')" if synchronous else "true"
            found = (
                "SELECT 1 FROM pg_stat_replication"
                f" WHERE application_name = '{name}' AND state = 'streaming' AND {wanted}"
            )
            until(lambda: self.query(found), f"{name} follows")
        except BaseException:
            other.close()
            raise
        return other

    def promote(self) -> None:
        """Make a standby a primary, and wait until it takes writes."""
        assert self.query("SELECT pg_promote(true, 60)") == [(True,)]

    # Inside.

    def _initialise(self) -> None:
        """Make an empty cluster. Where it can be, it sorts by the rules of a language: no test shall rest on the order of bytes."""
        secret = self.folder / "password"
        secret.write_text(self.password)
        secret.chmod(0o644)  # in a folder that nobody else may enter
        options = ["-U", _SUPERUSER, "-E", "UTF8", "--locale=C", "--no-sync", f"--pwfile={secret}"]
        if self.binaries.has_icu:
            options += ["--locale-provider=icu", "--icu-locale=en-US"]
        options += ["--auth-local=trust", "--auth-host=scram-sha-256"]
        self._run("initdb", "-D", str(self.data), *options)

    def _write_settings(self) -> None:
        places = {"port": str(self.port), "unix_socket_directories": str(self.folder)}
        settings = {**_DEFAULTS, **places, **self.settings}
        quoted = {name: value.replace("'", "''") for name, value in settings.items()}
        text = "".join(f"{name} = '{value}'\n" for name, value in quoted.items())
        (self.data / "tests.conf").write_text(text)
        (self.data / "tests.conf").chmod(0o644)
        main = self.data / "postgresql.conf"
        if "include 'tests.conf'" not in main.read_text():
            with main.open("a") as file:
                file.write("\ninclude 'tests.conf'\n")

    def _told(self) -> list[str]:
        """Return the lines of the file by which a server says who it is."""
        try:
            return [
                line.strip() for line in (self.data / "postmaster.pid").read_text().splitlines()
            ]
        except FileNotFoundError:
            return []

    def _launch(self) -> None:
        self._write_settings()
        before = self._told()
        with self.log.open("ab") as log:
            begin = log.tell()
            command = [self.binaries.path("postgres"), "-D", str(self.data)]
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            process = subprocess.Popen(command, **streams, **as_account(self.folder))

        def is_ready() -> bool:
            told = self._told()
            if process.poll() is not None:
                error = RuntimeError(f"the server in {self.data} ended with {process.returncode}")
                error.add_note(self.log.read_bytes()[begin:].decode(errors="replace"))
                raise error
            return told != before and told[7:8] == ["ready"]

        until(is_ready, "the server is ready")
        self._process = process

    def _run(self, name: str, *arguments: str) -> str:
        """Run one of its programs; return what it prints. A file takes it, since a server keeps what it inherits."""
        output = self.folder / "output"
        with output.open("w+b") as file:
            done = subprocess.run(
                [self.binaries.path(name), *arguments],
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                **as_account(self.folder),
            )
            file.seek(0)
            told = file.read().decode(errors="replace")
        if done.returncode:
            raise RuntimeError(f"{name} {' '.join(arguments)}: exit code {done.returncode}\n{told}")
        return told


def socket_url(
    folder: Path, port: int, database: str, user: str, options: Mapping[str, str]
) -> str:
    """Return how to connect over a Unix socket, which needs no password."""
    query = urlencode({"host": folder, "port": port, **options}, safe="/")
    return f"postgresql://{quote(user, safe='')}@/{quote(database, safe='')}?{query}"


def failover_url(
    *servers: PostgresServer,
    database: str = _SUPERUSER,
    user: str = _SUPERUSER,
    password: str | None = None,
    **options: str,
) -> str:
    """Return how to connect over the ports to the first of some servers that fits, such as with `target_session_attrs="read-write"`."""
    places = ",".join(f"127.0.0.1:{server.port}" for server in servers)
    who = f"{quote(user, safe='')}:{password or servers[0].password}"
    query = f"?{urlencode(options, safe='/')}" if options else ""
    return f"postgresql://{who}@{places}/{quote(database, safe='')}{query}"
