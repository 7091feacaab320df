# ruff: noqa: S608 - only constants of this package are joined to statements; every value is bound
"""What anyone may write: starts, messages, decisions, terminations, the relay's receipts, control rows."""

from __future__ import annotations

from msgspec.structs import replace

from outlast.store.change import (
    Applied,
    ClearOutbox,
    Conflict,
    Decide,
    Fenced,
    FinishTask,
    Message,
    PutControl,
    PutMessage,
    Refused,
    RunKey,
    StartRun,
    Status,
    Terminate,
    Verdict,
)
from outlast.store.condition import APPROVED, DENIED, decision_refusal
from outlast.store.moment import from_micros
from outlast.store.sqlite import task
from outlast.store.sqlite.database import Row
from outlast.store.sqlite.owned import end_run, find_approval, put_approval
from outlast.store.sqlite.row import HEAD, head_of
from outlast.store.sqlite.scope import Writing

_HEAD = f"SELECT {HEAD} FROM run WHERE tenant = ? AND run_id = ?"
_ADD_RUN = """
INSERT INTO run (tenant, run_id, generation, workflow, fingerprint, status, owner, epoch, next_seq, mail,
    created_at, changed_at, due, due_set_at, stopped_boot, stopped)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_ADD_ENTRY = f"INSERT INTO entry (tenant, run_id, generation, seq, turn, kind, operation, name, at, body) VALUES ({'?, ' * 9}?)"
_STOPPED = "SELECT stopped_boot, stopped FROM run WHERE tenant = ? AND run_id = ?"
_STANDING = "SELECT generation, open, changed_at FROM run WHERE tenant = ? AND run_id = ?"
_HAS_UNREAD = """
SELECT EXISTS (SELECT 1 FROM message WHERE tenant = ? AND run_id = ? AND generation = ? AND consumed = 0)
"""
_KNOWN_MESSAGE = """
SELECT at FROM message WHERE tenant = ? AND run_id = ? AND generation = ? AND message_id = ?
"""
_FIRST_GENERATION = 1
"""A message that comes before its run waits for this one."""
_ADD_MESSAGE = """
INSERT INTO message (tenant, run_id, number, message_id, generation, kind, name, sender, at, body)
VALUES (?1, ?2, (SELECT ifnull(max(number), 0) + 1 FROM message WHERE tenant = ?1 AND run_id = ?2),
    ?3, ?4, ?5, ?6, ?7, ?8, ?9)
"""
_OFFER = """
UPDATE run SET mail = 1, calls = 1, due_set_at = ?1,
    due = CASE WHEN owner IS NULL AND status <> 'paused' THEN min(ifnull(due, ?1), ?1) END
WHERE tenant = ?2 AND run_id = ?3
"""
_TERMINATE = """
UPDATE run SET status = 'terminated', reason = ?, ended_by = ?, epoch = epoch + 1, changed_at = ?
WHERE tenant = ? AND run_id = ?
"""


def write(
    writing: Writing,
    change: PutMessage | Decide | Terminate | ClearOutbox | PutControl | FinishTask,
) -> Verdict:
    """Write an unowned change; on any verdict but `Applied` the caller undoes what was written."""
    match change:
        case PutMessage():
            return _put_message(writing, change)
        case Decide():
            return _decide(writing, change)
        case Terminate():
            return _terminate(writing, change)
        case ClearOutbox():
            rows = [(change.run.tenant, change.run.run_id, number) for number in change.numbers]
            writing.database.run_each(
                "DELETE FROM outbox WHERE tenant = ? AND run_id = ? AND number = ?", rows
            )
            return Applied(writing.now)
        case PutControl():
            return _put_control(writing, change)
        case FinishTask():
            return _finish_task(writing, change)


def start(writing: Writing, change: StartRun) -> Verdict:
    """Insert a run, or the next generation of a closed one."""
    database = writing.database
    key = (change.run.tenant, change.run.run_id)
    row = database.row(_HEAD, key)
    former = None if row is None else head_of(row)
    if former is None:
        fits = change.generation == 1
    else:
        fits = former.status.closed and change.generation == former.generation + 1
    if not fits:
        return Conflict(former)
    if change.worker is not None and not writing.live(change.worker):
        return Fenced("the worker's lease has lapsed")
    if any(row.seq != seq for seq, row in enumerate(change.entries)):
        return Refused("seq")
    at, epoch, stopped = writing.micros, 0, (None, None)
    if row is not None and former is not None:
        at, epoch = max(at, row[16]), former.epoch
        stopped = database.row(_STOPPED, key) or stopped
        database.run("DELETE FROM run WHERE tenant = ? AND run_id = ?", key)
    epoch += change.worker is not None
    database.run(_ADD_RUN, _run_values(writing, change, epoch, at, stopped))
    for entry in change.entries:
        values = (entry.seq, entry.turn, entry.kind, entry.operation, entry.name, at, entry.body)
        database.run(_ADD_ENTRY, (*key, change.generation, *values))
    return Applied(from_micros(at), epoch if change.worker else 0)


def _run_values(writing: Writing, change: StartRun, epoch: int, at: int, stopped: Row) -> Row:
    key = (change.run.tenant, change.run.run_id)
    mail = writing.database.value(_HAS_UNREAD, (*key, change.generation))
    status = Status.RUNNING if change.worker else Status.READY
    due = None if change.worker else writing.micros
    names = (
        change.workflow,
        change.fingerprint,
        status.value,
        change.worker,
        epoch,
        len(change.entries),
        mail,
    )
    return (*key, change.generation, *names, at, at, due, writing.micros, *stopped)


def _put_message(writing: Writing, change: PutMessage) -> Verdict:
    row = _standing(writing, change.run)
    generation = _FIRST_GENERATION if row is None else row[0]
    known = _known_at(writing, change.run, generation, change.message)
    if known is not None:
        return known
    if row is None and not change.early:
        return Refused("not_found")
    if row is not None and not row[1]:
        return Refused("closed")
    _deliver(writing, change.run, change.message, generation)
    return Applied(writing.now)


def _decide(writing: Writing, change: Decide) -> Verdict:
    standing = _standing(writing, change.run)
    generation = _FIRST_GENERATION if standing is None else standing[0]
    known = _known_at(writing, change.run, generation, change.message)
    if known is not None:
        return known
    key = (change.run.tenant, change.run.run_id)
    row = find_approval(writing, key, generation, change.approval_id)
    refusal = decision_refusal(row, change, writing.now)
    if refusal or row is None:
        return Refused(refusal, change.approval_id)
    state = APPROVED if change.approved else DENIED
    put_approval(
        writing, replace(row, state=state, decided_at=writing.now, by=change.by), generation
    )
    _deliver(writing, change.run, change.message, generation)
    return Applied(writing.now)


def _terminate(writing: Writing, change: Terminate) -> Verdict:
    key = (change.run.tenant, change.run.run_id)
    row = _standing(writing, change.run)
    if row is None:
        return Refused("not_found")
    generation, open_, changed_at = row
    if not open_:
        return Refused("closed")
    at = max(writing.micros, changed_at)
    end_run(writing, key, generation)
    writing.database.run(_TERMINATE, (change.reason, change.by, at, *key))
    return Applied(from_micros(at))


def _put_control(writing: Writing, change: PutControl) -> Verdict:
    key = (change.tenant, change.name)
    found = writing.database.value("SELECT version FROM control WHERE tenant = ? AND name = ?", key)
    current = found or 0
    if current != change.version:
        return Conflict(version=current)
    writing.database.run(
        "REPLACE INTO control VALUES (?, ?, ?, ?)", (*key, current + 1, change.body)
    )
    return Applied(writing.now)


def _finish_task(writing: Writing, change: FinishTask) -> Verdict:
    row = _standing(writing, change.run)
    generation = change.generation if row is None else row[0]
    if change.message is not None:
        known = _known_at(writing, change.run, generation, change.message)
        if known is not None:
            return known
    if not writing.live(change.worker):
        return Fenced("the worker's lease has lapsed")
    why = task.finish(writing, change)
    if why:
        return Fenced(why)
    if change.message is not None:
        _deliver(writing, change.run, change.message, generation)
    return Applied(writing.now)


def _standing(writing: Writing, run: RunKey) -> Row | None:
    """Return generation, whether it is open, and `changed_at` of a run."""
    return writing.database.row(_STANDING, (run.tenant, run.run_id))


def _known_at(writing: Writing, run: RunKey, generation: int, message: Message) -> Applied | None:
    key = (run.tenant, run.run_id, generation, message.message_id)
    at = writing.database.value(_KNOWN_MESSAGE, key)
    return None if at is None else Applied(from_micros(at))


def _deliver(writing: Writing, run: RunKey, message: Message, generation: int) -> None:
    values = (
        message.message_id,
        generation,
        message.kind,
        message.name,
        message.sender,
        writing.micros,
        message.body,
    )
    writing.database.run(_ADD_MESSAGE, (run.tenant, run.run_id, *values))
    writing.database.run(_OFFER, (writing.micros, run.tenant, run.run_id))
