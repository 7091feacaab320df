"""A run that continues as new: one handle, one inbox, keys and a journal of its own for each generation."""

# ruff: noqa: D103 - the workflows of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import apsw
import pytest

import outlast
from outlast.client import Generation
from outlast.effects.key import idempotency_key
from outlast.errors import RunCancelledError, RunNotFoundError
from outlast.journal.canonical import payload_sha256
from outlast.journal.entry import (
    AlarmRaised,
    CancelRequested,
    ContinuedAsNew,
    EffectIntended,
    MessageReceived,
    Started,
    Taken,
)
from outlast.store.change import RunKey, Status
from outlast.testing import Faults, Simulation
from outlast.worker.intake import MOST_UNHANDLED

word = outlast.Signal("word", int)
other = outlast.Signal("another word", int)
count = outlast.Update("count", int, int)


@outlast.step
async def look(n: int) -> int:
    await asyncio.sleep(0.5)
    return n


@outlast.effect(idempotent=True)
async def pay(n: int) -> str:
    return outlast.idempotency_key()


@outlast.workflow
async def pays(left: int, keys: list[str]) -> list[str]:
    keys = [*keys, await pay(7)]
    if left:
        outlast.continue_as_new(pays(left - 1, keys))
    return keys


@outlast.workflow
async def hears(left: int, seen: list[int], each: int = 10) -> list[int]:
    """Take some messages a generation."""
    for _ in range(each):
        seen.append(await outlast.receive(word))
    if left > each:
        outlast.continue_as_new(hears(left - each, seen, each))
    return seen


@outlast.workflow
async def hears_slowly(left: int, seen: list[int]) -> list[int]:
    seen.append(await outlast.receive(word))
    await look(1)
    if left > 1:
        outlast.continue_as_new(hears_slowly(left - 1, seen))
    return seen


@outlast.workflow
async def rolls_for_ever(n: int) -> None:
    await look(n)
    outlast.continue_as_new(rolls_for_ever(n + 1))


@outlast.workflow
async def first_half(n: int) -> str:
    outlast.continue_as_new(second_half(n + 1))


@outlast.workflow
async def second_half(n: int) -> str:
    return f"{outlast.info().workflow} of {n}"


@outlast.workflow
async def asks_and_rolls(n: int) -> int:
    if n:
        return n
    task = asyncio.create_task(outlast.approval("ship", role="boss", expires_in=timedelta(hours=1)))
    await outlast.receive(word)
    assert not task.done()
    return outlast.continue_as_new(asks_and_rolls(1))


@outlast.step(
    retry=outlast.RetryPolicy(initial_interval=timedelta(hours=1), backoff_coefficient=1.0)
)
async def fails() -> str:
    raise OSError("down")


@outlast.workflow
async def fails_in_each(number: int) -> str:
    said = await fails()
    if number == 1:
        outlast.continue_as_new(fails_in_each(2))
    return said


@outlast.step
async def look_longer() -> None:
    await asyncio.sleep(0.6)


@outlast.workflow
async def notes(left: int, seen: list[int], added: int) -> list[int]:
    """Handle what comes; go on at a word that may have come with it."""

    def add(n: int) -> int:
        nonlocal added
        added += n
        return added

    outlast.on_signal(other, seen.append)
    outlast.on_update(count, add)
    if left == 2:
        await asyncio.gather(look(1), look_longer())
    else:
        await outlast.receive(word)
    if left:
        outlast.continue_as_new(notes(left - 1, seen, added))
    return [*seen, added]


CODE = [
    *(look, pay, pays, hears, hears_slowly, rolls_for_ever, first_half, second_half),
    *(asks_and_rolls, fails, fails_in_each, look_longer, notes),
]


def test_what_is_said_of_an_operation_is_said_of_one_generation() -> None:
    """Operations of two generations have equal ids: what somebody saw in the first one is not done to the second one."""

    async def scenario(sim: Simulation) -> tuple[str, list[str]]:
        await sim.start_worker()
        handle = await sim.client.start(fails_in_each(1), id="r")
        await asyncio.sleep(2)
        await handle.resolve("r:1", applied="the first", generation=1)
        await asyncio.sleep(2)
        await handle.resolve("r:1", applied="too late", generation=1)
        await asyncio.sleep(2)
        await handle.resolve("r:1", applied="the second")
        result = await handle.result()
        journal = [one.entry for one in await handle.journal()]
        return result, [one.what for one in journal if isinstance(one, AlarmRaised)]

    assert Simulation(CODE).run(scenario) == ("the second", ["unfit_outcome"])


def test_each_generation_has_keys_and_a_journal_of_its_own() -> None:
    """The namespace of keys ends in `~n`; result, status and journals are reached by the one handle."""

    async def scenario(sim: Simulation) -> Any:
        await sim.start_worker()
        handle = await sim.client.start(pays(2, []), id="r")
        keys = await handle.result()
        journals = [await handle.journal(generation=n) for n in (1, 2, 3)]
        with pytest.raises(RunNotFoundError, match="no generation 4"):
            await handle.journal(generation=4)
        return (
            keys,
            await handle.status(),
            journals,
            await handle.generations(),
            await handle.journal(),
        )

    keys, status, journals, generations, present = Simulation(CODE).run(scenario)
    payload = payload_sha256({"n": 7})
    assert keys == [idempotency_key(f"r{one}", "pay", payload) for one in ("", "~2", "~3")]
    assert (status.status, status.generation, status.workflow) == (Status.COMPLETED, 3, "pays")
    assert present == journals[-1]
    starts = [one[0].entry for one in journals]
    assert [one.namespace for one in starts] == ["r", "r~2", "r~3"]
    assert {one.principal for one in starts} == {"tester"}
    assert len({one.seed for one in starts}) == 3
    assert [type(one[-1].entry).__name__ for one in journals] == [
        "ContinuedAsNew",
        "ContinuedAsNew",
        "Completed",
    ]
    assert [(one.generation, one.entries, one.ended) for one in generations] == [
        (3, 5, "completed"),
        (2, 5, "continued as new"),
        (1, 5, "continued as new"),
    ]
    assert all(isinstance(one, Generation) for one in generations)


@pytest.mark.parametrize("seed", range(5))
def test_messages_are_heard_once_and_in_order(seed: int) -> None:
    """Whatever was delivered and not taken, arrived meanwhile or was sent twice, on a bad way to the store."""

    async def scenario(sim: Simulation) -> list[int]:
        await sim.start_worker()
        handle = await sim.client.start(hears_slowly(30, []), id="r")
        for n in range(30):
            for _ in range(2):
                await handle.send(word, n, id=str(n))
            if n % 5 == 0:
                await asyncio.sleep(0.7)
        return await handle.result()

    faults = Faults(latency=0.1, lost_answer=0.05, lost_request=0.05, lost_hint=0.2)
    assert Simulation(CODE, seed=seed, faults=faults).run(scenario) == list(range(30))


def test_little_is_carried_from_generation_to_generation() -> None:
    """However many messages wait, those that the workflow does not come to stay in the inbox: journals stay short."""

    async def scenario(sim: Simulation) -> Any:
        handle = await sim.client.start(hears(1000, []), id="r")
        for n in range(1000):
            await handle.send(word, n, id=str(n))
        await sim.start_worker()
        result = await handle.result()
        generations = await handle.generations(limit=1000)
        first = await handle.journal(generation=1)
        return result, generations, first

    result, generations, first = Simulation(CODE).run(scenario)
    assert result == list(range(1000))
    assert len(generations) == 100
    assert max(one.entries for one in generations) <= MOST_UNHANDLED * 2 + 20
    assert [type(one.entry) for one in first[:2]] == [Started, Taken]
    assert isinstance(first[-1].entry, ContinuedAsNew)


def test_what_is_carried_stands_before_the_first_claim() -> None:
    """In one turn, with the ids that it was sent by: a replay finds it where the run found it."""

    async def scenario(sim: Simulation) -> Any:
        handle = await sim.client.start(hears_slowly(2, []), id="r")
        for n in range(3):
            await handle.send(word, n, id=str(n))
        await sim.start_worker()
        await handle.result()
        return await handle.journal(generation=2)

    journal = Simulation(CODE).run(scenario)
    assert [type(one.entry) for one in journal[:4]] == [
        Started,
        MessageReceived,
        MessageReceived,
        Taken,
    ]
    assert journal[1].turn == journal[2].turn == 1
    assert [one.entry.message_id for one in journal[1:3]] == ["signal/1", "signal/2"]


def test_another_workflow_may_go_on_elsewhere() -> None:
    """A worker that does not have it gives the run to one that does; the handle knows the type of the result."""

    async def scenario(sim: Simulation) -> Any:
        await sim.start_worker(definitions=[first_half])
        handle = await sim.client.start(first_half(1), id="r")
        await sim.until("r", lambda head: head.generation == 2)
        await asyncio.sleep(30)
        waiting = await handle.status()
        await sim.start_worker(definitions=[second_half])
        return waiting.status, waiting.workflow, await handle.result()

    assert Simulation(CODE).run(scenario) == (Status.READY, "second_half", "second_half of 2")


def test_the_same_start_attaches_after_roll_overs() -> None:
    """The event that has started the run may come again: it is the same run, whatever it is doing now."""

    async def scenario(sim: Simulation) -> Any:
        await sim.start_worker()
        handle = await sim.client.start(pays(2, []), id="r")
        await sim.until("r", lambda head: head.generation > 1)
        again = await sim.client.start(pays(2, []), id="r")
        assert await again.result() == await handle.result()
        with pytest.raises(outlast.RunConflictError, match="other input"):
            await sim.client.start(pays(1, []), id="r")
        fresh = await sim.client.start(pays(0, []), id="r", if_closed="restart")
        return await fresh.result(), (await fresh.status()).generation

    keys, generation = Simulation(CODE).run(scenario)
    assert keys == [idempotency_key("r~4", "pay", payload_sha256({"n": 7}))]
    assert generation == 4


def test_a_start_whose_answer_was_lost_is_ours_after_a_roll_over() -> None:
    """Whoever asks again learns that the run which has gone on meanwhile is the one that was started."""

    async def scenario(sim: Simulation) -> bool:
        await sim.start_worker()
        handle = await sim.client.start(rolls_for_ever(0), id="r")
        head = await sim.until("r", lambda head: head.generation == 4)
        first = (await handle.journal(generation=1))[0].entry
        assert isinstance(first, Started)
        mine = await sim.client._is_ours(head, 1, first.seed)
        assert not await sim.client._is_ours(head, 1, b"x" * 16)
        assert not await sim.client._is_ours(head, 4, first.seed)
        await handle.terminate()
        return mine

    assert Simulation(CODE).run(scenario)


@pytest.mark.parametrize("after", [n / 20 for n in range(24)])
def test_a_cancel_that_races_with_a_roll_over_is_not_lost(after: float) -> None:
    """Whenever it comes, one generation takes it in, and the run ends by it."""

    async def scenario(sim: Simulation) -> Any:
        await sim.start_worker()
        handle = await sim.client.start(rolls_for_ever(0), id="r")
        await asyncio.sleep(after)
        await handle.cancel("enough")
        with pytest.raises(RunCancelledError, match="enough"):
            await handle.result()
        return await handle.journal()

    faults = Faults(latency=0.05)
    journal = Simulation(CODE, seed=int(after * 20), faults=faults).run(scenario)
    assert sum(isinstance(one.entry, CancelRequested) for one in journal) == 1


def test_what_is_carried_over_again_and_again_is_handled_once() -> None:
    """A generation that ends before a handler has begun leaves its message to the next one: nothing that it would say is lost."""

    async def scenario(sim: Simulation) -> tuple[int, list[int]]:
        worker = await sim.start_worker()
        handle = await sim.client.start(notes(2, [], 0), id="r")
        await asyncio.sleep(0.3)
        worker.store.faults = Faults(down=True)
        await asyncio.sleep(0.4)
        await handle.send(other, 1)
        answer = asyncio.ensure_future(handle.update(count, 5))
        await asyncio.sleep(0.1)
        await handle.send(word, 1)
        worker.store.faults = Faults()
        result = await answer
        await handle.send(other, 2)
        await handle.send(word, 2)
        return result, await handle.result()

    assert Simulation(CODE).run(scenario) == (5, [1, 2, 5])


def test_what_was_asked_is_withdrawn() -> None:
    """A pending request goes with the generation that has asked; a decision on it is refused."""

    async def scenario(sim: Simulation) -> Any:
        await sim.start_worker()
        handle = await sim.client.start(asks_and_rolls(0), id="r")
        while not (views := await sim.client.approvals.list()):
            await asyncio.sleep(0.1)
        await handle.send(word, 1)
        assert await handle.result() == 1
        assert await sim.client.approvals.list() == []
        with pytest.raises(outlast.DecisionRefusedError):
            await sim.client.approvals.approve(
                "r", views[0].approval_id, seen_sha256=views[0].subject_sha256
            )
        return await sim.client.approvals.list(pending=False)

    (kept,) = Simulation(CODE).run(scenario)
    assert kept.state == "withdrawn"


def test_a_hundred_generations_keep_the_file_small(tmp_path: Any) -> None:
    """Only journals are kept: a message once, no row of what was open, and what a worker loads is the last generation."""
    file = tmp_path / "s.db"

    async def main() -> Any:
        app = outlast.open(f"sqlite:///{file}", workflows=[hears])
        async with app:
            handle = await app.start(hears(200, [], 2), id="r")
            for n in range(200):
                await handle.send(word, n, id=str(n))
            result = await handle.result()
            image = await app.store.load(RunKey("default", "r"))
            assert image is not None
            former = await handle.journal(generation=50)
            return result, len(image.rows), len(former), await handle.generations(limit=1000)

    result, loaded, former, generations = asyncio.run(main())
    assert result == list(range(200))
    assert len(generations) == 100
    assert max(loaded, former) < 300
    database = apsw.Connection(str(file))
    count = {
        table: database.execute(f"SELECT count(*) FROM {table}").get
        for table in ("run", "message", "operation", "approval", "outbox", "entry")
    }
    bodies = database.execute("SELECT sum(length(body)) FROM message").get
    database.close()
    assert (count["run"], count["message"], bodies) == (1, 200, 0)
    assert (count["operation"], count["approval"], count["outbox"]) == (0, 0, 0)
    assert count["entry"] == sum(one.entries for one in generations) < 15_000


def test_an_effect_in_doubt_holds_the_roll_over_up() -> None:
    """What was intended is settled by this generation: its key is of this one, and nobody forgets it."""

    @outlast.effect(start_to_close_timeout=timedelta(seconds=5))
    async def lose(n: int) -> int:
        raise OSError("the answer was lost")

    @outlast.workflow
    async def doubts(n: int) -> str:
        if n:
            return "gone on"
        asyncio.create_task(lose(1))
        await outlast.sleep(10)
        return outlast.continue_as_new(doubts(1))

    async def scenario(sim: Simulation) -> Any:
        await sim.start_worker()
        handle = await sim.client.start(doubts(0), id="r")
        blocked = await sim.until("r", lambda head: head.status is Status.BLOCKED)
        await asyncio.sleep(60)
        assert (await handle.status()).generation == 1
        await handle.resolve("r:1", not_applied=True, reason="looked it up")
        await sim.until(
            "r", lambda head: head.status is Status.BLOCKED and head.version > blocked.version
        )
        await handle.resolve("r:1", applied=5)
        return blocked.reason, await handle.result(), await handle.journal(generation=1)

    reason, result, journal = Simulation([lose, doubts]).run(scenario)
    assert (reason, result) == ("in doubt", "gone on")
    assert sum(isinstance(one.entry, EffectIntended) for one in journal) == 1
    assert isinstance(journal[-1].entry, ContinuedAsNew)
