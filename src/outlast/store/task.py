"""Tasks as stores show them: attempts of remote steps that wait for a worker, or are with one; and the conditions of both stores.

A task belongs to one generation of a run and to one operation of it. It is offered, then with one worker under that worker's
lease, then gone: finished, dropped, replaced, or ended with its run.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Struct

from outlast.journal.entry import PAYLOAD, PLAIN
from outlast.store.change import BeatTask, FinishTask, RunKey, TaskDrop, TaskPut, WorkerId


class TaskKey(Struct, frozen=True, order=True):
    """Names one attempt of a remote step."""

    run: Annotated[RunKey, PLAIN]
    generation: Annotated[int, PLAIN]
    operation: Annotated[str, PLAIN]
    attempt: Annotated[int, PLAIN]


class TaskRow(Struct, frozen=True):
    """A task as it stands.

    Args:
        worker: Who has it; None while it waits.
        since: Since or from when it waits, or since when that worker has it.
        taken: How often a worker took it.
        lapses: How many of those died with it.
    """

    key: Annotated[TaskKey, PLAIN]
    queue: Annotated[str, PLAIN]
    name: Annotated[str, PLAIN]
    worker: Annotated[WorkerId | None, PLAIN]
    since: Annotated[datetime, PLAIN]
    taken: Annotated[int, PLAIN] = 0
    lapses: Annotated[int, PLAIN] = 0


class ClaimedTask(Struct, frozen=True):
    """A task that a worker now has, with all it needs to make the attempt.

    Args:
        arguments: JSON object of the step's bound arguments by parameter name.
        progress: JSON of the details that earlier attempts have left; empty for none.
    """

    row: Annotated[TaskRow, PLAIN]
    arguments: Annotated[bytes, PAYLOAD]
    progress: Annotated[bytes, PAYLOAD] = b""


class TaskClaim(Struct, frozen=True):
    """What a look at the queues brought.

    Args:
        tasks: Taken now, or the worker's already without its knowing: the answer to an earlier claim was lost.
        lost: Of those that the worker works on, those that are its own no longer. One that is among `tasks` too was taken from it and
            taken anew: what is under way is of the former taking.
        next_due: When the next task that waits may be taken, if any.
        now: The store's time.
    """

    tasks: tuple[ClaimedTask, ...]
    lost: tuple[TaskKey, ...]
    next_due: datetime | None
    now: datetime


def due_of(put: TaskPut, at: datetime) -> datetime:
    """Return from when a task that is put at `at` may be taken."""
    return at if put.due_at is None else max(at, put.due_at)


def may_drop(row: TaskRow | None, drop: TaskDrop) -> bool:
    """Return whether the condition of a drop holds."""
    if drop.attempt is None and drop.taken is None:
        return True
    if row is None or drop.attempt not in (None, row.key.attempt):
        return False
    return drop.taken is None or (row.worker is None and row.taken == drop.taken)


def task_fence(row: TaskRow | None, change: FinishTask | BeatTask) -> str:
    """Return why a worker may not write of a task, for people; empty when it may."""
    if row is None or (row.key.generation, row.key.attempt) != (change.generation, change.attempt):
        return "there is no such task any more"
    if row.worker != change.worker:
        return f"the task is with {row.worker or 'nobody'}"
    return ""
