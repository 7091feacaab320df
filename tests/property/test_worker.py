"""Laws of workers: crash points enumerated, and whole systems under faults drawn from a seed."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import outlast
from outlast.effects.intent import Applied, NotApplied
from outlast.journal.entry import from_row
from outlast.store.change import RunKey, Status
from outlast.testing import Faults, Receiver, Simulation, replay_run
from outlast.testing.crash import CrashPoint, Trial, Workload, every_crash, undisturbed
from outlast.workflows.registry import Registry

receiver = Receiver()
bodies: Counter[str] = Counter()
go = outlast.Signal("go", int)
TIMEOUT = timedelta(seconds=5)


@outlast.step
async def double(number: int) -> int:
    bodies[f"double {number}"] += 1
    return number * 2


@outlast.step(retry=outlast.RetryPolicy(maximum_attempts=3))
async def third_time(name: str) -> int:
    bodies[name] += 1
    if outlast.attempt().number < 3:
        raise OSError("not yet")
    return 3


@outlast.step
def blocking(number: int) -> int:
    bodies[f"blocking {number}"] += 1
    return number + 1


def find(name: str) -> Applied[str] | NotApplied:
    return receiver.find(outlast.idempotency_key())


@outlast.effect(idempotent=True)
async def idempotent(name: str) -> str:
    return receiver.apply_once(outlast.idempotency_key(), name)


@outlast.effect(probe=find, start_to_close_timeout=TIMEOUT)
async def probed(name: str) -> str:
    return receiver.apply(outlast.idempotency_key(), name)


@outlast.effect(idempotent=True)
def in_thread(name: str) -> str:
    return receiver.apply_once(outlast.idempotency_key(), name)


@outlast.effect(start_to_close_timeout=TIMEOUT)
async def neither(name: str) -> str:
    return receiver.apply(outlast.idempotency_key(), name)


@outlast.workflow
async def steps() -> list[int]:
    """Parallel steps, retries, a thread."""
    first = await asyncio.gather(double(1), double(2), third_time("a"), blocking(4))
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(double(one)) for one in first]
    return [task.result() for task in tasks]


@outlast.workflow
async def waiting() -> str:
    """A timer, a message, an approval, and effects of each kind that can be repeated."""
    await outlast.sleep(3)
    number = await outlast.receive(go)
    grant = await outlast.approval(
        {"number": number},
        covers=[probed("c"), idempotent.where(name="d")],
        role="boss",
        expires_in=timedelta(hours=1),
    )
    one, two = await asyncio.gather(idempotent("d"), in_thread("b"))
    return f"{number} {grant.by} {await probed('c')} {one} {two} {await double(number)}"


@outlast.workflow
async def once() -> str:
    """An effect with neither, between two steps."""
    await double(1)
    said = await neither("x")
    await double(2)
    return said


@outlast.workflow
async def timed_out() -> str:
    """A wait that is cut off, and a step that is cancelled by a sibling's failure."""
    with contextlib.suppress(TimeoutError):
        await outlast.receive(go, timeout=timedelta(seconds=2))
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(outlast.sleep(1000))
            group.create_task(broken())
    except* ValueError:
        pass
    return await idempotent("after")


@outlast.step(retry=outlast.RetryPolicy(maximum_attempts=1))
async def broken() -> int:
    raise ValueError("broken")


CODE = [
    *(double, third_time, blocking, idempotent, probed, in_thread, neither, broken),
    *(steps, waiting, once, timed_out),
]


async def feed(sim: Simulation) -> None:
    """Send the message and say yes, as often as it takes."""
    handle = sim.client.handle("run")
    await handle.send(go, 21, id="the message")
    while not (views := await sim.client.approvals.list()):
        await asyncio.sleep(0.5)
    await sim.client.approvals.approve(
        "run", views[0].approval_id, seen_sha256=views[0].subject_sha256
    )


def workload(workflow: Any, *, fed: bool = False) -> Workload:
    """Return a workload of one run."""
    return Workload(
        definitions=CODE,
        begin=lambda sim: sim.client.start(workflow(), id="run"),
        meanwhile=feed if fed else None,
        receiver=receiver,
        bodies=bodies,
    )


def assert_equal_but_for_the_crash(point: CrashPoint, plain: Trial, trial: Trial) -> None:
    """Same result, same entries by operation, same changes of the world; nothing recorded runs again."""
    assert trial.head.status is plain.head.status, point
    assert trial.end == plain.end, point
    assert sorted(trial.kinds) == sorted(plain.kinds), point
    assert trial.changes == plain.changes, point
    again = trial.bodies - plain.bodies
    assert all(count == 1 for count in again.values()), (point, again)
    if point.moment == "after" and point.commit == plain.commits:
        assert not again, point


@pytest.mark.parametrize(
    "work",
    [workload(steps), workload(waiting, fed=True), workload(timed_out)],
    ids=["steps", "waiting", "timed_out"],
)
def test_every_crash_point_leads_to_the_undisturbed_result(work: Workload) -> None:
    """Invariants 2 and 3: before and after each commit of the worker."""
    plain = undisturbed(work)
    assert plain.head.status is Status.COMPLETED
    assert plain.commits >= 6
    tried = 0
    for point, trial in every_crash(work):
        assert_equal_but_for_the_crash(point, plain, trial)
        tried += 1
    assert tried == plain.commits * 2


def test_an_effect_with_neither_happens_at_most_once_at_every_crash_point() -> None:
    """Invariant 4: the undisturbed result, or blocked in doubt; in doubt only where the attempt was cut off."""
    work = workload(once)
    plain = undisturbed(work)
    in_doubt: list[CrashPoint] = []
    for point, trial in every_crash(work):
        assert all(count == 1 for count in trial.changes.values()), point
        if trial.head.status is Status.BLOCKED:
            assert trial.head.reason == "in doubt"
            in_doubt.append(point)
        else:
            assert_equal_but_for_the_crash(point, plain, trial)
    assert [(one.moment, one.commit) for one in in_doubt] == [("after", 3), ("before", 4)]


FAULTS = st.builds(
    Faults,
    latency=st.sampled_from([0.0, 0.01, 0.3]),
    unavailable=st.sampled_from([0.0, 0.05, 0.3]),
    lost_request=st.sampled_from([0.0, 0.05, 0.3]),
    lost_answer=st.sampled_from([0.0, 0.05, 0.3]),
    lost_hint=st.sampled_from([0.0, 1.0]),
    outlives=st.sampled_from([0.0, 0.5, 1.0]),
)
DISTURBANCES = st.lists(
    st.tuples(
        st.floats(0, 20), st.sampled_from(["kill", "freeze", "cut", "stop", "forth", "back"])
    ),
    max_size=4,
)


RUNS: dict[str, tuple[Any, object]] = {
    "run": (waiting, "21 tester c d b 42"),
    "steps": (steps, [4, 8, 6, 10]),
    "timed_out": (timed_out, "after"),
}


@settings(max_examples=100)
@given(seed=st.integers(0, 2**32), faults=FAULTS, disturbances=DISTURBANCES)
def test_whatever_happens_the_result_is_the_same(
    seed: int, faults: Faults, disturbances: list[tuple[float, str]]
) -> None:
    """Several runs and workers, bad networks, kills, freezes, stops and clock jumps.

    Every repeatable effect happens exactly once, one with neither at most once, and every journal replays to its end.
    """
    receiver.forget()
    bodies.clear()
    sim = Simulation(CODE, seed=seed, thread_delay=0.1, longest=timedelta(hours=3))

    async def scenario(sim: Simulation) -> Status:
        for _ in range(2):
            await _new_worker(sim, faults)
        handles = {id: await sim.client.start(one[0](), id=id) for id, one in RUNS.items()}
        await sim.client.start(once(), id="once")
        feeding = sim.spawn(feed(sim))
        for pause, what in disturbances:
            await asyncio.sleep(pause)
            await _disturb(sim, what, faults)
        for one in sim.workers:
            one.store.faults = Faults(latency=faults.latency)
        await _new_worker(sim, Faults())
        for id in RUNS:
            await sim.closed(id)
        await feeding
        head = await sim.until("once", lambda head: head.status.closed or head.reason == "in doubt")
        for one in sim.workers:
            one.thaw()
        await asyncio.sleep(60)
        for id, handle in handles.items():
            assert await handle.result() == RUNS[id][1]
            await _check_journal(sim, id)
        return head.status

    status = sim.run(scenario)
    assert all(count == 1 for count in receiver.changes.values())
    assert receiver.total == 5 or (receiver.total == 4 and status is Status.BLOCKED)


async def _new_worker(sim: Simulation, faults: Faults) -> None:
    worker = await sim.start_worker()
    worker.store.faults = faults


async def _disturb(sim: Simulation, what: str, faults: Faults) -> None:
    chance = sim._source(f"{what} {len(sim.trace)}")
    victim = chance.choice(sim.workers)
    match what:
        case "kill":
            victim.kill()
            await _new_worker(sim, faults)
        case "freeze":
            victim.freeze()
            sim.spawn(_thaw_later(victim, chance.uniform(0, 60)))
        case "cut":
            victim.store.faults = Faults(down=True)
            await asyncio.sleep(chance.uniform(0, 40))
            victim.store.faults = faults
        case "stop":
            sim.spawn(victim.stop(timedelta(seconds=chance.uniform(0, 20))))
            await _new_worker(sim, faults)
        case "forth":
            sim.clock.jump(timedelta(seconds=chance.uniform(0, 100)))
        case _:
            sim.clock.jump(-timedelta(seconds=chance.uniform(0, 100)))


async def _thaw_later(victim: Any, seconds: float) -> None:
    await asyncio.sleep(seconds)
    victim.thaw()


async def _check_journal(sim: Simulation, run_id: str) -> None:
    """One outcome an operation, turns that grow, times that never go back, and a replay that comes to the same end."""
    run = RunKey("default", run_id)
    rows = await sim.store.journal(run)
    outcomes = Counter(
        one.row.operation
        for one in rows
        if one.row.kind in {"step_completed", "step_failed", "effect_completed", "timer_fired"}
    )
    assert all(count == 1 for count in outcomes.values()), outcomes
    turns = [one.row.turn for one in rows]
    assert turns == sorted(turns)
    times = [one.at for one in rows]
    assert times == sorted(times)
    end = await replay_run(sim.store, Registry(CODE), sim.clock, run)
    assert end == from_row(rows[-1].row)


def test_equal_seeds_give_equal_traces() -> None:
    """Everything follows from the seed: the trace of a disturbed run is the same when it is run again."""

    def trace(seed: int) -> list[str]:
        receiver.forget()
        faults = Faults(0.05, 0.1, 0.1, 0.1, 0.3, 0.5)
        sim = Simulation(CODE, seed=seed, thread_delay=0.1)

        async def scenario(sim: Simulation) -> None:
            for _ in range(3):
                await _new_worker(sim, faults)
            await sim.client.start(waiting(), id="run")
            sim.spawn(feed(sim))
            await asyncio.sleep(4)
            sim.workers[0].kill()
            await sim.closed("run")

        sim.run(scenario)
        return sim.trace

    assert trace(1) == trace(1)
    assert trace(1) != trace(2)
