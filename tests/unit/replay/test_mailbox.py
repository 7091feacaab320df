"""Messages: order, timeouts, receivers that give up."""

# ruff: noqa: D102, D103

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

import outlast
from outlast.errors import (
    DecodeError,
)
from outlast.replay.command import (
    Abandon,
)
from outlast.workflows.definition import AttemptOptions, Step


async def take(n: int) -> int:
    return n


def make_step(name: str, *, raises: tuple[type[BaseException], ...] = ()) -> Step[..., Any]:
    return Step(take, name, AttemptOptions(raises=raises))


work = make_step("work")
go = outlast.Signal("go", int)
stop = outlast.Signal("stop", int)


def test_messages_wait_for_the_workflow(drive):
    """What came before the wait is there at once, in order; what comes later wakes it."""

    async def body():
        await work(1)
        return [await outlast.receive(go) for _ in range(3)]

    run = drive(body)
    run.deliver(run.message("go", 1), run.message("go", 2))
    run.done("r:1", 0)
    assert run.machine.mailbox.awaited == ["go"]
    run.deliver(run.message("stop", 9))
    run.deliver(run.message("go", 3))
    assert run.result() == [1, 2, 3]
    assert run.machine.mailbox.awaited == []


def test_receivers_are_served_in_order(drive):
    """Each message goes to one receiver, the one that waited longest."""

    async def body():
        return await asyncio.gather(*(outlast.receive(go) for _ in range(3)))

    run = drive(body)
    run.deliver(run.message("go", 1), run.message("go", 2))
    run.deliver(run.message("go", 3))
    assert run.result() == [1, 2, 3]


def test_receive_times_out(drive):
    """A receive with a timeout raises, and the message that comes later is for the next one."""

    async def body():
        with pytest.raises(TimeoutError):
            await outlast.receive(go, timeout=timedelta(seconds=5))
        return await outlast.receive(go, timeout=timedelta(seconds=5))

    run = drive(body)
    run.fire("r:1")
    assert run.machine.mailbox.awaited == ["go"]
    run.deliver(run.message("go", 7))
    assert run.result() == 7
    assert [one.operation for one in run.commands() if isinstance(one, Abandon)] == []


def test_a_message_that_stands_needs_no_time(drive):
    """With a timeout of nothing, a message that came is returned, and a missing one raises."""

    async def body():
        await work(1)
        value = await outlast.receive(go, timeout=timedelta(0))
        with pytest.raises(TimeoutError):
            await outlast.receive(go, timeout=timedelta(0))
        return value

    run = drive(body)
    run.deliver(run.message("go", 1))
    run.done("r:1", 0)
    assert run.result() == 1


def test_cancelled_receive_leaves_nothing_behind(drive):
    """After a hundred receives that were given up, nobody waits, and the next message is received."""

    async def body():
        for _ in range(100):
            task = asyncio.create_task(outlast.receive(go))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
        await work(1)
        return await outlast.receive(go)

    run = drive(body)
    assert run.machine.mailbox.awaited == []
    run.done("r:1", 0)
    run.deliver(run.message("go", 5))
    assert run.result() == 5


def test_a_receiver_cancelled_in_the_turn_of_its_message_passes_it_on(drive):
    """A message whose receiver was cancelled before it could take it goes to the next one."""

    async def body():
        first = asyncio.create_task(outlast.receive(go))
        second = asyncio.create_task(outlast.receive(go))
        await outlast.receive(stop)
        first.cancel()
        return await second

    run = drive(body)
    run.deliver(run.message("stop", 0), run.message("go", 5))
    assert run.result() == 5


def test_a_receiver_whose_message_was_taken_waits_on(drive):
    """Who was woken and finds the message gone waits for the next one."""

    async def body():
        waiting = asyncio.create_task(outlast.receive(go))
        await outlast.receive(stop)
        taken = await outlast.receive(go)
        return [taken, await waiting]

    run = drive(body)
    run.deliver(run.message("stop", 0), run.message("go", 1))
    assert run.machine.mailbox.awaited == ["go"]
    run.deliver(run.message("go", 2))
    assert run.result() == [1, 2]


def test_a_message_that_does_not_fit_is_for_other_code(drive):
    """It fitted when it was taken in. The run does not fail for it, whatever its code catches, and other code has the message."""

    async def body():
        try:
            return await outlast.receive(go)
        except DecodeError:
            return 0
        finally:
            cleaned.append(1)

    cleaned: list[int] = []
    run = drive(body)
    with pytest.raises(DecodeError, match="signal 'go'"):
        run.deliver(run.message("go", "no number"))
    assert (run.machine.outcome, cleaned) == (None, [])
