"""Completion from outside: tokens, the wait, who is first, and what a crash at any point leaves."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import outlast
from outlast.client import Client
from outlast.journal.entry import AlarmRaised, Entry, StepCompleted, StepFailed, from_row
from outlast.store.change import Applied, BeatOperation, OperationPut, RunKey, Status
from outlast.store.memory import MemoryStore
from outlast.testing import Faults, SeededRandom, Simulation, Workload, attempt, every_crash
from outlast.worker.worker import WorkerOptions
from outlast.workflows.completion import CompletionToken

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
tokens: list[str] = []
found: list[tuple[float, int | None]] = []
"""When an attempt of a step that is to be heard of began, and what it found of the former ones."""
sims: list[Simulation] = []
QUICK = outlast.RetryPolicy(initial_interval=SECOND, backoff_coefficient=1.0)


@dataclass
class Scene:
    """A result of a type of its own."""

    frames: int


def clock() -> float:
    """Seconds since the simulation of the test began; 0 in crash trials, which have simulations of their own."""
    return sims[-1].clock.monotonic() - 1000 if sims else 0.0


def hand_out() -> None:
    tokens.append(outlast.completion_token())
    outlast.complete_later()


@outlast.step(retry=QUICK)
async def render() -> Scene:
    hand_out()
    raise AssertionError("it does not get here")


@outlast.step(retry=QUICK)
def render_in_thread() -> Scene:
    try:
        hand_out()
    except Exception as error:  # noqa: BLE001 - what authors write
        raise AssertionError("no `except Exception` stops it") from error
    raise AssertionError("it does not get here")


@outlast.step(retry=QUICK, start_to_close_timeout=10 * SECOND)
async def render_in_time() -> Scene:
    if outlast.attempt().number == 3:
        return Scene(3)
    hand_out()
    return Scene(0)


@outlast.step(retry=QUICK, start_to_close_timeout=40 * SECOND, schedule_to_close_timeout=MINUTE)
async def render_by() -> Scene:
    hand_out()
    return Scene(0)


ends: list[str] = []


@outlast.step(retry=QUICK, heartbeat_timeout=10 * SECOND)
async def render_alive() -> Scene:
    """Say where it goes on from, and hand it out."""
    details = outlast.heartbeat_details(int)
    found.append((clock(), details))
    if details == 7:
        return Scene(7)
    hand_out()
    return Scene(0)


@outlast.step(
    retry=outlast.RetryPolicy(maximum_attempts=1),
    heartbeat_timeout=10 * SECOND,
    start_to_close_timeout=MINUTE,
)
async def render_alive_once() -> Scene:
    outlast.heartbeat(3)
    hand_out()
    return Scene(0)


@outlast.step(retry=QUICK, heartbeat_timeout=10 * SECOND, queue="gpu")
async def render_alive_elsewhere() -> Scene:
    found.append((clock(), outlast.heartbeat_details(int)))
    hand_out()
    return Scene(0)


@outlast.step(retry=QUICK)
async def ask_first() -> Scene:
    """Be answered before the attempt has ended."""
    tokens.append(outlast.completion_token())
    try:
        await asyncio.sleep(30)
    finally:
        ends.append(f"after {clock():.0f} s")
    outlast.complete_later()


@outlast.step(retry=QUICK)
async def never_ask() -> Scene:
    """Be answered by an operator, without having asked for it."""
    try:
        await asyncio.sleep(3000)
    finally:
        ends.append(f"after {clock():.0f} s")
    return Scene(0)


@outlast.effect(idempotent=True)
async def pay() -> Scene:
    hand_out()
    return Scene(0)


@outlast.step(retry=QUICK)
async def swallow() -> Scene:
    try:
        hand_out()
    except BaseException:  # noqa: BLE001 - what authors write
        return Scene(-1)
    return Scene(0)


@outlast.step(retry=QUICK)
async def render_in_group() -> Scene:
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(1))
        hand_out()
    raise AssertionError("it does not get here")


STEPS: dict[str, Any] = {
    "group": render_in_group,
    "async": render,
    "thread": render_in_thread,
    "in time": render_in_time,
    "by": render_by,
    "first": ask_first,
    "never asked": never_ask,
    "swallow": swallow,
    "alive": render_alive,
    "alive once": render_alive_once,
    "alive elsewhere": render_alive_elsewhere,
}


@outlast.workflow
async def film(how: str) -> int:
    return (await STEPS[how]()).frames


@outlast.step
async def near(seconds: float) -> int:
    await asyncio.sleep(seconds)
    return 0


@outlast.workflow
async def film_beside(how: str) -> int:
    """Keep the run in memory, paused or not."""
    scene, _ = await asyncio.gather(STEPS[how](), near(100))
    return scene.frames


@outlast.workflow
async def guarded(how: str) -> str:
    try:
        return f"{(await STEPS[how]()).frames} frames"
    except (RuntimeError, TimeoutError) as error:
        return f"{type(error).__name__}: {error}"


@outlast.workflow
async def paying() -> int:
    return (await pay()).frames


@outlast.workflow
async def cut() -> str:
    try:
        async with asyncio.timeout(5):
            return f"{(await render()).frames}"
    except TimeoutError:
        await outlast.sleep(5)
        return "cut"


@outlast.workflow
async def three() -> list[int]:
    scenes = await asyncio.gather(render(), render_in_thread(), render())
    return [one.frames for one in scenes]


@outlast.workflow
async def serial(left: int) -> int:
    frames = (await render()).frames
    if left:
        outlast.continue_as_new(serial(left - 1))
    return frames


CODE = [*STEPS.values(), pay, near, film, film_beside, guarded, paying, cut, three, serial]
PARKING = WorkerOptions(library="simulated", idle=SECOND)


@pytest.fixture(autouse=True)
def _clean() -> None:
    tokens.clear()
    ends.clear()
    found.clear()


def simulation(**options: Any) -> Simulation:
    """Return a simulation whose workers let go of what waits."""
    sims.append(Simulation(CODE, **{"options": PARKING, **options}))
    return sims[-1]


async def entries(sim: Simulation) -> list[Entry]:
    """Return the journal."""
    return [from_row(one.row) for one in await sim.store.journal(RunKey("default", "r"))]


async def handed_out(sim: Simulation, count: int = 1) -> str:
    """Wait for so many tokens, and return the last."""
    while len(tokens) < count:
        await asyncio.sleep(0.1)
    return tokens[count - 1]


# The answer


@pytest.mark.parametrize("how", ["async", "thread", "group"])
def test_a_step_is_completed_from_outside(how: str) -> None:
    """By a value of its type or by plain data; the journal says by whom, and nothing of the step is left."""

    async def scenario(sim: Simulation) -> tuple[int, StepCompleted, int]:
        await sim.start_worker()
        handle = await sim.client.start(film(how), id="r")
        token = await handed_out(sim)
        await sim.until("r", lambda head: head.owner is None)
        await sim.client.complete(token, Scene(24) if how == "async" else {"frames": 24})
        await sim.closed("r")
        image = await sim.store.load(RunKey("default", "r"))
        assert image is not None
        (outcome,) = [one for one in await entries(sim) if isinstance(one, StepCompleted)]
        return await handle.result(), outcome, len(image.operations)

    result, outcome, rows = simulation().run(scenario)
    assert (result, outcome.by, rows) == (24, "tester", 0)
    assert len(tokens) == 1


def test_each_generation_has_answers_of_its_own() -> None:
    """Their operations have the same ids: an answer under an id that a former generation knew is no second one."""

    async def scenario(sim: Simulation) -> int:
        await sim.start_worker()
        handle = await sim.client.start(serial(1), id="r")
        for generation in (1, 2):
            token = await handed_out(sim, generation)
            await sim.until("r", lambda head: head.owner is None)
            await sim.client.complete(token, Scene(generation), id="done")
        return await handle.result()

    assert simulation().run(scenario) == 2


def test_a_step_fails_from_outside_for_good() -> None:
    """The workflow gets a RuntimeError with these words; no attempt follows."""

    async def scenario(sim: Simulation) -> str:
        await sim.start_worker()
        handle = await sim.client.start(guarded("async"), id="r")
        await sim.client.fail(await handed_out(sim), "out of light")
        await sim.closed("r")
        return await handle.result()

    assert simulation().run(scenario) == "RuntimeError: out of light"
    assert len(tokens) == 1


def test_nothing_stays_in_memory_while_it_waits() -> None:
    """The run is parked as waiting; its row says for what, and not until when: for ever."""

    async def scenario(sim: Simulation) -> tuple[Any, ...]:
        worker = await sim.start_worker()
        handle = await sim.client.start(film("async"), id="r")
        await handed_out(sim)
        await asyncio.sleep(3600 * 5)
        status = await handle.status()
        (standing,) = (await handle.detail()).operations
        return (
            worker.worker.runs,
            status.status,
            status.wake_at,
            status.waits["completions"],
            standing.state,
        )

    runs, status, wake_at, waits, state = simulation(longest=timedelta(hours=6)).run(scenario)
    assert (runs, status, wake_at) == ([], Status.WAITING, None)
    assert (waits, state) == ({"r:1": None}, "handed out")
    assert len(tokens) == 1


def test_each_attempt_has_the_same_token_and_an_answer_to_any_counts() -> None:
    """The first wait was over; its token is answered while the second one waits."""

    async def scenario(sim: Simulation) -> int:
        await sim.start_worker()
        handle = await sim.client.start(film("in time"), id="r")
        await handed_out(sim, 2)
        await sim.client.complete(tokens[0], Scene(7))
        await sim.closed("r")
        return await handle.result()

    assert simulation().run(scenario) == 7
    assert tokens[0] == tokens[1]


def test_an_answer_may_come_before_the_attempt_has_ended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It counts at once; the body, which is handing itself out, comes to its end undisturbed, and that is no news."""

    async def scenario(sim: Simulation) -> tuple[int, float]:
        await sim.start_worker()
        handle = await sim.client.start(film("first"), id="r")
        await sim.client.complete(await handed_out(sim), Scene(1))
        await sim.closed("r")
        seconds = clock()
        await asyncio.sleep(60)
        return await handle.result(), seconds

    with caplog.at_level("WARNING", "outlast.worker"):
        result, seconds = simulation().run(scenario)
    assert result == 1
    assert seconds < 10
    assert ends == ["after 30 s"]
    assert caplog.records == []


@pytest.mark.parametrize("how", ["first", "never asked"])
def test_a_body_that_nobody_waits_for_ends_with_its_worker(how: str) -> None:
    """One that handed itself out is cancelled by a stop; one that did not, as soon as an operator has answered for it."""

    async def scenario(sim: Simulation) -> list[str]:
        worker = await sim.start_worker()
        handle = await sim.client.start(film(how), id="r")
        await asyncio.sleep(2)
        await handle.resolve("r:1", applied={"frames": 1})
        await sim.closed("r")
        await asyncio.sleep(5)
        await worker.stop()
        return [*ends]

    ended = simulation().run(scenario)
    assert ended == {"first": ["after 7 s"], "never asked": ["after 2 s"]}[how]


def test_steps_beside_each_other_have_tokens_of_their_own() -> None:
    """And are answered in any order."""

    async def scenario(sim: Simulation) -> list[int]:
        await sim.start_worker()
        handle = await sim.client.start(three(), id="r")
        await handed_out(sim, 3)
        for token in sorted(tokens, reverse=True):
            operation = CompletionToken.read(token).operation
            await sim.client.complete(token, Scene(int(operation[-1])))
            await asyncio.sleep(10)
        await sim.closed("r")
        return await handle.result()

    assert simulation().run(scenario) == [1, 2, 3]
    assert len(set(tokens)) == 3


def test_a_value_that_does_not_fit_changes_nothing() -> None:
    """It is an alarm, the step waits on, and the next answer counts, also with the same id as none had."""

    async def scenario(sim: Simulation) -> tuple[int, list[AlarmRaised]]:
        await sim.start_worker()
        handle = await sim.client.start(film("async"), id="r")
        token = await handed_out(sim)
        await sim.client.complete(token, {"frames": "many"})
        await asyncio.sleep(10)
        assert not (await handle.status()).status.closed
        await sim.client.complete(token, {"frames": 3})
        await sim.closed("r")
        alarms = [one for one in await entries(sim) if isinstance(one, AlarmRaised)]
        return await handle.result(), alarms

    result, alarms = simulation().run(scenario)
    assert result == 3
    assert [one.what for one in alarms] == ["unfit_outcome"]


@pytest.mark.parametrize("together", [True, False])
def test_the_first_answer_counts_and_a_second_one_is_an_alarm(together: bool) -> None:
    """Whether both are taken in at once, or one after the other."""

    async def scenario(sim: Simulation) -> tuple[int, list[str]]:
        worker = await sim.start_worker()
        handle = await sim.client.start(cut_after_two(), id="r")
        token = await handed_out(sim)
        if together:
            worker.kill()
        await sim.client.complete(token, Scene(1))
        if not together:
            await sim.until("r", lambda head: head.next_seq >= 3)
        await sim.client.complete(token, Scene(2))
        if together:
            await sim.start_worker()
        await sim.closed("r")
        alarms = [one.what for one in await entries(sim) if isinstance(one, AlarmRaised)]
        return await handle.result(), alarms

    @outlast.workflow
    async def cut_after_two() -> int:
        frames = (await render()).frames
        await outlast.sleep(60)
        return frames

    sims.append(Simulation([render, cut_after_two], options=PARKING))
    result, alarms = sims[-1].run(scenario)
    assert result == 1
    assert alarms == (["late_outcome"] if together else ["unfit_outcome"])


def test_the_same_id_again_is_the_same_answer() -> None:
    """What delivers more than once, as a webhook does, raises no alarm."""

    async def scenario(sim: Simulation) -> list[type]:
        await sim.start_worker()
        await sim.client.start(cut_after(), id="r")
        token = await handed_out(sim)
        for _ in range(3):
            await sim.client.complete(token, Scene(1), id="delivery-17")
        await sim.until("r", lambda head: head.next_seq >= 3)
        await sim.client.complete(token, Scene(1), id="delivery-17")
        await sim.closed("r")
        return [type(one) for one in await entries(sim)]

    @outlast.workflow
    async def cut_after() -> int:
        frames = (await render()).frames
        await outlast.sleep(60)
        return frames

    sims.append(Simulation([render, cut_after], options=PARKING))
    assert AlarmRaised not in sims[-1].run(scenario)


# Time


@pytest.mark.parametrize("parked", [True, False])
def test_the_wait_is_over_with_its_time_and_the_policy_decides(parked: bool) -> None:
    """Ten seconds from each hand-out; the third attempt returns by itself."""

    async def scenario(sim: Simulation) -> tuple[str, float]:
        idle = SECOND if parked else timedelta(hours=1)
        await sim.start_worker(options=WorkerOptions(library="simulated", idle=idle))
        handle = await sim.client.start(guarded("in time"), id="r")
        await sim.closed("r")
        return await handle.result(), clock()

    result, seconds = simulation().run(scenario)
    assert result == "3 frames"
    assert len(tokens) == 2
    assert seconds == pytest.approx(22, abs=2)


def test_the_time_for_all_attempts_ends_the_wait() -> None:
    """40 s for the first hand-out, and what is left of the minute for the second."""

    async def scenario(sim: Simulation) -> tuple[str, float]:
        await sim.start_worker()
        handle = await sim.client.start(guarded("by"), id="r")
        await sim.closed("r")
        return await handle.result(), clock()

    result, seconds = simulation().run(scenario)
    assert result.startswith(
        "TimeoutError: render_by was not done within 0:01:00 of its call, in 2"
    )
    assert seconds == pytest.approx(60, abs=1)


def test_the_time_runs_on_while_no_worker_does() -> None:
    """After an outage past the deadline the wait is over at once; and the token is worth nothing more."""

    async def scenario(sim: Simulation) -> tuple[str, int]:
        worker = await sim.start_worker()
        handle = await sim.client.start(guarded("by"), id="r")
        token = await handed_out(sim)
        await asyncio.sleep(1)
        worker.kill()
        await asyncio.sleep(300)
        await sim.start_worker()
        await sim.closed("r")
        with pytest.raises(outlast.RunConflictError, match="ended"):
            await sim.client.complete(token, Scene(1))
        return await handle.result(), len(tokens)

    result, attempts = simulation().run(scenario)
    assert result.startswith("TimeoutError: render_by was not done within 0:01:00")
    assert attempts == 1


def test_an_answer_that_came_before_anybody_looked_at_the_time_counts() -> None:
    """It is taken in before the time is judged, although it came after the deadline too: nobody had ended the wait."""

    async def scenario(sim: Simulation) -> str:
        worker = await sim.start_worker()
        handle = await sim.client.start(guarded("by"), id="r")
        token = await handed_out(sim)
        await asyncio.sleep(1)
        worker.kill()
        await asyncio.sleep(300)
        await sim.client.complete(token, Scene(5))
        await sim.start_worker()
        await sim.closed("r")
        return await handle.result()

    assert simulation().run(scenario) == "5 frames"


@pytest.mark.parametrize("after", ["at once", "parked", "killed"])
def test_a_hand_out_while_the_clock_was_ahead(after: str) -> None:
    """It waits as long as it should from the moment on at which the clock is right again."""

    async def scenario(sim: Simulation) -> float:
        idle = timedelta(hours=5) if after == "at once" else SECOND
        options = WorkerOptions(library="simulated", idle=idle)
        worker = await sim.start_worker(options=options)
        sim.clock.jump(timedelta(days=3650))
        await worker.client.start(guarded("in time"), id="r")
        await handed_out(sim)
        await asyncio.sleep(0.2 if after == "at once" else 3)
        if after == "killed":
            worker.kill()
        sim.clock.jump(-timedelta(days=3650))
        if after == "killed":
            await sim.start_worker(options=options)
        since = clock()
        await handed_out(sim, 2)
        return clock() - since

    assert 6 <= simulation().run(scenario) <= 25


@pytest.mark.parametrize("seed", range(25))
def test_an_answer_that_races_with_the_deadline_loses_nothing(seed: int) -> None:
    """One of them is first, and what the journal says is what the workflow gets; the other leaves a trace or none was accepted."""

    async def scenario(sim: Simulation) -> tuple[str, list[Entry], bool]:
        await sim.start_worker()
        handle = await sim.client.start(guarded("once"), id="r")
        token = await handed_out(sim)
        deadline = clock() + 10
        chance = sim.source("answer")
        await asyncio.sleep(deadline - clock() + chance.uniform(-0.4, 0.4))
        try:
            await sim.client.complete(token, Scene(seed))
            accepted = True
        except outlast.RunConflictError:
            accepted = False
        await sim.closed("r")
        return await handle.result(), await entries(sim), accepted

    sims.append(
        Simulation(RACING, seed=seed, options=PARKING, faults=Faults(latency=0.3, lost_hint=0.5))
    )
    result, journal, accepted = sims[-1].run(scenario)
    ends = [one for one in journal if isinstance(one, StepCompleted | StepFailed)]
    assert len(ends) == 1
    alarms = [one for one in journal if isinstance(one, AlarmRaised)]
    if isinstance(ends[0], StepCompleted):
        assert (result, accepted, alarms) == (f"{seed} frames", True, [])
    else:
        assert result.startswith("TimeoutError")
        assert len(alarms) == accepted


@pytest.mark.parametrize("seed", range(5))
def test_an_answer_that_was_accepted_before_the_end_of_the_wait_was_written_wins(seed: int) -> None:
    """No hint comes, and the deadline is over first by the worker's own look: still the answer is taken in before it."""

    async def scenario(sim: Simulation) -> tuple[str, list[type]]:
        worker = await sim.start_worker(
            options=WorkerOptions(
                library="simulated", idle=timedelta(hours=1), poll=timedelta(hours=1)
            )
        )
        handle = await sim.client.start(guarded("once"), id="r")
        worker.worker.look()
        token = await handed_out(sim)
        await asyncio.sleep(9.5)
        await sim.client.complete(token, Scene(seed))
        worker.worker.look = lambda: None  # type: ignore[method-assign]
        await sim.closed("r")
        return await handle.result(), [type(one) for one in await entries(sim)]

    sims.append(Simulation(RACING, seed=seed, faults=Faults(lost_hint=1.0)))
    result, journal = sims[-1].run(scenario)
    assert result == f"{seed} frames"
    assert AlarmRaised not in journal


# Heartbeats from outside

HEARD = ["alive", "alive elsewhere"]
"""A step that is attempted by its run's worker, and one of a queue."""
DAY = timedelta(days=1)


def heard(idle: timedelta = SECOND) -> WorkerOptions:
    """Return the options of a worker that serves the queue too."""
    return WorkerOptions(library="simulated", idle=idle, queues=frozenset({"gpu"}), tasks=2)


async def row_of(sim: Simulation) -> OperationPut:
    """Return the row of the step."""
    row = await sim.store.operation(RunKey("default", "r"), "r:1")
    assert row is not None
    return row


async def awaited(sim: Simulation) -> OperationPut:
    """Wait until the step was handed out, and return its row."""
    while True:
        row = await sim.store.operation(RunKey("default", "r"), "r:1")
        if row is not None and row.awaits:
            return row
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("how", HEARD)
@pytest.mark.parametrize("idle", [SECOND, 5 * MINUTE])
def test_silence_after_the_hand_out_fails_the_attempt(how: str, idle: timedelta) -> None:
    """Ten seconds after it, be the run parked or not; the policy decides, and an answer to the second hand-out counts."""

    async def scenario(sim: Simulation) -> int:
        await sim.start_worker(options=heard(idle))
        handle = await sim.client.start(film(how), id="r")
        await handed_out(sim, 2)
        await sim.client.complete(tokens[1], Scene(2))
        await sim.closed("r")
        return await handle.result()

    assert simulation().run(scenario) == 2
    assert found[1][0] - found[0][0] == pytest.approx(11, abs=3)


def test_silence_ends_the_last_attempt_with_words_of_its_own() -> None:
    """Long before the start_to_close_timeout."""

    async def scenario(sim: Simulation) -> tuple[str, float]:
        await sim.start_worker()
        handle = await sim.client.start(guarded("alive once"), id="r")
        await sim.closed("r")
        return await handle.result(), clock()

    result, seconds = simulation().run(scenario)
    assert result == "TimeoutError: render_alive_once was handed out, and not heard of for 0:00:10"
    assert seconds == pytest.approx(10, abs=2)


@pytest.mark.parametrize("how", HEARD)
@pytest.mark.parametrize("idle", [SECOND, 5 * MINUTE])
@pytest.mark.parametrize("killed", [False, True])
def test_beats_from_outside_keep_the_attempt_alive(how: str, idle: timedelta, killed: bool) -> None:
    """For as long as they come; the next attempt, after their end, finds the details of the last that had some."""

    async def scenario(sim: Simulation) -> tuple[float, OperationPut]:
        worker = await sim.start_worker(options=heard(idle))
        await sim.client.start(film(how), id="r")
        token = await handed_out(sim)
        for number in range(20):
            await sim.client.heartbeat(token, number if number < 15 else None)
            if killed and number % 5 == 4:
                worker.kill()
            await asyncio.sleep(6)
            if killed and number % 5 == 4:
                worker = await sim.start_worker(options=heard(idle))
        last, row = clock() - 6, await row_of(sim)
        await handed_out(sim, 2)
        return last, row

    last, row = simulation(longest=DAY).run(scenario)
    assert (row.beats, row.awaits, row.failures) == (20, True, 0)
    assert found[1][1] == 14
    assert found[1][0] - last == pytest.approx(11, abs=3)


@pytest.mark.parametrize("how", HEARD)
def test_beats_wake_no_run(how: str) -> None:
    """They append nothing, and a run that has left memory stays out of it until the silence could be over."""

    async def scenario(sim: Simulation) -> tuple[int, int]:
        await sim.start_worker(options=heard())
        handle = await sim.client.start(film(how), id="r")
        token = await handed_out(sim)
        await awaited(sim)
        parked = await sim.until("r", lambda head: head.owner is None)
        for _ in range(80):
            await sim.client.heartbeat(token, 1)
            await asyncio.sleep(0.05)
        status = await sim.store.head(parked.run)
        assert status is not None
        await sim.client.complete(token, Scene(1))
        await sim.closed("r")
        assert await handle.result() == 1
        return parked.version, status.version

    before, after = simulation().run(scenario)
    assert after == before


def test_beats_give_no_more_than_the_whole_time() -> None:
    """The start_to_close_timeout ends the wait, whoever is alive."""

    async def scenario(sim: Simulation) -> tuple[str, float, str]:
        await sim.start_worker()
        handle = await sim.client.start(guarded("alive once"), id="r")
        token = await handed_out(sim)
        said = ""
        while not said:
            try:
                await sim.client.heartbeat(token, 9)
            except outlast.RunConflictError as error:
                said = str(error)
            await asyncio.sleep(3)
        await sim.closed("r")
        return await handle.result(), clock(), said

    result, seconds, said = simulation().run(scenario)
    assert result == (
        "TimeoutError: render_alive_once was handed out, and not completed within 0:01:00"
    )
    assert seconds == pytest.approx(62, abs=5)
    assert "the run that handed the token out has ended" in said


def test_the_body_and_whoever_is_outside_speak_to_the_same_next_attempt() -> None:
    """What the body has said stands until there is more; a beat without details leaves it."""

    async def scenario(sim: Simulation) -> list[bytes]:
        await sim.start_worker()
        await sim.client.start(guarded("alive once"), id="r")
        token = await handed_out(sim)
        kept = [(await awaited(sim)).progress]
        for details in (None, {"frame": 9}, None):
            await sim.client.heartbeat(token, details)
            kept.append((await row_of(sim)).progress)
        await sim.client.complete(token, Scene(1))
        await sim.closed("r")
        return kept

    assert simulation().run(scenario) == [b"3", b"3", b'{"frame":9}', b'{"frame":9}']


def test_a_beat_for_what_nobody_waits_for_says_so() -> None:
    """After the outcome, after the attempt was given up, for another generation or tenant; and what cannot be stored is refused."""

    @outlast.workflow
    async def after() -> int:
        frames = (await render_alive()).frames
        await outlast.sleep(60)
        return frames

    async def scenario(sim: Simulation) -> None:
        await sim.start_worker()
        await sim.client.start(after(), id="r")
        token = await handed_out(sim)
        with pytest.raises(outlast.EncodeError):
            await sim.client.heartbeat(token, object())
        with pytest.raises(outlast.DefinitionError, match="of another tenant"):
            await Client(sim.outside, random=SeededRandom("x"), tenant="b").heartbeat(token)
        with pytest.raises(outlast.RunNotFoundError):
            await sim.client.heartbeat(
                str(CompletionToken("default", "no", 1, "r:1", "render_alive"))
            )
        await sim.client.complete(token, Scene(1))
        await sim.until("r", lambda head: head.next_seq >= 3)
        since = clock()
        with pytest.raises(outlast.RunConflictError, match="is not waited for") as told:
            await sim.client.heartbeat(token, 1)
        assert "stop working on it" in told.value.hint
        assert told.value.operation == "r:1"
        assert clock() - since == pytest.approx(5, abs=1)
        await sim.closed("r")
        with pytest.raises(outlast.RunConflictError, match="has ended"):
            await sim.client.heartbeat(token)
        await sim.client.start(after(), id="r", if_closed="restart")
        with pytest.raises(outlast.RunConflictError, match="generation 1 of this id"):
            await sim.client.heartbeat(token)

    sims.append(Simulation([render_alive, after], options=PARKING))
    sims[-1].run(scenario)


def test_a_beat_may_be_faster_than_the_hand_out() -> None:
    """Who has the token need not know when the body ends: a beat that comes too early is tried again for a while."""

    @outlast.step(heartbeat_timeout=10 * SECOND)
    async def linger() -> Scene:
        tokens.append(outlast.completion_token())
        await asyncio.sleep(2)
        outlast.complete_later()

    @outlast.workflow
    async def lingering() -> int:
        return (await linger()).frames

    async def scenario(sim: Simulation) -> int:
        await sim.start_worker()
        handle = await sim.client.start(lingering(), id="r")
        token = await handed_out(sim)
        await sim.client.heartbeat(token, 1)
        assert (await row_of(sim)).beats == 1
        await sim.client.complete(token, Scene(4))
        await sim.closed("r")
        return await handle.result()

    sims.append(Simulation([linger, lingering], options=PARKING))
    assert sims[-1].run(scenario) == 4


@pytest.mark.parametrize("after", ["at once", "parked", "killed"])
@pytest.mark.parametrize("beaten", [False, True])
def test_silence_is_judged_by_a_clock_that_was_set_back(after: str, beaten: bool) -> None:
    """A hand-out or a beat while the clock was ten years ahead gives ten seconds from then on, and not ten years."""

    async def scenario(sim: Simulation) -> float:
        idle = timedelta(hours=5) if after == "at once" else SECOND
        worker = await sim.start_worker(options=heard(idle))
        if not beaten:
            sim.clock.jump(timedelta(days=3650))
        await worker.client.start(film("alive"), id="r")
        token = await handed_out(sim)
        await awaited(sim)
        await asyncio.sleep(0.2 if after == "at once" else 3)
        if beaten:
            sim.clock.jump(timedelta(days=3650))
            await sim.client.heartbeat(token, 5)
        if after == "killed":
            worker.kill()
        sim.clock.jump(-timedelta(days=3650))
        if after == "killed":
            await sim.start_worker(options=heard(idle))
        since = clock()
        await handed_out(sim, 2)
        return clock() - since

    assert (10 if beaten else 5) <= simulation().run(scenario) <= 26
    assert found[1][1] == (5 if beaten else None)


@pytest.mark.parametrize("how", HEARD)
def test_a_pause_hinders_no_beat(how: str) -> None:
    """They are kept meanwhile, and when the run goes on its step is still heard of."""

    async def scenario(sim: Simulation) -> int:
        await sim.start_worker(options=heard())
        handle = await sim.client.start(film(how), id="r")
        token = await handed_out(sim)
        await awaited(sim)
        await handle.pause()
        for _ in range(10):
            await asyncio.sleep(6)
            await sim.client.heartbeat(token, 1)
        await handle.resume()
        await asyncio.sleep(6)
        await sim.client.complete(token, Scene(3))
        await sim.closed("r")
        return await handle.result()

    assert simulation(longest=DAY).run(scenario) == 3
    assert len(found) == 1


@pytest.mark.parametrize("how", ["in time", "alive once"])
def test_an_answer_that_came_in_time_counts_after_a_pause(how: str) -> None:
    """It waits in the inbox of the paused run, which stays in memory for what it attempts beside: its time is judged after the resume."""

    async def scenario(sim: Simulation) -> int:
        await sim.start_worker()
        handle = await sim.client.start(film_beside(how), id="r")
        token = await handed_out(sim)
        await handle.pause()
        await asyncio.sleep(3)
        await sim.client.complete(token, Scene(3))
        await asyncio.sleep(80)
        assert (await handle.status()).status == "running"
        await handle.resume()
        await sim.closed("r")
        assert len(tokens) == 1
        return await handle.result()

    assert simulation().run(scenario) == 3


@pytest.mark.parametrize("how", [*HEARD, "alive once"])
def test_a_beat_between_the_last_look_and_the_write_counts(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner has read that nothing was heard; before it can write so there is a beat: the attempt goes on until there is none."""
    read, beaten = MemoryStore.operation, [0]

    async def read_and_beat(self: MemoryStore, run: RunKey, operation: str) -> OperationPut | None:
        row = await read(self, run, operation)
        if row is not None and row.awaits and beaten[0] < 3:
            beaten[0] += 1
            beat = BeatOperation(run, 1, operation, b"%d" % beaten[0])
            (verdict,) = await self.commit([beat])
            assert isinstance(verdict, Applied)
        return row

    async def scenario(sim: Simulation) -> tuple[str, float]:
        await sim.start_worker(options=heard())
        monkeypatch.setattr(MemoryStore, "operation", read_and_beat)
        handle = await sim.client.start(guarded(how), id="r")
        if how != "alive once":
            token = await handed_out(sim, 2)
            assert (await awaited(sim)).failures == 1
            await sim.client.complete(token, Scene(1))
        await sim.closed("r")
        return await handle.result(), clock()

    result, seconds = simulation().run(scenario)
    assert beaten == [3]
    # The first beat refuses the write, the second comes at the look after that, the third at the one ten seconds later.
    assert seconds == pytest.approx(31, abs=3)
    if how == "alive once":
        assert result.endswith("was handed out, and not heard of for 0:00:10")
    else:
        assert [details for _, details in found] == [None, 3]


@pytest.mark.parametrize("how", [*HEARD, "alive once"])
@pytest.mark.parametrize("seed", range(8))
def test_no_accepted_beat_is_overlooked(how: str, seed: int) -> None:
    """One that races with the end of the silence renews it, or is refused: no attempt fails within its time after one that was kept."""
    kept: list[float] = []
    failed: list[float] = []

    async def scenario(sim: Simulation) -> None:
        await sim.start_worker(options=heard())
        handle = await sim.client.start(guarded(how), id="r")
        token = await handed_out(sim)
        await awaited(sim)
        chance = sim.source("beats")
        for _ in range(4):
            await asyncio.sleep(chance.uniform(9.6, 10.5))
            try:
                verdict = await sim.store.commit(
                    [BeatOperation(RunKey("default", "r"), 1, "r:1", b"1")]
                )
            except outlast.StoreUnavailableError:
                continue
            if not isinstance(verdict[0], Applied):
                break
            kept.append(clock())
        while (row := await sim.store.operation(RunKey("default", "r"), "r:1")) and row.awaits:
            await asyncio.sleep(0.02)
        failed.append(clock())
        if len(tokens) < 2 and how != "alive once":
            await handed_out(sim, 2)
        if how != "alive once":
            await sim.client.complete(token, Scene(1))
        await sim.closed("r")
        await handle.result()

    code = [render_alive, render_alive_elsewhere, render_alive_once, guarded]
    sims.append(
        Simulation(code, seed=seed, options=heard(), faults=Faults(latency=0.3), longest=DAY)
    )
    sims[-1].run(scenario)
    assert len(failed) == 1
    assert not kept or failed[0] - kept[-1] >= 9.5, (kept, failed)


@outlast.step(
    name="render_once",
    start_to_close_timeout=10 * SECOND,
    retry=outlast.RetryPolicy(maximum_attempts=1),
)
async def render_once() -> Scene:
    hand_out()
    return Scene(0)


STEPS["once"] = render_once
RACING = [render_once, guarded]


# Cancelling


def test_a_wait_that_nobody_waits_for_is_over() -> None:
    """Its row goes; an answer that comes then is an alarm, and changes nothing."""

    async def scenario(sim: Simulation) -> tuple[str, list[str], int]:
        await sim.start_worker()
        handle = await sim.client.start(cut(), id="r")
        token = await handed_out(sim)
        await sim.until("r", lambda head: head.next_seq >= 3)
        await sim.client.complete(token, Scene(1))
        image = await sim.store.load(RunKey("default", "r"))
        assert image is not None
        await sim.closed("r")
        alarms = [one.what for one in await entries(sim) if isinstance(one, AlarmRaised)]
        return await handle.result(), alarms, len(image.operations)

    assert simulation().run(scenario) == ("cut", ["unfit_outcome"], 0)


def test_a_cancelled_run_waits_for_nobody_outside() -> None:
    """The await ends at once."""

    async def scenario(sim: Simulation) -> float:
        await sim.start_worker()
        handle = await sim.client.start(film("async"), id="r")
        await handed_out(sim)
        await asyncio.sleep(5)
        since = clock()
        await handle.cancel("no longer wanted")
        await sim.closed("r")
        return clock() - since

    assert simulation().run(scenario) < 2


# What is refused


def test_only_steps_have_tokens() -> None:
    """An effect, a workflow and ordinary code are told so; a test of a plain step gets one."""

    async def scenario(sim: Simulation) -> None:
        worker = await sim.start_worker()
        await worker.client.run(paying(), id="r")

    with pytest.raises(
        outlast.WorkflowFailedError, match=r"completion_token\(\) was called in an effect"
    ):
        simulation().run(scenario)
    for ask in (outlast.completion_token, outlast.complete_later):
        with pytest.raises(outlast.DefinitionError, match="outside a step"):
            ask()
    with attempt(key="", run_id="run-7"):
        assert CompletionToken.read(outlast.completion_token()).run == "run-7"


def test_a_body_that_swallows_everything_ends_as_it_says() -> None:
    """It returned: that is its outcome, and the token is worth nothing more."""

    async def scenario(sim: Simulation) -> int:
        worker = await sim.start_worker()
        return await worker.client.run(film("swallow"), id="r")

    assert simulation().run(scenario) == -1


def test_a_token_is_good_for_one_generation_and_one_tenant() -> None:
    """Each refusal says what is wrong; nothing reaches a run that the token does not mean."""

    async def scenario(sim: Simulation) -> list[type]:
        await sim.start_worker()
        handle = await sim.client.start(film("async"), id="r")
        token = await handed_out(sim)
        other = Client(sim.outside, random=SeededRandom("x"), tenant="other")
        with pytest.raises(outlast.DefinitionError, match="of another tenant"):
            await other.complete(token, Scene(1))
        await handle.terminate("start anew")
        with pytest.raises(outlast.RunConflictError, match="ended"):
            await sim.client.complete(token, Scene(1))
        await sim.client.start(film("async"), id="r", if_closed="restart")
        await handed_out(sim, 2)
        with pytest.raises(outlast.RunConflictError, match="generation 1 of this id"):
            await sim.client.fail(token, "no")
        with pytest.raises(outlast.EncodeError):
            await sim.client.complete(tokens[1], float("nan"))
        unknown = str(CompletionToken("default", "nowhere", 1, "r:1", "render"))
        with pytest.raises(outlast.RunNotFoundError):
            await sim.client.complete(unknown, Scene(1))
        await sim.client.complete(tokens[1], Scene(9))
        await sim.closed("r")
        return [type(one) for one in await entries(sim)]

    assert AlarmRaised not in simulation().run(scenario)


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", "é", "e30", "bm9uZQ", "====", "\ud800", "A" * 100_000),
        base64.urlsafe_b64encode(
            b'{"tenant":1,"run":"r","generation":1,"operation":"r:1","step":"s"}'
        ).decode(),
        base64.urlsafe_b64encode(b"[" * 5000).decode(),
    ],
)
def test_what_is_no_token_is_refused_in_words(text: str) -> None:
    """Whatever it is."""
    with pytest.raises(outlast.DefinitionError, match="this is no completion token"):
        CompletionToken.read(text)


NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=200)


@given(NAMES, NAMES, st.integers(1, 1 << 40), NAMES, NAMES)
def test_a_token_says_what_it_was_made_of(
    tenant: str, run: str, generation: int, operation: str, step: str
) -> None:
    """One line of text that needs no quotes in a URL or a shell; white space around it does no harm."""
    made = CompletionToken(tenant, run, generation, operation, step)
    assert set(str(made)) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")
    assert CompletionToken.read(f"  {made}\n") == made
    fields = {"tenant": tenant, "run": run, "generation": generation}
    said = json.dumps({**fields, "operation": operation, "step": step})
    padded = base64.urlsafe_b64encode(said.encode())
    assert CompletionToken.read(padded.decode()) == made


# Changed code


@pytest.mark.parametrize("how", ["handed out", "retrying"])
def test_another_step_at_the_same_place_inherits_nothing(how: str) -> None:
    """Neither failures, due time, details nor the hand-out of what stood there before; and its token means nothing to it."""
    found: list[tuple[int, Any]] = []

    @outlast.step(retry=outlast.RetryPolicy(initial_interval=timedelta(hours=1)))
    async def former() -> Scene:
        outlast.heartbeat("of the former")
        if how == "retrying":
            raise OSError("down")
        hand_out()
        return Scene(0)

    @outlast.step
    async def latter() -> Scene:
        found.append((outlast.attempt().number, outlast.heartbeat_details(str)))
        await asyncio.sleep(30)
        return Scene(2)

    @outlast.workflow(name="changing")
    async def before() -> int:
        return (await former()).frames

    @outlast.workflow(name="changing")
    async def after() -> int:
        return (await latter()).frames

    async def scenario(sim: Simulation) -> tuple[int, float, list[str], int]:
        worker = await sim.start_worker(definitions=[former, before])
        handle = await sim.client.start(before(), id="r")
        await sim.until("r", lambda head: head.owner is None and head.version > 0)
        worker.kill()
        since = clock()
        await sim.start_worker(definitions=[latter, after])
        await handle.send("wake", None)
        await asyncio.sleep(20)
        if how == "handed out":
            await sim.client.complete(tokens[0], Scene(1))
        await sim.closed("r")
        alarms = [one.what for one in await entries(sim) if isinstance(one, AlarmRaised)]
        image = await sim.store.load(RunKey("default", "r"))
        assert image is not None
        return await handle.result(), clock() - since, alarms, len(image.operations)

    sims.append(Simulation([former, latter, before], options=PARKING))
    result, seconds, alarms, rows = sims[-1].run(scenario)
    assert (result, found, rows) == (2, [(1, None)], 0)
    assert seconds < 60
    assert alarms == (["unfit_outcome"] if how == "handed out" else [])


# Every crash


async def answer_all(client: Client, after: float = 2) -> None:
    """Answer each token some seconds after it was seen, as a client that nobody kills."""
    answered: set[str] = set()
    while True:
        await asyncio.sleep(0.5)
        for token in set(tokens) - answered:
            answered.add(token)
            await asyncio.sleep(after)
            await client.complete(token, {"frames": 24})


async def answer_late(client: Client) -> None:
    """Answer when any worker that comes after another one has taken the run up."""
    await answer_all(client, after=60)


@outlast.workflow
async def premiere() -> int:
    first = (await render()).frames
    return first + (await render_in_thread()).frames


@outlast.workflow
async def nobody_answers() -> str:
    try:
        return f"{(await render_by()).frames}"
    except TimeoutError:
        return "nobody"


@pytest.mark.parametrize("crashes", [1, 2])
def test_a_crash_at_any_point_loses_no_answer(crashes: int) -> None:
    """Killed before and after each commit and call, once and twice: the result is the same, and no answer is an alarm."""
    work = Workload(
        premiere,
        definitions=[render, render_in_thread, premiere],
        meanwhile=answer_all,
        reset=tokens.clear,
    )
    count = 0
    for trial in every_crash(work, crashes=crashes):
        count += 1
        assert trial.result == 48, trial
        outcomes = [
            one.entry.operation for one in trial.journal if isinstance(one.entry, StepCompleted)
        ]
        assert outcomes == ["r:1", "r:2"], trial
        assert not [one for one in trial.journal if isinstance(one.entry, AlarmRaised)], trial
    assert count >= (16 if crashes == 1 else 150)


def test_what_was_handed_out_is_not_attempted_again() -> None:
    """Where the process dies before that is written the body runs again; after it nothing does."""
    work = Workload(
        premiere,
        definitions=[render, render_in_thread, premiere],
        meanwhile=answer_late,
        reset=tokens.clear,
    )
    calls = {str(trial.points[0]): len(trial.calls) for trial in every_crash(work)}
    # Commits: the start; of each step the hand-out, the parking, the outcome; the end.
    again = {name for name, count in calls.items() if count == 3}
    assert again == {
        *("after step render 1", "before commit 2"),
        *("after step render_in_thread 1", "before commit 5"),
    }
    assert {count for name, count in calls.items() if name not in again} == {2}
    assert {"after commit 2", "before commit 8", "before step render 1"} <= calls.keys()


@outlast.workflow
async def heard_of() -> int:
    return (await render_alive()).frames


async def beat_to_seven(client: Client) -> None:
    """Beat for half a minute, as a client that nobody kills, and fall silent: the last details are 7."""
    while not tokens:
        await asyncio.sleep(0.5)
    for number in range(8):
        with contextlib.suppress(outlast.RunConflictError):
            await client.heartbeat(tokens[0], number)
        await asyncio.sleep(4)


def test_a_crash_at_any_point_loses_no_beat() -> None:
    """Wherever the process died: the next attempt comes after the silence that follows the last beat, and finds what that one said."""
    work = Workload(
        heard_of,
        definitions=[render_alive, heard_of],
        meanwhile=beat_to_seven,
        reset=lambda: (tokens.clear(), found.clear()),
    )
    count = 0
    for trial in every_crash(work):
        count += 1
        assert trial.result == 7, trial
    assert count >= 10


def test_a_crash_at_any_point_gives_nobody_more_time() -> None:
    """Unanswered, the wait ends with the time for all attempts, wherever the process died."""
    work = Workload(nobody_answers, definitions=[render_by, nobody_answers], reset=tokens.clear)
    for trial in every_crash(work):
        assert trial.result == "nobody", trial
        seconds = (trial.journal[-1].at - trial.journal[1].at).total_seconds()
        assert 59 <= seconds < 90, (trial, seconds)
