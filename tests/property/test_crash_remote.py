"""Laws of crash points with two workers: the one that has the run, and the one that has its remote steps, killed or frozen at each point.

Points are the commits and looks of a process, before and after, and the calls of its bodies: before, at their first wait, and after.
"""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

import outlast
from outlast.journal.entry import from_row
from outlast.store.change import RunKey
from outlast.testing import (
    BodyCall,
    Receiver,
    SimulatedWorker,
    Simulation,
    WorkerOptions,
    Workload,
    every_crash,
)
from outlast.testing.crash import watched
from outlast.workflows.definition import Definition

pytestmark = pytest.mark.slow

RUN = RunKey("default", "r")
receiver = Receiver()
bodies: Counter[tuple[str, int]] = Counter()
"""How often the body of each attempt began, by operation and number."""
tokens: list[str] = []


def _note() -> int:
    attempt = outlast.attempt()
    bodies[attempt.operation, attempt.number] += 1
    return attempt.number


@outlast.step
async def near(number: int) -> int:
    _note()
    return number


@outlast.step(queue="gpu")
async def far(number: int) -> int:
    _note()
    await asyncio.sleep(1)
    return number * 10


@outlast.step(queue="gpu", schedule_to_start_timeout=timedelta(minutes=10))
def far_in_thread(number: int) -> int:
    _note()
    return number * 100


@outlast.step(queue="gpu", retry=outlast.RetryPolicy(maximum_attempts=3))
async def far_third_time() -> int:
    number = _note()
    if number < 3:
        raise OSError("not yet")
    return number


@outlast.step(queue="gpu", retry=outlast.RetryPolicy(maximum_attempts=1), raises=(ValueError,))
async def far_broken() -> int:
    _note()
    raise ValueError("broken")


@outlast.step(queue="gpu")
async def far_for_ever() -> None:
    _note()
    await asyncio.Event().wait()


@outlast.effect(idempotent=True)
async def charge(number: int) -> int:
    return receiver.apply_once(outlast.idempotency_key(), number)


@outlast.workflow
async def journey() -> list[int]:
    """Near and far, one after the other and together, with retries, a failure and an effect."""
    found = [await near(1), await far(2)]
    found += await asyncio.gather(far_in_thread(3), far_third_time(), near(4))
    try:
        found.append(await far_broken())
    except ValueError:
        found.append(-1)
    found.append(await charge(sum(found)))
    try:
        async with asyncio.timeout(0.5):
            await far_for_ever()
    except TimeoutError:
        found.append(-2)
    return found


@outlast.step(queue="gpu", heartbeat_timeout=timedelta(seconds=10))
async def far_with_beats() -> int:
    """Say how far it has come, and go on from there."""
    _note()
    for number in range(outlast.heartbeat_details(int) or 0, 3):
        outlast.heartbeat(number)
        await asyncio.sleep(9)
    return 3


@outlast.step(queue="gpu")
async def far_handed_out() -> int:
    _note()
    tokens.append(outlast.completion_token())
    outlast.complete_later()


@outlast.workflow
async def course() -> list[int]:
    """What beats, and is paused meanwhile; what is completed from outside; and what follows."""
    return [await far_with_beats(), await far_handed_out(), await far(2)]


async def people(sim: Simulation) -> None:
    """Pause the run and let it go on, and answer what was handed out, once."""
    handle = sim.client.handle("r")
    await asyncio.sleep(12)
    await handle.pause("wait")
    await asyncio.sleep(12)
    await handle.resume("go on")
    while not tokens:
        await asyncio.sleep(0.5)
    await asyncio.sleep(3)
    await sim.client.complete(tokens[0], 5)


COURSE = [3, 5, 20]
RESULT = [1, 20, 300, 3, 4, -1, 327, -2]
STEPS: list[Definition[..., Any]] = [
    *(near, far, far_in_thread, far_third_time, far_broken, far_for_ever),
    *(far_with_beats, far_handed_out),
]
CODE = [*STEPS, charge, journey, course]
QUIET = WorkerOptions(
    library="simulated", poll=timedelta(seconds=5), idle=timedelta(milliseconds=200)
)
ROLES = {"owner": (CODE, ()), "taker": (STEPS, ("gpu",))}


@dataclass
class Recorder:
    """Counts the points of one process, and strikes at one of them."""

    at: int = -1
    strikes: Any = None
    points: list[str] = field(default_factory=list)
    worker: SimulatedWorker | None = None
    sealed: bool = False

    def reach(self, point: str) -> bool:
        """Pass a point; False when the process goes no further."""
        if self.worker is None:
            return True
        if self.worker.process.stopped:
            return False
        if self.sealed:
            return True
        self.points.append(point)
        if len(self.points) - 1 == self.at:
            self.strikes(self.worker)
            return False
        return True

    def at_verb(self, moment: str, verb: str) -> None:
        """A verb of the store."""
        if verb in {"commit", "claim_tasks"}:
            self.reach(f"{moment} {verb}")

    def began(self, call: BodyCall) -> int:
        """A body begins."""
        self.reach(f"before {call.name} {call.attempt}")
        return 0

    def waits(self, call: BodyCall, number: int) -> None:
        """A body waits."""
        self.reach(f"during {call.name} {call.attempt}")

    def ended(self, call: BodyCall, number: int) -> None:
        """A body has ended."""
        self.reach(f"after {call.name} {call.attempt}")


async def live(sim: Simulation, role: str, recorder: Recorder, name: str) -> SimulatedWorker:
    """Start a worker of a role whose points are counted."""
    code, queues = ROLES[role]
    options = WorkerOptions(library="simulated", poll=QUIET.poll, idle=QUIET.idle, queues=queues)
    worker = await sim.start_worker(name, definitions=watched(code, recorder), options=options)
    recorder.worker = worker
    worker.store.at_verb = recorder.at_verb
    return worker


def seal(recorders: dict[str, Recorder]) -> None:
    """Count no more: how often a worker still looks after the end depends on how long the scenario goes on, which no strike comes to."""
    for one in recorders.values():
        one.sealed = True


def play(
    strikes: dict[str, int], *, freeze: bool = False, of: Any = journey
) -> tuple[list[int], dict[str, Recorder], dict[str, Recorder]]:
    """Run a workflow; strike each named role at its point, let another one come, and look at what is left.

    Returns: The result, and the recorders of the first and of the second worker of each role.
    """
    bodies.clear()
    tokens.clear()
    receiver.forget()
    sim = Simulation(CODE, options=QUIET)

    def strike(worker: SimulatedWorker) -> None:
        worker.freeze() if freeze else worker.kill()

    first = {role: Recorder(strikes.get(role, -1), strike) for role in ROLES}
    second: dict[str, Recorder] = {}

    async def scenario(sim: Simulation) -> list[int]:
        for role in ROLES:
            await live(sim, role, first[role], role)
        handle = await sim.client.start(of(), id="r")
        if of is course:
            sim.spawn(people(sim))
        replaced: set[str] = set()
        while not (await handle.status()).status.closed:
            for role in strikes:
                worker = first[role].worker
                if role not in replaced and worker is not None and worker.process.stopped:
                    replaced.add(role)
                    second[role] = Recorder()
                    await live(sim, role, second[role], f"{role}-2")
                    if freeze:
                        sim.spawn(thaw_later(worker))
            await asyncio.sleep(0.05)
        seal(first)
        for role in strikes.keys() - replaced:
            # Struck by the very last thing that happened.
            assert first[role].worker.process.stopped, "a process never came to its point"
        if freeze:
            await asyncio.sleep(60)
        result = await handle.result()
        await check(sim)
        return result

    async def thaw_later(worker: SimulatedWorker) -> None:
        await asyncio.sleep(40)
        worker.thaw()

    return sim.run(scenario), first, second


async def check(sim: Simulation) -> None:
    """One outcome an operation, and nothing is left behind."""
    entries = [from_row(one.row) for one in await sim.store.journal(RUN)]
    settled = Counter(one.operation for one in entries if type(one).__name__.startswith("Step"))
    assert set(settled.values()) == {1}
    assert not any(type(one).__name__ == "AlarmRaised" for one in entries)
    image = await sim.store.load(RUN)
    assert image is not None
    assert (image.tasks, image.messages, image.operations) == ((), (), ())
    assert not any(run.tasks() for run in sim.store.runs.values())
    assert set(receiver.changes.values()) <= {1}


def points_of(role: str, of: Any = journey) -> list[str]:
    """Return the points of a role in an undisturbed run."""
    result, first, _ = play({}, of=of)
    assert result == (RESULT if of is journey else COURSE)
    assert set(bodies.values()) == {1}
    return first[role].points


def all_points() -> Iterator[tuple[str, int]]:
    """Return role and number of each point."""
    for role in ROLES:
        yield from ((role, number) for number in range(len(points_of(role))))


def test_the_points_are_those_that_matter() -> None:
    """Commits of both, looks at the queue of one, and the bodies where they run."""
    owner, taker = points_of("owner"), points_of("taker")
    assert "before claim_tasks" not in owner
    assert "during far 1" in taker
    assert "after far_third_time 3" in taker
    assert not any("far" in point for point in owner)
    assert owner.count("before commit") >= 12
    assert taker.count("before commit") == 6


@pytest.mark.timeout(600)
@pytest.mark.parametrize("role", ROLES)
def test_a_kill_at_any_point_changes_nothing(role: str) -> None:
    """The result is the undisturbed one; what was recorded does not happen again, and a death costs a body one more call at most."""
    for number, point in enumerate(points_of(role)):
        result, _, _ = play({role: number})
        assert result == RESULT, point
        assert sum(bodies.values()) - len(bodies) <= (3 if role == "owner" else 2), point
        assert max(bodies.values()) <= 2, point


@pytest.mark.timeout(600)
@pytest.mark.parametrize("role", ROLES)
def test_a_freeze_at_any_point_changes_nothing(role: str) -> None:
    """One that stood still past its lease, and goes on, disturbs nobody: the invariants hold, the result is the undisturbed one."""
    for number, point in enumerate(points_of(role)):
        result, _, _ = play({role: number}, freeze=True)
        assert result == RESULT, point


@pytest.mark.timeout(600)
@pytest.mark.parametrize("freeze", [False, True], ids=["kill", "freeze"])
@pytest.mark.parametrize("role", ROLES)
def test_pauses_beats_and_answers_come_through(role: str, freeze: bool) -> None:
    """Whoever is killed or frozen in the course of steps that beat, are paused, and are completed from outside."""
    for number, point in enumerate(points_of(role, course)):
        result, _, _ = play({role: number}, freeze=freeze, of=course)
        assert result == COURSE, point


@pytest.mark.timeout(600)
def test_kills_of_both_change_nothing() -> None:
    """Both die, each at a point of its own: every second of the owner's with one of the taker's, all of these in turn."""
    owner, taker = len(points_of("owner")), len(points_of("taker"))
    for number in range(0, owner, 2):
        for other in ((number * 7) % taker, (number * 11 + 5) % taker):
            result, _, _ = play({"owner": number, "taker": other})
            assert result == RESULT, (number, other)
            assert max(bodies.values()) <= 3


@pytest.mark.timeout(600)
def test_every_crash_takes_remote_steps_as_they_are() -> None:
    """A user's workload with remote steps needs nothing else: each process serves the queues of its steps."""
    work = Workload(journey, receiver=receiver, definitions=CODE)
    trials = list(every_crash(work))
    assert {tuple(trial.result) for trial in trials} == {tuple(RESULT)}
    assert any("far_third_time" in str(point) for trial in trials for point in trial.points)
