"""What a workflow publishes: commanded in its order, settled by its entry, never given up, known to the machine."""

# ruff: noqa: D102, D103

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec import Raw

import outlast
from outlast.errors import NonDeterminismError
from outlast.journal.entry import Completed, Failed, Published, Started, Taken
from outlast.replay.command import Abandon, Finish, PublishValue, RunStep
from outlast.replay.machine import Machine
from outlast.workflows.definition import AttemptOptions, Step


async def take(n: int) -> int:
    return n


work = Step(take, "work", AttemptOptions())


def said(operation: str, name: str, value: Any) -> Published:
    """Return the entry of a published number."""
    return Published(operation, name, Raw(str(value).encode()))


def test_values_are_commanded_in_the_order_of_the_code(drive):
    """Each takes the next number of its task, and nothing waits for it."""

    async def body():
        outlast.publish("a", 1)
        outlast.publish("b", {"x": [1, None]})
        await work(1)
        outlast.publish("a", 2)

    run = drive(body)
    first, second, step = run.commands()
    assert first == PublishValue("r:1", "a", Raw(b"1"))
    assert second == PublishValue("r:2", "b", Raw(b'{"x":[1,null]}'))
    assert isinstance(step, RunStep)
    assert step.operation == "r:3"
    run.deliver(said("r:1", "a", 1))
    assert not run.machine.is_open("r:1")
    assert run.machine.is_open("r:2")
    run.done("r:3", 1)
    assert run.commands()[0] == PublishValue("r:4", "a", Raw(b"2"))


def test_a_replay_does_not_publish_again(drive):
    """What the journal holds is settled; what it does not hold is commanded again."""

    async def body():
        outlast.publish("a", 1)
        outlast.publish("a", 2)
        await work(1)

    run = drive(body)
    run.deliver(said("r:1", "a", 1))
    published, step = run.again().commands()
    assert published == PublishValue("r:2", "a", Raw(b"2"))
    assert isinstance(step, RunStep)


def test_code_that_publishes_something_else_is_noticed(drive):
    """Another key, or no publishing at all, at a place where the journal holds one."""

    async def body():
        outlast.publish("a", 1)
        await work(1)

    async def other():
        outlast.publish("b", 1)
        await work(1)

    async def none():
        await work(1)

    run = drive(body)
    run.deliver(said("r:1", "a", 1))
    with pytest.raises(NonDeterminismError, match=r"(?s)publish a at r:1.*publish b at r:1"):
        run.again(other)
    with pytest.raises(NonDeterminismError, match=r"(?s)publish a at r:1.*step work at r:1"):
        run.again(none)


def test_another_value_in_replay_is_no_difference(drive):
    """As with the arguments of a step: what was recorded stands."""

    async def body():
        outlast.publish("a", 1)
        await work(1)

    async def changed():
        outlast.publish("a", 100)
        await work(1)

    run = drive(body)
    run.deliver(said("r:1", "a", 1))
    assert run.again(changed).machine.published == {"a": Raw(b"1")}


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_published_at_the_end_goes_with_the_end(drive, fails):
    """A body that returns or raises right after it has published leaves the command, before that of the end."""

    async def body():
        task = asyncio.create_task(work(1))
        await asyncio.sleep(0)
        outlast.publish("a", 1)
        if fails:
            raise ValueError("no")
        return task.done()

    run = drive(body)
    given_up = [one for one in run.commands() if isinstance(one, Abandon)]
    published, finish = run.again().commands()[-2:]
    assert given_up == []
    assert published == PublishValue("r:2", "a", Raw(b"1"))
    assert isinstance(finish, Finish)
    assert isinstance(finish.outcome, Failed if fails else Completed)
    run.deliver(said("r:2", "a", 1))
    run.deliver(finish.outcome)
    assert run.machine.closed is finish.outcome
    assert run.again().commands() == []


def test_code_that_is_taken_out_of_memory_publishes_nothing(drive):
    """Clean-up that runs then reaches no journal."""

    async def body():
        try:
            await work(1)
        finally:
            outlast.publish("a", 1)

    run = drive(body)
    run.machine.evict()
    assert run.commands() == []
    assert run.machine.published == {}


def test_the_machine_knows_the_last_value_of_each_key(drive):
    """Recorded or about to be; an older value that is recorded later does not replace it."""

    async def body():
        outlast.publish("a", 1)
        outlast.publish("b", 2)
        outlast.publish("a", 3)
        await work(1)

    run = drive(body)
    values = {"a": Raw(b"3"), "b": Raw(b"2")}
    assert run.machine.published == values
    for entry in (said("r:1", "a", 1), said("r:2", "b", 2), said("r:3", "a", 3)):
        run.deliver(entry)
        assert run.machine.published == values


def test_a_generation_begins_with_what_was_published_before(drive):
    """Such entries belong to no operation of the code, and a later value replaces them."""

    async def body():
        await work(1)
        outlast.publish("a", 2)
        await work(2)

    run = drive(body)
    machine = Machine(run.program, tenant="default", run_id="run-1", generation=2)
    machine.deliver([Started("body", Raw(b"{}"), b"0123456789abcdef", "run-1~2")], run.now)
    machine.deliver([said("", "a", 1)], run.now)
    machine.deliver([said("", "b", 7)], run.now)
    machine.deliver([Taken("3.11", "0")], run.now)
    assert machine.published == {"a": Raw(b"1"), "b": Raw(b"7")}
    run.machine = machine
    run.done("r:1", 1)
    assert machine.published == {"a": Raw(b"2"), "b": Raw(b"7")}


def test_a_value_that_cannot_be_stored_is_refused_at_the_call(drive):
    """The error names the key and the place in the value, and nothing is commanded."""

    async def body():
        outlast.publish("a", {"x": object()})

    run = drive(body)
    assert run.failure().type == "outlast.errors.EncodeError"
    assert "the value published as 'a' cannot be stored" in run.failure().message
    assert [type(one) for one in run.commands()] == [Finish]


def test_a_key_that_cannot_be_stored_is_refused(drive):
    """As names of steps are."""

    async def body():
        outlast.publish("a:b", 1)

    assert "cannot be the name of a published value" in drive(body).failure().message
