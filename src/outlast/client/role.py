"""Who holds which role in a tenant: looked at, granted, revoked, lent. Each change is kept with who made it, when and why."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from datetime import datetime
from typing import Any

from outlast.client.access import not_held, not_permitted
from outlast.client.control import change_row
from outlast.client.port import Port
from outlast.errors import DefinitionError, NotAuthorisedError
from outlast.policy.authority import Principal, Roles, StoreAuthority
from outlast.policy.binding import (
    EVERYWHERE,
    ROLES,
    Bindings,
    Revoked,
    RoleAct,
    RoleBinding,
    check_resource,
    check_role,
    check_subject,
    first_bindings,
)
from outlast.policy.local import EVERYBODY


def principal_of(given: str | Principal, tenant: str) -> Principal:
    """Return who acts in a tenant.

    Raises:
        DefinitionError: It is no name, or somebody of another tenant.
    """
    if not isinstance(given, Principal):
        return Principal(given, tenant)
    if given.tenant != tenant:
        raise DefinitionError(
            f"the principal {given.subject!r} is of tenant {given.tenant!r}, and not of {tenant!r}",
            hint=f"write Principal({given.subject!r}, tenant={tenant!r}), or give tenant={given.tenant!r}",
        )
    return given


class RoleBook:
    """The roles of a tenant.

    A tenant whose roles were never set is open: the local user who opened the store first holds every role and may do everything, and
    anybody else may start, send, resume, fork and read. The first grant closes it for good, and makes whoever gave it its admin (`outlast:admin`).
    """

    def __init__(self, client: Port) -> None:
        self._client = client

    @property
    def local_user(self) -> str | None:
        """Who holds every role while none are set: the user of the operating system who opened the store first; None where everybody does.

        Raises:
            DefinitionError: Roles are kept elsewhere (`authority=`).
        """
        return self._own.local

    async def grant(
        self,
        subject: str,
        role: str,
        *,
        resource: str = EVERYWHERE,
        until: datetime | None = None,
        reason: str = "",
        everybody: bool = False,
    ) -> None:
        """Give somebody a role.

        Args:
            role: As requests name it; or `outlast:VERB`, after which the verb is free no more: start, message, resume, act, fork, read; stop, pin,
                bypass, decide (requests that name no role), admin.
            resource: Where: a glob over names of workflows.
            until: From then on it counts no more.
            reason: Why; kept.
            everybody: In what counts for all tenants: `outlast:stop` there is the right to stop everybody.

        Raises:
            NotAuthorisedError: Whoever acts is no admin.
            DefinitionError: A name, glob or end cannot be kept, there are 10,000 bindings, or roles are kept elsewhere (`authority=`).

        Example:
            ```python
            import outlast

            async with outlast.connect("sqlite:///agent.db", create=True) as client:
                await client.roles.grant("ann", "treasurer", resource="pay_*", reason="head of finance")
                assert [one.subject for one in await client.roles.list() if one.role == "treasurer"] == ["ann"]
                await client.roles.revoke("ann", "treasurer", reason="left")
            ```
        """
        binding = RoleBinding(
            subject=subject, role=role, resource=resource, until=until, by=self._client.principal
        )

        def granted(roles: Roles, actor: Principal, now: datetime) -> Bindings:
            if not roles.may(actor, "admin", "", now):
                raise not_permitted(self._client, "admin", everybody=everybody)
            known = first_bindings(actor.subject) if roles.bindings is None else roles.bindings
            return known.granting(binding, now, reason)

        await self._change(granted, everybody=everybody)

    async def revoke(
        self,
        subject: str,
        role: str,
        *,
        resource: str | None = None,
        reason: str = "",
        everybody: bool = False,
    ) -> None:
        """Take a role from somebody, and from those to whom they lent it. Who is no admin takes back what they lent.

        Args:
            resource: The glob as it was granted; all of them by default.

        Raises:
            NotAuthorisedError: Whoever acts is no admin, and has lent nothing of that.
            DefinitionError: There is no such binding, or nobody could change the roles any more.
        """

        def revoked(roles: Roles, actor: Principal, now: datetime) -> Bindings:
            own = Revoked(
                subject=subject,
                role=role,
                resource=resource,
                by=actor.subject,
                delegated_by=None if roles.may(actor, "admin", "", now) else actor.subject,
            )
            known = roles.bindings or Bindings()
            if own.delegated_by is not None and not any(map(own.names, known.bindings)):
                raise not_permitted(self._client, "admin", everybody=everybody)
            return known.revoking(own, now, reason)

        await self._change(revoked, everybody=everybody)

    async def delegate(
        self,
        role: str,
        to: str,
        *,
        until: datetime,
        resource: str = EVERYWHERE,
        reason: str = "",
    ) -> None:
        """Lend a role that one holds oneself. It ends with `until`, with the own role, or when it is taken back by `revoke`.

        Args:
            to: Whose yes counts as one's own, too.

        Raises:
            NotAuthorisedError: Whoever acts does not hold the role by a binding of their own, everywhere there.
            DefinitionError: A name, glob or end cannot be kept, or it is a role of the library's own.

        Example:
            ```python
            from datetime import UTC, datetime, timedelta

            import outlast

            url, until = "sqlite:///agent.db", datetime.now(UTC) + timedelta(days=7)
            async with outlast.connect(url, create=True) as client:
                await client.roles.grant("ann", "treasurer")
            async with outlast.connect(url, principal="ann") as ann:
                await ann.roles.delegate("treasurer", "bob", until=until, reason="on holiday")
                assert [one.subject for one in await ann.roles.list() if one.delegated_by == "ann"] == ["bob"]
            ```
        """
        check_role(role)
        check_subject(to)
        check_resource(resource)
        if to == self._client.principal:
            raise DefinitionError(
                "a role cannot be lent to oneself", hint="name who is to decide instead"
            )
        binding = RoleBinding(
            subject=to,
            role=role,
            resource=resource,
            until=until,
            by=self._client.principal,
            delegated_by=self._client.principal,
        )

        def lent(roles: Roles, actor: Principal, now: datetime) -> Bindings:
            known = roles.bindings
            if (
                known is None
                or not actor.acts_in(role)
                or not known.owns(actor.subject, role, resource, now)
            ):
                raise self._nothing_to_lend(roles, role, resource)
            return known.granting(binding, now, reason)

        await self._change(lent, everybody=False)

    def _nothing_to_lend(self, roles: Roles, role: str, resource: str) -> NotAuthorisedError:
        if not roles.is_open:
            return not_held(self._client, role, resource=resource)
        return NotAuthorisedError(
            f"no roles are set in this tenant, so that there is none to lend: {role!r}",
            who=self._client.principal,
            role=role,
            hint=f"{self._own.local} holds all of them, and can set roles up: `outlast roles grant {self._client.principal} {role}`",
        )

    async def list(self, *, everybody: bool = False) -> builtins.list[RoleBinding]:
        """Return the bindings, the oldest first; none where roles were never set. Those that are over go with the next change."""
        roles = await self._own.roles(self._tenant(everybody=everybody))
        return [] if roles.bindings is None else builtins.list(roles.bindings.bindings)

    async def acts(self, *, everybody: bool = False) -> builtins.list[RoleAct]:
        """Return the latest 1,000 things that were done to the roles, the oldest first: who did what, when and why."""
        roles = await self._own.roles(self._tenant(everybody=everybody))
        return [] if roles.bindings is None else builtins.list(roles.bindings.acts)

    def _tenant(self, *, everybody: bool) -> str:
        return EVERYBODY if everybody else self._client.tenant

    @property
    def _own(self) -> StoreAuthority:
        _ = self._client.store  # refuses workflow code, and another event loop
        authority: Any = self._client.authority
        if isinstance(authority, StoreAuthority):
            return authority
        raise DefinitionError(
            "this client asks another authority than the roles in the store",
            hint="change them in the directory that was given as authority=; what outlast.open() and connect() return asks the store by default",
        )

    async def _change(
        self, changed: Callable[[Roles, Principal, datetime], Bindings], *, everybody: bool
    ) -> None:
        authority, tenant = self._own, self._tenant(everybody=everybody)
        actor = Principal(self._client.principal, tenant, self._client.actor.roles)

        async def body(row: tuple[int, bytes] | None) -> bytes:
            roles = authority.read(tenant, row)
            return changed(roles, actor, self._client.store.now()).encode()

        try:
            await change_row(self._client, tenant, ROLES, body)
        finally:
            authority.forget(tenant)
