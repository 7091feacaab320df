"""Leases: who may act, and what becomes of runs whose worker is gone, frozen or cut off."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest

import outlast
from outlast.errors import StoreUnavailableError
from outlast.store.change import Change, RunHead, RunKey, Status, Verdict, WorkerId
from outlast.store.protocol import Claim
from outlast.testing import Faults, Receiver, SimulatedClock, SimulatedWorker, Simulation
from outlast.testing.loop import current_process
from outlast.worker.lease import Lease
from outlast.worker.pilot import POISON_LAPSES
from outlast.worker.worker import WorkerOptions

bodies: Counter[str] = Counter()
receiver = Receiver()
callers: list[str] = []
fails: list[int] = []
here: list[SimulatedWorker] = []
go = outlast.Signal("go", str)


@outlast.step
async def take(name: str, seconds: float) -> str:
    bodies[name] += 1
    await asyncio.sleep(seconds)
    return name


@outlast.effect(idempotent=True, retry=outlast.RetryPolicy(initial_interval=timedelta(seconds=10)))
async def pay(amount: int) -> int:
    process = current_process.get()
    assert process is not None
    callers.append(process.name)
    if fails:
        fails.pop()
        raise OSError("down")
    return receiver.apply_once(outlast.idempotency_key(), amount)


@outlast.workflow
async def step_then_pay(seconds: float) -> int:
    await take("long", seconds)
    return await pay(3)


@outlast.workflow
async def three(name: str) -> str:
    for one in "abc":
        await take(name + one, 0.1)
    return name


@outlast.workflow
async def wait_for_signal() -> str:
    return await outlast.receive(go)


@outlast.step
async def die() -> str:
    bodies["die"] += 1
    if bodies["die"] <= POISON_LAPSES:
        here[-1].kill()
        await asyncio.sleep(1)
    return "survived"


@outlast.workflow
async def deadly() -> str:
    return await die()


@outlast.workflow
async def other(name: str) -> str:
    return await take(name, 0)


CODE = [take, pay, step_then_pay, three, wait_for_signal, die, deadly]


@pytest.fixture(autouse=True)
def _clean() -> None:
    bodies.clear()
    receiver.forget()
    for one in (here, callers, fails):
        one.clear()


def test_a_frozen_worker_commits_nothing_and_starts_no_effect() -> None:
    """When it is continued its lease is over: what it had is fenced, the effect was the other's, and it begins a new life."""

    async def scenario(sim: Simulation) -> tuple[int, list[str], bool, bool]:
        frozen = await sim.start_worker("frozen")
        handle = await sim.client.start(step_then_pay(5), id="r")
        await asyncio.sleep(1)
        old_id = frozen.worker.id
        frozen.freeze()
        await asyncio.sleep(12)
        await sim.start_worker("other")
        await asyncio.sleep(120)
        result = await handle.result()
        before = len(sim.trace)
        frozen.thaw()
        await asyncio.sleep(60)
        commits = [
            line for line in sim.trace[before:] if " frozen commit" in line and "Applied" in line
        ]
        new_life = frozen.worker.id != old_id
        await frozen.client.run(three("new"), id="n")
        return result, commits, new_life, frozen.worker.id in await _live(sim)

    assert Simulation(CODE).run(scenario) == (3, [], True, True)
    assert receiver.total == 1
    assert bodies["long"] == 2


def test_a_worker_frozen_between_intent_and_call_does_not_call() -> None:
    """Immediately before the call it looks at its lease; by then the other worker has made the call."""

    async def scenario(sim: Simulation) -> tuple[int, list[str]]:
        frozen = await sim.start_worker("frozen")
        intent = 3  # Taken, the step's outcome, the intent
        frozen.store.at_commit = lambda moment, number: (
            frozen.freeze() if (moment, number) == ("after", intent) else None
        )
        handle = await sim.client.start(step_then_pay(1), id="r")
        await asyncio.sleep(5)
        await sim.start_worker("other")
        await sim.closed("r")
        frozen.thaw()
        await asyncio.sleep(60)
        return await handle.result(), callers

    assert Simulation(CODE).run(scenario) == (3, ["other"])


def test_a_worker_whose_deadline_has_passed_begins_no_effect() -> None:
    """Also when nothing has told it: the answer of the intent's commit came late, and no renewal got through."""

    async def scenario(sim: Simulation) -> tuple[int, list[str]]:
        late = await sim.start_worker("late")
        real = late.store.commit

        async def slow(changes: Sequence[Change]) -> list[Verdict]:
            verdicts = await real(changes)
            if late.store.commits == 3:
                await asyncio.sleep(20)
            return verdicts

        async def stuck(*_: object) -> Claim:
            await asyncio.sleep(40)
            raise StoreUnavailableError("away", hint="wait")

        def away(_: WorkerId) -> bool:
            raise StoreUnavailableError("away", hint="wait")

        handle = await sim.client.start(step_then_pay(1), id="r")
        await asyncio.sleep(0.8)
        late.store.commit, late.store.claim, late.store.renew = slow, stuck, away
        late.worker.look()
        await asyncio.sleep(5)
        await sim.start_worker("other")
        await sim.closed("r")
        await asyncio.sleep(60)
        return await handle.result(), callers

    assert Simulation(CODE).run(scenario) == (3, ["other"])


def test_a_run_is_not_attempted_here_after_it_was_given_back() -> None:
    """While the commit that parks a run is under way, none of its attempts begins, however long that takes."""
    fails.append(1)

    async def scenario(sim: Simulation) -> int:
        worker = await sim.start_worker()
        handle = await sim.client.start(step_then_pay(0), id="r")
        while not callers:
            await asyncio.sleep(0.1)
        worker.store.faults = Faults(down=True)
        await asyncio.sleep(12)
        assert len(callers) == 1
        worker.store.faults = Faults()
        await sim.closed("r")
        return await handle.result()

    assert Simulation(CODE).run(scenario) == 3
    assert len(callers) == 2


def test_an_old_answer_about_what_is_owned_does_no_harm() -> None:
    """A run that was given back before the answer came is not moved by who no longer owns it."""
    fails.append(1)

    async def scenario(sim: Simulation) -> int:
        worker = await sim.start_worker()
        real = worker.store.owned

        async def slow(whose: WorkerId) -> list[RunHead]:
            heads = await real(whose)
            assert heads
            await asyncio.sleep(9.5)
            return heads

        handle = await sim.client.start(step_then_pay(0), id="r")
        while not callers:
            await asyncio.sleep(0.1)
        worker.store.owned = slow
        worker.worker._unsure = True
        worker.worker.look()
        await sim.closed("r")
        return await handle.result()

    assert Simulation(CODE).run(scenario) == 3
    assert len(callers) == 2


def test_a_killed_worker_writes_nothing_more() -> None:
    """`Worker.kill` ends a worker inside a living process as if that had died."""

    async def scenario(sim: Simulation) -> tuple[list[object], float]:
        worker = await sim.start_worker()
        handle = await sim.client.start(step_then_pay(5), id="r")
        await asyncio.sleep(1)
        commits = worker.store.commits
        await worker.within(worker.worker.kill())
        await asyncio.sleep(10)
        assert worker.store.commits == commits
        await sim.start_worker()
        await sim.closed("r")
        return list(worker.worker.runs), await handle.result()

    assert Simulation(CODE).run(scenario) == ([], 3)


async def _live(sim: Simulation) -> set[str]:
    return {one.row.worker for one in await sim.store.workers() if one.live}


def test_a_worker_that_is_cut_off_lets_go_and_comes_back() -> None:
    """Its local deadline ends no later than the store's; afterwards it registers anew and goes on."""

    async def scenario(sim: Simulation) -> int:
        worker = await sim.start_worker()
        handle = await sim.client.start(step_then_pay(40), id="r")
        await asyncio.sleep(1)
        worker.store.faults = Faults(down=True)
        await asyncio.sleep(30)
        worker.store.faults = Faults()
        await sim.closed("r")
        return await handle.result()

    assert Simulation(CODE).run(scenario) == 3
    assert receiver.total == 1


def test_a_store_that_is_away_for_a_while_loses_nothing() -> None:
    """Two seconds without the store while a step runs: the body runs once (case 11)."""

    async def scenario(sim: Simulation) -> int:
        worker = await sim.start_worker()
        handle = await sim.client.start(step_then_pay(1), id="r")
        await asyncio.sleep(0.5)
        worker.store.faults = Faults(down=True)
        await asyncio.sleep(2)
        worker.store.faults = Faults()
        await sim.closed("r")
        return await handle.result()

    assert Simulation(CODE).run(scenario) == 3
    assert bodies["long"] == 1
    assert receiver.total == 1


@pytest.mark.parametrize("seed", range(10))
def test_reads_that_fail_block_no_run(seed: int) -> None:
    """Claims, loads and looks into the inbox may fail now and then (cases 11 and 26)."""

    async def scenario(sim: Simulation) -> list[str]:
        worker = await sim.start_worker()
        worker.store.faults = faults
        handles = [await sim.client.start(three(f"r{one}-"), id=f"r{one}") for one in range(10)]
        for one in range(10):
            await sim.closed(f"r{one}")
        return [await handle.result() for handle in handles]

    faults = Faults(latency=0.02, unavailable=0.2, lost_answer=0.2, lost_request=0.1)
    results = Simulation(CODE, seed=seed).run(scenario)
    assert results == [f"r{one}-" for one in range(10)]


def test_a_claim_whose_answer_was_lost_orphans_no_run() -> None:
    """The run is the worker's in the store, and the worker finds that out while it lives."""

    async def scenario(sim: Simulation) -> float:
        worker = await sim.start_worker()
        await asyncio.sleep(1)
        since = sim.clock.monotonic()
        worker.store.faults = Faults(lost_answer=1)
        await sim.client.start(three("r"), id="r")
        await asyncio.sleep(1)
        assert (await sim.client.head(RunKey("default", "r"))).owner == worker.worker.id
        assert worker.worker.runs == []
        worker.store.faults = Faults()
        await sim.closed("r")
        return sim.clock.monotonic() - since

    often = WorkerOptions(library="simulated")
    assert Simulation(CODE, options=often).run(scenario) < 5


@pytest.mark.parametrize("raises", [True, False])
def test_a_claim_that_broke_or_told_nothing_orphans_no_run(raises: bool) -> None:
    """Whatever became of the answer, the worker takes up what the store says it holds."""

    async def scenario(sim: Simulation) -> tuple[bool, float]:
        worker = await sim.start_worker()
        await asyncio.sleep(1)
        real = worker.store.claim
        broken: list[int] = []

        async def breaking(*given: Any, **named: Any) -> Claim:
            claim = await real(*given, **named)
            if not claim.runs:
                return claim
            broken.append(len(claim.runs))
            if raises:
                raise ArithmeticError("a row that makes no sense")
            return msgspec.structs.replace(claim, runs=())

        worker.store.claim = breaking
        since = sim.clock.monotonic()
        await sim.client.start(three("r"), id="r")
        await sim.closed("r")
        return broken == [1], sim.clock.monotonic() - since

    often = WorkerOptions(library="simulated")
    once, seconds = Simulation(CODE, options=often).run(scenario)
    assert once
    assert seconds < 5


def test_a_birth_whose_answer_was_lost_orphans_no_run() -> None:
    """The start is sent again and finds the run; the worker takes up what it owns."""

    async def scenario(sim: Simulation) -> tuple[str, float]:
        worker = await sim.start_worker()
        since = sim.clock.monotonic()
        worker.store.faults = Faults(lost_answer=1)
        work = asyncio.ensure_future(worker.client.run(three("r"), id="r"))
        await asyncio.sleep(0.2)
        worker.store.faults = Faults()
        return await work, sim.clock.monotonic() - since

    often = WorkerOptions(library="simulated")
    result, seconds = Simulation(CODE, options=often).run(scenario)
    assert result == "r"
    assert seconds < 5
    assert bodies == {"ra": 1, "rb": 1, "rc": 1}


@pytest.mark.parametrize("how", ["born", "claimed"])
@pytest.mark.parametrize("seed", range(4))
def test_a_run_that_comes_when_the_lease_is_over_does_not_stop_the_worker(
    how: str, seed: int
) -> None:
    """The answer to the birth, or to the claim, is read after the end of the lease: the worker goes on in a new life at once."""

    async def scenario(sim: Simulation) -> tuple[float, bool]:
        worker = await sim.start_worker(faults=Faults(latency=0.3))
        former = worker.worker.id
        client = worker.client if how == "born" else sim.client
        sim.spawn(worker.within(client.start(step_then_pay(7200), id="r")))
        while (head := await sim.store.head(RunKey("default", "r"))) is None or head.owner is None:
            await asyncio.sleep(0.01)
        worker.freeze()
        await asyncio.sleep(100)
        worker.thaw()
        since = sim.clock.monotonic()
        await sim.client.run(three("q"), id="q")
        return sim.clock.monotonic() - since, worker.worker.id != former

    often = WorkerOptions(library="simulated", lease=timedelta(seconds=5))
    seconds, is_new = Simulation(CODE, seed=seed, options=often).run(scenario)
    assert is_new
    assert seconds < 10


@pytest.mark.parametrize("lease", [timedelta(minutes=30), timedelta(hours=2)])
def test_a_long_lease_is_not_taken_for_a_stalled_loop(lease: timedelta) -> None:
    """The loop shows that it lives more often than a stall is suspected, however seldom the lease is renewed."""

    async def scenario(sim: Simulation) -> tuple[bool, bool]:
        worker = await sim.start_worker(options=WorkerOptions(library="simulated", lease=lease))
        first = worker.worker.id
        await asyncio.sleep(3 * lease.total_seconds())
        return worker.worker.id == first, worker.store.renew(first)

    assert Simulation(CODE, longest=timedelta(hours=12)).run(scenario) == (True, True)


def test_a_store_that_is_away_past_the_lease_is_not_asked_in_a_storm() -> None:
    """A worker that cannot begin its next life leaves the store alone between two tries, whatever was hinted at before."""

    async def scenario(sim: Simulation) -> int:
        worker = await sim.start_worker()
        worker.store.faults = Faults(down=True)
        await asyncio.sleep(20)
        before = len(sim.trace)
        await asyncio.sleep(10)
        return sum("register" in line or "control" in line for line in sim.trace[before:])

    assert 1 <= Simulation(CODE).run(scenario) <= 25


def test_ten_lapses_without_progress_are_poison() -> None:
    """The run is blocked, others are not hurt, and a message gives it as many tries again (cases 20 and 23)."""

    async def scenario(sim: Simulation) -> tuple[str, str, list[str]]:
        options = WorkerOptions(library="simulated", lease=timedelta(seconds=3))
        handle = await sim.client.start(deadly(), id="bad")
        good = [await sim.client.start(three(f"{one}"), id=f"good{one}") for one in range(9)]
        while (
            head := await sim.client.head(RunKey("default", "bad"))
        ).status is not Status.BLOCKED:
            if not here or here[-1].process.dead:
                here.append(await sim.start_worker(options=options))
            await asyncio.sleep(0.5)
        results = [await one.result() for one in good]
        await handle.send(go, "try again")
        await sim.closed("bad")
        return head.reason, await handle.result(), results

    reason, result, results = Simulation(CODE).run(scenario)
    assert (reason, result) == ("poison", "survived")
    assert bodies["die"] == POISON_LAPSES + 1
    assert results == [f"{one}" for one in range(9)]


def test_unknown_workflows_are_not_claimed() -> None:
    """A worker takes only what it has registered."""

    async def scenario(sim: Simulation) -> tuple[Status, str]:
        await sim.start_worker()
        handle = await sim.client.start(other("x"), id="r")
        await asyncio.sleep(30)
        before = (await handle.status()).status
        await sim.start_worker(definitions=[*CODE, other])
        await sim.closed("r")
        return before, await handle.result()

    assert Simulation(CODE).run(scenario) == (Status.READY, "x")


def test_a_break_inside_one_run_does_not_hurt_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of ours while one run is moved blocks that run; nine others end (case 23)."""
    from outlast.worker import pilot

    real = pilot.Pilot._carry_out

    def breaking(self: pilot.Pilot) -> None:
        if self.run_key.run_id == "r3":
            raise RuntimeError("a bug of ours")
        real(self)

    monkeypatch.setattr(pilot.Pilot, "_carry_out", breaking)

    async def scenario(sim: Simulation) -> tuple[str, int]:
        worker = await sim.start_worker()
        for one in range(10):
            await worker.client.start(three(f"{one}"), id=f"r{one}")
        for one in {*range(10)} - {3}:
            await sim.closed(f"r{one}")
        blocked = await sim.until("r3", lambda head: head.status is Status.BLOCKED)
        await asyncio.sleep(60)
        return blocked.reason, sum("claimed r3" in line for line in sim.trace)

    assert Simulation(CODE).run(scenario) == ("internal error", 0)


def test_a_terminated_run_is_fenced() -> None:
    """Its worker writes nothing more for it and lets it go."""

    async def scenario(sim: Simulation) -> tuple[Status, list[object]]:
        worker = await sim.start_worker()
        handle = await worker.client.start(step_then_pay(5), id="r")
        await asyncio.sleep(1)
        await handle.terminate("enough")
        await asyncio.sleep(30)
        return (await handle.status()).status, list(worker.worker.runs)

    assert Simulation(CODE).run(scenario) == (Status.TERMINATED, [])
    assert receiver.total == 0


def test_leases_are_renewed_while_nothing_is_written() -> None:
    """A step of three leases' length is run by one worker, once (case 16)."""

    async def scenario(sim: Simulation) -> int:
        await sim.start_worker()
        await sim.start_worker()
        handle = await sim.client.start(step_then_pay(50), id="r")
        await sim.closed("r")
        return await handle.result()

    assert Simulation(CODE, faults=replace(Faults(), latency=0.1)).run(scenario) == 3
    assert bodies["long"] == 1


class Renewals:
    """A store that counts renewals, and threads that tick when told."""

    def __init__(self) -> None:
        self.count = 0
        self.answer: bool | Exception = True
        self.tick: Callable[[], None]

    def renew(self, worker: WorkerId) -> bool:
        """Count."""
        self.count += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def every(self, seconds: float, tick: Callable[[], None], *, name: str) -> Callable[[], None]:
        """Keep the tick."""
        self.tick = tick
        return lambda: None


def lease_of(store: Renewals, clock: SimulatedClock, acting: list[bool], lost: list[int]) -> Lease:
    """Return a lease of 15 s that has begun."""
    lease = Lease(
        store,
        WorkerId("w"),
        timedelta(seconds=15),
        clock,
        lambda: lost.append(1),
        lambda: acting[0],
    )
    lease.begin(store)
    return lease


@pytest.mark.parametrize(("acting", "renewals"), [(False, 0), (True, 1)])
def test_a_dead_loop_loses_its_lease_unless_a_thread_acts(acting: bool, renewals: int) -> None:
    """A loop that stood still for five minutes is held to be dead; but nobody takes over from a thread in mid-effect."""
    store, clock, lost = Renewals(), SimulatedClock(), []
    lease = lease_of(store, clock, [acting], lost)
    lease.loop_turned()
    clock.advance(timedelta(minutes=5, seconds=1))
    store.tick()
    assert store.count == renewals
    lease.loop_turned()
    store.tick()
    assert store.count == renewals + 1
    assert lost == []


def test_the_local_deadline_counts_from_the_sending() -> None:
    """A renewal whose answer took five seconds gives ten."""
    store, clock, lost = Renewals(), SimulatedClock(), []
    lease = lease_of(store, clock, [False], lost)
    clock.advance(10)
    renewed = lease.sending()
    clock.advance(5)
    assert not lease.valid
    renewed(WorkerId("former life"))
    assert not lease.valid
    renewed(WorkerId("w"))
    assert lease.valid
    clock.advance(9.9)
    assert lease.valid
    clock.advance(0.2)
    assert not lease.valid


def test_a_lease_that_the_store_calls_over_is_over() -> None:
    """At once, once, and for good; a store that is away is only asked again."""
    store, clock, lost = Renewals(), SimulatedClock(), []
    lease = lease_of(store, clock, [False], lost)
    store.answer = StoreUnavailableError("away", hint="wait")
    store.tick()
    assert lease.valid
    store.answer = ValueError("a bug")
    store.tick()
    assert lease.valid
    store.answer = False
    store.tick()
    store.tick()
    lease.sending()(WorkerId("w"))
    assert (lease.valid, lost, store.count) == (False, [1], 3)


def test_a_lease_that_winds_down_lasts_as_long_as_a_thread_acts() -> None:
    """Nobody takes over from the thread, and nothing is renewed for ever."""
    store, clock, acting = Renewals(), SimulatedClock(), [True]
    lease = lease_of(store, clock, acting, [])
    lease.wind_down()
    store.tick()
    assert store.count == 1
    acting[0] = False
    store.tick()
    acting[0] = True
    lease.end()
    assert store.count == 1


def test_what_clients_asked_for_outlives_the_life_of_a_worker() -> None:
    """A start and a message that wait in an outage longer than the lease are written by the next life, which forgets the former."""

    async def scenario(sim: Simulation) -> tuple[str, str, list[WorkerId], WorkerId, WorkerId]:
        only = await sim.start_worker()
        retired: list[WorkerId] = []
        retire = only.store.retire

        async def noted(worker: WorkerId) -> None:
            await retire(worker)
            retired.append(worker)

        only.store.retire = noted
        waiting = await only.client.start(wait_for_signal(), id="w")
        former = only.worker.id
        await asyncio.sleep(0.1)
        only.store.faults = Faults(down=True)
        starting = sim.spawn(only.client.start(three("late"), id="n"))
        sending = sim.spawn(only.client.handle("w").send(go, "word"))
        await asyncio.sleep(60)
        only.store.faults = Faults()
        await sending
        handle = await starting
        results = await handle.result(), await waiting.result()
        return *results, retired, former, only.worker.id

    *results, retired, former, present = Simulation(CODE).run(scenario)
    assert results == ["late", "word"]
    assert retired == [former]
    assert present != former
