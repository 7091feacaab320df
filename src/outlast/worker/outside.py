"""Waits for somebody outside who says what came of a step that was handed out, and listens meanwhile for signs of life.

A beat changes the operation's row and wakes nobody. So when the silence has lasted too long as far as is known, the row is read anew, and
if there was a beat the wait goes on from there. What is written then names the beats that were known: one that came in between refuses it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import msgspec

from outlast.journal.entry import OperationId
from outlast.store.change import OperationPut
from outlast.worker.bridge import Bridge
from outlast.worker.patience import TimedOut
from outlast.worker.rest import Completion, Rest
from outlast.workflows.definition import AttemptOptions


class Outside:
    """The wait for the outcome of one step that was handed out.

    Args:
        row: What says so.
        left: Returns what is left of the time for all attempts; None for no limit.
    """

    def __init__(
        self,
        bridge: Bridge,
        row: OperationPut,
        options: AttemptOptions,
        left: Callable[[], timedelta | None],
    ) -> None:
        self._bridge = bridge
        self._operation = OperationId(row.operation)
        self._options = options
        self._left = left
        rest = left()
        whole = None if rest is None else bridge.store_now() + rest
        self._wait = Completion.of(row, _end(options, row.due_at, whole))
        self.row = row
        """As it was read last."""

    async def over(self) -> TimedOut:
        """Return when nobody has said what came of it, in time or for too long. An outcome ends this as a cancel.

        To be called again when there was a beat before that could be written.
        """
        is_heard = True
        while is_heard:
            await self._bridge.await_completion(self._operation, self._wait)
            self.row = await self._bridge.look(self._operation) or self.row
            is_heard = self._wait.hears(self.row)
        silence = self.row.silence
        if silence is not None and self._wait.was_silent(self._bridge.store_now()):
            return TimedOut(silence, "was handed out, and not heard of for")
        left, whole = self._left(), self._options.schedule_to_close_timeout
        is_over = left is not None and left <= timedelta(0)
        limit = whole if is_over else self._options.start_to_close_timeout or whole
        assert limit is not None, "without a limit it waits for ever"
        return TimedOut(limit, "was handed out, and not completed within")


def handed_out(
    row: OperationPut, options: AttemptOptions, at: datetime, left: timedelta | None = None
) -> OperationPut:
    """Return the row of a step that was handed out.

    Args:
        row: As it was in the attempt.
        at: When the body has said so.
        left: What is left of the time for all attempts, where that ends the wait too.
    """
    limits = [one for one in (options.start_to_close_timeout, left) if one is not None]
    return msgspec.structs.replace(
        row,
        due_at=at + min(limits) if limits else None,
        awaits=True,
        beats=0,
        heard_at=at,
        silence=options.heartbeat_timeout,
    )


def _end(options: AttemptOptions, due: datetime | None, whole: datetime | None) -> Rest | None:
    """Return until when the outcome is waited for, whatever is heard; None for ever.

    Args:
        due: When its time since the hand-out is over.
        whole: When the time for all attempts is.
    """
    ends = [one for one in (due, whole) if one is not None]
    if not ends:
        return None
    limits = (options.start_to_close_timeout, options.schedule_to_close_timeout)
    longest = min((one for one in limits if one is not None), default=timedelta.max)
    return Rest(min(ends), longest)
