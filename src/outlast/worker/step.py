"""Brings a step to an outcome: attempts, recorded failures, waits; or a wait for somebody outside who says what came of it.

| the process dies | and then |
| --- | --- |
| in an attempt | the attempt is not counted; another one is made, which finds what the last one said of itself |
| after a failure was recorded | the next attempt waits for its due time, and has the next number |
| after the body has handed the step out, and before that was written | another attempt is made, with the same token |
| after it was written | nothing is attempted: the outcome comes by the inbox, or the time for it is over |
| after the outcome was committed | replay returns it |
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

import msgspec

from outlast.journal.entry import StepCompleted, StepFailed
from outlast.journal.failure import Failure
from outlast.replay.command import RunStep
from outlast.store.change import OperationPut
from outlast.worker.bridge import Bridge
from outlast.worker.call import anytime
from outlast.worker.executor import LeftOpen, Raised, Returned, TimedOut, TooEarly
from outlast.worker.proposal import Proposal, Rank
from outlast.worker.series import Series, log_failed, rest_of, row_of, timed_out
from outlast.worker.wait import Rest
from outlast.workflows.definition import AttemptOptions, Step

logger = logging.getLogger("outlast.worker")


async def run_step(bridge: Bridge, command: RunStep, step: Step[..., object]) -> None:
    """Attempt the step until it has an outcome, and post that."""
    row = row_of(bridge, command.operation, step)
    failures = row.failures if row else 0
    run = _StepRun(bridge, command, step, failures)
    if row and row.awaits:
        if await run.unanswered(row):
            return
    elif row and row.due_at:
        await bridge.rest(command.operation, rest_of(row, row.due_at, step.options))
    while not await run.attempt():
        pass


class _StepRun:
    """One step on its way to an outcome."""

    def __init__(
        self, bridge: Bridge, command: RunStep, step: Step[..., object], failures: int
    ) -> None:
        self._bridge = bridge
        self._command = command
        self._step = step
        limit = step.options.schedule_to_close_timeout
        deadline = bridge.deadline(command.operation, command.scheduled_at, limit)
        self._series = Series(bridge, command.operation, step, failures=failures, deadline=deadline)

    async def attempt(self) -> bool:
        """Make one attempt, if there is time for it; True when the step has an outcome."""
        series = self._series
        await self._bridge.hold.free(self._command.operation)
        if series.is_over:
            self._fail(series.expired())
            return True
        ending = await series.attempt(self._command.arguments, anytime, left=series.left)
        match ending:
            case Returned(value):
                completed = StepCompleted(
                    self._command.operation, self._step.name, msgspec.Raw(value)
                )
                self._post(completed)
                return True
            case TooEarly():
                await self._bridge.written()
                series.is_written = True
                return False
            case LeftOpen():
                return await self.unanswered(await self._hand_out())
            case Raised() | TimedOut():
                return await self.failed(ending)

    async def failed(self, ending: Raised | TimedOut, *, yields: bool = False) -> bool:
        """Count a failed attempt, and wait for the next one; True when none follows.

        Args:
            yields: An answer from outside comes before what is said of it.
        """
        series, options = self._series, self._step.options
        series.failures += 1
        raised = timed_out(ending, self._step) if isinstance(ending, TimedOut) else ending
        if raised.hopeless or not options.retry.allows_another(series.failures):
            self._fail(raised.failure, yields=yields)
            return True
        gap = series.gap_after(raised.failure)
        if series.is_beyond(gap):
            self._fail(series.expired(raised.failure), yields=yields)
            return True
        await series.record_failure(raised.failure, gap)
        return False

    # Completion from outside

    async def _hand_out(self) -> OperationPut:
        """Write that the outcome comes from outside, and return what was written."""
        limits = [self._step.options.start_to_close_timeout, self._series.left]
        limit = min((one for one in limits if one is not None), default=None)
        due = None if limit is None else self._bridge.store_now() + limit
        row = msgspec.structs.replace(self._series.begun(), due_at=due, awaits=True)
        await self._bridge.propose(Proposal(Rank.ROW, guard=self._command.operation, row=row))
        logger.info(
            "run %s: step %s (%s) was handed out, and waits for its completion%s",
            self._bridge.run_key,
            self._step.name,
            row.operation,
            f" until {due:%Y-%m-%d %H:%M:%S} UTC" if due else "",
        )
        return row

    async def unanswered(self, row: OperationPut) -> bool:
        """Wait for somebody who says what came of it, which ends the wait as a cancel; then count the attempt as failed.

        Returns: True when no other attempt follows.
        """
        rest = completion_rest(self._step.options, row.due_at, self._series.due)
        await self._bridge.await_completion(self._command.operation, rest)
        late = not_completed(self._step.options, is_over=self._series.is_over)
        return await self.failed(late, yields=True)

    # The outcome

    def _fail(self, failure: Failure, *, yields: bool = False) -> None:
        failed = StepFailed(self._command.operation, self._step.name, failure)
        log_failed(self._bridge.run_key, failed)
        self._post(failed, yields=yields)

    def _post(self, entry: StepCompleted | StepFailed, *, yields: bool = False) -> None:
        drop = self._series.drop()
        self._bridge.post(
            Proposal(Rank.OUTCOME, entry, guard=entry.operation, row=drop, yields=yields)
        )


def completion_rest(
    options: AttemptOptions, due: datetime | None, whole: datetime | None
) -> Rest | None:
    """Return until when the outcome of a step that was handed out is waited for; None for ever.

    Args:
        due: When its time since then is over.
        whole: When the time for all attempts is.
    """
    ends = [one for one in (due, whole) if one is not None]
    if not ends:
        return None
    limits = (options.start_to_close_timeout, options.schedule_to_close_timeout)
    longest = min((one for one in limits if one is not None), default=timedelta.max)
    return Rest(min(ends), longest)


def not_completed(options: AttemptOptions, *, is_over: bool) -> TimedOut:
    """Return how an attempt has ended that was handed out in vain.

    Args:
        is_over: The time for all attempts is.
    """
    whole = options.schedule_to_close_timeout
    limit = whole if is_over else options.start_to_close_timeout or whole
    assert limit is not None, "without a limit it waits for ever"
    return TimedOut(limit, "was handed out, and not completed within")
