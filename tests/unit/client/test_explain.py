"""Explanations of runs that are hard to bring about for real."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace
from typer.testing import CliRunner

import outlast
from outlast import Explanation
from outlast.cli.main import app as app_command
from outlast.cli.session import Session
from outlast.client import (
    Alarm,
    ApprovalView,
    JournalEntry,
    RunDetail,
    RunStatus,
    Status,
    TaskView,
)
from outlast.client.explain import REMEDIES, explain
from outlast.client.mail import Mail
from outlast.client.view import Retry
from outlast.effects.standing import Standing
from outlast.journal.entry import CancelRequested, UpdateAnswered, UpdateReceived
from outlast.workflows import registry

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)
COMMAND = Session().command
GO = outlast.Signal("explained go", int)
_RETRY = "Nothing more happens by itself; a retry does it again from where that happened, and repeats nothing that was finished."


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
    told_in_lines = {"error": "the code is another\n  journal: a\n  code: b\n  → mend it"}
    lines = explain(replace(detail, status=replace(detail.status, waits=told_in_lines)), COMMAND)
    assert "said: the code is another; journal: a; code: b → mend it." in lines.text
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
    """An effect without an outcome is being attempted, not in doubt; with its worker gone, the next one does what it declares."""
    one = Standing("r:1", "effect", "pay", "intended", since=NOON, key="k", arguments={})
    detail = _detail(status=Status.RUNNING, worker="w1", operations=[one])
    told = explain(detail, COMMAND)
    assert "it is being attempted" in told.text
    assert "Nobody needs to act" in told.text
    assert told.commands == []
    gone = explain(replace(detail, attended=False, fitting=[]), COMMAND)
    assert "being attempted" not in gone.text
    assert "Nobody needs to act" not in gone.text
    assert (
        "The next worker does what the effect declares: calls again with the same key" in gone.text
    )
    assert "else waits until a lost attempt can no longer act" in gone.text


def test_paused_workers() -> None:
    """Where all workers that could move a run are paused, it is said how it is released."""
    told = explain(_detail(held=True), COMMAND)
    assert "paused, and it is not released" in told.text
    assert COMMAND("release", "a b", "--reason", "TEXT") in told.commands


def test_condition() -> None:
    """A parked run for which nothing else is known waits for a condition."""
    assert [one.kind for one in explain(_detail(), COMMAND).waits] == ["condition"]
    assert [one.kind for one in explain(_detail(unread=1), COMMAND).waits] == ["mail"]


def test_closed_run_waits_for_nothing() -> None:
    """A closed run says how it ended and where its result is."""
    told = explain(_detail(status=Status.TERMINATED, reason="old", fitting=[]), COMMAND)
    assert "(1 minute ago): old. Nothing more happens by itself; a retry does it again" in told.text
    assert told.commands == ["outlast runs show 'a b'", "outlast runs retry 'a b' --reason TEXT"]
    done = explain(_detail(status=Status.COMPLETED), COMMAND)
    assert done.text.endswith("(1 minute ago). Nothing more happens.")
    assert done.commands == ["outlast runs show 'a b'"]


@pytest.mark.parametrize(
    ("status", "words", "typed"),
    [
        (Status.COMPLETED, "It was done again as run a/2, which ended as completed.", ["runs show a/2"]),
        (Status.WAITING, "It is being done again as run a/2, which is waiting.", ["runs explain a/2"]),
        (Status.FAILED, "which ended as failed.", ["runs show a/2", "runs retry 'a b' --reason TEXT"]),
    ],
)  # fmt: skip
def test_a_run_that_was_retried_names_its_latest_retry(
    status: Status, words: str, typed: list[str]
) -> None:
    """So that it does not look as if the failure were the last word; another retry is offered where one could begin."""
    told = explain(_detail(status=Status.FAILED, retry=Retry("a/2", status)), COMMAND)
    assert told.text.endswith(words)
    assert told.commands == ["outlast runs show 'a b'", *(f"outlast {one}" for one in typed)]


def test_a_retry_that_would_make_refused_effects_says_so() -> None:
    """Whoever forked a run to see what it would do must not be led to do it."""
    reason = "outlast.errors.ForkedEffectError: wire is not made again"
    told = explain(_detail(status=Status.FAILED, reason=reason), COMMAND)
    assert "really makes the effects that it was refused" in told.text
    assert told.purposes[-1] == "make what was refused"


def test_a_run_that_was_retried_knows_its_retry() -> None:
    """Read with its detail, as long as it is the way to go on; a second retry is refused with the name of the first."""

    @outlast.step(name="explained lamp", retry=outlast.RetryPolicy(maximum_attempts=1))
    async def lamp() -> None:
        if not bulbs:
            raise OSError("dark")

    @outlast.workflow(name="explained light")
    async def light() -> None:
        await lamp()
        await outlast.receive(GO)

    bulbs: list[str] = []

    async def main() -> None:
        async with outlast.open("memory://", workflows=[light]) as app:
            handle = await app.start(light(), id="light")
            with pytest.raises(outlast.WorkflowFailedError):
                await handle.result()
            assert (await handle.detail()).retry is None
            bulbs.append("new")
            again = await handle.retry(reason="a new bulb")
            with pytest.raises(outlast.RunConflictError, match="run light is being retried already, as light/retry-1, which is"):  # fmt: skip
                await handle.retry(reason="at once")
            await again.send(GO, 1)
            await again.result()
            assert (await handle.detail()).retry == Retry("light/retry-1", Status.COMPLETED)
            assert (await again.detail()).retry is None
            with pytest.raises(outlast.RunConflictError, match="run light was retried already, as light/retry-1, which has completed"):  # fmt: skip
                await handle.retry(reason="once more")

    asyncio.run(main())


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
    assert text.endswith(f"(1 minute ago), asked by ann: too slow. {_RETRY}")
    failed = _detail(status=Status.FAILED, reason="KeyError: 'k'", place="at agent.py:4 in deep")
    assert "KeyError: 'k', raised at agent.py:4 in deep. Nothing" in explain(failed, COMMAND).text


def test_a_handle_explains_as_data_and_as_the_lines_that_the_command_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Approval and retry with since and until; as text, what `outlast runs explain` prints for this store and tenant."""
    monkeypatch.setattr(registry, "_declared", [])

    @outlast.step(retry=outlast.RetryPolicy(initial_interval=timedelta(hours=1)))
    async def explained_step() -> int:
        raise ConnectionError("no route \x1b[31m\nfor now")

    @outlast.workflow
    async def explained() -> None:
        wait = outlast.approval("really?", role="boss", expires_in=timedelta(hours=2))
        await asyncio.gather(wait, explained_step())

    url = f"sqlite:///{tmp_path / 's.db'}"
    idle = timedelta(milliseconds=1)

    async def main() -> Explanation:
        app = outlast.open(url, workflows=[explained], tenant="acme", idle=idle)
        async with app:
            handle = await app.start(explained(), id="r")
            while (await handle.status()).status is not Status.WAITING:
                await asyncio.sleep(0.01)
        async with outlast.connect(url, tenant="acme") as client:
            return await client.handle("r").explain()

    told = asyncio.run(main())
    retry, approval, worker = told.waits
    assert (retry.kind, retry.about, approval.kind, worker.kind) == (
        "retry",
        "r:1",
        "approval",
        "worker",
    )
    assert approval.since is not None
    assert approval.until is not None
    assert abs(approval.until - approval.since - timedelta(hours=2)) < timedelta(minutes=1)
    assert retry.until is not None
    assert retry.until > approval.since
    assert approval.commands[1] == "outlast --tenant acme approvals approve r '1~r.1:1'"
    monkeypatch.setenv("OUTLAST_DATABASE_URL", url)
    printed = CliRunner().invoke(app_command, ["--tenant", "acme", "runs", "explain", "r"]).stdout
    assert _steady(printed) == _steady(f"{told}\n")
    assert "\x1b" not in str(told)
    assert "without a decision the request expires at" in str(told)


def _steady(text: str) -> str:
    """Return a text without the lengths of time that pass between two looks."""
    return re.sub(r"\((in [^)]*|[^)]* ago)\)", "(…)", text)


def test_a_paused_run_says_who_and_what_to_type() -> None:
    """By whom, what waits for the resume, and how the pause ends."""
    retry = Standing("r:1", "step", "fetch", "retrying", failures=2, due_at=NOON)
    unbegun = Standing("r:2", "effect", "pay", "intended", since=NOON, due_at=NOON)
    detail = _detail(
        status=Status.PAUSED,
        paused_by="by ann: maintenance",
        waits={"timers": {"r:3": "2026-11-29T12:00:30Z"}},
        operations=[retry, unbegun],
        unread=2,
    )
    told = explain(detail, COMMAND)
    assert "is paused, since 2026-11-29 12:00:00 UTC (1 minute ago)." in told.text
    assert "It was paused by ann: maintenance. No attempt begins and no timer fires" in told.text
    assert "attempt 3 waits until the run is resumed" in told.text
    assert "no attempt of it has begun" in told.text
    assert "Timer r:3 is due" in told.text
    assert "it fires when the run is resumed" in told.text
    assert "2 messages have arrived and will be taken in when the run is resumed" in told.text
    assert told.commands == [
        "outlast runs resume 'a b'",
        "outlast runs cancel 'a b' --reason TEXT",
    ]


def test_a_run_that_is_asked_to_pause_is_not_paused_yet() -> None:
    """What is being attempted ends first."""
    detail = _detail(status=Status.RUNNING, worker="w1", paused_by="by ann")
    text = explain(detail, COMMAND).text
    assert "is in the hands of worker w1" in text
    assert "It is asked to pause by ann: what is being attempted ends first" in text


def test_the_time_of_a_run_is_told() -> None:
    """Until when, as noted where a clock was set; what happens then; and what happens when it is over."""
    later = NOON + timedelta(hours=1)
    (wait,) = [
        one for one in explain(_detail(deadline=later), COMMAND).waits if one.kind == "timeout"
    ]
    assert wait.until == later
    assert "It has to be done by 2026-11-29 13:00:00 UTC (in 59 minutes)" in wait.text
    assert "otherwise it is cancelled then, cleans up, and fails" in wait.text
    noted = explain(_detail(deadline=later, waits={"deadline": "2026-11-29T12:30:00Z"}), COMMAND)
    assert "12:30:00 UTC" in noted.text
    paused = explain(_detail(status=Status.PAUSED, deadline=NOON), COMMAND)
    assert "otherwise it is cancelled when it is resumed" in paused.text
    over = explain(_detail(deadline=later, timed_out_at=later), COMMAND)
    assert "Its time was over at 2026-11-29 13:00:00 UTC" in over.text


def test_a_run_whose_time_is_over_and_that_no_worker_has_told_so() -> None:
    """It is not promised what will not happen: the next worker ends it, and no later timer fires."""
    timer = {"timers": {"r:1": "2026-11-29T12:17:00Z"}}
    told = explain(_detail(deadline=NOON, waits=timer, fitting=[]), COMMAND)
    assert "Its time was over at 2026-11-29 12:00:00 UTC (1 minute ago): the worker that takes it up next cancels it" in told.text  # fmt: skip
    assert "that is after the run's time is over, so it will not fire" in told.text
    assert "goes on by itself then" not in told.text
    assert "It has to be done" not in told.text
    earlier = explain(_detail(deadline=NOON + timedelta(hours=1), waits=timer), COMMAND)
    assert "goes on by itself then" in earlier.text
    moved = _detail(status=Status.RUNNING, worker="w1", deadline=NOON)
    assert "It has to be done by" in explain(moved, COMMAND).text


@pytest.mark.parametrize(
    ("mail", "words"),
    [
        (Mail("outcome", "train", "r:1", "completed"), "The outcome of step train (r:1), which has ended, has arrived and will"),
        (Mail("outcome", "train", "r:1", "failed"), "The failure of step train (r:1) has arrived"),
        (Mail("outcome", "", "r:2", "ended"), "The answer of another run (r:2) has arrived"),
        (Mail("cancel"), "The request to stop has arrived"),
        (Mail("signal", "go"), "The message 'go' has arrived"),
    ],
)  # fmt: skip
def test_what_lies_in_the_inbox_is_named(mail: Mail, words: str) -> None:
    """The outcome of a step is no message that somebody has sent."""
    told = explain(_detail(unread=1, mail=[mail]), COMMAND)
    assert words in told.text
    more = explain(_detail(unread=9, mail=[mail] * 9), COMMAND)
    assert "9 messages have arrived and will be taken in when a worker looks: the " in more.text
    assert " and 4 more." in more.text


def test_the_outcome_of_a_step_that_no_worker_has_taken_in_is_told(tmp_path: Path) -> None:
    """And nobody outside is asked for it any more."""
    tokens: list[str] = []

    @outlast.step(name="explained survey")
    async def survey() -> str:
        tokens.append(outlast.completion_token())
        outlast.complete_later()

    @outlast.workflow(name="explained poll")
    async def poll() -> str:
        return await survey()

    url = f"sqlite:///{tmp_path / 's.db'}"

    async def main() -> Explanation:
        async with outlast.open(url, workflows=[poll], idle=timedelta(milliseconds=1)) as app:
            handle = await app.start(poll(), id="poll")
            while (await handle.status()).status is not Status.WAITING:
                await asyncio.sleep(0.01)
        async with outlast.connect(url) as client:
            await client.complete(tokens[0], "yes")
            return await client.handle("poll").explain()

    told = asyncio.run(main())
    assert "The outcome of step explained survey (r:1), which has ended, has arrived" in told.text
    assert [one.kind for one in told.waits] == ["mail", "worker"]


def test_mail_of_a_run_that_nobody_can_move_waits() -> None:
    """A resume, say, for a run that is blocked for its code."""
    detail = _detail(status=Status.BLOCKED, reason="undecodable", unread=1)
    assert "will be taken in when the run can be moved again" in explain(detail, COMMAND).text


def test_a_first_attempt_that_was_heard_of_is_told() -> None:
    """What it said is data of the author's: made one line, and cut where it is long."""
    said = {"page": 7, "url": "x" * 500}
    step = Standing(operation="r:1", kind="step", name="crawl", state="attempted", progress=said)
    (wait,) = explain(_detail(operations=[step]), COMMAND).waits
    assert wait.kind == "step"
    assert wait.text.startswith(
        'Step crawl (r:1) is attempted for the first time and said {"page": 7'
    )
    assert len(wait.text) < 300


def test_what_was_handed_out_for_ever_has_no_time() -> None:
    """Until when is told only where there is an end."""
    step = Standing(operation="r:1", kind="step", name="render", state="handed out")
    (wait,) = explain(_detail(operations=[step]), COMMAND).waits
    assert "was handed out, and waits for somebody outside" in wait.text
    assert (wait.until, len(wait.commands)) == (None, 2)


def test_what_was_handed_out_tells_when_it_was_heard_of() -> None:
    """When silence means nothing only if there was a beat; the first end that comes is the time of the wait."""
    quiet = Standing(operation="r:1", kind="step", name="render", state="handed out", heard_at=NOON)
    (wait,) = explain(_detail(operations=[quiet]), COMMAND).waits
    assert "heard of" not in wait.text
    (wait,) = explain(_detail(operations=[replace(quiet, beats=1)]), COMMAND).waits
    assert "It was last heard of at " in wait.text
    assert wait.text.endswith(").")
    due, silent = NOON + timedelta(hours=2), NOON + timedelta(hours=1)
    limited = replace(quiet, due_at=due, silent_at=silent)
    (wait,) = explain(_detail(operations=[limited]), COMMAND).waits
    assert wait.until == silent
    assert "; if nothing is heard by " in wait.text
    assert wait.text.endswith("it counts as failed.")


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


def test_a_step_that_waits_in_a_paused_run() -> None:
    """Nobody takes it, so nobody needs to serve its queue, and no time to be started runs."""
    noted = {"tasks": {"r:1": "gpu"}, "start_by": {"r:1": "2026-11-29T12:10:00Z"}}
    told = explain(_detail(tasks=[_task(serving=[])], waits=noted, paused_by="by ann"), COMMAND)
    assert "where no worker takes it until the run goes on" in told.text
    assert [(one.kind, one.until) for one in told.waits] == [("paused", None), ("task", None)]
    assert not any("--queue" in one for one in told.commands)


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


def _journal(*entries: Any) -> list[JournalEntry]:
    return [JournalEntry(seq, seq, NOON, entry) for seq, entry in enumerate(entries)]


def test_messages_that_nobody_asks_for() -> None:
    """A mistyped name is seen: the message was taken in, and lies about."""
    told = explain(_detail(waits={"untaken": {"typo": 1, "more": 3}}), COMMAND)
    assert [(one.kind, one.about) for one in told.waits if one.kind == "untaken"] == [
        ("untaken", "typo"),
        ("untaken", "more"),
    ]
    assert (
        "A message 'typo' came, and nothing in its code has asked for it so far. 3 messages 'more' came, and nothing in its code has "
        "asked for them so far." in told.text
    )


def test_updates_that_are_handled() -> None:
    """Those without an answer, with the id under which it can be asked for again; their sender waits."""
    raw = Raw(b"1")
    entries = _journal(
        UpdateReceived("update/a", "add", raw),
        UpdateReceived("update/b", "add", raw),
        UpdateAnswered("update/a", "add", value=raw),
    )
    told = explain(_detail(entries=entries), COMMAND)
    (wait,) = [one for one in told.waits if one.kind == "handling"]
    assert (wait.about, wait.since) == ("update/b", NOON)
    assert (
        "It is at work on the update 'add' (update/b), which it took in at 2026-11-29 12:00:00 UTC"
        in wait.text
    )


def test_a_request_to_stop() -> None:
    """The last one, of a run that is still open: it cleans up."""
    entries = _journal(CancelRequested("ann", "first"), CancelRequested("bob", "now"))
    told = explain(_detail(entries=entries), COMMAND)
    (wait,) = [one for one in told.waits if one.kind == "cancel"]
    assert wait.since == NOON
    assert "(1 minute ago), by bob: now: its code cleans up" in wait.text
    closed = _detail(entries=entries, status=Status.CANCELLED, cancelled_by="by bob: now")
    assert explain(closed, COMMAND).waits == []


def test_a_fork_that_cannot_read_the_outcome_it_was_given_names_who_gave_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the code was not at hand, the value could not be checked: it is no type that has changed."""

    @outlast.step(name="explained count")
    async def count() -> int:
        return 1

    @outlast.workflow(name="explained sum")
    async def total() -> int:
        return await count() + await count()

    async def main() -> Explanation:
        url = f"sqlite:///{tmp_path / 's.db'}"
        async with outlast.open(url, workflows=[total], principal="ann") as app:
            origin = await app.start(total(), id="sum")
            await origin.result()
            with pytest.raises(outlast.DefinitionError, match="does not fit the result of step"):
                await origin.fork(outcome=("r:1", "many"), id="refused", reason="at hand")
            monkeypatch.setattr(registry, "_declared", [])
            fork = await origin.fork(outcome=("r:1", "many"), id="taken", reason="not at hand")
            while (await fork.status()).status is not Status.BLOCKED:
                await asyncio.sleep(0.01)
            return await fork.explain()

    told = asyncio.run(main())
    assert "The outcome of step explained count (r:1) was given by ann when it was forked from run sum" in told.text  # fmt: skip
    assert REMEDIES["undecodable"] not in told.text
    assert any("runs fork sum --outcome r:1=JSON" in one for one in told.commands)


def test_a_question_is_answered_and_not_approved() -> None:
    """What is typed says the answer; a yes would be none."""
    question = ApprovalView(
        run_id="r",
        approval_id="1~r:1",
        role="boss",
        state="pending",
        subject={"subject": "how many?", "covers": [], "question": {"schema": {}}},
        subject_sha256="0" * 64,
        requested_at=NOON,
        expires_at=NOON + timedelta(hours=2),
        use_by=NOON + timedelta(hours=2),
        spent=(),
        kind="question",
    )
    (wait, *_) = explain(_detail(approvals=[question]), COMMAND).waits
    assert "asks somebody in the role boss question 1~r:1" in wait.text
    assert "approvals answer 'a b' '1~r:1' --value JSON" in wait.commands[1]
    assert wait.purposes[1] == "answer"
