"""Queries of a machine: who answers, what is refused, and that asking changes nothing."""

# ruff: noqa: D102, D103

from __future__ import annotations

import asyncio
import contextvars
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

import outlast
from outlast.errors import DefinitionError, QueryError
from outlast.journal.entry import Started
from outlast.replay.command import RunStep
from outlast.replay.machine import Machine
from outlast.replay.stand import note_commands, stand_of
from outlast.workflows.definition import AttemptOptions, Step


async def take(n: int) -> int:
    return n


work = Step(take, "work", AttemptOptions())
ask = outlast.Query("ask", int, int)
look = outlast.Query("look", None, list[int])
go = outlast.Signal("go", int)
mood = contextvars.ContextVar("mood", default="calm")


def answering(handler: Any) -> Any:
    """Return a body that answers `ask`, then waits for two steps."""

    async def body():
        outlast.on_query(ask, handler)
        await work(1)
        await work(2)

    return body


def refused(machine: Machine, name: str = "ask", value: bytes = b"1") -> QueryError:
    """Return why there is no answer."""
    with pytest.raises(QueryError) as caught:
        machine.query(name, value)
    return caught.value


def test_the_handler_answers_from_where_the_run_stands(drive):
    """It sees what the workflow has noted by then, at each turn, and after the end."""

    async def body():
        seen: list[int] = []
        outlast.on_query(look, lambda _: seen)
        outlast.on_query(ask, lambda n: n * len(seen))
        seen.append(await work(1))
        seen.append(await work(2))
        return "done"

    run = drive(body)
    assert (run.machine.query("look", b"null"), run.machine.query("ask", b"7")) == (b"[]", b"0")
    run.done("r:1", 10)
    assert (run.machine.query("look", b"null"), run.machine.query("ask", b"7")) == (b"[10]", b"7")
    run.done("r:2", 20)
    assert run.result() == "done"
    assert run.machine.query("look", b"null") == b"[10,20]"
    run.deliver(run.command().outcome)
    assert run.machine.query("ask", b"7") == b"14"


def test_a_query_that_nobody_answers(drive):
    """The error says what the run answers."""
    error = refused(drive(answering(lambda n: n)).machine, "other")
    assert (error.reason, error.run) == ("unknown", "run-1")
    assert "it answers 'ask'" in error.message

    async def silent():
        await work(1)

    assert "it answers no query at all" in refused(drive(silent).machine).message


def test_a_run_that_was_not_taken_up(drive):
    """Its code has not run, so that it knows nothing."""
    run = drive(answering(id))
    machine = Machine(run.program, tenant="default", run_id="run-1")
    assert refused(machine).reason == "not_begun"
    machine.deliver([Started("body", Raw(b"{}"), b"0123456789abcdef", "run-1")], run.now)
    assert refused(machine).reason == "not_begun"


def test_a_value_and_an_answer_have_to_fit(drive):
    """The value that of the query, the answer that of its result."""
    machine = drive(answering(lambda n: "text" if n else 5)).machine
    error = refused(machine, value=b'"one"')
    assert (error.reason, "expected int" in error.message) == ("value", True)
    error = refused(machine)
    assert error.reason == "result"
    assert "the answer to query 'ask' cannot be stored" in error.message
    assert machine.query("ask", b"0") == b"5"


@pytest.mark.parametrize("error", [ValueError("not yet"), SystemExit(3), OverflowError("x")])
def test_a_handler_that_raises(drive, error):
    """Its error is told and is the cause; the run stands as before."""

    def handler(n: int) -> int:
        if n:
            raise error
        return 0

    machine = drive(answering(handler)).machine
    told = refused(machine)
    assert told.reason == "handler"
    assert f"its handler raised {type(error).__name__}: {error}" in told.message
    assert told.__cause__ is error
    assert machine.query("ask", b"0") == b"0"


def test_a_handler_is_a_plain_function(drive):
    """A coroutine function is refused where it is registered; what turns out to be one, where it is asked."""

    async def handler(n: int) -> int:
        return n

    run = drive(answering(handler))
    assert run.failure().type == "outlast.errors.DefinitionError"
    assert "query 'ask' is a coroutine function" in run.failure().message
    told = refused(drive(answering(lambda n: handler(n))).machine)
    assert (told.reason, "to be awaited" in told.message) == ("handler", True)


def test_a_query_has_one_handler(drive):
    """A second one would make the answer depend on the order of code."""

    async def body():
        outlast.on_query(ask, lambda n: n)
        with pytest.raises(DefinitionError, match="'ask' has a handler already"):
            outlast.on_query(ask, lambda n: n + 1)
        await work(1)

    assert drive(body).machine.query("ask", b"5") == b"5"


ACTS = {
    "publish": lambda state: outlast.publish("a", 1),
    "a task": lambda state: asyncio.create_task(state.sleeper()),
    "a call as a task": lambda state: asyncio.create_task(work(3)),
    "a callback": lambda state: asyncio.get_running_loop().call_soon(print),
    "a timer": lambda state: asyncio.get_running_loop().call_later(5, print),
    "a timer that is due": lambda state: asyncio.get_running_loop().call_later(0, print),
    "a future": lambda state: asyncio.get_running_loop().create_future(),
    "an event": lambda state: state.event.set(),
    "a cancel": lambda state: state.task.cancel(),
    "randomness": lambda state: outlast.random().random(),
    "an id": lambda state: outlast.uuid4(),
    "a handler": lambda state: outlast.on_query(look, lambda _: []),
    "a patch": lambda state: outlast.patched("that the workflow has not come to"),
}


class State:
    """What a workflow that waits in many ways has at hand."""

    async def wait(self) -> None:
        self.event = asyncio.Event()
        self.task = asyncio.create_task(self.sleeper())
        await asyncio.gather(self.event.wait(), work(1))

    async def sleeper(self) -> None:
        await asyncio.sleep(100)


@pytest.mark.parametrize("swallows", [False, True])
@pytest.mark.parametrize("act", ACTS)
def test_a_handler_that_would_act_is_refused(drive, act, swallows):
    """Whatever it tries, nothing is begun or woken, and the answer is an error, also when it swallows the refusal."""

    def handler(n: int) -> int:
        try:
            ACTS[act](state)
        except outlast.ForbiddenInWorkflowError:
            if not swallows:
                raise
        return n

    async def body():
        outlast.on_query(ask, handler)
        await state.wait()

    state = State()
    run = drive(body)
    before = stand_of(run.machine, note_commands({}, run.machine))
    error = refused(run.machine)
    assert error.reason == "acts", error
    assert stand_of(run.machine, note_commands({}, run.machine)) == before
    assert run.machine.published == {}
    run.machine.evict()
    assert run.machine.pinned == 0


def test_a_handler_may_ask_for_a_patch_that_the_workflow_has_come_to(drive):
    """It hears what the workflow heard."""

    async def body():
        outlast.on_query(ask, lambda n: n + outlast.patched("plus-one"))
        outlast.patched("plus-one")
        await work(1)

    assert drive(body).machine.query("ask", b"5") == b"6"


@pytest.mark.parametrize("act", ["publish", "a callback", "a future", "randomness", "a handler"])
def test_a_handler_of_a_run_that_has_ended_is_refused_too(drive, act):
    """What nobody would notice any more is refused all the same."""

    async def body():
        outlast.on_query(ask, lambda n: ACTS[act](None) or n)

    run = drive(body)
    assert run.result() is None
    assert refused(run.machine).reason == "acts"


def test_a_handler_may_not_use_files(drive):
    """What workflow code may not touch, a handler may not: it runs in any process."""
    error = refused(drive(answering(lambda _: len(Path(__file__).read_text()))).machine)
    assert error.reason == "handler"
    assert "cannot be used in a workflow" in error.message


def test_a_handler_sees_the_run_as_the_workflow_does(drive):
    """Its time, its description; what it sets in its context is gone with it."""

    def handler(n: int) -> int:
        assert mood.get() == "calm"
        mood.set("angry")
        return int((outlast.now() - outlast.info().started_at).total_seconds()) + n

    run = drive(answering(handler))
    run.now = run.now.replace(minute=5)
    run.done("r:1", 1)
    assert run.machine.query("ask", b"1") == run.machine.query("ask", b"1") == b"301"


def test_asking_changes_nothing(drive):
    """A run that was asked goes on as one that was not: same stand, same numbers, same commands."""

    async def body():
        seen: list[int] = []
        outlast.on_query(look, lambda _: seen)
        seen.append(await work(1))
        await asyncio.gather(work(2), outlast.receive(go))

    asked, quiet = drive(body), drive(body)
    for _ in range(3):
        asked.machine.query("look", b"null")
    for run in (asked, quiet):
        run.done("r:1", 1)
    asked.machine.query("look", b"null")
    stands = [stand_of(run.machine, note_commands({}, run.machine)) for run in (asked, quiet)]
    assert stands[0] == stands[1]
    assert asked.commands() == quiet.commands()


def test_code_that_is_taken_out_of_memory_registers_nothing(drive):
    """Clean-up that runs then is not part of the run."""

    async def body():
        try:
            await work(1)
        finally:
            outlast.on_query(ask, lambda n: n)

    run = drive(body)
    assert isinstance(run.command(), RunStep)
    run.machine.evict()
    assert refused(run.machine).reason == "unknown"


def test_on_query_outside_a_workflow():
    """It says where it belongs."""
    with pytest.raises(outlast.OutsideWorkflowError, match=r"outlast\.on_query"):
        outlast.on_query(ask, lambda n: n)


def test_a_query_is_declared_with_types_that_can_be_stored():
    """And with a name."""
    assert repr(ask) == "Query('ask')"
    with pytest.raises(DefinitionError, match="name of a query"):
        outlast.Query("", int, int)
    with pytest.raises(DefinitionError, match="query 'x'"):
        outlast.Query("x", int, asyncio.Event)
