"""An app is told of runs that need somebody."""

# ruff: noqa: D103 - the workflows and effects of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

import outlast
from outlast.store.change import Status
from outlast.testing import Simulation

go = outlast.Signal("go", str)
told: list[outlast.Parked] = []


@pytest.fixture(autouse=True)
def _clean() -> None:
    told.clear()


@outlast.effect(start_to_close_timeout=timedelta(seconds=1))
async def doubtful(name: str) -> str:
    raise OSError("no answer")


@outlast.workflow
async def two_doubts() -> str:
    """Come to one doubt, and, when that is settled, to another."""
    return await doubtful("a") + await doubtful("b")


@outlast.workflow
async def again() -> str:
    return await doubtful("a")


CODE = [two_doubts, again, doubtful]


async def blocked(sim: Simulation, count: int) -> None:
    """Wait until the run has been told of so often."""
    while len(told) < count:
        await asyncio.sleep(0.1)


def test_another_doubt_is_told_of() -> None:
    """Each transition for a reason of its own is told, also of the same effect, cleared and in doubt again."""

    async def scenario(sim: Simulation) -> None:
        await sim.start_worker(parked=told.append)
        handle = await sim.client.start(two_doubts(), id="r")
        await blocked(sim, 1)
        await handle.resolve("r:1", not_applied=True, reason="looked up")
        await blocked(sim, 2)
        await handle.resolve("r:1", applied="a", reason="looked up")
        await blocked(sim, 3)
        await handle.resolve("r:2", applied="b", reason="looked up")
        await sim.closed("r")

    Simulation(CODE).run(scenario)
    assert [one.reason for one in told] == ["in doubt"] * 3
    assert {(one.tenant, one.run_id, one.workflow) for one in told} == {
        ("default", "r", "two_doubts")
    }


def test_code_that_does_not_fit_is_told_of_once() -> None:
    """A run that another worker's code cannot go on with is told with what is wrong."""

    @outlast.workflow(name="two_doubts")
    async def changed() -> str:
        await outlast.sleep(1)
        return await doubtful("b")

    async def scenario(sim: Simulation) -> None:
        first = await sim.start_worker()
        await sim.client.start(two_doubts(), id="r")
        await sim.until("r", lambda head: head.status is Status.BLOCKED)
        first.kill()
        for _ in range(2):
            worker = await sim.start_worker(definitions=[changed, doubtful], parked=told.append)
            await sim.client.handle("r").send(go, "hello")
            await asyncio.sleep(30)
            worker.kill()

    Simulation(CODE).run(scenario)
    (one,) = told
    assert one.reason == "non-determinism"
    assert "r:1" in one.why


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_what_a_hook_raises_harms_nobody(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, and the worker goes on."""

    async def fails(run: outlast.Parked) -> None:
        told.append(run)
        raise RuntimeError("the pager is broken")

    def fails_in_thread(run: outlast.Parked) -> None:
        told.append(run)
        raise RuntimeError("the pager is broken")

    async def scenario(sim: Simulation) -> None:
        await sim.start_worker(parked=fails if kind == "async" else fails_in_thread)
        handle = await sim.client.start(again(), id="r")
        await blocked(sim, 1)
        await handle.resolve("r:1", applied="a", reason="looked up")
        await sim.closed("r")

    Simulation(CODE).run(scenario)
    assert "run r: on_parked failed" in caplog.text


def test_a_stop_waits_for_the_hook() -> None:
    """What is being told when a worker stops is told to its end."""
    ended: list[str] = []

    async def slow(run: outlast.Parked) -> None:
        told.append(run)
        await asyncio.sleep(2)
        ended.append(run.run_id)

    async def scenario(sim: Simulation) -> None:
        worker = await sim.start_worker(parked=slow)
        await sim.client.start(again(), id="r")
        await blocked(sim, 1)
        await worker.stop()

    Simulation(CODE).run(scenario)
    assert ended == ["r"]
