"""When a rule holds: days of the week and hours of the day, by the clock on the wall of some place."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import force_setattr

from outlast.errors import PolicyError
from outlast.policy.shown import shown

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_MINUTES = 24 * 60
_HOURS = re.compile(r"([01][0-9]|2[0-4]):([0-5][0-9])-([01][0-9]|2[0-4]):([0-5][0-9])")


class Window(Struct, frozen=True):
    """Days and hours at which a rule holds.

    Args:
        zone: Whose clock it is: a name of the IANA time zone database, as `Europe/Berlin`, or `UTC`.
        days: `mon` to `sun`, or spans of them, as `("mon-fri",)`; all days when not given.
        hours: From and before, as `08:00-18:00`. Hours that pass midnight, as `22:00-06:00`, belong to the day on which they begin.

    Raises:
        PolicyError: A zone, day or hour that there is not.

    Example:
        ```python
        from datetime import UTC, datetime
        from outlast.policy import Window

        office = Window("Europe/Berlin", days=("mon-fri",), hours="08:00-18:00")
        assert office.holds(datetime(2026, 3, 2, 7, 30, tzinfo=UTC))  # a Monday, half past eight there
        assert not office.holds(datetime(2026, 3, 1, 7, 30, tzinfo=UTC))
        ```
    """

    zone: str
    days: tuple[str, ...] = DAYS
    hours: str = "00:00-24:00"

    def __post_init__(self) -> None:
        """Refuse what there is not, and write the days out."""
        zone_of(self.zone)
        _span(self.hours)
        force_setattr(self, "days", _days(self.days))

    def holds(self, now: datetime) -> bool:
        """Say whether it is that time."""
        there = now.astimezone(zone_of(self.zone))
        return self.holds_at(there.weekday(), there.hour * 60 + there.minute)

    def holds_at(self, weekday: int, minute: int) -> bool:
        """Say whether it is that time when the clock there shows this.

        Args:
            weekday: From 0, Monday.
            minute: Of the day, from 0.
        """
        start, end = _span(self.hours)
        if start <= end:
            return DAYS[weekday] in self.days and start <= minute < end
        if minute >= start:
            return DAYS[weekday] in self.days
        return DAYS[weekday - 1] in self.days and minute < end

    def minutes(self) -> frozenset[int]:
        """Return the minutes of the week, from 0, at which it holds."""
        return _minutes(self)

    def data(self) -> dict[str, Any]:
        """Return it as it stands in a file."""
        return {"zone": self.zone, "days": list(self.days), "hours": self.hours}


@lru_cache(maxsize=64)
def zone_of(name: str) -> tzinfo:
    """Return the time zone of that name.

    Raises:
        PolicyError: There is none on this machine.
    """
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo  # only where a rule has a zone: 5 ms at import

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError):
        raise PolicyError(
            f"there is no time zone {shown(name)} on this machine",
            hint="write a name of the IANA database, as Europe/Berlin, or UTC; systems without that database need the package tzdata",
        ) from None


@lru_cache(maxsize=64)
def _minutes(window: Window) -> frozenset[int]:
    week = ((day, minute) for day in range(len(DAYS)) for minute in range(DAY_MINUTES))
    return frozenset(
        day * DAY_MINUTES + minute for day, minute in week if window.holds_at(day, minute)
    )


@lru_cache(maxsize=64)
def _span(hours: Any) -> tuple[int, int]:
    match = _HOURS.fullmatch(hours) if isinstance(hours, str) else None
    start, end = (
        (int(match[1]) * 60 + int(match[2]), int(match[3]) * 60 + int(match[4]))
        if match
        else (DAY_MINUTES, 0)
    )
    if start >= DAY_MINUTES or end > DAY_MINUTES:
        raise PolicyError(f"{shown(hours)} are no hours", hint='write them as "08:00-18:00"')
    return start, end


def _days(given: Any) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise PolicyError(f"days is no list: {shown(given)}", hint='write days = ["mon-fri"]')
    found: set[str] = set()
    for one in cast("Sequence[Any]", given):
        first, _, last = one.partition("-") if isinstance(one, str) else ("", "", "")
        if first not in DAYS or (last or first) not in DAYS:
            raise PolicyError(
                f"{shown(one)} is no day", hint="days are mon, tue, … sun, or spans as mon-fri"
            )
        begin, length = DAYS.index(first), (DAYS.index(last or first) - DAYS.index(first)) % 7
        found.update(DAYS[(begin + step) % 7] for step in range(length + 1))
    return tuple(day for day in DAYS if day in found)
