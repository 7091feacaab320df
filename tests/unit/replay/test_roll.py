"""How a body ends its generation: what that means to what is open, to messages, and to those who ask it to stop."""

# ruff: noqa: D102, D103

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Raw

import outlast
from outlast.effects.retry import RetryPolicy
from outlast.errors import DefinitionError, NonDeterminismError, OutsideWorkflowError
from outlast.journal.entry import Cancelled, Completed, ContinuedAsNew, Failed, MessageReceived
from outlast.replay.command import Finish, IntendEffect
from outlast.workflows.definition import AttemptOptions, Effect, EffectOptions, Step, Workflow


async def take(n: int) -> int:
    return n


async def _counts(n: int, note: str = "") -> str:
    outlast.continue_as_new(counts(n + 1))


work = Step(take, "work", AttemptOptions())
pay = Effect(take, "pay", AttemptOptions(RetryPolicy()), EffectOptions(idempotent=True))
counts = Workflow(_counts, "counts")
add = outlast.Update("add", int, int)
go, stop = outlast.Signal("go", int), outlast.Signal("stop", int)
NEXT = ContinuedAsNew("counts", Raw(b'{"n":8,"note":""}'))


def roll(n: int = 8) -> Any:
    outlast.continue_as_new(counts(n))


def ended(run: Any) -> Any:
    """Return the outcome, as plain data."""
    outcome = run.machine.outcome
    if not isinstance(outcome, ContinuedAsNew):
        return outcome
    return outcome.name, json.loads(bytes(outcome.arguments))


def test_the_body_ends_with_the_call_that_goes_on(drive: Callable[..., Any]) -> None:
    """Name and encoded arguments are the outcome; the recorded end is accepted."""

    async def body() -> None:
        roll()

    run = drive(body)
    (finish,) = run.commands()
    assert finish == Finish(outcome=NEXT)
    run.deliver(NEXT)
    assert run.machine.closed == NEXT
    assert run.commands() == []


def test_a_journal_that_ends_so_needs_code_that_does(drive: Callable[..., Any]) -> None:
    """Code that still waits, or returns, is another code."""

    async def waits() -> None:
        await outlast.receive(go)

    async def returns() -> int:
        return 1

    for body, word in ((waits, "still waits"), (returns, "completed")):
        with pytest.raises(NonDeterminismError, match=f"continued as new, and the code {word}"):
            drive(body).deliver(NEXT)


def test_clean_up_runs_first(drive: Callable[..., Any]) -> None:
    """What stands in `finally` is done before the generation is over."""

    async def body() -> None:
        try:
            roll()
        finally:
            await work(1)

    run = drive(body)
    assert run.machine.outcome is None
    run.done("r:1", 1)
    assert ended(run) == ("counts", {"n": 8, "note": ""})


def test_who_catches_everything_goes_on(drive: Callable[..., Any]) -> None:
    """It is control flow, that no `except Exception` meets; `except BaseException` is the author's own doing."""

    async def body() -> str:
        try:
            roll()
        except Exception:
            return "caught as an error"
        except BaseException as caught:
            return type(caught).__name__

    assert drive(body).result() == "RollOver"


def test_a_group_in_the_body_may_be_left_so(drive: Callable[..., Any]) -> None:
    """A `TaskGroup` cancels its tasks and wraps what leaves it; a failure of theirs beside it is a failure."""

    async def leaves() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(outlast.sleep(100))
            await work(1)
            roll()

    async def fails() -> None:
        async def breaks() -> None:
            try:
                await outlast.sleep(100)
            finally:
                raise ValueError("no")

        async with asyncio.TaskGroup() as group:
            group.create_task(breaks())
            await work(1)
            roll()

    run = drive(leaves)
    run.done("r:1", 1)
    assert ended(run)[0] == "counts"
    run = drive(fails)
    run.done("r:1", 1)
    assert isinstance(run.machine.outcome, Failed)


@pytest.mark.parametrize("how", ["create_task", "gather", "call_soon"])
def test_only_the_body_ends_its_generation(how: str, drive: Callable[..., Any]) -> None:
    """In a task or a callback it would be swallowed or wrapped: it is refused there, with what to do."""

    async def child() -> None:
        roll()

    async def body() -> None:
        match how:
            case "create_task":
                await asyncio.create_task(child())
            case "gather":
                await asyncio.gather(child(), work(1))
            case _:
                asyncio.get_running_loop().call_soon(roll)
                await work(1)

    outcome = drive(body).machine.outcome
    assert isinstance(outcome, Failed)
    assert outcome.failure.type == "outlast.errors.ForbiddenInWorkflowError"
    assert "not the workflow's own task" in outcome.failure.message


def test_what_is_open_is_given_up_and_an_intended_effect_settled(drive: Callable[..., Any]) -> None:
    """As at the end of a run: the end is given once nothing is unsettled."""

    async def body() -> None:
        asyncio.create_task(work(1))
        asyncio.create_task(pay(2))
        await outlast.receive(go)
        roll()

    run = drive(body)
    _, intend = run.commands()
    assert isinstance(intend, IntendEffect)
    run.intend(intend)
    run.deliver(run.message("go", 1))
    assert ended(run)[0] == "counts"
    assert not any(isinstance(one, Finish) for one in run.commands())
    run.done("r:2", 2)
    assert run.command() == Finish(outcome=NEXT)


def test_what_nobody_took_is_for_the_next_generation(drive: Callable[..., Any]) -> None:
    """In the order in which it came, whatever its names: also what was delivered after the end of the body."""

    async def body() -> None:
        await outlast.receive(stop)
        assert await outlast.receive(go) == 1
        roll()

    run = drive(body)
    sent = [run.message(name, n) for n, name in enumerate(["go", "other", "go", "stop", "stop"], 1)]
    run.deliver(*sent)
    last = run.message("go", 6)
    run.deliver(last)
    assert run.machine.unhandled() == [sent[1], sent[2], sent[4], last]
    assert all(isinstance(one, MessageReceived) for one in run.machine.unhandled())


def test_an_update_that_nobody_handles_yet_is_for_the_next_generation_too(
    drive: Callable[..., Any],
) -> None:
    """It came with the message on which the body goes on, before anybody could have said that none handles it."""

    async def body() -> None:
        await outlast.receive(go)
        roll()

    run = drive(body)
    update = run.update("nobody yet", 1)
    run.deliver(run.message("go", 1), update)
    assert [type(one) for one in run.commands()] == [Finish]
    assert run.machine.unhandled() == [update]


def test_what_no_handler_has_begun_is_for_the_next_generation(drive: Callable[..., Any]) -> None:
    """The body names its handlers and goes on at once: what they would do could not reach the next generation any more."""
    seen: list[int] = []

    async def body() -> None:
        await work(0)
        outlast.on_signal(go, seen.append)
        outlast.on_update(add, abs)
        roll()

    run = drive(body)
    sent = [
        run.message("go", 1),
        run.update("add", 2),
        run.message("stop", 3),
        run.message("go", 4),
    ]
    run.deliver(*sent)
    run.done("r:1", 0)
    last = run.message("go", 5)
    run.deliver(last)
    assert ended(run)[0] == "counts"
    assert seen == []
    assert run.answers() == {}
    assert run.machine.unhandled() == [*sent, last]


def test_what_a_handler_has_begun_is_not_carried_over(drive: Callable[..., Any]) -> None:
    """It had its effect on what the body says, and the generation waits for its end."""
    seen: list[int] = []

    async def note(n: int) -> None:
        seen.append(n)
        await work(n)

    async def body() -> None:
        outlast.on_signal(go, note)
        await outlast.receive(stop)
        roll(len(seen))

    run = drive(body)
    run.deliver(run.message("go", 1), run.message("stop", 2))
    assert run.machine.outcome is None
    assert run.machine.unhandled() == []
    run.done("m1:1", 0)
    assert ended(run)[1]["n"] == 1


def test_a_cancel_answers_what_was_for_the_next_generation(drive: Callable[..., Any]) -> None:
    """There is none: the update that no handler has begun is rejected."""

    async def body() -> None:
        task = asyncio.create_task(pay(2))
        await work(0)
        outlast.on_update(add, abs)
        assert not task.done()
        roll()

    run = drive(body)
    intend, _ = run.commands()
    assert isinstance(intend, IntendEffect)
    run.intend(intend)
    run.deliver(run.update("add", 2))
    run.done("r:2", 0)
    assert run.answers() == {}
    run.cancel()
    ((word, kind, _),) = run.answers().values()
    assert (word, kind) == ("rejected", "RunConflictError")


def test_equal_messages_are_each_their_own(drive: Callable[..., Any]) -> None:
    """Also where a damaged journal holds one twice."""

    async def body() -> list[int]:
        return [await outlast.receive(go), await outlast.receive(go)]

    run = drive(body)
    message = run.message("go", 1)
    run.deliver(message, message, message)
    assert run.result() == [1, 1]
    assert run.machine.unhandled() == [message]


def test_a_cancel_that_comes_after_the_call_is_not_lost(drive: Callable[..., Any]) -> None:
    """While effects settle somebody may ask the run to stop: then it does, with this generation."""

    async def body() -> None:
        asyncio.create_task(pay(2))
        await outlast.receive(go)
        roll()

    run = drive(body)
    run.intend(run.command())
    run.deliver(run.message("go", 1))
    run.cancel()
    assert isinstance(run.machine.outcome, Cancelled)
    run.done("r:1", 2)
    assert isinstance(run.commands()[-1].outcome, Cancelled)


def test_a_cancel_that_came_before_is_the_bodys_own_affair(drive: Callable[..., Any]) -> None:
    """One that was caught does not keep the body from going on in a new generation."""

    async def body() -> None:
        try:
            await work(1)
        except asyncio.CancelledError:
            roll()

    run = drive(body)
    run.cancel()
    assert ended(run)[0] == "counts"


def test_arguments_are_encoded_where_it_is_called(drive: Callable[..., Any]) -> None:
    """What cannot be stored, or is no call of a workflow, is an error there, and the generation goes on."""

    async def body() -> list[str]:
        said: list[str] = []
        for given in (counts(object()), work(1), counts, "counts"):
            try:
                outlast.continue_as_new(given)
            except (outlast.EncodeError, DefinitionError) as error:
                said.append(type(error).__name__)
        return said

    run = drive(body)
    assert isinstance(run.machine.outcome, Completed)
    assert run.result() == ["EncodeError", *["DefinitionError"] * 3]


def test_no_workflow_no_generation() -> None:
    """Outside a workflow there is nothing to end."""
    with pytest.raises(OutsideWorkflowError):
        outlast.continue_as_new(counts(1))
