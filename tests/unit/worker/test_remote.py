"""Steps that run in another worker: who runs them, what becomes of them when somebody dies, and what the run knows of it."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec import structs

import outlast
from outlast.client import RunHandle
from outlast.journal.entry import from_row
from outlast.journal.failure import Failure
from outlast.store.change import FinishTask, PutMessage, Refused, RunKey, Status
from outlast.store.rows import TaskState
from outlast.store.task import TaskRow
from outlast.testing import Faults, SimulatedThreads, SimulatedWorker, Simulation, WorkerOptions
from outlast.testing.loop import current_process
from outlast.worker.outcome import message_of, outcome_of
from outlast.worker.pilot import POISON_LAPSES
from outlast.workflows.definition import Definition, Step
from outlast.workflows.placement import HERE, Placement

RUN = RunKey("default", "r")
began: list[tuple[str, str, int, datetime]] = []
"""Step, process, attempt and time of each body that began."""
ended: list[str] = []
sims: list[Simulation] = []
threads: list[SimulatedThreads] = []
THRICE = outlast.RetryPolicy(maximum_attempts=3)


def _note() -> int:
    attempt = outlast.attempt()
    process = current_process.get()
    assert process is not None
    name = (process.parent or process).name
    began.append((attempt.name, name, attempt.number, sims[-1].clock.now()))
    return attempt.number


@outlast.step
async def local(number: int) -> int:
    _note()
    return number


@outlast.step(queue="gpu")
async def render(number: int) -> int:
    _note()
    return number * 2


@outlast.step(queue="gpu")
async def render_long(seconds: float) -> str:
    _note()
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        ended.append("cancelled")
        raise
    ended.append("done")
    return "done"


@outlast.step(queue="gpu")
def render_in_thread(seconds: float) -> str:
    _note()
    threads[-1].busy(seconds)
    return "done"


@outlast.step(queue="gpu", schedule_to_start_timeout=timedelta(minutes=5))
async def render_soon(seconds: float) -> str:
    _note()
    await asyncio.sleep(seconds)
    return "done"


@outlast.step(queue="gpu", retry=THRICE)
async def third_time() -> int:
    number = _note()
    if number < 3:
        raise OSError("not yet")
    return number


@outlast.step(queue="gpu", retry=THRICE, raises=(ConnectionError,))
async def never() -> int:
    _note()
    raise ConnectionError("down")


@outlast.step(queue="gpu")
async def wrong() -> int:
    _note()
    raise TypeError("a mistake in the code")


@outlast.step(
    queue="gpu",
    start_to_close_timeout=timedelta(seconds=5),
    retry=outlast.RetryPolicy(maximum_attempts=2),
)
async def slow() -> int:
    number = _note()
    if number == 1:
        await asyncio.sleep(60)
    return number


@outlast.step(queue="tpu")
async def other_queue() -> str:
    _note()
    return "tpu"


@outlast.workflow
async def around(number: int) -> int:
    return await local(number) + await render(number) + await local(number)


@outlast.workflow
async def long(seconds: float) -> str:
    return await render_long(seconds)


@outlast.workflow
async def in_thread(seconds: float) -> str:
    return await render_in_thread(seconds)


@outlast.workflow
async def soon(seconds: float) -> str:
    try:
        return await render_soon(seconds)
    except TimeoutError as error:
        return str(error)


@outlast.workflow
async def retried() -> int:
    return await third_time()


@outlast.workflow
async def fails() -> str:
    try:
        await never()
    except ConnectionError as error:
        return f"{type(error).__name__}: {error}"
    return "never"


@outlast.workflow
async def mistaken() -> int:
    return await wrong()


@outlast.workflow
async def timed() -> int:
    return await slow()


@outlast.workflow
async def impatient(seconds: float) -> str:
    try:
        async with asyncio.timeout(10):
            return await render_long(seconds)
    except TimeoutError:
        await outlast.sleep(100)
        return "gave up"


@outlast.effect(start_to_close_timeout=timedelta(seconds=1))
async def unknown() -> None:
    raise ConnectionError("cut off")


@outlast.effect(start_to_close_timeout=timedelta(seconds=5))
def hang(seconds: float) -> str:
    _note()
    threads[-1].busy(seconds)
    return "done"


@outlast.workflow
async def hanging(seconds: float) -> str:
    return await hang(seconds)


@outlast.workflow
async def doubtful(seconds: float) -> list[Any]:
    return list(await asyncio.gather(unknown(), render_long(seconds)))


@outlast.workflow
async def both() -> list[Any]:
    return list(await asyncio.gather(render(1), other_queue(), local(3)))


FLOWS: list[Definition[..., Any]] = [
    *(around, long, in_thread, soon, retried, fails, mistaken, timed, impatient, both),
    *(doubtful, unknown, hanging, hang),
]
STEPS: list[Definition[..., Any]] = [
    *(local, render, render_long, render_in_thread, render_soon, third_time, never, wrong, slow),
    other_queue,
]
CODE = [*FLOWS, *STEPS]
QUIET = WorkerOptions(library="simulated", poll=timedelta(seconds=10))
GPU = replace(QUIET, queues=("gpu",))


@pytest.fixture(autouse=True)
def _clean() -> None:
    began.clear()
    ended.clear()


def simulated(scenario: Callable[[Simulation], Awaitable[Any]], **options: Any) -> Any:
    """Run a scenario in which bodies can read the clock, and see that nothing of a task is left behind."""
    sims.append(Simulation(CODE, options=QUIET, **options))
    result = sims[-1].run(scenario)
    closed = [key for key, run in sims[-1].invariants.runs.items() if run.closed]
    left = [key for key, run in sims[-1].store.runs.items() if run.tasks() and key in closed]
    assert left == []
    return result


async def two(sim: Simulation) -> tuple[SimulatedWorker, SimulatedWorker]:
    """Start a worker that serves no queue, and one that has the steps and no workflow."""
    owner = await sim.start_worker("owner")
    taker = await sim.start_worker("taker", definitions=STEPS, options=GPU)
    threads.append(taker.threads)
    return owner, taker


async def begun(count: int = 1) -> None:
    """Wait until so many bodies have begun."""
    while len(began) < count:
        await asyncio.sleep(0.1)


async def kinds(sim: Simulation) -> list[str]:
    """Return the journal's kinds."""
    return [type(from_row(one.row)).__name__ for one in await sim.store.journal(RUN)]


def attempts() -> list[int]:
    """Return the numbers of the attempts that began."""
    return [number for _, _, number, _ in began]


def seconds_between() -> list[int]:
    """Return the seconds between the attempts."""
    times = [at for *_, at in began]
    return [round((two - one).total_seconds()) for one, two in zip(times, times[1:], strict=False)]


# Who runs it


def test_a_step_runs_where_its_queue_is_served(caplog: pytest.LogCaptureFixture) -> None:
    """The run stays with its worker, the step runs in another one that does not know the workflow; the journal looks as ever.

    The log of that one tells what it does.
    """

    async def scenario(sim: Simulation) -> list[str]:
        owner, _ = await two(sim)
        assert await owner.client.run(around(5), id="r") == 20
        return await kinds(sim)

    with caplog.at_level(logging.INFO, "outlast.worker"):
        assert simulated(scenario) == [
            *("Started", "Taken", "StepCompleted", "StepCompleted", "StepCompleted", "Completed")
        ]
    assert "run r: attempt 1 of render (r:2) begins here, from queue gpu" in caplog.messages
    assert "run r: attempt 1 of render (r:2): completed" in caplog.messages
    assert [(name, process) for name, process, *_ in began] == [
        *(("local", "owner"), ("render", "taker"), ("local", "owner"))
    ]


def test_one_worker_may_do_both() -> None:
    """A worker that has the workflow and serves the queue needs no other."""

    async def scenario(sim: Simulation) -> int:
        worker = await sim.start_worker(options=GPU)
        return await worker.client.run(around(5), id="r")

    assert simulated(scenario) == 20


def test_each_queue_has_its_workers() -> None:
    """Steps of two queues and of none run in three workers at once."""

    async def scenario(sim: Simulation) -> list[Any]:
        owner, _ = await two(sim)
        await sim.start_worker("tpus", definitions=STEPS, options=replace(GPU, queues=("tpu",)))
        return await owner.client.run(both(), id="r")

    assert simulated(scenario) == [2, "tpu", 3]
    assert {(name, process) for name, process, *_ in began} == {
        *(("local", "owner"), ("render", "taker"), ("other_queue", "tpus"))
    }


def test_workers_without_queues_never_ask_for_tasks() -> None:
    """What they ask the store is what they asked before there were tasks."""

    async def scenario(sim: Simulation) -> set[str]:
        owner, taker = await two(sim)
        verbs: set[str] = set()
        owner.store.at_verb = lambda _moment, verb: verbs.add(verb)
        await owner.client.run(around(5), id="r")
        assert taker.worker.runs == []
        return verbs

    assert simulated(scenario) & {"claim_tasks", "tasks"} == set()


def test_a_step_that_a_worker_does_not_have_is_left_to_others() -> None:
    """A worker of the queue that has not registered the step leaves it alone: another build may have it."""

    async def scenario(sim: Simulation) -> str:
        owner = await sim.start_worker("owner")
        await sim.start_worker("old", definitions=[render], options=GPU)
        handle = await owner.client.start(long(1.0), id="r")
        await asyncio.sleep(60)
        assert began == []
        await sim.start_worker("new", definitions=STEPS, options=GPU)
        return await handle.result()

    assert simulated(scenario) == "done"


def test_oldest_first_and_no_more_than_allowed() -> None:
    """A worker with room for one task runs one after the other, in the order in which the runs asked."""

    async def scenario(sim: Simulation) -> None:
        owner = await sim.start_worker("owner")
        for number in range(5):
            await owner.client.start(long(10.0 + number), id=f"run-{number}")
            await asyncio.sleep(0.1)
        one = replace(GPU, tasks=1)
        worker = await sim.start_worker("taker", definitions=STEPS, options=one)
        most = 0
        for number in range(5):
            while not (await sim.store.head(RunKey("default", f"run-{number}"))).status.closed:
                most = max(most, len(worker.worker.tasks))
                await asyncio.sleep(0.1)
        assert most == 1

    simulated(scenario)
    assert seconds_between() == [10, 11, 12, 13]


def test_workers_share_what_waits() -> None:
    """Ten tasks go to two workers with room for five each."""

    async def scenario(sim: Simulation) -> None:
        owner = await sim.start_worker("owner")
        for name in ("a", "b"):
            await sim.start_worker(name, definitions=STEPS, options=replace(GPU, tasks=5))
        for number in range(10):
            await owner.client.start(long(60.0), id=f"run-{number}")
        for number in range(10):
            await sim.closed(f"run-{number}")

    simulated(scenario)
    processes = [process for _, process, *_ in began]
    assert (processes.count("a"), processes.count("b")) == (5, 5)


# What the run does meanwhile


def test_the_run_leaves_memory_while_its_step_runs() -> None:
    """For hours of a remote step the run is a row that waits, and says for what; its outcome wakes it."""

    async def scenario(sim: Simulation) -> tuple[Any, ...]:
        owner, taker = await two(sim)
        handle = await owner.client.start(long(7200.0), id="r")
        await begun()
        await asyncio.sleep(30)
        status = await handle.status()
        (row,) = await sim.store.tasks(RUN)
        held = (list(owner.worker.runs), [key.operation for key in taker.worker.tasks])
        assert row.worker == taker.worker.id
        return status.status, status.waits["tasks"], held, await handle.result()

    assert simulated(scenario, longest=timedelta(hours=4)) == (
        *(Status.WAITING, {"r:1": "gpu"}, ([], ["r:1"]), "done"),
    )


# How it ends


def test_failed_attempts_are_repeated_as_those_of_any_step() -> None:
    """Numbers, waits and the recorded failure are those of an inline step; the journal holds the outcome only."""

    async def scenario(sim: Simulation) -> tuple[int, list[str]]:
        owner, _ = await two(sim)
        handle = await owner.client.start(retried(), id="r")
        await begun(2)
        await asyncio.sleep(0.5)
        image = await sim.store.load(RUN)
        assert image is not None
        (row,) = image.operations
        assert (row.kind, row.name, row.failures) == ("step", "third_time", 2)
        assert [task.key.attempt for task in image.tasks] == [3]
        return await handle.result(), await kinds(sim)

    assert simulated(scenario) == (3, ["Started", "Taken", "StepCompleted", "Completed"])
    assert (attempts(), seconds_between()) == ([1, 2, 3], [1, 2])


@pytest.mark.parametrize("flow", [retried, fails, mistaken, timed], ids=lambda flow: flow.name)
def test_remote_and_inline_come_to_the_same(flow: Any) -> None:
    """The same step, with and without its queue: the same outcome, the same attempts at the same distances."""

    async def scenario(sim: Simulation, code: list[Definition[..., Any]]) -> str:
        owner = await sim.start_worker("owner", definitions=code)
        await sim.start_worker("taker", definitions=STEPS, options=GPU)
        try:
            return str(await owner.client.run(flow(), id="r"))
        except outlast.WorkflowFailedError as error:
            return f"{error}"

    found = []
    for code in (CODE, [inline(one) for one in CODE]):
        began.clear()
        sims.append(Simulation(CODE, options=QUIET))
        result = sims[-1].run(lambda sim, code=code: scenario(sim, code))
        found.append((result.partition(", raised")[0], attempts(), seconds_between()))
    assert found[0] == found[1]
    assert len(found[0][1]) >= 1


def inline(definition: Definition[..., Any]) -> Definition[..., Any]:
    """Return the definition without its queue."""
    if not isinstance(definition, Step):
        return definition
    return Step(definition.function, definition.name, definition.options, HERE)


def test_arguments_that_do_not_fit_are_tried_again() -> None:
    """A worker with other code than the run's does not fail the step: one that fits comes."""

    async def render(number: str, size: int) -> int:
        raise AssertionError

    render.__annotations__ = {"number": str, "size": int, "return": int}
    strange = Step(
        render, "render", outlast.step(queue="x")(local.function).options, Placement("gpu")
    )

    async def scenario(sim: Simulation) -> tuple[int, str]:
        owner = await sim.start_worker("owner")
        old = await sim.start_worker("old", definitions=[strange], options=GPU)
        handle = await owner.client.start(around(5), id="r")
        await asyncio.sleep(20)
        (one,) = (await handle.detail()).operations
        await old.stop()
        await sim.start_worker("new", definitions=STEPS, options=GPU)
        return await handle.result(), one.failure

    result, failure = simulated(scenario)
    assert result == 20
    assert failure.startswith("outlast.errors.DecodeError")


def test_a_value_that_does_not_fit_is_tried_again() -> None:
    """A result that the run's code cannot read is a failed attempt, and neither blocks the run nor reaches it."""

    async def render(number: int) -> str:
        return "two"

    render.__annotations__ = {"number": int, "return": str}
    strange = Step(
        render, "render", outlast.step(queue="x")(local.function).options, Placement("gpu")
    )

    async def scenario(sim: Simulation) -> tuple[int, str]:
        owner = await sim.start_worker("owner")
        old = await sim.start_worker("old", definitions=[strange], options=GPU)
        handle = await owner.client.start(around(5), id="r")
        await asyncio.sleep(20)
        (one,) = (await handle.detail()).operations
        await old.stop()
        await sim.start_worker("new", definitions=STEPS, options=GPU)
        return await handle.result(), one.failure

    result, failure = simulated(scenario)
    assert result == 20
    assert failure.startswith("outlast.errors.DecodeError")


def test_a_run_with_an_effect_in_doubt_and_a_step_elsewhere_waits() -> None:
    """It is not blocked as long as something can move: the step's outcome will."""

    async def scenario(sim: Simulation) -> tuple[Status, Status]:
        owner, _ = await two(sim)
        handle = await owner.client.start(doubtful(600.0), id="r")
        await begun()
        await asyncio.sleep(60)
        before = (await handle.status()).status
        await asyncio.sleep(1000)
        return before, (await handle.status()).status

    assert simulated(scenario) == (Status.WAITING, Status.BLOCKED)


def test_a_failure_beside_an_operators_word_is_read_and_says_nothing() -> None:
    """Both came while nobody had the run: the operator's outcome stands, no attempt follows, no row or task is left."""

    async def scenario(sim: Simulation) -> tuple[int, list[str]]:
        owner, taker = await two(sim)
        handle = await sim.client.start(retried(), id="r")
        await begun()
        owner.kill()
        while not await sim.store.mail(RUN):
            await asyncio.sleep(0.1)
        await handle.resolve("r:1", applied=7)
        await sim.start_worker("next")
        result = await handle.result()
        await asyncio.sleep(10)
        return result, await kinds(sim)

    result, entries = simulated(scenario)
    assert (result, attempts()) == (7, [1, 2])
    assert entries == ["Started", "Taken", "StepCompleted", "Completed"]


# schedule_to_start


@pytest.mark.filterwarnings("ignore::outlast.NoWorkerWarning")
def test_nobody_serves_the_queue() -> None:
    """The step fails when its time to be started is over, and is not tried again; the workflow gets a TimeoutError."""

    async def scenario(sim: Simulation) -> tuple[str, float, list[str]]:
        owner = await sim.start_worker("owner")
        since = sim.clock.monotonic()
        result = await owner.client.run(soon(1.0), id="r")
        return result, sim.clock.monotonic() - since, await kinds(sim)

    result, seconds, entries = simulated(scenario)
    assert result.startswith("render_soon was not started within 0:05:00: no worker of queue 'gpu'")
    assert round(seconds) == 300
    assert entries == ["Started", "Taken", "StepFailed", "Completed"]


def test_the_time_to_be_started_runs_through_an_outage() -> None:
    """No worker at all lives when it is over; the next one writes it down at once."""

    async def scenario(sim: Simulation) -> tuple[str, float]:
        owner = await sim.start_worker("owner")
        await owner.client.start(soon(1.0), id="r")
        await asyncio.sleep(5)
        owner.kill()
        await asyncio.sleep(600)
        since = sim.clock.monotonic()
        await sim.start_worker("next")
        handle: RunHandle[str] = sim.client.handle("r", soon)
        return await handle.result(), sim.clock.monotonic() - since

    result, seconds = simulated(scenario)
    assert "was not started" in result
    assert seconds < 5


@pytest.mark.filterwarnings("ignore::outlast.NoWorkerWarning")
@pytest.mark.parametrize("idle", [0.2, 36000.0], ids=["parked", "in memory"])
def test_a_clock_that_was_ahead_does_not_move_the_deadline(idle: float) -> None:
    """The task was put while the wall clock was a day ahead; when it is right again, the time to be started is as long as declared."""

    async def scenario(sim: Simulation) -> float:
        sim.clock.jump(timedelta(days=1))
        options = replace(QUIET, idle=timedelta(seconds=idle))
        owner = await sim.start_worker("owner", options=options)
        handle = await owner.client.start(soon(1.0), id="r")
        await asyncio.sleep(5)
        sim.clock.jump(-timedelta(days=1))
        since = sim.clock.monotonic()
        await handle.result()
        return sim.clock.monotonic() - since

    assert 290 <= simulated(scenario) <= 330


def test_a_clock_that_was_ahead_does_not_hold_a_retry_up() -> None:
    """Its due time was set by that clock, and means nothing when it is right again."""

    async def scenario(sim: Simulation) -> tuple[int, float]:
        sim.clock.jump(timedelta(days=1))
        owner, _ = await two(sim)
        handle = await owner.client.start(retried(), id="r")
        await begun()
        await asyncio.sleep(0.5)
        sim.clock.jump(-timedelta(days=1))
        since = sim.clock.monotonic()
        return await handle.result(), sim.clock.monotonic() - since

    result, seconds = simulated(scenario)
    assert (result, seconds < 30) == (3, True)


def test_what_was_taken_in_time_may_last() -> None:
    """The time to be started says nothing of a step that somebody works on."""

    async def scenario(sim: Simulation) -> str:
        owner, _ = await two(sim)
        return await owner.client.run(soon(3000.0), id="r")

    assert simulated(scenario, longest=timedelta(hours=2)) == "done"
    assert len(began) == 1


@pytest.mark.parametrize("idle", [0.2, 36000.0], ids=["parked", "in memory"])
def test_a_task_that_comes_back_must_be_started_again_in_time(idle: float) -> None:
    """Its worker dies and no other one comes: the step fails, within twice the time."""

    async def scenario(sim: Simulation) -> tuple[str, float]:
        options = replace(QUIET, idle=timedelta(seconds=idle))
        owner = await sim.start_worker("owner", options=options)
        taker = await sim.start_worker("taker", definitions=STEPS, options=GPU)
        handle = await owner.client.start(soon(3000.0), id="r")
        await begun()
        await asyncio.sleep(400)
        taker.kill()
        since = sim.clock.monotonic()
        return await handle.result(), sim.clock.monotonic() - since

    result, seconds = simulated(scenario, longest=timedelta(hours=2))
    assert "was not started" in result
    assert 300 <= seconds <= 2 * 300 + 30


def test_taking_wins_over_the_deadline_that_is_being_written() -> None:
    """A worker takes the task at the last moment, which the owner has not seen: the task stands."""

    async def scenario(sim: Simulation) -> str:
        owner = await sim.start_worker("owner")
        handle = await owner.client.start(soon(50.0), id="r")
        await asyncio.sleep(299)
        assert (await handle.status()).status is Status.WAITING
        await handle.send("look", None)
        await asyncio.sleep(0.5)
        owner.stall()
        await sim.start_worker("taker", definitions=STEPS, options=GPU)
        await begun()
        await asyncio.sleep(1)
        owner.thaw()
        return await handle.result()

    assert simulated(scenario) == "done"
    assert len(began) == 1


# Deaths


def test_a_killed_taker_is_replaced() -> None:
    """The attempt is made again with the same number: a crash is no failure. The outcome is recorded once."""

    async def scenario(sim: Simulation) -> tuple[str, list[str]]:
        owner, taker = await two(sim)
        handle = await owner.client.start(long(30.0), id="r")
        await begun()
        taker.kill()
        await sim.start_worker("second", definitions=STEPS, options=GPU)
        return await handle.result(), await kinds(sim)

    assert simulated(scenario) == ("done", ["Started", "Taken", "StepCompleted", "Completed"])
    assert [(process, number) for _, process, number, _ in began] == [("taker", 1), ("second", 1)]


def test_a_killed_owner_does_not_disturb_the_step() -> None:
    """The step goes on while the run has no worker; the next one finds its outcome."""

    async def scenario(sim: Simulation) -> str:
        owner, _ = await two(sim)
        handle = await owner.client.start(long(60.0), id="r")
        await begun()
        owner.kill()
        await asyncio.sleep(100)
        assert ended == ["done"]
        await sim.start_worker("next")
        await sim.closed("r")
        return await handle.result()

    assert simulated(scenario) == "done"
    assert len(began) == 1


def test_a_taker_that_was_frozen_is_fenced() -> None:
    """It thaws when another one has the task: what it comes to is dropped, and the other one's outcome stands."""

    async def scenario(sim: Simulation) -> tuple[str, list[str]]:
        owner, taker = await two(sim)
        handle = await owner.client.start(in_thread(20.0), id="r")
        await begun()
        taker.freeze()
        second = await sim.start_worker("second", definitions=STEPS, options=GPU)
        await begun(2)
        threads.append(second.threads)
        taker.thaw()
        return await handle.result(), await kinds(sim)

    assert simulated(scenario) == ("done", ["Started", "Taken", "StepCompleted", "Completed"])
    assert [process for _, process, *_ in began] == ["taker", "second"]


def test_a_taker_that_freezes_before_it_begins_does_not_begin() -> None:
    """What it took comes to it when its lease is over: another one has the task, and it looks before it begins."""

    async def scenario(sim: Simulation) -> str:
        owner, taker = await two(sim)

        def unreachable(worker: object) -> bool:
            raise outlast.StoreUnavailableError("no answer", hint="this is a test")

        def freeze(moment: str, verb: str) -> None:
            if (moment, verb) == ("after", "claim_tasks") and not waiting(sim) and taken(sim):
                # Only its own clock can tell it, when it goes on, that its lease is over.
                taker.store.renew = unreachable  # type: ignore[method-assign]
                taker.freeze()

        taker.store.at_verb = freeze
        handle = await owner.client.start(long(100.0), id="r")
        while not taker.process.stopped:
            await asyncio.sleep(0.1)
        await sim.start_worker("second", definitions=STEPS, options=GPU)
        await begun()
        await asyncio.sleep(1)
        taker.store.at_verb = lambda _moment, _verb: None
        taker.thaw()
        return await handle.result()

    assert simulated(scenario) == "done"
    assert [process for _, process, *_ in began] == ["second"]


def test_a_stop_lets_tasks_end() -> None:
    """Within the grace time the attempt ends, and its outcome is written."""

    async def scenario(sim: Simulation) -> str:
        owner, taker = await two(sim)
        handle = await owner.client.start(long(5.0), id="r")
        await begun()
        await taker.stop(timedelta(seconds=30))
        return await handle.result()

    assert simulated(scenario) == "done"
    assert ended == ["done"]


def test_a_stop_gives_back_what_takes_too_long() -> None:
    """After the grace time the attempt is cancelled and the task offered at once, not when a lease ends; nothing is counted."""

    async def scenario(sim: Simulation) -> tuple[str, Any]:
        owner, taker = await two(sim)
        handle = await owner.client.start(long(50.0), id="r")
        await begun()
        await taker.stop(timedelta(seconds=5))
        (row,) = await sim.store.tasks(RUN)
        since = sim.clock.now()
        await sim.start_worker("second", definitions=STEPS, options=GPU)
        result = await handle.result()
        assert (began[1][3] - since).total_seconds() < 1
        return result, row

    result, row = simulated(scenario)
    assert (result, ended, attempts()) == ("done", ["cancelled", "done"], [1, 1])
    assert (row.worker, row.lapses) == (None, 0)


def test_a_stop_that_cannot_end_gives_its_tasks_back() -> None:
    """An effect in a thread keeps the worker's lease alive; its tasks do not wait for that."""

    async def scenario(sim: Simulation) -> str:
        worker = await sim.start_worker("both", options=GPU)
        threads.append(worker.threads)
        await worker.client.start(hanging(300.0), id="hangs")
        handle = await worker.client.start(long(500.0), id="r")
        await begun(2)
        await worker.stop(timedelta(seconds=1))
        assert sim.store.renew(worker.worker.id)
        (row,) = await sim.store.tasks(RUN)
        assert (row.worker, row.lapses) == (None, 0)
        await sim.start_worker("owner")
        await sim.start_worker("taker", definitions=STEPS, options=GPU)
        return await handle.result()

    assert simulated(scenario) == "done"


def test_a_task_that_kills_its_workers_blocks_its_run() -> None:
    """Nobody makes an attempt after so many deaths; a message has it tried again."""

    async def scenario(sim: Simulation) -> tuple[Any, ...]:
        await sim.start_worker("owner")
        handle = await sim.client.start(long(60.0), id="r")
        for number in range(POISON_LAPSES):
            worker = await sim.start_worker(f"dying-{number}", definitions=STEPS, options=GPU)
            await begun(number + 1)
            worker.kill()
        await sim.start_worker("last", definitions=STEPS, options=GPU)
        head = await sim.until("r", lambda head: head.status is Status.BLOCKED)
        count = len(began)
        await handle.send("please", None)
        return head.reason, count, await handle.result(), await kinds(sim)

    reason, count, result, entries = simulated(scenario)
    assert (reason, count, result) == ("poison", POISON_LAPSES, "done")
    assert entries.count("StepCompleted") == 1
    assert attempts() == [1] * (POISON_LAPSES + 1)


def test_a_claim_whose_answer_is_lost_is_no_loss() -> None:
    """The worker learns in its next look what it took: nobody else comes, and nobody's lease ends."""

    async def scenario(sim: Simulation) -> tuple[str, float]:
        owner, taker = await two(sim)
        lost: list[str] = []

        def lose(moment: str, verb: str) -> None:
            if (moment, verb) == ("before", "claim_tasks") and waiting(sim) and not lost:
                lost.append(verb)
                taker.store.faults = Faults(lost_answer=1.0)
            elif (moment, verb) == ("before", "claim"):
                taker.store.faults = Faults()

        taker.store.at_verb = lose
        since = sim.clock.monotonic()
        result = await owner.client.run(long(1.0), id="r")
        assert lost
        return result, sim.clock.monotonic() - since

    result, seconds = simulated(scenario)
    assert (result, attempts()) == ("done", [1])
    assert seconds < 10


def test_a_new_life_begins_without_tasks() -> None:
    """A worker whose lease lapsed while it was cut off lets go of its tasks, and takes them again under its new id."""

    async def scenario(sim: Simulation) -> str:
        owner, taker = await two(sim)
        former = taker.worker.id
        handle = await owner.client.start(long(100.0), id="r")
        await begun()
        taker.store.faults = Faults(down=True)
        await asyncio.sleep(40)
        assert ended == ["cancelled"]
        assert taker.worker.tasks == []
        taker.store.faults = Faults()
        result = await handle.result()
        assert taker.worker.id != former
        return result

    assert simulated(scenario) == "done"
    assert attempts() == [1, 1]


# Nobody waits any more


def test_a_cancelled_run_takes_its_step_along() -> None:
    """The attempt is cancelled in the other worker, and the task is gone."""

    async def scenario(sim: Simulation) -> list[Any]:
        owner, taker = await two(sim)
        handle = await owner.client.start(long(1000.0), id="r")
        await begun()
        await handle.cancel("enough")
        with pytest.raises(outlast.RunCancelledError):
            await handle.result()
        await asyncio.sleep(1)
        return [list(taker.worker.tasks), await sim.store.tasks(RUN)]

    assert simulated(scenario) == [[], ()]
    assert ended == ["cancelled"]


def test_a_step_that_the_workflow_gave_up_is_dropped() -> None:
    """A timeout in the workflow ends the attempt elsewhere; the run goes on."""

    async def scenario(sim: Simulation) -> str:
        owner, taker = await two(sim)
        handle = await owner.client.start(impatient(1000.0), id="r")
        await begun()
        await asyncio.sleep(20)
        assert taker.worker.tasks == []
        return await handle.result()

    assert simulated(scenario) == "gave up"
    assert ended == ["cancelled"]


def test_a_terminated_run_takes_its_step_along(caplog: pytest.LogCaptureFixture) -> None:
    """Terminating drops the task; a body in a thread cannot be stopped, and what it comes to is dropped."""

    async def scenario(sim: Simulation) -> list[Any]:
        owner, taker = await two(sim)
        handle = await owner.client.start(in_thread(50.0), id="r")
        await begun()
        await handle.terminate("enough")
        await asyncio.sleep(1)
        working = list(taker.worker.tasks)
        await asyncio.sleep(100)
        return [working, await sim.store.tasks(RUN), await sim.store.mail(RUN)]

    with caplog.at_level(logging.WARNING, "outlast.worker"):
        assert simulated(scenario) == [[], (), ()]
    assert "returned after its time; the result is dropped" in caplog.text


def test_a_body_that_goes_on_after_its_attempt_keeps_its_place(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A worker of one place begins nothing while a thread that cannot be stopped still has it, and goes on when that returns."""

    async def scenario(sim: Simulation) -> list[Any]:
        owner = await sim.start_worker("owner")
        one = replace(GPU, tasks=1)
        taker = await sim.start_worker("taker", definitions=STEPS, options=one)
        threads.append(taker.threads)
        stuck = await owner.client.start(in_thread(50.0), id="r")
        await begun()
        await stuck.terminate("enough")
        next_one = await owner.client.start(around(5), id="next")
        return await next_one.result()

    with caplog.at_level(logging.WARNING, "outlast.worker"):
        assert simulated(scenario) == 20
    (stuck, first), (other, second) = [
        (name, at) for name, process, _, at in began if process == "taker"
    ]
    assert (stuck, other) == ("render_in_thread", "render")
    assert 49 <= (second - first).total_seconds() <= 61
    assert "keeps one of the 1 places for tasks" in caplog.text


def test_a_body_of_a_former_life_keeps_its_place_too() -> None:
    """A worker whose lease was over begins nothing in its next life while a thread of the former one has its only place."""

    async def scenario(sim: Simulation) -> str:
        owner = await sim.start_worker("owner")
        one = replace(GPU, tasks=1)
        taker = await sim.start_worker("taker", definitions=STEPS, options=one)
        threads.append(taker.threads)
        handle = await owner.client.start(in_thread(60.0), id="r")
        await begun()
        taker.freeze()
        await asyncio.sleep(30)
        taker.thaw()
        return await handle.result()

    assert simulated(scenario) == "done"
    assert [name for name, *_ in began] == ["render_in_thread"] * 2
    assert 59 <= seconds_between()[0] <= 75


def test_an_end_that_the_store_refuses_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    """A worker that was not told that the run is over writes its outcome in vain: no message, no entry, a word in the log."""

    async def scenario(sim: Simulation) -> list[Any]:
        owner, taker = await two(sim)
        taker.store.faults = Faults(lost_hint=1.0)
        handle = await owner.client.start(long(8.0), id="r")
        await begun()
        await handle.terminate("enough")
        await asyncio.sleep(30)
        return [await sim.store.mail(RUN), list(taker.worker.tasks), await kinds(sim)]

    with caplog.at_level(logging.WARNING, "outlast.worker"):
        assert simulated(scenario) == [(), [], ["Started", "Taken"]]
    assert ended == ["done"]
    assert "ended after its task was taken away (there is no such task any more)" in caplog.text


def test_an_operator_settles_a_step_in_a_queue() -> None:
    """What an operator says of it stands, and the attempt is cancelled."""

    async def scenario(sim: Simulation) -> tuple[str, list[str]]:
        owner, _ = await two(sim)
        handle = await owner.client.start(long(1000.0), id="r")
        await begun()
        await handle.resolve("r:1", applied="by hand")
        result = await handle.result()
        await asyncio.sleep(1)
        return result, await kinds(sim)

    assert simulated(scenario) == ("by hand", ["Started", "Taken", "StepCompleted", "Completed"])
    assert ended == ["cancelled"]


def test_an_outcome_that_comes_too_late_is_dropped() -> None:
    """The workflow gave the step up while its outcome was in the inbox: it is read and says nothing; no alarm is raised."""

    async def scenario(sim: Simulation) -> tuple[str, list[str]]:
        owner, taker = await two(sim)
        handle = await owner.client.start(impatient(9.5), id="r")
        await begun()
        owner.stall()
        while not await sim.store.mail(RUN):
            await asyncio.sleep(0.1)
        await asyncio.sleep(3)
        owner.thaw()
        result = await handle.result()
        assert await sim.store.mail(RUN) == ()
        return result, await kinds(sim)

    result, entries = simulated(scenario)
    assert result == "gave up"
    assert entries == ["Started", "Taken", "TimerFired", "TimerFired", "Completed"]


def test_a_task_that_nobody_waits_for_is_dropped_by_the_next_owner() -> None:
    """The owner dies when the cancel is recorded and the task not yet dropped: whoever takes the run up drops it."""

    async def scenario(sim: Simulation) -> str:
        owner, taker = await two(sim)
        handle = await owner.client.start(impatient(1000.0), id="r")
        await begun()

        def strike(moment: str, _number: int) -> None:
            if moment == "after" and "TimerFired" in last_kinds(sim):
                owner.kill()

        owner.store.at_commit = strike
        while not owner.process.dead:
            await asyncio.sleep(0.1)
        assert len(taker.worker.tasks) == 1
        await sim.start_worker("next")
        await asyncio.sleep(30)
        assert taker.worker.tasks == []
        assert await sim.store.tasks(RUN) == ()
        assert ended == ["cancelled"]
        await sim.closed("r")
        return await handle.result()

    assert simulated(scenario) == "gave up"


def waiting(sim: Simulation) -> bool:
    """Whether a task waits."""
    return any(task.row.worker is None for task in tasks_of(sim))


def taken(sim: Simulation) -> bool:
    """Whether somebody has a task."""
    return any(task.row.worker for task in tasks_of(sim))


def last_kinds(sim: Simulation) -> list[str]:
    """Return the kinds of the newest entries of the run."""
    rows = sim.invariants.runs[RUN].rows[-2:]
    return [type(from_row(one.row)).__name__ for one in rows]


# Declarations that change


def moved(queue: str) -> list[Definition[..., Any]]:
    """Return the code with the long step in another queue, or in none."""
    placed = Step(
        render_long.function,
        "render_long",
        render_long.options,
        Placement(queue) if queue else HERE,
    )
    return [placed if one is render_long else one for one in CODE]


def test_a_task_that_nobody_has_moves_with_its_declaration() -> None:
    """The queue was renamed: whoever takes the run up puts the task where its step is declared to run now."""

    async def scenario(sim: Simulation) -> str:
        owner = await sim.start_worker("owner")
        handle = await sim.client.start(long(1.0), id="r")
        await asyncio.sleep(10)
        await owner.stop()
        await sim.start_worker(
            "new", definitions=moved("tpu"), options=replace(QUIET, queues=("tpu",))
        )
        await handle.send("look", None)
        return await handle.result()

    assert simulated(scenario) == "done"
    assert [process for _, process, *_ in began] == ["new"]


def test_a_task_that_somebody_has_stays_there() -> None:
    """The step is inline now, and an attempt of it is under way in its former queue: that one counts."""

    async def scenario(sim: Simulation) -> str:
        owner, _ = await two(sim)
        handle = await sim.client.start(long(100.0), id="r")
        await begun()
        await owner.stop()
        await sim.start_worker("new", definitions=moved(""))
        await handle.send("look", None)
        return await handle.result()

    assert simulated(scenario) == "done"
    assert [process for _, process, *_ in began] == ["taker"]


def test_a_step_that_has_failed_goes_on_in_its_new_queue() -> None:
    """It was inline, and failed; now it has a queue: the next attempt is made there, with its number and at its time."""

    async def scenario(sim: Simulation) -> int:
        owner = await sim.start_worker("owner", definitions=[inline(one) for one in CODE])
        handle = await sim.client.start(retried(), id="r")
        await begun(2)
        await asyncio.sleep(0.5)
        await owner.stop()
        await two_more(sim)
        return await handle.result()

    async def two_more(sim: Simulation) -> None:
        await sim.start_worker("new")
        await sim.start_worker("taker", definitions=STEPS, options=GPU)

    assert simulated(scenario) == 3
    assert [process for _, process, *_ in began] == ["owner", "owner", "taker"]
    assert (attempts(), seconds_between()) == ([1, 2, 3], [1, 2])


# Our own faults


def test_the_end_of_another_attempt_says_nothing() -> None:
    """A message of an attempt that is not the present one is read, and neither counted nor put on record."""

    async def scenario(sim: Simulation) -> tuple[str, list[str]]:
        owner, taker = await two(sim)
        handle = await owner.client.start(long(30.0), id="r")
        await begun()
        (row,) = await sim.store.tasks(RUN)
        failure = Failure(type="OSError", message="stale")
        for attempt in (2, 9):
            stale = replace_row(row, attempt)
            message = message_of(
                outcome_of(stale, "failed", failure=failure), taker.worker.id, attempt
            )
            await sim.store.commit([PutMessage(RUN, message)])
        result = await handle.result()
        assert await sim.store.mail(RUN) == ()
        return result, await kinds(sim)

    assert simulated(scenario) == ("done", ["Started", "Taken", "StepCompleted", "Completed"])
    assert attempts() == [1]


def replace_row(row: TaskRow, attempt: int) -> TaskRow:
    """Return the task as one of another attempt."""
    return structs.replace(row, key=structs.replace(row.key, attempt=attempt))


def test_an_outcome_that_the_store_refuses_is_said_otherwise(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A value that no store takes fails the step with words, and does not keep its task for ever."""

    async def scenario(sim: Simulation) -> str:
        owner, taker = await two(sim)
        commit = taker.store.commit

        async def refusing(changes: Any) -> Any:
            (change,) = changes
            if (
                isinstance(change, FinishTask)
                and change.message
                and b"completed" in change.message.body
            ):
                return [Refused("unstorable", "message.body")]
            return await commit(changes)

        taker.store.commit = refusing  # type: ignore[method-assign]
        with pytest.raises(outlast.WorkflowFailedError) as raised:
            await owner.client.run(long(1.0), id="r")
        return str(raised.value)

    assert "the store refuses what the attempt came to: unstorable message.body" in simulated(
        scenario
    )
    assert attempts() == [1]


def tasks_of(sim: Simulation) -> list[TaskState]:
    """Return the tasks of all runs."""
    return [task for run in sim.store.runs.values() for task in run.tasks()]
