"""Lines of workflow code: said once, whatever becomes of the run in memory, and with fields that name it."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

import pytest

import outlast
from outlast.store.change import RunHead, Status
from outlast.testing import Simulation, WorkerOptions
from outlast.workflows.log import FIELDS, RunFields

log = outlast.logger("tests.lines")
go = outlast.Signal("go for the lines", int)
peek = outlast.Query("peek at the lines", None, int)


@outlast.step
async def think(number: int) -> int:
    log.info("thinking %d", number)
    return number


@outlast.workflow
async def lines(rounds: int) -> int:
    log.info("begins")
    outlast.on_query(peek, lambda _: log.info("asked") or 1)
    try:
        for number in range(rounds):
            await think(number)
            log.info("thought %d", number)
            got = await outlast.receive(go)
            log.info("got %d", got, extra={"workflow": "mine"})
        return rounds
    finally:
        log.info("ends")


@outlast.workflow
async def rolls(left: int) -> int:
    log.info("generation with %d left", left)
    await outlast.sleep(timedelta(seconds=5))
    if left:
        outlast.continue_as_new(rolls(left - 1))
    return left


@outlast.workflow(durability="exit")
async def late(rounds: int) -> int:
    log.info("begins late")
    for number in range(rounds):
        await think(number)
        log.info("thought %d", number)
    return rounds


def rests(head: RunHead) -> bool:
    return head.owner is None and head.status is Status.WAITING


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name == "tests.lines"]


def run(scenario) -> None:
    Simulation([think, lines, rolls, late]).run(scenario)


OPTIONS = WorkerOptions(library="simulated", idle=timedelta(milliseconds=100))


def test_a_run_that_leaves_memory_says_each_line_once(caplog: pytest.LogCaptureFixture) -> None:
    """It is parked and taken up again before each message; a worker that never had it says nothing that was said."""
    caplog.set_level(logging.INFO)

    async def scenario(sim: Simulation) -> None:
        worker = await sim.start_worker(options=OPTIONS)
        handle = await sim.client.start(lines(3), id="r")
        for number in range(3):
            await sim.until("r", rests)
            if number == 1:
                worker.kill()
                await sim.start_worker(options=OPTIONS)
            assert await handle.query(peek) == 1
            await handle.send(go, number)
        await sim.closed("r")

    run(scenario)
    thoughts = [[f"thinking {n}", f"thought {n}", f"got {n}"] for n in range(3)]
    assert said(caplog) == ["begins", *sum(thoughts, []), "ends"]


def test_a_run_that_is_born_in_its_worker_is_heard(caplog: pytest.LogCaptureFixture) -> None:
    """Where client and worker are one, too."""
    caplog.set_level(logging.INFO)

    @outlast.workflow
    async def born() -> None:
        log.info("is born")
        await outlast.sleep(0)
        log.info("lives")

    async def main() -> None:
        async with outlast.open("memory://", workflows=[born]) as app:
            await app.run(born(), id="r")

    asyncio.run(main())
    assert said(caplog) == ["is born", "lives"]


def test_a_fork_says_what_is_its_own(caplog: pytest.LogCaptureFixture) -> None:
    """What it has from its origin was said there."""
    caplog.set_level(logging.INFO)

    async def scenario(sim: Simulation) -> None:
        await sim.start_worker(options=OPTIONS)
        handle = await sim.client.start(late(2), id="r")
        await sim.closed("r")
        caplog.clear()
        journal = await handle.journal()
        at = next(one.seq for one in journal if getattr(one.entry, "operation", "") == "r:2")
        await handle.fork(at, id="f", reason="to see")
        await sim.closed("f")

    run(scenario)
    assert said(caplog) == ["thinking 1", "thought 1"]


def test_each_generation_begins_aloud(caplog: pytest.LogCaptureFixture) -> None:
    """A run that goes on as new says the lines of its next generation, parked or not."""
    caplog.set_level(logging.INFO)

    async def scenario(sim: Simulation) -> None:
        await sim.start_worker(options=OPTIONS)
        await sim.client.start(rolls(2), id="r")
        await sim.closed("r")

    run(scenario)
    assert said(caplog) == [f"generation with {n} left" for n in (2, 1, 0)]


def test_what_is_seen_before_it_is_written_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """A run that goes on before it is written says its lines as it comes to them."""
    caplog.set_level(logging.INFO)

    async def scenario(sim: Simulation) -> None:
        await sim.start_worker(options=OPTIONS)
        await sim.client.start(late(2), id="r")
        await sim.closed("r")

    run(scenario)
    assert said(caplog) == ["begins late", "thinking 0", "thought 0", "thinking 1", "thought 1"]


def test_lines_name_their_run(caplog: pytest.LogCaptureFixture) -> None:
    """Workflow code: tenant, run, workflow; a step: operation, step and attempt too. What the caller gives wins."""
    caplog.set_level(logging.INFO)

    async def scenario(sim: Simulation) -> None:
        await sim.start_worker(options=OPTIONS)
        handle = await sim.client.start(lines(1), id="r")
        await handle.send(go, 7)
        await sim.closed("r")

    run(scenario)
    by_text = {one.getMessage(): one for one in caplog.records}
    begins, thinking, got = (by_text[one] for one in ("begins", "thinking 0", "got 7"))
    assert (begins.tenant, begins.run, begins.workflow) == ("default", "r", "lines")
    assert not hasattr(begins, "step")
    fields = ("r", "lines", "r:1", "think", 1)
    names = ("run", "workflow", "operation", "step", "attempt")
    assert tuple(getattr(thinking, one) for one in names) == fields
    assert thinking.worker.startswith("host-") or thinking.worker
    assert got.workflow == "mine"
    completed = by_text["run r: completed"]
    assert (completed.run, completed.workflow) == ("r", "lines")
    assert begins.filename == "test_log.py"


def test_outside_it_logs_as_any_does(caplog: pytest.LogCaptureFixture) -> None:
    """Without a run there are no fields, and levels count."""
    caplog.set_level(logging.WARNING, "tests.lines")
    log.info("not said")
    log.warning("said")
    assert said(caplog) == ["said"]
    assert not any(hasattr(caplog.records[-1], name) for name in FIELDS)
    assert log.isEnabledFor(logging.WARNING)
    assert not log.isEnabledFor(logging.INFO)


def test_fields_that_a_record_has_are_kept() -> None:
    """A filter on a handler never overwrites what a line says of itself, and drops nothing."""
    record = logging.makeLogRecord({"msg": "x", "run": "mine"})
    assert RunFields().filter(record)
    assert record.run == "mine"
