# ruff: noqa: S608 - only constants of this package are joined to statements; every value is bound
"""Who holds which run: registering, renewing, burying the dead, claiming.

A worker is dead when its lease is over, when the machine was started again, or when the operating system has dropped the lock
that its process held. Its runs are given back as of that moment, in the same transaction that finds it dead.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import datetime, timedelta

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from outlast.errors import StoreCorruptError
from outlast.store.change import RunHead, RunKey, Status, WorkerId, WorkerRow
from outlast.store.moment import (
    BEGINNING_OF_TIME,
    END_OF_TIME,
    Instant,
    elapsed,
    from_micros,
    lapsed,
    lease_end,
    to_micros,
)
from outlast.store.protocol import RELAY_AFTER, SUSPECT_LAPSES, Claim, ClaimedRun
from outlast.store.row import WORKER, head_of, unfit_line
from outlast.store.sqlite import task
from outlast.store.sqlite.damage import RUN, WORKER_ID, decoded, names_json, paged, say
from outlast.store.sqlite.database import Database, Row
from outlast.store.sqlite.failure import concerns_all
from outlast.store.sqlite.lock import LockFolder
from outlast.store.sqlite.owned import RECALL_KINDS
from outlast.store.sqlite.row import FIND_LEASE, HEAD, LEASE, lease_of
from outlast.store.sqlite.scope import Writing

_BUILD = f"SELECT CAST(build AS BLOB), {LEASE} FROM worker WHERE worker = ?"
_OTHERS = f"""
SELECT worker, EXISTS (SELECT 1 FROM run WHERE owner = worker.worker), {LEASE} FROM worker WHERE worker <> ?
"""
_GIVE_BACK = f"""
UPDATE run SET
    owner = NULL, wake_at = NULL, calls = mail, lapses = min(lapses, 1000000) + ?, stopped_boot = ?, stopped = ?,
    status = CASE status WHEN 'paused' THEN 'paused' ELSE 'ready' END,
    due = CASE WHEN status <> 'paused' OR EXISTS (
        SELECT 1 FROM message AS unread INDEXED BY message_unread
        WHERE unread.tenant = run.tenant AND unread.run_id = run.run_id
          AND unread.generation = CASE run.incarnation WHEN 0 THEN run.generation ELSE run.incarnation END
          AND unread.consumed = 0 AND unread.kind IN ({RECALL_KINDS})
    ) THEN ? END, due_set_at = ?
WHERE owner = ?
"""
_MAIL = "SELECT tenant, run_id FROM run WHERE owner = ? AND mail = 1 ORDER BY tenant, run_id"
_HELD = "SELECT count(*) FROM run WHERE owner = ?"


class _Looks(Struct, frozen=True):
    """The statements that find what is due; of a paused worker only in what was released.

    Args:
        places: Where due runs of the worker's workflows stand: with each workflow the builds that do not fit. Found by one step in an
            index for each, whatever else is stored.
        due: Those of one place.
        ahead: Runs that were given back when the wall clock was ahead of now: their times mean nothing, and whoever takes them judges
            anew.
        next_due: When the next one comes due.
    """

    places: str
    due: str
    ahead: str
    next_due: str


_FITS = "unfit IS NOT NULL AND NOT instr(unfit, ?2)"
_AT_PLACE = "workflow = ?1 AND unfit = CAST(?2 AS TEXT)"


def _looks(kind: str, also: str) -> _Looks:
    """Return the statements over the indexes of one kind.

    Args:
        also: What their rows have in common, so that SQLite may use them.
    """
    is_due = f"due IS NOT NULL{also}"
    in_place = f"run.workflow = place.workflow AND run.unfit = place.unfit{also}"
    place = f"""
WITH RECURSIVE place (workflow, unfit) AS (
    SELECT value, (
        SELECT min(unfit) FROM run INDEXED BY {kind}_due WHERE run.workflow = value AND {is_due}
    ) FROM json_each(?1)
    UNION ALL
    SELECT workflow, (
        SELECT min(run.unfit) FROM run INDEXED BY {kind}_due
        WHERE run.workflow = place.workflow AND {is_due} AND run.unfit > place.unfit
    ) FROM place WHERE unfit IS NOT NULL
)
"""
    places = f"""
{place}
SELECT * FROM (
    SELECT workflow, CAST(unfit AS BLOB),
        EXISTS (SELECT 1 FROM run INDEXED BY {kind}_due WHERE {in_place} AND due <= ?3) AS is_due,
        EXISTS (
            SELECT 1 FROM run INDEXED BY {kind}_due_set WHERE {in_place} AND due IS NOT NULL AND due_set_at > ?3
        ) AS is_ahead
    FROM place WHERE {_FITS}
) WHERE is_due OR is_ahead
"""
    due = f"""
SELECT due, {HEAD}, stopped_boot, stopped FROM run INDEXED BY {kind}_due
WHERE {_AT_PLACE}{also} AND due <= ?3 ORDER BY due, tenant, run_id LIMIT ?4 OFFSET ?5
"""
    ahead = f"""
SELECT due_set_at, {HEAD}, stopped_boot, stopped FROM run INDEXED BY {kind}_due_set
WHERE {_AT_PLACE}{also} AND due_set_at > ?3 AND due > ?3 ORDER BY due_set_at, tenant, run_id LIMIT ?4 OFFSET ?5
"""
    next_due = f"""
{place}
SELECT min((
    SELECT due FROM run INDEXED BY {kind}_due WHERE {in_place} AND due > ?3 AND due < {END_OF_TIME} ORDER BY due LIMIT 1
)) FROM place WHERE {_FITS}
"""
    return _Looks(places, due, ahead, next_due)


_ALL = _looks("run", "")
_RELEASED = _looks("run_released", " AND released = 1")
_OLDEST_ITEM = "SELECT min(at) FROM outbox"
_NEWEST_ITEM = "SELECT max(at) FROM outbox"
_OWNS_SUSPECT = "SELECT EXISTS (SELECT 1 FROM run WHERE owner = ? AND lapses >= ?)"
_TAKE = """
UPDATE run SET
    owner = ?, epoch = epoch + 1, status = 'running', reason = '', wake_at = NULL, due = NULL, calls = 0,
    released = min(released, ?)
WHERE tenant = ? AND run_id = ?
"""
_LAST_EPOCH = (1 << 63) - 1
"""No later owner can be told from this one's."""
_UNCLAIMED = "run %s is never claimed"
_LOST = (RUN, _UNCLAIMED)
_UNBURIED = "worker %s is never buried"
_CLAIMABLE = frozenset(
    {Status.READY, Status.RUNNING, Status.WAITING, Status.BLOCKED, Status.PAUSED}
)


def register(writing: Writing, row: WorkerRow) -> None:
    """Announce a worker; its lease begins."""
    if not writing.live(row.worker):
        _give_back(writing, row.worker, writing.micros, writing.instant, lapses=1)
    workflows = msgspec.json.encode(row.workflows).decode()
    queues = msgspec.json.encode(row.queues).decode()
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
        queues,
        row.paused,
    )
    writing.database.run(f"REPLACE INTO worker ({WORKER}) VALUES ({'?, ' * 9}?)", values)


def registered(database: Database) -> set[WorkerId]:
    """Return the ids of all workers; one that is damaged is changed, so that it is nobody's."""
    rows = database.rows("SELECT CAST(worker AS BLOB) FROM worker")
    return {WorkerId(worker.decode(errors="replace")) for (worker,) in rows}


def renew(writing: Writing, worker: WorkerId) -> bool:
    """Let the worker's lease begin anew, unless it is over."""
    if not writing.live(worker):
        return False
    writing.renew({worker})
    return True


def report(database: Database, worker: WorkerId, body: bytes) -> None:
    """Keep what a worker says of itself."""
    database.run("UPDATE worker SET report = ? WHERE worker = ?", (body, worker))


def retire(writing: Writing, worker: WorkerId) -> None:
    """Forget a worker that ends; its runs are given back now."""
    _give_back(writing, worker, writing.micros, writing.instant, lapses=0)
    writing.database.run("DELETE FROM worker WHERE worker = ?", (worker,))


class _DueRun(Struct, frozen=True):
    """A run that can be taken, since when, and when its former owner stopped.

    Args:
        due: Of one whose time means nothing, when that was set.
    """

    due: int
    head: RunHead
    stopped: Instant | None


class Claiming:
    """One look at the store for one worker; writes only when there is something to take or somebody to bury.

    Args:
        moment: Returns the store's time and the same moment on the lease clock.
        released: Take only what was released.
    """

    others = _OTHERS
    """The other workers, each with whether its death, where that can be proved, would give something back."""

    def __init__(
        self,
        database: Database,
        locks: LockFolder,
        worker: WorkerId,
        moment: Callable[[], tuple[datetime, Instant]],
        *,
        released: bool = False,
    ) -> None:
        self._looks = _RELEASED if released else _ALL
        self._is_paused = released
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
                buried = [worker for worker in dead if self._bury_alone(worker)]
                taken = tuple(self._take_due(workflows, build, limit))
        for worker in buried:
            self._locks.bury(worker)
        held = self._database.value(_HELD, (self._worker,))
        due = self._next_due(workflows, build)
        return Claim(taken, mail, due, self._now, held, self._next_relay())

    def _build(self) -> str | None:
        row = self._database.row(_BUILD, (self._worker,))
        if row is None or lapsed(*lease_of(row[1:]), self._instant):
            return None
        return row[0].decode(errors="replace")

    def _mail(self) -> tuple[RunKey, ...]:
        lost = (RUN, "run %s is not told of its mail")
        found = decoded(self._database, _MAIL, (self._worker,), lambda row: RunKey(*row), lost)
        return tuple(run for run in found if run is not None)

    def _dead(self) -> list[WorkerId]:
        lost = (WORKER_ID, _UNBURIED)
        found = decoded(self._database, self.others, (self._worker,), self._dead_in, lost)
        return [worker for worker in found if worker]

    def _dead_in(self, row: Row) -> WorkerId | None:
        worker, owns, *lease = row
        dead = lapsed(*lease_of(tuple(lease)), self._instant) or (
            owns and self._locks.is_dead(WorkerId(worker))
        )
        return WorkerId(worker) if dead else None

    def _bury_alone(self, worker: WorkerId) -> bool:
        try:
            with self._database.savepoint():
                return self._bury(worker)
        except Exception as error:
            if self._concerns_more(error):
                raise
            say(worker, _UNBURIED, error)
            return False

    def _bury(self, worker: WorkerId) -> bool:
        row = self._database.row(FIND_LEASE, (worker,))
        if row is None:
            return False
        renewed, lease = lease_of(row)
        if lapsed(renewed, lease, self._instant):
            stopped = lease_end(renewed, lease)
        elif self._locks.is_dead(worker):
            stopped = self._instant
        else:
            return False
        writing = Writing(self._database, self._now, self._instant)
        due = to_micros(self._now - elapsed(stopped, self._instant))
        _give_back(writing, worker, due, stopped, lapses=1)
        self._database.run("DELETE FROM worker WHERE worker = ?", (worker,))
        return True

    def _take_due(self, workflows: frozenset[str], build: str, limit: int) -> list[ClaimedRun]:
        """Take up to `limit` runs, oldest first; others in the place of those that cannot be taken."""
        taken: list[ClaimedRun] = []
        failed: set[RunKey] = set()
        while due := self._due(workflows, build, limit - len(taken), failed):
            before = len(failed)
            for run in due:
                try:
                    taken.append(self._take(run))
                except Exception as error:
                    if self._concerns_more(error):
                        raise
                    say(str(run.head.run), _UNCLAIMED, error)
                    failed.add(run.head.run)
            if len(failed) == before:
                break
        return taken

    def _concerns_more(self, error: Exception) -> bool:
        """Whether `error` is about more than the row that led to it."""
        return concerns_all(error) or not self._database.in_transaction

    def _due(
        self,
        workflows: frozenset[str],
        build: str,
        limit: int,
        but: Collection[RunKey] = (),
    ) -> list[_DueRun]:
        """Return up to `limit` runs that can be taken, oldest first; hardly one more is read than needed to find them."""
        if limit <= 0:
            return []
        now = to_micros(self._now)
        places = self._database.rows(
            self._looks.places, (names_json(workflows), unfit_line(build), now)
        )
        due = [(workflow, unfit) for workflow, unfit, is_due, _ in places if is_due]
        ahead = [(workflow, unfit) for workflow, unfit, _, is_ahead in places if is_ahead]
        in_order: Iterable[_DueRun] = itertools.chain(
            self._merged(self._looks.due, due, now, limit),
            self._merged(self._looks.ahead, ahead, now, limit),
        )
        if but:
            in_order = (run for run in in_order if run.head.run not in but)
        return list(itertools.islice(self._one_suspect(in_order), limit))

    def _merged(
        self, sql: str, places: list[tuple[str, bytes]], now: int, limit: int
    ) -> Iterator[_DueRun]:
        first = limit // max(len(places), 1) + 1
        return heapq.merge(
            *(
                paged(self._database, sql, (*place, now), first, _due_run, _LOST)
                for place in places
            ),
            key=_place,
        )

    def _one_suspect(self, runs: Iterable[_DueRun]) -> Iterator[_DueRun]:
        """Leave out those suspects that must wait for their turn to be alone."""
        room: bool | None = None
        for run in runs:
            if run.head.lapses >= SUSPECT_LAPSES:
                if room is None:
                    values = (self._worker, SUSPECT_LAPSES)
                    room = not self._database.value(_OWNS_SUSPECT, values)
                if not room:
                    continue
                room = False
            yield run

    def _take(self, run: _DueRun) -> ClaimedRun:
        head = run.head
        taken = replace(
            head,
            owner=self._worker,
            epoch=head.epoch + 1,
            status=Status.RUNNING,
            reason="",
            wake_at=None,
            released=head.released and self._is_paused,
        )
        ago = None if run.stopped is None else elapsed(run.stopped, self._instant)
        # The only write, and the last thing that can fail: one statement is undone as a whole, without a savepoint's cost.
        values = (self._worker, int(self._is_paused), head.run.tenant, head.run.run_id)
        self._database.run(_TAKE, values)
        return ClaimedRun(taken, ago)

    def _next_due(self, workflows: frozenset[str], build: str) -> datetime | None:
        values = (names_json(workflows), unfit_line(build), to_micros(self._now))
        due = self._database.value(self._looks.next_due, values)
        return None if due is None else from_micros(due)

    def _next_relay(self) -> datetime | None:
        """Return when the oldest item is anybody's. One whose time is damaged is older, or younger, than any: anybody's now."""
        oldest = self._database.value(_OLDEST_ITEM)
        if oldest is None:
            return None
        ahead = self._database.value(_NEWEST_ITEM) > to_micros(self._now)
        return self._now if ahead else from_micros(max(oldest, BEGINNING_OF_TIME)) + RELAY_AFTER


def _due_run(row: Row) -> _DueRun:
    """Return the run in a row of `_Looks.due`.

    Raises:
        StoreCorruptError: It makes no sense that this run is due, or it cannot be taken once more.
    """
    due, *columns, boot, nanos = row
    head = head_of(tuple(columns))
    if head.status not in _CLAIMABLE:
        raise StoreCorruptError(f"it is {head.status} and yet due")
    if head.epoch >= _LAST_EPOCH:
        raise StoreCorruptError(f"its epoch is {head.epoch}")
    return _DueRun(due, head, None if nanos is None else Instant(boot or "", nanos))


def _place(run: _DueRun) -> tuple[int, RunKey]:
    return run.due, run.head.run


def _give_back(
    writing: Writing, worker: WorkerId, due: int, stopped: Instant, *, lapses: int
) -> None:
    values = (lapses, stopped.boot, stopped.nanos, due, writing.micros, worker)
    writing.database.run(_GIVE_BACK, values)
    task.give_back(writing, worker, lapses=lapses)
