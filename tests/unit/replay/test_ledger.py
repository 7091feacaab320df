"""Effects: intended, settled, equal calls, numbers; approvals: covers, grants, refusals."""

# ruff: noqa: D102, D103

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import Raw

import outlast
from outlast.effects.retry import RetryPolicy
from outlast.errors import (
    ApprovalDeniedError,
    ApprovalExpiredError,
    ApprovalMismatchError,
    ApprovalSpentError,
    NonDeterminismError,
    RepeatedEffectError,
)
from outlast.journal.entry import (
    ApprovalExpired,
    Cancelled,
    Completed,
    EffectCleared,
    EffectInDoubt,
    EffectRefused,
    Failed,
    GrantUse,
    OperationId,
)
from outlast.journal.failure import capture
from outlast.journal.subject import subject_of
from outlast.replay.command import (
    Abandon,
    AwaitDecision,
    Finish,
    IntendEffect,
    RequestApproval,
    RunStep,
    SettleEffect,
)
from outlast.replay.ledger import EffectLedger
from outlast.workflows.definition import AttemptOptions, Effect, EffectOptions, Step

EPOCH = datetime(2030, 1, 1, tzinfo=UTC)


async def take(n: int) -> int:
    return n


def make_step(name: str, *, raises: tuple[type[BaseException], ...] = ()) -> Step[..., Any]:
    return Step(take, name, AttemptOptions(raises=raises))


def make_effect(
    name: str, *, repeats: bool = False, function: Any = take, version: str = ""
) -> Effect[..., Any]:
    rules = EffectOptions(idempotent=True, repeats=repeats, version=version)
    return Effect(function, name, AttemptOptions(RetryPolicy()), rules)


work, other = make_step("work"), make_step("other")
pay, tick = make_effect("pay"), make_effect("tick", repeats=True)
go = outlast.Signal("go", int)
stop = outlast.Signal("stop", int)


def ask(*covers: Any, **more: Any) -> Any:
    return outlast.approval(
        {"sum": 5}, covers=covers, role="boss", expires_in=timedelta(hours=1), **more
    )


# Effects


def test_effect_is_intended_then_settled(drive):
    """Before its intent is recorded, an effect only asks; after it, there is a command until the outcome."""

    async def body():
        return await pay(5)

    run = drive(body)
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


def test_refused_effect_raises(drive):
    """A refusal by the gate or the store is the call's outcome, and nothing was intended."""

    async def body():
        await pay(5)

    run = drive(body)
    run.deliver(EffectRefused("r:1", "pay", capture(ApprovalMismatchError("no"))))
    assert run.failure().type == "outlast.errors.ApprovalMismatchError"
    assert run.machine.take_commands()[-1] == Finish(outcome=run.machine.outcome)


def test_effect_in_doubt_waits_for_an_operator(drive):
    """In doubt there is nothing to do; cleared, it is settled again; siblings go on meanwhile."""

    async def body():
        return await asyncio.gather(pay(5), work(1))

    run = drive(body)
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


def test_cancel_of_an_unintended_effect_drops_it(drive):
    """What was not intended never happens."""

    async def body():
        async with asyncio.timeout(1):
            await pay(5)

    run = drive(body)
    run.commands()
    run.fire("r:1")
    assert run.commands()[0] == Abandon(operation="r:2")
    assert run.failure().type == "TimeoutError"


def test_cancel_of_an_intended_effect_is_raised_after_its_outcome(drive):
    """Nothing interrupts an effect whose intent is recorded: the wait ends with its outcome, then raises."""
    seen: list[str] = []

    async def body():
        try:
            async with asyncio.timeout(1):
                await pay(5)
        except TimeoutError:
            seen.append("timeout")
            await work(1)

    run = drive(body)
    [_, intend] = run.commands()
    run.intend(intend)
    run.fire("r:1")
    assert seen == []
    assert [type(one) for one in run.commands()] == [SettleEffect]
    run.done("r:2", 1)
    assert seen == ["timeout"]
    assert run.again().commands() == run.commands()


def test_cancel_of_the_run_waits_for_an_intended_effect(drive):
    """A cancelled run ends once its effect has an outcome, whatever that is."""

    async def body():
        await pay(5)

    run = drive(body)
    run.intend(run.command())
    run.commands()
    run.cancel()
    assert run.machine.outcome is None
    run.failed("r:1", ValueError("not paid"))
    assert isinstance(run.machine.outcome, Cancelled)


def test_end_of_the_body_waits_for_intended_effects(drive):
    """The run does not finish while an effect that the body left behind is unsettled; the unintended is dropped."""

    async def body():
        asyncio.create_task(pay(1))
        asyncio.create_task(pay(2))
        await work(1)
        return "done"

    run = drive(body)
    first, second, _ = run.commands()
    run.intend(first)
    run.commands()
    run.done("r:3", 1)
    assert run.machine.outcome == Completed(Raw(b'"done"'))
    assert run.commands() == [Abandon(operation=second.operation)]
    run.done("r:1", 1)
    assert run.command() == Finish(outcome=run.machine.outcome)


def test_equal_calls_in_flight_are_one(drive):
    """An equal call waits for the first one's outcome; both get it."""

    async def body():
        return await asyncio.gather(pay(5), pay(5), pay(6))

    run = drive(body)
    first, third = run.commands()
    assert [first.operation, third.operation] == ["r:1", "r:3"]
    run.intend(first)
    run.done("r:1", 10)
    run.intend(third)
    run.done("r:3", 20)
    assert run.result() == [10, 10, 20]


def test_equal_calls_share_a_failure(drive):
    """The failure of the first is the failure of all who joined."""

    async def body():
        values = await asyncio.gather(pay(5), pay(5), return_exceptions=True)
        return [type(value).__name__ for value in values]

    run = drive(body)
    run.intend(run.command())
    run.failed("r:1", ValueError("no"))
    assert run.result() == ["ValueError", "ValueError"]


def test_an_effect_lives_while_an_equal_call_waits(drive):
    """When the first caller gives up before the intent, the effect goes on for the second; when both do, it is dropped."""

    async def body():
        tasks = [asyncio.create_task(pay(5)), asyncio.create_task(pay(5))]
        for task in tasks:
            await outlast.sleep(1)
            task.cancel()
        await outlast.sleep(1)

    run = drive(body)
    run.commands()
    run.fire("r:3")
    assert run.machine.is_open("r:1")
    run.commands()
    run.fire("r:4")
    assert Abandon(operation="r:1") in run.commands()


def test_a_call_that_joins_an_intended_effect_cannot_be_cancelled_either(drive):
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

    run = drive(body)
    intend = run.commands()[0]
    run.intend(intend)
    run.done("r:2", 1)
    run.done("r:4", 1)
    assert ended == []
    run.done("r:1", 1)
    assert run.result() == [False, True]


def test_an_equal_call_after_a_success_is_refused(drive):
    """A second purpose needs `repeats=True`: the error is raised without a command."""

    async def body():
        await pay(5)
        with pytest.raises(RepeatedEffectError) as caught:
            await pay(5)
        return [caught.value.operation, caught.value.step]

    run = drive(body)
    run.intend(run.command())
    run.commands()
    run.done("r:1", 1)
    assert run.result() == ["r:2", "pay"]
    assert [type(one) for one in run.commands()] == [Finish]


def test_repeats_are_numbered_by_success(drive):
    """With `repeats=True` a call after a success is the next one; after a failure or a refusal it keeps its number."""
    numbers: list[int] = []

    async def body():
        for _ in range(4):
            with suppress(ValueError):
                await tick(5)

    run = drive(body)
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


def test_key_on_narrows_what_equal_means(drive):
    """Parameters outside `key_on` make no second purpose."""

    async def send(invoice: str, note: str) -> int:
        return 1

    rules = EffectOptions(idempotent=True, key_on=("invoice",))
    mail = Effect(send, "mail", AttemptOptions(RetryPolicy()), rules)

    async def body():
        return await asyncio.gather(mail("i1", "a"), mail("i1", "b"), mail("i2", "a"))

    assert [one.operation for one in drive(body).commands()] == ["r:1", "r:3"]


# Approvals


def test_approval_is_requested_awaited_and_granted(drive):
    """The request carries subject, covers and times; a yes is a grant, and the covered call spends its cover."""

    async def body():
        grant = await ask(pay(5), use_within=timedelta(hours=2))
        return [grant.by, grant.reason, grant.use_by, await pay(5)]

    run = drive(body)
    command = run.command()
    assert isinstance(command, RequestApproval)
    assert (command.approval_id, command.terms.role) == ("1~r:1", "boss")
    assert command.terms.expires_in == timedelta(hours=1)
    assert command.terms.use_within == timedelta(hours=2)
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


def test_pattern_covers_fitting_calls_only(drive):
    """A pattern covers one call that fits it; another call of the effect is refused."""

    async def body():
        await ask(pay.where(n=5))
        with pytest.raises(ApprovalMismatchError):
            await pay(6)
        await pay(5)

    run = drive(body)
    request = run.command()
    run.request(request)
    run.decide(request)
    intend = run.command()
    assert intend.operation == "r:3"
    assert intend.match_sha256
    assert intend.match_sha256 != intend.action_sha256


def test_a_call_covers_exactly_its_arguments(drive):
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
        run = drive(body(cover))
        request = run.command()
        run.request(request)
        run.decide(request)
        assert run.command().operation == "r:5"


def test_a_grant_is_spent_once(drive):
    """A second call under the same cover is refused, also with `repeats=True`; two covers are two uses."""

    def body(*covers: Any):
        async def inner():
            await ask(*covers)
            await tick(5)
            await tick(5)

        return inner

    for covers, failure in (((tick(5),), ApprovalSpentError), ((tick(5), tick(5)), None)):
        run = drive(body(*covers))
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


def test_the_newest_grant_is_spent_first(drive):
    """An earlier grant that was never used, and may be over by now, does not stand in the way of a new one."""

    async def body():
        await ask(tick(5))
        await ask(tick.where(n=5))
        await ask(tick(5))
        for _ in range(3):
            await tick(5)

    run = drive(body)
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


def test_a_long_error_is_cut(drive):
    """Thousands of open operations, or megabytes of arguments, do not become one message."""

    async def long(text: str) -> int:
        return 1

    effect = make_effect("pay", function=long)

    def body(letter: str):
        async def inner():
            await asyncio.gather(effect(letter * 100_000), *(work(n) for n in range(100)))

        return inner

    run = drive(body("a"))
    run.intend(run.commands()[0])
    with pytest.raises(NonDeterminismError, match="100,011 characters") as caught:
        run.again(body("b"))
    assert len(caught.value.message) < 5000
    with pytest.raises(NonDeterminismError, match="step work at r:10 and 91 more"):
        run.fire("r:300")


def test_a_cover_is_free_again_when_the_effect_was_never_intended(drive):
    """A call that was given up, or refused, before its intent gives its cover back."""

    async def body():
        await ask(pay(5))
        with suppress(TimeoutError):
            await asyncio.wait_for(pay(5), 1)
        with suppress(ValueError):
            await pay(5)
        await pay(5)

    run = drive(body)
    request = run.command()
    run.request(request)
    run.decide(request)
    run.commands()
    run.fire("r:2")
    assert run.commands()[-1].grant == GrantUse("1~r:1", 0)
    run.deliver(EffectRefused("r:4", "pay", capture(ValueError())))
    assert run.command().grant == GrantUse("1~r:1", 0)


def test_a_covered_effect_is_refused_before_the_yes(drive):
    """From the request on, calls of a covered effect need a grant: while nobody decided, they are refused."""

    async def body():
        asking = asyncio.create_task(ask(pay(5)))
        await work(1)
        with pytest.raises(ApprovalMismatchError):
            await pay(5)
        await asking

    run = drive(body)
    run.done("r:1", 1)
    assert run.machine.outcome is None


def test_denial_raises_and_covers_nothing(drive):
    """A no is raised with who said it and why; the covered call stays refused."""

    async def body():
        with pytest.raises(ApprovalDeniedError) as caught:
            await ask(pay(5))
        with pytest.raises(ApprovalMismatchError):
            await pay(5)
        return [caught.value.by, caught.value.reason]

    run = drive(body)
    request = run.command()
    run.request(request)
    run.decide(request, approved=False)
    assert run.result() == ["ann", "why"]


@pytest.mark.parametrize("group", [False, True])
def test_expiry_cancels_the_run(drive, group):
    """Uncaught, an approval that nobody gave ends the run as cancelled, also out of a TaskGroup."""

    async def body():
        if not group:
            await ask()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ask())

    run = drive(body)
    request = run.command()
    run.request(request)
    run.deliver(ApprovalExpired(request.operation, request.approval_id))
    assert isinstance(run.machine.outcome, Cancelled)
    failure = run.machine.outcome.failure
    expiry = failure.members[0] if group else failure
    assert "boss" in expiry.message
    assert "2030-01-01 01:00:00" in expiry.message


def test_expiry_beside_another_failure_fails_the_run(drive):
    """A group that holds anything else than expiries is a failure."""

    async def body():
        async def spoil():
            try:
                await ask()
            except ApprovalExpiredError:
                raise ValueError from None

        asking = asyncio.gather(ask(), spoil(), return_exceptions=True)
        raise ExceptionGroup("both", await asking)

    run = drive(body)
    for request in run.commands():
        run.request(request)
    for operation in ("r.1:1", "r.2:1"):
        run.deliver(ApprovalExpired(operation, f"1~{operation}"))
    assert isinstance(run.machine.outcome, Failed)


def test_cancelled_request_is_withdrawn(drive):
    """Given up after it was recorded, or recorded after it was given up, a request is withdrawn by its id."""

    async def body():
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                await ask()
        await work(1)

    run = drive(body)
    _, request = run.commands()
    run.request(request)
    run.fire("r:1")
    assert run.commands()[0] == Abandon(operation="r:2", approval_id="1~r:2")
    assert run.again().commands()[0] == Abandon(operation="r:2", approval_id="1~r:2")
    run.decide(request)
    assert run.machine.is_open("r:3")

    late = drive(body)
    _, request = late.commands()
    late.fire("r:1")
    assert late.commands()[0] == Abandon(operation="r:2", approval_id="1~r:2")
    assert late.request(request) == Abandon(operation="r:2", approval_id="1~r:2")


def test_request_for_something_else_is_non_determinism(drive):
    """Another subject, cover or role under a recorded request stops the replay; a field that was added does not."""

    def body(subject: Any, cover: Any, role: str):
        async def inner():
            await outlast.approval(
                subject, covers=[cover], role=role, expires_in=timedelta(hours=1)
            )

        return inner

    async def pay_more(n: int, note: str = "") -> int:
        return n

    run = drive(body({"sum": 5}, pay(5), "boss"))
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


def test_decision_without_request_is_non_determinism(drive):
    """A journal that decides what was never asked is not followed."""

    async def body():
        await ask()

    run = drive(body)
    with pytest.raises(NonDeterminismError, match="never asked"):
        run.decide(run.command())


@pytest.mark.parametrize(
    ("cover", "times"), [(work(1), {}), ("pay", {}), (None, {"use_within": timedelta(0)})]
)
def test_bad_approvals_are_refused(drive, cover, times):
    """A cover that is no call of an effect, or a time that is over at once, is the author's error."""

    async def body():
        await ask(*([] if cover is None else [cover]), **times)

    assert drive(body).failure().type == "outlast.errors.DefinitionError"


@pytest.mark.parametrize("edits", ["yes", "second"])
def test_what_may_be_edited_is_covered_once(drive, edits):
    """Of two equal calls an edit could mean either; other calls, patterns, and what nobody edits may stand there twice."""

    def body(*covers: Any, **more: Any):
        async def run():
            await ask(*covers, **more)

        return run

    failure = drive(body(pay(4), pay(5), pay(5), edits=edits)).failure()
    assert failure.type == "outlast.errors.DefinitionError"
    assert "as 1 and as 2" in failure.message
    for covers in ((pay(4), pay(5)), (pay.where(n=5), pay.where(n=5))):
        assert isinstance(drive(body(*covers, edits=edits)).command(), RequestApproval)
    assert isinstance(drive(body(pay(5), pay(5), edits="no")).command(), RequestApproval)


def test_mismatch_says_what_differs(drive):
    """Effect, approval, and the first fields with what was approved and what was called, shortened."""

    async def move(account: str, amount: int, note: str = "") -> int:
        return 1

    transfer = make_effect("transfer", function=move)

    async def body():
        await ask(transfer("ann", 5))
        errors: list[str] = []
        for call in (transfer("eve", 5), transfer("ann", 6, "x" * 500)):
            with pytest.raises(ApprovalMismatchError) as caught:
                await call
            errors.append(caught.value.message)
        return errors

    run = drive(body)
    request = run.command()
    run.request(request)
    run.decide(request)
    one, two = run.result()
    assert (
        'transfer is not what an approval of this run covers; approval 1~r:1 differs in account: approved "ann", '
        in one
    )
    assert one.endswith('called with "eve"')
    assert "amount: approved 5, called with 6; note: approved" in two
    assert "xxx…" in two
    assert len(two) < 300


def test_mismatch_says_that_nobody_granted(drive):
    """A call before the yes is told apart from another call."""

    async def body():
        asked = asyncio.ensure_future(ask(pay(5)))
        await asyncio.sleep(0)
        with pytest.raises(ApprovalMismatchError) as caught:
            await pay(5)
        asked.cancel()
        return caught.value.message

    assert "approval 1~r.1:1, which speaks of it, was not granted" in drive(body).result()


def test_a_cover_of_a_call_that_was_written_otherwise_comes_last():
    """It is known by what its approver saw, and keeps the hash of then: the store says whether that lets anything begin."""

    async def one(n: int) -> int:
        return n

    async def more(n: int, note: str = "") -> int:
        return n

    before, after = make_effect("order", function=one), make_effect("order", function=more)
    large = 2**53 + 1
    exact, pattern = before.cover(before(large)), before.where(n=large)
    covers = (exact[0], pattern.cover)
    subject = subject_of(b"null", [exact, (pattern.cover, pattern.fields)])
    ledger = EffectLedger("r")
    ledger.asked("1~r:1#2", covers, bytes(subject.body))
    ledger.approved("1~r:1#2")
    call = after.remake(b'{"n":%d}' % large)
    assert call.action_sha256 != exact[0].action_sha256
    assert ledger.find_cover(call, OperationId("r:2"))[0] == GrantUse("1~r:1#2", 1)
    found = ledger.find_cover(call, OperationId("r:3"))
    assert found == (GrantUse("1~r:1#2", 0), exact[0].action_sha256)
    with pytest.raises(ApprovalSpentError):
        ledger.find_cover(call, OperationId("r:4"))
    with pytest.raises(ApprovalMismatchError):
        ledger.find_cover(after.remake(b'{"n":7}'), OperationId("r:5"))
