"""Holds a receipt to what it says, without a store: each check by name, with what was found.

A signature says who signed a receipt; this says whether it hangs together, so that one which was put together wrongly is noticed whoever
signed it. What only the store or the code can tell is said to be open, and never taken for granted.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, cast

from msgspec import Struct

from outlast.approvals.drawing import claims_of, concerns_all, draw
from outlast.approvals.evidence import first_broken
from outlast.approvals.likeness import Likeness, likeness, of_objects
from outlast.approvals.receipt import Act, Asked, Fact, Receipt, Word, quorum_of
from outlast.errors import OutlastError
from outlast.journal.canonical import canonical, sha256_of
from outlast.journal.entry import ENTRY_NESTING, Cover
from outlast.journal.parse import NotJsonError, parse
from outlast.journal.plan import printable

Verdict: TypeAlias = Literal["holds", "broken", "open"]


class Check(Struct, frozen=True):
    """What was found of one question.

    Args:
        name: Of the question; always the same.
        verdict: `open` where what would answer it does not stand in the receipt.
        text: What was asked, or what is wrong.
    """

    name: str
    verdict: Verdict
    text: str


class _BrokenError(Exception):
    """What is wrong with a receipt, in words."""


def prove(receipt: Receipt) -> list[Check]:
    """Return every check of a receipt, in order. It holds when none is `broken`.

    Example:
        ```python
        from outlast.approvals.proof import prove
        from outlast.approvals.receipt import Receipt

        def is_sound(receipt: Receipt) -> bool:
            return all(check.verdict != "broken" for check in prove(receipt))
        ```
    """
    return [_judged(name, question, ask, receipt) for name, question, ask in CHECKS]


def _judged(
    name: str, question: str, ask: Callable[[Receipt], str | None], receipt: Receipt
) -> Check:
    try:
        left_open = ask(receipt)
    except _BrokenError as broken:
        return Check(name, "broken", str(broken))
    except (NotJsonError, OutlastError, LookupError, TypeError, ValueError) as error:
        # What was put together by hand need not even fit together.
        return Check(name, "broken", f"it cannot be read: {printable(str(error))}")
    return Check(name, "open", left_open) if left_open else Check(name, "holds", question)


def _evidence(receipt: Receipt) -> str | None:
    if what := first_broken(receipt.place, receipt.evidence):
        raise _BrokenError(what)
    if receipt.evidence[-1].position >= receipt.length:
        raise _BrokenError("an entry stands behind the end of the journal")
    first = receipt.evidence[0]
    began = first.kind, first.position, first.operation, first.name
    if began != ("started", 0, "", receipt.workflow):
        raise _BrokenError("the beginning of the run is missing, or of another workflow")
    return None


def _withheld(receipt: Receipt) -> str | None:
    found = [str(one.position) for one in receipt.evidence if not one.body]
    return (
        f"of the entries {', '.join(found)} only hashes stand in it, to be held against the store"
    )


def _drawn(receipt: Receipt) -> str | None:
    if not concerns_all(receipt.evidence, receipt.approval_id):
        raise _BrokenError("an entry stands in it that is not about this request")
    again = draw(receipt.place, receipt.approval_id, receipt.evidence, claims_of(receipt))
    for name in Receipt.__struct_fields__:
        if getattr(again, name) != getattr(receipt, name):
            raise _BrokenError(f"its {name} are not what its entries say")
    return None


def _subjects(receipt: Receipt) -> str | None:
    for one in receipt.requests:
        if hashlib.sha256(one.subject.encode()).hexdigest() != one.subject_sha256:
            raise _BrokenError(f"what request {one.approval_id} shows does not have its hash")
    return None


def _shown(receipt: Receipt) -> str | None:
    for one in receipt.requests:
        body = _object(one.subject)
        shown = [_cover_in(each) for each in _list(body.get("covers"))]
        if shown != [_cover_as_shown(each) for each in one.covers]:
            raise _BrokenError(f"request {one.approval_id} covers something else than it shows")
        facts = {fact.name: fact for fact in one.preconditions}
        told: dict[str, Any] = body.get("preconditions") or {}
        if told.keys() != facts.keys() or any(_differs(told[name], facts[name]) for name in facts):
            raise _BrokenError(f"request {one.approval_id} rests on other facts than it shows")
    return None


def _actions(receipt: Receipt) -> str | None:
    unshown: list[str] = []
    for one in receipt.requests:
        for each in _list(_object(one.subject).get("covers")):
            if each.get("kind") != "call" or _action(each) == each.get("action_sha256"):
                continue
            if "version" in each:
                raise _BrokenError(
                    f"a call that request {one.approval_id} shows does not have its hash"
                )
            unshown.append(one.approval_id)
    if unshown:
        return f"request {unshown[0]} does not show the version of the effect, of which the hash is made too"
    return None


def _words(receipt: Receipt) -> str | None:
    for one in receipt.requests:
        for word in one.words:
            if word.is_last and word.subject_sha256 != one.subject_sha256:
                raise _BrokenError(
                    f"{word.by} decided on another hash than that of {one.approval_id}"
                )
            if (word.approval_id, word.operation) != (one.approval_id, one.operation):
                raise _BrokenError(
                    f"what {word.by} said is of another request than {one.approval_id}"
                )
    return None


def _terms(receipt: Receipt) -> str | None:
    for one in receipt.requests:
        if one.terms is not None and (
            not 0 <= one.rung <= len(one.terms.escalate)
            or one.terms.rung(one.rung).role != one.role
        ):
            raise _BrokenError(f"request {one.approval_id} is for another role than its terms name")
        for word in one.words:
            _may(one, word)
        if one.state == "approved":
            _enough(one)
    return None


def _may(one: Asked, word: Word) -> None:
    """Whether this person may say so: anybody may say no."""
    persons = {word.by, word.behalf} - {""}
    if word.said == "no":
        return
    if word.said == "edit" and (one.terms is None or one.terms.edits == "no"):
        raise _BrokenError(f"{word.by} edited request {one.approval_id}, which may not be edited")
    own = set(one.requesters) if one.terms is not None and one.terms.four_eyes else set[str]()
    if one.terms is not None and one.terms.four_eyes and not own - {""}:
        raise _BrokenError(f"nobody knows who asked for {one.approval_id}, which wants four eyes")
    if persons & (own | set(one.barred)):
        raise _BrokenError(
            f"{word.by} may not decide on request {one.approval_id}, where other eyes are wanted"
        )


def _enough(one: Asked) -> None:
    """Whether so many different persons said yes."""
    votes = [{vote.by, vote.behalf} - {""} for vote in one.votes]
    if len(votes) < quorum_of(one.terms):
        votes += [{word.by, word.behalf} - {""} for word in one.words if word.said == "yes"]
    persons = [person for vote in votes for person in vote]
    if len(set(persons)) != len(persons):
        raise _BrokenError(f"one person said yes twice to request {one.approval_id}")
    if len(votes) < quorum_of(one.terms):
        raise _BrokenError(
            f"{len(votes)} said yes to request {one.approval_id}, and {quorum_of(one.terms)} had to"
        )


def _chain(receipt: Receipt) -> str | None:
    first, *_ = receipt.requests
    for one in receipt.requests:
        _answered_before(one)
    if first.again:
        raise _BrokenError(f"request {first.approval_id} follows another one, which is missing")
    for before, after in zip(receipt.requests, receipt.requests[1:], strict=False):
        if (before.operation, before.source) != (after.operation, after.source) or not after.again:
            raise _BrokenError(f"request {after.approval_id} does not follow {before.approval_id}")
        if after.again == "escalated" and (before.state, after.rung) != (
            "expired",
            before.rung + 1,
        ):
            raise _BrokenError(f"request {after.approval_id} escalates one that had not expired")
        if after.again == "edited" and before.state != "approved":
            _follows_edit(before, after)
        elif after.votes and not is_answered_before(after):
            raise _BrokenError(f"request {after.approval_id} begins with a yes that nobody gave")
    if first.votes and not is_answered_before(first):
        raise _BrokenError(f"request {first.approval_id} begins with a yes that nobody gave")
    return None


def is_answered_before(one: Asked) -> bool:
    """Whether a request was answered, when it was made, by a decision of before that sticks."""
    return any(vote.sticky for vote in one.votes)


def _answered_before(one: Asked) -> None:
    """Whether the yes with which a request begins may be one to an earlier request."""
    if not is_answered_before(one):
        return
    may = one.terms is not None and one.terms.sticky != "no" and one.terms.quorum <= 1
    if not may or one.preconditions or len(one.votes) != 1:
        raise _BrokenError(f"request {one.approval_id} is answered by what may not stick")
    vote = one.votes[0]
    if not (vote.run and vote.approval) or vote.at > one.asked_at:
        raise _BrokenError(f"request {one.approval_id} is answered by a decision on nothing before")
    said = [(word.said, word.by, word.behalf, word.at) for word in one.words]
    if said != [("yes", vote.by, vote.behalf, vote.at)]:
        raise _BrokenError(f"request {one.approval_id} is answered otherwise than decided before")
    _may(one, one.words[0])


def _sticky(receipt: Receipt) -> str | None:
    found = [(one, vote) for one in receipt.requests for vote in one.votes if vote.sticky]
    if not found:
        return None
    one, vote = found[-1]
    return (
        f"{one.approval_id} was answered by decision {vote.sticky}, which {vote.by} made on request {vote.approval} "
        f"of run {vote.run}: the receipt of that says what they saw"
    )


def _follows_edit(before: Asked, after: Asked) -> None:
    """Whether an edited request begins with the yes of its editor, or bars them, as its terms say."""
    edit = next((word for word in before.words if word.said == "edit"), None)
    if edit is None:
        raise _BrokenError(f"request {after.approval_id} follows an edit that nobody made")
    votes = [(vote.by, vote.behalf) for vote in after.votes]
    barred = {edit.by, edit.behalf} - {""}
    is_second = bool(after.preconditions or before.preconditions) or (
        before.terms is not None and before.terms.edits == "second"
    )
    wanted = (
        not votes and barred <= set(after.barred)
        if is_second
        else votes == [(edit.by, edit.behalf)]
    )
    if not wanted:
        raise _BrokenError(
            f"request {after.approval_id} does not begin as the edit of {edit.by} wants it"
        )


def _times(receipt: Receipt) -> str | None:
    by_id = {one.approval_id: one for one in receipt.requests}
    for one in receipt.requests:
        for word in one.words:
            if word.at >= one.expires_at or word.position <= one.position:
                raise _BrokenError(
                    f"{word.by} decided on request {one.approval_id} when it could not be"
                )
    for act in receipt.acts:
        for use in act.uses:
            one = by_id[use.approval_id]
            since = one.position if one.closed_at is None else one.closed_at
            if act.intended_at >= one.use_by or act.position <= since:
                raise _BrokenError(
                    f"{act.operation} began outside the time that request {one.approval_id} gave"
                )
    return None


def _uses(receipt: Receipt) -> str | None:
    by_id = {one.approval_id: one for one in receipt.requests}
    spent = Counter(use for act in receipt.acts for use in act.uses)
    for act in receipt.acts:
        for use in act.uses:
            one = by_id[use.approval_id]
            if one.state != "approved":
                raise _BrokenError(
                    f"{act.operation} rests on request {one.approval_id}, which was not approved"
                )
            if not 0 <= use.cover < len(one.covers) or spent[use] > 1:
                raise _BrokenError(
                    f"{act.operation} spent a cover that was spent, or that is not there"
                )
            if any(one.position < fork < act.position for fork in receipt.forks):
                raise _BrokenError(f"{act.operation} of a fork rests on an approval of its origin")
        if not act.uses and act.compensates not in {each.operation for each in receipt.acts}:
            raise _BrokenError(f"{act.operation} rests on nothing in this receipt")
    return None


def _acts(receipt: Receipt) -> str | None:
    by_id = {one.approval_id: one for one in receipt.requests}
    left_open = [
        word
        for act in receipt.acts
        for use in act.uses
        if (word := _act(act, by_id[use.approval_id], use.cover))
    ]
    return left_open[0] if left_open else None


def _act(act: Act, one: Asked, number: int) -> str:
    """Return what of an act only the code could tell, after it was held against its cover."""
    cover, shown = one.covers[number], _list(_object(one.subject).get("covers"))[number]
    if act.effect != cover.effect:
        raise _BrokenError(f"{act.operation} is a {act.effect}, and a {cover.effect} was approved")
    if cover.action_sha256 and act.action_sha256 != cover.action_sha256:
        raise _BrokenError(f"{act.operation} is another action than the approved one")
    match _arguments(act, cover, shown):
        case "other":
            raise _BrokenError(f"{act.operation} ran with other arguments than were approved")
        case "unknown":
            return f"only the code can tell whether the arguments of {act.operation} are those of its hash"
        case "same":
            return ""


def _arguments(act: Act, cover: Cover, shown: dict[str, Any]) -> Likeness:
    """Return whether the arguments that ran are those that were shown, or fit the pattern."""
    kept = _object(act.effective)
    if not cover.action_sha256:
        fields = {name: parse(text) for name, text in cover.where.items()}
        return of_objects({name: kept[name] for name in fields if name in kept}, fields)
    action = {"effect": act.effect, "version": shown.get("version", ""), "arguments": kept}
    if sha256_of(action) == act.action_sha256:
        return "same"
    return likeness(kept, shown.get("arguments"))


def _outcomes(receipt: Receipt) -> str | None:
    withheld = {one.position for one in receipt.evidence if not one.body}
    for act in receipt.acts:
        told = act.outcome
        if told.result and hashlib.sha256(told.result.encode()).hexdigest() != told.result_sha256:
            raise _BrokenError(f"the result of {act.operation} does not have its hash")
        if told.position in withheld and (told.result or told.failure):
            raise _BrokenError(
                f"what {act.operation} returned or raised is told, and its entry withheld"
            )
        if told.known == "completed" and not told.result_sha256:
            raise _BrokenError(f"{act.operation} is completed, and without the hash of its result")
    if any(act.outcome.position in withheld for act in receipt.acts):
        return "what the effects returned or raised is withheld, so it is as the signer says"
    return None


CHECKS: tuple[tuple[str, str, Callable[[Receipt], str | None]], ...] = (
    ("evidence", "every entry is one of this run, place and time", _evidence),
    ("withheld", "", _withheld),
    ("drawn", "the receipt says what its entries say", _drawn),
    ("chain", "each request follows the one before", _chain),
    ("sticky", "whoever decided saw this very request", _sticky),
    ("subject", "what was shown has the hash of its request", _subjects),
    ("shown", "what is covered is what was shown", _shown),
    ("actions", "every call that was shown has its hash", _actions),
    ("decision", "every decision carries the hash of its request", _words),
    ("terms", "those who decided may, and are enough", _terms),
    ("times", "decided in time, and begun in time", _times),
    ("uses", "each act rests on a yes of its own", _uses),
    ("acts", "what was done is what was approved", _acts),
    ("outcomes", "what came of it has its hash", _outcomes),
)


def _object(text: str) -> dict[str, Any]:
    data = parse(text, nesting=ENTRY_NESTING)
    if not isinstance(data, dict):
        raise _BrokenError("a JSON object is expected, and something else is there")
    return cast("dict[str, Any]", data)


def _list(value: Any) -> list[dict[str, Any]]:
    found = cast("list[Any]", value) if isinstance(value, list) else []
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in found):
        raise _BrokenError("the covers that are shown are no list of objects")
    return found


def _cover_in(shown: dict[str, Any]) -> tuple[Any, ...]:
    """Return what a cover that is shown is of; of a pattern with its fields."""
    hash_ = shown.get("action_sha256")
    fields: Any = shown.get("arguments")
    if shown.get("kind") == "call":
        return shown.get("effect"), hash_, ""
    return shown.get("effect"), hash_, canonical(fields)


def _cover_as_shown(cover: Cover) -> tuple[Any, ...]:
    if cover.action_sha256:
        return cover.effect, cover.action_sha256, ""
    return cover.effect, "", canonical({name: parse(text) for name, text in cover.where.items()})


def _action(shown: dict[str, Any]) -> str:
    return sha256_of(
        {
            "effect": shown.get("effect"),
            "version": shown.get("version", ""),
            "arguments": shown.get("arguments"),
        }
    )


def _differs(shown: Any, fact: Fact) -> bool:
    """Whether a fact is not what was shown of it."""
    kept = {"step": fact.step, "arguments": parse(fact.arguments), "value": parse(fact.value)}
    return likeness(kept, shown) == "other" or not isinstance(shown, dict)
