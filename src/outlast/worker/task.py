"""Works on tasks: attempts of remote steps that this worker has taken from the queues which it serves.

| the worker dies | and then |
| --- | --- |
| after it took a task | the lock or the lease shows it, and the task is offered again; nothing is counted as failed |
| in the attempt, or before its end was written | the same |
| after its end was written | the outcome is in the run's inbox |

One that lives and was not told what it took learns of it in the next look. A task that is no longer its own (dropped, replaced, gone
with its run) is cancelled at the next look, and what the attempt still comes to is refused by the store and dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from outlast.errors import DecodeError, StoreUnavailableError
from outlast.journal.failure import Failure, capture
from outlast.store.change import Applied, BeatTask, FinishTask, Refused
from outlast.store.task import ClaimedTask, TaskClaim, TaskKey, TaskRow
from outlast.worker.bridge import RunLost
from outlast.worker.deck import Deck
from outlast.worker.executor import Ending, LeftOpen, Raised, Returned, TimedOut
from outlast.worker.outcome import TaskOutcome, message_of, outcome_of
from outlast.worker.pilot import POISON_LAPSES
from outlast.worker.pulse import Pulse, interval
from outlast.worker.series import timed_out
from outlast.workflows.attempt import Attempt
from outlast.workflows.definition import Step
from outlast.workflows.log import about

logger = logging.getLogger("outlast.worker")


@dataclass(slots=True, eq=False)
class _Ours:
    """A task that this worker has.

    Args:
        number: Which of those of its life.
        work: What is done about it.
    """

    claimed: ClaimedTask
    number: int
    work: asyncio.Task[None] | None = None

    @property
    def row(self) -> TaskRow:
        """The task as it was taken."""
        return self.claimed.row


class TaskRunner:
    """The tasks of one worker life.

    Args:
        queues: Whose tasks it takes.
        limit: How many it works on at once. A body that goes on after its attempt has ended keeps its place.
        changed: Called when a task has ended, so that there is room for another.
    """

    def __init__(
        self, deck: Deck, queues: tuple[str, ...], limit: int, changed: Callable[[], None]
    ) -> None:
        self._deck = deck
        self._queues = frozenset(queues)
        self._limit = limit
        self._steps = frozenset(
            name for name, step in deck.registry.steps.items() if step.placement.queue
        )
        self._tasks: dict[TaskKey, asyncio.Task[None]] = {}
        self._stuck: set[TaskKey] = set()
        """Tasks whose end the store will never take: nothing more is done about them in this life."""
        self._stopping = False
        self._count = 0
        self._changed = changed

    @property
    def tasks(self) -> list[TaskKey]:
        """What it works on."""
        return list(self._tasks)

    async def look(self) -> float | None:
        """Take what there is room for; return after how many seconds the next task comes due, if one is known of."""
        if not (self._queues and self._steps):
            return None
        # What a former life has left behind still uses what the limit is there to spare.
        limit = max(0, self._limit - len(self._tasks) - self._deck.executor.left(self._steps))
        known = frozenset(self._tasks) | self._stuck
        claim = await self._deck.store.claim_tasks(
            self._deck.worker, self._queues, self._steps, limit=limit, known=known
        )
        for key in claim.lost:
            self._let_go(key)
        for claimed in claim.tasks:
            self._launch(claimed)
        return self._next_look(claim)

    async def stop(self, grace_seconds: float, last_seconds: float) -> None:
        """Let attempts end, then cancel them and give their tasks back.

        Args:
            last_seconds: How long to wait for what was cancelled.
        """
        self._stopping = True
        tasks = list(self._tasks.values())
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=grace_seconds)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=last_seconds)
        await asyncio.gather(*self.cancel(), return_exceptions=True)

    def cancel(self) -> list[asyncio.Task[None]]:
        """Cancel everything and write nothing more; return what is not over yet."""
        tasks = list(self._tasks.values())
        self._stopping = False
        for task in tasks:
            task.cancel()
        return tasks

    def _next_look(self, claim: TaskClaim) -> float | None:
        if claim.next_due is None:
            return None
        return max(0.001, (claim.next_due - claim.now).total_seconds())

    def _let_go(self, key: TaskKey) -> None:
        self._stuck.discard(key)
        task = self._tasks.get(key)
        if task is not None:
            logger.info(
                "run %s: the task of %s is no longer ours; its attempt is cancelled",
                key.run,
                key.operation,
            )
            task.cancel()

    def _launch(self, claimed: ClaimedTask) -> None:
        key = claimed.row.key
        former = self._tasks.get(key)
        self._count += 1
        ours = _Ours(claimed, self._count)

        async def work() -> None:
            about.set(
                {
                    "worker": self._deck.worker,
                    "tenant": key.run.tenant,
                    "run": key.run.run_id,
                    "operation": key.operation,
                    "step": claimed.row.name,
                    "attempt": key.attempt,
                }
            )
            if former is not None:
                # It was replaced and taken again before the attempt that was under way had let go of everything.
                former.cancel()
                await asyncio.wait([former])
            await self._work(ours)

        task = asyncio.get_running_loop().create_task(
            work(), name=f"{key.run} {key.operation} task {key.attempt}"
        )
        self._tasks[key] = ours.work = task
        task.add_done_callback(lambda done: self._landed(key, done))

    def _landed(self, key: TaskKey, task: asyncio.Task[None]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._stuck.add(key)
            logger.error(
                "run %s: the task of %s broke inside Outlast",
                key.run,
                key.operation,
                exc_info=error,
            )
        self._changed()

    async def _work(self, ours: _Ours) -> None:
        row = ours.row
        if row.lapses >= POISON_LAPSES:
            logger.error(
                "run %s: %d workers in a row died while they had %s (%s); nobody makes another attempt until somebody says so",
                row.key.run,
                row.lapses,
                row.name,
                row.key.operation,
            )
            await self._finish(ours, outcome_of(row, "lost"))
            return
        step = self._deck.registry.steps[row.name]
        every = interval(step.options.heartbeat_timeout)
        pulse = Pulse(
            lambda progress: self._keep(ours, progress),
            every,
            self._deck.clock.monotonic,
            ours.claimed.progress,
        )
        logger.info(
            "run %s: attempt %d of %s (%s) begins here, from queue %s",
            row.key.run,
            row.key.attempt,
            row.name,
            row.key.operation,
            row.queue,
        )
        try:
            ending = await self._attempt(ours.claimed, step, pulse)
        except RunLost:
            return
        except asyncio.CancelledError:
            if self._stopping:
                if pulse.unkept:
                    await self._keep(ours, pulse.unkept)
                await self._finish(ours, None)
            raise
        except Exception as error:
            # A bug of ours must not keep the task hidden in a worker that does not work on it.
            logger.exception("run %s: %s broke inside Outlast", row.key.run, row.name)
            ending = Raised(capture(error))
        await self._finish(ours, _told(ours.claimed, step, ending, pulse.beats.latest))

    async def _attempt(self, claimed: ClaimedTask, step: Step[..., object], pulse: Pulse) -> Ending:
        key = claimed.row.key
        attempt = Attempt(
            tenant=key.run.tenant,
            run_id=key.run.run_id,
            operation=key.operation,
            name=step.name,
            number=key.attempt,
            generation=key.generation,
        )
        try:
            return await self._deck.executor.attempt(
                step, claimed.arguments, attempt, self._check_lease, beats=pulse.beats
            )
        finally:
            pulse.close()
            self._note_left(attempt)

    def _note_left(self, attempt: Attempt) -> None:
        body = self._deck.executor.left_of(attempt)
        if body is None:
            return
        logger.warning(
            "run %s: attempt %d of %s (%s) has ended, and its body goes on; until it returns it keeps one of the %d places for tasks; "
            "let it call outlast.heartbeat(), which tells it to stop",
            attempt.run_id,
            attempt.number,
            attempt.name,
            attempt.operation,
            self._limit,
        )
        body.add_done_callback(lambda _: self._changed())

    async def _keep(self, ours: _Ours, progress: bytes) -> None:
        """Write what the attempt has said of itself; one whose task is no longer ours is cancelled."""
        key = ours.row.key
        change = BeatTask(
            key.run, key.generation, key.operation, key.attempt, self._deck.worker, progress
        )
        try:
            verdict = await self._deck.writer.submit(change)
        except StoreUnavailableError:
            # The worker has stopped; what was said since the last write is lost.
            return
        if isinstance(verdict, Refused):
            logger.warning(
                "run %s: %s (%s): the store refuses the details of a beat: %s",
                key.run,
                ours.row.name,
                key.operation,
                verdict.part,
            )
        elif not isinstance(verdict, Applied) and self._tasks.get(key) is ours.work:
            self._let_go(key)

    def _check_lease(self) -> None:
        """Take the last look before the body begins: who fell silent meanwhile has the task no longer."""
        if not self._deck.lease.valid:
            raise RunLost

    async def _finish(self, ours: _Ours, outcome: TaskOutcome | None) -> None:
        """Write how the attempt ended, or give the task back."""
        key, worker = ours.row.key, self._deck.worker
        message = None if outcome is None else message_of(outcome, worker, ours.number)
        change = FinishTask(key.run, key.generation, key.operation, key.attempt, worker, message)
        try:
            verdict = await self._deck.writer.submit(change)
        except StoreUnavailableError as error:
            # The worker has stopped; the end of its life gives the task back.
            logger.warning("run %s: the end of a task could not be written: %s", key.run, error)
            return
        if isinstance(verdict, Refused):
            await self._refused(ours, outcome, verdict)
        elif isinstance(verdict, Applied):
            logger.info(
                "run %s: attempt %d of %s (%s): %s",
                key.run,
                key.attempt,
                ours.row.name,
                key.operation,
                "given back" if outcome is None else outcome.outcome.replace("_", " "),
            )
        else:
            logger.warning(
                "run %s: attempt %d of %s (%s) ended after its task was taken away (%s); what it came to is dropped",
                key.run,
                key.attempt,
                ours.row.name,
                key.operation,
                getattr(verdict, "why", verdict),
            )

    async def _refused(self, ours: _Ours, outcome: TaskOutcome | None, refused: Refused) -> None:
        """Say instead that the store will not have what was said."""
        key = ours.row.key
        why = (
            f"the store refuses what the attempt came to: {refused.reason} {refused.part}".rstrip()
        )
        logger.error("run %s: %s (%s): %s", key.run, ours.row.name, key.operation, why)
        if outcome is None or outcome.outcome == "failed":
            self._stuck.add(key)
            return
        failure = Failure(type="RuntimeError", message=why)
        await self._finish(ours, outcome_of(ours.row, "failed", failure=failure, hopeless=True))


def _told(
    claimed: ClaimedTask, step: Step[..., object], ending: Ending, progress: bytes
) -> TaskOutcome:
    """Return what is said of an attempt that has ended.

    Args:
        progress: JSON of the details of its last beat.
    """
    if isinstance(ending, Returned):
        return outcome_of(claimed.row, "completed", value=ending.value)
    if isinstance(ending, LeftOpen):
        return outcome_of(claimed.row, "handed_out", progress=progress)
    raised = timed_out(ending, step) if isinstance(ending, TimedOut) else ending
    hopeless = raised.hopeless and not _is_of_another_build(raised, claimed, step)
    return outcome_of(
        claimed.row, "failed", failure=raised.failure, hopeless=hopeless, progress=progress
    )


def _is_of_another_build(raised: Raised, claimed: ClaimedTask, step: Step[..., object]) -> bool:
    """Whether the attempt failed because the arguments, which other code has written, do not fit this code."""
    try:
        step.arguments.decode(claimed.arguments)
    except DecodeError:
        return not raised.returned
    return False
