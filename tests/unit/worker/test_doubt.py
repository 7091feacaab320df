"""What is known of an effect in doubt, which doubt somebody speaks of, and how a probe is asked."""

# ruff: noqa: D103 - the workflows and effects of a test say what they do in their bodies
from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

import outlast
from outlast.effects.intent import NO_DOUBT, Applied, NotApplied, Unknown
from outlast.journal.entry import (
    AlarmRaised,
    EffectCleared,
    EffectCompleted,
    EffectInDoubt,
    Entry,
    from_row,
)
from outlast.store.change import RunHead, RunKey, Status
from outlast.testing import SimulatedWorker, Simulation
from outlast.worker.worker import WorkerOptions

TIMEOUT = timedelta(seconds=20)
SETTLE = timedelta(seconds=2)
QUICK = outlast.RetryPolicy(
    initial_interval=timedelta(seconds=3),
    backoff_coefficient=1.0,
    maximum_attempts=3,
    non_retryable_error_types=("PermissionError",),
)
plan: list[object] = []
"""What the attempts do in turn: raise an exception, `die`, or nothing special."""
answers: list[object] = []
"""What the probes do in turn: return that, raise that, wait so many seconds, or call what is given; `Unknown` when none is left."""
asked: list[tuple[datetime, str]] = []
"""When the probe was asked, and under which key."""
keys: list[str] = []
sims: list[Simulation] = []
workers: list[SimulatedWorker] = []


class RefusedError(Exception):
    """Proves that nothing happened."""


async def act(amount: int) -> int:
    keys.append(outlast.idempotency_key())
    await asyncio.sleep(0.2)
    step = plan.pop(0) if plan else None
    if step == "die":
        workers[-1].kill()
        await asyncio.sleep(0.1)
    if isinstance(step, Exception):
        raise step
    return amount


async def look(amount: int) -> Applied[int] | NotApplied | Unknown:
    asked.append((sims[-1].clock.now(), outlast.idempotency_key()))
    answer: Any = answers.pop(0) if answers else Unknown("no answer")
    if callable(answer):
        return await answer(amount)
    if isinstance(answer, int | float):
        await asyncio.sleep(answer)
        return Applied(amount)
    if isinstance(answer, Exception):
        raise answer
    return answer


@outlast.effect(
    probe=look,
    start_to_close_timeout=TIMEOUT,
    settle=SETTLE,
    not_applied=(RefusedError,),
    probe_retry=QUICK,
    probe_timeout=timedelta(seconds=5),
)
async def asks(amount: int) -> int:
    return await act(amount)


@outlast.effect(
    probe=look, start_to_close_timeout=TIMEOUT, settle=SETTLE, not_applied=(RefusedError,)
)
async def asks_as_usual(amount: int) -> int:
    return await act(amount)


@outlast.effect(start_to_close_timeout=TIMEOUT, settle=SETTLE)
async def neither(amount: int) -> int:
    return await act(amount)


EFFECTS = {one.name: one for one in (asks, asks_as_usual, neither)}


@outlast.workflow
async def use(which: str, amount: int) -> int:
    return await EFFECTS[which](amount)


CODE = [*EFFECTS.values(), use]


@pytest.fixture(autouse=True)
def _clean() -> None:
    for one in (plan, answers, asked, keys, sims, workers):
        one.clear()


def simulation() -> Simulation:
    sims.append(Simulation(CODE, options=WorkerOptions(library="simulated")))
    return sims[-1]


async def worker(sim: Simulation) -> SimulatedWorker:
    workers.append(await sim.start_worker())
    return workers[-1]


async def entries(sim: Simulation) -> list[Entry]:
    return [from_row(one.row) for one in await sim.store.journal(RunKey("default", "r"))]


def over(head: RunHead) -> bool:
    return head.status.closed or head.status is Status.BLOCKED


async def doubt_of(sim: Simulation, which: str) -> EffectInDoubt:
    """Run the effect until it is in doubt, with a new worker whenever one died."""
    await worker(sim)
    await sim.client.start(use(which, 5), id="r")
    while True:
        head = await sim.until("r", lambda head: over(head) or workers[-1].process.dead)
        if over(head):
            break
        await worker(sim)
    (found,) = [one for one in await entries(sim) if isinstance(one, EffectInDoubt)]
    return found


# What is known


def test_a_doubt_says_how_its_attempts_ended_and_what_the_probe_said() -> None:
    """Number, begin and end of each attempt, and each answer with its time."""
    plan.extend([RefusedError("busy"), OSError("cut off")])
    answers.extend([Unknown("locked"), RuntimeError("odd"), "nonsense"])

    async def scenario(sim: Simulation) -> tuple[EffectInDoubt, list[datetime]]:
        begin = sim.clock.now()
        found = await doubt_of(sim, "asks")
        return found, [begin]

    found, (begin,) = simulation().run(scenario)
    told = [(one.number, one.ended.rpartition(".")[2]) for one in found.attempts]
    assert told == [(1, "RefusedError: busy"), (2, "OSError: cut off")]
    began = [one.began_at for one in found.attempts]
    assert all(one is not None for one in began)
    assert [round((one - begin).total_seconds()) for one in began if one] == [0, 1]
    assert [one.said for one in found.probes] == [
        "unknown: locked",
        "unknown: the probe raised RuntimeError: odd",
        "unknown: the probe answered str instead of Applied, NotApplied or Unknown",
    ]
    assert [one.at for one in found.probes] == [at for at, _ in asked]


def test_a_crash_leaves_when_the_attempt_was_announced() -> None:
    """The next owner tells of the failures in the row, and of the attempt whose end nobody knows."""
    plan.extend([RefusedError("busy"), "die"])

    async def scenario(sim: Simulation) -> tuple[EffectInDoubt, datetime]:
        begin = sim.clock.now()
        return await doubt_of(sim, "asks"), begin

    found, begin = simulation().run(scenario)
    first, second = found.attempts
    assert (first.number, first.ended.rpartition(".")[2]) == (1, "RefusedError: busy")
    assert (second.number, second.ended) == (2, "the worker that made the last attempt is gone")
    assert second.began_at is not None
    assert round((second.began_at - begin).total_seconds(), 1) == pytest.approx(1.2, abs=0.3)


def test_the_first_attempt_began_with_its_intent() -> None:
    """It is not announced; whoever looks at the run is told when it was intended."""
    plan.append("die")

    async def scenario(sim: Simulation) -> tuple[Any, datetime]:
        begin = sim.clock.now()
        await doubt_of(sim, "neither")
        (one,) = (await sim.client.handle("r").detail()).operations
        return one, begin

    one, begin = simulation().run(scenario)
    (attempt,) = one.attempts
    assert (one.state, attempt.number) == ("in doubt", 1)
    assert attempt.began_at is not None
    assert (attempt.began_at - begin).total_seconds() < 1


def test_what_was_known_before_an_effect_was_cleared_is_kept() -> None:
    """Its attempts, who said that it had not happened, when and why; those that follow are numbered on, and told once."""
    plan.extend([RefusedError("busy"), OSError("cut off"), RefusedError("late"), OSError("again")])

    async def scenario(sim: Simulation) -> tuple[list[Any], list[str], datetime]:
        await worker(sim)
        handle = await sim.client.start(use("asks", 5), id="r")
        await sim.until("r", over)
        seen = sim.clock.now()
        await handle.resolve("r:1", not_applied=True, reason="not on the list")
        await sim.until("r", lambda head: head.status is not Status.BLOCKED)
        told = (await handle.explain()).text
        await sim.until("r", over)
        (standing,) = (await handle.detail()).operations
        (doubt,) = await sim.client.runs.doubts()
        return [standing, doubt], [told, (await handle.explain()).text], seen

    found, told, seen = simulation().run(scenario)
    for one in found:
        (before,) = one.cleared
        assert (before.by, before.reason) == (sims[-1].client.principal, "not on the list")
        assert seen <= before.at < seen + timedelta(seconds=5)
        assert [attempt.number for attempt in before.attempts] == [1, 2]
        assert [attempt.number for attempt in one.attempts] == [3, 4]
        assert [attempt.ended.rpartition(".")[2] for attempt in one.attempts] == [
            "RefusedError: late",
            "OSError: again",
        ]
        assert one.attempts[0].began_at == before.at
        assert len(before.probes) == 3
    assert "that it had not happened: not on the list" in told[0]
    assert "that it had not happened: not on the list; attempt 3" in told[1]


def test_the_last_ten_are_told_of() -> None:
    """A doubt does not grow with the number of attempts."""
    plan.extend([RefusedError("busy")] * 14 + [OSError("cut off")])

    async def scenario(sim: Simulation) -> EffectInDoubt:
        return await doubt_of(sim, "asks")

    found = simulation().run(scenario)
    assert [one.number for one in found.attempts] == list(range(6, 16))


# Which doubt is meant


def test_what_is_said_of_another_doubt_is_put_aside() -> None:
    """It was cleared and came into doubt again: what was seen before says nothing of that."""
    plan.extend([OSError("cut off"), OSError("cut off again")])

    async def scenario(sim: Simulation) -> tuple[list[Entry], Status]:
        await worker(sim)
        handle = await sim.client.start(use("neither", 5), id="r")
        await sim.until("r", over)
        (standing,) = (await handle.detail()).operations
        await handle.resolve("r:1", not_applied=True, reason="not on the list")
        await sim.until("r", lambda head: head.status is not Status.BLOCKED)
        await sim.until("r", over)
        await handle.resolve("r:1", applied=5, doubt=standing.doubt)
        await asyncio.sleep(30)
        blocked = (await handle.status()).status
        await handle.resolve("r:1", applied=6)
        await sim.closed("r")
        return await entries(sim), blocked

    journal, blocked = simulation().run(scenario)
    (alarm,) = [one for one in journal if isinstance(one, AlarmRaised)]
    assert json.loads(bytes(alarm.detail))["why"] == "it speaks of another doubt"
    assert blocked is Status.BLOCKED
    (completed,) = [one for one in journal if isinstance(one, EffectCompleted)]
    assert bytes(completed.value) == b"6"


def test_what_is_said_while_there_is_no_doubt_means_none_that_comes_later() -> None:
    """The message waits in the inbox, and the doubt that comes before it is read is another one."""
    plan.append(OSError("cut off"))

    async def scenario(sim: Simulation) -> list[Entry]:
        await worker(sim)
        handle = await sim.client.start(use("neither", 5), id="r")
        while not keys:
            await asyncio.sleep(0.01)
        await handle.resolve("r:1", applied=9)
        await sim.until("r", over)
        return await entries(sim)

    journal = simulation().run(scenario)
    assert isinstance(journal[-1], EffectInDoubt)
    assert not any(isinstance(one, EffectCompleted) for one in journal)


def test_the_same_word_on_the_same_doubt_is_one_message() -> None:
    """As after an answer that was lost; another outcome is another message, and so is one after it was put aside."""
    plan.append(OSError("cut off"))

    async def scenario(sim: Simulation) -> tuple[list[str], list[str], list[Entry]]:
        first = await worker(sim)
        handle = await sim.client.start(use("neither", 5), id="r")
        await sim.until("r", over)
        await first.stop()
        for value in ("five", "five", "six"):
            await handle.resolve("r:1", applied=value, reason="seen")
        sent = [one.message.message_id for one in await sim.store.mail(RunKey("default", "r"))]
        await worker(sim)
        await sim.until("r", lambda head: not head.mail and over(head))
        await workers[-1].stop()
        await handle.resolve("r:1", applied="five", reason="seen")
        again = [one.message.message_id for one in await sim.store.mail(RunKey("default", "r"))]
        return sent, again, await entries(sim)

    sent, again, journal = simulation().run(scenario)
    assert len(sent) == 2
    assert len(again) == 1
    assert again[0] not in sent
    assert sum(isinstance(one, AlarmRaised) for one in journal) == 2


def test_a_cleared_doubt_is_listed_no_more() -> None:
    """From the moment at which the clearing stands in the journal, and again when it comes back."""
    plan.extend([OSError("cut off"), "die"])

    async def scenario(sim: Simulation) -> list[int]:
        await worker(sim)
        handle = await sim.client.start(use("neither", 5), id="r")
        await sim.until("r", over)
        counts = [len(await sim.client.runs.doubts(effect="neither"))]
        await handle.resolve("r:1", not_applied=True)
        await sim.until("r", lambda _: workers[-1].process.dead)
        assert any(isinstance(one, EffectCleared) for one in await entries(sim))
        counts.append(len(await sim.store.doubts("default")))
        await worker(sim)
        await sim.until("r", over)
        counts.append(len(await sim.client.runs.doubts()))
        await handle.resolve("r:1", applied=5)
        await sim.closed("r")
        counts.append(len(await sim.client.runs.doubts()))
        return counts

    assert simulation().run(scenario) == [1, 0, 1, 0]


def test_the_position_of_no_doubt_is_none_of_a_journal() -> None:
    """It can be told from every position."""
    assert NO_DOUBT < 0


# Probes


def test_a_probe_is_asked_as_its_policy_says() -> None:
    """So often, and so long after each other."""
    plan.append(OSError("cut off"))

    async def scenario(sim: Simulation) -> EffectInDoubt:
        return await doubt_of(sim, "asks")

    assert "asked 3 times" in simulation().run(scenario).why
    gaps = [(b - a).total_seconds() for (a, _), (b, _) in zip(asked, asked[1:], strict=False)]
    assert gaps == pytest.approx([3, 3], abs=0.1)


def test_a_probe_has_a_time_of_its_own() -> None:
    """One that takes longer has said nothing; without that it has as long as an attempt."""
    plan.append(OSError("cut off"))
    answers.extend([6, 4])

    async def scenario(sim: Simulation) -> int:
        await worker(sim)
        return await workers[0].client.run(use("asks", 5), id="r")

    assert simulation().run(scenario) == 5
    assert len(asked) == 2
    plan.append(OSError("cut off"))
    answers.append(19)

    async def usual(sim: Simulation) -> int:
        await worker(sim)
        return await workers[-1].client.run(use("asks_as_usual", 5), id="r")

    assert simulation().run(usual) == 5
    assert len(asked) == 3


@pytest.mark.parametrize("error", [TypeError("a mistake"), PermissionError("no access")])
def test_a_probe_that_would_raise_the_same_again_is_asked_once(error: Exception) -> None:
    """A programming error, or one that its policy names: somebody has to look."""
    plan.append(OSError("cut off"))
    answers.append(error)

    async def scenario(sim: Simulation) -> EffectInDoubt:
        return await doubt_of(sim, "asks")

    found = simulation().run(scenario)
    assert len(asked) == 1
    assert "asked once" in found.why
    assert str(error) in found.probes[0].said


def test_a_probe_is_asked_anew_after_each_attempt_with_an_unknown_end() -> None:
    """What it said of the one before says nothing of this one; it sees the effect's key each time."""
    plan.extend([OSError("cut off"), OSError("cut off"), OSError("cut off")])
    answers.extend([NotApplied(), Unknown("busy"), NotApplied(), Applied(7)])

    async def scenario(sim: Simulation) -> int:
        await worker(sim)
        return await workers[0].client.run(use("asks", 5), id="r")

    assert simulation().run(scenario) == 7
    assert len(keys) == 3
    assert len(asked) == 4
    assert {key for _, key in asked} == set(keys)


async def _await_an_effect(amount: int) -> Any:
    return Applied(await neither(amount))


async def _call_the_plain_function(amount: int) -> Any:
    return Applied(await neither.plain(amount))


@pytest.mark.parametrize("call", [_await_an_effect, _call_the_plain_function])
def test_a_probe_only_reads(call: Callable[[int], Any]) -> None:
    """One that calls an effect is told what to do instead, the world is not changed, and nobody asks it again."""
    plan.append(OSError("cut off"))
    answers.append(call)

    async def scenario(sim: Simulation) -> EffectInDoubt:
        return await doubt_of(sim, "asks")

    found = simulation().run(scenario)
    assert "effect neither was called in the probe of asks" in found.probes[0].said
    assert (len(asked), len(keys)) == (1, 1)


def test_outside_a_probe_the_plain_function_may_be_called() -> None:
    """Also after one has run in the same process."""
    plan.append(OSError("cut off"))
    answers.append(Applied(5))

    async def scenario(sim: Simulation) -> int:
        await worker(sim)
        await workers[0].client.run(use("asks", 5), id="r")
        with outlast.testing.attempt(key="k"):
            return await neither.plain(8)

    assert simulation().run(scenario) == 8


@pytest.mark.parametrize("how", ["pause", "stop", "cancel"])
def test_a_probe_meets_a_pause_a_stop_and_a_cancel(how: str) -> None:
    """While the run is paused it is not asked; who takes the run up asks it; and a cancelled run waits for what it says."""
    plan.append(OSError("cut off"))
    answers.append(Unknown("busy"))

    async def scenario(sim: Simulation) -> tuple[int, int, list[Entry]]:
        await worker(sim)
        handle = await sim.client.start(use("asks", 5), id="r")
        while not asked:
            await asyncio.sleep(0.05)
        answers.append(Applied(5))
        if how == "pause":
            await handle.pause("look at it")
        elif how == "stop":
            await workers[0].stop()
        else:
            await handle.cancel("not needed")
        await asyncio.sleep(60)
        meanwhile = len(asked)
        if how == "pause":
            await handle.resume("go on")
        elif how == "stop":
            await worker(sim)
        await sim.closed("r")
        return meanwhile, len(asked), await entries(sim)

    meanwhile, in_all, journal = simulation().run(scenario)
    assert (meanwhile, in_all) == (2 if how == "cancel" else 1, 2)
    (completed,) = [one for one in journal if isinstance(one, EffectCompleted)]
    assert completed.source == "probe"
