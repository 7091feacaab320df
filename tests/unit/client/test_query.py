"""Asking a run from outside: it is replayed where it is asked, nothing is written, and there is an answer in time or an error."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

import outlast
from outlast.app import SystemClock
from outlast.client import Client
from outlast.client import query as query_module
from outlast.client.replica import Replicas
from outlast.errors import DefinitionError, QueryError
from outlast.journal.entry import Started, StepCompleted, Taken, from_row, to_row
from outlast.replay.eviction import _pinned
from outlast.store.change import RunKey, StartRun, Status
from outlast.store.memory import MemoryStore
from outlast.testing import Faults, FaultyStore, SeededRandom, Simulation
from outlast.workflows import registry
from outlast.workflows.definition import Workflow
from outlast.workflows.registry import Registry

seen = outlast.Query("seen", None, list[int])
doubled = outlast.Query("doubled", int, int)
fails = outlast.Query("fails", None, int)
acts = outlast.Query("acts", None, int)
slow = outlast.Query("slow", float, int)
place = outlast.Query("place", None, tuple[int, int])
go = outlast.Signal("go", int)

LONG = timedelta(seconds=60)
"""On the real clock of a busy machine."""

left: Counter[str] = Counter()
"""How often the code of a run was brought to an end in memory."""


@outlast.step
async def fetch_asked(n: int) -> int:
    return n


def dawdle(seconds: float) -> int:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass
    return 1


def misbehave(_: None) -> int:
    outlast.publish("a", 1)
    return 1


@outlast.workflow
async def asked(steps: int, ends: str = "") -> int:
    """Steps, then messages until it is told to end."""
    numbers: list[int] = []
    outlast.on_query(seen, lambda _: numbers)
    outlast.on_query(doubled, lambda n: 2 * n + len(numbers))
    outlast.on_query(fails, lambda _: 1 // 0)
    outlast.on_query(acts, misbehave)
    outlast.on_query(slow, dawdle)
    outlast.on_query(place, lambda _: (len(numbers), outlast.info().entries))
    try:
        for n in range(steps):
            numbers.append(await fetch_asked(n))
        if ends == "raises":
            raise ValueError("as was said")
        while ends != "returns":
            numbers.append(await outlast.receive(go))
    finally:
        left[outlast.info().run_id] += 1
    return len(numbers)


CODE = [fetch_asked, asked]


class Noting(FaultyStore):
    """A store that notes what is read of journals: from where on, and how many rows."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner, random.Random(0))
        self.reads: list[tuple[int, int]] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def journal(self, run: RunKey, *, generation: int | None = None, after: int = -1) -> Any:
        """Read and note, once the gate is open."""
        await self.gate.wait()
        rows = await super().journal(run, generation=generation, after=after)
        self.reads.append((after, len(rows)))
        return rows


def simulated(scenario: Callable[[Simulation], Awaitable[Any]]) -> Any:
    """Run a scenario with the code above."""
    return Simulation(CODE).run(scenario)


async def until_parked(sim: Simulation, run: str, entries: int) -> None:
    """Wait until the run has so many entries and has left memory."""
    await sim.until(run, lambda head: head.next_seq == entries and head.owner is None)


def rows(steps: int) -> tuple[Any, ...]:
    """Return the journal of a run with so many steps behind it."""
    entries: list[Any] = [
        Started("asked", Raw(b'{"steps":%d}' % steps), b"0123456789abcdef", "r"),
        Taken("3.11", "0"),
    ]
    entries += [StepCompleted(f"r:{n + 1}", "fetch_asked", Raw(b"%d" % n)) for n in range(steps)]
    return tuple(to_row(entry, seq, seq) for seq, entry in enumerate(entries))


def in_memory(entries: tuple[Any, ...], test: Callable[[Client, Noting], Awaitable[Any]]) -> Any:
    """Ask, on the real clock, a run that has this journal, and that no worker has ever seen."""

    async def main() -> Any:
        store = Noting(MemoryStore(SystemClock()))
        client = Client(store, random=SeededRandom("s"), registry=Registry(CODE))
        await store.commit([StartRun(RunKey("default", "r"), "asked", "f", entries)])
        try:
            return await test(client, store)
        finally:
            await client.replicas.close()

    return asyncio.run(main())


async def refusal(asking: Awaitable[Any]) -> QueryError:
    """Return why there was no answer."""
    with pytest.raises(QueryError) as caught:
        await asking
    return caught.value


# Who can be asked


def test_no_worker_is_needed_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With nothing but the code and the file, which is the same to the byte afterwards."""
    monkeypatch.setattr(registry, "_declared", CODE)
    file = tmp_path / "s.db"

    async def begin() -> None:
        idle = timedelta(milliseconds=1)
        async with outlast.open(f"sqlite:///{file}", workflows=[asked], idle=idle) as app:
            handle = await app.start(asked(3), id="r")
            while (await handle.status()).status is not Status.WAITING:
                await asyncio.sleep(0.01)

    async def ask() -> tuple[Any, ...]:
        async with outlast.connect(f"sqlite:///{file}") as client:
            client._store = store = Noting(client.store)
            assert not any(one.live for one in await store.workers())
            before = content()
            handle = client.handle("r")
            answers = [await handle.query(seen, timeout=LONG)]
            answers.append(await handle.query(doubled, 20, timeout=LONG))
            error = await refusal(handle.query("no such query", timeout=LONG))
            assert content() == before
            return answers, error.reason, store.commits

    def content() -> list[bytes]:
        return [path.read_bytes() for path in (file, file.with_name("s.db-wal")) if path.exists()]

    asyncio.run(begin())
    assert asyncio.run(ask()) == ([[0, 1, 2], 43], "unknown", 0)


@pytest.mark.parametrize("ends", ["returns", "raises", "cancel", "terminate"])
def test_a_closed_run_answers_from_its_end(ends: str) -> None:
    """However it came to its end."""

    async def scenario(sim: Simulation) -> tuple[Status, list[int], list[int]]:
        await sim.start_worker()
        handle = await sim.client.start(asked(2, ends), id="r")
        if ends in ("cancel", "terminate"):
            await until_parked(sim, "r", 4)
            await getattr(handle, ends)("enough")
        head = await sim.closed("r")
        return head.status, await handle.query(seen), await handle.query("seen")

    status, answer, untyped = simulated(scenario)
    assert status.closed
    assert answer == untyped == [0, 1]


def test_a_run_that_nobody_takes_up_in_time_has_no_answer() -> None:
    """And says so; nor has one that was ended before it began, which is told at once, nor one that is not there."""

    async def scenario(sim: Simulation) -> tuple[QueryError, float, QueryError, float]:
        handle = await sim.client.start(asked(1), id="r")
        with pytest.raises(outlast.RunNotFoundError):
            await sim.client.handle("nobody").query(seen)
        began = sim.loop.time()
        error = await refusal(handle.query(seen))
        waited = sim.loop.time() - began
        await handle.terminate()
        return error, waited, await refusal(handle.query(seen)), sim.loop.time() - began

    error, waited, ended, all_in_all = simulated(scenario)
    assert (error.reason, ended.reason) == ("not_begun", "not_begun")
    assert waited == pytest.approx(1.0) == all_in_all
    assert (error.run, error.entries) == ("r", 1)
    assert "1 of 1 entries replayed by build " + error.build in error.message


def test_a_run_that_begins_meanwhile_is_waited_for() -> None:
    """Right after a start, or where a generation has just begun, there is an answer as soon as there can be one."""

    async def scenario(sim: Simulation) -> list[Any]:
        handle = await sim.client.start(asked(0), id="r")
        asking = sim.spawn(handle.query(doubled, 4))
        await asyncio.sleep(0.4)
        assert not asking.done()
        await sim.start_worker()
        answers = [await asking]
        await handle.send(go, 7)
        await until_parked(sim, "r", 3)
        await handle.terminate()
        asking = sim.spawn(handle.query(seen))
        await sim.client.start(asked(0), id="r", if_closed="restart")
        return [*answers, await asking, await handle.query(seen)]

    assert simulated(scenario) == [8, [7], []]


def test_an_answer_is_of_the_last_commit_while_a_worker_moves_the_run() -> None:
    """Each answer is that of one place in the journal, no older than the one before, and no worker is disturbed."""

    async def scenario(sim: Simulation) -> tuple[list[tuple[int, int]], list[Any]]:
        sim.outside.faults = Faults(latency=0.002)
        for _ in range(2):
            await sim.start_worker(faults=Faults(latency=0.01))
        handle = await sim.workers[0].client.start(asked(20, "returns"), id="r")
        answers: list[tuple[int, int]] = []

        async def look() -> None:
            while True:
                answers.append(await handle.query(place))

        looks = [sim.spawn(look()) for _ in range(3)]
        await sim.closed("r")
        for task in looks:
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
        return answers, [from_row(one.row) for one in await sim.store.journal(RunKey("default", "r"))]  # fmt: skip

    answers, journal = simulated(scenario)
    for numbers, entries in answers:
        done = [one for one in journal[:entries] if isinstance(one, StepCompleted)]
        assert numbers == len(done)
    assert len({entries for _, entries in answers}) > 10
    assert answers == sorted(answers)


# What is kept


def test_only_new_entries_are_read_and_delivered() -> None:
    """A run that was asked once stays in memory: asking again costs what came since."""

    async def scenario(sim: Simulation) -> tuple[list[Any], list[tuple[int, int]], int]:
        await sim.start_worker()
        handle = await sim.client.start(asked(30), id="r")
        await until_parked(sim, "r", 32)
        store = Noting(sim.store)
        client = Client(store, random=SeededRandom("s"), registry=Registry(CODE))
        handle = client.handle("r", asked)
        answers = [len(await handle.query(seen)), len(await handle.query(seen))]
        for n in (7, 8):
            await handle.send(go, n, id=str(n))
        await until_parked(sim, "r", 34)
        answers += [(await handle.query(seen))[-2:], await handle.query(doubled, 0)]
        kept = len(client.replicas)
        await client.replicas.close()
        return answers, store.reads, kept

    answers, reads, kept = simulated(scenario)
    assert answers == [30, 30, [7, 8], 32]
    assert reads == [(-1, 32), (31, 0), (31, 2), (33, 0)]
    assert kept == 1


def test_those_asked_longest_ago_leave_memory_by_being_evicted() -> None:
    """Their code is ended, nothing of it stays pinned; and closing ends the others."""

    async def scenario(sim: Simulation) -> None:
        await sim.start_worker()
        for n in range(4):
            await sim.client.start(asked(1), id=f"r{n}")
            await until_parked(sim, f"r{n}", 3)
        pinned = len(_pinned)
        client = Client(sim.store, random=SeededRandom("s"), registry=Registry(CODE))
        client.replicas = Replicas(most=2)
        left.clear()
        for n in (0, 1, 0, 2):
            await client.handle(f"r{n}").query(seen)
        await asyncio.sleep(0)
        assert left == {"r1": 1}
        await asyncio.gather(*(client.handle(f"r{n}").query(seen) for n in (0, 1, 2, 3, 0)))
        assert len(client.replicas) == 2
        await client.replicas.close()
        assert len(client.replicas) == 0
        assert left["r0"] >= 1 <= left["r3"]
        assert sum(left.values()) >= 4
        assert len(_pinned) == pinned

    simulated(scenario)


def test_a_client_that_is_closed_takes_its_runs_out_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a worker beside it or without; no coroutine is left to the garbage collector."""
    monkeypatch.setattr(registry, "_declared", CODE)
    url, idle = f"sqlite:///{tmp_path / 's.db'}", timedelta(milliseconds=1)
    pinned = len(_pinned)

    async def main() -> None:
        async with outlast.open(url, idle=idle) as app:
            handle = await app.start(asked(0), id="r")
            while (await handle.status()).status is not Status.WAITING:
                await asyncio.sleep(0.01)
            left.clear()
            assert await handle.query(seen, timeout=LONG) == []
            assert left["r"] == 0
        assert left["r"] == 1
        async with outlast.connect(url) as client:
            assert await client.handle("r").query(seen, timeout=LONG) == []
            assert left["r"] == 1
        assert left["r"] == 2

    asyncio.run(main())
    assert len(_pinned) == pinned


def test_a_replica_in_use_leaves_when_it_is_not_used_any_more() -> None:
    """Closing does not take the machine away from under a query; and the next one begins anew."""

    async def scenario(sim: Simulation) -> None:
        await sim.start_worker()
        await sim.client.start(asked(1), id="r")
        await until_parked(sim, "r", 3)
        store = Noting(sim.store)
        client = Client(store, random=SeededRandom("s"), registry=Registry(CODE))
        left.clear()
        store.gate.clear()
        asking = [sim.spawn(client.handle("r").query(seen)) for _ in range(3)]
        await asyncio.sleep(0.25)
        assert len(client.replicas) == 1
        await client.replicas.close()
        assert left["r"] == len(client.replicas) == 0
        store.gate.set()
        assert [await one for one in asking] == [[0]] * 3
        await asyncio.sleep(0)
        assert store.reads == [(-1, 3), (-1, 3), (2, 0)]
        assert left["r"] == 1
        await client.replicas.close()
        assert left["r"] == 2

    simulated(scenario)


def test_another_generation_and_other_code_are_replayed_anew() -> None:
    """What is kept is of one journal and of one workflow function."""

    async def later(steps: int, ends: str = "") -> int:
        outlast.on_query(seen, lambda _: [-1])
        return await outlast.receive(go)

    async def scenario(sim: Simulation) -> list[list[int]]:
        await sim.start_worker()
        handle = await sim.client.start(asked(2, "returns"), id="r")
        await sim.closed("r")
        answers = [await handle.query(seen)]
        await sim.client.start(asked(0), id="r", if_closed="restart")
        await until_parked(sim, "r", 2)
        answers.append(await handle.query(seen))
        sim.client.registry = Registry([Workflow(later, "asked")])
        answers.append(await handle.query(seen))
        assert len(sim.client.replicas) == 1
        return answers

    assert simulated(scenario) == [[0, 1], [], [-1]]


@outlast.workflow
async def misled(steps: int) -> int:
    """Its handler does what none may: it changes what the workflow decides by."""
    numbers: list[int] = []

    def change(_: None) -> list[int]:
        numbers.append(0)
        return numbers[:-1]

    outlast.on_query(seen, change)
    while len(numbers) < steps:
        numbers.append(await fetch_asked(await outlast.receive(go)))
    await outlast.sleep(1)
    return len(numbers)


def test_a_kept_run_that_was_misled_is_replayed_afresh_once() -> None:
    """Only what a fresh replay comes to is told of the code."""

    async def scenario(sim: Simulation) -> list[Any]:
        await sim.start_worker()
        handle = await sim.client.start(misled(3), id="r")
        await until_parked(sim, "r", 2)
        answers = [await handle.query(seen) for _ in range(3)]
        for n in (4, 5, 6):
            await handle.send(go, n)
        await sim.closed("r")
        return [*answers, await handle.query(seen)]

    code = [fetch_asked, misled]
    assert Simulation(code).run(scenario) == [[], [0], [0, 0], [4, 5, 6]]


def test_entries_that_say_how_the_past_is_replayed_begin_a_fresh_replay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the marker of a patch does, which a replay has to know before it comes to the code."""
    monkeypatch.setattr(query_module, "_HINDSIGHT", {"message_received"})

    async def scenario(sim: Simulation) -> tuple[list[Any], list[tuple[int, int]]]:
        await sim.start_worker()
        handle = await sim.client.start(asked(1), id="r")
        await until_parked(sim, "r", 3)
        store = Noting(sim.store)
        client = Client(store, random=SeededRandom("s"), registry=Registry(CODE))
        answers = [await client.handle("r").query(seen)]
        await handle.send(go, 7)
        await until_parked(sim, "r", 4)
        answers += [await client.handle("r").query(seen), await client.handle("r").query(seen)]
        await client.replicas.close()
        return answers, store.reads

    answers, reads = simulated(scenario)
    assert answers == [[0], [0, 7], [0, 7]]
    assert reads == [(-1, 3), (2, 1), (-1, 4), (3, 0)]


# What is no answer


def test_code_that_does_not_fit_is_named_by_its_build() -> None:
    """The error says what differs, which build was asked, and which builds live workers have; the next one is tried afresh."""

    async def changed(steps: int, ends: str = "") -> int:
        outlast.on_query(seen, lambda _: [])
        await outlast.sleep(5)
        return 0

    changed.__module__ = "another_build"
    other = Registry([Workflow(changed, "asked")])

    async def scenario(sim: Simulation) -> tuple[QueryError, str, list[int]]:
        worker = await sim.start_worker()
        handle = await sim.client.start(asked(1), id="r")
        await until_parked(sim, "r", 3)
        sim.client.registry = other
        error = await refusal(handle.query(seen))
        assert len(sim.client.replicas) == 0
        sim.client.registry = Registry(CODE)
        build = next(one.row.build for one in await sim.store.workers())
        assert worker.process.name
        return error, build, await handle.query(seen)

    error, build, answer = simulated(scenario)
    assert (error.reason, error.entries, error.build) == ("mismatch", 2, other.build())
    assert f"2 of 3 entries replayed by build {other.build()}" in error.message
    assert "journal entry 2: step fetch_asked at r:1" in error.message
    assert build != other.build()
    assert build in error.hint
    assert isinstance(error.__cause__, outlast.NonDeterminismError)
    assert answer == [0]


def test_a_process_without_the_code_says_so() -> None:
    """It names the workflow, and how to bring it in."""

    async def scenario(sim: Simulation) -> QueryError:
        await sim.start_worker()
        handle = await sim.client.start(asked(1), id="r")
        await until_parked(sim, "r", 3)
        sim.client.registry = Registry([])
        return await refusal(handle.query(seen))

    error = simulated(scenario)
    assert error.reason == "no_code"
    assert "no workflow 'asked'" in error.message
    assert "-m MODULE" in error.hint


def test_a_handler_that_raises_and_one_that_acts() -> None:
    """Both are errors; after the second the run is replayed afresh, and answers as before."""

    async def scenario(sim: Simulation) -> list[Any]:
        await sim.start_worker()
        handle = await sim.client.start(asked(1), id="r")
        await until_parked(sim, "r", 3)
        said: list[Any] = []
        for query in (fails, acts):
            error = await refusal(handle.query(query))
            said += [error.reason, len(sim.client.replicas), type(error.__cause__)]
        assert (await handle.status()).entries == 3
        return [*said, await handle.query(seen)]

    assert simulated(scenario) == [
        *("handler", 1, ZeroDivisionError),
        *("acts", 0, outlast.ForbiddenInWorkflowError),
        [0],
    ]


@pytest.mark.parametrize(
    ("seq", "body"),
    [(2, b"{}"), (2, b'{"type":"step_completed","operation":"r:1","name":"fetch_asked","value":"x"}'), (0, b'{"type":"taken","python":"","library":""}')],
)  # fmt: skip
def test_a_damaged_journal_has_no_answer(seq: int, body: bytes) -> None:
    """An entry that cannot be read, a value that does not fit, a journal without a beginning."""
    entries = list(rows(2))
    entries[seq] = replace(entries[seq], body=body, kind="taken" if seq == 0 else entries[seq].kind)

    async def test(client: Client, _: Noting) -> QueryError:
        error = await refusal(client.handle("r").query(seen, timeout=LONG))
        assert len(client.replicas) == 0
        return error

    assert in_memory(tuple(entries), test).reason == "undecodable"


def test_what_cannot_be_asked_is_refused_before_anything_is_read() -> None:
    """A value of another type, and a timeout in which nothing can be done."""

    async def scenario(sim: Simulation) -> None:
        handle = sim.client.handle("r")
        wrong: Any = "five"
        with pytest.raises(outlast.EncodeError, match="query 'doubled'"):
            await handle.query(doubled, wrong)
        seconds: Any = 1.5
        for timeout in (timedelta(0), seconds):
            with pytest.raises(DefinitionError, match="timeout="):
                await handle.query(seen, timeout=timeout)

    simulated(scenario)


# The budget


def test_a_store_that_does_not_answer_ends_in_an_error_in_time() -> None:
    """Reading counts."""

    async def scenario(sim: Simulation) -> tuple[QueryError, float]:
        await sim.start_worker()
        handle = await sim.client.start(asked(1), id="r")
        await until_parked(sim, "r", 3)
        sim.outside.faults = Faults(latency=100)
        began = sim.loop.time()
        return await refusal(handle.query(seen)), sim.loop.time() - began

    error, waited = simulated(scenario)
    assert (error.reason, waited) == ("budget", pytest.approx(1.0))
    assert "the store did not answer" in error.message
    assert "it has 1 s" in error.message


def test_a_replay_that_takes_too_long_goes_on_where_it_stopped() -> None:
    """Each attempt is cut off after a slice, and goes on with what the one before has not read or delivered."""

    async def test(client: Client, store: Noting) -> None:
        handle = client.handle("r", asked)
        came: list[int] = []
        while not came or came[-1] < 3002:
            try:
                await handle.query(seen, timeout=timedelta(milliseconds=3))
            except QueryError as error:
                assert error.reason == "budget"
                came.append(error.entries)
            else:
                break
        assert len(came) > 1
        assert came == sorted(came)
        assert all(after + 1 + count == 3002 for after, count in store.reads)
        assert [after for after, _ in store.reads] == sorted(after for after, _ in store.reads)
        assert await handle.query(seen, timeout=LONG) == list(range(3000))
        assert store.reads[-1] == (3001, 0)

    in_memory(rows(3000), test)


def test_a_handler_that_takes_too_long_is_told_as_late() -> None:
    """It cannot be stopped, but what it said is not taken for an answer in time."""

    async def test(client: Client, _: Noting) -> QueryError:
        handle = client.handle("r")
        assert await handle.query(slow, 0.0, timeout=LONG) == 1
        return await refusal(handle.query(slow, 0.05, timeout=timedelta(milliseconds=20)))

    error = in_memory(rows(1), test)
    assert error.reason == "budget"
    assert "its handler took too long" in error.message


def test_a_caller_who_gives_up_leaves_a_replica_that_can_be_used() -> None:
    """A cancel is a cancel, wherever it comes."""

    async def test(client: Client, _: Noting) -> list[int]:
        handle = client.handle("r", asked)
        for turns in range(6):
            asking = asyncio.ensure_future(handle.query(seen))
            for _ in range(turns):
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.wait([asking])
            assert asking.cancelled()
        return await handle.query(seen, timeout=LONG)

    assert in_memory(rows(1500), test) == list(range(1500))
