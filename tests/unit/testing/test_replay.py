"""Always-replay finds what makes a replay differ from its run, leaves nothing behind, and is off unless asked for."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import outlast
from outlast.errors import DefinitionError, NonDeterminismError
from outlast.replay.machine import Machine
from outlast.store.change import RunKey, Status
from outlast.testing import Simulation, always_replay, replay_run
from outlast.worker import always_replay as mode
from outlast.worker.always_replay import listeners
from outlast.worker.worker import WorkerOptions
from outlast.workflows import registry
from outlast.workflows.registry import Registry

word = outlast.Signal("word", str)
calls = 0
rate = 1
cache: dict[str, int] = {}
ended: list[str] = []
log = logging.getLogger("workflow")


@outlast.step
async def work(n: int) -> int:
    return n


@outlast.step
async def other(n: int) -> int:
    return n


@outlast.effect(idempotent=True)
async def pay(amount: int) -> int:
    return amount


@outlast.workflow
async def sound() -> str:
    first, second = await asyncio.gather(work(1), pay(2))
    await outlast.approval("go on", covers=[pay(5)], role="boss", expires_in=timedelta(hours=1))
    said = await outlast.receive(word)
    await outlast.sleep(30)
    log.warning("said %s", said)
    return f"{first} {second} {said} {outlast.random().random()} {outlast.now()}"


@outlast.workflow
async def counts() -> int:
    """A counter of the module decides on an argument."""
    global calls
    calls += 1
    return await work(calls)


@outlast.workflow
async def chooses() -> int:
    """It decides which step is next."""
    global calls
    calls += 1
    chosen = work if calls == 1 else other
    await work(0)
    return await chosen(1)


@outlast.workflow
async def caches() -> int:
    """A cache that runs share spares a step."""
    if "rate" not in cache:
        cache["rate"] = await work(7)
    return cache["rate"]


@outlast.step
async def reload() -> None:
    global rate
    rate = 2


@outlast.workflow
async def reads() -> None:
    """A variable that others set decides when to go on."""
    seconds = rate
    await reload()
    await outlast.sleep(seconds)


@outlast.workflow
async def returns() -> int:
    """A variable of the module is all of the result."""
    global calls
    await work(1)
    calls += 1
    return calls


@outlast.workflow
async def swallows() -> int:
    """It takes being taken out of memory for a failure to try again after."""
    while True:
        try:
            return await outlast.receive(word)  # type: ignore[return-value]
        except BaseException:
            continue


@outlast.workflow
async def cleans_up() -> int:
    """Its clean-up changes what the next replay reads."""
    global calls
    before = calls
    try:
        await work(0)
        return await other(before)
    except BaseException:
        calls += 1
        raise


@outlast.workflow
async def leaves() -> int:
    """Its clean-up says so."""
    try:
        log.warning("begin")
        return await work(1)
    finally:
        log.warning("end")
        ended.append("here")


@outlast.workflow
async def hears() -> list[str]:
    return [await outlast.receive(word) for _ in range(3)]


CODE = [
    work, other, reload, pay, sound, counts, chooses, caches, reads, returns, swallows, cleans_up, leaves, hears,
]  # fmt: skip


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "calls", 0)
    monkeypatch.setitem(globals(), "rate", 1)
    cache.clear()
    ended.clear()


def play(call: Any, options: WorkerOptions | None = None) -> tuple[Status, str]:
    """Run a workflow until it ends or is blocked, and return how and why."""

    async def scenario(sim: Simulation) -> tuple[Status, str]:
        await sim.start_worker()
        await sim.client.start(call, id="r")
        head = await sim.until(
            "r", lambda head: head.status.closed or head.status is Status.BLOCKED
        )
        return head.status, head.reason

    return Simulation(CODE, options=options).run(scenario)


def found(call: Any) -> NonDeterminismError:
    """Return the difference that a workflow shows."""
    with pytest.raises(NonDeterminismError) as caught, always_replay():
        assert play(call) == (Status.BLOCKED, "non-determinism")
    return caught.value


def test_a_sound_workflow_shows_no_difference() -> None:
    """Steps, effects, an approval, a message, a timer, parking and the end: every turn is compared and none differs."""

    async def scenario(sim: Simulation) -> str:
        await sim.start_worker()
        handle = await sim.client.start(sound(), id="r")
        while not (views := await sim.client.approvals.list()):
            await asyncio.sleep(5)
        await sim.client.approvals.approve(
            "r", views[0].approval_id, seen_sha256=views[0].subject_sha256
        )
        await handle.send(word, "hello")
        await sim.closed("r")
        return await handle.result()

    with always_replay() as mode:
        assert Simulation(CODE).run(scenario).startswith("1 2 hello")
    assert mode.differences == []


@pytest.mark.parametrize(
    ("workflow", "sides"),
    [
        (counts, ("step work at r:1", r'run:    {"arguments":"{\"n\":1}"}', r'replay: {"arguments":"{\"n\":2}"}')),
        (chooses, ("step work at r:2", 'replay: {"name":"other"}')),
        (caches, ("a replay of the run stopped", "step work at r:1", "nothing at r:1")),
        (reads, ("timer at r:2", "run:    ", "replay: ", '"due":"2026-03-01T12:00:01', '"due":"2026-03-01T12:00:02')),
        (returns, ("outcome", 'run:    {"completed":"1"}', 'replay: {"completed":"2"}')),
        (cleans_up, ("step other at r:2", r'run:    {"arguments":"{\"n\":0}"}', r'replay: {"arguments":"{\"n\":1}"}')),
    ],
    ids=lambda one: getattr(one, "name", ""),
)  # fmt: skip
def test_what_is_not_in_the_journal_is_found(
    workflow: Callable[[], Any], sides: tuple[str, ...]
) -> None:
    """State of the module is found at the turn at which it tells; the error names the operation, both sides and the remedy."""
    error = found(workflow())
    for side in ("after turn", *sides):
        assert side in error.message
    assert error.run == "r"
    assert "a module's variable" in error.hint


def test_code_that_will_not_leave_memory_is_found() -> None:
    """Who catches BaseException in a loop is told so: the same would happen at every parking."""
    error = found(swallows())
    assert "would not end" in error.message
    assert "BaseException" in error.hint


def test_a_live_run_that_gets_messages_in_another_order_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fault of the engine, not of the workflow: the run's machine gets each turn backwards, a replay does not."""
    deliver, machines = Machine.deliver, []

    def backwards(self: Machine, turn: Any, at: Any, **flags: Any) -> None:
        if not machines:
            machines.append(self)
        deliver(self, turn[::-1] if self is machines[0] else turn, at, **flags)

    async def scenario(sim: Simulation) -> str:
        handle = await sim.client.start(hears(), id="r")
        for one in ("a", "b", "c"):
            await handle.send(word, one)
        await sim.start_worker()
        return (await sim.until("r", lambda head: head.status is Status.BLOCKED)).reason

    monkeypatch.setattr(Machine, "deliver", backwards)
    with pytest.raises(NonDeterminismError) as caught, always_replay():
        assert Simulation(CODE).run(scenario) == "non-determinism"
    assert "MessageReceived" in caught.value.message
    assert r'run:    {"completed":"[\"c\",\"b\",\"a\"]"}' in caught.value.message


def test_a_replay_leaves_nothing_behind(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the workflow logs is logged once a run; no machine of a replay stays, and its clean-up starts nothing."""
    made: list[Machine] = []
    begin = Machine.__init__

    def count(self: Machine, *args: Any, **options: Any) -> None:
        made.append(self)
        begin(self, *args, **options)

    monkeypatch.setattr(Machine, "__init__", count)
    with always_replay():
        assert play(leaves()) == (Status.COMPLETED, "")
    assert len(made) > 3
    assert all(one._loop.evicting and not one.take_commands() for one in made)
    assert [one.message for one in caplog.records if one.name == "workflow"] == ["begin", "end"]
    assert len(ended) > 1, "the clean-up of replays ran"


def test_a_replay_without_the_workflow_says_which_there_are() -> None:
    """A run is not replayed by code that does not have its workflow; the error names what it has."""

    async def scenario(sim: Simulation) -> None:
        await sim.start_worker()
        await sim.client.start(leaves(), id="r")
        await sim.closed("r")
        await replay_run(sim.store, Registry([work, hears]), sim.clock, RunKey("default", "r"))

    with pytest.raises(DefinitionError, match="no workflow 'leaves'; it has 'hears'"):
        Simulation(CODE).run(scenario)


def test_a_log_of_another_thread_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    """Only the thread that replays is silenced, and only while it does."""

    async def scenario() -> None:
        with mode._unlogged():
            log.warning("dropped")
            await asyncio.to_thread(log.warning, "kept")
        log.warning("kept too")

    asyncio.run(scenario())
    assert [one.message for one in caplog.records] == ["kept", "kept too"]


@pytest.mark.without_always_replay("it is seen to be off")
def test_it_is_off_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without option and variable no replay is made; each alone switches it on, and the option has the last word."""
    monkeypatch.delenv(mode.ALWAYS_REPLAY_VARIABLE, raising=False)
    on, off = (WorkerOptions(library="simulated", always_replay=one) for one in (True, False))
    blocked = (Status.BLOCKED, "non-determinism")
    assert play(counts())[0] is Status.COMPLETED
    assert play(counts(), on) == blocked
    monkeypatch.setenv(mode.ALWAYS_REPLAY_VARIABLE, "1")
    assert play(counts()) == blocked
    assert play(counts(), off)[0] is Status.COMPLETED


def test_an_app_follows_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """`open()` inside of `always_replay()` replays, in memory and on the system's clock."""
    monkeypatch.setattr(registry, "_declared", CODE)

    async def scenario() -> None:
        async with outlast.open("memory://", workflows=[counts]) as app:
            handle = await app.start(counts(), id="r")
            while (await handle.status()).status is not Status.BLOCKED:
                await asyncio.sleep(0.01)

    with pytest.raises(NonDeterminismError), always_replay():
        asyncio.run(scenario())


def test_a_process_follows_the_variable(tmp_path: Path) -> None:
    """It reaches the processes that a test starts."""
    code = """
import asyncio, outlast
calls = 0

@outlast.step
async def work(n: int) -> int:
    return n

@outlast.workflow
async def counts() -> int:
    global calls
    calls += 1
    return await work(calls)

async def main():
    async with outlast.open("memory://") as app:
        handle = await app.start(counts(), id="r")
        while (await handle.status()).status not in ("completed", "blocked"):
            await asyncio.sleep(0.01)
        print((await handle.status()).status)

asyncio.run(main())
"""
    with always_replay():
        environment = dict(os.environ)
    for variable, status in ((environment, "blocked"), ({**environment, mode.ALWAYS_REPLAY_VARIABLE: "0"}, "completed")):  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", code], env=variable, cwd=tmp_path, capture_output=True, text=True, timeout=60
        )  # fmt: skip
        assert done.stdout.split() == [status], done.stderr


def test_the_first_difference_is_raised_at_the_end() -> None:
    """Also where the body failed because the run was blocked; what is no failure passes."""
    with pytest.raises(NonDeterminismError) as caught, always_replay():
        play(counts())
        raise AssertionError("the run was blocked")
    assert isinstance(caught.value.__context__, AssertionError)
    with pytest.raises(KeyboardInterrupt), always_replay():
        play(counts())
        raise KeyboardInterrupt


def test_an_inner_mode_hears_instead_of_the_outer_one() -> None:
    """So a difference that a test expects does not fail the suite; and what is expected can be taken out."""
    with always_replay() as outer:
        with always_replay() as inner:
            play(counts())
            assert len(inner.differences) == 1
            inner.differences.clear()
        assert outer.differences == []
        assert os.environ[mode.ALWAYS_REPLAY_VARIABLE] == "1"


def test_it_decorates_functions_of_both_kinds() -> None:
    """The mode is on while the function runs, and off before its coroutine does."""

    @always_replay()
    def plain() -> object:
        return play(counts())

    @always_replay()
    async def awaited(n: int) -> object:
        """Say whether it is on."""
        await asyncio.sleep(0)
        return n, mode.is_always_replay_set(), len(mode.listeners)

    with pytest.raises(NonDeterminismError):
        plain()
    before = len(mode.listeners)
    coroutine = awaited(3)
    assert len(mode.listeners) == before
    assert asyncio.run(coroutine) == (3, True, before + 1)
    assert awaited.__doc__ == "Say whether it is on."
    assert len(mode.listeners) == before


def test_a_difference_ends_a_test_that_waits_for_the_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The run is blocked, so its result never comes: the task that entered is cancelled, and the difference comes out."""
    monkeypatch.setattr(registry, "_declared", CODE)

    @always_replay()
    async def wait() -> int:
        async with outlast.open("memory://", workflows=[counts]) as app:
            return await app.run(counts(), id="r")

    async def both() -> str:
        with pytest.raises(NonDeterminismError):
            await wait()
        await asyncio.sleep(0)
        return "not cancelled any more"

    assert asyncio.run(both()) == "not cancelled any more"


def test_a_difference_at_the_last_moment_cancels_nothing_afterwards() -> None:
    """What is heard as the block ends comes out of it, and the task goes on unharmed."""

    async def main() -> str:
        with pytest.raises(NonDeterminismError), always_replay():
            listeners[-1](NonDeterminismError("late", hint="none"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return "unharmed"

    assert asyncio.run(main()) == "unharmed"
