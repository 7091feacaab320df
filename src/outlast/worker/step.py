"""Brings a step to an outcome: attempts, recorded failures, waits.

| the process dies | and then |
| --- | --- |
| in an attempt | the attempt is not counted; another one is made |
| after a failure was recorded | the next attempt waits for its due time, and has the next number |
| after the outcome was committed | replay returns it |
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

import msgspec

from outlast.journal.entry import OperationId, StepCompleted, StepFailed
from outlast.journal.failure import Failure, capture
from outlast.journal.parse import NotJsonError, parse_as
from outlast.journal.place import place_of
from outlast.replay.command import RunStep
from outlast.store.change import OperationDrop, OperationPut
from outlast.worker.begin import attempt_when_free
from outlast.worker.bridge import Bridge
from outlast.worker.executor import Raised, Returned, TimedOut
from outlast.worker.proposal import Proposal, Rank
from outlast.worker.wait import Rest
from outlast.workflows.definition import AttemptOptions, Step

logger = logging.getLogger("outlast.worker")

_failures = msgspec.json.Decoder(Failure)
_LONGEST_ASKED = 86_400  # seconds; what asks for more is not believed


async def run_step(bridge: Bridge, command: RunStep, step: Step[..., object]) -> None:
    """Attempt the step until it has an outcome, and post that."""
    row = bridge.row(command.operation)
    failures = row.failures if row else 0
    if row and row.due_at:
        await bridge.rest(command.operation, rest_of(row, row.due_at, step.options))
    while True:
        attempt = bridge.attempt(command.operation, step.name, failures + 1, "")
        ending = await attempt_when_free(bridge, step, command.arguments, attempt)
        if isinstance(ending, Returned):
            bridge.post(
                _outcome(
                    bridge, StepCompleted(command.operation, step.name, msgspec.Raw(ending.value))
                )
            )
            return
        failures += 1
        raised = timed_out(ending, step.name) if isinstance(ending, TimedOut) else ending
        if raised.hopeless or not step.options.retry.allows_another(failures):
            log_failed(bridge, command.operation, "step", step.name, raised.failure)
            bridge.post(_outcome(bridge, StepFailed(command.operation, step.name, raised.failure)))
            return
        await record_failure(
            bridge, command.operation, "step", step.name, step.options, failures, raised.failure
        )


async def record_failure(  # noqa: PLR0913 - the columns of one row
    bridge: Bridge,
    operation: OperationId,
    kind: str,
    name: str,
    options: AttemptOptions,
    failures: int,
    failure: Failure,
) -> None:
    """Record a failed attempt that will be followed by another, and wait until that is due."""
    gap = gap_after(options, failures, failure)
    due = bridge.store_now() + gap
    row = OperationPut(
        operation=operation,
        kind=kind,
        name=name,
        failures=failures,
        due_at=due,
        detail=msgspec.json.encode(failure),
    )
    await bridge.propose(Proposal(Rank.ROW, guard=operation, row=row))
    logger.warning(
        "run %s: %s %s (%s) failed, attempt %d: %s: %s; the next attempt begins at %s, nobody needs to act",
        bridge.run_key,
        kind,
        name,
        operation,
        failures,
        failure.type,
        failure.message,
        f"{due:%Y-%m-%d %H:%M:%S} UTC",
    )
    await bridge.rest(operation, Rest(due, gap))


def gap_after(options: AttemptOptions, failures: int, failure: Failure) -> timedelta:
    """Return how long to wait after the `failures`-th failed attempt: as long as the policy says, or the failure asks for."""
    return max(options.retry.gap(failures), asked_for(failure))


def rest_of(row: OperationPut, due: datetime, options: AttemptOptions) -> Rest:
    """Return the rest that a former owner has recorded."""
    try:
        return Rest(due, gap_after(options, row.failures, parse_as(_failures, row.detail)))
    except NotJsonError:
        return Rest(due, options.retry.gap(row.failures))


def log_failed(
    bridge: Bridge, operation: OperationId, kind: str, name: str, failure: Failure
) -> None:
    """Say that no attempt follows."""
    place = place_of(failure)
    logger.warning(
        "run %s: %s %s (%s) failed for good%s: %s: %s; the workflow gets this as an exception",
        bridge.run_key,
        kind,
        name,
        operation,
        f" at {place}" if place else "",
        failure.type,
        failure.message,
    )


def asked_for(failure: Failure) -> timedelta:
    """Return how long the failed exception asks to wait: its `retry_after` in seconds, as HTTP's Retry-After."""
    after = failure.details.get("retry_after")
    if (
        isinstance(after, bool)
        or not isinstance(after, int | float)
        or not 0 < after < _LONGEST_ASKED
    ):
        return timedelta(0)
    return timedelta(seconds=after)


def timed_out(ending: TimedOut, name: str) -> Raised:
    """Return the failure that a timeout is to the workflow."""
    return Raised(capture(TimeoutError(f"{name} was not done within {ending.after}")))


def _outcome(bridge: Bridge, entry: StepCompleted | StepFailed) -> Proposal:
    drop = OperationDrop(entry.operation) if bridge.row(entry.operation) else None
    return Proposal(Rank.OUTCOME, entry, guard=entry.operation, row=drop)
