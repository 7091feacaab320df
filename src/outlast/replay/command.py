"""What the machine asks for: a closed union of frozen commands, each about one operation.

A command is carried out only after the whole journal was delivered. Carrying one out ends in an entry, and the entry, once
committed and delivered, settles it.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TypeAlias

from msgspec import Raw, Struct

from outlast.journal.asking import AskedAgain, AskedBy, AskedFor, Precondition, Terms, Vote
from outlast.journal.entry import (
    NO_OPERATION,
    Cancelled,
    Completed,
    ContinuedAsNew,
    Cover,
    Durability,
    EffectIntended,
    Failed,
    GrantUse,
    OperationId,
    SagaAborted,
    SagaEnded,
    UpdateAnswered,
)


class RunStep(Struct, frozen=True):
    """Run a step's body.

    Args:
        arguments: JSON object of the bound arguments by parameter name.
        scheduled_at: The run's time when it was asked for, where a deadline counts from it. It never goes back, so it can be ahead of
            the store's.
    """

    operation: OperationId
    name: str
    arguments: bytes
    scheduled_at: datetime | None = None


class IntendEffect(Struct, frozen=True):
    """Ask the gate, then record the intent. Nothing may happen before that is durable.

    Args:
        number: Which equal call this is, from 1.
        grant: The cover that this call spends, when an approval of the run covers it.
        scheduled_at: As for `RunStep`.
        compensation: The effect that undoes it; empty for none.
        needs_result: That takes what this one returns.
        saga: The outermost saga around the call; empty for none.
        compensates: Of a compensation: the operation that it undoes. It is not refused: what keeps it from happening puts it in doubt.
        asked: Requests that were made for this call, and approved.
        effective: JSON object of the arguments that were approved, by parameter name; empty before anything was asked.
        agent: In whose name it is called; empty for none.
    """

    operation: OperationId
    name: str
    arguments: bytes
    payload_sha256: str
    action_sha256: str
    match_sha256: str
    number: int
    grant: GrantUse | None
    scheduled_at: datetime | None = None
    compensation: str = ""
    needs_result: bool = False
    saga: OperationId = NO_OPERATION
    compensates: OperationId = NO_OPERATION
    asked: tuple[str, ...] = ()
    effective: bytes = b""
    agent: str = ""


class SettleEffect(Struct, frozen=True):
    """Bring an effect whose intent is recorded to an outcome.

    Args:
        intent: What may happen, and under which key.
        scheduled_at: As for `RunStep`.
        undoes_key: Of a compensation: the key of what it undoes.
        used_at: When the key may have been used first, by the run's time: when the effect was intended, or cleared since; or when an
            equal call was that failed and may have happened.
        is_repeated: There was such an equal call.
    """

    operation: OperationId
    name: str
    intent: EffectIntended
    scheduled_at: datetime | None = None
    undoes_key: str = ""
    used_at: datetime | None = None
    is_repeated: bool = False


class StartTimer(Struct, frozen=True):
    """Record `TimerFired` once the store's time has reached `due`.

    Args:
        armed_at: The run's time when it was asked for. It never goes back, so it can be ahead of the store's: then the time to
            wait is what counts, `due - armed_at`.
    """

    operation: OperationId
    due: datetime
    armed_at: datetime


class RequestApproval(Struct, frozen=True):
    """Record the request; its deadlines count from the moment at which it is recorded.

    Args:
        requested: Of a request for an effect, as the others that `ApprovalRequested` explains.
        reason: What the approver said whose edit it follows.
        requesters: Of one that follows another: who started the run.
        expires_at: Of one that follows another: it keeps that one's deadlines.
        use_by: The same.
    """

    operation: OperationId
    approval_id: str
    terms: Terms
    subject: Raw
    subject_sha256: str
    covers: tuple[Cover, ...]
    kind: AskedFor = "approval"
    preconditions: tuple[Precondition, ...] = ()
    requested: Raw = Raw(b"null")
    effective: Raw = Raw(b"null")
    source: AskedBy = ""
    policy_version: str = ""
    rule: str = ""
    rung: int = 0
    again: AskedAgain = ""
    votes: tuple[Vote, ...] = ()
    barred: tuple[str, ...] = ()
    version: str = ""
    server: str = ""
    turn: str = ""
    reason: str = ""
    requesters: tuple[str, ...] = ()
    expires_at: datetime | None = None
    use_by: datetime | None = None


class AwaitDecision(Struct, frozen=True):
    """Record the decision when it comes, or the expiry once the store's time has reached `expires_at`."""

    operation: OperationId
    approval_id: str
    expires_at: datetime


class PublishValue(Struct, frozen=True):
    """Record that the value is published. It is never given up, and goes before the end of the run."""

    operation: OperationId
    name: str
    value: Raw


class StartChild(Struct, frozen=True):
    """Record that the child is requested, and have it started; nothing is sent before that is durable.

    Args:
        arguments: JSON object of the bound arguments by parameter name.
        tells_start: Whether somebody waits to be told that it exists.
        timeout_seconds: How long it may take; None without limit.
        durability: Of the child.
        own_id: The id that the workflow names, where it names one.
        number: Which equal call this is, from 1.
    """

    operation: OperationId
    name: str
    run_id: str
    arguments: bytes
    parent_close: str
    tells_start: bool
    timeout_seconds: float | None = None
    durability: Durability = "sync"
    own_id: str = ""
    number: int = 1


class SendMessage(Struct, frozen=True):
    """Record that the message is sent, and have it delivered.

    Args:
        kind: `signal` or `cancel`.
        child: Only the run that this operation has started is meant; empty for whichever has the id.
        number: Which equal message this is, from 1.
    """

    operation: OperationId
    name: str
    run_id: str
    kind: str
    value: bytes
    child: OperationId
    number: int = 1


class WatchRun(Struct, frozen=True):
    """Record that the run's end is waited for, and have it told."""

    operation: OperationId
    run_id: str


class AwaitRun(Struct, frozen=True):
    """Record what comes of what was asked of another run: that it has started, that it has ended, that it took a message."""

    operation: OperationId
    run_id: str


class Abandon(Struct, frozen=True):
    """The workflow no longer waits for this operation: stop what can be stopped.

    Args:
        approval_id: The request to withdraw, where the operation is one.
    """

    operation: OperationId
    approval_id: str = ""


class AnswerUpdate(Struct, frozen=True):
    """Record the answer to an update, and let its sender have it.

    Args:
        operation: The path of the task that handled it, as `m3`.
    """

    operation: OperationId
    answer: UpdateAnswered


class MarkPatch(Struct, frozen=True):
    """Record, before anything else of the next change, that the code came to a patch and went on as changed.

    It belongs to no operation, and nothing gives it up.
    """

    name: str
    deprecated: bool


class NoteSaga(Struct, frozen=True):
    """Record, before anything else of the next change, what became of a saga. Nothing gives it up."""

    entry: SagaAborted | SagaEnded


class Finish(Struct, frozen=True):
    """Record the end of the run, or of its generation. Given once, when no intended effect is unsettled."""

    outcome: Completed | Failed | Cancelled | ContinuedAsNew


Command: TypeAlias = (
    RunStep
    | IntendEffect
    | SettleEffect
    | StartTimer
    | RequestApproval
    | AwaitDecision
    | PublishValue
    | StartChild
    | SendMessage
    | WatchRun
    | AwaitRun
    | Abandon
    | AnswerUpdate
    | MarkPatch
    | NoteSaga
    | Finish
)


def later(moment: datetime, seconds: float) -> datetime:
    """Return the moment so many seconds later, or the last one that can be written."""
    try:
        return moment + timedelta(seconds=seconds)
    except OverflowError:
        return datetime.max.replace(tzinfo=moment.tzinfo)
