# ruff: noqa: S608 - only constants of this package are joined to statements; every value is bound
"""What a run's owner writes: entries, head, open operations, inbox, outbox, approvals, all or nothing."""

from __future__ import annotations

from outlast.store.change import (
    Applied,
    ApprovalRow,
    Conflict,
    Fenced,
    HeadUpdate,
    OperationPut,
    Refused,
    RunChange,
    Verdict,
)
from outlast.store.condition import due_from, settle_approvals, unfit_after
from outlast.store.moment import from_micros, micros_or_none
from outlast.store.sqlite import task
from outlast.store.sqlite.database import Row
from outlast.store.sqlite.row import (
    APPROVAL,
    HEAD,
    approval_of,
    approval_values,
    head_of,
    unfit_of,
    unfit_text,
)
from outlast.store.sqlite.scope import Writing

_FENCE = """
SELECT generation, owner, epoch, version, next_seq, digest, mail, lapses, changed_at, unfit_builds
FROM run WHERE tenant = ? AND run_id = ?
"""
_ADD_ENTRY = f"INSERT INTO entry (tenant, run_id, generation, seq, turn, kind, operation, name, at, body) VALUES ({'?, ' * 9}?)"
_ADVANCE = """
UPDATE run SET
    version = version + 1, next_seq = ?, digest = ?, mail = ?, lapses = ?, changed_at = ?, unfit_builds = ?
WHERE tenant = ? AND run_id = ?
"""
_SET_HEAD = (
    "UPDATE run SET status = ?, reason = ?, wake_at = ?, note = ? WHERE tenant = ? AND run_id = ?"
)
_GIVE_BACK = """
UPDATE run SET owner = NULL, wake_at = ?, open = ?, due = ?, calls = ?, stopped_boot = ?, stopped = ?, due_set_at = ?
WHERE tenant = ? AND run_id = ?
"""
_HEAD = f"SELECT {HEAD} FROM run WHERE tenant = ? AND run_id = ?"
_CONSUME = """
UPDATE message SET consumed = 1, body = x''
WHERE tenant = ? AND run_id = ? AND message_id = ? AND generation = ? AND consumed = 0
"""
_LAST_UNREAD = """
SELECT max(number) FROM message WHERE tenant = ? AND run_id = ? AND generation = ? AND consumed = 0
"""
_PUT_OPERATION = f"REPLACE INTO operation (tenant, run_id, operation, kind, name, failures, due_at, detail) VALUES ({'?, ' * 7}?)"
_DROP_OPERATION = "DELETE FROM operation WHERE tenant = ? AND run_id = ? AND operation = ?"
_ADD_OUTBOX = f"""
INSERT OR IGNORE INTO outbox
    (tenant, run_id, number, target_tenant, target_run_id, message_id, kind, name, sender, at, body)
VALUES ({"?, " * 10}?)
"""
_FIND_APPROVAL = f"SELECT {APPROVAL} FROM approval WHERE tenant = ? AND run_id = ? AND generation = ? AND approval_id = ?"
_PUT_APPROVAL = f"REPLACE INTO approval ({APPROVAL}, generation) VALUES ({'?, ' * 15}?)"


def write(writing: Writing, change: RunChange) -> Verdict:
    """Write an owned change of a living worker; on any verdict but `Applied` the caller undoes what was written."""
    key = (change.run.tenant, change.run.run_id)
    fence = writing.database.row(_FENCE, key)
    if fence is None:
        return Fenced("there is no such run")
    verdict = _fence_verdict(writing, change, fence)
    if verdict is not None:
        return verdict
    generation, _, _, _, next_seq, _, mail, lapses, changed_at, unfit = fence
    at = max(writing.micros, changed_at)
    seq = next_seq
    for row in change.entries:
        if row.seq != seq:
            return Refused("seq")
        seq += 1
        values = (
            *key,
            generation,
            row.seq,
            row.turn,
            row.kind,
            row.operation,
            row.name,
            at,
            row.body,
        )
        writing.database.run(_ADD_ENTRY, values)
    refusal = _write_parts(writing, change, generation)
    if refusal is not None:
        return refusal
    unread = _last_unread(writing, key, generation) if mail else 0
    if unread and change.head is not None and change.head.status.closed:
        return Refused("mail")
    refusal = _write_approvals(writing, change, generation, at)
    if refusal is not None:
        return refusal
    if unfit or change.head is not None:
        unfit = unfit_text(unfit_after(unfit_of(unfit), change))
    counts = (int(unread > 0), 0 if change.entries else lapses)
    writing.database.run(_ADVANCE, (seq, change.digest, *counts, at, unfit, *key))
    if change.head is not None:
        _write_head(writing, key, change.head, generation, unread)
    return Applied(from_micros(at))


def end_run(writing: Writing, key: tuple[str, str], generation: int) -> None:
    """Drop what only an open run has: its open operations and tasks, its pending approvals, its owner and its alarm."""
    run = writing.database.run
    run("DELETE FROM operation WHERE tenant = ? AND run_id = ?", key)
    task.end(writing, key)
    run(
        "UPDATE approval SET state = 'withdrawn' WHERE tenant = ? AND run_id = ? AND generation = ? AND state = 'pending'",
        (*key, generation),
    )
    stopped = (writing.instant.boot, writing.instant.nanos)
    run(_GIVE_BACK, (None, 0, None, 0, *stopped, writing.micros, *key))


def find_approval(
    writing: Writing, key: tuple[str, str], generation: int, approval_id: str
) -> ApprovalRow | None:
    """Return an approval of one generation of a run."""
    row = writing.database.row(_FIND_APPROVAL, (*key, generation, approval_id))
    return None if row is None else approval_of(row)


def put_approval(writing: Writing, row: ApprovalRow, generation: int) -> None:
    """Write an approval as it stands now."""
    writing.database.run(_PUT_APPROVAL, (*approval_values(row), generation))


def _fence_verdict(writing: Writing, change: RunChange, fence: Row) -> Verdict | None:
    _, owner, epoch, version, _, digest, _, _, changed_at, _ = fence
    if change.digest and version == change.version + 1 and digest == change.digest:
        return Applied(from_micros(changed_at))
    if owner != change.worker or epoch != change.epoch:
        return Fenced(f"the run is at epoch {epoch}, held by {owner or 'nobody'}")
    if version != change.version:
        key = (change.run.tenant, change.run.run_id)
        row = writing.database.row(_HEAD, key)
        return Conflict(None if row is None else head_of(row), version)
    return None


def _write_parts(writing: Writing, change: RunChange, generation: int) -> Refused | None:
    key = (change.run.tenant, change.run.run_id)
    database = writing.database
    for message_id in change.consumed:
        if database.changed(_CONSUME, (*key, message_id, generation)) != 1:
            return Refused("message", message_id)
    for act in change.operations:
        if isinstance(act, OperationPut):
            values = (
                act.operation,
                act.kind,
                act.name,
                act.failures,
                micros_or_none(act.due_at),
                act.detail,
            )
            database.run(_PUT_OPERATION, (*key, *values))
        else:
            database.run(_DROP_OPERATION, (*key, act.operation))
    for item in change.outbox:
        target, message = item.target, item.message
        values = (
            message.message_id,
            message.kind,
            message.name,
            message.sender,
            writing.micros,
            message.body,
        )
        row = (*key, item.number, target.tenant, target.run_id, *values)
        if database.changed(_ADD_OUTBOX, row) != 1:
            return Refused("outbox", str(item.number))
    return task.write(writing, change, generation)


def _write_approvals(
    writing: Writing, change: RunChange, generation: int, at: int
) -> Refused | None:
    if not (change.approvals or change.spends):
        return None
    key = (change.run.tenant, change.run.run_id)
    settled = settle_approvals(
        change,
        lambda approval_id: find_approval(writing, key, generation, approval_id),
        writing.now,
        from_micros(at),
    )
    if isinstance(settled, Refused):
        return settled
    for row in settled.values():
        put_approval(writing, row, generation)
    return None


def _write_head(
    writing: Writing, key: tuple[str, str], update: HeadUpdate, generation: int, unread: int
) -> None:
    wake_at = micros_or_none(update.wake_at)
    writing.database.run(
        _SET_HEAD, (update.status.value, update.reason, wake_at, update.note, *key)
    )
    if update.status.closed:
        end_run(writing, key, generation)
    elif update.release:
        seen = (
            (unread if update.mail_seen is None else update.mail_seen) if update.ignore_mail else 0
        )
        calls = unread > seen
        due = micros_or_none(due_from(update, calls=calls, now=writing.now))
        stopped = (writing.instant.boot, writing.instant.nanos)
        values = (wake_at, 1, due, int(calls), *stopped, writing.micros, *key)
        writing.database.run(_GIVE_BACK, values)


def _last_unread(writing: Writing, key: tuple[str, str], generation: int) -> int:
    return writing.database.value(_LAST_UNREAD, (*key, generation)) or 0
