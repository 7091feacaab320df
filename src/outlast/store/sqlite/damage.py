"""Rows that cannot be read: each is its own run's trouble, skipped and said once where others are read with it.

Text that is not UTF-8 raises while SQLite's row is made a tuple, before its key is known; the cursor stands behind that row then,
so that the next one can be read all the same.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

import msgspec

from outlast.errors import DecodeError, StoreCorruptError
from outlast.store.change import RunKey
from outlast.store.sqlite.database import Database, Row, encodes

T = TypeVar("T")

logger = logging.getLogger("outlast.store")

UNREADABLE = (
    DecodeError,
    StoreCorruptError,
    ArithmeticError,
    RecursionError,
    TypeError,
    ValueError,
    msgspec.MsgspecError,
)
"""What values raise that nobody wrote, and none that is asked for (`Database` sees to those): text that is not UTF-8, times beyond the calendar, JSON of another shape."""

RUN = ("tenant", "run_id")
WORKER_ID = ("worker",)
_SHOWN = 200
_HINT = "keep the file with its -wal, and restore a backup or mend the row; `outlast doctor` checks"


def decoded(
    database: Database,
    sql: str,
    values: Row,
    decode: Callable[[Row], T],
    lost: tuple[tuple[str, ...], str],
) -> Generator[T | None, None, None]:
    """Yield each row decoded; None, said once, for one that cannot be read.

    Args:
        lost: Columns of the row's key, and what becomes of one that cannot be read, with `%s` for the key.
    """
    with database.each(sql, values) as rows:
        place = 0
        while True:
            try:
                for row in rows:
                    yield decode(row)
                    place += 1
            except UNREADABLE as error:
                say(key_at(database, sql, values, lost[0], place), lost[1], error)
                yield None
                place += 1
            else:
                return


def readable(
    database: Database,
    sql: str,
    values: Row,
    decode: Callable[[Row], T],
    lost: tuple[tuple[str, ...], str],
    limit: int,
) -> list[T]:
    """Return up to so many rows that can be read; others in the place of those that cannot.

    Args:
        sql: Ends with `LIMIT`, whose value comes last.
        lost: See `decoded`.
    """
    unread = 0
    while True:
        rows = list(decoded(database, sql, (*values, limit + unread), decode, lost))
        found = [one for one in rows if one is not None]
        if len(found) >= limit or len(rows) < limit + unread:
            return found[:limit]
        unread = len(rows) - len(found)


def paged(
    database: Database,
    sql: str,
    values: Row,
    first: int,
    decode: Callable[[Row], T],
    lost: tuple[tuple[str, ...], str],
) -> Generator[T, None, None]:
    """Yield each row that can be read, page by page: no statement stays open between two rows, however many questions go on at once.

    Args:
        sql: Ends with `LIMIT` and `OFFSET`, whose values come last.
        first: So many rows are read when the first is asked for; then twice as many each time.
    """
    size, start = first, 0
    while True:
        page = list(decoded(database, sql, (*values, size, start), decode, lost))
        yield from (one for one in page if one is not None)
        if len(page) < size:
            return
        size, start = 2 * size, start + size


def names_json(names: Iterable[str]) -> str:
    """Return the names as a JSON array for SQL to look through; one that no row can hold is left out."""
    return msgspec.json.encode([name for name in sorted(names) if encodes(name)]).decode()


def key_at(database: Database, sql: str, values: Row, key: tuple[str, ...], place: int) -> str:
    """Return the key of the row at `place` of an answer, for people; a row that cannot be read may have one that can."""
    columns = ", ".join(f"CAST({column} AS BLOB)" for column in key)
    row = database.row(
        f"SELECT {columns} FROM ({sql}) LIMIT 1 OFFSET ?",  # noqa: S608 - constants of this package
        (*values, place),
    )
    if row is None:
        return "?"
    parts = [part.decode(errors="backslashreplace") for part in row]
    return str(RunKey(*parts)) if key == RUN else parts[-1]


def say(key: str, lost: str, error: BaseException) -> None:
    """Log, once for each row, what becomes of it and why."""
    _say_once(_shown(key), lost, why_of(error))


@functools.lru_cache(maxsize=1024)
def _say_once(key: str, lost: str, why: str) -> None:
    logger.warning("%s: its row cannot be read (%s)", lost % key, why)


def why_of(error: BaseException) -> str:
    """Return why a row cannot be read, in one short line."""
    text = error.message if isinstance(error, StoreCorruptError) else str(error)
    return _shown(text or type(error).__name__)


@contextlib.contextmanager
def naming(place: str, run: str | None = None) -> Generator[None, None, None]:
    """Tell what cannot be read inside as `StoreCorruptError`.

    Args:
        place: What holds it, as "the run's row".
    """
    try:
        yield
    except (StoreCorruptError, DecodeError):
        raise
    except UNREADABLE as error:
        raise StoreCorruptError(
            f"{place} cannot be read ({why_of(error)})", run=run, hint=_HINT
        ) from error


def _shown(text: str) -> str:
    text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return text if text.isprintable() else ascii(text)
