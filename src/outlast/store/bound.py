"""What no store can keep: the checks that turn an unstorable value into a refusal of its own change.

A value that one store took and another could not would tie a run to its store, and a statement that fails in the middle of a
transaction would take other changes down with it. So both are found before anything is written.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import TypeAlias

from outlast.journal.entry import EntryRow
from outlast.store.change import (
    ApprovalExpire,
    ApprovalPut,
    ApprovalWithdraw,
    BeatOperation,
    BeatTask,
    Change,
    ClearOutbox,
    Decide,
    DropWatch,
    FinishTask,
    Message,
    OperationDrop,
    OperationPut,
    OutboxItem,
    PutControl,
    PutMessage,
    PutWatch,
    RunChange,
    RunKey,
    StartRun,
    TaskDrop,
    TaskPut,
    Terminate,
    Watch,
)

MAX_BODY_BYTES = 64 * 1024 * 1024
"""The largest payload of one row: above the 50 MiB at which a whole history blocks, below what any store can hold."""

_LONGEST_SILENCE = timedelta(days=36_500)

UNSTORABLE = "unstorable"
"""The refusal of a change that no store can keep: NUL or lone surrogates in text, a naive time, a payload too large."""


CORRUPT = "corrupt"
"""The refusal of a change that meets a row that cannot be read."""


_Path: TypeAlias = tuple[str | int, ...]


def unstorable_part(change: Change) -> str:
    """Return the path of the first field of `change` that cannot be kept, as `entries[2].name`, or an empty string."""
    match change:
        case RunChange():
            return _first(_owned(change))
        case StartRun():
            return _first(_start(change))
        case PutMessage():
            what = itertools.chain(_run(change.run), _texts((), origin=change.origin))
            return _first(itertools.chain(what, _message(("message",), change.message)))
        case Decide():
            given = _texts((), by=change.by, approval_id=change.approval_id)
            return _first(
                itertools.chain(_run(change.run), given, _message(("message",), change.message))
            )
        case Terminate():
            given = _texts((), by=change.by, reason=change.reason, origin=change.origin)
            return _first(itertools.chain(_run(change.run), given))
        case ClearOutbox():
            answers = itertools.chain.from_iterable(
                _message(("answers", place), answer) for place, answer in enumerate(change.answers)
            )
            return _first(itertools.chain(_run(change.run), answers))
        case PutWatch() | DropWatch():
            return _first(itertools.chain(_run(change.run), _watch(change.watch)))
        case PutControl():
            names = _texts((), name=change.name, tenant=change.tenant)
            return _first(itertools.chain(names, _body(("body",), change.body)))
        case FinishTask() | BeatTask() | BeatOperation():
            return _first(_of_attempt(change))


def _first(paths: Iterable[_Path]) -> str:
    for path in paths:
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
        return "".join(steps).removeprefix(".")
    return ""


def _owned(change: RunChange) -> Iterator[_Path]:
    yield from _entries(change)
    yield from _rows("next", change.next)
    head = change.head
    if head is not None:
        yield from _texts(("head",), reason=head.reason, unfit_build=head.unfit_build)
        yield from _time(("head", "wake_at"), head.wake_at)
        yield from _body(("head", "note"), head.note)
    for place, act in enumerate(change.operations):
        yield from _operation(("operations", place), act)
    for place, message_id in enumerate(change.consumed):
        yield from _text(("consumed", place), message_id)
    for place, item in enumerate(change.outbox):
        yield from _outbox_item(("outbox", place), item)
    for place, act in enumerate(change.approvals):
        yield from _approval(("approvals", place), act)
    for place, answer in enumerate(change.answers):
        yield from _text(("answers", place, "message_id"), answer.message_id)
        yield from _body(("answers", place, "body"), answer.body)
    for place, spend in enumerate(change.spends):
        path = ("spends", place)
        yield from _texts(path, operation=spend.operation, approval_id=spend.approval_id)
    for place, act in enumerate(change.tasks):
        yield from _task(("tasks", place), act)
    for place, at in enumerate(change.times):
        yield from _time(("times", place), at)


def _run(run: RunKey) -> Iterator[_Path]:
    return _texts((), run_id=run.run_id, tenant=run.tenant)


def _start(change: StartRun) -> Iterator[_Path]:
    yield from _run(change.run)
    yield from _texts(
        (), workflow=change.workflow, fingerprint=change.fingerprint, origin=change.origin
    )
    if change.watch is not None:
        yield from _watch(change.watch)
    yield from _entries(change)
    yield from _messages(change)
    for place, at in enumerate(change.times):
        yield from _time(("times", place), at)


def _watch(watch: Watch) -> Iterator[_Path]:
    watcher = watch.watcher
    yield from _texts(("watch", "watcher"), run_id=watcher.run_id, tenant=watcher.tenant)
    yield from _text(("watch", "operation"), watch.operation)


def _outbox_item(path: _Path, item: OutboxItem) -> Iterator[_Path]:
    target = item.target
    yield from _texts((*path, "target"), run_id=target.run_id, tenant=target.tenant)
    yield from _texts(
        path,
        message_id=item.message_id,
        name=item.name,
        sender=item.sender,
        operation=item.operation,
        origin=item.origin,
        reason=item.reason,
    )
    yield from _body((*path, "body"), item.body)


def _entries(change: RunChange | StartRun) -> Iterator[_Path]:
    return _rows("entries", change.entries)


def _rows(field: str, rows: tuple[EntryRow, ...]) -> Iterator[_Path]:
    for place, row in enumerate(rows):
        path = (field, place)
        yield from _texts(path, kind=row.kind, operation=row.operation, name=row.name)
        yield from _body((*path, "body"), row.body)


def _messages(change: StartRun) -> Iterator[_Path]:
    for place, message in enumerate(change.messages):
        yield from _message(("messages", place), message)


def _message(path: _Path, message: Message) -> Iterator[_Path]:
    yield from _texts(path, message_id=message.message_id, name=message.name, sender=message.sender)
    yield from _body((*path, "body"), message.body)


def _operation(path: _Path, act: OperationPut | OperationDrop) -> Iterator[_Path]:
    yield from _text((*path, "operation"), act.operation)
    if isinstance(act, OperationPut):
        yield from _texts(path, kind=act.kind, name=act.name)
        yield from _time((*path, "due_at"), act.due_at)
        yield from _time((*path, "heard_at"), act.heard_at)
        if act.silence is not None and not timedelta(0) < act.silence < _LONGEST_SILENCE:
            yield (*path, "silence")
        yield from _body((*path, "detail"), act.detail)
        yield from _body((*path, "progress"), act.progress)


def _of_attempt(change: FinishTask | BeatTask | BeatOperation) -> Iterator[_Path]:
    yield from _run(change.run)
    yield from _texts((), operation=change.operation)
    if not isinstance(change, BeatOperation):
        yield from _texts((), worker=change.worker)
    if not isinstance(change, FinishTask):
        yield from _body(("progress",), change.progress)
    elif change.message is not None:
        yield from _message(("message",), change.message)


def _task(path: _Path, act: TaskPut | TaskDrop) -> Iterator[_Path]:
    yield from _text((*path, "operation"), act.operation)
    if isinstance(act, TaskPut):
        yield from _texts(path, queue=act.queue, name=act.name)
        yield from _body((*path, "arguments"), act.arguments)
        yield from _body((*path, "progress"), act.progress)
        yield from _time((*path, "due_at"), act.due_at)


def _approval(path: _Path, act: ApprovalPut | ApprovalExpire | ApprovalWithdraw) -> Iterator[_Path]:
    yield from _text((*path, "approval_id"), act.approval_id)
    if not isinstance(act, ApprovalPut):
        return
    yield from _texts(
        path, operation=act.operation, role=act.role, subject_sha256=act.subject_sha256
    )
    for place, cover in enumerate(act.covers):
        inner = (*path, "covers", place)
        yield from _texts(inner, effect=cover.effect, match_sha256=cover.match_sha256)
    yield from _time((*path, "expires_at"), act.expires_at)
    yield from _time((*path, "use_by"), act.use_by)
    yield from _body((*path, "body"), act.body)


def _texts(path: _Path, **texts: str) -> Iterator[_Path]:
    for field, text in texts.items():
        if not _keeps(text):
            yield (*path, field)


def _text(path: _Path, text: str) -> Iterator[_Path]:
    if not _keeps(text):
        yield path


def _keeps(text: str) -> bool:
    return "\0" not in text and (text.isascii() or _encodes(text))


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _time(path: _Path, time: datetime | None) -> Iterator[_Path]:
    if time is not None and time.tzinfo is None:
        yield path


def _body(path: _Path, body: bytes) -> Iterator[_Path]:
    if len(body) > MAX_BODY_BYTES:
        yield path
