"""Cancellation, timeouts, retries: faults that comparable systems had, and what happens here. The numbers are those of docs/cases.md."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
import dataclasses
import gc
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest

import outlast
from outlast.effects.retry import RetryPolicy
from outlast.journal.entry import (
    CancelRequested,
    Completed,
    EffectCompleted,
    EffectIntended,
    Entry,
    Failed,
    RunTimedOut,
    StepCompleted,
    TimerFired,
    from_row,
)
from outlast.store.change import RunHead, RunKey, Status
from outlast.testing import Faults, Simulation
from outlast.worker.gate import Gate
from outlast.worker.worker import WorkerOptions
from outlast.workflows.definition import AttemptOptions, Effect, EffectOptions, Step, Workflow

RUN = RunKey("default", "r")
GO = outlast.Signal("go", int)
OPTIONS = WorkerOptions(library="simulated", lease=timedelta(seconds=3))
IN_MEMORY = dataclasses.replace(OPTIONS, idle=timedelta(hours=2))

calls: list[str] = []
"""What bodies of steps and effects were called, in order."""


@pytest.fixture(autouse=True)
def _clean() -> None:
    calls.clear()
    attempts.clear()


def step(function: Callable[..., Any], name: str = "", **options: Any) -> Step[..., Any]:
    return Step(function, name, AttemptOptions(**options))


def effect(function: Callable[..., Any], name: str = "") -> Effect[..., Any]:
    return Effect(function, name, AttemptOptions(), EffectOptions(idempotent=True))


async def entries_of(sim: Simulation) -> list[Entry]:
    return [from_row(one.row) for one in await sim.store.journal(RUN)]


async def _quick(name: str) -> str:
    calls.append(name)
    return name


async def _slow(name: str) -> str:
    await asyncio.sleep(10)
    calls.append(name)
    return name


quick, slow = step(_quick, "quick"), step(_slow, "slow")
pay = effect(_quick, "pay")
STEPS = [quick, slow, pay]


def balance() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


# 109: cancels that are caught


async def _clean_up_and_go_on(wait: Callable[[], Coroutine[Any, Any, Any]]) -> str:
    try:
        await wait()
    except asyncio.CancelledError:
        await quick("clean up")
        await slow("slow clean up")
    return await quick("after")


async def _taken_back(wait: Callable[[], Coroutine[Any, Any, Any]]) -> str:
    task = asyncio.current_task()
    assert task is not None
    try:
        await wait()
    except asyncio.CancelledError:
        assert task.uncancel() == 0
        await quick("clean up")
        await slow("slow clean up")
    assert balance() == 0
    async with asyncio.timeout(60):
        return await quick("after")


async def _in_finally(wait: Callable[[], Coroutine[Any, Any, Any]]) -> str:
    try:
        try:
            await wait()
        finally:
            await quick("clean up")
            await slow("slow clean up")
    except asyncio.CancelledError:
        return await quick("after")
    return "never"


async def _in_effect(wait: Callable[[], Coroutine[Any, Any, Any]]) -> str:
    try:
        await wait()
    except asyncio.CancelledError:
        await pay("clean up")
        await slow("slow clean up")
    return await quick("after")


async def _a_task_of_its_own(wait: Callable[[], Coroutine[Any, Any, Any]]) -> str:
    async def work() -> None:
        try:
            await wait()
        except asyncio.CancelledError:
            await quick("clean up")
            await slow("slow clean up")

    working = asyncio.create_task(work())
    try:
        await outlast.receive(outlast.Signal("never", int))
    except asyncio.CancelledError:
        working.cancel()
        await working
    return await quick("after")


async def _wait_for_message() -> None:
    await outlast.receive(outlast.Signal("never", int))


async def _wait_for_step() -> None:
    await slow("never")


async def _wait_for_timer() -> None:
    await asyncio.sleep(3600)


async def _wait_for_many() -> None:
    await asyncio.gather(slow("never"), asyncio.sleep(3600), _wait_for_message())


async def _wait_for_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_wait_for_timer())
        group.create_task(_wait_for_message())


async def _wait_for_condition() -> None:
    await outlast.wait_condition(lambda: False)


CATCHING = [_clean_up_and_go_on, _taken_back, _in_finally, _in_effect, _a_task_of_its_own]
WAITS = [
    *(_wait_for_message, _wait_for_step, _wait_for_timer),
    *(_wait_for_many, _wait_for_group, _wait_for_condition),
]


@pytest.mark.parametrize("restart", [False, True], ids=["", "killed meanwhile"])
@pytest.mark.parametrize("wait", WAITS, ids=lambda one: one.__name__.strip("_"))
@pytest.mark.parametrize("catch", CATCHING, ids=lambda one: one.__name__.strip("_"))
def test_case_109_a_cancel_that_is_caught_is_over(
    catch: Callable[..., Coroutine[Any, Any, str]],
    wait: Callable[[], Coroutine[Any, Any, Any]],
    restart: bool,
) -> None:
    """The clean-up happens once and ends, what is awaited afterwards is not cancelled again, and one cancel is in the journal."""

    async def flow() -> str:
        return await catch(wait)

    workflow = Workflow(flow)

    async def scenario(sim: Simulation) -> tuple[str, list[Entry]]:
        worker = await sim.start_worker()
        handle = await sim.client.start(workflow(), id="r")
        await asyncio.sleep(2)
        await handle.cancel("enough")
        await asyncio.sleep(5)
        if restart:
            worker.kill()
            await sim.start_worker()
        return await handle.result(), await entries_of(sim)

    result, entries = Simulation([workflow, *STEPS], options=OPTIONS).run(scenario)
    assert result == "after"
    assert calls == ["clean up", "slow clean up", "after"]
    assert sum(isinstance(one, CancelRequested) for one in entries) == 1
    assert sum(isinstance(one, StepCompleted) for one in entries) == (
        2 if catch is _in_effect else 3
    )


# 110: durable sleeps that are cancelled


async def _by_task() -> None:
    sleeping = asyncio.create_task(asyncio.sleep(3600))
    await asyncio.sleep(0)
    sleeping.cancel()
    await asyncio.wait([sleeping])


async def _by_task_later() -> None:
    sleeping = asyncio.create_task(outlast.sleep(timedelta(hours=1)))
    await quick("between")
    sleeping.cancel()
    await asyncio.wait([sleeping])


async def _by_group() -> None:
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(3600))
            await quick("between")
            raise ValueError
    except* ValueError:
        pass


async def _by_gather() -> None:
    sleeping = asyncio.gather(asyncio.sleep(3600), asyncio.sleep(1800))
    await quick("between")
    sleeping.cancel()
    await asyncio.wait([asyncio.ensure_future(sleeping)])


async def _by_timeout() -> None:
    async with asyncio.timeout(3600):
        await quick("between")


async def _by_wait_for() -> None:
    await asyncio.wait_for(quick("between"), 3600)


async def _by_receive() -> None:
    sleeping = asyncio.create_task(
        outlast.receive(outlast.Signal("never", int), timeout=timedelta(hours=1))
    )
    await quick("between")
    sleeping.cancel()
    await asyncio.wait([sleeping])


async def _by_handle() -> None:
    handle = asyncio.get_running_loop().call_later(3600, calls.append, "fired")
    await quick("between")
    handle.cancel()


SLEEPS = [
    *(_by_task, _by_task_later, _by_group, _by_gather),
    *(_by_timeout, _by_wait_for, _by_receive, _by_handle),
]


@pytest.mark.parametrize("sleep", SLEEPS, ids=lambda one: one.__name__.strip("_"))
def test_case_110_a_sleep_that_is_cancelled_leaves_no_timer(
    sleep: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    """The parked run's row has no time to wake at, nothing fires when it would have been due, and the run ends as ever."""

    async def flow() -> int:
        await sleep()
        return await outlast.receive(GO)

    workflow = Workflow(flow)

    async def scenario(sim: Simulation) -> tuple[RunHead, list[Entry]]:
        await sim.start_worker()
        handle = await sim.client.start(workflow(), id="r")
        parked = await sim.until("r", lambda head: head.status is Status.WAITING)
        await asyncio.sleep(4000)
        await handle.send(GO, 1)
        assert await handle.result() == 1
        return parked, await entries_of(sim)

    sim = Simulation([workflow, *STEPS], longest=timedelta(hours=2))
    parked, entries = sim.run(scenario)
    assert parked.wake_at is None
    assert not any(isinstance(one, TimerFired) for one in entries)
    assert "fired" not in calls


def test_case_110_a_run_that_ends_takes_its_timers_along() -> None:
    """A sleep that nobody waits for any more is gone with the run, and another run under the id does not get it."""

    async def flow() -> int:
        for _ in range(5):
            asyncio.create_task(asyncio.sleep(100))
        await quick("a")
        return 1

    workflow = Workflow(flow)

    async def scenario(sim: Simulation) -> list[Entry]:
        await sim.start_worker()
        await sim.client.run(workflow(), id="r")
        head = await sim.until("r", lambda head: head.status.closed)
        assert head.wake_at is None
        await asyncio.sleep(200)
        return await entries_of(sim)

    entries = Simulation([workflow, *STEPS]).run(scenario)
    assert isinstance(entries[-1], Completed)
    assert not any(isinstance(one, TimerFired) for one in entries)


# 113: ends are final


sims: list[Simulation] = []


@pytest.mark.parametrize("seconds", [0, 3], ids=["which returns at once", "which goes on"])
@pytest.mark.parametrize("way", ["cancel", "terminate"])
def test_case_113_an_end_that_was_asked_for_in_the_last_step_is_final(
    way: str, seconds: float
) -> None:
    """A termination ends the run, and so does a cancel that finds the body running; neither end becomes the other later.

    A body that returned before its cancel was read is completed, and the request is on record before the end.
    """

    async def last() -> int:
        handle = sims[-1].client.handle("r")
        await (handle.cancel() if way == "cancel" else handle.terminate())
        await asyncio.sleep(seconds)
        return 1

    async def flow() -> int:
        await quick("first")
        return await finish()

    finish, workflow = step(last), Workflow(flow)

    async def scenario(sim: Simulation) -> tuple[Status, list[Entry]]:
        sims.append(sim)
        await sim.start_worker()
        await sim.client.start(workflow(), id="r")
        first = await sim.closed("r")
        await asyncio.sleep(60)
        head = await sim.closed("r")
        assert (head.status, head.version) == (first.status, first.version)
        return head.status, await entries_of(sim)

    status, entries = Simulation([workflow, finish, *STEPS], options=OPTIONS).run(scenario)
    if way == "terminate":
        assert status is Status.TERMINATED
        assert not isinstance(entries[-1], Completed)
    elif seconds:
        assert status is Status.CANCELLED
    else:
        assert status is Status.COMPLETED
        assert [type(one) for one in entries[-3:]] == [StepCompleted, CancelRequested, Completed]


@pytest.mark.parametrize("seed", range(30))
def test_case_113_a_cancel_beside_the_end_is_either_refused_or_the_end(seed: int) -> None:
    """Whatever the moment: a cancel that was accepted in time ends the run, one that came too late is told so or kept unread."""

    async def flow() -> int:
        await quick("first")
        return len(await quick("last"))

    workflow = Workflow(flow)

    async def scenario(sim: Simulation) -> tuple[bool, Status, list[Entry]]:
        await sim.start_worker()
        handle = await sim.client.start(workflow(), id="r")
        await asyncio.sleep(seed * 0.004)
        try:
            await handle.cancel()
            accepted = True
        except outlast.RunConflictError:
            accepted = False
        head = await sim.closed("r")
        await asyncio.sleep(10)
        assert (await sim.closed("r")).status is head.status
        return accepted, head.status, await entries_of(sim)

    sim = Simulation([workflow, *STEPS], seed=seed, faults=Faults(latency=0.02))
    accepted, status, entries = sim.run(scenario)
    read = any(isinstance(one, CancelRequested) for one in entries)
    completed_first = any(
        isinstance(one, StepCompleted) and one.operation == "r:2" for one in entries
    )
    if status is Status.CANCELLED:
        assert accepted
        assert read
    else:
        assert status is Status.COMPLETED
        assert completed_first
        assert read is accepted


@dataclass(frozen=True)
class Ended:
    """A way in which a run can have ended."""

    status: Status
    ask: Callable[[outlast.RunHandle[Any]], Coroutine[Any, Any, None]]


async def _go(handle: outlast.RunHandle[Any]) -> None:
    await handle.send(GO, 1)


async def _fail(handle: outlast.RunHandle[Any]) -> None:
    await handle.send(GO, 0)


ENDS = [
    Ended(Status.COMPLETED, _go),
    Ended(Status.FAILED, _fail),
    Ended(Status.CANCELLED, lambda handle: handle.cancel()),
    Ended(Status.TERMINATED, lambda handle: handle.terminate()),
]


@pytest.mark.parametrize("ended", ENDS, ids=lambda one: str(one.status))
def test_case_113_a_run_that_has_ended_stays_as_it_ended(ended: Ended) -> None:
    """Whatever is asked of it later is refused in words; only a start by its id, with `restart`, begins another run."""

    async def flow() -> int:
        return 10 // await outlast.receive(GO)

    workflow = Workflow(flow)

    async def scenario(sim: Simulation) -> None:
        await sim.start_worker()
        handle = await sim.client.start(workflow(), id="r")
        await ended.ask(handle)
        head = await sim.closed("r")
        assert head.status is ended.status
        for late in (handle.cancel(), handle.terminate(), handle.send(GO, 1)):
            with pytest.raises(outlast.RunConflictError):
                await late
        with pytest.raises(outlast.RunConflictError):
            await handle.resolve("r:1", applied=1)
        await asyncio.sleep(30)
        again = await sim.closed("r")
        assert (again.status, again.version) == (head.status, head.version)
        restarted = await sim.client.start(workflow(), id="r", if_closed="restart")
        await restarted.send(GO, 1)
        assert await restarted.result() == 10

    Simulation([workflow], options=OPTIONS).run(scenario)


# 116: runs that nobody refers to


async def _waits_for_a_message() -> int:
    return await outlast.receive(GO)


async def _waits_for_a_condition() -> int:
    found: list[int] = []

    async def listen() -> None:
        found.append(await outlast.receive(GO))

    listening = asyncio.create_task(listen())
    await outlast.wait_condition(lambda: bool(found))
    del listening
    return found[0]


async def _waits_for_a_task_that_nobody_holds() -> int:
    done = asyncio.get_running_loop().create_future()

    async def listen() -> None:
        done.set_result(await outlast.receive(GO))

    asyncio.create_task(listen())
    return await done


async def _waits_for_a_step() -> int:
    await slow("a")
    return await outlast.receive(GO)


async def _waits_for_a_timer() -> int:
    await asyncio.sleep(10)
    return await outlast.receive(GO)


async def _waits_for_an_event() -> int:
    event = asyncio.Event()

    async def listen() -> int:
        found = await outlast.receive(GO)
        event.set()
        return found

    listening = asyncio.create_task(listen())
    await event.wait()
    return await listening


async def _waits_in_a_generator() -> int:
    async def messages() -> Any:
        while True:
            yield await outlast.receive(GO)

    async for found in messages():
        return found
    return 0


WAITING = [
    *(_waits_for_a_message, _waits_for_a_condition, _waits_for_a_task_that_nobody_holds),
    *(_waits_for_a_step, _waits_for_a_timer, _waits_for_an_event, _waits_in_a_generator),
]


@pytest.mark.parametrize("body", WAITING, ids=lambda one: one.__name__.strip("_"))
def test_case_116_a_waiting_run_is_held_by_its_worker(
    body: Callable[[], Coroutine[Any, Any, int]],
) -> None:
    """Fifty runs in memory, to which nobody outside refers, survive the garbage collector and end."""
    workflow = Workflow(body, "flow")

    async def scenario(sim: Simulation) -> list[int]:
        worker = await sim.start_worker()
        gc.freeze()  # only what begins from here on is looked at, which is what could be lost
        for n in range(50):
            await worker.client.start(workflow(), id=f"r{n}")
        for _ in range(15):
            await asyncio.sleep(1)
            gc.collect()
        assert len(worker.worker.runs) == 50
        for n in range(50):
            await worker.client.handle(f"r{n}").send(GO, n)
        gc.collect()
        return [await worker.client.handle(f"r{n}", workflow).result() for n in range(50)]

    try:
        assert Simulation([workflow, *STEPS], options=IN_MEMORY).run(scenario) == list(range(50))
    finally:
        gc.unfreeze()


# 118: a tool call that was cancelled


STOP = outlast.Signal("stop", str)


async def _model(history: list[list[str]]) -> str:
    """Refuse what every model refuses: a call without its result."""
    asked = [name for role, name, _ in history if role == "call"]
    answered = [name for role, name, _ in history if role == "result"]
    if asked != answered:
        raise TypeError(f"calls {asked} have results {answered}")
    return f"{history[-1][2]}, after {len(asked)} calls"


model = step(_model, "model")


class History:
    """A conversation; a call is closed with a result whatever becomes of it."""

    def __init__(self) -> None:
        self.said: list[list[str]] = []

    async def call(self, name: str, tool: Any) -> str:
        """Wait for a tool, and note what became of it."""
        self.said.append(["call", name, ""])
        result = "cancelled"
        try:
            result = await tool
        finally:
            self.said.append(["result", name, result])
        return result


async def _stopped_by_a_message(tool: Any) -> str:
    history = History()
    await history.call("first", quick("first"))
    working = asyncio.create_task(history.call("second", tool("second")))
    history.said.append(["user", "", await outlast.receive(STOP)])
    working.cancel()
    await asyncio.wait([working])
    return await model(history.said)


async def _stopped_by_a_limit(tool: Any) -> str:
    history = History()
    await history.call("first", quick("first"))
    try:
        async with asyncio.timeout(3):
            await history.call("second", tool("second"))
    except TimeoutError:
        history.said.append(["user", "", await outlast.receive(STOP)])
    return await model(history.said)


async def _stopped_with_the_run(tool: Any) -> str:
    history = History()
    await history.call("first", quick("first"))
    try:
        await history.call("second", tool("second"))
    except asyncio.CancelledError:
        history.said.append(["user", "", await outlast.receive(STOP)])
    return await model(history.said)


async def _slowly(name: str) -> str:
    await asyncio.sleep(10)
    calls.append(name)
    return name


STOPS = [_stopped_by_a_message, _stopped_by_a_limit, _stopped_with_the_run]
TOOLS = {"step": step(_slowly, "tool"), "effect": effect(_slowly, "tool")}


@pytest.mark.parametrize("restart", [False, True], ids=["", "killed meanwhile"])
@pytest.mark.parametrize("kind", TOOLS)
@pytest.mark.parametrize("stop", STOPS, ids=lambda one: one.__name__.strip("_"))
def test_case_118_a_tool_call_that_is_cancelled_has_a_result(
    stop: Callable[..., Coroutine[Any, Any, str]], kind: str, restart: bool
) -> None:
    """The await raises once the call is over, so the code closes it; the next turn of the model takes the history, in any replay.

    Of a step nothing is recorded; an effect that was intended has its outcome in the journal before the await raises.
    """
    tool = TOOLS[kind]

    async def flow() -> str:
        return await stop(tool)

    workflow = Workflow(flow)

    async def scenario(sim: Simulation) -> tuple[str, list[Entry]]:
        worker = await sim.start_worker()
        handle = await sim.client.start(workflow(), id="r")
        await asyncio.sleep(2)
        if stop is _stopped_with_the_run:
            await handle.cancel()
        if restart:
            await asyncio.sleep(2)
            worker.kill()
            await sim.start_worker()
        await handle.send(STOP, "stop that")
        return await handle.result(), await entries_of(sim)

    result, entries = Simulation([workflow, tool, model, *STEPS], options=OPTIONS).run(scenario)
    assert result.endswith("after 2 calls")
    intended = [one.operation for one in entries if isinstance(one, EffectIntended)]
    settled = [one.operation for one in entries if isinstance(one, EffectCompleted)]
    assert intended == settled
    assert len(settled) == (kind == "effect")
    assert calls[1:] == (["second"] if kind == "effect" else [])


# 121: errors of any type


class StrangeError(BaseException):
    """No Exception."""


class SilentError(Exception):
    """Has no text, and breaks whoever asks for it."""

    def __str__(self) -> str:
        raise StrangeError


def _group() -> BaseException:
    return BaseExceptionGroup("several", [ValueError("a"), StrangeError("b")])


UNEXPECTED: dict[str, Callable[[], BaseException]] = {
    "a group": lambda: ExceptionGroup("several", [ValueError("a")]),
    "a group of base exceptions": _group,
    "a base exception": lambda: StrangeError("x"),
    "an error whose text breaks": SilentError,
    "the end of a generator": GeneratorExit,
    "the end of an iterator": lambda: StopIteration(1),
    "the end of an async iterator": StopAsyncIteration,
    "a cancel that nobody asked for": lambda: asyncio.CancelledError("mine"),
    "a timeout that is nobody's": lambda: TimeoutError("mine"),
    "an error of Outlast": lambda: outlast.StoreError("mine"),
    "an error of asyncio": lambda: asyncio.InvalidStateError("mine"),
    "the end of memory": MemoryError,
    "the end of the stack": lambda: RecursionError("mine"),
}


@pytest.mark.parametrize("make", UNEXPECTED.values(), ids=list(UNEXPECTED))
@pytest.mark.parametrize("place", ["step", "thread", "effect"])
def test_case_121_an_attempt_that_ends_in_any_error_is_counted(
    make: Callable[[], BaseException], place: str
) -> None:
    """Errors that nobody expects are attempts like others: at most as many as the policy allows, then the run fails."""

    async def fail() -> int:
        calls.append("fail")
        raise make()

    def fail_in_thread() -> int:
        calls.append("fail")
        raise make()

    options = AttemptOptions(RetryPolicy(maximum_attempts=3))
    failing = {
        "step": Step(fail, "failing", options),
        "thread": Step(fail_in_thread, "failing", options),
        "effect": Effect(
            fail, "failing", options, EffectOptions(idempotent=True, not_applied=(type(make()),))
        ),
    }[place]

    async def flow() -> int:
        return await failing()

    workflow = Workflow(flow)

    async def scenario(sim: Simulation) -> Status:
        await sim.start_worker()
        await sim.client.start(workflow(), id="r")
        head = await sim.closed("r")
        await asyncio.sleep(300)
        return head.status

    status = Simulation([workflow, failing]).run(scenario)
    assert status in ({Status.FAILED, Status.CANCELLED} if "cancel" in repr(make()).lower() else {Status.FAILED})  # fmt: skip
    assert len(calls) == 3


@pytest.mark.parametrize("make", UNEXPECTED.values(), ids=list(UNEXPECTED))
@pytest.mark.parametrize("where", ["at once", "after a step", "in a task"])
def test_case_121_workflow_code_that_raises_anything_ends_its_run(
    make: Callable[[], BaseException], where: str
) -> None:
    """The run ends once, with that error; the worker goes on with the others."""

    async def child() -> None:
        await quick("child")
        raise make()

    async def flow() -> int:
        if where == "after a step":
            await quick("a")
        if where == "in a task":
            await asyncio.create_task(child())
        raise make()

    async def other() -> int:
        return len(await quick("other"))

    failing, healthy = Workflow(flow), Workflow(other)

    async def scenario(sim: Simulation) -> tuple[Status, int]:
        await sim.start_worker()
        await sim.client.start(failing(), id="r")
        head = await sim.closed("r")
        return head.status, await sim.client.run(healthy(), id="other")

    status, result = Simulation([failing, healthy, *STEPS]).run(scenario)
    assert status in {Status.FAILED, Status.CANCELLED}
    assert result == 5
    assert calls.count("child") == (where == "in a task")


def test_case_121_an_error_inside_outlast_blocks_its_run_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What breaks in the worker itself is not tried again: the run is blocked in words, and the others go on."""

    async def flow(name: str) -> str:
        return await pay(name)

    def ask(gate: Gate, command: Any, epoch: int, found: Any) -> Any:
        calls.append("asked")
        if b"broken" in command.arguments:
            raise StopAsyncIteration("a mistake of ours")
        return original(gate, command, epoch, found)

    original, workflow = Gate.ask, Workflow(flow)
    monkeypatch.setattr(Gate, "ask", ask)

    async def scenario(sim: Simulation) -> tuple[RunHead, str]:
        await sim.start_worker()
        await sim.client.start(workflow("broken"), id="r")
        await sim.until("r", lambda head: head.status is Status.BLOCKED)
        await asyncio.sleep(60)
        result = await sim.client.run(workflow("sound"), id="other")
        return await sim.until("r", lambda _: True), result

    head, result = Simulation([workflow, *STEPS]).run(scenario)
    assert (head.status, head.reason, result) == (Status.BLOCKED, "internal error", "sound")
    assert b"a mistake of ours" in head.note
    assert calls == ["asked", "asked", "sound"]


# 122: waiting for all


async def _note(n: int) -> int:
    await asyncio.sleep(n)
    calls.append(f"{n} ended")
    return n


async def _break(n: int) -> int:
    await asyncio.sleep(n)
    calls.append(f"{n} broke")
    raise ValueError(f"{n}")


note = step(_note, "note")
fault = step(_break, "fault", retry=RetryPolicy(maximum_attempts=1))


async def _gather(tasks: list[asyncio.Task[int]]) -> list[int]:
    return list(await asyncio.gather(*tasks))


async def _wait(tasks: list[asyncio.Task[int]]) -> list[int]:
    done, pending = await asyncio.wait(tasks)
    assert not pending
    assert done == set(tasks)
    return [task.result() for task in tasks]


async def _one_by_one(tasks: list[asyncio.Task[int]]) -> list[int]:
    return [await task for task in tasks]


async def _as_completed(tasks: list[asyncio.Task[int]]) -> list[int]:
    return sorted([await one for one in asyncio.as_completed(tasks)])


@pytest.mark.parametrize(
    "wait", [_gather, _wait, _one_by_one, _as_completed], ids=lambda w: w.__name__
)
@pytest.mark.parametrize("ended", range(6))
def test_case_122_waiting_for_all_counts_what_has_ended_already(
    wait: Callable[..., Coroutine[Any, Any, list[int]]], ended: int
) -> None:
    """So many of five have ended before the wait is built: it ends with the last, and has all five once."""

    async def flow(ended: int) -> list[int]:
        tasks = [asyncio.create_task(note(n)) for n in range(1, 6)]
        await asyncio.sleep(ended + 0.5)
        return await wait(tasks)

    workflow = Workflow(flow)

    async def scenario(sim: Simulation) -> list[int]:
        await sim.start_worker()
        return await sim.client.run(workflow(ended), id="r")

    assert Simulation([workflow, note]).run(scenario) == [1, 2, 3, 4, 5]
    assert calls == [f"{n} ended" for n in range(1, 6)]


async def _gather_all(tasks: list[asyncio.Task[int]]) -> list[str]:
    found = await asyncio.gather(*tasks, return_exceptions=True)
    return [repr(one) for one in found]


async def _wait_all(tasks: list[asyncio.Task[int]]) -> list[str]:
    await asyncio.wait(tasks)
    return [repr(task.exception() or task.result()) for task in tasks]


async def _gather_then_all(tasks: list[asyncio.Task[int]]) -> list[str]:
    try:
        await asyncio.gather(*tasks)
    except ValueError:
        assert not all(task.done() for task in tasks)
        return await _gather_all(tasks)
    return []


@pytest.mark.parametrize(
    "wait", [_gather_all, _wait_all, _gather_then_all], ids=lambda w: w.__name__
)
@pytest.mark.parametrize("failing", [1, 2, 4], ids=lambda n: f"number {n} fails")
def test_case_122_one_failure_does_not_end_the_others(
    wait: Callable[..., Coroutine[Any, Any, list[str]]], failing: int
) -> None:
    """What was started goes on while one fails, and whoever waits for all gets every result and the failure."""

    async def flow() -> list[str]:
        tasks = [asyncio.create_task(fault(n) if n == failing else note(n)) for n in range(1, 6)]
        return await wait(tasks)

    workflow = Workflow(flow)

    async def scenario(sim: Simulation) -> list[str]:
        await sim.start_worker()
        return await sim.client.run(workflow(), id="r")

    found = Simulation([workflow, note, fault]).run(scenario)
    expected = [f"ValueError('{n}')" if n == failing else f"{n}" for n in range(1, 6)]
    assert found == expected
    assert calls == [f"{n} {'broke' if n == failing else 'ended'}" for n in range(1, 6)]


@pytest.mark.parametrize("failing", [1, 2, 4], ids=lambda n: f"number {n} fails")
def test_case_122_a_group_cancels_the_others_waits_and_then_raises(failing: int) -> None:
    """A TaskGroup does as everywhere: one failure cancels the rest, all are waited for, and the failure is raised."""

    async def flow() -> list[str]:
        said: list[str] = []

        async def work(n: int) -> None:
            try:
                await (fault(n) if n == failing else note(n))
                said.append(f"{n} ended")
            except asyncio.CancelledError:
                await quick("clean up")
                said.append(f"{n} cleaned up")

        try:
            async with asyncio.TaskGroup() as group:
                for n in range(1, 6):
                    group.create_task(work(n))
        except* ValueError as group_of_one:
            said.append(repr(group_of_one.exceptions))
        return said

    workflow = Workflow(flow)

    async def scenario(sim: Simulation) -> list[str]:
        await sim.start_worker()
        return await sim.client.run(workflow(), id="r")

    assert Simulation([workflow, note, fault, *STEPS]).run(scenario) == [
        *(f"{n} ended" for n in range(1, failing)),
        *(f"{n} cleaned up" for n in range(failing + 1, 6)),
        f"(ValueError('{failing}'),)",
    ]


# 124: long waits


LONG = timedelta(days=60)


async def _sleep() -> str:
    await outlast.sleep(LONG)
    return "over"


async def _sleep_of_asyncio() -> str:
    await asyncio.sleep(LONG.total_seconds())
    return "over"


async def _receive() -> str:
    try:
        await outlast.receive(outlast.Signal("never", int), timeout=LONG)
    except TimeoutError:
        return "over"
    return "never"


async def _condition() -> str:
    try:
        await outlast.wait_condition(lambda: False, timeout=LONG)
    except TimeoutError:
        return "over"
    return "never"


async def _timeout() -> str:
    try:
        async with asyncio.timeout(LONG.total_seconds()):
            await outlast.receive(outlast.Signal("never", int))
    except TimeoutError:
        return "over"
    return "never"


async def _wait_for() -> str:
    try:
        await asyncio.wait_for(outlast.receive(outlast.Signal("never", int)), LONG.total_seconds())
    except TimeoutError:
        return "over"
    return "never"


async def _approval() -> str:
    try:
        await outlast.approval("?", role="owner", expires_in=LONG)
    except outlast.ApprovalExpiredError:
        return "over"
    return "never"


async def _retry() -> str:
    return await later()


async def _later() -> str:
    if outlast.attempt().number == 1:
        raise ValueError
    return "over"


later = step(_later, "later", retry=RetryPolicy(initial_interval=LONG))
LONG_WAITS = [
    *(_sleep, _sleep_of_asyncio, _receive, _condition, _timeout, _wait_for, _approval, _retry),
]
WRAPS = [timedelta(milliseconds=2**31 - 1), timedelta(milliseconds=2**32 - 1)]
"""Where counts of milliseconds in 32 bits end: 24.86 and 49.71 days."""


@pytest.mark.parametrize(
    "alive", [False, True], ids=["no worker meanwhile", "a worker all the time"]
)
@pytest.mark.parametrize("wait", LONG_WAITS, ids=lambda one: one.__name__.strip("_"))
def test_case_124_a_wait_of_sixty_days_takes_sixty_days(
    wait: Callable[[], Coroutine[Any, Any, str]], alive: bool
) -> None:
    """No limit of 32 bits makes it shorter: the run still waits after 24.9, 49.8 and 59.9 days, and ends after 60."""
    workflow = Workflow(wait, "flow")

    async def scenario(sim: Simulation) -> tuple[datetime, datetime]:
        worker = await sim.start_worker()
        began = sim.clock.now()
        await sim.client.start(workflow(), id="r")
        parked = await sim.until("r", lambda head: head.status is Status.WAITING)
        assert parked.wake_at is not None
        for moment in [*WRAPS, LONG - timedelta(minutes=5)]:
            if not alive:
                await worker.stop()
            sim.clock.advance(began + moment + timedelta(minutes=1) - sim.clock.now())
            if not alive:
                worker = await sim.start_worker()
            await asyncio.sleep(60)
            head = await sim.until("r", lambda _: True)
            assert (head.status, head.wake_at) == (Status.WAITING, parked.wake_at)
        await sim.closed("r")
        assert await sim.client.handle("r", workflow).result() == "over"
        return parked.wake_at, began

    sim = Simulation([workflow, later], longest=timedelta(days=90))
    wake_at, began = sim.run(scenario)
    assert timedelta(0) <= wake_at - began - LONG < timedelta(seconds=1)


@pytest.mark.parametrize(
    "alive", [False, True], ids=["no worker meanwhile", "a worker all the time"]
)
@pytest.mark.parametrize("days", [24, 25, 49, 50, 60])
def test_case_124_a_run_has_as_long_as_its_timeout_says(days: int, alive: bool) -> None:
    """Its time is over then, on the day, and not before."""

    async def flow() -> int:
        return await outlast.receive(GO)

    workflow = Workflow(flow, timeout=timedelta(days=days))

    async def scenario(sim: Simulation) -> tuple[timedelta, list[Entry]]:
        worker = await sim.start_worker()
        began = sim.clock.now()
        handle = await sim.client.start(workflow(), id="r")
        parked = await sim.until("r", lambda head: head.status is Status.WAITING)
        assert parked.wake_at == began + timedelta(days=days)
        if not alive:
            await worker.stop()
        for _ in range(days * 24 - 1):
            sim.clock.advance(timedelta(hours=1))
        if not alive:
            await sim.start_worker()
        await asyncio.sleep(60)
        assert (await sim.until("r", lambda _: True)).status is Status.WAITING
        with pytest.raises(outlast.WorkflowFailedError, match="was not done within"):
            await handle.result()
        return sim.clock.now() - began, await entries_of(sim)

    took, entries = Simulation([workflow], longest=timedelta(days=90)).run(scenario)
    assert timedelta(days=days) <= took <= timedelta(days=days, minutes=2)
    assert [type(one) for one in entries[-2:]] == [RunTimedOut, Failed]


@pytest.mark.parametrize("days", [24, 25, 49, 50, 60, 365])
def test_case_124_a_long_timeout_of_an_attempt_is_not_over_at_once(days: int) -> None:
    """A step whose timeout is longer than any 32-bit count is given its time."""
    giving = step(
        _slow, "giving", start_to_close_timeout=timedelta(days=days) - timedelta(seconds=1)
    )

    async def flow() -> str:
        return await giving("a")

    workflow = Workflow(flow)

    async def scenario(sim: Simulation) -> str:
        await sim.start_worker()
        return await sim.client.run(workflow(), id="r")

    assert Simulation([workflow, giving]).run(scenario) == "a"


# 125: every field of a policy counts


attempts: list[float] = []
"""When the attempts began, in seconds of the simulated clock."""

SECOND = timedelta(seconds=1)
SCHEDULES: dict[str, tuple[dict[str, Any], list[int]]] = {
    "no field": ({}, [1, 2, 4, 8, 16, 32, 64, 100, 100]),
    "initial_interval": ({"initial_interval": 3 * SECOND}, [3, 6, 12, 24, 48, 96, 192, 300, 300]),
    "backoff_coefficient": ({"backoff_coefficient": 3.0}, [1, 3, 9, 27, 81, 100, 100, 100, 100]),
    "maximum_interval": ({"maximum_interval": 5 * SECOND}, [1, 2, 4, 5, 5, 5, 5, 5, 5]),
    "maximum_attempts": ({"maximum_attempts": 4}, [1, 2, 4]),
    "non_retryable_error_types": ({"non_retryable_error_types": ("ValueError",)}, []),
}


@pytest.mark.parametrize("place", ["step", "thread", "effect"])
@pytest.mark.parametrize(("fields", "gaps"), SCHEDULES.values(), ids=list(SCHEDULES))
def test_case_125_each_field_of_a_retry_policy_changes_the_schedule(
    fields: dict[str, Any], gaps: list[int], place: str
) -> None:
    """The gaps between attempts are those that the policy says, of steps, synchronous steps and effects."""
    sim: Simulation

    async def fail() -> int:
        attempts.append(sim.clock.monotonic())
        raise ValueError

    def fail_in_thread() -> int:
        attempts.append(sim.clock.monotonic())
        raise ValueError

    options = AttemptOptions(RetryPolicy(**fields))
    failing = {
        "step": Step(fail, "failing", options),
        "thread": Step(fail_in_thread, "failing", options),
        "effect": Effect(fail, "failing", options, EffectOptions(idempotent=True)),
    }[place]

    async def flow() -> int:
        return await failing()

    workflow = Workflow(flow)

    async def scenario(sim: Simulation) -> None:
        await sim.start_worker()
        await sim.client.start(workflow(), id="r")
        await asyncio.sleep(sum(gaps) + (0.5 if len(gaps) == 9 else 60))

    sim = Simulation([workflow, failing])
    sim.run(scenario)
    seen = [round(two - one) for one, two in zip(attempts, attempts[1:], strict=False)]
    assert seen[: len(gaps)] == gaps
    assert len(attempts) == len(gaps) + 1


def test_case_125_the_table_has_every_field() -> None:
    """Whoever adds a field shows what it changes."""
    assert SCHEDULES.keys() - {"no field"} == {*RetryPolicy.__struct_fields__}
