"""What the owner of a run makes of an effect's attempt that ended in a worker which had lost the run.

| the attempt | the operation is open | it has its outcome |
| --- | --- | --- |
| returned | the outcome, whatever state the effect is in: in doubt, standing by, resting, attempted anew | alarm `late_outcome` |
| raised | alarm `late_failure`: that proves nothing, and clears no doubt | alarm `late_outcome` |

The first outcome in the journal stands. An attempt that is under way when a late one is recorded is not interrupted; its own end is an
alarm `late_outcome` then. Where somebody had cleared the doubt about the very attempt that returned, and the receiver does not honour the
key, an attempt made since may have made it happen again: an alarm `contradicted` says so beside the outcome.
"""

from __future__ import annotations

import msgspec

from outlast.effects.intent import RETURNED, Repeat, Resolution
from outlast.journal.entry import (
    ENTRY_NESTING,
    NO_OPERATION,
    AlarmRaised,
    EffectCompleted,
    EffectFailed,
    Entry,
    OperationId,
)
from outlast.journal.failure import Failure, tell
from outlast.journal.parse import parse_as
from outlast.replay.machine import Machine
from outlast.replay.operation import EffectOperation
from outlast.store.change import Message
from outlast.worker.alarm import alarm, misfit_of, unfit
from outlast.worker.proposal import Proposal, Rank
from outlast.worker.text import plain
from outlast.workflows.definition import Effect

LATE_SOURCE = "late"
"""The source of an outcome that came from a worker which had lost the run."""

_resolutions = msgspec.json.Decoder(Resolution)


def late_end(told: Resolution, machine: Machine, generation: int) -> Entry:
    """Return the entry that stands for the late end of an attempt."""
    found = machine.find(OperationId(told.operation))
    effect = found if isinstance(found, EffectOperation) and found.intent else None
    if effect is None or (told.generation, told.name) != (generation, effect.request.name):
        return overtaken(_entry(told))
    if told.outcome != RETURNED:
        return _failure(told)
    if problem := misfit_of(effect.request.decode, told.value):
        return unfit(told, problem)
    return _entry(told)


def overtaken(outcome: EffectCompleted | EffectFailed) -> AlarmRaised:
    """Return the alarm that keeps an outcome which came after another one."""
    return alarm("late_outcome", NO_OPERATION, {"outcome": outcome})


def contradiction(proposal: Proposal, message: Message, machine: Machine) -> Proposal | None:
    """Return the alarm beside a late outcome of an attempt that somebody has said did not happen; None where nobody has.

    Args:
        proposal: What is written of the message.
    """
    entry = proposal.entry
    if not isinstance(entry, EffectCompleted) or entry.source != LATE_SOURCE:
        return None
    effect = machine.find(entry.operation)
    if not isinstance(effect, EffectOperation) or effect.cleared is None:
        return None
    told = parse_as(_resolutions, message.body, nesting=ENTRY_NESTING)
    if told.doubt == effect.cleared or _is_idempotent(effect):
        return None
    detail = {
        "operation": entry.operation,
        "name": entry.name,
        "outcome": told.outcome,
        "by": told.by,
        "why": "somebody had said that this attempt was not applied, and it was; what was attempted since may have made it happen again",
    }
    return Proposal(Rank.ARRIVAL, alarm("contradicted", NO_OPERATION, detail), at=proposal.at)


def _is_idempotent(effect: EffectOperation) -> bool:
    definition = effect.request.definition
    return isinstance(definition, Effect) and definition.repeat is Repeat.IDEMPOTENT


def _entry(told: Resolution) -> EffectCompleted | EffectFailed:
    operation = OperationId(told.operation)
    by, reason = told.by, told.reason
    if told.outcome == RETURNED:
        return EffectCompleted(operation, told.name, told.value, LATE_SOURCE, by, reason)
    failure = told.failure or Failure(type="RuntimeError", message="nobody knows which error")
    return EffectFailed(operation, told.name, failure, LATE_SOURCE, by, reason)


def _failure(told: Resolution) -> AlarmRaised:
    why = tell(told.failure) if told.failure is not None else "an error"
    detail = {
        "operation": told.operation,
        "name": told.name,
        "outcome": told.outcome,
        "by": told.by,
        "why": plain(why),
    }
    return alarm("late_failure", NO_OPERATION, detail)
