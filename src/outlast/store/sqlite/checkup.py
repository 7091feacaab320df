"""What can be found out about a database file without changing it: for `outlast doctor`.

Each look stands alone: one that fails is a finding of its own and keeps no other from being made.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

import apsw

from outlast.clock import Clock
from outlast.errors import DecodeError
from outlast.store.change import WorkerRow
from outlast.store.checkup import (
    blocked_finding,
    doubt_finding,
    history_finding,
    queue_findings,
    request_finding,
    schema_finding,
    worker_finding,
)
from outlast.store.finding import Finding
from outlast.store.migrate import read_migrations
from outlast.store.moment import Instant, LeaseClock, from_micros, to_micros
from outlast.store.restoration import EVERYBODY, RESTORATION, Releases
from outlast.store.sqlite import read, sticky, timeline
from outlast.store.sqlite.connection import (
    PACKAGE,
    SQLiteOptions,
    absolute,
    applied_to,
    open_reader,
)
from outlast.store.sqlite.damage import UNREADABLE, why_of
from outlast.store.sqlite.database import Database
from outlast.store.sqlite.failure import failure_of
from outlast.store.sqlite.filesystem import network_filesystem
from outlast.store.sqlite.lock import LockFolder

OLDEST_SQLITE = (3, 51, 3)
"""Earlier versions can lose commits when several connections write (the WAL-reset fault)."""

_LOW_BYTES = 1 << 30
_FULL_BYTES = 64 << 20
_CLOCK_SLACK = timedelta(seconds=2)
_IN_DOUBT = """
SELECT count(*) FROM run JOIN entry AS doubt USING (tenant, run_id, generation)
WHERE run.open = 1 AND doubt.kind = 'effect_in_doubt' AND NOT EXISTS (
    SELECT 1 FROM entry AS later
    WHERE later.tenant = doubt.tenant AND later.run_id = doubt.run_id AND later.generation = doubt.generation
      AND later.seq > doubt.seq AND later.operation = doubt.operation
      AND later.kind IN ('effect_completed', 'effect_failed', 'effect_cleared')
)
"""
_HAS_TABLE = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = ?)"
_REQUESTS_IN_DOUBT = """
SELECT tenant, count(*) FROM request WHERE state = 'running' AND held_until <= ? GROUP BY tenant ORDER BY tenant
"""
_HAS_COLUMN = "SELECT EXISTS (SELECT 1 FROM pragma_table_info('store') WHERE name = ?)"
_LATER = ((_HAS_TABLE, "task"), (_HAS_COLUMN, "mark"))
_OLDER = "SELECT count(*) FROM run WHERE open = 1 AND restored_at IS NOT NULL"
_WAITING = """
SELECT queue, count(*), min(since) FROM task WHERE worker IS NULL AND held = 0 AND due <= ? GROUP BY queue ORDER BY queue
"""
_MOVABLE = """
SELECT DISTINCT workflow FROM run WHERE open = 1 AND status NOT IN ('blocked', 'paused') ORDER BY 1
"""


def examine(path: str, clock: Clock) -> list[Finding]:
    """Return what is found about the database at `path`, which exists."""
    place = Path(absolute(path))
    looks: list[Callable[[], Iterator[Finding]]] = [
        lambda: sqlite_version(apsw.sqlite_lib_version()),
        lambda: permissions(place),
        lambda: free_disk(place),
        lambda: file_system(place),
        lambda: locks(place),
        lambda: _contents(place, clock),
    ]
    found: list[Finding] = []
    for look in looks:
        try:
            found += look()
        except OSError as error:
            found.append(Finding("file", "fail", f"{place}: {error}", "check its permissions"))
    return found


def sqlite_version(version: str) -> Iterator[Finding]:
    """Judge the version of the SQLite library that is in use."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", version))
    if numbers >= OLDEST_SQLITE:
        yield Finding("sqlite", "ok", f"SQLite {version}")
    else:
        oldest = ".".join(map(str, OLDEST_SQLITE))
        yield Finding(
            "sqlite",
            "fail",
            f"SQLite {version} can lose commits when several connections write",
            f"install apsw {oldest} or later, which brings its own SQLite",
        )


def permissions(place: Path) -> Iterator[Finding]:
    """Judge who may read and write the file, its companions and its folder."""
    files = [one for one in (place, _beside(place, "-wal"), _beside(place, "-shm")) if one.exists()]
    folder = place.parent
    for one in [*files, folder]:
        if not os.access(one, os.R_OK | os.W_OK):
            yield Finding(
                "permissions",
                "fail",
                f"this user may not read and write {one}",
                f"chown or chmod {one}",
            )
            return
    mode = place.stat().st_mode
    if (
        mode & stat.S_IWOTH
        or (folder.stat().st_mode & (stat.S_IWOTH | stat.S_ISVTX)) == stat.S_IWOTH
    ):
        text = f"every user of this machine may change {place}"
        yield Finding("permissions", "fail", text, f"chmod 600 {place}; chmod o-w {folder}")
    elif mode & (stat.S_IRGRP | stat.S_IROTH | stat.S_IWGRP):
        text = f"other users may read {place} (mode {stat.S_IMODE(mode):o}): it holds arguments and results"
        yield Finding(
            "permissions", "warn", text, f"chmod 600 {place}, where others must not read it"
        )
    else:
        yield Finding("permissions", "ok", f"only this user reads and writes {place}")


def free_disk(place: Path) -> Iterator[Finding]:
    """Judge the space that is left."""
    free = shutil.disk_usage(place.parent).free
    text = f"{free / (1 << 30):.1f} GiB free under {place.parent}"
    if free < _FULL_BYTES:
        yield Finding("disk", "fail", text, "free space: nothing can be written soon")
    elif free < _LOW_BYTES:
        yield Finding("disk", "warn", text, "free space before it is needed")
    else:
        yield Finding("disk", "ok", text)


def file_system(place: Path) -> Iterator[Finding]:
    """Judge whether SQLite's locks and shared memory hold where the file lies."""
    kind = network_filesystem(place)
    if kind:
        text = f"{place} lies on a network file system ({kind})"
        yield Finding("file_system", "fail", text, "move it to a local disk")
    else:
        yield Finding("file_system", "ok", "the file lies on a local disk")


def locks(place: Path) -> Iterator[Finding]:
    """Judge whether a lock of the operating system excludes, as the proof of a worker's life needs."""
    folder = _beside(place, "-workers")
    try:
        with tempfile.NamedTemporaryFile(dir=folder if folder.is_dir() else place.parent) as file:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            excluded = not _lockable(file.name)
    except OSError as error:
        yield Finding(
            "locks", "fail", f"no lock can be taken beside {place} ({error})", f"check {folder}"
        )
        return
    if excluded:
        yield Finding("locks", "ok", "locks hold: the death of a worker is noticed at once")
    else:
        text = f"two processes can hold one lock beside {place}"
        yield Finding("locks", "fail", text, "use a local disk whose flock() excludes")


def _contents(place: Path, clock: Clock) -> Iterator[Finding]:
    try:
        database = open_reader(str(place), SQLiteOptions())
        with contextlib.closing(database):
            looks: list[Callable[[], Iterator[Finding]]] = [
                lambda: _schema(database),
                lambda: _integrity(database),
                lambda: _clock(database, clock.now()),
                lambda: _runs(database),
            ]
            # A file of a former schema is brought up to date by the next worker, and can be judged then.
            if database.value(_HAS_TABLE, ("request",)):
                looks.append(lambda: _requests(database, clock.now()))
            if database.value(_HAS_TABLE, ("sticky",)):
                looks.append(lambda: _decisions(database))
            if all(database.value(ask, (name,)) for ask, name in _LATER):
                looks += [
                    lambda: _workers(database, LockFolder(str(place)), LeaseClock(clock).instant()),
                    lambda: _history(database, str(place)),
                    lambda: _queues(database, LockFolder(str(place)), clock),
                ]
            for look in looks:
                yield from _readable(look)
    except apsw.Error as error:
        failure = failure_of(error, str(place))
        yield Finding("file", "fail", failure.message, failure.hint)


def _readable(look: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from look()
    except UNREADABLE as error:
        text = f"the file holds a row that cannot be read ({why_of(error)})"
        hint = "stop every worker, keep the file with its -wal, and restore a backup"
        yield Finding("rows", "fail", text, hint)


def _schema(database: Database) -> Iterator[Finding]:
    yield schema_finding(read_migrations(PACKAGE), applied_to(database))


def _integrity(database: Database) -> Iterator[Finding]:
    problems = [str(row[0]) for row in database.rows("PRAGMA quick_check(5)")]
    if problems == ["ok"]:
        yield Finding("integrity", "ok", "quick_check finds nothing")
    else:
        hint = "stop every worker, keep the file with its -wal, and restore a backup"
        yield Finding("integrity", "fail", "; ".join(problems), hint)


def _clock(database: Database, now: datetime) -> Iterator[Finding]:
    last = database.value("SELECT max(changed_at) FROM run")
    ahead = from_micros(last) - now if last is not None else timedelta(0)
    if ahead > _CLOCK_SLACK:
        text = f"the newest change lies {ahead} in the future: the wall clock was set back, or was ahead before"
        yield Finding("clock", "warn", text, "check NTP; timers and deadlines come late by as much")
    else:
        yield Finding("clock", "ok", "no stored time lies in the future")


def _runs(database: Database) -> Iterator[Finding]:
    yield blocked_finding(
        dict(database.rows("SELECT status, count(*) FROM run WHERE open = 1 GROUP BY status"))
    )
    yield doubt_finding(database.value(_IN_DOUBT))


def _requests(database: Database, now: datetime) -> Iterator[Finding]:
    yield request_finding(
        [(row[0], row[1]) for row in database.rows(_REQUESTS_IN_DOUBT, (to_micros(now),))]
    )


def _decisions(database: Database) -> Iterator[Finding]:
    """Read every decision that sticks: of the effect of one that cannot be read, nothing begins that has to be asked for."""
    yield Finding("decisions", "ok", f"decisions that were made to stick: {sticky.count(database)}")


def _live(database: Database, held: LockFolder, now: Instant) -> list[WorkerRow]:
    return [one.row for one in read.workers(database, held, now) if one.live]


def _workers(database: Database, held: LockFolder, now: Instant) -> Iterator[Finding]:
    movable = [str(row[0]) for row in database.rows(_MOVABLE)]
    yield worker_finding(_live(database, held, now), movable)


def _history(database: Database, path: str) -> Iterator[Finding]:
    """Judge whether the file was put back to an earlier state."""
    if why := timeline.why_put_back(database, timeline.Seen(path).marks()):
        hint = "the next process that opens it holds everything back until `outlast release`; docs/backup.md says what to look up"
        yield Finding("timeline", "warn", f"{path} was put back to an earlier state: {why}", hint)
        return
    try:
        row = Releases.of(read.control(database, EVERYBODY, RESTORATION))
    except DecodeError as error:
        text = f"what was released after a restore cannot be read: {error}"
        yield Finding("timeline", "fail", text, "workers move nothing; restore a backup")
        return
    doubtful = 0 if row.trusted else database.value(_OLDER)
    yield history_finding(timeline.standing(database)[0], row, doubtful)


def _queues(database: Database, held: LockFolder, clock: Clock) -> Iterator[Finding]:
    rows = database.rows(_WAITING, (to_micros(clock.now()),))
    waiting = [(queue, count, from_micros(since)) for queue, count, since in rows]
    yield from queue_findings(_live(database, held, LeaseClock(clock).instant()), waiting)


def _lockable(name: str) -> bool:
    descriptor = os.open(name, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _beside(place: Path, suffix: str) -> Path:
    return place.with_name(place.name + suffix)
