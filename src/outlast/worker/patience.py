"""How long an attempt is waited for: three times that may be over, and the one that is over first."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from outlast.workflows.definition import AttemptOptions
from outlast.workflows.heartbeat import Beats

_LATE_SECONDS = 0.05
"""An event loop that wakes so much later than it was asked to has stood still meanwhile."""


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The attempt was not done in its time.

    Args:
        after: Which time.
        what: What of it, as `was not done within`; the time follows.
        began: Whether its body has begun.
    """

    after: timedelta
    what: str = "was not done within"
    began: bool = True

    def text(self, name: str) -> str:
        """Return it in words.

        Args:
            name: Of the step or effect.
        """
        return f"{name} {self.what} {self.after}"


class Patience:
    """Waits for one attempt. One that may take for ever costs next to nothing.

    Args:
        beats: What its body says of itself.
        options: The times that it was declared with.
        left: What its operation has left of its time for all attempts; None for no limit.
    """

    def __init__(
        self, beats: Beats, options: AttemptOptions, left: timedelta | None = None
    ) -> None:
        self.beats = beats
        self._time = options.start_to_close_timeout
        self._silence = options.heartbeat_timeout
        self._left = left
        self._is_endless = self._time is self._silence is left is None
        self._made = 0.0 if self._is_endless else beats.now()
        self._began: float | None = None
        self._forgiven = 0.0
        """Seconds of the present silence in which no body could have said anything: the event loop stood still."""
        self._heard = beats.at

    def begin(self) -> None:
        """Note that the body begins: its own times count from here."""
        self._began = self._made if self._is_endless else self.beats.now()

    async def wait(self, *ends: asyncio.Future[Any]) -> TimedOut | None:
        """Return None when one of these is done, or which time was over before."""
        if self._is_endless:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            return None
        while not any(one.done() for one in ends):
            limits = self._limits()
            if not limits:
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                return None
            end, verdict = min(limits, key=lambda one: one[0])
            left = end - self.beats.now()
            if left <= 0:
                return verdict
            await asyncio.wait(ends, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            self._forgive(self.beats.now() - end)
        return None

    def seconds_left(self) -> float | None:
        """Return how long the attempt may go on at most, however lively it is; None for no limit. Callable from any thread."""
        if self._is_endless:
            return None
        now, ends = self.beats.now(), list[float]()
        if self._left is not None:
            ends.append(self._made + self._left.total_seconds())
        if self._time is not None:
            began = now if self._began is None else self._began
            ends.append(began + self._time.total_seconds())
        return min(ends) - now if ends else None

    def _limits(self) -> list[tuple[float, TimedOut]]:
        found: list[tuple[float, TimedOut]] = []
        began = self._began is not None
        if self._left is not None:
            verdict = TimedOut(self._left, "was not done in the time that was left,", began)
            found.append((self._made + self._left.total_seconds(), verdict))
        if self._began is None:
            return found
        if self._time is not None:
            found.append((self._began + self._time.total_seconds(), TimedOut(self._time)))
        if self._silence is not None:
            since = max(self._began, self.beats.at)
            verdict = TimedOut(self._silence, "has sent no heartbeat for")
            found.append((since + self._silence.total_seconds() + self._forgiving(), verdict))
        return found

    def _forgiving(self) -> float:
        if self.beats.at != self._heard:
            self._heard, self._forgiven = self.beats.at, 0.0
        return self._forgiven

    def _forgive(self, late: float) -> None:
        """Give a body that could not speak while the loop stood still as long again, but no longer than it may be silent."""
        if self._silence is not None and late > _LATE_SECONDS:
            self._forgiven = self._forgiving() + min(late, self._silence.total_seconds())
