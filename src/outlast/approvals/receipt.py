"""What a receipt says: who approved what, when, against which hash, and what the agent then did.

Nothing stands in it that is not in the run's journal, but that a request was withdrawn, which no entry says. JSON that was hashed or
compared is kept as text, byte by byte. `outlast.approvals.drawing` makes it, `outlast.approvals.proof` holds it to what it says.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Struct

from outlast.approvals.evidence import Evidence, Place
from outlast.errors import ReceiptError
from outlast.journal.asking import AskedAgain, AskedFor, Moment, Terms, Vote
from outlast.journal.entry import ENTRY_NESTING, Cover
from outlast.journal.parse import NotJsonError, parse_as

PURPOSE = "outlast approval receipt"
"""What a receipt is signed for."""

State: TypeAlias = Literal["pending", "approved", "denied", "edited", "expired", "withdrawn"]
Known: TypeAlias = Literal["not yet", "completed", "failed", "in doubt", "undone by hand"]


class Fact(Struct, frozen=True):
    """A precondition, as it was when it was asked.

    Args:
        arguments: JSON of the arguments of the step that looked.
        value: JSON of what it returned.
    """

    name: str
    step: str
    arguments: str
    value: str


class EditedCall(Struct, frozen=True):
    """What an approver wanted one covered call to be.

    Args:
        arguments: JSON object by parameter name.
    """

    cover: int
    arguments: str


class Word(Struct, frozen=True, omit_defaults=True):
    """What a person said of a request.

    Args:
        position: Of the journal's entry that says so.
        approval_id: Of the request, as that entry names it; so is `operation`.
        at: When it was said, by the store's clock.
        behalf: Whose delegate they were.
        subject_sha256: The hash that a decision carries; empty for a vote or an edit, which the store has compared.
        answer: JSON of the answer to a question.
    """

    position: int
    approval_id: str
    operation: str
    said: Literal["yes", "no", "edit"]
    by: str
    at: Moment
    behalf: str = ""
    reason: str = ""
    subject_sha256: str = ""
    is_last: bool = False
    edits: tuple[EditedCall, ...] = ()
    answer: str = ""


class Asked(Struct, frozen=True, omit_defaults=True):
    """A request.

    Args:
        subject: JSON of all that was shown.
        subject_sha256: Its hash.
        terms: How it was to be decided; None in journals of an older library: one yes of that role.
        votes: Who had said yes when it was made, and of a decision that sticks on which request of which run; `barred` may not.
        closed_at: Position of the entry that ended it; None while there is none.
    """

    position: int
    approval_id: str
    operation: str
    kind: AskedFor
    role: str
    subject: str
    subject_sha256: str
    asked_at: Moment
    expires_at: Moment
    use_by: Moment
    state: State
    covers: tuple[Cover, ...] = ()
    terms: Terms | None = None
    requesters: tuple[str, ...] = ()
    preconditions: tuple[Fact, ...] = ()
    requested: str = ""
    effective: str = ""
    source: str = ""
    policy_version: str = ""
    rule: str = ""
    rung: int = 0
    again: AskedAgain = ""
    votes: tuple[Vote, ...] = ()
    barred: tuple[str, ...] = ()
    words: tuple[Word, ...] = ()
    closed_at: int | None = None


class Use(Struct, frozen=True):
    """Which cover of which request an act has spent."""

    approval_id: str
    cover: int


class Outcome(Struct, frozen=True, omit_defaults=True):
    """What became of an act, as far as the journal says.

    Args:
        known: `not yet` while nothing is recorded; so too after somebody established that it had not happened.
        source: How it is known: `attempt`, `probe`, `operator`, `late` or `fork`.
        unknown: It failed, and may have happened.
        result_sha256: SHA-256 of the JSON that it returned, byte by byte.
        result: That JSON; empty where it is withheld.
        failure: What it raised; empty where that is withheld.
    """

    known: Known = "not yet"
    position: int | None = None
    at: Moment | None = None
    source: str = ""
    by: str = ""
    reason: str = ""
    unknown: bool = False
    result_sha256: str = ""
    result: str = ""
    failure: str = ""


class Act(Struct, frozen=True, omit_defaults=True):
    """What the agent did: an effect that was intended on the strength of the approval, or that undoes such a one.

    Args:
        uses: What it has spent; nothing for what undoes another one, which `compensates` names.
        effective: JSON object of the arguments that ran.
        requested: The same as the workflow gave them, where that differs.
        intended_at: When it began, by the store's clock.
        checked_at: When it was last asked whether who approved may do so.
    """

    position: int
    operation: str
    effect: str
    key: str
    action_sha256: str
    effective: str
    intended_at: Moment
    outcome: Outcome
    uses: tuple[Use, ...] = ()
    requested: str = ""
    requested_sha256: str = ""
    number: int = 1
    checked_at: Moment | None = None
    policy_version: str = ""
    asked: tuple[str, ...] = ()
    compensates: str = ""


class Receipt(Struct, frozen=True, omit_defaults=True):
    """Who approved what, when, against which hash, and what was done then.

    Args:
        version: Of this form.
        approval_id: The request that it is about: the last one of `requests`.
        state: Of that one: `pending`, `approved`, `denied`, `edited`, `expired` or `withdrawn`.
        requests: That one, and those before it that were escalated, edited or asked anew; oldest first.
        acts: What was done under it, in order.
        length: So many entries the journal had.
        forks: Positions at which the run was made a fork: what stands before was written by its origin.
        evidence: The entries that all this is drawn from.
        is_withdrawn: The store said that nobody waits for it any more.

    Example:
        ```python
        import asyncio
        from datetime import timedelta

        import outlast

        @outlast.effect(idempotent=True)
        async def pay(amount: int) -> str:
            return "paid"

        @outlast.workflow
        async def bill(amount: int) -> str:
            await outlast.approval("pay it", covers=[pay(amount)], role="boss", expires_in=timedelta(hours=1))
            return await pay(amount)

        async with outlast.open("memory://") as app:
            handle = await app.start(bill(5), id="bill-7")
            while not (waiting := await app.approvals.list()):
                await asyncio.sleep(0.01)
            await app.approvals.approve(
                "bill-7", waiting[0].approval_id, seen_sha256=waiting[0].subject_sha256
            )
            assert await handle.result() == "paid"
            receipt = await app.approvals.receipt("bill-7")
            assert receipt.state == "approved"
            (act,) = receipt.acts
            assert (act.effect, act.effective, act.outcome.known) == ("pay", '{"amount":5}', "completed")
        ```
    """

    tenant: str
    run_id: str
    generation: int
    workflow: str
    approval_id: str
    operation: str
    state: State
    requests: tuple[Asked, ...]
    acts: tuple[Act, ...]
    length: int
    evidence: tuple[Evidence, ...]
    forks: tuple[int, ...] = ()
    is_withdrawn: bool = False
    version: Annotated[int, msgspec.Meta(ge=1, le=1)] = 1

    @property
    def place(self) -> Place:
        """Whose journal it is drawn from."""
        return Place(self.tenant, self.run_id, self.generation)

    @property
    def request(self) -> Asked:
        """The request that it is about."""
        return self.requests[-1]


def quorum_of(terms: Terms | None) -> int:
    """Return how many persons have to say yes."""
    return 1 if terms is None else max(terms.quorum, 1)


def read_receipt(text: bytes) -> Receipt:
    """Return the receipt of a JSON text. It is believed in nothing: see `outlast.approvals.proof`.

    Raises:
        ReceiptError: It is none.
    """
    try:
        receipt = parse_as(_receipts(), text, nesting=ENTRY_NESTING)
    except NotJsonError as error:
        raise ReceiptError(
            f"this is no receipt of a known form: {error}",
            reason="form",
            hint="verify it with the version of Outlast that wrote it, or a newer one",
        ) from None
    if not receipt.requests:
        raise ReceiptError("the receipt is of no request", reason="form")
    return receipt


@cache
def _receipts() -> msgspec.json.Decoder[Receipt]:
    """Made when the first receipt is read."""
    return msgspec.json.Decoder(Receipt)
