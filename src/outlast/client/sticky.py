"""Decisions that stick: what of a decision is to stick, and those of a tenant that do: listed, and taken back."""

from __future__ import annotations

import builtins
import hashlib
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from outlast.approvals.decision import Decision
from outlast.client.access import is_free, not_held, not_permitted
from outlast.client.page import check_limit
from outlast.client.port import Port
from outlast.client.view import ApprovalView
from outlast.effects.key import check_run_id
from outlast.errors import DecisionRefusedError, DefinitionError, PolicyError
from outlast.journal.asking import REACHES, Reach
from outlast.journal.canonical import canonical
from outlast.policy import Predicate
from outlast.policy.authority import StoreAuthority, held, permitted
from outlast.policy.binding import ADMIN
from outlast.store.change import Guard, Refused, RevokeSticky, RunKey
from outlast.store.sticky import StickyPut, StickyRow
from outlast.store.sticky_condition import StickyFilter

_TRIES = 10
"""So often roles may be changed at the very moment of a revocation."""

LONGEST = timedelta(days=36_500)
"""It sticks for less than that."""


class Sticky(msgspec.Struct, frozen=True):
    """What of a decision is to stick: it answers what is asked later, too, of the same effect, version, agent and server, in the same role.

    Args:
        reach: How far: `call`, equal calls of the run; `turn`, the run until it is sent the next message; `run`; or `workflow`, all its runs.
        same: The arguments that a later call must have as this one has them; all of them by default. `()` for any arguments.
        when: What else is asked of the arguments of a later call; together with `same`.
        uses: How many requests a yes answers; None for any number.
        expires_in: For how long; None for as long as it reaches. `workflow` needs an end.

    Example:
        ```python
        import asyncio
        from datetime import timedelta
        import outlast

        asked = outlast.Approval("support", expires_in=timedelta(hours=8), sticky="run")

        @outlast.effect(idempotent=True, approval=asked)
        async def send_mail(to: str, text: str) -> None: ...

        @outlast.workflow
        async def remind(to: str) -> None:
            for text in ("one", "two", "three"):
                await send_mail(to, text)

        async with outlast.open("memory://") as app:
            handle = await app.start(remind("ann@example.org"), id="r")
            while not (found := await app.approvals.list()):
                await asyncio.sleep(0.01)
            sticky = outlast.Sticky("run", same=("to",), uses=2)
            await app.approvals.approve("r", found[0].approval_id, seen_sha256=found[0].subject_sha256, sticky=sticky)
            await handle.result()
            (decision,) = await app.approvals.sticky(over=True)
            assert (decision.used, decision.uses) == (2, 0)
        ```
    """

    reach: Reach
    same: tuple[str, ...] | None = None
    when: tuple[Predicate, ...] = ()
    uses: int | None = None
    expires_in: timedelta | None = None


class StickyView(msgspec.Struct, frozen=True):
    """A decision that sticks, to be looked at.

    Args:
        sticky_id: By which it is taken back.
        run_id: The run whose request was decided; so are `workflow` and `approval_id`.
        approved: Whether it says yes, or no.
        by: Who decided.
        behalf: Whose delegate they were.
        action_sha256: The one action that it answers; empty where the arguments only have to fit, and of a no.
        same: What the arguments must be, as plain data by name.
        when: What else is asked of them, in words.
        expires_at: It does not stick from then on.
        uses: How many requests it may still answer; None for any number.
        used: How many it has answered.
        sticks: Whether it still does.
        revoked_by: Who took it back.
    """

    sticky_id: str
    run_id: str
    workflow: str
    approval_id: str
    effect: str
    version: str
    agent: str
    server: str
    reach: Reach
    approved: bool
    role: str
    by: str
    behalf: str
    made_at: datetime
    reason: str = ""
    action_sha256: str = ""
    same: dict[str, Any] = {}
    when: tuple[str, ...] = ()
    expires_at: datetime | None = None
    uses: int | None = None
    used: int = 0
    sticks: bool = True
    revoked_at: datetime | None = None
    revoked_by: str = ""
    revoked_why: str = ""


def put_of(sticky: Any, view: ApprovalView, said: Decision, sticky_id: str) -> StickyPut | None:
    """Return what of a decision is to stick; None where nothing is.

    Args:
        sticky_id: A new one.

    Raises:
        DefinitionError: It could not be meant.
        DecisionRefusedError: The call that is decided has no such argument, or no single call is.
    """
    if sticky is None:
        return None
    cover = check_call(sticky, view, yes=said.approved)
    arguments: dict[str, Any] = cover["arguments"]
    same = sticky.same
    if same is None and not said.approved:
        # Of code to come an equal call may have more arguments, and another hash: it is to be the same for a no.
        same = tuple(arguments)
    return StickyPut(
        sticky_id=sticky_id,
        effect=cover["effect"],
        reach=sticky.reach,
        version=cover.get("version", ""),
        agent=cover.get("agent", ""),
        server=view.server,
        turn=view.turn if sticky.reach == "turn" else "",
        action_sha256=cover["action_sha256"] if same is None else "",
        where=msgspec.json.encode(
            {name: canonical(arguments[name]).decode() for name in same or ()}
        ),
        when=msgspec.json.encode([(one.path, one.operator, one.value) for one in sticky.when]),
        uses=sticky.uses,
        expires_in=sticky.expires_in,
        reason=said.reason.encode(),
    )


def check_call(sticky: Any, view: ApprovalView, *, yes: bool) -> dict[str, Any]:
    """Return the call to which something is to stick, as it is shown.

    Raises:
        DefinitionError: It could not be meant.
        DecisionRefusedError: No single call of an effect is decided.
    """
    _check(sticky)
    if sticky.uses is not None and not yes:
        raise DefinitionError(
            "a no that sticks is not used up", hint="leave uses= out; expires_in= ends it"
        )
    covers: list[dict[str, Any]] = view.subject["covers"]
    is_of_effect = view.kind == "approval" and view.source in ("declared", "policy")
    if not is_of_effect or len(covers) != 1 or covers[0]["kind"] != "call":
        raise DecisionRefusedError(
            "the decision was not accepted: only one on a request for one call of an effect can stick",
            reason="sticky",
            run=view.run_id,
            hint="decide without having it stick; outlast.approval(), and what asks about a second call of one purpose, ask each time",
        )
    (cover,) = covers
    arguments: dict[str, Any] = cover["arguments"]
    if strangers := [name for name in sticky.same or () if name not in arguments]:
        raise DefinitionError(
            f"{cover['effect']} has no argument {strangers[0]!r:.80} that could be the same",
            hint=f"its arguments are {', '.join(arguments) or 'none'}",
        )
    named = [one.path for one in sticky.when if one.path.partition(".")[0] not in arguments]
    if named:
        raise DefinitionError(
            f"{cover['effect']} has no argument {named[0]!r:.80} of which anything could be asked",
            hint=f"its arguments are {', '.join(arguments) or 'none'}",
        )
    return cover


def mark_of(put: StickyPut | None) -> str:
    """Return what tells the message of a decision from that of another one by the same person: what of it is to stick."""
    if put is None:
        return ""
    body = msgspec.json.encode(msgspec.structs.replace(put, sticky_id="", reason=b""))
    return f"/{hashlib.sha256(body).hexdigest()[:16]}"


def _check(sticky: Any) -> None:
    if not isinstance(sticky, Sticky):
        raise DefinitionError(
            f"the decision has sticky={sticky!r:.80}",
            hint='give one, as sticky=outlast.Sticky("run")',
        )
    given: Any = sticky
    if given.reach not in REACHES[1:]:
        raise DefinitionError(
            f"nothing sticks for {given.reach!r:.40}", hint=f"give one of {', '.join(REACHES[1:])}"
        )
    if given.same is not None and not _are_all(given.same, str):
        raise DefinitionError(
            f"same={given.same!r:.80} names no arguments", hint='give a tuple, as same=("to",)'
        )
    if not _are_all(given.when, Predicate):
        raise DefinitionError(
            f"when={given.when!r:.80} holds no predicates",
            hint='give a tuple, as when=(Predicate("amount", "at_most", 50),)',
        )
    if given.reach == "call" and (given.same is not None or given.when):
        raise DefinitionError(
            "what sticks to a call is about its very arguments",
            hint="leave same= and when= out, or let it reach as far as the run",
        )
    if given.when and given.same is None:
        raise DefinitionError(
            "when= asks nothing more of arguments that are all the same",
            hint="say which are the same, as same=(); the others may be any",
        )
    if given.uses is not None and (type(given.uses) is not int or given.uses < 1):
        raise DefinitionError(
            f"uses={given.uses!r:.40} is no number of uses", hint="give 1 or more"
        )
    _check_end(given)


def _check_end(given: Any) -> None:
    lasts = given.expires_in
    if lasts is None and given.reach == "workflow":
        raise DefinitionError(
            "what sticks to a workflow has no end", hint="give expires_in=timedelta(days=7), say"
        )
    is_time = isinstance(lasts, timedelta) and timedelta(0) < lasts < LONGEST
    if lasts is not None and not is_time:
        raise DefinitionError(
            f"expires_in={lasts!r:.80} is no length of time",
            hint="give a timedelta of less than 100 years",
        )


def _are_all(given: Any, kind: type) -> bool:
    return isinstance(given, tuple) and all(isinstance(one, kind) for one in given)  # pyright: ignore[reportUnknownVariableType]


class StickyBook:
    """The decisions of a tenant that stick."""

    def __init__(self, client: Port) -> None:
        self._client = client

    async def list(
        self,
        *,
        run_id: str = "",
        effect: str = "",
        over: bool = False,
        limit: int = 100,
        after: StickyView | None = None,
    ) -> builtins.list[StickyView]:
        """Return a page; see `Approvals.sticky`."""
        client = self._client
        run = RunKey(client.tenant, check_run_id(run_id)) if run_id else None
        missing = check_limit(limit, what="decisions", onward="after=")
        place = None if after is None else (after.made_at, after.sticky_id)
        found: builtins.list[StickyView] = []
        while missing:
            wanted = StickyFilter(run, effect, over, missing, place)
            rows = await client.store.sticky(client.tenant, wanted)
            now = client.store.now()
            found += [view_of(row, now) for row in await self._visible(rows)]
            if len(rows) < missing:
                break
            missing, place = limit - len(found), rows[-1].key
        return found

    async def revoke(self, sticky_id: str, reason: str) -> None:
        """Take one back; see `Approvals.revoke`."""
        if not reason.strip():
            raise DefinitionError("no reason is given", hint="say why: it is kept, and shown")
        client = self._client
        rows = await self._find(sticky_id)
        verdict: Any = None
        for _ in range(_TRIES):
            guards = await self._may_revoke(rows[0]) if rows else await self._administers("")
            if guards is None:
                raise _unknown(sticky_id)
            verdict = await client.commit(
                RevokeSticky(client.tenant, sticky_id, client.principal, reason.encode(), guards)
            )
            if not (isinstance(verdict, Refused) and verdict.reason == "stale"):
                break
        if isinstance(verdict, Refused) and verdict.reason == "unknown":
            raise _unknown(sticky_id)
        if isinstance(verdict, Refused):
            raise DecisionRefusedError(
                f"decision {sticky_id} was not taken back: {_REFUSALS.get(verdict.reason, verdict.reason)}",
                reason=verdict.reason,
                hint="see `outlast approvals sticky --all`",
            )

    async def _may_revoke(self, row: StickyRow) -> tuple[Guard, ...]:
        """Return the rows on which it rests that whoever acts may take a decision back: those who could have made it, and admins."""
        client = self._client
        if row.role:
            found = await held(client.authority, client.actor, row.role, row.workflow)
            if found is not None:
                return found.guards
        elif await permitted(client.authority, client.actor, "decide", row.workflow):
            return ()
        guards = await self._administers(row.workflow)
        if guards is not None:
            return guards
        if row.role:
            raise not_held(client, row.role, resource=row.workflow)
        raise not_permitted(client, "decide", run=row.run_id)

    async def _administers(self, workflow: str) -> tuple[Guard, ...] | None:
        """Return the rows on which it rests that whoever acts is an admin; None where they are none."""
        client = self._client
        if not isinstance(client.authority, StoreAuthority):
            is_admin = await permitted(client.authority, client.actor, "admin", workflow)
            return () if is_admin else None
        found = await held(client.authority, client.actor, ADMIN, workflow)
        return None if found is None else found.guards

    async def _find(self, sticky_id: str) -> Sequence[StickyRow]:
        """Return the one of this id; none where it is not there, not shown, or cannot be read."""
        if not sticky_id:
            raise _unknown(sticky_id)
        wanted = StickyFilter(sticky_id=sticky_id, over=True)
        return await self._visible(await self._client.store.sticky(self._client.tenant, wanted))

    async def _visible(self, rows: Sequence[StickyRow]) -> builtins.list[StickyRow]:
        """Return those whose workflows whoever acts may read, or in whose role they may decide."""
        client = self._client
        if await is_free(client, "read"):
            return builtins.list(rows)
        known: dict[tuple[str, str], bool] = {}
        for row in rows:
            place = row.workflow, row.role
            if place not in known:
                known[place] = await permitted(
                    client.authority, client.actor, "read", row.workflow
                ) or bool(await held(client.authority, client.actor, row.role, row.workflow))
        return [row for row in rows if known[row.workflow, row.role]]


def _unknown(sticky_id: str) -> DecisionRefusedError:
    return DecisionRefusedError(
        f"there is no decision {sticky_id!r:.80} that sticks",
        reason="unknown",
        hint="see `outlast approvals sticky --all`",
    )


_REFUSALS = {
    "revoked": "it was taken back before",
    "stale": "who may decide was changed at this very moment",
}


def view_of(row: StickyRow, now: datetime) -> StickyView:
    """Return a row as people see it."""
    put = row.put
    return StickyView(
        sticky_id=row.sticky_id,
        run_id=row.run_id,
        workflow=row.workflow,
        approval_id=row.approval_id,
        effect=put.effect,
        version=put.version,
        agent=put.agent,
        server=put.server,
        reach=put.reach,
        approved=row.approved,
        role=row.role,
        by=row.by,
        behalf=row.behalf,
        made_at=row.made_at,
        reason=put.reason.decode(),
        action_sha256=put.action_sha256,
        same=_same(put.where),
        when=_words(put.when),
        expires_at=row.expires_at,
        uses=row.uses,
        used=row.used,
        sticks=row.sticks(now),
        revoked_at=row.revoked_at,
        revoked_by=row.revoked_by,
        revoked_why=row.revoked_why.decode(),
    )


def _same(where: bytes) -> dict[str, Any]:
    try:
        given = msgspec.json.decode(where, type=dict[str, str])
        return {name: msgspec.json.decode(value) for name, value in given.items()}
    except msgspec.MsgspecError:
        # It answers nothing, or says no to everything.
        return {"unreadable": None}


def _words(when: bytes) -> tuple[str, ...]:
    try:
        given = msgspec.json.decode(when, type=list[tuple[str, str, Any]])
        return tuple(str(Predicate(*one)) for one in given)
    except (PolicyError, msgspec.MsgspecError) as error:
        return (f"unreadable: {error}",)
