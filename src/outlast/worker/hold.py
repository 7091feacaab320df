"""Which attempts of a run may not begin: all of them while it is paused, and those of what is just being settled by somebody else.

Laws: no attempt begins between a pause that stands in the journal and the resume after it, and none of an operation whose outcome
stands there. So a pause or an outcome holds them already when it was read, before it is written; and they are free again only when
what frees them was written and delivered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta

import msgspec

from outlast.journal.entry import (
    NO_OPERATION,
    CancelRequested,
    Entry,
    OperationId,
    PauseRequested,
    ResumeRequested,
)
from outlast.replay.machine import Machine
from outlast.replay.operation import EffectOperation
from outlast.store.change import MessageKind, OperationPut
from outlast.store.condition import RECALLS
from outlast.worker.proposal import Proposal, Rank

_ADMITTED = RECALLS | {MessageKind.PAUSE}
_INSTANT = timedelta(microseconds=1)


class HeldBack(BaseException):
    """An attempt was held back before its body began."""


class Hold:
    """What holds the attempts of one run.

    Args:
        changed: Called when something waits that did not before.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._paused: PauseRequested | None = None
        self._coming: datetime | None = None
        self._was_closed = False
        self._settling: set[OperationId] = set()
        self._freed = asyncio.Event()
        self.waiting: set[OperationId] = set()
        """Operations whose next attempt, or the question what became of one, is held."""
        self.beginning: set[OperationId] = set()
        """Of these, the ones whose next attempt is."""

    @property
    def paused_by(self) -> PauseRequested | None:
        """The pause that stands in the journal and holds the run."""
        return self._paused

    @property
    def closed(self) -> bool:
        """Whether the run is paused, so that nothing may begin."""
        return self._paused is not None or self._coming is not None

    def admits(self, kind: MessageKind) -> bool:
        """Whether a message of this kind is taken in now; the others wait in the inbox."""
        return not self.closed or kind in _ADMITTED

    def expect(self, pending: Iterable[Proposal]) -> bool:
        """Take in what came by the inbox and is about to be written: it holds from the moment at which it was read.

        Returns:
            Whether the run is free, and was not when this was asked last: what waits in the inbox can be taken in.
        """
        came = [one for one in pending if one.consumed]
        pauses = [one.at for one in came if isinstance(one.entry, PauseRequested) and one.at]
        self._coming = min(pauses, default=None)
        self._settling = {_operation_of(one) for one in came if one.rank is Rank.OUTCOME}
        was_closed, self._was_closed = self._was_closed, self.closed
        if self.waiting and not self.closed:
            self._freed.set()
            self._freed = asyncio.Event()
        return was_closed and not self.closed

    def note(self, entry: Entry) -> None:
        """Take in an entry of the journal; `expect` follows."""
        match entry:
            case PauseRequested():
                self._paused = entry
            case ResumeRequested() | CancelRequested():
                self._paused = None
            case _:
                pass

    def latest_due(self, now: datetime) -> datetime | None:
        """Return up to when what is due may happen now: while a pause is coming, what was due before it; then nothing."""
        if self._paused is not None:
            return None
        return now if self._coming is None else min(now, self._coming - _INSTANT)

    async def free(self, operation: OperationId, *, asks: bool = False) -> None:
        """Return when the next attempt of an operation may begin.

        Args:
            asks: It is a probe that is to begin: an attempt was made whose end is not known.
        """
        while self._holds(operation):
            self.waiting.add(operation)
            if not asks:
                self.beginning.add(operation)
            self._changed()
            try:
                await self._freed.wait()
            finally:
                self.waiting.discard(operation)
                self.beginning.discard(operation)

    def check(self, operation: OperationId) -> None:
        """Return when an attempt may begin now; called from any thread.

        Raises:
            HeldBack: It may not.
        """
        if self._holds(operation):
            raise HeldBack

    def _holds(self, operation: OperationId) -> bool:
        return self.closed or operation in self._settling


def _operation_of(proposal: Proposal) -> OperationId:
    return getattr(proposal.entry, "operation", NO_OPERATION)


def unbegun(
    operations: Iterable[OperationId],
    machine: Machine,
    rows: Mapping[str, OperationPut],
    now: datetime,
) -> list[Proposal]:
    """Return what is written of intended effects that are given back before their next attempt.

    A due time says that no attempt has begun: whoever takes the run up begins it, and need not doubt it.
    """
    found: list[Proposal] = []
    for operation in sorted(operations):
        effect, row = machine.find(operation), rows.get(operation)
        if isinstance(effect, EffectOperation) and (row is None or row.due_at is None):
            row = row or OperationPut(operation, "effect", effect.request.name)
            row = msgspec.structs.replace(row, due_at=now, begun_at=None)
            found.append(Proposal(Rank.ROW, guard=operation, row=row))
    return found
