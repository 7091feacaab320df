"""Runs that start other runs: faults that comparable systems had, and what happens here. The numbers are those of docs/cases.md."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

import outlast
from outlast.journal.entry import ChildRequested, Entry, Parent, RunEnded, Started, from_row
from outlast.store.change import RunKey, Status
from outlast.testing import Faults, Simulation
from outlast.worker.worker import WorkerOptions

FAST = WorkerOptions(library="simulated", idle=timedelta(milliseconds=200))
SLOW = Faults(latency=0.05)
"""A way to the store on which a start takes a while, so that a cancel can come at each moment of it."""


@outlast.workflow
async def numbered(number: int, seconds: float) -> int:
    await outlast.sleep(seconds)
    return number


@outlast.workflow
async def failing(number: int, seconds: float) -> int:
    await outlast.sleep(seconds)
    raise ValueError(str(number))


def entries(sim: Simulation, run_id: str) -> list[Entry]:
    store: Any = sim.store
    run = store.runs[RunKey("default", run_id)]
    return [from_row(one.row) for one in run.journals[run.head.generation]]


# 115: a cancel while a child is being started


@outlast.workflow
async def hesitates(own_ids: bool, microseconds: int) -> str:
    """Start two children, and cancel both starts after a while."""
    ids = ("one", "two") if own_ids else (None, None)
    tasks = [
        asyncio.create_task(outlast.start_child(numbered(1, 100), id=ids[0])),
        asyncio.create_task(outlast.run_child(numbered(2, 100), id=ids[1])),
    ]
    loop = asyncio.get_running_loop()
    for task in tasks:
        loop.call_later(microseconds / 1e6, task.cancel)
    await asyncio.wait(tasks)
    return ", ".join("cancelled" if one.cancelled() else "started" for one in tasks)


@pytest.mark.parametrize("own_ids", [True, False])
def test_case_115_a_cancel_while_a_child_is_started_leaves_no_child_without_parent(
    own_ids: bool,
) -> None:
    """A hundred times, at another moment each: a child that exists has its id and its parent, and is asked to stop."""
    seen: set[tuple[str, int]] = set()
    for number in range(100):

        async def scenario(sim: Simulation, number: int = number) -> tuple[str, int]:
            await sim.start_worker(faults=SLOW)
            handle = await sim.client.start(hesitates(own_ids, 4000 * number), id="p")
            said = await handle.result()
            store: Any = sim.store
            began = sim.clock.monotonic()
            while await sim.store.outbox(1):
                await sim.a_while(since=began)
            asked = {
                one.run_id: one for one in entries(sim, "p") if isinstance(one, ChildRequested)
            }
            found = {key.run_id for key in store.runs} - {"p"}
            assert found == set(asked)
            assert found <= ({"one", "two"} if own_ids else {"p/r.1:1", "p/r:1"})
            for run_id, one in asked.items():
                first = entries(sim, run_id)[0]
                assert isinstance(first, Started)
                assert first.parent == Parent("p", 1, one.operation)
                head = await sim.store.head(RunKey("default", run_id))
                assert head is not None
                assert head.status in (Status.CANCELLED, Status.TERMINATED)
            return said, len(found)

        seen.add(Simulation([hesitates, numbered], seed=number, options=FAST).run(scenario))
    assert ("cancelled, cancelled", 0) in seen
    assert ("cancelled, cancelled", 2) in seen
    assert any(said.startswith("started") for said, _ in seen)


# 122: waiting for all children


@outlast.workflow
async def waits_for_all(done: int, fails: int) -> list[str]:
    """Start five children; wait for all when some have ended; one may fail."""
    children = [
        await outlast.start_child((failing if n == fails else numbered)(n, float(10 * n)))
        for n in range(1, 6)
    ]
    await outlast.sleep(10 * done + 5)
    found = await asyncio.gather(*(one.result() for one in children), return_exceptions=True)
    return [repr(one.__cause__) if isinstance(one, Exception) else repr(one) for one in found]


@pytest.mark.parametrize("fails", [0, 1, 3, 5])
@pytest.mark.parametrize("done", [0, 3, 5])
def test_case_122_waiting_for_all_children_counts_those_that_have_ended(
    done: int, fails: int
) -> None:
    """So many have ended before the wait is built, and one may have failed: every end is there once, in its place."""

    async def scenario(sim: Simulation) -> tuple[list[str], list[Entry]]:
        await sim.start_worker()
        result = await (await sim.client.start(waits_for_all(done, fails), id="p")).result()
        return result, entries(sim, "p")

    code = [waits_for_all, numbered, failing]
    found, journal = Simulation(code, options=FAST).run(scenario)
    assert found == [f"ValueError('{n}')" if n == fails else f"{n}" for n in range(1, 6)]
    ended = [one for one in journal if isinstance(one, RunEnded)]
    assert sorted(one.operation for one in ended) == [f"r:{n}" for n in range(1, 6)]
    assert [one.status for one in ended].count("failed") == (fails > 0)


@outlast.workflow
async def gathers(fails: int) -> list[str]:
    """Gather without catching; the others go on, and are there when asked for again."""
    tasks = [
        asyncio.create_task(
            outlast.run_child((failing if n == fails else numbered)(n, float(10 * n)))
        )
        for n in range(1, 4)
    ]
    said: list[str] = []
    try:
        await asyncio.gather(*tasks)
    except outlast.WorkflowFailedError as error:
        said.append(repr(error.__cause__))
        said.append(f"{sum(task.done() for task in tasks)} done")
    found = await asyncio.gather(*tasks, return_exceptions=True)
    return [*said, *(repr(one) for one in found if not isinstance(one, Exception))]


@pytest.mark.parametrize("fails", [1, 2, 3])
def test_case_122_one_failed_child_does_not_end_the_others(fails: int) -> None:
    """`gather` raises with the first failure, as everywhere; the siblings run to their end and are not cancelled."""

    async def scenario(sim: Simulation) -> tuple[list[str], list[str]]:
        await sim.start_worker()
        result = await (await sim.client.start(gathers(fails), id="p")).result()
        heads = [await sim.store.head(RunKey("default", f"p/r:{n}")) for n in (1, 2, 3)]
        return result, [head.status for head in heads if head]

    found, statuses = Simulation([gathers, numbered, failing], options=FAST).run(scenario)
    assert found == [
        f"ValueError('{fails}')",
        f"{fails} done",
        *(f"{n}" for n in (1, 2, 3) if n != fails),
    ]
    assert statuses == ["failed" if n == fails else "completed" for n in (1, 2, 3)]


@outlast.workflow
async def groups() -> list[str]:
    """A group of children, of which one fails."""
    said: list[str] = []
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(outlast.run_child(failing(1, 10.0)))
            group.create_task(outlast.run_child(numbered(2, 1000.0), id="long"))
    except* outlast.WorkflowFailedError as found:
        said += [repr(one.__cause__) for one in found.exceptions]
    return said


def test_case_122_a_group_cancels_its_children_and_waits_for_them() -> None:
    """The failure is raised when the cancelled child has ended."""

    async def scenario(sim: Simulation) -> tuple[list[str], str, float]:
        await sim.start_worker()
        began = sim.clock.monotonic()
        result = await (await sim.client.start(groups(), id="p")).result()
        head = await sim.store.head(RunKey("default", "long"))
        assert head is not None
        return result, head.status, sim.clock.monotonic() - began

    found, status, seconds = Simulation([groups, numbered, failing], options=FAST).run(scenario)
    assert (found, status) == (["ValueError('1')"], "cancelled")
    assert seconds < 20
