"""Terminating: it needs nobody who could move the run, and whoever moves it stops soon."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

import outlast
from outlast.journal.entry import from_row
from outlast.store.change import RunHead, RunKey, Status
from outlast.testing import Faults, Receiver, Simulation
from outlast.worker.worker import WorkerOptions

RUN = RunKey("default", "r")
OPTIONS = WorkerOptions(library="simulated", lease=timedelta(seconds=3))
seen: list[str] = []
kills: list[object] = []
receiver = Receiver()
go = outlast.Signal("go", int)


@outlast.step
async def for_ever(name: str) -> str:
    seen.append(f"{name} began")
    try:
        await asyncio.sleep(1e6)
    except asyncio.CancelledError:
        seen.append(f"{name} cancelled")
        raise
    return name


@outlast.step
async def short(name: str) -> str:
    await asyncio.sleep(5)
    seen.append(f"{name} ended")
    return name


@outlast.effect(start_to_close_timeout=timedelta(seconds=100))
async def stubborn(name: str) -> str:
    """Act a little later when it is cancelled."""
    try:
        await asyncio.sleep(100)
    except asyncio.CancelledError:
        seen.append("cancelled")
        await asyncio.sleep(2)
    return receiver.apply(outlast.idempotency_key(), name)


@outlast.step
async def dies() -> str:
    kills[-1].kill()
    await asyncio.sleep(1)
    return "never"


@outlast.effect(start_to_close_timeout=timedelta(seconds=1))
async def lose() -> str:
    raise OSError("lost")


@outlast.workflow
async def step_for_ever(name: str) -> str:
    return await for_ever(name)


@outlast.workflow
async def short_step(name: str) -> str:
    return await short(name)


@outlast.workflow
async def acts() -> str:
    return await stubborn("x")


@outlast.workflow
async def deadly() -> str:
    return await dies()


@outlast.workflow
async def doubtful() -> str:
    return await lose()


@outlast.workflow
async def waits() -> int:
    return await outlast.receive(go)


CODE = [
    *(for_ever, short, stubborn, dies, lose),
    *(step_for_ever, short_step, acts, deadly, doubtful, waits),
]


@pytest.fixture(autouse=True)
def _clean() -> None:
    seen.clear()
    kills.clear()
    receiver.forget()


@pytest.mark.parametrize("lost_hint", [0.0, 1.0], ids=["", "no hint arrives"])
def test_what_a_living_worker_attempts_is_cancelled_soon(lost_hint: float) -> None:
    """Although nothing of the run would be written for days, and every hint is lost; its neighbours are left alone."""

    async def scenario(sim: Simulation) -> tuple[float, str, list[str]]:
        worker = await sim.start_worker()
        for name in ("r", "other"):
            await worker.client.start(step_for_ever(name), id=name)
        neighbour = await worker.client.start(short_step("neighbour"), id="neighbour")
        await asyncio.sleep(3)
        since = sim.clock.monotonic()
        await sim.client.handle("r").terminate("enough")
        while not any("cancelled" in one for one in seen):
            await asyncio.sleep(0.05)
        took = sim.clock.monotonic() - since
        assert await neighbour.result() == "neighbour"
        await asyncio.sleep(30)
        assert worker.worker.runs == [RunKey("default", "other")]
        return took, (await sim.closed("r")).reason, list(seen)

    options = WorkerOptions(library="simulated")
    sim = Simulation(CODE, faults=Faults(lost_hint=lost_hint), options=options)
    took, reason, happened = sim.run(scenario)
    assert took < 2
    assert reason == "enough"
    assert happened == ["r began", "other began", "r cancelled", "neighbour ended"]


def test_the_owner_writes_nothing_more() -> None:
    """An outcome that comes after the end is fenced; a new run under the id is not touched by it."""

    async def scenario(sim: Simulation) -> tuple[RunHead, RunHead, list[object], int]:
        worker = await sim.start_worker()
        handle = await worker.client.start(acts(), id="r")
        await asyncio.sleep(2)
        await handle.terminate()
        first = await sim.closed("r")
        await sim.client.start(waits(), id="r", if_closed="restart")
        await asyncio.sleep(60)
        second = await sim.until("r", lambda head: head.status is Status.WAITING)
        former = [
            type(from_row(one.row)).__name__ for one in await sim.store.journal(RUN, generation=1)
        ]
        await sim.client.handle("r").send(go, 5)
        return first, second, former, await sim.client.handle("r", waits).result()

    first, second, former, result = Simulation(CODE).run(scenario)
    assert (first.status, first.next_seq) == (Status.TERMINATED, 3)
    assert former == ["Started", "Taken", "EffectIntended"]
    assert (second.generation, result) == (2, 5)
    assert "cancelled" in seen


def test_a_run_that_takes_the_place_of_a_terminated_one_does_not_wait_for_it() -> None:
    """Ended and started anew before its worker looks again: what that still attempts for the former one is let go of."""

    async def scenario(sim: Simulation) -> tuple[int, list[str]]:
        await sim.start_worker()
        handle = await sim.client.start(step_for_ever("former"), id="r")
        await asyncio.sleep(3.2)
        await handle.terminate()
        again = await sim.client.start(waits(), id="r", if_closed="restart")
        await sim.until("r", lambda head: head.status is Status.WAITING)
        await again.send(go, 5)
        return await again.result(), list(seen)

    options = WorkerOptions(library="simulated")
    sim = Simulation(CODE, faults=Faults(lost_hint=1.0), options=options)
    assert sim.run(scenario) == (5, ["former began", "former cancelled"])


async def _ready(sim: Simulation) -> None:
    await sim.client.start(waits(), id="r")


async def _waiting(sim: Simulation) -> None:
    await sim.start_worker()
    await sim.client.start(waits(), id="r")
    await sim.until("r", lambda head: head.status is Status.WAITING)


async def _paused(sim: Simulation) -> None:
    await sim.start_worker()
    handle = await sim.client.start(waits(), id="r")
    await handle.pause()
    await handle.send(go, 1)
    await sim.until("r", lambda head: head.status is Status.PAUSED)


async def _in_doubt(sim: Simulation) -> None:
    await sim.start_worker()
    await sim.client.start(doubtful(), id="r")
    await sim.until("r", lambda head: head.status is Status.BLOCKED)


async def _poison(sim: Simulation) -> None:
    await sim.client.start(deadly(), id="r")
    while (await sim.client.head(RUN)).status is not Status.BLOCKED:
        if not kills or kills[-1].process.dead:
            kills.append(await sim.start_worker(options=OPTIONS))
        await asyncio.sleep(0.5)


async def _of_code_that_nobody_has(sim: Simulation) -> None:
    await sim.start_worker(definitions=[short, short_step])
    await sim.client.start(waits(), id="r")
    await asyncio.sleep(5)


STATES = [_ready, _waiting, _paused, _in_doubt, _poison, _of_code_that_nobody_has]


@pytest.mark.parametrize("state", STATES, ids=lambda one: one.__name__.strip("_"))
def test_a_run_in_any_state_is_ended_at_once(state: object) -> None:
    """Its row says so when the call returns; it is never taken again, and says who waits for its result why."""

    async def scenario(sim: Simulation) -> RunHead:
        await state(sim)
        handle = sim.client.handle("r")
        await handle.terminate("enough")
        head = await sim.client.head(RUN)
        assert (head.status, head.reason, head.owner) == (Status.TERMINATED, "enough", None)
        with pytest.raises(outlast.RunTerminatedError, match="enough"):
            await handle.result()
        for act in (handle.pause, handle.resume, handle.cancel, handle.terminate):
            with pytest.raises(outlast.RunConflictError):
                await act()
        await sim.start_worker()
        await asyncio.sleep(60)
        after = await sim.client.head(RUN)
        assert (after.version, after.epoch) == (head.version, head.epoch)
        return after

    assert Simulation(CODE).run(scenario).status is Status.TERMINATED
