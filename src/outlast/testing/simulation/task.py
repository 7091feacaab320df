"""What must hold of tasks: each is with one living worker at most, is worked on by nobody else, and goes with its run and its outcome."""

from __future__ import annotations

from dataclasses import dataclass

from outlast.journal.entry import from_row
from outlast.store.change import (
    BeatTask,
    FinishTask,
    RunChange,
    RunKey,
    TaskDrop,
    TaskPut,
    WorkerId,
)
from outlast.store.task import TaskClaim
from outlast.testing.clock import SimulatedClock
from outlast.testing.simulation.model import Check, Life, Run
from outlast.workflows.attempt import Attempt

_CLOSE_SECONDS = 1e-3


@dataclass(slots=True)
class _Task:
    generation: int
    attempt: int
    name: str
    since: float
    """Since when it waits, by the monotonic clock, if nobody holds it."""
    holder: WorkerId | None = None
    held: bool = False


class Tasks:
    """The tasks of a simulated store.

    Args:
        check: Reports what does not hold.
        runs: What is known of them.
        lives: What is known of the workers.
    """

    def __init__(
        self,
        clock: SimulatedClock,
        check: Check,
        runs: dict[RunKey, Run],
        lives: dict[WorkerId, Life],
    ) -> None:
        self._clock = clock
        self._check = check
        self._runs = runs
        self._lives = lives
        self._tasks: dict[tuple[RunKey, str], _Task] = {}
        self.remote: dict[str, float] = {}
        """Of each step that runs in a queue: for how many seconds it may wait for a worker."""

    def written(self, run: Run, change: RunChange) -> None:
        """A run's owner has written a change, which is noted in `run` already."""
        for act in change.tasks:
            place = change.run, act.operation
            if isinstance(act, TaskPut):
                self._put(run, change.run, act)
            else:
                self._drop(change.run, act)
                self._tasks.pop(place, None)
        settled = {getattr(from_row(row), "operation", "") for row in change.entries} & run.outcomes
        left = [at for at in settled if (change.run, at) in self._tasks]
        self._check(not left, 0, f"the tasks of {left} are left behind", run=change.run)
        if change.hold is not None:
            self._hold(change.run, held=change.hold)
        if run.closed or change.next:
            self.ended(change.run)

    def _hold(self, key: RunKey, *, held: bool) -> None:
        for (run, _), task in self._tasks.items():
            if run != key or task.held == held:
                continue
            task.held = held
            if task.holder is None and not held:
                task.since = max(task.since, self._clock.monotonic())

    def ended(self, key: RunKey) -> None:
        """A run is over, by its owner or from outside."""
        for place in [place for place in self._tasks if place[0] == key]:
            del self._tasks[place]

    def let_go(self, worker: WorkerId) -> None:
        """A worker's life is over, or it has retired."""
        for task in self._tasks.values():
            if task.holder == worker:
                life = self._lives.get(worker)
                now = self._clock.monotonic()
                task.holder, task.since = None, min(now, life.end) if life else now

    def claimed(self, worker: WorkerId, claim: TaskClaim) -> None:
        """Tasks were given to a worker."""
        for claimed in claim.tasks:
            key = claimed.row.key
            task = self._tasks.get((key.run, key.operation))
            known = task is not None and (task.generation, task.attempt) == (
                key.generation,
                key.attempt,
            )
            self._check(known, 1, "a task was given to a worker that nobody has put", run=key.run)
            if task is None:
                continue
            free = task.holder in (None, worker) or self._is_over(task.holder)
            self._check(
                free,
                7,
                f"taken from {task.holder}, whose lease still runs",
                run=key.run,
                at=key.operation,
            )
            self._check(
                task.holder == worker or not self._runs[key.run].paused,
                0,
                "a task of a paused run was taken",
                run=key.run,
                at=key.operation,
            )
            task.holder = worker

    def finished(self, change: FinishTask) -> None:
        """A task was finished or given back."""
        place = change.run, change.operation
        self._held_by(change, "finished")
        task = self._tasks.get(place)
        if change.message is not None:
            self._tasks.pop(place, None)
        elif task is not None:
            task.holder, task.since = None, self._clock.monotonic()

    def beats(self, change: BeatTask) -> None:
        """An attempt has said something of itself, which was kept."""
        self._held_by(change, "spoke for")

    def _held_by(self, change: FinishTask | BeatTask, did: str) -> None:
        task = self._tasks.get((change.run, change.operation))
        held = (
            task is not None
            and task.holder == change.worker
            and (task.generation, task.attempt) == (change.generation, change.attempt)
            and not self._is_over(change.worker)
        )
        self._check(
            held,
            7,
            f"{change.worker} {did} attempt {change.attempt}, which it does not have",
            run=change.run,
            at=change.operation,
        )

    def begins(self, attempt: Attempt, process: str) -> None:
        """The body of a remote step begins: nobody else who lives has the task."""
        key = RunKey(attempt.tenant, attempt.run_id)
        task = self._tasks.get((key, attempt.operation))
        if task is None or task.holder is None or task.attempt != attempt.number:
            # It was taken away a moment ago, and whoever begins does not know yet.
            return
        life = self._lives.get(task.holder)
        elsewhere = (
            life is not None and life.runs(self._clock.monotonic()) and life.process != process
        )
        self._check(
            not elsewhere,
            7,
            f"attempt {attempt.number} of {attempt.name} begins in {process}, and {task.holder} has the task",
            run=key,
            at=attempt.operation,
        )

    def _put(self, run: Run, key: RunKey, put: TaskPut) -> None:
        self._check(
            put.operation not in run.outcomes,
            1,
            "a task was put although its step has an outcome",
            run=key,
            at=put.operation,
        )
        right = run.failures.get(put.operation, 0) + 1
        self._check(
            put.attempt == right,
            1,
            f"a task was put for attempt {put.attempt}, and it is the turn of {right}",
            run=key,
            at=put.operation,
        )
        now = self._clock.monotonic()
        wait = (put.due_at - self._clock.now()).total_seconds() if put.due_at else 0.0
        since = now + max(0.0, wait)
        self._tasks[key, put.operation] = _Task(run.generation, put.attempt, put.name, since)

    def _drop(self, key: RunKey, drop: TaskDrop) -> None:
        if drop.taken is None:
            return
        task = self._tasks.get((key, drop.operation))
        self._check(
            task is not None and (task.holder is None or self._is_over(task.holder)),
            7,
            "a task was said to have waited for too long, and somebody has it",
            run=key,
            at=drop.operation,
        )
        if task is None or self._clock.was_set:
            return
        life = None if task.holder is None else self._lives.get(task.holder)
        since = life.end if life else task.since
        self._check(
            self._clock.monotonic() >= since + self.remote[task.name] - _CLOSE_SECONDS,
            0,
            "a task was said to have waited for too long, and has not",
            run=key,
            at=drop.operation,
        )

    def _is_over(self, worker: WorkerId) -> bool:
        life = self._lives.get(worker)
        return life is None or life.over(self._clock.monotonic())
