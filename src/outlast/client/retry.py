"""Where a run that has ended without a result is taken up again: what it keeps, and what is done anew. Pure: read from its journal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from outlast.effects.undone import undone_from
from outlast.errors import (
    RunCancelledError,
    RunTerminatedError,
    WorkflowFailedError,
)
from outlast.journal.entry import (
    NO_OPERATION,
    ApprovalDecided,
    ApprovalExpired,
    ApprovalRequested,
    Cancelled,
    CancelRequested,
    ChildRefused,
    EffectCompleted,
    EffectFailed,
    EffectIntended,
    EffectRefused,
    Entry,
    Failed,
    GrantUse,
    MessageAnswered,
    MessageReceived,
    MessageSent,
    OperationId,
    RunEnded,
    RunTimedOut,
    StepFailed,
)
from outlast.journal.failure import Failure
from outlast.journal.prefix import ROLES, Role

_MOVING = (Role.OUTCOME, Role.ARRIVAL)
"""Roles of the entries that let workflow code run."""

_BY_THE_GATE = ("declared", "policy")
"""The sources of requests that are asked again by whoever makes an effect anew."""

_ENDS = frozenset(
    f"outlast.errors.{kind.__name__}"
    for kind in (WorkflowFailedError, RunCancelledError, RunTerminatedError)
)
"""How the end of another run is raised."""


def retry_position(entries: Sequence[Entry]) -> int:
    """Return the position from which a run that has ended is done anew.

    That is: the outcome whose failure it ended with, the end of a child among them; the approval that was not given; the first cancel; but
    never after the end of its time, which what follows would be cancelled by. When the workflow's own code
    raised: what it was told last, unless that was a message, which nobody would send again. When the run was ended from outside: the
    end of its journal. But never after the request for an approval that was given and not used up: a fork inherits none, so it must
    be asked again.
    """
    return _before_unused_approvals(entries, _failing_place(entries))


def place_before_undone(entries: Sequence[Entry]) -> int:
    """Return the position from which a run that has undone what it did can be forked, to do it after all."""
    undone = undone_from(entries)
    places = (
        seq
        for seq, one in enumerate(entries)
        if isinstance(one, EffectIntended) and one.operation in undone
    )
    return min(places, default=1)


def _failing_place(entries: Sequence[Entry]) -> int:
    out_of_time = (n for n, one in enumerate(entries) if isinstance(one, RunTimedOut))
    return min(_place_of_end(entries), next(out_of_time, len(entries)))


def _place_of_end(entries: Sequence[Entry]) -> int:
    match entries[-1:]:
        case [Failed(failure) | Cancelled(failure) as end]:
            places = [_place(entries, leaf) for leaf in _leaves(failure)]
            found = [_end_of_receiver(entries, place) for place in places if place is not None]
            if isinstance(end, Cancelled):
                # What came after it may have failed because of it; and what is kept of it would cancel the retry.
                found += [n for n, one in enumerate(entries) if isinstance(one, CancelRequested)]
            return min(found, default=None) or _last_told(entries)
        case _:
            return len(entries)


def _place(entries: Sequence[Entry], failure: Failure) -> int | None:
    """Return where a failure, or one that caused it, came into the run; the last place where several fit."""
    for each in _causes(failure):
        for place in reversed(range(len(entries))):
            if _tells(entries[place], each):
                return place
    return None


def _end_of_receiver(entries: Sequence[Entry], place: int) -> int:
    """Return where the child had ended without a result that did not take the message which was answered here; else the same place."""
    answer = entries[place]
    if not isinstance(answer, MessageAnswered):
        return place
    sent = (one for one in entries[:place] if isinstance(one, MessageSent))
    child = next((one.child for one in sent if one.operation == answer.operation), NO_OPERATION)
    for seq, one in enumerate(entries[:place]):
        if isinstance(one, RunEnded) and one.operation == child and one.status != "completed":
            return seq
    return place


def _tells(entry: Entry, failure: Failure) -> bool:
    match entry:
        case StepFailed() | EffectFailed() | EffectRefused() | ChildRefused():
            return _is_like(entry.failure, failure)
        case RunEnded():
            # The machine raises these itself, and names the run.
            is_end = failure.type in _ENDS and failure.details.get("run") == entry.run_id
            return is_end or (entry.failure is not None and _is_like(entry.failure, failure))
        case MessageAnswered():
            return entry.failure is not None and _is_like(entry.failure, failure)
        case ApprovalDecided() | ApprovalExpired():
            # The machine raises these itself, and names the operation.
            is_approval = failure.type.startswith("outlast.errors.Approval")
            return is_approval and failure.details.get("operation") == entry.operation
        case _:
            return False


def _is_like(one: Failure, other: Failure) -> bool:
    return (one.type, one.message) == (other.type, other.message)


def _last_told(entries: Sequence[Entry]) -> int:
    """Return the place of the last entry that let code run; the end's own, where that is a message or there is none."""
    end = len(entries) - 1
    for place in reversed(range(end)):
        if ROLES.get(type(entries[place])) in _MOVING:
            return end if isinstance(entries[place], MessageReceived) else place
    return end


def _before_unused_approvals(entries: Sequence[Entry], place: int) -> int:
    while (earlier := _first_unused(entries[:place])) is not None:
        place = earlier
    return place


def _first_unused(entries: Sequence[Entry]) -> int | None:
    """Return where the first approval was asked for that was given, and some cover of which no settled effect has used.

    What the gate has asked for an effect is none of them: it asks again by itself.
    """
    granted = {
        one.approval_id for one in entries if isinstance(one, ApprovalDecided) and one.approved
    }
    used = _used(entries)
    begun: dict[OperationId, int] = {}
    unused: list[int] = []
    for place, one in enumerate(entries):
        if not isinstance(one, ApprovalRequested) or one.source in _BY_THE_GATE:
            continue
        # Escalated or edited since, it is asked from the beginning.
        first = begun.setdefault(one.operation, place)
        covers = [GrantUse(one.approval_id, cover) for cover in range(len(one.covers))]
        if one.approval_id in granted and not used.issuperset(covers):
            unused.append(first)
    return min(unused, default=None)


def _used(entries: Sequence[Entry]) -> set[GrantUse]:
    intended: dict[OperationId, list[GrantUse]] = {}
    used: set[GrantUse] = set()
    for one in entries:
        if isinstance(one, EffectIntended):
            spent = [GrantUse(approval_id, 0) for approval_id in one.asked]
            intended[one.operation] = spent if one.grant is None else [one.grant, *spent]
        elif isinstance(one, EffectCompleted | EffectFailed):
            used.update(intended.get(one.operation, ()))
    return used


def _leaves(failure: Failure) -> Iterator[Failure]:
    if not failure.members:
        yield failure
    for member in failure.members:
        yield from _leaves(member)


def _causes(failure: Failure | None) -> Iterator[Failure]:
    """Return a failure, and what it was raised from, one after another."""
    while failure is not None:
        yield failure
        failure = failure.cause
