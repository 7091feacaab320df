"""The time that all attempts of one operation have together, from the call on, by the store's clock."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

_NOTHING = timedelta(0)


@dataclass(slots=True)
class Deadline:
    """When an operation must be done.

    Args:
        scheduled_at: The run's time when it was asked for. That never goes back: a wall clock that was ahead, if only for one commit,
            leaves it ahead.
        limit: How long all attempts may take together.
        due: When that is over.
    """

    scheduled_at: datetime
    limit: timedelta
    due: datetime

    @classmethod
    def of(cls, scheduled_at: datetime, limit: timedelta) -> Deadline:
        """Return the deadline of an operation that has so much time from then on."""
        return cls(scheduled_at, limit, _later(scheduled_at, limit))

    def left(self, now: datetime) -> timedelta:
        """Return how much time is left; nothing or less when it is over.

        An operation that was asked for at a time which has not come yet has its whole time from now on, and no more.
        """
        if self.scheduled_at > now:
            self.due = min(self.due, _later(now, self.limit))
        return self.due - now

    def is_over(self, now: datetime) -> bool:
        """Whether no attempt may begin any more."""
        return self.left(now) <= _NOTHING


def _later(moment: datetime, span: timedelta) -> datetime:
    """Return the moment so much later, or the last one that can be written."""
    try:
        return moment + span
    except OverflowError:
        return datetime.max.replace(tzinfo=moment.tzinfo)
