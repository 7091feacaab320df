"""How often a worker writes."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from collections import Counter

import outlast
from outlast.testing import Faults, Simulation

bodies: Counter[str] = Counter()


@outlast.step
async def add(total: int, number: int) -> int:
    bodies["add"] += 1
    return total + number


@outlast.effect(idempotent=True)
async def pay(amount: int) -> int:
    return amount


@outlast.workflow
async def count_up(steps: int) -> int:
    total = 0
    for number in range(steps):
        total = await add(total, number)
    return total


@outlast.workflow
async def pay_once(amount: int) -> int:
    return await pay(amount)


@outlast.workflow
async def side_by_side(branches: int) -> list[int]:
    return list(await asyncio.gather(*(add(0, one) for one in range(branches))))


CODE = [add, pay, count_up, pay_once, side_by_side]


def test_a_ten_step_run_is_twelve_writes() -> None:
    """Start, ten outcomes, end: counted at the store, for a run that is born in its worker."""

    async def scenario(sim: Simulation) -> tuple[int, int]:
        worker = await sim.start_worker()
        result = await worker.client.run(count_up(10), id="r")
        return result, worker.store.commits

    assert Simulation(CODE).run(scenario) == (45, 12)


def test_a_run_from_elsewhere_is_one_write_more() -> None:
    """The start is the client's write; the worker adds `Taken`, ten outcomes and the end."""

    async def scenario(sim: Simulation) -> tuple[int, int, int]:
        worker = await sim.start_worker()
        result = await sim.client.run(count_up(10), id="r")
        outside = sum("outside commit" in line for line in sim.trace)
        return result, outside, worker.store.commits

    assert Simulation(CODE).run(scenario) == (45, 1, 12)


def test_an_effect_is_two_writes() -> None:
    """Intent and outcome, beside start and end."""

    async def scenario(sim: Simulation) -> int:
        worker = await sim.start_worker()
        await worker.client.run(pay_once(1), id="r")
        return worker.store.commits

    assert Simulation(CODE).run(scenario) == 4


def test_parallel_outcomes_of_one_run_share_a_commit() -> None:
    """What comes while a commit is under way goes into the next one."""

    async def scenario(sim: Simulation) -> tuple[list[int], int]:
        worker = await sim.start_worker()
        result = await worker.client.run(side_by_side(50), id="r")
        return result, worker.store.commits

    result, commits = Simulation(CODE, faults=Faults(latency=0.01)).run(scenario)
    assert result == list(range(50))
    assert commits <= 8


def test_group_commit_puts_many_runs_into_one_commit() -> None:
    """A hundred runs of ten steps need about as many commits as one run, not a hundred times as many."""

    async def scenario(sim: Simulation) -> tuple[list[int], int]:
        worker = await sim.start_worker()
        work = [worker.client.run(count_up(10), id=f"r{one}") for one in range(100)]
        results = await asyncio.gather(*work)
        return list(results), worker.store.commits

    results, commits = Simulation(CODE, faults=Faults(latency=0.01)).run(scenario)
    assert results == [45] * 100
    assert commits < 60


def test_five_starts_with_one_id_run_once() -> None:
    """Starting by id is idempotent: one body, five equal results (case 7)."""
    bodies.clear()

    async def scenario(sim: Simulation) -> list[int]:
        first, second = await sim.start_worker(), await sim.start_worker()
        clients = [first.client, second.client, sim.client, first.client, second.client]
        return list(await asyncio.gather(*(one.run(count_up(3), id="x") for one in clients)))

    assert Simulation(CODE, faults=Faults(latency=0.02)).run(scenario) == [3] * 5
    assert bodies["add"] == 3
