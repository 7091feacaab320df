"""What a fork keeps of a journal, and that each kind of entry has been thought of."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from msgspec import Raw

from outlast.errors import DecodeError, DefinitionError
from outlast.journal import prefix
from outlast.journal.entry import (
    KINDS,
    ApprovalDecided,
    ApprovalRequested,
    CancelRequested,
    Completed,
    EffectCleared,
    EffectCompleted,
    EffectInDoubt,
    EffectIntended,
    Entry,
    Forked,
    KnownEffect,
    LeftOut,
    OperationId,
    RunName,
    Started,
    StepCompleted,
    Taken,
    from_row,
    to_row,
)
from outlast.journal.failure import Failure
from outlast.journal.prefix import ROLES, Role, is_silent, kept

NOTHING = Raw(b"null")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
STARTED = Started("flow", Raw(b"{}"), b"s" * 16, "r")


def intent(at: str) -> EffectIntended:
    """Return the intent of an effect."""
    return EffectIntended(OperationId(at), "pay", "key", NOTHING, NOTHING, "sha")


def request(at: str) -> ApprovalRequested:
    """Return a request to a person."""
    return ApprovalRequested(OperationId(at), f"1~{at}", "boss", NOTHING, "", (), NOW, NOW)


def test_every_kind_of_entry_has_a_role() -> None:
    """A new kind says what a fork makes of it: whether it is settled by an outcome, is one, or stands for itself."""
    assert set(ROLES) == set(KINDS.values())
    assert set(ROLES.values()) == set(Role)


def test_what_is_settled_is_kept_and_what_is_not_leaves_a_place() -> None:
    """As many entries as before: a request or intent without an outcome, and what became known of it, are left out."""
    entries: list[Entry] = [
        STARTED,
        Taken("3.11", "0"),
        intent("r:1"),
        intent("r:2"),
        request("r:3"),
        request("r:4"),
        EffectInDoubt(OperationId("r:2"), "pay", "lost"),
        EffectCompleted(OperationId("r:1"), "pay", NOTHING),
        EffectCleared(OperationId("r:2"), "pay"),
        ApprovalDecided(OperationId("r:3"), "1~r:3", True, "ann", "", "", NOW),
        StepCompleted(OperationId("r:5"), "plan", NOTHING),
        CancelRequested("ann"),
    ]
    left = {
        3: LeftOut(OperationId("r:2"), "pay", "effect_intended"),
        5: LeftOut(OperationId("r:4"), "", "approval_requested"),
        6: LeftOut(OperationId("r:2"), "pay", "effect_in_doubt"),
        8: LeftOut(OperationId("r:2"), "pay", "effect_cleared"),
    }
    assert kept(entries) == [left.get(place, one) for place, one in enumerate(entries)]
    assert kept(kept(entries)) == kept(entries)
    assert [is_silent(left[place]) for place in (3, 5, 6, 8)] == [True, False, False, False]


def test_an_end_cannot_be_kept() -> None:
    """A fork goes on."""
    with pytest.raises(DefinitionError, match="entry 1 ends the run") as caught:
        kept([STARTED, Completed(NOTHING)])
    assert caught.value.hint == "give a position of 1 or less"


def test_a_kind_without_a_role_cannot_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what nobody has thought of a fork makes nothing."""
    monkeypatch.delitem(prefix.ROLES, CancelRequested)
    with pytest.raises(DefinitionError, match=r"entry 1 \(cancel_requested\) cannot be kept"):
        kept([STARTED, CancelRequested()])


def test_a_known_failure_is_not_read_deeper_than_any_that_is_captured() -> None:
    """As that of any other entry."""
    failure = Failure("ValueError", "x")
    for _ in range(25):
        failure = Failure("ValueError", "x", cause=failure)
    known = KnownEffect("pay", "sha", 1, "r", OperationId("r:1"), "key", "failed", failure=failure)
    forked = Forked(RunName("f"), RunName("r"), 1, "", "why", "refuse", known=(known,))
    with pytest.raises(DecodeError, match="nested deeper"):
        from_row(to_row(forked, 0, 0))
