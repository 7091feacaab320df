"""A graceful stop: runs are given back at once, and another worker goes on."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta

import pytest

import outlast
from outlast.store.change import RunKey, Status
from outlast.testing import Faults, Receiver, SimulatedThreads, Simulation
from outlast.worker.worker import WorkerOptions

bodies: Counter[str] = Counter()
receiver = Receiver()
threads: list[SimulatedThreads] = []


@outlast.step
async def work(seconds: float) -> float:
    bodies["work"] += 1
    await asyncio.sleep(seconds)
    return seconds


@outlast.effect(start_to_close_timeout=timedelta(seconds=5))
def hang(seconds: float) -> str:
    threads[-1].busy(seconds)
    return receiver.apply(outlast.idempotency_key(), "done")


@outlast.workflow
async def work_twice(seconds: float) -> float:
    return await work(seconds) + await work(seconds)


@outlast.workflow
async def sleep_long() -> str:
    await outlast.sleep(3000)
    return "slept"


@outlast.workflow
async def hang_once(seconds: float) -> str:
    return await hang(seconds)


CODE = [work, hang, work_twice, sleep_long, hang_once]


@pytest.fixture(autouse=True)
def _clean() -> None:
    bodies.clear()
    receiver.forget()


def test_a_waiting_run_is_given_back_at_once() -> None:
    """No lease has to run out: the next worker has it within a moment."""

    async def scenario(sim: Simulation) -> tuple[float, int]:
        options = WorkerOptions(library="simulated", idle=timedelta(hours=1))
        first = await sim.start_worker(options=options)
        second = await sim.start_worker(options=options)
        await first.client.start(sleep_long(), id="r")
        await asyncio.sleep(1)
        since = sim.clock.monotonic()
        await first.stop()
        await sim.until("r", lambda head: head.owner == second.worker.id)
        head = await sim.client.head(RunKey("default", "r"))
        return sim.clock.monotonic() - since, head.lapses

    seconds, lapses = Simulation(CODE).run(scenario)
    assert seconds < 1
    assert lapses == 0


def test_an_attempt_may_end_within_the_grace_time() -> None:
    """The step runs once, its outcome is written, and the other worker goes on after it."""

    async def scenario(sim: Simulation) -> float:
        first = await sim.start_worker()
        handle = await sim.client.start(work_twice(5), id="r")
        await asyncio.sleep(1)
        await sim.start_worker()
        await first.stop(timedelta(seconds=10))
        await sim.closed("r")
        return await handle.result()

    assert Simulation(CODE).run(scenario) == 10
    assert bodies["work"] == 2


def test_the_lease_outlives_the_last_attempt() -> None:
    """A stop that takes longer than a lease loses nothing to another worker (case 19)."""

    async def scenario(sim: Simulation) -> float:
        options = WorkerOptions(library="simulated", lease=timedelta(seconds=1))
        first = await sim.start_worker(options=options)
        handle = await sim.client.start(work_twice(8), id="r")
        await asyncio.sleep(0.5)
        await sim.start_worker(options=options)
        await first.stop(timedelta(seconds=10))
        await sim.closed("r")
        return await handle.result()

    assert Simulation(CODE).run(scenario) == 16
    assert bodies["work"] == 2


def test_an_attempt_that_is_too_slow_is_cancelled() -> None:
    """After the grace time the body is cancelled, uncounted, and another worker makes the attempt again."""

    async def scenario(sim: Simulation) -> tuple[float, float]:
        first = await sim.start_worker()
        handle = await sim.client.start(work_twice(30), id="r")
        await asyncio.sleep(1)
        since = sim.clock.monotonic()
        await first.stop(timedelta(seconds=2))
        seconds = sim.clock.monotonic() - since
        await sim.start_worker()
        await sim.closed("r")
        return seconds, await handle.result()

    seconds, result = Simulation(CODE).run(scenario)
    assert result == 60
    assert seconds == pytest.approx(2, abs=0.5)
    assert bodies["work"] == 3


def test_a_stop_while_the_store_is_away_ends() -> None:
    """Nothing can be given back, and the end of the lease will say so; nothing is lost."""

    async def scenario(sim: Simulation) -> tuple[float, str]:
        first = await sim.start_worker()
        handle = await sim.client.start(sleep_long(), id="r")
        await asyncio.sleep(0.5)
        first.store.faults = Faults(down=True)
        since = sim.clock.monotonic()
        await first.stop(timedelta(seconds=2))
        seconds = sim.clock.monotonic() - since
        await sim.start_worker()
        await sim.closed("r")
        return seconds, await handle.result()

    seconds, result = Simulation(CODE, longest=timedelta(hours=2)).run(scenario)
    assert result == "slept"
    assert seconds < 20


def test_a_thread_that_still_acts_keeps_its_run() -> None:
    """A synchronous effect that cannot be stopped is not given to anybody while its thread runs and its process lives."""

    async def scenario(sim: Simulation) -> tuple[Status, bool]:
        first = await sim.start_worker()
        threads.append(first.threads)
        await sim.client.start(hang_once(300), id="r")
        await asyncio.sleep(1)
        await sim.start_worker()
        await first.stop(timedelta(seconds=2))
        await asyncio.sleep(100)
        head = await sim.client.head(RunKey("default", "r"))
        owned = head.owner == first.worker.id
        return head.status, owned

    assert Simulation(CODE).run(scenario) == (Status.RUNNING, True)
    assert receiver.total == 1


def test_two_stopping_workers_pass_runs_on() -> None:
    """A rolling restart of many runs: every step runs once."""

    async def scenario(sim: Simulation) -> list[float]:
        workers = [await sim.start_worker() for _ in range(3)]
        handles = [await sim.client.start(work_twice(1.5), id=f"r{one}") for one in range(20)]
        for one in workers:
            await asyncio.sleep(1)
            await sim.start_worker()
            await one.stop(timedelta(seconds=10))
        for one in range(20):
            await sim.closed(f"r{one}")
        return [await one.result() for one in handles]

    assert Simulation(CODE, faults=Faults(latency=0.05)).run(scenario) == [3.0] * 20
    assert bodies["work"] == 40


def test_the_lease_outlives_a_grace_longer_than_the_stall_limit() -> None:
    """The loop turns while a stop waits, although nobody looks for work any more."""

    async def scenario(sim: Simulation) -> float:
        first = await sim.start_worker()
        handle = await sim.client.start(work_twice(400), id="r")
        await asyncio.sleep(1)
        await sim.start_worker()
        await first.stop(timedelta(seconds=500))
        await sim.closed("r")
        return await handle.result()

    assert Simulation(CODE).run(scenario) == 800
    assert bodies["work"] == 2


@pytest.mark.parametrize("leave", [False, True])
def test_a_lease_is_not_renewed_for_ever(leave: bool) -> None:
    """After a stop it lasts as long as a thread acts, and no longer than the store is open."""

    async def scenario(sim: Simulation) -> tuple[float, float]:
        first = await sim.start_worker()
        threads.append(first.threads)
        await sim.client.start(hang_once(100), id="r")
        await asyncio.sleep(1)
        await first.stop(timedelta(seconds=2))
        stopped = sim.clock.monotonic()
        if leave:
            first.worker.leave()
        await asyncio.sleep(300)
        renewals = [float(line.split()[0]) for line in sim.trace if " renew " in line]
        return stopped, max(renewals, default=0.0)

    stopped, last = Simulation(CODE).run(scenario)
    assert (last <= stopped) == leave
    assert last < 1101 + 5


def test_a_stop_writes_what_clients_asked_for() -> None:
    """A start that is queued when its worker stops is accepted, and another worker has it."""

    async def scenario(sim: Simulation) -> float:
        first = await sim.start_worker()
        starting = sim.spawn(first.client.start(work_twice(1), id="r"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await first.stop()
        handle = await starting
        second = await sim.start_worker()
        await sim.closed("r")
        return await second.client.handle("r", work_twice).result() + await handle.result()

    assert Simulation(CODE, faults=Faults(latency=0.05)).run(scenario) == 4


def test_a_stop_while_the_store_is_away_tells_clients() -> None:
    """An error that says what to do, never a cancel."""

    async def scenario(sim: Simulation) -> BaseException | None:
        first = await sim.start_worker()
        first.store.faults = Faults(down=True)
        starting = sim.spawn(first.client.start(work_twice(1), id="r"))
        await asyncio.sleep(1)
        await first.stop()
        return (await asyncio.gather(starting, return_exceptions=True))[0]

    assert isinstance(Simulation(CODE).run(scenario), outlast.StoreUnavailableError)
