"""Parking, waking up, and the order in which a run is taken up."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta

import pytest

import outlast
from outlast.journal.entry import from_row
from outlast.store.change import RunHead, RunKey, Status
from outlast.testing import Faults, Receiver, Simulation
from outlast.worker.worker import WorkerOptions

bodies: Counter[str] = Counter()
receiver = Receiver()
go = outlast.Signal("go", str)
number = outlast.Signal("number", int)


@outlast.step
async def note(name: str) -> str:
    bodies[name] += 1
    return name


@outlast.effect(idempotent=True)
async def pay(amount: int) -> int:
    return receiver.apply_once(outlast.idempotency_key(), amount)


@outlast.workflow
async def wait_for_signal() -> str:
    await note("before")
    word = await outlast.receive(go)
    await note("after")
    return word


@outlast.workflow
async def wait_for_timer(seconds: float) -> str:
    await note("before")
    await outlast.sleep(seconds)
    return await note("after")


@outlast.workflow
async def sleep_often(times: int, seconds: float) -> int:
    for _ in range(times):
        await outlast.sleep(seconds)
        await note("after")
    return times


@outlast.workflow
async def wait_for_decision() -> str:
    await note("before")
    grant = await outlast.approval("really?", role="boss", expires_in=timedelta(hours=1))
    return grant.by


@outlast.workflow
async def pay_at_once() -> int:
    return await pay(7)


@outlast.workflow
async def note_then_pay() -> int:
    await note("before")
    return await pay(7)


@outlast.workflow
async def race() -> list[str]:
    async def by_timer() -> str:
        await outlast.sleep(10)
        return "timer"

    async def by_signal() -> str:
        return await outlast.receive(go)

    order: list[str] = []

    async def noting(work: object) -> None:
        order.append(await work)

    await asyncio.gather(noting(by_timer()), noting(by_signal()))
    return order


@outlast.workflow
async def collect(count: int) -> list[int]:
    return [await outlast.receive(number) for _ in range(count)]


@outlast.workflow
async def end_after_one() -> int:
    return await outlast.receive(number)


CODE = [
    *(note, pay, wait_for_signal, wait_for_timer, sleep_often, wait_for_decision),
    *(pay_at_once, note_then_pay, race, collect, end_after_one),
]


@pytest.fixture(autouse=True)
def _clean() -> None:
    bodies.clear()
    receiver.forget()


def parked(head: RunHead) -> bool:
    """Whether the run was given back and waits."""
    return head.status is Status.WAITING and head.owner is None


def test_a_waiting_run_is_parked_and_a_message_wakes_it() -> None:
    """The row says that it waits; the run leaves memory; the message brings it back at once, on another worker too."""

    async def scenario(sim: Simulation) -> tuple[object, list[object], str, float]:
        worker = await sim.start_worker()
        handle = await worker.client.start(wait_for_signal(), id="r")
        head = await sim.until("r", parked)
        status = await handle.status()
        held = list(worker.worker.runs)
        since = sim.clock.monotonic()
        await sim.client.handle("r").send(go, "hello")
        result = await handle.result()
        assert head.wake_at is None
        return status.waits["signals"], held, result, sim.clock.monotonic() - since

    waits, held, result, seconds = Simulation(CODE).run(scenario)
    assert (waits, held, result) == (["go"], [], "hello")
    assert seconds < 0.1
    assert bodies == {"before": 1, "after": 1}


@pytest.mark.parametrize("idle", [timedelta(0), timedelta(microseconds=1)])
def test_a_run_that_may_not_idle_is_parked_at_once(idle: timedelta) -> None:
    """However short the time is, it is not waited for longer than that."""

    async def scenario(sim: Simulation) -> tuple[float, str]:
        await sim.start_worker(options=WorkerOptions(library="simulated", idle=idle))
        handle = await sim.client.start(wait_for_signal(), id="r")
        since = sim.clock.monotonic()
        await sim.until("r", parked)
        seconds = sim.clock.monotonic() - since
        await handle.send(go, "hello")
        return seconds, await handle.result()

    seconds, result = Simulation(CODE).run(scenario)
    assert seconds < 0.5
    assert result == "hello"


def test_a_timer_wakes_a_parked_run() -> None:
    """`wake_at` is the timer's due time, and the run goes on then."""

    async def scenario(sim: Simulation) -> tuple[float, float]:
        await sim.start_worker()
        begun = sim.clock.now()
        await sim.client.start(wait_for_timer(60), id="r")
        head = await sim.until("r", parked)
        assert head.wake_at is not None
        ended = await sim.closed("r")
        return (head.wake_at - begun).total_seconds(), (ended.changed_at - begun).total_seconds()

    wake_at, ended = Simulation(CODE).run(scenario)
    assert wake_at == pytest.approx(60, abs=0.1)
    assert ended == pytest.approx(60, abs=0.2)


def test_a_timer_runs_on_while_no_worker_lives() -> None:
    """A run whose timer came due in the meantime goes on when a worker is there again."""

    async def scenario(sim: Simulation) -> float:
        first = await sim.start_worker()
        begun = sim.clock.now()
        await sim.client.start(wait_for_timer(60), id="r")
        await sim.until("r", parked)
        first.kill()
        await asyncio.sleep(300)
        await sim.start_worker()
        ended = await sim.closed("r")
        return (ended.changed_at - begun).total_seconds()

    assert Simulation(CODE).run(scenario) == pytest.approx(301, abs=2)
    assert bodies == {"before": 1, "after": 1}


def test_a_decision_wakes_a_parked_run() -> None:
    """The decision comes by the inbox, as messages do."""

    async def scenario(sim: Simulation) -> str:
        await sim.start_worker()
        handle = await sim.client.start(wait_for_decision(), id="r")
        await sim.until("r", parked)
        (view,) = await sim.client.approvals.list()
        await sim.client.approvals.approve("r", view.approval_id, seen_sha256=view.subject_sha256)
        await sim.closed("r")
        return await handle.result()

    assert Simulation(CODE).run(scenario) == "tester"


def test_evicted_and_restored_ten_times() -> None:
    """Round ten timers that are longer than the idle time each continuation runs once (case 13)."""

    async def scenario(sim: Simulation) -> int:
        await sim.start_worker()
        await sim.start_worker()
        handle = await sim.client.start(sleep_often(10, 20), id="r")
        await sim.closed("r")
        claims = sum("claimed r" in line for line in sim.trace)
        assert claims >= 10
        return await handle.result()

    assert Simulation(CODE, faults=Faults(latency=0.05)).run(scenario) == 10
    assert bodies == {"after": 10}


@pytest.mark.parametrize("seed", range(20))
def test_a_signal_during_the_park_is_not_lost(seed: int) -> None:
    """Whenever the message comes while the run is being given back, the run wakes up."""

    async def scenario(sim: Simulation) -> tuple[str, float]:
        await sim.start_worker()
        handle = await sim.client.start(wait_for_signal(), id="r")
        await asyncio.sleep(0.9 + sim.source("moment").uniform(0, 0.5))
        since = sim.clock.monotonic()
        await sim.client.handle("r").send(go, "hello")
        await sim.closed("r")
        return await handle.result(), sim.clock.monotonic() - since

    faults = Faults(latency=0.1, lost_hint=0.5)
    result, seconds = Simulation(CODE, seed=seed, faults=faults).run(scenario)
    assert result == "hello"
    assert seconds < 5


def test_losing_every_hint_costs_latency_only() -> None:
    """Polling is the truth."""

    async def scenario(sim: Simulation) -> float:
        await sim.start_worker()
        await sim.client.start(wait_for_signal(), id="r")
        await sim.until("r", parked)
        since = sim.clock.monotonic()
        await sim.client.handle("r").send(go, "hello")
        await sim.closed("r")
        return sim.clock.monotonic() - since

    assert Simulation(CODE, faults=Faults(lost_hint=1)).run(scenario) < 1


def test_a_cancel_in_the_inbox_prevents_the_effect() -> None:
    """Messages are delivered before any command is carried out."""

    async def scenario(sim: Simulation) -> Status:
        handle = await sim.client.start(pay_at_once(), id="r")
        await handle.cancel("not any more")
        await sim.start_worker()
        return (await sim.closed("r")).status

    assert Simulation(CODE).run(scenario) is Status.CANCELLED
    assert receiver.total == 0


def test_a_cancel_prevents_the_effect_that_a_former_worker_was_about_to_begin() -> None:
    """The run is taken up with its next command known; what waits in the inbox is delivered before it is carried out."""

    async def scenario(sim: Simulation) -> Status:
        first = await sim.start_worker()
        first.store.at_commit = lambda moment, number: (
            first.kill() if (moment, number) == ("after", 2) else None
        )
        handle = await sim.client.start(note_then_pay(), id="r")
        await asyncio.sleep(1)
        assert first.process.dead
        await handle.cancel("not any more")
        await sim.start_worker()
        return (await sim.closed("r")).status

    assert Simulation(CODE).run(scenario) is Status.CANCELLED
    assert bodies == {"before": 1}
    assert receiver.total == 0


@pytest.mark.parametrize(
    ("sent_after", "order"), [(5, ["early", "timer"]), (15, ["timer", "early"])]
)
def test_messages_and_due_timers_come_in_the_order_of_the_stores_time(
    sent_after: float, order: list[str]
) -> None:
    """What happened while no worker lived is delivered as it happened."""

    async def scenario(sim: Simulation) -> list[str]:
        first = await sim.start_worker()
        handle = await sim.client.start(race(), id="r")
        await sim.until("r", parked)
        first.kill()
        await asyncio.sleep(sent_after - 2)
        await handle.send(go, "early")
        await asyncio.sleep(30)
        await sim.start_worker()
        await sim.closed("r")
        return await handle.result()

    assert Simulation(CODE).run(scenario) == order


def test_five_hundred_signals_in_order() -> None:
    """Also when the wall clock is set back in between, and the worker dies in the middle."""

    async def scenario(sim: Simulation) -> list[int]:
        worker = await sim.start_worker()
        handle = await sim.client.start(collect(500), id="r")
        for one in range(500):
            await handle.send(number, one)
            if one % 50 == 0:
                await asyncio.sleep(0.3)
            if one == 200:
                worker.kill()
            if one in {100, 300, 400}:
                sim.clock.jump(timedelta(hours=-1))
        await sim.start_worker()
        await sim.closed("r")
        return await handle.result()

    assert Simulation(CODE, faults=Faults(latency=0.01)).run(scenario) == list(range(500))


@pytest.mark.parametrize("seed", range(10))
def test_messages_that_come_while_the_run_ends_are_in_its_journal(seed: int) -> None:
    """A sender is either told that the run has ended, or finds the message in the journal."""

    async def scenario(sim: Simulation) -> tuple[set[int], set[int]]:
        await sim.start_worker()
        handle = await sim.client.start(end_after_one(), id="r")
        accepted: set[int] = set()
        for one in range(100):
            try:
                await handle.send(number, one, id=f"m{one}")
            except outlast.RunConflictError:
                break
            accepted.add(one)
            await asyncio.sleep(0.01)
        await sim.closed("r")
        rows = await sim.store.journal(RunKey("default", "r"))
        entries = [from_row(one.row) for one in rows]
        received = {
            int(one.message_id.rpartition("m")[2]) for one in entries if hasattr(one, "message_id")
        }
        assert rows[-1].row.kind == "completed"
        return accepted, received

    accepted, received = Simulation(CODE, seed=seed, faults=Faults(latency=0.05)).run(scenario)
    assert accepted == received


def test_a_jump_of_the_wall_clock_fires_a_timer_soon() -> None:
    """A timer is judged by the wall clock, and looked at again within seconds, also while a step is under way."""

    async def scenario(sim: Simulation) -> float:
        options = WorkerOptions(library="simulated", idle=timedelta(hours=1))
        await sim.start_worker(options=options)
        await sim.client.start(wait_for_timer(3000), id="r")
        await asyncio.sleep(5)
        since = sim.clock.monotonic()
        sim.clock.jump(timedelta(seconds=3000))
        await sim.closed("r")
        return sim.clock.monotonic() - since

    assert Simulation(CODE).run(scenario) <= 10.5


TEN_YEARS = timedelta(days=3650)


@pytest.mark.parametrize("seconds", [2.0, 2000.0])
@pytest.mark.parametrize("kill", [False, True])
def test_a_clock_that_was_ahead_once_freezes_no_timer(seconds: float, kill: bool) -> None:
    """Ten years ahead for one commit: timers wait as long as asked, parked or not; a kill may cost the wait once more."""

    async def scenario(sim: Simulation) -> float:
        first = await sim.start_worker()
        sim.clock.jump(TEN_YEARS)
        handle = await sim.client.start(wait_for_timer(seconds), id="r")
        await sim.until("r", lambda head: head.next_seq > 2)
        sim.clock.jump(-TEN_YEARS)
        since = sim.clock.monotonic()
        await asyncio.sleep(seconds / 2)
        if kill:
            first.kill()
            await sim.start_worker()
        await sim.closed("r")
        await handle.result()
        return sim.clock.monotonic() - since

    took = Simulation(CODE, longest=timedelta(hours=5)).run(scenario)
    assert seconds <= took <= seconds * (2 if kill and seconds < 10 else 1) + 20


def test_a_run_that_comes_back_before_its_parking_was_answered_is_taken_up() -> None:
    """Parked, due and claimed again while every answer is lost: what the worker owns by then is not what its pilot still holds."""

    async def scenario(sim: Simulation) -> str:
        worker = await sim.start_worker()
        claimed: list[int] = []

        def at_verb(moment: str, verb: str) -> None:
            run = sim.invariants.runs.get(RunKey("default", "r"))
            if run is None:
                return
            if (moment, verb) == ("after", "commit") and run.owner is None and not claimed:
                worker.store.faults = Faults(lost_answer=1.0)
            elif (moment, verb) == ("after", "claim") and run.epoch == 2:
                claimed.append(run.epoch)
            elif (moment, verb) == ("before", "owned") and claimed:
                worker.store.faults = Faults()

        worker.store.at_verb = at_verb
        handle = await sim.client.start(wait_for_timer(5), id="r")
        result = await handle.result()
        assert claimed
        return result

    assert Simulation(CODE).run(scenario) == "after"
