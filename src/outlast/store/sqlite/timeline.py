"""The file's line of history: a mark in it grows with each commit, and the highest one is remembered beside the database.

A file that comes back with a lower mark was put back to an earlier state, and what was committed since is forgotten. What stands beside
it is written after the commit and never forced to the disk: when it is lost it is too low, which hides a restore and never invents one.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from outlast.store.moment import from_micros, to_micros
from outlast.store.restoration import EVERYBODY, RESTORATION, Restoration, moment_of, put_back
from outlast.store.sqlite import lease
from outlast.store.sqlite.database import Database
from outlast.store.sqlite.owned import control_version
from outlast.store.sqlite.scope import Writing

_STANDING = "SELECT timeline, mark, backed_up_at FROM store WHERE id = 1"
_GROW = "UPDATE store SET mark = mark + 1 WHERE id = 1 RETURNING timeline, mark"
_BEGIN = "UPDATE store SET timeline = ?, mark = mark + 1, backed_up_at = NULL WHERE id = 1"
_NEWEST = "SELECT max(changed_at) FROM run"
_HOLD = """
UPDATE run SET released = 0, restored_at = max(?1, changed_at), restored_until = min(?2, ifnull(restored_until, ?2)) WHERE open = 1
"""
_CONTROL = "SELECT body FROM control WHERE tenant = ? AND name = ?"
_PUT_CONTROL = "REPLACE INTO control (tenant, name, version, body) VALUES (?, ?, ?, ?)"

_LINE = 64
"""Bytes of a line beside the database: a timeline, a mark, spaces, a line feed."""
_MOST_BYTES = _LINE * 1000
"""Nobody restores a file so often: what is longer is not ours, and begun anew."""

BACKUP = "the file is a backup of {at:%Y-%m-%d %H:%M:%S} UTC"
BACKWARDS = "the file is older than what was seen here ({lost} commits are missing)"


class Seen:
    """The highest marks that were seen of the file at one place, by timeline.

    Args:
        database: The absolute path of the database.
    """

    def __init__(self, database: str) -> None:
        self._path = Path(f"{database}-workers") / "seen"
        self._descriptor: int | None = None
        self._places: dict[str, int] = {}

    @property
    def is_there(self) -> bool:
        """Whether anything was remembered here."""
        return self._path.exists()

    def marks(self) -> dict[str, int]:
        """Return the highest mark of each timeline. What cannot be read remembers nothing."""
        try:
            data = self._path.read_bytes()
        except OSError:
            return {}
        found: dict[str, int] = {}
        for place in range(0, min(len(data), _MOST_BYTES), _LINE):
            timeline, _, mark = data[place : place + _LINE].decode(errors="replace").partition(" ")
            self._places.setdefault(timeline, place)
            if mark.strip().isdecimal():
                found[timeline] = max(found.get(timeline, 0), int(mark))
        return found

    def note(self, timeline: str, mark: int) -> None:
        """Remember a mark; not at once on the disk. A disk that takes it not keeps nobody from working."""
        with contextlib.suppress(OSError):
            os.pwrite(self._file(), _line(timeline, mark), self._place(timeline))

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _file(self) -> int:
        if self._descriptor is None:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._descriptor = os.open(self._path, flags, 0o600)
        return self._descriptor

    def _place(self, timeline: str) -> int:
        if timeline not in self._places:
            self.marks()
        if timeline not in self._places:
            size = os.fstat(self._file()).st_size
            if size > _MOST_BYTES:
                os.ftruncate(self._file(), 0)
                self._places.clear()
                size = 0
            self._places[timeline] = size - size % _LINE
        return self._places[timeline]


def grow(database: Database) -> tuple[str, int] | None:
    """Let the mark grow within a commit; return timeline and mark."""
    row = database.row(_GROW)
    return None if row is None else (str(row[0]), int(row[1]))


def standing(database: Database) -> tuple[str, int]:
    """Return timeline and mark as they stand."""
    row = database.row(_STANDING)
    return ("", 0) if row is None else (str(row[0]), int(row[1]))


def why_put_back(database: Database, seen: dict[str, int]) -> str:
    """Return how it is known that the file was put back to an earlier state; empty when nothing says so.

    Args:
        seen: As it stood before the file was read: others may commit at any moment.
    """
    row = database.row(_STANDING)
    if row is None:
        return ""
    timeline, mark, backed_up_at = row
    if backed_up_at is not None:
        return BACKUP.format(at=from_micros(backed_up_at))
    lost = seen.get(str(timeline), 0) - mark
    return BACKWARDS.format(lost=lost) if lost > 0 else ""


def begin(writing: Writing, why: str) -> str:
    """Begin a new line of history within a transaction: everything that is open may have gone on, and that be forgotten.

    Returns: The new timeline.
    """
    database = writing.database
    former, _ = standing(database)
    timeline = secrets.token_hex(16)
    newest = database.value(_NEWEST)
    until = moment_of(None if newest is None else from_micros(newest), writing.now)
    restoration = Restoration(timeline, former, writing.now, until, why)
    for worker in lease.registered(database):
        # Whoever lives begins a new life, and finds in it that it is paused.
        lease.retire(writing, worker)
    database.run(_BEGIN, (timeline,))
    database.run(_HOLD, (writing.micros, to_micros(until)))
    key = (EVERYBODY, RESTORATION)
    body = put_back(database.value(_CONTROL, key), restoration)
    database.run(_PUT_CONTROL, (*key, control_version(writing, *key) + 1, body))
    return timeline


def _line(timeline: str, mark: int) -> bytes:
    return f"{timeline} {mark}".ljust(_LINE - 1).encode() + b"\n"
