# ruff: noqa: S608 - only constants of this package are joined to statements; every value is bound
"""Sends what a judge has written, a statement or two for each table, whatever the number of changes: arrays are the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from outlast.journal.entry import StampedRow
from outlast.store.change import RunKey, WorkerId
from outlast.store.condition import KNOWN_MESSAGES
from outlast.store.moment import to_micros
from outlast.store.postgres.loaded import LoadedRows, LoadedRun
from outlast.store.postgres.row import RUN, run_values
from outlast.store.postgres.session import Session
from outlast.store.row import OPERATION, OUTBOX, Row, operation_values, outbox_values
from outlast.store.row_people import (
    APPROVAL,
    NOTICE,
    REQUEST,
    STICKY,
    approval_values,
    notice_values,
    request_values,
    sticky_values,
)
from outlast.store.rows import RunState, TaskState

_TEXT, _INT, _BYTES = "text", "bigint", "bytea"


class Table:
    """How rows of one table are written from arrays.

    Args:
        columns: Each with its type, as `tenant text`; those of the key first.
        key: How many columns the key has.
    """

    def __init__(self, name: str, columns: str, key: int) -> None:
        pairs = [one.split() for one in columns.split(",")]
        self.names = [name for name, _ in pairs]
        self.width = len(pairs)
        listed = ", ".join(self.names)
        arrays = ", ".join(f"%b::{kind}[]" for _, kind in pairs)
        keys, others = self.names[:key], self.names[key:]
        rows = f"SELECT * FROM unnest({arrays})"
        self.insert = f"INSERT INTO $s.{name} ({listed}) {rows}"
        sets = ", ".join(f"{one} = excluded.{one}" for one in others)
        act = f"DO UPDATE SET {sets}" if others else "DO NOTHING"
        self.put = f"{self.insert} ON CONFLICT ({', '.join(keys)}) {act}"
        self.update = (
            f"UPDATE $s.{name} AS old SET {', '.join(f'{one} = new.{one}' for one in others)}"
            f" FROM (SELECT * FROM unnest({arrays})) AS new ({listed})"
            f" WHERE {' AND '.join(f'old.{one} = new.{one}' for one in keys)}"
        )
        key_arrays = ", ".join(f"%b::{kind}[]" for _, kind in pairs[:key])
        self.delete = (
            f"DELETE FROM $s.{name} AS old USING unnest({key_arrays}) AS gone ({', '.join(keys)})"
            f" WHERE {' AND '.join(f'old.{one} = gone.{one}' for one in keys)}"
        )
        self.key = key


def _typed(names: str, types: dict[str, str], default: str = _TEXT) -> str:
    listed = [one.strip() for one in names.split(",")]
    return ", ".join(f"{one} {types.get(one, default)}" for one in listed)


def _ints(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, _INT)


_RUN_TYPES = {
    **_ints(
        *("generation", "epoch", "version", "next_seq", "wake_at", "mail", "lapses"),
        *("created_at", "changed_at", "incarnation", "due", "due_set_at", "stopped", "calls"),
        *("ending", "message_number", "unread", "outbox_number", "touched"),
        *("released", "restored_at", "restored_until"),
    ),
    "digest": _BYTES,
    "note": _BYTES,
}
_RUNS = Table("run", _typed(RUN, _RUN_TYPES), 2)
_ADVANCED = (
    "tenant, run_id, version, next_seq, digest, mail, lapses, changed_at, unfit_builds,"
    " message_number, unread, outbox_number, touched"
)
_ADVANCES = Table("run", _typed(_ADVANCED, _RUN_TYPES), 2)
"""What a step's commit changes of a run: no column of an index, so that its new version stays on the page of the old one."""
_TOUCHES = Table(
    "run",
    "tenant text, run_id text, message_number bigint, unread bigint, outbox_number bigint, touched bigint",
    2,
)
_ENTRIES = Table(
    "entry",
    "tenant text, run_id text, generation bigint, seq bigint, turn bigint, kind text, operation text, name text, at bigint, body bytea",
    4,
)
_OPERATIONS = Table(
    "operation",
    "tenant text, run_id text, "
    + _typed(
        OPERATION,
        {
            **_ints("failures", "due_at", "awaits", "unapplied", "beats"),
            **_ints("heard_at", "silence", "begun_at", "in_doubt"),
            "detail": _BYTES,
            "progress": _BYTES,
        },
    ),
    3,
)
_NEW_MESSAGES = Table(
    "message",
    "tenant text, run_id text, number bigint, message_id text, generation bigint, kind text, name text, sender text, at bigint,"
    " consumed bigint, body bytea, digest text, result text, answer bytea",
    3,
)
_CONSUME = """
UPDATE $s.message AS old SET consumed = 1, body = '' FROM unnest(%b::text[], %b::text[], %b::bigint[])
    AS new (tenant, run_id, number)
WHERE old.tenant = new.tenant AND old.run_id = new.run_id AND old.number = new.number
"""
_ANSWER = """
UPDATE $s.message AS old SET answer = new.answer FROM unnest(%b::text[], %b::text[], %b::bigint[], %b::bytea[])
    AS new (tenant, run_id, number, answer)
WHERE old.tenant = new.tenant AND old.run_id = new.run_id AND old.number = new.number
"""
_EMPTY = """
UPDATE $s.message AS old SET body = '' FROM unnest(%b::text[], %b::text[], %b::bigint[]) AS new (tenant, run_id, below)
WHERE old.tenant = new.tenant AND old.run_id = new.run_id AND old.generation < new.below AND old.consumed = 0
"""
_FORGET = """
DELETE FROM $s.message AS old USING unnest(%b::text[], %b::text[], %b::bigint[], %b::bigint[])
    AS gone (tenant, run_id, last, incarnation)
WHERE old.tenant = gone.tenant AND old.run_id = gone.run_id AND old.number <= gone.last
    AND (old.generation <> gone.incarnation OR old.consumed = 1 AND NOT (old.kind = 'update' AND old.answer IS NULL))
"""
_ITEMS = Table(
    "outbox",
    _typed(OUTBOX, {**_ints("number", "generation", "target_generation"), "body": _BYTES})
    + ", at bigint",
    3,
)
_WATCHES = Table(
    "watch",
    "tenant text, run_id text, watcher_tenant text, watcher_run_id text, watcher_generation bigint, operation text",
    6,
)
_APPROVALS = Table(
    "approval",
    "tenant text, run_id text, generation bigint, approval_id text, "
    + _typed(
        APPROVAL.removeprefix("tenant, run_id, approval_id, "),
        {**_ints("expires_at", "use_by", "requested_at", "decided_at"), "body": _BYTES},
    ),
    4,
)
_NOTICES = Table(
    "notice",
    _typed(
        NOTICE,
        {**_ints("generation", "due_at", "expires_at", "tries"), "trouble": _BYTES},
    ),
    5,
)
_CLOSE_NOTICES = """
DELETE FROM $s.notice AS old USING unnest(%b::text[], %b::text[], %b::bigint[], %b::text[])
    AS gone (tenant, run_id, generation, approval_id)
WHERE old.tenant = gone.tenant AND old.run_id = gone.run_id AND old.generation = gone.generation
    AND old.approval_id = gone.approval_id
"""
_TASKS = Table(
    "task",
    "tenant text, run_id text, operation text, generation bigint, attempt bigint, queue text, name text, worker text, due bigint,"
    " since bigint, set_at bigint, taken bigint, lapses bigint, held bigint, arguments bytea, progress bytea",
    3,
)
_TASK_CHANGES = """
UPDATE $s.task AS old SET worker = new.worker, since = new.since, taken = new.taken, lapses = new.lapses, held = new.held,
    progress = coalesce(new.progress, old.progress)
FROM (SELECT * FROM unnest(%b::text[], %b::text[], %b::text[], %b::text[], %b::bigint[], %b::bigint[], %b::bigint[], %b::bigint[],
    %b::bytea[])) AS new (tenant, run_id, operation, worker, since, taken, lapses, held, progress)
WHERE old.tenant = new.tenant AND old.run_id = new.run_id AND old.operation = new.operation
"""
_ALL = {
    name: (
        f"DELETE FROM $s.{name} AS old USING unnest(%b::text[], %b::text[]) AS gone (tenant, run_id)"
        " WHERE old.tenant = gone.tenant AND old.run_id = gone.run_id"
    )
    for name in ("operation", "task", "notice", "watch")
}
_CONTROLS = Table("control", "tenant text, name text, version bigint, body bytea", 2)
_STICKIES = Table(
    "sticky",
    _typed(
        STICKY,
        {
            **_ints("incarnation", "approved", "made_at", "uses_given", "span", "expires_at"),
            **_ints("uses", "used", "revoked_at"),
            **dict.fromkeys(("args", "predicates", "reason", "revoked_why"), _BYTES),
        },
    ),
    2,
)
_REQUESTS = Table(
    "request",
    _typed(
        f"{REQUEST}, answer",
        {
            **_ints("started_at", "held_until", "keep", "expires_at", "resolved_at"),
            "note": _BYTES,
            "answer": _BYTES,
        },
    ),
    2,
)
_RENEW = "UPDATE $s.worker SET renewed = $s.micros() WHERE worker = ANY(%b::text[])"
_DROP_PLACES = """
DELETE FROM $s.run AS old USING unnest(%b::text[], %b::text[]) AS gone (tenant, run_id)
WHERE old.tenant = gone.tenant AND old.run_id = gone.run_id AND old.generation = 0 AND old.message_number = 0
"""


class Sending:
    """Sends the rows of one commit within an open pipeline.

    Raises:
        psycopg.errors.UniqueViolation: A row that was not there when it was read is there by now.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def send(self, rows: LoadedRows, renewed: set[WorkerId], early: set[RunKey]) -> None:
        """Send all of them.

        Args:
            renewed: Workers whose leases begin anew.
            early: Run ids for which an inbox was made, in case that something comes into it.
        """
        written = [run for _, run in sorted(rows.runs.items()) if run.error is None]
        self._send_runs([run for run in written if run.is_written])
        self._send_parts(written)
        self._rows(_CONTROLS.put, ((*key, *row) for key, row in sorted(rows.set_controls.items())))
        stickies = rows.set_stickies
        self._rows(_STICKIES.put, (sticky_values(stickies[key]) for key in sorted(stickies)))
        self._send_requests(rows)
        empty = sorted(key for key in early if not rows.runs[key].is_written)
        self._rows(_DROP_PLACES, ((key.tenant, key.run_id) for key in empty))
        if renewed:
            self._session.send(_RENEW, (sorted(renewed),))

    def _rows(self, sql: str, rows: Iterable[Row]) -> None:
        found = list(rows)
        if found:
            self._session.send(sql, _columns(found))

    def _send_runs(self, runs: list[LoadedRun]) -> None:
        new: list[Row] = []
        full: list[Row] = []
        advanced: list[Row] = []
        touched: list[Row] = []
        for run in runs:
            state, counts = run.state, run.counts_after
            if state is None or state is run.before:
                numbers = counts.message_number, counts.unread, counts.outbox_number
                touched.append((run.key.tenant, run.key.run_id, *numbers, counts.touched))
            elif not run.exists:
                new.append(run_values(state, counts))
            else:
                values = run_values(state, counts)
                is_plain = run.before is not None and _is_advance(run.before, state)
                (advanced if is_plain else full).append(
                    tuple(values[place] for place in _ADVANCED_PLACES) if is_plain else values
                )
        self._rows(_RUNS.insert, new)
        self._rows(_RUNS.update, full)
        self._rows(_ADVANCES.update, advanced)
        self._rows(_TOUCHES.update, touched)

    def _send_parts(self, runs: list[LoadedRun]) -> None:
        for name, is_all in _ALL_OF:
            gone = [_key(run) for run in runs if is_all(run)]
            self._rows(_ALL[name], gone)
        self._rows(
            _ENTRIES.insert,
            (
                _entry_values(run, generation, one)
                for run in runs
                for generation, one in run.entries
            ),
        )
        self._send_inbox(runs)
        self._send_outbox(runs)
        self._send_operations(runs)
        self._send_people(runs)
        self._send_tasks(runs)

    def _send_inbox(self, runs: list[LoadedRun]) -> None:
        self._rows(
            _EMPTY,
            ((*_key(run), run.emptied_below + 1) for run in runs if run.emptied_below is not None),
        )
        self._rows(
            _NEW_MESSAGES.insert,
            (_message_values(run, place) for run in runs for place in run.new_messages),
        )
        changed = [(run, row) for run in runs for row in run.set_messages.values()]
        self._rows(
            _CONSUME, ((*_key(run), row.stamped.number) for run, row in changed if row.consumed)
        )
        self._rows(
            _ANSWER,
            (
                (*_key(run), row.stamped.number, row.answer)
                for run, row in changed
                if row.answer is not None
            ),
        )
        self._rows(
            _FORGET,
            (
                (*_key(run), run.message_number - KNOWN_MESSAGES, run.forgotten_of)
                for run in runs
                if run.forgotten_of is not None and run.message_number > KNOWN_MESSAGES
            ),
        )

    def _send_outbox(self, runs: list[LoadedRun]) -> None:
        self._rows(
            _ITEMS.delete,
            ((*_key(run), number) for run in runs for number in run.cleared_items),
        )
        self._rows(
            _ITEMS.insert,
            (
                (*outbox_values(_key(run), item, item.number), to_micros(at))
                for run in runs
                for at, item in run.new_items
            ),
        )
        watches = [
            ((*_key(run), *_pair(watch.watcher), watch.generation, watch.operation), is_put)
            for run in runs
            for watch, is_put in run.set_watches.items()
        ]
        self._rows(_WATCHES.delete, (row for row, is_put in watches if not is_put))
        self._rows(_WATCHES.put, (row for row, is_put in watches if is_put))

    def _send_operations(self, runs: list[LoadedRun]) -> None:
        acts = [
            (_key(run), operation, row)
            for run in runs
            for operation, row in run.set_operations.items()
        ]
        self._rows(
            _OPERATIONS.delete, ((*key, operation) for key, operation, row in acts if row is None)
        )
        self._rows(
            _OPERATIONS.put,
            ((*key, *operation_values(row)) for key, _, row in acts if row is not None),
        )

    def _send_people(self, runs: list[LoadedRun]) -> None:
        approvals = [
            (generation, approval_values(row))
            for run in runs
            for (generation, _), row in run.set_approvals.items()
        ]
        self._rows(
            _APPROVALS.put,
            ((*values[:2], generation, *values[2:]) for generation, values in approvals),
        )
        self._rows(
            _CLOSE_NOTICES, ((*_key(run), *one) for run in runs for one in run.closed_notices)
        )
        notices = [
            (_key(run), place, row) for run in runs for place, row in run.set_notices.items()
        ]
        self._rows(_NOTICES.delete, ((*key, *place) for key, place, row in notices if row is None))
        self._rows(_NOTICES.put, (notice_values(row) for _, _, row in notices if row is not None))

    def _send_tasks(self, runs: list[LoadedRun]) -> None:
        acts = [
            (_key(run), operation, task)
            for run in runs
            for operation, task in run.set_tasks.items()
        ]
        self._rows(
            _TASKS.delete,
            (
                (*key, operation)
                for key, operation, task in acts
                if task is None or task.arguments is not None
            ),
        )
        puts = [task for _, _, task in acts if task is not None]
        self._rows(
            _TASKS.insert, (_task_values(task) for task in puts if task.arguments is not None)
        )
        self._rows(_TASK_CHANGES, (_task_changes(task) for task in puts if task.arguments is None))

    def _send_requests(self, rows: LoadedRows) -> None:
        acts = sorted(rows.set_requests.items(), key=lambda act: act[0])
        self._rows(_REQUESTS.delete, (key for key, row in acts if row is None))
        known = {key for key, _ in acts if rows.has_request(*key)}
        puts = [(key, request_values(row)) for key, row in acts if row is not None]
        self._rows(_REQUESTS.insert, (values for key, values in puts if key not in known))
        self._rows(_REQUESTS.update, (values for key, values in puts if key in known))


_ADVANCED_PLACES = tuple(_RUNS.names.index(one.strip()) for one in _ADVANCED.split(","))
_ALL_OF: tuple[tuple[str, Callable[[LoadedRun], bool]], ...] = (
    ("operation", lambda run: run.all_operations),
    ("task", lambda run: run.all_tasks),
    ("notice", lambda run: run.all_notices),
    ("watch", lambda run: run.all_watches),
)


def _is_advance(before: RunState, after: RunState) -> bool:
    """Whether nothing has changed but what each commit of a running run changes."""
    a, b = before.head, after.head
    return (
        a.status is b.status
        and (a.generation, a.workflow, a.owner, a.epoch, a.reason, a.note, a.ended_by, a.released)
        == (b.generation, b.workflow, b.owner, b.epoch, b.reason, b.note, b.ended_by, b.released)
        and (a.wake_at, a.restored) == (b.wake_at, b.restored)
        and (before.due, before.due_set_at, before.stopped, before.calls, before.ending)
        == (after.due, after.due_set_at, after.stopped, after.calls, after.ending)
    )


def _entry_values(run: LoadedRun, generation: int, one: StampedRow) -> Row:
    row = one.row
    names = row.kind, row.operation, row.name
    return (*_key(run), generation, row.seq, row.turn, *names, to_micros(one.at), row.body)


def _message_values(run: LoadedRun, place: tuple[int, str]) -> Row:
    row = run.new_messages[place]
    message = row.stamped.message
    return (
        *_key(run),
        row.stamped.number,
        message.message_id,
        row.incarnation,
        message.kind.value,
        message.name,
        message.sender,
        to_micros(row.stamped.at),
        int(row.consumed),
        message.body,
        message.digest,
        message.result,
        row.answer,
    )


def _task_values(task: TaskState) -> Row:
    row = task.row
    return (
        *_pair(row.key.run),
        row.key.operation,
        row.key.generation,
        row.key.attempt,
        row.queue,
        row.name,
        row.worker,
        to_micros(task.due),
        to_micros(row.since),
        to_micros(task.set_at),
        row.taken,
        row.lapses,
        int(task.held),
        task.arguments,
        task.progress or b"",
    )


def _task_changes(task: TaskState) -> Row:
    row = task.row
    times = to_micros(row.since), row.taken, row.lapses, int(task.held)
    return (*_pair(row.key.run), row.key.operation, row.worker, *times, task.progress)


def _key(run: LoadedRun) -> tuple[str, str]:
    return run.key.tenant, run.key.run_id


def _pair(run: RunKey) -> tuple[str, str]:
    return run.tenant, run.run_id


def _columns(rows: list[Row]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]
