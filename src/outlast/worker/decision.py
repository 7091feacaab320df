"""What a decision in the inbox means to a run: what came of it stands in the message, where the store has put it."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from outlast.approvals.decision import Decision
from outlast.journal.entry import (
    ENTRY_NESTING,
    AlarmRaised,
    ApprovalDecided,
    ApprovalEdited,
    ApprovalRequested,
    ApprovalVoted,
    Entry,
    OperationId,
)
from outlast.journal.parse import parse_as
from outlast.replay.asking import approval_id, unfit
from outlast.replay.machine import Machine
from outlast.replay.operation import ApprovalOperation, EffectOperation
from outlast.store.change import StampedMessage
from outlast.worker.alarm import alarm, misfit_of
from outlast.worker.request import recorded

_decisions = msgspec.json.Decoder(Decision)


def decided(stamped: StampedMessage, machine: Machine, generation: int) -> Entry:
    """Return the entry that stands for a decision: a vote, an edit, the decision, or the question again where the answer is no use.

    A decision on what is not asked any more is an alarm.
    """
    decision = parse_as(_decisions, stamped.message.body, nesting=ENTRY_NESTING)
    found = machine.asks(decision.approval_id)
    if found is None:
        return _late(decision)
    result = stamped.message.result or ("approved" if decision.approved else "denied")
    who = {"by": decision.by, "reason": decision.reason, "behalf": decision.behalf}
    operation, at = found.operation, stamped.at
    match result:
        case "vote":
            return ApprovalVoted(operation, decision.approval_id, at=at, **who)
        case "edited":
            return ApprovalEdited(
                operation, decision.approval_id, at=at, edits=decision.edits, **who
            )
        case _:
            return _last(decision, found, stamped, generation, approved=result == "approved")


def _last(
    decision: Decision,
    found: ApprovalOperation | EffectOperation,
    stamped: StampedMessage,
    generation: int,
    *,
    approved: bool,
) -> ApprovalDecided | ApprovalRequested:
    answer = Raw(b"null")
    if approved and isinstance(found, ApprovalOperation) and found.request.decode is not None:
        answer = decision.answer
        if problem := misfit_of(found.request.decode, answer):
            current = found.asking.current
            assert current is not None
            new_id = approval_id(found.operation, generation, found.asking.count)
            why = f"the answer of {decision.by} does not fit: {problem}"
            return recorded(unfit(current, why, new_id), stamped.at, current.requesters)
    return ApprovalDecided(
        operation=found.operation,
        approval_id=decision.approval_id,
        approved=approved,
        by=decision.by,
        reason=decision.reason,
        subject_sha256=decision.subject_sha256,
        decided_at=stamped.at,
        behalf=decision.behalf,
        answer=answer,
    )


def _late(decision: Decision) -> AlarmRaised:
    said = {"outcome": "edited"} if decision.edits else {"approved": decision.approved}
    detail = {"approval": decision.approval_id, "by": decision.by, **said}
    return alarm("late_decision", OperationId(decision.operation), detail)
