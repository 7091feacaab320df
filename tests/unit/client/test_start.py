"""Starting runs: once for one id, whatever is lost, fenced or cancelled on the way."""

# ruff: noqa: D103 - the workflows of a test say what they do in their bodies
from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from msgspec import Raw

import outlast
from outlast.client import Birth, Client
from outlast.errors import (
    DefinitionError,
    EncodeError,
    NoWorkerWarning,
    RunConflictError,
    StoreError,
    StoreUnavailableError,
)
from outlast.journal.entry import Completed, Taken, to_row
from outlast.store.change import (
    Applied,
    Change,
    Fenced,
    HeadUpdate,
    Refused,
    RunChange,
    RunHead,
    RunKey,
    StartRun,
    Status,
    Terminate,
    Unknown,
    Verdict,
    WorkerId,
    WorkerRow,
)
from outlast.store.memory import MemoryStore
from outlast.testing import Faults, SeededRandom, SimulatedClock, Simulation
from outlast.workflows.registry import Registry

RUN = RunKey("default", "r1")
LEASE = timedelta(seconds=15)
go = outlast.Signal("go", int)


@outlast.workflow
async def greet(name: str) -> str:
    return f"hello {name}"


@outlast.workflow
async def part(name: str) -> str:
    return f"bye {name}"


@outlast.effect(idempotent=True, repeats=True)
async def pay(amount: int) -> int:
    return amount


@outlast.workflow
async def pay_after_yes() -> int:
    await outlast.approval("pay", covers=[pay(5)], role="boss", expires_in=timedelta(hours=1))
    return await pay(5) + await outlast.receive(go)


CODE = [greet, part, pay, pay_after_yes]


class Scripted(MemoryStore):
    """A memory store in which single commits go wrong: each of `script` is asked once, in order, before the store is."""

    def __init__(self) -> None:
        self.time = SimulatedClock()
        super().__init__(self.time)
        self.script: list[Callable[[Sequence[Change]], Any]] = []
        self.changes: list[Change] = []

    async def commit(self, changes: Sequence[Change]) -> list[Verdict]:
        """Ask the script, or write."""
        self.changes += changes
        if not self.script:
            return await super().commit(changes)
        said = self.script.pop(0)(changes)
        return await said if asyncio.iscoroutine(said) else said

    async def apply(self, changes: Sequence[Change]) -> list[Verdict]:
        """Write, whatever the script says."""
        return await super().commit(changes)

    async def join(self, name: str) -> WorkerId:
        """Register a worker."""
        worker = WorkerId(name)
        await self.register(WorkerRow(worker, "host", 1, "b", ("greet",), LEASE))
        return worker

    async def end(self, status: Status = Status.COMPLETED) -> RunHead:
        """Let a worker take the run and end it."""
        worker = await self.join("ender")
        claim = await self.claim(worker, frozenset({"greet"}), 1)
        head = claim.runs[0].head
        entry = Completed(value=Raw(b'"done"'))
        change = RunChange(
            run=head.run,
            worker=worker,
            epoch=head.epoch,
            version=head.version,
            entries=(to_row(entry, head.next_seq, head.next_seq),),
            head=HeadUpdate(status, release=True),
        )
        assert isinstance((await self.apply([change]))[0], Applied)
        return head

    async def stored(self) -> RunHead:
        """Return the row of the run that tests start."""
        head = await self.head(RUN)
        assert head is not None
        return head


def lost(store: Scripted, then: Callable[[], Any] | None = None) -> Callable[..., Any]:
    """Return a commit that is written and whose answer is lost; `then` happens before anyone asks again."""

    async def commit(changes: Sequence[Change]) -> list[Verdict]:
        await store.apply(changes)
        if then is not None:
            await then()
        return [Unknown("the answer was lost")] * len(changes)

    return commit


def scenario(test: Callable[[Scripted, Client], Any]) -> None:
    """Run a test on a store and a client without a worker."""

    async def main() -> None:
        store = Scripted()
        await test(store, Client(store, random=SeededRandom("s"), principal="tester"))

    asyncio.run(main())


class Nursery:
    """Stands for the worker of the client's process: says who a run is born to, and keeps what it is given."""

    def __init__(self, store: Scripted, *owners: WorkerId | None) -> None:
        self.owners = list(owners)
        self.adopted: list[RunHead] = []
        self.asked: list[str] = []

        async def submit(change: Change) -> Verdict:
            (verdict,) = await store.commit([change])
            return verdict

        birth = Birth(
            submit, self.owner, lambda head, _: self.adopted.append(head), Taken("3", "x")
        )
        self.client = Client(store, random=SeededRandom("s"), principal="tester", birth=birth)

    def owner(self, workflow: str) -> WorkerId | None:
        """Return the next owner; the last one again and again."""
        self.asked.append(workflow)
        return self.owners.pop(0) if len(self.owners) > 1 else self.owners[0]


# Fenced


def test_fenced_start_ends_unclaimed() -> None:
    """The worker that was to have the run has lapsed and there is no other: the run is started, and free for all."""

    async def test(store: Scripted, _: Client) -> None:
        worker = await store.join("w1")
        store.time.advance(LEASE)
        nursery = Nursery(store, worker, None)
        await nursery.client.start(greet("you"), id="r1")
        head = await store.stored()
        assert (head.status, head.owner, head.next_seq) == (Status.READY, None, 1)
        assert nursery.adopted == []

    scenario(test)


def test_fenced_start_ends_with_the_next_worker() -> None:
    """The process has a new worker by then: the run is born to that one, once."""

    async def test(store: Scripted, _: Client) -> None:
        first = await store.join("w1")
        store.time.advance(LEASE)
        second = await store.join("w2")
        nursery = Nursery(store, first, second)
        await nursery.client.start(greet("you"), id="r1")
        head = await store.stored()
        assert (head.status, head.owner, head.epoch, head.generation) == (
            Status.RUNNING,
            second,
            1,
            1,
        )
        assert [one.owner for one in nursery.adopted] == [second]
        assert nursery.asked == ["greet", "greet"]

    scenario(test)


def test_fenced_again_and_again() -> None:
    """However often it is fenced, the start is not given up, and is the same start."""

    async def test(store: Scripted, client: Client) -> None:
        store.script = [lambda _: [Fenced("lapsed")]] * 5
        await client.start(greet("you"), id="r1")
        starts = [one for one in store.changes if isinstance(one, StartRun)]
        assert len(starts) == 6
        assert len({one.entries[0].body for one in starts}) == 1

    scenario(test)


# Lost answers


def test_lost_answer_of_a_start() -> None:
    """A start whose answer is lost is found to be ours, and is one run."""

    async def test(store: Scripted, client: Client) -> None:
        store.script = [lost(store)]
        handle = await client.start(greet("you"), id="r1", if_closed="refuse")
        assert (await handle.status()).status is Status.READY
        assert (await store.stored()).generation == 1

    scenario(test)


def test_lost_request_of_a_start() -> None:
    """A start that never arrived is sent again."""

    async def test(store: Scripted, client: Client) -> None:
        store.script = [lambda changes: [Unknown("lost")] * len(changes)]
        await client.start(greet("you"), id="r1")
        assert (await store.stored()).status is Status.READY

    scenario(test)


@pytest.mark.parametrize("if_closed", ["restart", "refuse", "attach"])
def test_run_that_ended_while_the_answer_was_lost_is_ours(if_closed: Any) -> None:
    """The run that we started has ended before we learn that it began: it is not started twice, and not refused."""

    async def test(store: Scripted, client: Client) -> None:
        store.script = [lost(store, store.end)]
        handle = await client.start(greet("you"), id="r1", if_closed=if_closed)
        head = await store.stored()
        assert (head.generation, head.status) == (1, Status.COMPLETED)
        assert await handle.result() == "done"

    scenario(test)


def test_restart_with_a_lost_answer_starts_once() -> None:
    """A restart whose answer is lost, and which ends meanwhile, is one new generation and not two."""

    async def test(store: Scripted, client: Client) -> None:
        await client.start(greet("you"), id="r1")
        await store.end()
        # The first commit finds the closed run, the second begins the next generation.
        store.script = [store.apply, lost(store, store.end)]
        await client.start(greet("you"), id="r1", if_closed="restart")
        head = await store.stored()
        assert (head.generation, head.status) == (2, Status.COMPLETED)

    scenario(test)


def test_restart_beside_anothers_restart() -> None:
    """The generation that stands there is another's, who was faster: it is not taken for ours."""

    async def test(store: Scripted, client: Client) -> None:
        other = Client(store, random=SeededRandom("other"))
        await client.start(greet("you"), id="r1")
        await store.end()

        async def overtaken(changes: Sequence[Change]) -> list[Verdict]:
            await other.start(greet("you"), id="r1", if_closed="restart")
            await store.end()
            return await store.apply(changes)

        store.script = [overtaken]
        await client.start(greet("you"), id="r1", if_closed="restart")
        assert (await store.stored()).generation == 3

    scenario(test)


# Cancelled callers


def test_caller_cancelled_during_start() -> None:
    """The caller goes while its start is on its way: the run that comes of it is handed to the worker it is born to."""

    async def test(store: Scripted, _: Client) -> None:
        nursery = Nursery(store, await store.join("w1"))
        arrived, gate = asyncio.Event(), asyncio.Event()

        async def slow(changes: Sequence[Change]) -> list[Verdict]:
            arrived.set()
            await gate.wait()
            return await store.apply(changes)

        store.script = [slow]
        starting = asyncio.ensure_future(nursery.client.start(greet("you"), id="r1"))
        await arrived.wait()
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        gate.set()
        async with asyncio.timeout(5):
            while not nursery.adopted:
                await asyncio.sleep(0)
        assert nursery.adopted[0].run == RUN
        assert (await store.stored()).owner == "w1"

    scenario(test)


def test_run_of_a_cancelled_caller_is_moved() -> None:
    """Such a run reaches its end at once, in the worker of the same process."""

    async def main(sim: Simulation) -> None:
        one = await sim.start_worker()
        starting = asyncio.get_running_loop().create_task(
            one.client.start(greet("you"), id="r1"), context=one.process.context()
        )
        await asyncio.sleep(0.01)
        starting.cancel()
        began = sim.clock.monotonic()
        head = await sim.closed("r1")
        assert (head.status, head.epoch) == (Status.COMPLETED, 1)
        assert sim.clock.monotonic() - began < 5

    Simulation(CODE, seed=1, faults=Faults(latency=0.5)).run(main)


# What stands there already


def test_same_id_other_input() -> None:
    """An id stands for one event: other input, or another workflow, is a conflict, and the run stays what it was."""

    async def test(store: Scripted, client: Client) -> None:
        await client.start(greet("you"), id="r1")
        before = await store.stored()
        with pytest.raises(RunConflictError, match="other input"):
            await client.start(greet("me"), id="r1")
        with pytest.raises(RunConflictError, match="the workflow greet"):
            await client.start(part("you"), id="r1")
        await store.end()
        with pytest.raises(RunConflictError, match="other input"):
            await client.start(greet("me"), id="r1")
        assert (await store.stored()).generation == before.generation
        await client.start(greet("me"), id="r1", if_closed="restart")
        assert (await store.stored()).generation == 2

    scenario(test)


def test_what_a_closed_run_means() -> None:
    """Attach gives the result of the closed run, refuse an error, restart a new run under the id."""

    async def test(store: Scripted, client: Client) -> None:
        await client.start(greet("you"), id="r1")
        await store.end()
        attached = await client.start(greet("you"), id="r1")
        assert await attached.result() == "done"
        with pytest.raises(RunConflictError, match="has ended as completed"):
            await client.start(greet("you"), id="r1", if_closed="refuse")
        assert (await store.stored()).generation == 1
        await client.start(greet("you"), id="r1", if_closed="restart")
        head = await store.stored()
        assert (head.generation, head.status) == (2, Status.READY)

    scenario(test)


@pytest.mark.parametrize("if_closed", ["attach", "refuse", "restart"])
def test_open_run_is_attached_to(if_closed: Any) -> None:
    """Whatever a closed run would mean, an open one of the same input is the one that is meant."""

    async def test(store: Scripted, client: Client) -> None:
        await client.start(greet("you"), id="r1")
        await client.start(greet("you"), id="r1", if_closed=if_closed)
        assert (await store.stored()).generation == 1

    scenario(test)


def test_terminated_run_can_be_restarted() -> None:
    """What an operator ended is closed, too."""

    async def test(store: Scripted, client: Client) -> None:
        await client.start(greet("you"), id="r1")
        await client.commit(Terminate(RUN, "root", "enough"))
        await client.start(greet("you"), id="r1", if_closed="restart")
        assert (await store.stored()).generation == 2

    scenario(test)


@pytest.mark.parametrize("if_closed", ["attach", "restart"])
def test_concurrent_starts_are_one_run(if_closed: Any) -> None:
    """Five that start one id at once all get the one run."""

    async def main(sim: Simulation) -> None:
        one = await sim.start_worker()
        calls = [one.within(one.client.run(greet("you"), id="r1")) for _ in range(2)]
        calls += [sim.client.run(greet("you"), id="r1", if_closed=if_closed) for _ in range(3)]
        assert await asyncio.gather(*calls) == ["hello you"] * 5
        head = await sim.store.head(RUN)
        assert head is not None
        assert len(await sim.store.heads("default")) == 1
        if if_closed == "attach":
            assert head.generation == 1

    Simulation(CODE, seed=3, faults=Faults(latency=0.1)).run(main)


# What cannot be started


def test_refused_start_is_told() -> None:
    """What the store does not take is an error that says so."""

    async def test(store: Scripted, client: Client) -> None:
        store.script = [lambda _: [Refused("unstorable", "entries[0].body")]]
        with pytest.raises(StoreError, match=r"unstorable.*entries\[0\]\.body") as caught:
            await client.start(greet("you"), id="r1")
        assert caught.value.run == "r1"
        assert await store.head(RUN) is None

    scenario(test)


def test_oversize_input_is_refused_before_anything_is_written() -> None:
    """Twenty megabytes are an error of the caller; no row is there, and other runs start (case 101)."""

    async def test(store: Scripted, client: Client) -> None:
        with pytest.raises(EncodeError):
            await client.start(greet("x" * 20_000_000), id="r1")
        assert store.changes == []
        assert await client.runs.list() == []
        await client.start(greet("you"), id="r1")
        assert [one.run_id for one in await client.runs.list()] == ["r1"]

    scenario(test)


# Beside starts


def test_signal_id_swallows_no_decision() -> None:
    """A caller that names its signal as a decision would be named does not make the decision a duplicate."""

    async def main(sim: Simulation) -> None:
        await sim.start_worker()
        handle = await sim.client.start(pay_after_yes(), id="r1")
        while not (found := await sim.client.approvals.list()):
            await asyncio.sleep(0.1)
        (view,) = found
        for taken in (f"approve/{view.approval_id}/tester", f"deny/{view.approval_id}/tester"):
            await handle.send(go, 1, id=taken)
        await sim.client.approvals.approve("r1", view.approval_id, seen_sha256=view.subject_sha256)
        assert await handle.result() == 6

    Simulation(CODE).run(main)


def test_no_worker_is_said_on_a_busy_store() -> None:
    """Other runs' commits, which wake everybody, do not keep the warning from coming."""

    async def main(sim: Simulation) -> None:
        async def others() -> None:
            for number in range(1000):
                await sim.client.start(part("you"), id=f"other-{number}")
                await asyncio.sleep(0.02)

        busy = sim.spawn(others())
        waiting = sim.spawn(sim.client.run(greet("you"), id="r1"))
        await asyncio.sleep(4.9)
        assert said == []
        await asyncio.sleep(2)
        busy.cancel()
        await asyncio.sleep(20)
        waiting.cancel()

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        Simulation(CODE).run(main)
    (one,) = said
    assert one.category is NoWorkerWarning
    assert "no live worker has registered workflow 'greet'" in str(one.message)


def test_a_start_whose_fate_is_unknown_is_asked_after_until_it_is_known() -> None:
    """The answer was lost and then the store was away: to say "nothing was written" would start a run twice."""

    async def scenario(sim: Simulation) -> int:
        sim.outside.faults = Faults(lost_answer=1.0)

        async def away_then_back() -> None:
            await asyncio.sleep(0.05)
            sim.outside.faults = Faults(down=True)
            await asyncio.sleep(20)
            sim.outside.faults = Faults()

        mending = sim.spawn(away_then_back())
        await sim.client.start(greet("Ada"), id="r")
        await mending
        await sim.client.handle("r").terminate("enough")
        await sim.client.start(greet("Ada"), id="r", if_closed="restart")
        return sim.invariants.runs[RunKey("default", "r")].generation

    assert Simulation(CODE).run(scenario) == 2


def test_a_fate_that_cannot_be_found_out_is_said_to_be_unknown() -> None:
    """A store that stays away for a minute ends the asking, with words that promise nothing."""

    async def scenario(sim: Simulation) -> str:
        sim.outside.faults = Faults(lost_answer=1.0)
        with pytest.raises(StoreUnavailableError, match="not known") as caught:
            await sim.client.start(greet("Ada"), id="r")
        return str(caught.value.hint)

    assert "counts once" in Simulation(CODE).run(scenario)


def rates(factor: int) -> tuple[Any, Any, Any]:
    """Return what a factory makes, each time it is called."""

    @outlast.step
    async def rate(number: int) -> int:
        return factor * number

    @outlast.effect(idempotent=True)
    async def book(number: int) -> int:
        return factor * number

    @outlast.workflow
    async def settle(number: int) -> int:
        return await rate(number) + await book(number)

    return rate, book, settle


@pytest.mark.parametrize("at", [0, 1, 2])
def test_what_would_be_run_by_another_of_the_same_factory_is_refused(at: int) -> None:
    """A workflow that calls what the app has not registered is blocked with the reason, and nothing of it is done."""
    once, twice = rates(1), rates(2)
    called = once[at]

    @outlast.workflow
    async def outer() -> int:
        call = called(2)
        return await (outlast.run_child(call) if call.callee.kind == "workflow" else call)

    async def scenario(sim: Simulation) -> tuple[str, str, int]:
        await sim.start_worker()
        handle = await sim.client.start(outer(), id="o")
        await sim.until("o", lambda head: head.status is Status.BLOCKED)
        status = await handle.status()
        return status.reason, str(await handle.explain()), len(await handle.journal())

    reason, why, entries = Simulation([*twice, outer]).run(scenario)
    assert (reason, entries) == ("non-determinism", 2)
    assert f"declared {called.kind} {called.name!r} more than once" in why


def test_a_start_of_another_workflow_of_the_same_factory_is_refused() -> None:
    """The app's worker would run the other one. Nothing is written."""
    once, twice = rates(1), rates(2)

    async def scenario(sim: Simulation) -> int:
        await sim.start_worker()
        client = Client(sim.store, random=SeededRandom(1), registry=Registry([*twice]))
        with pytest.raises(DefinitionError, match=r"workflow 'settle' more than once"):
            await client.start(once[2](3), id="s")
        with pytest.raises(DefinitionError, match=r"workflow 'settle' more than once"):
            await client.signal_with_start(once[2](3), go, 1, id="s")
        assert await client.runs.list() == []
        return await client.run(twice[2](3), id="s")

    assert Simulation([*twice]).run(scenario) == 12
