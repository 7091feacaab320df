"""Sagas as a worker plays them: what was done inside one is undone, newest first, whatever ends it."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

import outlast
from outlast.client import RunHandle
from outlast.journal.entry import (
    EffectCompleted,
    EffectInDoubt,
    EffectIntended,
    Entry,
    SagaAborted,
    SagaEnded,
    from_row,
)
from outlast.store.change import RunKey, Status
from outlast.testing import Receiver, Simulation
from outlast.worker.growth import HistoryLimits
from outlast.worker.worker import WorkerOptions

RUN = RunKey("default", "r")
SOON = timedelta(seconds=20)
THRICE = outlast.RetryPolicy(initial_interval=timedelta(seconds=1), maximum_attempts=3)
world = Receiver()
plans: dict[str, list[str]] = {}
"""What becomes of the attempts at something, in turn: `fail` before it happens, `lose` the answer, `slow` for 30 s, else it happens."""
bodies: list[Callable[[], Awaitable[Any]]] = []
seen: list[Any] = []
go = outlast.Signal("go", str)
ping = outlast.Signal("ping", str)
OK, FELL = outlast.RetryPolicy(maximum_attempts=1), RuntimeError("it fell")


class RefusedError(Exception):
    """Proves that nothing happened."""


async def act(name: str, *, knows_keys: bool = True) -> str:
    """Do what the plan says of this attempt; return what only the receiver can know."""
    steps = plans.get(name, [])
    step = steps.pop(0) if steps else ""
    if step == "slow":
        await asyncio.sleep(10)
    if step == "refuse":
        raise RefusedError(name)
    if step == "fail":
        raise OSError(f"{name} failed")
    change = world.apply_once if knows_keys else world.apply
    change(outlast.idempotency_key(), name)
    if step == "lose":
        raise OSError(f"the answer to {name} was lost")
    return f"receipt of {name}"


@outlast.effect(idempotent=True, start_to_close_timeout=SOON, retry=THRICE)
async def undo(name: str) -> None:
    await act(f"undo {name}")


@outlast.effect(
    idempotent=True,
    start_to_close_timeout=SOON,
    retry=THRICE,
    compensate=undo,
    not_applied=(RefusedError,),
)
async def do(name: str) -> str:
    return await act(name)


@outlast.effect(idempotent=True, start_to_close_timeout=SOON)
async def send_back(result: str) -> None:
    await act(f"send back {result}")


@outlast.effect(idempotent=True, start_to_close_timeout=SOON, compensate=send_back)
async def buy(name: str) -> str:
    return await act(name)


@outlast.effect(start_to_close_timeout=SOON, compensate=undo)
async def wire(name: str) -> str:
    return await act(name, knows_keys=False)


@outlast.effect(start_to_close_timeout=SOON, compensate=send_back)
async def wire_for_receipt(name: str) -> str:
    return await act(name, knows_keys=False)


@outlast.effect(start_to_close_timeout=SOON)
async def undo_unsurely(name: str) -> None:
    await act(f"undo {name}", knows_keys=False)


@outlast.effect(idempotent=True, start_to_close_timeout=SOON, compensate=undo_unsurely)
async def do_one_way(name: str) -> str:
    return await act(name)


def found(name: str) -> outlast.Applied[str] | outlast.NotApplied:
    answer = world.find(outlast.idempotency_key())
    return outlast.Applied(f"receipt of {name}") if isinstance(answer, outlast.Applied) else answer


@outlast.effect(probe=found, start_to_close_timeout=SOON, compensate=undo)
async def book(name: str) -> str:
    return await act(name, knows_keys=False)


@outlast.effect(idempotent=True, start_to_close_timeout=SOON)
async def tell(name: str) -> str:
    return await act(name)


@outlast.step
async def think(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


@outlast.step(retry=OK)
async def break_off() -> None:
    raise LookupError("nothing left")


@outlast.workflow(timeout=timedelta(hours=10))
async def play() -> Any:
    return await bodies[-1]()


@outlast.workflow(timeout=timedelta(seconds=5))
async def play_for_5_seconds() -> Any:
    return await bodies[-1]()


@outlast.workflow
async def sub() -> None:
    async with outlast.saga():
        await do("part")
        raise FELL


CODE = [
    *(undo, do, send_back, buy, wire, wire_for_receipt, undo_unsurely, do_one_way, book),
    *(tell, think, break_off, play, play_for_5_seconds, sub),
]


@pytest.fixture(autouse=True)
def _clean() -> None:
    world.forget()
    for one in (plans, bodies, seen):
        one.clear()


@dataclass
class Ended:
    """How a run stands, and what it wrote."""

    status: str
    reason: str
    entries: list[Entry]
    value: Any = None
    error: Exception | None = None

    def of(self, *kinds: type[Entry]) -> list[Any]:
        """Return the entries of some kinds."""
        return [one for one in self.entries if isinstance(one, kinds)]

    @property
    def sagas(self) -> list[str]:
        """What was recorded of sagas, in order."""
        return [
            f"{one.operation} {'aborted' if isinstance(one, SagaAborted) else one.outcome}"
            for one in self.of(SagaAborted, SagaEnded)
        ]


def done() -> list[str]:
    """Return what happened in the world, in order."""
    return [value for _, value in world.log]


Meanwhile = Callable[[Simulation, RunHandle[Any]], Awaitable[Any]]


def run(
    body: Callable[[], Awaitable[Any]],
    meanwhile: Meanwhile | None = None,
    *,
    workflow: Any = play,
    code: Any = CODE,
    options: WorkerOptions | None = None,
) -> Ended:
    """Play a body until the run has ended or waits for an operator; first, what is to be done meanwhile."""
    bodies.append(body)

    async def scenario(sim: Simulation) -> Ended:
        await sim.start_worker()
        handle = await sim.client.start(workflow(), id="r")
        if meanwhile is not None:
            await meanwhile(sim, handle)
        head = await sim.until("r", lambda one: one.status.closed or one.status is Status.BLOCKED)
        rows = await sim.store.journal(RUN)
        ended = Ended(head.status.value, head.reason, [from_row(one.row) for one in rows])
        if head.status.closed:
            try:
                ended.value = await handle.result()
            except outlast.OutlastError as error:
                ended.error = error
        return ended

    return Simulation(code, options=options).run(scenario)


async def stuck(sim: Simulation, reason: str) -> None:
    """Wait until an operator is asked for."""
    await sim.until("r", lambda one: one.status is Status.BLOCKED and one.reason == reason)


# How a body ends


def test_what_a_body_did_that_returned_stands() -> None:
    """Nothing is undone; the saga is recorded as kept."""

    async def body() -> str:
        async with outlast.saga():
            return await do("a") + await do("b")

    ended = run(body)
    assert (ended.status, ended.value) == ("completed", "receipt of areceipt of b")
    assert done() == ["a", "b"]
    assert ended.sagas == ["r:1 kept"]


def test_what_a_body_did_that_raised_is_undone_newest_first() -> None:
    """Each once, with a key of its own; then the exception passes, and the run ends compensated."""

    async def body() -> None:
        async with outlast.saga():
            await do("a")
            await buy("b")
            await wire("c")
            await book("d")
            await tell("e")
            raise FELL

    ended = run(body)
    assert ended.status == "compensated"
    assert done() == [*"abcde", "undo d", "undo c", "send back receipt of b", "undo a"]
    assert ended.sagas == ["r:1 aborted", "r:1 compensated"]
    assert isinstance(ended.error, outlast.WorkflowFailedError)
    assert "it fell" in str(ended.error)
    assert len(world.changes) == 9
    undone = {one.compensates: one.name for one in ended.of(EffectIntended) if one.compensates}
    assert undone == {"r:5": "undo", "r:4": "undo", "r:3": "send_back", "r:2": "undo"}


def test_an_exception_that_the_workflow_bears_ends_nothing_but_the_saga() -> None:
    """A run that goes on and returns is completed."""

    async def body() -> str:
        try:
            async with outlast.saga():
                await do("a")
                await break_off()
        except LookupError:
            return await do("b")
        return "never"

    ended = run(body)
    assert (ended.status, done()) == ("completed", ["a", "undo a", "b"])


def test_a_cancelled_run_undoes_and_a_second_cancel_does_not_reach_that() -> None:
    """However often it comes; the run ends compensated, and says that it was cancelled."""
    plans["undo b"] = ["slow"]
    plans["undo a"] = ["slow"]

    async def body() -> None:
        async with outlast.saga():
            await do("a")
            await do("b")
            await outlast.receive(go)

    async def cancel(sim: Simulation, handle: RunHandle[Any]) -> None:
        await asyncio.sleep(1)
        for _ in range(4):
            await handle.cancel("no more")
            await asyncio.sleep(4)

    ended = run(body, cancel)
    assert ended.status == "compensated"
    assert isinstance(ended.error, outlast.RunCancelledError)
    assert done() == ["a", "b", "undo b", "undo a"]


def test_a_cancel_that_comes_while_all_is_undone_is_seen_then() -> None:
    """It is not lost: in place of the exception that ended the saga, it passes."""
    plans["undo a"] = ["slow"]

    async def body() -> str:
        try:
            async with outlast.saga():
                await do("a")
                raise FELL
        except asyncio.CancelledError:
            seen.append(list(done()))
            raise
        return "never"

    async def cancel(sim: Simulation, handle: RunHandle[Any]) -> None:
        await asyncio.sleep(3)
        await handle.cancel()

    ended = run(body, cancel)
    assert ended.status == "compensated"
    assert isinstance(ended.error, outlast.RunCancelledError)
    assert seen[-1] == ["a", "undo a"]


def test_a_run_out_of_time_undoes() -> None:
    """And is a failure that was compensated."""

    async def body() -> None:
        async with outlast.saga():
            await do("a")
            await outlast.receive(go)

    ended = run(body, workflow=play_for_5_seconds)
    assert ended.status == "compensated"
    assert "not done within" in str(ended.error)
    assert done() == ["a", "undo a"]


def test_the_time_of_a_run_that_is_over_while_it_undoes_stops_nothing() -> None:
    """What was begun to be undone is undone to its end."""
    plans["undo b"] = ["slow"]

    async def body() -> None:
        async with outlast.saga():
            await do("a")
            await do("b")
            await break_off()

    ended = run(body, workflow=play_for_5_seconds)
    assert ended.status == "compensated"
    assert done() == ["a", "b", "undo b", "undo a"]


def test_a_time_limit_around_a_saga_undoes_it() -> None:
    """`asyncio.timeout` raises `TimeoutError` when all is undone."""

    async def body() -> str:
        try:
            async with asyncio.timeout(5), outlast.saga():
                await do("a")
                await outlast.receive(go)
        except TimeoutError:
            return ",".join(done())
        return "never"

    ended = run(body)
    assert (ended.status, ended.value) == ("completed", "a,undo a")


def test_a_time_limit_inside_a_saga_that_is_borne_undoes_nothing() -> None:
    """The saga's body returns."""

    async def body() -> None:
        async with outlast.saga():
            await do("a")
            try:
                async with asyncio.timeout(5):
                    await outlast.receive(go)
            except TimeoutError:
                await do("b")

    assert run(body).status == "completed"
    assert done() == ["a", "b"]


def test_a_call_of_sys_exit_undoes_first() -> None:
    """It ends the run, and not before what is at stake is undone."""

    async def body() -> None:
        async with outlast.saga():
            await do("a")
            sys.exit("enough")

    ended = run(body)
    assert ended.status == "compensated"
    assert done() == ["a", "undo a"]


async def _exit() -> None:
    sys.exit("enough")


async def _break_a_callback() -> None:
    def broken() -> None:
        raise FELL

    asyncio.get_running_loop().call_soon(broken)
    await outlast.receive(go)


@pytest.mark.parametrize(("end", "words"), [(_exit, "enough"), (_break_a_callback, "it fell")])
def test_an_error_that_is_nobody_s_to_catch_undoes_first(
    end: Callable[[], Awaitable[None]], words: str
) -> None:
    """In whichever task: the run fails with it, and not before what is at stake everywhere is undone."""

    async def branch() -> None:
        async with outlast.saga():
            await do("b")
            await outlast.receive(go)

    async def body() -> None:
        async with outlast.saga():
            await do("a")
            branches = [asyncio.create_task(branch())]
            await outlast.sleep(1)
            branches.append(asyncio.create_task(end()))
            await asyncio.gather(*branches)

    ended = run(body)
    assert ended.status == "compensated"
    assert isinstance(ended.error, outlast.WorkflowFailedError)
    assert words in str(ended.error)
    assert done() == ["a", "b", "undo b", "undo a"]


def test_code_that_spins_undoes_nothing_and_the_run_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing of it can go on."""
    monkeypatch.setattr("outlast.replay.loop.SPIN_LIMIT", 1000)

    async def body() -> None:
        async with outlast.saga():
            await do("a")
            while True:
                await asyncio.sleep(0)

    ended = run(body)
    assert (ended.status, done()) == ("partly compensated", ["a"])


# Nested, and side by side


def test_a_saga_inside_another_one_is_undone_with_it() -> None:
    """It has kept what it did; then the outer one raises."""

    async def body() -> None:
        async with outlast.saga():
            await do("a")
            async with outlast.saga():
                await do("b")
            await do("c")
            raise FELL

    ended = run(body)
    assert done() == ["a", "b", "c", "undo c", "undo b", "undo a"]
    assert ended.sagas == ["r:1 aborted", "r:1 compensated"]


def test_a_saga_inside_another_one_that_raises_is_undone_alone() -> None:
    """The outer one bears it, and what that did stands."""

    async def body() -> None:
        async with outlast.saga():
            await do("a")
            try:
                async with outlast.saga():
                    await do("b")
                    raise FELL
            except RuntimeError:
                await do("c")

    ended = run(body)
    assert ended.status == "completed"
    assert done() == ["a", "b", "undo b", "c"]
    assert ended.sagas == ["r:3 aborted", "r:3 compensated", "r:1 kept"]


def test_what_an_inner_saga_has_undone_the_outer_one_does_not_undo_again() -> None:
    """Each effect is undone once."""

    async def body() -> None:
        async with outlast.saga():
            await do("a")
            async with outlast.saga():
                await do("b")
                raise FELL

    ended = run(body)
    assert ended.status == "compensated"
    assert done() == ["a", "b", "undo b", "undo a"]
    assert ended.sagas == ["r:3 aborted", "r:3 compensated", "r:1 aborted", "r:1 compensated"]


def test_an_outer_saga_waits_for_an_inner_one_that_is_undoing() -> None:
    """In a branch of its own: what that is undoing is undone by it, once."""
    plans["undo b"] = ["slow"]

    async def inner() -> None:
        async with outlast.saga():
            await do("b")
            raise LookupError

    async def body() -> None:
        async with outlast.saga():
            await do("a")
            task = asyncio.create_task(inner())
            await outlast.sleep(2)
            assert not task.done()
            raise FELL

    ended = run(body)
    assert ended.status == "compensated"
    assert done() == ["a", "b", "undo b", "undo a"]


@pytest.mark.parametrize("how", ["gather", "group"])
def test_a_branch_that_fails_undoes_what_the_others_did_and_do(how: str) -> None:
    """What is under way in another branch is waited for, then undone like what had been done; nothing begins any more."""
    plans["slow b"] = ["slow"]

    async def one() -> None:
        await do("a")
        await think(2)
        raise LookupError("lost")

    async def two() -> None:
        await do("slow b")
        seen.append("gone on")
        await do("c")

    async def body() -> None:
        async with outlast.saga():
            if how == "gather":
                await asyncio.gather(one(), two())
            else:
                async with asyncio.TaskGroup() as group:
                    group.create_task(one())
                    group.create_task(two())

    ended = run(body)
    assert ended.status == "compensated"
    assert done() == ["a", "slow b", "undo slow b", "undo a"]
    assert ended.of(EffectCompleted)[1].name == "do"


def test_a_branch_that_goes_on_in_a_closed_saga_is_refused_its_effects() -> None:
    """`SagaClosedError`, also for a saga that it would begin; steps go on, and effects do when the branch has left the saga."""
    plans["undo a"] = ["slow"]

    async def late() -> None:
        await think(3)
        with pytest.raises(outlast.SagaClosedError, match="being undone"):
            await do("b")
        with pytest.raises(outlast.SagaClosedError, match="being undone"):
            await tell("c")
        with pytest.raises(outlast.SagaClosedError, match="being undone"):
            async with outlast.saga():
                pass
        seen.append(await think(1))

    async def body() -> None:
        async with outlast.saga():
            await do("a")
            asyncio.create_task(late())
            raise FELL

    async def around() -> None:
        try:
            await body()
        except RuntimeError:
            await do("d")

    ended = run(around)
    assert ended.status == "completed"
    assert seen[-1] == 1
    assert done() == ["a", "undo a", "d"]


def test_a_call_that_was_asked_for_in_the_same_turn_as_the_failure_is_refused() -> None:
    """It was not intended yet, and never is."""

    async def body() -> None:
        async with outlast.saga():
            await do("a")
            task = asyncio.create_task(do("b"))
            await asyncio.sleep(0)
            try:
                raise FELL
            finally:
                task.add_done_callback(lambda task: seen.append(type(task.exception()).__name__))

    ended = run(body)
    assert ended.status == "compensated"
    assert done() == ["a", "undo a"]
    assert seen[-1] == "SagaClosedError"


def test_what_a_task_that_was_left_behind_did_is_undone_with_its_saga() -> None:
    """Its saga is open when the body has returned: the task is cancelled first, and undoes."""

    async def left() -> None:
        async with outlast.saga():
            await do("a")
            await outlast.receive(go)

    async def body() -> None:
        asyncio.create_task(left())
        await outlast.sleep(5)

    ended = run(body)
    assert ended.status == "completed"
    assert done() == ["a", "undo a"]


def test_what_a_task_does_whose_saga_has_returned_is_like_outside() -> None:
    """Nothing undoes it."""

    async def late() -> None:
        await outlast.sleep(3)
        await do("b")

    async def body() -> None:
        async with outlast.saga():
            await do("a")
            task = asyncio.create_task(late())
        await task
        raise FELL

    ended = run(body)
    assert (ended.status, done()) == ("failed", ["a", "b"])


def test_a_saga_of_a_handler_is_undone_when_that_fails() -> None:
    """A handler of a signal that raises ends the run, when what it did was undone."""

    async def handle(value: str) -> None:
        async with outlast.saga():
            await do(value)
            raise FELL

    async def body() -> None:
        outlast.on_signal(ping, handle)
        async with outlast.saga():
            await do("a")
            await outlast.receive(go)

    async def send(sim: Simulation, handle: RunHandle[Any]) -> None:
        await asyncio.sleep(1)
        await handle.send(ping, "b")

    ended = run(body, send)
    assert ended.status == "compensated"
    assert done() == ["a", "b", "undo b", "undo a"]


def test_a_saga_that_a_task_has_open_is_its_own_when_the_one_around_it_has_returned() -> None:
    """It is undone when its own block raises; the other one's doings stand."""

    async def left() -> None:
        async with outlast.saga():
            await do("b")
            await outlast.sleep(5)
            raise FELL

    async def body() -> str:
        async with outlast.saga():
            await do("a")
            task = asyncio.create_task(left())
            await outlast.sleep(2)
        try:
            await task
        except RuntimeError:
            return ",".join(done())
        return "never"

    ended = run(body)
    assert ended.value == "a,b,undo b"
    assert [one.partition(" ")[2] for one in ended.sagas] == ["aborted", "compensated", "kept"]


# Equal calls


def test_an_equal_call_after_the_undoing_is_another_one() -> None:
    """It has another key, or the receiver would answer with the result of what was undone."""

    async def body() -> str:
        try:
            async with outlast.saga():
                await do("a")
                raise FELL
        except RuntimeError:
            return await do("a")

    ended = run(body)
    assert ended.status == "completed"
    assert done() == ["a", "undo a", "a"]
    assert len(world.changes) == 3


def test_undoing_the_same_thing_twice_is_done_twice() -> None:
    """Equal compensations have keys of their own."""

    async def body() -> None:
        for _ in range(2):
            try:
                async with outlast.saga():
                    await do("a")
                    raise FELL
            except RuntimeError:
                pass

    assert run(body).status == "completed"
    assert done() == ["a", "undo a"] * 2
    assert len(world.changes) == 4


def test_what_the_workflow_has_undone_itself_is_not_undone_again() -> None:
    """An equal call of the compensation counts as it, when it came after what it undoes."""

    async def body() -> None:
        await undo("b")
        async with outlast.saga():
            await do("a")
            await do("b")
            await undo("a")
            raise FELL

    ended = run(body)
    assert ended.status == "compensated"
    assert done() == ["undo b", "a", "b", "undo a", "undo b"]


@pytest.mark.parametrize("is_around", [True, False])
def test_an_equal_call_in_another_saga_may_not_share_an_outcome(is_around: bool) -> None:
    """What one saga undoes, no other code may rely on, be it in a saga beside it in the same one."""
    plans["a"] = ["slow"]

    async def part() -> None:
        async with outlast.saga():
            await do("a")

    async def both() -> None:
        first = asyncio.create_task(part())
        await outlast.sleep(1)
        with pytest.raises(outlast.RepeatedEffectError, match="in another saga"):
            await do("a")
        with pytest.raises(outlast.RepeatedEffectError, match="in another saga"):
            await part()
        await first

    async def body() -> None:
        if not is_around:
            await both()
            return
        async with outlast.saga():
            await both()

    assert run(body).status == "completed"
    assert done() == ["a"]


def test_equal_calls_in_one_saga_are_one_and_are_undone_once() -> None:
    """A twin takes the outcome."""
    plans["a"] = ["slow"]

    async def body() -> None:
        async with outlast.saga():
            await asyncio.gather(do("a"), do("a"))
            raise FELL

    assert run(body).status == "compensated"
    assert done() == ["a", "undo a"]


# What did not happen, and what may have


def test_what_was_refused_is_not_undone() -> None:
    """Nothing happened."""
    plans["a"] = ["refuse"] * 3

    async def body() -> None:
        async with outlast.saga():
            await do("b")
            await wire("c")
            await do("a")

    ended = run(body)
    assert ended.status == "compensated"
    assert "undo b" in done()
    assert done()[:2] == ["b", "c"]


def test_an_effect_in_doubt_is_waited_for_and_undone_when_it_happened() -> None:
    """Nothing is undone before somebody has said what became of it."""
    plans["b"] = ["lose"]

    async def body() -> None:
        async with outlast.saga():
            await do("a")
            await asyncio.gather(wire("b"), _fail_after(40))

    async def look(sim: Simulation, handle: RunHandle[Any]) -> None:
        await stuck(sim, "in doubt")
        assert done() == ["a", "b"]
        (doubt,) = (await handle.status()).waits["in_doubt"]
        await handle.resolve(doubt, applied="found")
        await sim.closed("r")

    ended = run(body, look)
    assert ended.status == "compensated"
    assert done() == ["a", "b", "undo b", "undo a"]


def test_an_effect_in_doubt_that_did_not_happen_is_attempted_again_and_then_undone() -> None:
    """Not applied means that the attempts begin anew: it is bound, and a cancel does not reach it."""
    plans["b"] = ["fail"]

    async def body() -> None:
        async with outlast.saga():
            await do("a")
            await asyncio.gather(wire("b"), _fail_after(40))

    async def look(sim: Simulation, handle: RunHandle[Any]) -> None:
        await stuck(sim, "in doubt")
        (doubt,) = (await handle.status()).waits["in_doubt"]
        await handle.resolve(doubt, not_applied=True)
        await sim.closed("r")

    ended = run(body, look)
    assert ended.status == "compensated"
    assert done() == ["a", "b", "undo b", "undo a"]


def test_an_effect_in_doubt_that_failed_is_not_undone() -> None:
    """The operator says that nothing happened, and that it shall not."""
    plans["b"] = ["fail"]

    async def body() -> None:
        async with outlast.saga():
            await do("a")
            await wire("b")

    async def look(sim: Simulation, handle: RunHandle[Any]) -> None:
        await stuck(sim, "in doubt")
        await handle.resolve("r:3", failed="it bounced")
        await sim.closed("r")

    ended = run(body, look)
    assert ended.status == "compensated"
    assert done() == ["a", "undo a"]


async def _fail_after(seconds: float) -> None:
    await think(seconds)
    raise LookupError("too long")


def test_an_effect_that_nothing_undoes_is_waited_for() -> None:
    """It is under way when the saga fails; nothing is undone before it has ended."""
    plans["b"] = ["slow"]

    async def body() -> None:
        async with outlast.saga():
            await do("a")
            await asyncio.gather(tell("b"), _fail_after(2))

    ended = run(body)
    assert ended.status == "compensated"
    assert done() == ["a", "b", "undo a"]


# Operators


@pytest.mark.parametrize("in_saga", [True, False])
def test_an_operator_has_an_effect_in_doubt_undone(in_saga: bool) -> None:
    """Its await raises; in a saga that undoes the rest, it is not undone again."""
    plans["b"] = ["lose"]

    async def body() -> str:
        try:
            async with outlast.saga():
                await do("a")
                if in_saga:
                    await wire("b")
        except outlast.EffectCompensatedError:
            return "undone"
        try:
            await wire("b")
        except outlast.EffectCompensatedError:
            return "undone alone"
        return "never"

    async def look(sim: Simulation, handle: RunHandle[Any]) -> None:
        await stuck(sim, "in doubt")
        (doubt,) = (await handle.status()).waits["in_doubt"]
        await handle.resolve(doubt, compensate=True, reason="be safe")
        await sim.closed("r")

    ended = run(body, look)
    assert ended.status == "completed"
    if in_saga:
        assert sorted(done()) == sorted(["a", "b", "undo b", "undo a"])
        assert done().index("undo b") < done().index("undo a")
    else:
        assert done() == ["a", "b", "undo b"]


def test_a_compensation_that_needs_the_result_is_given_what_the_operator_says() -> None:
    """What cannot be its result is refused, as an alarm, and the effect stays in doubt."""
    plans["b"] = ["lose"]

    async def body() -> str:
        try:
            return await wire_for_receipt("b")
        except outlast.EffectCompensatedError as error:
            return str(error)

    async def look(sim: Simulation, handle: RunHandle[Any]) -> None:
        await stuck(sim, "in doubt")
        await handle.resolve("r:1", compensate=True, result=17)
        await asyncio.sleep(60)
        assert (await handle.status()).status is Status.BLOCKED
        await handle.resolve("r:1", compensate=True, result="number 9", reason="be safe")
        await sim.closed("r")

    ended = run(body, look)
    assert "be safe" in ended.value
    assert done() == ["b", "send back number 9"]


OPERATORS = [
    ({"applied": None}, "compensated", []),
    ({"not_applied": True}, "compensated", ["undo b"]),
    ({"failed": "leave it"}, "partly compensated", []),
]


@pytest.mark.parametrize(("said", "status", "more"), OPERATORS)
def test_a_compensation_that_gives_up_waits_for_an_operator(
    said: dict[str, Any], status: str, more: list[str]
) -> None:
    """The run is blocked and says so; done by hand, tried again, or left: then the rest is undone."""
    plans["undo b"] = ["fail"] * 3

    async def body() -> None:
        async with outlast.saga():
            await do("a")
            await do("b")
            raise FELL

    async def look(sim: Simulation, handle: RunHandle[Any]) -> None:
        await stuck(sim, "compensation failed")
        assert done() == ["a", "b"]
        (doubt,) = (await handle.status()).waits["in_doubt"]
        await handle.resolve(doubt, **said)
        await sim.closed("r")

    ended = run(body, look)
    assert ended.status == status
    assert done() == ["a", "b", *more, "undo a"]
    (doubt,) = ended.of(EffectInDoubt)
    assert doubt.failure is not None
    assert ended.sagas[-1] == f"r:1 {status}"


def test_the_attempts_of_a_compensation_that_gave_up_begin_anew() -> None:
    """As many as before: it is given up again only when all of them have failed once more."""
    plans["undo a"] = ["fail"] * 5

    async def body() -> None:
        async with outlast.saga():
            await do("a")
            raise FELL

    async def look(sim: Simulation, handle: RunHandle[Any]) -> None:
        await stuck(sim, "compensation failed")
        await handle.resolve("r:1u:1", not_applied=True)
        await sim.closed("r")

    ended = run(body, look)
    assert (ended.status, done()) == ("compensated", ["a", "undo a"])
    assert len(ended.of(EffectInDoubt)) == 1


def test_a_compensation_that_fails_first_is_repeated_by_its_own_retries() -> None:
    """With one key; nobody is asked."""
    plans["undo a"] = ["lose", "fail"]

    async def body() -> None:
        async with outlast.saga():
            await do("a")
            raise FELL

    ended = run(body)
    assert ended.status == "compensated"
    assert done() == ["a", "undo a"]
    assert max(world.requests.values()) == 2


@pytest.mark.parametrize("said", [{"applied": None}, {"not_applied": True}])
def test_a_compensation_in_doubt_is_a_doubt_like_any_other(said: dict[str, Any]) -> None:
    """It happened, or it is made again; then the rest is undone."""
    plans["undo b"] = ["lose" if "applied" in said else "fail"]

    async def body() -> None:
        async with outlast.saga():
            await do("a")
            await do_one_way("b")
            raise FELL

    async def look(sim: Simulation, handle: RunHandle[Any]) -> None:
        await stuck(sim, "in doubt")
        (doubt,) = (await handle.status()).waits["in_doubt"]
        await handle.resolve(doubt, **said)
        await sim.closed("r")

    assert run(body, look).status == "compensated"
    assert done() == ["a", "b", "undo b", "undo a"]


def test_a_pause_holds_what_undoes_and_a_resume_lets_it_go_on() -> None:
    """No compensation begins meanwhile."""
    plans["undo b"] = ["slow"]

    async def body() -> None:
        async with outlast.saga():
            await do("a")
            await do("b")
            raise FELL

    async def pause(sim: Simulation, handle: RunHandle[Any]) -> None:
        await asyncio.sleep(3)
        await handle.pause()
        await asyncio.sleep(100)
        assert done() == ["a", "b", "undo b"]
        await handle.resume()

    assert run(body, pause).status == "compensated"
    assert done() == ["a", "b", "undo b", "undo a"]


@pytest.mark.parametrize("durability", ["async", "exit"])
def test_a_run_that_is_written_late_undoes_the_same(durability: Any) -> None:
    """What is recorded of a saga is written before its first compensation is."""

    @outlast.workflow(name="lately", durability=durability)
    async def lately() -> None:
        async with outlast.saga():
            await think(1)
            await do("a")
            await think(1)
            async with outlast.saga():
                await do("b")
            raise FELL

    ended = run(lately, workflow=lately, code=[*CODE, lately])
    assert ended.status == "compensated"
    assert done() == ["a", "b", "undo b", "undo a"]
    kinds = [type(one) for one in ended.entries]
    intents = [one for one in ended.entries if isinstance(one, EffectIntended) and one.compensates]
    assert kinds.index(SagaAborted) < ended.entries.index(intents[0])


def test_continue_as_new_is_refused_inside_a_saga_with_something_to_undo() -> None:
    """Its effects could not be undone any more; with nothing at stake it is free."""

    async def body() -> str:
        async with outlast.saga():
            await do("a")
            with pytest.raises(outlast.ForbiddenInWorkflowError, match="saga at r:1"):
                outlast.continue_as_new(play())
        return "refused"

    ended = run(body)
    assert (ended.status, ended.value, done()) == ("completed", "refused", ["a"])


def test_a_journal_at_its_limit_is_undone_all_the_same() -> None:
    """Nothing new begins beyond it, but for what undoes."""

    async def body() -> None:
        async with outlast.saga():
            for name in "abcd":
                await do(name)
            await break_off()

    # The failure is the 11th entry; what comes after it is more than the limit and its headroom.
    limits = HistoryLimits(most_entries=11, warn_entries=11)
    ended = run(body, options=WorkerOptions(library="simulated", history=limits))
    assert ended.status == "compensated"
    assert done() == [*"abcd", "undo d", "undo c", "undo b", "undo a"]


# Save points


def test_a_part_that_fails_is_undone_and_tried_again_from_its_save_point() -> None:
    """What came before it stands; each try is another call with another key."""

    async def body() -> None:
        async with outlast.saga():
            await do("a")
            async for part in outlast.save_point(THRICE):
                async with part:
                    await do("b")
                    if part.number < 3:
                        raise FELL

    ended = run(body)
    assert ended.status == "completed"
    assert done() == ["a", "b", "undo b", "b", "undo b", "b"]
    assert len(world.changes) == 6


def test_a_part_whose_tries_are_used_up_lets_its_exception_pass() -> None:
    """Then the whole is undone."""

    async def body() -> None:
        async with outlast.saga():
            await do("a")
            async for part in outlast.save_point(THRICE):
                async with part:
                    await do("b")
                    raise FELL

    ended = run(body)
    assert ended.status == "compensated"
    assert done() == ["a", *["b", "undo b"] * 3, "undo a"]


def test_a_part_is_not_tried_again_after_an_exception_that_says_so() -> None:
    """The policy names it."""
    policy = outlast.RetryPolicy(maximum_attempts=5, non_retryable_error_types=("LookupError",))

    async def body() -> None:
        async for part in outlast.save_point(policy):
            async with part:
                await do("b")
                raise LookupError("no")

    ended = run(body)
    assert ended.status == "compensated"
    assert done() == ["b", "undo b"]


def test_a_part_whose_compensation_was_left_is_not_tried_again() -> None:
    """It would be done twice."""
    plans["undo b"] = ["fail"] * 3

    async def body() -> None:
        async for part in outlast.save_point(THRICE):
            async with part:
                await do("b")
                raise FELL

    async def look(sim: Simulation, handle: RunHandle[Any]) -> None:
        await stuck(sim, "compensation failed")
        (doubt,) = (await handle.status()).waits["in_doubt"]
        await handle.resolve(doubt, failed="leave it")
        await sim.closed("r")

    ended = run(body, look)
    assert ended.status == "partly compensated"
    assert done() == ["b"]


# Other runs


def test_a_child_that_was_compensated_is_a_failure_to_its_parent() -> None:
    """Its own words for how it ended are in its row; the parent is told of the exception."""

    async def body() -> str:
        try:
            await outlast.run_child(sub(), id="kid")
        except outlast.WorkflowFailedError as error:
            return str(error)
        return "never"

    async def look(sim: Simulation, handle: RunHandle[Any]) -> None:
        assert (await sim.closed("kid")).status.value == "compensated"

    ended = run(body, look)
    assert ended.status == "completed"
    assert "it fell" in ended.value
    assert done() == ["part", "undo part"]


# Code that changes


def test_code_whose_effect_is_undone_by_something_else_blocks_the_run() -> None:
    """What was begun under one compensation is undone by it; the run goes on when that is there again."""

    async def other(name: str) -> None:
        await act(f"undo {name}")

    undo_otherwise = outlast.effect(
        idempotent=True, start_to_close_timeout=SOON, name="undo_otherwise"
    )(other)

    async def again(name: str) -> str:
        return await act(name)

    do_otherwise = outlast.effect(
        idempotent=True, start_to_close_timeout=SOON, compensate=undo_otherwise, name="do"
    )(again)
    chosen = [do]

    async def body() -> None:
        async with outlast.saga():
            await chosen[-1]("a")
            await outlast.receive(go)

    bodies.append(body)

    async def scenario(sim: Simulation) -> str:
        first = await sim.start_worker(definitions=CODE)
        handle = await sim.client.start(play(), id="r")
        await asyncio.sleep(1)
        await first.stop()
        await handle.cancel()
        chosen.append(do_otherwise)
        do_otherwise.__module__ = "v2"  # builds differ where their sources do
        changed = [one for one in CODE if one is not do] + [do_otherwise, undo_otherwise]
        second = await sim.start_worker(definitions=changed)
        head = await sim.until("r", lambda one: one.status is Status.BLOCKED)
        assert "non-determinism" in head.reason or "determin" in head.reason, head
        await second.stop()
        chosen.append(do)
        await sim.start_worker(definitions=CODE)
        return (await sim.closed("r")).status.value

    assert Simulation(CODE).run(scenario) == "compensated"
    assert done() == ["a", "undo a"]


# Declarations


async def undo_many(*names: str) -> None: ...


async def undo_painted(name: str, colour: str) -> None: ...


def declared(function: Any) -> Any:
    return outlast.effect(idempotent=True, start_to_close_timeout=SOON)(function)


DECLARATIONS = {
    "no effect": (lambda: think, "which is no effect"),
    "no name of its own": (lambda: declared(undo_many), "no name of its own"),
    "an unknown parameter": (lambda: declared(undo_painted), "takes colour"),
}


@pytest.mark.parametrize("what", DECLARATIONS)
def test_a_compensation_that_cannot_undo_is_refused_where_it_is_declared(what: str) -> None:
    """With the reason."""
    make, words = DECLARATIONS[what]
    with pytest.raises(outlast.DefinitionError, match=words):

        @outlast.effect(idempotent=True, start_to_close_timeout=SOON, compensate=make())
        async def effect(name: str) -> str:
            return name


def test_an_effect_with_a_compensation_and_no_timeout_is_refused() -> None:
    """Nothing is undone while an attempt could still act."""
    with pytest.raises(outlast.DefinitionError, match="no start_to_close_timeout"):

        @outlast.effect(idempotent=True, compensate=undo)
        async def effect(name: str) -> str:
            return name
