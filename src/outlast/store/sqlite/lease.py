# ruff: noqa: S608 - only constants of this package are joined to statements; every value is bound
"""Who holds which run: registering, renewing, burying the dead, claiming.

A worker is dead when its lease is over, when the machine was started again, or when the operating system has dropped the lock
that its process held. Its runs are given back as of that moment, in the same transaction that finds it dead.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import msgspec

from outlast.store.change import RunKey, WorkerId, WorkerRow
from outlast.store.moment import Instant, elapsed, from_micros, lapsed, lease_end, to_micros
from outlast.store.protocol import Claim, ClaimedRun
from outlast.store.sqlite.database import Database, Row
from outlast.store.sqlite.lock import LockFolder
from outlast.store.sqlite.row import HEAD, WORKER, head_of, worker_of
from outlast.store.sqlite.scope import Writing

_WORKER = f"SELECT {WORKER} FROM worker WHERE worker = ?"
_OTHERS = f"""
SELECT {WORKER}, EXISTS (SELECT 1 FROM run WHERE owner = worker.worker) FROM worker WHERE worker <> ?
"""
_GIVE_BACK = """
UPDATE run SET
    owner = NULL, wake_at = NULL, calls = mail, lapses = lapses + ?, stopped_boot = ?, stopped = ?,
    status = CASE status WHEN 'paused' THEN 'paused' ELSE 'ready' END,
    due = CASE status WHEN 'paused' THEN NULL ELSE ? END
WHERE owner = ?
"""
_MAIL = "SELECT tenant, run_id FROM run WHERE owner = ? AND mail = 1 ORDER BY tenant, run_id"
_DUE = """
SELECT due, tenant, run_id FROM run
WHERE workflow = ? AND due <= ? AND (unfit_build = '' OR unfit_build <> ? OR calls = 1)
ORDER BY due, tenant, run_id LIMIT ?
"""
_NEXT_DUE = "SELECT min(due) FROM run WHERE workflow = ? AND due > ?"
_TAKE = f"""
UPDATE run SET
    owner = ?, epoch = epoch + 1, status = 'running', reason = '', wake_at = NULL, due = NULL, calls = 0, unfit_build = ''
WHERE tenant = ? AND run_id = ?
RETURNING {HEAD}, stopped_boot, stopped
"""


def register(writing: Writing, row: WorkerRow) -> None:
    """Announce a worker; its lease begins."""
    if not writing.live(row.worker):
        _give_back(writing, row.worker, writing.micros, writing.instant, lapses=1)
    workflows = msgspec.json.encode(row.workflows).decode()
    lease = row.lease // timedelta(microseconds=1)
    values = (
        row.worker,
        row.host,
        row.pid,
        row.build,
        workflows,
        lease,
        writing.instant.boot,
        writing.instant.nanos,
    )
    writing.database.run(f"REPLACE INTO worker ({WORKER}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)


def renew(writing: Writing, worker: WorkerId) -> bool:
    """Let the worker's lease begin anew, unless it is over."""
    if not writing.live(worker):
        return False
    writing.renew({worker})
    return True


def retire(writing: Writing, worker: WorkerId) -> None:
    """Forget a worker that ends; its runs are given back now."""
    _give_back(writing, worker, writing.micros, writing.instant, lapses=0)
    writing.database.run("DELETE FROM worker WHERE worker = ?", (worker,))


class Claiming:
    """One look at the store for one worker; writes only when there is something to take or somebody to bury.

    Args:
        moment: Returns the store's time and the same moment on the lease clock.
    """

    def __init__(
        self,
        database: Database,
        locks: LockFolder,
        worker: WorkerId,
        moment: Callable[[], tuple[datetime, Instant]],
    ) -> None:
        self._database = database
        self._locks = locks
        self._worker = worker
        self._moment = moment
        self._now, self._instant = moment()

    def claim(self, workflows: frozenset[str], limit: int) -> Claim:
        """Return what the worker may go on with."""
        build = self._build()
        if build is None:
            return Claim((), (), None, self._now)
        taken: tuple[ClaimedRun, ...] = ()
        mail = self._mail()
        dead = self._dead()
        buried: list[WorkerId] = []
        if dead or self._due(workflows, build, min(limit, 1)):
            with self._database.immediate():
                # While we waited for the lock, leases went on, and others may have taken runs or buried the dead, or us.
                self._now, self._instant = self._moment()
                build = self._build()
                if build is None:
                    return Claim((), (), None, self._now)
                mail = self._mail()
                buried = [worker for worker in dead if self._bury(worker)]
                taken = tuple(self._take(key) for key in self._due(workflows, build, limit))
        for worker in buried:
            self._locks.bury(worker)
        return Claim(taken, mail, self._next_due(workflows), self._now)

    def _build(self) -> str | None:
        row = self._database.row(_WORKER, (self._worker,))
        if row is None or lapsed(Instant(row[6], row[7]), worker_of(row).lease, self._instant):
            return None
        return str(row[3])

    def _mail(self) -> tuple[RunKey, ...]:
        return tuple(
            RunKey(tenant, run_id) for tenant, run_id in self._database.rows(_MAIL, (self._worker,))
        )

    def _dead(self) -> list[WorkerId]:
        return [
            WorkerId(row[0])
            for row in self._database.rows(_OTHERS, (self._worker,))
            if self._has_lapsed(row) or (row[8] and self._locks.is_dead(WorkerId(row[0])))
        ]

    def _has_lapsed(self, row: Row) -> bool:
        return lapsed(Instant(row[6], row[7]), worker_of(row).lease, self._instant)

    def _bury(self, worker: WorkerId) -> bool:
        row = self._database.row(_WORKER, (worker,))
        if row is None:
            return False
        if self._has_lapsed(row):
            stopped = lease_end(Instant(row[6], row[7]), worker_of(row).lease)
        elif self._locks.is_dead(worker):
            stopped = self._instant
        else:
            return False
        writing = Writing(self._database, self._now, self._instant)
        due = to_micros(self._now - elapsed(stopped, self._instant))
        _give_back(writing, worker, due, stopped, lapses=1)
        self._database.run("DELETE FROM worker WHERE worker = ?", (worker,))
        return True

    def _due(self, workflows: frozenset[str], build: str, limit: int) -> list[tuple[str, str]]:
        if limit <= 0:
            return []
        micros = to_micros(self._now)
        found: list[Row] = []
        # A look for each workflow, so that due runs of workflows that this worker does not know are never read.
        for workflow in workflows:
            found += self._database.rows(_DUE, (workflow, micros, build, limit))
        return [(tenant, run_id) for _, tenant, run_id in sorted(found)[:limit]]

    def _take(self, key: tuple[str, str]) -> ClaimedRun:
        (row,) = self._database.rows(_TAKE, (self._worker, *key))
        boot, stopped = row[-2:]
        ago = None if stopped is None else elapsed(Instant(boot, stopped), self._instant)
        return ClaimedRun(head_of(row), ago)

    def _next_due(self, workflows: frozenset[str]) -> datetime | None:
        micros = to_micros(self._now)
        found = [self._database.value(_NEXT_DUE, (workflow, micros)) for workflow in workflows]
        return min((from_micros(due) for due in found if due is not None), default=None)


def _give_back(
    writing: Writing, worker: WorkerId, due: int, stopped: Instant, *, lapses: int
) -> None:
    writing.database.run(_GIVE_BACK, (lapses, stopped.boot, stopped.nanos, due, worker))
