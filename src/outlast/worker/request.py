"""What the pilot writes about a request to a person, about what is published, and about the end of a run."""

from __future__ import annotations

from datetime import datetime

import msgspec

from outlast.journal.entry import (
    ApprovalDecided,
    ApprovalRequested,
    Cancelled,
    Completed,
    Failed,
    Published,
)
from outlast.journal.failure import tell
from outlast.replay.asking import is_enough
from outlast.replay.command import PublishValue, RequestApproval
from outlast.replay.ledger import match_sha256
from outlast.store.change import ApprovalPut, CoverRow, HeadUpdate, Status
from outlast.worker.proposal import Proposal, Rank
from outlast.worker.text import plain

_REASON_LENGTH = 500


def asking(command: RequestApproval, now: datetime, requesters: tuple[str, ...]) -> list[Proposal]:
    """Return the request, and the decision with it where no more votes are needed than it begins with.

    Args:
        now: The store's time: the deadlines count from it, but of a request that keeps those of the one that it follows.
        requesters: Who started the run.
    """
    entry = recorded(command, now, requesters)
    asked = Proposal(Rank.REQUEST, entry, guard=entry.operation, approval=put_of(entry))
    if not (command.votes and is_enough(command.terms, command.votes)):
        return [asked]
    last = command.votes[-1]
    decided = ApprovalDecided(
        operation=entry.operation,
        approval_id=entry.approval_id,
        approved=True,
        by=last.by,
        reason=command.reason,
        subject_sha256=entry.subject_sha256,
        decided_at=last.at,
        behalf=last.behalf,
    )
    return [asked, Proposal(Rank.REQUEST, decided, guard=entry.operation)]


def recorded(
    command: RequestApproval, now: datetime, requesters: tuple[str, ...]
) -> ApprovalRequested:
    """Return the entry of a request; see `asking`."""
    expires_at, use_by = command.terms.deadlines(command.rung, now)
    return ApprovalRequested(
        operation=command.operation,
        approval_id=command.approval_id,
        role=command.terms.rung(command.rung).role,
        subject=command.subject,
        subject_sha256=command.subject_sha256,
        covers=command.covers,
        expires_at=command.expires_at or expires_at,
        use_by=command.use_by or use_by,
        terms=command.terms,
        kind=command.kind,
        requesters=command.requesters or requesters,
        preconditions=command.preconditions,
        requested=command.requested,
        effective=command.effective,
        source=command.source,
        policy_version=command.policy_version,
        rule=command.rule,
        rung=command.rung,
        again=command.again,
        votes=command.votes,
        barred=command.barred,
        version=command.version,
        server=command.server,
        turn=command.turn,
    )


def put_of(entry: ApprovalRequested) -> ApprovalPut:
    """Return the row of a request."""
    return ApprovalPut(
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
        barred=entry.barred,
        votes=entry.votes,
    )


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
