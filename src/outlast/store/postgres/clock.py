"""The server's clock, as this process has seen it: what time it is there, and whether somebody has set it.

Leases are judged by the server's wall clock, which an administrator, or a failover, can set. A process that has seen it jump holds
nobody for dead until a lease has passed since: every living worker has renewed by then.
"""

from __future__ import annotations

import threading
from datetime import datetime, timedelta

from outlast.clock import Clock
from outlast.store.moment import from_micros, to_micros

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
        self._seen: tuple[int, float] | None = None
        self._jumped_at: float | None = None
        self._silent: dict[str, tuple[int, float]] = {}

    def saw(self, micros: int) -> None:
        """Take the server's time as it was a moment ago."""
        with self._lock:
            now = self._clock.monotonic()
            if self._seen is not None:
                expected = self._seen[0] + int((now - self._seen[1]) * 1_000_000)
                if abs(micros - expected) > _JUMP_MICROS:
                    self._jumped_at = now
            self._seen = micros, now

    def now(self) -> datetime:
        """Return the best estimate of the server's time."""
        with self._lock:
            if self._seen is None:
                return self._clock.now()
            micros, at = self._seen
            return from_micros(micros + int((self._clock.monotonic() - at) * 1_000_000))

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

    def was_silent(self, worker: str, renewed: int, lease: timedelta) -> bool:
        """Whether a worker whose last renewal lies in the future, as the server's clock was set back, has not renewed for a lease since."""
        with self._lock:
            now = self._clock.monotonic()
            known = self._silent.get(worker)
            if known is None or known[0] != renewed:
                self._silent = {**dict(list(self._silent.items())[-1000:]), worker: (renewed, now)}
                return False
            return now - known[1] >= lease.total_seconds()

    def micros(self) -> int:
        """Return `now` in microseconds."""
        return to_micros(self.now())
