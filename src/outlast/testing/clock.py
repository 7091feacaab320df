"""A clock that moves only when the simulation moves it.

Two scales, as on a machine: wall time, which an administrator can set, and monotonic time, which never goes back. Whole
nanoseconds inside, so that adding small steps for a simulated year loses nothing.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

BOOT_SECONDS = 1000
_MICROSECOND = timedelta(microseconds=1)


class SimulatedClock:
    """Wall and monotonic time of a simulated machine.

    Args:
        wall: The wall time at the beginning.
    """

    def __init__(self, wall: datetime = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)) -> None:
        self._nanos = BOOT_SECONDS * 1_000_000_000
        self._wall_at_boot = wall - timedelta(seconds=BOOT_SECONDS)
        self.was_set = False
        """Whether somebody has ever set the wall clock: then due times say little."""

    def now(self) -> datetime:
        """Return the wall time."""
        return self._wall_at_boot + timedelta(microseconds=self._nanos // 1000)

    def monotonic(self) -> float:
        """Return the seconds since the simulated boot."""
        return self._nanos / 1_000_000_000

    def advance(self, step: timedelta | float) -> None:
        """Let time pass, on both scales.

        Args:
            step: A `timedelta`, or seconds; never less than asked for, so that what is due then is due.
        """
        if isinstance(step, timedelta):
            self._nanos += step // _MICROSECOND * 1000
        else:
            self._nanos += max(1, math.ceil(step * 1_000_000_000))

    def jump(self, step: timedelta) -> None:
        """Move the wall clock alone, forth or back."""
        self.was_set = True
        self._wall_at_boot += step

    def set_wall(self, time: datetime) -> None:
        """Set the wall clock alone, as an administrator does."""
        self.was_set = True
        self._wall_at_boot += time - self.now()


class SkewedClock:
    """The clock of another machine: its wall time differs, and it was booted at another time.

    Args:
        base: What moves it.
        wall: How much its wall time is ahead.
        booted: Seconds by which its monotonic time is ahead.
    """

    def __init__(self, base: SimulatedClock, *, wall: timedelta, booted: float) -> None:
        self._base = base
        self._wall = wall
        self._booted = booted

    def now(self) -> datetime:
        """Return the wall time."""
        return self._base.now() + self._wall

    def monotonic(self) -> float:
        """Return the seconds since this machine's boot."""
        return self._base.monotonic() + self._booted
