"""The time for all attempts: it runs from the call on, through restarts and outages, and ends what may be ended."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import outlast
from outlast.journal.entry import (
    EffectCompleted,
    EffectFailed,
    EffectInDoubt,
    EffectIntended,
    EffectRefused,
    Entry,
    StepFailed,
    from_row,
)
from outlast.journal.failure import MAX_TEXT, is_too_deep
from outlast.store.change import RunKey
from outlast.testing import Faults, Receiver, Simulation
from outlast.worker.deadline import Deadline
from outlast.worker.worker import WorkerOptions

MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)
TEN_YEARS = timedelta(days=3650)
TIMEOUT, SETTLE = timedelta(seconds=5), timedelta(seconds=2)
GAPS = outlast.RetryPolicy(
    initial_interval=10 * SECOND, backoff_coefficient=1.0, maximum_attempts=1000
)
receiver = Receiver()
began: list[float] = []
sims: list[Simulation] = []
plan: list[str] = []
"""What happens to the attempts in turn: `lose` before or `drop` after the change, `refuse`, `hang`; then nothing special."""


class DeclinedError(Exception):
    """Proves that nothing happened."""


def clock() -> float:
    return sims[-1].clock.monotonic() - 1000


@outlast.step(retry=GAPS, schedule_to_close_timeout=MINUTE)
async def failing(seconds: float) -> int:
    began.append(clock())
    await asyncio.sleep(seconds)
    raise OSError("down")


@outlast.step(
    retry=GAPS, schedule_to_close_timeout=MINUTE, start_to_close_timeout=timedelta(seconds=45)
)
async def hanging() -> int:
    began.append(clock())
    await asyncio.sleep(1000)
    return 1


@outlast.step(schedule_to_close_timeout=MINUTE)
def queued() -> int:
    began.append(clock())
    return 1


@outlast.step(retry=GAPS)
async def unlimited() -> int:
    began.append(clock())
    raise OSError("down")


async def act(amount: int, change: Any) -> int:
    began.append(clock())
    what = plan.pop(0) if plan else ""
    if what == "refuse":
        raise DeclinedError
    if what == "lose":
        raise ConnectionError("never arrived")
    value = change(outlast.idempotency_key(), amount)
    if what == "drop":
        raise ConnectionError("the answer was lost")
    if what == "hang":
        await asyncio.sleep(1000)
    return value


def find(amount: int) -> Any:
    return receiver.find(outlast.idempotency_key())


@outlast.effect(
    idempotent=True,
    retry=GAPS,
    start_to_close_timeout=TIMEOUT,
    schedule_to_close_timeout=MINUTE,
    not_applied=(DeclinedError,),
)
async def idempotent(amount: int) -> int:
    return await act(amount, receiver.apply_once)


@outlast.effect(
    probe=find,
    retry=GAPS,
    start_to_close_timeout=TIMEOUT,
    settle=SETTLE,
    schedule_to_close_timeout=MINUTE,
    not_applied=(DeclinedError,),
)
async def probed(amount: int) -> int:
    return await act(amount, receiver.apply)


@outlast.effect(
    start_to_close_timeout=TIMEOUT,
    settle=SETTLE,
    schedule_to_close_timeout=MINUTE,
    not_applied=(DeclinedError,),
)
async def once(amount: int) -> int:
    return await act(amount, receiver.apply)


@outlast.effect(idempotent=True, schedule_to_close_timeout=MINUTE)
def in_a_thread(amount: int) -> int:
    began.append(clock())
    return receiver.apply_once(outlast.idempotency_key(), amount)


EFFECTS = {"idempotent": idempotent, "probed": probed, "once": once, "thread": in_a_thread}


@outlast.workflow
async def call(which: str, seconds: float) -> str:
    steps = {"hanging": hanging, "queued": queued, "unlimited": unlimited}
    try:
        return f"{await (failing(seconds) if which == 'failing' else steps[which]())}"
    except TimeoutError as error:
        return f"{error}, after {error.__cause__!r}"


@outlast.workflow
async def send(which: str) -> str:
    try:
        return f"sent {await EFFECTS[which](5)}"
    except TimeoutError as error:
        return f"{error}, after {error.__cause__!r}"


@outlast.step
async def near(seconds: float) -> None:
    await asyncio.sleep(seconds)


@outlast.workflow
async def beside(which: str, busy: float) -> str:
    """Keep the run in memory, paused or not, and have it write something all the time for a while."""
    kept = [asyncio.create_task(near(300))]
    kept += [asyncio.create_task(near(busy + n / 10)) for n in range(10 if busy else 0)]
    try:
        return f"did {await (queued() if which == 'queued' else EFFECTS[which](5))}"
    except TimeoutError as error:
        return str(error)


CODE = [failing, hanging, queued, unlimited, near, call, send, beside, *EFFECTS.values()]
IDLE = WorkerOptions(library="simulated", idle=timedelta(hours=5))


@pytest.fixture(autouse=True)
def _clean() -> None:
    began.clear()
    plan.clear()
    receiver.forget()


def simulation(**options: Any) -> Simulation:
    """Return a simulation whose clock the bodies can read."""
    sims.append(Simulation(CODE, **options))
    return sims[-1]


async def entries(sim: Simulation) -> list[Entry]:
    """Return the journal."""
    return [from_row(one.row) for one in await sim.store.journal(RunKey("default", "r"))]


# Steps


def test_a_retry_that_would_come_too_late_is_not_waited_for() -> None:
    """Six attempts fit into a minute; the seventh would be due at its end: the workflow is told at the sixth failure."""

    async def scenario(sim: Simulation) -> tuple[str, float]:
        worker = await sim.start_worker()
        return await worker.client.run(call("failing", 0.5), id="r"), clock()

    result, seconds = simulation().run(scenario)
    assert result == (
        "failing was not done within 0:01:00 of its call, in 6 attempts, after OSError('down')"
    )
    assert len(began) == 6
    assert seconds == pytest.approx(began[-1] + 0.5, abs=0.2)


def test_an_attempt_is_cut_off_where_the_smaller_time_ends() -> None:
    """The first attempt has its 45 s; the second one only what the minute leaves."""

    async def scenario(sim: Simulation) -> tuple[str, float]:
        worker = await sim.start_worker()
        return await worker.client.run(call("hanging", 0), id="r"), clock()

    result, seconds = simulation().run(scenario)
    assert "in 2 attempts" in result
    assert "was not done in the time that was left" in result
    assert began == [pytest.approx(0, abs=0.1), pytest.approx(55, abs=0.1)]
    assert seconds == pytest.approx(60, abs=0.2)


def test_a_step_that_waits_for_a_thread_uses_its_time_up() -> None:
    """It was never begun, and never is."""

    async def scenario(sim: Simulation) -> tuple[str, float]:
        worker = await sim.start_worker()
        worker.threads.crowded = 100
        result = await worker.client.run(call("queued", 0), id="r")
        seconds = clock()
        await asyncio.sleep(200)
        return result, seconds

    result, seconds = simulation().run(scenario)
    assert result.startswith("queued was not done within 0:01:00 of its call")
    assert (began, round(seconds)) == ([], 60)


@pytest.mark.parametrize("left", ["parked", "killed", "at the first attempt"])
def test_the_time_runs_on_while_no_worker_does(left: str) -> None:
    """After an outage past the deadline nothing is attempted any more; before its end, what is left is left."""

    async def scenario(sim: Simulation) -> tuple[str, list[Entry], int]:
        options = WorkerOptions(library="simulated", idle=SECOND)
        worker = await sim.start_worker(options=options)
        handle = await sim.client.start(call("failing", 0.5), id="r")
        await asyncio.sleep(0.3 if left == "at the first attempt" else 16)
        if left == "killed":
            await asyncio.sleep(5)
        worker.kill()
        count = len(began)
        await asyncio.sleep(120)
        await sim.start_worker(options=options)
        await sim.closed("r")
        return await handle.result(), await entries(sim), len(began) - count

    result, journal, attempts = simulation().run(scenario)
    assert result.startswith("failing was not done within 0:01:00 of its call")
    assert attempts == 0
    assert [type(one) for one in journal[2:-1]] == [StepFailed]


def test_a_restart_leaves_what_is_left() -> None:
    """A worker that dies at 35 s leaves 25: three more attempts, and no minute of their own."""

    async def scenario(sim: Simulation) -> str:
        options = WorkerOptions(library="simulated", lease=timedelta(seconds=2))
        worker = await sim.start_worker(options=options)
        handle = await sim.client.start(call("failing", 0.5), id="r")
        await asyncio.sleep(35)
        worker.kill()
        await sim.start_worker(options=options)
        await sim.closed("r")
        return await handle.result()

    assert "in 6 attempts" in simulation().run(scenario)
    assert began[-1] < 60


@pytest.mark.parametrize("after", ["at once", "parked", "killed", "parked again and again"])
def test_a_deadline_that_began_while_the_clock_was_ahead(after: str) -> None:
    """It lasts as long as it should from the moment on at which the clock is right again, and not for ten years, nor for ever."""

    async def scenario(sim: Simulation) -> float:
        idle = timedelta(hours=5) if after == "at once" else SECOND
        options = WorkerOptions(library="simulated", idle=idle)
        worker = await sim.start_worker(options=options)
        sim.clock.jump(TEN_YEARS)
        await worker.client.start(call("failing", 0.5), id="r")
        await asyncio.sleep(0.2 if after == "at once" else 5.0)
        if after == "killed":
            worker.kill()
        sim.clock.jump(-TEN_YEARS)
        if after == "killed":
            await sim.start_worker(options=options)
        since = clock()
        if after == "parked again and again":
            # Each rest of 10 s is longer than the idle time, so that the run leaves memory between all attempts.
            head = await sim.until("r", lambda head: head.owner is None)
            assert head.owner is None
        await sim.closed("r")
        return clock() - since

    took = simulation().run(scenario)
    assert 40 <= took <= 80


@pytest.mark.parametrize("idle", [SECOND, timedelta(hours=5)], ids=["parked", "in memory"])
def test_a_clock_that_goes_ahead_ends_the_time(idle: timedelta) -> None:
    """The store's clock is the one that counts, as for timers."""

    async def scenario(sim: Simulation) -> float:
        worker = await sim.start_worker(options=WorkerOptions(library="simulated", idle=idle))
        await worker.client.start(call("failing", 0.5), id="r")
        await asyncio.sleep(5)
        sim.clock.jump(timedelta(hours=1))
        await sim.closed("r")
        return clock()

    assert simulation().run(scenario) < 20
    assert len(began) == 1


def test_without_a_deadline_nothing_ends() -> None:
    """The table above would not pass by accident."""

    async def scenario(sim: Simulation) -> int:
        worker = await sim.start_worker(options=IDLE)
        await worker.client.start(call("unlimited", 0), id="r")
        await asyncio.sleep(600)
        return len(began)

    assert simulation().run(scenario) == 60


@pytest.mark.parametrize("kind", ["silence", "time", "deadline"])
def test_a_policy_may_refuse_to_repeat_what_timed_out(kind: str) -> None:
    """TimeoutError is a type as any other: named among those that are not retried, the first one is the last."""
    times: dict[str, Any] = {
        "silence": {"heartbeat_timeout": 5 * SECOND},
        "time": {"start_to_close_timeout": 5 * SECOND},
        "deadline": {"schedule_to_close_timeout": 5 * SECOND},
    }
    policy = outlast.RetryPolicy(non_retryable_error_types=("TimeoutError",))

    @outlast.step(retry=policy, **times[kind])
    async def silent() -> int:
        began.append(0)
        await asyncio.sleep(1000)
        return 1

    @outlast.workflow
    async def use_silent() -> str:
        try:
            return f"{await silent()}"
        except TimeoutError:
            return "over"

    async def scenario(sim: Simulation) -> str:
        worker = await sim.start_worker()
        return await worker.client.run(use_silent(), id="r")

    assert Simulation([silent, use_silent]).run(scenario) == "over"
    assert len(began) == 1


# Effects


TABLE: dict[tuple[str, str], tuple[str, list[type[Entry]], int]] = {
    # What nobody can know was not done, is not said not to be done.
    ("idempotent", "refused"): ("was not done", [EffectFailed], 0),
    ("idempotent", "lost"): ("sent 5", [EffectCompleted], 1),
    ("idempotent", "dropped"): ("sent 5", [EffectCompleted], 1),
    ("idempotent", "down for good"): ("", [EffectInDoubt], 0),
    ("idempotent", "dropped, then down for good"): ("", [EffectInDoubt], 1),
    ("idempotent", "hangs"): ("sent 5", [EffectCompleted], 1),
    ("probed", "refused"): ("was not done", [EffectFailed], 0),
    ("probed", "always lost"): ("was not done", [EffectFailed], 0),
    ("probed", "dropped"): ("sent 5", [EffectCompleted], 1),
    ("probed", "hangs"): ("sent 5", [EffectCompleted], 1),
    ("once", "refused"): ("DeclinedError", [EffectFailed], 0),
    ("once", "lost"): ("", [EffectInDoubt], 0),
    ("once", "dropped"): ("", [EffectInDoubt], 1),
}
PLANS = {
    "refused": ["refuse"] * 100,
    "lost": ["lose"] * 6,
    "always lost": ["lose"] * 100,
    "dropped": ["drop"],
    "down for good": ["lose"] * 100,
    "dropped, then down for good": ["drop", *["lose"] * 100],
    "hangs": ["hang"] * 4,
}


@pytest.mark.parametrize(
    ("which", "happens"), TABLE, ids=[f"{which}, {what}" for which, what in TABLE]
)
def test_an_effect_ends_at_its_deadline_only_where_nothing_is_unknown(
    which: str, happens: str
) -> None:
    """Else the declaration decides first: called a last time, asked, or in doubt."""
    result, kinds, done = TABLE[which, happens]
    plan.extend(PLANS[happens])

    async def scenario(sim: Simulation) -> tuple[str, list[Entry]]:
        worker = await sim.start_worker()
        handle = await worker.client.start(send(which), id="r")
        head = await sim.until("r", lambda head: head.status.closed or head.reason == "in doubt")
        journal = await entries(sim)
        if not head.status.closed:
            return "", journal
        try:
            return await handle.result(), journal
        except outlast.WorkflowFailedError as error:
            return f"{error}", journal

    said, journal = simulation().run(scenario)
    assert result in said
    ends = [
        one for one in journal if isinstance(one, EffectFailed | EffectCompleted | EffectInDoubt)
    ]
    assert [type(one) for one in ends] == kinds
    assert receiver.total == done
    assert isinstance(journal[2], EffectIntended)


def test_an_idempotent_effect_is_called_a_last_time_when_its_time_is_over() -> None:
    """At the deadline, and not at the retry that would have come after it; and no more than once."""
    plan.extend(["lose"] * 100)

    async def scenario(sim: Simulation) -> str:
        worker = await sim.start_worker()
        await worker.client.start(send("idempotent"), id="r")
        await sim.until("r", lambda head: head.reason == "in doubt")
        (doubt,) = [one for one in await entries(sim) if isinstance(one, EffectInDoubt)]
        return doubt.why

    why = simulation().run(scenario)
    assert [round(at) for at in began] == [0, 10, 20, 30, 40, 50, 60]
    # None of them can act any more when somebody is asked to look.
    assert clock() >= 60 + (TIMEOUT + SETTLE).total_seconds()
    assert "its time of 0:01:00 for all attempts is over" in why
    assert "ConnectionError: never arrived" in why


@pytest.mark.parametrize("parked", [False, True])
def test_an_outage_past_the_deadline_of_an_effect_that_rests(parked: bool) -> None:
    """Of a probed one it is known that nothing happened: it fails, unasked and unattempted."""
    plan.extend(["refuse"] * 100)

    async def scenario(sim: Simulation) -> str:
        idle = SECOND if parked else timedelta(hours=5)
        worker = await sim.start_worker(options=WorkerOptions(library="simulated", idle=idle))
        handle = await sim.client.start(send("probed"), id="r")
        await asyncio.sleep(5)
        worker.kill()
        await asyncio.sleep(200)
        await sim.start_worker()
        await sim.closed("r")
        return await handle.result()

    assert "was not done within" in simulation().run(scenario)
    assert (len(began), receiver.probes.total()) == (1, 0)


def test_an_outage_past_the_deadline_of_an_effect_in_the_middle_of_an_attempt() -> None:
    """Whether it happened is found out first; it had, so that is what the workflow gets, late as it is."""
    plan.append("hang")

    async def scenario(sim: Simulation) -> str:
        worker = await sim.start_worker()
        handle = await sim.client.start(send("probed"), id="r")
        await asyncio.sleep(3)
        worker.kill()
        await asyncio.sleep(200)
        await sim.start_worker()
        await sim.closed("r")
        return await handle.result()

    assert simulation().run(scenario) == "sent 5"
    assert receiver.total == 1


def test_an_effect_that_is_asked_for_too_late_is_never_intended() -> None:
    """The worker was away between the call and its intent: it is refused, and spends no approval."""

    async def scenario(sim: Simulation) -> tuple[str, list[Entry]]:
        # The first commit (`Taken`) calls the effect; the second one, with its intent, is what the worker dies before.
        worker = await sim.start_worker()
        worker.store.at_commit = lambda moment, number: (
            worker.kill() if (moment, number) == ("before", 2) else None
        )
        handle = await sim.client.start(send("once"), id="r")
        await sim.until("r", lambda _: worker.process.dead)
        await asyncio.sleep(120)
        await sim.start_worker()
        await sim.closed("r")
        return await handle.result(), await entries(sim)

    said, journal = simulation().run(scenario)
    assert said.startswith("once was not done within 0:01:00 of its call, and not begun")
    assert [type(one) for one in journal[2:-1]] == [EffectRefused]
    assert began == []


def test_an_effect_that_waits_for_a_thread_past_its_deadline_did_not_happen() -> None:
    """It never began, which is known: there is nothing to find out."""

    async def scenario(sim: Simulation) -> tuple[str, list[Entry]]:
        worker = await sim.start_worker()
        worker.threads.crowded = 100
        result = await worker.client.run(send("thread"), id="r")
        journal = await entries(sim)
        await asyncio.sleep(200)
        return result, journal

    said, journal = simulation().run(scenario)
    assert said.startswith("in_a_thread was not done within 0:01:00 of its call, in 1 attempt")
    assert isinstance(journal[-2], EffectFailed)
    assert (began, receiver.total) == ([], 0)


PAUSED = [
    *(("queued", 5, 0), ("thread", 5, 0)),
    *(("idempotent", 5, 0), ("probed", 5, 0)),
    # The pause is written together with the word that the next attempt begins.
    *(("idempotent", seconds, 11) for seconds in (11.0, 11.3, 11.6)),
]


@pytest.mark.parametrize(("which", "seconds", "busy"), PAUSED)
def test_nothing_is_attempted_when_its_time_is_over_after_a_pause(
    which: str, seconds: float, busy: float
) -> None:
    """What waited for a retry or a thread as the pause came, in a run that stays in memory, is judged when the run goes on."""
    plan.append("refuse")

    async def scenario(sim: Simulation) -> str:
        worker = await sim.start_worker(faults=Faults(latency=0.4 if busy else 0.0))
        worker.threads.crowded = 15
        handle = await sim.client.start(beside(which, busy), id="r")
        await asyncio.sleep(seconds)
        await handle.pause()
        await asyncio.sleep(100)
        before = len(began)
        await handle.resume()
        result = await handle.result()
        assert len(began) == before
        return result

    assert "was not done within 0:01:00 of its call" in simulation().run(scenario)
    assert len(began) == (0 if which in {"queued", "thread"} else 1)


@pytest.mark.parametrize("applied", [True, False])
def test_an_operator_speaks_after_the_deadline(applied: bool) -> None:
    """What happened is recorded; what did not happen is not attempted any more."""
    plan.append("drop" if applied else "lose")

    async def scenario(sim: Simulation) -> str:
        await sim.start_worker()
        handle = await sim.client.start(send("once"), id="r")
        await sim.until("r", lambda head: head.reason == "in doubt")
        await asyncio.sleep(600)
        said: dict[str, Any] = {"applied": 5} if applied else {"not_applied": True}
        await handle.resolve("r:1", **said)
        await sim.closed("r")
        return await handle.result()

    said = simulation().run(scenario)
    assert said.startswith("sent 5" if applied else "once was not done within 0:01:00")
    assert len(began) == 1


# The arithmetic


MOMENTS = st.datetimes(
    min_value=datetime(2000, 1, 1), max_value=datetime(2100, 1, 1), timezones=st.just(UTC)
)


@given(
    MOMENTS,
    st.timedeltas(SECOND, timedelta(days=100)),
    st.lists(st.timedeltas(timedelta(0), timedelta(days=50)), max_size=8),
)
def test_time_only_runs_out(scheduled: datetime, limit: timedelta, steps: list[timedelta]) -> None:
    """Looked at again and again, from any moment on, there is never more left than the limit, and never more than before."""
    for start in (scheduled, scheduled - TEN_YEARS):
        deadline, now = Deadline.of(scheduled, limit), start
        left = [deadline.left(now)]
        for step in steps:
            now += step
            left.append(deadline.left(now))
        assert left[0] == limit
        assert all(one - two <= step for one, two, step in zip(left, left[1:], steps, strict=False))
        assert left == sorted(left, reverse=True)
        assert deadline.is_over(start + limit)


def test_a_deadline_at_the_end_of_time_is_one() -> None:
    """No sum of a moment and a time is beyond what can be written."""
    last = datetime.max.replace(tzinfo=UTC)
    assert Deadline.of(last - SECOND, timedelta(days=36_000)).due == last


def test_a_failure_with_any_cause_can_be_read_again() -> None:
    """However deep the last attempt's failure is: what would be too deep is left out."""

    @outlast.step(schedule_to_close_timeout=MINUTE, retry=GAPS)
    async def deep(levels: int) -> int:
        error: Exception = ValueError("x" * (2 * MAX_TEXT))
        for _ in range(levels):
            above = ValueError("on top")
            above.__cause__ = error
            error = above
        raise error

    @outlast.workflow
    async def use_deep(levels: int) -> str:
        try:
            return f"{await deep(levels)}"
        except TimeoutError as error:
            return "without" if error.__cause__ is None else "with"

    async def scenario(sim: Simulation) -> list[str]:
        await sim.start_worker()
        found: list[str] = []
        for levels in (0, 18, 40):
            await sim.client.start(use_deep(levels), id=f"r{levels}")
            await sim.closed(f"r{levels}")
            found.append(await sim.client.handle(f"r{levels}", use_deep).result())
            for one in await sim.store.journal(RunKey("default", f"r{levels}")):
                entry = from_row(one.row)
                assert not isinstance(entry, StepFailed) or not is_too_deep(entry.failure)
        return found

    assert Simulation([deep, use_deep]).run(scenario) == ["with", "with", "without"]
