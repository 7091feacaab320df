"""Which decisions that stick answer a call: of its effect, version, agent and server alone, and where its arguments fit.

They are looked at where a person would be asked, never before: what needs no yes is not held up by an old no. A no outvotes every yes;
of several the nearest and latest is told. A yes counts as long as who gave it holds the role.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from outlast.errors import (
    ApprovalDeniedError,
    ApprovalUnauthorisedError,
    PermissionDeniedError,
    PolicyError,
    StoreCorruptError,
)
from outlast.journal.asking import REACHES
from outlast.journal.canonical import canonical
from outlast.journal.entry import Entry, MessageReceived, UpdateReceived
from outlast.policy import Predicate
from outlast.replay.context import EffectRequest
from outlast.store.change import RunKey
from outlast.store.sticky import StickyRow
from outlast.store.sticky_condition import StickyFilter

Read = Callable[[StickyFilter], Awaitable[list[StickyRow]]]


class Sticking:
    """The decisions that stick, as one run meets them.

    Args:
        generation: Of the run.
        read: Reads those of the tenant.
    """

    def __init__(self, run: RunKey, generation: int, read: Read) -> None:
        self._run = run
        self._generation = generation
        self._read = read
        self._messages = 0

    def note(self, entry: Entry) -> None:
        """Take in the next entry of the run's journal."""
        self._messages += isinstance(entry, MessageReceived | UpdateReceived)

    @property
    def turn(self) -> str:
        """Which turn of the run it is: another one after each message."""
        return f"{self._generation}:{self._messages}"

    async def of(self, action: EffectRequest, server: str) -> list[StickyRow]:
        """Return every yes that fits a call.

        Raises:
            ApprovalDeniedError: A no does.
        """
        rows = await self._look(StickyFilter(run=self._run, effect=action.name))
        noes = [row for row in rows if not row.approved and self._fits(row, action, server)]
        if noes:
            raise _denied(max(noes, key=_nearest), action)
        return [row for row in rows if row.approved and self._fits(row, action, server)]

    async def check(self, ids: Sequence[str]) -> list[StickyRow]:
        """Return these decisions, which have answered requests, where none was taken back.

        Raises:
            ApprovalUnauthorisedError: One was.
        """
        found: list[StickyRow] = []
        for one in ids:
            rows = await self._look(StickyFilter(sticky_id=one, over=True))
            if not rows or rows[0].revoked_at is not None:
                raise _taken_back(one, rows[0] if rows else None)
            found += rows
        return found

    async def _look(self, wanted: StickyFilter) -> list[StickyRow]:
        try:
            return await self._read(wanted)
        except StoreCorruptError as error:
            raise PermissionDeniedError(
                f"a decision that sticks cannot be read, and it may say no: {error.message}",
                reason="error",
                hint=error.hint or "`outlast doctor` looks at the store",
            ) from None

    def _fits(self, row: StickyRow, action: EffectRequest, server: str) -> bool:
        put = row.put
        of_it = (put.version, put.agent, put.server) == (action.version, action.agent, server)
        if not of_it or (put.reach == "turn" and put.turn != self.turn):
            return False
        if put.action_sha256:
            return put.action_sha256 == action.action_sha256
        return _asks_for(row, action)


def _asks_for(row: StickyRow, action: EffectRequest) -> bool:
    """Whether arguments fit; what cannot be told counts against the call."""
    arguments: Any = msgspec.json.decode(action.arguments)
    try:
        where = msgspec.json.decode(row.put.where, type=dict[str, str])
        if any(
            _shown(action.fields.get(name)) != value
            for name, value in where.items()
            # A call that has no such argument may be the one that a no is about: it may have another name now.
            if row.approved or name in action.fields
        ):
            return False
        said = [one.holds(arguments) for one in predicates(row.put.when)]
    except (PolicyError, msgspec.MsgspecError):
        # What nobody can judge.
        return not row.approved
    return all(said) if row.approved else all(one is not False for one in said)


def _shown(value: str | None) -> str:
    """Return the canonical JSON of an argument as it is shown to people, where whole numbers beyond those of JSON are text."""
    return "" if value is None else canonical(msgspec.json.decode(value)).decode()


def predicates(when: bytes) -> list[Predicate]:
    """Return what is asked of arguments.

    Raises:
        PolicyError: It is none.
    """
    return [Predicate(*one) for one in msgspec.json.decode(when, type=list[tuple[str, str, Any]])]


def _nearest(row: StickyRow) -> tuple[int, Any]:
    return -REACHES.index(row.put.reach), row.key


def _denied(row: StickyRow, action: EffectRequest) -> ApprovalDeniedError:
    reason = row.put.reason.decode()
    return ApprovalDeniedError(
        f"denied by {row.by}: {reason or 'no reason given'} (decision {row.sticky_id}, which sticks)",
        by=row.by,
        reason=reason,
        step=action.name,
        hint="`outlast approvals sticky` lists the decisions that stick, and says how one is taken back",
    )


def lent_anew(row: StickyRow) -> ApprovalUnauthorisedError:
    """Return the error that who made a decision, which has answered a request, holds the role by a loan that it did not rest on."""
    return ApprovalUnauthorisedError(
        f"the decision {row.sticky_id}, by which it was approved, was made by {row.by}, who holds the role now as the delegate of somebody else",
        who=row.by,
        role=row.role,
        hint="ask for another approval: `outlast roles list` says whose delegate they are",
    )


def _taken_back(sticky_id: str, row: StickyRow | None) -> ApprovalUnauthorisedError:
    who = "" if row is None else row.by
    by = f" by {row.revoked_by}" if row is not None and row.revoked_by else ""
    return ApprovalUnauthorisedError(
        f"the decision {sticky_id}, by which it was approved, was taken back{by}",
        who=who,
        role="" if row is None else row.role,
        hint="ask for another approval: `outlast approvals sticky --all` says why it was taken back",
    )
