"""What makes two calls of an effect the same purpose, and what a person is asked about the second one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from inspect import Parameter
from typing import Any

import msgspec
from msgspec import Raw

from outlast.approvals.request import SAME_PURPOSE, still_asks, subject_of
from outlast.effects.key import check_name
from outlast.errors import DefinitionError
from outlast.journal.asking import Terms
from outlast.journal.entry import Cover
from outlast.replay.context import ApprovalRequest, FirstCall, Purpose
from outlast.workflows.declared import check_names, refuse

_LONGEST = timedelta(days=36_500)


class SameAs:
    """Two calls of an effect with equal values of these parameters have the same purpose, whatever their other arguments are.

    A model that plans again after a timeout calls `pay` with another note, or another id of the call: another key, so the receiver would
    pay again. With `same_as=SameAs("to", "amount")` the second call is refused by `SamePurposeError`, which names the first, while that one is
    in flight or in doubt, when it is done, and when it failed and may have happened. An equal call is none of these: it waits for the
    first, has its key, or is refused as repeated. One generation of a run is looked at, and what was compensated counts no more.

    Args:
        names: Parameters of the effect.
        within: How long after the end of the first call, by the run's time; as long as the run by default.
        role: Ask somebody of this role about a second call, instead of refusing it. What is shown names the first call and what became of
            it; a yes permits exactly the second. Needs `expires_in`.
        expires_in: Time to decide, and to begin.

    Raises:
        DefinitionError: No name, a time that cannot be meant, or `role` without `expires_in`.

    Example:
        ```python
        import outlast

        PAID: list[str] = []

        @outlast.effect(idempotent=True, same_as=outlast.SameAs("to", "amount"))
        async def pay(to: str, amount: int, note: str) -> str:
            PAID.append(f"{amount} to {to}: {note}")
            return "paid"

        @outlast.workflow
        async def planned_twice() -> str:
            await pay("Ada", 10, note="invoice 7")
            try:
                return await pay("Ada", 10, note="the invoice of May")
            except outlast.SamePurposeError as error:
                return f"{error.first} is {error.state}"

        async with outlast.open("memory://") as app:
            assert await app.run(planned_twice(), id="invoice-7") == "r:1 is done"
        assert PAID == ["10 to Ada: invoice 7"]
        ```
    """

    __slots__ = ("expires_in", "names", "role", "within")

    def __init__(
        self,
        *names: str,
        within: timedelta | None = None,
        role: str = "",
        expires_in: timedelta | None = None,
    ) -> None:
        self.names = names
        self.within = within
        self.role = role
        self.expires_in = expires_in
        if not names or not all(type(one) is str for one in names):
            raise _bad(
                f"names {names!r}", 'name parameters of the effect, as SameAs("to", "amount")'
            )
        for which, time in (("within", within), ("expires_in", expires_in)):
            if time is not None and not _is_time(time):
                raise _bad(
                    f"has {which}={time!r}",
                    f"give a time longer than nothing and shorter than a hundred years, as {which}=timedelta(hours=24)",
                )
        if role != "":
            check_name(role, what="role")
        if bool(role) != (expires_in is not None):
            raise _bad(
                "needs role= and expires_in=, or neither",
                'give both, as role="treasurer", expires_in=timedelta(hours=72), to have somebody asked about a second call',
            )

    def __repr__(self) -> str:
        """Show it as it was written."""
        more = "".join(
            f", {name}={value!r}"
            for name in ("within", "role", "expires_in")
            if (value := getattr(self, name))
        )
        return f"SameAs({', '.join(map(repr, self.names))}{more})"

    def purpose(self, cover: Cover, fields: Mapping[str, str]) -> Purpose:
        """Return the purpose of one call.

        Args:
            cover: Of exactly this call.
            fields: Canonical JSON of its arguments, by parameter name.
        """
        values = tuple((name, fields[name]) for name in self.names)
        return Purpose(values, self.within, self._asking(cover, fields) if self.role else None)

    def _asking(
        self, cover: Cover, fields: Mapping[str, str]
    ) -> Callable[[FirstCall], ApprovalRequest]:
        def ask(first: FirstCall) -> ApprovalRequest:
            assert self.expires_in is not None
            shown = {
                SAME_PURPOSE: first.operation,
                "state": first.state,
                "arguments": Raw(first.arguments),
                "same": list(self.names),
            }
            asked = subject_of(msgspec.json.encode(shown), [(cover, fields)])
            return ApprovalRequest(
                subject=asked.body,
                subject_sha256=asked.sha256,
                covers=(cover,),
                terms=Terms(self.role, self.expires_in),
                same_subject=lambda recorded: still_asks(recorded, bytes(asked.body)),
                demands=False,
            )

        return ask


def check_purpose(
    name: str,
    same_as: Any,
    parameters: Sequence[Parameter],
    *,
    key_on: Sequence[str],
    repeats: bool,
) -> None:
    """Refuse a purpose that could never be looked at.

    Args:
        name: Of the effect.
        parameters: Of the effect.
        key_on: Of the effect.
        repeats: Whether an equal call after a success is another effect.

    Raises:
        DefinitionError: It is no `SameAs`, names what is no parameter, or all calls of one purpose have the same key anyway.
    """
    if same_as is None:
        return
    if not isinstance(same_as, SameAs):
        raise refuse(
            name,
            f"has same_as={same_as!r:.80}, which is no SameAs",
            'give one, as same_as=outlast.SameAs("to", "amount")',
        )
    check_names(name, "same_as", same_as.names, parameters)
    keyed = key_on or [one.name for one in parameters]
    if not repeats and set(keyed) <= set(same_as.names):
        hint = (
            "leave same_as= out: calls that are equal in it have the same key, so the second one waits for the first, takes its key, or is "
            "refused as repeated; or name fewer parameters"
        )
        raise refuse(name, f"has a key on no more than same_as names ({', '.join(keyed)})", hint)


def _is_time(time: Any) -> bool:
    return isinstance(time, timedelta) and timedelta(0) < time < _LONGEST


def _bad(what: str, hint: str) -> DefinitionError:
    return DefinitionError(f"SameAs {what}", hint=hint)
