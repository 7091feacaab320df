"""Explanations of runs that are hard to bring about for real."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from outlast.cli.explain import REMEDIES, explain
from outlast.cli.session import Session
from outlast.client import Alarm, RunDetail, RunStatus, Status, TaskView
from outlast.effects.standing import Standing

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)
COMMAND = Session().command


def _detail(**changes: Any) -> RunDetail:
    status = {
        name: changes.pop(name)
        for name in ("worker", "waits", "reason", "status")
        if name in changes
    }
    run = RunStatus(
        run_id="a b",
        workflow="flow",
        status=Status.WAITING,
        reason="",
        generation=1,
        entries=3,
        created_at=NOON,
        changed_at=NOON,
        wake_at=None,
        worker=None,
        waits={},
    )
    detail = RunDetail(
        status=replace(run, **status),
        entries=[],
        unreadable=0,
        operations=[],
        approvals=[],
        unread=0,
        now=NOON + timedelta(minutes=1),
        fitting=["w1"],
        attended=True,
    )
    return replace(detail, **changes)


@pytest.mark.parametrize("reason", [one for one in REMEDIES if one != "in doubt"])
def test_each_reason_to_be_blocked_has_a_remedy(reason: str) -> None:
    """Why, what the worker said, what cures it, and how to give the run up."""
    waits = {"error": "step 3 is\n\x1b[31mother."}
    detail = _detail(status=Status.BLOCKED, reason=reason, waits=waits)
    told = explain(detail, COMMAND)
    assert REMEDIES[reason] in told.text
    assert "The worker said: step 3 is \x1b[31mother." in told.text
    assert told.commands[-1] == "outlast runs terminate 'a b' --reason TEXT"


def test_unknown_reason_is_told_all_the_same() -> None:
    """A reason of a later version still says that somebody must act."""
    told = explain(_detail(status=Status.BLOCKED, reason="budget"), COMMAND)
    assert "is blocked since" in told.text
    assert "An operator must act" in told.text


def test_worker_that_is_gone() -> None:
    """A run of a dead worker is told apart from one that is being moved."""
    detail = _detail(status=Status.RUNNING, worker="w1")
    assert "is in the hands of worker w1" in explain(detail, COMMAND).text
    gone = explain(replace(detail, attended=False, fitting=[]), COMMAND)
    assert "w1, which is gone" in gone.text
    assert "No live worker" in gone.text


def test_old_notes_are_not_believed() -> None:
    """What a run waited for before it came back into memory is not told as if it still did."""
    waits = {"signals": ["go"], "timers": {}}
    detail = _detail(status=Status.RUNNING, worker="w1", waits=waits)
    assert "'go'" not in explain(detail, COMMAND).text
    assert "'go'" in explain(_detail(waits=waits), COMMAND).text


@pytest.mark.parametrize(
    ("due", "words"),
    [
        (NOON + timedelta(minutes=3), "attempt 3 begins at 2026-11-29 12:03:00 UTC (in 2 minutes)"),
        (NOON, "attempt 3 is due or under way"),
    ],
)
def test_retry_counts_and_says_when(due: datetime, words: str) -> None:
    """The number of the next attempt follows the recorded failures."""
    one = Standing(
        "r:1", "step", "fetch", "retrying", failures=2, due_at=due, failure="OSError: gone"
    )
    text = explain(_detail(operations=[one]), COMMAND).text
    assert "failed 2 times, last with OSError: gone" in text
    assert words in text


def test_intended_effect_needs_nobody() -> None:
    """An effect without an outcome is being attempted, not in doubt; with its worker gone, it waits for the next one."""
    one = Standing("r:1", "effect", "pay", "intended", since=NOON, key="k", arguments={})
    detail = _detail(status=Status.RUNNING, worker="w1", operations=[one])
    told = explain(detail, COMMAND)
    assert "it is being attempted" in told.text
    assert "Nobody needs to act" in told.text
    assert told.commands == []
    gone = explain(replace(detail, attended=False, fitting=[]), COMMAND)
    assert "being attempted" not in gone.text
    assert "Nobody needs to act" not in gone.text
    assert "The next worker waits until a lost attempt can no longer act" in gone.text


def test_condition() -> None:
    """A parked run for which nothing else is known waits for a condition."""
    assert [one.kind for one in explain(_detail(), COMMAND).waits] == ["condition"]
    assert [one.kind for one in explain(_detail(unread=1), COMMAND).waits] == ["mail"]


def test_closed_run_waits_for_nothing() -> None:
    """A closed run says how it ended and where its result is."""
    told = explain(_detail(status=Status.TERMINATED, reason="old", fitting=[]), COMMAND)
    assert told.text.endswith("(1 minute ago): old. Nothing more happens.")
    assert told.commands == ["outlast runs show 'a b'"]


def test_commands_name_store_and_tenant() -> None:
    """What is typed works for the store and tenant that were looked at."""
    told = explain(_detail(fitting=[]), Session("sqlite:///x y.db", "acme").command)
    assert told.commands == ["outlast -d 'sqlite:///x y.db' --tenant acme worker MODULE"]


@pytest.mark.parametrize(
    ("alarm", "words", "typed"),
    [
        (Alarm("unfit_outcome", NOON, "r:1", "r:1", "ann", "applied", "expected int"),
         "What ann said of operation r:1 (applied) was not accepted, at 2026-11-29 12:00:00 UTC (1 minute ago): expected int.",
         "outlast runs resolve 'a b' --operation r:1 --applied RESULT-AS-JSON --reason TEXT"),
        (Alarm("unfit_outcome", NOON, "", "r:9", "ann", "applied", "nothing is open there"),
         "nothing is open there. Nothing was changed by it.", "outlast runs journal 'a b'"),
        (Alarm("unfit_message", NOON, "", "go", "ann", "", "expected int"),
         "A message 'go' from ann does not fit the signal's type", "outlast runs send 'a b' go JSON"),
        (Alarm("late_outcome", NOON, "", "r:1", "", "effect_completed"),
         "A second outcome (effect_completed) of operation r:1 came", "outlast runs journal 'a b'"),
        (Alarm("late_decision", NOON, "", "1~r:1", "bob", "denied"),
         "A decision of bob on approval 1~r:1 (denied) came too late", "outlast runs journal 'a b'"),
        (Alarm("unreadable_message", NOON, "", "m1", "", "", "truncated"),
         "A message (m1) could not be read", "outlast runs journal 'a b'"),
        (Alarm("of a later version", NOON), "Something was put aside", "outlast runs journal 'a b'"),
    ],
)  # fmt: skip
def test_alarm_is_told_with_its_remedy(alarm: Alarm, words: str, typed: str) -> None:
    """Each kind of alarm says what came, why it was put aside, and what can be typed."""
    told = explain(_detail(alarms=[alarm], waits={"signals": ["go"]}), COMMAND)
    assert words in told.text
    assert typed in told.commands
    assert len(told.commands) == len(set(told.commands)) == len(told.purposes)


def test_closed_run_says_who_ended_it_or_where_it_failed() -> None:
    """A cancelled run names who asked and why; a failed one the author's line."""
    cancelled = _detail(
        status=Status.CANCELLED, reason="CancelledError", cancelled_by="by ann: too slow"
    )
    text = explain(cancelled, COMMAND).text
    assert text.endswith("(1 minute ago), asked by ann: too slow. Nothing more happens.")
    failed = _detail(status=Status.FAILED, reason="KeyError: 'k'", place="at agent.py:4 in deep")
    assert "KeyError: 'k', raised at agent.py:4 in deep. Nothing" in explain(failed, COMMAND).text


def _task(**changes: Any) -> TaskView:
    task = TaskView("r:1", "render", 1, "gpu", NOON, None, False, ["w2"])
    return replace(task, **changes)


def test_a_step_that_waits_for_a_worker_of_its_queue() -> None:
    """Since when, of which queue, and until when, as the run has noted it; it is no condition that is waited for."""
    noted = {"start_by": {"r:1": "2026-11-29T12:05:00Z"}}
    told = explain(_detail(tasks=[_task()], waits=noted), COMMAND)
    assert (
        "Step render (r:1) waits for a worker of queue 'gpu' since 2026-11-29 12:00:00 UTC (1 minute ago). "
        "If none takes it before 2026-11-29 12:05:00 UTC (in 4 minutes), the step fails."
        in told.text
    )
    assert [one.kind for one in told.waits] == ["task"]
    assert told.waits[0].until == NOON + timedelta(minutes=5)


def test_a_step_whose_queue_nobody_serves() -> None:
    """It is said, with what to type."""
    told = explain(_detail(tasks=[_task(serving=[])]), COMMAND)
    assert "No live worker serves that queue." in told.text
    assert [one.kind for one in told.waits] == ["queue"]
    assert told.commands == ["outlast worker MODULE --queue gpu"]


def test_a_step_that_is_offered_later() -> None:
    """The next attempt has its time, and is told with the failures before it."""
    row = Standing(
        "r:1", "step", "render", "retrying", None, 2, NOON + timedelta(hours=1), "OSError: x"
    )
    told = explain(
        _detail(tasks=[_task(since=NOON + timedelta(hours=1))], operations=[row]), COMMAND
    )
    assert "failed 2 times, last with OSError: x; attempt 3 begins at" in told.text
    assert (
        "Step render (r:1) is offered to the workers of queue 'gpu' at 2026-11-29 13:00:00"
        in told.text
    )


@pytest.mark.parametrize("attended", [True, False])
def test_a_step_that_somebody_works_on(attended: bool) -> None:
    """Who has it, since when, and whether that worker lives; the deadline to be started says nothing then."""
    noted = {"start_by": {"r:1": "2026-11-29T12:05:00Z"}}
    task = _task(worker="w7", attended=attended)
    told = explain(_detail(tasks=[task], waits=noted), COMMAND)
    assert (
        "Step render (r:1) is with worker w7 of queue 'gpu' since 2026-11-29 12:00:00" in told.text
    )
    assert ("which is gone" in told.text) is not attended
    assert "fails" not in told.text
