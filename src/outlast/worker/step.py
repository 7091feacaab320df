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
from outlast.worker.series import Series, log_failed, rest_of, timed_out
from outlast.worker.wait import Rest
from outlast.workflows.definition import Step

logger = logging.getLogger("outlast.worker")


async def run_step(bridge: Bridge, command: RunStep, step: Step[..., object]) -> None:
    """Attempt the step until it has an outcome, and post that."""
    row = bridge.row(command.operation)
    failures = row.failures if row else 0
    run = _StepRun(bridge, command, step, failures)
    if row and row.awaits:
        if await run.failed(await run.completion(row)):
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
                return await self.failed(await self.completion(await self._hand_out()))
            case Raised() | TimedOut():
                return await self.failed(ending)

    async def failed(self, ending: Raised | TimedOut) -> bool:
        """Count a failed attempt, and wait for the next one; True when none follows."""
        series, options = self._series, self._step.options
        series.failures += 1
        raised = timed_out(ending, self._step) if isinstance(ending, TimedOut) else ending
        if raised.hopeless or not options.retry.allows_another(series.failures):
            self._fail(raised.failure)
            return True
        gap = series.gap_after(raised.failure)
        if series.is_beyond(gap):
            self._fail(series.expired(raised.failure))
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

    async def completion(self, row: OperationPut) -> TimedOut:
        """Wait for somebody who says what came of it; return when the time for that is over. Its outcome ends the wait as a cancel."""
        await self._bridge.await_completion(self._command.operation, self._rest(row.due_at))
        options, whole = self._step.options, self._step.options.schedule_to_close_timeout
        limit = whole if self._series.is_over else options.start_to_close_timeout or whole
        assert limit is not None, "without a limit it waits for ever"
        return TimedOut(limit, "was handed out, and not completed within")

    def _rest(self, due: datetime | None) -> Rest | None:
        options = self._step.options
        ends = [one for one in (due, self._series.due) if one is not None]
        if not ends:
            return None
        limits = (options.start_to_close_timeout, options.schedule_to_close_timeout)
        longest = min((one for one in limits if one is not None), default=timedelta.max)
        return Rest(min(ends), longest)

    # The outcome

    def _fail(self, failure: Failure) -> None:
        failed = StepFailed(self._command.operation, self._step.name, failure)
        log_failed(self._bridge.run_key, failed)
        self._post(failed)

    def _post(self, entry: StepCompleted | StepFailed) -> None:
        drop = self._series.drop()
        self._bridge.post(Proposal(Rank.OUTCOME, entry, guard=entry.operation, row=drop))
