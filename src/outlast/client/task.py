"""Steps that wait in a queue, or are with a worker of one, as they look from outside."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import msgspec

from outlast.store.protocol import LiveWorker
from outlast.store.task import TaskRow


class TaskView(msgspec.Struct, frozen=True):
    """An attempt of a remote step.

    Args:
        since: Since or from when it waits, or since when that worker has it.
        worker: Who has it; None while it waits.
        attended: Whether that worker lives.
        serving: Live workers that serve the queue.
    """

    operation: str
    name: str
    attempt: int
    queue: str
    since: datetime
    worker: str | None
    attended: bool
    serving: list[str]


def task_views(rows: Iterable[TaskRow], workers: Iterable[LiveWorker]) -> list[TaskView]:
    """Return tasks as people see them."""
    live = [one.row for one in workers if one.live]
    return [
        TaskView(
            operation=row.key.operation,
            name=row.name,
            attempt=row.key.attempt,
            queue=row.queue,
            since=row.since,
            worker=row.worker,
            attended=any(one.worker == row.worker for one in live),
            serving=[one.worker for one in live if row.queue in one.queues],
        )
        for row in rows
    ]


def unserved(tasks: Iterable[TaskView]) -> TaskView | None:
    """Return the first task that waits for a worker of a queue which no live worker serves."""
    return next((one for one in tasks if not one.serving and not one.attended), None)
