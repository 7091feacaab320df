"""Messages, updates and their answers: faults that comparable systems had, and what happens here. The numbers are those of docs/cases.md."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from cases_bench import LocalApp

import outlast
from outlast.client import RunHandle
from outlast.errors import OutlastError, RunConflictError
from outlast.journal.entry import MessageReceived, UpdateAnswered, UpdateReceived, from_row
from outlast.store.change import RunHead, RunKey, Status
from outlast.testing import Faults, Simulation
from outlast.worker.worker import WorkerOptions
from outlast.workflows.definition import AttemptOptions, Step, Workflow

RUN = RunKey("default", "r")
SHORT = WorkerOptions(library="simulated", idle=timedelta(milliseconds=200))
HASTY = WorkerOptions(library="simulated", idle=timedelta(milliseconds=1))

GO = outlast.Signal("cases go", int)
OTHER = outlast.Signal("cases other", int)
DONE = outlast.Signal("cases done", int)
ADD = outlast.Update("cases add", int, int)
SLOW = outlast.Update("cases slow", int, int)


async def _wait(n: int) -> int:
    await asyncio.sleep(0.2)
    return n


wait = Step(_wait, "cases wait", AttemptOptions())


def workflow(function: Callable[..., Any]) -> Workflow[..., Any]:
    return Workflow(function, function.__name__.strip("_"))


def parked(head: RunHead) -> bool:
    return head.status is Status.WAITING and head.owner is None


async def told(work: Any) -> Any:
    """Return what comes of it, a value or an error of Outlast."""
    try:
        return await work
    except OutlastError as error:
        return error


# 31: messages around the end of a run's memory


async def _collect(size: int) -> list[int]:
    """Take numbered messages of two names, by handler and by hand, until there are so many."""
    handled: list[int] = []

    async def handle(n: int) -> None:
        handled.append(n)
        if n % 50 == 0:
            await wait(n)

    received: list[int] = []
    outlast.on_signal(GO, handle)
    while len(received) < size:
        received.append(await outlast.receive(OTHER))
    await outlast.wait_condition(lambda: len(handled) >= size)
    return [*handled, *received]


collect = workflow(_collect)


def test_case_031_no_message_is_lost_between_two_lives_of_a_run() -> None:
    """Hundreds of numbered messages to a run that leaves memory, is killed and is taken over all the time: each once, in order."""

    async def scenario(sim: Simulation) -> Any:
        chance = random.Random(31)
        await worker(sim)
        handle = await sim.client.start(collect(250), id="r")
        for number in range(250):
            await handle.send(GO, number, id=f"go {number}")
            await handle.send(OTHER, number, id=f"other {number}")
            if chance.random() < 0.2:
                await asyncio.sleep(chance.uniform(0, 1))
            if number % 60 == 59:
                sim.workers[-1].kill()
                await worker(sim)
        result = await handle.result()
        rows = [from_row(one.row) for one in await sim.store.journal(RUN)]
        return result, Counter(one.message_id for one in rows if isinstance(one, MessageReceived))

    async def worker(sim: Simulation) -> None:
        worker = await sim.start_worker()
        worker.store.faults = Faults(latency=0.01, lost_answer=0.05, lost_hint=0.3)

    sim = Simulation([collect, wait], options=HASTY, seed=31)
    result, counts = sim.run(scenario)
    assert result == [*range(250), *range(250)]
    assert len(counts) == 500
    assert set(counts.values()) == {1}


# 32: updates while the run ends


async def _until_done() -> int:
    total = 0

    def put(n: int) -> int:
        nonlocal total
        total += n
        return total

    async def put_slowly(n: int) -> int:
        return put(await wait(n))

    outlast.on_update(ADD, put)
    outlast.on_update(SLOW, put_slowly)
    await outlast.receive(DONE)
    return total


until_done = workflow(_until_done)


def check_told(said: list[Any]) -> Counter[str]:
    """See that each sender has a result, or was told in words that the run was over; return how many of each."""
    words: Counter[str] = Counter()
    for one in said:
        if isinstance(one, outlast.UpdateRejectedError):
            assert "completed before it handled" in one.message
            words["rejected"] += 1
        elif isinstance(one, outlast.RunConflictError):
            assert "the run has ended" in one.message
            words["closed"] += 1
        else:
            assert isinstance(one, int), one
            words["done"] += 1
    return words


def test_case_032_an_update_beside_the_end_has_an_answer() -> None:
    """Fifty updates before, while and after the run ends, over a bad network: a result, or a refusal that says why."""

    async def ask(handle: RunHandle[int], number: int) -> Any:
        await asyncio.sleep(number * 0.02 if number < 45 else number - 43)
        return await told(handle.update(SLOW if number % 3 else ADD, 1, id=str(number)))

    async def scenario(sim: Simulation) -> Any:
        worker = await sim.start_worker()
        worker.store.faults = Faults(latency=0.02, lost_answer=0.1)
        handle = await sim.client.start(until_done(), id="r")
        asked = [sim.spawn(ask(handle, number)) for number in range(50)]
        await asyncio.sleep(0.3)
        await handle.send(DONE, 0)
        said = await asyncio.gather(*asked)
        rows = [from_row(one.row) for one in await sim.store.journal(RUN)]
        received = {one.message_id for one in rows if isinstance(one, UpdateReceived)}
        answered = {one.message_id for one in rows if isinstance(one, UpdateAnswered)}
        assert received == answered
        return check_told(said)

    totals: Counter[str] = Counter()
    for seed in range(6):
        sim = Simulation([until_done, wait], options=SHORT, seed=seed)
        totals += sim.run(scenario)
    assert set(totals) == {"done", "rejected", "closed"}, totals


def test_case_032_an_update_beside_the_end_has_an_answer_on_a_file(url: str) -> None:
    """The same with a real file and a real clock."""

    async def main() -> Counter[str]:
        async with LocalApp(url, [until_done, wait]) as app:
            handle = await app.start(until_done(), id="r")

            async def ask(number: int) -> Any:
                await asyncio.sleep(number * 0.004)
                return await told(handle.update(ADD, 1))

            asked = [asyncio.create_task(ask(number)) for number in range(50)]
            await asyncio.sleep(0.08)
            await handle.send(DONE, 0)
            async with asyncio.timeout(60):
                said = await asyncio.gather(*asked)
            words = check_told(said)
            assert await handle.result() == words["done"]
            return words

    assert sum(asyncio.run(main()).values()) == 50


# 34: all signals of a batch before the body goes on


async def _carry() -> list[int]:
    seen: list[int] = []
    outlast.on_signal(GO, seen.append)
    await outlast.wait_condition(lambda: seen)
    return seen[:]


async def _carry_received() -> list[int]:
    seen: list[int] = []
    outlast.on_signal(GO, seen.append)
    await outlast.receive(OTHER)
    return seen[:]


carry, carry_received = workflow(_carry), workflow(_carry_received)


@pytest.mark.parametrize("flow", [carry, carry_received], ids=["condition", "receive"])
def test_case_034_all_signals_of_a_batch_are_handled_before_the_body_goes_on(flow: Any) -> None:
    """The run is not there to take them one by one: all three are in what it carries, whichever of them it waited for."""

    async def scenario(sim: Simulation) -> Any:
        first = await sim.start_worker()
        handle = await sim.client.start(flow(), id="r")
        await sim.until("r", parked)
        await first.stop()
        if flow is carry_received:
            await handle.send(OTHER, 0)
        for number in (1, 2, 3):
            await handle.send(GO, number)
        await sim.start_worker()
        return await handle.result()

    assert Simulation([flow], options=SHORT).run(scenario) == [1, 2, 3]


# 35: a message beside the start


async def _hear() -> int:
    return await outlast.receive(GO, timeout=timedelta(seconds=5))


hear = workflow(_hear)


def test_case_035_a_message_beside_the_start_is_received() -> None:
    """Sent before, after, at the same time, and with the start in one write: a hundred runs of each, and all of them hear it."""

    async def scenario(sim: Simulation) -> list[int]:
        await sim.start_worker()
        client = sim.client
        handles: list[RunHandle[int]] = []
        for number in range(100):
            before, after, beside, within = (
                client.handle(f"{kind} {number}", hear)
                for kind in ("before", "after", "beside", "with")
            )
            await before.send(GO, number, early=True)
            await client.start(hear(), id=before.id)
            await client.start(hear(), id=after.id)
            await after.send(GO, number)
            await asyncio.gather(
                client.start(hear(), id=beside.id), beside.send(GO, number, early=True)
            )
            await client.signal_with_start(hear(), GO, number, id=within.id)
            handles += [before, after, beside, within]
        return await asyncio.gather(*(one.result() for one in handles))

    heard = Simulation([hear], faults=Faults(latency=0.005), seed=35).run(scenario)
    assert heard == [number for number in range(100) for _ in range(4)]


# 40: a receiver that gave up


async def _give_up_often() -> list[int]:
    for _ in range(50):
        task = asyncio.create_task(outlast.receive(GO))
        await asyncio.sleep(0)
        task.cancel()
        try:
            await outlast.receive(OTHER, timeout=timedelta(milliseconds=1))
        except TimeoutError:
            continue
    return [await outlast.receive(GO), await outlast.receive(OTHER)]


give_up_often = workflow(_give_up_often)


def test_case_040_a_receiver_that_gave_up_leaves_nothing_behind() -> None:
    """Cancelled and timed out a hundred times; then one waits, and is the only one: each message goes to it, none to those before."""

    async def scenario(sim: Simulation) -> Any:
        await sim.start_worker()
        handle = await sim.client.start(give_up_often(), id="r")
        waits: list[list[str]] = []
        for signal in (GO, OTHER):
            await sim.until("r", parked)
            waits.append((await handle.status()).waits["signals"])
            await handle.send(signal, len(waits))
            await asyncio.sleep(1)
        return waits, await handle.result()

    waits, result = Simulation([give_up_often], options=SHORT).run(scenario)
    assert waits == [["cases go"], ["cases other"]]
    assert result == [1, 2]


# 41: many sends at once


def test_case_041_sends_at_the_same_time_have_an_acknowledgement_each(url: str) -> None:
    """Fifty updates and fifty signals, gathered, on a real file: fifty results, each another one, and a hundred messages in one order."""

    async def main() -> Any:
        async with LocalApp(url, [until_done, wait]) as app:
            handle = await app.start(until_done(), id="r")
            asked = [handle.update(ADD, 1, id=str(number)) for number in range(50)]
            sent = [handle.send(GO, number, id=str(number)) for number in range(50)]
            async with asyncio.timeout(60):
                results, _ = await asyncio.gather(asyncio.gather(*asked), asyncio.gather(*sent))
            await handle.send(DONE, 0)
            assert await handle.result() == 50
            rows = [one.entry for one in await handle.journal()]
            return results, [getattr(one, "message_id", "") for one in rows]

    results, ids = asyncio.run(main())
    assert sorted(results) == list(range(1, 51))
    received = Counter(one for one in ids if one)
    assert sum(one.startswith("signal/") for one in received) == 51
    # Each update stands there twice: taken in, and answered.
    assert {count for one, count in received.items() if one.startswith("update/")} == {2}


# 44: two of one name


async def _hear_twice() -> list[int]:
    def keep(n: int) -> int:
        kept.append(n)
        return n

    kept: list[int] = []
    outlast.on_update(ADD, keep)
    heard = [await outlast.receive(GO), await outlast.receive(GO)]
    return [*heard, *kept]


hear_twice = workflow(_hear_twice)


def test_case_044_the_first_of_two_under_one_id_is_the_one() -> None:
    """A second value under the same id changes nothing, and its sender is told; under ids of their own both come."""

    async def scenario(sim: Simulation) -> Any:
        handle = await sim.client.start(hear_twice(), id="r")
        await handle.send(GO, 1, id="e")
        refused = [await told(handle.send(GO, 2, id="e"))]
        first = sim.spawn(handle.update(ADD, 7, id="e"))
        await asyncio.sleep(1)
        refused.append(await told(handle.update(ADD, 8, id="e")))
        await sim.start_worker()
        answers = [await first]
        await sim.until("r", parked)
        refused.append(await told(handle.send(GO, 3, id="e")))
        refused.append(await told(handle.update(ADD, 9, id="e")))
        answers.append(await handle.update(ADD, 7, id="e"))
        await handle.send(GO, 1, id="e")
        await handle.send(GO, 4, id="another")
        assert all(isinstance(one, RunConflictError) for one in refused), refused
        return answers, await handle.result()

    assert Simulation([hear_twice], options=SHORT).run(scenario) == ([7, 7], [1, 4, 7])


# 112: senders of what is being handled when the run is cancelled


cleaned: list[str] = []
PASS = outlast.Update("cases pass", str, str)


async def _gate() -> None:
    lock = asyncio.Lock()

    async def handle(how: str) -> str:
        try:
            match how:
                case "step":
                    await wait(1)
                case "timer":
                    await outlast.sleep(timedelta(days=1))
                case "message":
                    await outlast.receive(GO)
                case "lock":
                    async with lock:
                        await outlast.wait_condition(lambda: False)
        finally:
            await wait(2)
            cleaned.append(how)
        return how

    outlast.on_update(PASS, handle)
    await outlast.receive(DONE)


gate = workflow(_gate)
HOWS = ["step", "timer", "message", "lock", "lock"]


@pytest.mark.parametrize("cold", [False, True], ids=["in memory", "parked"])
def test_case_112_senders_of_what_is_handled_are_told_of_the_cancel(cold: bool) -> None:
    """Each handler in progress is cancelled, wherever it waits, and cleans up; its sender hears that the run was cancelled."""
    cleaned.clear()

    async def scenario(sim: Simulation) -> Any:
        first = await sim.start_worker()
        handle = await sim.client.start(gate(), id="r")
        hows = HOWS[1:] if cold else HOWS
        asked = [sim.spawn(told(handle.update(PASS, how))) for how in hows]
        while not [one for one in await handle.journal() if isinstance(one.entry, UpdateReceived)]:
            await asyncio.sleep(0.01)
        if cold:
            await sim.until("r", parked)
            await first.stop()
        await handle.cancel("no longer needed")
        if cold:
            await sim.start_worker()
        return hows, await asyncio.gather(*asked), await told(handle.result())

    hows, errors, end = Simulation([gate, wait], options=SHORT).run(scenario)
    for error in [*errors, end]:
        assert type(error) is outlast.RunCancelledError, error
    assert all("while it handled the update 'cases pass'" in one.message for one in errors)
    assert Counter(cleaned) >= Counter(hows)
