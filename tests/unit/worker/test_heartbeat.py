"""Heartbeats: what the next attempt finds, how often it is written, and what silence means."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import outlast
from outlast.app import SystemClock, SystemThreads
from outlast.journal.entry import EffectCompleted, EffectFailed, EffectInDoubt, StepFailed, from_row
from outlast.store.change import OperationPut, RunChange, RunKey
from outlast.store.memory import MemoryStore
from outlast.testing import (
    Receiver,
    SimulatedClock,
    SimulatedLoop,
    SimulatedThreads,
    Simulation,
    attempt,
)
from outlast.worker.executor import Executor, Returned
from outlast.worker.patience import TimedOut
from outlast.worker.pulse import Pulse, interval
from outlast.worker.worker import WorkerOptions
from outlast.workflows.attempt import Attempt
from outlast.workflows.registry import Registry

found: list[Any] = []
beat: list[float] = []
receiver = Receiver()
sims: list[Simulation] = []
SECOND = timedelta(seconds=1)
QUICK = outlast.RetryPolicy(initial_interval=SECOND)


@dataclass
class Page:
    """Details of a type of its own."""

    number: int
    urls: list[str]


def clock() -> float:
    return sims[-1].clock.monotonic()


@outlast.step(retry=QUICK)
async def crawl(pages: int, fails: int, each: float) -> int:
    """Beat each page; fail in the middle of the first `fails` attempts."""
    last = outlast.heartbeat_details(Page)
    found.append(last)
    for number in range(last.number + 1 if last else 1, pages + 1):
        outlast.heartbeat(Page(number, [f"u{number}"]))
        beat.append(clock())
        await asyncio.sleep(each)
        if outlast.attempt().number <= fails and number == outlast.attempt().number * 3:
            raise OSError("the line is down")
    return pages


@outlast.step(heartbeat_timeout=10 * SECOND, retry=QUICK)
async def tick(seconds: float, each: float) -> str:
    found.append(outlast.heartbeat_details(int))
    until = clock() + seconds
    count = 0
    while clock() < until:
        count += 1
        outlast.heartbeat(count)
        await asyncio.sleep(each)
    return "done"


@outlast.step(heartbeat_timeout=10 * SECOND, retry=outlast.RetryPolicy(maximum_attempts=2))
async def silent(stubborn: bool) -> str:
    number = outlast.attempt().number
    found.append(outlast.heartbeat_details(str))
    outlast.heartbeat(f"attempt {number}")
    if number == 2:
        return "spoke"
    try:
        await asyncio.sleep(1000)
    except asyncio.CancelledError:
        found.append("cancelled")
        if not stubborn:
            raise
        await asyncio.sleep(1000)
        found.append("late")
    return "late"


@outlast.step(heartbeat_timeout=10 * SECOND, retry=outlast.RetryPolicy(maximum_attempts=2))
def silent_in_thread() -> str:
    number = outlast.attempt().number
    if number == 1:
        sims[-1].workers[-1].threads.busy(100)
    return f"attempt {number}"


@outlast.effect(
    start_to_close_timeout=timedelta(seconds=500), settle=SECOND, heartbeat_timeout=10 * SECOND
)
def silent_effect() -> str:
    sims[-1].workers[-1].threads.busy(100)
    return receiver.apply(outlast.idempotency_key(), "done")


@outlast.step(retry=QUICK)
async def mute(kind: str) -> Any:
    """Beat once with details, then without; the last attempt returns what it found."""
    if outlast.attempt().number == 1:
        outlast.heartbeat(kind)
        outlast.heartbeat()
        raise OSError("down")
    if outlast.attempt().number == 2:
        raise OSError("down without a word")
    return outlast.heartbeat_details(str)


@outlast.step(retry=QUICK)
async def misread() -> str:
    if outlast.attempt().number == 1:
        outlast.heartbeat({"page": 1})
        raise OSError("down")
    return str(outlast.heartbeat_details(int))


@outlast.step
async def unstorable() -> str:
    outlast.heartbeat({1: threading.Lock()})
    return "never"


TIMEOUT, SETTLE = timedelta(seconds=5), timedelta(seconds=1)


def find(amount: int) -> outlast.Applied[int] | outlast.NotApplied:
    return receiver.find(outlast.idempotency_key())


async def send(amount: int, change: Callable[[str, int], int]) -> int:
    """Say how far it is, and then nothing, in the first attempt."""
    found.append(outlast.heartbeat_details(str))
    outlast.heartbeat(f"about to send {amount}")
    if outlast.attempt().number == 1 and len(found) == 1:
        await asyncio.sleep(1000)
    return change(outlast.idempotency_key(), amount)


@outlast.effect(probe=find, start_to_close_timeout=TIMEOUT, settle=SETTLE, heartbeat_timeout=SECOND)
async def send_probed(amount: int) -> int:
    return await send(amount, receiver.apply)


@outlast.effect(idempotent=True, heartbeat_timeout=SECOND)
async def send_idempotent(amount: int) -> int:
    return await send(amount, receiver.apply_once)


@outlast.effect(start_to_close_timeout=TIMEOUT, settle=SETTLE, heartbeat_timeout=SECOND)
async def send_once(amount: int) -> int:
    return await send(amount, receiver.apply)


EFFECTS = {"probed": send_probed, "idempotent": send_idempotent, "once": send_once}


@outlast.workflow
async def crawling(pages: int, fails: int, each: float) -> int:
    return await crawl(pages, fails, each)


@outlast.workflow
async def ticking(seconds: float, each: float) -> str:
    return await tick(seconds, each)


@outlast.workflow
async def being_silent(how: str) -> str:
    if how == "thread":
        return await silent_in_thread()
    if how == "effect":
        return await silent_effect()
    return await silent(how == "stubborn")


@outlast.workflow
async def muttering(kind: str) -> Any:
    return await mute(kind)


@outlast.workflow
async def misreading() -> str:
    return await misread()


@outlast.workflow
async def refusing() -> str:
    return await unstorable()


@outlast.workflow
async def sending(which: str) -> int:
    return await EFFECTS[which](5)


CODE = [
    *(crawl, tick, silent, silent_in_thread, silent_effect, mute, misread, unstorable),
    *(crawling, ticking, being_silent, muttering, misreading, refusing, sending),
    *EFFECTS.values(),
]


@pytest.fixture(autouse=True)
def _clean() -> None:
    found.clear()
    beat.clear()
    receiver.forget()


def simulation(**options: Any) -> Simulation:
    """Return a simulation whose clock the bodies can read."""
    sims.append(Simulation(CODE, **options))
    return sims[-1]


def rows_written(sim: Simulation) -> list[tuple[float, OperationPut]]:
    """Return the list to which each row of an operation is added with its time, as it is written."""
    rows: list[tuple[float, OperationPut]] = []
    commit = sim.store.commit

    async def noting(changes: Any) -> Any:
        verdicts = await commit(changes)
        for change in changes:
            if isinstance(change, RunChange):
                rows.extend(
                    (sim.clock.monotonic(), one)
                    for one in change.operations
                    if isinstance(one, OperationPut)
                )
        return verdicts

    sim.store.commit = noting  # type: ignore[method-assign]
    return rows


# Details


def test_the_next_attempt_finds_the_last_details() -> None:
    """The newest details are written with the failure, although they were beaten at once after others; of their own type."""

    async def scenario(sim: Simulation) -> int:
        worker = await sim.start_worker()
        return await worker.client.run(crawling(10, 2, 0.1), id="r")

    assert simulation().run(scenario) == 10
    assert found == [None, Page(3, ["u3"]), Page(6, ["u6"])]
    assert len(beat) == 10


def test_details_cost_no_more_writes_than_the_throttle_allows() -> None:
    """A beat each 0.1 s for 60 s, at a timeout of 10 s: a write at once, then one each 8 s, and the outcome."""

    async def scenario(sim: Simulation) -> tuple[list[float], list[bytes]]:
        rows = rows_written(sim)
        worker = await sim.start_worker()
        assert await worker.client.run(ticking(60, 0.1), id="r") == "done"
        image = await sim.store.load(RunKey("default", "r"))
        assert image is not None
        assert image.operations == ()
        return [at for at, _ in rows], [row.progress for _, row in rows]

    times, details = simulation().run(scenario)
    assert [round(at - times[0]) for at in times] == [0, 8, 16, 24, 32, 40, 48, 56]
    assert [int(one) for one in details] == sorted({int(one) for one in details})
    assert details[0] == b"1"


def test_a_beat_without_details_writes_nothing() -> None:
    """It says that the body lives, and leaves what was said before; so does an attempt that says nothing."""

    async def scenario(sim: Simulation) -> tuple[Any, list[bytes]]:
        rows = rows_written(sim)
        worker = await sim.start_worker()
        result = await worker.client.run(muttering("kept"), id="r")
        return result, [row.progress for _, row in rows if row.due_at is None]

    assert simulation().run(scenario) == ("kept", [b'"kept"'])


def test_equal_details_are_written_once() -> None:
    """What stands there already is not written again, however often it is said."""

    async def main() -> list[bytes]:
        carried: list[bytes] = []

        async def carry(details: bytes) -> None:
            carried.append(details)

        pulse = Pulse(carry, SECOND, asyncio.get_running_loop().time, b"1")
        for details in (b"1", b"2", b"2", b"2"):
            pulse.beats.beat(details)
            await asyncio.sleep(3)
        pulse.close()
        await asyncio.sleep(0)
        return carried

    assert SimulatedLoop(SimulatedClock()).run_until_complete(main()) == [b"2"]


def test_a_killed_worker_loses_what_was_said_since_the_last_write() -> None:
    """And no more: the next one goes on from there, with the same number of the attempt."""

    async def scenario(sim: Simulation) -> str:
        options = WorkerOptions(library="simulated", lease=timedelta(seconds=3))
        worker = await sim.start_worker(options=options)
        handle = await sim.client.start(ticking(30, 1.1), id="r")
        while not found:
            await asyncio.sleep(0.1)
        await asyncio.sleep(12.5)
        worker.kill()
        await sim.start_worker(options=options)
        await sim.closed("r")
        return await handle.result()

    assert simulation().run(scenario) == "done"
    assert found == [None, 8]


def test_a_stop_past_its_grace_keeps_the_last_details() -> None:
    """What the throttle has held back is written when the run is given back."""

    async def scenario(sim: Simulation) -> str:
        worker = await sim.start_worker()
        handle = await sim.client.start(ticking(30, 1.1), id="r")
        while not found:
            await asyncio.sleep(0.1)
        await asyncio.sleep(12.5)
        await worker.stop(timedelta(seconds=1))
        await sim.start_worker()
        await sim.closed("r")
        return await handle.result()

    assert simulation().run(scenario) == "done"
    assert found == [None, 13]


def test_a_store_that_is_away_holds_up_one_write_and_no_more() -> None:
    """An hour of beats leaves nothing behind that has to be written then but the newest."""

    async def scenario(sim: Simulation) -> int:
        rows = rows_written(sim)
        worker = await sim.start_worker(
            options=WorkerOptions(library="simulated", lease=timedelta(hours=3))
        )
        await worker.client.start(ticking(4000, 1.0), id="r")
        await asyncio.sleep(5)
        worker.store.faults = type(worker.store.faults)(down=True)
        await asyncio.sleep(3600)
        before = len(rows)
        worker.store.faults = type(worker.store.faults)()
        await asyncio.sleep(5)
        return len(rows) - before

    assert simulation(longest=timedelta(hours=3)).run(scenario) <= 2


def test_details_of_another_type_are_an_error_with_words() -> None:
    """Today's code names another type than the code that beat them."""

    async def scenario(sim: Simulation) -> None:
        worker = await sim.start_worker()
        await worker.client.run(misreading(), id="r")

    with pytest.raises(outlast.WorkflowFailedError, match="the heartbeat details of misread"):
        simulation().run(scenario)


def test_details_that_cannot_be_stored_fail_the_attempt_for_good() -> None:
    """As everything that cannot be stored does; nothing of it is half written."""

    async def scenario(sim: Simulation) -> list[type]:
        worker = await sim.start_worker()
        with pytest.raises(outlast.WorkflowFailedError, match="heartbeat details of unstorable"):
            await worker.client.run(refusing(), id="r")
        rows = await sim.store.journal(RunKey("default", "r"))
        return [type(from_row(one.row)) for one in rows]

    assert StepFailed in simulation().run(scenario)


def test_what_asks_for_an_attempt_says_so_outside_one() -> None:
    """Both functions name themselves, and say what to do; the test kit stands in for a run."""
    for ask in (outlast.heartbeat, lambda: outlast.heartbeat_details(int)):
        with pytest.raises(outlast.DefinitionError, match=r"outlast\.heartbeat.*outside a step"):
            ask()
    beats: list[Any] = []
    with attempt(details=Page(1, ["u"]), beats=beats):
        assert outlast.heartbeat_details(Page) == Page(1, ["u"])
        outlast.heartbeat(Page(2, []))
        outlast.heartbeat()
        assert outlast.heartbeat_details(Page) == Page(1, ["u"])
    assert beats == [{"number": 2, "urls": []}]


@given(st.integers(1, 100_000).map(lambda milliseconds: timedelta(milliseconds=milliseconds)))
def test_details_are_written_in_time_and_seldom(timeout: timedelta) -> None:
    """The interval is shorter than the timeout, so that nothing is lost for longer than it; and no longer than 30 s."""
    assert interval(timeout) < timeout
    assert interval(timeout) <= interval(None) == timedelta(seconds=30)


@given(
    every=st.floats(0.1, 20),
    gaps=st.lists(st.floats(0, 7), max_size=30),
    slow=st.floats(0, 5),
)
def test_two_writes_are_never_closer_than_the_interval(
    every: float, gaps: list[float], slow: float
) -> None:
    """Whatever the beats and however slow the store: writes keep their distance, never overlap, and end at the newest."""

    async def main() -> tuple[list[tuple[float, float, bytes]], bytes]:
        now = asyncio.get_running_loop().time
        carried: list[tuple[float, float, bytes]] = []

        async def carry(details: bytes) -> None:
            since = now()
            await asyncio.sleep(slow)
            carried.append((since, now(), details))

        pulse = Pulse(carry, timedelta(seconds=every), now, b"")
        for number, gap in enumerate(gaps):
            pulse.beats.beat(str(number).encode())
            await asyncio.sleep(gap)
        await asyncio.sleep(3 * (every + slow) + 1)
        assert pulse.unkept == b""
        pulse.close()
        await asyncio.sleep(0)
        return carried, pulse.beats.latest

    carried, latest = SimulatedLoop(SimulatedClock()).run_until_complete(main())
    for one, two in zip(carried, carried[1:], strict=False):
        assert two[0] >= one[1] + every - 0.001
        assert int(one[2]) < int(two[2])
    assert [last for _, _, last in carried[-1:]] == ([latest] if gaps else [])


# Silence


@pytest.mark.parametrize("how", ["obeys", "stubborn"])
def test_a_silent_attempt_is_cancelled_and_counts_as_failed(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """By a TimeoutError that says why; one that will not end is left behind, and its end is dropped and logged."""

    async def scenario(sim: Simulation) -> tuple[str, float]:
        worker = await sim.start_worker()
        result = await worker.client.run(being_silent(how), id="r")
        seconds = clock() - 1000
        await asyncio.sleep(1100)
        return result, seconds

    with caplog.at_level(logging.WARNING, "outlast.worker"):
        result, seconds = simulation().run(scenario)
    assert result == "spoke"
    assert found[:3] == [None, "cancelled", "attempt 1"]
    assert 10 <= seconds < (20 if how == "stubborn" else 12)
    said = [record.getMessage() for record in caplog.records]
    assert any("silent has sent no heartbeat for 0:00:10" in one for one in said)
    late = [one for one in said if "after its time" in one]
    assert bool(late) is (how == "stubborn")
    assert ("late" in found) is (how == "stubborn")


def test_a_silent_thread_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    """Only the second attempt's result is stored; the first one's late return is dropped and logged."""

    async def scenario(sim: Simulation) -> str:
        worker = await sim.start_worker()
        result = await worker.client.run(being_silent("thread"), id="r")
        await asyncio.sleep(200)
        return result

    with caplog.at_level(logging.WARNING, "outlast.worker"):
        assert simulation().run(scenario) == "attempt 2"
    (late,) = [one.getMessage() for one in caplog.records if "after its time" in one.getMessage()]
    assert "attempt 1 of silent_in_thread" in late


def test_a_silent_effect_in_a_thread_is_still_acting() -> None:
    """Nothing is done about it before it has returned, and what it returns is what happened."""

    async def scenario(sim: Simulation) -> tuple[str, float]:
        worker = await sim.start_worker()
        return await worker.client.run(being_silent("effect"), id="r"), clock() - 1000

    result, seconds = simulation().run(scenario)
    assert (result, receiver.total) == ("done", 1)
    assert seconds >= 100


@pytest.mark.parametrize("which", EFFECTS)
def test_a_silent_effect_has_an_unknown_end(which: str) -> None:
    """Then the declaration decides, and not before the attempt can act no more; the next one finds the details."""

    async def scenario(sim: Simulation) -> tuple[Any, float]:
        worker = await sim.start_worker()
        handle = await worker.client.start(sending(which), id="r")
        head = await sim.until("r", lambda head: head.status.closed or head.reason == "in doubt")
        seconds = (head.changed_at - head.created_at).total_seconds()
        if head.status.closed:
            return await handle.result(), seconds
        rows = await sim.store.journal(RunKey("default", "r"))
        assert isinstance(from_row(rows[-1].row), EffectInDoubt)
        await handle.resolve("r:1", not_applied=True)
        return await handle.result(), seconds

    result, seconds = simulation().run(scenario)
    assert (result, receiver.total) == (5, 1)
    assert found == [None, "about to send 5"]
    if which != "idempotent":
        assert seconds >= (TIMEOUT + SETTLE).total_seconds()


def test_a_loop_that_stood_still_is_no_silence_of_the_body() -> None:
    """Nobody could have beaten meanwhile: the body gets as long again, once the loop turns."""

    async def scenario(sim: Simulation) -> str:
        options = WorkerOptions(library="simulated", lease=timedelta(hours=1))
        worker = await sim.start_worker(options=options)
        handle = await worker.client.start(ticking(60, 9.0), id="r")
        await asyncio.sleep(14)
        worker.stall()
        await asyncio.sleep(25)
        worker.thaw()
        await sim.closed("r")
        return await handle.result()

    assert simulation().run(scenario) == "done"
    assert found == [None]


def test_a_loop_that_stood_still_is_no_excuse_for_ever() -> None:
    """A body that stays silent after it is timed out within another timeout."""

    async def scenario(sim: Simulation) -> float:
        options = WorkerOptions(library="simulated", lease=timedelta(hours=1))
        worker = await sim.start_worker(options=options)
        await worker.client.start(being_silent("obeys"), id="r")
        await asyncio.sleep(5)
        worker.stall()
        await asyncio.sleep(500)
        worker.thaw()
        since = clock()
        await sim.closed("r")
        return clock() - since

    assert simulation().run(scenario) < 13


# Threads


ATTEMPT = Attempt("default", "r", "r:1", "s", 1)
FAILED = (EffectFailed, StepFailed)


def real(scenario: Callable[[Executor], Any]) -> Any:
    """Run something with real threads on a real loop."""
    return asyncio.run(scenario(Executor(SystemThreads())))


def test_a_cancelled_thread_learns_it_at_its_next_beat(caplog: pytest.LogCaptureFixture) -> None:
    """It may clean up; what it does then is no news to anybody."""
    begun, ended = threading.Event(), threading.Event()

    @outlast.step
    def body() -> str:
        begun.set()
        try:
            while True:
                outlast.heartbeat()
                time.sleep(0.001)
        except asyncio.CancelledError as told:
            found.append(str(told))
            raise
        finally:
            ended.set()

    async def scenario(executor: Executor) -> bool:
        trying = asyncio.ensure_future(executor.attempt(body, b"{}", ATTEMPT))
        await asyncio.to_thread(begun.wait, 30)
        trying.cancel()
        await asyncio.wait({trying})
        await asyncio.to_thread(ended.wait, 30)
        return trying.cancelled()

    with caplog.at_level(logging.WARNING, "outlast.worker"):
        assert real(scenario)
    assert found == ["the attempt was cancelled"]
    assert caplog.records == []


@pytest.mark.parametrize("by", ["cancel", "timeout", "stop"])
def test_a_thread_learns_that_nobody_waits_for_it(by: str) -> None:
    """Its run was cancelled, the workflow gave it up, or its worker stops and the grace is over."""
    begun, ended = threading.Event(), threading.Event()

    @outlast.step
    def work() -> str:
        begun.set()
        try:
            while True:
                outlast.heartbeat()
                time.sleep(0.001)
        except asyncio.CancelledError as told:
            found.append(str(told))
            raise
        finally:
            ended.set()

    @outlast.workflow
    async def use_work() -> str:
        try:
            async with asyncio.timeout(0.2 if by == "timeout" else 3600):
                return await work()
        except TimeoutError:
            return "given up"

    async def main() -> None:
        app, starting = app_of(work, use_work)
        await starting
        handle = await app.start(use_work(), id="r")
        await asyncio.to_thread(begun.wait, 30)
        if by == "cancel":
            await handle.cancel()
        if by == "stop":
            await app.worker.stop(timedelta(seconds=0.05))
        assert await asyncio.to_thread(ended.wait, 30)
        if by == "timeout":
            assert await handle.result() == "given up"
        await app.worker.stop()

    asyncio.run(main())
    assert found == ["the attempt was cancelled"]


def app_of(*code: Any) -> tuple[Any, Any]:
    """Return an app in memory, and what starts its worker with exactly this code."""
    app = outlast.open("memory://")
    store = MemoryStore(SystemClock())
    return app, app._start_worker(store, Registry(code))


def test_a_cancelled_run_does_not_interrupt_an_effect_at_its_beat() -> None:
    """Its intent stands: it comes to its end, and then the cancel comes through."""
    begun, cancelled, ended = threading.Event(), threading.Event(), threading.Event()

    @outlast.effect(idempotent=True)
    def act() -> str:
        begun.set()
        while not cancelled.is_set():
            outlast.heartbeat()
            time.sleep(0.001)
        for _ in range(50):
            outlast.heartbeat()
            time.sleep(0.001)
        ended.set()
        return "acted"

    @outlast.workflow
    async def use_act() -> str:
        return await act()

    async def main() -> list[type]:
        app, starting = app_of(act, use_act)
        await starting
        handle = await app.start(use_act(), id="r")
        await asyncio.to_thread(begun.wait, 30)
        await handle.cancel()
        while not any(
            type(one.entry).__name__ == "CancelRequested" for one in await handle.journal()
        ):
            await asyncio.sleep(0.01)
        cancelled.set()
        with pytest.raises(outlast.RunCancelledError):
            await handle.result()
        await app.worker.stop()
        return [type(one.entry) for one in await handle.journal()]

    assert EffectCompleted in asyncio.run(main())
    assert ended.is_set()


def test_beats_of_a_thread_whose_time_is_over_are_nobodys() -> None:
    """What an attempt says after it was given up changes nothing of the row that its successors write."""
    over = threading.Event()

    @outlast.step(
        start_to_close_timeout=timedelta(seconds=0.2),
        retry=outlast.RetryPolicy(initial_interval=timedelta(seconds=0.05), maximum_attempts=3),
    )
    def stubborn() -> list[Any]:
        number = outlast.attempt().number
        found.append((number, outlast.heartbeat_details(str)))
        if number == 1:
            while not over.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    outlast.heartbeat(f"old {time.monotonic()}")
                time.sleep(0.001)
        if number == 2:
            outlast.heartbeat("new")
            time.sleep(0.05)
            raise OSError("down")
        over.set()
        return list(found[-1])

    @outlast.workflow
    async def use_stubborn() -> list[Any]:
        return await stubborn()

    async def main() -> list[Any]:
        app, starting = app_of(stubborn, use_stubborn)
        await starting
        result = await app.run(use_stubborn(), id="r")
        await app.worker.stop()
        return result

    assert asyncio.run(main()) == [3, "new"]
    assert [number for number, _ in found] == [1, 2, 3]


@pytest.mark.parametrize("acts", [False, True])
@pytest.mark.parametrize("returns", [False, True])
def test_a_thread_that_timed_out_learns_it_at_its_next_beat(acts: bool, returns: bool) -> None:
    """A step is left behind; an effect is waited for, and what it returns after all is what happened."""
    ended = threading.Event()

    def body() -> str:
        try:
            while True:
                outlast.heartbeat()
                time.sleep(0.001)
        except asyncio.CancelledError:
            if not returns:
                raise
        finally:
            ended.set()
        return "it happened"

    short = timedelta(seconds=0.05)
    step = outlast.step(start_to_close_timeout=short)(body)
    effect = outlast.effect(start_to_close_timeout=short)(body)

    async def scenario(executor: Executor) -> Any:
        ending = await executor.attempt(effect if acts else step, b"{}", ATTEMPT)
        await asyncio.to_thread(ended.wait, 30)
        return ending

    happened = Returned(b'"it happened"')
    assert real(scenario) == (happened if acts and returns else TimedOut(short))


def test_a_beat_in_a_helper_thread_of_a_coroutine_is_told_too() -> None:
    """A cancel reaches the coroutine where it awaits, and its threads at their beats."""
    begun, ended = threading.Event(), threading.Event()

    def help_out() -> None:
        begun.set()
        try:
            while True:
                outlast.heartbeat("in a thread")
                time.sleep(0.001)
        finally:
            ended.set()

    @outlast.step
    async def body() -> str:
        try:
            await asyncio.to_thread(help_out)
        except asyncio.CancelledError:
            outlast.heartbeat("cleaning up")
            found.append("cleaned up")
            raise
        return "never"

    async def scenario(executor: Executor) -> bool:
        trying = asyncio.ensure_future(executor.attempt(body, b"{}", ATTEMPT))
        await asyncio.to_thread(begun.wait, 30)
        trying.cancel()
        await asyncio.wait({trying})
        return await asyncio.to_thread(ended.wait, 30)

    assert real(scenario)
    assert found == ["cleaned up"]


def test_a_beat_of_another_thread_counts_while_the_loop_is_blocked() -> None:
    """The time of a beat is that at which it was said, not that at which somebody listened."""
    ready = threading.Event()

    @outlast.step(heartbeat_timeout=timedelta(seconds=0.2))
    def body() -> str:
        ready.set()
        for _ in range(60):
            outlast.heartbeat()
            time.sleep(0.01)
        return "done"

    async def scenario(executor: Executor) -> Any:
        trying = asyncio.ensure_future(executor.attempt(body, b"{}", ATTEMPT))
        while not ready.is_set():
            await asyncio.sleep(0.001)
        time.sleep(0.45)  # noqa: ASYNC251 - somebody blocks the loop
        return await trying

    assert real(scenario) == Returned(b'"done"')


def test_an_attempt_that_waits_for_a_thread_is_not_silent() -> None:
    """Its own times begin with its body."""
    crowded = SimulatedThreads(random.Random(1))
    crowded.crowded = 60

    @outlast.step(heartbeat_timeout=SECOND)
    def body() -> int:
        return 1

    async def main() -> object:
        return await Executor(crowded).attempt(body, b"{}", ATTEMPT)

    assert SimulatedLoop(SimulatedClock()).run_until_complete(main()) == Returned(b"1")
