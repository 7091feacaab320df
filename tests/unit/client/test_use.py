"""An id that is started anew is another run: what a handle of the former one waits for, and what it can no longer do."""

# ruff: noqa: D103 - the workflows of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

import outlast
from outlast.client import RunHandle
from outlast.errors import DefinitionError, RunConflictError, RunTerminatedError
from outlast.store.change import RunKey, Status
from outlast.testing import Simulation
from outlast.worker.worker import WorkerOptions
from outlast.workflows.definition import Workflow

SHORT = WorkerOptions(library="simulated", idle=timedelta(milliseconds=200))

GO = outlast.Signal("use go", int)
ADD = outlast.Update("use add", int, int)


@outlast.workflow
async def wait(number: int) -> int:
    outlast.on_update(ADD, lambda more: number + more)
    return 100 * number + await outlast.receive(GO)


@outlast.workflow
async def roll(left: int) -> int:
    got = await outlast.receive(GO)
    if left:
        outlast.continue_as_new(roll(left - 1))
    return got


@outlast.workflow
async def turn() -> int:
    await outlast.receive(GO)
    outlast.continue_as_new(wait(7))


CODE = [wait, roll, turn]


def simulate(scenario: Callable[[Simulation], Awaitable[Any]]) -> Any:
    async def main(sim: Simulation) -> Any:
        await sim.start_worker()
        return await scenario(sim)

    return Simulation(CODE, options=SHORT).run(main)


async def anew(sim: Simulation, number: int = 2) -> RunHandle[int]:
    """Begin another run under the id."""
    await sim.closed("r")
    return await sim.client.start(wait(number), id="r", if_closed="restart")


def test_a_result_is_that_of_the_run_that_was_started() -> None:
    """Whatever the id stands for by the time it is asked for; the handle of the id alone means what it stands for."""

    async def scenario(sim: Simulation) -> Any:
        first = await sim.client.start(wait(1), id="r")
        attached = await sim.client.start(wait(1), id="r")
        waiting = sim.spawn(first.result())
        await first.send(GO, 5)
        second = await anew(sim)
        await second.send(GO, 6)
        by_id = sim.client.handle("r", wait)
        results = [await one.result() for one in (first, attached, second, by_id)]
        return [await waiting, *results]

    assert simulate(scenario) == [105, 105, 105, 206, 206]


def test_who_waits_by_id_waits_for_the_run_that_has_it_then() -> None:
    """It does not go on to wait for the next one."""

    async def scenario(sim: Simulation) -> Any:
        first = await sim.client.start(wait(1), id="r")
        head = await sim.client.head(RunKey("default", "r"))
        await first.terminate("enough")
        await anew(sim)
        # As one who was asleep meanwhile.
        after = await sim.client.wait_closed(head.run, head.incarnation)
        return head.incarnation, after.incarnation, after.status.closed

    assert simulate(scenario) == (1, 2, False)


def test_a_former_run_that_was_terminated_says_so() -> None:
    """Why is not known any more."""

    async def scenario(sim: Simulation) -> Any:
        first = await sim.client.start(wait(1), id="r")
        await first.terminate("enough")
        await anew(sim)
        with pytest.raises(RunTerminatedError, match="another run since") as caught:
            await first.result()
        return caught.value.run

    assert simulate(scenario) == "r"


def test_a_former_run_has_the_result_of_its_last_generation() -> None:
    """Roll-overs are the same run, and what follows the last of them under the id is not."""

    async def scenario(sim: Simulation) -> Any:
        first = await sim.client.start(roll(2), id="r")
        for number in (1, 2, 3):
            await first.send(GO, number)
        second = await anew(sim)
        await second.send(GO, 6)
        assert await second.result() == 206
        return await first.result(), (await sim.client.head(RunKey("default", "r"))).generation

    assert simulate(scenario) == (3, 4)


ACTS: dict[str, Callable[[RunHandle[int]], Awaitable[Any]]] = {
    "send": lambda handle: handle.send(GO, 9),
    "update": lambda handle: handle.update(ADD, 9),
    "cancel": lambda handle: handle.cancel("old"),
    "pause": lambda handle: handle.pause("old"),
    "resume": lambda handle: handle.resume("old"),
    "terminate": lambda handle: handle.terminate("old"),
    "resolve": lambda handle: handle.resolve("r:1", failed="old"),
    "accept": lambda handle: handle.accept(history=1_000_000, reason="old"),
    "fork": lambda handle: handle.fork(id="fork", reason="old"),
    "retry": lambda handle: handle.retry(reason="old"),
}


@pytest.mark.parametrize("act", list(ACTS))
def test_nothing_of_a_former_handle_reaches_the_new_run(act: str) -> None:
    """It is refused with an error that says what has happened, and the new run is as it was."""

    async def scenario(sim: Simulation) -> Any:
        first = await sim.client.start(wait(1), id="r")
        await first.send(GO, 5)
        second = await anew(sim)
        with pytest.raises(RunConflictError, match="its id has begun another run since"):
            await ACTS[act](first)
        await second.send(GO, 6)
        return await second.result(), len(await sim.store.heads("default"))

    assert simulate(scenario) == (206, 1)


def test_a_message_that_the_former_run_has_taken_is_taken() -> None:
    """Sent again under its id it is that message, also when the id has begun another run."""

    async def scenario(sim: Simulation) -> Any:
        first = await sim.client.start(wait(1), id="r")
        await first.send(GO, 5, id="mail")
        second = await anew(sim)
        await first.send(GO, 5, id="mail")
        await second.send(GO, 6)
        return await second.result()

    assert simulate(scenario) == 206


def test_a_handle_stays_that_of_a_run_that_continues_as_new() -> None:
    """Also one that was attached to a later generation."""

    async def scenario(sim: Simulation) -> Any:
        first = await sim.client.start(roll(2), id="r")
        await first.send(GO, 1)
        await sim.until("r", lambda head: head.generation == 2)
        attached = await sim.client.start(roll(2), id="r")
        await attached.send(GO, 2)
        await sim.until("r", lambda head: head.generation == 3)
        await first.send(GO, 3)
        return await first.result(), await attached.result()

    assert simulate(scenario) == (3, 3)


# What a start finds


def test_a_message_with_a_start_finds_a_run_that_continued_as_another_workflow() -> None:
    """As a start does: the id was begun with that workflow. One that it only became is another."""

    async def scenario(sim: Simulation) -> Any:
        handle = await sim.client.start(turn(), id="r")
        await handle.send(GO, 1)
        await sim.until("r", lambda head: head.workflow == "wait")
        with pytest.raises(RunConflictError, match="the workflow wait"):
            await sim.client.signal_with_start(wait(7), GO, 4, id="r")
        answer = await sim.client.update_with_start(turn(), ADD, 1, id="r")
        again = await sim.client.signal_with_start(turn(), GO, 3, id="r")
        return answer, await again.result()

    assert simulate(scenario) == (8, 703)


def test_a_start_that_comes_again_after_a_parameter_was_added_is_the_same() -> None:
    """What is stored is compared as today's code reads it; another value of the new parameter is other input."""

    async def before(number: int) -> int:
        return number

    async def after(number: int, factor: int = 1) -> int:
        return number * factor

    async def scenario(sim: Simulation) -> Any:
        old, new = Workflow(before, "grown"), Workflow(after, "grown")
        await sim.client.start(old(3), id="r")
        await sim.client.start(new(3), id="r")
        for call in (new(3, 2), new(4)):
            with pytest.raises(RunConflictError, match="other input"):
                await sim.client.start(call, id="r")
        return (await sim.client.head(RunKey("default", "r"))).status

    assert simulate(scenario) is Status.READY


@pytest.mark.parametrize("with_message", [False, True])
def test_a_word_that_says_nothing_of_a_closed_run_is_refused(with_message: bool) -> None:
    """Before anything is written."""

    async def scenario(sim: Simulation) -> Any:
        wrong: Any = "restrat"
        with pytest.raises(DefinitionError, match="if_closed='restrat'"):
            if with_message:
                await sim.client.signal_with_start(wait(1), GO, 1, id="r", if_closed=wrong)
            else:
                await sim.client.start(wait(1), id="r", if_closed=wrong)
        return await sim.store.heads("default")

    assert simulate(scenario) == []


def test_a_closed_run_that_is_sent_a_message_with_a_start_names_the_way() -> None:
    """The error says what `if_closed` would do."""

    async def scenario(sim: Simulation) -> Any:
        handle = await sim.client.start(wait(1), id="r")
        await handle.send(GO, 1)
        await sim.closed("r")
        with pytest.raises(RunConflictError, match="has ended") as caught:
            await sim.client.signal_with_start(wait(1), GO, 2, id="r")
        return caught.value.hint

    assert "if_closed='restart'" in simulate(scenario)


# Another message under the same id


def test_another_message_under_the_same_id_is_refused() -> None:
    """Another value, or another name; the first one counts, and the same one again is no error."""

    async def scenario(sim: Simulation) -> Any:
        handle = await sim.client.start(wait(1), id="r")
        await handle.pause()
        await handle.send(GO, 5, id="mail")
        for name, value in (("use go", 6), ("use other", 5), ("use go", "5")):
            with pytest.raises(RunConflictError, match="'mail' with another name or value"):
                await handle.send(name, value, id="mail")
        # The same JSON by name as by type.
        await handle.send("use go", 5, id="mail")
        await sim.client.signal_with_start(wait(1), GO, 5, id="r", message_id="mail")
        with pytest.raises(RunConflictError, match="the first one counts"):
            await sim.client.signal_with_start(wait(1), GO, 6, id="r", message_id="mail")
        await handle.resume()
        result = await handle.result()
        with pytest.raises(RunConflictError, match="the first one counts"):
            await handle.send(GO, 6, id="mail")
        await handle.send(GO, 5, id="mail")
        return result

    assert simulate(scenario) == 105


def test_another_update_under_the_same_id_is_refused() -> None:
    """Its sender is not given the answer to the first one; the sender of the same one is."""

    async def scenario(sim: Simulation) -> Any:
        handle = await sim.client.start(wait(1), id="r")
        answers = [await handle.update(ADD, 5, id="u")]
        with pytest.raises(RunConflictError, match="'u' with another name or value"):
            await handle.update(ADD, 6, id="u")
        with pytest.raises(RunConflictError, match="'u' with another name or value"):
            await sim.client.update_with_start(wait(1), ADD, 6, id="r", update_id="u")
        answers.append(await handle.update(ADD, 5, id="u"))
        # A signal has ids of its own.
        await handle.send(GO, 1, id="u")
        return answers, await handle.result()

    assert simulate(scenario) == ([6, 6], 101)


def test_another_message_than_the_early_one_starts_nothing() -> None:
    """Of what came before the run the first one counts, too."""

    async def scenario(sim: Simulation) -> Any:
        await sim.client.handle("r").send(GO, 5, id="mail", early=True)
        with pytest.raises(RunConflictError, match="the first one counts"):
            await sim.client.signal_with_start(wait(1), GO, 6, id="r", message_id="mail")
        before = await sim.store.heads("default")
        handle = await sim.client.signal_with_start(wait(1), GO, 5, id="r", message_id="mail")
        return before, await handle.result()

    assert simulate(scenario) == ([], 105)


@pytest.mark.parametrize("name", ["", " ", "a\x1bb", "a:b", "a#b"])
def test_a_name_that_no_message_can_have_is_refused(name: str) -> None:
    """By name as by `Signal`: nothing is sent that no code could take."""

    async def scenario(sim: Simulation) -> Any:
        handle = await sim.client.start(wait(1), id="r")
        with pytest.raises(DefinitionError, match="cannot be the name of a signal"):
            await handle.send(name, 1)
        with pytest.raises(DefinitionError, match="cannot be the name of an update"):
            await handle.update(name, 1)
        return await sim.store.mail(RunKey("default", "r"))

    assert simulate(scenario) == ()


def test_an_update_that_nobody_awaits_is_refused_by_the_former_run_alone() -> None:
    """Who waits for an answer of a run that was terminated is told so, also when the id has begun another run."""

    async def scenario(sim: Simulation) -> Any:
        handle = await sim.client.start(wait(1), id="r")
        await handle.pause()
        await sim.until("r", lambda head: head.status is Status.PAUSED)
        asking = sim.spawn(handle.update(ADD, 1))
        await asyncio.sleep(1)
        await handle.terminate("enough")
        await anew(sim)
        with pytest.raises(RunConflictError, match="terminated before it answered"):
            await asking

    simulate(scenario)
