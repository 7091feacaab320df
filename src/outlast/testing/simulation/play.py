"""Plays a scenario to its end, and says whether everything held."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import msgspec

from outlast.errors import OutlastError
from outlast.journal.entry import (
    ApprovalRequested,
    Completed,
    EffectCompleted,
    EffectFailed,
    EffectIntended,
    EffectRefused,
    Entry,
    Started,
    from_row,
)
from outlast.store.change import RunKey, Status
from outlast.testing.fault import Faults
from outlast.testing.loop import SimulationStuckError
from outlast.testing.replay import replay_run
from outlast.testing.simulation.disturb import Disturber
from outlast.testing.simulation.invariant import InvariantViolatedError
from outlast.testing.simulation.kit import KIT, stage
from outlast.testing.simulation.people import People, purpose_of
from outlast.testing.simulation.scenario import Plan, Scenario
from outlast.testing.simulation.shape import Act, Ask, Expect, Twin, fits, nodes
from outlast.testing.simulation.system import Simulation
from outlast.testing.simulation.world import World
from outlast.worker.worker import WorkerOptions
from outlast.workflows.registry import Registry

_LONGEST = timedelta(hours=1)
_QUIET_SECONDS = 15.0
"""After the last run has ended: whoever was stopped then must do no harm either."""


class Played(msgspec.Struct, frozen=True):
    """What came of a scenario.

    Args:
        violation: What did not hold, if anything.
        trace: What was asked of the store, by whom and when.
    """

    violation: InvariantViolatedError | None
    trace: list[str]


def play(scenario: Scenario) -> Played:
    """Play a scenario. The same one gives the same trace, to the letter."""
    sim = Simulation(
        KIT,
        seed=scenario.seed,
        options=WorkerOptions(
            library="simulated",
            lease=timedelta(seconds=scenario.lease),
            idle=timedelta(seconds=scenario.idle),
            runs=scenario.runs,
        ),
        faults=scenario.faults,
        thread_delay=scenario.thread_delay,
        longest=_LONGEST,
    )
    stage.world = World(
        scenario.fates,
        sim.source("world"),
        lambda invariant, what: sim.invariants.check(False, invariant, what),
    )
    with _without_collector(), _bugs_seen(sim):
        try:
            sim.run(lambda sim: _through(sim, scenario, stage.world))
        except InvariantViolatedError as error:
            return Played(error, sim.trace)
        except SimulationStuckError as error:
            stuck = InvariantViolatedError(2, f"it does not come to an end: {error.message}")
            return Played(stuck, sim.trace)
    return Played(None, sim.trace)


async def _through(sim: Simulation, scenario: Scenario, world: World) -> None:
    people = People(sim, scenario, world)
    disturber = Disturber(sim, scenario)
    for _ in range(scenario.workers):
        await disturber.replace()
    sim.outside.faults = scenario.faults
    people.begin()
    await disturber.disturb()
    await _calm_down(sim)
    await people.done()
    for number in range(len(scenario.plans)):
        await sim.closed(f"run{number}")
    await people.end()
    await asyncio.sleep(_QUIET_SECONDS)
    for number, plan in enumerate(scenario.plans):
        await _Audit(sim, scenario, world, RunKey("default", f"run{number}"), plan).check()


async def _calm_down(sim: Simulation) -> None:
    """Nothing is disturbed any more: whatever was begun must now come to its end."""
    for one in sim.workers:
        one.store.faults = Faults()
        one.thaw()
    sim.outside.faults = Faults()
    await sim.start_worker("last", faults=Faults())


class _Audit:
    """Looks at what is left of one run."""

    def __init__(
        self, sim: Simulation, scenario: Scenario, world: World, run: RunKey, plan: Plan
    ) -> None:
        self._sim = sim
        self._scenario = scenario
        self._world = world
        self._run = run
        self._plan = plan
        self._entries: list[Entry] = []

    async def check(self) -> None:
        head = await self._sim.store.head(self._run)
        assert head is not None
        rows = await self._sim.store.journal(self._run)
        self._entries = [from_row(one.row) for one in rows]
        await self._check_replay()
        self._check_effects()
        self._check_grants()
        allowed = {Status.COMPLETED}
        if self._plan.cancel is not None:
            allowed.add(Status.CANCELLED)
        if self._plan.terminate is not None:
            allowed.add(Status.TERMINATED)
        self._holds(head.status in allowed, 2, f"the run is {head.status}")
        last = self._entries[-1]
        if isinstance(last, Completed):
            self._check_result(last)

    def _holds(self, holds: object, invariant: int, what: str) -> None:
        self._sim.invariants.check(holds, invariant, what, run=self._run)

    async def _check_replay(self) -> None:
        try:
            end = await replay_run(self._sim.store, Registry(KIT), self._sim.clock, self._run)
        except OutlastError as error:
            self._holds(False, 2, f"the journal does not replay: {error}")
            return
        if end is not None:
            self._holds(end == self._entries[-1], 2, "the replay ends otherwise")

    def _check_result(self, end: Completed) -> None:
        value = msgspec.json.decode(msgspec.json.decode(end.value, type=str))
        started = self._entries[0]
        assert isinstance(started, Started)
        arguments = msgspec.json.decode(started.arguments, type=dict[str, str])
        heard: dict[int, list[int]] = {}
        for one in self._plan.sendings:
            heard.setdefault(one.signal, []).append(one.value)
        expect = Expect(heard, self._plan.deciding.answer, self._scenario.fates.declined > 0)
        right = fits(self._plan.shape, value, f"{arguments['purpose']}/0", expect)
        self._holds(right, 2, f"the result is wrong: {value}")

    def _check_effects(self) -> None:
        """What is recorded as done was done once; what is recorded as not done was not done."""
        purposes: dict[str, str] = {}
        for entry in self._entries:
            match entry:
                case EffectIntended():
                    purposes[entry.operation] = purpose_of(entry)
                case EffectCompleted(operation):
                    times = len(self._world.changes.get(purposes[operation], ()))
                    self._holds(
                        times == 1, 3, f"{purposes[operation]} is recorded, done {times} times"
                    )
                case EffectFailed(operation):
                    done = purposes[operation] in self._world.changes
                    self._holds(not done, 3, f"{purposes[operation]} failed, and was done")
                case EffectRefused(operation):
                    self._holds(operation not in purposes, 6, "refused after its intent")
                case _:
                    pass

    def _check_grants(self) -> None:
        """An effect that needs a grant has the one that was asked for it."""
        subjects: dict[str, Any] = {}
        asked = {path for path, node in nodes(self._plan.shape) if isinstance(node, Ask)}
        free = {path for path, node in nodes(self._plan.shape) if isinstance(node, Act | Twin)}
        for entry in self._entries:
            if isinstance(entry, ApprovalRequested):
                subjects[entry.approval_id] = msgspec.json.decode(entry.subject)["subject"]["path"]
            if not isinstance(entry, EffectIntended):
                continue
            purpose = purpose_of(entry)
            path = purpose.rpartition("/")[2].partition("+")[0]
            if path in asked:
                granted = entry.grant is not None and subjects[entry.grant.approval_id]
                self._holds(granted == purpose.partition("+")[0], 6, f"{purpose} was not granted")
            else:
                self._holds(path in free, 6, f"{purpose} was never called")


@contextmanager
def _without_collector() -> Generator[None]:
    """Keep the garbage collector from closing what a dead process has left, at a moment of its own choosing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _BugHandler(logging.Handler):
    def __init__(self, sim: Simulation) -> None:
        super().__init__(logging.ERROR)
        self._sim = sim

    def emit(self, record: logging.LogRecord) -> None:
        broken = record.exc_info is not None or "internal error" in record.getMessage()
        self._sim.invariants.check(not broken, 0, f"something broke inside: {record.getMessage()}")


@contextmanager
def _bugs_seen(sim: Simulation) -> Generator[None]:
    """Count what the code under test caught of its own mistakes as violations."""
    logger = logging.getLogger("outlast")
    handler = _BugHandler(sim)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
