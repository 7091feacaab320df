"""What of a decision may stick, as people say it; those that do, listed and taken back."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from asked_bench import HOUR, LOCAL, PAY, Asked, asked, putting

from outlast import Sticky
from outlast.client import Client
from outlast.errors import DecisionRefusedError, DefinitionError, NotAuthorisedError
from outlast.journal.asking import Rung, Terms
from outlast.policy import Predicate
from outlast.policy.authority import Principal
from outlast.store.sticky import StickyPut
from outlast.store.sticky_condition import StickyFilter

TERMS = Terms("treasurer", HOUR, sticky="workflow")
ASKS = {"terms": TERMS, "source": "declared"}
FIVE = Predicate("amount", "at_most", 5)


async def decide(
    asked: Asked,
    sticky: Any,
    *,
    client: Client | None = None,
    yes: bool = True,
    run: str = "run",
) -> None:
    """Have somebody decide on the only request of a run."""
    client = client or asked.client()
    (view,) = await client.approvals.list(run_id=run)
    act = client.approvals.approve if yes else client.approvals.deny
    await act(run, view.approval_id, seen_sha256=view.subject_sha256, reason="why", sticky=sticky)


async def put_by(asked: Asked, sticky: Sticky, *, yes: bool = True) -> StickyPut:
    """Return what a decision makes stick."""
    await asked.ask(putting(asked, **ASKS))
    await decide(asked, sticky, yes=yes)
    (row,) = await asked.store.sticky("default", StickyFilter())
    return row.put


@pytest.mark.parametrize(
    ("sticky", "action", "where", "when"),
    [
        (Sticky("call"), "h1", {}, []),
        (Sticky("run"), "h1", {}, []),
        (Sticky("run", same=("to",)), "", {"to": '"ann"'}, []),
        (Sticky("run", same=("to", "amount")), "", {"to": '"ann"', "amount": "500"}, []),
        (Sticky("run", same=(), when=(FIVE,)), "", {}, [["amount", "at_most", 5]]),
    ],
)
def test_all_arguments_are_the_same_unless_it_is_said_which(
    sticky: Sticky, action: str, where: Any, when: Any
) -> None:
    """By the hash of the whole call, or by those that are named and by predicates."""
    put = asked(lambda asked: put_by(asked, sticky))
    assert (put.effect, put.reach, put.reason) == ("pay", sticky.reach, b"why")
    assert put.action_sha256 == action
    assert msgspec.json.decode(put.where) == where
    assert msgspec.json.decode(put.when) == when


@pytest.mark.parametrize("reach", ["call", "run"])
def test_a_no_is_about_the_arguments_that_the_call_has(reach: Any) -> None:
    """Each by its name: the hash of a call is another one when the code gives it one more."""
    put = asked(lambda asked: put_by(asked, Sticky(reach), yes=False))
    assert put.action_sha256 == ""
    assert msgspec.json.decode(put.where) == {"amount": "500", "to": '"ann"'}


def test_uses_and_end_are_kept() -> None:
    """As they were given."""
    put = asked(lambda asked: put_by(asked, Sticky("workflow", uses=3, expires_in=HOUR)))
    assert (put.uses, put.expires_in) == (3, HOUR)


@pytest.mark.parametrize(
    "sticky",
    [
        "run",
        Sticky("no"),  # pyright: ignore[reportArgumentType]
        Sticky("ever"),  # pyright: ignore[reportArgumentType]
        Sticky("run", same="to"),  # pyright: ignore[reportArgumentType]
        Sticky("run", same=("nobody",)),
        Sticky("run", same=(), when=(5,)),  # pyright: ignore[reportArgumentType]
        Sticky("run", same=(), when=(Predicate("amuont", "at_most", 5),)),
        Sticky("run", when=(FIVE,)),
        Sticky("call", same=("to",)),
        Sticky("run", uses=0),
        Sticky("run", uses=True),
        Sticky("workflow"),
        Sticky("run", expires_in=timedelta(0)),
        Sticky("run", expires_in=timedelta(days=99_999)),
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_refused(sticky: Any) -> None:
    """Before anything is decided, with what to give."""

    async def scenario(asked: Asked) -> None:
        await asked.ask(putting(asked, **ASKS))
        with pytest.raises(DefinitionError) as refused:
            await decide(asked, sticky)
        assert refused.value.hint
        assert await asked.state() == "pending"

    asked(scenario)


def test_a_no_is_not_used_up() -> None:
    """It has no number of uses."""

    async def scenario(asked: Asked) -> None:
        await asked.ask(putting(asked, **ASKS))
        with pytest.raises(DefinitionError, match="not used up"):
            await decide(asked, Sticky("run", uses=2), yes=False)
        await decide(asked, Sticky("run"), yes=False)
        (view,) = await asked.client().approvals.sticky()
        assert (view.approved, view.reason, view.sticks) == (False, "why", True)

    asked(scenario)


@pytest.mark.parametrize(
    "fields",
    [
        {"terms": TERMS},
        {"terms": TERMS, "source": "purpose"},
        {**ASKS, "covers": (PAY, PAY)},
        {**ASKS, "covers": ({**PAY, "kind": "pattern", "action_sha256": ""},)},
        {"terms": TERMS, "schema": {"type": "string"}},
    ],
    ids=["code", "purpose", "two", "pattern", "question"],
)
def test_only_a_request_for_one_call_of_an_effect_can_stick(fields: Any) -> None:
    """Not what code asks, nor a second call of one purpose, nor a question; without it the decision is taken."""

    async def scenario(asked: Asked) -> None:
        await asked.ask(putting(asked, **fields))
        with pytest.raises(DecisionRefusedError) as refused:
            await decide(asked, Sticky("run"), yes=False)
        assert (refused.value.reason, refused.value.run) == ("sticky", "run")
        await decide(asked, None, yes=False)
        assert await asked.state() == "denied"

    asked(scenario)


def test_a_yes_that_would_stick_farther_than_the_terms_let_it_is_refused() -> None:
    """With what the declaration or the policy sets."""

    async def scenario(asked: Asked) -> None:
        await asked.ask(
            putting(asked, terms=Terms("treasurer", HOUR, sticky="call"), source="policy")
        )
        with pytest.raises(DecisionRefusedError) as refused:
            await decide(asked, Sticky("run"))
        assert refused.value.reason == "sticky"
        assert "how far" in refused.value.hint
        await decide(asked, Sticky("call"))

    asked(scenario)


def test_the_same_decision_again_is_no_other_one() -> None:
    """A second sending is taken as the first; one that is to stick otherwise, or not at all, comes too late."""

    async def scenario(asked: Asked) -> None:
        await asked.ask(putting(asked, **ASKS))
        client = asked.client()
        view = await asked.view()

        async def approve(sticky: Sticky | None) -> None:
            place = "run", view.approval_id
            await client.approvals.approve(*place, seen_sha256=view.subject_sha256, sticky=sticky)

        await approve(Sticky("run"))
        await approve(Sticky("run"))
        for other in (Sticky("call"), None, Sticky("run", uses=1)):
            with pytest.raises(DecisionRefusedError) as late:
                await approve(other)
            assert late.value.reason == "decided"
        assert len(await client.approvals.sticky(over=True)) == 1

    asked(scenario)


async def three(asked: Asked) -> list[str]:
    """Make decisions on requests of three runs, the last one far; return their ids."""
    client = asked.client()
    for number, reach in enumerate(("run", "call", "workflow")):
        run = f"run{number}"
        await asked.ask(putting(asked, **ASKS), name=run)
        await decide(asked, Sticky(reach, expires_in=HOUR), run=run, client=client)  # pyright: ignore[reportArgumentType]
        asked.clock.advance(timedelta(seconds=1))
    rows = await asked.store.sticky("default", StickyFilter())
    return [row.sticky_id for row in rows]


def test_decisions_are_listed_by_run_and_effect_and_page_by_page() -> None:
    """Oldest first, with those that are over only when they are asked for."""

    async def scenario(asked: Asked) -> None:
        book = asked.client().approvals
        ids = await three(asked)
        assert [one.sticky_id for one in await book.sticky()] == ids
        assert [one.sticky_id for one in await book.sticky(run_id="run0")] == [ids[0], ids[2]]
        assert await book.sticky(effect="other") == []
        first = await book.sticky(limit=2)
        rest = await book.sticky(limit=2, after=first[-1])
        assert [one.sticky_id for one in (*first, *rest)] == ids
        await book.revoke(ids[1], "wrong")
        assert [one.sticky_id for one in await book.sticky()] == [ids[0], ids[2]]
        taken = (await book.sticky(over=True))[1]
        assert (taken.revoked_by, taken.revoked_why, taken.sticks) == (LOCAL, "wrong", False)
        asked.clock.advance(HOUR)
        assert await book.sticky() == []
        assert len(await book.sticky(over=True)) == 3

    asked(scenario)


def test_who_holds_the_role_takes_it_back_and_nobody_else() -> None:
    """Others may not, whom it is shown to; to strangers, and in other tenants, there is none."""

    async def scenario(asked: Asked) -> None:
        ids = await three(asked)
        roles = asked.client().roles
        await roles.grant("ann", "treasurer")
        await roles.grant("rob", "outlast:read")
        with pytest.raises(NotAuthorisedError):
            await asked.client("rob").approvals.revoke(ids[0], "no")
        with pytest.raises(DecisionRefusedError, match="there is no decision"):
            await asked.client(LOCAL, tenant="other").approvals.revoke(ids[0], "no")
        ann = asked.client("ann").approvals
        for reason, wrong in (("", ids[0]), ("  ", ids[0])):
            with pytest.raises(DefinitionError, match="no reason"):
                await ann.revoke(wrong, reason)
        for unknown in ("", "nothing"):
            with pytest.raises(DecisionRefusedError) as refused:
                await ann.revoke(unknown, "no")
            assert refused.value.reason == "unknown"
        await roles.grant("zoe", "outlast:admin")
        await asked.client("zoe").approvals.revoke(ids[1], "an admin may, too")
        await ann.revoke(ids[0], "gone")
        with pytest.raises(DecisionRefusedError) as again:
            await ann.revoke(ids[0], "gone")
        assert again.value.reason == "revoked"

    asked(scenario)


class Directory:
    """Everybody may read, and one administers; nobody holds any role."""

    async def holds(self, principal: Principal, role: str, resource: str) -> None:
        """Return that they do not."""

    async def may(self, principal: Principal, verb: str, resource: str) -> bool:
        """Return whether they may."""
        return verb == "read" or (verb == "admin" and principal.subject == "zoe")

    async def holders(self, tenant: str, role: str, resource: str) -> None:
        """Return that nobody knows."""


def test_whoever_a_directory_lets_administer_takes_it_back() -> None:
    """It is asked whether they may, and not for a role of ours."""

    async def scenario(asked: Asked) -> None:
        ids = await three(asked)
        with pytest.raises(NotAuthorisedError):
            await asked.client("ann", authority=Directory()).approvals.revoke(ids[0], "no")
        await asked.client("zoe", authority=Directory()).approvals.revoke(ids[0], "no")
        assert [one.sticky_id for one in await asked.client().approvals.sticky()] == ids[1:]

    asked(scenario)


def test_a_decision_that_cannot_be_read_is_shown_as_such() -> None:
    """So that it can be taken back."""

    async def scenario(asked: Asked) -> None:
        await three(asked)
        table: Any = asked.store._rows.stickies["default"]  # pyright: ignore[reportAttributeAccessIssue]
        for name, row in table.items():
            put = msgspec.structs.replace(row.put, where=b"no", when=b"no")
            table[name] = msgspec.structs.replace(row, put=put)
        found = await asked.client().approvals.sticky()
        assert [one.same for one in found] == [{"unreadable": None}] * 3
        assert all(one.when[0].startswith("unreadable") for one in found)

    asked(scenario)


def test_a_decision_of_a_later_rung_does_not_stick() -> None:
    """Whoever is asked next is not asked in that role."""

    async def scenario(asked: Asked) -> None:
        terms = Terms("clerk", HOUR, sticky="run", escalate=(Rung("treasurer", HOUR),))
        put = msgspec.structs.replace(
            putting(asked, terms=terms, source="declared"), role="treasurer"
        )
        await asked.ask(put)
        assert (await asked.view()).sticky == "no"
        with pytest.raises(DecisionRefusedError) as refused:
            await decide(asked, Sticky("run"))
        assert refused.value.reason == "sticky"

    asked(scenario)
