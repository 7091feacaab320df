# ruff: noqa: S608 - only constants of this package are joined to statements; every value is bound
"""Who takes which task: a look at the queues for one worker. Workers without queues never come here."""

from __future__ import annotations

import itertools
from datetime import timedelta

from msgspec import Struct
from msgspec.structs import replace

from outlast.store.change import RunKey, WorkerId
from outlast.store.moment import END_OF_TIME, from_micros
from outlast.store.postgres.choose import Choice, Table, choosing
from outlast.store.postgres.claim import LEASE, NOW, Leasing
from outlast.store.postgres.clock import StoreClock
from outlast.store.postgres.session import Session
from outlast.store.protocol import SUSPECT_LAPSES
from outlast.store.row import TASK, Row, task_of
from outlast.store.task import ClaimedTask, TaskClaim, TaskKey, TaskRow

_IS_OFFERED = "task.worker IS NULL AND task.held = 0"
_PLACE = f"""
WITH RECURSIVE place (queue, name) AS (
    SELECT wanted, (SELECT min(task.name) FROM $s.task AS task WHERE task.queue = wanted AND {_IS_OFFERED})
    FROM unnest(%b::text[]) AS wanted
    UNION ALL
    SELECT place.queue, (
        SELECT min(task.name) FROM $s.task AS task
        WHERE task.queue = place.queue AND task.name > place.name AND {_IS_OFFERED}
    ) FROM place WHERE place.name IS NOT NULL
), fit AS (SELECT * FROM place WHERE name = ANY(%b::text[]))
"""
"""Which steps have tasks that wait in the worker's queues: found by one step in an index for each, however many the worker knows."""
_IN_PLACE = f"task.queue = fit.queue AND task.name = fit.name AND {_IS_OFFERED}"
_IS_DUE = f"""
{_PLACE} SELECT EXISTS (
    SELECT 1 FROM fit WHERE EXISTS (SELECT 1 FROM $s.task AS task WHERE {_IN_PLACE} AND task.due <= $s.micros())
        OR EXISTS (SELECT 1 FROM $s.task AS task WHERE {_IN_PLACE} AND task.set_at > $s.micros())
)
"""
_NEXT_DUE = f"""
{_PLACE} SELECT min(soonest.due) FROM fit, LATERAL (
    SELECT task.due FROM $s.task AS task WHERE {_IN_PLACE} AND task.due > %b AND task.due < {END_OF_TIME} ORDER BY task.due LIMIT 1
) AS soonest
"""
_DEAD = """
SELECT EXISTS (SELECT 1 FROM $s.worker WHERE worker <> %b AND (renewed + lease <= $s.micros() OR renewed > $s.micros() + 1000000))
"""


def _of(alias: str) -> str:
    return ", ".join(f"{alias}.{one.strip()}" for one in TASK.split(","))


_HELD = f"SELECT {_of('task')} FROM $s.task AS task WHERE task.worker = %b"
_PAYLOADS = f"""
SELECT {_of("task")}, task.arguments, task.progress FROM unnest(%b::text[], %b::text[], %b::text[]) AS wanted (tenant, run_id, operation)
JOIN $s.task AS task USING (tenant, run_id, operation) WHERE task.worker = %b
"""
"""What a task is of, which may be much, is read of those alone that the worker does not know."""


_TASKS = Table(
    "task",
    ("tenant", "run_id", "operation"),
    ("queue", "name"),
    f"{_of('task')}, task.arguments, task.progress",
)


def _due(order: str, condition: str, suspects: str) -> str:
    others = f"{_IS_OFFERED} AND task.lapses {suspects} {SUSPECT_LAPSES}"
    return choosing(_TASKS, _PLACE, order, f"{condition} AND {others}")


_DUE = _due("due", "task.due <= %b", "<")
_DUE_SUSPECT = _due("due", "task.due <= %b", ">=")
_AHEAD = _due("set_at", "task.set_at > %b AND task.due > %b", "<")
_AHEAD_SUSPECT = _due("set_at", "task.set_at > %b AND task.due > %b", ">=")
_TAKE = """
UPDATE $s.task AS task SET worker = %b, since = %b, taken = task.taken + 1
FROM unnest(%b::text[], %b::text[], %b::text[]) AS one (tenant, run_id, operation)
WHERE task.tenant = one.tenant AND task.run_id = one.run_id AND task.operation = one.operation
"""


class _DueTask(Struct, frozen=True):
    """A task that can be taken, and what gives its place: since when, or when that was set."""

    order: int
    task: ClaimedTask


class TaskLeasing:
    """Claims tasks, from one thread."""

    def __init__(self, session: Session, clock: StoreClock) -> None:
        self._session = session
        self._clock = clock
        self._leasing = Leasing(session, clock)

    def claim(
        self,
        worker: WorkerId,
        places: tuple[list[str], list[str]],
        limit: int,
        known: frozenset[TaskKey],
    ) -> TaskClaim:
        """Return what the worker may go on with.

        Args:
            places: Its queues, and the steps that it knows.
        """
        session, asked = self._session, self._clock.asking()
        with session.pipeline():
            lease, now = session.send(LEASE, (worker,)), session.send(NOW)
            dead = session.send(_DEAD, (worker,))
            due = session.send(_IS_DUE, places)
            rows, micros = lease.rows(), now.rows()[0][0]
            self._clock.saw(micros, asked)
            has_dead, has_due = dead.rows()[0][0], due.rows()[0][0]
        if not self._lives(rows, micros):
            return TaskClaim((), (), None, from_micros(micros))
        taken: list[ClaimedTask] = []
        if has_dead or (has_due and limit > 0):
            micros, taken = self._take(worker, places, max(limit, 0))
        with session.pipeline():
            mine = session.send(_HELD, (worker,))
            next_due = session.send(_NEXT_DUE, (*places, micros))
            held = {row.key for row in map(task_of, mine.rows())}
            soonest = next_due.rows()[0][0]
        news = {task.row.key for task in taken}
        unknown = self._payloads(worker, sorted(held - known - news))
        return TaskClaim(
            (*unknown, *taken),
            tuple(sorted(known - (held - news))),
            None if soonest is None else from_micros(soonest),
            from_micros(micros),
        )

    def _payloads(self, worker: WorkerId, keys: list[TaskKey]) -> list[ClaimedTask]:
        """Return tasks that the worker has, with what they are of."""
        if not keys:
            return []
        columns = (
            [key.run.tenant for key in keys],
            [key.run.run_id for key in keys],
            [key.operation for key in keys],
        )
        rows = self._session.rows(_PAYLOADS, (*columns, worker))
        return sorted(map(_claimed, rows), key=lambda one: one.row.key)

    def _take(
        self, worker: WorkerId, places: tuple[list[str], list[str]], limit: int
    ) -> tuple[int, list[ClaimedTask]]:
        session = self._session
        with session.pipeline():
            session.begin()
            lease = session.send(f"{LEASE} FOR KEY SHARE", (worker,))
            self._leasing.bury(worker)
            now = session.send(NOW)
            rows, micros = lease.rows(), now.rows()[0][0]
            lives = self._lives(rows, micros)
            due = self._due(worker, places, limit, micros) if limit and lives else []
            if due:
                keys = [one.task.row.key for one in due]
                session.send(
                    _TAKE,
                    (
                        worker,
                        micros,
                        [key.run.tenant for key in keys],
                        [key.run.run_id for key in keys],
                        [key.operation for key in keys],
                    ),
                )
            session.send("COMMIT")
        return micros, [_taken(one.task, worker, micros) for one in due]

    def _due(
        self, worker: WorkerId, places: tuple[list[str], list[str]], limit: int, micros: int
    ) -> list[_DueTask]:
        session = self._session
        past = Choice(session, _DUE, places, (micros,), limit)
        suspect = Choice(session, _DUE_SUSPECT, places, (micros,), 1)
        mine = session.send(_HELD, (worker,))
        tasks, suspects = list(map(_due_task, past.rows())), list(map(_due_task, suspect.rows()))
        has_room = all(task_of(row).lapses < SUSPECT_LAPSES for row in mine.rows())
        found = sorted([*tasks, *(suspects if has_room else ())], key=_age)
        if len(found) >= limit:
            return found[:limit]
        ahead = Choice(session, _AHEAD, places, (micros, micros), limit)
        last = Choice(session, _AHEAD_SUSPECT, places, (micros, micros), 1)
        later, others = list(map(_due_task, ahead.rows())), list(map(_due_task, last.rows()))
        if has_room and not suspects:
            later = sorted([*later, *others], key=_age)
        return list(itertools.islice(itertools.chain(found, later), limit))

    def _lives(self, rows: list[Row], micros: int) -> bool:
        if not rows:
            return False
        _, lease, renewed = rows[0]
        return self._clock.live(renewed, timedelta(microseconds=lease), micros)


def _claimed(row: Row) -> ClaimedTask:
    return ClaimedTask(task_of(row[:-2]), row[-2], row[-1])


def _due_task(row: Row) -> _DueTask:
    return _DueTask(row[0], _claimed(row[1:]))


def _taken(task: ClaimedTask, worker: WorkerId, micros: int) -> ClaimedTask:
    row: TaskRow = task.row
    return replace(
        task, row=replace(row, worker=worker, since=from_micros(micros), taken=row.taken + 1)
    )


def _age(one: _DueTask) -> tuple[int, RunKey, str]:
    key = one.task.row.key
    return one.order, key.run, key.operation
