"""Cases of section A: what others saw happen twice, and what was left in doubt."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
import crash_flow
import pytest
from cases_bench import LocalApp, until
from crash_bench import Bench

import outlast
from outlast.app import SystemRandom, SystemThreads
from outlast.client import Client
from outlast.errors import StoreUnavailableError
from outlast.store.change import RunKey, Status, WorkerId
from outlast.store.memory import MemoryStore
from outlast.store.protocol import Claim, Store
from outlast.store.sqlite.store import open_sqlite
from outlast.testing import (
    Faults,
    Receiver,
    SimulatedClock,
    SimulatedThreads,
    SimulatedWorker,
    Simulation,
    replay_run,
)
from outlast.testing.loop import current_process
from outlast.worker.worker import Worker, WorkerOptions
from outlast.workflows.registry import Registry

SECONDS = timedelta(seconds=1)
bodies: Counter[str] = Counter()
receiver = Receiver()
threads: dict[str, SimulatedThreads] = {}
where: list[str] = []
go = outlast.Signal("go", str)


def process() -> str:
    """Return the name of the simulated process that asks."""
    found = current_process.get()
    assert found is not None
    return found.name.partition("/")[0]


# Bodies that take a while: steps and effects, async and in threads


@outlast.step
async def slow_step(seconds: float) -> str:
    bodies["slow"] += 1
    await asyncio.sleep(seconds)
    return "done"


@outlast.step
def slow_step_in_thread(seconds: float) -> str:
    bodies["slow"] += 1
    threads[process()].busy(seconds)
    return "done"


@outlast.effect(idempotent=True)
async def slow_effect(seconds: float) -> str:
    bodies["slow"] += 1
    await asyncio.sleep(seconds)
    return receiver.apply_once(outlast.idempotency_key(), "done")


@outlast.effect(idempotent=True)
def slow_effect_in_thread(seconds: float) -> str:
    bodies["slow"] += 1
    threads[process()].busy(seconds)
    return receiver.apply_once(outlast.idempotency_key(), "done")


@outlast.effect(start_to_close_timeout=timedelta(seconds=10))
async def slow_unsafe_effect(seconds: float) -> str:
    bodies["slow"] += 1
    await asyncio.sleep(seconds)
    return receiver.apply(outlast.idempotency_key(), "done")


SLOW: dict[str, Any] = {
    "step": slow_step,
    "step in a thread": slow_step_in_thread,
    "effect": slow_effect,
    "effect in a thread": slow_effect_in_thread,
    "unsafe effect": slow_unsafe_effect,
}
of_each_kind = pytest.mark.parametrize("kind", list(SLOW))


@outlast.step
async def after() -> str:
    bodies["after"] += 1
    where.append(process())
    return "after"


@outlast.workflow
async def slow_then_after(kind: str, seconds: float) -> str:
    await SLOW[kind](seconds)
    return await after()


# An agent's turn


@outlast.effect(idempotent=True)
async def charge() -> str:
    bodies["charge"] += 1
    return receiver.apply(outlast.idempotency_key(), "charged")


@outlast.step
async def mark() -> str:
    bodies["mark"] += 1
    return "marked"


@outlast.effect(idempotent=True)
async def notify() -> str:
    bodies["notify"] += 1
    if bodies["notify"] == 1:
        raise OSError("the mail server is away")
    return receiver.apply(outlast.idempotency_key(), "told")


@outlast.workflow
async def turn(at_once: bool) -> list[str]:
    if at_once:
        return list(await asyncio.gather(charge(), mark(), notify()))
    return [await charge(), await mark(), await notify()]


# Payments: the purpose is whom and how much, the call's id is not


@outlast.effect(key_on=("to", "amount"), start_to_close_timeout=SECONDS)
async def pay_unsafe(to: str, amount: int, call_id: str) -> str:
    bodies["pay"] += 1
    receiver.apply(outlast.idempotency_key(), call_id)
    raise TimeoutError("no answer")


@outlast.effect(
    idempotent=True,
    key_on=("to", "amount"),
    retry=outlast.RetryPolicy(maximum_attempts=1),
)
async def pay_idempotent(to: str, amount: int, call_id: str) -> str:
    bodies["pay"] += 1
    receiver.apply_once(outlast.idempotency_key(), call_id)
    if bodies["pay"] == 1:
        raise TimeoutError("no answer")
    return receiver.apply_once(outlast.idempotency_key(), call_id)


@outlast.workflow
async def planned_at_once() -> list[str]:
    return list(await asyncio.gather(pay_unsafe("X", 10, "call-1"), pay_unsafe("X", 10, "call-2")))


@outlast.workflow
async def planned_again() -> str:
    try:
        return await pay_idempotent("X", 10, "call-1")
    except TimeoutError:
        return await pay_idempotent("X", 10, "call-2")


PURPOSE: dict[str, Any] = {
    "same_as": outlast.SameAs("to", "amount"),
    "start_to_close_timeout": SECONDS,
}


@outlast.effect(**PURPOSE)
async def pay_planned(to: str, amount: int, note: str) -> str:
    bodies["pay"] += 1
    receiver.apply(outlast.idempotency_key(), note)
    raise TimeoutError("no answer")


@outlast.workflow
async def planned_with_other_words() -> list[str]:
    """Two calls of one purpose, whose arguments differ in what a model makes up; the first is in doubt when the second comes."""
    first = asyncio.create_task(pay_planned("X", 10, "for the invoice"))
    await outlast.receive(go)
    try:
        await pay_planned("X", 10, "the invoice, second try")
    except outlast.SamePurposeError as error:
        return [str(error), error.first, error.state, await first]
    return []


@outlast.workflow
async def paid_again() -> str:
    await charge()
    try:
        return await charge()
    except outlast.RepeatedEffectError as error:
        return str(error)


# Waiting


@outlast.step
async def count(name: str) -> str:
    bodies[name] += 1
    return name


@outlast.workflow
async def count_once(name: str) -> str:
    return await count(name)


@outlast.workflow
async def wait_between() -> str:
    await count("before")
    word = await outlast.receive(go)
    await count("after")
    return word


@outlast.workflow
async def sleep_long() -> str:
    """Sleep; messages wake it up in memory and mean nothing."""
    async with asyncio.TaskGroup() as group:
        listening = group.create_task(listen())
        await outlast.sleep(1000)
        listening.cancel()
    await count("after")
    return "slept"


async def listen() -> None:
    while True:
        await outlast.receive(go)


@outlast.step(
    start_to_close_timeout=timedelta(seconds=0.2),
    retry=outlast.RetryPolicy(initial_interval=timedelta(seconds=0.1), maximum_attempts=2),
)
def late_step() -> int:
    """Take no notice of the timeout in the first attempt."""
    return _late(outlast.attempt().number, threads[process()])


@outlast.effect(
    idempotent=True,
    start_to_close_timeout=timedelta(seconds=0.2),
    retry=outlast.RetryPolicy(initial_interval=timedelta(seconds=0.1), maximum_attempts=2),
)
def late_effect() -> int:
    return _late(outlast.attempt().number, threads[process()])


def _late(number: int, thread: SimulatedThreads) -> int:
    bodies["late"] += 1
    if number == 1:
        thread.busy(1)
    return number


@outlast.step(
    start_to_close_timeout=timedelta(seconds=0.2),
    retry=outlast.RetryPolicy(initial_interval=timedelta(seconds=0.1), maximum_attempts=2),
)
async def deaf_step() -> int:
    """Take no notice of the cancel in the first attempt."""
    bodies["late"] += 1
    number = outlast.attempt().number
    if number == 1:
        try:
            await asyncio.sleep(7)
        except asyncio.CancelledError:
            await asyncio.sleep(7)
    return number


@outlast.workflow
async def use_late(kind: str) -> int:
    number = await {"step": late_step, "effect": late_effect, "async step": deaf_step}[kind]()
    await outlast.sleep(20)
    return number


@outlast.step
async def double(number: int) -> str:
    bodies["item"] += 1
    return f"{number:04}" * 256


@outlast.workflow
async def map_many(items: int) -> int:
    return sum(len(one) for one in await asyncio.gather(*[double(one) for one in range(items)]))


CODE = [
    *SLOW.values(),
    *(after, slow_then_after, charge, mark, notify, turn),
    *(pay_unsafe, pay_idempotent, planned_at_once, planned_again, paid_again),
    *(pay_planned, planned_with_other_words),
    *(count, wait_between, sleep_long, late_step, late_effect, deaf_step, use_late),
    *(double, map_many),
]


@pytest.fixture(autouse=True)
def _clean() -> None:
    bodies.clear()
    receiver.forget()
    threads.clear()
    where.clear()


async def start_worker(sim: Simulation, name: str = "", **options: Any) -> SimulatedWorker:
    """Start a worker whose threads the bodies can keep busy."""
    worker = await sim.start_worker(name, options=WorkerOptions(library="simulated", **options))
    threads[worker.process.name] = worker.threads
    return worker


async def kinds_of(handle: outlast.RunHandle[Any]) -> list[str]:
    """Return the kind of every entry."""
    return [type(one.entry).__name__ for one in await handle.journal()]


def silence(worker: SimulatedWorker) -> None:
    """Let no heartbeat of a worker through, and no look for work; its commits go on."""

    def renew(_: WorkerId) -> bool:
        raise StoreUnavailableError("no heartbeat", hint="this is a test")

    async def claim(*_: object, **__: object) -> Claim:
        await asyncio.sleep(30)
        raise StoreUnavailableError("no look", hint="this is a test")

    worker.store.renew, worker.store.claim = renew, claim


# 1


@of_each_kind
def test_case_001_a_slow_tool_is_not_started_twice(kind: str) -> None:
    """A body of three leases' length runs once, beside another worker that looks for work."""

    async def scenario(sim: Simulation) -> tuple[str, int]:
        for name in ("first", "second"):
            await start_worker(sim, name, lease=SECONDS)
        handle = await sim.client.start(slow_then_after(kind, 3), id="r")
        head = await sim.closed("r")
        return await handle.result(), head.epoch

    assert Simulation(CODE).run(scenario) == ("after", 1)
    assert bodies == {"slow": 1, "after": 1}


@of_each_kind
def test_case_001_a_worker_without_heartbeat_is_fenced(kind: str) -> None:
    """Another one takes over; what the first one then writes is refused, and the next step is begun by the other alone.

    What an effect returned there that nobody may repeat is told to the run, which need not ask a person.
    """

    async def scenario(sim: Simulation) -> tuple[Status, list[str]]:
        first = await start_worker(sim, "first", lease=SECONDS)
        await sim.client.start(slow_then_after(kind, 3), id="r")
        await sim.until("r", lambda head: head.owner == first.worker.id)
        while not bodies["slow"]:
            await asyncio.sleep(0.01)
        silence(first)
        second = await start_worker(sim, "second", lease=timedelta(seconds=10))
        await sim.until("r", lambda head: head.owner == second.worker.id)
        taken = len(sim.trace)
        head = await sim.until("r", lambda one: one.status.closed or one.reason == "in doubt")
        await asyncio.sleep(60)
        verdicts = [line for line in sim.trace[taken:] if " first" in line and "RunChange=" in line]
        return head.status, verdicts

    status, verdicts = Simulation(CODE).run(scenario)
    assert not [line for line in verdicts if "Applied" in line]
    assert [line for line in verdicts if "Fenced" in line]
    assert (status, where) == (Status.COMPLETED, ["second"])
    if kind == "unsafe effect":
        assert bodies == {"slow": 1, "after": 1}
    assert receiver.total == ("effect" in kind)


# 2


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("kind", ["effect", "unsafe effect"])
@pytest.mark.parametrize("commit", [2, 3], ids=["intent", "outcome"])
def test_case_002_a_crash_at_a_write_is_never_decided_by_luck(
    kind: str, commit: int, moment: str
) -> None:
    """Fifty orders of events each: the effect happened once or is in doubt; entries and position always agree."""

    def run(seed: int) -> tuple[Status, int]:
        bodies.clear()
        receiver.forget()
        faults = Faults(latency=0.05, outlives=0.5)
        sim = Simulation(CODE, seed=seed, faults=faults, longest=timedelta(hours=2))

        async def scenario(sim: Simulation) -> tuple[Status, int]:
            first = await start_worker(sim)
            first.store.at_commit = lambda now, number: (
                first.kill() if (now, number) == (moment, commit) else None
            )
            await sim.client.start(slow_then_after(kind, 0.1), id="r")
            while not first.process.dead:
                await asyncio.sleep(0.01)
            await _position_agrees(sim)
            await start_worker(sim)
            head = await sim.until("r", lambda one: one.status.closed or one.reason == "in doubt")
            await _position_agrees(sim)
            return head.status, receiver.total

        return sim.run(scenario)

    ends = Counter(run(seed) for seed in range(50))
    allowed = {(Status.COMPLETED, 1)}
    if kind == "unsafe effect":
        allowed |= {(Status.BLOCKED, 0), (Status.BLOCKED, 1)}
    assert set(ends) <= allowed


async def _position_agrees(sim: Simulation) -> None:
    image = await sim.store.load(RunKey("default", "r"))
    assert image is not None
    assert image.head.next_seq == len(image.rows)


@pytest.mark.crash
@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("write", ["effect_completed:pay", "effect_completed:order"])
def test_case_002_on_a_file_entries_and_position_are_one_write(
    bench: Bench, write: str, side: str
) -> None:
    """A process killed at the write leaves both or none, and the order is placed once."""
    killed = bench.worker("--at", write, "--side", side)
    bench.start(crash_flow.purchase("x"), "x")
    bench.finish(killed)
    left = bench.left_behind("x")
    assert left is not None
    kinds = [f"{one.row.kind}:{one.row.name}" for one in left.rows]
    assert (write in kinds) == (side == "after")
    assert left.head.next_seq == len(left.rows)
    bench.worker()
    assert len(bench.result("x")) == 2
    assert len(bench.received("order")) == 1
    assert len({one["key"] for one in bench.received("pay")}) == 1


# 4


@pytest.mark.parametrize("killed", [False, True], ids=["retried", "killed before the retry"])
@pytest.mark.parametrize("at_once", [False, True], ids=["in turn", "at once"])
def test_case_004_a_failure_late_in_a_turn_repeats_nothing_before_it(
    at_once: bool, killed: bool
) -> None:
    """Each call of a tool is an operation of its own: charge and mark once, notify as often as it takes."""

    async def scenario(sim: Simulation) -> list[str]:
        first = await start_worker(sim)
        handle = await sim.client.start(turn(at_once), id="r")
        while not (bodies["notify"] and bodies["mark"]):
            await asyncio.sleep(0.01)
        if killed:
            await asyncio.sleep(0.5)
            first.kill()
            await start_worker(sim)
        await sim.closed("r")
        return await handle.result()

    assert Simulation(CODE).run(scenario) == ["charged", "marked", "told"]
    assert bodies == {"charge": 1, "mark": 1, "notify": 2}
    assert set(receiver.changes.values()) == {1}


# 5


def test_case_005_an_equal_payment_waits_for_the_one_in_doubt() -> None:
    """Two calls with ids of their own and one purpose: one is made, both wait for the person who says what happened."""

    async def scenario(sim: Simulation) -> tuple[list[str], list[str]]:
        await start_worker(sim)
        handle = await sim.client.start(planned_at_once(), id="r")
        await sim.until("r", lambda head: head.reason == "in doubt")
        kinds = await kinds_of(handle)
        (operation,) = {
            getattr(one.entry, "operation", "")
            for one in await handle.journal()
            if type(one.entry).__name__ == "EffectInDoubt"
        }
        await handle.resolve(operation, applied="paid", reason="it stands on the statement")
        await sim.closed("r")
        return await handle.result(), kinds

    result, kinds = Simulation(CODE).run(scenario)
    assert result == ["paid", "paid"]
    assert kinds.count("EffectIntended") == 1
    assert (bodies["pay"], receiver.total) == (1, 1)


def test_case_005_a_payment_planned_again_has_the_same_key() -> None:
    """After an unknown end the receiver sees the first key again, and pays once."""

    async def scenario(sim: Simulation) -> str:
        worker = await start_worker(sim)
        return await worker.client.run(planned_again(), id="r")

    assert Simulation(CODE).run(scenario) == "call-1"
    assert (bodies["pay"], receiver.total) == (2, 1)
    assert len(receiver.requests) == 1


def test_case_005_a_payment_that_was_made_is_refused() -> None:
    """The second call is not made, and the error points to the first one."""

    async def scenario(sim: Simulation) -> tuple[str, str]:
        worker = await start_worker(sim)
        handle = await worker.client.start(paid_again(), id="r")
        said = await handle.result()
        (first,) = [
            one.entry.operation
            for one in await handle.journal()
            if type(one.entry).__name__ == "EffectIntended"
        ]
        return said, first

    said, first = Simulation(CODE).run(scenario)
    assert first in said
    assert bodies["charge"] == 1


def test_case_005_a_payment_planned_in_other_words_is_refused() -> None:
    """It would have another key. The error points to the first call, which is in doubt, and says what to do about that."""

    async def scenario(sim: Simulation) -> list[str]:
        await start_worker(sim)
        handle = await sim.client.start(planned_with_other_words(), id="r")
        while "EffectInDoubt" not in await kinds_of(handle):
            await asyncio.sleep(1)
        await handle.send(go, "plan again")
        await asyncio.sleep(10)
        (first,) = [
            one.entry.operation
            for one in await handle.journal()
            if type(one.entry).__name__ == "EffectIntended"
        ]
        await handle.resolve(first, applied="paid", reason="it stands on the statement")
        await sim.closed("r")
        return [first, *await handle.result()]

    first, said, named, state, result = Simulation(CODE).run(scenario)
    assert (named, state, result) == (first, "in doubt", "paid")
    assert f"operation {first} has the same purpose" in said
    assert "outlast runs resolve" in said
    assert (bodies["pay"], receiver.total) == (1, 1)


# 7


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("inside", [True, False], ids=["in the worker's process", "outside"])
def test_case_007_five_starts_of_one_id_are_one_run(workers: int, inside: bool) -> None:
    """Whoever starts: one body, five equal results."""

    async def scenario(sim: Simulation) -> list[str]:
        started = [await start_worker(sim) for _ in range(workers)]
        clients = [started[one % workers].client if inside else sim.client for one in range(5)]
        return await asyncio.gather(
            *[client.run(slow_then_after("step", 1), id="x") for client in clients]
        )

    faults = Faults(latency=0.05)
    for seed in range(10):
        bodies.clear()
        results = Simulation(CODE, seed=seed, faults=faults).run(scenario)
        assert results == ["after"] * 5
        assert bodies == {"slow": 1, "after": 1}


def test_case_007_five_starts_of_one_id_are_one_run_on_a_file(url: str) -> None:
    """The same with two apps on one SQLite file."""
    code = [count, count_once]

    async def main() -> list[str]:
        async with LocalApp(url, code) as one, LocalApp(url, code) as two:
            apps = [one, two, one, two, one]
            return await asyncio.gather(*[app.run(count_once("x"), id="x") for app in apps])

    assert asyncio.run(main()) == ["x"] * 5
    assert bodies == {"x": 1}


# 8


@of_each_kind
def test_case_008_recovery_leaves_alone_what_this_process_holds(kind: str) -> None:
    """A worker that asks the store for what it owns takes up no run that it has in memory; nor does one that starts."""

    async def scenario(sim: Simulation) -> tuple[str, int]:
        first = await start_worker(sim)
        handle = await first.client.start(slow_then_after(kind, 5), id="r")
        while not bodies["slow"]:
            await asyncio.sleep(0.01)
        asked: list[int] = []
        owned = first.store.owned

        async def noted(worker: WorkerId) -> Any:
            heads = await owned(worker)
            asked.append(len(heads))
            return heads

        first.store.owned = noted
        for _ in range(3):
            first.worker._unsure = True
            first.worker.look()
            await asyncio.sleep(1.1)
        await start_worker(sim)
        head = await sim.closed("r")
        assert asked == [1, 1, 1]
        return await handle.result(), head.epoch

    assert Simulation(CODE).run(scenario) == ("after", 1)
    assert bodies == {"slow": 1, "after": 1}


def test_case_008_a_second_app_in_the_process_adopts_no_live_run(url: str) -> None:
    """On one SQLite file: the run that waits for a message stays where it is, however often the other app looks."""

    async def main() -> tuple[str, int]:
        code = [count, wait_between]
        async with LocalApp(url, code, idle=timedelta(hours=1)) as first:
            handle = await first.start(wait_between(), id="r")
            await until(lambda: bodies["before"], "the run waits")
            async with LocalApp(url, code, poll=timedelta(seconds=0.01)) as second:
                looks: list[Claim] = []
                claim = second.store.claim

                async def noted(*request: Any, **named: Any) -> Claim:
                    looks.append(await claim(*request, **named))
                    return looks[-1]

                second.store.claim = noted
                await until(lambda: len(looks) >= 5, "the second app looks")
                await handle.send(go, "go")
                return await handle.result(), (await first.head(RunKey("default", "r"))).epoch

    assert asyncio.run(main()) == ("go", 1)
    assert bodies == {"before": 1, "after": 1}


# 10


@pytest.mark.parametrize("kind", ["step", "async step"])
def test_case_010_the_late_return_of_an_attempt_is_dropped(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A step that takes no notice of its timeout: the second attempt's result stands, the first one's is logged."""

    async def scenario(sim: Simulation) -> tuple[int, int]:
        await start_worker(sim)
        handle = await sim.client.start(use_late(kind), id="r")
        await sim.closed("r")
        return await handle.result(), (await kinds_of(handle)).count("StepCompleted")

    with caplog.at_level(logging.WARNING, "outlast"):
        assert Simulation(CODE).run(scenario) == (2, 1)
    assert bodies["late"] == 2
    late = [one.message for one in caplog.records if "the result is dropped" in one.message]
    assert len(late) == 1
    assert "attempt 1 " in late[0]


def test_case_010_an_effect_that_still_acts_has_no_attempt_beside_it() -> None:
    """A thread cannot be stopped: what an effect returns after its timeout is what happened."""

    async def scenario(sim: Simulation) -> int:
        await start_worker(sim)
        handle = await sim.client.start(use_late("effect"), id="r")
        await sim.closed("r")
        return await handle.result()

    assert Simulation(CODE).run(scenario) == 1
    assert bodies["late"] == 1


# 11


@of_each_kind
def test_case_011_a_store_that_comes_back_finds_the_body_running(kind: str) -> None:
    """Two seconds without the store, while the body runs or as its outcome is due: it is not run again."""

    async def scenario(sim: Simulation, seconds: float) -> str:
        worker = await start_worker(sim, lease=timedelta(seconds=6))
        handle = await sim.client.start(slow_then_after(kind, seconds), id="r")
        while not bodies["slow"]:
            await asyncio.sleep(0.01)
        worker.store.faults = Faults(down=True)
        await asyncio.sleep(2)
        worker.store.faults = Faults()
        await sim.closed("r")
        return await handle.result()

    for seconds in (1.0, 4.0):
        bodies.clear()
        result = Simulation(CODE).run(lambda sim, seconds=seconds: scenario(sim, seconds))
        assert result == "after"
        assert bodies == {"slow": 1, "after": 1}


def test_case_011_a_locked_file_that_is_free_again_finds_the_body_running(
    file_url: str, tmp_path: Path
) -> None:
    """Another program holds the SQLite file while a step ends: its outcome is written afterwards, and it runs once."""
    released = threading.Event()

    @outlast.step
    def meanwhile() -> str:
        bodies["meanwhile"] += 1
        return "done"

    @outlast.workflow
    async def one_step() -> str:
        return await meanwhile()

    async def main() -> str:
        async with LocalApp(file_url, [meanwhile, one_step]) as app:
            commit = app.store.commit
            blocked = asyncio.Event()

            async def noted(changes: Any) -> Any:
                if bodies["meanwhile"] and not released.is_set():
                    blocked.set()
                return await commit(changes)

            app.store.commit = noted
            other = apsw.Connection(str(tmp_path / "cases.db"))
            handle = await app.start(one_step(), id="r")
            other.set_busy_timeout(30_000)
            await asyncio.to_thread(other.execute, "BEGIN IMMEDIATE")
            await blocked.wait()
            released.set()
            other.execute("ROLLBACK")
            other.close()
            return await handle.result()

    assert asyncio.run(main()) == "done"
    assert bodies == {"meanwhile": 1}


# 13


def test_case_013_ten_evictions_around_a_timer_continue_once() -> None:
    """A message wakes the parked run, it is parked again, ten times; then its timer fires once and the run goes on once."""

    async def scenario(sim: Simulation) -> tuple[float, int, list[str]]:
        await start_worker(sim, idle=timedelta(seconds=0.2))
        await start_worker(sim, idle=timedelta(seconds=0.2))
        since = sim.clock.monotonic()
        handle = await sim.client.start(sleep_long(), id="r")
        for number in range(10):
            await sim.until("r", lambda head: head.status is Status.WAITING and not head.mail)
            await handle.send(go, f"{number}")
            await sim.until("r", lambda head: head.status is not Status.WAITING or head.mail)
        await sim.closed("r")
        kinds = await kinds_of(handle)
        claims = sum("claimed" in line for line in sim.trace)
        assert await handle.result() == "slept"
        return sim.clock.monotonic() - since, claims, kinds

    seconds, claims, kinds = Simulation(CODE).run(scenario)
    assert 1000 <= seconds < 1002
    assert claims >= 10
    assert kinds.count("TimerFired") == 1
    assert bodies == {"after": 1}


# 14


@pytest.mark.without_always_replay("it is replayed at its end: 500 turns")
def test_case_014_a_large_map_that_is_replayed_ends_once() -> None:
    """500 results of 1 KB, the process dies before the end is written, or after: one terminal entry, nothing runs again."""
    commits: list[int] = []

    def run(commit: int, moment: str) -> tuple[int, list[str], int]:
        bodies.clear()

        async def scenario(sim: Simulation) -> tuple[int, list[str], int]:
            first = await start_worker(sim)
            first.store.at_commit = lambda now, number: (
                first.kill() if (now, number) == (moment, commit) else None
            )
            await sim.client.start(map_many(500), id="r")
            await sim.until("r", lambda head: head.status.closed or first.process.dead)
            await start_worker(sim)
            head = await sim.closed("r")
            handle = await sim.client.start(map_many(500), id="r")
            await asyncio.sleep(30)
            commits.append(first.store.commits)
            assert await replay_run(sim.store, Registry(CODE), sim.clock, head.run) is not None
            kinds = await kinds_of(handle)
            return await handle.result(), kinds, head.epoch

        return Simulation(CODE).run(scenario)

    result, kinds, epoch = run(0, "")
    assert (result, kinds.count("Completed"), epoch) == (500 * 1024, 1, 1)
    last = commits[-1]
    for moment in ("before", "after"):
        result, kinds, epoch = run(last, moment)
        assert (result, kinds.count("Completed"), kinds[-1]) == (500 * 1024, 1, "Completed")
        assert kinds.count("StepCompleted") == bodies["item"] == 500
        assert epoch == (2 if moment == "before" else 1)


# 16


class NotedStore:
    """A store that says when a lease was renewed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.renewed = threading.Semaphore(0)

    def __getattr__(self, name: str) -> Any:
        """Hand everything else through."""
        return getattr(self._store, name)

    def renew(self, worker: WorkerId) -> bool:
        """Renew, and say so."""
        held = self._store.renew(worker)
        self.renewed.release()
        return held


blocking: list[Callable[[], None]] = []


@outlast.step
async def block_the_loop() -> str:
    bodies["block"] += 1
    blocking[-1]()
    return "done"


@outlast.workflow
async def block_once() -> str:
    return await block_the_loop()


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_case_016_a_claim_is_renewed_while_a_body_blocks_the_loop(
    kind: str, tmp_path: Path
) -> None:
    """Ten leases long, in store time: the thread beside the event loop renews, and a second worker finds nothing to take."""
    clock = SimulatedClock()
    options = WorkerOptions(library="0", lease=timedelta(seconds=0.3), poll=timedelta(seconds=0.01))

    def block() -> None:
        for _ in range(30):
            assert store.renewed.acquire(timeout=30), "nobody renews"
            clock.advance(0.1)

    async def main() -> tuple[int, int]:
        nonlocal store
        inner: Store = (
            MemoryStore(clock)
            if kind == "memory"
            else await open_sqlite(tmp_path / "s.db", clock=clock)
        )
        store = NotedStore(inner)
        workers = [
            Worker(
                one,
                Registry([block_the_loop, block_once]),
                clock=clock,
                random=SystemRandom(),
                threads=SystemThreads(),
                options=options,
            )
            for one in (store, inner)
        ]
        client = Client(inner, random=SystemRandom())
        await workers[0].start()
        handle = await client.start(block_once(), id="r")
        workers[0].look()
        await until(lambda: bodies["block"], "the body has run")
        head = await client.head(handle._run)
        claim = await inner.claim(WorkerId("other"), frozenset({"block_once"}), 9)
        await handle.result()
        await workers[0].stop()
        await inner.close()
        return len(claim.runs), head.epoch

    store: Any = None
    blocking.append(block)
    assert asyncio.run(main()) == (0, 1)
    assert bodies == {"block": 1}
