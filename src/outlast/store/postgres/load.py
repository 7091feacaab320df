# ruff: noqa: S608 - only constants of this package are joined to statements; every value is bound
"""Reads and locks what a commit looks at, in one round trip: advisory locks of control rows, workers, runs by key, then all that hangs on them.

Locks are taken in one order by every process: control rows, workers, runs (by tenant and run id), decisions that stick, records of requests,
tasks. Whoever writes any row of a run holds the run's row, so that what is read after it stands still. Whoever takes a task alone holds no
run, and waits for nobody: a row that another one has locked is passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any, TypeVar

from outlast.store.change import (
    OTHER_RUN,
    SAGA,
    Message,
    MessageKind,
    RunKey,
    StampedMessage,
    Watch,
    WorkerId,
)
from outlast.store.moment import from_micros
from outlast.store.notice import NoticeRow
from outlast.store.postgres.clock import StoreClock
from outlast.store.postgres.loaded import LoadedRows, LoadedRun
from outlast.store.postgres.look import Look, lock_number
from outlast.store.postgres.row import RUN, TASK_STATE, state_of, task_state_of
from outlast.store.postgres.session import Pending, Session
from outlast.store.row import OPERATION, TASK, Row, operation_of
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
from outlast.store.rows import InboxRow

T = TypeVar("T")

_NOW = "SELECT $s.micros()"
_LOCKS = """
SELECT CASE WHEN is_written THEN pg_advisory_xact_lock(number) ELSE pg_advisory_xact_lock_shared(number) END
FROM unnest(%b::bigint[], %b::boolean[]) AS one (number, is_written)
"""
_WORKERS = """
SELECT worker, lease, renewed FROM $s.worker WHERE worker = ANY(%b::text[]) ORDER BY worker FOR NO KEY UPDATE
"""
_RUN_KEYS = "unnest(%b::text[], %b::text[]) AS wanted (tenant, run_id)"
_PART_KEYS = "unnest(%b::text[], %b::text[], %b::text[]) AS wanted (tenant, run_id, part)"
_PLACES = f"""
INSERT INTO $s.run ({RUN})
SELECT tenant, run_id, 0, '', '', 'waiting', '', NULL, 0, 0, 0, '', NULL, 0, 0, 0, 0, '', '', 1, '', 0, NULL, NULL,
    NULL, 0, NULL, 0, '', 0, 0, 0, 0, 0
FROM {_RUN_KEYS} ORDER BY tenant, run_id ON CONFLICT DO NOTHING
"""
"""An inbox for which there may be no run yet. One that nobody writes to is dropped with its transaction's other changes."""


def _of(alias: str, columns: str) -> str:
    return ", ".join(f"{alias}.{column.strip()}" for column in columns.split(","))


_RUNS = f"""
SELECT {_of("run", RUN)} FROM {_RUN_KEYS} JOIN $s.run AS run USING (tenant, run_id)
ORDER BY run.tenant, run.run_id FOR UPDATE OF run
"""
_MESSAGE = (
    "m.tenant, m.run_id, m.number, m.message_id, m.generation, m.kind, m.at, m.consumed, m.digest,"
    " m.answer IS NOT NULL"
)
_MESSAGES = f"""
SELECT {_MESSAGE} FROM {_PART_KEYS}
JOIN $s.message AS m ON m.tenant = wanted.tenant AND m.run_id = wanted.run_id AND m.message_id = wanted.part
"""
_UNREAD = f"""
SELECT {_MESSAGE} FROM {_RUN_KEYS} JOIN $s.run AS run USING (tenant, run_id)
JOIN $s.message AS m ON m.tenant = run.tenant AND m.run_id = run.run_id AND m.generation = run.incarnation
WHERE m.consumed = 0
"""
_OPERATIONS = f"""
SELECT wanted.tenant, wanted.run_id, {_of("o", OPERATION)} FROM {_PART_KEYS}
JOIN $s.operation AS o ON o.tenant = wanted.tenant AND o.run_id = wanted.run_id AND o.operation = wanted.part
"""
_KINDS = ", ".join(f"'{kind}'" for kind in sorted(OTHER_RUN | {SAGA}))
_OTHER_RUNS = f"""
SELECT wanted.tenant, wanted.run_id, {_of("o", OPERATION)} FROM {_RUN_KEYS}
JOIN $s.operation AS o ON o.tenant = wanted.tenant AND o.run_id = wanted.run_id AND o.kind IN ({_KINDS})
"""
_ALL_OPERATIONS = f"""
SELECT wanted.tenant, wanted.run_id, {_of("o", OPERATION)} FROM {_RUN_KEYS}
JOIN $s.operation AS o ON o.tenant = wanted.tenant AND o.run_id = wanted.run_id
"""
_UNANSWERED = f"""
SELECT {_MESSAGE} FROM {_RUN_KEYS} JOIN $s.run AS run USING (tenant, run_id)
JOIN $s.message AS m ON m.tenant = run.tenant AND m.run_id = run.run_id AND m.generation = run.incarnation
WHERE m.kind = 'update' AND m.consumed = 1 AND m.answer IS NULL
"""
_ALL_APPROVALS = f"""
SELECT {_of("a", APPROVAL)} FROM {_RUN_KEYS} JOIN $s.run AS run USING (tenant, run_id)
JOIN $s.approval AS a ON a.tenant = run.tenant AND a.run_id = run.run_id AND a.generation = run.generation
"""
_APPROVALS = f"""
SELECT {_of("a", APPROVAL)} FROM {_PART_KEYS} JOIN $s.run AS run USING (tenant, run_id)
JOIN $s.approval AS a ON a.tenant = run.tenant AND a.run_id = run.run_id AND a.generation = run.generation
    AND a.approval_id = wanted.part
"""
_PENDING = f"""
SELECT {_of("a", APPROVAL)} FROM {_RUN_KEYS} JOIN $s.run AS run USING (tenant, run_id)
JOIN $s.approval AS a ON a.tenant = run.tenant AND a.run_id = run.run_id AND a.generation = run.generation
    AND a.state = 'pending'
"""
_WATCHES = f"""
SELECT tenant, run_id, w.watcher_tenant, w.watcher_run_id, w.watcher_generation, w.operation
FROM {_RUN_KEYS} JOIN $s.watch AS w USING (tenant, run_id)
"""
_TASKS = f"""
SELECT {_of("t", TASK)}, {_of("t", TASK_STATE)}, t.progress FROM {_PART_KEYS}
JOIN $s.task AS t ON t.tenant = wanted.tenant AND t.run_id = wanted.run_id AND t.operation = wanted.part
ORDER BY t.tenant, t.run_id, t.operation FOR UPDATE OF t
"""
_ALL_TASKS = f"""
SELECT {_of("t", TASK)}, {_of("t", TASK_STATE)}, t.progress FROM {_RUN_KEYS} JOIN $s.task AS t USING (tenant, run_id)
ORDER BY t.tenant, t.run_id, t.operation FOR UPDATE OF t
"""
_NOTICES = f"""
SELECT {_of("n", NOTICE)} FROM unnest(%b::text[], %b::text[], %b::bigint[], %b::text[], %b::text[])
    AS wanted (tenant, run_id, generation, approval_id, notice)
JOIN $s.notice AS n USING (tenant, run_id, generation, approval_id, notice)
"""
_DUE = f"""
SELECT {NOTICE} FROM $s.notice WHERE state = 'open' AND due_at <= $s.micros()
ORDER BY due_at, tenant, run_id, generation, approval_id, notice LIMIT %b FOR UPDATE SKIP LOCKED
"""
_DUE_OF_TENANT = f"""
SELECT {NOTICE} FROM $s.notice WHERE state = 'open' AND tenant = %b AND due_at <= $s.micros()
ORDER BY due_at, run_id, generation, approval_id, notice LIMIT %b FOR UPDATE SKIP LOCKED
"""
_RUNS_UNLOCKED = (
    f"SELECT {_of('run', RUN)} FROM {_RUN_KEYS} JOIN $s.run AS run USING (tenant, run_id)"
)
_PAIR_KEYS = "unnest(%b::text[], %b::text[]) AS wanted (tenant, name)"
_CONTROLS = f"SELECT c.tenant, c.name, c.version, c.body FROM {_PAIR_KEYS} JOIN $s.control AS c USING (tenant, name)"
_STICKIES = f"""
SELECT {_of("one", STICKY)} FROM {_PAIR_KEYS} JOIN $s.sticky AS one
    ON one.tenant = wanted.tenant AND one.sticky_id = wanted.name
ORDER BY one.tenant, one.sticky_id FOR UPDATE OF one
"""
_REQUESTS = f"""
SELECT {_of("one", REQUEST)}, one.answer FROM {_PAIR_KEYS} JOIN $s.request AS one
    ON one.tenant = wanted.tenant AND one.request_id = wanted.name
ORDER BY one.tenant, one.request_id FOR UPDATE OF one
"""
_EXPIRED = """
SELECT request_id FROM $s.request WHERE tenant = %b AND expires_at IS NOT NULL AND expires_at <= $s.micros()
ORDER BY expires_at, request_id LIMIT %b FOR UPDATE SKIP LOCKED
"""


class Loading:
    """One reading of all that a commit looks at, within an open transaction."""

    def __init__(self, session: Session, look: Look, clock: StoreClock) -> None:
        self._session = session
        self._look = look
        self._clock = clock
        self._asked: list[tuple[Pending, Callable[[Row], object]]] = []
        self._rows = LoadedRows()

    def load(self) -> tuple[LoadedRows, int]:
        """Return the rows, and the store's time once all locks are held."""
        look, rows = self._look, self._rows
        asked = self._clock.asking()
        with self._session.pipeline():
            self._session.begin()
            self._lock_controls()
            workers = self._ask_workers()
            if look.early:
                self._session.send(_PLACES, _transposed(sorted(map(_pair, look.early)), 2))
            self._ask(_RUNS, map(_pair, look.runs), 2, self._know_run)
            self._ask_tables()
            self._ask_parts()
            due = self._ask_due()
            now = self._session.send(_NOW)
            micros: int = now.rows()[0][0]
        self._clock.saw(micros, asked)
        for pending, know in self._asked:
            for row in pending.rows():
                know(row)
        for worker, lease, renewed in workers.rows() if workers is not None else ():
            if self._clock.live(renewed, timedelta(microseconds=lease), micros):
                rows.alive.add(WorkerId(worker))
        for tenant, pending in due:
            rows.due[tenant] = list(self._readable(pending.rows()))
        for key in look.whole:
            if key in rows.runs:
                rows.runs[key].is_whole = True
        if rows.due:
            self._load_asked()
        return rows, micros

    def _lock_controls(self) -> None:
        look, schema = self._look, self._session.statements.schema
        written = {lock_number(schema, *key) for key in look.written}
        numbers = sorted(written | {lock_number(schema, *key) for key in look.guards})
        if numbers:
            self._session.send(_LOCKS, (numbers, [one in written for one in numbers]))

    def _ask(
        self, sql: str, keys: Iterable[Row], width: int, know: Callable[[Row], object]
    ) -> None:
        wanted = sorted(keys)
        if wanted:
            self._asked.append((self._session.send(sql, _transposed(wanted, width)), know))

    def _ask_workers(self) -> Pending | None:
        workers = self._look.workers
        return self._session.send(_WORKERS, [sorted(workers)]) if workers else None

    def _ask_tables(self) -> None:
        look = self._look
        self._ask(_CONTROLS, look.controls, 2, lambda row: self._rows.know_control(*row))
        self._ask(_STICKIES, look.stickies, 2, self._know_sticky)
        self._ask(_REQUESTS, look.requests, 2, self._know_request)
        for tenant, limit in sorted(look.expired.items()):
            found = self._rows.expired.setdefault(tenant, [])
            pending = self._session.send(_EXPIRED, (tenant, limit))
            self._asked.append((pending, lambda row, found=found: found.append(row[0])))

    def _ask_parts(self) -> None:
        look = self._look
        self._ask(_MESSAGES, look.messages, 3, self._of_run(_message_of, LoadedRun.know_message))
        self._ask(
            _UNREAD,
            map(_pair, look.unread | look.whole),
            2,
            self._of_run(_message_of, LoadedRun.know_message),
        )
        self._ask(
            _UNANSWERED,
            map(_pair, look.whole),
            2,
            self._of_run(_message_of, LoadedRun.know_message),
        )
        operation = self._of_run(lambda row: operation_of(row[2:]), LoadedRun.know_operation)
        self._ask(_OPERATIONS, look.operations, 3, operation)
        self._ask(_OTHER_RUNS, map(_pair, look.ending - look.whole), 2, operation)
        self._ask(_ALL_OPERATIONS, map(_pair, look.whole), 2, operation)
        approval = self._of_run(approval_of, LoadedRun.know_approval)
        self._ask(_APPROVALS, look.approvals, 3, approval)
        self._ask(_PENDING, map(_pair, look.ending - look.whole), 2, approval)
        self._ask(_ALL_APPROVALS, map(_pair, look.whole), 2, approval)
        watch = self._of_run(_watch_of, LoadedRun.know_watch)
        self._ask(_WATCHES, map(_pair, look.ending | look.whole), 2, watch)
        task = self._of_run(task_state_of, LoadedRun.know_task)
        self._ask(_TASKS, look.tasks, 3, task)
        self._ask(_ALL_TASKS, map(_pair, look.all_tasks), 2, task)
        self._ask(_NOTICES, look.notices, 5, self._of_run(notice_of, LoadedRun.know_notice))

    def _ask_due(self) -> list[tuple[str, Pending]]:
        asked: list[tuple[str, Pending]] = []
        for tenant, limit in sorted(self._look.due.items()):
            values = (tenant, limit) if tenant else (limit,)
            sql = _DUE_OF_TENANT if tenant else _DUE
            asked.append((tenant, self._session.send(sql, values)))
        return asked

    def _load_asked(self) -> None:
        """Read the requests of the notices that are due, and the runs that ask: they are looked at, not written."""
        due = [row for rows in self._rows.due.values() for row in rows]
        keys = sorted({(row.tenant, row.run_id) for row in due})
        parts = sorted({(row.tenant, row.run_id, row.approval_id) for row in due})
        if not keys:
            return
        with self._session.pipeline():
            runs = self._session.send(_RUNS_UNLOCKED, _transposed(keys, 2))
            asked = self._session.send(_APPROVALS, _transposed(parts, 3))
            found = runs.rows(), asked.rows()
        for row in found[0]:
            if RunKey(row[0], row[1]) not in self._rows.runs:
                self._know_run(row)
        know = self._of_run(approval_of, LoadedRun.know_approval)
        for row in found[1]:
            know(row)

    def _readable(self, rows: list[Row]) -> Iterator[NoticeRow]:
        for row in rows:
            try:
                yield notice_of(row)
            except Exception as error:  # noqa: BLE001 - the row is its own run's trouble
                self._run_of(row).error = error

    def _know_run(self, row: Row) -> None:
        key = RunKey(row[0], row[1])
        try:
            state, counts = state_of(row)
            self._rows.runs[key] = LoadedRun(key, state, counts, exists=True)
        except Exception as error:  # noqa: BLE001 - a row that cannot be read refuses what concerns it
            self._run_of(row).error = error

    def _of_run(
        self, read: Callable[[Row], T], know: Callable[[LoadedRun, T], None]
    ) -> Callable[[Row], None]:
        def take(row: Row) -> None:
            run = self._run_of(row)
            try:
                know(run, read(row))
            except Exception as error:  # noqa: BLE001 - as above
                run.error = error

        return take

    def _run_of(self, row: Row) -> LoadedRun:
        key = RunKey(row[0], row[1])
        found = self._rows.runs.get(key)
        if found is None:
            found = self._rows.runs[key] = LoadedRun(key)
        return found

    def _know_sticky(self, row: Row) -> None:
        try:
            self._rows.know_sticky(sticky_of(row))
        except Exception as error:  # noqa: BLE001 - as above
            self._rows.errors["sticky", row[0], row[1]] = error

    def _know_request(self, row: Row) -> None:
        try:
            self._rows.know_request(request_of(row))
        except Exception as error:  # noqa: BLE001 - as above
            self._rows.errors["request", row[0], row[1]] = error


def _message_of(row: Row) -> InboxRow:
    """Return an item without its body."""
    _, _, number, message_id, incarnation, kind, at, consumed, digest, answered = row
    message = Message(message_id, MessageKind(kind), "", "", b"", digest)
    stamped = StampedMessage(message, from_micros(at), number)
    return InboxRow(stamped, incarnation, bool(consumed), b"" if answered else None)


def _watch_of(row: Row) -> Watch:
    return Watch(RunKey(row[2], row[3]), row[4], row[5])


def _pair(run: RunKey) -> tuple[str, str]:
    return run.tenant, run.run_id


def _transposed(keys: list[Row], width: int) -> list[list[Any]]:
    """Return the columns of keys, as arrays for `unnest`."""
    return [[key[place] for key in keys] for place in range(width)]
