"""Moving the write-ahead log into the database: done by exactly one connection of all processes on a file.

Whoever holds the checkpointer's lock does it: gently while there is work, completely when there is none, so that the log does
not grow for ever behind readers.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import apsw

from outlast.store.sqlite.database import Database
from outlast.store.sqlite.lock import LockFolder

_PAGES = 1000
"""As SQLite's own automatic checkpoint."""
_BYTES = _PAGES * 4096
_IDLE_SECONDS = 1.0


class Checkpointer:
    """Checkpoints over the writing connection, on its thread.

    Args:
        log: Path of the `-wal` file.
    """

    def __init__(self, database: Database, locks: LockFolder, log: str) -> None:
        self._database = database
        self._locks = locks
        self._log = Path(log)
        self._pages = 0
        self._size = 0
        self._looked = time.monotonic()
        database.on_commit(self._count)

    def after_commit(self) -> None:
        """Checkpoint when this connection's commits have made the log long."""
        if self._pages >= _PAGES and self._locks.hold_checkpointer():
            self._pages = 0
            self._checkpoint(apsw.SQLITE_CHECKPOINT_PASSIVE)

    def when_idle(self) -> None:
        """Empty the log when nobody has written since the last look; shorten it when others wrote much."""
        now = time.monotonic()
        if now - self._looked < _IDLE_SECONDS:
            return
        self._looked = now
        size = self._size_of_log()
        if size == 0 or not self._locks.hold_checkpointer():
            return
        if size == self._size:
            self._checkpoint(apsw.SQLITE_CHECKPOINT_TRUNCATE)
        elif size > _BYTES:
            self._checkpoint(apsw.SQLITE_CHECKPOINT_PASSIVE)
        self._size = size

    def _size_of_log(self) -> int:
        try:
            return self._log.stat().st_size
        except OSError:
            return 0

    def _count(self, pages: int) -> None:
        self._pages = pages

    def _checkpoint(self, mode: int) -> None:
        # Somebody reads or writes: not worth a wait, next time. What is really wrong shows in the next commit, which says so.
        with contextlib.suppress(apsw.Error):
            self._database.checkpoint(mode)
