"""Waits for the store's time in which nothing is attempted: between two attempts, and for an outcome from outside."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from outlast.store.beat import silent_at
from outlast.store.change import OperationPut


@dataclass(slots=True)
class Rest:
    """The wait between two attempts, and when it is over by the store's clock.

    Args:
        longest: No rest is longer: what lies farther ahead was set by a wall clock that was.
    """

    due: datetime
    longest: timedelta

    def judge(self, now: datetime) -> None:
        """Bring the due time near again when the wall clock that had set it was far ahead."""
        if self.due - now > self.longest:
            self.due = now + self.longest

    def recall(self, noted: datetime | None, now: datetime) -> None:
        """Take over what was noted when the run was parked, where the due time lies too far ahead."""
        if noted is not None and self.due - now > self.longest:
            self.due = min(self.due, noted)
        self.judge(now)

    def left(self, now: datetime) -> float:
        """Return for how many seconds the next attempt must still wait."""
        self.judge(now)
        return (self.due - now).total_seconds()


@dataclass(slots=True)
class Completion:
    """How long somebody is waited for who says what came of a step that was handed out.

    Args:
        end: When its time is over; None for ever.
        silence: When it was silent for too long; None where it may say nothing for ever.
        beats: How many of its beats that is counted from.
    """

    end: Rest | None
    silence: Rest | None
    beats: int

    @classmethod
    def of(cls, row: OperationPut, end: Rest | None) -> Completion:
        """Return the wait for an operation whose row says that it was handed out."""
        return cls(end, _silence(row), row.beats)

    @property
    def due(self) -> datetime | None:
        """When the first of the two is over; None for never."""
        return min((one.due for one in (self.end, self.silence) if one), default=None)

    @property
    def noted(self) -> tuple[datetime, int] | None:
        """When the silence is over and what it is counted from, for `recall`; None where it is not limited."""
        return None if self.silence is None else (self.silence.due, self.beats)

    def judge(self, now: datetime) -> None:
        """Bring the due times near again when the wall clock that had set them was far ahead."""
        for one in filter(None, (self.end, self.silence)):
            one.judge(now)

    def recall(
        self, end: datetime | None, silence: tuple[datetime, int] | None, now: datetime
    ) -> None:
        """Take over what was noted when the run was parked; of the silence only if nothing was heard since."""
        if self.end is not None:
            self.end.recall(end, now)
        if self.silence is not None:
            due = silence[0] if silence is not None and silence[1] == self.beats else None
            self.silence.recall(due, now)

    def left(self, now: datetime) -> float | None:
        """Return for how many seconds there is still to wait; None for ever."""
        left = [one.left(now) for one in (self.end, self.silence) if one]
        return min(left, default=None)

    def hears(self, row: OperationPut) -> bool:
        """Whether there was a beat since it has listened last; the silence counts from the last one then."""
        if row.beats == self.beats:
            return False
        self.beats, self.silence = row.beats, _silence(row)
        return True

    def was_silent(self, now: datetime) -> bool:
        """Whether it is the silence that took too long, and there would be time left."""
        has_time = self.end is None or self.end.left(now) > 0
        return has_time and self.silence is not None and self.silence.left(now) <= 0


def _silence(row: OperationPut) -> Rest | None:
    due = silent_at(row)
    return None if due is None or row.silence is None else Rest(due, row.silence)
