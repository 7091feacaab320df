"""Law of the durability modes: nothing leaves a run before what it depends on is in its journal, wherever its process dies.

The steps before whatever leaves draw a new number each time that they are made, as a model's answer is new each time. So what
was seen outside, and was drawn in an attempt that a crash took back, is found out: its number is in no journal at the end.
"""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import outlast
from outlast.client import Client
from outlast.errors import OutlastError
from outlast.journal.entry import EffectIntended, StepCompleted, from_row
from outlast.testing import Receiver, Trial, Workload, every_crash, undisturbed
from outlast.worker import buffer, scribe
from outlast.worker.pilot import Pilot
from outlast.workflows.definition import Workflow

sys.path.insert(0, str(Path(__file__).parent.parent / "simulation"))
from mutation import Break, broken

pytestmark = pytest.mark.slow

receiver = Receiver()
word = outlast.Signal("word", str)
ask = outlast.Update("ask", str, str)
LATENCY = timedelta(seconds=0.2)
MODES = ("async", "exit")

numbers: Iterator[int] = itertools.count()
told: list[str] = []
"""Everything that somebody outside has seen."""
tokens: list[tuple[str, str]] = []
stores: list[Any] = []


def reset() -> None:
    global numbers
    numbers = itertools.count()
    told.clear()
    tokens.clear()
    stores.clear()


@outlast.step
async def draw() -> str:
    await asyncio.sleep(0.05)
    return str(next(numbers))


@outlast.step
async def tell(value: str) -> str:
    told.append(value)
    return value


@outlast.step(queue="far")
async def tell_from_afar(value: str) -> str:
    told.append(value)
    return value


@outlast.step
async def hand(value: str) -> str:
    tokens.append((outlast.completion_token(), value))
    told.append(value)
    outlast.complete_later()


@outlast.effect(idempotent=True)
async def act(value: str) -> str:
    told.append(value)
    return receiver.apply_once(outlast.idempotency_key(), value)


async def drawn() -> str:
    """Steps beside and after each other, and a timer: what may be lost."""
    two = await asyncio.gather(draw(), draw())
    await outlast.sleep(0.1)
    return "-".join([*two, await draw()])


async def acts() -> str:
    first = await act(await drawn())
    return f"{first}/{await act(await drawn())}"


async def asks() -> str:
    value = await drawn()
    await outlast.approval(value, covers=[act(value)], role="boss", expires_in=timedelta(hours=1))
    return await act(value)


async def hears() -> str:
    return await tell(await outlast.receive(word))


async def child(value: str) -> str:
    return await tell(value)


async def has_a_child() -> str:
    return await outlast.run_child(CHILDREN["child"](await drawn()))


async def sends() -> str:
    kid = await outlast.start_child(CHILDREN["hears"]())
    await kid.send(word, await drawn())
    return await kid.result()


async def answers() -> str:
    done = False

    async def answer(_: str) -> str:
        nonlocal done
        value = await drawn()
        done = True
        return value

    outlast.on_update(ask, answer)
    await outlast.wait_condition(lambda: done)
    return await drawn()


async def publishes() -> str:
    for _ in range(2):
        outlast.publish("seen", await drawn())
        await draw()
    await outlast.sleep(1)
    return await draw()


async def hands_out() -> bool:
    value = await drawn()
    return await hand(value) == value


async def goes_far() -> str:
    return await tell_from_afar(await drawn())


async def begins_anew() -> str:
    value = await drawn()
    outlast.continue_as_new(CHILDREN["child"](value))


CHILDREN = {
    one.__name__: outlast.workflow(durability="async", name=f"modes_{one.__name__}")(one)
    for one in (hears, child)
}
BODIES = (acts, asks, has_a_child, sends, answers, publishes, hands_out, goes_far, begins_anew)
FLOWS: dict[str, Workflow[..., Any]] = {
    f"{one.__name__}_{mode}": outlast.workflow(
        durability=mode, name=f"modes_{one.__name__}_{mode}"
    )(one)
    for one in BODIES
    for mode in MODES
}


async def outside(client: Client) -> None:
    """Look at whatever can be seen, and do what the run waits for."""
    stores.append(client.store._inner)
    async with asyncio.TaskGroup() as group:
        for watcher in (look, approve, complete, send):
            group.create_task(watcher(client))


async def look(client: Client) -> None:
    while True:
        seen = await client.handle("run").published("seen")
        told.extend([seen] if seen else [])
        await asyncio.sleep(0.1)


async def approve(client: Client) -> None:
    while True:
        for one in await client.approvals.list():
            told.append(one.subject["subject"])
            with contextlib.suppress(OutlastError):
                await client.approvals.approve(
                    one.run_id, one.approval_id, seen_sha256=one.subject_sha256
                )
        await asyncio.sleep(0.2)


async def complete(client: Client) -> None:
    while True:
        for token, value in list(tokens):
            with contextlib.suppress(OutlastError):
                await client.complete(token, value)
        await asyncio.sleep(0.3)


async def send(client: Client) -> None:
    if (await client.handle("run").status()).workflow.startswith("modes_answers"):
        told.append(await client.handle("run").update(ask, "?"))


def work(name: str) -> Workload[Any]:
    flow = FLOWS[name]
    return Workload(
        lambda: flow(),
        receiver=receiver,
        meanwhile=outside,
        definitions=[draw, tell, tell_from_afar, hand, act, *CHILDREN.values(), *FLOWS.values()],
        reset=reset,
        latency=LATENCY,
    )


def in_journals() -> set[str]:
    """Return the numbers that the journals of all runs and generations hold as drawn."""
    entries = [
        from_row(one.row)
        for run in stores[-1].runs.values()
        for journal in run.journals.values()
        for one in journal
    ]
    return {
        bytes(one.value).decode().strip('"')
        for one in entries
        if isinstance(one, StepCompleted) and one.name == "draw"
    }


def leaked(trial: Trial[Any]) -> set[str]:
    """Return the numbers that were seen outside, and that no journal holds."""
    seen = [*told, trial.result if isinstance(trial.result, str) else ""]
    return {
        one for text in seen for one in text.replace("/", "-").split("-") if one
    } - in_journals()


@pytest.mark.parametrize("name", FLOWS)
def test_nothing_leaves_before_what_it_depends_on_is_in_the_journal(name: str) -> None:
    """Wherever the process dies: what was seen outside follows from the journal, and no effect happens for what was taken back."""
    calm = undisturbed(work(name))
    assert told, "nobody has seen anything: the law would say nothing"
    happened = sum(calm.changes.values())
    for trial in every_crash(work(name)):
        assert trial.result is not False, trial
        assert leaked(trial) == set(), (trial, told)
        assert sum(trial.changes.values()) == happened, (trial, trial.changes)


@pytest.mark.parametrize("mode", MODES)
def test_a_crash_of_a_run_that_goes_on_early_does_lose_outcomes(mode: str) -> None:
    """The law above is not kept by writing everything at once: in some trials more numbers are drawn than the journal holds."""
    lost = []
    for trial in every_crash(work(f"acts_{mode}")):
        drawn_in_all = sum(1 for call in trial.calls if call.name == "draw")
        lost.append(drawn_in_all - len(in_journals()))
    assert max(lost) > 2, lost


MUTANTS: dict[str, tuple[str, tuple[Break, ...]]] = {
    "an intent is seen before it is written": (
        "acts_async",
        (
            Break(
                buffer,
                "is_soft",
                "isinstance(proposal.entry, _SOFT)",
                "isinstance(proposal.entry, (*_SOFT, EffectIntended))",
                {"EffectIntended": EffectIntended},
            ),
            Break(Pilot, "_carry_out", "fresh = operation in self._intended_here", "fresh = True"),
        ),
    ),
    "a token is given away before its step is there for good": (
        "hands_out_exit",
        (Break(Pilot, "attempt", "ahead=self._scribe.is_ahead", "ahead=False"),),
    ),
    "nobody waits until what a token depends on is written": (
        "hands_out_async",
        (Break(Pilot, "written", "await self.propose(Proposal(Rank.ROW))", "pass"),),
    ),
    "what was seen is left out of the next change": (
        "asks_exit",
        (Break(scribe.Scribe, "change", "seen=self._buffer.waiting", "seen=()"),),
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_law_finds_an_engine_that_breaks_it(name: str) -> None:
    """Each barrier is there for the law, which fails without it."""
    flow, planted = MUTANTS[name]

    def law() -> None:
        test_nothing_leaves_before_what_it_depends_on_is_in_the_journal(flow)

    with broken(*planted), pytest.raises((AssertionError, OutlastError)) as found:
        law()
    print(name, "->", str(found.value)[:300])
