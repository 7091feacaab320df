# ruff: noqa: S608 - only constants of this package are joined to statements; every value is bound
"""What anyone may write: starts, messages, decisions, terminations, the relay's receipts, control rows."""

from __future__ import annotations

from outlast.store.beat import AWAITS
from outlast.store.change import (
    CAPPED,
    MAX_UNREAD,
    SAGA,
    Applied,
    BeatOperation,
    BeatTask,
    ClearOutbox,
    Conflict,
    Decide,
    DropWatch,
    Fenced,
    FinishTask,
    Message,
    PutControl,
    PutMessage,
    PutWatch,
    Refused,
    Release,
    RevokeSticky,
    RunKey,
    StartRun,
    Status,
    Terminate,
    Verdict,
)
from outlast.store.condition import (
    HISTORY,
    LIFTING,
    RECALLS,
    decided,
    decision_refusal,
    is_other,
    start_times,
    stranger_refusal,
)
from outlast.store.moment import END_OF_TIME, from_micros, to_micros
from outlast.store.row import head_of, restored_columns
from outlast.store.sqlite import outbox, sticky, task
from outlast.store.sqlite.database import Row
from outlast.store.sqlite.owned import (
    add_entry,
    control_version,
    end_run,
    find_approval,
    move_on,
    put_approval,
)
from outlast.store.sqlite.row import FIND_HEAD, INCARNATION
from outlast.store.sqlite.scope import Writing
from outlast.store.sticky import STICKY
from outlast.store.sticky_condition import stuck

_ADD_RUN = """
INSERT INTO run (tenant, run_id, generation, workflow, fingerprint, status, owner, epoch, next_seq, mail,
    created_at, changed_at, due, due_set_at, stopped_boot, stopped, outbox_number, origin, released, restored_at,
    restored_until)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_EMPTY_UNREAD = """
UPDATE message INDEXED BY message_unread SET body = x''
WHERE tenant = ? AND run_id = ? AND generation < ? AND consumed = 0
"""
_KEPT = "SELECT stopped_boot, stopped, outbox_number FROM run WHERE tenant = ? AND run_id = ?"
"""What a former use of the id leaves to the next one."""
_STANDING = f"SELECT generation, open, changed_at, {INCARNATION}, ending, origin FROM run WHERE tenant = ? AND run_id = ?"
_HAS_UNREAD = """
SELECT EXISTS (SELECT 1 FROM message WHERE tenant = ? AND run_id = ? AND generation = ? AND consumed = 0)
"""
_KNOWN_MESSAGE = """
SELECT at, digest FROM message WHERE tenant = ? AND run_id = ? AND generation = ? AND message_id = ?
"""
_SPAN = """
SELECT (SELECT max(number) FROM message WHERE tenant = ?1 AND run_id = ?2) - min(number) + 1
FROM message INDEXED BY message_unread WHERE tenant = ?1 AND run_id = ?2 AND generation = ?3 AND consumed = 0
"""
_COUNT_UNREAD = """
SELECT count(*) FROM message INDEXED BY message_unread
WHERE tenant = ? AND run_id = ? AND generation = ? AND consumed = 0
"""
_FIRST_GENERATION = 1
"""A message that comes before its run waits for this one."""
_ADD_MESSAGE = """
INSERT INTO message (tenant, run_id, number, message_id, generation, kind, name, sender, at, body, digest, result)
VALUES (?1, ?2, (SELECT ifnull(max(number), 0) + 1 FROM message WHERE tenant = ?1 AND run_id = ?2),
    ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
"""
_IS_OFFERED = f"CASE WHEN status = 'paused' THEN ?4 WHEN status = 'blocked' AND reason = '{HISTORY}' THEN ?5 ELSE 1 END"
_OFFER = f"""
UPDATE run SET mail = 1, calls = calls OR {_IS_OFFERED}, due_set_at = ?1,
    due = CASE WHEN owner IS NULL AND {_IS_OFFERED} THEN min(ifnull(due, ?1), ?1) ELSE due END
WHERE tenant = ?2 AND run_id = ?3
"""
_WORKFLOW = "SELECT workflow FROM run WHERE tenant = ? AND run_id = ?"
_HAS_SAGA = (
    f"SELECT EXISTS (SELECT 1 FROM operation WHERE tenant = ? AND run_id = ? AND kind = '{SAGA}')"
)
_TERMINATE = """
UPDATE run SET status = 'terminated', reason = ?, ended_by = ?, changed_at = ?,
    epoch = CASE WHEN epoch < 9223372036854775807 THEN epoch + 1 ELSE epoch END
WHERE tenant = ? AND run_id = ?
"""
_RELEASE = """
UPDATE run SET released = 1, restored_at = CASE WHEN ?1 THEN NULL ELSE restored_at END,
    restored_until = CASE WHEN ?1 THEN NULL ELSE restored_until END
WHERE tenant = ?2 AND run_id = ?3
"""
_BEAT = """
UPDATE operation SET beats = min(beats, 1000000000) + 1, heard_at = ?, progress = coalesce(nullif(?, x''), progress)
WHERE tenant = ? AND run_id = ? AND operation = ? AND awaits = 1
"""


def write(
    writing: Writing,
    change: PutMessage
    | Decide
    | RevokeSticky
    | Terminate
    | ClearOutbox
    | PutWatch
    | DropWatch
    | PutControl
    | FinishTask
    | BeatTask
    | BeatOperation,
) -> Verdict:
    """Write an unowned change; on any verdict but `Applied` the caller undoes what was written."""
    match change:
        case PutMessage():
            return _put_message(writing, change)
        case Decide():
            return _decide(writing, change)
        case RevokeSticky():
            return _revoke(writing, change)
        case Terminate():
            return _terminate(writing, change)
        case ClearOutbox():
            return _clear_outbox(writing, change)
        case PutWatch():
            return _put_watch(writing, change)
        case DropWatch():
            outbox.drop_watch(writing, change)
            return Applied(writing.now)
        case PutControl():
            return _put_control(writing, change)
        case FinishTask() | BeatTask() | BeatOperation():
            return _of_attempt(writing, change)


def start(writing: Writing, change: StartRun) -> Verdict:
    """Insert a run, or the next generation of a closed one."""
    database = writing.database
    key = (change.run.tenant, change.run.run_id)
    row = database.row(FIND_HEAD, key)
    former = None if row is None else head_of(row)
    if former is None:
        fits = change.generation == 1
    else:
        fits = former.status.closed and change.generation == former.generation + 1
    if not fits:
        return Conflict(former)
    if change.worker is not None and not writing.live(change.worker):
        return Fenced("the worker's lease has lapsed")
    if [row.seq for row in change.entries] != list(range(max(len(change.entries), 1))):
        return Refused("seq")
    at, epoch, kept = writing.micros, 0, (None, None, 0)
    if row is not None and former is not None:
        at, epoch = max(at, row[16]), former.epoch
    times = start_times(change, from_micros(at))
    if isinstance(times, Refused):
        return times
    if former is not None:
        kept = database.row(_KEPT, key) or kept
        database.run("DELETE FROM run WHERE tenant = ? AND run_id = ?", key)
        # What the former one was sent and never read is nobody's from now on.
        database.run(_EMPTY_UNREAD, (*key, change.generation))
    epoch += change.worker is not None
    if change.watch is not None:
        outbox.put_watch(writing, change, change.watch)
    if (refusal := _add_messages(writing, change)) is not None:
        return refusal
    database.run(_ADD_RUN, _run_values(writing, change, epoch, at, kept))
    for entry, time in zip(change.entries, times, strict=True):
        add_entry(writing, key, change.generation, entry, to_micros(time))
    return Applied(from_micros(at), epoch if change.worker else 0)


def _add_messages(writing: Writing, change: StartRun) -> Refused | None:
    """Put the messages of a start into its inbox, but for those that are known there; return why that does not hold."""
    for message in change.messages:
        known = _known_at(writing, change.run, change.generation, message)
        if isinstance(known, Refused):
            return known
        if known is None:
            _add_message(writing, change.run, message, change.generation)
    return None


def _run_values(writing: Writing, change: StartRun, epoch: int, at: int, kept: Row) -> Row:
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
    times = (at, at, due, writing.micros)
    marks = (change.released, *restored_columns(change.restored))
    return (*key, change.generation, *names, *times, *kept, change.origin, *marks)


def _put_message(writing: Writing, change: PutMessage) -> Verdict:
    row = _standing(writing, change.run)
    inbox = _FIRST_GENERATION if row is None else row[3]
    known = _known_at(writing, change.run, change.incarnation or inbox, change.message)
    if known is not None:
        return known
    if row is None and not change.early:
        return Refused("not_found")
    if row is not None and (refusal := _stranger_refusal(change, row)):
        return Refused(refusal)
    if row is not None and not row[1]:
        return Refused("closed")
    if change.message.kind in CAPPED:
        if row is not None and row[4]:
            return Refused("closed")
        if _is_full(writing, (*_key(change.run), inbox)):
            return Refused("full", change.message.message_id)
    _deliver(writing, change.run, change.message, inbox)
    return Applied(writing.now)


def _is_full(writing: Writing, inbox: tuple[str, str, int]) -> bool:
    """Whether an inbox takes no more. Numbers have no gaps: as long as few were given since the oldest unread item, none is counted."""
    span = writing.database.value(_SPAN, inbox) or 0
    return span >= MAX_UNREAD and writing.database.value(_COUNT_UNREAD, inbox) >= MAX_UNREAD


def _key(run: RunKey) -> tuple[str, str]:
    return run.tenant, run.run_id


def _clear_outbox(writing: Writing, change: ClearOutbox) -> Verdict:
    outbox.clear(writing, change.run, change.numbers)
    row = _standing(writing, change.run) if change.answers else None
    if row is not None and row[1] and row[0] == change.generation:
        for message in change.answers:
            if _known_at(writing, change.run, row[3], message) is None:
                _deliver(writing, change.run, message, row[3])
    return Applied(writing.now)


def _put_watch(writing: Writing, change: PutWatch) -> Verdict:
    row = _standing(writing, change.run)
    if row is None:
        return Refused("not_found")
    if not row[1]:
        return Refused("closed")
    outbox.put_watch(writing, change, change.watch)
    return Applied(writing.now)


def _decide(writing: Writing, change: Decide) -> Verdict:
    standing = _standing(writing, change.run)
    generation, inbox = (_FIRST_GENERATION,) * 2 if standing is None else (standing[0], standing[3])
    known = _known_at(writing, change.run, inbox, change.message)
    if known is not None:
        return known
    key = (change.run.tenant, change.run.run_id)
    row = find_approval(writing, key, generation, change.approval_id)
    refusal = decision_refusal(
        row, change, writing.now, lambda tenant, name: control_version(writing, tenant, name)
    )
    if refusal is not None or row is None:
        return refusal or Refused("unknown", change.approval_id)
    after, message = decided(row, change, writing.now)
    put_approval(writing, after, generation)
    if change.sticky is not None and standing is not None:
        if sticky.find(writing, change.run.tenant, change.sticky.sticky_id) is not None:
            return Refused("sticky", change.sticky.sticky_id)
        run = change.run, inbox, writing.database.value(_WORKFLOW, key)
        sticky.put(writing, stuck(change.sticky, change, row, run, writing.now))
        move_on(writing, change.run.tenant, STICKY)
    _deliver(writing, change.run, message, inbox)
    return Applied(writing.now)


def _revoke(writing: Writing, change: RevokeSticky) -> Verdict:
    verdict = sticky.revoke(
        writing, change, lambda tenant, name: control_version(writing, tenant, name)
    )
    if isinstance(verdict, Applied):
        move_on(writing, change.tenant, STICKY)
    return verdict


def _terminate(writing: Writing, change: Terminate) -> Verdict:
    key = (change.run.tenant, change.run.run_id)
    row = _standing(writing, change.run)
    if row is None:
        return Refused("not_found")
    generation, open_, changed_at, *_ = row
    if refusal := _stranger_refusal(change, row):
        return Refused(refusal)
    if not open_:
        return Refused("closed")
    if not change.abandon and writing.database.value(_HAS_SAGA, key):
        return Refused(SAGA)
    # A time beyond the calendar is damage, and keeps nobody from ending the run.
    at = max(writing.micros, changed_at) if changed_at < END_OF_TIME else writing.micros
    writing.database.run(_TERMINATE, (change.reason, change.by, at, *key))
    sends = end_run(writing, key, generation, at)
    return Applied(from_micros(at), outbox=sends)


def release(writing: Writing, change: Release) -> Verdict:
    """Let paused workers move an open run."""
    row = _standing(writing, change.run)
    if row is None:
        return Refused("not_found")
    if not row[1]:
        return Refused("closed")
    writing.database.run(_RELEASE, (int(change.trust), *_key(change.run)))
    return Applied(writing.now)


def _put_control(writing: Writing, change: PutControl) -> Verdict:
    key = (change.tenant, change.name)
    current = control_version(writing, *key)
    if current != change.version:
        return Conflict(version=current)
    writing.database.run(
        "REPLACE INTO control VALUES (?, ?, ?, ?)", (*key, current + 1, change.body)
    )
    return Applied(writing.now)


def _of_attempt(writing: Writing, change: FinishTask | BeatTask | BeatOperation) -> Verdict:
    match change:
        case FinishTask():
            return _finish_task(writing, change)
        case BeatTask():
            return _beat_task(writing, change)
        case BeatOperation():
            return _beat_operation(writing, change)


def _finish_task(writing: Writing, change: FinishTask) -> Verdict:
    row = _standing(writing, change.run)
    inbox = change.generation if row is None else row[3]
    if change.message is not None:
        known = _known_at(writing, change.run, inbox, change.message)
        if known is not None:
            return known
    if not writing.live(change.worker):
        return Fenced("the worker's lease has lapsed")
    why = task.finish(writing, change)
    if why:
        return Fenced(why)
    if change.message is not None:
        _deliver(writing, change.run, change.message, inbox)
    return Applied(writing.now)


def _beat_task(writing: Writing, change: BeatTask) -> Verdict:
    if not writing.live(change.worker):
        return Fenced("the worker's lease has lapsed")
    why = task.beat(writing, change)
    return Fenced(why) if why else Applied(writing.now)


def _beat_operation(writing: Writing, change: BeatOperation) -> Verdict:
    standing = _standing(writing, change.run)
    if standing is None:
        return Refused("not_found")
    if standing[0] != change.generation:
        return Refused("generation")
    if not standing[1]:
        return Refused("closed")
    values = (writing.micros, change.progress, *_key(change.run), change.operation)
    if writing.database.changed(_BEAT, values) != 1:
        return Refused(AWAITS, change.operation)
    return Applied(writing.now)


def _standing(writing: Writing, run: RunKey) -> Row | None:
    """Return generation, whether it is open, `changed_at`, the start of its incarnation, whether it is ending, and origin."""
    return writing.database.row(_STANDING, (run.tenant, run.run_id))


def _stranger_refusal(change: PutMessage | Terminate, standing: Row) -> str:
    generation, _, _, incarnation, _, origin = standing
    return stranger_refusal(change, generation=generation, incarnation=incarnation, origin=origin)


def _known_at(
    writing: Writing, run: RunKey, inbox: int, message: Message
) -> Applied | Refused | None:
    """Return what a message is answered with that an inbox knows already; None when it does not know it."""
    key = (run.tenant, run.run_id, inbox, message.message_id)
    row = writing.database.row(_KNOWN_MESSAGE, key)
    if row is None:
        return None
    at, digest = row
    return (
        Refused("other", message.message_id)
        if is_other(message, digest)
        else Applied(from_micros(at))
    )


def _deliver(writing: Writing, run: RunKey, message: Message, inbox: int) -> None:
    _add_message(writing, run, message, inbox)
    offers = (int(message.kind in RECALLS), int(message.kind in LIFTING))
    writing.database.run(_OFFER, (writing.micros, run.tenant, run.run_id, *offers))


def _add_message(writing: Writing, run: RunKey, message: Message, inbox: int) -> None:
    values = (
        message.message_id,
        inbox,
        message.kind,
        message.name,
        message.sender,
        writing.micros,
        message.body,
        message.digest,
        message.result,
    )
    writing.database.run(_ADD_MESSAGE, (run.tenant, run.run_id, *values))
