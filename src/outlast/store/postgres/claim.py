# ruff: noqa: S608 - only constants of this package are joined to statements; every value is bound
"""Who holds which run and which task: registering, renewing, burying the dead, claiming.

A look costs one round trip and locks nothing while there is nothing to take. What is taken is locked row by row (`choose`), and rows that
another process has locked are passed over, so that any number of workers take from one queue without waiting for each other.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from datetime import datetime, timedelta

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from outlast.store.change import RunKey, Status, WorkerId, WorkerRow
from outlast.store.condition import RECALLS
from outlast.store.moment import END_OF_TIME, elapsed, from_micros, to_micros
from outlast.store.postgres.choose import Choice, Table, choosing
from outlast.store.postgres.clock import StoreClock
from outlast.store.postgres.look import lock_number
from outlast.store.postgres.row import HEAD, instant_of
from outlast.store.postgres.session import Pending, Session
from outlast.store.protocol import RELAY_AFTER, SUSPECT_LAPSES, Claim, ClaimedRun
from outlast.store.restoration import EVERYBODY, RESTORATION, Restoration, moment_of, put_back
from outlast.store.row import WORKER, Row, head_of, unfit_line

MICROSECOND = timedelta(microseconds=1)
NOW = "SELECT $s.micros()"
LEASE = "SELECT build, lease, renewed FROM $s.worker WHERE worker = %b"
_HAS_NOT_ENDED = "status IN ('ready', 'running', 'waiting', 'blocked', 'paused')"
_OPEN = f"{_HAS_NOT_ENDED} AND epoch < 9223372036854775807"
_RECALLS = ", ".join(sorted(f"'{kind.value}'" for kind in RECALLS))
_DEAD = """
SELECT EXISTS (SELECT 1 FROM $s.worker WHERE worker <> %b AND (renewed + lease <= $s.micros() OR renewed > $s.micros() + 1000000))
"""
_LOCK_DEAD = """
SELECT worker, lease, renewed, $s.micros() FROM $s.worker WHERE worker <> %b
    AND (renewed + lease <= $s.micros() OR renewed > $s.micros() + 1000000)
ORDER BY worker FOR UPDATE SKIP LOCKED
"""
_PUT_WORKER = f"""
INSERT INTO $s.worker ({WORKER}) VALUES (%b, %b, %b, %b, %b, %b, 'wall', $s.micros(), %b, %b)
ON CONFLICT (worker) DO UPDATE SET host = excluded.host, pid = excluded.pid, build = excluded.build,
    workflows = excluded.workflows, lease = excluded.lease, boot = excluded.boot, renewed = excluded.renewed, queues = excluded.queues,
    paused = excluded.paused, report = ''
"""
_RENEW = "UPDATE $s.worker SET renewed = $s.micros() WHERE worker = %b AND (renewed + lease > $s.micros() OR %b) RETURNING renewed"
_LOCK_RUNS = """
SELECT 1 FROM (
    SELECT tenant, run_id FROM $s.run WHERE owner = ANY(%b::text[]) UNION SELECT tenant, run_id FROM $s.task WHERE worker = ANY(%b::text[])
) AS wanted JOIN $s.run AS run USING (tenant, run_id) ORDER BY run.tenant, run.run_id FOR UPDATE OF run
"""
"""In the order of every commit: runs before their tasks, also those of which only a task is with the dead."""
_GIVE_BACK = f"""
WITH gone AS (SELECT * FROM unnest(%b::text[], %b::bigint[]) AS one (worker, ends)),
held AS (
    SELECT run.tenant, run.run_id, gone.ends FROM gone JOIN $s.run AS run ON run.owner = gone.worker
    ORDER BY run.tenant, run.run_id FOR UPDATE OF run
)
UPDATE $s.run AS run SET
    owner = NULL, wake_at = NULL, calls = run.mail, lapses = least(run.lapses, 1000000) + %b, stopped = held.ends,
    status = CASE run.status WHEN 'paused' THEN 'paused' ELSE 'ready' END,
    due = CASE WHEN run.status <> 'paused' OR EXISTS (
        SELECT 1 FROM $s.message AS m WHERE m.tenant = run.tenant AND m.run_id = run.run_id AND m.generation = run.incarnation
            AND m.consumed = 0 AND m.kind IN ({_RECALLS})
    ) THEN held.ends END, due_set_at = $s.micros(), touched = run.touched + 1
FROM held WHERE run.tenant = held.tenant AND run.run_id = held.run_id
"""
_GIVE_TASKS_BACK = """
WITH held AS (
    SELECT tenant, run_id, operation FROM $s.task WHERE worker = ANY(%b::text[]) ORDER BY tenant, run_id, operation FOR UPDATE
)
UPDATE $s.task AS task SET worker = NULL, since = $s.micros(), lapses = least(task.lapses, 1000000) + %b
FROM held WHERE task.tenant = held.tenant AND task.run_id = held.run_id AND task.operation = held.operation
"""
_FORGET = "DELETE FROM $s.worker WHERE worker = ANY(%b::text[])"
_MAIL = "SELECT tenant, run_id FROM $s.run WHERE owner = %b AND mail = 1 ORDER BY tenant, run_id"
_HELD = "SELECT count(*) FROM $s.run WHERE owner = %b"


def _columns(alias: str) -> str:
    return ", ".join(f"{alias}.{one.strip()}" for one in HEAD.split(","))


_RUNS = Table("run", ("tenant", "run_id"), ("workflow", "unfit"), f"{_columns('run')}, run.stopped")


class _Looks(Struct, frozen=True):
    """The statements that find what is due; of a paused worker only in what was released.

    Args:
        is_due: Whether anything is.
        next_due: When the next one comes due.
        due: What is, but for suspects; `suspect` those alone.
        ahead: What was given back when the server's clock was ahead of now: its times mean nothing, and whoever takes it judges anew.
    """

    is_due: str
    next_due: str
    due: str
    suspect: str
    ahead: str
    ahead_suspect: str


def _looks(also: str) -> _Looks:
    """Return the statements over the indexes of one kind.

    Args:
        also: What their rows have in common.
    """
    # Where due runs of the worker's workflows stand: with each workflow the builds that do not fit. Found by one step in an index for
    # each, whatever else is stored.
    place = f"""
WITH RECURSIVE place (workflow, unfit) AS (
    SELECT wanted, (SELECT min(run.unfit) FROM $s.run AS run WHERE run.workflow = wanted AND run.due IS NOT NULL{also})
    FROM unnest(%b::text[]) AS wanted
    UNION ALL
    SELECT place.workflow, (
        SELECT min(run.unfit) FROM $s.run AS run
        WHERE run.workflow = place.workflow AND run.due IS NOT NULL AND run.unfit > place.unfit{also}
    ) FROM place WHERE place.unfit IS NOT NULL
), fit AS (SELECT * FROM place WHERE unfit IS NOT NULL AND strpos(unfit, %b) = 0)
"""
    in_place = (
        f"run.workflow = fit.workflow AND run.unfit = fit.unfit AND run.due IS NOT NULL{also}"
    )
    is_due = f"""
{place} SELECT EXISTS (
    SELECT 1 FROM fit WHERE EXISTS (SELECT 1 FROM $s.run AS run WHERE {in_place} AND run.due <= $s.micros())
        OR EXISTS (SELECT 1 FROM $s.run AS run WHERE {in_place} AND run.due_set_at > $s.micros())
)
"""
    next_due = f"""
{place} SELECT min(soonest.due) FROM fit, LATERAL (
    SELECT run.due FROM $s.run AS run WHERE {in_place} AND run.due > %b AND run.due < {END_OF_TIME} ORDER BY run.due LIMIT 1
) AS soonest
"""

    def due(order: str, condition: str, suspects: str) -> str:
        others = f"run.due IS NOT NULL{also} AND run.lapses {suspects} {SUSPECT_LAPSES} AND {_OPEN}"
        return choosing(_RUNS, place, order, f"{condition} AND {others}")

    past, ahead = "run.due <= %b", "run.due_set_at > %b AND run.due > %b"
    return _Looks(
        is_due,
        next_due,
        due("due", past, "<"),
        due("due", past, ">="),
        due("due_set_at", ahead, "<"),
        due("due_set_at", ahead, ">="),
    )


_ALL = _looks("")
_RELEASED = _looks(" AND run.released = 1")
_OUTBOX = "SELECT (SELECT min(at) FROM $s.outbox), (SELECT max(at) FROM $s.outbox)"
_OWNS_SUSPECT = (
    f"SELECT EXISTS (SELECT 1 FROM $s.run WHERE owner = %b AND lapses >= {SUSPECT_LAPSES})"
)
_LOCK = "SELECT pg_advisory_xact_lock(one) FROM unnest(%b::bigint[]) AS one"
_STORE = "SELECT timeline, history FROM $s.store FOR UPDATE"
_BEGIN = "UPDATE $s.store SET timeline = %b, history = %b"
_WITHOUT_LIMIT = (
    "SELECT set_config('statement_timeout', '0', true), set_config('lock_timeout', '0', true)"
)
"""However long it takes and whoever is in the way: until it is done, the store may do again what it has forgotten."""
_NEWEST = f"""
WITH RECURSIVE tenant (name) AS (
    SELECT min(tenant) FROM $s.run
    UNION ALL
    SELECT (SELECT min(run.tenant) FROM $s.run AS run WHERE run.tenant > tenant.name) FROM tenant WHERE name IS NOT NULL
)
SELECT greatest(
    (SELECT max(changed_at) FROM $s.run WHERE generation > 0 AND {_HAS_NOT_ENDED}),
    (SELECT max((SELECT max(run.created_at) FROM $s.run AS run WHERE run.tenant = tenant.name AND run.created_at > 0)) FROM tenant),
    (SELECT max(renewed) FROM $s.worker WHERE renewed <= $s.micros())
)
"""
"""No later than the newest change. When the last of the ended runs did end is not looked for, as all of them would be read: the renewals
of workers and the starts tell nearly as much, and what is told too early is only held back with more care."""
_HOLD_BACK = f"""
WITH held AS (
    SELECT tenant, run_id FROM $s.run WHERE generation > 0 AND {_HAS_NOT_ENDED}
    ORDER BY tenant, run_id FOR UPDATE
)
UPDATE $s.run AS run SET released = 0, restored_at = greatest(%b, run.changed_at),
    restored_until = least(%b, coalesce(run.restored_until, 9223372036854775807)), touched = run.touched + 1
FROM held WHERE run.tenant = held.tenant AND run.run_id = held.run_id AND run.{_HAS_NOT_ENDED}
"""
_RESTORATION = "SELECT version, body FROM $s.control WHERE tenant = %b AND name = %b"
_PUT_CONTROL = """
INSERT INTO $s.control (tenant, name, version, body) VALUES (%b, %b, %b, %b)
ON CONFLICT (tenant, name) DO UPDATE SET version = excluded.version, body = excluded.body
"""
_TAKE = """
UPDATE $s.run AS run SET owner = %b, epoch = run.epoch + 1, status = 'running', reason = '', wake_at = NULL, due = NULL, calls = 0,
    released = least(run.released, %b), touched = run.touched + 1
FROM unnest(%b::text[], %b::text[]) AS taken (tenant, run_id)
WHERE run.tenant = taken.tenant AND run.run_id = taken.run_id
"""


class _DueRun(Struct, frozen=True):
    """A run that can be taken, and what gives its place: since when, or when that was set."""

    order: int
    taken: ClaimedRun


class Leasing:
    """Registers, renews and claims, from one thread."""

    def __init__(self, session: Session, clock: StoreClock) -> None:
        self._session = session
        self._clock = clock

    def register(self, row: WorkerRow) -> None:
        """Announce a worker; its lease begins."""
        session = self._session
        values = (
            row.worker,
            row.host,
            row.pid,
            row.build,
            msgspec.json.encode(row.workflows).decode(),
            row.lease // MICROSECOND,
            msgspec.json.encode(row.queues).decode(),
            row.paused,
        )
        asked = self._clock.asking()
        with session.pipeline():
            session.begin()
            known = session.send(f"{LEASE} FOR UPDATE", (row.worker,))
            now = session.send(NOW)
            micros: int = now.rows()[0][0]
            self._clock.saw(micros, asked)
            if not self._lives(known.rows(), micros):
                self._give_back([(row.worker, micros)], lapses=1)
            session.send(_PUT_WORKER, values)
            session.send("COMMIT")

    def renew(self, worker: WorkerId) -> bool:
        """Let the worker's lease begin anew, unless it is over."""
        # How long the lease is stands in the row; nobody's is longer than what is unsure for a day.
        unsure = self._clock.is_unsure(timedelta(seconds=15))
        asked = self._clock.asking()
        found = self._session.write(_RENEW, (worker, unsure))
        if found:
            self._clock.saw(found[0][0], asked)
        return bool(found)

    def report(self, worker: WorkerId, body: bytes) -> None:
        """Keep what a worker says of itself."""
        self._session.run("UPDATE $s.worker SET report = %b WHERE worker = %b", (body, worker))

    def retire(self, worker: WorkerId) -> None:
        """Forget a worker that ends; its runs are given back now."""
        session = self._session
        with session.pipeline():
            session.begin()
            session.send(f"{LEASE} FOR UPDATE", (worker,))
            micros: int = session.send(NOW).rows()[0][0]
            self._give_back([(worker, micros)], lapses=0)
            session.send(_FORGET, ([worker],))
            session.send("COMMIT")

    def begin_timeline(
        self, timeline: str, why: str, history: tuple[str | None, str] | None = None
    ) -> bool:
        """Say that the store was put back to an earlier state; whether that was done.

        Args:
            timeline: The new id.
            history: Of the cluster, as the store's row has it, and as it is: not done where another process has done it.
        """
        session = self._session
        with session.pipeline():
            session.begin()
            session.send(_WITHOUT_LIMIT)
            number = lock_number(session.statements.schema, EVERYBODY, RESTORATION)
            session.send(_LOCK, ([number],))
            former, used = session.send(_STORE).rows()[0]
            if history is not None and history[0] not in (None, used):
                session.send("ROLLBACK")
                return False
            workers = session.send("SELECT worker FROM $s.worker ORDER BY worker FOR UPDATE")
            micros: int = session.send(NOW).rows()[0][0]
            newest = session.send(_NEWEST).rows()[0][0]
            now = from_micros(micros)
            until = moment_of(None if newest is None else from_micros(newest), now)
            # All open runs are locked by one statement, in their order, before those of the workers are written again.
            session.send(_HOLD_BACK, (micros, to_micros(until)))
            known = [(WorkerId(row[0]), micros) for row in workers.rows()]
            self._give_back(known, lapses=0)
            session.send(_FORGET, ([worker for worker, _ in known],))
            control = session.send(_RESTORATION, (EVERYBODY, RESTORATION)).rows()
            version, body = control[0] if control else (0, None)
            restoration = Restoration(timeline, former, now, until, why)
            body = put_back(body, restoration)
            session.send(_PUT_CONTROL, (EVERYBODY, RESTORATION, version + 1, body))
            session.send(_BEGIN, (timeline, used if history is None else history[1]))
            session.send("COMMIT")
        return True

    def claim(
        self, worker: WorkerId, names: list[str], limit: int, *, released: bool = False
    ) -> Claim:
        """Return what the worker may go on with, or only what of it was released."""
        session, asked = self._session, self._clock.asking()
        looks = _RELEASED if released else _ALL
        with session.pipeline():
            lease = session.send(LEASE, (worker,))
            now = session.send(NOW)
            dead = session.send(_DEAD, (worker,))
            micros, build = self._build(lease, now, asked)
            if build is None:
                return Claim((), (), None, from_micros(micros))
            line = unfit_line(build)
            is_due = session.send(looks.is_due, (names, line))
            has_dead, has_due = dead.rows()[0][0], is_due.rows()[0][0]
        taken: list[ClaimedRun] = []
        if has_dead or (has_due and limit > 0):
            found = self._take_due(worker, names, max(limit, 0), looks)
            if found is None:
                return Claim((), (), None, from_micros(micros))
            micros, taken = found
        return self._told(worker, (looks.next_due, (names, line, micros)), micros, taken)

    def _told(
        self, worker: WorkerId, next_due: tuple[str, Row], micros: int, taken: list[ClaimedRun]
    ) -> Claim:
        session = self._session
        with session.pipeline():
            mail = session.send(_MAIL, (worker,))
            held = session.send(_HELD, (worker,))
            due = session.send(*next_due)
            outbox = session.send(_OUTBOX)
            news = {one.head.run for one in taken}
            keys = [RunKey(*row) for row in mail.rows()]
            (soonest,), (oldest, newest) = due.rows()[0], outbox.rows()[0]
            return Claim(
                tuple(taken),
                tuple(key for key in keys if key not in news),
                None if soonest is None else from_micros(soonest),
                from_micros(micros),
                held.rows()[0][0],
                _next_relay(oldest, newest, micros),
            )

    def bury(self, worker: WorkerId) -> list[WorkerId]:
        """Give back what dead workers hold, within an open transaction; return them."""
        dead: list[tuple[WorkerId, int]] = []
        asked = self._clock.asking()
        for other, lease, renewed, micros in self._session.send(_LOCK_DEAD, (worker,)).rows():
            # By this very time they are dead: where somebody has set the clock since the last look, it is seen now.
            self._clock.saw(micros, asked)
            span = timedelta(microseconds=lease)
            is_ahead = renewed > micros + 1_000_000
            if is_ahead and not self._clock.was_silent(other, renewed, span):
                continue
            if not is_ahead and not self._clock.may_bury(span):
                continue
            dead.append((WorkerId(other), micros if is_ahead else renewed + lease))
        if dead:
            self._give_back(dead, lapses=1)
            self._session.send(_FORGET, ([other for other, _ in dead],))
        return [other for other, _ in dead]

    def _take_due(
        self, worker: WorkerId, names: list[str], limit: int, looks: _Looks
    ) -> tuple[int, list[ClaimedRun]] | None:
        """Bury the dead, and take up to `limit` runs, oldest first; None when the worker is dead itself."""
        session, asked = self._session, self._clock.asking()
        with session.pipeline():
            session.begin()
            # Shared: a worker's own commits go on, and nobody buries it meanwhile.
            lease = session.send(f"{LEASE} FOR KEY SHARE", (worker,))
            self.bury(worker)
            micros, build = self._build(lease, session.send(NOW), asked)
            if build is None:
                session.send("ROLLBACK")
                return None
            places = names, unfit_line(build)
            due = self._due(worker, places, limit, micros, looks) if limit else []
            is_paused = looks is _RELEASED
            if due:
                tenants = [one.taken.head.run.tenant for one in due]
                ids = [one.taken.head.run.run_id for one in due]
                session.send(_TAKE, (worker, int(is_paused), tenants, ids))
            session.send("COMMIT")
        return micros, [_owned(one.taken, worker, is_paused=is_paused) for one in due]

    def _due(
        self,
        worker: WorkerId,
        places: tuple[list[str], str],
        limit: int,
        micros: int,
        looks: _Looks,
    ) -> list[_DueRun]:
        """Return up to `limit` runs that can be taken, locked, oldest first, with one suspect among them at most."""
        session = self._session
        past = Choice(session, looks.due, places, (micros,), limit)
        owns = session.send(_OWNS_SUSPECT, (worker,))
        suspect = Choice(session, looks.suspect, places, (micros,), 1)
        runs = _runs_of(past.rows(), micros)
        suspects = _runs_of(suspect.rows(), micros)
        has_room = not owns.rows()[0][0]
        found = sorted([*runs, *(suspects if has_room else ())], key=_age)
        if len(found) >= limit:
            return found[:limit]
        ahead = Choice(session, looks.ahead, places, (micros, micros), limit)
        last = Choice(session, looks.ahead_suspect, places, (micros, micros), 1)
        later = _runs_of(ahead.rows(), micros)
        others = _runs_of(last.rows(), micros)
        if has_room and not suspects:
            later = sorted([*later, *others], key=_age)
        return list(itertools.islice(itertools.chain(found, later), limit))

    def _give_back(self, dead: list[tuple[WorkerId, int]], *, lapses: int) -> None:
        workers, ends = [worker for worker, _ in dead], [end for _, end in dead]
        self._session.send(_LOCK_RUNS, (workers, workers))
        self._session.send(_GIVE_TASKS_BACK, (workers, lapses))
        self._session.send(_GIVE_BACK, (workers, ends, lapses))

    def _build(self, lease: Pending, now: Pending, asked: float) -> tuple[int, str | None]:
        """Return the store's time, and the build of a worker that lives."""
        rows = lease.rows()
        micros: int = now.rows()[0][0]
        self._clock.saw(micros, asked)
        return micros, rows[0][0] if self._lives(rows, micros) else None

    def _lives(self, rows: list[Row], micros: int) -> bool:
        if not rows:
            return False
        _, lease, renewed = rows[0]
        return self._clock.live(renewed, timedelta(microseconds=lease), micros)


def _runs_of(rows: Iterable[Row], micros: int) -> list[_DueRun]:
    found: list[_DueRun] = []
    for order, *columns, stopped in rows:
        ago = None if stopped is None else elapsed(instant_of(stopped), instant_of(micros))
        found.append(_DueRun(order, ClaimedRun(head_of(tuple(columns)), ago)))
    return found


def _owned(run: ClaimedRun, worker: WorkerId, *, is_paused: bool) -> ClaimedRun:
    head = run.head
    taken = replace(
        head,
        owner=worker,
        epoch=head.epoch + 1,
        status=Status.RUNNING,
        reason="",
        wake_at=None,
        released=head.released and is_paused,
    )
    return replace(run, head=taken)


def _age(run: _DueRun) -> tuple[int, RunKey]:
    return run.order, run.taken.head.run


def _next_relay(oldest: int | None, newest: int | None, micros: int) -> datetime | None:
    """Return when the oldest item is anybody's."""
    if oldest is None or newest is None:
        return None
    return from_micros(micros) if newest > micros else from_micros(oldest) + RELAY_AFTER
