"""What a yes rests on is looked at again when the grant is first used: by the author's step, outside of the journal."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
import hashlib
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from msgspec import Raw

import outlast
from outlast.approvals.decision import Decision
from outlast.journal.asking import Precondition, Terms
from outlast.journal.canonical import canonical
from outlast.journal.entry import EffectIntended, Entry, from_row
from outlast.replay.context import ApprovalRequest, current_context
from outlast.store.change import Applied, Decide, Message, MessageKind, RunKey
from outlast.testing import Receiver, Simulation
from outlast.testing.simulation.consent import Consent

RUN = RunKey("default", "r")
SOON = timedelta(minutes=30)
receiver = Receiver()
world = {"head": "a1"}
looks: list[str] = []
"""What became of each look at the world."""
plan: list[Any] = []
"""What the next looks do: raise an error, sleep for some seconds, or look."""


@outlast.step(retry=outlast.RetryPolicy(initial_interval=timedelta(seconds=30)))
async def head_of(branch: str) -> str:
    step = plan.pop(0) if plan else None
    if isinstance(step, Exception):
        looks.append("raised")
        raise step
    if step is not None:
        looks.append("slept")
        await asyncio.sleep(step)
    looks.append(world["head"])
    return f"{branch}@{world['head']}"


@outlast.step(start_to_close_timeout=timedelta(seconds=2))
async def slow_head_of(branch: str) -> str:
    return await head_of.function(branch)


@outlast.effect(idempotent=True)
async def push(branch: str, text: str) -> str:
    world["head"] = text
    return receiver.apply_once(outlast.idempotency_key(), text)


SUBJECT = b'{"subject":"push"}'


async def ask_for(*texts: str, step: str = "head_of", value: bytes = b'"main@a1"') -> None:
    """Ask a person for pushes, on the state of the branch."""
    request = current_context.get()
    fact = Precondition("head", step, Raw(b'{"branch":"main"}'), Raw(value))
    covers = tuple(push.cover(push("main", text))[0] for text in texts)
    await request.perform(
        ApprovalRequest(
            subject=Raw(SUBJECT),
            subject_sha256=hashlib.sha256(SUBJECT).hexdigest(),
            covers=covers,
            terms=Terms("boss", SOON),
            same_subject=lambda recorded: True,
            preconditions=(fact,),
        )
    )


@outlast.workflow
async def push_after_yes(step: str) -> str:
    await ask_for("b2", step=step)
    try:
        return await push("main", "b2")
    except outlast.ApprovalPreconditionError as error:
        return f"{error.code} {error.name} {error.was} {error.now}".strip()


@outlast.workflow
async def push_uncaught(step: str) -> str:
    await ask_for("b2", step=step)
    return await push("main", "b2")


@outlast.workflow
async def push_twice(together: bool) -> list[str]:
    await ask_for("b2", "c3")
    if together:
        return await asyncio.gather(push("main", "b2"), push("main", "c3"))
    return [await push("main", "b2"), await push("main", "c3")]


CODE = [head_of, slow_head_of, push, push_after_yes, push_uncaught, push_twice]


@pytest.fixture(autouse=True)
def _asked_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody judge what is asked: a request that is made by hand shows less than it covers."""
    for name in ("decided", "written"):
        monkeypatch.setattr(Consent, name, lambda *_: None)


@pytest.fixture(autouse=True)
def _clean() -> None:
    receiver.forget()
    looks.clear()
    plan.clear()
    world["head"] = "a1"


async def approved(sim: Simulation, call: Any) -> Any:
    """Start a run, say yes to its request, and return what it came to."""
    await sim.start_worker()
    handle = await sim.client.start(call, id="r")
    await say_yes(sim)
    return await handle.result()


async def say_yes(sim: Simulation) -> None:
    """Approve the run's request when it is there: what the run asks is put together by hand here, and so is the decision."""
    while not (rows := await sim.store.approvals("default")):
        await asyncio.sleep(0.1)
    put = rows[0].put
    said = Decision(put.approval_id, put.operation, True, "tester", "", put.subject_sha256)
    body = msgspec.json.encode(said)
    message = Message("yes", MessageKind.DECISION, put.approval_id, "tester", body)
    decide = Decide(RUN, put.approval_id, put.subject_sha256, True, "tester", message)
    (verdict,) = await sim.store.commit([decide])
    assert isinstance(verdict, Applied)


async def entries(sim: Simulation) -> list[Entry]:
    """Return the run's journal."""
    return [from_row(one.row) for one in await sim.store.journal(RUN)]


def test_what_still_holds_lets_it_begin() -> None:
    """The fact is looked at once, without an entry of its own, and the intent says when."""

    async def scenario(sim: Simulation) -> tuple[str, list[Entry]]:
        return await approved(sim, push_after_yes("head_of")), await entries(sim)

    said, found = Simulation(CODE).run(scenario)
    assert said == "b2"
    assert looks == ["a1"]
    (intent,) = [one for one in found if isinstance(one, EffectIntended)]
    assert intent.checked_at is not None
    assert not any(type(one).__name__ == "StepCompleted" for one in found)


def test_what_holds_no_more_keeps_it_from_beginning() -> None:
    """The branch has moved: the effect is refused with what it was and what it is."""
    world["head"] = "z9"

    async def scenario(sim: Simulation) -> str:
        return await approved(sim, push_after_yes("head_of"))

    said = Simulation(CODE).run(scenario)
    assert said == 'approval_precondition head "main@a1" "main@z9"'
    assert receiver.total == 0


def test_a_look_that_fails_is_repeated() -> None:
    """A look changes nothing: it is made three times, within seconds."""
    plan.extend([OSError("down"), OSError("down")])

    async def scenario(sim: Simulation) -> tuple[str, float]:
        began = sim.clock.monotonic()
        return await approved(sim, push_after_yes("head_of")), sim.clock.monotonic() - began

    said, seconds = Simulation(CODE).run(scenario)
    assert said == "b2"
    assert looks == ["raised", "raised", "a1"]
    assert seconds < 10


@pytest.mark.parametrize(
    ("step", "what", "made"),
    [
        ("head_of", [OSError("down")] * 3, 3),
        ("head_of", [61, 61, 61], 3),
        ("slow_head_of", [3, 3, 3], 3),
        ("gone", [], 0),
    ],
)
def test_what_nobody_can_find_out_does_not_hold(step: str, what: list[Any], made: int) -> None:
    """A look that raises each time, is late each time, or of which the app knows nothing, is a no."""
    plan.extend(what)

    async def scenario(sim: Simulation) -> str:
        return await approved(sim, push_after_yes(step))

    assert Simulation(CODE).run(scenario) == 'approval_precondition head "main@a1"'
    assert len(looks) == made
    assert receiver.total == 0


def test_a_look_that_takes_longer_than_its_answer_counts_is_not_waited_for() -> None:
    """What it says would be too old to let anything begin: the error names the step, and what to do."""
    plan.extend([7, 7, 7])

    async def scenario(sim: Simulation) -> tuple[str, float]:
        await sim.start_worker()
        handle = await sim.client.start(push_uncaught("head_of"), id="r")
        await say_yes(sim)
        began = sim.clock.monotonic()
        with pytest.raises(outlast.WorkflowFailedError) as caught:
            await handle.result()
        return str(caught.value), sim.clock.monotonic() - began

    said, seconds = Simulation(CODE).run(scenario)
    assert "the step head_of was not done within 0:00:05" in said
    assert "recheck_within" in said
    assert seconds < 20


@pytest.mark.parametrize("together", [True, False])
def test_one_grant_over_two_effects_is_looked_at_once(together: bool) -> None:
    """The first of them may well change the fact: that does not keep the second from beginning."""

    async def scenario(sim: Simulation) -> list[str]:
        return await approved(sim, push_twice(together))

    assert Simulation(CODE).run(scenario) == ["b2", "c3"]
    assert receiver.total == 2


def test_the_first_effect_acts_while_the_second_is_looked_at() -> None:
    """What the first of two effects of one grant has changed meanwhile is not held against the second."""
    plan.extend([None, 4])

    async def scenario(sim: Simulation) -> list[str]:
        return await approved(sim, push_twice(True))

    assert Simulation(CODE).run(scenario) == ["b2", "c3"]
    assert looks[-1] == "b2"


def test_a_worker_that_dies_while_it_looks() -> None:
    """Nothing of a look is written: the next worker looks again, and the effect happens once."""
    plan.append(30)

    async def scenario(sim: Simulation) -> str:
        first = await sim.start_worker()

        async def kill() -> None:
            while "slept" not in looks:
                await asyncio.sleep(0.1)
            first.kill()
            await sim.start_worker()

        sim.spawn(kill())
        handle = await sim.client.start(push_after_yes("head_of"), id="r")
        await say_yes(sim)
        return await handle.result()

    assert Simulation(CODE).run(scenario) == "b2"
    assert looks == ["slept", "a1"]
    assert receiver.total == 1


def test_a_cancel_while_it_is_looked_at() -> None:
    """An effect whose run is cancelled while it is asked about never begins."""
    plan.append(30)

    async def scenario(sim: Simulation) -> str:
        async def cancel() -> None:
            while "slept" not in looks:
                await asyncio.sleep(0.1)
            await sim.client.handle("r").cancel()

        sim.spawn(cancel())
        with pytest.raises(outlast.RunCancelledError):
            await approved(sim, push_after_yes("head_of"))
        return " ".join(type(one).__name__ for one in await entries(sim))

    assert "EffectIntended" not in Simulation(CODE).run(scenario)
    assert receiver.total == 0


def test_a_stop_of_the_worker_does_not_wait_for_a_look() -> None:
    """Nothing of the effect has begun: the run is given back, and the next worker asks again."""
    plan.append(50)

    async def scenario(sim: Simulation) -> tuple[str, float]:
        first = await sim.start_worker()
        handle = await sim.client.start(push_after_yes("head_of"), id="r")
        await say_yes(sim)
        while "slept" not in looks:
            await asyncio.sleep(0.1)
        began = sim.clock.monotonic()
        await first.stop(timedelta(seconds=40))
        stopped = sim.clock.monotonic() - began
        await sim.start_worker()
        return await handle.result(), stopped

    said, seconds = Simulation(CODE).run(scenario)
    assert said == "b2"
    assert seconds < 1


def test_values_are_compared_as_they_are_hashed() -> None:
    """What a step returns is compared in its canonical form."""
    assert canonical("main@a1") == b'"main@a1"'
