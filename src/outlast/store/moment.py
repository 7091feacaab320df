"""Times as stores keep them: microseconds of wall time, nanoseconds of the lease clock.

Wall time says when timers and deadlines are due. Leases are counted on a clock that no one can set, together with the id of
the machine's boot: another boot id means that whoever held the lease is gone.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from msgspec import Struct

from outlast.clock import Clock

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
END_OF_TIME = 253_402_300_800_000_000
"""Microseconds since 1970 at the end of the year 9999: no `datetime` goes so far."""
BEGINNING_OF_TIME = -62_135_596_800_000_000
"""Microseconds since 1970 at the beginning of the year 1: no `datetime` is before."""
_FARTHEST = (1 << 63) - 1
"""Nanoseconds beyond which no store can keep a moment of the lease clock."""
_MICROSECOND = timedelta(microseconds=1)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

NO_BOOT = "wall"
"""Stands for the boot id where the platform has none: leases are counted on wall time there."""


def to_micros(time: datetime) -> int:
    """Return microseconds since 1970 of an aware time."""
    return (time - EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    """Return the UTC time of `micros` microseconds since 1970."""
    return EPOCH + timedelta(microseconds=micros)


def micros_or_none(time: datetime | None) -> int | None:
    """Return `to_micros` of a time, where there is one."""
    return None if time is None else to_micros(time)


def time_or_none(micros: int | None) -> datetime | None:
    """Return `from_micros` of a number, where there is one."""
    return None if micros is None else from_micros(micros)


class Instant(Struct, frozen=True):
    """A moment on the lease clock.

    Args:
        boot: Id of the machine's boot.
        nanos: Nanoseconds since that boot.
    """

    boot: str
    nanos: int


class LeaseClock:
    """Counts leases: the boot id with `Clock.monotonic`, or wall time where there is no boot id."""

    def __init__(self, clock: Clock, boot: str | None = None) -> None:
        self._clock = clock
        self._boot = boot_id() if boot is None else boot

    @property
    def boot(self) -> str:
        """The id of this boot."""
        return self._boot

    def instant(self) -> Instant:
        """Return this moment."""
        if self._boot == NO_BOOT:
            return Instant(NO_BOOT, to_micros(self._clock.now()) * 1000)
        return Instant(self._boot, int(self._clock.monotonic() * 1_000_000_000))


def boot_id() -> str:
    """Return the id of the machine's boot, or `NO_BOOT`."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip() or NO_BOOT
    except OSError:
        return NO_BOOT


def elapsed(since: Instant, now: Instant) -> timedelta:
    """Return how long ago `since` was, never less than nothing.

    From another boot at least this one's whole age has passed; more cannot be proved, and less would be unsafe to assume of
    nobody: whoever acted then died with the machine.
    """
    nanos = now.nanos - since.nanos if since.boot == now.boot else now.nanos
    return timedelta(microseconds=max(0, nanos // 1000))


def lease_end(renewed: Instant, lease: timedelta) -> Instant:
    """Return when a lease that was renewed at `renewed` lapses, never beyond what a store can keep."""
    nanos = renewed.nanos + lease // _MICROSECOND * 1000
    return Instant(renewed.boot, max(-_FARTHEST, min(nanos, _FARTHEST)))


def lapsed(renewed: Instant, lease: timedelta, now: Instant) -> bool:
    """Return whether a lease is over: its time has passed, or the machine was started again since."""
    return renewed.boot != now.boot or now.nanos >= lease_end(renewed, lease).nanos
