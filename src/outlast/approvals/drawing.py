"""Draws a receipt, twice over: from a run's journal, and from the entries that stand in the receipt itself.

Whoever has only the receipt draws it anew and comes to the same, or it was put together by hand. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Raw, Struct
from msgspec.structs import replace

from outlast.approvals.evidence import Evidence, Place, entry_of, evidence_of
from outlast.approvals.receipt import (
    Act,
    Asked,
    EditedCall,
    Fact,
    Known,
    Outcome,
    Receipt,
    State,
    Use,
    Word,
    quorum_of,
)
from outlast.errors import ReceiptError
from outlast.journal.asking import Precondition
from outlast.journal.entry import (
    ApprovalDecided,
    ApprovalEdited,
    ApprovalExpired,
    ApprovalRequested,
    ApprovalVoted,
    EffectCleared,
    EffectCompensating,
    EffectCompleted,
    EffectFailed,
    EffectInDoubt,
    EffectIntended,
    Entry,
    StampedRow,
    from_row,
)
from outlast.journal.failure import tell

_NULL = b"null"
_ENDS = frozenset({"completed", "failed", "cancelled", "continued_as_new"})
_AROUND = _ENDS | {"forked"}
"""Kinds of entries that say what became of the run."""

KNOWN: dict[str, Known] = {
    "effect_completed": "completed",
    "effect_failed": "failed",
    "effect_in_doubt": "in doubt",
    "effect_cleared": "not yet",
    "effect_compensating": "undone by hand",
}
"""What is known of an effect after an entry of this kind."""


def requests_in(journal: Iterable[StampedRow], *, every: bool = False) -> list[str]:
    """Return the ids of a journal's requests: the last one of each operation, or every one."""
    found: dict[str, str] = {}
    for stamped in journal:
        if stamped.row.kind == "approval_requested":
            entry = from_row(stamped.row)
            if isinstance(entry, ApprovalRequested):
                found[entry.approval_id if every else entry.operation] = entry.approval_id
    return list(found.values())


def receipt_of(
    journal: Sequence[StampedRow],
    place: Place,
    approval_id: str,
    *,
    is_withdrawn: bool = False,
    with_results: bool = False,
) -> Receipt:
    """Return the receipt of a request.

    Args:
        journal: All of one generation, from its first entry.
        is_withdrawn: The store says that nobody waits for the request any more.
        with_results: What effects returned or raised stands in it too, and not only its hash.

    Raises:
        ReceiptError: The journal holds no such request.
        DecodeError: An entry cannot be read.
    """
    entries = [from_row(one.row) for one in journal]
    drawn = _drawn_from(
        [(one.row.kind, each) for one, each in zip(journal, entries, strict=True)], approval_id
    )
    kept = [(journal[position], entries[position]) for position in drawn]
    evidence = tuple(evidence_of(place, one, with_results=with_results) for one, _ in kept)
    outcomes = {
        one.row.seq: replace(outcome, result=outcome.result if with_results else "",
                             failure=outcome.failure if with_results else "")
        for one, entry in kept
        if (outcome := _outcome(entry, one.row.seq, one.at)) is not None
    }  # fmt: skip
    claims = Claims(
        workflow=journal[0].row.name if journal else "",
        length=len(journal),
        is_withdrawn=is_withdrawn,
        outcomes=outcomes,
    )
    return draw(place, approval_id, evidence, claims)


class Claims(Struct, frozen=True):
    """What a receipt says that does not follow from the entries whose bytes stand in it.

    Args:
        outcomes: By the position of the entry.
    """

    workflow: str
    length: int
    is_withdrawn: bool
    outcomes: Mapping[int, Outcome]


def claims_of(receipt: Receipt) -> Claims:
    """Return what a receipt claims; of outcomes only those whose bytes are withheld."""
    withheld = {one.position for one in receipt.evidence if not one.body}
    return Claims(
        receipt.workflow,
        receipt.length,
        receipt.is_withdrawn,
        {
            act.outcome.position: act.outcome
            for act in receipt.acts
            if act.outcome.position in withheld
        },
    )


def draw(place: Place, approval_id: str, evidence: tuple[Evidence, ...], claims: Claims) -> Receipt:
    """Return the receipt that these entries make.

    Raises:
        ReceiptError: None of them is the request.
        DecodeError: One cannot be read.
    """
    found = [(one, entry_of(one)) for one in evidence]
    drawing = _Drawing(found, claims)
    asked = drawing.requests()
    if not asked or asked[-1].approval_id != approval_id:
        raise unknown(place.run_id, approval_id)
    return Receipt(
        tenant=place.tenant,
        run_id=place.run_id,
        generation=place.generation,
        workflow=claims.workflow,
        approval_id=approval_id,
        operation=asked[-1].operation,
        state=asked[-1].state,
        requests=asked,
        acts=drawing.acts({one.approval_id for one in asked}),
        length=claims.length,
        evidence=evidence,
        forks=tuple(one.position for one in evidence if one.kind == "forked"),
        is_withdrawn=claims.is_withdrawn,
    )


def concerns_all(evidence: Sequence[Evidence], approval_id: str) -> bool:
    """Whether each of these entries belongs to the receipt of a request. Those that are withheld are taken at their kind.

    Raises:
        DecodeError: One cannot be read.
    """
    entries = [(one.kind, entry_of(one) or _Withheld(one.operation)) for one in evidence]
    return len(_drawn_from(entries, approval_id)) == len(entries)


def unknown(run_id: str, approval_id: str) -> ReceiptError:
    """Return the error that there is no such request."""
    return ReceiptError(
        f"the run's journal holds no request {approval_id}",
        reason="unknown",
        run=run_id,
        hint=f"see `outlast approvals list --all --run {run_id}`",
    )


class _Withheld(Struct, frozen=True):
    """An entry whose bytes are not there."""

    operation: str


def _drawn_from(entries: Sequence[tuple[str, Entry | _Withheld]], approval_id: str) -> list[int]:
    """Return which entries concern a request: their places among all, in order.

    Args:
        entries: Each with its kind.
    """
    chain = _chain(entries, approval_id)
    begun = _begun(entries, chain)
    never = len(entries)
    first = min(chain.values(), default=never)

    def concerns(place: int, kind: str, entry: Entry | _Withheld) -> bool:
        if isinstance(entry, ApprovalRequested):
            return chain.get(entry.approval_id) == place
        if isinstance(entry, ApprovalVoted | ApprovalEdited | ApprovalDecided | ApprovalExpired):
            return place > chain.get(entry.approval_id, never)
        if isinstance(entry, EffectIntended):
            return begun.get(entry.operation) == place
        if kind in KNOWN:
            return place > begun.get(getattr(entry, "operation", ""), never)
        return kind == "started" or (place > first and kind in _AROUND)

    return [place for place, (kind, entry) in enumerate(entries) if concerns(place, kind, entry)]


def _chain(entries: Sequence[tuple[str, Entry | _Withheld]], approval_id: str) -> dict[str, int]:
    """Return a request and those that it follows, each with its place among the entries."""
    chain: dict[str, int] = {}
    # Beside each other one effect may be asked for by its declaration and by a policy.
    of, is_wanted = ("", ""), True
    for place in reversed(range(len(entries))):
        entry = entries[place][1]
        if not isinstance(entry, ApprovalRequested):
            continue
        this = entry.operation, entry.source
        is_next = this == of if chain else entry.approval_id == approval_id
        if is_wanted and is_next and entry.approval_id not in chain:
            chain[entry.approval_id] = place
            of, is_wanted = this, bool(entry.again)
    return chain


def _begun(
    entries: Sequence[tuple[str, Entry | _Withheld]], ids: Mapping[str, int]
) -> dict[str, int]:
    """Return the operations that spent one of these requests, and those that undo such a one, with the places of their intents."""
    begun: dict[str, int] = {}
    for place, (_, entry) in enumerate(entries):
        if isinstance(entry, EffectIntended) and (
            _uses(entry, ids.keys()) or entry.compensates in begun
        ):
            begun[entry.operation] = place
    return begun


def _uses(intent: EffectIntended, ids: Any) -> tuple[Use, ...]:
    """Return what an intent has spent of these requests: the grant of the workflow, and what was asked for the call itself."""
    grant = intent.grant
    uses = [] if grant is None else [Use(grant.approval_id, grant.cover)]
    uses += [Use(one, 0) for one in intent.asked]
    return tuple(one for one in uses if one.approval_id in ids)


class _Drawing:
    """Draws the parts of a receipt from its entries.

    Args:
        found: Each entry; None where it is withheld.
    """

    def __init__(self, found: list[tuple[Evidence, Entry | None]], claims: Claims) -> None:
        self._found = found
        self._claims = claims
        self._is_over = any(one.kind in _ENDS for one, _ in found)

    def requests(self) -> tuple[Asked, ...]:
        """Return every request, oldest first."""
        asked = [(one, each) for one, each in self._found if isinstance(each, ApprovalRequested)]
        ids = [each.approval_id for _, each in asked]
        return tuple(
            self._asked(one, each, is_last=each.approval_id == ids[-1]) for one, each in asked
        )

    def acts(self, ids: set[str]) -> tuple[Act, ...]:
        """Return what was done under these requests."""
        return tuple(
            self._act(one, each, _uses(each, ids))
            for one, each in self._found
            if isinstance(each, EffectIntended)
        )

    def _asked(self, one: Evidence, entry: ApprovalRequested, *, is_last: bool) -> Asked:
        words = tuple(word for each in self._found if (word := _word(*each, entry.approval_id)))
        state, closed_at = self._state(entry, words, is_last=is_last)
        return Asked(
            position=one.position,
            approval_id=entry.approval_id,
            operation=entry.operation,
            kind=entry.kind,
            role=entry.role,
            subject=_text(entry.subject),
            subject_sha256=entry.subject_sha256,
            asked_at=one.at,
            expires_at=entry.expires_at,
            use_by=entry.use_by,
            state=state,
            covers=entry.covers,
            terms=entry.terms,
            requesters=entry.requesters,
            preconditions=tuple(map(_fact, entry.preconditions)),
            requested=_value(entry.requested),
            effective=_value(entry.effective),
            source=entry.source,
            policy_version=entry.policy_version,
            rule=entry.rule,
            rung=entry.rung,
            again=entry.again,
            votes=entry.votes,
            barred=entry.barred,
            words=words,
            closed_at=closed_at,
        )

    def _state(
        self, entry: ApprovalRequested, words: tuple[Word, ...], *, is_last: bool
    ) -> tuple[State, int | None]:
        """Return what became of a request, and where that stands."""
        for word in words:
            if word.said == "edit":
                return "edited", word.position
            if word.is_last:
                return ("approved" if word.said == "yes" else "denied"), word.position
        for one, each in self._found:
            if isinstance(each, ApprovalExpired) and each.approval_id == entry.approval_id:
                return "expired", one.position
        if entry.votes and len(entry.votes) >= quorum_of(entry.terms):
            return "approved", None
        is_left = self._is_over or self._claims.is_withdrawn or not is_last
        return ("withdrawn" if is_left else "pending"), None

    def _act(self, one: Evidence, entry: EffectIntended, uses: tuple[Use, ...]) -> Act:
        effective, requested = _text(entry.effective), _text(entry.requested)
        return Act(
            position=one.position,
            operation=entry.operation,
            effect=entry.name,
            key=entry.key,
            action_sha256=entry.action_sha256,
            effective=effective,
            intended_at=one.at,
            outcome=self._outcome_of(entry.operation),
            uses=uses,
            requested="" if requested == effective else requested,
            requested_sha256=entry.requested_sha256,
            number=entry.number,
            checked_at=entry.checked_at,
            policy_version=entry.policy_version,
            asked=entry.asked,
            compensates=entry.compensates,
        )

    def _outcome_of(self, operation: str) -> Outcome:
        """Return the last that is known of an operation."""
        last = Outcome()
        for one, entry in self._found:
            if one.operation != operation or one.kind not in KNOWN:
                continue
            drawn = None if entry is None else _outcome(entry, one.position, one.at)
            last = drawn or _as_told(one, self._claims.outcomes.get(one.position, Outcome()))
        return last


def _as_told(one: Evidence, claimed: Outcome) -> Outcome:
    """Return an outcome whose entry is withheld: kind, place and time are the entry's own, whatever is claimed of it."""
    return replace(claimed, known=KNOWN[one.kind], position=one.position, at=one.at)


def _outcome(entry: Entry, position: int, at: Any) -> Outcome | None:
    match entry:
        case EffectCompleted(value=value, source=source, by=by, reason=reason):
            known = Outcome("completed", position, at, source, by, reason)
            text = _text(value)
            return replace(
                known, result_sha256=hashlib.sha256(text.encode()).hexdigest(), result=text
            )
        case EffectFailed(failure=failure, source=source, by=by, reason=reason):
            known = Outcome("failed", position, at, source, by, reason, unknown=entry.unknown)
            return replace(known, failure=tell(failure))
        case EffectInDoubt(why=why):
            return Outcome("in doubt", position, at, failure=why)
        case EffectCleared(by=by, reason=reason):
            return Outcome("not yet", position, at, "operator", by, reason)
        case EffectCompensating(by=by, reason=reason):
            return Outcome("undone by hand", position, at, "operator", by, reason)
        case _:
            return None


def _word(one: Evidence, entry: Entry | None, approval_id: str) -> Word | None:
    """Return what a person said, where the entry says that of this request."""
    match entry:
        case ApprovalVoted() | ApprovalEdited() | ApprovalDecided() if (
            entry.approval_id == approval_id
        ):
            pass
        case _:
            return None
    is_vote = isinstance(entry, ApprovalVoted)
    if isinstance(entry, ApprovalDecided):
        return Word(
            one.position, approval_id, entry.operation, "yes" if entry.approved else "no", entry.by,
            entry.decided_at, entry.behalf, entry.reason, entry.subject_sha256, is_last=True,
            answer=_value(entry.answer),
        )  # fmt: skip
    return Word(
        one.position, approval_id, entry.operation, "yes" if is_vote else "edit", entry.by,
        entry.at, entry.behalf, entry.reason,
        edits=() if isinstance(entry, ApprovalVoted) else tuple(
            EditedCall(edit.cover, _text(edit.arguments)) for edit in entry.edits
        ),
    )  # fmt: skip


def _fact(one: Precondition) -> Fact:
    return Fact(one.name, one.step, _text(one.arguments), _text(one.value))


def _text(raw: Raw) -> str:
    return bytes(raw).decode()


def _value(raw: Raw) -> str:
    return "" if bytes(raw) == _NULL else _text(raw)
