"""Durability modes: how often a run writes, what it may lose, what it may not, and what it has seen when it is written."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import outlast
from outlast.client import JournalEntry, RunDetail
from outlast.errors import DefinitionError
from outlast.journal.entry import Durability, StepCompleted, TimerFired
from outlast.store.change import Refused, RunChange, RunKey, Status
from outlast.testing import Faults, Simulation
from outlast.worker import buffer
from outlast.worker.worker import WorkerOptions

MODES: tuple[Durability, ...] = ("sync", "async", "exit")
SLOW = Faults(latency=0.2)
RUN = RunKey("default", "r")
bodies: Counter[str] = Counter()
go = outlast.Signal("go", int)
ask = outlast.Update("ask", int, int)
looks: list[int] = []
tokens: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_happened() -> None:
    bodies.clear()
    looks.clear()
    tokens.clear()


@outlast.step
async def add(total: int, number: int) -> int:
    bodies[f"add {number}"] += 1
    await asyncio.sleep(0.05)
    return total + number


@outlast.step(retry=outlast.RetryPolicy(initial_interval=timedelta(seconds=1)))
async def second_time() -> int:
    bodies["second_time"] += 1
    if outlast.attempt().number == 1:
        raise OSError("not yet")
    return 1


@outlast.step
async def cursed() -> int:
    return 1


@outlast.step
async def hand() -> int:
    bodies["hand"] += 1
    tokens.append(outlast.completion_token())
    outlast.complete_later()


@outlast.effect(idempotent=True)
async def pay(amount: int) -> int:
    bodies["pay"] += 1
    return amount


@outlast.workflow
async def count_up(steps: int) -> int:
    total = 0
    for number in range(steps):
        total = await add(total, number)
    return total


@outlast.workflow
async def pay_between() -> int:
    return await count(await pay(await count(3)))


async def count(steps: int) -> int:
    return await asyncio.ensure_future(count_up.function(steps))


@outlast.workflow
async def publish_and_wait() -> int:
    total = await add(1, 1)
    outlast.publish("total", total)
    return await add(total, await outlast.receive(go))


@outlast.workflow
async def rest_between() -> int:
    total = await count(3)
    await outlast.sleep(60)
    return total + await add(total, 7)


@outlast.workflow
async def fail_between() -> int:
    return await count(3) + await second_time()


@outlast.workflow
async def curse() -> int:
    return await count(2) + await cursed()


@outlast.workflow
async def moments(steps: int) -> list[str]:
    seen: list[str] = []
    for number in range(steps):
        await add(0, number)
        seen.append(outlast.now().isoformat())
    await outlast.sleep(0.3)
    return [*seen, outlast.now().isoformat()]


@outlast.workflow
async def unsteady() -> int:
    total = await count(2)
    looks.append(1)
    if len(looks) > 1:
        return 0
    return await add(total, 9)


@outlast.workflow
async def hands_out() -> int:
    return await count(3) + await hand()


@outlast.workflow
async def serves() -> int:
    heard: list[int] = []

    async def answer(value: int) -> int:
        heard.append(value)
        return await add(value, 1)

    outlast.on_update(ask, answer)
    total = await count(2)
    await outlast.wait_condition(lambda: bool(heard))
    return total + await outlast.receive(go)


@outlast.workflow(durability="exit")
async def child() -> str:
    return "child"


@outlast.workflow(durability="async")
async def parent() -> str:
    return await outlast.run_child(child(), id="kid")


@outlast.workflow(durability="async")
async def rolls(left: int) -> int:
    if left:
        outlast.continue_as_new(rolls(left - 1))
    return await add(1, 1)


CODE = [
    *(add, second_time, cursed, hand, pay, count_up, pay_between, publish_and_wait, rest_between),
    *(fail_between, curse, moments, unsteady, hands_out, serves, child, parent, rolls),
]


async def kinds(sim: Simulation) -> list[str]:
    """Return the kinds of the entries that are in the journal now."""
    return [one.row.kind for one in await sim.store.journal(RUN)]


# How often it writes


@pytest.mark.parametrize(
    ("mode", "most", "least"), [("sync", 12, 12), ("async", 11, 3), ("exit", 2, 2)]
)
def test_ten_steps_at_a_slow_store(mode: Durability, most: int, least: int) -> None:
    """`sync` writes each outcome, `async` what has come since the last write, `exit` nothing between start and end."""

    async def scenario(sim: Simulation) -> tuple[int, int, float]:
        worker = await sim.start_worker()
        result = await worker.client.run(count_up(10), id="r", durability=mode)
        return result, worker.store.commits, sim.clock.monotonic()

    result, commits, _ = Simulation(CODE, faults=SLOW).run(scenario)
    assert result == 45
    assert least <= commits <= most
    assert set(bodies.values()) == {1}


def test_a_run_does_not_wait_for_the_store() -> None:
    """The steps of an `async` run take the time of their bodies; those of a `sync` one that of the writes too."""

    def seconds(mode: Durability) -> float:
        async def scenario(sim: Simulation) -> float:
            worker = await sim.start_worker()
            began = sim.clock.monotonic()
            await worker.client.run(count_up(20), id="r", durability=mode)
            return sim.clock.monotonic() - began

        return Simulation(CODE, faults=SLOW).run(scenario)

    assert seconds("async") < 20 * 0.05 + 6 * 0.4
    assert seconds("exit") < 20 * 0.05 + 2 * 0.4 + 0.5
    assert seconds("sync") > 20 * 0.05 + 20 * 0.1


def test_an_effect_in_a_run_that_writes_at_its_end() -> None:
    """Start, intent with all before it, outcome, end with all since: four writes."""

    async def scenario(sim: Simulation) -> int:
        worker = await sim.start_worker()
        await worker.client.run(pay_between(), id="r", durability="exit")
        return worker.store.commits

    assert Simulation(CODE).run(scenario) == 4
    assert bodies["pay"] == 1


def test_so_much_is_unwritten_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the limit, in entries or in bytes, the run waits for the store, in every mode."""

    def commits(mode: Durability) -> int:
        async def scenario(sim: Simulation) -> int:
            worker = await sim.start_worker()
            await worker.client.run(count_up(20), id="r", durability=mode)
            return worker.store.commits

        return Simulation(CODE).run(scenario)

    assert commits("exit") == 2
    monkeypatch.setattr(buffer, "MOST_ENTRIES", 5)
    assert commits("exit") == 5
    monkeypatch.setattr(buffer, "MOST_ENTRIES", 1_000)
    monkeypatch.setattr(buffer, "MOST_BYTES", 1)
    assert commits("exit") == 12


def test_a_store_that_is_away_stops_an_async_run_at_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is on its way counts too: a run does not go on for ever without its store."""
    monkeypatch.setattr(buffer, "MOST_ENTRIES", 5)

    async def scenario(sim: Simulation) -> tuple[int, int]:
        worker = await sim.start_worker()
        await worker.client.start(count_up(30), id="r", durability="async")
        worker.store.faults = Faults(unavailable=1.0)
        await asyncio.sleep(3.5)
        done = sum(bodies.values())
        worker.store.faults = Faults()
        await sim.closed("r")
        return done, sum(bodies.values())

    done, all_in_all = Simulation(CODE).run(scenario)
    assert (done, all_in_all) == (6, 30)


# What is written when


@pytest.mark.parametrize("mode", MODES)
def test_a_published_value_is_seen_while_the_run_goes_on(mode: Durability) -> None:
    """And what came before it is in the journal then."""

    async def scenario(sim: Simulation) -> tuple[Any, list[str], int]:
        worker = await sim.start_worker()
        handle = await worker.client.start(publish_and_wait(), id="r", durability=mode)
        await asyncio.sleep(0.5)
        seen, journal = await handle.published("total"), await kinds(sim)
        await handle.send(go, 5)
        return seen, journal, await handle.result()

    assert Simulation(CODE).run(scenario) == (
        2,
        ["started", "taken", "step_completed", "published"],
        7,
    )


@pytest.mark.parametrize("mode", MODES)
def test_a_run_that_leaves_memory_is_written_before(mode: Durability) -> None:
    """It comes back with all that it had: no step is done again."""

    async def scenario(sim: Simulation) -> tuple[list[str], int]:
        worker = await sim.start_worker()
        handle = await worker.client.start(rest_between(), id="r", durability=mode)
        await sim.until("r", lambda head: head.status is Status.WAITING)
        return await kinds(sim), await handle.result()

    journal, result = Simulation(CODE).run(scenario)
    assert journal.count("step_completed") == 3
    assert result == 13
    assert set(bodies.values()) == {1}


@pytest.mark.parametrize("mode", MODES)
def test_a_worker_that_stops_gives_back_all_that_it_has(mode: Durability) -> None:
    """A deploy loses no outcome in any mode: the next worker repeats nothing."""

    async def scenario(sim: Simulation) -> int:
        worker = await sim.start_worker()
        handle = await worker.client.start(count_up(20), id="r", durability=mode)
        await asyncio.sleep(0.5)
        await worker.stop()
        await sim.start_worker()
        return await handle.result()

    assert Simulation(CODE, faults=SLOW).run(scenario) == 190
    assert set(bodies.values()) == {1}


def test_a_failed_attempt_is_recorded_after_what_came_before_it() -> None:
    """Its row is a barrier: whoever finds it finds the outcomes that the step depends on."""

    async def scenario(sim: Simulation) -> tuple[list[str], int]:
        worker = await sim.start_worker()
        handle = await worker.client.start(fail_between(), id="r", durability="exit")
        await asyncio.sleep(0.6)
        image = await sim.store.load(RUN)
        assert image is not None
        assert [one.failures for one in image.operations] == [1]
        return [one.row.kind for one in image.rows], await handle.result()

    journal, result = Simulation(CODE).run(scenario)
    assert journal.count("step_completed") == 3
    assert result == 4
    assert bodies["second_time"] == 2


@pytest.mark.parametrize("mode", MODES)
def test_messages_and_updates_are_taken_once(mode: Durability) -> None:
    """Also while they are seen and not written; a step whose token is asked for waits until it is there for good."""

    async def scenario(sim: Simulation) -> tuple[int, int]:
        worker = await sim.start_worker()
        handle = await worker.client.start(serves(), id="r", durability=mode)
        said, _ = await asyncio.gather(handle.update(ask, 5), handle.send(go, 7))
        return said, await handle.result()

    assert Simulation(CODE, faults=SLOW).run(scenario) == (6, 8)


@pytest.mark.parametrize(("mode", "calls"), [("sync", 1), ("exit", 2)])
def test_a_token_is_given_when_its_step_is_there_for_good(mode: Durability, calls: int) -> None:
    """The body ends where it asks for it, all before the step is written, and the body is called again: one token leaves."""

    async def scenario(sim: Simulation) -> tuple[list[str], int]:
        worker = await sim.start_worker()
        handle = await worker.client.start(hands_out(), id="r", durability=mode)
        while not tokens:
            await asyncio.sleep(0.01)
        journal = await kinds(sim)
        await sim.client.complete(tokens[0], 10)
        return journal, await handle.result()

    journal, result = Simulation(CODE).run(scenario)
    assert journal.count("step_completed") == 3
    assert (result, len(tokens), bodies["hand"]) == (13, 1, calls)


@pytest.mark.parametrize(("mode", "said"), [("sync", 0), ("async", 1), ("exit", 1)])
def test_whoever_looks_on_is_told_that_the_journal_lags_behind(mode: Durability, said: int) -> None:
    """The explanation of a run that is in memory says so, and the journal has no outcome of `exit` then."""

    async def scenario(sim: Simulation) -> tuple[str, list[str]]:
        worker = await sim.start_worker()
        handle = await worker.client.start(count_up(20), id="r", durability=mode)
        await asyncio.sleep(0.5)
        return str(await handle.explain()), await kinds(sim)

    text, journal = Simulation(CODE).run(scenario)
    assert text.count(f"durability is {mode}") == said
    assert ("step_completed" in journal) == (mode != "exit")


# What is lost, and what becomes of the run


@pytest.mark.parametrize(("mode", "again"), [("sync", 0), ("async", 4), ("exit", 6)])
def test_a_crash_costs_what_was_not_written(mode: Durability, again: int) -> None:
    """At most: the steps on their way to the store, or all since the start. The rest is not done again; the result is the same."""

    async def scenario(sim: Simulation) -> int:
        worker = await sim.start_worker()
        handle = await worker.client.start(count_up(20), id="r", durability=mode)
        while sum(bodies.values()) < 7:
            await asyncio.sleep(0.01)
        worker.kill()
        await sim.start_worker()
        return await handle.result()

    assert Simulation(CODE, faults=Faults(latency=0.1)).run(scenario) == 190
    repeated = sum(bodies.values()) - 20 - 1
    assert repeated <= again
    assert (repeated > 0) == (mode != "sync")


@pytest.mark.parametrize("mode", MODES)
def test_a_worker_that_lost_the_run_loses_what_it_has_not_written(mode: Durability) -> None:
    """Frozen beyond its lease: another one takes the run up from the journal, and nothing of the first is written any more."""

    async def scenario(sim: Simulation) -> tuple[int, int]:
        first = await sim.start_worker()
        handle = await first.client.start(count_up(20), id="r", durability=mode)
        await asyncio.sleep(0.4)
        first.freeze()
        await sim.start_worker()
        result = await handle.result()
        first.thaw()
        await asyncio.sleep(30)
        return result, len(await kinds(sim))

    assert Simulation(CODE, faults=SLOW).run(scenario) == (190, 23)


def test_a_run_whose_journal_went_on_without_it_is_taken_up_again() -> None:
    """A conflict: the worker drops the run, which is ahead of another journal, and takes it up from there."""

    async def scenario(sim: Simulation) -> int:
        worker = await sim.start_worker()
        handle = await worker.client.start(count_up(10), id="r", durability="async")
        await asyncio.sleep(0.2)
        run = sim.store.runs[RUN]
        head = replace(run.head, version=run.head.version + 5)
        run.state = replace(run.state, head=head)
        sim.invariants.runs[RUN].version += 5
        return await handle.result()

    assert Simulation(CODE).run(scenario) == 45
    assert max(bodies.values()) == 2


@pytest.mark.parametrize("mode", MODES)
def test_what_the_store_refuses_blocks_the_run_and_no_more(mode: Durability) -> None:
    """The journal stays as it was written; when the store takes it, the run goes on from there."""

    async def scenario(sim: Simulation) -> tuple[RunDetail, list[str], int]:
        commit = sim.store.commit

        async def refusing(changes: Any) -> Any:
            is_cursed = any(
                isinstance(one, RunChange) and any(row.name == "cursed" for row in one.entries)
                for one in changes
            )
            return [Refused("unstorable")] * len(changes) if is_cursed else await commit(changes)

        sim.store.commit = refusing  # type: ignore[method-assign]
        worker = await sim.start_worker()
        handle = await worker.client.start(curse(), id="r", durability=mode)
        await sim.until("r", lambda head: head.status is Status.BLOCKED)
        detail = await handle.detail()
        sim.store.commit = commit  # type: ignore[method-assign]
        await handle.send(go, 0)
        return detail, await kinds(sim), await handle.result()

    detail, journal, result = Simulation(CODE).run(scenario)
    assert detail.status.reason == "refused by the store"
    assert "step_completed" not in journal or mode != "exit"
    assert result == 2


@pytest.mark.without_always_replay("it is switched on, and its finding looked at, here")
@pytest.mark.parametrize("mode", MODES)
def test_a_run_that_is_blocked_keeps_what_it_has_seen(mode: Durability) -> None:
    """What an operator finds is the same in every mode: the outcomes up to where the code went astray."""

    async def scenario(sim: Simulation) -> tuple[str, list[str]]:
        options = WorkerOptions(library="simulated", always_replay=True)
        worker = await sim.start_worker(options=options)
        await worker.client.start(unsteady(), id="r", durability=mode)
        head = await sim.until("r", lambda head: head.status is Status.BLOCKED)
        return head.reason, await kinds(sim)

    reason, journal = Simulation(CODE).run(scenario)
    assert reason == "non-determinism"
    assert journal == ["started", "taken", "step_completed", "step_completed"]


@pytest.mark.parametrize("mode", MODES)
def test_the_limit_of_a_journal_counts_what_is_not_written(mode: Durability) -> None:
    """The run stops at the same length in every mode."""

    async def scenario(sim: Simulation) -> tuple[str, int]:
        limits = outlast.HistoryLimits(warn_entries=8, most_entries=8)
        options = WorkerOptions(library="simulated", history=limits)
        worker = await sim.start_worker(options=options)
        await worker.client.start(count_up(30), id="r", durability=mode)
        head = await sim.until("r", lambda head: head.status is Status.BLOCKED)
        return head.reason, len(await kinds(sim))

    reason, entries = Simulation(CODE, faults=SLOW).run(scenario)
    assert (reason, entries) == ("history", 8)


@pytest.mark.parametrize("mode", MODES)
def test_a_cancel_and_a_pause_come_through_meanwhile(mode: Durability) -> None:
    """They are written before they are seen, with all that came before them."""

    async def scenario(sim: Simulation) -> tuple[Status, int, Status]:
        worker = await sim.start_worker()
        handle = await worker.client.start(count_up(50), id="r", durability=mode)
        await asyncio.sleep(0.5)
        await handle.pause("a moment")
        paused = await sim.until("r", lambda head: head.status is Status.PAUSED)
        done = sum(bodies.values())
        assert (await kinds(sim)).count("step_completed") == done
        await handle.resume()
        await asyncio.sleep(0.3)
        await handle.cancel("enough")
        return paused.status, done, (await sim.closed("r")).status

    paused, done, ended = Simulation(CODE, faults=Faults(latency=0.05)).run(scenario)
    assert (paused, ended) == (Status.PAUSED, Status.CANCELLED)
    assert 0 < done < 50


# Times


def at(entries: list[JournalEntry]) -> list[str]:
    outcomes = [one for one in entries if isinstance(one.entry, StepCompleted | TimerFired)]
    return [one.at.isoformat() for one in outcomes]


@pytest.mark.parametrize("mode", MODES)
def test_the_journal_holds_the_times_that_the_workflow_has_seen(mode: Durability) -> None:
    """Or its replay would see others."""

    async def scenario(sim: Simulation) -> tuple[list[str], list[str]]:
        worker = await sim.start_worker()
        handle = await worker.client.start(moments(8), id="r", durability=mode)
        return await handle.result(), at(await handle.journal())

    seen, written = Simulation(CODE, faults=SLOW).run(scenario)
    assert seen == written


@pytest.mark.parametrize("mode", MODES)
def test_the_times_do_not_go_back_with_the_clock(mode: Durability) -> None:
    """The wall clock is set back while outcomes are not written: neither the workflow nor its journal sees it."""

    async def scenario(sim: Simulation) -> tuple[list[str], list[str]]:
        worker = await sim.start_worker()
        handle = await worker.client.start(moments(8), id="r", durability=mode)
        await asyncio.sleep(0.22)
        sim.clock.jump(timedelta(hours=-1))
        return await handle.result(), at(await handle.journal())

    seen, written = Simulation(CODE, faults=Faults(latency=0.02)).run(scenario)
    assert seen == written == sorted(seen)
    times = [datetime.fromisoformat(one) for one in seen]
    assert times[-1] - times[0] < timedelta(minutes=1)


# The same as sync


@outlast.step
async def leaf(number: int, seconds: float) -> int:
    await asyncio.sleep(seconds)
    return number * 3


@outlast.workflow
async def tree(shape: list[Any]) -> list[Any]:
    return await grow(shape)


async def grow(shape: list[Any]) -> list[Any]:
    how, *parts = shape
    if how == "leaf":
        return [await leaf(*parts)]
    if how == "sleep":
        await outlast.sleep(parts[0])
        return []
    if how == "beside":
        return list(await asyncio.gather(*(grow(one) for one in parts)))
    return [await grow(one) for one in parts]


seconds = st.sampled_from([0.0, 0.05, 0.3])
shapes = st.recursive(
    st.tuples(st.just("leaf"), st.integers(0, 9), seconds).map(list)
    | st.tuples(st.just("sleep"), seconds).map(list),
    lambda inner: st.tuples(st.sampled_from(["beside", "after"]), inner, inner, inner).map(list),
    max_leaves=12,
)


@settings(max_examples=25)
@given(shapes)
def test_deterministic_steps_come_to_the_same_in_every_mode(shape: Any) -> None:
    """The same result, and the same outcome of each operation."""

    def played(mode: Durability) -> tuple[Any, dict[str, Any]]:
        async def scenario(sim: Simulation) -> tuple[Any, dict[str, Any]]:
            worker = await sim.start_worker()
            handle = await worker.client.start(tree(shape), id="r", durability=mode)
            result = await handle.result()
            rows = await sim.store.journal(RUN)
            return result, {
                one.row.operation: (one.row.kind, one.row.body) for one in rows if one.row.operation
            }

        return Simulation([leaf, tree], faults=SLOW).run(scenario)

    right = played("sync")
    assert played("async") == right
    assert played("exit") == right


# Who has which mode


def test_a_start_says_otherwise_than_the_declaration() -> None:
    """Declared, said at the start, and kept by a run that is there already."""

    async def scenario(sim: Simulation) -> list[str]:
        await sim.start_worker()
        client, found = sim.client, []
        for id, mode in (("a", None), ("b", "exit"), ("b", "sync")):
            handle = await client.start(rolls(0), id=id, durability=mode)
            found.append((await handle.detail()).durability)
        return found

    assert Simulation(CODE).run(scenario) == ["async", "exit", "exit"]


def test_a_start_with_a_message_has_the_mode_that_is_declared() -> None:
    """There is nowhere to say otherwise."""

    async def scenario(sim: Simulation) -> str:
        await sim.start_worker()
        handle = await sim.client.signal_with_start(rolls(0), go, 1, id="r")
        return (await handle.detail()).durability

    assert Simulation(CODE).run(scenario) == "async"


def test_what_each_kind_of_run_inherits() -> None:
    """A child has that of its own declaration; a later generation and a fork have that of the run that they come from."""

    async def scenario(sim: Simulation) -> list[str]:
        worker = await sim.start_worker()
        client = worker.client
        await client.run(parent(), id="p")
        await client.run(rolls(2), id="g", durability="exit")
        fork = await client.handle("g").fork(id="f", effects="refuse", reason="again")
        await fork.result()
        handles = [client.handle(one) for one in ("p", "kid", "g", "f")]
        return [(await one.detail()).durability for one in handles]

    assert Simulation(CODE).run(scenario) == ["async", "exit", "exit", "exit"]


def test_a_mode_that_does_not_exist_is_refused_early() -> None:
    """Where the workflow is declared, and where the run is started, before anything is written."""
    wrong: Any = "eventually"
    with pytest.raises(DefinitionError, match="workflow never has the durability 'eventually'"):

        @outlast.workflow(durability=wrong)
        async def never() -> None: ...

    async def scenario(sim: Simulation) -> Any:
        with pytest.raises(
            DefinitionError, match="the start of count_up has the durability 'eventually'"
        ):
            await sim.client.start(count_up(1), id="r", durability=wrong)
        return await sim.store.head(RUN)

    assert Simulation(CODE).run(scenario) is None
