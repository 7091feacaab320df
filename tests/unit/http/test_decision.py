"""A signed webhook decides in the name of those for whom its sender may speak; anything else decides nothing."""

from __future__ import annotations

import asyncio
import inspect
import json
from datetime import timedelta

import pytest

from outlast.client import Client
from outlast.errors import DefinitionError, StoreUnavailableError
from outlast.http import Sender, approvals
from outlast.policy.authority import StoreAuthority
from outlast.store.change import Decide
from outlast.testing import SeededRandom

from .approval_bench import BOT, KEY, OTHER, SENDERS, Front, Reply, call, signed


async def asked(front: Front) -> str:
    """Have a run ask, and return the hash."""
    return (await front.office.row(await front.office.ask())).put.subject_sha256


async def state(front: Front) -> str:
    """Return how the request stands."""
    (row,) = await front.office.store.approvals("default", pending=False)
    return row.state


@pytest.mark.parametrize(("word", "after"), [("approve", "approved"), ("deny", "denied")])
def test_a_decision_is_made_in_the_name_of_the_person(word: str, after: str) -> None:
    """It carries who said it, why, and by what way it came; sent again it changes nothing."""

    async def main() -> None:
        front = Front()
        seen = await asked(front)
        for _ in range(2):
            reply = await front.decide(decision=word, seen_sha256=seen, reason="fine")
            assert reply.status == 200, reply.body
            assert reply.json == {"run_id": "run", "approval_id": "1~r:1", "state": after}
        (row,) = await front.office.store.approvals("default", pending=False)
        assert (row.state, row.by) == (after, "ann@example.org")
        (mail,) = await front.office.store.mail(row.run)
        assert json.loads(mail.message.body)["reason"] == "fine (by way of bot)"

    asyncio.run(main())


@pytest.mark.parametrize(
    "change",
    [
        {"seen_sha256": None},
        {"seen_sha256": ""},
        {"seen_sha256": "A" * 64},
        {"seen_sha256": "a" * 64 + "\n"},
        {"seen_sha256": True},
        {"decision": None},
        {"decision": "yes"},
        {"decision": "Approve"},
        {"decision": True},
        {"decision": 1},
        {"decision": ["approve"]},
        {"approved": True},
        {"by": None},
        {"by": ""},
        {"by": "a\nb@example.org"},
        {"by": "a\x85b@example.org"},
        {"by": "a\u202eb@example.org"},
        {"by": "\ud800@example.org"},
        {"by": "a" * 900 + "@example.org"},
        {"by": 7},
        {"by": ["ann@example.org"]},
        {"by": {"name": "ann@example.org"}},
        {"run_id": None},
        {"run_id": ""},
        {"approval_id": None},
        {"reason": 1},
        {"role": "boss"},
    ],
    ids=str,
)
def test_what_is_malformed_decides_nothing(change) -> None:
    """Missing, of another type or form, or more than is known."""

    async def main() -> None:
        front = Front()
        seen = await asked(front)
        reply = await front.decide(**{"seen_sha256": seen, **change})
        assert (reply.status, reply.json["code"]) == (400, "malformed")
        assert await state(front) == "pending"

    asyncio.run(main())


@pytest.mark.parametrize(
    "body", [b"", b"null", b"0", b'"false"', b"{}", b"[]", b"approve", b"\xff", b"[" * 60_000]
)
def test_other_bytes_decide_nothing(body: bytes) -> None:
    """Signed though they be."""

    async def main() -> None:
        front = Front()
        await asked(front)
        headers = signed(body) if body.isascii() else signed(b"")
        reply = await front.post(body, headers=headers)
        assert reply.status == (400 if body.isascii() else 401)
        assert await state(front) == "pending"

    asyncio.run(main())


def without(name: str, body: bytes) -> dict[str, str]:
    """Return the headers of a webhook without one of them."""
    return {key: value for key, value in signed(body).items() if key != name}


def test_what_is_not_signed_decides_nothing() -> None:
    """Forged, unsigned, of nobody's secret, too old, too new, or of another body: one answer without a detail."""

    async def main() -> None:
        front = Front()
        seen = await asked(front)
        said = {
            "run_id": "run",
            "approval_id": "1~r:1",
            "by": "ann@example.org",
            "seen_sha256": seen,
        }
        body = json.dumps({**said, "decision": "approve"}).encode()
        good = signed(body)
        answers: set[bytes] = set()
        for headers in (
            {},
            {**good, "webhook-signature": "v1,AAAA"},
            {**good, "webhook-signature": "v1"},
            {**good, "webhook-signature": "v1,&&&"},
            {**good, "webhook-signature": "v2" + good["webhook-signature"][2:]},
            {**good, "webhook-id": "msg_2"},
            {**good, "webhook-timestamp": "soon"},
            {**good, "webhook-timestamp": "1e400"},
            *(without(name, body) for name in good),
            signed(body, "whsec_" + "eHh4" * 8),
            signed(body, ago=timedelta(minutes=6)),
            signed(body, ago=-timedelta(minutes=6)),
            signed(body.replace(b"approve", b"deny")),
        ):
            reply = await front.post(body, headers=headers)
            assert reply.status == 401, headers
            answers.add(reply.body)
        assert len(answers) == 1 and b"detail" not in answers.pop()
        assert await state(front) == "pending"
        assert (await front.post(body, headers=good)).status == 200

    asyncio.run(main())


@pytest.mark.parametrize(
    ("secret", "by", "status"),
    [
        (OTHER, "ann@example.org", 403),
        (OTHER, "eve@example.org", 200),
        (BOT, "root", 403),
        (BOT, "ann@example.org.evil", 403),
        (SENDERS["mute"].secrets[0], "ann@example.org", 403),
    ],
)
def test_a_sender_speaks_for_those_for_whom_he_may(secret: str, by: str, status: int) -> None:
    """And by default for nobody."""

    async def main() -> None:
        front = Front()
        seen = await asked(front)
        reply = await front.decide(secret, seen_sha256=seen, by=by)
        assert reply.status == status
        assert await state(front) == ("approved" if status == 200 else "pending")

    asyncio.run(main())


async def _late(front: Front) -> None:
    front.office.clock.advance(timedelta(hours=1))


async def _decided(front: Front) -> None:
    (row,) = await front.office.store.approvals("default")
    await front.office.deny(row.run)


async def _nothing(_: Front) -> None:
    return None


@pytest.mark.parametrize(
    ("before", "change", "code"),
    [
        (_late, {}, "expired"),
        (_decided, {}, "decided"),
        (_nothing, {"seen_sha256": "b" * 64}, "mismatch"),
        (_nothing, {"run_id": "nobody"}, "unknown"),
        (_nothing, {"approval_id": "1~r:9"}, "unknown"),
    ],
)
def test_what_is_refused_says_why(before, change, code: str) -> None:
    """The same checks as by any other way; the answer is a problem."""

    async def main() -> None:
        front = Front()
        seen = await asked(front)
        await before(front)
        stands = await state(front)
        reply = await front.decide(**{"seen_sha256": seen, **change})
        assert (reply.status, reply.headers["content-type"]) == (409, "application/problem+json")
        assert (reply.json["code"], reply.json["type"]) == (code, f"urn:outlast:decision:{code}")
        assert await state(front) == stands != "approved"

    asyncio.run(main())


def test_a_store_that_is_away_decides_nothing() -> None:
    """It is to be sent again."""

    async def main() -> None:
        front = Front()
        seen = await asked(front)

        async def away(_):
            raise StoreUnavailableError("away", hint="wait")

        front.office.store.commit = away
        assert (await front.decide(seen_sha256=seen)).status == 503
        assert await state(front) == "pending"

    asyncio.run(main())


def test_a_body_is_bounded_and_posted() -> None:
    """Longer ones are not read, and other methods are not allowed; one whose sender has gone is not answered."""

    async def main() -> None:
        front = Front()
        await asked(front)
        reply: Reply = await front.post(b" " * (64 * 1024 + 1), headers={})
        assert reply.status == 413
        reply = await call(front.app, "GET", "/decisions")
        assert (reply.status, reply.headers["allow"]) == (405, "POST")

        async def gone():
            return {"type": "http.disconnect"}

        async def send(_):
            raise AssertionError

        scope = {"type": "http", "method": "POST", "path": "/decisions", "headers": []}
        await front.app(scope, gone, send)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("senders", "part"),
    [
        ({"bot": Sender("short")}, "24 bytes"),
        ({"bot": Sender("whsec_&&&")}, "24 bytes"),
        ({"a": Sender(BOT), "b": Sender(BOT)}, "one secret"),
    ],
)
def test_secrets_that_are_none_are_refused(senders, part: str) -> None:
    """Before anything is served, and without telling them."""
    with pytest.raises(DefinitionError, match=part) as raised:
        approvals(Front().office.client, key=KEY, senders=senders)
    assert BOT not in str(raised.value)


def test_patterns_are_several() -> None:
    """One text would be a pattern for each of its letters, and a star for everybody."""
    with pytest.raises(DefinitionError, match="several patterns"):
        Sender(BOT, may_speak_for="*@example.org")
    assert BOT not in repr(Sender(BOT))


def test_whoever_acts_for_somebody_is_bound_as_he_is() -> None:
    """The client that acts in a person's name is the same but for the person: store, tenant, code, and whatever judges him."""
    client = Front().office.client
    other = client.acting_as("ann@example.org")
    assert (other.principal, client.principal) == ("ann@example.org", "tester")
    names = set(inspect.signature(Client.__init__).parameters) - {"self", "principal", "birth"}
    for name in names:
        attribute = f"_{name}" if hasattr(client, f"_{name}") else name
        assert getattr(other, attribute) is getattr(client, attribute), name


@pytest.mark.parametrize("role", ["maintainer", "outlast:read", ""])
def test_the_state_is_read_in_the_name_of_who_decides(role: str) -> None:
    """Not in that of the application: who may see it no more by then is told that it is decided, and not how it stands."""

    async def main() -> None:
        front = Front()
        seen = await asked(front)
        store = front.office.store
        client = Client(
            store,
            random=SeededRandom(2),
            principal="service",
            authority=StoreAuthority(store, "service"),
        )
        front.app = approvals(client, key=KEY, senders=SENDERS)
        for who, what in (("service", "outlast:read"), ("ann@example.org", "maintainer")):
            await client.roles.grant(who, what)
        commit = store.commit

        async def and_then(changes):
            verdicts = await commit(changes)
            if any(isinstance(one, Decide) for one in changes):
                store.commit = commit
                await client.roles.revoke("ann@example.org", "maintainer")
                if role:
                    await client.roles.grant("ann@example.org", role)
            return verdicts

        store.commit = and_then
        reply = await front.decide(seen_sha256=seen)
        assert reply.status == 200
        assert reply.json.get("state") == ("approved" if role else None)
        assert await state(front) == "approved"

    asyncio.run(main())


def test_who_may_see_nothing_is_told_nothing() -> None:
    """A request that is there, and one that is not, are refused alike."""

    async def main() -> None:
        front = Front()
        seen = await asked(front)
        store = front.office.store
        authority = StoreAuthority(store, "service")
        client = Client(store, random=SeededRandom(2), principal="service", authority=authority)
        front.app = approvals(client, key=KEY, senders=SENDERS)
        await client.roles.grant("service", "outlast:read")
        replies = [
            await front.decide(seen_sha256=seen, **change)
            for change in ({}, {"run_id": "nun"}, {"approval_id": "1~r:9"})
        ]
        assert [one.status for one in replies] == [403, 403, 403]
        assert len({json.dumps(one.json).replace("nun", "run") for one in replies}) == 1

    asyncio.run(main())
