"""What must hold of forks: no effect begins that was not allowed, and no outcome is had that the origin did not have.

What a fork and its origin both do each of them does once; under one key altogether, where they share their keys.
"""

from __future__ import annotations

from collections.abc import Sequence

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
from outlast.store.change import RunChange, RunKey
from outlast.testing.simulation.model import Call, Check, ForkedRun, Run

_KEPT_OUTCOMES = (EffectCompleted, EffectFailed)


class Forks:
    """Who does what another run may do too.

    Args:
        runs: What is known of them.
    """

    def __init__(self, runs: dict[RunKey, Run]) -> None:
        self._runs = runs

    def is_apart(self, run_id: str) -> bool:
        """Whether a run has keys of its own for what another one may do under other keys."""
        forked = self._of(run_id)
        return forked is not None and not forked.keys

    def may_do_too(self, run_id: str, key: str) -> bool:
        """Whether a run may do under this key what its origin does by itself: that had not ended, nor intended it before."""
        forked = self._of(run_id)
        if forked is None:
            return True
        if forked.is_last and (forked.origin is not None or forked.policy == "same_key"):
            return False
        intents = self._runs[RunKey("default", run_id)].intents.values()
        return all(call_of(one) not in forked.unknown for one in intents if one.key == key)

    def _of(self, run_id: str) -> ForkedRun | None:
        run = self._runs.get(RunKey("default", run_id))
        return None if run is None else run.forked


def begin_fork(run: Run, entries: Sequence[Entry], now: float) -> None:
    """Note what a run, or a generation, begins with, if it is of a fork.

    Args:
        now: By the clock that counts leases.
    """
    match entries:
        case [Started() as started, *_, Forked() as forked]:
            pass
        case [Started() as started, *_] if started.effects:
            # A child of a fork, or a later generation, of which nobody knows which keys the origin's would have.
            run.forked = _forked(started, {}, now)
            return
        case _:
            return
    known: dict[Call, list[KnownEffect]] = {}
    for one in forked.known:
        known.setdefault(call_of(one), []).append(one)
    run.forked = _forked(
        started,
        {call: [one for one in each if one.outcome != "unknown"] for call, each in known.items()},
        now,
    )
    run.forked.unknown |= {call_of(one) for one in forked.known if one.outcome == "unknown"}
    ends = (*forked.children, *forked.messages)
    run.forked.ends += [one for one in ends if one.outcome != "unknown"]
    run.forked.origin = forked.origin
    for entry in entries:
        _keep(run, run.forked, entry)


def _forked(started: Started, known: dict[Call, list[KnownEffect]], now: float) -> ForkedRun:
    policy = started.effects
    keys = started.keys if policy == "same_key" else ""
    may_act = policy == "new_key" or bool(keys)
    return ForkedRun(policy, may_act, keys, known, set(), now, is_last=started.is_last)


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


def repeats_unknown(run: Run, intent: EffectIntended) -> bool:
    """Whether an effect of a fork is one that its origin has intended and not settled, of which only the same key may be used."""
    forked = run.forked
    return forked is not None and forked.policy != "same_key" and call_of(intent) in forked.unknown


def call_of(one: KnownEffect | EffectIntended) -> Call:
    """Return which call of an effect it was."""
    requested = "" if isinstance(one, KnownEffect) else one.requested_sha256
    return one.name, requested or one.action_sha256, one.number
