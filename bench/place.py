"""Where a scenario keeps its runs: a fresh file, a fresh database, or memory."""

from __future__ import annotations

import contextlib
import itertools
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from postgres_server import PostgresServer

PLACES = ("sqlite", "postgres", "memory")


class Place(ABC):
    """Gives each scenario a store of its own.

    Attributes:
        name: Of the kind of store.
        server: The process of its server; None where it has none.
        folder: For files of a scenario.
    """

    name: str
    server: int | None = None

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._numbers = itertools.count()

    @abstractmethod
    def fresh(self) -> str:
        """Return the URL of an empty store."""

    def kept_bytes(self, url: str) -> int:
        """Return what the store takes, once nobody has it open."""
        return 0

    def counts(self) -> dict[str, int]:
        """Return what the server has counted since it started."""
        return {}


class Memory(Place):
    """Nothing is kept."""

    name = "memory"

    def fresh(self) -> str:
        """Return the URL of an empty store."""
        return "memory://"


class Sqlite(Place):
    """A file on the disk of the temporary files."""

    name = "sqlite"

    def fresh(self) -> str:
        """Return the URL of a file that is not there yet."""
        return f"sqlite:///{self.folder}/store-{next(self._numbers)}.db"

    def kept_bytes(self, url: str) -> int:
        """Return the size of the file."""
        return Path(url.removeprefix("sqlite:///")).stat().st_size


class Postgres(Place):
    """A database of a server on the same machine, with the server's own settings, over a Unix socket."""

    name = "postgres"

    def __init__(self, folder: Path, server: PostgresServer) -> None:
        super().__init__(folder)
        self._server = server
        self.server = server.pid

    def fresh(self) -> str:
        """Return the URL of an empty database."""
        name = f"store_{next(self._numbers)}"
        self._server.query(f"CREATE DATABASE {name}")
        return self._server.url(name)

    def kept_bytes(self, url: str) -> int:
        """Return what tables and indexes take, once they are vacuumed."""
        tables = (
            "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c"
            " WHERE c.relkind = 'r' AND c.relnamespace = 'outlast'::regnamespace"
        )
        name = url.partition("?")[0].rpartition("/")[2]
        self._server.query("VACUUM", name)
        return self._server.query(tables, name)[0][0]

    def fill(self, url: str, run: str, held: int, wanted: int) -> int:
        """Add copies of a run that has ended, from so many to so many; return how many there are then."""
        name = url.partition("?")[0].rpartition("/")[2]
        for table in ("run", "entry"):
            known = self._server.query(
                "SELECT quote_ident(column_name) FROM information_schema.columns"  # noqa: S608
                f" WHERE table_schema = 'outlast' AND table_name = '{table}' AND is_generated = 'NEVER'",
                name,
            )
            columns = [column for (column,) in known]
            values = ["'copy-' || n" if one == "run_id" else one for one in columns]
            self._server.query(
                f"INSERT INTO outlast.{table} ({', '.join(columns)}) SELECT {', '.join(values)}"  # noqa: S608
                f" FROM generate_series({held}, {wanted - 1}) AS n, outlast.{table} WHERE run_id = '{run}'",
                name,
            )
        self._server.query("VACUUM ANALYZE", name)
        return wanted

    def counts(self) -> dict[str, int]:
        """Return commits, bytes of the log, and syncs of it, of the whole server."""
        self._server.query("SELECT pg_stat_force_next_flush()")
        statement = (
            "SELECT (SELECT sum(xact_commit) FROM pg_stat_database)::bigint,"
            " (SELECT wal_bytes FROM pg_stat_wal)::bigint,"
            " (SELECT coalesce(sum(fsyncs), 0) FROM pg_stat_io WHERE object = 'wal')::bigint"
        )
        commits, wal, syncs = self._server.query(statement)[0]
        return {"commits": commits, "wal_bytes": wal, "syncs": syncs}


@contextlib.contextmanager
def opened(name: str, folder: Path | None = None) -> Iterator[Place]:
    """Give a place of this kind.

    Args:
        folder: On whose disk it is; by default that of the temporary files.
    """
    with tempfile.TemporaryDirectory(prefix="outlast-bench-", dir=folder) as made:
        if name == "postgres":
            settings = {"max_wal_size": "4GB"}
            with PostgresServer.opened(settings, parent=folder) as server:
                yield Postgres(Path(made), server)
        else:
            yield (Sqlite if name == "sqlite" else Memory)(Path(made))
