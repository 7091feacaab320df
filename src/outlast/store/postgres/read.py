# ruff: noqa: S608 - only constants of this package are joined to statements; every value is bound
"""What is read, each answer of one moment; nothing here changes or locks anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from outlast.errors import OutlastError, StoreCorruptError
from outlast.journal.entry import StampedRow
from outlast.store.bound import keeps
from outlast.store.change import (
    ApprovalRow,
    MessageState,
    OperationPut,
    OutboxItem,
    RunHead,
    RunKey,
    StampedMessage,
    Status,
    WorkerId,
)
from outlast.store.condition import listed_state
from outlast.store.moment import elapsed, from_micros, time_or_none, to_micros
from outlast.store.notice import NoticeRow
from outlast.store.postgres.clock import StoreClock
from outlast.store.postgres.row import HEAD, instant_of
from outlast.store.postgres.session import Session
from outlast.store.protocol import DoubtRow, GenerationRow, LiveWorker, RunImage
from outlast.store.request import RequestRow, RequestState
from outlast.store.request_condition import listed
from outlast.store.row import (
    ENTRY,
    MESSAGE,
    OPERATION,
    OUTBOX,
    TASK,
    WORKER,
    Row,
    entry_of,
    head_of,
    message_of,
    operation_of,
    outbox_of,
    task_of,
    worker_of,
)
from outlast.store.row_people import (
    APPROVAL,
    NOTICE,
    REQUEST,
    STICKY,
    approval_of,
    notice_of,
    request_of,
    sticky_of,
)
from outlast.store.sticky import StickyRow
from outlast.store.sticky_condition import StickyFilter, StickyRun
from outlast.store.task import TaskRow

T = TypeVar("T")

_ALL = 1 << 40
_OF_RUN = "tenant = %b AND run_id = %b"
_IS_RUN = "generation > 0"
_NOW = "SELECT $s.micros()"
_HEAD = f"SELECT {HEAD} FROM $s.run WHERE {_OF_RUN} AND {_IS_RUN}"
_OWNED = f"SELECT {HEAD} FROM $s.run WHERE owner = %b ORDER BY tenant, run_id"
_PRESENT = f"(SELECT generation FROM $s.run WHERE {_OF_RUN})"
_ENTRIES = (
    f"SELECT {ENTRY} FROM $s.entry WHERE {_OF_RUN} AND generation = %b AND seq > %b ORDER BY seq"
)
_PRESENT_ENTRIES = f"SELECT {ENTRY} FROM $s.entry WHERE {_OF_RUN} AND generation = {_PRESENT} AND seq > %b ORDER BY seq"
_LATEST = f"""
SELECT {ENTRY} FROM $s.entry WHERE {_OF_RUN} AND generation = coalesce(%b, {_PRESENT}) AND kind = %b AND name = %b
ORDER BY seq DESC LIMIT 1
"""
_LATEST_PUBLISHED = f"""
SELECT {ENTRY} FROM $s.entry WHERE {_OF_RUN} AND generation = coalesce(%b, {_PRESENT}) AND kind = 'published' AND name = %b
ORDER BY seq DESC LIMIT 1
"""
_LAST_ENTRY = (
    f"SELECT {ENTRY} FROM $s.entry WHERE {_OF_RUN} AND generation = %b ORDER BY seq DESC LIMIT 1"
)
_GENERATIONS = f"""
SELECT numbers.one, last.seq, last.kind, last.at FROM (
    SELECT generate_series({_PRESENT}, greatest({_PRESENT} - %b + 1, 1), -1) AS one
) AS numbers, LATERAL (
    SELECT seq, kind, at FROM $s.entry WHERE {_OF_RUN} AND generation = numbers.one ORDER BY seq DESC LIMIT 1
) AS last ORDER BY numbers.one DESC
"""
_OPERATION = f"SELECT {OPERATION} FROM $s.operation WHERE {_OF_RUN} AND operation = %b"
_OPERATIONS = f"SELECT {OPERATION} FROM $s.operation WHERE {_OF_RUN} ORDER BY operation"
_DOUBTS = """
SELECT operation.run_id, operation.operation, operation.name FROM $s.operation AS operation
JOIN $s.run AS run ON run.tenant = operation.tenant AND run.run_id = operation.run_id
WHERE operation.tenant = %b AND operation.in_doubt = 1 AND (operation.run_id, operation.operation) > (%b, %b)
AND (%b = '' OR operation.name = %b) AND (%b = '' OR run.workflow = %b)
ORDER BY operation.run_id, operation.operation LIMIT %b
"""
_MAIL = f"""
SELECT {MESSAGE} FROM $s.message WHERE {_OF_RUN} AND consumed = 0
    AND generation = (SELECT incarnation FROM $s.run WHERE {_OF_RUN} AND {_IS_RUN}) ORDER BY number
"""
_ANSWER = f"""
SELECT m.generation, m.consumed, m.answer,
    (SELECT run.status IN ('completed', 'failed', 'cancelled', 'terminated', 'compensated', 'partly compensated')
        OR run.incarnation > m.generation FROM $s.run AS run WHERE {_OF_RUN} AND {_IS_RUN})
FROM $s.message AS m WHERE m.tenant = %b AND m.run_id = %b AND m.message_id = %b AND m.kind = 'update'
ORDER BY m.generation DESC LIMIT 1
"""
_APPROVALS_OF_RUN = f"SELECT {APPROVAL} FROM $s.approval WHERE {_OF_RUN} AND generation = {_PRESENT} ORDER BY approval_id"
_TASKS = f"SELECT {TASK} FROM $s.task WHERE {_OF_RUN} ORDER BY operation"
_WORKERS = f"SELECT {WORKER}, report FROM $s.worker ORDER BY worker"
_CONTROL = "SELECT version, body FROM $s.control WHERE tenant = %b AND name = %b"
_STICKY_RUN = f"SELECT incarnation, workflow FROM $s.run WHERE {_OF_RUN} AND {_IS_RUN}"
_NOTICES = f"SELECT {NOTICE} FROM $s.notice WHERE {_OF_RUN}"
_NEXT_NOTICE = "SELECT min(due_at) FROM $s.notice WHERE state = 'open'"
_NEXT_NOTICE_OF = "SELECT min(due_at) FROM $s.notice WHERE state = 'open' AND tenant = %b"
_REQUEST = f"SELECT {REQUEST}, answer FROM $s.request WHERE tenant = %b AND request_id = %b"
_LOOKS = {
    RequestState.RUNNING: (("running", "held_until > %b"),),
    RequestState.IN_DOUBT: (("running", "held_until <= %b"),),
    RequestState.DONE: (("done", "expires_at > %b"),),
    RequestState.FREED: (("freed", "expires_at > %b"),),
    RequestState.EXPIRED: (("done", "expires_at <= %b"), ("freed", "expires_at <= %b")),
}
"""For each state that is told: which stored ones it comes from, and what the time says then."""
_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
"""What several statements say is of one moment."""


class ApprovalFilter(Struct, frozen=True):
    """Which page of which approvals; see `StoreReader.approvals`."""

    pending: bool
    run: RunKey | None
    limit: int | None
    after: tuple[datetime, str, str] | None


class Reading:
    """Answers questions, from one thread."""

    def __init__(self, session: Session, clock: StoreClock) -> None:
        self._session = session
        self._clock = clock

    def _all(
        self, sql: str, values: Sequence[Any], read: Callable[[Row], T], what: str, run: str = ""
    ) -> list[T]:
        rows = self._session.rows(sql, values)
        return [_read(read, row, what, run) for row in rows]

    def _one(
        self, sql: str, values: Sequence[Any], read: Callable[[Row], T], what: str, run: str = ""
    ) -> T | None:
        return next(iter(self._all(sql, values, read, what, run)), None)

    def _listed(
        self, sql: str, values: Sequence[Any], read: Callable[[Row], T], what: str
    ) -> list[T]:
        """Return the rows that can be read, and say which cannot."""
        return self._all(sql, values, read, what)

    def now(self) -> int:
        """Return the store's time in microseconds."""
        asked = self._clock.asking()
        micros: int = self._session.rows(_NOW)[0][0]
        self._clock.saw(micros, asked)
        return micros

    def head(self, run: RunKey) -> RunHead | None:
        """Return the run's row."""
        return self._one(_HEAD, _key(run), head_of, "the run's row", run.run_id)

    def owned(self, worker: WorkerId) -> list[RunHead]:
        """Return the runs that a worker owns."""
        return self._listed(_OWNED, (worker,), head_of, "a run's row")

    def heads(
        self,
        tenant: str,
        statuses: frozenset[Status],
        workflow: str,
        limit: int,
        before: tuple[datetime, str] | None,
    ) -> list[RunHead]:
        """Return a page of the tenant's runs, newest first."""
        # A look for each status, each in the order of an index: one for all of them would read and sort every run that fits.
        found: list[RunHead] = []
        for status in sorted(statuses) if statuses else [None]:
            terms, values = ["tenant = %b", _IS_RUN], list[Any]([tenant])
            if status is not None:
                terms.append("status = %b")
                values.append(status.value)
            if workflow:
                terms.append("workflow = %b")
                values.append(workflow)
            if before is not None:
                terms.append("(created_at, run_id) < (%b, %b)")
                values += [to_micros(before[0]), before[1]]
            sql = f"SELECT {HEAD} FROM $s.run WHERE {' AND '.join(terms)} ORDER BY created_at DESC, run_id DESC LIMIT %b"
            found += self._listed(sql, (*values, max(limit, 0)), head_of, "a run's row")
        found.sort(key=lambda head: (head.created_at, head.run.run_id), reverse=True)
        return found[: max(limit, 0)]

    def journal(self, run: RunKey, generation: int | None, after: int) -> tuple[StampedRow, ...]:
        """Return the rows of one generation."""
        if generation is None:
            sql, values = _PRESENT_ENTRIES, (*_key(run), *_key(run), after)
        else:
            sql, values = _ENTRIES, (*_key(run), generation, after)
        return tuple(self._all(sql, values, entry_of, "the run's journal", run.run_id))

    def latest(
        self, run: RunKey, generation: int | None, kind: str, name: str
    ) -> StampedRow | None:
        """Return the last row of this kind and name."""
        values = (*_key(run), generation, *_key(run))
        if kind == "published":
            sql, values = _LATEST_PUBLISHED, (*values, name)
        else:
            sql, values = _LATEST, (*values, kind, name)
        return self._one(sql, values, entry_of, "the run's journal", run.run_id)

    def last_entry(self, run: RunKey, generation: int) -> StampedRow | None:
        """Return the last row of one generation's journal."""
        values = (*_key(run), generation)
        return self._one(_LAST_ENTRY, values, entry_of, "the run's journal", run.run_id)

    def generations(self, run: RunKey, limit: int) -> tuple[GenerationRow, ...]:
        """Return the run's generations, newest first."""
        values = (*_key(run), *_key(run), limit, *_key(run))
        if limit <= 0:
            return ()
        return tuple(self._all(_GENERATIONS, values, _generation_of, "the run's journal"))

    def answer(self, run: RunKey, message_id: str) -> MessageState | None:
        """Return what has become of an update."""
        values = (*_key(run), *_key(run), message_id)
        return self._one(_ANSWER, values, _answer_of, "the answer to an update", run.run_id)

    def operation(self, run: RunKey, operation: str) -> OperationPut | None:
        """Return the row of one open operation."""
        values = (*_key(run), operation)
        return self._one(_OPERATION, values, operation_of, "the row of an operation", run.run_id)

    def doubts(
        self, tenant: str, effect: str, workflow: str, limit: int, after: tuple[str, str]
    ) -> list[DoubtRow]:
        """Return a page of the tenant's effects in doubt."""
        values = (tenant, *after, effect, effect, workflow, workflow, max(limit, 0))
        rows = self._session.rows(_DOUBTS, values)
        return [DoubtRow(RunKey(tenant, row[0]), row[1], row[2]) for row in rows]

    def tasks(self, run: RunKey) -> tuple[TaskRow, ...]:
        """Return the tasks of the run's remote steps."""
        return tuple(self._all(_TASKS, _key(run), task_of, "the run's tasks", run.run_id))

    def mail(self, run: RunKey) -> tuple[StampedMessage, ...]:
        """Return the run's messages that are not yet consumed."""
        values = (*_key(run), *_key(run))
        return tuple(self._all(_MAIL, values, message_of, "the run's mail", run.run_id))

    def load(self, run: RunKey) -> RunImage | None:
        """Return everything about a run's current generation, in one round trip."""
        session, key = self._session, _key(run)
        if not all(map(keeps, key)):
            return None
        with session.pipeline():
            session.send(_READ)
            head = session.send(_HEAD, key)
            rows = session.send(_PRESENT_ENTRIES, (*key, *key, -1))
            operations = session.send(_OPERATIONS, key)
            mail = session.send(_MAIL, (*key, *key))
            approvals = session.send(_APPROVALS_OF_RUN, (*key, *key))
            tasks = session.send(_TASKS, key)
            session.send("COMMIT")
            found = [one.rows() for one in (head, rows, operations, mail, approvals, tasks)]
        if not found[0]:
            return None

        def each(place: int, read: Callable[[Row], T], what: str) -> tuple[T, ...]:
            return tuple(_read(read, row, what, run.run_id) for row in found[place])

        return RunImage(
            each(0, head_of, "the run's row")[0],
            each(1, entry_of, "the run's journal"),
            each(2, operation_of, "the run's open operations"),
            each(3, message_of, "the run's mail"),
            each(4, approval_of, "the run's approvals"),
            each(5, task_of, "the run's tasks"),
        )

    def approvals(self, tenant: str, wanted: ApprovalFilter) -> list[ApprovalRow]:
        """Return a page of approvals, oldest first."""
        run = wanted.run
        if run is not None and run.tenant != tenant:
            return []
        micros = self.now()
        terms, values = ["tenant = %b"], list[Any]([tenant])
        if run is not None:
            terms.append("run_id = %b")
            values.append(run.run_id)
        if wanted.pending:
            terms.append("state = 'pending' AND expires_at > %b")
            values.append(micros)
        if wanted.after is not None:
            terms.append("(requested_at, run_id, approval_id) > (%b, %b, %b)")
            values += [to_micros(wanted.after[0]), *wanted.after[1:]]
        sql = (
            f"SELECT {APPROVAL} FROM $s.approval WHERE {' AND '.join(terms)}"
            " ORDER BY requested_at, run_id, approval_id, generation LIMIT %b"
        )
        limit = _ALL if wanted.limit is None else max(wanted.limit, 0)
        found = self._listed(sql, (*values, limit), approval_of, "a request")
        now = from_micros(micros)
        return [replace(row, state=listed_state(row, now)) for row in found]

    def sticky(self, tenant: str, wanted: StickyFilter) -> list[StickyRow]:
        """Return a page of a tenant's decisions that stick."""
        micros = self.now()
        run: StickyRun | None = None
        terms, values = ["tenant = %b"], list[Any]([tenant])
        if wanted.run is not None:
            found = self._session.rows(_STICKY_RUN, _key(wanted.run))
            if not found:
                return []
            run = (wanted.run, *found[0])
            terms.append(
                "CASE reach WHEN 'workflow' THEN workflow = %b ELSE run_id = %b AND incarnation = %b END"
            )
            values += [run[2], wanted.run.run_id, run[1]]
        if wanted.effect:
            terms.append("effect = %b")
            values.append(wanted.effect)
        if wanted.sticky_id:
            terms.append("sticky_id = %b")
            values.append(wanted.sticky_id)
        if not wanted.over:
            terms.append(
                "revoked_at IS NULL AND uses IS DISTINCT FROM 0 AND (expires_at IS NULL OR expires_at > %b)"
            )
            values.append(micros)
        if wanted.after is not None:
            terms.append("(made_at, sticky_id) > (%b, %b)")
            values += [to_micros(wanted.after[0]), wanted.after[1]]
        sql = f"SELECT {STICKY} FROM $s.sticky WHERE {' AND '.join(terms)} ORDER BY made_at, sticky_id LIMIT %b"
        limit = _ALL if wanted.limit is None else max(wanted.limit, 0)
        rows = self._listed(sql, (*values, limit), sticky_of, "a decision that sticks")
        return [row for row in rows if wanted.takes(row, run, from_micros(micros))]

    def notices(self, run: RunKey) -> list[NoticeRow]:
        """Return the notices of the run's requests that wait."""
        rows = self._all(_NOTICES, _key(run), notice_of, "the notices of the run", run.run_id)
        return sorted(rows, key=lambda row: (row.generation, row.approval_id, row.due_at))

    def next_notice(self, tenant: str) -> datetime | None:
        """Return when the next notice is due."""
        sql, values = (_NEXT_NOTICE_OF, (tenant,)) if tenant else (_NEXT_NOTICE, ())
        rows = self._session.rows(sql, values)
        return time_or_none(rows[0][0]) if rows else None

    def workers(self) -> list[LiveWorker]:
        """Return the registered workers, and whether they live."""
        micros = self.now()

        def live_of(row: Row) -> LiveWorker:
            worker, renewed = worker_of(row), row[7]
            live = self._clock.live(renewed, worker.lease, micros)
            seen_ago = elapsed(instant_of(renewed), instant_of(micros))
            return LiveWorker(worker, live, seen_ago, row[10])

        return self._listed(_WORKERS, (), live_of, "a worker")

    def control(self, tenant: str, name: str) -> tuple[int, bytes] | None:
        """Return version and body of a control row."""
        rows = self._session.rows(_CONTROL, (tenant, name))
        return (rows[0][0], rows[0][1]) if rows else None

    def request(self, tenant: str, request_id: str) -> RequestRow | None:
        """Return one record, with the state that it has now."""
        found = self._one(_REQUEST, (tenant, request_id), request_of, "the record of a request")
        return None if found is None else listed(found, from_micros(self.now()))

    def requests(
        self,
        tenant: str,
        states: frozenset[RequestState],
        limit: int,
        before: tuple[datetime, str] | None,
    ) -> list[RequestRow]:
        """Return a page of records, newest first, without their answers."""
        micros = self.now()
        behind = () if before is None else (to_micros(before[0]), before[1])
        after = "AND (started_at, request_id) < (%b, %b)" if behind else ""
        found: list[RequestRow] = []
        for stored, condition in (look for state in sorted(states) for look in _LOOKS[state]):
            sql = (
                f"SELECT {REQUEST}, ''::bytea FROM $s.request WHERE tenant = %b AND state = %b AND {condition} {after}"
                " ORDER BY started_at DESC, request_id DESC LIMIT %b"
            )
            values = (tenant, stored, micros, *behind, max(limit, 0))
            found += self._listed(sql, values, request_of, "the record of a request")
        found.sort(key=lambda row: (row.started_at, row.request_id), reverse=True)
        return [listed(row, from_micros(micros)) for row in found[: max(limit, 0)]]

    def outbox(
        self, limit: int, run: RunKey | None, age: timedelta
    ) -> list[tuple[RunKey, OutboxItem]]:
        """Return items that wait for the relay, oldest first."""
        micros = self.now()
        of_run, key = ("", ()) if run is None else (f"{_OF_RUN} AND ", _key(run))
        sql = f"SELECT {OUTBOX} FROM $s.outbox WHERE {of_run}(at <= %b OR at > %b) ORDER BY at, tenant, run_id, number LIMIT %b"
        old = micros - age // timedelta(microseconds=1)
        return self._listed(
            sql, (*key, old, micros, max(limit, 0)), outbox_of, "an item of an outbox"
        )

    def timeline(self) -> str:
        """Return the id of this store's line of history."""
        return str(self._session.rows("SELECT timeline FROM $s.store")[0][0])


def _read(read: Callable[[Row], T], row: Row, what: str, run: str) -> T:
    try:
        return read(row)
    except OutlastError:
        raise
    except Exception as error:
        raise StoreCorruptError(
            f"{what} cannot be read ({error})",
            run=run or None,
            hint="restore a backup, or mend the row; `outlast doctor` checks",
        ) from error


def _generation_of(row: Row) -> GenerationRow:
    generation, seq, kind, at = row
    return GenerationRow(generation, seq + 1, kind, from_micros(at))


def _answer_of(row: Row) -> MessageState:
    generation, consumed, told, over = row
    return MessageState(
        generation, bool(consumed), bool(over), answered=told is not None, answer=told or b""
    )


def _key(run: RunKey) -> tuple[str, str]:
    return run.tenant, run.run_id
