"""What a run waits for by the store's clock: timers, the deadlines of requests, and the next attempts of what failed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec

from outlast.journal.entry import ApprovalExpired, Moment, OperationId, TimerFired
from outlast.journal.parse import NotJsonError, parse_as
from outlast.replay.command import StartTimer
from outlast.store.change import ApprovalExpire
from outlast.worker.proposal import Proposal, Rank


class _Note(msgspec.Struct):
    timers: dict[str, Moment] = {}
    retries: dict[str, Moment] = {}
    start_by: dict[str, Moment] = {}


_notes = msgspec.json.Decoder(_Note)


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

    def left(self, now: datetime) -> float:
        """Return for how many seconds the next attempt must still wait."""
        self.judge(now)
        return (self.due - now).total_seconds()


@dataclass(slots=True)
class _Task:
    """The task of a remote step.

    Args:
        deadline: When it is to be judged whether it has waited too long for a worker; none when it may wait for ever.
        late: Judges, and returns what is written about one that has.
    """

    queue: str
    deadline: Rest | None = None
    late: Callable[[], Proposal | None] = lambda: None
    is_taken: bool = False


class Waits:
    """The due times of one run."""

    def __init__(self) -> None:
        self._noted = _Note()
        self._timers: dict[OperationId, _Timer] = {}
        self._requests: dict[OperationId, tuple[datetime, str]] = {}
        self._tasks: dict[OperationId, _Task] = {}
        self.retries: dict[OperationId, Rest] = {}
        """The rest of each operation that waits for its next attempt after a failure."""

    def __bool__(self) -> bool:
        """Whether anything will come due, or is with another worker."""
        return bool(self._timers or self._requests or self.retries or self._tasks)

    def recall(self, note: bytes) -> None:
        """Take over what was noted when the run was parked, so that a wait does not begin anew."""
        try:
            self._noted = parse_as(_notes, note)
        except NotJsonError:
            self._noted = _Note()

    def add_timer(self, asked: StartTimer, now: datetime) -> None:
        """Wait for a timer."""
        timer = _Timer(asked, asked.due)
        if asked.armed_at > now:
            timer.due = min(asked.due, self._noted.timers.get(asked.operation, asked.due))
        timer.judge(now)
        self._timers[asked.operation] = timer

    def add_rest(self, operation: OperationId, rest: Rest, now: datetime) -> None:
        """Wait for the next attempt of an operation."""
        noted = self._noted.retries.pop(operation, None)
        if noted is not None and rest.due - now > rest.longest:
            rest.due = min(rest.due, noted)
        rest.judge(now)
        self.retries[operation] = rest

    def add_request(self, operation: OperationId, expires_at: datetime, approval_id: str) -> None:
        """Wait for a request to be decided, or to expire."""
        self._requests[operation] = (expires_at, approval_id)

    def add_task(
        self,
        operation: OperationId,
        queue: str,
        deadline: Rest | None = None,
        late: Callable[[], Proposal | None] = lambda: None,
        *,
        is_taken: bool = False,
        as_noted: bool = False,
    ) -> None:
        """Wait for the outcome of a task; `late` is asked what is to be written when the deadline comes first.

        Args:
            as_noted: The deadline follows from a time that has not come yet: what was noted when the run was parked counts.
        """
        noted = self._noted.start_by.pop(operation, None)
        if as_noted and noted is not None and deadline is not None:
            deadline.due = min(deadline.due, noted)
        self._tasks[operation] = _Task(queue, deadline, late, is_taken)

    def forget(self, operation: OperationId) -> None:
        """Wait no longer for a timer, a request or a task."""
        self._timers.pop(operation, None)
        self._requests.pop(operation, None)
        self._tasks.pop(operation, None)

    def take_due(self, now: datetime) -> list[Proposal]:
        """Return what is to be written about everything that is due, and wait for it no longer."""
        due: list[Proposal] = []
        for wait in (*self._timers.values(), *self.retries.values()):
            wait.judge(now)
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
        due += self._take_late_tasks(now)
        return due

    def _take_late_tasks(self, now: datetime) -> list[Proposal]:
        late: list[Proposal] = []
        for task in self._tasks.values():
            if task.deadline is not None and task.deadline.left(now) <= 0:
                task.deadline = None
                late += filter(None, [task.late()])
        return late

    def next_due(self) -> datetime | None:
        """Return when the next timer, request or deadline of a task comes due; retries look after themselves."""
        times = [timer.due for timer in self._timers.values()]
        times.extend(due for due, _ in self._requests.values())
        times.extend(task.deadline.due for task in self._tasks.values() if task.deadline)
        return min(times, default=None)

    def wake_at(self) -> datetime | None:
        """Return when the run, parked now, has something to do by itself."""
        rests = (rest.due for rest in self.retries.values())
        return min([*rests, *filter(None, [self.next_due()])], default=None)

    def note(self) -> dict[str, Any]:
        """Return what the run waits for, for people."""
        return {
            "timers": {operation: timer.due for operation, timer in self._timers.items()},
            "approvals": {approval: due for due, approval in self._requests.values()},
            "retries": {operation: rest.due for operation, rest in self.retries.items()},
            "tasks": {operation: task.queue for operation, task in self._tasks.items()},
            "start_by": {
                operation: task.deadline.due
                for operation, task in self._tasks.items()
                if task.deadline and not task.is_taken
            },
        }
