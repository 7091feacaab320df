"""Who wants to know of commits: told at once of this process's, and by polling of those of others."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from datetime import timedelta

from outlast.store.lane import Lane
from outlast.store.sqlite.database import Database

_NOBODY_SECONDS = 1.0


class Watch:
    """Wakes subscribers.

    Args:
        lane: Whose idle time is used to look for other processes' commits.
        poll: How often, while anyone has subscribed.
    """

    def __init__(self, lane: Lane, poll: timedelta) -> None:
        self._lane = lane
        self._poll = poll
        self._lock = threading.Lock()
        self._subscribers: list[tuple[asyncio.AbstractEventLoop, Callable[[], None]]] = []
        self._database: Database | None = None
        self._version: object = None

    def follow(self, database: Database) -> None:
        """Look over this connection. It is the one that writes: its `data_version` moves for others' commits alone."""
        self._database = database
        self._version = database.pragma("data_version")

    def subscribe(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` on the running loop from now on; return how to stop."""
        entry = (asyncio.get_running_loop(), wake)
        with self._lock:
            self._subscribers.append(entry)
        self._lane.tick_every(self._poll.total_seconds())

        def stop() -> None:
            with self._lock:
                if entry in self._subscribers:
                    self._subscribers.remove(entry)
                nobody = not self._subscribers
            if nobody:
                self._lane.tick_every(_NOBODY_SECONDS)

        return stop

    def clear(self) -> None:
        """Forget all subscribers."""
        with self._lock:
            self._subscribers.clear()

    def look(self) -> None:
        """Wake everyone when another process has committed since the last look."""
        if self._database is None or not self._subscribers:
            return
        version = self._database.pragma("data_version")
        if version != self._version:
            self._version = version
            self.wake()

    def wake(self) -> None:
        """Wake everyone."""
        with self._lock:
            subscribers = list(self._subscribers)
        for loop, wake in subscribers:
            # A loop that was closed has nobody left to wake.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(wake)
