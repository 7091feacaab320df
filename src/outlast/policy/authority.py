"""Who may do what: asked for whoever starts, sends, decides, resumes, acts, forks and reads; by our own rows, or by a directory of the user's.

Invariant: what is not answered with a plain yes is a no, an error too.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import Any, Protocol, cast

import msgspec

from outlast.errors import DefinitionError, OutlastError, StoreError
from outlast.policy.binding import (
    ADMIN,
    FREE,
    OWN,
    ROLES,
    Bindings,
    Verb,
    check_role,
    check_subject,
)
from outlast.store.change import Guard

logger = logging.getLogger("outlast")

FRESH_FOR = timedelta(seconds=1)
"""So old what is known of roles may be where nothing is decided by it that cannot be taken back."""

_ALWAYS_FRESH = timedelta(0)


class Principal(msgspec.Struct, frozen=True):
    """Who acts.

    Args:
        subject: Their name, as roles name it; empty for nobody in particular.
        tenant: Whose roles count.
        roles: They act in these only, whatever else they hold; None for all that they hold. That holds for what they do themselves: a run
            keeps the name of who started it and no roles, so that its effects are asked of all that this one holds.

    Raises:
        DefinitionError: The name, or a role, is none.

    Example:
        ```python
        import outlast

        ann = outlast.Principal("ann", roles=("treasurer",))
        async with outlast.open("memory://", principal=ann) as app:
            assert app.principal == "ann"
        ```
    """

    subject: str
    tenant: str = "default"
    roles: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse what is nobody."""
        given: Any = self.roles
        if self.subject != "":
            check_subject(self.subject)
        if given is not None and not isinstance(given, tuple):
            raise DefinitionError(
                f"roles={given!r:.80} are no roles", hint='write a tuple, as ("treasurer",)'
            )
        for one in self.roles or ():
            check_role(one)

    def acts_in(self, role: str) -> bool:
        """Whether they act in a role, if they hold it."""
        return self.roles is None or role in self.roles


class Held(msgspec.Struct, frozen=True):
    """Somebody holds a role.

    Args:
        behalf: Whose delegate they are; empty for a role of their own. What they say counts as said by both.
        guards: The versions of our own rows by which that was found; a directory of the user's has none.

    Example:
        ```python
        from outlast.policy import Held

        assert Held().behalf == "" and Held("ann").behalf == "ann"  # a role of their own; ann's, lent to them
        ```
    """

    behalf: str = ""
    guards: tuple[Guard, ...] = ()


class Authority(Protocol):
    """Who may do what. Outlast's own keeps roles in the store; this is how a directory of yours takes its place.

    It is asked each time, immediately before what rests on its answer. An exception, or an answer of another type, is a no. For a yes on which
    an effect rests it is asked again when the effect begins.

    Example:
        ```python
        import outlast
        from outlast.policy import Held

        STAFF = {"ann": {"treasurer"}, "bob": set()}

        class Directory:
            async def holds(self, principal: outlast.Principal, role: str, resource: str) -> Held | None:
                return Held() if role in STAFF.get(principal.subject, ()) else None

            async def may(self, principal: outlast.Principal, verb: str, resource: str) -> bool:
                return principal.subject in STAFF and verb not in {"admin", "stop", "pin", "bypass"}

            async def holders(self, tenant: str, role: str, resource: str) -> list[str] | None:
                return [name for name, roles in STAFF.items() if role in roles]

        @outlast.workflow
        async def greet(name: str) -> str:
            return f"hello {name}"

        async with outlast.open("memory://", authority=Directory(), principal="ann") as app:
            assert await app.run(greet("Ada"), id="greet-ada") == "hello Ada"
        async with outlast.open("memory://", authority=Directory(), principal="eve") as app:
            try:
                await app.start(greet("Ada"), id="greet-ada")
            except outlast.NotAuthorisedError as error:
                assert (error.who, error.verb) == ("eve", "start")
        ```
    """

    async def holds(self, principal: Principal, role: str, resource: str) -> Held | None:
        """Return how somebody holds a role, None where they do not.

        Args:
            resource: The workflow's name.
        """
        ...

    async def may(self, principal: Principal, verb: Verb, resource: str) -> bool:
        """Return whether somebody may do something.

        Args:
            resource: The workflow's name; empty where there is no run, and for what concerns all of them.
        """
        ...

    async def holders(self, tenant: str, role: str, resource: str) -> list[str] | None:
        """Return who holds a role, None where nobody knows: a request that nobody can decide is warned of at once."""
        ...


class Roles(msgspec.Struct, frozen=True):
    """What the row `roles` of a tenant says, at one version: pure answers, without a wait.

    Args:
        version: Of the row; 0 where there never was one. The tenant is *open* then.
        local: The local user of the store, who holds every role of an open tenant; None where everybody is.
    """

    tenant: str
    version: int
    bindings: Bindings | None
    local: str | None

    @staticmethod
    def of(tenant: str, row: tuple[int, bytes] | None, local: str | None) -> Roles:
        """Return what a row says.

        Raises:
            DecodeError: It cannot be read. Nobody may do anything then.
        """
        if row is None:
            return Roles(tenant, 0, None, local)
        version, body = row
        return Roles(tenant, version, Bindings.decode(body), local)

    @property
    def is_open(self) -> bool:
        """Whether no roles were ever set."""
        return self.bindings is None

    @property
    def guards(self) -> tuple[Guard, ...]:
        """On what answers rest."""
        return (Guard(self.tenant, ROLES, self.version),)

    def is_free(self, verb: Verb) -> bool:
        """Whether everybody may do something."""
        return verb in FREE and (self.bindings is None or OWN + verb not in self.bindings.guarded)

    def holds(self, principal: Principal, role: str, resource: str, now: datetime) -> Held | None:
        """Return how somebody holds a role; see `Authority.holds`."""
        if principal.tenant != self.tenant or not principal.acts_in(role):
            return None
        if self.bindings is None:
            return Held(guards=self.guards) if self._is_local(principal) else None
        for one in self.bindings.holding(principal.subject, role, resource, now):
            return Held(one.delegated_by, self.guards)
        return None

    def may(self, principal: Principal, verb: Verb, resource: str, now: datetime) -> bool:
        """Return whether somebody may do something; see `Authority.may`."""
        if principal.tenant != self.tenant:
            return False
        if self.is_free(verb):
            return True
        return any(self.holds(principal, one, resource, now) for one in (OWN + verb, ADMIN))

    def holders(self, role: str, resource: str, now: datetime) -> list[str] | None:
        """Return who holds a role; see `Authority.holders`."""
        if self.bindings is not None:
            return self.bindings.holders(role, resource, now)
        return None if self.local is None else [self.local]

    def _is_local(self, principal: Principal) -> bool:
        return self.local is None or principal.subject == self.local


class RoleReader(Protocol):
    """What an authority reads: a store, or what stands for one."""

    async def control(self, tenant: str, name: str) -> tuple[int, bytes] | None:
        """Return version and body of a control row."""
        ...

    def now(self) -> datetime:
        """Return the store's time."""
        ...


class StoreAuthority:
    """The roles that are kept in the store.

    Args:
        local: The local user of the store, who holds every role of a tenant without any; None where everybody is that one.
    """

    def __init__(self, reader: RoleReader, local: str | None) -> None:
        self._reader = reader
        self.local = local
        self._known: dict[str, tuple[datetime, Roles]] = {}
        self._open: set[str] = set()
        """The tenants without any roles, by what was read last."""

    async def roles(self, tenant: str, *, fresh_for: timedelta = _ALWAYS_FRESH) -> Roles:
        """Return what the row of a tenant says.

        Args:
            fresh_for: So old it may be.

        Raises:
            DecodeError: The row cannot be read.
        """
        now = self._reader.now()
        known = self._known.get(tenant)
        # A clock that was set back proves nothing.
        if known is not None and timedelta(0) <= now - known[0] < fresh_for:
            return known[1]
        roles = self.read(tenant, await self._reader.control(tenant, ROLES))
        self._known[tenant] = now, roles
        return roles

    def read(self, tenant: str, row: tuple[int, bytes] | None) -> Roles:
        """Return what a row of a tenant says.

        Raises:
            DecodeError: It cannot be read.
        """
        roles = Roles.of(tenant, row, self.local)
        (self._open.add if roles.is_open else self._open.discard)(tenant)
        return roles

    def was_open(self, tenant: str) -> bool:
        """Whether a tenant had no roles when its row was read last: for the words of a refusal."""
        return tenant in self._open

    def forget(self, tenant: str) -> None:
        """Read the row of a tenant anew when it is needed next: it was changed."""
        self._known.pop(tenant, None)

    async def holds(self, principal: Principal, role: str, resource: str) -> Held | None:
        """Return how somebody holds a role, by the row as it is now."""
        roles = await self.roles(principal.tenant)
        return roles.holds(principal, role, resource, self._reader.now())

    async def may(self, principal: Principal, verb: Verb, resource: str) -> bool:
        """Return whether somebody may do something; of what is free until somebody says otherwise, as of a second ago."""
        fresh_for = FRESH_FOR if verb in FREE else _ALWAYS_FRESH
        roles = await self.roles(principal.tenant, fresh_for=fresh_for)
        return roles.may(principal, verb, resource, self._reader.now())

    async def holders(self, tenant: str, role: str, resource: str) -> list[str] | None:
        """Return who holds a role."""
        return (await self.roles(tenant)).holders(role, resource, self._reader.now())


class Anybody:
    """Everybody holds every role and may do everything: for whoever composes a client by hand, and asks nobody."""

    async def holds(self, principal: Principal, role: str, resource: str) -> Held | None:
        """Return that they hold it."""
        return Held()

    async def may(self, principal: Principal, verb: Verb, resource: str) -> bool:
        """Return that they may."""
        return True

    async def holders(self, tenant: str, role: str, resource: str) -> list[str] | None:
        """Return that nobody knows."""
        return None


async def held(authority: Authority, principal: Principal, role: str, resource: str) -> Held | None:
    """Ask how somebody holds a role; what is no answer is a no.

    Raises:
        StoreError: The store does not answer, or its row cannot be read.
    """
    try:
        answer: Any = await authority.holds(principal, role, resource)
    except StoreError:
        raise
    except Exception:
        logger.exception("the authority was asked who holds the role %r, and raised", role)
        return None
    return answer if isinstance(answer, Held) else None


async def permitted(authority: Authority, principal: Principal, verb: Verb, resource: str) -> bool:
    """Ask whether somebody may do something; what is no answer is a no.

    Raises:
        StoreError: The store does not answer, or its row cannot be read.
    """
    try:
        answer: Any = await authority.may(principal, verb, resource)
    except StoreError:
        raise
    except Exception:
        logger.exception("the authority was asked who may %s, and raised", verb)
        return False
    return answer is True


async def nobody_holds(authority: Authority, tenant: str, role: str, resource: str) -> bool:
    """Whether it is known that nobody holds a role: a request for it waits for nobody."""
    return await _holders(authority, tenant, role, resource) == []


async def nobody_else_holds(
    authority: Authority, tenant: str, role: str, resource: str, barred: frozenset[str]
) -> bool:
    """Whether it is known that nobody holds a role but some who may not decide, and delegates of theirs.

    Args:
        barred: Who may not.
    """
    found = await _holders(authority, tenant, role, resource)
    if found is None:
        return False
    for subject in found:
        if subject in barred:
            continue
        try:
            how = await held(authority, Principal(subject, tenant), role, resource)
        except OutlastError:
            return False
        if how is None or how.behalf not in barred:
            return False
    return True


async def _holders(authority: Authority, tenant: str, role: str, resource: str) -> list[str] | None:
    """Return who holds a role; None where nobody knows."""
    try:
        found: Any = await authority.holders(tenant, role, resource)
    except Exception:  # a warning that cannot be given is none
        logger.debug(
            "the authority was asked who holds the role %r, and raised", role, exc_info=True
        )
        return None
    return cast("list[str]", found) if isinstance(found, list) else None
