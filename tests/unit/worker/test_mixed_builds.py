"""Two builds of an app beside each other, as during a deploy: a run goes to one that it fits, and waits where none is left."""

# ruff: noqa: D103 - the workflows of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import outlast
from outlast.store.change import RunHead, Status
from outlast.testing import SimulatedWorker, Simulation
from outlast.workflows.definition import AttemptOptions, Definition, Step, Workflow

GO = outlast.Signal("go on now", int)
called: list[str] = []


@pytest.fixture(autouse=True)
def _clean() -> None:
    called.clear()


def step(name: str) -> Step[..., Any]:
    async def body(n: int) -> int:
        called.append(name)
        return n

    return Step(body, name, AttemptOptions())


LOAD, SAVE, CHECK = step("load"), step("save"), step("check")


async def _former() -> str:
    await LOAD(1)
    await outlast.receive(GO)
    await SAVE(2)
    return "former"


async def _rebuilt() -> str:
    await CHECK(1)
    await LOAD(1)
    await outlast.receive(GO)
    await SAVE(2)
    return "rebuilt"


async def _patched() -> str:
    if outlast.patched("check-first"):
        await CHECK(1)
    await LOAD(1)
    await outlast.receive(GO)
    await SAVE(2)
    return "patched"


def build(body: Callable[[], Coroutine[Any, Any, str]], module: str) -> list[Definition[..., Any]]:
    async def flow() -> str:
        return await body()

    workflow = Workflow(flow)
    workflow.__module__ = module  # builds differ where their sources do
    return [workflow, LOAD, SAVE, CHECK]


FORMER, REBUILT, PATCHED = build(_former, "v1"), build(_rebuilt, "v2"), build(_patched, "v3")


def parked(head: RunHead) -> bool:
    return head.status is Status.WAITING


async def begin(sim: Simulation, count: int) -> SimulatedWorker:
    """Let former code begin runs, which then wait."""
    first = await sim.start_worker(definitions=FORMER)
    for n in range(count):
        await sim.client.start(FORMER[0](), id=f"r{n}")
    for n in range(count):
        await sim.until(f"r{n}", parked)
    return first


async def go_on(sim: Simulation, count: int) -> None:
    for n in range(count):
        await sim.client.handle(f"r{n}").send(GO, n)


async def results(sim: Simulation, count: int) -> list[str]:
    return [await sim.client.handle(f"r{n}", FORMER[0]).result() for n in range(count)]


def test_former_code_goes_on_while_a_worker_of_it_lives() -> None:
    """Whichever takes a run up first: the new build gives back what does not fit it, and the former one finishes."""

    async def scenario(sim: Simulation) -> Any:
        await begin(sim, 10)
        await sim.start_worker(definitions=REBUILT)
        await go_on(sim, 10)
        finished = await results(sim, 10)
        fresh = [await sim.client.start(REBUILT[0](), id=f"new{n}") for n in range(4)]
        for handle in fresh:
            await handle.send(GO, 1)
        return finished, [await one.result() for one in fresh]

    finished, fresh = Simulation([]).run(scenario)
    assert finished == ["former"] * 10
    assert set(fresh) <= {"former", "rebuilt"}


def test_a_run_is_blocked_once_no_fitting_build_is_left_and_goes_on_by_itself() -> None:
    """It is looked at once by the build that does not fit, and not again; a worker with fitting code takes it without a word."""

    async def scenario(sim: Simulation) -> Any:
        first = await begin(sim, 3)
        await first.stop()
        await sim.start_worker(definitions=REBUILT)
        await go_on(sim, 3)
        for n in range(3):
            await sim.until(f"r{n}", lambda head: head.status is Status.BLOCKED)
        before = len(sim.trace)
        await asyncio.sleep(600)
        looks = [one for one in sim.trace[before:] if "claimed" in one]
        reasons = {(await sim.client.handle(f"r{n}").status()).reason for n in range(3)}
        await sim.start_worker(definitions=FORMER)
        return looks, reasons, await results(sim, 3)

    looks, reasons, finished = Simulation([]).run(scenario)
    assert (looks, reasons) == ([], {"non-determinism"})
    assert finished == ["former"] * 3
    assert sorted(called) == ["load"] * 3 + ["save"] * 3


def test_two_builds_that_both_do_not_fit_do_not_hand_it_to_and_fro() -> None:
    """Each is remembered; the third one, which fits, is offered the run at once."""

    async def scenario(sim: Simulation) -> Any:
        first = await begin(sim, 1)
        await first.stop()
        await sim.start_worker(definitions=REBUILT)
        await sim.start_worker(definitions=build(_rebuilt, "v2b"))
        await go_on(sim, 1)
        await sim.until("r0", lambda head: head.status is Status.BLOCKED and head.epoch >= 3)
        before = len(sim.trace)
        await asyncio.sleep(600)
        looks = [one for one in sim.trace[before:] if "claimed" in one]
        await sim.start_worker(definitions=FORMER)
        return looks, await results(sim, 1)

    assert Simulation([]).run(scenario) == ([], ["former"])


def test_patched_code_takes_over_runs_of_both() -> None:
    """With the patch the former runs go the former way on the new build, and new ones the changed way; then the former can go."""

    async def scenario(sim: Simulation) -> Any:
        first = await begin(sim, 5)
        await sim.start_worker(definitions=PATCHED)
        await first.stop()
        await go_on(sim, 5)
        finished = await results(sim, 5)
        done = list(called)
        handle = await sim.client.start(PATCHED[0](), id="new")
        await handle.send(GO, 1)
        assert await handle.result() == "patched"
        return finished, done, called[len(done) :]

    finished, done, fresh = Simulation([]).run(scenario)
    assert finished == ["patched"] * 5
    assert "check" not in done
    assert fresh == ["check", "load", "save"]


def test_former_code_gives_back_what_patched_code_has_marked() -> None:
    """During a roll-back too: the marker says that it went the changed way, and the patched build takes it again."""

    async def scenario(sim: Simulation) -> Any:
        second = await sim.start_worker(definitions=PATCHED)
        handle = await sim.client.start(PATCHED[0](), id="r0")
        await sim.until("r0", parked)
        await second.stop()
        await sim.start_worker(definitions=FORMER)
        await handle.send(GO, 1)
        head = await sim.until("r0", lambda head: head.status is Status.BLOCKED)
        said = (await handle.status()).waits["error"]
        await sim.start_worker(definitions=PATCHED)
        return head.reason, said, await handle.result()

    reason, said, result = Simulation([]).run(scenario)
    assert (reason, result) == ("non-determinism", "patched")
    assert "the journal holds the marker of patch 'check-first'" in said
