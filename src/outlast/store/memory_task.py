"""The tasks of the memory store: a table, and the looks at it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from msgspec.structs import replace

from outlast.store.change import (
    BeatTask,
    FinishTask,
    Refused,
    RunKey,
    TaskDrop,
    TaskPut,
    WorkerId,
)
from outlast.store.moment import EPOCH
from outlast.store.protocol import SUSPECT_LAPSES
from outlast.store.task import (
    ClaimedTask,
    TaskClaim,
    TaskKey,
    TaskRow,
    due_of,
    may_drop,
    task_fence,
)


@dataclass(frozen=True, slots=True)
class _Task:
    row: TaskRow
    arguments: bytes
    due: datetime
    set_at: datetime
    progress: bytes = b""
    held: bool = False


class TaskTable:
    """Every task, by run and operation."""

    def __init__(self) -> None:
        self._tasks: dict[tuple[RunKey, str], _Task] = {}

    def refusal(self, run: RunKey, acts: Sequence[TaskPut | TaskDrop]) -> Refused | None:
        """Return why a change may not write these."""
        after: dict[str, TaskRow | None] = {}
        for act in acts:
            if isinstance(act, TaskPut):
                after[act.operation] = _offered(run, 0, act, EPOCH)
                continue
            row = after.get(act.operation, self._row(run, act.operation))
            if not may_drop(row, act):
                return Refused("task", act.operation)
            after[act.operation] = None
        return None

    def write(
        self, run: RunKey, generation: int, acts: Sequence[TaskPut | TaskDrop], now: datetime
    ) -> None:
        """Write what is not refused."""
        for act in acts:
            if isinstance(act, TaskDrop):
                self._tasks.pop((run, act.operation), None)
                continue
            row = _offered(run, generation, act, now)
            place = run, act.operation
            progress = act.progress
            if not progress and place in self._tasks:
                progress = self._tasks[place].progress
            self._tasks[place] = _Task(row, act.arguments, row.since, now, progress)

    def waiting(self, tenant: str, now: datetime) -> Iterable[tuple[str, datetime]]:
        """Return the queue of each task that could be taken and is with no worker, and since when; of one tenant or of all."""
        return (
            (task.row.queue, task.due)
            for task in self._tasks.values()
            if tenant in ("", task.row.key.run.tenant)
            and task.row.worker is None
            and not task.held
            and task.due <= now
        )

    def hold(self, run: RunKey, now: datetime, *, held: bool) -> None:
        """Let nobody take the tasks that a run has, or let those that were held wait anew."""
        for place, task in list(self._tasks.items()):
            if place[0] != run or task.held == held:
                continue
            row = task.row
            if row.worker is None and not held:
                row = replace(row, since=max(row.since, now))
            self._tasks[place] = dataclasses.replace(task, row=row, held=held)

    def finish(self, change: FinishTask, now: datetime) -> str:
        """Take a task off its worker; return why not, or an empty string."""
        place = change.run, change.operation
        why = task_fence(self._row(*place), change)
        if why:
            return why
        if change.message is None:
            self._give_back(place, now, lapses=0)
        else:
            del self._tasks[place]
        return ""

    def beat(self, change: BeatTask) -> str:
        """Keep what an attempt has said; return why not, or an empty string."""
        place = change.run, change.operation
        why = task_fence(self._row(*place), change)
        if not why:
            self._tasks[place] = dataclasses.replace(self._tasks[place], progress=change.progress)
        return why

    def end(self, run: RunKey) -> None:
        """The run is over."""
        for place in [place for place in self._tasks if place[0] == run]:
            del self._tasks[place]

    def give_back(self, worker: WorkerId, now: datetime, *, lapses: int) -> None:
        """Offer again what a worker has."""
        for place, task in list(self._tasks.items()):
            if task.row.worker == worker:
                self._give_back(place, now, lapses=lapses)

    def of(self, run: RunKey) -> tuple[TaskRow, ...]:
        """Return the tasks of a run, by operation."""
        found = [task.row for place, task in self._tasks.items() if place[0] == run]
        return tuple(sorted(found, key=lambda row: row.key.operation))

    def claim(
        self,
        worker: WorkerId,
        wanted: Callable[[TaskRow], bool],
        now: datetime,
        *,
        limit: int,
        known: frozenset[TaskKey],
    ) -> TaskClaim:
        """Take tasks for a living worker.

        Args:
            wanted: Whether a task is of a queue and a step of the worker's.
        """
        held = {task.row.key: task for task in self._tasks.values() if task.row.worker == worker}
        unknown = [held[key] for key in sorted(held.keys() - known)]
        waiting = sorted(
            (
                task
                for task in self._tasks.values()
                if task.row.worker is None and not task.held and wanted(task.row)
            ),
            key=lambda task: (task.due, task.row.key.run, task.row.key.operation),
        )
        room = not any(task.row.lapses >= SUSPECT_LAPSES for task in held.values())
        can_go_on = [task for task in waiting if task.due <= now]
        # Those whose time means nothing come last, by the time at which it was set.
        ahead = [task for task in waiting if task.due > now and task.set_at > now]
        ahead.sort(key=lambda task: (task.set_at, task.row.key.run, task.row.key.operation))
        due_now = _one_suspect([*can_go_on, *ahead], room=room)
        taken = [self._take(task, worker, now) for task in due_now[: max(limit, 0)]]
        places = {task.row.key for task in taken}
        left = [task.due for task in waiting if task.due > now and task.row.key not in places]
        return TaskClaim(
            tuple(
                ClaimedTask(task.row, task.arguments, task.progress) for task in (*unknown, *taken)
            ),
            tuple(sorted(known - held.keys())),
            next(iter(left), None),
            now,
        )

    def _take(self, task: _Task, worker: WorkerId, now: datetime) -> _Task:
        row = replace(task.row, worker=worker, since=now, taken=task.row.taken + 1)
        taken = dataclasses.replace(task, row=row)
        self._tasks[row.key.run, row.key.operation] = taken
        return taken

    def _give_back(self, place: tuple[RunKey, str], now: datetime, *, lapses: int) -> None:
        task = self._tasks[place]
        row = replace(task.row, worker=None, since=now, lapses=task.row.lapses + lapses)
        self._tasks[place] = dataclasses.replace(task, row=row)

    def _row(self, run: RunKey, operation: str) -> TaskRow | None:
        task = self._tasks.get((run, operation))
        return None if task is None else task.row


def _offered(run: RunKey, generation: int, put: TaskPut, now: datetime) -> TaskRow:
    key = TaskKey(run, generation, put.operation, put.attempt)
    return TaskRow(key, put.queue, put.name, None, due_of(put, now))


def _one_suspect(tasks: list[_Task], *, room: bool) -> list[_Task]:
    """Return the tasks without those suspects that must wait for their turn to be alone."""
    kept: list[_Task] = []
    for task in tasks:
        if task.row.lapses < SUSPECT_LAPSES:
            kept.append(task)
        elif room:
            room = False
            kept.append(task)
    return kept
