"""What an inbox item means to a run: the entry that stands for it, or an alarm when it means nothing any more.

Nothing is dropped silently. A message that cannot be acted on becomes an `AlarmRaised` entry.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw

from outlast.effects.intent import LATE, Resolution
from outlast.errors import DecodeError, EncodeError
from outlast.journal.entry import (
    ENTRY_NESTING,
    NO_OPERATION,
    Accepted,
    AlarmRaised,
    ApprovalRequested,
    CancelRequested,
    ChildRefused,
    ChildStarted,
    EffectCleared,
    EffectCompensating,
    EffectCompleted,
    EffectFailed,
    Entry,
    MessageAnswered,
    MessageReceived,
    OperationId,
    PauseRequested,
    ResumeRequested,
    RunEnded,
    StepCompleted,
    StepFailed,
    UpdateReceived,
)
from outlast.journal.failure import is_too_deep
from outlast.journal.parse import parse, parse_as
from outlast.replay.machine import Machine
from outlast.replay.operation import EffectOperation, StepOperation
from outlast.store.change import (
    SAGA,
    Message,
    MessageKind,
    OperationDrop,
    OperationPut,
    StampedMessage,
)
from outlast.worker.alarm import alarm, misfit_of, unfit
from outlast.worker.answer import unreadable
from outlast.worker.decision import decided
from outlast.worker.late import late_end
from outlast.worker.outbox import RELAYED, answered
from outlast.worker.proposal import Proposal, Rank
from outlast.worker.request import put_of
from outlast.worker.text import plain
from outlast.workflows.message import misfit


class CancelBody(msgspec.Struct, frozen=True):
    """The body of an inbox item of kind `cancel`, `pause` or `resume`."""

    by: str = ""
    reason: str = ""


class AcceptBody(msgspec.Struct, frozen=True):
    """The body of an inbox item of kind `accept`.

    Args:
        generation: Whose journal was looked at.
        entry: See `Accepted`.
        history: See `Accepted`.
        any_build: See `Accepted`.
    """

    generation: int
    entry: int | None = None
    history: int | None = None
    by: str = ""
    reason: str = ""
    any_build: bool = False


_acceptances = msgspec.json.Decoder(AcceptBody)
_cancels = msgspec.json.Decoder(CancelBody)
_resolutions = msgspec.json.Decoder(Resolution)
_SETTLING = (
    *(StepCompleted, StepFailed, EffectCompleted, EffectFailed),
    *(ChildRefused, RunEnded, MessageAnswered),
)
"""Outcomes with which the row of their operation goes."""


def _row_after(entry: Entry | None) -> OperationPut | OperationDrop | None:
    """Return what becomes of the row of an operation: what is being undone keeps its run from being ended by mistake."""
    if isinstance(entry, EffectCompensating):
        return OperationPut(entry.operation, SAGA, "")
    return OperationDrop(entry.operation) if isinstance(entry, _SETTLING) else None


def proposal_of(stamped: StampedMessage, machine: Machine, generation: int) -> Proposal:
    """Return what is written for one message, which is consumed with it."""
    message = stamped.message
    answer = None
    try:
        entry = _entry_of(stamped, machine, generation)
    except Exception as error:  # noqa: BLE001 - whoever wrote it, it must not stop the run that reads it
        why = plain(f"{type(error).__name__}: {error}")
        detail = {"message": message.message_id, "why": why}
        entry = alarm("unreadable_message", NO_OPERATION, detail)
        if message.kind is MessageKind.UPDATE:
            answer = unreadable(message, why)
    is_outcome = isinstance(entry, (*_SETTLING, EffectCompensating, EffectCleared, ChildStarted))
    return Proposal(
        Rank.OUTCOME if is_outcome else Rank.ARRIVAL,
        entry,
        row=_row_after(entry),
        consumed=message.message_id,
        at=None if is_outcome else stamped.at,
        answer=answer,
        approval=put_of(entry) if isinstance(entry, ApprovalRequested) else None,
    )


_ASKED = {
    MessageKind.CANCEL: CancelRequested,
    MessageKind.PAUSE: PauseRequested,
    MessageKind.RESUME: ResumeRequested,
}
"""What an operator asks of a run."""


def _entry_of(stamped: StampedMessage, machine: Machine, generation: int) -> Entry | None:
    """Return the entry that stands for a message; None for the relay's word on what nobody waits for any more."""
    message = stamped.message
    match message.kind:
        case MessageKind.SIGNAL:
            parse(message.body)
            if why := misfit(message.name, message.body):
                # It must not end a run that somebody mistyped a value; the sender can send another one.
                return _unfit_message(message, why)
            return MessageReceived(
                message.message_id, message.name, Raw(message.body), message.sender
            )
        case MessageKind.UPDATE:
            parse(message.body)
            return UpdateReceived(
                message.message_id, message.name, Raw(message.body), message.sender
            )
        case MessageKind.CANCEL | MessageKind.PAUSE | MessageKind.RESUME:
            body = parse_as(_cancels, message.body)
            return _ASKED[message.kind](by=body.by or message.sender, reason=body.reason)
        case MessageKind.ACCEPT:
            return _accepted(message, generation)
        case MessageKind.DECISION:
            return decided(stamped, machine, generation)
        case MessageKind.RESOLUTION | MessageKind.OUTCOME:
            return _told(message, machine, generation)


def _told(message: Message, machine: Machine, generation: int) -> Entry | None:
    resolution = parse_as(_resolutions, message.body, nesting=ENTRY_NESTING)
    if resolution.failure is not None and is_too_deep(resolution.failure):
        return unfit(resolution, "the failure is nested too deep", is_open=False)
    is_outcome = message.kind is MessageKind.OUTCOME
    if is_outcome and resolution.outcome in LATE:
        return late_end(resolution, machine, generation)
    if is_outcome and resolution.outcome in RELAYED:
        return answered(resolution, machine, generation)
    if resolution.generation != generation:
        return unfit(resolution, "it speaks of another generation of this run", is_open=False)
    return _resolved(resolution, machine)


def _accepted(message: Message, generation: int) -> Entry:
    body = parse_as(_acceptances, message.body)
    by = body.by or message.sender
    if body.generation == generation:
        return Accepted(
            body.entry, body.history, any_build=body.any_build, by=by, reason=body.reason
        )
    return alarm(
        "unfit_acceptance",
        NO_OPERATION,
        {"by": by, "why": "it speaks of another generation of this run"},
    )


def _resolved(resolution: Resolution, machine: Machine) -> Entry:
    operation = OperationId(resolution.operation)
    found = machine.find(operation)
    match found:
        case EffectOperation():
            return _resolved_effect(resolution, found)
        case StepOperation():
            return _resolved_step(resolution, found)
        case _:
            return unfit(resolution, "no step or effect is open there", is_open=False)


def _resolved_effect(resolution: Resolution, effect: EffectOperation) -> Entry:
    name = effect.request.name
    if not effect.in_doubt:
        return unfit(resolution, "the effect is not in doubt")
    if resolution.doubt not in (None, effect.doubt):
        return unfit(resolution, "it speaks of another doubt")
    said = {"by": resolution.by, "reason": resolution.reason}
    if resolution.outcome == "not_applied":
        return EffectCleared(effect.operation, name, **said)
    if resolution.outcome == "failed" and resolution.failure is not None:
        return EffectFailed(
            effect.operation,
            name,
            resolution.failure,
            source="operator",
            by=resolution.by,
            reason=resolution.reason,
        )
    if resolution.outcome == "compensate":
        return _compensating(resolution, effect)
    if resolution.outcome != "applied":
        known = "applied, not_applied, failed with a failure, or compensate"
        return unfit(resolution, f"an outcome is {known}")
    if problem := misfit_of(effect.request.decode, resolution.value):
        return unfit(resolution, problem)
    return EffectCompleted(effect.operation, name, resolution.value, source="operator", **said)


def _compensating(resolution: Resolution, effect: EffectOperation) -> Entry:
    undo, intent = effect.request.undo, effect.intent
    if intent is not None and intent.compensates:
        why = "it is a compensation that has not happened: say that it did, that it is to be tried again, or that it is left"
        return unfit(resolution, why)
    if undo is None or intent is None or intent.compensation != undo.name:
        return unfit(resolution, "the effect declares no compensate=, or another one than then")
    try:
        undo.bind(bytes(intent.effective), bytes(resolution.value))
    except (DecodeError, EncodeError) as error:
        return unfit(resolution, f"its compensation {undo.name} cannot be called: {error.message}")
    return EffectCompensating(
        effect.operation,
        effect.request.name,
        resolution.value,
        resolution.by,
        resolution.reason,
    )


def _resolved_step(resolution: Resolution, step: StepOperation) -> Entry:
    name = step.request.name
    if resolution.name not in ("", name):
        return unfit(resolution, f"it speaks of step {resolution.name}, and step {name} is there")
    said = {"by": resolution.by, "reason": resolution.reason}
    if resolution.outcome == "failed" and resolution.failure is not None:
        return StepFailed(step.operation, name, resolution.failure, **said)
    if resolution.outcome == "not_applied":
        return unfit(resolution, "a step is repeated anyway")
    if resolution.outcome != "applied":
        return unfit(resolution, "an outcome is applied, or failed with a failure")
    if problem := misfit_of(step.request.decode, resolution.value):
        return unfit(resolution, problem)
    return StepCompleted(step.operation, name, resolution.value, **said)


def _unfit_message(message: Message, why: str) -> AlarmRaised:
    detail = {
        "message": message.message_id,
        "name": message.name,
        "sender": message.sender,
        "why": plain(why),
    }
    return alarm("unfit_message", NO_OPERATION, detail)
