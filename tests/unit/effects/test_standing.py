"""How open operations stand, folded from journal and rows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from msgspec import Raw

from outlast.effects.standing import alarms, standings
from outlast.journal.entry import (
    AlarmRaised,
    EffectCleared,
    EffectCompleted,
    EffectFailed,
    EffectInDoubt,
    EffectIntended,
    Entry,
    MessageReceived,
    OperationId,
    TimerFired,
)
from outlast.journal.failure import Failure
from outlast.store.change import OperationPut

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)
ONE = OperationId("r:1")
INTENDED = EffectIntended(ONE, "pay", "key", Raw(b'{"amount":5}'), Raw(b'{"amount":4}'), "hash")
DOUBT = EffectInDoubt(ONE, "pay", "cut off")
FAILURE = Failure("OSError", "gone")


def _at(*entries: Entry) -> list[tuple[Entry, datetime, int]]:
    return [(one, NOON + timedelta(seconds=number), number) for number, one in enumerate(entries)]


def _timed(*entries: Entry) -> list[tuple[Entry, datetime]]:
    return [(one, at) for one, at, _ in _at(*entries)]


def test_effect_goes_from_intent_to_doubt_and_back() -> None:
    """Each entry moves the state and its time; the effective arguments are shown."""
    (intended,) = standings(_at(INTENDED), [])
    assert (intended.state, intended.arguments, intended.key) == ("intended", {"amount": 4}, "key")
    (doubtful,) = standings(_at(INTENDED, DOUBT), [])
    assert (doubtful.state, doubtful.why) == ("in doubt", "cut off")
    assert doubtful.since == NOON + timedelta(seconds=1)
    (cleared,) = standings(_at(INTENDED, DOUBT, EffectCleared(ONE, "pay")), [])
    assert (cleared.state, cleared.why) == ("intended", "")


@pytest.mark.parametrize(
    "end", [EffectCompleted(ONE, "pay", Raw(b"null")), EffectFailed(ONE, "pay", FAILURE)]
)
def test_settled_effect_is_gone(end: Entry) -> None:
    """An effect with an outcome stands nowhere."""
    assert standings(_at(INTENDED, DOUBT, end), []) == []


def test_rows_bring_failures() -> None:
    """A row makes a step visible and an intended effect one that is tried again; doubt stays doubt."""
    row = OperationPut("r:1", "effect", "pay", 2, NOON, msgspec.json.encode(FAILURE))
    (tried,) = standings(_at(INTENDED), [row])
    assert (tried.state, tried.failures, tried.failure) == ("retrying", 2, "OSError: gone")
    (doubtful,) = standings(_at(INTENDED, DOUBT), [row])
    assert doubtful.state == "in doubt"
    (step,) = standings([], [OperationPut("r:2", "step", "fetch", 1, None, b"not json")])
    assert (step.kind, step.state, step.failure) == ("step", "retrying", "")


def test_rows_tell_what_a_step_has_said_and_whether_it_is_handed_out() -> None:
    """Also of a first attempt; details that cannot be read are none."""
    beaten = OperationPut("r:2", "step", "crawl", progress=b'{"page":7}')
    awaited = OperationPut("r:3", "step", "render", 1, NOON, progress=b"not json", awaits=True)
    found = standings([], [beaten, awaited])
    assert [(one.state, one.progress) for one in found] == [
        ("attempted", {"page": 7}),
        ("handed out", None),
    ]


def test_rows_tell_when_something_was_heard_of_what_is_handed_out() -> None:
    """And until when silence means nothing; of an attempt that is made here neither."""
    hour = timedelta(hours=1)
    row = OperationPut("r:1", "step", "render", awaits=True, beats=3, heard_at=NOON, silence=hour)
    endless = msgspec.structs.replace(row, silence=None)
    here = msgspec.structs.replace(row, awaits=False, failures=1)
    far = msgspec.structs.replace(row, heard_at=datetime.max.replace(tzinfo=UTC))
    found = [standings([], [one])[0] for one in (row, endless, here, far)]
    assert [(one.beats, one.heard_at, one.silent_at) for one in found] == [
        (3, NOON, NOON + hour),
        (3, NOON, None),
        (0, None, None),
        (3, far.heard_at, None),
    ]


def _alarm(what: str, operation: str = "", /, **detail: object) -> AlarmRaised:
    return AlarmRaised(OperationId(operation), what, Raw(msgspec.json.encode(detail)))


@pytest.mark.parametrize(
    ("alarm", "after", "stands"),
    [
        (_alarm("unfit_message", name="go"), MessageReceived("m", "stop", Raw(b"1")), True),
        (_alarm("unfit_message", name="go"), MessageReceived("m", "go", Raw(b"1")), False),
        (_alarm("unfit_outcome", ONE), TimerFired(OperationId("r:2")), True),
        (_alarm("unfit_outcome", ONE), EffectCleared(ONE, "pay"), False),
        (_alarm("unfit_outcome", ONE), EffectCompleted(ONE, "pay", Raw(b"1")), False),
        (_alarm("unfit_outcome", operation="r:9"), TimerFired(OperationId("r:2")), False),
        (_alarm("late_decision", ONE, approval="1~r:1"), DOUBT, True),
        (_alarm("late_decision", ONE, approval="1~r:1"), TimerFired(OperationId("r:2")), False),
        (_alarm("unreadable_message", message="m"), TimerFired(OperationId("r:2")), False),
    ],
)
def test_alarm_stands_until_there_is_progress(
    alarm: AlarmRaised, after: Entry, stands: bool
) -> None:
    """At its operation, for its message's name, or of the run, by what it speaks of."""
    assert [one.what for one in alarms(_timed(alarm))] == [alarm.what]
    assert bool(alarms(_timed(alarm, after))) == stands


def test_alarm_says_what_it_is_about() -> None:
    """Whatever a version wrote: a name, an approval, an operation, a whole entry, or nothing to read."""
    entries = _timed(
        _alarm("unfit_message", name="go", sender="ann", message="m1", why="no int"),
        _alarm("late_decision", ONE, approval="1~r:1", by="bob", approved=False),
        _alarm("late_outcome", outcome=EffectCompleted(ONE, "pay", Raw(b"1"), by="eve")),
        AlarmRaised(OperationId("r:7"), "of a later version", Raw(b"[1]")),
        _alarm("poison", error="x"),
    )
    assert [(one.about, one.by, one.said, one.why) for one in alarms(entries)] == [
        ("go", "ann", "", "no int"),
        ("1~r:1", "bob", "denied", ""),
        ("r:1", "eve", "effect_completed", ""),
        ("", "", "", ""),
    ]
