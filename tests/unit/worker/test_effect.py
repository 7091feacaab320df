"""Effects after a kill at every point, by declaration; in doubt, and what an operator does about it."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest

import outlast
from outlast.effects.intent import Applied, NotApplied, Unknown
from outlast.journal.entry import (
    AlarmRaised,
    EffectCleared,
    EffectCompleted,
    EffectFailed,
    EffectInDoubt,
    EffectIntended,
    Entry,
    from_row,
)
from outlast.store.change import RunHead, RunKey, Status
from outlast.testing import Faults, Receiver, SimulatedWorker, Simulation
from outlast.worker.worker import WorkerOptions

TIMEOUT = timedelta(seconds=20)
SETTLE = timedelta(seconds=2)
LEASE = timedelta(seconds=15)
receiver = Receiver()
began: list[datetime] = []
asked: list[datetime] = []
plan: list[str] = []
"""What happens to the attempts in turn: `die before`, `die after`, `hang`, `fail`, `refuse`, or nothing special."""
answers: list[object] = []
sims: list[Simulation] = []
workers: list[SimulatedWorker] = []


class NoSuchAccountError(Exception):
    """Proves that nothing happened."""


async def act(amount: int, change: Callable[[str, int], int]) -> int:
    """Do what the plan says about this attempt."""
    began.append(sims[-1].clock.now())
    step = plan.pop(0) if plan else ""
    key = outlast.idempotency_key()
    await asyncio.sleep(0.2)
    if step == "die before":
        await die()
    if step == "refuse":
        raise NoSuchAccountError("no")
    result = change(key, amount)
    await asyncio.sleep(0.2)
    if step == "die after":
        await die()
    if step == "hang":
        await asyncio.sleep(1000)
    if step == "fail":
        raise OSError("the answer was lost")
    return result


async def die() -> None:
    """Kill the process that makes this attempt."""
    workers[-1].kill()
    await asyncio.sleep(0.1)


def find(key: str) -> object:
    """Answer as planned, else truthfully."""
    asked.append(sims[-1].clock.now())
    answer = answers.pop(0) if answers else receiver.find(key)
    if isinstance(answer, Exception):
        raise answer
    return answer


def look(amount: int) -> Applied[int] | NotApplied | Unknown:
    """Ask the receiver."""
    return find(outlast.idempotency_key())


@outlast.effect(idempotent=True, start_to_close_timeout=TIMEOUT)
async def idempotent(amount: int) -> int:
    return await act(amount, receiver.apply_once)


@outlast.effect(
    probe=look, start_to_close_timeout=TIMEOUT, settle=SETTLE, not_applied=(NoSuchAccountError,)
)
async def probed(amount: int) -> int:
    return await act(amount, receiver.apply)


@outlast.effect(start_to_close_timeout=TIMEOUT, settle=SETTLE, not_applied=(NoSuchAccountError,))
async def neither(amount: int) -> int:
    return await act(amount, receiver.apply)


@outlast.effect(start_to_close_timeout=TIMEOUT, settle=SETTLE)
def hanging(amount: int) -> int:
    began.append(sims[-1].clock.now())
    workers[0].threads.busy(200)
    return receiver.apply(outlast.idempotency_key(), amount)


@outlast.effect(probe=look, start_to_close_timeout=TIMEOUT, settle=SETTLE)
async def mistaken(amount: int) -> int:
    began.append(sims[-1].clock.now())
    raise TypeError("a mistake in the code")


@outlast.effect(
    probe=look,
    start_to_close_timeout=TIMEOUT,
    settle=SETTLE,
    not_applied=(NoSuchAccountError,),
    retry=outlast.RetryPolicy(maximum_attempts=5, initial_interval=timedelta(seconds=30)),
)
async def tenacious(amount: int) -> int:
    return await act(amount, receiver.apply)


@outlast.effect(idempotent=True, retry=outlast.RetryPolicy(initial_interval=timedelta(seconds=30)))
async def repeated(amount: int) -> int:
    return await act(amount, receiver.apply_once)


@outlast.effect(probe=look, start_to_close_timeout=TIMEOUT, settle=SETTLE)
def queued(amount: int) -> int:
    began.append(sims[-1].clock.now())
    return receiver.apply(outlast.idempotency_key(), amount)


@outlast.workflow
async def use(which: str, amount: int) -> int:
    effects = {
        one.name: one for one in (idempotent, probed, neither, hanging, tenacious, repeated, queued)
    }
    return await effects.get(which, mistaken)(amount)


@outlast.workflow
async def use_with_sibling(amount: int) -> list[str]:
    log: list[str] = []

    async def pay() -> None:
        await neither(amount)
        log.append("paid")

    async def rest() -> None:
        await outlast.sleep(60)
        log.append("rested")

    await asyncio.gather(pay(), rest())
    return log


CODE = [
    idempotent,
    probed,
    neither,
    hanging,
    mistaken,
    tenacious,
    repeated,
    queued,
    use,
    use_with_sibling,
]


@pytest.fixture(autouse=True)
def _clean() -> None:
    for one in (began, asked, plan, answers, sims, workers):
        one.clear()
    receiver.forget()


def simulation(**options: object) -> Simulation:
    """Return a simulation that the bodies can find."""
    options.setdefault(
        "options", WorkerOptions(library="simulated")
    )  # which looks without a hint too
    sims.append(Simulation(CODE, **options))
    return sims[-1]


async def worker(sim: Simulation) -> SimulatedWorker:
    """Start a worker that the bodies can kill."""
    workers.append(await sim.start_worker())
    return workers[-1]


async def entries(sim: Simulation) -> list[Entry]:
    """Return the run's journal."""
    return [from_row(one.row) for one in await sim.store.journal(RunKey("default", "r"))]


def over(head: RunHead) -> bool:
    """Whether the run has ended or waits for an operator."""
    return head.status.closed or head.status is Status.BLOCKED


async def survive(sim: Simulation, which: str) -> RunHead:
    """Start the run, and a new worker whenever one was killed, until the run is over."""
    await worker(sim)
    await sim.client.start(use(which, 5), id="r")
    while True:
        head = await sim.until("r", lambda head: over(head) or workers[-1].process.dead)
        if over(head):
            return head
        await worker(sim)


@pytest.mark.parametrize("which", ["idempotent", "probed", "neither"])
def test_the_intent_is_durable_before_the_call(which: str) -> None:
    """When the body begins, the store holds its intent."""

    async def scenario(sim: Simulation) -> list[str]:
        await worker(sim)
        await sim.client.start(use(which, 5), id="r")
        while not began:
            await asyncio.sleep(0.01)
        return [type(one).__name__ for one in await entries(sim)]

    assert simulation(faults=Faults(latency=0.2)).run(scenario)[-1] == "EffectIntended"


@pytest.mark.parametrize("at", ["die before", "die after"])
def test_an_idempotent_effect_is_called_again_at_once_with_the_same_key(at: str) -> None:
    """The receiver counts two requests and one change, under one key."""
    plan.append(at)

    async def scenario(sim: Simulation) -> Status:
        return (await survive(sim, "idempotent")).status

    assert simulation().run(scenario) is Status.COMPLETED
    assert receiver.total == 1
    assert len(receiver.changes) == 1
    assert len(began) == 2
    assert (began[1] - began[0]).total_seconds() < LEASE.total_seconds() + 2


@pytest.mark.parametrize(("at", "attempts"), [("die before", 2), ("die after", 1)])
def test_a_probed_effect_is_asked_after_the_quiet_time(at: str, attempts: int) -> None:
    """Nobody probes before the old owner's lease, the timeout and the settle time are over; then once is once."""
    plan.append(at)

    async def scenario(sim: Simulation) -> Status:
        return (await survive(sim, "probed")).status

    assert simulation().run(scenario) is Status.COMPLETED
    assert receiver.total == 1
    assert len(began) == attempts
    assert len(asked) == 1
    quiet = LEASE + TIMEOUT + SETTLE
    # The lease was last renewed by the commit of the intent, moments before the attempt began.
    assert quiet - timedelta(seconds=0.1) <= asked[0] - began[0] <= quiet + timedelta(seconds=2)


@pytest.mark.parametrize(("at", "changes"), [("die before", 0), ("die after", 1)])
def test_an_effect_with_neither_is_in_doubt_after_a_kill(at: str, changes: int) -> None:
    """It is never called again by itself; the run is visibly blocked."""
    plan.append(at)

    async def scenario(sim: Simulation) -> tuple[Status, str, object]:
        await survive(sim, "neither")
        status = await sim.client.handle("r").status()
        assert isinstance((await entries(sim))[-1], EffectInDoubt)
        return status.status, status.reason, list(status.waits["in_doubt"])

    assert simulation().run(scenario) == (Status.BLOCKED, "in doubt", ["r:1"])
    assert receiver.total == changes
    assert len(began) == 1


@pytest.mark.parametrize("which", ["idempotent", "probed", "neither"])
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("commit", [1, 2, 3, 4])
def test_a_kill_at_each_commit(which: str, moment: str, commit: int) -> None:
    """`Taken`, intent, outcome, end: exactly once where that can be promised, at most once and in doubt where not."""

    async def scenario(sim: Simulation) -> tuple[Status, list[Entry]]:
        first = await worker(sim)

        def at_commit(when: str, number: int) -> None:
            if (when, number) == (moment, commit):
                first.kill()

        first.store.at_commit = at_commit
        await sim.client.start(use(which, 5), id="r")
        head = await sim.until("r", lambda head: over(head) or first.process.dead)
        if not over(head):
            await worker(sim)
            head = await sim.until("r", over)
        return head.status, await entries(sim)

    status, journal = simulation().run(scenario)
    cut_off = (moment, commit) in {("after", 2), ("before", 3)}
    if which == "neither" and cut_off:
        assert status is Status.BLOCKED
        assert receiver.total == (0 if moment == "after" else 1)
    else:
        assert status is Status.COMPLETED
        assert receiver.total == 1
        assert sum(isinstance(one, EffectCompleted) for one in journal) == 1
    assert sum(isinstance(one, EffectIntended) for one in journal) == 1
    assert max(receiver.changes.values(), default=0) <= 1


def test_a_lost_answer_of_a_probed_effect_is_asked_for_by_the_same_worker() -> None:
    """The attempt's own start counts, not the lease: the answer comes after timeout and settle."""
    plan.append("fail")

    async def scenario(sim: Simulation) -> tuple[int, list[Entry]]:
        await worker(sim)
        result = await workers[0].client.run(use("probed", 5), id="r")
        return result, await entries(sim)

    result, journal = simulation().run(scenario)
    completed = next(one for one in journal if isinstance(one, EffectCompleted))
    assert (result, completed.source, receiver.total) == (5, "probe", 1)
    assert (asked[0] - began[0]).total_seconds() == pytest.approx(22, abs=0.1)


def test_a_failed_attempt_that_was_not_applied_is_counted_and_repeated() -> None:
    """The probe says no; the next attempt has the next number and the same key."""
    plan.extend(["refuse", "refuse", ""])

    async def scenario(sim: Simulation) -> int:
        await worker(sim)
        return await workers[0].client.run(use("probed", 5), id="r")

    assert simulation().run(scenario) == 5
    assert asked == []
    assert [round((b - a).total_seconds()) for a, b in zip(began, began[1:], strict=False)] == [
        1,
        2,
    ]
    assert receiver.total == 1


def test_a_programming_error_of_a_probed_effect_is_not_repeated() -> None:
    """When the probe says that nothing happened, the failure is the outcome."""

    async def scenario(sim: Simulation) -> None:
        await worker(sim)
        await workers[0].client.run(use("mistaken", 5), id="r")

    with pytest.raises(outlast.WorkflowFailedError, match="a mistake"):
        simulation().run(scenario)
    assert (len(began), len(asked)) == (1, 1)


def test_a_probe_that_cannot_say_leads_to_doubt() -> None:
    """It is asked five times, with growing pauses."""
    plan.append("fail")
    answers.extend([Unknown("busy")] * 3 + ["nonsense"] + [Unknown("busy")])

    async def scenario(sim: Simulation) -> str:
        await worker(sim)
        await sim.client.start(use("probed", 5), id="r")
        await sim.until("r", over)
        return (await entries(sim))[-1].why

    assert "asked 5 times" in simulation().run(scenario)
    assert receiver.total == 1


def test_siblings_go_on_while_an_effect_is_in_doubt() -> None:
    """In doubt is a state of the operation; the run is blocked only when nothing else can move."""
    plan.append("fail")

    async def scenario(sim: Simulation) -> tuple[Status, list[str]]:
        await worker(sim)
        handle = await sim.client.start(use_with_sibling(5), id="r")
        await asyncio.sleep(30)
        status = (await handle.status()).status
        await sim.until("r", lambda head: head.status is Status.BLOCKED)
        await handle.resolve("r.1:1", applied=5, reason="seen on the account")
        await sim.closed("r")
        return status, await handle.result()

    assert simulation().run(scenario) == (Status.WAITING, ["rested", "paid"])


RESOLUTIONS = [
    ({"applied": 9}, 9, 1, EffectCompleted),
    ({"not_applied": True}, 5, 2, EffectCleared),
    ({"failed": "it bounced"}, "it bounced", 1, EffectFailed),
]


@pytest.mark.parametrize(("said", "result", "changes", "kind"), RESOLUTIONS)
def test_an_operator_resolves_a_doubt(
    said: dict[str, object], result: object, changes: int, kind: type[Entry]
) -> None:
    """It happened, with this result; it did not, so it is called again; or it failed for good."""
    plan.append("fail")

    async def scenario(sim: Simulation) -> tuple[object, list[Entry]]:
        await worker(sim)
        handle = await sim.client.start(use("neither", 5), id="r")
        await sim.until("r", over)
        await handle.resolve("r:1", **said, reason="looked")
        await sim.closed("r")
        try:
            found: object = await handle.result()
        except outlast.WorkflowFailedError as error:
            found = str(error)
        return found, await entries(sim)

    found, journal = simulation().run(scenario)
    assert found == result or (isinstance(result, str) and result in str(found))
    assert receiver.total == changes
    (told,) = [one for one in journal if isinstance(one, kind) and one.by == "tester"]
    assert told.reason == "looked"


def test_a_cleared_effect_cut_off_by_a_kill_is_in_doubt_again() -> None:
    """Whether the attempt after the clearing was applied is as unknown as the first."""
    plan.extend(["fail", "die after"])

    async def scenario(sim: Simulation) -> Status:
        await worker(sim)
        handle = await sim.client.start(use("neither", 5), id="r")
        await sim.until("r", over)
        await handle.resolve("r:1", not_applied=True)
        await sim.until("r", lambda _: workers[-1].process.dead)
        await worker(sim)
        return (await sim.until("r", over)).status

    assert simulation().run(scenario) is Status.BLOCKED
    assert len(began) == 2


def test_the_second_of_two_resolutions_is_an_alarm() -> None:
    """The first one counts, in one batch too; the other is kept with what it said."""
    plan.append("fail")

    async def scenario(sim: Simulation) -> tuple[int, list[Entry]]:
        first = await worker(sim)
        handle = await sim.client.start(use("neither", 5), id="r")
        await sim.until("r", over)
        first.kill()
        await handle.resolve("r:1", applied=1, reason="one")
        await handle.resolve("r:1", failed="two")
        await worker(sim)
        await sim.closed("r")
        return await handle.result(), await entries(sim)

    result, journal = simulation().run(scenario)
    (alarm,) = [one for one in journal if isinstance(one, AlarmRaised)]
    assert (result, alarm.what) == (1, "late_outcome")
    assert b"two" in bytes(alarm.detail)


def test_a_thread_that_hangs_past_its_lease_is_waited_for() -> None:
    """While the thread of this process still acts, nothing is done about its effect, whoever's lease is over; then its value counts."""

    async def scenario(sim: Simulation) -> tuple[list[Entry], float]:
        only = await worker(sim)
        await sim.client.start(use("hanging", 5), id="r")
        while not began:
            await asyncio.sleep(0.1)
        only.store.faults = Faults(down=True)
        await asyncio.sleep(60)
        only.store.faults = Faults()
        head = await sim.until("r", over)
        return await entries(sim), (head.changed_at - began[0]).total_seconds()

    journal, seconds = simulation().run(scenario)
    (completed,) = [one for one in journal if isinstance(one, EffectCompleted)]
    assert (completed.source, bytes(completed.value)) == ("late", b"5")
    assert not any(isinstance(one, EffectInDoubt | AlarmRaised) for one in journal)
    assert seconds >= 200
    assert receiver.total == 1


def test_a_hanging_thread_is_not_timed_out() -> None:
    """A synchronous attempt still running at its timeout is still acting; what it returns is what happened."""

    async def scenario(sim: Simulation) -> int:
        await worker(sim)
        return await workers[0].client.run(use("hanging", 5), id="r")

    assert simulation().run(scenario) == 5
    assert receiver.total == 1


@pytest.mark.parametrize("which", ["idempotent", "probed"])
def test_a_hanging_async_attempt_is_cut_at_its_timeout(which: str) -> None:
    """The body is cancelled; the repetition finds what was done."""
    plan.append("hang")

    async def scenario(sim: Simulation) -> int:
        await worker(sim)
        return await workers[0].client.run(use(which, 5), id="r")

    assert simulation().run(scenario) == 5
    assert receiver.total == 1


def test_a_stop_gives_a_run_back_that_waits_for_quiet() -> None:
    """Waiting out assumption A is no reason to keep a run; the next owner waits by its own reckoning."""
    plan.append("fail")

    async def scenario(sim: Simulation) -> tuple[float, float]:
        first = await worker(sim)
        await sim.client.start(use("probed", 5), id="r")
        await asyncio.sleep(5)
        since = sim.clock.monotonic()
        await first.stop()
        stopped = sim.clock.monotonic() - since
        gone = sim.clock.now()
        await worker(sim)
        await sim.closed("r")
        return stopped, (asked[0] - gone).total_seconds()

    stopped, quiet = simulation().run(scenario)
    assert stopped < 1
    assert quiet == pytest.approx(22, abs=0.5)
    assert receiver.total == 1


@pytest.mark.parametrize("which", ["probed", "tenacious"])
def test_no_clock_says_that_an_attempt_had_not_begun(which: str) -> None:
    """Killed in the second attempt, then the wall clock is set back to before it was due: still the probe is asked."""
    plan.extend(["refuse", "die after"])

    async def scenario(sim: Simulation) -> RunHead:
        first = await worker(sim)
        await sim.client.start(use(which, 5), id="r")
        await sim.until("r", lambda _: first.process.dead)
        sim.clock.jump(-timedelta(minutes=5))
        await worker(sim)
        return await sim.until("r", over)

    assert simulation().run(scenario).status is Status.COMPLETED
    assert receiver.total == 1
    assert (len(began), len(asked)) == (2, 1)


def test_a_rest_between_two_attempts_raises_no_doubt() -> None:
    """Parked, killed or given back while it rests: the next attempt had not begun, and is made when it is due, unasked."""
    plan.extend(["refuse", "refuse", "refuse", ""])

    async def scenario(sim: Simulation) -> int:
        first = await worker(sim)
        handle = await sim.client.start(use("tenacious", 5), id="r")
        await asyncio.sleep(10)
        first.kill()
        second = await worker(sim)
        await sim.until("r", lambda _: len(began) == 2)
        await asyncio.sleep(10)
        await second.stop()
        await worker(sim)
        await sim.closed("r")
        return await handle.result()

    assert simulation().run(scenario) == 5
    assert (len(began), len(asked)) == (4, 0)
    assert receiver.total == 1


def test_an_effect_that_waits_for_a_thread_past_its_lease_never_begins() -> None:
    """The look at the lease is in the thread: by then another worker has made the call."""

    async def scenario(sim: Simulation) -> RunHead:
        first = await worker(sim)
        first.threads.crowded = 100
        await sim.client.start(use("queued", 5), id="r")
        await asyncio.sleep(1)
        first.store.faults = Faults(down=True)
        await worker(sim)
        head = await sim.closed("r")
        await asyncio.sleep(200)
        return head

    assert simulation().run(scenario).status is Status.COMPLETED
    assert len(began) == 1
    assert receiver.total == 1


@pytest.mark.parametrize("which", ["repeated", "tenacious"])
def test_no_attempt_begins_after_a_terminate(which: str) -> None:
    """An effect that rests between two tries asks for its run before the next one."""
    plan.extend(["refuse"] * 5)

    async def scenario(sim: Simulation) -> Status:
        await worker(sim)
        handle = await workers[0].client.start(use(which, 5), id="r")
        await asyncio.sleep(10)
        assert workers[0].worker.runs
        await handle.terminate("stop it now")
        await asyncio.sleep(300)
        assert workers[0].worker.runs == []
        return (await handle.status()).status

    options = WorkerOptions(library="simulated", idle=timedelta(hours=1))
    assert simulation(options=options).run(scenario) is Status.TERMINATED
    assert len(began) == 1


@pytest.mark.parametrize(
    "answer", [ValueError("bad \udce9 \0"), Unknown("bad \udce9 \0"), Unknown(None)]
)
def test_any_text_of_a_probe_can_be_kept(answer: object) -> None:
    """What UTF-8 or a column cannot hold is shown as its escape, and the run gets on."""
    plan.append("fail")
    answers.extend([answer] * 5)

    async def scenario(sim: Simulation) -> str:
        await worker(sim)
        await sim.client.start(use("probed", 5), id="r")
        head = await sim.until("r", over)
        assert head.reason == "in doubt"
        return (await entries(sim))[-1].why

    why = simulation().run(scenario)
    assert "\0" not in why
    assert ("bad \\udce9" in why) == ("bad" in str(answer))
