"""Laws of crash points: before and after each commit and each call of a body or probe, enumerated in simulation."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

import outlast
from outlast.client import Client
from outlast.effects.intent import Applied, NotApplied
from outlast.journal.entry import (
    EffectCompleted,
    EffectFailed,
    EffectIntended,
    Failed,
    Published,
    StepCompleted,
    StepFailed,
)
from outlast.store.change import Status
from outlast.testing import CrashPoint, Receiver, Trial, Workload, every_crash, undisturbed

receiver = Receiver()
go = outlast.Signal("go", int)
TIMEOUT = timedelta(seconds=5)
OUTCOMES = (StepCompleted, StepFailed, EffectCompleted, EffectFailed)
LATE = timedelta(seconds=20)
"""Much later than a worker comes after a dead one."""

THRICE = outlast.RetryPolicy(maximum_attempts=3)


@outlast.step
async def double(number: int) -> int:
    return number * 2


@outlast.step
async def double_slowly(number: int) -> int:
    await asyncio.sleep(0.3)
    return number * 2


@outlast.step(retry=THRICE)
async def third_time(name: str) -> int:
    if outlast.attempt().number < 3:
        raise OSError("not yet")
    return 3


@outlast.step
def blocking(number: int) -> int:
    return number + 1


@outlast.step(retry=outlast.RetryPolicy(maximum_attempts=1))
async def broken() -> int:
    raise ValueError("broken")


@outlast.effect(idempotent=True)
async def idempotent(name: str) -> str:
    return receiver.apply_once(outlast.idempotency_key(), name)


@outlast.effect(idempotent=True)
def in_thread(name: str) -> str:
    return receiver.apply_once(outlast.idempotency_key(), name)


@outlast.effect(idempotent=True, retry=THRICE)
async def answers_late(name: str) -> str:
    """Act, and let the first answer be an error."""
    said = receiver.apply_once(outlast.idempotency_key(), name)
    if outlast.attempt().number == 1:
        raise OSError("no answer")
    return said


def find(name: str) -> Applied[str] | NotApplied:
    return receiver.find(outlast.idempotency_key())


@outlast.effect(probe=find, start_to_close_timeout=TIMEOUT)
async def probed(name: str) -> str:
    return receiver.apply(outlast.idempotency_key(), name)


async def find_later(name: str) -> Applied[str] | NotApplied:
    await asyncio.sleep(1)
    return receiver.find(outlast.idempotency_key())


@outlast.effect(probe=find_later, start_to_close_timeout=TIMEOUT, retry=THRICE)
def probed_in_thread(name: str) -> str:
    """Do nothing at first; then act, and lose the answer."""
    if outlast.attempt().number == 1:
        raise OSError("nothing was sent")
    receiver.apply(outlast.idempotency_key(), name)
    raise OSError("no answer")


@outlast.effect(start_to_close_timeout=TIMEOUT)
async def neither(name: str) -> str:
    return receiver.apply(outlast.idempotency_key(), name)


@outlast.effect(probe=find, start_to_close_timeout=LATE + TIMEOUT)
async def late_and_probed(name: str) -> str:
    """Send a request that acts late, whoever lives then."""
    return await receiver.apply_late(outlast.idempotency_key(), name, after=LATE)


@outlast.effect(start_to_close_timeout=LATE + TIMEOUT)
async def late_with_neither(name: str) -> str:
    return await receiver.apply_late(outlast.idempotency_key(), name, after=LATE)


@outlast.workflow
async def steps() -> list[int]:
    """Parallel steps, retries, a thread."""
    first = await asyncio.gather(double(1), double(2), third_time("a"), blocking(4))
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(double(one)) for one in first]
    return [task.result() for task in tasks]


@outlast.workflow
async def waiting() -> str:
    """A timer, a message, an approval, and effects of each kind that can be repeated."""
    await outlast.sleep(3)
    number = await outlast.receive(go)
    grant = await outlast.approval(
        {"number": number},
        covers=[probed("c"), idempotent.where(name="d")],
        role="boss",
        expires_in=timedelta(hours=1),
    )
    one, two = await asyncio.gather(idempotent("d"), in_thread("b"))
    return f"{number} {grant.by} {await probed('c')} {one} {two} {await double(number)}"


@outlast.workflow
async def timed_out() -> str:
    """A wait that is cut off, and a step that is cancelled by a sibling's failure."""
    with contextlib.suppress(TimeoutError):
        await outlast.receive(go, timeout=timedelta(seconds=2))
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(outlast.sleep(1000))
            group.create_task(broken())
    except* ValueError:
        pass
    return await idempotent("after")


@outlast.workflow
async def retried() -> list[str]:
    """Effects whose attempts fail, before and after they have acted, side by side."""
    return list(await asyncio.gather(answers_late("a"), probed_in_thread("b")))


@outlast.workflow
async def fails() -> str:
    """An effect, and an exception that ends the run."""
    await idempotent("a")
    await broken()
    return await idempotent("never")


@outlast.workflow
async def once() -> str:
    """An effect with neither, between two steps."""
    await double(1)
    said = await neither("x")
    await double(2)
    return said


@outlast.workflow
async def one_probed() -> str:
    return await probed("x")


@outlast.workflow
async def one_idempotent() -> str:
    return await in_thread("x")


@outlast.workflow
async def late() -> str:
    return await late_and_probed("x") + await late_with_neither("y")


@outlast.workflow
async def publishing() -> int:
    """A value before each of several steps and effects, one after the last, and one in a row with it."""
    total = 0
    for number in range(3):
        outlast.publish("number", 2 * number)
        total += await double_slowly(number)
        outlast.publish("number", 2 * number + 1)
    await idempotent("a")
    outlast.publish("number", 6)
    outlast.publish("number", 7)
    outlast.publish("total", total)
    return total


@outlast.workflow
async def interrupted() -> str:
    """Retries, a timer, a message and effects, while somebody pauses and resumes."""
    one, two = await asyncio.gather(answers_late("a"), third_time("b"))
    await outlast.sleep(5)
    return f"{one} {two} {await outlast.receive(go)} {await probed('c')}"


@outlast.workflow(timeout=timedelta(minutes=2))
async def out_of_time() -> str:
    """Work, a wait that is never over, and a clean-up in which something happens."""
    try:
        await asyncio.gather(double(1), idempotent("a"))
        return f"{await outlast.receive(go)}"
    finally:
        await probed("clean up")
        await outlast.sleep(3)
        await blocking(1)


CODE = [
    *(publishing, double_slowly),
    *(double, third_time, blocking, broken),
    *(idempotent, in_thread, answers_late, probed, probed_in_thread, neither),
    *(late_and_probed, late_with_neither),
    *(steps, waiting, timed_out, retried, fails, once, one_probed, one_idempotent, late),
    *(interrupted, out_of_time),
]


async def feed(client: Client) -> None:
    """Send the message and say yes, as often as it takes."""
    await client.handle("run").send(go, 21, id="the message")
    while not (views := await client.approvals.list()):
        await asyncio.sleep(0.5)
    await client.approvals.approve("run", views[0].approval_id, seen_sha256=views[0].subject_sha256)


seen: list[int] = []
"""What somebody outside saw of the published values, each once."""


async def watch(client: Client) -> None:
    """Look at what is published, without end."""
    while True:
        value = await client.handle("run").published("number", int)
        if value is not None and seen[-1:] != [value]:
            seen.append(value)
        await asyncio.sleep(0.1)


async def interrupt(client: Client) -> None:
    """Pause the run at once, send it something, and resume it when it has been paused for long."""
    handle = client.handle("run")
    await handle.pause("for a while")
    while (await handle.status()).status is not Status.PAUSED:
        await asyncio.sleep(0.1)
    await handle.send(go, 21, id="the message")
    await asyncio.sleep(60)
    await handle.resume()


MEANWHILE = {waiting: feed, interrupted: interrupt}


def workload(workflow: Any, **more: Any) -> Workload[Any]:
    """Return a workload of one run."""
    return Workload(
        lambda: workflow(),
        receiver=receiver,
        definitions=CODE,
        meanwhile=MEANWHILE.get(workflow),
        **more,
    )


def assert_equal_but_for_the_crash(plain: Trial[Any], trial: Trial[Any]) -> None:
    """Same result, same entries by operation, same changes of the world; and what `assert_lawful` asks."""
    assert trial.status is plain.status, trial
    assert trial.ending.value == plain.ending.value, trial
    assert str(trial.ending.error) == str(plain.ending.error), trial
    assert _kinds(trial) == _kinds(plain), trial
    assert trial.changes == plain.changes, trial
    assert_lawful(plain, trial)


def assert_lawful(plain: Trial[Any], trial: Trial[Any]) -> None:
    """Nothing recorded happens again, nothing is called before it was intended, each operation has one key.

    And each death costs a body at most one more call.
    """
    for life in trial.lives:
        intended = {
            one.entry.operation for one in life.left if isinstance(one.entry, EffectIntended)
        }
        acted = {call.operation for call in life.calls if call.kind == "effect"}
        assert acted <= intended, trial
    for before, after in zip(trial.lives, trial.lives[1:], strict=False):
        recorded = {one.entry.operation for one in before.left if isinstance(one.entry, OUTCOMES)}
        assert not recorded & {call.operation for call in after.calls}, trial
    attempts = Counter(call for call in trial.calls if call.kind != "probe")
    usual = Counter(call for call in plain.calls if call.kind != "probe")
    assert all(more <= len(trial.points) for more in (attempts - usual).values()), trial
    assert len({(call.operation, call.key) for call in trial.calls}) == len(
        {call.operation for call in trial.calls}
    ), trial


def _kinds(trial: Trial[Any]) -> Counter[tuple[str, str]]:
    return Counter(
        (type(one.entry).__name__, getattr(one.entry, "operation", "")) for one in trial.journal
    )


REPEATABLE = {
    "steps": (workload(steps), Status.COMPLETED),
    "waiting": (workload(waiting), Status.COMPLETED),
    "timed_out": (workload(timed_out), Status.COMPLETED),
    "retried": (workload(retried), Status.COMPLETED),
    "fails": (workload(fails), Status.FAILED),
    "publishing": (workload(publishing), Status.COMPLETED),
    "interrupted": (workload(interrupted), Status.COMPLETED),
    "out of time": (workload(out_of_time), Status.FAILED),
    "steps started elsewhere": (workload(steps, started_outside=True), Status.COMPLETED),
    "waiting started elsewhere": (workload(waiting, started_outside=True), Status.COMPLETED),
}


@pytest.mark.parametrize("name", REPEATABLE)
def test_every_crash_point_leads_to_the_undisturbed_result(name: str) -> None:
    """Invariants 2 and 3: before and after each commit of the process, each attempt and each probe."""
    work, status = REPEATABLE[name]
    plain = undisturbed(work)
    assert plain.status is status
    points = plain.lives[0].points
    assert len(points) >= 14
    tried = 0
    for trial in every_crash(work):
        assert_equal_but_for_the_crash(plain, trial)
        assert set(trial.changes.values()) <= {1}
        tried += 1
    assert tried == len(points)


@pytest.mark.slow
@pytest.mark.parametrize("workflow", [one_idempotent, one_probed, timed_out, fails])
def test_every_crash_in_every_recovery_leads_to_the_undisturbed_result(workflow: Any) -> None:
    """The same with a second crash: wherever the first process was killed, the one that recovers is killed everywhere."""
    work = workload(workflow)
    plain = undisturbed(work)
    tried = Counter(len(trial.points) for trial in _checked(plain, every_crash(work, crashes=2)))
    assert tried[1] == len(plain.lives[0].points)
    assert tried[2] > tried[1] * 4


def test_published_values_are_seen_in_their_order_wherever_the_process_dies() -> None:
    """Nothing that was seen outside is ever taken back, and nothing comes late: what was written is written once, in its order."""
    work = Workload(
        lambda: publishing(), receiver=receiver, definitions=CODE, meanwhile=watch, reset=seen.clear
    )
    plain = undisturbed(work)
    written: set[tuple[int, ...]] = set()
    for trial in every_crash(work, crashes=1):
        values = [one.entry for one in trial.journal if isinstance(one.entry, Published)]
        assert [(one.name, int(one.value)) for one in values] == [
            *(("number", number) for number in range(8)),
            ("total", 6),
        ], trial
        assert seen == sorted(set(seen)), trial
        assert len(seen) > 1, trial
        assert trial.result == plain.result, trial
        written.add(tuple(seen))
    assert len(written) > 1


@pytest.mark.soak
@pytest.mark.parametrize("name", REPEATABLE)
def test_every_crash_in_every_recovery_of_every_workload(name: str) -> None:
    """Two crashes in a row, at every pair of points, in the large workloads too."""
    work, _ = REPEATABLE[name]
    plain = undisturbed(work)
    assert sum(1 for _ in _checked(plain, every_crash(work, crashes=2))) > 100


def _checked(plain: Trial[Any], trials: Any) -> Any:
    for trial in trials:
        assert_equal_but_for_the_crash(plain, trial)
        yield trial


def test_a_repeated_request_of_an_idempotent_effect_carries_the_same_key() -> None:
    """The receiver sees one key, asked twice only when the answer was lost or not recorded."""
    asked_twice: list[CrashPoint] = []
    for trial in every_crash(workload(one_idempotent)):
        (key,) = trial.requests
        assert trial.changes == {key: 1}, trial
        if trial.requests[key] == 2:
            asked_twice += trial.points
    assert asked_twice == [
        CrashPoint("after", "effect in_thread", 1),
        CrashPoint("before", "commit", 3),
    ]


def test_a_probed_effect_is_asked_about_exactly_where_its_end_is_unknown() -> None:
    """From the intent on until the outcome is recorded; and it is requested once, whatever happens."""
    asked: list[CrashPoint] = []
    for trial in every_crash(workload(one_probed)):
        assert list(trial.requests.values()) == [1], trial
        if any(call.kind == "probe" for call in trial.calls):
            asked += trial.points
    assert asked == [
        CrashPoint("after", "commit", 2),
        CrashPoint("before", "effect probed", 1),
        CrashPoint("after", "effect probed", 1),
        CrashPoint("before", "commit", 3),
    ]


def test_an_effect_with_neither_happens_at_most_once_at_every_crash_point() -> None:
    """Invariant 4: the undisturbed result, or blocked in doubt; in doubt only where the attempt was cut off."""
    work = workload(once)
    plain = undisturbed(work)
    in_doubt: list[CrashPoint] = []
    for trial in every_crash(work):
        assert set(trial.changes.values()) <= {1}, trial
        if trial.in_doubt:
            in_doubt += trial.points
        else:
            assert_equal_but_for_the_crash(plain, trial)
    assert in_doubt == [
        CrashPoint("after", "commit", 3),
        CrashPoint("before", "effect neither", 1),
        CrashPoint("after", "effect neither", 1),
        CrashPoint("before", "commit", 4),
    ]


def test_a_request_that_acts_after_its_sender_died_is_waited_for() -> None:
    """Assumption A: nobody probes, resolves or calls again while an attempt can still act; so it happens once."""
    plain = undisturbed(workload(late))
    died_under_way: list[CrashPoint] = []
    for trial in every_crash(workload(late, resolve=receiver.find)):
        assert trial.result == plain.result, trial
        assert trial.changes == trial.requests == plain.changes, trial
        assert_lawful(plain, trial)
        died_under_way += [one for one in trial.points if one.moment == "during"]
    assert [one.what for one in died_under_way] == [
        "effect late_and_probed",
        "effect late_with_neither",
    ]


@pytest.mark.parametrize("crashes", [1, 2])
def test_an_effect_in_doubt_that_is_resolved_truthfully_happens_exactly_once(crashes: int) -> None:
    """With an operator who looks it up, every crash point leads to the undisturbed result, and nothing happens twice."""
    plain = undisturbed(workload(once))
    resolved = 0
    for trial in every_crash(workload(once, resolve=receiver.find), crashes=crashes):
        assert trial.status is Status.COMPLETED, trial
        assert trial.result == plain.result, trial
        assert trial.changes == plain.changes, trial
        assert_lawful(plain, trial)
        resolved += trial.requests != plain.requests or _kinds(trial) != _kinds(plain)
    assert resolved >= 4 * crashes


def test_a_failed_run_raises_what_the_workflow_raised() -> None:
    """And its last entry is a failure, wherever it was killed."""
    for trial in every_crash(workload(fails)):
        with pytest.raises(outlast.WorkflowFailedError, match="broken"):
            _ = trial.result
        assert isinstance(trial.journal[-1].entry, Failed), trial
