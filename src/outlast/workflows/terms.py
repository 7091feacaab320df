"""How a person is asked, as an author says it: checked in one place, where it is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from inspect import Parameter
from types import MappingProxyType
from typing import Any, get_args

from msgspec.structs import replace

from outlast.effects.key import check_name
from outlast.errors import DefinitionError
from outlast.journal.asking import REACHES, Edits, Rung, Sticks, Terms
from outlast.workflows.declared import refuse

_LONGEST = timedelta(days=36_500)
_MOST = 100
"""So many rungs, reminders and votes are no mistake yet."""

NO_PRECONDITIONS: Mapping[str, Any] = MappingProxyType({})


class Approval:
    """Every call of an effect needs a person's yes: `@effect(approval=Approval("maintainer", expires_in=timedelta(hours=72)))`.

    The engine asks before the effect is intended, unless an approval of the run covers the call already, on terms that are as strict: the
    same role, a quorum and four eyes that are not less, no edit that needs nobody else where one here needs somebody, the same preconditions in
    sight. The yes is bound to exactly the action that will run. A no raises `ApprovalDeniedError` where the call is awaited, no answer in time `ApprovalExpiredError`.

    Args:
        role: Who may decide.
        expires_in: Time to decide, counted from the request.
        use_within: Time to begin, counted from the request; as long as `expires_in` by default, and never shorter.
        quorum: So many persons have to say yes. One no is enough.
        four_eyes: Whoever started the run may not say yes.
        escalate: Who is asked after that, when nobody has decided in time: see `Rung`.
        remind: How long after each asking those are reminded who have not decided.
        sticky: How far a yes may stick, so that whoever gives it may have it answer later calls, too: `no`; `call`, equal calls of the run;
            `turn`, the run until it is sent the next message; `run`; or `workflow`, all its runs. See `Sticky`. Not beside a quorum, nor
            beside preconditions.
        edits: Whether an approver may change the arguments: `no`; `yes`, which is a yes to what they have made of it; or `second`: somebody
            else has to approve that.
        preconditions: Steps by name, whose parameters are parameters of the effect: what each returns is shown, and must be the same
            when the effect begins.

    Raises:
        DefinitionError: It could not be asked like that.

    Example:
        ```python
        import asyncio
        from datetime import timedelta
        import outlast

        @outlast.effect(idempotent=True, approval=outlast.Approval("maintainer", expires_in=timedelta(hours=72)))
        async def publish_page(text: str) -> str:
            return f"published {text}"

        @outlast.workflow
        async def news(text: str) -> str:
            return await publish_page(text)

        async with outlast.open("memory://") as app:
            handle = await app.start(news("hello"), id="n")
            while not (asked := await app.approvals.list()):
                await asyncio.sleep(0.01)
            await app.approvals.approve("n", asked[0].approval_id, seen_sha256=asked[0].subject_sha256)
            assert await handle.result() == "published hello"
        ```
    """

    __slots__ = ("preconditions", "terms")

    def __init__(  # noqa: PLR0913 - each one is a sentence of the declaration
        self,
        role: str,
        *,
        expires_in: timedelta,
        use_within: timedelta | None = None,
        quorum: int = 1,
        four_eyes: bool = False,
        escalate: Sequence[Rung] = (),
        remind: Sequence[timedelta] = (),
        edits: Edits = "no",
        sticky: Sticks = "no",
        preconditions: Mapping[str, Any] = NO_PRECONDITIONS,
    ) -> None:
        self.terms = checked(
            "Approval",
            Terms(
                role=role,
                expires_in=expires_in,
                use_within=use_within,
                quorum=quorum,
                four_eyes=four_eyes,
                edits=edits,
                escalate=listed("Approval", "escalate", escalate),
                remind=listed("Approval", "remind", remind),
                sticky=sticky,
            ),
        )
        self.preconditions = check_steps("Approval", preconditions)
        if sticky != "no" and self.preconditions:
            raise _bad(
                f"Approval has sticky={sticky!r} and preconditions",
                "a yes that sticks rests on no facts of the moment: leave one of them out",
            )

    def __repr__(self) -> str:
        """Show whom it asks."""
        return f"Approval({self.terms.role!r}, expires_in={self.terms.expires_in!r})"


def checked(what: str, terms: Terms) -> Terms:
    """Return terms on which a person can be asked.

    Args:
        what: Has them, for messages.

    Raises:
        DefinitionError: They could not be meant.
    """
    check_name(terms.role, what="role")
    _check_time(what, "expires_in", terms.expires_in)
    if terms.use_within is not None:
        _check_time(what, "use_within", terms.use_within)
    _check_kinds(what, terms)
    for place, rung in enumerate(terms.escalate):
        if not isinstance(rung, Rung):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise _bad(
                f"{what} has escalate={rung!r:.80}, which is no Rung",
                'give rungs, as escalate=(outlast.Rung("boss", timedelta(hours=24)),)',
            )
        check_name(rung.role, what="role")
        _check_time(what, f"expires_in of rung {place + 1}", rung.expires_in)
    if sum((one.expires_in for one in terms.escalate), terms.expires_in) >= _LONGEST:
        raise _bad(f"{what} could wait for a hundred years", "give shorter times in escalate=")
    _check_use(what, terms)
    for time in terms.remind:
        _check_time(what, "remind", time)
        if time >= terms.expires_in:
            raise _bad(
                f"{what} has a reminder after {time}, and the time to decide is over after {terms.expires_in}",
                "remind sooner than expires_in",
            )
    return terms


def _check_use(what: str, terms: Terms) -> None:
    """Refuse a time to begin that is over while a yes may still come."""
    if terms.use_within is None:
        return
    for number in range(len(terms.escalate) + 1):
        expires_in = terms.rung(number).expires_in
        if terms.use_within < expires_in:
            whose = f" of rung {number}" if number else ""
            raise _bad(
                f"{what} has use_within={terms.use_within}, and expires_in={expires_in}{whose}: a yes could come when nothing may begin any more",
                "give a use_within that is as long as the longest expires_in at least, or leave it out",
            )


def _check_kinds(what: str, terms: Terms) -> None:
    if type(terms.quorum) is not int or not 1 <= terms.quorum <= _MOST:
        raise _bad(
            f"{what} has quorum={terms.quorum!r}",
            f"give how many have to say yes, from 1 to {_MOST}, as quorum=2",
        )
    if not isinstance(terms.four_eyes, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise _bad(
            f"{what} has four_eyes={terms.four_eyes!r}, which is no bool",
            "give four_eyes=True, or leave it out",
        )
    if terms.sticky not in REACHES or (terms.sticky != "no" and terms.quorum > 1):
        raise _bad(
            f"{what} has sticky={terms.sticky!r} and quorum={terms.quorum}",
            f"give one of {', '.join(REACHES)}; one person's yes, however long it sticks, is no yes of several",
        )
    if terms.edits not in get_args(Edits):
        raise _bad(
            f"{what} has edits={terms.edits!r}",
            'give edits="no", "yes" (an edit is a yes to what it makes of the call) or "second" (somebody else has to approve that)',
        )


def listed(what: str, keyword: str, given: Any) -> tuple[Any, ...]:
    """Return a list of things as a tuple.

    Raises:
        DefinitionError: It is none, or longer than can be meant.
    """
    if isinstance(given, tuple | list) and len(given) <= _MOST:  # pyright: ignore[reportUnknownArgumentType]
        return tuple(given)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    raise _bad(
        f"{what} has {keyword}={given!r:.80}", f"give a tuple of at most {_MOST}, in {keyword}=(…,)"
    )


def check_steps(what: str, preconditions: Any) -> dict[str, Any]:
    """Return preconditions by name, each a step or a call of one.

    Raises:
        DefinitionError: A name or a step is none.
    """
    if not isinstance(preconditions, Mapping):
        raise _bad(
            f"{what} has preconditions={preconditions!r:.80}, which names none",
            'give a dict, as preconditions={"base": base_commit}',
        )
    found: dict[str, Any] = dict(preconditions)  # pyright: ignore[reportUnknownArgumentType]
    for name, step in found.items():
        check_name(name, what="precondition")
        if getattr(getattr(step, "callee", step), "kind", "") != "step":
            raise _bad(
                f"{what} has the precondition {name}={step!r:.80}, which is no @step",
                "a precondition only looks: give a @step, or a call of one in outlast.approval()",
            )
    return found


def check_approval(name: str, approval: Any, parameters: Sequence[Parameter]) -> None:
    """Refuse an approval that an effect could not ask for.

    Args:
        name: Of the effect.
        parameters: Of the effect.

    Raises:
        DefinitionError: It is none, or a precondition looks at what the effect is not called with.
    """
    if approval is None:
        return
    if not isinstance(approval, Approval):
        raise refuse(
            name,
            f"has approval={approval!r:.80}, which is no Approval",
            'give one, as approval=outlast.Approval("maintainer", expires_in=timedelta(hours=72))',
        )
    known = {one.name for one in parameters}
    for which, step in approval.preconditions.items():
        if getattr(step, "kind", "") != "step":
            raise refuse(
                name,
                f"has a call in the precondition {which} of its approval",
                "give the @step itself: it is called with the arguments of the effect",
            )
        unknown = [one for one in step.signature.parameters if one not in known]
        if unknown:
            raise refuse(
                name,
                f"has the precondition {which} on {', '.join(unknown)}, which it is not called with",
                f"a precondition takes parameters of the effect: {', '.join(sorted(known)) or 'it has none'}",
            )


def of_question(what: str, terms: Terms) -> Terms:
    """Return the terms of a question: one person answers, and nobody edits."""
    return checked(what, replace(terms, use_within=None, quorum=1, edits="no"))


def _check_time(what: str, keyword: str, time: Any) -> None:
    if not isinstance(time, timedelta):
        raise _bad(
            f"{what} has {keyword}={time!r}, which is no length of time",
            f"give a timedelta, as {keyword.split(maxsplit=1)[0]}=timedelta(hours=72)",
        )
    if not timedelta(0) < time < _LONGEST:
        raise _bad(
            f"{what} cannot wait for {keyword}={time}",
            "give a time longer than nothing and shorter than a hundred years",
        )


def _bad(what: str, hint: str) -> DefinitionError:
    return DefinitionError(what, hint=hint)
