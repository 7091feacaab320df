"""Brings a remote step to an outcome, as its run's owner: tasks are put, outcomes come as mail, and the run may leave memory meanwhile.

| the owner dies | and then |
| --- | --- |
| before a task was put | the step is commanded again, and its task put |
| while the task waits, or somebody works on it | the next owner finds the task and waits |
| when the outcome is in the inbox | the next owner takes it in before anything else |
| after a failed attempt was taken in | its record, the end of its message and the next task are one write: the task waits for its due time |
| after the body has handed the step out | the end of the task is in the inbox; once that was taken in, nothing is attempted, and the outcome comes by the inbox |
| after the workflow gave the step up | the next owner finds a task that nobody waits for, and drops it |

What becomes of the worker that has the task is the business of the store (it is offered again) and of `worker.task`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable
from datetime import datetime, timedelta
from typing import Any, TypeAlias

import msgspec
from msgspec import Raw

from outlast.errors import DecodeError, OutlastError
from outlast.journal.entry import NO_OPERATION, OperationId, StepCompleted, StepFailed
from outlast.journal.failure import Failure, capture, tell
from outlast.journal.parse import NotJsonError
from outlast.replay.command import RunStep
from outlast.replay.machine import Machine
from outlast.replay.operation import StepOperation
from outlast.store.change import (
    Applied,
    Message,
    OperationDrop,
    OperationPut,
    RunChange,
    StampedMessage,
    TaskDrop,
    TaskPut,
)
from outlast.store.task import TaskKey, TaskRow, due_of
from outlast.worker.bridge import Bridge
from outlast.worker.outcome import ends_task, read_outcome
from outlast.worker.outside import Outside, handed_out
from outlast.worker.proposal import Proposal, Rank
from outlast.worker.rest import Rest
from outlast.worker.series import asked_for, expired, log_failed, timed_out
from outlast.worker.wait import Waits
from outlast.workflows.definition import Step

logger = logging.getLogger("outlast.worker")


class PoisonedTaskError(OutlastError):
    """Worker after worker died with one of the run's tasks."""

    code = "poisoned_task"


_End: TypeAlias = tuple[Rest, Callable[[], Proposal | None]]
"""Until when a task may wait, and what is asked then."""


class RemoteSteps:
    """The remote steps of one run that this worker owns.

    Args:
        step_of: Returns the step of a name; raises when this worker has not registered it.
        machine: Asked what is open, after every entry was delivered.
        waits: Told until when a task may wait for a worker.
        begin: Begins the wait for a completion from outside.
        rows: The run's tasks, as it was taken up.
    """

    def __init__(
        self,
        bridge: Bridge,
        step_of: Callable[[str], Step[..., object]],
        machine: Machine,
        waits: Waits,
        begin: Callable[[OperationId, Coroutine[Any, Any, None]], None],
        rows: Iterable[TaskRow],
    ) -> None:
        self._bridge = bridge
        self._step_of = step_of
        self._machine = machine
        self._waits = waits
        self._begin = begin
        self._asked: set[OperationId] = set()
        self._handing_out: set[OperationId] = set()
        self._tasks = {OperationId(row.key.operation): row for row in rows}
        self._doubtful: set[OperationId] = set()
        self.poisoned: PoisonedTaskError | None = None
        """Why no worker should make another attempt, until somebody has said so."""

    @property
    def doubtful(self) -> bool:
        """Whether a task is not as it was left, so that the store has to be asked."""
        return bool(self._doubtful)

    def knows(self, operation: OperationId) -> bool:
        """Whether the operation has a task."""
        return operation in self._tasks

    def drop_orphans(self) -> None:
        """Drop the tasks of operations that were given up before a former owner could do so."""
        for operation in [one for one in self._tasks if not self._machine.is_open(one)]:
            self.abandon(operation)

    def begin(self, command: RunStep, step: Step[..., object]) -> bool:
        """Have a worker of the step's queue make the attempt, if it is not under way; False when it is to be made here."""
        operation = command.operation
        self._asked.add(operation)
        known = self._tasks.get(operation)
        if known is not None and known.name != command.name:
            self.abandon(operation)
            known = None
        queue = step.placement.queue or (known.queue if known else "")
        row = self._row(operation, command.name)
        if not queue:
            return False
        if row is not None and row.awaits:
            self._begin(operation, self._completion(operation))
            return True
        if known is None or (known.worker is None and known.queue != queue):
            if self._close_if_over(operation, step):
                return True
            failures, due = (row.failures, row.due_at) if row else (0, None)
            # A task that moves to another queue keeps what its attempts have said.
            progress = row.progress if row and known is None else b""
            task = TaskPut(
                operation, failures + 1, queue, command.name, command.arguments, due, progress
            )
            self._bridge.post(Proposal(Rank.ROW, guard=operation, task=task))
        else:
            self._watch(known)
        return True

    def abandon(self, operation: OperationId) -> None:
        """Drop the task of an operation that nobody waits for any more."""
        if operation in self._tasks:
            self._bridge.post(Proposal(Rank.ROW, task=TaskDrop(operation)))

    def settle(self, proposal: Proposal) -> None:
        """Drop the task with an outcome that comes from elsewhere."""
        entry = proposal.entry
        if isinstance(entry, StepCompleted | StepFailed) and entry.operation in self._tasks:
            proposal.task = TaskDrop(entry.operation)

    def written(self, change: RunChange, generation: int, at: datetime) -> None:
        """Note what was written of tasks."""
        for act in change.tasks:
            operation = OperationId(act.operation)
            if isinstance(act, TaskPut):
                key = TaskKey(self._bridge.run_key, generation, operation, act.attempt)
                row = TaskRow(key, act.queue, act.name, None, due_of(act, at))
                self._tasks[operation] = row
                self._watch(row)
            else:
                self._tasks.pop(operation, None)
                self._waits.forget_task(operation)
        for row in change.operations:
            if isinstance(row, OperationPut) and row.awaits and row.operation in self._handing_out:
                operation = OperationId(row.operation)
                # What was handed out before its step is carried out here is waited for from then on.
                if operation in self._asked:
                    self._begin(operation, self._completion(operation))
        self._handing_out.clear()
        if change.hold is False:
            self._wait_anew(at)

    def _wait_anew(self, at: datetime) -> None:
        """The run goes on after a pause, in which nobody could take its tasks: their time to be started begins again."""
        for operation, row in self._tasks.items():
            self._waits.noted_start(operation)
            if row.worker is None:
                self._tasks[operation] = row = msgspec.structs.replace(
                    row, since=max(row.since, at)
                )
            self._watch(row)
        # Meanwhile one may have come back from its worker, or have gone to one before the pause.
        self._doubtful |= self._tasks.keys()

    # Outcomes

    def proposal_of(self, stamped: StampedMessage, generation: int) -> Proposal | None:
        """Return what is written for the message that ends a task; None for any other message."""
        message = stamped.message
        if not ends_task(message):
            return None
        try:
            outcome = read_outcome(message)
        except NotJsonError as error:
            return self._unreadable(message, error)
        found = self._machine.find(OperationId(outcome.operation))
        name = found.request.name if isinstance(found, StepOperation) else ""
        if outcome.generation != generation or name != outcome.name:
            return _read_only(message)
        assert isinstance(found, StepOperation)
        if outcome.outcome != "completed" and outcome.attempt != self._attempt_of(found):
            return _read_only(message)
        match outcome.outcome:
            case "completed":
                return self._completed(message, found, outcome.value)
            case "failed":
                assert outcome.failure is not None
                return self._after_failure(
                    message, found, outcome.failure, outcome.kept, hopeless=outcome.hopeless
                )
            case "handed_out":
                return self._handed_out(stamped, found, outcome.kept)
            case "lost":
                self.poisoned = self._poison(found, self._tasks.pop(found.operation, None))
                return Proposal(Rank.ARRIVAL, consumed=message.message_id)

    def _completed(self, message: Message, step: StepOperation, value: Raw) -> Proposal:
        """The first result counts, whichever attempt it is of."""
        try:
            step.request.decode(bytes(value))
        except DecodeError as error:
            return self._after_failure(message, step, capture(error))
        entry = StepCompleted(step.operation, step.request.name, value)
        return self._outcome(message, entry)

    # Completion from outside

    def _handed_out(
        self, stamped: StampedMessage, step: StepOperation, progress: bytes
    ) -> Proposal:
        """Record that the outcome comes from outside; the time for that counts from when the body has said so."""
        operation, name = step.operation, step.request.name
        definition = self._step_of(name)
        former = self._row(operation, name) or OperationPut(operation, "step", name)
        said = msgspec.structs.replace(former, progress=progress)
        at = min(stamped.at, self._bridge.store_now())
        row = handed_out(said, definition.options, at)
        self._handing_out.add(operation)
        message_id = stamped.message.message_id
        task = TaskDrop(operation)
        return Proposal(Rank.ROW, guard=operation, row=row, task=task, consumed=message_id)

    async def _completion(self, operation: OperationId) -> None:
        """Wait for somebody who says what came of it; when nobody does in time, the attempt has failed. The outcome ends this as a cancel."""
        found, row = self._machine.find(operation), self._bridge.row(operation)
        assert isinstance(found, StepOperation)
        assert row is not None
        step = self._step_of(found.request.name)
        outside = Outside(self._bridge, row, step.options, lambda: self._left(found, step))
        verdict = None
        while not isinstance(verdict, Applied):
            failure = timed_out(await outside.over(), step).failure
            # What follows may be the next task, and a run that is paused puts none.
            await self._bridge.hold.free(operation)
            # Refused when there was a beat in between: it has not failed.
            failed = self._after_failure(None, found, failure, outside.row.progress)
            # An answer that came by now comes before the end of the wait for it.
            failed.yields = isinstance(failed.entry, StepFailed)
            verdict = await self._bridge.propose(failed)

    def _unreadable(self, message: Message, error: NotJsonError) -> Proposal:
        """An outcome that this code cannot read is no outcome: the attempt is made again, by the step's policy."""
        found = self._machine.find(OperationId(message.name))
        if not isinstance(found, StepOperation) or found.operation not in self._tasks:
            return _read_only(message)
        told = DecodeError(
            f"what the worker {message.sender} said of the attempt cannot be read: {error}",
            step=found.request.name,
            hint="workers of different versions are at work; bring them to one version",
        )
        return self._after_failure(message, found, capture(told))

    def _after_failure(
        self,
        message: Message | None,
        step: StepOperation,
        failure: Failure,
        progress: bytes | None = None,
        *,
        hopeless: bool = False,
    ) -> Proposal:
        """Record a failed attempt together with the task of the next one, or the end of all attempts.

        Args:
            message: In which that was told.
            progress: What the attempt has said of itself; None where nothing of it can be read.
        """
        operation, name = step.operation, step.request.name
        definition = self._step_of(name)
        failures = self._attempt_of(step)
        options = definition.options
        retries = not hopeless and options.retry.retries(failure.type)
        if not (retries and options.retry.allows_another(failures)):
            failed = StepFailed(operation, name, failure)
            log_failed(self._bridge.run_key, failed)
            return self._outcome(message, failed)
        gap = max(options.retry.gap(failures), asked_for(failure))
        left = self._left(step, definition)
        if left is not None and gap >= left:
            return self._outcome(message, self._expired(operation, definition, failures, failure))
        due = self._bridge.store_now() + gap
        former = self._tasks.get(operation)
        queue = definition.placement.queue or (former.queue if former else "")
        self._log_failed_attempt(step, failures, failure, due)
        if progress is None:
            row = self._row(operation, name)
            progress = row.progress if row else b""
        detail = msgspec.json.encode(failure)
        arguments = step.request.arguments
        row = OperationPut(operation, "step", name, failures, due, detail, progress)
        row = msgspec.structs.replace(row, beats=self._beats(operation))
        return Proposal(
            Rank.ROW,
            guard=operation,
            row=row,
            task=TaskPut(operation, failures + 1, queue, name, arguments, due, progress),
            consumed=message.message_id if message else "",
        )

    def _outcome(self, message: Message | None, entry: StepCompleted | StepFailed) -> Proposal:
        return Proposal(
            Rank.OUTCOME,
            entry,
            guard=NO_OPERATION if message else entry.operation,
            row=self._drop(entry.operation, told=message is not None),
            task=TaskDrop(entry.operation),
            consumed=message.message_id if message else "",
        )

    def _drop(self, operation: OperationId, *, told: bool) -> OperationDrop | None:
        """Return what removes the operation's row; with what was told it goes whatever was heard."""
        row = self._bridge.row(operation)
        return OperationDrop(operation, None if told else row.beats) if row else None

    def _beats(self, operation: OperationId) -> int:
        row = self._bridge.row(operation)
        return row.beats if row else 0

    # The wait for a worker

    def refused(self, proposal: Proposal) -> None:
        """Note that a task is not as it was left: somebody took it, or has finished it."""
        if proposal.task is not None:
            self._doubtful.add(OperationId(proposal.task.operation))

    def look_again(self, rows: Iterable[TaskRow]) -> None:
        """Take over how the run's tasks stand now."""
        stand = {OperationId(row.key.operation): row for row in rows}
        for operation in self._doubtful & self._tasks.keys():
            row = stand.get(operation)
            if row is not None:
                self._tasks[operation] = row
                self._watch(row)
        self._doubtful.clear()

    def _watch(self, row: TaskRow) -> None:
        """Wait for the outcome of a task, and no longer than allowed for a worker to take it.

        While somebody has it, the store is asked once a timeout: it may be offered again.
        """
        operation = OperationId(row.key.operation)
        step = self._step_of(row.name)
        ends = [one for one in (self._start_rest(row, step), self._close_rest(row, step)) if one]
        if not ends:
            self._waits.add_task(operation, row.queue)
            return
        deadline, late = min(ends, key=lambda one: one[0].due)
        is_taken = row.worker is not None
        self._waits.add_task(operation, row.queue, deadline, late, is_taken=is_taken)

    def _start_rest(self, row: TaskRow, step: Step[..., object]) -> _End | None:
        within = step.placement.schedule_to_start_timeout
        if within is None:
            return None
        now = self._bridge.store_now()
        rest = step.options.retry.gap(row.key.attempt - 1) if row.key.attempt > 1 else timedelta(0)
        since = min(row.since, now + rest) if row.worker is None else now
        deadline = Rest(since + within, rest + within)
        noted = self._waits.noted_start(OperationId(row.key.operation))
        if row.worker is None and row.since > since and noted is not None:
            deadline.due = min(deadline.due, noted)
        return deadline, lambda: self._late(row, within)

    def _close_rest(self, row: TaskRow, step: Step[..., object]) -> _End | None:
        found = self._machine.find(OperationId(row.key.operation))
        left = self._left(found, step) if isinstance(found, StepOperation) else None
        limit = step.options.schedule_to_close_timeout
        if left is None or limit is None:
            return None
        return Rest(self._bridge.store_now() + left, limit), lambda: self._closed(row, step)

    def _late(self, row: TaskRow, within: timedelta) -> Proposal | None:
        """Return what is written about a task that nobody took in time; look again at one that somebody had then."""
        operation = OperationId(row.key.operation)
        if row.worker is not None:
            self._doubtful.add(operation)
            return None
        failure = capture(
            TimeoutError(
                f"{row.name} was not started within {within}: no worker of queue {row.queue!r} took it"
            )
        )
        return Proposal(
            Rank.OUTCOME,
            StepFailed(operation, row.name, failure),
            guard=operation,
            row=OperationDrop(operation) if self._bridge.row(operation) else None,
            task=TaskDrop(operation, row.key.attempt, row.taken),
        )

    # The time for all attempts

    def _left(self, found: StepOperation, step: Step[..., object]) -> timedelta | None:
        if found.scheduled_at is None:
            return None
        limit = step.options.schedule_to_close_timeout
        deadline = self._bridge.deadline(found.operation, found.scheduled_at, limit)
        return None if deadline is None else deadline.left(self._bridge.store_now())

    def _close_if_over(self, operation: OperationId, step: Step[..., object]) -> bool:
        """Fail a step that has no time for another attempt."""
        found = self._machine.find(operation)
        left = self._left(found, step) if isinstance(found, StepOperation) else None
        if left is None or left > timedelta(0):
            return False
        self._bridge.post(self._close(operation, step))
        return True

    def _closed(self, row: TaskRow, step: Step[..., object]) -> Proposal | None:
        """Return what is written about a step whose time is over, whoever has its task; look again when it is not."""
        operation = OperationId(row.key.operation)
        found = self._machine.find(operation)
        left = self._left(found, step) if isinstance(found, StepOperation) else None
        if left is None or left > timedelta(0):
            self._doubtful.add(operation)
            return None
        closed = self._close(operation, step)
        closed.task = TaskDrop(operation, row.key.attempt)
        return closed

    def _close(self, operation: OperationId, step: Step[..., object]) -> Proposal:
        row = self._row(operation, step.name)
        return Proposal(
            Rank.OUTCOME,
            self._expired(operation, step, row.failures if row else 0),
            guard=operation,
            row=OperationDrop(operation) if self._bridge.row(operation) else None,
        )

    def _expired(
        self,
        operation: OperationId,
        step: Step[..., object],
        failures: int,
        last: Failure | None = None,
    ) -> StepFailed:
        failed = StepFailed(operation, step.name, expired(step, failures, last))
        log_failed(self._bridge.run_key, failed)
        return failed

    def _attempt_of(self, step: StepOperation) -> int:
        """Return the number of the attempt that is to be made, or is under way."""
        row = self._row(step.operation, step.request.name)
        return (row.failures if row else 0) + 1

    def _row(self, operation: OperationId, name: str) -> OperationPut | None:
        """Return the record of failed attempts; one of another step that was there before counts for nothing."""
        row = self._bridge.row(operation)
        return row if row is not None and (row.kind, row.name) == ("step", name) else None

    def _poison(self, step: StepOperation, row: TaskRow | None) -> PoisonedTaskError:
        queue = row.queue if row else "?"
        return PoisonedTaskError(
            f"worker after worker of queue {queue!r} died while it had this step",
            run=self._bridge.run_key.run_id,
            operation=step.operation,
            step=step.request.name,
            hint="find out what kills the process; then send the run a message, or terminate it",
        )

    def _log_failed_attempt(
        self, step: StepOperation, failures: int, failure: Failure, due: datetime
    ) -> None:
        logger.warning(
            "run %s: step %s (%s) failed, attempt %d: %s; the next attempt is offered at %s, nobody needs to act",
            self._bridge.run_key,
            step.request.name,
            step.operation,
            failures,
            tell(failure),
            f"{due:%Y-%m-%d %H:%M:%S} UTC",
            extra={
                "operation": step.operation,
                "step": step.request.name,
                "attempt": failures,
            },
        )


def _read_only(message: Message) -> Proposal:
    """Take in a message that says nothing any more: the step was given up, or has its outcome, or this attempt was replaced."""
    logger.info(
        "the outcome of %s that worker %s has sent came too late; it is dropped",
        message.name,
        message.sender,
    )
    return Proposal(Rank.ARRIVAL, consumed=message.message_id)
