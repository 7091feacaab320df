"""Patches: what the code is told, the marker that follows, and what is said when a marker does not fit."""

# ruff: noqa: D102, D103

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from msgspec import Raw

import outlast
from outlast.effects.retry import RetryPolicy
from outlast.errors import DefinitionError, NonDeterminismError, OutsideWorkflowError
from outlast.journal.entry import Patched, StepCompleted
from outlast.replay.command import IntendEffect, MarkPatch, RunStep
from outlast.workflows.definition import AttemptOptions, Effect, EffectOptions, Step


async def take(n: int) -> int:
    return n


work, more_work = Step(take, "work", AttemptOptions()), Step(take, "more_work", AttemptOptions())
pay = Effect(take, "pay", AttemptOptions(RetryPolicy()), EffectOptions(idempotent=True))
go = outlast.Signal("go", int)


async def asks() -> list[bool]:
    """Ask before and after a step, and twice the same."""
    first = outlast.patched("p")
    await work(1)
    return [first, outlast.patched("p"), outlast.patched("q")]


async def only_work() -> int:
    return await work(1)


def taken_up(run: Any, program: Any = None) -> Any:
    """Return the journal of a run under other code, delivered as a worker does that takes it up."""
    journal, run.journal = run.journal, []
    again = run.again(program)
    run.journal = journal
    again.machine.foresee(entry for turn, _ in journal for entry in turn)
    for number, (turn, at) in enumerate(journal, 1):
        again.machine.deliver(turn, at, more=number < len(journal))
        again.journal.append((turn, at))
    return again


def test_the_answer_is_yes_where_nothing_was_written_yet(drive: Callable[..., Any]) -> None:
    """Then a marker is commanded, once, before everything else; the next questions are answered alike."""
    run = drive(asks)
    assert run.commands() == [MarkPatch("p", deprecated=False), RunStep("r:1", "work", b'{"n":1}')]
    run.deliver(Patched("p"))
    assert run.commands() == []
    run.done("r:1", 0)
    assert run.result() == [True, True, True]
    assert run.commands()[0] == MarkPatch("q", deprecated=False)


def test_the_answer_is_no_where_former_code_has_passed(drive: Callable[..., Any]) -> None:
    """And it stays so, also at the end of the journal; a question that is asked there first is answered with yes."""
    run = drive(only_work)
    run.done("r:1", 0)
    again = taken_up(run, asks)
    assert again.result() == [False, False, True]
    assert again.commands()[0] == MarkPatch("q", deprecated=False)


def test_the_answer_is_yes_where_the_journal_has_the_marker(drive: Callable[..., Any]) -> None:
    """Wherever it stands behind the question; nothing is marked again."""
    run = drive(asks)
    run.deliver(Patched("p"))
    run.done("r:1", 0)
    again = taken_up(run)
    assert again.result() == [True, True, True]
    assert [one for one in again.commands() if isinstance(one, MarkPatch)] == [
        MarkPatch("q", deprecated=False)
    ]


def test_an_answer_that_was_not_marked_is_given_anew(drive: Callable[..., Any]) -> None:
    """A worker that dies before the next commit leaves no trace of it: whoever comes next asks for the marker again."""
    run = drive(asks)
    run.commands()
    assert taken_up(run).commands()[0] == MarkPatch("p", deprecated=False)


def test_live_turns_of_one_commit_are_answered_with_yes(drive: Callable[..., Any]) -> None:
    """What is delivered live was written in answer to this very code, whatever follows in the commit."""

    async def waits_then_asks() -> bool:
        await outlast.receive(go)
        return outlast.patched("p")

    run = drive(waits_then_asks)
    run.deliver(run.message("go", 1))
    run.deliver(run.message("go", 2))
    assert run.result() is True


def test_a_marker_that_the_code_does_not_ask_for_is_named(drive: Callable[..., Any]) -> None:
    """Code from before the patch, or with it moved behind what followed, stops there and is told what to keep."""
    run = drive(asks)
    run.deliver(Patched("p"))
    run.done("r:1", 0)
    with pytest.raises(NonDeterminismError) as caught:
        taken_up(run, only_work)
    error = caught.value
    assert (error.position, error.recorded) == (2, "patch p")
    assert error.message.startswith(
        "the journal holds the marker of patch 'p', and the code has not asked for it"
    )
    assert "outlast.patched('p')" in error.hint
    assert "outlast.deprecate_patch('p')" in error.hint


def test_a_patch_moved_above_a_step_is_named_with_what_it_changed(
    drive: Callable[..., Any],
) -> None:
    """Its answer follows it, so the change comes too early: both sides are shown, and so is the patch."""

    async def after() -> int:
        first = await work(1)
        return first + (await more_work(2) if outlast.patched("p") else 0)

    async def before() -> int:
        extra = await more_work(2) if outlast.patched("p") else 0
        return extra + await work(1)

    run = drive(after)
    run.done("r:1", 0)
    run.deliver(Patched("p"))
    run.done("r:2", 0)
    with pytest.raises(NonDeterminismError) as caught:
        taken_up(run, before)
    assert caught.value.recorded == "step work at r:1"
    assert caught.value.asked == "step more_work at r:1"
    assert "patches so far: 'p' answered True" in caught.value.message


def test_a_patch_moved_where_it_changes_nothing_is_no_change(drive: Callable[..., Any]) -> None:
    """Markers have no number: asking earlier shifts no operation."""

    async def before() -> list[bool]:
        answers = [outlast.patched("q"), outlast.patched("p")]
        await work(1)
        return answers

    run = drive(asks)
    run.deliver(Patched("p"))
    run.done("r:1", 0)
    run.deliver(Patched("q"))
    assert taken_up(run, before).result() == [True, True]


def test_a_deprecated_marker_may_be_forgotten(drive: Callable[..., Any]) -> None:
    """Code that asks by `deprecate_patch` marks so, reads both markers, and can go."""

    async def deprecates() -> int:
        outlast.deprecate_patch("p")
        return await work(1)

    run = drive(deprecates)
    assert run.commands()[0] == MarkPatch("p", deprecated=True)
    run.deliver(Patched("p", deprecated=True))
    run.done("r:1", 5)
    assert taken_up(run, only_work).result() == 5
    assert taken_up(run, asks).result()[:2] == [True, True]
    other = drive(asks)
    other.deliver(Patched("p"))
    other.done("r:1", 5)
    assert taken_up(other, deprecates).result() == 5


def test_no_code_runs_in_the_turn_of_a_marker(drive: Callable[..., Any]) -> None:
    """A condition over the time could give up the effect whose intent is the next entry of the same commit."""

    async def impatient() -> str:
        outlast.patched("p")
        due = outlast.now() + timedelta(seconds=5)
        task = asyncio.create_task(pay(1))
        await outlast.wait_condition(lambda: outlast.now() >= due)
        task.cancel()
        return "gave up"

    run = drive(impatient)
    intend = run.commands()[1]
    assert isinstance(intend, IntendEffect)
    run.now += timedelta(seconds=10)
    run.deliver(Patched("p"))
    run.intend(intend)
    run.done("r:1", 1)
    assert run.result() == "gave up"


def test_what_is_mismatched_for_another_reason_names_the_patches(drive: Callable[..., Any]) -> None:
    """The words of every mismatch say what was answered so far."""
    run = drive(asks)
    with pytest.raises(NonDeterminismError, match="patches so far: 'p' answered True"):
        run.deliver(StepCompleted("r:1", "other", Raw(b"1")))


def test_a_run_that_leaves_memory_marks_nothing(drive: Callable[..., Any]) -> None:
    """Not even what its clean-up asks."""
    told: list[bool] = []

    async def cleans_up() -> None:
        try:
            outlast.patched("p")
            await work(1)
        finally:
            told.append(outlast.patched("q"))

    run = drive(cleans_up)
    run.machine.evict()
    assert run.commands() == []
    assert told == [False]


@pytest.mark.parametrize("ask", [outlast.patched, outlast.deprecate_patch])
def test_an_id_is_a_name_and_a_workflow_runs(
    ask: Callable[[str], Any], drive: Callable[..., Any]
) -> None:
    """Anything else is refused where it is asked."""

    async def body() -> str:
        try:
            ask("a\nb")
        except DefinitionError as error:
            return error.message
        return "accepted"

    assert "cannot be the name of a patch" in drive(body).result()
    with pytest.raises(OutsideWorkflowError):
        ask("p")
