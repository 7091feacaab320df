"""What of the effects of a run was undone, and what its sagas would leave as it is if it ended now. Pure: read from its journal."""

from __future__ import annotations

from collections.abc import Sequence

from outlast.journal.entry import (
    EffectCompensating,
    EffectCompleted,
    EffectFailed,
    EffectIntended,
    EffectRefused,
    Entry,
    Forked,
    OperationId,
    SagaAborted,
    SagaEnded,
)


def undone_from(entries: Sequence[Entry], position: int = 0) -> dict[OperationId, int]:
    """Return the effects that were undone at a position or later, or are being undone, each with where that began.

    One that was left as it is, because its compensation was given up, is not among them.
    """
    found: dict[OperationId, int] = {}
    undoes: dict[OperationId, OperationId] = {}
    for seq, entry in enumerate(entries):
        match entry:
            case EffectIntended() if entry.compensates:
                undoes[entry.operation] = entry.compensates
                if seq >= position:
                    found.setdefault(entry.compensates, seq)
            case EffectCompensating() if seq >= position:
                found.setdefault(entry.operation, seq)
            case EffectFailed() if entry.operation in undoes:
                found.pop(undoes[entry.operation], None)
            case _:
                pass
    return found


def kept_and_undone(
    entries: Sequence[Entry], position: int, since: int | None = None
) -> dict[OperationId, int]:
    """Return the effects that had happened before a position and were undone since, each with where it was intended.

    Args:
        since: Another position from which on they were undone.
    """
    intents: dict[OperationId, int] = {}
    settled: set[OperationId] = set()
    for seq, entry in enumerate(entries[:position]):
        match entry:
            case EffectIntended():
                intents[entry.operation] = seq
            case EffectCompleted() | EffectFailed() | EffectCompensating():
                settled.add(entry.operation)
            case _:
                pass
    undone = undone_from(entries, position if since is None else since)
    return {one: seq for one, seq in intents.items() if one in undone and one in settled}


def at_stake(entries: Sequence[Entry]) -> tuple[OperationId, ...]:
    """Return the effects of sagas that have not ended, in order: what happened, or may have, and would not be undone."""
    open_: dict[OperationId, OperationId] = {}
    undoes: dict[OperationId, OperationId] = {}
    for entry in entries:
        match entry:
            case EffectIntended() if entry.compensates:
                undoes[entry.operation] = entry.compensates
            case EffectIntended() if entry.saga and entry.compensation:
                open_[entry.operation] = entry.saga
            case EffectCompensating():
                open_.setdefault(entry.operation, OperationId(""))
            case EffectRefused() | EffectFailed(unknown=False) | EffectCompleted():
                if entry.operation in undoes:
                    open_.pop(undoes[entry.operation], None)
                elif not isinstance(entry, EffectCompleted):
                    open_.pop(entry.operation, None)
            case SagaEnded():
                open_ = {one: saga for one, saga in open_.items() if saga != entry.operation}
            case _:
                pass
    return tuple(open_)


def unwinding(entries: Sequence[Entry]) -> int | None:
    """Return where the first saga was aborted that has not ended: what it did is being undone; None when none is."""
    ended = {one.operation for one in entries if isinstance(one, SagaEnded)}
    aborted = (
        seq
        for seq, one in enumerate(entries)
        if isinstance(one, SagaAborted) and one.operation not in ended
    )
    return next(aborted, None)


def left_standing(entries: Sequence[Entry]) -> tuple[OperationId, ...]:
    """Return the effects that stand, in order, although what they belonged to was undone.

    Their compensation was given up; or a fork has them from its origin, whose they are; or the run has ended without undoing them.
    """
    given_up = _given_up(entries)
    left = (*given_up, *_left_to_origin(entries), *at_stake(entries))
    return tuple(dict.fromkeys(left))


def _given_up(entries: Sequence[Entry]) -> dict[OperationId, None]:
    undoes: dict[OperationId, OperationId] = {}
    left: dict[OperationId, None] = {}
    for entry in entries:
        match entry:
            case EffectIntended() if entry.compensates:
                undoes[entry.operation] = entry.compensates
                left.pop(entry.compensates, None)
            case EffectFailed() if entry.operation in undoes:
                left[undoes[entry.operation]] = None
            case _:
                pass
    return left


def _left_to_origin(entries: Sequence[Entry]) -> tuple[OperationId, ...]:
    """Return what sagas of a fork did not undo because its origin had done it."""
    forks = [seq for seq, one in enumerate(entries) if isinstance(one, Forked)]
    if not forks:
        return ()
    inherited = {
        one.operation
        for seq, one in enumerate(entries)
        if (isinstance(one, EffectCompleted) and (seq < forks[-1] or one.source == "fork"))
        or (isinstance(one, EffectFailed) and one.unknown and seq < forks[-1])
    }
    left: list[OperationId] = []
    for seq, one in enumerate(entries):
        if isinstance(one, SagaEnded) and one.outcome == "partly compensated" and seq > forks[-1]:
            left += [each for each in _open_in(entries[:seq], one.operation) if each in inherited]
    return tuple(left)


def _open_in(entries: Sequence[Entry], saga: OperationId) -> tuple[OperationId, ...]:
    """Return what is at stake of one saga."""
    within = {
        one.operation for one in entries if isinstance(one, EffectIntended) and one.saga == saga
    }
    return tuple(one for one in at_stake(entries) if one in within)
