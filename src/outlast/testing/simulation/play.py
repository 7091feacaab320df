"""Plays a scenario to its end, and says whether everything held."""

from __future__ import annotations

import asyncio
import gc
import logging
import warnings
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import msgspec

from outlast.client import RunHandle
from outlast.errors import OutlastError, RunHeldWarning
from outlast.journal.entry import (
    ApprovalRequested,
    CancelRequested,
    Completed,
    ContinuedAsNew,
    EffectCompleted,
    EffectFailed,
    EffectIntended,
    EffectRefused,
    Entry,
    Failed,
    Published,
    RunTimedOut,
    Started,
    Taken,
    from_row,
)
from outlast.journal.failure import Failure
from outlast.journal.prefix import began_at
from outlast.replay.delivery import Delivery
from outlast.replay.machine import Machine
from outlast.store.change import RunKey, Status
from outlast.testing.fault import Faults
from outlast.testing.loop import SimulationStuckError
from outlast.testing.simulation.disturb import Disturber
from outlast.testing.simulation.forked import Forks
from outlast.testing.simulation.invariant import InvariantViolatedError
from outlast.testing.simulation.kit import (
    KIT,
    PINNED,
    QUEUE,
    STAGE,
    TOLD,
    kit_of,
    stage,
    workflow_of,
)
from outlast.testing.simulation.people import FORK, People, purpose_of
from outlast.testing.simulation.scenario import Plan, Scenario, Sending
from outlast.testing.simulation.shape import (
    Act,
    Ask,
    Draw,
    Expect,
    Hear,
    Limit,
    Often,
    Several,
    Shape,
    Stray,
    Twin,
    fits,
    nodes,
)
from outlast.testing.simulation.system import Simulation
from outlast.testing.simulation.watch import process_name
from outlast.testing.simulation.world import World
from outlast.testing.simulation.written import OUTCOMES
from outlast.worker.options import WorkerOptions

_LONGEST = timedelta(hours=1)
_LOST_CHILD = "outlast.errors.RunCancelledError"
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
            queues=(QUEUE,),
        ),
        faults=scenario.faults,
        thread_delay=scenario.thread_delay,
        longest=_LONGEST,
    )
    sim.invariants.written.knows_keys = True
    stage.world = World(
        scenario.fates,
        sim.source("world"),
        lambda invariant, what: sim.invariants.check(False, invariant, what),
        Forks(sim.invariants.runs),
    )
    stage.world.keep_thread = lambda seconds: _keep_thread(sim, seconds)
    with _without_collector(), _bugs_seen(sim), _nobody_told():
        try:
            sim.run(lambda sim: _through(sim, scenario, stage.world))
        except InvariantViolatedError as error:
            return Played(error, sim.trace)
        except SimulationStuckError as error:
            stuck = InvariantViolatedError(2, f"it does not come to an end: {error.message}")
            return Played(stuck, sim.trace)
    return Played(None, sim.trace)


@contextmanager
def _nobody_told() -> Generator[None]:
    """Say nothing of runs that are held while somebody waits for them: here that is the rule."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RunHeldWarning)
        yield


def _keep_thread(sim: Simulation, seconds: float) -> None:
    """Let the thread that runs now return later; what it does it has done."""
    name = process_name()
    (worker,) = (one for one in sim.workers if one.process.name == name)
    worker.threads.busy(seconds)
    sim.invariants.bodies.keep_thread(name, seconds)


async def _through(sim: Simulation, scenario: Scenario, world: World) -> None:
    people = People(sim, scenario, world)
    disturber = Disturber(sim, scenario)
    for _ in range(scenario.workers):
        await disturber.replace()
    sim.outside.faults = scenario.faults
    people.begin()
    await disturber.disturb()
    await _calm_down(sim, scenario)
    await people.done()
    for number in range(len(scenario.plans)):
        await sim.closed(f"run{number}")
    for run in [*sim.invariants.runs]:
        await sim.closed(run.run_id)
    await people.end()
    await asyncio.sleep(_QUIET_SECONDS)
    plans = {f"run{number}": plan for number, plan in enumerate(scenario.plans)}
    for run in sim.invariants.runs:
        await _Audit(sim, scenario, world, run, plans).check()


async def _calm_down(sim: Simulation, scenario: Scenario) -> None:
    """Nothing is disturbed any more: whatever was begun must now come to its end."""
    for one in sim.workers:
        one.store.faults = Faults()
        one.thaw()
    sim.outside.faults = Faults()
    last = scenario.builds - 1
    await sim.start_worker("last", definitions=kit_of(last), faults=Faults())
    for build in range(last if scenario.recalled else 0):
        await sim.start_worker(f"last{build}", definitions=kit_of(build), faults=Faults())


class _Audit:
    """Looks at what is left of one run.

    Args:
        plans: Of the runs that people started; the others are of children and forks.
    """

    def __init__(
        self, sim: Simulation, scenario: Scenario, world: World, run: RunKey, plans: dict[str, Plan]
    ) -> None:
        plan = plans.get(run.run_id)
        self._plans = plans
        self._sim = sim
        self._scenario = scenario
        self._world = world
        self._run = run
        self._is_planned = plan is not None
        self._is_fork = FORK in run.run_id
        self._plan = plan or Plan(Draw())
        self._journal: list[tuple[Entry, datetime]] = []
        self._entries: list[Entry] = []
        self._former: list[str] | None = None
        """What the generation before has published last."""

    async def check(self) -> None:
        head = await self._sim.store.head(self._run)
        assert head is not None
        for generation in range(head.incarnation, head.generation + 1):
            rows = await self._sim.store.journal(self._run, generation=generation)
            self._journal = [(from_row(one.row), one.at) for one in rows]
            self._entries = [entry for entry, _ in self._journal]
            await self._check_replay(generation)
            self._check_effects()
            if self._is_fork:
                continue
            if not self._is_planned:
                self._plan = _plan_of(self._entries[0])
            self._check_grants()
            self._check_carried()
        await self._check_approvals()
        if self._is_fork:
            self._check_fork()
            return
        self._check_cancel()
        await self._check_published()
        self._check_timeout()
        allowed = {Status.COMPLETED}
        if self._plan.cancel is not None:
            allowed.add(Status.CANCELLED)
        if self._plan.terminate is not None:
            allowed.add(Status.TERMINATED)
        if any(isinstance(one, RunTimedOut) for one in self._entries) or self._has_lost_child():
            allowed.add(Status.FAILED)
        if not self._is_planned:
            allowed |= {Status.CANCELLED, Status.TERMINATED}
        self._holds(head.status in allowed, 2, f"the run is {head.status}")
        last = self._entries[-1]
        if isinstance(last, Completed):
            self._check_result(last)

    def _holds(self, holds: object, invariant: int, what: str) -> None:
        self._sim.invariants.check(holds, invariant, what, run=self._run)

    async def _check_replay(self, generation: int) -> None:
        """The code, given the journal alone, comes to what is recorded: also to the same value."""
        started = self._entries[0]
        machine = Machine(
            workflow_of(pinned=isinstance(started, Started) and started.name == PINNED.name),
            tenant=self._run.tenant,
            run_id=self._run.run_id,
            generation=generation,
        )
        delivery = Delivery(machine, self._sim.clock)
        rows = await self._sim.store.journal(self._run, generation=generation)
        try:
            await delivery.deliver([(from_row(one.row), one) for one in rows])
        except OutlastError as error:
            self._holds(False, 2, f"the journal does not replay: {error}")
            return
        finally:
            await delivery.evict()
        last, outcome = self._entries[-1], machine.outcome
        if isinstance(last, Completed):
            value = bytes(outcome.value) if isinstance(outcome, Completed) else outcome
            right = bytes(last.value)
            self._holds(value == right, 2, f"the replay ends otherwise: {value}, not {right}")
        elif isinstance(last, ContinuedAsNew):
            self._holds(outcome == last, 2, f"the replay goes on otherwise: {outcome}, not {last}")

    def _check_result(self, end: Completed) -> None:
        value = msgspec.json.decode(msgspec.json.decode(end.value, type=str))
        started = self._entries[0]
        assert isinstance(started, Started)
        arguments = msgspec.json.decode(started.arguments, type=dict[str, str])
        heard: dict[int, list[int]] = {}
        for one in self._plan.sendings:
            heard.setdefault(one.signal, []).append(one.value)
        expect = Expect(
            heard,
            self._plan.deciding.answer,
            self._scenario.fates.declined > 0,
            self._jumps,
        )
        right = fits(self._plan.shape, value, f"{arguments['purpose']}/0", expect)
        self._holds(right, 2, f"the result is wrong: {value}")

    def _check_effects(self) -> None:
        """What is recorded as done was done once, by this run or by one that shares its keys; what is not was not done by it."""
        purposes: dict[str, str] = {}
        recorded: Counter[str] = Counter()
        failed: set[str] = set()
        unsettled: dict[str, str] = {}
        for entry in self._entries:
            match entry:
                case EffectIntended():
                    purposes[entry.operation] = unsettled[entry.operation] = purpose_of(entry)
                case EffectCompleted(operation, source="fork") | EffectFailed(
                    operation, source="fork"
                ):
                    unsettled.pop(operation, None)
                case EffectCompleted(operation):
                    recorded[unsettled.pop(operation)] += 1
                case EffectFailed(operation):
                    failed.add(unsettled.pop(operation))
                case EffectRefused(operation):
                    self._holds(operation not in purposes, 6, "refused after its intent")
                case _:
                    pass
        for purpose in recorded.keys() | failed:
            done = self._world.changes.get(purpose, ())
            times, own = len(done), sum(one.run_id == self._run.run_id for one in done)
            perhaps = list(unsettled.values()).count(purpose)
            self._holds(
                recorded[purpose] <= times and own <= recorded[purpose] + perhaps,
                3,
                f"{purpose} is recorded {recorded[purpose]} times, and was done {times} times",
            )

    def _has_lost_child(self) -> bool:
        """Whether the run fails for a child that was cancelled: a fork that is cancelled as it waits for the same child says so to that."""
        last = self._entries[-1]
        shares = self._plan.fork is not None and self._plan.effects == "same_key"
        return shares and isinstance(last, Failed) and _LOST_CHILD in _types(last.failure)

    def _check_fork(self) -> None:
        """A fork that comes to its result has one that its origin could have had."""
        last, origin = self._entries[-1], self._run.run_id.removesuffix(FORK)
        if isinstance(last, Completed) and origin in self._plans:
            self._plan = self._plans[origin]
            self._check_result(last)

    def _check_grants(self) -> None:
        """An effect that needs a grant has the one that was asked for it."""
        subjects: dict[str, Any] = {}
        asked = {path for path, node in nodes(self._plan.shape) if isinstance(node, Ask)}
        simple = Act | Twin | Often | Stray
        free = {path for path, node in nodes(self._plan.shape) if isinstance(node, simple)}
        for entry in self._entries:
            if isinstance(entry, ApprovalRequested):
                subjects[entry.approval_id] = msgspec.json.decode(entry.subject)["subject"]["path"]
            if not isinstance(entry, EffectIntended):
                continue
            purpose = purpose_of(entry)
            path = purpose.rpartition("/")[2].partition("+")[0].rstrip("*")
            if path in asked:
                granted = entry.grant is not None and subjects[entry.grant.approval_id]
                self._holds(granted == purpose.partition("+")[0], 6, f"{purpose} was not granted")
            else:
                self._holds(path in free, 6, f"{purpose} was never called")

    async def _check_approvals(self) -> None:
        """What was decided stands there as it was decided."""
        image = await self._sim.store.load(self._run)
        assert image is not None
        stored = {one.put.approval_id: one.state for one in image.approvals}
        known = self._sim.invariants.runs[self._run].approvals
        right = {name: one.state for name, one in known.items()}
        self._holds(stored == right, 6, f"approvals stand as {stored}, and are {right}")

    def _check_carried(self) -> None:
        """A generation begins with what the one before has published last, and with nothing else."""
        carried = self._published(carried=True)
        right = [] if self._former is None else [self._former]
        self._holds(carried == right, 2, f"{carried} is carried over, not {right}")
        for said in (*carried, *self._published()):
            self._former = said

    def _published(self, *, carried: bool = False) -> list[list[str]]:
        """Return what this generation has published, or what it was given by the one before."""
        return [
            msgspec.json.decode(one.value, type=list[str])
            for one in self._entries
            if isinstance(one, Published) and carried != bool(one.operation)
        ]

    async def _check_published(self) -> None:
        """What was published stands there once, in the order in which the code did it, the last of it for whoever looks or asks."""
        written = self._published()
        handle: RunHandle[Any] = self._sim.client.handle(self._run.run_id)
        last = await handle.published(STAGE, list[str])
        self._holds(last == self._former, 2, f"{last} is published, not {self._former}")
        if not any(isinstance(one, Taken) for one in self._entries):
            return
        told = await handle.query(TOLD)
        complete = isinstance(self._entries[-1], Completed)
        self._holds(
            written == (told if complete else told[: len(written)]),
            2,
            f"{written} was published, and the code published {told}",
        )

    def _check_cancel(self) -> None:
        """A run that goes on after it was cancelled ends as cancelled."""
        asks = CancelRequested | RunTimedOut
        asked = [at for one, at in self._journal if isinstance(one, asks)]
        if any(_leaves(node) for _, node in nodes(self._plan.shape)):
            # Its outcome is waited for when the body has ended, and can be cancelled no more.
            return
        if asked and isinstance(self._entries[-1], Completed):
            # What was written at once may have come to its end just before.
            later = [type(one) for one, at in self._journal if at > asked[0]]
            later = [kind for kind in later if kind in OUTCOMES]
            self._holds(not later, 5, f"went on after it was cancelled, as if it was not: {later}")

    def _check_timeout(self) -> None:
        """A run's time is over once, not before it is over, and a run without one takes as long as it likes."""
        ends = [at for one, at in self._journal if isinstance(one, RunTimedOut)]
        started, _ = self._journal[0]
        deadline = (
            started.deadline(began_at(self._journal)) if isinstance(started, Started) else None
        )
        right = not ends or (deadline is not None and (ends[0] >= deadline or self._jumps))
        self._holds(right and len(ends) < 2, 1, f"timed out at {ends}, and has until {deadline}")

    @property
    def _jumps(self) -> bool:
        return any(one.harm in ("forth", "back") for one in self._scenario.disturbances)


def _leaves(node: Shape) -> bool:
    """Whether a part may leave an effect behind: when a gather is cut off, it ends with the first of its parts that does."""
    if isinstance(node, Limit):
        return any(isinstance(one, Several) and one.how == "gather" for _, one in nodes(node.part))
    return isinstance(node, Stray)


def _types(failure: Failure) -> set[str]:
    """Return of which types a failure is, and those of a group."""
    return {failure.type}.union(*map(_types, failure.members))


def _plan_of(started: Entry) -> Plan:
    """Return what a child was to do."""
    assert isinstance(started, Started)
    arguments = msgspec.json.decode(started.arguments, type=dict[str, str])
    shape = msgspec.json.decode(arguments["shape"], type=Shape)
    told = range(shape.count) if isinstance(shape, Hear) else ()
    return Plan(shape, sendings=tuple(Sending(0, number) for number in told))


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
