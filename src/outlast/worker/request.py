"""What the pilot writes about a request to a person, about what is published, and about the end of a run."""

from __future__ import annotations

from datetime import datetime

import msgspec

from outlast.journal.entry import ApprovalRequested, Cancelled, Completed, Failed, Published
from outlast.journal.failure import tell
from outlast.replay.command import PublishValue, RequestApproval
from outlast.replay.ledger import match_sha256
from outlast.store.change import ApprovalPut, CoverRow, HeadUpdate, Status
from outlast.worker.proposal import Proposal, Rank
from outlast.worker.text import plain

_REASON_LENGTH = 500


def asking(command: RequestApproval, now: datetime, requesters: tuple[str, ...]) -> Proposal:
    """Return the request; its deadlines count from `now`, the store's time.

    Args:
        requesters: Who started the run.
    """
    expires_at, use_by = command.terms.deadlines(0, now)
    entry = ApprovalRequested(
        operation=command.operation,
        approval_id=command.approval_id,
        role=command.terms.role,
        subject=command.subject,
        subject_sha256=command.subject_sha256,
        covers=command.covers,
        expires_at=expires_at,
        use_by=use_by,
        terms=command.terms,
        kind=command.kind,
        requesters=requesters,
        preconditions=command.preconditions,
    )
    put = ApprovalPut(
        approval_id=entry.approval_id,
        operation=entry.operation,
        role=entry.role,
        subject_sha256=entry.subject_sha256,
        expires_at=entry.expires_at,
        use_by=entry.use_by,
        covers=tuple(CoverRow(one.effect, match_sha256(one)) for one in entry.covers),
        body=msgspec.json.encode(entry),
        terms=entry.terms,
        kind=entry.kind,
        requesters=entry.requesters,
    )
    return Proposal(Rank.REQUEST, entry, guard=command.operation, approval=put)


def publishing(command: PublishValue) -> Proposal:
    """Return what was published. It needs no guard: nobody takes it back."""
    return Proposal(Rank.REQUEST, Published(command.operation, command.name, command.value))


def ending(outcome: Completed | Failed | Cancelled) -> Proposal:
    """Return the end of the run."""
    reason = ""
    if not isinstance(outcome, Completed):
        reason = plain(tell(outcome.failure))[:_REASON_LENGTH]
    undone = "" if isinstance(outcome, Completed) else outcome.compensation
    status = Status(undone or str(type(outcome).__struct_config__.tag))
    return Proposal(Rank.END, outcome, head=HeadUpdate(status=status, reason=reason, release=True))
