"""Who may do what: by the rows of a tenant, or by a directory; what is no plain yes is a no."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from outlast.errors import DecodeError, DefinitionError, StoreUnavailableError
from outlast.policy.authority import (
    Anybody,
    Held,
    Principal,
    Roles,
    StoreAuthority,
    held,
    nobody_holds,
    permitted,
)
from outlast.policy.binding import (
    FREE,
    MOST_BINDINGS,
    VERBS,
    Bindings,
    Revoked,
    RoleBinding,
    first_bindings,
)
from outlast.store.change import Guard

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def roles_of(*bindings: RoleBinding, local: str | None = "me") -> Roles:
    """Return the roles of a tenant at version 7."""
    known = first_bindings("boss")
    for one in bindings:
        known = known.granting(one, NOW)
    return Roles("default", 7, known, local)


def test_an_open_tenant_is_the_local_users() -> None:
    """They hold every role and may do everything; anybody else may do what is free."""
    roles = Roles.of("default", None, "me")
    assert roles.is_open
    assert roles.guards == (Guard("default", "roles", 0),)
    assert roles.holds(Principal("me"), "any", "flow", NOW) == Held("", roles.guards)
    assert roles.holds(Principal("eve"), "any", "flow", NOW) is None
    for verb in VERBS:
        assert roles.may(Principal("me"), verb, "flow", NOW)  # type: ignore[arg-type]
        assert roles.may(Principal("eve"), verb, "flow", NOW) == (verb in FREE)  # type: ignore[arg-type]
    assert roles.holders("any", "flow", NOW) == ["me"]
    limited = Principal("me", roles=("treasurer",))
    assert roles.holds(limited, "treasurer", "flow", NOW)
    assert roles.holds(limited, "auditor", "flow", NOW) is None
    assert not roles.may(limited, "admin", "", NOW)
    assert roles.holds(Principal("me", "other"), "any", "flow", NOW) is None
    assert not roles.may(Principal("me", "other"), "read", "flow", NOW)


def test_a_closed_tenant_is_nobodys_who_was_not_granted_it() -> None:
    """What is never free needs its role, or the admin's; what was granted to somebody is free no more, also when it was revoked."""
    roles = roles_of(RoleBinding(subject="ann", role="outlast:read", resource="pay_*"))
    assert roles.may(Principal("eve"), "start", "flow", NOW)
    for verb in ("admin", "stop", "bypass", "decide", "read"):
        assert not roles.may(Principal("me"), verb, "pay_x", NOW)  # type: ignore[arg-type]
        assert roles.may(Principal("boss"), verb, "pay_x", NOW)  # type: ignore[arg-type]
    assert roles.may(Principal("ann"), "read", "pay_x", NOW)
    assert not roles.may(Principal("ann"), "read", "", NOW)
    assert roles.bindings is not None
    left = roles.bindings.revoking(Revoked(subject="ann", role="outlast:read"), NOW)
    assert not Roles("default", 8, left, "me").may(Principal("eve"), "read", "pay_x", NOW)


def test_a_role_of_ones_own_comes_before_a_lent_one() -> None:
    """Who holds it both ways speaks for themselves; each answer names the version of the row."""
    until = NOW + HOUR
    lent = RoleBinding(subject="bob", role="treasurer", until=until, delegated_by="ann")
    own = RoleBinding(subject="ann", role="treasurer")
    guards = (Guard("default", "roles", 7),)
    assert roles_of(own, lent).holds(Principal("bob"), "treasurer", "x", NOW) == Held("ann", guards)
    both = roles_of(own, lent, RoleBinding(subject="bob", role="treasurer"))
    assert both.holds(Principal("bob"), "treasurer", "x", NOW) == Held("", guards)
    assert roles_of(own, lent).holders("treasurer", "x", NOW) == ["ann", "bob"]
    assert roles_of(own, lent).holders("treasurer", "x", until) == ["ann"]
    assert roles_of(lent).holders("treasurer", "x", NOW) == []


def test_bindings_are_bounded() -> None:
    """Ten thousand of a tenant; those that are over make room."""
    many = Bindings(
        tuple(
            RoleBinding(subject=f"p{n}", role="r", until=NOW + HOUR)
            for n in range(MOST_BINDINGS - 1)
        ),
    )
    whole = many.granting(RoleBinding(subject="boss", role="outlast:admin"), NOW)
    one = RoleBinding(subject="one more", role="r")
    with pytest.raises(DefinitionError, match="takes no more"):
        whole.granting(one, NOW)
    assert len(whole.granting(one, NOW + HOUR).bindings) == 2


def test_the_record_is_bounded() -> None:
    """The latest thousand acts, the oldest first."""
    known = first_bindings("boss")
    for number in range(1003):
        known = known.granting(RoleBinding(subject="ann", role="r", by=f"b{number}"), NOW)
    assert (len(known.acts), known.acts[0].by, known.acts[-1].by) == (1000, "b3", "b1002")
    assert Bindings.decode(known.encode()) == known


@pytest.mark.parametrize(
    "given",
    [{"subject": 5}, {"subject": " "}, {"subject": "a\0"}, {"roles": "treasurer"}, {"roles": ["treasurer"]}, {"roles": ("a:b",)}],
)  # fmt: skip
def test_a_principal_has_a_name(given: dict[str, Any]) -> None:
    """And roles are a tuple of names."""
    with pytest.raises(DefinitionError):
        Principal(**{"subject": "ann", **given})


class Directory:
    """Answers what it is given."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def said(self) -> Any:
        """Return the answer, or raise it."""
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    async def holds(self, principal: Principal, role: str, resource: str) -> Any:
        """Return whatever it is."""
        return self.said()

    async def may(self, principal: Principal, verb: str, resource: str) -> Any:
        """Return whatever it is."""
        return self.said()

    async def holders(self, tenant: str, role: str, resource: str) -> Any:
        """Return whatever it is."""
        return self.said()


@pytest.mark.parametrize(
    "answer",
    [None, 0, 1, "yes", [], object(), RuntimeError("down"), TimeoutError()],
    ids=lambda one: type(one).__name__,
)
def test_what_is_no_answer_is_a_no(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Neither what is merely true, nor an error, permits anything; an error is in the log."""

    async def main() -> None:
        directory, ann = Directory(answer), Principal("ann")
        assert await held(directory, ann, "treasurer", "flow") is None
        assert not await permitted(directory, ann, "start", "flow")
        assert await nobody_holds(directory, "default", "treasurer", "flow") == (answer == [])

    asyncio.run(main())
    assert ("treasurer" in caplog.text) == isinstance(answer, Exception)


def test_a_store_that_does_not_answer_is_said() -> None:
    """Nothing is permitted, and why is no secret; a row that cannot be read is one of these."""

    async def main() -> None:
        for error in (StoreUnavailableError("away"), DecodeError("bad")):
            with pytest.raises(type(error)):
                await held(Directory(error), Principal("ann"), "r", "flow")
            with pytest.raises(type(error)):
                await permitted(Directory(error), Principal("ann"), "start", "flow")
            assert not await nobody_holds(Directory(error), "default", "r", "flow")

    asyncio.run(main())


def test_yes_is_yes() -> None:
    """A `Held`, and True."""

    async def main() -> None:
        assert await held(Directory(Held("zoe")), Principal("ann"), "r", "flow") == Held("zoe")
        assert await permitted(Directory(True), Principal("ann"), "start", "flow")
        anybody = Anybody()
        assert await held(anybody, Principal("x"), "r", "flow") == Held()
        assert await permitted(anybody, Principal("x"), "admin", "")
        assert not await nobody_holds(anybody, "default", "r", "flow")

    asyncio.run(main())


class Row:
    """A reader with one row, and a clock that is set."""

    def __init__(self) -> None:
        self.row: tuple[int, bytes] | None = None
        self.time = NOW
        self.reads: list[tuple[str, str]] = []

    async def control(self, tenant: str, name: str) -> tuple[int, bytes] | None:
        """Return the row."""
        self.reads.append((tenant, name))
        return self.row

    def now(self) -> datetime:
        """Return the time."""
        return self.time


def test_what_a_yes_rests_on_is_read_each_time() -> None:
    """Of what is free until somebody says otherwise, a second old will do; what was changed by the same process is forgotten."""

    async def main() -> None:
        row = Row()
        authority = StoreAuthority(row, "me")
        for _ in range(3):
            assert await authority.may(Principal("eve"), "read", "flow")
        assert row.reads == [("default", "roles")]
        for _ in range(3):
            assert await authority.holds(Principal("me"), "r", "flow") is not None
        assert len(row.reads) == 4
        row.row = (
            1,
            first_bindings("me")
            .granting(RoleBinding(subject="x", role="outlast:read"), NOW)
            .encode(),
        )
        assert await authority.may(Principal("eve"), "read", "flow")
        assert not await authority.may(Principal("eve"), "admin", "")
        assert not await authority.may(Principal("eve"), "read", "flow")
        row.row = None
        authority.forget("default")
        assert await authority.may(Principal("eve"), "read", "flow")
        row.row = (2, b"{")
        row.time += timedelta(seconds=1)
        with pytest.raises(DecodeError):
            await authority.may(Principal("eve"), "read", "flow")

    asyncio.run(main())
