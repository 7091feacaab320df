"""Cases of section B: leases, dead and frozen workers, recovery."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import crash_flow
import msgspec
import pytest
from crash_bench import Bench, check_journal

import outlast
from outlast.errors import StoreUnavailableError
from outlast.store.change import RunKey, Status
from outlast.store.protocol import RunImage
from outlast.testing import Faults, Receiver, SimulatedThreads, SimulatedWorker, Simulation
from outlast.testing.loop import current_process
from outlast.worker.pilot import Pilot
from outlast.worker.worker import WorkerOptions

bodies: Counter[str] = Counter()
attempts: list[int] = []
receiver = Receiver()
threads: dict[str, SimulatedThreads] = {}
deadly: list[str] = []
here: list[SimulatedWorker] = []
go = outlast.Signal("go", str)

ONCE = outlast.RetryPolicy(maximum_attempts=1)
TWICE = outlast.RetryPolicy(maximum_attempts=2)


def process() -> str:
    """Return the name of the simulated process that asks."""
    found = current_process.get()
    assert found is not None
    return found.name.partition("/")[0]


# Steps and effects, async and in threads, that take a while


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
    return "done"


@outlast.effect(start_to_close_timeout=timedelta(seconds=10))
def slow_effect_in_thread(seconds: float) -> str:
    bodies["slow"] += 1
    threads[process()].busy(seconds)
    return "done"


SLOW: dict[str, Any] = {
    "step": slow_step,
    "step in a thread": slow_step_in_thread,
    "effect": slow_effect,
    "effect in a thread": slow_effect_in_thread,
}
of_each_kind = pytest.mark.parametrize("kind", list(SLOW))


@outlast.step
async def count(name: str) -> str:
    bodies[name] += 1
    return name


@outlast.workflow
async def slow_then_count(kind: str, seconds: float) -> str:
    await SLOW[kind](seconds)
    return await count("after")


@outlast.workflow
async def three_counts(name: str) -> str:
    for number in (1, 2, 3):
        await count(f"{name}-{number}")
    return name


@outlast.workflow
async def wait_then_count(name: str) -> str:
    await outlast.receive(go)
    return await count(name)


# Runs of which one is poisoned


@outlast.step
async def maybe_deadly(name: str) -> str:
    if name in deadly:
        here[-1].kill()
        await asyncio.sleep(1)
    return await count.plain(name)


@outlast.step
async def foreign(name: str) -> str:
    return name


@outlast.workflow
async def trail(name: str) -> str:
    await count(f"{name}-begins")
    await outlast.receive(go)
    return await maybe_deadly(name)


@outlast.workflow(name="trail_of_old_code")
async def old_trail(name: str) -> str:
    await count(f"{name}-begins")
    await outlast.receive(go)
    return await maybe_deadly(name)


@outlast.workflow(name="trail_of_old_code")
async def new_trail(name: str) -> str:
    await foreign(f"{name}-begins")
    await outlast.receive(go)
    return await maybe_deadly(name)


# Attempts that fail


def fail_once() -> int:
    number = outlast.attempt().number
    attempts.append(number)
    if number == 1:
        raise OSError("attempt 1 fails")
    return number


@outlast.step
async def flaky_step() -> int:
    return fail_once()


@outlast.step
def flaky_step_in_thread() -> int:
    return fail_once()


@outlast.effect(idempotent=True)
async def flaky_effect() -> int:
    return fail_once()


def not_there() -> outlast.NotApplied:
    return outlast.NotApplied()


@outlast.effect(probe=not_there, start_to_close_timeout=timedelta(seconds=1))
async def flaky_probed_effect() -> int:
    return fail_once()


FLAKY: dict[str, Any] = {
    "step": flaky_step,
    "step in a thread": flaky_step_in_thread,
    "idempotent effect": flaky_effect,
    "probed effect": flaky_probed_effect,
}


@outlast.workflow
async def use_flaky(kind: str) -> int:
    return await FLAKY[kind]()


# What a person has to look at


@outlast.step(retry=TWICE)
async def hopeless() -> str:
    bodies["hopeless"] += 1
    raise OSError("down")


@outlast.effect(start_to_close_timeout=timedelta(seconds=1))
async def doubtful() -> str:
    bodies["doubtful"] += 1
    raise OSError("no answer")


@outlast.workflow
async def gives_up() -> str:
    return await hopeless()


@outlast.workflow
async def doubts() -> str:
    return await doubtful()


CODE = [
    *SLOW.values(),
    *FLAKY.values(),
    *(count, slow_then_count, three_counts, wait_then_count, maybe_deadly, trail, old_trail),
    *(use_flaky, hopeless, doubtful, gives_up, doubts),
]


@pytest.fixture(autouse=True)
def _clean() -> None:
    receiver.forget()
    bodies.clear()
    threads.clear()
    for one in (attempts, deadly, here):
        one.clear()


async def start_worker(sim: Simulation, name: str = "", **options: Any) -> SimulatedWorker:
    """Start a worker whose threads the bodies can keep busy."""
    definitions = options.pop("definitions", None)
    worker = await sim.start_worker(
        name, definitions=definitions, options=WorkerOptions(library="simulated", **options)
    )
    threads[worker.process.name] = worker.threads
    here.append(worker)
    return worker


# 17


@of_each_kind
def test_case_017_lost_notifications_move_no_run(kind: str) -> None:
    """No hint arrives for many leases while leases are renewed: the run stays, and messages arrive by polling."""

    async def scenario(sim: Simulation) -> tuple[str, str, int]:
        for _ in range(2):
            await start_worker(sim, lease=timedelta(seconds=1))
        slow = await sim.client.start(slow_then_count(kind, 5), id="slow")
        waits = await sim.client.start(wait_then_count("told"), id="waits")
        await asyncio.sleep(3)
        await waits.send(go, "word")
        await sim.closed("waits")
        head = await sim.closed("slow")
        return await slow.result(), await waits.result(), head.epoch

    deaf = Faults(lost_hint=1.0)
    assert Simulation(CODE, faults=deaf).run(scenario) == ("after", "told", 1)
    assert bodies == {"slow": 1, "after": 1, "told": 1}


# 19


@of_each_kind
def test_case_019_the_heartbeat_outlives_the_last_body_of_a_stop(kind: str) -> None:
    """A stop with two seconds of grace, a body of one second, a lease of 0.3 s: the body runs once."""

    async def scenario(sim: Simulation) -> tuple[str, int]:
        first = await start_worker(sim, lease=timedelta(seconds=0.3))
        handle = await sim.client.start(slow_then_count(kind, 1), id="r")
        while not bodies["slow"]:
            await asyncio.sleep(0.01)
        await start_worker(sim, lease=timedelta(seconds=0.3))
        await first.stop(timedelta(seconds=2))
        head = await sim.closed("r")
        return await handle.result(), head.lapses

    assert Simulation(CODE).run(scenario) == ("after", 0)
    assert bodies == {"slow": 1, "after": 1}


# 20


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("commit", range(1, 6))
def test_case_020_a_run_cut_off_between_steps_frees_its_place(commit: int, moment: str) -> None:
    """A worker of one run at a time dies at any of its writes: the next one ends that run and the one behind it."""

    async def scenario(sim: Simulation) -> list[str]:
        first = await start_worker(sim, runs=1)
        first.store.at_commit = lambda now, number: (
            first.kill() if (now, number) == (moment, commit) else None
        )
        handles = [await sim.client.start(three_counts(name), id=name) for name in "ab"]
        while not first.process.dead:
            await asyncio.sleep(0.01)
        await start_worker(sim, runs=1)
        for name in "ab":
            await sim.closed(name)
        return [await handle.result() for handle in handles]

    assert Simulation(CODE).run(scenario) == ["a", "b"]
    again = [name for name, times in bodies.items() if times > 1]
    assert len(again) <= 1
    assert len(bodies) == 6


@pytest.mark.crash
def test_case_020_a_process_killed_between_steps_frees_its_place(bench: Bench) -> None:
    """The same with processes on one SQLite file that hold one run at a time."""
    _kill_between_steps(bench)


@pytest.mark.crash
def test_case_020_so_does_one_on_a_server(server_bench: Bench) -> None:
    """On PostgreSQL its lease has to be over first, and a process that takes over waits for that long itself."""
    _kill_between_steps(server_bench, "--lease", "2")


def _kill_between_steps(bench: Bench, *options: str) -> None:
    at = "--at", "effect_completed:pay", "--side", "after"
    killed = bench.worker("--runs", "1", *at, *options)
    for name in "xy":
        bench.start(crash_flow.purchase(name), name)
    bench.finish(killed)
    # One is with the dead worker, in the middle of its steps, and the other one waits.
    assert {bench.detail(name).status.status for name in "xy"} == {Status.RUNNING, Status.READY}
    bench.worker("--runs", "1", *options)
    for name in "xy":
        assert len(bench.result(name)) == 2
        check_journal(bench.rows(name))
        assert len(bench.received("pay", name)) == len(bench.received("order", name)) == 1


# 22


@pytest.mark.crash
def test_case_022_two_processes_share_two_hundred_runs(bench: Bench) -> None:
    """On one SQLite file, each with room for half of them: 200 executions, and no word of a locked file."""
    _share_two_hundred(bench)


@pytest.mark.crash
def test_case_022_two_processes_share_two_hundred_runs_on_a_server(server_bench: Bench) -> None:
    """The same on PostgreSQL, where both claim at once."""
    _share_two_hundred(server_bench)


def _share_two_hundred(bench: Bench) -> None:
    labels = [f"x{number}" for number in range(200)]

    async def start_all(client: outlast.Client) -> None:
        for label in labels:
            await client.start(crash_flow.patient(label, "step", 1, 0), id=label)

    async def results(client: outlast.Client) -> list[int]:
        return [await client.handle(label).result() for label in labels]

    bench.ask(start_all)
    workers = [bench.worker("--runs", "10") for _ in range(2)]
    assert bench.ask(results) == [1] * len(labels)
    assert Counter(one["label"] for one in bench.received("fail")) == dict.fromkeys(labels, 1)
    for worker in workers:
        assert set(bench.verdicts(worker.pid)) <= {"Applied"}
    for word in ("locked", "busy", "deadlock", "Traceback", "ERROR", "WARNING"):
        assert word not in bench.log.read_text()


# 23


def _lapses(worker: SimulatedWorker, _: pytest.MonkeyPatch) -> None:
    deadly.append("r3")


def _damaged(worker: SimulatedWorker, _: pytest.MonkeyPatch) -> None:
    load = worker.store.load

    async def spoiled(run: RunKey) -> RunImage | None:
        image = await load(run)
        if image is None or run.run_id != "r3":
            return image
        last = image.rows[-1]
        row = msgspec.structs.replace(last.row, body=b'{"type":"step_compl')
        return msgspec.structs.replace(
            image, rows=(*image.rows[:-1], msgspec.structs.replace(last, row=row))
        )

    worker.store.load = spoiled


def _broken(worker: SimulatedWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    carry_out = Pilot._carry_out

    def breaking(self: Pilot) -> None:
        if self.run_key.run_id == "r3":
            raise RuntimeError("a bug of ours")
        carry_out(self)

    monkeypatch.setattr(Pilot, "_carry_out", breaking)


def _nothing(worker: SimulatedWorker, _: pytest.MonkeyPatch) -> None:
    """The run's workflow itself is what differs."""


POISONS: dict[str, tuple[Callable[[SimulatedWorker, pytest.MonkeyPatch], None], Any]] = {
    "poison": (_lapses, trail),
    "undecodable": (_damaged, trail),
    "internal error": (_broken, trail),
    "non-determinism": (_nothing, old_trail),
}


@pytest.mark.parametrize("reason", list(POISONS))
def test_case_023_one_poisoned_run_holds_up_no_other(
    reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten runs to recover, number three past its limit, damaged, of other code, or in the way of a bug: nine recover."""
    poison, workflow = POISONS[reason]
    others = [f"r{number}" for number in range(10) if number != 3]
    today = [*(one for one in CODE if one is not old_trail), new_trail, foreign]

    async def scenario(sim: Simulation) -> tuple[str, list[str]]:
        first = await start_worker(sim)
        handles = {name: await sim.client.start(trail(name), id=name) for name in others}
        third = await sim.client.start(workflow("r3"), id="r3")
        while len(bodies) < 10:
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.1)
        first.kill()
        for handle in (*handles.values(), third):
            await handle.send(go, "go")

        async def next_worker() -> None:
            worker = await start_worker(sim, lease=timedelta(seconds=3), definitions=today)
            poison(worker, monkeypatch)

        await next_worker()
        while (head := await sim.client.head(third._run)).status is not Status.BLOCKED:
            if here[-1].process.dead:
                await next_worker()
            await asyncio.sleep(0.1)
        return head.reason, [await handle.result() for handle in handles.values()]

    assert Simulation(CODE).run(scenario) == (reason, others)
    # Who shares a process with what kills it may be cut off with it; steps do not mind.
    again = [name for name in others if bodies[name] != 1]
    assert not again or reason == "poison"


# 25


@pytest.mark.parametrize("kind", list(FLAKY))
def test_case_025_a_kill_between_attempts_goes_on_with_the_second(kind: str) -> None:
    """The recorded failure of attempt 1 is no outcome: the next worker makes attempt 2, and its result stands."""

    async def scenario(sim: Simulation) -> tuple[int, list[str]]:
        first = await start_worker(sim)
        handle = await sim.client.start(use_flaky(kind), id="r")
        while not (image := await sim.store.load(RunKey("default", "r"))) or not any(
            one.failures for one in image.operations
        ):
            await asyncio.sleep(0.01)
        first.kill()
        assert attempts == [1]
        await start_worker(sim)
        await sim.closed("r")
        return await handle.result(), [type(one.entry).__name__ for one in await handle.journal()]

    result, kinds = Simulation(CODE).run(scenario)
    assert (result, attempts) == (2, [1, 2])
    assert not [one for one in kinds if one.endswith("Failed")]


@pytest.mark.parametrize("kind", list(FLAKY))
def test_case_025_a_failure_that_was_not_recorded_never_was(kind: str) -> None:
    """A kill as the failure of attempt 1 is to be written: attempt 1 is made again, then attempt 2."""

    async def scenario(sim: Simulation) -> int:
        first = await start_worker(sim)
        first.store.at_commit = lambda moment, _: first.kill() if attempts else None
        handle = await sim.client.start(use_flaky(kind), id="r")
        while not first.process.dead:
            await asyncio.sleep(0.01)
        await start_worker(sim)
        await sim.closed("r")
        return await handle.result()

    assert Simulation(CODE).run(scenario) == 2
    assert attempts == [1, 1, 2]


# 26


@pytest.mark.parametrize("verb", ["claim", "load", "mail", "commit"])
def test_case_026_recovery_is_tried_until_it_has_run(verb: str) -> None:
    """The first three times that the store is asked, it fails: every run of the dead worker is recovered all the same."""
    failed: list[str] = []

    async def scenario(sim: Simulation) -> list[str]:
        first = await start_worker(sim)
        names = [f"r{number}" for number in range(5)]
        handles = [await sim.client.start(trail(name), id=name) for name in names]
        while len(bodies) < 5:
            await asyncio.sleep(0.1)
        first.kill()
        for handle in handles:
            await handle.send(go, "go")
        second = await start_worker(sim)
        ask = getattr(second.store, verb)

        async def failing(*request: Any, **named: Any) -> Any:
            if len(failed) < 3:
                failed.append(verb)
                raise StoreUnavailableError("not now", hint="this is a test")
            return await ask(*request, **named)

        setattr(second.store, verb, failing)
        for name in names:
            await sim.closed(name)
        return [await handle.result() for handle in handles]

    assert Simulation(CODE).run(scenario) == [f"r{number}" for number in range(5)]
    assert failed == [verb] * 3
    assert all(bodies[f"r{number}"] == 1 for number in range(5))


def test_case_026_a_worker_that_cannot_come_back_at_once_comes_back() -> None:
    """Frozen past its lease, and told three times that the store is away as it registers anew: it recovers its runs."""
    failed: list[str] = []

    async def scenario(sim: Simulation) -> str:
        only = await start_worker(sim)
        handle = await sim.client.start(slow_then_count("step", 40), id="r")
        await asyncio.sleep(1)
        register = only.store.register

        async def failing(row: Any) -> None:
            if len(failed) < 3:
                failed.append("register")
                raise StoreUnavailableError("not now", hint="this is a test")
            await register(row)

        only.store.register = failing
        only.freeze()
        await asyncio.sleep(20)
        only.thaw()
        await sim.closed("r")
        return await handle.result()

    assert Simulation(CODE).run(scenario) == "after"
    assert len(failed) == 3


# 28


def test_case_028_a_client_looks_and_ends_before_anything_executes() -> None:
    """Without a worker nothing runs: runs are listed and terminated; a worker of some workflows releases these alone."""

    async def scenario(sim: Simulation) -> tuple[int, list[str], list[Status]]:
        first = await start_worker(sim)
        for name in ("a", "b", "c"):
            await sim.client.start(trail(name), id=name)
        await sim.client.start(wait_then_count("other"), id="other")
        while len(bodies) < 3:
            await asyncio.sleep(0.1)
        first.kill()
        for name in ("a", "b", "c", "other"):
            await sim.client.handle(name).send(go, "go")
        await asyncio.sleep(60)
        listed = sorted(one.run_id for one in await sim.client.runs.list())
        await sim.client.handle("b").terminate("not this one")
        executed = sum(bodies.values())
        await start_worker(sim, definitions=[count, maybe_deadly, trail])
        for name in ("a", "c"):
            await sim.closed(name)
        await asyncio.sleep(60)
        statuses = [(await sim.client.handle(name).status()).status for name in ("b", "other")]
        return executed, listed, statuses

    executed, listed, statuses = Simulation(CODE).run(scenario)
    assert executed == 3
    assert listed == ["a", "b", "c", "other"]
    assert statuses == [Status.TERMINATED, Status.READY]
    assert (bodies["a"], bodies["b"], bodies["c"], bodies["other"]) == (1, 0, 1, 0)


def test_case_028_a_paused_worker_moves_what_is_released() -> None:
    """A worker that is started paused executes nothing; then what is named, then a workflow's runs, then everything."""

    async def scenario(sim: Simulation) -> list[set[str]]:
        told: list[set[str]] = []
        for name in ("a", "b"):
            await sim.client.start(trail(name), id=name)
            await sim.client.handle(name).send(go, "go")
        await sim.client.start(wait_then_count("other"), id="other")
        await sim.client.handle("other").send(go, "go")
        worker = await start_worker(sim, paused=True)
        born = await worker.client.start(wait_then_count("born"), id="born")
        listed = [one.row.paused for one in await sim.store.workers()]
        assert (listed, worker.worker.paused) == ([True], True)
        await asyncio.sleep(60)
        told.append(set(bodies))
        assert await sim.client.release("b", reason="looked at") == 1
        await sim.closed("b")
        await asyncio.sleep(60)
        told.append(set(bodies))
        assert await sim.client.release(workflow="wait_then_count", reason="these too") == 2
        await born.send(go, "go")
        await sim.closed("other")
        await sim.closed("born")
        await asyncio.sleep(60)
        told.append(set(bodies))
        await sim.client.release(everything=True, reason="all is well")
        await sim.closed("a")
        assert [one.row.paused for one in await sim.store.workers()] == [False]
        return told

    assert Simulation(CODE).run(scenario) == [
        set(),
        {"b-begins", "b"},
        {"b-begins", "b", "other", "born"},
    ]
    assert {one: bodies[one] for one in ("a", "b", "other", "born")} == dict.fromkeys(
        ("a", "b", "other", "born"), 1
    )


# 29


@pytest.mark.parametrize(
    ("workflow", "level", "words"),
    [
        (gives_up, logging.WARNING, "step hopeless (r:1) failed for good"),
        (gives_up, logging.INFO, "run r: failed: OSError: down"),
        (doubts, logging.WARNING, "`outlast runs resolve r --operation r:1 --reason TEXT`"),
    ],
    ids=["retries exhausted", "run failed", "in doubt"],
)
@pytest.mark.parametrize("restarted", [False, True])
def test_case_029_what_needs_a_person_is_said_once(
    workflow: Any, level: int, words: str, restarted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says it at the transition, with what to type, and not again when another worker comes."""

    async def scenario(sim: Simulation) -> None:
        first = await start_worker(sim)
        await sim.client.start(workflow(), id="r")
        await sim.until("r", lambda head: head.status.closed or head.status is Status.BLOCKED)
        await asyncio.sleep(5)
        if restarted:
            first.kill()
            await start_worker(sim)
        await asyncio.sleep(120)

    with caplog.at_level(logging.INFO, "outlast"):
        Simulation(CODE).run(scenario)
    said = [one for one in caplog.records if words in one.getMessage()]
    assert [one.levelno for one in said] == [level]


@pytest.mark.parametrize("restarted", [False, True])
def test_case_029_the_app_is_told_once(restarted: bool) -> None:
    """A run that goes no further without somebody is told to the app at the transition, and not again after a restart."""
    told: list[outlast.Parked] = []

    async def scenario(sim: Simulation) -> None:
        first = await sim.start_worker(parked=told.append)
        await sim.client.start(doubts(), id="r")
        await sim.until("r", lambda head: head.status is Status.BLOCKED)
        await asyncio.sleep(5)
        if restarted:
            first.kill()
            await sim.start_worker(parked=told.append)
        # It is taken up once more, and rests for the same reason.
        await sim.client.handle("r").send(go, "is anybody there?")
        await asyncio.sleep(120)

    Simulation(CODE).run(scenario)
    (one,) = told
    assert (one.tenant, one.run_id, one.workflow, one.reason) == (
        "default",
        "r",
        "doubts",
        "in doubt",
    )
    assert one.why
