"""Writes one run: knows where its row stands, and what the run has seen that is not written yet; see `worker.buffer`.

Invariant: one change of a run is under way at a time, and each begins with all that the run has seen and no change holds.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime
from typing import Any

import msgspec

from outlast.journal.entry import Durability, Entry, EntryRow, StampedRow
from outlast.replay.delivery import Delivery
from outlast.store.change import (
    Applied,
    Conflict,
    Fenced,
    Refused,
    RunChange,
    RunHead,
    Verdict,
    WorkerId,
)
from outlast.worker.bridge import RunLost
from outlast.worker.buffer import Buffer
from outlast.worker.proposal import Proposal, change_of, change_of_outcomes, rows_of
from outlast.worker.trouble import RefusedByStoreError, refused_by_store

logger = logging.getLogger("outlast.worker")


class Scribe:
    """The writing of one run.

    Args:
        head: As claimed.
        worker: Who has the run.
        submit: Writes a change; see `Writer.submit`.
        landed: Called when a write is over for which nobody waits.
    """

    def __init__(
        self,
        head: RunHead,
        worker: WorkerId,
        submit: Callable[[RunChange], Coroutine[Any, Any, Verdict]],
        landed: Callable[[], None],
    ) -> None:
        self.head = head
        """The run's row, as it was written last."""
        self._worker = worker
        self._submit = submit
        self._landed = landed
        self._delivery: Delivery | None = None
        self._buffer = Buffer("sync", landed)

    def begin(self, mode: Durability, delivery: Delivery) -> None:
        """Begin with a run whose journal was read.

        Args:
            delivery: Knows the number of the next turn.
        """
        self._delivery = delivery
        self._buffer = Buffer(mode, self._landed)

    # What the run has seen

    @property
    def is_ahead(self) -> bool:
        """Whether the run has seen what is not written."""
        return len(self._buffer) > 0

    @property
    def consumed(self) -> set[str]:
        """Ids of the messages that the run has seen, and that are unread in the store."""
        return self._buffer.consumed

    @property
    def is_sync(self) -> bool:
        """Whether the run sees nothing before it is written."""
        return self._buffer.mode == "sync"

    def may_see(self, proposals: Sequence[Proposal]) -> bool:
        """Return whether the run may see these before they are written."""
        return self._buffer.takes(proposals)

    def see(self, proposals: Sequence[Proposal], now: datetime) -> list[tuple[Entry, StampedRow]]:
        """Return what the run is to see now, and have it written later.

        Args:
            now: The store's time.
        """
        rows = self._rows(proposals)
        entries = self._buffer.add(proposals, rows, now, self.head.changed_at)
        self._write_behind()
        return entries

    async def look(self) -> None:
        """See what came of a write that is over, and begin the next one."""
        if self._buffer.has_landed:
            await self._land()
            self._write_behind()

    # Writing

    async def write(
        self, proposals: Sequence[Proposal]
    ) -> tuple[RunChange, list[tuple[Entry, StampedRow]], Applied | Refused]:
        """Write these after all that the run has seen; return the change, what the run is to see of it, and the verdict.

        Raises:
            RunLost: The worker may write nothing more of the run.
            RefusedByStoreError: The store will never take what the run has seen.
        """
        await self._land()
        change = self.change(proposals)
        verdict = await self._submit(change)
        if isinstance(verdict, Refused):
            return change, [], verdict
        return change, self.written(proposals, change, verdict), self._applied(verdict)

    def change(self, proposals: Sequence[Proposal]) -> RunChange:
        """Return the change that writes these after all that the run has seen."""
        return change_of(
            proposals,
            self.head,
            worker=self._worker,
            turn=self._turn,
            seen=self._buffer.waiting,
        )

    def change_of_outcomes(self, proposals: Sequence[Proposal]) -> RunChange:
        """Return the change that writes outcomes of steps, of a run that sees nothing before it is written."""
        return change_of_outcomes(proposals, self.head, worker=self._worker, turn=self._turn)

    def written(
        self, proposals: Sequence[Proposal], change: RunChange, verdict: Verdict
    ) -> list[tuple[Entry, StampedRow]]:
        """Note that a change stands in the store; return what the run is to see of it.

        Raises:
            RunLost: It does not: the worker may write nothing more of the run.
        """
        applied = self._applied(verdict)
        known = len(self._buffer)
        self._buffer.clear()
        self._follow(change, applied)
        written = [one.entry for one in proposals if one.entry is not None]
        rows = change.entries[known:]
        return [
            (entry, StampedRow(row, applied.at)) for entry, row in zip(written, rows, strict=True)
        ]

    async def write_last(self, proposal: Proposal) -> Verdict:
        """Write the last of a run that is blocked, and what it has seen as far as the store takes it.

        Raises:
            RunLost: The worker may write nothing more of the run.
        """
        with contextlib.suppress(RefusedByStoreError):
            await self._land()
        verdict = await self._submit(self.change([proposal]))
        if isinstance(verdict, Refused) and self.is_ahead:
            self._buffer.clear()
            verdict = await self._submit(self.change([proposal]))
        return verdict

    async def leave(self) -> None:
        """Return when nothing of the run is being written any more."""
        await self._buffer.leave()

    def _write_behind(self) -> None:
        """Begin to write what the run has seen, where that is due."""
        if self._buffer.is_due:
            change = self.change(())
            self._buffer.take_off(change, self._submit(change))

    async def _land(self) -> None:
        """Wait for the write that is under way, if any."""
        landed = await self._buffer.land()
        if landed is None:
            return
        change, verdict = landed
        if isinstance(verdict, Refused):
            self._buffer.clear()
            raise refused_by_store(self.head.run, verdict)
        self._follow(change, self._applied(verdict))

    def _applied(self, verdict: Verdict) -> Applied:
        """Return the verdict on what was written; a run that is ahead of its journal for good is lost."""
        if isinstance(verdict, Applied):
            return verdict
        assert isinstance(verdict, Fenced | Conflict), verdict
        if isinstance(verdict, Conflict):
            logger.error("run %s: the head is not where this worker left it", self.head.run)
        raise RunLost

    def _rows(self, proposals: Sequence[Proposal]) -> tuple[EntryRow, ...]:
        return rows_of(proposals, seq=self.head.next_seq + len(self._buffer), turn=self._turn)

    @property
    def _turn(self) -> int:
        # No turn was delivered when the journal was not read; a position is never below a turn.
        return self._delivery.next_turn if self._delivery else self.head.next_seq

    def _follow(self, change: RunChange, verdict: Applied) -> None:
        """Note where the run's row stands now."""
        self.head = msgspec.structs.replace(
            self.head,
            version=change.version + 1,
            next_seq=self.head.next_seq + len(change.entries),
            digest=change.digest,
            changed_at=verdict.at,
        )
