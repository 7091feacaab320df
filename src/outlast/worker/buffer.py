"""What a run has seen and its journal does not hold yet: in the modes `async` and `exit` the workflow goes on before it is written.

Invariant: nothing leaves the run before everything that it has seen until then is written. What may be seen early is *soft*: it
permits nothing to anybody and no condition of the store stands against it. Everything else is *hard*: it is written in one change
together with all that is still in here, before it, and only then the run sees it.

| the process dies | and then |
| --- | --- |
| when something soft was seen, and not written | the journal knows nothing of it: its step is made again, its message is unread, its timer is due |
| while the write is under way | it is in the journal, or it is not; nothing else has left the run that depends on it |
| while something hard is written | that and all before it is in the journal, or neither |

A write that is fenced, in conflict or refused leaves the run ahead of its journal: it is dropped, and taken up from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime
from typing import Any

from outlast.journal.entry import (
    Durability,
    Entry,
    EntryRow,
    MessageReceived,
    Patched,
    Published,
    SagaAborted,
    SagaEnded,
    StampedRow,
    StepCompleted,
    StepFailed,
    TimerFired,
    UpdateReceived,
)
from outlast.store.change import OperationDrop, RunChange, Verdict
from outlast.worker.proposal import Proposal, Seen

MOST_ENTRIES = 1_000
"""So many entries are not written at most; the run waits for the store then."""

MOST_BYTES = 1024 * 1024
"""The same, in bytes of their bodies, of those whose write has not begun."""

_SOFT = (
    *(StepCompleted, StepFailed, TimerFired, MessageReceived, UpdateReceived),
    *(Patched, Published, SagaAborted, SagaEnded),
)


def is_soft(proposal: Proposal) -> bool:
    """Whether the run may see it before it is written.

    A published value may: whoever looks on sees it when it is written, and what came before it stands there then. The outcome of a
    remote step may not: somebody may have its task by now, and the store refuses to drop it then. Nor may the failure of a step that
    was handed out and not heard of: it may be heard of by now, and is refused then too.
    """
    row = proposal.row
    is_conditional = isinstance(row, OperationDrop) and row.beats is not None
    return isinstance(proposal.entry, _SOFT) and proposal.task is None and not is_conditional


class Buffer:
    """Of one run.

    Args:
        mode: Of the run; in `sync` nothing ever comes in here.
        landed: Called when a write is over.
    """

    def __init__(self, mode: Durability, landed: Callable[[], None]) -> None:
        self.mode = mode
        self._landed = landed
        self._waiting: list[Seen] = []
        self._flying: list[Seen] = []
        self._flight: tuple[RunChange, asyncio.Task[Verdict]] | None = None
        self._size_bytes = 0
        self._is_urgent = False

    # What is in it

    @property
    def waiting(self) -> Sequence[Seen]:
        """What the next change has to begin with."""
        return self._waiting

    def __len__(self) -> int:
        """Return how many entries the journal lacks."""
        return len(self._flying) + len(self._waiting)

    @property
    def consumed(self) -> set[str]:
        """Ids of the messages that the run has seen, and that are unread in the store."""
        seen = (*self._flying, *self._waiting)
        return {one.proposal.consumed for one in seen if one.proposal.consumed}

    def takes(self, proposals: Sequence[Proposal]) -> bool:
        """Return whether the run may see these now."""
        if self.mode == "sync":
            return False
        has_room = len(self) < MOST_ENTRIES and self._size_bytes < MOST_BYTES
        return has_room and all(is_soft(one) for one in proposals)

    def add(
        self,
        proposals: Sequence[Proposal],
        rows: Sequence[EntryRow],
        now: datetime,
        changed_at: datetime,
    ) -> list[tuple[Entry, StampedRow]]:
        """Take in what the run is about to see, and return it with the time that its journal will hold.

        Args:
            now: The store's time. The journal's does not go back with it.
            changed_at: When the run was written last.
        """
        latest = [one.stamped.at for one in (*self._flying, *self._waiting)[-1:]]
        at = max([now, changed_at, *latest])
        seen = [Seen(one, StampedRow(row, at)) for one, row in zip(proposals, rows, strict=True)]
        self._waiting += seen
        self._size_bytes += sum(len(row.body) for row in rows)
        self._is_urgent = self._is_urgent or any(
            one.consumed or isinstance(one.entry, Published) for one in proposals
        )
        return [(one.proposal.entry, one.stamped) for one in seen if one.proposal.entry]

    def clear(self) -> None:
        """Forget all of it: it is written, or it never will be."""
        self._waiting = []
        self._size_bytes = 0
        self._is_urgent = False

    # Writing it while the run goes on

    @property
    def is_due(self) -> bool:
        """Whether a write is to begin.

        In `exit` only for what somebody outside waits for: a published value, and that a message was taken in.
        """
        if self._flight is not None or not self._waiting:
            return False
        return self.mode == "async" or self._is_urgent

    def take_off(self, change: RunChange, writing: Coroutine[Any, Any, Verdict]) -> None:
        """Begin to write all that waits, which `change` holds."""
        task = asyncio.ensure_future(writing)
        task.add_done_callback(lambda _: self._landed())
        self._flight = change, task
        self._flying = self._waiting
        self.clear()

    @property
    def has_landed(self) -> bool:
        """Whether a write is over, and nobody has looked what came of it."""
        return self._flight is not None and self._flight[1].done()

    async def land(self) -> tuple[RunChange, Verdict] | None:
        """Wait for the write that is under way, and return what came of it; None when there is none."""
        if self._flight is None:
            return None
        change, writing = self._flight
        verdict = await writing
        self._flight = None
        self._flying = []
        return change, verdict

    async def leave(self) -> None:
        """Return when nothing is being written any more: whoever takes the run up next must not read it while it changes."""
        if self._flight is not None:
            # Whatever came of it, the next owner finds it in the journal, or does not.
            await asyncio.gather(self._flight[1], return_exceptions=True)
