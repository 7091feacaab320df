"""The common way of a run beside the pilot's: which one is taken, and that both never write at one time."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

import outlast
from outlast.journal.entry import Entry, MessageReceived, StepCompleted, StepFailed, from_row
from outlast.store.change import Applied, RunChange, RunKey, Status
from outlast.testing import Simulation
from outlast.worker.pilot import Pilot
from outlast.worker.stride import Stride

RUN = RunKey("default", "r")
ONCE = outlast.RetryPolicy(maximum_attempts=1)
go = outlast.Signal("go", str)
noted: list[str] = []


@outlast.step
async def plain(number: int) -> int:
    return number


@outlast.step
async def brief(number: int) -> int:
    await asyncio.sleep(0.3)
    return number


@outlast.step(retry=ONCE)
async def failing() -> int:
    raise OSError("no")


@outlast.step(start_to_close_timeout=timedelta(seconds=5))
async def timed(number: int) -> int:
    return number


@outlast.step
def in_thread(number: int) -> int:
    return number


@outlast.step
async def stubborn() -> str:
    try:
        await asyncio.sleep(100)
    finally:
        noted.append("cleaned up")
    return "never"


@outlast.workflow
async def in_turn(steps: int) -> int:
    return sum([await plain(number) for number in range(steps)])


@outlast.workflow
async def at_once(steps: int) -> int:
    return sum(await asyncio.gather(*(plain(number) for number in range(steps))))


@outlast.workflow
async def tries(what: str) -> str:
    steps = {"fails": failing, "is timed": lambda: timed(1), "is in a thread": lambda: in_thread(1)}
    await plain(1)
    try:
        await steps[what]()
    except OSError:
        return "failed"
    await plain(2)
    return "done"


@outlast.workflow
async def hears(steps: int) -> list[str]:
    heard: list[str] = []
    outlast.on_signal(go, heard.append)
    for number in range(steps):
        await brief(number)
    return heard


@outlast.workflow
async def gives_up() -> str:
    try:
        async with asyncio.timeout(5):
            return await stubborn()
    except TimeoutError:
        return f"gave up {await plain(1)}"


CODE = [plain, brief, failing, timed, in_thread, stubborn, in_turn, at_once, tries, hears, gives_up]


@pytest.fixture(autouse=True)
def _clean() -> None:
    noted.clear()


def counted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[None]:
    """Return a list that grows with each call of a method."""
    calls: list[None] = []
    original = getattr(owner, name)

    def counting(*args: Any, **kwargs: Any) -> Any:
        calls.append(None)
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, counting)
    return calls


def watched(sim: Simulation, seconds: float = 0.0) -> list[RunChange]:
    """Return the list to which each change of a run is added. Each commit takes so long, and each change has to be applied."""
    changes: list[RunChange] = []
    commit = sim.store.commit

    async def noting(batch: Any) -> Any:
        await asyncio.sleep(seconds)
        own = [one for one in batch if isinstance(one, RunChange)]
        assert len({one.run for one in own}) == len(own), "two changes of one run in one commit"
        verdicts = await commit(batch)
        for change, verdict in zip(batch, verdicts, strict=True):
            assert not isinstance(change, RunChange) or isinstance(verdict, Applied), verdict
        changes.extend(own)
        return verdicts

    sim.store.commit = noting  # type: ignore[method-assign]
    return changes


async def entries_of(sim: Simulation) -> list[Entry]:
    return [from_row(one.row) for one in await sim.store.journal(RUN)]


def test_steps_in_a_row_do_not_wake_the_pilot(monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins the first one and writes the end, however many there are."""
    strides = counted(monkeypatch, Stride, "_take_off")
    looks = counted(monkeypatch, Pilot, "_sort_commands")

    async def scenario(sim: Simulation) -> int:
        worker = await sim.start_worker()
        return await worker.client.run(in_turn(40), id="r")

    assert Simulation(CODE).run(scenario) == sum(range(40))
    assert len(strides) == 40
    assert len(looks) < 10


def test_what_returns_in_one_moment_is_written_together() -> None:
    """As one change, however many steps it is of."""

    async def scenario(sim: Simulation) -> tuple[int, list[RunChange]]:
        changes = watched(sim)
        worker = await sim.start_worker()
        return await worker.client.run(at_once(20), id="r"), changes

    result, changes = Simulation(CODE).run(scenario)
    assert result == sum(range(20))
    assert max(len(one.entries) for one in changes) == 20


@pytest.mark.parametrize("what", ["fails", "is timed", "is in a thread"])
def test_what_is_not_so_common_is_the_pilots(what: str) -> None:
    """And ends as ever."""

    async def scenario(sim: Simulation) -> tuple[str, list[Entry]]:
        watched(sim)
        worker = await sim.start_worker()
        return await worker.client.run(tries(what), id="r"), await entries_of(sim)

    result, entries = Simulation(CODE).run(scenario)
    assert result == ("failed" if what == "fails" else "done")
    kinds = [type(one) for one in entries if isinstance(one, StepCompleted | StepFailed)]
    assert kinds == [StepCompleted, StepFailed if what == "fails" else StepCompleted] + [
        StepCompleted
    ] * (what != "fails")


@pytest.mark.parametrize("commit_seconds", [0.0, 0.1, 0.35, 2.0])
def test_messages_come_between_and_nothing_is_written_twice(commit_seconds: float) -> None:
    """They come while a change is under way, at each moment of it: each is heard once and in order."""

    async def scenario(sim: Simulation) -> tuple[list[str], list[Entry]]:
        watched(sim, commit_seconds)
        worker = await sim.start_worker()
        handle = await worker.client.start(hears(12), id="r")
        for number in range(8):
            await asyncio.sleep(0.17)
            await handle.send(go, str(number))
        return await handle.result(), await entries_of(sim)

    heard, entries = Simulation(CODE).run(scenario)
    received = [one for one in entries if isinstance(one, MessageReceived)]
    assert heard == [str(number) for number in range(len(heard))]
    assert len(received) == len(heard) == 8
    assert sum(isinstance(one, StepCompleted) for one in entries) == 12


@pytest.mark.parametrize("commit_seconds", [0.0, 0.25, 1.0])
def test_a_pause_holds_it(commit_seconds: float) -> None:
    """What is under way is written; no body begins until the run is resumed."""

    async def scenario(sim: Simulation) -> tuple[int, int, list[str]]:
        changes = watched(sim, commit_seconds)
        worker = await sim.start_worker()
        handle = await worker.client.start(hears(10), id="r")
        await asyncio.sleep(2)
        await handle.pause(reason="look")
        while (await handle.status()).status is not Status.PAUSED:
            await asyncio.sleep(0.1)
        before = len(changes)
        await asyncio.sleep(30)
        after = len(changes)
        await handle.resume(reason="go on")
        return before, after, await handle.result()

    before, after, heard = Simulation(CODE).run(scenario)
    assert before == after
    assert heard == []


def test_a_body_that_nobody_waits_for_any_more_is_cancelled() -> None:
    """It may clean up, and the workflow goes on beside that."""

    async def scenario(sim: Simulation) -> str:
        watched(sim)
        worker = await sim.start_worker()
        return await worker.client.run(gives_up(), id="r")

    assert Simulation(CODE).run(scenario) == "gave up 1"
    assert noted == ["cleaned up"]


def test_a_worker_that_stops_writes_what_is_under_way() -> None:
    """And gives the run back, which goes on elsewhere without doing a step twice."""

    async def scenario(sim: Simulation) -> tuple[int, int]:
        changes = watched(sim, 0.2)
        first = await sim.start_worker()
        await first.client.start(hears(10), id="r")
        await asyncio.sleep(2)
        await first.stop()
        outcomes = len(changes)
        second = await sim.start_worker()
        await second.client.handle("r").result()
        return outcomes, sum(isinstance(one, StepCompleted) for one in await entries_of(sim))

    outcomes, steps = Simulation(CODE).run(scenario)
    assert outcomes > 0
    assert steps == 10
