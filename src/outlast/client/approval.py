"""The approvals of a tenant: list, look, decide. A decision carries the hash of what was shown, and the role in which it is made."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, cast

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from outlast.approvals.decision import REFUSALS, Decision
from outlast.approvals.receipt import Receipt
from outlast.client.access import check_run, is_free, not_held, not_permitted
from outlast.client.fit import misfit
from outlast.client.page import check_limit
from outlast.client.port import Port
from outlast.client.receipt import draw_receipt
from outlast.client.role import RoleBook
from outlast.client.sticky import Sticky, StickyBook, StickyView, check_call, mark_of, put_of
from outlast.client.view import ApprovalView, changes_between, told_of, view_of
from outlast.effects.key import check_run_id
from outlast.errors import DecisionRefusedError, DefinitionError, StoreCorruptError
from outlast.journal.asking import REACHES, Edited
from outlast.journal.canonical import sha256_of
from outlast.journal.codec import codec_of
from outlast.journal.parse import parse
from outlast.policy.authority import Held, held, permitted
from outlast.policy.glob import is_name
from outlast.store.change import (
    ApprovalRow,
    Decide,
    Message,
    MessageKind,
    Refused,
    RunKey,
    Verdict,
)
from outlast.store.sticky import StickyPut
from outlast.workflows.registry import misfit_of_effect

_TRIES = 10
"""So often roles may be changed at the very moment of a decision."""

_LOOK = "look at the request as it is now: `outlast approvals show`"
_REMEDIES = {
    "edited": "see `outlast approvals list`: what is asked instead has an id and a hash of its own",
    "expired": "nothing more can be decided; whoever is asked next has a request of their own, see `outlast approvals list`",
    "role": "look at the request as it is now: `outlast approvals show` names the role",
    "self": "somebody else has to decide who holds the role, and not as a delegate of theirs: `outlast roles list`, `outlast roles grant`",
    "voted": "somebody else who holds the role has to say yes, too: `outlast approvals show` says how many are missing",
    "uneditable": "approve it or deny it, with a reason that says what it should be",
    "sticky": "decide without it, or give a nearer --sticky; `outlast approvals show` says how far a yes may stick, which the declaration or the policy sets",
    "stale": "decide again",
}


class Approvals:
    """The approvals of a tenant."""

    def __init__(self, client: Port) -> None:
        self._client = client

    async def list(
        self,
        *,
        pending: bool = True,
        run_id: str = "",
        limit: int = 100,
        after: ApprovalView | None = None,
    ) -> builtins.list[ApprovalView]:
        """Return a page of approvals, oldest first: those whose runs one may read, or in whose role one may decide.

        Args:
            pending: Only those that wait for a decision; all when false.
            run_id: Only those of this run.
            limit: So many at most.
            after: The last one of the page before.

        Raises:
            DefinitionError: No run can have that id, or the limit is no number from 0 to 1,000,000.
        """
        client = self._client
        run = RunKey(client.tenant, check_run_id(run_id)) if run_id else None
        missing = check_limit(limit, what="approvals", onward="after=")
        place = (after.requested_at, after.run_id, after.approval_id) if after else None
        found: builtins.list[ApprovalView] = []
        while missing:
            rows = await client.store.approvals(
                client.tenant, pending=pending, run=run, limit=missing, after=place
            )
            found += [view_of(row) for row in await self._visible(rows)]
            if len(rows) < missing:
                break
            missing = limit - len(found)
            place = (rows[-1].requested_at, rows[-1].run.run_id, rows[-1].put.approval_id)
        return found

    async def _of(self, run_id: str, *, pending: bool) -> Sequence[ApprovalView]:
        run = RunKey(self._client.tenant, check_run_id(run_id))
        rows = await self._client.store.approvals(run.tenant, pending=pending, run=run)
        return [view_of(row) for row in await self._visible(rows)]

    async def get(self, run_id: str, approval_id: str = "") -> ApprovalView:
        """Return one approval of a run, with what people were told of it; of one that follows an edit, also what was edited.

        Args:
            approval_id: May be left out when exactly one is pending.

        Raises:
            DecisionRefusedError: There is none, or it is not clear which.
            StoreCorruptError: What is stored does not have the hash under which it is asked.
            NotAuthorisedError: Whoever acts may neither read the run nor decide the request.
        """
        view = await self._with_changes(await self._get(run_id, approval_id))
        notices = await self._client.store.notices(RunKey(self._client.tenant, run_id))
        told = tuple(told_of(one) for one in notices if one.approval_id == view.approval_id)
        return replace(view, told=told)

    async def _get(self, run_id: str, approval_id: str) -> ApprovalView:
        """Return one approval of a run; see `get`."""
        found = await self._of(run_id, pending=not approval_id)
        if approval_id:
            found = [one for one in found if one.approval_id == approval_id]
        if len(found) == 1:
            if not found[0].genuine:
                raise StoreCorruptError(
                    f"request {found[0].approval_id} shows something else than what its hash says",
                    run=run_id,
                    hint="decide nothing; the store was changed by hand or is damaged: `outlast doctor`",
                )
            return found[0]
        if not found:
            raise await self._nothing_found(run_id, approval_id)
        ids = ", ".join(one.approval_id for one in found)
        raise DecisionRefusedError(
            f"{len(found)} requests of this run wait: {ids}",
            reason="ambiguous",
            run=run_id,
            hint="name one of them",
        )

    async def approve(
        self,
        run_id: str,
        approval_id: str,
        *,
        seen_sha256: str,
        reason: str = "",
        sticky: Sticky | None = None,
    ) -> None:
        """Say yes to exactly what was shown. Where several have to, this is one vote.

        Args:
            seen_sha256: The hash of what the approver saw.
            sticky: What of it is to stick, so that it answers what is asked later, too: as far as the terms of the request let it.

        Raises:
            DecisionRefusedError: Late, decided already, for another hash, for no request, for one that asks for an answer, or by somebody
                who may not say yes to it.
            NotAuthorisedError: Whoever acts does not hold the role.
            DefinitionError: The request, or the hash, is not named.
        """
        view = await self._asked(run_id, approval_id, seen_sha256)
        if view.kind == "question":
            raise _unfit(
                view, "it asks for an answer, and not for a yes", "use `outlast approvals answer`"
            )
        said = _said(view, self._client, seen_sha256, reason, yes=True)
        put = put_of(sticky, view, said, self._client.new_id())
        await self._decide(view, "approve", said, mark_of(put), sticky=put)

    async def deny(
        self,
        run_id: str,
        approval_id: str,
        *,
        seen_sha256: str,
        reason: str = "",
        sticky: Sticky | None = None,
    ) -> None:
        """Say no. One no is enough, whoever has said yes. See `approve`; a no may stick whatever the terms say, and outvotes every yes that does."""
        view = await self._asked(run_id, approval_id, seen_sha256)
        said = _said(view, self._client, seen_sha256, reason, yes=False)
        put = put_of(sticky, view, said, self._client.new_id())
        await self._decide(view, "deny", said, mark_of(put), sticky=put)

    async def sticky(
        self,
        *,
        run_id: str = "",
        effect: str = "",
        over: bool = False,
        limit: int = 100,
        after: StickyView | None = None,
    ) -> builtins.list[StickyView]:
        """Return a page of the decisions that stick, oldest first: those whose workflows one may read, or in whose role one may decide.

        Args:
            run_id: Only those that reach this run: its own, and those of its workflow.
            effect: Only those about this effect.
            over: Those too that were used up, ended, or were taken back.
            limit: So many at most.
            after: The last one of the page before.

        Raises:
            DefinitionError: No run can have that id, or the limit is no number from 0 to 1,000,000.
        """
        return await StickyBook(self._client).list(
            run_id=run_id, effect=effect, over=over, limit=limit, after=after
        )

    async def revoke(self, sticky_id: str, reason: str) -> None:
        """Take back a decision that sticks: it answers nothing any more, and what it has answered may not begin any more.

        Args:
            reason: Why; kept.

        Raises:
            DecisionRefusedError: There is no such decision, or it was taken back before.
            NotAuthorisedError: Whoever acts holds neither the role in which it was made nor `outlast:admin`.
            DefinitionError: No reason is given.
        """
        await StickyBook(self._client).revoke(sticky_id, reason)

    async def edit(
        self,
        run_id: str,
        approval_id: str,
        *,
        seen_sha256: str,
        arguments: Mapping[int, Mapping[str, Any]],
        reason: str = "",
    ) -> None:
        """Say what it should be instead. The request is closed, and another one is made of the edited action, with a hash of its own.

        Whether that one has to be approved by somebody else, or is by this, its terms say.

        Args:
            arguments: By number of the covered call, from 0: the arguments that are to be others, by parameter name.

        Raises:
            DecisionRefusedError: As for `approve`; or it may not be edited, or covers no such call.
            NotAuthorisedError: Whoever acts does not hold the role.
            DefinitionError: Nothing is edited, or the request is not named.
            EncodeError: A value cannot be stored.
        """
        view = await self._asked(run_id, approval_id, seen_sha256)
        edits = edited(view, arguments)
        said = replace(_said(view, self._client, seen_sha256, reason, yes=False), edits=edits)
        plain = [[one.cover, parse(bytes(one.arguments))] for one in edits]
        await self._decide(view, "edit", said, f"/{sha256_of(plain)[:16]}")

    async def answer(
        self, run_id: str, approval_id: str, value: Any, *, seen_sha256: str, reason: str = ""
    ) -> None:
        """Answer a question.

        Args:
            value: Of the type that is asked for, or plain data as JSON holds it.

        Raises:
            DecisionRefusedError: As for `approve`; or it is no question, or the answer does not fit its schema.
            NotAuthorisedError: Whoever acts does not hold the role.
            DefinitionError: The question, or its hash, is not named.
            EncodeError: The value cannot be stored.
        """
        body = codec_of(value, where="the answer").encode(value)
        view = await self._asked(run_id, approval_id, seen_sha256)
        check_answer(view, parse(body))
        said = replace(_said(view, self._client, seen_sha256, reason, yes=True), answer=Raw(body))
        await self._decide(view, "answer", said)

    async def delegate(
        self, run_id: str, approval_id: str, to: str, *, until: datetime, reason: str = ""
    ) -> None:
        """Lend the role of a request, for its workflow. See `RoleBook.delegate`.

        Args:
            to: Whose decision counts as one's own, too.

        Raises:
            NotAuthorisedError: Whoever acts does not hold the role by a binding of their own.
            DefinitionError: It names no role, the end is none, or the workflow's name could be taken for a glob.
            DecisionRefusedError: There is no such request.
        """
        view = await self.get(run_id, _named(approval_id, "request"))
        workflow = await self._workflow(view)
        if not view.role or not is_name(workflow):
            raise DefinitionError(
                f"the role of request {view.approval_id} cannot be lent",
                run=run_id,
                hint="an admin grants it: `outlast roles grant`",
            )
        await RoleBook(self._client).delegate(
            view.role, to, until=until, resource=workflow, reason=reason
        )

    async def receipt(
        self, run_id: str, approval_id: str = "", *, with_results: bool = False
    ) -> Receipt:
        """Return who approved what, when, against which hash, and what the agent then did. See `outlast.approvals.receipt`.

        Args:
            approval_id: May be left out when the run's present generation has asked one thing only.
            with_results: What effects returned or raised stands in it too, and not only its hash.

        Raises:
            ReceiptError: There is no such request, or it is not clear which.
            RunNotFoundError: There is no such run.
            NotAuthorisedError: Whoever acts may not read the run.
        """
        run = RunKey(self._client.tenant, check_run_id(run_id))
        await check_run(self._client, "read", run)
        return await draw_receipt(self._client, run_id, approval_id, with_results=with_results)

    async def _asked(self, run_id: str, approval_id: str, seen_sha256: str) -> ApprovalView:
        """Return the request that is decided; what names none, or says not what was seen, decides nothing."""
        _named(seen_sha256, "hash of what was seen")
        return await self._get(run_id, _named(approval_id, "request"))

    async def _decide(
        self,
        view: ApprovalView,
        word: str,
        said: Decision,
        suffix: str = "",
        sticky: StickyPut | None = None,
    ) -> None:
        """Send a decision with the answer on which the right to it rests; asked anew when that was changed meanwhile."""
        run = RunKey(self._client.tenant, view.run_id)
        verdict: Verdict | None = None
        for _ in range(_TRIES):
            found = await self._held(view)
            said = replace(said, behalf=found.behalf)
            message = Message(
                f"{word}/{view.approval_id}/{said.by}{suffix}",
                MessageKind.DECISION,
                view.approval_id,
                said.by,
                msgspec.json.encode(said),
            )
            verdict = await self._client.commit(
                Decide(
                    run=run,
                    approval_id=view.approval_id,
                    seen_sha256=said.subject_sha256,
                    approved=said.approved,
                    by=said.by,
                    message=message,
                    role=said.role,
                    behalf=said.behalf,
                    edit=bool(said.edits),
                    guards=found.guards,
                    sticky=sticky,
                )
            )
            if not (isinstance(verdict, Refused) and verdict.reason == "stale"):
                break
        if isinstance(verdict, Refused):
            raise _refused(view, verdict.reason)

    async def _held(self, view: ApprovalView) -> Held:
        """Return how whoever acts holds the role of a request; one that names no role needs `outlast:decide`."""
        client, workflow = self._client, await self._workflow(view)
        if not view.role:
            if not await permitted(client.authority, client.actor, "decide", workflow):
                raise not_permitted(client, "decide", run=view.run_id)
            return Held()
        found = await held(client.authority, client.actor, view.role, workflow)
        if found is None:
            raise not_held(client, view.role, resource=workflow, run=view.run_id)
        return found

    async def _workflow(self, view: ApprovalView) -> str:
        return (await self._client.head(RunKey(self._client.tenant, view.run_id))).workflow

    async def _visible(self, rows: builtins.list[ApprovalRow]) -> builtins.list[ApprovalRow]:
        """Return those whose runs whoever acts may read, or in whose role they may decide."""
        client = self._client
        if await is_free(client, "read"):
            return rows
        workflows: dict[RunKey, str] = {}
        known: dict[tuple[str, str], bool] = {}
        for row in rows:
            if row.run not in workflows:
                head = await client.store.head(row.run)
                workflows[row.run] = "" if head is None else head.workflow
            place = workflows[row.run], row.put.role
            if place not in known:
                known[place] = await self._sees(*place)
        return [row for row in rows if known[workflows[row.run], row.put.role]]

    async def _sees(self, workflow: str, role: str) -> bool:
        authority, actor = self._client.authority, self._client.actor
        if await permitted(authority, actor, "read", workflow):
            return True
        return bool(role) and await held(authority, actor, role, workflow) is not None

    async def _with_changes(self, view: ApprovalView) -> ApprovalView:
        """Return a request with what an approver has edited; one that follows no edit as it is."""
        if view.again != "edited":
            return view
        rows = await self._of(view.run_id, pending=False)
        former = [one for one in rows if one.operation == view.operation and one.state == "edited"]
        before = [one for one in former if one.requested_at <= view.requested_at]
        return replace(view, changes=changes_between(before[-1], view)) if before else view

    async def _nothing_found(self, run_id: str, approval_id: str) -> DecisionRefusedError:
        """Return why there is nothing to look at: no such run, no such request, or none that still waits."""
        await check_run(self._client, "read", RunKey(self._client.tenant, run_id))
        await self._client.head(RunKey(self._client.tenant, run_id))
        if approval_id:
            return DecisionRefusedError(
                f"there is no such request: {approval_id}",
                reason="unknown",
                run=run_id,
                hint=f"see `outlast approvals list --all --run {run_id}`",
            )
        decided = await self._of(run_id, pending=False)
        text = "no request of this run waits"
        if decided:
            last = decided[-1]
            text += f"; the last one, {last.approval_id}, is {last.state}"
            text += f" (by {last.by})" if last.by else ""
        return DecisionRefusedError(
            text,
            reason="unknown",
            run=run_id,
            hint="see `outlast approvals list`, or with `--all` those that were decided",
        )


def check_answer(view: ApprovalView, value: Any) -> None:
    """Refuse what answers no question, or does not fit the schema of its answer.

    Args:
        value: Plain JSON data.

    Raises:
        DecisionRefusedError: It is so.
    """
    if view.kind != "question":
        raise _unfit(
            view, "it asks for a yes, and for no answer", "use `outlast approvals approve`"
        )
    if why := misfit(value, view.schema):
        raise _unfit(
            view, f"the answer does not fit: {why}", "`outlast approvals show` prints the schema"
        )


def check_edit(view: ApprovalView, edits: Sequence[Edited]) -> None:
    """Refuse an edit that the terms of a request do not allow, or that an effect cannot be called with, as far as its code is known here.

    Raises:
        DecisionRefusedError: It is so.
    """
    if view.edits == "no":
        raise _refused(view, "uneditable")
    for one in edits:
        effect = str(view.subject["covers"][one.cover]["effect"])
        if why := misfit_of_effect(effect, bytes(one.arguments)):
            raise _unfit(
                view,
                f"{effect} cannot be called so: {why}",
                "give values of the types that its parameters have",
            )


def check_sticky(view: ApprovalView, sticky: Sticky, *, yes: bool) -> None:
    """Refuse what cannot stick of a decision on a request, or not so far by its terms.

    Raises:
        DefinitionError: It could not be meant.
        DecisionRefusedError: It is so.
    """
    check_call(sticky, view, yes=yes)
    if yes and REACHES.index(sticky.reach) > REACHES.index(view.sticky):
        raise _refused(view, "sticky")


def edited(view: ApprovalView, arguments: Mapping[int, Mapping[str, Any]]) -> tuple[Edited, ...]:
    """Return what the covered calls of a request should be: whole arguments, those that are not named as they are.

    Raises:
        DefinitionError: Nothing is edited.
        DecisionRefusedError: There is no such call, or it has no such argument.
        EncodeError: A value cannot be stored.
    """
    given: Any = arguments
    if not isinstance(given, Mapping) or not given:
        raise DefinitionError(
            "nothing is edited", hint="give arguments={0: {'amount': 5}}: by number of the call"
        )
    return tuple(
        Edited(place, _arguments(view, place, fields))
        for place, fields in sorted(cast("Mapping[int, Any]", given).items(), key=_place)
    )


def _place(item: tuple[Any, Any]) -> int:
    place = item[0]
    if type(place) is not int:
        raise DefinitionError(
            f"{place!r:.80} is no number of a covered call", hint="they are numbered from 0"
        )
    return place


def _arguments(view: ApprovalView, place: int, fields: Any) -> Raw:
    covers: builtins.list[dict[str, Any]] = view.subject["covers"]
    if not 0 <= place < len(covers) or covers[place]["kind"] != "call":
        raise _unfit(
            view,
            f"it covers no call of number {place} that could be edited",
            "`outlast approvals show` prints what it covers; the first one is 0, and patterns are not edited",
        )
    known: dict[str, Any] = covers[place]["arguments"]
    if not isinstance(fields, Mapping) or not fields:
        raise DefinitionError(
            f"call {place} is edited with {fields!r:.80}, which are no arguments",
            hint="give them by parameter name, as {'amount': 5}",
        )
    new = cast("Mapping[str, Any]", fields)
    if strangers := [name for name in new if name not in known]:
        raise _unfit(
            view,
            f"{covers[place]['effect']} has no argument {strangers[0]!r:.80}",
            f"its arguments are {', '.join(known)}",
        )
    plain = {
        name: parse(codec_of(value, where=f"the argument {name!r}").encode(value))
        for name, value in new.items()
    }
    return Raw(msgspec.json.encode({**known, **plain}))


def _named(given: Any, what: str) -> str:
    """Return a name that was given; None, a number, an empty text or a mapping names nothing."""
    if isinstance(given, str) and given:
        return given
    raise DefinitionError(
        f"the decision names no {what}: {given!r:.80}",
        hint="give the id and the hash of the request as it was shown; nothing was decided",
    )


def _refused(view: ApprovalView, reason: str) -> DecisionRefusedError:
    return DecisionRefusedError(
        f"the decision was not accepted: {REFUSALS.get(reason, reason)}",
        reason=reason,
        run=view.run_id,
        hint=_REMEDIES.get(reason, _LOOK),
    )


def _unfit(view: ApprovalView, why: str, hint: str) -> DecisionRefusedError:
    return DecisionRefusedError(
        f"the decision was not accepted: {why}", reason="unfit", run=view.run_id, hint=hint
    )


def _said(
    view: ApprovalView, client: Port, seen_sha256: str, reason: str, *, yes: bool
) -> Decision:
    return Decision(
        approval_id=view.approval_id,
        operation=view.operation,
        approved=yes,
        by=client.principal,
        reason=reason,
        subject_sha256=seen_sha256,
        role=view.role,
    )
