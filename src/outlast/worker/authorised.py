"""Asks whether people may still do what they did: who started the run, and who approved an effect.

By our own rows that is read from the copy which the worker has; a directory of the user's is asked each time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime, timedelta

from outlast.errors import ApprovalUnauthorisedError, OutlastError
from outlast.policy.authority import (
    Authority,
    Held,
    Principal,
    Roles,
    StoreAuthority,
    held,
    permitted,
)
from outlast.policy.binding import OWN, Verb
from outlast.store.change import Guard
from outlast.worker.control import Control
from outlast.worker.look import SOONER, timely


class Authorised:
    """Asks for one run.

    Args:
        authority: Who is asked; None where everybody may do everything but bypass the policy.
        starter: Who started the run.
        now: The store's time.
        fresh: Returns the control rows as they are now.
        within: How long an answer counts: a directory has no longer to give one.
    """

    def __init__(  # noqa: PLR0913 - each is something to ask
        self,
        authority: Authority | None,
        *,
        tenant: str,
        workflow: str,
        starter: str,
        now: Callable[[], datetime],
        fresh: Callable[[], Awaitable[Control]],
        within: timedelta,
    ) -> None:
        self._authority = authority
        self._tenant = tenant
        self._workflow = workflow
        self._starter = starter
        self._now = now
        self._fresh = fresh
        self._within = within

    @property
    def are_asked(self) -> bool:
        """Whether there is anybody to ask."""
        return self._authority is not None

    def is_free(self, control: Control) -> bool:
        """Whether nobody has to be asked who may act."""
        if self._authority is None:
            return True
        return control.roles is not None and control.roles.is_free("act")

    def guards(self, control: Control) -> tuple[Guard, ...]:
        """Return the row on which answers rest that were read from it."""
        return (control.by_roles,) if isinstance(self._authority, StoreAuthority) else ()

    async def check(self, control: Control, voters: Iterable[tuple[str, str]]) -> tuple[Guard, ...]:
        """Return on what it rests that who started the run may act, and that each of those who approved holds their role.

        Args:
            voters: With the role in which they approved.

        Raises:
            ApprovalUnauthorisedError: One may not or does not, or nobody could find out.
        """
        found = await self._found(control, list(voters))
        return tuple(dict.fromkeys(guard for one in found for guard in one.guards))

    async def held(self, control: Control, who: str, role: str) -> Held | None:
        """Return how somebody holds a role, as who approved must; None where they do not."""
        try:
            found = await self._found(control, [(who, role)])
        except ApprovalUnauthorisedError:
            return None
        return found[-1] if found else Held()

    async def _found(self, control: Control, voters: list[tuple[str, str]]) -> list[Held]:
        """Return by what who started the run may act, and then how each of those who approved holds their role; nothing where nobody is asked."""
        authority = self._authority
        if authority is None:
            return []
        if not isinstance(authority, StoreAuthority):
            return await self._asked(authority, voters)
        found = self._read(control.roles, voters)
        if isinstance(found, ApprovalUnauthorisedError):
            control = await self._fresh()
            found = self._read(control.roles, voters)
        if isinstance(found, ApprovalUnauthorisedError):
            raise found
        return [Held(guards=self.guards(control)), *found]

    async def may_bypass(self, control: Control) -> bool:
        """Return whether who started the run may work in the mode `bypass`; where nobody says so, nobody may."""
        starter = self._principal(self._starter)
        if self._authority is None or starter is None:
            return False
        if not isinstance(self._authority, StoreAuthority):
            return await self._permitted(self._authority, starter, "bypass")
        roles = control.roles
        return roles is not None and roles.may(starter, "bypass", self._workflow, self._now())

    def _read(
        self, roles: Roles | None, voters: list[tuple[str, str]]
    ) -> list[Held] | ApprovalUnauthorisedError:
        """Return how each holds their role, or what the roles of the tenant forbid."""
        starter, now = self._principal(self._starter), self._now()
        if roles is None or starter is None:
            return _may_not_act(self._starter)
        if not roles.may(starter, "act", self._workflow, now):
            return _may_not_act(self._starter)
        found: list[Held] = []
        for who, role in voters:
            voter = self._principal(who)
            how = voter and roles.holds(voter, role, self._workflow, now)
            if not how:
                return _holds_not(who, role)
            found.append(how)
        return found

    async def _asked(self, authority: Authority, voters: list[tuple[str, str]]) -> list[Held]:
        starter = self._principal(self._starter)
        if starter is None or not await self._permitted(authority, starter, "act"):
            raise _may_not_act(self._starter)
        found = [Held()]
        for who, role in voters:
            voter = self._principal(who)
            how = voter and await self._held(authority, voter, role)
            if not how:
                raise _holds_not(who, role)
            found.append(how)
        return found

    async def _held(self, authority: Authority, who: Principal, role: str) -> Held | None:
        answer = held(authority, who, role, self._workflow)
        try:
            return await timely(answer, _named(authority, "holds"), self._within)
        except TimeoutError as error:
            raise _nobody_knows(f"{who.subject} holds the role {role}", who, role, error) from None
        except OutlastError:
            return None

    async def _permitted(self, authority: Authority, who: Principal, verb: Verb) -> bool:
        answer = permitted(authority, who, verb, self._workflow)
        try:
            return await timely(answer, _named(authority, "may"), self._within)
        except TimeoutError as error:
            what = f"{who.subject}, who started the run, may {verb}"
            raise _nobody_knows(what, who, OWN + verb, error) from None
        except OutlastError:
            return False

    def _principal(self, subject: str) -> Principal | None:
        try:
            return Principal(subject, self._tenant)
        except OutlastError:
            return None


def _named(authority: Authority, method: str) -> str:
    return f"the authority {type(authority).__qualname__}.{method}()"


def _nobody_knows(
    what: str, who: Principal, role: str, error: TimeoutError
) -> ApprovalUnauthorisedError:
    return ApprovalUnauthorisedError(
        f"nobody could find out in time whether {what}: {error}",
        who=who.subject,
        role=role,
        hint=SOONER,
    )


def _may_not_act(who: str) -> ApprovalUnauthorisedError:
    return ApprovalUnauthorisedError(
        f"who started the run may not act any more: {who or 'nobody known'}",
        who=who,
        role="outlast:act",
        hint="`outlast roles list` says who may; another one can start the run anew",
    )


def _holds_not(who: str, role: str) -> ApprovalUnauthorisedError:
    return ApprovalUnauthorisedError(
        f"who approved it does not hold the role any more: {who} as {role}",
        who=who,
        role=role,
        hint="`outlast roles list` says who does; ask for another approval",
    )
