"""How each open operation of a run stands, read from what is stored: for those who look at a run from outside.

What leaves no trace is not here: a step under its first attempt that has said nothing of itself, a timer, a wait for a message.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal, TypeAlias, cast

import msgspec

from outlast.journal.entry import (
    NO_OPERATION,
    AlarmRaised,
    ApprovalDecided,
    ApprovalEdited,
    ApprovalExpired,
    ApprovalVoted,
    Attempted,
    CancelRequested,
    ChildRefused,
    ChildStarted,
    EffectCleared,
    EffectCompensating,
    EffectCompleted,
    EffectFailed,
    EffectInDoubt,
    EffectIntended,
    EffectRefused,
    Entry,
    Forked,
    MessageAnswered,
    MessageReceived,
    Probed,
    RunEnded,
    RunTimedOut,
    StepCompleted,
    StepFailed,
    TimerFired,
    UpdateReceived,
)
from outlast.journal.failure import Failure, tell
from outlast.journal.parse import NotJsonError, parse, parse_as
from outlast.store.beat import silent_at
from outlast.store.change import OTHER_RUN, SAGA, OperationPut

_failures = msgspec.json.Decoder(Failure)
State: TypeAlias = Literal["retrying", "intended", "in doubt", "attempted", "handed out"]


OUTCOMES = (
    *(StepCompleted, StepFailed, EffectCompleted, EffectFailed, EffectRefused, EffectCleared),
    EffectCompensating,
    *(ChildRefused, RunEnded, MessageAnswered),
)
"""What becomes of an operation; one that was cleared is attempted again."""

_PROGRESS = (
    *OUTCOMES,
    TimerFired,
    MessageReceived,
    UpdateReceived,
    ApprovalDecided,
    ApprovalExpired,
    *(ApprovalVoted, ApprovalEdited),
    CancelRequested,
    RunTimedOut,
    Forked,
    ChildStarted,
)


class Alarm(msgspec.Struct, frozen=True):
    """Something that came for a run, and was put aside.

    Args:
        what: `unfit_outcome`, `unfit_message`, `late_outcome`, `late_failure`, `contradicted`, `late_decision` or
            `unreadable_message`; later versions may know more.
        at: When it was put aside.
        operation: Which waits on; empty for none.
        about: The operation, message name, message id or approval that it speaks of.
        by: Who sent it, where that is known.
        said: The outcome or decision that was said.
        why: Why it was put aside.
    """

    what: str
    at: datetime
    operation: str = ""
    about: str = ""
    by: str = ""
    said: str = ""
    why: str = ""


class Alarms:
    """What was put aside since a run last made progress there, read from its journal entry by entry.

    An outcome that did not fit is news until its operation has one, a message until one of its name came; all other alarms until
    the run next moves.
    """

    def __init__(self) -> None:
        self.standing: list[Alarm] = []
        """In the order of the journal."""

    def add(self, entry: Entry, at: datetime) -> None:
        """Take in the next entry."""
        if isinstance(entry, AlarmRaised):
            # That of a poisoned run only counts its owners; its status says the rest.
            if entry.what != "poison":
                self.standing.append(_alarm(entry, at))
        elif self.standing and isinstance(entry, _PROGRESS):
            self.standing = [one for one in self.standing if not _is_past(one, entry)]


def _is_past(alarm: Alarm, entry: Entry) -> bool:
    if alarm.what == "unfit_message":
        return isinstance(entry, MessageReceived) and entry.name == alarm.about
    if alarm.operation:
        return isinstance(entry, OUTCOMES) and entry.operation == alarm.operation
    return True


def _alarm(entry: AlarmRaised, at: datetime) -> Alarm:
    detail = _readable(entry.detail)
    if not isinstance(detail, dict):
        return Alarm(entry.what, at, entry.operation)
    fields: dict[str, Any] = cast("dict[str, Any]", detail)
    outcome: Any = fields.get("outcome")
    if isinstance(outcome, dict):
        # A whole entry, that of an outcome which came second.
        outcome = cast("dict[str, Any]", outcome)
        fields = {**fields, "operation": outcome.get("operation"), "by": outcome.get("by")}
        outcome = outcome.get("type")
    if "approved" in fields:
        outcome = "approved" if fields["approved"] else "denied"
    names = ("name", "approval", "operation", "message")
    about = next((str(fields[name]) for name in names if fields.get(name)), entry.operation)
    return Alarm(
        what=entry.what,
        at=at,
        # A decision is late when its request is over: nothing will ever settle it.
        operation=entry.operation if entry.what == "unfit_outcome" else NO_OPERATION,
        about=about,
        by=str(fields.get("by") or fields.get("sender") or ""),
        said=str(outcome or ""),
        why=str(fields.get("why") or ""),
    )


def alarms(entries: Iterable[tuple[Entry, datetime]]) -> list[Alarm]:
    """Return what was put aside since the run last made progress there.

    Args:
        entries: The journal, each entry with its time.
    """
    found = Alarms()
    for entry, at in entries:
        found.add(entry, at)
    return found.standing


class Clearing(msgspec.Struct, frozen=True):
    """A doubt that is over: an operator has said that the effect had not happened, and it was attempted again.

    Args:
        at: When that was taken in.
        by: Who said so.
        reason: Why.
        attempts: The last ones until then, oldest first.
        probes: What the probe had said, oldest first.
    """

    at: datetime
    by: str = ""
    reason: str = ""
    attempts: tuple[Attempted, ...] = ()
    probes: tuple[Probed, ...] = ()


class _Over(msgspec.Struct, frozen=True):
    """A doubt that was cleared.

    Args:
        last_number: Of its last attempt, as it is told.
    """

    entry: EffectInDoubt
    last_number: int

    def counted(self, later: EffectInDoubt) -> int:
        """Return how many attempts before it the next doubt counts too; those of a compensation that gave up begin anew.

        The one that was in doubt is not among them, unless the doubt came after an attempt that is known to have failed.
        """
        attempts = self.entry.attempts
        if self.entry.failure is not None or not attempts:
            return 0
        last = attempts[-1]
        is_told_again = later.attempts[-1:] and later.attempts[-1].number > last.number
        same = (one for one in later.attempts if one.number == last.number)
        if is_told_again and any(one.began_at is None and one.ended == last.ended for one in same):
            return last.number
        return last.number - 1


class Standing(msgspec.Struct, frozen=True):
    """One open step or effect.

    Args:
        kind: `step` or `effect`.
        state: `retrying` after a recorded failure, `intended` without an outcome yet, `in doubt`; of a step also `attempted`, when
            its first attempt was heard of, and `handed out`, when its outcome comes from outside.
        since: When it came into that state; None for a step, whose row has no time.
        failures: Attempts recorded as failed.
        due_at: When the next attempt may begin; of what was handed out, when it is no longer waited for.
        failure: The last one, as `type: message`.
        key: The effect's idempotency key.
        arguments: The effect's, by parameter name.
        why: What is known of an effect in doubt.
        doubt: Position in the journal of the doubt that stands; None when the operation is not in doubt.
        attempts: Of an effect in doubt: the last ones, oldest first; numbered on from those before it was cleared.
        probes: Of an effect in doubt: what the probe said, oldest first.
        cleared: The doubts about it that are over, oldest first.
        compensation: The effect that undoes it; empty for none.
        needs_result: That takes what it returned.
        compensates: Of a compensation: the operation that it undoes.
        has_given_up: Of a compensation in doubt: it did not happen, and is not tried again by itself.
        progress: The details of its last heartbeat that was kept.
        beats: Of what was handed out: how often it was heard of since.
        heard_at: When it was heard of last, at the latest at the hand-out.
        silent_at: When it counts as failed if nothing more is heard of it; None for never.
    """

    operation: str
    kind: str
    name: str
    state: State
    since: datetime | None = None
    failures: int = 0
    due_at: datetime | None = None
    failure: str = ""
    key: str = ""
    arguments: Any = None
    why: str = ""
    progress: Any = None
    beats: int = 0
    heard_at: datetime | None = None
    silent_at: datetime | None = None
    doubt: int | None = None
    attempts: tuple[Attempted, ...] = ()
    probes: tuple[Probed, ...] = ()
    compensation: str = ""
    needs_result: bool = False
    compensates: str = ""
    has_given_up: bool = False
    cleared: tuple[Clearing, ...] = ()

    @property
    def last_number(self) -> int:
        """The number of the last attempt that is told of; 0 when none is."""
        told = (self.attempts, *(one.attempts for one in self.cleared))
        return max((one.number for attempts in told for one in attempts), default=0)


def standings(
    entries: Iterable[tuple[Entry, datetime, int]], rows: Iterable[OperationPut]
) -> list[Standing]:
    """Return the open operations of a run, in the order in which they became so.

    Args:
        entries: The journal, each entry with its time and its position.
        rows: The run's open-operation rows.
    """
    found: dict[str, Standing] = {}
    begun: dict[str, datetime] = {}
    doubts: dict[str, EffectInDoubt] = {}
    cleared: dict[str, _Over] = {}
    for entry, at, position in entries:
        match entry:
            case EffectIntended():
                begun[entry.operation] = at
                found[entry.operation] = Standing(
                    operation=entry.operation,
                    kind="effect",
                    name=entry.name,
                    state="intended",
                    since=at,
                    key=entry.key,
                    arguments=_readable(entry.effective),
                    compensation=entry.compensation,
                    needs_result=entry.needs_result,
                    compensates=entry.compensates,
                )
            case EffectInDoubt():
                over = cleared.get(entry.operation)
                attempts = _attempts(entry, begun.get(entry.operation), over)
                doubts[entry.operation] = entry
                doubt: dict[str, Any] = {
                    "why": entry.why,
                    "attempts": attempts,
                    "probes": entry.probes,
                    "has_given_up": entry.failure is not None,
                }
                _change(found, entry.operation, state="in doubt", since=at, doubt=position, **doubt)
            case EffectCleared():
                begun[entry.operation] = at
                _clear(found, entry, at)
                if (former := doubts.get(entry.operation)) and entry.operation in found:
                    cleared[entry.operation] = _Over(former, found[entry.operation].last_number)
            case EffectCompleted() | EffectFailed() | EffectCompensating():
                found.pop(entry.operation, None)
            case _:
                pass
    for row in rows:
        if row.kind not in (*OTHER_RUN, SAGA):
            _add_row(found, row)
    return list(found.values())


def _attempts(
    entry: EffectInDoubt, begun_at: datetime | None, over: _Over | None
) -> tuple[Attempted, ...]:
    """Return the attempts since the effect was cleared, if it was, numbered on.

    Args:
        begun_at: When the first of them may have begun: with the intent or the clearing, and that is not announced.
        over: The doubt that was cleared.
    """
    counted = 0 if over is None else over.counted(entry)
    before = 0 if over is None else over.last_number
    return tuple(
        msgspec.structs.replace(
            one,
            number=before + one.number - counted,
            began_at=one.began_at or (begun_at if one.number == counted + 1 else None),
        )
        for one in entry.attempts
        if one.number > counted
    )


def _clear(found: dict[str, Standing], entry: EffectCleared, at: datetime) -> None:
    known = found.get(entry.operation)
    if known is None:
        return
    over = Clearing(at, entry.by, entry.reason, known.attempts, known.probes)
    found[entry.operation] = msgspec.structs.replace(
        known,
        state="intended",
        since=at,
        why="",
        doubt=None,
        attempts=(),
        probes=(),
        has_given_up=False,
        cleared=(*known.cleared, over),
    )


def _change(found: dict[str, Standing], operation: str, **fields: Any) -> None:
    if operation in found:
        found[operation] = msgspec.structs.replace(found[operation], **fields)


def _add_row(found: dict[str, Standing], row: OperationPut) -> None:
    known = found.get(row.operation)
    if known is None:
        known = Standing(operation=row.operation, kind=row.kind, name=row.name, state="attempted")
    found[row.operation] = msgspec.structs.replace(
        known,
        state=_state_of(row, known.state),
        failures=row.failures,
        due_at=row.due_at,
        failure=failure_in(row.detail),
        progress=_readable(msgspec.Raw(row.progress)) if row.progress else None,
        beats=row.beats if row.awaits else 0,
        heard_at=row.heard_at if row.awaits else None,
        silent_at=silent_at(row),
    )


def _state_of(row: OperationPut, known: State) -> State:
    if row.awaits:
        return "handed out"
    return "retrying" if known != "in doubt" and row.failures else known


def _readable(value: msgspec.Raw) -> Any:
    """Return stored JSON for people; None where it cannot be read, which replay tells of and not who looks on."""
    try:
        return parse(bytes(value))
    except NotJsonError:
        return None


def failure_in(detail: bytes) -> str:
    """Return the failure that a row keeps, in words; empty when there is none that can be read."""
    try:
        failure = parse_as(_failures, detail)
    except NotJsonError:
        return ""
    return tell(failure)
