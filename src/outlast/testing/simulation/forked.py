"""What must hold of forks: no effect begins that was not allowed, and no outcome is had that the origin did not have."""

from __future__ import annotations

from outlast.journal.entry import (
    CancelRequested,
    ChildRefused,
    EffectCompleted,
    EffectFailed,
    EffectIntended,
    Entry,
    Forked,
    KnownChild,
    KnownEffect,
    KnownMessage,
    MessageAnswered,
    PauseRequested,
    ResumeRequested,
    RunEnded,
    Started,
    UpdateAnswered,
    UpdateReceived,
    from_row,
)
from outlast.store.change import RunChange, StartRun
from outlast.testing.simulation.model import Call, Check, ForkedRun, Run

_KEPT_OUTCOMES = (EffectCompleted, EffectFailed)


def begin_fork(run: Run, change: StartRun, now: float) -> None:
    """Note what a start brings along, if it makes a fork.

    Args:
        now: By the clock that counts leases.
    """
    entries = [from_row(row) for row in change.entries]
    match entries:
        case [Started() as started, *_, Forked() as forked]:
            pass
        case [Started() as started, *_] if started.effects:
            # A child of a fork.
            keys = started.keys if started.effects == "same_key" else ""
            run.forked = ForkedRun(started.effects != "refuse", keys, {}, set(), now)
            return
        case _:
            return
    known: dict[Call, list[KnownEffect]] = {}
    for one in forked.known:
        known.setdefault(call_of(one), []).append(one)
    run.forked = ForkedRun(
        may_act=forked.effects != "refuse",
        keys=started.keys if forked.effects == "same_key" else "",
        known={
            call: [one for one in each if one.outcome != "unknown"] for call, each in known.items()
        },
        unknown={call_of(one) for one in forked.known if one.outcome == "unknown"},
        since=now,
        ends=[one for one in (*forked.children, *forked.messages) if one.outcome != "unknown"],
    )
    for entry in entries:
        _keep(run, run.forked, entry)


def _keep(run: Run, forked: ForkedRun, entry: Entry) -> None:
    if isinstance(entry, UpdateReceived):
        run.asked.add(entry.message_id)
        forked.elsewhere.add(entry.message_id)
    elif isinstance(entry, UpdateAnswered):
        run.asked.discard(entry.message_id)
    elif isinstance(entry, PauseRequested | ResumeRequested | CancelRequested):
        run.paused = isinstance(entry, PauseRequested)
    elif isinstance(entry, EffectIntended):
        run.intents[entry.operation] = entry
    elif isinstance(entry, _KEPT_OUTCOMES):
        run.outcomes.add(entry.operation)
        if isinstance(entry, EffectCompleted):
            run.done.add(entry.operation)


def is_told_by_fork(run: Run, told: Entry) -> bool:
    """Whether what is said of another run is known from the origin, which then is used up, or is the refusal of a fork."""
    if run.forked is None:
        return False
    failure = getattr(told, "failure", None)
    if failure is not None and failure.type == "outlast.errors.ForkedEffectError":
        return True
    for at, known in enumerate(run.forked.ends):
        if known.failure == failure and _fits(known, told):
            del run.forked.ends[at]
            return True
    return False


def _fits(known: KnownChild | KnownMessage, told: Entry) -> bool:
    match told:
        case RunEnded():
            said = (told.run_id, told.status, told.value)
            return isinstance(known, KnownChild) and said == (
                known.run_id,
                known.outcome,
                known.value,
            )
        case ChildRefused():
            return known.outcome == "refused"
        case MessageAnswered():
            return isinstance(known, KnownMessage)
        case _:
            return False


def check_known(
    check: Check, run: Run, change: RunChange, end: EffectCompleted | EffectFailed
) -> None:
    """Look at an outcome that is said to be known from the origin."""
    at, intent = end.operation, run.intents.get(end.operation)
    left = [] if run.forked is None or intent is None else run.forked.known.get(call_of(intent), [])
    said = end.value if isinstance(end, EffectCompleted) else end.failure
    holds = bool(left) and said == (
        left[0].value if isinstance(end, EffectCompleted) else left[0].failure
    )
    check(
        holds,
        1,
        "an outcome is said to be known that the origin did not have",
        run=change.run,
        at=at,
    )
    check(
        at not in run.attempted,
        1,
        "an effect whose outcome was known was attempted",
        run=change.run,
        at=at,
    )
    if left:
        del left[0]


def is_known(change: RunChange, at: str) -> bool:
    """Whether a change records the outcome of an effect as known from the origin, so that nothing begins."""
    return any(
        isinstance(entry, _KEPT_OUTCOMES) and entry.operation == at and entry.source == "fork"
        for entry in map(from_row, change.entries)
    )


def call_of(one: KnownEffect | EffectIntended) -> Call:
    """Return which call of an effect it was."""
    return one.name, one.action_sha256, one.number
