"""Forks: what is kept, what becomes of effects and approvals, and that the origin is only read."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

import outlast
from outlast.app import App, open_store
from outlast.client import RunHandle
from outlast.effects.intent import Applied, NotApplied
from outlast.effects.key import idempotency_key
from outlast.errors import StoreError
from outlast.journal.canonical import payload_sha256
from outlast.journal.entry import (
    ApprovalRequested,
    EffectCompleted,
    EffectFailed,
    EffectInDoubt,
    EffectIntended,
    EffectRefused,
    Entry,
    Forked,
    LeftOut,
    RunName,
    Started,
    UpdateAnswered,
    from_row,
    to_row,
)
from outlast.store.change import Refused, RunKey, StartRun, Status
from outlast.testing import Faults, Receiver, Simulation
from outlast.worker.worker import WorkerOptions
from outlast.workflows.registry import Registry

receiver = Receiver()
steps: Counter[str] = Counter()
stuck: list[str] = []
"""Names of the effects whose attempts act, and then do not come back."""

lost: list[str] = []
"""Names of the effects whose attempts never act, and do not come back."""

declines: list[str] = []
"""What was refused; no third time."""

go = outlast.Signal("go", int)
over = outlast.Signal("over", int)
quote = outlast.Update("forked quote", int, int)
TIMEOUT = timedelta(seconds=20)


def act_now(value: str) -> str:
    return receiver.apply(outlast.idempotency_key(), value)


async def act(name: str, value: str) -> str:
    if name in lost:
        lost.remove(name)
        await asyncio.sleep(1_000_000)
    said = act_now(value)
    if name in stuck:
        stuck.remove(name)
        await asyncio.sleep(1_000_000)
    return said


@outlast.step(name="forked_price")
async def price(item: str) -> int:
    steps["price"] += 1
    return len(item)


@outlast.step
async def describe(item: str) -> str:
    steps["describe"] += 1
    return f"a {item}"


@outlast.effect(idempotent=True, repeats=True)
async def pay(item: str, amount: int) -> str:
    if "pay" in lost:
        lost.remove("pay")
        await asyncio.sleep(1_000_000)
    said = receiver.apply_once(outlast.idempotency_key(), f"paid {amount}")
    if "pay" in stuck:
        stuck.remove("pay")
        await asyncio.sleep(1_000_000)
    return said


async def find(note: str) -> Applied[str] | NotApplied:
    return receiver.find(outlast.idempotency_key())


@outlast.effect(probe=find, start_to_close_timeout=TIMEOUT)
async def mail(note: str) -> str:
    return await act("mail", f"mailed {note}")


@outlast.effect(start_to_close_timeout=TIMEOUT)
async def ship(note: str) -> str:
    return await act("ship", f"shipped {note}")


@outlast.effect(start_to_close_timeout=TIMEOUT, not_applied=(ValueError,))
async def refund(note: str) -> str:
    if len(declines) < 2:
        declines.append(note)
        raise ValueError(f"no such order, said {len(declines)} times")
    return act_now(note)


@outlast.workflow
async def order(item: str) -> str:
    amount = await price(item)
    paid = await pay(item, amount)
    note = await describe(item)
    return f"{paid}, {await ship(note)}"


@outlast.workflow
async def one_of(kind: str) -> str:
    await price(kind)
    match kind:
        case "pay":
            return await pay(kind, 1)
        case "mail":
            return await mail(kind)
        case _:
            return await ship(kind)


@outlast.workflow
async def tries() -> list[str]:
    said: list[str] = []
    for _ in range(3):
        try:
            said.append(await refund("it"))
        except ValueError as error:
            said.append(str(error))
    return [*said, await pay("x", 1), await pay("x", 1)]


@outlast.workflow
async def asks(use_within: float) -> str:
    await price("x")
    grant = await outlast.approval(
        "ship it",
        covers=[ship("it")],
        role="boss",
        expires_in=timedelta(hours=1),
        use_within=timedelta(seconds=use_within),
    )
    await outlast.sleep(60)
    await describe("x")
    return f"{grant.by}: {await ship('it')}"


@outlast.workflow
async def times() -> list[str]:
    """Branches on the time that passed."""
    began = outlast.now()
    await price("x")
    await outlast.sleep(3600)
    late = outlast.now() - began >= timedelta(hours=1)
    await (describe("late") if late else price("early"))
    return [outlast.info().run_id, f"{late}", f"{outlast.info().generation}"]


@outlast.workflow
async def hears() -> list[int]:
    numbers = [await outlast.receive(go)]
    await price("x")
    return [*numbers, await outlast.receive(go)]


@outlast.workflow
async def named() -> str:
    """Gives its own name away, and asks whether that was wise."""
    name = outlast.info().run_id
    await pay(name, 1)
    grant = await outlast.approval(
        name, covers=[ship(name)], role="boss", expires_in=timedelta(hours=1)
    )
    done = await ship(name)
    await price("x")
    return f"{grant.by} {done} {outlast.info().run_id}"


@outlast.workflow
async def complains() -> str:
    """Passes on what an error says, which names the run."""
    await ship("it")
    try:
        await ship("it")
    except outlast.RepeatedEffectError as error:
        await pay(str(error), 1)
    await price("x")
    return "done"


@outlast.workflow(timeout=timedelta(minutes=1))
async def limited(item: str) -> str:
    await price(item)
    return f"{item}: {await outlast.receive(go)}"


@outlast.workflow
async def every_month(month: int) -> str:
    await price("lamp")
    await pay("lamp", 4)
    if month == 2:
        return "done"
    return await outlast.continue_as_new(every_month(month + 1))


@outlast.workflow
async def answers() -> str:
    async def double(n: int) -> int:
        await outlast.receive(go)
        return await price("x" * n)

    outlast.on_update(quote, double)
    return str(await outlast.receive(over))


CODE = [
    *(price, describe, pay, mail, ship, refund),
    *(order, one_of, tries, asks, times, hears, named, complains, limited, every_month, answers),
]


@pytest.fixture(autouse=True)
def _clean() -> None:
    receiver.forget()
    steps.clear()
    stuck.clear()
    lost.clear()
    declines.clear()


async def entries(sim: Simulation, run: str, generation: int | None = None) -> list[Entry]:
    """Return a run's journal."""
    rows = await sim.store.journal(RunKey("default", run), generation=generation)
    return [from_row(one.row) for one in rows]


async def finished(sim: Simulation, call: Any, **more: Any) -> RunHandle[Any]:
    """Return a run `o` that has ended; there is a worker."""
    await sim.start_worker()
    handle = await sim.client.start(call, id="o", **more)
    await sim.closed("o")
    return handle


async def decide(sim: Simulation, run: str, *, yes: bool = True) -> None:
    """Decide the one request of a run when it is there."""
    while not (views := await sim.client.approvals.list(run_id=run)):
        await asyncio.sleep(0.1)
    act = sim.client.approvals.approve if yes else sim.client.approvals.deny
    await act(run, views[0].approval_id, seen_sha256=views[0].subject_sha256)


# What is kept


@pytest.mark.parametrize("position", range(1, 9))
def test_a_fork_at_each_position_ends_the_same_and_attempts_no_effect(position: int) -> None:
    """Steps that were kept are not run again, others are; effects have the outcomes that they had."""

    async def scenario(sim: Simulation) -> tuple[str, str, list[Entry]]:
        origin = await finished(sim, order("lamp"))
        before = receiver.requests.copy(), steps.copy()
        fork = await origin.fork(position, id="f", reason="to see")
        result = await fork.result()
        assert receiver.requests == before[0]
        assert steps - before[1] == Counter(
            {"price": int(position <= 2), "describe": int(position <= 5)}
        )
        return await origin.result(), result, await entries(sim, "f")

    first, second, written = Simulation(CODE).run(scenario)
    assert first == second == "paid 4, shipped a lamp"
    assert [one.source for one in written if isinstance(one, EffectCompleted)] == [
        "attempt" if position > 4 else "fork",
        "attempt" if position > 7 else "fork",
    ]


def test_a_fork_begins_with_the_entries_and_times_of_its_origin() -> None:
    """Rows are equal to the byte, but for the first; then stands what was forked, by whom, why, and what was known."""

    async def scenario(sim: Simulation) -> None:
        origin = await finished(sim, order("lamp"))
        await asyncio.sleep(100)
        await origin.fork(4, id="f", reason="to see")
        rows = await sim.store.journal(RunKey("default", "o"))
        forked = await sim.store.journal(RunKey("default", "f"))
        assert forked[1:3] == rows[1:3]
        assert [one.at for one in forked[:4]] == [one.at for one in rows[:4]]
        started, last = from_row(forked[0].row), from_row(forked[4].row)
        former = from_row(rows[0].row)
        assert isinstance(former, Started)
        assert started == replace(
            former,
            namespace="f",
            effects="refuse",
            keys="o",
            known_as=RunName("o"),
            is_last=True,
            requesters=("tester",),
        )
        assert from_row(forked[3].row) == LeftOut("r:2", "pay", "effect_intended")
        assert isinstance(last, Forked)
        assert forked[4].row.turn == rows[3].row.turn + 1
        assert forked[4].at == (await sim.store.head(RunKey("default", "f"))).created_at
        assert (last.origin, last.known_as) == (RunName("o"), RunName("f"))
        assert (last.position, last.by, last.reason) == (4, "tester", "to see")
        assert [(one.name, one.operation, one.outcome) for one in last.known] == [
            ("pay", "r:2", "completed"),
            ("ship", "r:4", "completed"),
        ]

    Simulation(CODE).run(scenario)


def test_a_fork_replays_and_its_times_are_kept() -> None:
    """Code that branches on the time sees what it saw, days later; what it does after the fork has the time of now."""

    async def scenario(sim: Simulation) -> tuple[list[str], list[str], list[str]]:
        origin = await finished(sim, times())
        await asyncio.sleep(86_400 * 2)
        late = await origin.fork(id="late", reason="all of it")
        early = await origin.fork(3, id="early", reason="before the timer")
        return await origin.result(), await late.result(), await early.result()

    origin, late, early = Simulation(CODE, longest=timedelta(days=9)).run(scenario)
    assert origin == ["o", "True", "1"]
    assert late == ["o", "True", "1"]
    assert early == ["early", "True", "1"]
    # Two days have passed since the timer was armed: nobody waits for it again.
    assert steps == {"price": 1, "describe": 2}


def test_a_fork_has_its_time_anew() -> None:
    """What the origin had left is not counted against it; the fork's own time is."""

    async def scenario(sim: Simulation) -> tuple[str, bool, bool]:
        origin = await finished(sim, limited("lamp"))
        fork = await origin.fork(2, id="f", reason="nobody answered")
        detail, now = await fork.detail(), sim.clock.now()
        await asyncio.sleep(30)
        await fork.send(go, 5)
        late = await origin.fork(2, id="late", reason="nobody answered")
        await sim.closed("late")
        in_time = detail.deadline is not None and detail.deadline > now + timedelta(seconds=55)
        return await fork.result(), in_time, (await late.detail()).timed_out_at is not None

    assert Simulation(CODE).run(scenario) == ("lamp: 5", True, True)


def test_the_next_generation_of_a_fork_shares_no_key_with_the_first() -> None:
    """An effect that it asks for is refused under `same_key`: nobody has said which of the origin's keys would be its own."""

    async def scenario(sim: Simulation) -> str:
        origin = await finished(sim, every_month(1))
        fork = await origin.fork(2, id="f", reason="to see", effects="same_key", generation=1)
        with pytest.raises(outlast.WorkflowFailedError) as caught:
            await fork.result()
        return str(caught.value.__cause__)

    told = Simulation(CODE).run(scenario)
    assert told.startswith("the run is a later generation of a fork; its origin may go on too")
    assert "nobody knows" in told
    assert receiver.total == 2


def test_an_update_to_the_origin_is_answered_there_alone() -> None:
    """What a fork makes of an update that it keeps stands in its own journal; it does not stop it."""

    async def scenario(sim: Simulation) -> tuple[int, str, list[Entry]]:
        await sim.start_worker()
        origin = await sim.client.start(answers(), id="o")
        asked = sim.spawn(origin.update(quote, 4))
        await sim.until("o", lambda head: head.status is Status.WAITING and head.next_seq > 2)
        fork = await origin.fork(3, id="f", reason="to see")
        for run in (fork, origin):
            await run.send(go, 1)
            await run.send(over, 2)
        result = await fork.result()
        rows = await sim.store.journal(RunKey("default", "f"))
        return await asked, result, [from_row(one.row) for one in rows]

    answer, result, entries = Simulation(CODE).run(scenario)
    assert (answer, result) == (4, "2")
    assert [bytes(one.value) for one in entries if isinstance(one, UpdateAnswered)] == [b"4"]


def test_code_is_told_the_name_under_which_it_acted() -> None:
    """Of an id that was used again: arguments and approvals that hold the name fit the entries that were kept."""

    async def scenario(sim: Simulation) -> tuple[str, str]:
        await finished(sim, price_only())
        origin = await sim.client.start(named(), id="o", if_closed="restart")
        await decide(sim, "o")
        first = await origin.result()
        fork = await origin.fork(7, id="f", reason="to see")
        return first, await fork.result()

    @outlast.workflow
    async def price_only() -> int:
        return await price("x")

    first, second = Simulation([*CODE, price_only]).run(scenario)
    assert first == "tester shipped o o"
    assert second == "tester shipped o f"


def test_a_fork_of_a_fork_is_told_the_names_that_there_were() -> None:
    """Of the first origin, as long as it replays what that did; then of the fork between; then its own."""

    async def scenario(sim: Simulation) -> list[str]:
        await sim.start_worker()
        origin = await sim.client.start(named(), id="o")
        await decide(sim, "o")
        await origin.result()
        first = await origin.fork(4, id="f1", reason="to see")
        await decide(sim, "f1")
        before = await first.fork(4, id="f2", reason="before the fork")
        await decide(sim, "f2")
        after = await first.fork(id="f3", reason="after it")
        return [await first.result(), await before.result(), await after.result()]

    assert Simulation(CODE).run(scenario) == [
        "tester shipped o f1",
        "tester shipped o f2",
        "tester shipped o f1",
    ]
    assert receiver.total == 2


def test_an_error_that_names_the_run_says_what_it_said() -> None:
    """It may be an argument of what was done."""

    async def scenario(sim: Simulation) -> str:
        origin = await finished(sim, complains())
        fork = await origin.fork(6, id="f", reason="to see")
        return await fork.result()

    assert Simulation(CODE).run(scenario) == "done"
    assert receiver.total == 2


def test_messages_that_came_before_are_kept_and_later_ones_are_not() -> None:
    """The fork waits for what its origin was sent later; what is sent to the fork is its own."""

    async def scenario(sim: Simulation) -> tuple[list[int], list[int]]:
        await sim.start_worker()
        origin = await sim.client.start(hears(), id="o")
        for number in (1, 2):
            await sim.until("o", lambda head: head.status is Status.WAITING)
            await origin.send(go, number, id=f"m{number}")
            await asyncio.sleep(10)
        fork = await origin.fork(4, id="f", reason="to see")
        await sim.until("f", lambda head: head.status is Status.WAITING)
        await fork.send(go, 3, id="m2")
        return await origin.result(), await fork.result()

    assert Simulation(CODE).run(scenario) == ([1, 2], [1, 3])


def test_a_message_may_come_before_its_fork() -> None:
    """As before any other run."""

    async def scenario(sim: Simulation) -> list[int]:
        await sim.start_worker()
        origin = await sim.client.start(hears(), id="o")
        await origin.send(go, 1)
        await sim.until("o", lambda head: head.status is Status.WAITING)
        fork = await origin.fork(id="f", reason="it is still open")
        await fork.send(go, 5)
        return await fork.result()

    assert Simulation(CODE).run(scenario) == [1, 5]


# Effects


def test_a_changed_outcome_stands_and_new_effects_are_refused() -> None:
    """The step's place has the value, with who said so and why; an effect that nobody knows does not happen."""

    async def scenario(sim: Simulation) -> tuple[list[Entry], BaseException | None]:
        origin = await finished(sim, order("lamp"))
        fork = await origin.fork(outcome=("r:3", "a ship"), id="f", reason="misread")
        with pytest.raises(outlast.WorkflowFailedError) as caught:
            await fork.result()
        return await entries(sim, "f"), caught.value.__cause__

    written, cause = Simulation(CODE).run(scenario)
    given = written[5]
    assert isinstance(given, outlast.journal.entry.StepCompleted)
    assert (bytes(given.value), given.by, given.reason) == (b'"a ship"', "tester", "misread")
    assert isinstance(written[6], Forked)
    assert written[6].changed == "r:3"
    assert isinstance(written[7], EffectRefused)
    assert isinstance(cause, outlast.ForkedEffectError)
    assert (cause.origin, cause.run, cause.step, cause.operation) == ("o", "f", "ship", "r:4")
    assert "same_key" in cause.hint
    assert receiver.total == 2


@pytest.mark.parametrize(("effects", "namespace"), [("same_key", "o"), ("new_key", "f")])
def test_an_allowed_effect_has_the_key_that_was_said(effects: Any, namespace: str) -> None:
    """That which the origin would have used, or one that follows from the fork's own id."""

    async def scenario(sim: Simulation) -> str:
        origin = await finished(sim, order("lamp"))
        receiver.forget()
        fork = await origin.fork(
            outcome=("r:3", "a ship"), id="f", reason="misread", effects=effects
        )
        return await fork.result()

    assert Simulation(CODE).run(scenario) == "paid 4, shipped a ship"
    key = idempotency_key(namespace, "ship", payload_sha256({"note": "a ship"}))
    assert receiver.requests == {key: 1}


@pytest.mark.parametrize("kept", [0, 1, 2])
@pytest.mark.parametrize("effects", ["refuse", "same_key", "new_key"])
def test_what_the_origin_knows_is_known_under_each_policy(effects: Any, kept: int) -> None:
    """The outcome, under the origin's key, written in one change with its intent; failures too, each as often as it was."""

    async def scenario(sim: Simulation) -> list[Any]:
        origin = await finished(sim, tries())
        before = receiver.requests.copy()
        position = 2 + 2 * kept
        fork = await origin.fork(position, id="f", reason="to see", effects=effects)
        assert await fork.result() == await origin.result()
        assert receiver.requests == before
        rows = (await sim.store.journal(RunKey("default", "f")))[position + 1 : -1]
        commits = [(one.at, from_row(one.row)) for one in rows]
        former = (await entries(sim, "o"))[position:-1]
        return [commits, former]

    commits, former = Simulation(CODE).run(scenario)
    intents, ends = commits[::2], commits[1::2]
    assert [one.key for _, one in intents] == [one.key for one in former[::2]]
    assert [one.number for _, one in intents] == [1, 1, 1, 1, 2][kept:]
    for (_, end), other in zip(ends, former[1::2], strict=True):
        reason = f"settled as {other.operation} of run o"
        assert end == replace(other, source="fork", reason=reason)
    assert [type(one) for _, one in ends] == [*[EffectFailed] * (2 - kept), *[EffectCompleted] * 3]
    assert [at for at, _ in intents] == [at for at, _ in ends]


def test_what_is_unknown_keeps_its_key_through_a_fork_with_new_ones() -> None:
    """It is the first origin's intent that may be carried out, whatever the fork between would have used."""
    lost.append("pay")

    async def scenario(sim: Simulation) -> str:
        await sim.start_worker()
        origin = await sim.client.start(one_of("pay"), id="o")
        await sim.until("o", lambda head: head.next_seq > 3)
        await origin.terminate()
        first = await origin.fork(id="f1", reason="to see", effects="new_key")
        assert (await sim.closed("f1")).status is Status.FAILED
        return await (await first.retry(reason="go on")).result()

    assert Simulation(CODE).run(scenario) == "paid 1"
    key = idempotency_key("o", "pay", payload_sha256({"item": "pay", "amount": 1}))
    assert receiver.requests == {key: 1}


@pytest.mark.parametrize("kind", ["pay", "mail", "ship"])
@pytest.mark.parametrize("effects", ["refuse", "same_key", "new_key"])
@pytest.mark.parametrize("ended", [True, False], ids=["ended", "open"])
def test_an_effect_of_which_nobody_knows_the_end(kind: str, effects: Any, ended: bool) -> None:
    """Refused, whatever was said, but for `same_key`: that goes on as the effect declares."""
    stuck.append(kind)

    async def scenario(sim: Simulation) -> tuple[Status, list[Entry]]:
        await sim.start_worker()
        origin = await sim.client.start(one_of(kind), id="o")
        while not receiver.total:
            await asyncio.sleep(0.1)
        if ended:
            await origin.terminate()
        await origin.fork(id="f", reason="to see", effects=effects)
        head = await sim.until("f", lambda head: head.status.closed or head.reason == "in doubt")
        return head.status, await entries(sim, "f")

    status, written = Simulation(CODE).run(scenario)
    (key,) = {one.key for one in written if isinstance(one, Forked) for one in one.known}
    intents = [one for one in written if isinstance(one, EffectIntended)]
    allowed = effects == "same_key"
    assert [one.key for one in intents] == [key] * allowed
    assert receiver.requests == {key: 1 + (allowed and kind == "pay")}
    assert receiver.changes == {key: 1}
    if not allowed:
        assert status is Status.FAILED
        (refused,) = (one for one in written if isinstance(one, EffectRefused))
        assert refused.failure.type == "outlast.errors.ForkedEffectError"
        assert "nobody knows" in refused.failure.message
    elif kind == "ship":
        (doubt,) = (one for one in written if isinstance(one, EffectInDoubt))
        assert status is Status.BLOCKED
        assert doubt.why == "nobody knows how r:2 of run o ended"
    else:
        assert status is Status.COMPLETED
        (end,) = (one for one in written if isinstance(one, EffectCompleted))
        assert end.source == ("probe" if kind == "mail" else "attempt")


@pytest.mark.parametrize("kind", ["mail", "ship"])
def test_what_nobody_finds_is_in_doubt_until_an_operator_says(kind: str) -> None:
    """The origin may make it a moment later; once somebody has cleared it, it is attempted once, under the same key."""
    lost.append(kind)

    async def scenario(sim: Simulation) -> tuple[str, list[Entry]]:
        await sim.start_worker()
        origin = await sim.client.start(one_of(kind), id="o")
        await sim.until("o", lambda head: head.next_seq > 3)
        await origin.terminate()
        began = sim.clock.monotonic()
        first = await origin.fork(id="f1", reason="to see", effects="same_key")
        await sim.until("f1", lambda head: head.reason == "in doubt")
        # Whatever was under way has had its time.
        assert sim.clock.monotonic() - began >= (TIMEOUT + timedelta(seconds=2)).total_seconds()
        await first.terminate()
        second = await first.fork(id="f2", reason="to see", effects="same_key")
        await sim.until("f2", lambda head: head.reason == "in doubt")
        assert receiver.total == 0
        await second.resolve("r:2", not_applied=True, reason="looked it up")
        return await second.result(), await entries(sim, "f2")

    result, written = Simulation(CODE).run(scenario)
    assert result in ("mailed mail", "shipped ship")
    (doubt,) = (one for one in written if isinstance(one, EffectInDoubt))
    nothing = "; the probe finds nothing of it" if kind == "mail" else ""
    assert doubt.why == f"nobody knows how r:2 of run f1 ended{nothing}"
    assert list(receiver.changes.values()) == [1]
    (key,) = receiver.changes
    assert key == idempotency_key("o", kind, payload_sha256({"note": kind}))


# Approvals


def test_a_fork_from_before_the_request_asks_again() -> None:
    """Case 50: the request is pending, and the old decision is history of the origin only."""

    async def scenario(sim: Simulation) -> None:
        await sim.start_worker()
        origin = await sim.client.start(asks(3600), id="o")
        await decide(sim, "o")
        await origin.result()
        fork = await origin.fork(3, id="f", reason="to see")
        await sim.until("f", lambda head: head.status is Status.WAITING)
        (pending,) = await sim.client.approvals.list()
        assert (pending.run_id, pending.state, pending.by) == ("f", "pending", "")
        (old,) = await sim.client.approvals.list(pending=False, run_id="o")
        assert (old.state, old.by) == ("approved", "tester")
        await decide(sim, "f")
        assert await fork.result() == "tester: shipped it"
        # It was known: the yes was for what had happened, and nothing more did.
        assert receiver.total == 1

    Simulation(CODE).run(scenario)


def test_a_request_without_a_decision_is_made_anew() -> None:
    """Its time runs from the fork on, and a no is a no."""

    async def scenario(sim: Simulation) -> list[Entry]:
        await sim.start_worker()
        origin = await sim.client.start(asks(3600), id="o")
        await decide(sim, "o")
        await origin.result()
        await asyncio.sleep(7200)
        fork = await origin.fork(4, id="f", reason="to see")
        await decide(sim, "f", yes=False)
        with pytest.raises(outlast.WorkflowFailedError, match="denied by tester"):
            await fork.result()
        return await entries(sim, "f")

    written = Simulation(CODE, longest=timedelta(days=1)).run(scenario)
    assert isinstance(written[3], LeftOut)
    (request,) = (one for one in written if isinstance(one, ApprovalRequested))
    assert request.approval_id == "1~r:2"
    assert receiver.total == 1


@pytest.mark.parametrize("effects", ["refuse", "same_key", "new_key"])
def test_an_approval_never_passes_to_a_fork(effects: Any) -> None:
    """The origin was granted it and did not use it: the fork may not, and is told why."""

    async def scenario(sim: Simulation) -> tuple[BaseException | None, bool]:
        await sim.start_worker()
        origin = await sim.client.start(asks(3600), id="o")
        await decide(sim, "o")
        await sim.until("o", lambda head: head.next_seq > 4)
        await origin.terminate()
        fork = await origin.fork(5, id="f", reason="to see", effects=effects)
        with pytest.raises(outlast.WorkflowFailedError) as caught:
            await fork.result()
        views = await sim.client.approvals.list(pending=False, run_id="f")
        return caught.value.__cause__, bool(views)

    cause, asked = Simulation(CODE).run(scenario)
    assert not asked
    assert receiver.total == 0
    if effects == "refuse":
        assert isinstance(cause, outlast.ForkedEffectError)
    else:
        assert isinstance(cause, outlast.ApprovalMismatchError)
        assert "a fork inherits none" in cause.message
        assert cause.step == "ship"


# Forks of forks


def test_a_fork_of_a_fork_knows_what_both_did() -> None:
    """What the first origin settled and the first fork did not come to is known to the second fork, under the first key."""

    async def scenario(sim: Simulation) -> tuple[str, list[str], list[Entry]]:
        origin = await finished(sim, order("lamp"))
        first = await origin.fork(3, id="f1", reason="to see", effects="new_key")
        await sim.closed("f1")
        second = await first.fork(3, id="f2", reason="further back")
        third = await second.fork(2, id="f3", reason="before the forks")
        results = [await second.result(), await third.result()]
        return await origin.result(), results, await entries(sim, "f3")

    first, results, written = Simulation(CODE).run(scenario)
    assert results == [first, first]
    assert receiver.total == 2
    assert [one.origin.run_id for one in written if isinstance(one, Forked)] == ["f2"]


def test_what_a_fork_did_not_come_to_is_handed_on() -> None:
    """A fork that was ended early has used nothing of what it knows."""

    async def scenario(sim: Simulation) -> tuple[str, list[Entry]]:
        origin = await finished(sim, order("lamp"))
        for worker in sim.workers:
            worker.kill()
        first = await origin.fork(2, id="f1", reason="to see")
        await first.terminate()
        second = await first.fork(id="f2", reason="go on", effects="same_key")
        await sim.start_worker()
        return await second.result(), await entries(sim, "f2")

    result, written = Simulation(CODE).run(scenario)
    assert result == "paid 4, shipped a lamp"
    assert receiver.total == 2
    assert [one.known_as.run_id for one in written if isinstance(one, Forked)] == ["f1", "f2"]


@pytest.mark.parametrize(
    ("policy", "namespace"), [("refuse", "o"), ("same_key", "o"), ("new_key", "f1")]
)
def test_the_same_key_is_that_which_the_forked_run_would_have_used(
    policy: Any, namespace: str
) -> None:
    """Through a fork that was to refuse, or to use its origin's keys, that is the first origin's."""

    async def scenario(sim: Simulation) -> str:
        origin = await finished(sim, order("lamp"))
        first = await origin.fork(2, id="f1", reason="to see", effects=policy)
        await sim.closed("f1")
        receiver.forget()
        second = await first.fork(
            outcome=("r:3", "a ship"), id="f2", reason="misread", effects="same_key"
        )
        return await second.result()

    assert Simulation(CODE).run(scenario) == "paid 4, shipped a ship"
    key = idempotency_key(namespace, "ship", payload_sha256({"note": "a ship"}))
    assert receiver.requests == {key: 1}


def test_the_child_of_a_fork_is_bound_by_its_policy() -> None:
    """It knows nothing of any origin: its effects are refused, and a same key that nobody named is none."""

    async def scenario(sim: Simulation) -> list[str]:
        await sim.start_worker()
        told: list[str] = []
        for effects in ("refuse", "same_key", "new_key"):
            run = RunKey("default", f"child {effects}")
            started = Started(
                "one_of",
                outlast.journal.entry.Raw(b'{"kind":"pay"}'),
                b"s" * 16,
                run.run_id,
                effects=effects,
            )
            await sim.client.commit(StartRun(run, "one_of", "f", (to_row(started, 0, 0),)))
            head = await sim.closed(run.run_id)
            told.append(f"{head.status} {head.reason}")
        return told

    refused, same, new = Simulation(CODE).run(scenario)
    for one in (refused, same):
        assert one.startswith(
            "failed outlast.errors.ForkedEffectError: the run is a child of a fork"
        )
    assert new == "completed "
    assert receiver.requests == {
        idempotency_key("child new_key", "pay", payload_sha256({"item": "pay", "amount": 1})): 1
    }


# The origin


class LocalApp(App):
    """Client and worker of this file's code, whatever else was imported."""

    def __init__(self, url: str) -> None:
        options = WorkerOptions(library="0")
        super().__init__(url, workflows=None, tenant="default", principal="tester", options=options)

    async def __aenter__(self) -> LocalApp:
        """Open the store, and start the worker."""
        await self._start_worker(await open_store(self._url), Registry(CODE))
        return self


def test_the_origin_is_not_touched(tmp_path: Path) -> None:
    """Not a byte of any row of it, open or closed."""
    file = tmp_path / "fork.db"

    def rows() -> list[Any]:
        connection = apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY)
        tables = ("run", "entry", "operation", "message", "outbox", "approval")
        found = [
            list(connection.execute(f"SELECT * FROM {table} WHERE run_id IN ('o', 'w')"))  # noqa: S608
            for table in tables
        ]
        connection.close()
        return found

    async def scenario() -> None:
        async with LocalApp(f"sqlite:///{file}") as app:
            origin = await app.start(order("lamp"), id="o")
            await origin.result()
            waiting = await app.start(hears(), id="w")
            await waiting.send(go, 1)
            while (await waiting.status()).entries < 4:
                await asyncio.sleep(0.01)
        before = rows()
        async with outlast.connect(f"sqlite:///{file}") as client:
            for run in ("o", "w"):
                for policy in ("refuse", "same_key"):
                    fork = client.handle(run).fork
                    await fork(2, id=f"f/{run}/{policy}", reason="to see", effects=policy)
            with pytest.raises(outlast.DefinitionError):
                await client.handle("o").fork(99, id="g", reason="to see")
        assert rows() == before
        async with LocalApp(f"sqlite:///{file}") as app:
            assert await app.handle("f/o/refuse").result() == "paid 4, shipped a lamp"
        assert [row for row in rows()[1] if row[1] == "o"] == [
            row for row in before[1] if row[1] == "o"
        ]

    asyncio.run(scenario())


def test_case_160_forks_of_many_runs_have_an_answer_each() -> None:
    """A run with a journal, one that nobody has taken up, and none: forked, forked, not found."""

    async def scenario(sim: Simulation) -> tuple[list[Any], str]:
        await finished(sim, order("lamp"))
        for worker in sim.workers:
            worker.kill()
        await sim.client.start(order("empty"), id="empty")
        answers = await asyncio.gather(
            *(
                sim.client.handle(run).fork(id=f"f/{run}", reason="all")
                for run in ("o", "empty", "missing")
            ),
            return_exceptions=True,
        )
        written = await entries(sim, "f/empty")
        assert [type(one) for one in written] == [Started, Forked]
        await sim.start_worker()
        # Nobody has done anything in the origin's name, so nothing is known, and effects are refused.
        with pytest.raises(outlast.WorkflowFailedError):
            await answers[1].result()
        return answers, await answers[0].result()

    answers, result = Simulation(CODE).run(scenario)
    assert [type(one).__name__ for one in answers] == ["RunHandle", "RunHandle", "RunNotFoundError"]
    assert result == "paid 4, shipped a lamp"


# What is refused


async def refused(fork: Any, *given: Any, **more: Any) -> outlast.OutlastError:
    with pytest.raises(outlast.OutlastError) as caught:
        await fork(*given, **{"id": "f", "reason": "to see", **more})
    assert caught.value.hint
    return caught.value


def test_a_position_is_the_number_of_an_entry_where_a_turn_begins() -> None:
    """The error says which there are; nothing is written."""

    async def scenario(sim: Simulation) -> None:
        origin = await finished(sim, order("lamp"))
        for wrong in (0, -1, 9, 99):
            error = await refused(origin.fork, wrong)
            assert isinstance(error, outlast.DefinitionError)
            assert "from 1 to 8" in error.hint
        await origin.fork(8, id="last", reason="to see")
        talked = await sim.client.start(hears(), id="h")
        await sim.until("h", lambda head: head.status is Status.WAITING)
        for worker in sim.workers:
            worker.kill()
        for number in (1, 2, 3):
            await talked.send(go, number)
        await sim.start_worker()
        await talked.result()
        error = await refused(talked.fork, 3)
        assert (
            error.message == "entries 2 to 4 were taken in together, and position 3 is between them"
        )
        assert error.hint == "give 2 or 5"
        await talked.fork(2, id="ok", reason="to see")
        assert await sim.store.head(RunKey("default", "f")) is None

    Simulation(CODE).run(scenario)


def test_an_outcome_is_that_of_a_step_that_has_one() -> None:
    """Effects did what they did; what is still open is resolved and not forked; the value must fit."""

    async def scenario(sim: Simulation) -> None:
        origin = await finished(sim, order("lamp"))
        for operation in ("r:2", "r:9"):
            error = await refused(origin.fork, outcome=(operation, 1))
            assert "no step that has an outcome" in error.message
        error = await refused(origin.fork, outcome=("r:1", "five"))
        assert (error.step, error.operation) == ("forked_price", "r:1")
        assert "does not fit the result of step forked_price" in error.message
        error = await refused(origin.fork, 2, outcome=("r:1", 5))
        assert "a position and an outcome" in error.message
        assert isinstance(
            await refused(origin.fork, outcome=("r:1", object())), outlast.EncodeError
        )

    Simulation(CODE).run(scenario)


def test_a_fork_says_why_and_what_becomes_of_its_effects() -> None:
    """A blank reason is none; another word than the three is a mistake; an id must be one."""

    async def scenario(sim: Simulation) -> None:
        origin = await finished(sim, order("lamp"))
        assert "reason" in (await refused(origin.fork, reason=" ")).message
        assert "refuse, same_key, new_key" in (await refused(origin.fork, effects="same-key")).hint
        assert "run id" in (await refused(origin.fork, id="a~b")).message
        missing = await refused(origin.fork, generation=2)
        assert isinstance(missing, outlast.RunNotFoundError)

    Simulation(CODE).run(scenario)


def test_a_former_generation_can_be_forked() -> None:
    """What was done under an id before it was used again is as good an origin."""

    async def scenario(sim: Simulation) -> tuple[str, str]:
        origin = await finished(sim, order("lamp"))
        await sim.client.start(order("car"), id="o", if_closed="restart")
        await sim.closed("o")
        old = await origin.fork(2, id="f1", reason="to see", generation=1)
        new = await sim.client.handle("o", order).fork(2, id="f2", reason="to see")
        return await old.result(), await new.result()

    assert Simulation(CODE).run(scenario) == ("paid 4, shipped a lamp", "paid 3, shipped a car")
    assert receiver.total == 4


def test_the_same_fork_again_is_the_same_run() -> None:
    """Also when its answer was lost; another fork, or a start, of that id is a conflict."""

    async def scenario(sim: Simulation) -> int:
        origin = await finished(sim, order("lamp"))
        sim.outside.faults = Faults(lost_answer=0.5)
        for _ in range(10):
            await _patiently(lambda: origin.fork(2, id="f", reason="to see"))
        sim.outside.faults = Faults()
        for more in ({"position": 3}, {"outcome": ("r:1", 4)}, {"effects": "same_key"}):
            given: dict[str, Any] = {"position": 2, **more}
            if "outcome" in more:
                del given["position"]
            assert isinstance(await refused(origin.fork, **given), outlast.RunConflictError)
        with pytest.raises(outlast.RunConflictError):
            await sim.client.start(order("lamp"), id="f")
        return len([one for one in await sim.client.runs.list() if one.run_id == "f"])

    async def _patiently(ask: Any) -> None:
        while True:
            try:
                await ask()
                return
            except outlast.StoreUnavailableError:
                await asyncio.sleep(0.1)

    assert Simulation(CODE).run(scenario) == 1


def test_a_store_whose_clock_is_behind_refuses_in_words() -> None:
    """Entries would be younger than their run."""

    async def scenario(sim: Simulation) -> None:
        origin = await finished(sim, order("lamp"))
        sim.clock.set_wall(sim.clock.now() - timedelta(hours=1))
        with pytest.raises(StoreError, match="clock is behind"):
            await origin.fork(id="f", reason="to see")

    Simulation(CODE).run(scenario)


def test_what_the_store_does_not_take_is_told() -> None:
    """With its word for it."""

    async def scenario(sim: Simulation) -> None:
        origin = await finished(sim, order("lamp"))
        commit = sim.outside.commit

        async def refuse(changes: Any) -> list[Any]:
            return [Refused("unstorable", "entries[0].body")]

        sim.outside.commit = refuse
        with pytest.raises(StoreError, match="unstorable"):
            await origin.fork(id="f", reason="to see")
        sim.outside.commit = commit

    Simulation(CODE).run(scenario)


# Crashes


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_fork_exists_whole_or_not_at_all(moment: str) -> None:
    """It is one change: whoever makes it is killed before it or after it."""

    async def scenario(sim: Simulation) -> str:
        await finished(sim, order("lamp"))
        (first,) = sim.workers
        number = first.store.commits + 1

        def at_commit(when: str, count: int) -> None:
            if (when, count) == (moment, number):
                first.kill()

        first.store.at_commit = at_commit
        handle = first.client.handle("o")
        sim.spawn(first.within(handle.fork(4, id="f", reason="to see")))
        await asyncio.sleep(5)
        assert first.process.dead
        found = await entries(sim, "f")
        assert bool(found) == (moment == "after")
        assert not found or isinstance(found[-1], Forked)
        fork = await sim.client.handle("o").fork(4, id="f", reason="to see")
        await sim.start_worker()
        return await fork.result()

    assert Simulation(CODE).run(scenario) == "paid 4, shipped a lamp"
    assert receiver.total == 2


@pytest.mark.parametrize("effects", ["refuse", "same_key", "new_key"])
def test_a_forked_run_is_killed_at_each_of_its_commits(effects: Any) -> None:
    """Wherever its worker dies: the same result, known effects never attempted, allowed ones applied once."""

    def run(commit: int, moment: str) -> bool:
        receiver.forget()

        async def scenario(sim: Simulation) -> bool:
            origin = await finished(sim, order("lamp"))
            sim.workers[0].kill()
            receiver.forget()
            fork = await origin.fork(outcome=("r:1", 9), id="f", reason="to see", effects=effects)
            second = await sim.start_worker()

            def at_commit(when: str, number: int) -> None:
                if (when, number) == (moment, commit):
                    second.kill()

            second.store.at_commit = at_commit
            await sim.until("f", lambda head: head.status.closed or second.process.dead)
            await sim.start_worker()
            head = await sim.closed("f")
            if effects == "refuse":
                assert "ForkedEffectError" in head.reason
                assert receiver.total == 0
            else:
                assert await fork.result() == "paid 9, shipped a lamp"
                # Shipping was known; paying another amount was allowed.
                assert list(receiver.changes.values()) == [1]
                assert list(dict(receiver.log).values()) == ["paid 9"]
            return second.process.dead

        return Simulation(CODE).run(scenario)

    died = [run(commit, moment) for commit in range(1, 9) for moment in ("before", "after")]
    assert died.count(True) >= (4 if effects == "refuse" else 8)
    assert not all(died)


@pytest.mark.parametrize("kind", ["pay", "mail", "ship"])
@pytest.mark.parametrize("acted", [True, False], ids=["acted", "never acted"])
def test_a_fork_that_goes_on_with_what_was_lost_is_killed_at_each_commit(
    kind: str, acted: bool
) -> None:
    """Wherever its worker dies: what the effect declares decides, and the world is changed at most once."""

    def run(commit: int, moment: str) -> tuple[bool, Status]:
        receiver.forget()
        (stuck if acted else lost).append(kind)

        async def scenario(sim: Simulation) -> tuple[bool, Status]:
            await sim.start_worker()
            origin = await sim.client.start(one_of(kind), id="o")
            await sim.until("o", lambda head: head.next_seq > 3)
            await asyncio.sleep(1)
            sim.workers[0].kill()
            await origin.terminate()
            await origin.fork(id="f", reason="to see", effects="same_key")
            second = await sim.start_worker()

            def at_commit(when: str, number: int) -> None:
                if (when, number) == (moment, commit):
                    second.kill()

            second.store.at_commit = at_commit
            await sim.until(
                "f",
                lambda head: head.status.closed or head.reason == "in doubt" or second.process.dead,
            )
            await sim.start_worker()
            head = await sim.until(
                "f", lambda head: head.status.closed or head.reason == "in doubt"
            )
            return second.process.dead, head.status

        return Simulation(CODE).run(scenario)

    goes_on = kind == "pay" or (kind == "mail" and acted)
    deaths = 0
    for commit in range(1, 7):
        for moment in ("before", "after"):
            died, status = run(commit, moment)
            deaths += died
            assert status is (Status.COMPLETED if goes_on else Status.BLOCKED)
            assert sum(receiver.changes.values()) == (acted or kind == "pay")
    assert deaths >= 4
