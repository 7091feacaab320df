# ruff: noqa: S608 - only constants of this package are joined to statements; every value is bound
"""Who takes which task: a look at the queues for one worker. Workers without queues never come here."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection, Iterable, Iterator
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from outlast.store.change import RunKey
from outlast.store.moment import END_OF_TIME, from_micros, to_micros
from outlast.store.protocol import SUSPECT_LAPSES
from outlast.store.row import TASK, task_of
from outlast.store.sqlite.damage import RUN, decoded, names_json, paged, say
from outlast.store.sqlite.database import Row
from outlast.store.sqlite.lease import Claiming
from outlast.store.sqlite.row import LEASE
from outlast.store.task import ClaimedTask, TaskClaim, TaskKey, TaskRow

_OTHERS = f"""
SELECT worker, EXISTS (SELECT 1 FROM task WHERE worker = worker.worker), {LEASE} FROM worker WHERE worker <> ?
"""
_IS_OFFERED = "worker IS NULL AND held = 0"
_PLACE = f"""
WITH RECURSIVE place (queue, name) AS (
    SELECT value, (
        SELECT min(name) FROM task INDEXED BY task_due WHERE queue = value AND {_IS_OFFERED}
    ) FROM json_each(?1)
    UNION ALL
    SELECT queue, (
        SELECT min(task.name) FROM task INDEXED BY task_due
        WHERE task.queue = place.queue AND task.name > place.name AND {_IS_OFFERED}
    ) FROM place WHERE name IS NOT NULL
)
"""
"""Which steps have tasks that wait in the worker's queues: found by one step in an index for each, however many the worker knows."""
_KNOWN = "name IN (SELECT value FROM json_each(?2))"
_IN_PLACE = f"task.queue = place.queue AND task.name = place.name AND {_IS_OFFERED}"
_PLACES = f"""
{_PLACE}
SELECT * FROM (
    SELECT queue, name,
        EXISTS (SELECT 1 FROM task INDEXED BY task_due WHERE {_IN_PLACE} AND due <= ?3) AS is_due,
        EXISTS (SELECT 1 FROM task INDEXED BY task_set WHERE {_IN_PLACE} AND set_at > ?3) AS is_ahead
    FROM place WHERE {_KNOWN}
) WHERE is_due OR is_ahead
"""
_AT_PLACE = f"queue = ?1 AND name = ?2 AND {_IS_OFFERED}"
_DUE = f"""
SELECT due, {TASK} FROM task INDEXED BY task_due
WHERE {_AT_PLACE} AND due <= ?3 ORDER BY due, tenant, run_id, operation LIMIT ?4 OFFSET ?5
"""
_SET_AHEAD = f"""
SELECT set_at, {TASK} FROM task INDEXED BY task_set
WHERE {_AT_PLACE} AND set_at > ?3 AND due > ?3 ORDER BY set_at, tenant, run_id, operation LIMIT ?4 OFFSET ?5
"""
"""Tasks that were put when the wall clock was ahead of now: their times mean nothing."""
_NEXT_DUE = f"""
{_PLACE}
SELECT min((
    SELECT due FROM task INDEXED BY task_due WHERE {_IN_PLACE} AND due > ?3 AND due < {END_OF_TIME} ORDER BY due LIMIT 1
)) FROM place WHERE {_KNOWN}
"""
_HELD = f"SELECT {TASK} FROM task WHERE worker = ?"
_PAYLOADS = "SELECT arguments, progress FROM task WHERE tenant = ? AND run_id = ? AND operation = ?"
_TAKE = """
UPDATE task SET worker = ?, since = ?, taken = taken + 1 WHERE tenant = ? AND run_id = ? AND operation = ?
"""
_UNTAKEN = "a task of run %s is never taken"


class _DueTask(Struct, frozen=True):
    """A task that can be taken, and since when; of one whose time means nothing, when that was set."""

    due: int
    row: TaskRow


class TaskClaiming(Claiming):
    """One look at the queues for one worker; writes only when there is something to take or somebody to bury."""

    others = _OTHERS

    def claim_tasks(
        self,
        queues: frozenset[str],
        steps: frozenset[str],
        limit: int,
        known: frozenset[TaskKey],
    ) -> TaskClaim:
        """Return what the worker may go on with."""
        if self._build() is None:
            return TaskClaim((), (), None, self._now)
        places = (names_json(queues), names_json(steps))
        taken: list[ClaimedTask] = []
        dead = self._dead()
        if dead or self._due_tasks(places, min(limit, 1)):
            buried = []
            with self._database.immediate():
                # While we waited for the lock, leases went on, and others may have taken tasks or buried the dead, or us.
                self._now, self._instant = self._moment()
                if self._build() is None:
                    return TaskClaim((), (), None, self._now)
                buried = [worker for worker in dead if self._bury_alone(worker)]
                taken = self._take_tasks(places, limit)
            for worker in buried:
                self._locks.bury(worker)
        held = self._held()
        news = {task.row.key for task in taken}
        unknown = [
            ClaimedTask(held[key], *self._payloads(held[key]))
            for key in sorted(held.keys() - known - news)
        ]
        return TaskClaim(
            (*unknown, *taken),
            tuple(sorted(known - (held.keys() - news))),
            self._next_task(places),
            self._now,
        )

    def _held(self) -> dict[TaskKey, TaskRow]:
        lost = (RUN, "a task of run %s is not known to its worker")
        found = decoded(self._database, _HELD, (self._worker,), task_of, lost)
        return {row.key: row for row in found if row is not None}

    def _take_tasks(self, places: tuple[str, str], limit: int) -> list[ClaimedTask]:
        """Take up to `limit` tasks, oldest first; others in the place of those that cannot be taken."""
        taken: list[ClaimedTask] = []
        failed: set[TaskKey] = set()
        while due := self._due_tasks(places, limit - len(taken), failed):
            before = len(failed)
            for task in due:
                try:
                    taken.append(self._take_task(task.row))
                except Exception as error:
                    if self._concerns_more(error):
                        raise
                    say(str(task.row.key.run), _UNTAKEN, error)
                    failed.add(task.row.key)
            if len(failed) == before:
                break
        return taken

    def _take_task(self, row: TaskRow) -> ClaimedTask:
        claimed = ClaimedTask(
            replace(row, worker=self._worker, since=self._now, taken=row.taken + 1),
            *self._payloads(row),
        )
        values = (self._worker, to_micros(self._now), *_place(row.key))
        self._database.run(_TAKE, values)
        return claimed

    def _payloads(self, row: TaskRow) -> tuple[bytes, bytes]:
        """Return arguments and progress; nothing of both where the row has gone."""
        found = self._database.row(_PAYLOADS, _place(row.key))
        arguments, progress = found or (b"", b"")
        return arguments, progress

    def _due_tasks(
        self, places: tuple[str, str], limit: int, but: Collection[TaskKey] = ()
    ) -> list[_DueTask]:
        """Return up to `limit` tasks that can be taken, oldest first; hardly one more is read than needed to find them."""
        if limit <= 0:
            return []
        now = to_micros(self._now)
        found = self._database.rows(_PLACES, (*places, now))
        due = [(queue, name) for queue, name, is_due, _ in found if is_due]
        ahead = [(queue, name) for queue, name, _, is_ahead in found if is_ahead]
        in_order: Iterable[_DueTask] = itertools.chain(
            self._merged_tasks(_DUE, due, now, limit),
            self._merged_tasks(_SET_AHEAD, ahead, now, limit),
        )
        if but:
            in_order = (task for task in in_order if task.row.key not in but)
        return list(itertools.islice(self._one_suspect_task(in_order), limit))

    def _merged_tasks(
        self, sql: str, places: list[tuple[str, str]], now: int, limit: int
    ) -> Iterator[_DueTask]:
        first = limit // max(len(places), 1) + 1
        lost = (RUN, _UNTAKEN)
        return heapq.merge(
            *(
                paged(self._database, sql, (*place, now), first, _due_task, lost)
                for place in places
            ),
            key=_age,
        )

    def _one_suspect_task(self, tasks: Iterable[_DueTask]) -> Iterator[_DueTask]:
        """Leave out those suspects that must wait for their turn to be alone."""
        room: bool | None = None
        for task in tasks:
            if task.row.lapses >= SUSPECT_LAPSES:
                if room is None:
                    room = all(row.lapses < SUSPECT_LAPSES for row in self._held().values())
                if not room:
                    continue
                room = False
            yield task

    def _next_task(self, places: tuple[str, str]) -> datetime | None:
        due = self._database.value(_NEXT_DUE, (*places, to_micros(self._now)))
        return None if due is None else from_micros(due)


def _due_task(row: Row) -> _DueTask:
    due, *columns = row
    return _DueTask(due, task_of(tuple(columns)))


def _age(task: _DueTask) -> tuple[int, RunKey, str]:
    return task.due, task.row.key.run, task.row.key.operation


def _place(key: TaskKey) -> tuple[str, str, str]:
    return key.run.tenant, key.run.run_id, key.operation
