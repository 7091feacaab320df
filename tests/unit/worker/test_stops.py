"""The kill switch as a worker obeys it: what is stopped does not begin, and is not attempted again."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import outlast
from outlast.client import RunHandle
from outlast.journal.entry import EffectInDoubt, EffectIntended, Entry, from_row
from outlast.policy import Deny, Policy, Rule, Stop, Stops, ToolCall
from outlast.policy.stop import Scope
from outlast.store.change import PutControl, RunKey, Status
from outlast.testing import Receiver, Simulation
from outlast.worker.control import MOST_TENANTS, Controls
from outlast.worker.permit import Finder
from outlast.worker.worker import WorkerOptions

AT = datetime(2026, 3, 1, tzinfo=UTC)
SHORT = timedelta(seconds=5)
OFTEN = outlast.RetryPolicy(initial_interval=timedelta(seconds=10), maximum_attempts=5)
receiver = Receiver()
failing: list[Exception] = []
"""What the next attempts raise, in turn."""


class RefusedError(Exception):
    """Proves that nothing happened."""


@outlast.effect(idempotent=True, repeats=True, retry=OFTEN, not_applied=(RefusedError,))
async def pay(amount: int) -> int:
    if failing:
        raise failing.pop(0)
    return receiver.apply_once(outlast.idempotency_key(), amount)


@outlast.effect(idempotent=True, start_to_close_timeout=SHORT, retry=OFTEN)
async def unbook(seat: int) -> None:
    receiver.apply_once(outlast.idempotency_key(), -seat)


@outlast.effect(idempotent=True, start_to_close_timeout=SHORT, compensate=unbook, retry=OFTEN)
async def book(seat: int) -> int:
    return receiver.apply_once(outlast.idempotency_key(), seat)


@outlast.workflow
async def pay_once(amount: int) -> int:
    return await pay(amount)


@outlast.workflow
async def pay_as(agent: str) -> int:
    with outlast.agent(agent):
        return await pay(1)


@outlast.workflow
async def book_and_fall() -> None:
    async with outlast.saga():
        await book(7)
        raise ValueError("changed my mind")


@outlast.workflow
async def pay_many(count: int) -> int:
    results = await asyncio.gather(*(pay(one) for one in range(count)), return_exceptions=True)
    return sum(isinstance(one, outlast.EffectsStoppedError) for one in results)


CODE = [pay, book, unbook, pay_once, pay_as, book_and_fall, pay_many]


@pytest.fixture(autouse=True)
def _clean() -> None:
    receiver.forget()
    failing.clear()


def stop(scope: Scope, name: str = "*") -> bytes:
    """Return the body of a kill switch."""
    return Stops((Stop(scope=scope, name=name, reason="paid twice", by="ann", at=AT),)).encode()


NONE = Stops().encode()


async def put(store: Any, body: bytes, *, tenant: str = "default") -> None:
    """Write the kill switch of a tenant, whatever its version is."""
    row = await store.control(tenant, "stops")
    await store.commit([PutControl(tenant, "stops", row[0] if row else 0, body)])


async def outcome(handle: RunHandle[Any]) -> Any:
    """Return what a run came to, or raise what its workflow raised."""
    try:
        return await handle.result()
    except outlast.WorkflowFailedError as error:
        assert error.__cause__ is not None
        raise error.__cause__ from None


async def entries(sim: Simulation, run_id: str = "r") -> list[Entry]:
    """Return a run's journal."""
    return [from_row(one.row) for one in await sim.store.journal(RunKey("default", run_id))]


def after_answer(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[], Awaitable[None]], *, quick: bool
) -> None:
    """Do something once, between the first answer and the commit that rests on it.

    Args:
        quick: The answer is there at once; what is done then is begun, and is done before the commit.
    """
    done: list[Any] = []
    find, at_once = Finder.find, Finder.quick

    async def found(self: Finder, *asked: Any) -> Any:
        answer = await find(self, *asked)
        if not (done or quick):
            done.append(await act())
        return answer

    def found_at_once(self: Finder, *asked: Any) -> Any:
        answer = at_once(self, *asked)
        if answer is not None and quick and not done:
            done.append(asyncio.ensure_future(act()))
        return answer

    monkeypatch.setattr(Finder, "find", found)
    monkeypatch.setattr(Finder, "quick", found_at_once)


@pytest.mark.parametrize(
    ("body", "tenant", "stops"),
    [
        (stop("everything"), "default", True),
        (stop("everything"), "", True),
        (stop("tool", "pa*"), "default", True),
        (stop("tenant", "def*"), "", True),
        (stop("everything"), "other", False),
        (stop("tool", "book"), "default", False),
        (stop("tenant", "other"), "", False),
        (stop("agent", "buyer"), "default", False),
        (NONE, "default", False),
        (b"\xff", "default", True),
        (b"\xff", "other", False),
    ],
)
def test_what_is_stopped_does_not_begin(body: bytes, tenant: str, stops: bool) -> None:
    """A stop of the tenant, or of everybody, keeps what it names from beginning; a switch that cannot be read stops everything."""

    async def scenario(sim: Simulation) -> Any:
        await put(sim.store, body, tenant=tenant)
        await sim.start_worker()
        try:
            return await outcome(await sim.client.start(pay_once(1), id="r"))
        except outlast.EffectsStoppedError as error:
            assert body == b"\xff" or (error.by, error.reason) == ("ann", "paid twice")
            assert not any(isinstance(one, EffectIntended) for one in await entries(sim))
            return "stopped"

    assert Simulation(CODE).run(scenario) == ("stopped" if stops else 1)


def test_an_agent_is_stopped() -> None:
    """A stop of an agent stops what is called in its name, and nothing else."""

    async def scenario(sim: Simulation) -> int:
        await put(sim.store, stop("agent", "buyer"))
        await sim.start_worker()
        with pytest.raises(outlast.EffectsStoppedError) as caught:
            await outcome(await sim.client.start(pay_as("buyer"), id="r1"))
        assert caught.value.what == "agent buyer"
        return await outcome(await sim.client.start(pay_as("clerk"), id="r2"))

    assert Simulation(CODE).run(scenario) == 1


def test_a_stop_and_its_end_count_at_once() -> None:
    """A worker that knows the switch from before obeys it when it is thrown, and when it is lifted."""

    async def scenario(sim: Simulation) -> list[str]:
        await sim.start_worker()
        said: list[str] = []
        for number, body in enumerate((NONE, stop("everything"), NONE, stop("tool", "pay"))):
            await put(sim.store, body)
            try:
                said.append(
                    str(await outcome(await sim.client.start(pay_once(1), id=f"r{number}")))
                )
            except outlast.EffectsStoppedError as error:
                said.append(error.what)
        return said

    assert Simulation(CODE).run(scenario) == ["1", "everything", "1", "tool pay"]


@pytest.mark.parametrize("quick", [True, False])
def test_a_stop_between_answer_and_commit(monkeypatch: pytest.MonkeyPatch, quick: bool) -> None:
    """The store notices that the switch was thrown after the answer; the fresh answer is a no. With a policy it is the same."""

    async def scenario(sim: Simulation) -> str:
        await sim.start_worker()
        # The worker knows the rows since the first effect.
        assert await outcome(await sim.client.start(pay_once(9), id="before")) == 9
        receiver.forget()
        after_answer(monkeypatch, lambda: put(sim.store, stop("everything")), quick=quick)
        with pytest.raises(outlast.EffectsStoppedError):
            await outcome(await sim.client.start(pay_once(1), id="r"))
        return " ".join(type(one).__name__ for one in await entries(sim))

    options = WorkerOptions(library="simulated", policy=None if quick else Policy())
    said = Simulation(CODE, options=options).run(scenario)
    assert "EffectIntended" not in said
    assert receiver.total == 0


def test_a_switch_that_is_written_and_stops_nothing_holds_nothing_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A row that changed between answer and commit is read again; what it does not stop begins."""

    async def scenario(sim: Simulation) -> Any:
        after_answer(monkeypatch, lambda: put(sim.store, stop("tool", "book")), quick=True)
        await sim.start_worker()
        return await outcome(await sim.client.start(pay_once(1), id="r"))

    assert Simulation(CODE).run(scenario) == 1
    assert receiver.total == 1


@pytest.mark.without_always_replay("each of a thousand turns would be replayed")
def test_a_thousand_effects_are_stopped_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand intents in one change, and the switch thrown before it: one refusal, one reading, a thousand refused effects."""

    async def main() -> None:
        async with outlast.open("memory://", workflows=[pay_many]) as app:
            verdicts: list[str] = []
            thrown: list[bool] = []
            commit = app.store.commit

            async def counted(changes: Any) -> Any:
                if not thrown and any(getattr(one, "permits", ()) for one in changes):
                    thrown.append(True)
                    await put(app.store, stop("everything"))
                answers = await commit(changes)
                verdicts.extend(type(one).__name__ for one in answers)
                return answers

            reads: list[str] = []
            control = app.store.control

            async def counted_reads(tenant: str, name: str) -> Any:
                reads.append(name)
                return await control(tenant, name)

            handle = await app.start(pay_many(0), id="warm")
            await handle.result()
            monkeypatch.setattr(app.store, "commit", counted)
            monkeypatch.setattr(app.store, "control", counted_reads)
            assert await app.run(pay_many(1000), id="r") == 1000
            assert verdicts.count("Refused") == 1
            assert len(reads) < 10

    asyncio.run(main())
    assert receiver.total == 0


def test_a_later_attempt_is_stopped() -> None:
    """What has not happened is not attempted again, and has failed; nobody has to see to it."""
    failing.append(RefusedError("try later"))

    async def scenario(sim: Simulation) -> None:
        await sim.start_worker()
        handle = await sim.client.start(pay_once(1), id="r")
        await asyncio.sleep(5)
        await put(sim.store, stop("everything"))
        with pytest.raises(outlast.EffectsStoppedError):
            await outcome(handle)

    Simulation(CODE).run(scenario)
    assert receiver.total == 0


def test_a_stopped_attempt_after_an_unknown_end_is_in_doubt() -> None:
    """What may have happened is left to an operator, who is told that it was stopped."""
    failing.append(OSError("the answer was lost"))

    async def scenario(sim: Simulation) -> list[str]:
        await sim.start_worker()
        await sim.client.start(pay_once(1), id="r")
        await asyncio.sleep(5)
        await put(sim.store, stop("everything"))
        await sim.until("r", lambda head: head.status is Status.BLOCKED)
        return [one.why for one in await entries(sim) if isinstance(one, EffectInDoubt)]

    (why,) = Simulation(CODE).run(scenario)
    assert "everything is stopped: paid twice" in why
    assert receiver.total == 0


def test_a_stop_while_an_attempt_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict on the announcement is obeyed: the switch that was thrown before it keeps the attempt from being made."""
    failing.append(RefusedError("try later"))
    again = Finder.again

    async def scenario(sim: Simulation) -> None:
        thrown: list[bool] = []

        async def answered(self: Finder, intent: Any, effect: Any) -> Any:
            answer = await again(self, intent, effect)
            if not thrown:
                thrown.append(True)
                await put(sim.store, stop("everything"))
            return answer

        monkeypatch.setattr(Finder, "again", answered)
        await sim.start_worker()
        with pytest.raises(outlast.EffectsStoppedError):
            await outcome(await sim.client.start(pay_once(1), id="r"))
        assert thrown

    Simulation(CODE).run(scenario)
    assert receiver.total == 0


def test_a_cleared_effect_is_asked_about_again() -> None:
    """An operator who says that it did not happen does not say that it may: the switch counts for what begins after that."""
    failing.append(OSError("the answer was lost"))

    async def scenario(sim: Simulation) -> str:
        await sim.start_worker()
        handle = await sim.client.start(pay_once(1), id="r")
        await asyncio.sleep(5)
        await put(sim.store, stop("everything"))
        await sim.until("r", lambda head: head.status is Status.BLOCKED)
        await handle.resolve("r:1", not_applied=True, reason="I looked")
        with pytest.raises(outlast.EffectsStoppedError) as caught:
            await outcome(handle)
        return caught.value.what

    options = WorkerOptions(library="simulated", recheck_within=timedelta(hours=1))
    assert Simulation(CODE, options=options).run(scenario) == "everything"
    assert receiver.total == 0


def test_a_compensation_is_stopped_and_left_to_an_operator() -> None:
    """What may not be undone now blocks the run; an operator who lifts the stop lets it be undone."""
    seen: list[str] = []

    def stop_undoing(call: ToolCall) -> Deny | None:
        seen.append(call.name)
        return None

    async def scenario(sim: Simulation) -> Status:
        await put(sim.store, stop("tool", "unbook"))
        await sim.start_worker()
        handle = await sim.client.start(book_and_fall(), id="r")
        await sim.until("r", lambda head: head.status is Status.BLOCKED)
        await put(sim.store, NONE)
        await handle.resolve("r:1u:1", not_applied=True, reason="the stop is lifted")
        return (await sim.closed("r")).status

    options = WorkerOptions(library="simulated", policy=Policy(hooks=(stop_undoing,)))
    assert Simulation(CODE, options=options).run(scenario) is Status.COMPENSATED
    assert [value for _, value in receiver.log] == [7, -7]
    assert seen == ["book"]


def test_a_stop_goes_before_the_policy() -> None:
    """What is stopped is not judged: no hook is asked, and no rule is named."""
    asked: list[ToolCall] = []

    async def scenario(sim: Simulation) -> None:
        await put(sim.store, stop("everything"))
        await sim.start_worker()
        with pytest.raises(outlast.EffectsStoppedError):
            await outcome(await sim.client.start(pay_once(1), id="r"))

    policy = Policy(hooks=(asked.append,), rules=(Rule("deny", "pay"),))
    options = WorkerOptions(library="simulated", policy=policy)
    Simulation(CODE, options=options).run(scenario)
    assert asked == []


def test_rows_of_many_tenants_are_forgotten_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy holds so many tenants at most, and what was forgotten is read again."""
    monkeypatch.setattr("outlast.worker.control.MOST_TENANTS", 2)
    assert MOST_TENANTS > 1000

    async def scenario(sim: Simulation) -> list[bool]:
        controls = Controls(sim.store, None)
        for tenant in ("a", "b", "c"):
            await controls.read(tenant)
        return [controls.known(tenant) is not None for tenant in ("a", "b", "c")]

    assert Simulation(CODE).run(scenario) == [False, True, True]
