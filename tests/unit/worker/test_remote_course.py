"""The course of a remote step between its call and its outcome: pauses, generations, the time for all attempts."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

import outlast
from outlast.client import RunHandle
from outlast.journal.entry import from_row
from outlast.store.change import RunKey, Status
from outlast.testing import SimulatedWorker, Simulation, WorkerOptions
from outlast.testing.loop import current_process
from outlast.workflows.definition import Definition

RUN = RunKey("default", "r")
began: list[tuple[str, int, float]] = []
"""Step, attempt and second of each body that began."""
where: list[str] = []
"""The process of each of them."""
ended: list[str] = []
sims: list[Simulation] = []
THRICE = outlast.RetryPolicy(
    maximum_attempts=3, initial_interval=timedelta(seconds=2), backoff_coefficient=1.0
)


def _note() -> int:
    attempt = outlast.attempt()
    process = current_process.get()
    assert process is not None
    began.append((attempt.name, attempt.number, sims[-1].clock.monotonic()))
    where.append((process.parent or process).name)
    return attempt.number


@outlast.step(queue="gpu")
async def far(seconds: float) -> str:
    _note()
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        ended.append("cancelled")
        raise
    ended.append("done")
    return "far"


@outlast.step(queue="gpu", schedule_to_start_timeout=timedelta(minutes=1))
async def far_soon() -> str:
    _note()
    return "soon"


@outlast.step(queue="gpu", retry=THRICE)
async def far_third_time() -> int:
    number = _note()
    if number < 3:
        raise OSError("not yet")
    return number


@outlast.workflow
async def alone(seconds: float) -> str:
    return await far(seconds)


@outlast.workflow
async def soon() -> str:
    try:
        return await far_soon()
    except TimeoutError as error:
        return str(error)


@outlast.workflow
async def retried() -> int:
    return await far_third_time()


@outlast.workflow
async def two_far(seconds: float) -> list[str]:
    return list(await asyncio.gather(far(seconds), far_soon()))


STEPS: list[Definition[..., Any]] = [far, far_soon, far_third_time]
CODE: list[Definition[..., Any]] = [*STEPS, alone, soon, retried, two_far]
QUIET = WorkerOptions(library="simulated", poll=timedelta(seconds=1))
GPU = replace(QUIET, queues=("gpu",))


@pytest.fixture(autouse=True)
def _clean() -> None:
    for told in (began, where, ended):
        told.clear()


def simulated(scenario: Callable[[Simulation], Awaitable[Any]]) -> Any:
    """Run a scenario, and see that nothing of a task is left behind."""
    sims.append(Simulation(CODE, options=QUIET))
    result = sims[-1].run(scenario)
    closed = [key for key, run in sims[-1].invariants.runs.items() if run.closed]
    assert [place for place in sims[-1].store._tasks._tasks if place[0] in closed] == []
    return result


async def taker(sim: Simulation, name: str = "taker") -> SimulatedWorker:
    """Start a worker that has the steps and no workflow."""
    return await sim.start_worker(name, definitions=STEPS, options=GPU)


async def begun(count: int = 1) -> None:
    """Wait until so many bodies have begun."""
    while len(began) < count:
        await asyncio.sleep(0.1)


async def waits(sim: Simulation) -> None:
    """Wait until the run has a task."""
    while not await sim.store.tasks(RUN):
        await asyncio.sleep(0.1)


async def paused(sim: Simulation, handle: RunHandle[Any]) -> None:
    """Pause the run, and wait until it is parked."""
    await handle.pause("wait")
    await sim.until("r", lambda head: head.status is Status.PAUSED)


async def kinds(sim: Simulation) -> list[str]:
    """Return the kinds of the entries."""
    return [type(from_row(one.row)).__name__ for one in await sim.store.journal(RUN)]


# Pauses


@pytest.mark.parametrize("idle", ["owner stays", "owner dies"])
def test_no_task_of_a_paused_run_is_taken(idle: str) -> None:
    """What waits goes on waiting, whoever comes; after the resume it is taken, and its time to be started begins anew."""

    async def scenario(sim: Simulation) -> tuple[str, list[str]]:
        owner = await sim.start_worker("owner")
        handle = await sim.client.start(soon(), id="r")
        await waits(sim)
        await asyncio.sleep(50)
        await paused(sim, handle)
        server = await taker(sim)
        if idle == "owner dies":
            owner.kill()
            await sim.start_worker("other")
        await asyncio.sleep(600)
        assert began == []
        await server.stop(timedelta(0))
        await handle.resume("go on")
        await asyncio.sleep(50)
        assert not (await handle.status()).status.closed
        await taker(sim, "late")
        return await handle.result(), await kinds(sim)

    result, entries = simulated(scenario)
    assert result == "soon"
    assert entries.count("StepFailed") == 0


def test_the_time_to_be_started_is_over_once_after_a_pause() -> None:
    """A resumed step waits its whole time for a worker again, and no longer."""

    async def scenario(sim: Simulation) -> tuple[float, str]:
        await sim.start_worker("owner")
        handle = await sim.client.start(soon(), id="r")
        await waits(sim)
        await asyncio.sleep(50)
        await paused(sim, handle)
        await asyncio.sleep(600)
        since = sim.clock.monotonic()
        await handle.resume("go on")
        await sim.until("r", lambda head: head.status.closed)
        return sim.clock.monotonic() - since, await handle.result()

    seconds, result = simulated(scenario)
    assert "was not started within 0:01:00" in result
    assert 59 < seconds < 65


def test_what_a_worker_has_ends_in_the_pause_and_counts_after_it() -> None:
    """An attempt that has begun is not disturbed; its outcome is read when the run goes on."""

    async def scenario(sim: Simulation) -> str:
        await sim.start_worker("owner")
        await taker(sim)
        handle = await sim.client.start(alone(20.0), id="r")
        await begun()
        await paused(sim, handle)
        await asyncio.sleep(60)
        assert ended == ["done"]
        assert "StepCompleted" not in await kinds(sim)
        await handle.resume("go on")
        return await handle.result()

    assert simulated(scenario) == "far"
    assert len(began) == 1


def test_no_next_attempt_is_put_in_a_pause() -> None:
    """An attempt that fails while the run is paused is followed by another one after the resume."""

    async def scenario(sim: Simulation) -> int:
        await sim.start_worker("owner")
        await taker(sim)
        handle = await sim.client.start(retried(), id="r")
        await begun()
        await paused(sim, handle)
        await asyncio.sleep(60)
        assert len(began) == 1
        await handle.resume("go on")
        return await handle.result()

    assert simulated(scenario) == 3
    assert [number for _, number, _ in began] == [1, 2, 3]


@pytest.mark.parametrize("death", ["kill", "stop"])
def test_a_task_that_comes_back_in_a_pause_waits_for_the_resume(death: str) -> None:
    """Whose worker dies or stops goes to another one, but not while the run is paused."""

    async def scenario(sim: Simulation) -> str:
        await sim.start_worker("owner")
        first = await taker(sim)
        handle = await sim.client.start(alone(20.0), id="r")
        await begun()
        await paused(sim, handle)
        first.kill() if death == "kill" else await first.stop(timedelta(0))
        await taker(sim, "second")
        await asyncio.sleep(200)
        assert len(began) == 1
        await handle.resume("go on")
        return await handle.result()

    assert simulated(scenario) == "far"
    assert where == ["taker", "second"]


def test_a_cancel_of_a_paused_run_takes_its_tasks_along() -> None:
    """The pause ends with the cancel; what waited is dropped, and nobody begins it."""

    async def scenario(sim: Simulation) -> str:
        await sim.start_worker("owner")
        handle = await sim.client.start(alone(1.0), id="r")
        await waits(sim)
        await paused(sim, handle)
        await handle.cancel("enough")
        await sim.until("r", lambda head: head.status.closed)
        assert await sim.store.tasks(RUN) == ()
        return (await handle.status()).status

    assert simulated(scenario) == "cancelled"
