"""Handlers of signals and updates: order, paths, ends, answers."""

# ruff: noqa: D102, D103

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import sys
from datetime import timedelta
from typing import Any

import pytest

import outlast
from outlast.errors import DecodeError, NonDeterminismError, OutsideWorkflowError
from outlast.journal.entry import Cancelled, Completed, Failed, Patched, UpdateAnswered
from outlast.journal.failure import rebuild
from outlast.replay.command import Finish, IntendEffect, RunStep
from outlast.workflows.definition import AttemptOptions, Step


async def take(n: int) -> Any:
    return n


work = Step(take, "work", AttemptOptions())
tick = outlast.effect(idempotent=True)(take)
go = outlast.Signal("go", int)
stop = outlast.Signal("stop", int)
add = outlast.Update("add", int, int)
shut = outlast.Update("shut")


def steps(run: Any) -> list[str]:
    """Return the operations of the steps that are to be run."""
    return [one.operation for one in run.commands() if isinstance(one, RunStep)]


@outlast.workflow
async def resting() -> None:
    """A child that is never started."""


async def forever() -> None:
    await outlast.wait_condition(lambda: False)


# Order


def test_messages_that_came_early_are_handled_first(drive):
    """Naming a handler hands it what came before, in order; later ones follow, each once."""
    seen = []

    async def body():
        await work(0)
        outlast.on_signal(go, seen.append)
        await outlast.wait_condition(lambda: len(seen) == 4)
        return seen

    run = drive(body)
    run.deliver(run.message("go", 1), run.message("stop", 9), run.message("go", 2))
    run.done("r:1")
    assert seen == [1, 2]
    run.deliver(run.message("go", 3))
    run.deliver(run.message("go", 4))
    assert run.result() == [1, 2, 3, 4]


def test_updates_that_came_early_are_handled_first(drive):
    """In order, when their handler is named: they wait while a step goes on behind which that may be."""

    async def body():
        await work(0)
        outlast.on_update(add, lambda n: n * 2)
        await outlast.receive(stop)

    run = drive(body)
    run.deliver(run.update("add", 1), run.update("add", 2))
    assert run.answers() == {}
    run.done("r:1")
    assert run.answers() == {"m1": 2, "m2": 4}


@pytest.mark.parametrize("rest", ["sleep", "receive", "condition", "approval", "child"])
def test_an_update_that_nobody_handles_is_rejected_when_the_run_comes_to_rest(drive, rest):
    """Not while a step or an effect goes on; whatever it waits for then may take months. The refusal names what is handled."""
    waits = {
        "sleep": lambda: asyncio.sleep(9),
        "receive": lambda: outlast.receive(stop),
        "condition": forever,
        "approval": lambda: outlast.approval("?", role="r", expires_in=timedelta(days=9)),
        "child": lambda: outlast.run_child(resting()),
    }

    async def body():
        outlast.on_update(add, abs)
        await work(0)
        await tick(1)
        await waits[rest]()

    run = drive(body)
    run.deliver(run.update("ad", 1))
    run.deliver(run.update("ad", 2))
    assert run.answers() == {}
    run.done("r:1")
    [intend] = [one for one in run.commands() if isinstance(one, IntendEffect)]
    run.intend(intend)
    assert run.answers() == {}
    run.done("r:2")
    refusal = run.answers()
    assert refusal.keys() == {"m1", "m2"}
    run.deliver(run.update("ad", 3))
    refusal |= run.answers()
    for word, kind, text in refusal.values():
        assert (word, kind) == ("rejected", "RunConflictError")
        assert text == "the workflow has no handler for update 'ad'; it handles 'add'"


def test_one_that_is_handed_over_in_the_same_turn_is_handled(drive):
    """A message that comes with it may bring the workflow to name the handler."""

    async def body():
        await outlast.receive(stop)
        outlast.on_update(add, abs)
        await forever()

    run = drive(body)
    run.deliver(run.update("add", -1), run.message("stop", 0))
    assert run.answers() == {"m1": 1}


def test_an_update_is_open_until_its_answer_is_recorded(drive):
    """Under the path of the task that handles it; then it is forgotten, and a second answer is one that the code does not give."""

    async def body():
        outlast.on_update(add, abs)
        await forever()

    run = drive(body)
    run.deliver(run.update("add", -1))
    assert run.machine.is_open("m1")
    [command] = run.commands()
    assert run.machine.is_open("m1")
    run.deliver(command.answer)
    assert not run.machine.is_open("m1")
    with pytest.raises(NonDeterminismError, match="never got it"):
        run.deliver(command.answer)


def test_all_messages_of_a_turn_are_handled_before_a_condition_is_looked_at(drive):
    """Signals and updates alike."""
    seen = []

    async def body():
        outlast.on_signal(go, seen.append)
        outlast.on_update(add, lambda n: seen.append(n) or n)
        await outlast.wait_condition(lambda: seen)
        return list(seen)

    run = drive(body)
    run.deliver(run.message("go", 1), run.update("add", 2), run.message("go", 3))
    assert run.answers() == {"m2": 2}
    assert run.result() == [1, 2, 3]


def test_all_messages_of_a_turn_are_handled_before_an_event_wakes_the_body(drive):
    """The first handler sets the event, and the body runs after the last."""
    seen = []

    async def body():
        event = asyncio.Event()

        def note(n):
            seen.append(n)
            event.set()

        outlast.on_signal(go, note)
        await event.wait()
        return list(seen)

    run = drive(body)
    run.deliver(run.message("go", 1), run.message("go", 2), run.message("go", 3))
    assert run.result() == [1, 2, 3]


def test_all_messages_of_a_turn_are_handled_before_one_of_them_is_received(drive):
    """The body that receives the last word has seen what came with it, before it and after."""
    seen = []

    async def body():
        outlast.on_signal(go, seen.append)
        await outlast.receive(stop)
        return list(seen)

    run = drive(body)
    run.deliver(run.message("go", 1), run.message("stop", 0), run.message("go", 2))
    assert run.result() == [1, 2]


def test_a_handler_may_await_whatever_the_body_may(drive):
    """Steps, timers, tasks, conditions; operations are numbered below the message's place in the journal."""
    done = []

    async def handle(n):
        await outlast.sleep(n)
        done.append(await asyncio.gather(work(n), helper(n)))

    async def helper(n):
        return await work(n + 10)

    async def body():
        outlast.on_signal(go, handle)
        await outlast.wait_condition(lambda: len(done) == 2)
        return done

    run = drive(body)
    run.deliver(run.message("stop", 0), run.message("go", 1))
    run.deliver(run.message("go", 2))
    assert [one.operation for one in run.commands()] == ["m2:1", "m3:1"]
    run.fire("m3:1")
    run.fire("m2:1")
    assert steps(run) == ["m3:2", "m3.1:1", "m2:2", "m2.1:1"]
    for operation, value in (("m2:2", 1), ("m2.1:1", 11), ("m3:2", 2), ("m3.1:1", 12)):
        run.done(operation, value)
    assert run.result() == [[1, 11], [2, 12]]


def test_a_path_is_the_messages_own_place(drive):
    """Receiving or handling other messages, and naming a handler later, shifts no operation."""

    async def handled():
        outlast.on_signal(go, lambda n: work(n))
        await forever()

    async def received():
        await outlast.receive(stop)
        outlast.on_signal(go, lambda n: work(n))
        await forever()

    for body in (handled, received):
        run = drive(body)
        run.deliver(run.message("go", 1), run.message("stop", 1), run.message("go", 2))
        assert steps(run) == ["m1:1", "m3:1"]


def test_a_call_that_a_handler_returns_is_awaited(drive):
    """`lambda value: step(value)` is a handler."""

    async def body():
        outlast.on_update(add, lambda n: work(n))
        await forever()

    run = drive(body)
    run.deliver(run.update("add", 5))
    run.done("m1:1", 7)
    assert run.answers() == {"m1": 7}


def test_a_handler_runs_in_the_context_in_which_it_was_named(drive):
    """Variables set before are seen, and what one message sets no other sees."""
    tenant = contextvars.ContextVar("tenant", default="nobody")
    seen = []

    def note(n):
        seen.append(tenant.get())
        tenant.set(f"message {n}")

    async def body():
        tenant.set("ann")
        outlast.on_signal(go, note)
        tenant.set("bob")
        await forever()

    run = drive(body)
    run.deliver(run.message("go", 1), run.message("go", 2))
    assert seen == ["ann", "ann"]


# One place for each name


def both_ways():
    outlast.on_signal(go, print)
    outlast.on_signal(go, print)


async def handler_then_receive():
    outlast.on_signal(go, print)
    await outlast.receive(go)


async def receive_then_handler():
    await outlast.receive(go)
    outlast.on_signal(go, print)


async def receives_beside():
    task = asyncio.create_task(outlast.receive(go))
    await asyncio.sleep(0)
    outlast.on_signal(go, print)
    await task


async def two_handlers():
    both_ways()


async def two_update_handlers():
    outlast.on_update(add, abs)
    outlast.on_update(add, abs)


@pytest.mark.parametrize(
    "body",
    [
        handler_then_receive,
        receive_then_handler,
        receives_beside,
        two_handlers,
        two_update_handlers,
    ],
)
def test_a_name_has_one_handler_or_is_received(drive, body):
    """Anything else is an error of the workflow, which names the message."""
    run = drive(body)
    if run.machine.outcome is None:
        run.deliver(run.message("go", 1))
    assert run.failure().type == "outlast.errors.DefinitionError"
    assert ("'add'" if body is two_update_handlers else "'go'") in run.failure().message


def test_a_signal_and_an_update_may_share_a_name(drive):
    """They are different messages."""
    said = outlast.Update("go", int, int)
    seen = []

    async def body():
        outlast.on_signal(go, seen.append)
        outlast.on_update(said, lambda n: -n)
        await forever()

    run = drive(body)
    run.deliver(run.message("go", 1), run.update("go", 2))
    assert (seen, run.answers()) == ([1], {"m2": -2})


def test_what_has_handlers_is_told(drive):
    """By name, for whoever looks at a run; what is received is told elsewhere."""

    async def body():
        outlast.on_signal(go, print)
        outlast.on_update(add, abs)
        await outlast.receive(stop)

    machine = drive(body).machine
    assert (machine.handled, machine.mailbox.awaited) == ((["go"], ["add"]), ["stop"])


@pytest.mark.parametrize("ask", [outlast.on_signal, outlast.on_update])
def test_handlers_are_named_inside_workflows(ask):
    """And nowhere else."""
    with pytest.raises(OutsideWorkflowError, match=f"outlast.{ask.__name__}"):
        ask(add if ask is outlast.on_update else go, print)


@pytest.mark.parametrize("what", ["handler", "validator"])
def test_what_cannot_be_called_is_refused(drive, what):
    """With the name of the message."""

    async def body():
        if what == "handler":
            outlast.on_update(add, 5)
        outlast.on_update(add, abs, validator="no")

    assert f"the {what} of update 'add' is " in drive(body).failure().message


# How runs end


def test_a_handler_in_progress_goes_on_when_the_body_returns(drive):
    """The run ends with it; what the body returned is kept as it was then."""
    items = []

    async def handle(n):
        items.append(n)
        await work(n)
        items.append(-n)

    async def body():
        outlast.on_signal(go, handle)
        await outlast.wait_condition(lambda: items)
        return items

    run = drive(body)
    run.deliver(run.message("go", 1))
    assert run.machine.outcome is None
    assert steps(run) == ["m1:1"]
    run.done("m1:1")
    assert run.result() == [1]
    assert items == [1, -1]
    assert isinstance(run.command(), Finish)


def test_nothing_is_begun_when_the_body_has_ended(drive):
    """What comes while a handler is in progress is not handled: updates are rejected at once, also one that waited for its handler."""
    seen = []

    async def handle(n):
        seen.append(n)
        await work(n)
        outlast.on_update(shut, lambda _: None)
        return n

    async def body():
        outlast.on_update(add, handle)
        outlast.on_signal(go, seen.append)
        await outlast.receive(stop)

    run = drive(body)
    run.deliver(run.update("add", 1))
    run.deliver(run.update("shut", None))
    assert run.answers() == {}
    run.deliver(run.message("stop", 0))
    answers = run.answers()
    run.deliver(run.message("go", 2), run.update("add", 3))
    answers |= run.answers()
    run.done("m1:1")
    assert run.answers() == {"m1": 1}
    assert seen == [1]
    assert answers.keys() == {"m2", "m5"}
    for word, kind, text in answers.values():
        assert (word, kind) == ("rejected", "RunConflictError")
        assert "the workflow completed before" in text
    assert isinstance(run.machine.outcome, Completed)


@pytest.mark.parametrize("wait", ["condition", "receive", "lock"])
def test_a_handler_that_nothing_can_wake_is_cancelled_when_the_body_has_ended(drive, wait):
    """Not before another handler has ended that might have woken it; it may clean up, and the run ends."""
    cleaned = []

    async def body():
        lock = asyncio.Lock()

        async def handle(n):
            if n == 1:
                return await work(n)
            try:
                async with lock:
                    await {"condition": forever, "receive": lambda: outlast.receive(go)}[wait]()
            finally:
                await work(n)
                cleaned.append(n)

        if wait == "lock":
            await lock.acquire()
        outlast.on_update(add, handle)
        await outlast.receive(stop)

    run = drive(body)
    run.deliver(run.update("add", 1), run.update("add", 2), run.message("stop", 0))
    assert run.machine.outcome is None
    assert steps(run) == ["m1:1"]
    run.done("m1:1", 7)
    run.done("m2:1")
    answers = run.answers()
    assert (cleaned, answers["m1"]) == ([2], 7)
    assert answers["m2"][:2] == ("failed", "CancelledError")
    assert "the workflow completed, and nothing was left that could wake" in answers["m2"][2]
    assert isinstance(run.machine.outcome, Completed)


def test_a_handler_that_will_not_end_is_left(drive):
    """It swallows the cancel and waits on, and nothing can wake it: the run ends without it, and its sender is told."""
    told = []

    async def handle(n):
        while True:
            try:
                await forever()
            except asyncio.CancelledError:
                told.append(n)

    async def body():
        outlast.on_update(add, handle)
        await outlast.receive(stop)

    run = drive(body)
    run.deliver(run.update("add", 1), run.message("stop", 0))
    assert told == [1]
    assert run.answers()["m1"][:2] == ("failed", "RunError")
    assert isinstance(run.machine.outcome, Completed)


def test_an_exception_of_a_signals_handler_fails_the_run(drive):
    """Body and other handlers are cancelled, and clean up; what the body does then changes nothing."""
    cleaned = []

    async def handle(n):
        try:
            await work(n)
        finally:
            cleaned.append(n)

    async def fail(n):
        await work(n)
        raise ValueError(f"no {n}")

    async def body():
        outlast.on_signal(go, handle)
        outlast.on_signal(stop, fail)
        try:
            await forever()
        except asyncio.CancelledError:
            await work(0)
            cleaned.append("body")
            return "fine"

    run = drive(body)
    run.deliver(run.message("go", 1), run.message("stop", 2), run.message("stop", 3))
    run.done("m2:1")
    assert run.machine.outcome is None
    assert cleaned == [1]
    run.done("r:1")
    assert cleaned == [1, "body"]
    assert (run.failure().type, run.failure().message) == ("ValueError", "no 2")


def test_an_approval_that_nobody_gave_to_a_handler_cancels_the_run(drive):
    """As it does in the body."""

    async def fail(n):
        raise outlast.ApprovalExpiredError("nobody decided")

    async def body():
        outlast.on_signal(go, fail)
        await forever()

    run = drive(body)
    run.deliver(run.message("go", 1))
    assert isinstance(run.machine.outcome, Cancelled)


def test_a_handler_that_fails_after_the_body_has_returned_fails_the_run(drive):
    """It is part of the run."""

    async def fail(n):
        await work(n)
        raise ValueError("late")

    async def body():
        outlast.on_signal(go, fail)
        await outlast.receive(stop)

    run = drive(body)
    run.deliver(run.message("go", 1), run.message("stop", 1))
    run.done("m1:1")
    assert run.failure().message == "late"


def test_handlers_are_cancelled_once_when_the_body_fails(drive):
    """They may clean up, and their own failures do not take the place of the body's."""
    cleaned = []

    async def handle(n):
        try:
            await work(n)
        finally:
            await work(10 * n)
            cleaned.append(n)
            raise RuntimeError("in clean-up")

    async def body():
        outlast.on_signal(go, handle)
        await work(0)

    run = drive(body)
    run.deliver(run.message("go", 1), run.message("go", 2))
    run.failed("r:1", ValueError("broken"))
    assert run.machine.outcome is None
    run.done("m1:2")
    run.done("m2:2")
    assert cleaned == [1, 2]
    assert run.failure().message == "broken"


def test_a_cancel_reaches_body_and_handlers(drive):
    """Those that wait; a second one reaches those that clean up."""
    told = []

    async def handle(n):
        for _ in range(2):
            try:
                await work(n)
            except asyncio.CancelledError:
                told.append(n)
        return n

    async def body():
        outlast.on_update(add, handle)
        await forever()

    run = drive(body)
    run.deliver(run.update("add", 1), run.update("add", 2))
    run.cancel()
    assert told == [1, 2]
    run.done("m1:2")
    run.cancel()
    assert told == [1, 2, 2]
    assert run.answers() == {"m1": 1, "m2": 2}
    assert isinstance(run.machine.outcome, Cancelled)


def test_an_update_that_a_cancel_ends_is_answered_as_cancelled(drive):
    """The one that was being handled; one that nobody handled is rejected."""

    async def body():
        outlast.on_update(add, lambda n: work(n))
        await forever()

    run = drive(body)
    run.deliver(run.update("add", 1))
    run.cancel()
    run.deliver(run.update("add", 2))
    answers = run.answers()
    assert answers["m1"] == ("cancelled", "CancelledError", "the run was cancelled")
    assert answers["m2"][0] == "rejected"
    assert "the workflow was cancelled before" in answers["m2"][2]


def test_an_update_that_a_failing_body_ends_has_failed(drive):
    """Nobody cancelled the run."""

    async def body():
        outlast.on_update(add, lambda n: work(n))
        await work(0)

    run = drive(body)
    run.deliver(run.update("add", 1))
    run.failed("r:1", ValueError("broken"))
    assert run.answers() == {"m1": ("failed", "CancelledError", "the handler was cancelled")}


@pytest.mark.parametrize("kind", ["exit", "spin", "callback"])
def test_an_end_without_clean_up_answers_everything(drive, kind):
    """When a handler calls sys.exit(), spins, or has a callback that raises."""

    async def handle(n):
        if n == 1:
            await forever()
        if n == 2:
            return 22
        if kind == "exit":
            sys.exit(3)
        if kind == "callback":
            asyncio.get_running_loop().call_soon(int, "no number")
            await forever()
        while True:
            await asyncio.sleep(0)

    async def body():
        outlast.on_update(add, handle)
        await forever()

    run = drive(body)
    run.deliver(*(run.update("add", n) for n in (1, 2, 3)), run.update("other", 4))
    answers = run.answers()
    assert answers["m2"] == 22
    assert answers["m1"][:2] == ("failed", "RunError")
    assert "the run failed while" in answers["m1"][2]
    assert answers["m3"][0] == "failed"
    assert answers["m4"][0] == "rejected"
    assert isinstance(run.machine.outcome, Failed)


def test_an_update_that_comes_after_the_end_is_rejected_at_once(drive):
    """It came while the end was being written, or while an effect is unsettled."""

    async def body():
        outlast.on_update(add, abs)

    run = drive(body)
    run.deliver(run.update("add", 1))
    assert run.answers()["m1"][0] == "rejected"


# Answers


def test_an_update_is_answered_with_what_its_handler_returns(drive):
    """In the order in which handlers end; the run goes on."""

    async def body():
        outlast.on_update(add, lambda n: work(n))
        outlast.on_update(shut, lambda nothing: nothing)
        await outlast.receive(stop)

    run = drive(body)
    run.deliver(run.update("add", 1), run.update("add", 2), run.update("shut", None))
    assert run.answers() == {"m3": None}
    run.done("m2:1", 20)
    assert run.answers() == {"m2": 20}
    run.done("m1:1", 10)
    assert run.answers() == {"m1": 10}
    run.deliver(run.message("stop", 0))
    assert isinstance(run.machine.outcome, Completed)


def test_an_exception_of_an_updates_handler_is_its_answer(drive):
    """And the run goes on."""

    async def handle(n):
        await work(n)
        raise KeyError(n)

    async def body():
        outlast.on_update(add, handle)
        await outlast.receive(stop)
        return "fine"

    run = drive(body)
    run.deliver(run.update("add", 1))
    run.done("m1:1")
    assert run.answers() == {"m1": ("failed", "KeyError", "1")}
    run.deliver(run.message("stop", 0))
    assert run.result() == "fine"


def test_a_result_that_cannot_be_stored_is_a_failure(drive):
    """It names the path."""

    async def body():
        outlast.on_update(add, str)
        await forever()

    run = drive(body)
    run.deliver(run.update("add", 1))
    word, kind, text = run.answers()["m1"]
    assert (word, kind) == ("failed", "EncodeError")
    assert "the answer to update 'add'" in text


def test_a_value_that_does_not_fit_is_rejected(drive):
    """Neither validator nor handler sees it."""
    seen = []

    async def body():
        outlast.on_update(add, seen.append, validator=seen.append)
        await forever()

    run = drive(body)
    run.deliver(run.update("add", "one"))
    word, kind, text = run.answers()["m1"]
    assert (word, kind, seen) == ("rejected", "DecodeError", [])
    assert "expected int" in text


def test_a_signal_that_does_not_fit_is_for_other_code(drive):
    """It fitted when it was taken in; the run does not fail for it."""

    async def body():
        outlast.on_signal(go, print)
        await forever()

    run = drive(body)
    with pytest.raises(DecodeError, match="signal 'go'"):
        run.deliver(run.message("go", "one"))
    assert run.machine.outcome is None


def test_a_validator_says_no_by_raising(drive):
    """It sees what earlier messages of the same turn have done, and the handler of what it rejects never runs."""
    total = [0]

    def check(n):
        if total[0] + n > 10:
            raise ValueError(f"{n} more than 10")

    async def handle(n):
        total[0] += n
        await work(n)
        return total[0]

    async def body():
        outlast.on_update(add, handle, validator=check)
        await forever()

    run = drive(body)
    run.deliver(run.update("add", 6), run.update("add", 7), run.update("add", 4))
    assert run.answers() == {"m2": ("rejected", "ValueError", "7 more than 10")}
    run.done("m1:1")
    run.done("m3:1")
    assert run.answers() == {"m1": 10, "m3": 10}


async def idle() -> None:
    """Never run."""


def hides(n: int) -> None:
    """Act, and go on when that is refused."""
    with contextlib.suppress(outlast.OutlastError):
        outlast.publish("key", n)


ACTS = {
    "step": lambda n: asyncio.ensure_future(work(n)),
    "task": lambda n: asyncio.create_task(idle()),
    "timer": lambda n: asyncio.get_running_loop().call_later(5, print),
    "handler": lambda n: outlast.on_signal(stop, print),
    "value": lambda n: outlast.publish("key", n),
    "future": lambda n: asyncio.get_running_loop().create_future(),
    "waking": lambda n: asyncio.get_running_loop().call_soon(print),
    "act that it hides": hides,
}


@pytest.mark.parametrize("act", ACTS)
def test_a_validator_begins_nothing(drive, act):
    """No step, task, timer, handler or value, nothing drawn or woken; the refusal names it, and rejects the update."""

    async def body():
        outlast.on_update(add, abs, validator=ACTS[act])
        await forever()

    run = drive(body)
    run.deliver(run.update("add", 1))
    [answer] = [one.answer for one in run.commands()]
    assert answer.rejected
    assert answer.failure.type == "outlast.errors.ForbiddenInWorkflowError"
    assert "the validator of update 'add'" in answer.failure.message


@pytest.mark.parametrize(
    "name",
    [
        lambda: outlast.on_signal(outlast.Signal("said", int), lambda: None),
        lambda: outlast.on_signal(outlast.Signal("go"), lambda a, b: None),
        lambda: outlast.on_update(add, lambda: 1),
        lambda: outlast.on_update(add, abs, validator=lambda n, more: None),
        lambda: outlast.on_query(outlast.Query("look", int, int), lambda: 1),
    ],
)
def test_a_handler_that_does_not_take_the_value_is_refused_where_it_is_named(drive, name):
    """Before a message comes, with its parameters and what to write."""

    async def body():
        name()

    failure = drive(body).failure()
    assert "cannot be called with a value: its parameters are (" in failure.message
    assert "def handle(value)" in str(rebuild(failure))


def test_a_handler_of_a_message_without_a_value_may_take_nothing(drive):
    """Plain or async, its validator too; one that can take a value gets None."""
    seen = []

    async def later():
        seen.append("later")

    async def body():
        outlast.on_signal(outlast.Signal("go"), lambda: seen.append("go"))
        outlast.on_signal(outlast.Signal("later"), later)
        outlast.on_signal(outlast.Signal("old"), seen.append)
        outlast.on_update(outlast.Update("end"), lambda: None, validator=lambda: seen.append("?"))
        await forever()

    run = drive(body)
    run.deliver(run.message("go", None), run.message("later", None), run.message("old", None))
    run.deliver(run.update("end", None))
    [answer] = [one.answer for one in run.commands()]
    assert answer.failure is None
    assert seen == ["go", "later", None, "?"]


def test_a_body_can_tell_whether_something_is_being_handled(drive):
    """A plain handler ends with its turn; one that awaits is under way until it ends."""
    finished = []

    async def body():
        outlast.on_signal(stop, lambda n: asyncio.sleep(n))
        finished.append(outlast.all_handlers_finished())
        await outlast.wait_condition(lambda: finished.append(outlast.all_handlers_finished()))

    run = drive(body)
    run.deliver(run.message("stop", 0))
    assert set(finished) == {True}
    run.deliver(run.message("stop", 5))
    assert finished[-1] is False


def test_a_validator_that_is_async_is_refused(drive):
    """Where it is named, or where that is found out."""

    async def check(n):
        pass

    async def refused():
        outlast.on_update(add, abs, validator=check)

    async def hidden():
        outlast.on_update(add, abs, validator=lambda n: check(n))
        await forever()

    assert "is async" in drive(refused).failure().message
    run = drive(hidden)
    run.deliver(run.update("add", 1))
    word, kind, text = run.answers()["m1"]
    assert (word, kind) == ("rejected", "DefinitionError")
    assert "returned a coroutine" in text


def test_updates_draw_and_look_the_same_in_every_replay(drive):
    """Randomness and time of a handler, and of its validator, follow from the journal."""
    seen = []

    def look(n):
        seen.append([str(outlast.uuid4()), outlast.now().isoformat(), outlast.random().random()])

    async def body():
        outlast.on_update(add, lambda n: look(n) or n, validator=look)
        await outlast.wait_condition(lambda: len(seen) >= 4)

    run = drive(body)
    run.now += timedelta(seconds=5)
    run.deliver(run.update("add", 1))
    run.now += timedelta(seconds=5)
    run.deliver(run.update("add", 2))
    first, seen[:] = list(seen), []
    run.again()
    assert seen == first
    assert len({str(one) for one in seen}) == 4


# What the journal holds


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (UpdateAnswered("u9", "add"), "never got it"),
        (UpdateAnswered("u1", "add"), "still handles it"),
        (UpdateAnswered("u2", "add", rejected=True), "code: completed"),
    ],
)
def test_an_answer_that_the_code_does_not_give_is_noticed(drive, answer, words):
    """Both sides are shown."""

    async def handle(n):
        return await work(n) if n == 1 else n

    async def body():
        outlast.on_update(add, handle)
        await forever()

    run = drive(body)
    run.deliver(run.update("add", 1), run.update("add", 2))
    if answer.rejected:
        answer = UpdateAnswered(
            "u2", "add", failure=outlast_failure(), rejected=True, cancelled=False
        )
    with pytest.raises(NonDeterminismError) as caught:
        run.deliver(answer)
    assert words in caught.value.message
    assert answer.message_id in caught.value.message


# A rejection that the journal holds


def taken_up(run: Any, program: Any) -> Any:
    """Return the journal of a run under other code, delivered as a worker does that takes it up."""
    journal, run.journal = run.journal, []
    again = run.again(program)
    run.journal = journal
    again.machine.foresee(entry for turn, _ in journal for entry in turn)
    for number, (turn, at) in enumerate(journal, 1):
        again.machine.deliver(turn, at, more=number < len(journal))
        again.journal.append((turn, at))
    return again


def at_most(limit: int, seen: list[int], *, awaits: bool = False) -> Any:
    """Return a body whose handler takes what its validator lets through."""

    def check(n: int) -> None:
        if n > limit:
            raise ValueError("too much")

    async def handle(n: int) -> int:
        seen.append(n)
        return await work(n) if awaits else n

    async def body() -> int:
        outlast.on_update(add, handle, validator=check)
        return await outlast.receive(stop)

    return body


async def without_handler() -> int:
    return await outlast.receive(stop)


async def of_text() -> int:
    outlast.on_update(outlast.Update("add", str, int), len)
    return await outlast.receive(stop)


@pytest.mark.parametrize("awaits", [False, True])
@pytest.mark.parametrize("former", [at_most(10, []), without_handler, of_text])
def test_a_rejection_stands_whatever_the_code_would_say_now(drive, former, awaits):
    """A looser validator, a handler that there was not, another type: nothing of it is done, and nothing else is shifted."""
    run = drive(former)
    run.deliver(run.update("add", 50))
    assert run.answers()["m1"][0] == "rejected"
    seen: list[int] = []
    again = taken_up(run, at_most(100, seen, awaits=awaits))
    assert (seen, again.commands()) == ([], [])
    again.deliver(again.update("add", 60), again.message("stop", 3))
    assert seen == [60]
    if awaits:
        assert steps(again) == ["m2:1"]
        again.done("m2:1", 60)
    assert again.answers() == {"m2": 60}
    assert again.result() == 3


def test_a_rejection_stands_also_where_the_handler_is_gone_or_named_late(drive):
    """It is not answered anew when the run comes to rest, nor handed to a handler that comes after it."""
    run = drive(at_most(10, []))
    run.deliver(run.update("add", 50))
    run.answers()
    run.deliver(run.message("go", 1))
    assert taken_up(run, without_handler).commands() == []
    seen: list[int] = []

    async def late() -> int:
        await outlast.receive(go)
        return await at_most(100, seen)()

    assert (taken_up(run, late).commands(), seen) == ([], [])


def test_an_acceptance_binds_the_code(drive):
    """What was done cannot be rejected afterwards."""
    run = drive(at_most(100, []))
    run.deliver(run.update("add", 50))
    assert run.answers() == {"m1": 50}
    with pytest.raises(NonDeterminismError, match="rejected"):
        taken_up(run, at_most(10, []))


def test_what_a_validator_drew_and_asked_is_as_it_was(drive):
    """It is asked in replay too, so that the same code stands where it stood; its answer does not count."""
    drawn: list[float] = []

    def check(n: int) -> None:
        outlast.patched("check")
        drawn.append(outlast.random().random())
        raise ValueError("no")

    async def body() -> int:
        outlast.on_update(add, str, validator=check)
        return await outlast.receive(stop)

    run = drive(body)
    run.deliver(run.update("add", 50))
    marker, answer = run.commands()
    run.deliver(Patched(marker.name))
    run.deliver(answer.answer)
    again = taken_up(run, body)
    assert drawn[0] == drawn[1]
    assert again.machine._draws == run.machine._draws
    assert again.commands() == []


def outlast_failure() -> Any:
    from outlast.journal.failure import capture

    return capture(ValueError("no"))


def test_an_answer_lets_no_code_run(drive):
    """It is the sender's, and code cannot see it."""
    looks = []

    async def body():
        outlast.on_update(add, abs)
        await outlast.wait_condition(lambda: looks.append(1))

    run = drive(body)
    run.deliver(run.update("add", 1))
    before = len(looks)
    assert run.answers() == {"m1": 1}
    assert len(looks) == before


def test_eviction_answers_nothing(drive):
    """A handler in progress is left as it is; the replay stands where the run stood."""
    ended = []

    async def handle(n):
        try:
            return await work(n)
        finally:
            ended.append(n)

    async def body():
        outlast.on_update(add, handle)
        await forever()

    run = drive(body)
    run.deliver(run.update("add", 1))
    run.machine.evict()
    assert run.commands() == []
    assert ended == [1]
    again = run.again()
    again.done("m1:1", 5)
    assert again.answers() == {"m1": 5}
