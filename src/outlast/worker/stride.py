"""The common way of a run: a step returns, that is written, and the workflow goes on to its next steps.

All of it happens in plain callbacks while the pilot waits: no task is woken, and no coroutine of ours runs around the body. So runs
of such steps take about half the CPU (measured on SQLite, 300 at once: 0.51 ms a step instead of 0.96). Whatever is not that common (a step that fails, waits or beats, a message, a timer, a
pause, another mode than `sync`, the end) is left to the pilot, as it would have met it.

Law: pilot and stride never write at the same time. A stride begins only while the pilot waits, and the pilot goes on only when what is
under way has landed.

| the process dies | and then |
| --- | --- |
| before a change has come to the store | its steps are attempted again |
| after that | replay returns their outcomes |
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from functools import partial
from typing import Any, Protocol

from msgspec import Raw

from outlast.errors import DecodeError
from outlast.journal.entry import Entry, StampedRow, StepCompleted
from outlast.replay.command import Command, RunStep
from outlast.store.change import Refused, RunChange, Verdict
from outlast.worker.bridge import Bridge, RunLost
from outlast.worker.crew import Crew
from outlast.worker.executor import Returned
from outlast.worker.hold import HeldBack
from outlast.worker.proposal import Proposal, Rank
from outlast.worker.pulse import LONGEST, Pulse
from outlast.worker.scribe import Scribe
from outlast.worker.series import Series
from outlast.worker.step import Made, run_step
from outlast.worker.writer import Flight, Writer
from outlast.workflows.attempt import Attempt
from outlast.workflows.definition import Step

_TOGETHER = 50
"""So many outcomes are delivered in one callback at most, so that what the workflow makes of them does not stop every other run for long."""


class Ground(Bridge, Protocol):
    """The pilot, as a stride sees it."""

    @property
    def is_waiting(self) -> bool:
        """Whether the pilot waits, has nothing to write, and would do nothing else with the outcome of a step than to write it."""
        ...

    def wake(self) -> None:
        """Let the pilot look at its run."""
        ...

    def step_of(self, command: RunStep) -> Step[..., Any] | None:
        """Return the step that is to be attempted, or None where the pilot has to look at it."""
        ...

    def turn(self, entries: list[tuple[Entry, StampedRow]]) -> list[Command]:
        """Deliver entries to the machine, from a plain callback; return what the workflow asks for then."""
        ...

    def refused(self, proposals: list[Proposal], refused: Refused) -> None:
        """Take back what the store has refused."""
        ...

    def hand_over(self, commands: list[Command], error: BaseException | None = None) -> None:
        """Leave commands to the pilot, or an error that ends its flight."""
        ...


class Stride:
    """The common way of one run.

    Args:
        ground: The run's pilot.
    """

    def __init__(self, ground: Ground, crew: Crew, scribe: Scribe, writer: Writer) -> None:
        self._ground = ground
        self._crew = crew
        self._scribe = scribe
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._context: contextvars.Context
        self._outcomes: list[Proposal] = []
        self._flight: Flight | None = None
        """What is being written."""
        self._landed: asyncio.Future[None] | None = None
        self._is_over = False

    # What the pilot asks

    def enter(self) -> None:
        """Be what the task that calls this is: bodies see its context, and so do the lines of the log."""
        self._context = contextvars.copy_context()

    def begin(self, command: RunStep, step: Step[..., Any]) -> bool:
        """Begin the first attempt of a step; False where the pilot has to."""
        operation = command.operation
        if not step.is_simple or self._ground.row(operation) is not None:
            return False
        attempt = self._ground.attempt(operation, step.name, 1, "")
        made = _Attempt(self._ground, command, step, attempt)
        check = partial(self._ground.hold.check, operation)
        try:
            check()
            body = self._ground.executor.start(
                step, command.arguments, attempt, made.pulse.beats, check, self._context.copy()
            )
        except (HeldBack, DecodeError):
            return False
        self._crew.enter(operation, body, partial(made.see_off, body))
        body.add_done_callback(partial(self._ended, made), context=self._context.copy())
        return True

    async def landed(self) -> list[Proposal]:
        """Return, when nothing is being written, what is still to be."""
        if self._flight is not None:
            self._landed = self._loop.create_future()
            await self._landed
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def leave(self) -> None:
        """Do nothing more. What is being written need not be: the pilot leaves in the middle of it only when it is cancelled."""
        self._is_over = True
        if self._flight is not None:
            self._flight.is_wanted = False

    # On the way

    def _ended(self, made: _Attempt, body: asyncio.Task[Any]) -> None:
        """A body has ended, in whatever way."""
        if not self._crew.left(made.command.operation, body):
            return
        try:
            self._take(made, body)
        except (RunLost, Exception) as error:  # noqa: BLE001 - the pilot's: nobody else waits for a callback
            self._ground.hand_over([], error)

    def _take(self, made: _Attempt, body: asyncio.Task[Any]) -> None:
        ground, command = self._ground, made.command
        try:
            ending = ground.executor.ended(body, made.step, made.attempt)
        except HeldBack:
            self._crew.begin(command.operation, run_step(ground, command, made.step))
            return
        if not isinstance(ending, Returned) or made.pulse.was_felt:
            # What it has said last may be on its way: that goes first.
            taken = Made(made.pulse, ending, made.series)
            work = run_step(ground, command, made.step, taken)
            self._crew.begin(command.operation, work, made.close)
            return
        made.pulse.close()
        entry = StepCompleted(command.operation, made.step.name, Raw(ending.value))
        proposal = Proposal(Rank.OUTCOME, entry, guard=command.operation)
        if not (ground.is_waiting or self._flight or self._outcomes):
            ground.post(proposal)
            return
        if not (self._outcomes or self._flight):
            # What returns in the same moment is written together.
            self._loop.call_soon(self._take_off, context=self._context)
        self._outcomes.append(proposal)

    def _take_off(self) -> None:
        """Have written what has returned."""
        if self._is_over or self._flight is not None or not self._outcomes:
            return
        if not self._ground.is_waiting:
            self._ground.wake()
            return
        first, self._outcomes = self._outcomes[:_TOGETHER], self._outcomes[_TOGETHER:]
        flying = [one for one in first if self._ground.is_open(one.guard)]
        if not flying:
            # All of it was given up meanwhile: what is left the pilot takes.
            self._ground.wake()
            return
        try:
            change = self._scribe.change_of_outcomes(flying)
            self._flight = self._writer.send(change, partial(self._tell, flying, change))
        except Exception as error:  # noqa: BLE001 - the pilot's, as if it had written this
            self._ground.hand_over([], error)

    def _tell(
        self, flying: list[Proposal], change: RunChange, verdict: Verdict | Exception
    ) -> None:
        context = self._context.copy()
        self._loop.call_soon(self._land, flying, change, verdict, context=context)

    def _land(
        self, flying: list[Proposal], change: RunChange, verdict: Verdict | Exception
    ) -> None:
        """Let the workflow go on with what is written now."""
        self._flight = None
        try:
            if not self._is_over:
                self._go_on(flying, change, verdict)
        except (RunLost, Exception) as error:  # noqa: BLE001 - the pilot's, as if it had delivered this
            self._ground.hand_over([], error)
        finally:
            if self._landed is not None and not self._landed.done():
                self._landed.set_result(None)
            if self._outcomes:
                # Not at once: between two of these the event loop turns.
                self._loop.call_soon(self._take_off, context=self._context)

    def _go_on(
        self, flying: list[Proposal], change: RunChange, verdict: Verdict | Exception
    ) -> None:
        ground = self._ground
        if isinstance(verdict, Exception):
            raise verdict
        if isinstance(verdict, Refused):
            ground.refused(flying, verdict)
            ground.wake()
            return
        commands = ground.turn(self._scribe.written(flying, change, verdict))
        if not ground.is_waiting or not all(isinstance(one, RunStep) for one in commands):
            ground.hand_over(commands)
            return
        left = [one for one in commands if isinstance(one, RunStep) and not self._begun(one)]
        if left or not (self._crew.attempting or self._outcomes):
            ground.hand_over(list[Command](left))

    def _begun(self, command: RunStep) -> bool:
        step = self._ground.step_of(command)
        return step is not None and self.begin(command, step)


class _Attempt:
    """The first attempt of a step."""

    __slots__ = ("attempt", "command", "ground", "pulse", "series", "step")

    def __init__(
        self, ground: Ground, command: RunStep, step: Step[..., Any], attempt: Attempt
    ) -> None:
        self.ground = ground
        self.command = command
        self.step = step
        self.attempt = attempt
        self.series: Series | None = None
        self.pulse = Pulse(self._carry, LONGEST, ground.clock.monotonic, b"")

    async def _carry(self, progress: bytes) -> None:
        await self._series().carry(progress)

    def _series(self) -> Series:
        if self.series is None:
            self.series = Series(
                self.ground, self.command.operation, self.step, failures=0, deadline=None
            )
        return self.series

    def see_off(self, body: asyncio.Task[Any], settled: bool) -> Coroutine[Any, Any, None]:
        """Cancel the body, for which nobody waits any more; return the wait for its end."""
        executor, beats = self.ground.executor, self.pulse.beats
        return self._keep(executor.see_off(body, self.attempt, beats, settled=settled))

    async def _keep(self, ending: Coroutine[Any, Any, None]) -> None:
        try:
            await ending
        finally:
            self.close()

    def close(self) -> None:
        """Keep what the body has said of itself by its end."""
        self.pulse.close()
        if self.pulse.unkept:
            self._series().post(self.pulse.unkept)
