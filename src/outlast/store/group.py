"""Group commit: the changes that wait while a transaction is under way go into the next one together."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from outlast.errors import OutlastError
from outlast.store.bound import size_bytes
from outlast.store.change import Change, Verdict

MAX_CHANGES = 2048
MAX_BYTES = 16 * 1024 * 1024
"""A group ends above these, so that a renewal or another process never waits long behind it."""


class _Part:
    """The changes of one call, and who waits for their verdicts."""

    __slots__ = ("changes", "size_bytes", "verdicts")

    def __init__(self, changes: Sequence[Change]) -> None:
        self.changes = changes
        self.size_bytes = sum(map(size_bytes, changes))
        self.verdicts: Future[list[Verdict]] = Future()


class GroupCommit:
    """Gathers the changes of many calls and writes them in one transaction.

    Args:
        write: Writes changes in one transaction and returns their verdicts in order; raises when nothing was written.
    """

    def __init__(self, write: Callable[[Sequence[Change]], list[Verdict]]) -> None:
        self._write = write
        self._lock = threading.Lock()
        self._waiting: deque[_Part] = deque()

    def add(self, changes: Sequence[Change]) -> tuple[Future[list[Verdict]], bool]:
        """Queue changes; return their verdicts to come, and whether a flush must be asked for."""
        part = _Part(changes)
        with self._lock:
            self._waiting.append(part)
            return part.verdicts, len(self._waiting) == 1

    def flush(self) -> bool:
        """Write one group; return whether another waits, for which a flush must be asked for."""
        group, more = self._take()
        changes = [change for part in group for change in part.changes]
        if changes:
            try:
                verdicts = self._write(changes)
            except BaseException as error:  # noqa: BLE001 - it belongs to those who wait; others wait behind them
                for part in group:
                    part.verdicts.set_exception(error)
            else:
                self._answer(group, verdicts)
        return more

    def fail(self, error: OutlastError) -> None:
        """Answer all who wait with an error."""
        with self._lock:
            parts, self._waiting = list(self._waiting), deque()
        for part in parts:
            if part.verdicts.set_running_or_notify_cancel():
                part.verdicts.set_exception(error)

    def _take(self) -> tuple[list[_Part], bool]:
        group: list[_Part] = []
        count = size_bytes = 0
        with self._lock:
            while self._waiting and (not group or (count < MAX_CHANGES and size_bytes < MAX_BYTES)):
                part = self._waiting.popleft()
                # One that was cancelled while it waited is not written.
                if part.verdicts.set_running_or_notify_cancel():
                    group.append(part)
                    count += len(part.changes)
                    size_bytes += part.size_bytes
            return group, bool(self._waiting)

    @staticmethod
    def _answer(group: list[_Part], verdicts: list[Verdict]) -> None:
        start = 0
        for part in group:
            part.verdicts.set_result(verdicts[start : start + len(part.changes)])
            start += len(part.changes)
