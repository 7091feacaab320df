"""What no store can keep: the checks that turn an unstorable value into a refusal of its own change.

A value that one store took and another could not would tie a run to its store, and a statement that fails in the middle of a
transaction would take other changes down with it. So both are found before anything is written.
"""

from __future__ import annotations

from datetime import datetime

from outlast.store.change import (
    ApprovalPut,
    Change,
    ClearOutbox,
    Decide,
    Message,
    OperationPut,
    PutControl,
    PutMessage,
    RunChange,
    StartRun,
    Terminate,
)

MAX_BODY_BYTES = 64 * 1024 * 1024
"""The largest payload of one row: above the 50 MiB at which a whole history blocks, below what any store can hold."""

UNSTORABLE = "unstorable"
"""The refusal of a change that no store can keep: NUL or lone surrogates in text, a naive time, a payload too large."""


def unstorable_part(change: Change) -> str:
    """Return the name of the first field of `change` that cannot be kept, or an empty string."""
    match change:
        case RunChange():
            return _run_change_part(change)
        case StartRun():
            texts = (change.run.tenant, change.run.run_id, change.workflow, change.fingerprint)
            return _texts("run", texts) or _entries(change)
        case PutMessage() | Decide():
            extra = (change.by, change.approval_id) if isinstance(change, Decide) else ()
            return _texts("run", (change.run.tenant, change.run.run_id, *extra)) or _message(
                change.message
            )
        case Terminate():
            return _texts(
                "reason", (change.run.tenant, change.run.run_id, change.by, change.reason)
            )
        case ClearOutbox():
            return _texts("run", (change.run.tenant, change.run.run_id))
        case PutControl():
            return _texts("name", (change.tenant, change.name)) or _body("body", change.body)


def _run_change_part(change: RunChange) -> str:
    part = _entries(change)
    head = change.head
    if not part and head is not None:
        part = (
            _texts("head", (head.reason, head.unfit_build))
            or _time("wake_at", head.wake_at)
            or _body("note", head.note)
        )
    for put in change.operations if not part else ():
        part = part or (
            _operation(put)
            if isinstance(put, OperationPut)
            else _texts("operation", (put.operation,))
        )
    for item in change.outbox if not part else ():
        part = (
            part
            or _texts("outbox", (item.target.tenant, item.target.run_id))
            or _message(item.message)
        )
    for approval in change.approvals if not part else ():
        part = part or (_approval(approval) if isinstance(approval, ApprovalPut) else "")
    for spend in change.spends if not part else ():
        part = part or _texts("spend", (spend.operation,))
    return part


def _entries(change: RunChange | StartRun) -> str:
    for row in change.entries:
        part = _texts("entry", (row.kind, row.operation, row.name)) or _body("entry", row.body)
        if part:
            return part
    return ""


def _message(message: Message) -> str:
    return _texts("message", (message.message_id, message.name, message.sender)) or _body(
        "message", message.body
    )


def _operation(put: OperationPut) -> str:
    return (
        _texts("operation", (put.operation, put.kind, put.name))
        or _time("due_at", put.due_at)
        or _body("operation", put.detail)
    )


def _approval(put: ApprovalPut) -> str:
    texts = (put.approval_id, put.operation, put.role, put.subject_sha256)
    covers = tuple(text for cover in put.covers for text in (cover.effect, cover.match_sha256))
    return (
        _texts("approval", texts + covers)
        or _time("expires_at", put.expires_at)
        or _time("use_by", put.use_by)
        or _body("approval", put.body)
    )


def _texts(part: str, texts: tuple[str, ...]) -> str:
    for text in texts:
        if "\0" in text or not (text.isascii() or _encodes(text)):
            return part
    return ""


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _time(part: str, time: datetime | None) -> str:
    return part if time is not None and time.tzinfo is None else ""


def _body(part: str, body: bytes) -> str:
    return part if len(body) > MAX_BODY_BYTES else ""
