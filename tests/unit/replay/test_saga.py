"""Sagas in the machine: what is noted and commanded at which turn, and what other code is told."""

# ruff: noqa: D102, D103

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest
from msgspec import Raw

import outlast
from outlast.effects.retry import RetryPolicy
from outlast.errors import (
    DefinitionError,
    NonDeterminismError,
    OutsideWorkflowError,
    SagaClosedError,
)
from outlast.journal.entry import (
    EffectCleared,
    EffectCompensating,
    EffectCompleted,
    EffectFailed,
    EffectInDoubt,
    EffectIntended,
    RunTimedOut,
    SagaAborted,
    SagaEnded,
)
from outlast.journal.failure import capture
from outlast.replay.command import Abandon, Finish, IntendEffect, NoteSaga, SettleEffect
from outlast.workflows.definition import AttemptOptions, Effect, EffectOptions, Step

SOON = AttemptOptions(RetryPolicy(), start_to_close_timeout=timedelta(seconds=9))


async def undo_it(name: str) -> None: ...


async def send_back(result: str) -> None: ...


async def do_it(name: str) -> str:
    return name


async def take(n: int) -> int:
    return n


UNDO = Effect(undo_it, "undo", SOON, EffectOptions(idempotent=True))
SEND_BACK = Effect(send_back, "send back", SOON, EffectOptions(idempotent=True))
DO = Effect(do_it, "do", SOON, EffectOptions(idempotent=True, compensate=UNDO))
BUY = Effect(do_it, "buy", SOON, EffectOptions(idempotent=True, compensate=SEND_BACK))
TELL = Effect(do_it, "tell", SOON, EffectOptions(idempotent=True))
DO_OTHERWISE = Effect(do_it, "do", SOON, EffectOptions(idempotent=True, compensate=SEND_BACK))
DO_FOR_GOOD = Effect(do_it, "do", SOON, EffectOptions(idempotent=True))
WORK = Step(take, "work", AttemptOptions())
go = outlast.Signal("go", int)


def intended(command: IntendEffect) -> EffectIntended:
    raw = Raw(command.arguments)
    return EffectIntended(
        *(command.operation, command.name, f"key of {command.operation}", raw, raw),
        *(command.action_sha256, command.number),
        compensation=command.compensation,
        needs_result=command.needs_result,
        saga=command.saga,
        compensates=command.compensates,
    )


def intend(run: Any, *commands: IntendEffect) -> None:
    """Record intents; the commands that follow from them are taken."""
    for command in commands:
        run.deliver(intended(command))
    settling = [one for one in run.commands() if isinstance(one, SettleEffect)]
    assert [one.operation for one in settling] == [one.operation for one in commands]


def noted(run: Any) -> list[Any]:
    """Record what is to be noted of sagas, and return the other commands."""
    commands = run.commands()
    notes = [one.entry for one in commands if isinstance(one, NoteSaga)]
    if notes:
        run.deliver(*notes)
    return [one for one in commands if not isinstance(one, NoteSaga)]


async def failing() -> None:
    async with outlast.saga():
        await DO("a")
        await BUY("b")
        await WORK(1)
        raise LookupError("none")


def aborted(drive: Any, body: Any = failing) -> Any:
    """Drive a run to where its saga was aborted, and nothing of that is recorded."""
    run = drive(body)
    for value in ("A", "B"):
        command = run.command()
        intend(run, command)
        run.done(command.operation, value)
    run.done(run.command().operation, 1)
    return run


def test_an_abort_is_noted_in_the_turn_in_which_the_body_raises(drive):
    """Once, with the failure, and together with the intent of the first compensation."""
    run = aborted(drive)
    note, command = run.commands()
    assert isinstance(note.entry, SagaAborted)
    assert (note.entry.operation, note.entry.failure.message) == ("r:1", "none")
    assert (command.operation, command.name, command.compensates) == ("r:1u:1", "send back", "r:3")
    assert json.loads(command.arguments) == {"result": "B"}
    assert run.commands() == []
    # What was not recorded is given again by a replay, and no sooner.
    again = run.again()
    assert again.commands() == [note, command]


def test_an_intent_says_how_its_effect_is_undone_and_in_which_saga(drive):
    """That of the outermost one; a compensation is in none."""
    run = drive(failing)
    command = run.command()
    assert (command.compensation, command.needs_result, command.saga) == ("undo", False, "r:1")
    run = aborted(drive)
    compensation = run.commands()[-1]
    assert (compensation.compensation, compensation.saga) == ("", "")


def test_compensations_come_one_after_the_other_and_then_the_exception_passes(drive):
    """And the end says that all was undone."""
    run = aborted(drive)
    for operation in ("r:1u:1", "r:1u:2"):
        [command] = noted(run)
        assert command.operation == operation
        intend(run, command)
        run.done(operation)
    note, finish = run.commands()
    assert note.entry == SagaEnded("r:1", "compensated")
    assert isinstance(finish, Finish)
    assert finish.outcome.compensation == "compensated"
    assert run.failure().message == "none"


def test_a_saga_that_returns_is_noted_only_where_anything_could_be_undone(drive):
    """One that holds steps, and effects that nothing undoes, leaves no trace."""

    async def plain() -> None:
        async with outlast.saga():
            await TELL("a")

    async def empty() -> None:
        async with outlast.saga():
            raise LookupError

    run = drive(plain)
    intend(run, run.command())
    run.done("r:2", "A")
    assert isinstance(run.command(), Finish)
    run = drive(empty)
    assert run.command().outcome.compensation == ""


def test_a_replay_that_comes_to_another_end_of_a_saga_is_noticed(drive):
    """The journal says that it was aborted, and the code keeps it; or the other way round, or nothing of the kind."""

    async def keeping() -> None:
        async with outlast.saga():
            await DO("a")
            await BUY("b")
            await WORK(1)
        await WORK(2)

    async def without() -> None:
        await outlast.sleep(0)
        await DO("a")
        await BUY("b")
        await WORK(1)
        raise LookupError("none")

    run = aborted(drive)
    noted(run)
    with pytest.raises(NonDeterminismError, match="the saga at r:1 was aborted, and the code does"):
        run.again(keeping)
    kept = aborted(drive, keeping)
    noted(kept)
    with pytest.raises(NonDeterminismError, match="the saga at r:1 ended kept"):
        kept.again(failing)


@pytest.mark.parametrize(
    ("otherwise", "declared"), [(DO_OTHERWISE, "'send back'"), (DO_FOR_GOOD, "nothing for it")]
)
def test_code_that_undoes_an_effect_by_something_else_has_to_be_other_code(
    drive, otherwise, declared
):
    """It is refused when the effect is to be undone, and says which compensation was intended."""

    def body(effect: Any) -> Any:
        async def failing_then() -> None:
            async with outlast.saga():
                await effect("a")
                await WORK(1)
                raise LookupError

        return failing_then

    run = drive(body(DO))
    intend(run, run.command())
    run.done("r:2", "A")
    [step] = run.commands()
    again = run.again(body(otherwise))
    again.commands()
    with pytest.raises(NonDeterminismError, match=f"undone by 'undo'.*{declared}") as caught:
        again.done(step.operation, 1)
    assert "compensate=undo" in caught.value.hint
    again.machine.evict()


@pytest.mark.parametrize("stop", ["cancel", "timeout"])
def test_nothing_reaches_what_undoes(drive, stop):
    """Neither a cancel nor the end of the run's time gives a compensation up."""
    run = aborted(drive)
    [command] = noted(run)
    for _ in range(2):
        run.cancel() if stop == "cancel" else run.deliver(RunTimedOut())
        assert run.commands() == []
    intend(run, command)
    run.cancel()
    assert run.commands() == []
    assert run.machine.outcome is None


def test_what_was_asked_for_in_the_turn_of_the_failure_is_never_intended(drive):
    """Its await is refused; what is intended already is waited for."""
    told: list[str] = []

    async def failing_now() -> None:
        async with outlast.saga():
            first = asyncio.create_task(DO("a"))
            await WORK(1)
            second = asyncio.create_task(DO("b"))
            second.add_done_callback(lambda task: told.append(type(task.exception()).__name__))
            await asyncio.sleep(0)
            assert not first.done()
            raise LookupError

    run = drive(failing_now)
    step, effect = sorted(run.commands(), key=lambda one: isinstance(one, IntendEffect))
    run.deliver(intended(effect))
    run.commands()
    run.done(step.operation, 1)
    assert told == [SagaClosedError.__name__]
    commands = run.commands()
    assert [type(one) for one in commands if not isinstance(one, Abandon)] == [NoteSaga]
    run.deliver(commands[0].entry)
    run.done(effect.operation, "A")
    [undoing] = run.commands()
    assert undoing.compensates == effect.operation


@pytest.mark.parametrize("end", ["completed", "unknown", "failed", "compensating"])
def test_what_is_in_doubt_is_waited_for_and_undone_unless_it_never_happened(drive, end):
    """By what becomes of it: it happened, it may have, it did not, an operator has it undone."""

    async def body() -> None:
        async with outlast.saga():
            task = asyncio.create_task(DO("a"))
            await WORK(1)
            raise LookupError(str(task))

    run = drive(body)
    step, effect = sorted(run.commands(), key=lambda one: isinstance(one, IntendEffect))
    run.deliver(intended(effect))
    run.commands()
    run.deliver(EffectInDoubt(effect.operation, "do", "lost"))
    run.done(step.operation, 1)
    assert noted(run) == []
    entry = {
        "completed": EffectCompleted(effect.operation, "do", Raw(b'"A"')),
        "unknown": EffectFailed(effect.operation, "do", capture(OSError()), unknown=True),
        "failed": EffectFailed(effect.operation, "do", capture(OSError())),
        "compensating": EffectCompensating(effect.operation, "do", Raw(b"null"), "ann"),
    }[end]
    run.deliver(entry)
    commands = noted(run)
    undoings = [one for one in commands if isinstance(one, IntendEffect)]
    if end == "failed":
        assert undoings == []
        return
    [undoing] = undoings
    assert undoing.operation == (f"{effect.operation}c" if end == "compensating" else "r:1u:1")
    assert json.loads(undoing.arguments) == {"name": "a"}
    intend(run, undoing)
    run.done(undoing.operation)
    assert run.machine.outcome.compensation == "compensated"


def test_a_compensation_that_gave_up_is_stuck_until_somebody_speaks(drive):
    """Cleared, its attempts begin anew; failed, it is left, and the end says so."""
    run = aborted(drive)
    [first] = noted(run)
    intend(run, first)
    run.deliver(EffectInDoubt(first.operation, first.name, "given up", failure=capture(OSError())))
    assert run.machine.stuck
    run.deliver(EffectCleared(first.operation, first.name))
    assert not run.machine.stuck
    assert isinstance(run.command(), SettleEffect)
    run.failed(first.operation, OSError("left"))
    second = run.command()
    intend(run, second)
    run.done(second.operation)
    note, finish = run.commands()
    assert note.entry.outcome == finish.outcome.compensation == "partly compensated"


def test_eviction_in_the_middle_of_an_undoing_begins_and_notes_nothing(drive):
    """And a replay stands where it was."""
    run = aborted(drive)
    [command] = noted(run)
    intend(run, command)
    run.machine.evict()
    assert run.commands() == []
    assert run.machine.pinned == 0
    [settle] = run.again().commands()
    assert settle.operation == command.operation


def test_eviction_inside_a_saga_undoes_nothing(drive):
    """It is no exception of the body's, though it goes through it."""
    run = drive(failing)
    intend(run, run.command())
    run.done("r:2", "A")
    run.commands()
    run.machine.evict()
    assert run.commands() == []


def test_a_saga_is_entered_once_and_inside_a_workflow(drive):
    """Anything else is refused."""

    async def body() -> str:
        one = outlast.saga()
        async with one:
            pass
        try:
            async with one:
                pass
        except DefinitionError as error:
            return error.message
        return "never"

    assert "entered twice" in drive(body).result()

    async def enter() -> None:
        async with outlast.saga():
            pass

    with pytest.raises(OutsideWorkflowError):
        asyncio.run(enter())
