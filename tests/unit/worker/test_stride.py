"""The common way of a run beside the pilot's: which one is taken, and that both never write at one time."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

import outlast
from outlast.errors import StoreUnavailableError
from outlast.journal.entry import Entry, MessageReceived, StepCompleted, StepFailed, from_row
from outlast.store.change import Applied, RunChange, RunKey, Status
from outlast.testing import Simulation
from outlast.worker.options import WorkerOptions
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


# What a hostile reader found


class OddError(Exception):
    """One that cannot be looked into."""

    @property
    def exceptions(self) -> tuple[BaseException, ...]:
        """Nobody finds out."""
        raise ValueError("no")


@outlast.step(retry=ONCE)
async def odd() -> None:
    raise OddError("odd")


@outlast.step
async def deaf() -> str:
    for _ in range(4):
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            noted.append("would not")
    return "at last"


@outlast.workflow
async def meets_the_odd() -> str:
    try:
        await odd()
    except outlast.StepFailedError:
        return "failed"
    return "never"


@outlast.workflow
async def long() -> str:
    return await stubborn()


@outlast.workflow
async def waits_for_the_deaf() -> str:
    return await deaf()


@outlast.workflow
async def busy(branches: int) -> int:
    async def branch(number: int) -> int:
        return await plain(number)

    return sum(await asyncio.gather(*(branch(number) for number in range(branches))))


MORE = [*CODE, long, odd, deaf, meets_the_odd, waits_for_the_deaf, busy]


def test_an_exception_that_cannot_be_looked_into_fails_its_step() -> None:
    """And leaves no run asleep."""

    async def scenario(sim: Simulation) -> str:
        worker = await sim.start_worker()
        async with asyncio.timeout(60):
            return await worker.client.run(meets_the_odd(), id="r")

    assert Simulation(MORE).run(scenario) == "failed"


def test_an_error_of_ours_at_the_end_of_a_body_blocks_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody waits for a callback: what it meets goes to the pilot."""

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("outlast.worker.executor.Executor.ended", broken)

    async def scenario(sim: Simulation) -> Status:
        worker = await sim.start_worker()
        handle = await worker.client.start(in_turn(2), id="r")
        await asyncio.sleep(5)
        return (await handle.status()).status

    assert Simulation(MORE).run(scenario) is Status.BLOCKED


def test_a_worker_stops_while_the_store_is_away() -> None:
    """What is under way then is written by nobody, and its lease says so in the end."""

    async def scenario(sim: Simulation) -> float:
        worker = await sim.start_worker()
        commit, is_away = sim.store.commit, asyncio.Event()

        async def away(changes: Any) -> Any:
            if is_away.is_set():
                raise StoreUnavailableError("away")
            return await commit(changes)

        sim.store.commit = away  # type: ignore[method-assign]
        await worker.client.start(hears(10), id="r")
        await asyncio.sleep(1)
        is_away.set()
        await asyncio.sleep(1)
        since = sim.clock.monotonic()
        await worker.stop(timedelta(seconds=1))
        return sim.clock.monotonic() - since

    assert Simulation(MORE).run(scenario) < 20


def test_a_body_that_will_not_end_holds_up_nobody() -> None:
    """A run that was terminated is let go of after a while, whatever its body does."""

    async def scenario(sim: Simulation) -> float:
        worker = await sim.start_worker()
        handle = await worker.client.start(waits_for_the_deaf(), id="r")
        await asyncio.sleep(3)
        await handle.terminate(reason="enough")
        since = sim.clock.monotonic()
        await worker.stop(timedelta(seconds=1))
        return sim.clock.monotonic() - since

    assert Simulation(MORE).run(scenario) < 15
    assert noted[:1] == ["would not"]


def test_who_waits_for_a_run_hears_at_once_that_it_was_terminated() -> None:
    """Although its worker holds it."""

    async def scenario(sim: Simulation) -> float:
        worker = await sim.start_worker()
        handle = await worker.client.start(waits_for_the_deaf(), id="r")
        waiting = asyncio.create_task(handle.result())
        await asyncio.sleep(3)
        since = sim.clock.monotonic()
        await handle.terminate(reason="enough")
        with pytest.raises(outlast.RunTerminatedError):
            await waiting
        return sim.clock.monotonic() - since

    assert Simulation(MORE).run(scenario) < 0.5


def test_what_returns_at_once_is_delivered_in_parts() -> None:
    """So that other runs have their turns between."""

    async def scenario(sim: Simulation) -> tuple[int, list[RunChange]]:
        changes = watched(sim)
        worker = await sim.start_worker()
        return await worker.client.run(busy(170), id="r"), changes

    result, changes = Simulation(MORE).run(scenario)
    assert result == sum(range(170))
    assert max(len(one.entries) for one in changes) == 50


@pytest.mark.parametrize("grace", [1, 20])
def test_attempts_go_on_for_as_long_as_the_options_say(grace: int) -> None:
    """When the worker stops; those that take longer are cancelled."""

    async def scenario(sim: Simulation) -> float:
        options = WorkerOptions(library="simulated", grace=timedelta(seconds=grace))
        worker = await sim.start_worker(options=options)
        await worker.client.start(long(), id="r")
        await asyncio.sleep(1)
        since = sim.clock.monotonic()
        await worker.stop()
        return sim.clock.monotonic() - since

    assert Simulation(MORE).run(scenario) == pytest.approx(grace, abs=0.5)
    assert noted == ["cleaned up"]
