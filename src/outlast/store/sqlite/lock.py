"""Locks of the operating system that die with their process: proof of a worker's life, and the one checkpointer.

They lie in a folder beside the database, never in the database file itself: closing any descriptor of that file would drop
SQLite's own locks. A lock belongs to an open file description, so two stores in one process exclude each other too.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import weakref
from collections.abc import Collection
from pathlib import Path
from urllib.parse import quote, unquote

from outlast.store.change import WorkerId

_holders: weakref.WeakSet[LockFolder] = weakref.WeakSet()
_outliving: dict[Path, int] = {}
"""Locks of workers whose store was closed before they were retired: their threads may still act, so nothing but their retirement
or the end of this process frees them."""


class LockFolder:
    """The locks beside one database.

    Args:
        database: The absolute path of the database.
    """

    def __init__(self, database: str) -> None:
        self._folder = Path(f"{database}-workers")
        self._checkpoint = self._folder / "checkpoint.lock"
        self._held: dict[Path, int] = {}
        _holders.add(self)

    def create(self) -> None:
        """Make the folder, readable by this user alone."""
        self._folder.mkdir(mode=0o700, exist_ok=True)

    def hold(self, worker: WorkerId) -> None:
        """Prove from now on, by a lock that ends with this process, that `worker` lives.

        Raises:
            BlockingIOError: Another process lives under this id.
        """
        self._acquire(self._life(worker))

    def forget(self, worker: WorkerId) -> None:
        """Stop proving, and remove the file; also of a worker that was buried, or whose former store was closed."""
        path = self._life(worker)
        for held in (self._held, _outliving):
            descriptor = held.pop(path, None)
            if descriptor is None:
                continue
            with contextlib.suppress(OSError):
                path.unlink()
            os.close(descriptor)

    def is_dead(self, worker: WorkerId) -> bool:
        """Return whether the process of `worker` has certainly ended. A missing file proves nothing."""
        path = self._life(worker)
        if path in self._held:
            return False
        return _is_free(path)

    def living(self) -> list[str]:
        """Return the ids of workers whose lock somebody holds, as far as their files say."""
        found = [path for path in self._folder.glob("*.lock") if path != self._checkpoint]
        return sorted(unquote(path.stem) for path in found if not _is_free(path))

    def bury(self, worker: WorkerId) -> None:
        """Remove what a dead worker left behind."""
        with contextlib.suppress(OSError):
            self._life(worker).unlink()

    def sweep(self, registered: Collection[WorkerId]) -> None:
        """Remove the files of processes that were killed before they had registered, or before they had cleaned up.

        To be called while nobody can be between taking its lock and registering.
        """
        kept = {self._checkpoint, *self._held, *map(self._life, registered)}
        with contextlib.suppress(OSError):
            for path in set(self._folder.glob("*.lock")) - kept:
                if _is_free(path):
                    path.unlink(missing_ok=True)

    def hold_checkpointer(self) -> bool:
        """Return whether this process is the one that checkpoints, becoming it when nobody is."""
        if self._checkpoint in self._held:
            return True
        try:
            self._acquire(self._checkpoint)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Let another process checkpoint. Workers that were not retired keep their locks: what they began may still go on."""
        checkpoint = self._held.pop(self._checkpoint, None)
        if checkpoint is not None:
            os.close(checkpoint)
        while self._held:
            path, descriptor = self._held.popitem()
            former = _outliving.pop(path, None)
            if former is not None:  # its file is gone, or this one could not have been locked
                os.close(former)
            _outliving[path] = descriptor

    def abandon(self) -> None:
        """Give up every lock, as the end of the process does. The files of workers stay, unlocked: proof that they are dead."""
        while self._held:
            os.close(self._held.popitem()[1])

    def _acquire(self, path: Path) -> None:
        if path in self._held:
            return
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(descriptor)
            raise
        self._held[path] = descriptor

    def _life(self, worker: WorkerId) -> Path:
        return self._folder / f"{quote(worker, safe='')}.lock"


def _is_free(path: Path) -> bool:
    """Return whether the file is there and nobody holds its lock."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # Shared, so that two that look at once do not take each other for the living worker.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _close_in_child() -> None:
    """Close inherited descriptors: a forked child must not keep its dead parent's locks alive."""
    for holder in list(_holders):
        holder.abandon()
    while _outliving:
        os.close(_outliving.popitem()[1])


os.register_at_fork(after_in_child=_close_in_child)
