"""A wall clock that was ahead once and is right again: nobody waits until it has come so far, and nobody spins."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

import outlast
from outlast.store.change import RunKey
from outlast.testing import Faults, Simulation
from outlast.worker.worker import WorkerOptions

TEN_YEARS = timedelta(days=3650)
GAP = timedelta(seconds=60)
POLICY = outlast.RetryPolicy(initial_interval=GAP, maximum_attempts=3)
attempts: list[int] = []


class NotNowError(Exception):
    def __init__(self) -> None:
        super().__init__("not now")
        self.retry_after = 100


def attempt(asks: bool) -> int:
    attempts.append(outlast.attempt().number)
    if len(attempts) == 1:
        raise NotNowError if asks else RuntimeError
    return attempts[-1]


@outlast.step(retry=POLICY)
async def second_time(asks: bool) -> int:
    return attempt(asks)


@outlast.effect(idempotent=True, retry=POLICY)
async def second_call(asks: bool) -> int:
    return attempt(asks)


@outlast.workflow
async def stubborn(kind: str, asks: bool) -> int:
    return await (second_time(asks) if kind == "step" else second_call(asks))


@outlast.workflow
async def nap(seconds: float) -> int:
    await outlast.sleep(seconds)
    return 2


@outlast.workflow
async def ask() -> str:
    try:
        await outlast.approval("x", covers=[], role="r", expires_in=timedelta(seconds=10))
    except outlast.ApprovalExpiredError:
        return "expired"
    return "decided"


CODE = [second_time, second_call, stubborn, nap, ask]


@pytest.mark.parametrize("after", ["at once", "parked", "killed"])
@pytest.mark.parametrize("asks", [False, True], ids=["policy", "retry_after"])
@pytest.mark.parametrize("kind", ["step", "effect", "timer"])
def test_a_wait_that_began_while_the_clock_was_ahead(kind: str, asks: bool, after: str) -> None:
    """It lasts as long as it should from the moment on at which the clock is right again, and costs no more claims than needed."""
    attempts.clear()
    wait = timedelta(seconds=100) if asks else GAP

    async def scenario(sim: Simulation) -> tuple[float, int]:
        worker = await sim.start_worker()
        sim.clock.jump(TEN_YEARS)
        work = nap(wait.total_seconds()) if kind == "timer" else stubborn(kind, asks)
        handle = await sim.client.start(work, id="r")
        await sim.until("r", lambda head: head.next_seq == (3 if kind == "effect" else 2))
        await asyncio.sleep(0.2 if after == "at once" else 5.0)
        if after == "killed":
            worker.kill()
        sim.clock.jump(-TEN_YEARS)
        if after == "killed":
            await sim.start_worker()
        since = sim.clock.monotonic()
        head = await sim.closed("r")
        assert await handle.result() == 2
        return sim.clock.monotonic() - since, head.epoch

    took, epoch = Simulation(CODE).run(scenario)
    assert wait.total_seconds() - 5 <= took <= wait.total_seconds() + 20
    assert attempts == ([] if kind == "timer" else [1, 2])
    assert epoch <= 3


@pytest.mark.parametrize("seed", range(5))
def test_a_deadline_that_is_ahead_again_is_waited_for(seed: int) -> None:
    """Set back between the proposal to close a request and its commit: the worker waits, and does not ask again and again."""

    async def scenario(sim: Simulation) -> tuple[int, str]:
        options = WorkerOptions(library="simulated", idle=timedelta(hours=1))
        await sim.start_worker(options=options)
        handle = await sim.client.start(ask(), id="r")
        while not (views := await sim.client.approvals.list()):
            await asyncio.sleep(0.05)
        until = (views[0].expires_at - sim.clock.now()).total_seconds()
        await asyncio.sleep(until + 0.02)
        sim.clock.jump(timedelta(minutes=-10))
        before = len(sim.trace)
        await asyncio.sleep(60)
        asked = len([one for one in sim.trace[before:] if "commit" in one])
        sim.clock.jump(timedelta(minutes=10))
        await sim.closed("r")
        return asked, await handle.result()

    asked, result = Simulation(CODE, seed=seed, faults=Faults(latency=0.2)).run(scenario)
    assert result == "expired"
    assert asked < 10


def test_a_run_that_was_started_while_the_clock_was_ahead_is_taken() -> None:
    """It is taken by the next look, when the clock is right again."""

    async def scenario(sim: Simulation) -> float:
        sim.clock.jump(TEN_YEARS)
        await sim.client.start(nap(1), id="r")
        sim.clock.jump(-TEN_YEARS)
        since = sim.clock.monotonic()
        await sim.start_worker()
        await sim.closed("r")
        assert (await sim.store.journal(RunKey("default", "r")))[0].at > sim.clock.now()
        return sim.clock.monotonic() - since

    assert Simulation(CODE).run(scenario) < 20
