"""Roles from outside: granted by admins, lent by who holds them, each change kept with who made it."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from asked_bench import HOUR, LOCAL, Asked, asked, client_of

import outlast
from outlast.client import Client
from outlast.errors import DecodeError, DefinitionError, NotAuthorisedError, StoreError
from outlast.policy.authority import Anybody
from outlast.store.change import Applied, Conflict, PutControl
from outlast.testing import SeededRandom


async def held(client: Client) -> list[tuple[str, str]]:
    """Return who holds what."""
    return [(one.subject, one.role) for one in await client.roles.list()]


def test_the_first_grant_closes_the_tenant_for_good() -> None:
    """Whoever gave it is its admin; the local user holds nothing else any more."""

    async def scenario(asked: Asked) -> None:
        local = asked.client()
        assert await held(local) == []
        with pytest.raises(NotAuthorisedError) as refused:
            await asked.client("eve").roles.grant("eve", "outlast:admin")
        assert (refused.value.who, refused.value.verb, await held(local)) == ("eve", "admin", [])
        await local.roles.grant("ann", "treasurer", reason="head of finance")
        assert await held(local) == [(LOCAL, "outlast:admin"), ("ann", "treasurer")]
        for who in ("ann", "eve"):
            with pytest.raises(NotAuthorisedError):
                await asked.client(who).roles.grant(who, "auditor")
            with pytest.raises(NotAuthorisedError):
                await asked.client(who).roles.revoke("ann", "treasurer")
        await local.roles.revoke("ann", "treasurer", reason="left")
        assert await held(local) == [(LOCAL, "outlast:admin")]
        assert [
            (one.verb, one.subject, one.by, one.reason) for one in await local.roles.acts()
        ] == [
            ("grant", "ann", LOCAL, "head of finance"),
            ("revoke", "ann", LOCAL, "left"),
        ]
        assert (await local.roles.acts())[0].at == asked.clock.now()

    asked(scenario)


def test_somebody_can_always_change_the_roles() -> None:
    """The last admin is not revoked, and one for a while or for some workflows is none of those."""

    async def scenario(asked: Asked) -> None:
        roles = asked.client().roles
        await roles.grant("ann", "outlast:admin", resource="pay_*")
        await roles.grant("bob", "outlast:admin", until=asked.clock.now() + HOUR)
        with pytest.raises(DefinitionError, match="nobody could change the roles"):
            await roles.revoke(LOCAL, "outlast:admin")
        with pytest.raises(DefinitionError, match="nobody could change the roles"):
            await roles.grant(LOCAL, "outlast:admin", until=asked.clock.now() + HOUR)
        with pytest.raises(NotAuthorisedError):
            await asked.client("ann").roles.grant("ann", "treasurer")
        await asked.client("bob").roles.grant("zoe", "outlast:admin")
        await asked.client("zoe").roles.revoke(LOCAL, "outlast:admin")
        asked.clock.advance(HOUR)
        for who in ("bob", LOCAL):
            with pytest.raises(NotAuthorisedError):
                await asked.client(who).roles.grant(who, "treasurer")

    asked(scenario)


def test_only_what_is_held_is_lent() -> None:
    """With an end, by a binding of one's own that reaches as far, to somebody else; and taken back by who lent it."""

    async def scenario(asked: Asked) -> None:
        until = asked.clock.now() + HOUR
        with pytest.raises(NotAuthorisedError, match="no roles are set"):
            await asked.client().roles.delegate("treasurer", "bob", until=until)
        await asked.client().roles.grant("ann", "treasurer", resource="pay_*")
        ann, bob = asked.client("ann").roles, asked.client("bob").roles
        for role, resource in (("treasurer", "*"), ("treasurer", "pay?*"), ("auditor", "pay_*")):
            with pytest.raises(NotAuthorisedError):
                await ann.delegate(role, "bob", until=until, resource=resource)
        with pytest.raises(NotAuthorisedError):
            await asked.client("ann", roles=("auditor",)).roles.delegate(
                "treasurer", "bob", until=until, resource="pay_*"
            )
        with pytest.raises(DefinitionError, match="to oneself"):
            await ann.delegate("treasurer", "ann", until=until, resource="pay_*")
        for end in (None, asked.clock.now(), datetime(2030, 1, 1), "soon"):
            with pytest.raises(DefinitionError):
                await ann.delegate("treasurer", "bob", until=end, resource="pay_*")  # type: ignore[arg-type]
        await ann.delegate("treasurer", "bob", until=until, resource="pay_x*", reason="away")
        with pytest.raises(NotAuthorisedError):
            await bob.delegate("treasurer", "cid", until=until, resource="pay_x*")
        with pytest.raises(NotAuthorisedError):
            await bob.revoke("ann", "treasurer")
        await ann.revoke("bob", "treasurer", reason="back")
        assert [(one.subject, one.delegated_by) for one in await ann.list()] == [
            (LOCAL, ""),
            ("ann", ""),
        ]
        await ann.delegate("treasurer", "bob", until=until, resource="pay_x*")
        await asked.client().roles.revoke("ann", "treasurer")
        await asked.client().roles.grant("ann", "treasurer")
        assert ("bob", "treasurer") not in await held(asked.client())

    asked(scenario)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"subject": ""}, "name of somebody"),
    ({"subject": "a\nb"}, "name of somebody"),
    ({"subject": "a\u202eb"}, "name of somebody"),
    ({"subject": None}, "name of somebody"),
    ({"subject": "x" * 201}, "name of somebody"),
    ({"role": "\ud800"}, "name of a role"),
    ({"role": "a:b"}, "name of a role"),
    ({"role": "outlast:dance"}, "role of no verb"),
    ({"resource": ""}, "resource has 0 characters"),
    ({"resource": "[ab]"}, "resource is no glob"),
    ({"reason": "x" * 1001}, "cannot be kept"),
    ({"reason": None}, "cannot be kept"),
]


@pytest.mark.parametrize(("given", "what"), BAD, ids=[repr(one)[:30] for one, _ in BAD])
def test_what_cannot_be_kept_is_refused(given: dict[str, Any], what: str) -> None:
    """And nothing was written: the tenant is as open as it was."""

    async def scenario(asked: Asked) -> None:
        fields = {"subject": "ann", "role": "treasurer", **given}
        with pytest.raises(DefinitionError, match=what):
            await asked.client().roles.grant(**fields)
        assert await asked.store.control("default", "roles") is None

    asked(scenario)


def test_what_is_not_there_is_not_revoked() -> None:
    """The resource is meant as it was granted."""

    async def scenario(asked: Asked) -> None:
        roles = asked.client().roles
        await roles.grant("ann", "treasurer", resource="pay_*")
        for subject, resource in (("bob", None), ("ann", "*")):
            with pytest.raises(DefinitionError, match="no such binding"):
                await roles.revoke(subject, "treasurer", resource=resource)
        await roles.revoke("ann", "treasurer", resource="pay_*")

    asked(scenario)


def test_two_admins_at_once_lose_nothing() -> None:
    """Each change follows the one before: all of twenty that are made side by side are there."""

    async def scenario(asked: Asked) -> None:
        await asked.client().roles.grant("ann", "outlast:admin")
        names = [f"p{number}" for number in range(20)]
        who = [asked.client(LOCAL if number % 2 else "ann") for number in range(20)]
        await asyncio.gather(
            *(
                client.roles.grant(name, "treasurer")
                for client, name in zip(who, names, strict=True)
            )
        )
        assert {name for name, role in await held(asked.client()) if role == "treasurer"} == set(
            names
        )

    asked(scenario)


def test_a_lost_answer_is_no_second_grant() -> None:
    """What stands there is ours: nothing is written twice. Who is always slower is told so."""

    async def scenario(asked: Asked) -> None:
        client = client_of(asked.store, LOCAL)
        commit = client.commit

        async def lost(change: Any) -> Any:
            assert isinstance(await commit(change), Applied)
            return Conflict(version=change.version + 1)

        client.commit = lost
        await client.roles.grant("ann", "treasurer")
        assert len(await client.roles.acts()) == 1

        async def slower(change: Any) -> Any:
            return Conflict(version=9)

        client.commit = slower
        with pytest.raises(StoreError, match="changed by somebody else"):
            await client.roles.grant("bob", "treasurer")

    asked(scenario)


def test_roles_of_tenants_never_mix() -> None:
    """What is granted in one counts in no other; what counts for everybody is a row of its own."""

    async def scenario(asked: Asked) -> None:
        await asked.client(tenant="one").roles.grant("ann", "outlast:admin")
        with pytest.raises(NotAuthorisedError):
            await asked.client("ann", tenant="two").roles.grant("ann", "outlast:admin")
        assert await held(asked.client("ann", tenant="two")) == []
        with pytest.raises(NotAuthorisedError):
            await asked.client("ann", tenant="one").stops.stop("why", everybody=True)
        await asked.client(tenant="two").roles.grant("ann", "outlast:stop", everybody=True)
        assert await held(asked.client(tenant="two")) == []
        assert len(await asked.client(tenant="one").roles.list(everybody=True)) == 2
        await asked.client("ann", tenant="one").stops.stop("why", everybody=True)
        assert [one.everybody for one in await asked.client(tenant="two").stops.list()] == [True]

    asked(scenario)


def test_a_row_that_cannot_be_read_permits_nothing() -> None:
    """Neither a decision nor a change: nobody repairs by accident what somebody broke."""

    async def scenario(asked: Asked) -> None:
        await asked.ask()
        view = await asked.view()
        await asked.apply(PutControl("default", "roles", 0, b'{"bindings": 5}'))
        client = asked.client()
        with pytest.raises(DecodeError, match="roles of the tenant"):
            await client.roles.grant("ann", "treasurer")
        with pytest.raises(DecodeError, match="roles of the tenant"):
            await client.approvals.approve("run", view.approval_id, seen_sha256=view.subject_sha256)
        assert await asked.state() == "pending"

    asked(scenario)


def test_roles_are_not_kept_where_another_authority_is_asked() -> None:
    """They would count for nobody."""

    async def scenario(asked: Asked) -> None:
        client = asked.client(authority=Anybody())
        with pytest.raises(DefinitionError, match="another authority"):
            await client.roles.grant("ann", "treasurer")
        with pytest.raises(DefinitionError, match="another authority"):
            await client.roles.list()

    asked(scenario)


def test_a_principal_is_of_the_tenant() -> None:
    """One of another tenant opens nothing; a name is one of the client's own."""

    async def scenario(asked: Asked) -> None:
        with pytest.raises(DefinitionError, match="is of tenant 'default'"):
            Client(
                asked.store,
                random=SeededRandom(1),
                tenant="acme",
                principal=outlast.Principal("ann"),
            )
        named = Client(asked.store, random=SeededRandom(1), tenant="acme", principal="ann")
        assert named.actor == outlast.Principal("ann", "acme")
        assert outlast.Principal("", "acme").subject == ""

    asked(scenario)


def test_ends_pass_by_the_stores_clock() -> None:
    """A role with an end is over then, and dropped with the next change; others are kept."""

    async def scenario(asked: Asked) -> None:
        roles = asked.client().roles
        await roles.grant("ann", "treasurer", until=asked.clock.now() + HOUR)
        await roles.grant("bob", "treasurer")
        asked.clock.advance(HOUR + timedelta(seconds=1))
        assert ("ann", "treasurer") in await held(asked.client())
        await roles.grant("cid", "treasurer")
        assert await held(asked.client()) == [
            (LOCAL, "outlast:admin"), ("bob", "treasurer"), ("cid", "treasurer"),
        ]  # fmt: skip

    asked(scenario)


def test_who_is_local_does_not_depend_on_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another user's client, of any tenant, holds nothing, and an app of theirs says so; who opened the store first is believed from there, too."""
    url = f"sqlite:///{tmp_path / 'a.db'}"

    async def main() -> None:
        monkeypatch.setattr("outlast.app.local_principal", lambda: "ann@box")
        async with outlast.connect(url, create=True) as ann:
            assert ann.roles.local_user == "ann@box"
        monkeypatch.setattr("outlast.app.local_principal", lambda: "bob@box")
        async with outlast.open(url) as bob:
            assert (bob.principal, bob.roles.local_user) == ("bob@box", "ann@box")
            for everybody in (False, True):
                with pytest.raises(NotAuthorisedError) as refused:
                    await bob.roles.grant("bob@box", "boss", everybody=everybody)
                assert "ann@box, who opened the store first" in refused.value.hint
        async with outlast.connect(url, tenant="another") as bob:
            with pytest.raises(NotAuthorisedError, match="may not stop"):
                await bob.stops.stop("why")
        async with outlast.connect(url, principal="ann@box") as ann:
            await ann.roles.grant("bob@box", "boss")

    asyncio.run(main())
    assert "ann@box holds all of them, and bob@box none" in capsys.readouterr().err


def test_a_store_in_memory_knows_its_local_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a file does, and a directory of the user's has none."""
    monkeypatch.setattr("outlast.app.local_principal", lambda: "ann@box")

    async def main() -> None:
        async with outlast.open("memory://") as app:
            row = await app.store.control("", "local")
            assert row is not None
            assert b"ann@box" in row[1]
            await app.roles.grant("bob", "boss")
        async with outlast.open("memory://", authority=Anybody()) as app:
            assert await app.store.control("", "local") is None
            with pytest.raises(DefinitionError, match="another authority"):
                _ = app.roles.local_user

    asyncio.run(main())
