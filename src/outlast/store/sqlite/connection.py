"""Opening the file: one connection that writes, one that reads, and every reason to refuse, before a byte is changed."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import apsw
from msgspec import Struct

from outlast.errors import StoreUnavailableError
from outlast.store.migrate import (
    AT_OPENING,
    AppliedMigration,
    Migration,
    migrate,
    read_migrations,
)
from outlast.store.sqlite.database import Database
from outlast.store.sqlite.failure import NETWORK_VARIABLE, foreign, network, read_only
from outlast.store.sqlite.filesystem import network_filesystem

APPLICATION_ID = 0x4F55_544C
"""`OUTL`: stands in the header of the file, so that nothing else is taken for a store."""

PACKAGE = "outlast.store.sqlite"
_BUSY_STEP_SECONDS = 0.005
_SETTINGS = """
PRAGMA synchronous = FULL;
PRAGMA wal_autocheckpoint = 0;
PRAGMA trusted_schema = OFF;
PRAGMA cell_size_check = ON;
PRAGMA temp_store = MEMORY;
PRAGMA cache_size = -16000;
"""


class SQLiteOptions(Struct, frozen=True):
    """How a file is used.

    Args:
        busy_timeout: How long to wait for another process's write.
        poll: How often to look for commits of other processes, while anyone has subscribed.
        network: Open a file on a network file system. Its locks do not hold there.
        check_only: Apply no migration; fail when one is missing.
    """

    busy_timeout: timedelta = timedelta(seconds=30)
    poll: timedelta = timedelta(milliseconds=50)
    network: bool = False
    check_only: bool = False


def absolute(path: str | os.PathLike[str]) -> str:
    """Return the absolute path of a database file.

    Raises:
        StoreUnavailableError: The path names no file.
    """
    text = os.fspath(path)
    if not text or text == ":memory:":
        raise StoreUnavailableError(
            f"{text!r} is no file",
            hint="for a store that keeps nothing write memory://, else name a file",
        )
    return str(Path(text).resolve())


def check_place(path: str, options: SQLiteOptions, *, create: bool) -> None:
    """Refuse a place where no database can or should be.

    Raises:
        StoreUnavailableError: The folder or the file is missing, or lies on a network file system.
    """
    file = Path(path)
    if not file.parent.is_dir():
        raise StoreUnavailableError(
            f"there is no folder {file.parent} for {path}", hint="create the folder first"
        )
    if file.is_dir():
        raise StoreUnavailableError(f"{path} is a folder", hint="name a file in it")
    if not create and not file.exists():
        raise StoreUnavailableError(
            f"there is no database at {path}",
            hint="check the path. `outlast migrate`, `outlast worker MODULE` and outlast.open() create it: run one of them first, and try again; or "
            "let the client do so, with outlast.connect(…, create=True)",
        )
    kind = network_filesystem(file)
    if kind and not options.network and os.environ.get(NETWORK_VARIABLE) != "1":
        raise network(path, kind)


def open_writer(
    path: str,
    options: SQLiteOptions,
    *,
    phases: Sequence[str] = AT_OPENING,
    before: Callable[[Migration], None] = lambda _: None,
) -> Database:
    """Open the connection that writes, with the schema brought up to date.

    Args:
        phases: Which migrations are applied; a new file gets all.
        before: Told of each of them.

    Raises:
        apsw.Error: SQLite refused.
        StoreError: The file belongs to something else, cannot be written, or was written by a newer version.
    """
    _create_private(path)
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    database = Database(path, flags, patience(options.busy_timeout))
    try:
        if database.is_read_only:
            raise read_only(path, "the file was opened read-only")
        check_owner(database, path)
        _use_wal(database, path, options.busy_timeout)
        database.run(_SETTINGS)
        migrate(
            _Schema(database),
            read_migrations(PACKAGE),
            path,
            check_only=options.check_only,
            phases=phases,
            before=before,
        )
    except BaseException:
        database.close()
        raise
    return database


def _create_private(path: str) -> None:
    """Make a new file readable by this user alone; SQLite gives its log the same mode. An existing file is left as it is."""
    with contextlib.suppress(OSError):  # SQLite says better what is wrong with the place
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def open_reader(path: str, options: SQLiteOptions) -> Database:
    """Open the connection that only reads."""
    database = Database(path, apsw.SQLITE_OPEN_READONLY, patience(options.busy_timeout))
    database.run(_SETTINGS)
    return database


def patience(timeout: timedelta) -> Callable[[int], bool]:
    """Return a busy handler that asks again in short, even steps.

    SQLite's own waits grow to a tenth of a second, so that a process that writes without pause would starve the others.
    """
    tries = max(1, int(timeout.total_seconds() / _BUSY_STEP_SECONDS))

    def wait(count: int) -> bool:
        if count >= tries:
            return False
        time.sleep(_BUSY_STEP_SECONDS)
        return True

    return wait


def check_owner(database: Database, path: str) -> None:
    """Refuse a file of somebody else; an empty one is everybody's."""
    # In one moment: between two reads another process may have made an empty file one of ours.
    with database.moment():
        application_id = database.pragma("application_id")
        empty = database.value("SELECT count(*) FROM sqlite_schema") == 0
    if application_id == APPLICATION_ID:
        return
    if application_id != 0 or not empty:
        raise foreign(path, application_id)


def _use_wal(database: Database, path: str, timeout: timedelta) -> None:
    # Two processes that convert a new file at once are told "locked" without the busy handler being asked.
    wait = patience(timeout)
    for count in range(1_000_000):
        try:
            mode = database.pragma("journal_mode", "wal")
        except apsw.BusyError:
            if not wait(count):
                raise
            continue
        if mode != "wal":
            raise StoreUnavailableError(
                f"{path} cannot be used in WAL mode here (SQLite stays in {mode})",
                hint="the file system offers no shared memory; use a local disk",
            )
        return


def applied_to(database: Database) -> dict[int, AppliedMigration]:
    """Return what migrations a file has, by number."""
    if database.value("SELECT 1 FROM sqlite_schema WHERE name = 'migration'") is None:
        return {}
    rows = database.rows("SELECT number, phase, subject, checksum FROM migration")
    return {number: AppliedMigration(*rest) for number, *rest in rows}


class _Schema:
    """The database as the migration runner sees it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def exclusively(self) -> contextlib.AbstractContextManager[None]:
        return self._database.immediate()

    def applied(self) -> Mapping[int, AppliedMigration]:
        return applied_to(self._database)

    def apply(self, migration: Migration) -> None:
        self._database.run(
            "CREATE TABLE IF NOT EXISTS migration (number INTEGER PRIMARY KEY, phase TEXT NOT NULL,"
            " subject TEXT NOT NULL, checksum TEXT NOT NULL, applied_at TEXT NOT NULL DEFAULT current_timestamp) STRICT"
        )
        self._database.run(f"PRAGMA application_id = {APPLICATION_ID}")
        self._database.run(migration.sql)
        self._database.run(
            "INSERT INTO migration (number, phase, subject, checksum) VALUES (?, ?, ?, ?)",
            (migration.number, migration.phase, migration.subject, migration.checksum),
        )
