"""The server's clock, as this process has seen it: what time it is there, and whether somebody has set it.

Leases are judged by the server's wall clock, which an administrator, or a failover, can set. A process that has seen it jump holds
nobody for dead until a lease has passed since: every living worker has renewed by then.
"""

from __future__ import annotations

import threading
from datetime import datetime, timedelta

from outlast.clock import Clock
from outlast.store.moment import from_micros

_JUMP_MICROS = 1_000_000
"""A difference that no round trip explains."""


class StoreClock:
    """What is known of the server's clock.

    Args:
        clock: This machine's: its monotonic time carries the server's on between two sights.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._ahead: tuple[int, int] | None = None
        """By how many microseconds the server's clock is ahead of this machine's monotonic one: at least and at most."""
        self._jumped_at: float | None = None
        self._first_at: float | None = None
        self._silent: dict[str, tuple[int, float]] = {}

    def asking(self) -> float:
        """Note when the server is asked for its time."""
        return self._clock.monotonic()

    def saw(self, micros: int, asked: float) -> None:
        """Take the server's time as it was at some moment between then and now, which can be long: a process may have stood still.

        Args:
            asked: What `asking` has returned.
        """
        with self._lock:
            now = self._clock.monotonic()
            least, most = micros - _micros(now), micros - _micros(asked)
            if self._ahead is not None:
                apart = max(least - self._ahead[1], self._ahead[0] - most)
                if apart > _JUMP_MICROS:
                    self._jumped_at = now
                elif apart <= 0:
                    least, most = max(least, self._ahead[0]), min(most, self._ahead[1])
            self._ahead = least, most
            if self._first_at is None:
                self._first_at = now

    def now(self) -> datetime:
        """Return the best estimate of the server's time, which is never ahead of it unless somebody has set it back."""
        with self._lock:
            if self._ahead is None:
                return self._clock.now()
            return from_micros(self._ahead[0] + _micros(self._clock.monotonic()))

    def live(self, renewed: int, lease: timedelta, now: int) -> bool:
        """Whether a lease that was renewed then still runs by the server's time, or nobody can say.

        Args:
            renewed: Microseconds; so is `now`.
        """
        return now < renewed + lease // timedelta(microseconds=1) or self.is_unsure(lease)

    def is_unsure(self, lease: timedelta) -> bool:
        """Whether the server's clock has jumped within the time of a lease."""
        with self._lock:
            jumped = self._jumped_at
            return jumped is not None and self._clock.monotonic() - jumped < lease.total_seconds()

    def may_bury(self, lease: timedelta) -> bool:
        """Whether a lease that is over by the server's time is one of the dead: not before this process has seen that clock run for so long.

        Whoever has just come does not know whether somebody has set it.
        """
        with self._lock:
            first = self._first_at
            seconds = 0.0 if first is None else self._clock.monotonic() - first
        return seconds >= lease.total_seconds() and not self.is_unsure(lease)

    def was_silent(self, worker: str, renewed: int, lease: timedelta) -> bool:
        """Whether a worker whose last renewal lies in the future, as the server's clock was set back, has not renewed for a lease since."""
        with self._lock:
            now = self._clock.monotonic()
            known = self._silent.get(worker)
            if known is None or known[0] != renewed:
                self._silent = {**dict(list(self._silent.items())[-1000:]), worker: (renewed, now)}
                return False
            return now - known[1] >= lease.total_seconds()


def _micros(seconds: float) -> int:
    return int(seconds * 1_000_000)
