"""How runs and approvals look from outside: frozen data, made of what the store keeps."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any

import msgspec

from outlast.effects.standing import Standing
from outlast.errors import (
    RunNotFoundError,
)
from outlast.journal.entry import (
    ApprovalRequested,
    Entry,
)
from outlast.store.change import (
    ApprovalRow,
    RunHead,
    RunKey,
    Status,
)


class RunStatus(msgspec.Struct, frozen=True):
    """Where a run stands.

    Args:
        reason: Why it is blocked, or how it ended.
        waits: What it waits for: timers, approvals, retries, signals, effects in doubt.
        worker: Who has it in memory.
    """

    run_id: str
    workflow: str
    status: Status
    reason: str
    generation: int
    entries: int
    created_at: datetime
    changed_at: datetime
    wake_at: datetime | None
    worker: str | None
    waits: dict[str, Any]


class JournalEntry(msgspec.Struct, frozen=True):
    """One entry of a run's journal, to be looked at."""

    seq: int
    turn: int
    at: datetime
    entry: Entry


class RunDetail(msgspec.Struct, frozen=True):
    """Everything about a run that can be seen from outside, read at one moment.

    Args:
        entries: The journal of the present generation; entries that cannot be read are left out.
        unreadable: How many were.
        operations: Steps and effects that are open and left a trace.
        approvals: Requests that nobody has decided.
        unread: Messages that the run has not taken in.
        now: The store's time.
        fitting: Live workers that have registered the run's workflow.
        attended: Whether the worker that has the run in memory lives.
    """

    status: RunStatus
    entries: list[JournalEntry]
    unreadable: int
    operations: list[Standing]
    approvals: list[ApprovalView]
    unread: int
    now: datetime
    fitting: list[str]
    attended: bool


class ApprovalView(msgspec.Struct, frozen=True):
    """An approval, to be looked at.

    Args:
        subject: What is asked: `{"subject": …, "covers": […]}`, exactly what is hashed.
        state: `pending`, `approved`, `denied`, `expired` or `withdrawn`.
        spent: The operation that each cover was spent to, or an empty string.
        genuine: Whether the subject has the hash.
    """

    run_id: str
    approval_id: str
    role: str
    state: str
    subject: Any
    subject_sha256: str
    requested_at: datetime
    expires_at: datetime
    use_by: datetime
    spent: tuple[str, ...]
    by: str = ""
    decided_at: datetime | None = None
    genuine: bool = True


def status_of(head: RunHead) -> RunStatus:
    """Return a run's row as people see it."""
    return RunStatus(
        run_id=head.run.run_id,
        workflow=head.workflow,
        status=head.status,
        reason=head.reason,
        generation=head.generation,
        entries=head.next_seq,
        created_at=head.created_at,
        changed_at=head.changed_at,
        wake_at=head.wake_at,
        worker=head.owner,
        waits=msgspec.json.decode(head.note) if head.note else {},
    )


def view_of(row: ApprovalRow) -> ApprovalView:
    """Return an approval's row as people see it."""
    entry = msgspec.json.decode(row.put.body, type=ApprovalRequested)
    return ApprovalView(
        run_id=row.run.run_id,
        approval_id=row.put.approval_id,
        role=row.put.role,
        state=row.state,
        subject=msgspec.json.decode(entry.subject),
        subject_sha256=row.put.subject_sha256,
        requested_at=row.requested_at,
        expires_at=row.put.expires_at,
        use_by=row.put.use_by,
        spent=row.spent,
        by=row.by,
        decided_at=row.decided_at,
        genuine=hashlib.sha256(bytes(entry.subject)).hexdigest() == row.put.subject_sha256,
    )


def not_found(run: RunKey) -> RunNotFoundError:
    """Return the error that there is no such run."""
    return RunNotFoundError(
        "there is no such run",
        run=run.run_id,
        hint="see `outlast runs list`, and check the database",
    )
