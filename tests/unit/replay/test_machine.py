"""The machine: what each entry does, what each request commands, cancels, equal effects, approvals, messages, ends, eviction."""

# ruff: noqa: D102, D103

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from msgspec import Raw

import outlast
from outlast.effects.retry import RetryPolicy
from outlast.errors import (
    ApprovalDeniedError,
    ApprovalExpiredError,
    ApprovalMismatchError,
    ApprovalSpentError,
    DecodeError,
    DefinitionError,
    NonDeterminismError,
    RepeatedEffectError,
    StepFailedError,
)
from outlast.journal.entry import (
    AlarmRaised,
    ApprovalDecided,
    ApprovalExpired,
    ApprovalRequested,
    Cancelled,
    CancelRequested,
    Completed,
    EffectCleared,
    EffectCompleted,
    EffectFailed,
    EffectInDoubt,
    EffectIntended,
    EffectRefused,
    Failed,
    GrantUse,
    MessageReceived,
    Started,
    StepCompleted,
    StepFailed,
    Taken,
    TimerFired,
)
from outlast.journal.failure import capture
from outlast.replay.command import (
    Abandon,
    AwaitDecision,
    Finish,
    IntendEffect,
    RequestApproval,
    RunStep,
    SettleEffect,
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


class Body:
    """A workflow of any coroutine function; its result is stored as JSON."""

    name = "body"

    def __init__(self, function: Any):
        self.function = function

    def start(self, arguments: bytes) -> Any:
        return self.function()

    def encode(self, value: Any) -> bytes:
        return json.dumps(value, default=str).encode()


class Run:
    """A machine with a journal that a test writes."""

    def __init__(self, program: Any, arguments: bytes = b"{}"):
        self.program = program if hasattr(program, "encode") else Body(program)
        self.machine = Machine(self.program, tenant="default", run_id="run-1")
        self.now = EPOCH
        self.journal: list[tuple[list[Any], datetime]] = []
        self.serial = 0
        self.deliver(Started("body", Raw(arguments), b"0123456789abcdef", "run-1"))
        self.deliver(Taken("3.11", "0"))

    def deliver(self, *turn: Any) -> None:
        self.journal.append((list(turn), self.now))
        self.machine.deliver(turn, self.now)

    def commands(self) -> list[Any]:
        return self.machine.take_commands()

    def command(self) -> Any:
        [command] = self.machine.take_commands()
        return command

    def name(self, operation: str) -> str:
        return self.machine.find(operation).request.name

    def done(self, operation: str, value: Any = None) -> None:
        kind = (
            StepCompleted
            if type(self.machine.find(operation)).__name__ == "StepOperation"
            else EffectCompleted
        )
        self.deliver(kind(operation, self.name(operation), Raw(json.dumps(value).encode())))

    def failed(self, operation: str, error: BaseException) -> None:
        kind = (
            StepFailed
            if type(self.machine.find(operation)).__name__ == "StepOperation"
            else EffectFailed
        )
        self.deliver(kind(operation, self.name(operation), capture(error)))

    def intend(self, command: IntendEffect) -> None:
        raw = Raw(command.arguments)
        self.deliver(
            EffectIntended(
                command.operation,
                command.name,
                "key",
                raw,
                raw,
                command.action_sha256,
                command.number,
            )
        )

    def fire(self, operation: str) -> None:
        self.deliver(TimerFired(operation))

    def message(self, name: str, value: Any) -> MessageReceived:
        self.serial += 1
        return MessageReceived(f"m{self.serial}", name, Raw(json.dumps(value).encode()))

    def request(self, command: RequestApproval) -> AwaitDecision:
        self.deliver(
            ApprovalRequested(
                command.operation,
                command.approval_id,
                command.role,
                command.subject,
                command.subject_sha256,
                command.covers,
                self.now + command.expires_in,
                self.now + command.use_within,
            )  # fmt: skip
        )
        return self.command()

    def decide(self, command: RequestApproval, *, approved: bool = True) -> None:
        self.deliver(
            ApprovalDecided(
                command.operation,
                command.approval_id,
                approved,
                "ann",
                "why",
                command.subject_sha256,
                self.now,
            )
        )

    def cancel(self) -> None:
        self.deliver(CancelRequested())

    def result(self) -> Any:
        """Return the value that the run returned."""
        outcome = self.machine.outcome
        assert isinstance(outcome, Completed), outcome
        return json.loads(bytes(outcome.value))

    def failure(self) -> Any:
        outcome = self.machine.outcome
        assert isinstance(outcome, Failed), outcome
        return outcome.failure

    def again(self, program: Any = None) -> Run:
        """Return a replay of the journal, under other code if given."""
        run = Run.__new__(Run)
        run.program = (
            self.program
            if program is None
            else program
            if hasattr(program, "encode")
            else Body(program)
        )
        run.machine = Machine(run.program, tenant="default", run_id="run-1")
        run.now, run.journal, run.serial = self.now, list(self.journal), self.serial
        for turn, at in self.journal:
            run.machine.deliver(turn, at)
        return run


# Steps, timers, time and randomness


def test_step_is_commanded_and_returns_its_outcome():
    """A step becomes a command with its arguments; its entry is what the workflow gets, decoded."""

    async def body():
        return await work(1) + await work(n=2)

    run = Run(body)
    assert run.command() == RunStep(operation="r:1", name="work", arguments=b'{"n":1}')
    assert run.commands() == []
    run.done("r:1", 10)
    assert run.command() == RunStep(operation="r:2", name="work", arguments=b'{"n":2}')
    run.done("r:2", 20)
    assert run.command() == Finish(outcome=Completed(Raw(b"30")))
    assert run.commands() == []


def test_nothing_runs_before_the_run_is_taken():
    """A started run does nothing until a worker takes it; its time begins then, once."""
    seen: list[Any] = []

    async def body():
        seen.append((outlast.now(), outlast.info().started_at, outlast.info().entries))
        await work(1)

    machine = Machine(Body(body), tenant="t", run_id="r", generation=3)
    machine.deliver([Started("body", Raw(b"{}"), b"seed", "r")], EPOCH)
    assert seen == []
    later = EPOCH + timedelta(hours=5)
    machine.deliver([Taken("3.11", "0")], later)
    machine.deliver([Taken("3.11", "0")], later + timedelta(hours=1))
    assert seen == [(later, later, 2)]


def test_info_names_the_run():
    """`info()` tells tenant, run, workflow, generation and the length of the journal."""

    async def body():
        await work(1)
        return msgspec.to_builtins(outlast.info())

    run = Run(body)
    run.done("r:1", 1)
    assert run.result() == {
        "tenant": "default",
        "run_id": "run-1",
        "workflow": "body",
        "generation": 1,
        "started_at": "2030-01-01T00:00:00Z",
        "entries": 3,
    }


def test_step_failure_arrives_as_itself_or_as_step_failed():
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

    run = Run(body)
    run.failed("r:1", OwnError("mine"))
    run.failed("r:2", ValueError("python's"))
    run.failed("r:3", ForeignError("theirs"))
    assert seen[:2] == [(OwnError, "mine"), (ValueError, "python's")]
    assert seen[2][0] is StepFailedError


def test_step_that_was_cancelled_by_itself_is_cancelled():
    """A step that ended in `CancelledError` cancels who awaits it, and the run goes on if that is caught."""

    async def body():
        try:
            await work(1)
        except asyncio.CancelledError:
            return "caught"

    run = Run(body)
    run.failed("r:1", asyncio.CancelledError())
    assert run.result() == "caught"


def test_timer_is_due_by_the_time_of_the_turn_that_started_it():
    """A sleep is a timer whose due time is recomputed in replay, and whose end is an entry."""

    async def body():
        await outlast.sleep(timedelta(minutes=1))
        await asyncio.sleep(0.5)
        return outlast.now()

    run = Run(body)
    assert run.command() == StartTimer(operation="r:1", due=EPOCH + timedelta(minutes=1))
    run.now += timedelta(minutes=2)
    run.fire("r:1")
    assert run.command() == StartTimer(
        operation="r:2", due=EPOCH + timedelta(minutes=2, seconds=0.5)
    )
    assert run.again().command().due == EPOCH + timedelta(minutes=2, seconds=0.5)
    run.now += timedelta(seconds=1)
    run.fire("r:2")
    assert run.result() == "2030-01-01 00:02:01+00:00"


def test_time_never_goes_back():
    """A turn with an earlier time leaves the run's time where it is."""

    async def body():
        await work(1)
        return outlast.now()

    run = Run(body)
    run.now -= timedelta(hours=1)
    run.done("r:1", 1)
    assert run.result() == "2030-01-01 00:00:00+00:00"


def test_random_values_belong_to_the_task_and_its_count():
    """Generators differ by task and count, and a draw in one branch changes none in another."""

    async def draw(times: int) -> list[str]:
        return [str(outlast.uuid4()) for _ in range(times)]

    def body(first: int):
        async def inner():
            return await asyncio.gather(draw(first), draw(2))

        return inner

    one, two = Run(body(1)).result(), Run(body(3)).result()
    assert one[1] == two[1]
    assert one[0] == two[0][:1]
    assert len({*two[0], *two[1]}) == 5


def test_cancelled_step_is_abandoned_and_its_late_outcome_ignored():
    """A timeout round a step gives it up at once; what comes of it later changes nothing."""

    async def body():
        try:
            async with asyncio.timeout(1):
                await work(1)
        except TimeoutError:
            return await work(2)

    run = Run(body)
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


def test_timer_that_is_not_needed_is_abandoned():
    """An outcome in time takes the timer back; a timer that fires nevertheless changes nothing."""

    async def body():
        async with asyncio.timeout(1):
            await work(1)
        return await work(2)

    run = Run(body)
    run.commands()
    run.done("r:2", 1)
    assert run.commands()[0] == Abandon(operation="r:1")
    run.fire("r:1")
    assert run.machine.is_open("r:3")


# Effects


def test_effect_is_intended_then_settled():
    """Before its intent is recorded, an effect only asks; after it, there is a command until the outcome."""

    async def body():
        return await pay(5)

    run = Run(body)
    command = run.command()
    assert isinstance(command, IntendEffect)
    assert (command.name, command.number, command.grant, command.match_sha256) == (
        "pay",
        1,
        None,
        "",
    )
    run.intend(command)
    settle = run.command()
    assert isinstance(settle, SettleEffect)
    assert settle.intent.key == "key"
    assert run.again().command() == settle
    run.done("r:1", 99)
    assert run.result() == 99


def test_refused_effect_raises():
    """A refusal by the gate or the store is the call's outcome, and nothing was intended."""

    async def body():
        await pay(5)

    run = Run(body)
    run.deliver(EffectRefused("r:1", "pay", capture(ApprovalMismatchError("no"))))
    assert run.failure().type == "outlast.errors.ApprovalMismatchError"
    assert run.machine.take_commands()[-1] == Finish(outcome=run.machine.outcome)


def test_effect_in_doubt_waits_for_an_operator():
    """In doubt there is nothing to do; cleared, it is settled again; siblings go on meanwhile."""

    async def body():
        return await asyncio.gather(pay(5), work(1))

    run = Run(body)
    intend, _ = run.commands()
    run.intend(intend)
    run.commands()
    run.deliver(EffectInDoubt("r:1", "pay", "lost"))
    assert run.machine.in_doubt == {"r:1": "lost"}
    assert [type(one) for one in run.again().commands()] == [RunStep]
    run.done("r:2", 1)
    assert run.commands() == []
    run.deliver(EffectCleared("r:1", "pay"))
    assert run.machine.in_doubt == {}
    assert isinstance(run.command(), SettleEffect)
    run.done("r:1", 2)
    assert run.result() == [2, 1]


def test_cancel_of_an_unintended_effect_drops_it():
    """What was not intended never happens."""

    async def body():
        async with asyncio.timeout(1):
            await pay(5)

    run = Run(body)
    run.commands()
    run.fire("r:1")
    assert run.commands()[0] == Abandon(operation="r:2")
    assert run.failure().type == "TimeoutError"


def test_cancel_of_an_intended_effect_is_raised_after_its_outcome():
    """Nothing interrupts an effect whose intent is recorded: the wait ends with its outcome, then raises."""
    seen: list[str] = []

    async def body():
        try:
            async with asyncio.timeout(1):
                await pay(5)
        except TimeoutError:
            seen.append("timeout")
            await work(1)

    run = Run(body)
    [_, intend] = run.commands()
    run.intend(intend)
    run.fire("r:1")
    assert seen == []
    assert [type(one) for one in run.commands()] == [SettleEffect]
    run.done("r:2", 1)
    assert seen == ["timeout"]
    assert run.again().commands() == run.commands()


def test_cancel_of_the_run_waits_for_an_intended_effect():
    """A cancelled run ends once its effect has an outcome, whatever that is."""

    async def body():
        await pay(5)

    run = Run(body)
    run.intend(run.command())
    run.commands()
    run.cancel()
    assert run.machine.outcome is None
    run.failed("r:1", ValueError("not paid"))
    assert isinstance(run.machine.outcome, Cancelled)


def test_end_of_the_body_waits_for_intended_effects():
    """The run does not finish while an effect that the body left behind is unsettled; the unintended is dropped."""

    async def body():
        asyncio.create_task(pay(1))
        asyncio.create_task(pay(2))
        await work(1)
        return "done"

    run = Run(body)
    first, second, _ = run.commands()
    run.intend(first)
    run.commands()
    run.done("r:3", 1)
    assert run.machine.outcome == Completed(Raw(b'"done"'))
    assert run.commands() == [Abandon(operation=second.operation)]
    run.done("r:1", 1)
    assert run.command() == Finish(outcome=run.machine.outcome)


def test_equal_calls_in_flight_are_one():
    """An equal call waits for the first one's outcome; both get it."""

    async def body():
        return await asyncio.gather(pay(5), pay(5), pay(6))

    run = Run(body)
    first, third = run.commands()
    assert [first.operation, third.operation] == ["r:1", "r:3"]
    run.intend(first)
    run.done("r:1", 10)
    run.intend(third)
    run.done("r:3", 20)
    assert run.result() == [10, 10, 20]


def test_equal_calls_share_a_failure():
    """The failure of the first is the failure of all who joined."""

    async def body():
        values = await asyncio.gather(pay(5), pay(5), return_exceptions=True)
        return [type(value).__name__ for value in values]

    run = Run(body)
    run.intend(run.command())
    run.failed("r:1", ValueError("no"))
    assert run.result() == ["ValueError", "ValueError"]


def test_an_effect_lives_while_an_equal_call_waits():
    """When the first caller gives up before the intent, the effect goes on for the second; when both do, it is dropped."""

    async def body():
        tasks = [asyncio.create_task(pay(5)), asyncio.create_task(pay(5))]
        for task in tasks:
            await outlast.sleep(1)
            task.cancel()
        await outlast.sleep(1)

    run = Run(body)
    run.commands()
    run.fire("r:3")
    assert run.machine.is_open("r:1")
    run.commands()
    run.fire("r:4")
    assert Abandon(operation="r:1") in run.commands()


def test_a_call_that_joins_an_intended_effect_cannot_be_cancelled_either():
    """Whoever waits for an intended effect waits for its outcome."""
    ended: list[str] = []

    async def body():
        first = asyncio.create_task(pay(5))
        await work(1)
        second = asyncio.create_task(pay(5))
        second.add_done_callback(lambda _: ended.append("second"))
        await work(2)
        second.cancel()
        await asyncio.wait([first, second])
        return [first.cancelled(), second.cancelled()]

    run = Run(body)
    intend = run.commands()[0]
    run.intend(intend)
    run.done("r:2", 1)
    run.done("r:4", 1)
    assert ended == []
    run.done("r:1", 1)
    assert run.result() == [False, True]


def test_an_equal_call_after_a_success_is_refused():
    """A second purpose needs `repeats=True`: the error is raised without a command."""

    async def body():
        await pay(5)
        with pytest.raises(RepeatedEffectError) as caught:
            await pay(5)
        return [caught.value.operation, caught.value.step]

    run = Run(body)
    run.intend(run.command())
    run.commands()
    run.done("r:1", 1)
    assert run.result() == ["r:2", "pay"]
    assert [type(one) for one in run.commands()] == [Finish]


def test_repeats_are_numbered_by_success():
    """With `repeats=True` a call after a success is the next one; after a failure or a refusal it keeps its number."""
    numbers: list[int] = []

    async def body():
        for _ in range(4):
            with suppress(ValueError):
                await tick(5)

    run = Run(body)
    for operation, end in (("r:1", "done"), ("r:2", "failed"), ("r:3", "refused"), ("r:4", "done")):
        command = run.command()
        numbers.append(command.number)
        if end == "refused":
            run.deliver(EffectRefused(operation, "tick", capture(ValueError())))
            continue
        run.intend(command)
        run.commands()
        run.done(operation, 1) if end == "done" else run.failed(operation, ValueError())
    assert numbers == [1, 2, 2, 2]


def test_key_on_narrows_what_equal_means():
    """Parameters outside `key_on` make no second purpose."""

    async def send(invoice: str, note: str) -> int:
        return 1

    rules = EffectOptions(idempotent=True, key_on=("invoice",))
    mail = Effect(send, "mail", AttemptOptions(RetryPolicy()), rules)

    async def body():
        return await asyncio.gather(mail("i1", "a"), mail("i1", "b"), mail("i2", "a"))

    assert [one.operation for one in Run(body).commands()] == ["r:1", "r:3"]


# Approvals


def ask(*covers: Any, **more: Any) -> Any:
    return outlast.approval(
        {"sum": 5}, covers=covers, role="boss", expires_in=timedelta(hours=1), **more
    )


def test_approval_is_requested_awaited_and_granted():
    """The request carries subject, covers and times; a yes is a grant, and the covered call spends its cover."""

    async def body():
        grant = await ask(pay(5), use_within=timedelta(hours=2))
        return [grant.by, grant.reason, grant.use_by, await pay(5)]

    run = Run(body)
    command = run.command()
    assert isinstance(command, RequestApproval)
    assert (command.approval_id, command.role) == ("1~r:1", "boss")
    assert (command.expires_in, command.use_within) == (timedelta(hours=1), timedelta(hours=2))
    assert json.loads(bytes(command.subject))["subject"] == {"sum": 5}
    waiting = run.request(command)
    assert waiting == AwaitDecision(
        operation="r:1", approval_id="1~r:1", expires_at=EPOCH + timedelta(hours=1)
    )
    run.decide(command)
    intend = run.command()
    assert intend.grant == GrantUse("1~r:1", 0)
    assert intend.match_sha256 == intend.action_sha256
    run.intend(intend)
    run.done("r:2", 9)
    assert run.result() == ["ann", "why", "2030-01-01 02:00:00+00:00", 9]


def test_pattern_covers_fitting_calls_only():
    """A pattern covers one call that fits it; another call of the effect is refused."""

    async def body():
        await ask(pay.where(n=5))
        with pytest.raises(ApprovalMismatchError):
            await pay(6)
        await pay(5)

    run = Run(body)
    request = run.command()
    run.request(request)
    run.decide(request)
    intend = run.command()
    assert intend.operation == "r:3"
    assert intend.match_sha256
    assert intend.match_sha256 != intend.action_sha256


def test_a_call_covers_exactly_its_arguments():
    """A granted call covers no other call of the effect, and a pattern of two fields covers what fits both."""

    async def move(account: str, amount: int) -> int:
        return 1

    transfer = make_effect("transfer", function=move)

    def body(cover: Any):
        async def inner():
            await ask(cover)
            for account, amount in (("a", 2), ("b", 1), ("b", 2)):
                with pytest.raises(ApprovalMismatchError):
                    await transfer(account, amount)
            await transfer("a", 1)

        return inner

    for cover in (transfer("a", 1), transfer.where(account="a", amount=1)):
        run = Run(body(cover))
        request = run.command()
        run.request(request)
        run.decide(request)
        assert run.command().operation == "r:5"


def test_a_grant_is_spent_once():
    """A second call under the same cover is refused, also with `repeats=True`; two covers are two uses."""

    def body(*covers: Any):
        async def inner():
            await ask(*covers)
            await tick(5)
            await tick(5)

        return inner

    for covers, failure in (((tick(5),), ApprovalSpentError), ((tick(5), tick(5)), None)):
        run = Run(body(*covers))
        request = run.command()
        run.request(request)
        run.decide(request)
        run.intend(run.command())
        run.commands()
        run.done("r:2", 1)
        if failure:
            assert run.failure().type == "outlast.errors.ApprovalSpentError"
        else:
            assert run.command().grant == GrantUse("1~r:1", 0)


def test_the_newest_grant_is_spent_first():
    """An earlier grant that was never used, and may be over by now, does not stand in the way of a new one."""

    async def body():
        await ask(tick(5))
        await ask(tick.where(n=5))
        await ask(tick(5))
        for _ in range(3):
            await tick(5)

    run = Run(body)
    for _ in range(3):
        request = run.command()
        run.request(request)
        run.decide(request)
    spent = []
    for operation in ("r:4", "r:5", "r:6"):
        intend = run.command()
        spent.append(intend.grant.approval_id)
        run.intend(intend)
        run.commands()
        run.done(operation, 1)
    assert spent == ["1~r:3", "1~r:1", "1~r:2"]


def test_a_long_error_is_cut():
    """Thousands of open operations, or megabytes of arguments, do not become one message."""

    async def long(text: str) -> int:
        return 1

    effect = make_effect("pay", function=long)

    def body(letter: str):
        async def inner():
            await asyncio.gather(effect(letter * 100_000), *(work(n) for n in range(100)))

        return inner

    run = Run(body("a"))
    run.intend(run.commands()[0])
    with pytest.raises(NonDeterminismError, match="100,011 characters") as caught:
        run.again(body("b"))
    assert len(caught.value.message) < 5000
    with pytest.raises(NonDeterminismError, match="step work at r:10 and 91 more"):
        run.fire("r:300")


def test_a_cover_is_free_again_when_the_effect_was_never_intended():
    """A call that was given up, or refused, before its intent gives its cover back."""

    async def body():
        await ask(pay(5))
        with suppress(TimeoutError):
            await asyncio.wait_for(pay(5), 1)
        with suppress(ValueError):
            await pay(5)
        await pay(5)

    run = Run(body)
    request = run.command()
    run.request(request)
    run.decide(request)
    run.commands()
    run.fire("r:2")
    assert run.commands()[-1].grant == GrantUse("1~r:1", 0)
    run.deliver(EffectRefused("r:4", "pay", capture(ValueError())))
    assert run.command().grant == GrantUse("1~r:1", 0)


def test_a_covered_effect_is_refused_before_the_yes():
    """From the request on, calls of a covered effect need a grant: while nobody decided, they are refused."""

    async def body():
        asking = asyncio.create_task(ask(pay(5)))
        await work(1)
        with pytest.raises(ApprovalMismatchError):
            await pay(5)
        await asking

    run = Run(body)
    run.done("r:1", 1)
    assert run.machine.outcome is None


def test_denial_raises_and_covers_nothing():
    """A no is raised with who said it and why; the covered call stays refused."""

    async def body():
        with pytest.raises(ApprovalDeniedError) as caught:
            await ask(pay(5))
        with pytest.raises(ApprovalMismatchError):
            await pay(5)
        return [caught.value.by, caught.value.reason]

    run = Run(body)
    request = run.command()
    run.request(request)
    run.decide(request, approved=False)
    assert run.result() == ["ann", "why"]


@pytest.mark.parametrize("group", [False, True])
def test_expiry_cancels_the_run(group):
    """Uncaught, an approval that nobody gave ends the run as cancelled, also out of a TaskGroup."""

    async def body():
        if not group:
            await ask()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ask())

    run = Run(body)
    request = run.command()
    run.request(request)
    run.deliver(ApprovalExpired(request.operation, request.approval_id))
    assert isinstance(run.machine.outcome, Cancelled)
    failure = run.machine.outcome.failure
    expiry = failure.members[0] if group else failure
    assert "boss" in expiry.message
    assert "2030-01-01 01:00:00" in expiry.message


def test_expiry_beside_another_failure_fails_the_run():
    """A group that holds anything else than expiries is a failure."""

    async def body():
        async def spoil():
            try:
                await ask()
            except ApprovalExpiredError:
                raise ValueError from None

        asking = asyncio.gather(ask(), spoil(), return_exceptions=True)
        raise ExceptionGroup("both", await asking)

    run = Run(body)
    for request in run.commands():
        run.request(request)
    for operation in ("r.1:1", "r.2:1"):
        run.deliver(ApprovalExpired(operation, f"1~{operation}"))
    assert isinstance(run.machine.outcome, Failed)


def test_cancelled_request_is_withdrawn():
    """Given up after it was recorded, or recorded after it was given up, a request is withdrawn by its id."""

    async def body():
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                await ask()
        await work(1)

    run = Run(body)
    _, request = run.commands()
    run.request(request)
    run.fire("r:1")
    assert run.commands()[0] == Abandon(operation="r:2", approval_id="1~r:2")
    assert run.again().commands()[0] == Abandon(operation="r:2", approval_id="1~r:2")
    run.decide(request)
    assert run.machine.is_open("r:3")

    late = Run(body)
    _, request = late.commands()
    late.fire("r:1")
    assert late.commands()[0] == Abandon(operation="r:2", approval_id="1~r:2")
    assert late.request(request) == Abandon(operation="r:2", approval_id="1~r:2")


def test_request_for_something_else_is_non_determinism():
    """Another subject, cover or role under a recorded request stops the replay; a field that was added does not."""

    def body(subject: Any, cover: Any, role: str):
        async def inner():
            await outlast.approval(
                subject, covers=[cover], role=role, expires_in=timedelta(hours=1)
            )

        return inner

    async def pay_more(n: int, note: str = "") -> int:
        return n

    run = Run(body({"sum": 5}, pay(5), "boss"))
    run.request(run.command())
    run.again(body({"sum": 5, "currency": "EUR"}, make_effect("pay", function=pay_more)(5), "boss"))
    for subject, cover, role in (
        ({"sum": 6}, pay(5), "boss"),
        ({"sum": 5}, pay(6), "boss"),
        ({"sum": 5}, tick(5), "boss"),
        ({"sum": 5}, pay.where(n=5), "boss"),
        ({"sum": 5}, pay(5), "clerk"),
        ({}, pay(5), "boss"),
        ({"sum": True}, pay(5), "boss"),
    ):
        with pytest.raises(NonDeterminismError, match="approval request for something else"):
            run.again(body(subject, cover, role))


def test_decision_without_request_is_non_determinism():
    """A journal that decides what was never asked is not followed."""

    async def body():
        await ask()

    run = Run(body)
    with pytest.raises(NonDeterminismError, match="never asked"):
        run.decide(run.command())


@pytest.mark.parametrize(
    ("cover", "times"), [(work(1), {}), ("pay", {}), (None, {"use_within": timedelta(0)})]
)
def test_bad_approvals_are_refused(cover, times):
    """A cover that is no call of an effect, or a time that is over at once, is the author's error."""

    async def body():
        await ask(*([] if cover is None else [cover]), **times)

    assert Run(body).failure().type == "outlast.errors.DefinitionError"


# Messages


def test_messages_wait_for_the_workflow():
    """What came before the wait is there at once, in order; what comes later wakes it."""

    async def body():
        await work(1)
        return [await outlast.receive(go) for _ in range(3)]

    run = Run(body)
    run.deliver(run.message("go", 1), run.message("go", 2))
    run.done("r:1", 0)
    assert run.machine.awaited_signals == ["go"]
    run.deliver(run.message("stop", 9))
    run.deliver(run.message("go", 3))
    assert run.result() == [1, 2, 3]
    assert run.machine.awaited_signals == []


def test_receivers_are_served_in_order():
    """Each message goes to one receiver, the one that waited longest."""

    async def body():
        return await asyncio.gather(*(outlast.receive(go) for _ in range(3)))

    run = Run(body)
    run.deliver(run.message("go", 1), run.message("go", 2))
    run.deliver(run.message("go", 3))
    assert run.result() == [1, 2, 3]


def test_receive_times_out():
    """A receive with a timeout raises, and the message that comes later is for the next one."""

    async def body():
        with pytest.raises(TimeoutError):
            await outlast.receive(go, timeout=timedelta(seconds=5))
        return await outlast.receive(go, timeout=timedelta(seconds=5))

    run = Run(body)
    run.fire("r:1")
    assert run.machine.awaited_signals == ["go"]
    run.deliver(run.message("go", 7))
    assert run.result() == 7
    assert [one.operation for one in run.commands() if isinstance(one, Abandon)] == []


def test_a_message_that_stands_needs_no_time():
    """With a timeout of nothing, a message that came is returned, and a missing one raises."""

    async def body():
        await work(1)
        value = await outlast.receive(go, timeout=timedelta(0))
        with pytest.raises(TimeoutError):
            await outlast.receive(go, timeout=timedelta(0))
        return value

    run = Run(body)
    run.deliver(run.message("go", 1))
    run.done("r:1", 0)
    assert run.result() == 1


def test_cancelled_receive_leaves_nothing_behind():
    """After a hundred receives that were given up, nobody waits, and the next message is received."""

    async def body():
        for _ in range(100):
            task = asyncio.create_task(outlast.receive(go))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
        await work(1)
        return await outlast.receive(go)

    run = Run(body)
    assert run.machine.awaited_signals == []
    run.done("r:1", 0)
    run.deliver(run.message("go", 5))
    assert run.result() == 5


def test_a_receiver_cancelled_in_the_turn_of_its_message_passes_it_on():
    """A message whose receiver was cancelled before it could take it goes to the next one."""

    async def body():
        first = asyncio.create_task(outlast.receive(go))
        second = asyncio.create_task(outlast.receive(go))
        await outlast.receive(stop)
        first.cancel()
        return await second

    run = Run(body)
    run.deliver(run.message("stop", 0), run.message("go", 5))
    assert run.result() == 5


def test_a_receiver_whose_message_was_taken_waits_on():
    """Who was woken and finds the message gone waits for the next one."""

    async def body():
        waiting = asyncio.create_task(outlast.receive(go))
        await outlast.receive(stop)
        taken = await outlast.receive(go)
        return [taken, await waiting]

    run = Run(body)
    run.deliver(run.message("stop", 0), run.message("go", 1))
    assert run.machine.awaited_signals == ["go"]
    run.deliver(run.message("go", 2))
    assert run.result() == [1, 2]


def test_a_message_of_the_wrong_type_raises_at_the_receive():
    """What does not fit the signal's type is an error of that receive; the next message is received."""

    async def body():
        with pytest.raises(DecodeError):
            await outlast.receive(go)
        return await outlast.receive(go)

    run = Run(body)
    run.deliver(run.message("go", "no number"))
    run.deliver(run.message("go", 2))
    assert run.result() == 2


# Conditions


def test_condition_is_looked_at_after_all_messages_of_a_turn():
    """Three messages of one turn are all handled before the body goes on."""
    carried: list[int] = []

    async def body():
        async def collect():
            while True:
                carried.append(await outlast.receive(go))

        collector = asyncio.create_task(collect())
        await outlast.wait_condition(lambda: bool(carried))
        collector.cancel()
        return list(carried)

    run = Run(body)
    run.deliver(*(run.message("go", n) for n in (1, 2, 3)))
    assert run.result() == [1, 2, 3]


def test_condition_true_at_once_does_not_wait():
    """A condition that holds is no wait at all."""

    async def body():
        await outlast.wait_condition(lambda: True)
        return "on"

    assert Run(body).result() == "on"


def test_condition_times_out_and_is_forgotten():
    """A condition that never holds raises `TimeoutError`, and is not looked at any more."""
    looks: list[int] = []

    async def body():
        with pytest.raises(TimeoutError):
            await outlast.wait_condition(lambda: looks.append(1), timeout=timedelta(seconds=1))
        looks.clear()
        await work(1)
        await work(2)

    run = Run(body)
    run.fire("r:1")
    run.done("r:2", 1)
    assert looks == []
    assert len(run.machine._conditions) == 0


def test_condition_may_give_up_another():
    """A predicate that cancels the next waiter does not break the look."""

    async def body():
        waiting: list[asyncio.Task[None]] = []
        ready = {"yet": False}

        def first() -> bool:
            return ready["yet"] and waiting[1].cancel()

        waiting += [
            asyncio.create_task(outlast.wait_condition(first)),
            asyncio.create_task(outlast.wait_condition(lambda: ready["yet"])),
        ]
        await work(1)
        ready["yet"] = True
        await asyncio.wait(waiting)
        return [task.cancelled() for task in waiting]

    run = Run(body)
    run.done("r:1", 1)
    assert run.result() == [False, True]


def test_conditions_that_make_each_other_true_all_fire():
    """Conditions are looked at until none fires; each in the order in which it was waited for."""
    order: list[str] = []

    async def body():
        state = {"a": False, "b": False}

        async def wait(name: str, then: str):
            await outlast.wait_condition(lambda: state[name])
            order.append(name)
            state[then] = True

        async with asyncio.TaskGroup() as group:
            group.create_task(wait("b", "c"))
            group.create_task(wait("a", "b"))
            await work(1)
            state["a"] = True

    run = Run(body)
    run.done("r:1", 1)
    assert order == ["a", "b"]
    assert isinstance(run.machine.outcome, Completed)


def test_condition_that_raises_raises_where_it_is_waited_for():
    """The error of a predicate belongs to who waits."""

    async def body():
        broken = {"yet": False}
        waiting = asyncio.create_task(
            outlast.wait_condition(lambda: 1 / 0 if broken["yet"] else False)
        )
        await work(1)
        broken["yet"] = True
        await asyncio.wait([waiting])
        return type(waiting.exception()).__name__

    run = Run(body)
    run.done("r:1", 1)
    assert run.result() == "ZeroDivisionError"


def test_intents_of_one_commit_are_not_seen_between():
    """A condition over the time cannot give up an effect between two intents that one commit recorded."""

    async def body():
        due = outlast.now() + timedelta(seconds=1)
        tasks = [asyncio.create_task(pay(n)) for n in (1, 2)]
        await outlast.wait_condition(lambda: outlast.now() > due)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        return [task.cancelled() for task in tasks]

    run = Run(body)
    first, second = run.commands()
    run.now += timedelta(seconds=5)
    run.intend(first)
    run.intend(second)
    run.done("r:1", 1)
    run.done("r:2", 1)
    assert run.result() == [False, True]


# How runs end


def test_exception_is_the_failure_of_the_run():
    """What the body raises is the run's failure, with its type, message and notes."""

    async def body():
        error = OwnError("broken")
        error.add_note("look here")
        raise error

    failure = Run(body).failure()
    assert failure.type.endswith("OwnError")
    assert (failure.message, failure.notes) == ("broken", ("look here",))


def test_exception_group_keeps_its_members():
    """A TaskGroup's failures are all kept."""

    async def body():
        async def fail(error: Exception):
            await work(1)
            raise error

        async with asyncio.TaskGroup() as group:
            group.create_task(fail(ValueError("one")))
            group.create_task(work(2))

    run = Run(body)
    run.done("r.1:1", 1)
    failure = run.failure()
    assert [(one.type, one.message) for one in failure.members] == [("ValueError", "one")]


def test_result_that_cannot_be_stored_fails_the_run():
    """A result of another type than annotated is the run's failure, with the path in it."""

    async def flow(n: int) -> int:
        return "seven" if n == 7 else n  # type: ignore[return-value]

    workflow = Workflow(flow)
    assert "result of workflow flow" in Run(workflow, b'{"n":7}').failure().message
    assert Run(workflow, b'{"n":8}').result() == 8


def test_arguments_that_do_not_fit_stop_the_machine_and_not_the_run():
    """Recorded arguments that today's types refuse are for an operator: no outcome is reached."""

    async def flow(n: int) -> int:
        return n

    with pytest.raises(DecodeError):
        Run(Workflow(flow), b'{"n":"seven"}')


def test_recorded_value_that_does_not_fit_stops_the_machine():
    """The same for a step's outcome under a changed annotation."""

    async def body():
        await work(1)

    run = Run(body)
    with pytest.raises(DecodeError):
        run.done("r:1", "no number")


def test_cancel_runs_clean_up_and_ends_as_cancelled():
    """A cancelled run may still call steps in `finally`."""

    async def body():
        try:
            await outlast.receive(go)
        finally:
            await work(1)

    run = Run(body)
    run.cancel()
    assert isinstance(run.command(), RunStep)
    run.done("r:1", 1)
    assert isinstance(run.machine.outcome, Cancelled)
    assert run.command() == Finish(outcome=run.machine.outcome)


def test_cancel_before_anything_ran():
    """A cancel in the first turn after the start ends the run."""

    async def body():
        await work(1)

    run = Run(body)
    run.cancel()
    run.cancel()
    assert isinstance(run.machine.outcome, Cancelled)


def test_a_body_that_catches_the_cancel_completes():
    """A cancel is a request: who catches it decides."""

    async def body():
        try:
            await outlast.receive(go)
        except asyncio.CancelledError:
            return "stayed"

    run = Run(body)
    run.cancel()
    assert run.result() == "stayed"


def test_failing_callback_fails_the_run():
    """An exception in a plain callback is the failure of the run: nobody else would see it."""

    async def body():
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        await work(1)

    run = Run(body)
    assert run.failure().type == "ZeroDivisionError"
    assert [type(one) for one in run.commands()] == [Finish]


def test_exit_ends_the_run_and_not_the_process():
    """`sys.exit()` in a workflow fails the run."""

    async def body():
        await work(1)
        sys.exit(3)

    run = Run(body)
    run.done("r:1", 1)
    assert run.failure().type == "SystemExit"


def test_spinning_fails_the_run(monkeypatch):
    """A workflow that never waits for anything durable fails, and says so."""
    monkeypatch.setattr("outlast.replay.loop.SPIN_LIMIT", 1000)

    async def body():
        while True:
            await asyncio.sleep(0)

    assert "without waiting" in Run(body).failure().message


def test_left_over_tasks_are_drained_without_effect():
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

    run = Run(body)
    run.commands()
    run.done("r:1", 1)
    assert seen == ["told"]
    assert run.commands() == [Abandon(operation="r.1:1"), Finish(outcome=Completed(Raw(b"null")))]


def test_nothing_moves_after_the_end():
    """Outcomes, messages, timers, alarms and cancels that come after the body's end change nothing."""

    async def body():
        asyncio.create_task(work(1))
        asyncio.create_task(outlast.receive(go))
        asyncio.create_task(asyncio.sleep(5))
        await work(2)
        return "end"

    run = Run(body)
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


# Changed code


def test_non_determinism_names_both_sides():
    """The error shows the journal's side with its position, the code's side, and what to do."""

    async def old():
        await work(1)
        await other(2)

    async def renamed():
        await work(1)
        await work(2)

    async def another_kind():
        await work(1)
        await outlast.sleep(5)

    async def removed():
        await work(1)
        await outlast.receive(go)

    async def ended():
        await work(1)

    run = Run(old)
    run.done("r:1", 1)
    run.done("r:2", 1)
    for code, asked in (
        (renamed, "step work at r:2"),
        (another_kind, "timer at r:2"),
        (removed, "nothing at r:2; open: nothing"),
        (ended, "nothing at r:2; open: nothing"),
    ):
        with pytest.raises(NonDeterminismError) as caught:
            run.again(code)
        assert "journal entry 3: step other at r:2" in caught.value.message
        assert f"code: {asked}" in caught.value.message
        assert (caught.value.run, caught.value.operation) == ("run-1", "r:2")
        assert "deploy the code" in caught.value.hint


def test_changed_effect_arguments_are_non_determinism():
    """The same effect with another argument, or another parameter, stops the replay and shows both."""

    def body(call: Any):
        async def inner():
            await call(5)

        return inner

    async def pay_text(text: str) -> int:
        return 1

    run = Run(body(pay))
    run.intend(run.command())
    for call, asked in (
        (lambda n: pay(n + 1), '{"n":6}'),
        (lambda n: make_effect("pay", function=pay_text)("x"), '{"text":"x"}'),
    ):
        with pytest.raises(NonDeterminismError) as caught:
            run.again(body(call))
        assert '{"n":5}' in caught.value.message
        assert asked in caught.value.message


def test_a_new_parameter_with_a_default_is_no_change():
    """An effect that gained a parameter with a default goes on under its old intent."""

    async def pay_more(n: int, note: str = "") -> int:
        return n

    def body(effect: Any):
        async def inner():
            return await effect(5)

        return inner

    run = Run(body(pay))
    run.intend(run.command())
    settle = run.command()
    again = run.again(body(make_effect("pay", function=pay_more)))
    assert again.command() == settle
    again.done("r:1", 6)
    assert again.result() == 6


def test_effect_that_the_code_gave_up_is_non_determinism():
    """An intent in the journal for a call that the code cancels first stops the replay."""

    async def old():
        await asyncio.gather(work(1), pay(5))

    async def new():
        paying = asyncio.create_task(work(1)), asyncio.create_task(pay(5))
        await paying[0]
        paying[1].cancel()
        await outlast.receive(go)

    run = Run(old)
    intend = run.commands()[1]
    run.done("r:1", 1)
    run.intend(intend)
    with pytest.raises(NonDeterminismError, match="gave up"):
        run.again(new)


def test_recorded_end_that_the_code_does_not_reach_is_non_determinism():
    """A recorded end of another kind, or one that the code still waits before, stops the replay."""

    async def body():
        await work(1)

    async def failing():
        raise ValueError

    run = Run(body)
    with pytest.raises(NonDeterminismError, match=r"completed.*still waits"):
        run.deliver(Completed(Raw(b"null")))
    with pytest.raises(NonDeterminismError, match=r"completed.*failed"):
        Run(failing).deliver(Completed(Raw(b"null")))


# Eviction


def evicted(body: Any) -> Run:
    """Evict a run; see that its clean-up begins nothing and gives nothing up."""
    run = Run(body)
    run.commands()
    reached: list[Any] = []
    agenda: Any = run.machine._agenda
    agenda.open = agenda.abandon = lambda *what: reached.append(what)
    run.machine.evict()
    assert reached == []
    assert run.commands() == []
    return run


def test_eviction_runs_clean_up_that_reaches_nothing():
    """`finally`, `except BaseException`, `async with` and async generators end without a word to the journal."""
    seen: list[str] = []

    @asynccontextmanager
    async def resource():
        try:
            yield
        finally:
            seen.append("with")
            await work(2)
            seen.append("not reached")

    async def numbers():
        try:
            yield 1
        finally:
            seen.append("generator")
            await pay(3)
            seen.append("not reached")

    async def body():
        async with aclosing(numbers()) as stream, resource():
            await anext(stream)
            try:
                await work(1)
            except BaseException:
                seen.append("except")
                await outlast.sleep(5)
                seen.append("not reached")
            finally:
                seen.append("finally")
                await ask()
                seen.append("not reached")

    run = evicted(body)
    assert seen == ["except", "finally", "with", "generator"]
    assert run.machine.pinned == 0


def test_eviction_keeps_a_task_that_will_not_end():
    """A loop that swallows everything is given up after a while and reported, whatever it waits for."""

    def body(wait: Any):
        async def inner():
            while True:
                try:
                    await wait()
                except BaseException:
                    outlast.now(), outlast.uuid4(), outlast.info()

        return inner

    for wait in (
        lambda: work(1),
        lambda: pay(1),
        ask,
        lambda: outlast.sleep(5),
        lambda: outlast.receive(go),
        lambda: outlast.wait_condition(lambda: outlast.now() > EPOCH),
    ):
        assert evicted(body(wait)).machine.pinned == 1


def test_swallowing_clock_watcher_does_not_hang_the_eviction():
    """Reading the time under eviction gives the time: an exception there would spin in a loop that swallows it."""

    async def body():
        while True:
            with suppress(BaseException):
                if outlast.now() > EPOCH:
                    return
                await outlast.sleep(1)

    assert evicted(body).machine.pinned == 1


def test_eviction_while_messages_wait_takes_none():
    """A receive that clean-up calls takes no message, and no condition holds."""
    seen: list[Any] = []

    async def body():
        try:
            await work(1)
        finally:
            seen.append("cleaning")
            try:
                seen.append(await outlast.receive(go))
            finally:
                await outlast.wait_condition(lambda: True)
                seen.append("not reached")

    run = Run(body)
    run.deliver(run.message("go", 1))
    run.machine.evict()
    assert seen == ["cleaning"]


def test_a_call_used_twice_is_refused():
    """A call happens once: awaited again, or started and awaited, it is refused."""

    async def body():
        call = work(1)
        task = asyncio.create_task(call)
        with pytest.raises(DefinitionError, match="used twice"):
            await call
        return await task

    run = Run(body)
    run.done("r:1", 4)
    assert run.result() == 4
