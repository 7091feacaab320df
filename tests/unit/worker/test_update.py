"""Updates through a worker: answered across parking, takeover, cancel and every kind of end; no sender waits for ever."""

# ruff: noqa: D103 - the workflows of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

import outlast
from outlast.client import Client, RunHandle
from outlast.errors import OutlastError
from outlast.journal.entry import AlarmRaised, Completed, UpdateAnswered, UpdateReceived, from_row
from outlast.store.change import Message, MessageKind, PutMessage, RunHead, RunKey, Status
from outlast.testing import Faults, Simulation, Workload, every_crash
from outlast.worker.worker import WorkerOptions

RUN = RunKey("default", "r")
SHORT = WorkerOptions(library="simulated", idle=timedelta(milliseconds=200))

finish = outlast.Signal("update finish", int)
add = outlast.Update("update add", int, int)
slow = outlast.Update("update slow", int, int)
refuse = outlast.Update("update refuse", str, str)

calls: list[str] = []


@pytest.fixture(autouse=True)
def _clean() -> None:
    calls.clear()


@outlast.step
async def double(n: int) -> int:
    calls.append(f"double {n}")
    await asyncio.sleep(1)
    return 2 * n


@outlast.workflow
async def counter() -> int:
    """Count what is added, until told to finish."""
    total = 0

    def put(n: int) -> int:
        nonlocal total
        total += n
        return total

    async def put_double(n: int) -> int:
        return put(await double(n))

    def no(why: str) -> None:
        raise ValueError(why)

    outlast.on_update(add, put)
    outlast.on_update(slow, put_double)
    outlast.on_update(refuse, str, validator=no)
    await outlast.receive(finish)
    return total


@outlast.workflow
async def fails_later() -> None:
    outlast.on_update(slow, lambda n: double(n))
    await outlast.receive(finish)
    raise KeyError("enough")


@outlast.workflow
async def asks_later() -> int:
    """Name the handler only after a step of a second."""
    seen: list[int] = []
    await double(1)
    outlast.on_update(add, lambda n: seen.append(n) or n)
    await outlast.wait_condition(lambda: len(seen) == 2)
    return sum(seen)


def parked(head: RunHead) -> bool:
    return head.status is Status.WAITING and head.owner is None


async def entries(sim: Simulation) -> list[Any]:
    return [from_row(one.row) for one in await sim.store.journal(RUN)]


def play(
    scenario: Callable[[Simulation, RunHandle[Any]], Awaitable[Any]],
    call: Any = None,
    **options: Any,
) -> Any:
    """Run a scenario on a run that is parked."""

    async def main(sim: Simulation) -> Any:
        await sim.start_worker()
        handle = await sim.client.start((call or counter)(), id="r")
        await sim.until("r", parked)
        return await scenario(sim, handle)

    return Simulation(CODE, options=SHORT, **options).run(main)


@outlast.workflow
async def sums(generation: int, total: int, patient: bool) -> int:
    """Go on as new after each addition."""
    begun = 0

    async def put(n: int) -> int:
        nonlocal begun, total
        begun += 1
        total += await double(n)
        return total

    outlast.on_update(slow, put)
    await outlast.wait_condition(lambda: begun > 0)
    if patient:
        await outlast.wait_condition(outlast.all_handlers_finished)
    if generation > 1:
        outlast.continue_as_new(sums(generation - 1, total, patient))
    return total


CODE = [double, counter, fails_later, asks_later, sums]


@pytest.mark.parametrize("patient", [True, False])
def test_a_body_that_waits_for_its_handlers_loses_nothing_of_them(
    patient: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The next generation and the result know what they did; where they do not, a worker says so, once for each end."""

    async def scenario(sim: Simulation, handle: RunHandle[int]) -> Any:
        answers = []
        for number in (1, 2):
            answers.append(await handle.update(slow, number))
        return answers, await handle.result()

    answers, result = play(scenario, lambda: sums(2, 0, patient))
    warned = [one for one in caplog.messages if "all_handlers_finished" in one]
    assert (answers, result) == (([2, 6], 6) if patient else ([2, 4], 0))
    assert len(warned) == (0 if patient else 2)


def test_an_update_wakes_a_parked_run_and_is_answered() -> None:
    """Its result is the handler's; the answer stands in the journal and in the message's row alike."""

    async def scenario(sim: Simulation, handle: RunHandle[int]) -> Any:
        results = [await handle.update(add, 5), await handle.update(slow, 3, id="once")]
        await sim.until("r", parked)
        again = await handle.update(slow, 3, id="once")
        await handle.send(finish, 0)
        return results, again, await handle.result(), await entries(sim)

    results, again, result, journal = play(scenario)
    assert (results, again, result) == ([5, 11], 11, 11)
    assert calls == ["double 3"]
    answered = [one for one in journal if isinstance(one, UpdateAnswered)]
    received = [one for one in journal if isinstance(one, UpdateReceived)]
    assert [bytes(one.value) for one in answered] == [b"5", b"11"]
    assert [one.message_id for one in answered] == [one.message_id for one in received]
    assert received[1].message_id == "update/once"
    assert received[1].sender == "tester"


def test_a_handler_in_progress_outlives_parking_and_its_worker() -> None:
    """The worker dies while the handler's step runs; another one goes on, and the sender has waited."""

    async def scenario(sim: Simulation, handle: RunHandle[int]) -> Any:
        asked = sim.spawn(handle.update(slow, 4))
        while "double 4" not in calls:
            await asyncio.sleep(0.05)
        sim.workers[-1].kill()
        await sim.start_worker()
        return await asked

    assert play(scenario) == 8
    assert calls == ["double 4", "double 4"]


def test_what_handlers_wait_for_is_noted_when_a_run_is_parked() -> None:
    """For people: the signals and updates that it takes."""

    async def scenario(sim: Simulation, handle: RunHandle[int]) -> Any:
        return (await handle.status()).waits

    waits = play(scenario)
    assert waits["signals"] == ["update finish"]
    assert waits["updates"] == ["update add", "update slow", "update refuse"]


def test_an_update_before_its_handler_waits_for_it() -> None:
    """The run has not named it yet, or has not been taken up at all."""

    async def main(sim: Simulation) -> Any:
        handle = await sim.client.start(asks_later(), id="r")
        early = sim.spawn(handle.update(add, 1))
        await asyncio.sleep(1)
        await sim.start_worker()
        await sim.until("r", lambda head: head.owner is not None)
        second = await handle.update(add, 2)
        return await early, second, await handle.result()

    assert Simulation(CODE).run(main) == (1, 2, 3)


def error_of(work: Awaitable[Any]) -> Awaitable[OutlastError]:
    async def catch() -> OutlastError:
        with pytest.raises(OutlastError) as caught:
            await work
        return caught.value

    return catch()


def test_a_rejection_is_told_with_the_validators_words() -> None:
    """The cause is what it raised; the run goes on."""

    async def scenario(sim: Simulation, handle: RunHandle[int]) -> Any:
        return await error_of(handle.update(refuse, "not on a Friday"))

    error = play(scenario)
    assert type(error) is outlast.UpdateRejectedError
    assert error.message == ("the update 'update refuse' was rejected: ValueError: not on a Friday")
    assert isinstance(error.__cause__, ValueError)
    assert error.run == "r"


def test_a_value_of_another_type_is_rejected() -> None:
    """A sender that knows only the name learns what the type is."""

    async def scenario(sim: Simulation, handle: RunHandle[int]) -> Any:
        error = await error_of(handle.update("update add", "five"))
        return error, await handle.update("update add", 5)

    error, result = play(scenario)
    assert type(error) is outlast.UpdateRejectedError
    assert "expected int" in error.message
    assert result == 5


def test_a_failure_of_the_handler_is_the_senders() -> None:
    """The cause is that exception, rebuilt, and the run goes on."""

    async def scenario(sim: Simulation, handle: RunHandle[int]) -> Any:
        asked = sim.spawn(error_of(handle.update(slow, 3)))
        while not calls:
            await asyncio.sleep(0.05)
        await handle.resolve("m1:1", failed="no doubling today")
        return await asked, await handle.update(add, 1)

    error, result = play(scenario)
    assert type(error) is outlast.UpdateFailedError
    assert "failed: RuntimeError: no doubling today" in error.message
    assert isinstance(error.__cause__, RuntimeError)
    assert result == 1


def test_a_failing_run_fails_what_it_was_handling() -> None:
    """The sender is not told of a cancel that nobody asked for."""

    async def scenario(sim: Simulation, handle: RunHandle[int]) -> Any:
        asked = sim.spawn(error_of(handle.update(slow, 3)))
        while not calls:
            await asyncio.sleep(0.05)
        await handle.send(finish, 1)
        return await asked

    error = play(scenario, fails_later)
    assert type(error) is outlast.UpdateFailedError
    assert "CancelledError: the handler was cancelled" in error.message


def test_an_unreadable_update_is_answered_and_kept_as_an_alarm() -> None:
    """Nobody who sent it waits for ever, whatever wrote it."""

    async def scenario(sim: Simulation, handle: RunHandle[int]) -> Any:
        message = Message("update/raw", MessageKind.UPDATE, "update add", "somebody", b"{")
        await sim.client.commit(PutMessage(RUN, message))
        return await error_of(handle.update(add, 1, id="raw")), await entries(sim)

    error, journal = play(scenario)
    assert type(error) is outlast.UpdateRejectedError
    assert "could not be read" in error.message
    assert not any(isinstance(one, UpdateReceived) for one in journal)
    (alarm,) = [one for one in journal if isinstance(one, AlarmRaised)]
    assert alarm.what == "unreadable_message"


ENDS = {
    "cancel": (outlast.RunCancelledError, outlast.UpdateRejectedError, "has no handler for"),
    "terminate": (outlast.RunConflictError, outlast.RunConflictError, "was terminated before"),
    "end": (int, outlast.UpdateRejectedError, "completed before"),
}


@pytest.mark.parametrize("how", ENDS)
def test_every_sender_is_told_when_the_run_ends(how: str) -> None:
    """Of the update that is being handled, of one that no handler has, and of one that comes too late."""

    async def scenario(sim: Simulation, handle: RunHandle[int]) -> Any:
        handled = sim.spawn(error_or_value(handle.update(slow, 3)))
        unheard = sim.spawn(error_or_value(handle.update("nobody handles this")))
        while not calls:
            await asyncio.sleep(0.05)
        await (handle.send(finish, 0) if how == "end" else getattr(handle, how)("enough"))
        return await handled, await unheard, await error_or_value(handle.update(add, 1))

    handled, unheard, late = play(scenario)
    assert (type(handled), type(unheard)) == ENDS[how][:2]
    assert ENDS[how][2] in unheard.message
    assert type(late) is outlast.RunConflictError
    assert "has ended" in late.message


def test_updates_that_come_while_the_run_ends_are_all_answered() -> None:
    """Whatever moment they come at: taken in before the end is written, with it, or refused by the store (case 32)."""

    async def ask(handle: RunHandle[int], number: int) -> str:
        await asyncio.sleep(number * 0.002 if number < 90 else number - 89)
        try:
            await handle.update(add, 1, id=str(number))
        except outlast.UpdateRejectedError as error:
            assert "completed" in error.message
            return "rejected"
        except outlast.RunConflictError as error:
            assert "ended" in error.message
            return "closed"
        return "done"

    async def scenario(sim: Simulation, handle: RunHandle[int]) -> Any:
        asked = [sim.spawn(ask(handle, number)) for number in range(100)]
        await asyncio.sleep(0.1)
        await handle.send(finish, 0)
        said = await asyncio.gather(*asked)
        return said, await handle.result(), await entries(sim)

    totals: Counter[str] = Counter()
    for seed in range(3):
        said, result, journal = play(scenario, seed=seed, faults=Faults(latency=0.02))
        totals.update(said)
        assert result == said.count("done")
        assert isinstance(journal[-1], Completed)
        ids = [one.message_id for one in journal if isinstance(one, UpdateReceived)]
        answered = [one.message_id for one in journal if isinstance(one, UpdateAnswered)]
        assert sorted(ids) == sorted(answered)
        assert len(ids) == len(set(ids)) == 100 - said.count("closed")
    assert set(totals) == {"rejected", "closed", "done"}, totals


@pytest.mark.parametrize(("latency", "gap"), [(0.01, 0.005), (0.1, 0.02)])
@pytest.mark.parametrize("kind", ["signals", "updates"])
def test_a_run_ends_however_fast_messages_come(kind: str, latency: float, gap: float) -> None:
    """They come faster than a look at the inbox and a write together; before it ends the run takes no more of them."""

    async def scenario(sim: Simulation, handle: RunHandle[int]) -> float:
        async def flood() -> None:
            tasks = []
            for _ in range(1000):
                send = handle.send("flood") if kind == "signals" else handle.update(add, 0)
                tasks.append(sim.spawn(error_or_value(send)))
                await asyncio.sleep(gap)

        flooding = sim.spawn(flood())
        await asyncio.sleep(0.05)
        await handle.send(finish, 0)
        began = sim.clock.monotonic()
        await sim.closed("r")
        flooding.cancel()
        return sim.clock.monotonic() - began

    assert play(scenario, faults=Faults(latency=latency)) < 3


async def error_or_value(work: Awaitable[Any]) -> Any:
    try:
        return await work
    except OutlastError as error:
        return error


async def _update_and_finish(client: Client) -> None:
    handle: RunHandle[int] = client.handle("counted")
    assert await handle.update(add, 1, id="a") == 1
    assert await handle.update(slow, 2, id="b") == 5
    with pytest.raises(outlast.UpdateRejectedError):
        await handle.update(refuse, "no", id="c")
    await handle.send(finish, 0, id="d")


def test_every_crash_leaves_each_sender_its_answer() -> None:
    """Before and after each commit and each step: the senders of the workload see the same answers, and the run ends the same."""
    workload = Workload(counter, id="counted", definitions=CODE, meanwhile=_update_and_finish)
    trials = list(every_crash(workload))
    assert len(trials) > 10
    for trial in trials:
        assert trial.result == 5, trial
        kinds = [one.entry for one in trial.journal if isinstance(one.entry, UpdateAnswered)]
        assert len(kinds) == 3, trial
