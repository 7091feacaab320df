# ruff: noqa: S608 - only constants of this package are joined to statements; every value is bound
"""Rows of tasks: put and dropped by a run's owner, finished and given back by who has them."""

from __future__ import annotations

from outlast.store.change import (
    BeatTask,
    FinishTask,
    Refused,
    RunChange,
    RunKey,
    TaskPut,
    WorkerId,
)
from outlast.store.moment import to_micros
from outlast.store.row import TASK, task_of
from outlast.store.sqlite.database import Database
from outlast.store.sqlite.scope import Writing
from outlast.store.task import TaskRow, due_of, may_drop, task_fence

_OF_OPERATION = "tenant = ? AND run_id = ? AND operation = ?"
_FIND = f"SELECT {TASK} FROM task WHERE {_OF_OPERATION}"
_OF_RUN = f"SELECT {TASK} FROM task WHERE tenant = ? AND run_id = ? ORDER BY operation"
_PUT = f"""
REPLACE INTO task (tenant, run_id, operation, generation, attempt, queue, name, due, since, set_at, arguments, progress)
VALUES ({"?, " * 11}coalesce(nullif(?, x''), (SELECT progress FROM task WHERE {_OF_OPERATION}), x''))
"""
_BEAT = f"UPDATE task SET progress = ? WHERE {_OF_OPERATION}"
_HOLD = "UPDATE task SET held = 1 WHERE tenant = ? AND run_id = ?"
_OFFER_AGAIN = """
UPDATE task SET held = 0, since = CASE WHEN worker IS NULL THEN max(since, ?) ELSE since END
WHERE tenant = ? AND run_id = ? AND held = 1
"""
_DROP = f"DELETE FROM task WHERE {_OF_OPERATION}"
_END = "DELETE FROM task WHERE tenant = ? AND run_id = ?"
_GIVE_BACK = f"UPDATE task SET worker = NULL, since = ? WHERE {_OF_OPERATION}"
_GIVE_ALL_BACK = """
UPDATE task SET worker = NULL, since = ?, lapses = min(lapses, 1000000) + ? WHERE worker = ?
"""


def of_run(database: Database, run: RunKey) -> tuple[TaskRow, ...]:
    """Return the tasks of a run, by operation."""
    return tuple(task_of(row) for row in database.rows(_OF_RUN, (run.tenant, run.run_id)))


def write(writing: Writing, change: RunChange, generation: int) -> Refused | None:
    """Write the tasks of an owned change; on a refusal the caller undoes what was written."""
    for act in change.tasks:
        place = (change.run.tenant, change.run.run_id, act.operation)
        if isinstance(act, TaskPut):
            due = to_micros(due_of(act, writing.now))
            values = (generation, act.attempt, act.queue, act.name, due, due, writing.micros)
            writing.database.run(_PUT, (*place, *values, act.arguments, act.progress, *place))
            continue
        if not may_drop(_find(writing, place), act):
            return Refused("task", act.operation)
        writing.database.run(_DROP, place)
    _hold(writing, change)
    return None


def _hold(writing: Writing, change: RunChange) -> None:
    """Let nobody take the tasks that a run has, or let those that were held wait anew."""
    run = (change.run.tenant, change.run.run_id)
    if change.hold:
        writing.database.run(_HOLD, run)
    elif change.hold is not None:
        writing.database.run(_OFFER_AGAIN, (writing.micros, *run))


def finish(writing: Writing, change: FinishTask) -> str:
    """Take a task off its worker; return why not, or an empty string."""
    place = (change.run.tenant, change.run.run_id, change.operation)
    why = task_fence(_find(writing, place), change)
    if why:
        return why
    if change.message is None:
        writing.database.run(_GIVE_BACK, (writing.micros, *place))
    else:
        writing.database.run(_DROP, place)
    return ""


def beat(writing: Writing, change: BeatTask) -> str:
    """Keep what an attempt has said; return why not, or an empty string."""
    place = (change.run.tenant, change.run.run_id, change.operation)
    why = task_fence(_find(writing, place), change)
    if not why:
        writing.database.run(_BEAT, (change.progress, *place))
    return why


def end(writing: Writing, run: tuple[str, str]) -> None:
    """The run is over, or begins a new generation: nobody waits for its tasks."""
    writing.database.run(_END, run)


def give_back(writing: Writing, worker: WorkerId, *, lapses: int) -> None:
    """Offer again what a worker has."""
    writing.database.run(_GIVE_ALL_BACK, (writing.micros, lapses, worker))


def _find(writing: Writing, place: tuple[str, str, str]) -> TaskRow | None:
    row = writing.database.row(_FIND, place)
    return None if row is None else task_of(row)
