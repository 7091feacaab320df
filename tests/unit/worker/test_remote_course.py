"""The course of a remote step between its call and its outcome: pauses, generations, the time for all attempts."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest

import outlast
from outlast.client import RunHandle
from outlast.journal.entry import from_row
from outlast.store.change import BeatTask, RunKey, Status
from outlast.testing import Faults, SimulatedWorker, Simulation, WorkerOptions
from outlast.testing.loop import current_process
from outlast.workflows.definition import Definition

RUN = RunKey("default", "r")
began: list[tuple[str, int, float]] = []
"""Step, attempt and second of each body that began."""
where: list[str] = []
"""The process of each of them."""
ended: list[str] = []
tokens: list[str] = []
idle = [timedelta(0)]
found: list[Any] = []
"""What attempts found of those before."""
sims: list[Simulation] = []
THRICE = outlast.RetryPolicy(
    maximum_attempts=3, initial_interval=timedelta(seconds=2), backoff_coefficient=1.0
)


def _note() -> int:
    attempt = outlast.attempt()
    process = current_process.get()
    assert process is not None
    began.append((attempt.name, attempt.number, sims[-1].clock.monotonic()))
    where.append((process.parent or process).name)
    return attempt.number


@outlast.step(queue="gpu")
async def far(seconds: float) -> str:
    _note()
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        ended.append("cancelled")
        raise
    ended.append("done")
    return "far"


@outlast.step(queue="gpu", schedule_to_start_timeout=timedelta(minutes=1))
async def far_soon() -> str:
    _note()
    return "soon"


@outlast.step(queue="gpu", retry=THRICE)
async def far_third_time() -> int:
    number = _note()
    if number < 3:
        raise OSError("not yet")
    return number


@outlast.workflow
async def alone(seconds: float) -> str:
    return await far(seconds)


@outlast.workflow
async def soon() -> str:
    try:
        return await far_soon()
    except TimeoutError as error:
        return str(error)


@outlast.workflow
async def retried() -> int:
    return await far_third_time()


WHOLE = timedelta(seconds=60)


@outlast.step(queue="gpu", schedule_to_close_timeout=WHOLE, retry=THRICE)
async def far_within(seconds: float, fails: int) -> str:
    number = _note()
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        ended.append("cancelled")
        raise
    if number <= fails:
        raise OSError("not yet")
    return f"attempt {number}"


@outlast.workflow
async def within(seconds: float, fails: int) -> str:
    try:
        return await far_within(seconds, fails)
    except TimeoutError as error:
        await outlast.sleep(30)
        return f"{error} | {error.__cause__}"


@outlast.step(queue="gpu", heartbeat_timeout=timedelta(seconds=10), retry=THRICE)
async def far_tick(seconds: int, fails: int, silent: int) -> str:
    """Beat each second; fail after the half in the first attempts, or say nothing more from there."""
    number = _note()
    first = outlast.heartbeat_details(int)
    found.append(first)
    try:
        for second in range(first or 0, seconds):
            outlast.heartbeat(second)
            await asyncio.sleep(1)
            if second == seconds // 2 and number <= fails:
                raise OSError("the line is down")
            if second == seconds // 2 and number <= silent:
                await asyncio.sleep(1000)
    except asyncio.CancelledError:
        ended.append("cancelled")
        raise
    return f"attempt {number}"


@outlast.workflow
async def ticks(seconds: int, fails: int, silent: int) -> str:
    return await far_tick(seconds, fails, silent)


@outlast.step(
    queue="gpu",
    start_to_close_timeout=timedelta(seconds=30),
    schedule_to_close_timeout=timedelta(seconds=100),
    retry=THRICE,
)
async def far_asks(seconds: float) -> str:
    """Hand the step out, and go on for a while before it ends."""
    _note()
    found.append(outlast.heartbeat_details(str))
    outlast.heartbeat(f"asked {outlast.attempt().number}")
    tokens.append(outlast.completion_token())
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        ended.append("cancelled")
        raise
    outlast.complete_later()


@outlast.step(queue="gpu")
def far_asks_for_ever() -> int:
    _note()
    tokens.append(outlast.completion_token())
    outlast.complete_later()


@outlast.step
async def near(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "near"


@outlast.workflow
async def asks_beside(seconds: float) -> list[str]:
    return list(await asyncio.gather(far_asks(1.0), near(seconds)))


@outlast.workflow
async def asks(seconds: float) -> str:
    try:
        return await far_asks(seconds)
    except TimeoutError as error:
        return str(error)


@outlast.workflow
async def asks_for_ever() -> int:
    return await far_asks_for_ever() + 1


async def _failed_or_handed_out(fails: bool) -> str:
    """Fail at the first attempt, or hand it out at once."""
    number = _note()
    if fails and number > 1:
        return "done"
    if fails:
        raise OSError("not yet")
    tokens.append(outlast.completion_token())
    return outlast.complete_later()


SHORT = timedelta(seconds=10)


@outlast.step(queue="gpu", retry=THRICE, schedule_to_start_timeout=SHORT)
async def far_begun(fails: bool) -> str:
    return await _failed_or_handed_out(fails)


@outlast.step(queue="gpu", retry=THRICE, schedule_to_close_timeout=SHORT)
async def far_closed(fails: bool) -> str:
    return await _failed_or_handed_out(fails)


@outlast.step(queue="gpu", schedule_to_start_timeout=SHORT)
async def far_slow() -> str:
    _note()
    await asyncio.sleep(60)
    return "far"


@outlast.workflow
async def naps_beside() -> list[str]:
    async def nap() -> str:
        await outlast.sleep(SHORT)
        return "slept"

    return list(await asyncio.gather(far_slow(), nap()))


@outlast.workflow
async def begun_beside(fails: bool) -> list[str]:
    return list(await asyncio.gather(far_begun(fails), near(9.75)))


@outlast.workflow
async def closed_beside(fails: bool) -> list[str]:
    both = await asyncio.gather(far_closed(fails), near(9.75), return_exceptions=True)
    return [str(one) for one in both]


@outlast.workflow
async def rolls(left: int) -> str:
    """Begin a step that the next generation does not wait for."""
    if not left:
        return await far(1.0)
    beside = asyncio.create_task(far(1000.0))
    await outlast.sleep(5)
    assert not beside.done()
    return outlast.continue_as_new(rolls(left - 1))


STEPS: list[Definition[..., Any]] = [
    far,
    far_soon,
    far_third_time,
    far_within,
    far_tick,
    far_asks,
    far_asks_for_ever,
    far_begun,
    far_closed,
    far_slow,
]
CODE: list[Definition[..., Any]] = [
    *STEPS,
    alone,
    soon,
    retried,
    rolls,
    within,
    ticks,
    asks,
    asks_beside,
    near,
    asks_for_ever,
    begun_beside,
    closed_beside,
    naps_beside,
]
QUIET = WorkerOptions(library="simulated", poll=timedelta(seconds=1))
GPU = replace(QUIET, queues=("gpu",))


@pytest.fixture(autouse=True, params=[0.0, 300.0], ids=["parks", "stays"])
def _clean(request: pytest.FixtureRequest) -> None:
    """The run leaves memory at once where it can, or only after minutes."""
    idle[0] = timedelta(seconds=request.param)
    for told in (began, where, ended, found, tokens):
        told.clear()


def simulated(scenario: Callable[[Simulation], Awaitable[Any]]) -> Any:
    """Run a scenario, and see that nothing of a task is left behind."""
    sims.append(Simulation(CODE, options=replace(QUIET, idle=idle[0])))
    result = sims[-1].run(scenario)
    closed = [key for key, run in sims[-1].invariants.runs.items() if run.closed]
    assert [key for key, run in sims[-1].store.runs.items() if run.tasks() and key in closed] == []
    return result


async def taker(sim: Simulation, name: str = "taker") -> SimulatedWorker:
    """Start a worker that has the steps and no workflow."""
    return await sim.start_worker(name, definitions=STEPS, options=GPU)


async def begun(count: int = 1) -> None:
    """Wait until so many bodies have begun."""
    while len(began) < count:
        await asyncio.sleep(0.1)


async def waits(sim: Simulation) -> None:
    """Wait until the run has a task."""
    while not await sim.store.tasks(RUN):
        await asyncio.sleep(0.1)


async def paused(sim: Simulation, handle: RunHandle[Any]) -> None:
    """Pause the run, and wait until it is parked."""
    await handle.pause("wait")
    await sim.until("r", lambda head: head.status is Status.PAUSED)


async def kinds(sim: Simulation) -> list[str]:
    """Return the kinds of the entries."""
    return [type(from_row(one.row)).__name__ for one in await sim.store.journal(RUN)]


# Pauses


@pytest.mark.parametrize("idle", ["owner stays", "owner dies"])
def test_no_task_of_a_paused_run_is_taken(idle: str) -> None:
    """What waits goes on waiting, whoever comes; after the resume it is taken, and its time to be started begins anew."""

    async def scenario(sim: Simulation) -> tuple[str, list[str]]:
        owner = await sim.start_worker("owner")
        handle = await sim.client.start(soon(), id="r")
        await waits(sim)
        await asyncio.sleep(50)
        await paused(sim, handle)
        server = await taker(sim)
        if idle == "owner dies":
            owner.kill()
            await sim.start_worker("other")
        await asyncio.sleep(600)
        assert began == []
        await server.stop(timedelta(0))
        await handle.resume("go on")
        await asyncio.sleep(50)
        assert not (await handle.status()).status.closed
        await taker(sim, "late")
        return await handle.result(), await kinds(sim)

    result, entries = simulated(scenario)
    assert result == "soon"
    assert entries.count("StepFailed") == 0


def test_the_time_to_be_started_is_over_once_after_a_pause() -> None:
    """A resumed step waits its whole time for a worker again, and no longer."""

    async def scenario(sim: Simulation) -> tuple[float, str]:
        await sim.start_worker("owner")
        handle = await sim.client.start(soon(), id="r")
        await waits(sim)
        await asyncio.sleep(50)
        await paused(sim, handle)
        await asyncio.sleep(600)
        since = sim.clock.monotonic()
        await handle.resume("go on")
        await sim.until("r", lambda head: head.status.closed)
        return sim.clock.monotonic() - since, await handle.result()

    seconds, result = simulated(scenario)
    assert "was not started within 0:01:00" in result
    assert 59 < seconds < 65


def test_what_a_worker_has_ends_in_the_pause_and_counts_after_it() -> None:
    """An attempt that has begun is not disturbed; its outcome is read when the run goes on."""

    async def scenario(sim: Simulation) -> str:
        await sim.start_worker("owner")
        await taker(sim)
        handle = await sim.client.start(alone(20.0), id="r")
        await begun()
        await paused(sim, handle)
        await asyncio.sleep(60)
        assert ended == ["done"]
        assert "StepCompleted" not in await kinds(sim)
        await handle.resume("go on")
        return await handle.result()

    assert simulated(scenario) == "far"
    assert len(began) == 1


def test_no_next_attempt_is_put_in_a_pause() -> None:
    """An attempt that fails while the run is paused is followed by another one after the resume."""

    async def scenario(sim: Simulation) -> int:
        await sim.start_worker("owner")
        await taker(sim)
        handle = await sim.client.start(retried(), id="r")
        await begun()
        await paused(sim, handle)
        await asyncio.sleep(60)
        assert len(began) == 1
        await handle.resume("go on")
        return await handle.result()

    assert simulated(scenario) == 3
    assert [number for _, number, _ in began] == [1, 2, 3]


@pytest.mark.parametrize("death", ["kill", "stop"])
def test_a_task_that_comes_back_in_a_pause_waits_for_the_resume(death: str) -> None:
    """Whose worker dies or stops goes to another one, but not while the run is paused."""

    async def scenario(sim: Simulation) -> str:
        await sim.start_worker("owner")
        first = await taker(sim)
        handle = await sim.client.start(alone(20.0), id="r")
        await begun()
        await paused(sim, handle)
        first.kill() if death == "kill" else await first.stop(timedelta(0))
        await taker(sim, "second")
        await asyncio.sleep(200)
        assert len(began) == 1
        await handle.resume("go on")
        return await handle.result()

    assert simulated(scenario) == "far"
    assert where == ["taker", "second"]


def test_no_timer_fires_in_a_pause_that_is_read_after_a_refused_change() -> None:
    """The owner is told of nothing: what it would write of timer and task is refused, since the task has been taken; then it reads of the pause."""

    async def scenario(sim: Simulation) -> tuple[list[str], list[str]]:
        options = replace(QUIET, idle=idle[0], poll=timedelta(seconds=5))
        owner = await sim.start_worker("owner", options=options)
        owner.store.faults = Faults(lost_hint=1.0)
        sim.spawn(owner.within(owner.client.start(naps_beside(), id="r")))
        await asyncio.sleep(9)
        handle = sim.client.handle("r")
        await handle.pause("wait")
        await asyncio.sleep(0.9)
        await taker(sim)
        await asyncio.sleep(10)
        before = await kinds(sim)
        await handle.resume("go on")
        return before, await handle.result()

    before, result = simulated(scenario)
    assert before == ["Started", "Taken", "PauseRequested"]
    assert result == ["far", "slept"]


def test_a_cancel_of_a_paused_run_takes_its_tasks_along() -> None:
    """The pause ends with the cancel; what waited is dropped, and nobody begins it."""

    async def scenario(sim: Simulation) -> str:
        await sim.start_worker("owner")
        handle = await sim.client.start(alone(1.0), id="r")
        await waits(sim)
        await paused(sim, handle)
        await handle.cancel("enough")
        await sim.until("r", lambda head: head.status.closed)
        assert await sim.store.tasks(RUN) == ()
        return (await handle.status()).status

    assert simulated(scenario) == "cancelled"


# Generations and forks


def test_the_next_generation_has_no_task_of_the_last() -> None:
    """An attempt of a generation that is over is cancelled; the same operation of the next one has a task of its own."""

    async def scenario(sim: Simulation) -> str:
        await sim.start_worker("owner")
        await taker(sim)
        handle = await sim.client.start(rolls(2), id="r")
        await sim.until("r", lambda head: head.status.closed)
        assert (await handle.status()).generation == 3
        return await handle.result()

    assert simulated(scenario) == "far"
    assert ended == ["cancelled", "cancelled", "done"]
    assert len(began) == 3


def test_a_fork_puts_tasks_of_its_own() -> None:
    """A fork of a run whose step is with a worker begins without tasks, and leaves that one alone."""

    async def scenario(sim: Simulation) -> list[str]:
        owner = await sim.start_worker("owner")
        server = await taker(sim)
        handle = await sim.client.start(alone(60.0), id="r")
        await begun()
        fork = RunKey("default", "f")
        (before,) = await sim.store.tasks(RUN)
        owner.kill()
        forked = await handle.fork(1, id="f", reason="to see")
        assert await sim.store.tasks(fork) == ()
        assert await sim.store.tasks(RUN) == (before,)
        await sim.start_worker("other")
        found = [await handle.result(), await forked.result()]
        assert server.worker.tasks == []
        return found

    assert simulated(scenario) == ["far", "far"]
    assert [(name, number) for name, number, _ in began] == [("far", 1)] * 2


# The time for all attempts


def timed(
    seconds: float, fails: int, act: Callable[[Simulation], Awaitable[Any]]
) -> tuple[float, str]:
    """Start the step and do something; return after how many seconds its time was over, or it was done, and what came of it."""

    async def scenario(sim: Simulation) -> tuple[float, str]:
        handle = await sim.client.start(within(seconds, fails), id="r")
        since = sim.store.now()
        await act(sim)
        await sim.until("r", lambda head: head.status.closed)
        rows = await sim.store.journal(RUN)
        (at,) = [one.at for one in rows if type(from_row(one.row)).__name__.startswith("Step")]
        assert await sim.store.tasks(RUN) == ()
        return (at - since).total_seconds(), await handle.result()

    return simulated(scenario)


async def both(sim: Simulation) -> None:
    """Start an owner and a taker."""
    await sim.start_worker("owner")
    await taker(sim)


def test_attempts_share_the_time() -> None:
    """An attempt that would begin too late is not made: the step fails with the last failure as its cause."""
    seconds, result = timed(28.5, 3, both)
    assert "was not done within 0:01:00 of its call, in 2 attempts" in result
    assert "not yet" in result
    assert 55 < seconds < 62
    assert [number for _, number, _ in began] == [1, 2]


def test_what_is_done_in_time_is_done() -> None:
    """Attempts that fit into it are made."""
    seconds, result = timed(10.0, 2, both)
    assert result == "attempt 3"
    assert seconds < 60


def test_the_time_is_over_while_nobody_serves_the_queue() -> None:
    """It runs while the step waits for a worker."""

    async def nobody(sim: Simulation) -> None:
        await sim.start_worker("owner")

    seconds, result = timed(1.0, 0, nobody)
    assert "was not done within 0:01:00 of its call, and not begun" in result
    assert 59 < seconds < 62
    assert began == []


def test_the_time_is_over_while_a_worker_has_it() -> None:
    """The attempt is cancelled at its worker's next look."""
    seconds, result = timed(1000.0, 0, both)
    assert "was not done within 0:01:00" in result
    assert 59 < seconds < 62
    assert ended == ["cancelled"]


@pytest.mark.parametrize("late", [False, True])
def test_the_time_runs_on_without_an_owner(late: bool) -> None:
    """Another owner does not give the step more time, be it there before the end or only after it."""

    async def dies(sim: Simulation) -> None:
        owner = await sim.start_worker("owner")
        await taker(sim)
        await begun()
        await asyncio.sleep(20)
        owner.kill()
        await asyncio.sleep(100 if late else 1)
        await sim.start_worker("other")

    seconds, result = timed(1000.0, 0, dies)
    assert "was not done within 0:01:00" in result
    assert (120 < seconds < 125) if late else (59 < seconds < 62)
    assert len(began) == 1
    assert ended == ["cancelled"]


def test_an_outcome_that_waits_is_taken_in_before_the_time_is_judged() -> None:
    """What was done in time counts, also when the next owner reads of it after the end."""

    async def dies(sim: Simulation) -> None:
        owner = await sim.start_worker("owner")
        await taker(sim)
        await begun()
        owner.kill()
        await asyncio.sleep(100)
        await sim.start_worker("other")

    _, result = timed(10.0, 0, dies)
    assert result == "attempt 1"


@pytest.mark.parametrize("fails", [True, False], ids=["fails", "handed out"])
@pytest.mark.parametrize("flow", [begun_beside, closed_beside])
def test_the_end_of_an_attempt_that_is_read_when_the_time_is_over(flow: Any, fails: bool) -> None:
    """An owner that was cut off from the store reads both at once: the attempt was begun in time, and what it said is not lost."""

    async def scenario(sim: Simulation) -> str:
        owner = await sim.start_worker("owner")
        handle = await sim.client.start(flow(fails), id="r")
        await asyncio.sleep(9.7)
        owner.store.faults = Faults(down=True)
        await asyncio.sleep(0.15)
        await taker(sim)
        await asyncio.sleep(2.5)
        assert len(began) == 1
        owner.store.faults = Faults()
        await asyncio.sleep(10)
        if flow is begun_beside and not fails:
            await sim.client.complete(tokens[0], "done")
        return (await handle.result())[0]

    result = simulated(scenario)
    assert result == "done" if flow is begun_beside else "was not done within" in result
    assert len(began) == (2 if fails and flow is begun_beside else 1)


# Signs of life


def beats_of(worker: SimulatedWorker) -> list[float]:
    """Return when the worker wrote a beat, as that goes on."""
    times: list[float] = []
    submit = worker.worker._deck.writer.submit

    async def seen(change: Any) -> Any:
        if isinstance(change, BeatTask):
            times.append(sims[-1].clock.monotonic())
        return await submit(change)

    worker.worker._deck.writer.submit = seen  # pyright: ignore[reportAttributeAccessIssue]
    return times


def test_the_next_attempt_finds_what_the_last_one_said() -> None:
    """With a failure the newest details are recorded, whichever worker makes the next attempt; writes are few."""

    async def scenario(sim: Simulation) -> str:
        await sim.start_worker("owner")
        times = beats_of(await taker(sim))
        handle = await sim.client.start(ticks(20, 2, 0), id="r")
        result = await handle.result()
        gaps = [two - one for one, two in zip(times, times[1:], strict=False)]
        assert len(times) <= 6
        assert sum(gap < 7.9 for gap in gaps) <= 2  # each attempt has a first one
        return result

    assert simulated(scenario) == "attempt 3"
    assert found == [None, 10, 10]


def test_another_taker_finds_what_was_kept() -> None:
    """A killed worker loses what was said since the last write; the attempt goes on elsewhere, and is not counted as failed."""

    async def scenario(sim: Simulation) -> str:
        await sim.start_worker("owner")
        first = await taker(sim)
        handle = await sim.client.start(ticks(40, 0, 0), id="r")
        await begun()
        await asyncio.sleep(20)
        first.kill()
        await taker(sim, "second")
        return await handle.result()

    assert simulated(scenario) == "attempt 1"
    assert where == ["taker", "second"]
    assert found[0] is None
    assert 10 <= found[1] <= 20


def test_a_stop_keeps_the_last_word() -> None:
    """What is given back past the grace has the newest details with it."""

    async def scenario(sim: Simulation) -> str:
        await sim.start_worker("owner")
        first = await taker(sim)
        handle = await sim.client.start(ticks(40, 0, 0), id="r")
        await begun()
        await asyncio.sleep(23.5)
        await first.stop(timedelta(0))
        await taker(sim, "second")
        return await handle.result()

    assert simulated(scenario) == "attempt 1"
    assert found == [None, 23]


def test_a_silent_attempt_is_cancelled_and_counts_as_failed() -> None:
    """As that of a step which runs here: by `TimeoutError`, with what it said last."""

    async def scenario(sim: Simulation) -> str:
        await sim.start_worker("owner")
        await taker(sim)
        return await (await sim.client.start(ticks(20, 0, 1), id="r")).result()

    assert simulated(scenario) == "attempt 2"
    assert ended == ["cancelled"]
    assert found == [None, 10]


def test_what_was_said_outlives_the_owner() -> None:
    """The record of the failed attempts and the next task have it."""

    async def scenario(sim: Simulation) -> str:
        owner = await sim.start_worker("owner")
        await taker(sim)
        handle = await sim.client.start(ticks(20, 2, 0), id="r")
        await begun()
        owner.kill()
        await asyncio.sleep(60)
        await sim.start_worker("other")
        return await handle.result()

    assert simulated(scenario) == "attempt 3"
    assert found == [None, 10, 10]


@pytest.mark.parametrize("how", ["cancel", "terminate"])
def test_a_beat_that_finds_its_task_gone_ends_the_attempt(how: str) -> None:
    """Nobody waits for it: it learns so by its next beat that is written, also where its worker looks seldom."""

    async def scenario(sim: Simulation) -> float:
        await sim.start_worker("owner")
        handle = await sim.client.start(ticks(100, 0, 0), id="r")
        await waits(sim)
        options = replace(GPU, poll=timedelta(hours=1))
        server = await sim.start_worker("taker", definitions=STEPS, options=options)
        server.store.faults = Faults(lost_hint=1.0)
        await begun()
        since = sim.clock.monotonic()
        await (handle.cancel("enough") if how == "cancel" else handle.terminate("enough"))
        while not ended:
            await asyncio.sleep(0.1)
        return sim.clock.monotonic() - since

    assert simulated(scenario) < 10
    assert ended == ["cancelled"]


# Completion from outside


async def handed_out(sim: Simulation) -> None:
    """Wait until the run knows that the outcome comes from outside."""
    while True:
        image = await sim.store.load(RUN)
        if image is not None and any(one.awaits for one in image.operations):
            assert image.tasks == ()
            return
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("after", ["nothing", "owner dies", "taker dies", "both die"])
def test_a_remote_step_is_completed_from_outside(after: str) -> None:
    """The operation stays open without an attempt and without a task, the run leaves memory, and the answer is the outcome."""

    async def scenario(sim: Simulation) -> int:
        owner = await sim.start_worker("owner")
        server = await taker(sim)
        handle = await sim.client.start(asks_for_ever(), id="r")
        await handed_out(sim)
        if after in ("owner dies", "both die"):
            owner.kill()
            await sim.start_worker("other")
        if after in ("taker dies", "both die"):
            server.kill()
            await taker(sim, "second")
        head = await sim.until(
            "r", lambda head: head.status is Status.WAITING and head.owner is None
        )
        note = msgspec.json.decode(head.note)
        assert (note["tasks"], note["completions"]) == ({}, {"r:1": None})
        await asyncio.sleep(600)
        await sim.client.complete(tokens[0], 41)
        return await handle.result()

    assert simulated(scenario) == 42
    assert len(began) == 1


def test_what_is_not_completed_in_time_is_attempted_again_elsewhere() -> None:
    """Its time counts from the hand-out; then the attempt has failed, and the next one is a task, with what was said."""

    async def scenario(sim: Simulation) -> str:
        await sim.start_worker("owner")
        await taker(sim)
        handle = await sim.client.start(asks(5.0), id="r")
        await begun(2)
        await sim.client.complete(tokens[0], "answered")
        return await handle.result()

    assert simulated(scenario) == "answered"
    assert tokens[0] == tokens[1]
    assert found == [None, "asked 1"]
    (_, _, one), (_, _, two) = began
    assert 36.5 < two - one < 39
    assert set(where) == {"taker"}


@pytest.mark.parametrize("after", ["nothing", "owner dies"])
def test_attempts_that_are_handed_out_share_the_time(after: str) -> None:
    """The time for all attempts ends the wait, whoever has the run by then."""

    async def scenario(sim: Simulation) -> tuple[float, str]:
        since = sim.clock.monotonic()
        owner = await sim.start_worker("owner")
        await taker(sim)
        handle = await sim.client.start(asks(5.0), id="r")
        await handed_out(sim)
        if after == "owner dies":
            owner.kill()
            await sim.start_worker("other")
        result = await handle.result()
        return sim.clock.monotonic() - since, result

    seconds, result = simulated(scenario)
    assert "far_asks was" in result
    assert 98 < seconds < 105
    assert [number for _, number, _ in began] == [1, 2, 3]


@pytest.mark.parametrize("latency", [0.0, 0.2])
def test_a_hand_out_that_the_next_owner_finds_is_waited_for_once(latency: float) -> None:
    """The word of it is read before the step is carried out there: its timeout is one failed attempt, and one task follows."""

    async def scenario(sim: Simulation) -> list[str]:
        owner = await sim.start_worker("owner")
        await taker(sim)
        handle = await sim.client.start(asks_beside(300.0), id="r")
        await begun()
        await owner.stop(timedelta(0))
        await asyncio.sleep(3)
        await sim.start_worker("other", faults=Faults(latency=latency))
        await begun(2)
        await asyncio.sleep(10)
        await sim.client.complete(tokens[-1], "answered")
        return await handle.result()

    assert simulated(scenario) == ["answered", "near"]
    assert [number for _, number, _ in began] == [1, 2]


def test_an_answer_may_come_before_the_body_has_ended() -> None:
    """It is the outcome; the attempt is cancelled, and what it comes to is dropped."""

    async def scenario(sim: Simulation) -> str:
        await sim.start_worker("owner")
        await taker(sim)
        handle = await sim.client.start(asks(25.0), id="r")
        await begun()
        await sim.client.complete(tokens[0], "early")
        result = await handle.result()
        await asyncio.sleep(60)
        return result

    assert simulated(scenario) == "early"
    assert ended == ["cancelled"]


def test_an_answer_waits_beside_the_word_of_the_hand_out() -> None:
    """An owner that comes late finds both in the inbox."""

    async def scenario(sim: Simulation) -> list[str]:
        owner = await sim.start_worker("owner")
        await taker(sim)
        handle = await sim.client.start(asks(5.0), id="r")
        await begun()
        owner.kill()
        await asyncio.sleep(20)
        await sim.client.complete(tokens[0], "late")
        await sim.start_worker("other")
        assert await handle.result() == "late"
        return await kinds(sim)

    assert "AlarmRaised" not in simulated(scenario)


def test_no_attempt_follows_a_hand_out_while_the_run_is_paused() -> None:
    """The time that is over meanwhile is judged when the run goes on."""

    async def scenario(sim: Simulation) -> str:
        await sim.start_worker("owner")
        await taker(sim)
        handle = await sim.client.start(asks(1.0), id="r")
        await handed_out(sim)
        await paused(sim, handle)
        await asyncio.sleep(50)
        assert len(began) == 1
        assert await sim.store.tasks(RUN) == ()
        await handle.resume("go on")
        await begun(2)
        await sim.client.complete(tokens[0], "answered")
        return await handle.result()

    assert simulated(scenario) == "answered"


def test_no_task_is_put_while_what_was_begun_here_ends_in_a_pause() -> None:
    """A run that is paused stays in memory until its own attempts have ended; a hand-out that is over by then is followed by nothing."""

    async def scenario(sim: Simulation) -> list[str]:
        await sim.start_worker("owner")
        await taker(sim)
        handle = await sim.client.start(asks_beside(60.0), id="r")
        await handed_out(sim)
        await handle.pause("wait")
        await asyncio.sleep(50)
        assert (await handle.status()).status == "running"
        assert await sim.store.tasks(RUN) == ()
        await handle.resume("go on")
        await begun(2)
        await sim.client.complete(tokens[0], "answered")
        return await handle.result()

    assert simulated(scenario) == ["answered", "near"]
    assert [number for _, number, _ in began] == [1, 2]
