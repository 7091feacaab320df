"""Whole simulations: workers come, die, freeze and go on, and equal seeds give equal traces."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

import outlast
import outlast.errors
import outlast.testing
from outlast.journal.entry import Completed
from outlast.store.change import RunKey
from outlast.testing import Faults, Simulation, SimulationStuckError, replay_run
from outlast.worker.worker import WorkerOptions
from outlast.workflows.registry import Registry

ran: list[str] = []


@outlast.step
async def work(name: str) -> str:
    await asyncio.sleep(0.5)
    ran.append(name)
    return name


@outlast.step
def work_in_thread(name: str) -> str:
    ran.append(name)
    return name


@outlast.workflow
async def two() -> str:
    return await work("a") + await work_in_thread("b")


@outlast.workflow
async def forever() -> None:
    await outlast.sleep(10**6)


CODE = [work, work_in_thread, two, forever]


@pytest.fixture(autouse=True)
def _clean() -> None:
    ran.clear()


async def start_and_kill(sim: Simulation) -> str:
    """Run something of everything."""
    first, _ = await sim.start_worker(), await sim.start_worker()
    handles = [await sim.client.start(two(), id=f"r{one}") for one in range(5)]
    await asyncio.sleep(0.7)
    first.kill()
    for one in range(5):
        await sim.closed(f"r{one}")
    return "".join([await one.result() for one in handles])


def test_equal_seeds_give_equal_traces() -> None:
    """And other seeds other ones."""
    faults = Faults(latency=0.2, lost_answer=0.1, lost_request=0.1, lost_hint=0.5, outlives=0.5)
    sims = [Simulation(CODE, seed=seed, faults=faults, thread_delay=1) for seed in (9, 9, 10)]
    assert [sim.run(start_and_kill) for sim in sims] == ["ab" * 5] * 3
    assert sims[0].trace == sims[1].trace != sims[2].trace
    assert len(sims[0].trace) > 10


def test_doubles_stand_in_for_what_reaches_the_world() -> None:
    """In each worker that has what they stand for, whatever else it has; a double of nothing is refused."""

    def fake(name: str) -> str:
        return name.upper()

    async def scenario(sim: Simulation) -> str:
        await sim.start_worker(definitions=[two, work, work_in_thread])
        await sim.start_worker(definitions=[forever])
        return await sim.client.run(two(), id="r")

    double = outlast.testing.double(work, fake)
    assert Simulation(CODE, doubles=[double]).run(scenario) == "Ab"
    assert ran == ["b"]
    with pytest.raises(outlast.errors.DefinitionError, match="no step of that name"):
        Simulation([forever], doubles=[double])


def test_a_frozen_worker_holds_everybody_up_for_a_lease() -> None:
    """Then another one goes on."""

    async def scenario(sim: Simulation) -> float:
        first = await sim.start_worker()
        since = sim.clock.monotonic()
        await sim.client.start(two(), id="r")
        await asyncio.sleep(0.1)
        first.freeze()
        await sim.start_worker()
        await sim.closed("r")
        return sim.clock.monotonic() - since

    often = WorkerOptions(library="simulated")
    assert 15 < Simulation(CODE, options=often).run(scenario) < 18


def test_nothing_is_left_behind() -> None:
    """Tasks of dead workers are ended when the simulation closes, and no body ran meanwhile."""

    async def scenario(sim: Simulation) -> None:
        worker = await sim.start_worker()
        await worker.client.start(two(), id="r")
        await asyncio.sleep(0.1)
        worker.kill()

    sim = Simulation(CODE)
    sim.run(scenario)
    assert ran == []
    assert not asyncio.all_tasks(sim.loop)
    assert sim.loop.errors == []


def test_a_scenario_that_does_not_end_is_an_error() -> None:
    """Simulated time is limited."""

    async def scenario(sim: Simulation) -> None:
        await sim.start_worker()
        await sim.client.start(forever(), id="r")
        await sim.closed("r")

    with pytest.raises(SimulationStuckError):
        Simulation(CODE, longest=timedelta(minutes=10)).run(scenario)


def test_a_run_is_replayed() -> None:
    """The journal against the code comes to the recorded end; against other code it does not."""

    async def scenario(sim: Simulation) -> object:
        worker = await sim.start_worker()
        await worker.client.run(two(), id="r")
        run = RunKey("default", "r")
        with pytest.raises(outlast.NonDeterminismError):
            await replay_run(sim.store, Registry([work, work_in_thread, changed]), sim.clock, run)
        return await replay_run(sim.store, Registry(CODE), sim.clock, run)

    assert isinstance(Simulation(CODE).run(scenario), Completed)


@outlast.workflow(name="two")
async def changed() -> str:
    return await work_in_thread("b") + await work("a")
