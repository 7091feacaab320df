"""Laws of roles: whoever holds one has somebody behind them; what was closed stays closed; nobody but an admin changes anything."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from outlast.client import Client
from outlast.errors import DefinitionError, NotAuthorisedError
from outlast.policy.authority import Principal, Roles, StoreAuthority
from outlast.policy.binding import ADMIN, Bindings, RoleBinding
from outlast.policy.glob import fits
from outlast.store.memory import MemoryStore
from outlast.testing import SeededRandom
from outlast.testing.conformance.bench import ManualClock

PEOPLE = ("me", "ann", "bob", "cid")
ROLES = ("treasurer", "outlast:read", ADMIN)
GLOBS = ("*", "pay_*", "pay_x", "ship")
PLACES = ("pay_x", "pay_y", "ship", "")
TENANTS = ("one", "two")

Act: TypeAlias = tuple[Any, ...]

_who = st.sampled_from(PEOPLE)
_end = st.sampled_from((None, 1, 3))
_acts = st.lists(
    st.one_of(
        st.tuples(st.just("grant"), _who, st.sampled_from(TENANTS), _who, st.sampled_from(ROLES), st.sampled_from(GLOBS), _end),
        st.tuples(st.just("delegate"), _who, st.sampled_from(TENANTS), _who, st.sampled_from(ROLES), st.sampled_from(GLOBS), _end),
        st.tuples(
            st.just("revoke"), _who, st.sampled_from(TENANTS), _who, st.sampled_from(ROLES), st.sampled_from((None, *GLOBS)), st.none()
        ),
        st.tuples(st.just("pass"), st.integers(1, 2)),
    ),
    max_size=25,
)  # fmt: skip


class World:
    """Two tenants of one store, and what is known of them."""

    def __init__(self) -> None:
        self.clock = ManualClock(datetime(2026, 3, 1, tzinfo=UTC))
        self.store = MemoryStore(self.clock)

    def client(self, who: str, tenant: str) -> Client:
        """Return somebody's client."""
        return Client(
            self.store,
            random=SeededRandom(1),
            tenant=tenant,
            principal=who,
            authority=StoreAuthority(self.store, "me"),
        )

    async def roles(self, tenant: str) -> Roles:
        """Return the roles as they stand."""
        return Roles.of(tenant, await self.store.control(tenant, "roles"), "me")

    async def do(self, act: Act) -> bool:
        """Do one thing; False where it was refused."""
        if act[0] == "pass":
            self.clock.advance(timedelta(hours=act[1]))
            return True
        verb, who, tenant, subject, role, glob, hours = act
        roles = self.client(who, tenant).roles
        until = None if hours is None else self.clock.now() + timedelta(hours=hours)
        try:
            if verb == "grant":
                await roles.grant(subject, role, resource=glob, until=until)
            elif verb == "delegate":
                await roles.delegate(role, subject, resource=glob, until=until)  # type: ignore[arg-type]
            else:
                await roles.revoke(subject, role, resource=glob)
        except (DefinitionError, NotAuthorisedError):
            return False
        return True


def _has_own(bindings: Bindings, who: str, role: str, place: str, now: datetime) -> bool:
    return any(
        one.subject == who
        and one.role == role
        and not one.delegated_by
        and fits(one.resource, place)
        and (one.until is None or now < one.until)
        for one in bindings.bindings
    )


def _check_chains(roles: Roles, now: datetime) -> None:
    """Whoever holds a role has a binding of their own, or one of somebody who has one; and holders are who hold."""
    assert roles.bindings is not None
    for role in ROLES:
        for place in PLACES:
            found = [
                who for who in PEOPLE if roles.holds(Principal(who, roles.tenant), role, place, now)
            ]
            assert found == sorted(found, key=PEOPLE.index)
            assert sorted(found) == roles.holders(role, place, now)
            for who in found:
                held = roles.holds(Principal(who, roles.tenant), role, place, now)
                assert held is not None
                assert _has_own(roles.bindings, held.behalf or who, role, place, now)
                assert not (held.behalf and role.startswith("outlast:"))
    admins = [one for one in roles.bindings.bindings if one.role == ADMIN]
    assert any(one.resource == "*" and one.until is None for one in admins)


@given(_acts)
def test_whatever_is_granted_lent_and_revoked(acts: list[Act]) -> None:
    """After each act, at each time: chains are live, what was closed stays closed, and who is no admin has changed nothing of others."""

    async def main() -> None:
        world = World()
        for act in acts:
            before = {tenant: await world.roles(tenant) for tenant in TENANTS}
            now = world.clock.now()
            done = await world.do(act)
            for tenant in TENANTS:
                after = await world.roles(tenant)
                was = before[tenant]
                assert was.is_open or not after.is_open
                if act[0] == "pass" or not done or act[2] != tenant:
                    assert after == was
                else:
                    _check_change(act, was, after, now)
                if not after.is_open:
                    _check_chains(after, world.clock.now())

    asyncio.run(main())


def _check_change(act: Act, was: Roles, after: Roles, now: datetime) -> None:
    verb, who, tenant, subject, role, glob, _ = act
    actor = Principal(who, tenant)
    assert after.version == was.version + 1
    if not was.may(actor, "admin", "", now):
        old = set() if was.bindings is None else set(was.bindings.bindings)
        new = set() if after.bindings is None else set(after.bindings.bindings)
        gone = {one for one in old - new if one.until is None or now < one.until}
        assert verb != "grant"
        assert all(one.delegated_by == who for one in (new - old) | gone)
    if verb == "revoke" and glob is None and was.may(actor, "admin", "", now):
        assert not any(
            after.holds(Principal(subject, tenant), role, place, now) for place in PLACES
        )
        assert after.bindings is not None
        own = any(one.subject == subject and one.role == role for one in after.bindings.bindings)
        lent = [
            one
            for one in after.bindings.bindings
            if one.delegated_by == subject and one.role == role
        ]
        assert not own
        assert not lent


@given(st.sampled_from(PLACES), _end, st.integers(0, 4))
def test_a_delegate_ends_with_who_lent_it(place: str, hours: int | None, later: int) -> None:
    """At each moment: the delegate holds what was lent only while the delegator holds it."""
    start = datetime(2026, 3, 1, tzinfo=UTC)
    until = None if hours is None else start + timedelta(hours=hours)
    bindings = Bindings(
        (
            RoleBinding(subject="ann", role="treasurer", resource="pay_*", until=until),
            RoleBinding(
                subject="bob",
                role="treasurer",
                delegated_by="ann",
                until=start + timedelta(hours=2),
            ),
        )
    )
    now = start + timedelta(hours=later)
    roles = Roles("default", 1, bindings, "me")
    ann = roles.holds(Principal("ann"), "treasurer", place, now)
    bob = roles.holds(Principal("bob"), "treasurer", place, now)
    assert (bob is not None) == (ann is not None and later < 2)
    assert bob is None or bob.behalf == "ann"
