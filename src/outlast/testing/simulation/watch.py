"""Where a simulation sees what really happens: at the store itself, below every fault, and where each body begins."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from outlast.store.change import Change, RunKey, Verdict, WorkerId, WorkerRow
from outlast.store.condition import place_of
from outlast.store.memory import MemoryStore
from outlast.store.protocol import Claim, RunImage
from outlast.store.task import TaskClaim, TaskKey
from outlast.testing.clock import SimulatedClock
from outlast.testing.loop import current_process, halt_if_stopped
from outlast.testing.simulation.invariant import Invariants
from outlast.workflows.attempt import current_attempt
from outlast.workflows.definition import Definition, Effect, Step
from outlast.workflows.heartbeat import current_beats

D = TypeVar("D", bound=Definition[..., Any])


class WatchedStore(MemoryStore):
    """A memory store that tells what it was asked and what it answered, at that moment.

    Args:
        invariants: Told.
    """

    def __init__(self, clock: SimulatedClock, invariants: Invariants) -> None:
        super().__init__(clock)
        self._invariants = invariants

    async def commit(self, changes: Sequence[Change]) -> list[Verdict]:
        """Write, and tell; in the order in which the store judges."""
        verdicts = await super().commit(changes)
        judged = sorted(zip(changes, verdicts, strict=True), key=lambda judged: place_of(judged[0]))
        self._invariants.committed(judged, self.now())
        return verdicts

    async def register(self, row: WorkerRow) -> None:
        """Announce a worker, and tell."""
        await super().register(row)
        self._invariants.registered(row)

    def renew(self, worker: WorkerId) -> bool:
        """Renew, and tell."""
        held = super().renew(worker)
        if held:
            self._invariants.renewed(worker)
        return held

    async def retire(self, worker: WorkerId) -> None:
        """Forget a worker, and tell."""
        await super().retire(worker)
        self._invariants.retired(worker)

    async def begin_timeline(self, why: str) -> str:
        """Say that the store was put back, and tell."""
        begun = await super().begin_timeline(why)
        self._invariants.put_back()
        return begun

    async def load(self, run: RunKey) -> RunImage | None:
        """Return everything about a run, and tell."""
        self._invariants.loaded(run)
        return await super().load(run)

    async def claim(
        self, worker: WorkerId, workflows: frozenset[str], limit: int, *, released: bool = False
    ) -> Claim:
        """Take runs, and tell."""
        claim = await super().claim(worker, workflows, limit, released=released)
        self._invariants.claimed(worker, claim)
        return claim

    async def claim_tasks(
        self,
        worker: WorkerId,
        queues: frozenset[str],
        steps: frozenset[str],
        *,
        limit: int,
        known: frozenset[TaskKey] = frozenset(),
    ) -> TaskClaim:
        """Take tasks, and tell."""
        claim = await super().claim_tasks(worker, queues, steps, limit=limit, known=known)
        self._invariants.tasks.claimed(worker, claim)
        return claim


def process_name() -> str:
    """Return the name of the simulated process that runs now."""
    process = current_process.get()
    if process is None:
        return "outside"
    return (process.parent or process).name


def watched(definition: D, invariants: Invariants) -> D:
    """Return a step or effect that tells when its body begins; anything else as it is."""
    if not isinstance(definition, Step | Effect):
        return definition
    if isinstance(definition, Effect) and not definition.rules.idempotent:
        timeout = definition.options.start_to_close_timeout
        if timeout is not None:
            limit = timeout + definition.rules.settle
            invariants.bodies.quiet[definition.name] = limit.total_seconds()
        invariants.bodies.proofs[definition.name] = definition.rules.not_applied
    if isinstance(definition, Step) and definition.placement.queue:
        within = definition.placement.schedule_to_start_timeout
        seconds = float("inf") if within is None else within.total_seconds()
        invariants.tasks.remote[definition.name] = seconds
    seen = copy.copy(definition)
    seen.function = _telling(definition.function, definition.kind, invariants)
    return seen


def _telling(function: Callable[..., Any], kind: str, invariants: Invariants) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def begin_async(*args: Any, **kwargs: Any) -> Any:
            with invariants.bodies.running(
                current_attempt.get(), kind, process_name(), current_beats.get()
            ):
                process = current_process.get()
                if process is not None and process.dead:
                    await halt_if_stopped()
                return await function(*args, **kwargs)

        return begin_async

    @functools.wraps(function)
    def begin(*args: Any, **kwargs: Any) -> Any:
        with invariants.bodies.running(
            current_attempt.get(), kind, process_name(), current_beats.get()
        ):
            return function(*args, **kwargs)

    return begin
