"""How people decide: in a role that they hold, on what they saw, once; and what decides nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from asked_bench import HOUR, LOCAL, PAY, Asked, asked, client_of, putting
from msgspec.structs import replace

import outlast
from outlast.approvals.decision import REFUSALS
from outlast.client import Told
from outlast.client.approval import _REMEDIES
from outlast.errors import DecisionRefusedError, DefinitionError, NotAuthorisedError
from outlast.journal.asking import Terms
from outlast.policy.authority import Held
from outlast.store.change import Change, Decide, MessageKind, RunKey, Verdict
from outlast.store.memory import MemoryStore
from outlast.store.notice import EndNotice, TakeNotices
from outlast.testing.conformance.bench import following
from outlast.testing.fault import FaultyStore

TWO = Terms("treasurer", HOUR, quorum=2, four_eyes=True, edits="second")


async def decide(asked: Asked, who: str, *, yes: bool = True, **fields: Any) -> None:
    """Have somebody decide the only request."""
    client = asked.client(who, **fields)
    view = await asked.view(asked.client())
    act = client.approvals.approve if yes else client.approvals.deny
    await act("run", view.approval_id, seen_sha256=view.subject_sha256)


def test_who_does_not_hold_the_role_decides_nothing() -> None:
    """Neither a stranger in an open tenant, nor, once roles are set, the local user; the holder does."""

    async def scenario(asked: Asked) -> None:
        await asked.ask()
        with pytest.raises(NotAuthorisedError) as refused:
            await decide(asked, "eve")
        assert (refused.value.who, refused.value.role) == ("eve", "treasurer")
        assert refused.value.run == "run"
        assert f"{LOCAL}, who opened the store first, holds all of them" in refused.value.hint
        assert "`outlast roles grant eve treasurer`" in refused.value.hint
        await asked.client().roles.grant("ann", "treasurer", resource="fi?")
        for who in ("eve", LOCAL):
            for yes in (True, False):
                with pytest.raises(NotAuthorisedError):
                    await decide(asked, who, yes=yes)
        with pytest.raises(NotAuthorisedError):
            await decide(asked, "ann", roles=("auditor",))
        assert await asked.state() == "pending"
        await decide(asked, "ann")
        assert await asked.state() == "approved"

    asked(scenario)


def test_the_local_user_decides_in_an_open_tenant() -> None:
    """As long as no roles are set; the decision names the role and its guard."""

    async def scenario(asked: Asked) -> None:
        await asked.ask()
        await decide(asked, LOCAL, yes=False)
        (said,) = await asked.mail()
        assert (said["by"], said["role"], said["approved"]) == (LOCAL, "treasurer", False)
        assert await asked.state() == "denied"

    asked(scenario)


def test_a_role_elsewhere_is_none_here() -> None:
    """Case 56, of roles: what somebody may approve for one workflow, they may not for another, nor in another tenant."""

    async def scenario(asked: Asked) -> None:
        await asked.ask()
        await asked.client().roles.grant("ann", "treasurer", resource="pay_*")
        await asked.client(tenant="other").roles.grant("ann", "treasurer")
        with pytest.raises(NotAuthorisedError):
            await decide(asked, "ann")
        other = asked.client("ann", tenant="other")
        assert await other.approvals.list() == []
        assert await asked.state() == "pending"

    asked(scenario)


def test_a_delegate_speaks_for_both() -> None:
    """What a delegate says counts as said by who lent the role: they are one vote together, and bound by the same four eyes."""

    async def scenario(asked: Asked) -> None:
        await asked.ask(putting(asked, terms=TWO, requesters=("zoe",)))
        for who in ("ann", "cid", "zoe"):
            await asked.client().roles.grant(who, "treasurer")
        until = asked.clock.now() + HOUR
        await asked.client("ann").roles.delegate("treasurer", "bob", until=until)
        await asked.client("zoe").roles.delegate("treasurer", "yan", until=until)
        await decide(asked, "bob")
        (said,) = await asked.mail()
        assert (said["by"], said["behalf"]) == ("bob", "ann")
        for who, reason in (("ann", "voted"), ("zoe", "self"), ("yan", "self")):
            with pytest.raises(DecisionRefusedError) as refused:
                await decide(asked, who)
            assert refused.value.reason == reason
            assert refused.value.hint
        view = await asked.view()
        assert [(one.by, one.behalf) for one in view.votes] == [("bob", "ann")]
        assert (view.quorum, view.missing, view.state) == (2, 1, "pending")
        await decide(asked, "cid")
        assert await asked.state() == "approved"

    asked(scenario)


class Between(FaultyStore):
    """Has something happen immediately before a decision is written."""

    def __init__(self, store: Any, acts: list[Any]) -> None:
        super().__init__(store, random.Random(1))
        self.acts = acts
        self.decisions = 0

    async def commit(self, changes: Sequence[Change]) -> list[Verdict]:
        """Let the next act happen first."""
        if any(isinstance(one, Decide) for one in changes):
            self.decisions += 1
            if self.acts:
                await self.acts.pop(0)()
        return await super().commit(changes)


def test_a_role_that_is_revoked_meanwhile_decides_nothing() -> None:
    """Between the answer and the write: the store refuses, and who is asked anew says no."""

    async def scenario(asked: Asked) -> None:
        await asked.ask()
        admin = asked.client().roles
        await admin.grant("ann", "treasurer")
        store = Between(asked.store, [lambda: admin.revoke("ann", "treasurer")])
        view = await asked.view(asked.client("ann"))
        with pytest.raises(NotAuthorisedError):
            await client_of(store, "ann").approvals.approve(
                "run", view.approval_id, seen_sha256=view.subject_sha256
            )
        assert (store.decisions, await asked.state()) == (1, "pending")

    asked(scenario)


def test_roles_that_change_elsewhere_hold_nobody_up() -> None:
    """Another change of the row has the decision asked anew, so often as it happens, up to a bound."""

    async def scenario(asked: Asked) -> None:
        await asked.ask()
        admin = asked.client().roles
        await admin.grant("ann", "treasurer")
        view = await asked.view(asked.client("ann"))

        def acts(count: int) -> list[Any]:
            return [lambda n=n: admin.grant(f"p{n}", "auditor") for n in range(count)]

        busy = Between(asked.store, acts(50))
        with pytest.raises(DecisionRefusedError) as refused:
            await client_of(busy, "ann").approvals.deny(
                "run", view.approval_id, seen_sha256=view.subject_sha256
            )
        assert (refused.value.reason, busy.decisions) == ("stale", 10)
        store = Between(asked.store, acts(3))
        await client_of(store, "ann").approvals.approve(
            "run", view.approval_id, seen_sha256=view.subject_sha256
        )
        assert (store.decisions, await asked.state()) == (4, "approved")

    asked(scenario)


NOTHING: list[Any] = [None, 0, "", {}, [], b"1~r:1", False]


@pytest.mark.parametrize("given", NOTHING, ids=repr)
def test_case_065_what_is_no_decision_decides_nothing(given: Any) -> None:
    """A request, or a hash, that is not named is an error; a word in its place names no request and fits no hash."""

    async def scenario(asked: Asked) -> None:
        await asked.ask()
        approvals, view = asked.client().approvals, await asked.view()
        id, seen = view.approval_id, view.subject_sha256
        for act in (approvals.approve, approvals.deny):
            with pytest.raises(DefinitionError, match="the decision names no"):
                await act("run", given, seen_sha256=seen)
            with pytest.raises(DefinitionError, match="the decision names no"):
                await act("run", id, seen_sha256=given)
        with pytest.raises(DefinitionError):
            await approvals.edit("run", id, seen_sha256=seen, arguments=given)
        for words in (("false", seen), (id, "false")):
            with pytest.raises(DecisionRefusedError):
                await approvals.approve("run", words[0], seen_sha256=words[1])
        assert (await asked.state(), await asked.mail()) == ("pending", [])

    asked(scenario)


def test_case_046_one_answer_is_for_one_request() -> None:
    """Two wait: a decision that does not name one is none, and one that does leaves the other alone."""

    async def scenario(asked: Asked) -> None:
        second = putting(asked, "1~r:2", operation="r:2", covers=())
        await asked.ask(putting(asked), second)
        approvals = asked.client().approvals
        with pytest.raises(DecisionRefusedError, match="2 requests of this run wait") as refused:
            await approvals.get("run")
        assert refused.value.reason == "ambiguous"
        first = await approvals.get("run", "1~r:1")
        with pytest.raises(DecisionRefusedError) as refused:
            await approvals.approve("run", "1~r:2", seen_sha256=first.subject_sha256)
        assert refused.value.reason == "mismatch"
        await approvals.approve("run", "1~r:1", seen_sha256=first.subject_sha256)
        rows = await asked.store.approvals("default", pending=False)
        assert {row.put.approval_id: row.state for row in rows} == {
            "1~r:1": "approved",
            "1~r:2": "pending",
        }

    asked(scenario)


def test_an_edit_says_whole_arguments() -> None:
    """What is not edited stays; the message has an id made of the edits, and the request is closed as edited."""

    async def scenario(asked: Asked) -> None:
        await asked.ask(putting(asked, terms=TWO, requesters=("zoe",)))
        view, approvals = await asked.view(), asked.client().approvals
        await approvals.edit(
            "run",
            view.approval_id,
            seen_sha256=view.subject_sha256,
            arguments={0: {"amount": 5}},
            reason="too much",
        )
        (said,) = await asked.mail()
        assert said["edits"] == [{"cover": 0, "arguments": {"amount": 5, "to": "ann"}}]
        assert (said["approved"], said["reason"], said["role"]) == (False, "too much", "treasurer")
        (mail,) = await asked.store.mail(RunKey("default", "run"))
        assert mail.message.kind is MessageKind.DECISION
        assert mail.message.result == "edited"
        start, _, digest = mail.message.message_id.rpartition("/")
        assert (start, len(digest)) == (f"edit/1~r:1/{LOCAL}", 16)
        assert await asked.state() == "edited"
        with pytest.raises(DecisionRefusedError) as refused:
            await approvals.approve("run", view.approval_id, seen_sha256=view.subject_sha256)
        assert (refused.value.reason, "an id and a hash of its own" in refused.value.hint) == (
            "edited",
            True,
        )

    asked(scenario)


PATTERN = {"effect": "send", "kind": "pattern", "action_sha256": "", "arguments": {"to": "ann"}}


@pytest.mark.parametrize(
    ("arguments", "error", "what"),
    [
        ({1: {"to": "bob"}}, DecisionRefusedError, "no call of number 1"),
        ({2: {"to": "bob"}}, DecisionRefusedError, "no call of number 2"),
        ({-1: {"to": "bob"}}, DecisionRefusedError, "no call of number -1"),
        ({0: {"colour": 1}}, DecisionRefusedError, "no argument 'colour'"),
        ({0: {}}, DefinitionError, "no arguments"),
        ({0: None}, DefinitionError, "no arguments"),
        ({"0": {"to": "bob"}}, DefinitionError, "no number of a covered call"),
        ({True: {"to": "bob"}}, DefinitionError, "no number of a covered call"),
        ({0: {"amount": object()}}, outlast.EncodeError, "amount"),
        ({0: {"amount": 5}}, DecisionRefusedError, "approved or denied, and not edited"),
    ],
)
def test_an_edit_that_fits_nothing_is_refused(
    arguments: Any, error: type[Exception], what: str
) -> None:
    """Nothing was decided then; the last one is refused by the store, as its terms say."""

    async def scenario(asked: Asked) -> None:
        await asked.ask(putting(asked, covers=[PAY, PATTERN]))
        view = await asked.view()
        with pytest.raises(error, match=what):
            await asked.client().approvals.edit(
                "run", view.approval_id, seen_sha256=view.subject_sha256, arguments=arguments
            )
        assert await asked.state() == "pending"

    asked(scenario)


def test_what_was_edited_is_shown_with_what_it_was() -> None:
    """A request that follows an edit names each argument that changed; lists do not look it up."""

    async def scenario(asked: Asked) -> None:
        run = await asked.ask(putting(asked, terms=TWO, requesters=("zoe",)))
        view = await asked.view()
        await asked.client().approvals.edit(
            "run", view.approval_id, seen_sha256=view.subject_sha256, arguments={0: {"amount": 5}}
        )
        after = {**PAY, "action_sha256": "h2", "arguments": {"amount": 5, "to": "ann"}}
        put = putting(
            asked,
            "1~r:1#2",
            terms=TWO,
            requesters=("zoe",),
            covers=[after],
            again="edited",
            barred=(LOCAL,),
        )
        await asked.apply(following(await asked.head(run), approvals=(put,)))
        shown = await asked.client().approvals.get("run")
        assert [(one.cover, one.field, one.was, one.becomes) for one in shown.changes] == [
            (0, "amount", 500, 5)
        ]
        assert (shown.again, shown.barred, shown.four_eyes, shown.edits) == (
            "edited",
            (LOCAL,),
            True,
            "second",
        )
        assert (await asked.view()).changes == ()

    asked(scenario)


SCHEMA = {
    "type": "object",
    "properties": {"amount": {"type": "integer"}, "when": {"enum": ["now", "later"]}},
    "required": ["amount"],
}


def test_an_answer_fits_what_is_asked() -> None:
    """One that does not is refused with the place; one that does is written as JSON. A yes is no answer, and an answer no yes."""

    async def scenario(asked: Asked) -> None:
        await asked.ask(putting(asked, schema=SCHEMA))
        view, approvals = await asked.view(), asked.client().approvals
        id, seen = view.approval_id, view.subject_sha256
        assert (view.kind, view.schema) == ("question", SCHEMA)
        for value, why in (
            (None, r"\$: expected object"),
            ("false", r"\$: expected object"),
            ({}, "'amount' is missing"),
            ({"amount": "5"}, r"\$.amount: expected integer"),
            ({"amount": True}, r"\$.amount: expected integer"),
            ({"amount": 5, "when": "never"}, r"\$.when: expected one of"),
        ):
            with pytest.raises(DecisionRefusedError, match=why) as refused:
                await approvals.answer("run", id, value, seen_sha256=seen)
            assert refused.value.reason == "unfit"
        with pytest.raises(DecisionRefusedError, match="asks for an answer"):
            await approvals.approve("run", id, seen_sha256=seen)
        with pytest.raises(DecisionRefusedError, match="no call of number 0"):
            await approvals.edit("run", id, seen_sha256=seen, arguments={0: {"amount": 5}})
        assert await asked.state() == "pending"
        await approvals.answer("run", id, {"amount": 5, "when": "now"}, seen_sha256=seen)
        (said,) = await asked.mail()
        assert (said["approved"], said["answer"]) == (True, {"amount": 5, "when": "now"})
        assert await asked.state() == "approved"

    asked(scenario)


def test_a_yes_is_not_answered() -> None:
    """And a stranger answers nothing."""

    async def scenario(asked: Asked) -> None:
        await asked.ask()
        view = await asked.view()
        with pytest.raises(DecisionRefusedError, match="asks for a yes"):
            await asked.client().approvals.answer(
                "run", view.approval_id, 5, seen_sha256=view.subject_sha256
            )
        assert await asked.state() == "pending"

    asked(scenario)


def test_a_request_lends_its_role_for_its_workflow() -> None:
    """The delegate decides for that workflow, and for no other, until the end."""

    async def scenario(asked: Asked) -> None:
        await asked.ask()
        await asked.ask(putting(asked, "1~r:1"), name="other", workflow="fix_more")
        with pytest.raises(NotAuthorisedError, match="no roles are set"):
            await asked.client().approvals.delegate(
                "run", "1~r:1", "bob", until=asked.clock.now() + HOUR
            )
        await asked.client().roles.grant("ann", "treasurer")
        until = asked.clock.now() + timedelta(minutes=5)
        await asked.client("ann").approvals.delegate(
            "run", "1~r:1", "bob", until=until, reason="away"
        )
        bob = asked.client("bob").approvals
        other = await bob.get("other")
        with pytest.raises(NotAuthorisedError):
            await bob.approve("other", other.approval_id, seen_sha256=other.subject_sha256)
        view = await bob.get("run")
        asked.clock.advance(timedelta(minutes=5))
        with pytest.raises(NotAuthorisedError):
            await bob.approve("run", view.approval_id, seen_sha256=view.subject_sha256)
        assert await asked.state() == "pending"

    asked(scenario)


def test_a_request_without_a_role_needs_one_of_the_librarys_own() -> None:
    """One of an older library that names no role: in an open tenant the local user decides, else who holds `outlast:decide`."""

    async def scenario(asked: Asked) -> None:
        await asked.ask(putting(asked, terms=Terms("", HOUR)))
        with pytest.raises(NotAuthorisedError) as refused:
            await decide(asked, "eve")
        assert refused.value.verb == "decide"
        await asked.client().roles.grant("ann", "outlast:decide")
        await decide(asked, "ann")
        assert await asked.state() == "approved"

    asked(scenario)


def test_what_may_not_be_read_is_not_listed() -> None:
    """Once reading is no longer free: who may neither read nor decide sees nothing, and is told the same of what is not there."""

    async def scenario(asked: Asked) -> None:
        await asked.ask()
        roles = asked.client().roles
        await roles.grant("ann", "treasurer")
        await roles.grant("rea", "outlast:read", resource="fi*")
        asked.clock.advance(timedelta(seconds=2))
        for who in ("ann", "rea"):
            assert [one.run_id for one in await asked.client(who).approvals.list()] == ["run"]
        eve = asked.client("eve").approvals
        assert await eve.list() == []
        said: list[str] = []
        for run in ("run", "nun"):
            for id in ("", "1~r:1"):
                with pytest.raises(NotAuthorisedError) as refused:
                    await eve.get(run, id)
                said.append(str(refused.value).replace(f"(run {run})", ""))
        assert len(set(said)) == 1

    asked(scenario)


def test_a_directory_of_the_users_decides_who_may() -> None:
    """It is asked with role and workflow; a yes of it rests on no row, and what is no `Held` is a no."""

    class Directory:
        answers: list[Any]

        async def holds(self, principal: outlast.Principal, role: str, resource: str) -> Any:
            assert (principal.subject, role, resource) == ("ann", "treasurer", "fix")
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        async def may(self, principal: outlast.Principal, verb: str, resource: str) -> bool:
            return True

        async def holders(self, tenant: str, role: str, resource: str) -> list[str] | None:
            return None

    async def scenario(asked: Asked) -> None:
        await asked.ask()
        directory = Directory()
        directory.answers = [None, True, "yes", RuntimeError("down"), Held("zoe")]
        for _ in range(4):
            with pytest.raises(NotAuthorisedError, match="treasurer"):
                await decide(asked, "ann", authority=directory)
        await decide(asked, "ann", authority=directory)
        (said,) = await asked.mail()
        assert said["behalf"] == "zoe"

    asked(scenario)


def test_each_refusal_has_its_words() -> None:
    """All that the store can say of a decision, in words, with what to do."""
    stated = Decide.__doc__ or ""
    words = set(REFUSALS)
    assert all(f"`{word}`" in stated for word in words)
    assert words == {
        "unknown", "decided", "edited", "withdrawn", "expired", "mismatch", "role", "self", "voted", "uneditable", "sticky", "stale",
    }  # fmt: skip
    assert set(_REMEDIES) <= words


acted: list[int] = []


@outlast.effect(idempotent=True)
async def refund(amount: int) -> int:
    """Note that it happened."""
    acted.append(amount)
    return amount


@outlast.workflow
async def careful() -> int:
    """Ask first."""
    await outlast.approval("refund?", covers=[refund(5)], role="treasurer", expires_in=HOUR)
    return await refund(5)


def _flipped(stamped: Any) -> Any:
    message = stamped.message
    if message.kind is not MessageKind.DECISION:
        return stamped
    assert b'"approved":false' in message.body
    body = message.body.replace(b'"approved":false', b'"approved":true')
    return replace(stamped, message=replace(message, body=body))


def test_case_068_a_yes_that_was_written_into_a_message_permits_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The row decides: a no that somebody changed into a yes in the stored message lets no effect begin."""
    flipped: list[str] = []
    load, mail = MemoryStore.load, MemoryStore.mail

    async def changed_load(store: MemoryStore, run: RunKey) -> Any:
        image = await load(store, run)
        return image and replace(image, messages=tuple(map(_flipped, image.messages)))

    async def changed_mail(store: MemoryStore, run: RunKey) -> Any:
        found = tuple(map(_flipped, await mail(store, run)))
        flipped.extend(one.message.name for one in found)
        return found

    monkeypatch.setattr(MemoryStore, "load", changed_load)
    monkeypatch.setattr(MemoryStore, "mail", changed_mail)

    async def main() -> None:
        async with outlast.open("memory://", workflows=[careful]) as app:
            handle = await app.start(careful(), id="r")
            while not (views := await app.approvals.list()):
                await asyncio.sleep(0.01)
            id, seen = views[0].approval_id, views[0].subject_sha256
            await app.approvals.deny("r", id, seen_sha256=seen)
            with pytest.raises(outlast.OutlastError):
                await handle.result()
            (view,) = await app.approvals.list(pending=False)
            assert (view.state, view.spent) == ("denied", ("",))

    acted.clear()
    asyncio.run(main())
    assert flipped
    assert acted == []


def test_a_question_is_answered_and_not_approved() -> None:
    """So it is shown; the store, which knows a yes and a no, keeps what it kept. A no to a question is one."""

    async def scenario(asked: Asked) -> None:
        for name, yes in (("run", True), ("other", False)):
            await asked.ask(putting(asked, schema={"type": "integer"}), name=name)
            people = asked.client().approvals
            view = await people.get(name)
            assert view.state == "pending"
            if yes:
                await people.answer(name, view.approval_id, 7, seen_sha256=view.subject_sha256)
                assert await asked.state() == "approved"
            else:
                await people.deny(name, view.approval_id, seen_sha256=view.subject_sha256)
            (view,) = await people.list(pending=False, run_id=name)
            assert view.state == ("answered" if yes else "denied")
            assert view == await people.get(name, view.approval_id)

    asked(scenario)


def test_what_people_were_told_is_shown_to_who_looks() -> None:
    """By which channels, and what could not be sent, of this request alone; nothing in lists, nor once it is decided."""

    async def scenario(asked: Asked) -> None:
        terms = Terms("treasurer", HOUR, remind=(HOUR / 2,))
        second = putting(asked, "1~r:2", operation="r:2")
        await asked.ask(putting(asked, terms=terms), second)
        await asked.ask(name="other")
        people = asked.client().approvals
        (told, reminder) = (await people.get("run", "1~r:1")).told
        assert (told.notice, told.state, told.tries, told.reached) == ("asked", "open", 0, ())
        assert reminder == Told("reminder-1", "open", asked.clock.now() + HOUR / 2, 0, (), "")
        await asked.apply(TakeNotices("", 9, HOUR / 4))
        said = EndNotice("default", "run", 1, "1~r:1", "asked", 1, sent=False, reached=("post",), retry_in=HOUR / 9, trouble=b"chat: \xff")  # fmt: skip
        await asked.apply(said)
        told = (await people.get("run", "1~r:1")).told[0]
        assert (told.state, told.tries, told.reached) == ("open", 1, ("post",))
        assert told.trouble == "chat: \N{REPLACEMENT CHARACTER}"
        assert (await people.list())[0].told == ()
        view = await people.get("run", "1~r:1")
        await people.deny("run", "1~r:1", seen_sha256=view.subject_sha256)
        assert (await people.get("run", "1~r:1")).told == ()
        assert len((await people.get("other")).told) == 1

    asked(scenario)
