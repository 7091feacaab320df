"""One connection to one file, with the few ways in which statements are run.

SQLite's own cache keeps each statement prepared: the texts are constants, so a second run parses nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, TypeAlias

import apsw

Row: TypeAlias = tuple[Any, ...]

_MOST = (1 << 63) - 1
_LEAST = -(1 << 63)


class Database:
    """A connection. Used by one thread.

    Args:
        flags: SQLite's open flags.
        wait: Asked, with a count, whether to go on waiting for another connection's lock.
    """

    def __init__(self, path: str, flags: int, wait: Callable[[int], bool]) -> None:
        self._connection: Any = apsw.Connection(path, flags=flags, statementcachesize=256)
        self._execute: Any = self._connection.execute
        self._wait = wait
        self._connection.set_busy_handler(wait)

    def run(self, sql: str, values: Row = ()) -> None:
        """Run one statement, or several without values."""
        self._execute(sql, values or None)

    def run_each(self, sql: str, rows: Sequence[Row]) -> None:
        """Run a statement once for each of `rows`."""
        self._connection.executemany(sql, rows)

    def changed(self, sql: str, values: Row) -> int:
        """Run a statement and return how many rows it changed."""
        self._execute(sql, values)
        return int(self._connection.changes())

    def row(self, sql: str, values: Row = ()) -> Row | None:
        """Return the first row."""
        return self._asked(sql, values).fetchone()

    def rows(self, sql: str, values: Row = ()) -> list[Row]:
        """Return all rows."""
        return self._asked(sql, values).fetchall()

    @contextlib.contextmanager
    def each(self, sql: str, values: Row = ()) -> Generator[Iterator[Row], None, None]:
        """Give the rows one by one: those that are not asked for are not read."""
        cursor = self._connection.cursor()
        try:
            yield _asked(cursor.execute, sql, values)
        finally:
            cursor.close(True)

    def value(self, sql: str, values: Row = ()) -> Any:
        """Return the first column of the first row, or None."""
        row = self._asked(sql, values).fetchone()
        return None if row is None else row[0]

    def pragma(self, name: str, value: str | int | None = None) -> Any:
        """Return the value of a pragma, after setting it to `value` when one is given."""
        return (
            self._connection.pragma(name) if value is None else self._connection.pragma(name, value)
        )

    @property
    def is_read_only(self) -> bool:
        """Whether SQLite could open the file for reading only."""
        return bool(self._connection.readonly("main"))

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open: SQLite ends it by itself on errors of the disk."""
        return bool(self._connection.in_transaction)

    @contextlib.contextmanager
    def immediate(self) -> Generator[None, None, None]:
        """Run a write transaction; leave none behind, whatever happens."""
        self._execute("BEGIN IMMEDIATE")
        try:
            yield
            self._execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise

    @contextlib.contextmanager
    def savepoint(self) -> Generator[None, None, None]:
        """Undo what is written inside, and nothing else of the transaction, when it raises."""
        self._execute("SAVEPOINT part")
        try:
            yield
        except BaseException:
            if self._connection.in_transaction:
                with contextlib.suppress(apsw.Error):
                    self._execute("ROLLBACK TO part; RELEASE part")
            raise
        self._execute("RELEASE part")

    @contextlib.contextmanager
    def moment(self) -> Generator[None, None, None]:
        """Let everything that is read inside be of one moment."""
        self._execute("BEGIN")
        try:
            yield
        finally:
            self._roll_back()

    def checkpoint(self, mode: int) -> None:
        """Move the log into the database without waiting for anyone."""
        self._connection.set_busy_handler(None)
        try:
            self._connection.wal_checkpoint(mode=mode)
        finally:
            self._connection.set_busy_handler(self._wait)

    def copy_to(self, path: str) -> None:
        """Copy everything, as it is at one moment, into an empty file: in one go, so that no write of others begins it anew."""
        target = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            with target.backup("main", self._connection, "main") as backup:
                backup.step(-1)
        finally:
            target.close()

    def on_commit(self, told: Callable[[int], None]) -> None:
        """Call `told` with the length of the log in pages after each commit of this connection."""

        def hook(_connection: Any, _name: str, pages: int) -> int:
            told(pages)
            return apsw.SQLITE_OK

        self._connection.set_wal_hook(hook)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _asked(self, sql: str, values: Row) -> Any:
        return _asked(self._execute, sql, values)

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            with contextlib.suppress(apsw.Error):
                self._execute("ROLLBACK")


def _asked(execute: Any, sql: str, values: Row) -> Any:
    """Run a question. What is asked for by a value that no row can hold is not there, and no row is damaged because of it."""
    try:
        return execute(sql, values)
    except (UnicodeEncodeError, OverflowError):
        return execute(sql, tuple(map(_like, values)))


def _like(value: Any) -> Any:
    """Return what SQLite can be given in the place of `value`: equal to no text, or the nearest number that it knows."""
    if isinstance(value, str):
        return value if encodes(value) else value.encode(errors="surrogatepass")
    return max(_LEAST, min(value, _MOST)) if isinstance(value, int) else value


def encodes(text: str) -> bool:
    """Return whether a row can hold the text: it has no lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
