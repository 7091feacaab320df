"""Why a run is where it is, in plain words: what it waits for, since when, what happens next, who can act and how.

Pure: a run's detail goes in, sentences come out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import msgspec

from outlast.client.mail import arrived
from outlast.client.task import TaskView
from outlast.client.text import ago, counted, json_text, safe
from outlast.client.undoing import UNDONE, doing_again, entries_in, undoing
from outlast.client.view import ApprovalView, RunDetail, cancel_in, retry_makes_effects
from outlast.effects.standing import Alarm, Clearing, Standing
from outlast.effects.undone import at_stake, left_standing
from outlast.journal.entry import (
    CancelRequested,
    ContinueSuggested,
    Forked,
    SagaAborted,
    StepCompleted,
    UpdateAnswered,
    UpdateReceived,
)
from outlast.store.change import Status

REMEDIES = {
    "in doubt": "It goes on when somebody says what became of the effect.",
    "non-determinism": "Its code no longer asks for what the journal holds, or raises before it comes there. It goes on by itself when a "
    "worker with fitting code starts: mend the code or deploy the former, put outlast.patched() around the change, or, where an effect's arguments "
    "changed and the recorded ones may stand, accept them: `outlast runs accept RUN --entry N`.",
    "pinned": "Its workflow says that only the build which has begun a run moves it, and no worker of that build is here. It goes on by "
    "itself when one starts; or let workers of any build go on: their code must fit its journal.",
    "undecodable": "What the journal holds does not fit the types that the code names. It goes on by itself when a "
    "worker with fitting code starts.",
    "poison": "Worker after worker died while it had this run. Find out what kills the process (memory, a native "
    "crash), deploy the cure, then send the run any message to have it tried again.",
    "refused by the store": "The store will never take what the run has to write; look at its journal, change the code, then "
    "send the run any message to have it tried again.",
    "history": "Its journal has come to the limit, so nothing new begins; messages wait. It goes on when somebody raises the limit "
    "of this run, or cleans up when somebody cancels it. In new code, let the workflow continue as new in time.",
    "internal error": "Moving the run broke inside Outlast. It goes on by itself when a worker with other code starts; "
    "please report the error.",
}
_RESOLVING = (
    "it happened, with this result",
    "it did not; attempt it again",
    "it did not and never will",
)
_GIVEN_UP = (
    "it was done by hand",
    "it can be done now; attempt it again",
    "leave it: what it was to undo stands",
)
_STUCK = "compensation failed"
_ENDABLE = frozenset(
    {
        "non-determinism",
        "pinned",
        "undecodable",
        "poison",
        "refused by the store",
        "history",
        "internal error",
    }
)


_BROKEN = re.compile(r"\n  (?!→)")
"""Where a line of an error begins that goes on with the one before."""

_SAID = 200
"""Characters of the details of a heartbeat that are shown."""


class Wait(msgspec.Struct, frozen=True):
    """One thing that a run waits for.

    Args:
        kind: `timer`, `retry`, `step`, `completion`, `signal`, `update`, `approval`, `in doubt`, `compensation failed`, `effect`, `blocked`, `mail`, `condition`, `alarm`,
            `undoing`, `run`, `paused`, `timeout`, `growth`, `untaken` for messages that nobody asks for, `handling` for an update that has no answer yet, `cancel`, `worker`, `task` for a step that waits for a worker of its queue or is with one, or `queue`
            for one that nobody serves.
        about: The operation, approval or signal.
        until: When something happens without anyone acting.
        text: All of it in words, without the commands.
        commands: What can be typed.
        purposes: What each command is for.
    """

    kind: str
    about: str
    text: str
    since: datetime | None = None
    until: datetime | None = None
    commands: tuple[str, ...] = ()
    purposes: tuple[str, ...] = ()


_LAG = {
    "async": " Its durability is async: outcomes are seen here when they are written, a moment after the run has seen them.",
    "exit": " Its durability is exit: outcomes since its last write are seen here when it leaves memory or ends.",
}
"""What is said of a run that is ahead of its journal."""


class Explanation(msgspec.Struct, frozen=True):
    """Why a run is where it is; as text, the lines that `outlast runs explain` prints.

    Args:
        text: One paragraph.
        waits: What it waits for, each with since when and until when.
        commands: What can be typed, in the order of the paragraph.
        purposes: What each command is for.

    Example:
        ```python
        import asyncio
        from datetime import timedelta
        import outlast

        @outlast.workflow
        async def release() -> str:
            await outlast.approval({"version": "1.2"}, role="boss", expires_in=timedelta(hours=1))
            return "released"

        async def main() -> None:
            async with outlast.open("memory://", idle=timedelta(milliseconds=10)) as app:
                handle = await app.start(release(), id="release-1")
                while not await app.approvals.list():
                    await asyncio.sleep(0.01)
                explanation = await handle.explain()
                assert [wait.kind for wait in explanation.waits] == ["approval"]
                assert "somebody in the role boss" in str(explanation)

        asyncio.run(main())
        ```
    """

    run_id: str
    status: Status
    text: str
    waits: list[Wait]
    commands: list[str]
    purposes: list[str]

    def __str__(self) -> str:
        """Return the paragraph, then what can be typed, each on a line; nothing in it directs a terminal."""
        width = max(map(len, self.purposes), default=0)
        typed = [
            f"  {purpose:<{width}}  {safe(one)}"
            for one, purpose in zip(self.commands, self.purposes, strict=True)
        ]
        return "\n".join([safe(self.text), *([""] if typed else []), *typed])


def explain(detail: RunDetail, command: Callable[..., str]) -> Explanation:
    """Return why a run is where it is.

    Args:
        command: Makes a command to type out of its words.
    """
    teller = _Teller(detail, command)
    waits = [] if detail.status.status.closed else list(teller.waits())
    text = " ".join([teller.opening(), *(wait.text for wait in waits)])
    typed: dict[str, str] = {}
    for wait in waits:
        for one, purpose in zip(wait.commands, wait.purposes, strict=True):
            typed.setdefault(one, purpose)
    if detail.status.status.closed:
        typed = teller.after_the_end()
    return Explanation(
        detail.status.run_id, detail.status.status, text, waits, [*typed], [*typed.values()]
    )


class _Teller:
    """Tells one run."""

    def __init__(self, detail: RunDetail, command: Callable[..., str]) -> None:
        self._detail = detail
        self._status = detail.status
        self._run = detail.status.run_id
        self._command = command
        # What was noted when the run last left memory says nothing about a run that is in memory now.
        self._noted: dict[str, Any] = {} if self._status.worker else self._status.waits

    def opening(self) -> str:
        """Return what the run is, and what it does."""
        status = self._status
        head = f"Run {self._run} of workflow {status.workflow}"
        since = ago(status.changed_at, self._detail.now)
        if status.status.closed:
            return f"{head} ended as {status.status} at {since}{self._why_ended()}. {self._what_then()}"
        match status.status:
            case Status.RUNNING if self._detail.attended:
                return (
                    f"{head} is in the hands of worker {status.worker}; its last entry or change came at {since}. "
                    "What it has just begun (a first attempt of a step, a short timer) leaves no trace until it ends."
                    f"{_LAG.get(self._detail.durability, '')}"
                )
            case Status.RUNNING:
                return (
                    f"{head} was in the hands of worker {status.worker}, which is gone; its last entry or change came at "
                    f"{since}. The next worker that has registered the workflow takes it up."
                )
            case Status.READY:
                return f"{head} can go on, since {since}, as soon as a worker takes it up."
            case Status.BLOCKED:
                return f"{head} is blocked since {since}: {status.reason or 'nobody can move it'}."
            case Status.PAUSED:
                return f"{head} is paused, since {since}."
            case _:
                return f"{head} waits, parked since {since}."

    def _why_ended(self) -> str:
        """Return the reason of a closed run, with who asked for it or where it was raised."""
        status, detail = self._status, self._detail
        if status.status is Status.CANCELLED and detail.cancelled_by:
            return f", asked {_one_line(detail.cancelled_by)}"
        why = f": {_one_line(status.reason)}" if status.reason else ""
        if detail.terminated_by:
            return f", by {_one_line(detail.terminated_by)}{why}"
        return f"{why}, raised {detail.place}" if detail.place else why

    def _what_then(self) -> str:
        """Return what becomes of a closed run."""
        retry = self._detail.retry
        if self._status.status is Status.COMPLETED:
            return "Nothing more happens."
        if self._status.status in UNDONE:
            return self._what_was_undone()
        if retry is None and (was := undoing(self._detail)) is not None:
            left = self._left()
            return (
                f"It was undoing what it did in its saga ({was.saga}), because of {was.why}{f'; {left}' if left else ''}. "
                "Nothing more happens by itself; a retry goes on undoing."
            )
        if retry is None and self._was_refused:
            return "Nothing more happens by itself; a retry goes on from there, and really makes the effects that it was refused."
        if retry is None:
            return "Nothing more happens by itself; a retry does it again from where that happened, and repeats nothing that was finished."
        if retry.status.closed:
            return f"It was done again as run {retry.run_id}, which ended as {retry.status}."
        return f"It is being done again as run {retry.run_id}, which is {retry.status}."

    def _what_was_undone(self) -> str:
        left = left_standing(entries_in(self._detail))
        if self._status.status is Status.COMPENSATED:
            is_saga = any(isinstance(one.entry, SagaAborted) for one in self._detail.entries)
            what = "it had done in its sagas" if is_saga else "was in doubt"
            return (
                f"What {what} was undone. Nothing more happens; to do it after all, begin it anew."
            )
        which = f"{', '.join(left)} stand{'s' if len(left) == 1 else ''}" if left else "part stands"
        return (
            f"Not all of what it had done in its sagas was undone; {which}, and somebody has to see to that. "
            "Nothing more happens by itself."
        )

    def _left(self) -> str:
        """Return what stands, or would if the run ended now; empty when that is nothing."""
        left = at_stake(entries_in(self._detail))
        return f"{', '.join(left)} stand{'s' if len(left) == 1 else ''}" if left else ""

    def _giving_up(self, purpose: str) -> tuple[str, str]:
        """Return what ends the run as it is, and what that is for: with what then stands, where a saga would undo it."""
        end = ("runs", "terminate", self._run, "--reason", "TEXT")
        if left := self._left():
            return self._command(*end, "--abandon-compensation"), f"{purpose}: {left} then"
        return self._command(*end), purpose

    def after_the_end(self) -> dict[str, str]:
        """Return what can be typed about a closed run, and what each command is for."""
        retry = self._detail.retry
        typed = {self._command("runs", "show", self._run): "result and last entries"}
        if retry is not None:
            word = "show" if retry.status.closed else "explain"
            typed[self._command("runs", word, retry.run_id)] = "see its latest retry"
        if (again := doing_again(self._detail, self._command)) is not None:
            typed[again[0]] = again[1]
        return typed

    @property
    def _was_refused(self) -> bool:
        """Whether the run is a fork that failed with an effect that it may not make."""
        return retry_makes_effects(self._detail.status)

    def waits(self) -> Iterator[Wait]:
        """Yield everything that the run waits for."""
        yield from self._held_up()
        if self._is_over:
            yield from self._timeout()
        yield from self._undoing()
        ended = {one.operation for one in self._detail.mail if one.ends}
        for one in self._detail.operations:
            if one.operation not in ended:
                yield self._operation(one)
        yield from map(self._task, self._detail.tasks)
        for approval in self._detail.approvals:
            yield self._approval(approval)
        yield from self._noted_waits()
        yield from self._updates_in_progress()
        yield from self._cancelled()
        if not self._is_over:
            yield from self._timeout()
        for alarm in self._detail.alarms:
            yield self._alarm(alarm)
        yield from self._growth()
        if self._detail.unread:
            yield self._mail()
        elif self._waits_for_nothing_known():
            yield Wait(
                "condition", "", "It waits for a condition that only a message to it can make true."
            )
        yield from self._nobody_moves()
        yield from self._left_undone()

    def _undoing(self) -> Iterator[Wait]:
        """Yield that a saga was aborted, and why."""
        if (now := undoing(self._detail)) is not None:
            text = f"Since {self._ago(now.since)} it undoes what it did in its saga ({now.saga}), because of {now.why}."
            yield Wait("undoing", now.saga, text, since=now.since)

    def _left_undone(self) -> Iterator[Wait]:
        """Yield, last of all, that a run whose compensation failed can be ended as it is."""
        if self._status.status is Status.BLOCKED and self._status.reason == _STUCK:
            end, purpose = self._giving_up("end it as it is")
            text = f"Who ends the run instead leaves it as it is: {self._left() or 'nothing more is undone'}."
            yield Wait("blocked", _STUCK, text, self._status.changed_at, None, (end,), (purpose,))

    def _held_up(self) -> Iterator[Wait]:
        if self._status.status is Status.BLOCKED:
            yield from self._blocked()
        if self._is_paused:
            yield self._paused()

    @property
    def _is_paused(self) -> bool:
        return bool(self._detail.paused_by) or self._status.status is Status.PAUSED

    def _paused(self) -> Wait:
        by = _one_line(self._detail.paused_by or "by somebody")
        if self._status.status is Status.PAUSED:
            text = f"It was paused {by}. No attempt begins and no timer fires until somebody resumes it; a cancel ends the pause too."
        else:
            text = f"It is asked to pause {by}: what is being attempted ends first, and nothing else begins."
        run = self._run
        return Wait(
            "paused",
            by,
            text,
            since=self._status.changed_at,
            commands=(
                self._command("runs", "resume", run),
                self._command("runs", "cancel", run, "--reason", "TEXT"),
            ),
            purposes=("let it go on", "end it, with its clean-up"),
        )

    def _timeout(self) -> Iterator[Wait]:
        """Yield what becomes of the run's time, where it has one."""
        detail, run_time = self._detail, self._detail.deadline
        if detail.timed_out_at is not None:
            since = self._ago(detail.timed_out_at)
            text = f"Its time was over at {since}: it was cancelled, cleans up, and then fails."
            yield Wait("timeout", "", text, since=detail.timed_out_at)
        elif run_time is not None and self._is_over:
            due = self._due or run_time
            takes = "when it is moved again" if self._status.status is Status.BLOCKED else "next"
            text = f"Its time was over at {self._ago(due)}: the worker that takes it up {takes} cancels it; it cleans up, and fails."
            yield Wait("timeout", "", text, since=due)
        elif run_time is not None:
            due = self._due or run_time
            when = "when it is resumed" if self._is_paused and due <= detail.now else "then"
            text = f"It has to be done by {self._ago(due)}; otherwise it is cancelled {when}, cleans up, and fails."
            yield Wait("timeout", "", text, until=due)

    @property
    def _due(self) -> datetime | None:
        """When the run's time is over, or was; None when it may take as long as it likes, or was told that its time is over."""
        if self._detail.timed_out_at is not None or self._detail.deadline is None:
            return None
        return self._noted_time("deadline") or self._detail.deadline

    @property
    def _is_over(self) -> bool:
        """Whether the run's time is over, and no worker was there to tell it so."""
        due = self._due
        return (
            due is not None
            and due <= self._detail.now
            and not self._is_paused
            and not self._is_moved
        )

    @property
    def _is_moved(self) -> bool:
        return self._status.status is Status.RUNNING and self._detail.attended

    def _noted_time(self, name: str) -> datetime | None:
        noted = self._noted.get(name)
        return None if noted is None else msgspec.convert(noted, datetime, strict=False)

    def _noted_waits(self) -> Iterator[Wait]:
        """Yield what was noted when the run left memory."""
        for operation, due in self._noted.get("timers", {}).items():
            yield self._timer(operation, msgspec.convert(due, datetime, strict=False))
        for name in self._noted.get("signals", []):
            yield self._signal(name)
        for name in self._noted.get("updates", []):
            yield self._update(name)
        for name, count in self._noted.get("untaken", {}).items():
            yield self._untaken(name, count)
        for operation, run_id in self._noted.get("runs", {}).items():
            yield self._other_run(operation, run_id)

    def _blocked(self) -> Iterator[Wait]:
        reason = self._status.reason
        error = _one_line(_BROKEN.sub("; ", self._noted.get("error", "")))
        if reason in {"in doubt", _STUCK}:
            return
        said = f" The worker said: {error}." if error else ""
        if reason == "undecodable" and (given := self._given_anew()) is not None:
            yield self._unfit_outcome(given, said)
            return
        end, purpose = self._giving_up("give it up, without clean-up")
        remedy = REMEDIES.get(reason, "An operator must act.")
        typed = {end: purpose}
        if reason == "history":
            room: dict[str, int] = self._noted.get("room") or {}
            more = str(room.get("more", 2 * self._status.entries))
            accept = self._command(
                "runs", "accept", self._run, "--history", more, "--reason", "TEXT"
            )
            cancel = self._command("runs", "cancel", self._run, "--reason", "TEXT")
            typed = {accept: "let it go on", cancel: "let it clean up and end", **typed}
        if reason == "pinned":
            accept = self._command("runs", "accept", self._run, "--any-build", "--reason", "TEXT")
            typed = {accept: "let workers of any build go on", **typed}
        if reason in _ENDABLE:
            typed = {self._command("runs", "journal", self._run): "see what it did", **typed}
        yield Wait(
            "blocked",
            reason,
            f"{remedy}{said}",
            since=self._status.changed_at,
            commands=tuple(typed),
            purposes=tuple(typed.values()),
        )

    def _given_anew(self) -> tuple[Forked, StepCompleted] | None:
        """Return the outcome that whoever forked the run gave a step, where that is what cannot be decoded."""
        entries = [one.entry for one in self._detail.entries]
        forked = next((one for one in reversed(entries) if isinstance(one, Forked)), None)
        if forked is None or not forked.changed:
            return None
        for one in entries:
            if isinstance(one, StepCompleted) and one.operation == forked.changed:
                error = self._noted.get("error", "")
                return (forked, one) if f"the result of step {one.name} " in error else None
        return None

    def _unfit_outcome(self, given: tuple[Forked, StepCompleted], said: str) -> Wait:
        forked, outcome = given
        origin, by = forked.origin.run_id, _one_line(forked.by) or "somebody"
        what = f"{outcome.operation}=JSON"
        again = self._command(
            *("runs", "fork", origin, "--outcome", what, "--id", "NEW-ID", "--reason", "TEXT")
        )
        end, purpose = self._giving_up("give this one up")
        return Wait(
            "blocked",
            self._status.reason,
            f"The outcome of step {outcome.name} ({outcome.operation}) was given by {by} when it was forked from run {origin}, and "
            f"does not fit the type of the step's result. Fork run {origin} again with a value that fits, and end this one.{said}",
            since=self._status.changed_at,
            commands=(again, end),
            purposes=("fork it again", purpose),
        )

    def _growth(self) -> Iterator[Wait]:
        """Yield that the journal grows long, once the workflow was told."""
        told = [one for one in self._detail.entries if isinstance(one.entry, ContinueSuggested)]
        if told and self._status.reason != "history":
            text = (
                f"Its journal is long ({self._status.entries} entries): the workflow should continue as new; "
                "at the limit the run is blocked."
            )
            yield Wait("growth", "", text, since=told[0].at)

    def _operation(self, one: Standing) -> Wait:
        match one.state:
            case "in doubt":
                return self._doubt(one)
            case "retrying":
                return self._retry(one)
            case "attempted":
                return Wait(
                    "step",
                    one.operation,
                    f"Step {one.name} ({one.operation}) is attempted for the first time{_said(one)}.",
                )
            case "handed out":
                return self._handed_out(one)
            case "intended":
                return Wait(
                    "effect",
                    one.operation,
                    f"{_named(one)} was intended at {self._ago(one.since)} and has no outcome yet: "
                    f"{'no attempt of it has begun.' if one.due_at else self._intended()}{self._before(one)}",
                    since=one.since,
                )

    def _intended(self) -> str:
        """Return what becomes of an effect that was intended and has no outcome."""
        finds_out = (
            "does what the effect declares: calls again with the same key, if it is idempotent; else waits until a lost attempt can no "
            "longer act (its timeout, and a little more), then asks the probe, or puts it in doubt."
        )
        if self._status.worker is not None and self._detail.attended:
            return f"it is being attempted, or its worker {finds_out} Nobody needs to act."
        return f"whoever attempted it has let go of it. The next worker {finds_out}"

    def _retry(self, one: Standing) -> Wait:
        tried = counted(one.failures, "time")
        last = f", last with {_one_line(one.failure)}" if one.failure else ""
        number = one.failures + 1
        if self._is_paused:
            then = f"attempt {number} waits until the run is resumed."
        elif one.due_at is None or one.due_at <= self._detail.now:
            then = f"attempt {number} is {'due or under way' if self._detail.fitting else 'due'}."
        else:
            then = f"attempt {number} begins at {self._ago(one.due_at)}; nobody needs to act."
        if limit := self._noted.get("deadlines", {}).get(one.operation):
            ends = msgspec.convert(limit, datetime, strict=False)
            then += f" Its time for all attempts is over at {self._ago(ends)}."
        return Wait(
            "retry",
            one.operation,
            f"{_named(one)} failed {tried}{last}{_said(one)}; {then}{self._before(one)}",
            since=one.since,
            until=one.due_at,
        )

    def _handed_out(self, one: Standing) -> Wait:
        until = f" until {self._ago(one.due_at)}" if one.due_at else ""
        applied, _, failed = self._resolving(one.operation)
        return Wait(
            "completion",
            one.operation,
            f"Step {one.name} ({one.operation}) was handed out{_said(one)}, and waits{until} for somebody outside who says what came of "
            f"it: whoever has its token, or an operator.{self._heard(one)}",
            until=min((due for due in (one.due_at, one.silent_at) if due), default=None),
            commands=(applied, failed),
            purposes=("it is done, with this result", "it failed for good"),
        )

    def _heard(self, one: Standing) -> str:
        """Return when something was heard of what was handed out, and what silence means."""
        if one.heard_at is None or not (one.beats or one.silent_at):
            return ""
        told = f" It was last heard of at {self._ago(one.heard_at)}"
        if one.silent_at is None:
            return f"{told}."
        return f"{told}; if nothing is heard by {self._ago(one.silent_at)} it counts as failed."

    def _doubt(self, one: Standing) -> Wait:
        if one.has_given_up:
            return self._given_up(one)
        return Wait(
            "in doubt",
            one.operation,
            f"{_named(one)} is in doubt since {self._ago(one.since)}: {_one_line(one.why)}. "
            f"It was called with {json_text(one.arguments, indent=None)} under the key {one.key}. {self._tried(one)}"
            "An operator looks up in the remote system whether it happened, and says so.",
            since=one.since,
            commands=self._resolving(one.operation, undo=one.compensation, result=one.needs_result),
            purposes=(
                *_RESOLVING,
                *(("undo it, whether it happened or not",) if one.compensation else ()),
            ),
        )

    def _given_up(self, one: Standing) -> Wait:
        return Wait(
            "compensation failed",
            one.operation,
            f"Effect {one.name} ({one.operation}), which is to undo {one.compensates}, has given up at {self._ago(one.since)}: "
            f"{_one_line(one.why)}. It was called with {json_text(one.arguments, indent=None)} under the key {one.key}. "
            f"{self._tried(one)}Somebody does it by hand, or sees to it that it can be done, and says so.",
            since=one.since,
            commands=self._resolving(one.operation),
            purposes=_GIVEN_UP,
        )

    def _before(self, one: Standing) -> str:
        """Return what was known when it was cleared last; empty, or a space and a sentence."""
        return f" {self._tried(one)}".rstrip()

    def _tried(self, one: Standing) -> str:
        """Return what is known of the attempts of an effect, and of what the probe said; empty or a sentence and a space."""
        told: list[str] = []
        for over in one.cleared:
            why = f": {_one_line(over.reason)}" if over.reason else ""
            said = f"{over.by or 'somebody'} said at {self._ago(over.at)} that it had not happened{why}"
            told += [*self._attempts(over), said]
        told += self._attempts(one)
        return f"What is known: {'; '.join(map(_one_line, told))}. " if told else ""

    def _attempts(self, of: Standing | Clearing) -> list[str]:
        """Return how each attempt ended, and what the probe said of them."""
        told = [
            f"attempt {attempt.number}"
            + (f", begun at {self._ago(attempt.began_at)}" if attempt.began_at else "")
            + f": {_one_line(attempt.ended) or 'nobody knows its end'}"
            for attempt in of.attempts
        ]
        return told + [f"the probe at {self._ago(probe.at)}: {probe.said}" for probe in of.probes]

    def _resolving(
        self, operation: str, *, undo: str = "", result: bool = False
    ) -> tuple[str, ...]:
        resolve = ("runs", "resolve", self._run, "--operation", operation)
        by_result = ("--result", "RESULT-AS-JSON") if result else ()
        undoing = self._command(*resolve, "--compensate", *by_result, "--reason", "TEXT")
        return (
            self._command(*resolve, "--applied", "RESULT-AS-JSON", "--reason", "TEXT"),
            self._command(*resolve, "--not-applied", "--reason", "TEXT"),
            self._command(*resolve, "--failed", "MESSAGE", "--reason", "TEXT"),
            *([undoing] if undo else []),
        )

    def _alarm(self, one: Alarm) -> Wait:
        when = self._ago(one.at)
        by = one.by or "somebody"
        why = _one_line(one.why) or "it does not fit"
        command, purpose = self._command("runs", "journal", self._run), "see all of it"
        match one.what:
            case "unfit_outcome":
                text = (
                    f"What {by} said of operation {one.about} ({one.said or 'an outcome'}) was not accepted, at {when}: {why}. "
                    "Nothing was changed by it."
                )
                if one.operation:
                    resolve = self._command("runs", "resolve", self._run, "--operation", one.about)
                    text += " Say it again with a value that fits the result type."
                    command, purpose = (
                        f"{resolve} --applied RESULT-AS-JSON --reason TEXT",
                        "say it again",
                    )
            case "unfit_message":
                text = (
                    f"A message {one.about!r} from {by} does not fit the signal's type and was put aside at {when}: {why}. "
                    "The run goes on waiting; send one that fits."
                )
                command, purpose = (
                    self._command("runs", "send", self._run, one.about, "JSON"),
                    "send it again",
                )
            case "late_outcome":
                text = (
                    f"A second outcome ({one.said}) of operation {one.about} came and was put aside at {when}: the first one "
                    "stands. If the two differ, somebody has to put right what the remote system holds."
                )
            case "late_failure":
                text = (
                    f"An attempt of {one.about} ended in an error after its worker ({by}) had lost the run, at {when}: {why}. "
                    "That proves nothing of the other attempts, and changed nothing."
                )
            case "contradicted":
                text = (
                    f"{one.about} happened although somebody had said that it did not, as worker {by} told at {when}: {why}. "
                    "Its result stands; look up whether it happened twice."
                )
            case "late_decision":
                text = (
                    f"A decision of {by} on approval {one.about} ({one.said}) came too late, at {when}: nobody waits for it. "
                    "It changed nothing; if it is still wanted, the workflow has to ask again."
                )
            case "unreadable_message":
                text = (
                    f"A message ({one.about}) could not be read and was put aside at {when}: {why}. "
                    "Send it again, with the version of Outlast that the workers run."
                )
            case _:
                text = f"Something was put aside at {when}: {one.what} {one.about}: {why}."
        return Wait(
            "alarm", one.about, text, since=one.at, commands=(command,), purposes=(purpose,)
        )

    def _approval(self, one: ApprovalView) -> Wait:
        is_question = one.kind == "question"
        place = self._run, one.approval_id
        say = (
            self._command("approvals", "answer", *place, "--value", "JSON")
            if is_question
            else self._command("approvals", "approve", *place)
        )
        commands = (
            self._command("approvals", "show", *place),
            say,
            self._command("approvals", "deny", *place),
        )
        who = f"somebody in the role {one.role}" if one.role else "a person"
        if one.expires_at <= self._detail.now:
            text = (
                f"Approval {one.approval_id} was asked of {who} and its time to decide ended at {self._ago(one.expires_at)}; "
                "the wait ends as expired when a worker next looks."
            )
            return Wait("approval", one.approval_id, text, one.requested_at, one.expires_at)
        text = (
            f"It asks {who} {'question' if is_question else 'for approval'} {one.approval_id} since {self._ago(one.requested_at)}; "
            f"without a decision the request expires at {self._ago(one.expires_at)}."
        )
        return Wait(
            "approval",
            one.approval_id,
            text,
            one.requested_at,
            one.expires_at,
            commands,
            ("see what is asked", "answer" if is_question else "say yes", "say no"),
        )

    def _timer(self, operation: str, due: datetime) -> Wait:
        then = (
            "it fires when the run is resumed" if self._is_paused else "it goes on by itself then"
        )
        if self._due is not None and self._due <= due:
            then = "that is after the run's time is over, so it will not fire"
        return Wait(
            "timer",
            operation,
            f"Timer {operation} is due at {self._ago(due)}; {then}.",
            since=self._status.changed_at,
            until=due,
        )

    def _signal(self, name: str) -> Wait:
        send = self._command("runs", "send", self._run, name, "JSON")
        return Wait(
            "signal",
            name,
            f"It waits for the message {name!r}, which anyone with access may send.",
            since=self._status.changed_at,
            commands=(send,),
            purposes=("send the message",),
        )

    def _update(self, name: str) -> Wait:
        send = self._command("runs", "update", self._run, name, "JSON")
        return Wait(
            "update",
            name,
            f"It takes the update {name!r}, which anyone with access may send, and answers it.",
            since=self._status.changed_at,
            commands=(send,),
            purposes=("send the update, and see the answer",),
        )

    def _untaken(self, name: str, count: int) -> Wait:
        what = "A message" if count == 1 else f"{count} messages"
        text = f"{what} {name!r} came, and nothing in its code has asked for {'it' if count == 1 else 'them'} so far."
        return Wait("untaken", name, text, since=self._status.changed_at)

    def _updates_in_progress(self) -> Iterator[Wait]:
        """Yield the updates that were taken in and have no answer."""
        open_ones: dict[str, tuple[UpdateReceived, datetime]] = {}
        for one in self._detail.entries:
            match one.entry:
                case UpdateReceived() as update:
                    open_ones[update.message_id] = (update, one.at)
                case UpdateAnswered(message_id=answered):
                    open_ones.pop(answered, None)
                case _:
                    pass
        for message_id, (update, at) in open_ones.items():
            text = f"It is at work on the update {update.name!r} ({message_id}), which it took in at {self._ago(at)}; the sender waits."
            yield Wait("handling", message_id, text, since=at)

    def _cancelled(self) -> Iterator[Wait]:
        """Yield the last request to stop."""
        for one in reversed(self._detail.entries):
            if isinstance(one.entry, CancelRequested):
                by = _one_line(cancel_in([one.entry]))
                text = f"It was asked to stop at {self._ago(one.at)}, {by}: its code cleans up, or has caught that and goes on."
                yield Wait("cancel", by, text, since=one.at)
                return

    def _other_run(self, operation: str, run_id: str) -> Wait:
        return Wait(
            "run",
            operation,
            f"It has asked something of run {run_id} ({operation}) and goes on by itself when that starts, ends, or takes a message.",
            since=self._status.changed_at,
            commands=(self._command("runs", "explain", run_id),),
            purposes=("see why the other run is where it is",),
        )

    def _mail(self) -> Wait:
        when = "when a worker looks"
        if self._is_paused:
            when = "when the run is resumed"
        elif self._status.status is Status.BLOCKED and self._status.reason in _ENDABLE:
            when = "when the run can be moved again"
        return Wait("mail", "", arrived(self._detail.mail, self._detail.unread, when))

    def _nobody_moves(self) -> Iterator[Wait]:
        """Yield that no worker would take the run."""
        if not self._detail.fitting:
            yield self._no_worker()
        elif self._detail.held:
            yield self._all_paused()

    def _no_worker(self) -> Wait:
        start = self._command("worker", "MODULE")
        return Wait(
            "worker",
            self._status.workflow,
            f"No live worker has registered workflow {self._status.workflow}, so nothing moves.",
            commands=(start,),
            purposes=("start a worker",),
        )

    def _all_paused(self) -> Wait:
        release = self._command("release", self._run, "--reason", "TEXT")
        return Wait(
            "worker",
            self._status.workflow,
            "All live workers that could move it are paused, and it is not released: nothing moves.",
            commands=(release, self._command("doctor")),
            purposes=("let it go on", "see why workers are paused"),
        )

    def _task(self, one: TaskView) -> Wait:
        step = f"Step {one.name} ({one.operation})"
        since = self._ago(one.since)
        if one.worker is not None:
            gone = (
                ""
                if one.attended
                else ", which is gone: it is offered again when another one looks"
            )
            text = f"{step} is with worker {one.worker} of queue {one.queue!r} since {since}{gone}."
            return Wait("task", one.operation, text, since=one.since)
        if self._is_paused:
            text = f"{step} waits in queue {one.queue!r}, where no worker takes it until the run goes on; then its time to be started begins anew."
            return Wait("task", one.operation, text, one.since)
        if one.since > self._detail.now:
            text = f"{step} is offered to the workers of queue {one.queue!r} at {since}."
        else:
            text = f"{step} waits for a worker of queue {one.queue!r} since {since}."
        late = self._noted.get("start_by", {}).get(one.operation)
        until = None if late is None else msgspec.convert(late, datetime, strict=False)
        if until is not None:
            text += f" If none takes it before {self._ago(until)}, the step fails."
        if one.serving:
            return Wait("task", one.operation, text, one.since, until)
        start = self._command("worker", "MODULE", "--queue", one.queue)
        return Wait(
            "queue",
            one.operation,
            f"{text} No live worker serves that queue.",
            one.since,
            until,
            (start,),
            ("start a worker of the queue",),
        )

    def _waits_for_nothing_known(self) -> bool:
        noted = any(self._noted.get(one) for one in ("timers", "signals", "updates", "runs"))
        noted = noted or self._detail.tasks
        known = noted or self._detail.operations or self._detail.approvals
        return self._status.status is Status.WAITING and not known

    def _ago(self, time: datetime | None) -> str:
        return "an unknown time" if time is None else ago(time, self._detail.now)


def _named(one: Standing) -> str:
    """Return what an operation is, and what it undoes, to begin a sentence."""
    undoes = f", which undoes {one.compensates}," if one.compensates else ""
    return f"{one.kind.capitalize()} {one.name} ({one.operation}){undoes}"


def _said(one: Standing) -> str:
    """Return what its body has said of itself, to go into a sentence."""
    if one.progress is None:
        return ""
    said = json_text(one.progress, indent=None)
    return f" and said {said if len(said) <= _SAID else f'{said[:_SAID]} …'}"


def _one_line(text: str) -> str:
    return " ".join(text.split()).rstrip(".")
