"""Failed attempts: when they are repeated, what is recorded of them, what a restart knows."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import pytest

import outlast
from outlast.journal.entry import from_row
from outlast.store.change import RunKey, Status
from outlast.testing import Faults, SimulatedThreads, Simulation
from outlast.worker.worker import WorkerOptions

RUN = RunKey("default", "r")
began: list[tuple[int, datetime]] = []
sims: list[Simulation] = []
finished: list[str] = []


def _note() -> int:
    number = outlast.attempt().number
    began.append((number, sims[-1].clock.now()))
    return number


@outlast.step
async def never() -> int:
    _note()
    raise ValueError("no")


@outlast.step(retry=outlast.RetryPolicy(maximum_attempts=6))
async def sixth() -> int:
    if _note() < 6:
        raise ValueError("not yet")
    return 6


@outlast.step(retry=outlast.RetryPolicy(maximum_attempts=2))
async def twice() -> int:
    _note()
    raise OSError("down")


@outlast.step
async def wrong() -> int:
    _note()
    raise TypeError("a mistake in the code")


@outlast.step(
    start_to_close_timeout=timedelta(seconds=5), retry=outlast.RetryPolicy(maximum_attempts=2)
)
async def slow() -> int:
    number = _note()
    if number == 1:
        try:
            await asyncio.sleep(60)
        finally:
            finished.append("cleaned")
    return number


@outlast.step
async def long() -> int:
    _note()
    await asyncio.sleep(30)
    return 1


@outlast.step
def blocking(seconds: float) -> str:
    began.append((0, sims[-1].clock.now()))
    threads[-1].busy(seconds)
    return "done"


threads: list[SimulatedThreads] = []


@outlast.workflow
async def use_never() -> int:
    return await never()


@outlast.workflow
async def use_sixth() -> int:
    return await sixth()


@outlast.workflow
async def use_twice() -> str:
    try:
        await twice()
    except OSError as error:
        return f"{type(error).__name__}: {error}"
    return "never"


@outlast.workflow
async def use_wrong() -> int:
    return await wrong()


@outlast.workflow
async def use_slow() -> int:
    return await slow()


@outlast.workflow
async def use_long() -> int:
    return await long()


@outlast.workflow
async def use_blocking() -> list[str]:
    return list(await asyncio.gather(blocking(30), blocking(30)))


CODE = [
    *(never, sixth, twice, wrong, slow, long, blocking),
    *(use_never, use_sixth, use_twice, use_wrong, use_slow, use_long, use_blocking),
]
QUICK = WorkerOptions(library="simulated")


@pytest.fixture(autouse=True)
def _clean() -> None:
    began.clear()
    finished.clear()


def simulation(**options: object) -> Simulation:
    """Return a simulation whose clock the bodies can read."""
    sims.append(Simulation(CODE, **options))
    return sims[-1]


def gaps() -> list[float]:
    """Return the seconds between the attempts."""
    times = [at for _, at in began]
    return [round((two - one).total_seconds()) for one, two in zip(times, times[1:], strict=False)]


def test_default_gaps() -> None:
    """1, 2, 4, 8, 16, 32, 64, 100, 100 seconds; an hour holds 42 attempts."""

    async def scenario(sim: Simulation) -> None:
        worker = await sim.start_worker()
        await worker.client.start(use_never(), id="r")
        await asyncio.sleep(3600)

    simulation(longest=timedelta(hours=2)).run(scenario)
    assert gaps()[:9] == [1, 2, 4, 8, 16, 32, 64, 100, 100]
    assert [number for number, _ in began] == list(range(1, len(began) + 1))
    assert len(began) == 42


def test_a_restart_goes_on_with_the_next_attempt_at_its_due_time() -> None:
    """After 4 recorded failures of 6, the process dies; the next worker makes attempt 5, 8 seconds after the fourth."""

    async def scenario(sim: Simulation) -> int:
        options = WorkerOptions(library="simulated", lease=timedelta(seconds=3))
        worker = await sim.start_worker(options=options)
        handle = await sim.client.start(use_sixth(), id="r")
        while len(began) < 4:
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.5)
        worker.kill()
        await sim.start_worker(options=options)
        await sim.closed("r")
        return await handle.result()

    assert simulation().run(scenario) == 6
    assert [number for number, _ in began] == [1, 2, 3, 4, 5, 6]
    assert gaps() == [1, 2, 4, 8, 16]


def test_an_attempt_cut_off_by_a_kill_is_not_counted() -> None:
    """The attempt during which the process died has the same number when it is made again."""

    async def scenario(sim: Simulation) -> int:
        worker = await sim.start_worker()
        handle = await sim.client.start(use_long(), id="r")
        while not began:
            await asyncio.sleep(0.1)
        worker.kill()
        await sim.start_worker()
        await sim.closed("r")
        return await handle.result()

    assert simulation().run(scenario) == 1
    assert [number for number, _ in began] == [1, 1]


def test_the_last_failure_reaches_the_workflow() -> None:
    """When the policy allows no further attempt, the workflow gets the exception."""

    async def scenario(sim: Simulation) -> str:
        worker = await sim.start_worker()
        return await worker.client.run(use_twice(), id="r")

    assert simulation().run(scenario) == "OSError: down"
    assert len(began) == 2


def test_attempts_leave_no_entries() -> None:
    """Failed attempts are a mutable row; the journal has the outcome only."""

    async def scenario(sim: Simulation) -> list[str]:
        worker = await sim.start_worker()
        await worker.client.run(use_twice(), id="r")
        image = await sim.store.load(RunKey("default", "r"))
        assert image is not None
        assert image.operations == ()
        return [type(from_row(one.row)).__name__ for one in image.rows]

    assert simulation().run(scenario) == ["Started", "Taken", "StepFailed", "Completed"]


def test_programming_errors_are_not_retried() -> None:
    """Another attempt would meet the same line."""

    async def scenario(sim: Simulation) -> None:
        worker = await sim.start_worker()
        await worker.client.run(use_wrong(), id="r")

    with pytest.raises(outlast.WorkflowFailedError, match="a mistake in the code"):
        simulation().run(scenario)
    assert len(began) == 1


def test_an_async_step_is_cancelled_at_its_timeout() -> None:
    """The body is cancelled, may clean up, and is tried again."""

    async def scenario(sim: Simulation) -> int:
        worker = await sim.start_worker()
        return await worker.client.run(use_slow(), id="r")

    assert simulation().run(scenario) == 2
    assert finished == ["cleaned"]
    assert gaps() == [6]


def test_sync_steps_do_not_block() -> None:
    """Two synchronous bodies of 30 s each are under way together, and the worker keeps its lease."""

    async def scenario(sim: Simulation) -> tuple[list[str], float]:
        worker = await sim.start_worker()
        threads.append(worker.threads)
        since = sim.clock.monotonic()
        result = await worker.client.run(use_blocking(), id="r")
        return result, sim.clock.monotonic() - since

    result, seconds = simulation(faults=Faults(latency=0.01)).run(scenario)
    assert result == ["done", "done"]
    assert 30 <= seconds < 35


def test_a_run_that_rests_is_parked() -> None:
    """Between attempts that are far apart the run leaves memory and its row says when the next is due."""

    async def scenario(sim: Simulation) -> tuple[Status, float, list[object]]:
        worker = await sim.start_worker()
        await worker.client.start(use_never(), id="r")
        while len(began) < 6:
            await asyncio.sleep(0.1)
        await asyncio.sleep(3)
        head = await sim.store.head(RunKey("default", "r"))
        assert head is not None
        assert head.wake_at is not None
        rest = (head.wake_at - began[-1][1]).total_seconds()
        return head.status, rest, list(worker.worker.runs)

    status, rest, held = simulation().run(scenario)
    assert (status, round(rest), held) == (Status.WAITING, 32, [])


def test_no_attempt_begins_while_somebody_elses_outcome_is_written() -> None:
    """An operator says what a step returns, and the answer to that write is lost: the next attempt does not begin meanwhile."""

    async def scenario(sim: Simulation) -> int:
        sims.append(sim)
        worker = await sim.start_worker()
        handle = await sim.client.start(use_sixth(), id="r")

        def lose_answers(moment: str, verb: str) -> None:
            written = sim.invariants.runs[RUN].outcomes
            if (moment, verb) == ("after", "commit") and written:
                worker.store.faults = Faults(lost_answer=1.0)

        while not (image := await sim.store.load(RUN)) or not image.operations:
            await asyncio.sleep(0.05)
        worker.store.at_verb = lose_answers
        await handle.resolve("r:1", applied=6)
        await asyncio.sleep(3)
        assert sim.invariants.runs[RUN].outcomes
        worker.store.at_verb = lambda *_: None
        worker.store.faults = Faults()
        return await handle.result()

    assert Simulation(CODE).run(scenario) == 6
    assert [number for number, _ in began] == [1]
