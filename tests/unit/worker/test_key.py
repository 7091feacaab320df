"""The life of an idempotency key: computed once, from run, effect and payload; then read from the intent; and no code of a workflow sees it."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

import outlast
from outlast.effects.key import idempotency_key
from outlast.journal.canonical import payload_sha256
from outlast.journal.entry import EffectIntended, from_row
from outlast.store.change import RunKey
from outlast.testing import SimulatedWorker, Simulation
from outlast.worker import gate
from outlast.worker.worker import WorkerOptions
from outlast.workflows.definition import (
    AttemptOptions,
    Definition,
    Effect,
    EffectOptions,
    Workflow,
)

MINUTE = timedelta(minutes=1)
GO = outlast.Signal("go", str)
keys: list[str] = []
plan: list[str] = []
workers: list[SimulatedWorker] = []


async def act() -> str:
    """Do what the plan says about this attempt, and tell nobody the key."""
    keys.append(outlast.idempotency_key())
    step = plan.pop(0) if plan else ""
    if step == "fail":
        raise OSError("the answer was lost")
    if step == "die":
        workers[-1].kill()
        await asyncio.sleep(0.1)
    if step == "hang":
        await asyncio.sleep(1000)
    return "sent"


@dataclass
class Invoice:
    """As it was when the run began."""

    number: int
    amount: int


@dataclass
class InvoiceWithCurrency:
    """The same, with a field more that has a default."""

    number: int
    amount: int
    currency: str = "EUR"


async def send(invoice: Invoice) -> str:
    return await act()


async def send_in_currency(invoice: InvoiceWithCurrency) -> str:
    return await act()


async def deliver(invoice: Invoice) -> str:
    return await act()


def code(function: Any = send, invoice: Any = Invoice, amounts: tuple[int, ...] = (10,)) -> Any:
    """Return a build: the effect `send`, whatever its function is called, and the workflow `bill`, which has it sent."""
    options = AttemptOptions(
        outlast.RetryPolicy(MINUTE, maximum_attempts=9), start_to_close_timeout=MINUTE
    )
    effect: Any = Effect(function, "send", options, EffectOptions(idempotent=True))

    async def bill() -> str:
        for amount in amounts:
            said = await effect(invoice(1, amount))
        return said

    return [effect, Workflow(bill, "bill")]


FORMER = code()
KEY = idempotency_key("r", "send", payload_sha256({"invoice": {"number": 1, "amount": 10}}))


@pytest.fixture(autouse=True)
def _clean() -> None:
    for one in (keys, plan, workers):
        one.clear()


async def start(sim: Simulation, definitions: list[Definition[..., Any]]) -> SimulatedWorker:
    workers.append(await sim.start_worker(definitions=definitions))
    return workers[-1]


async def intents(sim: Simulation, run: str) -> list[EffectIntended]:
    found = [from_row(one.row) for one in await sim.store.journal(RunKey("default", run))]
    return [one for one in found if isinstance(one, EffectIntended)]


def simulation(definitions: list[Definition[..., Any]] = FORMER) -> Simulation:
    return Simulation(definitions, options=WorkerOptions(library="simulated"))


@pytest.mark.parametrize("cut", ["fail", "die", "hang"])
@pytest.mark.parametrize(
    "later",
    [
        FORMER,
        code(send_in_currency, InvoiceWithCurrency),
        code(deliver),
    ],
    ids=["the same code", "a field more", "the function renamed"],
)
def test_every_attempt_has_the_key_of_the_intent(
    cut: str, later: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failure, a timeout or a kill; by the same worker, and by others of a later build, whose keys would be other ones."""
    plan.extend([cut, "fail", cut])

    async def scenario(sim: Simulation) -> str:
        await start(sim, FORMER)
        handle = await sim.client.start(FORMER[1](), id="r")
        while not keys:
            await asyncio.sleep(0.1)
        workers[-1].kill()
        # What this computes from now on is no key that anything was called with.
        monkeypatch.setattr(gate, "idempotency_key", lambda *_, **__: "0" * 32)
        while True:
            await start(sim, later)
            head = await sim.until("r", lambda one: one.status.closed or workers[-1].process.dead)
            if head.status.closed:
                return await handle.result()

    assert simulation().run(scenario) == "sent"
    assert len(keys) == 4
    assert set(keys) == {KEY}


def test_other_content_has_another_key_and_later_intents_are_computed_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The revised invoice is another purpose to its receiver; a former key is never computed again, a new one is."""
    build = code(amounts=(10, 12))

    async def scenario(sim: Simulation) -> list[str]:
        await start(sim, build)
        await (await sim.client.start(build[1](), id="r")).result()
        monkeypatch.setattr(gate, "idempotency_key", lambda *_, **__: "0" * 32)
        await (await sim.client.start(build[1](), id="s")).result()
        return [one.key for run in ("r", "s") for one in await intents(sim, run)]

    found = simulation(build).run(scenario)
    revised = payload_sha256({"invoice": {"number": 1, "amount": 12}})
    assert found == keys == [KEY, idempotency_key("r", "send", revised), "0" * 32, "0" * 32]


@pytest.mark.parametrize("effects", ["same_key", "new_key"])
def test_a_fork_has_the_key_that_it_was_allowed(effects: Any) -> None:
    """The one that the origin would have used, or one of its own."""

    async def wait_and_send() -> str:
        await outlast.receive(GO)
        return await FORMER[0](Invoice(1, 10))

    waits: Any = Workflow(wait_and_send, "wait_and_send")

    async def scenario(sim: Simulation) -> list[str]:
        await start(sim, [FORMER[0], waits])
        handle = await sim.client.start(waits(), id="r")
        await asyncio.sleep(5)
        fork = await handle.fork(id="f", reason="what would it send", effects=effects)
        for one in (fork, handle):
            await one.send(GO, "go")
            assert await one.result() == "sent"
        return [one.key for run in ("r", "f") for one in await intents(sim, run)]

    origins, forks = simulation([FORMER[0], waits]).run(scenario)
    assert origins == KEY
    expected = "f" if effects == "new_key" else "r"
    assert forks == idempotency_key(
        expected, "send", payload_sha256({"invoice": {"number": 1, "amount": 10}})
    )


# No code of a workflow sees a key


seen: list[Any] = []


async def find(n: int) -> outlast.Unknown:
    return outlast.Unknown("who knows")


def effect(name: str, body: Any = None, **rules: Any) -> Any:
    async def one(n: int) -> str:
        return await act()

    options = {"start_to_close_timeout": MINUTE, **rules}
    return outlast.effect(name=name, **options)(body or one)


ONCE = outlast.RetryPolicy(maximum_attempts=1)
works = effect("works", idempotent=True)
fails = effect("fails", idempotent=True, retry=ONCE)
fails_as_own = effect("fails_as_own", idempotent=True, retry=ONCE, raises=(OSError,))
forgets = effect("forgets", idempotent=True, idempotent_for=timedelta(hours=1))
has_purpose = effect("has_purpose", idempotent=True, same_as=outlast.SameAs("n"), repeats=True)
is_probed = effect("is_probed", probe=find)


@outlast.workflow
async def child() -> str:
    return await works(5)


@outlast.workflow
async def looks() -> str:
    """Look at all that a workflow can get of its effects."""
    calls = [
        *(works(1), works(1), fails(1), fails_as_own(1), forgets(1)),
        *(has_purpose(1), has_purpose(1), is_probed(1), is_probed(2)),
    ]
    seen.extend([works, works(2).use(), outlast.info()])
    for call in calls:
        seen.append(call)
        try:
            seen.append(await call)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is looked at
            seen.append(error)
    for ask in (outlast.idempotency_key, outlast.attempt):
        try:
            seen.append(ask())
        except outlast.DefinitionError as error:
            seen.append(error)
    grant = await outlast.approval(1, covers=[works(3)], role="boss", expires_in=MINUTE)
    seen.extend([grant, await works(3)])
    started = await outlast.start_child(child(), id="c")
    seen.extend([started, await started.result(), outlast.info()])
    return "looked"


def texts(value: Any, known: set[int]) -> Iterator[str]:
    """Yield every text that can be reached from a value by its fields, its items, and what an exception holds."""
    if id(value) in known:
        return
    known.add(id(value))
    yield repr(value)
    yield str(value)
    parts: list[Any] = []
    if isinstance(value, dict):
        parts = [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple | set):
        parts = list(value)
    elif isinstance(value, BaseException):
        parts = [value.args, vars(value), value.__cause__, value.__context__]
    for name in getattr(type(value), "__struct_fields__", ()):
        parts.append(getattr(value, name))
    for part in parts:
        yield from texts(part, known)


def test_no_code_of_a_workflow_sees_a_key() -> None:
    """Results, exceptions with all that they hold, calls, grants, children, info: none of them shows the key of anything."""
    seen.clear()
    plan.extend(["", "fail", "fail", "fail", ""])
    definitions = [
        *(works, fails, fails_as_own, forgets, has_purpose, is_probed),
        *(child, looks),
    ]

    async def scenario(sim: Simulation) -> set[str]:
        await start(sim, definitions)
        handle = await sim.client.start(looks(), id="r")
        while not (asked := await sim.client.approvals.list()):
            await asyncio.sleep(1)
            if (await handle.status()).reason == "in doubt":
                await handle.resolve("r:9", applied="sent", reason="looked")
        (one,) = asked
        await sim.client.approvals.approve("r", one.approval_id, seen_sha256=one.subject_sha256)
        assert await handle.result() == "looked"
        return {one.key for run in ("r", "c") for one in await intents(sim, run)}

    used = simulation(definitions).run(scenario)
    assert len(used) == 9
    assert used == set(keys)
    shown = [text for value in seen for text in texts(value, set())]
    names = {type(one).__name__ for one in seen if isinstance(one, Exception)}
    assert names >= {"OSError", "RepeatedEffectError", "SamePurposeError", "DefinitionError"}
    assert any("may have happened" in text for text in shown)
    assert not [text for text in shown if any(key in text for key in used)]
