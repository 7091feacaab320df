"""What the machine makes of entries about other runs: commanded, requested, answered; cancelled waits; what does not fit."""

# ruff: noqa: D103

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
from typing import Any

import pytest
from msgspec import Raw

import outlast
from outlast.errors import DecodeError, NonDeterminismError, RunNotFoundError
from outlast.journal.entry import (
    ChildRefused,
    ChildRequested,
    ChildStarted,
    Completed,
    MessageAnswered,
    MessageSent,
    RunEnded,
    StepCompleted,
    WatchRequested,
)
from outlast.journal.failure import capture
from outlast.replay.command import (
    Abandon,
    AwaitRun,
    Finish,
    SendMessage,
    StartChild,
    StartTimer,
    WatchRun,
)
from outlast.replay.stand import note_commands, stand_of

go = outlast.Signal("go", int)


@outlast.step
async def work(n: int) -> int:
    return n


@outlast.workflow
async def kid(n: int) -> int:
    return n


def request(run: Any, command: StartChild) -> AwaitRun:
    """Record that the child is requested; return the command that takes the place of its start."""
    run.deliver(
        ChildRequested(
            command.operation,
            command.name,
            command.run_id,
            Raw(command.arguments),
            command.parent_close,
        )
    )
    return run.command()


def ended(run: Any, operation: str = "r:1", value: Any = None, **fields: Any) -> None:
    raw = Raw(json.dumps(value).encode())
    given = {"status": "completed", "value": raw, **fields}
    run.deliver(RunEnded(operation, "run-1/r:1", **given))


def stand(run: Any) -> Any:
    return stand_of(run.machine, note_commands({}, run.machine))


def test_a_child_is_commanded_requested_and_ended(drive):
    """Its id is made of run and operation; the request settles the command; its result is decoded."""

    async def body():
        return await outlast.run_child(kid(4))

    run = drive(body)
    command = run.command()
    assert command == StartChild("r:1", "kid", "run-1/r:1", b'{"n":4}', "terminate", False)
    assert request(run, command) == AwaitRun("r:1", "run-1/r:1")
    ended(run, value=8)
    assert run.result() == 8
    assert run.commands() == [Finish(run.machine.outcome)]
    assert run.again().result() == 8


def test_calls_take_their_numbers_from_who_hands_them_over(drive):
    """Like steps, children that are gathered are numbered in the gathering task."""

    async def body():
        return await asyncio.gather(*(outlast.run_child(kid(n)) for n in range(3)), work(1))

    run = drive(body)
    assert [one.operation for one in run.commands()] == ["r:1", "r:2", "r:3", "r:4"]


def test_a_start_waits_for_the_word_of_the_start(drive):
    """The handle comes with ChildStarted; its result may be asked for before and after the end, as often as one likes."""

    async def body():
        child = await outlast.start_child(kid(4))
        first = asyncio.create_task(child.result())
        return [await child.result(), await first, await child.result(), child.id]

    run = drive(body)
    command = run.command()
    assert command.tells_start
    request(run, command)
    assert run.commands() == []
    run.deliver(ChildStarted("r:1"))
    ended(run, value=3)
    assert run.result() == [3, 3, 3, "run-1/r:1"]
    run.again()


def test_an_end_that_comes_before_the_word_of_the_start_is_both(drive):
    """A fast child: nothing is waited for any more."""

    async def body():
        return await (await outlast.start_child(kid(4))).result()

    run = drive(body)
    request(run, run.command())
    ended(run, value=3)
    assert run.result() == 3


@pytest.mark.parametrize("start", [False, True])
def test_a_refused_child_raises_where_it_is_waited_for(drive, start):
    """With the error that was recorded, its run and what to do."""

    async def body():
        try:
            await (outlast.start_child(kid(1)) if start else outlast.run_child(kid(1)))
        except outlast.RunConflictError as error:
            return [error.message, error.run, error.hint]

    run = drive(body)
    request(run, run.command())
    taken = outlast.RunConflictError("taken", run="x", hint="another")
    run.deliver(ChildRefused("r:1", capture(taken)))
    assert run.result() == ["taken", "x", "another"]
    assert run.commands() == [Finish(run.machine.outcome)]


ENDS = {
    "failed": (outlast.WorkflowFailedError, {"failure": capture(ValueError("no"))}),
    "cancelled": (outlast.RunCancelledError, {"failure": capture(asyncio.CancelledError())}),
    "terminated": (outlast.RunTerminatedError, {"reason": "why"}),
    "completed": (outlast.WorkflowFailedError, {"failure": capture(ValueError("unreadable"))}),
}


@pytest.mark.parametrize("status", ENDS)
def test_each_end_raises_what_a_handle_would(drive, status):
    """Live and in replay, also when it is asked for later; each time another exception."""
    kind, fields = ENDS[status]
    seen: list[Any] = []

    async def body():
        child = await outlast.start_child(kid(1))
        for _ in range(2):
            try:
                await child.result()
            except Exception as error:
                seen.append(error)
        return len(seen)

    run = drive(body)
    request(run, run.command())
    run.deliver(ChildStarted("r:1"))
    ended(run, status=status, **fields)
    assert [type(one) for one in seen] == [kind, kind]
    assert seen[0] is not seen[1]
    assert {one.run for one in seen} == {"run-1/r:1"}
    assert str(seen[0]) == str(seen[1])


def test_a_result_that_does_not_fit_is_found_when_it_comes(drive):
    """For an operator, although nobody waits for it: not when somebody happens to ask."""

    async def body():
        await outlast.start_child(kid(1))
        await work(1)

    run = drive(body)
    request(run, run.command())
    run.deliver(ChildStarted("r:1"))
    with pytest.raises(DecodeError):
        ended(run, value="text")


def test_a_child_that_was_not_requested_is_given_up_by_a_cancel(drive):
    """Nothing was sent, so nothing is: no child, no cancel."""

    async def body():
        task = asyncio.create_task(outlast.run_child(kid(1)))
        await work(1)
        task.cancel()
        await work(2)

    run = drive(body)
    child, first = run.commands()
    assert isinstance(child, StartChild)
    run.done(first.operation, 1)
    (second,) = run.commands()
    assert second.name == "work"
    assert not run.machine.is_open("r:1")


def test_a_cancelled_wait_is_sent_on_and_ends_with_the_child(drive):
    """One cancel, under an id that takes no number; the wait goes on until the end is recorded, whatever it is."""

    async def body():
        task = asyncio.create_task(outlast.run_child(kid(1)))
        await work(1)
        task.cancel()
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return await work(2)

    run = drive(body)
    child, first = run.commands()
    request(run, child)
    run.done(first.operation, 1)
    cancel = run.command()
    assert isinstance(cancel, SendMessage)
    assert (cancel.operation, cancel.kind, cancel.run_id) == ("r:1/cancel", "cancel", "run-1/r:1")
    assert cancel.child == "r:1"
    run.deliver(MessageSent("r:1/cancel", "", "run-1/r:1", "cancel", Raw(cancel.value)))
    assert run.command() == AwaitRun("r:1/cancel", "run-1/r:1")
    run.deliver(MessageAnswered("r:1/cancel"))
    assert run.commands() == []
    ended(run, value=1)
    assert run.command().operation == "r:3"
    assert stand(run.again()).operations.keys() == {"r:3"}


def test_a_cancel_that_was_not_sent_when_the_child_ended_is_not_sent(drive):
    """In one commit: what cancels the wait, then the end of the child. Live and in replay the same."""

    async def body():
        task = asyncio.create_task(outlast.run_child(kid(1)))
        await work(1)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return await work(2)

    run = drive(body)
    child, first = run.commands()
    request(run, child)
    run.deliver(StepCompleted(first.operation, "work", Raw(b"1")))
    ended(run, value=1)
    assert [one.operation for one in run.commands()] == ["r:3"]
    assert stand(run.again()).operations.keys() == {"r:3"}


def test_a_cancel_that_is_owed_holds_up_the_end(drive):
    """The body has returned; the child is to be asked to stop before the run is over."""

    async def body():
        task = asyncio.create_task(outlast.run_child(kid(1), parent_close="abandon"))
        await work(1)
        task.cancel()
        return "over"

    run = drive(body)
    child, first = run.commands()
    request(run, child)
    run.done(first.operation, 1)
    cancel = run.command()
    assert cancel.operation == "r:1/cancel"
    assert run.again().command() == cancel
    run.deliver(MessageSent("r:1/cancel", "", "run-1/r:1", "cancel", Raw(cancel.value)))
    waits, finish = run.commands()
    assert waits == AwaitRun("r:1/cancel", "run-1/r:1")
    assert isinstance(finish, Finish)
    run.deliver(run.machine.outcome)
    assert run.machine.closed is not None
    run.again()


def test_the_end_of_the_body_leaves_children_to_the_store(drive):
    """No command gives up an open child: its row must be there when the run closes."""

    async def body():
        await outlast.start_child(kid(1))
        return 1

    run = drive(body)
    request(run, run.command())
    run.deliver(ChildStarted("r:1"))
    assert run.commands() == [Finish(run.machine.outcome)]
    # What was told in the same change as the end changes nothing any more.
    ended(run, value=1)
    run.deliver(Completed(Raw(b"1")))
    run.again()


def test_a_shielded_child_knows_nothing_of_a_cancel(drive):
    """Only the shield ends."""

    async def body():
        task = asyncio.create_task(outlast.run_child(kid(1)))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(task), 5)
        return await task

    run = drive(body)
    child, timer = run.commands()
    assert isinstance(timer, StartTimer)
    request(run, child)
    run.fire(timer.operation)
    assert run.commands() == []
    ended(run, value=2)
    assert run.result() == 2


def test_leaving_memory_sends_nothing(drive):
    """Clean-up that cancels, asks or waits reaches no other run."""

    async def body():
        child = await outlast.start_child(kid(1))
        try:
            await child.result()
        finally:
            await child.cancel()
            await child.result()
            await outlast.run_handle("x").send(go, 1)

    run = drive(body)
    request(run, run.command())
    run.deliver(ChildStarted("r:1"))
    run.machine.evict()
    assert run.commands() == []
    assert run.machine.pinned == 0
    gc.collect()


def test_a_message_is_sent_and_answered(drive):
    """The value is that of the signal's type; a refusal raises with what the relay found."""

    async def body():
        other = outlast.run_handle("x")
        await other.send(go, 5)
        await other.send("free", {"a": 1})
        try:
            await other.cancel("why")
        except RunNotFoundError as error:
            return error.message

    run = drive(body)
    for operation, name, value in (("r:1", "go", b"5"), ("r:2", "free", b'{"a":1}')):
        command = run.command()
        assert command == SendMessage(operation, name, "x", "signal", value, "")
        run.deliver(MessageSent(operation, name, "x", "signal", Raw(value)))
        assert run.command() == AwaitRun(operation, "x")
        run.deliver(MessageAnswered(operation))
    command = run.command()
    assert json.loads(command.value) == {"by": "run run-1", "reason": "why"}
    run.deliver(MessageSent("r:3", "", "x", "cancel", Raw(command.value)))
    run.deliver(MessageAnswered("r:3", capture(RunNotFoundError("nobody", run="x"))))
    assert run.result() == "nobody"
    run.again()


def test_a_watched_run_ends(drive):
    """Plain data without a workflow, its type with one; nothing is sent when the wait is given up."""

    async def body():
        plain = await outlast.run_handle("x").result()
        typed = await outlast.run_handle("y", kid).result()
        return [plain, typed]

    run = drive(body)
    assert run.command() == WatchRun("r:1", "x")
    run.deliver(WatchRequested("r:1", "x"))
    assert run.command() == AwaitRun("r:1", "x")
    ended(run, value={"a": [1]})
    run.command()
    run.deliver(WatchRequested("r:2", "y"))
    ended(run, "r:2", value=7)
    assert run.result() == [{"a": [1]}, 7]
    run.again()


def test_a_watch_that_is_given_up_is_taken_back(drive):
    """Once it was requested, and in replay too, when nobody knows whether that was done; what comes late changes nothing."""

    async def body():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(outlast.run_handle("x").result(), 5)
        return await work(1)

    run = drive(body)
    timer, watch = run.commands()
    run.deliver(WatchRequested(watch.operation, "x"))
    run.commands()
    run.fire(timer.operation)
    given_up, step = run.commands()
    assert given_up == Abandon(watch.operation)
    assert Abandon(watch.operation) in run.again().commands()
    ended(run, watch.operation, value=1)
    run.done(step.operation, 1)
    assert run.result() == 1
    run.again()


def test_entries_that_code_cannot_see_let_no_code_run(drive):
    """A condition over the time would give up the child whose request is the next entry of the commit."""

    async def body():
        start = outlast.now()
        task = asyncio.create_task(outlast.run_child(kid(1)))
        await outlast.wait_condition(lambda: outlast.now() > start)
        task.cancel()

    run = drive(body)
    child = run.command()
    run.now = run.now.replace(hour=5)
    request(run, child)
    assert run.machine.outcome is None
    assert run.machine.is_open("r:1")


WRONG = {
    "name": (lambda: outlast.run_child(kid(1)), ChildRequested("r:1", "other", "run-1/r:1", Raw(b"{}"), "cancel")),
    "id": (lambda: outlast.run_child(kid(1), id="a"), ChildRequested("r:1", "kid", "b", Raw(b"{}"), "cancel")),
    "kind": (lambda: work(1), ChildRequested("r:1", "work", "b", Raw(b"{}"), "cancel")),
    "start": (lambda: work(1), ChildStarted("r:1")),
    "refusal": (lambda: work(1), ChildRefused("r:1", capture(ValueError()))),
    "end": (lambda: work(1), RunEnded("r:1", "x", "completed")),
    "watch": (lambda: outlast.run_handle("x").result(), WatchRequested("r:1", "y")),
    "message": (lambda: outlast.run_handle("x").send(go, 1), MessageSent("r:1", "stop", "x", "signal", Raw(b"1"))),
    "target": (lambda: outlast.run_handle("x").send(go, 1), MessageSent("r:1", "go", "y", "signal", Raw(b"1"))),
    "answer": (lambda: work(1), MessageAnswered("r:1")),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_the_code_does_not_ask_for_is_refused(drive, what):
    """Another workflow, id, target, signal or kind of operation than the journal holds: both sides are shown."""
    call, entry = WRONG[what]

    async def body():
        await call()

    run = drive(body)
    with pytest.raises(NonDeterminismError, match="journal entry 2"):
        run.deliver(entry)
    run.machine.evict()


@pytest.mark.parametrize("kind", [ChildRequested, MessageSent, WatchRequested])
def test_a_request_of_what_was_given_up_is_refused(drive, kind):
    """Requests come first in a commit, so that this cannot be; a journal that says so was written by other code."""

    async def body():
        calls = [outlast.run_child(kid(1)), outlast.run_handle("x").send(go, 1)]
        tasks = [asyncio.create_task(one) for one in (*calls, outlast.run_handle("x").result())]
        await work(1)
        for task in tasks:
            task.cancel()
        await work(2)

    run = drive(body)
    operations = {type(one): one.operation for one in run.commands()}
    run.done("r:2", 1)
    entry = {
        ChildRequested: ChildRequested("r:1", "kid", "run-1/r:1", Raw(b"{}"), "cancel"),
        MessageSent: MessageSent(operations[SendMessage], "go", "x", "signal", Raw(b"1")),
        WatchRequested: WatchRequested(operations[WatchRun], "x"),
    }[kind]
    with pytest.raises(NonDeterminismError, match="gave up before it was made"):
        run.deliver(entry)
    run.machine.evict()


def test_a_child_that_is_never_awaited_warns(drive):
    """The call did not happen; the warning says what to write."""

    async def body():
        outlast.run_child(kid(1))
        gc.collect()

    with pytest.warns(RuntimeWarning, match=r"write `await outlast\.run_child\(kid\(…\)\)`"):
        drive(body)


def test_a_call_is_used_once(drive):
    """As that of a step."""

    async def body():
        call = outlast.run_child(kid(1))
        task = asyncio.create_task(call)
        await call
        await task

    failure = drive(body).failure()
    assert failure.type == "outlast.errors.DefinitionError"
    assert "used twice" in failure.message


def test_a_child_of_a_plain_callback_has_an_id_too(drive):
    """Callbacks have a tilde in their path, which no run id may hold."""

    async def body():
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def begin():
            task = loop.create_task(outlast.run_child(kid(1)))
            task.add_done_callback(lambda one: done.set_result(one.result()))

        loop.call_soon(begin)
        return await done

    run = drive(body)
    command = run.command()
    assert (command.operation, command.run_id) == ("r~:1", "run-1/r-:1")
    request(run, command)
    ended(run, "r~:1", value=2)
    assert run.result() == 2
