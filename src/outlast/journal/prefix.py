"""What of a journal a fork keeps: the entries before a position, but for what was asked for and not settled before it.

Each kind of entry has a role here. A kind without one cannot stand before a position: nobody has said what becomes of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import Enum, auto
from typing import Any

from outlast.errors import DefinitionError
from outlast.journal.entry import (
    NO_OPERATION,
    Accepted,
    AlarmRaised,
    ApprovalDecided,
    ApprovalEdited,
    ApprovalExpired,
    ApprovalRequested,
    ApprovalVoted,
    Cancelled,
    CancelRequested,
    ChildRefused,
    ChildRequested,
    ChildStarted,
    Completed,
    ContinuedAsNew,
    ContinueSuggested,
    EffectCleared,
    EffectCompensating,
    EffectCompleted,
    EffectFailed,
    EffectInDoubt,
    EffectIntended,
    EffectRefused,
    Entry,
    Failed,
    Forked,
    LeftOut,
    MessageAnswered,
    MessageReceived,
    MessageSent,
    OperationId,
    Patched,
    PauseRequested,
    Published,
    ResumeRequested,
    RunEnded,
    RunTimedOut,
    SagaAborted,
    SagaEnded,
    Started,
    StepCompleted,
    StepFailed,
    Taken,
    TimerFired,
    UpdateAnswered,
    UpdateReceived,
    WatchRequested,
)


class Role(Enum):
    """What an entry is to its operation, or to its run."""

    BEGINNING = auto()
    """The first entry."""
    REQUEST = auto()
    """Something was asked of the world or of a person: it is settled by an outcome of its operation."""
    PROGRESS = auto()
    """Something became known of a request that is not settled yet."""
    OUTCOME = auto()
    """The operation is settled."""
    ARRIVAL = auto()
    """Something that belongs to no operation reached the workflow."""
    NOTE = auto()
    """Kept for the record; the workflow does not see it."""
    END = auto()
    """The run has ended."""


ROLES: dict[type[Any], Role] = {
    Started: Role.BEGINNING,
    Taken: Role.ARRIVAL,
    StepCompleted: Role.OUTCOME,
    StepFailed: Role.OUTCOME,
    EffectIntended: Role.REQUEST,
    EffectInDoubt: Role.PROGRESS,
    EffectCleared: Role.PROGRESS,
    EffectCompensating: Role.OUTCOME,
    SagaAborted: Role.NOTE,
    SagaEnded: Role.NOTE,
    EffectCompleted: Role.OUTCOME,
    EffectFailed: Role.OUTCOME,
    EffectRefused: Role.OUTCOME,
    TimerFired: Role.OUTCOME,
    MessageReceived: Role.ARRIVAL,
    ApprovalRequested: Role.REQUEST,
    ApprovalVoted: Role.PROGRESS,
    ApprovalEdited: Role.PROGRESS,
    ApprovalDecided: Role.OUTCOME,
    ApprovalExpired: Role.OUTCOME,
    CancelRequested: Role.ARRIVAL,
    ChildRequested: Role.REQUEST,
    ChildStarted: Role.PROGRESS,
    ChildRefused: Role.OUTCOME,
    RunEnded: Role.OUTCOME,
    MessageSent: Role.REQUEST,
    WatchRequested: Role.REQUEST,
    MessageAnswered: Role.OUTCOME,
    RunTimedOut: Role.ARRIVAL,
    UpdateReceived: Role.ARRIVAL,
    UpdateAnswered: Role.NOTE,
    Published: Role.OUTCOME,
    PauseRequested: Role.NOTE,
    ResumeRequested: Role.NOTE,
    AlarmRaised: Role.NOTE,
    ContinueSuggested: Role.ARRIVAL,
    Patched: Role.NOTE,
    Accepted: Role.NOTE,
    ContinuedAsNew: Role.END,
    Forked: Role.NOTE,
    LeftOut: Role.NOTE,
    Completed: Role.END,
    Failed: Role.END,
    Cancelled: Role.END,
}
"""The role of each kind of entry."""

_WITHOUT_CODE = (
    *(EffectIntended, ChildRequested, MessageSent, WatchRequested, SagaAborted, SagaEnded),
    *(Patched, UpdateAnswered, PauseRequested, ResumeRequested),
    *(ApprovalVoted, ApprovalEdited),
)
"""What the workflow cannot see: no code runs when one is delivered."""


_CHILD = (ChildRequested, ChildStarted)
_DECISIONS = (ApprovalDecided, ApprovalExpired)


def is_silent(entry: Entry) -> bool:
    """Whether no workflow code runs when this entry is delivered."""
    if isinstance(entry, LeftOut):
        return entry.what in {_kind(one) for one in _WITHOUT_CODE}
    return isinstance(entry, _WITHOUT_CODE)


def intent_left_out(entry: LeftOut) -> bool:
    """Whether the intent of an effect stood there: what waits for that effect cannot be cancelled since."""
    return entry.what == _kind(EffectIntended)


def kept(entries: Sequence[Entry]) -> list[Entry]:
    """Return what a fork keeps of the entries before its position: as many, one for each.

    Requests and intents that are not settled among them, with what became known of them and what was decided on the way to them, are
    left out: a `LeftOut` stands in their places, so that the workflow makes them anew where it made them, and sees the same times and turns as before. Children that have
    not ended among them are kept, since word of a start lets code run; they are asked for anew where the fork begins.

    Raises:
        DefinitionError: One of them ends the run, or is of a kind whose role is not known.
    """
    unsettled: set[OperationId] = set()
    for seq, entry in enumerate(entries):
        match ROLES.get(type(entry)):
            case Role.REQUEST:
                unsettled.add(_operation(entry))
            case Role.OUTCOME:
                unsettled.discard(_operation(entry))
            case Role.END:
                raise DefinitionError(
                    f"entry {seq} ends the run, and a fork goes on",
                    hint=f"give a position of {seq} or less",
                )
            case None:
                raise DefinitionError(
                    f"entry {seq} ({_kind(type(entry))}) cannot be kept: nobody has said what a fork makes of it",
                    hint=f"give a position of {seq} or less",
                )
            case _:
                pass
    return [_without(entry, unsettled) for entry in entries]


def _without(entry: Entry, unsettled: set[OperationId]) -> Entry:
    is_part = ROLES[type(entry)] in (Role.REQUEST, Role.PROGRESS) or isinstance(entry, _DECISIONS)
    if not is_part or isinstance(entry, _CHILD):
        return entry
    operation = _operation(entry)
    if operation not in unsettled:
        return entry
    return LeftOut(operation, getattr(entry, "name", ""), _kind(type(entry)))


def _operation(entry: Entry) -> OperationId:
    return getattr(entry, "operation", NO_OPERATION)


def _kind(kind: type[Any]) -> str:
    return str(kind.__struct_config__.tag)


def began_at(entries: Iterable[tuple[Entry, datetime]]) -> datetime:
    """Return when a run began, by the store's clock: a fork when it was made, whatever the times of what it keeps.

    Args:
        entries: Its journal, each entry with when it was committed; the first one at least.
    """
    (_, began), *others = entries
    return max((at for entry, at in others if isinstance(entry, Forked)), default=began)
