"""Effects in doubt, of one run or of many, and what somebody says became of them.

Whoever resolves a doubt speaks of the one that was seen: each message names the position of that doubt in its run's journal, and the
worker puts one aside that speaks of another. What is read at once is one page of doubts, and one run at a time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime
from itertools import groupby
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from outlast.client.access import check_run, may_read
from outlast.client.port import Port
from outlast.client.view import not_found
from outlast.effects.intent import NO_DOUBT, Resolution
from outlast.effects.standing import Clearing, Standing, alarms, standings
from outlast.errors import DecodeError, DefinitionError, StoreUnavailableError
from outlast.journal.codec import codec_for
from outlast.journal.entry import Attempted, Entry, Probed, from_row
from outlast.journal.failure import Failure
from outlast.store.change import (
    Applied,
    Message,
    MessageKind,
    PutMessage,
    Refused,
    RunHead,
    RunKey,
    Verdict,
)
from outlast.store.protocol import RunImage

_BATCH = 100
"""Messages in one transaction."""

_WHY_NOT = {
    "not_found": "there is no such run any more",
    "closed": "the run has ended",
    "generation": "the run has begun another generation",
}
_NO_LONGER = "it is no longer in doubt"


class Doubt(msgspec.Struct, frozen=True):
    """An effect of which somebody must say whether it happened.

    Args:
        effect: Its name.
        position: Of the doubt in the journal of this generation: what is said is said of this one.
        since: When it came into doubt.
        why: What is known of its last attempt.
        arguments: With which it was called, by parameter name.
        key: Its idempotency key.
        failures: Attempts recorded as failed.
        attempts: The last ones, oldest first; numbered on from those before it was cleared.
        probes: What the probe said, oldest first.
        cleared: The doubts about it that are over, oldest first: who said that it had not happened, and which attempts were made before.
        put_aside: How many words on it were put aside so far, because they did not fit.
        compensation: The effect that undoes it, which `compensate=` would have done; empty for none.
        needs_result: That takes what it returned.
        compensates: Of a compensation: the operation that it undoes.
        has_given_up: It is a compensation that did not happen, and is not tried again by itself.

    Example:
        ```python
        import asyncio
        from datetime import timedelta

        import outlast

        @outlast.effect(start_to_close_timeout=timedelta(milliseconds=10), settle=timedelta(0))
        async def pay(amount: int) -> str:
            raise ConnectionError("the bank did not answer")  # was it paid?

        @outlast.workflow
        async def order(amount: int) -> str:
            return await pay(amount)

        async with outlast.open("memory://") as app:
            await app.start(order(30), id="o-1")
            while not (found := await app.runs.doubts(effect="pay")):
                await asyncio.sleep(0.01)
            (doubt,) = found
            assert (doubt.run_id, doubt.operation, doubt.arguments) == ("o-1", "r:1", {"amount": 30})
            assert doubt.attempts[0].ended == "ConnectionError: the bank did not answer"
        ```
    """

    run_id: str
    workflow: str
    generation: int
    operation: str
    effect: str
    position: int
    since: datetime | None = None
    why: str = ""
    arguments: Any = None
    key: str = ""
    failures: int = 0
    attempts: tuple[Attempted, ...] = ()
    probes: tuple[Probed, ...] = ()
    put_aside: int = 0
    compensation: str = ""
    needs_result: bool = False
    compensates: str = ""
    has_given_up: bool = False
    cleared: tuple[Clearing, ...] = ()


class Resolved(msgspec.Struct, frozen=True):
    """What became of a word on a doubt.

    Args:
        accepted: It is in the run's inbox, and counts when a worker takes it in, unless another one was first.
        why: Why it is not.
    """

    doubt: Doubt
    accepted: bool
    why: str = ""


class Said(msgspec.Struct, frozen=True):
    """What somebody says became of an operation.

    Args:
        outcome: As `Resolution.outcome`.
        value: JSON of the result.
        failure: Of one that failed for good.
        reason: Why they say so.
        has_result: Of one that is to be undone: it was said what it returned.
    """

    outcome: str
    value: bytes
    failure: Failure | None
    reason: str
    has_result: bool = False

    def misfit(self, one: Doubt | Standing) -> tuple[str, str]:
        """Return why this cannot be said of an effect, as far as its journal shows, and what can; empty when it can.

        Only what is to be undone can be told from here: whether a value fits a type is known where the code is.
        """
        name = one.effect if isinstance(one, Doubt) else one.name
        undo = one.compensation
        if self.outcome != "compensate":
            return "", ""
        if one.compensates:
            return (
                f"{name} is a compensation itself, and has not happened: there is nothing to undo",
                "say applied= (it was done by hand), not_applied=True (attempt it again) or failed= (leave it)",
            )
        if undo and one.needs_result == self.has_result:
            return "", ""
        if not undo:
            return (
                f"nothing undoes {name}: it declares no compensate=",
                "say whether it happened: applied=, not_applied=True or failed=",
            )
        if one.needs_result:
            return (
                f"{undo} takes what {name} returned",
                "add --result JSON (result=): what it returned, or would have",
            )
        return f"{undo} takes nothing that {name} returned", "leave out --result (result=)"

    def of(self, by: str, operation: str, generation: int, doubt: int | None) -> Resolution:
        """Return it as said of one operation.

        Args:
            doubt: See `Resolution.doubt`.
        """
        return Resolution(
            operation=operation,
            generation=generation,
            outcome=self.outcome,
            value=Raw(self.value),
            failure=self.failure,
            by=by,
            reason=self.reason,
            doubt=doubt,
        )

    def message(self, resolution: Resolution, put_aside: int, sender: str, id: str = "") -> Message:
        """Return the inbox item.

        The same outcome said again of the same doubt is the same item, as after an answer that was lost; but not once it was put
        aside: other code may find that the value fits.

        Args:
            put_aside: How many words on the operation were.
            id: Instead of that.
        """
        text = [self.outcome, self.value.decode(), self.failure and self.failure.message, put_aside]
        said = id or hashlib.sha256(msgspec.json.encode(text)).hexdigest()[:24]
        names = (resolution.generation, resolution.operation, resolution.doubt, said)
        return Message(
            "resolve/" + "/".join(map(str, names)),
            MessageKind.RESOLUTION,
            resolution.operation,
            sender,
            msgspec.json.encode(resolution),
        )


def said(
    *,
    applied: Any,
    not_applied: bool,
    failed: str,
    compensate: bool,
    result: Any,
    reason: str,
) -> Said:
    """Return what is said; see `RunHandle.resolve`.

    Raises:
        DefinitionError: It is not one thing, or a result belongs to none.
        EncodeError: The result cannot be stored.
    """
    given: Any = compensate
    if not isinstance(given, bool):
        raise DefinitionError(
            f"compensate={given!r} is neither True nor False",
            hint="write compensate=True; what the effect returned, or would have, is result=",
        )
    has_result = result is not UNSET
    if has_result and not compensate:
        raise DefinitionError(
            "result= belongs to compensate=True",
            hint="of an effect that happened, write applied= with what it returned",
        )
    outcomes = {
        "applied": applied is not UNSET,
        "not_applied": not_applied,
        "failed": bool(failed),
        "compensate": compensate,
    }
    if sum(outcomes.values()) != 1:
        raise DefinitionError(
            "an outcome is one thing",
            hint="give one of applied=, not_applied=True, failed= and compensate=",
        )
    outcome = next(word for word, is_meant in outcomes.items() if is_meant)
    told = applied if outcome == "applied" else result
    value = codec_for(Any, where="the outcome").encode(None if told is UNSET else told)
    failure = Failure(type="RuntimeError", message=failed) if failed else None
    return Said(outcome, value, failure, reason, has_result)


class Seen(msgspec.Struct, frozen=True):
    """What a journal says of one operation.

    Args:
        doubt: Position of the doubt that stands; `NO_DOUBT` for an effect that is not in doubt, None for what is no open effect.
        put_aside: How many words on it were put aside since it last made progress.
    """

    doubt: int | None
    put_aside: int = 0
    standing: Standing | None = None

    def check(self, what: Said, run: str, operation: str) -> None:
        """Return when that can be said of the operation, as far as its journal shows.

        Raises:
            DefinitionError: Nothing undoes it; or what does takes its result, and none is said, or the other way round.
        """
        one = self.standing
        why, hint = ("", "") if one is None else what.misfit(one)
        if one is not None and why:
            raise DefinitionError(why, run=run, operation=operation, step=one.name, hint=hint)


def seen_in(image: RunImage | None, operation: str) -> Seen:
    """Return what the present generation of a run says of an operation."""
    if image is None:
        return Seen(None)
    entries = _entries(image)
    found = [one for one in standings(entries, ()) if one.operation == operation]
    doubt = None if not found else NO_DOUBT if found[0].doubt is None else found[0].doubt
    return Seen(doubt, _put_aside(entries, operation), found[0] if found else None)


class Wanted(msgspec.Struct, frozen=True):
    """Which page of which doubts; see `Runs.doubts`."""

    effect: str
    workflow: str
    run_id: str
    limit: int
    after: Doubt | None

    @property
    def behind(self) -> tuple[str, str]:
        """Run id and operation of the last one of the page before; all others come later."""
        return ("", "") if self.after is None else (self.after.run_id, self.after.operation)

    def takes(self, one: Doubt) -> bool:
        """Whether a doubt is among them, of whichever page."""
        return self.effect in {"", one.effect} and self.workflow in {"", one.workflow}


async def doubts(client: Port, wanted: Wanted) -> list[Doubt]:
    """Return a page of the tenant's doubts.

    Raises:
        RunNotFoundError: One run's are wanted, and there is no such run.
    """
    if wanted.run_id:
        return await _doubts_of(client, wanted)
    rows = await client.store.doubts(
        client.tenant,
        effect=wanted.effect,
        workflow=wanted.workflow,
        limit=wanted.limit,
        after=wanted.behind,
    )
    found: list[Doubt] = []
    # They come by run: each is read once.
    for run, of_run in groupby(rows, key=lambda row: row.run):
        operations = {row.operation for row in of_run}
        image = await client.store.load(run)
        if image is not None and await may_read(client, image.head.workflow):
            found += [one for one in doubts_in(image) if one.operation in operations]
    return found


async def _doubts_of(client: Port, wanted: Wanted) -> list[Doubt]:
    run = RunKey(client.tenant, wanted.run_id)
    await check_run(client, "read", run)
    image = await client.store.load(run)
    if image is None:
        raise not_found(run)
    found = [] if image.head.status.closed else doubts_in(image)
    later = [one for one in found if (one.run_id, one.operation) > wanted.behind]
    return [one for one in later if wanted.takes(one)][: wanted.limit]


def doubts_in(image: RunImage) -> list[Doubt]:
    """Return the doubts of one run, by operation."""
    entries = _entries(image)
    found = sorted(standings(entries, image.operations), key=lambda one: one.operation)
    return [
        _doubt(image.head, one, one.doubt, _put_aside(entries, one.operation))
        for one in found
        if one.doubt is not None
    ]


async def resolve(client: Port, of: Sequence[Doubt], what: Said) -> list[Resolved]:
    """Say the same of many doubts, each as it was seen; see `Runs.resolve`."""
    for run_id in dict.fromkeys(one.run_id for one in of):
        await check_run(client, "resume", RunKey(client.tenant, run_id))
    found: list[Resolved] = []
    for start in range(0, len(of), _BATCH):
        found += await _resolve_batch(client, of[start : start + _BATCH], what)
    return found


async def _resolve_batch(client: Port, of: Sequence[Doubt], what: Said) -> list[Resolved]:
    try:
        rows = [
            await client.store.operation(RunKey(client.tenant, one.run_id), one.operation)
            for one in of
        ]
        standing = [one for one, row in zip(of, rows, strict=True) if row and row.in_doubt]
        standing = [one for one in standing if not what.misfit(one)[0]]
        changes = [_put(client, one, what) for one in standing]
        verdicts = await client.commit_all(changes) if changes else []
    except StoreUnavailableError as error:
        return [Resolved(one, accepted=False, why=str(error)) for one in of]
    told = {
        (one.run_id, one.operation): verdict
        for one, verdict in zip(standing, verdicts, strict=True)
    }
    return [_resolved(one, told.get((one.run_id, one.operation)), what) for one in of]


def _put(client: Port, doubt: Doubt, what: Said) -> PutMessage:
    resolution = what.of(client.principal, doubt.operation, doubt.generation, doubt.position)
    message = what.message(resolution, doubt.put_aside, client.principal)
    return PutMessage(RunKey(client.tenant, doubt.run_id), message, generation=doubt.generation)


def _resolved(doubt: Doubt, verdict: Verdict | None, what: Said) -> Resolved:
    match verdict:
        case Applied():
            return Resolved(doubt, accepted=True)
        case None:
            why, hint = what.misfit(doubt)
            return Resolved(doubt, accepted=False, why=f"{why}: {hint}" if why else _NO_LONGER)
        case Refused(reason=reason):
            return Resolved(doubt, accepted=False, why=_WHY_NOT.get(reason, reason))
        case _:
            return Resolved(doubt, accepted=False, why=f"the store answered {verdict}")


def _put_aside(entries: list[tuple[Entry, datetime, int]], operation: str) -> int:
    aside = alarms((entry, at) for entry, at, _ in entries)
    return sum(one.operation == operation for one in aside)


def _doubt(head: RunHead, one: Standing, position: int, put_aside: int) -> Doubt:
    return Doubt(
        run_id=head.run.run_id,
        workflow=head.workflow,
        generation=head.generation,
        operation=one.operation,
        effect=one.name,
        position=position,
        since=one.since,
        why=one.why,
        arguments=one.arguments,
        key=one.key,
        failures=one.failures,
        attempts=one.attempts,
        probes=one.probes,
        put_aside=put_aside,
        compensation=one.compensation,
        needs_result=one.needs_result,
        compensates=one.compensates,
        has_given_up=one.has_given_up,
        cleared=one.cleared,
    )


def _entries(image: RunImage) -> list[tuple[Entry, datetime, int]]:
    """Return the entries that can be read, each with its time and position."""
    found: list[tuple[Entry, datetime, int]] = []
    for one in image.rows:
        try:
            found.append((from_row(one.row), one.at, one.row.seq))
        except DecodeError:
            continue
    return found
