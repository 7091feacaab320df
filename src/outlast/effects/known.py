"""What a fork knows of its origin's effects, and what it has used of that. Pure: read from journals.

Guards one promise: the outcome of an effect that was settled is had by as many equal calls as there were, in their order, and no
attempt is made for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from datetime import datetime
from typing import TypeAlias

from msgspec import Raw
from msgspec.structs import replace

from outlast.effects.undone import undone_from
from outlast.journal.entry import (
    EffectCleared,
    EffectCompleted,
    EffectFailed,
    EffectIntended,
    Entry,
    Forked,
    KnownEffect,
    OperationId,
    RunName,
)

_Call: TypeAlias = tuple[str, str, int]
"""Name, hash of the action, and number of an effect's call."""


class KnownEffects:
    """The known effects of a run that was forked; of any other run there are none."""

    def __init__(self) -> None:
        self.forked: Forked | None = None
        """Where the run was forked, the last time."""
        self._left: dict[_Call, deque[KnownEffect]] = {}
        self._calls: dict[OperationId, _Call] = {}

    def note(self, entry: Entry) -> None:
        """Take in the next entry of the run's journal."""
        match entry:
            case Forked():
                self.forked = entry
                self._left, self._calls = {}, {}
                for known in entry.known:
                    self._left.setdefault(_call(known), deque()).append(known)
            case EffectIntended():
                if self._left:
                    self._calls[entry.operation] = _call(entry)
            case EffectCompleted() | EffectFailed():
                self._use(entry.operation)
            case EffectCleared():
                # An operator has established that the call whose end was unknown did not happen.
                if (known := self._first(self._calls.get(entry.operation))) and _unknown(known):
                    self._use(entry.operation)
            case _:
                pass

    def find(self, name: str, action_sha256: str, number: int) -> KnownEffect | None:
        """Return what is known of a call, if it was not used for an equal one before.

        Args:
            action_sha256: Of the arguments as the workflow gives them.
        """
        return self._first((name, action_sha256, number))

    def left(self) -> list[KnownEffect]:
        """Return what was not used."""
        return [known for waiting in self._left.values() for known in waiting]

    def _first(self, call: _Call | None) -> KnownEffect | None:
        waiting = self._left.get(call) if call is not None else None
        return waiting[0] if waiting else None

    def _use(self, operation: OperationId) -> None:
        call = self._calls.get(operation)
        waiting = self._left.get(call) if call is not None else None
        if waiting:
            waiting.popleft()


def known_after(
    entries: Sequence[Entry],
    times: Sequence[datetime],
    position: int,
    origin: RunName,
    *,
    failures: bool,
) -> tuple[KnownEffect, ...]:
    """Return what a fork of a run knows of its effects: all that were settled at the position or later, or never.

    Args:
        entries: The whole journal of the origin.
        times: Of each of its entries, by the store's clock.
        position: The entries before it are kept.
        failures: Whether those that failed are known too, so that an equal call fails like them; else it is made again.

    Returns: Compensations that were begun at the position or later are not among them: what they undid is `undone`, and another call of
        it, made anew, has a compensation of its own.
    """
    undone = undone_from(entries)
    open_: dict[OperationId, KnownEffect] = {}
    found: list[KnownEffect] = []
    inherited = KnownEffects()
    for seq, (entry, at) in enumerate(zip(entries, times, strict=True)):
        inherited.note(entry)
        match entry:
            case EffectIntended() if entry.compensates and seq >= position:
                pass
            case EffectIntended():
                former = inherited.find(*_call(entry))
                used_at = at if former is None else former.intended_at
                open_[entry.operation] = _intended(entry, origin, used_at)
            case EffectCleared() if entry.operation in open_:
                # It had not happened by then: only what came since may have used its key.
                open_[entry.operation] = replace(open_[entry.operation], intended_at=at)
            case EffectCompleted() | EffectFailed():
                known = open_.pop(entry.operation, None)
                if known is not None and seq >= position:
                    found.append(_settled(known, entry))
            case _:
                pass
    found += open_.values()
    found = [
        replace(known, outcome="undone", value=Raw(b"null"), failure=None)
        if known.operation in undone
        else known
        for known in found
    ]
    doubtful = {_call(known) for known in found if _unknown(known)}
    found += [known for known in inherited.left() if _call(known) not in doubtful]
    return tuple(known for known in found if failures or known.outcome != "failed")


def _settled(known: KnownEffect, end: EffectCompleted | EffectFailed) -> KnownEffect:
    if isinstance(end, EffectCompleted):
        return replace(known, outcome="completed", value=end.value)
    # What failed and may have happened is as unknown as what is in flight: its receiver is asked again, under its key.
    return known if end.unknown else replace(known, outcome="failed", failure=end.failure)


def _intended(intent: EffectIntended, origin: RunName, used_at: datetime | None) -> KnownEffect:
    return KnownEffect(
        name=intent.name,
        action_sha256=requested_sha256(intent),
        number=intent.number,
        run_id=origin.run_id,
        operation=intent.operation,
        key=intent.key,
        outcome="unknown",
        intended_at=used_at,
    )


def requested_sha256(intent: EffectIntended) -> str:
    """Return the hash of the action as the workflow asked for it: by that, equal calls are found, whatever an approver made of them."""
    return intent.requested_sha256 or intent.action_sha256


def _call(one: KnownEffect | EffectIntended) -> _Call:
    if isinstance(one, EffectIntended):
        return one.name, requested_sha256(one), one.number
    return one.name, one.action_sha256, one.number


def _unknown(known: KnownEffect) -> bool:
    return known.outcome == "unknown"
