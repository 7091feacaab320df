"""Copies of a database file that are whole while others write it, and their way back.

A copy is marked as a backup: the first that opens it for work begins a new line of history, and holds everything back. Both are made under
another name, forced to the disk, and only then have their own: there is never half a one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from datetime import datetime
from pathlib import Path

import apsw

from outlast.clock import Clock
from outlast.errors import StoreCorruptError, StoreUnavailableError
from outlast.store.copied import Copied
from outlast.store.moment import LeaseClock, from_micros, to_micros
from outlast.store.sqlite import timeline
from outlast.store.sqlite.connection import (
    SQLiteOptions,
    absolute,
    check_place,
    open_reader,
    open_writer,
)
from outlast.store.sqlite.database import Database
from outlast.store.sqlite.failure import failure_of
from outlast.store.sqlite.lock import LockFolder
from outlast.store.sqlite.scope import Writing

_COMPANIONS = ("-wal", "-shm", "-journal")
_SUFFIX = ".partial"


def back_up(path: str, target: str, clock: Clock) -> Copied:
    """Copy the database at `path` to a new file, as it is at one moment; workers may go on.

    Raises:
        StoreUnavailableError: There is no database, or something stands at `target`, or one of them cannot be read or written.
        StoreCorruptError: The copy is damaged: so is the database.
    """
    source, place = absolute(path), absolute(target)
    check_place(source, SQLiteOptions(), create=False)
    check_place(place, SQLiteOptions(), create=True)
    _refuse_existing(place)
    with _told(source), _made(place) as partial:
        _copy(source, partial)
        with _opened(partial) as copy:
            copy.run("UPDATE store SET backed_up_at = ? WHERE id = 1", (to_micros(clock.now()),))
            held = _held_by(copy, place)
        _force(partial)
        try:
            os.link(partial, place)
        except FileExistsError:
            _refuse_existing(place)
        _force_folder(place)
    return _sized(held)


def put_back(source: str, path: str, clock: Clock, *, replace: bool) -> Copied:
    """Put a copy of a database file into the place of the database at `path`: a new line of history begins there, held back.

    Args:
        source: A backup, or any database file of Outlast that nobody has open.
        replace: Where a database stands there already: keep it under another name. Nobody may have it open.

    Raises:
        StoreUnavailableError: There is no such file, or it is none of Outlast; a database stands there and is not to be replaced, or is in
            use.
        StoreCorruptError: The file is damaged.
    """
    backup, place = absolute(source), absolute(path)
    check_place(backup, SQLiteOptions(), create=False)
    check_place(place, SQLiteOptions(), create=True)
    is_there = Path(place).exists()
    if is_there and not replace:
        raise StoreUnavailableError(
            f"there is a database at {place}",
            hint="restore to another name; or --replace, which keeps that one under another name",
        )
    if is_there:
        _refuse_used(place)
    with _told(backup), _made(place) as partial:
        _copy(backup, partial)
        with _opened(partial) as copy, copy.immediate():
            why = timeline.why_put_back(copy, {}) or f"{backup} was restored"
            now, instant = clock.now(), LeaseClock(clock).instant()
            timeline.begin(Writing(copy, now, instant), why)
            held, mark = _held_by(copy, place), timeline.standing(copy)
        _force(partial)
        kept = _put_aside(place, clock.now()) if is_there else ""
        Path(partial).replace(place)
        _force_folder(place)
        _remember(place, mark)
    return _sized(Copied(held.file, 0, *_rest(held), kept))


def _rest(held: Copied) -> tuple[str, int, int, datetime | None]:
    return held.timeline, held.runs, held.open_runs, held.until


def _refuse_existing(place: str) -> None:
    if Path(place).exists():
        raise StoreUnavailableError(
            f"there is a file at {place}, and no backup takes the place of another",
            hint="give a new name, as one with the date",
        )


def _refuse_used(place: str) -> None:
    """Refuse a database that anybody has open; one that is damaged cannot be asked."""
    live = LockFolder(place).living()
    if live:
        raise StoreUnavailableError(
            f"workers that live use {place}: {', '.join(live)}", hint="stop them first"
        )
    try:
        database = Database(place, apsw.SQLITE_OPEN_READWRITE, lambda _: False)
        with contextlib.closing(database):
            database.pragma("locking_mode", "exclusive")
            with database.immediate():
                pass
    except (apsw.BusyError, apsw.LockedError):
        raise StoreUnavailableError(
            f"somebody has {place} open", hint="stop its workers and clients; `lsof` says who it is"
        ) from None
    except apsw.Error:
        return


def _copy(source: str, partial: str) -> None:
    reader = open_reader(source, SQLiteOptions())
    with contextlib.closing(reader):
        # A file of something else is told from one of ours where the copy is opened.
        reader.copy_to(partial)


@contextlib.contextmanager
def _opened(partial: str) -> Generator[Database, None, None]:
    """Open a copy, bring it up to date, and leave it as one file."""
    database = open_writer(partial, SQLiteOptions())
    with contextlib.closing(database):
        problems = [str(row[0]) for row in database.rows("PRAGMA quick_check(5)")]
        if problems != ["ok"]:
            raise StoreCorruptError(
                f"the copy is damaged: {'; '.join(problems)}", hint="take an older backup"
            )
        yield database
        database.pragma("journal_mode", "delete")


def _held_by(copy: Database, place: str) -> Copied:
    runs, open_runs, until = copy.row(
        "SELECT count(*), ifnull(sum(open), 0), max(changed_at) FROM run"
    ) or (0, 0, None)
    name, _ = timeline.standing(copy)
    return Copied(place, 0, name, runs, open_runs, None if until is None else from_micros(until))


def _sized(held: Copied) -> Copied:
    size = Path(held.file).stat().st_size
    return Copied(held.file, size, *_rest(held), held.kept)


@contextlib.contextmanager
def _made(place: str) -> Generator[str, None, None]:
    """Give the name of a new file beside `place`, and leave nothing of that name."""
    partial = f"{place}{_SUFFIX}"
    _remove(partial)
    os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        yield partial
    finally:
        _remove(partial)


def _remove(partial: str) -> None:
    for suffix in ("", *_COMPANIONS):
        Path(f"{partial}{suffix}").unlink(missing_ok=True)


def _put_aside(place: str, now: datetime) -> str:
    """Give the database at `place` another name, with its log, and leave its file there until another one takes its place.

    Whoever dies in between leaves a file without its log: less than what was seen, and so one that was put back.
    """
    kept = f"{place}.before-{now:%Y%m%dT%H%M%S}"
    number = 0
    while Path(kept).exists():
        number += 1
        kept = f"{place}.before-{now:%Y%m%dT%H%M%S}-{number}"
    os.link(place, kept)
    for suffix in _COMPANIONS:
        if Path(f"{place}{suffix}").exists():
            Path(f"{place}{suffix}").replace(f"{kept}{suffix}")
    return kept


def _remember(place: str, mark: tuple[str, int]) -> None:
    """Note beside a database that was put there how far it is."""
    LockFolder(place).create()
    seen = timeline.Seen(place)
    seen.note(*mark)
    seen.close()


def _force(file: str) -> None:
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _force_folder(place: str) -> None:
    _force(str(Path(place).parent))


@contextlib.contextmanager
def _told(path: str) -> Generator[None, None, None]:
    try:
        yield
    except apsw.Error as error:
        raise failure_of(error, path) from error
    except OSError as error:
        raise StoreUnavailableError(
            f"{error.filename or path} cannot be read or written: {error.strerror}",
            hint="check the disk, and that this user may write there",
        ) from error
