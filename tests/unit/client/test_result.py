"""How the end of a run reaches whoever waits for it; and what a client says before anything is started."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
import logging
import sys
import warnings
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import outlast
from outlast.cli.main import app as command
from outlast.errors import NoWorkerWarning
from outlast.testing import Simulation, WorkerOptions


@outlast.step(retry=outlast.RetryPolicy(maximum_attempts=1))
async def divide(by: int) -> int:
    return 1 // by


@outlast.effect(idempotent=True)
async def pay(amount: int) -> int:
    return amount


@outlast.effect(start_to_close_timeout=timedelta(seconds=1), settle=timedelta(0))
async def unsure() -> int:
    raise ConnectionError("cut off")


@outlast.workflow
async def flow(kind: str) -> int:
    match kind:
        case "step":
            return await divide(0)
        case "doubt":
            return await unsure()
        case "group":
            async with asyncio.TaskGroup() as group:
                group.create_task(divide(0))
            return 0
        case "repeat":
            return await pay(1) + await pay(1)
        case _:
            await outlast.sleep(3600)
            return 1


CODE = [divide, pay, unsure, flow]


def ended(kind: str, *, cancel: str | None = None) -> outlast.OutlastError:
    """Return what `result` raises."""

    async def scenario(sim: Simulation) -> outlast.OutlastError:
        await sim.start_worker()
        handle = await sim.client.start(flow(kind), id="r")
        if cancel is not None:
            await handle.cancel(cancel)
        with pytest.raises(outlast.OutlastError) as caught:
            await handle.result()
        return caught.value

    return Simulation(CODE).run(scenario)


def test_a_failure_says_where_it_was_raised() -> None:
    """The message names the author's line in the step, and where the workflow awaited it."""
    error = ended("step")
    assert isinstance(error, outlast.WorkflowFailedError)
    assert "ZeroDivisionError" in str(error)
    assert ", raised at test_result.py:" in str(error)
    assert " in divide, by divide (r:1), awaited at test_result.py:" in str(error)


def test_a_failure_in_a_group_says_what_failed() -> None:
    """In the error and in the run's row: how tasks were gathered is of no use to whoever reads it."""

    async def scenario(sim: Simulation) -> tuple[str, str]:
        await sim.start_worker()
        handle = await sim.client.start(flow("group"), id="r")
        with pytest.raises(outlast.WorkflowFailedError) as caught:
            await handle.result()
        return caught.value.message, (await handle.status()).reason

    message, reason = Simulation(CODE).run(scenario)
    told = "TaskGroup: ZeroDivisionError: integer division or modulo by zero"
    assert told in message
    assert reason.endswith(told)


def test_a_failure_keeps_the_hint_of_an_outlast_error() -> None:
    """What to do about it is said where it is read first."""
    error = ended("repeat")
    assert isinstance(error.__cause__, outlast.RepeatedEffectError)
    assert error.hint == error.__cause__.hint != ""


@pytest.mark.parametrize(
    ("reason", "words"), [("too slow", "by tester: too slow"), ("", "by tester")]
)
def test_a_cancelled_run_says_who_and_why(reason: str, words: str) -> None:
    """Who asked is in the error, with the reason where one was given."""
    error = ended("wait", cancel=reason)
    assert isinstance(error, outlast.RunCancelledError)
    assert error.message == f"the run was cancelled {words}"


def test_connecting_makes_no_database(tmp_path: Path) -> None:
    """A mistyped path is an error; `create=True` says that it is meant; `open` makes one."""
    file = tmp_path / "typo.db"
    url = f"sqlite:///{file}"

    async def connect(**options: Any) -> None:
        async with outlast.connect(url, **options):
            pass

    with pytest.raises(outlast.StoreUnavailableError) as caught:
        asyncio.run(connect())
    assert "run one of them first, and try again" in caught.value.hint
    assert "create=True" in caught.value.hint
    assert not file.exists()
    asyncio.run(connect(create=True))
    assert file.exists()


@pytest.mark.parametrize("given", [flow, divide, 5])
def test_what_is_no_call_is_refused_in_words(given: Any) -> None:
    """A workflow that was not called is told apart from what is no workflow."""

    async def scenario(sim: Simulation) -> str:
        with pytest.raises(outlast.DefinitionError) as caught:
            await sim.client.run(given, id="r")
        return caught.value.hint

    hint = Simulation(CODE).run(scenario)
    assert hint == (
        "call it: write flow(…)"
        if given is flow
        else "start what @workflow decorates, called: fix(finding)"
    )


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("postgresql://user:secret@127.0.0.1:9/db", "schema outlast"),
        ("postgres://127.0.0.1:9/db", "schema outlast"),
        ("postgresql+asyncpg://user:secret@h/d", "does not name a store"),
    ],
)
def test_postgresql_that_is_not_there(url: str, told: str) -> None:
    """The error speaks of PostgreSQL, and shows no password."""

    async def connect() -> None:
        async with outlast.connect(url):
            pass

    with pytest.raises(outlast.StoreUnavailableError, match=told) as caught:
        asyncio.run(connect())
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("words", [[], ["migrate"], ["doctor"]])
def test_postgresql_needs_its_driver(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra the error says what to install."""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    for name in [name for name in sys.modules if name.startswith("outlast.store.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    url = "postgresql://user@127.0.0.1:9/db"
    if words:
        result = CliRunner(env={"OUTLAST_DATABASE_URL": url}).invoke(command, words)
        assert result.exit_code == 1
        assert "pip install 'outlast[postgres]'" in result.output
        return

    async def connect() -> None:
        async with outlast.connect(url):
            pass

    with pytest.raises(outlast.StoreUnavailableError, match="needs psycopg") as caught:
        asyncio.run(connect())
    assert caught.value.hint == "pip install 'outlast[postgres]'"


def said_of_a_lonely_run(*, own_worker: bool, caplog: pytest.LogCaptureFixture) -> Any:
    """Return the one warning about a run whose workflow no worker knows."""

    async def scenario(sim: Simulation) -> None:
        worker = await sim.start_worker(definitions=[pay])
        client = worker.client if own_worker else sim.client
        handle = await client.start(flow("wait"), id="r")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await handle.result()

    caplog.set_level(logging.DEBUG, "outlast.client")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        Simulation(CODE).run(scenario)
    assert [one for one in caplog.records if one.name == "outlast.client"] == []
    (one,) = said
    assert one.category is NoWorkerWarning
    return one


def test_no_worker_is_said_once_at_the_callers_line(caplog: pytest.LogCaptureFixture) -> None:
    """One warning and no line in the log beside it; it points at the code that waits."""
    one = said_of_a_lonely_run(own_worker=False, caplog=caplog)
    assert Path(one.filename).name == Path(__file__).name
    assert "outlast worker MODULE" in str(one.message)


def test_no_worker_in_an_app_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    """An app with a worker is told that the workflow came after it, and not to open what is open."""
    text = str(said_of_a_lonely_run(own_worker=True, caplog=caplog).message)
    assert "before that" in text
    assert "instead of outlast.connect()" not in text


@outlast.step(queue="gpu")
async def render() -> int:
    return 5


@outlast.workflow
async def rendered() -> int:
    return await render()


def test_no_worker_of_a_queue_is_said_once() -> None:
    """A run whose step nobody can run says so, with what to type; it goes on when somebody comes."""

    async def scenario(sim: Simulation) -> int:
        quiet = WorkerOptions(library="simulated")
        owner = await sim.start_worker(options=quiet)
        handle = await owner.client.start(rendered(), id="r")
        waiting = sim.spawn(handle.result())
        await asyncio.sleep(30)
        await sim.start_worker(options=replace(quiet, queues=("gpu",)))
        return await waiting

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert Simulation([render, rendered]).run(scenario) == 5
    (one,) = said
    assert one.category is NoWorkerWarning
    assert "waits for step 'render', and no live worker serves its queue 'gpu'" in str(one.message)
    assert "outlast worker MODULE --queue gpu" in str(one.message)


def test_a_step_is_hopeless_when_it_asks_for_what_workflows_have() -> None:
    """`outlast.now()` outside a workflow raises a public error of its own."""
    with pytest.raises(outlast.OutsideWorkflowError, match=r"outlast\.now was called outside"):
        outlast.now()


def test_an_entry_is_readable() -> None:
    """The repr of an entry says position, time, kind, name, operation and what it holds; no bytes, no empty fields."""

    async def scenario(sim: Simulation) -> list[str]:
        await sim.start_worker()
        handle = await sim.client.start(flow("step"), id="r")
        await sim.closed("r")
        return [repr(one) for one in await handle.journal()]

    lines = Simulation(CODE).run(scenario)
    assert lines[2].startswith("JournalEntry(2, ")
    assert "UTC, step_failed divide (r:1), {" in lines[2]
    assert "Raw(" not in "".join(lines)
    assert '"reason"' not in lines[2]
    assert all(len(one) < 320 for one in lines)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"queues": "gpu"}, "one text and not several names"),
        ({"queues": ["a:b"]}, "cannot be the name of a queue"),
        ({"queues": [""]}, "cannot be the name of a queue"),
        ({"tasks": 0}, "tasks=0 is no number"),
        ({"tasks": 1.5}, "tasks=1.5 is no number"),
    ],
)
def test_queues_that_cannot_be_served_are_refused(options: dict[str, Any], words: str) -> None:
    """In words, before anything is opened."""
    with pytest.raises(outlast.DefinitionError, match=words):
        outlast.open("memory://", **options)


def test_an_unused_timeout_is_a_time(tmp_path: Path) -> None:
    """What is no length of time is refused in an approval, with words."""

    @outlast.workflow(name="asks for seconds")
    async def ask() -> None:
        seconds: Any = 5
        await outlast.approval("x", role="boss", expires_in=seconds)

    async def scenario(sim: Simulation) -> str:
        await sim.start_worker(definitions=[ask])
        handle = await sim.client.start(ask(), id="r")
        with pytest.raises(outlast.WorkflowFailedError) as caught:
            await handle.result()
        return str(caught.value)

    text = Simulation([ask]).run(scenario)
    assert "expires_in=5, which is no length of time" in text
    assert timedelta.__name__ in text


@pytest.mark.parametrize("how", ["result", "update"])
@pytest.mark.parametrize("why", ["paused", "in doubt"])
def test_who_waits_for_a_run_that_stands_is_told(how: str, why: str) -> None:
    """Once, with the reason and where to look: it stands until a person acts."""

    async def scenario(sim: Simulation) -> None:
        await sim.start_worker()
        handle = await sim.client.start(flow("doubt" if why == "in doubt" else "sleep"), id="r")
        if why == "paused":
            await handle.pause("maintenance")
            await sim.until("r", lambda head: head.status == "paused")
        else:
            await sim.until("r", lambda head: head.reason == "in doubt")
        waiting = sim.spawn(handle.result() if how == "result" else handle.update("any", 1))
        await asyncio.sleep(4.8)
        assert said == []
        await asyncio.sleep(100)
        waiting.cancel()

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        Simulation(CODE).run(scenario)
    (one,) = said
    assert one.category is outlast.RunHeldWarning
    what = "paused" if why == "paused" else "blocked (in doubt)"
    assert f"run r is {what}, and stays so until a person acts" in str(one.message)
    assert "`outlast runs explain r`" in str(one.message)


def test_who_waits_is_told_when_the_run_comes_to_stand() -> None:
    """However long after the wait began."""

    async def scenario(sim: Simulation) -> None:
        await sim.start_worker()
        handle = await sim.client.start(flow("sleep"), id="r")
        waiting = sim.spawn(handle.result())
        await asyncio.sleep(60)
        assert said == []
        await handle.pause("maintenance")
        await asyncio.sleep(200)
        waiting.cancel()

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        Simulation(CODE).run(scenario)
    assert [one.category for one in said] == [outlast.RunHeldWarning]


@pytest.mark.parametrize("make", [outlast.open, outlast.connect])
def test_an_app_that_was_not_entered_says_how_it_is_used(make: Any) -> None:
    """Whatever is asked of it; what it never had it has not."""

    async def main() -> None:
        client = make("memory://")
        for ask in (
            lambda: client.start(flow("sleep"), id="r"),
            lambda: client.run(flow("sleep"), id="r"),
            lambda: client.runs.list(),
        ):
            with pytest.raises(outlast.DefinitionError, match="before it was opened") as caught:
                await ask()
            assert f"async with outlast.{make.__name__}(" in caught.value.hint
        with pytest.raises(outlast.DefinitionError, match="before it was opened"):
            client.handle("r")
        assert not hasattr(client, "nothing")

    asyncio.run(main())


def test_a_list_takes_words_for_statuses() -> None:
    """What is no status, and no page, is refused before anything is read."""

    async def scenario(sim: Simulation) -> Any:
        await sim.client.start(flow("sleep"), id="r")
        wrong: Any = "ready"
        for given in ({"redy"}, wrong):
            with pytest.raises(outlast.DefinitionError, match="status"):
                await sim.client.runs.list(statuses=given)
        for limit in (-1, 10**20):
            with pytest.raises(outlast.DefinitionError, match="page"):
                await sim.client.runs.list(limit=limit)
        found = await sim.client.runs.list(statuses={"ready"})
        return [one.run_id for one in found], await sim.client.runs.list(statuses=["failed"])

    assert Simulation(CODE).run(scenario) == (["r"], [])
