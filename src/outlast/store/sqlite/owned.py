# ruff: noqa: S608 - only constants of this package are joined to statements; every value is bound
"""What a run's owner writes: entries, head, open operations, inbox, outbox, approvals, all or nothing."""

from __future__ import annotations

from outlast.journal.entry import EntryRow
from outlast.store.beat import missed_beat
from outlast.store.change import (
    Applied,
    ApprovalPut,
    ApprovalRow,
    Conflict,
    Fenced,
    HeadUpdate,
    OperationPut,
    Refused,
    RunChange,
    Status,
    Verdict,
)
from outlast.store.condition import (
    HISTORY,
    KNOWN_MESSAGES,
    LIFTING,
    PENDING,
    RECALLS,
    due_from,
    next_refusal,
    owned_times,
    settle_approvals,
    unfit_after,
)
from outlast.store.moment import from_micros, micros_or_none, to_micros
from outlast.store.row import OPERATION, head_of, operation_values, unfit_of, unfit_text
from outlast.store.row_people import APPROVAL, approval_of, approval_values
from outlast.store.sqlite import notice, outbox, sticky, task
from outlast.store.sqlite.database import Row
from outlast.store.sqlite.row import FIND_HEAD, INCARNATION
from outlast.store.sqlite.scope import Writing

_FENCE = f"""
SELECT generation, owner, epoch, version, next_seq, digest, mail, lapses, changed_at, unfit_builds, {INCARNATION}
FROM run WHERE tenant = ? AND run_id = ?
"""
_ADD_ENTRY = f"INSERT INTO entry (tenant, run_id, generation, seq, turn, kind, operation, name, at, body) VALUES ({'?, ' * 9}?)"
_ADVANCE = """
UPDATE run SET
    version = version + 1, next_seq = ?, digest = ?, mail = ?, lapses = ?, changed_at = ?, unfit_builds = ?
WHERE tenant = ? AND run_id = ?
"""
_SET_HEAD = "UPDATE run SET status = ?, reason = ?, wake_at = ?, note = ?, ending = ? WHERE tenant = ? AND run_id = ?"
_GIVE_BACK = """
UPDATE run SET owner = NULL, wake_at = ?, open = ?, due = ?, calls = ?, stopped_boot = ?, stopped = ?, due_set_at = ?
WHERE tenant = ? AND run_id = ?
"""
_CONSUME = """
UPDATE message SET consumed = 1, body = x''
WHERE tenant = ? AND run_id = ? AND message_id = ? AND generation = ? AND consumed = 0
"""
_ANSWER = """
UPDATE message SET answer = ?
WHERE tenant = ? AND run_id = ? AND message_id = ? AND generation = ?
    AND kind = 'update' AND consumed = 1 AND answer IS NULL
"""
_LAST_UNREAD = """
SELECT max(number) FROM message INDEXED BY message_unread
WHERE tenant = ? AND run_id = ? AND generation = ? AND consumed = 0
"""
RECALL_KINDS = ", ".join(sorted(f"'{kind.value}'" for kind in RECALLS))
_LAST_RECALL = f"{_LAST_UNREAD} AND kind IN ({RECALL_KINDS})"
LIFTING_KINDS = ", ".join(sorted(f"'{kind.value}'" for kind in LIFTING))
_LAST_LIFTING = f"{_LAST_UNREAD} AND kind IN ({LIFTING_KINDS})"
_BEGIN_NEXT = """
UPDATE run SET generation = ?, incarnation = ?, workflow = ?, next_seq = ? WHERE tenant = ? AND run_id = ?
"""
_FORGET = """
DELETE FROM message WHERE tenant = ?1 AND run_id = ?2 AND number <= (
    SELECT max(number) - ?3 FROM message WHERE tenant = ?1 AND run_id = ?2
) AND (generation <> ?4 OR consumed = 1 AND NOT (kind = 'update' AND answer IS NULL))
"""
"""Messages of a former use of the id are nobody's any more; of the present one those that wait, to be read or answered, are not forgotten."""
_PUT_OPERATION = f"REPLACE INTO operation (tenant, run_id, {OPERATION}) VALUES ({'?, ' * 15}?)"
_BEATS = (
    "SELECT beats FROM operation WHERE tenant = ? AND run_id = ? AND operation = ? AND awaits = 1"
)
_DROP_OPERATION = "DELETE FROM operation WHERE tenant = ? AND run_id = ? AND operation = ?"
_FIND_APPROVAL = f"SELECT {APPROVAL} FROM approval WHERE tenant = ? AND run_id = ? AND generation = ? AND approval_id = ?"
_WORKFLOW = "SELECT workflow FROM run WHERE tenant = ? AND run_id = ?"
_CONTROL_VERSION = "SELECT version FROM control WHERE tenant = ? AND name = ?"
_PUT_APPROVAL = f"REPLACE INTO approval ({APPROVAL}, generation) VALUES ({'?, ' * 19}?)"


def write(writing: Writing, change: RunChange) -> Verdict:
    """Write an owned change of a living worker; on any verdict but `Applied` the caller undoes what was written."""
    key = (change.run.tenant, change.run.run_id)
    fence = writing.database.row(_FENCE, key)
    if fence is None:
        return Fenced("there is no such run")
    verdict = _fence_verdict(writing, change, fence)
    if verdict is not None:
        return verdict
    generation, _, _, _, next_seq, _, mail, lapses, changed_at, unfit, inbox = fence
    at = _append(writing, change, (generation, next_seq, changed_at))
    if isinstance(at, Refused):
        return at
    seq = next_seq + len(change.entries)
    refusal = _write_parts(writing, change, generation, inbox)
    if refusal is not None:
        return refusal
    unread = _last_unread(writing, key, inbox) if mail else 0
    refusal = _mail_refusal(change, unread) or _write_approvals(
        writing, change, (generation, inbox), at
    )
    if refusal is not None:
        return refusal
    if unfit or change.head is not None:
        unfit = unfit_text(unfit_after(unfit_of(unfit), change))
    counts = (int(unread > 0), 0 if change.entries else lapses)
    writing.database.run(_ADVANCE, (seq, change.digest, *counts, at, unfit, *key))
    sends = outbox.add(writing, key, change.outbox, at)
    if change.next:
        sends |= _begin_next(writing, key, change, (generation, inbox), at)
    if change.head is not None:
        sends |= _write_head(writing, key, change.head, (generation, inbox), unread, at)
    return Applied(from_micros(at), outbox=sends)


def _append(writing: Writing, change: RunChange, now: tuple[int, int, int]) -> int | Refused:
    """Append the entries; the time of the change. `now` is the generation, the position of the next entry, and the last change's time."""
    generation, next_seq, changed_at = now
    if [row.seq for row in change.entries] != [*range(next_seq, next_seq + len(change.entries))]:
        return Refused("seq")
    dated = owned_times(change, writing.now, from_micros(changed_at))
    if isinstance(dated, Refused):
        return dated
    times, at = dated
    for row, time in zip(change.entries, times, strict=True):
        key = (change.run.tenant, change.run.run_id)
        add_entry(writing, key, generation, row, to_micros(time))
    return to_micros(at)


def end_run(writing: Writing, key: tuple[str, str], generation: int, at: int) -> bool:
    """Drop what only an open run has: its open operations and tasks, its pending approvals, its owner and its alarm.

    Its row says by now how it has ended. Whether other runs are told of it.
    """
    sends = _drop_open(writing, key, generation, at)
    sends |= outbox.tell_watchers(writing, key, generation, at)
    stopped = (writing.instant.boot, writing.instant.nanos)
    writing.database.run(_GIVE_BACK, (None, 0, None, 0, *stopped, writing.micros, *key))
    return sends


def _drop_open(writing: Writing, key: tuple[str, str], generation: int, at: int) -> bool:
    """Drop what only an open generation has: its open operations and tasks, and its pending approvals; whether other runs are told."""
    sends = outbox.leave_others(writing, key, generation, at)
    run = writing.database.run
    run("DELETE FROM operation WHERE tenant = ? AND run_id = ?", key)
    task.end(writing, key)
    notice.end(writing, key)
    run(
        "UPDATE approval SET state = 'withdrawn' WHERE tenant = ? AND run_id = ? AND generation = ? AND state = 'pending'",
        (*key, generation),
    )
    return sends


def _begin_next(
    writing: Writing, key: tuple[str, str], change: RunChange, now: tuple[int, int], at: int
) -> bool:
    """Begin the next generation; `now` is the present one, and the one that began the incarnation. Whether other runs are told.

    No row of the inbox is touched, but for those of messages that nobody will send again.
    """
    generation, incarnation = now
    sends = _drop_open(writing, key, generation, at)
    for row in change.next:
        add_entry(writing, key, generation + 1, row, at)
    begun = (generation + 1, incarnation, change.next[0].name, len(change.next))
    writing.database.run(_BEGIN_NEXT, (*begun, *key))
    writing.database.run(_FORGET, (*key, KNOWN_MESSAGES, incarnation))
    return sends


def add_entry(
    writing: Writing, key: tuple[str, str], generation: int, row: EntryRow, at: int
) -> None:
    """Append an entry to the journal of one generation, with its time in microseconds since 1970."""
    values = (row.seq, row.turn, row.kind, row.operation, row.name, at, row.body)
    writing.database.run(_ADD_ENTRY, (*key, generation, *values))


def find_approval(
    writing: Writing, key: tuple[str, str], generation: int, approval_id: str
) -> ApprovalRow | None:
    """Return an approval of one generation of a run."""
    row = writing.database.row(_FIND_APPROVAL, (*key, generation, approval_id))
    return None if row is None else approval_of(row)


def control_version(writing: Writing, tenant: str, name: str) -> int:
    """Return the version of a control row; 0 where there is none."""
    return writing.database.value(_CONTROL_VERSION, (tenant, name)) or 0


def move_on(writing: Writing, tenant: str, name: str) -> None:
    """Bring a control row without a body to its next version."""
    version = control_version(writing, tenant, name)
    writing.database.run("REPLACE INTO control VALUES (?, ?, ?, x'')", (tenant, name, version + 1))


def put_approval(writing: Writing, row: ApprovalRow, generation: int) -> None:
    """Write an approval as it stands now; nobody is told any more of one that does not wait."""
    if row.state != PENDING:
        notice.close(writing, row.run, generation, row.put.approval_id)
    writing.database.run(_PUT_APPROVAL, (*approval_values(row), generation))


def _fence_verdict(writing: Writing, change: RunChange, fence: Row) -> Verdict | None:
    _, owner, epoch, version, _, digest, _, _, changed_at, _, _ = fence
    if change.digest and version == change.version + 1 and digest == change.digest:
        return Applied(from_micros(changed_at))
    if owner != change.worker or epoch != change.epoch:
        return Fenced(f"the run is at epoch {epoch}, held by {owner or 'nobody'}")
    if version != change.version:
        key = (change.run.tenant, change.run.run_id)
        row = writing.database.row(FIND_HEAD, key)
        return Conflict(None if row is None else head_of(row), version)
    return None


def _write_parts(
    writing: Writing, change: RunChange, generation: int, inbox: int
) -> Refused | None:
    if reason := next_refusal(change):
        return Refused(reason)
    key = (change.run.tenant, change.run.run_id)
    database = writing.database
    for message_id in change.consumed:
        if database.changed(_CONSUME, (*key, message_id, inbox)) != 1:
            return Refused("message", message_id)
    for answer in change.answers:
        if database.changed(_ANSWER, (answer.body, *key, answer.message_id, inbox)) != 1:
            return Refused("answer", answer.message_id)
    for act in change.operations:
        if refusal := missed_beat(database.value(_BEATS, (*key, act.operation)), act):
            return refusal
        if isinstance(act, OperationPut):
            database.run(_PUT_OPERATION, (*key, *operation_values(act)))
        else:
            database.run(_DROP_OPERATION, (*key, act.operation))
    return task.write(writing, change, generation)


def _mail_refusal(change: RunChange, unread: int) -> Refused | None:
    closes = change.head is not None and change.head.status.closed
    return Refused("mail") if unread and closes else None


def _write_approvals(
    writing: Writing, change: RunChange, now: tuple[int, int], at: int
) -> Refused | None:
    """Write requests and grants. `now` is the present generation, and the one that began the incarnation."""
    if not (change.approvals or change.spends or change.permits):
        return None
    generation, incarnation = now
    key = (change.run.tenant, change.run.run_id)
    rests = any(
        vote.sticky
        for one in change.approvals
        if isinstance(one, ApprovalPut)
        for vote in one.votes
    )
    workflow = writing.database.value(_WORKFLOW, key) if rests else ""
    settled = settle_approvals(
        change,
        lambda approval_id: find_approval(writing, key, generation, approval_id),
        lambda sticky_id: sticky.find(writing, change.run.tenant, sticky_id),
        (change.run, incarnation, workflow),
        lambda tenant, name: control_version(writing, tenant, name),
        writing.now,
        from_micros(at),
    )
    if isinstance(settled, Refused):
        return settled
    for row in settled.approvals.values():
        put_approval(writing, row, generation)
    for use in settled.sticky.values():
        sticky.put(writing, use)
    for act in change.approvals:
        if isinstance(act, ApprovalPut):
            notice.add(writing, settled.approvals[act.approval_id], generation)
    return None


def _write_head(
    writing: Writing,
    key: tuple[str, str],
    update: HeadUpdate,
    now: tuple[int, int],
    unread: int,
    at: int,
) -> bool:
    """Write the head; whether other runs are told of it. `now` is the present generation, and the one that began the incarnation."""
    generation, inbox = now
    if unread and update.status is Status.BLOCKED and update.reason == HISTORY:
        unread = writing.database.value(_LAST_LIFTING, (*key, inbox)) or 0
    if unread and update.status is Status.PAUSED:
        unread = writing.database.value(_LAST_RECALL, (*key, inbox)) or 0
    wake_at = micros_or_none(update.wake_at)
    writing.database.run(
        _SET_HEAD,
        (update.status.value, update.reason, wake_at, update.note, int(update.ending), *key),
    )
    if update.status.closed:
        return end_run(writing, key, generation, at)
    if update.release:
        seen = (
            (unread if update.mail_seen is None else update.mail_seen) if update.ignore_mail else 0
        )
        calls = unread > seen
        recalled = update.status is Status.PAUSED and unread > 0
        due = micros_or_none(due_from(update, calls=calls, recalled=recalled, now=writing.now))
        stopped = (writing.instant.boot, writing.instant.nanos)
        values = (wake_at, 1, due, int(calls), *stopped, writing.micros, *key)
        writing.database.run(_GIVE_BACK, values)
    return False


def _last_unread(writing: Writing, key: tuple[str, str], inbox: int) -> int:
    return writing.database.value(_LAST_UNREAD, (*key, inbox)) or 0
