"""The test kit's crash points: what is enumerated, what a trial holds, and what a wrong workload is told."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest

import outlast
from outlast import testing
from outlast.client import Client
from outlast.journal.entry import EffectIntended
from outlast.testing import CrashPoint, Workload, crashed, every_crash, undisturbed
from outlast.workflows import registry

receiver = testing.Receiver()
ran: list[str] = []


@dataclass
class Parcel:
    """Something to be decoded."""

    weight: int


@outlast.step
async def work(name: str) -> str:
    await asyncio.sleep(0.5)
    ran.append(name)
    return name


@outlast.step
def work_in_thread(name: str) -> str:
    ran.append(name)
    return name


def find(weight: int) -> outlast.Applied[Parcel] | outlast.NotApplied:
    raise AssertionError("the real post office was asked")


@outlast.effect(probe=find, start_to_close_timeout=timedelta(seconds=5))
async def post(weight: int) -> Parcel:
    raise AssertionError("the real post office was reached")


@outlast.effect(start_to_close_timeout=timedelta(seconds=5))
async def wave(name: str) -> str:
    return receiver.apply(outlast.idempotency_key(), name)


@outlast.workflow
async def two() -> str:
    return await work("a") + await work_in_thread("b")


@outlast.workflow
async def asks(weight: int) -> Parcel:
    await outlast.approval(
        {"weight": weight}, covers=[post(weight)], role="boss", expires_in=timedelta(hours=1)
    )
    return await post(weight)


@outlast.workflow
async def two_days() -> int:
    await outlast.sleep(timedelta(hours=25))
    return 2


@outlast.workflow
async def waves() -> str:
    return await wave("hello")


@outlast.effect(idempotent=True, key_on=("invoice",))
async def charge(invoice: str, due: datetime) -> str:
    return receiver.apply_once(outlast.idempotency_key(), invoice)


@outlast.workflow
async def charges() -> str:
    return await charge("i-1", outlast.now())


@outlast.workflow
async def refuses() -> str:
    await work("a")
    raise RuntimeError("no")


CODE = [work, work_in_thread, post, wave, charge, two, asks, waves, charges, refuses]


async def post_double(weight: int) -> Parcel:
    return receiver.apply(outlast.idempotency_key(), Parcel(weight))


async def find_double(weight: int) -> outlast.Applied[Parcel] | outlast.NotApplied:
    return receiver.find(outlast.idempotency_key())


WORK = Workload(lambda: two(), definitions=CODE)
POST = Workload(
    lambda: asks(7),
    receiver=receiver,
    meanwhile=testing.approve_everything,
    definitions=CODE,
    doubles=[testing.double(post, post_double, probe=find_double)],
)


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    ran.clear()
    yield
    ran.clear()


def test_every_commit_and_every_call_is_a_point() -> None:
    """Start, two outcomes, the end, and the two bodies, of which one waits: in the order in which they come."""
    plain = undisturbed(WORK)
    assert [str(one) for one in plain.lives[0].points] == [
        *("before commit 1", "after commit 1"),
        *("before step work 1", "during step work 1", "after step work 1"),
        *("before commit 2", "after commit 2"),
        *("before step work_in_thread 1", "after step work_in_thread 1"),
        *("before commit 3", "after commit 3"),
        *("before commit 4", "after commit 4"),
    ]
    trials = list(every_crash(WORK))
    assert [one.points for one in trials] == [(point,) for point in plain.lives[0].points]
    assert [one.result for one in trials] == ["ab"] * 13


def test_a_run_that_another_process_starts_has_an_entry_for_the_one_that_takes_it() -> None:
    """The start is no point then; `Taken` is."""
    outside = Workload(lambda: two(), definitions=CODE, started_outside=True)
    entries = [type(one.entry).__name__ for one in undisturbed(outside).journal]
    assert entries == ["Started", "Taken", "StepCompleted", "StepCompleted", "Completed"]
    assert all(trial.result == "ab" for trial in every_crash(outside))


def test_before_a_call_the_body_has_not_run_and_after_it_nobody_knows() -> None:
    """A step that died before its body runs once, one whose outcome was lost twice, one whose outcome is recorded once."""
    expected = {
        CrashPoint("before", "step work"): ["a", "b"],
        CrashPoint("during", "step work"): ["a", "b"],
        CrashPoint("after", "step work"): ["a", "a", "b"],
        CrashPoint("before", "commit", 2): ["a", "a", "b"],
        CrashPoint("after", "commit", 2): ["a", "b"],
        CrashPoint("before", "step work_in_thread"): ["a", "b"],
        CrashPoint("after", "step work_in_thread"): ["a", "b", "b"],
    }
    for point, bodies in expected.items():
        ran.clear()
        assert crashed(WORK, point).result == "ab"
        assert ran == bodies, point


def test_a_trial_says_what_came_of_it() -> None:
    """Result, journal, requests, changes, and what each process did and left, decoded."""
    trial = crashed(POST, CrashPoint("after", "effect post"))
    assert trial.result == Parcel(7)
    (key,) = trial.changes
    assert (trial.requests[key], trial.changes[key]) == (1, 1)
    assert [(one.kind, one.name, one.key) for one in trial.calls] == [
        ("effect", "post", key),
        ("probe", "post", key),
    ]
    first, second = trial.lives
    assert isinstance(first.left[-1].entry, EffectIntended)
    assert trial.journal == second.left
    assert trial.journal[: len(first.left)] == first.left
    assert str(trial) == (
        "<Trial: killed after effect post 1 (last entry: EffectIntended post); then the run is completed>"
    )


def test_a_second_crash_is_tried_at_every_point_of_the_recovery() -> None:
    """Each point of the first life, followed by each point of the second that comes of it."""
    trials = list(every_crash(POST, crashes=2))
    once = {one.points[0]: one for one in trials if len(one.points) == 1}
    assert list(once) == list(undisturbed(POST).lives[0].points)
    for first, trial in once.items():
        recovery = trial.lives[1].points if len(trial.lives) > 1 else ()
        assert [one.points[1] for one in trials if one.points[0] == first and one.points[1:]] == (
            list(recovery)
        )
    assert len(trials) > 150
    for trial in trials:
        assert trial.result == Parcel(7), trial
        assert list(trial.changes.values()) == [1], trial


def test_equal_seeds_make_equal_trials() -> None:
    """Keys and times in the journal are the same when a trial is made again."""
    point = CrashPoint("after", "effect post")
    assert crashed(POST, point, seed=3) == crashed(POST, point, seed=3)
    assert crashed(POST, point, seed=3).journal != crashed(POST, point, seed=4).journal


def test_a_run_that_fails_raises_from_its_trial() -> None:
    """What the handle of the run would raise."""
    trial = crashed(Workload(lambda: refuses(), definitions=CODE), CrashPoint("after", "step work"))
    with pytest.raises(outlast.WorkflowFailedError, match="RuntimeError: no"):
        _ = trial.result
    assert not trial.in_doubt


def test_a_key_made_of_some_arguments_is_the_same_in_every_life() -> None:
    """The simulation asks nothing of keys that `key_on` or a time among the arguments would break."""
    keys: set[str] = set()
    for trial in every_crash(Workload(lambda: charges(), receiver=receiver, definitions=CODE)):
        assert trial.result == "i-1"
        assert list(trial.changes.values()) == [1], trial
        keys |= set(trial.requests)
    assert len(keys) == 1


def test_an_effect_in_doubt_ends_the_trial_unless_somebody_resolves_it() -> None:
    """Without `resolve` the result is an error that says so; with the receiver's own answer the run goes on."""
    point = CrashPoint("after", "effect wave")
    trial = crashed(Workload(lambda: waves(), receiver=receiver, definitions=CODE), point)
    assert trial.in_doubt
    with pytest.raises(outlast.OutlastError, match=r"in doubt whether this happened: wave \(r:1\)"):
        _ = trial.result
    resolved = Workload(lambda: waves(), receiver=receiver, definitions=CODE, resolve=receiver.find)
    for moment in ("before", "after"):
        trial = crashed(resolved, CrashPoint(moment, "effect wave"))
        assert trial.result == "hello"
        assert list(trial.changes.values()) == [1]


def test_what_is_not_registered_is_named() -> None:
    """A workflow that calls a step outside the definitions, and one that is outside them itself."""
    with pytest.raises(outlast.OutlastError, match="'work_in_thread', which this app did not"):
        undisturbed(Workload(lambda: two(), definitions=[two, work]))
    with pytest.raises(outlast.DefinitionError, match="workflow two, and its definitions do not"):
        undisturbed(Workload(lambda: two(), definitions=[work, work_in_thread]))
    not_decorated: Any = lambda: 3  # noqa: E731
    with pytest.raises(outlast.DefinitionError, match="gave 3, which is no call of a workflow"):
        undisturbed(Workload(not_decorated, definitions=CODE))


def test_everything_decorated_is_registered_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `outlast.open()` does."""
    monkeypatch.setattr(registry, "_declared", CODE)
    assert undisturbed(Workload(lambda: two())).result == "ab"


def test_a_point_that_is_never_reached_is_an_error() -> None:
    """It names those that were; and there is no point after the end."""
    with pytest.raises(
        testing.CrashPointError, match="came to the point before step other 1"
    ) as error:
        crashed(WORK, CrashPoint("before", "step other"))
    assert "after step work_in_thread 1" in error.value.hint
    with pytest.raises(testing.CrashPointError, match="was over before"):
        crashed(WORK, CrashPoint("after", "commit", 4), CrashPoint("before", "commit"))


def test_what_breaks_outside_breaks_the_trial() -> None:
    """An error of `meanwhile` is raised, not waited for."""

    async def broken(client: Client) -> None:
        raise LookupError("nobody is here")

    with pytest.raises(LookupError, match="nobody is here"):
        undisturbed(Workload(lambda: asks(1), meanwhile=broken, definitions=CODE))


def test_the_world_is_put_back_before_each_trial() -> None:
    """`reset` is called, and the receiver forgets."""
    counter = itertools.count(1)
    numbers: list[int] = []
    one = Workload(lambda: two(), reset=lambda: numbers.append(next(counter)), definitions=CODE)
    assert len(list(every_crash(one))) == 13
    assert numbers == list(range(1, 15))


def test_a_double_keeps_the_declaration_and_replaces_what_reaches_the_world() -> None:
    """Name, options and codecs are the declared ones; the declared definition is not changed."""
    other = testing.double(post, post_double, probe=find_double)
    assert other.name == "post"
    assert other.options is post.options
    assert other.result is post.result
    assert post.rules.probe is find
    assert other.rules.probe is find_double


def test_a_double_that_would_reach_the_world_all_the_same_is_refused() -> None:
    """A probed effect needs a double of its probe; a workflow has no double; nor has what is not registered."""
    with pytest.raises(
        outlast.DefinitionError, match="effect post has a probe, and its double has none"
    ):
        testing.double(post, post_double)
    with pytest.raises(
        outlast.DefinitionError, match="step work has no probe, and its double has one"
    ):
        testing.double(work, work.function, probe=find)
    with pytest.raises(outlast.DefinitionError, match="cannot have a double"):
        testing.double(two, two.function)
    with pytest.raises(outlast.DefinitionError, match="no effect of that name"):
        undisturbed(
            Workload(lambda: two(), definitions=[two, work, work_in_thread], doubles=POST.doubles)
        )


def test_a_receiver_counts_requests_changes_and_probes_by_key() -> None:
    """Asked twice, `apply` acts twice and `apply_once` once; both give the first value again."""
    post_office = testing.Receiver()
    assert [post_office.apply("a", 1), post_office.apply("a", 2)] == [1, 1]
    assert [post_office.apply_once("b", 3), post_office.apply_once("b", 4)] == [3, 3]
    assert post_office.requests == {"a": 2, "b": 2}
    assert post_office.changes == {"a": 2, "b": 1}
    assert post_office.log == [("a", 1), ("a", 2), ("b", 3)]
    assert post_office.total == 3
    assert post_office.find("b") == outlast.Applied(3)
    assert post_office.find("c") == outlast.NotApplied()
    assert post_office.probes == {"b": 1, "c": 1}
    post_office.forget()
    assert (post_office.total, post_office.log) == (0, [])
    assert post_office.find("a") == outlast.NotApplied()


def test_a_request_on_its_way_survives_its_sender() -> None:
    """It acts when its time has come, and the trial waits for that."""
    seconds: list[float] = []

    async def slow(name: str) -> str:
        said = await receiver.apply_late(
            outlast.idempotency_key(), name, after=timedelta(seconds=4)
        )
        seconds.append(asyncio.get_running_loop().time())
        return said

    late = Workload(
        lambda: waves(), receiver=receiver, definitions=CODE, doubles=[testing.double(wave, slow)]
    )
    for moment, changes in {"before": 0, "during": 1, "after": 1}.items():
        seconds.clear()
        trial = crashed(late, CrashPoint(moment, "effect wave"))
        assert trial.in_doubt
        assert trial.changes.total() == changes, moment
        assert len(seconds) == (moment == "after")


def test_no_receiver_remembers_another_trial() -> None:
    """A receiver that the workload does not name begins anew too, or it would hide what a trial has lost; it is counted."""
    for trial in every_crash(Workload(lambda: waves(), definitions=CODE)):
        assert trial.in_doubt or trial.changes.total() == receiver.total == 1, trial


def test_an_operator_who_says_nothing_clear_is_refused() -> None:
    """Anything but Applied and NotApplied would send the effect off again."""
    work = Workload(lambda: waves(), definitions=CODE, resolve=lambda _key: "dunno")
    with pytest.raises(outlast.DefinitionError, match="dunno"):
        crashed(work, CrashPoint("after", "effect wave"))


@pytest.mark.parametrize("crashes", [0, -1])
def test_fewer_crashes_than_one_are_refused(crashes: int) -> None:
    """A loop over nothing would prove nothing."""
    with pytest.raises(outlast.DefinitionError, match="crashes"):
        next(every_crash(Workload(lambda: waves(), definitions=CODE), crashes=crashes))


def test_a_workload_may_take_days() -> None:
    """Killed on the first day, it is done on the second."""
    work = Workload(lambda: two_days(), definitions=[two_days], longest=timedelta(days=3))
    assert crashed(work, CrashPoint("after", "commit", 1)).result == 2
