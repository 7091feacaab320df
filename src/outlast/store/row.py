"""Rows of a database as the values of the contract: the only place that knows the order of columns."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, TypeAlias

import msgspec

from outlast.errors import StoreCorruptError
from outlast.journal.entry import EntryRow, StampedRow
from outlast.store.change import (
    Message,
    MessageKind,
    OperationPut,
    OutboxItem,
    OutboxKind,
    Restored,
    RunHead,
    RunKey,
    StampedMessage,
    Status,
    WorkerId,
    WorkerRow,
)
from outlast.store.moment import from_micros, micros_or_none, time_or_none, to_micros
from outlast.store.task import TaskKey, TaskRow

Row: TypeAlias = tuple[Any, ...]
"""A row as its driver gives it, and as it takes it."""

ENTRY = "seq, turn, kind, operation, name, at, body"
OPERATION = (
    "operation, kind, name, failures, due_at, detail, progress, awaits, unapplied, beats, heard_at, silence, begun_at,"
    " in_doubt"
)
MESSAGE = "number, message_id, kind, name, sender, at, body, digest, result"
OUTBOX = (
    "tenant, run_id, number, target_tenant, target_run_id, kind, message_id, name, sender, body, generation, operation,"
    " target_generation, origin, reason"
)
TASK = "tenant, run_id, generation, operation, attempt, queue, name, worker, since, taken, lapses"
WORKER = "worker, host, pid, build, workflows, lease, boot, renewed, queues, paused"


_MOST_FAILURES = (1 << 31) - 1
"""No operation fails so often: a count beyond it, or below nothing, is damage, and no reason to compute with it."""

_texts = msgspec.json.Decoder(tuple[str, ...])
_STATUSES = {status.value: status for status in Status}
NEWER = "open the file with the version that wrote it; `outlast doctor` looks for damage"


def head_of(row: Row) -> RunHead:
    """Return the head in the columns that a store of rows calls `HEAD`.

    Raises:
        StoreCorruptError: Nobody knows the status.
    """
    status = _STATUSES.get(row[5])
    if status is None:
        raise StoreCorruptError(
            f"the run has the status {row[5][:40]!r}, which this version does not know",
            run=row[1],
            hint=NEWER,
        )
    return RunHead(
        run=RunKey(row[0], row[1]),
        generation=row[2],
        workflow=row[3],
        fingerprint=row[4],
        status=status,
        reason=row[6],
        owner=row[7],
        epoch=row[8],
        version=row[9],
        next_seq=row[10],
        digest=row[11],
        wake_at=time_or_none(row[12]),
        mail=bool(row[13]),
        lapses=row[14],
        created_at=from_micros(row[15]),
        changed_at=from_micros(row[16]),
        note=row[17],
        origin=row[18],
        incarnation=row[19],
        ended_by=row[20],
        released=bool(row[21]),
        restored=None
        if row[22] is None
        else Restored(from_micros(row[22]), from_micros(row[23] or 0)),
    )


def restored_columns(restored: Restored | None) -> tuple[int | None, int | None]:
    """Return the columns `restored_at` and `restored_until`."""
    if restored is None:
        return None, None
    return to_micros(restored.at), to_micros(restored.until)


def entry_of(row: Row) -> StampedRow:
    """Return the journal row in the columns `ENTRY`."""
    seq, turn, kind, operation, name, at, body = row
    return StampedRow(EntryRow(seq, turn, kind, operation, name, body), from_micros(at))


def operation_of(row: Row) -> OperationPut:
    """Return the open operation in the columns `OPERATION`."""
    operation, kind, name, failures, due_at, detail, progress, awaits, unapplied, *heard = row
    beats, heard_at, silence, begun_at, in_doubt = heard
    return OperationPut(
        operation=operation,
        kind=kind,
        name=name,
        failures=min(max(failures, 0), _MOST_FAILURES),
        due_at=time_or_none(due_at),
        detail=detail,
        progress=progress,
        awaits=bool(awaits),
        unapplied=bool(unapplied),
        beats=beats,
        heard_at=time_or_none(heard_at),
        silence=None if silence is None else timedelta(microseconds=silence),
        begun_at=time_or_none(begun_at),
        in_doubt=bool(in_doubt),
    )


def operation_values(put: OperationPut) -> Row:
    """Return the columns `OPERATION` of an open operation."""
    return (
        put.operation,
        put.kind,
        put.name,
        put.failures,
        micros_or_none(put.due_at),
        put.detail,
        put.progress,
        int(put.awaits),
        int(put.unapplied),
        put.beats,
        micros_or_none(put.heard_at),
        None if put.silence is None else put.silence // timedelta(microseconds=1),
        micros_or_none(put.begun_at),
        int(put.in_doubt),
    )


def message_of(row: Row) -> StampedMessage:
    """Return the inbox item in the columns `MESSAGE`."""
    number, message_id, kind, name, sender, at, body, digest, result = row
    message = Message(message_id, MessageKind(kind), name, sender, body, digest, result)
    return StampedMessage(message, from_micros(at), number)


def outbox_of(row: Row) -> tuple[RunKey, OutboxItem]:
    """Return sender and item in the columns `OUTBOX`."""
    item = OutboxItem(
        target=RunKey(row[3], row[4]),
        kind=OutboxKind(row[5]),
        message_id=row[6],
        name=row[7],
        sender=row[8],
        body=row[9],
        generation=row[10],
        operation=row[11],
        target_generation=row[12],
        origin=row[13],
        reason=row[14],
        number=row[2],
    )
    return RunKey(row[0], row[1]), item


def outbox_values(key: tuple[str, str], item: OutboxItem, number: int) -> Row:
    """Return the columns `OUTBOX` of a sender's item."""
    return (
        *key,
        number,
        item.target.tenant,
        item.target.run_id,
        item.kind.value,
        item.message_id,
        item.name,
        item.sender,
        item.body,
        item.generation,
        item.operation,
        item.target_generation,
        item.origin,
        item.reason,
    )


def task_of(row: Row) -> TaskRow:
    """Return the task in the columns `TASK`."""
    tenant, run_id, generation, operation, attempt, queue, name, worker, since, *counts = row
    key = TaskKey(RunKey(tenant, run_id), generation, operation, attempt)
    return TaskRow(key, queue, name, worker, from_micros(since), *counts)


def worker_of(row: Row) -> WorkerRow:
    """Return the worker in the columns `WORKER`; without workflows or queues when these cannot be read."""
    lease = timedelta(microseconds=row[5])
    workflows, queues = _names_in(row[4]), _names_in(row[8])
    return WorkerRow(
        WorkerId(row[0]), row[1], row[2], row[3], workflows, lease, queues, bool(row[9])
    )


def _names_in(text: str) -> tuple[str, ...]:
    try:
        return _texts.decode(text)
    except msgspec.DecodeError:
        return ()


def unfit_text(builds: tuple[str, ...]) -> str:
    """Return the column `unfit_builds`: SQL finds a build in it by `unfit_line`."""
    return "\n".join(["", *map(_json_text, builds), ""]) if builds else ""


def unfit_line(build: str) -> str:
    """Return what stands in the column `unfit_builds` exactly when `build` is among them."""
    return f"\n{_json_text(build)}\n"


def unfit_of(text: str) -> tuple[str, ...]:
    """Return the builds in the column `unfit_builds`."""
    return tuple(msgspec.json.decode(line, type=str) for line in text.split("\n") if line)


def _json_text(text: str) -> str:
    # JSON holds no bare line feed, so that none can be taken for the end of a line.
    return msgspec.json.encode(text).decode()
