"""Crash points, enumerated: the workers' commits of a workload are counted, then the process is killed before and after each.

Invariant that the trials are for: whatever the point, a restarted worker reaches the undisturbed result, no recorded outcome
happens again, and the outside world was changed exactly as often as without a crash.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from outlast.store.change import RunHead
from outlast.testing.receiver import Receiver
from outlast.testing.simulation import SimulatedWorker, Simulation
from outlast.worker.worker import WorkerOptions
from outlast.workflows.definition import Definition

MOMENTS = ("before", "after")
_OPTIONS = WorkerOptions(library="simulated", idle=timedelta(milliseconds=200))


@dataclass(frozen=True, slots=True)
class Workload:
    """A run, and what its outside does.

    Args:
        definitions: What workers register.
        begin: Starts the run from outside, and is told of the simulation; starting again must attach.
        meanwhile: Sends and decides, from outside, until the run has what it needs.
        run_id: Of the run.
        receiver: What its effects change.
        bodies: Counts how often each body ran, where the bodies count.
    """

    definitions: Iterable[Definition[..., Any]]
    begin: Callable[[Simulation], Awaitable[Any]]
    meanwhile: Callable[[Simulation], Awaitable[Any]] | None = None
    run_id: str = "run"
    receiver: Receiver = field(default_factory=Receiver)
    bodies: Counter[str] = field(default_factory=Counter[str])


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """Where the process is killed: `before` or `after` the commit of that number, counted from 1."""

    moment: str
    commit: int


@dataclass(frozen=True, slots=True)
class Trial:
    """How a workload went.

    Args:
        head: The run's row at the end.
        end: The last entry's body.
        kinds: Kind and operation of every entry, in order.
        changes: How often the world was changed under each key.
        bodies: How often each body ran.
        commits: Commits of the first worker.
    """

    head: RunHead
    end: bytes
    kinds: tuple[tuple[str, str], ...]
    changes: Counter[str]
    bodies: Counter[str]
    commits: int


def undisturbed(workload: Workload, *, seed: int = 0) -> Trial:
    """Run the workload to its end without a crash."""
    return _trial(workload, None, seed)


def crashed(workload: Workload, point: CrashPoint, *, seed: int = 0) -> Trial:
    """Kill the worker at `point`, start another one, and run the workload to its end."""
    return _trial(workload, point, seed)


def every_crash(workload: Workload, *, seed: int = 0) -> Iterator[tuple[CrashPoint, Trial]]:
    """Count the commits, then try a crash before and after each of them."""
    commits = undisturbed(workload, seed=seed).commits
    for commit in range(1, commits + 1):
        for moment in MOMENTS:
            point = CrashPoint(moment, commit)
            yield point, crashed(workload, point, seed=seed)


def _trial(workload: Workload, point: CrashPoint | None, seed: int) -> Trial:
    workload.receiver.forget()
    workload.bodies.clear()
    simulation = Simulation(workload.definitions, seed=seed, options=_OPTIONS)

    async def scenario(simulation: Simulation) -> Trial:
        first = await simulation.start_worker("first")
        if point is not None:
            _arm(first, point)
        await workload.begin(simulation)
        if workload.meanwhile is not None:
            simulation.spawn(workload.meanwhile(simulation))
        head = await _see_to_the_end(simulation, workload, first)
        rows = await simulation.store.journal(head.run)
        return Trial(
            head=head,
            end=rows[-1].row.body,
            kinds=tuple((one.row.kind, one.row.operation) for one in rows),
            changes=Counter(workload.receiver.changes),
            bodies=Counter(workload.bodies),
            commits=first.store.commits,
        )

    return simulation.run(scenario)


def _arm(worker: SimulatedWorker, point: CrashPoint) -> None:
    def at_commit(moment: str, number: int) -> None:
        if (moment, number) == (point.moment, point.commit):
            worker.kill()

    worker.store.at_commit = at_commit


async def _see_to_the_end(
    simulation: Simulation, workload: Workload, first: SimulatedWorker
) -> RunHead:
    """Wait for the end, or for what only an operator can end; a killed worker is replaced."""

    def over(head: RunHead) -> bool:
        return head.status.closed or head.reason == "in doubt" or first.process.dead

    head = await simulation.until(workload.run_id, over)
    if first.process.dead and not head.status.closed:
        await simulation.start_worker("second")
        head = await simulation.until(
            workload.run_id, lambda head: head.status.closed or head.reason == "in doubt"
        )
    return head
