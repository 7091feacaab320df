"""How a workflow asks people: for a yes, or for an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Raw

from outlast.approvals.request import still_asks, subject_of
from outlast.errors import DecodeError, DefinitionError
from outlast.journal.asking import Edits, Precondition, Rung, Terms
from outlast.journal.canonical import canonical
from outlast.journal.codec import codec_for, codec_of
from outlast.journal.entry import Cover
from outlast.replay.context import ApprovalRequest, EffectRequest, context
from outlast.replay.ledger import Grant
from outlast.workflows.call import Call
from outlast.workflows.definition import Effect, Pattern, Step
from outlast.workflows.terms import NO_PRECONDITIONS, check_steps, checked, listed, of_question

T = TypeVar("T")

_APPROVAL = "an approval"
_QUESTION = "a question"


async def approval(  # noqa: PLR0913 - each one is a sentence of the request
    subject: Any,
    *,
    covers: Sequence[Call[Any] | Pattern] = (),
    role: str,
    expires_in: timedelta,
    use_within: timedelta | None = None,
    quorum: int = 1,
    four_eyes: bool = False,
    escalate: Sequence[Rung] = (),
    remind: Sequence[timedelta] = (),
    edits: Edits = "no",
    preconditions: Mapping[str, Call[Any]] = NO_PRECONDITIONS,
) -> Grant:
    """Ask a person, and wait for a yes.

    The decision is bound to a hash over subject, covers and preconditions. A covered effect happens once, with exactly these arguments
    (or fitting the pattern), begun before the grant ends; any other call of a covered effect is refused.

    Args:
        subject: What is shown: any value that can be stored.
        covers: Calls, or patterns by `effect.where(…)`, that a yes permits.
        role: Who may decide.
        expires_in: Time to decide.
        use_within: Time to begin, counted from the request; as long as `expires_in` by default, and never shorter.
        quorum: So many persons have to say yes. One no is enough.
        four_eyes: Whoever started the run may not say yes.
        escalate: Who is asked after that, when nobody has decided in time: see `Rung`.
        remind: How long after each asking those are reminded who have not decided.
        edits: Whether an approver may change the arguments of a covered call: `no`; `yes`, which is a yes to what they have made of it; or
            `second`: somebody else has to approve that. `Grant.edited` gives the call as it is then.
        preconditions: Calls of steps by name. Each is made first, in this order; what it returned is shown, and must be the same when a
            covered effect begins.

    Raises:
        ApprovalDeniedError: Somebody said no.
        ApprovalExpiredError: Nobody decided in time. Uncaught, it ends the run as cancelled.
        DefinitionError: A cover is not a call of an effect, two are the same call and `edits` allows edits, a time cannot be waited for, or
            the role's name cannot be stored.

    Example:
        ```python
        import asyncio
        from datetime import timedelta
        import outlast

        @outlast.effect(idempotent=True)
        async def refund(amount: int) -> str:
            return f"refunded {amount}"

        @outlast.workflow
        async def careful(amount: int) -> str:
            await outlast.approval({"amount": amount}, covers=[refund(amount)], role="treasurer", expires_in=timedelta(hours=72))
            return await refund(amount)

        async with outlast.open("memory://") as app:
            handle = await app.start(careful(10), id="refund-10")
            while not (asked := await app.approvals.list()):
                await asyncio.sleep(0.01)
            await app.approvals.approve("refund-10", asked[0].approval_id, seen_sha256=asked[0].subject_sha256)
            assert await handle.result() == "refunded 10"
        ```
    """
    current = context("outlast.approval")
    for one in covers:
        if isinstance(one, Call):
            one.use()
    terms = Terms(
        role=role,
        expires_in=expires_in,
        use_within=use_within,
        quorum=quorum,
        four_eyes=four_eyes,
        edits=edits,
        escalate=listed(_APPROVAL, "escalate", escalate),
        remind=listed(_APPROVAL, "remind", remind),
    )
    terms = checked(_APPROVAL, terms)
    facts = check_steps(_APPROVAL, preconditions)
    shown = codec_of(subject, where="the subject of an approval").encode(subject)
    pairs = [_cover(one) for one in covers]
    if terms.edits != "no":
        _check_different([cover for cover, _ in pairs])
    found = tuple([await _look(name, call) for name, call in facts.items()])
    effects = [_effect_of(one) for one in covers]
    asked = subject_of(
        shown,
        pairs,
        [_undone_by(one) for one in effects],
        versions=["" if one is None else one.version for one in effects],
        preconditions=found,
    )
    return await current.perform(
        ApprovalRequest(
            subject=asked.body,
            subject_sha256=asked.sha256,
            covers=tuple(cover for cover, _ in pairs),
            terms=terms,
            same_subject=lambda recorded: still_asks(recorded, bytes(asked.body)),
            preconditions=found,
            remake=lambda place, arguments: _remade(covers, place, arguments),
        )
    )


async def ask(  # noqa: PLR0913 - each one is a sentence of the request
    question: Any,
    type: type[T],  # noqa: A002 - the word for it
    *,
    role: str,
    expires_in: timedelta,
    four_eyes: bool = False,
    escalate: Sequence[Rung] = (),
    remind: Sequence[timedelta] = (),
) -> T:
    """Ask a person a question, and wait for the answer.

    An answer that is not of the type is not taken: the same is asked again, with what did not fit, until the same moment.

    Args:
        question: What is shown: any value that can be stored.
        type: Of the answer.
        role: Who may answer.
        expires_in: Time to answer.
        four_eyes: Whoever started the run may not answer.
        escalate: Who is asked after that, when nobody has answered in time: see `Rung`.
        remind: How long after each asking those are reminded who have not answered.

    Raises:
        ApprovalDeniedError: Somebody refused to answer.
        ApprovalExpiredError: Nobody answered in time. Uncaught, it ends the run as cancelled.
        DefinitionError: The type cannot be stored, a time cannot be waited for, or the role's name cannot be stored.

    Example:
        ```python
        from datetime import timedelta
        import outlast

        @outlast.workflow
        async def order() -> str:
            try:
                colour = await outlast.ask("which colour?", str, role="customer", expires_in=timedelta(milliseconds=50))
            except outlast.ApprovalExpiredError:
                colour = "grey"
            return f"ordered in {colour}"

        async with outlast.open("memory://") as app:
            assert await app.run(order(), id="o") == "ordered in grey"
        ```
    """
    current = context("outlast.ask")
    terms = of_question(
        _QUESTION,
        Terms(
            role=role,
            expires_in=expires_in,
            four_eyes=four_eyes,
            escalate=listed(_QUESTION, "escalate", escalate),
            remind=listed(_QUESTION, "remind", remind),
        ),
    )
    codec = codec_for(type, where="the answer to a question")
    shown = codec_of(question, where="a question").encode(question)
    asked = subject_of(shown, [], schema=_schema(type))
    return await current.perform(
        ApprovalRequest(
            subject=asked.body,
            subject_sha256=asked.sha256,
            covers=(),
            terms=terms,
            same_subject=lambda recorded: still_asks(recorded, bytes(asked.body)),
            kind="question",
            decode=codec.decode,
        )
    )


async def _look(name: str, call: Any) -> Precondition:
    """Return what a step finds now."""
    step: Any = getattr(call, "callee", None)
    if not isinstance(step, Step):
        raise DefinitionError(
            f"an approval has the precondition {name}={call!r:.80}, which is no call of a step",
            hint=f"give a call, as preconditions={{{name!r}: {getattr(call, 'name', 'step')}(…)}}",
        )
    arguments = step.arguments.encode(call.args, call.kwargs)
    value = canonical(await call)
    return Precondition(name, step.name, Raw(arguments), Raw(value))


def _effect_of(one: Call[Any] | Pattern) -> Effect[..., Any] | None:
    if isinstance(one, Pattern):
        return one.effect
    callee: Any = getattr(one, "callee", None)
    return cast("Effect[..., Any]", callee) if isinstance(callee, Effect) else None


def _undone_by(effect: Effect[..., Any] | None) -> str:
    compensation = None if effect is None else effect.rules.compensate
    return "" if compensation is None else compensation.name


def _cover(one: Call[Any] | Pattern) -> tuple[Cover, Any]:
    if isinstance(one, Pattern):
        return one.cover, one.fields
    effect = _effect_of(one)
    if effect is not None:
        return effect.cover(one)
    raise DefinitionError(
        f"covers= holds {one!r}, which is no call of an effect",
        hint="give calls such as send(mail), or patterns such as send.where(to=address)",
    )


def _check_different(covers: Sequence[Cover]) -> None:
    """Refuse two equal calls of which one could be edited: what was edited would stand in the place of either."""
    places: dict[tuple[str, str], int] = {}
    for place, cover in enumerate(covers):
        if not cover.action_sha256:
            continue
        former = places.setdefault((cover.effect, cover.action_sha256), place)
        if former != place:
            raise DefinitionError(
                f"covers= holds the same call of {cover.effect} twice, as {former} and as {place}: an edit could not say which one it means",
                hint='ask for each in a request of its own, or leave out edits=: with edits="no" each of them is one use',
            )


def _remade(covers: Sequence[Call[Any] | Pattern], place: int, arguments: bytes) -> EffectRequest:
    """Return a covered call with other arguments.

    Raises:
        DecodeError: They do not fit, or no call is covered there.
    """
    one = covers[place] if 0 <= place < len(covers) else None
    effect = _effect_of(one) if isinstance(one, Call) else None
    if effect is None:
        raise DecodeError(f"cover {place} is no call whose arguments could be others")
    return effect.remake(arguments)


def _schema(type: Any) -> Any:  # noqa: A002 - the word for it
    """Return the JSON schema of a type, for whoever shows the question; empty where there is none."""

    def of_other(kind: Any) -> dict[str, Any]:
        model: Any = getattr(kind, "model_json_schema", None)
        return {} if model is None else model()

    try:
        return msgspec.json.schema(type, schema_hook=of_other)
    except TypeError:
        return {}
