"""The one server of a test run, and an empty database of it for each test that asks.

The workers of pytest-xdist share it: the first that wants it starts it, and it ends when the last has left. It syncs what it commits,
as any server; its folder is in memory where the machine has room for that, so that this costs nothing. Measured on two busy cores: a
database takes 10 ms there and 40 to 150 ms on a disk, and the server 0.7 s.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from postgres_server import PostgresServer, until

_MEMORY = Path("/dev/shm")

_ROOM_BYTES = 2**30
"""What the folder may come to, and has to be free: segments of the log, and a database of 8 MB for each worker."""

_SETTINGS = {"max_wal_size": "256MB"}


def shared_server(directory: Path) -> PostgresServer:
    """Return the server of a run, started if it does not run.

    Args:
        directory: A folder that the processes of the run have in common.
    """
    note = directory / "postgres"
    with (directory / "postgres.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            return PostgresServer.joined(Path(note.read_text()))
        except (FileNotFoundError, BlockingIOError):
            server = PostgresServer.begun(_SETTINGS, parent=memory_folder())
            server.tell()
            note.write_text(str(server.folder))
            return server


def memory_folder() -> Path | None:
    """Return where files are kept in memory, if there is enough of it."""
    if not os.access(_MEMORY, os.W_OK):
        return None
    return _MEMORY if shutil.disk_usage(_MEMORY).free > _ROOM_BYTES else None


class Databases:
    """Makes databases, by one connection that it keeps."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self._connection = server.connect()
        self._numbers = itertools.count()

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """Give the URL of an empty database, which is dropped, whoever still uses it."""
        name = f"test_{os.getpid()}_{next(self._numbers)}"
        self._connection.execute(f"CREATE DATABASE {name} TEMPLATE template0".encode())
        try:
            yield self.server.url(name)
        finally:
            # To drop it while sessions end costs 100 ms.
            self.server.terminate_backends(name, self._connection)
            used = f"SELECT 1 FROM pg_stat_activity WHERE datname = '{name}'".encode()
            until(lambda: not self._connection.execute(used).fetchall(), f"{name} is left")
            self._connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
