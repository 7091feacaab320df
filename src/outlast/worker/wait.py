"""What a run waits for by the store's clock: timers, the deadlines of requests, and the next attempts of what failed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from outlast.journal.entry import ApprovalExpired, OperationId, TimerFired
from outlast.replay.command import StartTimer
from outlast.store.change import ApprovalExpire
from outlast.worker.proposal import Proposal, Rank


class _Note(msgspec.Struct):
    timers: dict[str, datetime] = {}


@dataclass(slots=True)
class _Timer:
    """A timer, and when it is due by the store's clock."""

    asked: StartTimer
    due: datetime

    def judge(self, now: datetime) -> None:
        """Bring the due time near again when a wall clock that was far ahead, if only for one commit, had set it.

        The run's time stays where it was once. A timer that was armed at a time that has not come yet is due after what it was to
        wait, counted from now.
        """
        if self.asked.armed_at > now:
            self.due = min(self.due, now + (self.asked.due - self.asked.armed_at))


class Waits:
    """The due times of one run."""

    def __init__(self) -> None:
        self._noted: dict[str, datetime] = {}
        self._timers: dict[OperationId, _Timer] = {}
        self._requests: dict[OperationId, tuple[datetime, str]] = {}
        self.retries: dict[OperationId, datetime] = {}
        """When the next attempt of each operation is due that rests after a failure."""

    def __bool__(self) -> bool:
        """Whether anything will come due."""
        return bool(self._timers or self._requests or self.retries)

    def recall(self, note: bytes) -> None:
        """Take over what was noted about timers when the run was parked, so that a wait does not begin anew."""
        try:
            self._noted = msgspec.json.decode(note, type=_Note).timers
        except msgspec.MsgspecError:
            self._noted = {}

    def add_timer(self, asked: StartTimer, now: datetime) -> None:
        """Wait for a timer."""
        timer = _Timer(asked, asked.due)
        if asked.armed_at > now:
            timer.due = min(asked.due, self._noted.get(asked.operation, asked.due))
        timer.judge(now)
        self._timers[asked.operation] = timer

    def add_request(self, operation: OperationId, expires_at: datetime, approval_id: str) -> None:
        """Wait for a request to be decided, or to expire."""
        self._requests[operation] = (expires_at, approval_id)

    def forget(self, operation: OperationId) -> None:
        """Wait no longer for a timer or a request."""
        self._timers.pop(operation, None)
        self._requests.pop(operation, None)

    def take_due(self, now: datetime) -> list[Proposal]:
        """Return what is to be written about everything that is due, and wait for it no longer."""
        due: list[Proposal] = []
        for timer in self._timers.values():
            timer.judge(now)
        for operation, timer in sorted(self._timers.items(), key=lambda item: item[1].due):
            if timer.due <= now:
                del self._timers[operation]
                fired = TimerFired(operation)
                due.append(Proposal(Rank.ARRIVAL, fired, guard=operation, at=timer.due))
        for operation, (at, approval_id) in list(self._requests.items()):
            if at <= now:
                del self._requests[operation]
                expired = ApprovalExpired(operation, approval_id)
                expire = ApprovalExpire(approval_id)
                due.append(Proposal(Rank.REQUEST, expired, guard=operation, approval=expire))
        return due

    def next_due(self) -> datetime | None:
        """Return when the next timer or request comes due; retries look after themselves."""
        times = [timer.due for timer in self._timers.values()]
        times.extend(due for due, _ in self._requests.values())
        return min(times, default=None)

    def wake_at(self) -> datetime | None:
        """Return when the run, parked now, has something to do by itself."""
        return min([*self.retries.values(), *filter(None, [self.next_due()])], default=None)

    def note(self) -> dict[str, Any]:
        """Return what the run waits for, for people."""
        return {
            "timers": {operation: timer.due for operation, timer in self._timers.items()},
            "approvals": {approval: due for due, approval in self._requests.values()},
            "retries": dict(self.retries),
        }
