"""What the worker records of requests: who is asked, by what, and what comes of votes, edits, answers, times that are over, and crashes."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from asking_bench import asked, decide, entries
from msgspec import Raw
from msgspec.structs import replace

import outlast
from outlast.journal.asking import Precondition, Terms
from outlast.journal.entry import (
    AlarmRaised,
    ApprovalDecided,
    ApprovalEdited,
    ApprovalExpired,
    ApprovalRequested,
    ApprovalVoted,
    EffectIntended,
    EffectRefused,
    GrantUse,
    Started,
)
from outlast.journal.failure import tell
from outlast.replay.command import IntendEffect
from outlast.store.change import GrantSpend, Status
from outlast.testing import Receiver, Simulation
from outlast.worker.gate import Ask, Demand, Found, Gate, Leave
from outlast.worker.request import recorded
from outlast.worker.worker import WorkerOptions
from outlast.workflows.terms import Approval

receiver = Receiver()
SOON = timedelta(seconds=60)
STRICT = Approval(
    "boss",
    expires_in=SOON,
    use_within=timedelta(seconds=300),
    quorum=2,
    edits="yes",
    escalate=[outlast.Rung("chief", SOON)],
)


@outlast.effect(idempotent=True, approval=STRICT, repeats=True)
async def pay(amount: int) -> int:
    return receiver.apply_once(outlast.idempotency_key(), amount)


@outlast.workflow
async def paying(amount: int) -> str:
    try:
        return f"paid {await pay(amount)}"
    except outlast.ApprovalError as error:
        return f"{type(error).__name__}: {getattr(error, 'reason', '')}"


@outlast.workflow
async def paying_twice(quorum: int) -> list[int]:
    """Pay what an approval covers, and once more."""
    await outlast.approval(
        "pay", covers=[pay(1), pay(2)], role="boss", expires_in=SOON, quorum=quorum
    )
    return [await pay(1), await pay(2)]


@outlast.workflow
async def paying_at_once() -> list[int]:
    return await asyncio.gather(pay(5), pay(5))


@outlast.workflow
async def asking() -> str:
    return f"{await outlast.ask('how many?', int, role='boss', expires_in=SOON)} of them"


CODE = [pay, paying, paying_twice, paying_at_once, asking]


@pytest.fixture(autouse=True)
def _clean() -> None:
    receiver.forget()


def play(scenario: Any) -> Any:
    return Simulation(CODE).run(scenario)


def test_a_declared_effect_asks_and_then_happens_once() -> None:
    """It waits in no worker's memory; the request speaks of exactly what will run; its one cover is spent by the effect."""

    async def scenario(sim: Simulation) -> Any:
        first = await sim.start_worker()
        handle = await sim.client.start(paying(5), id="r")
        await asked(sim)
        head = await sim.until("r", lambda head: head.owner is None)
        assert head.status is Status.WAITING
        first.kill()
        await sim.start_worker()
        await decide(sim, "ann")
        await decide(sim, "bob")
        assert await handle.result() == "paid 5"
        (request,) = await entries(sim, ApprovalRequested)
        (intent,) = await entries(sim, EffectIntended)
        (view,) = await sim.client.approvals.list(pending=False)
        assert len(await entries(sim, ApprovalVoted)) == 1
        return request, intent, view

    request, intent, view = play(scenario)
    assert (request.operation, request.approval_id) == ("r:1", "1~r:1")
    assert (request.source, request.requesters) == ("declared", ("tester",))
    assert request.covers[0].action_sha256 == intent.action_sha256
    assert view.subject["subject"] == {"effect": "pay", "why": "declared"}
    assert (intent.asked, intent.grant) == (("1~r:1",), None)
    assert view.spent == ("r:1",)
    assert receiver.total == 1


def test_a_no_after_a_yes_refuses_with_its_reason() -> None:
    """One no is enough, and nothing is attempted."""

    async def scenario(sim: Simulation) -> Any:
        await sim.start_worker()
        handle = await sim.client.start(paying(5), id="r")
        await decide(sim, "ann")
        await decide(sim, "bob", no="too dear")
        return await handle.result(), await entries(sim, EffectIntended)

    assert play(scenario) == ("ApprovalDeniedError: too dear", [])


def test_an_edited_effect_runs_as_it_was_edited() -> None:
    """Its key is that of what the workflow asked; who edited it has voted, and one more agrees."""

    async def scenario(sim: Simulation) -> Any:
        await sim.start_worker()
        handle = await sim.client.start(paying(5), id="r")
        await decide(sim, "ann")
        await decide(sim, "eve", edit='{"amount":3}')
        await asyncio.sleep(1)
        await decide(sim, "bob")
        result = await handle.result()
        (intent,) = await entries(sim, EffectIntended)
        return result, intent

    result, intent = play(scenario)
    assert result == "paid 3"
    assert (bytes(intent.requested), bytes(intent.effective)) == (b'{"amount":5}', b'{"amount":3}')
    assert intent.asked == ("1~r:1#2",)
    assert intent.requested_sha256 == pay.request((5,), {}).action_sha256
    assert intent.action_sha256 == pay.request((3,), {}).action_sha256


def test_an_edit_for_which_one_vote_is_enough_is_approved_with_the_request() -> None:
    """Both are written at once, and the row agrees."""

    @outlast.effect(idempotent=True, approval=Approval("boss", expires_in=SOON, edits="yes"))
    async def give(amount: int) -> int:
        return amount

    @outlast.workflow
    async def giving() -> int:
        return await give(5)

    async def scenario(sim: Simulation) -> Any:
        await sim.start_worker()
        handle = await sim.client.start(giving(), id="r")
        await decide(sim, "eve", edit='{"amount":3}')
        assert await handle.result() == 3
        (decided,) = await entries(sim, ApprovalDecided)
        views = await sim.client.approvals.list(pending=False)
        return decided.by, decided.reason, [one.state for one in views]

    assert Simulation([give, giving]).run(scenario) == ("eve", "fine", ["edited", "approved"])


def test_the_next_rung_is_asked_also_when_no_worker_lived_at_the_moment() -> None:
    """Each has its time from when it is asked; after the last one the call has expired."""

    async def scenario(sim: Simulation) -> Any:
        first = await sim.start_worker()
        handle = await sim.client.start(paying(5), id="r")
        await asked(sim)
        first.kill()
        await asyncio.sleep(100)
        await sim.start_worker()
        result = await handle.result()
        found = await entries(sim, ApprovalRequested)
        return result, [(one.role, one.again, one.approval_id) for one in found]

    assert play(scenario) == (
        "ApprovalExpiredError: ",
        [("boss", "", "1~r:1"), ("chief", "escalated", "1~r:1#2")],
    )


def test_the_time_for_all_attempts_begins_with_the_yes() -> None:
    """However long somebody thought about it; and what is decided does not expire while it is attempted."""

    @outlast.effect(
        idempotent=True,
        schedule_to_close_timeout=timedelta(seconds=30),
        approval=Approval("boss", expires_in=SOON),
    )
    async def hurry(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "in time"

    @outlast.workflow
    async def hurrying() -> str:
        return await hurry(20.0)

    async def scenario(sim: Simulation) -> Any:
        await sim.start_worker()
        handle = await sim.client.start(hurrying(), id="r")
        await asked(sim)
        await asyncio.sleep(50)
        await decide(sim)
        return await handle.result(), await entries(sim, ApprovalExpired)

    # It stays in memory meanwhile.
    patient = WorkerOptions(library="simulated", idle=timedelta(minutes=5))
    sim = Simulation([hurry, hurrying], options=patient)
    assert sim.run(scenario) == ("in time", [])


def test_equal_calls_at_once_ask_once() -> None:
    """They share the outcome, as without a request."""

    async def scenario(sim: Simulation) -> Any:
        await sim.start_worker()
        handle = await sim.client.start(paying_at_once(), id="r")
        await decide(sim, "ann")
        await decide(sim, "bob")
        return await handle.result(), len(await entries(sim, ApprovalRequested))

    assert play(scenario) == ([5, 5], 1)
    assert receiver.total == 1


@pytest.mark.parametrize(("quorum", "requests"), [(2, 1), (1, 3)])
def test_an_approval_of_the_run_is_enough_where_it_is_as_strict(quorum: int, requests: int) -> None:
    """Else the engine asks too, and the effect spends both."""

    async def scenario(sim: Simulation) -> Any:
        await sim.start_worker()
        handle = await sim.client.start(paying_twice(quorum), id="r")
        done = asyncio.ensure_future(handle.result())
        voters = {}
        while not done.done():
            for view in await sim.client.approvals.list():
                said = voters.setdefault(view.approval_id, 0)
                voters[view.approval_id] += 1
                await decide(sim, ("ann", "bob")[said])
            await asyncio.sleep(1)
        intents = await entries(sim, EffectIntended)
        assert all(one.grant is not None for one in intents)
        assert all(bool(one.asked) == (quorum == 1) for one in intents)
        return await done, len(await entries(sim, ApprovalRequested))

    assert play(scenario) == ([1, 2], requests)


def test_a_call_that_is_cancelled_withdraws_its_request() -> None:
    """Nobody can decide on it any more; the run ends at once."""

    async def scenario(sim: Simulation) -> Any:
        await sim.start_worker()
        handle = await sim.client.start(paying(5), id="r")
        await asked(sim)
        await handle.cancel()
        head = await sim.closed("r")
        (view,) = await sim.client.approvals.list(pending=False)
        return head.status, view.state

    assert play(scenario) == (Status.CANCELLED, "withdrawn")


def test_an_answer_of_another_type_is_asked_for_again() -> None:
    """Until the same moment, with what did not fit; the right one is the workflow's value."""

    async def scenario(sim: Simulation) -> Any:
        await sim.start_worker()
        handle = await sim.client.start(asking(), id="r")
        first = await decide(sim, answer='"many"')
        await asyncio.sleep(5)
        second = await decide(sim, answer="7")
        assert second.expires_at == first.expires_at
        _, again = await entries(sim, ApprovalRequested)
        return await handle.result(), again.again, b"expected int" in bytes(again.subject)

    assert play(scenario) == ("7 of them", "unfit", True)


def test_what_was_decided_while_no_worker_lived_is_taken_in_by_the_next_one() -> None:
    """A vote and then an edit of one request: each is recorded, in this order, and nothing is put aside."""

    async def scenario(sim: Simulation) -> Any:
        first = await sim.start_worker()
        handle = await sim.client.start(paying(5), id="r")
        await asked(sim)
        first.kill()
        await decide(sim, "ann")
        await decide(sim, "eve", edit='{"amount":3}')
        await sim.start_worker()
        await asyncio.sleep(40)
        await decide(sim, "bob")
        assert await handle.result() == "paid 3"
        voted, edited = await entries(sim, ApprovalVoted), await entries(sim, ApprovalEdited)
        return len(voted), len(edited), await entries(sim, AlarmRaised)

    assert play(scenario) == (1, 1, [])


# The gate


NOW = datetime(2030, 1, 1, tzinfo=UTC)
TERMS = Terms("boss", SOON)
DECLARED = Demand("declared", TERMS)
POLICY = Demand("policy", TERMS, rule="dear", policy_version="v1", why="it is dear")


def resting_on(fact: Precondition) -> Demand:
    return Demand("declared", TERMS, preconditions=(fact,))


def gate() -> Gate:
    return Gate(Started("w", Raw(b"{}"), b"0123456789abcdef", "r"), "r", 2)


def command(amount: int = 5, **more: Any) -> IntendEffect:
    request = pay.request((amount,), {})
    asked_for = IntendEffect(
        "r:1",
        "pay",
        request.arguments,
        request.payload_sha256,
        request.action_sha256,
        "",
        1,
        None,
    )
    return replace(asked_for, **more)


def ask(this: Gate, found: Found, **more: Any) -> ApprovalRequested:
    """Have the gate ask, and tell it that this was recorded."""
    answer = this.ask(command(**more), 1, found)
    assert isinstance(answer, Ask), answer
    entry = recorded(answer.request, NOW, ())
    this.note(entry)
    return entry


FIVE, THREE = pay.request((5,), {}), pay.request((3,), {})


def test_each_demand_is_asked_in_turn_and_all_are_spent() -> None:
    """A policy's rule and its version stand in the request; a yes that is as strict counts for both."""
    this = gate()
    weaker = replace(TERMS, role="clerk")
    found = Found(FIVE, (Demand("declared", weaker), POLICY))
    first = ask(this, found)
    assert (first.approval_id, first.source, first.role) == ("2~r:1", "declared", "clerk")
    second = ask(this, found, asked=("2~r:1",), effective=FIVE.arguments)
    assert (second.approval_id, second.rule, second.policy_version) == ("2~r:1#2", "dear", "v1")
    assert b'"why":"it is dear"' in bytes(second.subject)
    leave = this.ask(command(asked=("2~r:1", "2~r:1#2"), effective=FIVE.arguments), 1, found)
    assert isinstance(leave, Leave)
    assert leave.spends == tuple(
        GrantSpend(one, 0, "r:1", FIVE.action_sha256) for one in ("2~r:1", "2~r:1#2")
    )
    same = gate()
    one = ask(same, Found(FIVE, (DECLARED, POLICY)))
    leave = same.ask(
        command(asked=(one.approval_id,), effective=FIVE.arguments),
        1,
        Found(FIVE, (DECLARED, POLICY)),
    )
    assert isinstance(leave, Leave)


CLIMBING = replace(TERMS, escalate=(outlast.Rung("chief", SOON), outlast.Rung("owner", SOON)))


@pytest.mark.parametrize(
    ("given", "rung", "wanted", "is_enough"),
    [
        (CLIMBING, 0, TERMS, True),
        # Who decided was the chief.
        (CLIMBING, 1, TERMS, False),
        (CLIMBING, 1, replace(TERMS, role="chief"), True),
        (CLIMBING, 0, replace(TERMS, role="chief"), False),
        # Both ask the chief when the boss has not decided; and it was the boss who had less time.
        (CLIMBING, 1, CLIMBING, True),
        (CLIMBING, 2, CLIMBING, True),
        (CLIMBING, 2, replace(CLIMBING, escalate=CLIMBING.escalate[:1]), False),
        (replace(CLIMBING, expires_in=SOON / 2), 1, CLIMBING, False),
        (replace(CLIMBING, role="clerk"), 1, CLIMBING, False),
        # An edit by one person alone.
        (replace(TERMS, edits="yes"), 0, replace(TERMS, edits="second"), False),
        (replace(TERMS, edits="second"), 0, replace(TERMS, edits="yes"), True),
        (TERMS, 0, replace(TERMS, edits="second"), True),
        (replace(TERMS, edits="yes"), 0, TERMS, True),
    ],
)
def test_a_yes_counts_for_who_gave_it(
    given: Terms, rung: int, wanted: Terms, is_enough: bool
) -> None:
    """The role is that of the rung on which somebody decided; and who may change the call alone says less than two do."""
    this = gate()
    answer = this.ask(command(), 1, Found(FIVE, (Demand("declared", given),)))
    assert isinstance(answer, Ask)
    entry = recorded(replace(answer.request, rung=rung), NOW, ())
    this.note(entry)
    answer = this.ask(
        command(asked=(entry.approval_id,), effective=FIVE.arguments),
        1,
        Found(FIVE, (Demand("policy", wanted),)),
    )
    assert isinstance(answer, Leave if is_enough else Ask)


def test_a_yes_to_other_arguments_is_asked_for_again() -> None:
    """Written otherwise by code that came since, it is `changed`."""
    this = gate()
    first = ask(this, Found(FIVE, (DECLARED,)))
    newer = replace(FIVE, action_sha256="f" * 64)
    again = ask(
        this, Found(newer, (DECLARED,)), asked=(first.approval_id,), effective=FIVE.arguments
    )
    assert (again.again, again.covers[0].action_sha256) == ("changed", "f" * 64)
    leave = this.ask(
        command(asked=(first.approval_id, again.approval_id), effective=FIVE.arguments),
        1,
        Found(newer, (DECLARED,)),
    )
    assert isinstance(leave, Leave)
    assert leave.intent.asked == (again.approval_id,)


@pytest.mark.parametrize("use", [("2~r:7", 0), ("2~r:1", 1), ("2~r:1", -1)])
def test_a_cover_that_is_not_in_the_journal_lets_nothing_begin(use: tuple[str, int]) -> None:
    """Nobody could say what it covers, whatever hash the code has of it."""
    this = gate()
    ask(this, Found(FIVE, (DECLARED,)))
    asked_for = {"grant": GrantUse(*use), "match_sha256": FIVE.action_sha256}
    answer = this.ask(command(**asked_for), 1, Found(FIVE))
    assert isinstance(answer, EffectRefused)
    assert "does not fit what was approved" in tell(answer.failure)
    asked_for["grant"] = GrantUse("2~r:1", 0)
    assert isinstance(this.ask(command(**asked_for), 1, Found(FIVE)), Leave)


def test_only_an_edit_makes_an_edited_request() -> None:
    """Of a call that nobody has edited the next request is `changed`, whatever new code has made of it; after an edit it is `edited`, once."""
    this = gate()
    first = ask(this, Found(FIVE, (DECLARED,)))
    said = {"asked": (first.approval_id,), "effective": THREE.arguments}
    answer = this.ask(command(**said), 1, Found(THREE, (DECLARED,)))
    assert isinstance(answer, Ask)
    assert answer.request.again == "changed"
    # Somebody else edits what the policy asks, and says yes to it.
    clerk = replace(TERMS, role="clerk")
    request = replace(first, approval_id="2~r:1#2", source="policy", role="clerk", terms=clerk)
    this.note(request)
    edited = replace(
        request,
        approval_id="2~r:1#3",
        again="edited",
        covers=(replace(request.covers[0], action_sha256=THREE.action_sha256),),
        effective=Raw(THREE.arguments),
    )
    this.note(edited)
    both = (first.approval_id, edited.approval_id)
    again = ask(this, Found(THREE, (DECLARED,)), asked=both, effective=THREE.arguments)
    assert (again.again, again.source) == ("edited", "declared")
    newer = replace(THREE, action_sha256="f" * 64)
    three = (*both, again.approval_id)
    last = ask(this, Found(newer, (DECLARED,)), asked=three, effective=THREE.arguments)
    assert last.again == "changed"


def test_what_would_run_must_be_what_was_approved() -> None:
    """A hook that changes the arguments after the yes has the effect refused."""
    this = gate()
    first = ask(this, Found(FIVE, (DECLARED,)))
    answer = this.ask(
        command(asked=(first.approval_id,), effective=FIVE.arguments),
        1,
        Found(THREE, (DECLARED,)),
    )
    assert isinstance(answer, EffectRefused)
    assert answer.failure.type.endswith("ApprovalMismatchError")


def test_a_yes_to_a_second_call_of_one_purpose_is_no_yes_to_anything_else() -> None:
    """The declaration's demand is asked for all the same; both are spent."""
    this = gate()
    first = ask(this, Found(FIVE, (DECLARED,)))
    this.note(replace(first, approval_id="2~r:9", operation="r:9", source="purpose"))
    found = Found(FIVE, (DECLARED,))
    again = this.ask(command(asked=("2~r:9",)), 1, found)
    assert isinstance(again, Ask)
    both = command(asked=("2~r:9", first.approval_id), effective=FIVE.arguments)
    leave = this.ask(both, 1, found)
    assert isinstance(leave, Leave)
    assert [one.approval_id for one in leave.spends] == ["2~r:9", first.approval_id]


def test_a_yes_that_did_not_rest_on_a_demanded_fact_is_not_enough() -> None:
    """The same step with the same arguments must have been in sight, whatever it found."""
    fact = Precondition("base", "look", Raw(b'{"n":1}'), Raw(b'"abc"'))
    this, found = gate(), Found(FIVE, (resting_on(fact),))
    bare = ask(this, Found(FIVE, (DECLARED,)))
    full = ask(this, found, asked=(bare.approval_id,), effective=FIVE.arguments)
    assert full.preconditions == (fact,)
    assert b'"preconditions":{"base":' in bytes(full.subject)
    moved = replace(fact, value=Raw(b'"def"'))
    leave = this.ask(
        command(asked=(full.approval_id,), effective=FIVE.arguments),
        1,
        Found(FIVE, (resting_on(moved),)),
    )
    assert isinstance(leave, Leave)


def test_a_compensation_is_never_asked_for() -> None:
    """The yes to an effect is the yes to what undoes it."""
    leave = gate().ask(command(compensates="r:0"), 1, Found(FIVE, (DECLARED,)))
    assert isinstance(leave, Leave)
