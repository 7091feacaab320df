"""Who takes which task of a memory store."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from msgspec.structs import replace

from outlast.store.change import WorkerId
from outlast.store.memory_rows import MemoryRows
from outlast.store.protocol import SUSPECT_LAPSES
from outlast.store.rows import TaskState
from outlast.store.task import ClaimedTask, TaskClaim, TaskKey, TaskRow


def claim_tasks(
    rows: MemoryRows,
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
    tasks = _all_tasks(rows)
    held = {task.row.key: task for task in tasks if task.row.worker == worker}
    unknown = [held[key] for key in sorted(held.keys() - known)]
    waiting = sorted(
        (task for task in tasks if task.row.worker is None and not task.held and wanted(task.row)),
        key=lambda task: (task.due, task.row.key.run, task.row.key.operation),
    )
    room = not any(task.row.lapses >= SUSPECT_LAPSES for task in held.values())
    can_go_on = [task for task in waiting if task.due <= now]
    # Those whose time means nothing come last, by the time at which it was set.
    ahead = [task for task in waiting if task.due > now and task.set_at > now]
    ahead.sort(key=lambda task: (task.set_at, task.row.key.run, task.row.key.operation))
    due_now = _one_suspect([*can_go_on, *ahead], room=room)
    taken = [_take(rows, task, worker, now) for task in due_now[: max(limit, 0)]]
    places = {task.row.key for task in taken}
    left = [task.due for task in waiting if task.due > now and task.row.key not in places]
    return TaskClaim(
        tuple(
            ClaimedTask(task.row, task.arguments or b"", task.progress or b"")
            for task in (*unknown, *taken)
        ),
        tuple(sorted(known - held.keys())),
        next(iter(left), None),
        now,
    )


def give_back_tasks(rows: MemoryRows, worker: WorkerId, now: datetime, *, lapses: int) -> None:
    """Offer again what a worker has."""
    for task in _all_tasks(rows):
        if task.row.worker == worker:
            row = replace(task.row, worker=None, since=now, lapses=task.row.lapses + lapses)
            _put(rows, replace(task, row=row))


def _all_tasks(rows: MemoryRows) -> list[TaskState]:
    return [task for run in rows.all_rows() for task in run.tasks()]


def _take(rows: MemoryRows, task: TaskState, worker: WorkerId, now: datetime) -> TaskState:
    row = replace(task.row, worker=worker, since=now, taken=task.row.taken + 1)
    taken = replace(task, row=row)
    _put(rows, taken)
    return taken


def _put(rows: MemoryRows, task: TaskState) -> None:
    run = task.row.key.run
    rows.run(run.tenant, run.run_id).put_task(task)


def _one_suspect(tasks: list[TaskState], *, room: bool) -> list[TaskState]:
    """Return the tasks without those suspects that must wait for their turn to be alone."""
    kept: list[TaskState] = []
    for task in tasks:
        if task.row.lapses < SUSPECT_LAPSES:
            kept.append(task)
        elif room:
            room = False
            kept.append(task)
    return kept
