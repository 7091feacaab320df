"""Forks: a new run that begins with what another one did up to a position.

A fork is one unowned change, a start that brings its first entries along: the origin is only read. So it exists whole or not at all.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, get_args

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from outlast.client.family import (
    Family,
    FamilyReader,
    Journal,
    Retried,
    check_sent,
    lost_messages,
)
from outlast.client.port import Port
from outlast.client.retry import place_before_undone, retry_position
from outlast.client.view import Retry
from outlast.effects.key import check_run_id, namespace
from outlast.effects.kin import marker
from outlast.effects.known import known_after
from outlast.effects.undone import kept_and_undone
from outlast.errors import (
    DefinitionError,
    OutlastError,
    RunConflictError,
    RunNotFoundError,
    StoreError,
)
from outlast.journal.codec import codec_for
from outlast.journal.entry import (
    NO_OPERATION,
    Completed,
    ContinuedAsNew,
    EffectPolicy,
    Entry,
    EntryRow,
    Forked,
    MessageReceived,
    OperationId,
    Parent,
    RunName,
    StampedRow,
    Started,
    StepCompleted,
    StepFailed,
    from_row,
    to_row,
)
from outlast.journal.prefix import ROLES, Role, kept
from outlast.store.change import (
    Applied,
    Conflict,
    Refused,
    Restored,
    RunHead,
    RunKey,
    StartRun,
    Status,
    Terminate,
    Verdict,
)
from outlast.workflows.registry import misfit_of_step

FORKED = str(Forked.__struct_config__.tag)

_RETRY = re.compile(r"(?P<first>.+)/retry-(?P<number>[1-9][0-9]*)", re.DOTALL)
_RETRIED = frozenset({Status.FAILED, Status.CANCELLED, Status.TERMINATED})
_UNDONE = frozenset({Status.COMPENSATED, Status.PARTLY_COMPENSATED})


class ForkRequest(msgspec.Struct, frozen=True):
    """What is asked for.

    Args:
        id: Of the new run.
        position: Of the first entry that is not kept; None for all that can be.
        outcome: An operation, and the value that it is to have; instead of a position.
        effects: What becomes of effects whose outcome is not known.
        failures: Whether an equal call of an effect that failed later fails like it.
        token: Set, it tells this request from an equal one.
    """

    id: str
    reason: str
    position: int | None = None
    outcome: tuple[str, Any] | None = None
    effects: EffectPolicy = "refuse"
    failures: bool = True
    token: str = ""


class Origin(msgspec.Struct, frozen=True):
    """A run that is to be forked, as it was read.

    Args:
        is_over: It had ended for good: no generation follows that goes on from it.
        restored: It is older than a restore of the store, which may have forgotten what it did.
    """

    run: RunKey
    generation: int
    rows: tuple[StampedRow, ...]
    entries: list[Entry]
    is_over: bool
    restored: Restored | None = None

    @property
    def started(self) -> Started:
        """Its first entry."""
        first = self.entries[0]
        assert isinstance(first, Started)
        return first


async def fork(
    client: Port, run: RunKey, asked: ForkRequest, generation: int | None = None
) -> RunKey:
    """Write the fork, and return its key. The same request again finds the fork that it made.

    Raises:
        RunNotFoundError: There is no such run, or no such generation of it.
        DefinitionError: No fork can begin there, or it is not said why.
        RunConflictError: The id is taken.
        StoreError: The store does not take it.
    """
    origin = await read_origin(client, run, generation)
    return await write_fork(client, origin, asked)


async def retry(
    client: Port, run: RunKey, *, id: str, reason: str, effects: EffectPolicy
) -> RunKey:
    """Fork a run that ended without a result from where it failed, and return the new run's key.

    Args:
        id: Of the new run. Empty for the next of this run's retries, which takes up what the last of them has come to.

    Raises:
        RunConflictError: The run, or its last retry, has not ended, or has a result.
        RunNotFoundError: There is no such run.
    """
    if id:
        return await _retry_as(client, await _retriable(client, run), id, reason, effects)
    latest = await _latest_retry(client, run)
    following = _next_retry(latest)
    if await client.store.head(following) is not None:
        raise RunConflictError(
            f"the next retry of run {latest.run_id} would have the id of another run",
            run=following.run_id,
            hint="give the retry an id of its own: id=, or --id",
        )
    origin = await _retriable(client, latest, asked=run)
    try:
        return await _retry_as(client, origin, following.run_id, reason, effects, client.new_id())
    except RunConflictError as error:
        if error.run != following.run_id or not await _is_fork_of(client, following, latest):
            raise
        raise RunConflictError(
            f"somebody else has begun the retry of run {latest.run_id} in the same moment: it is run {following.run_id}",
            run=following.run_id,
            hint=f"nothing more is needed: follow that run, as by `outlast runs show {following.run_id}`",
        ) from None


async def latest_retry(client: Port, head: RunHead) -> Retry | None:
    """Return the latest retry of a run that ended without a result; None where it has none, or one with an id of its own."""
    if head.status not in _RETRIED:
        return None
    try:
        latest = await _latest_retry(client, head.run)
    except DefinitionError:
        # The id of the run is so long that none can be made of it.
        return None
    found = None if latest == head.run else await client.store.head(latest)
    return None if found is None else Retry(latest.run_id, found.status)


async def _retry_as(
    client: Port, origin: Origin, id: str, reason: str, effects: EffectPolicy, token: str = ""
) -> RunKey:
    position = retry_position(origin.entries)
    asked = ForkRequest(id, reason, position=position, effects=effects, failures=False, token=token)
    return await write_fork(client, origin, asked)


def _next_retry(run: RunKey) -> RunKey:
    found = _RETRY.fullmatch(run.run_id)
    first, number = (found["first"], int(found["number"])) if found else (run.run_id, 0)
    return RunKey(run.tenant, check_run_id(f"{first}/retry-{number + 1}"))


async def _is_fork_of(client: Port, run: RunKey, origin: RunKey) -> bool:
    """Whether `run` was begun as a fork of `origin`."""
    rows = await client.store.journal(run, generation=1)
    forks = [from_row(one.row) for one in rows if one.row.kind == FORKED]
    last = forks[-1] if forks else None
    return isinstance(last, Forked) and last.origin.run_id == origin.run_id


async def _retriable(client: Port, run: RunKey, asked: RunKey | None = None) -> Origin:
    """Read a run that ended without a result.

    Args:
        asked: The run that somebody asked to be retried, where `run` may be a retry of it.
    """
    head = await client.head(run)
    if head.status in _RETRIED:
        return await read_origin(client, run)
    if head.status in _UNDONE:
        raise await _undone(client, head)
    ended = f"it ended as {head.status}" if head.status.closed else f"it is {head.status}"
    if asked is not None and asked != run:
        raise _retried_already(asked, head)
    raise RunConflictError(
        f"the run cannot be retried: {ended}",
        run=run.run_id,
        hint="fork it from a position: `outlast runs fork`"
        if head.status.closed
        else "see `outlast runs explain`; cancel or terminate it to begin anew",
    )


async def _undone(client: Port, head: RunHead) -> RunConflictError:
    """Return why a run is not retried that has undone what it did."""
    run = head.run.run_id
    entries = (await read_origin(client, head.run)).entries
    seq = place_before_undone(entries)
    return RunConflictError(
        f"the run cannot be retried: it ended as {head.status}, and nothing is left to go on from",
        run=run,
        hint=_doing_after_all(run, seq),
    )


def _doing_after_all(run: str, seq: int) -> str:
    return (
        f"start the workflow anew, with another id or if_closed='restart'; or "
        f"`outlast runs fork {run} --at {seq} --effects new-key --id NEW-ID --reason TEXT` does it again from there"
    )


def _retried_already(run: RunKey, retry: RunHead) -> RunConflictError:
    latest = retry.run.run_id
    if retry.status.closed:
        return RunConflictError(
            f"run {run.run_id} was retried already, as {latest}, which has {retry.status}",
            run=latest,
            hint=f"see `outlast runs show {latest}`; to do it otherwise, fork one of them: `outlast runs fork`",
        )
    return RunConflictError(
        f"run {run.run_id} is being retried already, as {latest}, which is {retry.status}",
        run=latest,
        hint=f"follow that run: `outlast runs explain {latest}`; to begin anew, cancel or terminate it first",
    )


async def read_origin(client: Port, run: RunKey, generation: int | None = None) -> Origin:
    """Read a run that is to be forked.

    Args:
        generation: The present one by default.

    Raises:
        RunNotFoundError: There is no such run, or no such generation of it.
        DecodeError: An entry cannot be read.
    """
    head = await client.head(run)
    number = head.generation if generation is None else generation
    rows = await client.store.journal(run, generation=number)
    if not rows:
        raise RunNotFoundError(
            f"there is no generation {number} of the run",
            run=run.run_id,
            hint=f"it has those from 1 to {head.generation}",
        )
    entries = [from_row(one.row) for one in rows]
    is_over = head.status.closed if number == head.generation else True
    is_over = is_over and not isinstance(entries[-1], ContinuedAsNew)
    return Origin(run, number, rows, entries, is_over, head.restored)


async def write_fork(client: Port, origin: Origin, asked: ForkRequest) -> RunKey:
    """Write a fork of a run that was read; see `fork`."""
    run = RunKey(client.tenant, check_run_id(asked.id))
    if not asked.reason.strip():
        raise DefinitionError(
            "a fork needs a reason: why is this run done otherwise, or again?",
            run=origin.run.run_id,
            hint="give reason=, or --reason; it is kept in the fork's journal",
        )
    if asked.effects not in get_args(EffectPolicy):
        raise DefinitionError(
            f"{asked.effects!r} says nothing of the effects of a fork",
            run=origin.run.run_id,
            hint=f"say one of {', '.join(get_args(EffectPolicy))}",
        )
    _check_standing(origin, _position(origin, asked))
    there = await client.store.head(run)
    if there is not None:
        # Found before anything is written, or read of others: nothing is left behind.
        _require_same(there, _fingerprint(origin, asked), "")
        return run
    changes = await _changes(client, origin, asked, run, None)
    await _write(client, origin, changes)
    return run


async def _write(client: Port, origin: Origin, changes: list[StartRun]) -> None:
    """Write the fork and the retries of children: all of them, or none that goes on."""
    *others, last = changes
    for change in others:
        if (head := await client.store.head(change.run)) is not None:
            _require_same(head, change.fingerprint, change.origin)
    verdicts = await client.commit_all(changes) if others else [await client.commit(last)]
    try:
        for change, verdict in zip(changes, verdicts, strict=True):
            _require(change, verdict, origin)
    except OutlastError:
        for change, verdict in zip(changes, verdicts, strict=True):
            if isinstance(verdict, Applied):
                by = client.principal
                await client.commit(Terminate(change.run, by, "the fork could not be made whole"))
        raise


def _require(change: StartRun, verdict: Verdict, origin: Origin) -> None:
    """Return when the run of a change is there.

    Raises:
        RunConflictError: Another one has its id.
        StoreError: The store does not take it.
    """
    run = change.run
    match verdict:
        case Applied():
            return
        case Conflict(head=head) if head is not None:
            _require_same(head, change.fingerprint, change.origin)
        case Refused(reason="times"):
            raise StoreError(
                "the store's clock is behind the time of an entry that the fork would keep",
                run=origin.run.run_id,
                hint="set the clock right, or wait until it has come so far again",
            )
        case _:
            raise StoreError(
                f"the run was not forked; the store answered {verdict}", run=run.run_id
            )


def _require_same(head: RunHead, fingerprint: str, origin: str) -> None:
    """Raise RunConflictError unless a run is the fork that was asked for."""
    if (head.fingerprint, head.origin) != (fingerprint, origin):
        raise RunConflictError(
            "the id is taken by another run", run=head.run.run_id, hint="give the fork a new id"
        )


async def _changes(
    client: Port, origin: Origin, asked: ForkRequest, run: RunKey, parent: Parent | None
) -> list[StartRun]:
    """Return the changes that make the fork: its own comes last, after the retries of children.

    Args:
        parent: Of the retry of a child.
    """
    position = _position(origin, asked)

    async def retry_child(child: RunKey, id: str, parent: Parent) -> Retried | None:
        return await _retried(client, child, replace(asked, id=id), parent)

    reader = FamilyReader(
        client,
        origin.run,
        is_over=origin.is_over,
        failures=asked.failures,
        fork_id=run.run_id,
        retry=retry_child,
    )
    journal = Journal(origin.entries, RunName(origin.run.run_id, origin.generation))
    family = await reader.read(journal, position)
    if asked.effects == "new_key":
        check_sent(journal, family.children, position, origin.run.run_id)
    family.parent = parent
    change = _change(client, origin, asked, run, family)
    if parent is not None:
        messages = await lost_messages(client, origin.run, origin.entries, position)
        change = replace(change, origin=marker(parent), messages=messages)
    return [*family.changes, change]


async def _retried(
    client: Port, child: RunKey, asked: ForkRequest, parent: Parent
) -> Retried | None:
    """Return what makes the retry of a child, or of the last retry of it.

    Returns: None when it was not ended, or is another run by now.

    Raises:
        RunConflictError: The last retry of it has not ended.
    """
    latest = await _latest_retry(client, child)
    head = await client.head(latest)
    origin = await read_origin(client, latest)
    end = origin.entries[-1]
    if head.status is Status.COMPLETED and isinstance(end, Completed):
        return Retried(latest.run_id, value=end.value)
    if head.status in _UNDONE and asked.effects != "new_key":
        raise RunConflictError(
            f"run {latest.run_id}, which it started, has undone what it did, and its keys are used up",
            run=latest.run_id,
            hint="retry its parent with effects='new_key' (--effects new-key), to have it made anew",
        )
    if head.status in _UNDONE:
        return None
    if head.status not in _RETRIED and latest != child:
        raise RunConflictError(
            f"run {child.run_id}, which it started, is being retried as run {latest.run_id}",
            run=latest.run_id,
            hint="retry its parent when that has ended",
        )
    if head.status not in _RETRIED:
        return None
    asked = replace(asked, position=retry_position(origin.entries), outcome=None)
    changes = await _changes(client, origin, asked, RunKey(child.tenant, asked.id), parent)
    heard = [one.message_id for one in origin.entries if isinstance(one, MessageReceived)]
    heard += [one.message_id for one in changes[-1].messages]
    return Retried(asked.id, tuple(changes), frozenset(heard))


async def _latest_retry(client: Port, run: RunKey) -> RunKey:
    """Return the last of a run's retries, each a retry of the one before; the run itself where there is none."""
    latest, following = run, _next_retry(run)
    while await client.store.head(following) is not None and await _is_fork_of(
        client, following, latest
    ):
        latest, following = following, _next_retry(following)
    return latest


def _change(
    client: Port,
    origin: Origin,
    asked: ForkRequest,
    run: RunKey,
    family: Family,
) -> StartRun:
    """Return the one change that makes the fork."""
    position = _position(origin, asked)
    rows = origin.rows[: position + (asked.outcome is not None)]
    entries = kept(origin.entries[:position])
    entries[0] = _started(client, origin, asked, run)
    if asked.outcome is not None:
        entries.append(_given_anew(client, origin, asked, position))
    name = RunName(origin.run.run_id, origin.generation)
    forked = Forked(
        known_as=RunName(run.run_id),
        origin=name,
        position=position,
        by=client.principal,
        reason=asked.reason,
        effects=asked.effects,
        changed=OperationId(asked.outcome[0]) if asked.outcome is not None else NO_OPERATION,
        known=known_after(
            origin.entries,
            [one.at for one in origin.rows],
            position,
            name,
            failures=asked.failures,
        ),
        children=family.children,
        messages=family.messages,
        parent=family.parent,
    )
    last = rows[-1].row
    return StartRun(
        run=run,
        workflow=origin.started.name,
        fingerprint=_fingerprint(origin, asked),
        entries=(
            *(_row(entry, n, origin) for n, entry in enumerate(entries)),
            to_row(forked, len(rows), last.turn + 1),
        ),
        times=tuple(one.at for one in rows),
        # Under the same keys it would make the same effects.
        restored=origin.restored if asked.effects == "same_key" else None,
    )


def _row(entry: Entry, place: int, origin: Origin) -> EntryRow:
    """Return the row of a kept entry, as it stands in the origin unless it is another one."""
    row = origin.rows[place].row
    return row if entry is origin.entries[place] else to_row(entry, place, row.turn)


def _started(client: Port, origin: Origin, asked: ForkRequest, run: RunKey) -> Started:
    former = origin.started
    known_as = former.known_as or RunName(origin.run.run_id, origin.generation)
    inherits = former.effects in ("refuse", "same_key") and former.keys
    return replace(
        former,
        namespace=namespace(run.tenant, run.run_id, 1),
        principal=client.principal,
        effects=asked.effects,
        keys=former.keys if inherits else former.namespace,
        known_as=known_as,
        ends_at=None,
        is_last=origin.is_over and (former.is_last or not inherits),
        requesters=tuple(dict.fromkeys((*former.requesters, former.principal))),
    )


def _position(origin: Origin, asked: ForkRequest) -> int:
    """Return the position at which the fork begins.

    Raises:
        DefinitionError: There is none such, or it is within a turn.
    """
    run = origin.run.run_id
    if asked.outcome is not None:
        if asked.position is not None:
            raise DefinitionError(
                "a fork was asked for with a position and an outcome",
                run=run,
                hint="an outcome has its own place in the journal: leave the position out",
            )
        return _place_of_outcome(origin, asked.outcome[0])
    end = len(origin.rows)
    if ROLES.get(type(origin.entries[-1])) is Role.END:
        end -= 1
    position = end if asked.position is None else asked.position
    if not 1 <= position <= end:
        raise DefinitionError(
            f"a fork of this run cannot begin at position {position}",
            run=run,
            hint=f"give the number of an entry from 1 to {end}: those before it are kept; see `outlast runs journal {run}`",
        )
    turns = [one.row.turn for one in origin.rows]
    if position < len(turns) and turns[position] == turns[position - 1]:
        first, after = turns.index(turns[position]), len(turns) - turns[::-1].index(turns[position])
        raise DefinitionError(
            f"entries {first} to {after - 1} were taken in together, and position {position} is between them",
            run=run,
            hint=f"give {first} or {after}",
        )
    return position


def _check_standing(origin: Origin, position: int) -> None:
    """Return when nothing that a fork would keep as done was undone since.

    Raises:
        DefinitionError: Something was.
    """
    undone = kept_and_undone(origin.entries, position)
    if undone:
        operation, first = min(undone.items(), key=lambda pair: pair[1])
        run = origin.run.run_id
        raise DefinitionError(
            f"{operation} had happened before position {position}, and was undone since: a fork from there would go on as if it stood",
            run=run,
            operation=operation,
            hint=_doing_after_all(run, first),
        )


def _place_of_outcome(origin: Origin, operation: str) -> int:
    for place, entry in enumerate(origin.entries):
        if isinstance(entry, StepCompleted | StepFailed) and entry.operation == operation:
            return place
    raise DefinitionError(
        f"{operation} is no step that has an outcome, and only that of a step can be given anew",
        run=origin.run.run_id,
        operation=operation,
        hint="what an effect did is a fact; name a step of `outlast runs journal`, or fork from a position",
    )


def _given_anew(client: Port, origin: Origin, asked: ForkRequest, place: int) -> StepCompleted:
    assert asked.outcome is not None
    former = origin.entries[place]
    assert isinstance(former, StepCompleted | StepFailed)
    value = codec_for(Any, where="the outcome").encode(asked.outcome[1])
    if why := misfit_of_step(former.name, value):
        raise DefinitionError(
            f"the outcome does not fit the result of step {former.name}: {why}",
            run=origin.run.run_id,
            operation=former.operation,
            step=former.name,
            hint="give plain data as the journal holds it; see the former value in `outlast runs journal`",
        )
    return StepCompleted(
        former.operation, former.name, Raw(value), by=client.principal, reason=asked.reason
    )


def _fingerprint(origin: Origin, asked: ForkRequest) -> str:
    """Return what tells this fork from others; never that of an ordinary start."""
    changed = None
    if asked.outcome is not None:
        value = codec_for(Any, where="the outcome").encode(asked.outcome[1])
        changed = (asked.outcome[0], value)
    what = (
        *("fork", origin.run.run_id, origin.generation, asked.position, changed),
        *(asked.effects, asked.failures, asked.token),
    )
    return hashlib.sha256(msgspec.json.encode(what)).hexdigest()
