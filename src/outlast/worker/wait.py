"""What a run waits for by the store's clock: timers, the deadlines of requests, and the next attempts of what failed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec

from outlast.journal.entry import (
    NO_OPERATION,
    ApprovalExpired,
    Moment,
    OperationId,
    RunTimedOut,
    Started,
    TimerFired,
)
from outlast.journal.parse import NotJsonError, parse_as
from outlast.replay.command import StartTimer
from outlast.store.change import ApprovalExpire
from outlast.worker.deadline import Deadline
from outlast.worker.proposal import Proposal, Rank
from outlast.worker.rest import Completion, Rest


class _Note(msgspec.Struct):
    timers: dict[str, Moment] = {}
    retries: dict[str, Moment] = {}
    deadline: Moment | None = None
    completions: dict[str, Moment | None] = {}
    silences: dict[str, tuple[Moment, int]] = {}
    deadlines: dict[str, Moment] = {}
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
        self._deadline: _Timer | None = None
        self._requests: dict[OperationId, tuple[datetime, str]] = {}
        self._runs: dict[OperationId, str] = {}
        self._tasks: dict[OperationId, _Task] = {}
        self._taken: dict[OperationId, _Timer | tuple[datetime, str]] = {}
        self.retries: dict[OperationId, Rest] = {}
        """The rest of each operation that waits for its next attempt after a failure."""
        self.completions: dict[OperationId, Completion] = {}
        """Of each operation that waits for its outcome from outside: until when."""
        self._deadlines: dict[OperationId, Deadline] = {}

    def __bool__(self) -> bool:
        """Whether anything will come due that the workflow waits for, or come from outside, from another run or from another worker."""
        comes = self._timers or self._requests or self.retries or self.completions or self._runs
        return bool(comes or self._tasks)

    def rests(self, operation: OperationId) -> bool:
        """Whether the operation waits for its next attempt, or for its outcome from outside."""
        return operation in self.retries or operation in self.completions

    def recall(self, note: bytes) -> None:
        """Take over what was noted when the run was parked, so that a wait does not begin anew."""
        try:
            self._noted = parse_as(_notes, note)
        except NotJsonError:
            self._noted = _Note()

    def add_timer(self, asked: StartTimer, now: datetime) -> None:
        """Wait for a timer."""
        noted = self._noted.timers.get(asked.operation)
        self._timers[asked.operation] = _timer(asked, noted, now)

    def add_deadline(self, started: Started, at: datetime, now: datetime) -> None:
        """Wait for the end of the run's time, if it has one.

        Args:
            at: When the run was started, by the store's clock then.
        """
        due = started.deadline(at)
        if due is not None:
            asked = StartTimer(operation=NO_OPERATION, due=due, armed_at=at)
            self._deadline = _timer(asked, self._noted.deadline, now)

    def forget_deadline(self) -> None:
        """Wait no longer for the end of the run's time: it is over, or the workflow has ended."""
        self._deadline = None
        self._taken.pop(NO_OPERATION, None)

    def add_rest(self, operation: OperationId, rest: Rest, now: datetime) -> None:
        """Wait for the next attempt of an operation."""
        rest.recall(self._noted.retries.pop(operation, None), now)
        self.retries[operation] = rest

    def add_completion(self, operation: OperationId, wait: Completion, now: datetime) -> None:
        """Wait for the outcome of an operation from outside."""
        noted = self._noted
        end, silence = noted.completions.pop(operation, None), noted.silences.pop(operation, None)
        wait.recall(end, silence, now)
        self.completions[operation] = wait

    def deadline(
        self,
        operation: OperationId,
        scheduled_at: datetime | None,
        limit: timedelta | None,
        now: datetime,
    ) -> Deadline | None:
        """Return the deadline of an operation, as it stood when the run was parked; None where it has none."""
        if scheduled_at is None or limit is None:
            return None
        found = self._deadlines.get(operation)
        if found is None:
            found = self._deadlines[operation] = Deadline.of(scheduled_at, limit)
            if scheduled_at > now:
                found.due = min(found.due, self._noted.deadlines.get(operation, found.due))
        return found

    def add_request(self, operation: OperationId, expires_at: datetime, approval_id: str) -> None:
        """Wait for a request to be decided, or to expire."""
        self._requests[operation] = (expires_at, approval_id)

    def add_run(self, operation: OperationId, run_id: str) -> None:
        """Wait for what another run was asked."""
        self._runs[operation] = run_id

    def add_task(
        self,
        operation: OperationId,
        queue: str,
        deadline: Rest | None = None,
        late: Callable[[], Proposal | None] = lambda: None,
        *,
        is_taken: bool = False,
    ) -> None:
        """Wait for the outcome of a task; `late` is asked what is to be written when the deadline comes first."""
        self._tasks[operation] = _Task(queue, deadline, late, is_taken)

    def noted_start(self, operation: OperationId) -> datetime | None:
        """Return until when a task was to be started as it was noted when the run was parked; told once."""
        return self._noted.start_by.pop(operation, None)

    def forget_task(self, operation: OperationId) -> None:
        """Wait no longer for a task; the operation is still waited for otherwise."""
        self._tasks.pop(operation, None)

    def forget(self, operation: OperationId) -> None:
        """Wait no longer for a timer, a request, a task or another run, and forget a deadline."""
        self._runs.pop(operation, None)
        self._timers.pop(operation, None)
        self._requests.pop(operation, None)
        self._tasks.pop(operation, None)
        self._deadlines.pop(operation, None)
        self._taken.pop(operation, None)

    def take_due(self, now: datetime, until: datetime | None = None) -> list[Proposal]:
        """Return what is to be written about everything that is due, and wait for it no longer.

        Args:
            until: Leave alone what came due later than that, as long as it is before now.
        """
        due: list[Proposal] = []
        until = now if until is None else until
        for wait in (
            *self._timers.values(),
            *self.retries.values(),
            *self.completions.values(),
            *filter(None, [self._deadline]),
        ):
            wait.judge(now)
        if self._deadline is not None and self._deadline.due <= until:
            due.append(Proposal(Rank.ARRIVAL, RunTimedOut(), at=self._deadline.due))
            self._taken[NO_OPERATION] = self._deadline
            self._deadline = None
        for operation, timer in sorted(self._timers.items(), key=lambda item: item[1].due):
            if timer.due <= until:
                self._taken[operation] = self._timers.pop(operation)
                fired = TimerFired(operation)
                due.append(Proposal(Rank.ARRIVAL, fired, guard=operation, at=timer.due))
        for operation, (at, approval_id) in list(self._requests.items()):
            if at <= until:
                self._taken[operation] = self._requests.pop(operation)
                expired = ApprovalExpired(operation, approval_id)
                expire = ApprovalExpire(approval_id)
                due.append(Proposal(Rank.REQUEST, expired, guard=operation, approval=expire))
        due += self._take_late_tasks(now)
        return due

    def take_back(self, proposals: Sequence[Proposal], until: datetime | None) -> list[Proposal]:
        """Wait again for what came due later than `until` and is not written; return the other proposals.

        Args:
            until: None for all that was taken.
        """
        return [one for one in proposals if not self._take_back(one, until)]

    def _take_back(self, proposal: Proposal, until: datetime | None) -> bool:
        entry = proposal.entry
        if not isinstance(entry, RunTimedOut | TimerFired | ApprovalExpired):
            return False
        operation = NO_OPERATION if isinstance(entry, RunTimedOut) else entry.operation
        taken = self._taken.get(operation)
        due = taken.due if isinstance(taken, _Timer) else taken[0] if taken else None
        if taken is None or due is None or (until is not None and due <= until):
            return False
        del self._taken[operation]
        if not isinstance(taken, _Timer):
            self._requests[operation] = taken
        elif operation == NO_OPERATION:
            self._deadline = taken
        else:
            self._timers[operation] = taken
        return True

    def _take_late_tasks(self, now: datetime) -> list[Proposal]:
        late: list[Proposal] = []
        for task in self._tasks.values():
            if task.deadline is not None and task.deadline.left(now) <= 0:
                task.deadline = None
                late += filter(None, [task.late()])
        return late

    def next_due(self) -> datetime | None:
        """Return when the next timer, request, the run's time or the deadline of a task comes due; retries and completions look after themselves."""
        times = [timer.due for timer in self._timers.values()]
        if self._deadline is not None:
            times.append(self._deadline.due)
        times.extend(due for due, _ in self._requests.values())
        times.extend(task.deadline.due for task in self._tasks.values() if task.deadline)
        return min(times, default=None)

    def wake_at(self) -> datetime | None:
        """Return when the run, parked now, has something to do by itself."""
        waits = (*self.retries.values(), *self.completions.values())
        times = [self.next_due(), *(wait.due for wait in waits)]
        return min(filter(None, times), default=None)

    def note(self) -> dict[str, Any]:
        """Return what the run waits for, for people."""
        deadline = {} if self._deadline is None else {"deadline": self._deadline.due}
        return {
            "timers": {operation: timer.due for operation, timer in self._timers.items()},
            "approvals": {approval: due for due, approval in self._requests.values()},
            "retries": {operation: rest.due for operation, rest in self.retries.items()},
            **deadline,
            "completions": {
                operation: None if wait.end is None else wait.end.due
                for operation, wait in self.completions.items()
            },
            "silences": {
                operation: wait.noted for operation, wait in self.completions.items() if wait.noted
            },
            "deadlines": {operation: one.due for operation, one in self._deadlines.items()},
            "runs": dict(self._runs),
            "tasks": {operation: task.queue for operation, task in self._tasks.items()},
            "start_by": {
                operation: task.deadline.due
                for operation, task in self._tasks.items()
                if task.deadline and not task.is_taken
            },
        }


def _timer(asked: StartTimer, noted: datetime | None, now: datetime) -> _Timer:
    """Return a timer; one that was armed at a time that has not come yet goes on as it was noted last."""
    timer = _Timer(asked, asked.due)
    if noted is not None and asked.armed_at > now:
        timer.due = min(asked.due, noted)
    timer.judge(now)
    return timer
