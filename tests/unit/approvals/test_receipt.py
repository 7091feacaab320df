"""What a receipt says of every way in which a request can go, and what it keeps to itself."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from msgspec import Raw

from outlast.approvals.drawing import receipt_of, requests_in
from outlast.approvals.receipt import Use, read_receipt
from outlast.errors import ReceiptError
from outlast.journal.asking import Terms, Vote
from outlast.journal.entry import (
    Cancelled,
    Completed,
    EffectCleared,
    EffectCompensating,
    EffectFailed,
    EffectInDoubt,
    EffectIntended,
    EntryRow,
    Forked,
    GrantUse,
    OperationId,
    RunName,
    StampedRow,
)
from outlast.journal.failure import capture
from outlast.testing.golden import exported

from .journals import (
    HOUR,
    PLACE,
    T0,
    asked,
    broken,
    edited,
    escalated,
    expired,
    intended,
    journal,
    paid,
    receipt,
    said,
    voted,
)

OP = OperationId("r:2")
GOLDEN = Path(__file__).parents[2] / "replay" / "journals" / "v1"


def test_approved_and_done() -> None:
    """Who, when, on which hash, under which terms; then the intent, its key and its outcome, each with its entry."""
    request = asked()
    found = receipt(request, said(request), intended(checked_at=T0), paid(), Completed(Raw(b"1")))
    assert (found.tenant, found.run_id, found.generation) == ("default", "run-1", 1)
    assert (found.workflow, found.operation, found.state) == ("bill", "r:1", "approved")
    (word,) = found.request.words
    assert (word.by, word.said, word.reason) == ("bob", "yes", "because")
    assert word.subject_sha256 == found.request.subject_sha256 == request.subject_sha256
    assert word.at == T0 + timedelta(minutes=2)
    assert found.request.subject.encode() == bytes(request.subject)
    assert (found.request.terms, found.request.requesters) == (request.terms, ("ann",))
    (act,) = found.acts
    assert (act.effect, act.key, act.effective) == ("pay", "k" * 32, '{"amount":5}')
    assert (act.uses, act.checked_at) == ((Use("1~r:1", 0),), T0)
    assert act.intended_at == T0 + timedelta(minutes=3)
    assert (act.outcome.known, act.outcome.source, act.outcome.position) == (
        "completed",
        "attempt",
        4,
    )
    assert [one.position for one in found.evidence] == [0, 1, 2, 3, 4, 5]
    assert not broken(found)


def test_values_are_withheld_unless_asked_for() -> None:
    """Neither what the effect returned nor the run's arguments and seed stand in it; the result's hash does."""
    request = asked()
    entries = request, said(request), intended(), paid(), Completed(Raw(b'"secretly"'))
    text = msgspec.json.encode(receipt(*entries)).decode()
    assert not [word for word in ("secret", "seed") if word in text]
    hashed = hashlib.sha256(b'{"paid":"secretly"}').hexdigest()
    assert hashed in text
    found = receipt(*entries, with_results=True)
    outcome = found.acts[0].outcome
    assert (outcome.result, outcome.result_sha256) == ('{"paid":"secretly"}', hashed)
    told = msgspec.json.encode(found).decode()
    assert "of the run" not in told
    assert "seed" not in told
    assert not broken(found)


@pytest.mark.parametrize("ending", ["pending", "denied", "expired", "withdrawn", "ended"])
def test_request_that_permits_nothing(ending: str) -> None:
    """It has a receipt too, which says so and is sound."""
    request = asked()
    further = {
        "denied": [said(request, yes=False)],
        "expired": [expired(request)],
        "ended": [Cancelled(capture(ValueError("x")))],
    }.get(ending, [])
    found = receipt(request, *further, is_withdrawn=ending == "withdrawn")
    assert found.state == ("withdrawn" if ending == "ended" else ending)
    assert found.acts == ()
    assert not broken(found)


def test_journal_of_an_older_library() -> None:
    """Without terms: one yes of the role."""
    request = asked(terms=None)
    found = receipt(request, said(request), intended(), paid())
    assert (found.state, found.request.terms, found.request.role) == ("approved", None, "boss")
    assert not broken(found)


def test_escalated_request_brings_those_before_it() -> None:
    """The chain, oldest first; what came after a request is not in its receipt."""
    entries = escalated()
    found = receipt(*entries, intended(grant=GrantUse("1~r:1#2", 0)), approval_id="1~r:1#2")
    assert [(one.approval_id, one.role, one.state) for one in found.requests] == [
        ("1~r:1", "boss", "expired"),
        ("1~r:1#2", "chief", "approved"),
    ]
    assert [act.operation for act in found.acts] == ["r:2"]
    first = receipt(*entries)
    assert ([one.approval_id for one in first.requests], first.state) == (["1~r:1"], "expired")
    assert not broken(found)
    assert not broken(first)


def test_edited_request_of_an_effect_of_its_own() -> None:
    """Asked under the effect's operation by a policy: the edit, the vote that it is, the policy, and what ran instead."""
    terms = Terms("boss", HOUR, use_within=2 * HOUR, edits="yes")
    policy = {"source": "policy", "policy_version": "p7", "rule": "big", "terms": terms}
    first = asked(operation="r:2", amount=50, **policy)
    edit = edited(first, "bob", 5)
    second = asked("1~r:2#2", "r:2", again="edited", votes=(Vote("bob", edit.at),), **policy)
    intent = intended(asked=("1~r:2#2",), policy_version="p8", requested_sha256="b" * 64)
    found = receipt(first, edit, second, intent, paid(), approval_id="1~r:2#2")
    assert [one.state for one in found.requests] == ["edited", "approved"]
    assert found.requests[0].words[0].edits[0].arguments == '{"amount":5}'
    assert (found.request.policy_version, found.request.rule) == ("p7", "big")
    (act,) = found.acts
    assert (act.uses, act.asked) == ((Use("1~r:2#2", 0),), ("1~r:2#2",))
    assert (act.policy_version, act.requested_sha256) == ("p8", "b" * 64)
    assert not broken(found)


def test_votes_and_delegates() -> None:
    """Each yes of a quorum, and on whose behalf it was said."""
    request = asked(terms=Terms("boss", HOUR, use_within=2 * HOUR, quorum=3, four_eyes=True))
    found = receipt(
        request,
        voted(request, "bob"),
        voted(request, "eve", "dan"),
        said(request, "joe"),
        intended(),
    )
    assert [(one.by, one.behalf, one.is_last) for one in found.request.words] == [
        ("bob", "", False),
        ("eve", "dan", False),
        ("joe", "", True),
    ]
    assert not broken(found)
    waiting = receipt(request, voted(request, "bob"))
    assert (waiting.state, len(waiting.request.words)) == ("pending", 1)
    assert not broken(waiting)


FAILED = capture(ValueError("secretly"))


@pytest.mark.parametrize(
    ("entries", "known"),
    [
        ([], "not yet"),
        ([EffectFailed(OP, "pay", FAILED)], "failed"),
        ([EffectInDoubt(OP, "pay", "secretly")], "in doubt"),
        ([EffectInDoubt(OP, "pay", "cut off"), EffectCleared(OP, "pay", "eve")], "not yet"),
        ([EffectInDoubt(OP, "pay", "cut off"), EffectCompensating(OP, "pay")], "undone by hand"),
    ],
)
def test_every_outcome(entries: list, known: str) -> None:
    """The last that is known, and where that stands; why it failed only where results are wanted."""
    request = asked()
    for with_results in (False, True):
        found = receipt(request, said(request), intended(), *entries, with_results=with_results)
        (act,) = found.acts
        assert act.outcome.known == known
        assert act.outcome.position == (len(entries) + 3 if entries else None)
        is_told = b"secretly" in msgspec.json.encode(found)
        assert is_told == (with_results and len(entries) == 1)
        assert not broken(found)


def test_what_undoes_an_act() -> None:
    """A compensation rests on the yes to what it undoes, so it stands beside that."""
    request = asked()
    undo = EffectIntended(
        OperationId("r:3"), "refund", "u" * 32, Raw(b"{}"), Raw(b"{}"), "c" * 64, compensates=OP
    )
    found = receipt(request, said(request), intended(), paid(), undo)
    assert [(act.effect, act.compensates, act.uses) for act in found.acts][1:] == [
        ("refund", "r:2", ())
    ]
    assert not broken(found)


def test_pattern() -> None:
    """What ran is held against the fields that were approved."""
    request = asked(where={"amount": 5})
    found = receipt(request, said(request), intended(), paid())
    assert found.request.covers[0].where == {"amount": "5"}
    assert not broken(found)


def test_fork() -> None:
    """Where the run became a fork is said: what stands before is its origin's."""
    request = asked()
    fork = Forked(RunName("run-1"), RunName("run-0"), 3, "ann", "to see", "refuse")
    found = receipt(request, said(request), fork)
    assert (found.forks, found.state, found.acts) == ((3,), "approved", ())
    assert not broken(found)


def test_two_reasons_to_ask_for_one_effect() -> None:
    """A declaration and a policy each have their chain, and the act has spent both."""
    declared = asked(operation="r:2", source="declared")
    policy = asked("1~r:2#2", "r:2", source="policy")
    anew = asked("1~r:2#3", "r:2", source="declared", again="changed")
    intent = intended(asked=("1~r:2#2", "1~r:2#3"))
    entries = declared, said(declared), policy, said(policy), anew, said(anew), intent
    found = receipt(*entries, approval_id="1~r:2#3")
    assert [one.approval_id for one in found.requests] == ["1~r:1", "1~r:2#3"]
    assert found.acts[0].uses == (Use("1~r:2#3", 0),)
    alone = receipt(*entries, approval_id="1~r:2#2")
    assert [one.approval_id for one in alone.requests] == ["1~r:2#2"]
    assert not broken(found)
    assert not broken(alone)


def test_asked_anew_after_a_yes_because_a_hook_changed_the_call() -> None:
    """No approver edited anything, so nobody has to have said yes to begin with."""
    first, second = asked(), asked("1~r:1#2", amount=6, again="edited")
    found = receipt(first, said(first), second, approval_id="1~r:1#2")
    assert [one.state for one in found.requests] == ["approved", "pending"]
    assert not broken(found)


def test_every_golden_journal_has_sound_receipts() -> None:
    """What real engines have recorded, of every kind, accuses nobody."""
    seen = 0
    for place in sorted(GOLDEN.glob("*.json")):
        text = place.read_text()
        if "approval_requested" not in text:
            continue
        rows = [
            StampedRow(
                EntryRow(one.seq, one.turn, one.kind, one.operation, one.name, one.body.encode()),
                one.at,
            )
            for one in exported(text).rows
        ]
        for approval_id in requests_in(rows, every=True):
            assert not broken(receipt_of(rows, PLACE, approval_id)), (place.name, approval_id)
            seen += 1
    assert seen > 5


def test_other_requests_are_left_out() -> None:
    """Only what concerns the request stands in it."""
    request, other = asked(), asked("1~r:3", "r:3", 7)
    found = receipt(
        request, other, said(other, "eve"), intended("r:4", 7, grant=GrantUse("1~r:3", 0)),
        said(request), intended(), paid("r:4"), paid(),
    )  # fmt: skip
    assert [one.position for one in found.evidence] == [0, 1, 5, 6, 8]
    assert not broken(found)


def test_request_that_the_journal_does_not_hold() -> None:
    """The error says where to look."""
    with pytest.raises(ReceiptError, match="holds no request 1~r:9") as caught:
        receipt_of(journal(asked()), PLACE, "1~r:9")
    assert (caught.value.reason, caught.value.run) == ("unknown", "run-1")


def test_receipt_is_read_back() -> None:
    """As JSON it is the same; what is none, or of a later form, is refused."""
    request = asked()
    found = receipt(request, said(request), intended(), paid())
    text = msgspec.json.encode(found)
    assert read_receipt(text) == found
    for other in (b"{}", text[:-1], text.replace(b"{", b'{"version":2,', 1)):
        with pytest.raises(ReceiptError, match="no receipt of a known form"):
            read_receipt(other)
