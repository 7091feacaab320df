"""A receipt that was put together wrongly is noticed by itself, whoever signed it; each check says by its name what is wrong."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import replace

from outlast.approvals.evidence import Place, hash_of
from outlast.approvals.proof import prove
from outlast.approvals.receipt import Receipt
from outlast.approvals.request import subject_of
from outlast.journal.asking import Precondition, Terms, Vote
from outlast.journal.entry import (
    Cover,
    EffectIntended,
    Entry,
    Forked,
    GrantUse,
    OperationId,
    RunName,
)

from .journals import (
    HOUR,
    T0,
    action,
    asked,
    broken,
    edited,
    escalated,
    intended,
    paid,
    receipt,
    said,
    voted,
)

REQUEST = asked()
FOUR = Terms("boss", HOUR, use_within=2 * HOUR, quorum=2, four_eyes=True)
BOTH = asked(terms=FOUR)
EDITABLE = Terms("boss", HOUR, use_within=2 * HOUR, edits="yes")
SECOND = Terms("boss", HOUR, use_within=2 * HOUR, edits="second")
FORK = Forked(RunName("run-1"), RunName("run-0"), 3, "ann", "to see", "refuse")
VERSIONED = asked()
VERSIONED = replace(
    VERSIONED, subject=Raw(bytes(VERSIONED.subject).replace(b'"kind"', b'"version":"v2","kind"'))
)
EDIT = edited(asked(terms=EDITABLE), "bob", 6)


def after(again: str, **given: Any) -> Any:
    """Return the second request of the operation."""
    return asked("1~r:1#2", amount=6, again=again, **given)


WRONG: dict[str, tuple[str, list[Entry]]] = {
    "another hash": ("decision", [REQUEST, said(REQUEST, subject_sha256="0" * 64)]),
    "a subject that was changed": ("subject", [replace(REQUEST, subject=Raw(b'{"covers":[],"subject":1}'))]),
    "a cover that was not shown": ("shown", [replace(REQUEST, covers=(Cover("pay", "a" * 64),))]),
    "a fact that was not shown": ("shown", [asked(preconditions=(Precondition("head", "look", Raw(b"{}"), Raw(b"1")),))]),
    "an id of another operation": ("decision", [REQUEST, replace(said(REQUEST), operation=OperationId("r:9"))]),
    "a hash that is not of what was shown": ("actions", [VERSIONED]),
    "too few": ("terms", [BOTH, said(BOTH)]),
    "the same person twice": ("terms", [BOTH, voted(BOTH, "bob"), said(BOTH)]),
    "the same person as a delegate": ("terms", [BOTH, voted(BOTH, "eve", "bob"), said(BOTH)]),
    "who started it": ("terms", [BOTH, voted(BOTH, "ann"), said(BOTH)]),
    "who started it, for another": ("terms", [BOTH, voted(BOTH, "eve", "ann"), said(BOTH)]),
    "nobody knows who started it": ("terms", [replace(BOTH, requesters=()), voted(BOTH, "eve"), said(BOTH)]),
    "who may not": ("terms", [asked(barred=("bob",)), said(REQUEST)]),
    "another role": ("terms", [replace(REQUEST, role="clerk")]),
    "no such rung": ("terms", [replace(REQUEST, rung=3)]),
    "an edit that is not allowed": ("terms", [REQUEST, edited(REQUEST, "bob", 6)]),
    "decided late": ("times", [REQUEST, said(REQUEST, decided_at=T0 + HOUR)]),
    "begun late": ("times", [asked(use_by=T0 + timedelta(minutes=3)), said(REQUEST), intended()]),
    "begun before the yes": ("times", [REQUEST, intended(), said(REQUEST)]),
    "begun after a no": ("uses", [REQUEST, said(REQUEST, yes=False), intended()]),
    "begun unasked": ("uses", [REQUEST, intended()]),
    "spent twice": ("uses", [REQUEST, said(REQUEST), intended(), paid(), intended("r:3")]),
    "a cover that is not there": ("uses", [REQUEST, said(REQUEST), intended(grant=GrantUse("1~r:1", 4))]),
    "a fork by its origin's yes": ("uses", [REQUEST, said(REQUEST), FORK, intended()]),
    "another action": ("acts", [REQUEST, said(REQUEST), intended(amount=6)]),
    "other arguments": ("acts", [REQUEST, said(REQUEST), intended(amount=6, action_sha256=action("pay", {"amount": 5}))]),
    "another effect": ("acts", [REQUEST, said(REQUEST), replace(intended(), name="tip")]),
    "a pattern that does not fit": ("acts", [asked(where={"amount": 7}), said(asked(where={"amount": 7})), intended()]),
    "an escalation that came too early": ("chain", [escalated()[0], *escalated()[2:]]),
    "an escalation of nothing": ("chain", escalated()[2:]),
    "an edit that nobody made": ("chain", [asked(terms=EDITABLE), after("edited", terms=EDITABLE)]),
    "an edit that is no vote": ("chain", [asked(terms=EDITABLE), EDIT, after("edited", terms=EDITABLE)]),
    "another one's vote": ("chain", [asked(terms=EDITABLE), EDIT, after("edited", terms=EDITABLE, votes=(Vote("eve", T0),))]),
    "an editor who is not barred": ("chain", [asked(terms=SECOND), EDIT, after("edited", terms=SECOND)]),
    "a vote that an escalation brings along": ("chain", [*escalated()[:2], replace(escalated()[2], votes=(Vote("eve", T0),))]),
    "a vote that nobody gave": ("chain", [asked(votes=(Vote("eve", T0),))]),
}  # fmt: skip
"""By what is wrong: the check that finds it, and the journal of an engine that did so."""


@pytest.mark.parametrize("what", WRONG)
def test_what_should_not_have_been(what: str) -> None:
    """A journal that an engine with a fault wrote: drawn faithfully, and not sound."""
    check, entries = WRONG[what]
    last = [one.approval_id for one in entries if hasattr(one, "subject")][-1]
    found = broken(receipt(*entries, approval_id=last))
    assert check in found
    assert not found.keys() & {"evidence", "drawn", "outcomes"}


GOOD = receipt(REQUEST, said(REQUEST), intended(), paid(), with_results=True)


def forged(position: int, **fields: object) -> Receipt:
    """Return the receipt with something else in the entry at a position, hashed anew."""
    found = []
    for one in GOOD.evidence:
        if one.position == position:
            body = {**msgspec.json.decode(one.body), **fields}
            one = replace(one, body=msgspec.json.encode(body).decode())
            one = replace(one, sha256=hash_of(GOOD.place, one))
        found.append(one)
    return replace(GOOD, evidence=tuple(found))


def test_decision_of_another_run() -> None:
    """An entry is bound to its run, its place and its time: moved there as it was, it does not have its hash."""
    foreign = Place("default", "run-2", 1)
    for place in (foreign, Place("acme", "run-1", 1), Place("default", "run-1", 2)):
        moved = [
            replace(one, sha256=hash_of(place, one)) if one.position == 2 else one
            for one in GOOD.evidence
        ]
        found = broken(replace(GOOD, evidence=tuple(moved)))
        assert "entry 2 is not one of this place" in found["evidence"]
    assert "evidence" in broken(replace(GOOD, run_id="run-2"))


def test_entry_of_another_time() -> None:
    """A time is bound by the hash, and one that goes back is none, whatever its hash is."""

    def at(minutes: int, *, hashed: bool) -> dict[str, str]:
        one = replace(GOOD.evidence[2], at=T0 + timedelta(minutes=minutes))
        one = replace(one, sha256=hash_of(GOOD.place, one)) if hashed else one
        return broken(replace(GOOD, evidence=(*GOOD.evidence[:2], one, *GOOD.evidence[3:])))

    assert "not one of this place and time" in at(3, hashed=False)["evidence"]
    assert "does not come after" in at(0, hashed=True)["evidence"]
    assert "evidence" not in at(2, hashed=True)


def test_decision_that_is_said_to_be_another() -> None:
    """What is told of the decision is what its entry says, or it is noticed."""
    asked_, (word,) = GOOD.request, GOOD.request.words
    for other in (
        replace(word, by="eve"),
        replace(word, subject_sha256="0" * 64),
        replace(word, approval_id="1~r:9"),
        replace(word, said="no"),
    ):
        changed = replace(GOOD, requests=(replace(asked_, words=(other,)),))
        assert "requests are not" in broken(changed)["drawn"]


def test_decision_of_another_request() -> None:
    """An entry that was changed and hashed anew is about something else, or carries another hash than was asked."""
    assert "drawn" in broken(forged(2, approval_id="1~r:9"))
    assert "drawn" in broken(forged(2, subject_sha256="0" * 64))
    assert "evidence" in broken(forged(2, operation="r:9"))


def test_entry_that_is_about_something_else() -> None:
    """What does not concern the request has no place in its receipt, however genuine it is."""
    other = asked("1~r:3", "r:3")
    both = REQUEST, other, said(REQUEST), said(other), intended()
    one, two = receipt(*both), receipt(*both, approval_id="1~r:3")
    evidence = sorted({*one.evidence, *two.evidence}, key=lambda each: each.position)
    assert len(evidence) > len(one.evidence)
    assert "is not about this request" in broken(replace(one, evidence=tuple(evidence)))["drawn"]


def test_parts_that_do_not_belong_together() -> None:
    """Each check looks for itself, also where another one has found something."""
    act, request = GOOD.acts[0], GOOD.request
    nothing = replace(GOOD, acts=(replace(act, uses=()),))
    assert "rests on nothing" in broken(nothing)["uses"]
    result = replace(GOOD, acts=(replace(act, outcome=replace(act.outcome, result="1")),))
    assert "does not have its hash" in broken(result)["outcomes"]
    elsewhere = replace(request, approval_id="1~r:1#2", operation="r:9", again="changed")
    assert "does not follow" in broken(replace(GOOD, requests=(request, elsewhere)))["chain"]
    for covers in ("1", "[1]"):
        odd = replace(request, subject=f'{{"covers":{covers},"subject":1}}')
        assert "no list of objects" in broken(replace(GOOD, requests=(odd,)))["shown"]


def test_entries_in_another_order_or_left_out() -> None:
    """Neither the order nor the beginning of the journal can be made up."""
    first, *others = GOOD.evidence
    for evidence in ((first, *reversed(others)), tuple(others), (first, *others[1:]), ()):
        assert broken(replace(GOOD, evidence=evidence)).keys() & {"evidence", "drawn"}
    assert "evidence" in broken(replace(GOOD, length=2))
    assert "evidence" in broken(replace(GOOD, workflow="other"))


def test_what_does_not_fit_together_is_broken_and_breaks_nothing() -> None:
    """A receipt in which nothing refers to anything that is there."""
    act = replace(
        GOOD.acts[0], uses=(replace(GOOD.acts[0].uses[0], approval_id="no"),), effective="["
    )
    shown = replace(GOOD.request, subject="[1]", preconditions=())
    found = broken(replace(GOOD, acts=(act,), requests=(shown,)))
    assert found.keys() >= {"drawn", "subject", "shown", "times", "uses", "acts"}


def test_withheld_outcome_is_the_signers_word() -> None:
    """It is said to be open; what kind of outcome it was, and when, is the entry's."""
    found = receipt(REQUEST, said(REQUEST), intended(), paid())
    verdicts = {one.name: one.verdict for one in prove(found)}
    assert (verdicts["outcomes"], verdicts["withheld"]) == ("open", "open")
    assert set(verdicts.values()) == {"holds", "open"}
    (act,) = found.acts
    for name, lie, check in (
        ("known", "failed", "drawn"),
        ("at", T0, "drawn"),
        ("result", "1", "outcomes"),
        ("failure", "ValueError", "outcomes"),
        ("result_sha256", "", "outcomes"),
    ):
        told = replace(act, outcome=replace(act.outcome, **{name: lie}))
        assert check in broken(replace(found, acts=(told,)))


def test_version_that_is_not_shown_leaves_a_question_open() -> None:
    """The hash of an effect with a version cannot be made of what older requests show."""
    hashed = action("pay", {"amount": 5}, "v2")
    cover = Cover("pay", hashed)
    subject = subject_of(b"1", [(cover, {"amount": "5"})])
    request = replace(REQUEST, subject=subject.body, subject_sha256=subject.sha256, covers=(cover,))
    intent: EffectIntended = intended(action_sha256=hashed)
    found = receipt(request, said(request), intent)
    verdicts = {one.name: one.verdict for one in prove(found)}
    assert (verdicts["actions"], verdicts["acts"]) == ("open", "holds")
    other = replace(intent, effective=Raw(b'{"amount":6}'), operation=OperationId("r:2"))
    assert "acts" in broken(receipt(request, said(request), other))
