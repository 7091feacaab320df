"""What an operation asks of people, as the machine keeps it: votes, edits, rungs, what follows from each, and what a fork makes of it."""

# ruff: noqa: D102, D103

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

import outlast
from outlast.effects.retry import RetryPolicy
from outlast.errors import ApprovalMismatchError, NonDeterminismError
from outlast.journal.asking import Edited, Rung, Terms, Vote
from outlast.journal.entry import (
    ApprovalDecided,
    ApprovalEdited,
    ApprovalExpired,
    ApprovalRequested,
    ApprovalVoted,
    Cover,
    EffectIntended,
    Forked,
    LeftOut,
    RunName,
    Started,
)
from outlast.journal.prefix import kept
from outlast.replay.command import Abandon, AwaitDecision, IntendEffect, RequestApproval
from outlast.worker.request import recorded
from outlast.workflows.definition import AttemptOptions, Effect, EffectOptions, Step

HOUR = timedelta(hours=1)
TERMS = Terms("boss", HOUR, edits="yes", escalate=(Rung("chief", 2 * HOUR),))
SUBJECT = b'{"covers":[{"effect":"pay","action_sha256":"","arguments":{}}],"subject":null}'


async def take(n: int, note: str = "") -> int:
    return n


pay = Effect(
    take,
    "pay",
    AttemptOptions(RetryPolicy(), schedule_to_close_timeout=HOUR),
    EffectOptions(idempotent=True),
)
work = Step(take, "work", AttemptOptions())


async def paying() -> int:
    return await pay(5)


def asked(run: Any, command: IntendEffect, terms: Terms = TERMS, **more: Any) -> ApprovalRequested:
    """Have the gate ask about an effect; return what it asks."""
    count = run.machine.find(command.operation).asking.count
    request = RequestApproval(
        command.operation,
        f"1~{command.operation}" + (f"#{count + 1}" if count else ""),
        terms,
        Raw(SUBJECT),
        "hash",
        (Cover(command.name, command.action_sha256),),
        requested=Raw(command.arguments),
        effective=Raw(command.effective or command.arguments),
        source="declared",
    )
    entry = recorded(replace(request, **more), run.now, ("ann",))
    run.deliver(entry)
    return entry


def again(run: Any, command: RequestApproval) -> ApprovalRequested:
    """Record what the machine asks."""
    entry = recorded(command, run.now, ("ann",))
    run.deliver(entry)
    return entry


def yes(run: Any, entry: ApprovalRequested, by: str = "bob") -> None:
    run.deliver(
        ApprovalDecided(
            entry.operation, entry.approval_id, True, by, "fine", entry.subject_sha256, run.now
        )
    )


def edit(run: Any, entry: ApprovalRequested, arguments: bytes, cover: int = 0) -> None:
    edits = (Edited(cover, Raw(arguments)),)
    run.deliver(ApprovalEdited(entry.operation, entry.approval_id, "eve", run.now, edits, "less"))


def test_an_effect_that_is_asked_for_waits_and_is_then_intended_as_approved(drive):
    """The machine waits for the decision, then commands the intent again with what was granted; its time counts from there."""
    run = drive(paying)
    first = run.command()
    entry = asked(run, first)
    assert run.command() == AwaitDecision("r:1", "1~r:1", entry.expires_at)
    assert run.machine.asks("1~r:1") is run.machine.find("r:1")
    assert run.machine.unsettled == []
    run.now += HOUR / 2
    yes(run, entry)
    second = run.command()
    assert (second.asked, second.effective) == (("1~r:1",), b'{"n":5,"note":""}')
    assert second.scheduled_at == run.now != first.scheduled_at
    assert run.machine.asks("1~r:1") is None
    assert run.again().commands() == [second]
    run.intend(second)
    run.done("r:1", 5)
    assert run.result() == 5


def test_a_no_refuses_the_effect_and_all_who_wait_for_it(drive):
    """Each of them gets the refusal with the reason; nothing is left to do."""

    async def body() -> list[str]:
        both = await asyncio.gather(pay(5), pay(5), return_exceptions=True)
        return [f"{type(one).__name__} {getattr(one, 'reason', '')}" for one in both]

    run = drive(body)
    entry = asked(run, run.command())
    run.commands()
    run.deliver(
        ApprovalDecided("r:1", entry.approval_id, False, "bob", "too dear", "hash", run.now)
    )
    assert run.result() == ["ApprovalDeniedError too dear"] * 2


def test_each_rung_is_asked_in_turn_and_after_the_last_it_has_expired(drive):
    """The same is asked of the next role, with its own time; the votes of the former are not votes of this one."""

    async def body() -> str:
        try:
            return str(await pay(5))
        except outlast.ApprovalExpiredError as error:
            return f"{error.stage}: {error.message}"

    run = drive(body)
    entry = asked(run, run.command())
    run.commands()
    run.deliver(ApprovalVoted("r:1", "1~r:1", "bob", run.now))
    run.now += HOUR
    run.deliver(ApprovalExpired("r:1", "1~r:1"))
    command = run.command()
    assert (command.approval_id, command.again, command.rung) == ("1~r:1#2", "escalated", 1)
    assert (command.subject, command.covers) == (entry.subject, entry.covers)
    assert (command.votes, command.expires_at) == ((), None)
    later = again(run, command)
    assert (later.role, later.expires_at) == ("chief", run.now + 2 * HOUR)
    assert run.command() == AwaitDecision("r:1", "1~r:1#2", later.expires_at)
    assert run.machine.asks("1~r:1") is None
    run.deliver(ApprovalExpired("r:1", "1~r:1#2"))
    assert run.result().startswith("decide: nobody with the role 'chief'")


def test_an_edit_that_is_a_yes_is_asked_anew_with_that_vote(drive):
    """The new request shows and hashes the edited action, keeps the deadlines, and begins with the editor's vote."""
    run = drive(paying)
    first = run.command()
    entry = asked(run, first)
    run.commands()
    run.now += HOUR / 2
    edit(run, entry, b'{"n":3}')
    command = run.command()
    edited = pay.request((3,), {})
    assert (command.approval_id, command.again) == ("1~r:1#2", "edited")
    assert command.covers == (Cover("pay", edited.action_sha256),)
    assert b'"n":3' in bytes(command.subject)
    assert (command.effective, command.requested) == (Raw(edited.arguments), entry.requested)
    assert command.votes == (Vote("eve", run.now),)
    assert (command.expires_at, command.use_by) == (entry.expires_at, entry.use_by)
    assert run.again().commands() == [command]
    new = again(run, command)
    run.commands()
    yes(run, new, by="eve")
    last = run.command()
    assert (last.asked, last.effective) == (("1~r:1#2",), edited.arguments)
    assert last.payload_sha256 == first.payload_sha256


@pytest.mark.parametrize("why", ["second", "preconditions"])
def test_an_edit_that_somebody_else_has_to_approve_bars_the_editor(drive, why):
    """So it is where the terms say so, and where the yes rests on facts that were found for the former action."""
    run = drive(paying)
    terms = replace(TERMS, edits="second") if why == "second" else TERMS
    fact = outlast.journal.asking.Precondition("base", "look", Raw(b"{}"), Raw(b"1"))
    more = {} if why == "second" else {"preconditions": (fact,)}
    entry = asked(run, run.command(), terms, **more)
    run.commands()
    edit(run, entry, b'{"n":3}')
    command = run.command()
    assert (command.votes, command.barred) == ((), ("eve",))


@pytest.mark.parametrize("arguments", [b'{"n":"many"}', b'{"m":3}', b'{"n":3,"m":1}', b"[]", b"3"])
def test_an_edit_that_does_not_fit_is_answered_by_the_same_request(drive, arguments):
    """It says why in what is shown, and begins without votes."""
    run = drive(paying)
    entry = asked(run, run.command())
    run.commands()
    edit(run, entry, arguments)
    command = run.command()
    assert (command.again, command.covers, command.votes) == ("unfit", entry.covers, ())
    assert command.effective == entry.effective
    assert b'"note":"what eve made of it does not fit: ' in bytes(command.subject)
    assert command.subject_sha256 != entry.subject_sha256


def test_an_edit_of_another_place_than_the_one_cover_does_not_fit(drive):
    """A request for an effect covers one call."""
    run = drive(paying)
    entry = asked(run, run.command())
    run.commands()
    edit(run, entry, b'{"n":3}', cover=1)
    assert run.command().again == "unfit"


def test_a_second_demand_is_asked_under_the_same_operation(drive):
    """What was granted before stays granted."""
    run = drive(paying)
    first = asked(run, run.command())
    run.commands()
    yes(run, first)
    second = asked(run, run.command())
    assert second.approval_id == "1~r:1#2"
    run.commands()
    yes(run, second)
    assert run.command().asked == ("1~r:1", "1~r:1#2")


def test_a_call_that_is_given_up_withdraws_its_request(drive):
    """Whether it was recorded before that, or just after."""

    async def body() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                await pay(5)
        await work(1)

    run = drive(body)
    _, command = run.commands()
    entry = asked(run, command)
    run.commands()
    run.fire("r:1")
    assert Abandon("r:2", "1~r:2") in run.commands()
    yes(run, entry)
    assert run.name("r:3") == "work"
    once = drive(body)
    once.commands()
    once.deliver(entry)
    once.fire("r:1")
    assert Abandon("r:2", "1~r:2") in once.commands()
    late = drive(body)
    late.commands()
    late.fire("r:1")
    late.commands()
    late.deliver(entry)
    assert late.commands() == [Abandon("r:2", "1~r:2")]


def test_a_saga_that_is_undone_asks_for_nothing_more(drive):
    """A call that waits for a person in it is refused, and the request withdrawn."""

    async def body() -> str:
        async def failing() -> None:
            await work(1)
            raise ValueError

        try:
            async with outlast.saga():
                await asyncio.gather(pay(5), failing())
        except ValueError:
            return "undone"
        return "kept"

    run = drive(body)
    effect, step = run.commands()
    asked(run, effect)
    run.commands()
    run.done(step.operation, 1)
    assert Abandon(effect.operation, f"1~{effect.operation}") in run.commands()
    assert run.result() == "undone"


def test_an_update_without_a_handler_is_rejected_while_only_a_person_is_waited_for(drive):
    """Nobody can say how long that lasts, and its sender waits."""
    run = drive(paying)
    command = run.command()
    run.deliver(run.update("change", 1))
    assert not any(one.operation == "m1" for one in run.commands())
    asked(run, command)
    assert any(one.operation == "m1" for one in run.commands())


def test_what_the_code_asks_is_escalated_and_edited_too(drive):
    """The grant says who has voted, and gives the call as it was edited; the original one is covered no more."""

    async def body() -> list[Any]:
        call = pay(5)
        grant = await outlast.approval(
            "pay?", covers=[call], role="boss", expires_in=HOUR, quorum=2, edits="yes"
        )
        try:
            await pay(5)
        except ApprovalMismatchError as error:
            said = type(error).__name__
        same, other = grant.edited(pay(7)), grant.edited(call)
        same.close()
        return [[one.by for one in grant.votes], same.args, await other, said]

    run = drive(body)
    entry = again(run, run.command())
    run.commands()
    edit(run, entry, b'{"n":3}')
    new = again(run, run.command())
    run.commands()
    yes(run, new)
    command = run.command()
    assert (command.arguments, command.grant.approval_id) == (b'{"n":3,"note":""}', "1~r:1#2")
    run.intend(command)
    run.done(command.operation, 3)
    assert run.result() == [["eve", "bob"], [7], 3, "ApprovalMismatchError"]


def test_a_question_is_answered_by_a_value_of_its_type(drive):
    """The workflow gets it decoded."""

    async def body() -> int:
        return 1 + await outlast.ask("how many?", int, role="boss", expires_in=HOUR)

    run = drive(body)
    command = run.command()
    assert (command.kind, command.covers) == ("question", ())
    assert b'"question":{"schema":{"type":"integer"}}' in bytes(command.subject)
    entry = again(run, command)
    run.commands()
    decided = ApprovalDecided("r:1", "1~r:1", True, "bob", "", entry.subject_sha256, run.now)
    run.deliver(replace(decided, answer=Raw(b"41")))
    assert run.result() == 42


def test_preconditions_are_looked_at_in_order_and_shown(drive):
    """Each is a step of its own; what it returned is in the entry and in the hash."""

    async def body() -> str:
        grant = await outlast.approval(
            "pay?",
            role="boss",
            expires_in=HOUR,
            preconditions={"first": work(1), "then": work(2)},
        )
        return grant.by

    run = drive(body)
    for operation, value in (("r:1", 10), ("r:2", 20)):
        assert run.command().operation == operation
        run.done(operation, value)
    command = run.command()
    assert [(one.name, bytes(one.value)) for one in command.preconditions] == [
        ("first", b"10"),
        ("then", b"20"),
    ]
    assert b'"then":{"arguments":{"n":2,"note":""},"step":"work","value":20}' in bytes(
        command.subject
    )


def test_arguments_that_differ_from_those_that_were_asked_for_are_noticed(drive):
    """A request says what the workflow gave; code that gives something else cannot go on with it."""
    run = drive(paying)
    command = run.command()
    with pytest.raises(NonDeterminismError, match="other arguments"):
        asked(run, command, requested=Raw(b'{"n":6,"note":""}'))
    other = drive(paying)
    with pytest.raises(NonDeterminismError, match="other arguments"):
        asked(other, other.command(), effective=Raw(b'{"n":"?"}'))


def test_a_request_that_was_written_without_a_new_default_means_the_same(drive):
    """The gate asks again, since the hash is another; the run goes on."""
    run = drive(paying)
    entry = asked(run, run.command(), requested=Raw(b'{"n":5}'), effective=Raw(b'{"n":5}'))
    run.commands()
    yes(run, entry)
    assert run.command().effective == b'{"n":5}'


def fork(run: Any, program: Any) -> Any:
    """Return a fork of all that the run has written."""
    copy = type(run)(program)
    entries = kept([entry for turn, _ in run.journal for entry in turn])
    for entry in entries[2:]:
        copy.deliver(entry)
    name = RunName("run-1", 1)
    copy.deliver(Forked(RunName("fork", 1), name, len(entries), "me", "why", "same_key"))
    return copy


@pytest.mark.parametrize("state", ["pending", "granted", "edited", "escalated"])
def test_a_fork_asks_for_an_effect_again(drive, state):
    """Whatever the origin was told: the intent is commanded with nothing granted."""
    run = drive(paying)
    entry = asked(run, run.command())
    run.commands()
    if state == "granted":
        yes(run, entry)
    elif state == "edited":
        edit(run, entry, b'{"n":3}')
    elif state == "escalated":
        run.deliver(ApprovalExpired("r:1", "1~r:1"))
        again(run, run.command())
    copy = fork(run, paying)
    command = copy.command()
    assert isinstance(command, IntendEffect)
    assert (command.asked, command.effective) == ((), b"")


def test_a_fork_keeps_nothing_of_what_was_asked_for_an_effect_that_is_not_settled(drive):
    """Its requests and decisions are left out with its intent, and all that was decided on the way."""
    run = drive(paying)
    entry = asked(run, run.command())
    run.commands()
    yes(run, entry)
    run.intend(run.command())
    whole = [entry for turn, _ in run.journal for entry in turn]
    left = [one.what for one in kept(whole) if isinstance(one, LeftOut)]
    assert left == ["approval_requested", "approval_decided", "effect_intended"]
    run.done("r:1", 5)
    whole = [entry for turn, _ in run.journal for entry in turn]
    assert kept(whole)[1:] == whole[1:]
    assert isinstance(whole[0], Started)
    assert isinstance(whole[4], EffectIntended)
