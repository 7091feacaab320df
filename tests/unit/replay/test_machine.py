"""The machine: what each entry does, what each request commands, how runs end."""

# ruff: noqa: D102, D103

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from msgspec import Raw

import outlast
from outlast.effects.retry import RetryPolicy
from outlast.errors import (
    DecodeError,
    NonDeterminismError,
    StepFailedError,
)
from outlast.journal.entry import (
    AlarmRaised,
    Cancelled,
    Completed,
    Started,
    StepCompleted,
    Taken,
)
from outlast.journal.length import OPERATION_BYTES
from outlast.replay.command import (
    Abandon,
    Finish,
    RunStep,
    StartTimer,
)
from outlast.replay.machine import Machine
from outlast.workflows.definition import AttemptOptions, Effect, EffectOptions, Step, Workflow

EPOCH = datetime(2030, 1, 1, tzinfo=UTC)


class OwnError(Exception):
    """A type that steps declare."""


async def take(n: int) -> int:
    return n


def make_step(name: str, *, raises: tuple[type[BaseException], ...] = ()) -> Step[..., Any]:
    return Step(take, name, AttemptOptions(raises=raises))


def make_effect(
    name: str, *, repeats: bool = False, function: Any = take, version: str = ""
) -> Effect[..., Any]:
    rules = EffectOptions(idempotent=True, repeats=repeats, version=version)
    return Effect(function, name, AttemptOptions(RetryPolicy()), rules)


work, other = make_step("work", raises=(OwnError,)), make_step("other")
pay, tick = make_effect("pay"), make_effect("tick", repeats=True)
go = outlast.Signal("go", int)
stop = outlast.Signal("stop", int)


# Steps, timers, time and randomness


def test_step_is_commanded_and_returns_its_outcome(drive):
    """A step becomes a command with its arguments; its entry is what the workflow gets, decoded."""

    async def body():
        return await work(1) + await work(n=2)

    run = drive(body)
    assert run.command() == RunStep(operation="r:1", name="work", arguments=b'{"n":1}')
    assert run.commands() == []
    run.done("r:1", 10)
    assert run.command() == RunStep(operation="r:2", name="work", arguments=b'{"n":2}')
    run.done("r:2", 20)
    assert run.command() == Finish(outcome=Completed(Raw(b"30")))
    assert run.commands() == []


def test_nothing_runs_before_the_run_is_taken(drive):
    """A started run does nothing until a worker takes it; its time begins then, once."""
    seen: list[Any] = []

    async def body():
        seen.append((outlast.now(), outlast.info().started_at, outlast.info().entries))
        await work(1)

    program = drive(body).program
    seen.clear()
    machine = Machine(program, tenant="t", run_id="r", generation=3)
    machine.deliver([Started("body", Raw(b"{}"), b"seed", "r")], EPOCH)
    assert seen == []
    later = EPOCH + timedelta(hours=5)
    machine.deliver([Taken("3.11", "0")], later)
    machine.deliver([Taken("3.11", "0")], later + timedelta(hours=1))
    assert seen == [(later, later, 2)]


def test_info_names_the_run(drive):
    """`info()` tells tenant, run, workflow, generation and the length of the journal."""

    async def body():
        await work(1)
        return msgspec.to_builtins(outlast.info())

    run = drive(body)
    run.done("r:1", 1)
    assert run.result() == {
        "tenant": "default",
        "run_id": "run-1",
        "workflow": "body",
        "generation": 1,
        "started_at": "2030-01-01T00:00:00Z",
        "entries": 3,
        "continue_suggested": False,
        "parent": "",
    }


def test_step_failure_arrives_as_itself_or_as_step_failed(drive):
    """A declared type and Python's own are raised as themselves, others as `StepFailedError`."""
    seen: list[Any] = []

    async def body():
        for _ in range(3):
            try:
                await work(1)
            except Exception as error:
                seen.append((type(error), str(error)))

    class ForeignError(Exception):
        pass

    run = drive(body)
    run.failed("r:1", OwnError("mine"))
    run.failed("r:2", ValueError("python's"))
    run.failed("r:3", ForeignError("theirs"))
    assert seen[:2] == [(OwnError, "mine"), (ValueError, "python's")]
    assert seen[2][0] is StepFailedError


def test_step_that_was_cancelled_by_itself_is_cancelled(drive):
    """A step that ended in `CancelledError` cancels who awaits it, and the run goes on if that is caught."""

    async def body():
        try:
            await work(1)
        except asyncio.CancelledError:
            return "caught"

    run = drive(body)
    run.failed("r:1", asyncio.CancelledError())
    assert run.result() == "caught"


def test_timer_is_due_by_the_time_of_the_turn_that_started_it(drive):
    """A sleep is a timer whose due time is recomputed in replay, and whose end is an entry."""

    async def body():
        await outlast.sleep(timedelta(minutes=1))
        await asyncio.sleep(0.5)
        return outlast.now()

    run = drive(body)
    assert run.command() == StartTimer(
        operation="r:1", due=EPOCH + timedelta(minutes=1), armed_at=EPOCH
    )
    run.now += timedelta(minutes=2)
    run.fire("r:1")
    assert run.command() == StartTimer(
        operation="r:2",
        due=EPOCH + timedelta(minutes=2, seconds=0.5),
        armed_at=EPOCH + timedelta(minutes=2),
    )
    assert run.again().command().due == EPOCH + timedelta(minutes=2, seconds=0.5)
    run.now += timedelta(seconds=1)
    run.fire("r:2")
    assert run.result() == "2030-01-01 00:02:01+00:00"


def test_time_never_goes_back(drive):
    """A turn with an earlier time leaves the run's time where it is."""

    async def body():
        await work(1)
        return outlast.now()

    run = drive(body)
    run.now -= timedelta(hours=1)
    run.done("r:1", 1)
    assert run.result() == "2030-01-01 00:00:00+00:00"


def test_random_values_belong_to_the_task_and_its_count(drive):
    """Generators differ by task and count, and a draw in one branch changes none in another."""

    async def draw(times: int) -> list[str]:
        return [str(outlast.uuid4()) for _ in range(times)]

    def body(first: int):
        async def inner():
            return await asyncio.gather(draw(first), draw(2))

        return inner

    one, two = drive(body(1)).result(), drive(body(3)).result()
    assert one[1] == two[1]
    assert one[0] == two[0][:1]
    assert len({*two[0], *two[1]}) == 5


def test_cancelled_step_is_abandoned_and_its_late_outcome_ignored(drive):
    """A timeout round a step gives it up at once; what comes of it later changes nothing."""

    async def body():
        try:
            async with asyncio.timeout(1):
                await work(1)
        except TimeoutError:
            return await work(2)

    run = drive(body)
    assert [type(one) for one in run.commands()] == [StartTimer, RunStep]
    run.fire("r:1")
    assert run.commands() == [
        Abandon(operation="r:2"),
        RunStep(operation="r:3", name="work", arguments=b'{"n":2}'),
    ]
    run.deliver(StepCompleted("r:2", "work", Raw(b"5")))
    assert run.machine.is_open("r:3")
    replayed = run.again().commands()
    assert replayed == [RunStep(operation="r:3", name="work", arguments=b'{"n":2}')]
    run.done("r:3", 7)
    assert run.result() == 7


def test_timer_that_is_not_needed_is_abandoned(drive):
    """An outcome in time takes the timer back; a timer that fires nevertheless changes nothing."""

    async def body():
        async with asyncio.timeout(1):
            await work(1)
        return await work(2)

    run = drive(body)
    run.commands()
    run.done("r:2", 1)
    assert run.commands()[0] == Abandon(operation="r:1")
    run.fire("r:1")
    assert run.machine.is_open("r:3")


# How runs end


def test_exception_is_the_failure_of_the_run(drive):
    """What the body raises is the run's failure, with its type, message and notes."""

    async def body():
        error = OwnError("broken")
        error.add_note("look here")
        raise error

    failure = drive(body).failure()
    assert failure.type.endswith("OwnError")
    assert (failure.message, failure.notes) == ("broken", ("look here",))


def test_exception_group_keeps_its_members(drive):
    """A TaskGroup's failures are all kept."""

    async def body():
        async def fail(error: Exception):
            await work(1)
            raise error

        async with asyncio.TaskGroup() as group:
            group.create_task(fail(ValueError("one")))
            group.create_task(work(2))

    run = drive(body)
    run.done("r.1:1", 1)
    failure = run.failure()
    assert [(one.type, one.message) for one in failure.members] == [("ValueError", "one")]


def test_result_that_cannot_be_stored_fails_the_run(drive):
    """A result of another type than annotated is the run's failure, with the path in it."""

    async def flow(n: int) -> int:
        return "seven" if n == 7 else n  # type: ignore[return-value]

    workflow = Workflow(flow)
    assert "result of workflow flow" in drive(workflow, b'{"n":7}').failure().message
    assert drive(workflow, b'{"n":8}').result() == 8


def test_arguments_that_do_not_fit_stop_the_machine_and_not_the_run(drive):
    """Recorded arguments that today's types refuse are for an operator: no outcome is reached."""

    async def flow(n: int) -> int:
        return n

    with pytest.raises(DecodeError):
        drive(Workflow(flow), b'{"n":"seven"}')


def test_recorded_value_that_does_not_fit_stops_the_machine(drive):
    """The same for a step's outcome under a changed annotation."""

    async def body():
        await work(1)

    run = drive(body)
    with pytest.raises(DecodeError):
        run.done("r:1", "no number")


def test_cancel_runs_clean_up_and_ends_as_cancelled(drive):
    """A cancelled run may still call steps in `finally`."""

    async def body():
        try:
            await outlast.receive(go)
        finally:
            await work(1)

    run = drive(body)
    run.cancel()
    assert isinstance(run.command(), RunStep)
    run.done("r:1", 1)
    assert isinstance(run.machine.outcome, Cancelled)
    assert run.command() == Finish(outcome=run.machine.outcome)


def test_cancel_before_anything_ran(drive):
    """A cancel in the first turn after the start ends the run."""

    async def body():
        await work(1)

    run = drive(body)
    run.cancel()
    run.cancel()
    assert isinstance(run.machine.outcome, Cancelled)


def test_a_body_that_catches_the_cancel_completes(drive):
    """A cancel is a request: who catches it decides."""

    async def body():
        try:
            await outlast.receive(go)
        except asyncio.CancelledError:
            return "stayed"

    run = drive(body)
    run.cancel()
    assert run.result() == "stayed"


def test_failing_callback_fails_the_run(drive):
    """An exception in a plain callback is the failure of the run: nobody else would see it."""

    async def body():
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        await work(1)

    run = drive(body)
    assert run.failure().type == "ZeroDivisionError"
    assert [type(one) for one in run.commands()] == [Finish]


def test_exit_ends_the_run_and_not_the_process(drive):
    """`sys.exit()` in a workflow fails the run."""

    async def body():
        await work(1)
        sys.exit(3)

    run = drive(body)
    run.done("r:1", 1)
    assert run.failure().type == "SystemExit"


def test_tasks_within_tasks_have_an_end(drive):
    """A task that starts its own successor fails with what to write instead, before an id becomes too long for a store."""

    async def body():
        async def again(depth):
            if depth:
                await asyncio.create_task(again(depth - 1))
            await asyncio.sleep(1)

        await again(300)

    failure = drive(body).failure()
    assert "tasks stand within tasks too deeply" in failure.message
    assert str(OPERATION_BYTES) in failure.message


def test_spinning_fails_the_run(drive, monkeypatch):
    """A workflow that never waits for anything durable fails, and says so."""
    monkeypatch.setattr("outlast.replay.loop.SPIN_LIMIT", 1000)

    async def body():
        while True:
            await asyncio.sleep(0)

    assert "without waiting" in drive(body).failure().message


def test_left_over_tasks_are_drained_without_effect(drive):
    """When the body ends, what it left behind ends without beginning or cancelling anything."""
    seen: list[str] = []

    async def body():
        async def background():
            try:
                await work(1)
            except BaseException:
                seen.append("told")
                await pay(1)
                seen.append("not reached")

        asyncio.create_task(background())
        await work(2)

    run = drive(body)
    run.commands()
    run.done("r:1", 1)
    assert seen == ["told"]
    assert run.commands() == [Abandon(operation="r.1:1"), Finish(outcome=Completed(Raw(b"null")))]


def test_nothing_moves_after_the_end(drive):
    """Outcomes, messages, timers, alarms and cancels that come after the body's end change nothing."""

    async def body():
        asyncio.create_task(work(1))
        asyncio.create_task(outlast.receive(go))
        asyncio.create_task(asyncio.sleep(5))
        await work(2)
        return "end"

    run = drive(body)
    run.done("r:2", 1)
    run.commands()
    run.deliver(StepCompleted("r:1", "work", Raw(b"1")))
    run.deliver(run.message("go", 1))
    run.fire("r.2:1")
    run.deliver(AlarmRaised("r:1", "late_outcome", Raw(b"{}")))
    run.cancel()
    run.deliver(run.machine.outcome)
    assert run.machine.closed == Completed(Raw(b'"end"'))
    assert run.commands() == []


def test_what_would_run_is_what_was_asked_for(drive):
    """An intent whose effective arguments are not the requested ones, as in an edited journal, is refused before any attempt."""
    pay = make_effect("pay")

    async def body() -> int:
        return await pay(1)

    run = drive(body)
    (command,) = run.commands()
    with pytest.raises(NonDeterminismError, match="other arguments"):
        run.intend(command, effective=b'{"n":1000000}')
