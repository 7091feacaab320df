"""Two builds of an app beside each other, as during a deploy: a run goes to one that it fits, and waits where none is left."""

# ruff: noqa: D103 - the workflows of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import outlast
from outlast.journal.entry import Accepted, Taken
from outlast.store.change import RunHead, Status
from outlast.testing import SimulatedWorker, Simulation
from outlast.workflows.definition import AttemptOptions, Definition, Step, Workflow
from outlast.workflows.registry import Registry

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


# Pinned workflows


async def _same() -> str:
    """Ask for what former code asks, and end otherwise: it would fit every journal of that."""
    await LOAD(1)
    await outlast.receive(GO)
    await SAVE(2)
    return "later"


async def _rolls() -> str:
    await LOAD(1)
    if outlast.info().generation < 12:
        outlast.continue_as_new(OLD[0]())
    return "rolled"


def pinned(body: Callable[[], Coroutine[Any, Any, str]], module: str) -> list[Definition[..., Any]]:
    async def flow() -> str:
        return await body()

    workflow = Workflow(flow, pin=True)
    workflow.__module__ = module
    return [workflow, LOAD, SAVE, CHECK]


OLD, NEW = pinned(_former, "v1"), pinned(_same, "v2")
ROLLS = [pinned(_rolls, "v1"), pinned(_rolls, "v2")]


async def left_alone(sim: Simulation) -> str:
    """Begin a run, kill its worker, and start one of another build; return what is told once it has looked."""
    first = await sim.start_worker(definitions=OLD)
    await sim.client.start(OLD[0](), id="r0")
    await sim.until("r0", parked)
    first.kill()
    await sim.start_worker(definitions=NEW)
    await go_on(sim, 1)
    await sim.until("r0", lambda head: head.status is Status.BLOCKED)
    return (await sim.client.handle("r0").explain()).text


def test_code_that_fits_moves_a_run_that_is_not_pinned() -> None:
    """What a pin is against: the run goes on with other code, which fits its journal."""

    async def scenario(sim: Simulation) -> list[str]:
        first = await begin(sim, 1)
        first.kill()
        await sim.start_worker(definitions=build(_same, "v2"))
        await go_on(sim, 1)
        return await results(sim, 1)

    assert Simulation([]).run(scenario) == ["later"]


def test_a_pinned_run_waits_for_its_build() -> None:
    """It is blocked, says so and why, and goes on by itself when a worker of its build starts."""

    async def scenario(sim: Simulation) -> tuple[str, str, list[str]]:
        told = await left_alone(sim)
        status = await sim.client.handle("r0").status()
        await sim.start_worker(definitions=OLD)
        return told, status.reason, await results(sim, 1)

    told, reason, result = Simulation([]).run(scenario)
    assert reason == "pinned"
    assert "only the build which has begun a run moves it" in told
    assert "its workflow is pinned" in told
    assert result == ["former"]


def test_a_pinned_run_goes_to_its_build_whichever_looks_first() -> None:
    """Beside each other, as during a deploy: new runs go to either build, and each stays with it."""

    async def scenario(sim: Simulation) -> list[tuple[str, str]]:
        for definitions in (OLD, NEW):
            await sim.start_worker(definitions=definitions)
        found: list[tuple[str, str]] = []
        for n in range(8):
            await sim.client.start(OLD[0](), id=f"r{n}")
        await asyncio.sleep(60)
        await go_on(sim, 8)
        for n, result in enumerate(await results(sim, 8)):
            taken = await taken_by(sim, f"r{n}")
            found.append((taken, result))
        return found

    found = Simulation([]).run(scenario)
    builds = {Registry(OLD).build(): "former", Registry(NEW).build(): "later"}
    assert all(builds[build] == result for build, result in found)


async def taken_by(sim: Simulation, run_id: str) -> str:
    """Return the build to which a run is pinned."""
    entries = [one.entry for one in await sim.client.handle(run_id).journal()]
    (taken,) = [one for one in entries if isinstance(one, Taken)]
    return taken.build


def test_an_operator_lets_workers_of_any_build_go_on() -> None:
    """It is on record, by whom and why, and holds for whoever comes after."""

    async def scenario(sim: Simulation) -> tuple[list[str], list[Accepted]]:
        told = await left_alone(sim)
        assert "let workers of any build go on" in told
        handle = sim.client.handle("r0")
        await handle.accept(any_build=True, reason="the old build is gone")
        result = await results(sim, 1)
        entries = [one.entry for one in await handle.journal()]
        return result, [one for one in entries if isinstance(one, Accepted)]

    result, accepted = Simulation([]).run(scenario)
    assert result == ["later"]
    assert accepted == [Accepted(any_build=True, by="tester", reason="the old build is gone")]


def test_a_new_generation_begins_with_the_build_that_takes_it_up() -> None:
    """A run that never ends moves on to new code when it rolls over; each generation stays with one build."""

    async def scenario(sim: Simulation) -> set[str]:
        for definitions in ROLLS:
            await sim.start_worker(definitions=definitions)
        handle = await sim.client.start(ROLLS[0][0](), id="r0")
        assert await handle.result() == "rolled"
        builds: set[str] = set()
        for one in await handle.generations():
            journal = await handle.journal(generation=one.generation)
            builds |= {row.entry.build for row in journal if isinstance(row.entry, Taken)}
        return builds

    both = {Registry(one).build() for one in ROLLS}
    assert len(both) == 2
    assert Simulation([], seed=1).run(scenario) == both


def test_a_fork_is_not_pinned_to_the_build_of_its_origin() -> None:
    """It is new work, by whoever takes it up."""

    async def scenario(sim: Simulation) -> str:
        first = await sim.start_worker(definitions=OLD)
        await sim.client.start(OLD[0](), id="r0")
        await sim.until("r0", parked)
        first.kill()
        await sim.start_worker(definitions=NEW)
        fork = await sim.client.handle("r0", OLD[0]).fork(id="f", reason="to see")
        await fork.send(GO, 1)
        return await fork.result()

    assert Simulation([]).run(scenario) == "later"


COUNT, WORD = outlast.Signal("told in between", int), outlast.Signal("told in between", str)


async def _receives(signal: outlast.Signal[Any]) -> str:
    told = await outlast.receive(signal)
    await outlast.receive(GO)
    return f"{told!r}"


async def _handles(signal: outlast.Signal[Any]) -> str:
    told: list[Any] = []
    outlast.on_signal(signal, told.append)
    await outlast.receive(GO)
    return f"{told[0]!r}"


@pytest.mark.parametrize("takes", [_receives, _handles])
def test_a_message_that_new_types_refuse_is_kept_for_code_that_fits(takes: Any) -> None:
    """However the run takes it: it is blocked and does not fail, and the former code goes on with the message."""
    former, changed = build(lambda: takes(COUNT), "v1"), build(lambda: takes(WORD), "v2")

    async def scenario(sim: Simulation) -> tuple[str, str]:
        first = await sim.start_worker(definitions=former)
        handle = await sim.client.start(former[0](), id="r")
        await handle.send(COUNT, 3)
        await sim.until("r", lambda head: parked(head) and head.next_seq == 3)
        await first.stop()
        await sim.start_worker(definitions=changed)
        await handle.send(GO, 1)
        blocked = await sim.until("r", lambda head: head.status is Status.BLOCKED)
        await sim.start_worker(definitions=former)
        return blocked.reason, await handle.result()

    assert Simulation([]).run(scenario) == ("undecodable", "3")
