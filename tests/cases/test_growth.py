"""Signals, events and waits around roll-overs: faults that comparable systems had, and what happens here. Numbers as in docs/cases.md."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from cases_bench import LocalApp

import outlast
from outlast.testing import Faults, Simulation

NUMBER = outlast.Signal("one of the numbers", int)
MESSAGES, EACH = 500, 10
PATIENCE = timedelta(milliseconds=200)


@outlast.workflow
async def collects(seen: list[int]) -> list[int]:
    """Take ten numbers a generation, until all are there."""
    for _ in range(EACH):
        seen.append(await outlast.receive(NUMBER))
    if len(seen) < MESSAGES:
        outlast.continue_as_new(collects(seen))
    return seen


@outlast.workflow
async def ends_or_goes_on(left: int, seen: list[int]) -> list[int]:
    """Take what comes; after a while end, or go on in a new generation."""
    seen.append(await outlast.receive(NUMBER))
    try:
        while True:
            seen.append(await outlast.receive(NUMBER, timeout=PATIENCE))
    except TimeoutError:
        pass
    if left:
        outlast.continue_as_new(ends_or_goes_on(left - 1, seen))
    return seen


CODE = [collects, ends_or_goes_on]


# 31: messages around a roll-over


@pytest.mark.parametrize("seed", range(4))
def test_case_031_all_messages_are_seen_once_and_in_order(seed: int) -> None:
    """Five hundred, sent while the run rolls over fifty times, some twice, on a bad way to the store, by a worker that is replaced."""

    async def scenario(sim: Simulation) -> Any:
        handle = await sim.client.start(collects([]), id="r")
        worker = await sim.start_worker()
        for n in range(MESSAGES):
            await handle.send(NUMBER, n, id=str(n))
            if n % 7 == 0:
                await handle.send(NUMBER, n, id=str(n))
            if n % 40 == seed:
                await asyncio.sleep(0.3)
            if n == 100 * (seed + 1):
                worker.kill()
                worker = await sim.start_worker()
        return await handle.result(), await handle.generations()

    faults = Faults(latency=0.05, lost_answer=0.03, lost_request=0.03, lost_hint=0.1)
    result, generations = Simulation(CODE, seed=seed, faults=faults).run(scenario)
    assert result == list(range(MESSAGES))
    assert len(generations) == MESSAGES // EACH
    assert {one.ended for one in generations[1:]} == {"continued as new"}


def test_case_031_also_on_a_file(file_url: str) -> None:
    """The same with a real file, a real loop, and messages that come from beside it."""

    async def main() -> list[int]:
        async with LocalApp(file_url, CODE) as app, outlast.connect(file_url) as outside:
            handle = await app.start(collects([]), id="r")
            for n in range(MESSAGES):
                await outside.handle("r").send(NUMBER, n, id=str(n))
            return await handle.result()

    assert asyncio.run(main()) == list(range(MESSAGES))


# 32: what is sent while a run ends or rolls over


@pytest.mark.parametrize("seed", range(6))
def test_case_032_a_signal_is_seen_or_refused_and_never_lost(seed: int) -> None:
    """Fifty that race with the end and with roll-overs: what was accepted was taken in, what was not is told so at once."""

    async def scenario(sim: Simulation) -> Any:
        await sim.start_worker()
        handle = await sim.client.start(ends_or_goes_on(3, []), id="r")
        accepted: list[int] = []
        refused: list[int] = []

        async def send(n: int) -> None:
            try:
                await handle.send(NUMBER, n, id=str(n))
            except outlast.RunConflictError:
                refused.append(n)
            else:
                accepted.append(n)

        async def send_after(n: int) -> None:
            await asyncio.sleep(n * 0.017 * (seed + 1))
            await send(n)

        await asyncio.gather(*(send_after(n) for n in range(50)))
        for n in range(50, 60):
            await asyncio.sleep(1)
            await send(n)
        seen = await handle.result()
        journals = [
            one.entry
            for generation in await handle.generations()
            for one in await handle.journal(generation=generation.generation)
        ]
        known = {getattr(one, "message_id", "") for one in journals}
        return accepted, refused, seen, known

    accepted, refused, seen, known = Simulation(CODE, seed=seed).run(scenario)
    assert len(accepted) + len(refused) == 60
    assert min(refused) > max(seen)
    assert seen == sorted(seen)
    assert set(seen) <= set(accepted)
    # What came after the last one was taken stands in the journal: it was consumed with the end, and nothing is left.
    assert {f"signal/{n}" for n in accepted} == known - {""}
