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
from datetime import timedelta

import msgspec

from outlast.journal.entry import StepCompleted, StepFailed
from outlast.journal.failure import Failure
from outlast.replay.command import RunStep
from outlast.store.change import Applied, OperationDrop, OperationPut
from outlast.worker.bridge import Bridge
from outlast.worker.call import anytime
from outlast.worker.executor import Ending, LeftOpen, Raised, Returned, TimedOut, TooEarly
from outlast.worker.hold import HeldBack
from outlast.worker.outside import Outside, handed_out
from outlast.worker.proposal import Proposal, Rank
from outlast.worker.pulse import Pulse
from outlast.worker.series import Series, log_failed, rest_of, row_of, timed_out
from outlast.workflows.definition import Step

logger = logging.getLogger("outlast.worker")


class Made(msgspec.Struct, frozen=True):
    """A first attempt that was made already.

    Args:
        series: What has carried its beats, where they were carried.
    """

    pulse: Pulse
    ending: Ending
    series: Series | None


async def run_step(
    bridge: Bridge, command: RunStep, step: Step[..., object], made: Made | None = None
) -> None:
    """Attempt the step until it has an outcome, and post that.

    Args:
        made: The first attempt, where another has made it.
    """
    row = row_of(bridge, command.operation, step)
    failures = row.failures if row else 0
    run = _StepRun(bridge, command, step, failures, made.series if made else None)
    if made is not None:
        if await run.take(made):
            return
    elif row and row.awaits:
        if await run.outside(row):
            return
    elif row and row.due_at:
        await bridge.rest(command.operation, rest_of(row, row.due_at, step.options))
    while not await run.attempt():
        pass


class _StepRun:
    """One step on its way to an outcome."""

    def __init__(
        self,
        bridge: Bridge,
        command: RunStep,
        step: Step[..., object],
        failures: int,
        series: Series | None = None,
    ) -> None:
        self._bridge = bridge
        self._command = command
        self._step = step
        limit = step.options.schedule_to_close_timeout
        deadline = bridge.deadline(command.operation, command.scheduled_at, limit)
        self._series = series or Series(
            bridge, command.operation, step, failures=failures, deadline=deadline
        )

    async def attempt(self) -> bool:
        """Make one attempt, if there is time for it; True when the step has an outcome."""
        series = self._series
        await self._bridge.hold.free(self._command.operation)
        if series.is_over:
            self._fail(series.expired())
            return True
        try:
            ending = await series.attempt(self._command.arguments, anytime, left=series.left)
        except HeldBack:
            # Its time may be over when the run goes on.
            return False
        return await self._judge(ending)

    async def take(self, made: Made) -> bool:
        """Take over an attempt that was made; True when the step has an outcome."""
        made.pulse.close()
        await self._series.settle(made.pulse, made.ending)
        return await self._judge(made.ending)

    async def _judge(self, ending: Ending) -> bool:
        series = self._series
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
                return await self.outside(await self._hand_out())
            case Raised() | TimedOut():
                return await self._failed(ending)

    async def _failed(self, ending: Raised | TimedOut) -> bool:
        """Count a failed attempt, and wait for the next one; True when none follows."""
        failure, gap = self._judged(ending)
        if gap is None:
            self._fail(failure)
            return True
        await self._series.record_failure(failure, gap)
        return False

    def _judged(self, ending: Raised | TimedOut) -> tuple[Failure, timedelta | None]:
        """Count a failed attempt; return how long the next one waits, and None for a failure after which none follows."""
        series, options = self._series, self._step.options
        series.failures += 1
        raised = timed_out(ending, self._step) if isinstance(ending, TimedOut) else ending
        if raised.hopeless or not options.retry.allows_another(series.failures):
            return raised.failure, None
        gap = series.gap_after(raised.failure)
        if series.is_beyond(gap):
            return series.expired(raised.failure), None
        return raised.failure, gap

    # Completion from outside

    async def _hand_out(self) -> OperationPut:
        """Write that the outcome comes from outside, and return what was written."""
        now, left = self._bridge.store_now(), self._series.left
        row = handed_out(self._series.begun(), self._step.options, now, left)
        await self._bridge.propose(Proposal(Rank.ROW, guard=self._command.operation, row=row))
        logger.info(
            "run %s: step %s (%s) was handed out, and waits for its completion%s",
            self._bridge.run_key,
            self._step.name,
            row.operation,
            f" until {row.due_at:%Y-%m-%d %H:%M:%S} UTC" if row.due_at else "",
            extra={"step": self._step.name},
        )
        return row

    async def outside(self, row: OperationPut) -> bool:
        """Wait for somebody who says what came of it, and count the attempt as failed when nobody does; True when none follows."""
        series = self._series
        outside = Outside(self._bridge, row, self._step.options, lambda: series.left)
        while True:
            ending = await outside.over()
            # An answer waits in the inbox of a run that is paused: what it came in time for is not over before that was read.
            await self._bridge.hold.free(self._command.operation)
            failure, gap = self._judged(ending)
            series.go_on_from(outside.row)
            if gap is not None:
                if await series.record_failure(failure, gap):
                    return False
            elif await self._give_up(failure, outside.row.beats):
                return True
            # There was a beat in between: it has not failed.
            series.failures -= 1

    async def _give_up(self, failure: Failure, beats: int) -> bool:
        """Write that no attempt follows; False when there was another beat than those."""
        failed = StepFailed(self._command.operation, self._step.name, failure)
        drop = OperationDrop(failed.operation, beats)
        # An answer from outside that came by now comes before this.
        given_up = Proposal(Rank.OUTCOME, failed, guard=failed.operation, row=drop, yields=True)
        is_written = isinstance(await self._bridge.propose(given_up), Applied)
        if is_written:
            log_failed(self._bridge.run_key, failed)
        return is_written

    # The outcome

    def _fail(self, failure: Failure) -> None:
        failed = StepFailed(self._command.operation, self._step.name, failure)
        log_failed(self._bridge.run_key, failed)
        self._post(failed)

    def _post(self, entry: StepCompleted | StepFailed) -> None:
        drop = self._series.drop()
        self._bridge.post(Proposal(Rank.OUTCOME, entry, guard=entry.operation, row=drop))
